//! Enters the directories in canonical order: the root, and each subdirectory in its turn.

use super::deletions::Deletions;
use super::dirs::{self, Opened};
use super::frame::Frame;
use super::outbox::Outbox;
use super::plan_queue::PlanPool;
use super::{Generator, Top, partials, planned};
use crate::apply::abbreviated::LocalValues;
use crate::apply::job::{Job, item_of};
use crate::apply::{Context, DestDir};
use crate::error::Result;
use crate::flist::{Entry, FileId, Kind};
use crate::fs::root::Root;
use crate::fs::{errno, sys};
use crate::path::{self, RelPath};
use crate::plan::explained::{DecidedFact, Fact};
use crate::plan::{self, Action, Changes, InTheWay};
use crate::report::event::{ErrorRole, Event, Problem, Update};
use crate::walk::{DirPlan, Findings, NONE, Step, SubDir, TaskId};
use std::sync::Arc;

impl Generator<'_> {
    /// Enters the root.
    pub(super) fn root(&mut self, top: Option<&Top>) -> Result<Frame> {
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
                if let Some(top) = itself.take() {
                    self.root_itself(top, &plan);
                }
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
    pub(super) fn next_below(&mut self, frame: &mut Frame) -> Result<Option<Frame>> {
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

    /// Reports the root's own attributes as `./`.
    fn root_itself(&mut self, top: &Top, plan: &DirPlan) {
        self.out.tally.list(Kind::Dir, 0, 1);
        self.out.checked(1);
        if let Some(gauge) = self.context.gauge {
            gauge.pass_root();
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
        let is_counted = is_new && !is_bare;
        if is_counted {
            self.out.tally.created.add(Kind::Dir);
        }
        let is_reported = !is_bare && self.context.wants.line_for(changes);
        let mut item = is_reported.then(|| Event::Item(job.item(update, changes)));
        if sub.step.decision.in_the_way == InTheWay::Other
            && !dirs::clear_for(&job, &mut self.out.head)
        {
            if is_counted {
                self.out.tally.absent.add(Kind::Dir);
            }
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
        let is_absent = opened.is_none();
        let (Some(Opened { dir, last }), Some(task_id)) = (opened, sub.task_id) else {
            // As in rsync, it is reported as created even if that failed.
            if is_counted && is_absent {
                self.out.tally.absent.add(Kind::Dir);
            }
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
        if !parent.found.dest.list.entries[sub.step.dest as usize].is_dir() {
            return sub;
        }
        let name = parent.name_of(&sub.step);
        // If it cannot be examined now, the earlier decision stays.
        let Ok(None) = errno::if_there(sys::stat(dir.fd(), name, true)) else {
            return sub;
        };
        let Ok(link) = errno::if_there(sys::stat(dir.fd(), name, false)) else {
            return sub;
        };
        let existing = link.as_ref().map(Entry::from_stat);
        let decision = plan::decide(
            parent.source_of(&sub.step),
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
pub(super) fn to_transfer(plan: &DirPlan) -> (u64, u64) {
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
pub(super) fn report_findings(
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
