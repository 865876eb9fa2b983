//! The client's end of a session of two sparsyncs.

use crate::apply::LateRemovals;
use crate::apply::facts::{ItemPrinter, ReportTime};
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::sys;
use crate::native::compression_choice;
use crate::native::connection::Headway;
use crate::native::connection::NativeConnection;
use crate::native::dest::NativeDest;
use crate::native::dest_digests::DestDigests;
use crate::native::digest_exchange::{Known, PREDICTED_MAX_BYTES, PredictedDigests};
use crate::native::dir_digest::SourceDigester;
use crate::native::early_scan::EarlyScan;
use crate::native::event_messages::SenderHandler;
use crate::native::facts::{dest_facts, native_checksums, source_facts};
use crate::native::handshake::{receive_greeting, receive_verdict};
use crate::native::receiver_inbox::{AtServer, ReceiverHandler, ReceiverInbox};
use crate::native::reported_dirs::ReportedDirs;
use crate::native::sender_inbox::SenderInbox;
use crate::native::session_io::{NativeIo, wrap_link};
use crate::native::shortcuts::Shortcuts;
use crate::native::source::NativeSource;
use crate::options::algorithm::Algorithm as _;
use crate::options::{Compression, Options, PlanUse, RemoveSource};
use crate::proto::message::{ACTS_AS_SUPER, ASKS_FIRST};
use crate::proto::{Class, Dialect, Greeting, Message, ProtocolSupport, agree, encode_greeting};
use crate::report::event::{Event, Wants};
use crate::report::{Tally, TextReporter};
use crate::session::checksums::SessionChecksums;
use crate::session::client::Client;
use crate::session::connection::lost;
use crate::session::event_relay::EventQueue;
use crate::session::io_threads::counted;
use crate::session::receiver::Receiver;
use crate::session::refusal::Refusal;
use crate::session::run_role::{
    ReceiverListener, ReceiverRun, ReportedEvents, SenderRun, SenderSource, run_receiver,
    run_sender,
};
use crate::session::sender::{DestDirs, Sender, SentRoots};
use crate::session::source_prefetch::SourcePrefetch;
use crate::session::{compression, sender, stall_notice};
use crate::transport::compression::{AsItIs, CompressingWriter, CompressionPolicy};
use crate::transport::net::limits::FIRST_WORDS_MAX_BYTES;
use crate::transport::{Link, LinkBytes};
use crate::walk::run_context::RunContext;
use parking_lot::Mutex;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A client of a sparsync.
pub struct NativeClient<'a> {
    /// What it copies.
    pub client: Client<'a>,
    /// The key of directory digests. All attempts of one run use the same key: the server ends the earlier ones by it.
    pub key: [u8; 16],
    /// The dialect and features of this end.
    pub support: ProtocolSupport,
    /// How far the last session came. [`NativeClient::play`] sets it.
    pub headway: Mutex<Headway>,
}

