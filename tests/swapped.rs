//! `--detect-renamed` with files that were swapped or rotated: each takes the content that another one loses in the same run.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use rustix::process::Signal;
use std::cell::Cell;

use crate::faults::{Stage, Trees, write};
use crate::kit::{Request, World, oracle, synctest};
use crate::renamed::{contents, nothing_is_lost_of, reuses};

/// A swap, a cycle of three, rotated logs, and a file whose content two others take.
const SOURCE: &str = "x=first@20 y=second@21 a/f=one.@30 b/f=two.@31 c/f=three@32 \
    log2=monday@40 log3=tuesday@41 log4=sunday@42 t/0=other@51 t/1=twice@50 u/2=twice@50 kept=kept";
const DEST: &str = "x=second@21 y=first@20 a/f=three@32 b/f=one.@30 c/f=two.@31 \
    log1=monday@40 log2=tuesday@41 log3=sunday@42 t/0=twice@50 t/1=longer@52 kept=kept";

const MOVED: &str = "--detect-renamed=moved";
const QUICK: &str = "--detect-renamed=quick";
const SAME: &str = "--detect-renamed";

const CYCLE: [&str; 3] = [
    "copied b/f => a/f",
    "copied c/f => b/f",
    "copied a/f => c/f",
];
const ALL: [&str; 10] = [
    CYCLE[0],
    CYCLE[1],
    CYCLE[2],
    "copied y => x",
    "copied x => y",
    "copied log1 => log2",
    "copied log2 => log3",
    "copied log3 => log4",
    "copied t/0 => t/1",
    "copied t/0 => u/2",
];
/// Those that exist at both ends.
const CHANGED: [&str; 8] = [
    ALL[0], ALL[1], ALL[2], ALL[3], ALL[4], ALL[5], ALL[6], ALL[8],
];
/// Those that the destination lacks.
const NEW: [&str; 2] = [ALL[7], ALL[9]];
const NONE: [&str; 0] = [];

fn swapped(w: &World) -> &World {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source(SOURCE).dest(DEST)
}

/// One row of the table: options, and which files come from others.
macro_rules! swaps {
    ($name:ident, $own:expr, [$($option:expr),+ $(,)?], $lines:expr) => {
        synctest!($name, |w: World| {
            let w = swapped(&w);
            // An rsync sends no digests, so twins are only bases there.
            let has_digests = $own != SAME || !w.route().is_stock();
            let lines: &[&str] = if has_digests { &$lines } else { &[] };
            reuses(w, $own, &[$($option),+], lines);
        });
    };
}

swaps!(with_delete, QUICK, ["-ai", "--delete"], ALL);
swaps!(without_delete, QUICK, ["-ai"], ALL);
swaps!(by_names, MOVED, ["-ai"], CYCLE);
swaps!(before, QUICK, ["-ai", "--delete-before"], ALL);
swaps!(after, QUICK, ["-ai", "--delete-after"], ALL);
swaps!(in_place, QUICK, ["-ai", "--delete", "--inplace"], ALL);
swaps!(in_place_whole, QUICK, ["-ai", "-W", "--inplace"], ALL);
swaps!(
    in_place_with_backups,
    QUICK,
    ["-aib", "--inplace", "--delete-after"],
    ALL
);
swaps!(delay_updates, QUICK, ["-ai", "--delay-updates"], ALL);
swaps!(partial_dir, QUICK, ["-ai", "--partial-dir=.p"], ALL);
swaps!(backups, QUICK, ["-aib", "--delete-after"], ALL);
swaps!(backup_dir, QUICK, ["-ai", "--backup-dir=../bak"], ALL);
swaps!(hard_links, QUICK, ["-aiH", "--delete"], ALL);
swaps!(in_deltas, QUICK, ["-ai", "--no-whole-file"], ALL);
swaps!(sparse, QUICK, ["-aiS", "--delete"], ALL);
swaps!(synced, QUICK, ["-ai", "--fsync"], ALL);
swaps!(existing, QUICK, ["-ai", "--existing"], CHANGED);
swaps!(ignore_existing, QUICK, ["-ai", "--ignore-existing"], NEW);
swaps!(chmod, QUICK, ["-ai", "--chmod=F640"], ALL);
swaps!(link_dest, QUICK, ["-ai", "--link-dest=../alt"], ALL);

swaps!(same, SAME, ["-ai", "--delete"], ALL);
swaps!(same_in_place, SAME, ["-ai", "--delete", "--inplace"], ALL);
swaps!(same_checksum, SAME, ["-aic", "--delete"], ALL);
swaps!(same_ignoring_times, SAME, ["-aiI"], ALL);
swaps!(same_delay_updates, SAME, ["-ai", "--delay-updates"], ALL);
swaps!(same_backups, SAME, ["-aib", "--delete-after"], ALL);
// What is appended to is changed otherwise.
swaps!(same_appended, SAME, ["-ai", "--append"], NONE);

