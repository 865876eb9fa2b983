//! Finds the twins of a run (`--detect-renamed`) in the plans of all its directories, before anything is done.

mod candidates;
mod links;
mod new_files;

use self::links::LinkSearch;
use self::new_files::NewFiles;
use super::twin_contents::ContentReader;
use crate::apply::twins::{NewTwin, Original, Reuse, SettledTwins};
use crate::apply::{Context, backup};
use crate::error::Result;
use crate::flist::Kind;
use crate::fs::sys;
use crate::options::{AltKind, DetectRenamed, PlanUse, When};
use crate::path::RelPath;
use crate::plan::renamed::{
    Criterion, Key, Matcher, TwinCandidates, TwinFate, TwinMatch, worth_reading,
};
use crate::plan::{Action, InTheWay};
use crate::walk::destination::DestWalk;
use crate::walk::{DirPlan, Found, NONE, Step};
use crate::work::parallel::BLOCK;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

/// How many new files, how many files and directories that can be or have twins, and how many names are looked at. This
/// bounds the memory of the search, and permits a million files in as many directories as that usually takes.
const ENTRIES_MAX: usize = 1 << 20;

/// The search for twins.
pub(super) struct TwinSearch<'a> {
    context: &'a Context<'a>,
    walk: &'a DestWalk<'a>,
    criterion: Criterion,
    /// Extra files stay until the end of the run, so they can be twins.
    keeps_extras: bool,
    /// Files that the run changes can be twins, and have some. Otherwise their own old content is the better basis, or what
    /// is appended to.
    with_changed: bool,
    /// The directories that have new files, or changed ones that take part.
    dirs: HashSet<RelPath>,
    /// Hashes of what the new files have in common with equal ones, and of their names.
    keys: HashSet<u64>,
    names: HashSet<u64>,
    hasher: RandomState,
    found: TwinCandidates,
    /// Device and inode of each.
    inodes: HashSet<(u64, u64)>,
    /// See [`ENTRIES_MAX`].
    new_max: usize,
    new_left: usize,
    entries_left: usize,
    /// There was more than that.
    is_cut: bool,
    /// Device and inode of the destination.
    dest_id: Option<(u64, u64)>,
    /// What must be known to link files of the alternate trees; `None`: they are not linked.
    links: Option<LinkSearch>,
}

