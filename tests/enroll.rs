//! `sparsync enroll`: two machines exchange keys through a remote shell, and copies then go over the network.

use crate::kit::{Scene, assert_output};
use crate::kit::{oracle, until};
use std::process::{Command, Output};

/// Writes a remote shell to the server's machine, which runs `first` before each command.
pub fn shell_to_server(scene: &Scene, first: &str) {
    let top = scene.path("");
    let top = top.display();
    scene.script(
        "far",
        &format!(
            "#!/bin/sh\n[ \"$1\" = -l ] && shift 2\nshift\n{first}\n\
             export SPARSYNC_CONFIG_DIR={top}server HOME={top}home\nmkdir -p \"$HOME\"\ncd\nexec sh -c \"$*\"\n"
        ),
    );
}

pub fn enroll(scene: &Scene, words: &str) -> Output {
    let program = oracle::under_test().display();
    let line = format!("enroll -e TOP/far --rsync-path={program} {words}");
    scene
        .command("client", &line)
        .output()
        .expect("a program can be started")
}

fn copy(scene: &Scene, words: &str) -> Output {
    scene
        .command("client", words)
        .output()
        .expect("a program can be started")
}

/// Returns a scene with a running server and a remote shell to its machine.
fn met() -> Scene {
    let scene = Scene::new();
    scene.well("start --port PORT");
    shell_to_server(&scene, "");
    scene
}

#[test]
fn host_is_enrolled_used_and_revoked() {
    let scene = met();
    assert_output(
        &enroll(&scene, "localhost --dry-run"),
        0,
        &["would run", "server grant SHA256:"],
    );
    assert!(
        !scene.path("client").exists(),
        "the dry run changed nothing"
    );
    assert_output(
        &enroll(&scene, "localhost"),
        0,
        &["localhost is enrolled\n", "QUIC", "SHA256:"],
    );
    let known = std::fs::read_to_string(scene.path("client/hosts.toml")).unwrap();
    // The connection that enrollment tests is logged as what it is, not as a failed session.
    let log = || std::fs::read_to_string(scene.path("server/state/server.log")).unwrap();
    until(|| log().contains(" ended after "));
    assert!(
        log().contains(": connection test only\n") && !log().contains("exit status"),
        "{}",
        log()
    );
    assert_output(
        &enroll(&scene, "localhost"),
        0,
        &["already enrolled; nothing changed"],
    );
    assert_eq!(
        std::fs::read_to_string(scene.path("client/hosts.toml")).unwrap(),
        known
    );
    assert_output(&copy(&scene, "enroll --list"), 0, &["localhost  SHA256:"]);

    for (words, way) in [
        ("-a", "using QUIC"),
        ("-a --transport=tls", "using TLS"),
        ("-a --transport=quic", "using QUIC"),
    ] {
        let output = copy(&scene, &format!("{words} -vv src/ localhost:TOP/got/"));
        assert_output(&output, 0, &[way]);
        assert_eq!(
            std::fs::read(scene.path("got/new")).unwrap(),
            b"what src/new holds\n"
        );
        std::fs::remove_dir_all(scene.path("got")).unwrap();
    }
    assert_output(&copy(&scene, "-a sparsync://localhostTOP/in/ back"), 0, &[]);
    assert_eq!(
        std::fs::read(scene.path("back/f")).unwrap(),
        b"what in/f holds\n"
    );

    assert_output(
        &enroll(&scene, "--revoke localhost"),
        0,
        &[
            "removed here",
            "revoked the grant of this machine's key",
            "localhost has no other grants, so its server was stopped",
        ],
    );
    assert_output(
        &copy(
            &scene,
            &format!(
                "server status -e TOP/far --rsync-path={} localhost",
                oracle::under_test().display()
            ),
        ),
        3,
        &["no server is running"],
    );
    assert_output(
        &enroll(&scene, "--revoke localhost"),
        0,
        &[
            "was not enrolled here",
            "had no grant for this machine's key",
        ],
    );
    assert_output(&copy(&scene, "enroll --list"), 0, &["no enrolled hosts"]);
    assert_output(
        &copy(&scene, "-a src/ sparsync://localhostTOP/got/"),
        5,
        &["sparsync enroll localhost"],
    );
    // A client that still has the old entry is rejected.
    scene.well("start");
    std::fs::write(scene.path("client/hosts.toml"), known).unwrap();
    assert_output(
        &copy(&scene, "-a --transport=quic src/ localhost:TOP/got/"),
        10,
        &["this machine's key has no grant there"],
    );
    assert!(!scene.path("got").exists());
}

