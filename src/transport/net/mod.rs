//! Links over the network, QUIC or TLS over TCP, between peers that know each other's keys.
//!
//! The only place that knows of `async`: what leaves it blocks, as every [`super::Link`] does. Who is let in and which key
//! a server must have is settled by the configurations of TLS that are handed in. The client speaks first, behind its part
//! of the handshake and without waiting for more; a dial has come through when the server's first bytes are there: only then
//! is it known that the server took the client.

mod bridge;
mod by_rate;
pub mod client;
mod congestion;
pub mod lanes;
pub mod limits;
mod quic;
#[cfg(test)]
mod relay;
mod roam;
mod room;
pub mod server;
pub mod stall;
#[cfg(test)]
mod tests;
mod tls;
mod window;

use crate::transport::link::Leave;
use std::fmt;
use std::io;
use std::time::Duration;

/// What a client says before the conversation, by which it begins one: a stream of QUIC is there once something is said on
/// it, and whoever only shakes hands takes nobody's place.
const BEGINS: [u8; 1] = [1];

/// How the bytes of a link travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// QUIC, over UDP.
    Quic,
    /// TLS over TCP.
    Tls,
}

impl Kind {
    /// Both, in the order in which they are tried where nothing else is known.
    pub const BOTH: [Kind; 2] = [Kind::Quic, Kind::Tls];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Quic => "QUIC",
            Kind::Tls => "TLS over TCP",
        })
    }
}

/// Ends a conversation at once, whoever reads or writes.
#[derive(Clone)]
pub enum HangUp {
    /// Of a QUIC connection.
    Quic(quinn::Connection),
    /// Of one that may be moved, with all of its lanes.
    Lanes(lanes::HangUp),
    /// Of a TLS connection.
    Tls(tls::HangUp),
}

impl HangUp {
    /// Hangs up. Over QUIC the peer is told why.
    pub fn now(&self, why: &str) {
        match self {
            HangUp::Quic(connection) => {
                quic::close(connection, quic::HangUp::Told, why.as_bytes());
            }
            HangUp::Lanes(lanes) => lanes.now(why),
            HangUp::Tls(connection) => connection.now(),
        }
    }

    /// What ends it in peace, behind what was written: the peer does without whatever of that is lost. It holds nothing open.
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

    /// Where a conversation that began over QUIC goes on over TLS, how many bytes went before.
    pub fn moved_after(&self) -> Option<u64> {
        match self {
            HangUp::Lanes(lanes) => lanes.progress().moved_after(),
            HangUp::Quic(_) | HangUp::Tls(_) => None,
        }
    }

    /// Whether the peer has left, also where nobody reads what it said before.
    pub fn is_over(&self) -> bool {
        match self {
            HangUp::Quic(connection) => connection.close_reason().is_some(),
            HangUp::Tls(connection) => connection.is_over(),
            HangUp::Lanes(lanes) => lanes.is_over(),
        }
    }

    /// How often the peer was heard: a client of QUIC lets hear of itself each [`limits::KEEP_ALIVE`], and a server answers.
    /// `None`: over TCP, or where it may be, as there the system finds out who is gone.
    pub fn heard(&self) -> Option<u64> {
        match self {
            HangUp::Quic(connection) => Some(connection.stats().udp_rx.datagrams),
            HangUp::Lanes(_) | HangUp::Tls(_) => None,
        }
    }
}

/// Why there is no link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Nobody answered there: no way, a closed port, or silence. Another way may do.
    Unreachable(String),
    /// Likewise, for as long as it was waited for.
    Silent(Duration),
    /// Whoever answered has another key than it must have. Nothing was said to it.
    WrongKey(String),
    /// The server has the right key and does not let this client in.
    NotAdmitted,
    /// The server has as many conversations as it takes.
    Busy,
    /// Something was wrong with what was said, or the conversation broke off while it began.
    Broken(String),
    /// The run shall stop.
    Stopped,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Unreachable(why) => write!(f, "cannot be reached: {why}"),
            Trouble::Silent(limit) => write!(f, "cannot be reached: no answer within {} ms", limit.as_millis()),
            Trouble::WrongKey(why) => write!(f, "shows another key than the one that is known: {why}"),
            Trouble::NotAdmitted => f.write_str("does not admit this machine's key (any more)"),
            Trouble::Busy => f.write_str("has too many sessions; try again later"),
            Trouble::Broken(why) => write!(f, "broke off: {why}"),
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

/// The alerts of TLS by which a peer says that it does not like a certificate: from bad_certificate (42) to
/// access_denied (49), decrypt_error (51) and certificate_required (116).
fn is_about_keys(alert: u8) -> bool {
    matches!(alert, 42..=49 | 51 | 116)
}

/// The alert of TLS by which a server says that it speaks none of the versions that were offered: no_application_protocol.
fn is_about_versions(alert: u8) -> bool {
    alert == 120
}

/// What that means.
const OTHER_VERSIONS: &str =
    "it speaks none of the versions of the protocol that are spoken here: upgrade the older sparsync";
