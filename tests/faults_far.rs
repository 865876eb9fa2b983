//! Failures of a run between two machines: the client, the server, or the shell between them dies at one point after
//! the other, is interrupted, or falls silent.
//!
//! In each case the final names hold complete files, the surviving processes exit by themselves, and the next run
//! finishes the job. Client and server, or a thread of theirs, die at the n-th system call on files (see
//! `src/fs/hooks.rs`). The shell dies after the n-th byte in one direction, together with both streams that it carries.

use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::faults::{Stage, Trees, both, write};
use crate::kit::{
    FAKE_SSH, Lens, Output, Request, World, files, is_temp, oracle, report_skip, snapshot, ssh,
    synctest, until,
};
use crate::renamed;

/// The process that dies, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The client, at this system call on files.
    Client(u64),
    /// The server, at this system call on files.
    Server(u64),
    /// A thread of the client panics at this system call on files.
    ThreadOfClient(u64),
    /// A thread of the server panics at this system call on files.
    ThreadOfServer(u64),
    /// The shell, after this many bytes from the client to the server.
    ShellToServer(u64),
    /// The shell, after this many bytes from the server to the client.
    ShellToClient(u64),
}

/// The direction of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Push,
    Pull,
}

/// The limit for the surviving processes to exit, even on a busy machine. It is shorter than the time that the program
/// gives a shell that does not exit.
const PROMPTLY: Duration = Duration::from_secs(28);
const KILLED: i32 = 1000 + 9;
/// The exit code of a program after a panic.
const CRASHED: i32 = 15;
/// The exit code of a complete run whose remote shell was killed at its end.
const SHELL_KILLED: i32 = 16;

/// Relays each direction in a separate process. Kills itself and the relay after `CUT` bytes of one `DIRECTION`,
/// counted byte by byte. No other process holds the client's ends of the pipes, so the client sees their end at once.
const RELAY: &str = "top=$$; exec 3<&0
pass() { sh -c 'echo $$ >\"$0.new\"; mv \"$0.new\" \"$0\"; exec cat' pid; }
some() { dd bs=1 count=$CUT status=none; until [ -e pid ]; do :; done; kill -KILL $top $(cat pid); }
rm -f pid
case $DIRECTION in
there) some <&3 3<&- | serve 3<&- | pass 3<&-;;
back) pass <&3 3<&- | serve 3<&- | some 3<&-;;
esac
";
/// Runs the remote side and writes its exit code to a file.
const SERVE: &str = "serve() { sh -c \"$far\"; echo $? >code; }\n";

impl Direction {
    fn operands(self) -> [&'static str; 2] {
        match self {
            Direction::Push => ["src/", "far:dst/"],
            Direction::Pull => ["far:src/", "dst/"],
        }
    }
}

/// Runs a scene between two machines. With `None` no process dies.
fn copy(stage: &Stage, options: &[&str], way: Direction, death: Option<Death>) -> Output {
    let script = match death {
        None | Some(Death::Client(_) | Death::ThreadOfClient(_)) => {
            "unset SPARSYNC_KILL_AT SPARSYNC_PANIC_AT\nexec sh -c \"exec $*\"\n".to_owned()
        }
        Some(Death::ThreadOfServer(at)) => {
            format!("export SPARSYNC_PANIC_AT={at}\nexec sh -c \"exec $*\"\n")
        }
        Some(Death::Server(at)) => {
            format!("export SPARSYNC_KILL_AT={at}\nexec sh -c \"exec $*\"\n")
        }
        Some(Death::ShellToServer(bytes)) => {
            format!("CUT={bytes} DIRECTION=there far=$*\n{SERVE}{RELAY}")
        }
        Some(Death::ShellToClient(bytes)) => {
            format!("CUT={bytes} DIRECTION=back far=$*\n{SERVE}{RELAY}")
        }
    };
    stage.script("shell", &[FAKE_SSH, &script].concat());
    let env = match death {
        Some(Death::Client(at)) => vec![("SPARSYNC_KILL_AT", at.to_string())],
        Some(Death::ThreadOfClient(at)) => vec![("SPARSYNC_PANIC_AT", at.to_string())],
        _ => Vec::new(),
    };
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let words: Vec<&str> = [&["--rsh=./shell", &program], options].concat();
    let begun = Instant::now();
    // All processes of the run share its standard error, so they are gone when it has ended.
    let output = stage.run_words(
        oracle::under_test(),
        &[&words[..], &way.operands()].concat(),
        &env,
    );
    assert!(
        begun.elapsed() < PROMPTLY,
        "{death:?}: a process remained for {:?}",
        begun.elapsed()
    );
    output
}

