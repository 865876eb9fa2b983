//! Every message of our own, provoked and compared with the files in `own_messages/`; `SPARSYNC_BLESS=1` rewrites them.
//!
//! rsync's own words are compared with rsync elsewhere. What differs between runs is masked.

mod machine;
mod peers;

use crate::kit::Scene;
use crate::kit::{golden, oracle};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A key that no test has.
const STRANGER: &str = "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0";

/// A scene, and what the programs in it have printed.
struct Book {
    /// The name of the golden file.
    area: &'static str,
    scene: Scene,
    text: String,
    /// Pairs of a text that differs between runs and its name.
    masks: Vec<(String, &'static str)>,
}

impl Book {
    fn new(area: &'static str, title: &str) -> Book {
        let scene = Scene::new();
        let top = scene
            .path("")
            .to_str()
            .unwrap()
            .trim_end_matches('/')
            .to_owned();
        let program = oracle::under_test().display().to_string();
        let name =
            String::from_utf8(Command::new("uname").arg("-n").output().unwrap().stdout).unwrap();
        let name = name.trim();
        let masks = vec![
            (top, "TOP"),
            (program, "PROGRAM"),
            (format!(" on {name}:"), " on HOST:"),
            (format!("=user@{name}"), "=user@HOST"),
        ];
        Book {
            area,
            scene,
            text: format!("# {title}\n"),
            masks,
        }
    }

    /// The fingerprint of the client's key.
    fn pin(&self) -> String {
        let output = self
            .scene
            .command("client", "server pin")
            .output()
            .expect("a program can be started");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Lets all grants expire.
    fn expire(&self) {
        let path = self.scene.path("server/grants.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            text.replace("name = ", "expires = \"2020-01-01\"\nname = "),
        )
        .unwrap();
    }

    /// Masks this text from here on.
    fn mask(&mut self, text: String, name: &'static str) {
        self.masks.push((text, name));
    }

    /// Runs a command line of the client.
    fn client(&mut self, line: &str) {
        self.run("client", line, &[]);
    }

    /// Runs a command line of the server's user.
    fn server(&mut self, line: &str) {
        self.run("server", line, &[]);
    }

    fn run(&mut self, who: &str, line: &str, vars: &[(&str, &str)]) {
        let mut command = self.scene.command(who, line);
        let top = self.scene.path("");
        command.envs(
            vars.iter()
                .map(|(name, value)| (name, value.replace("TOP/", top.to_str().unwrap()))),
        );
        let vars: String = vars
            .iter()
            .map(|(name, value)| format!("{name}={value} "))
            .collect();
        self.try_out(&format!("{vars}sparsync {line}"), &mut command);
    }

    /// Runs a command and notes its output under this title.
    fn try_out(&mut self, title: &str, command: &mut Command) {
        let output = command
            .env("USER", "user")
            .stdin(Stdio::null())
            .output()
            .expect("a program can be started");
        self.note(title, &output);
    }

    fn note(&mut self, command: &str, output: &Output) {
        let Output {
            status,
            stdout,
            stderr,
        } = output;
        let code = status
            .code()
            .map_or_else(|| status.to_string(), |code| code.to_string());
        let mut note = format!("\n$ {command}\n[{code}]\n");
        for (stream, name) in [(stdout, ""), (stderr, "! ")] {
            for line in String::from_utf8_lossy(stream).lines() {
                let _ = writeln!(note, "{name}{line}");
            }
        }
        self.text += &self.masked(&note);
    }

    /// Compares what was noted with the golden file.
    #[track_caller]
    fn compare(&self) {
        compare(self.area, &self.text);
    }

    fn masked(&self, text: &str) -> String {
        let plain = self
            .masks
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let plain = numbers(&fingerprints(&plain));
        let lines: Vec<&str> = plain
            .lines()
            .map(str::trim_end)
            .map(without_source)
            .collect();
        lines.join("\n") + "\n"
    }
}

/// Replaces fingerprints by `SHA256:<key>`.
fn fingerprints(text: &str) -> String {
    let mut parts = text.split("SHA256:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let is_of_key = |c: &char| c.is_ascii_alphanumeric() || "+/".contains(*c);
        let len = part.chars().take_while(is_of_key).count();
        if len < 43 {
            text + "SHA256:" + part
        } else {
            text + "SHA256:<key>" + &part[43..]
        }
    })
}

/// Replaces ports and process ids: numbers behind these words.
fn numbers(text: &str) -> String {
    let behind = [
        "process ",
        "port ",
        "::1]:",
        "127.0.0.1:",
        "[::]:",
        "sparsync-sshd-",
        "owned by user ",
    ];
    behind.iter().fold(text.to_owned(), |text, word| {
        let mut parts = text.split(word);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            let len = part.bytes().take_while(u8::is_ascii_digit).count();
            let least = if ["process ", "owned by user "].contains(word) {
                1
            } else {
                3
            };
            if len < least {
                text + word + part
            } else {
                text + word + "<n>" + &part[len..]
            }
        })
    })
}

/// Cuts the source position off rsync's closing line, as ` at main.c(1394)`.
fn without_source(line: &str) -> &str {
    line.find(") at ")
        .filter(|_| line.contains("rsync error: "))
        .map_or(line, |at| &line[..=at])
}

/// Compares messages with the golden file of their area. If it is rewritten, so is the list of templates that no file
/// shows, which depends on it.
#[track_caller]
fn compare(area: &str, messages: &str) {
    let _guard = own_turn();
    golden::compare(area, messages);
    if golden::is_blessing() {
        golden::compare(NOT_SHOWN, &templates_without_output());
    }
}

