//! The plan of a run: records each decision for `sparsync plan`, and settles the actions of a plan that is carried out.

use super::planned_backups;
use super::planned_groups::{self, RecordedGroups};
use super::planned_twins;
use super::{EVENTS_AT_ONCE, Generator, Top};
use crate::apply::{Context, DestDir};
use crate::error::Result;
use crate::flist::Entry;
use crate::fs::root::Dir;
use crate::fs::{errno, sys};
use crate::path::RelPath;
use crate::plan::Decision;
use crate::plan::planned::{ChangedEnd, PlannedAct, PlannedAction, StoredPlan};
use crate::report::event::{Event, Problem};
use crate::walk::DirPlan;
use crate::walk::replay::{self, Proposed, Replayed};
use std::io;

impl Generator<'_> {
    /// Records what is done about an entry, if a plan is stored. `dir`: its directory at the destination.
    pub(super) fn record(
        &mut self,
        path: &[u8],
        source: &Entry,
        dest: Option<&Entry>,
        dir: Option<&Dir>,
        decision: Decision,
    ) {
        if !self.context.wants.planned {
            return;
        }
        let policy = self.context.policy;
        let planned = PlannedAction::of_decision(path.to_vec(), source, dest, decision, policy);
        if let Some(mut action) = planned {
            planned_backups::add_backup(self.context, &mut action, (source, dest), dir);
            self.out.head.push(Event::Planned(Box::new(action)));
        }
    }

    /// Looks at each hard-link group as a whole, if a plan is stored or carried out.
    pub(super) fn settle_planned_groups(&mut self) -> Result<()> {
        let context = self.context;
        if !context.policy.preserve.hard_links {
            return Ok(());
        }
        if context.wants.planned {
            self.recorded_groups = RecordedGroups::find(&mut self.pool, context);
        }
        if let Some(stored) = context.process.stored {
            let problems = planned_groups::restrict(&mut self.pool, stored, context)?;
            let problems = problems.into_iter().map(Event::Problem);
            self.out.head.extend(problems);
        }
        Ok(())
    }

    /// Records the steps of a directory, if a plan is stored.
    pub(super) fn record_steps(&mut self, plan: &DirPlan, dest_dir: &DestDir) -> Result<()> {
        if !self.context.wants.planned {
            return Ok(());
        }
        planned_backups::refuse_shared_names(self.context, plan)?;
        for step in &plan.decided().steps {
            let path = dest_dir.path.join(plan.name_of(step));
            let planned = self
                .recorded_groups
                .action(&path, plan, step, self.context.policy);
            if let Some(mut action) = planned {
                let ends = (plan.source_of(step), plan.found.dest.entry(step.dest));
                let dir = dest_dir.dir.as_ref();
                planned_backups::add_backup(self.context, &mut action, ends, dir);
                planned_twins::add_twin(self.context, &mut action, plan, step);
                self.out.head.push(Event::Planned(Box::new(action)));
            }
        }
        Ok(())
    }

    /// Leaves alone what has no place for its backup, if a stored plan is carried out.
    pub(super) fn check_backups(&mut self, plan: &mut DirPlan, dest_dir: &DestDir) -> Result<()> {
        let problems = planned_backups::restrict(self.context, plan, dest_dir.dir.as_ref())?;
        let problems = problems.into_iter().map(Event::Problem);
        self.out.head.extend(problems);
        Ok(())
    }

    /// Enters the verdicts about the actions of a stored plan in a directory.
    pub(super) fn settle_planned(&mut self, replayed: Replayed) {
        let Replayed { settled, problems } = replayed;
        if let Some(stored) = self.context.process.stored {
            for number in settled {
                stored.settle(number);
            }
        }
        self.out
            .head
            .extend(problems.into_iter().map(Event::Problem));
    }

    /// Returns whether a stored plan that is carried out leaves the root's own attributes alone.
    pub(super) fn is_root_left(&mut self, top: &Top) -> Result<bool> {
        let Some(stored) = self.context.process.stored else {
            return Ok(false);
        };
        let existing = top.existing.as_ref();
        let (decision, _) = self.plans.walk().decide_root(&top.source, existing, None);
        let proposed = Proposed {
            path: b".",
            source: &top.source,
            dest: existing,
            decision,
        };
        let mut replayed = Replayed::default();
        let action = replay::restricted(stored, self.context.policy, &proposed, &mut replayed)?;
        self.settle_planned(replayed);
        Ok(action != decision.action)
    }

    /// Reports the actions of a stored plan that the run has not met: the source lacks the entry now, or nothing is to be
    /// deleted there any more.
    pub(super) fn report_unsettled(&mut self) -> Result<()> {
        let Some(stored) = self.context.process.stored else {
            return Ok(());
        };
        let mut failure = None;
        let reported = stored.unsettled(&mut |action| {
            if let Some(problem) = self.unsettled_problem(stored, &action) {
                self.out.head.push(Event::Problem(problem));
            }
            if self.out.head.len() >= EVENTS_AT_ONCE
                && let Err(error) = self.out.queue_work(Vec::new())
            {
                failure = Some(error);
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
        match (failure, reported) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(replay::unreadable(&error)),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Returns what to report about an action that the run has not met; `None`: it was done already.
    fn unsettled_problem(
        &self,
        stored: &dyn StoredPlan,
        action: &PlannedAction,
    ) -> Option<Problem> {
        if action.path == b"." && action.act == PlannedAct::Create {
            // The destination was created before the walk, or was there already: it is no entry of this transfer.
            return None;
        }
        if action.act != PlannedAct::Delete {
            return Some(replay::left_alone(&action.path, ChangedEnd::Source));
        }
        if stored.leaves_deletions() {
            return None;
        }
        let path = RelPath::parse(&action.path).ok()?;
        let dest = self.context.dest?;
        let parent = path.parent().unwrap_or_default();
        let found = dest
            .open_dir_to_search(&parent)
            .and_then(|dir| sys::stat(dir.fd(), path.name(), false));
        match found {
            Err(error) if errno::is_unreachable(&error) => None,
            Ok(_) | Err(_) => Some(replay::left_alone(&action.path, ChangedEnd::Dest)),
        }
    }
}

/// Leaves alone the names of hard-link groups that are only seen now, if a stored plan is carried out.
pub(super) fn leave_unseen_names(context: &Context<'_>, plan: &mut DirPlan) {
    if context.process.stored.is_some() && context.policy.preserve.hard_links {
        let problems = planned_groups::leave_unseen(plan);
        plan.findings.problems.extend(problems);
    }
}
