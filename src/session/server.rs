//! The server's end of a session.

use crate::apply::BlockSums;
use crate::digest::{By, Comparison};
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Rules;
use crate::options::Options;
use crate::proto::message::{ACTS_AS_SUPER, ASKS_FIRST};
use crate::proto::{Message, ProtocolSupport, Setup};
use crate::report::Tally;
use crate::report::event::Event;
use crate::session::compression_choice;
use crate::session::event_relay::RemoteReporter;
use crate::session::handshake::{self, Begun, Opening, send_verdict};
use crate::session::io_threads::{SessionIo, counted, dress};
use crate::session::receiver::{Receiver, ReceiverInbox};
use crate::session::response_validation::ResponseValidator;
use crate::session::sender::{Sender, SenderInbox};
use crate::session::{Refusal, connection_of, receiver_handler, throttle};
use crate::transport::Link;
use crate::transport::compression::CompressionPolicy;
use crate::transport::window_limit::Ceiling;
use crate::walk::run_context::Terms;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The server's end of a session.
pub struct Server<'a> {
    /// The working directory, absolute.
    pub cwd: &'a [u8],
    /// The umask at the start of the process.
    pub umask: u32,
    /// Set to stop the run (a signal).
    pub stop: &'a AtomicBool,
    /// How many threads may work at once.
    pub threads: usize,
    /// Parses and checks the client's request, or rejects it.
    pub settle: &'a (dyn Fn(&Setup) -> Result<SettledSetup, Refusal> + 'a),
}

/// A client's request, checked and parsed.
pub struct SettledSetup {
    /// The options.
    pub options: Options,
    /// The rules.
    pub rules: Rules,
    /// The paths on this machine.
    pub operands: Vec<Vec<u8>>,
    /// The names listed by `--files-from`.
    pub listed: Option<Vec<Vec<u8>>>,
    /// See [`Terms::repeats`].
    pub repeats: bool,
    /// Set when the run stops because the server is stopped. The client then gets this as the reason.
    pub server_stops: Arc<AtomicBool>,
    /// How far windows may grow.
    pub ceiling: Ceiling,
    /// The error if the request goes beyond the grant. A client that has no other route is served as far as the grant
    /// goes.
    pub beyond: Option<Error>,
}

impl Server<'_> {
    /// Runs a session. `support` must include [`compression_choice::features`].
    pub fn serve(&self, link: Link, support: &ProtocolSupport) -> Exit {
        match handshake::greet(link, support) {
            Ok(Opening::Session(begun)) => self.play(*begun),
            // This server has only this one session.
            Ok(Opening::Meeting(_)) => Exit::Protocol,
            // Without a common version, the error cannot be sent.
            Err(error) => error.exit,
        }
    }

    /// Runs a session after the handshake.
    pub fn play(&self, begun: Begun) -> Exit {
        let Begun { setup, theirs, version, support, mut link } = begun;
        let compared_by = Comparison::keyed(&theirs.key);
        let settled = (self.settle)(&setup);
        if support.features & theirs.features & ASKS_FIRST != 0 {
            let refused = match &settled {
                Ok(settled) => settled.beyond.as_ref(),
                Err(Refusal::NotGranted(error)) => Some(error),
                Err(Refusal::Failed(_)) => None,
            };
            let why = refused.map(Error::text);
            let sent = send_verdict(&mut link, &mut *(support.dialect)(version), why);
            if let Some(error) = sent.as_ref().err().or(refused) {
                return error.exit;
            }
        }
        let settled = settled.map_err(Refusal::into_error);
        let ceiling = settled.as_ref().map_or_else(|_| Ceiling::default(), |settled| settled.ceiling.clone());
        let timeout_secs = settled.as_ref().map_or(0, |settled| settled.options.connect.timeout_secs);
        let connection = connection_of(&support, version).below(ceiling).timing_out(timeout_secs);
        let connection = Arc::new(connection);
        let when = settled.as_ref().map_or(CompressionPolicy::Never, |settled| {
            let compress = &settled.options.delta.compress;
            compression_choice::compression_policy(compress.choice, compress.level, theirs.features)
        });
        let (link, traffic) = counted(link);
        let link = dress(link, setup.server_sends, when, &connection);
        let session_io = SessionIo {
            connection: &connection,
            intake: Box::new((support.dialect)(version)),
            timeout_secs,
            link,
            traffic,
        };
        let SettledSetup { options, rules, operands, listed, repeats, server_stops, .. } = match settled {
            Ok(settled) => settled,
            Err(error) => {
                let exit = error.exit;
                let inbox = SenderInbox::default();
                // Sends the error, which this end has as well.
                let _ = session_io.hold(&inbox, || Err(error));
                return exit;
            }
        };
        let interrupted = &AtomicBool::new(false);
        let gauge = None;
        let Server { cwd, umask, stop, threads, settle: _ } = *self;
        let terms = Terms { options: &options, rules: &rules, cwd, umask, stop, threads, repeats, interrupted, gauge };
        let mut tally = Tally::default();
        let with_cause = |error: Error| match error.exit {
            Exit::Signal if server_stops.load(Ordering::Relaxed) => {
                Error::new(Exit::Terminated, "sparsync: the server was stopped")
            }
            _ => error,
        };
        let ended = if setup.server_sends {
            let inbox = SenderInbox::default();
            let report = |event: Event| connection.send(&Message::Event(event));
            let sender = Sender {
                terms,
                connection: &connection,
                inbox: &inbox,
                key: theirs.key,
                guess: theirs.guess,
                plain_by: By::Xxh3,
                block_sums: BlockSums::Native,
                compared_by,
                receiver_is_super: theirs.features & ACTS_AS_SUPER != 0,
                wants: setup.wants,
                throttle: throttle(&terms),
                profile: setup.profile,
                report: &report,
            };
            session_io.hold(&inbox, || sender.run(&operands, listed.as_deref(), &mut tally).map_err(with_cause))
        } else {
            let inbox = ReceiverInbox::default();
            let handler = receiver_handler(&terms, setup.wants, &inbox, &connection, false);
            // Wildcards may have expanded to several names; rsync uses the first.
            let dest = operands.into_iter().next().filter(|_| !options.select.list_only);
            let receiver = Receiver {
                request: ResponseValidator::anything(&terms),
                terms,
                connection: &connection,
                inbox: &inbox,
                key: theirs.key,
                plain_by: By::Xxh3,
                blocks_by: By::Blake3,
                compared_by,
                block_sums: BlockSums::Native,
                supports_large: true,
                prescan: None,
                dest,
                wants: setup.wants,
                is_client: false,
                listing_client: None,
                awaits_bye: false,
                profile: setup.profile,
            };
            let mut listener = RemoteReporter { connection: &connection, lost: None };
            session_io.hold(&handler, || receiver.run(&mut listener, &mut tally).map_err(with_cause))
        };
        ended.map_or_else(|error| error.exit, |()| tally.exit_of_server())
    }
}
