//! The threads of a receiver: scanners, appliers and the generator's own. Puts their events into order.

use crate::apply::generator::{Appliers, Generator, Plans, Retries, WorkBatch, count_so_far};
use crate::apply::{ApplierState, Context, Outcome};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::report::event::Event;
use crate::report::progress::ListTotal;
use crate::report::tally::Tally;
use crate::work::on_drop::OnDrop;
use crate::work::order::InOrder;
use crate::work::queue::Queue;
use crate::work::thread::spawn;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

use crate::apply::pipeline::EventSink;

/// How many batches may wait for an applier. Each holds at most 64 steps or one large file, and two descriptors: see
/// [`OPEN_PARTS`].
const BATCHES_WAITING: usize = 32;
/// At most one waiting batch per this many files that the process may have open. Each holds two descriptors.
const OPEN_PARTS: usize = 16;
/// How many batches may finish ahead of their turn. Bounds the buffered events.
const BATCHES_EARLY: u64 = 256;

/// Runs the threads until `lead` has taken the generator through everything. `tally`: the counts so far, to which this
/// run adds. `unnamed`: how many entries of the list no plan contains. `lead` returns how many deletions `--max-delete`
/// prevented.
pub(super) fn run(
    context: &Context<'_>,
    plans: &dyn Plans,
    unnamed: u64,
    listener: &mut dyn EventSink,
    tally: &mut Tally,
    lead: impl FnOnce(&mut Generator<'_>) -> Result<u64>,
) -> Result<()> {
    let state = RunState {
        tally: Mutex::new(std::mem::take(tally)),
        ..RunState::default()
    };
    let end_of_list = || {
        let ListTotal {
            entries,
            bytes,
            complete,
        } = count_so_far(plans, unnamed);
        if !complete || plans.is_unbounded() {
            return None;
        }
        Some(Event::Listed {
            entries,
            bytes,
            complete,
        })
    };
    let order =
        InOrder::new(|events: Vec<Event>| state.report(&events, listener, context, &end_of_list));
    let may_wait = context.may_await_answers();
    let waiting_max = if may_wait {
        sys::share_of_open_files(OPEN_PARTS, BATCHES_WAITING)
    } else {
        usize::MAX
    };
    let queue: Queue<WorkBatch> = Queue::new(waiting_max.max(1));
    let retries = Retries::default();
    let apply = || {
        let mut applier = ApplierState::default();
        while let Some(batch) = queue.pop() {
            let number = batch.number;
            let live = |events: &mut Vec<Event>| order.put_early(number, events);
            // The queue is first in, first out, so the batches that it waits for are done or in progress.
            order.wait_for(batch.waits_for, 0);
            let mut out = Outcome::new(&mut applier, Some(&live));
            batch.carry_out(context, &retries, &mut out);
            let Outcome {
                events,
                tally,
                fatal,
                ..
            } = out;
            state.add(&tally, fatal, context);
            order.put(number, events);
        }
    };
    let pace = |number: u64| {
        if may_wait {
            order.wait_for(number, BATCHES_EARLY);
        }
    };
    let ended = std::thread::scope(|scope| {
        let _plans = OnDrop(|| plans.close());
        let _queue = OnDrop(|| queue.close());
        // One applier is enough. In a local run, the generator makes the plans if no scanner does.
        let scanners = if waiting_max == 0 && context.peer.is_none() {
            0
        } else {
            context.process.threads
        };
        let mut scans = (0..scanners).map(|_| spawn(scope, "scan", || plans.work()));
        let mut applies = (0..context.process.threads).map(|_| spawn(scope, "apply", apply));
        applies.next().transpose()?;
        let scan = scans.next().transpose();
        if context.peer.is_some() {
            scan?;
        }
        applies.take_while(Result::is_ok).for_each(drop);
        scans.take_while(Result::is_ok).for_each(drop);
        let appliers = Appliers {
            queue: &queue,
            retries: &retries,
            pace: &pace,
            barrier: &|number| order.wait_for(number, 0),
            source_failed: &|| state.tally.lock().source_errors > 0,
            report_now: &|events| order.put_now(events),
        };
        let ended = lead(&mut Generator::new(plans, unnamed, context, appliers));
        if let (Err(error), Some(peer)) = (&ended, context.peer) {
            peer.give_up(error);
        }
        ended
    });
    // A failed run leaves gaps in the order. Events behind a gap are still reported, because their work was done.
    order.finish();
    state.end(context, listener, tally, ended)
}

/// The state of a run in progress.
#[derive(Default)]
struct RunState {
    tally: Mutex<Tally>,
    /// The error that stops the run.
    fatal: Mutex<Option<Error>>,
    /// The error once the listener cannot receive events any more.
    delivery_failure: Mutex<Option<Error>>,
}

impl RunState {
    /// Counts and reports events in order.
    fn report(
        &self,
        events: &[Event],
        listener: &mut dyn EventSink,
        context: &Context<'_>,
        end_of_list: &dyn Fn() -> Option<Event>,
    ) {
        for event in events {
            // The list may have ended since the generator has counted it. It precedes the end of the file in the stream.
            if matches!(event, Event::Progress { done_bytes, len_bytes } if done_bytes == len_bytes)
                && let Some(listed) = end_of_list()
            {
                listener.report(&listed);
            }
            self.tally.lock().event(event);
            // Unless lines are wanted, deletions are only counted: reporting 20,000 of them was half of a client's
            // work.
            if context.wants.items || !matches!(event, Event::Deleted { .. }) {
                listener.report(event);
            }
        }
        if let Some(error) = listener.delivery_failure() {
            self.delivery_failure.lock().get_or_insert(error);
            context.process.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Adds the counts of a batch, and stops the run on a fatal error.
    fn add(&self, tally: &Tally, fatal: Option<Error>, context: &Context<'_>) {
        self.tally.lock().merge(tally);
        if let Some(error) = fatal {
            if let Some(peer) = context.peer {
                peer.give_up(&error);
            }
            self.fatal.lock().get_or_insert(error);
            // Only now, so that other threads do not report a stop before the cause is known.
            context.process.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Reports the final problems, and returns the error that ended the run, if any.
    fn end(
        self,
        context: &Context<'_>,
        listener: &mut dyn EventSink,
        tally: &mut Tally,
        ended: Result<u64>,
    ) -> Result<()> {
        *tally = self.tally.into_inner();
        if let Some(backup) = context.backup {
            backup.release();
        }
        for problem in std::mem::take(&mut *context.late.problems.lock()) {
            tally.problem(problem.weight);
            listener.report(&Event::Problem(problem));
        }
        let fatal = self.fatal.into_inner();
        let delivery_failure = self.delivery_failure.into_inner();
        // If the run stops because the listener is gone, the resulting error is not the cause.
        if let Some(error) =
            fatal.filter(|error| delivery_failure.is_none() || error.exit != Exit::Signal)
        {
            return Err(error);
        }
        if let Some(error) = delivery_failure {
            return Err(error.by("sender"));
        }
        let held_back = ended?;
        context.go_on()?;
        tally.delete_limit_reached = held_back > 0;
        Ok(())
    }
}
