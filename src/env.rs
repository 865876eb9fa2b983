//! The process as a value: arguments, variables, working directory, streams, signals.

#![allow(clippy::disallowed_methods, reason = "this is their home")]

use crate::checksum_cache::ChecksumCache;
use crate::exit::Exit;
use crate::fs::sys::exit_at_later_signal;
use crate::plan::planned::{IncompletePlan, StoredPlan};
use crate::report::PutAction;
use crate::report::escape::{Cursor, EscapedWriter};
use crate::report::explainer::Explainer;
use crate::report::failed_paths::FailedPaths;
use crate::report::metrics::RunCounts;
use crate::work::clock::now_unix;
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the deadline is checked in its last second.
const DEADLINE_LOOK: Duration = Duration::from_millis(20);

/// The longest secret that a user may enter.
const SECRET_MAX_BYTES: usize = 4096;
/// How often a prompt for a secret checks whether the run must stop.
const SECRET_LOOK_MS: u32 = 100;

/// Returns standard output. Only a terminal gets no control characters: a script reads names as rsync prints them.
fn stdout(cursor: Cursor, is_eight_bit: bool) -> Box<dyn Write + Send> {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        Box::new(EscapedWriter::new(stdout, cursor, is_eight_bit))
    } else {
        Box::new(stdout)
    }
}

/// Returns standard error, which passes on no control characters.
pub fn stderr(cursor: Cursor, is_eight_bit: bool) -> Box<dyn Write + Send> {
    Box::new(EscapedWriter::new(std::io::stderr(), cursor, is_eight_bit))
}

/// Everything a command may know about its process.
pub struct Env {
    /// The name under which the program was called.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The absolute working directory; `/` if there is none.
    pub cwd: Vec<u8>,
    /// Why there is no working directory. For example, it was removed.
    pub no_cwd: Option<std::io::Error>,
    /// Receives the results.
    pub stdout: Box<dyn Write + Send>,
    /// Receives error messages.
    pub stderr: Box<dyn Write + Send>,
    /// Whether `stdout` is a terminal.
    pub stdout_is_tty: bool,
    /// Whether `stderr` is a terminal.
    pub stderr_is_tty: bool,
    /// The original umask. The process sets it to 0, so that files get exactly the requested modes.
    pub umask: u32,
    /// Set by SIGINT, SIGTERM and SIGHUP, and by any code that stops the run for another reason.
    pub stop: Arc<AtomicBool>,
    /// Set only by these signals and by the deadline.
    pub stop_requested: Arc<AtomicBool>,
    /// [`Env::handle_signals`] was called.
    handles_signals: AtomicBool,
    /// Set by the deadline of `--stop-after` or `--stop-at`.
    pub timed_out: Arc<AtomicBool>,
    /// Set by SIGVTALRM: the user requests a line of progress.
    pub progress_requested: Arc<AtomicBool>,
    /// The paths that the run could not transfer, set at its end if they are requested.
    pub failed_paths: Mutex<Option<FailedPaths>>,
    /// The plan that the run carries out, if there is one.
    pub stored_plan: Option<Arc<dyn StoredPlan>>,
    /// The same plan, if it lacks a part of the run.
    pub incomplete_plan: Option<IncompletePlan>,
    /// Receives the actions of the run, if they are recorded.
    pub record_action: Option<PutAction>,
    /// Collects what the run finds out about the paths to explain.
    pub explainer: Option<Arc<Explainer>>,
    /// The counts of the run, set at its end.
    pub counts: Mutex<Option<RunCounts>>,
    /// The digests of earlier runs.
    pub checksum_cache: Arc<ChecksumCache>,
}

