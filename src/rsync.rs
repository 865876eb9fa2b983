//! A session with a stock rsync: its wire protocol instead of ours, with the same sender and receiver.
//!
//! The sender and the receiver of this crate know their peer by two traits: [`DestPeer`](crate::session::sender::DestPeer) and
//! [`SourcePeer`](crate::session::receiver::SourcePeer). Here the peer is a stock rsync ([`dest`], [`source`]), to which they
//! speak its own protocol. So all decisions, and all reading and writing of trees, are those of every other run. The
//! protocol has no counterpart for directory digests and for content that is sent without a request, so these are not used.

mod attributes;
mod basis;
pub mod batch;
mod before_session;
mod block_sums;
mod controls;
pub mod daemon;
pub mod dest;
pub mod error;
mod framing;
mod older;
mod served_items;
pub mod server;
mod session_terms;
pub mod source;
mod support;

use self::batch::player::{BatchFile, BatchPlayer};
use self::batch::recorder::BatchRecorder;
use self::before_session::names_of_server;
use self::dest::{DestInbox, DestRecorder, RsyncDest, SenderReports};
use self::framing::Framing;
pub use self::framing::text_of;
use self::session_terms::RsyncTerms;
use self::source::{SourceInbox, UnchangedDest};
pub use self::support::needs_whole_list;

use crate::apply::facts::{ItemPrinter, ReportTime};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{self, Parsed};
use crate::fs::charset;
use crate::options::algorithm::{Algorithm, no_common};
use crate::options::{
    Batch, CheckMode, Checksum, Checksums, Compress, Compression, FilesFrom, Options, Place,
    RemoveSource,
};
use crate::proto::Setup;
use crate::proto::rsync::batch::BatchHeader;
use crate::proto::rsync::block_sums::Sums;
use crate::proto::rsync::filter_list::{self, RuleKind, WireRule};
use crate::proto::rsync::handshake::{self, CompatFlags};
use crate::proto::rsync::limits::PATH_MAX_BYTES;
use crate::proto::rsync::number::{ReadWire as _, WriteWire as _};
use crate::proto::rsync::stats::Stats;
use crate::report::event::Event;
use crate::report::{Tally, TextReporter, Traffic};
use crate::rsync::error::undecodable as failed;
use crate::session::client::Client;
use crate::session::compression;
use crate::session::connection::lost;
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
use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Returns the line that names the character set of this end, if the options request it. `role`: the one of this end.
pub fn charset_line(options: &Options, role: &str) -> Option<Vec<u8>> {
    if options.output.debug.iconv == 0 {
        return None;
    }
    Some(charset::of_names()?.line(role))
}

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

    /// Returns what a client sends before all else: the filter rules that the server needs, and then the names of
    /// `--files-from` in `listed`.
    fn opening(&self, listed: Option<&[Vec<u8>]>, terms: &RsyncTerms) -> Result<Vec<u8>> {
        let framing = Framing::of_client(terms);
        // There may be millions of rules, so they are held only once more.
        let mut out = Vec::new();
        let mut data = Vec::new();
        for rule in self.wire_rules(terms.protocol) {
            filter_list::encode_rule(&rule?, terms.protocol, &mut data).map_err(failed)?;
            if data.len() >= RULES_PIECE_BYTES {
                framing.data(&data, &mut out);
                data.clear();
            }
        }
        filter_list::encode_rules_end(&mut data);
        framing.data(&data, &mut out);
        framing.names(
            &listed.map_or_else(Vec::new, before_session::encode_names),
            &mut out,
        );
        Ok(out)
    }

    /// Returns the filter rules that the server needs; an error for one that the protocol lacks. A server that sends adds
    /// the rules of `-C` itself.
    fn wire_rules(&self, protocol: u8) -> impl Iterator<Item = Result<WireRule>> {
        let Setup {
            rules: parsed,
            cvs_home,
            cvs_env,
            server_sends,
            ..
        } = &self.client.setup;
        let options = &self.client.options;
        let of_cvs = if options.select.cvs_exclude {
            filter::cvs_rules(cvs_home.as_deref(), cvs_env.as_deref()).len()
        } else {
            0
        };
        let given = parsed.len() - of_cvs;
        let count = if *server_sends { given } else { parsed.len() };
        let first = parsed[..count]
            .iter()
            .rposition(|parsed| matches!(parsed, Parsed::Clear))
            .map_or(0, |at| at + 1);
        let of_partials = Place::partials_rule(options.place.partial_dir.as_deref());
        let deletes_excluded = options.delete.excluded;
        let text_of = move |rule: &Parsed| {
            if *server_sends {
                rule.text_for_sender(deletes_excluded)
            } else {
                rule.text_for_receiver(deletes_excluded)
            }
        };
        // As in rsync, `-C` stands for the patterns of the client.
        let patterns_of = |parsed: &Parsed| match parsed {
            Parsed::Cvs(cvs) => filter::cvs_globals(cvs, cvs_home.as_deref(), cvs_env.as_deref()),
            _ => Vec::new(),
        };
        let expanded = (first..count)
            .zip(&parsed[first..count])
            .flat_map(move |(at, parsed)| {
                let whole = Some(Cow::Borrowed(parsed))
                    .filter(|parsed| !matches!(**parsed, Parsed::Cvs(_)));
                let patterns = patterns_of(parsed)
                    .into_iter()
                    .map(|rule| Cow::Owned(Parsed::Rule(rule)));
                whole
                    .into_iter()
                    .chain(patterns)
                    .map(move |parsed| (at, parsed))
            });
        expanded.filter_map(move |(at, parsed)| {
            let text = text_of(&parsed)?;
            let rule = match WireRule::parse(&text, *handshake::VERSIONS.end()) {
                Ok(rule) => rule,
                Err(error) => return Some(Err(failed(error))),
            };
            // rsync discards these when it reads them.
            if rule.pattern.len() > PATH_MAX_BYTES {
                return None;
            }
            // Before protocol 29, a server adds the rule for the files of `-C` itself.
            if protocol < 29
                && at >= given
                && rule.kind == RuleKind::DirMerge
                && rule.modifiers.contains(&b'C')
            {
                return None;
            }
            // A sender need not know whether a rule is perishable, and the rules of options lose this word.
            let may_stay = *server_sends || at >= given || of_partials.as_ref() == Some(&text);
            let is_modern = protocol < 30 && rule.modifiers.contains(&b'p') && !may_stay;
            // Before protocol 29, sides are left out, but not if they matter.
            let needs_sides = protocol < 29 && !server_sends && deletes_excluded;
            if is_modern || needs_sides || rule.text(protocol).is_err() {
                return Some(Err(Error::new(
                    Exit::Protocol,
                    "filter rules are too modern for remote rsync.",
                )));
            }
            Some(Ok(rule))
        })
    }
}

