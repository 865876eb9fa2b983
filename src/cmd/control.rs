//! How a server of this user is asked: a socket in its state directory, which only that user can reach.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::trust::place::Places;
use crate::trust::{Pin, files};
use crate::work::clock::Since;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const SOCKET: &str = "control";
/// The longest question.
const QUESTION_MAX_BYTES: u64 = 64;
/// The longest answer.
const ANSWER_MAX_BYTES: u64 = 16 << 20;
/// How long the other end may take for a word.
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
    /// To end. Its clients learn that it was stopped.
    Stop,
    /// To end, because another one takes its place: its clients connect to that.
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
        Question::ALL.iter().find(|(question, _)| *question == self).map_or("", |(_, word)| word)
    }
}

/// How a server is. Of another version's answer what is not said is empty, so that a server can be restarted as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its version. The first field, so that a program finds the line that begins with it.
    pub sparsync: String,
    /// Whether it runs; the rest is empty if not.
    pub running: bool,
    /// Its process.
    pub pid: u32,
    /// The key that it shows.
    #[serde(default)]
    pub pin: Option<Pin>,
    /// The port of UDP and TCP.
    pub port: u16,
    /// Where it listens.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Since when, in seconds.
    #[serde(default)]
    pub uptime_secs: u64,
    /// Whether it accepts no new clients.
    #[serde(default)]
    pub draining: bool,
    /// Who started it waits to hear how it is, and starts it again: systemd.
    #[serde(default)]
    pub supervised: bool,
    /// What it and its sessions held a moment ago, in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The most memory that it and its sessions may hold, in bytes; 0: there is no such bound.
    #[serde(default)]
    pub memory_max_bytes: u64,
    /// What runs.
    #[serde(default)]
    pub sessions: Vec<SessionStatus>,
    /// How many sessions there were.
    #[serde(default)]
    pub sessions_total: u64,
    /// Bytes from clients, in all.
    #[serde(default)]
    pub bytes_in: u64,
    /// Bytes to clients, in all.
    #[serde(default)]
    pub bytes_out: u64,
    /// The last client that was not let in, and the last errors, the newest last.
    #[serde(default)]
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
            supervised: false,
            memory_bytes: 0,
            memory_max_bytes: 0,
            sessions: Vec::new(),
            sessions_total: 0,
            bytes_in: 0,
            bytes_out: 0,
            errors: Vec::new(),
        }
    }
}

/// A session that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
pub struct Errors(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    errors: VecDeque<String>,
    turned_away: Option<String>,
}

impl Errors {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one, unless it is the last one again; the oldest goes where there are too many.
    pub fn push(&self, error: String) {
        let errors = &mut self.lock().errors;
        if errors.back() == Some(&error) {
            return;
        }
        if errors.len() == ERRORS_MAX {
            errors.pop_front();
        }
        errors.push_back(error);
    }

    /// Keeps what was told of the last client that was not let in: none of them pushes out what else there is to know.
    pub fn turned_away(&self, words: String) {
        self.lock().turned_away = Some(words);
    }

    /// What is known of the last client that was not let in, and all errors, the newest last.
    pub fn all(&self) -> Vec<String> {
        let kept = self.lock();
        kept.turned_away.iter().chain(&kept.errors).cloned().collect()
    }
}

/// The path of the socket, short enough for one whatever the directory is called. Good while `dir` is open.
fn socket_path(dir: &OwnedFd) -> std::path::PathBuf {
    Path::new(std::ffi::OsStr::from_bytes(&sys::proc_fd(dir.as_fd()))).join(SOCKET)
}

/// The state directory. Whoever could change it could stop the server, or answer in its place.
pub fn state_dir(places: &Places) -> Result<OwnedFd> {
    files::private_dir(&places.state, "is where the server is told to end")
}

/// Opens the socket, for its owner alone. Only whoever holds the lock of the state directory may do so: what is there is a
/// left-over. No other thread makes files meanwhile: the umask is another one, and `umask` again after that.
pub fn listen(places: &Places, umask: u32) -> Result<UnixListener> {
    let failed = |error: io::Error| files::failed("listen at", &places.state.join(SOCKET), &error);
    let dir = state_dir(places)?;
    match sys::unlink(dir.as_fd(), SOCKET.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    sys::set_umask(0o177);
    let bound = UnixListener::bind(socket_path(&dir));
    sys::set_umask(umask);
    bound.map_err(failed)
}

/// Reads a question; `None`: it was none.
pub fn hear(stream: &UnixStream) -> Option<Question> {
    stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_MAX_BYTES)).read_line(&mut line).ok()?;
    Question::ALL.iter().find(|(_, word)| *word == line.trim_end()).map(|(question, _)| *question)
}

