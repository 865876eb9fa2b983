//! TLS over TCP: the handshake, and the two halves of a connection as a reader and a writer.
//!
//! What rustls holds is asked for under a lock that nobody keeps while he waits for the network, so one thread can read
//! while another writes. A reader that owes the peer an answer leaves it to the next write; RFC 8446 wants it before that
//! and not earlier.

use super::limits::{self, PIECE_MAX_BYTES};
use super::{OTHER_VERSIONS, Trouble, is_about_keys, is_about_versions};
use crate::fs::sys::{self, TcpStanding};
use crate::transport::link::{FAREWELL, LOOK_MS, Leave, Parting, Patience};
use crate::work::clock::Since;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, CommonState};
use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How much is read off a socket at once.
const READ_BYTES: usize = 128 << 10;
/// What records add to a piece, and room for an answer that is due.
const RECORDS_ADD_BYTES: usize = 4 << 10;

/// One end of TLS, either.
pub enum Side {
    /// The client.
    Client(Box<UnbufferedClientConnection>),
    /// The server.
    Server(Box<UnbufferedServerConnection>),
}

/// What a step shall do once nothing else is due.
#[derive(Clone, Copy)]
enum Want<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    Close,
}

/// Where a step led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// There may be more to do.
    Again,
    /// The peer has to say more.
    Hungry,
    /// Nothing was left to do, and what was wanted is done.
    Done,
    /// The peer says nothing more.
    Closed,
}

impl Side {
    /// The client's, for a server whose key `tls` knows.
    pub fn client(tls: Arc<rustls::ClientConfig>) -> Result<Side, rustls::Error> {
        let name =
            ServerName::try_from(super::quic::NO_NAME).map_err(|error| rustls::Error::General(error.to_string()))?;
        UnbufferedClientConnection::new(tls, name).map(|side| Side::Client(Box::new(side)))
    }

    /// The server's.
    pub fn server(tls: Arc<rustls::ServerConfig>) -> Result<Side, rustls::Error> {
        UnbufferedServerConnection::new(tls).map(|side| Side::Server(Box::new(side)))
    }

    fn common(&self) -> &CommonState {
        match self {
            Side::Client(side) => side,
            Side::Server(side) => side,
        }
    }

    /// The certificate that the peer showed.
    pub fn peer_cert(&self) -> Option<Vec<u8>> {
        self.common().peer_certificates().and_then(|chain| chain.first()).map(|cert| cert.to_vec())
    }

    fn step(&mut self, want: Want<'_>, buffers: &mut Buffers, used: &mut usize) -> Result<Step, rustls::Error> {
        let Buffers { incoming, outgoing, plain } = buffers;
        let rest = &mut incoming[*used..];
        let (discard, step) = match self {
            Side::Client(side) => settle(side.process_tls_records(rest), want, outgoing, plain),
            Side::Server(side) => settle(side.process_tls_records(rest), want, outgoing, plain),
        };
        *used += discard;
        step
    }

    /// Goes on until the peer has to say more, or what is wanted is done.
    fn run(&mut self, want: Want<'_>, buffers: &mut Buffers) -> Result<Step, rustls::Error> {
        let mut used = 0;
        let mut ended = Ok(Step::Again);
        while let Ok(Step::Again) = ended {
            ended = self.step(want, buffers, &mut used);
        }
        if ended.is_err() {
            // What the peer shall be told of it. Nothing of what came may be looked at again, nor may it be taken away:
            // rustls complains of either.
            while self.common().wants_write() && self.step(Want::Nothing, buffers, &mut used).is_ok() {}
            return ended;
        }
        buffers.incoming.drain(..used);
        ended
    }
}

/// What came and is not understood yet, what is to be sent, and what the peer said.
#[derive(Default)]
struct Buffers {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    plain: Vec<u8>,
}

/// Takes one state of rustls further. Also how many bytes of what came are used up.
fn settle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    want: Want<'_>,
    outgoing: &mut Vec<u8>,
    plain: &mut Vec<u8>,
) -> (usize, Result<Step, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let general = |what: &dyn std::fmt::Display| rustls::Error::General(what.to_string());
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                None => break Ok(Step::Again),
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
                        break Ok(Step::Again);
                    }
                    Err(EncodeError::InsufficientSize(size)) => outgoing.resize(begin + size.required_size, 0),
                    Err(error) => break Err(general(&error)),
                }
            }
        }
        // It lies in `outgoing`, and goes before anything that is encrypted later.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Hungry),
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
            encrypted.map(|_| Step::Done).map_err(|error| general(&error))
        }
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Closed),
        Ok(_) => Err(general(&"early data, which nobody may send")),
    };
    (discard, step)
}