/// Two names of a host share the grant of this machine's key.
#[test]
fn revoking_one_name_of_a_host_keeps_the_other() {
    let scene = met();
    assert_output(
        &enroll(&scene, "localhost"),
        0,
        &["localhost is enrolled\n"],
    );
    assert_output(
        &enroll(&scene, "127.0.0.1"),
        0,
        &["127.0.0.1 is enrolled\n"],
    );
    assert_output(
        &enroll(&scene, "--revoke localhost"),
        0,
        &["removed here", "the same server is enrolled as 127.0.0.1"],
    );
    assert_output(
        &copy(&scene, "-a --transport=quic src/ 127.0.0.1:TOP/got/"),
        0,
        &[],
    );
    assert_output(
        &enroll(&scene, "--revoke 127.0.0.1"),
        0,
        &["removed here", "revoked the grant of this machine's key"],
    );
}

/// The record that only ssh reached a host is removed once its server is known to answer.
#[test]
fn ssh_only_record_is_removed_when_the_server_answers() {
    let scene = met();
    assert_output(
        &enroll(&scene, "localhost"),
        0,
        &["localhost is enrolled\n"],
    );
    let (hosts, port) = (scene.path("client/hosts.toml"), scene.status("port"));
    let known = std::fs::read_to_string(&hosts).unwrap();
    let program = oracle::under_test().display();
    let server = |verb: &str| {
        copy(
            &scene,
            &format!("server {verb} -e TOP/far --rsync-path={program} localhost"),
        )
    };
    let again: [&dyn Fn() -> Output; 4] = [
        &|| enroll(&scene, "localhost"),
        &|| server("status"),
        &|| server(&format!("start --port {port}")),
        &|| server("restart"),
    ];
    let shunned =
        "last_route = \"ssh\"\nlast_until = \"2999-01-01T00:00:00Z\"\nlast_trouble = \"silence\"\n";
    for learns in again {
        std::fs::write(&hosts, format!("{known}{shunned}")).unwrap();
        assert_output(&learns(), 0, &[]);
        assert_eq!(std::fs::read_to_string(&hosts).unwrap(), known);
    }
    // A server that was started for an enrollment does not restart with its machine.
    scene.well("stop");
    let words = [
        "started   its server",
        "`sparsync server install localhost`",
    ];
    assert_output(
        &enroll(&scene, &format!("localhost --port {port}")),
        0,
        &words,
    );
    // Its port does not have to be given again.
    for again in [&again[0], &(&(|| server("start")) as &dyn Fn() -> Output)] {
        scene.well("stop");
        assert_output(&again(), 0, &[]);
        assert_eq!(scene.status("port"), port);
    }
}

/// The remote machine has the program only under the name `rsync`.
#[test]
fn enroll_works_with_a_program_named_rsync() {
    let scene = met();
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("rsync")).unwrap();
    let output = copy(&scene, "enroll -e TOP/far --rsync-path=TOP/rsync localhost");
    assert_output(&output, 0, &["localhost is enrolled\n"]);
    assert_output(
        &copy(&scene, "server status -e TOP/far localhost"),
        0,
        &[&scene.status("pid")],
    );
    // Called as rsync, the program takes `server` for a file name, as rsync does.
    let alias = Command::new(scene.path("rsync"))
        .args(["server", "status"])
        .current_dir(scene.path("in"))
        .output()
        .unwrap();
    assert_output(&alias, 23, &["link_stat"]);
}

