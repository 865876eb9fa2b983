//! Makes the n-th system call fail, or read or write only one byte, for every n.
//!
//! Debug builds fail the n-th system call on files if `SPARSYNC_FAIL_AT=n:ERROR` is set (see `src/fs/hooks.rs`). After
//! each such run the laws of [`Laws`] are checked, and a run without faults must finish the job. A plain test run takes
//! a sample of the calls. With `SPARSYNC_FAULTS=all` every call fails with every error.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::faults::{Stage, Trees, both, write};
use crate::kit::{
    FAKE_SSH, Lens, Output, files, is_temp, oracle, report_skip, snapshot, tries_all_faults, until,
};
use rustix::fs::{self, FileType, Mode, OFlags};

/// The injected errors, each with the number that rsync prints for it. `SHORT` transfers only one byte.
const FAULTS: [(&str, &str); 8] = [
    ("EIO", "(5)"),
    ("ENOSPC", "(28)"),
    ("EACCES", "(13)"),
    ("EMFILE", "(24)"),
    ("ENOMEM", "(12)"),
    ("EINTR", ""),
    ("EAGAIN", "(11)"),
    ("SHORT", ""),
];

/// The laws of an option set, in addition to those of every run.
#[derive(Clone, Copy, Default)]
struct Laws {
    /// `--backup`: every old content of the destination still exists somewhere.
    keeps_old: bool,
    /// `--ignore-existing`, and `--update` with newer files: existing files of the destination stay unchanged.
    changes_nothing_old: bool,
    /// Files are written in place, so an interrupted file may be neither old nor new.
    in_place: bool,
}

/// An option set, its trees and its laws.
struct Case {
    options: &'static [&'static str],
    build: fn(&Path),
    laws: Laws,
}

const fn case(options: &'static [&'static str]) -> Case {
    Case {
        options,
        build: both,
        laws: Laws {
            keeps_old: false,
            changes_nothing_old: false,
            in_place: false,
        },
    }
}

const KEEPS_OLD: Laws = Laws {
    keeps_old: true,
    changes_nothing_old: false,
    in_place: false,
};
const CHANGES_NOTHING_OLD: Laws = Laws {
    keeps_old: false,
    changes_nothing_old: true,
    in_place: false,
};
const IN_PLACE: Laws = Laws {
    keeps_old: false,
    changes_nothing_old: false,
    in_place: true,
};

const CASES: &[Case] = &[
    case(&["-aHAX", "--delete"]),
    case(&["-aHAX", "--delete-before"]),
    case(&["-aHAX", "--delete-delay"]),
    case(&["-aHAX", "--delete-after"]),
    Case {
        build: alike,
        ..case(&["-ac"])
    },
    Case {
        laws: IN_PLACE,
        ..case(&["-a", "--inplace", "--no-whole-file"])
    },
    Case {
        laws: KEEPS_OLD,
        ..case(&["-a", "--delete", "--backup"])
    },
    Case {
        laws: KEEPS_OLD,
        ..case(&["-a", "--delete", "--backup", "--backup-dir=../old"])
    },
    Case {
        laws: CHANGES_NOTHING_OLD,
        ..case(&["-a", "--ignore-existing"])
    },
    Case {
        laws: CHANGES_NOTHING_OLD,
        build: newer,
        ..case(&["-a", "--update"])
    },
    case(&["-a", "--remove-source-files"]),
    Case {
        build: alike,
        ..case(&["-ac", "--remove-source-files"])
    },
    case(&["-aH", "--delay-updates", "--delete-after"]),
    case(&["-a", "--partial-dir=.part", "--no-whole-file"]),
    case(&["-a", "--fsync"]),
    case(&["-a", "--verify=source"]),
    Case {
        build: alike,
        ..case(&["-ac", "--checksum-cache=digests"])
    },
    Case {
        build: linked,
        ..case(&["-a", "--size-only"])
    },
];

/// Option sets that read attributes for more than the comparison: for backups, and in alternate trees.
const ATTRIBUTE_CASES: &[Case] = &[
    Case {
        build: attributed,
        laws: IN_PLACE,
        ..case(&["-aX", "--inplace", "--backup"])
    },
    Case {
        build: attributed,
        ..case(&["-aX", "--link-dest=../alt"])
    },
];

