//! The hard-link groups of a stored plan (`-H`): what it records of them, and whether they are as they were then.
//!
//! All plans of directories are held, so a group is known as a whole before anything is done about its first name.

use super::link_groups::DevIno;
use super::plan_queue::PlanPool;
use super::planned_backups;
use crate::apply::Context;
use crate::apply::delete::stays_taken;
use crate::error::Result;
use crate::flist::Kind;
use crate::fs::root::Dir;
use crate::path::RelPath;
use crate::plan::planned::{
    ChangedEnd, EntryNow, HardLinks, NameSet, NameState, PlannedAction, StoredPlan, state_of_name,
};
use crate::plan::{Action, InTheWay, Policy};
use crate::report::event::Problem;
use crate::walk::{DirPlan, Found, Step, replay};
use std::collections::HashMap;
use std::io;

/// The groups of a run that is recorded.
#[derive(Default)]
pub(super) struct RecordedGroups(HashMap<DevIno, RecordedGroup>);

#[derive(Default)]
struct RecordedGroup {
    names: NameSet,
    /// Those that a directory keeps from being made.
    taken: NameSet,
    leader: Option<LeadingName>,
}

/// The name that is placed first, as [`super::link_groups`] chooses it when it knows all names.
struct LeadingName {
    path: RelPath,
    /// It is not new, or no regular file. Otherwise, a later name leads.
    is_certain: bool,
    /// The file that it has at the destination, if that has several names and stays.
    kept_file: Option<DevIno>,
}

impl RecordedGroups {
    /// Looks at all names.
    pub(super) fn find(pool: &mut PlanPool<'_>, context: &Context<'_>) -> RecordedGroups {
        let mut groups = RecordedGroups::default();
        pool.each_held(&mut |plan, is_entered| groups.look_at(plan, is_entered, context));
        groups
    }

    fn look_at(&mut self, plan: &DirPlan, is_entered: bool, context: &Context<'_>) {
        let mut dest_dir = None;
        for step in &plan.decided().steps {
            let Some(inode) = source_file(&plan.found, step) else {
                continue;
            };
            let path = plan.found.listing.path.join(plan.name_of(step));
            let group = self.0.entry(inode).or_default();
            group.names.add(path.as_bytes());
            if is_entered && step.decision.in_the_way == InTheWay::Dir {
                let dir = dest_dir.get_or_insert_with(|| dir_of(context, plan));
                let kind = plan.source_of(step).kind();
                let chain = plan.found.receiver_chain.as_ref();
                let is_taken = dir
                    .as_ref()
                    .is_some_and(|dir| stays_taken(context, dir, &path, chain, kind));
                if is_taken {
                    // It is reported when the run comes to it. Another name leads.
                    group.taken.add(path.as_bytes());
                    continue;
                }
            }
            let action = step.decision.action;
            let leads = group.leader.as_ref().is_none_or(|it| !it.is_certain);
            if !leads || !is_entered || matches!(action, Action::Refuse(_)) {
                continue;
            }
            let kept_file = match action {
                Action::Keep | Action::Adjust(_) => dest_file(&plan.found, step),
                _ => None,
            };
            group.leader = Some(LeadingName {
                path,
                is_certain: !action.is_new() || plan.source_of(step).kind() != Kind::File,
                kept_file,
            });
        }
    }

    /// Returns the action about a step; `None`: nothing changes. `path`: that of its name.
    pub(super) fn action(
        &self,
        path: &RelPath,
        plan: &DirPlan,
        step: &Step,
        policy: &Policy,
    ) -> Option<PlannedAction> {
        let source = plan.source_of(step);
        let dest = plan.found.dest.entry(step.dest);
        let own = || {
            let path = path.as_bytes().to_vec();
            PlannedAction::of_decision(path, source, dest, step.decision, policy)
        };
        let group = source_file(&plan.found, step).and_then(|inode| self.0.get(&inode));
        let Some((group, leader)) = group.and_then(|group| Some((group, group.leader.as_ref()?)))
        else {
            return own();
        };
        if matches!(step.decision.action, Action::Refuse(_)) {
            return None;
        }
        let links = HardLinks {
            first: leader.path.as_bytes().to_vec(),
            names: group.names,
            taken: group.taken,
        };
        let is_leader = leader.path == *path;
        let is_linked =
            leader.kept_file.is_some() && leader.kept_file == dest_file(&plan.found, step);
        let action = if is_leader || is_linked {
            own()?
        } else {
            PlannedAction::of_link(
                path.as_bytes().to_vec(),
                source,
                dest,
                step.decision,
                policy,
            )
        };
        Some(PlannedAction {
            links: Some(links),
            ..action
        })
    }
}

