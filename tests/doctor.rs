//! `sparsync doctor`: its findings about this machine and about the way to a host.

use crate::json::check_line;
use crate::kit::Scene;
use crate::kit::oracle;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

/// Writes the remote shell `ssh` of a machine with the configuration of the server. It runs `first` before each command.
fn ssh_to_server(scene: &Scene, first: &str) {
    let top = scene.path("");
    let top = top.display();
    let skip = "while case $1 in -l) shift;; -*) ;; *) false;; esac; do shift; done";
    // `ssh -V` and `ssh -G` ask for no connection.
    let local = "case $1 in -V) echo Test_1; exit;; -G) exit;; esac";
    scene.script(
        "ssh",
        &format!("#!/bin/sh\n{local}\n{skip}\nshift\n{first}\nSPARSYNC_CONFIG_DIR={top}server exec sh -c \"$*\"\n"),
    );
}

/// Runs doctor with that shell in `PATH`, and returns its exit code and its lines, which the schema allows.
#[track_caller]
fn doctor(scene: &Scene, words: &str) -> (Option<i32>, Vec<Value>) {
    let path = format!(
        "{}:{}",
        scene.path("").display(),
        std::env::var("PATH").expect("PATH is set")
    );
    let mut command = scene.command("client", &format!("doctor --json {words}"));
    let output = command
        .env("PATH", path)
        .env_remove("RSYNC_RSH")
        .output()
        .expect("a program can be started");
    let text = String::from_utf8(output.stdout.clone()).expect("JSON is UTF-8");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert!(!lines.is_empty(), "{output:?}");
    lines.iter().for_each(check_line);
    let has_failed = lines.iter().any(|line| line["state"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(has_failed)), "{text}");
    (output.status.code(), lines)
}

/// Returns the state and the finding of a check.
#[track_caller]
fn found<'a>(lines: &'a [Value], name: &str) -> (&'a str, &'a str) {
    let line = lines
        .iter()
        .find(|line| line["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {lines:?}"));
    (
        line["state"].as_str().expect("a string"),
        line["finding"].as_str().expect("a string"),
    )
}

#[track_caller]
fn assert_found(lines: &[Value], name: &str, state: &str, words: &str) {
    let (is, finding) = found(lines, name);
    assert!(
        is == state && finding.contains(words),
        "{name}: {is}: {finding}"
    );
}

#[test]
fn checks_of_this_machine_change_nothing() {
    let scene = Scene::new();
    let (_, lines) = doctor(&scene, "--path=TOP/in");
    assert!(!scene.path("client").exists(), "no directory was created");
    assert_eq!(
        std::fs::read_dir(scene.path("in")).unwrap().count(),
        1,
        "no file was created"
    );
    assert_found(&lines, "program", "ok", env!("CARGO_PKG_VERSION"));
    assert_found(&lines, "configuration", "ok", "does not exist yet");
    assert_found(&lines, "key", "ok", "none yet");
    assert_found(&lines, "server", "ok", "not running");
    assert_found(&lines, "directory", "ok", "/in, writable");
    for name in [
        "ssh",
        "openat2",
        "kernel copy",
        "xattrs",
        "acls",
        "case",
        "times",
        "space",
        "inodes",
    ] {
        assert!(!found(&lines, name).1.is_empty(), "{name}");
    }
    assert_found(&lines, "open files", "ok", "at most");
    assert_found(&lines, "clock", "ok", "Z");
    let output = scene.command("client", "doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("ok    program           sparsync "),
        "{text}"
    );
}

/// Kills doctor at each of its system calls on files, from the first file that it creates on. The number of calls before
/// depends on the sockets of this machine. A file that needs a name is left only between two calls, and the next run
/// removes it.
#[test]
fn killed_probe_leaves_no_file() {
    for is_named in [false, true] {
        kill_probe_at_each_call(is_named);
    }
}

