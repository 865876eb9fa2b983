//! Paths on another machine mean the same on every route: wildcards, home directories, several paths in one operand.

use crate::kit::{FAKE_SSH, Scene, oracle};
use std::path::Path;
use std::process::{Command, Output};

/// The routes that need no remote shell to read the paths, and the others.
const BY_SERVER: [&str; 2] = ["--transport=quic", "--transport=tls"];
const BY_SHELL: &str = "--transport=ssh";
/// A host that is not enrolled.
const ONCE: &str = "--transport=quic (once)";

/// A scene with the enrolled host `host`, which can also be reached through the shell `ssh`.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.script(
        "ssh",
        &(FAKE_SSH.replace("while", "echo \"$*\" >>TOP/sshed\nwhile")
            + "export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\ncd TOP\nexec sh -c \"$*\"\n")
            .replace("TOP", &scene.placed("TOP")),
    );
    for name in ["a", "b", ".h", "d/y", ".hd/y", "c d", "s*r", "x[", "b\\c"] {
        scene.file(&format!("from/{name}"), "content\n");
    }
    scene.sh("mkdir from/e; ln -s nowhere from/link");
    scene.file("~name", "content\n");
    scene.enroll("--root=/");
    scene
}

/// Returns a copy by this route, in which `HOST` stands for the host.
fn copy(scene: &Scene, route: &str, words: &[&str]) -> Command {
    let mut command = scene.command("client", "");
    let host = if route == ONCE {
        let program = oracle::under_test().display();
        command.arg(format!("--rsync-path={program}"));
        "other"
    } else {
        "host"
    };
    let place = |word: &&str| scene.placed(word).replace("HOST", host);
    command
        .args(route.split(' ').next())
        .args(words.iter().map(place))
        .env("PATH", path_with_ssh(scene));
    command
}

fn path_with_ssh(scene: &Scene) -> String {
    let path = std::env::var("PATH").unwrap();
    format!("{}:{path}", scene.path("").display())
}

