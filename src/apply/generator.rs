//! Processes the plans in canonical order: deletes, creates directories, and hands everything else to the appliers.
//!
//! Everything that depends on order happens in this one thread, and only [`Generator`] knows the order. The steps are
//! in its submodules: [`plan_queue`] supplies the plans, [`deletions`] removes extra entries, [`dirs`] creates directories,
//! [`link_groups`] groups hard links, [`shared_files`] finds names whose file an earlier step changes, [`partials`] removes
//! parts that earlier runs kept, [`twin_search`] finds files whose content new files take, [`steps`] cuts the steps of a
//! directory into [`batch`]es, [`planned`] records or settles a plan, and [`outbox`] sends work and events to the appliers.

mod batch;
mod deletions;
mod dirs;
mod link_groups;
mod outbox;
mod partials;
mod plan_queue;
mod planned;
mod planned_backups;
mod planned_groups;
mod planned_twins;
mod shared_files;
mod steps;
mod twin_contents;
mod twin_search;

pub use self::batch::{Retries, WorkBatch};
use self::deletions::Deletions;
use self::dirs::Opened;
use self::link_groups::LinkGroups;
pub use self::outbox::Appliers;
use self::outbox::Outbox;
use self::plan_queue::PlanPool;
pub use self::plan_queue::{OnSkipped, Plans, count_so_far};
use self::planned_groups::RecordedGroups;
use self::shared_files::SharedFiles;
use self::twin_search::{FoundTwins, TwinSearch};
use crate::apply::abbreviated::LocalValues;
use crate::apply::dir_finalize::LastTouch;
use crate::apply::job::{Job, item_of};
use crate::apply::{Context, DestDir, delayed};
use crate::error::Result;
use crate::flist::{Entry, FileId, Kind, Time};
use crate::fs::root::{Dir, ParkedDir, Root};
use crate::fs::{errno, sys};
use crate::options::When;
use crate::path::{self, RelPath};
use crate::plan::explained::{DecidedFact, Fact};
use crate::plan::{self, Action, Changes, InTheWay};
use crate::report::event::{ErrorRole, Event, Problem, Update, Weight};
use crate::walk::{DirPlan, Findings, NONE, Step, SubDir, TaskId};
use std::io;
use std::sync::Arc;

/// The maximum of [`Generator::levels_open`]. Each level has up to three descriptors.
const LEVELS_OPEN: usize = 64;
/// At most one open level per this many files that the process may have open.
const OPEN_PARTS: usize = 16;
/// How many events are gathered at the end before they are reported.
const EVENTS_AT_ONCE: usize = 1000;

/// The transfer's root, if the content of a source directory is the root.
pub struct Top {
    /// The source directory.
    pub source: Entry,
    /// The current state of the destination's root.
    pub existing: Option<Entry>,
    /// The source directory as the sender sees it (`%f`); `None` if the reporting end does not know it.
    pub shown: Option<Vec<u8>>,
}

/// Whether all plans are made before anything is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFirst {
    /// They are not.
    No,
    /// Only to search for files whose content new files take. Otherwise the run is as if it were not so.
    ToSearch,
    /// The options need the whole list.
    Needed,
}

/// Processes the plans in order.
pub struct Generator<'a> {
    plans: &'a dyn Plans,
    context: &'a Context<'a>,
    pool: PlanPool<'a>,
    deletions: Deletions<'a>,
    shared: SharedFiles,
    links: LinkGroups<'a>,
    out: Outbox<'a>,
    list_first: ListFirst,
    /// The time of the root, if deletions before the copy have changed it.
    root_changed: Option<Time>,
    /// Set while all plans are taken before anything is done.
    search: Option<TwinSearch<'a>>,
    /// The hard-link groups, if a plan is stored.
    recorded_groups: RecordedGroups,
    /// How many directories, each in the one before, may be open at once. 0: this process may have so few files open
    /// that each directory must be done before the next one is opened.
    levels_open: usize,
}