/// Returns whether a client sends rules to a server that receives. It needs them only if it deletes, but not if it also
/// deletes what they exclude: before protocol 29, they have no sides.
fn receiver_needs_rules(options: &Options, protocol: u8) -> bool {
    let deletes_all = protocol < 29 && options.delete.excluded;
    options.delete.when.is_some() && !deletes_all || options.select.prune_empty_dirs
}

/// How many bytes of rules are put into frames at a time.
const RULES_PIECE_BYTES: usize = 32 << 10;

/// Returns the error in rsync's words if it reports a connection that was closed too early.
fn in_words_of_rsync(error: Error, traffic: &LinkBytes, role: &'static str) -> Error {
    if !error.message.starts_with(ENDED) {
        return error;
    }
    let received_bytes = traffic.received.load(Ordering::Relaxed);
    let words = format!(
        "rsync: connection unexpectedly closed ({received_bytes} bytes received so far) [{role}]"
    );
    Error {
        message: words.into_bytes(),
        ..error.by(role)
    }
}

/// How the error of a connection that was closed too early begins.
const ENDED: &[u8] = b"sparsync: connection unexpectedly closed";

/// The size of a read from the peer.
const READ_BYTES: usize = 128 << 10;

/// The size of a read of an end that sends: requests are short, and a daemon may have many clients.
const READ_REQUESTS_BYTES: usize = 32 << 10;

/// Reads the link in pieces that suit the role of this end.
fn buffered(link: Link, sends: bool) -> Link {
    let len_bytes = if sends {
        READ_REQUESTS_BYTES
    } else {
        READ_BYTES
    };
    Link {
        reader: Box::new(io::BufReader::with_capacity(len_bytes, link.reader)),
        ..link
    }
}

