//! The plan of one directory: what was found at both ends, and what was decided about it.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::Chain;
use crate::flist::{DirList, Entry};
use crate::fs::errno;
use crate::fs::read::Incomplete;
use crate::fs::root::{Dir, Root};
use crate::path;
use crate::plan::{Action, Decision, InTheWay, Reason};
use crate::proto::DirListing;
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::report::tally::Tally;
use crate::walk::alternate::{AltDirs, Alternate, Hit};
use crate::walk::replay::Replayed;
use crate::walk::scanner::TaskId;
use crate::walk::source_dir::{ComparedSource, SourceDir};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// What the destination has under the name of a directory.
#[derive(Debug, Clone)]
pub enum DestState {
    /// No directory that can be listed.
    Absent,
    /// A directory.
    Present,
}

/// The index that stands for no entry.
pub const NONE: u32 = u32::MAX;

/// The decision about an entry that is not a directory.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Index in [`DirListing::list`].
    pub source: u32,
    /// Index in [`DestListing::list`], or [`NONE`].
    pub dest: u32,
    /// What to do.
    pub decision: Decision,
}

/// A subdirectory.
#[derive(Debug, Clone, Copy)]
pub struct SubDir {
    /// The entry and what to do about it.
    pub step: Step,
    /// The task number of its own plan; `None` if its content takes no part.
    pub task_id: Option<TaskId>,
    /// It is only a leading element under `-R --no-implied-dirs`: created if missing, otherwise left unchanged.
    pub implied: bool,
    /// See [`SubdirFlags::is_repeated`](crate::proto::SubdirFlags::is_repeated).
    pub is_repeated: bool,
}

impl SubDir {
    /// Whether it is left as it is, with all its content.
    pub fn is_left(&self) -> bool {
        matches!(self.step.decision.action, Action::Refuse(_))
    }
}

/// What is counted and reported about a directory before its entries, even if it is not entered at the destination.
#[derive(Debug, Default)]
pub struct Findings {
    /// Problems of both ends, in order.
    pub problems: Vec<Problem>,
    /// Lines for stdout.
    pub notes: Vec<Vec<u8>>,
    /// See [`ListedDir::tally`]. Empty if a peer sent the listing, which counts the entries.
    pub tally: Tally,
    /// See [`ListedDir::fatal`].
    pub fatal: Option<Error>,
}

/// A source directory that was listed on this machine.
#[derive(Debug, Default)]
pub struct ListedDir {
    pub listing: DirListing,
    /// The open directory of each origin; `None` if it could not be opened.
    pub places: Vec<Option<SourceDir>>,
    /// The counts of its entries.
    pub tally: Tally,
    /// The error that ends the run here, because rules could not be read.
    pub fatal: Option<Error>,
    /// Files may have no digests, because no content was to be read when they were listed.
    pub lacks_digests: bool,
}

/// How many source directories of one listing may be open. If there are more, each is opened when it is used.
pub const OPEN_PLACES_MAX: usize = 8;

/// Closes source directories.
pub fn close_places(places: &mut [Option<SourceDir>]) {
    places
        .iter_mut()
        .flatten()
        .for_each(|place| *place = place.closed());
}