/// Waits for other tests: none reads a golden file that another one is rewriting.
fn own_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the area and the text of each golden file, in the order of the areas.
fn golden_files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(golden::DIR).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() == Some(OsStr::new("txt")) {
            let area = path.file_stem().unwrap().display().to_string();
            files.push((area, std::fs::read_to_string(&path).unwrap()));
        }
    }
    files.sort();
    files
}

#[test]
fn messages_of_help_pages() {
    let mut book = Book::new("help", "Help");
    for line in [
        "",
        "--help",
        "help server",
        "help enroll",
        "help doctor",
        "help bench",
        "help check",
        "help hash",
        "help cache",
        "help plan",
        "help explain",
        "help apply",
    ] {
        book.client(line);
    }
    for action in [
        "start", "stop", "restart", "status", "metrics", "install", "grants", "grant", "revoke",
        "pin",
    ] {
        book.client(&format!("server {action} --help"));
    }
    book.text = book.text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    book.compare();
}

#[test]
fn messages_of_command_lines() {
    let mut book = Book::new("command_lines", "Command lines");
    for line in [
        "sevrer start",
        "server strat",
        "server statu",
        "server uninstall",
        "enrol box",
        "doctr box",
        "status",
        "help foo",
        "bench",
        "enroll box:dst/",
        "doctor me@box:dst/",
        "enroll --instal box",
        "-a --delet src/ dst",
        "-a --excludes=*.o src/ dst",
        "-a --bogus src/ dst",
        "server",
        "server x",
        "server start --colour",
    ] {
        book.client(line);
    }
    for line in [
        "start --port",
        "start --port=70000",
        "start --memory=64",
        "start --listen host",
        "start --json=x",
    ] {
        book.client(&format!("server {line}"));
    }
    for line in [
        "start --now",
        "start a b",
        "start -e rsh",
        "start -q",
        "grant",
        "revoke",
        "pipe",
        "pipe x y",
    ] {
        book.client(&format!("server {line}"));
    }
    for line in [
        "session",
        "session --root / host",
        "session --root / --ceiling x",
        "status @h",
        "status h:",
    ] {
        book.client(&format!("server {line}"));
    }
    for line in [
        "x --expires 1d --no-expiry",
        "x --root a",
        "x",
        "PIN --name= ",
        "PIN",
        "PIN --name n --expires=soon",
    ] {
        book.client(&format!("server grant {}", line.replace("PIN", STRANGER)));
    }
    book.client(&format!(
        "server grant {STRANGER} --name n --expires=2020-01-01"
    ));
    book.client("server pipe 127.0.0.1 x");
    book.client("server pipe 127.0.0.1:1 x");
    for line in [
        "",
        "a b",
        "a:b",
        "--list a",
        "--list --port 7",
        "--json -n a",
        "--revoke a b",
        "--list --revoke a",
    ] {
        book.client(&format!("enroll {line}"));
    }
    for line in [
        "--port 0 a",
        "--root x a",
        "--expires=soon a",
        "-q a",
        "--name",
        "-- -x",
    ] {
        book.client(&format!("enroll {line}"));
    }
    for line in [
        "scan",
        "sync a",
        "scan a --repeat=0",
        "scan h:a",
        "scan absent",
        "sync src src/new",
        "sync src src/x",
    ] {
        book.client(&format!("bench {line}"));
    }
    for line in [
        "scan a --workers=0",
        "scan --shape=x",
        "sync --shape=deep a b",
        "scan --shape=deep none/x",
    ] {
        book.client(&format!("bench {line}"));
    }
    for line in ["a b", "--colour", "-e rsh", "--path", "-- -x", "-q"] {
        book.client(&format!("doctor {line}"));
    }
    for line in [
        "",
        "a b",
        "-q a",
        "--algo=md5 a",
        "--algorithm=crc a",
        "--workers=0 a",
    ] {
        book.client(&format!("hash {line}"));
    }
    for line in [
        "",
        "verify",
        "stat a",
        "clear --progress",
        "-q stat",
        "stat --checksum-cache=/dev/null",
        "verify /dev/null",
    ] {
        book.client(&format!("cache {line}"));
    }
    for line in [
        "-a --transport=x a h:b",
        "-a a sparsync://h:0/b",
        "-a --transport=ssh a sparsync://h/b",
    ] {
        book.client(line);
    }
    for line in [
        "--man=x",
        "--completions=x",
        "-a --config=x a sparsync://h/b",
        "--daemon sparsync://h/b",
    ] {
        book.client(line);
    }
    for line in [
        "--port=1",
        "--owner=a:b:c",
        "--owner=a --no-owner",
        "--owner=",
    ] {
        book.client(&format!("server grant {STRANGER} --name=n {line}"));
    }
    for (verb, words) in [
        ("server status", &[&b"-e"[..], b"", b"h"][..]),
        ("server status", &[b"\xff"]),
        ("server grant", &[b"--name=\xff"]),
        ("enroll", &[b"\xff"]),
        ("doctor", &[b"\xff"]),
        ("-a src/", &[b"host::a\nb/"]),
    ] {
        let mut command = book.scene.command("client", verb);
        command.args(words.iter().map(|word| OsStr::from_bytes(word)));
        let shown: Vec<String> = words
            .iter()
            .map(|word| format!("'{}'", word.escape_ascii()))
            .collect();
        book.try_out(
            &format!("sparsync {verb} {}", shown.join(" ")),
            &mut command,
        );
    }
    book.client("-a --transport=tls --iconv=utf8,latin1 src/ host:b");
    book.client("-a --transport=tls --old-args src/ host:~a;b");
    book.client("-a src/ sparsync://nowhere/b");
    book.client("-a --transport=tls src/ nowhere:b");
    book.compare();
}