/// A directory whose subdirectories are being processed.
struct Frame {
    plan: Arc<DirPlan>,
    dest_dir: Arc<DestDir>,
    /// The index of the next subdirectory.
    next: usize,
    /// If `false`, nothing is to be done in the directory itself, but possibly below it.
    has_plan: bool,
    /// The plan is a copy for the subdirectories, because appliers share the original and its descriptors.
    is_copy: bool,
    /// Its closed directory at the destination.
    parked: Option<ParkedDir>,
}

impl Frame {
    /// Creates the frame of a directory whose own entries are done.
    fn new(plan: Arc<DirPlan>, dest_dir: Arc<DestDir>, has_plan: bool) -> Frame {
        let lists_in_turn = plan
            .found
            .sender_dir
            .as_ref()
            .is_some_and(|sender_dir| sender_dir.lists_in_turn);
        let mut frame = Frame {
            plan,
            dest_dir,
            next: 0,
            has_plan,
            is_copy: false,
            parked: None,
        };
        if lists_in_turn && !frame.plan.decided().subdirs.is_empty() {
            // The directory is finished before those below it, which could wait for that.
            frame.close_sources();
        }
        frame
    }

    /// Closes its descriptors. Those that appliers share are closed when they are done.
    fn park(&mut self) {
        if let Some(Ok(parked)) = self
            .dest_dir
            .dir
            .as_ref()
            .map(|dir| dir.parked(self.dest_dir.path.clone()))
        {
            self.parked = Some(parked);
            self.set_dir(None);
        }
        self.close_sources();
    }

    fn close_sources(&mut self) {
        if !std::mem::replace(&mut self.is_copy, true) {
            self.plan = Arc::new(self.plan.for_subdirs());
        }
    }

    fn set_dir(&mut self, dir: Option<Dir>) {
        self.dest_dir = Arc::new(DestDir::new(
            self.dest_dir.path.clone(),
            dir,
            self.dest_dir.last.clone(),
        ));
    }

    /// Opens the directory again if it was closed.
    fn reopen_dirs(&mut self, dest: Option<&Root>) -> io::Result<()> {
        if let Some((parked, dest)) = self.parked.as_ref().zip(dest) {
            let dir = dest.reopen_dir(parked)?;
            self.set_dir(Some(dir));
            self.parked = None;
        }
        Ok(())
    }
}

