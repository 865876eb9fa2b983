//! The number of file system calls that a run makes. The numbers are pinned, so that a slower design fails here on any
//! machine, without measuring time.
//!
//! Debug builds count the calls (see `src/fs/hooks.rs`) and print the counts with `SPARSYNC_PROFILE=1`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSliceMut, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Advice, fadvise, syncfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::kit::{Surroundings, USUAL_UMASK, Who, oracle, report_skip, run, until, write_script};

const DIRS: u64 = 10;
const FILES: u64 = 1_000;
/// The directories below the top, and the top itself.
const ALL_DIRS: u64 = DIRS + 1;
/// How many batches copy the files: 64 and 36 files of each directory.
const BATCHES: u64 = 2 * DIRS;
/// The source argument and the destination: each is looked up once by its path.
const OPERANDS: u64 = 2;
/// Files that may hold settings: /etc/popt, ~/.popt and ~/.cvsignore. Each is looked up once per run.
const SETTINGS: u64 = 3;

/// The number of calls by name. Calls that were not made are absent.
type Calls = BTreeMap<String, u64>;

/// Makes the change of each phase and runs the program after it. Returns the calls of the last run, or `None` if the
/// program or the file system does not support the test.
fn calls(name: &str, options: &[&str], phases: &[&dyn Fn(&Path)]) -> Option<Calls> {
    calls_in(
        oracle::scratch(),
        name,
        &[options, &["src/", "dst"]].concat(),
        phases,
    )
}

/// As [`calls`], in this directory and with these operands.
fn calls_in(base: &Path, name: &str, words: &[&str], phases: &[&dyn Fn(&Path)]) -> Option<Calls> {
    let dir = tempfile::tempdir_in(base).expect("scratch can be written");
    let top = dir.path();
    for n in 0..FILES {
        let dir = top.join(format!("src/d{}", n % DIRS));
        std::fs::create_dir_all(&dir).expect("scratch can be written");
        std::fs::write(dir.join(format!("f{n}")), format!("file {n}"))
            .expect("scratch can be written");
    }
    let env = vec![("SPARSYNC_PROFILE".to_owned(), "1".to_owned())];
    let surroundings = Surroundings {
        who: Who::Current,
        home: top.to_owned(),
        umask: USUAL_UMASK,
        stdin: Vec::new(),
        env,
    };
    let mut counted = Calls::new();
    for phase in phases {
        phase(top);
        let argv: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let output = run(oracle::under_test(), &argv, top, &surroundings);
        assert_eq!(output.exit, 0, "{}", output.stderr.escape_ascii());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("profile: ")?.split_once(' '));
        // Other lines are about a session.
        counted = lines
            .filter_map(|(call, count)| Some((call.to_owned(), count.parse().ok()?)))
            .collect();
    }
    if counted.is_empty() {
        report_skip(
            name,
            "the program under test is a release build, which does not count",
        );
        return None;
    }
    if counted.contains_key("create") && counted.contains_key("tmpfile") && phases.len() == 1 {
        report_skip(
            name,
            "the file system of the scratch directory has no unnamed files",
        );
        return None;
    }
    Some(counted)
}

/// Pinned numbers: the name of a call, its count, and the reason for that count.
type Pins<'a> = &'a [(&'a str, u64, &'a str)];

/// Asserts that the counts match: calls for entries exactly, calls for directories or once per run as a maximum
/// (`at_most`). No other calls may be made.
#[track_caller]
fn pinned(calls: &Calls, exactly: Pins<'_>, at_most: Pins<'_>) {
    let mut faults = Vec::new();
    for (call, count, why) in exactly {
        let made = calls.get(*call).copied().unwrap_or(0);
        if made != *count {
            faults.push(format!("{call}: {made} calls, not {count} ({why})"));
        }
    }
    for (call, count, why) in at_most {
        let made = calls.get(*call).copied().unwrap_or(0);
        if made > *count {
            faults.push(format!("{call}: {made} calls, more than {count} ({why})"));
        }
    }
    for (call, made) in calls {
        if !exactly
            .iter()
            .chain(at_most)
            .any(|(known, ..)| known == call)
        {
            faults.push(format!("{call}: {made} calls that nothing asks for"));
        }
    }
    assert!(
        faults.is_empty(),
        "the cost has changed:\n    {}\nall: {calls:?}",
        faults.join("\n    ")
    );
}

