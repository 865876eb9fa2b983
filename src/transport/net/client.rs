//! The client side of network links: dials a server with a known key.

use super::bridge::{Engine, wait};
use super::closed_port::{first_of, icmp_error, tcp_refusal};
use super::quic::BEGINS;
use super::server::PROBE_ANSWER;
use super::tcp_liveness::{LivenessSigns, SessionName, Watch};
use super::{HangUp, NetTransport, Trouble, migration, quic, tls, tls_upgrade};
use crate::fs::sys;
use crate::transport::Link;
use crate::transport::link::{Moved, Patience};
use crate::transport::window_limit::Ceiling;
use crate::trust::tls::{ALPN, ALPN_LANES, ALPN_NAMED, client_config_for};
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

/// How to dial a server.
#[derive(Clone)]
pub struct Dial {
    /// This machine's key and the key that the server must have.
    pub tls: Arc<rustls::ClientConfig>,
    /// An attempt fails if the server's first bytes do not arrive within this time.
    pub limit: Duration,
    /// How the link reads; its `stop` also ends an attempt.
    pub patience: Patience,
    /// When a session over QUIC moves to TLS, if both transports are permitted.
    pub lanes: tls_upgrade::UpgradeTerms,
    /// Sent as soon as a handshake has completed: the first bytes of the session. Once there is a link, they have been
    /// sent.
    pub first_words: FirstBytes,
    /// Taken before any session data is sent.
    pub permit: SessionPermit,
    /// The head start of each transport over the next.
    pub kind_step: Duration,
    /// How a dead TCP connection is detected.
    pub signs: LivenessSigns,
    /// The last error of an attempt, while others are still running.
    pub trouble: Arc<Mutex<Option<(NetTransport, Trouble)>>>,
}

/// The first bytes of a session, at most [`super::limits::FIRST_WORDS_MAX_BYTES`]. Made when they are first needed;
/// every attempt sends the same.
#[derive(Clone, Default)]
pub struct FirstBytes {
    make: Option<Arc<dyn Fn() -> Vec<u8> + Send + Sync>>,
    made: Arc<OnceLock<Vec<u8>>>,
}