/// What was found.
pub(super) struct FoundTwins {
    pub(super) twins: SettledTwins,
    /// Some are extra, so that deletions must wait for the end of the run.
    pub(super) has_extras: bool,
    /// Not everything was looked at.
    pub(super) is_cut: bool,
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
        let entries_max = sys::twin_entries_max().unwrap_or(ENTRIES_MAX);
        TwinSearch {
            context,
            walk,
            criterion,
            // A plan says of each file what it is before and after the run, and not when it changes.
            with_changed: criterion != Criterion::Length
                && options.place.append.is_none()
                && options.plan_use == PlanUse::Free,
            keeps_extras,
            dirs: HashSet::new(),
            keys: HashSet::new(),
            names: HashSet::new(),
            hasher: RandomState::new(),
            found: TwinCandidates::default(),
            inodes: HashSet::new(),
            new_max: entries_max,
            new_left: entries_max,
            entries_left: entries_max,
            is_cut: false,
            dest_id: context.dest.and_then(|dest| dest.dir().id().ok()),
            // A basis is not known to be equal.
            links: if walk.alternate_kind == Some(AltKind::Link) && criterion != Criterion::Length {
                Some(LinkSearch::default())
            } else {
                None
            },
        }
    }

    /// Returns whether a step is about a file whose content can come from a twin.
    fn takes_twin(&self, plan: &DirPlan, step: &Step) -> bool {
        is_new_file(&plan.found, step)
            || self.takes_part(plan, step)
                && plan.source_of(step).len_bytes > 0
                && self.is_decided_once(plan, step)
    }

    /// Returns whether a step changes the content of a file that can take, or be, a twin.
    fn takes_part(&self, plan: &DirPlan, step: &Step) -> bool {
        self.with_changed && is_changed_file(&plan.found, step)
    }

    /// Returns whether a step that changes a file has what it replaces before it, as it was found. Otherwise its content
    /// comes from the source, and what is held for it would stay.
    fn is_decided_once(&self, plan: &DirPlan, step: &Step) -> bool {
        let old = &plan.found.dest.list.entries[step.dest as usize];
        old.inode.is_none() && backup::original_in(self.context, plan, step).is_none()
    }

    /// Notes the files of a directory that will be entered whose content can come from twins.
    pub(super) fn expect(&mut self, plan: &DirPlan) {
        // What the destination has there is found only later.
        if plan.found.dest.is_unseen || plan.found.dest.is_outside {
            return;
        }
        let mut has_new = false;
        for step in &plan.decided().steps {
            if !self.takes_twin(plan, step) {
                continue;
            }
            if self.new_left == 0 {
                self.is_cut = true;
                break;
            }
            self.new_left -= 1;
            let source = plan.source_of(step);
            let name = plan.name_of(step);
            let key = Key::before_reading(self.criterion, name, source.len_bytes, source.mtime);
            self.keys.insert(self.hasher.hash_one(key));
            if self.criterion == Criterion::Moved {
                self.names.insert(self.hasher.hash_one(name));
            }
            if let Some(links) = &mut self.links {
                links.lens_bytes.insert(source.len_bytes);
            }
            has_new = true;
        }
        if has_new {
            self.dirs.insert(plan.found.listing.path.clone());
        }
    }

    /// Reads the files that can be equal, if their contents count.
    fn read_contents(&mut self, new: &mut NewFiles<'_>) -> Result<()> {
        if self.criterion != Criterion::Digest {
            return Ok(());
        }
        let worth = worth_reading(new.iter(&self.found), &self.found);
        let reader = ContentReader::new(self.context);
        let mut new_digests = vec![None; new.files.len()];
        // What is needed to read a file takes several times the memory of its digest, so they are read in blocks. The peer
        // reads a block ahead.
        let mut new_blocks = worth.new.chunks(BLOCK);
        let mut old_blocks = worth.candidates.chunks(BLOCK);
        let mut new_block = new_blocks.next().unwrap_or_default();
        reader.request(&new.sources(new_block))?;
        loop {
            let old_block = old_blocks.next().unwrap_or_default();
            if new_block.is_empty() && old_block.is_empty() {
                break;
            }
            let next_block = new_blocks.next().unwrap_or_default();
            reader.request(&new.sources(next_block))?;

            let candidates: Vec<_> = old_block.iter().map(|&at| self.found.get(at)).collect();
            let of_old = reader.of_dest(&candidates);
            let of_new = reader.of_source(&new.sources(new_block))?;
            for (&at, digest) in old_block.iter().zip(of_old) {
                self.found.set_digest(at, digest);
            }
            for (&at, digest) in new_block.iter().zip(of_new) {
                new_digests[at as usize] = digest;
            }
            new_block = next_block;
        }
        new.digests = new_digests;
        self.context.twins.compare_by(reader.compared_by);
        Ok(())
    }

    /// Returns whether there are new files.
    pub(super) fn is_useful(&self) -> bool {
        !self.dirs.is_empty()
    }

    /// Returns the twins. `plans` has those of all directories.
    pub(super) fn settle<'p>(
        mut self,
        plans: impl Iterator<Item = &'p DirPlan>,
    ) -> Result<FoundTwins> {
        // They were only needed to find candidates.
        self.keys = HashSet::new();
        self.names = HashSet::new();
        self.inodes = HashSet::new();
        let mut new = self.new_files(plans);
        self.found.sort();
        self.read_contents(&mut new)?;
        // A file that was not read because the run is over would count as one that no other needs.
        self.context.fail_if_over()?;
        self.permit_links();

        let mut matcher = Matcher::new(self.criterion, &self.found);
        let mut originals = Vec::new();
        let mut by_dir = HashMap::new();
        let mut has_extras = false;
        let mut at = 0;
        while let Some(first) = new.files.get(at as usize) {
            let dir = first.dir;
            let mut of_dir = Vec::new();
            while new.files.get(at as usize).is_some_and(|it| it.dir == dir) {
                let file = new.get(at, &self.found);
                if let Some(found) = matcher.next(at, &file) {
                    let twin = self.new_twin(&new, at, found, &mut originals);
                    has_extras |=
                        twin.reuse != Reuse::CopiedAtEnd && self.found.get(twin.at).fate.is_extra();
                    of_dir.push(twin);
                }
                at += 1;
            }
            of_dir.sort_by_key(|twin| twin.entry);
            let path = &new.plans[dir as usize].found.listing.path;
            by_dir.insert(path.clone(), of_dir.into_boxed_slice());
        }
        drop(matcher);
        let mut candidates = self.found;
        candidates.forget_digests();
        Ok(FoundTwins {
            twins: SettledTwins {
                candidates,
                originals,
                by_dir,
            },
            has_extras,
            is_cut: self.is_cut,
        })
    }

    /// Returns the twin of a new file with this match.
    fn new_twin(
        &self,
        new: &NewFiles<'_>,
        at: u32,
        found: TwinMatch,
        originals: &mut Vec<Original>,
    ) -> NewTwin {
        let file = new.get(at, &self.found);
        let entry = new.at(at).1.source;
        let (at, reuse) = match found {
            TwinMatch::CopiedFromNew(original) => {
                let digest = file.digest.expect("files were matched by their digests");
                let original = new.get(original, &self.found);
                originals.push(Original {
                    path: original.dir.join(original.name),
                    len_bytes: file.len_bytes,
                    digest: *digest,
                });
                return NewTwin {
                    entry,
                    at: originals.len() as u32 - 1,
                    reuse: Reuse::CopiedAtEnd,
                    is_awaited: false,
                };
            }
            TwinMatch::Renamed(at) => (at, Reuse::Renamed),
            TwinMatch::Linked(at) => (at, Reuse::Linked),
            TwinMatch::Copied(at) if self.criterion == Criterion::Length => (at, Reuse::Basis),
            TwinMatch::Copied(at) => (at, Reuse::Copied),
        };
        let fate = self.found.get(at).fate;
        NewTwin {
            entry,
            at,
            reuse,
            is_awaited: file.may_be_awaited && fate != TwinFate::Stays,
        }
    }
}

/// Returns whether a step creates a file whose content can come from a twin.
pub(super) fn is_new_file(found: &Found, step: &Step) -> bool {
    step.dest == NONE && is_transferred_file(found, step) && found.source_of(step).len_bytes > 0
}

/// Returns whether a step changes the content of a file of the destination.
fn is_changed_file(found: &Found, step: &Step) -> bool {
    step.dest != NONE
        && is_transferred_file(found, step)
        && found.dest.list.entries[step.dest as usize].kind() == Kind::File
}

fn is_transferred_file(found: &Found, step: &Step) -> bool {
    let source = found.source_of(step);
    matches!(step.decision.action, Action::Transfer(_))
        && step.decision.in_the_way == InTheWay::Nothing
        && source.kind() == Kind::File
        && !found.listing.with_data
}

/// Returns whether deletions before or during the copy can wait for its end with the same result: backups can replace
/// files of the transfer, and a limit stops them at another place.
fn may_wait(context: &Context<'_>) -> bool {
    let options = context.options;
    options.place.backup.is_none() && options.delete.max.is_none()
}
