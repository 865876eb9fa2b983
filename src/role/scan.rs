//! Walks the trees: one directory of the source and its namesake at the destination, listed, joined
//! and decided in one piece of work, many directories at a time, a bounded way ahead of the generator.
//!
//! The generator takes the plans in canonical order with [`Scanner::take`]; a plan that nobody has
//! begun yet it makes itself, so that waiting is never for something that is not under way.

pub mod alternate;

use self::alternate::{AltDirs, Alternate, Hit};
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{Chain, Side, Verdict};
use crate::flist::entry::Stat;
use crate::flist::join::{Join, Pair};
use crate::flist::{DirList, Entry, Kind};
use crate::fs::errno;
use crate::fs::read::{self, Incomplete, Wanted};
use crate::fs::root::{Dir, Root};
use crate::fs::sys;
use crate::fs::write::{is_stale, is_temp_name};
use crate::path::{self, RelPath};
use crate::plan::{self, Action, Decision, InTheWay, Policy, Reason};
use crate::report::event::{Problem, Voice, Weight};
use crate::report::tally::Tally;
use crate::work::parallel;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The top of one source argument: where its names begin.
#[derive(Debug)]
pub struct Base {
    /// The directory that the argument's names are relative to.
    pub root: Root,
    /// What `%f` puts before a name: the argument as given, without its own last element.
    pub shown: Vec<u8>,
    /// Its file system, for `-x`.
    pub dev: u64,
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
}

/// Which entries of a directory take part.
#[derive(Debug, Clone)]
pub enum Listing {
    /// All that the rules let through; `below`: directories in it are walked too.
    All {
        /// Whether its directories are walked, or named only (`-d`).
        below: bool,
    },
    /// These, which an argument named.
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

/// One directory to be listed and decided.
#[derive(Debug)]
pub struct Task {
    /// Its path in the transfer and at the destination.
    pub path: RelPath,
    /// Where its entries come from.
    pub origins: Vec<Origin>,
    /// What arguments name below it.
    pub node: Option<Arc<Node>>,
    /// The destination's namesake.
    pub there: There,
    /// The receiver's rules in force in its parent.
    pub receiver_chain: Chain,
}

/// The name under which a task's plan is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// No entry on that side.
pub const NONE: u32 = u32::MAX;

/// What a look at a name found, with a symlink's value.
type Looked = (Stat, Option<Vec<u8>>);

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

/// What was found and decided in one directory.
#[derive(Debug, Default)]
pub struct DirPlan {
    /// Its path in the transfer.
    pub path: RelPath,
    /// The source's entries, sorted.
    pub source: DirList,
    /// The destination's entries, sorted; those without a namesake at the source have no more than a name.
    pub dest: DirList,
    /// Where the entries of each origin lie; an origin that could not be opened is `None`.
    pub places: Vec<Option<Place>>,
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
    /// Entries of the source, counted.
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
    /// Lets go of all descriptors: when the whole list is held there may be more directories than a process
    /// may have open. [`DirPlan::take_up`] before anything is done.
    pub fn park(&mut self) {
        let places = std::mem::take(&mut self.places);
        let places = places.into_iter().map(|place| place.map(|place| (place.base, place.path))).collect();
        let hits = self.hits.drain().map(|(at, hit)| (at, hit.mode, hit.tree)).collect();
        self.parked = Some(Box::new(Parked { places, dest: self.dest_dir.take().is_some(), hits }));
    }

