//! The client of a stock rsync: it pushes to a server, pulls from one, or reads a batch file.

use crate::apply::facts::{ItemPrinter, ReportTime};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::{Batch, CheckMode, Checksums, Compression, FilesFrom, Options};
use crate::proto::Setup;
use crate::proto::rsync::batch::BatchHeader;
use crate::proto::rsync::handshake;
use crate::proto::rsync::stats::Stats;
use crate::report::event::Event;
use crate::report::{Tally, TextReporter, Traffic};
use crate::rsync::batch::player::{BatchFile, BatchPlayer};
use crate::rsync::batch::recorder::BatchRecorder;
use crate::rsync::before_session::names_of_server;
use crate::rsync::dest::{self, DestInbox, DestRecorder, RsyncDest, SenderReports};
use crate::rsync::link_io::{READ_BYTES, buffered, in_words_of_rsync, send};
use crate::rsync::negotiation::{greet, newest_version};
use crate::rsync::older;
use crate::rsync::rules_for_server::receiver_needs_rules;
use crate::rsync::session_terms::RsyncTerms;
use crate::rsync::source::{self, SourceInbox, UnchangedDest};
use crate::session::client::Client;
use crate::session::connection::{Connection, Intake, WireOutput};
use crate::session::event_relay::EventQueue;
use crate::session::io_threads::{SessionIo, counted};
use crate::session::receiver::Receiver;
use crate::session::refusal::Refusal;
use crate::session::response_validation::ResponseValidator;
use crate::session::run_role::{
    ReceiverListener, ReceiverRun, ReportedEvents, SenderRun, SenderSource, run_receiver,
    run_sender,
};
use crate::session::source_prefetch::SourcePrefetch;
use crate::session::stall_notice::watched;
use crate::transport::{Link, LinkBytes, pipe};
use crate::walk::run_context::RunContext;
use crate::work::thread::spawn;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A client of a stock rsync.
pub struct RsyncClient<'a> {
    /// What it copies.
    pub client: &'a Client<'a>,
    /// Records the session in a batch file.
    pub recorder: Option<Arc<BatchRecorder>>,
}

/// The terms that both ends agreed on, and the options adjusted to them.
struct AgreedTerms<'a> {
    terms: RsyncTerms,
    options: &'a Options,
}