/// Kills one process during a run. Returns `false` if the run ended before that.
fn dies(scene: &Trees, way: Direction, death: Death) -> bool {
    let stage = Stage::new(scene);
    let before = files(&stage.top.join("dst"));
    let new = files(&stage.top.join("src"));
    let broken = copy(&stage, scene.options, way, Some(death));
    let describe = |output: &Output| {
        format!(
            "{way:?}, {death:?}: exit {}: {}",
            output.exit,
            output.stderr.escape_ascii()
        )
    };
    let lens = Lens {
        blocks: false,
        atimes: false,
        links_within: false,
        now_secs: i64::MAX,
    };
    let trees = || ["src", "dst"].map(|tree| snapshot(&stage.top.join(tree), lens));
    if broken.exit == 0 {
        return false;
    }
    // The run was complete; it only reports the exit status of the shell.
    if matches!(death, Death::ShellToServer(_) | Death::ShellToClient(_))
        && broken.exit == SHELL_KILLED
    {
        let [wanted, got] = trees();
        assert_eq!(
            got, wanted,
            "{way:?}, {death:?}, at the end: source and destination differ"
        );
        return false;
    }
    match death {
        Death::Client(_) => assert_eq!(broken.exit, KILLED, "{}", describe(&broken)),
        Death::ThreadOfClient(_) | Death::ThreadOfServer(_) => {
            assert_eq!(broken.exit, CRASHED, "{}", describe(&broken))
        }
        // Without a reason from the server, the client reports that the stream broke off.
        Death::Server(_) | Death::ShellToServer(_) | Death::ShellToClient(_) => {
            assert_eq!(broken.exit, 12, "{}", describe(&broken));
            assert!(!broken.stderr.is_empty(), "{}", describe(&broken));
            // The server may have been done already.
            let server =
                std::fs::read_to_string(stage.top.join("code")).unwrap_or("12\n".to_owned());
            assert!(
                ["0\n", "12\n"].contains(&&server[..]),
                "{}; the server: {server}",
                describe(&broken)
            );
        }
    }
    for (path, content) in files(&stage.top.join("dst")) {
        let name = path
            .file_name()
            .expect("a file has a name")
            .to_string_lossy();
        let is_whole = before.get(&path) == Some(&content) || new.get(&path) == Some(&content);
        assert!(
            is_whole || is_temp(&name),
            "{way:?}, {death:?}: {} is neither old nor new",
            path.display()
        );
    }
    let after = copy(&stage, scene.options, way, None);
    assert_eq!(
        (after.exit, after.stderr.escape_ascii().to_string()),
        (0, String::new()),
        "{}",
        describe(&broken)
    );
    let [wanted, got] = trees();
    assert_eq!(
        got, wanted,
        "{way:?}, {death:?}, run again: source and destination differ"
    );
    assert_eq!(
        files(&stage.top.join("src")),
        new,
        "{way:?}, {death:?}: the source has changed"
    );
    true
}

/// Kills at one point after the other until a run ends before the point. There must be at least `points` points.
fn dies_at_each(way: Direction, points: usize, at: impl IntoIterator<Item = Death>) {
    let scene = Trees {
        options: &["-aH", "--delete"],
        build: both,
        backups: &[],
    };
    dies_at_each_of(&scene, way, points, at);
}

