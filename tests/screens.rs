//! The whole screen during and after runs with a live display, compared with recordings in tests/screens.
//!
//! An emulator draws what the program writes to a pseudo-terminal. The program is held at a system call, so that its
//! screens do not depend on time.

use crate::kit::{
    Cut, FAKE_SSH, Relay, Scene, Screen, Tree, Trigger, noise, oracle, until, write_script,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};

/// The length of a file that has its own line.
const LARGE: usize = 4_000_000;

/// A source with a file that is the same in the destination, and one that is copied.
fn scene_with(name: &str) -> Scene {
    let scene = Scene::empty();
    for dir in ["src", "dst"] {
        same(&scene.tree(dir));
    }
    std::fs::write(scene.path("src").join(name), noise(1, LARGE)).expect("scratch can be written");
    scene
}

fn same(tree: &Tree) {
    tree.text("same");
}

fn sparsync(scene: &Scene, args: &[&str]) -> Command {
    // A shell that runs the tests in the background ignores SIGQUIT, and children inherit that.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=QUIT")
        .arg(oracle::under_test())
        .args(args)
        .current_dir(scene.top())
        .env("LC_ALL", "C.UTF-8")
        .env("TERM", "xterm")
        .env("SPARSYNC_CONFIG_DIR", scene.path("config"))
        .env_remove("SPARSYNC_UI");
    command
}

/// Holds a program while it copies the first file, until [`release`].
fn held<'a>(command: &'a mut Command, scene: &Scene) -> &'a mut Command {
    let _ = std::fs::remove_file(scene.path("gate"));
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, scene.path("gate"), FileType::Fifo, mode, 0).expect("scratch supports fifos");
    command
        .env("SPARSYNC_FAULT_IN", "tmpfile")
        .env("SPARSYNC_HOLD_AT", hold_at(scene))
}

fn hold_at(scene: &Scene) -> String {
    format!("1:{}", scene.path("gate").display())
}

/// Waits until a program is held. Dropping the result lets it go on.
fn gate(scene: &Scene) -> OwnedFd {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK;
    let mut gate = None;
    until(|| {
        gate = openat(CWD, scene.path("gate"), flags, Mode::empty()).ok();
        gate.is_some()
    });
    gate.expect("it was opened")
}

/// Lets the held program go on.
fn release(scene: &Scene) {
    drop(gate(scene));
}

/// Sends a signal, and waits until it has arrived.
fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the child is ours");
    let path = format!("/proc/{}/status", child.id());
    let bits = |line: &str| u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    until(|| {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        // What ended the program stays pending.
        let has_ended = status.contains("State:\tZ");
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        has_ended || pending.map_or(0, bits) == 0
    });
}

#[test]
fn screens_of_all_sizes() {
    for (columns, rows) in [(80, 24), (200, 50), (40, 24), (20, 5), (1, 1), (0, 0)] {
        let scene = scene_with("disk.img");
        let mut screen = Screen::new("sizes", scene.top(), columns, rows);
        let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
        let child = screen.start(held(&mut command, &scene));
        screen.shows(&format!("{columns}x{rows}, held"));
        release(&scene);
        let code = match columns {
            // The terminal wraps the summary anywhere.
            1 | 20 => screen.leaves(child).0,
            _ => screen.ends(child, &format!("{columns}x{rows}, ended")),
        };
        assert_eq!(code, Some(0), "{:?}", screen.written());
    }
}

#[test]
fn nothing_is_left_when_the_size_changes() {
    let scene = scene_with("a long name of a file that reaches far across the screen.img");
    let mut screen = Screen::new("resized", scene.top(), 80, 24);
    let mut command = sparsync(&scene, &["-a", "--ui", "absent", "src/", "dst"]);
    let child = screen.start(held(&mut command, &scene));
    screen.until("last error");
    for (at, (columns, rows)) in [
        (200, 50),
        (40, 24),
        (80, 24),
        (80, 4),
        (1, 1),
        (80, 24),
        (20, 5),
    ]
    .into_iter()
    .enumerate()
    {
        screen.resize(columns, rows);
        screen.shows(&format!("{}: {columns}x{rows}", at + 1));
    }
    screen.resize(200, 50);
    release(&scene);
    let code = screen.ends(child, "200x50, ended");
    assert_eq!(code, Some(23), "{:?}", screen.written());
}

