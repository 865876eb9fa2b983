//! Walks the trees: lists a directory of the source and its counterpart at the destination, joins them, and decides.
//! Each directory is one task. Workers process many tasks at once, a bounded distance ahead of the generator.
//!
//! The generator takes the plans in canonical order with [`Scanner::take`]. If no worker has started on a plan, the
//! generator makes it itself, so it only ever waits for work in progress.

pub mod alternate;
pub mod destination;
pub mod scanner;
pub mod source;

pub mod run_context;

pub mod source_args;

use self::alternate::{AltDirs, Hit};
use self::destination::DestWalk;
pub use self::scanner::{Look, Scanner, Ticket};
use self::source::SourceWalk;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{Chain, Side, Verdict};
use crate::flist::{DirList, Entry, Kind};
use crate::fs::read::{self, Incomplete};
use crate::fs::root::{Dir, Root};
use crate::fs::{errno, trusted_path};
use crate::options::LinkOwners;
use crate::path::{self, RelPath};
use crate::plan::{Action, Decision, InTheWay, Reason};
use crate::proto::{DirId, ToldSub};
use crate::report::event::{Problem, Voice, Weight};
use crate::report::tally::Tally;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// The directory that the names of a source argument are relative to.
#[derive(Debug)]
pub struct Base {
    /// The open directory.
    pub root: Root,
    /// The prefix of names in `%f`: the argument as given, without its last element.
    pub shown: Vec<u8>,
    /// The sender's rules for it, before any directory is entered.
    pub chain: Chain,
}

/// A directory of a source, and which of its entries take part.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The directory that its path starts from.
    pub base: Arc<Base>,
    /// The path below `base`.
    pub path: RelPath,
    /// Which entries take part.
    pub listing: Listing,
    /// The rules in force in it.
    pub chain: Chain,
    /// The file system that the walk stays on (`-x`): that of the directory where it began, once that is open.
    pub dev: Option<u64>,
}

/// Which entries of a directory take part.
#[derive(Debug, Clone)]
pub enum Listing {
    /// All entries that the rules include.
    All {
        /// Whether its subdirectories are walked, or only listed themselves (`-d`).
        below: bool,
    },
    /// The entries named by arguments: sorted by their names at the source, without duplicates.
    Named(Arc<Vec<NamedEntry>>),
}

/// An entry named by an argument.
#[derive(Debug, Clone)]
pub struct NamedEntry {
    /// Its name at the source, a single path element.
    pub name: Vec<u8>,
    /// The new name, if it gets one.
    pub renamed: Option<Vec<u8>>,
    /// Which part of its content takes part, if it is a directory.
    pub content: NamedContent,
    /// It is a leading element of an argument under `-R`.
    pub implied: bool,
    /// A symlink is followed, because the argument continues behind it.
    pub followed: bool,
    /// How often rsync's list counts it. Over all places where the entry is named, the sum is at least 1.
    pub times: u64,
}

/// Which part of a named directory's content takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedContent {
    /// Nothing.
    None,
    /// Its entries, but not the content of its subdirectories.
    Shallow,
    /// Everything below.
    Full,
}

/// The directories below this one that arguments name.
#[derive(Debug, Default)]
pub struct Node {
    /// By name.
    pub children: BTreeMap<Vec<u8>, Arc<Node>>,
    /// The listing that each base adds here.
    pub origins: Vec<(Arc<Base>, RelPath, Listing)>,
}

/// What the destination has under the name of a directory.
#[derive(Debug, Clone)]
pub enum DestState {
    /// No directory that can be listed.
    Absent,
    /// A directory.
    Present,
}

/// A directory of the source to list.
#[derive(Debug)]
pub struct SourceTask {
    /// Its path in the transfer and at the destination.
    pub path: RelPath,
    /// Where its entries come from.
    pub origins: Vec<Origin>,
    /// The directories below it that arguments name.
    pub node: Option<Arc<Node>>,
}

