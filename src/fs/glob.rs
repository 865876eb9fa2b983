//! Wildcards in paths, for a server whose client did not let a shell expand them.

use super::sys;
use crate::filter;

/// The rules by which wildcards are expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WildcardRules {
    /// Those of rsync, for `--secluded-args` and daemons. `*` also matches names that start with a dot, and elements without
    /// wildcards are not checked for existence.
    Rsync,
    /// Those of a POSIX shell, for a path that a client would escape for it: a backslash is an escape only before a
    /// wildcard. A dot at the start of a name must be in the pattern, and only paths that exist match.
    Shell,
}

/// A part of a path between slashes.
struct PathElement<'a> {
    /// What it is if no name matches.
    literal: Vec<u8>,
    /// The pattern for [`filter::name_matches`]; `None`: it has no wildcard.
    pattern: Option<Vec<u8>>,
    /// The slash after it, if there is one.
    slash: &'a [u8],
}

impl PathElement<'_> {
    fn parse(text: &[u8], rules: WildcardRules) -> PathElement<'_> {
        let name = text.strip_suffix(b"/").unwrap_or(text);
        let slash = &text[name.len()..];
        match rules {
            WildcardRules::Rsync => {
                let is_wild = filter::has_wildcard(name);
                PathElement {
                    literal: name.to_vec(),
                    pattern: if is_wild { Some(name.to_vec()) } else { None },
                    slash,
                }
            }
            WildcardRules::Shell => {
                let (pattern, is_wild) = shell_pattern(name);
                PathElement {
                    literal: without_escapes(name),
                    pattern: if is_wild { Some(pattern) } else { None },
                    slash,
                }
            }
        }
    }
}

/// Returns the paths that a pattern matches, sorted; the pattern itself if there are none or it has no wildcard.
///
/// `start` is put in front of them, and has no wildcards.
pub fn expand(start: &[u8], pattern: &[u8], rules: WildcardRules) -> Vec<Vec<u8>> {
    let elements: Vec<PathElement<'_>> = pattern
        .split_inclusive(|&b| b == b'/')
        .map(|element| PathElement::parse(element, rules))
        .collect();
    let mut literal = start.to_vec();
    for element in &elements {
        literal.extend_from_slice(&element.literal);
        literal.extend_from_slice(element.slash);
    }
    if elements.iter().all(|element| element.pattern.is_none()) {
        return vec![literal];
    }

    let mut found: Vec<Vec<u8>> = vec![start.to_vec()];
    for element in &elements {
        found = match &element.pattern {
            Some(pattern) => {
                let dirs_only = !element.slash.is_empty();
                found
                    .iter()
                    .flat_map(|dir| matches_in(dir, pattern, dirs_only, rules))
                    .collect()
            }
            None => found
                .iter()
                .map(|dir| [dir, &element.literal[..]].concat())
                .collect(),
        };
        for path in &mut found {
            path.extend_from_slice(element.slash);
        }
    }
    if rules == WildcardRules::Shell {
        found.retain(|path| sys::stat_path(path, false).is_ok());
    }
    if found.is_empty() {
        vec![literal]
    } else {
        found
    }
}

/// Returns whether a backslash at this position is an escape for a shell. The client escapes any other one.
fn is_shell_escape(text: &[u8], at: usize) -> bool {
    text[at] == b'\\' && text.get(at + 1).is_some_and(|next| b"*?[]".contains(next))
}

/// Returns the name that a shell makes of an element in which nothing matches.
fn without_escapes(element: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(element.len());
    let mut is_escaped = false;
    for (at, &byte) in element.iter().enumerate() {
        if !is_escaped && is_shell_escape(element, at) {
            is_escaped = true;
        } else {
            is_escaped = false;
            name.push(byte);
        }
    }
    name
}

/// Returns the pattern for [`filter::name_matches`] that matches what an element matches in a shell, and whether it has a
/// wildcard.
fn shell_pattern(element: &[u8]) -> (Vec<u8>, bool) {
    let mut escaped = Vec::with_capacity(element.len());
    let mut is_escaped = false;
    for (at, &byte) in element.iter().enumerate() {
        escaped.push(byte);
        let begins_escape = !is_escaped && is_shell_escape(element, at);
        if byte == b'\\' && !begins_escape {
            escaped.push(byte);
        }
        is_escaped = begins_escape;
    }

    // A bracket that begins no class is an ordinary character for a shell.
    let mut pattern = Vec::with_capacity(escaped.len());
    let mut is_wild = false;
    let mut at = 0;
    while at < escaped.len() {
        let rest = &escaped[at..];
        let part_len = match rest[0] {
            b'\\' => 2,
            b'[' => filter::class_len(rest).unwrap_or(1),
            _ => 1,
        };
        if rest[0] == b'[' && part_len == 1 {
            pattern.push(b'\\');
        } else {
            is_wild |= b"*?[".contains(&rest[0]);
        }
        pattern.extend_from_slice(&rest[..part_len]);
        at += part_len;
    }
    (pattern, is_wild)
}