impl<'a> Generator<'a> {
    /// Creates a generator that has processed nothing.
    pub fn new(
        plans: &'a dyn Plans,
        unnamed: u64,
        context: &'a Context<'a>,
        appliers: Appliers<'a>,
    ) -> Generator<'a> {
        Generator {
            plans,
            context,
            pool: PlanPool::new(plans, context, unnamed),
            deletions: Deletions::new(context, plans.walk()),
            shared: SharedFiles::default(),
            links: LinkGroups::new(context),
            out: Outbox::new(context, appliers),
            list_first: ListFirst::No,
            search: None,
            recorded_groups: RecordedGroups::default(),
            root_changed: None,
            levels_open: sys::share_of_open_files(OPEN_PARTS, LEVELS_OPEN),
        }
    }

    /// Notes that an argument could not be read. As after any such error, deletions are skipped.
    pub fn source_failed(&mut self) {
        self.deletions.source_failed();
    }

    /// Processes the whole tree. `missing` lists arguments that the source lacks; the events in `opening` precede the
    /// first entry.
    pub fn run(
        &mut self,
        mut top: Option<Top>,
        list_first: ListFirst,
        missing: &[RelPath],
        opening: Vec<Event>,
    ) -> Result<()> {
        self.list_first = list_first;
        if list_first != ListFirst::No {
            self.begin_search();
            self.hold_all()?;
            self.end_search()?;
        } else if self.context.policy.preserve.hard_links {
            self.look_ahead(PlanPool::hold_first)?;
        }
        self.out.head.extend(opening);
        self.settle_planned_groups()?;
        if self.context.options.delete.when == Some(When::Before) {
            self.delete_before(top.as_mut().and_then(|top| top.existing.as_mut()))?;
        }
        self.deletions.expect_missing(missing);
        let mut stack = vec![self.root(top.as_ref())?];
        while let Some(frame) = stack.last_mut() {
            match self.next_below(frame)? {
                Some(below) => {
                    if let Some(above) = stack.len().checked_sub(self.levels_open.max(1)) {
                        stack[above].park();
                    }
                    stack.push(below);
                }
                None => drop(stack.pop()),
            }
        }
        self.count_list();
        self.deletions.missing_at_the_end(&mut self.out.head);
        for work in self.links.close() {
            self.out.queue_work(work)?;
        }
        self.out.end_requests()?;
        self.out.settle_followers()?;
        self.out.queue_work(Vec::new())
    }

    /// Does what remains once all batches are done. Returns how many deletions `--max-delete` prevented.
    pub fn finish(&mut self) -> Result<u64> {
        self.out.wait();
        // A stopped run left work undone, so it must not rename or delete anything.
        self.context.go_on()?;
        let head = &mut self.out.head;
        delayed::place_delayed(self.context, head);
        let mut again = std::mem::take(&mut *self.context.again.lock());
        again.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
        head.extend(again.into_iter().map(|(_, event)| event));
        // Deletions that happen earlier cannot know yet that a file is unreadable, and with `--delete-delay` rsync does
        // not check.
        if self.context.options.delete.when == Some(When::After) && self.out.source_failed() {
            self.deletions.source_failed();
        }
        let head = &mut self.out.head;
        if let Some(gauge) = self.context.gauge
            && self.context.options.delete.when.is_some()
        {
            gauge.set_deleting(true);
        }
        let held_back = self.deletions.finish(head)?;
        self.out.tally.merge(&self.deletions.take_tally());
        self.context.go_on()?;
        self.report_unsettled()?;
        let head = &mut self.out.head;
        if held_back > 0 {
            let line = format!("Deletions stopped due to --max-delete limit ({held_back} skipped)");
            head.push(Event::Problem(Problem::new(line, Weight::Warning)));
        }
        self.out.queue_work(Vec::new())?;
        Ok(held_back)
    }

    /// Takes every plan before anything is done, for options that need the whole list.
    fn hold_all(&mut self) -> Result<()> {
        self.look_ahead(PlanPool::hold_all)?;
        if self.context.wants.progress || self.context.wants.whole_list {
            self.out.head.push(self.pool.whole_list());
        }
        if self.context.options.select.prune_empty_dirs {
            let Generator {
                context,
                pool,
                deletions,
                out,
                ..
            } = self;
            pool.prune(&mut |findings| report_findings(context, deletions, out, findings))?;
        }
        Ok(())
    }

    /// Begins to search for files whose content new files take.
    fn begin_search(&mut self) {
        if self.context.process.stored.is_some() {
            // The plan has what was found.
            return;
        }
        let how = self.context.options.delta.detect_renamed;
        let has_files = self.context.dest.is_some() || !self.context.alternates.is_empty();
        if let Some(how) = how
            && has_files
            && !self.context.policy.list_only
        {
            self.search = Some(TwinSearch::new(self.context, self.plans.walk(), how));
        }
    }

    /// Ends the search. All plans are held.
    fn end_search(&mut self) -> Result<()> {
        if let Some(stored) = self.context.process.stored {
            let walk = self.plans.walk();
            let (found, problems) =
                planned_twins::settle(&mut self.pool, stored, self.context, walk)?;
            let problems = problems.into_iter().map(Event::Problem);
            self.out.head.extend(problems);
            // Files that the run changes are no twins in plans.
            self.take_twins(found, 0);
            return Ok(());
        }
        let Some(mut search) = self.search.take().filter(TwinSearch::is_useful) else {
            return Ok(());
        };
        if self.deletions.has_source_failed() {
            search.never_link();
        }
        let mut unwritten_bytes = 0_u64;
        for plan in self.pool.held_plans() {
            search.look_at(plan);
            unwritten_bytes = unwritten_bytes.saturating_add(to_transfer(plan).1);
        }
        search.look_into_alternates();
        let found = search.settle(self.pool.held_plans())?;
        self.take_twins(found, unwritten_bytes);
        Ok(())
    }

    /// Notes which files take the content of which others. `unwritten_bytes`: what the run will write at most.
    fn take_twins(&mut self, found: FoundTwins, unwritten_bytes: u64) {
        let FoundTwins {
            twins,
            has_extras,
            is_cut,
        } = found;
        if is_cut {
            let line = b"sparsync: --detect-renamed has looked at a part of the files, because they are many";
            self.out.head.push(Event::Note(line.to_vec()));
        }
        if has_extras {
            self.deletions.wait_for_end();
        }
        self.context.twins.settle(twins, unwritten_bytes);
    }

    /// Keeps the time of a directory from being set before what may still change in it at any moment has been done.
    fn hold(&mut self, dir: &RelPath, last: &Arc<LastTouch>) {
        self.deletions.hold(dir, last);
        if let Some(backup) = self.context.backup {
            backup.hold(dir, last);
        }
    }

    /// Takes plans before their turn, as many as `hold` does, and collects hard links and read errors from them.
    fn look_ahead(
        &mut self,
        hold: impl FnOnce(&mut PlanPool<'a>, &mut plan_queue::See<'_>) -> Result<()>,
    ) -> Result<()> {
        let Generator {
            links,
            deletions,
            pool,
            search,
            list_first,
            ..
        } = self;
        // A list that is only searched changes nothing else: what could not be read stops the deletions from its directory
        // on.
        let is_search_only =
            *list_first == ListFirst::ToSearch && !self.context.policy.preserve.hard_links;
        hold(pool, &mut |plan, is_entered| {
            if !is_search_only {
                deletions.check_problems(&plan.findings.problems);
            }
            if is_entered {
                links.expect(plan);
            }
            if is_entered && let Some(search) = search {
                search.expect(plan);
            }
        })?;
        links.have_seen_all(self.pool.has_seen_all());
        Ok(())
    }

    /// Deletes before anything else is done. `top` is the previous state of the destination's root.
    fn delete_before(&mut self, top: Option<&mut Entry>) -> Result<()> {
        if let Some(gauge) = self.context.gauge {
            gauge.set_deleting(true);
        }
        let deletions = &mut self.deletions;
        let head = &mut self.out.head;
        let mtime = self
            .pool
            .change_all(&mut |plan| deletions.before(plan, head));
        self.root_changed = mtime;
        if let (Some(existing), Some(mtime)) = (top, mtime) {
            existing.mtime = mtime;
        }
        self.deletions.go_on()?;
        if let Some(gauge) = self.context.gauge {
            gauge.set_deleting(false);
        }
        self.out.queue_work(Vec::new())
    }

    /// Enters the root.
    fn root(&mut self, top: Option<&Top>) -> Result<Frame> {
        let mut plan = self.pool.take_root()?;
        let has_plan = plan.is_some();
        if let Some(plan) = plan.as_mut().filter(|plan| plan.found.dest.is_unseen) {
            self.plans
                .walk()
                .decide_again_for_dir(plan, self.context.dest.map(Root::dir));
            planned::leave_unseen_names(self.context, plan);
        }
        let plan = plan.unwrap_or_default();
        self.deletions.refuse_empty_source(&plan)?;
        let settled = match top {
            Some(top) if self.is_root_left(top)? => {
                // As if it had the attributes of the source, but for the time, which this run may have changed.
                let mut existing = top.source.clone();
                if let Some(changed) = self.root_changed {
                    existing.mtime = changed;
                }
                Some(Top {
                    existing: Some(existing),
                    source: top.source.clone(),
                    shown: top.shown.clone(),
                })
            }
            Some(_) | None => None,
        };
        let top = settled.as_ref().or(top);
        let mut itself = top;
        if let Some(Top {
            source, existing, ..
        }) = top
        {
            let local = LocalValues {
                dest: existing.as_ref(),
                alternate: None,
            };
            if self.context.want_xattrs(Some(FileId::ROOT), source, &local) {
                itself
                    .take()
                    .into_iter()
                    .for_each(|top| self.root_itself(top, &plan));
                self.out
                    .report_and_await_xattrs(Some(FileId::ROOT), source)?;
            }
        }
        let last = dirs::prepare_root(self.context, top, &mut self.out.head);
        self.hold(&RelPath::root(), &last);
        let dest_dir = Arc::new(DestDir::new(
            RelPath::root(),
            self.context.dest.map(|dest| dest.dir().clone()),
            last,
        ));
        if !has_plan && top.is_some() {
            self.deletions.pass_unchanged(&mut self.out.head);
        }
        let frame = self.enter(plan, dest_dir, itself, None)?;
        Ok(Frame { has_plan, ..frame })
    }

    /// Enters the next subdirectory of a directory whose own entries are done. Returns `None` if none is left.
    fn next_below(&mut self, frame: &mut Frame) -> Result<Option<Frame>> {
        if frame.next == 0
            && !frame.plan.decided().subdirs.is_empty()
            && !self.context.options.select.no_inc_recursive
        {
            // With incremental recursion, rsync's list grows by one directory at a time.
            self.out.checked(frame.plan.decided().subdirs.len() as u64);
        }
        while let Some(sub) = frame.plan.decided().subdirs.get(frame.next).copied() {
            frame.next += 1;
            if self.levels_open == 0 {
                self.out.wait();
                frame.close_sources();
            }
            let opened = frame.reopen_dirs(self.context.dest);
            if opened.is_ok()
                && let Some(below) = self.directory(&frame.plan, &frame.dest_dir, sub)?
            {
                return Ok(Some(below));
            }
            let path = frame.dest_dir.path.join(frame.plan.name_of(&sub.step));
            if let Err(error) = opened {
                self.out.head.extend(dirs::cannot_make(
                    &self.context.full(path.as_bytes()),
                    &error,
                ));
            }
            self.leave_out(&path, sub.task_id)?;
        }
        let dest_dir = &frame.dest_dir;
        if frame.has_plan {
            return Ok(None);
        }
        self.out.settle_followers()?;
        self.look_ahead(PlanPool::hold_more)?;
        let Some(mut plan) = self.pool.stray(&dest_dir.path)? else {
            return Ok(None);
        };
        // The plan holds a single entry, but not because an argument named it.
        plan.found.listing.is_named = false;
        let dir = self
            .context
            .dest
            .map(|dest| errno::if_there(dest.open_dir_to_search(&plan.found.listing.path)));
        let dir = dir.transpose().unwrap_or_else(|error| {
            let full = self.context.full(plan.found.listing.path.as_bytes());
            plan.findings.problems.push(Problem::failed(
                ErrorRole::Generator,
                "opendir",
                &full,
                &error,
            ));
            plan.leave_all();
            None
        });
        let dir = dir.flatten();
        let dest_dir = Arc::new(DestDir::new(
            plan.found.listing.path.clone(),
            dir,
            dirs::untouched(self.context, Some(&dest_dir.last)),
        ));
        self.enter(plan, dest_dir, None, None).map(Some)
    }

    /// Counts and reports what was found in and below a directory that is not entered.
    fn leave_out(&mut self, path: &RelPath, task_id: Option<TaskId>) -> Result<()> {
        let Generator {
            context,
            pool,
            deletions,
            out,
            ..
        } = self;
        pool.skip(task_id, path, &mut |findings| {
            report_findings(context, deletions, out, findings)
        })?;
        self.look_ahead(PlanPool::hold_coming)
    }

    /// Processes the entries of a directory. `itself` is set if the root is an entry of the source; `item` reports the
    /// directory.
    fn enter(
        &mut self,
        mut plan: DirPlan,
        dest_dir: Arc<DestDir>,
        itself: Option<&Top>,
        item: Option<Event>,
    ) -> Result<Frame> {
        self.context.go_on()?;
        self.out.settle_followers()?;
        report_findings(
            self.context,
            &mut self.deletions,
            &mut self.out,
            std::mem::take(&mut plan.findings),
        )?;
        self.settle_planned(plan.take_replayed());
        self.look_ahead(PlanPool::hold_coming)?;
        self.report_list_total();
        let head = &mut self.out.head;
        self.deletions.note_file_systems(&plan, head);
        self.deletions.remove_leftovers(&mut plan);
        self.deletions.during(&plan, &dest_dir, head);
        if plan.found.dest.is_unseen
            && plan.found.listing.may_delete
            && self.context.options.delete.when.is_some()
        {
            // A directory that cannot be listed prevents all later deletions.
            self.deletions.source_failed();
        }
        self.deletions.go_on()?;
        if let Some(top) = itself {
            self.root_itself(top, &plan);
        }
        let head = &mut self.out.head;
        head.extend(item);
        // A copy reports deletions before the entries; a listing reports everything in its place.
        if !self.context.policy.list_only {
            self.deletions.missing_before_dirs(&dest_dir, head);
        }
        self.check_backups(&mut plan, &dest_dir)?;
        let head = &mut self.out.head;
        self.deletions.make_room(&mut plan, &dest_dir, head);
        self.record_steps(&plan, &dest_dir)?;
        self.out.decline(&plan);
        partials::discard(self.context, &plan, &dest_dir);
        // Workers use the directory of `dest_dir`, and a plan may be held for long.
        plan.found.dest.dir = None;
        if let Some(gauge) = self.context.gauge {
            let (entries, bytes) = plan.found.listing.list.totals();
            let (later, later_bytes) = if self.context.is_dry() {
                (0, 0)
            } else {
                to_transfer(&plan)
            };
            gauge.pass(
                entries.saturating_sub(later),
                bytes.wrapping_sub(later_bytes),
            );
            if gauge.is_displayed() {
                gauge.skip(left_alone(&plan));
            }
        }
        let plan = Arc::new(plan);
        self.out.begin_dir(dest_dir.last.has_other_names());
        self.queue_batches(&plan, &dest_dir)?;
        self.deletions
            .missing_before_dirs(&dest_dir, &mut self.out.head);
        self.deletions.note_for_after(&plan, &dest_dir);
        Ok(Frame::new(plan, dest_dir, true))
    }

    /// Reports how long the list is while it still grows.
    fn report_list_total(&mut self) {
        if self.context.wants.progress {
            self.out.head.extend(self.pool.list_so_far());
        }
        self.count_list();
    }

    /// Shows how long the list is so far. The list may grow while files are copied, so this is called often.
    fn count_list(&self) {
        if let Some(gauge) = self.context.gauge {
            gauge.list(self.pool.count_so_far());
        }
    }

    /// Reports the root's own attributes as `./`.
    fn root_itself(&mut self, top: &Top, plan: &DirPlan) {
        self.out.tally.list(Kind::Dir, 0, 1);
        self.out.checked(1);
        if let Some(gauge) = self.context.gauge {
            gauge.pass(1, 0);
        }
        let place = plan.found.places.first().and_then(Option::as_ref);
        let (decision, problems) =
            self.plans
                .walk()
                .decide_root(&top.source, top.existing.as_ref(), place);
        self.out
            .head
            .extend(problems.into_iter().map(Event::Problem));
        if let Some(explainer) = self.context.process.explainer {
            let existing = top.existing.as_ref();
            let decided = DecidedFact::new(&top.source, existing, decision, self.context.policy);
            explainer.add(&RelPath::root(), Fact::Decided(Box::new(decided)));
        }
        self.record(b".", &top.source, top.existing.as_ref(), None, decision);
        let (changes, update) = dir_changes(decision.action);
        if changes.has(Changes::NEW) {
            self.out.tally.created.add(Kind::Dir);
        }
        if self.context.wants.line_for(changes) {
            let sender_path = path::join(top.shown.as_deref().unwrap_or_default(), b".");
            let mut item = item_of(&top.source, b"", sender_path, update, changes);
            item.file = self.context.peer.map(|_| FileId::ROOT);
            self.out.head.push(Event::Item(item));
        }
    }

    /// Processes a subdirectory. Returns its frame if its content takes part.
    fn directory(
        &mut self,
        parent: &DirPlan,
        dest_dir: &DestDir,
        sub: SubDir,
    ) -> Result<Option<Frame>> {
        let sub = self.decided_now(parent, dest_dir, sub);
        let job = Job::new(self.context, parent, sub.step, dest_dir);
        if sub.is_left() {
            let events = self.done_now(&job)?;
            self.out.head.extend(events);
            return Ok(None);
        }
        if self.context.options.select.no_inc_recursive {
            self.out.checked(1);
        }
        self.record(
            job.path.as_bytes(),
            job.source(),
            parent.found.dest.entry(sub.step.dest),
            dest_dir.dir.as_ref(),
            sub.step.decision,
        );
        let (changes, update) = dir_changes(sub.step.decision.action);
        let is_new = changes.has(Changes::NEW);
        let is_bare = sub.implied && self.context.options.select.no_implied_dirs;
        if is_new && !is_bare {
            self.out.tally.created.add(Kind::Dir);
        }
        let is_reported = !is_bare && self.context.wants.line_for(changes);
        let mut item = is_reported.then(|| Event::Item(job.item(update, changes)));
        if sub.step.decision.in_the_way == InTheWay::Other
            && !dirs::clear_for(&job, &mut self.out.head)
        {
            return Ok(None);
        }
        if item.is_some()
            && self
                .context
                .want_xattrs(job.file_id(), job.source(), &job.local_values())
        {
            self.out.settle_followers()?;
            self.out.head.extend(item.take());
            self.out
                .report_and_await_xattrs(job.file_id(), job.source())?;
        }
        let opened = dirs::open_or_make(&job, is_bare, changes, &mut self.out.head);
        if let Some(opened) = &opened {
            self.hold(&job.path, &opened.last);
        }
        let (Some(Opened { dir, last }), Some(task_id)) = (opened, sub.task_id) else {
            // As in rsync, it is reported as created even if that failed.
            self.out.head.extend(item);
            self.out.send_items()?;
            return Ok(None);
        };
        self.out.settle_followers()?;
        self.look_ahead(PlanPool::hold_more)?;
        let below = self
            .pool
            .take(task_id, &job.path, &parent.dest_state(&sub))?;
        let dest_dir = Arc::new(DestDir::new(job.path, dir, last));
        let Some(mut below) = below else {
            self.out.head.extend(item);
            self.deletions.pass_unchanged(&mut self.out.head);
            let mut plan = DirPlan::default();
            plan.found.listing.path = dest_dir.path.clone();
            return Ok(Some(Frame::new(Arc::new(plan), dest_dir, false)));
        };
        // The directory existed when its plan was made, but may have been deleted with the target of a symlink since.
        let is_gone = is_new && below.found.dest.dir.is_some();
        if (below.found.dest.is_unseen && !is_new) || is_gone {
            self.plans
                .walk()
                .decide_again_for_dir(&mut below, dest_dir.dir.as_ref());
            planned::leave_unseen_names(self.context, &mut below);
        }
        self.deletions.refuse_empty_source(&below)?;
        self.enter(below, dest_dir, None, item).map(Some)
    }

    /// Decides about a directory again if its counterpart was reached through a symlink (`-K`) whose target was deleted
    /// since.
    fn decided_now(&self, parent: &DirPlan, dest_dir: &DestDir, sub: SubDir) -> SubDir {
        let options = self.context.options;
        let may_be_gone = options.preserve.keep_dirlinks
            && options.delete.when.is_some()
            && sub.step.dest != NONE;
        let Some(dir) = &dest_dir.dir else {
            return sub;
        };
        if !may_be_gone || self.context.is_dry() {
            return sub;
        }
        let name = parent.name_of(&sub.step);
        let was_dir = parent.found.dest.list.entries[sub.step.dest as usize].is_dir();
        let is_gone = matches!(errno::if_there(sys::stat(dir.fd(), name, true)), Ok(None));
        let link = errno::if_there(sys::stat(dir.fd(), name, false));
        // If it cannot be examined now, the earlier decision stays.
        let (true, true, Ok(link)) = (was_dir, is_gone, link) else {
            return sub;
        };
        let source = parent.source_of(&sub.step);
        let existing = link.as_ref().map(Entry::from_stat);
        let decision = plan::decide(
            source,
            existing.as_ref(),
            None,
            plan::Subject::Entry,
            self.context.policy,
        );
        SubDir {
            step: Step {
                dest: NONE,
                decision,
                ..sub.step
            },
            ..sub
        }
    }
}