/// How a receiver treats the sender's directory.
#[derive(Debug, Clone)]
pub struct SenderDir {
    /// The sender lists further directories only after it was informed that earlier ones are finished.
    pub lists_in_turn: bool,
    /// When its last clone is dropped, the sender is informed that no more of the directory is needed.
    pub hold: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

/// What both ends have in one directory. Nothing is decided in it.
///
/// [`DestWalk`](crate::walk::destination::DestWalk) makes it of the source's listing, and with it a [`Decided`]. If the destination could
/// not be examined then, the generator does that again when it enters the directory: that replaces `dest` and makes another
/// [`Decided`].
#[derive(Debug, Default)]
pub struct Found {
    /// The source's side. Its problems and notes are in the [`Findings`].
    pub listing: DirListing,
    /// See [`ListedDir::places`]. Empty if a peer sent the listing.
    pub places: Vec<Option<SourceDir>>,
    /// Set if a peer sent the listing.
    pub sender_dir: Option<SenderDir>,
    /// The destination's side.
    pub dest: DestListing,
    /// The receiver's rules in force here.
    pub receiver_chain: Option<Chain>,
}

/// What the destination has in one directory.
#[derive(Debug, Default)]
pub struct DestListing {
    /// The entries, sorted. Those that the source lacks have only a name.
    pub list: DirList,
    /// The directory, if it exists. The generator closes it when it enters the directory, which it then has itself.
    pub dir: Option<Dir>,
    /// It could not be listed. The generator makes it accessible or reports the error.
    pub is_unseen: bool,
    /// It is a symlink that leads outside (`-K`), or an implied directory that is none.
    pub is_outside: bool,
    /// Implied subdirectories cannot be reached either, and report that. A dry run counts them as missing.
    pub blocks_subdirs: bool,
    /// Indices in [`DirListing::list`] of entries whose counterparts could not be examined for lack of permission.
    pub hidden: Vec<u32>,
    /// Names of entries that could not be examined. This was reported, and they are left alone.
    pub unknown: HashSet<Vec<u8>>,
}

/// What is to be done in one directory.
///
/// [`DestWalk`](crate::walk::destination::DestWalk) makes it, once all that it depends on was found; deciding again makes another one. What
/// is learned only later makes parts of it void, never anything else of it: [`DirPlan::leave_all`], [`DirPlan::refuse`],
/// [`DirPlan::pass_leftovers`], and `-m`.
#[derive(Debug, Default)]
pub struct Decided {
    /// The entries other than directories that must be changed or reported, in order.
    pub steps: Vec<Step>,
    /// The subdirectories, in order.
    pub subdirs: Vec<SubDir>,
    /// Indices in [`DestListing::list`] of the entries that the source lacks and no rule protects, in order.
    pub extras: Vec<u32>,
    /// Indices in [`DestListing::list`] of entries that the source lacks and that have the name of a temporary file, extra
    /// or not.
    pub leftovers: Vec<u32>,
    /// Indices in [`DirListing::list`] of directories removed by `-m`.
    pub pruned: Vec<u32>,
    /// The matches in alternate trees, by index in [`DirListing::list`].
    pub hits: HashMap<u32, Hit>,
    /// Of a stored plan that is carried out.
    pub replayed: Replayed,
}

impl DestListing {
    /// Returns the entry at an index; `None` for [`NONE`].
    pub fn entry(&self, at: u32) -> Option<&Entry> {
        self.list.entries.get(at as usize)
    }
}

impl Found {
    /// Returns the directory that contains an entry of the source, if it is on this machine.
    pub fn place_of(&self, entry: &Entry) -> Option<&SourceDir> {
        self.places.get(entry.origin as usize)?.as_ref()
    }

    /// Returns the source's entry that a step is about.
    pub fn source_of(&self, step: &Step) -> &Entry {
        &self.listing.list.entries[step.source as usize]
    }

    /// Returns the name of an entry at the source, which differs from the one here for a single renamed argument.
    pub fn source_name(&self, entry: &Entry) -> &[u8] {
        self.listing
            .renamed_from
            .as_deref()
            .unwrap_or(self.listing.list.name(entry))
    }

    /// Returns an entry of the source for a comparison of contents.
    pub fn original<'a>(&'a self, entry: &'a Entry) -> ComparedSource<'a> {
        ComparedSource {
            entry,
            plain_digest: self.listing.list.plain_digest(entry),
            place: self.place_of(entry),
            name: self.source_name(entry),
        }
    }

    /// Returns the name of the entry that a step is about.
    pub fn name_of(&self, step: &Step) -> &[u8] {
        self.listing.list.name(self.source_of(step))
    }