/// Runs a pull into the new directory `got`, and returns the names there, or the exit code.
fn pulled(scene: &Scene, mut command: Command) -> String {
    scene.sh("rm -rf got; mkdir got");
    let output = command.output().expect("a program can be started");
    if output.status.success() {
        names(&scene.path("got")).join(" ")
    } else {
        format!("exit {:?}", output.status.code().unwrap_or(-1))
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Pulls an operand with an option by rsync over ssh, and by sparsync on each route, and checks which names come.
#[track_caller]
fn pulls(scene: &Scene, [option, operand]: [&str; 2], wanted: &str) {
    let words = [option, operand, "got/"];
    let mut rsync = scene.program(oracle::rsync());
    rsync
        .args(words.map(|word| scene.placed(word).replace("HOST", "host")))
        .env("PATH", path_with_ssh(scene));
    assert_eq!(pulled(scene, rsync), wanted, "rsync {operand}");
    for route in [BY_SHELL, ONCE].iter().chain(&BY_SERVER) {
        let names = pulled(scene, copy(scene, route, &words));
        assert_eq!(names, wanted, "{route} {operand}");
    }
}

#[test]
fn wildcards_are_those_of_a_shell() {
    let scene = scene();
    let missing = "exit 23";
    for (pattern, wanted) in [
        ("*", "a b b\\c c d d e link s*r x["),
        ("?", "a b d e"),
        ("?h", missing),
        ("[.]h", missing),
        (".h*", ".h .hd"),
        ("*/y", "y"),
        ("[ab]", "a b"),
        ("[[:alpha:]]", "a b d e"),
        ("x[*", "x["),
        ("b\\*", missing),
        ("b\\c*", "b\\c"),
        ("\\a*", missing),
        ("s\\*r", "s*r"),
        ("s\\**", "s*r"),
        ("x\\[", "x["),
        ("none*", missing),
        ("{a,b}", missing),
        ("lin*", "link"),
        ("$HOME*", missing),
        ("a b", missing),
    ] {
        pulls(&scene, ["-dl", &format!("HOST:TOP/from/{pattern}")], wanted);
        let url = format!("sparsync://HOST/TOP/from/{pattern}").replace("/TOP", "TOP");
        let by_url = pulled(
            &scene,
            copy(&scene, "--transport=auto", &["-dl", &url, "got/"]),
        );
        assert_eq!(by_url, wanted, "a URL: {pattern}");
    }
    // rsync escapes the exclamation mark and then refuses what it receives.
    for route in [BY_SHELL, ONCE].iter().chain(&BY_SERVER) {
        let words = ["-dl", "HOST:TOP/from/[!b-z]*", "got/"];
        assert_eq!(pulled(&scene, copy(&scene, route, &words)), "a", "{route}");
    }
}

#[test]
fn wildcards_of_secluded_arguments_are_those_of_rsync() {
    let scene = scene();
    for (pattern, wanted) in [
        ("TOP/from/*", ".h .hd a b b\\c c d d e s*r x["),
        ("TOP/from/[!b-z]*", ".h .hd a"),
        ("TOP/from/?h", ".h"),
        ("TOP/from/s\\*r", "s*r"),
        ("TOP/from/{a,b}", "exit 23"),
        ("~/from/a", "exit 23"),
        ("~name", "~name"),
    ] {
        pulls(&scene, ["-sd", &format!("HOST:{pattern}")], wanted);
    }
}

#[test]
fn home_directories_are_those_of_a_shell() {
    let scene = scene();
    for route in [BY_SHELL, ONCE].iter().chain(&BY_SERVER) {
        for (path, wanted) in [
            ("~/from/a", "a"),
            ("~/from/[ab]", "a b"),
            ("~name", "~name"),
            ("~", "exit 23"),
            ("./~name", "~name"),
        ] {
            let operand = format!("HOST:{path}");
            let names = pulled(&scene, copy(&scene, route, &["-d", &operand, "got/"]));
            assert_eq!(names, wanted, "{route} {path}");
        }
        scene.sh("rm -rf to");
        let pushed = copy(&scene, route, &["-r", "src/", "HOST:~/to"])
            .output()
            .unwrap();
        assert!(pushed.status.success(), "{route}: {pushed:?}");
        assert_eq!(names(&scene.path("to")), ["new"], "{route}");
    }
}

#[test]
fn old_arguments_are_split_by_a_shell_or_refused() {
    let scene = scene();
    let two = ["--old-args", "-d", "HOST:TOP/from/a TOP/from/b", "got/"];
    for route in [BY_SHELL, ONCE, "--transport=auto"] {
        assert_eq!(pulled(&scene, copy(&scene, route, &two)), "a b", "{route}");
    }
    let mut by_variable = copy(&scene, "--transport=auto", &two[1..]);
    by_variable.env("RSYNC_OLD_ARGS", "1");
    assert_eq!(pulled(&scene, by_variable), "a b");

    std::fs::remove_file(scene.path("sshed")).unwrap();
    let url = two.map(|word| word.replace("HOST:", "sparsync://HOST"));
    for (route, words) in [
        (BY_SERVER[0], two),
        (BY_SERVER[1], two),
        ("--transport=auto", url.each_ref().map(String::as_str)),
    ] {
        let output = copy(&scene, route, &words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{route}: {output:?}");
        let refusal = "--old-args is possible only over a remote shell for these arguments";
        assert!(printed(&output).contains(refusal), "{route}: {output:?}");
    }
    // A shell would change nothing in these.
    for route in BY_SERVER {
        let words = ["--old-args", "-d", "HOST:TOP/from/[ab]", "got/"];
        assert_eq!(
            pulled(&scene, copy(&scene, route, &words)),
            "a b",
            "{route}"
        );
    }
    assert!(!scene.path("sshed").exists(), "no shell was started");
}
