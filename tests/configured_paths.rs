//! Symlinks of other users in the paths of options, configurations, keys and grants are not followed: the table of
//! SECURITY.md.

use crate::kit::{Scene, assert_output, oracle, report_skip};
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;

/// A user that is neither root nor the user who runs the tests.
const STRANGER: u32 = 12345;
const LINE: &str = "refusing to follow a symlink owned by an untrusted user";

/// A scene with a module, and the files that a client and a daemon read.
struct Paths(Scene);

/// What a client and a daemon did: the exit code, whether the file arrived or the text of the daemon was shown, and
/// whether either of them reported a symlink.
type Seen = (Option<i32>, bool, bool);

impl Paths {
    fn new() -> Paths {
        let scene = Scene::empty();
        for dir in ["included", "merged"] {
            std::fs::create_dir(scene.path(dir)).unwrap();
        }
        let module = scene.placed("[m]\nuse chroot = no\nuid = 0\ngid = 0\npath = TOP/mod\n");
        for (name, text) in [
            ("mod/f", "f\n"),
            ("secrets", "joe:secret\n"),
            ("password", "secret\n"),
            ("motd", "welcome\n"),
            ("early", "early\n"),
            ("module.conf", &module),
        ] {
            scene.file_with_mode(name, text, 0o600);
        }
        Paths(scene)
    }

    /// Replaces the link of the previous case.
    fn link(&self, name: &str, target: &str, owner: u32) {
        let _ = std::fs::remove_file(self.0.path(name));
        symlink(self.0.path(target), self.0.path(name)).unwrap();
        lchown(self.0.path(name), Some(owner), None).unwrap();
    }

    /// Runs a client against a daemon. `TOP` stands for the directory of the scene.
    fn call(&self, client: &Path, daemon: &Path, case: &Case) -> Seen {
        let placed = |text: &str| self.0.placed(text);
        let globals = "use chroot = no\nuid = 0\ngid = 0\nlog file = TOP/log\n";
        self.0
            .file("conf", &placed(&format!("{globals}{}", case.config)));
        for old in ["log", "got"] {
            let _ = std::fs::remove_file(self.0.path(old));
        }
        let connect = format!(
            "{} --daemon --config={}",
            daemon.display(),
            placed(case.named)
        );
        let output = self
            .0
            .program(client)
            .args(case.args.iter().map(|arg| placed(arg)))
            .env(
                "RSYNC_CONNECT_PROG",
                format!("{connect} --log-file={}", placed("TOP/log")),
            )
            .output()
            .unwrap();
        let log = std::fs::read_to_string(self.0.path("log")).unwrap_or_default();
        let printed = String::from_utf8_lossy(&output.stderr);
        let is_served = self.0.path("got").exists()
            || String::from_utf8_lossy(&output.stdout).contains("welcome");
        let reports = log.contains(LINE) || printed.contains(LINE);
        // A daemon that ends at once is noticed by the end of the connection or by an error of it.
        let code = output
            .status
            .code()
            .map(|code| if code == 12 { 5 } else { code });
        (code, is_served, reports)
    }
}

/// A path that a client or a daemon opens.
struct Case {
    name: &'static str,
    /// The link, and what it leads to.
    link: (&'static str, &'static str),
    /// The configuration that the daemon is started with.
    named: &'static str,
    /// The text of `TOP/conf`.
    config: &'static str,
    args: &'static [&'static str],
    /// Whether links of other users are followed all the same, as rsync does.
    follows: bool,
}

const MODULE: &str = "[m]\npath = TOP/mod\n";
const LOCKED: &str = "[m]\npath = TOP/mod\nauth users = joe\nsecrets file = TOP/secrets\n";
const GET: &[&str] = &["-a", "host::m/f", "got"];

