//! QUIC: endpoints, handshakes, and the two halves of a stream as a reader and a writer.

use super::bridge::{Boxed, wait};
use super::limits::{self, PIECE_MAX_BYTES, PIECES, WINDOW_BYTES, WINDOW_MAX_BYTES};
use super::trouble::{OTHER_VERSIONS, Rejection, Trouble, is_about_keys, is_about_versions};
use super::{congestion_adapter, quic_window};
use crate::fs::sys;
use crate::transport::link::{FAREWELL, Parting, Patience};
use crate::transport::window_limit::Ceiling;
use crate::work::clock::Since;
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ConnectionError, MtuDiscoveryConfig, ReadError, TransportConfig, TransportErrorCode, VarInt,
    WriteError,
};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

/// The client's first byte, which begins a session. A QUIC stream only exists once data is sent on it, and a peer that
/// only completes the handshake does not occupy a session slot.
pub const BEGINS: [u8; 1] = [1];

/// The server name that TLS requires. Keys are pinned, so it is never checked.
pub const NO_NAME: &str = "sparsync";

/// The application error codes with which a peer closes the connection. A server also uses those of [`Rejection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseCode {
    /// The session is complete.
    Done = 0,
    /// This side was instructed to close.
    Instructed = 1,
}

/// A session that has begun.
pub struct Conversation {
    /// The connection that carries it.
    pub connection: quinn::Connection,
    /// The stream to the peer.
    pub send: quinn::SendStream,
    /// The stream from the peer.
    pub recv: quinn::RecvStream,
    /// Bytes that the peer has already sent.
    pub first: Bytes,
}

/// A secret that survives restarts of a server. With it, the new process can send stateless resets to the clients of
/// the previous one, whose connections are gone.
#[derive(Clone, Copy)]
pub struct Lasting(pub [u8; 32]);

impl Lasting {
    fn put(self, config: &mut quinn::EndpointConfig) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        // Connection ids are recognized by this key; it is not a secret.
        let names = hmac::sign(&key, b"connection ids")
            .as_ref()
            .iter()
            .take(8)
            .fold(0, |all, byte| all << 8 | u64::from(*byte));
        config
            .reset_key(Arc::new(key))
            .cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(names)));
    }
}

/// Opens the endpoint of a client.
pub fn client_endpoint(socket: UdpSocket) -> io::Result<quinn::Endpoint> {
    endpoint(socket, quinn::EndpointConfig::default(), None)
}

/// Opens an endpoint that accepts connections.
pub fn server_endpoint(
    socket: UdpSocket,
    server: quinn::ServerConfig,
    lasting: Lasting,
) -> io::Result<quinn::Endpoint> {
    sys::request_socket_buffers(socket.as_fd(), limits::SOCKET_ROOM_BYTES);
    let mut config = quinn::EndpointConfig::default();
    lasting.put(&mut config);
    endpoint(socket, config, Some(server))
}

fn endpoint(
    socket: UdpSocket,
    mut config: quinn::EndpointConfig,
    server: Option<quinn::ServerConfig>,
) -> io::Result<quinn::Endpoint> {
    config
        .max_udp_payload_size(limits::DATAGRAM_MAX_BYTES)
        .map_err(io::Error::other)?;
    quinn::Endpoint::new(config, server, socket, Arc::new(quinn::TokioRuntime))
}

/// Opens a socket of the right address family for this peer, on a port that the system chooses.
pub fn client_socket(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if peer.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    sys::request_socket_buffers(socket.as_fd(), limits::SOCKET_ROOM_BYTES);
    Ok(socket)
}

