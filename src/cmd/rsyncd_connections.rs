//! The connections of a daemon for stock clients, and the socket on which it reports them to `sparsync server status`.

use super::control_socket::{self, ControlSocket, Question, SessionStatus, Status};
use super::rsyncd_log::DaemonLog;
use crate::env::{self, Env};
use crate::error::Result;
use crate::fs::sys;
use crate::transport::net::network;
use crate::trust::paths::Places;
use crate::work::clock::Since;
use std::collections::{HashMap, VecDeque};
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// The most connections at once whose clients have not sent their request. Another one ends one of these, so that
/// clients that only connect do not keep others out.
const HALF_OPEN_MAX: usize = 256;

/// The running connections of a daemon.
pub struct Connections {
    /// `None` if it could not be created.
    socket: Option<ControlSocket>,
    /// Where the daemon listens.
    addresses: Vec<SocketAddr>,
    since: Since,
    /// The address of the client and the start, by process.
    running: HashMap<u32, (IpAddr, Since)>,
    /// The processes whose clients have not sent their request, oldest first.
    half_open: VecDeque<u32>,
    /// Each process reports here that its client has.
    requested: PipeReader,
    reports: PipeWriter,
    total: u64,
}

impl Connections {
    /// Returns the table of a daemon that has none yet.
    pub fn new(addresses: Vec<SocketAddr>) -> io::Result<Connections> {
        let (requested, reports) = io::pipe()?;
        let (running, half_open) = Default::default();
        Ok(Connections {
            socket: None,
            addresses,
            since: Since::now(),
            running,
            half_open,
            requested,
            reports,
            total: 0,
        })
    }

    /// Creates the socket. The daemon works without it, too.
    pub fn listen(&mut self, env: &Env) -> Result<()> {
        self.socket = Some(ControlSocket::of_daemon(&Places::of(env)?)?);
        Ok(())
    }

    /// Returns the descriptors that are readable when there is something to do.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.socket
            .as_ref()
            .map(|socket| socket.listener().as_fd())
            .into_iter()
            .chain([self.requested.as_fd()])
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Adds a connection, and ends another one if too many are half-open.
    pub fn add(&mut self, process: u32, client: IpAddr, log: &DaemonLog) {
        self.total += 1;
        self.running
            .insert(process, (client.to_canonical(), Since::now()));
        self.half_open.push_back(process);
        if self.half_open.len() > HALF_OPEN_MAX
            && let Some(oldest) = self
                .oldest_of_most()
                .and_then(|at| self.half_open.remove(at))
        {
            let client = self
                .running
                .get(&oldest)
                .map_or(String::new(), |(client, _)| client.to_string());
            log.put(
                format!("ending connection [{oldest}] from {client}: {HALF_OPEN_MAX} others have sent no request")
                    .as_bytes(),
            );
            // It may have ended by itself.
            let _ = env::end_process(oldest, false);
        }
    }

    /// Returns which half-open connection is the oldest one from the network that has most of them. So the connections of
    /// one network end only each other while others have fewer.
    fn oldest_of_most(&self) -> Option<usize> {
        let of = |process| {
            self.running
                .get(process)
                .map(|(client, _)| network(*client))
        };
        let networks = || self.half_open.iter().map(of);
        let mut counts = HashMap::new();
        networks().for_each(|network| *counts.entry(network).or_insert(0) += 1);
        let most = counts.values().max()?;
        networks().position(|network| counts[&network] == *most)
    }

    /// Notes which processes have ended, and whose clients have sent their request.
    pub fn update(&mut self) {
        let ended: Vec<_> = sys::collect_ended().collect();
        let mut reports = [0; 4096];
        // An ended process has reported before, so its number is not that of a later one.
        while sys::wait_readable(self.requested.as_fd(), 0).unwrap_or(false)
            && let Ok(count) = sys::receive(self.requested.as_fd(), &mut reports)
        {
            let (processes, _) = reports[..count].as_chunks();
            self.half_open
                .retain(|process| !processes.contains(&process.to_ne_bytes()));
        }
        for process in ended {
            // The other children answered requests for the status.
            self.running.remove(&process);
            self.half_open.retain(|half_open| *half_open != process);
        }
    }

    /// Answers a request, if there is one, in a process of its own: a client that waits must not stop the daemon.
    pub fn answer(&self) {
        let Some(socket) = &self.socket else { return };
        let Ok((stream, _)) = socket.listener().accept() else {
            return;
        };
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
    pub fn leave(self) -> RequestReport {
        self.socket.into_iter().for_each(ControlSocket::leave);
        RequestReport {
            pipe: self.reports,
            process: std::process::id(),
        }
    }
}

/// Reports to the daemon that a client has sent its request.
pub struct RequestReport {
    pipe: PipeWriter,
    /// The process that the daemon has started.
    process: u32,
}

impl RequestReport {
    /// Sends the report.
    pub fn send(mut self) {
        // Without a daemon, nothing counts connections.
        let _ = self.pipe.write_all(&self.process.to_ne_bytes());
    }
}
