//! Where plans come from: one after the other, or all of them before anything is done.

use crate::error::Error;
use crate::flist::Time;
use crate::fs::sys;
use crate::path::RelPath;
use crate::plan;
use crate::report::event::Event;
use crate::role::apply::Context;
use crate::role::scan::dest::DestWalk;
use crate::role::scan::{DirPlan, Findings, NONE, There, Ticket};
use std::collections::{HashMap, HashSet};

/// Hears what was found in a directory that is left out; an error if the run shall end.
pub type Left<'l> = dyn FnMut(Findings) -> Result<(), Error> + 'l;

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

/// Shown each plan that is held, in canonical order, and hears whether its directory will be entered.
pub(super) type See<'s> = dyn FnMut(&DirPlan, bool) + 's;

/// So many entries of both sides are looked at before their turn where that is enough: about 200 bytes each.
const ENTRIES_AHEAD: usize = 10_000;
/// In at most so many directories. A name that waits for one of them holds two descriptors of its own directory.
const DIRS_AHEAD: usize = 1000;
/// So many of these may hold descriptors, two each.
const OPEN_AHEAD: usize = 64;
/// Of either at most one in so many of the files that the process may have open.
const OPEN_PARTS: usize = 16;

/// The plans of a run; those that are held because more must be known than is under work, and how long the list is.
pub(super) struct Stock<'a> {
    plans: &'a dyn Plans,
    context: &'a Context<'a>,
    held: HashMap<Ticket, DirPlan>,
    /// Entries of both sides in these.
    held_entries: usize,
    /// Directories below those that are held; the next one is on top.
    to_come: Vec<ToCome>,
    /// So many plans are held ahead of their turn.
    ahead_max: usize,
    /// So many plans that are held may hold descriptors.
    open_max: usize,
    /// Entries that are not in any plan.
    unnamed: u64,
    /// Entries of those that were held, and bytes.
    listed: (u64, u64),
}

/// A directory whose plan was not made.
struct ToCome {
    ticket: Ticket,
    path: RelPath,
    there: There,
    /// Nobody goes into a directory that is left as it is.
    is_entered: bool,
}

