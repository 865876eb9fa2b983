//! The daemon for stock clients (`--daemon`): the same client calls rsync's daemon in one twin and ours in the other.
//!
//! Most daemons run on a socket of the client (`RSYNC_CONNECT_PROG`), as under inetd, so that they need no port.

use crate::kit::tree::letter;
use crate::kit::{Daemon, Scene, is_interrupted_read, oracle, skip, until, until_idle};
use rustix::fs::FileType;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// What a client and a daemon did.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    code: Option<i32>,
    stdout: Vec<String>,
    stderr: Vec<String>,
    log: Vec<String>,
    /// The destination and the module.
    trees: [String; 2],
}

impl Seen {
    /// Returns this without what differs between the clients: the order of messages, roles, the letter by which a sparsync
    /// recognizes a sparsync, the timeout of the server, which it keeps by itself, and its count of matches.
    fn of_any_client(&self) -> String {
        let mut seen = self.clone();
        seen.stderr.sort();
        seen.stdout.retain(|line| {
            !["Setting --timeout=", "total: matches="]
                .iter()
                .any(|start| line.starts_with(start))
        });
        let text = format!("{seen:#?}").replace("CIvuY ", "CIvu ");
        text.replace("[generator=", "[Receiver=")
            .replace("[receiver=", "[Receiver=")
    }

    fn prints(&self, text: &str) -> &Seen {
        let is_there = self
            .stdout
            .iter()
            .chain(&self.stderr)
            .any(|line| line.contains(text));
        assert!(is_there, "missing {text:?} in {self:#?}");
        self
    }

    fn logs(&self, text: &str) -> &Seen {
        assert!(
            self.log.iter().any(|line| line.contains(text)),
            "missing {text:?} in {self:#?}"
        );
        self
    }

    fn exits(&self, code: i32) -> &Seen {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }
}

/// A scene with the module `m`, and what clients and daemons do with it.
struct Modules {
    scene: Scene,
    env: Vec<(String, String)>,
    daemon_options: &'static str,
}

impl Deref for Modules {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Modules {
    fn new() -> Modules {
        let scene = Scene::empty();
        for name in [
            "mod/a",
            "mod/b c",
            "mod/sub/d",
            "mod/sub/deep/e",
            "out/secret",
        ] {
            scene.file_with_mode(name, &format!("text of {name}\n"), 0o644);
        }
        symlink("../out", scene.path("mod/up")).unwrap();
        symlink(scene.path("out"), scene.path("mod/abs")).unwrap();
        symlink("sub", scene.path("mod/inside")).unwrap();
        Modules {
            scene,
            env: Vec::new(),
            daemon_options: "",
        }
    }

