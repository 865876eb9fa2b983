//! Copies from and to a stock rsync daemon: rsync and sparsync are clients of the same one.
//!
//! Most daemons run on a socket of the client (`RSYNC_CONNECT_PROG`), so that they need no port.

use crate::kit::{OLD, Scene, TREE, World, copies, oracle, synctest, until};
use rustix::net::{AddressFamily, SocketType};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, Command, Stdio};

copies!(with daemon, first_copy, TREE, "", ["-ai", "--stats"]);
copies!(with daemon, update_with_deletion, TREE, OLD, ["-ai", "--delete"]);
copies!(with daemon, deletion_before, TREE, OLD, ["-ai", "--delete-before"]);
copies!(with daemon, nothing_to_do, "a b d/x", "a b d/x", ["-aii"]);
copies!(with daemon, delta, "f*700000", "f*650000@-4", ["-ai", "--no-whole-file", "-B2000"]);
copies!(with daemon, delta_compressed_by_zlib, "f*700000", "f*650000@-4", ["-ai", "--no-whole-file", "--zc=zlib", "--stats"]);
copies!(with daemon, appending_compressed_by_zlib, "a*50000 b*100 c*9000", "a*30000@-4 b*100", ["-ai", "--append", "--zc=zlib", "--stats"]);
copies!(with daemon, verified_appending_by_zlib, "a*50000 b*100 c*9000", "a*30000@-4 b*100", ["-ai", "--append-verify", "--zc=zlib", "--stats"]);
copies!(with daemon, compression_by_default, TREE, OLD, ["-aiz"]);
copies!(with daemon, checksums, "a b*70000 c", "a=x b*70000 c", ["-aic"]);
copies!(with daemon, hard_links, "a b==a d/c==a e f", "a@-5 e", ["-aiH"]);
copies!(with daemon, filters_with_deletion, "a.o a.c d/b.o d/b.c", "a.o old.o old.c d/x.o", ["-ai", "--delete", "--exclude=*.o"]);
copies!(with daemon, names_only, TREE, OLD, ["-av", "--delete"]);
copies!(with daemon, backups_with_a_blank, TREE, OLD, ["-aib", "--suffix=. old"]);
copies!(with daemon, issued_command, "a", "", ["-a", "--debug=cmd,connect", "--suffix=a b*"]);
copies!(with daemon, verbose_names, TREE, OLD, ["-avv", "--no-whole-file"]);
copies!(with daemon, relative_paths, TREE, "", ["-aiR"]);

synctest!(listed_names, with daemon, |w: World| {
    w.source(TREE).dest("old").file("list", "a\nd/x\n");
    w.not_pulled_from_own_daemon("rsync's daemon finds no listed files without chroot");
    w.agree(&["-ai", "--files-from=list"]);
});

// No shell expands wildcards or splits words.
synctest!(secluded_arguments, with daemon, |w: World| {
    w.source("a b*70000").tree("with space", "x d/z").dest("old").no_dry_run();
    w.agree_paths(&["-ais", "--delete-after", "--suffix=a b"], &["src/", "with space", "dst/"]).exits(0);
    w.agree_paths(&["-ais", "--link-dest=../src"], &["src/", "missing*", "new dir"]).exits(23);
});

synctest!(remote_options, with daemon, |w: World| {
    w.source("a b").dest("a=b b@9").agree(&["-ai", "-M--fake-super", "-M--ignore-existing"]);
});

synctest!(removed_sources, with daemon, |w: World| {
    w.source("a b d/x").dest("b").no_dry_run().agree(&["-ai", "--remove-source-files"]);
});

synctest!(unreadable_file, as user, with daemon, |w: World| {
    w.source("a shut%0 z").agree(&["-ai"]).exits(23);
});

synctest!(failure_and_a_vanished_file, with daemon, |w: World| {
    w.source("f d/g").dest("f/x").no_dry_run().once();
    w.agree_paths(&["-aR", "--delete-missing-args"], &["src/./nope/x", "src/./f", "dst/"]).exits(23);
});

synctest!(missing_source, with daemon, |w: World| {
    w.source("a").agree_paths(&["-ai"], &["src/none", "dst/"]).exits(23);
});