const CASES: &[Case] = &[
    case("--config", ("link", "module.conf"), "TOP/link", "", GET),
    case(
        "--config, parent",
        ("linkdir", "."),
        "TOP/linkdir/module.conf",
        "",
        GET,
    ),
    case(
        "&include",
        ("link", "module.conf"),
        "TOP/conf",
        "&include TOP/link\n",
        GET,
    ),
    case(
        "&merge",
        ("link", "module.conf"),
        "TOP/conf",
        "&merge TOP/link\n",
        GET,
    ),
    case(
        "in an included directory",
        ("included/m.conf", "module.conf"),
        "TOP/conf",
        "&include TOP/included\n",
        GET,
    ),
    case(
        "in a merged directory",
        ("merged/m.inc", "module.conf"),
        "TOP/conf",
        "&merge TOP/merged\n",
        GET,
    ),
    case(
        "secrets file",
        ("link", "secrets"),
        "TOP/conf",
        "[m]\npath = TOP/mod\nauth users = joe\nsecrets file = TOP/link\n",
        &["-a", "--password-file=TOP/password", "joe@host::m/f", "got"],
    ),
    case(
        "motd file",
        ("link", "motd"),
        "TOP/conf",
        "motd file = TOP/link\n[m]\npath = TOP/mod\n",
        &["host::"],
    ),
    case(
        "path",
        ("link", "mod"),
        "TOP/conf",
        "[m]\npath = TOP/link\n",
        GET,
    ),
    case(
        "path, parent",
        ("linkdir", "."),
        "TOP/conf",
        "[m]\npath = TOP/linkdir/mod\n",
        GET,
    ),
    case(
        "--password-file",
        ("link", "password"),
        "TOP/conf",
        LOCKED,
        &["-a", "--password-file=TOP/link", "joe@host::m/f", "got"],
    ),
    case(
        "--password-file, parent",
        ("linkdir", "."),
        "TOP/conf",
        LOCKED,
        &[
            "-a",
            "--password-file=TOP/linkdir/password",
            "joe@host::m/f",
            "got",
        ],
    ),
    case(
        "--early-input",
        ("link", "early"),
        "TOP/conf",
        MODULE,
        &["-a", "--early-input=TOP/link", "host::m/f", "got"],
    ),
    Case {
        follows: true,
        ..case(
            "path with chroot",
            ("link", "mod"),
            "TOP/conf",
            "[m]\npath = TOP/link\nuse chroot = yes\n",
            GET,
        )
    },
    Case {
        follows: true,
        ..case(
            "path with insecure links",
            ("link", "mod"),
            "TOP/conf",
            "[m]\npath = TOP/link\ninsecure links = yes\n",
            GET,
        )
    },
    Case {
        follows: true,
        ..case(
            "--insecure-links",
            ("link", "password"),
            "TOP/conf",
            LOCKED,
            &[
                "-a",
                "--insecure-links",
                "--password-file=TOP/link",
                "joe@host::m/f",
                "got",
            ],
        )
    },
];

/// Returns a case in which links are not followed.
const fn case(
    name: &'static str,
    link: (&'static str, &'static str),
    named: &'static str,
    config: &'static str,
    args: &'static [&'static str],
) -> Case {
    Case {
        name,
        link,
        named,
        config,
        args,
        follows: false,
    }
}

/// Returns whether the test can change the owners of links.
fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        report_skip(test, "only root can give links to another user");
    }
    is_root
}

#[test]
fn paths_of_clients_and_daemons_lead_through_no_link_of_another_user() {
    if !is_root("configured_paths") {
        return;
    }
    for case in CASES {
        let scene = Paths::new();
        let (rsync, ours) = (oracle::rsync(), oracle::under_test());
        for owner in [0, STRANGER] {
            scene.link(case.link.0, case.link.1, owner);
            let wanted = scene.call(rsync, rsync, case);
            let about = format!("{}: a link of {owner}", case.name);
            assert_eq!(scene.call(rsync, ours, case), wanted, "daemon: {about}");
            assert_eq!(scene.call(ours, rsync, case), wanted, "client: {about}");
            let follows = case.follows || owner == 0;
            assert_eq!((wanted.1, wanted.2), (follows, !follows), "rsync: {about}");
        }
    }
}

#[test]
fn keys_grants_and_roots_lead_through_no_link_of_another_user() {
    if !is_root("configured_paths") {
        return;
    }
    let scene = Scene::new();
    symlink("out", scene.path("in/granted")).unwrap();
    symlink(scene.path("out"), scene.path("root")).unwrap();
    scene.enroll("--root TOP/root");
    let pull = || {
        let line = "-a --transport=tls host:TOP/root/f got";
        scene.command("client", line).output().unwrap()
    };
    assert_output(&pull(), 0, &[]);
    lchown(scene.path("root"), Some(STRANGER), None).unwrap();
    assert_output(&pull(), 3, &["cannot open any granted directory"]);
    lchown(scene.path("root"), Some(0), None).unwrap();

    // The directory of keys, hosts and grants, and a file in it.
    symlink("client", scene.path("elsewhere")).unwrap();
    let by = |who: &str| {
        let line = "-a --transport=tls host:TOP/root/f got";
        scene.command(who, line).output().unwrap()
    };
    assert_output(&by("elsewhere"), 0, &[]);
    lchown(scene.path("elsewhere"), Some(STRANGER), None).unwrap();
    assert_output(&by("elsewhere"), 11, &[LINE]);
    std::fs::rename(scene.path("client/hosts.toml"), scene.path("hosts")).unwrap();
    symlink(scene.path("hosts"), scene.path("client/hosts.toml")).unwrap();
    assert_output(&by("client"), 0, &[]);
    lchown(scene.path("client/hosts.toml"), Some(STRANGER), None).unwrap();
    assert_output(&by("client"), 11, &[LINE]);
}