/// Asks the server of this user how it is; `None`: none runs. Errs where it does not answer
/// ([`Exit::Ipc`]), and where the answer cannot be read ([`Exit::Protocol`]).
pub fn status(places: &Places) -> Result<Option<Status>> {
    let Some(stream) = question(places, Question::Status)? else {
        return Ok(None);
    };
    let mut answer = Vec::new();
    let heard = stream.take(ANSWER_MAX_BYTES).read_to_end(&mut answer);
    // Without one it ended between the two words.
    if heard.or_else(none_if_gone)? == 0 {
        return Ok(None);
    }
    read(&String::from_utf8_lossy(&answer)).map(Some)
}

fn read(answer: &str) -> Result<Status> {
    toml::from_str(answer).map_err(|_| {
        Error::new(
            Exit::Protocol,
            "sparsync: the server is of another version: `sparsync server restart` starts this one",
        )
    })
}

/// A server that was asked to end, and has answered.
pub struct Ending(UnixStream);

impl Ending {
    /// Waits until it has ended, or for so long; `None`: for as long as that takes. Whether it has ended.
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
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Ok(0) | Err(_) => return true,
            }
        }
    }
}

/// Asks the server of this user to end, whatever its version answers; `None`: none runs. Errs if it does not answer.
pub fn end(places: &Places, asked: Question) -> Result<Option<Ending>> {
    let Some(stream) = question(places, asked)? else {
        return Ok(None);
    };
    let heard = (&stream).read(&mut [0]).or_else(none_if_gone)?;
    Ok((heard > 0).then_some(Ending(stream)))
}

/// The stream on which the answer to a question comes; `None`: no server runs.
fn question(places: &Places, question: Question) -> Result<Option<UnixStream>> {
    let Ok(dir) = sys::open_dir_path(places.state.as_os_str().as_bytes()) else {
        return Ok(None);
    };
    let Ok(mut stream) = UnixStream::connect(socket_path(&dir)) else {
        return Ok(None);
    };
    let word = format!("{}\n", question.word());
    let asked = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(word.as_bytes()));
    let asked = asked.map(|()| word.len()).or_else(none_if_gone)?;
    Ok((asked > 0).then_some(stream))
}

/// What an error of the socket means: 0 bytes of a server that has gone, or that one runs and does not answer.
fn none_if_gone(error: io::Error) -> Result<usize> {
    if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return Ok(0);
    }
    let words = "sparsync: the server does not answer at its socket: `sparsync server stop --now` ends it by force";
    Err(Error::new(Exit::Ipc, words))
}

/// Answers.
pub fn answer(mut stream: &UnixStream, status: &Status) {
    // Whoever asked may have gone.
    let _ = stream.write_all(toml::to_string(status).unwrap_or_default().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_does_not_say_is_empty() {
        let told = "sparsync = \"9.0.0\"\nrunning = true\npid = 7\nport = 4711\ncolour = \"green\"\n\
                    [[sessions]]\nname = \"laptop\"\n";
        let status = read(told).unwrap();
        assert_eq!((status.pid, status.port, status.draining), (7, 4711, false));
        assert_eq!(status.sessions, [SessionStatus { name: "laptop".into(), ..SessionStatus::default() }]);
        for bad in ["", "running = true\n", "\u{0}"] {
            assert!(String::from_utf8(read(bad).unwrap_err().message).unwrap().contains("server restart"), "{bad}");
        }
    }

    #[test]
    fn those_who_are_turned_away_push_no_error_out() {
        let errors = Errors::default();
        (0..=ERRORS_MAX).for_each(|n| errors.push(n.to_string()));
        errors.push(ERRORS_MAX.to_string());
        (0..100).for_each(|n| errors.turned_away(format!("stranger {n}")));
        let all = errors.all();
        assert_eq!((all.len(), &*all[0], &*all[1]), (1 + ERRORS_MAX, "stranger 99", "1"));
    }
}
