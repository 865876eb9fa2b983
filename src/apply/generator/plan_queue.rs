//! Provides the generator with plans: one after the other, or all of them before anything is done.

use crate::apply::Context;
use crate::error::Result;
use crate::flist::Time;
use crate::fs::sys;
use crate::path::RelPath;
use crate::report::event::Event;
use crate::report::progress::ListTotal;
use crate::walk::destination::DestWalk;
use crate::walk::{DestState, DirPlan, Findings, TaskId};
use std::collections::{HashMap, HashSet, VecDeque};

/// Receives the findings of a directory that is skipped. An error ends the run.
pub type OnSkipped<'l> = dyn FnMut(Findings) -> Result<()> + 'l;

/// Makes the plans of directories, in the order in which they are taken.
pub trait Plans: Sync {
    /// Returns the task number of the root's plan.
    fn root(&self) -> TaskId;
    /// Returns the plan of a directory; `there` says what the destination has under its name. `None`: nothing is to be
    /// done in it, but perhaps below it, see [`Plans::stray`].
    fn take(
        &self,
        task_id: TaskId,
        path: &RelPath,
        dest_state: &DestState,
    ) -> Result<Option<DirPlan>>;
    /// Returns the parent's plan of the next directory in which something is to be done, below a directory without a
    /// plan. It contains only that directory, whose own plan is taken as usual.
    fn stray(&self, below: &RelPath) -> Result<Option<DirPlan>>;
    /// Skips the plan of a directory and everything below it. The task number is `None` if nothing below it was walked.
    /// `on_skipped` receives the findings there, in order.
    fn skip(
        &self,
        task_id: Option<TaskId>,
        path: &RelPath,
        on_skipped: &mut OnSkipped<'_>,
    ) -> Result<()>;
    /// Returns whether the next plan is there, or comes although earlier ones are held.
    fn will_come(&self) -> bool;
    /// Returns how the destination is listed.
    fn walk(&self) -> &DestWalk<'_>;
    /// Returns the length of the list so far. The root is missing, because no plan contains it.
    fn listed(&self) -> ListTotal;
    /// Returns whether all plans are made at once and held.
    fn is_unbounded(&self) -> bool;
    /// Runs a worker until [`Plans::close`].
    fn work(&self);
    /// Ends the workers.
    fn close(&self);
}

/// Called for each plan that is held, in canonical order, with whether its directory will be entered.
pub(super) type See<'s> = dyn FnMut(&DirPlan, bool) + 's;

/// How many entries of both sides are examined ahead of their turn. They take about 200 bytes each.
const ENTRIES_AHEAD: usize = 10_000;
/// The same for a peer that lists more only after earlier entries are done ([`ItemOrder::List`](crate::apply::facts)). An
/// rsync lists 1000 entries ahead of those that are done, and then waits.
const ENTRIES_AHEAD_IN_ORDER: usize = 500;
/// How many directories are examined ahead of their turn. A name that waits for one holds two descriptors of its own
/// directory.
const DIRS_AHEAD: usize = 1000;
/// How many of these may hold descriptors, two each.
const OPEN_AHEAD: usize = 64;
/// [`DIRS_AHEAD`] and [`OPEN_AHEAD`] are each limited to one per this many files that the process may have open.
const OPEN_PARTS: usize = 16;

