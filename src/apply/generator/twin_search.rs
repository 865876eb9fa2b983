//! Finds the twins of a run (`--detect-renamed`) in the plans of all its directories, before anything is done.

use super::twin_contents::{ContentReader, NewSource};
use crate::apply::Context;
use crate::apply::twins::{Reuse, Twin, TwinIdentity};
use crate::error::Result;
use crate::flist::{DirList, Entry, Kind, Time, order};
use crate::fs::root::Dir;
use crate::fs::write::is_temp_name;
use crate::fs::{read, sandbox, sys};
use crate::options::{AltKind, DetectRenamed, When};
use crate::path::RelPath;
use crate::plan::renamed::{
    AbsentFile, Criterion, Key, TwinCandidate, TwinMatch, matches, worth_reading,
};
use crate::plan::{Action, InTheWay};
use crate::report::event::Weight;
use crate::walk::destination::DestWalk;
use crate::walk::{DirPlan, NONE, Step};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;

/// How many entries of alternate trees, and of directories that only the destination has, are looked at.
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
    /// Hashes of what the new files have in common with equal ones, and of their names.
    keys: HashSet<u64>,
    names: HashSet<u64>,
    hasher: RandomState,
    found: Vec<TwinCandidate>,
    /// Device and inode of each.
    inodes: HashSet<(u64, u64)>,
    entries_left: usize,
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
    /// By the paths of the new files.
    pub(super) by_new: HashMap<RelPath, Twin>,
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
    /// It will be deleted.
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
            hasher: RandomState::new(),
            found: Vec::new(),
            inodes: HashSet::new(),
            entries_left: sys::twin_entries_max().unwrap_or(ENTRIES_MAX),
            dest_id: context.dest.and_then(|dest| dest.dir().id().ok()),
            // A basis is not known to be equal.
            links: if walk.alternate_kind == Some(AltKind::Link) && criterion != Criterion::Length {
                Some(LinkSearch::default())
            } else {
                None
            },
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
            let name = path.name();
            let key = Key::before_reading(self.criterion, name, source.len_bytes, source.mtime);
            let has_names = preserve.hard_links && source.inode.is_some();
            self.keys.insert(self.hasher.hash_one(&key));
            if self.criterion == Criterion::Moved {
                self.names.insert(self.hasher.hash_one(name));
            }
            if let Some(links) = &mut self.links {
                links.lens_bytes.insert(source.len_bytes);
            }
            self.new.push(AbsentFile {
                path,
                len_bytes: source.len_bytes,
                mtime: source.mtime,
                digest: None,
                // Other names are linked to it before the end of the run.
                may_be_renamed: may_be_renamed && !has_names,
                may_be_late: !has_names,
                may_be_linked: !has_names,
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
        let worth = worth_reading(&self.new, &self.found);
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
            old_files.push((at, &self.found[at]));
        }

        let reader = ContentReader::new(self.context);
        let digests = reader.read(&new_files, &old_files)?;
        for ((at, _), digest) in new_files.iter().zip(digests.new) {
            self.new[*at].digest = digest;
        }
        let read: Vec<_> = old_files.iter().map(|(at, _)| *at).collect();
        for (at, digest) in read.into_iter().zip(digests.old) {
            self.found[at].digest = digest;
        }
        self.context.twins.compare_by(reader.compared_by);
        Ok(())
    }

    /// Returns whether there are new files.
    pub(super) fn is_useful(&self) -> bool {
        !self.new.is_empty()
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
                    let tree = None;
                    let path = plan.found.listing.path.join(list.name(entry));
                    self.look_into(SearchPlace { tree, is_extra }, path);
                }
            } else if self.may_be_twin(list.name(entry), entry) {
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
                let tree = None;
                self.examine(SearchPlace { tree, is_extra }, &dir, path.join(name));
            }
        }
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
    }

    /// Looks at the alternate trees.
    pub(super) fn look_into_alternates(&mut self) {
        let is_extra = false;
        for tree in 0..self.context.alternates.len() {
            let tree = Some(tree);
            self.look_into(SearchPlace { tree, is_extra }, RelPath::root());
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
        self.keys.contains(&self.hasher.hash_one(&key))
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
                if self.entries_left == 0 {
                    return;
                }
                self.entries_left -= 1;
                let name = list.name(entry);
                if sandbox::hides(dir.fd(), name, entry.is_dir()) {
                    continue;
                }
                if entry.is_dir() {
                    dirs.push(path.join(name));
                } else if self.may_have_name(name) || self.links.is_some() {
                    self.examine(place, &dir, path.join(name));
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

    /// Notes a file if it is equal to a new one.
    fn examine(&mut self, place: SearchPlace, dir: &Dir, path: RelPath) {
        let SearchPlace { tree, is_extra } = place;
        let stat = match sys::stat(dir.fd(), path.name(), false) {
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
        }
        let may_be_equal = self.may_be_equal(path.name(), stat.len_bytes, stat.mtime);
        let is_file = Kind::of_mode(stat.mode) == Some(Kind::File);
        if !is_file || !self.may_have_name(path.name()) || !may_be_equal {
            return;
        }
        // Content may be written into the file through another of its names.
        let may_change = self.context.options.place.inplace && stat.nlink > 1;
        if may_change || self.walk.is_forbidden(&path, false) {
            return;
        }
        // Trees that are snapshots of one another have many names of one file. Under `moved`, its name counts.
        let has_trees = !self.context.alternates.is_empty();
        let is_known = has_trees && !self.inodes.insert(inode);
        if tree.is_some() && is_known && self.criterion != Criterion::Moved {
            return;
        }
        self.found.push(TwinCandidate {
            tree,
            path,
            inode,
            len_bytes: stat.len_bytes,
            mtime: stat.mtime,
            digest: None,
            is_extra,
            is_left_over: is_extra && stat.nlink == 1,
            is_linkable: false,
        });
    }

    /// Notes which candidates can be linked.
    fn permit_links(&mut self) {
        let Some(links) = &self.links else { return };
        // The destination may have a name of any file.
        if self.entries_left == 0 {
            return;
        }
        for candidate in &mut self.found {
            let has_name = links.has_name.contains(&candidate.inode);
            candidate.is_linkable = candidate.tree.is_some() && !has_name;
        }
    }

    /// Returns the twin of a new file.
    fn twin(&self, new: &AbsentFile, found: TwinMatch) -> Twin {
        let (at, reuse) = match found {
            TwinMatch::CopiedFromNew(original) => {
                let digest = new.digest.expect("files were matched by their digests");
                return Twin {
                    tree: None,
                    path: self.new[original].path.clone(),
                    len_bytes: new.len_bytes,
                    identity: TwinIdentity::New(digest),
                    reuse: Reuse::CopiedAtEnd,
                    is_awaited: false,
                };
            }
            TwinMatch::Renamed(at) => (at, Reuse::Renamed),
            TwinMatch::Linked(at) => (at, Reuse::Linked),
            TwinMatch::Copied(at) if self.criterion == Criterion::Length => (at, Reuse::Basis),
            TwinMatch::Copied(at) => (at, Reuse::Copied),
        };
        let file = &self.found[at];
        Twin {
            tree: file.tree,
            path: file.path.clone(),
            len_bytes: file.len_bytes,
            identity: TwinIdentity::Found {
                inode: file.inode,
                mtime: file.mtime,
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
        self.permit_links();
        let found = matches(self.criterion, &self.new, &self.found);

        let mut by_new = HashMap::new();
        let mut has_extras = false;
        for (new, found) in self.new.iter().zip(found) {
            let Some(found) = found else { continue };
            if let TwinMatch::Renamed(at) | TwinMatch::Linked(at) | TwinMatch::Copied(at) = found {
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