synctest!(missing_parent_of_the_destination, with daemon, |w: World| {
    w.source("a").agree_paths(&["-ai"], &["src/", "no/dir/"]).exits(11);
    w.agree_paths(&["-ai", "--protocol=29"], &["src/", "no/dir/"]);
});

/// A scene with a configuration of rsync's daemon and its modules, and what clients do with them.
struct Modules(Scene);

impl Deref for Modules {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.0
    }
}

/// The value of a variable that is not set.
const UNSET: &str = "(unset)";

/// The result of a client: exit code, stdout, stderr.
type Seen = (i32, String, String);

impl Modules {
    fn new() -> Modules {
        let scene = Scene::empty();
        let is_root = rustix::process::geteuid().is_root();
        let owner = if is_root { "uid = 0\ngid = 0\n" } else { "" };
        let module = |name: &str, more: &str| format!("[{name}]\npath = TOP/mod\n{more}\n");
        let config = [
            format!("use chroot = no\nmotd file = TOP/motd\nlog file = /dev/null\n{owner}"),
            module("m", "comment = first module"),
            module("a longer name than others", ""),
            module("hidden", "list = no"),
            module("locked", "auth users = joe\nsecrets file = TOP/secrets"),
            module("denied", "hosts deny = *"),
            module("picky", "refuse options = checksum"),
            module("hasty", "timeout = 60"),
        ];
        scene.daemon_config(&config.concat());
        scene.file_with_mode("secrets", "joe:secret\n", 0o600);
        scene.file_with_mode("motd", "welcome \u{1}\n", 0o644);
        for path in ["mod/a", "mod/sub/b", "mod/b c"] {
            scene.file_with_mode(path, "text\n", 0o644);
        }
        Modules(scene)
    }

