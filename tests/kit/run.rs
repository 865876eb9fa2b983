//! Runs a program as a case requires and collects its output.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::Who;
use super::wait::reached;

/// The UID of the ordinary user, which no account has.
pub const USER: u32 = 12345;
/// The limit for one run; even on a busy machine, a run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(240);
/// The limit for stopping after a signal, even on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(60);

/// The capacity of the link between two ends in bytes: a hook of debug builds.
const LINK_BYTES: &str = "SPARSYNC_LINK_BYTES";

/// The umask that programs are run with, unless a case sets another.
pub const USUAL_UMASK: u32 = 0o022;

/// Sets the umask of this process, which all tests share.
pub fn set_usual_umask() {
    rustix::process::umask(Mode::from(USUAL_UMASK));
}

/// How both programs are run.
#[derive(Clone)]
pub struct Surroundings {
    /// The user that runs them.
    pub who: Who,
    /// The home directory.
    pub home: PathBuf,
    /// The file creation mask.
    pub umask: u32,
    /// The content of standard input.
    pub stdin: Vec<u8>,
    /// Environment variables beyond the usual ones.
    pub env: Vec<(String, String)>,
}

/// The result of a program, as its parent sees it.
pub struct Output {
    /// The bytes written to standard output.
    pub stdout: Vec<u8>,
    /// The bytes written to standard error.
    pub stderr: Vec<u8>,
    /// The exit code, or 1000 plus the signal number if a signal ended the program.
    pub exit: i32,
}

/// Writes an executable script, in another process. A file that this process has open for writing is also open in each
/// child that another test is starting at that moment, and cannot be executed until that child is.
pub fn write_script(path: &Path, text: &str) {
    let mut install = Command::new("install");
    let install = install
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn();
    let mut install = install.expect("install can be started");
    let mut input = install.stdin.take().expect("it was asked for a pipe");
    input.write_all(text.as_bytes()).expect("install reads it");
    drop(input);
    assert!(
        install.wait().expect("install is a child").success(),
        "{} cannot be written",
        path.display()
    );
}

/// Runs `program` in `cwd` and waits until it ends.
pub fn run(program: &Path, argv: &[Vec<u8>], cwd: &Path, surroundings: &Surroundings) -> Output {
    collect(start(program, argv, cwd, surroundings), program)
}

/// How to interrupt a program.
pub struct Request<'a> {
    /// The signal to send.
    pub signal: Signal,
    /// Whether its child processes get the signal too, as from a terminal.
    pub to_all: bool,
    /// Returns true when the signal should be sent.
    pub ready: &'a dyn Fn() -> bool,
    /// Called after the signal was sent.
    pub interrupted: &'a dyn Fn(),
}

/// Returns whether all faults are tried (`SPARSYNC_FAULTS=all`), and not a sample of them.
pub fn tries_all_faults() -> bool {
    std::env::var_os("SPARSYNC_FAULTS").is_some_and(|faults| faults == "all")
}

/// Returns the numbers of the calls of a run at which a fault is tried: every one, or every fourth one. The samples of
/// different cases are different ones.
pub fn calls_with_faults(case: &str) -> impl Iterator<Item = usize> {
    let (first, step) = if tries_all_faults() {
        (1, 1)
    } else {
        let sum: usize = case.bytes().map(usize::from).sum();
        (1 + sum % 4, 4)
    };
    (first..).step_by(step)
}

/// Waits until `is_so` returns true, which another process brings about. Fails after a time limit instead of hanging.
#[track_caller]
pub fn until(is_so: impl FnMut() -> bool) {
    assert!(
        reached(PATIENCE, is_so),
        "the awaited state was not reached"
    );
}

/// Waits until a process has nothing to do: all of its threads sleep, and none has run between two looks.
#[track_caller]
pub fn until_idle(process: u32) {
    let mut before = Vec::new();
    until(|| {
        let now = threads(process);
        let is_asleep = now.iter().all(|thread| thread.contains("State:\tS"));
        let is_idle = is_asleep && now == before;
        before = now;
        is_idle
    });
}

