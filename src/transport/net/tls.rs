//! TLS over TCP: the handshake, and the two halves of a connection as a reader and a writer.
//!
//! The rustls state is behind a mutex that is never held while a thread waits for the network, so one thread can read
//! while another writes. A reader that owes the peer an answer leaves it to the next write; RFC 8446 requires it before
//! that write, not earlier.

use super::limits::{self, PIECE_MAX_BYTES};
use super::trouble::{OTHER_VERSIONS, Rejection, Trouble, is_about_keys, is_about_versions};
use crate::fs::sys::{self, TcpStanding};
use crate::transport::link::{FAREWELL, LOOK_MS, Leave, Parting, Patience};
use crate::work::clock::Since;
use parking_lot::Mutex;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, CommonState};
use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How many bytes are read from a socket at once.
const READ_BYTES: usize = 128 << 10;
/// The overhead of records for one piece, plus room for a pending answer.
const RECORDS_ADD_BYTES: usize = 4 << 10;

/// The TLS state of one side, client or server.
pub enum TlsSide {
    /// The client.
    Client(Box<UnbufferedClientConnection>),
    /// The server.
    Server(Box<UnbufferedServerConnection>),
}

/// What a step does when nothing else is pending.
#[derive(Clone, Copy)]
enum Want<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    Close,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordStep {
    /// There may be more to do.
    Again,
    /// The peer must send more.
    Hungry,
    /// Nothing is pending, and the request is done.
    Done,
    /// The peer has closed the stream.
    Closed,
}

impl TlsSide {
    /// Creates the client side, for a server whose key `tls` expects.
    pub fn client(tls: Arc<rustls::ClientConfig>) -> Result<TlsSide, rustls::Error> {
        let name = ServerName::try_from(super::quic::NO_NAME)
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        UnbufferedClientConnection::new(tls, name).map(|side| TlsSide::Client(Box::new(side)))
    }

    /// Creates the server side.
    pub fn server(tls: Arc<rustls::ServerConfig>) -> Result<TlsSide, rustls::Error> {
        UnbufferedServerConnection::new(tls).map(|side| TlsSide::Server(Box::new(side)))
    }

    fn common(&self) -> &CommonState {
        match self {
            TlsSide::Client(side) => side,
            TlsSide::Server(side) => side,
        }
    }

    /// Returns the certificate of the peer.
    pub fn peer_cert(&self) -> Option<Vec<u8>> {
        self.common()
            .peer_certificates()
            .and_then(|chain| chain.first())
            .map(|cert| cert.to_vec())
    }

    fn step(
        &mut self,
        want: Want<'_>,
        buffers: &mut Buffers,
        used: &mut usize,
    ) -> Result<RecordStep, rustls::Error> {
        let Buffers {
            incoming,
            outgoing,
            plain,
        } = buffers;
        let rest = &mut incoming[*used..];
        let (discard, step) = match self {
            TlsSide::Client(side) => settle(side.process_tls_records(rest), want, outgoing, plain),
            TlsSide::Server(side) => settle(side.process_tls_records(rest), want, outgoing, plain),
        };
        *used += discard;
        step
    }

    /// Runs steps until the peer must send more, or the request is done.
    fn run(&mut self, want: Want<'_>, buffers: &mut Buffers) -> Result<RecordStep, rustls::Error> {
        let mut used = 0;
        let mut ended = Ok(RecordStep::Again);
        while let Ok(RecordStep::Again) = ended {
            ended = self.step(want, buffers, &mut used);
        }
        if ended.is_err() {
            // Queue the alert for the peer. The input must be neither processed again nor removed: rustls objects to
            // both.
            while self.common().wants_write()
                && self.step(Want::Nothing, buffers, &mut used).is_ok()
            {}
            return ended;
        }
        buffers.incoming.drain(..used);
        ended
    }
}

/// Received bytes that were not processed yet, bytes to send, and decrypted bytes.
#[derive(Default)]
struct Buffers {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    plain: Vec<u8>,
}