#[test]
fn names_take_the_columns_that_they_have() {
    for (kind, name) in [
        (
            "wide",
            "\u{5199}\u{771f}\u{4e00}\u{4e8c}\u{4e09}\u{56db}\u{4e94}\u{516d}\u{4e03}.img",
        ),
        (
            "marks",
            "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}.img",
        ),
        (
            "joined",
            "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{263a}\u{fe0f} family.img",
        ),
        ("control", "a\x1b[31m\x07\u{9b}2J\x7f\nb.img"),
        (
            "long",
            "a name that is longer than the screen is wide, a name that is longer than the screen is wide.img",
        ),
    ] {
        for (columns, locale) in [(80, "C.UTF-8"), (40, "C.UTF-8"), (80, "C")] {
            let scene = scene_with(name);
            let mut screen = Screen::new("names", scene.top(), columns, 24);
            let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
            command.env("LC_ALL", locale);
            let child = screen.start(held(&mut command, &scene));
            screen.shows(&format!("{kind}, {columns} columns, {locale}"));
            release(&scene);
            let code = screen.ends(child, &format!("ended at {columns} columns"));
            assert_eq!(code, Some(0), "{kind}: {:?}", screen.written());
        }
    }
}

/// There are no colors, whether or not the user wants none, and a terminal that can only print lines gets lines.
#[test]
fn plain_terminals_get_no_control_sequences_that_they_lack() {
    for (variable, value) in [("NO_COLOR", "1"), ("NO_COLOR", ""), ("TERM", "dumb")] {
        let scene = scene_with("disk.img");
        let mut screen = Screen::new("plain", scene.top(), 200, 24);
        let mut command = sparsync(&scene, &["-a", "--ui", "absent", "src/", "dst"]);
        let child = screen.start(held(command.env(variable, value), &scene));
        screen.shows(&format!("{variable}={value}, held"));
        release(&scene);
        let code = screen.ends(child, &format!("{variable}={value}, ended"));
        assert_eq!(code, Some(23), "{:?}", screen.written());
        let colors = screen.written().split("\x1b[").skip(1).filter(|sequence| {
            let end = sequence.find(|c: char| c.is_ascii_alphabetic());
            end.is_some_and(|end| sequence[end..].starts_with('m'))
        });
        assert_eq!(colors.count(), 0, "{:?}", screen.written());
        assert_eq!(screen.written().contains('\x1b'), value != "dumb");
    }
}

#[test]
fn renamed_files_are_counted() {
    let scene = Scene::empty();
    for [source, dest] in [["src/new/1", "dst/old/1"], ["src/new/2", "dst/old/2"]] {
        for path in [source, dest] {
            let dir = scene.path(path);
            std::fs::create_dir_all(dir.parent().expect("it has a parent"))
                .expect("scratch can be written");
            std::fs::write(scene.path(path), "content").expect("scratch can be written");
            let file = std::fs::File::options()
                .append(true)
                .open(scene.path(path))
                .expect("it was just written");
            file.set_modified(std::time::UNIX_EPOCH)
                .expect("its time can be set");
        }
    }
    let mut screen = Screen::new("renamed", scene.top(), 120, 24);
    let mut command = sparsync(
        &scene,
        &[
            "-a",
            "--delete",
            "--detect-renamed=moved",
            "--ui",
            "src/",
            "dst",
        ],
    );
    // At the second rename.
    held(&mut command, &scene).env("SPARSYNC_FAULT_IN", "rename");
    let gate = format!("2:{}", scene.path("gate").display());
    let child = screen.start(command.env("SPARSYNC_HOLD_AT", gate));
    screen.shows("held");
    release(&scene);
    assert_eq!(
        screen.ends(child, "ended"),
        Some(0),
        "{:?}",
        screen.written()
    );
}

