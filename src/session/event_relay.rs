//! Where events go: to the reporter of this process, or to the client.

use crate::apply::pipeline::EventSink;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::proto::Message;
use crate::report::TextReporter;
use crate::report::event::{Event, Update};
use crate::session::connection::{Connection, EndHandler, MessageHandler};
use crate::session::receiver::EventSource;
use crate::session::sender;
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

    fn delivery_failure(&self) -> Option<Exit> {
        if self.reporter.lock().lines_are_lost() {
            Some(Exit::Message)
        } else {
            None
        }
    }
}

/// Sends the events of a server to its client.
pub struct RemoteReporter<'a> {
    pub connection: &'a Connection,
    /// The exit code once events can no longer be sent.
    pub lost: Option<Exit>,
}

impl EventSink for RemoteReporter<'_> {
    fn report(&mut self, event: &Event) {
        if let Err(error) = self.connection.send(&Message::Event(event.clone())) {
            self.lost.get_or_insert(error.exit);
        }
    }

    fn delivery_failure(&self) -> Option<Exit> {
        self.lost
    }
}

/// The receiver's events, queued for the reporter of a client that sends.
pub struct EventQueue {
    /// Each with its cost in the window of its class.
    events: Queue<(Event, u64)>,
    /// See [`Client::is_local`](crate::session::Client::is_local).
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

/// The message handler of a client that sends: queues the receiver's events for reporting.
pub struct SenderHandler<'a> {
    pub inbox: &'a sender::SenderInbox,
    pub events: &'a EventQueue,
    /// `--times` of this end, which the receiver may lack: `--remote-option`.
    pub keeps_times: bool,
}

impl MessageHandler for SenderHandler<'_> {
    fn handle(&self, message: Message, cost: u64) -> Result<()> {
        match message {
            Message::Event(mut event) => {
                if let Event::Item(item) = &mut event {
                    item.changes = item.changes.with_times(self.keeps_times);
                }
                self.events.push(event, cost);
                Ok(())
            }
            message => self.inbox.handle(message, cost),
        }
    }
}

impl EndHandler for SenderHandler<'_> {
    fn handle_end(&self, error: Error) {
        self.inbox.handle_end(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::proto::ProtocolSupport;
    use crate::session::receiver::{ReceiverHandler, ReceiverInbox};
    use crate::session::tests::reporter_to;

    #[test]
    fn events_of_the_sender_come_before_later_ones_of_the_client() {
        let printed = tempfile::NamedTempFile::new().unwrap();
        let mut reporter = reporter_to(&Options::default(), Box::new(printed.reopen().unwrap()));
        let inbox = ReceiverInbox::default();
        let connection = Connection::new((ProtocolSupport::ours(0).dialect)(1));
        let handler = ReceiverHandler {
            inbox: &inbox,
            connection: &connection,
            accepts_unrequested: false,
            at_server: None,
            interrupted: &AtomicBool::new(false),
            max_alloc_bytes: None,
        };
        handler
            .handle(Message::Event(Event::Note(b"of the sender".to_vec())), 1)
            .unwrap();
        let reporter = Mutex::new(&mut reporter);
        let mut shared = SharedReporter {
            reporter: &reporter,
            events: &handler,
        };
        shared.report(&Event::Note(b"of the client".to_vec()));
        reporter.lock().flush();
        assert_eq!(
            std::fs::read_to_string(printed.path()).unwrap(),
            "of the sender\nof the client\n"
        );
    }

    #[test]
    fn relay_reports_the_loss_of_the_client() {
        let connection = Connection::new((ProtocolSupport::ours(0).dialect)(1));
        let mut remote_reporter = RemoteReporter {
            connection: &connection,
            lost: None,
        };
        remote_reporter.report(&Event::Note(b"sent".to_vec()));
        assert_eq!(remote_reporter.delivery_failure(), None);
        connection.shut(Error::new(Exit::Stream, "gone"));
        remote_reporter.report(&Event::Note(b"lost".to_vec()));
        assert_eq!(remote_reporter.delivery_failure(), Some(Exit::Stream));
    }
}
