//! Failures of a session over QUIC or TLS: the client, the session's process or the server is killed at one system call
//! after the other, or one direction of the link fails.
//!
//! Nothing may be torn, every process must end by itself, and the next run must finish the job and leave no temporary
//! file. A plain test run takes a sample of the calls, `SPARSYNC_FAULTS=all` takes all.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::faults::{Stage, Trees, both, write};
use crate::kit::Scene;
use crate::kit::{
    Cut, Lens, Relay, Trigger, files, is_temp, report_skip, snapshot, tries_all_faults, until,
};
use crate::reconnect::sessions_of;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};

/// The direction of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Push,
    Pull,
}

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Client,
    Session,
    Server,
}

/// The limit for a run to end, even on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(45);
const KILLED: i32 = 128 + 9;

/// A server, and the trees of a copy.
struct Copy {
    scene: Scene,
    trees: Stage,
    transport: &'static str,
    way: Direction,
}

impl Copy {
    fn new(transport: &'static str, way: Direction, build: fn(&Path)) -> Copy {
        let scene = Scene::new();
        scene.enroll("--no-munge");
        let trees = Stage::new(&Trees {
            options: &[],
            build,
            backups: &[],
        });
        Copy {
            scene,
            trees,
            transport,
            way,
        }
    }

    /// Runs the copy with these options and hooks in the client. Returns the output and the exit code.
    fn run(&self, options: &str, hooks: &[(&str, String)]) -> (Output, i32) {
        let top = self.trees.top.display();
        let operands = match self.way {
            Direction::Push => format!("{top}/src/ host:{top}/dst/"),
            Direction::Pull => format!("host:{top}/src/ {top}/dst/"),
        };
        let line = format!(
            "--transport={} -aH --delete {options} {operands}",
            self.transport
        );
        let begun = Instant::now();
        let mut command = self.scene.command("client", &line);
        let output = command
            .envs(hooks.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap();
        assert!(
            begun.elapsed() < PROMPTLY,
            "{line} {hooks:?}: {:?}: {output:?}",
            begun.elapsed()
        );
        let exit = output
            .status
            .code()
            .or(output.status.signal().map(|signal| 128 + signal))
            .expect("one of them");
        (output, exit)
    }

    /// Stops the server if it runs, and starts it with these hooks. Returns `false` if it died while it was started.
    fn restart(&self, hooks: &[(&str, String)]) -> bool {
        let _ = self.scene.command("server", "server stop --now").output();
        let mut start = self.scene.command("server", "server start --port PORT");
        let started = start
            .envs(hooks.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap();
        if !started.status.success() {
            assert!(!hooks.is_empty(), "{started:?}");
            return false;
        }
        let printed = String::from_utf8(started.stdout).unwrap();
        let port = printed
            .split_once("port ")
            .and_then(|(_, rest)| rest.split([',', ' ', '\n']).next())
            .unwrap();
        self.lead_to(port.parse().unwrap());
        true
    }

    /// Makes the client connect to this port.
    fn lead_to(&self, port: u16) {
        let path = self.scene.path("client/hosts.toml");
        let hosts = std::fs::read_to_string(&path).unwrap();
        let lines = hosts.lines().map(|line| match line.starts_with("port = ") {
            true => format!("port = {port}\n"),
            false => format!("{line}\n"),
        });
        std::fs::write(&path, lines.collect::<String>()).unwrap();
    }

    /// Waits until no session of the server is left.
    fn rests(&self) {
        let pid = self.scene.status("pid");
        until(|| sessions_of(&pid).is_empty());
    }

    /// Checks that every file of the destination is the old or the new one, or has a temporary name.
    fn is_whole(&self, before: &Files, case: &str) {
        let new = files(&self.trees.top.join("src"));
        for (path, content) in files(&self.trees.top.join("dst")) {
            let name = path.file_name().unwrap().to_string_lossy();
            let is_whole = before.get(&path) == Some(&content) || new.get(&path) == Some(&content);
            assert!(
                is_whole || is_temp(&name),
                "{} is neither old nor new: {case}",
                path.display()
            );
        }
    }

    /// Checks that the destination is as the source.
    fn is_done(&self, case: &str) {
        let lens = Lens {
            blocks: false,
            atimes: false,
            links_within: false,
            now_secs: i64::MAX,
        };
        let [wanted, got] = ["src", "dst"].map(|tree| snapshot(&self.trees.top.join(tree), lens));
        assert_eq!(got, wanted, "{case}");
    }

    /// Runs the copy once more and checks that it finishes the job and leaves no temporary file.
    fn finishes(&self, source: &Files, case: &str) {
        let (output, exit) = self.run("", &[]);
        assert!(
            exit == 0 && output.stderr.is_empty(),
            "then {exit}: {output:?}: {case}"
        );
        self.is_done(case);
        assert_eq!(
            &files(&self.trees.top.join("src")),
            source,
            "the source has changed: {case}"
        );
    }
}

type Files = std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>;

// ── killed ──────────────────────────────────────────────────────────────────────────────────────

/// Kills a process at one call. Returns `false` if it had ended before that call.
fn dies(transport: &'static str, way: Direction, victim: Victim, at: u64) -> bool {
    let copy = Copy::new(transport, way, both);
    let [before, source] = ["dst", "src"].map(|tree| files(&copy.trees.top.join(tree)));
    let mut hooks = vec![("SPARSYNC_KILL_AT", at.to_string())];
    let mut is_up = true;
    if victim != Victim::Client {
        let process = if victim == Victim::Session {
            "session"
        } else {
            "server"
        };
        hooks.push(("SPARSYNC_FAULT_IN", process.to_owned()));
        is_up = copy.restart(&hooks);
    }
    if !is_up {
        copy.restart(&[]);
        copy.finishes(&source, "the server died at its start");
        return true;
    }
    // With a timeout, a client gives up a lost server soon, and a server a lost client.
    let (output, exit) = copy.run(
        "--timeout=2",
        if victim == Victim::Client {
            &hooks
        } else {
            &[]
        },
    );
    let case = format!("{transport} {way:?} {victim:?} at {at}: exit {exit}: {output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let has_died = match victim {
        Victim::Client => exit == KILLED,
        Victim::Session => exit != 0 || text.contains("reconnecting"),
        Victim::Server => {
            copy.scene
                .command("server", "server status")
                .output()
                .unwrap()
                .status
                .code()
                == Some(3)
        }
    };
    let allowed: &[i32] = match victim {
        Victim::Client => &[0, KILLED],
        // A client that was served before the server died has not lost anything.
        Victim::Session | Victim::Server => &[0, 10, 12, 30],
    };
    assert!(
        allowed.contains(&exit) && !text.contains("panicked"),
        "{case}"
    );
    copy.is_whole(&before, &case);
    if exit == 0 {
        copy.is_done(&case);
    }
    if victim != Victim::Client {
        copy.restart(&[]);
    }
    copy.rests();
    copy.finishes(&source, &case);
    has_died
}

/// Kills one process of a session at a sample of its calls, or at all.
fn dies_at_each(transport: &'static str, way: Direction, victim: Victim, sample: &[u64]) {
    let is_whole = tries_all_faults();
    let all: &mut dyn Iterator<Item = u64> = if is_whole {
        &mut (1..)
    } else {
        &mut sample.iter().copied()
    };
    let died = all
        .take_while(|&at| dies(transport, way, victim, at))
        .count();
    if died == 0 {
        return report_skip(
            "faults_net",
            "the program under test is a release build, which cannot be told to die",
        );
    }
    assert!(
        is_whole || died == sample.len(),
        "{transport} {way:?} {victim:?}: only {died} points"
    );
    if is_whole {
        let _ = writeln!(
            std::io::stderr(),
            "{transport} {way:?} {victim:?}: killed at {died} calls"
        );
    }
}

#[test]
fn the_client_over_quic() {
    dies_at_each("quic", Direction::Push, Victim::Client, &[31]);
    dies_at_each("quic", Direction::Pull, Victim::Client, &[83]);
}

#[test]
fn the_client_over_tls() {
    dies_at_each("tls", Direction::Push, Victim::Client, &[47]);
    dies_at_each("tls", Direction::Pull, Victim::Client, &[101]);
}

#[test]
fn the_session_over_quic() {
    dies_at_each("quic", Direction::Push, Victim::Session, &[67]);
    dies_at_each("quic", Direction::Pull, Victim::Session, &[23]);
}

#[test]
fn the_session_over_tls() {
    dies_at_each("tls", Direction::Push, Victim::Session, &[97]);
    dies_at_each("tls", Direction::Pull, Victim::Session, &[11]);
}

#[test]
fn the_server_over_quic() {
    dies_at_each("quic", Direction::Push, Victim::Server, &[1]);
    dies_at_each("quic", Direction::Pull, Victim::Server, &[2]);
}

#[test]
fn the_server_over_tls() {
    dies_at_each("tls", Direction::Push, Victim::Server, &[2]);
    dies_at_each("tls", Direction::Pull, Victim::Server, &[1]);
}

// ── failing ─────────────────────────────────────────────────────────────────────────────────────

/// Fails a call of the server, which must continue to serve. Returns `false` if no call can fail.
fn server_outlives(transport: &'static str, way: Direction, at: u64, error: &str) -> bool {
    let copy = Copy::new(transport, way, both);
    let [before, source] = ["dst", "src"].map(|tree| files(&copy.trees.top.join(tree)));
    let log = copy.trees.top.join("fault");
    copy.restart(&[
        ("SPARSYNC_FAIL_AT", format!("{at}:{error}")),
        ("SPARSYNC_FAULT_IN", "server".to_owned()),
        ("SPARSYNC_FAULT_LOG", log.display().to_string()),
    ]);
    let pid = copy.scene.status("pid");
    let (output, exit) = copy.run("--timeout=2", &[]);
    if at == 1 && !log.exists() {
        return false;
    }
    // Later calls belong to the regular checks of the server.
    until(|| log.exists());
    let call = std::fs::read_to_string(&log).unwrap();
    let case = format!(
        "{transport} {way:?}: {error} at {}: exit {exit}: {output:?}",
        call.trim()
    );
    copy.is_whole(&before, &case);
    if exit == 0 {
        copy.is_done(&case);
    } else {
        assert!(
            [10, 12, 30].contains(&exit) && copy.scene.status("errors_total") != "0",
            "{case}"
        );
    }
    copy.rests();
    copy.finishes(&source, &case);
    assert_eq!(copy.scene.status("pid"), pid, "{case}");
    true
}

#[test]
fn the_server_outlives_failing_calls() {
    let is_whole = tries_all_faults();
    for (transport, way) in [("quic", Direction::Push), ("tls", Direction::Pull)] {
        let sample = [(1, "EIO"), (4, "EMFILE"), (9, "ENOMEM")].map(|(at, error)| (at..=at, error));
        let all =
            ["EIO", "EACCES", "EMFILE", "ENOMEM", "EINTR", "EAGAIN"].map(|error| (1..=40, error));
        let faults = if is_whole {
            all.to_vec()
        } else {
            sample.to_vec()
        };
        for (calls, error) in faults {
            for at in calls {
                if !server_outlives(transport, way, at, error) {
                    return report_skip("faults_net", "the program under test is a release build");
                }
            }
        }
    }
}

// ── hanging ─────────────────────────────────────────────────────────────────────────────────────

/// A session that hangs while its server keeps the connection alive.
#[test]
fn a_hanging_session_ends_the_run_with_the_timeout() {
    for (transport, way) in [("quic", Direction::Push), ("tls", Direction::Pull)] {
        let copy = Copy::new(transport, way, both);
        let source = files(&copy.trees.top.join("src"));
        let fifo = copy.trees.top.join("hold");
        mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).expect("scratch supports fifos");
        copy.restart(&[
            ("SPARSYNC_HOLD_AT", format!("40:{}", fifo.display())),
            ("SPARSYNC_FAULT_IN", "session".to_owned()),
        ]);
        let (output, exit) = copy.run("--timeout=1", &[]);
        let is_held = open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).is_ok();
        if !is_held && exit == 0 {
            return report_skip(
                "faults_net",
                "the program under test is a release build, which cannot be held",
            );
        }
        assert_eq!(exit, 30, "{transport} {way:?}: {output:?}");
        copy.restart(&[]);
        copy.rests();
        copy.finishes(&source, transport);
    }
}

