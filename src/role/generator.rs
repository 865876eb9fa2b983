//! Goes through the plans in canonical order: deletes, makes directories, hands all else to appliers.
//!
//! Everything that depends on order lives here, in one thread: limits on deletion, errors that stop it,
//! hard-link groups, the turn in which things are told.

use super::apply::attrs::{self, Has, Subject};
use super::apply::entry::{self, Job, Leader};
use super::apply::late::{self, LastTouch};
use super::apply::remove::{self, Removed, Remover};
use super::apply::similar::Lookout;
use super::apply::{Context, Outcome, Spot, content, file, refusal};
use super::scan::dest::DestWalk;
use super::scan::{DirPlan, LeftOut, Listed, NONE, Step, SubDir, There, Ticket, enter_dir};
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Chain;
use crate::flist::{DirList, Entry, Kind, order};
use crate::fs::errno;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::options::When;
use crate::path::RelPath;
use crate::plan::{Action, Changes, InTheWay, Reason, chmod, keeps_time};
use crate::proto::FileId;
use crate::report::event::{Event, Problem, Update, Voice, Weight};
use crate::report::tally::Tally;
use crate::work::queue::Queue;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// A piece of work for an applier, with its turn in what is told.
pub struct Batch {
    /// Its turn.
    pub number: u64,
    /// Told before what comes of the work.
    pub head: Vec<Event>,
    /// Counts that belong to `head`.
    pub tally: Tally,
    /// In order.
    pub work: Vec<Work>,
}

/// What an applier does.
pub enum Work {
    /// Steps of one directory.
    Steps(Arc<DirPlan>, Range<usize>, Arc<Spot>),
    /// The step of the first name of a file that has several.
    Lead(Member, Leading),
    /// One more name of a file that was placed before.
    Follow(Member, Arc<Leader>),
}

/// Held until the leader is placed, or will never be; then its followers may go on. The queue is first in,
/// first out, so that a leader is under work before anybody waits for it.
pub struct Leading(Arc<Leader>);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.is_placed.open();
    }
}

impl Batch {
    /// Does the work.
    pub fn carry_out(self, context: &Context<'_>, hands: &mut file::Hands, out: &mut Outcome<'_>) {
        out.events = self.head;
        out.tally = self.tally;
        // Asked while the directory is held, so that its last touch knows.
        let is_over = |out: &Outcome<'_>| {
            let over = out.fatal.is_some() || context.stopped();
            if over {
                context.late.given_up.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            over
        };
        for work in self.work {
            match work {
                Work::Steps(plan, range, spot) => {
                    for step in &plan.steps[range] {
                        if is_over(out) {
                            return;
                        }
                        entry::perform(context, hands, &Job::new(&plan, *step, &spot), out);
                    }
                    if is_over(out) {
                        return;
                    }
                }
                Work::Lead(member, leading) => {
                    if is_over(out) {
                        return;
                    }
                    entry::lead(context, hands, &member.job(), &leading.0, out);
                    is_over(out);
                    drop(leading);
                }
                Work::Follow(member, leader) => {
                    leader.is_placed.wait();
                    if is_over(out) {
                        return;
                    }
                    entry::follow(context, hands, &member.job(), &leader, out);
                }
            }
        }
    }
}

/// Bytes of files that one batch may hold before it is handed over; large files go alone.
const BATCH_BYTES: u64 = 1 << 20;
/// Steps in a batch.
const BATCH_STEPS: usize = 64;

/// How a run ended, as far as the generator knows.
pub struct Ended {
    /// Deletions that the limit held back.
    pub held_back: u64,
}

/// A name in a hard-link group.
pub struct Member {
    plan: Arc<DirPlan>,
    step: usize,
    spot: Arc<Spot>,
}

impl Member {
    fn job(&self) -> Job<'_> {
        Job::new(&self.plan, self.plan.steps[self.step], &self.spot)
    }
}

/// The names of one file of the source, as far as they were met.
#[derive(Default)]
struct LinkGroup {
    /// Names that the destination lacks, while none that it has was met.
    waiting: Vec<Member>,
    leader: Option<Arc<Leader>>,
    met: u32,
}

/// What a directory loses at the end (`--delete-delay`).
struct DelayedDeletes {
    path: RelPath,
    /// Names, and whether they are directories; in the order in which they go.
    extras: Vec<(Vec<u8>, bool)>,
    chain: Option<Chain>,
    last: Arc<LastTouch>,
}

/// A directory that is looked at again at the end (`--delete-after`).
struct After {
    path: RelPath,
    /// The source's entries.
    source: DirList,
    may_delete: bool,
    last: Arc<LastTouch>,
}

/// Hears what was found in a directory that is left out; an error if the run shall end.
pub type Left<'l> = dyn FnMut(LeftOut) -> Result<(), Error> + 'l;

/// Makes the plans of directories, in the order in which they are taken.
pub trait Plans: Sync {
    /// The ticket of the root's plan.
    fn root(&self) -> Ticket;
    /// The plan of a directory of which the destination has what `there` says; `None`: nothing is to be done in it, but
    /// perhaps below it, see [`Plans::stray`].
    fn take(&self, ticket: Ticket, path: &RelPath, there: &There) -> Result<Option<DirPlan>, Error>;
    /// The next directory below one without a plan in which something is to be done: the plan of its parent, which
    /// names it alone; its own is taken as that of any directory in a plan.
    fn stray(&self, below: &RelPath) -> Result<Option<DirPlan>, Error>;
    /// Leaves out the plan of a directory, which has a ticket if anything below it was walked, and of all below it;
    /// `left` hears what was found there, in order.
    fn skip(&self, ticket: Option<Ticket>, path: &RelPath, left: &mut Left<'_>) -> Result<(), Error>;
    /// How the destination is looked at.
    fn walk(&self) -> &DestWalk<'_>;
    /// The list as far as it is known: entries, bytes, and whether that is all. Without what no plan names: the root.
    fn listed(&self) -> (u64, u64, bool);
    /// Whether all plans are made at once and held.
    fn is_unbounded(&self) -> bool;
    /// Works in the background until [`Plans::close`].
    fn work(&self);
    /// Lets those go who work.
    fn close(&self);
}

/// The transfer's root, where the content of a directory of the source is that.
pub struct Top {
    /// The source's directory.
    pub source: Entry,
    /// What the destination's root is now.
    pub there: Option<Entry>,
    /// The source's directory as the sender sees it (`%f`); `None`: who tells does not know.
    pub shown: Option<Vec<u8>>,
}

/// Goes through the plans in order.
pub struct Generator<'a> {
    plans: &'a dyn Plans,
    context: &'a Context<'a>,
    queue: &'a Queue<Batch>,
    /// Called before a batch is handed over: waits where too much is told late.
    pace: &'a dyn Fn(u64),
    /// Waits until all batches below a number are done.
    barrier: &'a dyn Fn(u64),
    number: u64,
    head: Vec<Event>,
    tally: Tally,
    remover: Remover<'a>,
    /// The file systems that deletion stays on (`-x`), by the directories that arguments gave.
    stays_on: HashMap<RelPath, u64>,
    /// What `--delete-missing-args` shall remove, the first to go last.
    missing: Vec<RelPath>,
    /// The source could not be read somewhere, so nothing more is deleted.
    io_error: bool,
    said_io_error: bool,
    /// `--delete-delay`
    delayed: Vec<DelayedDeletes>,
    /// `--delete-after`
    after: Vec<After>,
    links: BTreeMap<(u64, u64), LinkGroup>,
    links_expected: HashMap<(u64, u64), u32>,
    late: Arc<late::LateNotes>,
    held: HashMap<Ticket, DirPlan>,
    lookout: Lookout,
    /// Entries that are not in any plan, and of those that are held: entries and bytes.
    listed: (u64, u64),
    /// The deadline of `--stop-after` and `--stop-at`.
    out_of_time: &'a dyn Fn() -> bool,
}

