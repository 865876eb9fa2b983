//! Lost connections: a run that reconnects ends exactly as an uninterrupted one, or it ends with an error.
//!
//! Client and server use TLS through a relay of the test, which acts after a given number of bytes: it breaks the
//! connection for both ends or for the client only, or the test kills the client, the session or the server. The trees
//! of both ends are then compared with what an uninterrupted rsync leaves, and once more after the server has noticed
//! that the first connection is gone. [`CASES`] defines for each option set whether the run must finish or must not
//! reconnect.

use crate::kit::Scene;
use crate::kit::{Cut, Lens, Relay, Trigger, noise, oracle, snapshot, tries_all_faults, until};
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::catch_unwind;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, UNIX_EPOCH};

/// What a run must do after a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    /// Reconnect and exit with 0.
    Finish,
    /// Exit with rsync's error for a broken stream and a hint: a second attempt could end differently.
    Refuse,
    /// The same. Even if the user runs the command again, the result may differ, as with rsync.
    RefuseForGood,
}

/// An option set and the required behaviour.
struct Case(&'static str, Must);

/// Every option whose side effects could disturb a second attempt.
const CASES: &[Case] = &[
    Case("-a", Must::Finish),
    Case("-a --delete", Must::Finish),
    Case("-a --delete-before", Must::Finish),
    Case("-a --delete-delay", Must::Finish),
    Case("-a --delete-after", Must::Finish),
    Case("-a --delete --max-delete=100", Must::Refuse),
    Case("-aH --delete", Must::Finish),
    Case("-a --partial", Must::Finish),
    Case("-a --partial -W", Must::Finish),
    Case("-a --partial --ignore-existing", Must::Finish),
    Case("-a --partial --ignore-existing -W", Must::Finish),
    Case("-a --partial -u", Must::Finish),
    Case("-a --partial-dir=.part", Must::Finish),
    Case("-a --partial-dir=.part -W --delete", Must::Finish),
    Case("-a -W", Must::Finish),
    Case("-a --temp-dir=TOP/temp", Must::Finish),
    Case("-a --delay-updates", Must::Finish),
    Case("-aH --delay-updates --delete-after", Must::Finish),
    Case("-a --ignore-existing", Must::Finish),
    Case("-aH --ignore-existing", Must::Refuse),
    Case("-a --existing", Must::Refuse),
    Case("-a -u", Must::Finish),
    Case("-a --size-only", Must::Finish),
    Case("-a -c", Must::Finish),
    Case("-a -c --checksum-cache", Must::Finish),
    Case("-a -I", Must::Finish),
    Case("-a --fuzzy", Must::Finish),
    Case("-a --fuzzy --delete-after", Must::Finish),
    Case("-a --delete --detect-renamed=moved", Must::Finish),
    Case("-a --delete-after --detect-renamed=quick", Must::Finish),
    Case("-a --detect-renamed=quick", Must::Finish),
    Case("-a --delete --detect-renamed", Must::Finish),
    Case("-a --detect-renamed --checksum-cache", Must::Finish),
    Case("-a --verify=source", Must::Finish),
    Case("-a --link-dest=../alt", Must::Finish),
    Case("-aH --link-dest=../alt --delete", Must::Finish),
    Case("-a --copy-dest=../alt", Must::Finish),
    Case("-a --clone-dest=../alt", Must::Finish),
    Case("-a --compare-dest=../alt", Must::Finish),
    Case("-a --backup", Must::Refuse),
    // A second run backs up what the first one has backed up, as with rsync.
    Case(
        "-a --backup --backup-dir=.bak --delete",
        Must::RefuseForGood,
    ),
    Case("-a --backup --backup-dir=../old", Must::Refuse),
    Case("-rlt", Must::Refuse),
    Case("-aF --delete", Must::Refuse),
    Case("-aF --delete-after", Must::Finish),
    Case("-a --inplace", Must::Refuse),
    Case("-a --inplace -u", Must::RefuseForGood),
    Case("-a --inplace --backup", Must::RefuseForGood),
    // A second run skips a file whose content has arrived but whose attributes were not set, as with rsync.
    Case("-a --append", Must::RefuseForGood),
    Case("-a --append-verify", Must::RefuseForGood),
    // Removing files changes the times of their directories, which a second run copies, as with rsync.
    Case("-a --remove-source-files", Must::RefuseForGood),
];

/// What happens to the first connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It breaks for both ends.
    Connection,
    /// It breaks for the client; the server does not notice.
    AtClient,
    /// The session process is killed.
    Session,
    /// The server is killed and started again.
    Server,
    /// The client is killed and the command run again, while the server does not notice the loss.
    Client,
}

