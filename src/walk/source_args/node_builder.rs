//! The tree of the entries that the source arguments name, while they are gathered.

use crate::filter::{Side, Verdict};
use crate::flist::Kind;
use crate::fs::sys;
use crate::path::{self, RelPath};
use crate::walk::source_dir::Base;
use crate::walk::source_task::{Listing, NamedContent, NamedEntry, Node, Origin};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A base whose content takes part as that of one directory of the tree.
pub(super) struct WholeBase {
    base: Arc<Base>,
    /// See [`Listing::All`].
    below: bool,
    arguments: Vec<usize>,
}

/// The entries of one directory that arguments name.
struct NamedDir {
    base: Arc<Base>,
    path: RelPath,
    /// By name, which the entries themselves do not have yet. A long list names a directory for each entry below it.
    names: BTreeMap<Vec<u8>, NamedEntry>,
}

/// A directory of the tree, or its root.
#[derive(Default)]
pub(super) struct NodeBuilder {
    children: BTreeMap<Vec<u8>, NodeBuilder>,
    pub(super) all: Vec<WholeBase>,
    named: Vec<NamedDir>,
    /// Where `all` and `named` have each base, which has only one path for a place in the tree.
    all_at: HashMap<*const Base, usize>,
    named_at: HashMap<*const Base, usize>,
}

impl NodeBuilder {
    /// Adds a base of which an argument names the whole content.
    pub(super) fn whole(&mut self, base: &Arc<Base>, below: bool, argument: usize) {
        let at = *self.all_at.entry(Arc::as_ptr(base)).or_insert_with(|| {
            self.all.push(WholeBase {
                base: base.clone(),
                below,
                arguments: Vec::new(),
            });
            self.all.len() - 1
        });
        self.all[at].arguments.push(argument);
    }

    pub(super) fn name(&mut self, base: &Arc<Base>, dir: &RelPath, mut named: NamedEntry) {
        let at = *self.named_at.entry(Arc::as_ptr(base)).or_insert_with(|| {
            self.named.push(NamedDir {
                base: base.clone(),
                path: dir.clone(),
                names: BTreeMap::new(),
            });
            self.named.len() - 1
        });
        match self.named[at].names.entry(std::mem::take(&mut named.name)) {
            Slot::Vacant(slot) => _ = slot.insert(named),
            Slot::Occupied(mut known) => merge(known.get_mut(), named),
        }
    }

    /// Adds the directories that lead from the root to an entry. Returns their place in the tree, and their path.
    /// `counts` gets a directory's depth and whether it was named before, and returns whether the list counts it once
    /// more.
    pub(super) fn imply(
        &mut self,
        base: &Arc<Base>,
        argument: usize,
        leading: &[Vec<u8>],
        counts: impl Fn(usize, bool) -> bool,
    ) -> (&mut NodeBuilder, RelPath) {
        let mut node = self;
        let mut dir = RelPath::root();
        for (depth, part) in leading.iter().enumerate() {
            let times = u64::from(counts(depth, node.children.contains_key(part)));
            let named = NamedEntry::of_argument(argument, part, NamedContent::None, true);
            node.name(
                base,
                &dir,
                NamedEntry {
                    implied: true,
                    times,
                    ..named
                },
            );
            node = node.children.entry(part.clone()).or_default();
            dir = dir.join(part);
        }
        (node, dir)
    }

    /// Whether an argument includes the path `wanted`, of which `parts` are the elements from here on.
    pub(super) fn brings(&self, wanted: &RelPath, parts: &[&[u8]]) -> bool {
        let Some((first, rest)) = parts.split_first() else {
            return false;
        };
        let is_last = rest.is_empty();
        let inside = parts.join(&b'/');
        let in_whole =
            |whole: &WholeBase| (whole.below || is_last) && has(&whole.base, &inside, wanted);
        let in_named = |dir: &NamedDir| {
            let has = || has(&dir.base, &path::join(dir.path.as_bytes(), &inside), wanted);
            let named = dir.names.get(*first);
            named.is_some_and(|named| is_last || named.content == NamedContent::Full && has())
        };
        let below = || {
            self.children
                .get(*first)
                .is_some_and(|below| below.brings(wanted, rest))
        };
        self.all.iter().any(in_whole) || self.named.iter().any(in_named) || below()
    }

