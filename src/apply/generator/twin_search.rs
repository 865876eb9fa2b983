//! Finds the twins of a run (`--detect-renamed`) in the plans of all its directories, before anything is done.

use super::twin_contents::{ContentReader, NewSource};
use crate::apply::Context;
use crate::apply::twins::{Reuse, Twin, TwinIdentity};
use crate::error::Result;
use crate::flist::{Entry, Kind, order};
use crate::fs::read;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::fs::write::is_temp_name;
use crate::options::{DetectRenamed, When};
use crate::path::RelPath;
use crate::plan::renamed::{
    AbsentFile, Criterion, Key, TwinCandidate, TwinMatch, matches, worth_reading,
};
use crate::plan::{Action, InTheWay};
use crate::walk::destination::DestWalk;
use crate::walk::{DirPlan, NONE, Step};
use std::collections::{HashMap, HashSet};

/// How many entries of directories that only the destination has are looked at.
const ENTRIES_MAX: usize = 1_000_000;

/// The search for twins.
pub(super) struct TwinSearch<'a> {
    context: &'a Context<'a>,
    walk: &'a DestWalk<'a>,
    criterion: Criterion,
    /// Extra files stay until the end of the run, so they can be twins.
    keeps_extras: bool,
    new: Vec<AbsentFile>,
    /// Those that have several names, of which one is placed and the others are linked to it.
    linked: HashSet<RelPath>,
    keys: HashSet<Key>,
    names: HashSet<Vec<u8>>,
    found: Vec<FoundFile>,
    entries_left: usize,
}

/// What was found.
pub(super) struct FoundTwins {
    /// By the paths of the new files.
    pub(super) by_new: HashMap<RelPath, Twin>,
    /// Some are extra, so that deletions must wait for the end of the run.
    pub(super) has_extras: bool,
    /// Not everything was looked at.
    pub(super) is_cut: bool,
}

/// A file that may be a twin.
struct FoundFile {
    candidate: TwinCandidate,
    inode: (u64, u64),
    is_extra: bool,
}

/// Returns whether a step creates a file whose content can come from a twin.
pub(super) fn is_new_file(plan: &DirPlan, step: &Step) -> bool {
    let source = plan.source_of(step);
    matches!(step.decision.action, Action::Transfer(_))
        && step.decision.in_the_way == InTheWay::Nothing
        && step.dest == NONE
        && source.kind() == Kind::File
        && source.len_bytes > 0
        && !plan.decided().hits.contains_key(&step.source)
        && !plan.found.listing.with_data
}

impl<'a> TwinSearch<'a> {
    pub(super) fn new(
        context: &'a Context<'a>,
        walk: &'a DestWalk<'a>,
        how: DetectRenamed,
    ) -> Self {
        let options = context.options;
        let criterion = match how {
            DetectRenamed::Content if context.facts().is_some_and(|facts| !facts.digests) => {
                Criterion::Length
            }
            DetectRenamed::Content => Criterion::Digest,
            DetectRenamed::Moved => Criterion::Moved,
            DetectRenamed::Quick => Criterion::Quick,
        };
        let keeps_extras = match options.delete.when {
            None => false,
            Some(When::Delay | When::After) => true,
            // Deletions can only wait if nothing depends on their order.
            Some(When::Before | When::During) => may_wait(context),
        };
        TwinSearch {
            context,
            walk,
            criterion,
            keeps_extras,
            new: Vec::new(),
            linked: HashSet::new(),
            keys: HashSet::new(),
            names: HashSet::new(),
            found: Vec::new(),
            entries_left: ENTRIES_MAX,
        }
    }

    /// Notes the new files of a directory that will be entered.
    pub(super) fn expect(&mut self, plan: &DirPlan) {
        // What the destination has there is found only later.
        if plan.found.dest.is_unseen || plan.found.dest.is_outside {
            return;
        }
        let options = self.context.options;
        let preserve = &self.context.policy.preserve;
        let may_be_renamed = preserve.times
            && !preserve.fake_super
            && options.place.backup.is_none()
            && self.criterion != Criterion::Length;
        for step in &plan.decided().steps {
            if !is_new_file(plan, step) {
                continue;
            }
            let source = plan.source_of(step);
            let path = plan.found.listing.path.join(plan.name_of(step));
            let key = Key::before_reading(self.criterion, &path, source.len_bytes, source.mtime);
            let has_names = preserve.hard_links && source.inode.is_some();
            self.names.insert(path.name().to_vec());
            self.keys.insert(key);
            self.new.push(AbsentFile {
                path,
                len_bytes: source.len_bytes,
                mtime: source.mtime,
                digest: None,
                // Other names are linked to it before the end of the run.
                may_be_renamed: may_be_renamed && !has_names,
                may_be_late: !has_names,
            });
            if has_names {
                self.linked
                    .insert(self.new[self.new.len() - 1].path.clone());
            }
        }
    }