/// QUIC and TLS cannot connect through another machine, so copies use ssh.
#[test]
fn a_host_that_ssh_reaches_through_another_is_enrolled_with_a_note() {
    let scene = met();
    let shell = std::fs::read_to_string(scene.path("far")).unwrap();
    let facts = "case \"$*\" in *-G*) echo hostname localhost; echo proxyjump gate; exit;; esac";
    scene.script("ssh", &shell.replacen('\n', &format!("\n{facts}\n"), 1));
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("sparsync")).unwrap();
    let path = format!(
        "{}:{}",
        scene.path("").display(),
        std::env::var("PATH").unwrap()
    );
    let run = |words: &str| {
        scene
            .command("client", words)
            .env("PATH", &path)
            .output()
            .unwrap()
    };
    let note = "copies    use ssh, which connects through another machine or program";
    assert_output(
        &run("enroll localhost"),
        0,
        &["localhost is enrolled\n", note],
    );
    let way = "using a remote shell: ssh connects through another machine";
    assert_output(&run("-avv src/ localhost:TOP/got/"), 0, &[way]);
}

#[test]
fn grant_has_exactly_the_requested_rights() {
    let scene = met();
    let limits = ["grant     reads ", "an ssh login keeps all rights"];
    assert_output(
        &enroll(&scene, "localhost --root TOP/in --read-only --name laptop"),
        0,
        &limits,
    );
    let is_limited = || {
        std::fs::read_to_string(scene.path("client/hosts.toml"))
            .unwrap()
            .contains("is_limited = true")
    };
    assert!(is_limited());
    assert_output(&copy(&scene, "-a localhost:TOP/in/ back"), 0, &[]);
    assert!(
        !copy(&scene, "-a --transport=quic localhost:TOP/out/ back2")
            .status
            .success()
    );
    assert!(
        !copy(&scene, "-a --transport=quic src/ localhost:TOP/in/")
            .status
            .success()
    );
    assert!(!scene.path("back2/f").exists() && !scene.path("in/new").exists());
    assert!(scene.well("grants").contains("laptop"));
    // Rights that are not named stay, and changes are printed.
    assert_output(
        &enroll(&scene, "localhost"),
        0,
        &["is already enrolled; nothing changed\n", "grant     reads "],
    );
    let after = enroll(&scene, "localhost --expires 2099-01-01");
    assert_output(
        &after,
        0,
        &["/in, until 2099-01-02T00:00:00Z (before: reads ", "/in)"],
    );
    assert!(scene.well("grants").starts_with("laptop  SHA256:"));
    let widened = enroll(&scene, "localhost --root=/ --read-write --no-expiry");
    assert_output(
        &widened,
        0,
        &["grant     reads and writes / (before: reads ", "until 2099"],
    );
    assert!(!is_limited());
    assert_output(
        &enroll(&scene, "localhost --root TOP/in --read-only"),
        0,
        &["grant     reads "],
    );
    assert_output(
        &enroll(&scene, "localhost --expires 2020-01-01"),
        5,
        &[
            "`2020-01-01` is in the past",
            "failed there with exit code 1",
        ],
    );
    shell_to_server(&scene, "echo asked >&2");
    let output = enroll(&scene, "localhost --expires soon");
    assert_output(
        &output,
        1,
        &["sparsync enroll: --expires: invalid date `soon`"],
    );
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("asked"),
        "{output:?}"
    );
}