/// Returns the transport configuration for a peer.
pub fn transport(peer: SocketAddr, idle: Duration) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(quinn::IdleTimeout::try_from(idle).ok())
        // There is one stream, so the window of the connection counts, because it can grow.
        .stream_receive_window(VarInt::from_u32(WINDOW_MAX_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(limits::SEND_MIN_BYTES)
        // On this stream the peer sends the position at which it moves to TLS.
        .max_concurrent_uni_streams(VarInt::from_u32(1))
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(Arc::new(congestion_adapter::ByRate));
    let mut discovery = MtuDiscoveryConfig::default();
    let DatagramLimit {
        bytes: longest,
        is_local,
    } = longest_datagram(peer);
    discovery.upper_bound(longest);
    if is_local {
        // Only the longest size is probed: quinn decodes each byte of a probe as a frame. If a port of this machine
        // leads elsewhere and the probe is lost, datagrams stay short.
        discovery.minimum_change(longest.saturating_sub(limits::DATAGRAM_MIN_BYTES).max(1));
    }
    // The kernel rejects batches that are too long, and quinn would send them again the same way, forever.
    config.enable_segmentation_offload(
        usize::from(longest) * limits::SEGMENTS_AT_ONCE <= limits::SENT_AT_ONCE_MAX_BYTES,
    );
    // A larger initial size would end a handshake before it begins: a server answers an unvalidated address with at
    // most three times the bytes received.
    config
        .initial_mtu(limits::DATAGRAM_MIN_BYTES)
        .mtu_discovery_config(Some(discovery));
    config
}

/// The largest datagram size worth probing for a peer.
struct DatagramLimit {
    bytes: u16,
    /// The peer has an address of this machine, so its path should carry this size.
    is_local: bool,
}

/// Returns the largest datagram size worth probing for a peer. The real path MTU is found by probing, but the MTU of
/// this machine's own interface is known beforehand.
fn longest_datagram(peer: SocketAddr) -> DatagramLimit {
    const UDP_HEAD_BYTES: u32 = 8;
    let ip_head_bytes = if peer.is_ipv4() { 20 } else { 40 };
    let known = client_socket(peer).and_then(|socket| {
        socket.connect(peer)?;
        let mtu_bytes = sys::path_mtu(socket.as_fd(), peer.is_ipv6())?;
        Ok((mtu_bytes, socket.local_addr()?.ip() == peer.ip()))
    });
    let Ok((mtu_bytes, is_local)) = known else {
        return DatagramLimit {
            bytes: limits::DATAGRAM_USUAL_BYTES,
            is_local: false,
        };
    };
    let is_local = is_local || peer.ip().is_loopback();
    let fits = mtu_bytes.saturating_sub(ip_head_bytes + UDP_HEAD_BYTES);
    let fits = u16::try_from(fits)
        .unwrap_or(u16::MAX)
        .clamp(limits::DATAGRAM_MIN_BYTES, limits::DATAGRAM_MAX_BYTES);
    let fits = if is_local {
        fits.min(limits::DATAGRAM_LOCAL_BYTES)
    } else {
        fits
    };
    DatagramLimit {
        bytes: sys::longest_datagram_bytes().map_or(fits, |most| fits.min(most)),
        is_local,
    }
}

/// Connects to a server. Whether it accepts this client is not known yet.
pub async fn connect(
    endpoint: &quinn::Endpoint,
    peer: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
) -> Result<quinn::Connection, Trouble> {
    let crypto = QuicClientConfig::try_from(tls).map_err(broken)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    let mut transport = transport(peer, limits::IDLE);
    transport
        .keep_alive_interval(Some(limits::KEEP_ALIVE))
        .max_concurrent_bidi_streams(VarInt::from_u32(0));
    config.transport_config(Arc::new(transport));
    let connecting = endpoint
        .connect_with(config, peer, NO_NAME)
        .map_err(broken)?;
    connecting.await.map_err(trouble)
}

/// Opens the stream of the session, sends its first bytes, and waits for the server's.
pub async fn begin(connection: quinn::Connection, words: &[u8]) -> Result<Conversation, Trouble> {
    let (mut send, mut recv) = connection.open_bi().await.map_err(trouble)?;
    send.write_all(words).await.or_else(|error| match error {
        WriteError::ConnectionLost(error) => Err(trouble(error)),
        // The server may nevertheless have sent something.
        WriteError::Stopped(_) => Ok(()),
        error => Err(broken(error)),
    })?;
    let first = recv
        .read_chunk(PIECE_MAX_BYTES, true)
        .await
        .map_err(|error| match error {
            ReadError::ConnectionLost(error) => trouble(error),
            error => broken(error),
        })?;
    // The reader handles a stream that ends without data.
    let first = first.map(|chunk| chunk.bytes).unwrap_or_default();
    Ok(Conversation {
        connection,
        send,
        recv,
        first,
    })
}

fn broken(error: impl std::fmt::Display) -> Trouble {
    Trouble::Broken(error.to_string())
}

/// Returns the part of a server's configuration that is the same for all clients.
pub fn server_config(tls: Arc<rustls::ServerConfig>) -> io::Result<quinn::ServerConfig> {
    let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    Ok(quinn::ServerConfig::with_crypto(Arc::new(crypto)))
}

/// Completes a client's handshake and waits until it begins the session. Also returns its certificate.
pub async fn welcome(
    incoming: quinn::Incoming,
    mut config: quinn::ServerConfig,
    idle: Duration,
) -> Result<(Conversation, Vec<u8>), ConnectionError> {
    let mut transport = transport(incoming.remote_address(), idle);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
    config.transport_config(Arc::new(transport));
    let shaken =
        tokio::time::timeout(limits::HANDSHAKE, incoming.accept_with(Arc::new(config))?).await;
    let connection = shaken.map_err(|_| ConnectionError::TimedOut)??;
    let shown = connection.peer_identity().and_then(|shown| {
        shown
            .downcast::<Vec<rustls::pki_types::CertificateDer>>()
            .ok()
    });
    let cert = shown
        .and_then(|chain| chain.first().map(|cert| cert.to_vec()))
        .unwrap_or_default();
    let (send, mut recv) = connection.accept_bi().await?;
    let mut first = [0; BEGINS.len()];
    if recv.read_exact(&mut first).await.is_err() || first != BEGINS {
        close(
            &connection,
            CloseCode::Instructed,
            b"invalid first bytes of a session",
        );
        return Err(ConnectionError::LocallyClosed);
    }
    Ok((
        Conversation {
            connection,
            send,
            recv,
            first: Bytes::new(),
        },
        cert,
    ))
}

/// Closes a connection on which nothing more is expected, after what was written had its turn to be sent. What is lost
/// of that, the peer can do without.
///
/// Does nothing on a short path, where this gains nothing. There, an MTU probe may block the window, and with it even
/// the close; so the peer closes first, as soon as it has received everything.
pub async fn leave(connection: quinn::Connection) {
    if connection.rtt() < SHORT_WAY {
        return;
    }
    for _ in 0..TURNS_TO_GO {
        tokio::task::yield_now().await;
    }
    close(&connection, CloseCode::Done, b"");
}

/// Closes a connection at once and notifies the peer, however much is in flight.
pub fn close(connection: &quinn::Connection, code: CloseCode, why: &[u8]) {
    close_with(connection, code as u32, why);
}

/// Closes the connection of a client for whose session the server has no room.
pub fn turn_away(connection: &quinn::Connection, why: Rejection) {
    close_with(connection, why as u32, why.to_string().as_bytes());
}

fn close_with(connection: &quinn::Connection, code: u32, why: &[u8]) {
    congestion_adapter::allow_close(connection);
    connection.close(VarInt::from_u32(code), why);
}

/// On a path with a shorter round trip, waiting for the peer to close is not noticeable.
const SHORT_WAY: Duration = Duration::from_millis(10);

/// How many turns the connection's driver gets before the close.
const TURNS_TO_GO: usize = 4;

/// Converts the error of a failed connection attempt.
fn trouble(error: ConnectionError) -> Trouble {
    match &error {
        ConnectionError::TimedOut => Trouble::Unreachable("no answer over QUIC".into()),
        // Detected on this side, before anything was sent.
        ConnectionError::TransportError(fault) => match alert(fault.code) {
            Some(alert) if is_about_keys(alert) => Trouble::WrongKey(fault.reason.clone()),
            Some(_) | None => Trouble::Broken(error.to_string()),
        },
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
            _ if close.error_code == TransportErrorCode::CONNECTION_REFUSED => {
                Trouble::Busy(Rejection::Full)
            }
            Some(alert) if is_about_keys(alert) => Trouble::NotAdmitted,
            Some(alert) if is_about_versions(alert) => Trouble::Broken(OTHER_VERSIONS.into()),
            Some(_) | None => Trouble::Broken(error.to_string()),
        },
        ConnectionError::ApplicationClosed(close) => {
            match Rejection::of_number(close.error_code.into_inner()) {
                Some(why) => Trouble::Busy(why),
                None => Trouble::Broken(lost(error).to_string()),
            }
        }
        ConnectionError::VersionMismatch
        | ConnectionError::Reset
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => Trouble::Broken(lost(error).to_string()),
    }
}