/// Does the same to a run of these trees.
fn dies_at_each_of(
    scene: &Trees,
    way: Direction,
    points: usize,
    at: impl IntoIterator<Item = Death>,
) {
    let died = at
        .into_iter()
        .take_while(|&death| dies(scene, way, death))
        .count();
    if died == 0 {
        report_skip(
            "faults_far",
            "the program under test is a release build, without SPARSYNC_KILL_AT",
        );
        return;
    }
    assert!(died >= points, "{way:?}: only {died} points");
}

/// Returns lengths that grow by half: all round trips of a session are at its start.
fn growing() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(20_u64), |bytes| Some(bytes + bytes / 2 + 1))
}

#[test]
fn client_of_a_push_is_killed() {
    dies_at_each(Direction::Push, 25, (1..).step_by(2).map(Death::Client));
}

#[test]
fn client_of_a_pull_is_killed() {
    dies_at_each(Direction::Pull, 40, (1..).step_by(3).map(Death::Client));
}

#[test]
fn server_of_a_push_is_killed() {
    dies_at_each(Direction::Push, 40, (1..).step_by(3).map(Death::Server));
}

#[test]
fn server_of_a_pull_is_killed() {
    dies_at_each(Direction::Pull, 25, (1..).step_by(2).map(Death::Server));
}

#[test]
fn receiver_that_renames_files_is_killed() {
    const OPTIONS: [&[&str]; 2] = [
        &["-a", "--delete", "--detect-renamed=quick"],
        &["-a", "--delete", "--detect-renamed"],
    ];
    for options in OPTIONS {
        let scene = Trees {
            options,
            build: renamed::build,
            backups: &[],
        };
        dies_at_each_of(
            &scene,
            Direction::Push,
            40,
            (1..).step_by(2).map(Death::Server),
        );
        dies_at_each_of(
            &scene,
            Direction::Pull,
            40,
            (1..).step_by(2).map(Death::Client),
        );
    }
}

#[test]
fn sender_of_digests_is_killed() {
    let scene = Trees {
        options: &["-a", "--delete", "--detect-renamed"],
        build: renamed::build,
        backups: &[],
    };
    dies_at_each_of(
        &scene,
        Direction::Pull,
        30,
        (1..).step_by(2).map(Death::Server),
    );
}

/// Other threads may wait for the one that is gone: a bug must not look like a hang.
#[test]
fn thread_of_either_end_panics() {
    dies_at_each(
        Direction::Push,
        5,
        (1..).step_by(9).map(Death::ThreadOfClient),
    );
    dies_at_each(
        Direction::Push,
        10,
        (1..).step_by(9).map(Death::ThreadOfServer),
    );
    dies_at_each(
        Direction::Pull,
        10,
        (1..).step_by(9).map(Death::ThreadOfClient),
    );
    dies_at_each(
        Direction::Pull,
        5,
        (1..).step_by(9).map(Death::ThreadOfServer),
    );
}

#[test]
fn shell_of_a_push_breaks_off() {
    dies_at_each(Direction::Push, 20, growing().map(Death::ShellToServer));
    dies_at_each(Direction::Push, 10, growing().map(Death::ShellToClient));
}

#[test]
fn shell_of_a_pull_breaks_off() {
    dies_at_each(Direction::Pull, 10, growing().map(Death::ShellToServer));
    dies_at_each(Direction::Pull, 20, growing().map(Death::ShellToClient));
}

// ── interrupted ─────────────────────────────────────────────────────────────────────────────────

/// Creates a large file over an old one.
fn large(top: &Path) {
    write(&top.join("src/big"), &"x".repeat(12_000_000), 2);
    write(&top.join("dst/big"), "old", 1);
}

/// Creates two sparse files of 1 TiB. Only reading them shows that their contents are equal.
fn endless(top: &Path) {
    for tree in ["src", "dst"] {
        std::fs::create_dir_all(top.join(tree)).expect("the directory can be created");
        let file = std::fs::File::create(top.join(tree).join("big")).expect("the test's own file");
        file.set_len(1 << 40)
            .expect("scratch supports sparse files");
    }
}

