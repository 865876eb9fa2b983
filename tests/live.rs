//! The live display of `--ui`, on a pseudo-terminal.

use crate::kit::{Scene, Terminal, oracle, set_size, until, write_script};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::tcgetattr;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A rate at which a file of [`SLOW_BYTES`] is still copied when the display has appeared.
const SLOWLY: &str = "--bwlimit=200";
const SLOW_BYTES: usize = 600_000;

/// Nothing that a host, a name or an argument contains controls the terminal.
#[test]
fn control_characters_of_others_do_not_reach_the_terminal() {
    const HOSTILE: &str = "\x1b[31m\x07\u{9b}2J\x7f\rover";
    const ESCAPED: &str = "\\#033[31m\\#007\\#302\\#2332J\\#177\\#015over";
    let dir = tree();
    let script = format!("#!/bin/sh\nprintf 'out {HOSTILE}\\n'; printf 'err {HOSTILE}\\n' >&2\n");
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    write_script(&dir.path().join("bin/ssh"), &script);
    std::fs::write(dir.path().join("src").join(HOSTILE), "").unwrap();
    let path = format!(
        "{}/bin:{}",
        dir.path().display(),
        std::env::var("PATH").unwrap()
    );
    let missing = format!("none{HOSTILE}");
    for (words, shown_texts) in [
        (&["-a", "host:src/", "dst"][..], &["out ", "err "][..]),
        (&["doctor", "host"], &["out "]),
        (&["server", "status", "host"], &["out ", "err "]),
        (&["server", "pin", "host"], &["out ", "err "]),
        (&["server", "metrics", "host"], &["out ", "err "]),
        (&["server", "grants", "host"], &["out ", "err "]),
        (&["enroll", "host"], &["err "]),
        (&["-av", "src/", "dst2"], &[""]),
        (&["-a", &missing, "dst3"], &["none"]),
        (
            &["-a", &format!("--filter={missing}"), "src/", "dst3"],
            &["none"],
        ),
        (
            &[
                "-a",
                &format!("--metrics-file=/{missing}/x"),
                "src/",
                "dst4",
            ],
            &["none"],
        ),
        (
            &["-a", &format!("sparsync://{missing}/x"), "dst4"],
            &["none"],
        ),
        (&["server", "revoke", &missing], &["none"]),
        (&["doctor", &format!("--{missing}")], &["none"]),
    ] {
        let terminal = Terminal::new(200);
        let child = terminal.start(sparsync(dir.path(), words).env("PATH", &path));
        let (_, shown) = terminal.end(child);
        for start in shown_texts {
            assert!(
                shown.contains(&format!("{start}{ESCAPED}")),
                "{words:?}: {shown:?}"
            );
        }
        let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
        let lines = shown.replace("\r\n", "\n");
        assert!(lines.chars().all(is_plain), "{words:?}: {shown:?}");
    }
    // A script reads names as rsync prints them, and JSON escapes them in its own way.
    let raw = output(&mut sparsync(dir.path(), &["-av", "src/", "dst5"])).stdout;
    let text = String::from_utf8_lossy(&raw).into_owned();
    assert!(
        text.contains("\\#033[31m\\#007\u{9b}2J\x7f\\#015over\n"),
        "{text:?}"
    );
    let raw = output(&mut sparsync(
        dir.path(),
        &["-av", "--json", "src/", "dst6"],
    ))
    .stdout;
    let text = String::from_utf8_lossy(&raw).into_owned();
    assert!(
        text.contains("\\u001b[31m\\u0007\\u009b2J\\u007f\\rover"),
        "{text:?}"
    );
    assert!(
        text.chars().all(|c| !c.is_control() || c == '\n'),
        "{text:?}"
    );
}

