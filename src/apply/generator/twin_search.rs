//! Finds the twins of a run (`--detect-renamed`) in the plans of all its directories, before anything is done.

use super::twin_contents::{ContentReader, NewSource};
use crate::apply::twins::{NewTwin, Original, Reuse, SettledTwins};
use crate::apply::{Context, backup};
use crate::error::Result;
use crate::flist::{DirList, Entry, Kind, Time, order};
use crate::fs::root::Dir;
use crate::fs::temp_name::is_temp_name;
use crate::fs::{read, sandbox, sys};
use crate::options::{AltKind, DetectRenamed, PlanUse, When};
use crate::path::RelPath;
use crate::plan::renamed::{
    Criterion, Key, Matcher, NeededFile, OldFile, TwinCandidate, TwinCandidates, TwinFate,
    TwinMatch, worth_reading,
};
use crate::plan::{Action, InTheWay};
use crate::proto::ContentDigest;
use crate::report::event::Weight;
use crate::walk::destination::DestWalk;
use crate::walk::{DirPlan, Found, NONE, Step};
use crate::work::parallel::BLOCK;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;

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

/// Which files must not be linked, because the destination has a name of them, or gets one. Another one would make files
/// that are not linked at the source names of one file.
#[derive(Default)]
struct LinkSearch {
    /// The lengths of the files that matter.
    lens_bytes: HashSet<u64>,
    /// Device and inode of those of the destination.
    has_name: HashSet<(u64, u64)>,
}

/// What was found.
pub(super) struct FoundTwins {
    pub(super) twins: SettledTwins,
    /// Some are extra, so that deletions must wait for the end of the run.
    pub(super) has_extras: bool,
    /// Not everything was looked at.
    pub(super) is_cut: bool,
}

/// A directory to look into.
#[derive(Clone, Copy)]
struct SearchPlace {
    /// The index of the alternate tree; `None`: it is at the destination.
    tree: Option<usize>,
    fate: TwinFate,
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