/// Returns the TLS alert in a QUIC error code.
fn alert(code: TransportErrorCode) -> Option<u8> {
    let code = u64::from(code);
    if code >> 8 == 1 {
        Some(code as u8)
    } else {
        None
    }
}

/// Converts the error of a lost connection.
pub fn lost(error: ConnectionError) -> io::Error {
    let why = match &error {
        ConnectionError::TimedOut => format!("no data received for {} s", limits::IDLE.as_secs()),
        ConnectionError::Reset => "the peer was restarted".into(),
        ConnectionError::LocallyClosed => "closed by this side".into(),
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
            "closed by the peer".into()
        }
        ConnectionError::ApplicationClosed(close) => {
            format!(
                "closed by the peer: {}",
                String::from_utf8_lossy(&close.reason)
            )
        }
        ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::CidsExhausted => error.to_string(),
    };
    io::Error::new(io::ErrorKind::ConnectionReset, why)
}

/// Returns the two halves of a session.
///
/// When both are dropped and the peer has received what was written, the connection is closed. `at_end` receives the
/// future that must be driven for that. Windows grow no further than the `ceiling`.
pub fn halves(
    conversation: Conversation,
    patience: Patience,
    last_words: LastWords,
    ceiling: &Ceiling,
    at_end: impl FnOnce(Boxed) + Send + Sync + 'static,
) -> (QuicReader, QuicWriter) {
    let Conversation {
        connection,
        send,
        recv,
        first,
    } = conversation;
    let hold = Arc::new(Hold {
        connection,
        last_words,
        stop: patience.stop.clone(),
        delivery: Mutex::default(),
        at_end: Mutex::new(Some(Box::new(at_end))),
    });
    let parting = patience.parting.clone();
    let mut pieces = vec![Bytes::new(); PIECES];
    pieces[PIECES - 1] = first;
    let window = quic_window::QuicWindow::default();
    let begun = Since::now();
    let ceiling = ceiling.clone();
    let reader = QuicReader {
        recv,
        pieces,
        at: PIECES - 1,
        patience,
        window,
        ceiling: ceiling.clone(),
        begun,
        hold: hold.clone(),
    };
    (
        reader,
        QuicWriter {
            send: Some(send),
            has_left: false,
            parting,
            ceiling,
            hold,
        },
    )
}