#[test]
fn messages_of_guards() {
    let mut book = Book::new("guards", "What must hold before a run");
    for path in ["full/a/1", "full/a/2", "full/b", "new/c"] {
        let path = book.scene.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    for n in 0..30 {
        std::fs::write(book.scene.path(&format!("full/a/x{n}")), "").unwrap();
    }
    std::fs::create_dir(book.scene.path("empty")).unwrap();
    for line in [
        "-a --delete --delete-guard=many new/ full/",
        "-a --delete --delete-guard=-1 new/ full/",
        "-a --delete --delete-guard=101% new/ full/",
        "-a --delete --delete-guard=5 new/ full/",
        "-a --delete --delete-guard=10% new/ full/",
        "-a --delete empty/ full/",
        "-a --delete --delete-guard=5 --exclude-from=- new/ full/",
        "-a --delete --delete-guard=5 --read-batch=batch full/",
        "-a --delete --delete-guard=5 none/ full/",
        "-a --delete --delete-guard=5 -e false new/ box:full/",
        "-a --require-mount=new new/ full/",
        "-a --require-mount=none new/ full/",
        "-a --fail-if-empty empty/ full/",
        "-a --lock=now new/ full/",
        "-a --detect-renamed=yes new/ full/",
        "-ac --detect-renamed=moved new/ full/",
        "-aI --detect-renamed=moved new/ full/",
        "-aK --detect-renamed=moved new/ full/",
        "-a --detect-renamed=moved --delete-missing-args new/ full/",
        "-a --detect-renamed=moved --write-batch=batch new/ full/",
        "-a --detect-renamed=moved --read-batch=batch full/",
        "-a --clone-dest=x --write-batch=batch new/ full/",
        "-a --copy-dest=x --clone-dest=x new/ full/",
        "-a --verify=twice new/ full/",
        "-a --verify --write-devices new/ full/",
        "-a --verify --write-batch=batch new/ full/",
        "-a --verify=source --copy-devices new/ full/",
        "-a --verify=source --read-batch=batch full/",
        "-a --checksum-cache new/ made/",
    ] {
        book.client(line);
    }
    book.compare();
}

#[test]
fn messages_of_runs_that_are_not_supported() {
    let mut book = Book::new("unsupported", "Runs that are not supported");
    book.client("-a --protocol=26 src/ got/");
    book.client("-a --bogus src/ host::module");
    book.run(
        "client",
        "-a --protocol=26 src/ got/",
        &[("SPARSYNC_RSYNC", "/none/rsync")],
    );
    book.run(
        "client",
        "-a --bogus src/ host::module",
        &[("SPARSYNC_RSYNC", "/none/rsync")],
    );
    book.run(
        "client",
        "-a --bogus --metrics-file=m src/ host::module",
        &[("SPARSYNC_RSYNC", "/none/rsync")],
    );
    book.client("-a --metrics-file=absent/m src/ got/");
    book.run(
        "client",
        "-a --iconv=utf8 src/ got/",
        &[("SPARSYNC_RSYNC", "/none/rsync")],
    );
    let program = oracle::under_test().to_str().unwrap().to_owned();
    book.scene
        .script("rsync", &format!("#!/bin/sh\nexec {program} \"$@\"\n"));
    book.run(
        "client",
        "-a --bogus src/ host::module",
        &[("SPARSYNC_RSYNC", "TOP/rsync")],
    );
    book.compare();
}

#[test]
fn messages_of_batches_and_measurements() {
    let mut book = Book::new("batches", "Batches and measurements");
    book.client("-a --read-batch=absent got/");
    std::fs::write(book.scene.path("short"), "x").unwrap();
    std::fs::write(book.scene.path("new"), 99i32.to_le_bytes().repeat(9)).unwrap();
    std::fs::write(book.scene.path("old"), 1i32.to_le_bytes().repeat(9)).unwrap();
    for name in ["short", "new", "old"] {
        book.client(&format!("-a --read-batch={name} got/"));
    }
    book.run("client", "-a --read-batch=- got/", &[("TMPDIR", "/none")]);
    let program = oracle::under_test().display().to_string();
    let long = "x".repeat(200);
    for n in 0..6000 {
        std::fs::write(book.scene.path(&format!("in/{long}{n}")), "").unwrap();
    }
    for line in [
        "-a --write-batch=b --protocol=28 src/ got/",
        "-a -e TOP/ssh --rsync-path=PROGRAM --only-write-batch=b --protocol=29 host:TOP/src/ got/",
        "-a -e TOP/ssh --rsync-path=PROGRAM --max-alloc=1M host:TOP/in/ got/",
        "-a -e TOP/ssh --rsync-path=rsync --max-alloc=1M host:TOP/in/ got/",
        "-a -e TOP/ssh --rsync-path=rsync --detect-renamed=moved src/ host:TOP/got/",
        "-a -e TOP/ssh --rsync-path=rsync --clone-dest=../x src/ host:TOP/got/",
        "-a -e TOP/ssh --rsync-path=rsync --verify src/ host:TOP/got/",
        "-a -e TOP/ssh --rsync-path=rsync --verify=source host:TOP/src/ got/",
        "-a -e TOP/ssh --rsync-path=rsync --verify --iconv=utf8 src/ host:TOP/got/",
        "-ac -e TOP/ssh --rsync-path=rsync --checksum-cache src/ host:TOP/got/",
    ] {
        let output = book
            .scene
            .command("client", &line.replace("PROGRAM", &program))
            .output()
            .unwrap();
        book.note(&format!("sparsync {line}"), &own_lines(output));
    }
    // A server that answers with another message, or ends.
    let answer = [crate::hostile::greeting(), crate::hostile::frame(19, &[])].concat();
    std::fs::write(book.scene.path("answer"), answer).unwrap();
    std::fs::write(book.scene.path("greeting"), crate::hostile::greeting()).unwrap();
    book.scene
        .script("odd", "#!/bin/sh\ncat answer\nexec cat >/dev/null\n");
    book.scene.script(
        "ends",
        "#!/bin/sh\ncat greeting\nexec head -c 30 >/dev/null\n",
    );
    book.client("-a --transport=quic -e TOP/odd src/ box:in/");
    book.client("-a --transport=quic -e TOP/ends src/ box:in/");
    book.client("-a -e TOP/ends src/ box:in/");
    let unknown = [&[19][..], &[0; 7], &[b'a'; 37]].concat();
    let answer = [crate::hostile::greeting(), unknown].concat();
    std::fs::write(book.scene.path("unknown"), answer).unwrap();
    book.scene
        .script("newer", "#!/bin/sh\ncat unknown\nexec cat >/dev/null\n");
    book.client("plan -a --output=plan -e TOP/newer src/ box:in/");
    // An rsync that sends control messages that this end must not send: 86 ends it with a code, 102 is for receivers.
    for (name, tag) in [("exits", 86u8), ("refuses", 102)] {
        let answer = [
            &[31, 0, 0, 0][..],
            &[0],
            &[0; 4],
            &[4, 0, 0, 7 + tag],
            &[0; 4],
        ]
        .concat();
        std::fs::write(book.scene.path("answer"), answer).unwrap();
        book.scene
            .script(name, "#!/bin/sh\ncat answer\nexec cat >/dev/null\n");
        let line = format!("-a -e TOP/{name} src/ box:in/");
        let output = book.scene.command("client", &line).output().unwrap();
        book.note(&format!("sparsync {line}"), &own_lines(output));
    }
    // A daemon that asks twice.
    std::fs::write(
        book.scene.path("daemon"),
        "@RSYNCD: 31.0 md5\n@RSYNCD: AUTHREQD x\n@RSYNCD: AUTHREQD y\n",
    )
    .unwrap();
    let vars = [
        ("RSYNC_CONNECT_PROG", "cat daemon; cat >/dev/null"),
        ("RSYNC_PASSWORD", "x"),
    ];
    book.run("client", "-a src/ host::module", &vars);
    // A limit of the length of files.
    std::fs::write(book.scene.path("src/long"), [0; 4096]).unwrap();
    for line in [
        "bench scan --repeat=1 --svg=none/x src",
        "-a --only-write-batch=file src/ got/",
        "bench sync --shape=large got7",
    ] {
        let sparsync = book.scene.command("client", line);
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -f 1; exec \"$@\"", "sh"])
            .arg(sparsync.get_program())
            .args(sparsync.get_args());
        command.current_dir(book.scene.path("")).env("LC_ALL", "C");
        let output = command.output().unwrap();
        book.note(&format!("ulimit -f 1; sparsync {line}"), &own_lines(output));
    }
    book.run(
        "client",
        "-a --transport=quic -e TOP/ends src/ box:in/",
        &[("SPARSYNC_CONFIG_DIR", "TOP/answer/below")],
    );
    for (name, text) in [
        ("port", ""),
        ("facility", "syslog facility = bogus\n"),
        ("modes", "[m]\npath = /\nincoming chmod = bogus\n"),
    ] {
        // No daemon starts with this port.
        std::fs::write(
            book.scene.path(&format!("{name}.conf")),
            format!("port = 99999\n{text}"),
        )
        .unwrap();
        book.client(&format!("--daemon --no-detach --config={name}.conf"));
    }
    book.client("--daemon --no-detach --port=0 --config=short -6 --address=127.0.0.1");
    book.compare();
}

