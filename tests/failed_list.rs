//! `--failed-list`: what a run could not transfer, in the form that `--files-from` reads.

use crate::kit::{Scene, World, oracle, synctest, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Why a served route has no case.
const NO_CLIENT: &str = "the client is rsync, which has no such option";

/// Without it, an rsync at the other end does not send its messages.
const SENT: &str = "--stderr=client";

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// Files and a directory that cannot be read.
const SHUT: [&str; 3] = ["src/#c", "src/d/unread", "src/shut"];

fn shut(w: &World) {
    w.source("#c a d/b d/unread shut/x taken")
        .dest("old taken/x");
    w.change(|twin| {
        for path in SHUT {
            set_mode(&twin.join(path), 0);
        }
    });
}

fn read(w: &World, name: &str) -> String {
    std::fs::read_to_string(w.tested().join(name)).expect("the list was written")
}

synctest!(what_failed_can_be_tried_again, as user, |w: World| {
    w.not_served(NO_CLIENT);
    w.not_with_daemon("a daemon of root reads what the user cannot");
    shut(&w);
    w.alone(&["-rlt", SENT, "--failed-list=list"]).exits(23);
    assert_eq!(read(&w, "list"), "./#c\nd/unread\nshut\ntaken\n");
    let mode = w.tested().join("list").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);

    w.change(|twin| {
        for path in SHUT {
            set_mode(&twin.join(path), 0o755);
        }
        std::fs::remove_dir_all(twin.join("dst/taken")).expect("it is ours");
    });
    w.alone(&["-rlt", "--files-from=list", "--failed-list=list"]).exits(0);
    assert_eq!(read(&w, "list"), "");
    for path in ["#c", "d/unread", "shut/x", "taken"] {
        assert!(w.tested().join("dst").join(path).exists(), "{path}");
    }
});

synctest!(names_end_with_nul_bytes_on_request, as user, |w: World| {
    w.not_served(NO_CLIENT);
    w.source("c #d%0").file("src/a\nb", "");
    w.change(|twin| set_mode(&twin.join("src/a\nb"), 0));
    w.alone(&["-a", SENT, "--failed-list=list", "--from0"]).exits(23);
    // Names of a list are comments also if they end with NUL bytes.
    assert_eq!(read(&w, "list"), "./#d\0a\nb\0");
    w.change(|twin| set_mode(&twin.join("src/#d"), 0o644));
    let message = "sparsync: 1 problem is not in list: names with a newline or carriage return cannot be in a list of lines";
    w.alone(&["-a", SENT, "--failed-list=list"]).exits(23).warns(message);
    assert_eq!(read(&w, "list"), "");
});

synctest!(failed_deletions_are_counted_and_not_listed, as user, |w: World| {
    w.not_served(NO_CLIENT);
    w.not_with_daemon("a daemon of root deletes what the user cannot");
    w.source("a kept/b").dest("kept/old kept/older");
    w.build("dst/kept", |t| drop(t.dir(".").owner(1, 1).mode(0o555)));
    let run = w.alone(&["-r", SENT, "--delete", "--failed-list=list"]).exits(23);
    let run = run.warns("sparsync: 2 problems are not in list: entries that were not deleted are not listed");
    assert!(!run.stderr.contains("hint: "), "{}", run.stderr);
    assert!(!run.stderr.contains("no path of the transfer"), "{}", run.stderr);
});

synctest!(source_directory_with_its_name, as user, |w: World| {
    w.only_local("only the operands matter");
    w.source("a b/c");
    w.change(|twin| set_mode(&twin.join("src/b/c"), 0));
    for (options, operands, wanted) in [
        (&["-a"][..], &["src", "dst"][..], "src/b/c\n"),
        (&["-aR"], &["src/b/", "dst"], "src/b/c\n"),
        (&["-aR"], &["src/./b", "dst"], "b/c\n"),
        (&["-a"], &["src/b/c", "dst/new"], "c\n"),
        (&["-a"], &["src/a", "src/b/", "dst"], "c\n"),
        (&["-a"], &["src/a", "src/none", "dst"], "none\n"),
    ] {
        let options = [options, &["--failed-list=list"]].concat();
        w.alone_paths(&options, operands).exits(23);
        assert_eq!(read(&w, "list"), wanted, "{options:?} {operands:?}");
    }
});

/// The list is complete as far as the run came.
#[test]
fn interrupted_run_leaves_its_list() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("tree")).unwrap();
    std::fs::write(scene.path("tree/big"), vec![b'x'; 9_000_000]).unwrap();
    std::fs::write(scene.path("list"), "old").unwrap();
    let mut run = Command::new(oracle::under_test())
        .args([
            "-a",
            "--bwlimit=500",
            "--failed-list=list",
            "none",
            "tree/",
            "dst",
        ])
        .current_dir(scene.path(""))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(|| scene.path("dst").exists());
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(20));
    let list = std::fs::read_to_string(scene.path("list")).unwrap();
    assert_eq!(list, "none\n");
}

/// A script must not take a list of an earlier run for that of this one.
#[test]
fn list_that_cannot_be_written_is_an_error() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("tree")).unwrap();
    let run = Command::new(oracle::under_test())
        .args(["-a", "--failed-list=none/list", "tree/", "dst"])
        .current_dir(scene.path(""))
        .output()
        .unwrap();
    let message = "sparsync: cannot write none/list: No such file or directory (2)\n";
    assert_eq!(String::from_utf8_lossy(&run.stderr), message);
    assert_eq!(run.status.code(), Some(11));
}

synctest!(a_silent_rsync_at_the_other_end_is_mentioned, as user, with stock, |w: World| {
    w.not_with_daemon("a daemon sends its messages");
    w.source("a b").dest("b/x");
    w.change(|twin| set_mode(&twin.join("src/a"), 0));
    let message = "hint: add --stderr=client";
    w.alone(&["-a", "--failed-list=list"]).exits(23).warns(message);
});
