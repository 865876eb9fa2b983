//! Walks the trees: lists a directory of the source and its counterpart at the destination, joins them, and decides.
//! Each directory is one task. Workers process many tasks at once, a bounded distance ahead of the generator.
//!
//! The generator takes the plans in canonical order with [`Scanner::take`]. If no worker has started on a plan, the
//! generator makes it itself, so it only ever waits for work in progress.

pub mod alternate;
pub mod arg_path;
pub mod cold_files;
pub mod content_digest;
pub mod destination;
mod dir_plan;
mod dir_rules;
pub mod plan_store;
pub mod replay;
pub mod run_context;
mod scanner;
pub mod source;
pub mod source_args;
mod source_dir;
mod source_task;

use self::destination::DestWalk;
pub use self::destination::cannot_stat;
pub use self::dir_plan::{
    DestState, DirPlan, Findings, Found, ListedDir, NONE, OPEN_PLACES_MAX, SenderDir, Step, SubDir,
    close_places, unreadable_attribute, unreadable_or_fatal,
};
pub use self::dir_rules::enter_dir;
pub use self::scanner::{Look, Scanner, TaskId};
use self::source::SourceWalk;
pub use self::source_dir::{Compare, ComparedDest, ComparedSource, SourceDir, enter_by};
pub use self::source_task::SourceTask;
use crate::filter::Chain;

/// A directory to list and to decide.
#[derive(Debug)]
pub struct Task {
    /// What to list.
    pub source: SourceTask,
    /// The state of its counterpart at the destination.
    pub dest_state: DestState,
    /// The receiver's rules in force in its parent.
    pub receiver_chain: Chain,
}

/// A walk over two trees on this machine.
pub struct Walk<'a> {
    pub source: SourceWalk<'a>,
    /// The destination.
    pub dest: DestWalk<'a>,
}

impl Look for Walk<'_> {
    type Task = Task;
    type Found = DirPlan;

    fn look(&self, task: Task) -> (DirPlan, Vec<Task>) {
        let (found, below) = self.source.list(task.source);
        let plan = self
            .dest
            .decide(found, &task.dest_state, task.receiver_chain, None);
        let mut below = below.into_iter().peekable();
        let mut tasks = Vec::new();
        let mut is_first = plan.found.listing.path.is_root() && plan.found.listing.is_named;
        let chain = plan.found.receiver_chain.as_ref().expect("decided above");
        for sub in &plan.decided.subdirs {
            let Some((_, source)) = below.next_if(|(at, _)| *at == sub.step.source) else {
                continue;
            };
            if sub.task_id.is_none() {
                continue;
            }
            let further = plan.found.listing.path.is_root() && !std::mem::take(&mut is_first);
            let receiver_chain = if further {
                chain.for_further_source()
            } else {
                chain.clone()
            };
            tasks.push(Task {
                source,
                dest_state: plan.dest_state(sub),
                receiver_chain,
            });
        }
        (plan, tasks)
    }

    fn task_ids<'f>(&self, plan: &'f mut DirPlan) -> impl Iterator<Item = &'f mut TaskId> {
        plan.decided
            .subdirs
            .iter_mut()
            .filter_map(|sub| sub.task_id.as_mut())
    }

    fn park(&self, plan: &mut DirPlan) {
        plan.park();
    }

    fn size(&self, plan: &DirPlan) -> (usize, (u64, u64)) {
        (
            plan.found.listing.list.len() + plan.found.dest.list.len(),
            (
                plan.findings.tally.listed.total(),
                plan.findings.tally.total_bytes,
            ),
        )
    }
}