/// Returns whether any process has a file open.
fn is_open(path: &Path) -> bool {
    let processes = std::fs::read_dir("/proc")
        .expect("the file exists")
        .flatten();
    // Processes may exit meanwhile.
    let files = processes
        .filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok())
        .flatten()
        .flatten();
    files
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .any(|open| open == path)
}

/// The state of a run at the moment of the interrupt.
struct Busy {
    options: [&'static str; 2],
    build: fn(&Path),
    /// Returns whether the run is in this state.
    begun: fn(&Path) -> bool,
    /// Returns whether the destination is as it was before.
    undone: fn(&Path) -> bool,
}

/// Receives a file that replaces an old one.
const COPYING: Busy = Busy {
    options: ["-a", "--bwlimit=600"],
    build: large,
    begun: |top| {
        let entries = std::fs::read_dir(top.join("dst")).expect("the file exists");
        let begun = |entry: std::fs::DirEntry| entry.metadata().is_ok_and(|meta| meta.len() > 3);
        entries.flatten().any(begun)
    },
    undone: |top| {
        files(&top.join("dst"))
            .into_iter()
            .eq([("big".into(), b"old".to_vec())])
    },
};

/// Reads the contents of a file that takes minutes, at one end or at both.
const COMPARING: Busy = Busy {
    options: ["-a", "--checksum"],
    build: endless,
    begun: |top| is_open(&top.join("src/big")),
    undone: |top| {
        let there = std::fs::read_dir(top.join("dst"))
            .expect("the file exists")
            .flatten();
        there
            .map(|entry| {
                (
                    entry.file_name(),
                    entry.metadata().expect("the file exists").len(),
                )
            })
            .eq([("big".into(), 1 << 40)])
    },
};

/// Interrupts a busy client and, as a terminal does, its shell if `to_all` is set. No process may remain at either end.
fn stops(way: Direction, shell: &str, to_all: bool, busy: &Busy) {
    let stage = Stage::new(&Trees {
        options: &[],
        build: busy.build,
        backups: &[],
    });
    // As with ssh, killing the shell does not kill the server, which cleans up in its own time.
    stage.script("shell", &[FAKE_SSH, "sh -c \"$*\"\nexit $?\n"].concat());
    // The server holds this fifo open while it lives. Opening it does not block, because the read end is open.
    let fifo = stage.top.join("alive");
    fs::mknodat(fs::CWD, &fifo, FileType::Fifo, 0o600.into(), 0).expect("scratch supports fifos");
    let alive = fs::open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
        .expect("the test's own file");
    let top = stage.top.display();
    let program = format!(
        "--rsync-path=cd {top} && exec 9>alive && exec {}",
        oracle::under_test().display()
    );
    let shell = format!("--rsh={shell}");
    let [source, dest] = way.operands();
    let [first, second] = busy.options;
    let words = [&shell, &program, first, second, source, dest];
    let request = Request {
        signal: Signal::INT,
        to_all,
        ready: &|| (busy.begun)(&stage.top),
        interrupted: &|| (),
    };
    let output = stage.interrupt(&words, &[], &request);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.exit == 20 && stderr.contains("(code 20)"),
        "{way:?}: exit {}: {stderr}",
        output.exit
    );
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        fs::fcntl_setfl(&alive, OFlags::empty()).expect("the test's own file");
        let _ = tx.send(std::fs::File::from(alive).read_to_end(&mut Vec::new()));
    });
    let left = rx.recv_timeout(PROMPTLY);
    assert!(
        matches!(left, Ok(Ok(0))),
        "{way:?}, {shell}: the server still runs: {left:?}"
    );
    assert!(
        (busy.undone)(&stage.top),
        "{way:?}, {shell}: the destination has changed"
    );
}

#[test]
fn signal_stops_the_client() {
    stops(Direction::Push, "./shell", false, &COPYING);
    stops(Direction::Pull, "./shell", false, &COPYING);
}