impl<'a> Stock<'a> {
    /// Nothing is held.
    pub(super) fn new(plans: &'a dyn Plans, context: &'a Context<'a>) -> Stock<'a> {
        let [ahead_max, open_max] = [DIRS_AHEAD, OPEN_AHEAD].map(|most| sys::share_of_open_files(OPEN_PARTS, most));
        let (held, to_come) = (HashMap::new(), Vec::new());
        Stock { plans, context, held, held_entries: 0, to_come, ahead_max, open_max, unnamed: 0, listed: (0, 0) }
    }

    /// One entry more that no plan names.
    pub(super) fn count_unnamed(&mut self) {
        self.unnamed += 1;
    }

    /// The root's plan; see [`Stock::take`].
    pub(super) fn take_root(&mut self) -> Result<Option<DirPlan>, Error> {
        self.take(self.plans.root(), &RelPath::root(), &self.root_is_there())
    }

    fn root_is_there(&self) -> There {
        if self.context.dest.is_some() { There::Present } else { There::Absent }
    }

    /// The plan of a directory, held or not; `None`: see [`Plans::take`].
    pub(super) fn take(&mut self, ticket: Ticket, path: &RelPath, there: &There) -> Result<Option<DirPlan>, Error> {
        let mut plan = match self.let_go(ticket) {
            Some(plan) => Some(plan),
            None => self.plans.take(ticket, path, there)?,
        };
        if let Some(plan) = &mut plan {
            plan.take_up(self.plans.walk());
        }
        Ok(plan)
    }

    /// See [`Plans::stray`].
    pub(super) fn stray(&self, below: &RelPath) -> Result<Option<DirPlan>, Error> {
        self.plans.stray(below)
    }

    fn place_to_come(&self, ticket: Ticket) -> Option<usize> {
        self.to_come.iter().rposition(|dir| dir.ticket == ticket)
    }

    fn let_go(&mut self, ticket: Ticket) -> Option<DirPlan> {
        let plan = self.held.remove(&ticket)?;
        self.held_entries -= entries_of(&plan);
        Some(plan)
    }

    /// Leaves out a directory and all below it, held or not; see [`Plans::skip`].
    pub(super) fn skip(&mut self, ticket: Option<Ticket>, path: &RelPath, left: &mut Left<'_>) -> Result<(), Error> {
        let is_ours = |ticket: &Ticket| self.held.contains_key(ticket) || self.place_to_come(*ticket).is_some();
        let mut tickets = Vec::from_iter(ticket.filter(is_ours));
        if tickets.is_empty() {
            return self.plans.skip(ticket, path, left);
        }
        while let Some(ticket) = tickets.pop() {
            if let Some(mut plan) = self.let_go(ticket) {
                tickets.extend(plan.below().rev());
                left(Findings::of(&mut plan))?;
            } else if let Some(at) = self.place_to_come(ticket) {
                let dir = self.to_come.remove(at);
                self.plans.skip(Some(ticket), &dir.path, left)?;
            }
        }
        Ok(())
    }

    /// Takes every plan.
    pub(super) fn hold_all(&mut self, see: &mut See<'_>) -> Result<(), Error> {
        self.begin();
        while self.hold_next(see)? {}
        Ok(())
    }

    /// Takes the first plans, as many as are held ahead of their turn.
    pub(super) fn hold_first(&mut self, see: &mut See<'_>) -> Result<(), Error> {
        self.begin();
        self.hold_more(see)
    }

    /// Takes more plans after one of them was taken up.
    pub(super) fn hold_more(&mut self, see: &mut See<'_>) -> Result<(), Error> {
        while self.held.is_empty() || (self.held_entries < ENTRIES_AHEAD && self.held.len() < self.ahead_max) {
            if !self.hold_next(see)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether no plan is left to be taken.
    pub(super) fn has_seen_all(&self) -> bool {
        self.to_come.is_empty()
    }

    fn begin(&mut self) {
        let (ticket, there) = (self.plans.root(), self.root_is_there());
        self.to_come.push(ToCome { ticket, path: RelPath::root(), there, is_entered: true });
    }

    /// `false`: there is none.
    fn hold_next(&mut self, see: &mut See<'_>) -> Result<bool, Error> {
        let Some(ToCome { ticket, path, there, is_entered }) = self.to_come.pop() else { return Ok(false) };
        self.context.go_on()?;
        let Some(mut plan) = self.plans.take(ticket, &path, &there)? else { return Ok(true) };
        if let Some(error) = plan.fatal.take() {
            return Err(error);
        }
        for sub in plan.subdirs.iter().rev() {
            let Some(ticket) = sub.ticket else { continue };
            let (path, there) = (plan.path.join(plan.name_of(&sub.step)), plan.there(sub));
            self.to_come.push(ToCome { ticket, path, there, is_entered: is_entered && !sub.is_left() });
        }
        see(&plan, is_entered);
        let (entries, bytes) = plan.listed();
        self.listed = (self.listed.0 + entries, self.listed.1 + bytes);
        if self.held.len() >= self.open_max {
            plan.park();
        }
        self.held_entries += entries_of(&plan);
        self.held.insert(ticket, plan);
        Ok(true)
    }

    /// The list's length, once all plans are held.
    pub(super) fn whole_list(&self) -> Event {
        let (entries, bytes) = self.listed;
        Event::Listed { entries: entries + self.unnamed, bytes, complete: true }
    }

    /// The list's length as far as it has grown; `None`: it was told when it was complete.
    pub(super) fn list_so_far(&self) -> Option<Event> {
        if self.plans.is_unbounded() {
            return None;
        }
        let (entries, bytes, complete) = self.plans.listed();
        Some(Event::Listed { entries: entries + self.unnamed, bytes, complete })
    }

    /// Leaves out directories in which nothing is (`-m`); `left` hears what was found in them.
    pub(super) fn prune(&mut self, left: &mut Left<'_>) -> Result<(), Error> {
        let order = self.order();
        let mut pruned = HashSet::new();
        // Children come after their parents in the order, so that backwards each knows of its own.
        for &ticket in order.iter().rev() {
            let mut plan = self.held.remove(&ticket).expect("the order is of plans that are held");
            pruned.extend(self.plans.walk().prune(&mut plan, |t| self.held.get(&t).is_none_or(DirPlan::is_bare)));
            self.held.insert(ticket, plan);
        }
        for ticket in order.iter().filter(|ticket| pruned.contains(ticket)) {
            let mut plan = self.let_go(*ticket).expect("the order is of plans that are held");
            left(Findings::of(&mut plan))?;
        }
        Ok(())
    }

    /// Has every directory changed whose plan is held; `change` tells the new time of one that it did change. Decisions
    /// that were made by the old one are made anew; returns the root's new time, about which the caller decides.
    pub(super) fn change_all(&mut self, change: &mut dyn FnMut(&mut DirPlan) -> Option<Time>) -> Option<Time> {
        let order = self.order();
        let mut changed = HashMap::new();
        for ticket in &order {
            let plan = self.held.get_mut(ticket).expect("the order is of plans that are held");
            changed.extend(change(plan).map(|mtime| (*ticket, mtime)));
        }
        if !changed.is_empty() {
            self.held.values_mut().for_each(|plan| decide_again(plan, &changed, self.context));
        }
        changed.remove(&self.plans.root())
    }

    /// The plans that are held and were not left out, in canonical order.
    fn order(&self) -> Vec<Ticket> {
        let mut tickets = vec![self.plans.root()];
        let mut order = Vec::new();
        while let Some(ticket) = tickets.pop() {
            let Some(plan) = self.held.get(&ticket) else { continue };
            tickets.extend(plan.below().rev());
            order.push(ticket);
        }
        order
    }
}

fn entries_of(plan: &DirPlan) -> usize {
    plan.source.len() + plan.dest.len()
}

/// Decides anew about the directories of a plan that have another time.
fn decide_again(plan: &mut DirPlan, changed: &HashMap<Ticket, Time>, context: &Context<'_>) {
    for sub in plan.subdirs.iter_mut().filter(|sub| sub.step.dest != NONE) {
        let Some(mtime) = sub.ticket.and_then(|ticket| changed.get(&ticket)) else { continue };
        let there = &mut plan.dest.entries[sub.step.dest as usize];
        there.mtime = *mtime;
        let source = &plan.source.entries[sub.step.source as usize];
        sub.step.decision = plan::decide(source, Some(there), None, false, context.policy);
    }
}