#[test]
fn user_at_a_terminal_is_told_of_a_silent_host() {
    const LINE: &str =
        "sparsync: far has sent nothing for 5 s; still waiting (--timeout=SECONDS limits the wait)";
    let dir = tree();
    write_script(&dir.path().join("silent"), "#!/bin/sh\nexec sleep 60\n");
    let hides = "#!/bin/sh\nstty -echo </proc/$PPID/fd/2\nexec sleep 60\n";
    write_script(&dir.path().join("hides"), hides);
    std::os::unix::fs::symlink(oracle::under_test(), dir.path().join("rsync")).unwrap();
    let rsync = dir.path().join("rsync");
    // All of them wait at the same time.
    let runs = [
        (oracle::under_test(), "silent", "-a", true),
        (oracle::under_test(), "silent", "-aq", false),
        // As ssh does while it asks for a password.
        (oracle::under_test(), "hides", "-a", false),
        (&rsync, "silent", "-a", false),
    ]
    .map(|(program, shell, option, is_told)| {
        let mut command = sparsync(dir.path(), &[option, "--timeout=6"]);
        command = {
            let mut named = Command::new(program);
            named.args(command.get_args()).current_dir(dir.path());
            named
        };
        command.args([
            "-e",
            &format!("./{shell}"),
            "--rsync-path=rsync",
            "src/",
            "far:dst",
        ]);
        let terminal = Terminal::new(200);
        let child = terminal.start(&mut command);
        (terminal, child, (shell, option, is_told))
    });
    for (terminal, child, (shell, option, is_told)) in runs {
        let (code, shown) = terminal.end(child);
        assert_eq!(code, Some(30), "{shown:?}");
        let count = shown.lines().filter(|line| line == &LINE).count();
        assert_eq!(count, usize::from(is_told), "{shell} {option}: {shown:?}");
    }
}

/// A directory with a source.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::create_dir_all(dir.path().join("src/sub")).expect("scratch can be written");
    for (name, len) in [
        ("src/a", 1000),
        ("src/b\x1bc", 10),
        ("src/sub/d", 2000),
        ("slow", SLOW_BYTES),
    ] {
        std::fs::write(dir.path().join(name), vec![b'x'; len]).expect("scratch can be written");
    }
    dir
}

fn sparsync(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(oracle::under_test());
    command
        .args(args)
        .current_dir(dir)
        .env("LC_ALL", "C.UTF-8")
        .env("TERM", "xterm")
        .env("SPARSYNC_UI", "0");
    command.env("SPARSYNC_CONFIG_DIR", dir.join("config"));
    command
}

