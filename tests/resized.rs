//! Source files that become shorter or longer, or are replaced, while they are read: a run that ends with exit 0 has
//! copied what a file was at one moment, and one that could not has reported that and sent the file again.
//!
//! As in `changing.rs`, each case is run repeatedly and changed before the first read of the sender, the second, and so on.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::changing::{Hooks, run_held};
use crate::faults::{Stage, Trees};
use crate::kit::{Output, oracle, report_skip, write_script};

/// The length of `log`. It is read in several pieces on every route.
const LONG: usize = 300_000;
/// The length of the part of `log` that the destination has under `--append`.
const PREFIX: usize = 100_000;
/// The length after it was cut off, which is less than that.
const SHORT: usize = 1_000;

/// What happens to `log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceChange {
    /// It is cut off.
    Shrinks,
    /// It is emptied.
    Empties,
    /// Data is appended.
    Grows,
    /// Another file gets its name.
    Replaced,
    /// Another file of the same length and time gets its name.
    ReplacedByTwin,
    /// It is removed.
    Removed,
}

/// The end that sends, which is held.
#[derive(Clone, Copy, Debug)]
enum SendingRoute {
    Local,
    /// A program called `rsync`.
    LocalAsRsync,
    /// The client, to a sparsync through a remote shell.
    Push,
    /// A sparsync that a remote shell started.
    Pull,
    /// The client, to a server.
    Quic,
    /// The same, over TLS.
    Tls,
    /// A daemon.
    FromDaemon,
    /// The client, to an rsync.
    ToRsync,
    /// The server of an rsync.
    ToRsyncClient,
}

