//! Detects symlinks that lead out of the transfer, by their text, and munges symlink values.
//!
//! The rule is that of `--safe-links` and `--copy-unsafe-links` (rsync(1), "SYMBOLIC LINKS"). Nothing is resolved on
//! disk.

/// The prefix that `--munge-links` adds to a value.
pub const MUNGED: &[u8] = b"/rsyncd-munged/";

/// Returns whether a link with this value leads, or may lead, out of the transfer.
///
/// `link` is the link's own path below the top of the transfer. These values are unsafe: an absolute or empty value;
/// one with more leading `..` than `link` has directories; one with a `..` anywhere but in the leading run, where even
/// `./..` and a run that ends in `/..` count (`..` alone and `../../` are fine).
pub fn is_unsafe(value: &[u8], link: &[u8]) -> bool {
    if value.is_empty() || value[0] == b'/' {
        return true;
    }
    let mut rest = value;
    let mut climbs = 0usize;
    while let Some(after) = rest.strip_prefix(b"../") {
        climbs += 1;
        rest = &after[after.iter().take_while(|&&b| b == b'/').count()..];
    }
    if climbs == 0 && rest == b".." {
        climbs = 1;
    } else if rest.split(|&b| b == b'/').any(|part| part == b"..") {
        return true;
    }
    climbs > depth(link)
}

/// Returns the number of directories before the last component.
fn depth(link: &[u8]) -> usize {
    let mut parts = link
        .split(|&b| b == b'/')
        .filter(|part| !part.is_empty() && *part != b".");
    parts.next_back();
    // A `..` in the path resets the depth: the components before it do not count.
    parts.fold(0, |depth, part| if part == b".." { 0 } else { depth + 1 })
}

/// Returns the value that a receiver with `--munge-links` writes.
pub fn munge(value: &[u8]) -> Vec<u8> {
    [MUNGED, value].concat()
}

/// Returns a value that does not lead above the top of the transfer: absolute values begin there, and each `..` above it
/// is dropped. `depth`: how many directories lead to the link.
pub fn sanitize(value: &[u8], depth: usize) -> Vec<u8> {
    // As in rsync, an element keeps the slash behind it.
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut climbs = 0;
    for part in value.split_inclusive(|&b| b == b'/') {
        match part.strip_suffix(b"/").unwrap_or(part) {
            b"" | b"." => {}
            b".." if parts.len() > climbs => drop(parts.pop()),
            b".." if climbs == depth => {}
            name => {
                climbs += usize::from(name == b"..");
                parts.push(part);
            }
        }
    }
    if parts.is_empty() {
        b".".to_vec()
    } else {
        parts.concat()
    }
}

/// Returns the value that a sender with `--munge-links` sends: with one prefix removed if there is one.
pub fn unmunge(value: &[u8]) -> &[u8] {
    value
        .strip_prefix(MUNGED)
        .filter(|rest| !rest.is_empty())
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of rsync 3.5.0: `s` (safe) or `U` (unsafe) for a link at the top, in `sub/`, and in `sub/deep/`.
    #[rustfmt::skip]
    const SEEN: &[(&str, &str)] = &[
        ("a", "sss"), ("a/b", "sss"), ("..", "Uss"), ("../a", "Uss"), ("../..", "UUU"), ("../../a", "UUs"),
        ("a/..", "UUU"), ("a/../b", "UUU"), ("./a", "sss"), ("./..", "UUU"), ("./../a", "UUU"), ("/a", "UUU"),
        ("/", "UUU"), (".", "sss"), ("./", "sss"), ("../", "Uss"), ("../.", "Uss"), ("a/.", "sss"),
        ("a/./b", "sss"), ("..a", "sss"), ("a..", "sss"), ("../..a", "Uss"), ("...", "sss"), ("a/...", "sss"),
        ("../../..", "UUU"), ("../x/..", "UUU"), ("../x/../y", "UUU"), ("..//a", "Uss"), ("//a", "UUU"),
        ("../../x", "UUs"), ("a//..", "UUU"), ("./../..", "UUU"), (".//..", "UUU"), ("../b/", "Uss"),
        ("a/../", "UUU"), ("a/..b", "sss"), ("../a/..b", "Uss"), ("../../../a", "UUU"), ("..//..//a", "UUs"),
        ("../..//", "UUs"), ("../../", "UUs"), ("./././a", "sss"), (".././a", "Uss"), (".././../a", "UUU"),
        (".././../../a", "UUU"), ("../sub/x/..", "UUU"), ("a/../..", "UUU"), ("/..", "UUU"),
        ("../../.", "UUs"), ("../../..a", "UUs"), ("../sub/../x", "UUU"), ("", "UUU"),
    ];

    #[test]
    fn unsafe_links_agree_with_rsync() {
        for (value, expected) in SEEN {
            let judged: String = ["l", "sub/l", "sub/deep/l"]
                .iter()
                .map(|link| {
                    if is_unsafe(value.as_bytes(), link.as_bytes()) {
                        'U'
                    } else {
                        's'
                    }
                })
                .collect();
            assert_eq!(judged, *expected, "{value:?}");
        }
    }

    #[test]
    fn unnormalized_link_paths_add_no_depth() {
        assert!(!is_unsafe(b"../a", b"./sub//l"));
        assert!(is_unsafe(b"../../a", b"./sub//l"));
        assert!(is_unsafe(b"../a", b"sub/../l"));
    }

    /// Results of rsync 3.5.0 for a link at the top, in `sub/`, and in `sub/deep/`.
    #[test]
    fn sanitized_values_agree_with_rsync() {
        for (value, expected) in [
            ("a", ["a", "a", "a"]),
            ("a/", ["a/", "a/", "a/"]),
            ("a//b", ["a/b", "a/b", "a/b"]),
            ("a/./b", ["a/b", "a/b", "a/b"]),
            ("../a", ["a", "../a", "../a"]),
            ("../../../a", ["a", "../a", "../../a"]),
            ("./../../a", ["a", "../a", "../../a"]),
            ("b/../../../../c", ["c", "../c", "../../c"]),
            ("/etc/x", ["etc/x", "etc/x", "etc/x"]),
            ("//", [".", ".", "."]),
            ("..", [".", "..", ".."]),
            ("../..", [".", "../", "../.."]),
            ("./", [".", ".", "."]),
        ] {
            let found = [0, 1, 2]
                .map(|depth| String::from_utf8(sanitize(value.as_bytes(), depth)).unwrap());
            assert_eq!(found, expected, "{value:?}");
        }
    }

    #[test]
    fn unmunge_reverses_munge() {
        assert_eq!(munge(b"/a"), b"/rsyncd-munged//a");
        assert_eq!(unmunge(b"/rsyncd-munged//a"), b"/a");
        assert_eq!(
            unmunge(b"/rsyncd-munged//rsyncd-munged/x"),
            b"/rsyncd-munged/x"
        );
        for untouched in ["/rsyncd-munged", "/rsyncd-munged/", "rsyncd-munged/x", ""] {
            assert_eq!(unmunge(untouched.as_bytes()), untouched.as_bytes());
        }
    }
}