/// Creates files with extended attributes, and an alternate tree with one file that the source has and one that differs
/// only in its attributes.
fn attributed(top: &Path) {
    for (path, text, attribute) in [
        ("src/changed", "new", "new"),
        ("dst/changed", "older", "old"),
        ("src/same", "same", "same"),
        ("alt/same", "same", "same"),
        ("src/plain", "plain", ""),
        ("alt/plain", "plain", "of the alternate tree"),
    ] {
        let path = top.join(path);
        write(&path, text, 5);
        if !attribute.is_empty() {
            let flags = fs::XattrFlags::empty();
            fs::setxattr(&path, "user.x", attribute.as_bytes(), flags)
                .expect("scratch supports attributes");
        }
    }
}

/// Creates files of equal length and time, some of them with different contents.
fn alike(top: &Path) {
    for n in 0..8 {
        write(
            &top.join(format!("src/{n}")),
            &format!("content {n} of the source"),
            5,
        );
        let content = if n % 2 == 0 { "source" } else { "target" };
        write(
            &top.join(format!("dst/{n}")),
            &format!("content {n} of the {content}"),
            5,
        );
    }
}

/// Creates files whose names at the destination belong to one file. The time of one name changes that of the other.
fn linked(top: &Path) {
    for (path, time) in [("src/a", 7), ("src/b", 5), ("dst/a", 5)] {
        write(&top.join(path), "content", time);
    }
    std::fs::hard_link(top.join("dst/a"), top.join("dst/b")).expect("scratch supports hard links");
}

/// Creates files that are newer at the destination, and some that are missing there.
fn newer(top: &Path) {
    for n in 0..6 {
        write(
            &top.join(format!("src/d/{n}")),
            &format!("{n} of the source"),
            5,
        );
        if n % 2 == 0 {
            write(
                &top.join(format!("dst/d/{n}")),
                &format!("{n} of the destination, newer"),
                7,
            );
        }
    }
}

/// The process that gets the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The only process.
    Local,
    /// The client of a remote shell.
    Client,
    /// The process that a remote shell started.
    Server,
    /// The client of a server, over this transport.
    NetClient(&'static str),
    /// A session of a server, over this transport.
    Session(&'static str),
}

/// The direction of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Push,
    Pull,
}

/// The variable that selects the system call that fails.
const CALL: &str = "SPARSYNC_FAIL_AT";
/// The variable that selects which use of a pipe between the two ends fails.
const LINK: &str = "SPARSYNC_FAIL_LINK_AT";
/// The variable that names a file to which all calls are written.
const LOG: &str = "SPARSYNC_CALL_LOG";