synctest!(temp_dir, |w: World| {
    let w = swapped(&w);
    w.dest("tmp/");
    reuses(w, QUICK, &["-ai", "--temp-dir=tmp"], &ALL);
});

synctest!(verified, |w: World| {
    swapped(&w);
    let ran = w
        .alone(&["-a", "--delete", "--verify", "--info=rename", QUICK])
        .exits(0);
    ALL.iter().fold(ran, |ran, line| ran.prints(line));
    w.alone(&["-aic", "--delete"]).exits(0).never_prints("f");
});

synctest!(files_of_a_user, as user, |w: World| {
    let w = swapped(&w);
    reuses(w, QUICK, &["-rltgoDi"], &CYCLE);
});

synctest!(nothing_is_sent, |w: World| {
    swapped(&w);
    w.alone(&["-a", "--delete", "--no-whole-file", "--stats", QUICK])
        .prints("Number of files taken from other files: 10 (53 bytes)")
        .prints("Number of regular files transferred: 11");
});

// A file that replaces an old one, and is the old content of a new one with several names.
synctest!(names_of_one_file, |w: World| {
    let w = swapped(&w);
    w.source("h/x=twice@50 h/y==h/x");
    reuses(w, QUICK, &["-aiH", "--delete"], &CYCLE);
});

synctest!(twins_with_other_names, |w: World| {
    let w = swapped(&w);
    w.source("a/other=stays@60").dest("a/other==a/f");
    for options in [&["-ai"][..], &["-aiH"], &["-ai", "--inplace"]] {
        reuses(w, QUICK, options, &[ALL[3], ALL[4]]);
        w.restore_dest();
    }
});

// Each of them changes the file before the other one does, so what it replaces is not what was found.
synctest!(names_of_one_changed_file_take_nothing, |w: World| {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("a=adjusted@5 b=taken@7 c=changed@8")
        .dest("a=adjusted@6 b==a c=taken@7");
    for options in [&["-ai"][..], &["-ai", "--inplace"], &["-aib"]] {
        reuses(&w, QUICK, options, &NONE);
        w.restore_dest();
    }
});

// `c~` is what the backup of `c` leaves there, before it takes the content of `d`.
synctest!(files_that_backups_replace_take_nothing, |w: World| {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("c=new@5 c~=taken@7 d=changed@8")
        .dest("c=old@4 c~=older@6 d=taken@7");
    reuses(&w, QUICK, &["-aib"], &NONE);
});

synctest!(files_that_become_something_else_are_no_twins, |w: World| {
    let w = swapped(&w);
    w.source("was/dir/ now=content@70 link->x gone=empty@71 e=")
        .dest("was=content@70 link=empty@71 e=filled@72");
    w.source("f=filled@72");
    w.once();
    reuses(
        w,
        QUICK,
        &["-ai", "--delete", "--force"],
        &["copied e => f"],
    );
});

synctest!(contents_of_several_blocks, |w: World| {
    let w = swapped(&w);
    let contents = [1_u8, 2].map(|byte| vec![byte; 3 << 20]);
    w.build("src", |tree| {
        tree.file("big/1", &contents[0]).mtime(100);
        tree.file("big/2", &contents[1]).mtime(101);
    });
    w.build("dst", |tree| {
        tree.file("big/1", &contents[1]).mtime(101);
        tree.file("big/2", &contents[0]).mtime(100);
    });
    let lines = ["copied big/2 => big/1", "copied big/1 => big/2"];
    for options in [&["-ai"][..], &["-ai", "--inplace"]] {
        reuses(w, QUICK, options, &lines);
        w.restore_dest();
    }
});

synctest!(no_room_to_hold_anything, as root, |w: World| {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    // With both old files, the third one would find no room.
    w.source("x*200000@1 y*200001@2 z*250000@3 filler*300000").dest("");
    w.mount_tmpfs("dst", 1 << 20);
    for options in [&["-ai"][..], &["-ai", "--inplace"]] {
        w.dest("x*200001@2 y*200000@1 z*9 filler*300000");
        w.once().no_dry_run();
        w.agree_beside(&[QUICK], options).exits(0);
    }
});

// ── kills and errors ────────────────────────────────────────────────────────────────────────────

/// A swap, a cycle, and a chain whose first content two files take.
fn build(top: &Path) {
    let both = |path: &str, new: (&str, u32), old: (&str, u32)| {
        write(&top.join("src").join(path), new.0, new.1.into());
        write(&top.join("dst").join(path), old.0, old.1.into());
    };
    both("a/x", ("alpha", 2), ("beta and more", 3));
    both("b/y", ("beta and more", 3), ("alpha", 2));
    both("f", ("one", 4), ("three", 6));
    both("g", ("two", 5), ("one", 4));
    both("h", ("three", 6), ("two", 5));
    both("log2", ("monday", 7), ("sunday", 8));
    write(&top.join("dst/log1"), "monday", 7);
    write(&top.join("src/log3"), "sunday", 8);
    write(&top.join("src/z/log3"), "sunday", 8);
}