#[test]
fn signal_stops_the_client_during_content_comparison() {
    stops(Direction::Push, "./shell", false, &COMPARING);
    stops(Direction::Pull, "./shell", false, &COMPARING);
}

#[test]
fn signal_to_the_process_group_stops_the_run() {
    stops(Direction::Push, "./shell", true, &COPYING);
    stops(Direction::Pull, "./shell", true, &COPYING);
}

synctest!(signal_stops_a_client_over_ssh, over ssh, |w: World| {
    let way = if w.is_pulled() { Direction::Pull } else { Direction::Push };
    stops(way, &ssh(), false, &COPYING);
    stops(way, &ssh(), true, &COPYING);
});

// ── silent ──────────────────────────────────────────────────────────────────────────────────────

/// Forwards `CUT` bytes of one `DIRECTION`, then what `rest` does. The processes that remain until then do not hold the
/// run's standard error.
const MUTE: &str = "exec 3<&0
some() { dd bs=1 count=$CUT status=none 2>&-; rest; }
pass() { exec cat 2>&-; }
case $DIRECTION in
there) some <&3 3<&- | serve 3<&- | pass 3<&-;;
back) pass <&3 3<&- | serve 3<&- | some 3<&-;;
esac
";
/// Forwards nothing until the test opens `silence`.
const NOTHING: &str = "rest() { exec cat silence 2>&-; }\n";
/// Forwards a few bytes per second while `silence` exists. rsync takes any byte for progress.
const TRICKLE: &str = "rest() { while [ -e silence ] && dd bs=1 count=1 status=none 2>&- && sleep 0.2; do :; done; } 2>&-\n";

/// Checks that both ends time out when a direction carries nothing, or next to nothing, after some bytes.
fn times_out(way: Direction, direction: &str, bytes: u64, rest: &str) {
    let stage = Stage::new(&Trees {
        options: &[],
        build: both,
        backups: &[],
    });
    fs::mknodat(
        fs::CWD,
        stage.top.join("silence"),
        FileType::Fifo,
        0o600.into(),
        0,
    )
    .expect("scratch supports fifos");
    let script = format!("CUT={bytes} DIRECTION={direction} far=$*\n{SERVE}{rest}{MUTE}");
    stage.script("shell", &[FAKE_SSH, &script].concat());
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let [source, dest] = way.operands();
    let words = ["--rsh=./shell", &program, "-a", "--timeout=1", source, dest];
    let begun = Instant::now();
    let output = stage.run_words(oracle::under_test(), &words, &[]);
    // Releases the processes that wait for a writer.
    let _ = fs::open(
        stage.top.join("silence"),
        OFlags::WRONLY | OFlags::NONBLOCK,
        Mode::empty(),
    );
    let shown = format!(
        "{way:?}, {direction}: exit {}: {}",
        output.exit,
        output.stderr.escape_ascii()
    );
    assert!(output.exit == 30 && shown.contains("timeout"), "{shown}");
    assert!(begun.elapsed() < PROMPTLY, "{:?}: {shown}", begun.elapsed());
    let server = std::fs::read_to_string(stage.top.join("code")).expect("the server has exited");
    assert_eq!(server, "30\n", "{shown}");
}

fn gives_up_each(rest: &'static str) {
    std::thread::scope(|scope| {
        for (way, direction, bytes) in [
            (Direction::Push, "there", 20_000),
            (Direction::Push, "back", 300),
            (Direction::Pull, "there", 300),
            (Direction::Pull, "back", 20_000),
        ] {
            scope.spawn(move || times_out(way, direction, bytes, rest));
        }
    });
}

#[test]
fn silent_peer_ends_the_run_with_the_timeout() {
    gives_up_each(NOTHING);
}

#[test]
fn a_peer_whose_bytes_trickle() {
    gives_up_each(TRICKLE);
}

// ── lost near the end ───────────────────────────────────────────────────────────────────────────

/// Returns the length of the large file: less if the link is so small that each byte costs a switch between two
/// threads.
fn large_bytes() -> u64 {
    if std::env::var_os("SPARSYNC_LINK_BYTES").is_some() {
        4 << 20
    } else {
        16 << 20
    }
}

