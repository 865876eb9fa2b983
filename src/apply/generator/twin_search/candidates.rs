//! Looks for the files that can be twins: at the destination, and in alternate trees.

use super::TwinSearch;
use super::links::is_missing;
use crate::flist::{DirList, Entry, Kind, Time};
use crate::fs::root::Dir;
use crate::fs::temp_name::is_temp_name;
use crate::fs::{read, sandbox, sys};
use crate::path::RelPath;
use crate::plan::Action;
use crate::plan::renamed::{Criterion, Key, TwinCandidate, TwinFate};
use crate::report::event::Weight;
use crate::walk::DirPlan;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

/// A directory to look into.
#[derive(Clone, Copy)]
struct SearchPlace {
    /// The index of the alternate tree; `None`: it is at the destination.
    tree: Option<usize>,
    fate: TwinFate,
}

/// What the run does with an entry of the destination.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A regular file gets another content, and its old one can be held.
    Content,
    /// Anything else. Such a file is no twin.
    Unfit,
}

impl TwinSearch<'_> {
    /// Looks at the destination's entries of a directory, and at what is in those directories that only it has.
    pub(in crate::apply::generator) fn look_at(&mut self, plan: &DirPlan) {
        // An entry that could not be read has the name of a file that a later run may link.
        let problems = &plan.findings.problems;
        let has_failed = problems.iter().any(|it| it.weight == Weight::SourceError);
        // Such a directory may have names of any file.
        let is_unknown = plan.found.dest.is_outside || plan.found.dest.is_unseen;
        if has_failed || is_unknown {
            self.never_link();
        }
        if plan.found.dest.is_outside {
            return;
        }
        self.note_names(plan);
        let list = &plan.found.dest.list;
        let extras = &plan.decided().extras;
        let in_both = in_both(plan);
        let mut possible = Vec::new();
        for (at, entry) in (0u32..).zip(&list.entries) {
            if entry.is_dir() {
                let is_extra = extras.binary_search(&at).is_ok();
                if !in_both.contains(&at) && (!is_extra || self.keeps_extras) {
                    let place = SearchPlace {
                        tree: None,
                        fate: fate_of(is_extra),
                    };
                    self.look_into(place, plan.found.listing.path.join(list.name(entry)));
                }
            } else if self.may_be_twin(list.name(entry), entry) {
                possible.push(at);
            }
        }
        if possible.is_empty() {
            return;
        }

        let changes = self.changes(plan);
        possible.retain(|at| changes.get(at) != Some(&Change::Unfit));
        let path = &plan.found.listing.path;
        let Some(Ok(dir)) = self.context.dest.map(|dest| dest.open_dir_to_search(path)) else {
            return;
        };
        for at in possible {
            let name = list.name(&list.entries[at as usize]);
            let is_extra = extras.binary_search(&at).is_ok();
            if is_extra && !self.keeps_extras {
                continue;
            }
            if !self.may_look_further() {
                return;
            }
            let fate = if changes.contains_key(&at) {
                TwinFate::Changes
            } else {
                fate_of(is_extra)
            };
            self.examine(SearchPlace { tree: None, fate }, &dir, (path, name));
        }
    }

    /// Looks at the alternate trees.
    pub(in crate::apply::generator) fn look_into_alternates(&mut self) {
        for tree in 0..self.context.alternates.len() {
            let place = SearchPlace {
                tree: Some(tree),
                fate: TwinFate::Stays,
            };
            self.look_into(place, RelPath::root());
        }
    }

    /// Looks at everything in an alternate tree, or in a directory that only the destination has. What cannot be listed has
    /// no twins.
    fn look_into(&mut self, place: SearchPlace, top: RelPath) {
        let mut dirs = vec![top];
        while let Some(path) = dirs.pop() {
            // It holds files that are not complete.
            let holds_parts = path.name() == self.context.staging_name();
            let is_forbidden = !path.is_root() && self.walk.is_forbidden(&path, true);
            if self.context.stopped() || holds_parts || is_forbidden {
                continue;
            }
            let Some((dir, list)) = self.list(place, &path) else {
                continue;
            };
            for entry in &list.entries {
                if !self.may_look_further() {
                    return;
                }
                let name = list.name(entry);
                if sandbox::hides(dir.fd(), name, entry.is_dir()) {
                    continue;
                }
                if entry.is_dir() {
                    dirs.push(path.join(name));
                } else if self.may_have_name(name) || self.links.is_some() {
                    self.examine(place, &dir, (&path, name));
                }
            }
        }
    }

    /// Lists a directory; `None`: it is not looked into.
    fn list(&mut self, place: SearchPlace, path: &RelPath) -> Option<(Dir, DirList)> {
        let dir = match place.tree {
            None => self.context.dest?.open_dir(path).ok(),
            Some(tree) => self.context.alternates[tree]
                .root
                .as_ref()?
                .open_dir(path)
                .ok(),
        };
        let listed = dir.and_then(|dir| {
            let list = read::typed_names(&dir).ok()?;
            Some((dir, list))
        });
        let Some((dir, list)) = listed else {
            if place.tree.is_none() {
                // It may have names of any file.
                self.never_link();
            }
            return None;
        };
        // The destination can be in an alternate tree, and was looked at.
        if place.tree.is_some() && self.dest_id.is_some() && dir.id().ok() == self.dest_id {
            return None;
        }
        Some((dir, list))
    }

    /// Counts an entry that is about to be looked at. Returns `false` if there are too many.
    fn may_look_further(&mut self) -> bool {
        if self.entries_left == 0 {
            self.is_cut = true;
            return false;
        }
        self.entries_left -= 1;
        true
    }

    /// Notes a file if it is equal to a new one.
    fn examine(&mut self, place: SearchPlace, dir: &Dir, (path, name): (&RelPath, &[u8])) {
        let SearchPlace { tree, fate } = place;
        let stat = match sys::stat(dir.fd(), name, false) {
            Ok(stat) => stat,
            Err(error) => {
                if tree.is_none() && !is_missing(&error) {
                    self.never_link();
                }
                return;
            }
        };
        let inode = (stat.dev, stat.ino);
        if tree.is_none()
            && let Some(links) = &mut self.links
            && links.lens_bytes.contains(&stat.len_bytes)
        {
            links.has_name.insert(inode);
            self.limit_names();
        }
        let may_be_equal = self.may_be_equal(name, stat.len_bytes, stat.mtime);
        let is_file = Kind::of_mode(stat.mode) == Some(Kind::File);
        if !is_file || !self.may_have_name(name) || !may_be_equal {
            return;
        }
        // Content may be written into the file through another of its names.
        let may_change = self.context.options.place.inplace && stat.nlink > 1;
        if may_change || self.walk.is_forbidden(&path.join(name), false) {
            return;
        }
        // Trees that are snapshots of one another have many names of one file. Under `moved`, its name counts.
        let has_trees = !self.context.alternates.is_empty();
        let is_known = has_trees && !self.inodes.insert(inode);
        if tree.is_some() && is_known && self.criterion != Criterion::Moved {
            return;
        }
        self.found.push(&TwinCandidate {
            tree,
            dir: path,
            name,
            inode,
            len_bytes: stat.len_bytes,
            mtime: stat.mtime,
            digest: None,
            fate: if fate == TwinFate::Extra && stat.nlink == 1 {
                TwinFate::LeftOver
            } else {
                fate
            },
            is_linkable: false,
        });
    }

    /// Returns whether an entry can be a twin, as far as the listing shows. The attributes of an entry that the source
    /// lacks are not known: its length is 0 there.
    fn may_be_twin(&self, name: &[u8], entry: &Entry) -> bool {
        if entry.kind() != Kind::File || !self.may_have_name(name) {
            return false;
        }
        if entry.len_bytes == 0 {
            return true;
        }
        self.may_be_equal(name, entry.len_bytes, entry.mtime)
    }

    /// Returns whether a new file can be equal to one with this name, length and time.
    fn may_be_equal(&self, name: &[u8], len_bytes: u64, mtime: Time) -> bool {
        let key = Key::before_reading(self.criterion, name, len_bytes, mtime);
        self.keys.contains(&self.hasher.hash_one(key))
    }

    fn may_have_name(&self, name: &[u8]) -> bool {
        let has_name = match self.criterion {
            Criterion::Moved => self.names.contains(&self.hasher.hash_one(name)),
            Criterion::Digest | Criterion::Length | Criterion::Quick => true,
        };
        has_name && !is_temp_name(name)
    }

    /// Returns what the run does with the destination's entries that it changes or replaces, by their indices.
    fn changes(&self, plan: &DirPlan) -> HashMap<u32, Change> {
        let mut changes = HashMap::new();
        for step in &plan.decided().steps {
            let stays = matches!(
                step.decision.action,
                Action::Keep | Action::Adjust(_) | Action::Refuse(_)
            );
            if stays {
                continue;
            }
            let change = if self.takes_part(plan, step) {
                Change::Content
            } else {
                Change::Unfit
            };
            changes.insert(step.dest, change);
        }
        for sub in &plan.decided().subdirs {
            changes.insert(sub.step.dest, Change::Unfit);
        }
        changes
    }
}

/// Returns the indices of the destination's entries that have a counterpart at the source.
fn in_both(plan: &DirPlan) -> HashSet<u32> {
    let steps = plan.decided().steps.iter();
    let subdirs = plan.decided().subdirs.iter().map(|sub| &sub.step);
    steps.chain(subdirs).map(|step| step.dest).collect()
}

/// Returns the fate of a file that the run does not change.
fn fate_of(is_extra: bool) -> TwinFate {
    if is_extra {
        TwinFate::Extra
    } else {
        TwinFate::Stays
    }
}