    /// Returns the message for a destination directory that must be listed for deletions and cannot be. `top`: the path
    /// of the destination.
    pub fn cannot_be_listed(&self, top: &[u8]) -> Problem {
        // rsync names the root `.` in this message.
        let dir: &[u8] = if self.listing.path.is_root() {
            b"."
        } else {
            self.listing.path.as_bytes()
        };
        Problem::failed(
            ErrorRole::Generator,
            "opendir",
            &path::join(top, dir),
            &errno::denied(),
        )
    }
}

impl Decided {
    /// Makes all of it void: every entry is left alone.
    fn leave_all(&mut self) {
        self.steps.clear();
        self.extras.clear();
        self.leftovers.clear();
        self.hits.clear();
        self.replayed = Replayed::default();
        for sub in &mut self.subdirs {
            sub.step.decision.action = Action::Refuse(Reason::Unknown);
        }
    }
}

/// What was found and decided in one directory.
#[derive(Debug, Default)]
pub struct DirPlan {
    /// What is reported first. Taken out when that is done.
    pub findings: Findings,
    pub found: Found,
    /// Only [`crate::walk`] makes and changes it.
    pub(super) decided: Decided,
    /// How to reopen its descriptors, if they were closed.
    parked: Option<Box<Parked>>,
}

/// What is needed to reopen the descriptors of a plan.
#[derive(Debug)]
struct Parked {
    dest: bool,
    hits: Vec<(u32, u32, usize)>,
}

impl DirPlan {
    /// Returns the plan for what was found and decided.
    pub(super) fn new(findings: Findings, found: Found, decided: Decided) -> DirPlan {
        DirPlan {
            findings,
            found,
            decided,
            parked: None,
        }
    }

    /// Returns what is to be done.
    pub fn decided(&self) -> &Decided {
        &self.decided
    }

    /// Takes what was found out about the actions of a stored plan.
    pub fn take_replayed(&mut self) -> Replayed {
        std::mem::take(&mut self.decided.replayed)
    }

    /// Gives the subdirectories that have plans of their own their task numbers.
    pub fn number_subdirs(&mut self, mut next: impl FnMut() -> TaskId) {
        for sub in &mut self.decided.subdirs {
            if let Some(task_id) = &mut sub.task_id {
                *task_id = next();
            }
        }
    }

    /// Turns steps, and those of subdirectories, into refusals: `is_refused` finds out that they cannot be carried out, and
    /// why.
    pub fn refuse(&mut self, mut is_refused: impl FnMut(&Found, &Step) -> Option<Reason>) {
        let Decided { steps, subdirs, .. } = &mut self.decided;
        let of_subdirs = subdirs.iter_mut().map(|sub| &mut sub.step);
        for step in steps.iter_mut().chain(of_subdirs) {
            if let Some(reason) = is_refused(&self.found, step) {
                step.decision.action = Action::Refuse(reason);
            }
        }
    }

    /// Drops steps, so that nothing is done for them: nothing makes way for their entries either.
    pub fn drop_steps(&mut self, mut is_dropped: impl FnMut(&Found, &Step) -> bool) {
        let found = &self.found;
        self.decided.steps.retain(|step| !is_dropped(found, step));
    }

    /// Changes the decisions of steps, or drops them: `settle` returns whether a step stays.
    pub fn settle_steps(&mut self, mut settle: impl FnMut(&Found, &mut Step) -> bool) {
        let found = &self.found;
        self.decided.steps.retain_mut(|step| settle(found, step));
    }

    /// Passes the leftovers of crashed runs once. Those that `remove` removes are no extra entries.
    pub fn pass_leftovers(&mut self, mut remove: impl FnMut(&Dir, &[u8]) -> bool) {
        let DestListing { list, dir, .. } = &self.found.dest;
        let Some(dir) = dir else { return };
        let mut removed = std::mem::take(&mut self.decided.leftovers);
        removed.retain(|&at| remove(dir, list.name(&list.entries[at as usize])));
        removed.sort_unstable();
        self.decided
            .extras
            .retain(|extra| removed.binary_search(extra).is_err());
    }