#[test]
fn messages_of_plans() {
    let mut book = Book::new("plans", "Plans");
    for line in [
        "plan",
        "plan -o p",
        "plan -a -o p",
        "plan -a -o p src/",
        "plan -a src/ in/",
        "plan -r src/ in/ -o p",
        "plan -aK src/ in/ -o p",
        "plan -aH --link-dest=../old src/ in/ -o p",
        "plan -a --delete-guard=5 src/ in/ -o p",
        "plan -a --exclude-from=- src/ in/ -o p",
        "plan -a src/ in/ -o none/p",
        "plan -a src/ in/ -o src",
        "plan -a src/ in/ -o p",
        "plan --show",
        "plan --show none",
        "plan --show src",
        "plan --show -a p",
        "plan --show p src/",
        "plan --show p -v",
        "apply",
        "apply none",
        "apply -a p",
        "apply p src/ in/",
        "apply --root-changed p src/",
        "apply src/new",
        "apply -n p",
    ] {
        book.client(line);
    }
    for mode in [0o666, 0o600] {
        let plan = book.scene.path("p");
        std::fs::set_permissions(plan, std::fs::Permissions::from_mode(mode)).unwrap();
        if mode != 0o600 {
            book.client("apply p");
        }
    }
    std::fs::write(book.scene.path("src/new"), "changed").unwrap();
    book.client("apply p");
    book.scene.file("more/extra", "");
    std::fs::create_dir(book.scene.path("bare")).unwrap();
    book.client("plan -a bare new -o r");
    for line in [
        "plan -aO --delete --max-delete=0 src/ more/ -o q",
        "plan --show q",
        "apply q",
    ] {
        book.client(line);
    }
    std::fs::remove_dir_all(book.scene.path("in")).unwrap();
    book.client("apply p");
    for verb in ["plan", "apply"] {
        std::fs::write(book.scene.path(verb), "").unwrap();
        book.client(&format!("{verb} src"));
    }
    book.compare();
}

