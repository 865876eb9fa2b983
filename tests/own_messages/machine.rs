//! Messages about this machine, about enrolling a host, and about the life of a server.

use super::{Book, STRANGER, without_counts};
use crate::enroll::shell_to_server;
use crate::kit::{oracle, spare_port, until};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

/// A remote shell that runs the command with the configuration of the server.
const SSH: &str = "#!/bin/sh\ncase $1 in -V) echo Test_1; exit;; -G) exit;; esac\n\
                   while case $1 in -l) shift;; -*) ;; *) false;; esac; do shift; done\nshift\n";

/// Runs doctor with these programs in the path, and notes the lines of these checks. Others depend on the machine.
fn doctor(book: &mut Book, words: &str, path: &str, checks: &[&str]) {
    let line = format!("doctor {words}");
    let path = path.replace(
        "TOP",
        book.scene.path("").to_str().expect("scratch is UTF-8"),
    );
    let mut command = book.scene.command("client", line.trim_end());
    // `timeout` is found before the path changes.
    command.env("PATH", path).env_remove("RSYNC_RSH");
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("a program can be started");
    note_checks(book, line.trim_end(), &output, checks);
}

/// Notes the lines of these checks.
fn note_checks(book: &mut Book, line: &str, output: &Output, checks: &[&str]) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut kept, mut is_kept) = (String::new(), false);
    for line in text.lines() {
        if !line.starts_with(' ') {
            is_kept = checks.contains(&line.get(6..24).unwrap_or_default().trim());
        }
        if is_kept {
            kept += &format!("{line}\n");
        }
    }
    // Other checks determine the exit code.
    book.text += &book.masked(&format!(
        "\n$ sparsync {line}, without other checks\n{kept}"
    ));
}

#[test]
fn messages_of_doctor() {
    let mut book = Book::new("doctor", "Checks of this machine and of a host");
    let all = format!("TOP:{}", std::env::var("PATH").expect("PATH is set"));
    let bin = book.scene.path("bin");
    std::fs::create_dir(&bin).unwrap();
    for program in ["sh", "timeout"] {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()
            .unwrap()
            .stdout;
        std::os::unix::fs::symlink(String::from_utf8(found).unwrap().trim(), bin.join(program))
            .unwrap();
    }
    doctor(
        &mut book,
        "",
        "TOP/bin",
        &[
            "ssh",
            "configuration",
            "state",
            "key",
            "hosts",
            "server",
            "grants",
        ],
    );
    doctor(&mut book, "--path=absent", &all, &["directory"]);

    // An unusable configuration, and a port in use.
    let listener = std::net::UdpSocket::bind(("::", 0)).expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    book.mask(format!("{port} is in use by"), "<port> is in use by");
    book.mask(own.trim().to_owned(), "TEST");
    book.scene.well(&format!(
        "grant {STRANGER} --name laptop --expires=2099-01-01"
    ));
    let state = book.scene.path("server/state");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("server.port"), port.to_string()).unwrap();
    std::fs::rename(book.scene.path("server"), book.scene.path("client")).unwrap();
    book.scene.well("pin");
    std::fs::set_permissions(
        book.scene.path("client"),
        std::fs::Permissions::from_mode(0o777),
    )
    .unwrap();
    doctor(
        &mut book,
        "",
        &all,
        &["configuration", "server", "grant", "port"],
    );
    std::fs::remove_dir_all(book.scene.path("client")).unwrap();

    let sparsync = book.scene.command("client", "doctor");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 40; exec \"$@\"", "sh"])
        .arg(sparsync.get_program())
        .args(sparsync.get_args());
    let output = limited
        .env("SPARSYNC_CONFIG_DIR", book.scene.path("client"))
        .output()
        .unwrap();
    note_checks(&mut book, "doctor", &output, &["open files"]);

    // Hosts.
    book.scene.script("killed", "#!/bin/sh\nkill -KILL $$\n");
    book.scene.script("failed", "#!/bin/sh\nexit 255\n");
    book.scene.script("fixed", "#!/bin/sh\nexit 1\n");
    book.scene.script(
        "late",
        "#!/bin/sh\necho clock 1000\necho sparsync\necho rsync rsync  version 3.5.0\n",
    );
    book.scene
        .script("bare", "#!/bin/sh\necho clock $(date +%s)\n");
    let checks = [
        "ssh login",
        "program there",
        "clock there",
        "enrolled",
        "route",
        "quic",
        "tls",
        "grant there",
    ];
    for shell in ["missing", "killed", "failed", "fixed", "late", "bare"] {
        doctor(&mut book, &format!("-e TOP/{shell} box"), &all, &checks);
    }
    std::fs::write(
        book.scene.path(".popt"),
        "rsync alias -r --version\nsparsync alias -r --version\n",
    )
    .unwrap();
    doctor(&mut book, "-e TOP/fixed box", &all, &["route"]);
    std::fs::remove_file(book.scene.path(".popt")).unwrap();

    // A server.
    let top = book.scene.path("").display().to_string();
    book.scene.script(
        "ssh",
        &format!("{SSH}SPARSYNC_CONFIG_DIR={top}server exec sh -c \"$*\"\n"),
    );
    book.scene.enroll("--root=TOP/in");
    doctor(&mut book, "host", &all, &checks);
    book.expire();
    book.scene.well("restart --now");
    doctor(&mut book, "host", &all, &checks);
    book.scene.well("revoke laptop");
    doctor(&mut book, "host", &all, &checks);
    book.text = differs(&book.text);
    book.compare();
}

