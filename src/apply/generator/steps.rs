//! Queues the steps of a directory: cuts them into batches, and does at once what later steps depend on.

use super::Generator;
use super::batch::{Member, Work};
use super::outbox::Outbox;
use super::shared_files::ChangedBefore;
use super::twin_search::is_new_file;
use crate::apply::heirs::{Heir, HeirDir};
use crate::apply::job::Job;
use crate::apply::twins::Twin;
use crate::apply::{ApplierState, DestDir, Outcome, backup, entry};
use crate::error::Result;
use crate::plan::Action;
use crate::report::event::Event;
use crate::walk::{DirPlan, Step};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The steps of a directory that are queued together next.
struct OpenBatch<'b> {
    plan: &'b Arc<DirPlan>,
    dest_dir: &'b Arc<DestDir>,
    /// The first of them.
    start: usize,
    /// The length of their files that are transferred.
    bytes: u64,
}

impl OpenBatch<'_> {
    /// Queues the steps before `end`, and begins a new batch with that.
    fn queue_until(&mut self, end: usize, out: &mut Outbox<'_>) -> Result<()> {
        let range = std::mem::replace(&mut self.start, end)..end;
        self.bytes = 0;
        if range.is_empty() {
            return Ok(());
        }
        out.queue_work(vec![Work::Steps(
            self.plan.clone(),
            range,
            self.dest_dir.clone(),
        )])
    }
}

/// Bytes of file data after which a batch is handed over. A large file ends its batch, unless a file with the name of
/// its backup follows.
const BATCH_BYTES: u64 = 1 << 20;

/// The maximum number of steps in a batch.
const BATCH_STEPS: usize = 64;

