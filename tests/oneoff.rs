//! QUIC to a host that is not enrolled: the remote side of a shell opens an ephemeral server for one run.

use crate::kit::{self, World, noise, oracle, synctest, until};
use crate::kit::{Scene, assert_output, field_of};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Writes a remote shell to this machine, with the variables that sshd sets. It runs `first` before the command and
/// writes its process ID to the file `pid`.
fn shell(scene: &Scene, first: &str) {
    let top = scene.path("");
    scene.script(
        "far",
        &format!(
            "#!/bin/sh\n[ \"$1\" = -l ] && shift 2\nshift\nexport SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\n{first}\n\
             echo $$ > {}pid\nexec $*\n",
            top.display()
        ),
    );
}

fn met() -> Scene {
    let scene = Scene::new();
    shell(&scene, "");
    scene
}

/// Returns the command of a copy over QUIC through that shell.
fn command(scene: &Scene, words: &str) -> Command {
    let program = oracle::under_test().display();
    scene.command(
        "client",
        &format!("--transport=quic -e TOP/far --rsync-path={program} {words}"),
    )
}

fn copy(scene: &Scene, words: &str) -> Output {
    command(scene, words)
        .output()
        .expect("a program can be started")
}

synctest!(one_off_server_copies_in_both_directions, over ssh, |_: World| {
    let scene = Scene::new();
    let program = oracle::under_test().display();
    let copy = |words: &str, vars: &[(&str, &str)]| {
        let mut command = scene.command("client", &format!("--rsync-path={program} {words}"));
        command.env("RSYNC_RSH", kit::ssh()).env_remove("SSH_CONNECTION").envs(vars.iter().copied());
        command.output().expect("a program can be started")
    };
    let quic = "--transport=quic";
    let way = "using QUIC to ";
    assert_output(&copy(&format!("{quic} -ain src/ localhost:TOP/in/"), &[]), 0, &["<f+++++++++ new"]);
    assert!(!scene.path("in/new").exists());
    assert_output(&copy(&format!("{quic} -aivv src/ localhost:TOP/in/"), &[]), 0, &["<f+++++++++ new", way, "started for this run"]);
    assert_eq!(std::fs::read(scene.path("in/new")).unwrap(), b"what src/new holds\n");
    assert_output(&copy("-aivv localhost:TOP/in/ got/", &[("SPARSYNC_TRANSPORT", "quic")]), 0, &[">f+++++++++ f", way]);
    assert_eq!(std::fs::read(scene.path("got/f")).unwrap(), b"what in/f holds\n");
    std::fs::write(scene.path("in/kept"), "").unwrap();
    assert_output(&copy(&format!("{quic} -ai --delete --exclude=kept src/ localhost:TOP/in/"), &[]), 0, &["*deleting   f"]);
    assert!(scene.path("in/kept").exists() && !scene.path("in/f").exists());
    assert_output(&copy(&format!("{quic} -a localhost:TOP/no-such-file got/"), &[]), 23, &["No such file or directory (2)"]);
    assert_output(&copy(&format!("{quic} -a --no-such-option src/ localhost:TOP/in/"), &[]), 1, &["unknown option"]);
    assert!(!scene.path("client").exists(), "no key of this user is needed");
});

#[test]
fn login_noise_before_the_session_is_shown() {
    let scene = met();
    shell(&scene, "echo Welcome");
    assert_output(&copy(&scene, "-a src/ far:TOP/in/"), 0, &["Welcome"]);
    assert!(scene.path("in/new").exists());
}

#[test]
fn unusable_remote_host_has_a_clear_error() {
    let scene = met();
    let line = |path: &str| {
        scene.command(
            "client",
            &format!("--transport=quic -e TOP/far {path} -a src/ far:TOP/in/"),
        )
    };
    let rsync = format!("--rsync-path={}", oracle::rsync().display());
    assert_output(
        &line(&rsync).output().unwrap(),
        5,
        &[
            "on far: it has rsync but no sparsync",
            "sparsync enroll --install far",
        ],
    );
    shell(&scene, "PATH=/none");
    assert_output(
        &line("").output().unwrap(),
        127,
        &[
            "on far: sparsync not found",
            "sparsync enroll --install far",
        ],
    );
    shell(&scene, "export SSH_ORIGINAL_COMMAND=fixed");
    assert_output(&copy(&scene, "-a src/ far:TOP/in/"), 5, &["forced command"]);
    shell(&scene, "echo no >&2; exit 255");
    assert_output(
        &copy(&scene, "-a src/ far:TOP/in/"),
        255,
        &["no\n", "connection unexpectedly closed"],
    );
    assert!(!scene.path("in/new").exists());
}