/// The plans of a run: takes them, holds those needed ahead of their turn, and counts the list.
///
/// What holds: until `begin`, nothing is held, and a plan is made when it is taken. From then on, each plan is in one of three
/// states: to come (`to_come`, a stack with the first in canonical order on top), held (`held` or `strays`), or taken. So plans
/// are examined in canonical order, each before those below it, and one is taken only after it was held. A plan that is held
/// beyond `open_max` has no open descriptors; it gets them back when it is taken. `held_entries` counts those of all held
/// plans.
pub(super) struct PlanPool<'a> {
    plans: &'a dyn Plans,
    context: &'a Context<'a>,
    /// Plans are examined ahead of their turn, so all are taken from the held ones.
    is_ahead: bool,
    held: HashMap<TaskId, DirPlan>,
    /// Entries of both sides in the held plans.
    held_entries: usize,
    /// What was found below directories without a plan, in order.
    strays: VecDeque<HeldStray>,
    /// What is examined next, last first.
    to_come: Vec<Upcoming>,
    /// How many plans may be held ahead of their turn.
    ahead_max: usize,
    /// How many held plans may hold descriptors.
    open_max: usize,
    /// Entries that no plan contains.
    unnamed: u64,
    /// Entries and bytes of all plans held so far.
    listed: (u64, u64),
}

/// What [`Plans::stray`] returned for a directory without a plan.
struct HeldStray {
    below: RelPath,
    plan: Option<DirPlan>,
}

/// A directory that is examined when the plans before it are held.
struct Upcoming {
    path: RelPath,
    what: UpcomingPlan,
    /// Whether the generator will enter it: not if it, or a directory above it, is left alone.
    is_entered: bool,
}

/// What is taken of an upcoming directory.
enum UpcomingPlan {
    /// Its own plan.
    Own(TaskId, DestState),
    /// It has none: the next plan below it.
    Stray,
}

/// Returns the length of the list so far, with entries that no plan contains.
pub fn count_so_far(plans: &dyn Plans, unnamed: u64) -> ListTotal {
    let total = plans.listed();
    ListTotal {
        entries: total.entries + unnamed,
        ..total
    }
}

