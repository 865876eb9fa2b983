//! A conversation that began over QUIC is moved to TLS over TCP, where that carries bulk faster.
//!
//! QUIC is what a conversation begins with, as it outlives what TCP does not: another address, a network that is gone for a
//! while. On a short clean path neither is likely, and there TCP takes less of the processor's time, which is what holds up
//! QUIC. So after the first MiB the client looks at what the path was like, and dials by TLS. A secret that both ends of the
//! QUIC connection have, and nobody else, says which conversation it means. From then on each end leaves QUIC when it says
//! something next, and says over QUIC at which byte. A stream that was left has no end, so an end over QUIC is always that of
//! the conversation; docs/PROTOCOL.md, section 15, has the bytes.
//!
//! The QUIC connection stays until the conversation ends: by it each end knows that what it said there was heard, and the
//! client learns why a server hangs up. It costs a datagram now and then. It follows a client to another address, too, where
//! TLS cannot: then the client hangs up by it, so that both ends know, and dials again.

use super::bridge::wait;
use super::limits::{LANE_AFTER_BYTES, LANE_LIMIT, LANE_LOST_ONE_IN, LANE_RTT_MAX};
use super::stall::{Name, Watch};
use super::{quic, tls};
use crate::transport::link::{Leave, Moved, Patience};
use crate::trust::Pin;
use crate::trust::tls::ALPN_LANES;
use crate::work::clock::Since;
use std::collections::HashMap;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// When a conversation is moved.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Not before so many bytes went to and fro.
    pub after_bytes: u64,
    /// Only where the way there and back takes no longer.
    pub rtt_max: Duration,
    /// And where no more than one datagram in so many was lost.
    pub lost_one_in: u64,
    /// If it takes longer to come to terms over TLS, QUIC stays.
    pub limit: Duration,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms { after_bytes: LANE_AFTER_BYTES, rtt_max: LANE_RTT_MAX, lost_one_in: LANE_LOST_ONE_IN, limit: LANE_LIMIT }
    }
}

/// Whether no more than one datagram in so many was lost of what this end sent.
fn is_clean(connection: &quinn::Connection, lost_one_in: u64) -> bool {
    let path = connection.stats().path;
    path.lost_packets.saturating_mul(lost_one_in) <= path.sent_packets
}

/// What both ends of a QUIC connection know and nobody else: by it a client names the conversation that it wants to move.
type Token = Name;
/// What the token is made for (RFC 8446, 7.5).
const TOKEN_LABEL: &[u8] = b"EXPORTER-sparsync-lane";
/// The server has the conversation, and the client takes the connection.
const YES: [u8; 1] = [1];

/// The name of a conversation that may be moved; `None`: the peer does not know how, or does not want to.
pub fn token(connection: &quinn::Connection) -> Option<Token> {
    let agreed = connection.handshake_data()?.downcast::<quinn::crypto::rustls::HandshakeData>().ok()?;
    let mut token = Token::default();
    let may = agreed.protocol.as_deref() == Some(ALPN_LANES);
    (may && connection.export_keying_material(&mut token, TOKEN_LABEL, b"").is_ok()).then_some(token)
}

/// How far a conversation that may be moved has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Said and heard over QUIC.
    bytes: AtomicU64,
    moved: Moved,
}

impl Progress {
    /// When it began to go on over TLS.
    pub fn moved(&self) -> &Moved {
        &self.moved
    }

    /// Where it goes on over TLS, how many bytes this end said and heard over QUIC.
    pub fn moved_after(&self) -> Option<u64> {
        self.moved.since().map(|_| self.bytes.load(Ordering::Relaxed))
    }
}

/// What the halves of a conversation, whoever moves it, and whoever hangs up share.
struct Shared {
    connection: quinn::Connection,
    progress: Arc<Progress>,
    after_bytes: u64,
    /// Told once there were so many.
    enough: Notify,
    lane: Mutex<Lane>,
}

enum Lane {
    None,
    Tls(tls::HangUp),
    /// Nobody wants one any more.
    Over,
}