const KILL: (&str, &str) = ("SPARSYNC_KILL_AT", "");

#[test]
fn kills_lose_nothing() {
    for options in [
        &["-a", "--delete"][..],
        &["-a", "--delete-after"],
        &["-a", "--inplace"],
        &["-a", "--delay-updates"],
        &["-ab", "--delete-after"],
    ] {
        nothing_is_lost_of((build, true), KILL, QUICK, options);
    }
    nothing_is_lost_of((build, true), KILL, SAME, &["-a", "--delete"]);
}

#[test]
fn errors_lose_nothing() {
    for error in [":EIO", ":ENOSPC", ":EACCES"] {
        for options in [&["-a", "--delete"][..], &["-a", "--inplace"]] {
            nothing_is_lost_of((build, true), ("SPARSYNC_FAIL_AT", error), QUICK, options);
        }
    }
}

/// What could not be held, and has a temporary name that cannot be removed, is reported.
#[test]
fn names_that_cannot_be_removed_are_reported() {
    fn swap(top: &Path) {
        for (tree, x, y) in [("src", "alpha", "beta"), ("dst", "beta", "alpha")] {
            write(&top.join(tree).join("x"), x, x.len() as u64);
            write(&top.join(tree).join("y"), y, y.len() as u64);
        }
    }
    let trees = Trees {
        options: &[],
        build: swap,
        backups: &[],
    };
    for (first, options) in [
        ("link", &["-a", QUICK][..]),
        ("create", &["-a", "--inplace", QUICK]),
    ] {
        let mut is_over = false;
        let mut n = 0;
        while !is_over {
            n += 1;
            let stage = Stage::new(&trees);
            let log = stage.top.with_extension("log");
            let hooks = [
                ("SPARSYNC_REFUSE", "unlink:EPERM".to_owned()),
                ("SPARSYNC_FAULT_IN", first.to_owned()),
                ("SPARSYNC_FAIL_AT", format!("{n}:EIO")),
                ("SPARSYNC_FAULT_LOG", log.display().to_string()),
            ];
            let run = stage.run_program(oracle::under_test(), options, &hooks);
            is_over = std::fs::remove_file(&log).is_err();
            let left = std::fs::read_dir(stage.top.join("dst")).expect("it can be listed");
            let left: Vec<_> = left
                .map(|entry| entry.expect("it is there").file_name())
                .filter(|name| name != "x" && name != "y")
                .collect();
            let shown = format!("{options:?}, {n}: {left:?}: {}", run.stderr.escape_ascii());
            assert!(run.exit != 0 || left.is_empty(), "{shown}");
        }
        assert!(n > 3, "{n} calls from the first {first} on");
    }
}

/// The client is stopped while it reads what the receiver compares. A file that it did not read because of that must not
/// count as one that takes no content.
#[test]
fn stop_of_the_comparison_loses_nothing() {
    let trees = Trees {
        options: &[],
        build,
        backups: &[],
    };
    let program = oracle::under_test().display();
    let far = format!("--rsync-path=env -u SPARSYNC_HOLD_AT {program}");
    for n in 1..=8 {
        let stage = Stage::new(&trees);
        stage.script("shell", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
        let before = contents(&stage.top.join("dst"), true);
        let needed = contents(&stage.top.join("src"), true);
        let gate = stage.top.join("gate");
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, &gate, FileType::Fifo, mode, 0).expect("scratch supports fifos");
        let held = Cell::new(None);
        let request = Request {
            signal: Signal::INT,
            to_all: false,
            ready: &|| {
                let opened = openat(CWD, &gate, OFlags::WRONLY | OFlags::NONBLOCK, mode);
                held.set(opened.ok());
                let gate = held.take();
                let is_held = gate.is_some();
                held.set(gate);
                is_held
            },
            interrupted: &|| drop(held.take()),
        };
        let env = [
            ("SPARSYNC_FAULT_IN", "read".to_owned()),
            ("SPARSYNC_HOLD_AT", format!("{n}:{}", gate.display())),
        ];
        let words = ["-a", SAME, "--rsh=./shell", &far, "src/", "far:dst/"];
        let stopped = stage.interrupt(&words, &env, &request);
        assert_eq!(stopped.exit, 20, "{}", stopped.stderr.escape_ascii());
        let after = contents(&stage.top.join("dst"), true);
        for content in before.intersection(&needed) {
            let shown = content.escape_ascii();
            assert!(after.contains(content), "{shown} is lost at read {n}");
        }
    }
}