/// A group as it is found when a plan is carried out.
#[derive(Default)]
struct FoundGroup {
    names: NameSet,
    /// Those that have a directory in their way and no action.
    taken: NameSet,
    /// All names, and those taken, when the plan was made, if it has actions for some of them.
    recorded: Option<(NameSet, NameSet)>,
    /// The end that has changed since.
    changed: Option<ChangedEnd>,
    /// The file at the destination that the names have which need nothing.
    placed: Option<Option<DevIno>>,
}

/// What is done about a group.
enum GroupVerdict {
    Act,
    /// The plan has nothing for it.
    Unplanned,
    Left(ChangedEnd),
}

impl FoundGroup {
    fn verdict(&self) -> GroupVerdict {
        match (self.recorded, self.changed) {
            (None, _) => GroupVerdict::Unplanned,
            // A name that is new at the source differs at the destination, too.
            (Some((names, _)), _) if names != self.names => GroupVerdict::Left(ChangedEnd::Source),
            (Some(_), Some(end)) => GroupVerdict::Left(end),
            (Some((_, taken)), None) if taken != self.taken => GroupVerdict::Left(ChangedEnd::Dest),
            (Some(_), None) => GroupVerdict::Act,
        }
    }

    /// Adds a name of which the plan may have an action.
    fn add(&mut self, planned: Option<&PlannedAction>, state: NameState, file: Option<DevIno>) {
        if let Some(planned) = planned {
            let links = planned.links.as_ref();
            let names = links.map(|links| (links.names, links.taken));
            let recorded = *self.recorded.get_or_insert(names.unwrap_or_default());
            if Some(recorded) != names {
                self.recorded = Some(Default::default());
            }
        }
        match state {
            NameState::Before => {}
            NameState::Placed => match self.placed {
                None => self.placed = Some(file),
                Some(other) if file.is_some() && other == file => {}
                // All such names are one file. None is linked that was not to be linked.
                Some(_) => self.changed = Some(ChangedEnd::Dest),
            },
            NameState::Changed(end) => self.changed = Some(end),
        }
    }
}

/// Leaves alone what is not in a stored plan, and each group that is not as it was when the plan was made. Returns what to
/// report.
pub(super) fn restrict(
    pool: &mut PlanPool<'_>,
    stored: &dyn StoredPlan,
    context: &Context<'_>,
) -> Result<Vec<Problem>> {
    let mut groups = HashMap::new();
    let mut looked = Ok(());
    pool.each_held(&mut |plan, is_entered| {
        if looked.is_ok() {
            looked = look_at(&mut groups, plan, is_entered, stored, context);
        }
    });
    looked.map_err(|error| replay::unreadable(&error))?;

    let mut problems = Vec::new();
    let mut reported = Ok(());
    pool.each_held(&mut |plan, is_entered| {
        plan.settle_steps(|found, step| {
            let group = source_file(found, step).and_then(|inode| groups.get(&inode));
            let Some(group) = group else {
                return true;
            };
            let path = found.listing.path.join(found.name_of(step));
            let planned = match stored.action(path.as_bytes(), false) {
                Ok(planned) => planned.map(|(_, action)| action),
                Err(error) => {
                    reported = Err(error);
                    return false;
                }
            };
            match group.verdict() {
                // What is in the way of a name stays, too.
                GroupVerdict::Act if planned.is_none() && is_taken(step) => false,
                GroupVerdict::Act => {
                    match keep_what_is_placed(planned.as_ref(), found, step, stored, context) {
                        Ok(()) => true,
                        Err(error) => {
                            reported = Err(error);
                            false
                        }
                    }
                }
                GroupVerdict::Unplanned => false,
                GroupVerdict::Left(end) => {
                    if is_entered && planned.is_some() {
                        problems.push(replay::left_alone(path.as_bytes(), end));
                    }
                    false
                }
            }
        });
    });
    reported.map_err(|error| replay::unreadable(&error))?;
    Ok(problems)
}