impl Shared {
    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, bytes: usize) {
        let before = self.progress.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if before < self.after_bytes && before + bytes as u64 >= self.after_bytes {
            self.enough.notify_one();
        }
    }
}

/// The halves of a conversation that may be moved, and what moves it. Inside of an engine. `said`: how many of its bytes
/// this end has said already.
pub fn movable(halves: (quic::Reader, quic::Writer), terms: &Terms, said: usize) -> (Reader, Writer, Mover) {
    let (reader, writer) = halves;
    let (connection, patience) = (reader.connection().clone(), reader.patience().clone());
    let (tell_left, left) = oneshot::channel();
    tokio::spawn(hear_where_it_left(connection.clone(), tell_left));
    let shared = Arc::new(Shared {
        connection,
        progress: Arc::default(),
        after_bytes: terms.after_bytes,
        enough: Notify::new(),
        lane: Mutex::new(Lane::None),
    });
    shared.count(said);
    let ((to_reader, reads), (to_writer, writes)) = (oneshot::channel(), oneshot::channel());
    let reader = Reader {
        quic: reader,
        taken: 0,
        left: Some(left),
        end: None,
        lane: Some(reads),
        tls: None,
        shared: shared.clone(),
    };
    let writer = Writer { tls: None, quic: writer, given: said as u64, lane: Some(writes), shared: shared.clone() };
    (reader, writer, Mover { shared, patience, to_reader, to_writer })
}

async fn hear_where_it_left(connection: quinn::Connection, tell: oneshot::Sender<u64>) {
    let mut at = [0; 8];
    if let Ok(mut word) = connection.accept_uni().await
        && word.read_exact(&mut at).await.is_ok()
    {
        let _ = tell.send(u64::from_le_bytes(at));
    }
}

/// Moves a conversation, once.
pub struct Mover {
    shared: Arc<Shared>,
    patience: Patience,
    to_reader: oneshot::Sender<tls::Reader>,
    to_writer: oneshot::Sender<tls::Writer>,
}

impl Mover {
    /// A client's part: dials the same server by TLS once it is worth it. Whatever goes wrong, QUIC goes on. What is watched
    /// over then has the token for a name.
    pub async fn ask(self, tls: Arc<rustls::ClientConfig>, watch: Watch, terms: Terms) {
        let connection = self.shared.connection.clone();
        self.shared.enough.notified().await;
        // They were handed to QUIC; that they went is another thing.
        while stats_bytes(&connection) < terms.after_bytes {
            if tokio::time::timeout(LOOK, connection.closed()).await.is_ok() {
                return;
            }
        }
        if !is_clean(&connection, terms.lost_one_in) || connection.stats().path.min_rtt > terms.rtt_max {
            return;
        }
        let dial = async {
            let mut tunnel = tls::connect(watch.peer, tls).await.map_err(io::Error::from)?;
            tunnel.say(&watch.name).await?;
            match tunnel.hear().await? {
                YES => Ok(tunnel),
                _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
            }
        };
        // Up to here nothing has happened that counts; this word settles it for both.
        if let Ok(Ok(mut tunnel)) = tokio::time::timeout(terms.limit, dial).await
            && tunnel.say(&YES).await.is_ok()
            && let Some(lane) = self.attach(tunnel)
            && watch.breaks(&lane).await
        {
            // QUIC has followed, so the server hears this, and what it has is there for the next conversation.
            quic::close(&connection, quic::HangUp::Told, b"the client cannot be reached by TLS any more");
            lane.hang_up();
        }
    }