    /// Returns the files whose content can come from twins, in the order of the list. `plans` has those of all directories.
    fn new_files<'p>(&self, plans: impl Iterator<Item = &'p DirPlan>) -> NewFiles<'p> {
        let preserve = &self.context.policy.preserve;
        let mut with_new: Vec<_> = plans
            .filter(|plan| self.dirs.contains(&plan.found.listing.path))
            .collect();
        with_new.sort_by(|one, other| {
            let one = &one.found.listing.path;
            let other = &other.found.listing.path;
            let root_first = other.is_root().cmp(&one.is_root());
            root_first.then_with(|| {
                order::compare_paths((one.as_bytes(), true), (other.as_bytes(), true))
            })
        });
        let mut files = Vec::new();
        for (dir, plan) in (0..).zip(&with_new) {
            let from = files.len();
            for (step, it) in (0..).zip(&plan.decided().steps) {
                if self.takes_twin(plan, it) {
                    files.push(NewPlace { dir, step });
                }
            }
            let steps = &plan.decided().steps;
            files[from..].sort_by_key(|place| plan.name_of(&steps[place.step as usize]));
            if files.len() > self.new_max {
                files.truncate(self.new_max);
                break;
            }
        }
        NewFiles {
            plans: with_new,
            files,
            digests: Vec::new(),
            hard_links: preserve.hard_links,
            may_be_renamed: preserve.times
                && !preserve.fake_super
                && self.context.options.place.backup.is_none()
                && self.criterion != Criterion::Length,
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

    /// Has files of alternate trees copied instead of linked.
    pub(super) fn never_link(&mut self) {
        self.links = None;
    }

    /// Looks at the destination's entries of a directory, and at what is in those directories that only it has.
    pub(super) fn look_at(&mut self, plan: &DirPlan) {
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

    /// Notes the files of which the destination has a name in this directory, or gets one from an alternate tree, in this run
    /// or a later one.
    fn note_names(&mut self, plan: &DirPlan) {
        let Some(links) = &mut self.links else {
            return;
        };
        let path = &plan.found.listing.path;
        let source = &plan.found.listing.list;
        let mut noted = Ok(());
        for alternate in self.context.alternates {
            let of_source = source.entries.iter().filter(|entry| {
                entry.kind() == Kind::File && links.lens_bytes.contains(&entry.len_bytes)
            });
            let names: Vec<_> = of_source
                .map(|entry| (source.name(entry), Some(entry.len_bytes)))
                .collect();
            let opened = || alternate.open_dir(path);
            noted = noted.and_then(|()| note_files(opened, &names, &mut links.has_name));
        }

        let list = &plan.found.dest.list;
        let mut names = Vec::new();
        for entry in &list.entries {
            // The attributes of an entry that the source lacks are not known.
            let may_matter = entry.len_bytes == 0 || links.lens_bytes.contains(&entry.len_bytes);
            if entry.kind() == Kind::File && may_matter {
                names.push((list.name(entry), None));
            }
        }
        if let Some(dest) = self.context.dest {
            let opened = || dest.open_dir_to_search(path);
            noted = noted.and_then(|()| note_files(opened, &names, &mut links.has_name));
        }
        if noted.is_err() {
            self.never_link();
        }
        self.limit_names();
    }

    /// Has files copied instead of linked if the destination has names of too many.
    fn limit_names(&mut self) {
        let is_full = |links: &LinkSearch| links.has_name.len() > self.new_max;
        if self.links.as_ref().is_some_and(is_full) {
            self.never_link();
            self.is_cut = true;
        }
    }

    /// Looks at the alternate trees.
    pub(super) fn look_into_alternates(&mut self) {
        for tree in 0..self.context.alternates.len() {
            let place = SearchPlace {
                tree: Some(tree),
                fate: TwinFate::Stays,
            };
            self.look_into(place, RelPath::root());
        }
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

    /// Counts an entry that is about to be looked at. Returns `false` if there are too many.
    fn may_look_further(&mut self) -> bool {
        if self.entries_left == 0 {
            self.is_cut = true;
            return false;
        }
        self.entries_left -= 1;
        true
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

    /// Notes which candidates can be linked.
    fn permit_links(&mut self) {
        let Some(links) = &self.links else { return };
        // The destination may have a name of any file.
        if self.is_cut {
            return;
        }
        self.found
            .permit_links(|inode| !links.has_name.contains(&inode));
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

/// The files of a run whose content can come from twins, in the order of the list.
struct NewFiles<'p> {
    /// The plans of their directories.
    plans: Vec<&'p DirPlan>,
    files: Vec<NewPlace>,
    /// By the index of the file; empty if nothing was read.
    digests: Vec<Option<ContentDigest>>,
    /// Names of one file are linked.
    hard_links: bool,
    /// The options permit renaming.
    may_be_renamed: bool,
}

/// Where such a file is.
struct NewPlace {
    /// The index of the plan.
    dir: u32,
    /// The index of the step.
    step: u32,
}

impl<'p> NewFiles<'p> {
    /// Returns the plan and the step of a file.
    fn at(&self, at: u32) -> (&'p DirPlan, &'p Step) {
        let NewPlace { dir, step } = self.files[at as usize];
        let plan = self.plans[dir as usize];
        (plan, &plan.decided().steps[step as usize])
    }

    /// Returns where the content of files is.
    fn sources(&self, files: &[u32]) -> Vec<NewSource<'p>> {
        let sources = files.iter().map(|&at| {
            let (plan, step) = self.at(at);
            NewSource { plan, step: *step }
        });
        sources.collect()
    }

    /// Returns a file. `candidates` must be sorted.
    fn get(&self, at: u32, candidates: &TwinCandidates) -> NeededFile<'_> {
        let (plan, step) = self.at(at);
        let source = plan.source_of(step);
        let old = if step.dest == NONE {
            OldFile::Missing
        } else {
            let path = plan.found.listing.path.join(plan.name_of(step));
            OldFile::Replaced(candidates.find(&path))
        };
        let is_new = old == OldFile::Missing;
        let has_names = self.hard_links && source.inode.is_some();
        let digest = self.digests.get(at as usize);
        NeededFile {
            dir: &plan.found.listing.path,
            name: plan.name_of(step),
            len_bytes: source.len_bytes,
            mtime: source.mtime,
            digest: digest.and_then(Option::as_ref),
            // Other names are linked to it before the end of the run.
            may_be_renamed: self.may_be_renamed && is_new && !has_names,
            may_be_late: is_new && !has_names,
            may_be_linked: is_new && !has_names,
            // Of a file with several names, one is placed and the others are linked to it.
            may_be_awaited: !has_names,
            old,
        }
    }

    fn iter(&self, candidates: &TwinCandidates) -> impl Iterator<Item = NeededFile<'_>> {
        (0..self.files.len() as u32).map(|at| self.get(at, candidates))
    }
}

/// Returns whether deletions before or during the copy can wait for its end with the same result: backups can replace
/// files of the transfer, and a limit stops them at another place.
fn may_wait(context: &Context<'_>) -> bool {
    let options = context.options;
    options.place.backup.is_none() && options.delete.max.is_none()
}

/// Adds device and inode of the files with these names in a directory, and with these lengths, to a set. Does nothing if
/// there is none.
fn note_files(
    opened: impl FnOnce() -> io::Result<Dir>,
    names: &[(&[u8], Option<u64>)],
    inodes: &mut HashSet<(u64, u64)>,
) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let dir = match opened() {
        Ok(dir) => dir,
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for (name, len_bytes) in names {
        let stat = match sys::stat(dir.fd(), name, false) {
            Ok(stat) => stat,
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(error),
        };
        if len_bytes.is_none_or(|len_bytes| len_bytes == stat.len_bytes) {
            inodes.insert((stat.dev, stat.ino));
        }
    }
    Ok(())
}

/// Returns whether a path leads to nothing.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Returns the indices of the destination's entries that have a counterpart at the source.
fn in_both(plan: &DirPlan) -> HashSet<u32> {
    let steps = plan.decided().steps.iter();
    let subdirs = plan.decided().subdirs.iter().map(|sub| &sub.step);
    steps.chain(subdirs).map(|step| step.dest).collect()
}

/// What the run does with an entry of the destination.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A regular file gets another content, and its old one can be held.
    Content,
    /// Anything else. Such a file is no twin.
    Unfit,
}

/// Returns the fate of a file that the run does not change.
fn fate_of(is_extra: bool) -> TwinFate {
    if is_extra {
        TwinFate::Extra
    } else {
        TwinFate::Stays
    }
}