/// A directory to list and to decide.
#[derive(Debug)]
pub struct Task {
    /// What to list.
    pub source: SourceTask,
    /// The state of its counterpart at the destination.
    pub there: DestState,
    /// The receiver's rules in force in its parent.
    pub receiver_chain: Chain,
}

/// The index that stands for no entry.
pub const NONE: u32 = u32::MAX;

/// The decision about an entry that is not a directory.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Index in [`DirPlan::source`].
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
    /// The ticket of its own plan; `None` if its content takes no part.
    pub ticket: Option<Ticket>,
    /// It is only a leading element under `-R --no-implied-dirs`: created if missing, otherwise left unchanged.
    pub implied: bool,
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
    /// See [`ListedDir::problems`].
    pub problems: Vec<Problem>,
    /// See [`ListedDir::notes`].
    pub notes: Vec<Vec<u8>>,
    /// See [`DirPlan::tally`].
    pub tally: Tally,
    /// See [`ListedDir::fatal`].
    pub fatal: Option<Error>,
}

impl Findings {
    /// Takes the findings out of a plan.
    pub fn of(plan: &mut DirPlan) -> Findings {
        Findings {
            problems: std::mem::take(&mut plan.problems),
            notes: std::mem::take(&mut plan.notes),
            tally: std::mem::take(&mut plan.tally),
            fatal: plan.fatal.take(),
        }
    }
}

/// The listing of one source directory.
#[derive(Debug, Default)]
pub struct ListedDir {
    /// Its path in the transfer.
    pub path: RelPath,
    /// Its entries, sorted.
    pub source: DirList,
    /// What is known of each subdirectory besides its entry, in order.
    pub subs: Vec<ToldSub>,
    /// The open directory of each origin; `None` if it could not be opened. Empty if a peer sent the listing.
    pub places: Vec<Option<SourceDir>>,
    /// The peer's data about the directory, if a peer sent the listing.
    pub teller: Option<SenderDir>,
    /// The listing is complete, so extra entries of the destination may be deleted.
    pub may_delete: bool,
    /// Only entries named by arguments are listed.
    pub is_named: bool,
    /// Problems found during the scan, in order.
    pub problems: Vec<Problem>,
    /// The error that ends the run here, because rules could not be read.
    pub fatal: Option<Error>,
    /// Lines for stdout that belong to the listing.
    pub notes: Vec<Vec<u8>>,
    /// The counts of its entries.
    pub tally: Tally,
    /// The name of the single entry at the source, if it is renamed at the destination.
    pub renamed_from: Option<Vec<u8>>,
}

impl ListedDir {
    /// Renames the single entry.
    pub fn rename_only(&mut self, new: &[u8]) {
        let Some(entry) = self.source.entries.pop() else { return };
        self.renamed_from = Some(self.source.name(&entry).to_vec());
        self.source = DirList::default();
        self.source.push_entry(new, entry);
    }
}