impl SendingRoute {
    fn run(self, stage: &Stage, options: &[&str], hooks: Hooks<'_>) -> Output {
        let program = oracle::under_test();
        let rsync = oracle::rsync();
        let shell = stage.top.join("shell");
        write_script(&shell, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
        let held = || {
            let words = hooks.iter().map(|(name, value)| format!("{name}={value} "));
            words.collect::<String>()
        };
        let by_shell = |far: &str| {
            [
                format!("--rsh={}", shell.display()),
                format!("--rsync-path={far}"),
            ]
        };
        let (program, own, operands, env) = match self {
            SendingRoute::LocalAsRsync => {
                let link = stage.top.join("rsync");
                std::os::unix::fs::symlink(program, &link).expect("scratch supports symlinks");
                let words = [options, &["src/", "dst/"]].concat();
                return stage.run_words(&link, &words, hooks);
            }
            SendingRoute::Local => (program, Vec::new(), ["src/", "dst/"], hooks.to_vec()),
            SendingRoute::Quic | SendingRoute::Tls => {
                let transport = if matches!(self, SendingRoute::Quic) {
                    "quic"
                } else {
                    "tls"
                };
                let words = [options, &["src/", "far:dst/"]].concat();
                return stage.run_over(transport, &words, [hooks, &[]]);
            }
            SendingRoute::FromDaemon => {
                let config = stage.top.join("config");
                let user = rustix::process::geteuid().as_raw();
                let text = format!(
                    "use chroot = no\nuid = {user}\ngid = {user}\n[m]\npath = {}\n",
                    stage.top.join("src").display()
                );
                write(&config, text.as_bytes());
                let daemon = format!(
                    "{}{} --config={} --daemon",
                    held(),
                    program.display(),
                    config.display()
                );
                let env = vec![("RSYNC_CONNECT_PROG", daemon)];
                (program, Vec::new(), ["rsync://far/m/", "dst/"], env)
            }
            SendingRoute::Push => {
                let far = format!("env -u SPARSYNC_HOLD_AT {}", program.display());
                let own = by_shell(&far).to_vec();
                (program, own, ["src/", "far:dst/"], hooks.to_vec())
            }
            SendingRoute::Pull => {
                let own = by_shell(&format!("{}{}", held(), program.display())).to_vec();
                (program, own, ["far:src/", "dst/"], Vec::new())
            }
            SendingRoute::ToRsync => {
                let own = by_shell(&rsync.display().to_string()).to_vec();
                (program, own, ["src/", "far:dst/"], hooks.to_vec())
            }
            SendingRoute::ToRsyncClient => {
                let own = by_shell(&format!("{}{}", held(), program.display())).to_vec();
                (rsync, own, ["far:src/", "dst/"], Vec::new())
            }
        };
        let words: Vec<&str> = own
            .iter()
            .map(String::as_str)
            .chain(options.iter().copied())
            .chain(operands)
            .collect();
        stage.run_words(program, &words, &env)
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// Other content of the same length.
fn twin_content() -> Vec<u8> {
    content(LONG).iter().map(|byte| !byte).collect()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("it has a parent")).expect("scratch");
    std::fs::write(path, bytes).expect("scratch can be written");
}

/// A destination without `log`.
fn without(top: &Path) {
    write(&top.join("src/log"), &content(LONG));
    write(&top.join("src/z"), b"later");
    write(&top.join("dst/extra"), b"extra");
}

/// A destination with an older version of `log`.
fn with_old(top: &Path) {
    without(top);
    let mut old = content(LONG);
    old[50_000..250_000].fill(7);
    write(&top.join("dst/log"), &old[1..]);
}

/// A destination with the beginning of `log`.
fn with_prefix(top: &Path) {
    without(top);
    write(&top.join("dst/log"), &content(PREFIX));
}

impl SourceChange {
    fn happens(self, log: &Path) {
        let cut_to = |len: usize| {
            let file = std::fs::File::options().write(true).open(log);
            file.and_then(|file| file.set_len(len as u64))
                .expect("the file is there");
        };
        match self {
            SourceChange::Shrinks => cut_to(SHORT),
            SourceChange::Empties => cut_to(0),
            SourceChange::Grows => {
                // The same bytes as in a longer file.
                std::fs::write(log, content(2 * LONG)).expect("scratch can be written");
            }
            SourceChange::Replaced => {
                let other = log.with_extension("other");
                std::fs::write(&other, b"another file").expect("scratch can be written");
                std::fs::rename(other, log).expect("scratch can be written");
            }
            SourceChange::ReplacedByTwin => {
                let twin = log.with_extension("twin");
                std::fs::write(&twin, twin_content()).expect("scratch can be written");
                let time = log.metadata().and_then(|stat| stat.modified());
                // The run may have removed it already.
                if let Ok(time) = time {
                    let file = std::fs::File::options().write(true).open(&twin);
                    file.and_then(|file| file.set_modified(time))
                        .expect("scratch can be written");
                }
                std::fs::rename(twin, log).expect("scratch can be written");
            }
            // The run may have removed it already.
            SourceChange::Removed => drop(std::fs::remove_file(log)),
        }
    }

    /// Returns the content afterwards; `None`: it is gone.
    fn new_content(self) -> Option<Vec<u8>> {
        match self {
            SourceChange::Shrinks => Some(content(SHORT)),
            SourceChange::Empties => Some(Vec::new()),
            SourceChange::Grows => Some(content(2 * LONG)),
            SourceChange::Replaced => Some(b"another file".to_vec()),
            SourceChange::ReplacedByTwin => Some(twin_content()),
            SourceChange::Removed => None,
        }
    }
}

/// Runs a case with the event before each read of the sender. Returns how many runs reported that the file had become
/// shorter.
fn at_every_read(
    route: SendingRoute,
    build: fn(&Path),
    options: &'static [&str],
    event: SourceChange,
) -> u32 {
    let mut reported = 0;
    let mut n = 0;
    loop {
        n += 1;
        let stage = Stage::new(&Trees {
            options,
            build,
            backups: &[],
        });
        let log = stage.top.join("src/log");
        let dest = stage.top.join("dst/log");
        let state = || {
            let changed = dest.metadata().and_then(|stat| stat.modified()).ok();
            (std::fs::read(&dest).ok(), changed)
        };
        let before = state();
        let run = |hold: Hooks<'_>| {
            let hooks = [hold, &[("SPARSYNC_FAULT_IN", "read".to_owned())]].concat();
            route.run(&stage, options, &hooks)
        };
        let Some(output) = run_held(&stage, n, run, || event.happens(&log)) else {
            break;
        };

        let stderr = String::from_utf8_lossy(&output.stderr);
        let after = state();
        let copied = after.0.clone();
        let shown = format!(
            "{route:?}, {options:?}, {event:?} at read {n}: exit {}, {:?} bytes, {stderr}",
            output.exit,
            copied.as_ref().map(Vec::len)
        );
        let z = std::fs::read(stage.top.join("dst/z"));
        assert_eq!(z.expect(&shown), b"later", "{shown}");
        let appends = options.iter().any(|word| word.starts_with("--append"));
        let is_cut = matches!(event, SourceChange::Shrinks | SourceChange::Empties);
        match output.exit {
            // With --append, nothing is done if the file is shorter when it is listed or opened.
            0 if is_cut && appends && after == before => {}
            0 => assert!(
                copied == Some(content(LONG)) || copied == event.new_content(),
                "{shown}"
            ),
            23 if is_cut => {
                let words = "rsync: [sender] read errors mapping \"";
                assert!(
                    stderr.contains(words)
                        && (stderr.contains("/src/log\"") || stderr.contains("log\" (in m)"))
                        && stderr.contains(": No data available (61)\n"),
                    "{shown}"
                );
                assert_eq!(copied, event.new_content(), "{shown}");
                reported += 1;
            }
            24 if event == SourceChange::Removed => assert!(after == before, "{shown}"),
            _ => panic!("{shown}"),
        }
    }
    if n == 1 {
        report_skip(
            "resized",
            "the program under test is a release build, without SPARSYNC_HOLD_AT",
        );
        return 1;
    }
    reported
}

/// What makes the trees, and the options of the run.
type Case = (fn(&Path), &'static [&'static str]);

