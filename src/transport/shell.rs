//! A remote shell, usually ssh: the command line that takes a program to another machine, and the child that runs it.

#![allow(clippy::disallowed_methods, reason = "this is the home of programs that are started")]

use super::Link;
use super::link::{BlockingWriter, FAREWELL, Moved, Patience, PatientReader};
use crate::env;
use crate::exit::Exit;
use crate::fs::sys;
use crate::options::{ArgStyle, Connect, Family};
use crate::proto::{Sniffed, sniff};
use crate::work::clock::Since;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The shell, where nobody named another.
const DEFAULT_SHELL: &[u8] = b"ssh";

/// What is run on which machine.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// ssh asks the user nothing and tells him nothing: another way may be the faster one.
    pub is_quiet: bool,
    /// How that machine is reached.
    pub connect: &'a Connect,
    /// Whom to log in as.
    pub user: Option<&'a [u8]>,
    /// The machine, as the shell knows it.
    pub host: &'a [u8],
    /// The program: text for the shell at the other end, which may hold several words.
    pub program: &'a [u8],
    /// That end sends.
    pub server_sends: bool,
    /// The words about the options, the letters first; see `cli::server::words`.
    pub words: &'a [Vec<u8>],
    /// The words of `--remote-option`.
    pub remote_words: &'a [Vec<u8>],
    /// The operands that are there.
    pub paths: &'a [Vec<u8>],
}

impl Call<'_> {
    /// The command line of the shell, its name first, as rsync 3.5.0 writes it.
    pub fn argv(&self) -> Vec<Vec<u8>> {
        let Connect { shell, args: style, family, .. } = self.connect;
        let mut argv = shell.clone();
        if argv.is_empty() {
            argv.push(DEFAULT_SHELL.to_vec());
        }
        let is_ssh = argv[0].rsplit(|&b| b == b'/').next() == Some(DEFAULT_SHELL);
        if self.is_quiet && is_ssh {
            argv.extend([b"-q".to_vec(), b"-oBatchMode=yes".to_vec()]);
        }
        if let Some(user) = self.user {
            argv.extend([b"-l".to_vec(), user.to_vec()]);
        }
        // No other shell is known to have these letters.
        match family {
            Some(Family::Ipv4) if is_ssh => argv.push(b"-4".to_vec()),
            Some(Family::Ipv6) if is_ssh => argv.push(b"-6".to_vec()),
            _ => {}
        }
        argv.extend([self.host.to_vec(), self.program.to_vec(), b"--server".to_vec()]);
        if self.server_sends {
            argv.push(b"--sender".to_vec());
        }
        argv.extend(self.words.iter().map(|word| match style {
            ArgStyle::OldAll => word.clone(),
            ArgStyle::Escaped | ArgStyle::OldPaths | ArgStyle::Secluded => escape_option(word),
        }));
        let paths = self.paths.iter().map(|path| not_an_option(path));
        match style {
            ArgStyle::Secluded => {}
            ArgStyle::Escaped => {
                argv.extend(self.remote_words.iter().map(|word| escape_option(word)));
                argv.push(b".".to_vec());
                argv.extend(paths.map(|path| escape_path(&path, self.server_sends)));
            }
            ArgStyle::OldPaths | ArgStyle::OldAll => {
                argv.extend(self.remote_words.iter().cloned());
                argv.push(b".".to_vec());
                argv.extend(paths);
            }
        }
        argv
    }
}

/// The command line that runs these words at `[user@]host`, each of them as it is.
pub fn argv_of(shell: &[Vec<u8>], host: &str, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut argv = if shell.is_empty() { vec![DEFAULT_SHELL.to_vec()] } else { shell.to_vec() };
    let (user, host) = host.rsplit_once('@').map_or((None, host), |(user, host)| (Some(user), host));
    if let Some(user) = user {
        argv.extend([b"-l".to_vec(), user.into()]);
    }
    argv.push(host.into());
    argv.extend(words.iter().map(|word| if word.is_empty() { b"''".to_vec() } else { escape_option(word) }));
    argv
}

