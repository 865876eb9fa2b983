//! Walks the trees: one directory of the source and its namesake at the destination, listed, joined
//! and decided in one piece of work, many directories at a time, a bounded way ahead of the generator.
//!
//! The generator takes the plans in canonical order with [`Scanner::take`]; a plan that nobody has
//! begun yet it makes itself, so that waiting is never for something that is not under way.

pub mod alternate;
pub mod dest;
pub mod scanner;
pub mod source;

use self::alternate::{AltDirs, Hit};
use self::dest::DestWalk;
pub use self::scanner::{Look, Scanner, Ticket};
use self::source::SourceWalk;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{Chain, Side, Verdict};
use crate::flist::{DirList, Entry, Kind};
use crate::fs::read::{self, Incomplete};
use crate::fs::root::{Dir, Root};
use crate::fs::{errno, operator};
use crate::options::LinkOwners;
use crate::path::{self, RelPath};
use crate::plan::{Action, Decision, InTheWay, Reason};
use crate::proto::{DirId, ToldSub};
use crate::report::event::{Problem, Voice, Weight};
use crate::report::tally::Tally;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// The top of one source argument: where its names begin.
#[derive(Debug)]
pub struct Base {
    /// The directory that the argument's names are relative to.
    pub root: Root,
    /// What `%f` puts before a name: the argument as given, without its own last element.
    pub shown: Vec<u8>,
    /// The sender's rules for it, with no directory entered.
    pub chain: Chain,
}

/// A directory of a source, and which of its entries take part.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Where its path begins.
    pub base: Arc<Base>,
    /// Below `base`.
    pub path: RelPath,
    /// What of it takes part.
    pub listing: Listing,
    /// The rules in force in it.
    pub chain: Chain,
    /// The file system on which the walk stays (`-x`): that of the directory where it began, once that is open.
    pub dev: Option<u64>,
}

/// Which entries of a directory take part.
#[derive(Debug, Clone)]
pub enum Listing {
    /// All that the rules let through; `below`: directories in it are walked too.
    All {
        /// Whether its directories are walked, or named only (`-d`).
        below: bool,
    },
    /// These, which arguments named: sorted by their names at the source, each there once.
    Named(Arc<Vec<Named>>),
}

/// An entry that an argument named.
#[derive(Debug, Clone)]
pub struct Named {
    /// One path element, in the source.
    pub name: Vec<u8>,
    /// The name it gets, if another one.
    pub renamed: Option<Vec<u8>>,
    /// What of its content takes part, if it is a directory.
    pub content: Content,
    /// It is a leading element under `-R`.
    pub implied: bool,
    /// A symlink stands for what it leads to: an argument goes on behind it.
    pub followed: bool,
    /// How often it counts in the list: as often as rsync's has it. All places where it is named together make at least 1.
    pub times: u64,
}

/// What of a named directory's content takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing of its own.
    None,
    /// Its entries, directories among them without theirs.
    Shallow,
    /// Everything below.
    Full,
}

/// Directories that arguments name below this one.
#[derive(Debug, Default)]
pub struct Node {
    /// By name.
    pub children: BTreeMap<Vec<u8>, Arc<Node>>,
    /// What each adds here.
    pub origins: Vec<(Arc<Base>, RelPath, Listing)>,
}

/// What the destination has under a directory's name.
#[derive(Debug, Clone)]
pub enum There {
    /// Nothing that can be listed.
    Absent,
    /// A directory.
    Present,
}

/// One directory of the source to be listed.
#[derive(Debug)]
pub struct SourceTask {
    /// Its path in the transfer and at the destination.
    pub path: RelPath,
    /// Where its entries come from.
    pub origins: Vec<Origin>,
    /// What arguments name below it.
    pub node: Option<Arc<Node>>,
}

/// One directory to be listed and decided.
#[derive(Debug)]
pub struct Task {
    /// What is listed.
    pub source: SourceTask,
    /// The destination's namesake.
    pub there: There,
    /// The receiver's rules in force in its parent.
    pub receiver_chain: Chain,
}

/// No entry on that side.
pub const NONE: u32 = u32::MAX;

/// What shall be done about one entry that is no directory.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Index in [`DirPlan::source`].
    pub source: u32,
    /// Index in [`DirPlan::dest`], or [`NONE`].
    pub dest: u32,
    /// What shall be done.
    pub decision: Decision,
}