#[test]
fn messages_of_explanations() {
    let mut book = Book::new("explanations", "Explanations");
    // Which error an rsync prints when its client has left depends on time.
    let silent = "#!/bin/sh\nexec rsync \"$@\" 2>/dev/null\n";
    book.scene.file_with_mode("silent-rsync", silent, 0o755);
    for line in [
        "explain",
        "explain new",
        "explain -- -a src/ in/",
        "explain new --",
        "explain new -- -a src/",
        "explain new -- -a --list-only src/",
        "explain --verbose new -- -a src/ in/",
        "explain new -- -a --read-batch=batch in/",
        "explain new -- -a --exclude-from=- src/ in/",
        "explain new -- -a --exclude=new --no-such-option src/ in/",
        "explain new /elsewhere -- -a src/ in/",
        "explain new -- -a none/ in/",
        "explain new -- -a -e TOP/ssh --rsync-path=TOP/silent-rsync src/ host:TOP/got/",
    ] {
        book.client(line);
    }
    std::fs::write(book.scene.path("explain"), "").unwrap();
    book.client("explain src");
    book.compare();
}

#[test]
fn messages_of_manifests() {
    let mut book = Book::new("manifests", "Manifests and comparisons");
    for line in [
        "none",
        "src/new",
        "-o src src",
        "-o none/x src",
        "-o src/ src",
    ] {
        book.client(&format!("hash {line}"));
    }
    let sum = "0cc175b9c0f1b6a831c399e269772661";
    for (name, text) in [
        ("good", format!("{sum}  new\n{sum}  gone\n")),
        ("bad1", format!("{sum}  new\nno digest\n")),
        ("bad2", format!("{sum}  /new\n")),
        ("bad3", format!("{sum}  ../new\n")),
        ("bad4", format!("{sum}  a//b\n")),
        ("bad5", format!("{sum}  ./\n")),
        ("bad6", format!("\\{sum}  \\x\n")),
        ("bad7", format!("{}  new\n", &sum[2..])),
        ("bad8", format!("SHA256 (new) = {sum}\n")),
        ("bad9", format!("zz{sum}  new\n")),
        ("bad10", format!("{sum}  a\n{}  a\n", sum.replace('0', "1"))),
        ("bad11", format!("{sum}  {}\n", "a".repeat(1 << 20))),
        ("none", String::new()),
    ] {
        if !text.is_empty() {
            std::fs::write(book.scene.path(name), text).unwrap();
        }
        book.client(&format!("check --manifest={name} src"));
    }
    for line in [
        "",
        "src/",
        "--list=new src/ in/",
        "--manifest=good --list=dest-only src",
        "--manifest=good",
        "--manifest=good --algorithm=crc src",
        "--manifest=good --algorithm=sha256 src",
        "--manifest=good -a src",
        "--algorithm=md5 src/ in/",
        "--inplace src/ in/",
        "-b src/ in/",
        "--lst=equal src/ in/",
        "-e",
        "none in/",
        "src/ in/",
        "--list=equal src/ in/",
        "in/ in/",
    ] {
        book.client(&format!("check {line}"));
    }
    let name = OsStr::from_bytes(b"\xff");
    std::fs::write(book.scene.path("src").join(name), "").unwrap();
    book.client("hash src");
    std::fs::write(book.scene.path("src/a\nb"), "").unwrap();
    book.client("hash --algorithm=xxh128 src");
    for verb in ["hash", "check"] {
        std::fs::write(book.scene.path(verb), "").unwrap();
        book.client(&format!("{verb} src"));
    }
    book.compare();
}