// ── one direction ───────────────────────────────────────────────────────────────────────────────

/// Creates a large file over an old one, and a few others.
fn large(top: &Path) {
    write(&top.join("src/a"), "new", 2);
    write(&top.join("src/big"), &"0123456789abcdef".repeat(500_000), 2);
    write(&top.join("dst/big"), "old", 1);
    write(&top.join("dst/z"), "gone", 1);
}

/// Lets one direction fail during the copy of a large file. Both ends must time out.
fn fails_one_way(transport: &'static str, way: Direction, to_server: bool) {
    let copy = Copy::new(transport, way, large);
    let [before, source] = ["dst", "src"].map(|tree| files(&copy.trees.top.join(tree)));
    let server: u16 = copy.scene.status("port").parse().unwrap();
    let cut = if to_server {
        Cut::ToServer
    } else {
        Cut::ToClient
    };
    let trigger = Trigger {
        to_server: way == Direction::Push,
        after_bytes: 3_000_000,
        cut,
        then: Box::new(|| None),
    };
    let relay = Relay::start((Ipv4Addr::LOCALHOST, server).into(), [trigger]);
    copy.lead_to(relay.port);
    let (output, exit) = copy.run("-W --no-compress --timeout=2", &[]);
    let case = format!("{transport} {way:?}, to the server: {to_server}: {exit}: {output:?}");
    assert!(relay.losses() == 1, "nothing was lost: {case}");
    // A client that has received everything needs no answer from the server.
    match exit {
        0 => copy.is_done(&case),
        exit => assert_eq!(exit, 30, "{case}"),
    }
    // The server ends its session long before a silent client is gone for it.
    let pid = copy.scene.status("pid");
    let waits = Instant::now();
    // The server may still try to deliver what an ended session has sent.
    let is_running = |session: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{session}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    };
    let sessions = || sessions_of(&pid).into_iter().filter(is_running).count();
    until(|| sessions() == 0 || waits.elapsed() > PROMPTLY);
    assert_eq!(sessions(), 0, "the session is still there: {case}");
    copy.is_whole(&before, &case);
    copy.lead_to(server);
    copy.finishes(&source, &case);
    // It would still wait for the lost client.
    let _ = Command::new("kill").args(["-9", &pid]).status();
}

#[test]
fn one_direction_that_fails() {
    std::thread::scope(|scope| {
        for transport in ["quic", "tls"] {
            for (way, to_server) in [
                (Direction::Push, true),
                (Direction::Push, false),
                (Direction::Pull, true),
                (Direction::Pull, false),
            ] {
                scope.spawn(move || fails_one_way(transport, way, to_server));
            }
        }
    });
}
