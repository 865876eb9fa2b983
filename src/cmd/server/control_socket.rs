//! The control socket of a server: a Unix socket in the state directory, which only its user can reach.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::trust::paths::Places;
use crate::trust::{Pin, files};
use crate::work::clock::Since;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

const SOCKET: &str = "control";
/// The beginning of the names of the sockets of daemons for stock clients. Their process id follows.
const DAEMON_SOCKET: &str = "rsyncd-";
/// The most daemons whose status is requested.
const DAEMONS_MAX: usize = 64;
/// The longest request.
const QUESTION_MAX_BYTES: u64 = 64;
/// The longest answer.
const ANSWER_MAX_BYTES: u64 = 16 << 20;
/// The timeout of each read and write.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most errors that are kept.
const ERRORS_MAX: usize = 8;

/// A request to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Report the status.
    Status,
    /// Stop after the running sessions have ended.
    Drain,
    /// Stop now. Clients learn that the server was stopped.
    Stop,
    /// Stop now, because another server takes over. Clients reconnect to that one.
    GiveWay,
}

impl Question {
    const ALL: [(Question, &str); 4] = [
        (Question::Status, "status"),
        (Question::Drain, "drain"),
        (Question::Stop, "stop"),
        (Question::GiveWay, "give way"),
    ];

    fn word(self) -> &'static str {
        Question::ALL
            .iter()
            .find(|(question, _)| *question == self)
            .map_or("", |(_, word)| word)
    }
}

/// The status of a server. Fields that a server of another version does not send are empty, so that it can still be
/// restarted with the settings that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version. It is the first field, so that a program finds the line that begins with it.
    pub sparsync: String,
    /// Whether the server runs. If not, the rest is empty.
    pub running: bool,
    /// The process id.
    pub pid: u32,
    /// The pin of the key that the server presents.
    #[serde(default)]
    pub pin: Option<Pin>,
    /// The port, for both UDP and TCP.
    pub port: u16,
    /// The addresses that the server listens on.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// How long the server has been running, in seconds.
    #[serde(default)]
    pub uptime_secs: u64,
    /// Whether it accepts no new clients.
    #[serde(default)]
    pub draining: bool,
    /// Whether systemd started the server, waits for its status, and restarts it.
    #[serde(default)]
    pub supervised: bool,
    /// The bytes that the server and its sessions held at the last check.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The most memory that the server and its sessions may hold, in bytes; 0: unlimited.
    #[serde(default)]
    pub memory_max_bytes: u64,
    /// The running sessions.
    #[serde(default)]
    pub sessions: Vec<SessionStatus>,
    /// How many sessions have begun, including those that have ended.
    #[serde(default)]
    pub sessions_total: u64,
    /// Bytes received from clients in all sessions.
    #[serde(default)]
    pub bytes_in: u64,
    /// Bytes sent to clients in all sessions.
    #[serde(default)]
    pub bytes_out: u64,
    /// How long the sessions that have ended were connected, together, in milliseconds; `None`: a server that does not
    /// count it.
    #[serde(default)]
    pub ended_sessions_ms: Option<u64>,
    /// How many errors there were; `None`: a server that does not count them.
    #[serde(default)]
    pub errors_total: Option<u64>,
    /// How many clients were rejected and logged; `None`: a server that does not count them.
    #[serde(default)]
    pub rejected_total: Option<u64>,
    /// The last rejected client, then the last errors, the newest last.
    #[serde(default)]
    pub errors: Vec<String>,
    /// The running daemons for stock clients. Only `server status` knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub daemons: Vec<Status>,
}

impl Status {
    /// Returns the status of a server that does not run.
    pub fn down() -> Status {
        Status {
            sparsync: env!("CARGO_PKG_VERSION").into(),
            ..Status::default()
        }
    }
}

/// A running session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// The name of its grant.
    pub name: String,
    /// The address from which its client connected.
    pub address: String,
    pub transport: String,
    /// How long it has been running, in seconds.
    pub secs: u64,
    /// Bytes received from the client.
    pub bytes_in: u64,
    /// Bytes sent to the client.
    pub bytes_out: u64,
}

/// The last errors of a server, and the last rejected client.
#[derive(Debug, Default)]
pub struct Errors(Mutex<LastErrors>);

#[derive(Debug, Default)]
struct LastErrors {
    errors: VecDeque<String>,
    turned_away: Option<String>,
    count: u64,
    rejected_count: u64,
}

impl Errors {
    /// Adds an error, unless it repeats the last one. Drops the oldest one if there are too many.
    pub fn push(&self, error: String) {
        let mut kept = self.0.lock();
        kept.count += 1;
        let errors = &mut kept.errors;
        if errors.back() == Some(&error) {
            return;
        }
        if errors.len() == ERRORS_MAX {
            errors.pop_front();
        }
        errors.push_back(error);
    }