impl FirstBytes {
    /// Bytes that `make` returns when they are first needed.
    pub fn by(make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> FirstBytes {
        FirstBytes {
            make: Some(Arc::new(make)),
            made: Arc::default(),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.made
            .get_or_init(|| self.make.as_ref().map_or_else(Vec::new, |make| make()))
    }
}

/// The right to begin a session, of which there is one for all attempts to reach a peer: with two sessions, the copy
/// would be made twice.
#[derive(Debug, Clone, Default)]
pub struct SessionPermit(Arc<AtomicBool>);

impl SessionPermit {
    /// Takes the right; `false` if another race has it.
    pub fn take(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Gives it back.
    fn leave(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Dial {
    /// Creates a dial with the default settings.
    pub fn new(tls: Arc<rustls::ClientConfig>, limit: Duration, patience: Patience) -> Dial {
        Dial {
            tls,
            limit,
            patience,
            lanes: tls_upgrade::UpgradeTerms::default(),
            first_words: FirstBytes::default(),
            permit: SessionPermit::default(),
            kind_step: KIND_STEP,
            signs: LivenessSigns::default(),
            trouble: Arc::default(),
        }
    }

    fn link(
        &self,
        engine: Engine,
        reached: AnsweredServer,
        peer: SocketAddr,
    ) -> Result<Linked, Trouble> {
        match reached {
            AnsweredServer::Quic(endpoint, conversation) => {
                let watch = migration::watch(endpoint.clone(), conversation.connection.clone());
                engine.handle().spawn(watch);
                Ok(self.quic_link(engine, endpoint, conversation, peer))
            }
            AnsweredServer::Tls(tunnel, name) => {
                let handle = engine.handle().clone();
                // Readers and writers keep the engine alive, which also runs the watch over the connection.
                let halves = tls::halves(tunnel, self.patience.clone(), Arc::new(engine));
                let (reader, writer, hang_up) = halves.map_err(broken)?;
                if let Some(name) = name {
                    let watch = self.watch(peer, name, false);
                    let connection = hang_up.watched();
                    handle.spawn(async move {
                        if watch.breaks(&connection).await {
                            connection.hang_up();
                        }
                    });
                }
                let hang_up = HangUp::Tls(hang_up);
                let link = self.link_of(Box::new(reader), Box::new(writer), &hang_up, &handle);
                Ok(Linked {
                    link,
                    lanes: None,
                    hang_up,
                })
            }
        }
    }

    fn watch(&self, peer: SocketAddr, name: SessionName, server_is_informed: bool) -> Watch {
        Watch {
            peer,
            tls: client_config_for(&self.tls, &[ALPN_NAMED]),
            name,
            signs: self.signs,
            server_is_informed,
        }
    }

    fn quic_link(
        &self,
        engine: Engine,
        endpoint: quinn::Endpoint,
        conversation: quic::Conversation,
        peer: SocketAddr,
    ) -> Linked {
        let connection = conversation.connection.clone();
        let token = tls_upgrade::token(&conversation.connection);
        let handle = engine.handle().clone();
        let at_end = move |parting| {
            engine.end(Box::pin(async move {
                parting.await;
                drop(endpoint);
            }));
        };
        let (reader, writer) = quic::halves(
            conversation,
            self.patience.clone(),
            quic::CLIENT_LAST_WORDS,
            &Ceiling::default(),
            at_end,
        );
        let Some(token) = token else {
            let hang_up = HangUp::Quic(connection);
            let link = self.link_of(Box::new(reader), Box::new(writer), &hang_up, &handle);
            return Linked {
                link,
                lanes: None,
                hang_up,
            };
        };
        let inside = handle.enter();
        let (reader, writer, mover) = tls_upgrade::movable(
            (reader, writer),
            &self.lanes,
            self.first_words.bytes().len(),
        );
        let watch = self.watch(peer, token, true);
        tokio::spawn(mover.run_client(
            client_config_for(&self.tls, &[ALPN_LANES]),
            watch,
            self.lanes.clone(),
        ));
        drop(inside);
        let lanes = Some(writer.progress().clone());
        let hang_up = HangUp::Lanes(writer.hang_up());
        Linked {
            link: self.link_of(Box::new(reader), Box::new(writer), &hang_up, &handle),
            lanes,
            hang_up,
        }
    }

    fn link_of(
        &self,
        reader: Box<dyn Read + Send>,
        writer: Box<dyn Write + Send>,
        hang_up: &HangUp,
        engine: &tokio::runtime::Handle,
    ) -> Link {
        let moved = match hang_up {
            HangUp::Lanes(lanes) => lanes.progress().moved().clone(),
            HangUp::Quic(_) | HangUp::Tls(_) => Moved::default(),
        };
        Link {
            reader,
            writer,
            parting: self.patience.parting.clone(),
            leave: Some(hang_up.leave(engine)),
            moved,
        }
    }
}

/// A link with its handles; see [`DialWinner`].
struct Linked {
    link: Link,
    lanes: Option<Arc<tls_upgrade::Progress>>,
    hang_up: HangUp,
}

fn broken(error: impl std::fmt::Display) -> Trouble {
    Trouble::Broken(error.to_string())
}

/// A successful race.
pub struct DialWinner {
    /// The link; the server's first bytes have arrived.
    pub link: Link,
    pub kind: NetTransport,
    /// The progress of a session that can move to TLS; `None` if it cannot.
    pub lanes: Option<Arc<tls_upgrade::Progress>>,
    /// The address of the server.
    pub address: SocketAddr,
    /// Ends the session from any thread.
    pub hang_up: HangUp,
}

/// Dials all addresses of a host over all of `transports`, the later ones of both with a delay.
///
/// The first attempt whose handshake completes sends the first bytes of `dial`, and wins if the server answers. If the
/// server does not answer, or not soon, the next attempt does the same. All others are dropped. Never takes longer than
/// the limit of `dial`.
///
/// If all fail, returns the most important error. A server with the right key that does not admit this client ends the
/// race, because it would refuse every attempt. A server with a wrong key does not while other attempts are left: an
/// address may have passed to another machine.
pub fn race(
    peers: &[SocketAddr],
    transports: &[NetTransport],
    dial: &Dial,
) -> Result<DialWinner, Trouble> {
    let engine = Engine::start("client network").map_err(broken)?;
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let mut field = Race {
        engine: engine.handle().clone(),
        began: Since::now(),
        limit: dial.limit,
        words: dial.first_words.clone(),
        permit: dial.permit.clone(),
        has_permit: false,
        report,
        tasks: DialAttempts(Vec::new()),
        runs: 0,
        waiting: VecDeque::new(),
        speaker: None,
        turns: 0,
    };
    // A dial over QUIC alone must not move to TLS.
    let may_move = NetTransport::BOTH
        .iter()
        .all(|kind| transports.contains(kind));
    let by_quic = if may_move {
        client_config_for(&dial.tls, &[ALPN_LANES, ALPN])
    } else {
        dial.tls.clone()
    };
    let by_tls = client_config_for(&dial.tls, &[ALPN_NAMED, ALPN]);
    for (rank, &peer) in peers.iter().enumerate() {
        let refused = Arc::new(Notify::new());
        for (step, &kind) in transports.iter().enumerate() {
            let head_start = ADDRESS_STEP * rank as u32 + dial.kind_step * step as u32;
            let tls = match kind {
                NetTransport::Quic => by_quic.clone(),
                NetTransport::Tls => by_tls.clone(),
            };
            let refused = refused.clone();
            field.run((kind, peer), None, async move {
                tokio::time::sleep(head_start).await;
                reach(kind, peer, tls, &refused)
                    .await
                    .map(DialStep::CompletedHandshake)
            });
        }
    }
    let mut worst = None;
    while field.runs > 0 {
        let next = wait(reports.recv(), || dial.patience.check(Duration::ZERO));
        let Ok(Some(AttemptReport {
            way: (kind, address),
            turn,
            came,
        })) = next
        else {
            return Err(Trouble::Stopped);
        };
        let current_turn = field.speaker.as_ref().map(|speaker| speaker.turn);
        if turn.is_some() && turn != current_turn {
            // A late attempt that was replaced in the meantime.
            continue;
        }
        if !matches!(came, Ok(DialStep::Late)) {
            field.runs -= 1;
            field.speaker.take_if(|_| turn.is_some());
        }
        match came {
            Ok(DialStep::CompletedHandshake(shaken)) => {
                field.waiting.push_back(((kind, address), shaken))
            }
            Ok(DialStep::Late) => {
                if let Some(speaker) = &mut field.speaker {
                    speaker.is_late = true;
                }
            }
            Ok(DialStep::Answered(_)) if !field.has_floor() => {
                return Err(Trouble::Stopped);
            }
            Ok(DialStep::Answered(reached)) => {
                // The slower attempts close their connections while the engine still runs.
                drop((field, reports));
                let Linked {
                    link,
                    lanes,
                    hang_up,
                } = dial.link(engine, reached, address)?;
                return Ok(DialWinner {
                    link,
                    kind,
                    lanes,
                    address,
                    hang_up,
                });
            }
            Err(Trouble::NotAdmitted) => return Err(Trouble::NotAdmitted),
            Err(trouble) => {
                *dial.trouble.lock() = Some((kind, trouble.clone()));
                worst = worst.into_iter().chain([trouble]).max_by_key(Trouble::rank);
            }
        }
        if !field.grant_floor() {
            return Err(Trouble::Stopped);
        }
    }
    Err(worst.unwrap_or_else(|| Trouble::Unreachable("no address".into())))
}

/// The state of a race.
struct Race {
    engine: tokio::runtime::Handle,
    began: Since,
    limit: Duration,
    /// The first bytes of the session.
    words: FirstBytes,
    /// The right to begin a session.
    permit: SessionPermit,
    /// This race has it.
    has_permit: bool,
    report: UnboundedSender<AttemptReport>,
    tasks: DialAttempts,
    /// The number of attempts that have not reported.
    runs: usize,
    /// Attempts with a completed handshake.
    waiting: VecDeque<(DialRoute, CompletedHandshake)>,
    speaker: Option<Speaker>,
    /// The number of attempts that have sent the first bytes.
    turns: usize,
}

/// The attempt that has sent the first bytes.
struct Speaker {
    turn: usize,
    task: tokio::task::AbortHandle,
    /// It did not answer in time and is replaced as soon as another attempt is ready.
    is_late: bool,
}

/// Transport and address.
type DialRoute = (NetTransport, SocketAddr);

/// The result of an attempt, or of its first bytes.
struct AttemptReport {
    way: DialRoute,
    /// The turn of an attempt that has sent the first bytes.
    turn: Option<usize>,
    came: Result<DialStep, Trouble>,
}

/// How far an attempt has come.
enum DialStep {
    /// The handshake is complete; no session data was sent.
    CompletedHandshake(CompletedHandshake),
    /// The server has answered.
    Answered(AnsweredServer),
    /// The server has not answered for a while.
    Late,
}

/// How long a server may take to answer the first bytes before another attempt sends them: this time, or this many
/// times the duration of the handshake if that is longer. Enough for a lost datagram.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const ANSWERS_WITHIN_HANDSHAKES: u32 = 3;

impl Race {
    fn run(
        &mut self,
        way: DialRoute,
        turn: Option<usize>,
        attempt: impl Future<Output = Result<DialStep, Trouble>> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        let limit = self.limit;
        let report = self.report.clone();
        let left = limit.saturating_sub(self.began.elapsed());
        let task = self.engine.spawn(async move {
            let tried = tokio::time::timeout(left, attempt).await;
            let came = tried.unwrap_or_else(|_| Err(Trouble::Silent(limit)));
            // Without a receiver, another attempt was faster.
            let _ = report.send(AttemptReport { way, turn, came });
        });
        self.tasks.0.push(task.abort_handle());
        self.runs += 1;
        task.abort_handle()
    }

    /// Takes the right to begin a session if this race does not have it; returns whether it does now.
    fn has_floor(&mut self) -> bool {
        self.has_permit = self.has_permit || self.permit.take();
        self.has_permit
    }

    /// Lets the next attempt send the first bytes, unless a current one still has time. Returns `false` if another race
    /// has the right to begin a session.
    fn grant_floor(&mut self) -> bool {
        if self
            .speaker
            .as_ref()
            .is_some_and(|speaker| !speaker.is_late)
        {
            return true;
        }
        let Some((way, shaken)) = self.waiting.pop_front() else {
            if self.speaker.is_some() && std::mem::take(&mut self.has_permit) {
                // Another race may have an attempt that is ready.
                self.permit.leave();
            }
            return true;
        };
        if !self.has_floor() {
            return false;
        }
        if let Some(late) = self.speaker.take() {
            late.task.abort();
            self.runs -= 1;
        }
        self.turns += 1;
        let words = self.words.clone();
        // Made in this thread: it takes a while, and the engine drives other attempts.
        words.bytes();
        let turn = self.turns;
        let report = self.report.clone();
        let task = self.run(way, Some(turn), async move {
            shaken.begin(words.bytes()).await.map(DialStep::Answered)
        });
        let patience = ANSWERS_WITHIN.max(self.began.elapsed() * ANSWERS_WITHIN_HANDSHAKES);
        let watch = self.engine.spawn(async move {
            tokio::time::sleep(patience).await;
            // Without a receiver, another attempt was faster.
            let _ = report.send(AttemptReport {
                way,
                turn: Some(turn),
                came: Ok(DialStep::Late),
            });
        });
        self.tasks.0.push(watch.abort_handle());
        self.speaker = Some(Speaker {
            turn,
            task,
            is_late: false,
        });
        true
    }
}

/// The head start of each transport over the next, as Happy Eyeballs staggers address families (RFC 8305).
pub const KIND_STEP: Duration = Duration::from_millis(250);
/// Without a QUIC answer for this time, or as soon as TCP is refused there, [`icmp_error`] checks for a closed port. QUIC
/// itself retransmits lost datagrams.
const REFUSAL_AFTER: Duration = Duration::from_secs(1);
/// If QUIC has not answered for this time, a port that refuses TCP counts as closed: not every network delivers ICMP
/// errors. It is longer than the loss of a few first datagrams lasts, because a firewall may refuse TCP although QUIC works.
const WITNESS_AFTER: Duration = Duration::from_secs(5);
/// After this time a second QUIC attempt starts next to the first; a handshake on a slow radio link takes less. TCP
/// needs no second attempt.
const QUIC_AGAIN: Duration = Duration::from_secs(2);
/// The head start of each address over the next.
const ADDRESS_STEP: Duration = Duration::from_millis(100);

/// Tasks that are aborted when this is dropped.
struct DialAttempts(Vec<tokio::task::AbortHandle>);

impl Drop for DialAttempts {
    fn drop(&mut self) {
        for attempt in &self.0 {
            attempt.abort();
        }
    }
}

/// A completed handshake: the server has shown its key, and whether it accepts this client is still open.
enum CompletedHandshake {
    Quic(quinn::Endpoint, quinn::Connection),
    Tls(tls::Tunnel),
}

/// A server that has answered.
enum AnsweredServer {
    Quic(quinn::Endpoint, quic::Conversation),
    /// With the name of the session, if the server supports names.
    Tls(tls::Tunnel, Option<SessionName>),
}

/// Completes a handshake. `refused` is notified if TCP is refused at this address.
async fn reach(
    kind: NetTransport,
    peer: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    refused: &Notify,
) -> Result<CompletedHandshake, Trouble> {
    match kind {
        NetTransport::Quic => {
            let refusal = async {
                let began = Since::now();
                // The wait spares servers that answer soon. Either end of it starts the check.
                let waited = tokio::time::timeout(REFUSAL_AFTER, refused.notified()).await;
                let by_tcp = async {
                    if waited.is_err() {
                        tcp_refusal(peer).await;
                    }
                    tokio::time::sleep(WITNESS_AFTER.saturating_sub(began.elapsed())).await;
                    Trouble::Refused
                };
                Err(first_of(icmp_error(peer), by_tcp).await)
            };
            first_of(dial_quic_repeatedly(peer, tls), refusal).await
        }
        NetTransport::Tls => {
            let reached = tls::connect(peer, tls).await;
            if let Err(Trouble::Refused) = reached {
                refused.notify_one();
            }
            reached.map(CompletedHandshake::Tls)
        }
    }
}

/// Starts further attempts while earlier ones have no result, and returns the first result.
///
/// QUIC retransmits ever more rarely, a server gives up a handshake after [`super::limits::HANDSHAKE`], and a router
/// may have lost the way back.
async fn dial_quic_repeatedly(
    peer: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
) -> Result<CompletedHandshake, Trouble> {
    // Dropping this ends all attempts.
    let mut attempts = JoinSet::new();
    loop {
        attempts.spawn(quic_handshake(peer, tls.clone()));
        while let Ok(Some(came)) = tokio::time::timeout(QUIC_AGAIN, attempts.join_next()).await {
            match came.unwrap_or_else(|error| Err(broken(error))) {
                // Other attempts are still running and may succeed.
                Err(Trouble::Broken(_)) if !attempts.is_empty() => {}
                came => return came,
            }
        }
    }
}

async fn quic_handshake(
    peer: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
) -> Result<CompletedHandshake, Trouble> {
    let endpoint = open(peer)?;
    let connection = quic::connect(&endpoint, peer, tls).await?;
    Ok(CompletedHandshake::Quic(endpoint, connection))
}

impl CompletedHandshake {
    /// Sends the first bytes and waits for the server's.
    async fn begin(self, words: &[u8]) -> Result<AnsweredServer, Trouble> {
        let answered = self.converse(words).await?;
        let is_session = !words.is_empty();
        if is_session && answered.first_bytes().starts_with(PROBE_ANSWER) {
            return Err(Trouble::NotAdmitted);
        }
        Ok(answered)
    }

    async fn converse(self, words: &[u8]) -> Result<AnsweredServer, Trouble> {
        match self {
            CompletedHandshake::Quic(endpoint, connection) => {
                let conversation = quic::begin(connection, &[&BEGINS, words].concat()).await?;
                Ok(AnsweredServer::Quic(endpoint, conversation))
            }
            CompletedHandshake::Tls(mut tunnel) => {
                let name = (tunnel.carries() == Some(ALPN_NAMED)).then(sys::random);
                let session_name: &[u8] = name.as_ref().map_or(&[], SessionName::as_slice);
                tunnel
                    .begin(&[&BEGINS, session_name, words].concat())
                    .await?;
                Ok(AnsweredServer::Tls(tunnel, name))
            }
        }
    }
}

impl AnsweredServer {
    /// Returns what the server has sent so far.
    fn first_bytes(&self) -> &[u8] {
        match self {
            AnsweredServer::Quic(_, conversation) => &conversation.first,
            AnsweredServer::Tls(tunnel, _) => tunnel.received(),
        }
    }
}

/// Opens an endpoint for this peer. Must be called inside a runtime.
fn open(peer: SocketAddr) -> Result<quinn::Endpoint, Trouble> {
    let opened = quic::client_socket(peer).and_then(quic::client_endpoint);
    opened.map_err(|error| Trouble::unreached(&error))
}