/// A connection whose handshake has ended.
pub struct Tunnel {
    side: Side,
    buffers: Buffers,
    socket: tokio::net::TcpStream,
}

impl Tunnel {
    /// Goes on until it `is_enough`.
    async fn go_on(&mut self, is_enough: impl Fn(&Tunnel) -> bool) -> Result<(), Fault> {
        let mut piece = vec![0; HANDSHAKE_READ_BYTES];
        loop {
            let stepped = self.side.run(Want::Nothing, &mut self.buffers);
            let sent = send(&self.socket, &mut self.buffers.outgoing).await;
            let step = stepped.map_err(|error| match error {
                // Of somebody who has not shown his key it means nothing.
                rustls::Error::AlertReceived(alert)
                    if is_about_keys(alert.into()) && self.side.peer_cert().is_some() =>
                {
                    Fault::TurnedAway
                }
                error => Fault::Tls(error),
            })?;
            sent.map_err(Fault::Io)?;
            if step == Step::Closed {
                return Err(Fault::Tls(rustls::Error::AlertReceived(AlertDescription::CloseNotify)));
            }
            if is_enough(self) {
                return Ok(());
            }
            if self.buffers.incoming.len() > HANDSHAKE_MAX_BYTES {
                return Err(Fault::Io(io::Error::new(io::ErrorKind::InvalidData, "the handshake is too long")));
            }
            let count = receive(&self.socket, &mut piece).await.map_err(Fault::Io)?;
            if count == 0 {
                return Err(Fault::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            self.buffers.incoming.extend_from_slice(&piece[..count]);
        }
    }

    /// Says the first words of a conversation, and waits for the server's.
    pub async fn begin(&mut self, words: &[u8]) -> Result<(), Trouble> {
        let said = self.say(words).await;
        // A server that does not take this client may have hung up before it heard them, and said why.
        match self.go_on(|tunnel| !tunnel.buffers.plain.is_empty()).await {
            Err(Fault::Io(error)) => Err(Trouble::Broken(said.err().unwrap_or(error).to_string())),
            heard => heard.map_err(Trouble::from),
        }
    }

    /// Takes leave of a peer that was told why: closed while something is unread, a socket throws away what it has to say.
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
        let _ = tokio::time::timeout(FAREWELL, unread).await;
    }

    /// The certificate that the peer showed.
    pub fn peer_cert(&self) -> Option<Vec<u8>> {
        self.side.peer_cert()
    }

    /// What it carries (ALPN).
    pub fn carries(&self) -> Option<&[u8]> {
        self.side.common().alpn_protocol()
    }

    /// Says something short.
    pub async fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.side.run(Want::Encrypt(bytes), &mut self.buffers).map_err(io::Error::other)?;
        send(&self.socket, &mut self.buffers.outgoing).await
    }

    /// Hears so many bytes; what comes behind them is kept for the reader.
    pub async fn hear<const COUNT: usize>(&mut self) -> io::Result<[u8; COUNT]> {
        let mut piece = [0; HANDSHAKE_READ_BYTES];
        loop {
            let stepped = self.side.run(Want::Nothing, &mut self.buffers);
            send(&self.socket, &mut self.buffers.outgoing).await?;
            let step = stepped.map_err(io::Error::other)?;
            if let Some(said) = self.buffers.plain.first_chunk() {
                let said = *said;
                self.buffers.plain.drain(..COUNT);
                return Ok(said);
            }
            let count = if step == Step::Closed { 0 } else { receive(&self.socket, &mut piece).await? };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffers.incoming.extend_from_slice(&piece[..count]);
        }
    }
}