/// Options with a destination, for which a file that becomes shorter is sent again.
const CASES: [Case; 11] = [
    (without, &["-a", "--bwlimit=1g"]),
    (without, &["-aS"]),
    (without, &["-a", "--inplace", "--bwlimit=1g"]),
    (without, &["-a", "--delay-updates", "--bwlimit=1g"]),
    (without, &["-aH", "--partial-dir=.part", "--bwlimit=1g"]),
    (with_old, &["-ab", "--bwlimit=1g"]),
    (with_old, &["-a", "--inplace", "--no-whole-file"]),
    (with_old, &["-aS", "--inplace", "--whole-file"]),
    (with_old, &["-ac", "--no-whole-file", "--bwlimit=1g"]),
    (with_prefix, &["-a", "--append", "--bwlimit=1g"]),
    (with_prefix, &["-a", "--append-verify", "--bwlimit=1g"]),
];

#[test]
fn local_source_that_shrinks_is_copied_again() {
    for (build, options) in CASES {
        for event in [SourceChange::Shrinks, SourceChange::Empties] {
            let reported = at_every_read(SendingRoute::Local, build, options, event);
            assert!(reported > 0, "{options:?}, {event:?}");
        }
    }
}

#[test]
fn sent_source_that_shrinks_is_sent_again() {
    for route in [SendingRoute::Push, SendingRoute::Pull, SendingRoute::Quic] {
        for (build, options) in [CASES[0], CASES[5], CASES[6], CASES[9], CASES[10]] {
            let reported = at_every_read(route, build, options, SourceChange::Shrinks);
            // A client of a server does not make the same calls in each run.
            let varies = matches!(route, SendingRoute::Quic);
            assert!(reported > 0 || varies, "{route:?}, {options:?}");
        }
    }
}

#[test]
fn source_that_shrinks_is_sent_over_tls_and_by_a_daemon_again() {
    for route in [SendingRoute::Tls, SendingRoute::FromDaemon] {
        let (build, options) = CASES[0];
        let reported = at_every_read(route, build, options, SourceChange::Shrinks);
        // A client of a server does not make the same calls in each run.
        let varies = matches!(route, SendingRoute::Tls);
        assert!(reported > 0 || varies, "{route:?}");
    }
}

#[test]
fn source_that_shrinks_is_sent_by_old_protocols_again() {
    let options: [&[&str]; 3] = [
        &["-a", "--bwlimit=1g", "--protocol=27"],
        &["-a", "--bwlimit=1g", "--protocol=28"],
        &["-a", "--bwlimit=1g", "--protocol=29"],
    ];
    for route in [SendingRoute::ToRsync, SendingRoute::ToRsyncClient] {
        for options in options {
            let reported = at_every_read(route, without, options, SourceChange::Shrinks);
            assert!(reported > 0, "{route:?}, {options:?}");
        }
    }
}

#[test]
fn source_that_was_replaced_is_not_removed() {
    let options: &[&str] = &["-a", "--remove-source-files", "--bwlimit=1g"];
    for route in [
        SendingRoute::Local,
        SendingRoute::Push,
        SendingRoute::Pull,
        SendingRoute::ToRsync,
    ] {
        let mut kept = 0;
        for n in 1.. {
            let stage = Stage::new(&Trees {
                options,
                build: without,
                backups: &[],
            });
            let log = stage.top.join("src/log");
            let run = |hold: Hooks<'_>| {
                let hooks = [hold, &[("SPARSYNC_FAULT_IN", "read".to_owned())]].concat();
                route.run(&stage, options, &hooks)
            };
            let is_placed = AtomicBool::new(false);
            let replace = || {
                is_placed.store(stage.top.join("dst/log").exists(), Ordering::Relaxed);
                SourceChange::ReplacedByTwin.happens(&log);
            };
            let Some(output) = run_held(&stage, n, run, replace) else {
                break;
            };
            // The removal examines the name and removes it in two calls. As in rsync, nothing is noticed in between.
            if is_placed.load(Ordering::Relaxed) {
                continue;
            }
            let [left, copied] =
                ["src/log", "dst/log"].map(|name| std::fs::read(stage.top.join(name)).ok());
            let stderr = String::from_utf8_lossy(&output.stderr);
            let twin = Some(twin_content());
            assert!(
                left == twin || copied == twin,
                "{route:?}, read {n}: exit {}, left {left:?}, copied {:?} bytes: {stderr}",
                output.exit,
                copied.as_ref().map(Vec::len)
            );
            if left == twin && copied == Some(content(LONG)) && output.exit == 23 {
                let words = "ERROR: Skipping sender remove for changed file: log\n";
                assert!(stderr.contains(words), "{route:?}, read {n}: {stderr}");
                kept += 1;
            }
        }
        assert!(kept > 0, "{route:?}");
    }
}