impl<'a> PlanPool<'a> {
    /// Creates a pool without plans.
    pub(super) fn new(
        plans: &'a dyn Plans,
        context: &'a Context<'a>,
        unnamed: u64,
    ) -> PlanPool<'a> {
        let [ahead_max, open_max] =
            [DIRS_AHEAD, OPEN_AHEAD].map(|most| sys::share_of_open_files(OPEN_PARTS, most));
        PlanPool {
            plans,
            context,
            is_ahead: false,
            held: HashMap::new(),
            held_entries: 0,
            strays: VecDeque::new(),
            to_come: Vec::new(),
            ahead_max: ahead_max.max(1),
            open_max,
            unnamed,
            listed: (0, 0),
        }
    }

    /// Takes the root's plan; see [`PlanPool::take`].
    pub(super) fn take_root(&mut self) -> Result<Option<DirPlan>> {
        self.take(self.plans.root(), &RelPath::root(), &self.root_state())
    }

    fn root_state(&self) -> DestState {
        if self.context.dest.is_some() {
            DestState::Present
        } else {
            DestState::Absent
        }
    }

    /// Takes the plan of a directory, held or not. `None`: see [`Plans::take`].
    pub(super) fn take(
        &mut self,
        task_id: TaskId,
        path: &RelPath,
        dest_state: &DestState,
    ) -> Result<Option<DirPlan>> {
        let plan = if self.is_ahead {
            self.take_held(task_id)
        } else {
            self.plans.take(task_id, path, dest_state)?
        };
        Ok(self.reopened(plan))
    }

    /// See [`Plans::stray`].
    pub(super) fn stray(&mut self, below: &RelPath) -> Result<Option<DirPlan>> {
        let plan = if self.is_ahead {
            self.held_stray(below).and_then(|stray| stray.plan)
        } else {
            self.plans.stray(below)?
        };
        Ok(self.reopened(plan))
    }

    fn held_stray(&mut self, below: &RelPath) -> Option<HeldStray> {
        self.strays.front().filter(|stray| stray.below == *below)?;
        let stray = self.strays.pop_front()?;
        self.held_entries -= stray.plan.as_ref().map_or(0, entries_of);
        Some(stray)
    }

    fn reopened(&self, mut plan: Option<DirPlan>) -> Option<DirPlan> {
        if let Some(plan) = &mut plan {
            let walk = self.plans.walk();
            plan.reopen_dirs(walk.dest, walk.alternates);
        }
        plan
    }

    fn remove_upcoming(&mut self, is_it: impl Fn(&Upcoming) -> bool) -> bool {
        let at = self.to_come.iter().rposition(is_it);
        at.map(|at| self.to_come.remove(at)).is_some()
    }

    fn take_held(&mut self, task_id: TaskId) -> Option<DirPlan> {
        let plan = self.held.remove(&task_id)?;
        self.held_entries -= entries_of(&plan);
        Some(plan)
    }

    /// Skips a directory and everything below it, held or not; see [`Plans::skip`].
    pub(super) fn skip(
        &mut self,
        task_id: Option<TaskId>,
        path: &RelPath,
        on_skipped: &mut OnSkipped<'_>,
    ) -> Result<()> {
        if !self.is_ahead {
            return self.plans.skip(task_id, path, on_skipped);
        }
        // `None`: what is left below a directory without a plan.
        let mut dirs = vec![(task_id, path.clone())];
        while let Some((task_id, path)) = dirs.pop() {
            let Some(task_id) = task_id else {
                self.remove_upcoming(|dir| {
                    matches!(dir.what, UpcomingPlan::Stray) && dir.path == path
                });
                self.plans.skip(None, &path, on_skipped)?;
                continue;
            };
            if let Some(mut plan) = self.take_held(task_id) {
                dirs.extend(dirs_below(&plan).rev());
                on_skipped(std::mem::take(&mut plan.findings))?;
            } else if self.remove_upcoming(
                |dir| matches!(dir.what, UpcomingPlan::Own(id, _) if id == task_id),
            ) {
                self.plans.skip(Some(task_id), &path, on_skipped)?;
            } else {
                let strays = Vec::from_iter(std::iter::from_fn(|| self.held_stray(&path)));
                dirs.push((None, path));
                dirs.extend(
                    strays
                        .iter()
                        .rev()
                        .filter_map(|stray| stray.plan.as_ref())
                        .flat_map(|plan| dirs_below(plan).rev()),
                );
            }
        }
        Ok(())
    }

    /// Holds every plan.
    pub(super) fn hold_all(&mut self, see: &mut See<'_>) -> Result<()> {
        self.begin();
        while self.hold_next(see)? {}
        Ok(())
    }

    /// Holds the first plans, up to the limits.
    pub(super) fn hold_first(&mut self, see: &mut See<'_>) -> Result<()> {
        self.begin();
        self.hold_more(see)
    }

    /// Holds more plans after one was taken, at least the next one.
    pub(super) fn hold_more(&mut self, see: &mut See<'_>) -> Result<()> {
        while self.held_dirs() == 0 && self.hold_next(see)? {}
        self.hold_coming(see)
    }

    /// Holds more plans, but does not wait for one that comes only once earlier ones are done.
    pub(super) fn hold_coming(&mut self, see: &mut See<'_>) -> Result<()> {
        while self.has_room() && self.plans.will_come() && self.hold_next(see)? {}
        Ok(())
    }

    fn has_room(&self) -> bool {
        let entries_max = if self.context.works_in_order() {
            ENTRIES_AHEAD_IN_ORDER
        } else {
            ENTRIES_AHEAD
        };
        self.held_dirs() == 0
            || self.held_entries < entries_max && self.held_dirs() < self.ahead_max
    }

    fn held_dirs(&self) -> usize {
        self.held.len() + self.strays.len()
    }

    /// Returns whether every plan was held or taken.
    pub(super) fn has_seen_all(&self) -> bool {
        self.to_come.is_empty()
    }

    fn begin(&mut self) {
        self.is_ahead = true;
        let what = UpcomingPlan::Own(self.plans.root(), self.root_state());
        self.to_come.push(Upcoming {
            path: RelPath::root(),
            what,
            is_entered: true,
        });
    }

    /// Returns `false` if there is no next plan.
    fn hold_next(&mut self, see: &mut See<'_>) -> Result<bool> {
        let Some(Upcoming {
            path,
            what,
            is_entered,
        }) = self.to_come.pop()
        else {
            return Ok(false);
        };
        self.context.go_on()?;
        let plan = match &what {
            UpcomingPlan::Own(task_id, dest_state) => {
                self.plans.take(*task_id, &path, dest_state)?
            }
            UpcomingPlan::Stray => self.plans.stray(&path)?,
        };
        let next_stray = || Upcoming {
            path: path.clone(),
            what: UpcomingPlan::Stray,
            is_entered,
        };
        match &what {
            UpcomingPlan::Own(..) if plan.is_none() => self.to_come.push(next_stray()),
            UpcomingPlan::Stray if plan.is_some() => self.to_come.push(next_stray()),
            UpcomingPlan::Own(..) | UpcomingPlan::Stray => {}
        }
        let plan = plan
            .map(|plan| self.examined(plan, is_entered, see))
            .transpose()?;
        match (what, plan) {
            (UpcomingPlan::Own(task_id, _), Some(plan)) => _ = self.held.insert(task_id, plan),
            (UpcomingPlan::Own(..), None) => {}
            (UpcomingPlan::Stray, plan) => self.strays.push_back(HeldStray { below: path, plan }),
        }
        Ok(true)
    }

    /// Examines a plan that is held from now on.
    fn examined(
        &mut self,
        mut plan: DirPlan,
        is_entered: bool,
        see: &mut See<'_>,
    ) -> Result<DirPlan> {
        if let Some(error) = plan.findings.fatal.take() {
            return Err(error);
        }
        for sub in plan.decided().subdirs.iter().rev() {
            let Some(task_id) = sub.task_id else { continue };
            let path = plan.found.listing.path.join(plan.name_of(&sub.step));
            let dest_state = plan.dest_state(sub);
            let what = UpcomingPlan::Own(task_id, dest_state);
            self.to_come.push(Upcoming {
                path,
                what,
                is_entered: is_entered && !sub.is_left(),
            });
        }
        see(&plan, is_entered);
        let (entries, bytes) = plan.found.listing.list.totals();
        self.listed = (self.listed.0 + entries, self.listed.1.wrapping_add(bytes));
        if self.held_dirs() >= self.open_max {
            plan.park();
        }
        self.held_entries += entries_of(&plan);
        Ok(plan)
    }

    /// Returns the length of the list once all plans are held.
    pub(super) fn whole_list(&self) -> Event {
        let (entries, bytes) = self.listed;
        Event::Listed {
            entries: entries + self.unnamed,
            bytes,
            complete: true,
        }
    }

    /// Returns the length of the list so far, or `None` if the complete length was already reported.
    pub(super) fn list_so_far(&self) -> Option<Event> {
        if self.plans.is_unbounded() {
            return None;
        }
        let ListTotal {
            entries,
            bytes,
            complete,
        } = self.count_so_far();
        Some(Event::Listed {
            entries,
            bytes,
            complete,
        })
    }

    /// Returns the length of the list so far.
    pub(super) fn count_so_far(&self) -> ListTotal {
        count_so_far(self.plans, self.unnamed)
    }

    /// Returns the same without entries that no plan contains.
    pub(super) fn listed_so_far(&self) -> ListTotal {
        self.plans.listed()
    }

    /// Drops empty directories (`-m`). `on_skipped` receives their findings.
    pub(super) fn prune(&mut self, on_skipped: &mut OnSkipped<'_>) -> Result<()> {
        let order = self.order();
        let mut pruned = HashSet::new();
        let last = self.parent_of_last();
        // Children come after their parents in the order, so in reverse each directory knows what is left of its own.
        for &task_id in order.iter().rev() {
            let mut plan = self
                .held
                .remove(&task_id)
                .expect("the order is of plans that are held");
            let is_bare = |task_id| self.held.get(&task_id).is_none_or(DirPlan::is_bare);
            pruned.extend(
                self.plans
                    .walk()
                    .prune(&mut plan, last == Some(task_id), is_bare),
            );
            self.held.insert(task_id, plan);
        }
        for task_id in order.iter().filter(|task_id| pruned.contains(task_id)) {
            let mut plan = self
                .take_held(*task_id)
                .expect("the order is of plans that are held");
            on_skipped(std::mem::take(&mut plan.findings))?;
        }
        Ok(())
    }

    /// Returns the directory that has the last entry of the whole list, if that is a directory.
    fn parent_of_last(&self) -> Option<TaskId> {
        let mut parent = self.plans.root();
        loop {
            let sub = self.held.get(&parent)?.decided().subdirs.last()?;
            let is_empty = |task_id| {
                self.held
                    .get(&task_id)
                    .is_none_or(|plan| plan.found.listing.list.entries.is_empty())
            };
            match sub.task_id {
                Some(below) if !is_empty(below) => parent = below,
                _ => return Some(parent),
            }
        }
    }

    /// Returns the held plans of directories, in any order.
    pub(super) fn held_plans(&self) -> impl Iterator<Item = &DirPlan> {
        self.held.values()
    }

    /// Calls `each` with every held plan, in canonical order. The flag tells whether the generator will enter the directory.
    pub(super) fn each_held(&mut self, each: &mut dyn FnMut(&mut DirPlan, bool)) {
        let mut task_ids = vec![(self.plans.root(), true)];
        while let Some((task_id, is_entered)) = task_ids.pop() {
            let Some(plan) = self.held.get_mut(&task_id) else {
                continue;
            };
            each(plan, is_entered);
            for sub in plan.decided().subdirs.iter().rev() {
                if let Some(below) = sub.task_id {
                    task_ids.push((below, is_entered && !sub.is_left()));
                }
            }
        }
        for stray in &mut self.strays {
            if let Some(plan) = &mut stray.plan {
                each(plan, true);
            }
        }
    }

    /// Calls `change` for every held directory; it returns the new time of a directory that it changed. Decisions that
    /// depend on an old time are made again. Returns the root's new time, which the caller handles.
    pub(super) fn change_all(
        &mut self,
        change: &mut dyn FnMut(&mut DirPlan) -> Option<Time>,
    ) -> Option<Time> {
        let order = self.order();
        let mut changed = HashMap::new();
        for task_id in &order {
            let plan = self
                .held
                .get_mut(task_id)
                .expect("the order is of plans that are held");
            changed.extend(change(plan).map(|mtime| (*task_id, mtime)));
        }
        if !changed.is_empty() {
            for plan in self.held.values_mut() {
                self.plans.walk().decide_dirs_again(plan, &changed);
            }
        }
        changed.remove(&self.plans.root())
    }

    /// Returns the held plans that were not dropped, in canonical order.
    fn order(&self) -> Vec<TaskId> {
        let mut task_ids = vec![self.plans.root()];
        let mut order = Vec::new();
        while let Some(task_id) = task_ids.pop() {
            let Some(plan) = self.held.get(&task_id) else {
                continue;
            };
            task_ids.extend(plan.below().rev());
            order.push(task_id);
        }
        order
    }
}

/// Returns the subdirectories of a plan that have plans of their own.
fn dirs_below(plan: &DirPlan) -> impl DoubleEndedIterator<Item = (Option<TaskId>, RelPath)> {
    let subdirs = plan
        .decided()
        .subdirs
        .iter()
        .filter(|sub| sub.task_id.is_some());
    subdirs.map(|sub| {
        (
            sub.task_id,
            plan.found.listing.path.join(plan.name_of(&sub.step)),
        )
    })
}

fn entries_of(plan: &DirPlan) -> usize {
    plan.found.listing.list.len() + plan.found.dest.list.len()
}