/// Processes one state of rustls. Also returns how many received bytes were consumed.
fn settle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    want: Want<'_>,
    outgoing: &mut Vec<u8>,
    plain: &mut Vec<u8>,
) -> (usize, Result<RecordStep, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let general = |what: &dyn std::fmt::Display| rustls::Error::General(what.to_string());
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                None => break Ok(RecordStep::Again),
                Some(Err(error)) => break Err(error),
                Some(Ok(record)) => {
                    plain.extend_from_slice(record.payload);
                    discard += record.discard;
                }
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let begin = outgoing.len();
            loop {
                match data.encode(&mut outgoing[begin..]) {
                    Ok(count) => {
                        outgoing.truncate(begin + count);
                        break Ok(RecordStep::Again);
                    }
                    Err(EncodeError::InsufficientSize(size)) => {
                        outgoing.resize(begin + size.required_size, 0)
                    }
                    Err(error) => break Err(general(&error)),
                }
            }
        }
        // The data is in `outgoing`, before anything that is encrypted later.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(RecordStep::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(RecordStep::Hungry),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let begin = outgoing.len();
            let len = match want {
                Want::Encrypt(bytes) => bytes.len(),
                Want::Nothing | Want::Close => 0,
            };
            outgoing.resize(begin + len + RECORDS_ADD_BYTES, 0);
            let encrypted = match want {
                Want::Nothing => Ok(0),
                Want::Encrypt(bytes) => traffic.encrypt(bytes, &mut outgoing[begin..]),
                Want::Close => traffic.queue_close_notify(&mut outgoing[begin..]),
            };
            outgoing.truncate(begin + encrypted.as_ref().map_or(0, |count| *count));
            encrypted
                .map(|_| RecordStep::Done)
                .map_err(|error| general(&error))
        }
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(RecordStep::Closed),
        Ok(_) => Err(general(&"unexpected early data")),
    };
    (discard, step)
}

/// A connection whose handshake is complete.
pub struct Tunnel {
    side: TlsSide,
    buffers: Buffers,
    socket: tokio::net::TcpStream,
    /// The peer has closed its stream. What it sent before may still be in `buffers`.
    is_over: bool,
}