/// How long a side waits for the peer to receive the rest before it closes the connection.
#[derive(Clone, Copy)]
pub struct LastWords {
    /// For a silent peer.
    pub silent_max: Duration,
    /// For any peer.
    pub max: Duration,
}

/// The times of a client.
pub const CLIENT_LAST_WORDS: LastWords = LastWords {
    silent_max: FAREWELL,
    max: limits::LAST_WORDS_MAX,
};

type AtEnd = Box<dyn FnOnce(Boxed) + Send + Sync>;

/// The state shared by both halves.
struct Hold {
    connection: quinn::Connection,
    last_words: LastWords,
    stop: Arc<AtomicBool>,
    /// Completes when the peer has received everything that was written.
    delivery: Mutex<Option<Boxed>>,
    at_end: Mutex<Option<AtEnd>>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let delivery = self.delivery.get_mut().take();
        let at_end = self.at_end.get_mut().take();
        let connection = self.connection.clone();
        let last_words = self.last_words;
        let stop = self.stop.clone();
        if let Some(at_end) = at_end {
            at_end(Box::pin(async move {
                let was_delivered = match delivery {
                    Some(delivery) => is_delivered(&connection, delivery, last_words, &stop).await,
                    None => true,
                };
                close(&connection, CloseCode::Done, b"");
                // A peer that received everything closes by itself. Any other peer must be notified, and that datagram
                // can be lost: quinn repeats it while this side still exists.
                if !was_delivered {
                    tokio::time::sleep(SAID_AGAIN).await;
                }
            }));
        }
    }
}