/// Runs the case, with a fault if one is given: a variable and its value.
fn run(
    stage: &Stage,
    case: &Case,
    (end, way): (End, Direction),
    fault: Option<(&'static str, String)>,
) -> Output {
    let log = stage.top.join("fault").display().to_string();
    let fault: Vec<_> = fault
        .into_iter()
        .flat_map(|fault| [fault, ("SPARSYNC_FAULT_LOG", log.clone())])
        .collect();
    let operands = match way {
        Direction::Push => ["src/", "far:dst/"],
        Direction::Pull => ["far:src/", "dst/"],
    };
    match end {
        End::Local => return stage.run_program(oracle::under_test(), case.options, &fault),
        End::NetClient(transport) | End::Session(transport) => {
            let hooks: [&[_]; 2] = if let End::Session(_) = end {
                [&[], &fault]
            } else {
                [&fault, &[]]
            };
            return stage.run_over(transport, &[case.options, &operands].concat(), hooks);
        }
        End::Client | End::Server => {}
    }
    let remote_shell: String = match end {
        End::Server => fault
            .iter()
            .map(|(name, value)| format!("export {name}={value}\n"))
            .collect(),
        _ => format!("unset {CALL} {LINK} {LOG}\n"),
    };
    stage.script(
        "shell",
        &format!("{FAKE_SSH}{remote_shell}exec sh -c \"exec $*\"\n"),
    );
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let words = [&["--rsh=./shell", &program], case.options, &operands].concat();
    stage.run_words(
        oracle::under_test(),
        &words,
        if end == End::Client { &fault } else { &[] },
    )
}

/// Returns the trees that a run may change: `src`, `dst`, and `old` for backups.
fn trees(top: &Path) -> Vec<String> {
    let lens = Lens {
        blocks: false,
        atimes: false,
        links_within: false,
        now_secs: 100 * 86_400,
    };
    let lines = |name: &str| {
        let dir = top.join(name);
        let tree = if dir.exists() {
            snapshot(&dir, lens)
        } else {
            BTreeMap::new()
        };
        tree.into_values()
            .map(|line| format!("{name}: {line}"))
            .collect::<Vec<_>>()
    };
    ["src", "dst", "old"]
        .iter()
        .flat_map(|name| lines(name))
        .collect()
}

fn contents(top: &Path, trees: &[&str]) -> BTreeSet<Vec<u8>> {
    trees
        .iter()
        .flat_map(|tree| files(&top.join(tree)).into_values())
        .collect()
}

/// The options of the cases that rsync does not have.
const OWN: [&str; 2] = ["--verify=source", "--checksum-cache=digests"];

/// The expected results of a case.
struct Wanted {
    /// What rsync leaves.
    trees: Vec<String>,
    /// The trees from which a run without faults has finished the job. Many faults leave the same trees.
    finished: HashSet<Vec<String>>,
}

impl Wanted {
    fn of(case: &Case) -> Wanted {
        let twin = Stage::new(&Trees {
            options: case.options,
            build: case.build,
            backups: &[],
        });
        let mut options = case.options.to_vec();
        options.retain(|option| !OWN.contains(option));
        let by_rsync = twin.run_program(oracle::rsync(), &options, &[]);
        assert_eq!(by_rsync.exit, 0, "{}", by_rsync.stderr.escape_ascii());
        Wanted {
            trees: trees(&twin.top),
            finished: HashSet::new(),
        }
    }
}

/// Fails one call of one process. Returns the failed call, or `None` if the run ended before it.
fn fails_at(
    case: &Case,
    wanted: &mut Wanted,
    place: (End, Direction),
    n: u64,
    (error, number): (&str, &str),
) -> Option<String> {
    let stage = Stage::new(&Trees {
        options: case.options,
        build: case.build,
        backups: &[],
    });
    let [before, new] = ["dst", "src"].map(|tree| files(&stage.top.join(tree)));
    let old_contents = contents(&stage.top, &["dst"]);
    let source_contents = contents(&stage.top, &["src"]);
    let output = run(&stage, case, place, Some((CALL, format!("{n}:{error}"))));
    let call = std::fs::read_to_string(stage.top.join("fault")).ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = format!(
        "{:?} {place:?}: {error} at call {}: exit {}\n{stderr}",
        case.options,
        call.trim().replace('\n', ", "),
        output.exit
    );
    assert!(
        output.exit < 1000 && output.exit != 15,
        "the program crashed: {printed}"
    );
    let got = trees(&stage.top);
    if output.exit == 0 {
        differ(&printed, &wanted.trees, &got);
    } else {
        // rsync reports a path of an option that it cannot examine without the number.
        let has_cause = stderr.contains(number) || stderr.starts_with("Failed to stat ");
        assert!(
            stderr.contains("rsync") && has_cause,
            "the error is not reported: {printed}"
        );
    }
    for (path, content) in files(&stage.top.join("dst")) {
        let name = path.file_name().unwrap().to_string_lossy();
        let is_staged = path.components().any(|part| {
            [".~tmp~", ".part"]
                .map(std::ffi::OsStr::new)
                .contains(&part.as_os_str())
        });
        let original = name.strip_suffix('~').map(|name| path.with_file_name(name));
        let is_backup = original.is_some_and(|original| before.get(&original) == Some(&content));
        let is_whole =
            before.get(&path) == Some(&content) || new.get(&path) == Some(&content) || is_backup;
        assert!(
            is_whole || is_temp(&name) || is_staged || case.laws.in_place,
            "{} is incomplete: {printed}",
            path.display()
        );
    }
    if case.laws.keeps_old {
        let kept = contents(&stage.top, &["dst", "old"]);
        assert!(
            old_contents.is_subset(&kept),
            "old content is lost: {printed}"
        );
    }
    if case.laws.changes_nothing_old {
        let after: BTreeMap<PathBuf, Vec<u8>> = files(&stage.top.join("dst"));
        assert!(
            before
                .iter()
                .all(|(path, content)| after.get(path) == Some(content)),
            "an old file is changed: {printed}"
        );
    }
    if case.options.contains(&"--remove-source-files") {
        let kept = contents(&stage.top, &["src", "dst"]);
        assert!(
            source_contents.is_subset(&kept),
            "content is lost: {printed}"
        );
    } else {
        assert_eq!(
            files(&stage.top.join("src")),
            new,
            "the source is changed: {printed}"
        );
    }
    // A file whose time could not be set is newer than the source, as with rsync.
    let is_newer = case.options.contains(&"--update") && call.contains("Utimes");
    let is_backed_up = case.options.contains(&"--backup");
    let is_repeatable =
        !is_backed_up && !is_newer && !case.options.contains(&"--remove-source-files");
    if wanted.finished.contains(&got) {
        return Some(call);
    }
    let again = run(&stage, case, place, None);
    if is_repeatable {
        assert_eq!(
            again.exit,
            0,
            "run again: {}: {printed}",
            again.stderr.escape_ascii()
        );
        differ(
            &format!("run again: {printed}"),
            &wanted.trees,
            &trees(&stage.top),
        );
    }
    let left: Vec<_> = files(&stage.top.join("dst"))
        .into_keys()
        .filter(|path| is_temp(&path.file_name().unwrap().to_string_lossy()))
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}: {printed}");
    if !is_newer {
        wanted.finished.insert(got);
    }
    Some(call)
}