/// Completes the handshake that begins with the server's version, unless the ends have agreed on one. The version of
/// this end has been sent. `words`: the options on the server's command line, which decide whether the ends negotiate
/// algorithms. `receives`: this end receives. `note` prints lines of `--debug=nstr`.
fn greet(
    link: &mut Link,
    agreed: Option<u8>,
    options: &Options,
    receives: bool,
    words: &[Vec<u8>],
    note: &mut dyn FnMut(Vec<u8>),
) -> Result<RsyncTerms> {
    let protocol = agreed.map_or_else(|| receive_version(link, newest_version(options)), Ok)?;
    // The server checks the same, and may leave before it sends anything more.
    older::check(options, protocol)?;
    let mut reader = &mut *link.reader;
    let flags = if protocol < 30 {
        CompatFlags::default()
    } else {
        CompatFlags::decode(&mut reader).map_err(failed)?
    };
    let offer = Offer {
        protocol,
        flags,
        options,
        words,
        sums: &SUMS,
        is_server: false,
    };
    let mut note_list = |line| {
        if options.output.debug.nstr >= 2 {
            note(line)
        }
    };
    let negotiated = negotiate(link, &offer, Vec::new(), &mut note_list)?;
    if options.output.debug.nstr > 0 {
        for line in negotiated.lines(&offer) {
            note(line);
        }
    }
    let seed = (&mut *link.reader).int().map_err(failed)?;
    Ok(negotiated.terms(&offer, seed, receives))
}

/// Returns the newest version of rsync's protocol that a client announces.
pub fn newest_version(options: &Options) -> u8 {
    options
        .connect
        .protocol
        .unwrap_or(*handshake::VERSIONS.end())
}

/// Reads the version of the peer, which has that of this end. Returns the version of the connection.
fn receive_version(link: &mut Link, newest: u8) -> Result<u8> {
    let theirs = (&mut *link.reader).int().map_err(failed)?;
    handshake::choose_version(newest, theirs)
        .map_err(|_| Error::new(Exit::Protocol, handshake::VERSION_MISMATCH))
}

/// The option that names the checksums.
const SUM_CHOICE: &[u8] = b"--checksum-choice=";

/// The checksums that are offered. "none" would leave damaged files undetected.
const SUMS: [Checksum; 6] = [
    Checksum::Xxh128,
    Checksum::Xxh3,
    Checksum::Xxh64,
    Checksum::Md5,
    Checksum::Md4,
    Checksum::Sha1,
];

/// The algorithms of a session.
struct Negotiated {
    transfer: Checksum,
    listed: Checksum,
    /// The user named the checksums.
    is_named: bool,
    compression: Compression,
}

impl Negotiated {
    /// `client_receives`: the server sends.
    fn terms(self, offer: &Offer<'_>, seed: i32, client_receives: bool) -> RsyncTerms {
        let Negotiated {
            transfer,
            listed,
            is_named,
            compression,
        } = self;
        let Offer {
            protocol,
            flags,
            options,
            words,
            ..
        } = *offer;
        let is_seed_first = is_named || flags.has(CompatFlags::CHKSUM_SEED_FIX);
        let sums = Sums {
            checksum: transfer,
            seed,
            is_seed_first,
            is_implied: protocol < 30 && !is_named,
        };
        // Only with frames can a receiver report which files the sender may remove.
        let removes = client_receives && options.select.remove_source != RemoveSource::No;
        let numeric_ids = words.iter().any(|word| word == b"--numeric-ids");
        let client_has_frames = protocol >= 30 || removes;
        RsyncTerms {
            protocol,
            flags,
            sums,
            listed,
            compression,
            client_has_frames,
            numeric_ids,
        }
    }