/// How long a side that closes early stays, to notify a peer that still sends.
const SAID_AGAIN: Duration = Duration::from_millis(300);

/// Waits for the peer to receive the rest. Returns whether it did.
async fn is_delivered(
    connection: &quinn::Connection,
    mut delivery: Boxed,
    last_words: LastWords,
    stop: &AtomicBool,
) -> bool {
    let waits = Since::now();
    loop {
        let before = connection.stats().udp_rx.datagrams;
        let left = last_words.max.saturating_sub(waits.elapsed());
        if tokio::time::timeout(last_words.silent_max.min(left), delivery.as_mut())
            .await
            .is_ok()
        {
            return true;
        }
        let is_gone = connection.stats().udp_rx.datagrams == before;
        if is_gone || waits.elapsed() >= last_words.max || stop.load(Ordering::Relaxed) {
            return false;
        }
    }
}

/// The stream from the peer.
pub struct QuicReader {
    recv: quinn::RecvStream,
    /// Chunks read from the stream; those before `at` are used up.
    pieces: Vec<Bytes>,
    at: usize,
    patience: Patience,
    window: quic_window::QuicWindow,
    ceiling: Ceiling,
    begun: Since,
    /// Also keeps the connection open while the reader exists.
    hold: Arc<Hold>,
}

impl BufRead for QuicReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.buffered().is_empty() {
            self.refill(std::future::pending::<()>())?;
        }
        Ok(self.buffered())
    }

    fn consume(&mut self, count: usize) {
        if count > 0 {
            self.pieces[self.at].advance(count);
        }
    }
}

impl QuicReader {
    /// Returns bytes that were read from the stream and not consumed yet.
    pub fn buffered(&mut self) -> &[u8] {
        while self.at < self.pieces.len() && self.pieces[self.at].is_empty() {
            self.at += 1;
        }
        self.pieces.get(self.at).map_or(&[], |piece| piece)
    }

    /// Reads what has arrived, and waits if nothing has. At the end of the stream, reads nothing. Must only be called
    /// when everything before is consumed. If `other` completes during the wait, returns its result.
    pub fn refill<T>(&mut self, other: impl Future<Output = T>) -> io::Result<Option<T>> {
        let QuicReader {
            recv,
            pieces,
            patience,
            ..
        } = self;
        patience.check(Duration::ZERO)?;
        let mut waits = None;
        let either = async {
            let mut chunks = pin!(recv.read_chunks(pieces));
            let mut other = pin!(other);
            std::future::poll_fn(|context| match chunks.as_mut().poll(context) {
                Poll::Ready(taken) => Poll::Ready(Ok(taken)),
                Poll::Pending => other.as_mut().poll(context).map(Err),
            })
            .await
        };
        let taken = match wait(either, || {
            patience.check(waits.get_or_insert_with(Since::now).elapsed())
        })? {
            Ok(taken) => taken,
            Err(other) => return Ok(Some(other)),
        };
        let count = match taken {
            Ok(count) => count.unwrap_or(0),
            Err(ReadError::ConnectionLost(error)) => return Err(lost(error)),
            Err(error) => {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    error.to_string(),
                ));
            }
        };
        // The unused chunks are at the end, in order.
        self.at = self.pieces.len() - count;
        self.pieces.rotate_right(self.at);
        let bytes = self.pieces[self.at..]
            .iter()
            .map(|piece| piece.len() as u64)
            .sum();
        let connection = &self.hold.connection;
        let most = || self.ceiling.bytes();
        if let Some(window) = self
            .window
            .took(self.begun.elapsed(), bytes, connection.rtt(), most)
        {
            connection.set_receive_window(VarInt::from_u64(window).unwrap_or(VarInt::MAX));
        }
        Ok(None)
    }

    /// Stops the stream: the peer has sent on it everything that it will send.
    pub fn leave(&mut self) {
        // Fails only if the stream has ended already.
        let _ = self.recv.stop(VarInt::from_u32(CloseCode::Done as u32));
    }

    /// Returns how long the reader waits.
    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Returns the connection.
    pub fn connection(&self) -> &quinn::Connection {
        &self.hold.connection
    }
}