/// Returns the state of each thread of a process, and how often it was scheduled.
fn threads(process: u32) -> Vec<String> {
    let mut threads = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    for task in tasks {
        let path = task.expect("the process runs").path().join("status");
        // A thread may end between the two looks.
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let is_telling = |line: &&str| {
            ["Pid:", "State:", "voluntary_ctxt", "nonvoluntary_ctxt"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        let lines: Vec<&str> = status.lines().filter(is_telling).collect();
        threads.push(lines.join("\n"));
    }
    threads
}

/// Returns a port that no socket of this network namespace uses and that Linux, by its default settings, gives to no
/// client, so that a server can listen on it again after a restart. No other call returns it.
pub fn spare_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at the same time begin at different ports.
    let first = 10_240 + std::process::id() % 100 * 128;
    // Binding a socket as a check would keep the port in children that other tests start at this moment.
    let used = used_ports();
    let candidates = std::iter::repeat_with(|| first as u16 + NEXT.fetch_add(1, Ordering::Relaxed));
    candidates
        .take_while(|&port| port < 28_000)
        .find(|port| !used.contains(port))
        .expect("thousands of ports")
}

/// Returns the local ports of all sockets, from the second column of the kernel's tables.
fn used_ports() -> HashSet<u16> {
    let tables = ["tcp", "tcp6", "udp", "udp6"]
        .map(|name| std::fs::read_to_string(format!("/proc/net/{name}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines());
    let ports = lines.filter_map(|line| line.split_whitespace().nth(1)?.rsplit_once(':'));
    ports
        .filter_map(|(_, port)| u16::from_str_radix(port, 16).ok())
        .collect()
}

/// Runs `program` in `cwd`, interrupts it, and waits until it ends.
pub fn interrupt(
    program: &Path,
    argv: &[Vec<u8>],
    cwd: &Path,
    surroundings: &Surroundings,
    request: &Request<'_>,
) -> Output {
    let child = start(program, argv, cwd, surroundings);
    let pid = Pid::from_child(&child);
    if !reached(PATIENCE, request.ready) {
        let _ = kill_process_group(pid, Signal::KILL);
        panic!(
            "{} did not reach the point of interruption",
            program.display()
        );
    }
    let signalled = match request.to_all {
        true => kill_process_group(pid, request.signal),
        false => kill_process(pid, request.signal),
    };
    signalled.expect("a child that was not waited for can be signalled");
    // `timeout` signals its command and then the group of processes, and terminals do the like: one event.
    if request.signal != Signal::KILL {
        let other = if request.signal == Signal::TERM {
            Signal::INT
        } else {
            Signal::TERM
        };
        let _ = kill_process(pid, other);
    }
    (request.interrupted)();
    let since = Instant::now();
    let output = collect(child, program);
    assert!(
        since.elapsed() < PROMPTLY,
        "{} took {:?} to stop",
        program.display(),
        since.elapsed()
    );
    output
}

/// Returns where a program is that the `PATH` finds. With its name alone and another environment, `Command` would have to
/// fork this process, whose page tables take longer to copy than most programs run.
fn located(program: &Path, surroundings: &Surroundings) -> PathBuf {
    let has_own_path = surroundings.env.iter().any(|(key, _)| key == "PATH");
    if program.components().count() > 1 || has_own_path {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(program));
    let found = places.find(|place| place.is_file());
    found.unwrap_or_else(|| program.to_owned())
}

fn start(program: &Path, argv: &[Vec<u8>], cwd: &Path, surroundings: &Surroundings) -> Child {
    let mut command = match surroundings.umask {
        USUAL_UMASK => {
            set_usual_umask();
            let mut command = Command::new(located(program, surroundings));
            command.arg0(program);
            command
        }
        // The umask belongs to the process, so a shell sets another one in the child.
        umask => {
            let mut shell = Command::new("/bin/sh");
            shell
                .args(["-c", "umask \"$0\"; exec \"$@\"", &format!("{umask:o}")])
                .arg(program);
            shell
        }
    };
    command
        .args(argv.iter().cloned().map(OsString::from_vec))
        .current_dir(cwd)
        .env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    // Set by `scripts/test` for all cases.
    command.envs(std::env::var_os(LINK_BYTES).map(|bytes| (LINK_BYTES, bytes)));
    command
        .envs([("LC_ALL", "C"), ("TZ", "UTC")])
        .env("HOME", &surroundings.home);
    command.envs(surroundings.env.iter().map(|(key, value)| (key, value)));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if surroundings.who == Who::User && rustix::process::geteuid().is_root() {
        // As root, `uid` drops the supplementary groups too.
        command.uid(USER).gid(USER);
    }
    let mut child = command.spawn().expect("a shell can be started");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    // A program may end without reading its input, which breaks the pipe.
    let _ = stdin.write_all(&surroundings.stdin);
    drop(stdin);
    child
}

fn collect(child: Child, program: &Path) -> Output {
    let group = Pid::from_child(&child);
    let (done, ended) = channel();
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output();
        let _ = done.send(());
        output
    });
    let hangs = ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
    if hangs {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let output = waiter
        .join()
        .expect("waiting does not panic")
        .expect("a child can be waited for");
    assert!(
        !hangs,
        "{} hangs: killed after {PATIENCE:?}\nstdout: {}\nstderr: {}",
        program.display(),
        output.stdout.escape_ascii(),
        output.stderr.escape_ascii()
    );
    let exit = output
        .status
        .code()
        .or(output.status.signal().map(|n| 1000 + n))
        .expect("a child that ended has one");
    Output {
        stdout: output.stdout,
        stderr: output.stderr,
        exit,
    }
}