fn output(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// Returns the lines that remain on a terminal after the display was cleared.
fn remaining(shown: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for line in shown.split('\n') {
        // What precedes the last control sequence of a line is cleared.
        let last = line
            .trim_end_matches('\r')
            .rsplit(['\r', '\x1b'])
            .next()
            .unwrap_or_default();
        lines.push(
            ["[K", "[J", "[1A"]
                .iter()
                .find_map(|code| last.strip_prefix(code))
                .unwrap_or(last)
                .to_owned(),
        );
    }
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

#[test]
fn display_appears_and_a_summary_remains() {
    let dir = tree();
    let terminal = Terminal::new(100);
    let child = terminal.start(&mut sparsync(dir.path(), &["-av", "--ui", "src/", "dst"]));
    let (code, shown) = terminal.end(child);
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(
        shown.contains(" files copied  local copy") && shown.contains(" of 5 entries"),
        "the display has two lines: {shown:?}"
    );
    let lines = remaining(&shown);
    let last: Vec<_> = lines
        .iter()
        .rev()
        .take(3)
        .rev()
        .map(String::as_str)
        .collect();
    assert_eq!(
        last[0], "3 of 3 files copied, 5 entries created, 0 deleted",
        "{shown:?}"
    );
    assert_eq!(last[1], "3.01KB written, 100.0% of a full copy (3.01KB)");
    assert!(
        last[2].ends_with(" s, local copy") || last[2].ends_with("B/s, local copy"),
        "{last:?}"
    );
    let plain = output(&mut sparsync(dir.path(), &["-av", "src/", "other"]));
    let names = |lines: &[String]| -> Vec<String> {
        ["a", "b\\#033c", "sub/", "sub/d"]
            .iter()
            .filter(|name| lines.iter().any(|line| line == *name))
            .map(|name| name.to_string())
            .collect()
    };
    let plain: Vec<String> = String::from_utf8_lossy(&plain.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(
        (names(&lines).len(), names(&lines)),
        (4, names(&plain)),
        "each line is whole: {shown:?}"
    );
}

#[test]
fn failures_are_counted_while_the_run_goes_on_and_in_the_summary() {
    let dir = tree();
    let mut terminal = Terminal::new(100);
    let args = ["-a", "--ui", SLOWLY, "absent", "slow", "dst"];
    let child = terminal.start(&mut sparsync(dir.path(), &args));
    terminal.until("0 files copied, 1 FAILED  local copy");
    let (code, shown) = terminal.end(child);
    assert_eq!(code, Some(23), "{shown:?}");
    let lines = remaining(&shown);
    let absent = dir.path().canonicalize().unwrap().join("absent");
    let first = format!(
        "1 copied, 1 FAILED (exit 23), first: rsync: [sender] link_stat \"{}\" failed: No such file or directory (2)",
        absent.display()
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("1 of 1 files copied, 1 entries created"))
            && lines.contains(&first),
        "{lines:#?}"
    );
}

#[test]
fn variable_sets_the_option_and_a_dry_run_has_a_summary() {
    let dir = tree();
    let terminal = Terminal::new(80);
    let child =
        terminal.start(sparsync(dir.path(), &["-an", "src/", "dst"]).env("SPARSYNC_UI", "1"));
    let (code, shown) = terminal.end(child);
    assert_eq!(code, Some(0));
    assert!(shown.contains("3 of 3 files would be copied"), "{shown:?}");
    assert!(!dir.path().join("dst").exists());
}

#[test]
fn terminal_is_restored_after_sigint() {
    let dir = tree();
    let mut terminal = Terminal::new(80);
    let before = tcgetattr(&terminal.near).expect("it is a terminal");
    let near = terminal.near.try_clone().expect("a descriptor is free");
    let child = terminal.start(&mut sparsync(
        dir.path(),
        &["-a", "--ui", SLOWLY, "slow", "dst"],
    ));
    let shown = terminal.until("local copy");
    kill_process(Pid::from_child(&child), Signal::INT).expect("the child is ours");
    let after = tcgetattr(&near).expect("it is a terminal");
    drop(near);
    let (code, rest) = terminal.end(child);
    assert_eq!(code, Some(20), "{rest:?}");
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
    for hidden in ["\x1b[?25l", "\x1b[?1049h"] {
        assert!(
            !shown.contains(hidden) && !rest.contains(hidden),
            "{shown:?} {rest:?}"
        );
    }
    let end = remaining(&rest);
    let [.., error, stopped] = &end[..] else {
        panic!("the error and how far the run came: {rest:?}");
    };
    assert!(error.contains("(code 20)"), "{rest:?}");
    assert!(
        stopped.starts_with("stopped") && stopped.ends_with("; run again to continue"),
        "{rest:?}"
    );
    assert!(
        !end.iter().any(|line| line.contains("local copy")),
        "the display is cleared: {rest:?}"
    );
}

#[test]
fn copy_survives_the_loss_of_its_terminal() {
    let dir = tree();
    let mut terminal = Terminal::new(80);
    let mut child = terminal.start(&mut sparsync(
        dir.path(),
        &["-av", "--ui", SLOWLY, "slow", "src/", "dst"],
    ));
    terminal.until("local copy");
    drop(terminal);
    assert_eq!(
        child.wait().expect("the program was started").code(),
        Some(0)
    );
    assert_eq!(
        std::fs::read(dir.path().join("dst/slow"))
            .expect("it was copied")
            .len(),
        SLOW_BYTES
    );
    assert!(dir.path().join("dst/sub/d").exists());
}

#[test]
fn display_follows_the_width_of_the_terminal() {
    let dir = tree();
    let mut terminal = Terminal::new(35);
    let mut child = terminal.start(&mut sparsync(
        dir.path(),
        &["-a", "--ui", SLOWLY, "slow", "dst"],
    ));
    let narrow = terminal.until(" files copied");
    assert!(!narrow.contains("local copy"), "{narrow:?}");
    set_size(&terminal.near, 90, 24);
    terminal.until("local copy");
    child.kill().expect("the child is ours");
    child.wait().expect("the program was started");
}

#[test]
fn pipe_gets_nothing_extra() {
    let dir = tree();
    let again = || {
        let _ = std::fs::remove_dir_all(dir.path().join("dst"));
        sparsync(dir.path(), &["-ai", "src/", "absent", "dst"])
    };
    let plain = output(&mut again());
    let both = output(again().arg("--ui"));
    assert_eq!((&both.stdout, &both.stderr), (&plain.stdout, &plain.stderr));
    // One of the streams is a terminal.
    let terminal = Terminal::new(80);
    let mut command = again();
    let child = command
        .arg("--ui")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(terminal.stdio());
    let child = child.spawn().expect("the program starts");
    drop(command);
    let printed = child.wait_with_output().expect("the program was started");
    assert_eq!(printed.stdout, plain.stdout);
    let (near, mut shown, mut errors) = (terminal.near, terminal.shown, Vec::new());
    drop(near);
    let _ = shown.read_to_end(&mut errors);
    assert_eq!(
        String::from_utf8_lossy(&errors).replace("\r\n", "\n"),
        String::from_utf8_lossy(&plain.stderr)
    );
}

#[test]
fn quiet_and_json_runs_have_no_display() {
    let dir = tree();
    for args in [
        &["-aq", "--ui", "src/", "quiet"][..],
        &["-a", "--json", "--ui", "src/", "json"],
        &["-r", "--ui", "src/"],
    ] {
        let terminal = Terminal::new(80);
        let child = terminal.start(&mut sparsync(dir.path(), args));
        let (code, shown) = terminal.end(child);
        assert_eq!(code, Some(0));
        assert!(
            !shown.contains('\x1b') && !shown.contains("full copy"),
            "{args:?}: {shown:?}"
        );
    }
}

#[test]
fn route_is_shown_with_its_reason() {
    let dir = tree();
    let shell = dir.path().join("shell");
    let program = oracle::under_test().display();
    write_script(
        &shell,
        &format!("#!/bin/sh\nshift 2\nexec {program} \"$@\"\n"),
    );
    let dest = format!("box:{}", dir.path().join("dst").display());
    for (from, to) in [("src/", &*dest), (&*format!("{dest}/"), "back")] {
        let terminal = Terminal::new(100);
        let child = terminal.start(&mut sparsync(
            dir.path(),
            &["-a", "--ui", "-e", "./shell", from, to],
        ));
        let (code, shown) = terminal.end(child);
        assert_eq!(code, Some(0), "{shown:?}");
        assert!(
            shown.contains(", box, by a remote shell: the host is not enrolled\r\n"),
            "{shown:?}"
        );
        assert!(shown.contains("3 of 3 files copied, "), "{shown:?}");
    }
}

/// A client's copy over an enrolled route on a terminal. The `ssh` of the scene is first in `PATH`.
fn enrolled(granted: &str) -> (Scene, String) {
    let scene = Scene::new();
    scene.enroll(granted);
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("sparsync"))
        .expect("scratch supports symlinks");
    let path = format!(
        "{}:{}",
        scene.path("").display(),
        std::env::var("PATH").expect("a test has a PATH")
    );
    (scene, path)
}

#[test]
fn route_follows_a_change_during_the_run() {
    const BYTES: usize = 8 << 20;
    let (scene, path) = enrolled("--root TOP --no-munge");
    std::fs::write(scene.path("src/big"), vec![b'x'; BYTES]).expect("scratch can be written");
    let mut terminal = Terminal::new(120);
    let child = terminal.start(
        scene
            .command("client", "-a --ui --bwlimit=2m src/big host:TOP/in/big")
            .env("PATH", path)
            .env("TERM", "xterm"),
    );
    let shown = terminal.until(", port ");
    assert!(shown.contains("  host, by "), "{shown:?}");
    until(|| scene.status("bytes_in").parse::<usize>().expect("a number") >= BYTES / 8);
    scene.well("stop --now");
    let mut shown = terminal.until("  host, by a remote shell: its server was stopped");
    let (code, rest) = terminal.end(child);
    // On a busy machine, one read can return all.
    shown.push_str(&rest);
    assert_eq!(code, Some(0), "{shown:?}");
    let last = remaining(&shown).pop().unwrap_or_default();
    assert!(
        last.ends_with(" s, host, by a remote shell: its server was stopped")
            || last.contains("B/s, host, by a remote shell: its server was stopped"),
        "{last}"
    );
}

#[test]
fn route_is_the_one_that_a_grant_leaves() {
    let (scene, path) = enrolled("--root TOP/in --read-only");
    let terminal = Terminal::new(120);
    let child = terminal.start(
        scene
            .command("client", "-a --ui src/ host:TOP/in/")
            .env("PATH", path)
            .env("TERM", "xterm"),
    );
    let (code, shown) = terminal.end(child);
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(
        shown.contains(", host, by a remote shell: its server denies access\r\n"),
        "{shown:?}"
    );
}

#[test]
fn large_copy_shows_that_it_continues_over_tls() {
    let (scene, path) = enrolled("--root TOP --no-munge");
    // QUIC is tried first, so that TLS cannot win.
    let hosts =
        std::fs::read_to_string(scene.path("client/hosts.toml")).expect("the host is enrolled");
    let last = format!("{hosts}last_route = \"quic\"\nlast_until = \"2100-01-01T00:00:00Z\"\n");
    std::fs::write(scene.path("client/hosts.toml"), last).expect("scratch can be written");
    std::fs::write(scene.path("src/big"), vec![b'x'; 64 << 20]).expect("scratch can be written");
    let terminal = Terminal::new(120);
    let child = terminal.start(
        scene
            .command("client", "-a -vv --ui src/big host:TOP/in/big")
            .env("PATH", path)
            .env("TERM", "xterm"),
    );
    let (code, shown) = terminal.end(child);
    assert_eq!(code, Some(0), "{shown:?}");
    let lines = remaining(&shown);
    let last = lines.last().map(String::as_str).unwrap_or_default();
    // On a busy machine the path may not look clean, and the session stays on QUIC.
    let has_moved = lines.iter().any(|line| line.contains(": using TLS after "));
    assert!(
        last.contains(", host, by QUIC, port ") || !shown.contains("using QUIC"),
        "{shown:?}"
    );
    assert_eq!(
        last.ends_with(": the host is enrolled, then TLS"),
        has_moved,
        "{shown:?}"
    );
}

/// Without a terminal, too. The summary follows.
#[test]
fn plain_display_prints_lines() {
    let dir = tree();
    // Ten seconds last a sixth of a second.
    let printed = output(
        sparsync(dir.path(), &["-a", "--ui=plain", SLOWLY, "slow", "dst"])
            .env("SPARSYNC_MINUTE_SECS", "1"),
    );
    let text = String::from_utf8_lossy(&printed.stderr);
    let line = "sparsync: copying, 0:0";
    assert!(text.lines().any(|shown| shown.starts_with(line)), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('\r'), "{text:?}");
    assert!(text.contains("1 of 1 files copied, "), "{text}");
    assert!(printed.stdout.is_empty());
}

/// Under our own name, a long run that prints nothing else has a display.
#[test]
fn long_run_has_a_display_by_itself() {
    let dir = tree();
    let rsync = dir.path().join("rsync");
    std::os::unix::fs::symlink(oracle::under_test(), &rsync).unwrap();
    for (args, variable, is_shown) in [
        (&["-a", SLOWLY, "slow", "dst"][..], None, true),
        (&["-a", "--no-ui", SLOWLY, "slow", "dst"], None, false),
        (&["-a", SLOWLY, "slow", "dst"], Some("0"), false),
        (
            &["-a", "--out-format=%n", SLOWLY, "slow", "dst"],
            None,
            false,
        ),
        (&["-a", "--stats", SLOWLY, "slow", "dst"], None, false),
    ] {
        let _ = std::fs::remove_file(dir.path().join("dst"));
        let terminal = Terminal::new(80);
        let mut command = sparsync(dir.path(), args);
        command.env_remove("SPARSYNC_UI");
        if let Some(variable) = variable {
            command.env("SPARSYNC_UI", variable);
        }
        let child = terminal.start(&mut command);
        // It holds the terminal open.
        drop(command);
        let (code, shown) = terminal.end(child);
        assert_eq!(code, Some(0), "{shown:?}");
        assert_eq!(
            shown.contains("copying, 0:0"),
            is_shown,
            "{args:?}: {shown:?}"
        );
    }
    let _ = std::fs::remove_file(dir.path().join("dst"));
    let terminal = Terminal::new(80);
    let mut command = Command::new(&rsync);
    command
        .args(["-a", SLOWLY, "slow", "dst"])
        .current_dir(dir.path());
    let child = terminal.start(command.env("TERM", "xterm").env_remove("SPARSYNC_UI"));
    drop(command);
    assert_eq!(terminal.end(child), (Some(0), String::new()));
}
