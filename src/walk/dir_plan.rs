//! The listing of one source directory, and the plan that is made of it: what was found and decided.

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
    /// Index in [`DirPlan::dest`], or [`NONE`].
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

/// What the scan of a source directory found besides its entries. It is counted and reported even if the directory is
/// not entered at the destination.
#[derive(Debug, Default)]
pub struct Findings {
    /// See [`DirListing::problems`].
    pub problems: Vec<Problem>,
    /// See [`DirListing::notes`].
    pub notes: Vec<Vec<u8>>,
    /// See [`ListedDir::tally`].
    pub tally: Tally,
    /// See [`ListedDir::fatal`].
    pub fatal: Option<Error>,
}

impl Findings {
    /// Takes the findings out of a plan.
    pub fn of(plan: &mut DirPlan) -> Findings {
        Findings {
            problems: std::mem::take(&mut plan.listing.problems),
            notes: std::mem::take(&mut plan.listing.notes),
            tally: std::mem::take(&mut plan.tally),
            fatal: plan.fatal.take(),
        }
    }
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

/// What was found and decided in one directory.
#[derive(Debug, Default)]
pub struct DirPlan {
    /// What was found in the source. Problems of the destination are added.
    pub listing: DirListing,
    /// See [`ListedDir::places`]. Empty if a peer sent the listing.
    pub places: Vec<Option<SourceDir>>,
    /// See [`ListedDir::tally`]. Empty if a peer sent the listing, which counts the entries.
    pub tally: Tally,
    /// See [`ListedDir::fatal`].
    pub fatal: Option<Error>,
    /// Set if a peer sent the listing.
    pub sender_dir: Option<SenderDir>,
    /// The destination's entries, sorted. Those that the source lacks have only a name.
    pub dest: DirList,
    /// The destination's directory, if it exists.
    pub dest_dir: Option<Dir>,
    /// The entries other than directories that must be changed or reported, in order.
    pub steps: Vec<Step>,
    /// The subdirectories, in order.
    pub subdirs: Vec<SubDir>,
    /// Indices in `dest` of the entries that the source lacks and no rule protects, in order.
    pub extras: Vec<u32>,
    /// Indices in `dest` of entries that the source lacks and that have the name of a temporary file, extra or not.
    pub leftovers: Vec<u32>,
    /// The destination's directory could not be listed. The generator makes it accessible or reports the error.
    pub dest_unseen: bool,
    /// The destination's directory is a symlink that leads outside (`-K`), or an implied directory that is none.
    pub is_outside: bool,
    /// Implied subdirectories cannot be reached either, and report that. A dry run counts them as missing.
    pub blocks_subdirs: bool,
    /// Indices in `listing.list` of entries whose counterparts at the destination could not be examined for lack of
    /// permission.
    pub hidden: Vec<u32>,
    /// Names of destination entries that could not be examined. This was reported, and they are left alone.
    pub unknown: HashSet<Vec<u8>>,
    /// Indices in `listing.list` of directories removed by `-m`.
    pub pruned: Vec<u32>,
    /// The receiver's rules in force here.
    pub receiver_chain: Option<Chain>,
    /// The matches in alternate trees, by index in `listing.list`.
    pub hits: HashMap<u32, Hit>,
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
    /// Creates a plan from the source's listing alone.
    pub fn of(found: ListedDir) -> DirPlan {
        let ListedDir {
            listing,
            places,
            tally,
            fatal,
        } = found;
        DirPlan {
            listing,
            places,
            tally,
            fatal,
            ..DirPlan::default()
        }
    }

    /// Returns the directory that contains an entry of the source, if it is on this machine.
    pub fn place_of(&self, entry: &Entry) -> Option<&SourceDir> {
        self.places.get(entry.origin as usize)?.as_ref()
    }

    /// Returns the files that are transferred by a range of steps.
    pub fn transferred(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = ComparedSource<'_>> + Clone {
        let steps = self.steps[range]
            .iter()
            .filter(|step| matches!(step.decision.action, Action::Transfer(_)));
        steps.map(|step| {
            let entry = self.source_of(step);
            let name = self
                .listing
                .renamed_from
                .as_deref()
                .unwrap_or(self.listing.list.name(entry));
            ComparedSource {
                entry,
                place: self.place_of(entry),
                name,
            }
        })
    }