impl<'a> Generator<'a> {
    /// A generator at the beginning. `late` is shared by the last touches.
    pub fn new(
        plans: &'a dyn Plans,
        context: &'a Context<'a>,
        queue: &'a Queue<Batch>,
        pace: &'a dyn Fn(u64),
        barrier: &'a dyn Fn(u64),
        out_of_time: &'a dyn Fn() -> bool,
        late: Arc<late::LateNotes>,
    ) -> Generator<'a> {
        Generator {
            plans,
            context,
            queue,
            pace,
            barrier,
            number: 0,
            head: Vec::new(),
            tally: Tally::default(),
            remover: Remover::new(context),
            stays_on: HashMap::new(),
            missing: Vec::new(),
            io_error: false,
            said_io_error: false,
            delayed: Vec::new(),
            after: Vec::new(),
            links: BTreeMap::new(),
            links_expected: HashMap::new(),
            late,
            held: HashMap::new(),
            lookout: Lookout::default(),
            listed: (0, 0),
            out_of_time,
        }
    }

    /// Notes that an argument could not be read: as after any such error, deletions are skipped.
    pub fn source_failed(&mut self) {
        self.io_error = true;
    }

    /// Goes through the whole tree. `opening`: told before the first entry.
    pub fn run(
        &mut self,
        mut top: Option<Top>,
        whole_list_first: bool,
        missing: &[RelPath],
        opening: Vec<Event>,
    ) -> Result<(), Error> {
        let root = self.plans.root();
        self.listed.0 += u64::from(top.is_some());
        if whole_list_first {
            self.hold_all(root)?;
        }
        self.head.extend(opening);
        if self.context.options.delete.when == Some(When::Before) {
            self.delete_before(root, top.as_mut().and_then(|top| top.there.as_mut()))?;
        }
        self.missing = missing.to_vec();
        self.missing.sort_by(|a, b| order::compare_paths((b.as_bytes(), false), (a.as_bytes(), false)));
        self.missing.dedup();
        let there = if self.context.dest.is_some() { There::Present } else { There::Absent };
        let plan = self.take(root, &RelPath::root(), &there)?;
        let has_plan = plan.is_some();
        let plan = plan.map(|mut plan| {
            if plan.dest_unseen {
                self.plans.walk().look_again(&mut plan, self.context.dest.map(Root::dir));
            }
            plan
        });
        let last = self.prepare_root(top.as_ref());
        let spot = Arc::new(Spot::new(RelPath::root(), self.context.dest.map(|dest| dest.dir().clone()), last));
        let plan = plan.unwrap_or_default();
        if !has_plan && top.is_some() {
            self.pass_by();
        }
        let first = self.enter(plan, spot, top.as_ref(), None)?;
        let mut stack = vec![Frame { has_plan, ..first }];
        while let Some(frame) = stack.last_mut() {
            let (plan, spot) = (frame.plan.clone(), frame.spot.clone());
            if let Some(sub) = plan.subdirs.get(frame.next).copied() {
                frame.next += 1;
                if frame.next == 1 && !self.context.options.select.no_inc_recursive {
                    // rsync's list goes directory by directory then.
                    self.checked(plan.subdirs.len() as u64);
                }
                match self.directory(&plan, &spot, sub)? {
                    Some(frame) => stack.push(frame),
                    None => {
                        let name = plan.source.name(&plan.source.entries[sub.step.source as usize]);
                        self.leave_out(sub.ticket, &spot.path.join(name))?;
                    }
                }
                continue;
            }
            let stray = if frame.has_plan { None } else { self.plans.stray(&spot.path)? };
            match stray {
                Some(mut plan) => {
                    // What it names alone, no argument did.
                    plan.is_named = false;
                    let dir = self.context.dest.and_then(|dest| dest.open_dir_to_search(&plan.path).ok());
                    let last = LastTouch::none(Some(spot.last.clone()), self.late.clone());
                    let spot = Arc::new(Spot::new(plan.path.clone(), dir, last));
                    stack.push(self.enter(plan, spot, None, None)?);
                }
                None => {
                    stack.pop();
                }
            }
        }
        self.delete_missing(&RelPath::root(), &LastTouch::none(None, self.late.clone()), |_| true);
        self.finish_links()?;
        self.flush(Vec::new())
    }

    /// What is left to do once all batches are done.
    pub fn finish(&mut self) -> Result<Ended, Error> {
        (self.barrier)(self.number);
        // What a stopped run left undone must not count as done: nothing is renamed or deleted for it.
        self.context.go_on()?;
        let delayed = std::mem::take(&mut *self.context.delayed.lock().unwrap_or_else(PoisonError::into_inner));
        late::place_delayed(self.context, delayed, self.context.staging_name(), &mut self.head);
        let mut again = std::mem::take(&mut *self.context.again.lock().unwrap_or_else(PoisonError::into_inner));
        again.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
        self.head.extend(again.into_iter().map(|(_, event)| event));
        for delayed in std::mem::take(&mut self.delayed) {
            if !self.may_delete() {
                break;
            }
            let Some(Ok(dir)) = self.context.dest.map(|dest| dest.open_dir(&delayed.path)) else { continue };
            if !self.stays_in(&delayed.path, &dir) {
                continue;
            }
            for (name, is_dir) in &delayed.extras {
                let path = delayed.path.join(name);
                let removed = self.remover.remove(&dir, &path, *is_dir, delayed.chain.as_ref(), &mut self.head);
                if removed == Removed::Gone {
                    delayed.last.touch();
                }
            }
        }
        let mut chains = HashMap::new();
        for after in std::mem::take(&mut self.after) {
            self.delete_after(&after, &mut chains)?;
        }
        self.ask_remover()?;
        self.context.go_on()?;
        if self.remover.held_back > 0 {
            let line = format!("Deletions stopped due to --max-delete limit ({} skipped)", self.remover.held_back);
            self.head.push(Event::Problem(Problem::said(line, Weight::Warning)));
        }
        self.flush(Vec::new())?;
        Ok(Ended { held_back: self.remover.held_back })
    }

    /// What `--delete-missing-args` removes: the namesakes of arguments that do not exist, as far as they are due.
    /// `here`, `last`: the directory that is under work.
    fn delete_missing(&mut self, here: &RelPath, last: &LastTouch, is_due: impl Fn(&RelPath) -> bool) {
        while let Some(path) = self.missing.pop_if(|path| is_due(path)) {
            let parent = path.parent().unwrap_or_default();
            if self.context.policy.list_only {
                self.head.push(Event::Missing(path.as_bytes().to_vec()));
            }
            let Some(dest) = self.context.dest else { continue };
            let Ok(dir) = dest.open_dir_to_search(&parent) else { continue };
            self.stays_in(&parent, &dir);
            if let Ok(stat) = sys::stat(dir.fd(), path.name(), false) {
                let is_dir = Kind::of_mode(stat.mode) == Some(Kind::Dir);
                let removed = self.remover.remove_missing(&dir, &path, is_dir, None, &mut self.head);
                if removed == Removed::Gone && parent == *here {
                    last.touch();
                }
            }
        }
    }

    fn take(&mut self, ticket: Ticket, path: &RelPath, there: &There) -> Result<Option<DirPlan>, Error> {
        let mut plan = match self.held.remove(&ticket) {
            Some(plan) => Some(plan),
            None => self.plans.take(ticket, path, there)?,
        };
        if let Some(plan) = &mut plan {
            plan.take_up(self.plans.walk());
        }
        Ok(plan)
    }

    /// Counts and tells what was found in a directory that nobody goes into, and below it.
    fn leave_out(&mut self, ticket: Option<Ticket>, path: &RelPath) -> Result<(), Error> {
        let mut tickets = Vec::from_iter(ticket.filter(|ticket| self.held.contains_key(ticket)));
        if tickets.is_empty() {
            let plans = self.plans;
            return plans.skip(ticket, path, &mut |left| self.count_left(left));
        }
        while let Some(plan) = tickets.pop().and_then(|ticket| self.held.remove(&ticket)) {
            tickets.extend(plan.subdirs.iter().rev().filter_map(|sub| sub.ticket));
            self.count_left(LeftOut::of(plan))?;
        }
        Ok(())
    }

    fn count_left(&mut self, left: LeftOut) -> Result<(), Error> {
        self.context.go_on()?;
        if let Some(error) = left.fatal {
            return Err(error);
        }
        self.io_error |= left.problems.iter().any(|problem| problem.weight == Weight::SourceError);
        self.head.extend(left.problems.into_iter().map(Event::Problem));
        self.head.extend(left.notes.into_iter().map(Event::Note));
        self.tally.merge(&left.tally);
        Ok(())
    }

    /// Takes every plan before anything is done, for options that need the whole list.
    fn hold_all(&mut self, root: Ticket) -> Result<(), Error> {
        let there = if self.context.dest.is_some() { There::Present } else { There::Absent };
        let mut tickets = vec![(root, RelPath::root(), there, false)];
        let mut order = Vec::new();
        while let Some((ticket, path, there, is_left)) = tickets.pop() {
            self.context.go_on()?;
            let Some(mut plan) = self.plans.take(ticket, &path, &there)? else { continue };
            if let Some(error) = plan.fatal.take() {
                return Err(error);
            }
            for sub in plan.subdirs.iter().rev() {
                let path = || plan.path.join(plan.source.name(&plan.source.entries[sub.step.source as usize]));
                tickets.extend(sub.ticket.map(|ticket| (ticket, path(), plan.there(sub), is_left || sub.is_left())));
            }
            self.io_error |= plan.problems.iter().any(|problem| problem.weight == Weight::SourceError);
            if self.context.policy.preserve.hard_links && !is_left {
                let inodes: Vec<_> = plan.steps.iter().filter_map(|step| self.link_group(&plan, step)).collect();
                for inode in inodes {
                    *self.links_expected.entry(inode).or_default() += 1;
                }
            }
            order.push(ticket);
            let (entries, bytes) = plan.listed();
            self.listed = (self.listed.0 + entries, self.listed.1 + bytes);
            self.held.insert(ticket, plan);
        }
        if self.context.wants.progress || self.context.wants.whole_list {
            let (entries, bytes) = self.listed;
            self.head.push(Event::Listed { entries, bytes, complete: true });
        }
        if self.context.options.select.prune_empty_dirs {
            // Children come after their parents in the order, so that backwards each knows of its own.
            let mut pruned = HashSet::new();
            for &ticket in order.iter().rev() {
                let mut plan = self.held.remove(&ticket).expect("held above");
                pruned.extend(self.plans.walk().prune(&mut plan, |t| self.held.get(&t).is_none_or(DirPlan::is_bare)));
                self.held.insert(ticket, plan);
            }
            for ticket in order.iter().filter(|ticket| pruned.contains(ticket)) {
                let plan = self.held.remove(ticket).expect("held above");
                self.count_left(LeftOut::of(plan))?;
            }
        }
        Ok(())
    }

    /// The root's own attributes, and what is left of them for the end.
    fn prepare_root(&mut self, top: Option<&Top>) -> Arc<LastTouch> {
        match (top, self.context.dest) {
            (Some(Top { source, there, .. }), Some(dest)) if !self.context.is_dry() => {
                let full = crate::path::join(&dest.path, b".");
                let changes = there
                    .as_ref()
                    .map_or(Changes::NEW, |there| crate::plan::attribute_changes(source, there, self.context.policy));
                let root = RelPath::root();
                let (late, well) = self.prepare_dir(
                    (dest.dir(), b""),
                    source,
                    there.as_ref(),
                    changes,
                    &root,
                    full,
                    chmod::Parent::default(),
                );
                let always = well && there.as_ref().is_none_or(|there| self.time_differs(source, there));
                self.last_touch(None, RelPath::root(), source, dest.path.clone(), always, late)
            }
            _ => LastTouch::none(None, self.late.clone()),
        }
    }

    fn last_touch(
        &self,
        parent: Option<Arc<LastTouch>>,
        path: RelPath,
        source: &Entry,
        full: Vec<u8>,
        always: bool,
        mode: Option<u32>,
    ) -> Arc<LastTouch> {
        let mtime = keeps_time(Kind::Dir, &self.context.policy.preserve).then_some(source.mtime);
        let Some(dest) = self.context.dest else { return LastTouch::none(parent, self.late.clone()) };
        LastTouch::of(parent, late::Target { root: dest.clone(), path, full, mtime, always, mode }, self.late.clone())
    }

    fn time_differs(&self, source: &Entry, there: &Entry) -> bool {
        !crate::plan::quick_check::same_time(source.mtime, there.mtime, self.context.policy.check.window_secs)
    }

    fn dir_mode(&self, source: &Entry, there: Option<&Entry>, parent: chmod::Parent) -> u32 {
        let existing = there.map(|there| there.mode);
        let mode = chmod::dest_mode(source.mode, existing, &self.context.mode_rule(), parent);
        if self.context.is_super { mode } else { chmod::dir_mode_left_by_user(mode) }
    }

    /// The mode in which work can be done in the directory: nobody but root could without its owner's bits.
    fn working_mode(&self, mode: u32) -> u32 {
        if self.context.is_super { mode } else { mode | 0o700 }
    }

    /// Gives a directory that exists its owner, mode and the like, in so far as they change, and opens it up
    /// for work. Returns the mode that must wait for the end, and whether all of it could be done.
    #[allow(clippy::too_many_arguments, reason = "all of them say which directory it is")]
    fn prepare_dir(
        &mut self,
        at: (&Dir, &[u8]),
        source: &Entry,
        there: Option<&Entry>,
        changes: Changes,
        path: &RelPath,
        full: Vec<u8>,
        parent: chmod::Parent,
    ) -> (Option<u32>, bool) {
        let wanted = self.dir_mode(source, there, parent);
        let working = self.working_mode(wanted);
        let late = (working != wanted).then_some(wanted);
        if changes.without(Changes::TIME) != Changes::NONE || there.is_some_and(Entry::is_unsettled) {
            let well = self.adjust_dir(at, source, there, (path, &full), working);
            return (late.filter(|_| well), well);
        }
        match there.filter(|there| working & !there.mode & 0o700 != 0) {
            None => (late, true),
            Some(_) => match attrs::set_mode(at.0.fd(), at.1, working) {
                Ok(()) => (late, true),
                Err(error) => {
                    self.head.push(Event::Problem(cannot_open_up(&full, &error)));
                    (None, true)
                }
            },
        }
    }

    fn enter(
        &mut self,
        mut plan: DirPlan,
        spot: Arc<Spot>,
        itself: Option<&Top>,
        item: Option<Event>,
    ) -> Result<Frame, Error> {
        self.context.go_on()?;
        if (self.out_of_time)() {
            return Err(Error::new(Exit::Timeout, "stopping at requested limit").by("sender"));
        }
        if let Some(error) = plan.fatal.take() {
            return Err(error);
        }
        self.io_error |= plan.problems.iter().any(|problem| problem.weight == Weight::SourceError);
        self.head.extend(plan.problems.drain(..).map(Event::Problem));
        self.head.extend(plan.notes.drain(..).map(Event::Note));
        self.tally.merge(&plan.tally);
        self.tell_list();
        self.begin_walks(&plan);
        self.delete_during(&plan, &spot);
        // A directory that cannot be listed stops what would be deleted after it.
        self.io_error |= plan.dest_unseen && plan.may_delete && self.context.options.delete.when.is_some();
        self.ask_remover()?;
        if let Some(top) = itself {
            self.tally.list(Kind::Dir, 0, 1);
            self.checked(1);
            self.root_itself(top, &plan);
        }
        self.head.extend(item);
        // Where files are told, deletions come first; a listing has all in its place.
        if !self.context.policy.list_only {
            self.delete_missing(&spot.path, &spot.last, |path| comes_before_dirs_of(path, &spot.path));
        }
        self.make_room(&mut plan, &spot);
        self.decline(&plan);
        let plan = Arc::new(plan);
        self.hand_out(&plan, &spot)?;
        self.delete_missing(&spot.path, &spot.last, |path| comes_before_dirs_of(path, &spot.path));
        if self.context.options.delete.when == Some(When::After) {
            let mut source = plan.source.clone();
            let mut at = 0..;
            source.entries.retain(|_| at.next().is_none_or(|at| !plan.pruned.contains(&at)));
            self.after.push(After {
                path: spot.path.clone(),
                source,
                may_delete: plan.may_delete,
                last: spot.last.clone(),
            });
        }
        Ok(Frame { plan, spot, next: 0, has_plan: true })
    }

    /// So many more entries are looked at.
    fn checked(&mut self, entries: u64) {
        if self.context.wants.progress {
            self.head.push(Event::Checked(entries));
        }
    }

    /// Tells how long the list has grown while it is still being made.
    fn tell_list(&mut self) {
        if self.context.wants.progress && !self.plans.is_unbounded() {
            let (entries, bytes, complete) = self.plans.listed();
            let (entries, bytes) = (entries + self.listed.0, bytes + self.listed.1);
            self.head.push(Event::Listed { entries, bytes, complete });
        }
    }

    /// The root's own attributes: told as `./`.
    fn root_itself(&mut self, top: &Top, plan: &DirPlan) {
        let place = plan.places.first().and_then(Option::as_ref);
        let (decision, refusals) = self.plans.walk().decide_root(&top.source, top.there.as_ref(), place);
        self.head.extend(std::iter::repeat_with(refusal).take(refusals));
        let (changes, update) = dir_changes(decision.action);
        if changes.has(Changes::NEW) {
            self.tally.created.add(Kind::Dir);
        }
        if self.context.wants.unchanged || (self.context.wants.items && !changes.is_none()) {
            let mut item = entry::item_of(plan, &top.source, b"", b"", update, changes);
            item.sender_path = crate::path::join(top.shown.as_deref().unwrap_or_default(), b".");
            self.head.push(Event::Item(item));
        }
    }

    /// Owner, mode and the like of a directory that exists; its time comes last. Whether all of it went well.
    fn adjust_dir(
        &mut self,
        at: (&Dir, &[u8]),
        source: &Entry,
        there: Option<&Entry>,
        (path, full): (&RelPath, &[u8]),
        mode: u32,
    ) -> bool {
        let has = there.map_or_else(Has::default, |there| Has::of(there, Changes::NONE));
        let mut problems = Vec::new();
        let full = || full.to_vec();
        let subject =
            Subject { fd: at.0.fd(), name: at.1, full: &full, path: path.as_bytes(), voice: Voice::Generator };
        attrs::finish(self.context, subject, source, Has { times_are_right: true, ..has }, mode, &mut problems);
        let well = problems.is_empty();
        self.head.extend(problems.into_iter().map(Event::Problem));
        well
    }

    /// What is done about a directory in another one; its frame if its content takes part.
    fn directory(&mut self, parent: &Arc<DirPlan>, spot: &Arc<Spot>, sub: SubDir) -> Result<Option<Frame>, Error> {
        let sub = self.decided_now(parent, spot, sub);
        let source = &parent.source.entries[sub.step.source as usize];
        let name = parent.source.name(source);
        let path = spot.path.join(name);
        let there = (sub.step.dest != NONE).then(|| &parent.dest.entries[sub.step.dest as usize]);
        let job = Job::new(parent, sub.step, spot);
        let same = there.filter(|there| there.is_dir());
        if let Action::Refuse(_) = sub.step.decision.action {
            let mut out = Outcome::default();
            entry::perform(self.context, &mut file::Hands::default(), &job, &mut out);
            self.head.append(&mut out.events);
            return Ok(None);
        }
        let (changes, update) = dir_changes(sub.step.decision.action);
        if self.context.options.select.no_inc_recursive {
            self.checked(1);
        }
        let is_new = changes.has(Changes::NEW);
        let is_unsaid = sub.implied && self.context.options.select.no_implied_dirs;
        if is_new && !is_unsaid {
            self.tally.created.add(Kind::Dir);
        }
        let told = self.context.wants.unchanged || (self.context.wants.items && !changes.is_none());
        let mut item = told.then(|| Event::Item(job.item(self.context, update, changes)));
        if is_unsaid {
            item = None;
        }
        if sub.step.decision.in_the_way == InTheWay::Other && !self.clear_for_dir(spot, &path) {
            return Ok(None);
        }
        let (dir, last) = self.open_or_make(spot, name, source, same, sub, changes, &path)?;
        let Some((dir, last)) = dir.map(|dir| (dir, last)) else {
            // Told as made all the same, as rsync does.
            self.head.extend(item);
            return Ok(None);
        };
        let Some(ticket) = sub.ticket else {
            self.head.extend(item);
            return Ok(None);
        };
        let Some(mut below) = self.take(ticket, &path, &parent.there(&sub))? else {
            self.head.extend(item);
            self.pass_by();
            let plan = Arc::new(DirPlan::of(Listed { path: path.clone(), ..Listed::default() }));
            let spot = Arc::new(Spot::new(path, dir, last));
            return Ok(Some(Frame { plan, spot, next: 0, has_plan: false }));
        };
        // One that was there when its plan was made may have gone with what a symlink led to.
        let is_gone = is_new && below.dest_dir.is_some();
        if (below.dest_unseen && !is_new) || is_gone {
            self.plans.walk().look_again(&mut below, dir.as_ref());
        }
        let spot = Arc::new(Spot::new(path, dir, last));
        self.enter(below, spot, None, item).map(Some)
    }

    /// What shall be done about a directory, decided anew where its namesake was reached through a symlink (`-K`) and what
    /// that led to was deleted since.
    fn decided_now(&self, parent: &DirPlan, spot: &Spot, sub: SubDir) -> SubDir {
        let options = self.context.options;
        let may_be_gone = options.preserve.keep_dirlinks && options.delete.when.is_some() && sub.step.dest != NONE;
        let Some(dir) = spot.dir.as_ref().filter(|_| may_be_gone && !self.context.is_dry()) else { return sub };
        let source = &parent.source.entries[sub.step.source as usize];
        let name = parent.source.name(source);
        let was_dir = parent.dest.entries[sub.step.dest as usize].is_dir();
        if !was_dir || sys::stat(dir.fd(), name, true).is_ok() {
            return sub;
        }
        let mut there = DirList::default();
        if let Ok(stat) = sys::stat(dir.fd(), name, false) {
            there.push(name, &stat);
        }
        let decision = crate::plan::decide(source, there.entries.first(), None, false, self.context.policy);
        SubDir { step: Step { dest: NONE, decision, ..sub.step }, ..sub }
    }

    /// Removes what is no directory from where a directory shall be.
    fn clear_for_dir(&mut self, spot: &Spot, path: &RelPath) -> bool {
        let Some(dir) = &spot.dir else { return true };
        spot.last.touch();
        let keeps = !self.remover.is_backup(path);
        if self.context.is_dry() {
            if keeps {
                remove::tell_backup(self.context, path, &mut self.head);
            }
            return true;
        }
        if keeps && let Err(problem) = remove::back_up(self.context, Voice::Generator, dir, path, &mut self.head) {
            self.head.push(Event::Problem(problem));
            return false;
        }
        match sys::unlink(dir.fd(), path.name()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let full = self.context.full(path.as_bytes());
                self.head.push(Event::Problem(Problem::failed(Voice::Generator, "delete_file: unlink", &full, &error)));
                false
            }
            _ => true,
        }
    }

    /// The directory, made if it is missing; an inner `None`: it could not be had.
    #[allow(clippy::too_many_arguments, clippy::type_complexity, reason = "one caller")]
    fn open_or_make(
        &mut self,
        spot: &Arc<Spot>,
        name: &[u8],
        source: &Entry,
        there: Option<&Entry>,
        sub: SubDir,
        changes: Changes,
        path: &RelPath,
    ) -> Result<(Option<Option<Dir>>, Arc<LastTouch>), Error> {
        let late = self.late.clone();
        let untouched = || LastTouch::none(Some(spot.last.clone()), late.clone());
        let full = self.context.full(path.as_bytes());
        if spot.dir.is_none() && !self.context.is_dry() {
            self.cannot_make(&full, &errno::outside());
            return Ok((None, untouched()));
        }
        let Some(parent) = spot.dir.as_ref().filter(|_| !self.context.is_dry()) else {
            let dir = spot.dir.as_ref().filter(|_| there.is_some());
            let dir = dir.and_then(|_| self.context.dest.and_then(|dest| dest.open_dir_to_search(path).ok()));
            return Ok((Some(dir), untouched()));
        };
        let is_new = there.is_none();
        let around = spot.passes_on();
        let bare = sub.implied && self.context.options.select.no_implied_dirs;
        if is_new {
            let mode = match bare {
                true => 0o777 & !self.context.umask,
                false => self.dir_mode(source, None, around) & 0o777 | 0o700,
            };
            match sys::mkdir(parent.fd(), name, mode) {
                Ok(()) => spot.last.touch(),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    self.cannot_make(&full, &error);
                    return Ok((None, untouched()));
                }
            }
        }
        let followed = self.context.policy.preserve.keep_dirlinks && !is_new;
        let open = |to_search: bool| match (followed, to_search) {
            (true, true) => self.context.dest.expect("not dry").open_dir_to_search(path),
            (true, false) => self.context.dest.expect("not dry").open_dir(path),
            (false, true) => sys::open_dir_to_search(parent.fd(), name, Follow::Never).map(Dir::new),
            (false, false) => sys::open_dir(parent.fd(), name, Follow::Never).map(Dir::new),
        };
        let mut opened = open(false);
        let closed = matches!(&opened, Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied);
        if closed {
            opened = open(true);
        }
        let mut dir = match opened {
            Ok(dir) => dir,
            // Its plan tells what that means.
            Err(error) if followed && errno::leads_outside(&error) => return Ok((Some(None), untouched())),
            Err(error) => {
                self.head.push(Event::Problem(Problem::failed(Voice::Generator, "opendir", &full, &error)));
                return Ok((None, untouched()));
            }
        };
        if bare {
            return Ok((Some(Some(dir)), untouched()));
        }
        if is_new {
            let late = self.finish_new_dir(&dir, source, path, around);
            let last = self.last_touch(Some(spot.last.clone()), path.clone(), source, full, true, late);
            return Ok((Some(Some(dir)), last));
        }
        // What may not be listed can only be changed by its name.
        let at: (Dir, &[u8]) = if closed { (parent.clone(), name) } else { (dir.clone(), b"") };
        let (late, well) = self.prepare_dir((&at.0, at.1), source, there, changes, path, full.clone(), around);
        if closed && let Ok(readable) = open(false) {
            dir = readable;
        }
        let always = well && changes.has(Changes::TIME);
        let last = self.last_touch(Some(spot.last.clone()), path.clone(), source, full, always, late);
        Ok((Some(Some(dir)), last))
    }

    fn cannot_make(&mut self, full: &[u8], error: &std::io::Error) {
        let what = "recv_generator: mkdir";
        self.head.push(Event::Problem(Problem::failed(Voice::Generator, what, full, error)));
        let line = "*** Skipping any contents from this failed directory ***";
        self.head.push(Event::Problem(Problem::said(line, Weight::Warning)));
    }

    /// The attributes of a directory that was just made.
    /// Returns the mode that must wait for the end.
    fn finish_new_dir(&mut self, dir: &Dir, source: &Entry, path: &RelPath, parent: chmod::Parent) -> Option<u32> {
        let Ok(stat) = sys::fstat(dir.fd()) else { return None };
        let wanted = self.dir_mode(source, None, parent);
        let mode = self.working_mode(wanted);
        let acls =
            (!self.context.policy.preserve.acls || parent.default_acl_mode.is_none()).then_some((&b""[..], &b""[..]));
        let has =
            Has { ids: Some((stat.uid, stat.gid)), mode: Some(stat.mode), times_are_right: true, xattrs: &[], acls };
        let mut problems = Vec::new();
        let full = || self.context.full(path.as_bytes());
        let subject = Subject { fd: dir.fd(), name: b"", full: &full, path: path.as_bytes(), voice: Voice::Generator };
        attrs::finish(self.context, subject, source, has, mode, &mut problems);
        self.head.extend(problems.into_iter().map(Event::Problem));
        (mode != wanted).then_some(wanted)
    }

    fn may_delete(&mut self) -> bool {
        if !self.io_error || self.context.options.delete.ignore_errors {
            return true;
        }
        if !self.said_io_error {
            self.said_io_error = true;
            self.head.push(Event::Note(b"IO error encountered -- skipping file deletion".to_vec()));
        }
        false
    }

    /// Passes a directory in which nothing is to be done. Deletion is not: where it is skipped, that is told all the same.
    fn pass_by(&mut self) {
        if matches!(self.context.options.delete.when, Some(When::During | When::Delay)) {
            self.may_delete();
        }
    }

    /// Notes the file systems on which arguments begin, as the destination has them (`-x`).
    fn begin_walks(&mut self, plan: &DirPlan) {
        let options = self.context.options;
        let (true, Some(dest)) = (options.select.one_file_system > 0, self.context.dest) else { return };
        if plan.path.is_root()
            && let Ok(stat) = sys::fstat(dest.dir().fd())
        {
            self.stays_on.insert(RelPath::root(), stat.dev);
        }
        if !plan.is_named {
            return;
        }
        let Ok(dir) = dest.open_dir_to_search(&plan.path) else { return };
        for sub in plan.subdirs.iter().filter(|sub| !sub.implied) {
            let name = plan.source.name(&plan.source.entries[sub.step.source as usize]);
            if let Ok(stat) = sys::stat(dir.fd(), name, options.preserve.keep_dirlinks) {
                self.stays_on.insert(plan.path.join(name), stat.dev);
            }
        }
    }

    /// Whether a directory lies on the file system that deletion stays on; the remover hears which one that is.
    fn stays_in(&mut self, path: &RelPath, dir: &Dir) -> bool {
        if self.context.options.select.one_file_system == 0 {
            return true;
        }
        let above = std::iter::successors(Some(path.clone()), RelPath::parent);
        let dev = above.filter_map(|path| self.stays_on.get(&path).copied()).next();
        self.remover.one_file_system = dev;
        dev.is_none_or(|dev| sys::fstat(dir.fd()).is_ok_and(|stat| stat.dev == dev))
    }

    fn delete_during(&mut self, plan: &DirPlan, spot: &Arc<Spot>) {
        let when = self.context.options.delete.when;
        if !matches!(when, Some(When::During | When::Delay)) || !plan.may_delete {
            return;
        }
        // What was just made holds nothing, and yet is told of where nothing may be deleted.
        if spot.dir.is_none() || !self.may_delete() {
            return;
        }
        let Some(dir) = plan.dest_dir.as_ref() else { return };
        if when == Some(When::During) && !self.stays_in(&plan.path, dir) {
            return;
        }
        let extra = |&at: &u32| &plan.dest.entries[at as usize];
        if when == Some(When::Delay) {
            let extras =
                plan.extras.iter().rev().map(extra).map(|entry| (plan.dest.name(entry).to_vec(), entry.is_dir()));
            let extras: Vec<_> = extras.collect();
            if !extras.is_empty() {
                let (path, chain, last) = (spot.path.clone(), plan.receiver_chain.clone(), spot.last.clone());
                self.delayed.push(DelayedDeletes { path, extras, chain, last });
            }
            return;
        }
        for entry in plan.extras.iter().rev().map(extra) {
            let path = spot.path.join(plan.dest.name(entry));
            let removed = self.remover.remove(dir, &path, entry.is_dir(), plan.receiver_chain.as_ref(), &mut self.head);
            if removed == Removed::Gone {
                spot.last.touch();
            }
        }
    }

    /// Deletes before anything else is done. Directories that lost something have another time after that,
    /// so they are decided anew; `top` is what the destination's root was.
    fn delete_before(&mut self, root: Ticket, top: Option<&mut Entry>) -> Result<(), Error> {
        let mut changed = HashMap::new();
        let mut tickets = vec![root];
        let mut order = Vec::new();
        while let Some(ticket) = tickets.pop() {
            let Some(mut plan) = self.held.remove(&ticket) else { continue };
            tickets.extend(plan.subdirs.iter().rev().filter_map(|sub| sub.ticket));
            self.begin_walks(&plan);
            let deletes = plan.may_delete && !plan.extras.is_empty();
            if deletes {
                plan.take_up(self.plans.walk());
            }
            if plan.may_delete
                && self.may_delete()
                && let Some(dir) = plan.dest_dir.as_ref()
                && self.stays_in(&plan.path, dir)
            {
                let mut any = false;
                for &extra in plan.extras.iter().rev() {
                    let entry = &plan.dest.entries[extra as usize];
                    let path = plan.path.join(plan.dest.name(entry));
                    let chain = plan.receiver_chain.as_ref();
                    any |= self.remover.remove(dir, &path, entry.is_dir(), chain, &mut self.head) == Removed::Gone;
                }
                if any && let Ok(stat) = sys::fstat(dir.fd()) {
                    changed.insert(ticket, stat.mtime);
                }
            }
            if deletes {
                plan.park();
            }
            order.push(ticket);
            self.held.insert(ticket, plan);
        }
        if let (Some(there), Some(mtime)) = (top, changed.get(&root)) {
            there.mtime = *mtime;
        }
        for ticket in order.into_iter().filter(|_| !self.context.is_dry() && !changed.is_empty()) {
            let plan = self.held.get_mut(&ticket).expect("held above");
            for at in 0..plan.subdirs.len() {
                let sub = plan.subdirs[at];
                if let (Some(mtime), true) = (sub.ticket.and_then(|below| changed.get(&below)), sub.step.dest != NONE) {
                    plan.dest.entries[sub.step.dest as usize].mtime = *mtime;
                    let (source, there) =
                        (&plan.source.entries[sub.step.source as usize], &plan.dest.entries[sub.step.dest as usize]);
                    plan.subdirs[at].step.decision =
                        crate::plan::decide(source, Some(there), None, false, self.context.policy);
                }
            }
        }
        self.ask_remover()?;
        self.flush(Vec::new())
    }

    /// Whether the rules of a directory that was to go ended the run.
    fn ask_remover(&mut self) -> Result<(), Error> {
        self.remover.fatal.take().map_or(Ok(()), Err)
    }

    /// Lists the directory anew, with the rules that its own and its parents' files say now, and
    /// deletes. `chains`: the rules in force in the directories before it.
    fn delete_after(&mut self, after: &After, chains: &mut HashMap<RelPath, Chain>) -> Result<(), Error> {
        let Some(Ok(dir)) = self.context.dest.map(|dest| dest.open_dir(&after.path)) else { return Ok(()) };
        let above = after.path.parent().and_then(|parent| chains.get(&parent));
        let mut chain = above.unwrap_or(self.plans.walk().receiver_chain).clone();
        if chain.has_per_dir() && (after.may_delete || !after.path.is_root()) {
            if !chains.is_empty() {
                chain = chain.for_further_source();
            }
            let owners = self.context.options.preserve.link_owners;
            let (entered, refusals) = enter_dir(&chain, &dir, &after.path, ("generator", owners))?;
            self.head.extend(refusals.into_iter().map(Event::Problem));
            chain = entered;
            chains.insert(after.path.clone(), chain.clone());
        }
        if !after.may_delete || !self.may_delete() || !self.stays_in(&after.path, &dir) {
            return Ok(());
        }
        let extras = self.plans.walk().extras_now(&after.path, &after.source, &dir, &chain);
        for (name, is_dir) in extras.iter().rev() {
            let path = after.path.join(name);
            if self.remover.remove(&dir, &path, *is_dir, Some(&chain), &mut self.head) == Removed::Gone {
                after.last.touch();
            }
        }
        Ok(())
    }

    /// Removes directories that are in the way of other things; what cannot be had is refused.
    fn make_room(&mut self, plan: &mut DirPlan, spot: &Arc<Spot>) {
        for at in 0..plan.steps.len() {
            let step = plan.steps[at];
            if step.decision.in_the_way != InTheWay::Dir {
                continue;
            }
            let entry = &plan.source.entries[step.source as usize];
            let what = match entry.kind() {
                Kind::File => "regular file",
                Kind::Symlink => "symlink",
                Kind::Device => "device file",
                Kind::Special => "special file",
                Kind::Dir => "directory",
            };
            let path = spot.path.join(plan.source.name(entry));
            let Some(dir) = plan.dest_dir.clone() else { continue };
            match self.remover.make_room(&dir, &path, plan.receiver_chain.as_ref(), what, &mut self.head) {
                true => spot.last.touch(),
                false => plan.steps[at].decision.action = Action::Refuse(Reason::InTheWay),
            }
        }
    }

    /// Cuts a directory's steps into batches.
    fn hand_out(&mut self, plan: &Arc<DirPlan>, spot: &Arc<Spot>) -> Result<(), Error> {
        let mut start = 0;
        let mut bytes = 0;
        for (at, step) in plan.steps.iter().enumerate() {
            let entry = &plan.source.entries[step.source as usize];
            if self.lists_before(plan.source.name(entry), spot) {
                if start < at {
                    self.flush(vec![Work::Steps(plan.clone(), start..at, spot.clone())])?;
                }
                (start, bytes) = (at, 0);
                let path = spot.path.join(plan.source.name(entry));
                self.delete_missing(&spot.path, &spot.last, |missing| told_before(missing, &path));
            }
            if let Some(inode) = self.link_group(plan, step) {
                if start < at {
                    self.flush(vec![Work::Steps(plan.clone(), start..at, spot.clone())])?;
                }
                (start, bytes) = (at + 1, 0);
                self.link_member(inode, Member { plan: plan.clone(), step: at, spot: spot.clone() })?;
                continue;
            }
            bytes += if matches!(step.decision.action, Action::Transfer(_)) { entry.len_bytes } else { 0 };
            if bytes >= BATCH_BYTES || at + 1 - start >= BATCH_STEPS {
                self.flush(vec![Work::Steps(plan.clone(), start..at + 1, spot.clone())])?;
                (start, bytes) = (at + 1, 0);
            }
        }
        let rest = start..plan.steps.len();
        if rest.is_empty() {
            return self.flush_if_any();
        }
        self.flush(vec![Work::Steps(plan.clone(), rest, spot.clone())])
    }

    /// Whether a listing tells a missing argument before a file of a directory.
    fn lists_before(&self, name: &[u8], spot: &Spot) -> bool {
        self.context.policy.list_only
            && self.missing.last().is_some_and(|missing| told_before(missing, &spot.path.join(name)))
    }

    /// The inode that a step shares with other names of its group; `None` if the step stands alone: it has
    /// one name only, is left as it is, or need not be there because of `--compare-dest`.
    fn link_group(&self, plan: &DirPlan, step: &Step) -> Option<(u64, u64)> {
        if !self.context.policy.preserve.hard_links
            || matches!(step.decision.action, Action::Refuse(_) | Action::Elsewhere)
        {
            return None;
        }
        plan.source.entries[step.source as usize].extra.as_ref().and_then(|extra| extra.dev_ino)
    }

    /// One more name of a group. The first name that the destination (or an alternate one) has leads, else the
    /// last; of what is no regular file always the first. The others become links to it: those that came
    /// before it at once and in reverse, those after it in their places.
    fn link_member(&mut self, inode: (u64, u64), member: Member) -> Result<(), Error> {
        let group = self.links.entry(inode).or_default();
        group.met += 1;
        let is_last = self.links_expected.get(&inode).is_none_or(|&expected| group.met >= expected);
        if let Some(leader) = group.leader.clone() {
            if is_last {
                self.links.remove(&inode);
            }
            return self.flush(vec![Work::Follow(member, leader)]);
        }
        let job = member.job();
        let is_there = !job.step.decision.action.is_new();
        if !is_last && !is_there && job.source().kind() == Kind::File {
            group.waiting.push(member);
            return Ok(());
        }
        let mut group = self.links.remove(&inode).expect("met just now");
        let leader = self.lead(member, std::mem::take(&mut group.waiting))?;
        if !is_last {
            self.links.insert(inode, LinkGroup { leader: Some(leader), ..group });
        }
        Ok(())
    }

    /// Places a name and links those that waited for it.
    fn lead(&mut self, member: Member, waiting: Vec<Member>) -> Result<Arc<Leader>, Error> {
        let leader = Arc::new(Leader::new(&member.job(), member.spot.clone()));
        let mut work = vec![Work::Lead(member, Leading(leader.clone()))];
        work.extend(waiting.into_iter().rev().map(|member| Work::Follow(member, leader.clone())));
        self.flush(work)?;
        Ok(leader)
    }

    /// Groups of which a name that was expected did not come.
    fn finish_links(&mut self) -> Result<(), Error> {
        for (_, mut group) in std::mem::take(&mut self.links) {
            if let Some(member) = group.waiting.pop() {
                self.lead(member, group.waiting)?;
            }
        }
        Ok(())
    }

    fn flush_if_any(&mut self) -> Result<(), Error> {
        // Counts alone can wait for the next batch.
        if self.head.is_empty() { Ok(()) } else { self.flush(Vec::new()) }
    }

    /// Chooses similar files, and asks a peer for what the work needs, in the order in which the appliers will take it.
    fn ask_for(&mut self, work: &[Work]) -> Result<(), Error> {
        let context = self.context;
        let wire = context.wire.filter(|_| !context.is_dry());
        let mut ask = |job: Job<'_>| -> Result<(), Error> {
            let comes_unasked = job.plan.teller.as_ref().is_some_and(|teller| teller.with_data);
            if comes_unasked || !matches!(job.step.decision.action, Action::Transfer(_)) {
                return Ok(());
            }
            let similar = self.lookout.choose(context, &job);
            if let (Some(wire), Some(file)) = (wire, job.file_id()) {
                wire.want(file, content::basis(context, &job, similar.as_ref()))?;
            }
            if let Some(similar) = similar {
                context.chosen.put(&job.path, similar);
            }
            Ok(())
        };
        for work in work {
            match work {
                Work::Steps(plan, range, spot) => {
                    for step in &plan.steps[range.clone()] {
                        ask(Job::new(plan, *step, spot))?;
                    }
                }
                Work::Lead(member, _) => ask(member.job())?,
                Work::Follow(..) => {}
            }
        }
        Ok(())
    }

    /// Declines what comes unasked of a told directory and is not needed.
    fn decline(&self, plan: &DirPlan) {
        let Some((wire, teller)) = self.context.wire.zip(plan.teller.as_ref()).filter(|(_, t)| t.with_data) else {
            return;
        };
        let mut steps = plan.steps.iter().filter(|step| matches!(step.decision.action, Action::Transfer(_))).peekable();
        for (at, entry) in plan.source.entries.iter().enumerate() {
            let at = at as u32;
            if steps.next_if(|step| step.source == at).is_none() && entry.kind() == Kind::File {
                wire.decline(FileId { dir: teller.id, entry: at });
            }
        }
    }

    fn flush(&mut self, work: Vec<Work>) -> Result<(), Error> {
        self.ask_for(&work)?;
        let batch = Batch {
            number: self.number,
            head: std::mem::take(&mut self.head),
            tally: std::mem::take(&mut self.tally),
            work,
        };
        self.number += 1;
        (self.pace)(self.number);
        self.queue.push(batch).map_err(|_| Error::new(Exit::Crashed, "a worker stopped"))
    }
}

