//! Names and paths at the limits of what the messages between two programs can have. None of them ends a run.

use crate::delete::{open_dir, run};
use crate::kit::{Scene, assert_output, oracle};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

/// How many directories in each other, with names of 250 bytes, have a path of more than 64 KiB.
const TOO_MANY: usize = 270;

/// Makes directories in each other, whose names are 250 times this character. Returns the last one.
fn make_long_path(top: &Path, character: &str, levels: usize) -> OwnedFd {
    std::fs::create_dir_all(top).expect("scratch can be written");
    let name = character.repeat(250);
    let mut dir = open_dir(CWD, top);
    for _ in 0..levels {
        mkdirat(&dir, &name, Mode::RWXU).expect("scratch can be written");
        dir = open_dir(&dir, Path::new(&name));
    }
    dir
}

/// Writes a file of this content in a directory. All files have the same time.
fn write_at(dir: &OwnedFd, name: &str, content: &str) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::RUSR | Mode::WUSR).expect("scratch can be written");
    let mut file = File::from(file);
    file.write_all(content.as_bytes())
        .expect("scratch can be written");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(time).expect("the test's own file");
}

/// Runs a command line. `REMOTE` are the options of a copy over a remote shell, and `HOST` is the other machine.
fn copy(scene: &Scene, line: &str) -> Output {
    let line = line.replace("HOST", "box:TOP");
    run(
        scene,
        &line.replace("REMOTE", "-e TOP/sh --rsync-path=PROGRAM"),
    )
}

/// A path that the protocols cannot express does not end a run, at either end.
#[test]
fn paths_that_no_message_can_have() {
    let scene = Scene::new();
    scene.tree("src").text("a z");
    make_long_path(&scene.path("src/long"), "n", TOO_MANY);
    let push = "-ri --delete REMOTE src/ HOST/pushed/";
    for (line, dest) in [
        (push, "pushed"),
        ("-ri --delete REMOTE HOST/src/ pulled/", "pulled"),
    ] {
        let output = copy(&scene, line);
        assert_output(&output, 23, &["its path is too long"]);
        assert!(scene.path(dest).join("z").exists(), "{line}");
    }

    for dest in ["pushed", "served"] {
        make_long_path(&scene.path(dest).join("extra"), "n", TOO_MANY);
    }
    std::fs::remove_dir_all(scene.path("src")).expect("it can be removed");
    scene.tree("src").text("a z");
    assert_output(&copy(&scene, push), 0, &["*deleting   extra/"]);
    scene.fake_shell("sh", "exec sh -c \"$*\"");
    let served = "-ri --delete -e TOP/sh --rsync-path=PROGRAM src/ box:TOP/served/";
    let program = oracle::under_test().to_str().expect("a usual path");
    let served = scene.placed(served).replace("PROGRAM", program);
    let output = Command::new(oracle::rsync())
        .args(served.split(' '))
        .current_dir(scene.path(""))
        .output()
        .expect("rsync can be started");
    assert_output(&output, 0, &["*deleting   extra/"]);
    assert!(scene.path("served/z").exists() && !scene.path("served/extra").exists());
}

/// A new file takes the content of a file that is too deep for any message, and the run reports it.
#[test]
fn reused_content_below_a_long_path() {
    const CONTENT: &str = "the content of a file that was moved\n";
    let scene = Scene::new();
    for dir in ["from", "to"] {
        std::fs::create_dir(scene.path(dir)).expect("scratch can be written");
    }
    write_at(&open_dir(CWD, &scene.path("from")), "file", CONTENT);
    let deep = make_long_path(&scene.path("to/extra"), "n", TOO_MANY);
    write_at(&deep, "file", CONTENT);
    let output = copy(
        &scene,
        "-rt --delete --detect-renamed --json REMOTE from/ HOST/to/",
    );
    assert_output(&output, 0, &["\"reused_files\":1,"]);
    assert!(scene.path("to/file").exists() && !scene.path("to/extra").exists());
}

/// In a line of a plan, each control character takes six bytes.
#[test]
fn plan_of_long_paths() {
    let scene = Scene::new();
    write_at(
        &make_long_path(&scene.path("from/new"), "\x01", 255),
        "file",
        "new",
    );
    make_long_path(&scene.path("to/extra"), "\x01", TOO_MANY);
    let planned = copy(&scene, "plan -rt --delete -o plan REMOTE from/ HOST/to/");
    assert_output(&planned, 0, &[]);
    assert_output(&run(&scene, "apply plan"), 0, &[]);
    let again = copy(&scene, "-rti --delete REMOTE from/ HOST/to/");
    assert_output(&again, 0, &[]);
    assert_eq!(again.stdout, b"");
    assert!(scene.path("to/new").exists() && !scene.path("to/extra").exists());
}

/// What is too long for any path or pattern means nothing in a copy over a remote shell, as in one on this machine.
#[test]
fn long_lines_of_lists_and_rules() {
    let scene = Scene::new();
    scene.tree("from").text("a z");
    let deep = ["n"; 40_000].join("/");
    scene.file("list", &format!("{deep}\na\n"));
    scene.file("rules", &format!("{}\nz\n", "n".repeat(300_000)));
    for (direction, way) in [("pull", "HOST/from/ pull/"), ("push", "from/ HOST/push/")] {
        let listed = copy(&scene, &format!("-r --files-from=list REMOTE {way}"));
        assert_output(&listed, 23, &["link_stat"]);
        let excluding = copy(&scene, &format!("-r --exclude-from=rules REMOTE {way}"));
        assert_output(&excluding, 0, &[]);
        let dest = scene.path(direction);
        assert!(
            dest.join("a").exists() && !dest.join("z").exists(),
            "{direction}"
        );
    }
}

/// Some file systems permit names of 1,024 bytes.
#[test]
fn long_name_as_an_operand() {
    let scene = Scene::new();
    let name = "n".repeat(300);
    let output = copy(&scene, &format!("-a REMOTE HOST/{name} got/"));
    assert_output(&output, 23, &["failed: File name too long (36)"]);
}