/// How a command is asked.
#[derive(Debug)]
pub struct Asking {
    /// The umask this process had; it is set for a moment, so no thread may be making files.
    pub umask: u32,
    /// The command's standard input.
    pub input: Option<File>,
    /// What it says on standard error is nobody's concern; else it goes to ours.
    pub is_quiet: bool,
    /// So much is heard at most.
    pub most_bytes: usize,
}

/// Runs a command line of [`argv_of`] to its end and hears what it says on standard output.
pub fn ask(argv: &[Vec<u8>], asking: Asking) -> io::Result<(Ended, Vec<u8>)> {
    let Asking { umask, input, is_quiet, most_bytes } = asking;
    let mut command = plain_command(argv)?;
    command.stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped());
    command.stderr(if is_quiet { Stdio::null() } else { Stdio::inherit() });
    sys::set_umask(umask);
    let child = command.spawn();
    sys::take_umask();
    let mut child = child?;
    let mut told = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // What is beyond that is not read: the command ends when nobody listens.
        stdout.take(most_bytes as u64).read_to_end(&mut told)?;
    }
    Ok((Ended::of(child.wait()?), told))
}

/// A command line as rsync tells it under `-vv`. A word of other than the plainest letters is in quotes; what is in them
/// is not escaped.
pub fn shown(argv: &[Vec<u8>]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+,-./=@_".contains(byte);
    let mut line = b"opening connection using:".to_vec();
    for word in argv {
        let quote: &[u8] = if word.iter().all(is_plain) { b"" } else { b"\"" };
        line.extend([b" ", quote, word, quote].concat());
    }
    line.extend(format!("  ({} args)", argv.len()).into_bytes());
    line
}

/// A path that begins with a dash would be read as an option.
fn not_an_option(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"-") { [b"./", path].concat() } else { path.to_vec() }
}

/// What a shell must not act on, besides wildcards.
fn is_special(byte: u8) -> bool {
    b"\"'&;|()$#!\n\r\\ `{}<>\t".contains(&byte)
}

fn is_wildcard(byte: u8) -> bool {
    b"*?[]".contains(&byte)
}

