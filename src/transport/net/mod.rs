//! Network links: QUIC, or TLS over TCP, between peers that know each other's keys.
//!
//! The only module that uses `async`; its links block like every [`super::Link`]. The TLS configurations passed in
//! decide which clients are admitted and which key a server must have. The client sends first, right after its part of
//! the handshake and without waiting. A dial has succeeded when the first bytes of the server arrive: only then is it
//! known that the server accepted the client.

mod admission;
mod bridge;
pub mod client;
mod congestion;
mod congestion_adapter;
pub mod limits;
mod migration;
mod quic;
mod quic_window;
pub mod server;
pub mod tcp_liveness;
#[cfg(test)]
mod test_relay;
#[cfg(test)]
mod tests;
mod tls;
pub mod tls_upgrade;

use crate::transport::link::Leave;
use std::fmt;
use std::io;
use std::time::Duration;

/// The client's first byte, which begins a session. A QUIC stream only exists once data is sent on it, and a peer that
/// only completes the handshake does not occupy a session slot.
const BEGINS: [u8; 1] = [1];

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
                quic::close(connection, quic::CloseCode::Told, why.as_bytes());
            }
            HangUp::Lanes(lanes) => lanes.now(why),
            HangUp::Tls(connection) => connection.now(),
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

/// Why a link could not be established.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// No answer: no route, a closed port, or silence. Another transport may work.
    Unreachable(String),
    /// No answer within this time. Another transport may work.
    Silent(Duration),
    /// The peer has a different key than expected. Nothing was sent to it.
    WrongKey(String),
    /// The server has the right key and does not admit this client.
    NotAdmitted,
    /// The server has reached its maximum number of sessions.
    Busy,
    /// A protocol error, or the connection was lost while the session began.
    Broken(String),
    /// The run was stopped.
    Stopped,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Unreachable(why) => write!(f, "{why}"),
            Trouble::Silent(limit) if limit.subsec_millis() == 0 => write!(f, "no answer within {} s", limit.as_secs()),
            Trouble::Silent(limit) => write!(f, "no answer within {} ms", limit.as_millis()),
            Trouble::WrongKey(why) => write!(f, "unexpected key: {why}"),
            Trouble::NotAdmitted => f.write_str("this machine's key has no grant there"),
            Trouble::Busy => f.write_str("too many sessions; try again later"),
            Trouble::Broken(why) => write!(f, "connection lost: {why}"),
            Trouble::Stopped => f.write_str("interrupted"),
        }
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> io::Error {
        let kind = match &trouble {
            Trouble::Unreachable(_) | Trouble::Silent(_) => io::ErrorKind::HostUnreachable,
            Trouble::WrongKey(_) | Trouble::NotAdmitted => io::ErrorKind::PermissionDenied,
            Trouble::Busy => io::ErrorKind::ResourceBusy,
            Trouble::Broken(_) => io::ErrorKind::ConnectionReset,
            Trouble::Stopped => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, trouble.to_string())
    }
}

/// The TLS alerts by which a peer rejects a certificate: from bad_certificate (42) to access_denied (49), decrypt_error
/// (51) and certificate_required (116).
fn is_about_keys(alert: u8) -> bool {
    matches!(alert, 42..=49 | 51 | 116)
}

/// The TLS alert by which a server rejects all offered versions: no_application_protocol.
fn is_about_versions(alert: u8) -> bool {
    alert == 120
}

/// The error message for that alert.
const OTHER_VERSIONS: &str = "no common protocol version: upgrade the older sparsync";