/// What a receiver knows of the sender's directory.
#[derive(Debug, Clone)]
pub struct SenderDir {
    /// Its number at the sender.
    pub id: DirId,
    /// The sender sends the data of its files without a request.
    pub with_data: bool,
    /// For each origin the directory as the sender sees it (`%f`); empty if not requested.
    pub shown: Vec<Vec<u8>>,
    /// The sender lists further directories only after it was informed that earlier ones are finished.
    pub lists_in_turn: bool,
    /// When its last clone is dropped, the sender is informed that no more of the directory is needed.
    pub hold: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

/// What was found and decided in one directory.
#[derive(Debug, Default)]
pub struct DirPlan {
    /// Its path in the transfer.
    pub path: RelPath,
    /// The source's entries, sorted.
    pub source: DirList,
    /// The destination's entries, sorted. Those that the source lacks have only a name.
    pub dest: DirList,
    /// See [`ListedDir::subs`].
    pub subs: Vec<ToldSub>,
    /// See [`ListedDir::places`].
    pub places: Vec<Option<SourceDir>>,
    /// See [`ListedDir::teller`].
    pub teller: Option<SenderDir>,
    /// See [`ListedDir::is_named`].
    pub is_named: bool,
    /// The destination's directory, if it exists.
    pub dest_dir: Option<Dir>,
    /// The entries other than directories that must be changed or reported, in order.
    pub steps: Vec<Step>,
    /// The subdirectories, in order.
    pub subdirs: Vec<SubDir>,
    /// Indices in `dest` of the entries that the source lacks and no rule protects, in order.
    pub extras: Vec<u32>,
    /// The destination's directory could not be listed. The generator makes it accessible or reports the error.
    pub dest_unseen: bool,
    /// The destination's directory is a symlink that leads outside (`-K`).
    pub is_outside: bool,
    /// Indices in `source` of entries whose counterparts at the destination could not be examined for lack of
    /// permission.
    pub hidden: Vec<u32>,
    /// Names of destination entries that could not be examined. This was reported, and they are left alone.
    pub unknown: HashSet<Vec<u8>>,
    /// Indices in `source` of directories removed by `-m`.
    pub pruned: Vec<u32>,
    /// The listing is complete, so extra entries may be deleted.
    pub may_delete: bool,
    /// The receiver's rules in force here.
    pub receiver_chain: Option<Chain>,
    /// Problems found during the scan, in order.
    pub problems: Vec<Problem>,
    /// The error that ends the run here, because rules could not be read.
    pub fatal: Option<Error>,
    /// Lines for stdout that belong to the listing.
    pub notes: Vec<Vec<u8>>,
    /// The counts of the source's entries; empty if the peer counts them.
    pub tally: Tally,
    /// The matches in alternate trees, by index in `source`.
    pub hits: HashMap<u32, Hit>,
    /// The name of the single entry at the source, if it is renamed at the destination.
    pub renamed_from: Option<Vec<u8>>,
    /// How to reopen its descriptors, if they were closed.
    parked: Option<Box<Parked>>,
}

/// What is needed to reopen the descriptors of a plan.
#[derive(Debug)]
struct Parked {
    places: Vec<Option<(Arc<Base>, RelPath)>>,
    dest: bool,
    hits: Vec<(u32, u32, usize)>,
}

impl DirPlan {
    /// Creates a plan from the source's listing alone.
    pub fn of(found: ListedDir) -> DirPlan {
        let ListedDir {
            path,
            source,
            subs,
            places,
            teller,
            may_delete,
            is_named,
            problems,
            fatal,
            notes,
            tally,
            renamed_from,
        } = found;
        DirPlan {
            path,
            source,
            subs,
            places,
            teller,
            may_delete,
            is_named,
            problems,
            fatal,
            notes,
            tally,
            renamed_from,
            ..DirPlan::default()
        }
    }

    /// Returns the directory that contains an entry of the source, if it is on this machine.
    pub fn place_of(&self, entry: &Entry) -> Option<&SourceDir> {
        self.places.get(entry.origin as usize)?.as_ref()
    }

    /// Returns the path of an entry as the sender sees it (`%f`). `None` if it was not requested, or if a receiving
    /// client reports, which does not know it.
    pub fn shown(&self, entry: &Entry, source_name: &[u8]) -> Option<Vec<u8>> {
        match (self.place_of(entry), &self.teller) {
            (Some(place), _) => Some(place.shown(source_name)),
            (None, Some(teller)) => Some(path::join(teller.shown.get(entry.origin as usize)?, source_name)),
            (None, None) => None,
        }
    }

    /// Returns how many entries the source has in the directory, and the sum of the lengths of its files and symlinks.
    pub fn listed(&self) -> (u64, u64) {
        let counts = |entry: &&Entry| matches!(entry.kind(), Kind::File | Kind::Symlink);
        let bytes = self.source.entries.iter().filter(counts).map(|entry| entry.len_bytes).sum();
        (self.source.len() as u64, bytes)
    }

    /// Returns the name of the entry that a step is about.
    pub fn name_of(&self, step: &Step) -> &[u8] {
        self.source.name(&self.source.entries[step.source as usize])
    }