    fn see(&self, program: &Path, args: &[&str], env: &[(&str, &str)], stdin: &str) -> Seen {
        let mut command = self.program(program);
        command
            .args(args)
            .env("RSYNC_CONNECT_PROG", self.daemon_command(oracle::rsync()))
            .env("USER", "jim");
        for (name, value) in env {
            if *value == UNSET {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program can be started");
        // A program may end without reading its input.
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| {
            // The letter by which a sparsync recognizes a sparsync.
            let text = String::from_utf8_lossy(bytes).replace("CIvuY ", "CIvu ");
            // rsync prints these only if the other end has closed the connection early enough.
            const MAYBE: [&str; 2] = ["read error: Connection reset by peer", "received SIGUSR1"];
            let lines = text
                .split('\n')
                .filter(|line| !MAYBE.iter().any(|words| line.contains(words)));
            lines
                .map(|line| line.split(" at ").next().unwrap_or(line).to_owned() + "\n")
                .collect::<String>()
        };
        (
            output.status.code().unwrap_or(-1),
            text(&output.stdout),
            text(&output.stderr),
        )
    }

    /// Runs both clients; they must agree.
    #[track_caller]
    fn agree_with(&self, args: &[&str], env: &[(&str, &str)], stdin: &str) -> Seen {
        let [wanted, got] = [oracle::rsync(), oracle::under_test()]
            .map(|program| self.see(program, args, env, stdin));
        assert_eq!(got, wanted, "{args:?} {env:?}: left sparsync, right rsync");
        got
    }

    #[track_caller]
    fn agree(&self, args: &[&str]) -> Seen {
        self.agree_with(args, &[], "")
    }

    /// The daemon is a shell script, which reads the lines of the client with `read`.
    #[track_caller]
    fn agree_on_script(&self, script: &str, args: &[&str]) -> Seen {
        self.agree_with(args, &[("RSYNC_CONNECT_PROG", script)], "")
    }
}

#[test]
fn modules_are_listed() {
    let scene = Modules::new();
    for args in [
        &["host::"][..],
        &["rsync://host/"],
        &["rsync://host:99"],
        &["host::", "dst"],
        &["src", "host::"],
    ] {
        let (exit, stdout, _) = scene.agree(args);
        assert!(
            exit == 0 && stdout.contains("m              \tfirst module\n"),
            "{stdout}"
        );
        assert!(
            stdout.starts_with("welcome \\#001\n") && !stdout.contains("hidden"),
            "{stdout}"
        );
    }
    assert_eq!(scene.agree(&["--no-motd", "host::"]).1, "\n");
    scene.agree(&["-q", "host::"]);
    scene.agree(&["--stderr=all", "host::"]);
    assert!(!scene.path("dst").exists());
}

#[test]
fn old_arguments_are_split_by_the_daemon() {
    let scene = Modules::new();
    for daemon in [oracle::rsync(), oracle::under_test()] {
        let daemon = scene.daemon_command(daemon);
        let env = [("RSYNC_CONNECT_PROG", &daemon[..])];
        for style in ["--old-args", "--no-old-args"] {
            for operand in ["h::m/a m/b c m/sub/b", "h::m/b c", "h::m/a hidden/a"] {
                scene.sh("rm -rf dst");
                let args = ["-i", style, operand, "dst/"];
                let [wanted, got] = [oracle::rsync(), oracle::under_test()]
                    .map(|program| scene.see(program, &[&args[..], &["-n"]].concat(), &env, ""));
                assert_eq!((got.0, &got.1), (wanted.0, &wanted.1), "{daemon} {args:?}");
            }
        }
        let all = scene.see(
            oracle::under_test(),
            &["-i", "--old-args", "h::m/a m/b c", "dst/"],
            &env,
            "",
        );
        assert_eq!(
            (all.0, scene.path("dst/b c").exists()),
            (0, true),
            "{all:?}"
        );
    }
}

#[test]
fn the_daemon_logs_the_changes_of_transferred_files() {
    let scene = Modules::new();
    let is_root = rustix::process::geteuid().is_root();
    let owner = if is_root { "uid = 0\ngid = 0\n" } else { "" };
    let logged = "log file = TOP/log\ntransfer logging = yes\nlog format = %o %i %n";
    scene.daemon_config(&format!(
        "use chroot = no\n{owner}[m]\npath = TOP/mod\n{logged}\n"
    ));
    scene.sh("mkdir mod/sub/empty; ln mod/a mod/other");
    let has_ended = || scene.sh("grep -c 'total size' log || true").trim() == "1";
    for daemon in [oracle::rsync(), oracle::under_test()] {
        let daemon = scene.daemon_command(daemon);
        let env = [("RSYNC_CONNECT_PROG", &daemon[..])];
        for options in ["-r", "-a", "-ai", "-aH", "-an", "-rv", "-aHvv", "-aX"] {
            let args = [options, "h::m/", "dst/"];
            let [wanted, got] = [oracle::rsync(), oracle::under_test()].map(|program| {
                scene.sh("rm -rf dst log; mkdir dst; echo old >dst/a; touch -d @9 dst/a");
                let seen = scene.see(program, &args, &env, "");
                assert_eq!(seen.0, 0, "{args:?} {seen:?}");
                // The daemon ends after its client.
                until(has_ended);
                scene.sh("grep 'send <' log | sed 's/.*] //'")
            });
            assert_eq!(got, wanted, "{daemon} {args:?}");
            let is_logged = got.contains("<f.s") && got.contains("<f+++++++++ b c");
            // A dry run transfers nothing.
            assert!(is_logged || options == "-an", "{args:?} {got}");
        }
    }
}

#[test]
fn content_of_a_module_is_listed() {
    let scene = Modules::new();
    for path in [
        "m",
        "m/",
        "m/a",
        "m/sub/",
        "m/*",
        "hidden/b c",
        "a longer name than others/a",
    ] {
        let (exit, stdout, _) = scene.agree(&["--no-motd", &format!("host::{path}")]);
        assert!(
            exit == 0 && stdout.contains("-rw-r--r--"),
            "{path}: {stdout}"
        );
        scene.agree(&["-r", &format!("rsync://joe@host:77/{path}")]);
    }
    scene.agree(&["--list-only", "-n", "rsync://host/m/", "dst"]);
    scene.agree(&[
        "-a",
        "-i",
        "-n",
        "host::m/a",
        "::m/sub",
        "rsync://host/m/b c",
        "dst/",
    ]);
    scene.agree(&["-ai", "--files-from=:/sub/b", "host::m/", "dst/"]);
}

#[test]
fn refusals_of_a_daemon_are_printed() {
    let scene = Modules::new();
    for (path, words) in [
        ("host::none/x", "@ERROR: Unknown module 'none'"),
        (
            "host::denied/x",
            "@ERROR: access denied to denied from localhost (127.0.0.1)",
        ),
        ("host::#none", "@ERROR: Unknown command '#none'"),
        (
            "host::/m",
            "ERROR: The remote path must start with a module name not a /",
        ),
        (
            "rsync://host//m",
            "ERROR: The remote path must start with a module name not a /",
        ),
    ] {
        let (exit, _, stderr) = scene.agree(&["-a", path, "dst"]);
        assert!(
            exit == 5 && stderr.contains(words),
            "{path}: exit {exit}, {stderr}"
        );
    }
    // What rsync reports besides this text depends on the order of events.
    let (exit, _, stderr) = scene.see(
        oracle::under_test(),
        &["-ac", "host::picky/", "dst"],
        &[],
        "",
    );
    assert!(
        stderr.contains("rsync: The server is configured to refuse --checksum (-c)\n"),
        "{stderr}"
    );
    assert_eq!(exit, 12, "{stderr}");
    let (exit, _, stderr) = scene.see(oracle::under_test(), &["-a", "mod/", "host::m/"], &[], "");
    assert!(
        exit == 1 && stderr.contains("ERROR: module is read only\n"),
        "exit {exit}, {stderr}"
    );
    assert!(!scene.path("dst").exists());
}

#[test]
fn operands_that_contradict_each_other_are_rejected() {
    let scene = Modules::new();
    for args in [
        &["-a", "host::m/a", "other::m/b", "dst"][..],
        &["-a", "host::m/a", "host:b", "dst"],
        &["-a", "host:b", "host::m/a", "dst"],
        &["-a", "rsync://host:1/m/a", "rsync://host:2/m/b", "dst"],
        &["-a", "host::m/a", "b", "dst"],
        &["-a", "host::m/a", "host::m/b"],
        &["-a", "a", "host::m/a", "host::m/b"],
        &["-e", "false", "--", "-host::m", "dst"],
        &["--contimeout=3", "-e", "false", "host::m", "dst"],
        &["", "host::m"],
    ] {
        assert_eq!(scene.agree(args).0, 1, "{args:?}");
    }
}

#[test]
fn every_digest_authenticates() {
    let scene = Modules::new();
    let secret = [("RSYNC_PASSWORD", "secret")];
    let (exit, stdout, _) = scene.agree_with(&["joe@host::locked/a"], &secret, "");
    assert!(exit == 0 && stdout.contains(" a\n"), "{stdout}");
    for greeting in [
        "32.0 sha512",
        "32.0 foo sha256",
        "32.0 sha1",
        "32.0 md5",
        "32.0 md4",
        "31.0",
    ] {
        // A daemon that prints the response to a fixed challenge.
        let script = format!(
            "read a; echo '@RSYNCD: {greeting}'; read b; echo '@RSYNCD: AUTHREQD abc'; read c; echo \"<$c>\"; \
             echo '@RSYNCD: EXIT'"
        );
        let env = [secret[0], ("RSYNC_CONNECT_PROG", &script[..])];
        let (exit, stdout, _) = scene.agree_with(&["joe@host::m"], &env, "");
        assert!(
            exit == 0 && stdout.starts_with("<joe "),
            "{greeting}: {stdout}"
        );
    }
}

#[test]
fn user_and_password_have_rsyncs_sources() {
    let scene = Modules::new();
    scene
        .file_with_mode("good", "\nsecret\r\nmore\n", 0o600)
        .file_with_mode("bad", "wrong\n", 0o640)
        .file_with_mode("open", "secret\n", 0o604);
    scene.file_with_mode("empty", "", 0o600);
    let secret = ("RSYNC_PASSWORD", "secret");
    for (args, env, stdin, code) in [
        (
            &["host::locked/a"][..],
            &[secret, ("USER", "joe")][..],
            "",
            0,
        ),
        (&["host::locked/a"], &[secret, ("LOGNAME", "joe")], "", 5),
        (&["@host::locked/a"], &[secret, ("USER", "joe")], "", 5),
        (&["joe@host::locked/a"], &[("RSYNC_PASSWORD", "")], "", 5),
        (
            &["--password-file=good", "joe@host::locked/a"],
            &[("RSYNC_PASSWORD", "x")],
            "",
            0,
        ),
        (
            &["--password-file=-", "joe@host::locked/a"],
            &[],
            "secret\n",
            0,
        ),
        (&["--password-file=-", "joe@host::locked/a"], &[], "", 1),
        (
            &["--password-file=bad", "joe@host::locked/a"],
            &[secret],
            "",
            5,
        ),
        (
            &["--password-file=open", "joe@host::locked/a"],
            &[secret],
            "",
            1,
        ),
        (
            &["--password-file=empty", "joe@host::locked/a"],
            &[secret],
            "",
            1,
        ),
        (
            &["--password-file=none", "joe@host::locked/a"],
            &[secret],
            "",
            1,
        ),
        (&["--password-file=none", "joe@host::m/a"], &[], "", 0),
    ] {
        assert_eq!(
            scene.agree_with(args, env, stdin).0,
            code,
            "{args:?} {env:?}"
        );
    }
}

#[test]
fn password_is_asked_for() {
    let scene = Modules::new();
    // Without a controlling terminal, standard input is read.
    for (stdin, code) in [("secret\n", 0), ("wrong\n", 5), ("", 5)] {
        let [wanted, got] = [oracle::rsync(), oracle::under_test()].map(|program| {
            let program = program.to_str().expect("programs have plain names");
            scene.see(
                Path::new("setsid"),
                &["-w", program, "--no-motd", "joe@host::locked/a"],
                &[],
                stdin,
            )
        });
        assert_eq!(got, wanted, "left sparsync, right rsync");
        assert!(
            got.0 == code && got.2.starts_with("Password: "),
            "exit {}, {}",
            got.0,
            got.2
        );
    }
}

#[test]
fn password_is_one_line_of_an_open_input() {
    let scene = Modules::new();
    for option in ["--no-motd", "--password-file=-"] {
        let mut command = Command::new("timeout");
        command
            .args(["-s", "KILL", "20", "setsid", "-w"])
            .arg(oracle::under_test())
            .current_dir(scene.top());
        command
            .args([option, "joe@host::locked/a"])
            .env_remove("RSYNC_PASSWORD");
        command.env("RSYNC_CONNECT_PROG", scene.daemon_command(oracle::rsync()));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program can be started");
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, b"secret\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{option}: {output:?}");
        drop(input);
    }
}

#[test]
fn early_input_is_sent() {
    let scene = Modules::new();
    scene
        .file_with_mode("input", "for the daemon\n", 0o644)
        .file_with_mode("long", &"x".repeat(5121), 0o644);
    let script = "read a; echo '@RSYNCD: 32.0 md5'; read b; read c; read d; echo \"<$b|$c|$d>\"; echo '@RSYNCD: EXIT'";
    let (_, stdout, _) = scene.agree_on_script(script, &["--early-input=input", "host::m"]);
    assert_eq!(stdout, "<#early_input=15|for the daemon|m>\n\n");
    for file in ["long", "none"] {
        assert_eq!(
            scene
                .agree(&[&format!("--early-input={file}"), "host::m"])
                .0,
            5,
            "{file}"
        );
    }
    scene.agree(&["--early-input=/dev/null", "host::m/a"]);
}

#[test]
fn invalid_daemons_are_rejected() {
    let scene = Modules::new();
    let long = "x".repeat(5000);
    for (sends, code) in [
        ("echo foo".to_owned(), 5),
        ("echo '@RSYNCD: 30'".to_owned(), 5),
        ("echo '@RSYNCD: 32.0'".to_owned(), 5),
        (
            "echo '@RSYNCD: 32.0 md5'; read b; echo '@ERROR: no'".to_owned(),
            5,
        ),
        (
            "echo '@RSYNCD: 32.0 foo'; read b; echo '@RSYNCD: AUTHREQD x'".to_owned(),
            4,
        ),
        (
            format!("echo '@RSYNCD: 32.0 md5'; read b; echo {long}; echo '@RSYNCD: EXIT'"),
            0,
        ),
        (
            format!("echo '@RSYNCD: 32.0 md5'; read b; echo {long}{long}"),
            5,
        ),
        (
            "echo '@RSYNCD: 32.0 md5'; read b; printf 'a\\000b\\n'".to_owned(),
            5,
        ),
        (
            "echo '@RSYNCD: 32.0 md5'; read b; echo '@RSYNCD: NEW'; printf 'b\\001\\377\\r\\n'"
                .to_owned(),
            5,
        ),
        ("true".to_owned(), 5),
    ] {
        // Reads on until the client closes the connection, whose end is seen before anything that is lost.
        let script = format!("read a; {sends}; exec 1>/dev/null");
        let (exit, ..) = scene.agree_on_script(&script, &["-a", "host::m", "dst"]);
        assert_eq!(exit, code, "{sends}");
    }
}

#[test]
fn silent_daemon_times_out() {
    let scene = Modules::new();
    for sends in ["", "echo '@RSYNCD: 32.0 md5'; "] {
        let (exit, ..) = scene.agree_on_script(
            &format!("{sends}cat >/dev/null"),
            &["--timeout=1", "host::m"],
        );
        assert_eq!(exit, 30, "{sends}");
    }
}

#[test]
fn host_of_a_program_is_checked() {
    let scene = Modules::new();
    let script =
        "read a; echo '@RSYNCD: 32.0 md5'; read b; echo \"%H %% <$b>\"; echo '@RSYNCD: EXIT'";
    assert_eq!(
        scene.agree_on_script(script, &["h-1.x::m"]).1,
        "'h-1.x' % <m>\n\n"
    );
    assert_eq!(scene.agree_on_script(script, &["h x::m"]).0, 10);
    scene.agree_on_script(script, &["-vv", "rsync://u@h:44/m"]);
}

#[test]
fn daemon_behind_a_remote_shell_is_reached() {
    let scene = Modules::new();
    let shell = "#!/bin/sh\necho \"$@ ($RSYNC_PORT)\" >&2\nexec $RSYNC_CONNECT_PROG\n";
    scene.script("shell", shell);
    for args in [
        &["-e", "./shell", "--no-motd", "host::m"][..],
        &[
            "-e",
            "./shell",
            "-4",
            "--rsync-path=x y",
            "rsync://joe@host:99/m/a",
        ],
        &["-e", "./shell", "--port=77", "host::none"],
        &["-e", "./shell", "-ai", "--dry-run", "host::m/", "dst/"],
        &["-e", "./shell -l bob", "joe@host::m"],
        &["-e", "./shell -p 3 -l bob -x", "rsync://joe@host/m"],
        &["-e", "./shell -lbob", "joe@host::m"],
        &["-e", "./shell -p -l", "joe@host::m"],
        &["-e", "./shell", "--debug=cmd", "host::"],
    ] {
        // rsync requires a socket as standard input, or these words.
        let daemon = scene
            .daemon_command(oracle::rsync())
            .replace("--daemon", "--server --daemon .");
        let (_, _, stderr) = scene.agree_with(args, &[("RSYNC_CONNECT_PROG", &daemon)], "");
        assert!(stderr.contains("--server --daemon . ("), "{stderr}");
    }
    let (exit, _, stderr) = scene.see(
        oracle::under_test(),
        &["-e", "/no/such", "host::m"],
        &[],
        "",
    );
    assert!(
        exit == 14 && stderr.contains("Failed to exec /no/such"),
        "exit {exit}, {stderr}"
    );
}

/// Starts a program on a free port, and waits until it accepts connections.
fn on_free_port(start: impl Fn(u16) -> Child) -> (Child, u16) {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut child = start(port);
        let mut ended = false;
        until(|| {
            ended = child.try_wait().unwrap().is_some();
            ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        // Another program may have taken the port meanwhile.
        if !ended {
            return (child, port);
        }
    }
}

#[test]
fn daemon_is_reached_by_tcp() {
    let scene = Modules::new();
    let (mut daemon, port) = on_free_port(|port| {
        let mut command = Command::new(oracle::rsync());
        command.args([
            "--daemon",
            "--no-detach",
            "--address=127.0.0.1",
            &format!("--port={port}"),
        ]);
        command.arg(format!("--config={}/rsyncd.conf", scene.top().display()));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    });
    let url = |path: &str| format!("rsync://127.0.0.1:{port}/{path}");
    let unset = [("RSYNC_CONNECT_PROG", UNSET)];
    for args in [
        &[
            &url("m")[..],
            "--debug=connect",
            "-4",
            "--address=127.0.0.1",
            "--sockopts=SO_KEEPALIVE,TCP_NODELAY=1",
        ][..],
        &[
            "-ai",
            "--contimeout=50",
            "--timeout=50",
            &url("m/sub/"),
            "dst/",
            "-n",
        ],
        &["127.0.0.1::m/a", &format!("--port={port}")],
        &[
            "--sockopts=FOO SO_SNDLOWAT=1,IPTOS_LOWDELAY=3",
            &url("none"),
        ],
        &["-a", "-n", &url("hasty/"), "dst"],
    ] {
        scene.agree_with(args, &unset, "");
    }
    let (exit, _, stderr) = scene.see(
        oracle::under_test(),
        &["-a", &url("m/"), "copy/"],
        &unset,
        "",
    );
    assert_eq!((exit, stderr), (0, "\n".to_owned()));
    assert_eq!(std::fs::read(scene.path("copy/sub/b")).unwrap(), b"text\n");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn json_ends_after_a_module_list_and_after_a_refusal() {
    let scene = Modules::new();
    for (args, end) in [
        (["--json", "host::"], r#"{"type":"end","exit_code":0}"#),
        (["--json", "host::none"], r#"{"type":"end","exit_code":5,"#),
    ] {
        let (_, stdout, _) = scene.see(oracle::under_test(), &args, &[], "");
        let last = stdout.trim_end().lines().last().expect("there is a line");
        assert!(last.starts_with(end), "{args:?}: {stdout}");
    }
}

#[test]
fn failed_connections_are_reported() {
    let scene = Modules::new();
    let unset = ("RSYNC_CONNECT_PROG", UNSET);
    // The port is reserved until the end of the test, and nothing listens there.
    let reserved = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&reserved, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = SocketAddrV4::try_from(rustix::net::getsockname(&reserved).unwrap())
        .unwrap()
        .port();
    let url = |host: &str| format!("rsync://{host}:{taken}/m");
    for (args, env) in [
        (&[&url("127.0.0.1")[..], "dst"][..], &[unset][..]),
        (&["-a", "mod", &url("127.0.0.1")], &[unset]),
        (&[&url("[127.0.0.1]")[..], "-6"], &[unset]),
        (&["rsync://none.invalid/m"], &[unset]),
        (&["::m"], &[unset]),
        (&["--address=::1", &url("127.0.0.1")], &[unset]),
        (&["--address=192.0.2.9", &url("127.0.0.1")], &[unset]),
        (&["host::m"], &[unset, ("RSYNC_PROXY", "x")]),
        (&["host::m"], &[unset, ("RSYNC_PROXY", "x@y:1")]),
        (
            &["host::m", "--debug=connect"],
            &[unset, ("RSYNC_PROXY", &format!("127.0.0.1:{taken}")[..])],
        ),
    ] {
        assert_eq!(scene.agree_with(args, env, "").0, 10, "{args:?} {env:?}");
    }
}

#[test]
fn hosts_become_no_options_and_no_lines() {
    let scene = Modules::new();
    let program = ("RSYNC_CONNECT_PROG", "echo \"ran %H\" >&2; read a");
    for (host, is_passed) in [
        ("", false),
        ("-x", false),
        ("+x", false),
        ("~x", false),
        ("%x", false),
        ("[-x]", false),
        ("u@-x", false),
        ("a b", false),
        ("a;b", false),
        ("a%x", true),
        ("a~b", true),
        ("_x", true),
        ("1.2.3.4", true),
        ("[::1]", true),
        ("[fe80::1%eth0]", true),
    ] {
        let (exit, _, stderr) =
            scene.agree_with(&["--", &format!("rsync://{host}/m")], &[program], "");
        assert_eq!(stderr.contains("ran "), is_passed, "{host}: {stderr}");
        assert_ne!(exit, 0, "{host}");
    }
    for host in ["a\nb", "a\r\nb", "a\tb", "a\x7f"] {
        for program in [oracle::rsync(), oracle::under_test()] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let proxy = listener.local_addr().unwrap().to_string();
            let env = [("RSYNC_CONNECT_PROG", UNSET), ("RSYNC_PROXY", &proxy[..])];
            let (exit, _, stderr) = scene.see(program, &[&format!("{host}::m")], &env, "");
            assert_eq!(exit, 10, "{stderr}");
            assert!(
                stderr.contains("invalid control character in proxy CONNECT host"),
                "{stderr}"
            );
            let (mut client, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            // The client has left, with or without an error of the connection.
            let _ = std::io::Read::read_to_end(&mut client, &mut request);
            assert!(request.is_empty(), "{request:?}");
        }
    }
}

#[test]
fn proxy_leads_to_a_daemon() {
    let scene = Modules::new();
    for (answer, code) in [
        (
            "HTTP/1.0 200 OK\\r\\nX: y\\r\\n\\r\\n@RSYNCD: 32.0 md5\\nhello\\n@RSYNCD: EXIT\\n",
            0,
        ),
        ("HTTP/1.0 403 no\\r\\n\\r\\n", 10),
        ("foo\\n", 10),
    ] {
        for program in [oracle::rsync(), oracle::under_test()] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let proxy = format!("u:pw@{}", listener.local_addr().unwrap());
            let answer = answer.replace("\\r", "\r").replace("\\n", "\n");
            let serving = std::thread::spawn(move || {
                use std::io::{Read as _, Write as _};
                let (mut client, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n")
                    && client.read(&mut byte).is_ok_and(|count| count > 0)
                {
                    request.push(byte[0]);
                }
                // The client may leave at any time.
                let _ = client.write_all(answer.as_bytes());
                let _ = client.read_to_end(&mut Vec::new());
                String::from_utf8(request).unwrap()
            });
            let env = [("RSYNC_CONNECT_PROG", UNSET), ("RSYNC_PROXY", &proxy[..])];
            let (exit, stdout, stderr) = scene.see(program, &["rsync://h:5/m"], &env, "");
            assert_eq!(exit, code, "{stderr}");
            assert_eq!(stdout.contains("hello"), code == 0);
            let request = serving.join().unwrap();
            assert_eq!(
                request,
                "CONNECT h:5 HTTP/1.0\r\nProxy-Authorization: Basic dTpwdw==\r\n\r\n"
            );
        }
    }
}

#[test]
fn daemon_needs_no_installed_rsync() {
    let scene = Modules::new();
    let bin = scene.path("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["sh", "timeout"] {
        std::os::unix::fs::symlink(Path::new("/bin").join(name), bin.join(name)).unwrap();
    }
    let script = "read a; echo '@RSYNCD: 32.0 md5'; read b; echo \"<$b>\"; echo '@RSYNCD: EXIT'";
    let shared = [
        ("PATH", bin.to_str().unwrap()),
        ("RSYNC_CONNECT_PROG", script),
    ];
    let (exit, stdout, stderr) = scene.see(oracle::under_test(), &["host::m"], &shared, "");
    assert_eq!((exit, stdout), (0, "<m>\n\n".to_owned()), "{stderr}");
}

#[test]
fn old_daemon_is_named() {
    let scene = Modules::new();
    let script = [(
        "RSYNC_CONNECT_PROG",
        "read a; echo '@RSYNCD: 26.0'; cat >/dev/null",
    )];
    let (exit, _, stderr) = scene.see(
        oracle::under_test(),
        &["-a", "host::m/", "dst"],
        &script,
        "",
    );
    assert!(
        exit == 2 && stderr.contains("protocol version mismatch"),
        "exit {exit}, {stderr}"
    );
}