/// A forced command or a restricted shell may remove the variables that would give it away. The shell of this test has
/// the name of sshd, as the ancestor of a login has.
#[test]
fn a_login_that_hides_its_restrictions_is_refused() {
    let scene = Scene::new();
    let sshd = |vars: &str, script: &str| {
        let given = "export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'; unset SSH_ORIGINAL_COMMAND";
        // Not the last command, so that the shell stays the parent.
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = -l ] && shift 2\nshift\n{given}\n{vars}\n{script}\nexit $?\n"
        );
        scene.script("sshd", &text);
        let program = oracle::under_test().display();
        let line =
            format!("--transport=quic -e TOP/sshd --rsync-path={program} -a src/ far:TOP/in/");
        scene
            .command("client", &line)
            .output()
            .expect("a program can be started")
    };
    let hint = "hint: omit --transport=quic to copy over ssh, or enroll the host";
    for script in [
        "env -u SSH_CONNECTION $*",
        "env -i $*",
        "(unset SSH_CONNECTION; exec $*)",
    ] {
        assert_output(
            &sshd("", script),
            5,
            &["the login hides SSH_CONNECTION", hint],
        );
    }
    // The shell between sshd and this program still has what it removed.
    let wrapped = "sh -c 'unset SSH_ORIGINAL_COMMAND; \"$@\"; exit $?' sh $*";
    assert_output(
        &sshd("export SSH_ORIGINAL_COMMAND=fixed", wrapped),
        5,
        &["the login has a forced command", hint],
    );
    assert!(!scene.path("in/new").exists());
    assert_output(&sshd("", "sh -c '\"$@\"; exit $?' sh $*"), 0, &[]);
    assert!(scene.path("in/new").exists());
}

/// Encodes the magic and the greeting of a server.
fn greeting() -> Vec<u8> {
    let magic = [0xd5, 0xff, 0xa9, 0x00, 0xf1, 0x8e, 0xfe, 0x01];
    [
        &magic[..],
        &[31, 0, 1, 0, 1, 0],
        &[0; 8],
        &[7; 16],
        &[0, 0, 0],
    ]
    .concat()
}

/// Encodes a `Meet` message, which names the pin and the port of the session.
fn meet(pin: &[u8], port: u16) -> Vec<u8> {
    // A varint: seven bits in each byte, in as few bytes as possible.
    let port = match [port & 0x7f, port >> 7 & 0x7f, port >> 14].map(|bits| bits as u8) {
        [0, 0, 0] => vec![0],
        [low, middle, high] if high > 0 => vec![low | 0x80, middle | 0x80, high],
        _ => panic!("a port that the system chooses is higher"),
    };
    let body = [pin, &port, &[0]].concat();
    [&[22, body.len() as u8][..], &body].concat()
}

#[test]
fn remote_exit_before_the_session_has_a_clear_error() {
    let scene = met();
    let says = |bytes: &[u8]| {
        std::fs::write(scene.path("said"), bytes).unwrap();
        shell(
            &scene,
            &format!(
                "cat {}; head -c 1 >/dev/null; exit 0",
                scene.path("said").display()
            ),
        );
    };
    says(&greeting());
    assert_output(
        &copy(&scene, "-a src/ far:TOP/in/"),
        12,
        &["connection unexpectedly closed"],
    );
    let mute = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    says(
        &[
            greeting(),
            meet(&[3; 32], mute.local_addr().unwrap().port()),
        ]
        .concat(),
    );
    assert_output(
        &copy(&scene, "-a src/ 127.0.0.1:TOP/in/"),
        12,
        &["the remote shell ended too early"],
    );
}

#[test]
fn unreachable_port_is_reported() {
    let scene = met();
    // An unreachable address, and the remote side names no other.
    shell(&scene, "SSH_CONNECTION='192.0.2.1 1 192.0.2.1 22'");
    let words = [
        "cannot reach the QUIC server on",
        "(192.0.2.1 UDP port",
        "without --transport=quic the copy uses ssh",
    ];
    assert_output(&copy(&scene, "-a src/ 192.0.2.1:TOP/in/"), 10, &words);
    assert!(!scene.path("in/new").exists());
}