    fn env(mut self, name: &str, value: &str) -> Modules {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Writes the configuration, with these lines before and in the module.
    fn config(&self, globals: &str, module: &str) -> PathBuf {
        self.daemon_config(&format!(
            "log file = TOP/log\n{globals}\n[m]\npath = TOP/mod\n{module}\n"
        ))
    }

    /// Starts a daemon of the program under test with this configuration.
    fn listen(&self, (globals, module): (&str, &str)) -> Daemon {
        self.config(globals, module);
        self.daemon(&[])
    }

    /// Runs a client of that daemon. `URL` stands for its address.
    fn get(&self, daemon: &Daemon, args: &[&str]) -> Seen {
        let url = format!("rsync://127.0.0.1:{}/", daemon.port);
        let args = args.iter().map(|arg| arg.replace("URL", &url));
        let output = self.program(oracle::rsync()).args(args).output();
        self.seen(&output.unwrap())
    }

    /// Runs a client against a daemon of a program. `globals` and `module`: lines of the configuration.
    fn call(&self, program: &Path, config: (&str, &str), args: &[&str]) -> Seen {
        self.call_by(oracle::rsync(), program, config, args)
    }

    /// Runs a client against a daemon.
    fn call_by(
        &self,
        client: &Path,
        daemon: &Path,
        (globals, module): (&str, &str),
        args: &[&str],
    ) -> Seen {
        self.config(globals, module);
        for old in ["dst", "log"] {
            let _ = std::fs::remove_dir_all(self.path(old));
            let _ = std::fs::remove_file(self.path(old));
        }
        if self.path("orig").exists() {
            let _ = std::fs::remove_dir_all(self.path("mod"));
            self.sh("cp -a orig mod");
        }
        let connect = format!("{} {}", self.daemon_command(daemon), self.daemon_options);
        let output = self
            .program(client)
            .args(args)
            .env("RSYNC_CONNECT_PROG", connect)
            .envs(self.env.iter().cloned())
            .output()
            .unwrap();
        self.seen(&output)
    }

    fn seen(&self, output: &Output) -> Seen {
        let log = std::fs::read(self.path("log")).unwrap_or_default();
        Seen {
            code: output.status.code(),
            stdout: lines(&output.stdout),
            stderr: lines(&output.stderr)
                .into_iter()
                .filter(|line| !is_interrupted_read(line))
                .collect(),
            // Only rsync logs what it also prints about matches.
            log: lines(&log)
                .into_iter()
                .filter(|line| !line.contains("] total: matches=") && !is_interrupted_read(line))
                .map(|line| line[line.find("] ").map_or(0, |at| at + 2)..].to_owned())
                .collect(),
            trees: ["dst", "mod"].map(|name| list(&self.path(name))),
        }
    }

    /// Returns a scene to push in: `src` has new, changed and equal files, and each call begins with the same module.
    fn to_push() -> Modules {
        let scene = Modules::new();
        for link in ["mod/up", "mod/abs"] {
            std::fs::remove_file(scene.path(link)).unwrap();
        }
        scene.tree("src").text(
            "a n=new%640 o==n m->n l->../out/secret sub/d=longer sub/new/y=y x.bak=x hid/h=h",
        );
        scene
            .tree("mod")
            .text("a sub/ sub/deep/ hid/o=o k.bak=k alt/n=new%640 alt/x.bak=x");
        let links = scene.tree("links");
        let targets =
            "a ../a ../../../a /etc/x .. ../.. ./../../a b/../../../../c // a/ a//b a/./b";
        for dir in ["", "sub/", "sub/new/"] {
            for (n, target) in targets.split(' ').enumerate() {
                links.symlink(format!("{dir}L{n}"), target);
            }
        }
        scene.sh("chown -Rh 5:7 mod src/sub; cp -a mod orig");
        scene
    }

    /// Compares both daemons.
    fn agree(&self, config: (&str, &str), args: &[&str]) -> Seen {
        let theirs = self.call(oracle::rsync(), config, args);
        let ours = self.call(oracle::under_test(), config, args);
        assert_eq!(
            format!("{ours:#?}"),
            format!("{theirs:#?}"),
            "{config:?} {args:?}"
        );
        let native = self.call_by(oracle::under_test(), oracle::under_test(), config, args);
        assert_eq!(
            native.of_any_client(),
            theirs.of_any_client(),
            "both sparsync, {config:?} {args:?}"
        );
        ours
    }

    /// Compares both daemons. The processes of rsync report in any order.
    fn agree_in_any_order(&self, config: (&str, &str), args: &[&str]) -> Seen {
        let [theirs, ours] = [oracle::rsync(), oracle::under_test()].map(|program| {
            let mut seen = self.call(program, config, args);
            seen.log.sort_unstable();
            seen.stdout.sort_unstable();
            seen
        });
        assert_eq!(
            format!("{ours:#?}"),
            format!("{theirs:#?}"),
            "{config:?} {args:?}"
        );
        ours
    }

    /// Compares all but the log.
    fn agree_but_for_the_log(&self, config: (&str, &str), args: &[&str]) -> Seen {
        let theirs = self.call(oracle::rsync(), config, args);
        let ours = self.call(oracle::under_test(), config, args);
        assert_eq!(
            Seen {
                log: theirs.log.clone(),
                ..ours.clone()
            },
            theirs,
            "{config:?} {args:?}"
        );
        ours
    }
}

/// Returns a line for each entry below `top`: path, type, mode, length, target and owners.
fn list(top: &Path) -> String {
    let (mut lines, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(top.join(&dir)).into_iter().flatten() {
            let entry = entry.unwrap();
            let (path, meta) = (dir.join(entry.file_name()), entry.metadata().unwrap());
            let (kind, mode, len) = (
                letter(FileType::from_raw_mode(meta.mode())),
                meta.mode() & 0o7777,
                meta.len(),
            );
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let (shown, target, uid, gid) =
                (path.display(), target.display(), meta.uid(), meta.gid());
            lines.push(format!(
                "{shown} {kind} {mode:o} {len} {target} {uid}:{gid}"
            ));
            if meta.is_dir() {
                dirs.push(path);
            }
        }
    }
    lines.sort_unstable();
    lines.join("\n")
}

/// Returns the lines of a text without what differs between implementations: places in a source file, byte counts, and
/// a connection that ends with unread data.
fn lines(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text).into_owned();
    let kept = text.lines().filter(|line| {
        let differs = [
            "Connection reset by peer",
            "speedup is",
            "Running socket program",
        ];
        !line.starts_with("sent ") && !differs.iter().any(|text| line.contains(text))
    });
    let kept = kept.map(|line| match (line.find(" at "), line.rfind(" [")) {
        _ if line.contains("] sent ") => {
            format!(
                "{}{}",
                &line[..=line.find("] ").unwrap()],
                &line[line.find("  total").unwrap()..]
            )
        }
        (Some(at), Some(role))
            if line.starts_with("rsync error: ") || line.contains("] rsync error: ") =>
        {
            format!("{}{}", &line[..at], &line[role..])
        }
        _ => line.to_owned(),
    });
    kept.collect()
}

/// Checks several cases at once: most of the time, the client waits.
fn each<T: Sync>(cases: &[T], check: impl Fn(&T) + Sync) {
    for cases in cases.chunks(8) {
        std::thread::scope(|scope| {
            cases
                .iter()
                .for_each(|case| drop(scope.spawn(|| check(case))))
        });
    }
}

fn needs_root() {
    if !rustix::process::geteuid().is_root() {
        skip("needs root");
    }
}

/// A module that its owner serves without chroot.
const PLAIN: &str = "use chroot = no\nuid = 0\ngid = 0";

#[test]
fn modules_are_listed() {
    let scene = Modules::new();
    let more = "[hidden]\nlist = no\n[with a longer name]\ncomment = some comment";
    scene
        .agree(
            ("", &format!("comment = %HOME% and %NONE%\n{more}")),
            &["h::"],
        )
        .exits(0)
        .logs("module-list request");
    scene.file_with_mode("motd", "welcome\nto it\n", 0o644);
    scene
        .agree(("motd file = TOP/motd", ""), &["h::"])
        .prints("welcome");
    scene.agree(("motd file = TOP/none", ""), &["h::"]).exits(0);
}

#[test]
fn trees_are_pulled() {
    needs_root();
    let scene = Modules::new();
    for module in ["", PLAIN, "use chroot = yes\nuid = root\ngid = *"] {
        for args in [
            &["-a", "h::m/", "dst/"][..],
            &["-av", "h::m/sub", "h::m/a", "dst/"],
            &["-aR", "h::m/sub/./deep/", "h::m/b c", "dst/"],
            &["-aiR", "h::m/./sub/deep", "dst/"],
            &["-aiR", "h::m/./none", "h::m/./a", "dst/"],
            &["-as", "h::m/b c", "dst/"],
            &["-az", "h::m/su*", "dst/"],
            &["-ac", "--protocol=31", "h::m", "dst/"],
            &["-rt", "--files-from=rsyncd.conf", "h::m/", "dst/"],
            &["-r", "h::m/", "h::m/none", "dst/"],
            &["-r", "h::m/none/x", "dst/"],
            &[
                "-r",
                "h::m/sub/none",
                "h::m/sub/deep/none",
                "h::m/x",
                "dst/",
            ],
            &["-rR", "h::m/sub/./none", "dst/"],
            &["-rR", "h::m/sub/none", "dst/"],
            &["-r", "--files-from=rsyncd.conf", "h::m/sub", "dst/"],
            &["-a", "--no-inc-recursive", "h::m/", "dst/"],
            &["-am", "--usermap=0:bin", "h::m/", "dst/"],
            &["h::m/"],
        ] {
            scene.agree(("", module), args);
        }
    }
}

#[test]
fn missing_arguments_of_a_pull_have_vanished() {
    let scene = Modules::new();
    for more in [&[][..], &["--delete-before"]] {
        let args = [
            "-aiR",
            "--delete-missing-args",
            "h::m/./none/x",
            "h::m/./a",
            "dst/",
        ];
        scene
            .agree_in_any_order(("", ""), &[more, &args].concat())
            .exits(24);
    }
}

#[test]
fn messages_of_a_relative_pull_begin_at_the_module() {
    let scene = Modules::new();
    symlink("none", scene.path("mod/sub/deep/dangling")).unwrap();
    for path in ["h::m/sub/deep/", "h::m/sub/deep", "h::m/sub/./deep/"] {
        for module in ["", "use chroot = no"] {
            scene
                .agree_in_any_order(("", module), &["-rLR", path, "dst/"])
                .exits(23);
        }
    }
}

#[test]
fn modules_and_hosts_are_checked() {
    let scene = Modules::new();
    let get = ["-r", "h::m/a", "dst"];
    scene
        .agree(("", ""), &["-r", "h::none/a", "dst"])
        .exits(5)
        .prints("@ERROR: Unknown module 'none'");
    scene.agree(("", ""), &["-r", "h::M/a", "dst"]).exits(5);
    scene
        .agree(("", "hosts deny = *"), &get)
        .exits(5)
        .prints("access denied to m from");
    scene
        .agree(("", "hosts deny = *\nlist = no"), &get)
        .exits(5)
        .prints("Unknown module 'm'");
    scene.agree(("", "hosts allow = 10.0.0.0/8"), &get).exits(5);
    scene.agree(("", "hosts allow = 127.0.0.1\nhosts deny = *"), &get);
    scene.agree(("", "hosts allow = localhost"), &get);
    for hosts in ["127.*", "*.0.0.1", "[1]27.0.0.1", "local*", "u*", "*"] {
        for globals in ["", "reverse lookup = no"] {
            for list in ["hosts allow", "hosts deny"] {
                scene.agree((globals, &format!("{list} = {hosts}")), &get);
            }
        }
    }
    scene
        .agree(
            ("reverse lookup = no", "hosts deny = 127.0.0.0/255.0.0.0"),
            &get,
        )
        .prints("UNDETERMINED");
    scene
        .agree(("", "max connections = -1"), &get)
        .exits(5)
        .prints("max connections (-1) reached");
    scene
        .agree(("", "max connections = 1\nlock file = TOP/none/lock"), &get)
        .exits(5);
    scene.agree(("", "max connections = 1\nlock file = TOP/lock"), &get);
    // A FIFO is locked without waiting for another process to open it.
    scene.sh("mkfifo fifo-to-lock");
    scene.agree(
        ("", "max connections = 1\nlock file = TOP/fifo-to-lock"),
        &get,
    );
    for hosts in [
        "allow = 127.0.0.1/33 127.0.0.1",
        "allow = 127.0.0.1/x",
        "allow = 0/0",
        "deny = 0/0",
        "deny = 127/8",
    ] {
        scene.agree(("", &format!("hosts {hosts}")), &get);
    }
    scene
        .agree_but_for_the_log(("", "hosts deny = name.invalid"), &get)
        .exits(5);
    scene
        .agree_but_for_the_log(
            ("", "hosts allow = name.invalid\nhosts deny = 10.0.0.1"),
            &get,
        )
        .exits(0);
    scene
        .agree(("", "hosts deny = name.invalid\nforward lookup = no"), &get)
        .exits(0);
    // What cannot be evaluated must not open a module.
    let ours = scene.call(oracle::under_test(), ("", "hosts deny = @net"), &get);
    ours.exits(5).logs("netgroups are not supported");
}

#[test]
fn identities_and_paths_are_checked() {
    needs_root();
    let scene = Modules::new();
    let get = ["-r", "h::m/a", "dst"];
    scene
        .agree(("", "uid = none-such"), &get)
        .exits(5)
        .prints("@ERROR: invalid uid none-such");
    scene
        .agree(("", "gid = none-such"), &get)
        .exits(5)
        .prints("@ERROR: invalid gid none-such");
    scene
        .agree(("", "path = TOP/none"), &get)
        .exits(5)
        .prints("@ERROR: chroot failed");
    scene
        .agree(("", "path = TOP/none\nuse chroot = no"), &get)
        .exits(5)
        .prints("@ERROR: chdir failed");
    scene
        .agree(("", "path ="), &get)
        .exits(5)
        .prints("@ERROR: no path setting.");
    scene.file_with_mode("mod/private", "x", 0o600);
    scene
        .agree(
            ("", "path = TOP/./mod\nuid = 1\ngid = 1"),
            &["-r", "h::m/", "dst"],
        )
        .exits(23);
}

/// The daemon of an ordinary user refuses clients of a module whose user or group it cannot take on.
#[test]
fn ordinary_user_serves_only_as_itself() {
    needs_root();
    let scene = Modules::new();
    scene.sh("chmod 777 .");
    let by_nobody = |program: &Path| {
        let drop = "setpriv --reuid=65534 --regid=65534 --clear-groups";
        PathBuf::from(format!("{drop} {}", program.display()))
    };
    let [theirs, ours] = [oracle::rsync(), oracle::under_test()].map(by_nobody);
    for (module, code) in [
        ("", 0),
        ("uid = 65534", 0),
        ("uid = 0", 5),
        ("gid = 0", 5),
        ("gid = 65534", 5),
        ("uid = 65534\ngid = *", 5),
        ("uid = none-such", 5),
        ("gid = none-such", 5),
    ] {
        let config = ("", format!("use chroot = no\n{module}"));
        let [theirs, ours] = [&theirs, &ours]
            .map(|program| scene.call(program, (config.0, &config.1), &["-r", "h::m/a", "dst"]));
        assert_eq!(format!("{ours:#?}"), format!("{theirs:#?}"), "{module}");
        ours.exits(code);
    }
}

/// Known users, unknown ones and those without a rule are refused after the same time, and nothing that a secrets file
/// can be makes a client wait.
#[test]
fn refused_users_learn_nothing_from_the_time() {
    needs_root();
    let scene = Modules::new();
    scene.file_with_mode("secrets", "joe:one\n", 0o600);
    scene.sh("mkfifo -m 600 fifo");
    for (users, file) in [
        ("joe", "secrets"),
        ("*", "secrets"),
        ("*", "none"),
        ("*", "fifo"),
    ] {
        let module = format!("{PLAIN}\nauth users = {users}\nsecrets file = TOP/{file}");
        let daemon = scene.listen(("", &module));
        for user in ["joe", "tim", "@joe"] {
            let mut stream = daemon.connect();
            stream.get_mut().write_all(b"@RSYNCD: 31.0\nm\n").unwrap();
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            assert!(line.starts_with("@RSYNCD: AUTHREQD "), "{line}");
            let sent = std::time::Instant::now();
            let words = format!("{user} wrong\n");
            stream.get_mut().write_all(words.as_bytes()).unwrap();
            line.clear();
            stream.read_line(&mut line).unwrap();
            assert_eq!(line, "@ERROR: auth failed on module m\n");
            assert!(
                sent.elapsed() >= Duration::from_millis(100),
                "{user} {file}"
            );
        }
    }
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    assert!(log.contains("/fifo: it is no regular file"), "{log}");
}

#[test]
fn users_authenticate() {
    needs_root();
    let scene = Modules::new().env("RSYNC_PASSWORD", "one");
    scene.file_with_mode("secrets", "#joe:no\njoe:one\njim:two\n@root:one\n", 0o600);
    let with = |more: &str| format!("secrets file = TOP/secrets\n{more}");
    let get = |user: &str| [format!("{user}@h::m/a"), "dst".into()];
    let agree = |more: &str, user: &str| {
        let args = get(user);
        scene.agree(("", &with(more)), &[&args[0], &args[1]])
    };
    agree("auth users = joe", "joe")
        .exits(0)
        .logs("from joe@localhost");
    agree("auth users = joe", "jim")
        .exits(5)
        .logs("for jim: no matching rule");
    agree("auth users = joe jim", "jim")
        .exits(5)
        .logs("for jim: password mismatch");
    agree("auth users = *", "tim")
        .exits(5)
        .logs("for tim: secret not found");
    agree("auth users = joe:deny, *", "joe")
        .exits(5)
        .logs("for joe: denied by rule");
    agree("auth users = @root", "root").exits(0);
    // The line of a group is no line of a user, and a comment is none either.
    agree("auth users = @root:ro, *:rw", "@root")
        .exits(5)
        .logs("for @root: secret not found");
    agree("auth users = *", "#joe")
        .exits(5)
        .logs("for #joe: invalid username");
    agree("auth users = @root", "joe").exits(5);
    agree("auth users = joe\nauth digest = sha512", "joe").exits(0);
    agree("auth users = joe\nauth digest = none-such", "joe").exits(5);
    agree("auth users = joe\nhosts allow = localhost", "joe").exits(0);
    scene
        .agree(("", "auth users = joe"), &["joe@h::m/a", "dst"])
        .exits(5)
        .logs("no secrets file");
    for (mode, code) in [(0o640, 0), (0o604, 5), (0o602, 5)] {
        scene.file_with_mode("secrets", "joe:one\n", mode);
        agree("auth users = joe", "joe").exits(code);
        agree("auth users = joe\nstrict modes = no", "joe").exits(0);
    }
    scene.file_with_mode("secrets", "joe:one\n", 0o600);
    std::os::unix::fs::chown(scene.path("secrets"), Some(5), None).unwrap();
    agree("auth users = joe", "joe")
        .exits(5)
        .logs("secrets file must be owned by root");
}

/// Sends lines to our daemon and returns what it answers, up to its end.
fn conversation(scene: &Modules, config: (&str, &str), lines: &[u8]) -> String {
    conversation_with(oracle::under_test(), scene, config, lines)
}

fn conversation_with(
    program: &Path,
    scene: &Modules,
    config: (&str, &str),
    lines: &[u8],
) -> String {
    let config = scene.config(config.0, config.1);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let theirs = std::os::fd::OwnedFd::from(theirs);
    let mut daemon = Command::new(program)
        .args(["--daemon", &format!("--config={}", config.display())])
        .stdin(Stdio::from(theirs.try_clone().unwrap()))
        .stdout(Stdio::from(theirs))
        .spawn()
        .unwrap();
    (&ours).write_all(lines).unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // The end can be a reset.
    let _ = (&ours).read_to_end(&mut answer);
    daemon.wait().unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Calls a daemon as a client that falls silent after `sent`. Returns its exit code and the end of the log.
fn silent_client(
    program: &Path,
    (globals, module): (&str, &str),
    sent: &[u8],
) -> (Option<i32>, Vec<String>) {
    let scene = Modules::new();
    let config = scene.config(globals, &format!("read only = no\n{PLAIN}\n{module}"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = std::os::fd::OwnedFd::from(listener.accept().unwrap().0);
    let mut daemon = Command::new(program)
        .args(["--daemon", &format!("--config={}", config.display())])
        .stdin(Stdio::from(socket.try_clone().unwrap()))
        .stdout(Stdio::from(socket))
        .spawn()
        .unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    client.write_all(sent).unwrap();
    let end = client.read_to_end(&mut Vec::new());
    // What a daemon has not read makes the end a reset.
    assert!(
        !matches!(&end, Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset),
        "{end:?}"
    );
    let code = daemon.wait().unwrap().code();
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    // The time that has passed can be longer on a busy machine, and has one digit.
    let words = |line: &str| {
        let words = line[line.find("] ").unwrap() + 2..]
            .split(" at ")
            .next()
            .unwrap();
        words.replace(
            |c: char| c.is_ascii_digit() && words.contains("io timeout"),
            "N",
        )
    };
    let mut lines: Vec<_> = log.lines().map(words).collect();
    (code, lines.split_off(lines.len() - 2))
}

#[test]
fn silent_pushes_time_out() {
    // In the handshake, and before the file list. A client can only lower the limit.
    for (sent, option) in [
        (&b""[..], ""),
        (b"\x06xxh128", ""),
        (b"\x06xxh128", "--timeout=90\0"),
    ] {
        let words = format!("@RSYNCD: 31.0\nm\n--server\0-logDtpre.iLsfxCIvu\0{option}.\0m/\0\0");
        let sent = [words.as_bytes(), sent].concat();
        // On a busy machine, the second can pass in the handshake, which has a message of its own.
        let call = |program| {
            let mut logs = (0..5).map(|_| silent_client(program, ("timeout = 1", ""), &sent).1);
            logs.find(|log| !log[0].contains("handshake"))
                .expect("a daemon gets past the handshake")
        };
        let log = call(oracle::under_test());
        let words = [
            "[Receiver] io timeout after N seconds -- exiting",
            "rsync error: timeout in data send/receive (code 30)",
        ];
        assert_eq!(log, words);
        if option.is_empty() {
            assert_eq!(log, call(oracle::rsync()));
        }
    }
}

#[test]
fn silent_handshakes_time_out() {
    let cases = [
        (("timeout = 1", "timeout = 90"), ""),
        (("timeout = 1", ""), "@RSYNCD: 31.0\nm\n"),
        (("", "timeout = 1\nauth users = joe"), "@RSYNCD: 31.0\nm\n"),
        (
            ("timeout = 90", "timeout = 1"),
            "@RSYNCD: 31.0\nm\n--server\0--sender\0",
        ),
    ];
    each(&cases, |(config, sent)| {
        let ours = silent_client(oracle::under_test(), *config, sent.as_bytes());
        assert_eq!(
            ours,
            silent_client(oracle::rsync(), *config, sent.as_bytes()),
            "{config:?} {sent}"
        );
        assert_eq!(ours.0, Some(30));
    });
}

#[test]
fn all_digests_authenticate() {
    use std::fmt::Write as _;
    let scene = Modules::new();
    scene.file_with_mode("secrets", "joe:one\n", 0o600);
    // Each challenge has the length of its digest.
    for (greeting, len) in [
        ("32.0 sha512 md5", 86),
        ("32.0 sha256", 43),
        ("31.0 sha1", 27),
        ("30.0 md5", 22),
        ("30.0 md4", 22),
        ("31.0", 22),
        ("29", 22),
    ] {
        let mut text = String::new();
        write!(text, "@RSYNCD: {greeting}\nm\njoe wrong\n").unwrap();
        let answer = conversation(
            &scene,
            ("", "auth users = joe\nsecrets file = TOP/secrets"),
            text.as_bytes(),
        );
        let challenge = answer
            .lines()
            .find_map(|line| line.strip_prefix("@RSYNCD: AUTHREQD "));
        assert_eq!(challenge.map(str::len), Some(len), "{greeting}: {answer}");
        assert!(
            answer.ends_with("@ERROR: auth failed on module m\n"),
            "{greeting}: {answer}"
        );
    }
    let answer = conversation(&scene, ("", "auth users = joe"), b"@RSYNCD: 32.0 none\nm\n");
    assert!(
        answer.contains("@ERROR: your client does not support one of our daemon-auth checksums: "),
        "{answer}"
    );
}

#[test]
fn aborted_authentications_are_logged() {
    let config = ("", "auth users = joe");
    for sent in ["", "jo", "joe\n", "\n"] {
        let lines = format!("@RSYNCD: 31.0\nm\n{sent}");
        for program in [oracle::rsync(), oracle::under_test()] {
            let scene = Modules::new();
            let answer = conversation_with(program, &scene, config, lines.as_bytes());
            assert!(
                answer.ends_with("\n@ERROR: auth failed on module m\n"),
                "{sent:?}: {answer}"
            );
            let log = std::fs::read_to_string(scene.path("log")).unwrap();
            assert!(log.contains("] auth failed on module m from "), "{log}");
            assert!(log.ends_with(": invalid challenge response\n"), "{log}");
        }
    }
}

#[test]
fn invalid_conversations_are_rejected() {
    let scene = Modules::new();
    for (lines, words) in [
        ("GET / HTTP/1.0\n", "@ERROR: protocol startup error\n"),
        (
            "@RSYNCD: 30\n",
            "@ERROR: your client omitted the subprotocol value: @RSYNCD: 30\n",
        ),
        (
            "@RSYNCD: 32.0\n",
            "@ERROR: your client omitted the digest name list: @RSYNCD: 32.0\n",
        ),
        ("@RSYNCD: 31.0\n#foo\n", "@ERROR: Unknown command '#foo'\n"),
        (
            "@RSYNCD: 31.0\n#early_input=0\n",
            "@ERROR: invalid early_input length\n",
        ),
        (
            "@RSYNCD: 31.0\n#early_input=6000\n",
            "@ERROR: invalid early_input length\n",
        ),
        ("@RSYNCD: 31.0\n../m\n", "@ERROR: Unknown module '../m'\n"),
    ] {
        let answer = conversation(&scene, ("", ""), lines.as_bytes());
        assert!(answer.ends_with(words), "{lines:?}: {answer:?}");
    }
    for endless in [
        vec![b'x'; 100_000],
        [&b"@RSYNCD: 31.0\n"[..], &[b'm'; 100_000]].concat(),
    ] {
        let answer = conversation(&scene, ("", ""), &endless);
        assert!(!answer.contains("OK"), "{answer}");
    }
}

/// Absolute paths of files of rules begin at the module. Hidden ones have no rules, or are refused.
#[test]
fn files_of_rules_are_found_in_the_module() {
    let scene = Modules::new();
    scene.sh("mkdir mod/hid; echo '- /a' >mod/rules; echo '- /sub' >mod/hid/rules");
    let long = format!("-M--filter=: {}", "x".repeat(300));
    for chroot in ["", "use chroot = yes"] {
        let module = format!("{PLAIN}\nexclude = /hid/\n{chroot}");
        let call = |program: &Path, option: &str| {
            let mut seen = scene.call(
                program,
                ("", &module),
                &["-r", "-l", option, "h::m/", "dst"],
            );
            // A daemon that refuses options may close the connection before its client has read the reason.
            seen.code = None;
            seen.stderr.retain(|line| !line.contains("rsync error: "));
            seen.log.retain(|line| !line.contains("rsync error: "));
            seen
        };
        for option in [
            "-M--exclude-from=/rules",
            "-M--exclude-from=rules",
            "-M--filter=merge /rules",
            "-M--filter=merge ../../rules",
            "-M--filter=merge /hid/rules",
            "-M--exclude-from=/hid/rules",
            "-M--files-from=/hid/rules",
            &long,
        ] {
            let [theirs, ours] = [oracle::rsync(), oracle::under_test()].map(|p| call(p, option));
            assert_eq!(
                format!("{ours:#?}"),
                format!("{theirs:#?}"),
                "{module} {option}"
            );
        }
    }
}

/// The client learns why its request is not accepted, and the log shows it.
#[test]
fn reasons_of_refusals_are_logged_and_reach_the_client() {
    let scene = Modules::new();
    let log = || std::fs::read_to_string(scene.path("log")).unwrap();
    for (arg, count, words) in [
        (
            "m/a\0",
            20_000,
            "sparsync: there are more than 16000 arguments",
        ),
        (
            &format!("m/{}\0", "a".repeat(2_000_000)),
            9,
            "sparsync: the arguments are longer than 16777216 bytes",
        ),
    ] {
        let begin = "@RSYNCD: 31.0\nm\n--server\0--sender\0-re.iLsfxCIu\0.\0";
        let flood = [begin, &arg.repeat(count), "\0"].concat();
        let answer = conversation(&scene, ("", PLAIN), flood.as_bytes());
        assert!(answer.contains(words), "{answer}");
        assert!(log().contains(words), "{}", log());
    }
    let answer = conversation(&scene, ("", PLAIN), &[b'x'; 10_000]);
    assert!(answer.contains("@ERROR: protocol error: "), "{answer}");
    assert!(log().contains("] protocol error: "), "{}", log());
    // A file of rules, for both directions.
    for operands in [["h::m/a", "dst"], ["out/secret", "h::m/"]] {
        let seen = scene.call(
            oracle::under_test(),
            ("", &format!("{PLAIN}\nread only = no")),
            &["-M--filter=merge /none", operands[0], operands[1]],
        );
        seen.prints("failed to open exclude file ")
            .logs("failed to open exclude file ");
    }
    // Options that stand for refused ones, and other names.
    for (list, option, words) in [
        ("times", "-M-a", "--times (-t)"),
        ("partial", "-M-P", "--partial"),
        ("delete-during", "-M--del", "--del"),
        ("compress-choice", "-M--zc=lz4", "--zc"),
        ("no-whole-file", "-M--no-W", "--no-W"),
    ] {
        let module = format!("{PLAIN}\nrefuse options = {list}");
        for program in [oracle::rsync(), oracle::under_test()] {
            let seen = scene.call(program, ("", &module), &["-r", option, "h::m/a", "dst"]);
            seen.prints(&format!("is configured to refuse {words}"))
                .logs(&format!("is configured to refuse {words}"));
            assert!(!seen.trees[0].contains("a f"), "{seen:#?}");
        }
    }
    // It stands for one that an rsync knows.
    let module = format!("{PLAIN}\nread only = no\nrefuse options = copy-dest");
    let refused = "is configured to refuse --copy-dest";
    for (option, words) in [
        ("-M--clone-dest=x", refused),
        ("--copy-dest=x", refused),
        // Such a module is served in rsync's protocol.
        ("--clone-dest=x", "--clone-dest is not possible"),
    ] {
        let args = ["-r", option, "src/a", "h::m/"];
        let ours = oracle::under_test();
        let seen = scene.call_by(ours, ours, ("", &module), &args);
        seen.prints(words).exits(4);
    }
}

#[test]
fn clients_cannot_lift_the_limit_of_memory() {
    let scene = Modules::new();
    scene.sh("mkdir -p src/many; cd src/many; seq -f %0200.0f 6000 | xargs touch");
    let daemon = PathBuf::from(format!(
        "env RSYNC_MAX_ALLOC=1M {}",
        oracle::under_test().display()
    ));
    let module = format!("{PLAIN}\nread only = no");
    for client in [oracle::rsync(), oracle::under_test()] {
        for option in ["-M--max-alloc=0", "-M--max-alloc=2G", "-r"] {
            let args = ["-r", option, "src/many", "h::m/"];
            let seen = scene.call_by(client, &daemon, ("", &module), &args);
            seen.exits(22)
                .prints("exceeds --max-alloc")
                .prints("hint: use a larger --max-alloc")
                .logs("exceeds --max-alloc");
            assert!(!format!("{seen:?}").contains("--max-alloc=0"), "{seen:#?}");
        }
    }
}

/// An attacker who takes over a session in a chroot finds no descriptor of a directory that leads out of it.
#[test]
fn sessions_in_a_chroot_hold_no_directory_outside() {
    needs_root();
    for (path, rules) in [
        ("TOP/mod", ""),
        ("TOP/mod", "exclude = x"),
        ("TOP/./mod", "exclude = x"),
    ] {
        let scene = Modules::new();
        let ids = "use chroot = yes\nuid = 65534\ngid = 65534\nread only = no";
        let daemon = scene.listen(("", &format!("path = {path}\n{ids}\n{rules}")));
        for words in [
            &b"@RSYNCD: 30.0\nm\n--server\0--sender\0-re.Lsf\0.\0m/\0\0"[..],
            b"@RSYNCD: 30.0\nm\n--server\0-re.Lsf\0.\0m/\0\0",
        ] {
            let mut session = daemon.request(words);
            session.read_exact(&mut [0]).unwrap();
            let process = daemon.connections()[0];
            let inside = scene.path(if path == "TOP/mod" { "mod" } else { "" });
            let links = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
            let links: Vec<_> = links.map(|link| link.unwrap().path()).collect();
            assert!(links.len() > 2, "{links:?}");
            for link in links {
                let is_dir = std::fs::metadata(&link).is_ok_and(|found| found.is_dir());
                let target = std::fs::read_link(&link).unwrap();
                assert!(!is_dir || target.starts_with(&inside), "{target:?}");
            }
            drop(session);
            until(|| daemon.connections().is_empty());
        }
    }
}

/// A symlink that a client has pushed does not lead to what the module excludes.
#[test]
fn symlinks_do_not_lead_to_excluded_entries() {
    needs_root();
    let scene = Modules::new();
    scene.sh(
        "mkdir -p mod/hid/in dst0; echo secret >mod/hid/f; echo secret >mod/hid/in/f; echo '+ *' >mod/hid/rules\n\
         ln -s hid mod/l; ln -s hid/f mod/lf; ln -s l mod/ll; ln -s ../hid mod/sub/up; ln -s sub mod/ls; ln -s sub/d mod/ld\n\
         mkdir push; echo new >push/f; cp -a mod orig",
    );
    for chroot in ["use chroot = no", "use chroot = yes"] {
        let module = format!(
            "uid = 0\ngid = 0\nread only = no\nmunge symlinks = no\nexclude = /hid/\n{chroot}"
        );
        let call = |args: &[&str]| scene.call(oracle::under_test(), ("", &module), args);
        for args in [
            &["-r", "h::m/l/f", "dst/"][..],
            &["-r", "h::m/l/", "dst/"],
            &["-r", "h::m/ll/in/", "dst/"],
            &["-r", "h::m/sub/up/f", "dst/"],
            &["-r", "h::m/ls/up/", "dst/"],
            &["-rL", "h::m/lf", "dst/"],
            &["-rL", "h::m/", "dst/"],
            &["-rR", "h::m/l/f", "dst/"],
            &["-r", "--copy-dirlinks", "h::m/l", "dst/"],
        ] {
            let seen = call(args);
            let got = Command::new("grep")
                .args(["-rq", "secret"])
                .arg(scene.path("dst"))
                .status();
            assert!(!got.unwrap().success(), "{chroot} {args:?}: {seen:#?}");
        }
        for args in [
            &["-r", "push/", "h::m/l/"][..],
            &["-r", "push/f", "h::m/l/f"],
            &["-rK", "push/", "h::m/ll"],
            &["-r", "--delete", "push/", "h::m/l/in/"],
            &["-r", "--backup-dir=l/in", "-b", "push/f", "h::m/a"],
            &["-r", "--temp-dir=l", "push/f", "h::m/n"],
            &["-r", "--link-dest=../l", "push/f", "h::m/sub/"],
        ] {
            let seen = call(args);
            let hidden = |tree: &str| -> Vec<String> {
                let lines = tree.lines().filter(|line| line.starts_with("hid"));
                lines.map(str::to_owned).collect()
            };
            assert_eq!(
                hidden(&seen.trees[1]),
                hidden(&list(&scene.path("orig"))),
                "{chroot} {args:?}: {seen:#?}"
            );
        }
        // Other symlinks are followed as in rsync.
        for args in [
            &["-r", "h::m/ls/d", "dst/"][..],
            &["-r", "h::m/ls/deep/", "dst/"],
            &["-rL", "h::m/ld", "dst/"],
            &["-r", "push/", "h::m/ls/"],
        ] {
            scene.agree(("", &module), args).exits(0);
        }
    }
}

#[test]
fn paths_cannot_leave_the_module() {
    needs_root();
    let scene = Modules::new();
    for module in ["", PLAIN] {
        for path in [
            "h::m/../out/",
            "h::m/sub/../../out/secret",
            "h::m//etc/passwd",
            "h::m/./../../out",
        ] {
            let seen = scene.agree(("", module), &["-r", path, "dst"]);
            assert!(
                !seen.trees[0].contains("secret") && !seen.trees[0].contains("passwd"),
                "{path}: {seen:?}"
            );
        }
    }
    for path in ["h::m/up/", "h::m/abs/", "h::m/up/secret", "h::m/abs/secret"] {
        let seen = scene.agree(("", PLAIN), &["-r", path, "dst"]);
        assert!(!seen.trees[0].contains("secret"), "{path}: {seen:?}");
        seen.exits(23).prints("Too many levels of symbolic links");
    }
    // rsync shows the attributes of the directory behind a symlink.
    let ours = scene.call(oracle::under_test(), ("", PLAIN), &["-rL", "h::m/", "dst"]);
    assert!(
        !ours.trees[0].contains("secret") && ours.trees[0].contains("inside/d "),
        "{ours:?}"
    );
    ours.exits(23).prints("(in m)");
    let chrooted = scene.call(oracle::under_test(), ("", ""), &["-rL", "h::m/", "dst"]);
    assert!(!chrooted.trees[0].contains("secret"), "{chrooted:?}");
    let listed = scene.call(
        oracle::under_test(),
        ("", PLAIN),
        &["-r", "--files-from=:/../out/secret", "h::m/", "dst"],
    );
    assert!(
        listed.code != Some(0) && listed.trees[0].is_empty(),
        "{listed:?}"
    );
}

#[test]
fn symlinks_are_restored_when_they_are_sent() {
    needs_root();
    let scene = Modules::new();
    symlink("/rsyncd-munged//etc/passwd", scene.path("mod/munged")).unwrap();
    for module in [
        "",
        PLAIN,
        "munge symlinks = yes",
        "use chroot = no\nmunge symlinks = no",
    ] {
        scene.agree(("", module), &["-al", "h::m/", "dst"]);
    }
}

#[test]
fn symlinks_that_files_represent_are_restored() {
    needs_root();
    let scene = Modules::new();
    scene.sh(
        "mkdir src; ln -s a src/in; ln -s /rsyncd-munged/x src/prefixed; ln -s ../../out src/up",
    );
    for munging in ["", "munge symlinks = no", "use chroot = yes"] {
        let module = format!("read only = no\nfake super = yes\n{PLAIN}\n{munging}");
        let config = ("", &module[..]);
        scene.sh("rm -rf orig back; mkdir orig");
        scene.agree(config, &["-ai", "src/", "h::m/"]);
        scene.sh("rm -r orig; cp -a mod orig");
        scene.agree(config, &["-ai", "h::m/", "dst"]);
        scene.sh("cp -a dst back");
        scene.agree(config, &["-aii", "back/", "h::m/"]);
        scene.agree(config, &["-aiiI", "back/", "h::m/"]);
    }
}

/// Symlinks of the source are changed on the way, so equal ones at both ends are not up to date.
#[test]
fn symlinks_that_lead_outside_are_replaced() {
    needs_root();
    let scene = Modules::new();
    scene.sh("cp -a mod orig; cp -a mod links");
    let links = |seen: &Seen| {
        seen.trees[1].matches("up l").count() + seen.trees[1].matches("abs l").count()
    };
    for module in ["use chroot = no", "munge symlinks = yes"] {
        let module = format!("{module}\nuid = 0\ngid = 0\nread only = no");
        let seen = scene.agree(("", &module), &["-rlt", "links/", "h::m/"]);
        assert_eq!(links(&seen), 2, "{seen:?}");
        assert!(!seen.trees[1].contains(" ../out "), "{seen:?}");
    }
}

#[test]
fn refused_options_end_the_session() {
    let scene = Modules::new();
    for (list, args, option) in [
        ("c delete", &["-ac"][..], "--checksum (-c)"),
        ("a", &["-r"], "--recursive (-r)"),
        ("* !a !v", &["-az"], "--compress (-z)"),
        ("", &["-a", "--copy-devices"], "--copy-devices"),
        ("", &["-a", "-M--log-file=x"], "--log-file"),
        ("delete", &["-a", "--remove-source-files"], "--delete"),
    ] {
        let args = [args, &["h::m/", "dst"]].concat();
        let words = format!("The server is configured to refuse {option}");
        scene
            .call(
                oracle::rsync(),
                ("", &format!("refuse options = {list}")),
                &args,
            )
            .prints(&words);
        let ours = scene.call(
            oracle::under_test(),
            ("", &format!("refuse options = {list}")),
            &args,
        );
        ours.prints(&words).exits(4).logs(&words);
        assert!(ours.trees[0].is_empty(), "{ours:?}");
    }
    let ours = scene.call(
        oracle::under_test(),
        ("", ""),
        &["-a", "-M--bogus", "h::m/", "dst"],
    );
    ours.prints("on remote machine: --bogus: unknown option")
        .exits(4);
    for program in [oracle::rsync(), oracle::under_test()] {
        let module = "refuse options = partial\nread only = no";
        let seen = scene.call(program, ("", module), &["-aP", "mod/", "h::m/"]);
        seen.prints("The server is configured to refuse --partial");
    }
    // Deletions by other options.
    for program in [oracle::rsync(), oracle::under_test()] {
        let module = format!("{PLAIN}\nrefuse options = delete\nread only = no");
        let args = ["-aR", "--delete-missing-args", "./mod/a", "./a", "h::m/"];
        let seen = scene.call(program, ("", &module), &args);
        seen.prints("The server is configured to refuse --delete");
        assert!(scene.path("mod/a").exists());
    }
    // Such a module is served by rsync's protocol.
    let ours = scene.call_by(
        oracle::under_test(),
        oracle::under_test(),
        ("", "refuse options = delete\nread only = no"),
        &["-a", "--verify", "mod/", "h::m/"],
    );
    ours.prints("--verify is not possible: the daemon speaks rsync's protocol for this module")
        .prints("hint: copy without the option, or use a module of a sparsync daemon that permits this copy")
        .exits(4);
    scene.agree(
        ("", "refuse options = * !a !v !compress*"),
        &["-avz", "h::m/", "dst"],
    );
}

#[test]
fn directions_are_restricted() {
    let scene = Modules::new();
    scene
        .agree(("", ""), &["out/secret", "h::m/"])
        .exits(1)
        .prints("ERROR: module is read only");
    scene
        .agree(("", "write only = yes"), &["h::m/a", "dst"])
        .exits(1)
        .prints("ERROR: module is write only");
    scene.agree(("", ""), &["-r", "--remove-source-files", "h::m/", "dst"]);
}

/// Only sparsync's own protocol compares digests of directories.
#[test]
fn two_sparsyncs_use_their_own_protocol() {
    let scene = Modules::new();
    for at in 0..300 {
        scene.file_with_mode(&format!("mod/sub/file {at}"), "", 0o644);
    }
    scene.sh("cp -a mod orig");
    let received = |module: &str, args: &[&str]| {
        let args = [&["-rt", "--links", "--stats", "h::m/", "orig"], args].concat();
        let seen = scene.call_by(
            oracle::under_test(),
            oracle::under_test(),
            ("", module),
            &args,
        );
        seen.exits(0);
        let line = seen
            .stdout
            .iter()
            .find_map(|line| line.strip_prefix("Total bytes received: "));
        line.expect("the totals are printed")
            .replace(',', "")
            .parse::<u64>()
            .unwrap()
    };
    let most = received("", &[]);
    assert!(most < 1000, "{most}");
    for (module, args) in [
        ("exclude = none", &[][..]),
        ("fake super = yes", &[]),
        ("incoming chmod = a+r", &[]),
        ("outgoing chmod = a+r", &[]),
        ("ignore nonreadable = yes", &[]),
        ("refuse options = delete", &[]),
        ("transfer logging = yes", &[]),
        ("max verbosity = 0", &["-v"]),
        ("", &["--protocol=30"]),
    ] {
        let least = received(module, args);
        assert!(least > 2000, "{module} {args:?}: {least}");
    }
}

#[test]
fn parameters_change_a_pull() {
    needs_root();
    let scene = Modules::new();
    scene.file_with_mode("mod/odd", "x", 0o777);
    std::os::unix::fs::chown(scene.path("mod/odd"), Some(5), Some(7)).unwrap();
    for module in [
        "outgoing chmod = Da+rx,F640",
        "numeric ids = yes",
        "numeric ids = no",
        "fake super = yes",
        "timeout = 60",
        "max verbosity = 0",
        "max verbosity = 3",
        "dont compress = *",
        "open noatime = yes\nuid = 0\ngid = 0",
        "insecure links = no",
        "temp dir = /tmp",
        "READONLY = true",
    ] {
        scene.agree(("", module), &["-avvz", "--timeout=90", "h::m/", "dst"]);
    }
    scene.agree(
        ("timeout = 5\nlist=no\n[global]\nlist=yes", ""),
        &["-a", "h::m/", "dst"],
    );
}

#[test]
fn rules_of_a_module_hide_entries() {
    let scene = || {
        let scene = Modules::new();
        scene.sh("mkdir -p mod/hid/in mod/keep");
        for name in [
            "mod/x.bak",
            "mod/hid/x",
            "mod/hid/in/y",
            "mod/keep/k",
            "mod/sub/o.bak",
        ] {
            scene.file_with_mode(name, name, 0o644);
        }
        scene.file_with_mode("mod/sub/.rules", "- d\n", 0o644);
        scene.file_with_mode("list", "# comment\n/keep/\n+ *.bak\n", 0o644);
        scene
    };
    let all = [
        "exclude = /hid *.bak .rules",
        "exclude = - hid/ + x.bak *.bak",
        "exclude = ! *.bak",
        "include = x.bak\nexclude = *.bak hid/",
        "filter = - *.bak - /hid",
        "filter = + x.bak exclude,! hid hide keep : .rules",
        "exclude from = TOP/list",
        "include from = TOP/list\nexclude = *",
        "use chroot = no\nexclude = /hid *.bak",
        // The modifier `/`, and rules for one side: those for the receiver are like others.
        "use chroot = no\nfilter = -/_/hid -/_/sub/o.bak",
        "use chroot = no\nfilter = -!/_/hid/*** ",
        "filter = P_/hid P/_/x.bak H_/keep R_/keep/k -s_/keep",
        "filter = -rs_/hid -p_/x.bak",
    ];
    each(&all, |rules| {
        let scene = scene();
        let of = |args: &[&str]| scene.agree(("", rules), &[&["-r"][..], args, &["dst/"]].concat());
        of(&["h::m/"]);
        of(&["--delete", "--filter=: .rules", "h::m/sub"]);
        for path in [
            "hid",
            "hid/",
            "hid/x",
            "hid/in/y",
            "x.bak",
            "sub/o.bak",
            "*",
            "h*",
        ] {
            // Without chroot, rsync's message begins this path with a slash.
            if !(rules.contains("use chroot") && path == "sub/o.bak") {
                of(&[&format!("h::m/{path}")]);
            }
        }
        scene.agree(("", rules), &["-rR", "h::m/hid", "h::m/a", "dst/"]);
        // Without chroot, rsync's message begins the first path with a slash.
        let [theirs, ours] = [oracle::rsync(), oracle::under_test()].map(|program| {
            scene.call(
                program,
                ("", rules),
                &["-rR", "h::m/hid/in/y", "h::m/a", "dst/"],
            )
        });
        assert_eq!(
            (ours.trees, ours.code),
            (theirs.trees, theirs.code),
            "{rules}"
        );
    });
    let invalid = [
        ("filter = bogus x", "Unknown filter rule: bogus x"),
        (
            "filter = merge TOP/list",
            "Unknown filter rule: <rule from ",
        ),
        ("exclude from = TOP/none", "failed to open exclude file "),
    ];
    each(&invalid, |(rules, words)| {
        scene()
            .agree(("", rules), &["-r", "h::m/", "dst/"])
            .exits(5)
            .logs(words);
    });
}

/// A module that clients may write, with chroot and without.
const WRITABLE: [&str; 2] = [
    "read only = no\nuid = 0\ngid = 0",
    "read only = no\nuid = 0\ngid = 0\nuse chroot = no",
];

/// Pushes with each line of arguments to both kinds of modules, which have more parameters, and compares the daemons.
fn push(more: &[&str], lines: &[&str]) {
    needs_root();
    let cases: Vec<_> = more
        .iter()
        .flat_map(|more| lines.iter().map(move |line| (*more, *line)))
        .flat_map(|(more, line)| WRITABLE.map(|module| (format!("{module}\n{more}"), line)))
        .collect();
    each(&cases, |(module, line)| {
        let scene = Modules::to_push();
        let args: Vec<_> = line.split(' ').collect();
        let seen = |client, daemon| {
            let mut seen = scene.call_by(client, daemon, ("", module), &args);
            // Lines of unchanged entries and of deletions have another place among the others.
            [&mut seen.stdout, &mut seen.stderr, &mut seen.log]
                .iter_mut()
                .for_each(|lines| lines.sort_unstable());
            seen
        };
        let (rsync, sparsync) = (oracle::rsync(), oracle::under_test());
        let (theirs, ours) = (seen(rsync, rsync), seen(rsync, sparsync));
        assert_eq!(
            format!("{ours:#?}"),
            format!("{theirs:#?}"),
            "{module:?} {line}"
        );
        // Two sparsyncs report a limit that was reached, and directories that a list lacks. Their log has no lists, and no
        // size without a source.
        let differs = [
            "--max-delete",
            "--list-only",
            "--files-from=src",
            "--no-implied-dirs",
            "refuse options = times",
        ];
        if !differs
            .iter()
            .any(|part| line.contains(part) || module.contains(part))
        {
            let native = seen(sparsync, sparsync);
            assert_eq!(
                native.of_any_client(),
                theirs.of_any_client(),
                "both sparsync, {module:?} {line}"
            );
        }
    });
}

/// With chroot, rsync calls the root of the list `/.`.
#[test]
fn whole_module_is_pulled_with_its_path() {
    needs_root();
    let scene = Modules::new();
    let module = "use chroot = yes\nuid = 0\ngid = 0";
    for protocol in ["28", "29", "30", "31", "32"] {
        for from in ["h::m/", "h::m", "h::m/."] {
            let args = ["-aR", &format!("--protocol={protocol}"), from, "dst/"];
            let [theirs, ours] = [oracle::rsync(), oracle::under_test()]
                .map(|client| scene.call_by(client, oracle::rsync(), ("", module), &args));
            assert_eq!(
                (ours.trees, ours.code),
                (theirs.trees, theirs.code),
                "{args:?}"
            );
            assert_eq!(ours.code, Some(0));
        }
    }
}

/// In a chroot without a list of users, id 0 has no name: maps go by the names of the sender.
#[test]
fn root_has_no_name_in_a_chroot() {
    needs_root();
    let scene = Modules::new();
    scene.sh("chown -h 5:7 mod/a; chown -h 4321:4321 mod/sub/d");
    for module in WRITABLE {
        for protocol in ["29", "30", "32"] {
            for from in [":", "root:", "?*:", "0:", "*:"] {
                let maps = format!("--usermap={from}77 --groupmap={from}88");
                let args: Vec<_> = maps.split(' ').collect();
                let protocol = format!("--protocol={protocol}");
                let args = [&["-a", &protocol], &args[..], &["h::m/", "dst/"]].concat();
                let (rsync, sparsync) = (oracle::rsync(), oracle::under_test());
                for daemon in [rsync, sparsync] {
                    let [theirs, ours] = [rsync, sparsync]
                        .map(|client| scene.call_by(client, daemon, ("", module), &args));
                    assert_eq!(
                        (ours.trees, ours.code),
                        (theirs.trees, theirs.code),
                        "{module} {args:?}"
                    );
                }
            }
        }
    }
}

/// Clients protect the characters of a value from a shell, also of one that is a word of its own; not with `-s`.
#[test]
fn values_of_options_are_unescaped() {
    push(
        &[""],
        &[
            "-ab --backup-dir b*k src/ h::m/",
            "-ab --backup-dir b\\k[' src/ h::m/",
            "-ab --backup-dir=b\\k[' src/ h::m/",
            "-ab --old-args --backup-dir b*k src/ h::m/",
            "-abs --backup-dir b\\k[' src/ h::m/",
            "-abs --backup-dir=b\\k[' src/ h::m/",
            "-ab --suffix \\[' src/ h::m/",
            "-abs --suffix \\[' src/ h::m/",
            "-a --partial-dir p*k --delay-updates src/ h::m/",
        ],
    );
}

/// A client's rules for the absolute path see nothing above the module, nor do names of files of rules.
#[test]
fn absolute_paths_in_rules_begin_at_the_module() {
    let rules = [
        "-/_/a",
        "-/_/sub/d",
        "-/_sub/d",
        "-/_/d",
        "-/_**/mod/a",
        "-/_/m*/a",
        "-_/sub/d",
        ":_/rules",
        ":_rules",
        ":/_rules",
    ];
    let modules = [PLAIN, "use chroot = yes\nuid = 0\ngid = 0"];
    let cases = rules
        .iter()
        .flat_map(|rule| modules.map(|module| (*rule, module)));
    each(&cases.collect::<Vec<_>>(), |(rule, module)| {
        let scene = Modules::new();
        scene.file_with_mode("mod/rules", "- /a\n-/ /sub/deep/e\n", 0o644);
        scene.file_with_mode("mod/sub/rules", "- /d\n-/ /b?c\n", 0o644);
        let rule = format!("--filter={rule}");
        for from in ["h::m/", "h::m/sub/", "h::m/sub"] {
            scene.agree(("", module), &["-r", &rule, from, "dst/"]);
        }
    });
    // They protect from deletion.
    push(
        &["", "exclude = /k.bak"],
        &[
            "-r --delete --filter=P/_/sub/deep/e --filter=P/_/alt src/ h::m/",
            "-r --delete --filter=P/_/sub/deep --filter=P/_/alt src/sub h::m/",
            "-r --delete --filter=P_/sub/deep --filter=P/_/deep src/sub/ h::m/sub",
            "-r --delete --delete-excluded --filter=-!/_/alt/*** src/ h::m/",
        ],
    );
}

#[test]
fn trees_are_pushed() {
    push(
        &["", "numeric ids = no"],
        &[
            "-av src/ h::m/",
            "-av src/ h::m",
            "-aHi src h::m/new",
            "-r src/a src/n h::m/sub/",
            "-a src/n h::m/file",
            "-aR src/./sub/new h::m/sub",
            "-am --exclude=n src/ h::m/",
            "-aHA --no-inc-recursive --protocol=31 src/ h::m/",
            "-a --protocol=30 src/ h::m/",
            "-avn src/ h::m/",
            "-as src/ h::m/none/x",
            "-a --mkpath src/ h::m/none/x",
            "-a --mkpath src/ h::m/n/x/y/",
            "-acz src/n h::m/sub",
            "-r --list-only src/sub h::m/",
            "-a --usermap=5:bin --groupmap=*:games src/ h::m/",
            "-a --remove-source-files --dry-run src/ h::m/",
        ],
    );
}

#[test]
fn pushes_delete_at_each_time() {
    push(
        &["", "exclude = *.bak /alt", "ignore errors = yes"],
        &[
            "-ai --delete src/ h::m/",
            "-av --delete-before src/ h::m/",
            "-ai --delete-during src/ h::m/",
            "-ai --delete-delay src/ h::m/",
            "-ai --delete-after src/ h::m/",
            "-a --delete --max-delete=1 src/ h::m/",
            "-a --delete --delete-excluded --exclude=b* src/ h::m/",
            "-a --delete --filter=P_k.bak --filter=:_.rules src/ h::m/",
        ],
    );
}

#[test]
fn rules_of_a_module_forbid_entries() {
    push(
        &[
            "exclude = hid *.bak",
            "filter = - *.bak - /hid",
            "exclude = /sub",
            "exclude = *",
        ],
        &[
            "-rlt src/ h::m/",
            "-r src/n h::m/q.bak",
            "-r src/ h::m/hid",
            "-r --backup --backup-dir=hid src/ h::m/",
            "-r --temp-dir=hid src/ h::m/",
            "-r --link-dest=/hid src/ h::m/",
        ],
    );
    push(&["exclude = hid"], &["-rt --partial-dir=hid src/ h::m/"]);
    push(
        &[
            "exclude = hid *.bak",
            "filter = - *.bak - /hid",
            "exclude = /alt/n",
            "exclude = *",
        ],
        &[
            "-rltR --delete-missing-args src/./k.bak src/./hid/o src/./none.bak src/./q h::m/",
            "-rlt --no-implied-dirs -R --force --delete-missing-args src/./hid/o src/./alt h::m/",
        ],
    );
    // rsync writes below an excluded directory.
    let ours = Modules::to_push().call(
        oracle::under_test(),
        ("", &format!("{}\nexclude = hid", WRITABLE[0])),
        &["-r", "src/n", "h::m/hid/new"],
    );
    ours.exits(3)
        .prints("ERROR: daemon has excluded destination \"/hid/new\"");
    assert!(!ours.trees[1].contains("hid/new"), "{ours:?}");
}

#[test]
fn options_of_a_push_cannot_lead_to_excluded_entries() {
    needs_root();
    let push = |program: &Path, module: &str, option: &str| {
        let scene = Modules::to_push();
        scene.sh(
            "mkdir -p orig/sub/hid guess/hid; echo key > orig/sub/hid/pw; echo new > guess/e
            echo xxx > guess/pw; cp guess/pw guess/hid; ln -s sub/deep orig/deep; ln -s sub/hid orig/link",
        );
        let module = format!("{module}\nexclude = /sub/hid");
        let args = ["-rb", "--size-only", option, "guess/", "h::m/sub/deep/"];
        let seen = scene.call(program, ("", &module), &args);
        if program == oracle::under_test() {
            for name in ["pw", "hid/pw"] {
                let pushed = std::fs::read_to_string(scene.path("mod/sub/deep").join(name))
                    .unwrap_or_default();
                assert_ne!(pushed, "key\n", "{module} {option} {name}");
            }
            assert_eq!(
                std::fs::read_dir(scene.path("mod/sub/hid"))
                    .unwrap()
                    .count(),
                1,
                "{module} {option}"
            );
        }
        seen
    };
    let options = [
        "--copy-dest",
        "--clone-dest",
        "--link-dest",
        "--compare-dest",
        "--backup-dir",
        "--temp-dir",
    ];
    let paths = [
        "../hid",
        "../../sub/hid",
        "/sub/hid",
        "../hid/none",
        "..",
        "/sub",
        "../../deep/../hid",
        "/link",
    ];
    let cases: Vec<_> = options
        .iter()
        .flat_map(|option| paths.map(|path| format!("{option}={path}")))
        .collect();
    each(&cases, |option| {
        WRITABLE
            .iter()
            .for_each(|module| drop(push(oracle::under_test(), module, option)))
    });
    // Without chroot, rsync reads there.
    for option in ["--copy-dest=../hid", "--link-dest=../../sub/hid"] {
        let [theirs, ours] = [oracle::rsync(), oracle::under_test()]
            .map(|program| push(program, WRITABLE[0], option));
        ours.exits(1)
            .prints("Your options have been rejected by the server.");
        assert_eq!(format!("{ours:#?}"), format!("{theirs:#?}"));
    }
}

#[test]
fn parameters_change_a_push() {
    push(
        &[
            "incoming chmod = Dg+s,F600",
            "fake super = yes",
            "munge symlinks = yes",
            "munge symlinks = no",
            "timeout = 60",
            "write only = yes",
            "read only = yes",
            "max verbosity = 0",
            "max connections = 1\nlock file = TOP/lock",
            "insecure links = yes",
            "refuse options = delete",
            "refuse options = times",
        ],
        &["-av --delete src/ h::m/", "-aH -M--fake-super src/ h::m/"],
    );
    push(&["temp dir = /alt", "temp dir = none"], &["-a src/ h::m/"]);
    let scene = Modules::to_push();
    scene
        .agree(
            ("", &format!("{}\nincoming chmod = F600", WRITABLE[0])),
            &["-rp", "src/", "h::m/"],
        )
        .exits(0);
    let ours = scene.call(
        oracle::under_test(),
        ("", "read only = no"),
        &["-a", "src/n", "h::m/"],
    );
    ours.exits(23)
        .logs("rsync: [receiver] mkstemp \"/.n.")
        .prints("(in m) failed: Permission denied (13)");
}

#[test]
fn incoming_chmod_changes_existing_modes_and_those_of_the_umask() {
    push(
        &[
            "incoming chmod = D2775,F660",
            "incoming chmod = u+s,g+wX",
            "incoming chmod = o=,F+x",
            "incoming chmod = D=,Fa-x",
        ],
        &[
            "-rlti src/ h::m/",
            "-rltDEii src/ h::m/",
            "-rltDOni src/ h::m/",
            "-rltAi --inplace src/ h::m/",
            "-rltpi src/ h::m/",
        ],
    );
    // A mode that is right already, and one that is changed although nothing is printed about it.
    let scene = Modules::to_push();
    scene.sh("rm -r src orig; mkdir src orig; touch -d 2020-01-01 src/x src/y orig/x orig/y");
    scene.sh("chmod 2775 orig; chmod 660 orig/x; chmod 644 orig/y; touch -r orig src");
    let module = format!("{}\nincoming chmod = D2775,F660", WRITABLE[1]);
    let seen = scene.agree(("", &module), &["-rti", "src/", "h::m/"]);
    let modes: Vec<_> = seen.trees[1]
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    assert_eq!((seen.stdout.len(), &modes[..]), (0, &["660", "660"][..]));
}

/// The module is opened before the process takes on the module's user.
#[test]
fn modules_below_a_directory_that_their_user_cannot_search_are_served() {
    needs_root();
    let scene = Modules::new();
    scene.sh(
        "mkdir -p p/mod/sub p/mod/hid/in p/mod/a; cp mod/a p/mod/sub/f; cp mod/a p/mod/hid/in/f\n\
         echo '- /sub' >p/mod/rules; chown -R 65534:65534 p/mod; chmod 700 p; cp -a p p.orig",
    );
    for chroot in ["use chroot = no", ""] {
        for more in ["", "exclude = /hid/\nexclude from = TOP/p/mod/rules"] {
            let module = format!(
                "path = TOP/p/mod\nread only = no\nuid = 65534\ngid = 65534\n{chroot}\n{more}"
            );
            for args in [
                "-a h::m/ dst/",
                "-aR h::m/./sub/f h::m/hid/in dst/",
                "-rti --mkpath mod/a h::m/x/y/",
                "-rti mod/a h::m/hid/in/",
                "-rtib --delete --backup-dir=old mod/sub/ h::m/a/",
            ] {
                let args: Vec<_> = args.split(' ').collect();
                scene.sh("rm -rf p; cp -a p.orig p");
                let theirs = scene.call(oracle::rsync(), ("", &module), &args);
                scene.sh("rm -rf p; cp -a p.orig p");
                let ours = scene.call(oracle::under_test(), ("", &module), &args);
                assert_eq!(
                    format!("{ours:#?}"),
                    format!("{theirs:#?}"),
                    "{module} {args:?}"
                );
            }
        }
    }
}

/// The user of a module decides whether devices can be created, with chroot or without.
#[test]
fn devices_are_created_by_a_module_of_root() {
    needs_root();
    let scene = Modules::to_push();
    scene.sh("mknod src/null c 1 3; mknod src/loop b 7 0; mkfifo src/fifo; chmod 777 orig");
    for module in [
        WRITABLE[0],
        WRITABLE[1],
        "read only = no\nuid = 65534\ngid = 65534",
        "read only = no\nuid = 65534\ngid = 65534\nuse chroot = no",
    ] {
        for more in ["", "insecure links = yes", "fake super = yes"] {
            let module = format!("{module}\n{more}");
            let args = ["-rlD", "src/null", "src/loop", "src/fifo", "h::m/"];
            let seen = scene.agree_in_any_order(("", &module), &args);
            let is_made = seen.trees[1].contains("null c ");
            let is_root = module.contains("uid = 0") && more != "fake super = yes";
            assert_eq!(is_made, is_root, "{module}: {seen:#?}");
        }
    }
}

#[test]
fn options_of_a_push_name_paths_in_the_module() {
    push(
        &[""],
        &[
            "-rt --backup src/ h::m/",
            "-rt --backup --backup-dir=old src/ h::m/sub",
            "-rt --backup --backup-dir=/old src/ h::m/sub",
            "-rt --backup --backup-dir=../../old src/ h::m/sub",
            "-rt --partial-dir=.p src/ h::m/",
            "-rt --partial-dir=/.p src/ h::m/",
            "-rt --temp-dir=sub src/ h::m/",
            "-rt --temp-dir=/none src/ h::m/",
            "-rt --temp-dir=../sub src/ h::m/alt",
            "-rtv --temp-dir=none src/ h::m/new",
            "-rt --compare-dest=none --compare-dest=../a --compare-dest=/none src/ h::m/sub",
            "-rtn --progress src/ h::m/new",
            "-rt --link-dest=/alt src/ h::m/to",
            "-rt --link-dest=../../alt src/ h::m/sub/deep",
            "-rt --copy-dest=../../../alt src/ h::m/sub/deep",
            "-rt --compare-dest=/sub/../alt src/ h::m/to",
            "-rt --delay-updates src/ h::m/",
            "-rt --files-from=src/x.bak src/ h::m/",
            "-rt --files-from=:/alt/x.bak src/ h::m/",
        ],
    );
}

#[test]
fn temporary_directories_climb_only_with_chroot() {
    needs_root();
    for (chroot, code) in [("yes", 0), ("no", 23)] {
        let scene = Modules::to_push();
        let module = format!("path = /\nread only = no\nuid = 0\ngid = 0\nuse chroot = {chroot}");
        let dest = format!("h::m{}/mod/sub/", scene.top().display());
        scene
            .agree_in_any_order(("", &module), &["-rt", "--temp-dir=../hid", "src/", &dest])
            .exits(code);
    }
}

#[test]
fn pushes_stay_in_the_module() {
    needs_root();
    let mut lines = Vec::new();
    for path in [
        "up/",
        "abs/",
        "up",
        "up/new",
        "up/secret",
        "../out/",
        "sub/../../out/x",
        "/etc/none",
    ] {
        lines.extend(["src/", "src/n"].map(|source| format!("-rtl {source} h::m/{path}")));
    }
    for options in [
        "-rtlK",
        "-rt --backup --backup-dir=up",
        "-rt --temp-dir=abs",
        "-rt --copy-dest=/abs",
        "-rt --clone-dest=/abs",
        "-rt -M--clone-dest=/abs",
    ] {
        lines.push(format!("{options} src/ h::m/"));
    }
    lines.push("-rtlK links/up h::m/".into());
    let cases: Vec<_> = lines
        .iter()
        .flat_map(|line| WRITABLE.map(|module| (line, module)))
        .collect();
    each(&cases, |(line, module)| {
        let scene = Modules::to_push();
        scene.sh("ln -s ../out orig/up; ln -s $PWD/out orig/abs
            mkdir links/up; echo new > links/up/secret; echo more > links/up/more");
        let args: Vec<_> = line.split(' ').collect();
        let ours = scene.call(oracle::under_test(), ("", module), &args);
        assert_eq!(
            std::fs::read_dir(scene.path("out")).unwrap().count(),
            1,
            "{module:?} {line}"
        );
        assert_eq!(
            std::fs::read_to_string(scene.path("out/secret")).unwrap(),
            "text of out/secret\n",
            "{line}"
        );
        if line.contains("--backup") {
            // Nothing may be replaced without its backup.
            ours.exits(11);
        }
        // rsync may also fail later, or treat the symlink as a directory.
        if line.starts_with("-rtl ") {
            let theirs = scene.call(oracle::rsync(), ("", module), &args);
            assert_eq!(
                (ours.code, &ours.trees),
                (theirs.code, &theirs.trees),
                "{module:?} {line}"
            );
        }
    });
    let ours = Modules::to_push().call(
        oracle::under_test(),
        ("", WRITABLE[1]),
        &["-rt", "--files-from=:/../out/secret", "src/", "h::m/"],
    );
    ours.logs("failed to open files-from file")
        .prints("failed to open files-from file");
}

#[test]
fn symlinks_of_a_push_cannot_lead_out() {
    push(
        &["munge symlinks = no"],
        &[
            "-rl links/ h::m/",
            "-rl links h::m/sub",
            "-rl --safe-links links h::m",
        ],
    );
}

#[test]
fn programs_learn_how_a_push_ended() {
    needs_root();
    for (module, args, status) in [
        ("", &["-a", "src/", "h::m/"][..], "0"),
        ("read only = yes", &["-a", "src/", "h::m/"], "256"),
        ("exclude = hid", &["-a", "src/", "h::m/"], "5888"),
    ] {
        let [theirs, ours] = [oracle::rsync(), oracle::under_test()].map(|program| {
            let scene = Modules::to_push();
            let post = "post-xfer exec = env | grep ^RSYNC_EXIT > TOP/new; env | grep ^RSYNC_RAW >> TOP/new; mv TOP/new TOP/post";
            scene.call(program, ("", &format!("{}\n{module}\n{post}", WRITABLE[1])), args);
            until(|| scene.path("post").exists());
            std::fs::read_to_string(scene.path("post")).unwrap()
        });
        assert_eq!(ours, theirs, "{module}");
        assert!(
            ours.contains(&format!("RSYNC_RAW_STATUS={status}\n")),
            "{module}: {ours}"
        );
    }
}

#[test]
fn programs_are_run() {
    let scene = Modules::new();
    let hook = "sh -c 'env | grep ^RSYNC_ | grep -v RSYNC_PID | grep -v CONNECT | sort; echo from hook; exit 3'";
    let args = ["-r", "h::m/a", "h::m/sub", "dst"];
    let more = [
        "-r", "h::m/a", "h::m/sub", "h::m", "h::m/", "h::m/./", "h::m/s*", "h::m/?", "dst",
    ];
    let both = [oracle::rsync(), oracle::under_test()].map(|program| {
        scene.file_with_mode(
            "hook",
            &format!("#!/bin/sh\n{}\n", &hook[7..hook.len() - 1]),
            0o755,
        );
        let mut seen = scene.call(
            program,
            ("", "use chroot = no\npre-xfer exec = TOP/hook"),
            &more,
        );
        seen.prints("pre-xfer exec returned failure (768)")
            .prints("RSYNC_REQUEST=m/a m/sub m/ m/ m/./")
            .prints("from hook");
        seen.stderr.retain(|line| line.starts_with("RSYNC_"));
        seen.stderr
    });
    assert_eq!(both[0], both[1]);
    scene
        .agree_but_for_the_log(("", "early exec = exit 1"), &args)
        .prints("@ERROR: early exec failed");
    scene
        .agree(("", "early exec = true\npre-xfer exec = true"), &args)
        .exits(0);
    scene.file_with_mode("input", "early words", 0o644);
    let module = "use chroot = no\nearly exec = cat > TOP/early; env | grep ^RSYNC_ | sort > TOP/vars\npost-xfer exec = env | grep ^RSYNC_ | sort > TOP/post";
    let posts = [oracle::rsync(), oracle::under_test()].map(|program| {
        let _ = std::fs::remove_file(scene.path("post"));
        scene
            .call(
                program,
                ("", module),
                &["-r", "--early-input=input", "h::m/a", "dst"],
            )
            .exits(0);
        assert_eq!(
            std::fs::read_to_string(scene.path("early")).unwrap(),
            "early words"
        );
        let is_written = || {
            std::fs::read_to_string(scene.path("post")).is_ok_and(|text| text.contains("USER_NAME"))
        };
        until(is_written);
        let text = ["vars", "post"]
            .map(|name| std::fs::read_to_string(scene.path(name)).unwrap())
            .concat();
        text.lines()
            .filter(|line| !line.contains("PID") && !line.contains("CONNECT"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    assert_eq!(posts[0], posts[1]);
    assert!(
        posts[1].contains(&"RSYNC_EXIT_STATUS=0".to_owned()),
        "{posts:?}"
    );
    let ours = scene.call(
        oracle::under_test(),
        (
            "",
            "pre-xfer exec = echo %RSYNC_MODULE_PATH%;exit 1\npath=TOP/a b",
        ),
        &args,
    );
    assert_ne!(ours.code, Some(0), "{ours:?}");
}

#[test]
fn variables_become_no_shell_syntax() {
    for (value, is_run) in [("a-b", true), ("a;b", false), ("$(id)", false), ("", true)] {
        let scene = Modules::new().env("RSYNC_X", value).env("OTHER", "o x");
        for hook in ["early exec", "pre-xfer exec", "post-xfer exec"] {
            let module = format!(
                "use chroot = no\n{hook} = echo %RSYNC_X% %RSYNC_MODULE_NAME% %RSYNC_REQUEST% %OTHER% > TOP/ran"
            );
            let [theirs, ours] = [oracle::rsync(), oracle::under_test()].map(|program| {
                let _ = std::fs::remove_file(scene.path("ran"));
                let seen = scene.call(program, ("", &module), &["-r", "h::m/a", "dst"]);
                if is_run {
                    until(|| std::fs::read(scene.path("ran")).is_ok_and(|text| !text.is_empty()));
                }
                let text = std::fs::read_to_string(scene.path("ran")).ok();
                (seen.code, text)
            });
            assert_eq!(ours, theirs, "{hook} {value}");
            assert_eq!(ours.0 == Some(0), is_run, "{hook} {value}: {ours:?}");
        }
    }
}

#[test]
fn transfers_are_logged() {
    needs_root();
    let scene = Modules::to_push();
    const ALL: &str = "%o|%n|%l|%c|%C|%h|%a|%m|%P|%u|%M|%U|%G|%f|%L|%12m|%-12a|%%|%z";
    for format in [
        "",
        &format!("log format = {ALL}"),
        "log format = %i %n%L",
        "log format = %n %B",
    ] {
        let module = format!("{PLAIN}\nread only = no\ntransfer logging = yes\n{format}");
        for args in [
            &["-aH", "src/", "h::m/"][..],
            &["-aHv", "src/", "h::m/new/"],
            &["-aHii", "src/", "h::m/"],
            &["-aHn", "--delete", "src/", "h::m/"],
            &["-aH", "h::m/", "dst/"],
            &["-aHvii", "h::m/sub", "h::m/a", "h::m/none", "dst/"],
            &["-aR", "h::m/sub/./deep/", "dst/"],
            &["-rn", "h::m/", "dst/"],
        ] {
            scene.agree_in_any_order(("", &module), args);
        }
    }
    let module = format!("{PLAIN}\nread only = no\ntransfer logging = yes");
    scene
        .agree_in_any_order(("", &module), &["-a", "--delete", "src/", "h::m/"])
        .logs("del. localhost [127.0.0.1] m () ");
    scene.agree_in_any_order(
        ("", "transfer logging = yes\nlog format = %P %f"),
        &["-a", "h::m/sub", "dst/"],
    );
}

#[test]
fn log_format_of_the_command_line_replaces_the_configured_ones() {
    for options in ["--log-file-format=%o:%f", "--log-file-format="] {
        let scene = Modules {
            daemon_options: options,
            ..Modules::new()
        };
        for module in ["", "transfer logging = yes\nlog format = %f %l"] {
            scene.agree_in_any_order(("log format = %f", module), &["-a", "h::m/sub", "dst/"]);
        }
    }
}

#[test]
fn unreadable_entries_are_ignored() {
    needs_root();
    let scene = Modules::new();
    scene.sh(
        "cd mod; mkdir private unlisted readable; for d in . private unlisted readable; do echo x > $d/no; done
        chmod 600 no readable/no; chmod 700 private; chmod 711 unlisted; mkfifo -m 600 fifo; echo w > w; chmod 222 w
        ln -s no to-no; ln no readable/linked; mkdir searched; echo s > searched/s",
    );
    let module = "use chroot = no\nuid = 1\ngid = 1\nignore nonreadable = yes";
    for (args, code) in [
        (&["-ai", "h::m/", "dst/"][..], 0),
        (
            &["-aiL", "--exclude=up", "--exclude=abs", "h::m/", "dst/"],
            0,
        ),
        (&["-aiR", "h::m/readable", "h::m/no", "dst/"], 23),
        (&["h::m/"], 0),
    ] {
        scene.agree(("", module), args).exits(code);
    }
    let seen = scene.call(oracle::under_test(), ("", module), &["-r", "h::m/", "dst/"]);
    assert!(
        !seen.trees[0].contains("no") && seen.trees[0].contains("searched/s"),
        "{seen:#?}"
    );
}

/// A name converter: `u7` is the user 7 and `g7` the group 7. It logs its arguments and the queries.
const CONVERTER: &str = r#"#!/bin/sh
echo "$* $RSYNC_MODULE_NAME $RSYNC_ARG1" >> TOP/queries
while read -r kind value; do
    echo "$kind $value" >> TOP/queries
    case $kind:$value in
    uid:*) echo "u$value" ;;
    gid:*) echo "g$value" ;;
    usr:u[0-9]* | grp:g[0-9]*) echo "${value#?}" ;;
    usr:dies) exit 1 ;;
    *) echo ;;
    esac
done
"#;

#[test]
fn names_are_converted_by_a_program() {
    needs_root();
    let scene = Modules::to_push();
    scene.file_with_mode(
        "convert",
        &CONVERTER.replace("TOP", scene.top().to_str().unwrap()),
        0o755,
    );
    for chroot in ["yes", "no"] {
        let module = format!(
            "use chroot = {chroot}\nuid = 0\ngid = 0\nread only = no\nname converter = 'TOP/convert' %HOME%"
        );
        for args in [
            // The client knows no such name.
            &["-a", "h::m/", "dst/"][..],
            &[
                "-a",
                "--usermap=u5:1,*:2",
                "--groupmap=g7:3",
                "h::m/",
                "dst/",
            ],
            &["-a", "src/", "h::m/"],
            &[
                "-a",
                "--usermap=5:u8,*:u9",
                "--groupmap=*:g10",
                "src/",
                "h::m/",
            ],
            &["-a", "--chown=none:none", "src/", "h::m/"],
        ] {
            scene.agree(("", &module), args).exits(0);
        }
        let ours = scene.call(
            oracle::under_test(),
            ("", &format!("{module}\nnumeric ids = yes")),
            &["-a", "--usermap=u5:1", "h::m/", "dst/"],
        );
        assert!(ours.trees[0].contains("5:7"), "{ours:#?}");
        // A name cannot be another query.
        let _ = std::fs::remove_file(scene.path("queries"));
        scene.call(
            oracle::under_test(),
            ("", &module),
            &["-a", "--usermap=*:x\nuid 4242", "src/", "h::m/"],
        );
        let queries = std::fs::read_to_string(scene.path("queries")).unwrap();
        assert!(!queries.contains("uid 4242"), "{queries}");
        for map in ["*:dies", "*:u1,5:dies"] {
            let ours = scene.call(
                oracle::under_test(),
                ("", &module),
                &["-a", &format!("--usermap={map}"), "src/", "h::m/"],
            );
            assert_ne!(ours.code, Some(0), "{ours:#?}");
            ours.logs("Connection to name-converter failed.");
        }
    }
    let ours = scene.call(
        oracle::under_test(),
        ("", "name converter = TOP/none\nuse chroot = yes"),
        &["-a", "h::m/", "dst/"],
    );
    assert_ne!(ours.code, Some(0), "{ours:#?}");
    ours.logs("Connection to name-converter failed.");
}

#[test]
fn names_are_in_the_charset_of_a_module() {
    needs_root();
    let scene = Modules::new().env("LC_ALL", "C.UTF-8");
    scene.sh(
        r"rm -r mod/*; cd mod; mkdir $(printf 'd\366'); echo old > $(printf '\344'); echo long > $(printf 'd\366/\374')
        ln -s $(printf 'd\366/\374') $(printf 'l\337'); echo gone > $(printf 'gone\374'); echo plain > plain
        cd ..; mkdir -p src/dö; echo changed > src/ä; echo long > src/dö/ü; echo plain > src/plain; echo new > src/né
        ln -s dö/ü src/lß; echo $(printf '\303\244') > mod/list; touch -hd 2021-01-01 mod/* mod/d* src/* src/dö/* src mod; cp -a mod orig",
    );
    for chroot in ["yes", "no"] {
        let module = format!(
            "use chroot = {chroot}\nuid = 0\ngid = 0\nread only = no\ncharset = latin1\ntransfer logging = yes\nlog format = %n %f"
        );
        for args in [
            // The client's name for the character set does not matter.
            &["-ai", "--iconv=utf8,koi8-r", "h::m/", "dst/"][..],
            &["-ai", "--iconv=.", "h::m/", "dst/"],
            &["-ais", "--iconv=utf8", "h::m/dö", "h::m/nö", "dst/"],
            &["-ai", "--iconv=utf8", "h::m/dö", "dst/"],
            &["-ai", "h::m/", "dst/"],
            &[
                "-ais",
                "--iconv=utf8",
                "--files-from=:list",
                "h::m/",
                "dst/",
            ],
            &["--iconv=utf8", "h::m/"],
            &["-ai", "--delete", "--iconv=utf8", "src/", "h::m/"],
            &["-ai", "--iconv=utf8", "src/ä", "h::m/dö/"],
            &[
                "-ais",
                "--iconv=utf8",
                "-b",
                "--backup-dir=bä",
                "src/ä",
                "h::m/dö/",
            ],
        ] {
            scene.agree_in_any_order(("", &module), args);
        }
        let seen = scene.call(
            oracle::under_test(),
            ("", &module),
            &["-a", "--iconv=utf8", "h::m/", "dst/"],
        );
        assert!(
            seen.trees[0].contains("dö/ü f") && seen.trees[0].contains("lß l 777 6 dö/ü"),
            "{seen:#?}"
        );
        let seen = scene.call(
            oracle::under_test(),
            ("", &format!("{module}\ncharset = none-such")),
            &["h::m/"],
        );
        seen.exits(5)
            .prints("@ERROR: invalid charset")
            .logs("iconv_open(\"UTF-8\", \"none-such\") failed");
        let seen = scene.call(
            oracle::under_test(),
            ("", &format!("{module}\ncharset =")),
            &["--iconv=utf8", "h::m/"],
        );
        seen.exits(4).prints("configured to refuse --iconv");
    }
}

#[test]
fn configuration_is_checked() {
    let scene = Modules::new();
    let ours = scene.call(
        oracle::under_test(),
        ("bogus = 1\nread only = maybe", "port = 1"),
        &["h::"],
    );
    ours.exits(0)
        .logs("Unknown Parameter encountered: \"bogus\" (line 2 of ")
        .logs("IGNORING unknown parameter \"bogus\"");
    ours.logs("Badly formed boolean in configuration file: \"maybe\". (line 3 of ");
    ours.logs("Global parameter port found in module section! (line 6 of ");
}

#[test]
fn command_lines_of_a_daemon_are_checked() {
    let scene = Modules::new();
    let config = format!(
        "--config={}",
        scene.config("pid file = TOP/pid", "").display()
    );
    let see = |program: &Path, args: &[&str]| {
        let mut daemon = Command::new(program);
        let output = daemon
            .args(["--daemon", "--no-detach", &config])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stderr).replace("sparsync --daemon", "rsync --daemon");
        (output.status.code(), lines(text.as_bytes()))
    };
    for option in [
        "--bwlimit=x",
        "--bwlimit=1.5m",
        "--dparam=foo=1",
        "--dparam=foo",
        "-Mfoo bar = x",
    ] {
        let seen = see(oracle::under_test(), &[option]);
        assert_eq!(seen, see(oracle::rsync(), &[option]));
        assert_eq!(seen.0, Some(1));
    }
    // The pid file is that of another daemon.
    let daemon = scene.listen(("pid file = TOP/pid", ""));
    let seen = see(oracle::under_test(), &["--port=0", "--address=127.0.0.1"]);
    assert_eq!(seen.0, Some(11), "{seen:?}");
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    assert!(
        log.ends_with(&format!("] {}\n", seen.1[0]))
            && seen.1[0].starts_with("failed to lock pid file "),
        "{log}"
    );
    drop(daemon);
}

/// The cause is logged. Clients, for which standard error may be the connection, do not learn it.
#[test]
fn errors_of_the_configuration_are_logged() {
    let scene = Modules::new();
    for (globals, words, is_ours) in [
        ("[m", "Badly formed line in config file: m", false),
        ("&foo x", "Unknown directive: &foo.", false),
        (
            "[a/b]",
            "invalid section name in configuration file: a/b",
            false,
        ),
        ("&include TOP/none", "unable to stat config file", false),
        (
            "incoming chmod = x",
            "invalid value of \"incoming chmod\", expected modes as for --chmod: x",
            true,
        ),
        (
            "outgoing chmod = D755,F%q",
            "invalid value of \"outgoing chmod\", expected modes as for --chmod: D755,F%q",
            true,
        ),
    ] {
        for program in [oracle::rsync(), oracle::under_test()]
            .into_iter()
            .skip(is_ours.into())
        {
            let seen = scene.call(program, (globals, ""), &["h::"]);
            seen.logs(words)
                .logs("rsync error: syntax or usage error (code 1)");
            // The end of the connection can be a reset, which has another exit code.
            assert_ne!(seen.code, Some(0), "{seen:#?}");
            assert!(
                !format!("{:?}", (&seen.stdout, &seen.stderr)).contains(words),
                "{seen:#?}"
            );
        }
        std::fs::remove_file(scene.path("log")).unwrap();
        let config = format!("--config={}", scene.path("rsyncd.conf").display());
        let mut daemon = Command::new(oracle::under_test());
        let output = daemon
            .args(["--daemon", "--no-detach", "--port=0", &config])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        scene
            .seen(&output)
            .exits(1)
            .prints(words)
            .prints("(line 2 of ")
            .logs(words)
            .logs("(line 2 of ");
    }
}

/// rsync ignores it, which could make files accessible to more users than the module permits.
#[test]
fn invalid_chmod_with_a_variable_refuses_the_session() {
    let scene = Modules::new();
    scene.sh("chmod 666 out/secret; cp -a mod orig");
    let module = format!(
        "{PLAIN}\nread only = no\nincoming chmod = o-rwx,%HOME%\noutgoing chmod = o-rwx,%HOME%"
    );
    let before = scene.call(oracle::rsync(), ("", &module), &["h::"]).trees;
    for args in [["-rp", "h::m/a", "dst/"], ["-rp", "out/secret", "h::m/x"]] {
        let seen = scene.call(oracle::rsync(), ("", &module), &args);
        seen.exits(0).logs("chmod\" directive: o-rwx,");
        for client in [oracle::rsync(), oracle::under_test()] {
            let ours = scene.call_by(client, oracle::under_test(), ("", &module), &args);
            ours.logs("chmod\" directive: o-rwx,")
                .prints("ERROR: module has an invalid \"")
                .prints(" chmod\"");
            assert_ne!(ours.code, Some(0), "{ours:#?}");
            assert_eq!(ours.trees, before, "{ours:#?}");
        }
    }
    let scene = Modules {
        daemon_options: "--dparam=outgoingchmod=zzz",
        ..scene
    };
    let ours = scene.call(
        oracle::under_test(),
        ("", PLAIN),
        &["-rp", "h::m/a", "dst/"],
    );
    assert_ne!(ours.code, Some(0), "{ours:#?}");
    assert_eq!(ours.trees, before, "{ours:#?}");
}

/// Texts apply to earlier modules that do not set them, other values do not.
#[test]
fn later_globals_apply_to_modules() {
    let scene = Modules::new();
    let get = ["-r", "h::m/a", "dst"];
    for (later, code) in [
        ("hosts deny = *", 5),
        ("hosts allow = 10.0.0.1", 5),
        ("auth users = joe", 5),
        ("refuse options = recursive", 10),
        ("exclude = a", 23),
        ("outgoing chmod = a-r", 0),
        ("comment = late", 0),
        ("read only = no", 0),
        ("write only = yes", 0),
        ("max connections = -1", 0),
        ("log format = %f", 0),
    ] {
        let config = |own: &str| {
            format!("uid = root\ngid = *\ntransfer logging = yes\n{own}\n[global]\n{later}")
        };
        let seen = scene.call(oracle::rsync(), ("", &config("")), &get);
        // The end of a connection can be a reset.
        assert!(
            seen.code == Some(code) || code == 10 && seen.code == Some(12),
            "{seen:#?}"
        );
        let ours = scene.call(oracle::under_test(), ("", &config("")), &get);
        assert_eq!(
            (&ours.trees, ours.code == Some(0)),
            (&seen.trees, seen.code == Some(0)),
            "{later}: {ours:#?}"
        );
        scene.agree(("", &config("")), &["h::"]);
        let name = later.split('=').next().unwrap();
        if !later.ends_with("yes") && !later.ends_with("no") && !later.ends_with("-1") {
            scene
                .agree(("", &config(&format!("{name} ="))), &get)
                .exits(0);
        }
    }
    let module = "uid = root\n[global]\npath = TOP/mod/sub\n[n]\n[o]\ncomment = x";
    scene.agree(("", module), &["-r", "h::n/", "dst"]).exits(0);
    scene.file_with_mode(
        "inc",
        "comment = included\n[i]\npath = TOP\n[global]\nhosts deny = *\ncomment = end\n",
        0o644,
    );
    // What follows an included file is global again.
    scene
        .agree(("", "&include TOP/inc\ncomment = after\n[n]"), &["h::"])
        .prints("included");
    scene
        .agree(("", "&include = TOP/inc\nhosts deny = 127.0.0.1"), &get)
        .exits(5);
    scene
        .agree(("", "&include=TOP/inc\n[n]"), &["h::"])
        .prints("included");
    scene.agree(("", "&merge TOP/inc\ncomment = after\n[n]"), &["h::"]);
}

#[test]
fn every_parameter_of_the_manual_is_known() {
    let manual = Command::new("man")
        .args(["-P", "cat", "rsyncd.conf"])
        .env("MANWIDTH", "200")
        .output();
    let Some(manual) = manual.ok().filter(|output| output.status.success()) else {
        skip("needs the manual of rsync")
    };
    let text = String::from_utf8_lossy(&manual.stdout).into_owned();
    let start = text.find("GLOBAL PARAMETERS").unwrap();
    let end = text.find("CONFIG DIRECTIVES").unwrap();
    let is_name = |line: &&str| {
        line.starts_with("       ") && line.as_bytes().get(7).is_some_and(u8::is_ascii_lowercase)
    };
    let names: Vec<_> = text[start..end]
        .lines()
        .filter(is_name)
        // A short name has its description on the same line.
        .flat_map(|line| {
            line.trim()
                .split("   ")
                .next()
                .unwrap()
                .split(", ")
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|name| name.len() < 30 && !name.contains('.'))
        .collect();
    assert!(names.len() > 50, "{names:?}");
    let scene = Modules::new();
    let lines: String = names.iter().map(|name| format!("{name} =\n")).collect();
    let seen = scene.call(oracle::under_test(), (&lines, ""), &["h::"]);
    let unknown: Vec<_> = seen
        .log
        .iter()
        .filter(|line| line.contains("Unknown Parameter"))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn daemon_listens_and_ends_at_a_signal() {
    let scene = Modules::new();
    let mut daemon = scene.listen(("pid file = TOP/pid", PLAIN));
    scene.get(&daemon, &["URL"]).exits(0).prints("m ");
    scene.get(&daemon, &["-a", "URLm/sub", "dst"]).exits(0);
    let pid = std::fs::read_to_string(scene.path("pid")).unwrap();
    assert_eq!(pid.trim(), daemon.process.id().to_string());
    // As rsync does, which a test cannot start without a fixed port.
    for (signal, code, words) in [
        (
            rustix::process::Signal::TERM,
            0,
            "] sent 0 bytes  received 0 bytes  total size 0\n",
        ),
        (
            rustix::process::Signal::INT,
            20,
            "] rsync error: received SIGINT, SIGTERM, or SIGHUP (code 20)\n",
        ),
    ] {
        let pid = rustix::process::Pid::from_child(&daemon.process);
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(daemon.process.wait().unwrap().code(), Some(code));
        assert!(!scene.path("pid").exists());
        let log = std::fs::read_to_string(scene.path("log")).unwrap();
        assert!(log.ends_with(words), "{log}");
        daemon = scene.listen(("pid file = TOP/pid", PLAIN));
    }
}

/// As in rsync, a symlink in place of the pid file is replaced, also if another user owns it.
#[test]
fn symlink_is_replaced_by_the_pid_file() {
    needs_root();
    let scene = Modules::new();
    scene.sh("ln -s other pid; chown -h 65534 pid");
    let daemon = scene.listen(("pid file = TOP/pid", PLAIN));
    let pid = std::fs::read_to_string(scene.path("pid")).unwrap();
    assert_eq!(pid, format!("{}\n", daemon.process.id()));
    assert!(!scene.path("pid").is_symlink() && !scene.path("other").exists());
}

#[test]
fn missing_proxy_hosts_are_logged() {
    let scene = Modules::new();
    let _daemon = scene.listen(("proxy protocol = yes", ""));
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    assert!(
        log.contains("\"proxy protocol hosts\" is unset: all connections will be rejected"),
        "{log}"
    );
}

#[test]
fn connections_share_the_memory_of_the_daemon() {
    let scene = Modules::new();
    let daemon = scene.listen(("", PLAIN));
    let _client = daemon.connect();
    let kib = |name: &str| memory_kib(daemon.connections()[0], name);
    assert!(kib("Private_Dirty:") * 2 < kib("Anonymous:"));
}

/// Returns a value of the memory of a process.
fn memory_kib(process: i32, name: &str) -> u64 {
    let memory = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let line = memory.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn half_open_connections_take_little() {
    /// The most memory of each, in KiB.
    const EACH_MAX_KIB: u64 = 400;
    let scene = Modules::new();
    let daemon = scene.listen(("", PLAIN));
    let held: Vec<_> = (0..200)
        .map(|index| {
            let mut stream = TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
            stream
                .write_all([&b""[..], b"@RSYN", b"@RSYNCD: 31.0\n"][index % 3])
                .unwrap();
            stream
        })
        .collect();
    until(|| daemon.connections().len() == held.len());
    // Each has sent its greeting when it waits.
    held.iter()
        .for_each(|stream| assert_eq!((&*stream).read(&mut [0]).unwrap(), 1));
    let kib: u64 = daemon
        .connections()
        .iter()
        .map(|&process| memory_kib(process, "Pss_Anon:"))
        .sum();
    assert!(kib < held.len() as u64 * EACH_MAX_KIB, "{kib} KiB");
    scene.get(&daemon, &["-a", "URLm/a", "dst"]).exits(0);
    drop(held);
    until(|| daemon.connections().is_empty());
}

#[test]
fn session_with_a_slow_client_takes_little() {
    /// The most memory of its own, in KiB. Before the output of a sender was bounded, it was 3,600.
    const MAX_KIB: u64 = 1600;
    let scene = Modules::new();
    std::fs::File::create(scene.path("mod/large"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let daemon = scene.listen(("", PLAIN));
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rsync://{}/m/large", between.local_addr().unwrap());
    let mut client = Command::new(oracle::rsync())
        .arg(url)
        .arg(scene.path("dst"))
        .spawn()
        .unwrap();
    let near = between.accept().unwrap().0;
    let far = TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
    let (mut from, mut into) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let requests = std::thread::spawn(move || std::io::copy(&mut from, &mut into));
    // From then on, the daemon can send no more than the sockets hold. Its buffers are full when it has nothing to do.
    std::io::copy(&mut (&far).take(1 << 20), &mut &near).unwrap();
    let session = daemon.connections()[0];
    until_idle(session.try_into().unwrap());
    let kib = memory_kib(session, "Pss_Anon:");
    assert!(kib < MAX_KIB, "{kib} KiB");
    client.kill().unwrap();
    client.wait().unwrap();
    near.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = requests.join().unwrap();
}

#[test]
fn connections_end_at_a_signal_and_leave_the_daemon() {
    let scene = Modules::new();
    let daemon = scene.listen(("pid file = TOP/pid", PLAIN));
    let mut client = daemon.connect();
    let pid = rustix::process::Pid::from_raw(daemon.connections()[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(client.read_line(&mut String::new()).unwrap(), 0);
    until(|| daemon.connections().is_empty());
    assert!(scene.path("pid").exists());
    scene.get(&daemon, &["-a", "URLm/a", "dst"]).exits(0);
}

#[test]
fn connections_with_a_program_for_their_end_end_at_a_signal() {
    let scene = Modules::new();
    let post =
        "use chroot = no\npost-xfer exec = echo $RSYNC_EXIT_STATUS > TOP/new; mv TOP/new TOP/post";
    let daemon = scene.listen(("", post));
    let mut client = daemon.request(b"@RSYNCD: 31.0\nm\n");
    let pid = rustix::process::Pid::from_raw(daemon.connections()[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let _ = client.read_to_end(&mut Vec::new()).unwrap();
    until(|| scene.path("post").exists() && daemon.connections().is_empty());
}

#[test]
fn server_status_shows_daemons() {
    let scene = Modules::new();
    let status = |json: bool| {
        let mut command = Command::new(oracle::under_test());
        command
            .args(["server", "status"])
            .args(json.then_some("--json"))
            .env("SPARSYNC_CONFIG_DIR", scene.path("sparsync"));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let daemons = [(); 2].map(|()| scene.listen(("", PLAIN)));
    let _client = daemons[0].connect();
    let shown = |daemon: &Daemon, counts: &str| {
        let (pid, port) = (daemon.process.id(), daemon.port);
        format!("daemon for rsync clients: process {pid}, 127.0.0.1:{port}, up 0 s, {counts}\n")
    };
    let is_shown = |line: &str| {
        status(false)
            .replace(|c: char| c.is_ascii_digit(), "#")
            .contains(&line.replace(|c: char| c.is_ascii_digit(), "#"))
    };
    let text = status(false);
    assert!(
        is_shown(&format!(
            "{}  127.0.0.1, 0 s\n",
            shown(&daemons[0], "1 connected, 1 in total")
        )),
        "{text}"
    );
    assert!(
        text.contains(&format!("127.0.0.1:{}, up ", daemons[1].port)),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&status(true)).unwrap();
    assert_eq!(json["daemons"].as_array().unwrap().len(), 2, "{json}");
    // One ends, and the other one is killed.
    let [first, second] = daemons;
    let mut first = first;
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&first.process),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    first.process.wait().unwrap();
    assert!(status(false).contains(&format!("127.0.0.1:{}, up ", second.port)));
    drop(second);
    assert!(!status(false).contains("daemon for"), "{}", status(false));
    assert_eq!(
        std::fs::read_dir(scene.path("sparsync/state"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn daemon_forgets_connections_if_its_parent_ignored_their_signal() {
    let scene = Modules::new();
    let mut ignoring = Command::new("env");
    ignoring
        .arg("--ignore-signal=CHLD")
        .arg(oracle::under_test());
    scene.config("", PLAIN);
    let daemon = scene.daemon_by(ignoring, &[]);
    drop(daemon.connect());
    let mut status = Command::new(oracle::under_test());
    status
        .args(["server", "status"])
        .env("SPARSYNC_CONFIG_DIR", scene.path("sparsync"));
    until(|| {
        String::from_utf8_lossy(&status.output().unwrap().stdout)
            .contains("0 connected, 1 in total")
    });
}

#[test]
fn whole_conversation_can_come_at_once() {
    let scene = Modules::new();
    let daemon = scene.listen(("", PLAIN));
    let mut client = daemon.connect();
    let words = b"@RSYNCD: 30.0\nm\n--server\0--sender\0-e.Lsf\0.\0m/b c\0\0";
    // A frame without filter rules. The list of files follows.
    client
        .get_mut()
        .write_all(&[&words[..], b"\x04\0\0\x07\0\0\0\0"].concat())
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"b c") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
}

#[test]
fn busy_port_is_an_error() {
    let scene = Modules::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = scene.config("", "");
    let output = Command::new(oracle::under_test())
        .args([
            "--daemon",
            "--no-detach",
            "--address=127.0.0.1",
            &format!("--config={}", config.display()),
        ])
        .arg(format!("--port={}", other.local_addr().unwrap().port()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(10));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("Address already in use (98)"),
        "{output:?}"
    );
}

#[test]
fn half_open_connections_do_not_stop_others() {
    let scene = Modules::new();
    let daemon = scene.listen(("", PLAIN));
    // A session whose client has sent more than its request, here an empty list of rules, is not half-open.
    let words = b"@RSYNCD: 30.0\nm\n--server\0--sender\0-e.Lsf\0.\0m/a\0\0";
    let no_rules = [4, 0, 0, 7, 0, 0, 0, 0];
    let mut session = daemon.request(&[&words[..], &no_rules].concat());
    // The list begins with the flags of the protocol.
    session.read_exact(&mut [0]).unwrap();
    let held: Vec<_> = (0..300)
        .map(|index| {
            let mut stream = daemon.connect();
            let words = [
                &b""[..],
                b"@RSYN",
                b"@RSYNCD: 31.0\n",
                b"@RSYNCD: 31.0\nm\n--server\0",
                words,
            ][index % 5];
            // An older one may be ended already.
            let _ = stream.get_mut().write_all(words);
            stream
        })
        .collect();
    // Each of the last ones has ended one of the first.
    until(|| daemon.connections().len() == 1 + 256);
    scene.get(&daemon, &["-a", "URLm/a", "dst"]).exits(0);
    let is_closed = |stream: &BufReader<TcpStream>| {
        stream.get_ref().set_nonblocking(true).unwrap();
        let mut bytes = [0; 100];
        loop {
            match stream.get_ref().read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    };
    // Its process may still run.
    until(|| is_closed(&held[44]));
    let closed: Vec<_> = held.iter().map(is_closed).collect();
    assert_eq!(
        closed.iter().position(|closed| !closed),
        Some(45),
        "{closed:?}"
    );
    assert!(!closed[45..].contains(&true), "{closed:?}");
    assert!(!is_closed(&session));
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    assert_eq!(
        log.matches("from 127.0.0.1: 256 others have sent no request")
            .count(),
        45
    );
}

#[test]
fn half_open_connections_of_an_address_end_only_each_other() {
    let scene = Modules::new();
    let daemon = scene.listen(("", PLAIN));
    let mut slow: Vec<_> = (2..5)
        .map(|last| daemon.connect_from(Ipv4Addr::new(127, 0, 0, last)))
        .collect();
    let _held: Vec<_> = (0..300).map(|_| daemon.connect()).collect();
    until(|| daemon.connections().len() == 256);
    for stream in &mut slow {
        stream.get_mut().write_all(b"@RSYNCD: 31.0\nm\n").unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "@RSYNCD: OK\n");
    }
    let log = std::fs::read_to_string(scene.path("log")).unwrap();
    assert_eq!(
        log.matches("from 127.0.0.1: 256 others have sent no request")
            .count(),
        47
    );
}

#[test]
fn max_connections_are_counted() {
    let scene = Modules::new();
    let daemon = scene.listen((
        "",
        "use chroot = no\nmax connections = 1\nlock file = TOP/lock",
    ));
    let first = daemon.request(b"@RSYNCD: 31.0\nm\n");
    scene
        .get(&daemon, &["URLm/a", "dst"])
        .exits(5)
        .prints("max connections (1) reached -- try again later");
    drop(first);
    until(|| scene.get(&daemon, &["URLm/a", "dst"]).code == Some(0));
}

#[test]
fn proxies_name_the_client() {
    let scene = Modules::new();
    let config = (
        "proxy protocol = yes\nproxy protocol hosts = 127.0.0.1\nreverse lookup = no",
        "hosts deny = 10.1.2.3",
    );
    let daemon = scene.listen(config);
    let answer = |header: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
        stream
            .write_all(&[header, b"@RSYNCD: 31.0\nm\n"].concat())
            .unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    };
    let binary = |address: [u8; 4]| {
        let head = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c";
        [&head[..], &address, &[1, 1, 1, 1, 0, 1, 0, 2]].concat()
    };
    let denied = "access denied to m from UNDETERMINED (10.1.2.3)";
    assert!(answer(b"PROXY TCP4 10.1.2.3 1.1.1.1 5 6\r\n").contains(denied));
    assert!(answer(&binary([10, 1, 2, 3])).contains(denied));
    assert!(answer(b"PROXY TCP4 10.1.2.4 1.1.1.1 5 6\r\n").contains("@RSYNCD: OK"));
    assert!(answer(b"PROXY UNKNOWN\r\n").contains("@RSYNCD: OK"));
    // A proxy that knows no address of TCP: of no family, UDP, a Unix socket, or a family that is not known here.
    for family in [0x00, 0x12, 0x22, 0x31, 0x32, 0x41] {
        let mut header = binary([10, 1, 2, 3]);
        header[13] = family;
        assert!(answer(&header).contains("@RSYNCD: OK"), "{family:x}");
    }
    for wrong in [
        &b""[..],
        b"PROXY TCP4 x 1.1.1.1 5 6\r\n",
        b"PROXY TCP6 10.1.2.4 1.1.1.1 5 6\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x08xxxxxxxx",
    ] {
        assert_eq!(answer(wrong), "", "{}", wrong.escape_ascii());
    }
}

#[test]
fn sparsync_is_a_client_of_its_own_daemon() {
    let scene = Modules::new();
    scene.config("", PLAIN);
    let output = scene
        .program(oracle::under_test())
        .args(["-a", "h::m/", "dst/"])
        .env(
            "RSYNC_CONNECT_PROG",
            scene.daemon_command(oracle::under_test()),
        )
        .output()
        .unwrap();
    let seen = scene.seen(&output);
    seen.exits(0);
    assert_eq!(seen.trees[0], seen.trees[1]);
}

#[test]
fn daemon_runs_behind_a_remote_shell() {
    let scene = Modules::new();
    let config = scene.config("", PLAIN);
    let logs = [oracle::rsync(), oracle::under_test()].map(|program| {
        let (program, config) = (program.display(), config.display());
        scene.file_with_mode(
            "sh",
            &format!("#!/bin/sh\nshift\nshift\nexec {program} --config={config} \"$@\"\n"),
            0o755,
        );
        let _ = std::fs::remove_file(scene.path("log"));
        let output = scene
            .program(oracle::rsync())
            .args(["-a", "-e", "./sh", "h::m/sub", "dst/"])
            .env_remove("SSH_CONNECTION")
            .output()
            .unwrap();
        let seen = scene.seen(&output);
        seen.exits(0).logs("rsync on m/sub from");
        seen.log
    });
    assert_eq!(logs[1], logs[0]);
}