/// Sends one `DIRECTION` through two fifos, which the test joins.
const JOINED: &str = "export far; exec 3<&0
echo $PPID >client.new; mv client.new client
serve() { sh -c 'echo $$ >server.new; mv server.new server; exec sh -c \"exec $far\"'; }
case $DIRECTION in
there) cat <&3 >sent 3<&- & serve <received 3<&-;;
back) serve <&3 >sent 3<&- & cat received 3<&-;;
esac
exit 0
";

/// The process that is killed when nearly all of a file has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Sender,
    Receiver,
}

/// Kills a process after nine tenths of a large file, runs again, and returns how many bytes the second run
/// transferred. `old` is the content of the destination file before the first run.
fn costs_again(way: Direction, options: &[&str], victim: Victim, old: Option<&str>) -> u64 {
    let stage = Stage::new(&Trees {
        options: &[],
        build: |top| write(&top.join("src/a"), "a", 1),
        backups: &[],
    });
    let mut noise = Vec::new();
    let random = std::fs::File::open("/dev/urandom").expect("every machine has it");
    let large_bytes = large_bytes();
    random
        .take(large_bytes)
        .read_to_end(&mut noise)
        .expect("it never ends");
    std::fs::write(stage.top.join("src/big"), &noise).expect("scratch can be written");
    std::fs::create_dir_all(stage.top.join("dst")).expect("scratch can be written");
    if let Some(old) = old {
        write(&stage.top.join("dst/big"), old, 1);
    }
    let at = if (victim == Victim::Sender) == (way == Direction::Push) {
        "client"
    } else {
        "server"
    };
    let direction = if way == Direction::Push {
        "there"
    } else {
        "back"
    };
    stage.script(
        "shell",
        &[FAKE_SSH, &format!("far=$* DIRECTION={direction}\n"), JOINED].concat(),
    );
    // Opened for reading and writing, so that `open` does not block. `received` ends when this handle is dropped.
    let [mut sent, mut received] = ["sent", "received"].map(|name| {
        let path = stage.top.join(name);
        fs::mknodat(fs::CWD, &path, FileType::Fifo, 0o600.into(), 0)
            .expect("scratch supports fifos");
        std::fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("the test's own file")
    });
    let program = format!("--rsync-path={}", oracle::under_test().display());
    std::fs::create_dir(stage.top.join("parts")).expect("scratch can be written");
    std::os::unix::fs::symlink("parts", stage.top.join("link")).expect("scratch supports symlinks");
    let top = stage.top.display().to_string();
    let options: Vec<_> = options
        .iter()
        .map(|option| option.replace("TOP", &top))
        .collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let [source, dest] = way.operands();
    let words = [
        &["--rsh=./shell", &program, "-a", "--stats"],
        &options[..],
        &[source, dest],
    ]
    .concat();
    let landed = || {
        let entries = std::fs::read_dir(stage.top.join("dst")).expect("the file exists");
        entries.flatten().any(|entry| {
            entry
                .metadata()
                .is_ok_and(|meta| meta.len() >= large_bytes * 9 / 10)
        })
    };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| stage.run_words(oracle::under_test(), &words, &[]));
        // No bytes follow these, so the transfer is still in progress when the test sees that they have arrived.
        let joined = std::thread::spawn(move || {
            let joined =
                std::io::copy(&mut (&mut sent).take(large_bytes * 95 / 100), &mut received);
            joined.map(|_| (sent, received))
        });
        until(|| landed() || run.is_finished());
        // Both ends must live until all of these bytes have passed.
        let joined = joined.join();
        let pid = std::fs::read_to_string(stage.top.join(at)).expect("the shell has written it");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("not 0");
        kill_process(pid, Signal::KILL).expect("the copy is in progress");
        drop(joined);
        let exit = run.join().expect("it ends").exit;
        assert!(
            [12, KILLED].contains(&exit),
            "{way:?} {options:?} {victim:?}: {exit}"
        );
    });
    stage.script("shell", &[FAKE_SSH, "exec sh -c \"exec $*\"\n"].concat());
    let again = stage.run_words(oracle::under_test(), &words, &[]);
    let printed = String::from_utf8_lossy(&again.stdout).into_owned();
    assert_eq!(again.exit, 0, "{}", again.stderr.escape_ascii());
    let names: Vec<_> = files(&stage.top.join("dst")).into_keys().collect();
    assert_eq!(
        names,
        [Path::new("a"), Path::new("big")],
        "{way:?} {options:?} {victim:?}"
    );
    assert!(
        std::fs::read(stage.top.join("dst/big")).expect("the file exists") == noise,
        "{way:?} {options:?} {victim:?}"
    );
    let count = |line: &str| {
        let count = line
            .strip_prefix("Total bytes sent: ")
            .or(line.strip_prefix("Total bytes received: "))?;
        count.replace(',', "").parse::<u64>().ok()
    };
    let counts: Vec<u64> = printed.lines().filter_map(count).collect();
    assert_eq!(counts.len(), 2, "{printed}");
    counts.iter().sum()
}