#[test]
fn changed_server_key_is_rejected_on_every_transport() {
    let scene = met();
    assert_output(&enroll(&scene, "localhost"), 0, &["is enrolled"]);
    let port = scene.status("port");
    scene.well("stop --now");
    std::fs::remove_file(scene.path("server/identity.pem")).unwrap();
    scene.well(&format!("start --port {port}"));
    let words = [
        "cannot trust localhost: its key has changed",
        "enroll --revoke localhost && sparsync enroll localhost",
    ];
    assert_output(&enroll(&scene, "localhost"), 5, &words);
    // A remote shell would work, but is not even tried.
    for transport in ["auto", "quic", "tls"] {
        let output = copy(
            &scene,
            &format!("-a --transport={transport} src/ localhost:TOP/got/"),
        );
        assert_output(&output, 5, &words);
    }
    assert!(!scene.path("got").exists());
    assert_output(&enroll(&scene, "--revoke localhost"), 0, &["removed here"]);
    assert_output(&enroll(&scene, "localhost"), 0, &["is enrolled"]);
}

#[test]
fn lost_client_key_is_created_again() {
    let scene = met();
    assert_output(&enroll(&scene, "localhost"), 0, &["is enrolled"]);
    std::fs::remove_file(scene.path("client/identity.pem")).unwrap();
    let output = copy(&scene, "-a --transport=quic src/ localhost:TOP/got/");
    assert_output(&output, 10, &["this machine's key has no grant there"]);
    assert_output(
        &enroll(&scene, "localhost"),
        0,
        &["localhost is enrolled\n", "also has a grant for SHA256:"],
    );
    assert_output(
        &copy(&scene, "-a --transport=quic src/ localhost:TOP/got/"),
        0,
        &[],
    );
}

#[test]
fn enroll_install_copies_the_program_to_the_host() {
    let scene = met();
    let line = |words: &str| {
        scene
            .command("client", &format!("enroll -e TOP/far {words}"))
            .env("PATH", "/usr/bin:/bin")
            .output()
    };
    assert_output(
        &line("localhost").unwrap(),
        5,
        &["sparsync not found there", "--install"],
    );
    let installed = line("localhost --install").unwrap();
    let words = [
        "is enrolled",
        "installed sparsync ",
        " as ~/.local/bin/sparsync there",
    ];
    assert_output(&installed, 0, &words);
    let printed = String::from_utf8_lossy(&installed.stderr);
    assert!(!printed.contains("not found"), "{printed}");
    let installed = Command::new(scene.path("home/.local/bin/sparsync"))
        .arg("--version")
        .output()
        .unwrap();
    assert!(installed.status.success());
    let left = std::fs::read_dir(scene.path("home/.local/bin"))
        .unwrap()
        .count();
    assert_eq!(left, 1, "no other file is left");
    assert_output(&line("localhost").unwrap(), 0, &["nothing changed"]);
    // Every command uses the remembered path of the program.
    let usual = |words: &str| {
        scene
            .command("client", words)
            .env("PATH", "/usr/bin:/bin")
            .output()
            .unwrap()
    };
    assert_output(
        &usual("server status -e TOP/far localhost"),
        0,
        &[" is running: process "],
    );
    assert_output(
        &usual("-a --debug=cmd1 -e TOP/far src/ localhost:TOP/got/"),
        0,
        &[" .local/bin/sparsync --server "],
    );
    assert!(scene.path("got/new").exists());
}

#[test]
fn shell_noise_and_failures_have_clear_errors() {
    let scene = met();
    shell_to_server(&scene, "echo Welcome; echo to this machine >&2");
    assert_output(&enroll(&scene, "localhost"), 0, &["is enrolled"]);
    shell_to_server(&scene, "exit 255");
    assert_output(
        &enroll(&scene, "localhost"),
        5,
        &[
            "cannot enroll localhost: ssh failed",
            "hint: the login must work first: `",
            "/far localhost` shows the reason",
        ],
    );
    shell_to_server(&scene, "echo something else; exit 0");
    assert_output(
        &enroll(&scene, "localhost"),
        5,
        &["unexpected answer from its sparsync"],
    );
    let output = copy(&scene, "enroll -e TOP/no-such-shell localhost");
    assert_output(&output, 5, &["cannot start", "no-such-shell"]);
    shell_to_server(&scene, "exit 255");
    assert_output(
        &enroll(&scene, "--revoke localhost"),
        5,
        &[
            "removed here",
            "run on localhost: sparsync server revoke SHA256:",
        ],
    );
}