    /// Returns the directory that contains an entry of the source, if it is on this machine.
    pub fn place_of(&self, entry: &Entry) -> Option<&SourceDir> {
        self.found.place_of(entry)
    }

    /// Returns the files that are transferred by a range of steps.
    pub fn transferred(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = ComparedSource<'_>> + Clone {
        let steps = self.decided.steps[range]
            .iter()
            .filter(|step| matches!(step.decision.action, Action::Transfer(_)));
        steps.map(|step| self.found.original(self.source_of(step)))
    }

    /// Returns the path of an entry as the sender sees it (`%f`). `None` if it was not requested, or if a receiving
    /// client reports, which does not know it.
    pub fn shown(&self, entry: &Entry, source_name: &[u8]) -> Option<Vec<u8>> {
        match self.place_of(entry) {
            Some(place) => Some(place.shown(source_name)),
            None => Some(path::join(
                self.found.listing.shown.get(entry.origin as usize)?,
                source_name,
            )),
        }
    }

    /// Returns the source's entry that a step is about.
    pub fn source_of(&self, step: &Step) -> &Entry {
        self.found.source_of(step)
    }

    /// Returns the name of the entry that a step is about.
    pub fn name_of(&self, step: &Step) -> &[u8] {
        self.found.name_of(step)
    }

    /// Returns the task numbers of the subdirectories that have a plan, in order.
    pub fn below(&self) -> impl DoubleEndedIterator<Item = TaskId> + '_ {
        self.decided.subdirs.iter().filter_map(|sub| sub.task_id)
    }

    /// Returns what the destination has in place of a subdirectory.
    pub fn dest_state(&self, sub: &SubDir) -> DestState {
        match (sub.step.dest, sub.step.decision.in_the_way) {
            // A directory that is left as it is, is not entered.
            _ if sub.is_left() => DestState::Absent,
            (NONE, _)
                if self.found.dest.is_unseen || (self.found.dest.blocks_subdirs && sub.implied) =>
            {
                DestState::Present
            }
            (NONE, _) | (_, InTheWay::Other | InTheWay::Dir) => DestState::Absent,
            _ => DestState::Present,
        }
    }

    /// Closes all descriptors. A list that is held completely may have more directories than a process may open. Call
    /// [`DirPlan::reopen_dirs`] before the plan is used.
    pub fn park(&mut self) {
        if self.parked.is_some() {
            return;
        }
        close_places(&mut self.found.places);
        let hits = self
            .decided
            .hits
            .drain()
            .map(|(at, hit)| (at, hit.mode, hit.tree))
            .collect();
        self.parked = Some(Box::new(Parked {
            dest: self.found.dest.dir.take().is_some(),
            hits,
        }));
    }

    /// Opens what [`DirPlan::park`] closed: below the destination's top, and in the alternate trees. Reports a source
    /// directory that no longer exists.
    pub fn reopen_dirs(&mut self, dest: Option<&Root>, alternates: &[Alternate]) {
        let Some(parked) = self.parked.take() else {
            return;
        };
        self.open_places();
        if let (true, Some(root)) = (parked.dest, dest) {
            match errno::if_there(root.open_dir_to_search(&self.found.listing.path)) {
                Ok(dir) => self.found.dest.dir = dir,
                Err(error) => {
                    let full = root.full(self.found.listing.path.as_bytes());
                    self.findings.problems.push(Problem::failed(
                        ErrorRole::Generator,
                        "opendir",
                        &full,
                        &error,
                    ));
                    self.leave_all();
                }
            }
        }
        let mut alt_dirs = AltDirs::default();
        for (at, mode, tree) in parked.hits {
            if let Some(dir) = alt_dirs.open(tree, &alternates[tree], &self.found.listing.path) {
                self.decided.hits.insert(at, Hit { dir, mode, tree });
            }
        }
        self.findings.problems.append(&mut alt_dirs.problems);
    }

