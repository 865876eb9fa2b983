//! The connections of a daemon for stock clients, and the socket on which it reports them to `sparsync server status`.

use super::log::DaemonLog;
use crate::cmd::server::control_socket::{self, ControlSocket, Question, SessionStatus, Status};
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

/// The most connections at once whose clients have sent nothing after their request. Another one ends one of these, so
/// that clients that only connect do not keep others out.
const HALF_OPEN_MAX: usize = 256;
/// The most connections of one network that the others must bear when no more can be served.
const CROWD_MAX: usize = 256;

/// The running connections of a daemon.
pub struct Connections {
    /// `None` if it could not be created.
    socket: Option<ControlSocket>,
    /// Where the daemon listens.
    addresses: Vec<SocketAddr>,
    since: Since,
    /// The address of the client and the start, by process.
    running: HashMap<u32, (IpAddr, Since)>,
    /// The processes whose clients have sent nothing after their request, oldest first.
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
        self.socket = Some(ControlSocket::of_daemon(&Places::from_env(env)?)?);
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

    /// Makes room for a client when no more connections can be served: ends the oldest one of the network that has most of
    /// them, if these are more than [`CROWD_MAX`] and the client comes from elsewhere. Returns `false` if there is none.
    pub fn make_room(&mut self, client: IpAddr, log: &DaemonLog) -> bool {
        let mut counts = HashMap::new();
        for (address, _) in self.running.values() {
            *counts.entry(network(*address)).or_insert(0) += 1;
        }
        let crowd = counts.into_iter().max_by_key(|(_, count)| *count);
        let Some((crowd, count)) = crowd else {
            return false;
        };
        if count <= CROWD_MAX || crowd == network(client.to_canonical()) {
            return false;
        }
        let of_crowd = self
            .running
            .iter()
            .filter(|(_, (address, _))| network(*address) == crowd);
        let oldest = of_crowd.min_by_key(|(_, (_, since))| *since);
        let Some((&process, &(address, _))) = oldest else {
            return false;
        };
        log.put(
            format!("ending connection [{process}] from {address}: {count} from its network, and no more can be served")
                .as_bytes(),
        );
        // It may have ended by itself.
        let _ = env::end_process(process, false);
        self.forget(process);
        true
    }

    fn forget(&mut self, process: u32) {
        self.running.remove(&process);
        self.half_open.retain(|half_open| *half_open != process);
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
        for network in networks() {
            *counts.entry(network).or_insert(0) += 1;
        }
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
            self.forget(process);
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
        if let Some(socket) = self.socket {
            socket.leave();
        }
        RequestReport {
            pipe: self.reports,
            process: std::process::id(),
        }
    }
}

/// Reports to the daemon that a client has sent its request, and something after it.
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

/// Reads from a client after its request. The first bytes are reported.
pub struct ReportingReader<R> {
    /// What the client sends.
    pub inner: R,
    /// `None` once it was sent.
    pub report: Option<RequestReport>,
}

impl<R: io::Read> io::Read for ReportingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(into)?;
        if got > 0
            && let Some(report) = self.report.take()
        {
            report.send();
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::rsync_daemon::policy::params::Values;

    /// No process has a number like this one.
    const NO_PROCESS: u32 = 1 << 30;

    /// Returns the connections of as many clients per address.
    fn with(clients: &[(&str, usize)]) -> Connections {
        let mut connections = Connections::new(Vec::new()).unwrap();
        let mut process = NO_PROCESS;
        for (address, count) in clients {
            for _ in 0..*count {
                process += 1;
                let client = (address.parse().unwrap(), Since::now());
                connections.running.insert(process, client);
            }
        }
        connections
    }

    #[test]
    fn crowd_makes_room_for_clients_from_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let path = path.to_str().unwrap().as_bytes();
        let log = DaemonLog::open(&Values::default(), Some(path), 0o022, &|_| None);
        let room = |clients: &[(&str, usize)], client: &str| {
            let mut connections = with(clients);
            let made = connections.make_room(client.parse().unwrap(), &log);
            assert_eq!(
                connections.count(),
                clients.iter().map(|(_, count)| count).sum::<usize>() - usize::from(made)
            );
            let firsts_gone = !connections.running.contains_key(&(NO_PROCESS + 1));
            (made, firsts_gone)
        };
        let crowd = [("10.0.0.1", CROWD_MAX + 1), ("10.0.0.2", CROWD_MAX)];
        assert_eq!(room(&crowd, "10.0.0.3"), (true, true));
        assert_eq!(room(&crowd, "10.0.0.2"), (true, true));
        assert_eq!(room(&crowd, "10.0.0.1"), (false, false));
        assert_eq!(room(&[("10.0.0.1", CROWD_MAX)], "10.0.0.3"), (false, false));
        assert_eq!(room(&[], "10.0.0.3"), (false, true));
    }
}