impl RsyncClient<'_> {
    /// Copies to or from a stock rsync that has been reached. Its first bytes are in the link. `agreed`: the protocol
    /// version, if it was agreed on with a daemon; otherwise the version of this end has been sent. `words`: the options
    /// on its command line. `prefetch`: the scan of the source, if this end sends and one was started.
    pub fn run(
        &self,
        link: Link,
        agreed: Option<u8>,
        words: &[Vec<u8>],
        prefetch: Option<Box<SourcePrefetch<'_>>>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<()> {
        let (mut link, traffic) = counted(link);
        if agreed.is_none() {
            let sent_bytes = handshake::version_bytes(newest_version(self.client.options)).len();
            traffic.sent.fetch_add(sent_bytes as u64, Ordering::Relaxed);
        }
        let Client {
            options,
            setup: Setup { server_sends, .. },
            ..
        } = *self.client;
        let role = if server_sends { "Receiver" } else { "sender" };
        let mut note = |line: Vec<u8>| reporter.report(&Event::Note(line));
        let greeted = greet(&mut link, agreed, options, server_sends, words, &mut note);
        let greeted = greeted.map_err(|error| Refusal::from(error).print_details(reporter));
        let observe = self
            .client
            .gauge
            .filter(|gauge| gauge.is_displayed())
            .map(|gauge| |silence| gauge.set_silence(silence));
        let session = |terms: RsyncTerms| {
            terms.agree_on_charset();
            let options = older::adjusted(options, terms.protocol);
            reporter.limit_to(terms.protocol);
            reporter.banner();
            self.begin_recording(&terms)?;
            let link = buffered(link, !server_sends);
            let agreed = AgreedTerms {
                terms,
                options: &options,
            };
            if server_sends {
                self.pull(agreed, link, &traffic, reporter, tally)
            } else {
                self.push(agreed, link, &traffic, prefetch, reporter, tally)
            }
        };
        let ended = watched(&traffic, observe, || greeted.and_then(session));
        reporter.traffic(traffic.counts());
        let ended = match &self.recorder {
            Some(recorder) => ended
                .and_then(|()| recorder.end())
                .map_err(|error| recorder.cause_of(error)),
            None => ended,
        };
        ended.map_err(|error| in_words_of_rsync(error.or_by(role), &traffic, role))
    }

    /// Copies from a batch file. The options are those of its header.
    pub fn read_batch(
        &self,
        file: BatchFile,
        header: &BatchHeader,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<()> {
        let terms = RsyncTerms::of_batch(header, self.client.options.preserve.numeric_ids);
        older::check(self.client.options, terms.protocol)?;
        terms.agree_on_charset();
        let options = older::adjusted(self.client.options, terms.protocol);
        reporter.limit_to(terms.protocol);
        reporter.banner();
        let player = BatchPlayer::new(file, terms, &options, self.client.dest.as_deref());
        let player =
            player.map_err(|error| in_words_of_rsync(error, &Default::default(), "Receiver"))?;
        let Stats {
            read_bytes,
            written_bytes,
            ..
        } = player.stats();
        let (near, far) = pipe::pair(READ_BYTES);
        let (link, traffic) = counted(near);
        // The player has decoded what is compressed.
        let terms = RsyncTerms {
            compression: Compression::No,
            ..terms
        };
        let played = Mutex::new(Ok(()));
        let ended = std::thread::scope(|scope| {
            spawn(scope, "batch", || *played.lock() = player.play(far))?;
            self.pull(
                AgreedTerms {
                    terms,
                    options: &options,
                },
                link,
                &traffic,
                reporter,
                tally,
            )
        });
        let [sent_bytes, received_bytes] = [read_bytes, written_bytes].map(i64::unsigned_abs);
        reporter.traffic(Traffic {
            sent_bytes,
            received_bytes,
        });
        // The receiver only knows that the player has ended.
        let ended = match (ended, played.into_inner()) {
            (Err(error), Err(cause)) if error.exit == Exit::Stream => Err(cause),
            (ended, _) => ended,
        };
        ended.map_err(|error| error.or_by("Receiver"))
    }

    fn pull(
        &self,
        agreed: AgreedTerms<'_>,
        link: Link,
        traffic: &Arc<LinkBytes>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<()> {
        let AgreedTerms { terms, options } = agreed;
        let is_left = self
            .recorder
            .as_ref()
            .is_some_and(|recorder| recorder.is_only);
        let mut options = Options {
            dry_run: options.dry_run || is_left,
            ..options.clone()
        };
        if terms.protocol >= 30 {
            options.check.sums = Checksums {
                transfer: terms.sums.checksum,
                listed: terms.listed,
            };
        }
        let options = &options;
        let run_context = RunContext {
            options,
            ..self.client.run_context()
        };
        let mut wants = reporter.wants();
        let inbox = SourceInbox::new(true);
        let is_batch = matches!(options.batch, Some(Batch::Read(_)));
        let opening = if is_batch {
            Vec::new()
        } else {
            self.opening(self.client.setup.listed.as_deref(), &terms)?
        };
        let request = Arc::new(if is_batch {
            ResponseValidator::anything(run_context.options)
        } else {
            self.client.validator(&run_context)
        });
        let (encoder, intake) =
            source::directions(terms, opening, options, &inbox, request.clone());
        let intake = intake.recording(self.recorder.clone());
        let dest = || self.client.dest.clone().unwrap_or_default();
        let encoder = encoder.leaving(is_left.then(|| UnchangedDest::new(options, dest())));
        // A batch file has the items, and so has the log of a server. Older senders do not return those without content,
        // and values of extended attributes are requested by items of their own.
        let keeps_items = self.recorder.is_some() || options.connect.server_log;
        let has_items = keeps_items && terms.protocol >= 30 && options.preserve.xattrs == 0;
        if has_items {
            intake.report_items();
        }
        wants.items |= has_items;
        let connection = Arc::new(Connection::of(encoder).over(link.moved.clone()));
        let printer = if has_items {
            ItemPrinter::Both
        } else {
            ItemPrinter::Us {
                when: ReportTime::Open,
            }
        };
        let facts = terms.source_facts(printer);
        let source = intake.source(run_context, &connection, facts, self.client.dest.is_none());
        let receiver = Receiver {
            run_context,
            peer: &source,
            dir_reports: None,
            dest: self.client.dest.clone(),
            request,
            wants,
            printer,
        };
        let session_io = self.session_io(&connection, Box::new(intake), link, traffic);
        let shared = Mutex::new(reporter);
        let run = ReceiverRun {
            session_io,
            handler: &inbox,
            receiver: &receiver,
            listener: ReceiverListener::Client {
                reporter: &shared,
                events: &inbox,
            },
        };
        run_receiver(run, tally, |error| error)
    }

    fn session_io<'s, O: WireOutput>(
        &self,
        connection: &'s Arc<Connection<O>>,
        intake: Box<dyn Intake<O> + 's>,
        link: Link,
        traffic: &Arc<LinkBytes>,
    ) -> SessionIo<'s, O> {
        let timeout_secs = self.client.options.connect.timeout_secs;
        SessionIo {
            connection,
            intake,
            timeout_secs,
            link,
            traffic: traffic.clone(),
        }
    }

    /// Begins the batch file that this run writes.
    fn begin_recording(&self, terms: &RsyncTerms) -> Result<()> {
        let Some(recorder) = &self.recorder else {
            return Ok(());
        };
        // A receiver of ours requests files in the order of later protocols, in which an rsync could not apply them.
        if terms.protocol < 29 && (self.client.setup.server_sends || self.client.is_local) {
            let words = format!(
                "sparsync: this run cannot be recorded by protocol {}",
                terms.protocol
            );
            return Err(Error::new(Exit::Unsupported, words).with_hint("use protocol 29 or newer"));
        }
        let lacking = match () {
            () if !self.client.setup.server_sends || !recorder.is_only => None,
            () if terms.protocol < 30 => Some("by a protocol before 30"),
            () if self.client.options.preserve.xattrs > 0 => Some("with --xattrs"),
            () => None,
        };
        if let Some(lacking) = lacking {
            let words =
                format!("sparsync: --only-write-batch in a pull {lacking} is not supported");
            return Err(Error::new(Exit::Unsupported, words).with_hint("use --write-batch"));
        }
        recorder.begin(terms, self.client.options)
    }

    fn push(
        &self,
        agreed: AgreedTerms<'_>,
        mut link: Link,
        traffic: &Arc<LinkBytes>,
        looking: Option<Box<SourcePrefetch<'_>>>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<()> {
        let AgreedTerms { terms, options } = agreed;
        // An older scan is repeated, and must not run beside the new one. Digests of contents are not those of an rsync.
        let lacks_digests = options.check.mode == CheckMode::Digest;
        let looking = looking.filter(|looking| looking.is_fresh() && !lacks_digests);
        let run_context = RunContext {
            options,
            ..self.client.run_context()
        };
        let wants = reporter.wants();
        let is_sent = receiver_needs_rules(options, terms.protocol);
        let opening = if is_sent {
            self.opening(None, &terms)?
        } else {
            // Like rsync, this rejects rules that the protocol lacks even if the server does not need them.
            for rule in self.wire_rules(terms.protocol) {
                rule?;
            }
            Vec::new()
        };
        let (opening, link, listed) = match options.select.files_from {
            Some(FilesFrom::Sent(_)) => {
                // The server may wait for the rules before it sends the names.
                send(&mut link, &opening)?;
                let (listed, link) = names_of_server(link, &terms, reporter)?;
                (Vec::new(), link, Some(listed))
            }
            _ => (opening, link, self.client.listed.clone()),
        };
        let reports =
            SenderReports::new(self.client.options, EventQueue::new(self.client.is_local));
        let inbox = DestInbox::default();
        let (encoder, intake) =
            dest::directions(terms, opening, options, wants, reports.clone(), &inbox)?;
        let recorder = |batch: &Arc<BatchRecorder>| DestRecorder {
            batch: batch.clone(),
            traffic: traffic.clone(),
            unsent: Vec::new(),
        };
        let encoder = encoder.recording(self.recorder.as_ref().map(recorder));
        let connection = Arc::new(Connection::of(encoder).over(link.moved.clone()));
        let report = |event: Event| {
            reports.count(&event);
            reports.events.push(event, 0);
            Ok(())
        };
        let peer = RsyncDest::new(&terms, &connection, &inbox);
        let sender = peer.sender(&terms, run_context, wants, &report);
        let taken = |cost| inbox.event_taken(cost);
        let session_io = self.session_io(&connection, Box::new(intake), link, traffic);
        let shared = Mutex::new(reporter);
        let run = SenderRun {
            session_io,
            handler: &inbox,
            sender: &sender,
            source: SenderSource {
                arguments: &self.client.sources,
                listed: listed.as_deref(),
                prefetch: looking.as_deref(),
                sent_roots: None,
            },
            events: Some(ReportedEvents {
                queue: &reports.events,
                reporter: &shared,
                taken: &taken,
            }),
        };
        let ended = run_sender(run, tally, |error| error);
        tally.merge(&reports.problems.lock());
        ended
    }
}