    /// Returns the tickets of the subdirectories that have a plan, in order.
    pub fn below(&self) -> impl DoubleEndedIterator<Item = Ticket> + '_ {
        self.subdirs.iter().filter_map(|sub| sub.ticket)
    }

    /// Returns what the destination has in place of a subdirectory.
    pub fn there(&self, sub: &SubDir) -> DestState {
        match (sub.step.dest, sub.step.decision.in_the_way) {
            // A directory that is left as it is, is not entered.
            _ if sub.is_left() => DestState::Absent,
            (NONE, _) if self.dest_unseen => DestState::Present,
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
        let places = std::mem::take(&mut self.places);
        let places = places.into_iter().map(|place| place.map(|place| (place.base, place.path))).collect();
        let hits = self.hits.drain().map(|(at, hit)| (at, hit.mode, hit.tree)).collect();
        self.parked = Some(Box::new(Parked { places, dest: self.dest_dir.take().is_some(), hits }));
    }

    /// Opens what [`DirPlan::park`] closed. Reports a source directory that no longer exists.
    pub fn reopen_dirs(&mut self, walk: &DestWalk<'_>) {
        let Some(parked) = self.parked.take() else { return };
        for place in parked.places {
            let opened = place.map(|(base, path)| (base.root.open_dir(&path), base, path));
            self.places.push(match opened {
                Some((Ok(dir), base, path)) => Some(SourceDir { dir, base, path }),
                Some((Err(error), base, path)) => {
                    let full = base.root.full(path.as_bytes());
                    self.problems.push(Problem::failed(Voice::Sender, "opendir", &full, &error));
                    None
                }
                None => None,
            });
        }
        if let (true, Some(root)) = (parked.dest, walk.dest) {
            match errno::if_there(root.open_dir_to_search(&self.path)) {
                Ok(dir) => self.dest_dir = dir,
                Err(error) => {
                    let full = root.full(self.path.as_bytes());
                    self.problems.push(Problem::failed(Voice::Generator, "opendir", &full, &error));
                    self.leave_all();
                }
            }
        }
        let mut alternates = AltDirs::default();
        for (at, mode, tree) in parked.hits {
            if let Some(dir) = alternates.open(tree, &walk.alternates[tree], &self.path) {
                self.hits.insert(at, Hit { dir, mode, tree });
            }
        }
        self.problems.append(&mut alternates.problems);
    }

    /// Returns the message for a destination directory that must be listed for deletions and cannot be. `top`: the path
    /// of the destination.
    pub fn cannot_be_listed(&self, top: &[u8]) -> Problem {
        // rsync names the root `.` in this message.
        let dir: &[u8] = if self.path.is_root() { b"." } else { self.path.as_bytes() };
        Problem::failed(Voice::Generator, "opendir", &path::join(top, dir), &errno::denied())
    }

    /// Leaves every entry alone, because the destination directory cannot be examined. The caller has reported that.
    pub fn leave_all(&mut self) {
        self.steps.clear();
        self.extras.clear();
        self.hits.clear();
        for sub in &mut self.subdirs {
            sub.step.decision.action = Action::Refuse(Reason::Unknown);
        }
    }

    /// Copies what is needed for the subdirectories, without descriptors.
    pub fn for_subdirs(&self) -> DirPlan {
        DirPlan {
            path: self.path.clone(),
            source: self.source.clone(),
            dest: self.dest.clone(),
            places: self.places.iter().map(|place| place.as_ref().map(SourceDir::parked)).collect(),
            teller: self.teller.as_ref().map(|teller| SenderDir {
                hold: teller.hold.clone().filter(|_| !teller.lists_in_turn),
                ..teller.clone()
            }),
            subdirs: self.subdirs.clone(),
            dest_unseen: self.dest_unseen,
            renamed_from: self.renamed_from.clone(),
            ..DirPlan::default()
        }
    }

    /// Whether the directory has no entries other than directories that were pruned.
    pub fn is_bare(&self) -> bool {
        self.subdirs.is_empty() && self.source.entries.iter().all(Entry::is_dir)
    }
}

/// An open directory of a source.
#[derive(Debug, Clone)]
pub struct SourceDir {
    /// The directory.
    pub dir: Dir,
    /// The directory that the path starts from.
    pub base: Arc<Base>,
    /// Its path below `base`.
    pub path: RelPath,
}

impl SourceDir {
    /// Returns the place without its own descriptor, so that many can be stored.
    pub fn parked(&self) -> SourceDir {
        SourceDir { dir: self.base.root.dir().clone(), base: self.base.clone(), path: self.path.clone() }
    }