/// A remote side started by the test, with an open port for one client.
struct Far {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    pin: String,
    port: u16,
}

impl Far {
    fn open(scene: &Scene, client: &str) -> Far {
        Far::open_with(scene, client, &[])
    }

    /// Opens it with these variables of its environment.
    fn open_with(scene: &Scene, client: &str, env: &[(&str, &str)]) -> Far {
        let mut command = scene.command("far", "--server -logDtpre.iLsfxCIvuY . TOP/in/");
        command
            .envs(env.iter().copied())
            .env("SSH_CONNECTION", "127.0.0.1 1 127.0.0.1 22")
            .env_remove("SSH_ORIGINAL_COMMAND");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program can be started");
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut head = [0; 10];
        stdout.read_exact(&mut head).unwrap();
        let mut rest = vec![0; u16::from_le_bytes([head[8], head[9]]).into()];
        stdout.read_exact(&mut rest).unwrap();
        let pin = STANDARD_NO_PAD
            .decode(client.strip_prefix("SHA256:").unwrap())
            .unwrap();
        stdin
            .write_all(&[greeting(), meet(&pin, 0)].concat())
            .unwrap();
        let mut head = [0; 2];
        stdout.read_exact(&mut head).unwrap();
        assert_eq!(head[0], 22);
        let mut body = vec![0; head[1].into()];
        stdout.read_exact(&mut body).unwrap();
        let pin = format!("SHA256:{}", STANDARD_NO_PAD.encode(&body[..32]));
        let port = body[32..]
            .iter()
            .take(3)
            .enumerate()
            .map(|(at, byte)| u32::from(byte & 0x7f) << (7 * at))
            .sum::<u32>();
        assert!(
            body.ends_with(&[1, 4, 127, 0, 0, 1]),
            "it listens where it was reached: {body:?}"
        );
        Far {
            child,
            stdin: Some(stdin),
            stdout,
            pin,
            port: port.try_into().unwrap(),
        }
    }

    /// Returns a command that connects to the port with the key of `who`.
    fn visit(&self, scene: &Scene, who: &str) -> Command {
        scene.command(
            who,
            &format!("server pipe 127.0.0.1:{} {}", self.port, self.pin),
        )
    }

    /// Waits until the remote side ends by itself, and returns its exit code.
    fn ends(mut self) -> Option<i32> {
        self.stdout.read_to_end(&mut Vec::new()).unwrap();
        self.child.wait().unwrap().code()
    }
}

/// Returns the pin of the configuration `who`.
fn pin_of(scene: &Scene, who: &str) -> String {
    let grant = "server grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name x --json";
    field_of(
        &String::from_utf8(scene.command(who, grant).output().unwrap().stdout).unwrap(),
        "pin",
    )
}

#[test]
fn only_the_announced_client_is_admitted_and_only_once() {
    let scene = Scene::new();
    let far = Far::open(&scene, &pin_of(&scene, "client"));
    pin_of(&scene, "stranger");
    let refused = far.visit(&scene, "stranger").output().unwrap();
    assert_output(&refused, 5, &["this machine's key has no grant there"]);
    let mut client = far
        .visit(&scene, "client")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut magic = [0; 8];
    client
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut magic)
        .unwrap();
    assert_eq!(magic, greeting()[..8], "the client is served");
    let again = ["client", "stranger"].map(|who| {
        let mut again = far.visit(&scene, who);
        (
            who,
            again
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    });
    for (who, again) in again {
        let again = again.wait_with_output().unwrap();
        assert!(
            !again.status.success() && again.stdout.is_empty(),
            "{who}: {again:?}"
        );
    }
    drop(client.stdin.take());
    client.wait().unwrap();
    assert_eq!(far.ends(), Some(12), "no session was completed");
}

#[test]
fn remote_server_exits_if_its_shell_ends_first() {
    let scene = Scene::new();
    let mut far = Far::open(&scene, &pin_of(&scene, "client"));
    drop(far.stdin.take());
    assert_eq!(far.ends(), Some(12));
}