/// Masks sizes and differences of clocks.
fn differs(text: &str) -> String {
    let mut shown = String::new();
    for line in text.lines() {
        let masked = ["datagrams of ", "differs by "].iter().find_map(|words| {
            let at = line.find(words)? + words.len();
            Some(format!(
                "{}N{}",
                &line[..at],
                line[at..].trim_start_matches(|c: char| c.is_ascii_digit())
            ))
        });
        shown += &format!(
            "{}\n",
            masked
                .as_deref()
                .unwrap_or(line)
                .replace(env!("CARGO_PKG_VERSION"), "VERSION")
        );
    }
    shown
}

#[test]
fn messages_of_enroll() {
    let mut book = Book::new("enroll", "Enrolling a host");
    let machine = Command::new("uname")
        .args(["-s", "-m"])
        .output()
        .unwrap()
        .stdout;
    book.mask(
        String::from_utf8(machine).unwrap().trim().to_owned(),
        "MACHINE",
    );
    book.client("enroll --list");
    for (option, shell, does) in [
        ("", "rejects", "exit 3"),
        ("", "killed", "kill -KILL $$"),
        ("--install ", "none", "exit 127"),
        ("--install ", "vanishes", "rm \"$0\"\nexit 127"),
        (
            "--install ",
            "full",
            "case $* in *uname*) uname -s -m;; *server*) exit 127;; *) exit 1;; esac",
        ),
        (
            "--install ",
            "foreign",
            "case $* in *uname*) echo Plan9 mips;; *) exit 127;; esac",
        ),
    ] {
        book.scene.script(shell, &format!("#!/bin/sh\n{does}\n"));
        book.client(&format!("enroll {option}-e TOP/{shell} box"));
    }
    std::fs::remove_dir_all(book.scene.path("client")).unwrap();
    book.client("enroll --revoke=box -e TOP/none");
    let mut command = book.scene.command("client", "enroll --list");
    command.stdout(
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap(),
    );
    let output = command.output().unwrap();
    book.note("sparsync enroll --list >/dev/full", &output);

    let program = oracle::under_test().display().to_string();
    // A server that starts on another port, and on all addresses.
    shell_to_server(&book.scene, "");
    let taken = TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    book.mask(format!("(process {})", std::process::id()), "(process <n>)");
    book.mask(own.trim().to_owned(), "TEST");
    book.scene.well("pin");
    std::fs::create_dir(book.scene.path("server/state")).unwrap();
    std::fs::write(
        book.scene.path("server/state/server.port"),
        format!("{port}\n"),
    )
    .unwrap();
    book.client(&format!(
        "enroll -e TOP/far --rsync-path={program} localhost"
    ));
    book.client(&format!(
        "enroll -e TOP/far --rsync-path={program} localhost"
    ));
    book.client(&format!(
        "enroll -e TOP/far --rsync-path={program} --revoke=localhost"
    ));

    // A host whose answer names a port at which nothing, or a server without handshakes, listens.
    drop(taken);
    let silent_port = spare_port();
    let far = std::fs::read_to_string(book.scene.path("far")).unwrap();
    let other = far.replace(
        "exec sh -c \"$*\"",
        &format!("sh -c \"$*\" | sed 's/\"port\":[0-9]*/\"port\":{silent_port}/'"),
    );
    book.scene.script("other", &other);
    book.client(&format!(
        "enroll -e TOP/other --rsync-path={program} localhost"
    ));
    book.server("server stop --now");
    book.client(&format!(
        "server status -e TOP/far --rsync-path={program} localhost"
    ));
    // The server is tried over both, and either can win.
    book.text = book.text.replace(" over TLS ", " over QUIC ");
    book.compare();
}

