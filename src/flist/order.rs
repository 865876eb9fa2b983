//! The canonical order of entries, which is rsync's.
//!
//! Within a directory, entries that are not directories come first, in byte order. The directories follow, in byte
//! order as if each name ended in a slash, so `foo-bar/` precedes `foo/`. Trees are listed depth first.

use std::cmp::Ordering;

/// Compares two entries of one directory, each given as a name and whether it is a directory.
pub fn compare(a: (&[u8], bool), b: (&[u8], bool)) -> Ordering {
    match (a.1, b.1) {
        (false, false) => a.0.cmp(b.0),
        (false, true) => Ordering::Less,
        (true, false) => Ordering::Greater,
        (true, true) => dirs(a.0, b.0),
    }
}

/// Compares two paths of a tree, each given as a path and whether it is a directory, in listing order.
pub fn compare_paths(a: (&[u8], bool), b: (&[u8], bool)) -> Ordering {
    let is_slash = |&byte: &u8| byte == b'/';
    let mut a_parts = a.0.split(is_slash).peekable();
    let mut b_parts = b.0.split(is_slash).peekable();
    loop {
        let (a_part, b_part) = match (a_parts.next(), b_parts.next()) {
            (Some(a_part), Some(b_part)) => (a_part, b_part),
            // A directory comes before its contents.
            (a_part, b_part) => return a_part.is_some().cmp(&b_part.is_some()),
        };
        let a_is_dir = a.1 || a_parts.peek().is_some();
        let b_is_dir = b.1 || b_parts.peek().is_some();
        let ordering = compare((a_part, a_is_dir), (b_part, b_is_dir));
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
}

/// Compares two directory names as if each ended in a slash.
fn dirs(a: &[u8], b: &[u8]) -> Ordering {
    let common = a.len().min(b.len());
    a[..common].cmp(&b[..common]).then_with(|| {
        let after = |name: &[u8]| match name.get(common) {
            Some(&byte) => Some(byte),
            None => Some(b'/'),
        };
        if a.len() == b.len() {
            Ordering::Equal
        } else {
            after(a).cmp(&after(b))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_precede_directories_sorted_with_a_slash() {
        let mut names: Vec<(&[u8], bool)> = vec![
            (b"foo", true),
            (b"zz", false),
            (b"foo-bar", true),
            (b"foo.x", true),
            (b"fooa", true),
            (b"a", true),
        ];
        names.sort_by(|a, b| compare(*a, *b));
        let names: Vec<&[u8]> = names.into_iter().map(|n| n.0).collect();
        let want: [&[u8]; 6] = [b"zz", b"a", b"foo-bar", b"foo.x", b"foo", b"fooa"];
        assert_eq!(names, want);
    }

    #[test]
    fn path_order_is_depth_first() {
        let entries: [(&[u8], bool); 9] = [
            (b"b", false),
            (b"d", false),
            (b"a-b", true),
            (b"a", true),
            (b"a/z", false),
            (b"a/c/x", false),
            (b"a/d", true),
            (b"d", true),
            (b"d/a", false),
        ];
        for (at, one) in entries.iter().enumerate() {
            for (other_at, other) in entries.iter().enumerate() {
                assert_eq!(
                    compare_paths(*one, *other),
                    at.cmp(&other_at),
                    "{one:?} {other:?}"
                );
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn directories_compare_as_names_with_a_slash(a: Vec<u8>, b: Vec<u8>) {
            let named = |name: &Vec<u8>| [name.iter().copied().filter(|&b| b != b'/').collect::<Vec<u8>>(), vec![b'/']].concat();
            let (a, b) = (named(&a), named(&b));
            proptest::prop_assert_eq!(
                compare((&a[..a.len() - 1], true), (&b[..b.len() - 1], true)),
                a.cmp(&b)
            );
        }
    }
}