#[test]
fn source_that_shrinks_is_sent_to_an_rsync_again() {
    for route in [SendingRoute::ToRsync, SendingRoute::ToRsyncClient] {
        for (build, options) in [CASES[0], CASES[6], CASES[9], CASES[10]] {
            let reported = at_every_read(route, build, options, SourceChange::Shrinks);
            assert!(reported > 0, "{route:?}, {options:?}");
        }
    }
}

#[test]
fn source_that_grows_or_is_replaced_is_copied_as_it_was() {
    for (route, cases) in [
        (
            SendingRoute::Local,
            &[CASES[0], CASES[1], CASES[6], CASES[9]][..],
        ),
        (SendingRoute::Push, &[CASES[0], CASES[6]]),
        (SendingRoute::ToRsync, &[CASES[0], CASES[6]]),
    ] {
        for &(build, options) in cases {
            for event in [
                SourceChange::Grows,
                SourceChange::Replaced,
                SourceChange::Removed,
            ] {
                at_every_read(route, build, options, event);
            }
        }
    }
}

/// Returns in how many runs it was reported that `log` grew before a read of the sender. `is_reported` says whether a run
/// reported that, and checks its report.
fn reported_changes(
    route: SendingRoute,
    (build, options): Case,
    is_reported: fn(&Output) -> bool,
) -> u32 {
    let mut reported = 0;
    for n in 1.. {
        let stage = Stage::new(&Trees {
            options,
            build,
            backups: &[],
        });
        let log = stage.top.join("src/log");
        let run = |hold: Hooks<'_>| {
            let hooks = [hold, &[("SPARSYNC_FAULT_IN", "read".to_owned())]].concat();
            route.run(&stage, options, &hooks)
        };
        let Some(output) = run_held(&stage, n, run, || SourceChange::Grows.happens(&log)) else {
            break;
        };
        assert_eq!(
            output.exit,
            0,
            "{route:?}, {options:?}, read {n}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        reported += u32::from(is_reported(&output));
    }
    reported
}

#[test]
fn source_that_is_changed_while_it_is_read_is_reported() {
    let as_text = |output: &Output| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_named = stderr.contains("sparsync: changed while it was read: \"log\"\n");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let is_counted = stdout.contains("\nNumber of files changed while they were read: 1\n");
        assert_eq!(is_named, is_counted, "{stdout} {stderr}");
        is_named
    };
    let as_json = |output: &Output| {
        let stdout = String::from_utf8_lossy(&output.stdout);
        let is_named = stdout.contains("{\"type\":\"source_changed\",\"path\":\"log\"}\n");
        let is_counted = stdout.contains(",\"changed_sources\":1,");
        assert_eq!(is_named, is_counted, "{stdout}");
        is_named
    };
    for route in [
        SendingRoute::Local,
        SendingRoute::Push,
        SendingRoute::Pull,
        SendingRoute::Quic,
        SendingRoute::ToRsync,
    ] {
        let builds: &[fn(&Path)] = match route {
            SendingRoute::Local | SendingRoute::Push => &[without, with_old],
            _ => &[without],
        };
        for &build in builds {
            let text = reported_changes(route, (build, &["-av", "--stats"]), as_text);
            let json = reported_changes(route, (build, &["-a", "--json"]), as_json);
            // A client of a server does not make the same calls in each run.
            let varies = matches!(route, SendingRoute::Quic);
            assert!((text > 0 && json > 0) || varies, "{route:?}");
        }
    }
    let words: Case = (without, &["-av", "--stats"]);
    assert_eq!(
        reported_changes(SendingRoute::LocalAsRsync, words, as_text),
        0
    );
}