/// Connects to a server. Whether it takes this client is not known yet.
pub async fn connect(peer: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Result<Tunnel, Trouble> {
    let side = Side::client(tls).map_err(|error| Trouble::Broken(error.to_string()))?;
    let socket = tokio::net::TcpStream::connect(peer).await.map_err(|error| Trouble::Unreachable(error.to_string()))?;
    prepare(&socket);
    let mut tunnel = Tunnel { side, buffers: Buffers::default(), socket };
    tunnel.go_on(|tunnel| !tunnel.side.common().is_handshaking()).await?;
    Ok(tunnel)
}

/// Ends a client's handshake; `None`: it was not let in, or did not speak TLS.
pub async fn welcome(socket: tokio::net::TcpStream, tls: Arc<rustls::ServerConfig>) -> Option<Tunnel> {
    prepare(&socket);
    let mut tunnel = Tunnel { side: Side::server(tls).ok()?, buffers: Buffers::default(), socket };
    match tunnel.go_on(|tunnel| !tunnel.side.common().is_handshaking()).await {
        Ok(()) => Some(tunnel),
        Err(_) => {
            tunnel.part().await;
            None
        }
    }
}

fn prepare(socket: &tokio::net::TcpStream) {
    let _ = socket.set_nodelay(true);
    sys::watch_connection(socket.as_fd(), limits::KEEP_ALIVE, limits::IDLE);
}

/// Why a handshake failed.
enum Fault {
    Tls(rustls::Error),
    /// A peer that has shown its key does not like ours.
    TurnedAway,
    Io(io::Error),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Trouble {
        match fault {
            Fault::Tls(rustls::Error::InvalidCertificate(why)) => {
                Trouble::WrongKey(rustls::Error::InvalidCertificate(why).to_string())
            }
            Fault::TurnedAway => Trouble::NotAdmitted,
            Fault::Tls(rustls::Error::AlertReceived(alert)) if is_about_versions(alert.into()) => {
                Trouble::Broken(OTHER_VERSIONS.into())
            }
            Fault::Tls(error) => Trouble::Broken(error.to_string()),
            Fault::Io(error) => Trouble::Broken(error.to_string()),
        }
    }
}

/// How much of a handshake is read at once.
const HANDSHAKE_READ_BYTES: usize = 4 << 10;
/// The most of a handshake that may wait to be understood: rustls takes messages of 64 KiB.
const HANDSHAKE_MAX_BYTES: usize = 80 << 10;
/// So much is read of what somebody says who was turned away: a handshake, and first words.
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

/// What the halves share.
struct Shared {
    state: Mutex<State>,
    socket: TcpStream,
    hung_up: AtomicBool,
}

/// Something that lasts as long as the halves of a connection. It is not the connection's, which may be looked at by what it
/// drives.
type UntilEnd = Arc<dyn Send + Sync>;

struct State {
    side: Side,
    incoming: Vec<u8>,
    /// What the reader left for the next write.
    due: Vec<u8>,
    /// Something was wrong with what came: rustls is asked nothing more.
    is_broken: bool,
}

impl State {
    fn check(&self) -> io::Result<()> {
        match self.is_broken {
            true => Err(io::Error::new(io::ErrorKind::ConnectionReset, "what came was not TLS")),
            false => Ok(()),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self, error: &io::Error) -> io::Error {
        let why = if self.hung_up.load(Ordering::Relaxed) { "hung up".into() } else { error.to_string() };
        io::Error::new(io::ErrorKind::ConnectionReset, why)
    }
}

/// Ends a connection at once, whoever reads or writes.
#[derive(Clone)]
pub struct HangUp(Arc<Shared>);

impl HangUp {
    /// Hangs up.
    pub fn now(&self) {
        self.0.hung_up.store(true, Ordering::Relaxed);
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }

    /// What hangs up in peace. What was written goes all the same.
    pub fn leave(&self) -> Leave {
        let watched = self.watched();
        Box::new(move || watched.hang_up())
    }

    /// What looks at the connection and does not hold it open.
    pub fn watched(&self) -> Watched {
        Watched(Arc::downgrade(&self.0))
    }

    /// Whether the peer says nothing more, although some of what it said may not have been read.
    pub fn is_over(&self) -> bool {
        sys::has_hung_up(self.0.socket.as_fd())
    }
}

/// A connection that may have ended.
#[derive(Clone)]
pub struct Watched(Weak<Shared>);

impl Watched {
    /// Its own address and the peer's; `None`: it has ended.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let shared = self.0.upgrade()?;
        Some((shared.socket.local_addr().ok()?, shared.socket.peer_addr().ok()?))
    }

    /// How it stands; `None`: it has ended, or was hung up.
    pub fn standing(&self, of: fn(BorrowedFd<'_>) -> io::Result<TcpStanding>) -> Option<TcpStanding> {
        let shared = self.0.upgrade().filter(|shared| !shared.hung_up.load(Ordering::Relaxed))?;
        // Of a system that does not say it nothing is thought.
        Some(of(shared.socket.as_fd()).unwrap_or_default())
    }

    /// Whether it has not ended.
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Hangs up, if it has not ended.
    pub fn hang_up(&self) {
        if let Some(shared) = self.0.upgrade() {
            HangUp(shared).now();
        }
    }
}

/// The two halves of a connection. `until_end` is dropped with the last of them.
pub fn halves(tunnel: Tunnel, patience: Patience, until_end: UntilEnd) -> io::Result<(Reader, Writer, HangUp)> {
    let Tunnel { side, buffers, socket } = tunnel;
    let socket = socket.into_std()?;
    socket.set_nonblocking(false)?;
    // So often whoever waits looks whether it still shall.
    let look = Some(Duration::from_millis(LOOK_MS.into()));
    socket.set_read_timeout(look)?;
    socket.set_write_timeout(look)?;
    let parting = patience.parting.clone();
    let state = Mutex::new(State { side, incoming: buffers.incoming, due: buffers.outgoing, is_broken: false });
    let shared = Arc::new(Shared { state, socket, hung_up: AtomicBool::new(false) });
    let reader = Reader {
        shared: shared.clone(),
        raw: vec![0; READ_BYTES],
        plain: buffers.plain,
        at: 0,
        is_over: false,
        patience,
        until_end: until_end.clone(),
    };
    let writer = Writer { shared: shared.clone(), outgoing: Vec::new(), parting, until_end };
    Ok((reader, writer, HangUp(shared)))
}

/// What the peer says. A peer learns that nobody reads only when the writer is dropped too: TCP has no word for it.
pub struct Reader {
    shared: Arc<Shared>,
    raw: Vec<u8>,
    /// What was understood; what is before `at` is used up.
    plain: Vec<u8>,
    at: usize,
    /// The peer said that nothing more comes.
    is_over: bool,
    patience: Patience,
    #[expect(dead_code, reason = "it ends with the last of the halves")]
    until_end: UntilEnd,
}

impl Reader {
    /// Understands what there is, and waits for more while that is nothing.
    fn refill(&mut self) -> io::Result<()> {
        self.plain.clear();
        self.at = 0;
        let mut waits = None;
        let mut count = 0;
        loop {
            self.understand(count)?;
            if !self.plain.is_empty() || self.is_over {
                return Ok(());
            }
            self.patience.check(waits.get_or_insert_with(Since::now).elapsed())?;
            count = match (&self.shared.socket).read(&mut self.raw) {
                Ok(0) => return Err(self.shared.lost(&io::Error::other("the peer is gone"))),
                Ok(count) => count,
                Err(error) if is_pause(&error) => 0,
                Err(error) => return Err(self.shared.lost(&error)),
            };
        }
    }

    fn understand(&mut self, count: usize) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.check()?;
        let State { side, incoming, due, is_broken } = &mut *state;
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
                self.is_over |= step == Step::Closed;
                Ok(())
            }
            // What was understood before is said first; the error comes again.
            Err(_) if !self.plain.is_empty() => Ok(()),
            Err(error) => Err(self.shared.lost(&io::Error::other(error.to_string()))),
        }
    }
}