#[test]
fn lines_take_the_place_of_the_display() {
    let scene = scene_with("disk.img");
    let mut screen = Screen::new("lines", scene.top(), 200, 24);
    let mut command = sparsync(&scene, &["-a", "--ui=plain", "src/", "dst"]);
    // Ten seconds last a sixth of a second.
    command.env("SPARSYNC_MINUTE_SECS", "1");
    let child = screen.start(held(&mut command, &scene));
    screen.until("0 files copied, 1 skipped");
    release(&scene);
    let (code, _) = screen.leaves(child);
    assert_eq!(code, Some(0));
    assert!(!screen.written().contains('\x1b'), "{:?}", screen.written());
}

/// A line of the remote shell, which writes it by itself, does not end up in the display.
#[test]
fn lines_of_the_remote_shell_stay_above_the_display() {
    let scene = scene_with("disk.img");
    let program = oracle::under_test().display();
    let hold = hold_at(&scene);
    let script = format!(
        "(cat shell-says >&2) &\nexec env SPARSYNC_FAULT_IN=create SPARSYNC_HOLD_AT={hold} {program} \"$@\""
    );
    scene.fake_shell("shell", &format!("shift\n{script}"));
    scene.sh("mkfifo gate shell-says");
    let mut screen = Screen::new("shell", scene.top(), 80, 24);
    let dst = format!("box:{}", scene.path("dst").display());
    let args = ["-a", "--ui", "-e", "./shell", "src/", &dst];
    let child = screen.start(&mut sparsync(&scene, &args));
    screen.until("  box, by ");
    let says = "Timeout, server box not responding.\n";
    std::fs::write(scene.path("shell-says"), says).expect("the shell reads");
    screen.until(" s: no data from box");
    // How much the pipes hold depends on the system.
    let lines = screen.lines();
    let at = lines.iter().position(|line| line.starts_with("|Timeout, "));
    let at = at.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(lines[at], format!("|{}", says.trim_end()), "{lines:#?}");
    let is_display = |line: &&String| line.contains("  box, by ");
    assert_eq!(lines.iter().filter(is_display).count(), 1, "{lines:#?}");
    assert!(is_display(&&lines[at + 1]), "{lines:#?}");
    assert!(lines[at + 2].contains("  stalled "), "{lines:#?}");
    release(&scene);
    let (code, text) = screen.leaves(child);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn reports_stay_above_the_display() {
    let scene = scene_with("disk.img");
    let mut screen = Screen::new("reports", scene.top(), 200, 24);
    let args = ["-a", "--out-format=%n", "--ui", "absent", "src/", "dst"];
    let mut command = sparsync(&scene, &args);
    let child = screen.start(held(&mut command, &scene));
    screen.shows("held");
    release(&scene);
    let code = screen.ends(child, "ended");
    assert_eq!(code, Some(23), "{:?}", screen.written());
}

/// SIGVTALRM prints the name of the next file and one line.
#[test]
fn request_for_progress_is_answered_above_the_display() {
    let scene = scene_with("disk.img");
    let mut screen = Screen::new("request", scene.top(), 80, 24);
    let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
    let child = screen.start(held(&mut command, &scene));
    screen.until("disk.img");
    send(&child, Signal::VTALARM);
    release(&scene);
    let code = screen.ends(child, "ended");
    assert_eq!(code, Some(0), "{:?}", screen.written());
}

#[test]
fn every_end_leaves_the_cursor_at_the_start_of_a_line() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let scene = scene_with("disk.img");
        let mut screen = Screen::new("ends", scene.top(), 80, 24);
        let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
        let child = screen.start(held(&mut command, &scene));
        screen.until("disk.img");
        if signal == Signal::INT {
            // The terminal echoes what the user types.
            screen.put("^C");
        }
        send(&child, signal);
        release(&scene);
        let (code, text) = screen.leaves(child);
        assert_eq!(code, Some(20), "{text}");
        // The thread that copies may finish the file before the signal arrives.
        let told = if scene.path("dst/disk.img").exists() {
            "|stopped at 100%: 3 of 3 entries are in place, 4.00MB of 4.00MB;"
        } else {
            "|stopped at 0%: 2 of 3 entries are in place, 5B of 4.00MB;"
        };
        assert!(text.contains(told), "{told} {text}");
        let is_cleared = !text.contains("^C") && !text.contains("local copy");
        assert!(is_cleared, "{text}");
    }

    for (name, signal) in [("SIGKILL", Signal::KILL), ("SIGQUIT", Signal::QUIT)] {
        let scene = scene_with("disk.img");
        let mut screen = Screen::new("ends", scene.top(), 80, 24);
        let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
        let child = screen.start(held(&mut command, &scene));
        screen.until("disk.img");
        send(&child, signal);
        assert_eq!(screen.ends(child, name), None, "{:?}", screen.written());
    }

    // A signal that does not belong to the first one ends the process at once.
    let scene = scene_with("disk.img");
    let mut screen = Screen::new("ends", scene.top(), 80, 24);
    let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
    let mut child = screen.start(held(&mut command, &scene));
    screen.until("disk.img");
    send(&child, Signal::INT);
    until(|| {
        send(&child, Signal::TERM);
        child.try_wait().expect("it is ours").is_some()
    });
    assert_eq!(screen.ends(child, "SIGINT, SIGTERM"), Some(20));
}