/// The calls for directories that every run makes.
const PER_DIR: [(&str, u64, &str); 5] = [
    (
        "opendir",
        3 * ALL_DIRS + OPERANDS,
        "each directory at the source and the destination, and to work in",
    ),
    (
        "getdents",
        4 * ALL_DIRS + OPERANDS + 1,
        "its names and the end of them, on both sides; the operands once more; whether the source is empty",
    ),
    ("seek", 2 * ALL_DIRS, "back to its beginning"),
    (
        "fstat",
        3 * ALL_DIRS + OPERANDS,
        "directories that are open: their file system, owner, mode",
    ),
    (
        "readlink",
        OPERANDS,
        "whether the destination lies in the source",
    ),
];

#[test]
fn idle_run_stats_each_entry_once_and_opens_no_file() {
    let idle = |options: &[&str]| {
        let Some(calls) = calls("cost::idle_run", options, &[&|_| {}, &|_| {}]) else {
            return;
        };
        let at_most = [
            &PER_DIR[..],
            &[(
                "xattr_get",
                ALL_DIRS,
                "whether a directory has a default ACL",
            )],
        ]
        .concat();
        pinned(
            &calls,
            &[
                (
                    "stat",
                    2 * (FILES + DIRS) + OPERANDS,
                    "one stat per entry and side",
                ),
                ("open", SETTINGS, "no file except possible settings files"),
                ("read", 0, "nothing is read"),
            ],
            &at_most,
        );
    };
    idle(&["-a"]);
    idle(&["-a", "--delete"]);
    idle(&["-ai", "--delete"]);
}

// The listings of both sides examine each entry, and each directory has a record. Nothing else is read.
#[test]
fn idle_run_with_digests_of_earlier_runs_opens_no_file() {
    let settle = |top: &Path| {
        let newest = std::fs::metadata(top.join("dst/d0/f0")).map(|found| found.ctime());
        let newest = newest.unwrap_or_default() + 2;
        until(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.expect("it is after 1970").as_secs() as i64 > newest
        });
    };
    let options = ["-ac", "--checksum-cache=sums"];
    let phases: [&dyn Fn(&Path); 3] = [&|_| {}, &settle, &|_| {}];
    let Some(calls) = calls("cost::idle_run_with_digests", &options, &phases) else {
        return;
    };
    let of = |call: &str| calls.get(call).copied().unwrap_or(0);
    let records = 2 * ALL_DIRS;
    assert_eq!(of("stat"), 2 * (FILES + DIRS) + OPERANDS, "{calls:?}");
    assert!(of("open") <= SETTINGS + records, "{calls:?}");
    assert!(of("read") <= records, "{calls:?}");
    assert!(of("fstat") <= PER_DIR[3].1 + 4 * records, "{calls:?}");
    for call in ["create", "tmpfile", "rename"] {
        assert_eq!(of(call), 0, "{calls:?}");
    }
}

#[test]
fn first_copy_makes_seven_calls_per_small_file() {
    let Some(calls) = calls("cost::first_copy", &["-a"], &[&|_| {}]) else {
        return;
    };
    let at_most = [
        &PER_DIR[..],
        &[
            ("mkdir", ALL_DIRS, "each directory once"),
            ("chmod", ALL_DIRS, "mode bits that mkdir cannot set"),
            ("chown", ALL_DIRS, "directories with another owner"),
            (
                "xattr_get",
                ALL_DIRS + 2,
                "whether a directory has a default ACL; of a new destination also the one above",
            ),
        ],
    ]
    .concat();
    pinned(
        &calls,
        &[
            (
                "stat",
                FILES + DIRS + OPERANDS + 1,
                "1: one stat per source entry, none at the destination; of the new destination, in case it is in the source",
            ),
            (
                "open",
                FILES + BATCHES + SETTINGS,
                "2: the source; one of each batch to look whether it is cached",
            ),
            ("tmpfile", FILES, "3: the destination, without a name yet"),
            (
                "read",
                FILES + BATCHES,
                "4: the content; a short read is the end. One byte to look whether it is cached",
            ),
            ("write", FILES, "5: all of it"),
            (
                "utimes",
                FILES + ALL_DIRS,
                "6: its times; a directory's at the end",
            ),
            ("link", FILES, "7: its name"),
        ],
        &at_most,
    );
}

/// Has the kernel remove a file from its cache, if it is written.
fn evict(file: &File) {
    fadvise(file, 0, None, Advice::DontNeed).expect("the test's own file");
}

/// Returns whether a file system can say what is cached.
fn knows_its_cache(base: &Path) -> bool {
    let mut file = tempfile::tempfile_in(base).expect("the temporary directory can be written");
    file.write_all(b"content").expect("the test's own file");
    file.sync_all().expect("the test's own file");
    evict(&file);
    let mut byte = [0];
    let look = preadv2(
        &file,
        &mut [IoSliceMut::new(&mut byte)],
        0,
        ReadWriteFlags::NOWAIT,
    );
    look == Err(Errno::AGAIN)
}

