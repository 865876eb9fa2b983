//! Collects and numbers the generator's events and work, and requests contents if a peer has the source.

use crate::apply::facts::ItemPrinter;
use crate::apply::fuzzy_basis::FuzzySearch;
use crate::apply::generator::batch::{Member, Retries, Work, WorkBatch};
use crate::apply::job::Job;
use crate::apply::{
    ApplierState, ContentPeer, Context, Outcome, Similar, Submission, content, file,
};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::{Entry, Kind};
use crate::plan::{Action, Changes};
use crate::proto::FileId;
use crate::report::event::{Event, Item};
use crate::report::tally::Tally;
use crate::walk::DirPlan;
use crate::work::queue::Queue;

/// The generator's access to the appliers.
#[derive(Clone, Copy)]
pub struct Appliers<'a> {
    /// The queue from which they take batches.
    pub queue: &'a Queue<WorkBatch>,
    /// The work that they leave to be repeated after all first requests.
    pub retries: &'a Retries,
    /// Called before a batch is queued, with the number of the next one. Blocks while too many events are pending.
    pub pace: &'a dyn Fn(u64),
    /// Waits until all batches below this number are done.
    pub barrier: &'a dyn Fn(u64),
    /// Returns whether any source error was reported so far.
    pub source_failed: &'a dyn Fn() -> bool,
    /// Reports events at once, before those of unfinished batches.
    pub report_now: &'a dyn Fn(Vec<Event>),
}

/// The events to report next, and the batches that carry them.
pub(super) struct Outbox<'a> {
    context: &'a Context<'a>,
    appliers: Appliers<'a>,
    /// The number of the next batch.
    number: u64,
    /// Events reported before those of the next batch.
    pub(super) head: Vec<Event>,
    /// Counts that go with `head`.
    pub(super) tally: Tally,
    fuzzy_search: FuzzySearch,
    /// Names of files whose leaders were not placed yet, if the peer reports all items.
    followers: Vec<Work>,
    /// The work of the present directory begins once all batches below this number are done.
    waits_for: u64,
    /// Whether something may wait for work that was queued. See [`Context::may_await_answers`].
    may_wait: bool,
    applier: ApplierState,
}