    /// Records the last rejected client, apart from the errors: strangers must not push errors out.
    pub fn record_rejected(&self, words: String) {
        let mut kept = self.0.lock();
        kept.rejected_count += 1;
        kept.turned_away = Some(words);
    }

    /// Returns how many errors and rejected clients were recorded.
    pub fn counts(&self) -> (u64, u64) {
        let kept = self.0.lock();
        (kept.count, kept.rejected_count)
    }

    /// Returns the last rejected client and all errors, the newest last.
    pub fn all(&self) -> Vec<String> {
        let kept = self.0.lock();
        kept.turned_away
            .iter()
            .chain(&kept.errors)
            .cloned()
            .collect()
    }
}

/// Returns a path of the socket that fits the length limit of socket addresses. Valid while `dir` is open.
fn socket_path(dir: &OwnedFd, name: &str) -> std::path::PathBuf {
    Path::new(std::ffi::OsStr::from_bytes(&sys::proc_fd(dir.as_fd()))).join(name)
}

/// Opens the state directory. Fails if another user could change it, and so stop the server or answer in its place.
pub fn state_dir(places: &Places) -> Result<OwnedFd> {
    files::private_dir(&places.state)
}

/// Creates the socket, for its owner alone. The caller must hold the lock of the state directory: an existing socket is
/// then stale. No other thread may create files meanwhile, because the umask changes; it is set to `umask` afterwards.
pub fn listen(places: &Places, umask: u32) -> Result<UnixListener> {
    listen_at(places, SOCKET, umask).map(|(_, listener)| listener)
}

fn listen_at(places: &Places, name: &str, umask: u32) -> Result<(OwnedFd, UnixListener)> {
    let failed = |error: io::Error| files::failed("listen on", &places.state.join(name), &error);
    let dir = state_dir(places)?;
    match sys::unlink(dir.as_fd(), name.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    sys::set_umask(0o177);
    let bound = UnixListener::bind(socket_path(&dir, name));
    sys::set_umask(umask);
    Ok((dir, bound.map_err(failed)?))
}

/// The socket of a daemon for stock clients, which is removed at its end.
pub struct ControlSocket {
    listener: UnixListener,
    /// The directory and the name; `None` in the process of a connection.
    place: Option<(OwnedFd, String)>,
}

impl ControlSocket {
    /// Creates the socket of this process, whose umask is 0.
    pub fn of_daemon(places: &Places) -> Result<ControlSocket> {
        let name = format!("{DAEMON_SOCKET}{}", std::process::id());
        let (dir, listener) = listen_at(places, &name, 0)?;
        listener
            .set_nonblocking(true)
            .map_err(|error| files::failed("listen on", &places.state.join(&name), &error))?;
        Ok(ControlSocket {
            listener,
            place: Some((dir, name)),
        })
    }

    /// Returns the listening socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Leaves the socket to the daemon.
    pub fn leave(mut self) {
        self.place = None;
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Some((dir, name)) = &self.place {
            // A socket that stays is removed by the next request for the status.
            let _ = sys::unlink(dir.as_fd(), name.as_bytes());
        }
    }
}

/// Returns the status of the daemons for stock clients that this user runs, and removes the sockets of those that were
/// killed.
pub fn daemons(places: &Places) -> Vec<Status> {
    let mut names = Vec::new();
    let Ok(dir) = trusted_path::open_dir(places.state.as_os_str().as_bytes(), LinkOwners::Trusted)
    else {
        return Vec::new();
    };
    // A directory that cannot be listed counts as empty.
    let _ = sys::list(dir.as_fd(), |entry| {
        let name = String::from_utf8_lossy(entry.name);
        if name.starts_with(DAEMON_SOCKET) && names.len() < DAEMONS_MAX {
            names.push(name.into_owned());
        }
    });
    names.sort_unstable();
    let statuses = names.iter().filter_map(|name| {
        let status = status_at(places, name).ok()?;
        if status.is_none() && is_dead(&dir, name) {
            // If it stays, it is removed later.
            let _ = sys::unlink(dir.as_fd(), name.as_bytes());
        }
        status
    });
    statuses.collect()
}

/// Returns whether the process that created a socket has ended.
fn is_dead(dir: &OwnedFd, name: &str) -> bool {
    UnixStream::connect(socket_path(dir, name))
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Reads a request; `None` if it is not a valid one.
pub fn read_question(stream: &UnixStream) -> Option<Question> {
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_MAX_BYTES))
        .read_line(&mut line)
        .ok()?;
    Question::ALL
        .iter()
        .find(|(_, word)| *word == line.trim_end())
        .map(|(question, _)| *question)
}