/// A directory in this one.
#[derive(Debug, Clone, Copy)]
pub struct SubDir {
    /// The entry and what shall be done about it.
    pub step: Step,
    /// Its own plan; `None`: its content takes no part.
    pub ticket: Option<Ticket>,
    /// It was only a leading element under `-R --no-implied-dirs`: made if missing, not touched if not.
    pub implied: bool,
}

impl SubDir {
    /// Whether it is left as it is, with all that would be in it.
    pub fn is_left(&self) -> bool {
        matches!(self.step.decision.action, Action::Refuse(_))
    }
}

/// What was found in a directory of the source besides what is to be done. It counts, and is told, also where nobody goes
/// into the directory at the destination.
#[derive(Debug, Default)]
pub struct Findings {
    /// See [`Listed::problems`].
    pub problems: Vec<Problem>,
    /// See [`Listed::notes`].
    pub notes: Vec<Vec<u8>>,
    /// See [`DirPlan::tally`].
    pub tally: Tally,
    /// See [`Listed::fatal`].
    pub fatal: Option<Error>,
}

impl Findings {
    /// Takes them out of a plan.
    pub fn of(plan: &mut DirPlan) -> Findings {
        Findings {
            problems: std::mem::take(&mut plan.problems),
            notes: std::mem::take(&mut plan.notes),
            tally: std::mem::take(&mut plan.tally),
            fatal: plan.fatal.take(),
        }
    }
}

/// What the source has in one directory.
#[derive(Debug, Default)]
pub struct Listed {
    /// Its path in the transfer.
    pub path: RelPath,
    /// Its entries, sorted.
    pub source: DirList,
    /// For each directory among them, in order.
    pub subs: Vec<ToldSub>,
    /// Where the entries of each origin lie; an origin that could not be opened is `None`. Empty if a peer told it.
    pub places: Vec<Option<Place>>,
    /// The peer's number for it, if a peer told it.
    pub teller: Option<Teller>,
    /// It was listed completely, so that extra entries of the destination may go.
    pub may_delete: bool,
    /// Only what arguments named is listed.
    pub is_named: bool,
    /// Trouble met on the way, in order.
    pub problems: Vec<Problem>,
    /// Rules could not be read: the run ends here.
    pub fatal: Option<Error>,
    /// Lines for stdout that belong to the listing.
    pub notes: Vec<Vec<u8>>,
    /// Entries, counted.
    pub tally: Tally,
    /// The name at the source of the one entry, if the destination calls it otherwise.
    pub renamed_from: Option<Vec<u8>>,
}

impl Listed {
    /// Gives the one entry that was named another name.
    pub fn rename_only(&mut self, new: &[u8]) {
        let Some(entry) = self.source.entries.pop() else { return };
        self.renamed_from = Some(self.source.name(&entry).to_vec());
        self.source = DirList::default();
        self.source.push_entry(new, entry);
    }
}

