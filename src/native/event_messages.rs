//! Events between two sparsyncs: a server sends those of its receiver to the client.

use crate::apply::pipeline::EventSink;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::connection::NativeConnection;
use crate::native::intake::MessageHandler;
use crate::native::sender_inbox::SenderInbox;
use crate::proto::Message;
use crate::report::event::Event;
use crate::session::connection::EndHandler;
use crate::session::event_relay::EventQueue;

/// Sends the events of a server to its client.
pub struct RemoteReporter<'a> {
    pub connection: &'a NativeConnection,
    /// The error once events can no longer be sent.
    pub lost: Option<Error>,
}

impl EventSink for RemoteReporter<'_> {
    fn report(&mut self, event: &Event) {
        if let Err(error) = self.connection.send(&Message::Event(event.clone())) {
            self.lost.get_or_insert(error);
        }
    }

    /// An event that cannot be encoded is a cause of its own. That of a lost connection is known at both ends.
    fn delivery_failure(&self) -> Option<Error> {
        let lost = self.lost.as_ref()?;
        let is_cause = lost.exit == Exit::Protocol;
        Some(if is_cause {
            lost.clone()
        } else {
            Error::new(lost.exit, "")
        })
    }
}

/// The message handler of a client that sends: queues the receiver's events for reporting.
pub struct SenderHandler<'a> {
    pub inbox: &'a SenderInbox,
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
    use crate::native::receiver_inbox::ReceiverHandler;
    use crate::native::receiver_inbox::ReceiverInbox;
    use crate::native::tests::reporter_to;
    use crate::options::Options;
    use crate::plan::planned::PlannedAction;
    use crate::proto::ProtocolSupport;
    use crate::proto::limits::PLANNED_MAX_BYTES;
    use crate::session::event_relay::SharedReporter;
    use parking_lot::Mutex;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn events_of_the_sender_come_before_later_ones_of_the_client() {
        let printed = tempfile::NamedTempFile::new().unwrap();
        let mut reporter = reporter_to(&Options::default(), Box::new(printed.reopen().unwrap()));
        let inbox = ReceiverInbox::default();
        let connection = NativeConnection::new((ProtocolSupport::ours(0).dialect)(1));
        let handler = ReceiverHandler {
            inbox: &inbox,
            connection: &connection,
            accepts_unrequested: false,
            at_server: None,
            interrupted: &AtomicBool::new(false),
            takes_totals: None,
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
    fn relay_reports_why_an_event_cannot_be_encoded() {
        let connection = NativeConnection::new((ProtocolSupport::ours(0).dialect)(1));
        let mut remote_reporter = RemoteReporter {
            connection: &connection,
            lost: None,
        };
        let action = PlannedAction {
            path: vec![b'p'; PLANNED_MAX_BYTES],
            ..PlannedAction::of_new_root(0o755)
        };
        remote_reporter.report(&Event::Planned(Box::new(action)));
        let error = remote_reporter.delivery_failure().expect("it is too long");
        let message = String::from_utf8_lossy(&error.message);
        assert!(message.contains("planned action is"), "{message}");
    }

    #[test]
    fn relay_reports_the_loss_of_the_client() {
        let connection = NativeConnection::new((ProtocolSupport::ours(0).dialect)(1));
        let mut remote_reporter = RemoteReporter {
            connection: &connection,
            lost: None,
        };
        remote_reporter.report(&Event::Note(b"sent".to_vec()));
        assert_eq!(remote_reporter.delivery_failure(), None);
        connection.shut(Error::new(Exit::Stream, "gone"));
        remote_reporter.report(&Event::Note(b"lost".to_vec()));
        assert_eq!(
            remote_reporter.delivery_failure(),
            Some(Error::new(Exit::Stream, ""))
        );
    }
}