#[test]
fn messages_of_the_configuration() {
    let mut book = Book::new("configuration", "Configuration");
    book.server("server pin");
    let path = |book: &Book, name: &str| book.scene.path(&format!("server/{name}"));
    let mode = |book: &Book, name: &str, mode: u32| {
        std::fs::set_permissions(path(book, name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&book, "identity.pem", 0o640);
    book.server("server pin");
    mode(&book, "identity.pem", 0o600);
    mode(&book, "", 0o777);
    book.server(&format!("server grant {STRANGER} --name laptop"));
    mode(&book, "", 0o700);
    book.server(&format!(
        "server grant {STRANGER} --name laptop --root TOP/in --read-only"
    ));
    let good = std::fs::read_to_string(path(&book, "grants.toml")).unwrap();
    book.text += &book.masked(&format!("\n$ cat grants.toml\n[0]\n{good}"));
    mode(&book, "grants.toml", 0o666);
    book.server("server grants");
    mode(&book, "grants.toml", 0o600);
    for (from, to) in [
        ("read_only", "readonly"),
        ("read_only = true", "expires = \"soon\""),
        ("read_only = true", "expires = 7"),
        ("roots = [", "roots = [] # ["),
        ("roots = [\"", "roots = [\"x"),
        ("SHA256:", "MD5:"),
        ("[[grant]]", "[[grant]"),
    ] {
        std::fs::write(path(&book, "grants.toml"), good.replace(from, to)).unwrap();
        book.server("server grants");
    }
    std::fs::write(path(&book, "grants.toml"), format!("{good}\n{good}")).unwrap();
    book.server("server grants");
    std::fs::write(path(&book, "grants.toml"), b"\xff").unwrap();
    book.server("server grants");
    let host = format!(
        "[[host]]\nname = \"h\"\nssh = \"h\"\naddresses = [\"::1\"]\nport = 1\npin = \"{STRANGER}\"\n\
         met = \"2026-01-01T00:00:00Z\"\n"
    );
    std::fs::write(path(&book, "hosts.toml"), format!("{host}{host}")).unwrap();
    book.server("enroll --list");
    std::fs::write(path(&book, "hosts.toml"), host.replace("[\"::1\"]", "[]")).unwrap();
    book.server("enroll --list");
    std::fs::write(path(&book, "hosts.toml"), host).unwrap();
    book.server("enroll --list");
    std::fs::write(path(&book, "identity.pem"), "hello").unwrap();
    book.server("server pin");
    std::fs::remove_file(path(&book, "identity.pem")).unwrap();
    std::fs::write(book.scene.path("file"), "").unwrap();
    book.run(
        "client",
        "server pin",
        &[("SPARSYNC_CONFIG_DIR", "file/below")],
    );
    book.compare();
}

#[test]
fn messages_of_a_server() {
    let mut book = Book::new("grants", "A server and its grants");
    book.server("server status");
    book.server("server metrics");
    book.server("server stop");
    book.server("server grants");
    let taken = TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    book.mask(own.trim().to_owned(), "TEST");
    book.server(&format!("server start --port {port}"));
    book.server("server start --port 0 --memory=1G");
    book.server("server start --port 0");
    book.server("server start --port 1");
    book.server("server start --listen=::1");
    book.server("server start --memory=2G");
    book.server("server start --foreground");
    book.server(&format!("server restart --port {port}"));
    let grants = |line: &str| format!("server grant {STRANGER} {line}").replace("  ", " ");
    book.server(&grants("--name laptop"));
    book.server(&grants("--name laptop"));
    book.server(&grants("--root TOP"));
    book.server(&grants("--read-only"));
    book.server(&grants("--root TOP/none"));
    book.server(&grants(
        "--root TOP/in --expires 2099-12-31 --allow-setuid --no-munge",
    ));
    book.server("server grant SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA --name laptop --root TOP/in");
    book.server("server grants");
    book.server("server revoke laptop");
    book.server("server revoke laptop");
    book.server("server grants");
    book.server("server stop");
    let unit = [("SPARSYNC_CONFIG_DIR", "a b")];
    book.run("server", "server install --user", &unit);
    book.server("server install --user");
    book.compare();
}

#[test]
fn messages_of_copies_with_a_server() {
    let mut book = Book::new("copies", "Copies with a server");
    book.scene.enroll("--root=TOP/in --read-only");
    book.client("-a src/ sparsync://host/TOP/in/");
    book.client("-a --remove-source-files sparsync://host/TOP/in/ got/");
    book.client("-a --copy-devices sparsync://host/TOP/in/ got/");
    book.client("-a --insecure-links sparsync://host/TOP/in/ got/");
    book.client("-a sparsync://host/TOP/out/ got/");
    book.client("-a sparsync://host/TOP/in/none got/");
    book.client("-a --rsync-path=other --transport=tls host:TOP/in/ got/");
    book.scene.well("revoke laptop");
    book.client("-a sparsync://host/TOP/in/ got/");
    book.scene.well(&format!(
        "grant {} --name laptop --root TOP/none",
        book.pin()
    ));
    book.client("-a sparsync://host/TOP/in/ got/");
    book.expire();
    book.client("-a sparsync://host/TOP/in/ got/");
    book.server("server grants");
    let pin = book.pin();
    book.server(&format!("server grant {pin} --read-only"));
    book.scene.well("stop --now");
    std::fs::remove_file(book.scene.path("server/identity.pem")).unwrap();
    book.scene.well("start");
    book.client("-a sparsync://host/TOP/in/ got/");
    book.compare();
}

#[test]
fn messages_of_unreachable_hosts() {
    let mut book = Book::new("unreachable", "Hosts that cannot be reached");
    book.scene.enroll("--root=TOP");
    book.scene.well("stop --now");
    // A port that is taken and answers nothing.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let _tcp = TcpListener::bind(("127.0.0.1", port));
    let hosts = book.scene.path("client/hosts.toml");
    let text = std::fs::read_to_string(&hosts).unwrap();
    book.client("-a --transport=tls src/ host:in/");
    let lines = text.lines().map(|line| match line.starts_with("port = ") {
        true => format!("port = {port}\n"),
        false => format!("{line}\n"),
    });
    std::fs::write(&hosts, lines.collect::<String>()).unwrap();
    book.client("-a --transport=tls --contimeout=1 src/ sparsync://host/in/");
    book.scene.script("none", "#!/bin/sh\nexit 127\n");
    book.client("server status -e TOP/none box");
    book.client("server status -e TOP/missing box");
    book.client("enroll -e TOP/none box");
    book.client("enroll -e TOP/missing box");
    book.client("enroll --dry-run --install box");
    book.client("enroll --revoke=box -e TOP/none");
    book.client("-a --transport=quic -e TOP/none src/ box:in/");
    book.scene.script("failed", "#!/bin/sh\nexit 255\n");
    book.client("enroll -e TOP/failed box");
    book.scene.script("noise", "#!/bin/sh\necho Welcome\n");
    book.client("enroll -e TOP/noise box");
    book.compare();
}

#[test]
fn messages_of_routes_and_logs() {
    let mut book = Book::new("routes", "Routes and the log of a server");
    book.scene.enroll("--root=TOP/in");
    let way = |book: &mut Book, line: &str| {
        let path = format!(
            "{}:{}",
            book.scene.path("").display(),
            std::env::var("PATH").unwrap()
        );
        let output = book
            .scene
            .command("client", line)
            .env("PATH", path)
            .output()
            .unwrap();
        book.note(&format!("sparsync {line}"), &own_lines(output));
    };
    way(&mut book, "-avv --transport=quic src/ host:TOP/in/");
    way(&mut book, "-avv --transport=tls src/ host:TOP/in/");
    way(&mut book, "-avv --transport=ssh src/ host:TOP/in/");
    way(&mut book, "-avv -e TOP/ssh src/ host:TOP/in/");
    book.scene.well("stop");
    let log = std::fs::read_to_string(book.scene.path("server/state/server.log")).unwrap();
    let undated = |line: &str| {
        line.split_once(' ')
            .map_or(String::new(), |(_, line)| without_counts(line))
    };
    let mut lines: Vec<String> = book.masked(&log).lines().map(undated).collect();
    // Two sessions end in any order.
    lines.sort();
    lines.dedup();
    book.text += &format!(
        "\n$ cut -d ' ' -f 2- server.log | sort -u\n[0]\n{}\n",
        lines.join("\n")
    );

    // A remote shell that would have to ask for a password does not win the race against the server.
    book.scene.copy_or_ask("--version");
    way(&mut book, "-avv src/ host:TOP/in/");
    way(&mut book, "-avv src/ host:TOP/in/");
    book.scene.enroll("--root=TOP/in");
    book.scene.well("revoke laptop");
    way(&mut book, "-avv src/ host:TOP/in/");
    book.compare();
}

/// Leaves only the lines of our own on standard error.
fn own_lines(output: Output) -> Output {
    let is_own = |line: &&str| line.starts_with("sparsync: ") || line.starts_with("hint: ");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: String = text
        .lines()
        .filter(is_own)
        .map(|line| format!("{line}\n"))
        .collect();
    Output {
        stderr: lines.into(),
        stdout: Vec::new(),
        ..output
    }
}

/// Replaces all numbers of a line of the log.
fn without_counts(line: &str) -> String {
    let mut shown = String::new();
    for c in line.chars() {
        match c {
            '0'..='9' | '.' if shown.ends_with('N') => {}
            '0'..='9' => shown.push('N'),
            c => shown.push(c),
        }
    }
    shown.replace("SHAN:", "SHA256:")
}

/// The area of the messages that no other area shows.
const NOT_SHOWN: &str = "not_shown";

/// Every message in the source is shown by an output in another area, or listed.
#[test]
fn message_templates_in_the_source() {
    let _guard = own_turn();
    golden::compare(NOT_SHOWN, &templates_without_output());
}

/// Returns what stands in quotes where a message is made, unless an area shows it. A page of help shows no message.
fn templates_without_output() -> String {
    let mut lines = Vec::new();
    for (area, text) in golden_files() {
        if area != "help" && area != NOT_SHOWN {
            lines.extend(text.lines().map(without_numbers));
        }
    }
    let mut section = "# Templates in the source that no output shows\n".to_owned();
    let mut paths = Vec::new();
    let mut dirs = vec![concat!(env!("CARGO_MANIFEST_DIR"), "/src").into()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir::<std::path::PathBuf>(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false => paths.push(path),
            }
        }
    }
    paths.sort();
    let mut groups = GROUPS.map(|title| format!("\n## {title}\n"));
    for path in paths {
        let name = path
            .strip_prefix(env!("CARGO_MANIFEST_DIR"))
            .unwrap()
            .display()
            .to_string();
        if name.contains("/tests") || name.ends_with("laws.rs") || name.ends_with("fuzzing.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let mut found = templates_of(text, name.starts_with("src/proto/"));
        // There, `failed` reports in rsync's words.
        found.retain(|text| {
            text.trim_end() != "sparsync:"
                && !(name.contains("/apply/") && text.contains("failed to"))
        });
        let is_rsyncs = |text: &str| {
            let files = [
                "transport/daemon_socket.rs",
                "cmd/rsync_daemon/session/",
                "rsync/daemon.rs",
            ];
            let is_failed =
                files.iter().any(|file| name.contains(file)) && !text.starts_with("sparsync: ");
            is_failed
                || text.starts_with("delete_file: ")
                || text.starts_with("filter rules are too modern")
        };
        found.retain(|text| !is_rsyncs(text) && !is_shown(text, &lines));
        for (at, group) in groups.iter_mut().enumerate() {
            let found: Vec<&str> = found
                .iter()
                .map(String::as_str)
                .filter(|text| group_of(&name, text) == at)
                .collect();
            if !found.is_empty() {
                let _ = write!(group, "\n{name}\n  {}\n", found.join("\n  "));
            }
        }
    }
    section += &groups.concat();
    const ARCHAIC: [&str; 9] = [
        "shall",
        "whoever",
        "nobody",
        "somebody",
        "knock",
        " told",
        "taken back",
        "let in",
        "makes no sense",
    ];
    for word in ARCHAIC {
        let archaic = section
            .lines()
            .chain(lines.iter().map(String::as_str))
            .find(|line| line.contains(word));
        assert!(archaic.is_none(), "{word}: {archaic:?}");
    }
    section
}

/// Why no output shows a template.
const GROUPS: [&str; 3] = [
    "Errors of the operating system that tests cannot cause",
    "Checks that only a broken peer or an error of our own could fail, and that no test fails",
    "States of a machine, a server or a run that would take too long, or that tests must not create",
];

/// Returns the index of a template's group.
fn group_of(file: &str, template: &str) -> usize {
    const PEERS: [&str; 5] = [
        "src/proto/",
        "src/session/",
        "src/native/",
        "src/rsync/",
        "src/transport/",
    ];
    let is_of_peer = template.contains("protocol error") || !template.starts_with("sparsync: ");
    // What is being done, for an error that follows.
    let is_operation = [" ", " on", " from", " for", " in"]
        .iter()
        .any(|end| template.ends_with(end));
    match () {
        () if is_operation || template.contains("{error}") => 0,
        () if is_of_peer && PEERS.iter().any(|dir| file.starts_with(dir)) => 1,
        () if template.contains("internal error") || template.ends_with("crashed") => 1,
        () => 2,
    }
}

/// A template with fewer letters of its own must begin or end a part of a message.
const LONG_ENOUGH: usize = 12;

/// Returns whether a line of output is made of this template. It is if the template has no words of its own.
fn is_shown(template: &str, lines: &[String]) -> bool {
    let template = template.replace("\\\"", "\"").replace("\\\\", "\\");
    // `doctor` and `enroll` print messages of errors without our name.
    template
        .trim_start_matches("sparsync: ")
        .split("\\n")
        .all(|template| {
            let pieces: Vec<String> = pieces_of(template)
                .into_iter()
                .map(without_numbers)
                .collect();
            let words = pieces.iter().map(|piece| {
                piece
                    .trim_start_matches("sparsync: ")
                    .trim_start_matches("hint: ")
            });
            let letters = words
                .flat_map(str::chars)
                .filter(|c| c.is_alphabetic())
                .count();
            letters == 0
                || lines
                    .iter()
                    .any(|line| is_made_of(line, &pieces, letters < LONG_ENOUGH))
        })
}

/// Writes `N` for each number, because sections do so.
fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if shown.ends_with('N') => {}
            '0'..='9' => shown.push('N'),
            c => shown.push(c),
        }
    }
    shown
}

