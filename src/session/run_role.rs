//! Runs a role to its end: the sender and the receiver of a session, at either end, in either protocol.
//!
//! The opener of a session assembles what differs: the link, the protocol, the facts about the peer, and where events go. From
//! there on there is one way to run each role.

use crate::apply::pipeline::EventSink;
use crate::error::Error;
use crate::report::{Tally, TextReporter};
use crate::session::connection::{EndHandler, WireOutput};
use crate::session::event_relay::{EventQueue, SharedReporter};
use crate::session::io_threads::SessionIo;
use crate::session::receiver::{EventSource, Receiver};
use crate::session::sender::{Sender, SentRoots};
use crate::session::source_prefetch::SourcePrefetch;
use crate::work::on_drop::OnDrop;
use crate::work::thread::spawn;
use parking_lot::Mutex;

/// A sender, assembled.
pub struct SenderRun<'r, 's, 'p, 't, O: WireOutput> {
    pub session_io: SessionIo<'r, O>,
    /// Learns that nothing more comes from the receiver.
    pub handler: &'r dyn EndHandler,
    pub sender: &'r Sender<'s>,
    /// What it sends.
    pub source: SenderSource<'r, 'p>,
    /// Where the events of both ends are reported at this one; `None`: nowhere.
    pub events: Option<ReportedEvents<'r, 't>>,
}

/// What a sender sends.
pub struct SenderSource<'r, 'p> {
    pub arguments: &'r [Vec<u8>],
    /// The names listed by `--files-from`.
    pub listed: Option<&'r [Vec<u8>]>,
    /// A scan of the source in progress.
    pub prefetch: Option<&'r SourcePrefetch<'p>>,
    /// Set if the receiver already has the roots, which are those of the scan.
    pub sent_roots: Option<SentRoots>,
}

/// The events of a sender, and their reporter.
#[derive(Clone, Copy)]
pub struct ReportedEvents<'r, 't> {
    pub queue: &'r EventQueue,
    pub reporter: &'r Mutex<&'t mut TextReporter>,
    /// Called with the cost of each event that was reported.
    pub taken: &'r (dyn Fn(u64) + Sync),
}

/// Sends until the receiver has everything. `cause_of` returns the error that the peer learns and that ends the run.
pub fn run_sender<O: WireOutput>(
    run: SenderRun<'_, '_, '_, '_, O>,
    tally: &mut Tally,
    cause_of: impl Fn(Error) -> Error,
) -> Result<(), Error> {
    let SenderRun {
        session_io,
        handler,
        sender,
        source,
        events,
    } = run;
    let stop = sender.run_context.process.stop;
    session_io.hold(handler, || {
        // The thread that reads may wait for something to be taken, even after a panic here.
        let _closed = OnDrop(|| sender.peer.close());
        std::thread::scope(|scope| {
            if let Some(ReportedEvents {
                queue,
                reporter,
                taken,
            }) = events
            {
                spawn(scope, "report", move || queue.report(reporter, taken, stop))?;
            }
            let opened = sender.peer.open();
            let ended = opened.and_then(|()| match source.prefetch {
                Some(prefetch) => sender.run_on(prefetch, source.sent_roots, tally),
                None => sender.run(source.arguments, source.listed, tally),
            });
            if let Some(ReportedEvents { queue, .. }) = events {
                queue.end();
            }
            ended.map_err(&cause_of)
        })
    })
}

/// A receiver, assembled.
pub struct ReceiverRun<'r, 's, 't, O: WireOutput> {
    pub session_io: SessionIo<'r, O>,
    /// Learns that nothing more comes from the sender.
    pub handler: &'r dyn EndHandler,
    pub receiver: &'r Receiver<'s>,
    /// Where the events of this end go.
    pub listener: ReceiverListener<'r, 't>,
}

/// Where the events of a receiver go.
pub enum ReceiverListener<'r, 't> {
    /// To the reporter of this process, which is the client.
    Client {
        reporter: &'r Mutex<&'t mut TextReporter>,
        /// The events of the sender, which are reported as well.
        events: &'r dyn EventSource,
    },
    /// To the client.
    Server(&'r mut dyn EventSink),
}

/// Receives until everything is in place. `cause_of` returns the error that the peer learns and that ends the run.
pub fn run_receiver<O: WireOutput>(
    run: ReceiverRun<'_, '_, '_, O>,
    tally: &mut Tally,
    cause_of: impl Fn(Error) -> Error,
) -> Result<(), Error> {
    let ReceiverRun {
        session_io,
        handler,
        receiver,
        listener,
    } = run;
    session_io.hold(handler, || {
        // The thread that reads may wait for something to be taken, even after a panic here.
        let _closed = OnDrop(|| receiver.peer.close());
        let received = match listener {
            ReceiverListener::Client { reporter, events } => {
                let own = SharedReporter { reporter, events };
                receive_at_client(receiver, own, tally)
            }
            ReceiverListener::Server(sink) => receiver.run(sink, tally),
        };
        received.map_err(&cause_of)
    })
}

/// Receives at the client, and reports the events of the sender meanwhile.
fn receive_at_client(
    receiver: &Receiver<'_>,
    mut own: SharedReporter<'_, '_>,
    tally: &mut Tally,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        // Events of the sender are reported at once: the sender waits until they are consumed.
        spawn(scope, "report", move || own.relay())?;
        let _closed = OnDrop(|| receiver.peer.close());
        receiver.run(&mut own, tally)
    })
}