impl Tunnel {
    /// Continues until `is_enough` returns `true`.
    async fn go_on(&mut self, is_enough: impl Fn(&Tunnel) -> bool) -> Result<(), TlsFault> {
        let mut piece = vec![0; HANDSHAKE_READ_BYTES];
        loop {
            let stepped = self.side.run(Want::Nothing, &mut self.buffers);
            let sent = send(&self.socket, &mut self.buffers.outgoing).await;
            let step = stepped.map_err(|error| match error {
                // From a peer that has not shown its key, the alert means nothing.
                rustls::Error::AlertReceived(alert)
                    if is_about_keys(alert.into()) && self.side.peer_cert().is_some() =>
                {
                    TlsFault::TurnedAway
                }
                error => TlsFault::Tls(error),
            })?;
            sent.map_err(TlsFault::Io)?;
            self.is_over |= step == RecordStep::Closed;
            if is_enough(self) {
                return Ok(());
            }
            if self.is_over {
                return Err(TlsFault::Tls(rustls::Error::AlertReceived(
                    AlertDescription::CloseNotify,
                )));
            }
            if self.buffers.incoming.len() > HANDSHAKE_MAX_BYTES {
                return Err(TlsFault::Io(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "handshake too long",
                )));
            }
            let count = receive(&self.socket, &mut piece)
                .await
                .map_err(TlsFault::Io)?;
            if count == 0 {
                return Err(TlsFault::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            self.buffers.incoming.extend_from_slice(&piece[..count]);
        }
    }

    /// Returns what was received and not read yet.
    pub fn received(&self) -> &[u8] {
        &self.buffers.plain
    }

    /// Sends the first bytes of a session and waits for the server's.
    pub async fn begin(&mut self, words: &[u8]) -> Result<(), Trouble> {
        let sent = self.send_short(words).await;
        // A server that rejects this client may have closed before it received them, and sent a reason.
        match self.go_on(|tunnel| !tunnel.buffers.plain.is_empty()).await {
            Err(TlsFault::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(
                Trouble::Broken("closed by the server before the session began".into()),
            ),
            Err(TlsFault::Io(error)) => {
                Err(Trouble::Broken(sent.err().unwrap_or(error).to_string()))
            }
            Ok(()) => match self
                .buffers
                .plain
                .first()
                .and_then(|first| Rejection::of_number((*first).into()))
            {
                Some(why) => Err(Trouble::Busy(why)),
                None => Ok(()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a client that has begun a session why the server has no room for it, in place of a greeting, and closes.
    pub async fn turn_away(mut self, why: Rejection) {
        // A client that does not receive it only learns that the connection was closed.
        let _ = self.send_short(&[why as u8]).await;
        self.part().await;
    }

    /// Closes after an alert for the peer was sent. Unread data is consumed first: otherwise the socket would discard
    /// the alert.
    async fn part(self) {
        let unread = async {
            let socket = self.socket.into_std()?;
            socket.shutdown(Shutdown::Write)?;
            let socket = tokio::net::TcpStream::from_std(socket)?;
            let mut piece = vec![0; HANDSHAKE_READ_BYTES];
            let mut left_bytes = UNREAD_MAX_BYTES;
            while left_bytes > 0 {
                match receive(&socket, &mut piece).await? {
                    0 => break,
                    count => left_bytes = left_bytes.saturating_sub(count),
                }
            }
            Ok::<(), io::Error>(())
        };
        // On any outcome the connection is dropped next.
        let _ = tokio::time::timeout(FAREWELL, unread).await;
    }

    /// Returns the certificate of the peer.
    pub fn peer_cert(&self) -> Option<Vec<u8>> {
        self.side.peer_cert()
    }

    /// Returns the agreed protocol (ALPN).
    pub fn carries(&self) -> Option<&[u8]> {
        self.side.common().alpn_protocol()
    }

    /// Sends a short message.
    pub async fn send_short(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.side
            .run(Want::Encrypt(bytes), &mut self.buffers)
            .map_err(io::Error::other)?;
        send(&self.socket, &mut self.buffers.outgoing).await
    }

    /// Receives `COUNT` bytes. Bytes after them are kept for the reader.
    pub async fn receive_exact<const COUNT: usize>(&mut self) -> io::Result<[u8; COUNT]> {
        let mut piece = [0; HANDSHAKE_READ_BYTES];
        loop {
            let stepped = self.side.run(Want::Nothing, &mut self.buffers);
            send(&self.socket, &mut self.buffers.outgoing).await?;
            self.is_over |= stepped.map_err(io::Error::other)? == RecordStep::Closed;
            if let Some(bytes) = self.buffers.plain.first_chunk() {
                let bytes = *bytes;
                self.buffers.plain.drain(..COUNT);
                return Ok(bytes);
            }
            let count = if self.is_over {
                0
            } else {
                receive(&self.socket, &mut piece).await?
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffers.incoming.extend_from_slice(&piece[..count]);
        }
    }
}

/// Connects to a server. Whether it accepts this client is not known yet.
pub async fn connect(peer: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Result<Tunnel, Trouble> {
    let side = TlsSide::client(tls).map_err(|error| Trouble::Broken(error.to_string()))?;
    let socket = tokio::net::TcpStream::connect(peer)
        .await
        .map_err(|error| Trouble::unreached(&error))?;
    // If nothing listens at a local port, the system may choose that port for us, and TCP connects to itself.
    if socket.local_addr().is_ok_and(|own| own == peer) {
        return Err(Trouble::Refused);
    }
    prepare(&socket);
    let mut tunnel = Tunnel {
        side,
        buffers: Buffers::default(),
        socket,
        is_over: false,
    };
    tunnel
        .go_on(|tunnel| !tunnel.side.common().is_handshaking())
        .await?;
    Ok(tunnel)
}

/// Completes a client's handshake; `None` if the client was rejected or does not speak TLS.
pub async fn welcome(
    socket: tokio::net::TcpStream,
    tls: Arc<rustls::ServerConfig>,
) -> Option<Tunnel> {
    prepare(&socket);
    let mut tunnel = Tunnel {
        side: TlsSide::server(tls).ok()?,
        buffers: Buffers::default(),
        socket,
        is_over: false,
    };
    match tunnel
        .go_on(|tunnel| !tunnel.side.common().is_handshaking())
        .await
    {
        Ok(()) => Some(tunnel),
        Err(_) => {
            tunnel.part().await;
            None
        }
    }
}

fn prepare(socket: &tokio::net::TcpStream) {
    // Without it, small messages are only slower.
    let _ = socket.set_nodelay(true);
    sys::watch_connection(socket.as_fd(), limits::KEEP_ALIVE, limits::IDLE);
}

/// Why a handshake failed.
enum TlsFault {
    Tls(rustls::Error),
    /// A peer that has shown its key rejects ours.
    TurnedAway,
    Io(io::Error),
}

impl From<TlsFault> for Trouble {
    fn from(fault: TlsFault) -> Trouble {
        match fault {
            TlsFault::Tls(rustls::Error::InvalidCertificate(why)) => {
                Trouble::WrongKey(rustls::Error::InvalidCertificate(why).to_string())
            }
            TlsFault::TurnedAway => Trouble::NotAdmitted,
            TlsFault::Tls(rustls::Error::AlertReceived(alert))
                if is_about_versions(alert.into()) =>
            {
                Trouble::Broken(OTHER_VERSIONS.into())
            }
            TlsFault::Tls(error) => Trouble::Broken(error.to_string()),
            TlsFault::Io(error) => Trouble::Broken(error.to_string()),
        }
    }
}

/// How many bytes of a handshake are read at once.
const HANDSHAKE_READ_BYTES: usize = 4 << 10;
/// The maximum of unprocessed handshake bytes: rustls accepts messages of 64 KiB.
const HANDSHAKE_MAX_BYTES: usize = 80 << 10;
/// The maximum read from a rejected peer: a handshake and the first bytes of a session.
const UNREAD_MAX_BYTES: usize = HANDSHAKE_MAX_BYTES + limits::FIRST_WORDS_MAX_BYTES;

async fn send(socket: &tokio::net::TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        socket.writable().await?;
        match socket.try_write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    bytes.clear();
    Ok(())
}

async fn receive(socket: &tokio::net::TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        socket.readable().await?;
        match socket.try_read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

/// The state shared by both halves.
struct TunnelShared {
    state: Mutex<TunnelState>,
    socket: TcpStream,
    hung_up: AtomicBool,
}

/// A value that lives as long as the halves of a connection. It is not part of [`TunnelShared`], which tasks of the same
/// engine may hold for a moment.
type UntilEnd = Arc<dyn Send + Sync>;

struct TunnelState {
    side: TlsSide,
    incoming: Vec<u8>,
    /// Bytes that the reader left for the next write.
    due: Vec<u8>,
    /// The received data was invalid: rustls must not be called again.
    is_broken: bool,
}

impl TunnelState {
    fn check(&self) -> io::Result<()> {
        if self.is_broken {
            Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "invalid TLS data",
            ))
        } else {
            Ok(())
        }
    }
}

impl TunnelShared {
    fn lost(&self, error: &io::Error) -> io::Error {
        let why = if self.hung_up.load(Ordering::Relaxed) {
            "closed by this side".into()
        } else {
            error.to_string()
        };
        io::Error::new(io::ErrorKind::ConnectionReset, why)
    }
}

/// Ends a connection at once, from any thread.
#[derive(Clone)]
pub struct TlsHangUp(Arc<TunnelShared>);

impl TlsHangUp {
    /// Closes the connection.
    pub fn now(&self) {
        self.0.hung_up.store(true, Ordering::Relaxed);
        // Fails only if the connection is closed already.
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }

    /// Returns a closure that closes the connection. Data written before is still sent.
    pub fn leave(&self) -> Leave {
        let watched = self.watched();
        Box::new(move || watched.hang_up())
    }

    /// Returns a handle that does not keep the connection open.
    pub fn watched(&self) -> Watched {
        Watched(Arc::downgrade(&self.0))
    }

    /// Returns whether the peer has closed its stream, even if some of its data was not read yet.
    pub fn is_over(&self) -> bool {
        sys::has_hung_up(self.0.socket.as_fd())
    }
}

/// A connection that may have ended.
#[derive(Clone)]
pub struct Watched(Weak<TunnelShared>);

impl Watched {
    /// Returns its own address and the peer's; `None` if it has ended.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let shared = self.0.upgrade()?;
        Some((
            shared.socket.local_addr().ok()?,
            shared.socket.peer_addr().ok()?,
        ))
    }

    /// Returns its TCP state; `None` if it has ended or was closed.
    pub fn standing(
        &self,
        of: fn(BorrowedFd<'_>) -> io::Result<TcpStanding>,
    ) -> Option<TcpStanding> {
        let shared = self
            .0
            .upgrade()
            .filter(|shared| !shared.hung_up.load(Ordering::Relaxed))?;
        // A system that does not report the state gives the default, which raises no doubts.
        Some(of(shared.socket.as_fd()).unwrap_or_default())
    }

    /// Returns whether the connection still exists.
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Closes the connection if it still exists.
    pub fn hang_up(&self) {
        if let Some(shared) = self.0.upgrade() {
            TlsHangUp(shared).now();
        }
    }
}

/// Returns the two halves of a connection. `until_end` is dropped with the last of them.
pub fn halves(
    tunnel: Tunnel,
    patience: Patience,
    until_end: UntilEnd,
) -> io::Result<(TlsReader, TlsWriter, TlsHangUp)> {
    let Tunnel {
        side,
        buffers,
        socket,
        is_over,
    } = tunnel;
    let socket = socket.into_std()?;
    socket.set_nonblocking(false)?;
    // A waiting thread checks this often whether it should still wait.
    let look = Some(Duration::from_millis(LOOK_MS.into()));
    socket.set_read_timeout(look)?;
    socket.set_write_timeout(look)?;
    let parting = patience.parting.clone();
    let state = Mutex::new(TunnelState {
        side,
        incoming: buffers.incoming,
        due: buffers.outgoing,
        is_broken: false,
    });
    let shared = Arc::new(TunnelShared {
        state,
        socket,
        hung_up: AtomicBool::new(false),
    });
    let reader = TlsReader {
        shared: shared.clone(),
        raw: vec![0; READ_BYTES],
        plain: buffers.plain,
        at: 0,
        is_over,
        patience,
        _until_end: until_end.clone(),
    };
    let writer = TlsWriter {
        shared: shared.clone(),
        outgoing: Vec::new(),
        parting,
        _until_end: until_end,
    };
    Ok((reader, writer, TlsHangUp(shared)))
}

/// The stream from the peer. TCP cannot signal that the reader is gone: the peer learns it when the writer is dropped
/// too.
pub struct TlsReader {
    shared: Arc<TunnelShared>,
    raw: Vec<u8>,
    /// Decrypted bytes; those before `at` are used up.
    plain: Vec<u8>,
    at: usize,
    /// The peer has closed its stream.
    is_over: bool,
    patience: Patience,
    /// Dropped with the last of the halves.
    _until_end: UntilEnd,
}

impl TlsReader {
    /// Decrypts what has arrived, and waits for more while that is nothing.
    fn refill(&mut self) -> io::Result<()> {
        self.plain.clear();
        self.at = 0;
        let mut waits = None;
        let mut count = 0;
        loop {
            self.decrypt(count)?;
            if !self.plain.is_empty() || self.is_over {
                return Ok(());
            }
            self.patience
                .check(waits.get_or_insert_with(Since::now).elapsed())?;
            count = match (&self.shared.socket).read(&mut self.raw) {
                Ok(0) => return Err(self.shared.lost(&io::Error::other("the peer is gone"))),
                Ok(count) => count,
                Err(error) if is_pause(&error) => 0,
                Err(error) => return Err(self.shared.lost(&error)),
            };
        }
    }

    fn decrypt(&mut self, count: usize) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.check()?;
        let TunnelState {
            side,
            incoming,
            due,
            is_broken,
        } = &mut *state;
        incoming.extend_from_slice(&self.raw[..count]);
        let mut buffers = Buffers {
            incoming: std::mem::take(incoming),
            outgoing: std::mem::take(due),
            plain: std::mem::take(&mut self.plain),
        };
        let step = side.run(Want::Nothing, &mut buffers);
        *is_broken = step.is_err();
        (*incoming, *due, self.plain) = (buffers.incoming, buffers.outgoing, buffers.plain);
        drop(state);
        match step {
            Ok(step) => {
                self.is_over |= step == RecordStep::Closed;
                Ok(())
            }
            // Return what was decrypted before; the error is reported by the next call.
            Err(_) if !self.plain.is_empty() => Ok(()),
            Err(error) => Err(self.shared.lost(&io::Error::other(error.to_string()))),
        }
    }
}

/// Returns whether an error only interrupted a wait.
fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

impl BufRead for TlsReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.plain.len() && !self.is_over {
            self.refill()?;
        }
        Ok(&self.plain[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for TlsReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let buffered = self.fill_buf()?;
        let count = buffered.len().min(into.len());
        into[..count].copy_from_slice(&buffered[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// The stream to the peer.
pub struct TlsWriter {
    shared: Arc<TunnelShared>,
    outgoing: Vec<u8>,
    parting: Parting,
    /// Dropped with the last of the halves.
    _until_end: UntilEnd,
}

impl TlsWriter {
    /// Encrypts, and sends everything pending while `may_wait` returns `true`.
    fn send(&mut self, want: Want<'_>, may_wait: impl Fn() -> bool) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.check()?;
        let TunnelState {
            side,
            incoming,
            due,
            is_broken,
        } = &mut *state;
        // Pending answers go first.
        self.outgoing.clear();
        self.outgoing.append(due);
        let mut buffers = Buffers {
            incoming: std::mem::take(incoming),
            outgoing: std::mem::take(&mut self.outgoing),
            plain: Vec::new(),
        };
        let step = side.run(want, &mut buffers);
        *is_broken = step.is_err();
        debug_assert!(
            buffers.plain.is_empty(),
            "the reader decrypts everything that has arrived before it unlocks the state"
        );
        (*incoming, self.outgoing) = (buffers.incoming, buffers.outgoing);
        drop(state);
        step.map_err(|error| self.shared.lost(&io::Error::other(error.to_string())))?;
        let mut sent = 0;
        while sent < self.outgoing.len() {
            match (&self.shared.socket).write(&self.outgoing[sent..]) {
                Ok(count) => sent += count,
                Err(error) if is_pause(&error) => {
                    if !may_wait() {
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(error),
                Err(error) => return Err(self.shared.lost(&error)),
            }
        }
        Ok(())
    }
}

impl Write for TlsWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE_MAX_BYTES);
        if count > 0 {
            let parting = self.parting.clone();
            self.send(Want::Encrypt(&bytes[..count]), || !parting.is_over())?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TlsWriter {
    fn drop(&mut self) {
        let waits = Since::now();
        // A peer that is gone needs no end of the stream. One that is there sees whether it has arrived.
        let _ = self.send(Want::Close, || waits.elapsed() < FAREWELL);
        let _ = self.shared.socket.shutdown(Shutdown::Write);
    }
}
