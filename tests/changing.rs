//! Trees that change during a run: nothing outside them is touched or read, nothing hangs, and the next run completes
//! what this one could not.
//!
//! With `SPARSYNC_HOLD_AT=n:fifo`, debug builds wait at the n-th file system call (see `src/fs/hooks.rs`). Each scene
//! is run repeatedly and changed before call 1, call 2, and so on, until a run makes fewer calls than that.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::faults::{Stage, Trees, write};
use crate::kit::{Output, World, files, oracle, report_skip, synctest, tries_all_faults};

/// A change in the middle of a run.
struct Change {
    /// Options of the run.
    options: &'static [&'static str],
    /// Makes `src`, `dst` and `outside`.
    build: fn(&Path),
    /// Makes the change.
    happens: fn(&Path),
    /// The required result of the next run.
    then: Then,
}

/// The required result of the run after the change.
enum Then {
    /// After one more run the destination equals the source.
    Equal,
    /// Nothing was written outside the trees or copied from outside.
    Safe,
}

/// The content of the files in `outside`, and of no others.
const SECRET: &str = "precious";

/// A small source, and a destination with older versions of some of its files and extra files.
fn small(top: &Path) {
    for name in ["a", "d/b", "d/c", "d/e/f", "z"] {
        write(&top.join("src").join(name), &format!("new {name}"), 9);
    }
    for name in ["a", "d/b", "d/gone", "d/e/f", "d/e/gone"] {
        write(
            &top.join("dst").join(name),
            &format!("old {name}, and longer"),
            3,
        );
    }
    for name in ["a", "b", "c", "gone", "e/f", "e/gone"] {
        write(&top.join("outside").join(name), SECRET, 5);
    }
}

fn put_away(path: &Path, instead: impl FnOnce(&Path)) {
    // The run may have removed it already.
    if std::fs::rename(path, path.with_extension("away")).is_ok() {
        instead(path);
    }
}

fn dest_dir_leads_outside(top: &Path) {
    put_away(&top.join("dst/d"), |d| {
        symlink("../outside", d).expect("scratch supports symlinks")
    });
}

macro_rules! changes {
    ($name:ident, [$($option:expr),+], $happens:expr, $then:ident) => {
        #[test]
        fn $name() {
            at_every_call(&Change { options: &[$($option),+], build: small, happens: $happens, then: Then::$then });
        }
    };
}

// ── the destination ─────────────────────────────────────────────────────────────────────────────
changes!(
    dest_directory_becomes_a_symlink,
    ["-a"],
    dest_dir_leads_outside,
    Safe
);
changes!(
    dest_directory_becomes_a_symlink_with_delete,
    ["-a", "--delete"],
    dest_dir_leads_outside,
    Equal
);
changes!(
    dest_directory_becomes_a_symlink_with_delete_after,
    ["-a", "--delete-after"],
    dest_dir_leads_outside,
    Equal
);
changes!(
    dest_directory_becomes_a_symlink_with_inplace,
    ["-a", "--inplace"],
    dest_dir_leads_outside,
    Safe
);
changes!(
    dest_directory_becomes_a_symlink_with_backup,
    ["-ab", "--delete", "--suffix=.o"],
    dest_dir_leads_outside,
    Safe
);
changes!(
    dest_directory_becomes_a_symlink_with_keep_dirlinks,
    ["-aK", "--delete"],
    dest_dir_leads_outside,
    Safe
);
changes!(
    dest_directory_becomes_a_symlink_with_delay_updates,
    ["-a", "--delay-updates"],
    dest_dir_leads_outside,
    Safe
);
changes!(
    dest_file_becomes_a_symlink,
    ["-a", "--inplace"],
    |top| put_away(&top.join("dst/a"), |a| symlink("../outside/a", a)
        .expect("scratch supports symlinks")),
    Safe
);
changes!(
    dest_file_becomes_a_fifo,
    ["-a", "--inplace"],
    |top| put_away(&top.join("dst/a"), fifo),
    Safe
);
changes!(
    dest_file_becomes_a_directory,
    ["-a", "--delete"],
    |top| put_away(&top.join("dst/a"), |a| {
        let made = top.join("made");
        write(&made.join("x"), "x", 1);
        // The run may put its file there in the meantime, more than once.
        while std::fs::rename(&made, a).is_err() {
            let _ = std::fs::remove_file(a);
        }
    }),
    Equal
);
changes!(
    dest_directory_vanishes,
    ["-a", "--delete"],
    |top| drop(std::fs::remove_dir_all(top.join("dst/d"))),
    Equal
);

