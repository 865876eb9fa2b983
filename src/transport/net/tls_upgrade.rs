//! Moves a session that began over QUIC to TLS over TCP, if that carries bulk data faster.
//!
//! A session begins over QUIC because QUIC survives what TCP does not: a new address, or a network outage. On a short
//! clean path neither is likely, and there TCP needs less CPU time, which is the bottleneck of QUIC. So after the first
//! MiB the client evaluates the path and dials over TLS. A secret exported from the QUIC connection, known only to its
//! two ends, identifies the session. From then on, each side leaves QUIC with its next write, and sends over QUIC at
//! which byte it did. A stream that was left has no end, so an end over QUIC is always the end of the session;
//! docs/PROTOCOL.md, section 15, specifies the bytes.
//!
//! The QUIC connection stays open until the session ends: by it each side knows that its bytes were received, and the
//! client learns why a server closes. It costs a datagram now and then. It also follows a client to another address,
//! which TLS cannot: then the client closes it with an error code, so that both sides know, and dials again.
//!
//! # What holds
//!
//! - **Each direction changes once, at a byte.** A writer sends nothing over QUIC after it has announced the position
//!   `given`, and a reader takes exactly that many bytes from QUIC before it reads the first one from TLS. The bytes over
//!   TLS, the announcement and the rest over QUIC may arrive in any order; only the position says where they join. A
//!   reader that took what comes first would mix them up.
//! - **The directions are independent.** One end can write over TLS while it still reads over QUIC. Neither waits for the
//!   other, since a receiver may write nothing for minutes.
//! - **The client's `YES` settles the move.** Before it, either end may give up and QUIC goes on unharmed; so everything
//!   that can fail early (dialing, the token, the server's view of its losses) comes before it. After it, an end that has
//!   no TLS connection has lost the session.
//! - **Moved or over, not both.** [`TlsLane`] leaves `None` once, under its lock. If a session is closed during the move,
//!   either [`UpgradeHangUp::now`] finds the TLS connection and closes it too, or [`Mover::attach`] finds `Over` and drops
//!   the tunnel. Without that, a session that was ended could go on over a connection that nothing knows.
//! - **The connections end in order.** A writer drops TLS before QUIC, so that the last data is sent before the peer
//!   learns the end.

use super::bridge::wait;
use super::limits::{LANE_AFTER_BYTES, LANE_LIMIT, LANE_LOST_ONE_IN, LANE_RTT_MAX};
use super::tcp_liveness::{SessionName, Watch};
use super::{quic, tls};
use crate::transport::link::{Leave, Moved, Patience};
use crate::trust::Pin;
use crate::trust::tls::ALPN_LANES;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// When a session moves.
#[derive(Debug, Clone)]
pub struct UpgradeTerms {
    /// Not before this many bytes were transferred.
    pub after_bytes: u64,
    /// Only if the round trip time is at most this.
    pub rtt_max: Duration,
    /// Only if at most one in this many datagrams was lost.
    pub lost_one_in: u64,
    /// If agreeing on the move over TLS takes longer, QUIC stays.
    pub limit: Duration,
}

impl Default for UpgradeTerms {
    fn default() -> UpgradeTerms {
        UpgradeTerms {
            after_bytes: LANE_AFTER_BYTES,
            rtt_max: LANE_RTT_MAX,
            lost_one_in: LANE_LOST_ONE_IN,
            limit: LANE_LIMIT,
        }
    }
}

/// Returns whether at most one in `lost_one_in` of the datagrams sent by this side was lost.
fn is_clean(connection: &quinn::Connection, lost_one_in: u64) -> bool {
    let path = connection.stats().path;
    path.lost_packets.saturating_mul(lost_one_in) <= path.sent_packets
}

/// A secret known only to both ends of a QUIC connection. By it the client names the session to move.
type UpgradeToken = SessionName;
/// The exporter label of the token (RFC 8446, 7.5).
const TOKEN_LABEL: &[u8] = b"EXPORTER-sparsync-lane";
/// The server has the session, or the client confirms the move.
const YES: [u8; 1] = [1];

