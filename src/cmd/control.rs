//! How a server of this user is asked: a socket in its state directory, which only that user can reach.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::trust::place::Places;
use crate::trust::{Pin, files};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const SOCKET: &str = "control";
/// The longest question.
const QUESTION_MAX_BYTES: u64 = 64;
/// The longest answer.
const ANSWER_MAX_BYTES: u64 = 16 << 20;
/// How long the other end may take for a word. A server that drains answers later.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many errors are kept.
const ERRORS_MAX: usize = 8;

/// What is asked of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// How it is.
    Status,
    /// To end once its sessions have.
    Drain,
    /// To end.
    Stop,
}

impl Question {
    const ALL: [(Question, &str); 3] =
        [(Question::Status, "status"), (Question::Drain, "drain"), (Question::Stop, "stop")];

    fn word(self) -> &'static str {
        Question::ALL.iter().find(|(question, _)| *question == self).map_or("", |(_, word)| word)
    }
}

/// How a server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its version. The first field, so that a program finds the line that begins with it.
    pub sparsync: String,
    /// Whether it runs; the rest is empty if not.
    pub running: bool,
    /// Its process.
    pub pid: u32,
    /// The key that it shows.
    pub pin: Option<Pin>,
    /// The port of UDP and TCP.
    pub port: u16,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Since when, in seconds.
    pub uptime_secs: u64,
    /// It takes nobody any more.
    pub draining: bool,
    /// What runs.
    pub sessions: Vec<SessionStatus>,
    /// How many sessions there were.
    pub sessions_total: u64,
    /// Bytes from clients, in all.
    pub bytes_in: u64,
    /// Bytes to clients, in all.
    pub bytes_out: u64,
    /// The last errors, the newest last.
    pub errors: Vec<String>,
}

impl Status {
    /// That of a server that does not run.
    pub fn down() -> Status {
        Status {
            sparsync: env!("CARGO_PKG_VERSION").into(),
            running: false,
            pid: 0,
            pin: None,
            port: 0,
            addresses: Vec::new(),
            uptime_secs: 0,
            draining: false,
            sessions: Vec::new(),
            sessions_total: 0,
            bytes_in: 0,
            bytes_out: 0,
            errors: Vec::new(),
        }
    }
}

/// A session that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The name of its grant.
    pub name: String,
    /// Where its client spoke from first.
    pub address: String,
    /// How it came.
    pub transport: String,
    /// Since when, in seconds.
    pub secs: u64,
    /// Bytes from the client.
    pub bytes_in: u64,
    /// Bytes to the client.
    pub bytes_out: u64,
}

/// The last errors of a server.
#[derive(Debug, Default)]
pub struct Errors(Mutex<VecDeque<String>>);

impl Errors {
    /// Adds one; the oldest goes where there are too many.
    pub fn push(&self, error: String) {
        let mut errors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() == ERRORS_MAX {
            errors.pop_front();
        }
        errors.push_back(error);
    }

    /// All, the newest last.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// The path of the socket, short enough for one whatever the directory is called. Good while `dir` is open.
fn socket_path(dir: &OwnedFd) -> std::path::PathBuf {
    Path::new(std::ffi::OsStr::from_bytes(&sys::proc_fd(dir.as_fd()))).join(SOCKET)
}

/// Opens the socket. Only whoever holds the lock of the state directory may do so: what is there is a left-over.
pub fn listen(places: &Places) -> Result<UnixListener> {
    let failed = |error: io::Error| files::failed("listen at", &places.state.join(SOCKET), &error);
    let dir = sys::open_dir_path(places.state.as_os_str().as_bytes()).map_err(failed)?;
    match sys::unlink(dir.as_fd(), SOCKET.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(socket_path(&dir)).map_err(failed)
}

/// Reads a question; `None`: it was none.
pub fn hear(stream: &UnixStream) -> Option<Question> {
    stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_MAX_BYTES)).read_line(&mut line).ok()?;
    Question::ALL.iter().find(|(_, word)| *word == line.trim_end()).map(|(question, _)| *question)
}

/// Asks the server of this user; `None`: none runs. Of one that ends the answer is there when it has ended.
pub fn ask(places: &Places, question: Question) -> Result<Option<Status>> {
    let Ok(dir) = sys::open_dir_path(places.state.as_os_str().as_bytes()) else {
        return Ok(None);
    };
    let Ok(mut stream) = UnixStream::connect(socket_path(&dir)) else {
        return Ok(None);
    };
    let failed = |error: io::Error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: the server does not answer at its socket: {error}; see `server stop --now`"),
        )
    };
    let limit = (question == Question::Status).then_some(PATIENCE);
    stream.set_read_timeout(limit).map_err(failed)?;
    stream.write_all(format!("{}\n", question.word()).as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    (&stream).take(ANSWER_MAX_BYTES).read_to_end(&mut answer).map_err(failed)?;
    if answer.is_empty() {
        // It ended between the two words.
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&answer);
    toml::from_str(&text).map(Some).map_err(|_| {
        Error::new(
            Exit::Protocol,
            "sparsync: the server is of another version: `sparsync server restart` starts this one",
        )
    })
}

/// Answers.
pub fn answer(mut stream: &UnixStream, status: &Status) {
    // Whoever asked may have gone.
    let _ = stream.write_all(toml::to_string(status).unwrap_or_default().as_bytes());
}