/// Checks that after a loss at nine tenths the second run transfers little more than the last tenth.
#[track_caller]
fn costs_little(way: Direction, options: &[&str], victim: Victim, old: Option<&str>) {
    let bytes = costs_again(way, options, victim, old);
    assert!(
        bytes <= large_bytes() * 15 / 100,
        "{way:?} {options:?} {victim:?} {old:?}: {bytes} bytes again"
    );
}

#[test]
fn kept_partial_file_is_not_sent_again() {
    for way in [Direction::Push, Direction::Pull] {
        costs_little(way, &["--partial"], Victim::Sender, None);
        // The backup of what the part replaces does not look like the file of another run.
        let backed_up = ["--partial", "--backup", "--backup-dir=../kept"];
        costs_little(way, &backed_up, Victim::Sender, Some("old"));
        costs_little(way, &["--partial-dir=.part"], Victim::Sender, Some("old"));
        costs_little(
            way,
            &["--partial-dir=TOP/link"],
            Victim::Sender,
            Some("old"),
        );
    }
}

#[test]
fn leftover_of_a_killed_receiver_is_not_sent_again() {
    costs_little(Direction::Push, &["--delete"], Victim::Receiver, None);
    costs_little(Direction::Push, &[], Victim::Receiver, Some("old"));
    costs_little(Direction::Pull, &["--partial"], Victim::Receiver, None);
    costs_little(
        Direction::Pull,
        &["--delete"],
        Victim::Receiver,
        Some("old"),
    );
}

// ── small buffers ───────────────────────────────────────────────────────────────────────────────

/// Runs over a link that buffers next to nothing, to check that the two ends cannot deadlock. `scripts/test` describes
/// how to run all cases this way. `src/native/tests/no_room.rs` tests sessions inside of one process.
fn over_a_link_of(w: &World, bytes: &str) {
    w.env("SPARSYNC_LINK_BYTES", bytes).once().no_dry_run();
    let files: Vec<String> = (0..60)
        .map(|n| format!("d{}/f{n}*{}", n % 7, n * 10))
        .collect();
    w.source(&files.join(" "))
        .source("same*9000 new*20000 l->same")
        .dest("same*9000 d1/f1=old d3/gone gone/deep/x");
    w.agree(&["-aHi", "--delete"]).exits(0).prints("deleting");
    w.agree(&["-aHic", "--delete-before"]).exits(0);
    w.source("big*30000 d2/late").dest("d9/gone");
    w.agree(&["-aHi", "--delete-after", "--delay-updates", "-z"])
        .exits(0)
        .prints("d2/late");
}

synctest!(over_a_link_of_one_byte, between machines, |w: World| over_a_link_of(&w, "1"));
synctest!(over_a_link_of_64_kib, between machines, |w: World| over_a_link_of(&w, "65536"));
