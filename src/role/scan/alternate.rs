//! Alternate destinations: other trees that may already hold what is missing.

use super::{NONE, Step, Walk};
use crate::flist::{DirList, Entry};
use crate::fs::root::{Dir, Root};
use crate::fs::sys;
use crate::options::AltKind;
use crate::path::RelPath;
use crate::plan::{self, Action, Changes};

/// One alternate tree.
#[derive(Debug, Clone)]
pub struct Alternate {
    /// Its top.
    pub root: Root,
}

/// What an alternate tree has for an entry that the destination lacks.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The directory that holds it.
    pub dir: Dir,
    /// What differs between it and what is wanted; none: it is the very thing.
    pub changes: Changes,
    /// Number of the tree, from 0.
    pub tree: usize,
}

impl Walk<'_> {
    /// Looks for an entry in the alternate trees: the first that has the very thing, or else the first
    /// that has its data. `None` for entries that have none of their own to be found.
    pub fn look_in_alternates(
        &self,
        dirs: &mut AltDirs,
        path: &RelPath,
        source: &DirList,
        entry: &Entry,
        compare_with: (&Dir, &[u8]),
    ) -> Option<Hit> {
        let name = source.name(entry);
        let mut data_only = None;
        for (tree, alternate) in self.alternates.iter().enumerate() {
            let Some(dir) = dirs.open(tree, &alternate.root, path) else { continue };
            let Ok(stat) = sys::stat(dir.fd(), name, false) else { continue };
            let mut list = DirList::default();
            let there = list.push(name, &stat);
            let _ = self.wanted.complete_dest(there, &stat, (&dir, name), &Vec::new, &Vec::new);
            let there = &list.entries[0];
            let mut decision = plan::decide(entry, Some(there), None, false, &self.policy);
            if decision.action == Action::AskDigest {
                let same = (self.compare)(compare_with, (&dir, name)).unwrap_or(false);
                decision = plan::decide(entry, Some(there), Some(same), false, &self.policy);
            }
            match decision.action {
                Action::Keep => return Some(Hit { dir, changes: Changes::NONE, tree }),
                Action::Adjust(changes) if data_only.is_none() => data_only = Some(Hit { dir, changes, tree }),
                _ => {}
            }
        }
        data_only
    }

    /// Whether a step asks for something that an alternate tree may have.
    pub fn may_be_elsewhere(&self, step: &Step) -> bool {
        !self.alternates.is_empty()
            && match step.decision.action {
                Action::Transfer(_) => step.dest == NONE || self.alt_kind == Some(AltKind::Compare),
                Action::Create(changes) => changes.has(Changes::NEW),
                Action::Keep | Action::Adjust(_) | Action::AskDigest | Action::Refuse(_) => false,
            }
    }
}

/// The namesakes of one directory in the alternate trees, opened when first asked for.
#[derive(Debug, Default)]
pub struct AltDirs(Vec<Option<Option<Dir>>>);

impl AltDirs {
    pub fn open(&mut self, tree: usize, root: &Root, path: &RelPath) -> Option<Dir> {
        if self.0.len() <= tree {
            self.0.resize(tree + 1, None);
        }
        self.0[tree].get_or_insert_with(|| root.open_dir(path).ok()).clone()
    }
}