#[test]
fn messages_of_a_server_that_does_not_start_or_stop() {
    let mut book = Book::new("server_start", "A server that does not start or stop");
    let state = book.scene.path("server/state");
    book.server("server start --port 0 --listen=192.0.2.1");
    // Another version.
    std::fs::create_dir_all(&state).unwrap();
    for line in ["server status", "server start", "server restart --now"] {
        let lock = std::fs::File::create(state.join("server.pid")).unwrap();
        // Children that other tests start hold the previous lock until they run their program.
        until(|| lock.try_lock().is_ok());
        std::fs::write(state.join("server.pid"), "4194305\n").unwrap();
        let _ = std::fs::remove_file(state.join("control"));
        let control = UnixListener::bind(state.join("control")).unwrap();
        let is_restart = line.contains("restart");
        let other = std::thread::spawn(move || {
            loop {
                let (mut connection, _) = control.accept().unwrap();
                let mut word = [0; 64];
                let count = connection.read(&mut word).unwrap();
                // A client may have given up.
                let _ = connection.write_all(b"colour = \"green\"\n");
                if !is_restart || word[..count] != *b"status\n" {
                    return drop(lock);
                }
            }
        });
        let port = crate::kit::spare_port();
        std::fs::write(state.join("server.port"), port.to_string()).unwrap();
        book.server(line);
        other.join().unwrap();
    }
    // Its control socket is gone.
    std::fs::remove_file(state.join("control")).unwrap();
    let output = book.scene.command("server", "doctor").output().unwrap();
    note_checks(&mut book, "doctor", &output, &["server"]);
    book.scene.well("stop --now");
    // A supervisor that does not listen.
    std::fs::remove_file(state.join("server.port")).unwrap();
    std::fs::create_dir(state.join("server.port")).unwrap();
    let mut command = book
        .scene
        .command("server", "server start --foreground --port 0");
    command
        .env("NOTIFY_SOCKET", book.scene.path("none"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    until(|| book.scene.at("server", "status").status.success());
    let mut second = book
        .scene
        .command("server", "server start --foreground --port 0");
    let output = second.env("NOTIFY_SOCKET", "none").output().unwrap();
    book.note(
        "NOTIFY_SOCKET=none sparsync server start --foreground",
        &output,
    );
    book.server("server restart");
    book.server("server start --port 1");
    book.scene.well("stop");
    let output = running.wait_with_output().unwrap();
    let undated = |line: &str| {
        line.split_once(' ')
            .map_or(String::new(), |(_, line)| without_counts(line))
    };
    let log = book
        .masked(&String::from_utf8_lossy(&output.stderr))
        .lines()
        .map(undated)
        .collect::<Vec<_>>()
        .join("\n");
    book.text +=
        &format!("\n$ NOTIFY_SOCKET=none sparsync server start --foreground\n[0]\n{log}\n");

    book.text = book
        .text
        .replace("`systemctl --user restart", "`systemctl restart");
    let mut command = book.scene.command("server", "server install --user");
    let output = command.env_remove("HOME").output().unwrap();
    book.note("env -u HOME sparsync server install --user", &output);
    book.compare();
}

/// The size of a copy that loses its connection.
const BIG_BYTES: usize = 3 << 20;

#[test]
fn messages_of_a_server_with_sessions() {
    let mut book = Book::new("server_sessions", "A server with sessions");
    book.scene.serve("--root TOP/in");
    let mut client = book.scene.silent_client();
    let stop = book
        .scene
        .command("server", "server stop")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| book.scene.status("draining") == "true");
    let mut start = book.scene.command("server", "server start --port PORT");
    let mut start = start
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 128];
    let count = start.stderr.as_mut().unwrap().read(&mut first).unwrap();
    client.stdin.as_mut().unwrap().write_all(&[0; 64]).unwrap();
    client.wait().unwrap();
    let stopped = stop.wait_with_output().unwrap();
    book.note("sparsync server stop", &stopped);
    let mut started = start.wait_with_output().unwrap();
    started.stderr.splice(0..0, first[..count].iter().copied());
    book.note("sparsync server start", &started);

    // A grant is revoked while its session runs.
    let mut client = book.scene.silent_client();
    // `wait` would close it, and the session would end.
    let input = client.stdin.take();
    book.scene.well("revoke laptop");
    client.wait().unwrap();
    drop(input);

    // A copy loses its session.
    book.scene.well("stop --now");
    book.scene.enroll("--root TOP/in");
    std::fs::write(book.scene.path("src/big"), vec![b'x'; BIG_BYTES]).unwrap();
    let line = "-a --transport=quic --bwlimit=2m --no-compress src/big host:TOP/in/";
    let copy = book
        .scene
        .command("client", line)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| book.scene.status("bytes_in").parse::<usize>().unwrap() >= BIG_BYTES / 8);
    let ended = Command::new("pkill")
        .args(["-TERM", "-P", &book.scene.status("pid")])
        .status()
        .unwrap();
    assert!(ended.success());
    let output = copy.wait_with_output().unwrap();
    book.note(&format!("sparsync {line}"), &output);
    // The grants cannot be read.
    std::fs::write(book.scene.path("server/grants.toml"), "x\n").unwrap();
    book.client("-a --transport=quic src/new host:TOP/in/");
    book.scene.well("stop --now");
    let log = std::fs::read_to_string(book.scene.path("server/state/server.log")).unwrap();
    let undated = |line: &str| {
        line.split_once(' ')
            .map_or(String::new(), |(_, line)| without_counts(line))
    };
    let mut lines: Vec<String> = book.masked(&log).lines().map(undated).collect();
    // Either protocol can win, and the client may return before the server notices the end of its session.
    lines
        .iter_mut()
        .for_each(|line| *line = line.replace(" over TLS ", " over QUIC "));
    lines.retain(|line| !line.contains("its client continues with"));
    lines.sort();
    lines.dedup();
    book.text += &format!(
        "\n$ cut -d ' ' -f 2- server.log | sort -u\n[0]\n{}\n",
        lines.join("\n")
    );
    book.compare();
}