    /// Opens what [`DirPlan::park`] closed; a source that is gone by now is told.
    pub fn take_up(&mut self, walk: &Walk<'_>) {
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
            self.dest_dir = root.open_dir(&self.path).ok();
        }
        let mut alternates = AltDirs::default();
        for (at, mode, tree) in parked.hits {
            if let Some(dir) = alternates.open(tree, &walk.alternates[tree].root, &self.path) {
                self.hits.insert(at, Hit { dir, mode, tree });
            }
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

/// Compares the contents of two files, each given by an open directory and a name.
pub type Compare<'c> = dyn Fn((&Dir, &[u8]), (&Dir, &[u8])) -> io::Result<bool> + Sync + 'c;

/// What a walk must know besides the directory at hand. Shared by all workers.
pub struct Walk<'a> {
    /// What decides.
    pub policy: Policy,
    /// What is read of each entry.
    pub wanted: Wanted<'a>,
    /// `-L`
    pub copy_links: bool,
    /// `--copy-unsafe-links`
    pub copy_unsafe_links: bool,
    /// Such links are told.
    pub tells_unsafe: bool,
    /// Which rule spoke is told.
    pub tells_rules: bool,
    /// `--munge-links`, of which undoing is the sender's part.
    pub unmunge_links: bool,
    /// `-k`
    pub copy_dirlinks: bool,
    /// `--open-noatime`
    pub open_noatime: bool,
    /// `-x`, counted.
    pub one_file_system: u8,
    /// The destination's top; `None` when it does not exist (dry run).
    pub dest: Option<&'a Root>,
    /// Extra entries may be asked for.
    pub delete: bool,
    /// How many threads may look at one large directory.
    pub threads: usize,
    /// The receiver's rules, with no directory entered.
    pub receiver_chain: &'a Chain,
    /// Steps are made for unchanged entries too.
    pub unchanged: bool,
    /// The umask the process had.
    pub is_dry: bool,
    /// Alternate destinations.
    pub alternates: &'a [Alternate],
    /// See there.
    pub alt_kind: Option<crate::options::AltKind>,
    /// Directories may stay without content at the destination: `-K`.
    pub keep_dirlinks: bool,
    /// Compares contents under `-c`: source directory and name, destination's.
    pub compare: &'a Compare<'a>,
}

impl Walk<'_> {
    /// Lists and decides one directory. The tasks of its directories are returned in order.
    pub fn plan(&self, task: Task) -> (DirPlan, Vec<Task>) {
        let mut plan = DirPlan { path: task.path.clone(), ..DirPlan::default() };
        let mut origins = task.origins;
        plan.may_delete = origins.iter().any(|o| matches!(o.listing, Listing::All { .. }));
        // The directory above a named argument is no part of the transfer, nor are its rules.
        let is_entered = plan.may_delete || !task.path.is_root();
        for (index, origin) in origins.iter_mut().enumerate() {
            self.list_origin(&mut plan, index as u16, origin);
        }
        plan.source.sort();
        if origins.len() > 1 {
            drop_duplicates(&mut plan.source);
        }
        for entry in &plan.source.entries {
            plan.tally.list(entry.kind(), entry.len_bytes, plan.source.name(entry).len());
        }
        let mut chain = task.receiver_chain;
        if let (There::Present, Some(root)) = (&task.there, self.dest) {
            match root.open_dir_to_search(&task.path) {
                Ok(dir) => self.see_dest(&mut plan, dir, root, &mut chain, is_entered),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => plan.dest_unseen = true,
                Err(error) => self.cannot_reach(&mut plan, root, &error),
            }
        }
        self.decide_all(&mut plan, &chain);
        if plan.is_outside {
            plan.steps.clear();
        }
        let tasks = self.tasks_below(&mut plan, &origins, task.node.as_deref(), &chain);
        plan.receiver_chain = Some(chain);
        (plan, tasks)
    }

    /// The destination's directory cannot be opened. Under `-K` it may be a symlink that leads outside; then
    /// nothing in it is looked at or touched.
    fn cannot_reach(&self, plan: &mut DirPlan, root: &Root, error: &io::Error) {
        if !(self.keep_dirlinks && errno::leads_outside(error)) {
            let full = root.full(plan.path.as_bytes());
            plan.problems.push(Problem::failed(Voice::Generator, "opendir", &full, error));
            return;
        }
        plan.is_outside = true;
        for entry in plan.source.entries.iter().filter(|entry| !entry.is_dir()) {
            let full = root.full(plan.path.join(plan.source.name(entry)).as_bytes());
            plan.problems.push(cannot_stat(&full, error));
        }
    }

    fn see_dest(&self, plan: &mut DirPlan, dir: Dir, root: &Root, chain: &mut Chain, is_entered: bool) {
        if self.delete && is_entered && chain.has_per_dir() {
            *chain = enter(chain, &dir, "generator", plan);
        }
        self.list_dest(plan, &dir, root);
        plan.dest_dir = Some(dir);
    }

    /// Decides anew where the destination's directory could not be seen when the plan was made. `dir`: as
    /// it can be reached now; what still cannot be seen is told, and left alone.
    pub fn look_again(&self, plan: &mut DirPlan, dir: Option<&Dir>) {
        let Some(root) = self.dest else { return };
        let tickets: HashMap<u32, SubDir> = plan.subdirs.drain(..).map(|sub| (sub.step.source, sub)).collect();
        plan.steps.clear();
        plan.extras.clear();
        plan.hits.clear();
        plan.dest_unseen = false;
        plan.hidden.clear();
        let mut chain = plan.receiver_chain.clone().expect("a plan that was made has its chain");
        if let Some(dir) = dir {
            self.see_dest(plan, dir.clone(), root, &mut chain, true);
        }
        self.decide_all(plan, &chain);
        for sub in &mut plan.subdirs {
            if let Some(known) = tickets.get(&sub.step.source) {
                (sub.ticket, sub.implied) = (known.ticket, known.implied);
            }
        }
        let denied = errno::denied();
        let full = |name: &[u8]| root.full(plan.path.join(name).as_bytes());
        if plan.dest_unseen && self.delete && plan.may_delete {
            plan.problems.push(Problem::failed(Voice::Generator, "opendir", &root.full(plan.path.as_bytes()), &denied));
        }
        let hidden = |step: &Step| dir.is_none() || plan.hidden.contains(&step.source);
        for step in plan.steps.iter().filter(|step| hidden(step)) {
            let name = plan.source.name(&plan.source.entries[step.source as usize]);
            plan.problems.push(cannot_stat(&full(name), &denied));
        }
        let hidden = std::mem::take(&mut plan.hidden);
        plan.steps.retain(|step| dir.is_some() && !hidden.contains(&step.source));
        plan.receiver_chain = Some(chain);
    }

