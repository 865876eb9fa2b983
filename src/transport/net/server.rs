//! The far end of network links: takes clients whose keys are admitted.

use super::bridge::Engine;
use super::limits::{HANDSHAKE, LAST_WORDS, Limits};
use super::{Kind, quic};
use crate::transport::link::{Parting, Patience};
use crate::trust::{Pin, tls};
use quinn::VarInt;
use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A client that was let in.
pub struct Guest {
    /// What it says. Pieces can be taken as they came, without being copied.
    pub reader: Box<dyn BufRead + Send>,
    /// What it shall hear. Dropped, the client reads the end once it has heard everything.
    pub writer: Box<dyn Write + Send>,
    /// Begun when nothing more is expected of it.
    pub parting: Parting,
    /// The key by which it was let in.
    pub pin: Pin,
    /// Where it spoke from first.
    pub address: SocketAddr,
    /// How it came.
    pub kind: Kind,
    /// Ends the conversation from any thread.
    pub hang_up: HangUp,
}

/// Ends a conversation at once, whoever reads or writes.
#[derive(Clone)]
pub struct HangUp(quinn::Connection);

impl HangUp {
    /// Hangs up; the client is told why.
    pub fn now(&self, why: &str) {
        self.0.close(VarInt::from_u32(quic::HangUp::Told as u32), why.as_bytes());
    }
}

/// A server that takes clients until it is dropped.
pub struct Listener {
    // Dropped first, or the engine's last turns would wait for its tasks.
    guests: Mutex<Receiver<Guest>>,
    addresses: Vec<SocketAddr>,
    endpoints: Vec<quinn::Endpoint>,
    engine: Option<Engine>,
}

/// Takes clients at these addresses, over UDP and TCP. Port 0 is replaced by one that is free. Who is let in is settled by
/// `tls`.
pub fn listen(addresses: &[SocketAddr], tls: Arc<rustls::ServerConfig>, limits: &Limits) -> io::Result<Listener> {
    let engine = Engine::start("network")?;
    let (sender, guests) = sync_channel(limits.sessions);
    let config = quic::server_config(tls)?;
    let inside = engine.handle().enter();
    let mut bound = Vec::new();
    let mut endpoints = Vec::new();
    for &address in addresses {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{address} (UDP): {error}"));
        let socket = UdpSocket::bind(address).map_err(at)?;
        bound.push(socket.local_addr().map_err(at)?);
        let endpoint = quic::endpoint(socket, Some(config.clone())).map_err(at)?;
        let door = Door { config: config.clone(), limits: limits.clone(), sender: sender.clone() };
        engine.handle().spawn(door.take_quic(endpoint.clone()));
        endpoints.push(endpoint);
    }
    drop(inside);
    Ok(Listener { guests: Mutex::new(guests), addresses: bound, endpoints, engine: Some(engine) })
}

impl Listener {
    /// The next client, if one comes within this time.
    pub fn accept(&self, within: Duration) -> io::Result<Option<Guest>> {
        match self.guests.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(within) {
            Ok(guest) => Ok(Some(guest)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("nothing is listened to any more")),
        }
    }

    /// Where it listens, with the ports that were chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes nobody any more. Conversations that have begun go on while this is not dropped.
    pub fn drain(&self) {
        self.endpoints.iter().for_each(|endpoint| endpoint.set_server_config(None));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for endpoint in &self.endpoints {
            endpoint.close(VarInt::from_u32(quic::HangUp::Told as u32), b"the server ends");
        }
        if let Some(engine) = self.engine.take() {
            engine.end(Box::pin(async {}));
        }
    }
}

/// Lets clients in.
#[derive(Clone)]
struct Door {
    config: quinn::ServerConfig,
    limits: Limits,
    sender: SyncSender<Guest>,
}

impl Door {
    async fn take_quic(self, endpoint: quinn::Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            let door = self.clone();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(HANDSHAKE, door.welcome(incoming)).await;
            });
        }
    }

    async fn welcome(self, incoming: quinn::Incoming) {
        let address = incoming.remote_address();
        let Ok((conversation, cert_der)) = quic::welcome(incoming, self.config, self.limits.idle).await else {
            return;
        };
        let Some(pin) = tls::pin_of(&cert_der) else {
            return;
        };
        let hang_up = HangUp(conversation.connection.clone());
        let patience = Patience::default();
        let parting = patience.parting.clone();
        let handle = tokio::runtime::Handle::current();
        let at_end = move |parting| drop(handle.spawn(parting));
        let (reader, writer) = quic::halves(conversation, patience, LAST_WORDS, at_end);
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let guest = Guest { reader, writer, parting, pin, address, kind: Kind::Quic, hang_up };
        // There is room for as many as there may be; beyond that nobody takes them.
        let _ = self.sender.try_send(guest);
    }
}