fn kill_probe_at_each_call(is_named: bool) {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("empty")).expect("scratch can be written");
    let files = || std::fs::read_dir(scene.path("empty")).unwrap().count();
    let run = |call: Option<usize>| {
        let mut command = scene.command("client", "doctor --path=TOP/empty");
        command.envs(is_named.then_some(("SPARSYNC_REFUSE", "tmpfile:EOPNOTSUPP")));
        command.env("SPARSYNC_FAULT_IN", "tmpfile");
        command.envs(call.map(|call| ("SPARSYNC_KILL_AT", call.to_string())));
        command.output().expect("a program can be started")
    };
    let (mut killed, mut left) = (0, 0);
    while run(Some(killed + 1)).status.code().is_none() {
        killed += 1;
        if is_named && files() > 0 {
            left += files();
            assert!(run(None).status.success());
        }
        assert_eq!(files(), 0, "killed at call {killed}");
        assert!(!scene.path("client").exists(), "killed at call {killed}");
    }
    // Two files are created, written and examined.
    assert!(killed > 10, "only {killed} calls");
    assert_eq!(
        left,
        if is_named { 2 } else { 0 },
        "between creating and removing each file"
    );
    let time = || {
        std::fs::metadata(scene.path("empty"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = time();
    let output = run(None);
    let words = if is_named {
        "O_TMPFILE is not supported"
    } else {
        "O_TMPFILE is supported"
    };
    assert!(String::from_utf8(output.stdout).unwrap().contains(words));
    assert_eq!(time(), before, "the directory looks unchanged");
}

#[test]
fn other_listener_on_the_port_is_named() {
    let scene = Scene::new();
    // No other process can get this port for UDP, as one could get the port of a TCP socket.
    let listener = std::net::UdpSocket::bind(("::", 0)).expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    std::fs::create_dir_all(scene.path("client/state")).expect("scratch can be written");
    std::fs::write(scene.path("client/state/server.port"), port.to_string())
        .expect("scratch can be written");
    let (_, lines) = doctor(&scene, "");
    // Processes that other tests start have the socket, too, until they run their program.
    assert_found(&lines, "port", "warn", &format!("{port} is in use by "));
    assert_found(&lines, "port", "warn", "(process ");
}

#[test]
fn faults_have_a_next_step() {
    let scene = Scene::new();
    let (code, lines) = doctor(&scene, "--path=absent");
    assert_eq!(code, Some(1));
    assert_found(
        &lines,
        "directory",
        "fail",
        "cannot open absent: No such file or directory (2)",
    );

    scene.enroll("--root=TOP/in");
    let grants = scene.path("client/grants.toml");
    let text = std::fs::read_to_string(scene.path("server/grants.toml")).unwrap();
    std::fs::write(
        &grants,
        text.replace("name = ", "expires = \"2020-01-01\"\nname = "),
    )
    .unwrap();
    std::fs::set_permissions(&grants, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(scene.path("client"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (code, lines) = doctor(&scene, "");
    assert_eq!(code, Some(1));
    assert_found(
        &lines,
        "configuration",
        "fail",
        "mode 0777: other users can change it",
    );
    assert_found(
        &lines,
        "server",
        "warn",
        "not running, but keys have grants",
    );
    assert_found(&lines, "grant", "warn", "laptop reads and writes ");
    let hint = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap()["hint"].clone();
    assert!(
        hint("configuration")
            .as_str()
            .unwrap()
            .starts_with("run `chmod go-w /")
    );
    assert_eq!(hint("server"), "start it with `sparsync server start`");
}

#[test]
fn enrolled_host_is_reached_over_every_transport() {
    let scene = Scene::new();
    scene.enroll("--root=TOP/in --read-only");
    // A login shell that prints something.
    ssh_to_server(&scene, "echo Welcome");
    let (code, lines) = doctor(&scene, "host");
    assert_eq!(code, Some(0), "{lines:?}");
    assert_found(&lines, "ssh login", "ok", "works");
    assert_found(&lines, "program there", "ok", env!("CARGO_PKG_VERSION"));
    assert_found(&lines, "clock there", "ok", "the same");
    assert_found(
        &lines,
        "enrolled",
        "ok",
        "since 2026-01-01T00:00:00Z, 127.0.0.1 port ",
    );
    assert_found(&lines, "quic", "ok", "reached at 127.0.0.1:");
    // A path within a machine carries more than the 1,200 bytes of every path.
    let datagrams = found(&lines, "quic")
        .1
        .rsplit_once(", datagrams of ")
        .and_then(|(_, rest)| rest.strip_suffix(" bytes"));
    assert!(
        datagrams
            .and_then(|bytes| bytes.parse::<u32>().ok())
            .is_some_and(|bytes| bytes > 1200),
        "{lines:?}"
    );
    assert!(!found(&lines, "tls").1.contains("datagrams"));
    assert_found(&lines, "tls", "ok", "reached at 127.0.0.1:");
    assert_found(&lines, "route", "ok", "QUIC");
    assert_found(&lines, "grant there", "ok", "this machine reads /");
    let (_, lines) = doctor(&scene, "-e TOP/ssh host");
    assert_found(&lines, "route", "ok", "ssh: -e or RSYNC_RSH is set");

    scene.well("revoke laptop");
    let (code, lines) = doctor(&scene, "host");
    assert_eq!(code, Some(0), "ssh works: {lines:?}");
    assert_found(
        &lines,
        "quic",
        "warn",
        "this machine's key has no grant there",
    );
    assert_found(
        &lines,
        "route",
        "warn",
        "ssh: its server denies access: this machine's key",
    );
    assert_found(&lines, "grant there", "warn", "none for this machine's key");

    scene.well("stop --now");
    ssh_to_server(&scene, "exit 255");
    let (code, lines) = doctor(&scene, "host");
    assert_eq!(code, Some(1));
    assert_found(
        &lines,
        "ssh login",
        "fail",
        "failed without asking for a password",
    );
    assert_found(&lines, "tls", "warn", "");
    assert_found(&lines, "route", "fail", "none");
}

#[test]
fn host_that_is_not_enrolled_is_checked_over_ssh() {
    let scene = Scene::new();
    let program = oracle::under_test().display();
    ssh_to_server(&scene, "");
    let (_, lines) = doctor(&scene, &format!("--rsync-path={program} me@box"));
    assert_found(&lines, "program there", "ok", "sparsync ");
    assert_found(&lines, "enrolled", "warn", "no");
    assert_found(&lines, "route", "ok", "ssh: the host is not enrolled");
    // The account permits one command only.
    ssh_to_server(&scene, "exit 1");
    let (_, lines) = doctor(&scene, "box");
    assert_found(&lines, "ssh login", "warn", "only a fixed command");
    let output: Output = scene
        .command("client", "doctor -e TOP/missing box")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("\nfail  ssh login         cannot start `")
            && output.status.code() == Some(1),
        "{text}"
    );
    assert!(
        text.contains("\n                        hint: run `"),
        "{text}"
    );
}
