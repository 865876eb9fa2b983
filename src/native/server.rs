//! The server's end of a session of two sparsyncs.

use crate::apply::LateRemovals;
use crate::apply::facts::{ItemPrinter, ReportTime};
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Rules;
use crate::native::client::receiver_handler;
use crate::native::compression_choice;
use crate::native::connection::NativeConnection;
use crate::native::dest::NativeDest;
use crate::native::dest_digests::DestDigests;
use crate::native::dir_digest::SourceDigester;
use crate::native::event_messages::RemoteReporter;
use crate::native::facts::{dest_facts, native_checksums, source_facts};
use crate::native::handshake::{self, Begun, Opening, send_verdict};
use crate::native::module_encoder::ModuleEncoder;
use crate::native::received_plan::ReceivedPlan;
use crate::native::receiver_inbox::{AtServer, ReceiverInbox};
use crate::native::reported_dirs::ReportedDirs;
use crate::native::sender_inbox::SenderInbox;
use crate::native::session_io::{NativeIo, wrap_link};
use crate::native::shortcuts::Shortcuts;
use crate::native::source::NativeSource;
use crate::options::{Options, Output, PlanUse};
use crate::plan::planned::StoredPlan;
use crate::proto::message::{ACTS_AS_SUPER, ASKS_FIRST, TAKES_TOTALS};
use crate::proto::{Dialect, Encoder, Greeting, Message, ProtocolSupport, Setup};
use crate::report::event::Event;
use crate::report::explainer::Explainer;
use crate::report::{Tally, totals_line};
use crate::session::checksums::SessionChecksums;
use crate::session::io_threads::counted;
use crate::session::module_log::ModuleLog;
use crate::session::receiver::Receiver;
use crate::session::refusal::Refusal;
use crate::session::response_validation::ResponseValidator;
use crate::session::run_role::{
    ReceiverListener, ReceiverRun, SenderRun, SenderSource, run_receiver, run_sender,
};
use crate::session::sender::{DestDirs, Sender, throttle};
use crate::transport::Link;
use crate::transport::compression::CompressionPolicy;
use crate::transport::window_limit::Ceiling;
use crate::walk::run_context::{Process, RunContext};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The server's end of a session.
pub struct Server<'a> {
    pub process: Process<'a>,
    /// Parses and checks the client's request, or rejects it.
    pub settle: &'a (dyn Fn(&Setup) -> Result<SettledSetup, Refusal> + 'a),
    /// The log, if a daemon serves the client.
    pub daemon: Option<Arc<ModuleLog>>,
}