// ── the source ──────────────────────────────────────────────────────────────────────────────────
changes!(
    source_directory_becomes_a_symlink,
    ["-a", "--delete"],
    |top| put_away(&top.join("src/d"), |d| symlink("../outside", d)
        .expect("scratch supports symlinks")),
    Equal
);
changes!(
    source_file_becomes_a_symlink,
    ["-a", "--delete"],
    |top| put_away(&top.join("src/d/c"), |c| symlink("../../outside/c", c)
        .expect("scratch supports symlinks")),
    Equal
);
changes!(
    source_file_becomes_a_fifo,
    ["-a", "--delete"],
    |top| put_away(&top.join("src/z"), fifo),
    Equal
);
changes!(
    source_file_becomes_a_directory,
    ["-a", "--delete"],
    |top| put_away(&top.join("src/z"), |z| write(&z.join("x"), "x", 1)),
    Equal
);
changes!(
    source_files_vanish,
    ["-a", "--delete"],
    |top| ["a", "d/c"]
        .iter()
        .for_each(|name| drop(std::fs::remove_file(top.join("src").join(name)))),
    Equal
);
changes!(
    source_directory_vanishes,
    ["-a", "--delete"],
    |top| drop(std::fs::remove_dir_all(top.join("src/d"))),
    Equal
);
changes!(
    source_files_grow,
    ["-a", "--delete"],
    |top| ["a", "d/b"]
        .iter()
        .for_each(|name| grow(&top.join("src").join(name))),
    Equal
);
changes!(
    source_files_shrink,
    ["-a", "--delete"],
    |top| ["a", "d/b"]
        .iter()
        .for_each(|name| shrink(&top.join("src").join(name))),
    Equal
);
changes!(
    source_file_grows_with_remove_source_files,
    ["-a", "--remove-source-files"],
    |top| grow(&top.join("src/d/c")),
    Safe
);

#[test]
fn vanished_source_file_exits_24() {
    let scene = Trees {
        options: &["-a"],
        build: small,
        backups: &[],
    };
    let vanish: fn(&Path) = |top| drop(std::fs::remove_file(top.join("src/z")));
    let mut n = 1;
    let mut is_reported = false;
    while let Some((stage, output)) =
        held_at(&scene, Route::Local, (n, &[]), |stage| vanish(&stage.top))
    {
        let line = format!("file has vanished: \"{}/src/z\"\n", stage.top.display());
        if output.exit == 24 {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains(&line), "{stderr}");
            assert!(stderr.contains(
                "rsync warning: some files vanished before they could be transferred (code 24)"
            ));
            is_reported = true;
        }
        n += 1;
    }
    assert!(
        is_reported || n == 1,
        "the file vanished between the list and the copy in none of {n} runs"
    );
}