impl Env {
    /// Returns the environment of this process, and sets its umask to 0 and SIGCHLD to its default. Call it once, before
    /// any thread is started.
    pub fn of_process() -> Env {
        crate::fs::sys::refuse_calls();
        crate::fs::sys::keep_ended_children();
        let mut args = std::env::args_os();
        let program = args.next().unwrap_or_else(|| "sparsync".into());
        let (cwd, no_cwd) = match std::env::current_dir() {
            Ok(dir) => (dir.into_os_string().into_vec(), None),
            Err(error) => (b"/".to_vec(), Some(error)),
        };
        Env {
            program,
            args: args.collect(),
            cwd,
            no_cwd,
            stdout: stdout(Cursor::Advances, false),
            stderr: stderr(Cursor::Advances, false),
            stdout_is_tty: std::io::stdout().is_terminal(),
            stderr_is_tty: std::io::stderr().is_terminal(),
            umask: crate::fs::sys::take_umask(),
            stop: Arc::new(AtomicBool::new(false)),
            stop_requested: Arc::new(AtomicBool::new(false)),
            handles_signals: AtomicBool::new(false),
            timed_out: Arc::new(AtomicBool::new(false)),
            progress_requested: Arc::new(AtomicBool::new(false)),
            failed_paths: Mutex::default(),
            stored_plan: None,
            incomplete_plan: None,
            record_action: None,
            explainer: None,
            counts: Mutex::default(),
            checksum_cache: Arc::default(),
        }
    }

    /// Takes standard output again after a run, which has moved it into its reporter.
    pub fn reopen_stdout(&mut self) {
        self.stdout = stdout(Cursor::Advances, false);
    }

    /// Prepares the streams for a run: it may show progress, and pass on all bytes above 127 (`-8`).
    pub fn set_streams(&mut self, cursor: Cursor, is_eight_bit: bool) {
        self.stdout = stdout(cursor, is_eight_bit);
        self.stderr = stderr(cursor, is_eight_bit);
    }

    /// Handles two signals that would end the process by default: SIGXFSZ, so that exceeding `ulimit -f` is an I/O error,
    /// and SIGVTALRM, which requests a line of progress.
    pub fn outlive_signals(&self) {
        use rustix::process::Signal;
        let flags = [
            (Signal::XFSZ, Arc::default()),
            (Signal::VTALARM, self.progress_requested.clone()),
        ];
        for (signal, flag) in flags {
            // A handler, because child processes would inherit an ignored signal. It can be registered for any signal
            // but a few, such as SIGKILL.
            let _ = signal_hook::flag::register(signal.as_raw(), flag);
        }
    }

    /// Returns a flag that is set whenever the process goes on after a stop, for example after Ctrl-Z and `fg`.
    pub fn note_continued(&self) -> Arc<AtomicBool> {
        let is_continued = Arc::new(AtomicBool::new(false));
        // SIGCONT makes the process go on whether or not there is a handler.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGCONT, is_continued.clone());
        is_continued
    }

    /// Returns an environment variable.
    pub fn var(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    /// Makes SIGINT, SIGTERM and SIGHUP set [`Env::stop`] instead of ending the process. A later one ends it at once, unless
    /// it belongs to the same event. A second call has no effect.
    pub fn handle_signals(&self) -> std::io::Result<()> {
        if self.handles_signals.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let signals = [
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ];
        exit_at_later_signal(&signals, Exit::Signal.code().into())?;
        for signal in signals {
            signal_hook::flag::register(signal, self.stop_requested.clone())?;
            signal_hook::flag::register(signal, self.stop.clone())?;
        }
        Ok(())
    }

    /// Returns a flag that SIGTERM sets. To be called before [`Env::handle_signals`], so that the flag is set first.
    pub fn note_term(&self) -> std::io::Result<Arc<AtomicBool>> {
        let is_terminated = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGTERM, is_terminated.clone())?;
        Ok(is_terminated)
    }

    /// Like [`Env::handle_signals`], for a server: SIGHUP has no effect, so a closed terminal does not stop it.
    pub fn handle_end_signals(&self) -> std::io::Result<()> {
        let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
        exit_at_later_signal(&signals, Exit::Signal.code().into())?;
        for signal in signals {
            signal_hook::flag::register(signal, self.stop.clone())?;
        }
        signal_hook::flag::register(
            signal_hook::consts::SIGHUP,
            Arc::new(AtomicBool::new(false)),
        )?;
        Ok(())
    }

    /// Makes the signal with which a server stops its sessions ([`signal_session_to_stop`]) set [`Env::stop`] and the
    /// returned flag.
    pub fn handle_server_stop(&self) -> std::io::Result<Arc<AtomicBool>> {
        let stopped = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(STOPPED_BY_SERVER.as_raw(), stopped.clone())?;
        signal_hook::flag::register(STOPPED_BY_SERVER.as_raw(), self.stop.clone())?;
        Ok(stopped)
    }

