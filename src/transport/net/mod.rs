//! Network links: QUIC, or TLS over TCP, between peers that know each other's keys.
//!
//! The only module that uses `async`; its links block like every [`super::Link`]. The TLS configurations passed in
//! decide which clients are admitted and which key a server must have. The client sends first, right after its part of
//! the handshake and without waiting. A dial has succeeded when the first bytes of the server arrive: only then is it
//! known that the server accepted the client.

mod admission;
mod bridge;
pub mod client;
mod closed_port;
mod congestion;
mod congestion_adapter;
pub mod limits;
mod migration;
mod peer_question;
mod quic;
mod quic_window;
pub mod server;
pub mod server_limits;
pub mod tcp_liveness;
#[cfg(test)]
mod tests;
mod tls;
pub mod tls_upgrade;
mod trouble;

pub use self::admission::network;
pub use self::peer_question::PeerQuestion;
pub use self::trouble::Trouble;
use crate::transport::link::Leave;
use std::fmt;

/// The network transport of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetTransport {
    /// QUIC, over UDP.
    Quic,
    /// TLS over TCP.
    Tls,
}

impl NetTransport {
    /// Both, in the order in which they are tried by default.
    pub const BOTH: [NetTransport; 2] = [NetTransport::Quic, NetTransport::Tls];
}

impl fmt::Display for NetTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetTransport::Quic => "QUIC",
            NetTransport::Tls => "TLS",
        })
    }
}

/// Ends a session at once, from any thread.
#[derive(Clone)]
pub enum HangUp {
    /// For a QUIC connection.
    Quic(quinn::Connection),
    /// For a session that can move to TLS; ends it on both transports.
    Lanes(tls_upgrade::UpgradeHangUp),
    /// For a TLS connection.
    Tls(tls::TlsHangUp),
}

impl HangUp {
    /// Closes the connection. Over QUIC, sends the reason to the peer.
    pub fn now(&self, why: &str) {
        match self {
            HangUp::Quic(connection) => {
                quic::close(connection, quic::CloseCode::Instructed, why.as_bytes());
            }
            HangUp::Lanes(lanes) => lanes.now(why),
            HangUp::Tls(connection) => connection.now(),
        }
    }

    /// Returns the size of datagrams that the path is known to carry, in bytes; `None` if the session does not use QUIC.
    pub fn datagram_bytes(&self) -> Option<u16> {
        Some(self.quic()?.stats().path.current_mtu)
    }

    /// Returns the QUIC connection of the session, which stays open when the session moves to TLS.
    fn quic(&self) -> Option<&quinn::Connection> {
        match self {
            HangUp::Quic(connection) => Some(connection),
            HangUp::Lanes(lanes) => Some(lanes.connection()),
            HangUp::Tls(_) => None,
        }
    }

    /// Returns a closure that closes the connection after what was written; what is lost of that, the peer can do
    /// without. The closure does not keep the connection open.
    fn leave(&self, engine: &tokio::runtime::Handle) -> Leave {
        let engine = engine.clone();
        match self {
            HangUp::Quic(connection) => {
                let connection = connection.clone();
                Box::new(move || drop(engine.spawn(quic::leave(connection))))
            }
            HangUp::Lanes(lanes) => lanes.leave(engine),
            HangUp::Tls(connection) => connection.leave(),
        }
    }

    /// Returns how many bytes were transferred before a session moved from QUIC to TLS; `None` if it did not move.
    pub fn moved_after(&self) -> Option<u64> {
        match self {
            HangUp::Lanes(lanes) => lanes.progress().moved_after(),
            HangUp::Quic(_) | HangUp::Tls(_) => None,
        }
    }

    /// Returns whether the peer has closed the connection, even if data that it sent was not read yet.
    pub fn is_over(&self) -> bool {
        match self {
            HangUp::Quic(connection) => connection.close_reason().is_some(),
            HangUp::Tls(connection) => connection.is_over(),
            HangUp::Lanes(lanes) => lanes.is_over(),
        }
    }

    /// Returns the number of datagrams received. A QUIC client sends a keepalive every [`limits::KEEP_ALIVE`], and the
    /// server answers. `None` for sessions that use or may use TCP, where the system detects dead peers.
    pub fn received_datagrams(&self) -> Option<u64> {
        match self {
            HangUp::Quic(connection) => Some(connection.stats().udp_rx.datagrams),
            HangUp::Lanes(_) | HangUp::Tls(_) => None,
        }
    }
}