#[track_caller]
fn differ(printed: &str, wanted: &[String], got: &[String]) {
    let missing: Vec<_> = wanted.iter().filter(|line| !got.contains(line)).collect();
    let extra: Vec<_> = got.iter().filter(|line| !wanted.contains(line)).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{printed}\nwanted: {missing:#?}\ngot: {extra:#?}"
    );
}

/// Fails the calls of one process, one at a time: a sample of them, or all.
fn fails(place: (End, Direction), cases: impl Iterator<Item = &'static Case>) {
    let is_whole = tries_all_faults();
    let mut failures = Vec::new();
    for (number, case) in cases.enumerate() {
        let mut wanted = Wanted::of(case);
        // Each case samples other calls and other errors.
        let (step, first) = match place.0 {
            _ if is_whole => (1, 1),
            End::NetClient(_) | End::Session(_) => (67, 13 + number as u64 % 23),
            End::Local | End::Client | End::Server => (23, 1 + number as u64 % 23),
        };
        let mut n = first;
        let mut runs = 0;
        'calls: loop {
            let errors: Vec<_> = match is_whole {
                true => FAULTS.to_vec(),
                false => vec![FAULTS[(n as usize / 23 + number) % FAULTS.len()]],
            };
            let mut moves_bytes = !is_whole;
            for error in errors {
                // Other calls cannot be short.
                if error.0 == "SHORT" && !moves_bytes {
                    continue;
                }
                runs += 1;
                let attempt = catch_unwind(AssertUnwindSafe(|| {
                    fails_at(case, &mut wanted, place, n, error)
                }));
                match attempt {
                    Ok(Some(call)) => {
                        moves_bytes |= ["Read", "Write", "CopyRange"]
                            .iter()
                            .any(|name| call.contains(name))
                    }
                    Ok(None) => break 'calls,
                    Err(panic) => {
                        moves_bytes = true;
                        failures.push(panic.downcast_ref::<String>().cloned().unwrap_or_default());
                    }
                }
            }
            n += step;
        }
        if is_whole {
            let line = format!(
                "{:?} {place:?}: {runs} runs, {} failures so far\n",
                case.options,
                failures.len()
            );
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        // Other cases can have fewer calls than the first that is sampled.
        if n == first && first == 1 {
            report_skip(
                "errors",
                "the program under test is a release build, in which calls cannot be made to fail",
            );
            return;
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}

#[test]
fn failing_calls_in_a_local_run() {
    fails((End::Local, Direction::Push), CASES.iter());
}

/// Fails each use of these calls.
fn fails_each(
    names: &[&str],
    error: (&str, &str),
    place: (End, Direction),
    cases: &'static [Case],
) {
    for case in cases {
        let mut wanted = Wanted::of(case);
        let stage = Stage::new(&Trees {
            options: case.options,
            build: case.build,
            backups: &[],
        });
        let log = stage.top.join("calls");
        run(&stage, case, place, Some((LOG, log.display().to_string())));
        let Ok(calls) = std::fs::read_to_string(&log) else {
            return report_skip(
                "errors",
                "the program under test is a release build, which logs no calls",
            );
        };
        let is_one = |call: &str| names.iter().any(|name| call.ends_with(name));
        let uses: Vec<_> = (1..)
            .zip(calls.lines())
            .filter(|(_, call)| is_one(call))
            .collect();
        assert!(!uses.is_empty(), "{calls}");
        for (n, _) in uses {
            fails_at(case, &mut wanted, place, n, error);
        }
    }
}

#[test]
fn attributes_that_cannot_be_read_are_reported() {
    fails_each(
        &["XattrGet"],
        FAULTS[0],
        (End::Local, Direction::Push),
        ATTRIBUTE_CASES,
    );
}

/// Creates a file that is longer at the destination.
fn shrunk(top: &Path) {
    write(&top.join("src/a"), "short", 7);
    write(&top.join("dst/a"), &"long ".repeat(1000), 5);
}

#[test]
fn length_that_cannot_be_read_leaves_no_old_end() {
    const CASES: &[Case] = &[Case {
        build: shrunk,
        laws: IN_PLACE,
        ..case(&["-a", "--inplace"])
    }];
    fails_each(&["FStat"], FAULTS[0], (End::Local, Direction::Push), CASES);
}

/// A directory whose listing is denied looks like one that may only be searched.
#[test]
fn denied_directories_are_reported() {
    for place in [
        (End::Local, Direction::Push),
        (End::Client, Direction::Pull),
    ] {
        fails_each(
            &["OpenDir", "GetDents", "Seek"],
            FAULTS[2],
            place,
            &CASES[..4],
        );
    }
}

#[test]
fn failing_calls_in_the_client_of_a_push() {
    fails((End::Client, Direction::Push), CASES.iter());
}

#[test]
fn failing_calls_in_the_server_of_a_push() {
    fails((End::Server, Direction::Push), CASES.iter());
}

#[test]
fn failing_calls_in_the_client_of_a_pull() {
    fails((End::Client, Direction::Pull), CASES.iter());
}

#[test]
fn failing_calls_in_the_server_of_a_pull() {
    fails((End::Server, Direction::Pull), CASES.iter());
}

/// Fails calls of a network run. Each place takes other option sets, unless all are tested.
fn fails_over_network(transport: &'static str) {
    let is_whole = tries_all_faults();
    let ends = [End::NetClient(transport), End::Session(transport)];
    let ways = [Direction::Push, Direction::Pull];
    for (nth, place) in ends
        .into_iter()
        .flat_map(|end| ways.map(|way| (end, way)))
        .enumerate()
    {
        let nth = if transport == "quic" { nth } else { 7 - nth };
        fails(
            place,
            CASES
                .iter()
                .enumerate()
                .filter(|(number, _)| is_whole || number % 8 == nth)
                .map(|(_, case)| case),
        );
    }
}

#[test]
fn failing_calls_over_quic() {
    fails_over_network("quic");
}

#[test]
fn failing_calls_over_tls() {
    fails_over_network("tls");
}

/// Fails one use of the pipes between two ends. Returns `false` if the run ended before that.
fn link_fails_at(wanted: &[String], (end, way): (End, Direction), n: u64, error: &str) -> bool {
    let case = &case(&["-aHAX", "--delete"]);
    let stage = Stage::new(&Trees {
        options: case.options,
        build: case.build,
        backups: &[],
    });
    let begun = Instant::now();
    let output = run(
        &stage,
        case,
        (end, way),
        Some((LINK, format!("{n}:{error}"))),
    );
    let took = begun.elapsed();
    if !stage.top.join("fault").exists() {
        return false;
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = format!(
        "{end:?} {way:?}: {error} at use {n} of the link: exit {} after {took:?}\n{stderr}",
        output.exit
    );
    assert!(took < ENDS_WITHIN, "{printed}");
    if output.exit == 0 {
        differ(&printed, wanted, &trees(&stage.top));
    } else {
        assert!(
            !["EINTR", "EAGAIN"].contains(&error),
            "the run must not end for this: {printed}"
        );
        // A server that cannot write cannot report the cause to its client.
        let is_reported = end == End::Server && stderr.contains("rsync error")
            || ["connection unexpectedly closed", "could not be read"]
                .iter()
                .any(|words| stderr.contains(words));
        assert!(output.exit < 1000 && is_reported, "{printed}");
    }
    true
}

/// Both ends end within a second of the failure. The rest allows for a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn failing_link_ends_the_run() {
    let options = &["-aHAX", "--delete"];
    let twin = Stage::new(&Trees {
        options,
        build: both,
        backups: &[],
    });
    assert_eq!(twin.run_program(oracle::rsync(), options, &[]).exit, 0);
    let wanted = trees(&twin.top);
    // In the sample, each use of the link meets one of the errors.
    let is_whole = tries_all_faults();
    let step = if is_whole { 1 } else { 3 };
    for way in [Direction::Push, Direction::Pull] {
        for end in [End::Client, End::Server] {
            for (first, error) in (1..).zip(["EIO", "EAGAIN", "EINTR"]) {
                let first = if is_whole { 1 } else { first };
                let uses = (first..)
                    .step_by(step)
                    .take_while(|&n| link_fails_at(&wanted, (end, way), n, error))
                    .count();
                if uses == 0 {
                    report_skip(
                        "errors::failing_link_ends_the_run",
                        "the program under test is a release build",
                    );
                    return;
                }
            }
        }
    }
}

#[test]
fn hanging_server_ends_with_the_timeout() {
    let options = &["-a", "--timeout=1"];
    for (end, way) in [
        (End::Server, Direction::Push),
        (End::Server, Direction::Pull),
    ] {
        let mut held = 0;
        for n in [20, 60] {
            let stage = Stage::new(&Trees {
                options,
                build: both,
                backups: &[],
            });
            fs::mknodat(
                fs::CWD,
                stage.top.join("hold"),
                FileType::Fifo,
                0o600.into(),
                0,
            )
            .expect("scratch supports fifos");
            let hold = (
                "SPARSYNC_HOLD_AT",
                format!("{n}:{}", stage.top.join("hold").display()),
            );
            let output = run(&stage, &case(options), (end, way), Some(hold));
            // Releases a server that still waits.
            let _ = fs::open(
                stage.top.join("hold"),
                OFlags::WRONLY | OFlags::NONBLOCK,
                Mode::empty(),
            );
            held += u32::from(output.exit == 30);
            assert!(
                [0, 30].contains(&output.exit),
                "{way:?}, {n}: {}",
                output.stderr.escape_ascii()
            );
        }
        assert!(held > 0, "{way:?}");
    }
}

/// A slow disk: `fsync` takes longer than the timeout. Its process is working, so neither end gives up.
#[test]
fn slow_fsync_outlives_the_timeout() {
    for way in [Direction::Push, Direction::Pull] {
        let stage = Stage::new(&Trees {
            options: &[],
            build: both,
            backups: &[],
        });
        stage.script("shell", &[FAKE_SSH, "exec sh -c \"exec $*\"\n"].concat());
        let fifo = stage.top.join("hold");
        fs::mknodat(fs::CWD, &fifo, FileType::Fifo, 0o600.into(), 0)
            .expect("scratch supports fifos");
        let hold = [
            ("SPARSYNC_HOLD_AT", format!("1:{}", fifo.display())),
            ("SPARSYNC_FAULT_IN", "fsync".to_owned()),
        ];
        let program = oracle::under_test().display();
        let (far_program, hooks, operands) = match way {
            Direction::Push => {
                let [(name, value), (filter, call)] = &hold;
                let far = format!("env {name}={value} {filter}={call} {program}");
                (far, &[][..], ["src/", "far:dst/"])
            }
            Direction::Pull => {
                let far = format!("env -u SPARSYNC_HOLD_AT {program}");
                (far, &hold[..], ["far:src/", "dst/"])
            }
        };
        let far_program = format!("--rsync-path={far_program}");
        let [source, dest] = operands;
        let words = [
            "--rsh=./shell",
            &far_program,
            "-a",
            "--fsync",
            "--timeout=1",
            source,
            dest,
        ];
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| stage.run_words(oracle::under_test(), &words, hooks));
            // The fifo has a reader once the process is held.
            let mut gate = None;
            until(|| {
                gate = fs::open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
                gate.is_some() || copy.is_finished()
            });
            if gate.is_none() {
                report_skip(
                    "errors::slow_fsync_outlives_the_timeout",
                    "the program under test is a release build, which cannot be held",
                );
                return;
            }
            let held_since = Instant::now();
            until(|| held_since.elapsed() > Duration::from_secs(3) || copy.is_finished());
            drop(gate);

            let output = copy.join().expect("the run ends");
            let words = output.stderr.escape_ascii();
            assert!(output.exit == 0, "{way:?}: exit {}: {words}", output.exit);
        });
    }
}
