//! Merges the sorted source and destination lists of one directory.

use super::entry::{DirList, Entry};
use std::cmp::Ordering;

/// A cursor over two sorted lists that pairs entries by name, even if their kinds differ.
///
/// Source entries come in canonical order. A destination entry whose partner has another kind, and thus another
/// position, is returned only with that partner. Other destination entries come at their own position. The caller
/// passes the lists at each step, so that it can complete entries in between; names and order must not change.
#[derive(Debug, Default)]
pub struct Join {
    source: usize,
    dest: usize,
}

/// The entries of the two sides under one name, as indices into their lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pair {
    /// Only the source has an entry.
    Source(usize),
    /// Both have an entry, perhaps of different kinds.
    Both(usize, usize),
    /// Only the destination has an entry.
    Dest(usize),
}

impl Join {
    /// Returns the next pair; `None` at the end of both lists. `was_dir(i)` returns whether entry `i` of the
    /// destination was a directory when the list was sorted.
    pub fn next(
        &mut self,
        source: &DirList,
        dest: &DirList,
        was_dir: impl Fn(usize) -> bool,
    ) -> Option<Pair> {
        loop {
            let s = self.source;
            let d = self.dest;
            let step = match (source.entries.get(s), dest.entries.get(d)) {
                (None, None) => return None,
                (Some(a), Some(b)) => {
                    super::order::compare((source.name(a), a.is_dir()), (dest.name(b), was_dir(d)))
                }
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
            match step {
                Ordering::Equal => {
                    (self.source, self.dest) = (s + 1, d + 1);
                    return Some(Pair::Both(s, d));
                }
                Ordering::Less => {
                    self.source = s + 1;
                    let entry = &source.entries[s];
                    return Some(
                        match find(dest, source.name(entry), !entry.is_dir(), was_dir) {
                            Some(d) => Pair::Both(s, d),
                            None => Pair::Source(s),
                        },
                    );
                }
                Ordering::Greater => {
                    self.dest = d + 1;
                    let name = dest.name(&dest.entries[d]);
                    let is_dir = |i: usize| source.entries[i].is_dir();
                    if find(source, name, !was_dir(d), is_dir).is_none() {
                        return Some(Pair::Dest(d));
                    }
                }
            }
        }
    }
}

/// Finds the entry with this name among the directories of a sorted list, or among the other entries.
fn find(
    list: &DirList,
    name: &[u8],
    among_dirs: bool,
    is_dir: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut range = 0..list.len();
    while !range.is_empty() {
        let middle = range.start + range.len() / 2;
        let entry: &Entry = &list.entries[middle];
        match super::order::compare((list.name(entry), is_dir(middle)), (name, among_dirs)) {
            Ordering::Equal => return Some(middle),
            Ordering::Less => range.start = middle + 1,
            Ordering::Greater => range.end = middle,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn list(names: &BTreeMap<String, bool>) -> DirList {
        let mut list = DirList::default();
        for (name, is_dir) in names {
            list.push_name(name.as_bytes(), *is_dir);
        }
        list.sort();
        list
    }

    fn name() -> impl proptest::strategy::Strategy<Value = String> {
        proptest::string::string_regex("[ab.-]{1,3}").unwrap()
    }

    proptest::proptest! {
        #[test]
        fn join_yields_every_name_once(
            a in proptest::collection::btree_map(name(), proptest::bool::ANY, 0..20),
            b in proptest::collection::btree_map(name(), proptest::bool::ANY, 0..20),
        ) {
            let (left, right) = (list(&a), list(&b));
            let mut seen = BTreeSet::new();
            let mut join = Join::default();
            while let Some(pair) = join.next(&left, &right, |i| right.entries[i].is_dir()) {
                let name = match pair {
                    Pair::Source(s) => left.name(&left.entries[s]),
                    Pair::Both(s, d) => {
                        proptest::prop_assert_eq!(left.name(&left.entries[s]), right.name(&right.entries[d]));
                        left.name(&left.entries[s])
                    }
                    Pair::Dest(d) => right.name(&right.entries[d]),
                };
                let name = std::str::from_utf8(name).unwrap().to_string();
                let want = match (a.contains_key(&name), b.contains_key(&name)) {
                    (true, true) => matches!(pair, Pair::Both(..)),
                    (true, false) => matches!(pair, Pair::Source(_)),
                    _ => matches!(pair, Pair::Dest(_)),
                };
                proptest::prop_assert!(want && seen.insert(name), "{:?}", pair);
            }
            proptest::prop_assert_eq!(seen, a.into_keys().chain(b.into_keys()).collect::<BTreeSet<_>>());
        }
    }
}
