//! The server side of network links: accepts clients whose keys are admitted.

use super::admission::{Admission, Room, Slot};
use super::bridge::{Boxed, Engine};
use super::limits::{HANDSHAKE, LAST_WORDS};
use super::quic::BEGINS;
pub use super::quic::Lasting;
use super::server_limits::Limits;
use super::tcp_liveness::{ASKS, NamedSessions};
pub use super::trouble::Rejection;
use super::{HangUp, NetTransport, quic, tls as over_tls, tls_upgrade};
use crate::fs::{errno, sys};
use crate::transport::link::{Parting, Patience};
use crate::trust::{Pin, tls};
use parking_lot::Mutex;
use quinn::VarInt;
use std::future::Future;
use std::io::{self, BufRead, Read as _, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// A client that was admitted.
pub struct AcceptedClient {
    /// The stream from the client. As a `BufRead`, it gives access to received chunks without a copy.
    pub reader: Box<dyn BufRead + Send>,
    /// The stream to the client. Dropping it ends the stream after everything that was written.
    pub writer: Box<dyn Write + Send>,
    /// Begun when nothing more is expected of the client.
    pub parting: Parting,
    /// The key with which it was admitted.
    pub pin: Pin,
    /// Its address when it connected.
    pub address: SocketAddr,
    pub kind: NetTransport,
    /// Ends the session from any thread.
    pub hang_up: HangUp,
}

impl AcceptedClient {
    /// Rejects a client to which nothing was sent yet, and gives it the reason.
    pub fn turn_away(mut self, why: Rejection) {
        match &self.hang_up {
            HangUp::Quic(connection) => quic::turn_away(connection, why),
            HangUp::Lanes(lanes) => quic::turn_away(lanes.connection(), why),
            HangUp::Tls(_) => {
                // A client that does not receive it only learns that the connection was closed.
                let _ = self.writer.write_all(&[why as u8]);
                self.wait_for_close();
            }
        }
    }

    /// Waits briefly until the client closes: closing first could reset the connection under what was sent to it.
    pub fn wait_for_close(self) {
        self.parting.begin();
        // It does not matter how the connection ends.
        let _ = io::copy(&mut self.reader.take(UNREAD_MAX_BYTES), &mut io::sink());
    }
}

/// The answer to a client that presents the server's own key without a grant: a probe of the user of the server. A client
/// that begins a session learns from it that it has no grant.
pub const PROBE_ANSWER: &[u8] = b"sparsync server\n";

/// The most that is read from a client which is about to leave, and sends next to nothing.
const UNREAD_MAX_BYTES: u64 = 64 << 10;

/// A server that accepts clients until it is dropped, which also ends the sessions over QUIC. Sessions over TLS have
/// sockets of their own; they end with the process or by [`HangUp`].
pub struct Listener {
    clients: Mutex<Receiver<AcceptedClient>>,
    room: Arc<Room>,
    addresses: Vec<SocketAddr>,
    endpoints: Vec<quinn::Endpoint>,
    /// The tasks that accept TCP connections.
    takers: Vec<tokio::task::AbortHandle>,
    engine: Option<Engine>,
}

/// Accepts clients at these addresses, which should be [`supported`], over UDP and TCP on the same port. Port 0 is
/// replaced by a free one.
///
/// `tls` decides which clients are admitted. With the same `lasting` secret as a previous server, clients of that
/// server learn that it is gone. `patience` applies to each session, but each has a parting of its own.
pub fn listen(
    addresses: &[SocketAddr],
    tls: Arc<rustls::ServerConfig>,
    lasting: Lasting,
    limits: &Limits,
    patience: &Patience,
) -> io::Result<Listener> {
    let engine = Engine::start(crate::env::NETWORK)?;
    let (sender, clients) = sync_channel(limits.sessions);
    let mut config = quic::server_config(tls.clone())?;
    // Incoming connections are answered at once, so few of them wait and little of their data must be buffered.
    config
        .max_incoming(limits.half_open)
        .incoming_buffer_size(HANDSHAKE_BUFFER_MAX_BYTES)
        .incoming_buffer_size_total(HANDSHAKE_BUFFERS_MAX_BYTES);
    let room = Room::new(limits);
    let door = Acceptor {
        config,
        tls,
        room: room.clone(),
        movable: Arc::default(),
        named: Arc::default(),
        limits: limits.clone(),
        patience: patience.clone(),
        sender,
    };
    let inside = engine.handle().enter();
    let mut listener = Listener {
        clients: Mutex::new(clients),
        room,
        addresses: vec![],
        endpoints: vec![],
        takers: vec![],
        engine: None,
    };
    for &address in addresses {
        let (udp, tcp) = bind(address)?;
        listener.addresses.push(udp.local_addr()?);
        let endpoint = quic::server_endpoint(udp, door.config.clone(), lasting)?;
        let quic_door = door.clone();
        let quic_endpoint = endpoint.clone();
        engine.handle().spawn(restart_after_panic(move || {
            quic_door.clone().take_quic(quic_endpoint.clone())
        }));
        listener.endpoints.push(endpoint);
        tcp.set_nonblocking(true)?;
        let tls_door = door.clone();
        let tcp = Arc::new(tokio::net::TcpListener::from_std(tcp)?);
        let taker = engine.handle().spawn(restart_after_panic(move || {
            tls_door.clone().take_tcp(tcp.clone())
        }));
        listener.takers.push(taker.abort_handle());
    }
    drop(inside);
    listener.engine = Some(engine);
    Ok(listener)
}

/// Fails if [`listen`] could not bind one of these addresses now. The sockets are closed again.
pub fn are_free(addresses: &[SocketAddr]) -> io::Result<()> {
    addresses
        .iter()
        .try_for_each(|&address| bind(address).map(drop))
}

/// Returns the address to bind for a requested one: `::`, which stands for all addresses of this machine, becomes
/// `0.0.0.0` if the machine does not support IPv6.
pub fn supported(ip: IpAddr) -> IpAddr {
    supported_if(ip, |ip| sys::bind_udp((ip, 0).into()).map(drop))
}

fn supported_if(ip: IpAddr, bind: impl FnOnce(IpAddr) -> io::Result<()>) -> IpAddr {
    if ip == EVERYWHERE && bind(ip).is_err_and(|error| errno::lacks_ipv6(&error)) {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        ip
    }
}

/// All addresses of this machine.
pub const EVERYWHERE: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// How much data is buffered of each incoming connection before it is answered, and of all of them.
const HANDSHAKE_BUFFER_MAX_BYTES: u64 = 64 << 10;
const HANDSHAKE_BUFFERS_MAX_BYTES: u64 = 4 << 20;

/// Binds both sockets of an address. If the port is 0, finds one that is free for both.
fn bind(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    const TRIES: usize = 16;
    let at = |what: &str, error: io::Error| {
        io::Error::new(error.kind(), format!("{address} ({what}): {error}"))
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let udp = sys::bind_udp(address).map_err(|error| at("UDP", error))?;
        match sys::bind_tcp(udp.local_addr()?) {
            Ok(tcp) => return Ok((udp, tcp)),
            Err(error)
                if address.port() == 0
                    && tries < TRIES
                    && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(at("TCP", error)),
        }
    }
}

impl Listener {
    /// Returns the next client, or `None` if none arrives within this time.
    pub fn accept(&self, within: Duration) -> io::Result<Option<AcceptedClient>> {
        match self.clients.lock().recv_timeout(within) {
            Ok(client) => Ok(Some(client)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the listener has stopped"))
            }
        }
    }

    /// Returns the addresses on which it listens, with the chosen ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the number of sessions whose clients have not left, including those that still receive the last data.
    pub fn conversations(&self) -> usize {
        self.room.conversations()
    }

    /// Stops accepting clients. Existing sessions continue while this is not dropped.
    pub fn drain(&self) {
        for endpoint in &self.endpoints {
            endpoint.set_server_config(None);
        }
        for taker in &self.takers {
            taker.abort();
        }
    }

    /// Stops accepting clients and waits until each session has ended: its client has received everything, or has
    /// fallen silent.
    pub fn leave(self) {
        self.drain();
        while self.conversations() > 0 {
            // Clients that arrive this late are rejected.
            drop(self.accept(LEAVING_LOOK));
        }
    }
}

/// How often [`Listener::leave`] checks whether all sessions have ended.
const LEAVING_LOOK: Duration = Duration::from_millis(2);

impl Drop for Listener {
    fn drop(&mut self) {
        for endpoint in &self.endpoints {
            endpoint.close(
                VarInt::from_u32(quic::CloseCode::Instructed as u32),
                b"the server is shutting down",
            );
        }
        if let Some(engine) = self.engine.take() {
            engine.end(Box::pin(async {}));
        }
    }
}

/// Runs an accept loop, and runs it again after a panic: a bug that one client triggers must not lock out all others. The
/// panic hook has printed the message. Dropping the future ends the loop.
async fn restart_after_panic<L: Future<Output = ()> + Send + 'static>(accept_loop: impl Fn() -> L) {
    loop {
        let mut running = tokio::task::JoinSet::new();
        running.spawn(accept_loop());
        match running.join_next().await {
            Some(Err(error)) if error.is_panic() => tokio::time::sleep(RESTART_PAUSE).await,
            _ => return,
        }
    }
}