impl NativeClient<'_> {
    /// Copies with [`NativeClient::open`] and [`NativeClient::play`]. The server must grant the request.
    pub fn run(
        &self,
        link: Link,
        sent: Option<FirstWords>,
        early: Option<EarlyScan<'_>>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let opened = self
            .open(link, sent, early.as_ref())
            .map_err(|refusal| refusal.print_details(reporter))?;
        self.play(opened, early, reporter, tally)
    }

    /// Greets, sends the request, and waits for the verdict if the server sends one. Nothing is printed or changed yet.
    /// `sent` is what was sent already, `early` the scan of this end's tree if one was started.
    pub fn open(
        &self,
        link: Link,
        sent: Option<FirstWords>,
        early: Option<&EarlyScan<'_>>,
    ) -> Result<OpenSession, Refusal> {
        let (link, traffic) = counted(link);
        // The server greets unprompted. The caller has seen the greeting already, to find out which program answers.
        let (theirs, mut link) = receive_greeting(link)?;
        let (first, mut flight) = match sent {
            Some(first) => {
                traffic
                    .sent
                    .fetch_add(first.words().len() as u64, Ordering::Relaxed);
                (first, Vec::new())
            }
            None => {
                let mut first =
                    FirstWords::greeting(&self.support, self.client.options, self.key, early);
                let flight = std::mem::take(&mut first.flight.bytes);
                (first, flight)
            }
        };
        let FirstWords {
            ours,
            has_setup,
            sent_roots,
            flight: Flight { predicted, .. },
        } = first;
        let version = agree(&ours, &theirs).inspect_err(|_| {
            // Send the greeting, so that the server can report the version mismatch, too.
            let _ = link
                .writer
                .write_all(&flight)
                .and_then(|()| link.writer.flush());
        })?;
        if has_setup && version != ours.newest {
            let words =
                "sparsync: protocol error: the server changed its version during the handshake";
            return Err(Error::new(Exit::Protocol, words).into());
        }
        let role = if self.client.setup.server_sends {
            "Receiver"
        } else {
            "sender"
        };
        let codec = compression_choice::agree(&self.client.options.delta.compress, theirs.features)
            .map_err(|error| error.by(role))?;
        if !has_setup {
            self.encode_setup(version, codec, &mut flight)?;
        }
        let connection = Arc::new(
            NativeConnection::new((self.support.dialect)(version))
                .growing()
                .over(link.moved.clone())
                .timing_out(self.client.options.connect.timeout_secs),
        );
        let predicting = if predicted.is_none() {
            early.and_then(EarlyScan::dest)
        } else {
            None
        };
        let digests = predicting
            .map(|prescan| &prescan.predicted)
            .or(predicted.as_ref())
            .and_then(|predicted| predicted.digests_message());
        if let Some(digests) = &digests {
            let mut spelled = Vec::new();
            (self.support.dialect)(version).encode(digests, &mut spelled)?;
            connection.count_sent_before(digests, spelled.len());
            if predicting.is_some() {
                flight.extend(spelled);
            }
        }
        link.writer
            .write_all(&flight)
            .and_then(|()| link.writer.flush())
            .map_err(|error| lost("writing", &error))?;
        if ours.features & theirs.features & ASKS_FIRST != 0 {
            let (refused, received) = receive_verdict(link, (self.support.dialect)(version))?;
            if let Some(why) = refused {
                return Err(Refusal::NotGranted(Error::of_text(Exit::FileSelect, &why)));
            }
            link = received;
        }
        let known = Known {
            beginning: digests.is_some(),
        };
        Ok(OpenSession {
            link,
            traffic,
            connection,
            ours,
            theirs,
            version,
            codec,
            sent_roots,
            known,
        })
    }

    /// Copies in an open session. Problems with single entries are reported and counted in the tally; an error ends the
    /// run. `early` is the scan of this end's tree, if one was started.
    pub fn play(
        &self,
        opened: OpenSession,
        early: Option<EarlyScan<'_>>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let OpenSession {
            link,
            traffic,
            connection,
            ours,
            theirs,
            version,
            codec,
            sent_roots,
            known,
        } = opened;
        let compress = &self.client.options.delta.compress;
        if self.client.options.output.debug.nstr > 0 {
            let line = compression::line(compress.choice, codec, compress.level);
            if let Some(line) = line {
                reporter.report(&Event::Note(line.into_bytes()));
            }
        }
        reporter.banner();
        let sends = !self.client.setup.server_sends;
        let policy = compression_choice::compression_policy(codec, compress.level, theirs.features);
        let session_io = NativeIo {
            connection: &connection,
            dialect: (self.support.dialect)(version),
            timeout_secs: self.client.options.connect.timeout_secs,
            link: wrap_link(link, sends, policy, &connection),
            traffic: traffic.clone(),
        };
        let checksums = native_checksums(
            &ours.key,
            self.client.options.checksum_cache.is_some(),
            self.client.options.plan_use != PlanUse::Free,
        );
        let peer_is_super = theirs.features & ACTS_AS_SUPER != 0;
        let before = SessionStart {
            key: ours.key,
            checksums,
            peer_is_super,
            early,
            sent_roots,
            known,
        };
        let ended = self.run_role(session_io, before, reporter, tally);
        *self.headway.lock() = connection.headway();
        reporter.traffic(traffic.counts());
        if self.client.setup.profile {
            for line in connection.cost("client") {
                reporter.error(line.as_bytes());
            }
        }
        ended
    }

    /// Returns what can be sent before the server's greeting. `early` is the scan of this end's tree, if one was
    /// started.
    pub fn first_words(&self, early: Option<&EarlyScan<'_>>) -> FirstWords {
        let mut first = FirstWords::greeting(&self.support, self.client.options, self.key, early);
        // The server's compressions are not known yet, so assume zstd. A server that does not accept zstd can still
        // send it, and what it is sent depends on its greeting.
        let guess = compression_choice::agree(
            &self.client.options.delta.compress,
            compression_choice::features(None),
        );
        let Ok(codec @ (None | Some(Compression::No | Compression::Zstd))) = guess else {
            return first;
        };
        // A request that cannot be encoded or is too long is sent after the server's greeting.
        let mut bytes = first.flight.bytes.clone();
        let is_spelled = self
            .encode_setup(first.ours.newest, codec, &mut bytes)
            .is_ok();
        if !is_spelled || bytes.len() > FIRST_WORDS_MAX_BYTES {
            return first;
        }
        (first.flight.bytes, first.has_setup) = (bytes.clone(), true);
        if bytes.len() + PREDICTED_MAX_BYTES <= FIRST_WORDS_MAX_BYTES {
            first.flight.predicted = early
                .and_then(EarlyScan::dest)
                .map(|prescan| prescan.predicted.clone());
        }
        // If this is sent again to another server process, it is unknown what the first one deleted
        // (`--delete-missing-args`), so `--max-delete` could be exceeded.
        let is_harmless = self.client.options.delete.max.is_none();
        // A plan comes before the roots.
        let comes_first = self.client.options.plan_use != PlanUse::Replay;
        let compares = Shortcuts::for_run(self.client.options, self.client.setup.wants).compare;
        let sent_roots = early.and_then(EarlyScan::source).and_then(|prefetch| {
            if !is_harmless || !comes_first {
                return None;
            }
            let (roots, sent_roots) = prefetch.peek(|start| {
                sender::sent_roots(
                    &self.client.run_context(),
                    compares,
                    false,
                    start,
                    prefetch.ids(),
                )
            })?;
            let mut frame = Vec::new();
            (self.support.dialect)(first.ours.newest)
                .encode(&Message::Roots(Box::new(roots)), &mut frame)
                .ok()?;
            CompressingWriter::new(&mut bytes, CompressionPolicy::Never, AsItIs::default())
                .write_all(&frame)
                .ok()?;
            Some(sent_roots)
        });
        if sent_roots.is_some() && bytes.len() <= FIRST_WORDS_MAX_BYTES {
            (first.flight.bytes, first.sent_roots) = (bytes, sent_roots);
        }
        first
    }

    fn encode_setup(
        &self,
        version: u16,
        codec: Option<Compression>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let mut setup = self.client.setup.clone();
        if codec != self.client.options.delta.compress.choice && codec != Some(Compression::Zstd) {
            // The server would select zstd without this option.
            setup.words.extend(
                codec.map(|codec| format!("--compress-choice={}", codec.name()).into_bytes()),
            );
        }
        (self.support.dialect)(version).encode(&Message::Setup(Box::new(setup)), out)
    }

    /// Runs this end's role. Meanwhile a thread watches whether data arrives.
    fn run_role(
        &self,
        session_io: NativeIo<'_>,
        before: SessionStart<'_>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        if let Some(gauge) = self.client.gauge {
            gauge.restart();
        }
        let wants = reporter.wants();
        let shared = Mutex::new(reporter);
        let traffic = session_io.traffic.clone();

        let long = stall_notice::stall_threshold(self.client.options.connect.bwlimit_bytes_per_sec);
        let report_stall = || {
            let mut reporter = shared.lock();
            reporter.error(
                format!(
                    "sparsync: no data received for {} s; still waiting",
                    long.as_secs()
                )
                .as_bytes(),
            );
            reporter.flush();
        };
        // Only over a network of our own: a remote shell has its own means, and may wait for its user.
        let mut notice = self
            .client
            .is_net
            .then(|| stall_notice::StallNotice::new(long, report_stall));
        let observe = |silence| {
            if let Some(gauge) = self.client.gauge {
                gauge.set_silence(silence);
            }
            if let Some(notice) = &mut notice {
                notice.observe(silence);
            }
        };
        let is_displayed = self.client.gauge.is_some_and(|gauge| gauge.is_displayed());
        let is_watched = is_displayed || self.client.is_net && wants.progress;
        let observe = if is_watched { Some(observe) } else { None };

        stall_notice::watched(&traffic, observe, || {
            if self.client.setup.server_sends {
                self.receive(session_io, before, &shared, tally)
            } else {
                self.send(session_io, before, &shared, tally)
            }
        })
    }

    fn receive(
        &self,
        session_io: NativeIo<'_>,
        before: SessionStart<'_>,
        reporter: &Mutex<&mut TextReporter>,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let connection = session_io.connection;
        let run_context = self.client.run_context();
        let wants = reporter.lock().wants();
        let inbox = ReceiverInbox::default();
        let handler = receiver_handler(&run_context, wants, &inbox, connection, None);
        let prescan = before
            .early
            .as_ref()
            .and_then(EarlyScan::dest)
            .map(|prescan| (prescan, before.known));
        let digests = DestDigests {
            connection,
            inbox: &inbox,
            key: before.key,
            prescan,
        };
        let peer = NativeSource {
            run_context,
            connection,
            inbox: &inbox,
            facts: source_facts(&before.checksums),
            checksums: before.checksums,
            awaits_bye: self.client.setup.profile
                || self.client.options.select.remove_source != RemoveSource::No,
            profile: false,
        };
        let receiver = Receiver {
            run_context,
            peer: &peer,
            dir_reports: Some(&digests),
            dest: self.client.dest.clone(),
            request: Arc::new(self.client.validator(&run_context)),
            wants,
            printer: ItemPrinter::Us {
                when: ReportTime::Open,
            },
        };
        let run = ReceiverRun {
            session_io: session_io.handled_by(&handler),
            handler: &handler,
            receiver: &receiver,
            listener: ReceiverListener::Client {
                reporter,
                events: &handler,
            },
        };
        run_receiver(run, tally, |error| error)
    }

    fn send(
        &self,
        session_io: NativeIo<'_>,
        before: SessionStart<'_>,
        reporter: &Mutex<&mut TextReporter>,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let connection = session_io.connection;
        let run_context = self.client.run_context();
        let wants = reporter.lock().wants();
        let inbox = SenderInbox::default();
        let events = EventQueue::new(self.client.is_local);
        let keeps_times = run_context.options.preserve.times;
        let handler = SenderHandler {
            inbox: &inbox,
            events: &events,
            keeps_times,
        };
        let report = |event: Event| {
            events.push(event, 0);
            Ok(())
        };
        let shortcuts = Shortcuts::for_run(self.client.options, wants);
        // What `--remote-option` means to the receiver is not known here.
        let takes_unrequested = shortcuts.unrequested && self.client.setup.remote_words.is_empty();
        let peer = NativeDest {
            connection,
            inbox: &inbox,
            facts: dest_facts(takes_unrequested, false),
            plan: run_context.process.stored,
            waits_for_dirs: wants.progress,
        };
        let reported_dirs = ReportedDirs {
            connection,
            inbox: &inbox,
            digester: SourceDigester {
                key: before.key,
                options: self.client.options,
            },
            guess: None,
        };
        let dest_dirs: Option<&dyn DestDirs> = if shortcuts.compare {
            Some(&reported_dirs)
        } else {
            None
        };
        let taken = |cost| connection.consumed(Class::Events, cost);
        let sender = Sender {
            run_context,
            peer: &peer,
            dest_dirs,
            checksums: before.checksums,
            receiver_is_super: before.peer_is_super,
            wants,
            throttle: sender::throttle(&run_context),
            profile: false,
            unsent: Default::default(),
            report: &report,
            opened: Mutex::default(),
            late_removals: LateRemovals::default(),
        };
        let prefetch = before.early.as_ref().and_then(EarlyScan::source);
        let sent_roots = before.sent_roots;
        let is_usable =
            |prefetch: &&SourcePrefetch<'_>| sent_roots.is_some() || prefetch.is_fresh();
        let prefetch = prefetch.filter(is_usable);
        let run = SenderRun {
            session_io: session_io.handled_by(&handler),
            handler: &handler,
            sender: &sender,
            source: SenderSource {
                arguments: &self.client.sources,
                listed: self.client.listed.as_deref(),
                prefetch,
                sent_roots,
            },
            events: Some(ReportedEvents {
                queue: &events,
                reporter,
                taken: &taken,
            }),
        };
        run_sender(run, tally, |error| error)
    }
}