    /// A server's part. It sees what is lost on the way to the client, which the client does not. `take` is handed the
    /// connection by which it goes on.
    pub async fn answer(self, mut tunnel: tls::Tunnel, lost_one_in: u64, take: impl FnOnce(tls::Watched)) {
        let connection = &self.shared.connection;
        // One that was hung up has a name until that has gone round.
        if connection.close_reason().is_none()
            && is_clean(connection, lost_one_in)
            && tunnel.say(&YES).await.is_ok()
            && tunnel.hear().await.is_ok_and(|said| said == YES)
        {
            let connection = connection.clone();
            let Some(lane) = self.attach(tunnel) else { return };
            take(lane.clone());
            // Who lets clients in has so much time for each; this takes as long as the conversation.
            tokio::spawn(async move {
                let told = |close: &quinn::ApplicationClose| close.error_code.into_inner() == quic::HangUp::Told as u64;
                // A client hangs up where TCP cannot follow it, so by TCP nobody would know for long.
                if matches!(connection.closed().await, quinn::ConnectionError::ApplicationClosed(close) if told(&close))
                {
                    lane.hang_up();
                }
            });
        }
    }

    fn attach(self, tunnel: tls::Tunnel) -> Option<tls::Watched> {
        let Mover { shared, patience, to_reader, to_writer } = self;
        let mut lane = shared.lane();
        if let Lane::None = *lane
            && let Ok((reader, writer, hang_up)) = tls::halves(tunnel, patience, Arc::new(()))
        {
            let watched = hang_up.watched();
            *lane = Lane::Tls(hang_up);
            shared.progress.moved.now();
            drop(lane);
            // Where nobody is left to take them the conversation is over.
            let _ = to_reader.send(reader);
            let _ = to_writer.send(writer);
            return Some(watched);
        }
        None
    }
}

/// How often a client looks whether what it handed to QUIC has gone.
const LOOK: Duration = Duration::from_millis(5);

fn stats_bytes(connection: &quinn::Connection) -> u64 {
    let stats = connection.stats();
    stats.udp_tx.bytes + stats.udp_rx.bytes
}

/// What the peer says, by whichever lane.
pub struct Reader {
    quic: quic::Reader,
    /// How much of it is used up.
    taken: u64,
    /// Where the peer leaves QUIC, once it has said so.
    left: Option<oneshot::Receiver<u64>>,
    end: Option<u64>,
    lane: Option<oneshot::Receiver<tls::Reader>>,
    tls: Option<tls::Reader>,
    shared: Arc<Shared>,
}

impl Reader {
    /// Goes on until there is something over QUIC, or the end of the conversation, or it goes on over TLS.
    fn find(&mut self) -> io::Result<()> {
        while self.tls.is_none() {
            let there = self.quic.there().len() as u64;
            match self.end {
                Some(end) if self.taken + there > end => return Err(wrong("said more over QUIC than it announced")),
                _ if there > 0 => return Ok(()),
                Some(end) if self.taken == end => self.change()?,
                _ => match self.quic.refill(hear(&mut self.left))? {
                    Some(end) => self.end = Some(end),
                    None if !self.quic.there().is_empty() => {}
                    None if self.end.is_none() => return Ok(()),
                    None => return Err(wrong("said less over QUIC than it announced")),
                },
            }
        }
        Ok(())
    }

    fn change(&mut self) -> io::Result<()> {
        let patience = self.quic.patience();
        let gone = || io::Error::new(io::ErrorKind::ConnectionReset, "there is nothing to which it could be moved");
        let waits = Since::now();
        let lane = self.lane.take().ok_or_else(gone)?;
        // The peer has it already, and here it is about to come.
        let lane = wait(lane, || patience.check(waits.elapsed()))?.map_err(|_| gone())?;
        self.quic.leave();
        self.tls = Some(lane);
        Ok(())
    }
}

/// What was told, once.
async fn hear(told: &mut Option<oneshot::Receiver<u64>>) -> u64 {
    if let Some(waits) = told {
        let heard = waits.await;
        *told = None;
        if let Ok(at) = heard {
            return at;
        }
    }
    std::future::pending().await
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, format!("the peer {what}"))
}

