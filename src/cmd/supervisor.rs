//! A supervisor that started the server and waits to hear how it is: systemd's `Type=notify`, see sd_notify(3).

use crate::env::Env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// Names the socket where the supervisor listens. Only a server that stays in the foreground is the one that is meant.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Who started the server and hears how it is; nobody, for most.
#[derive(Debug)]
pub struct Supervisor(Option<OsString>);

impl Supervisor {
    /// The one that started this process.
    pub fn of(env: &Env) -> Supervisor {
        Supervisor(env.var(SOCKET).filter(|name| !name.is_empty()))
    }

    /// One that wants to hear nothing.
    pub fn nobody() -> Supervisor {
        Supervisor(None)
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Clients are let in from now on.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The server ends once its sessions have.
    pub fn ending(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, word: &str) {
        let Some(name) = &self.0 else {
            return;
        };
        let name = name.as_bytes();
        // A name that begins with an `@` is no file.
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
        };
        let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(word.as_bytes(), &address));
        if let Err(error) = told {
            warn!("the supervisor at {SOCKET} cannot be told {word}: {error}");
        }
    }
}