    pub(super) fn build(self) -> Node {
        let all = self.all.into_iter().map(
            |WholeBase {
                 base,
                 below,
                 arguments,
             }| {
                Origin::new(
                    base,
                    RelPath::root(),
                    Listing::All {
                        below,
                        arguments: arguments.into(),
                    },
                )
            },
        );
        let named = self
            .named
            .into_iter()
            .map(|NamedDir { base, path, names }| {
                let names = names
                    .into_iter()
                    .map(|(name, named)| NamedEntry { name, ..named });
                Origin::new(base, path, Listing::Named(Arc::new(names.collect())))
            });
        Node {
            origins: all.chain(named).collect(),
            children: self
                .children
                .into_iter()
                .map(|(name, below)| (name, Arc::new(below.build())))
                .collect(),
        }
    }
}

/// Adds what another argument says about an entry. The one with more content decides about its rules, and one that names it
/// before one that it is only implied by.
fn merge(known: &mut NamedEntry, mut other: NamedEntry) {
    let rank = |named: &NamedEntry| (named.content as u8, !named.implied);
    if rank(&other) > rank(known) {
        std::mem::swap(known, &mut other);
    }
    known.implied &= other.implied;
    known.followed |= other.followed;
    known.times += other.times;
    known.content_arguments.append(&mut other.content_arguments);
    known.argument = known.argument.min(other.argument);
}

/// Whether an entry below a base exists and is included under this path of the transfer.
fn has(base: &Base, inside: &[u8], path: &RelPath) -> bool {
    let Ok(inside) = RelPath::parse(inside) else {
        return false;
    };
    let dir = base
        .root
        .open_dir_to_search(&inside.parent().unwrap_or_default());
    let stat = dir.and_then(|dir| sys::stat(dir.fd(), inside.name(), false));
    stat.is_ok_and(|stat| {
        !is_hidden(
            base,
            path.as_bytes(),
            Kind::of_mode(stat.mode) == Some(Kind::Dir),
        )
    })
}

/// Whether the rules exclude the entry of an argument. Per-directory rules are not considered.
fn is_hidden(base: &Base, path: &[u8], is_dir: bool) -> bool {
    base.chain.verdict(Side::Sender, path, is_dir) != Verdict::Include
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{ChainOptions, Rules};
    use crate::fs::root::{Dir, Root};
    use crate::fs::sys::Follow;
    use crate::walk::source_dir::BaseRoot;

    fn base() -> Arc<Base> {
        let rules = Rules::new(Vec::new(), ChainOptions::default());
        let open = Dir::new(sys::open_dir_path(b"/").unwrap());
        Arc::new(Base {
            root: BaseRoot::Open(Root::new(open, b"/".to_vec(), Follow::Never)),
            shown: Vec::new(),
            chain: rules.chain(Side::Sender, b"/"),
        })
    }

    /// A list names the same directories again with each of its entries.
    #[test]
    fn entry_that_is_named_again_takes_no_more_memory() {
        let base = base();
        let mut tree = NodeBuilder::default();
        let leading = [b"a".to_vec(), b"b".to_vec()];
        for argument in 1..=100 {
            let (node, dir) = tree.imply(&base, argument, &leading, |_, is_known| !is_known);
            assert_eq!(dir.as_bytes(), b"a/b");
            let entry = NamedEntry::of_argument(argument, b"c", NamedContent::None, false);
            node.name(&base, &dir, entry);
        }
        let mut node = &tree;
        for name in [&b"a"[..], b"b"] {
            assert_eq!(node.named[0].names.len(), 1);
            node = &node.children[name];
        }
        assert_eq!(node.named[0].names.len(), 1);
    }

    #[test]
    fn what_arguments_say_about_an_entry_is_merged() {
        let base = base();
        let implied = NamedEntry {
            implied: true,
            ..NamedEntry::of_argument(1, b"d", NamedContent::None, true)
        };
        let named = NamedEntry::of_argument(2, b"d", NamedContent::None, false);
        let whole = NamedEntry::of_argument(3, b"d", NamedContent::Full, false);
        let again = NamedEntry::of_argument(4, b"d", NamedContent::Full, false);
        let all = [&implied, &named, &whole, &again];
        // In each order, but arguments come in that of their numbers.
        for order in [[0, 1, 2, 3], [2, 0, 3, 1], [1, 2, 0, 3]] {
            let mut tree = NodeBuilder::default();
            for at in order {
                tree.name(&base, &RelPath::root(), all[at].clone());
            }
            let node = tree.build();
            let Listing::Named(names) = &node.origins[0].listing else {
                panic!("only names were added");
            };
            let [only] = &names[..] else {
                panic!("{names:?}");
            };
            assert_eq!(
                (&only.name[..], only.content),
                (&b"d"[..], NamedContent::Full)
            );
            assert_eq!((only.implied, only.followed, only.times), (false, true, 4));
            assert_eq!(
                (only.argument, &only.content_arguments[..]),
                (1, &[3, 4][..])
            );
        }
    }
}
