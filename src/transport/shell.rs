//! Remote shells, usually ssh: builds the command line, starts the child process, and recognizes the program that
//! answers.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the home of programs that are started"
)]

use super::Link;
use super::link::{BlockingWriter, FAREWELL, Moved, Patience, PatientReader};
use crate::cli::server_args;
use crate::env;
use crate::exit::Exit;
use crate::fs::sys;
use crate::options::{ArgStyle, Connect, Family};
use crate::proto::{Sniffed, sniff};
use crate::report::escape::Cursor;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The shell if the user names none.
const DEFAULT_SHELL: &[u8] = b"ssh";

/// The program to run and the machine to run it on.
#[derive(Debug, Clone)]
pub struct ShellCall<'a> {
    /// ssh neither prompts nor prints: another transport may be faster.
    pub is_quiet: bool,
    /// How to reach the machine.
    pub connect: &'a Connect,
    /// The user to log in as.
    pub user: Option<&'a [u8]>,
    /// The machine, as the shell knows it.
    pub host: &'a [u8],
    /// The program: text for the remote shell, which can consist of several words.
    pub program: &'a [u8],
    pub server_sends: bool,
    /// The option words, the letters first; see `cli::server::words`.
    pub words: &'a [Vec<u8>],
    /// The words of `--remote-option`.
    pub remote_words: &'a [Vec<u8>],
    /// The operands at the server.
    pub paths: &'a [Vec<u8>],
}