    /// Clears a stop requested by the end of one session, so that another can follow. A stop requested by a signal
    /// remains.
    pub fn go_on(&self) {
        self.stop.store(false, std::sync::atomic::Ordering::SeqCst);
        if self.is_stopping() {
            self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// Stops the run, as a signal does, at this time in seconds since 1970.
    pub fn stop_at(&self, unix_secs: i64) -> std::io::Result<()> {
        let flags = [
            self.timed_out.clone(),
            self.stop_requested.clone(),
            self.stop.clone(),
        ];
        let wait = move || {
            // The clock may be set meanwhile, so look at it at least every second.
            while let left @ 1.. = unix_secs.saturating_sub(now_unix().0) {
                std::thread::sleep(if left > 1 {
                    Duration::from_secs(1)
                } else {
                    DEADLINE_LOOK
                });
            }
            for flag in &flags {
                flag.store(true, Ordering::SeqCst);
            }
        };
        std::thread::Builder::new()
            .name("deadline".into())
            .spawn(wait)
            .map(drop)
    }

    /// Returns whether a signal or the deadline requested the process to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop_requested
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Reads standard input to its end.
    pub fn read_stdin(&self) -> std::io::Result<Vec<u8>> {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut text)?;
        Ok(text)
    }

    /// Asks the user for a secret on the terminal, without showing it; without a terminal on standard error and input.
    /// Fails with [`ErrorKind::ConnectionAborted`](std::io::ErrorKind::ConnectionAborted) if the run is stopped meanwhile.
    pub fn ask_secret(&self, prompt: &str) -> std::io::Result<Vec<u8>> {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        use std::os::fd::AsFd as _;
        let Ok(mut terminal) = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
        else {
            write!(std::io::stderr(), "{prompt}")?;
            return self.read_secret_line(std::io::stdin().as_fd());
        };
        let shown = tcgetattr(&terminal)?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        write!(terminal, "{prompt}")?;
        tcsetattr(&terminal, OptionalActions::Flush, &hidden)?;
        let secret = self.read_secret_line(terminal.as_fd());
        tcsetattr(&terminal, OptionalActions::Flush, &shown)?;
        writeln!(terminal)?;
        secret
    }

    /// Reads a line, without its end, from a terminal or standard input. Byte by byte and without a buffer, because it
    /// waits for the descriptor. Fails like [`Env::ask_secret`].
    pub fn read_secret_line(&self, input: std::os::fd::BorrowedFd<'_>) -> std::io::Result<Vec<u8>> {
        let mut secret = Vec::new();
        let mut byte = [0];
        while secret.len() < SECRET_MAX_BYTES {
            while !crate::fs::sys::wait_readable(input, SECRET_LOOK_MS)? {
                if self.is_stopping() {
                    return Err(std::io::ErrorKind::ConnectionAborted.into());
                }
            }
            if crate::fs::sys::read(input, &mut byte)? == 0 || byte == *b"\n" {
                break;
            }
            secret.push(byte[0]);
        }
        Ok(secret)
    }

    /// Replaces this process with another program, with one additional environment variable. Returns only on failure.
    pub fn become_program(
        &self,
        program: &OsStr,
        args: &[OsString],
        variable: (&str, &str),
    ) -> std::io::Error {
        use std::os::unix::process::CommandExt;
        // Undo the umask of 0, which is for this program only.
        crate::fs::sys::set_umask(self.umask);
        std::process::Command::new(program)
            .args(args)
            .env(variable.0, variable.1)
            .exec()
    }

    /// Returns the path of the running executable with symlinks resolved.
    pub fn own_path(&self) -> Option<std::path::PathBuf> {
        std::env::current_exe().ok()
    }
}

/// Returns whether the terminal on standard error shows what the user types. A program that asks for a password turns
/// that off.
pub fn terminal_echoes() -> bool {
    let modes = rustix::termios::tcgetattr(rustix::stdio::stderr());
    modes.is_ok_and(|modes| {
        modes
            .local_modes
            .contains(rustix::termios::LocalModes::ECHO)
    })
}

/// Returns the columns and rows of the terminal on standard error; 80 and 24 if they are unknown.
pub fn terminal_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col, size.ws_row));
    (
        if columns == 0 { 80 } else { columns.into() },
        if rows == 0 { 24 } else { rows.into() },
    )
}

