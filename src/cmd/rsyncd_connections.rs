//! The connections of a daemon for stock clients, and the socket on which it reports them to `sparsync server status`.

use super::control_socket::{self, ControlSocket, Question, SessionStatus, Status};
use crate::env::{self, Env};
use crate::error::Result;
use crate::fs::sys;
use crate::trust::paths::Places;
use crate::work::clock::Since;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// The running connections of a daemon.
pub struct Connections {
    /// `None` if it could not be created.
    socket: Option<ControlSocket>,
    /// Where the daemon listens.
    addresses: Vec<SocketAddr>,
    since: Since,
    /// The address of the client and the start, by process.
    running: HashMap<u32, (IpAddr, Since)>,
    total: u64,
}

impl Connections {
    /// Returns the table of a daemon that has none yet.
    pub fn new(addresses: Vec<SocketAddr>) -> Connections {
        Connections { socket: None, addresses, since: Since::now(), running: HashMap::new(), total: 0 }
    }

    /// Creates the socket. The daemon works without it, too.
    pub fn listen(&mut self, env: &Env) -> Result<()> {
        self.socket = Some(ControlSocket::of_daemon(&Places::of(env)?)?);
        Ok(())
    }

    /// Returns the descriptor that is readable when there is a request.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.listener().as_fd())
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Adds a connection.
    pub fn add(&mut self, process: u32, client: IpAddr) {
        self.total += 1;
        self.running.insert(process, (client.to_canonical(), Since::now()));
    }

    /// Removes the connections whose processes have ended.
    pub fn collect_ended(&mut self) {
        for process in sys::collect_ended() {
            // The other children answered requests for the status.
            self.running.remove(&process);
        }
    }

    /// Answers a request, if there is one, in a process of its own: a client that waits must not stop the daemon.
    pub fn answer(&self) {
        let Some(socket) = &self.socket else { return };
        let Ok((stream, _)) = socket.listener().accept() else { return };
        if !matches!(sys::fork(), Ok(None)) {
            return;
        }
        if control_socket::read_question(&stream) == Some(Question::Status) {
            control_socket::answer(&stream, &self.status());
        }
        env::end_now(0);
    }

    fn status(&self) -> Status {
        let sessions = self.running.values().map(|(client, since)| SessionStatus {
            address: client.to_string(),
            transport: "rsync".into(),
            secs: since.elapsed().as_secs(),
            ..SessionStatus::default()
        });
        Status {
            running: true,
            pid: std::os::unix::process::parent_id(),
            port: self.addresses.first().map_or(0, SocketAddr::port),
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
            uptime_secs: self.since.elapsed().as_secs(),
            sessions: sessions.collect(),
            sessions_total: self.total,
            ..Status::down()
        }
    }

    /// Leaves the socket to the daemon, in the process of a connection.
    pub fn leave(self) {
        self.socket.into_iter().for_each(ControlSocket::leave);
    }
}