/// A server waits for half a minute, which lasts half a second here.
#[test]
fn remote_server_exits_if_its_client_does_not_come() {
    let scene = Scene::new();
    let shortened = [("SPARSYNC_MINUTE_SECS", "1")];
    let mut far = Far::open_with(&scene, &pin_of(&scene, "client"), &shortened);
    // Its remote shell goes on.
    let stdin = far.stdin.take();
    assert_eq!(far.ends(), Some(12));
    drop(stdin);
}

#[test]
fn session_beyond_the_command_line_is_rejected() {
    let scene = met();
    shell(
        &scene,
        "set -- $(echo \"$*\" | sed 's/ -logDtpre/ -lgDtpre/')",
    );
    assert_output(
        &copy(&scene, "-a src/ far:TOP/in/"),
        2,
        &["request rejected: -o"],
    );
    assert!(!scene.path("in/new").exists());
}

/// Starts a long copy in its own process group and waits until data arrives.
fn slow(scene: &Scene) -> Child {
    const BYTES: usize = 24 << 20;
    std::fs::write(scene.path("src/big"), noise(1, BYTES)).unwrap();
    let program = oracle::under_test();
    let mut command = Command::new(program);
    let path = |name: &str| scene.path(name).display().to_string();
    command
        .args([
            "-a",
            "--bwlimit=1m",
            "--transport=quic",
            "-e",
            &path("far"),
            "--rsync-path",
        ])
        .arg(program);
    command
        .args(["src/", &format!("far:{}", path("in/"))])
        .current_dir(scene.path(""))
        .process_group(0);
    command
        .env("LC_ALL", "C")
        .env("HOME", scene.path(""))
        .env("SPARSYNC_CONFIG_DIR", "client");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("a program can be started");
    let begun = || {
        let mut entries = std::fs::read_dir(scene.path("in")).unwrap().flatten();
        entries.any(|entry| {
            let is_it = entry.file_name().as_encoded_bytes().starts_with(b".big.");
            is_it && entry.metadata().is_ok_and(|meta| meta.len() > 0)
        })
    };
    until(begun);
    child
}

/// Waits until a copy and all processes that it started have ended, and returns the result: the remote side holds one
/// of the copy's streams. QUIC alone notices only after 100 s that a peer is gone.
#[track_caller]
fn outcome(child: Child) -> Output {
    const BEFORE_QUIC: Duration = Duration::from_secs(60);
    let (tx, ended) = channel();
    let pid = Pid::from_child(&child);
    std::thread::spawn(move || tx.send(child.wait_with_output()));
    let output = ended.recv_timeout(BEFORE_QUIC);
    if output.is_err() {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    output
        .expect("the QUIC idle timeout is not awaited")
        .expect("a child can be waited for")
}

/// Returns the new names in `in/`.
fn left(scene: &Scene) -> Vec<String> {
    let entries = std::fs::read_dir(scene.path("in")).unwrap().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.retain(|name| name != "f" && name != "new");
    names
}

#[test]
fn interrupted_client_leaves_no_process() {
    for to_all in [true, false] {
        let scene = met();
        let child = slow(&scene);
        let pid = Pid::from_child(&child);
        if to_all {
            kill_process_group(pid, Signal::INT)
        } else {
            kill_process(pid, Signal::INT)
        }
        .unwrap();
        assert_output(&outcome(child), 20, &["received SIGINT"]);
        assert_eq!(left(&scene), [""; 0]);
    }
}

#[test]
fn killed_client_leaves_no_process() {
    let scene = met();
    let child = slow(&scene);
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    assert_eq!(outcome(child).status.signal(), Some(9));
    assert_eq!(left(&scene), [""; 0]);
}

#[test]
fn killed_remote_server_ends_the_run() {
    let scene = met();
    let child = slow(&scene);
    let far = std::fs::read_to_string(scene.path("pid")).unwrap();
    kill_process(
        Pid::from_raw(far.trim().parse().unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    let words = [
        "connection unexpectedly closed",
        "the server that far started for this run has ended",
    ];
    assert_output(&outcome(child), 12, &words);
    // As over a remote shell, the next run removes what a killed remote side has left.
    let program = oracle::under_test().display().to_string();
    std::fs::write(scene.path("src/big"), "short").unwrap();
    assert_output(
        &scene
            .command(
                "client",
                &format!("-a -e TOP/far --rsync-path={program} src/ far:TOP/in/"),
            )
            .output()
            .unwrap(),
        0,
        &[],
    );
    assert_eq!(left(&scene), ["big"]);
}