/// Splits a template at its placeholders.
fn pieces_of(template: &str) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), template);
    while let Some((piece, behind)) = rest.split_once('{') {
        pieces.push(piece);
        rest = behind.split_once('}').map_or("", |(_, rest)| rest);
    }
    pieces.push(rest);
    pieces
}

/// Returns whether these pieces follow each other in a line, from the start of a word to the end of one. If they are
/// short, they must begin or end a part of the message.
fn is_made_of(line: &str, pieces: &[String], is_short: bool) -> bool {
    let line = line.trim_start_matches("! ");
    line.match_indices(&pieces[0]).any(|(at, first)| {
        let before = &line[..at];
        let is_at_word = first.is_empty() || !before.ends_with(char::is_alphanumeric);
        let is_at_part = before.is_empty() || before.ends_with(": ");
        is_at_word
            && is_followed(
                &line[at + first.len()..],
                &pieces[1..],
                first,
                is_short && !is_at_part,
            )
    })
}

fn is_followed(rest: &str, pieces: &[String], last: &str, must_end: bool) -> bool {
    match pieces {
        [] if must_end => {
            rest.is_empty()
                || [": ", ", ", "; ", " ("]
                    .iter()
                    .any(|end| rest.starts_with(end))
        }
        [] => !last.ends_with(char::is_alphanumeric) || !rest.starts_with(char::is_alphanumeric),
        [first, pieces @ ..] => rest
            .match_indices(first)
            .any(|(at, first)| is_followed(&rest[at + first.len()..], pieces, first, must_end)),
    }
}