/// A peer's directory.
#[derive(Debug)]
pub struct Teller {
    /// Its number.
    pub id: DirId,
    /// The data of its files comes unasked.
    pub with_data: bool,
    /// For each origin its directory as the sender sees it (`%f`); empty if nobody asked.
    pub shown: Vec<Vec<u8>>,
    /// Says that nothing more is needed of it once everybody let go.
    pub hold: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

/// What was found and decided in one directory.
#[derive(Debug, Default)]
pub struct DirPlan {
    /// Its path in the transfer.
    pub path: RelPath,
    /// The source's entries, sorted.
    pub source: DirList,
    /// The destination's entries, sorted; those without a namesake at the source have no more than a name.
    pub dest: DirList,
    /// See [`Listed::subs`].
    pub subs: Vec<ToldSub>,
    /// See [`Listed::places`].
    pub places: Vec<Option<Place>>,
    /// See [`Listed::teller`].
    pub teller: Option<Teller>,
    /// See [`Listed::is_named`].
    pub is_named: bool,
    /// The destination's directory, if there was one.
    pub dest_dir: Option<Dir>,
    /// Entries that are no directories and need something, or must be told of; in order.
    pub steps: Vec<Step>,
    /// Directories, in order.
    pub subdirs: Vec<SubDir>,
    /// Indices in `dest` of what only the destination has and no rule protects; in order.
    pub extras: Vec<u32>,
    /// The destination's directory could not be seen; the generator opens it up or tells of it.
    pub dest_unseen: bool,
    /// The destination's directory is a symlink that leads outside (`-K`).
    pub is_outside: bool,
    /// Indices in `source` of entries of which nobody may say whether the destination has them.
    pub hidden: Vec<u32>,
    /// Names of destination entries that could not be examined. This was reported, and they are left alone.
    pub unknown: HashSet<Vec<u8>>,
    /// Indices in `source` of directories that `-m` left out.
    pub pruned: Vec<u32>,
    /// The content was listed completely, so that extra entries may go.
    pub may_delete: bool,
    /// The receiver's rules in force here.
    pub receiver_chain: Option<Chain>,
    /// Trouble met on the way, in order.
    pub problems: Vec<Problem>,
    /// Rules could not be read: the run ends here.
    pub fatal: Option<Error>,
    /// Lines for stdout that belong to the listing.
    pub notes: Vec<Vec<u8>>,
    /// Entries of the source, counted, unless its peer counts them.
    pub tally: Tally,
    /// What alternate trees have for steps, by their index in `source`.
    pub hits: HashMap<u32, Hit>,
    /// The name at the source of the one entry, if the destination calls it otherwise.
    pub renamed_from: Option<Vec<u8>>,
    /// What was open, if it was let go.
    parked: Option<Box<Parked>>,
}

/// What of a plan stands for the descriptors that it let go.
#[derive(Debug)]
struct Parked {
    places: Vec<Option<(Arc<Base>, RelPath)>>,
    dest: bool,
    hits: Vec<(u32, u32, usize)>,
}

impl DirPlan {
    /// A plan of which only the source is known.
    pub fn of(found: Listed) -> DirPlan {
        let Listed {
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

    /// Where an entry of the source lies, if that is on this machine.
    pub fn place_of(&self, entry: &Entry) -> Option<&Place> {
        self.places.get(entry.origin as usize)?.as_ref()
    }

    /// The path of an entry as the sender sees it (`%f`).
    /// `None`: nobody asked, or the receiver tells, who does not know.
    pub fn shown(&self, entry: &Entry, source_name: &[u8]) -> Option<Vec<u8>> {
        match (self.place_of(entry), &self.teller) {
            (Some(place), _) => Some(place.shown(source_name)),
            (None, Some(teller)) => Some(path::join(teller.shown.get(entry.origin as usize)?, source_name)),
            (None, None) => None,
        }
    }

    /// How many entries the source has in it, and the lengths of its files and symlinks.
    pub fn listed(&self) -> (u64, u64) {
        let counts = |entry: &&Entry| matches!(entry.kind(), Kind::File | Kind::Symlink);
        let bytes = self.source.entries.iter().filter(counts).map(|entry| entry.len_bytes).sum();
        (self.source.len() as u64, bytes)
    }

    /// The name of the entry that a step is about.
    pub fn name_of(&self, step: &Step) -> &[u8] {
        self.source.name(&self.source.entries[step.source as usize])
    }

    /// The tickets of the directories in it that have a plan, in order.
    pub fn below(&self) -> impl DoubleEndedIterator<Item = Ticket> + '_ {
        self.subdirs.iter().filter_map(|sub| sub.ticket)
    }

    /// What the destination has where a directory of this plan is.
    pub fn there(&self, sub: &SubDir) -> There {
        match (sub.step.dest, sub.step.decision.in_the_way) {
            // Nobody goes into what is left as it is.
            _ if sub.is_left() => There::Absent,
            (NONE, _) if self.dest_unseen => There::Present,
            (NONE, _) | (_, InTheWay::Other | InTheWay::Dir) => There::Absent,
            _ => There::Present,
        }
    }

    /// Lets go of all descriptors: when the whole list is held there may be more directories than a process
    /// may have open. [`DirPlan::take_up`] before anything is done.
    pub fn park(&mut self) {
        if self.parked.is_some() {
            return;
        }
        let places = std::mem::take(&mut self.places);
        let places = places.into_iter().map(|place| place.map(|place| (place.base, place.path))).collect();
        let hits = self.hits.drain().map(|(at, hit)| (at, hit.mode, hit.tree)).collect();
        self.parked = Some(Box::new(Parked { places, dest: self.dest_dir.take().is_some(), hits }));
    }

    /// Opens what [`DirPlan::park`] closed; a source that is gone by now is told.
    pub fn take_up(&mut self, walk: &DestWalk<'_>) {
        let Some(parked) = self.parked.take() else { return };
        for place in parked.places {
            let opened = place.map(|(base, path)| (base.root.open_dir(&path), base, path));
            self.places.push(match opened {
                Some((Ok(dir), base, path)) => Some(Place { dir, base, path }),
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

    /// Leaves every entry alone, because the destination directory cannot be examined. That was reported.
    pub fn leave_all(&mut self) {
        self.steps.clear();
        self.extras.clear();
        self.hits.clear();
        for sub in &mut self.subdirs {
            sub.step.decision.action = Action::Refuse(Reason::Unknown);
        }
    }

    /// Whether nothing is in it: no entry that is no directory, and no directory that stayed.
    pub fn is_bare(&self) -> bool {
        self.subdirs.is_empty() && self.source.entries.iter().all(Entry::is_dir)
    }
}

/// An open directory of a source.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directory.
    pub dir: Dir,
    /// Where it lies.
    pub base: Arc<Base>,
    /// Its path below `base`.
    pub path: RelPath,
}

impl Place {
    /// The same place without its descriptor, for what must wait in numbers.
    pub fn parked(&self) -> Place {
        Place { dir: self.base.root.dir().clone(), base: self.base.clone(), path: self.path.clone() }
    }

    /// A parked place with its directory open again.
    pub fn reopened(&self) -> io::Result<Place> {
        Ok(Place { dir: self.base.root.open_dir(&self.path)?, base: self.base.clone(), path: self.path.clone() })
    }

    /// The absolute path of an entry, for messages.
    pub fn full(&self, name: &[u8]) -> Vec<u8> {
        self.base.root.full(&path::join(self.path.as_bytes(), name))
    }

    /// The path of an entry as the sender sees it (`%f`).
    pub fn shown(&self, name: &[u8]) -> Vec<u8> {
        path::join(&self.base.shown, &path::join(self.path.as_bytes(), name))
    }
}

/// The source's side of a comparison.
#[derive(Clone, Copy)]
pub struct Original<'a> {
    /// What is known of it, with its digest if a peer told one.
    pub entry: &'a Entry,
    /// Where it lies, if on this machine.
    pub place: Option<&'a Place>,
    /// Its name there.
    pub name: &'a [u8],
}

/// Compares a file of the source with one in an open directory.
pub type Compare<'c> = dyn Fn(Original<'_>, (&Dir, &[u8])) -> io::Result<bool> + Sync + 'c;

/// Looks at both trees of this machine.
pub struct Walk<'a> {
    /// The source.
    pub source: SourceWalk<'a>,
    /// The destination.
    pub dest: DestWalk<'a>,
}

impl Walk<'_> {
    /// Lists and decides one directory. The tasks of its directories are returned in order.
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

/// Whether the rules let an entry through; `tells` (`--debug=FILTER`): a note says which one did or did not.
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

/// Notes that the attributes of an entry could not be read by a role.
fn told_incomplete(
    problems: &mut Vec<Problem>,
    fatal: &mut Option<Error>,
    role: &'static str,
    incomplete: Incomplete,
    weight: Weight,
) {
    match incomplete {
        Incomplete::Failed(what, error) => {
            let mut line = format!("rsync: [{role}] ").into_bytes();
            line.extend_from_slice(&what);
            line.extend_from_slice(b": ");
            line.extend_from_slice(&crate::report::event::errno_words(&error));
            problems.push(Problem::said(line, weight));
        }
        Incomplete::Fatal(line) => {
            fatal.get_or_insert_with(|| Error::new(Exit::FileIo, line).by(role));
        }
    }
}

/// Reads a directory's own merge files, on behalf of a role. What cannot be read as a file is none. The directory is
/// given by its path, with where to note what is told, that the run ends, and that nothing of it may be deleted.
fn enter(
    chain: &Chain,
    dir: &Dir,
    (role, owners): (&'static str, LinkOwners),
    (path, problems, fatal, may_delete): (&RelPath, &mut Vec<Problem>, &mut Option<Error>, &mut bool),
) -> Chain {
    match enter_dir(chain, dir, path, (role, owners)) {
        Ok((chain, refusals)) => {
            problems.extend(refusals);
            chain
        }
        Err(error) => {
            fatal.get_or_insert(error);
            *may_delete = false;
            chain.clone()
        }
    }
}

/// The rules in force in a directory, given those of its parent; and a line for each file of rules that is not read
/// because a symlink of an untrusted user leads to it.
pub fn enter_dir(
    chain: &Chain,
    dir: &Dir,
    path: &RelPath,
    (role, owners): (&'static str, LinkOwners),
) -> Result<(Chain, Vec<Problem>), Error> {
    let mut refusals = Vec::new();
    let mut text_of = |name: &[u8]| {
        match read::rules_file(dir, name, owners) {
            Err(error) if operator::is_refused(&error) => {
                refusals.push(Problem::said(operator::REFUSAL, Weight::Warning));
                Ok(None)
            }
            // As rsync, which treats a file that it cannot read as empty.
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