#[test]
fn source_file_removed_by_another_process_is_no_failure() {
    let scene = Trees {
        options: &["-a", "--remove-source-files"],
        build: small,
        backups: &[],
    };
    let vanish: fn(&Path) = |top| drop(std::fs::remove_file(top.join("src/z")));
    let mut n = 1;
    let mut is_reported = false;
    while let Some((stage, output)) =
        held_at(&scene, Route::Local, (n, &[]), |stage| vanish(&stage.top))
    {
        if output.stdout == b"sender file already removed: z\n" {
            assert_eq!(
                output.exit,
                0,
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(stage.top.join("dst/z").exists());
            is_reported = true;
        }
        n += 1;
    }
    assert!(
        is_reported || n == 1,
        "the file vanished between its copy and its removal in none of {n} runs"
    );
}

#[test]
fn concurrent_symlink_swaps_cause_no_write_outside() {
    const RUNS: u64 = 60;
    let scene = Trees {
        options: &["-a", "--delete"],
        build: small,
        backups: &[],
    };
    let stage = Stage::new(&scene);
    let before = files(&stage.top.join("outside"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (d, away) = (stage.top.join("dst/d"), stage.top.join("d.away"));
            while !over.load(Ordering::Relaxed) {
                if std::fs::rename(&d, &away).is_ok() {
                    let _ = symlink("../outside", &d);
                    std::thread::yield_now();
                    let _ = std::fs::remove_file(&d);
                    let _ = std::fs::rename(&away, &d);
                    let _ = std::fs::remove_dir_all(&away);
                }
            }
        });
        for run in 0..RUNS {
            // Gives each run something to write and to delete.
            write(&stage.top.join("src/d/b"), &format!("new {run}"), 10 + run);
            write(
                &stage.top.join("src/d/e/f"),
                &format!("new {run}"),
                10 + run,
            );
            let output = stage.run_program(oracle::under_test(), scene.options, &[]);
            if !ended_normally(&output) {
                over.store(true, Ordering::Relaxed);
            }
            assert!(
                ended_normally(&output),
                "{}: {}",
                output.exit,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(files(&stage.top.join("outside")), before);
}

// ── nested trees ────────────────────────────────────────────────────────────────────────────────
synctest!(a_source_inside_the_destination, |w: World| {
    w.source("in/a in/d/b other");
    w.agree_paths(&["-ai"], &["src/in/", "src/"]).exits(0);
});

synctest!(source_inside_the_destination_with_delete, |w: World| {
    w.source("in/a in/d/b other x/y");
    w.agree_paths(&["-ai", "--delete"], &["src/in", "src/"])
        .exits(0);
});

synctest!(a_tree_onto_itself, |w: World| {
    w.source("a d/b l->a");
    w.agree_paths(&["-ai", "--delete"], &["src/", "src/"])
        .exits(0);
});

synctest!(excluded_destination_inside_the_source, |w: World| {
    w.source("a d/b z");
    w.agree_paths(&["-ai", "--exclude=/copy"], &["src/", "src/copy/"])
        .exits(0);
});

/// Entries that existed before the run are copied once; entries that the run itself creates are not copied again.
#[test]
fn destination_inside_the_source_is_copied_once() {
    let scene = Trees {
        options: &["-a"],
        build: small,
        backups: &[],
    };
    for _ in 0..20 {
        let stage = Stage::new(&scene);
        let inside = stage.top.join("src/d/dst");
        std::fs::rename(stage.top.join("dst"), &inside).expect("scratch can be written");
        symlink("src/d/dst", stage.top.join("dst")).expect("scratch supports symlinks");
        let before = files(&stage.top.join("src"));
        let output = stage.run_program(oracle::under_test(), scene.options, &[]);
        assert!(
            ended_normally(&output),
            "{}: {}",
            output.exit,
            String::from_utf8_lossy(&output.stderr)
        );
        // Compares only names: a file may be replaced while its old version is being copied.
        let names = |of: &std::collections::BTreeMap<_, _>| {
            of.keys().cloned().collect::<Vec<std::path::PathBuf>>()
        };
        let mut expected = names(&before);
        expected.extend(before.keys().map(|path| Path::new("d/dst").join(path)));
        expected.sort();
        expected.dedup();
        assert_eq!(names(&files(&stage.top.join("src"))), expected);
    }
}

#[test]
fn delete_spares_temporary_files_of_other_runs() {
    // The temporary names of `d/b`, which the source has, of `gone`, which it lacks, and of `left`.
    const NAMES: [&str; 3] = ["d/.b.AVHZev", ".gone.AoFtbV", ".left.AAPjDf"];
    let found = |stage: &Stage| NAMES.map(|name| stage.top.join("dst").join(name).exists());
    for options in [
        &["-a", "--delete-before"][..],
        &["-a", "--delete"],
        &["-a", "--delete-delay"],
        &["-a", "--delete-after"],
    ] {
        let stage = Stage::new(&Trees {
            options,
            build: small,
            backups: &[],
        });
        let files =
            NAMES.map(|name| std::fs::File::create(stage.top.join("dst").join(name)).unwrap());
        // Only the first two are being written.
        for file in &files[..2] {
            rustix::fs::flock(file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        }
        for (options, wanted) in [
            (&[options, &["-n"]].concat()[..], [true; 3]),
            (options, [true, true, false]),
        ] {
            let output = stage.run_program(oracle::under_test(), &[options, &["-i"]].concat(), &[]);
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(
                (output.exit, found(&stage)),
                (0, wanted),
                "{options:?}: {printed}"
            );
            assert!(
                !NAMES.iter().any(|name| printed.contains(name)),
                "{options:?}: {printed}"
            );
        }
        drop(files);
        // The other runs have ended, so nothing is left after the next one.
        assert_eq!(
            stage.run_program(oracle::under_test(), options, &[]).exit,
            0
        );
        assert_eq!(found(&stage), [false; 3], "{options:?}");
    }
}

#[test]
fn delete_keeps_an_extra_directory_in_which_another_run_writes() {
    for options in [
        &["-a", "--delete-before"][..],
        &["-a", "--delete"],
        &["-a", "--delete-delay"],
    ] {
        let stage = Stage::new(&Trees {
            options,
            build: small,
            backups: &[],
        });
        let extra = stage.top.join("dst/extra/deep");
        std::fs::create_dir_all(&extra).unwrap();
        // The temporary names of `left` and `gone`.
        let left = extra.join(".left.AAPjDf");
        std::fs::write(&left, "").unwrap();
        std::fs::write(extra.join("old"), "").unwrap();
        let locked = std::fs::File::create(extra.join(".gone.AoFtbV")).unwrap();
        rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
        for options in [&[options, &["-n"]].concat()[..], options] {
            let output = stage.run_program(oracle::under_test(), &[options, &["-i"]].concat(), &[]);
            let (printed, told) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            let all = format!("{options:?}: exit {}, {printed}{told}", output.exit);
            assert!(
                printed.contains("*deleting   extra/deep/old") && !printed.contains(".gone.AoFtbV"),
                "{all}"
            );
            assert_eq!(output.exit, 0, "{all}");
            assert!(
                format!("{printed}{told}").contains("cannot delete non-empty directory: extra\n"),
                "{all}"
            );
        }
        let names: Vec<_> = std::fs::read_dir(&extra)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, [".gone.AoFtbV"], "{options:?}");
        drop(locked);
        assert_eq!(
            stage.run_program(oracle::under_test(), options, &[]).exit,
            0
        );
        assert!(!stage.top.join("dst/extra").exists(), "{options:?}");
    }
}

/// Option sets of two runs at once.
const OF_TWO_RUNS: [&[&str]; 5] = [
    &["-aH", "--delete"],
    &["-a", "--delete-after", "--delay-updates"],
    &["-a", "--partial-dir=.part", "--no-whole-file"],
    &["-aH", "--partial"],
    &["-a", "--remove-source-files"],
];

/// How a run reaches the destination.
#[derive(Clone, Copy, Debug)]
enum Route {
    Local,
    /// To a session of a server, over this transport.
    Push(&'static str),
    Pull(&'static str),
}

impl Route {
    /// Runs the copy, with hooks in the process that writes.
    fn run(self, stage: &Stage, options: &[&str], hooks: Hooks<'_>) -> Output {
        match self {
            Route::Local => stage.run_program(oracle::under_test(), options, hooks),
            Route::Push(transport) => stage.run_over(
                transport,
                &[options, &["src/", "far:dst/"]].concat(),
                [&[], hooks],
            ),
            Route::Pull(transport) => stage.run_over(
                transport,
                &[options, &["far:src/", "dst/"]].concat(),
                [hooks, &[]],
            ),
        }
    }
}

/// A run waits at these calls until another run of the same copy has ended. Then nothing is torn, no temporary file is
/// left, and if both have succeeded, nothing is missing. Skips the test if no call can be held.
fn two_runs(
    options: &'static [&str],
    [held_route, other_route]: [Route; 2],
    calls: impl Iterator<Item = u64>,
) {
    let mut points = 0;
    let scene = Trees {
        options,
        build: small,
        backups: &[],
    };
    // With an even number of words, temporary files have names.
    let hooks = if options.len().is_multiple_of(2) {
        vec![("SPARSYNC_REFUSE", "tmpfile:EOPNOTSUPP".to_owned())]
    } else {
        Vec::new()
    };
    for n in calls {
        let other = Mutex::new(None);
        let runs =
            |stage: &Stage| *other.lock().unwrap() = Some(other_route.run(stage, options, &hooks));
        let before = Stage::new(&scene);
        let [old, new] = ["dst", "src"].map(|tree| files(&before.top.join(tree)));
        let Some((stage, held)) = held_at(&scene, held_route, (n, &hooks), runs) else {
            break;
        };
        points += 1;
        let other = other.into_inner().unwrap().expect("it has run");
        let shown = |run: &Output| format!("exit {}, {}", run.exit, run.stderr.escape_ascii());
        let shown = format!(
            "{options:?}, {held_route:?} held at call {n}: {}, the other: {}",
            shown(&held),
            shown(&other)
        );
        // These runs move files that the other one needs.
        let moves = ["--delay-updates", "--remove-source-files"]
            .iter()
            .any(|word| options.contains(word));
        let is_well = |run: &Output| {
            if moves {
                ended_normally(run)
            } else {
                run.exit == 0
            }
        };
        assert!(is_well(&held) && is_well(&other), "{shown}");
        let got = files(&stage.top.join("dst"));
        for (path, content) in &got {
            assert!(
                [&old, &new]
                    .iter()
                    .any(|tree| tree.get(path) == Some(content)),
                "{}: {shown}",
                path.display()
            );
        }
        assert!(
            new.iter()
                .all(|(path, content)| got.get(path) == Some(content)),
            "{got:?}: {shown}"
        );
        let last = stage.run_program(oracle::under_test(), options, &[]);
        assert_eq!(last.exit, 0, "{}: {shown}", last.stderr.escape_ascii());
    }
    if points == 0 {
        report_skip(
            "changing::two_runs",
            "the program under test is a release build, without SPARSYNC_HOLD_AT",
        );
    }
}

#[test]
fn two_runs_on_one_destination() {
    for options in OF_TWO_RUNS {
        two_runs(options, [Route::Local; 2], (1..).step_by(3));
    }
}

/// One session over QUIC and one over TLS. A plain test run takes a sample, `SPARSYNC_FAULTS=all` everything.
#[test]
fn two_network_sessions_on_one_destination() {
    let is_whole = tries_all_faults();
    let (quic, tls) = ("quic", "tls");
    for (nth, routes) in [
        [Route::Push(quic), Route::Push(tls)],
        [Route::Push(tls), Route::Push(quic)],
        [Route::Pull(quic), Route::Pull(tls)],
        [Route::Pull(tls), Route::Pull(quic)],
    ]
    .into_iter()
    .enumerate()
    {
        for (number, options) in OF_TWO_RUNS.into_iter().enumerate() {
            match is_whole {
                true => two_runs(options, routes, 1..),
                false if number == nth => two_runs(options, routes, (23..).step_by(41)),
                false => {}
            }
        }
    }
}

// ── helpers ─────────────────────────────────────────────────────────────────────────────────────

/// Runs the scene repeatedly, with the change before call 1, then before call 2, and so on.
#[track_caller]
fn at_every_call(change: &Change) {
    let scene = Trees {
        options: change.options,
        build: change.build,
        backups: &[],
    };
    let mut n = 1;
    while let Some((stage, output)) = held_at(&scene, Route::Local, (n, &[]), |stage| {
        (change.happens)(&stage.top)
    }) {
        let describe = || {
            format!(
                "changed at call {n}: exit {}, {}",
                output.exit,
                String::from_utf8_lossy(&output.stderr)
            )
        };
        assert!(ended_normally(&output), "{}", describe());
        let nothing_leaked = || {
            let outside = files(&stage.top.join("outside"));
            assert_eq!(outside.len(), 6, "{}", describe());
            assert!(
                outside.values().all(|content| content == SECRET.as_bytes()),
                "{}",
                describe()
            );
            let copied = files(&stage.top.join("dst"));
            assert!(
                copied.values().all(|content| content != SECRET.as_bytes()),
                "{}",
                describe()
            );
            // No scene has an empty file, so an empty file would be an incomplete copy.
            assert!(!copied.values().any(Vec::is_empty), "{}", describe());
        };
        nothing_leaked();
        let again = stage.run_program(oracle::under_test(), change.options, &[]);
        assert!(
            ended_normally(&again),
            "{}, then {}",
            describe(),
            String::from_utf8_lossy(&again.stderr)
        );
        nothing_leaked();
        match change.then {
            Then::Equal => {
                assert_eq!(
                    files(&stage.top.join("dst")),
                    files(&stage.top.join("src")),
                    "{}",
                    describe()
                );
            }
            Then::Safe => {}
        }
        n += 1;
    }
    if n == 1 {
        report_skip(
            "changing",
            "the program under test is a release build, without SPARSYNC_HOLD_AT",
        );
    }
}

/// Returns whether a run ended by itself, at worst with errors on single files.
fn ended_normally(output: &Output) -> bool {
    matches!(output.exit, 0 | 23 | 24)
        && !String::from_utf8_lossy(&output.stderr).contains("panicked")
}

/// Environment variables for hooks of the program.
pub type Hooks<'a> = &'a [(&'static str, String)];

/// Runs the scene, holds it at the n-th call and makes the change there. Returns `None` if the run ended before that.
fn held_at(
    scene: &Trees,
    route: Route,
    (n, hooks): (u64, Hooks<'_>),
    happens: impl Fn(&Stage) + Sync,
) -> Option<(Stage, Output)> {
    let stage = Stage::new(scene);
    let run = |hold: Hooks<'_>| route.run(&stage, scene.options, &[hold, hooks].concat());
    let output = run_held(&stage, n, run, || happens(&stage))?;
    Some((stage, output))
}

/// Runs a program with hooks that hold it at the n-th call, and makes the change there. Returns `None` if the run ended
/// before that.
pub fn run_held(
    stage: &Stage,
    n: u64,
    run: impl FnOnce(Hooks<'_>) -> Output,
    happens: impl FnOnce() + Send,
) -> Option<Output> {
    let gate = stage.top.join("gate");
    fifo(&gate);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            // Blocks until the other end is opened: by the program, or by this thread's parent after the run.
            let _open = std::fs::File::options()
                .write(true)
                .open(&gate)
                .expect("scratch supports fifos");
            let is_held = !is_over.load(Ordering::SeqCst);
            if is_held {
                happens();
            }
            is_held
        });
        let hold = format!("{n}:{}", gate.display());
        let output = run(&[("SPARSYNC_HOLD_AT", hold)]);
        is_over.store(true, Ordering::SeqCst);
        let other_end =
            rustix::fs::openat(CWD, &gate, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        let was_held = changer.join().expect("the change can be made");
        drop(other_end);
        was_held.then_some(output)
    })
}

/// Appends to the file if it still exists.
fn grow(path: &Path) {
    if let Ok(mut file) = std::fs::File::options().append(true).open(path) {
        file.write_all(&b"more".repeat(70_000))
            .expect("scratch can be written");
    }
}

fn shrink(path: &Path) {
    let file = std::fs::File::options().write(true).open(path);
    file.and_then(|file| file.set_len(1))
        .expect("scratch can be written");
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0)
        .expect("scratch supports fifos");
}
