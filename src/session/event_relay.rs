//! Where events go: to the reporter of this process, or to the client.

use crate::apply::pipeline::EventSink;
use crate::error::Error;
use crate::exit::Exit;
use crate::report::TextReporter;
use crate::report::event::{Event, Update};
use crate::session::receiver::EventSource;
use crate::work::queue::Queue;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reporter of a client that receives. Reports first what the sender has reported before, for example an error that
/// would otherwise interrupt the progress of a file.
#[derive(Clone, Copy)]
pub struct SharedReporter<'s, 'r> {
    /// The reporter, which several threads use.
    pub reporter: &'s Mutex<&'r mut TextReporter>,
    /// The events of the sender.
    pub events: &'s dyn EventSource,
}

impl SharedReporter<'_, '_> {
    /// Reports the events of the sender until the end.
    pub fn relay(&self) {
        while self.events.await_event() {
            self.relay_arrived(*self.reporter.lock());
        }
    }

    fn relay_arrived(&self, reporter: &mut TextReporter) {
        self.events
            .relay_events(&mut |event| reporter.report(event));
    }
}

impl EventSink for SharedReporter<'_, '_> {
    fn report(&mut self, event: &Event) {
        let mut reporter = self.reporter.lock();
        self.relay_arrived(*reporter);
        reporter.report(event);
    }

    fn delivery_failure(&self) -> Option<Error> {
        if self.reporter.lock().lines_are_lost() {
            Some(Error::new(Exit::Message, ""))
        } else {
            None
        }
    }
}

/// The receiver's events, queued for the reporter of a client that sends.
pub struct EventQueue {
    /// Each with its cost in the window of its class.
    events: Queue<(Event, u64)>,
    /// See [`Client::is_local`](crate::session::client::Client::is_local).
    is_local: bool,
}

impl EventQueue {
    /// Creates the queue of a client that sends. The window of the events bounds it.
    pub fn new(is_local: bool) -> EventQueue {
        EventQueue {
            is_local,
            events: Queue::new(usize::MAX),
        }
    }

    pub fn push(&self, event: Event, cost: u64) {
        // Nothing is reported after the end.
        let _ = self.events.push((event, cost));
    }

    pub fn end(&self) {
        self.events.close();
    }

    /// Reports events until the end. `taken` is called with the cost of each.
    pub fn report(
        &self,
        reporter: &Mutex<&mut TextReporter>,
        taken: &dyn Fn(u64),
        stop: &AtomicBool,
    ) {
        while let Some((mut event, cost)) = self.events.pop() {
            if let Event::Item(item) = &mut event
                && item.update == Update::Received
                && !self.is_local
            {
                // Received by the server means sent by us.
                item.update = Update::Sent;
            }
            let mut reporter = reporter.lock();
            reporter.report(&event);
            taken(cost);
            if reporter.lines_are_lost() {
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
}