/// A client's request, checked and parsed.
pub struct SettledSetup {
    pub options: Options,
    pub rules: Rules,
    /// The paths on this machine.
    pub operands: Vec<Vec<u8>>,
    /// The names listed by `--files-from`.
    pub listed: Option<Vec<Vec<u8>>>,
    /// See [`RunContext::repeats`].
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
        let error = match handshake::greet(link, support) {
            Ok(Opening::Session(begun)) => return self.play(*begun),
            // This server has only this one session.
            Ok(Opening::Meeting(client)) => client.reject(),
            Err(error) => error,
        };
        if let Some(log) = &self.daemon {
            log.end(&error, "receiver");
        }
        error.exit
    }

    /// Runs a session after the handshake.
    pub fn play(&self, begun: Begun) -> Exit {
        let Begun {
            setup,
            theirs,
            version,
            support,
            mut link,
        } = begun;
        let settled = (self.settle)(&setup);
        if support.features & theirs.features & ASKS_FIRST != 0
            && let Err(exit) = answer_request(&mut link, &mut *(support.dialect)(version), &settled)
        {
            return exit;
        }

        let settled = settled.map_err(Refusal::into_error);
        let stream = match &settled {
            Ok(settled) => StreamSettings::for_request(settled, &theirs),
            Err(_) => StreamSettings::default(),
        };
        let encoder = self.encoder((support.dialect)(version), stream.output);
        let connection = Arc::new(
            NativeConnection::new(encoder)
                .growing()
                .below(stream.ceiling)
                .timing_out(stream.timeout_secs),
        );
        let (link, traffic) = counted(link);
        let server_sends = setup.server_sends;
        let session_io = NativeIo {
            connection: &connection,
            dialect: (support.dialect)(version),
            timeout_secs: stream.timeout_secs,
            link: wrap_link(link, server_sends, stream.compression, &connection),
            traffic: traffic.clone(),
        };

        let role = if server_sends { "sender" } else { "receiver" };
        let settled = match settled {
            Ok(settled) => settled,
            Err(error) => {
                if let Some(log) = &self.daemon {
                    log.end(&error, role);
                }
                return report_rejection(session_io, error);
            }
        };
        let mut tally = Tally::default();
        let ended = self.run_role(session_io, settled, &setup, theirs, &mut tally);
        let exit = match &ended {
            Ok(()) => tally.exit_of_server(),
            Err(error) => error.exit,
        };
        if let Some(log) = &self.daemon {
            if server_sends || exit == Exit::Ok {
                (log.put)(totals_line(traffic.counts(), tally.total_bytes).as_bytes());
            }
            if let Err(error) = &ended {
                log.end(error, role);
            }
        }
        exit
    }

    /// Runs this end's role.
    fn run_role(
        &self,
        session_io: NativeIo<'_>,
        settled: SettledSetup,
        setup: &Setup,
        theirs: Greeting,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let mut options = settled.options;
        if setup.wants.planned {
            options.plan_use = PlanUse::Record;
        }
        let explainer = Explainer::new(&options.explained);
        let plan = if options.plan_use == PlanUse::Replay && !setup.server_sends {
            Some(ReceivedPlan::new(options.connect.max_alloc_bytes))
        } else {
            None
        };
        let run = ServedRun {
            run_context: RunContext {
                options: &options,
                rules: &settled.rules,
                process: Process {
                    explainer: explainer.as_ref(),
                    stored: plan.as_ref().map(|plan| plan as &dyn StoredPlan),
                    ..self.process
                },
                repeats: settled.repeats,
                interrupted: &AtomicBool::new(false),
                gauge: None,
            },
            setup,
            server_stops: &settled.server_stops,
            checksums: native_checksums(
                &theirs.key,
                options.checksum_cache.is_some(),
                options.plan_use != PlanUse::Free,
            ),
            theirs,
        };
        if setup.server_sends {
            let listed = settled.listed.as_deref();
            return run.send(session_io, &settled.operands, listed, tally);
        }
        let dest = if options.select.list_only {
            None
        } else {
            // Wildcards may have expanded to several names; rsync uses the first.
            settled.operands.into_iter().next()
        };
        run.receive(session_io, dest, plan.as_ref(), tally)
    }

    /// Returns the encoder of a session, which in a daemon also writes its log.
    fn encoder(&self, dialect: Box<dyn Encoder + Send>, output: Output) -> Box<dyn Encoder + Send> {
        match self.daemon.clone() {
            Some(log) => Box::new(ModuleEncoder {
                inner: dialect,
                log,
                output,
            }),
            None => dialect,
        }
    }
}

/// How the stream to a client is encoded and written. The default is for the error of a rejected request.
struct StreamSettings {
    /// How far windows may grow.
    ceiling: Ceiling,
    /// 0: no timeout.
    timeout_secs: u32,
    /// The client's options for output, which decide what a daemon logs.
    output: Output,
    /// How a sender compresses.
    compression: CompressionPolicy,
}

impl Default for StreamSettings {
    fn default() -> StreamSettings {
        StreamSettings {
            ceiling: Ceiling::default(),
            timeout_secs: 0,
            output: Output::default(),
            compression: CompressionPolicy::Never,
        }
    }
}

impl StreamSettings {
    fn for_request(settled: &SettledSetup, theirs: &Greeting) -> StreamSettings {
        let options = &settled.options;
        let compress = &options.delta.compress;
        StreamSettings {
            ceiling: settled.ceiling.clone(),
            timeout_secs: options.connect.timeout_secs,
            output: options.output.clone(),
            compression: compression_choice::compression_policy(
                compress.choice,
                compress.level,
                theirs.features,
            ),
        }
    }
}

/// A run that a client has requested and that the server serves.
struct ServedRun<'a> {
    run_context: RunContext<'a>,
    /// The request.
    setup: &'a Setup,
    /// The greeting of the client.
    theirs: Greeting,
    checksums: SessionChecksums,
    /// See [`SettledSetup::server_stops`].
    server_stops: &'a AtomicBool,
}

