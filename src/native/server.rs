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
use crate::native::session_io::{NativeIo, dress};
use crate::native::shortcuts::Shortcuts;
use crate::native::source::NativeSource;
use crate::options::{Options, Output, PlanUse};
use crate::plan::planned::StoredPlan;
use crate::proto::message::{ACTS_AS_SUPER, ASKS_FIRST, TAKES_TOTALS};
use crate::proto::{Dialect, Encoder, Greeting, Message, ProtocolSupport, Setup};
use crate::report::event::Event;
use crate::report::explainer::Explainer;
use crate::report::{Tally, totals_line};
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
        let role = if setup.server_sends {
            "sender"
        } else {
            "receiver"
        };
        let server_sends = setup.server_sends;
        let settled = settled.map_err(Refusal::into_error);
        let ceiling = settled
            .as_ref()
            .map_or_else(|_| Ceiling::default(), |settled| settled.ceiling.clone());
        let timeout_secs = settled
            .as_ref()
            .map_or(0, |settled| settled.options.connect.timeout_secs);
        let output = settled
            .as_ref()
            .map(|settled| settled.options.output.clone())
            .unwrap_or_default();
        let encoder = self.encoder((support.dialect)(version), output);
        let connection = Arc::new(
            NativeConnection::new(encoder)
                .growing()
                .below(ceiling)
                .timing_out(timeout_secs),
        );
        let when = settled
            .as_ref()
            .map_or(CompressionPolicy::Never, |settled| {
                let compress = &settled.options.delta.compress;
                compression_choice::compression_policy(
                    compress.choice,
                    compress.level,
                    theirs.features,
                )
            });
        let (link, traffic) = counted(link);
        let session_io = NativeIo {
            connection: &connection,
            dialect: (support.dialect)(version),
            timeout_secs,
            link: dress(link, server_sends, when, &connection),
            traffic: traffic.clone(),
        };
        let settled = match settled {
            Ok(settled) => settled,
            Err(error) => {
                let exit = error.exit;
                if let Some(log) = &self.daemon {
                    log.end(&error, role);
                }
                // Sends the error, which this end has as well.
                let inbox = SenderInbox::default();
                let _ = session_io.handled_by(&inbox).hold(&inbox, || Err(error));
                return exit;
            }
        };
        let mut tally = Tally::default();
        let ended = self.run_role(session_io, settled, setup, theirs, &mut tally);
        let exit = ended
            .as_ref()
            .map_or_else(|error| error.exit, |()| tally.exit_of_server());
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
        setup: Setup,
        theirs: Greeting,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let SettledSetup {
            mut options,
            rules,
            operands,
            listed,
            repeats,
            server_stops,
            ..
        } = settled;
        let connection = session_io.connection;
        if setup.wants.planned {
            options.plan_use = PlanUse::Record;
        }
        let interrupted = &AtomicBool::new(false);
        let explainer = Explainer::new(&options.explained);
        let plan = if options.plan_use == PlanUse::Replay && !setup.server_sends {
            Some(ReceivedPlan::new(options.connect.max_alloc_bytes))
        } else {
            None
        };
        let process = Process {
            explainer: explainer.as_ref(),
            stored: plan.as_ref().map(|plan| plan as &dyn StoredPlan),
            ..self.process
        };
        let gauge = None;
        let run_context = RunContext {
            options: &options,
            rules: &rules,
            process,
            repeats,
            interrupted,
            gauge,
        };
        let checksums = native_checksums(
            &theirs.key,
            options.checksum_cache.is_some(),
            options.plan_use != PlanUse::Free,
        );
        let with_cause = |error: Error| match error.exit {
            Exit::Signal if server_stops.load(Ordering::Relaxed) => {
                Error::new(Exit::Terminated, "sparsync: the server was stopped")
            }
            _ => error,
        };
        if setup.server_sends {
            let inbox = SenderInbox::default();
            let report = |event: Event| connection.send(&Message::Event(event));
            let shortcuts = Shortcuts::for_run(&options, setup.wants);
            let peer = NativeDest {
                connection,
                inbox: &inbox,
                facts: dest_facts(shortcuts.unrequested, theirs.features & TAKES_TOTALS != 0),
                plan: None,
                waits_for_dirs: setup.wants.progress,
            };
            let reported_dirs = ReportedDirs {
                connection,
                inbox: &inbox,
                digester: SourceDigester {
                    key: theirs.key,
                    options: &options,
                },
                guess: theirs.guess,
            };
            let dest_dirs: Option<&dyn DestDirs> = if shortcuts.compare {
                Some(&reported_dirs)
            } else {
                None
            };
            let sender = Sender {
                run_context,
                peer: &peer,
                dest_dirs,
                checksums,
                receiver_is_super: theirs.features & ACTS_AS_SUPER != 0,
                wants: setup.wants,
                throttle: throttle(&run_context),
                profile: setup.profile,
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
                    arguments: &operands,
                    listed: listed.as_deref(),
                    prefetch: None,
                    sent_roots: None,
                },
                events: None,
            };
            return run_sender(run, tally, with_cause);
        }
        let inbox = ReceiverInbox::default();
        let at_server = AtServer {
            plan: plan.as_ref(),
        };
        let handler = receiver_handler(
            &run_context,
            setup.wants,
            &inbox,
            connection,
            Some(at_server),
        );
        let dest = if options.select.list_only {
            None
        } else {
            // Wildcards may have expanded to several names; rsync uses the first.
            operands.into_iter().next()
        };
        let digests = DestDigests {
            connection,
            inbox: &inbox,
            key: theirs.key,
            prescan: None,
        };
        let peer = NativeSource {
            run_context,
            connection,
            inbox: &inbox,
            facts: source_facts(&checksums),
            checksums,
            awaits_bye: false,
            profile: setup.profile,
        };
        let receiver = Receiver {
            run_context,
            peer: &peer,
            dir_reports: Some(&digests),
            dest,
            request: Arc::new(ResponseValidator::anything(run_context.options)),
            wants: setup.wants,
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
        run_receiver(run, tally, with_cause)
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
    let sent = send_verdict(link, dialect, refused.map(Error::text));
    sent.as_ref()
        .err()
        .or(refused)
        .map_or(Ok(()), |error| Err(error.exit))
}