impl Generator<'_> {
    /// Splits the steps of a directory into batches. Names of hard links, and new files whose twin is to be deleted, wait
    /// elsewhere and come later.
    pub(super) fn queue_batches(
        &mut self,
        plan: &Arc<DirPlan>,
        dest_dir: &Arc<DestDir>,
    ) -> Result<()> {
        let mut batch = OpenBatch {
            plan,
            dest_dir,
            start: 0,
            bytes: 0,
        };
        // Steps that were carried out before their turn, with their events.
        let mut done_early = BTreeMap::new();
        let mut heir_dir = None;
        for (at, step) in plan.decided().steps.iter().enumerate() {
            if at % BATCH_STEPS == 0 {
                self.count_list();
            }
            if let Some(replaced) = backup::replaced_in(self.context, plan, at) {
                batch.queue_until(at, &mut self.out)?;
                done_early.insert(
                    replaced,
                    self.done_early(Member::new(plan, replaced, dest_dir))?,
                );
            }
            if let (Some(twin), Action::Transfer(changes)) =
                (self.twin_at_end(plan, step), step.decision.action)
            {
                batch.queue_until(at, &mut self.out)?;
                batch.start = at + 1;
                let dir = heir_dir.get_or_insert_with(|| Arc::new(HeirDir::new(plan, dest_dir)));
                let heir = Heir::new(dir.clone(), step.source, changes);
                self.deletions.expect_heir(&twin, heir);
                continue;
            }
            let Some(events) = done_early.remove(&at) else {
                self.queue_step(&mut batch, at, step)?;
                continue;
            };
            batch.queue_until(at, &mut self.out)?;
            batch.start = at + 1;
            self.out.head.extend(events);
            if let Some(inode) = self.links.group_of(plan, step) {
                let work = self.links.leave_out(inode);
                self.out.queue_any(work)?;
            }
        }
        batch.queue_until(plan.decided().steps.len(), &mut self.out)?;
        self.out.send_events()
    }

    /// Returns the twin of a new file that is placed at the end of the run.
    fn twin_at_end(&self, plan: &DirPlan, step: &Step) -> Option<Twin> {
        if !is_new_file(&plan.found, step) {
            return None;
        }
        let twin = self.context.twins.of(plan, step);
        twin.filter(|twin| twin.reuse.is_late())
    }

    /// Adds a step to the batch, or queues it by itself if it depends on others.
    ///
    /// What holds: steps are queued in the order of the list, and an applier that carries out a batch waits at most for
    /// batches that were queued before, because the queue is first in, first out. When this returns, all earlier steps of the
    /// directory are queued or in the open batch. A step does not join the open batch for these reasons:
    ///
    /// - A missing argument is listed before it. The events of the batch must come before that line.
    /// - It is a name of a hard-link group, which knows when each name can be placed (`links`).
    /// - An earlier step changes the same file through another of its names (`shared`). Then it is decided again once that
    ///   is done, because its decision is about the earlier state. If only the content changes, and later, it is queued
    ///   without attributes, which the other name sets.
    /// - An earlier step makes a backup under its name (`original`). In one batch the two are done in order, so nothing cuts
    ///   the batch between them if only its size would. Otherwise the step is late: it begins when all earlier ones are done.
    ///   A generator that works in order does the other step itself, or requests its content, so it is always late then.
    fn queue_step(&mut self, batch: &mut OpenBatch<'_>, at: usize, step: &Step) -> Result<()> {
        let OpenBatch {
            plan,
            dest_dir,
            start,
            bytes,
        } = *batch;
        let name = plan.name_of(step);
        let lists_before = self.deletions.lists_missing_before(dest_dir, name);
        let group = self.links.group_of(plan, step);
        // A backup with this name must be made first. A batch is done in order.
        let original = backup::original_in(self.context, plan, step);
        let is_replaced =
            original.is_some_and(|at| backup::is_replaced_by(self.context, plan, at, step));
        let changed_before = match self.shared.changed_before(self.context, plan, step) {
            ChangedBefore::Nothing if is_replaced => ChangedBefore::Attributes,
            _ if group.is_some() && !is_replaced => ChangedBefore::Nothing,
            changed_before => changed_before,
        };
        let is_changed_before = changed_before != ChangedBefore::Nothing;
        let is_full = bytes >= BATCH_BYTES || at - start >= BATCH_STEPS;
        let is_cut =
            lists_before || group.is_some() || is_changed_before || is_full && original.is_none();
        let is_late = original
            .is_some_and(|original| is_cut || original < start || self.context.works_in_order());
        if is_cut || is_late {
            batch.queue_until(at, &mut self.out)?;
        }
        if lists_before {
            self.deletions
                .missing_before(dest_dir, name, &mut self.out.head);
        }
        if !(group.is_some() || is_changed_before || is_late) {
            let is_transferred = matches!(step.decision.action, Action::Transfer(_));
            batch.bytes += if is_transferred {
                plan.source_of(step).len_bytes
            } else {
                0
            };
            return Ok(());
        }
        batch.start = at + 1;
        let member = Member::new(plan, at, dest_dir);
        if let Some(inode) = group {
            if is_late {
                // The group may place it later.
                self.out.wait();
            }
            let member = if is_replaced {
                member.decided_again(self.context, ChangedBefore::Attributes)
            } else {
                Ok(member)
            };
            let work = match member {
                Ok(member) => self.links.add(inode, member),
                Err(problem) => {
                    self.out.head.push(Event::Problem(problem));
                    self.links.leave_out(inode)
                }
            };
            return self.out.queue_any(work);
        }
        if !is_changed_before {
            return self.out.queue_late(member);
        }
        if changed_before == ChangedBefore::ContentLater {
            let work = vec![Work::Step(member.without_attributes())];
            return self.out.queue_work(work);
        }
        // The other name must have its attributes, or the backup its place, first.
        self.out.wait();
        match member.decided_again(self.context, changed_before) {
            Ok(member) => self.out.queue_work(vec![Work::Step(member)])?,
            Err(problem) => self.out.head.push(Event::Problem(problem)),
        }
        Ok(())
    }

    /// Carries out a step that needs no content before its turn. All earlier work is queued. Returns its events.
    fn done_early(&mut self, member: Member) -> Result<Vec<Event>> {
        let step = member.job(self.context).step;
        let has_other_names = member.plan().found.dest.list.entries[step.dest as usize]
            .inode
            .is_some();
        if has_other_names {
            // An earlier step may change another name of the file.
            self.out.wait();
        }
        let changed_before = self
            .shared
            .changed_before(self.context, member.plan(), &step);
        let member = match changed_before {
            ChangedBefore::Nothing => Ok(member),
            ChangedBefore::ContentLater => Ok(member.without_attributes()),
            ChangedBefore::Attributes | ChangedBefore::Content => {
                member.decided_again(self.context, changed_before)
            }
        };
        let member = match member {
            Ok(member) => member,
            Err(problem) => return Ok(vec![Event::Problem(problem)]),
        };
        self.done_now(&member.job(self.context))
    }

    /// Carries out a step that needs no content on this thread. Returns its events.
    pub(super) fn done_now(&mut self, job: &Job<'_>) -> Result<Vec<Event>> {
        let mut applier = ApplierState::default();
        let mut out = Outcome::new(&mut applier, None);
        entry::perform(job, &mut out);
        self.out.tally.merge(&out.tally);
        out.fatal.map_or(Ok(out.events), Err)
    }
}
