//! The life cycle of a server, and which clients it admits. Each test has its own configuration and port.

use crate::enroll::{enroll, shell_to_server};
use crate::hostile;
use crate::kit::{Scene, assert_output, field_of, noise, oracle, until, until_idle};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Checks that the client's stream ends within `limit`.
#[track_caller]
fn ends_within(mut client: Child, limit: Duration) {
    let mut stdout = client.stdout.take().unwrap();
    let (tx, ended) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let _ = tx.send(stdout.read_to_end(&mut Vec::new()).is_ok());
    });
    let in_time = ended.recv_timeout(limit);
    let _ = client.kill();
    client.wait().unwrap();
    reader.join().unwrap();
    assert_eq!(in_time, Ok(true), "within {limit:?}");
}

#[test]
fn a_panic_in_the_network_thread_ends_no_session() {
    let scene = Scene::new();
    let trigger = scene.path("panic");
    let mut start = scene.command("server", "server start --port PORT");
    let started = start
        .env("SPARSYNC_PANIC_AT_CLIENT", &trigger)
        .output()
        .unwrap();
    assert!(started.status.success(), "{started:?}");
    let pid = scene.status("pid");
    scene.enroll("--root=TOP");
    let mut first = scene.silent_client();
    std::fs::write(&trigger, "").unwrap();
    // The next connection meets the panic; the client falls back to TLS or tries again.
    for name in ["second", "third"] {
        let copied = scene
            .command("client", &format!("-a src/ host:TOP/{name}"))
            .output()
            .unwrap();
        assert!(copied.status.success(), "{copied:?}");
    }
    let copied = scene
        .command("client", "-a --transport=quic src/ host:TOP/fourth")
        .output()
        .unwrap();
    assert!(copied.status.success(), "{copied:?}");
    assert!(!trigger.exists(), "no client triggered the panic");
    assert_eq!(scene.status("pid"), pid);
    assert!(
        first.try_wait().unwrap().is_none(),
        "the first session was ended"
    );
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn a_server_is_started_once_and_stopped_once() {
    let scene = Scene::new();
    let down = scene.at("server", "status --json");
    assert_eq!(down.status.code(), Some(3));
    assert!(
        String::from_utf8(down.stdout)
            .unwrap()
            .starts_with(r#"{"sparsync":"0.1.0","running":false,"#)
    );
    assert_eq!(scene.at("server", "status").status.code(), Some(3));
    assert!(scene.well("stop").contains("no server is running"));

    let grant = "grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name x --json";
    assert!(scene.well(grant).contains(r#""port":28792,"addresses":[],"grant":"new","rights":"reads and writes /","rights_before":null,"server":"down""#));
    assert!(
        scene
            .well("start --port PORT --listen=::1")
            .contains("server started")
    );
    assert!(scene.well(grant).contains(
        r#""addresses":["::1"],"grant":"same","rights":"reads and writes /","rights_before":null,"server":"runs""#
    ));
    let (pid, port) = (scene.status("pid"), scene.status("port"));
    assert!(
        scene
            .well("start")
            .contains("the server is already running")
    );
    assert!(
        scene
            .well("start --foreground")
            .contains("the server is already running")
    );
    assert_eq!(
        (scene.status("pid"), scene.status("port")),
        (pid.clone(), port.clone())
    );
    assert!(
        scene
            .well("status")
            .contains(&format!("process {pid}, port {port}"))
    );
    let mode = |name: &str| {
        std::fs::metadata(scene.path(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(
        [
            mode("server"),
            mode("server/state"),
            mode("server/identity.pem")
        ],
        [0o700, 0o700, 0o600]
    );
    assert_eq!(
        [
            mode("server/state/server.log"),
            mode("server/state/server.pid")
        ],
        [0o600, 0o600]
    );

    let pin = scene.status("pin");
    scene.well("restart");
    assert_ne!(scene.status("pid"), pid);
    assert_eq!(
        (scene.status("port"), scene.status("pin")),
        (port.clone(), pin),
        "port and key are unchanged"
    );
    assert!(
        scene
            .well("status")
            .contains(&format!("addresses  [::1]:{port}\n"))
    );
    assert!(scene.well("stop").contains("server stopped"));
    assert!(scene.well("stop --now").contains("no server is running"));
    assert_eq!(scene.at("server", "status").status.code(), Some(3));
}

/// A lock of a script ends with the script, even if the server that it started still runs.
#[test]
fn server_inherits_no_descriptors_of_its_starter() {
    let scene = Scene::new();
    let start = scene.command("server", "server start --port PORT");
    let mut script = Command::new("sh");
    script
        .args(["-c", "exec 9>lock \"$@\"", "sh"])
        .arg(start.get_program())
        .args(start.get_args());
    script
        .current_dir(scene.path(""))
        .env("HOME", scene.path(""))
        .env("SPARSYNC_CONFIG_DIR", "server");
    assert!(script.status().unwrap().success());
    let files = std::fs::read_dir(format!("/proc/{}/fd", scene.status("pid"))).unwrap();
    let held: Vec<_> = files
        .filter_map(|file| std::fs::read_link(file.unwrap().path()).ok())
        .collect();
    assert!(
        held.iter().any(|file| file.ends_with("server.log")),
        "{held:?}"
    );
    assert!(!held.iter().any(|file| file.ends_with("lock")), "{held:?}");
}

#[test]
fn concurrent_starts_yield_one_server() {
    let scene = Scene::new();
    let starts: Vec<_> = (0..4)
        .map(|_| {
            scene
                .command("server", "server start --port PORT")
                .stdout(Stdio::piped())
                .spawn()
        })
        .collect();
    for start in starts {
        let output = start.unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            printed.contains(&format!("process {},", scene.status("pid"))),
            "{printed}"
        );
    }
}

#[test]
fn automatically_chosen_port_is_reused_at_the_next_start() {
    let scene = Scene::new();
    scene.well("start --port 0");
    let port = scene.status("port");
    assert_eq!(scene.well("pin").trim_end(), scene.status("pin"));
    scene.well("stop");
    // Another test may have been given the port for a short time.
    scene.well_on_freed_port("start");
    assert_eq!(scene.status("port"), port);
}

#[test]
fn server_starts_after_a_crash() {
    let scene = Scene::new();
    scene.well("start --port PORT");
    let pid = scene.status("pid");
    // The lock ends with the process; its files stay.
    scene.kill();
    assert!(
        scene.path("server/state/server.pid").exists()
            && scene.path("server/state/control").exists()
    );
    assert!(scene.well("stop").contains("no server is running"));
    scene.well("start --port PORT");
    assert_ne!(scene.status("pid"), pid);
    scene.well("stop");
    // The ID of another process in a file that is not locked is ignored.
    std::fs::write(
        scene.path("server/state/server.pid"),
        format!("{}\n", std::process::id()),
    )
    .unwrap();
    assert!(scene.well("stop --now").contains("no server is running"));
    scene.well("start --port PORT");
    // A server whose state directory was emptied cannot be reached over its control socket.
    let port = scene.status("port");
    scene.well(&format!("restart --port {port}"));
    let pid = scene.status("pid");
    for file in ["server.pid", "control"] {
        std::fs::remove_file(scene.path("server/state").join(file)).unwrap();
    }
    let printed = String::from_utf8(scene.at("server", "status").stdout).unwrap();
    assert!(
        printed.contains(&format!(
            "port {port} is in use by sparsync (process {pid})"
        )),
        "{printed}"
    );
    assert!(
        Command::new("kill")
            .args(["-9", &pid])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn server_without_proc_exits_4() {
    let scene = Scene::new();
    let program = oracle::under_test().display();
    for words in ["", "--foreground"] {
        let script = format!("umount -l /proc && exec {program} server start --port 0 {words}");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", &script])
            .env("SPARSYNC_CONFIG_DIR", scene.path("server"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        if ["unshare: ", "umount: "]
            .iter()
            .any(|tool| printed.contains(tool))
        {
            return crate::kit::report_skip(
                "server::server_without_proc",
                "/proc cannot be unmounted here",
            );
        }
        assert!(
            output.status.code() == Some(4) && printed.contains("/proc is not mounted"),
            "{output:?}"
        );
    }
}

#[test]
fn port_in_use_is_reported_with_its_owner() {
    let scene = Scene::new();
    let socket = std::net::UdpSocket::bind("[::]:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let printed = scene.fails(&format!("start --port {port}"), 10);
    assert!(
        printed.contains(&format!("cannot listen on port {port}")),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("(process {})", std::process::id())),
        "{printed}"
    );
    let printed = scene.fails(&format!("start --foreground --port {port}"), 10);
    assert!(printed.contains("--port=PORT"), "{printed}");
    assert_eq!(scene.at("server", "status").status.code(), Some(3));
    drop(socket);
    scene.well_on_freed_port(&format!("start --port {port}"));
    // If the port belongs to sparsync, the message names it.
    let printed = scene.at("client", &format!("start --port {port}"));
    let printed = String::from_utf8_lossy(&printed.stderr);
    assert!(
        printed.contains(&format!("by sparsync (process {})", scene.status("pid"))),
        "{printed}"
    );
}

/// Errors that prevent a new server from starting are reported while the old one still runs, and it continues.
#[test]
fn failed_restart_keeps_the_running_server() {
    let scene = Scene::new();
    scene.well("start --port PORT");
    let pid = scene.status("pid");
    let taken = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let printed = scene.fails(&format!("restart --port {port}"), 10);
    assert!(
        printed.contains(&format!("cannot listen on port {port}")) && printed.contains("(process "),
        "{printed}"
    );
    std::fs::write(scene.path("server/grants.toml"), "[[grant]]\ncolour = 1\n").unwrap();
    let printed = scene.fails("restart --now", 1);
    assert!(
        printed.contains("grants.toml, line 2: unknown field `colour`"),
        "{printed}"
    );
    assert_eq!(scene.status("pid"), pid);
    std::fs::remove_file(scene.path("server/grants.toml")).unwrap();
    drop(taken);
    // Another address at the same port.
    let own_port = scene.status("port").parse().unwrap();
    scene.well("restart --listen=::1");
    let pid = scene.status("pid");
    // If another test has the port just now, it is taken as well.
    let taken = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, own_port));
    let printed = scene.fails("restart --listen=127.0.0.1", 10);
    assert!(
        printed.contains(&format!("cannot listen on port {own_port}")),
        "{printed}"
    );
    assert_eq!(scene.status("pid"), pid);
    drop(taken);
    scene.well_on_freed_port(&format!("restart --port {port}"));
    assert_eq!(scene.status("port"), port.to_string());
    assert_ne!(scene.status("pid"), pid);
}

#[test]
fn state_dir_must_be_owned_and_its_symlinks_are_rejected() {
    let scene = Scene::new();
    scene.well("start --port PORT");
    scene.well("stop");
    for name in ["state/server.log", "state/server.pid", ".lock"] {
        let file = scene.path("server").join(name);
        let _ = std::fs::remove_file(&file);
        std::fs::write(scene.path("victim"), "kept\n").unwrap();
        std::os::unix::fs::symlink(scene.path("victim"), &file).unwrap();
        // Only commands that change the grants take the lock.
        let verb = if name == ".lock" {
            "grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name x"
        } else {
            "start"
        };
        let printed = scene.fails(verb, 11);
        assert!(
            printed.contains(name) && printed.contains("symbolic links"),
            "{name}: {printed}"
        );
        assert_eq!(
            std::fs::read(scene.path("victim")).unwrap(),
            b"kept\n",
            "{name}"
        );
        std::fs::remove_file(&file).unwrap();
    }
    scene.well("start");
    scene.well("stop");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(scene.path("server/state"), Some(12345), None).unwrap();
        let printed = scene.fails("start", 5);
        assert!(
            printed.contains("owned by user 12345") && printed.contains("chown 0"),
            "{printed}"
        );
    }
}

#[test]
fn unusable_config_directory_is_reported() {
    let scene = Scene::new();
    std::fs::write(scene.path("file"), "").unwrap();
    let output = scene
        .command("file/below", "server start --port PORT")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(11) && printed.contains("file/below"),
        "{printed}"
    );
    scene.well("start --port PORT");
    scene.well("stop");
    std::fs::set_permissions(
        scene.path("server/identity.pem"),
        std::fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    assert!(scene.fails("start --port PORT", 5).contains("chmod 600"));
    std::fs::set_permissions(
        scene.path("server/identity.pem"),
        std::fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    std::fs::write(scene.path("server/grants.toml"), "[[grant]]\ncolour = 1\n").unwrap();
    let printed = scene.fails("start --port PORT", 1);
    assert!(
        printed.contains("grants.toml, line 2: unknown field `colour`"),
        "{printed}"
    );
}

#[test]
fn later_starts_listen_on_the_addresses_given_last() {
    let scene = Scene::new();
    for (options, is_limited) in [
        ("--port PORT --listen=::1", true),
        ("", true),
        ("--listen=::", false),
        ("", false),
    ] {
        scene.well(&format!("start {options}"));
        let status = scene.well("status");
        assert_eq!(
            status.contains("addresses  [::1]:"),
            is_limited,
            "{options}: {status}"
        );
        scene.well("stop");
    }
    // A damaged file must not open the server to all addresses.
    std::fs::write(scene.path("server/state/server.listen"), "::1\n?\n").unwrap();
    assert!(scene.fails("start", 11).contains("server.listen"));
    scene.well("start --listen=::1");
}

#[test]
fn start_fails_if_its_addresses_are_lost() {
    let scene = Scene::new();
    scene.well("start --port PORT --listen=::1");
    scene.well("stop");
    let path = scene.path("server/state/server.listen");
    std::fs::write(&path, "").unwrap();
    assert!(scene.fails("start", 11).contains("cannot read"));
    // A directory cannot be replaced by the new file.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(
        scene
            .fails("start --listen=::1", 11)
            .contains("cannot write")
    );
}

#[test]
fn start_fails_if_the_server_runs_at_another_address() {
    let scene = Scene::new();
    scene.well("start --port PORT --listen=::1");
    let port: u16 = scene.status("port").parse().unwrap();
    scene.well(&format!("start --port {port} --listen=::1"));
    for other in [
        format!("--port {}", port ^ 1),
        "--listen=127.0.0.1".into(),
        "--listen=::1 --listen=::".into(),
    ] {
        for start in ["start", "start --foreground"] {
            let printed = scene.fails(&format!("{start} {other}"), 10);
            let words = [
                format!("port {port}"),
                "[::1]".to_owned(),
                format!("sparsync server restart {other}"),
            ];
            let joined = printed.replace("--port=", "--port ");
            words
                .iter()
                .for_each(|word| assert!(joined.contains(word), "{word}: {printed}"));
        }
    }
    let pin = "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0";
    scene.fails(
        &format!("grant {pin} --name x --start --port {}", port ^ 1),
        10,
    );
    assert!(scene.well("grants").contains("no grants"));
}

#[test]
fn server_of_another_version_is_stopped() {
    let scene = Scene::new();
    let state = scene.path("server/state");
    std::fs::create_dir_all(&state).unwrap();
    for verb in [
        "restart --port PORT",
        "restart --now --port PORT",
        "stop",
        "stop --now",
    ] {
        let lock = std::fs::File::create(state.join("server.pid")).unwrap();
        // Children that other tests start hold the last lock until they run their program.
        until(|| lock.try_lock().is_ok());
        // No process has this ID: a server that answers its control socket is not killed.
        std::fs::write(state.join("server.pid"), "4194305\n").unwrap();
        let _ = std::fs::remove_file(state.join("control"));
        let control = std::os::unix::net::UnixListener::bind(state.join("control")).unwrap();
        let other = std::thread::spawn(move || {
            loop {
                let (mut connection, _) = control.accept().unwrap();
                let mut word = [0; 64];
                let count = connection.read(&mut word).unwrap();
                connection.write_all(b"colour = \"green\"\n").unwrap();
                if word[..count] != *b"status\n" {
                    return drop(lock);
                }
            }
        });
        if verb.starts_with("stop") {
            let printed = scene.fails("start", 2);
            assert!(
                printed.contains(
                    "another version\nhint: `sparsync server restart` starts this version"
                ),
                "{printed}"
            );
            scene.fails("status", 2);
        }
        let printed = scene.well(verb);
        assert!(printed.contains("server stopped"), "{printed}");
        other.join().unwrap();
        if verb.starts_with("restart") {
            assert!(printed.contains("server started"), "{printed}");
            scene.well("stop --now");
        }
    }
}

#[test]
fn stop_now_kills_an_unresponsive_server() {
    let scene = Scene::new();
    scene.well("start --port PORT");
    let pid = scene.status("pid");
    assert!(
        Command::new("kill")
            .args(["-STOP", &pid])
            .status()
            .unwrap()
            .success()
    );
    // A thread that has not stopped yet would still answer.
    until(|| {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let is_stopped = |status: String| status.lines().any(|line| line.starts_with("State:\tT"));
        threads.flatten().all(|thread| {
            std::fs::read_to_string(thread.path().join("status")).is_ok_and(is_stopped)
        })
    });
    assert!(
        scene
            .fails("stop", 14)
            .contains("sparsync server stop --now")
    );
    assert!(scene.well("stop --now").contains("server stopped"));
    assert!(scene.well("stop").contains("no server is running"));
}

#[test]
fn start_waits_for_a_draining_server() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let (pid, mut client) = (scene.status("pid"), scene.silent_client());
    let mut stop = scene
        .command("server", "server stop")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| scene.status("draining") == "true");
    let mut start = scene.command("server", "server start --port PORT");
    let mut start = start
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Both commands report what they wait for, then wait.
    for waits in [
        stop.stderr.as_mut().unwrap(),
        start.stderr.as_mut().unwrap(),
    ] {
        let mut printed = [0; 128];
        let count = waits.read(&mut printed).unwrap();
        let printed = String::from_utf8_lossy(&printed[..count]).into_owned();
        assert!(
            printed.contains("waiting for 1 session: laptop from 127.0.0.1:"),
            "{printed}"
        );
    }
    client.stdin.as_mut().unwrap().write_all(&[0; 64]).unwrap();
    ends_within(client, Duration::from_secs(10));
    assert!(stop.wait().unwrap().success());
    let started = start.wait_with_output().unwrap();
    assert!(
        String::from_utf8_lossy(&started.stdout).contains("server started"),
        "{started:?}"
    );
    assert_ne!(scene.status("pid"), pid);
}

#[test]
fn sessions_have_their_own_process_group() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let mut client = scene.silent_client();
    let group_of = |pid: &str| {
        let output = Command::new("ps")
            .args(["-o", "pgid=", "-p", pid])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let server = scene.status("pid");
    let found = Command::new("pgrep")
        .args(["-P", &server])
        .output()
        .unwrap();
    let session = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    assert_eq!(group_of(&session), session);
    assert_ne!(group_of(&server), session);
    drop(client.stdin.take());
    client.wait().unwrap();
}

#[test]
fn copy_survives_a_terminated_session() {
    const BYTES: usize = 16 << 20;
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let content = noise(1, BYTES);
    std::fs::write(scene.path("src/big"), &content).unwrap();
    let mut copy = scene.command(
        "client",
        "-a --transport=quic --bwlimit=3m src/big host:TOP/in/pushed",
    );
    let copy = copy
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| scene.status("bytes_in").parse::<usize>().unwrap() >= BYTES / 8);
    assert!(
        Command::new("pkill")
            .args(["-TERM", "-P", &scene.status("pid")])
            .status()
            .unwrap()
            .success()
    );
    let output = copy.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.contains("lost the connection to host; reconnecting"),
        "{output:?}"
    );
    assert!(std::fs::read(scene.path("in/pushed")).unwrap() == content);
}

#[test]
fn unit_with_unsupported_paths_is_rejected() {
    let scene = Scene::new();
    for place in ["a\"b", "a%b", "a b", "a\\b"] {
        let mut install = scene.command("server", "server install --dry-run");
        let output = install
            .env("SPARSYNC_CONFIG_DIR", scene.path(place))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(4) && output.stdout.is_empty(),
            "{place}: {output:?}"
        );
        assert!(
            printed.contains("SPARSYNC_CONFIG_DIR") && printed.contains("cannot write a unit"),
            "{place}: {printed}"
        );
    }
}

#[test]
fn control_socket_is_private_to_its_owner() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.path("server/state")).unwrap();
    let set = |mode| {
        for dir in ["server", "server/state"] {
            std::fs::set_permissions(scene.path(dir), std::fs::Permissions::from_mode(mode))
                .unwrap();
        }
    };
    set(0o755);
    scene.script("openly", "#!/bin/sh\numask 0\nexec \"$@\"\n");
    let start = |more: &str| {
        let plain = scene.command("server", &format!("server start --port PORT{more}"));
        let mut command = Command::new(scene.path("openly"));
        command
            .arg(plain.get_program())
            .args(plain.get_args())
            .current_dir(scene.path(""));
        command
            .envs(
                plain
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .output()
            .unwrap()
    };
    assert!(start("").status.success());
    let mode = std::fs::metadata(scene.path("server/state/control"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    scene.well("stop");
    std::fs::set_permissions(
        scene.path("server/state"),
        std::fs::Permissions::from_mode(0o777),
    )
    .unwrap();
    for more in ["", " --foreground"] {
        let printed = start(more);
        let words = String::from_utf8_lossy(&printed.stderr);
        assert!(
            !printed.status.success() && words.contains("chmod go-w"),
            "{printed:?}"
        );
    }
}

#[test]
fn grant_must_expire_in_the_future() {
    let scene = Scene::new();
    let pin = "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0";
    for past in ["2020-01-01", "1970-01-01T00:00:00Z"] {
        let printed = scene.fails(&format!("grant {pin} --name x --expires={past}"), 1);
        assert!(
            printed.contains(&format!("--expires: `{past}` is in the past")),
            "{printed}"
        );
    }
    for no_end in ["", "soon"] {
        let printed = scene.fails(&format!("grant {pin} --name x --expires={no_end}"), 1);
        assert!(
            printed.contains("invalid date") && printed.contains("30d"),
            "{printed}"
        );
    }
    assert!(scene.well("grants").contains("no grants"));
}

#[test]
fn subcommand_errors_omit_rsyncs_final_line() {
    let scene = Scene::new();
    for (line, code) in [
        ("server strat", 1),
        ("server grant x --name y", 1),
        ("enroll", 1),
        ("enroll --revoke h", 5),
    ] {
        let output = scene.command("client", line).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {printed}");
        assert!(
            !printed.is_empty() && !printed.contains("rsync error"),
            "{line}: {printed}"
        );
    }
}

/// As with rsync, a file of that name is copied.
#[test]
fn a_word_after_server_is_a_destination_only_where_there_is_such_a_file() {
    let scene = Scene::new();
    for line in ["server x", "server x box"] {
        let output = scene.command("client", line).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        let words = "sparsync server: no such subcommand `x`: expected start, stop, restart, ";
        assert!(
            output.status.code() == Some(1) && printed.starts_with(words),
            "{line}: {printed}"
        );
        assert!(
            printed.ends_with("hint: see `sparsync server --help`\n"),
            "{printed}"
        );
    }
    std::fs::write(scene.path("server"), "a file\n").unwrap();
    assert!(
        scene
            .command("client", "server x")
            .output()
            .unwrap()
            .status
            .success()
    );
    assert_eq!(std::fs::read(scene.path("x")).unwrap(), b"a file\n");
}

#[test]
fn journal_is_recognized_by_device_and_inode() {
    use std::os::unix::fs::MetadataExt as _;
    let scene = Scene::new();
    let file = std::fs::File::create(scene.path("log")).unwrap();
    let meta = file.metadata().unwrap();
    let ours = format!("{}:{}", meta.dev(), meta.ino());
    for (stream, is_journal) in [("1:1", false), (ours.as_str(), true), ("9", false)] {
        file.set_len(0).unwrap();
        let mut command = Command::new(oracle::under_test());
        command
            .args(["server", "start", "--foreground", "--port=0"])
            .env("SPARSYNC_CONFIG_DIR", scene.path("server"));
        let log = std::fs::File::options()
            .append(true)
            .open(scene.path("log"))
            .unwrap();
        let mut server = command
            .env("JOURNAL_STREAM", stream)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        until(|| {
            assert!(server.try_wait().unwrap().is_none(), "the server exited");
            scene.at("server", "status").status.code() != Some(3)
        });
        scene.well("stop");
        assert!(server.wait().unwrap().success());
        let printed = std::fs::read_to_string(scene.path("log")).unwrap();
        assert_eq!(
            printed.lines().next().unwrap().starts_with("<6>version"),
            is_journal,
            "{stream}: {printed}"
        );
    }
}

#[test]
fn server_raises_its_limit_of_open_files() {
    let scene = Scene::new();
    scene.script(
        "few",
        "#!/bin/sh\nulimit -S -n 64\nulimit -H -n 1024\nexec \"$@\"\n",
    );
    let plain = scene.command("server", "server start --port PORT");
    let mut command = Command::new(scene.path("few"));
    command
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(scene.path(""));
    command.envs(
        plain
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    assert!(command.output().unwrap().status.success());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", scene.status("pid"))).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("1024"), "{line}");
}

#[test]
fn server_without_descriptors_waits_without_busy_loop() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let pid = scene.status("pid");
    let may_open = |files: &str| {
        let set = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--nofile={files}:")])
            .status()
            .unwrap();
        assert!(set.success());
    };
    let copy = |transport: &str| {
        let line = "-a --timeout=9 --contimeout=9 sparsync://host/TOP/in/f got";
        scene
            .command("client", line)
            .env("SPARSYNC_TRANSPORT", transport)
            .output()
            .unwrap()
    };
    let open_files = || {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let number = |file: std::io::Result<std::fs::DirEntry>| {
            file.unwrap().file_name().to_str().unwrap().parse::<u32>()
        };
        files.map(|file| number(file).unwrap()).collect::<Vec<_>>()
    };
    until_idle(pid.parse().unwrap());
    let before = open_files().len();
    // Once the grant is known, it is not read again.
    assert_output(&copy("tls"), 0, &[]);
    // The server may close the files of the session after its client has ended.
    until(|| open_files().len() == before);
    // The server has more files open already.
    may_open("4");
    // The pending `accept` has reserved its descriptor; this connection uses it up.
    drop(std::os::unix::net::UnixStream::connect(scene.path("server/state/control")).unwrap());
    // In a busy loop, a thread would always run or wait for a processor.
    until_idle(pid.parse().unwrap());
    // Now it may have as many as it has, with the spare one.
    let last = open_files().into_iter().max().unwrap();
    may_open(&(last + 1).to_string());
    let log = || std::fs::read_to_string(scene.path("server/state/server.log")).unwrap();
    for (nth, transport) in ["quic", "tls"].iter().enumerate() {
        let words = [
            "the server cannot start a session",
            "hint: run `sparsync server status host`",
        ];
        assert_output(&copy(transport), 10, &words);
        let lines = log()
            .matches("cannot start a session for laptop from 127.0.0.1:")
            .count();
        assert_eq!(lines, nth + 1, "{}", log());
    }
    may_open("256");
    assert_eq!(scene.status("pid"), pid);
    for transport in ["quic", "tls"] {
        assert_output(&copy(transport), 0, &[]);
    }
}

#[test]
fn long_log_is_rotated_while_the_server_runs() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let log = std::fs::File::options()
        .append(true)
        .open(scene.path("server/state/server.log"))
        .unwrap();
    log.set_len(4 << 20).unwrap();
    for to in ["got", "got2"] {
        scene.copies(&format!("-a host:TOP/in/f {to}"));
    }
    scene.well("stop");
    let len = |name: &str| {
        std::fs::metadata(scene.path("server/state").join(name))
            .unwrap()
            .len()
    };
    assert!(len("server.log.old") > 4 << 20 && len("server.log") < 1 << 10);
    assert!(
        std::fs::read_to_string(scene.path("server/state/server.log"))
            .unwrap()
            .contains("session 1 of laptop")
    );
}

#[test]
fn signal_ends_a_foreground_server() {
    let scene = Scene::new();
    // Without `timeout`, which other commands have: the signal must reach the server itself.
    let mut command = Command::new(oracle::under_test());
    command
        .args(["server", "start", "--foreground", "--port=0"])
        .env("SPARSYNC_CONFIG_DIR", scene.path("server"));
    let mut server = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(|| {
        assert!(server.try_wait().unwrap().is_none(), "the server exited");
        scene.at("server", "status").status.code() != Some(3)
    });
    assert_eq!(scene.status("pid"), server.id().to_string());
    assert!(
        Command::new("kill")
            .arg(server.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn systemd_is_notified_of_ready_and_stopping() {
    let scene = Scene::new();
    let notify_socket = std::os::unix::net::UnixDatagram::bind(scene.path("notify")).unwrap();
    notify_socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let notification = || {
        let mut word = [0; 64];
        let len = notify_socket.recv(&mut word).unwrap();
        String::from_utf8_lossy(&word[..len]).into_owned()
    };
    let mut command = Command::new(oracle::under_test());
    command
        .args(["server", "start", "--foreground", "--port=0"])
        .env("SPARSYNC_CONFIG_DIR", scene.path("server"));
    command.env("NOTIFY_SOCKET", scene.path("notify"));
    let mut server = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(notification(), "READY=1");
    // A server that is ready can be reached at once.
    assert_eq!(scene.status("pid"), server.id().to_string());
    assert!(scene.well("status").contains("started by systemd"));
    let printed = scene.fails("start --port 1", 10);
    assert!(
        printed.contains("`sparsync server install") && printed.contains(" --port=1` moves it"),
        "{printed}"
    );
    let printed = scene.well("install --user");
    assert!(
        printed.contains("systemctl --user restart sparsync") && !printed.contains("server stop"),
        "{printed}"
    );
    // systemd would not know of a server that this command starts.
    let printed = scene.fails("restart", 4);
    assert!(
        printed.contains("systemctl") && printed.contains(&server.id().to_string()),
        "{printed}"
    );
    assert_eq!(scene.status("pid"), server.id().to_string());
    assert!(
        scene
            .well("stop")
            .contains("start sparsync` starts it again")
    );
    assert_eq!(notification(), "STOPPING=1");
    assert_eq!(server.wait().unwrap().code(), Some(0));
    // A server in the background does not notify the supervisor of the process that started it.
    let mut command = scene.command("server", "server start --port PORT");
    assert!(
        command
            .env("NOTIFY_SOCKET", scene.path("notify"))
            .output()
            .unwrap()
            .status
            .success()
    );
    assert_eq!(scene.status("supervised"), "false");
    scene.well("restart");
    notify_socket.set_nonblocking(true).unwrap();
    assert_eq!(
        notify_socket.recv(&mut [0]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    // It blocks the supervised server, which must not exit with success.
    let by_hand = scene.status("pid");
    let mut command = scene.command("server", "server start --foreground");
    let output = command
        .env("NOTIFY_SOCKET", scene.path("notify"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(14) && printed.contains(&format!("(process {by_hand})")),
        "{printed}"
    );
    let printed = scene.well("install --user");
    assert!(
        printed.contains(&format!("sparsync server stop  # process {by_hand},")),
        "{printed}"
    );
}

/// If `net.ipv6.bindv6only` is set, a socket for `::` does not accept IPv4 unless the server changes that.
#[test]
fn server_at_all_addresses_accepts_ipv4_despite_bindv6only() {
    const SCRIPT: &str = "ip link set lo up && echo 1 >/proc/sys/net/ipv6/bindv6only || exit\n\
        echo apart; answer=$(\"$@\" server start --port 4711)\n\
        \"$@\" server pipe 127.0.0.1:4711 \"${answer##* }\" </dev/null\n\
        \"$@\" server stop --now";
    let scene = Scene::new();
    let sparsync = scene.command("server", "");
    let mut apart = Command::new("unshare");
    apart
        .args(["-rn", "sh", "-c", SCRIPT, "sh"])
        .arg(sparsync.get_program())
        .args(sparsync.get_args());
    apart
        .current_dir(scene.path(""))
        .env("HOME", scene.path(""))
        .env("SPARSYNC_CONFIG_DIR", "server");
    match apart.output() {
        Ok(output) if output.stdout.starts_with(b"apart\n") => {
            assert!(
                String::from_utf8_lossy(&output.stdout).contains("sparsync server\n"),
                "{output:?}"
            );
        }
        _ => crate::kit::report_skip(
            "server::server_at_all_addresses",
            "network namespaces are not available here",
        ),
    }
}

/// systemd sets no HOME for root. Relative paths must begin in the home directory all the same, as over ssh.
#[test]
fn server_without_home_uses_the_home_of_its_user() {
    let scene = Scene::new();
    let mut start = scene.command("server", "server start --port PORT");
    assert!(start.env_remove("HOME").output().unwrap().status.success());
    scene.serve("--root TOP/in");
    let mut client = scene.silent_client();
    let printed = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let session = printed("pgrep", &["-P", &scene.status("pid")]);
    let variables = std::fs::read(format!("/proc/{session}/environ")).unwrap();
    let home = printed("getent", &["passwd", &printed("id", &["-u"])])
        .split(':')
        .nth(5)
        .unwrap()
        .to_owned();
    assert!(
        variables
            .split(|&b| b == 0)
            .any(|answer| answer == format!("HOME={home}").as_bytes()),
        "{home}"
    );
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn install_writes_a_unit_and_prints_how_to_enable_it() {
    let scene = Scene::new();
    let printed = scene.well("install --user --port 4711 --memory=4G");
    assert!(
        printed.contains("systemctl --user enable --now sparsync")
            && printed.contains("loginctl enable-linger"),
        "{printed}"
    );
    let unit =
        std::fs::read_to_string(scene.path(".config/systemd/user/sparsync.service")).unwrap();
    for words in [
        "Type=notify\n",
        " server start --foreground --port=4711 --memory=4294967296\n",
        "KillMode=mixed\n",
        "SystemCallFilter=",
        "SPARSYNC_CONFIG_DIR=",
    ] {
        assert!(unit.contains(words), "{words} in {unit}");
    }
    let system = scene.well("install --system --dry-run");
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(
        scene
            .well("install --dry-run")
            .contains("WantedBy=multi-user.target"),
        is_root,
        "the default for root is a system unit"
    );
    assert!(
        system.contains("KillMode=mixed") && system.contains("WantedBy=multi-user.target"),
        "{system}"
    );
    // A restore writes wherever root may, creates device nodes, and reads everything.
    for taken in [
        "ProtectSystem",
        "ReadWritePaths",
        "ProtectKernelModules",
        "ProtectClock",
        "DevicePolicy",
    ] {
        assert!(!system.contains(taken), "{taken} in {system}");
    }
    std::fs::write(scene.path("sparsync.service"), &system).unwrap();
    let in_units = std::fs::read_dir(scene.path(".config/systemd/user"))
        .unwrap()
        .count();
    assert_eq!(in_units, 1, "no other file is left");
    let mode = std::fs::metadata(scene.path(".config/systemd/user/sparsync.service"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
    // The threshold is systemd's exposure score in tenths. The service must read and write everywhere as root.
    for verdict in [
        &["verify", "--man=no"][..],
        &["security", "--offline=true", "--threshold=48", "--no-pager"],
    ] {
        match Command::new("systemd-analyze")
            .args(verdict)
            .arg(scene.path("sparsync.service"))
            .output()
        {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(_) => crate::kit::report_skip(
                "server::install_writes_a_unit",
                "systemd-analyze is not installed",
            ),
        }
    }
}

#[test]
fn server_commands_run_over_a_remote_shell() {
    let scene = Scene::new();
    let program = oracle::under_test().display().to_string();
    let remotely = |verb: &str| {
        scene.at(
            "server",
            &format!("{verb} -e ./ssh --rsync-path={program} u@host"),
        )
    };
    assert_eq!(remotely("status --json").status.code(), Some(3));
    let printed = String::from_utf8(remotely("status").stdout).unwrap();
    assert!(
        printed.ends_with("hint: from this machine: `sparsync server start u@host`\n"),
        "{printed}"
    );
    let started = remotely("start --port PORT");
    assert!(started.status.success(), "{started:?}");
    assert!(
        String::from_utf8(remotely("status").stdout)
            .unwrap()
            .contains(&scene.status("pid"))
    );
    assert!(remotely("stop").status.success());
    assert_eq!(scene.at("server", "status").status.code(), Some(3));
    // The host name is also another argument of the command.
    let remotely = |verb: &str| {
        scene
            .at("server", &format!("{verb} --rsync-path={program} -e ./ssh"))
            .status
            .code()
    };
    assert_eq!(
        remotely("grant host SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name host"),
        Some(1)
    );
    assert_eq!(
        remotely("grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 host --name host"),
        Some(0)
    );
    assert!(scene.well("grants").starts_with("host  SHA256:ung"));
    assert_eq!(remotely("revoke host host"), Some(0));
    assert_eq!(remotely("revoke host host"), Some(6));
    let missing = scene.at(
        "server",
        "status -e ./ssh --rsync-path=/none/sparsync u@host",
    );
    assert!(
        String::from_utf8_lossy(&missing.stderr).contains("sparsync enroll --install u@host"),
        "{missing:?}"
    );
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn granted_key_copies_in_both_directions() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    scene.copies("-a host:TOP/in/f got");
    scene.copies("-a src/ host:TOP/in/");
    assert_eq!(
        std::fs::read(scene.path("in/new")).unwrap(),
        b"what src/new holds\n"
    );
    let output = scene.copy("-a host:TOP/out/f got2");
    assert!(
        !output.status.success() && !scene.path("got2").exists(),
        "{output:?}"
    );
    assert!(!scene.copy("-a src/ host:TOP/out/").status.success());
    assert!(!scene.path("out/new").exists());
    assert!((4..6).contains(&scene.sessions()), "{}", scene.sessions());
    until(|| scene.well("status").contains("sessions   0 running, "));
}

/// Returns a port of this machine that ignores UDP and forwards TCP to another port.
fn without_udp(port: &str) -> (std::net::UdpSocket, String) {
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
    std::thread::spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            let far = TcpStream::connect(address).unwrap();
            for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                let (mut from, mut to) = (from.unwrap(), to.unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    (UdpSocket::bind(at).unwrap(), at.port().to_string())
}

#[test]
fn ssh_fallback_prompts_only_if_the_server_is_silent() {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let _udp = UdpSocket::bind(tcp.local_addr().unwrap()).unwrap();
    let hosts = std::fs::read_to_string(scene.path("client/hosts.toml")).unwrap();
    let (real, mute) = (scene.status("port"), tcp.local_addr().unwrap().port());
    std::fs::write(
        scene.path("client/hosts.toml"),
        hosts.replace(&real, &mute.to_string()),
    )
    .unwrap();
    let program = oracle::under_test().display().to_string();
    // `sparsync://` has no fallback; both timeouts limit the wait.
    for (limit, code) in [
        ("--contimeout=1", 35),
        ("--timeout=1", 30),
        ("--timeout=9 --contimeout=1", 35),
    ] {
        let line = format!("-a {limit} sparsync://hostTOP/in/f got");
        let output = scene.command("client", &line).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(code) && printed.contains("no answer within 1 s"),
            "{output:?}"
        );
    }
    for (to, words) in [
        ("got", "shell: ssh answered before the server\nhint"),
        ("got2", "ten minutes: ssh answered before the server\nhint"),
    ] {
        let mut copy = scene.command(
            "client",
            &format!("-avv --rsync-path={program} host:TOP/in/f {to}"),
        );
        let path = std::env::var("PATH").unwrap();
        let output = copy
            .env("PATH", format!("{}:{path}", scene.path("").display()))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && printed.contains(words) && !printed.contains("using QUIC"),
            "{output:?}"
        );
        assert_eq!(std::fs::read(scene.path(to)).unwrap(), b"what in/f holds\n");
    }
    let sshed = std::fs::read_to_string(scene.path("sshed")).unwrap();
    let copies: Vec<_> = sshed
        .lines()
        .filter(|line| line.contains("--server"))
        .map(|line| line.starts_with("-q -oBatchMode=yes "))
        .collect();
    assert_eq!(copies, [true, false], "{sshed}");
}

/// The server completes the handshake and then falls silent. The ssh connection that came up meanwhile is used without
/// further delay.
#[test]
fn ssh_takes_over_if_the_server_falls_silent() {
    use std::net::{Ipv4Addr, UdpSocket};
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let server = (
        Ipv4Addr::LOCALHOST,
        scene.status("port").parse::<u16>().unwrap(),
    );
    let [near, far] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    far.connect(server).unwrap();
    let port = near.local_addr().unwrap().port();
    let (from_near, to_far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let client = std::sync::Arc::new(std::sync::Mutex::new(None));
    let whose = client.clone();
    std::thread::spawn(move || {
        let mut datagram = [0; 1 << 16];
        while let Ok((count, address)) = from_near.recv_from(&mut datagram) {
            *whose.lock().unwrap() = Some(address);
            let _ = to_far.send(&datagram[..count]);
        }
    });
    std::thread::spawn(move || {
        let mut datagram = [0; 1 << 16];
        while let Ok(count) = far.recv(&mut datagram) {
            // Forwards only packets of the handshake, which have long headers.
            const IS_LONG: u8 = 0x80;
            if datagram[0] & IS_LONG != 0 {
                let _ = near.send_to(&datagram[..count], client.lock().unwrap().unwrap());
            }
        }
    });
    let hosts = std::fs::read_to_string(scene.path("client/hosts.toml")).unwrap();
    let program = oracle::under_test().display().to_string();
    let path = format!(
        "{}:{}",
        scene.path("").display(),
        std::env::var("PATH").unwrap()
    );
    // On a busy machine ssh may connect before the server is contacted, so there are several tries.
    const TRIES: usize = 10;
    let tries = [
        ("host:TOP/in/f got", "got"),
        ("src/new host:TOP/in/new", "in/new"),
    ]
    .into_iter()
    .cycle()
    .take(TRIES);
    let mut was_kept_waiting = 0;
    for (line, copied) in tries {
        if was_kept_waiting > 1 {
            break;
        }
        let before = scene.sessions();
        // Discards the record of the route that worked last.
        let hosts = hosts.replace(&server.1.to_string(), &port.to_string());
        std::fs::write(scene.path("client/hosts.toml"), hosts).unwrap();
        let mut copy = scene.command("client", &format!("-avv --rsync-path={program} {line}"));
        let output = copy.env("PATH", &path).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && printed.contains("using a remote shell: "),
            "{line}: {output:?}"
        );
        assert!(scene.path(copied).exists(), "{line}");
        was_kept_waiting += usize::from(
            scene.sessions() > before && printed.contains("ssh answered before the server"),
        );
    }
    assert!(
        was_kept_waiting > 0,
        "the server was never contacted, or abandoned before the shell was used"
    );
}

#[test]
fn tls_is_used_if_udp_is_blocked() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let (_mute, port) = without_udp(&scene.status("port"));
    scene.lead_to_port(&port, &scene.status("pin"));
    scene.copies("-a host:TOP/in/f got");
    assert_eq!(
        std::fs::read(scene.path("got")).unwrap(),
        b"what in/f holds\n"
    );
}

#[test]
fn grant_that_covers_its_own_config_is_warned_about() {
    let scene = Scene::new();
    let pin = "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0";
    std::os::unix::fs::symlink(scene.path(""), scene.path("link")).unwrap();
    let warning = |granted: &str| {
        let output = scene.at("server", &format!("grant {pin} --name laptop {granted}"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for all in [
        "--root TOP",
        "--root TOP/server",
        "--expires 2099-01-01",
        "--root TOP/in --root TOP/link --json",
    ] {
        let printed = warning(all);
        assert!(
            printed.starts_with(
                "sparsync: warning: laptop can change the key and the grants of this server: /"
            ),
            "{all}: {printed}"
        );
        assert!(!printed.contains("--read-only"), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
        assert_eq!(warning(all), "", "the warning was printed before");
    }
    // A client that reads the key can impersonate this server.
    for all in [
        "--read-only",
        "--root TOP --read-only",
        "--root TOP/server --read-only --expires 2099-01-01",
    ] {
        let printed = warning(all);
        assert!(
            printed.starts_with("sparsync: warning: laptop can read the key of this server: /"),
            "{all}: {printed}"
        );
        assert!(!printed.contains("--read-only"), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
        assert_eq!(warning(all), "", "the warning was printed before");
    }
    // Without a limit there is nothing to exceed.
    for less in [
        "",
        "--root TOP/in --read-only",
        "--root TOP/in",
        "--root TOP/in --root TOP/src",
    ] {
        assert_eq!(warning(less), "", "{less}");
    }
}

#[test]
fn suspicious_grant_is_warned_about() {
    let scene = Scene::new();
    let [first, second] = [
        "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0",
        "vngWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0",
    ];
    let printed = |key: &str, granted: &str| {
        let output = scene.at(
            "server",
            &format!("grant SHA256:{key} --name laptop {granted}"),
        );
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let warning = printed(first, "--root TOP/in --root TOP/inn");
    assert!(
        warning.contains("/inn on ") && warning.contains("No such file"),
        "{warning}"
    );
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert_eq!(printed(first, "--root TOP/in"), "");
    // The same name may mean that its owner has lost the first key.
    let warning = printed(second, "--root TOP/in");
    assert!(
        warning.contains(&format!("sparsync server revoke SHA256:{first}\n")),
        "{warning}"
    );
    assert_eq!(
        printed(second, "--root TOP/in"),
        "",
        "the warning was printed before"
    );
}

#[test]
fn client_without_a_grant_is_rejected() {
    let scene = Scene::new();
    scene.serve("");
    scene.is_refused(
        "-a host:TOP/in/f got",
        "this machine's key has no grant there",
    );
    scene.is_refused(
        "-a src/ host:TOP/in/",
        "this machine's key has no grant there",
    );
    let status = scene.well("status");
    let line = status
        .lines()
        .find(|line| line.contains("client rejected: unknown key SHA256:"))
        .expect("it is listed");
    assert!(
        line.starts_with("  20") && line[6..].starts_with('-'),
        "an error has a date: {line}"
    );
    scene.serve("--root TOP/in --expires 2099-01-01");
    // The grant expires.
    let list = scene.path("server/grants.toml");
    let text = std::fs::read_to_string(&list).unwrap();
    assert!(text.contains("\"2099-01-02T00:00:00Z\""), "{text}");
    std::fs::write(&list, text.replace("2099-01-02", "2020-01-02")).unwrap();
    scene.is_refused(
        "-a host:TOP/in/f got",
        "this machine's key has no grant there",
    );
    assert!(
        scene
            .well("status")
            .contains("client rejected: the grant of laptop has expired")
    );
    assert!(scene.well("grants").contains("expired at 2020-01-02"));
    scene.serve("--root TOP/in --read-only --no-expiry");
    scene.is_refused(
        "-a src/ host:TOP/in/",
        "the grant of this machine's key is read-only",
    );
    // While the list cannot be parsed, the last valid one is in force.
    let grants = std::fs::read_to_string(scene.path("server/grants.toml")).unwrap();
    std::fs::write(scene.path("server/grants.toml"), "[[grant]]\ncolour = 1\n").unwrap();
    scene.is_refused(
        "-a src/ host:TOP/in/",
        "the grant of this machine's key is read-only",
    );
    scene.copies("-a host:TOP/in/f got2");
    assert!(
        scene
            .well("status")
            .contains("grants not reloaded, the previous ones stay in force: ")
    );
    std::fs::write(scene.path("server/grants.toml"), grants).unwrap();
    scene.lead_to("SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0");
    scene.is_refused("-a host:TOP/in/f got", "unexpected key");
    assert!(
        (1..5).contains(&scene.sessions()),
        "only the client with read access had a session: {}",
        scene.sessions()
    );
}

#[test]
fn revoked_grant_ends_its_sessions_at_once() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let client = scene.silent_client();
    assert!(scene.well("status --json").contains(r#""name":"laptop""#));
    scene.well("revoke laptop");
    ends_within(client, Duration::from_secs(1));
    // A list that becomes invalid does not bring the grant back.
    let list = scene.path("server/grants.toml");
    let break_list = || std::fs::write(&list, "[[grant]]\ncolour = 1\n").unwrap();
    let good = std::fs::read_to_string(&list).unwrap();
    break_list();
    scene.is_refused(
        "-a host:TOP/in/f got",
        "this machine's key has no grant there",
    );
    std::fs::write(&list, good).unwrap();
    let printed = scene.fails("revoke laptop", 6);
    assert!(
        printed.contains("cannot revoke `laptop`: no grant"),
        "{printed}"
    );
    // A grant that expires ends its sessions, too, even if the list became invalid in the meantime.
    let soon = Command::new("date")
        .args(["-u", "-d", "2 seconds", "+%Y-%m-%dT%H:%M:%SZ"])
        .output()
        .unwrap();
    scene.serve(&format!(
        "--root TOP/in --expires {}",
        String::from_utf8(soon.stdout).unwrap().trim()
    ));
    let client = scene.silent_client();
    break_list();
    ends_within(client, Duration::from_secs(4));
    until(|| scene.status("sessions") == "[");
    scene.is_refused(
        "-a host:TOP/in/f got",
        "this machine's key has no grant there",
    );
    let status = scene.well("status");
    for words in [
        "ended: its grant was revoked, changed or has expired",
        "grants not reloaded, the previous ones stay in force: ",
        "client rejected: the grant of laptop has expired",
    ] {
        assert!(status.contains(words), "{words}: {status}");
    }
}

#[test]
fn an_idle_server_applies_a_revocation_before_the_list_becomes_invalid() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let reloads = |count: usize| {
        let log = || std::fs::read_to_string(scene.path("server/state/server.log")).unwrap();
        until(|| log().matches("grants reloaded").count() == count);
    };
    reloads(1);
    let list = scene.path("server/grants.toml");
    std::fs::write(&list, "").unwrap();
    reloads(2);
    std::fs::write(&list, "[[grant]]\ncolour = 1\n").unwrap();
    scene.is_refused(
        "-a host:TOP/in/f got",
        "this machine's key has no grant there",
    );
}

/// Returns the values of a field of `/proc/PID/status`.
fn proc_status(pid: &str, field: &str) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// The kernel enforces the owner of a grant: the process of the session has no other rights.
#[test]
fn a_session_of_a_grant_with_an_owner_is_a_process_of_that_user() {
    if !rustix::process::geteuid().is_root() {
        return crate::kit::report_skip(
            "a_session_of_a_grant_with_an_owner",
            "only root can run a session as another user",
        );
    }
    let scene = Scene::new();
    // The roots must be accessible to the owner.
    std::fs::set_permissions(scene.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    scene.serve("--root TOP/in --owner=nobody:daemon");
    let client = scene.silent_client();
    let server = scene.status("pid");
    let threads = std::fs::read_dir(format!("/proc/{server}/task"))
        .unwrap()
        .flatten();
    let children = threads
        .map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let children: String = children.collect();
    let session = children
        .split_whitespace()
        .next()
        .expect("the session is a child of the server");
    // The session greets before a byte is sent, and that is after it has changed its user.
    assert_eq!(proc_status(session, "Uid"), ["65534"; 4]);
    assert_eq!(proc_status(session, "Gid"), ["1"; 4]);
    assert_eq!(proc_status(session, "Groups"), ["1"]);
    assert_eq!(proc_status(session, "CapPrm"), ["0000000000000000"]);
    // A server of root can end it.
    scene.well("revoke laptop");
    ends_within(client, Duration::from_secs(1));
    until(|| scene.status("sessions") == "[");
}

#[test]
fn a_copy_whose_grant_is_revoked_names_the_way_to_a_new_one() {
    for transport in ["--transport=quic", "--transport=tls", ""] {
        let scene = Scene::new();
        scene.enroll("--root TOP/in");
        std::fs::write(scene.path("src/big"), noise(1, 16 << 20)).unwrap();
        let mut copy = scene.command(
            "client",
            &format!("-a {transport} --bwlimit=3m src/big host:TOP/in/big"),
        );
        let copy = copy
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until(|| scene.status("bytes_in").parse::<usize>().unwrap() >= 1 << 20);
        scene.well("revoke laptop");
        let output = copy.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(10), "{output:?}");
        let words = "sparsync: the server of host ended the session: this machine's key has no grant there\n\
                     hint: run `sparsync enroll host`, then the same command again\n";
        assert!(printed.contains(words), "{printed}");
    }
}

#[test]
fn a_client_without_a_connection_reports_how_long_it_has_tried() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    std::fs::write(scene.path("src/big"), noise(1, 32 << 20)).unwrap();
    // The reports come every five seconds.
    let line = "-av --transport=tls --timeout=9 --bwlimit=3m src/big host:TOP/in/big";
    let copy = scene
        .command("client", line)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| scene.status("bytes_in").parse::<usize>().unwrap() >= 1 << 20);
    scene.kill();
    let output = copy.wait_with_output().unwrap();
    let words = [
        "lost the connection to host; reconnecting",
        "no connection to host for ",
        " s; still trying",
    ];
    assert_output(
        &output,
        12,
        &[
            words[0],
            words[1],
            words[2],
            "port ",
            " refuses connections",
            "then run the same command again",
        ],
    );
}

/// Forwards TCP connections to a port of this machine. No UDP port belongs to it, so QUIC is refused there.
fn tcp_only(to: u16) -> u16 {
    let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = std::net::TcpStream::connect(("::1", to)) else {
                continue;
            };
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far.try_clone().unwrap(), near.try_clone().unwrap()),
            ] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    port
}

/// A client and a server of one account have one key, which only tests the connection until it has a grant.
#[test]
fn a_copy_by_the_own_key_of_a_server_needs_a_grant() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    std::fs::copy(
        scene.path("client/hosts.toml"),
        scene.path("server/hosts.toml"),
    )
    .unwrap();
    for transport in ["quic", "tls"] {
        for operands in ["src/ host:TOP/in/", "host:TOP/in/ src/"] {
            let line = format!("-a --transport={transport} {operands}");
            let output = scene.command("server", &line).output().unwrap();
            assert_output(
                &output,
                10,
                &["this machine's key has no grant there\nhint: "],
            );
        }
    }
    // Without --transport, ssh is another route, with rights of its own.
    let output = scene
        .command("server", "-a --rsh=false src/ host:TOP/in/")
        .output()
        .unwrap();
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    let pin = scene.well("pin");
    scene.well(&format!("grant {} --name=self --root TOP/in", pin.trim()));
    let output = scene
        .command("server", "-a --transport=tls src/ host:TOP/in/")
        .output()
        .unwrap();
    assert_output(&output, 0, &[]);
}

/// The server's own key only tests the connection.
#[test]
fn the_own_key_of_a_server_gets_its_answer_over_tls() {
    let scene = Scene::new();
    scene.well("start --port PORT --listen=::1");
    let (port, pin) = (
        tcp_only(scene.status("port").parse().unwrap()),
        scene.status("pin"),
    );
    for _ in 0..8 {
        assert_eq!(
            scene.well(&format!("pipe [::1]:{port} {pin}")),
            "sparsync server\n"
        );
    }
}

#[test]
fn stop_waits_for_sessions_and_stop_now_ends_them() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let mut client = scene.silent_client();
    let mut stop = scene
        .command("server", "server stop")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| scene.status("draining") == "true");
    assert!(
        stop.try_wait().unwrap().is_none(),
        "stop waits for the session"
    );
    // The status changes before the server rejects clients.
    until(|| !scene.copy("-a host:TOP/in/f got").status.success());
    // Bytes that are not a greeting end the session.
    client.stdin.as_mut().unwrap().write_all(&[0; 64]).unwrap();
    ends_within(client, Duration::from_secs(10));
    assert!(stop.wait().unwrap().success());

    scene.serve("--root TOP/in");
    let client = scene.silent_client();
    scene.well("stop --now");
    ends_within(client, Duration::from_secs(5));
}

#[test]
fn killed_session_does_not_affect_others() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let (first, second) = (scene.silent_client(), scene.silent_client());
    let server = scene.status("pid");
    let found = Command::new("pgrep")
        .args(["-P", &server])
        .output()
        .unwrap();
    let sessions = String::from_utf8(found.stdout).unwrap();
    let pids: Vec<_> = sessions.split_whitespace().collect();
    assert_eq!(pids.len(), 2, "each session has its own process");
    assert!(
        Command::new("kill")
            .args(["-9", pids[0]])
            .status()
            .unwrap()
            .success()
    );
    until(|| {
        scene.sessions() >= 2
            && scene
                .well("status --json")
                .matches(r#""transport""#)
                .count()
                == 1
    });
    scene.copies("-a host:TOP/in/f got");
    // The session of one client is dead, the other one still runs.
    for mut client in [first, second] {
        drop(client.stdin.take());
        client.wait().unwrap();
    }
}

#[test]
fn server_survives_the_process_limit() {
    if !rustix::process::geteuid().is_root() {
        return crate::kit::report_skip(
            "server::server_survives_the_process_limit",
            "only root can limit the processes of a server",
        );
    }
    // No other process on this machine has this user.
    const ALONE: u32 = 54_321;
    let scene = Scene::new();
    for name in ["", "server", "in", "in/f"] {
        let path = scene.path(name);
        if name == "server" {
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        std::os::unix::fs::chown(path, Some(ALONE), Some(ALONE)).unwrap();
    }
    let as_alone = |verb: &str| {
        use std::os::unix::process::CommandExt as _;
        let server = scene.command("server", verb);
        let mut command = Command::new("prlimit");
        command
            .arg("--nproc=16")
            .arg(server.get_program())
            .args(server.get_args());
        command
            .envs(
                server
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .uid(ALONE)
            .gid(ALONE);
        command.current_dir(scene.path("")).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    as_alone("server start --port PORT");
    let pid = scene.status("pid");
    scene.lead_to(&scene.status("pin"));
    let printed = scene.at(
        "client",
        "grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name x --json",
    );
    let pin = field_of(&String::from_utf8(printed.stdout).unwrap(), "pin");
    as_alone(&format!("server grant {pin} --name laptop --root TOP/in"));
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let mut command = Command::new(scene.path("shell"));
            let mut client = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // A greeting, or the end of the stream.
            let _ = client.stdout.as_mut().unwrap().read(&mut [0; 8]);
            client
        })
        .collect();
    assert!(
        scene.well("status").contains("cannot start a session")
            || scene.well("status").contains("no session for")
    );
    for mut client in clients {
        drop(client.stdin.take());
        client.wait().unwrap();
    }
    until(|| scene.status("sessions") == "[");
    scene.copies("-a host:TOP/in/f got");
    assert_eq!(scene.status("pid"), pid);
}

#[test]
fn hanging_session_ends_after_its_client() {
    let scene = Scene::new();
    scene.serve("--root TOP/in");
    let made = Command::new("mkfifo")
        .arg(scene.path("in/fifo"))
        .status()
        .unwrap();
    assert!(made.success());
    let printed = scene.copy("--files-from=:TOP/in/fifo host:TOP/in/ got/");
    let printed = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(printed.contains("it is no regular file"), "{printed}");
    // A stopped process stands for a session that hangs for any reason.
    let mut client = scene.silent_client();
    let found = Command::new("pgrep")
        .args(["-P", &scene.status("pid")])
        .output()
        .unwrap();
    let session = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    assert!(
        Command::new("kill")
            .args(["-STOP", &session])
            .status()
            .unwrap()
            .success()
    );
    drop(client.stdin.take());
    ends_within(client, Duration::from_secs(60));
    until(|| scene.status("sessions") == "[");
}

#[test]
fn many_concurrent_clients_are_served() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let copies: Vec<_> = (0..64)
        .map(|n| {
            let mut copy = scene.command(
                "client",
                &format!("-a --transport=quic host:TOP/in/f got{n}"),
            );
            copy.stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for (n, copy) in copies.into_iter().enumerate() {
        let output = copy.wait_with_output().unwrap();
        assert!(output.status.success(), "{n}: {output:?}");
        assert_eq!(
            std::fs::read(scene.path(&format!("got{n}"))).unwrap(),
            b"what in/f holds\n"
        );
    }
}

#[test]
fn memory_budget_rejects_clients_and_ends_the_largest_session() {
    const BUDGET_BYTES: u64 = 176 << 20;
    let scene = Scene::new();
    scene.well(&format!("start --port PORT --memory={BUDGET_BYTES}"));
    scene.enroll("--root TOP/in");
    // A `Setup` may be long, and is buffered until it is complete.
    let mut client = scene.silent_client();
    let found = Command::new("pgrep")
        .args(["-P", &scene.status("pid"), "-f", "--", "--ceiling=[0-9]"])
        .output()
        .unwrap();
    assert!(
        found.status.success(),
        "the session has a window limit: {found:?}"
    );
    let session = String::from_utf8(found.stdout).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", session.trim())).unwrap();
    let limit = limits
        .lines()
        .find(|line| line.starts_with("Max data size"))
        .unwrap();
    assert!(
        limit.contains(&(BUDGET_BYTES + (512 << 20)).to_string()),
        "{limit}"
    );
    let mut says = client.stdin.take().unwrap();
    says.write_all(
        &[
            &hostile::greeting()[..],
            &[hostile::SETUP],
            &hostile::varint(1 << 29),
        ]
        .concat(),
    )
    .unwrap();
    let piece = vec![0; 4 << 20];
    while scene.status("memory_bytes").parse::<u64>().unwrap() < BUDGET_BYTES / 4 * 3 {
        says.write_all(&piece).unwrap();
    }
    scene.is_refused("-a host:TOP/in/f got", "too many sessions");
    // ssh copies instead, and the next run asks the server again.
    let busy = format!(
        "a remote shell: no connection to the server at port {}: too many sessions",
        scene.status("port")
    );
    for to in ["by-ssh", "by-ssh2"] {
        let output = scene.copy_or_ask(&format!("-avv host:TOP/in/f {to}"));
        assert_output(
            &output,
            0,
            &[
                &busy,
                "hint: run `sparsync server status host` to see its sessions",
            ],
        );
    }
    let output = scene
        .command("client", "-a --transport=tls host:TOP/in/f got")
        .output()
        .unwrap();
    assert_output(&output, 10, &["too many sessions; try again later"]);
    shell_to_server(&scene, "");
    let hint =
        "hint: run `sparsync server status localhost` to see its sessions, then enroll again\n";
    assert_output(
        &enroll(&scene, "localhost"),
        5,
        &["too many sessions; try again later\n", hint],
    );
    // The session still runs. It ends as soon as the server exceeds its budget.
    assert!(scene.well("status --json").contains(r#""name":"laptop""#));
    while says.write_all(&piece).is_ok() {}
    ends_within(client, Duration::from_secs(30));
    until(|| scene.status("sessions") == "[");
    let printed = scene.well("status");
    assert!(printed.contains("it uses the most"), "{printed}");
    // It was the only session, so a repetition would fail again: the next connection receives the reason, once.
    let printed = scene.copy("-a host:TOP/in/f got");
    let words = "exceeds --memory of the server (176 MiB)";
    assert!(
        printed.status.code() == Some(22)
            && String::from_utf8_lossy(&printed.stderr).contains(words),
        "{printed:?}"
    );
    scene.copies("-a host:TOP/in/f got");
    // The memory setting survives a restart, and `start` does not change it for a running server.
    scene.fails("start --memory=1G", 14);
    scene.well("restart");
    assert_eq!(scene.status("memory_max_bytes"), BUDGET_BYTES.to_string());
}

#[test]
fn noise_costs_a_server_little_memory() {
    use std::net::{Ipv4Addr, TcpStream, UdpSocket};
    const MORE_MAX_KIB: u64 = 32 << 10;
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let status = format!("/proc/{}/status", scene.status("pid"));
    let peak_kib = || -> u64 {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let copies = |to: &str| {
        let output = scene
            .command("client", &format!("-a --transport=quic host:TOP/in/f {to}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    copies("before");
    let before_kib = peak_kib();
    let server = (
        Ipv4Addr::LOCALHOST,
        scene.status("port").parse::<u16>().unwrap(),
    );
    // The start of a TLS record that is longer than the bytes that follow.
    let record: Vec<u8> = [0x16, 3, 1, 0x40, 0]
        .into_iter()
        .chain([0xa5; 8 << 10])
        .collect();
    let mut held = Vec::new();
    for n in 0..40_000u32 {
        if n % 200 == 0 {
            let mut mute = TcpStream::connect(server).unwrap();
            let _ = mute.write_all(&record);
            held.push(mute);
        }
        // Many source addresses, because handshakes are limited per address.
        let [.., high, low] = (n / 100).to_be_bytes();
        let client = UdpSocket::bind((Ipv4Addr::new(127, 1, high, low.max(1)), 0)).unwrap();
        // A long header of QUIC, version 1, that begins a handshake and continues with noise.
        let mut initial = [0xa5; 1200];
        initial[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
        initial[6..14].copy_from_slice(&u64::from(n).to_be_bytes());
        initial[14] = 0;
        let _ = client.send_to(&initial, server);
    }
    copies("after");
    let more_kib = peak_kib() - before_kib;
    assert!(
        more_kib < MORE_MAX_KIB,
        "{before_kib} KiB, and {more_kib} KiB more after the noise"
    );
}

#[test]
fn bulk_data_moves_to_tls_on_a_short_path() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let content = noise(1, 24 << 20);
    std::fs::write(scene.path("src/big"), &content).unwrap();
    // A run with --transport=tls must not make TLS the first choice of later runs.
    let output = scene
        .command("client", "-a --transport=tls src/new host:TOP/in/new")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // On a busy machine there may be no time for the move to TLS, so there are several tries.
    const TRIES: usize = 20;
    let (mut runs, mut shown) = (1, 0);
    for (line, to, is_moved) in [
        ("src/big host:TOP/in/pushed", "in/pushed", true),
        ("host:TOP/in/pushed got", "got", true),
        (
            "--transport=quic src/big host:TOP/in/other",
            "in/other",
            false,
        ),
        ("host:TOP/in/f small", "small", false),
    ] {
        let mut was_moved = false;
        for _ in 0..if is_moved { TRIES } else { 1 } {
            let mut client = scene.command("client", &format!("-avvIW {line}"));
            let output = client.env("SPARSYNC_PROFILE", "1").output().unwrap();
            let printed = String::from_utf8(output.stderr).unwrap();
            assert!(
                output.status.success() && printed.contains("sparsync: host: using QUIC, port "),
                "{line}: {printed}"
            );
            runs += 1;
            was_moved = printed.contains("sparsync: host: using TLS after ");
            let is_shown = printed.contains("profile: client moved-reading");
            assert!(was_moved || !is_shown, "{line}: {printed}");
            shown += usize::from(is_shown);
            if was_moved {
                break;
            }
        }
        assert_eq!(was_moved, is_moved, "{line}");
        if to != "small" {
            assert!(std::fs::read(scene.path(to)).unwrap() == content, "{line}");
        }
    }
    // A run that moves right before its end does not print this line.
    assert!(shown > 0, "the waits since the move are printed");
    let log = std::fs::read_to_string(scene.path("server/state/server.log")).unwrap();
    assert_eq!(log.matches(", over TLS after ").count(), 2, "{log}");
    // A connection race may add one session. The two runs that moved to TLS must not count twice.
    let sessions = scene.sessions();
    assert!(
        (runs..runs + 2).contains(&sessions),
        "{sessions} sessions, {runs} runs"
    );
    let hosts = std::fs::read_to_string(scene.path("client/hosts.toml")).unwrap();
    assert!(
        hosts.contains("last_route = \"quic\""),
        "QUIC must remain the first choice: {hosts}"
    );
}

#[test]
fn copy_survives_a_server_restart() {
    const BYTES: usize = 24 << 20;
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let port = scene.status("port");
    let content = noise(1, BYTES);
    for (line, from, to, counted) in [
        (
            "--transport=quic src/big host:TOP/in/pushed",
            "src/big",
            "in/pushed",
            "bytes_in",
        ),
        (
            "--transport=quic host:TOP/in/pushed got",
            "in/pushed",
            "got",
            "bytes_out",
        ),
        // This session has moved to TLS before the server is killed.
        (
            "src/big host:TOP/in/moved",
            "src/big",
            "in/moved",
            "bytes_in",
        ),
        // The number of deletions before the loss is unknown.
        (
            "-d --delete --max-delete=1 host:TOP/in/ limited/",
            "in/",
            "limited/",
            "bytes_out",
        ),
    ] {
        if from == "src/big" {
            std::fs::write(scene.path(from), &content).unwrap();
        }
        let mut copy = scene.command("client", &format!("-av --bwlimit=6m {line}"));
        let copy = copy
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until(|| scene.status(counted).parse::<usize>().unwrap() >= BYTES / 8);
        scene.kill();
        scene.well(&format!("start --port {port}"));
        let output = copy.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        let banners = String::from_utf8_lossy(&output.stdout)
            .matches("incremental file list\n")
            .count();
        assert_eq!(banners, 1, "{line}: {output:?}");
        if line.contains("--max-delete") {
            assert_eq!(output.status.code(), Some(12), "{line}: {output:?}");
            assert!(
                !printed.contains("reconnecting") && printed.contains("; --max-delete prevents"),
                "{line}: {printed}"
            );
            continue;
        }
        assert!(
            output.status.success()
                && printed.contains("lost the connection to host; reconnecting"),
            "{line}: {output:?}"
        );
        assert!(std::fs::read(scene.path(to)).unwrap() == content, "{line}");
    }
}
