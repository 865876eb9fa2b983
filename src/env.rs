//! The process as a value: arguments, variables, working directory, streams, signals.

#![allow(clippy::disallowed_methods, reason = "this is their home")]

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a command may know of the process that it runs in.
pub struct Env {
    /// The name that the program was called by.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The working directory, absolute; `/` where there is none.
    pub cwd: Vec<u8>,
    /// Why there is no working directory: it was removed, for instance.
    pub no_cwd: Option<std::io::Error>,
    /// Where results go.
    pub stdout: Box<dyn Write + Send>,
    /// Where trouble is told.
    pub stderr: Box<dyn Write + Send>,
    /// Somebody sits before `stdout`.
    pub stdout_is_tty: bool,
    /// The umask as it was; it is 0 since, so that modes are what we say.
    pub umask: u32,
    /// Set by SIGINT, SIGTERM and SIGHUP, and by whoever ends the run for another reason.
    pub stop: Arc<AtomicBool>,
    /// Set by these signals alone.
    pub asked: Arc<AtomicBool>,
}

impl Env {
    /// The process itself. Called once, before any thread is started.
    pub fn of_process() -> Env {
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
            stdout: Box::new(std::io::stdout()),
            stderr: Box::new(std::io::stderr()),
            stdout_is_tty: std::io::stdout().is_terminal(),
            umask: crate::fs::sys::take_umask(),
            stop: Arc::new(AtomicBool::new(false)),
            asked: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Makes a file that grows beyond `ulimit -f` an error to be told; by itself the signal would end the process.
    pub fn outlive_file_limits(&self) {
        // A handler is not passed on to programs that are started, as being ignored is.
        let _ = signal_hook::flag::register(rustix::process::Signal::XFSZ.as_raw(), Arc::default());
    }

    /// A variable of the environment.
    pub fn var(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    /// Lets signals that ask the process to end set [`Env::stop`] instead; a second one ends it at once.
    pub fn hear_signals(&self) -> std::io::Result<()> {
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(signal, 20, self.asked.clone())?;
            signal_hook::flag::register(signal, self.asked.clone())?;
            signal_hook::flag::register(signal, self.stop.clone())?;
        }
        Ok(())
    }

    /// As [`Env::hear_signals`] for a server: a terminal that goes away does not end it.
    pub fn hear_end(&self) -> std::io::Result<()> {
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 20, self.stop.clone())?;
            signal_hook::flag::register(signal, self.stop.clone())?;
        }
        signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::new(AtomicBool::new(false)))?;
        Ok(())
    }

    /// Lets the signal by which a server stops its sessions ([`tell_session_to_stop`]) set [`Env::stop`], and the flag that is
    /// returned.
    pub fn hear_server_stop(&self) -> std::io::Result<Arc<AtomicBool>> {
        let stopped = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(STOPPED_BY_SERVER.as_raw(), stopped.clone())?;
        signal_hook::flag::register(STOPPED_BY_SERVER.as_raw(), self.stop.clone())?;
        Ok(stopped)
    }

    /// Takes a stop back that the end of one conversation asked for, so that another may follow; a signal's stays.
    pub fn go_on(&self) {
        self.stop.store(false, std::sync::atomic::Ordering::SeqCst);
        if self.is_stopping() {
            self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// Whether a signal asked the process to end.
    pub fn is_stopping(&self) -> bool {
        self.asked.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Reads standard input to its end.
    pub fn read_stdin(&self) -> std::io::Result<Vec<u8>> {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut text)?;
        Ok(text)
    }

    /// Becomes another program with these arguments and one variable more; returns only if that failed.
    pub fn become_program(&self, program: &OsStr, args: &[OsString], variable: (&str, &str)) -> std::io::Error {
        use std::os::unix::process::CommandExt;
        // The umask was set to 0 for our own use.
        crate::fs::sys::set_umask(self.umask);
        std::process::Command::new(program).args(args).env(variable.0, variable.1).exec()
    }

    /// The program that runs, wherever links lead.
    pub fn own_path(&self) -> Option<std::path::PathBuf> {
        std::env::current_exe().ok()
    }
}

/// This very program with other arguments, also where its file was replaced since.
pub fn itself(words: &[OsString]) -> std::process::Command {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("sparsync").args(words);
    command
}

/// Gives a process that [`itself`] started the program's name, by which `ps` and `ss` show it: until then it has that of the
/// link by which it was found.
pub fn name_process() {
    let _ = rustix::thread::set_name(c"sparsync");
}

/// Leaves the terminal that this process was started from. A process that leads a group already stays where it is.
pub fn leave_terminal() {
    let _ = rustix::process::setsid();
}

/// By this signal a server stops its sessions.
const STOPPED_BY_SERVER: rustix::process::Signal = rustix::process::Signal::USR1;

/// Tells the process of a session that its server was stopped.
pub fn tell_session_to_stop(pid: u32) -> std::io::Result<()> {
    signal_process(pid, STOPPED_BY_SERVER)
}

/// Ends another process of this user: now, or as it sees fit.
pub fn end_process(pid: u32, now: bool) -> std::io::Result<()> {
    signal_process(pid, if now { rustix::process::Signal::KILL } else { rustix::process::Signal::TERM })
}

fn signal_process(pid: u32, signal: rustix::process::Signal) -> std::io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// Lets go of whoever reads standard output.
pub fn leave_stdout() {
    let null = rustix::fs::open(c"/dev/null", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty());
    if let Ok(null) = null {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// From here on this file is standard error.
pub fn become_stderr(file: std::os::fd::BorrowedFd<'_>) {
    let _ = rustix::stdio::dup2_stderr(file);
}

/// The name of a server's threads that serve one client each.
pub const GUEST: &str = "guest";
/// The name of a server's thread that drives all connections. Its tasks catch their panics.
pub const NETWORK: &str = "network";

/// Ends the process when a thread panics: other threads may wait for it, and a bug must not look like a hang. In the threads
/// [`GUEST`] and [`NETWORK`] a panic ends only the connection or the task that it happens in.
pub fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        if matches!(std::thread::current().name(), Some(GUEST | NETWORK)) {
            return;
        }
        std::process::exit(i32::from(crate::exit::Exit::Crashed.code()));
    }));
}