/// Returns whether this process is in the foreground of the terminal at standard error. A terminal that is not the
/// controlling terminal has no foreground of its own.
pub fn is_in_foreground() -> bool {
    let foreground = rustix::termios::tcgetpgrp(rustix::stdio::stderr());
    foreground.map_or(true, |group| group == rustix::process::getpgrp())
}

/// Returns a command that runs this same executable, even if its file has been replaced since.
pub fn itself(words: &[OsString]) -> std::process::Command {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("sparsync").args(words);
    command
}

/// Sets the name that `ps` and `ss` show for a process started with [`itself`]. Otherwise, they would show `exe`, the
/// name of the link that was executed.
pub fn name_process() {
    // Only for people who list processes.
    let _ = rustix::thread::set_name(c"sparsync");
}

/// Detaches the process from its terminal. Has no effect on a process group leader.
pub fn leave_terminal() {
    // The only error is that of a process group leader.
    let _ = rustix::process::setsid();
}

/// The signal with which a server stops its sessions.
const STOPPED_BY_SERVER: rustix::process::Signal = rustix::process::Signal::USR1;

/// Signals the process of a session that its server was stopped.
pub fn signal_session_to_stop(pid: u32) -> std::io::Result<()> {
    signal_process(pid, STOPPED_BY_SERVER)
}

/// Ends another process of this user, with SIGKILL if `now`, otherwise with SIGTERM.
pub fn end_process(pid: u32, now: bool) -> std::io::Result<()> {
    signal_process(
        pid,
        if now {
            rustix::process::Signal::KILL
        } else {
            rustix::process::Signal::TERM
        },
    )
}

fn signal_process(pid: u32, signal: rustix::process::Signal) -> std::io::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// Redirects standard output to `/dev/null`, so that the process that reads it sees its end.
pub fn leave_stdout() {
    let null = rustix::fs::open(
        c"/dev/null",
        rustix::fs::OFlags::WRONLY,
        rustix::fs::Mode::empty(),
    );
    if let Ok(null) = null {
        // Both descriptors are open, so this cannot fail.
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// Redirects standard input and standard output to `/dev/null`, and standard error as well if `all`.
pub fn leave_streams(all: bool) {
    let flags = rustix::fs::OFlags::RDWR;
    if let Ok(null) = rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty()) {
        // All descriptors are open, so this cannot fail.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        if all {
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    }
}

/// Makes this file standard input and standard output.
pub fn become_streams(file: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
    rustix::stdio::dup2_stdin(file)?;
    Ok(rustix::stdio::dup2_stdout(file)?)
}

/// Ends this process with this exit code, for one that another process continues.
pub fn end_now(code: u8) -> ! {
    std::process::exit(i32::from(code))
}

/// Redirects standard error to this file.
pub fn become_stderr(file: std::os::fd::BorrowedFd<'_>) {
    // Both descriptors are open, so this cannot fail.
    let _ = rustix::stdio::dup2_stderr(file);
}

/// The name of a server's threads that serve one client each.
pub const CLIENT_THREAD: &str = "client";
/// The name of a server's thread that drives all connections. Its tasks catch their panics.
pub const NETWORK: &str = "network";

/// Ends the process when a thread panics: other threads may wait for it, and a bug must not look like a hang. In the threads
/// [`CLIENT_THREAD`] and [`NETWORK`] a panic ends only the connection or the task that it happens in.
pub fn end_on_panic() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // The standard library panics if a new thread gets no memory for its signal stack.
        if info
            .location()
            .is_some_and(|at| at.file().ends_with("/stack_overflow.rs"))
        {
            crate::fs::sys::out_of_memory();
        }
        default_hook(info);
        if matches!(std::thread::current().name(), Some(CLIENT_THREAD | NETWORK)) {
            return;
        }
        std::process::exit(i32::from(crate::exit::Exit::Crashed.code()));
    }));
}
