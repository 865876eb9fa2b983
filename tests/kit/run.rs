//! Runs a program the way a case wants it and collects what it said.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::Who;

/// The ordinary user, a number that no account has.
pub const USER: u32 = 12345;
/// No run takes this long, also on a busy machine; one that does hangs.
const PATIENCE: Duration = Duration::from_secs(240);
/// A program that was asked to stop has stopped by then, also on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(60);

/// How much the link between two ends holds: a hook of debug builds.
const LINK_BYTES: &str = "SPARSYNC_LINK_BYTES";

/// How both programs are run.
#[derive(Clone)]
pub struct Surroundings {
    /// On whose behalf.
    pub who: Who,
    /// The home directory.
    pub home: PathBuf,
    /// The file creation mask.
    pub umask: u32,
    /// What the program reads from its standard input.
    pub stdin: Vec<u8>,
    /// Variables beyond the usual ones.
    pub env: Vec<(String, String)>,
}

/// What a program did, as far as its parent sees it.
pub struct Output {
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
    /// Its exit code; 1000 more than the signal if one ended it.
    pub exit: i32,
}

/// Runs `program` in `cwd` and waits for its end.
pub fn run(program: &Path, argv: &[Vec<u8>], cwd: &Path, surroundings: &Surroundings) -> Output {
    collect(start(program, argv, cwd, surroundings), program)
}

/// How a program is asked to stop.
pub struct Request<'a> {
    /// By which signal.
    pub signal: Signal,
    /// Those that it started get the signal too, as from a terminal.
    pub to_all: bool,
    /// It is asked as soon as this says so.
    pub ready: &'a dyn Fn() -> bool,
    /// Called once it was asked.
    pub told: &'a dyn Fn(),
}

/// Waits for what another process brings about; that it never comes is a failure, and no hang.
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it never came to what was waited for");
        std::thread::yield_now();
    }
}

/// Runs `program` in `cwd`, asks it to stop, and waits for its end.
pub fn interrupt(
    program: &Path,
    argv: &[Vec<u8>],
    cwd: &Path,
    surroundings: &Surroundings,
    request: &Request<'_>,
) -> Output {
    let child = start(program, argv, cwd, surroundings);
    let pid = Pid::from_child(&child);
    let begun = Instant::now();
    while !(request.ready)() {
        if begun.elapsed() > PATIENCE {
            let _ = kill_process_group(pid, Signal::KILL);
            panic!("{} never came to where it was to be interrupted", program.display());
        }
        std::thread::yield_now();
    }
    let asked = match request.to_all {
        true => kill_process_group(pid, request.signal),
        false => kill_process(pid, request.signal),
    };
    asked.expect("a child that was not waited for can be signalled");
    (request.told)();
    let asked = Instant::now();
    let output = collect(child, program);
    assert!(asked.elapsed() < PROMPTLY, "{} took {:?} to stop", program.display(), asked.elapsed());
    output
}

fn start(program: &Path, argv: &[Vec<u8>], cwd: &Path, surroundings: &Surroundings) -> Child {
    // The mask belongs to the process: a shell sets it for us where it is not the common one.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "umask \"$0\"; exec \"$@\"", &format!("{:o}", surroundings.umask)]).arg(program);
    command.args(argv.iter().cloned().map(OsString::from_vec)).current_dir(cwd).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    // What every case shall be run with, see `scripts/test`.
    command.envs(std::env::var_os(LINK_BYTES).map(|bytes| (LINK_BYTES, bytes)));
    command.envs([("LC_ALL", "C"), ("TZ", "UTC")]).env("HOME", &surroundings.home);
    command.envs(surroundings.env.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    if surroundings.who == Who::User && rustix::process::geteuid().is_root() {
        // As root, `uid` drops the supplementary groups too.
        command.uid(USER).gid(USER);
    }
    let mut child = command.spawn().expect("a shell can be started");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    // A program that ends without reading breaks the pipe; that is its right.
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
    let output = waiter.join().expect("waiting does not panic").expect("a child can be waited for");
    assert!(
        !hangs,
        "{} hangs: killed after {PATIENCE:?}\nstdout: {}\nstderr: {}",
        program.display(),
        output.stdout.escape_ascii(),
        output.stderr.escape_ascii()
    );
    let exit = output.status.code().or(output.status.signal().map(|n| 1000 + n)).expect("a child that ended has one");
    Output { stdout: output.stdout, stderr: output.stderr, exit }
}
