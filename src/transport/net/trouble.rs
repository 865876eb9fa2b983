//! Why a link could not be established, and the TLS alerts that say so.

use crate::report::event::errno_words;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why a link could not be established.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing listens at the port. Another transport may work.
    Refused,
    /// No answer: no route, or silence. Another transport may work.
    Unreachable(String),
    /// No answer within this time. Another transport may work.
    Silent(Duration),
    /// The peer has a different key than expected. Nothing was sent to it.
    WrongKey(String),
    /// The server has the right key and does not admit this client.
    NotAdmitted,
    /// The server admits this client, but has no room for its session.
    Busy(Rejection),
    /// A protocol error, or the connection was lost while the session began.
    Broken(String),
    /// The run was stopped.
    Stopped,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Refused => f.write_str("connection refused"),
            Trouble::Unreachable(why) => write!(f, "{why}"),
            Trouble::Silent(limit) if limit.subsec_millis() == 0 => {
                write!(f, "no answer within {} s", limit.as_secs())
            }
            Trouble::Silent(limit) => write!(f, "no answer within {} ms", limit.as_millis()),
            Trouble::WrongKey(why) => write!(f, "unexpected key: {why}"),
            Trouble::NotAdmitted => f.write_str("this machine's key has no grant there"),
            Trouble::Busy(why) => write!(f, "{why}"),
            Trouble::Broken(why) => write!(f, "connection lost: {why}"),
            Trouble::Stopped => f.write_str("interrupted"),
        }
    }
}

impl Trouble {
    /// Converts an error of a socket that is not connected yet.
    pub fn unreached(error: &io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Trouble::Refused,
            _ => Trouble::Unreachable(String::from_utf8_lossy(&errno_words(error)).into_owned()),
        }
    }

    /// Ranks reasons by what the user must know first: the highest.
    pub fn rank(&self) -> u8 {
        match self {
            Trouble::Stopped => 6,
            Trouble::WrongKey(_) => 5,
            Trouble::NotAdmitted => 4,
            Trouble::Busy(_) => 3,
            Trouble::Broken(_) => 2,
            Trouble::Refused => 1,
            Trouble::Unreachable(_) | Trouble::Silent(_) => 0,
        }
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> io::Error {
        let kind = match &trouble {
            Trouble::Refused => io::ErrorKind::ConnectionRefused,
            Trouble::Unreachable(_) | Trouble::Silent(_) => io::ErrorKind::HostUnreachable,
            Trouble::WrongKey(_) | Trouble::NotAdmitted => io::ErrorKind::PermissionDenied,
            Trouble::Busy(_) => io::ErrorKind::ResourceBusy,
            Trouble::Broken(_) => io::ErrorKind::ConnectionReset,
            Trouble::Stopped => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, trouble.to_string())
    }
}

/// Why a client with a completed handshake is rejected. The numbers are sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// The maximum number of sessions is reached.
    Full = 3,
    /// The maximum number of sessions of this key is reached.
    TooManyOfKey = 4,
    /// Its slot was given to another client.
    GivenUp = 5,
    /// The server lacks a descriptor or a process for the session.
    NoSession = 6,
}

impl Rejection {
    /// Returns the rejection with this number.
    pub fn of_number(number: u64) -> Option<Rejection> {
        let all = [
            Rejection::Full,
            Rejection::TooManyOfKey,
            Rejection::GivenUp,
            Rejection::NoSession,
        ];
        all.into_iter().find(|why| *why as u64 == number)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rejection::Full => "too many sessions; try again later",
            Rejection::TooManyOfKey => {
                "too many sessions of this machine's key; try again when one has ended"
            }
            Rejection::GivenUp => "too many handshakes in progress; try again",
            Rejection::NoSession => "the server cannot start a session; its log has the reason",
        })
    }
}

/// The TLS alerts by which a peer rejects a certificate: from bad_certificate (42) to access_denied (49), decrypt_error
/// (51) and certificate_required (116).
pub fn is_about_keys(alert: u8) -> bool {
    matches!(alert, 42..=49 | 51 | 116)
}

/// The TLS alert by which a server rejects all offered versions: no_application_protocol.
pub fn is_about_versions(alert: u8) -> bool {
    alert == 120
}

/// The error message for that alert.
pub const OTHER_VERSIONS: &str = "no common protocol version: upgrade the older sparsync";