/// Why a conversation over TLS is lost: TCP has no words for it, QUIC may have.
fn told_why(connection: &quinn::Connection, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::ConnectionReset {
        return error;
    }
    let waits = Since::now();
    let late = || if waits.elapsed() < WHY_COMES_WITHIN { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) };
    match wait(connection.closed(), late) {
        Ok(quinn::ConnectionError::ApplicationClosed(told)) if !told.reason.is_empty() => {
            quic::lost(quinn::ConnectionError::ApplicationClosed(told))
        }
        _ => error,
    }
}

/// So much later than the end over TCP the reason for it may come over QUIC.
const WHY_COMES_WITHIN: Duration = Duration::from_secs(1);

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.find()?;
        match &mut self.tls {
            Some(tls) => tls.fill_buf().map_err(|error| told_why(&self.shared.connection, error)),
            None => Ok(self.quic.there()),
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

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        loop {
            // More is only waited for where there is nothing yet.
            let piece = if got == 0 { self.fill_buf()? } else { self.quic.there() };
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

/// What the peer shall hear, by whichever lane.
pub struct Writer {
    // Dropped first: what was said last goes before the word that nothing more comes.
    tls: Option<tls::Writer>,
    quic: quic::Writer,
    /// How much was said over QUIC.
    given: u64,
    lane: Option<oneshot::Receiver<tls::Writer>>,
    shared: Arc<Shared>,
}

impl Writer {
    /// How far the conversation has come.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.shared.progress
    }

    /// Ends it from any thread.
    pub fn hang_up(&self) -> HangUp {
        HangUp(self.shared.clone())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(lane) = self.lane.as_mut().filter(|_| pieces.iter().any(|piece| !piece.is_empty())) {
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
            return tls.write_vectored(pieces).map_err(|error| told_why(&self.shared.connection, error));
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

/// Ends a conversation at once, by all of its lanes.
#[derive(Clone)]
pub struct HangUp(Arc<Shared>);

impl HangUp {
    /// Hangs up, and tells the peer why.
    pub fn now(&self, why: &str) {
        quic::close(&self.0.connection, quic::HangUp::Told, why.as_bytes());
        let mut lane = self.0.lane();
        match &*lane {
            Lane::Tls(tls) => tls.now(),
            Lane::None | Lane::Over => *lane = Lane::Over,
        }
    }

    /// What hangs up in peace, by all lanes.
    pub fn leave(&self, engine: tokio::runtime::Handle) -> Leave {
        let shared = Arc::downgrade(&self.0);
        Box::new(move || {
            let Some(shared) = shared.upgrade() else { return };
            if let Lane::Tls(tls) = &*shared.lane() {
                tls.leave()();
            }
            drop(engine.spawn(quic::leave(shared.connection.clone())));
        })
    }

    /// How far it has come.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.0.progress
    }

    /// Whether the peer has left, or says nothing more over TLS.
    pub fn is_over(&self) -> bool {
        self.0.connection.close_reason().is_some() || matches!(&*self.0.lane(), Lane::Tls(tls) if tls.is_over())
    }
}

/// The conversations of a server that may be moved, by their names.
#[derive(Default)]
pub struct Movable(Mutex<HashMap<Token, (Pin, Mover)>>);

impl Movable {
    fn lock(&self) -> MutexGuard<'_, HashMap<Token, (Pin, Mover)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Another one, of whoever has this key. It can be found once, and until it ends.
    pub fn put(self: &Arc<Movable>, token: Token, pin: Pin, mover: Mover) {
        let (all, connection) = (self.clone(), mover.shared.connection.clone());
        self.lock().insert(token, (pin, mover));
        tokio::spawn(async move {
            connection.closed().await;
            all.lock().remove(&token);
        });
    }

    /// The one that a client with this key names by its first words.
    pub async fn find(&self, tunnel: &mut tls::Tunnel, pin: Pin) -> Option<(Token, Mover)> {
        let token: Token = tunnel.hear().await.ok()?;
        let mut movable = self.lock();
        let is_its_own = movable.get(&token).is_some_and(|(whose, _)| *whose == pin);
        is_its_own.then(|| movable.remove(&token)).flatten().map(|(_, mover)| (token, mover))
    }
}