/// Returns the token of a session that can move; `None` if the peer does not support or want that.
pub fn token(connection: &quinn::Connection) -> Option<UpgradeToken> {
    let agreed = connection
        .handshake_data()?
        .downcast::<quinn::crypto::rustls::HandshakeData>()
        .ok()?;
    let mut token = UpgradeToken::default();
    let may = agreed.protocol.as_deref() == Some(ALPN_LANES);
    if !may {
        return None;
    }
    connection
        .export_keying_material(&mut token, TOKEN_LABEL, b"")
        .ok()?;
    Some(token)
}

/// The progress of a session that can move.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes sent and received over QUIC.
    bytes: AtomicU64,
    moved: Moved,
}

impl Progress {
    /// Returns when the session moved to TLS.
    pub fn moved(&self) -> &Moved {
        &self.moved
    }

    /// Returns how many bytes this side sent and received over QUIC before the move; `None` before the move.
    pub fn moved_after(&self) -> Option<u64> {
        self.moved
            .since()
            .map(|_| self.bytes.load(Ordering::Relaxed))
    }
}

/// The state shared by the halves of a session, its [`Mover`] and its [`UpgradeHangUp`].
struct UpgradeShared {
    connection: quinn::Connection,
    progress: Arc<Progress>,
    after_bytes: u64,
    /// Notified once `after_bytes` were transferred.
    enough: Notify,
    lane: Mutex<TlsLane>,
}

/// The TLS connection of a session. Made as `None` with the session; [`Mover::attach`] or [`UpgradeHangUp::now`] changes
/// it, once.
enum TlsLane {
    /// The session has not moved.
    None,
    /// It moves or has moved to this connection.
    Tls(tls::TlsHangUp),
    /// The session was closed; a move is no longer possible.
    Over,
}

impl UpgradeShared {
    fn count(&self, bytes: usize) {
        let before = self
            .progress
            .bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        if before < self.after_bytes && before + bytes as u64 >= self.after_bytes {
            self.enough.notify_one();
        }
    }
}

/// Returns the halves of a session that can move, and its [`Mover`]. Must be called inside a runtime. `sent_bytes` is the
/// number of session bytes that this side has already sent.
pub fn movable(
    halves: (quic::QuicReader, quic::QuicWriter),
    terms: &UpgradeTerms,
    sent_bytes: usize,
) -> (UpgradeReader, UpgradeWriter, Mover) {
    let (reader, writer) = halves;
    let connection = reader.connection().clone();
    let patience = reader.patience().clone();
    let (tx, left) = oneshot::channel();
    tokio::spawn(receive_switch_offset(connection.clone(), tx));
    let shared = Arc::new(UpgradeShared {
        connection,
        progress: Arc::default(),
        after_bytes: terms.after_bytes,
        enough: Notify::new(),
        lane: Mutex::new(TlsLane::None),
    });
    shared.count(sent_bytes);
    let (to_reader, reads) = oneshot::channel();
    let (to_writer, writes) = oneshot::channel();
    let reader = UpgradeReader {
        quic: reader,
        taken: 0,
        left: Some(left),
        end: None,
        lane: Some(reads),
        tls: None,
        shared: shared.clone(),
    };
    let writer = UpgradeWriter {
        tls: None,
        quic: writer,
        given: sent_bytes as u64,
        lane: Some(writes),
        shared: shared.clone(),
    };
    (
        reader,
        writer,
        Mover {
            shared,
            patience,
            to_reader,
            to_writer,
        },
    )
}

async fn receive_switch_offset(connection: quinn::Connection, tx: oneshot::Sender<u64>) {
    let mut at = [0; 8];
    if let Ok(mut word) = connection.accept_uni().await
        && word.read_exact(&mut at).await.is_ok()
    {
        // Without a receiver, the session is over.
        let _ = tx.send(u64::from_le_bytes(at));
    }
}

/// Moves a session, once.
pub struct Mover {
    shared: Arc<UpgradeShared>,
    patience: Patience,
    to_reader: oneshot::Sender<tls::TlsReader>,
    to_writer: oneshot::Sender<tls::TlsWriter>,
}