/// Returns the matching entries of a directory, with the directory's path prepended.
fn matches_in(dir: &[u8], pattern: &[u8], dirs_only: bool, rules: WildcardRules) -> Vec<Vec<u8>> {
    use std::os::fd::AsFd;
    let Ok(fd) = sys::open_dir_path(if dir.is_empty() { b"." } else { dir }) else {
        return Vec::new();
    };
    let takes_dots = rules == WildcardRules::Rsync || pattern.starts_with(b".");
    let mut paths = Vec::new();
    // The walk reports a directory that cannot be read to its end.
    let _ = sys::list(fd.as_fd(), |entry| {
        let is_shown = takes_dots || !entry.name.starts_with(b".");
        if is_shown && filter::name_matches(pattern, entry.name) {
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

    /// Compares what patterns match in a directory of this test.
    fn assert_expanded(rules: WildcardRules, patterns: &[(&str, &str)]) {
        let dir = tempfile::tempdir().unwrap();
        // Nothing before the patterns is one.
        let top = format!("{}/[t]*/", dir.path().to_str().unwrap());
        for name in ["d1/x", "d2/x", "d3/y", ".h/x"] {
            std::fs::create_dir_all(format!("{top}{name}")).unwrap();
        }
        for name in ["a1", "a2", "a*", "[z]", ".hid", "sp ace", "b\\c", "!"] {
            std::fs::write(format!("{top}{name}"), "").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", format!("{top}link")).unwrap();
        for (pattern, wanted) in patterns {
            let paths = expand(top.as_bytes(), pattern.as_bytes(), rules);
            let shown: Vec<_> = paths
                .iter()
                .map(|path| String::from_utf8_lossy(&path[top.len()..]))
                .collect();
            assert_eq!(shown.join(" "), *wanted, "{pattern}");
        }
    }

    #[test]
    fn wildcards_expand_as_in_rsync() {
        assert_expanded(
            WildcardRules::Rsync,
            &[
                ("a?", "a* a1 a2"),
                ("a\\*", "a*"),
                ("[z]", "[z]"),
                ("\\[z\\]", "[z]"),
                ("a[1-2]", "a1 a2"),
                ("[!a]*", "! .h .hid [z] b\\c d1 d2 d3 link sp ace"),
                (".*", ".h .hid"),
                ("*/x", ".h/x d1/x d2/x d3/x"),
                ("**/nothing", ".h/nothing d1/nothing d2/nothing d3/nothing"),
                ("d[12]/", "d1/ d2/"),
                ("d*/./x", "d1/./x d2/./x d3/./x"),
                ("nope*", "nope*"),
                ("{a1,a2}", "{a1,a2}"),
                ("b\\c", "b\\c"),
                ("a[", "a["),
            ],
        );
    }

    #[test]
    fn wildcards_expand_as_in_a_shell() {
        assert_expanded(
            WildcardRules::Shell,
            &[
                ("*", "! [z] a* a1 a2 b\\c d1 d2 d3 link sp ace"),
                ("?hid", "?hid"),
                ("[.]hid", "[.]hid"),
                (".*", ".h .hid"),
                (".h*", ".h .hid"),
                ("\\.h*", "\\.h*"),
                ("a?", "a* a1 a2"),
                ("a\\*", "a*"),
                ("a\\**", "a*"),
                ("nope\\*?", "nope*?"),
                ("\\?*", "?*"),
                ("[z]", "[z]"),
                ("\\[z\\]", "[z]"),
                ("[z*", "[z]"),
                ("[*", "[z]"),
                ("[[]*", "[z]"),
                ("a[1-2]", "a1 a2"),
                ("[!a-l]*", "! [z] sp ace"),
                ("[^a-l]*", "! [z] sp ace"),
                ("[!]", "[!]"),
                ("[\\!]", "!"),
                ("b\\c*", "b\\c"),
                ("b\\\\c*", "b\\\\c*"),
                ("?[\\]c", "?[]c"),
                ("?[\\c]*", "b\\c"),
                ("*/x", "d1/x d2/x"),
                ("*/*/.", "d1/x/. d2/x/. d3/y/."),
                ("**/nothing", "**/nothing"),
                ("d[12]/", "d1/ d2/"),
                ("*/", "d1/ d2/ d3/"),
                ("d*/./x", "d1/./x d2/./x"),
                ("d1/../a[12]", "d1/../a1 d1/../a2"),
                ("nope*", "nope*"),
                ("nope*/\\*", "nope*/*"),
                ("{a1,a2}", "{a1,a2}"),
                ("b\\c", "b\\c"),
                ("a[", "a["),
                ("lin*", "link"),
                ("", ""),
            ],
        );
    }
}