#[test]
fn run_that_never_begins_leaves_only_its_error() {
    let scene = scene_with("disk.img");
    scene.fake_shell(
        "fails",
        "echo 'ssh: connect to host box port 22: Connection refused' >&2; exit 255",
    );
    for (name, exit, args) in [
        ("no source", 23, &["-a", "--ui", "absent", "dst"][..]),
        (
            "no host",
            255,
            &["-a", "--ui", "-e", "./fails", "src/", "box:dst"],
        ),
        ("no parent", 11, &["-a", "--ui", "src/", "no/such/dir/dst"]),
        (
            "no option",
            1,
            &["-a", "--ui", "--no-such-option", "src/", "dst"],
        ),
    ] {
        let mut screen = Screen::new("errors", scene.top(), 200, 24);
        let child = screen.start(&mut sparsync(&scene, args));
        let code = screen.ends(child, name);
        assert_eq!(code, Some(exit), "{name}: {:?}", screen.written());
    }
}

/// A run without a display has no thread that draws one.
#[test]
fn run_without_a_display_does_nothing_for_it() {
    for (option, is_drawn) in [("--ui", true), ("--no-ui", false)] {
        let scene = scene_with("disk.img");
        let mut screen = Screen::new("threads", scene.top(), 80, 24);
        let mut command = sparsync(&scene, &["-a", option, "src/", "dst"]);
        let child = screen.start(held(&mut command, &scene));
        let threads = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id()));
            let tasks = tasks.expect("the program runs").flatten();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            let names = tasks.filter_map(|task| name(task).ok());
            names.map(|name| name.trim().to_owned()).collect::<Vec<_>>()
        };
        let gate = gate(&scene);
        let is_there = || threads().iter().any(|name| name == "display");
        if is_drawn {
            // A thread gives itself its name.
            until(is_there);
        } else {
            assert!(!is_there(), "{:?}", threads());
        }
        drop(gate);
        let (code, text) = screen.leaves(child);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(screen.written().is_empty(), !is_drawn, "{text}");
    }
}