    /// Opens the source directories again. Reports one that no longer exists.
    fn open_places(&mut self) {
        if self.found.places.len() > OPEN_PLACES_MAX {
            return;
        }
        for place in &mut self.found.places {
            match place.as_ref().map(SourceDir::opened) {
                Some(Ok(open)) => *place = Some(open),
                Some(Err(error)) => {
                    let full = place.take().map_or_else(Vec::new, |place| place.full(b""));
                    self.findings.problems.push(Problem::failed(
                        ErrorRole::Sender,
                        "opendir",
                        &full,
                        &error,
                    ));
                }
                None => {}
            }
        }
    }

    /// Leaves every entry alone, because the destination directory cannot be examined. The caller has reported that.
    pub fn leave_all(&mut self) {
        self.decided.leave_all();
    }

    /// Copies what is needed for steps that are carried out later, without descriptors. The sender's directory stays.
    pub fn without_descriptors(&self) -> DirPlan {
        let mut plan = self.for_subdirs();
        plan.found.sender_dir = self.found.sender_dir.clone();
        plan
    }

    /// Copies what is needed for the subdirectories, without descriptors.
    pub fn for_subdirs(&self) -> DirPlan {
        let DirListing {
            id,
            path,
            list,
            shown,
            renamed_from,
            ..
        } = &self.found.listing;
        let listing = DirListing {
            id: *id,
            path: path.clone(),
            list: list.clone(),
            shown: shown.clone(),
            renamed_from: renamed_from.clone(),
            ..DirListing::default()
        };
        let places = self.found.places.iter();
        let places = places.map(|place| place.as_ref().map(SourceDir::closed));
        let sender_dir = self.found.sender_dir.as_ref().map(|sender_dir| SenderDir {
            hold: if sender_dir.lists_in_turn {
                None
            } else {
                sender_dir.hold.clone()
            },
            ..*sender_dir
        });
        let dest = DestListing {
            list: self.found.dest.list.clone(),
            is_unseen: self.found.dest.is_unseen,
            ..DestListing::default()
        };
        let found = Found {
            listing,
            places: places.collect(),
            sender_dir,
            dest,
            receiver_chain: None,
        };
        let decided = Decided {
            subdirs: self.decided.subdirs.clone(),
            ..Decided::default()
        };
        DirPlan::new(Findings::default(), found, decided)
    }

    /// Whether the directory has no entries other than directories that were pruned.
    pub fn is_bare(&self) -> bool {
        self.decided.subdirs.is_empty() && self.found.listing.list.entries.iter().all(Entry::is_dir)
    }
}

/// Returns the problem of an entry whose attributes could not be read, or the error that ends the run: one is corrupt.
pub fn unreadable_or_fatal(
    role: &'static str,
    incomplete: Incomplete,
    weight: Weight,
) -> Result<Problem> {
    match incomplete {
        Incomplete::Failed(..) => Ok(unreadable_attribute(role, incomplete, weight)),
        Incomplete::Fatal(line) => Err(Error::new(Exit::FileIo, line).by(role)),
    }
}

/// Returns the problem of an entry whose attributes could not be read.
pub fn unreadable_attribute(role: &'static str, incomplete: Incomplete, weight: Weight) -> Problem {
    let line = match incomplete {
        Incomplete::Failed(what, error) => {
            let start = format!("rsync: [{role}] ").into_bytes();
            [
                &start,
                &what,
                &b": "[..],
                &crate::report::event::errno_words(&error),
            ]
            .concat()
        }
        Incomplete::Fatal(line) => line,
    };
    Problem::new(line, weight)
}