impl ServedRun<'_> {
    /// Sends the source. `listed`: the names listed by `--files-from`.
    fn send(
        self,
        session_io: NativeIo<'_>,
        arguments: &[Vec<u8>],
        listed: Option<&[Vec<u8>]>,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let connection = session_io.connection;
        let options = self.run_context.options;
        let wants = self.setup.wants;
        let inbox = SenderInbox::default();
        let report = |event: Event| connection.send(&Message::Event(event));
        let shortcuts = Shortcuts::for_run(options, wants);
        let takes_totals = self.theirs.features & TAKES_TOTALS != 0;
        let peer = NativeDest {
            connection,
            inbox: &inbox,
            facts: dest_facts(shortcuts.unrequested, takes_totals),
            plan: None,
            waits_for_dirs: wants.progress,
        };
        let reported_dirs = ReportedDirs {
            connection,
            inbox: &inbox,
            digester: SourceDigester {
                key: self.theirs.key,
                options,
            },
            guess: self.theirs.guess,
        };
        let dest_dirs: Option<&dyn DestDirs> = if shortcuts.compare {
            Some(&reported_dirs)
        } else {
            None
        };
        let sender = Sender {
            run_context: self.run_context,
            peer: &peer,
            dest_dirs,
            checksums: self.checksums,
            receiver_is_super: self.theirs.features & ACTS_AS_SUPER != 0,
            wants,
            throttle: throttle(&self.run_context),
            profile: self.setup.profile,
            unsent: Default::default(),
            report: &report,
            opened: Mutex::default(),
            late_removals: LateRemovals::default(),
        };
        let run = SenderRun {
            session_io: session_io.handled_by(&inbox),
            handler: &inbox,
            sender: &sender,
            source: SenderSource {
                arguments,
                listed,
                prefetch: None,
                sent_roots: None,
            },
            events: None,
        };
        run_sender(run, tally, |error| cause_of(error, self.server_stops))
    }

    /// Receives into the destination; `None`: lists the source. `plan`: the one that the run carries out, which the client
    /// sends.
    fn receive(
        self,
        session_io: NativeIo<'_>,
        dest: Option<Vec<u8>>,
        plan: Option<&ReceivedPlan>,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let connection = session_io.connection;
        let run_context = self.run_context;
        let wants = self.setup.wants;
        let inbox = ReceiverInbox::default();
        let at_server = AtServer { plan };
        let handler = receiver_handler(&run_context, wants, &inbox, connection, Some(at_server));
        let digests = DestDigests {
            connection,
            inbox: &inbox,
            key: self.theirs.key,
            prescan: None,
        };
        let peer = NativeSource {
            run_context,
            connection,
            inbox: &inbox,
            facts: source_facts(&self.checksums),
            checksums: self.checksums,
            awaits_bye: false,
            profile: self.setup.profile,
        };
        let receiver = Receiver {
            run_context,
            peer: &peer,
            dir_reports: Some(&digests),
            dest,
            request: Arc::new(ResponseValidator::anything(run_context.options)),
            wants,
            printer: ItemPrinter::Us {
                when: ReportTime::Done,
            },
        };
        let mut reporter = RemoteReporter {
            connection,
            lost: None,
        };
        let run = ReceiverRun {
            session_io: session_io.handled_by(&handler),
            handler: &handler,
            receiver: &receiver,
            listener: ReceiverListener::Server(&mut reporter),
        };
        run_receiver(run, tally, |error| cause_of(error, self.server_stops))
    }
}

/// Returns the error that the client gets: a session that a signal ended may have ended because the server was stopped.
fn cause_of(error: Error, server_stops: &AtomicBool) -> Error {
    if error.exit == Exit::Signal && server_stops.load(Ordering::Relaxed) {
        return Error::new(Exit::Terminated, "sparsync: the server was stopped");
    }
    error
}

/// Sends the client the error of its request. Returns the exit code.
fn report_rejection(session_io: NativeIo<'_>, error: Error) -> Exit {
    let exit = error.exit;
    let inbox = SenderInbox::default();
    // The result is the same error, or that it could not be sent.
    let _ = session_io.handled_by(&inbox).hold(&inbox, || Err(error));
    exit
}

/// Sends whether the client's request was granted. Returns the exit code if it was not, or if this cannot be sent.
fn answer_request(
    link: &mut Link,
    dialect: &mut dyn Dialect,
    settled: &Result<SettledSetup, Refusal>,
) -> Result<(), Exit> {
    let refused = match settled {
        Ok(settled) => settled.beyond.as_ref(),
        Err(Refusal::NotGranted(error)) => Some(error),
        Err(Refusal::Failed(_)) => None,
    };
    send_verdict(link, dialect, refused.map(Error::text)).map_err(|error| error.exit)?;
    match refused {
        Some(error) => Err(error.exit),
        None => Ok(()),
    }
}