impl Mover {
    /// Runs the client's part: dials the same server over TLS once that pays off. On any failure, the session stays on
    /// QUIC. Afterwards watches over the TLS connection, whose session is named by the token.
    pub async fn run_client(
        self,
        tls: Arc<rustls::ClientConfig>,
        watch: Watch,
        terms: UpgradeTerms,
    ) {
        let connection = self.shared.connection.clone();
        self.shared.enough.notified().await;
        // The bytes were passed to QUIC; wait until they are really sent.
        while stats_bytes(&connection) < terms.after_bytes {
            if tokio::time::timeout(LOOK, connection.closed())
                .await
                .is_ok()
            {
                return;
            }
        }
        if !is_clean(&connection, terms.lost_one_in)
            || connection.stats().path.min_rtt > terms.rtt_max
        {
            return;
        }
        let dial = async {
            let mut tunnel = tls::connect(watch.peer, tls)
                .await
                .map_err(io::Error::from)?;
            tunnel.send_short(&watch.name).await?;
            match tunnel.receive_exact().await? {
                YES => Ok(tunnel),
                _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
            }
        };
        // Until here there are no side effects; this message settles the move for both sides.
        if let Ok(Ok(mut tunnel)) = tokio::time::timeout(terms.limit, dial).await
            && tunnel.send_short(&YES).await.is_ok()
            && let Some(lane) = self.attach(tunnel)
            && watch.breaks(&lane).await
        {
            // QUIC has followed the client, so the server receives this, and what it holds is free for the next
            // session.
            quic::close(
                &connection,
                quic::CloseCode::Instructed,
                b"the client is no longer reachable over TLS",
            );
            lane.hang_up();
        }
    }

    /// Runs the server's part. The server sees the losses towards the client, which the client does not. `take`
    /// receives the TLS connection.
    pub async fn answer(
        self,
        mut tunnel: tls::Tunnel,
        lost_one_in: u64,
        take: impl FnOnce(tls::Watched),
    ) {
        let connection = &self.shared.connection;
        // A closed session can be found until its entry is removed.
        if connection.close_reason().is_none()
            && is_clean(connection, lost_one_in)
            && tunnel.send_short(&YES).await.is_ok()
            && tunnel.receive_exact().await.is_ok_and(|reply| reply == YES)
        {
            let connection = connection.clone();
            let Some(lane) = self.attach(tunnel) else {
                return;
            };
            take(lane.clone());
            // Spawned because the caller limits the time of each handshake, and this takes as long as the session.
            tokio::spawn(async move {
                let is_instructed = |close: &quinn::ApplicationClose| {
                    close.error_code.into_inner() == quic::CloseCode::Instructed as u64
                };
                // A client closes QUIC if TCP cannot follow it; over TCP the server would not notice for a long time.
                if matches!(connection.closed().await, quinn::ConnectionError::ApplicationClosed(close) if is_instructed(&close))
                {
                    lane.hang_up();
                }
            });
        }
    }

    /// Hands the TLS connection to both halves, which change to it when they reach their positions. `None` if the session
    /// is over.
    fn attach(self, tunnel: tls::Tunnel) -> Option<tls::Watched> {
        let Mover {
            shared,
            patience,
            to_reader,
            to_writer,
        } = self;
        let mut lane = shared.lane.lock();
        if let TlsLane::None = *lane
            && let Ok((reader, writer, hang_up)) = tls::halves(tunnel, patience, Arc::new(()))
        {
            let watched = hang_up.watched();
            *lane = TlsLane::Tls(hang_up);
            shared.progress.moved.now();
            drop(lane);
            // If a receiver is gone, the session is over.
            let _ = to_reader.send(reader);
            let _ = to_writer.send(writer);
            return Some(watched);
        }
        None
    }
}

/// How often a client checks whether the data passed to QUIC was sent.
const LOOK: Duration = Duration::from_millis(5);

fn stats_bytes(connection: &quinn::Connection) -> u64 {
    let stats = connection.stats();
    stats.udp_tx.bytes + stats.udp_rx.bytes
}