    /// Opens the directory of a parked place again.
    pub fn reopened(&self) -> io::Result<SourceDir> {
        Ok(SourceDir { dir: self.base.root.open_dir(&self.path)?, base: self.base.clone(), path: self.path.clone() })
    }

    /// Returns the absolute path of an entry, for messages.
    pub fn full(&self, name: &[u8]) -> Vec<u8> {
        self.base.root.full(&path::join(self.path.as_bytes(), name))
    }

    /// Returns the path of an entry as the sender sees it (`%f`).
    pub fn shown(&self, name: &[u8]) -> Vec<u8> {
        path::join(&self.base.shown, &path::join(self.path.as_bytes(), name))
    }
}

/// The source file of a content comparison.
#[derive(Clone, Copy)]
pub struct ComparedSource<'a> {
    /// Its entry, with the digest if a peer sent one.
    pub entry: &'a Entry,
    /// Its directory, if it is on this machine.
    pub place: Option<&'a SourceDir>,
    /// Its name there.
    pub name: &'a [u8],
}

/// Compares the content of a source file with that of a file in an open directory.
pub type Compare<'c> = dyn Fn(ComparedSource<'_>, (&Dir, &[u8])) -> io::Result<bool> + Sync + 'c;

/// A walk over two trees on this machine.
pub struct Walk<'a> {
    /// The source.
    pub source: SourceWalk<'a>,
    /// The destination.
    pub dest: DestWalk<'a>,
}

impl Walk<'_> {
    /// Lists and decides one directory. Returns the tasks of its subdirectories in order.
    pub fn plan(&self, task: Task) -> (DirPlan, Vec<Task>) {
        let (found, below) = self.source.list(task.source);
        let mut plan = self.dest.decide(found, &task.there, task.receiver_chain, None);
        let mut below = below.into_iter().peekable();
        let mut tasks = Vec::new();
        let mut is_first = plan.path.is_root() && plan.is_named;
        let mut subdirs = std::mem::take(&mut plan.subdirs);
        let chain = plan.receiver_chain.as_ref().expect("decided above");
        for sub in &mut subdirs {
            let Some((_, source)) = below.next_if(|(at, _)| *at == sub.step.source) else { continue };
            if sub.ticket.is_none() {
                continue;
            }
            let further = plan.path.is_root() && !std::mem::take(&mut is_first);
            let receiver_chain = if further { chain.for_further_source() } else { chain.clone() };
            tasks.push(Task { source, there: plan.there(sub), receiver_chain });
        }
        plan.subdirs = subdirs;
        (plan, tasks)
    }
}

/// Whether the rules include an entry. With `tells` (`--debug=FILTER`), adds a note about the rule that matched.
pub fn is_included(
    tells: bool,
    chain: &Chain,
    side: Side,
    path: &[u8],
    is_dir: bool,
    notes: &mut Vec<Vec<u8>>,
) -> bool {
    if tells && let Some(found) = chain.first_match(side, path, is_dir) {
        let words: &[u8] = match (side, found.include) {
            (Side::Sender, true) => b"[sender] showing ",
            (Side::Sender, false) => b"[sender] hiding ",
            (Side::Receiver, true) => b"[generator] risking ",
            (Side::Receiver, false) => b"[generator] protecting ",
        };
        let what: &[u8] = if is_dir { b"directory " } else { b"file " };
        notes.push([words, what, path, b" because of pattern ", &found.text].concat());
    }
    chain.verdict(side, path, is_dir) == Verdict::Include
}