    fn list_origin(&self, plan: &mut DirPlan, index: u16, origin: &mut Origin) {
        let dir = match origin.base.root.open_dir(&origin.path) {
            Ok(dir) => dir,
            Err(error) => {
                let full = origin.base.root.full(origin.path.as_bytes());
                plan.problems.push(match error.kind() {
                    io::ErrorKind::NotFound => vanished(&full),
                    _ => Problem::failed(Voice::Sender, "opendir", &full, &error).weighing(Weight::SourceError),
                });
                plan.places.push(None);
                // What vanished says nothing of its content; what cannot be read counts as empty, and whether
                // anything is deleted after such an error is settled for the whole run.
                plan.may_delete &= error.kind() != io::ErrorKind::NotFound;
                return;
            }
        };
        if self.open_noatime {
            // Where it is not allowed, the directory is read all the same.
            let _ = sys::spare_atime(dir.fd());
        }
        let place = Place { dir, base: origin.base.clone(), path: origin.path.clone() };
        let is_entered = matches!(origin.listing, Listing::All { .. }) || !plan.path.is_root();
        if is_entered && origin.chain.has_per_dir() {
            origin.chain = enter(&origin.chain, &place.dir, "sender", plan);
        }
        match &origin.listing {
            Listing::All { .. } => self.list_all(plan, index, &place, &origin.chain),
            Listing::Named(names) => {
                let names = names.clone();
                for named in names.iter() {
                    let name = named.renamed.as_deref().unwrap_or(&named.name);
                    if named.renamed.is_some() {
                        plan.renamed_from = Some(named.name.clone());
                    }
                    let looked = self.look(&place, &named.name, &plan.path, named.implied);
                    self.add(plan, index, &place, (&named.name, name), looked, true);
                }
            }
        }
        plan.places.push(Some(place));
    }

    fn list_all(&self, plan: &mut DirPlan, index: u16, place: &Place, chain: &Chain) {
        let mut names: Vec<u8> = Vec::new();
        let mut found: Vec<(u32, u16, Option<bool>)> = Vec::new();
        let listed = sys::list(place.dir.fd(), |entry| {
            found.push((names.len() as u32, entry.name.len() as u16, entry.is_dir));
            names.extend_from_slice(entry.name);
        });
        if let Err(error) = listed {
            let full = place.full(b"");
            let problem = Problem::failed(Voice::Sender, "readdir", &full, &error);
            plan.problems.push(problem.weighing(Weight::SourceError));
        }
        let mut full = plan.path.as_bytes().to_vec();
        if !full.is_empty() {
            full.push(b'/');
        }
        let prefix = full.len();
        let name_of = |&(at, len, _): &(u32, u16, Option<bool>)| &names[at as usize..][..len as usize];
        // A symlink may stand for a directory, so its own type says nothing yet.
        let follows = self.copy_links || self.copy_dirlinks || self.copy_unsafe_links;
        let sure = |&(_, _, is_dir): &(u32, u16, Option<bool>)| is_dir.filter(|is_dir| *is_dir || !follows);
        let mut takes_part = |name: &[u8], is_dir: bool, notes: &mut Vec<Vec<u8>>| {
            full.truncate(prefix);
            full.extend_from_slice(name);
            self.is_included(chain, Side::Sender, &full, is_dir, notes)
        };
        if !chain.is_empty() {
            let notes = &mut plan.notes;
            found.retain(|listed| sure(listed).is_none_or(|is_dir| takes_part(name_of(listed), is_dir, notes)));
        }
        plan.source.reserve(found.len(), names.len());
        let dir = plan.path.clone();
        for block in found.chunks(parallel::BLOCK) {
            let looks = parallel::map(block, self.threads, |listed| self.look(place, name_of(listed), &dir, false));
            for (listed, looked) in block.iter().zip(looks) {
                let name = name_of(listed);
                let problems = plan.problems.len();
                let added = self.add(plan, index, place, (name, name), looked, false);
                if plan.problems.len() > problems
                    && let Err(error) = sys::stat(place.dir.fd(), b".", false)
                {
                    // It may be listed and not entered: one line stands for all its names.
                    plan.problems.truncate(problems);
                    let problem = Problem::failed(Voice::Sender, "opendir", &place.full(b""), &error);
                    plan.problems.push(problem.weighing(Weight::SourceError));
                    return;
                }
                if added && !chain.is_empty() && sure(listed).is_none() {
                    let is_dir = plan.source.entries.last().is_some_and(Entry::is_dir);
                    if !takes_part(name, is_dir, &mut plan.notes) {
                        plan.source.entries.pop();
                    }
                }
            }
        }
    }