/// What a client has before the session.
struct SessionStart<'a> {
    /// The key of directory digests.
    key: [u8; 16],
    checksums: SessionChecksums,
    /// The server may change owners.
    peer_is_super: bool,
    /// The scan of this end's tree, if one was started.
    early: Option<EarlyScan<'a>>,
    /// The [`SentRoots`], if they were sent.
    sent_roots: Option<SentRoots>,
    /// What the server knows of the scan.
    known: Known,
}

/// An open session at the client: both ends have greeted, and the server has the request.
pub struct OpenSession {
    link: Link,
    /// The bytes written and read.
    traffic: Arc<LinkBytes>,
    connection: Arc<NativeConnection>,
    ours: Greeting,
    theirs: Greeting,
    version: u16,
    codec: Option<Compression>,
    /// Set if the source arguments were sent.
    sent_roots: Option<SentRoots>,
    known: Known,
}

/// The first bytes that a client sends. Over a network, the handshake of the transport has shown which server answers
/// and which version it uses, so the client need not wait for its greeting.
pub struct FirstWords {
    /// The client's greeting.
    ours: Greeting,
    /// The request is included.
    has_setup: bool,
    /// Set if the source arguments are included.
    sent_roots: Option<SentRoots>,
    flight: Flight,
}

/// The bytes that are sent at once.
#[derive(Clone)]
struct Flight {
    bytes: Vec<u8>,
    /// The first digests of the destination, which are sent behind `bytes`.
    predicted: Option<Arc<PredictedDigests>>,
    dialect: fn(version: u16) -> Box<dyn Dialect + Send>,
    version: u16,
}