    /// Returns the path of an entry as the sender sees it (`%f`). `None` if it was not requested, or if a receiving
    /// client reports, which does not know it.
    pub fn shown(&self, entry: &Entry, source_name: &[u8]) -> Option<Vec<u8>> {
        match self.place_of(entry) {
            Some(place) => Some(place.shown(source_name)),
            None => Some(path::join(
                self.listing.shown.get(entry.origin as usize)?,
                source_name,
            )),
        }
    }

    /// Returns the source's entry that a step is about.
    pub fn source_of(&self, step: &Step) -> &Entry {
        &self.listing.list.entries[step.source as usize]
    }

    /// Returns the name of the entry that a step is about.
    pub fn name_of(&self, step: &Step) -> &[u8] {
        self.listing.list.name(self.source_of(step))
    }

    /// Returns the task numbers of the subdirectories that have a plan, in order.
    pub fn below(&self) -> impl DoubleEndedIterator<Item = TaskId> + '_ {
        self.subdirs.iter().filter_map(|sub| sub.task_id)
    }

    /// Returns what the destination has in place of a subdirectory.
    pub fn dest_state(&self, sub: &SubDir) -> DestState {
        match (sub.step.dest, sub.step.decision.in_the_way) {
            // A directory that is left as it is, is not entered.
            _ if sub.is_left() => DestState::Absent,
            (NONE, _) if self.dest_unseen || (self.blocks_subdirs && sub.implied) => {
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
        close_places(&mut self.places);
        let hits = self
            .hits
            .drain()
            .map(|(at, hit)| (at, hit.mode, hit.tree))
            .collect();
        self.parked = Some(Box::new(Parked {
            dest: self.dest_dir.take().is_some(),
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
            match errno::if_there(root.open_dir_to_search(&self.listing.path)) {
                Ok(dir) => self.dest_dir = dir,
                Err(error) => {
                    let full = root.full(self.listing.path.as_bytes());
                    self.listing.problems.push(Problem::failed(
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
            if let Some(dir) = alt_dirs.open(tree, &alternates[tree], &self.listing.path) {
                self.hits.insert(at, Hit { dir, mode, tree });
            }
        }
        self.listing.problems.append(&mut alt_dirs.problems);
    }

    /// Opens the source directories again. Reports one that no longer exists.
    fn open_places(&mut self) {
        if self.places.len() > OPEN_PLACES_MAX {
            return;
        }
        for place in &mut self.places {
            match place.as_ref().map(SourceDir::opened) {
                Some(Ok(open)) => *place = Some(open),
                Some(Err(error)) => {
                    let full = place.take().map_or_else(Vec::new, |place| place.full(b""));
                    self.listing.problems.push(Problem::failed(
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

    /// Leaves every entry alone, because the destination directory cannot be examined. The caller has reported that.
    pub fn leave_all(&mut self) {
        self.steps.clear();
        self.extras.clear();
        self.leftovers.clear();
        self.hits.clear();
        for sub in &mut self.subdirs {
            sub.step.decision.action = Action::Refuse(Reason::Unknown);
        }
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
        } = &self.listing;
        let listing = DirListing {
            id: *id,
            path: path.clone(),
            list: list.clone(),
            shown: shown.clone(),
            renamed_from: renamed_from.clone(),
            ..DirListing::default()
        };
        DirPlan {
            listing,
            places: self
                .places
                .iter()
                .map(|place| place.as_ref().map(SourceDir::closed))
                .collect(),
            sender_dir: self.sender_dir.as_ref().map(|sender_dir| SenderDir {
                hold: sender_dir
                    .hold
                    .clone()
                    .filter(|_| !sender_dir.lists_in_turn),
                ..*sender_dir
            }),
            dest: self.dest.clone(),
            subdirs: self.subdirs.clone(),
            dest_unseen: self.dest_unseen,
            ..DirPlan::default()
        }
    }

    /// Whether the directory has no entries other than directories that were pruned.
    pub fn is_bare(&self) -> bool {
        self.subdirs.is_empty() && self.listing.list.entries.iter().all(Entry::is_dir)
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