/// Keeps a name that is as the plan leaves it, even if the options would have it done again (`--ignore-times`): a second
/// backup of it would replace the first one. Fails if the plan cannot be read.
fn keep_what_is_placed(
    planned: Option<&PlannedAction>,
    found: &Found,
    step: &mut Step,
    stored: &dyn StoredPlan,
    context: &Context<'_>,
) -> io::Result<()> {
    let state = state_of_step(planned, found, step, stored, context)?;
    if matches!(state, NameState::Placed) {
        step.decision.action = Action::Keep;
    }
    Ok(())
}

/// Returns the state of the name of a step. Fails if the plan cannot be read.
fn state_of_step(
    planned: Option<&PlannedAction>,
    found: &Found,
    step: &Step,
    stored: &dyn StoredPlan,
    context: &Context<'_>,
) -> io::Result<NameState> {
    let given = match planned {
        Some(planned) => planned.given(stored)?,
        None => Vec::new(),
    };
    let now = EntryNow {
        source: found.source_of(step),
        dest: found.dest.entry(step.dest),
        decision: step.decision,
        policy: context.policy,
        given: &given,
    };
    Ok(state_of_name(planned, &now))
}

/// Returns whether a directory is in the way of a name. If the plan has no action for the name, it could not be made, or
/// something else has put the directory there since.
fn is_taken(step: &Step) -> bool {
    step.decision.in_the_way == InTheWay::Dir
}

/// Adds the names of a directory to their groups, with what the plan has for them, which is settled by that. Names in a
/// directory that is not entered only count as names. Fails if the plan cannot be read.
fn look_at(
    groups: &mut HashMap<DevIno, FoundGroup>,
    plan: &DirPlan,
    is_entered: bool,
    stored: &dyn StoredPlan,
    context: &Context<'_>,
) -> io::Result<()> {
    let mut dest_dir = None;
    for step in &plan.decided().steps {
        let Some(inode) = source_file(&plan.found, step) else {
            continue;
        };
        let path = plan.found.listing.path.join(plan.name_of(step));
        let group = groups.entry(inode).or_default();
        group.names.add(path.as_bytes());
        if !is_entered {
            continue;
        }
        let mut planned = None;
        if let Some((number, action)) = stored.action(path.as_bytes(), false)? {
            stored.settle(number);
            planned = Some(action);
        }
        let is_refused = matches!(step.decision.action, Action::Refuse(_));
        if is_refused && planned.is_none() {
            continue;
        }
        if is_taken(step) && planned.is_none() {
            group.taken.add(path.as_bytes());
            continue;
        }
        let state = if is_refused {
            NameState::Changed(ChangedEnd::Dest)
        } else {
            state_of_step(planned.as_ref(), &plan.found, step, stored, context)?
        };
        let state = match &planned {
            Some(planned) if planned.backup.is_some() && state == NameState::Before => {
                let dir = dest_dir.get_or_insert_with(|| dir_of(context, plan));
                let end = dir.as_ref().and_then(|dir| {
                    planned_backups::changed_end(context, planned, (&plan.found, step), dir)
                });
                end.map_or(state, NameState::Changed)
            }
            Some(_) | None => state,
        };
        group.add(planned.as_ref(), state, dest_file(&plan.found, step));
    }
    Ok(())
}

/// Opens the destination's directory of a plan, which may have been closed.
fn dir_of(context: &Context<'_>, plan: &DirPlan) -> Option<Dir> {
    context
        .dest?
        .open_dir_to_search(&plan.found.listing.path)
        .ok()
}

/// Leaves alone the names in a directory that could not be examined before, and is decided about again: it has entries
/// that the plan does not know. Returns what to report.
pub(super) fn leave_unseen(plan: &mut DirPlan) -> Vec<Problem> {
    let mut problems = Vec::new();
    plan.drop_steps(|found, step| {
        let is_late = source_file(found, step).is_some() && found.dest.entry(step.dest).is_some();
        if is_late {
            let path = found.listing.path.join(found.name_of(step));
            problems.push(replay::left_alone(path.as_bytes(), ChangedEnd::Dest));
        }
        is_late
    });
    problems
}

/// Returns the file at the source that a step is about a name of, if it has several.
fn source_file(found: &Found, step: &Step) -> Option<DevIno> {
    let inode = found.source_of(step).inode.as_ref()?;
    Some((inode.dev, inode.ino))
}

/// Returns the file that the destination has under the name of a step, if that has several names.
fn dest_file(found: &Found, step: &Step) -> Option<DevIno> {
    let inode = found.dest.entry(step.dest)?.inode.as_ref()?;
    Some((inode.dev, inode.ino))
}