impl Flight {
    fn spelled(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if let Some(digests) = self
            .predicted
            .as_ref()
            .and_then(|predicted| predicted.digests_message())
        {
            // The message is bounded and valid, so encoding cannot fail.
            let _ = (self.dialect)(self.version).encode(&digests, &mut bytes);
        }
        bytes
    }
}

impl FirstWords {
    /// Creates the greeting alone. `key` is [`NativeClient::key`]; `early` is the scan of this end's tree with this key, if one
    /// was started.
    pub fn greeting(
        support: &ProtocolSupport,
        options: &Options,
        key: [u8; 16],
        early: Option<&EarlyScan<'_>>,
    ) -> FirstWords {
        let preserve = &options.preserve;
        let mut ours = support.greeting(key);
        ours.guess = early
            .and_then(EarlyScan::dest)
            .map(|prescan| prescan.guess.whole.clone());
        if preserve.super_user.unwrap_or(sys::ids().0 == 0) || preserve.fake_super {
            ours.features |= ACTS_AS_SUPER;
        }
        let mut bytes = Vec::new();
        encode_greeting(&ours, &mut bytes);
        let flight = Flight {
            bytes,
            predicted: None,
            dialect: support.dialect,
            version: ours.newest,
        };
        FirstWords {
            ours,
            has_setup: false,
            sent_roots: None,
            flight,
        }
    }

    /// Returns the bytes to send.
    pub fn words(&self) -> Vec<u8> {
        self.flight.spelled()
    }

    /// Returns a function that returns the same bytes each time. They include the digests of the destination that are
    /// known at the first call.
    pub fn maker(&self) -> impl Fn() -> Vec<u8> + Send + Sync + 'static {
        let flight = self.flight.clone();
        move || flight.spelled()
    }
}

/// Creates the handler for the messages of a sender.
pub fn receiver_handler<'a>(
    run_context: &RunContext<'a>,
    wants: Wants,
    inbox: &'a ReceiverInbox,
    connection: &'a NativeConnection,
    at_server: Option<AtServer<'a>>,
) -> ReceiverHandler<'a> {
    let accepts_unrequested = Shortcuts::for_run(run_context.options, wants).unrequested;
    let displayed = run_context.gauge.filter(|gauge| gauge.is_displayed());
    let takes_totals = displayed.map(Arc::as_ref);
    ReceiverHandler {
        inbox,
        connection,
        accepts_unrequested,
        at_server,
        interrupted: run_context.interrupted,
        takes_totals,
        max_alloc_bytes: run_context.options.connect.max_alloc_bytes,
    }
}