/// Clients of an enrolled host know its port, so a server that had to choose another one keeps it.
#[test]
fn a_server_whose_port_is_taken_gets_another_and_keeps_it() {
    let scene = Scene::new();
    shell_to_server(&scene, "");
    let taken = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    // The port that the server would use: no test may depend on the default one.
    scene.well("pin");
    std::fs::create_dir(scene.path("server/state")).unwrap();
    std::fs::write(scene.path("server/state/server.port"), format!("{port}\n")).unwrap();
    // A port that the user names is used or is an error.
    let named = enroll(&scene, &format!("localhost --port {port}"));
    assert_output(
        &named,
        5,
        &[
            &format!("cannot listen on port {port}"),
            &format!("(process {})", std::process::id()),
        ],
    );
    let output = enroll(&scene, "localhost");
    let chosen = scene.status("port");
    assert_ne!(chosen, port.to_string());
    let words = format!("warning: port {port} is in use by ");
    assert_output(
        &output,
        0,
        &[
            "localhost is enrolled\n",
            &words,
            &format!("; the server uses port {chosen}\n"),
        ],
    );
    scene.well("stop");
    scene.well("start");
    assert_eq!(scene.status("port"), chosen);
    assert_output(
        &copy(&scene, "-a --transport=quic src/ localhost:TOP/got/"),
        0,
        &[],
    );
    assert_output(&enroll(&scene, "localhost"), 0, &["nothing changed"]);
    scene.well("stop");
    drop(taken);
    scene.well("start");
    assert_eq!(scene.status("port"), chosen);
}

#[test]
fn a_server_that_listens_everywhere_is_mentioned() {
    const WARNING: &str = "warning: the server listens on all addresses of localhost\n";
    let scene = Scene::new();
    shell_to_server(&scene, "");
    // A port of its own, so that this does not depend on the default one.
    scene.well("start --port PORT");
    let port = scene.status("port");
    scene.well("stop");
    assert_output(
        &enroll(&scene, "localhost --dry-run"),
        0,
        &["a server that it starts listens on the addresses given last there"],
    );
    assert_output(
        &enroll(&scene, "localhost"),
        0,
        &[
            WARNING,
            "hint: `sparsync server restart --listen=ADDRESS localhost`",
        ],
    );
    let again = enroll(&scene, "localhost");
    assert!(
        !String::from_utf8_lossy(&again.stderr).contains("warning"),
        "{again:?}"
    );
    scene.well("stop");
    let output = enroll(&scene, "localhost --listen=127.0.0.1 --listen=::1");
    assert_output(&output, 0, &["started   its server"]);
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("warning"),
        "{output:?}"
    );
    assert!(
        scene
            .well("status")
            .contains(&format!("addresses  127.0.0.1:{port}, [::1]:{port}\n"))
    );
    assert_output(
        &enroll(&scene, "localhost --listen=host"),
        1,
        &["invalid --listen value `host`"],
    );
}

#[test]
fn an_owner_is_enrolled_as_any_right() {
    let scene = met();
    let user = if rustix::process::geteuid().is_root() {
        "daemon"
    } else {
        "no-such-user"
    };
    let output = enroll(&scene, &format!("localhost --owner={user}"));
    if user == "daemon" {
        assert_output(
            &output,
            0,
            &[
                "grant     reads and writes / as daemon\n",
                "an ssh login keeps all rights",
            ],
        );
        assert_output(
            &enroll(&scene, "localhost --no-owner"),
            0,
            &["grant     reads and writes / (before: reads and writes / as daemon)"],
        );
    } else {
        assert_output(&output, 5, &["no such user"]);
    }
    assert_output(
        &enroll(&scene, "localhost --owner=daemon --no-owner"),
        1,
        &["--owner cannot be used with --no-owner"],
    );
}