    /// Returns the lines of a client about its algorithms (`--debug=nstr`).
    fn lines(&self, offer: &Offer<'_>) -> Vec<Vec<u8>> {
        let has_lists = offer.flags.has(CompatFlags::VARINT_FLIST_FLAGS);
        let name = self.transfer.name().as_bytes();
        let checksum = match offer.sum_choice() {
            None if has_lists => [b"Client negotiated checksum: ", name].concat(),
            choice => [b"Client checksum: ", choice.unwrap_or(name)].concat(),
        };
        let Compress { choice, level, .. } = offer.options.delta.compress;
        let (given, settled) = match choice {
            Some(Compression::Auto) if has_lists => (choice, Some(self.compression)),
            Some(Compression::Auto) => (None, Some(self.compression)),
            choice => (None, choice),
        };
        let compression = compression::line(given, settled, level);
        [Some(checksum), compression.map(String::into_bytes)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// What one end brings to the negotiation of algorithms.
struct Offer<'a> {
    protocol: u8,
    flags: CompatFlags,
    options: &'a Options,
    /// The options on the server's command line.
    words: &'a [Vec<u8>],
    /// The checksums that it supports.
    sums: &'a [Checksum],
    is_server: bool,
}

impl Offer<'_> {
    /// Returns the checksums that the user has named. Only if all are "auto", they are negotiated.
    fn sum_choice(&self) -> Option<&[u8]> {
        let choice = self
            .words
            .iter()
            .find_map(|word| word.strip_prefix(SUM_CHOICE));
        let is_auto = |name: &[u8]| name.eq_ignore_ascii_case(b"auto");
        choice.filter(|choice| !choice.split(|&byte| byte == b',').all(is_auto))
    }
}

/// Exchanges lists of algorithms if both ends support that, and chooses from them. `first` is sent before the lists,
/// which `note_list` prints.
fn negotiate(
    link: &mut Link,
    offer: &Offer<'_>,
    first: Vec<u8>,
    note_list: &mut dyn FnMut(Vec<u8>),
) -> Result<Negotiated> {
    let Offer {
        protocol,
        flags,
        options,
        sums: supported,
        is_server,
        ..
    } = *offer;
    let is_named = offer.sum_choice().is_some();
    let Checksums { transfer, listed } = options.check.sums;
    let chosen = match (options.delta.compress.choice, options.delta.compress.level) {
        // This level turns zlib off.
        (Some(Compression::Zlib | Compression::Zlibx), Some(0)) => Compression::No,
        (choice, _) => choice.unwrap_or(Compression::No),
    };
    let negotiates_compression = chosen == Compression::Auto;
    let mut sums = Negotiated {
        transfer,
        listed,
        is_named,
        compression: chosen,
    };
    // The environment may restrict the choice to one. A batch file names no algorithms.
    let is_recorded = matches!(options.batch, Some(Batch::Write { .. }));
    let one = if is_recorded {
        [Checksum::Md5]
    } else {
        [transfer]
    };
    let offered_sums = if transfer == Checksum::default() && !is_recorded {
        supported
    } else {
        &one
    };
    let requested_methods = options.delta.compress.list.as_deref();
    let offered_methods = if is_recorded {
        &[Compression::Zlib]
    } else {
        requested_methods.unwrap_or(&Compression::METHODS)
    };
    let our_sums = (!is_named).then(|| handshake::offer(offered_sums));
    let our_methods = negotiates_compression.then(|| handshake::offer(offered_methods));
    let has_lists = flags.has(CompatFlags::VARINT_FLIST_FLAGS);
    let mut out = first;
    for (what, ours) in [("checksum", &our_sums), ("compress", &our_methods)] {
        let Some(ours) = ours else { continue };
        note_list(list_line("Client", what, ours.as_bytes()));
        if has_lists {
            out.put_vstring(ours.as_bytes());
        }
    }
    send(link, &out)?;
    if !has_lists {
        if our_sums.is_some() {
            let sum = handshake::default_checksum(protocol);
            note_list(list_line("Server", "checksum", sum.name().as_bytes()));
            (sums.transfer, sums.listed) = (sum, sum);
        }
        if our_methods.is_some() {
            note_list(list_line(
                "Server",
                "compress",
                Compression::Zlib.name().as_bytes(),
            ));
            sums.compression = Compression::Zlib;
        }
        return Ok(sums);
    }
    if let Some(ours) = our_sums {
        let sum = choose(link, "checksum", ours.as_bytes(), is_server, note_list)?;
        (sums.transfer, sums.listed) = (sum, sum);
    }
    if let Some(ours) = our_methods {
        sums.compression = choose(link, "compress", ours.as_bytes(), is_server, note_list)?;
    }
    Ok(sums)
}

/// Returns the line of a client about a list of algorithms (`--debug=nstr2`).
fn list_line(end: &str, what: &str, list: &[u8]) -> Vec<u8> {
    [
        end.as_bytes(),
        b" ",
        what.as_bytes(),
        b" list (on client): ",
        list,
    ]
    .concat()
}

/// Reads the list of the other end, and chooses from it and from ours.
fn choose<A: Algorithm>(
    link: &mut Link,
    what: &str,
    ours: &[u8],
    is_server: bool,
    note_list: &mut dyn FnMut(Vec<u8>),
) -> Result<A> {
    let theirs = &*handshake::decode_offer(&mut link.reader).map_err(failed)?;
    note_list(list_line("Server", what, theirs));
    let (client, server) = if is_server {
        (theirs, ours)
    } else {
        (ours, theirs)
    };
    handshake::choose(client, server).ok_or_else(|| {
        let [server, client] =
            [server, client].map(|list| String::from_utf8_lossy(list).replace('\n', "\\#012"));
        Error::new(Exit::Unsupported, no_common(what, &server, &client))
    })
}

fn send(link: &mut Link, bytes: &[u8]) -> Result<()> {
    link.writer
        .write_all(bytes)
        .and_then(|()| link.writer.flush())
        .map_err(|error| lost("writing", &error))
}