/// A wait that is only interrupted.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

impl BufRead for Reader {
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

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// What the peer shall hear.
pub struct Writer {
    shared: Arc<Shared>,
    outgoing: Vec<u8>,
    parting: Parting,
    #[expect(dead_code, reason = "it ends with the last of the halves")]
    until_end: UntilEnd,
}

impl Writer {
    /// Encrypts, and sends all that there is while `may_wait`.
    fn send(&mut self, want: Want<'_>, may_wait: impl Fn() -> bool) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.check()?;
        let State { side, incoming, due, is_broken } = &mut *state;
        // What is due goes first.
        self.outgoing.clear();
        self.outgoing.append(due);
        let mut buffers = Buffers {
            incoming: std::mem::take(incoming),
            outgoing: std::mem::take(&mut self.outgoing),
            plain: Vec::new(),
        };
        let step = side.run(want, &mut buffers);
        *is_broken = step.is_err();
        debug_assert!(buffers.plain.is_empty(), "the reader understands all that came before it lets go");
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

impl Write for Writer {
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

impl Drop for Writer {
    fn drop(&mut self) {
        let waits = Since::now();
        let _ = self.send(Want::Close, || waits.elapsed() < FAREWELL);
        let _ = self.shared.socket.shutdown(Shutdown::Write);
    }
}
