//! What a server's machine says of itself to one that it has let in: the answer of `server grant --json`, which enrolment
//! reads.

use super::pin::Pin;
use serde::{Deserialize, Serialize};

/// The longest answer that is read: names and addresses, not more.
pub const INTRODUCTION_MAX_BYTES: usize = 64 << 10;

/// What became of the grant that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granted {
    /// It was not there before.
    New,
    /// It was there, and otherwise.
    Changed,
    /// It was there.
    Same,
}

/// How the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It was started now.
    Started,
    /// It ran already.
    Runs,
    /// It does not run, and nobody asked for that.
    Down,
}

/// A server's machine, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The version of the program.
    pub version: String,
    /// The key of its server.
    pub pin: Pin,
    /// The port of its server, UDP and TCP.
    pub port: u16,
    /// Where its server listens, if that is known: addresses, the best first.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// What became of the grant.
    pub grant: Granted,
    /// A description of the key's rights.
    #[serde(default)]
    pub rights: String,
    /// The same before the change; `None`: unchanged, or no grant.
    #[serde(default)]
    pub rights_before: Option<String>,
    /// How its server is.
    pub server: State,
    /// Whether the key may do less than the login.
    #[serde(default)]
    pub is_limited: bool,
}

impl Introduction {
    /// As a line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the last line of what a remote shell said: a login shell may have said something before. Errs with what is
    /// wrong with it.
    pub fn read(told: &[u8]) -> Result<Introduction, String> {
        let told = String::from_utf8_lossy(told);
        let line = told.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        serde_json::from_str(line).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_behind_the_noise_of_a_login() {
        let said = Introduction {
            version: "0.1.0".into(),
            pin: Pin([9; 32]),
            port: 28792,
            addresses: vec!["192.0.2.7".into()],
            grant: Granted::New,
            rights: "reads /".into(),
            rights_before: None,
            server: State::Started,
            is_limited: true,
        };
        let told = format!("Welcome!\n{}\n\n", said.to_json());
        assert_eq!(Introduction::read(told.as_bytes()), Ok(said));
        for bad in ["", "Welcome!", "{}", "{\"version\":1}"] {
            assert!(Introduction::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