/// The pause before an accept loop runs again, so that a panic at every start does not occupy a processor.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Admits clients.
#[derive(Clone)]
struct Acceptor {
    config: quinn::ServerConfig,
    tls: Arc<rustls::ServerConfig>,
    room: Arc<Room>,
    movable: Arc<tls_upgrade::Movable>,
    named: Arc<NamedSessions>,
    limits: Limits,
    patience: Patience,
    sender: SyncSender<AcceptedClient>,
}

impl Acceptor {
    async fn take_quic(self, endpoint: quinn::Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            sys::count_client();
            let is_shown = incoming.remote_address_validated();
            match self
                .room
                .admit(incoming.remote_address().ip(), is_shown, false)
            {
                Admission::Begin(place) => {
                    begin(place, |place| self.clone().accept_quic(incoming, place))
                }
                Admission::ShowAddress => drop(incoming.retry()),
                Admission::Refuse => incoming.refuse(),
                Admission::Ignore => incoming.ignore(),
            }
        }
    }

    async fn take_tcp(self, listener: Arc<tokio::net::TcpListener>) {
        // Given up for a client that arrives when no descriptor is free, so that it gets an answer.
        let mut spare = None;
        loop {
            spare = spare.or_else(|| listener.as_fd().try_clone_to_owned().ok());
            let accepted = match listener.accept().await {
                Err(error) if sys::lacks_descriptors(&error) && spare.take().is_some() => {
                    listener.accept().await
                }
                accepted => accepted,
            };
            match accepted {
                // The TCP handshake has validated the address.
                Ok((socket, address)) => {
                    sys::count_client();
                    let may_belong = !self.movable.is_empty() || !self.named.is_empty();
                    if let Admission::Begin(place) = self.room.admit(address.ip(), true, may_belong)
                    {
                        begin(place, |place| {
                            self.clone().accept_tls(socket, address, place)
                        });
                    }
                }
                // Probably out of file descriptors; sessions that end free some.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn accept_quic(self, incoming: quinn::Incoming, place: Slot) {
        let address = incoming.remote_address();
        let Ok((conversation, cert_der)) =
            quic::welcome(incoming, self.config.clone(), self.limits.idle).await
        else {
            return;
        };
        let Some(pin) = tls::pin_of(&cert_der) else {
            return;
        };
        let place = match place.into_session(pin) {
            Ok(place) => place,
            Err(why) => return quic::turn_away(&conversation.connection, why),
        };
        let token = tls_upgrade::token(&conversation.connection);
        let hang_up = HangUp::Quic(conversation.connection.clone());
        let patience = self.patience();
        let parting = patience.parting.clone();
        let handle = tokio::runtime::Handle::current();
        let at_end = move |parting: Boxed| {
            handle.spawn(async move {
                parting.await;
                drop(place);
            });
        };
        let Limits {
            last_words_max,
            ceiling,
            ..
        } = &self.limits;
        let last_words = quic::LastWords {
            silent_max: LAST_WORDS,
            max: *last_words_max,
        };
        let (reader, writer) = quic::halves(conversation, patience, last_words, ceiling, at_end);
        let Some(token) = token else {
            let reader = Box::new(reader);
            let writer = Box::new(writer);
            return self.admit_client(AcceptedClient {
                reader,
                writer,
                parting,
                pin,
                address,
                kind: NetTransport::Quic,
                hang_up,
            });
        };
        let (reader, writer, mover) =
            tls_upgrade::movable((reader, writer), &tls_upgrade::UpgradeTerms::default(), 0);
        self.movable.put(token, pin, mover);
        let hang_up = HangUp::Lanes(writer.hang_up());
        let reader = Box::new(reader);
        let writer = Box::new(writer);
        self.admit_client(AcceptedClient {
            reader,
            writer,
            parting,
            pin,
            address,
            kind: NetTransport::Quic,
            hang_up,
        });
    }

    async fn accept_tls(self, socket: tokio::net::TcpStream, address: SocketAddr, place: Slot) {
        let welcomed =
            tokio::time::timeout(HANDSHAKE, over_tls::welcome(socket, self.tls.clone())).await;
        let Ok(Some(mut tunnel)) = welcomed else {
            return;
        };
        let Some(pin) = tunnel.peer_cert().and_then(|cert| tls::pin_of(&cert)) else {
            return;
        };
        if tunnel.carries() == Some(tls::ALPN_LANES) {
            if let Some((token, mover)) = self.movable.find(&mut tunnel, pin).await {
                // The session that moves already has a slot.
                drop(place);
                let take = |lane| self.named.put(pin, token, lane);
                mover
                    .answer(tunnel, self.limits.lane_lost_one_in, take)
                    .await;
            }
            return;
        }
        let has_name = tunnel.carries() == Some(tls::ALPN_NAMED);
        let name = match tunnel.receive_exact().await {
            Ok(BEGINS) if has_name => match tunnel.receive_exact().await {
                Ok(name) => Some(name),
                Err(_) => return,
            },
            Ok(BEGINS) => None,
            Ok(ASKS) if has_name => {
                // On any failure, the client asks again.
                let _ = self.named.answer(tunnel, pin, &self.limits.signs).await;
                return;
            }
            Ok(_) | Err(_) => return,
        };
        let place = match place.into_session(pin) {
            Ok(place) => place,
            Err(why) => return tunnel.turn_away(why).await,
        };
        let patience = self.patience();
        let parting = patience.parting.clone();
        let Ok((reader, writer, hang_up)) = over_tls::halves(tunnel, patience, Arc::new(place))
        else {
            return;
        };
        if let Some(name) = name {
            self.named.put(pin, name, hang_up.watched());
        }
        let reader = Box::new(reader);
        let writer = Box::new(writer);
        let hang_up = HangUp::Tls(hang_up);
        self.admit_client(AcceptedClient {
            reader,
            writer,
            parting,
            pin,
            address,
            kind: NetTransport::Tls,
            hang_up,
        });
    }

    /// Returns the patience of one session.
    fn patience(&self) -> Patience {
        Patience {
            parting: Parting::default(),
            ..self.patience.clone()
        }
    }

    fn admit_client(&self, client: AcceptedClient) {
        // The channel has room for the maximum number of sessions.
        let _ = self.sender.try_send(client);
    }
}

/// How long a client may take to begin after its handshake. It begins at once, but may be one of many on a busy
/// machine.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);

/// Runs a handshake, which ends in time or is aborted when another one needs its slot.
fn begin<W: Future<Output = ()> + Send + 'static>(
    mut place: Slot,
    welcome: impl FnOnce(Slot) -> W,
) {
    let (give_up, given_up) = tokio::sync::oneshot::channel::<()>();
    place.set_abortable(move || {
        // Without a receiver, the handshake has ended by itself.
        let _ = give_up.send(());
    });
    let handshake = tokio::spawn(tokio::time::timeout(
        HANDSHAKE + BEGINS_WITHIN,
        welcome(place),
    ))
    .abort_handle();
    tokio::spawn(async move {
        // Otherwise the handshake ended by itself.
        if given_up.await.is_ok() {
            handshake.abort();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_of_all_interfaces_falls_back_to_ipv4() {
        let ipv4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        // The error of an address that no machine has, or of a machine without IPv6.
        let missing = |_| sys::bind_udp("[2001:db8::1]:0".parse().unwrap()).map(drop);
        assert_eq!(supported_if(EVERYWHERE, missing), ipv4);
        for other in ["::1", "2001:db8::1", "127.0.0.1", "0.0.0.0"] {
            let other: IpAddr = other.parse().unwrap();
            assert_eq!(supported_if(other, missing), other);
        }
        assert_eq!(supported_if(EVERYWHERE, |_| Ok(())), EVERYWHERE);
        assert_eq!(supported_if(EVERYWHERE, |_| Err(errno::denied())), ipv4);
        assert_eq!(
            supported_if(EVERYWHERE, |_| Err(io::ErrorKind::OutOfMemory.into())),
            EVERYWHERE
        );
    }
}