    /// Reads the files that can be equal, if their contents count. `plans` has those of all directories.
    pub(super) fn read_contents<'p>(
        &mut self,
        plans: impl Iterator<Item = &'p DirPlan>,
    ) -> Result<()> {
        if self.criterion != Criterion::Digest {
            return Ok(());
        }
        let worth = worth_reading(&self.new, &self.candidates());
        let mut wanted_new = HashMap::new();
        for at in worth.new {
            wanted_new.insert(self.new[at].path.clone(), at);
        }
        let mut new_files = Vec::new();
        for plan in plans {
            for step in &plan.decided().steps {
                if !is_new_file(plan, step) {
                    continue;
                }
                let path = plan.found.listing.path.join(plan.name_of(step));
                if let Some(&at) = wanted_new.get(&path) {
                    new_files.push((at, NewSource { plan, step: *step }));
                }
            }
        }
        let mut old_files = Vec::new();
        for at in worth.candidates {
            old_files.push((at, &self.found[at].candidate));
        }

        let reader = ContentReader::new(self.context);
        let digests = reader.read(&new_files, &old_files)?;
        for ((at, _), digest) in new_files.iter().zip(digests.new) {
            self.new[*at].digest = digest;
        }
        let read: Vec<_> = old_files.iter().map(|(at, _)| *at).collect();
        for (at, digest) in read.into_iter().zip(digests.old) {
            self.found[at].candidate.digest = digest;
        }
        self.context.twins.compare_by(reader.compared_by);
        Ok(())
    }

    fn candidates(&self) -> Vec<TwinCandidate> {
        self.found.iter().map(|it| it.candidate.clone()).collect()
    }

    /// Returns whether there are new files.
    pub(super) fn is_useful(&self) -> bool {
        !self.new.is_empty()
    }

    /// Looks at the destination's entries of a directory, and at what is in those directories that only it has.
    pub(super) fn look_at(&mut self, plan: &DirPlan) {
        if plan.found.dest.is_outside {
            return;
        }
        let list = &plan.found.dest.list;
        let extras = &plan.decided().extras;
        let in_both = in_both(plan);
        let mut possible = Vec::new();
        for (at, entry) in (0u32..).zip(&list.entries) {
            if entry.is_dir() {
                let is_extra = extras.binary_search(&at).is_ok();
                if !in_both.contains(&at) && (!is_extra || self.keeps_extras) {
                    self.look_into(plan.found.listing.path.join(list.name(entry)), is_extra);
                }
            } else if self.may_be_twin(&plan.found.listing.path, list.name(entry), entry) {
                possible.push(at);
            }
        }
        if possible.is_empty() {
            return;
        }

        let changing = changing(plan);
        possible.retain(|at| !changing.contains(at));
        let path = &plan.found.listing.path;
        let Some(Ok(dir)) = self.context.dest.map(|dest| dest.open_dir_to_search(path)) else {
            return;
        };
        for at in possible {
            let name = list.name(&list.entries[at as usize]);
            let is_extra = extras.binary_search(&at).is_ok();
            if !is_extra || self.keeps_extras {
                self.examine(&dir, path.join(name), is_extra);
            }
        }
    }

    /// Returns whether an entry can be a twin, as far as the listing shows. The attributes of an entry that the source
    /// lacks are not known: its length is 0 there.
    fn may_be_twin(&self, dir: &RelPath, name: &[u8], entry: &Entry) -> bool {
        if entry.kind() != Kind::File || !self.may_have_name(name) {
            return false;
        }
        if entry.len_bytes == 0 {
            return true;
        }
        let key = Key::before_reading(
            self.criterion,
            &dir.join(name),
            entry.len_bytes,
            entry.mtime,
        );
        self.keys.contains(&key)
    }

    fn may_have_name(&self, name: &[u8]) -> bool {
        let has_name = match self.criterion {
            Criterion::Moved => self.names.contains(name),
            Criterion::Digest | Criterion::Length | Criterion::Quick => true,
        };
        has_name && !is_temp_name(name)
    }

    /// Looks at everything in a directory that only the destination has. `is_extra`: it will be deleted. What cannot be
    /// listed has no twins.
    fn look_into(&mut self, top: RelPath, is_extra: bool) {
        let mut dirs = vec![top];
        while let Some(path) = dirs.pop() {
            // It holds files that are not complete.
            let holds_parts = path.name() == self.context.staging_name();
            if self.context.stopped() || holds_parts || self.walk.is_forbidden(&path, true) {
                continue;
            }
            let opened = self.context.dest.map(|dest| dest.open_dir(&path));
            let Some(Ok(dir)) = opened else { continue };
            let Ok(list) = read::typed_names(&dir) else {
                continue;
            };
            for entry in &list.entries {
                if self.entries_left == 0 {
                    return;
                }
                self.entries_left -= 1;
                let name = list.name(entry);
                if entry.is_dir() {
                    dirs.push(path.join(name));
                } else if self.may_have_name(name) {
                    self.examine(&dir, path.join(name), is_extra);
                }
            }
        }
    }

    /// Notes a file if it is equal to a new one.
    fn examine(&mut self, dir: &Dir, path: RelPath, is_extra: bool) {
        let Ok(stat) = sys::stat(dir.fd(), path.name(), false) else {
            return;
        };
        let key = Key::before_reading(self.criterion, &path, stat.len_bytes, stat.mtime);
        if Kind::of_mode(stat.mode) != Some(Kind::File) || !self.keys.contains(&key) {
            return;
        }
        // Content may be written into the file through another of its names.
        let may_change = self.context.options.place.inplace && stat.nlink > 1;
        if may_change || self.walk.is_forbidden(&path, false) {
            return;
        }
        self.found.push(FoundFile {
            candidate: TwinCandidate {
                path,
                len_bytes: stat.len_bytes,
                mtime: stat.mtime,
                digest: None,
                is_left_over: is_extra && stat.nlink == 1,
            },
            inode: (stat.dev, stat.ino),
            is_extra,
        });
    }

    /// Returns the twin of a new file.
    fn twin(&self, new: &AbsentFile, found: TwinMatch) -> Twin {
        let (at, reuse) = match found {
            TwinMatch::CopiedFromNew(original) => {
                let digest = new.digest.expect("files were matched by their digests");
                return Twin {
                    path: self.new[original].path.clone(),
                    len_bytes: new.len_bytes,
                    identity: TwinIdentity::New(digest),
                    reuse: Reuse::CopiedAtEnd,
                    is_awaited: false,
                };
            }
            TwinMatch::Renamed(at) => (at, Reuse::Renamed),
            TwinMatch::Copied(at) if self.criterion == Criterion::Length => (at, Reuse::Basis),
            TwinMatch::Copied(at) => (at, Reuse::Copied),
        };
        let file = &self.found[at];
        Twin {
            path: file.candidate.path.clone(),
            len_bytes: file.candidate.len_bytes,
            identity: TwinIdentity::Found {
                inode: file.inode,
                mtime: file.candidate.mtime,
            },
            reuse,
            is_awaited: file.is_extra && !self.linked.contains(&new.path),
        }
    }

    /// Returns the twins.
    pub(super) fn settle(mut self) -> FoundTwins {
        self.new.sort_by(|one, other| {
            order::compare_paths((one.path.as_bytes(), false), (other.path.as_bytes(), false))
        });
        let candidates = self.candidates();
        let found = matches(self.criterion, &self.new, &candidates);

        let mut by_new = HashMap::new();
        let mut has_extras = false;
        for (new, found) in self.new.iter().zip(found) {
            let Some(found) = found else { continue };
            if let TwinMatch::Renamed(at) | TwinMatch::Copied(at) = found {
                has_extras |= self.found[at].is_extra;
            }
            by_new.insert(new.path.clone(), self.twin(new, found));
        }
        FoundTwins {
            by_new,
            has_extras,
            is_cut: self.entries_left == 0,
        }
    }
}

/// Returns whether deletions before or during the copy can wait for its end with the same result: backups can replace
/// files of the transfer, and a limit stops them at another place.
fn may_wait(context: &Context<'_>) -> bool {
    let options = context.options;
    options.place.backup.is_none() && options.delete.max.is_none()
}

/// Returns the indices of the destination's entries that have a counterpart at the source.
fn in_both(plan: &DirPlan) -> HashSet<u32> {
    let steps = plan.decided().steps.iter();
    let subdirs = plan.decided().subdirs.iter().map(|sub| &sub.step);
    steps.chain(subdirs).map(|step| step.dest).collect()
}

/// Returns the indices of the destination's entries that the run changes or replaces.
fn changing(plan: &DirPlan) -> HashSet<u32> {
    let mut changing = HashSet::new();
    for step in &plan.decided().steps {
        let stays = matches!(
            step.decision.action,
            Action::Keep | Action::Adjust(_) | Action::Refuse(_)
        );
        if !stays {
            changing.insert(step.dest);
        }
    }
    for sub in &plan.decided().subdirs {
        changing.insert(sub.step.dest);
    }
    changing
}