/// Requests the status of this user's server; `None` if none runs. Fails with [`Exit::Ipc`] if the server does not
/// answer, and with [`Exit::Protocol`] if the answer cannot be read.
pub fn status(places: &Places) -> Result<Option<Status>> {
    status_at(places, SOCKET)
}

fn status_at(places: &Places, name: &str) -> Result<Option<Status>> {
    let Some(stream) = question(places, name, Question::Status)? else {
        return Ok(None);
    };
    let mut answer = Vec::new();
    let got = stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer);
    // An empty answer means that the server ended after the request.
    if got.or_else(none_if_gone)? == 0 {
        return Ok(None);
    }
    read(&String::from_utf8_lossy(&answer)).map(Some)
}

fn read(answer: &str) -> Result<Status> {
    toml::from_str(answer).map_err(|_| {
        Error::new(
            Exit::Protocol,
            "sparsync: cannot read the status of the server: it runs another version",
        )
        .with_hint("`sparsync server restart` starts this version")
    })
}

/// A server that has answered a request to end.
pub struct Ending(UnixStream);

impl Ending {
    /// Waits until the server has ended, or at most `limit` (`None`: without limit). Returns whether it has ended.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let since = Since::now();
        let mut piece = [0; 4 << 10];
        loop {
            let left = limit.map(|limit| limit.saturating_sub(since.elapsed()));
            if left == Some(Duration::ZERO) || self.0.set_read_timeout(left).is_err() {
                return false;
            }
            match (&self.0).read(&mut piece) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Ok(0) | Err(_) => return true,
            }
        }
    }
}

/// Requests the server of this user to end; `None` if none runs. The answer may be of any version. Fails if there is
/// none.
pub fn end(places: &Places, query: Question) -> Result<Option<Ending>> {
    let Some(stream) = question(places, SOCKET, query)? else {
        return Ok(None);
    };
    let got = (&stream).read(&mut [0]).or_else(none_if_gone)?;
    Ok(if got > 0 { Some(Ending(stream)) } else { None })
}

/// Sends a request to a socket and returns the stream that will bring the answer; `None` if no server runs.
fn question(places: &Places, name: &str, question: Question) -> Result<Option<UnixStream>> {
    let Ok(dir) = trusted_path::open_dir(places.state.as_os_str().as_bytes(), LinkOwners::Trusted)
    else {
        return Ok(None);
    };
    let Ok(mut stream) = UnixStream::connect(socket_path(&dir, name)) else {
        return Ok(None);
    };
    let word = format!("{}\n", question.word());
    let written = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(word.as_bytes()));
    let written = written.map(|()| word.len()).or_else(none_if_gone)?;
    Ok(if written > 0 { Some(stream) } else { None })
}

/// Interprets a socket error: a timeout means that the server runs but does not answer; after any other error the
/// server is gone, which counts as 0 bytes.
fn none_if_gone(error: io::Error) -> Result<usize> {
    if !matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    ) {
        return Ok(0);
    }
    let words = format!(
        "sparsync: cannot reach the server: no answer on its control socket within {} s",
        PATIENCE.as_secs()
    );
    Err(Error::new(Exit::Ipc, words).with_hint("`sparsync server stop --now` kills it"))
}

/// Sends the status.
pub fn answer(mut stream: &UnixStream, status: &Status) {
    // The client may have disconnected.
    let _ = stream.write_all(toml::to_string(status).unwrap_or_default().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_status_fields_have_defaults() {
        let reply = "sparsync = \"9.0.0\"\nrunning = true\npid = 7\nport = 4711\ncolour = \"green\"\n\
                    [[sessions]]\nname = \"laptop\"\n";
        let status = read(reply).unwrap();
        assert_eq!((status.pid, status.port, status.draining), (7, 4711, false));
        assert_eq!(
            status.sessions,
            [SessionStatus {
                name: "laptop".into(),
                ..SessionStatus::default()
            }]
        );
        for bad in ["", "running = true\n", "\u{0}"] {
            assert!(
                read(bad)
                    .unwrap_err()
                    .hint
                    .unwrap()
                    .contains("server restart"),
                "{bad}"
            );
        }
    }

    #[test]
    fn rejected_clients_do_not_evict_other_errors() {
        let errors = Errors::default();
        (0..=ERRORS_MAX).for_each(|n| errors.push(n.to_string()));
        errors.push(ERRORS_MAX.to_string());
        (0..100).for_each(|n| errors.record_rejected(format!("stranger {n}")));
        let all = errors.all();
        assert_eq!(
            (all.len(), &*all[0], &*all[1]),
            (1 + ERRORS_MAX, "stranger 99", "1")
        );
        assert_eq!(
            errors.counts(),
            (ERRORS_MAX as u64 + 2, 100),
            "a repeated error counts again"
        );
    }
}
