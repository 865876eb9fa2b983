//! The answer of `server grant --json`: what a server reports about itself to a client that it has granted access. Read
//! by `enroll`.

use super::grants::Granted;
use super::pin::Pin;
use serde::{Deserialize, Serialize};

/// The maximum length of an answer: names and addresses.
pub const INTRODUCTION_MAX_BYTES: usize = 64 << 10;

/// The state of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// It was started by this request.
    Started,
    /// It was already running.
    Runs,
    /// It is not running, and the request did not start it.
    Down,
}

/// A server and its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The version of the program.
    pub version: String,
    /// The key of the server.
    pub pin: Pin,
    /// The server's port, UDP and TCP.
    pub port: u16,
    /// The addresses at which the server listens, if known, best first.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// What happened to the grant.
    pub grant: Granted,
    /// A description of the key's rights.
    #[serde(default)]
    pub rights: String,
    /// The rights before the change; `None`: unchanged, or no grant.
    #[serde(default)]
    pub rights_before: Option<String>,
    pub server: ServerState,
    /// Whether the key has fewer rights than the login.
    #[serde(default)]
    pub is_limited: bool,
}

impl Introduction {
    /// Returns the JSON text, on one line.
    pub fn to_json(&self) -> String {
        crate::report::json::text_of(self).unwrap_or_default()
    }

    /// Parses the output of a remote shell. On failure, returns a description of the error.
    pub fn read(output: &[u8]) -> Result<Introduction, String> {
        let output = String::from_utf8_lossy(output);
        serde_json::from_str(last_line(&output)).map_err(|error| error.to_string())
    }
}

/// Returns the last line of a remote shell's output that is not blank: a login shell may print something before the
/// answer.
pub fn last_line(output: &str) -> &str {
    let mut lines = output.lines().rev();
    lines
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enroll_reply_is_parsed_after_login_noise() {
        let introduction = Introduction {
            version: "0.1.0".into(),
            pin: Pin([9; 32]),
            port: 28792,
            addresses: vec!["192.0.2.7".into()],
            grant: Granted::New,
            rights: "reads /".into(),
            rights_before: None,
            server: ServerState::Started,
            is_limited: true,
        };
        let output = format!("Welcome!\n{}\n\n", introduction.to_json());
        assert_eq!(Introduction::read(output.as_bytes()), Ok(introduction));
        for bad in ["", "Welcome!", "{}", "{\"version\":1}"] {
            assert!(Introduction::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