    /// Whether the rules let an entry through; under `--debug=FILTER` a note says which one did or did not.
    fn is_included(&self, chain: &Chain, side: Side, path: &[u8], is_dir: bool, notes: &mut Vec<Vec<u8>>) -> bool {
        if self.tells_rules
            && let Some(found) = chain.first_match(side, path, is_dir)
        {
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

    /// Adds what a look at a name found, under the name that the transfer has for it; whether it is there.
    fn add(
        &self,
        plan: &mut DirPlan,
        index: u16,
        place: &Place,
        (name, called): (&[u8], &[u8]),
        looked: io::Result<Looked>,
        named: bool,
    ) -> bool {
        if self.tells_unsafe
            && let Ok(target) = sys::read_link(place.dir.fd(), name)
            && plan::safelink::is_unsafe(&target, plan.path.join(name).as_bytes())
        {
            let link = plan.path.join(name);
            let note = [b"copying unsafe symlink \"", link.as_bytes(), b"\" -> \"", &target, b"\""].concat();
            plan.notes.push(note);
        }
        let (stat, target) = match looked {
            Ok(found) => found,
            Err(error) => {
                plan.problems.push(self.look_problem(place, name, named, &error));
                return false;
            }
        };
        let is_mount_point = self.one_file_system > 0 && stat.mode & 0o170000 == 0o040000 && stat.dev != place.base.dev;
        if is_mount_point && self.one_file_system > 1 {
            return false;
        }
        let entry = plan.source.push(called, &stat);
        entry.origin = index;
        if is_mount_point {
            entry.extra_mut().is_mount_point = true;
        }
        if let Some(target) = target {
            entry.len_bytes = target.len() as u64;
            entry.extra_mut().target = Some(target.into());
        }
        let path = plan.path.join(called);
        let completed = self
            .wanted
            .complete_source(entry, &stat, (&place.dir, name), &|| place.full(name), &|| path.as_bytes().to_vec());
        if let Err(incomplete) = completed {
            incomplete_entry(plan, "sender", incomplete, Weight::SourceError);
            plan.source.entries.pop();
            return false;
        }
        true
    }

    /// Looks at one name, through symlinks where the options say so; with a symlink's value.
    fn look(&self, place: &Place, name: &[u8], dir: &RelPath, implied: bool) -> io::Result<Looked> {
        let stat = sys::stat(place.dir.fd(), name, self.copy_links || implied)?;
        if Kind::of_mode(stat.mode) != Some(Kind::Symlink) {
            return Ok((stat, None));
        }
        let mut target = sys::read_link(place.dir.fd(), name)?;
        if self.copy_unsafe_links && plan::safelink::is_unsafe(&target, dir.join(name).as_bytes()) {
            return Ok((sys::stat(place.dir.fd(), name, true)?, None));
        }
        if self.copy_dirlinks
            && let Ok(there) = sys::stat(place.dir.fd(), name, true)
            && Kind::of_mode(there.mode) == Some(Kind::Dir)
        {
            return Ok((there, None));
        }
        if self.unmunge_links {
            target.drain(..target.len() - plan::safelink::unmunge(&target).len());
        }
        Ok((stat, self.policy.preserve.links.then_some(target)))
    }

    fn look_problem(&self, place: &Place, name: &[u8], named: bool, error: &io::Error) -> Problem {
        let full = place.full(name);
        if error.kind() == io::ErrorKind::NotFound {
            if sys::stat(place.dir.fd(), name, false).is_ok() {
                let line = [b"symlink has no referent: \"", full.as_slice(), b"\""].concat();
                return Problem::said(line, Weight::SourceError);
            }
            if !named {
                return vanished(&full);
            }
            // A missing argument is an error of exit 23, and yet deletions go on.
            return Problem::failed(Voice::Sender, "link_stat", &full, error);
        }
        if named {
            return Problem::failed(Voice::Sender, "link_stat", &full, error).weighing(Weight::SourceError);
        }
        let mut line = b"rsync: [sender] readlink_stat(\"".to_vec();
        line.extend_from_slice(&full);
        line.extend_from_slice(b"\") failed: ");
        line.extend_from_slice(&crate::report::event::errno_words(error));
        Problem::said(line, Weight::SourceError)
    }

    /// Lists the destination's directory; looks closer only at what has a namesake at the source. Where only
    /// few names of many matter, they alone are kept, and what a crashed run left.
    fn list_dest(&self, plan: &mut DirPlan, dir: &Dir, root: &Root) {
        let enough = if self.delete { usize::MAX } else { 4 * plan.source.len() + 256 };
        let few = !self.delete && plan.source.len() <= 4;
        let mut dest = DirList::default();
        let mut untyped = Vec::new();
        let mut left_over = Vec::new();
        let mut count = 0;
        let listed = if few {
            Ok(false)
        } else {
            let listed = read::names(dir, usize::MAX, |entry| {
                count += 1;
                if !self.delete && is_temp_name(entry.name) {
                    left_over.push(entry.name.to_vec());
                }
                match entry.is_dir {
                    _ if count > enough => {}
                    Some(is_dir) => dest.push_name(entry.name, is_dir),
                    None => untyped.push(entry.name.to_vec()),
                }
            });
            listed.map(|_| count <= enough)
        };
        let complete = match listed {
            Ok(complete) => complete,
            Err(error) => {
                // Where nothing is deleted a list is not needed.
                plan.dest_unseen |= self.delete && errno::may_not_be_listed(&error);
                if !errno::may_not_be_listed(&error) {
                    let full = root.full(plan.path.as_bytes());
                    plan.problems.push(Problem::failed(Voice::Generator, "opendir", &full, &error));
                }
                false
            }
        };
        if !complete {
            dest = DirList::default();
            untyped = plan.source.entries.iter().map(|e| plan.source.name(e).to_vec()).collect();
            left_over.retain(|name| !untyped.contains(name));
            untyped.extend(left_over);
        }
        for (at, name) in untyped.iter().enumerate() {
            match sys::stat(dir.fd(), name, false) {
                Ok(stat) => dest.push_name(name, Kind::of_mode(stat.mode) == Some(Kind::Dir)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !complete => {
                    plan.dest_unseen = true;
                    plan.hidden.push(at as u32);
                }
                Err(_) => {}
            }
        }
        dest.sort();
        plan.dest = dest;
    }

    /// Pairs the two lists and asks the planner about each pair.
    fn decide_all(&self, plan: &mut DirPlan, chain: &Chain) {
        let source = std::mem::take(&mut plan.source);
        let mut dest = std::mem::take(&mut plan.dest);
        let dest_dir = plan.dest_dir.clone();
        let mut full = plan.path.as_bytes().to_vec();
        if !full.is_empty() {
            full.push(b'/');
        }
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(source.len());
        let mut join = Join::default();
        while let Some(pair) = join.next(&source, &dest, |at| dest.entries[at].is_dir()) {
            match pair {
                Pair::Source(source_at) => pairs.push((source_at as u32, NONE)),
                Pair::Both(source_at, dest_at) => pairs.push((source_at as u32, dest_at as u32)),
                Pair::Dest(dest_at) => self.judge_extra(plan, &dest, dest_at, &mut full, chain),
            }
        }
        let mut alternates = AltDirs::default();
        for block in pairs.chunks(parallel::BLOCK) {
            let stats = parallel::map(block, self.threads, |&(source_at, dest_at)| {
                let dir = dest_dir.as_ref().filter(|_| dest_at != NONE)?;
                let name = dest.name(&dest.entries[dest_at as usize]);
                self.look_at_dest(dir, name, source.entries[source_at as usize].is_dir())
            });
            for (&(source_at, dest_at), stat) in block.iter().zip(stats) {
                let there = stat.map(|stat| {
                    self.complete_dest(plan, &mut dest, dest_at as usize, &stat);
                    dest_at as usize
                });
                if there.is_none()
                    && let Some(dir) = dest_dir.as_ref().filter(|_| dest_at != NONE)
                    && sys::stat(dir.fd(), b".", false).is_err()
                {
                    // Its names may be read, and nothing of what they name.
                    plan.dest_unseen = true;
                    plan.hidden.push(source_at);
                }
                let source_at = source_at as usize;
                let mut step = self.decide_one(plan, &source, source_at, &dest, there);
                self.look_elsewhere(plan, &mut alternates, &source, &dest, &mut step);
                match source.entries[source_at].is_dir() {
                    true => plan.subdirs.push(SubDir { step, ticket: None, implied: false }),
                    false if step.decision.action == Action::Keep && !self.unchanged => {}
                    false => plan.steps.push(step),
                }
            }
        }
        plan.source = source;
        plan.dest = dest;
    }

    /// What only the destination has: a temp file of a crashed run goes, the rest may be deleted if no
    /// rule protects it. `full` is the path of the directory, with a slash, as scratch space.
    fn judge_extra(&self, plan: &mut DirPlan, dest: &DirList, at: usize, full: &mut Vec<u8>, chain: &Chain) {
        let name = dest.name(&dest.entries[at]);
        let is_dir = dest.entries[at].is_dir();
        if let (Some(dir), false) = (&plan.dest_dir, is_dir)
            && is_stale(dir, name)
            && (self.is_dry || sys::unlink(dir.fd(), name).is_ok())
        {
            return;
        }
        if !self.delete {
            return;
        }
        let prefix = full.len();
        full.extend_from_slice(name);
        if chain.is_empty() || self.is_included(chain, Side::Receiver, full, is_dir, &mut plan.notes) {
            plan.extras.push(at as u32);
        }
        full.truncate(prefix);
    }

    /// Leaves out directories in which nothing is (`-m`), unless a rule of the command line protects them. What
    /// the destination has in their stead is extra.
    pub fn prune(&self, plan: &mut DirPlan, is_bare: impl Fn(Ticket) -> bool) {
        let dest = std::mem::take(&mut plan.dest);
        let chain = plan.receiver_chain.clone().expect("a plan that was made has its chain");
        let mut full = plan.path.as_bytes().to_vec();
        if !full.is_empty() {
            full.push(b'/');
        }
        for sub in std::mem::take(&mut plan.subdirs) {
            let name = plan.source.name(&plan.source.entries[sub.step.source as usize]);
            let path = plan.path.join(name);
            let is_protected =
                || self.receiver_chain.verdict(Side::Receiver, path.as_bytes(), true) != Verdict::Include;
            if sub.ticket.is_some_and(|ticket| !is_bare(ticket)) || is_protected() {
                plan.subdirs.push(sub);
                continue;
            }
            plan.pruned.push(sub.step.source);
            if sub.step.dest != NONE {
                self.judge_extra(plan, &dest, sub.step.dest as usize, &mut full, &chain);
            }
        }
        plan.extras.sort_unstable();
        plan.dest = dest;
    }

    /// Looks at an entry of the destination; `None` if it is gone.
    fn look_at_dest(&self, dir: &Dir, name: &[u8], source_is_dir: bool) -> Option<Stat> {
        let stat = sys::stat(dir.fd(), name, false).ok()?;
        if source_is_dir && self.keep_dirlinks && Kind::of_mode(stat.mode) == Some(Kind::Symlink) {
            let there = sys::stat(dir.fd(), name, true).ok();
            return Some(there.filter(|there| Kind::of_mode(there.mode) == Some(Kind::Dir)).unwrap_or(stat));
        }
        Some(stat)
    }

    /// Fills in what is known of an entry of the destination.
    fn complete_dest(&self, plan: &mut DirPlan, dest: &mut DirList, at: usize, stat: &Stat) {
        let Some(dir) = &plan.dest_dir else { return };
        let (name, entry) = dest.entry_mut(at);
        entry.set_stat(stat);
        let path = || plan.path.join(name).as_bytes().to_vec();
        let full = || self.dest.map(|root| root.full(&path())).unwrap_or_default();
        if let Err(incomplete) = self.wanted.complete_dest(entry, stat, (dir, name), &full, &path) {
            incomplete_entry(plan, "generator", incomplete, Weight::Failed);
        }
    }

    fn decide_one(
        &self,
        plan: &mut DirPlan,
        source: &DirList,
        source_at: usize,
        dest: &DirList,
        dest_at: Option<usize>,
    ) -> Step {
        let entry = &source.entries[source_at];
        let name = source.name(entry);
        let there = dest_at.map(|at| &dest.entries[at]);
        let unsafe_link = self.policy.preserve.safe_links
            && entry.kind() == Kind::Symlink
            && plan::safelink::is_unsafe(entry.target(), plan.path.join(name).as_bytes());
        let mut decision = plan::decide(entry, there, None, unsafe_link, &self.policy);
        if decision.action == Action::AskDigest
            && let (Some(Some(place)), Some(dir)) = (plan.places.get(entry.origin as usize), &plan.dest_dir)
        {
            let same = (self.compare)((&place.dir, name), (dir, name)).unwrap_or(false);
            decision = plan::decide(entry, there, Some(same), unsafe_link, &self.policy);
        }
        Step { source: source_at as u32, dest: dest_at.map_or(NONE, |at| at as u32), decision }
    }

    /// Lets the alternate trees change a decision, and notes what they have.
    fn look_elsewhere(
        &self,
        plan: &mut DirPlan,
        dirs: &mut AltDirs,
        source: &DirList,
        dest: &DirList,
        step: &mut Step,
    ) {
        let entry = &source.entries[step.source as usize];
        let Some(Some(place)) = plan.places.get(entry.origin as usize) else { return };
        let there = (step.dest != NONE).then(|| &dest.entries[step.dest as usize]);
        let (decision, hit) = self.decide_with_alternates(
            dirs,
            &plan.path,
            (source.name(entry), entry),
            (plan.dest_dir.as_ref(), there),
            step.decision,
            &place.dir,
        );
        step.decision = decision;
        if let Some(hit) = hit.filter(|_| !entry.is_dir()) {
            plan.hits.insert(step.source, hit);
        }
    }

    /// What shall be done about the transfer's root itself.
    pub fn decide_root(&self, source: &Entry, there: Option<&Entry>, source_dir: &Dir) -> Decision {
        let decision = plan::decide(source, there, None, false, &self.policy);
        let (root, dirs) = (RelPath::root(), &mut AltDirs::default());
        self.decide_with_alternates(dirs, &root, (b".", source), (None, there), decision, source_dir).0
    }

    /// What only the destination has now, in order: names, and whether they are directories.
    /// `chain`: the receiver's rules in force here now.
    pub fn extras_now(&self, path: &RelPath, source: &DirList, dir: &Dir, chain: &Chain) -> Vec<(Vec<u8>, bool)> {
        let mut now = DirPlan { path: path.clone(), dest_dir: Some(dir.clone()), ..DirPlan::default() };
        let mut list = DirList::default();
        let listed = read::names(dir, usize::MAX, |entry| {
            if let Some(is_dir) = entry.is_dir {
                list.push_name(entry.name, is_dir);
            }
        });
        if listed.is_err() {
            return Vec::new();
        }
        list.sort();
        let mut full = path.as_bytes().to_vec();
        if !full.is_empty() {
            full.push(b'/');
        }
        let mut join = Join::default();
        while let Some(pair) = join.next(source, &list, |at| list.entries[at].is_dir()) {
            if let Pair::Dest(at) = pair {
                self.judge_extra(&mut now, &list, at, &mut full, chain);
            }
        }
        now.extras
            .iter()
            .map(|&at| (list.name(&list.entries[at as usize]).to_vec(), list.entries[at as usize].is_dir()))
            .collect()
    }

    /// The tasks of the directories in this one; their tickets are given when they are put down.
    fn tasks_below(&self, plan: &mut DirPlan, origins: &[Origin], node: Option<&Node>, chain: &Chain) -> Vec<Task> {
        let mut tasks: Vec<Task> = Vec::new();
        let mut subdirs = std::mem::take(&mut plan.subdirs);
        // Above the first directory of a run, and of no other, rsync looks for per-directory files too.
        let mut is_first = plan.path.is_root() && !origins.iter().any(|o| matches!(o.listing, Listing::All { .. }));
        for sub in &mut subdirs {
            let entry = &plan.source.entries[sub.step.source as usize];
            let name = plan.source.name(entry);
            if matches!(sub.step.decision.action, Action::Refuse(Reason::NotExisting | Reason::Exists)) {
                continue;
            }
            let (mut below, implied) = self.origins_below(plan, origins, node, name, entry);
            sub.implied = implied;
            if below.is_empty() {
                continue;
            }
            let mut receiver_chain = chain.clone();
            if plan.path.is_root() {
                for origin in below.iter_mut().skip(usize::from(is_first)) {
                    origin.chain = origin.chain.for_further_source();
                }
                if !is_first {
                    receiver_chain = chain.for_further_source();
                }
                is_first = false;
            }
            let there = match (sub.step.dest, sub.step.decision.in_the_way) {
                (NONE, _) if plan.dest_unseen => There::Present,
                (NONE, _) | (_, InTheWay::Other | InTheWay::Dir) => There::Absent,
                _ => There::Present,
            };
            sub.ticket = Some(Ticket(0));
            tasks.push(Task {
                path: plan.path.join(name),
                origins: below,
                node: node.and_then(|node| node.children.get(name).cloned()),
                there,
                receiver_chain,
            });
        }
        plan.subdirs = subdirs;
        tasks
    }

    /// Where the entries of a directory in this one come from, and whether only `-R` implies it.
    fn origins_below(
        &self,
        plan: &DirPlan,
        origins: &[Origin],
        node: Option<&Node>,
        name: &[u8],
        entry: &Entry,
    ) -> (Vec<Origin>, bool) {
        let mut below = Vec::new();
        let mut implied = true;
        for (index, origin) in origins.iter().enumerate() {
            if plan.places[index].is_none() {
                continue;
            }
            // With one origin the entry is surely its own; with several each is asked.
            let here = || {
                origins.len() == 1
                    || plan.places[index].as_ref().is_some_and(|place| {
                        sys::stat(place.dir.fd(), name, true).is_ok_and(|s| Kind::of_mode(s.mode) == Some(Kind::Dir))
                    })
            };
            let (content, source_name) = match &origin.listing {
                Listing::All { below } => {
                    implied = false;
                    (if *below { Content::Full } else { Content::None }, name)
                }
                Listing::Named(names) => {
                    let is_it = |named: &&Named| named.renamed.as_deref().unwrap_or(&named.name) == name;
                    let mut content = Content::None;
                    let mut source_name = None;
                    for named in names.iter().filter(is_it) {
                        implied &= named.implied;
                        source_name = Some(named.name.as_slice());
                        if content != Content::Full && named.content != Content::None {
                            content = named.content;
                        }
                    }
                    let Some(source_name) = source_name else { continue };
                    (content, source_name)
                }
            };
            let mount_point = entry.extra.as_ref().is_some_and(|extra| extra.is_mount_point);
            if content == Content::None || mount_point || !here() {
                continue;
            }
            below.push(Origin {
                base: origin.base.clone(),
                path: origin.path.join(source_name),
                listing: Listing::All { below: content == Content::Full },
                chain: origin.chain.clone(),
            });
        }
        if let Some(node) = node.and_then(|node| node.children.get(name)) {
            for (base, path, listing) in &node.origins {
                let chain = origins
                    .iter()
                    .find(|origin| Arc::ptr_eq(&origin.base, base))
                    .map(|origin| origin.chain.clone())
                    .unwrap_or_else(|| base.chain.clone());
                below.push(Origin { base: base.clone(), path: path.clone(), listing: listing.clone(), chain });
            }
        }
        (below, implied)
    }
}

/// The line for an entry of the destination that cannot be looked at.
fn cannot_stat(full: &[u8], error: &io::Error) -> Problem {
    let words = crate::report::event::errno_words(error);
    let start = b"rsync: [generator] recv_generator: failed to stat \"";
    Problem::said([start, full, b"\": ", &words].concat(), Weight::Failed)
}

/// Notes that the attributes of an entry could not be read by a role.
fn incomplete_entry(plan: &mut DirPlan, role: &'static str, incomplete: Incomplete, weight: Weight) {
    match incomplete {
        Incomplete::Failed(what, error) => {
            let mut line = format!("rsync: [{role}] ").into_bytes();
            line.extend_from_slice(&what);
            line.extend_from_slice(b": ");
            line.extend_from_slice(&crate::report::event::errno_words(&error));
            plan.problems.push(Problem::said(line, weight));
        }
        Incomplete::Fatal(line) => {
            plan.fatal.get_or_insert_with(|| Error::new(Exit::FileIo, line).by(role));
        }
    }
}

fn vanished(full: &[u8]) -> Problem {
    Problem::said([b"file has vanished: \"", full, b"\""].concat(), Weight::Vanished)
}

/// Reads a directory's own merge files, on behalf of a role. What cannot be read as a file is none.
fn enter(chain: &Chain, dir: &Dir, role: &'static str, plan: &mut DirPlan) -> Chain {
    match enter_dir(chain, dir, &plan.path, role) {
        Ok(chain) => chain,
        Err(error) => {
            plan.fatal.get_or_insert(error);
            plan.may_delete = false;
            chain.clone()
        }
    }
}

/// The rules in force in a directory, given those of its parent.
pub fn enter_dir(chain: &Chain, dir: &Dir, path: &RelPath, role: &'static str) -> Result<Chain, Error> {
    chain
        .enter(path.as_bytes(), &mut |name| Ok(read::text_file(dir, name).unwrap_or(None)))
        .map_err(|error| Error::new(error.exit(), error.message()).by(role))
}

/// Of entries with one name the first source's stays; a directory stays before anything else, because
/// it may have content.
fn drop_duplicates(list: &mut DirList) {
    let dirs: std::collections::HashSet<Vec<u8>> =
        list.entries.iter().filter(|e| e.is_dir()).map(|e| list.name(e).to_vec()).collect();
    let mut keep = Vec::with_capacity(list.len());
    let mut last: Option<(&[u8], bool)> = None;
    for entry in &list.entries {
        let this = (list.name(entry), entry.is_dir());
        keep.push(last != Some(this) && (this.1 || !dirs.contains(this.0)));
        last = Some(this);
    }
    let mut keep = keep.into_iter();
    list.entries.retain(|_| keep.next().unwrap_or(true));
}

/// How many directories may be planned and not yet taken; each may hold two descriptors.
const DIRS_AHEAD_MAX: usize = 128;
/// How many entries they may have between them, so that memory does not grow with the tree.
const ENTRIES_AHEAD_MAX: usize = 40_000;

/// Plans directories ahead of the generator.
pub struct Scanner<'a> {
    walk: Walk<'a>,
    state: Mutex<State>,
    changed: Condvar,
    unbounded: bool,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Not begun; the one that is needed first is on top.
    waiting: Vec<(Ticket, Task)>,
    ready: HashMap<Ticket, DirPlan>,
    ready_entries: usize,
    /// Plans under way.
    begun: usize,
    /// Entries of the plans made, and their bytes.
    listed: (u64, u64),
    closed: bool,
}

impl<'a> Scanner<'a> {
    /// A scanner without tasks. `unbounded`: all plans are made at once and held, for options that need
    /// the whole list first.
    pub fn new(walk: Walk<'a>, unbounded: bool) -> Scanner<'a> {
        Scanner { walk, state: Mutex::default(), changed: Condvar::new(), unbounded }
    }

    /// What the plans are made from.
    pub fn walk(&self) -> &Walk<'a> {
        &self.walk
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the first task down.
    pub fn start(&self, task: Task) -> Ticket {
        let mut state = self.lock();
        let ticket = Ticket(state.next);
        state.next += 1;
        state.waiting.push((ticket, task));
        drop(state);
        self.changed.notify_all();
        ticket
    }

    /// Works until [`Scanner::close`].
    pub fn work(&self) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            let full =
                !self.unbounded && (state.ready.len() >= DIRS_AHEAD_MAX || state.ready_entries >= ENTRIES_AHEAD_MAX);
            let task = if full { None } else { state.waiting.pop() };
            let Some((ticket, task)) = task else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.begun += 1;
            drop(state);
            let (mut plan, tasks) = self.walk.plan(task);
            if self.unbounded {
                plan.park();
            }
            state = self.lock();
            let plan = put_down(&mut state, plan, tasks);
            state.ready_entries += plan.source.len() + plan.dest.len();
            state.ready.insert(ticket, plan);
            self.changed.notify_all();
        }
    }

    /// Takes a plan, making it here and now if nobody has begun it.
    pub fn take(&self, ticket: Ticket) -> DirPlan {
        let mut state = self.lock();
        loop {
            if let Some(plan) = state.ready.remove(&ticket) {
                state.ready_entries -= plan.source.len() + plan.dest.len();
                drop(state);
                self.changed.notify_all();
                return plan;
            }
            if let Some(at) = state.waiting.iter().rposition(|(waiting, _)| *waiting == ticket) {
                let (_, task) = state.waiting.remove(at);
                state.begun += 1;
                drop(state);
                let (mut plan, tasks) = self.walk.plan(task);
                if self.unbounded {
                    plan.park();
                }
                let plan = put_down(&mut self.lock(), plan, tasks);
                self.changed.notify_all();
                return plan;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The list as far as it is known: entries, bytes, and whether that is all. Without what no plan
    /// names: the root.
    pub fn listed(&self) -> (u64, u64, bool) {
        let state = self.lock();
        (state.listed.0, state.listed.1, state.waiting.is_empty() && state.begun == 0)
    }

    /// Whether all plans are made at once and held.
    pub fn is_unbounded(&self) -> bool {
        self.unbounded
    }

    /// Lets the workers go.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

/// Puts the tasks of a plan's directories down, the first on top, and gives the plan their tickets.
fn put_down(state: &mut State, mut plan: DirPlan, tasks: Vec<Task>) -> DirPlan {
    let first = state.next;
    let mut next = first;
    for sub in plan.subdirs.iter_mut().filter(|sub| sub.ticket.is_some()) {
        sub.ticket = Some(Ticket(next));
        next += 1;
    }
    state.next = next;
    state.begun -= 1;
    state.listed.0 += plan.tally.listed.total();
    state.listed.1 += plan.tally.total_bytes;
    debug_assert_eq!(next - first, tasks.len() as u64);
    let numbered = tasks.into_iter().enumerate().rev().map(|(at, task)| (Ticket(first + at as u64), task));
    state.waiting.extend(numbered);
    plan
}