/// The stream from the peer, over QUIC or TLS.
pub struct UpgradeReader {
    quic: quic::QuicReader,
    /// The number of bytes consumed over QUIC.
    taken: u64,
    /// Receives the position at which the peer leaves QUIC.
    left: Option<oneshot::Receiver<u64>>,
    /// That position, once it is known. `taken` never exceeds it.
    end: Option<u64>,
    /// Brings the TLS connection. It may come before or after the position.
    lane: Option<oneshot::Receiver<tls::TlsReader>>,
    /// The TLS connection, once `taken` has reached `end`. From then on, QUIC is not read.
    tls: Option<tls::TlsReader>,
    shared: Arc<UpgradeShared>,
}

impl UpgradeReader {
    /// Continues until there is data over QUIC, the session ends, or it has moved to TLS.
    fn find(&mut self) -> io::Result<()> {
        while self.tls.is_none() {
            let buffered = self.quic.buffered().len() as u64;
            match self.end {
                Some(end) if self.taken + buffered > end => {
                    return Err(wrong("sent more over QUIC than announced"));
                }
                _ if buffered > 0 => return Ok(()),
                Some(end) if self.taken == end => self.change()?,
                _ => match self.quic.refill(announced_position(&mut self.left))? {
                    Some(end) => self.end = Some(end),
                    None if !self.quic.buffered().is_empty() => {}
                    None if self.end.is_none() => return Ok(()),
                    None => return Err(wrong("sent less over QUIC than announced")),
                },
            }
        }
        Ok(())
    }

    fn change(&mut self) -> io::Result<()> {
        let patience = self.quic.patience();
        let gone = || {
            io::Error::new(
                io::ErrorKind::ConnectionReset,
                "no TLS connection to move to",
            )
        };
        let waits = Since::now();
        let lane = self.lane.take().ok_or_else(gone)?;
        // The peer has the TLS connection already; here it is about to arrive.
        let lane = wait(lane, || patience.check(waits.elapsed()))?.map_err(|_| gone())?;
        self.quic.leave();
        self.tls = Some(lane);
        Ok(())
    }
}

/// Returns the position that was announced; completes only once.
async fn announced_position(position: &mut Option<oneshot::Receiver<u64>>) -> u64 {
    if let Some(waits) = position {
        let received = waits.await;
        *position = None;
        if let Ok(at) = received {
            return at;
        }
    }
    std::future::pending().await
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, format!("the peer {what}"))
}

/// Replaces the error of a lost TLS connection by the reason sent over QUIC, if there is one. TCP cannot send a reason.
fn with_close_reason(connection: &quinn::Connection, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::ConnectionReset {
        return error;
    }
    let waits = Since::now();
    let late = || {
        if waits.elapsed() < WHY_COMES_WITHIN {
            Ok(())
        } else {
            Err(io::ErrorKind::TimedOut.into())
        }
    };
    match wait(connection.closed(), late) {
        Ok(quinn::ConnectionError::ApplicationClosed(close)) if !close.reason.is_empty() => {
            quic::lost(quinn::ConnectionError::ApplicationClosed(close))
        }
        _ => error,
    }
}

/// How much later than the end over TCP the reason over QUIC may arrive.
const WHY_COMES_WITHIN: Duration = Duration::from_secs(1);

impl BufRead for UpgradeReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.find()?;
        match &mut self.tls {
            Some(tls) => tls
                .fill_buf()
                .map_err(|error| with_close_reason(&self.shared.connection, error)),
            None => Ok(self.quic.buffered()),
        }
    }

    fn consume(&mut self, count: usize) {
        match &mut self.tls {
            Some(tls) => tls.consume(count),
            None => {
                self.quic.consume(count);
                self.taken += count as u64;
                self.shared.count(count);
            }
        }
    }
}

impl Read for UpgradeReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        loop {
            // Wait for more only if there is nothing yet.
            let piece = if got == 0 {
                self.fill_buf()?
            } else {
                self.quic.buffered()
            };
            let count = piece.len().min(into.len() - got);
            if count == 0 {
                return Ok(got);
            }
            into[got..got + count].copy_from_slice(&piece[..count]);
            self.consume(count);
            got += count;
        }
    }
}

