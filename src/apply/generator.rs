//! Processes the plans in canonical order: deletes, creates directories, and hands everything else to the appliers.
//!
//! Everything that depends on order happens in this one thread, and only [`Generator`] knows the order. The steps are
//! in its submodules: [`plan_queue`] supplies the plans, [`look_ahead`] takes some before their turn, [`traversal`] enters the
//! directories, [`frame`] has those on the way to the current one, [`deletions`] removes extra entries, [`dirs`] creates
//! directories, [`link_groups`] groups hard links, [`shared_files`] finds names whose file an earlier step changes,
//! [`partials`] removes parts that earlier runs kept, [`twin_search`] finds files whose content new files take, [`steps`] cuts
//! the steps of a directory into [`batch`]es, [`planned`] records or settles a plan, and [`outbox`] sends work and events to
//! the appliers.

mod batch;
mod deletions;
mod dirs;
mod frame;
mod link_groups;
mod look_ahead;
mod outbox;
mod partials;
mod plan_queue;
mod planned;
mod planned_backups;
mod planned_groups;
mod planned_twins;
mod shared_files;
mod steps;
mod traversal;
mod twin_contents;
mod twin_search;

pub use self::batch::{Retries, WorkBatch};
use self::deletions::Deletions;
use self::link_groups::LinkGroups;
pub use self::outbox::Appliers;
use self::outbox::Outbox;
use self::plan_queue::PlanPool;
pub use self::plan_queue::{OnSkipped, Plans, count_so_far};
use self::planned_groups::RecordedGroups;
use self::shared_files::SharedFiles;
use self::twin_search::TwinSearch;
use crate::apply::dir_finalize::LastTouch;
use crate::apply::{Context, delayed};
use crate::error::Result;
use crate::flist::{Entry, Time};
use crate::fs::sys;
use crate::options::When;
use crate::path::RelPath;
use crate::report::event::{Event, Problem, Weight};
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
        let info_level = self.context.options.output.info.remove;
        self.context.late_removals.go(info_level, head);
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

    /// Keeps the time of a directory from being set before what may still change in it at any moment has been done.
    fn hold(&mut self, dir: &RelPath, last: &Arc<LastTouch>) {
        self.deletions.hold(dir, last);
        if let Some(backup) = self.context.backup {
            backup.hold(dir, last);
        }
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
            gauge.list(self.pool.listed_so_far());
        }
    }
}