impl ShellCall<'_> {
    /// Returns the command line of the shell, its name first, as rsync 3.5.0 writes it.
    pub fn argv(&self) -> Vec<Vec<u8>> {
        let Connect {
            shell,
            args: style,
            family,
            ..
        } = self.connect;
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
        // Other shells are not known to support these options.
        match family {
            Some(Family::Ipv4) if is_ssh => argv.push(b"-4".to_vec()),
            Some(Family::Ipv6) if is_ssh => argv.push(b"-6".to_vec()),
            _ => {}
        }
        argv.extend([
            self.host.to_vec(),
            self.program.to_vec(),
            b"--server".to_vec(),
        ]);
        if self.server_sends {
            argv.push(b"--sender".to_vec());
        }
        let (letters, rest) = self.words.split_at(server_args::unsecluded(self.words));
        let words = if *style == ArgStyle::Secluded {
            letters.iter().chain(&[])
        } else {
            letters.iter().chain(rest)
        };
        argv.extend(words.map(|word| match style {
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

    /// Returns the arguments that are not on the command line but sent to the server: with `--secluded-args`.
    pub fn secluded(&self) -> Option<Vec<Vec<u8>>> {
        let paths = self.paths.iter().map(|path| not_an_option(path));
        let options = self
            .words
            .iter()
            .skip(server_args::unsecluded(self.words))
            .chain(self.remote_words)
            .cloned();
        let args = options.chain([b".".to_vec()]).chain(paths).collect();
        if self.connect.args == ArgStyle::Secluded {
            Some(args)
        } else {
            None
        }
    }
}

/// Returns the command line that runs `words` at `[user@]host`, each word literally.
pub fn argv_of(shell: &[Vec<u8>], host: &str, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut argv = if shell.is_empty() {
        vec![DEFAULT_SHELL.to_vec()]
    } else {
        shell.to_vec()
    };
    let (user, host) = host
        .rsplit_once('@')
        .map_or((None, host), |(user, host)| (Some(user), host));
    if let Some(user) = user {
        argv.extend([b"-l".to_vec(), user.into()]);
    }
    argv.push(host.into());
    argv.extend(words.iter().map(|word| {
        if word.is_empty() {
            b"''".to_vec()
        } else {
            escape_option(word)
        }
    }));
    argv
}

/// The exit code of ssh if it cannot connect or log in.
pub const SSH_FAILED: u8 = 255;

/// Returns the next step after a login that failed.
pub fn login_hint(shell: &[Vec<u8>], host: &str) -> String {
    let command = argv_of(shell, host, &[]).join(&b' ');
    let command = String::from_utf8_lossy(&command);
    format!("the login must work first: `{command}` shows the reason")
}

/// How [`run_to_end`] runs a command.
#[derive(Debug)]
pub struct RunOptions {
    /// The umask that this process had. It is set for a moment, so no thread may be creating files.
    pub umask: u32,
    /// The command's standard input.
    pub input: Option<File>,
    /// Discard standard error; otherwise it goes to ours.
    pub is_quiet: bool,
    /// The maximum number of output bytes to read.
    pub most_bytes: usize,
}

/// Runs a command line of [`argv_of`] to its end and returns its standard output.
pub fn run_to_end(argv: &[Vec<u8>], options: RunOptions) -> io::Result<(ShellExit, Vec<u8>)> {
    let RunOptions {
        umask,
        input,
        is_quiet,
        most_bytes,
    } = options;
    let mut command = plain_command(argv)?;
    command
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped());
    command.stderr(if is_quiet {
        Stdio::null()
    } else {
        shown_stderr()
    });
    sys::set_umask(umask);
    let child = command.spawn();
    sys::take_umask();
    let mut child = child?;
    let passed_on = child.stderr.take().map(HeldStderr::start).transpose()?;
    if let Some(held) = &passed_on {
        held.show();
    }
    let mut output = Vec::new();
    // The rest is not read: dropping the pipe makes the command end, also after an error.
    let read = child
        .stdout
        .take()
        .map(|stdout| stdout.take(most_bytes as u64).read_to_end(&mut output));
    let ended = child.wait()?;
    if let Some(held) = &passed_on {
        held.drain();
    }
    read.transpose()?;
    Ok((ShellExit::from_status(ended), output))
}

/// Formats a command line as rsync prints it under `-vv`, after a title. Words with other than the plainest characters
/// are quoted; their content is not escaped.
pub fn shown(title: &str, argv: &[Vec<u8>]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+,-./=@_".contains(byte);
    let mut line = format!("{title}:").into_bytes();
    for word in argv {
        let quote: &[u8] = if word.iter().all(is_plain) {
            b""
        } else {
            b"\""
        };
        line.extend([b" ", quote, word, quote].concat());
    }
    line.extend(format!("  ({} args)", argv.len()).into_bytes());
    line
}

/// Prefixes a path that begins with a dash, which would be read as an option.
fn not_an_option(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"-") {
        [b"./", path].concat()
    } else {
        path.to_vec()
    }
}

/// Returns whether a shell would interpret this byte; wildcards are separate.
fn is_special(byte: u8) -> bool {
    b"\"'&;|()$#!\n\r\\ `{}<>\t".contains(&byte)
}

fn is_wildcard(byte: u8) -> bool {
    b"*?[]".contains(&byte)
}

/// Escapes an option argument. Only a leading `~` keeps its meaning for the shell.
pub fn escape_option(word: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(word.len());
    for &byte in word {
        if is_special(byte) || is_wildcard(byte) {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

/// Escapes a path. Wildcards keep their meaning for the shell, and so does a backslash before a wildcard, or a `!` that
/// inverts a class. rsync escapes that one, and then refuses what the shell finds.
fn escape_path(path: &[u8], server_sends: bool) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(path.len());
    // `~name` alone can be a requested file; with a slash it is a home directory.
    if server_sends && path.starts_with(b"~") && !path.contains(&b'/') {
        escaped.push(b'\\');
    }
    for (at, &byte) in path.iter().enumerate() {
        let guards = byte == b'\\' && path.get(at + 1).is_some_and(|&next| is_wildcard(next));
        let inverts = byte == b'!' && at > 0 && path[at - 1] == b'[';
        if is_special(byte) && !guards && !inverts {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

/// Returns whether a shell makes something else of a path that is not escaped (`--old-args`) than of an escaped one.
pub fn splits_path(path: &[u8], server_sends: bool) -> bool {
    escape_path(path, server_sends) != path
}

/// Returns whether a shell makes something else of an option that is not escaped than of an escaped one.
pub fn splits_word(word: &[u8]) -> bool {
    escape_option(word) != word
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

/// Runs a command line of [`argv_of`] to its end, with our standard output and standard error. What is for a terminal
/// goes through `out`, which passes on no control characters.
pub fn run_plain(argv: &[Vec<u8>], umask: u32, out: &mut dyn Write) -> io::Result<ShellExit> {
    let mut command = plain_command(argv)?;
    command.stderr(shown_stderr());
    if io::stdout().is_terminal() {
        command.stdout(Stdio::piped());
    }
    sys::set_umask(umask);
    let child = command.spawn();
    sys::take_umask();
    let mut child = child?;
    let passed_on = child.stderr.take().map(HeldStderr::start).transpose()?;
    if let Some(held) = &passed_on {
        held.show();
    }
    if let Some(mut stdout) = child.stdout.take() {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stdout.read(&mut piece) {
            out.write_all(&piece[..count])?;
            out.flush()?;
        }
    }
    let ended = child.wait()?;
    if let Some(held) = &passed_on {
        held.drain();
    }
    Ok(ShellExit::from_status(ended))
}

/// Starts a command in a shell with a socket as its standard input and output. It ends by itself when the socket is
/// closed.
pub fn start_on_socket(
    shell: &OsStr,
    command: &[u8],
    socket: OwnedFd,
    umask: u32,
    vars: Vec<(OsString, OsString)>,
) -> io::Result<()> {
    let mut started = Command::new(shell);
    started.arg("-c").arg(OsStr::from_bytes(command)).envs(vars);
    started
        .stdin(Stdio::from(socket.try_clone()?))
        .stdout(Stdio::from(socket));
    sys::set_umask(umask);
    let child = started.spawn();
    sys::take_umask();
    child.map(drop)
}

/// How [`run_hook`] runs a command.
#[derive(Debug)]
pub struct HookOptions<'a> {
    /// See [`RunOptions::umask`].
    pub umask: u32,
    /// Additional variables of its environment.
    pub vars: Vec<(OsString, OsString)>,
    /// Its standard input.
    pub input: &'a [u8],
    /// How much of its output is returned. The rest is discarded. 0: the output goes nowhere.
    pub most_bytes: usize,
}

/// Runs a command in a shell to its end. Returns its raw status and the beginning of its standard output.
pub fn run_hook(
    shell: &OsStr,
    command: &[u8],
    options: HookOptions<'_>,
) -> io::Result<(i32, Vec<u8>)> {
    let HookOptions {
        umask,
        vars,
        input,
        most_bytes,
    } = options;
    let mut started = Command::new(shell);
    started.arg("-c").arg(OsStr::from_bytes(command)).envs(vars);
    started.stdin(if input.is_empty() {
        Stdio::null()
    } else {
        Stdio::piped()
    });
    started.stdout(if most_bytes > 0 {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    sys::set_umask(umask);
    let child = started.spawn();
    sys::take_umask();
    let mut child = child?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read it.
        let _ = stdin.write_all(input);
    }
    let mut output = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        (&mut stdout)
            .take(most_bytes as u64)
            .read_to_end(&mut output)?;
        io::copy(&mut stdout, &mut io::sink())?;
    }
    Ok((child.wait()?.into_raw(), output))
}

/// How the shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellExit {
    /// It exited with this code.
    Code(u8),
    /// A signal killed it.
    Killed,
    /// We killed it because it took too long.
    GivenUp,
}

impl ShellExit {
    /// Returns the exit code of a run whose session was cut off before the shell ended like this: rsync's code for
    /// that, or the shell's own if it is larger.
    pub fn exit(self) -> Exit {
        match self {
            ShellExit::Code(code) if code > Exit::Stream.code() => {
                Exit::of_code(code).unwrap_or(Exit::Other(code))
            }
            ShellExit::Code(_) | ShellExit::Killed | ShellExit::GivenUp => Exit::Stream,
        }
    }

    /// Returns the exit code that replaces the run's own if the session was complete and the shell then ended like
    /// this. As with rsync, this passes on the exit code of a wrapper script around ssh.
    pub fn instead(self) -> Option<Exit> {
        match self {
            ShellExit::Code(0) | ShellExit::GivenUp => None,
            ShellExit::Code(code) => Some(Exit::of_code(code).unwrap_or(Exit::Other(code))),
            ShellExit::Killed => Some(Exit::Terminated),
        }
    }

    fn from_status(status: ExitStatus) -> ShellExit {
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .map_or(ShellExit::Killed, ShellExit::Code)
    }
}

/// The program that answered.
pub enum ShellAnswer {
    /// A sparsync: the session can begin.
    Native(Link),
    /// A stock rsync, which has the client's version. Its own version is the first thing to read.
    Rsync(Link),
    /// No answer: the stream ended without a greeting.
    Silent,
    /// No answer: the noise exceeds its limit, or an rsync greeted with a version that no rsync has.
    Mismatch,
    /// No answer before the timeout of `--timeout`, or before the run was stopped.
    GaveUp(io::Error),
}

/// A running remote shell. Dropping it kills the child and waits for it.
pub struct Shell {
    child: Child,
    ended: Option<ShellExit>,
    /// Its standard error, if that is held.
    held: Option<HeldStderr>,
}

/// Where the standard error of a remote shell goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stderr {
    /// To the standard error of this process. If that is a terminal, control characters are escaped on the way.
    Inherited,
    /// Into a buffer until [`Shell::show_stderr`], so that a mere attempt prints nothing.
    Held,
}

/// The maximum number of bytes that are held. The rest is dropped.
const HELD_MAX_BYTES: usize = 64 << 10;

/// Returns the standard error of a program that reaches another machine. What that machine prints must not control the
/// terminal, so it does not get the terminal itself.
fn shown_stderr() -> Stdio {
    if io::stderr().is_terminal() {
        Stdio::piped()
    } else {
        Stdio::inherit()
    }
}

/// Reads the standard error of a shell in a thread, and holds it or passes it on.
struct HeldStderr {
    way: Arc<Mutex<StderrWay>>,
    passing: JoinHandle<()>,
}

/// What happens to the standard error of a shell that arrives.
enum StderrWay {
    /// It is held.
    Held(Vec<u8>),
    /// It is passed on.
    To(Box<dyn Write + Send>),
}

impl HeldStderr {
    fn start(mut from: ChildStderr) -> io::Result<HeldStderr> {
        let way = Arc::new(Mutex::new(StderrWay::Held(Vec::new())));
        let shared = way.clone();
        let pass = move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut piece) {
                match &mut *shared.lock() {
                    StderrWay::Held(held) if held.len() < HELD_MAX_BYTES => {
                        held.extend_from_slice(&piece[..count])
                    }
                    StderrWay::Held(_) => {}
                    StderrWay::To(out) => drop(out.write_all(&piece[..count])),
                }
            }
        };
        let passing = std::thread::Builder::new()
            .name("stderr".into())
            .spawn(pass)?;
        Ok(HeldStderr { way, passing })
    }

    /// Waits briefly until all was passed on. A background process can keep the pipe open.
    fn drain(&self) {
        let waits = Since::now();
        while !self.passing.is_finished() && waits.elapsed() < LEAVE_TERMINAL {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn show(&self) {
        let mut way = self.way.lock();
        if let StderrWay::Held(held) = &*way {
            let mut out = env::stderr(Cursor::Advances, false);
            // As with output that the shell prints itself, nothing depends on it.
            let _ = out.write_all(held);
            *way = StderrWay::To(out);
        }
    }
}

impl Shell {
    /// Starts the shell. `umask` is the one that this process had.
    ///
    /// It is set for a moment, so no thread may be creating files.
    pub fn start(argv: &[Vec<u8>], umask: u32, stderr: Stderr) -> io::Result<Shell> {
        Shell::start_command(plain_command(argv)?, umask, stderr)
    }

    /// Starts the shell that reaches a daemon, which learns the daemon's port from a variable. 0: none was given.
    pub fn start_for_daemon(argv: &[Vec<u8>], umask: u32, port: i32) -> io::Result<Shell> {
        let mut command = plain_command(argv)?;
        command.env("RSYNC_PORT", port.to_string());
        Shell::start_command(command, umask, Stderr::Inherited)
    }

    fn start_command(mut command: Command, umask: u32, stderr: Stderr) -> io::Result<Shell> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(match stderr {
            Stderr::Held => Stdio::piped(),
            Stderr::Inherited => shown_stderr(),
        });
        sys::set_umask(umask);
        let child = command.spawn();
        sys::take_umask();
        let mut shell = Shell {
            child: child?,
            ended: None,
            held: None,
        };
        shell.held = shell
            .child
            .stderr
            .take()
            .map(HeldStderr::start)
            .transpose()?;
        if stderr == Stderr::Inherited {
            shell.show_stderr();
        }
        Ok(shell)
    }

    /// Prints the standard error that is held, and passes on the rest as it arrives.
    pub fn show_stderr(&self) {
        if let Some(held) = &self.held {
            held.show();
        }
    }

    /// Passes the standard error on to `out` from now on, if it goes through this process.
    pub fn pass_stderr_to(&self, out: Box<dyn Write + Send>) {
        if let Some(held) = &self.held {
            *held.way.lock() = StderrWay::To(out);
        }
    }

    /// Returns the stream to and from the remote side, whatever it sends. Can be called once.
    pub fn link(&mut self, patience: &Patience) -> io::Result<Link> {
        let (Some(stdout), Some(stdin)) = (self.child.stdout.take(), self.child.stdin.take())
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let reader = Box::new(PatientReader::new(stdout, patience.clone()));
        let writer = Box::new(BlockingWriter(stdin));
        Ok(Link {
            reader,
            writer,
            parting: patience.parting.clone(),
            leave: None,
            moved: Moved::default(),
        })
    }

    /// Writes what the program reads before it answers. If the program has ended, [`Shell::answer`]
    /// reports that.
    pub fn write_first(&mut self, bytes: &[u8]) {
        if let Some(stdin) = &mut self.child.stdin {
            let _ = stdin.write_all(bytes);
        }
    }

    /// Sends the client's version of rsync's protocol, which some rsyncs read before they send anything, and waits for
    /// the greeting. A sparsync skips the version.
    ///
    /// The output of a login shell before the greeting goes to `noise`. `waits` is called several times a second with
    /// the time since the other end has sent something.
    pub fn answer(
        &mut self,
        version: [u8; 4],
        patience: &Patience,
        noise: &mut dyn Write,
        waits: &mut dyn FnMut(Duration),
    ) -> io::Result<ShellAnswer> {
        self.write_first(&version);
        let (Some(stdout), Some(stdin)) = (self.child.stdout.take(), self.child.stdin.take())
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        sys::widen_pipe(stdout.as_fd());
        sys::widen_pipe(stdin.as_fd());
        let mut reader: PatientReader<ChildStdout> = PatientReader::new(stdout, patience.clone());
        let mut received = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let count = match reader.read_reporting(&mut piece, waits) {
                Ok(count) => count,
                Err(error) => return Ok(ShellAnswer::GaveUp(error)),
            };
            received.extend_from_slice(&piece[..count]);
            let sniffed = sniff(&received, count == 0);
            match sniffed {
                Sniffed::Native { noise_len } | Sniffed::Rsync { noise_len, .. } => {
                    noise.write_all(&received[..noise_len])?;
                    let rest = io::Cursor::new(received.split_off(noise_len));
                    let parting = patience.parting.clone();
                    let reader = Box::new(rest.chain(reader));
                    let writer = Box::new(BlockingWriter(stdin));
                    let link = Link {
                        reader,
                        writer,
                        parting,
                        leave: None,
                        moved: Moved::default(),
                    };
                    let is_native = matches!(sniffed, Sniffed::Native { .. });
                    return Ok(if is_native {
                        ShellAnswer::Native(link)
                    } else {
                        ShellAnswer::Rsync(link)
                    });
                }
                Sniffed::Hopeless => {
                    noise.write_all(&received)?;
                    return Ok(if count == 0 {
                        ShellAnswer::Silent
                    } else {
                        ShellAnswer::Mismatch
                    });
                }
                Sniffed::UnknownVersion { noise_len } => {
                    noise.write_all(&received[..noise_len])?;
                    return Ok(ShellAnswer::Mismatch);
                }
                Sniffed::NeedMore => {}
            }
        }
    }

    /// Waits for the shell to end, which happens once its standard input is closed and the server has left. Kills it
    /// after `limit`, and in any case soon after `stop` is set.
    pub fn wait(&mut self, limit: Option<Duration>, stop: &AtomicBool) -> io::Result<ShellExit> {
        const PAUSE_MAX: Duration = Duration::from_millis(50);
        let mut pause = Duration::from_micros(200);
        let waits = Since::now();
        let mut stopped = None;
        loop {
            if let Some(ended) = self.ended {
                if let Some(held) = &self.held {
                    held.drain();
                }
                return Ok(ended);
            }
            let is_late = |since: Since, limit: Duration| since.elapsed() >= limit;
            if let Some(status) = self.child.try_wait()? {
                self.ended = Some(ShellExit::from_status(status));
            } else if limit.is_some_and(|limit| is_late(waits, limit))
                || stop.load(Ordering::Relaxed)
                    && is_late(*stopped.get_or_insert_with(Since::now), FAREWELL)
            {
                self.kill();
                self.ended = Some(ShellExit::GivenUp);
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Ends the shell now. SIGTERM first lets ssh restore the terminal, for example at a password prompt.
    pub fn kill(&mut self) {
        let since = Since::now();
        let is_signalled = self.ended.is_none() && env::end_process(self.child.id(), false).is_ok();
        while is_signalled && self.ended.is_none() && since.elapsed() < LEAVE_TERMINAL {
            match self.child.try_wait() {
                Ok(Some(status)) => self.ended = Some(ShellExit::from_status(status)),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        if self.ended.is_none() {
            // Fails only if it has ended; the wait below finds that.
            let _ = self.child.kill();
            self.ended = Some(
                self.child
                    .wait()
                    .map_or(ShellExit::Killed, ShellExit::from_status),
            );
        }
    }
}

/// How long a shell may take to restore the terminal after SIGTERM.
const LEAVE_TERMINAL: Duration = Duration::from_millis(200);

impl Drop for Shell {
    fn drop(&mut self) {
        self.kill();
    }
}
