//! The text of path arguments: what it is relative to, what `-R` keeps of it, and how messages show it.

use crate::path;

/// Splits an argument under `-R` into the base directory, empty for the working directory, and the path that is kept.
/// An absolute path without a marker is kept whole.
pub fn split_kept(arg: &[u8]) -> (&[u8], &[u8]) {
    match find_marker(arg) {
        Some(0) => (b"/", &arg[3..]),
        Some(at) => (&arg[..at], &arg[at + 3..]),
        None if arg.starts_with(b"/") => (b"/", arg),
        None => (b"", arg),
    }
}

/// Returns what `-R` keeps of the absolute arguments without a marker, without the first slash.
pub fn rooted(arguments: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let kept_whole = |arg: &&Vec<u8>| arg.starts_with(b"/") && find_marker(arg).is_none();
    arguments
        .iter()
        .filter(kept_whole)
        .map(|arg| clean(arg).0.join(&b'/'))
        .collect()
}

/// Returns the position of the first `/./`, behind which `-R` keeps the path.
pub fn find_marker(arg: &[u8]) -> Option<usize> {
    arg.windows(3).position(|window| window == b"/./")
}

/// Whether the part of an argument that `-R` keeps begins with `./` and a name.
pub fn implies_root(kept: &[u8]) -> bool {
    let start = kept.iter().position(|&b| b != b'/').unwrap_or(kept.len());
    kept[start..]
        .strip_prefix(b"./")
        .is_some_and(|name| !name.is_empty())
}

/// Returns the elements of a path, without empty ones and `.`, and with `..` resolved but never above the start. Also
/// returns whether the path stands for the content of a directory.
pub fn clean(path: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for part in path.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part.to_vec()),
        }
    }
    let content = matches!(path::file_name(path), b"" | b"." | b"..");
    (parts, content)
}

/// Returns a path without the slashes at its end.
pub fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    &path[..end]
}

/// Returns the absolute form of a path from the command line, for messages.
pub fn absolute(cwd: &[u8], path: &[u8]) -> Vec<u8> {
    let joined = if path.starts_with(b"/") {
        path.to_vec()
    } else {
        path::join(cwd, path)
    };
    [b"/", clean_dots(&joined).as_slice()].concat()
}

/// Returns the absolute path as rsync prints it for a directory that it could enter: with `..` resolved.
pub fn resolved(cwd: &[u8], path: &[u8]) -> Vec<u8> {
    let (parts, _) = clean(&absolute(cwd, path));
    [b"/", parts.join(&b'/').as_slice()].concat()
}

/// Returns the absolute path as rsync prints it for a directory that it could not enter: as given.
pub fn as_given(cwd: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        path.to_vec()
    } else {
        path::join(cwd, path)
    }
}

/// Returns a path without empty elements and `.`. Keeps `..`, whose meaning depends on symlinks.
pub fn clean_dots(path: &[u8]) -> Vec<u8> {
    let parts = path
        .split(|&b| b == b'/')
        .filter(|part| !matches!(*part, b"" | b"."));
    parts.collect::<Vec<_>>().join(&b'/')
}

/// Returns the names in the text of a `--files-from` list. A list that is read for a peer has no comments: rsync
/// forwards it line by line, and its remote side treats every line as a name.
pub fn listed_names(text: &[u8], from0: bool, has_comments: bool) -> Vec<Vec<u8>> {
    let separator = |&b: &u8| {
        if from0 {
            b == 0
        } else {
            matches!(b, b'\n' | b'\r' | 0)
        }
    };
    let is_comment = |name: &[u8]| has_comments && matches!(name[0], b'#' | b';');
    text.split(separator)
        .filter(|name| !name.is_empty() && !is_comment(name))
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized_and_cannot_climb() {
        let cleaned = |p: &[u8]| {
            let (parts, content) = clean(p);
            (parts.join(&b'/'), content)
        };
        assert_eq!(cleaned(b"a//b/./c"), (b"a/b/c".to_vec(), false));
        assert_eq!(cleaned(b"../../a/../b/"), (b"b".to_vec(), true));
        assert_eq!(cleaned(b"a/."), (b"a".to_vec(), true));
        assert_eq!(cleaned(b""), (b"".to_vec(), true));
    }

    #[test]
    fn first_dot_marker_is_used() {
        assert_eq!(find_marker(b"/a/./b/./c"), Some(2));
        assert_eq!(find_marker(b"a/b"), None);
    }

    #[test]
    fn nul_separated_lists_may_have_comments() {
        assert_eq!(
            listed_names(b"a\n#b\n\n;c\r\nd", false, true),
            [b"a".to_vec(), b"d".to_vec()]
        );
        assert_eq!(
            listed_names(b"a\0#b\0c\nd", true, true),
            [b"a".to_vec(), b"c\nd".to_vec()]
        );
        assert_eq!(
            listed_names(b"a\n#b\n\n", false, false),
            [b"a".to_vec(), b"#b".to_vec()]
        );
    }
}