/// An argument of an option: nothing in it is for the shell but a home directory.
fn escape_option(word: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(word.len());
    for &byte in word {
        if is_special(byte) || is_wildcard(byte) {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

/// A path: wildcards are for the shell, and so is a backslash that takes one's force away.
fn escape_path(path: &[u8], server_sends: bool) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(path.len());
    // `~name` alone may be a file that is asked for; with a slash it is somebody's home.
    if server_sends && path.starts_with(b"~") && !path.contains(&b'/') {
        escaped.push(b'\\');
    }
    for (at, &byte) in path.iter().enumerate() {
        let guards = byte == b'\\' && path.get(at + 1).is_some_and(|&next| is_wildcard(next));
        if is_special(byte) && !guards {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

fn plain_command(argv: &[Vec<u8>]) -> io::Result<Command> {
    let words: Vec<&OsStr> = argv.iter().map(|word| OsStr::from_bytes(word)).collect();
    let [program, args @ ..] = words.as_slice() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    Ok(command)
}

/// Runs a command line of [`argv_of`] to its end; it tells what it has to tell to whoever hears us.
pub fn run_plain(argv: &[Vec<u8>], umask: u32) -> io::Result<Ended> {
    let mut command = plain_command(argv)?;
    sys::set_umask(umask);
    let status = command.status();
    sys::take_umask();
    status.map(Ended::of)
}

/// How a shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this code.
    Code(u8),
    /// By a signal.
    Killed,
    /// By us: it took too long.
    GivenUp,
}

impl Ended {
    /// What the run ends with if the conversation broke off and the shell ended so: rsync's own code for that, or the
    /// shell's if that is larger.
    pub fn exit(self) -> Exit {
        match self {
            Ended::Code(code) if code > Exit::Stream.code() => Exit::of_code(code).unwrap_or(Exit::Other(code)),
            Ended::Code(_) | Ended::Killed | Ended::GivenUp => Exit::Stream,
        }
    }

    /// What the run ends with in place of what it would, if the conversation came to its end and the shell then ended so: a
    /// script around ssh has its word heard, as with rsync.
    pub fn instead(self) -> Option<Exit> {
        match self {
            Ended::Code(0) | Ended::GivenUp => None,
            Ended::Code(code) => Some(Exit::of_code(code).unwrap_or(Exit::Other(code))),
            Ended::Killed => Some(Exit::Terminated),
        }
    }

    fn of(status: ExitStatus) -> Ended {
        status.code().and_then(|code| u8::try_from(code).ok()).map_or(Ended::Killed, Ended::Code)
    }
}

/// Who answered.
pub enum Answer {
    /// A sparsync: the conversation can begin.
    Native(Link),
    /// A stock rsync, which waits for the client's version.
    Rsync,
    /// Nobody: the stream ended, and nothing in it was a greeting.
    Nobody,
    /// Nobody, and the noise does not end.
    TooNoisy,
    /// Nobody within the time that `--timeout` grants, or before the run was to stop.
    GaveUp(io::Error),
}

/// A remote shell that runs. Dropped, it is killed, and waited for.
pub struct Shell {
    child: Child,
    ended: Option<Ended>,
    /// Its standard error, if that is held.
    held: Option<HeldStderr>,
}

/// Where the standard error of a remote shell goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stderr {
    /// To the standard error of this process.
    Inherited,
    /// Into a buffer until [`Shell::show_stderr`], so that a command that is only tried prints nothing.
    Held,
}

/// The most that is held, in bytes. The rest is dropped.
const HELD_MAX_BYTES: usize = 64 << 10;

/// Reads the standard error of a shell in a thread, and holds it or passes it on.
struct HeldStderr {
    /// What is held; `None`: it is passed on.
    waiting: Arc<Mutex<Option<Vec<u8>>>>,
    passing: JoinHandle<()>,
}

impl HeldStderr {
    fn start(mut from: ChildStderr) -> io::Result<HeldStderr> {
        let waiting = Arc::new(Mutex::new(Some(Vec::new())));
        let shared = waiting.clone();
        let pass = move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut piece) {
                match &mut *lock(&shared) {
                    Some(held) if held.len() < HELD_MAX_BYTES => held.extend_from_slice(&piece[..count]),
                    Some(_) => {}
                    None => drop(io::stderr().write_all(&piece[..count])),
                }
            }
        };
        let passing = std::thread::Builder::new().name("stderr".into()).spawn(pass)?;
        Ok(HeldStderr { waiting, passing })
    }

    fn show(&self) {
        if let Some(held) = lock(&self.waiting).take() {
            let _ = io::stderr().write_all(&held);
        }
    }
}

fn lock(waiting: &Mutex<Option<Vec<u8>>>) -> MutexGuard<'_, Option<Vec<u8>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shell {
    /// Starts it. `umask` is what this process had.
    ///
    /// The umask is set for a moment: no thread may be making files.
    pub fn start(argv: &[Vec<u8>], umask: u32, stderr: Stderr) -> io::Result<Shell> {
        let words: Vec<&OsStr> = argv.iter().map(|word| OsStr::from_bytes(word)).collect();
        let [program, args @ ..] = words.as_slice() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(if stderr == Stderr::Held { Stdio::piped() } else { Stdio::inherit() });
        sys::set_umask(umask);
        let child = command.spawn();
        sys::take_umask();
        let mut shell = Shell { child: child?, ended: None, held: None };
        shell.held = shell.child.stderr.take().map(HeldStderr::start).transpose()?;
        Ok(shell)
    }

    /// Passes on what it has printed on standard error, and will print.
    pub fn show_stderr(&self) {
        self.held.iter().for_each(HeldStderr::show);
    }

    /// Waits for the greeting. What a login shell says before it goes to `noise`.
    pub fn answer(&mut self, patience: &Patience, noise: &mut dyn Write) -> io::Result<Answer> {
        let (Some(stdout), Some(stdin)) = (self.child.stdout.take(), self.child.stdin.take()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        sys::widen_pipe(stdout.as_fd());
        sys::widen_pipe(stdin.as_fd());
        let mut reader: PatientReader<ChildStdout> = PatientReader::new(stdout, patience.clone());
        let mut heard = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let count = match reader.read(&mut piece) {
                Ok(count) => count,
                Err(error) => return Ok(Answer::GaveUp(error)),
            };
            heard.extend_from_slice(&piece[..count]);
            match sniff(&heard, count == 0) {
                Sniffed::Native { noise_len } => {
                    noise.write_all(&heard[..noise_len])?;
                    let rest = Cursor::new(heard.split_off(noise_len));
                    let parting = patience.parting.clone();
                    let (reader, writer) = (Box::new(rest.chain(reader)), Box::new(BlockingWriter(stdin)));
                    return Ok(Answer::Native(Link { reader, writer, parting, leave: None, moved: Moved::default() }));
                }
                Sniffed::Rsync { .. } => return Ok(Answer::Rsync),
                Sniffed::Hopeless => {
                    noise.write_all(&heard)?;
                    return Ok(if count == 0 { Answer::Nobody } else { Answer::TooNoisy });
                }
                Sniffed::NeedMore => {}
            }
        }
    }

    /// Waits for its end, which comes once its standard input is closed and the other end has left. `limit`: it is
    /// killed if it takes longer; and soon after the run shall stop in any case.
    pub fn wait(&mut self, limit: Option<Duration>, stop: &AtomicBool) -> io::Result<Ended> {
        const PAUSE_MAX: Duration = Duration::from_millis(50);
        let mut pause = Duration::from_micros(200);
        let waits = Since::now();
        let mut stopped = None;
        loop {
            if let Some(ended) = self.ended {
                self.drain_stderr();
                return Ok(ended);
            }
            let is_late = |since: Since, limit: Duration| since.elapsed() >= limit;
            if let Some(status) = self.child.try_wait()? {
                self.ended = Some(Ended::of(status));
            } else if limit.is_some_and(|limit| is_late(waits, limit))
                || stop.load(Ordering::Relaxed) && is_late(*stopped.get_or_insert_with(Since::now), FAREWELL)
            {
                self.kill();
                self.ended = Some(Ended::GivenUp);
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Waits a moment until all of its standard error is passed on. A background process of it may keep the pipe open.
    fn drain_stderr(&mut self) {
        let waits = Since::now();
        while self.held.as_ref().is_some_and(|held| !held.passing.is_finished()) && waits.elapsed() < LEAVE_TERMINAL {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it now. Asked first, it leaves the terminal as it found it: ssh may be waiting for a password.
    pub fn kill(&mut self) {
        let since = Since::now();
        let asked = self.ended.is_none() && env::end_process(self.child.id(), false).is_ok();
        while asked && self.ended.is_none() && since.elapsed() < LEAVE_TERMINAL {
            match self.child.try_wait() {
                Ok(Some(status)) => self.ended = Some(Ended::of(status)),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        if self.ended.is_none() {
            let _ = self.child.kill();
            self.ended = Some(self.child.wait().map_or(Ended::Killed, Ended::of));
        }
    }
}

/// How long a shell that is asked to end may take to put the terminal in order.
const LEAVE_TERMINAL: Duration = Duration::from_millis(200);

impl Drop for Shell {
    fn drop(&mut self) {
        self.kill();
    }
}
