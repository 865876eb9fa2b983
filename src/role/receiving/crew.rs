//! The threads of a receiver: some look, some apply, and their own leads; what they tell is put in order.

use crate::error::Error;
use crate::exit::Exit;
use crate::fs::sys;
use crate::report::event::Event;
use crate::report::tally::Tally;
use crate::role::apply::{Context, Outcome, file};
use crate::role::generator::{Appliers, Batch, Ended, Generator, Plans};
use crate::role::terms::Terms;
use crate::work::order::InOrder;
use crate::work::queue::{CloseOnDrop, Queue};
use crate::work::thread::spawn;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use super::Listener;

/// Batches that wait for an applier; each holds at most 64 steps or one large file, and two descriptors: see [`OPEN_PARTS`].
const BATCHES_WAITING: usize = 32;
/// One in so many of the files that the process may have open is a batch that waits, twice.
const OPEN_PARTS: usize = 16;
/// Batches that may be done before their turn to be told comes; bounds what is kept for later.
const BATCHES_EARLY: u64 = 256;

/// Runs the threads until the generator has gone through everything, as `lead` has it do. `tally`: what was counted
/// before, to which what they count is added.
pub(super) fn run(
    context: &Context<'_>,
    terms: &Terms<'_>,
    plans: &dyn Plans,
    (listener, tally): (&mut dyn Listener, &mut Tally),
    lead: impl FnOnce(&mut Generator<'_>) -> Result<Ended, Error>,
) -> Result<(), Error> {
    let course = Course { tally: Mutex::new(std::mem::take(tally)), ..Course::default() };
    let order = InOrder::new(|events: Vec<Event>| course.tell(&events, listener, context));
    let queue: Queue<Batch> = Queue::new(sys::share_of_open_files(OPEN_PARTS, BATCHES_WAITING));
    let apply = || {
        let mut hands = file::Hands::default();
        while let Some(batch) = queue.pop() {
            let number = batch.number;
            let live = |events: &mut Vec<Event>| match order.put_early(number, std::mem::take(events)) {
                None => true,
                Some(back) => {
                    *events = back;
                    false
                }
            };
            let mut out = Outcome { live: Some(&live), ..Outcome::default() };
            batch.carry_out(context, &mut hands, &mut out);
            let Outcome { events, tally, fatal, .. } = out;
            course.add(&tally, fatal, context);
            order.put(number, events);
        }
    };
    let pace = |number: u64| order.wait_for(number, BATCHES_EARLY);
    let barrier = |number: u64| order.wait_for(number, 0);
    let source_failed = || course.tally.lock().unwrap_or_else(PoisonError::into_inner).source_errors > 0;
    let out_of_time = || terms.stop_at_unix_secs.is_some_and(|at| crate::work::clock::now_unix().0 >= at);
    let ended = std::thread::scope(|scope| {
        let _plans = CloseOnEnd(plans);
        let _queue = CloseOnDrop(&queue);
        // One applier is enough. In a local run, the generator makes the plans if no scanner does.
        let mut scans = (0..terms.threads).map(|_| spawn(scope, "scan", || plans.work()));
        let mut applies = (0..terms.threads).map(|_| spawn(scope, "apply", apply));
        applies.next().transpose()?;
        let scan = scans.next().transpose();
        if context.wire.is_some() {
            scan?;
        }
        for further in [&mut applies as &mut dyn Iterator<Item = Result<(), Error>>, &mut scans] {
            further.take_while(Result::is_ok).for_each(drop);
        }
        let appliers = Appliers { queue: &queue, pace: &pace, barrier: &barrier, source_failed: &source_failed };
        let ended = lead(&mut Generator::new(plans, context, appliers, &out_of_time));
        if let (Err(error), Some(wire)) = (&ended, context.wire) {
            wire.give_up(error);
        }
        ended
    });
    // A run that fails leaves gaps; what was done behind them was done.
    order.finish();
    course.end(context, (listener, tally), ended)
}

/// What a run comes to, as long as it goes on.
#[derive(Default)]
struct Course {
    tally: Mutex<Tally>,
    /// Why it cannot go on.
    fatal: Mutex<Option<Error>>,
    /// Nobody can be told any more.
    deaf: Mutex<Option<Exit>>,
}

impl Course {
    /// Counts and tells events, in their turn.
    fn tell(&self, events: &[Event], listener: &mut dyn Listener, context: &Context<'_>) {
        for event in events {
            self.tally.lock().unwrap_or_else(PoisonError::into_inner).event(event);
            // A deletion that nobody would see only counts; of 20,000 a client had half of the work.
            if context.wants.items || !matches!(event, Event::Deleted { .. }) {
                listener.tell(event);
            }
        }
        if let Some(exit) = listener.deaf() {
            self.deaf.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(exit);
            context.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Adds what a batch counted, and stops the run if that cannot go on.
    fn add(&self, tally: &Tally, fatal: Option<Error>, context: &Context<'_>) {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(tally);
        if let Some(error) = fatal {
            if let Some(wire) = context.wire {
                wire.give_up(&error);
            }
            self.fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            // Now that it is known why, or others would say that they stop.
            context.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Tells what came up at the very end, and why the run ended if it was not through.
    fn end(
        self,
        context: &Context<'_>,
        (listener, tally): (&mut dyn Listener, &mut Tally),
        ended: Result<Ended, Error>,
    ) -> Result<(), Error> {
        *tally = self.tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        for problem in std::mem::take(&mut *context.late.problems.lock().unwrap_or_else(PoisonError::into_inner)) {
            tally.problem(problem.weight);
            listener.tell(&Event::Problem(problem));
        }
        let fatal = self.fatal.into_inner().unwrap_or_else(PoisonError::into_inner);
        let deaf = self.deaf.into_inner().unwrap_or_else(PoisonError::into_inner);
        // That a run stops because nobody hears it is not what stopped it.
        if let Some(error) = fatal.filter(|error| deaf.is_none() || error.exit != Exit::Signal) {
            return Err(error);
        }
        if let Some(exit) = deaf {
            return Err(Error::new(exit, "").by("sender"));
        }
        let ended = ended?;
        context.go_on()?;
        tally.delete_limit_reached = ended.held_back > 0;
        Ok(())
    }
}

/// Lets the scanners go.
struct CloseOnEnd<'a>(&'a dyn Plans);

impl Drop for CloseOnEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
