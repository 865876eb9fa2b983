//! Wildcards in paths, for a server whose client did not let a shell expand them (`--secluded-args`).

use super::sys;
use crate::filter;

/// Returns the paths that a pattern matches, sorted; the pattern itself if there are none or it has no wildcard.
///
/// As in rsync, `*` also matches names that start with a dot, and never a slash. Elements without wildcards are not
/// checked for existence.
pub fn expand(pattern: &[u8]) -> Vec<Vec<u8>> {
    if !filter::has_wildcard(pattern) {
        return vec![pattern.to_vec()];
    }
    let mut found: Vec<Vec<u8>> = vec![Vec::new()];
    let mut elements = pattern.split_inclusive(|&b| b == b'/').peekable();
    while let Some(element) = elements.next() {
        let name = element.strip_suffix(b"/").unwrap_or(element);
        let slash = &element[name.len()..];
        let is_last = elements.peek().is_none() && slash.is_empty();
        found = if filter::has_wildcard(name) {
            found
                .iter()
                .flat_map(|dir| matches_in(dir, name, !is_last))
                .collect()
        } else {
            found.iter().map(|dir| [dir, name].concat()).collect()
        };
        for path in &mut found {
            path.extend_from_slice(slash);
        }
    }
    if found.is_empty() {
        vec![pattern.to_vec()]
    } else {
        found
    }
}

/// Returns the matching entries of a directory, with the directory's path prepended.
fn matches_in(dir: &[u8], pattern: &[u8], dirs_only: bool) -> Vec<Vec<u8>> {
    use std::os::fd::AsFd;
    let Ok(fd) = sys::open_dir_path(if dir.is_empty() { b"." } else { dir }) else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    // The walk reports a directory that cannot be read to its end.
    let _ = sys::list(fd.as_fd(), |entry| {
        if filter::name_matches(pattern, entry.name) {
            paths.push([dir, entry.name].concat());
        }
    });
    if dirs_only {
        paths.retain(|path| sys::open_dir_path(path).is_ok());
    }
    // A symlink that leads nowhere does not match in a module, as in rsync; a shell includes it. One that must not be
    // followed matches.
    let leads_nowhere = |path: &[u8]| {
        sys::stat_path(path, true).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    paths.retain(|path| {
        !(super::sandbox::is_hidden(path) || super::sandbox::is_module() && leads_nowhere(path))
    });
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_expand_as_in_rsync() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().to_str().unwrap();
        for name in ["d1/x", "d2/x", ".h/x"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for name in ["a1", "a2", "a*", "[z]", ".hid", "sp ace", "b\\c"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        for (pattern, wanted) in [
            ("a?", "a* a1 a2"),
            ("a\\*", "a*"),
            ("[z]", "[z]"),
            ("\\[z\\]", "[z]"),
            ("a[1-2]", "a1 a2"),
            ("[!a]*", ".h .hid [z] b\\c d1 d2 sp ace"),
            (".*", ".h .hid"),
            ("*/x", ".h/x d1/x d2/x"),
            ("**/nothing", ".h/nothing d1/nothing d2/nothing"),
            ("d[12]/", "d1/ d2/"),
            ("d*/./x", "d1/./x d2/./x"),
            ("nope*", "nope*"),
            ("{a1,a2}", "{a1,a2}"),
            ("b\\c", "b\\c"),
            ("a[", "a["),
        ] {
            let paths = expand(format!("{top}/{pattern}").as_bytes());
            let shown: Vec<_> = paths
                .iter()
                .map(|path| String::from_utf8_lossy(&path[top.len() + 1..]))
                .collect();
            assert_eq!(shown.join(" "), wanted, "{pattern}");
        }
    }
}
