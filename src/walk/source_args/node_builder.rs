//! The tree of the entries that the source arguments name, while they are gathered.

use crate::filter::{Side, Verdict};
use crate::flist::Kind;
use crate::fs::sys;
use crate::path::{self, RelPath};
use crate::walk::source_dir::Base;
use crate::walk::source_task::{Listing, NamedContent, NamedEntry, Node, Origin};
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
    names: Vec<NamedEntry>,
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

    pub(super) fn name(&mut self, base: &Arc<Base>, dir: &RelPath, named: NamedEntry) {
        let at = *self.named_at.entry(Arc::as_ptr(base)).or_insert_with(|| {
            self.named.push(NamedDir {
                base: base.clone(),
                path: dir.clone(),
                names: Vec::new(),
            });
            self.named.len() - 1
        });
        self.named[at].names.push(named);
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
            let mut named = dir.names.iter().filter(|named| named.name == *first);
            named.any(|named| is_last || named.content == NamedContent::Full && has())
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
        let named = self.named.into_iter().map(
            |NamedDir {
                 base,
                 path,
                 mut names,
             }| {
                // Merge entries that were named more than once.
                names.sort_by(|a, b| {
                    a.name
                        .cmp(&b.name)
                        .then((a.content as u8).cmp(&(b.content as u8)).reverse())
                        .then(a.implied.cmp(&b.implied))
                });
                names.dedup_by(|b, a| {
                    let same = a.name == b.name;
                    a.implied &= b.implied || !same;
                    a.followed |= b.followed && same;
                    if same {
                        a.times += b.times;
                        a.content_arguments.append(&mut b.content_arguments);
                        a.argument = a.argument.min(b.argument);
                    }
                    same
                });
                Origin::new(base, path, Listing::Named(Arc::new(names)))
            },
        );
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