#[test]
fn files_that_are_not_cached_are_read_ahead() {
    let disk = std::env::temp_dir();
    if !knows_its_cache(&disk) {
        report_skip(
            "cost::read_ahead",
            "the file system of the temporary directory does not say what is cached",
        );
        return;
    }
    let evict = |top: &Path| {
        syncfs(File::open(top).expect("the test's own directory"))
            .expect("the test's own directory");
        // The kernel leaves pages that it uses at the moment.
        for n in (0..FILES).cycle().take(3 * FILES as usize) {
            let path = top.join(format!("src/d{}/f{n}", n % DIRS));
            evict(&File::open(path).expect("the test's own file"));
        }
    };
    let prepare = |top: &Path, dirs: u64| {
        for n in 0..dirs {
            std::fs::create_dir_all(top.join(format!("dst/d{n}")))
                .expect("the test's own directory");
        }
        write_script(&top.join("shell"), "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
        evict(top);
    };
    let program = format!("--rsync-path={}", oracle::under_test().display());
    // By the appliers of a local run; in a session with content that was not requested, and with requested content.
    for (dest, dirs, least) in [
        ("dst", 0, FILES / 2),
        ("far:dst", 0, FILES / 2),
        ("far:dst", DIRS, 1),
    ] {
        let words = ["--rsh=./shell", &program, "-a", "src/", dest];
        let Some(calls) = calls_in(
            &disk,
            "cost::read_ahead",
            &words,
            &[&|top| prepare(top, dirs)],
        ) else {
            return;
        };
        let advised = calls.get("advise").copied().unwrap_or(0);
        assert!(
            (least..=FILES).contains(&advised),
            "{dest}, {dirs} directories: {calls:?}"
        );
    }
}

#[test]
fn update_costs_calls_only_for_changed_files() {
    const CHANGED: u64 = FILES / DIRS;
    const CHANGED_BATCHES: u64 = BATCHES / DIRS;
    let change = |top: &Path| {
        for entry in std::fs::read_dir(top.join("src/d0")).expect("scratch can be read") {
            std::fs::write(
                entry.expect("scratch can be read").path(),
                "longer than it was",
            )
            .expect("the test's own file");
        }
    };
    let Some(calls) = calls("cost::update", &["-a"], &[&|_| {}, &change]) else {
        return;
    };
    let at_most = [
        &[
            (
                "fstat",
                CHANGED + PER_DIR[3].1,
                "the temporary file was not removed before it was locked",
            ),
            (
                "xattr_get",
                ALL_DIRS,
                "whether a directory has a default ACL",
            ),
        ],
        &PER_DIR[..3],
        &PER_DIR[4..],
    ]
    .concat();
    pinned(
        &calls,
        &[
            (
                "stat",
                2 * (FILES + DIRS) + OPERANDS,
                "one stat per entry and side",
            ),
            (
                "open",
                CHANGED + CHANGED_BATCHES + SETTINGS,
                "the source; one of each batch to look whether it is cached",
            ),
            ("create", CHANGED, "the temp file"),
            ("lock", CHANGED, "the lock that marks it as in use"),
            (
                "read",
                CHANGED + CHANGED_BATCHES,
                "all of it; one byte to look whether it is cached",
            ),
            ("write", CHANGED, "all of it"),
            ("chmod", CHANGED, "the mode, after the owner"),
            ("utimes", CHANGED + 1, "its times, and the directory's"),
            (
                "close",
                CHANGED,
                "a delayed write error is seen before the rename",
            ),
            ("rename", CHANGED, "its name"),
        ],
        &at_most,
    );
}

#[test]
fn fsync_is_called_once_per_written_file() {
    let name = "cost::fsync_is_called_once_per_written_file";
    let nothing: &dyn Fn(&Path) = &|_| ();
    let change: &dyn Fn(&Path) =
        &|top| std::fs::write(top.join("src/d0/f0"), "longer than it was").expect("scratch");
    for (options, phases, count) in [
        (&["-a", "--fsync"][..], &[nothing][..], FILES),
        (&["-a", "--fsync"], &[nothing, change], 1),
        (&["-a", "--fsync", "--inplace"], &[nothing, change], 1),
    ] {
        let Some(calls) = calls(name, options, phases) else {
            return;
        };
        assert_eq!(calls.get("fsync"), Some(&count), "{options:?}");
    }
}
