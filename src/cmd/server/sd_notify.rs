//! Reports the state of the server to the supervisor that started it: systemd's `Type=notify`, see sd_notify(3).

use crate::env::Env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// Names the socket of the supervisor. It applies only to a server in the foreground.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The supervisor that started the server, if there is one.
#[derive(Debug)]
pub struct Supervisor(Option<OsString>);

impl Supervisor {
    /// Returns the supervisor that started this process.
    pub fn from_env(env: &Env) -> Supervisor {
        Supervisor(env.var(SOCKET).filter(|name| !name.is_empty()))
    }

    /// Returns no supervisor: all reports are ignored.
    pub fn none() -> Supervisor {
        Supervisor(None)
    }

    /// Returns whether there is a supervisor.
    pub fn is_present(&self) -> bool {
        self.0.is_some()
    }

    /// Reports that the server accepts clients.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// Reports that the server ends once its sessions have ended.
    pub fn ending(&self) {
        self.notify("STOPPING=1");
    }

    fn notify(&self, word: &str) {
        let Some(name) = &self.0 else {
            return;
        };
        let name = name.as_bytes();
        // A name that begins with `@` is in the abstract namespace.
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
        };
        let sent = address
            .and_then(|address| UnixDatagram::unbound()?.send_to_addr(word.as_bytes(), &address));
        if let Err(error) = sent {
            warn!("cannot send {word} to the supervisor at {SOCKET}: {error}");
        }
    }
}