impl<'a> Outbox<'a> {
    /// Creates an empty outbox.
    pub(super) fn new(context: &'a Context<'a>, appliers: Appliers<'a>) -> Outbox<'a> {
        Outbox {
            context,
            appliers,
            number: 0,
            head: Vec::new(),
            tally: Tally::default(),
            fuzzy_search: FuzzySearch::default(),
            followers: Vec::new(),
            waits_for: 0,
            may_wait: context.may_await_answers(),
            applier: ApplierState::default(),
        }
    }

    /// Begins the work of a directory. Files that get their contents under several names of one directory are written in
    /// the order of the list: the last one stays.
    pub(super) fn begin_dir(&mut self, has_other_names: bool) {
        self.waits_for = if has_other_names { self.number } else { 0 };
    }

    /// Reports that this many more entries were checked (`--progress`).
    pub(super) fn checked(&mut self, entries: u64) {
        if self.context.wants.progress {
            self.head.push(Event::Checked(entries));
        }
    }

    /// Queues work together with all pending events.
    pub(super) fn queue_work(&mut self, work: Vec<Work>) -> Result<()> {
        let work = self.prepare(work)?;
        self.queue(WorkBatch {
            work,
            ..WorkBatch::default()
        })
    }

    /// Queues work, unless there is none.
    pub(super) fn queue_any(&mut self, work: Vec<Work>) -> Result<()> {
        if work.is_empty() {
            Ok(())
        } else {
            self.queue_work(work)
        }
    }

    /// Queues a step that begins once all earlier work is done. Requests its content now.
    pub(super) fn queue_late(&mut self, member: Member) -> Result<()> {
        if self.context.works_in_order() && !self.is_requested(&member.job(self.context)) {
            // It is done now.
            self.wait();
        }
        let work = self.prepare(vec![Work::Step(member)])?;
        self.queue(WorkBatch {
            work,
            waits_for: self.number,
            ..WorkBatch::default()
        })
    }

    /// Requests what work needs. Returns what is left of it for the appliers.
    fn prepare(&mut self, work: Vec<Work>) -> Result<Vec<Work>> {
        if self.context.works_in_order() {
            return self.work_in_order(work);
        }
        self.request_content(&work)?;
        Ok(work)
    }

    fn queue(&mut self, batch: WorkBatch) -> Result<()> {
        let head = std::mem::take(&mut self.head);
        let tally = std::mem::take(&mut self.tally);
        let batch = WorkBatch {
            number: self.number,
            head,
            tally,
            waits_for: batch.waits_for.max(self.waits_for),
            ..batch
        };
        self.number += 1;
        (self.appliers.pace)(self.number);
        self.appliers
            .queue
            .push(batch)
            .map_err(|_| Error::new(Exit::Crashed, "a worker stopped"))
    }

    /// Queues the pending events, if there are any.
    pub(super) fn send_events(&mut self) -> Result<()> {
        // Counts alone can wait for the next batch.
        if self.head.is_empty() {
            Ok(())
        } else {
            self.queue_work(Vec::new())
        }
    }

    /// Sends the pending events if the peer gets items in the order of the list.
    pub(super) fn send_items(&mut self) -> Result<()> {
        if self.context.works_in_order() {
            self.send_events()
        } else {
            Ok(())
        }
    }

    /// Reports the pending events, and does what needs no content, so that the peer gets all items in list order. Returns
    /// the rest of the work, whose content was requested.
    fn work_in_order(&mut self, work: Vec<Work>) -> Result<Vec<Work>> {
        self.report_head()?;
        let mut rest = Vec::new();
        for work in work {
            match &work {
                Work::Steps(plan, range, dest_dir) => {
                    for at in range.clone() {
                        let job = Job::new(self.context, plan, plan.decided().steps[at], dest_dir);
                        let step = Work::Steps(plan.clone(), at..at + 1, dest_dir.clone());
                        if self.is_requested(&job) {
                            self.request_content_of(job)?;
                            rest.push(step);
                        } else {
                            if self.lines_wait() && !rest.is_empty() {
                                self.queue_rest(&mut rest)?;
                            }
                            self.request_xattrs_of(&job, &mut rest)?;
                            self.do_now(step)?;
                        }
                    }
                }
                Work::Step(member) | Work::Lead(member, _)
                    if self.is_requested(&member.job(self.context)) =>
                {
                    self.request_content_of(member.job(self.context))?;
                    rest.push(work);
                }
                // The leader's own work may not be queued yet, so this must not wait for it.
                Work::Follow(_, leader) if !leader.is_placed.is_open() => self.followers.push(work),
                Work::Step(member) | Work::Lead(member, _) => {
                    self.request_xattrs_of(&member.job(self.context), &mut rest)?;
                    self.do_now(work)?;
                }
                Work::Follow(..) => self.do_now(work)?,
            }
        }
        Ok(rest)
    }

    /// Requests values of extended attributes with the item of an entry. They come behind the content that was requested
    /// before, so `rest`, which takes that, must not wait.
    fn request_xattrs_of(&mut self, job: &Job<'_>, rest: &mut Vec<Work>) -> Result<()> {
        let is_reported = match job.step.decision.action {
            Action::Adjust(changes) | Action::Create(changes) => {
                changes.any(Changes::XATTR | Changes::NEW)
            }
            Action::Transfer(changes) | Action::Copy(changes) => {
                changes.any(Changes::XATTR | Changes::NEW)
            }
            Action::Keep
            | Action::AskDigest
            | Action::Refuse(_)
            | Action::Link
            | Action::Elsewhere => false,
        };
        let waits = is_reported
            && self
                .context
                .want_xattrs(job.file_id(), job.source(), &job.local_values());
        if waits && !rest.is_empty() {
            self.queue_rest(rest)
        } else {
            Ok(())
        }
    }

    fn queue_rest(&mut self, rest: &mut Vec<Work>) -> Result<()> {
        self.queue(WorkBatch {
            work: std::mem::take(rest),
            ..WorkBatch::default()
        })
    }

    fn is_requested(&self, job: &Job<'_>) -> bool {
        matches!(job.step.decision.action, Action::Transfer(_)) && !self.context.is_dry()
    }

    /// Does work on this thread, and reports its events.
    fn do_now(&mut self, work: Work) -> Result<()> {
        let context = self.context;
        let appliers = self.appliers;
        if self.may_wait {
            (appliers.barrier)(self.waits_for);
        }
        // An error ends the wait for what the peer answers.
        let live =
            |events: &mut Vec<Event>| report(context, &appliers, std::mem::take(events)).is_ok();
        let mut out = Outcome::new(&mut self.applier, Some(&live));
        // If the run ends, the next call of `go_on` notices.
        let _ = work.carry_out(context, &mut out);
        let Outcome {
            mut events,
            tally,
            fatal,
            ..
        } = out;
        self.tally.merge(&tally);
        self.head.append(&mut events);
        self.report_head()?;
        // Only now: its listing is held until its items were sent.
        drop(work);
        fatal.map_or(Ok(()), Err)
    }

    /// Does the work that waits for the leaders of hard-link groups. Called before waiting for more of the list, which
    /// may come only once the listings that it holds are done.
    pub(super) fn settle_followers(&mut self) -> Result<()> {
        let followers = if self.may_wait {
            std::mem::take(&mut self.followers)
        } else {
            Vec::new()
        };
        followers
            .into_iter()
            .try_for_each(|follower| self.do_now(follower))
    }

    /// Reports the pending events, and waits for values of extended attributes that were requested with the item of a
    /// directory. All earlier work must be queued.
    pub(super) fn report_and_await_xattrs(
        &mut self,
        dir: Option<FileId>,
        source: &Entry,
    ) -> Result<()> {
        self.report_head()?;
        self.context.await_xattrs(dir, source)
    }

    /// Returns whether lines are printed in list order, those of files after their transfer, although the peer gets items
    /// before.
    fn lines_wait(&self) -> bool {
        self.context.printer == ItemPrinter::Both && self.context.wants.after_transfer
    }

    /// Reports the pending events at once, or their items only to the peer.
    fn report_head(&mut self) -> Result<()> {
        if let (Some(peer), true) = (self.context.peer, self.lines_wait()) {
            for event in &mut self.head {
                if let Event::Item(item) = event
                    && let Some(file) = item.file
                {
                    submit_item(self.context, peer, file, item)?;
                    item.file = None;
                }
            }
            return Ok(());
        }
        report(self.context, &self.appliers, std::mem::take(&mut self.head))
    }

    /// Waits until everything queued is done, unless the peer might never answer.
    pub(super) fn wait(&self) {
        if self.may_wait {
            (self.appliers.barrier)(self.number);
        }
    }

    /// Ends the requests of a peer that sends no answer for a file that it cannot read, and repeats those whose content
    /// was wrong.
    pub(super) fn end_requests(&mut self) -> Result<()> {
        let (Some(peer), false) = (self.context.peer, self.may_wait) else {
            return Ok(());
        };
        peer.end_requests()?;
        self.may_wait = true;
        self.wait();
        let retries = std::mem::take(&mut *self.appliers.retries.0.lock());
        if !retries.is_empty() {
            peer.end_requests()?;
            self.queue(WorkBatch {
                work: retries,
                is_repeated: true,
                ..WorkBatch::default()
            })?;
        }
        Ok(())
    }

    /// Returns whether any source error was reported so far.
    pub(super) fn source_failed(&self) -> bool {
        (self.appliers.source_failed)()
    }

    /// Chooses similar files, and requests from the peer what the work needs, in the order in which appliers take it.
    fn request_content(&mut self, work: &[Work]) -> Result<()> {
        for work in work {
            match work {
                Work::Steps(plan, range, dest_dir) => {
                    for step in &plan.decided().steps[range.clone()] {
                        self.request_content_of(Job::new(self.context, plan, *step, dest_dir))?;
                    }
                }
                Work::Step(member) | Work::Lead(member, _) => {
                    self.request_content_of(member.job(self.context))?
                }
                Work::Follow(..) => {}
            }
        }
        Ok(())
    }

    fn request_content_of(&mut self, job: Job<'_>) -> Result<()> {
        let context = self.context;
        let Action::Transfer(changes) = job.step.decision.action else {
            return Ok(());
        };
        // The twin is opened at its turn. If it has changed since, the content is requested then.
        if job.plan.found.listing.with_data || job.twin().is_some() {
            return Ok(());
        }
        let mut item = None;
        if context.printer.is_peer() {
            context.want_xattrs(job.file_id(), job.source(), &job.local_values());
            let (requested, warning) = file::requested_item(&job, changes);
            self.head.extend(warning);
            if context.printer == ItemPrinter::Both && !self.lines_wait() {
                // It is printed here as well. The peer gets it with the request.
                let mut printed = requested.clone();
                printed.file = None;
                self.head.push(Event::Item(printed));
            }
            self.report_head()?;
            item = Some(requested);
        }
        let twin = Similar::from_twin(&job);
        let similar = twin.or_else(|| self.fuzzy_search.choose(&job));
        if let (Some(peer), Some(file), false) = (context.peer, job.file_id(), context.is_dry()) {
            let basis = content::basis(&job, similar.as_ref(), peer.facts());
            peer.submit(Submission {
                file,
                content: Some(basis),
                changes,
                values: context.wanted_values.take(file),
                item,
            })?;
        }
        if let Some(similar) = similar {
            context.chosen.put(&job.path, similar);
        }
        Ok(())
    }

    /// Declines the unrequested data of a directory's files that are not needed.
    pub(super) fn decline(&self, plan: &DirPlan) {
        let Some(peer) = self.context.peer else {
            return;
        };
        if !plan.found.listing.with_data {
            return;
        }
        let mut steps = plan
            .decided()
            .steps
            .iter()
            .filter(|step| matches!(step.decision.action, Action::Transfer(_)))
            .peekable();
        for (at, entry) in plan.found.listing.list.entries.iter().enumerate() {
            let at = at as u32;
            if steps.next_if(|step| step.source == at).is_none() && entry.kind() == Kind::File {
                drop(peer.unrequested(FileId {
                    dir: plan.found.listing.id,
                    entry: at,
                }));
            }
        }
    }
}

/// Reports events at once, and submits the items among them to a peer that gets all items.
///
/// Such a peer prints the items, or returns them, and gets the other events as text. So each item is submitted when all
/// events before it are reported, and before those behind it, and the lines come in the order of the events.
fn report(context: &Context<'_>, appliers: &Appliers<'_>, events: Vec<Event>) -> Result<()> {
    let mut pending = Vec::new();
    for event in events {
        if let (Some(peer), true) = (context.peer, context.works_in_order())
            && let Event::Item(item) = &event
            && let Some(file) = item.file
        {
            report_now(appliers, &mut pending);
            submit_item(context, peer, file, item)?;
        }
        pending.push(event);
    }
    report_now(appliers, &mut pending);
    Ok(())
}

fn report_now(appliers: &Appliers<'_>, events: &mut Vec<Event>) {
    if !events.is_empty() {
        (appliers.report_now)(std::mem::take(events));
    }
}

/// Submits the item of an entry of which no content is requested.
fn submit_item(
    context: &Context<'_>,
    peer: &dyn ContentPeer,
    file: FileId,
    item: &Item,
) -> Result<()> {
    peer.submit(Submission {
        file,
        content: None,
        changes: item.changes,
        values: context.wanted_values.take(file),
        item: Some(Box::new(item.clone())),
    })
}