/// What other programs write while this one is stopped is not overwritten afterwards.
#[test]
fn display_begins_anew_after_a_stop() {
    let scene = scene_with("disk.img");
    let mut screen = Screen::new("stopped", scene.top(), 80, 24);
    let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
    let child = screen.start(held(&mut command, &scene));
    screen.until("disk.img");
    send(&child, Signal::STOP);
    let pid = child.id();
    let stat = move || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    until(|| stat().contains(") T "));
    screen.put("\r\n[1]+  Stopped   sparsync\r\n$ fg\r\nsparsync\r\n");
    send(&child, Signal::CONT);
    screen.shows("continued");
    release(&scene);
    let code = screen.ends(child, "ended");
    assert_eq!(code, Some(0), "{:?}", screen.written());
}

/// The connection is lost in the middle of a file.
#[test]
fn reconnection_is_shown() {
    let scene = Scene::new();
    scene.enroll("--root TOP --no-munge");
    std::fs::write(scene.path("src/disk.img"), noise(1, 4 * LARGE)).expect("scratch");
    let port = scene.status("port").parse().expect("a port");
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let trigger = Trigger {
        to_server: true,
        after_bytes: 2 * LARGE,
        cut: Cut::End,
        then: Box::new(|| None),
    };
    let relay = Relay::start(server, [trigger]);
    let hosts = format!(
        "[[host]]\nname = \"host\"\nssh = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {}\npin = \"{}\"\n\
         met = \"2026-01-01T00:00:00Z\"\n",
        relay.port,
        scene.status("pin")
    );
    scene.file("client/hosts.toml", &hosts);
    let mut screen = Screen::new("reconnection", scene.top(), 120, 24);
    let mut command = scene.command(
        "client",
        "-a --ui --transport=tls --bwlimit=8m src/ host:TOP/in/",
    );
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    let child = screen.start(&mut command);
    screen.until("1 reconnection");
    screen.until("sparsync: lost the connection to host; reconnecting");
    let (code, text) = screen.leaves(child);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(relay.losses(), 1, "{text}");
}

/// The server is stopped, and the run goes on over ssh, which asks for a password: the display makes way for it.
#[test]
fn display_makes_way_for_a_password() {
    let scene = Scene::new();
    scene.enroll("--root TOP --no-munge");
    std::fs::write(scene.path("src/disk.img"), noise(1, 4 * LARGE)).expect("scratch");
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("sparsync")).expect("a link");
    scene.sh("mkfifo password");
    let asks = "printf \"user@host's password: \" >/proc/$PPID/fd/2; stty -echo </proc/$PPID/fd/2
read password <TOP/password; stty echo </proc/$PPID/fd/2; echo >/proc/$PPID/fd/2
exec sh -c \"$*\"\n";
    let ssh = FAKE_SSH.replace("while", "case $1 in -G) exit;; esac\nwhile") + &scene.placed(asks);
    write_script(&scene.path("ssh"), &ssh);
    let mut screen = Screen::new("password", scene.top(), 120, 24);
    let mut command = scene.command(
        "client",
        "-a --ui --bwlimit=4m src/disk.img host:TOP/in/big",
    );
    let path = std::env::var("PATH").expect("a test has a PATH");
    command
        .env("PATH", format!("{}:{path}", scene.top().display()))
        .env("TERM", "xterm")
        .env("LC_ALL", "C.UTF-8");
    let child = screen.start(&mut command);
    screen.until("disk.img");
    let received = || scene.status("bytes_in").parse::<usize>().expect("a number");
    until(|| received() >= LARGE / 4);
    scene.well("stop --now");
    screen.until("password:");
    screen.shows("ssh asks");
    std::fs::write(scene.path("password"), "secret\n").expect("ssh reads");
    screen.until("host, by a remote shell: its server was stopped");
    let (code, text) = screen.leaves(child);
    assert_eq!(code, Some(0), "{text}");
}