/// The stream to the peer, over QUIC or TLS.
pub struct UpgradeWriter {
    // Dropped first: the last data is sent before the end of the stream.
    tls: Option<tls::TlsWriter>,
    quic: quic::QuicWriter,
    /// The number of bytes sent over QUIC.
    given: u64,
    lane: Option<oneshot::Receiver<tls::TlsWriter>>,
    shared: Arc<UpgradeShared>,
}

impl UpgradeWriter {
    /// Returns the progress of the session.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.shared.progress
    }

    /// Returns a handle that ends the session from any thread.
    pub fn hang_up(&self) -> UpgradeHangUp {
        UpgradeHangUp(self.shared.clone())
    }
}

impl Write for UpgradeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // An empty write carries nothing, so it does not change the connection.
        if let Some(lane) = &mut self.lane
            && pieces.iter().any(|piece| !piece.is_empty())
        {
            match lane.try_recv() {
                Ok(tls) => {
                    self.lane = None;
                    self.quic.leave(self.given)?;
                    self.tls = Some(tls);
                }
                Err(oneshot::error::TryRecvError::Closed) => self.lane = None,
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
        }
        if let Some(tls) = &mut self.tls {
            return tls
                .write_vectored(pieces)
                .map_err(|error| with_close_reason(&self.shared.connection, error));
        }
        let count = self.quic.write_vectored(pieces)?;
        self.given += count as u64;
        self.shared.count(count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a session at once, on both transports.
#[derive(Clone)]
pub struct UpgradeHangUp(Arc<UpgradeShared>);

impl UpgradeHangUp {
    /// Returns the QUIC connection.
    pub fn connection(&self) -> &quinn::Connection {
        &self.0.connection
    }

    /// Closes both connections and sends the reason to the peer.
    pub fn now(&self, why: &str) {
        quic::close(
            &self.0.connection,
            quic::CloseCode::Instructed,
            why.as_bytes(),
        );
        let mut lane = self.0.lane.lock();
        match &*lane {
            TlsLane::Tls(tls) => tls.now(),
            TlsLane::None | TlsLane::Over => *lane = TlsLane::Over,
        }
    }

    /// Returns a closure that closes both connections after what was written.
    pub fn leave(&self, engine: tokio::runtime::Handle) -> Leave {
        let shared = Arc::downgrade(&self.0);
        Box::new(move || {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if let TlsLane::Tls(tls) = &*shared.lane.lock() {
                tls.leave()();
            }
            drop(engine.spawn(quic::leave(shared.connection.clone())));
        })
    }

    /// Returns the progress of the session.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.0.progress
    }

    /// Returns whether the peer has closed QUIC, or its stream over TLS.
    pub fn is_over(&self) -> bool {
        self.0.connection.close_reason().is_some()
            || matches!(&*self.0.lane.lock(), TlsLane::Tls(tls) if tls.is_over())
    }
}

/// The sessions of a server that can move, by their tokens.
#[derive(Default)]
pub struct Movable(Mutex<HashMap<UpgradeToken, (Pin, Mover)>>);

impl Movable {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Adds the session of a client with this key. It can be found once, until it ends.
    pub fn put(self: &Arc<Movable>, token: UpgradeToken, pin: Pin, mover: Mover) {
        let all = self.clone();
        let connection = mover.shared.connection.clone();
        self.0.lock().insert(token, (pin, mover));
        tokio::spawn(async move {
            connection.closed().await;
            all.0.lock().remove(&token);
        });
    }

    /// Returns the session of this key whose token the client sends first.
    pub async fn find(&self, tunnel: &mut tls::Tunnel, pin: Pin) -> Option<(UpgradeToken, Mover)> {
        let token: UpgradeToken = tunnel.receive_exact().await.ok()?;
        let mut movable = self.0.lock();
        let is_its_own = movable.get(&token).is_some_and(|(whose, _)| *whose == pin);
        is_its_own
            .then(|| movable.remove(&token))
            .flatten()
            .map(|(_, mover)| (token, mover))
    }
}