/// Returns how many files of a directory are transferred, and their bytes.
fn to_transfer(plan: &DirPlan) -> (u64, u64) {
    let mut files = 0;
    let mut bytes = 0_u64;
    for step in &plan.decided().steps {
        if matches!(step.decision.action, Action::Transfer(_)) {
            files += 1;
            bytes = bytes.wrapping_add(plan.source_of(step).len_bytes);
        }
    }
    (files, bytes)
}

/// Returns how many files of a directory are left as they are.
fn left_alone(plan: &DirPlan) -> u64 {
    let entries = &plan.found.listing.list.entries;
    let listed = entries.iter().filter(|entry| entry.kind() == Kind::File);
    let mut files = listed.count() as u64;
    for step in &plan.decided().steps {
        let gets_data = match step.decision.action {
            Action::Transfer(_) | Action::Link | Action::Copy(_) | Action::AskDigest => true,
            Action::Keep | Action::Adjust(_) | Action::Create(_) | Action::Elsewhere => false,
            Action::Refuse(_) => false,
        };
        if gets_data && plan.source_of(step).kind() == Kind::File {
            files = files.saturating_sub(1);
        }
    }
    files
}

/// Counts and reports what was found in a directory. Fails if the run must end there.
fn report_findings(
    context: &Context<'_>,
    deletions: &mut Deletions<'_>,
    out: &mut Outbox<'_>,
    findings: Findings,
) -> Result<()> {
    context.go_on()?;
    if let Some(error) = findings.fatal {
        return Err(error);
    }
    deletions.check_problems(&findings.problems);
    out.head
        .extend(findings.problems.into_iter().map(Event::Problem));
    out.head.extend(findings.notes.into_iter().map(Event::Note));
    out.tally.merge(&findings.tally);
    Ok(())
}

/// Returns the changes of a directory, and how they are reported.
fn dir_changes(action: Action) -> (Changes, Update) {
    match action {
        Action::Create(changes) => (changes, Update::Local),
        Action::Adjust(changes) => (changes, Update::Attrs),
        Action::Keep | Action::Refuse(_) | Action::AskDigest => (Changes::NONE, Update::Attrs),
        Action::Transfer(_) | Action::Copy(_) | Action::Link | Action::Elsewhere => {
            (Changes::NONE, Update::Attrs)
        }
    }
}