/// A server reads the source faster than it sends it. So the client knows the length of the whole list while it still
/// waits for the content of the first files. Directories that are the same are done.
#[test]
fn pull_knows_the_length_of_a_list_that_has_not_come() {
    let scene = Scene::empty();
    for dir in ["src", "dst"] {
        scene.tree(dir).text("a/same1 a/same2 a/same3");
    }
    let names: Vec<String> = (0..500).map(|at| format!("c/new{at}")).collect();
    scene.tree("src").text(&names.join(" "));
    // Longer than what may be sent ahead.
    let image = scene.path("src/b/disk.img");
    std::fs::create_dir(scene.path("src/b")).expect("scratch can be written");
    let image = std::fs::File::create(image).expect("scratch can be written");
    image.set_len(64 << 20).expect("scratch supports holes");
    let ssh = FAKE_SSH.to_owned() + "exec sh -c \"$*\"\n";
    write_script(&scene.path("ssh"), &ssh);

    let mut screen = Screen::new("far list", scene.top(), 120, 24);
    let rsync_path = format!("--rsync-path={}", oracle::under_test().display());
    let args = ["-a", "--ui", "-e", "./ssh", &rsync_path, "host:src/", "dst"];
    let mut command = sparsync(&scene, &args);
    // A file in a new directory is created under its name.
    held(&mut command, &scene).env("SPARSYNC_FAULT_IN", "create");
    let child = screen.start(&mut command);
    screen.shows("held at the first file");
    release(&scene);
    // How many bytes were sent depends on how many grants were sent.
    let (code, text) = screen.leaves(child);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("501 of 504 files copied"), "{text}");
}

/// What a stopped run says is true: so many files are in place, and a second run copies the others.
#[test]
fn stopped_run_tells_how_many_files_are_in_place() {
    let scene = Scene::empty();
    for at in 0..3000 {
        scene.file(&format!("src/d{}/f{at}", at % 10), "text");
    }
    let mut screen = Screen::new("in_place", scene.top(), 120, 24);
    let mut command = sparsync(&scene, &["-a", "--ui", "src/", "dst"]);
    let hold = format!("5000:{}", scene.path("gate").display());
    held(&mut command, &scene).env("SPARSYNC_HOLD_AT", hold);
    let child = screen.start(&mut command);
    screen.until("copying");
    until(|| count_files(&scene.path("dst")) > 100);
    let gate = gate(&scene);
    send(&child, Signal::INT);
    drop(gate);
    let (code, text) = screen.leaves(child);
    assert_eq!(code, Some(20), "{text}");
    let line = text.lines().find(|line| line.starts_with("|stopped"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let of = words.iter().position(|word| *word == "of").expect("N of M");
    let told: usize = words[of - 1].replace(',', "").parse().expect("a number");
    let found = count_files(&scene.path("dst")) + 11;
    assert!(told <= found && told > 0, "{line}, found {found}");
}

/// In a push, the files may wait at the other end, so the line does not say that they are in place.
#[test]
fn stopped_push_tells_how_many_files_were_sent() {
    let scene = scene_with("disk.img");
    let hold = hold_at(&scene);
    let program = oracle::under_test().display();
    let hold = format!("SPARSYNC_FAULT_IN=create SPARSYNC_HOLD_AT={hold}");
    scene.fake_shell("shell", &format!("shift\nexec env {hold} {program} \"$@\""));
    scene.sh("mkfifo gate");
    let mut screen = Screen::new("sent", scene.top(), 120, 24);
    let dst = format!("box:{}", scene.path("dst").display());
    let args = ["-a", "--ui", "-e", "./shell", "src/", &dst];
    let child = screen.start(&mut sparsync(&scene, &args));
    screen.until("  box, by ");
    let gate = gate(&scene);
    send(&child, Signal::INT);
    drop(gate);
    let (code, text) = screen.leaves(child);
    assert_eq!(code, Some(20), "{text}");
    let says_sent = text.contains(" entries are up to date or were sent, ");
    assert!(says_sent, "{text}");
}

fn count_files(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let count = |entry: std::io::Result<std::fs::DirEntry>| match entry {
        Ok(entry) if entry.path().is_dir() => count_files(&entry.path()),
        Ok(entry) if !entry.file_name().to_string_lossy().starts_with('.') => 1,
        Ok(_) | Err(_) => 0,
    };
    entries.map(count).sum()
}
