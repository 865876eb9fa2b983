//! Links over the network, QUIC or TLS over TCP, between peers that know each other's keys.
//!
//! The only place that knows of `async`: what leaves it blocks, as every [`super::Link`] does. Who is let in and which key
//! a server must have is settled by the configurations of TLS that are handed in. At either end the server opens the one
//! stream of a conversation and speaks first, so a dial has come through when its first bytes are there: only then is it
//! known that the server took the client.

mod bridge;
pub mod client;
pub mod lanes;
pub mod limits;
mod quic;
#[cfg(test)]
mod relay;
mod roam;
mod room;
pub mod server;
#[cfg(test)]
mod tests;
mod tls;

use std::fmt;
use std::io;

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

/// Why there is no link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Nobody answered there: no way, a closed port, or silence. Another way may do.
    Unreachable(String),
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
            Trouble::Unreachable(_) => io::ErrorKind::HostUnreachable,
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
