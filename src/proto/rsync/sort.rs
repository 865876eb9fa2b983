//! The order of a list, which gives entries their indices, and its duplicates.

use super::file_list::FileEntry;
use crate::flist::order::compare_paths;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Compares two entries in the order of a protocol.
pub fn compare(a: &FileEntry, b: &FileEntry, protocol: u8) -> Ordering {
    if protocol < 29 {
        return a.path.cmp(&b.path);
    }
    // The root precedes everything. Under `-R`, a daemon in a chroot calls that of its module `/.`.
    let is_root = |entry: &FileEntry| matches!(&entry.path[..], b"." | b"/.") && entry.is_dir();
    is_root(b)
        .cmp(&is_root(a))
        .then_with(|| compare_paths((&a.path, a.is_dir()), (&b.path, b.is_dir())))
}

/// Returns the positions of the entries of one list by their numbers: the entry at place `n` has the index `start + n`.
/// They are those in sorted order, or in the order of sending if names are converted (`--iconv`).
pub fn numbered(entries: &[FileEntry], protocol: u8, is_converted: bool) -> Vec<u32> {
    if is_converted {
        (0..).take(entries.len()).collect()
    } else {
        sorted(entries, protocol)
    }
}

/// Returns the positions of the entries of one list in sorted order.
pub fn sorted(entries: &[FileEntry], protocol: u8) -> Vec<u32> {
    let mut places: Vec<u32> = (0..).take(entries.len()).collect();
    places.sort_by(|&a, &b| compare(&entries[a as usize], &entries[b as usize], protocol));
    places
}

/// Returns the places in `sorted` whose entries the receiver ignores, because another entry has the same path. A
/// directory is preferred, else the first one. What a dropped directory adds to the flags of the other is merged.
pub fn drop_duplicates(entries: &mut [FileEntry], sorted: &[u32], protocol: u8) -> Vec<u32> {
    let mut kept: HashMap<Vec<u8>, u32> = HashMap::with_capacity(entries.len());
    let mut dropped = Vec::new();
    for (place, &at) in (0u32..).zip(sorted) {
        let path = entries[at as usize].path.clone();
        let Some(&rival) = kept.get(&path) else {
            kept.insert(path, place);
            continue;
        };
        let rival_at = sorted[rival as usize] as usize;
        let old = &entries[rival_at];
        let new = &entries[at as usize];
        if new.is_dir() && !old.is_dir() && protocol >= 29 {
            kept.insert(path, place);
            dropped.push(rival);
            continue;
        }
        if new.is_dir() && old.is_dir() {
            let is_top_dir = new.is_top_dir;
            let has_content = new.has_content;
            entries[rival_at].is_top_dir |= is_top_dir;
            entries[rival_at].has_content |= has_content;
            entries[rival_at].is_repeated = true;
        }
        dropped.push(place);
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: u32 = 0o040_755;
    const FILE: u32 = 0o100_644;

    fn order(names: &[(&str, u32)], protocol: u8) -> Vec<String> {
        let entries: Vec<_> = names
            .iter()
            .map(|(name, mode)| FileEntry::new(*name, *mode))
            .collect();
        let places = sorted(&entries, protocol);
        places
            .iter()
            .map(|&at| String::from_utf8(entries[at as usize].path.clone()).unwrap())
            .collect()
    }

    #[test]
    fn entries_are_numbered_as_sent_if_names_are_converted() {
        let entries = ["b", "a", "c"].map(|name| FileEntry::new(name, FILE));
        assert_eq!(numbered(&entries, 32, true), [0, 1, 2]);
        assert_eq!(numbered(&entries, 32, false), [1, 0, 2]);
    }

    #[test]
    fn the_order_depends_on_the_protocol() {
        let names = [
            ("a/x", FILE),
            ("a0", DIR),
            ("a", DIR),
            ("a.dir", DIR),
            ("zz", FILE),
            (".", DIR),
            ("a-dir", DIR),
            ("!", FILE),
        ];
        assert_eq!(
            order(&names, 32),
            [".", "!", "zz", "a-dir", "a.dir", "a", "a/x", "a0"]
        );
        assert_eq!(
            order(&names, 28),
            ["!", ".", "a", "a-dir", "a.dir", "a/x", "a0", "zz"]
        );
    }

    #[test]
    fn root_of_a_module_precedes_everything() {
        let names = [("/sub", DIR), ("/.", DIR), ("/a", FILE), ("/!", FILE)];
        assert_eq!(order(&names, 32), ["/.", "/!", "/a", "/sub"]);
        // A file can have the name.
        assert_eq!(order(&[("/!", FILE), ("/.", FILE)], 32), ["/!", "/."]);
    }

    #[test]
    fn directory_wins_over_a_duplicate_file() {
        let mut entries = [
            FileEntry::new("a", FILE),
            FileEntry {
                has_content: false,
                ..FileEntry::new("a", DIR)
            },
            FileEntry {
                is_top_dir: true,
                ..FileEntry::new("a", DIR)
            },
            FileEntry::new("b", FILE),
            FileEntry::new("b", FILE),
        ];
        let places = sorted(&entries, 32);
        let dropped = drop_duplicates(&mut entries, &places, 32);
        let dropped: Vec<_> = dropped
            .into_iter()
            .map(|place| places[place as usize])
            .collect();
        assert_eq!(dropped, [4, 0, 2]);
        assert!(entries[1].is_top_dir && entries[1].has_content);
    }

    /// Before protocol 29, the first of a file and a directory stays, and takes nothing over.
    #[test]
    fn only_directories_are_joined() {
        let mut entries = [FileEntry::new("a", FILE), FileEntry::new("a", DIR)];
        let dropped = drop_duplicates(&mut entries, &[0, 1], 28);
        assert_eq!(dropped, [1]);
        assert!(!entries[0].is_repeated);
    }
}
