//! Batches: numbered pieces of work that the generator makes and appliers carry out.

use crate::apply::generator::shared_files::{self, ChangedBefore, Renewed};
use crate::apply::hard_links::Leader;
use crate::apply::job::Job;
use crate::apply::{Context, DestDir, Outcome, entry, hard_links};
use crate::plan::Action;
use crate::report::event::{Event, Problem};
use crate::report::tally::Tally;
use crate::walk::cold_files::read_ahead;
use crate::walk::{DirPlan, Step};
use parking_lot::Mutex;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A piece of work for an applier, with its position in the order of events.
#[derive(Default)]
pub struct WorkBatch {
    /// Its position.
    pub number: u64,
    /// Events reported before those of the work.
    pub(super) head: Vec<Event>,
    /// Counts that belong to `head`.
    pub(super) tally: Tally,
    /// The work, in order.
    pub(super) work: Vec<Work>,
    /// The work is done a second time, because the content of the first one was wrong.
    pub(super) is_repeated: bool,
    /// The work begins once all batches below this number are done.
    pub waits_for: u64,
}

/// Work that is repeated after all first requests.
#[derive(Default)]
pub struct Retries(pub(super) Mutex<Vec<Work>>);

/// One piece of work of an applier.
pub(super) enum Work {
    /// Steps of one directory.
    Steps(Arc<DirPlan>, Range<usize>, Arc<DestDir>),
    /// A step that was decided again.
    Step(Member),
    /// The step of the first name of a file that has several.
    Lead(Member, Leading),
    /// Another name of a file whose leader comes earlier.
    Follow(Member, Arc<Leader>),
}

/// A name in a hard-link group, or of a file of which the destination has several names.
pub(super) struct Member {
    plan: Arc<DirPlan>,
    step: usize,
    dest_dir: Arc<DestDir>,
    renewed: Option<Box<Renewed>>,
    /// See [`Job::leaves_attributes`].
    leaves_attributes: bool,
    /// It came before its leader, and waited for it.
    has_waited: bool,
}

impl Member {
    /// Creates the member for a step of a plan.
    pub(super) fn new(plan: &Arc<DirPlan>, step: usize, dest_dir: &Arc<DestDir>) -> Member {
        Member {
            plan: plan.clone(),
            step,
            dest_dir: dest_dir.clone(),
            renewed: None,
            leaves_attributes: false,
            has_waited: false,
        }
    }

    /// Returns the member that waits for its leader.
    pub(super) fn waiting(self) -> Member {
        Member {
            has_waited: true,
            ..self
        }
    }

    /// Returns the member for a step whose attributes another name replaces.
    pub(super) fn without_attributes(self) -> Member {
        Member {
            leaves_attributes: true,
            ..self
        }
    }

    pub(super) fn plan(&self) -> &DirPlan {
        &self.plan
    }

    /// Examines the destination's entry again and decides. `before`: why.
    pub(super) fn decided_again(
        self,
        context: &Context<'_>,
        before: ChangedBefore,
    ) -> Result<Member, Problem> {
        let renewed = shared_files::decided_again(
            context,
            &self.plan,
            &self.plan.decided().steps[self.step],
            &self.dest_dir,
            before,
        )?;
        Ok(Member {
            renewed: renewed.map(Box::new),
            ..self
        })
    }

    /// Returns the job of its step.
    pub(super) fn job<'a>(&'a self, context: &'a Context<'a>) -> Job<'a> {
        let job = Job {
            leaves_attributes: self.leaves_attributes,
            ..Job::new(
                context,
                &self.plan,
                self.plan.decided().steps[self.step],
                &self.dest_dir,
            )
        };
        let Some(renewed) = &self.renewed else {
            return job;
        };
        let step = Step {
            decision: renewed.decision,
            ..job.step
        };
        Job {
            step,
            existing_now: Some(&renewed.existing),
            ..job
        }
    }

    /// Makes this member the leader of its group.
    pub(super) fn lead(self, context: &Context<'_>) -> (Work, Arc<Leader>) {
        let leader = Arc::new(Leader::new(&self.job(context), self.dest_dir.clone()));
        (Work::Lead(self, Leading(leader.clone())), leader)
    }
}

/// Held until the leader is placed or has failed; then its followers may go on. The queue is first in, first out, so a
/// leader is in progress before an applier waits for it.
pub(super) struct Leading(Arc<Leader>);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.is_placed.open();
    }
}

impl WorkBatch {
    /// Does the work.
    pub fn carry_out(self, context: &Context<'_>, retries: &Retries, out: &mut Outcome<'_>) {
        out.events = self.head;
        out.tally = self.tally;
        out.is_repeated = self.is_repeated;
        for work in self.work {
            if work.carry_out(context, out).is_break() {
                return;
            }
            if std::mem::take(&mut out.is_to_repeat) {
                retries.0.lock().push(work);
            }
        }
    }
}

impl Work {
    /// Does the work, or breaks if the run ends.
    pub(super) fn carry_out(
        &self,
        context: &Context<'_>,
        out: &mut Outcome<'_>,
    ) -> ControlFlow<()> {
        match self {
            Work::Steps(plan, range, dest_dir) => {
                if context.peer.is_none() && !context.is_dry() {
                    read_ahead(plan.transferred(range.clone()), &context.options.select);
                }
                for step in &plan.decided().steps[range.clone()] {
                    go_on(context, out)?;
                    entry::perform(&Job::new(context, plan, *step, dest_dir), out);
                }
                go_on(context, out)
            }
            Work::Step(member) => {
                go_on(context, out)?;
                entry::perform(&member.job(context), out);
                go_on(context, out)
            }
            Work::Lead(member, leading) => {
                go_on(context, out)?;
                hard_links::lead(&member.job(context), &leading.0, out);
                go_on(context, out)
            }
            Work::Follow(member, leader) => {
                leader.is_placed.wait();
                go_on(context, out)?;
                let job = member.job(context);
                hard_links::follow(&job, leader, member.has_waited, out);
                if let (Some(gauge), Action::Transfer(_)) =
                    (context.gauge, job.step.decision.action)
                {
                    gauge.pass(1, job.source().len_bytes);
                }
                ControlFlow::Continue(())
            }
        }
    }
}

/// Returns whether the run goes on. Called while the work, and so its directory, is still held, because the directory's
/// last touch must see `given_up`.
fn go_on(context: &Context<'_>, out: &Outcome<'_>) -> ControlFlow<()> {
    if out.fatal.is_none() && !context.stopped() {
        return ControlFlow::Continue(());
    }
    context.late.given_up.store(true, Ordering::Relaxed);
    ControlFlow::Break(())
}