/// Reports that the attributes of an entry could not be read. A corrupt one ends the run.
pub fn report_unreadable_attribute(
    problems: &mut Vec<Problem>,
    fatal: &mut Option<Error>,
    role: &'static str,
    incomplete: Incomplete,
    weight: Weight,
) {
    match incomplete {
        Incomplete::Failed(..) => problems.push(unreadable_attribute(role, incomplete, weight)),
        Incomplete::Fatal(line) => {
            fatal.get_or_insert_with(|| Error::new(Exit::FileIo, line).by(role));
        }
    }
}

/// Returns the problem of an entry whose attributes could not be read.
pub fn unreadable_attribute(role: &'static str, incomplete: Incomplete, weight: Weight) -> Problem {
    let line = match incomplete {
        Incomplete::Failed(what, error) => {
            let start = format!("rsync: [{role}] ").into_bytes();
            [&start, &what, &b": "[..], &crate::report::event::errno_words(&error)].concat()
        }
        Incomplete::Fatal(line) => line,
    };
    Problem::new(line, weight)
}

/// A directory whose merge files are read, and where to record what is wrong with them.
struct Entered<'a> {
    path: &'a RelPath,
    problems: &'a mut Vec<Problem>,
    fatal: &'a mut Option<Error>,
    /// Whether entries of the directory may be deleted.
    may_delete: &'a mut bool,
}

/// Reads the merge files of a directory on behalf of a role.
fn enter(chain: &Chain, dir: &Dir, role: &'static str, owners: LinkOwners, entered: Entered<'_>) -> Chain {
    match enter_dir(chain, dir, entered.path, role, owners) {
        Ok((chain, refusals)) => {
            entered.problems.extend(refusals);
            chain
        }
        Err(error) => {
            entered.fatal.get_or_insert(error);
            *entered.may_delete = false;
            chain.clone()
        }
    }
}

/// Returns the rules in force in a directory, given those of its parent, and a problem for each merge file that is
/// skipped because a symlink of an untrusted user leads to it.
pub fn enter_dir(
    chain: &Chain,
    dir: &Dir,
    path: &RelPath,
    role: &'static str,
    owners: LinkOwners,
) -> Result<(Chain, Vec<Problem>), Error> {
    let mut refusals = Vec::new();
    let mut text_of = |name: &[u8]| {
        match read::rules_file(dir, name, owners) {
            Err(error) if trusted_path::is_refused(&error) => {
                refusals.push(Problem::new(trusted_path::REFUSAL, Weight::Warning));
                Ok(None)
            }
            // As in rsync, a file that cannot be read counts as empty.
            Err(error) if errno::is_unreachable(&error) || errno::is_no_text(&error) => Ok(None),
            text => text,
        }
    };
    match chain.enter(path.as_bytes(), &mut text_of) {
        Ok(chain) => Ok((chain, refusals)),
        Err(error) => Err(Error::new(error.exit(), error.message()).by(role)),
    }
}

impl Look for Walk<'_> {
    type Task = Task;
    type Found = DirPlan;

    fn look(&self, task: Task) -> (DirPlan, Vec<Task>) {
        self.plan(task)
    }

    fn number(&self, plan: &mut DirPlan, tickets: &mut dyn Iterator<Item = Ticket>) {
        for sub in plan.subdirs.iter_mut().filter(|sub| sub.ticket.is_some()) {
            sub.ticket = tickets.next();
        }
    }

    fn below(&self, plan: &DirPlan) -> Vec<Ticket> {
        plan.below().collect()
    }

    fn park(&self, plan: &mut DirPlan) {
        plan.park();
    }

    fn size(&self, plan: &DirPlan) -> (usize, (u64, u64)) {
        (plan.source.len() + plan.dest.len(), (plan.tally.listed.total(), plan.tally.total_bytes))
    }
}