/// The messages in a file: literals that begin with our name, and those that are handed to what makes messages.
fn templates_of(text: &str, is_proto: bool) -> Vec<String> {
    const MAKERS: [&str; 12] = [
        "unexpected(",
        "with_hint(",
        "wrong(",
        "failed(",
        "info!(",
        "warn!(",
        "error!(",
        "BadSignature(",
        "lacking(",
        "rejected_request(",
        "cannot(",
        "bad(",
    ];
    let mut found = Vec::new();
    let (mut rest, mut before) = (text, String::new());
    while let Some(at) = rest.find(['"', '/', '\'']) {
        before.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            continue;
        }
        let is_char =
            rest.starts_with("'\"'") || rest.starts_with("'/'") || rest.starts_with("'\\''");
        if !rest.starts_with('"') {
            let len = if is_char {
                rest[1..].find('\'').map_or(1, |len| len + 2)
            } else {
                1
            };
            before.push_str(&rest[..len]);
            rest = &rest[len..];
            continue;
        }
        let mut len = 1;
        while !rest[len..].starts_with('"') {
            len += if rest[len..].starts_with('\\') {
                2
            } else {
                rest[len..].chars().next().unwrap().len_utf8()
            };
        }
        let literal: String = rest[1..len]
            .split("\\\n")
            .enumerate()
            .map(|(nth, part)| if nth == 0 { part } else { part.trim_start() })
            .collect();
        let call = before
            .trim_end()
            .trim_end_matches("&format!(")
            .trim_end_matches("format!(")
            .trim_end();
        let call = call
            .trim_end_matches("target: log::REJECTED_CLIENTS,")
            .trim_end();
        let is_ours = literal.starts_with("sparsync: ")
            || literal.starts_with("hint: ")
            || literal.starts_with("sparsync server: ");
        // The other literals there are words of a protocol.
        let is_word =
            before.ends_with('b') || literal.ends_with("\\r\\n") || literal == "sparsync ";
        let is_assertion = before
            .rsplit(';')
            .next()
            .is_some_and(|call| call.contains("assert") || call.contains("unreachable!"));
        let is_fault = is_proto
            && !is_word
            && !is_assertion
            && !["expect(", "="].iter().any(|end| call.ends_with(end));
        let is_made = is_fault || MAKERS.iter().any(|maker| call.ends_with(maker));
        if is_ours || is_made && literal.contains(' ') {
            found.push(literal);
        }
        before.clear();
        rest = &rest[len + 1..];
    }
    found
}