const LOSSES: [Loss; 5] = [
    Loss::Connection,
    Loss::AtClient,
    Loss::Session,
    Loss::Server,
    Loss::Client,
];

/// The direction of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Push,
    Pull,
}

/// Interrupted files of at least this length are kept for the next attempt.
const RESUMED_BYTES: usize = 1 << 20;

/// Creates `src`, `dst` and `alt` below `top`.
fn build(top: &Path) {
    let put = |path: &str, content: &[u8], secs: u64| {
        let path = top.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(1_600_000_000 + secs);
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    };
    for n in 0..12 {
        put(&format!("src/a/{n}"), &noise(n, 2_000), 50);
    }
    for n in 0..6 {
        put(&format!("dst/a/{n}"), b"old", 10);
        put(&format!("dst/a/extra{n}"), b"extra", 10);
    }
    put("src/b_new", &noise(20, 2 * RESUMED_BYTES), 50);
    put("src/c_changed", &noise(21, RESUMED_BYTES + 5_000), 50);
    put(
        "dst/c_changed",
        &[&noise(21, 400_000)[..], &noise(22, 500_000)].concat(),
        10,
    );
    put("src/d/new", &noise(23, 600_000), 50);
    put("src/d/changed", &noise(24, 500_000), 50);
    put("dst/d/changed", &noise(25, 500_000), 10);
    put("src/d/newer", b"the source's", 20);
    put("dst/d/newer", b"the destination's", 40);
    put("src/d/same", b"same", 20);
    put("dst/d/same", b"same", 20);
    put("src/e_log", &noise(26, 700_000), 50);
    put("dst/e_log", &noise(26, 300_000), 10);
    put("src/f_alt", &noise(27, 300_000), 30);
    put("alt/f_alt", &noise(27, 300_000), 30);
    put("src/g_linked", &noise(28, 300_000), 50);
    std::fs::hard_link(top.join("src/g_linked"), top.join("src/h_linked")).unwrap();
    std::fs::hard_link(top.join("src/g_linked"), top.join("src/z_linked")).unwrap();
    put("dst/h_linked", b"old", 10);
    put("src/i/new", &noise(29, 3 * RESUMED_BYTES), 50);
    put("src/j/last", &noise(30, 900_000), 50);
    put("src/l/moved", &noise(31, 200_000), 50);
    put("dst/gone/moved", &noise(31, 200_000), 50);
    put("dst/gone/x", b"x", 10);
    put("dst/gone/y/z", b"z", 10);
    std::os::unix::fs::symlink("b_new", top.join("src/k_link")).unwrap();
    std::fs::create_dir(top.join("temp")).unwrap();
    for dir in [
        "src/a",
        "src/d",
        "src/i",
        "src/j",
        "src/l",
        "src",
        "dst/a",
        "dst/d",
        "dst/gone/y",
        "dst/gone",
        "dst",
        "alt",
    ] {
        let time = UNIX_EPOCH + Duration::from_secs(1_600_000_000);
        std::fs::File::open(top.join(dir))
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
}

/// Returns the trees to compare: the source, the destination, and the directories beside it.
fn trees(top: &Path) -> Vec<String> {
    let lens = Lens {
        blocks: false,
        atimes: false,
        links_within: false,
        now_secs: 1_700_000_000,
    };
    let one = |name: &str| {
        let dir = top.join(name);
        let tree = if dir.exists() {
            snapshot(&dir, lens)
        } else {
            Default::default()
        };
        tree.into_values()
            .map(|line| format!("{name}: {line}"))
            .collect::<Vec<_>>()
    };
    ["src", "dst", "old", "temp", "alt"]
        .iter()
        .flat_map(|name| one(name))
        .collect()
}

/// Returns whether a line is about a temporary file, `.name.XXXXXX`, or a staging directory of `--delay-updates`.
fn is_temp(line: &str) -> bool {
    let path = line.split('"').nth(1).unwrap();
    let name = path.rsplit('/').next().unwrap();
    let is_staged = path.split('/').any(|part| part == ".~tmp~");
    is_staged || name.starts_with('.') && name.len() > 8 && name.as_bytes()[name.len() - 7] == b'.'
}

#[track_caller]
fn same_trees(printed: &str, wanted: &[String], got: &[String]) {
    let missing: Vec<_> = wanted.iter().filter(|line| !got.contains(line)).collect();
    let extra: Vec<_> = got.iter().filter(|line| !wanted.contains(line)).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{printed}\nwanted: {missing:#?}\ngot: {extra:#?}"
    );
}

/// Returns the process IDs of the sessions of a server.
pub fn sessions_of(server: &str) -> Vec<String> {
    let found = Command::new("pgrep").args(["-P", server]).output().unwrap();
    String::from_utf8(found.stdout)
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn kill(pid: &str) {
    assert!(
        Command::new("kill")
            .args(["-9", pid])
            .status()
            .unwrap()
            .success()
    );
}

fn start(scene: &Scene, line: &str) -> Child {
    let mut command = scene.command("client", line);
    command
        .current_dir(scene.path("run"))
        .env("SPARSYNC_CONFIG_DIR", scene.path("client"));
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Loses the connection of one run in one way, after `share` of the bytes that it carries.
fn loses(Case(options, must): &Case, direction: Direction, loss: Loss, share: f64) {
    let printed = format!("{options}, {direction:?}, {loss:?} after {share}");
    let scene = Scene::new();
    scene.enroll("--root TOP --no-munge");
    let oracle_top = scene.path("oracle");
    for top in [&oracle_top, &scene.path("run")] {
        build(top);
    }
    let in_top = |top: &Path| options.replace("TOP", top.to_str().unwrap());
    let mut by_rsync = Command::new(oracle::rsync());
    let of_rsync = in_top(&oracle_top);
    let of_rsync = of_rsync.split_whitespace().filter(|option| {
        ![
            "--detect-renamed",
            "--verify",
            "--checksum-cache",
            "--clone-dest",
        ]
        .iter()
        .any(|own| option.starts_with(own))
    });
    by_rsync
        .args(of_rsync)
        .args(["src/", "dst/"])
        .current_dir(&oracle_top);
    assert!(by_rsync.status().unwrap().success(), "{printed}");
    let wanted = trees(&oracle_top);

    let (reached, fired) = sync_channel(0);
    let after_bytes = (carried_bytes(options) as f64 * share) as usize;
    let server = |scene: &Scene| {
        SocketAddr::from((Ipv4Addr::LOCALHOST, scene.status("port").parse().unwrap()))
    };
    let cut = match loss {
        Loss::Connection => Cut::End,
        Loss::AtClient => Cut::AtClient,
        Loss::Client => Cut::Hold,
        Loss::Session | Loss::Server => Cut::None,
    };
    let then = Box::new(move || {
        let (go_on, answered) = sync_channel(0);
        let _ = reached.send(go_on);
        answered.recv().ok()
    });
    let trigger = Trigger {
        to_server: direction == Direction::Push,
        after_bytes,
        cut,
        then,
    };
    let relay = Relay::start(server(&scene), [trigger]);
    let hosts = format!(
        "[[host]]\nname = \"host\"\nssh = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {}\npin = \"{}\"\n\
         met = \"2026-01-01T00:00:00Z\"\n",
        relay.port,
        scene.status("pin")
    );
    std::fs::write(scene.path("client/hosts.toml"), hosts).unwrap();
    let operands = match direction {
        Direction::Push => "src/ host:TOP/run/dst/",
        Direction::Pull => "host:TOP/run/src/ dst/",
    };
    let line = format!("--transport=tls {} {operands}", in_top(&scene.path("run")));
    let mut client = start(&scene, &line);
    let Ok(go_on) = fired.recv() else {
        panic!("{printed}: the relay has exited")
    };
    let pid = scene.status("pid");
    match loss {
        Loss::Connection | Loss::AtClient => {}
        Loss::Session => sessions_of(&pid).iter().for_each(|session| kill(session)),
        Loss::Server => {
            kill(&pid);
            until(|| {
                scene
                    .command("server", "server status")
                    .output()
                    .unwrap()
                    .status
                    .code()
                    == Some(3)
            });
            scene.well("start --port PORT");
            go_on.send(server(&scene)).unwrap();
        }
        Loss::Client => {
            // `timeout` cannot forward SIGKILL, so the client below it is killed directly.
            sessions_of(&client.id().to_string())
                .iter()
                .for_each(|client| kill(client));
            client.wait().unwrap();
            client = start(&scene, &line);
        }
    }
    drop(go_on);
    let Output { status, stderr, .. } = client.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    let printed = format!("{printed}: {status}\n{stderr}");
    // What the relay and the sockets hold can be all that the client still needs. Then there is nothing to repeat.
    let is_uninterrupted = status.success() && relay.connections() == 1;
    let is_finished = loss == Loss::Client || *must == Must::Finish || is_uninterrupted;
    let is_compared = is_finished && (*must != Must::RefuseForGood || is_uninterrupted);
    if is_finished {
        assert!(status.success(), "{printed}");
        if is_compared {
            let mut got = trees(&scene.path("run"));
            // A session that was not replaced still has its temporary files.
            got.retain(|line| loss != Loss::Client || !is_temp(line));
            same_trees(&printed, &wanted, &got);
        }
    } else {
        assert_eq!(status.code(), Some(12), "{printed}");
        assert!(stderr.contains("hint: "), "{printed}");
    }
    // Now the server notices that the first connection is gone.
    relay.release();
    let pid = scene.status("pid");
    until(|| sessions_of(&pid).is_empty());
    if is_compared {
        same_trees(
            &format!("{printed}\nafter the end of the first session"),
            &wanted,
            &trees(&scene.path("run")),
        );
    }
}

/// Returns roughly how many bytes a run carries towards the destination.
fn carried_bytes(options: &str) -> usize {
    let all = 9_700_000;
    match options {
        _ if options.contains("ignore-existing") => all - 2_200_000,
        _ if options.contains("existing") => 2_000_000,
        _ => all - 1_700_000,
    }
}

/// Stops the server during the copy of a large file and returns how the copy ended.
fn stopped_during(scene: &Scene, options: &str) -> Output {
    const BYTES: usize = 16 << 20;
    std::fs::write(scene.path("src/big"), noise(1, BYTES)).unwrap();
    let mut copy = scene.command(
        "client",
        &format!("-a --bwlimit=3m {options} src/big host:TOP/in/big"),
    );
    // The sparsync that ssh starts.
    let path = format!(
        "{}:{}",
        scene.path("").display(),
        std::env::var("PATH").unwrap()
    );
    let copy = copy
        .env("PATH", path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| scene.status("bytes_in").parse::<usize>().unwrap() >= BYTES / 8);
    scene.well("stop --now");
    copy.wait_with_output().unwrap()
}

#[test]
fn copy_continues_over_ssh_if_its_server_is_stopped() {
    for transport in ["quic", "tls"] {
        let scene = Scene::new();
        scene.enroll("--root TOP --no-munge");
        std::os::unix::fs::symlink(oracle::under_test(), scene.path("sparsync")).unwrap();
        let hosts = std::fs::read_to_string(scene.path("client/hosts.toml")).unwrap();
        let last =
            format!("{hosts}last_route = \"{transport}\"\nlast_until = \"2100-01-01T00:00:00Z\"\n");
        std::fs::write(scene.path("client/hosts.toml"), last).unwrap();
        let output = stopped_during(&scene, "");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output:?}");
        assert!(
            printed.contains("sparsync: the server of host was stopped; continuing over ssh"),
            "{printed}"
        );
        assert!(
            std::fs::read(scene.path("in/big")).unwrap()
                == std::fs::read(scene.path("src/big")).unwrap()
        );
        assert_eq!(
            std::fs::read_dir(scene.path("in")).unwrap().count(),
            2,
            "no other file is left"
        );
    }
}

#[test]
fn copy_ends_if_its_server_is_stopped_without_fallback() {
    for (options, hint) in [
        ("--transport=quic", "hint: run the same command again\n"),
        ("--transport=tls", "hint: run the same command again\n"),
        (
            "--inplace",
            "hint: run the same command again; --inplace prevents an automatic retry\n",
        ),
    ] {
        let scene = Scene::new();
        scene.enroll("--root TOP --no-munge");
        std::os::unix::fs::symlink(oracle::under_test(), scene.path("sparsync")).unwrap();
        let output = stopped_during(&scene, options);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(12), "{options}: {output:?}");
        let has_cause =
            printed.starts_with(&format!("sparsync: the server of host was stopped\n{hint}"));
        assert!(has_cause, "{options}: {printed}");
    }
}

/// Returns the names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns a number of `--stats`.
fn stat(printed: &str, name: &str) -> usize {
    let line = printed.lines().find(|line| line.starts_with(name));
    let digits = line.unwrap_or_else(|| panic!("{name}: {printed}"));
    let digits = digits.chars().filter(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// Starts a copy with the scripts of the scene in the search path.
fn start_with_ssh(scene: &Scene, line: &str) -> Child {
    let path = std::env::var("PATH").unwrap();
    let mut copy = scene.command("client", line);
    copy.env("PATH", format!("{}:{path}", scene.path("").display()));
    copy.stdout(Stdio::piped()).stderr(Stdio::piped());
    copy.spawn().unwrap()
}

/// Kills a program that `timeout` runs.
fn kill_below(timeout: &mut Child) {
    // `timeout` cannot forward SIGKILL.
    for program in sessions_of(&timeout.id().to_string()) {
        kill(&program);
    }
    timeout.wait().unwrap();
}

#[test]
fn run_after_a_killed_client_continues_from_what_arrived() {
    const BYTES: usize = 16 << 20;
    for transport in ["auto", "quic", "tls", "ssh"] {
        for options in ["-a", "-aP"] {
            let scene = Scene::new();
            scene.enroll("--root TOP --no-munge");
            std::os::unix::fs::symlink(oracle::under_test(), scene.path("sparsync")).unwrap();
            std::fs::write(scene.path("src/big"), noise(1, BYTES)).unwrap();
            std::fs::create_dir(scene.path("in/d")).unwrap();
            let line = format!("{options} --transport={transport} src/big host:TOP/in/d/");
            let mut first = start_with_ssh(&scene, &format!("--bwlimit=5m {line}"));
            let arrived = || {
                let files = std::fs::read_dir(scene.path("in/d")).unwrap().flatten();
                files
                    .map(|file| file.metadata().map_or(0, |meta| meta.len()))
                    .sum::<u64>()
            };
            until(|| arrived() >= BYTES as u64 * 5 / 8);
            kill_below(&mut first);

            let again = start_with_ssh(&scene, &format!("--stats {line}"));
            let again = again.wait_with_output().unwrap();
            let printed = String::from_utf8_lossy(&again.stdout);
            let case = format!("{transport} {options}: {again:?}");
            assert!(again.status.success(), "{case}");
            // The server cannot tell a killed ssh from one that Ctrl-C has ended, which leaves nothing without -P.
            let is_continued = transport != "ssh" || options == "-aP";
            let literal_bytes = stat(&printed, "Literal data");
            assert_eq!(literal_bytes <= BYTES * 6 / 10, is_continued, "{case}");
            assert_eq!(names(&scene.path("in/d")), ["big"], "{case}");
            let pid = scene.status("pid");
            until(|| sessions_of(&pid).is_empty());
        }
    }
}

#[test]
fn parallel_run_to_the_same_place_goes_on() {
    const BYTES: usize = 8 << 20;
    for transport in ["quic", "tls"] {
        let scene = Scene::new();
        scene.enroll("--root TOP --no-munge");
        std::fs::write(scene.path("src/big"), noise(1, BYTES)).unwrap();
        let line = format!("-a --transport={transport} src/ host:TOP/in/");
        let long = start_with_ssh(&scene, &format!("--bwlimit=2m {line}"));
        until(|| scene.status("bytes_in").parse::<usize>().unwrap() >= BYTES / 8);
        for _ in 0..3 {
            let short = start_with_ssh(&scene, &format!("--exclude=big {line}"));
            let short = short.wait_with_output().unwrap();
            assert!(short.status.success(), "{transport}: {short:?}");
        }
        let long = long.wait_with_output().unwrap();
        assert!(long.status.success(), "{transport}: {long:?}");
        assert_eq!(long.stderr, b"", "{transport}: {long:?}");
        assert_eq!(names(&scene.path("in")), ["big", "f", "new"]);
    }
}

/// Kills the server during the copy of a large file and returns how the copy ended.
fn killed_during(scene: &Scene, options: &str) -> Output {
    const BYTES: usize = 16 << 20;
    scene.enroll("--root TOP --no-munge");
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("sparsync")).unwrap();
    std::fs::write(scene.path("src/big"), noise(1, BYTES)).unwrap();
    let line = format!("-a --bwlimit=3m {options} src/big host:TOP/in/big");
    let copy = start_with_ssh(scene, &line);
    until(|| scene.status("bytes_in").parse::<usize>().unwrap() >= BYTES / 8);
    kill(&scene.status("pid"));
    copy.wait_with_output().unwrap()
}

#[test]
fn copy_continues_over_ssh_if_its_server_is_gone() {
    let scene = Scene::new();
    let output = killed_during(&scene, "");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert!(
        printed.contains("refuses connections; continuing over ssh\n"),
        "{printed}"
    );
    assert!(
        std::fs::read(scene.path("in/big")).unwrap()
            == std::fs::read(scene.path("src/big")).unwrap()
    );
    assert_eq!(names(&scene.path("in")), ["big", "f"]);
}

// The commands of the scene are killed before a silent network would end the run.
#[test]
fn copy_ends_soon_if_its_server_is_gone() {
    for transport in ["quic", "tls"] {
        let scene = Scene::new();
        let output = killed_during(&scene, &format!("--transport={transport}"));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(12), "{output:?}");
        for words in [
            "sparsync: the server of host is gone: port ",
            " refuses connections\nhint: start the server with `sparsync server start host`, then",
        ] {
            assert!(printed.contains(words), "{transport}: {printed}");
        }
    }
}

/// Loses the connection in one way under each option set: once, with varying direction and moment, or with
/// SPARSYNC_FAULTS=all in both directions, early and late.
fn loses_in_one_way(loss: Loss) {
    let is_whole = tries_all_faults();
    let mut failures = Vec::new();
    for (n, case) in CASES.iter().enumerate() {
        for (turn, (direction, share)) in [
            (Direction::Push, 0.2),
            (Direction::Pull, 0.8),
            (Direction::Push, 0.8),
            (Direction::Pull, 0.2),
        ]
        .into_iter()
        .enumerate()
        {
            let (by_case, by_turn) = (n % LOSSES.len(), n / LOSSES.len() % 4);
            if is_whole || LOSSES[by_case] == loss && by_turn == turn {
                let attempt = catch_unwind(|| loses(case, direction, loss, share));
                failures.extend(
                    attempt
                        .err()
                        .map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default()),
                );
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}

#[test]
fn connection_loss_at_both_ends() {
    loses_in_one_way(Loss::Connection);
}

#[test]
fn connection_loss_at_the_client_only() {
    loses_in_one_way(Loss::AtClient);
}

#[test]
fn session_is_killed() {
    loses_in_one_way(Loss::Session);
}

#[test]
fn server_is_killed_and_restarted() {
    loses_in_one_way(Loss::Server);
}

#[test]
fn client_is_killed_and_run_again() {
    loses_in_one_way(Loss::Client);
}

#[test]
fn two_clients_copy_to_one_destination_at_once() {
    let scene = Scene::new();
    scene.enroll("--root TOP --no-munge");
    build(&scene.path("run"));
    let copies = [(); 2].map(|()| {
        start(
            &scene,
            "--transport=quic -aH --delete src/ host:TOP/run/dst/",
        )
    });
    for copy in copies {
        let output = copy.wait_with_output().unwrap();
        assert!(
            output.status.success() || output.status.code() == Some(23),
            "{output:?}"
        );
    }
    // Either copy may report what the other one deleted or replaced meanwhile, but the last run finds nothing to do.
    let output = start(
        &scene,
        "--transport=quic -aHic --delete src/ host:TOP/run/dst/",
    )
    .wait_with_output()
    .unwrap();
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
}

// The message about the other key has several lines, also after a session has begun.
#[test]
fn other_key_after_a_lost_connection_is_reported_in_lines() {
    const BYTES: usize = 16 << 20;
    let scene = Scene::new();
    scene.enroll("--root TOP --no-munge");
    std::fs::write(scene.path("src/big"), noise(1, BYTES)).unwrap();
    let line = "-a --bwlimit=3m --transport=tls src/big host:TOP/in/big";
    let copy = start_with_ssh(&scene, line);
    until(|| scene.status("bytes_in").parse::<usize>().unwrap() >= BYTES / 8);
    let port = scene.status("port");
    kill(&scene.status("pid"));
    std::fs::remove_file(scene.path("server/identity.pem")).unwrap();
    scene.well(&format!("start --port {port}"));

    let output = copy.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let lines: Vec<_> = printed.lines().collect();
    let starts = [
        "sparsync: lost the connection to host; reconnecting",
        "sparsync: cannot trust host: its key has changed: another machine may impersonate it",
        "  known  SHA256:",
        "  now    SHA256:",
        "hint: if its key was replaced: ",
        "rsync error: ",
    ];
    assert_eq!(lines.len(), starts.len(), "{printed}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{printed}");
    }
}