impl Read for QuicReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < into.len() {
            // Wait for more only if there is nothing yet.
            if got > 0 && self.pieces[self.at..].iter().all(Bytes::is_empty) {
                break;
            }
            let piece = self.fill_buf()?;
            if piece.is_empty() {
                break;
            }
            let count = piece.len().min(into.len() - got);
            into[got..got + count].copy_from_slice(&piece[..count]);
            self.consume(count);
            got += count;
        }
        Ok(got)
    }
}

/// The stream to the peer.
pub struct QuicWriter {
    /// `Some` until this is dropped.
    send: Option<quinn::SendStream>,
    /// The session has moved to TLS: this stream has no end.
    has_left: bool,
    parting: Parting,
    ceiling: Ceiling,
    hold: Arc<Hold>,
}

impl QuicWriter {
    /// Notifies the peer that everything after the first `at` bytes is sent over TLS. Nothing may be written after
    /// that, even if it fails.
    pub fn leave(&mut self, at: u64) -> io::Result<()> {
        self.has_left = true;
        let may_wait = || {
            if self.parting.is_over() {
                Err(io::ErrorKind::ConnectionAborted.into())
            } else {
                Ok(())
            }
        };
        let connection = &self.hold.connection;
        let mut word = wait(connection.open_uni(), may_wait)?.map_err(lost)?;
        wait(word.write_all(&at.to_le_bytes()), may_wait)?.map_err(not_written)?;
        // Fails only if the stream was finished or reset already.
        let _ = word.finish();
        Ok(())
    }
}

fn not_written(error: WriteError) -> io::Error {
    match error {
        WriteError::ConnectionLost(error) => lost(error),
        WriteError::Stopped(_) => io::ErrorKind::BrokenPipe.into(),
        error => io::Error::new(io::ErrorKind::BrokenPipe, error.to_string()),
    }
}

/// A stream that must not seem to end here: dropping it resets it.
struct ResetOnDrop(quinn::SendStream);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        // Fails only if the stream has ended already.
        let _ = self.0.reset(VarInt::from_u32(CloseCode::Done as u32));
    }
}

impl Write for QuicWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = pieces
            .iter()
            .map(|piece| piece.len())
            .sum::<usize>()
            .min(PIECE_MAX_BYTES);
        if count == 0 {
            return Ok(0);
        }
        if self.has_left {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(send) = &mut self.send else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut bytes = Vec::with_capacity(count);
        for piece in pieces {
            bytes.extend_from_slice(&piece[..piece.len().min(count - bytes.len())]);
        }
        let piece = Bytes::from(bytes);
        let window = quic_window::writing(self.hold.connection.stats().path.cwnd, || {
            self.ceiling.bytes()
        });
        self.hold.connection.set_send_window(window);
        let parting = &self.parting;
        let written = wait(send.write_chunk(piece), || {
            if parting.is_over() {
                Err(io::ErrorKind::ConnectionAborted.into())
            } else {
                Ok(())
            }
        })?;
        written.map(|()| count).map_err(not_written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for QuicWriter {
    fn drop(&mut self) {
        let Some(mut send) = self.send.take() else {
            return;
        };
        let delivery = send.stopped();
        if !self.has_left {
            // Fails only if the stream was finished or reset already.
            let _ = send.finish();
        }
        // After a move, a peer that has read everything stops the stream.
        let unended = self.has_left.then(|| ResetOnDrop(send));
        *self.hold.delivery.lock() = Some(Box::pin(async move {
            // Whether the peer has read everything or is gone, the stream is no longer needed.
            let _ = delivery.await;
            drop(unended);
        }));
    }
}