/// The line for a directory in which nobody but its owner or root could work.
fn cannot_open_up(full: &[u8], error: &std::io::Error) -> Problem {
    let mut line = b"rsync: [generator] failed to modify permissions on \"".to_vec();
    line.extend_from_slice(full);
    line.extend_from_slice(b"\": ");
    line.extend_from_slice(&crate::report::event::errno_words(error));
    Problem::said(line, Weight::Failed)
}

/// Whether one path comes before another in the list, neither being a directory's.
fn told_before(one: &RelPath, other: &RelPath) -> bool {
    order::compare_paths((one.as_bytes(), false), (other.as_bytes(), false)).is_lt()
}

/// Whether a path that no directory has comes before the directories in a directory: rsync lists it as a file.
fn comes_before_dirs_of(path: &RelPath, dir: &RelPath) -> bool {
    let is_in = path.parent().unwrap_or_default() == *dir;
    is_in || !dir.is_root() && order::compare_paths((path.as_bytes(), false), (dir.as_bytes(), true)).is_lt()
}

/// What differs of a directory, and how it is told.
fn dir_changes(action: Action) -> (Changes, Update) {
    match action {
        Action::Create(changes) => (changes, Update::Local),
        Action::Adjust(changes) => (changes, Update::Attrs),
        Action::Keep | Action::Refuse(_) | Action::AskDigest => (Changes::NONE, Update::Attrs),
        Action::Transfer(_) | Action::Copy(_) | Action::Link | Action::Elsewhere => (Changes::NONE, Update::Attrs),
    }
}

/// A directory whose own directories are being gone through.
struct Frame {
    plan: Arc<DirPlan>,
    spot: Arc<Spot>,
    next: usize,
    /// Otherwise nothing is to be done in it, but perhaps below it.
    has_plan: bool,
}
