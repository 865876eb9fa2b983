//! What must hold before a run changes anything: `--delete-guard`, `--require-mount`, `--fail-if-empty`, `--lock`.
//!
//! rsync has none of these. A refused run is compared with the trees before it, an admitted one with rsync's.

use crate::kit::{Lens, World, files, oracle, snapshot, synctest, until};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The extra entries of [`crowded`]: 25 files, their directory, and a file beside it.
const EXTRA: u32 = 27;

/// A source with two entries, and a destination with [`EXTRA`] more.
fn crowded(w: &World) {
    needs_own_client(w);
    let extra: String = (0..25).map(|n| format!(" gone/f{n}")).collect();
    w.source("a d/x").dest(&format!("a d/x old{extra}"));
}

/// Skips the case where rsync is the client.
fn needs_own_client(w: &World) {
    w.not_served("rsync has no such option");
}

/// Runs sparsync alone and checks that it changes nothing.
#[track_caller]
fn is_refused(w: &World, options: &[&str], exit: i32, message: &str) {
    needs_own_client(w);
    let lens = Lens {
        links_within: false,
        blocks: false,
        atimes: false,
        now_secs: i64::MAX,
    };
    // The first run settles what the route itself changes, such as the times of directories.
    w.alone(&["-a"]).exits(0);
    let before = ["src", "dst"].map(|tree| snapshot(&w.tested().join(tree), lens));
    w.alone(options).exits(exit).warns(message);
    let after = ["src", "dst"].map(|tree| snapshot(&w.tested().join(tree), lens));
    assert_eq!(after, before, "{options:?}");
}

/// Each time at which extra entries can be deleted.
const TIMINGS: [&str; 5] = [
    "--delete",
    "--delete-before",
    "--delete-during",
    "--delete-delay",
    "--delete-after",
];

synctest!(more_deletions_than_the_guard_permits, |w: World| {
    crowded(&w);
    for timing in TIMINGS {
        let most = format!("--delete-guard={}", EXTRA - 1);
        let message = "27 of 31 entries would be deleted, more than 26: nothing was changed";
        is_refused(&w, &["-a", timing, &most], 25, message);
    }
});

synctest!(more_deletions_than_a_percentage, |w: World| {
    crowded(&w);
    // 87 % of 31 are 26.
    let message = "27 of 31 entries would be deleted, more than 87% (26): nothing was changed";
    is_refused(&w, &["-a", "--delete", "--delete-guard=87%"], 25, message);
});

synctest!(
    excluded_entries_count_if_they_would_be_deleted,
    |w: World| {
        crowded(&w);
        let options = ["-a", "--delete", "--exclude=gone", "--delete-guard=1"];
        w.alone(&options).exits(0);
        w.source("a d/x");
        let options = [
            "-a",
            "--delete-excluded",
            "--exclude=gone",
            "--delete-guard=1",
        ];
        w.alone(&options).exits(25);
    }
);

synctest!(as_many_deletions_as_the_guard_permits, |w: World| {
    crowded(&w);
    w.alone(&["-a", "--delete", "--delete-guard=27"]).exits(0);
    let left: Vec<PathBuf> = files(&w.tested().join("dst")).into_keys().collect();
    assert_eq!(left, [Path::new("a"), Path::new("d/x")]);
});

synctest!(a_dry_run_is_refused_like_the_run, |w: World| {
    crowded(&w);
    let message = "nothing was changed (--delete-guard)";
    is_refused(&w, &["-an", "--delete", "--delete-guard=3"], 25, message);
});

synctest!(replaced_entries_do_not_count, |w: World| {
    needs_own_client(&w);
    w.source("a=new b/x").dest("a/ b");
    w.alone(&["-a", "--delete", "--delete-guard=0"]).exits(0);
});

synctest!(contents_of_a_replaced_directory_count, |w: World| {
    needs_own_client(&w);
    w.source("a").dest("a/x a/y");
    let message = "2 of 3 entries would be deleted, more than 1: nothing was changed";
    let options = ["-a", "--delete", "--delete-guard=1"];
    let output = w.alone(&options);
    output.exits(25).warns(message);
    assert!(w.tested().join("dst/a/y").exists());
});

synctest!(an_empty_source_does_not_empty_a_destination, |w: World| {
    needs_own_client(&w);
    w.not_pulled("the client does not know the source before the run");
    let extra: String = (0..25).map(|n| format!(" gone/f{n}")).collect();
    w.source("").dest(&format!("a d/x old{extra}"));
    let message = "30 of 31 entries would be deleted, but the source has none: nothing was changed";
    let before = files(&w.tested().join("dst"));
    w.alone(&["-a", "--delete"]).exits(25).warns(message);
    assert_eq!(files(&w.tested().join("dst")), before);
    w.alone(&["-a", "--delete", "--no-delete-guard"]).exits(0);
    assert!(files(&w.tested().join("dst")).is_empty());
});

synctest!(
    an_empty_remote_source_does_not_empty_a_destination,
    |w: World| {
        w.only_pulled("the client knows the source before the run");
        let extra: String = (0..19).map(|n| format!(" gone/f{n}")).collect();
        w.source("").dest(&format!("old{extra}"));
        let message =
            "more than 20 entries would be deleted, but the source has none: nothing was changed";
        for timing in TIMINGS {
            is_refused(&w, &["-a", timing], 25, message);
            is_refused(&w, &["-an", timing], 25, message);
        }
        w.alone(&["-a", "--delete", "--no-delete-guard"]).exits(0);
        assert!(files(&w.tested().join("dst")).is_empty());
    }
);

// A list can be empty although the source is not.
synctest!(
    a_remote_source_of_which_nothing_takes_part_empties_a_destination,
    |w: World| {
        w.only_pulled("the client knows the source before the run");
        let extra: String = (0..29).map(|n| format!(" gone/f{n}")).collect();
        w.source("a.o b.o").dest(&extra).keep_dest();
        for timing in TIMINGS {
            w.restore_dest()
                .agree(&["-a", timing, "--exclude=*.o"])
                .exits(0);
        }
        for option in ["--max-size=0", "-C", "--filter=-! */"] {
            w.restore_dest().agree(&["-a", "--delete", option]).exits(0);
        }
        w.restore_dest()
            .alone(&["-a", "--fail-if-empty", "--exclude=*.o"])
            .exits(0);
        let options = ["-a", "--delete", "--delete-guard=3", "--exclude=*.o"];
        let refused = w.restore_dest().alone(&options);
        let refused = refused.exits(25).warns("more than 3");
        assert!(
            !refused.stderr.contains("the source is empty"),
            "{}",
            refused.stderr
        );
        w.source("d/");
        w.restore_dest().agree(&["-am", "--delete"]).exits(0);
    }
);

synctest!(
    a_remote_source_that_cannot_be_read_does_not_count_as_empty,
    as user,
    |w: World| {
        w.only_pulled("the client knows the source before the run");
        w.not_with_daemon("a daemon of root reads what the user cannot");
        let extra: String = (0..19).map(|n| format!(" gone/f{n}")).collect();
        w.source("d/x").dest(&format!("old{extra}"));
        w.change(|twin| {
            let shut = std::fs::Permissions::from_mode(0o000);
            std::fs::set_permissions(twin.join("src"), shut).expect("it is ours");
        });
        w.no_dry_run().agree(&["-r", "--delete"]).exits(23);
    }
);

synctest!(an_empty_source_empties_a_small_destination, |w: World| {
    let extra: String = (0..19).map(|n| format!(" gone/f{n}")).collect();
    w.source("").dest(&extra);
    w.agree(&["-a", "--delete"]).exits(0);
});

synctest!(an_empty_source_is_refused, |w: World| {
    w.source("").dest("a");
    let message = "the source is empty";
    is_refused(&w, &["-a", "--fail-if-empty"], 3, message);
});

synctest!(a_directory_without_a_mount_is_refused, |w: World| {
    w.source("a").dest("b");
    let place = format!("--require-mount={}", w.tested().join("src").display());
    is_refused(&w, &["-a", &place], 3, "nothing is mounted there");
    w.alone(&["-a", "--require-mount=/proc"]).exits(0);
    w.alone(&["-a", "--require-mount=/proc/no"]).exits(3);
});

/// A scratch directory with two trees, outside of the kit's worlds: only this end matters.
fn trees() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    for (path, text) in [("src/a", "a"), ("dst/b", "b")] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).expect("scratch can be written");
        std::fs::write(path, text).expect("scratch can be written");
    }
    dir
}

fn sparsync(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(oracle::under_test());
    command
        .args(words)
        .current_dir(dir)
        .env("SPARSYNC_CONFIG_DIR", dir.join("config"))
        .stdin(Stdio::null());
    command
}

#[test]
fn a_locked_destination_is_refused_or_awaited() {
    let dir = trees();
    let top = dir.path();
    std::fs::create_dir(top.join("config")).unwrap();
    // The first run holds the lock while its list comes from a fifo without a writer.
    let fifo = top.join("list");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let mut first = sparsync(top, &["-a", "--lock", "--files-from=list", "src/", "dst/"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let locks = top.join("config/state/locks");
    let holder = || {
        let mut locks = std::fs::read_dir(&locks).ok()?;
        std::fs::read_to_string(locks.next()?.ok()?.path()).ok()
    };
    until(|| holder() == Some(first.id().to_string()));

    // The same destination by another path, and with another form of its name.
    let absolute = format!("{}/dst/", top.display());
    std::os::unix::fs::symlink("dst", top.join("link")).unwrap();
    let spellings = [
        "dst",
        "./dst//",
        "dst/.",
        "src/../dst/",
        "link",
        "link/",
        &absolute,
    ];
    for dest in spellings {
        let refused = sparsync(top, &["-a", "--lock", "src/", dest])
            .output()
            .unwrap();
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(75), "{stderr}");
        let line = format!(
            "sparsync: process {} copies to {}/dst",
            first.id(),
            top.display()
        );
        assert!(stderr.starts_with(&line), "{stderr}");
    }
    assert!(!top.join("dst/a").exists());
    let other = sparsync(top, &["-a", "--lock", "src/", "other/"])
        .status()
        .unwrap();
    assert_eq!(other.code(), Some(0));

    let mut waiting = sparsync(top, &["-a", "--lock=wait", "src/", "dst/"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says that it waits, so it has not begun.
    let mut line = String::new();
    let mut stderr = std::io::BufReader::new(waiting.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    assert!(line.starts_with("sparsync: waiting for process "), "{line}");
    assert!(!top.join("dst/a").exists());
    std::fs::write(&fifo, "").unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(0));
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
    assert!(top.join("dst/a").exists());
}

#[test]
fn a_list_that_can_be_read_once_is_refused() {
    let dir = trees();
    let words = [
        "-a",
        "--delete",
        "--delete-guard=5",
        "--files-from=-",
        "src/",
        "dst/",
    ];
    let output = sparsync(dir.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("a list or rules from `-`, which can be read only once"),
        "{stderr}"
    );
    assert!(!dir.path().join("dst/a").exists());
}

#[test]
fn a_run_that_cannot_be_counted_changes_nothing() {
    let dir = trees();
    let words = [
        "-a",
        "--delete",
        "--delete-guard=5",
        "-e",
        "false",
        "src/",
        "box:dst/",
    ];
    let output = sparsync(dir.path(), &words).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let alone = sparsync(dir.path(), &["-a", "-e", "false", "src/", "box:dst/"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), alone.status.code(), "{stderr}");
    assert!(
        stderr.contains("the dry run that counts deletions failed: nothing was changed"),
        "{stderr}"
    );
}

/// A program of the name `rsync` does what rsync does.
#[test]
fn called_as_rsync_an_empty_source_empties_a_destination() {
    let dir = trees();
    let top = dir.path();
    for n in 0..30 {
        std::fs::write(top.join(format!("dst/{n}")), "").unwrap();
    }
    std::fs::create_dir(top.join("empty")).unwrap();
    let program = top.join("rsync");
    std::os::unix::fs::symlink(oracle::under_test(), &program).unwrap();
    let ended = Command::new(program)
        .args(["-a", "--delete", "empty/", "dst/"])
        .current_dir(top)
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(0));
    assert_eq!(std::fs::read_dir(top.join("dst")).unwrap().count(), 0);
}

/// A plan whose run would be refused is not made, and what the run would do is explained with its error.
#[test]
fn guards_hold_for_plans_and_explanations() {
    let dir = trees();
    let top = dir.path();
    for n in 0..30 {
        std::fs::write(top.join(format!("dst/{n}")), "").unwrap();
    }
    std::fs::create_dir(top.join("empty")).unwrap();
    let run = |words: &[&str]| {
        let command = &mut Command::new(oracle::under_test());
        let output = command.args(words).current_dir(top).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let refused = [
        (&[][..], 25, "but the source has none"),
        (&["--delete-guard=3"], 25, "more than 3"),
        (
            &["--no-delete-guard", "--fail-if-empty"],
            3,
            "the source is empty",
        ),
    ];
    for (options, exit, message) in refused {
        let plan = ["plan", "-a", "--delete", "-o", "p", "empty/", "dst/"];
        let (code, stderr) = run(&[&plan[..], options].concat());
        assert!(stderr.contains(message), "{stderr}");
        assert_eq!(code, Some(exit), "{stderr}");
        assert!(!top.join("p").exists());

        let explain = ["explain", "dst/7", "--", "-a", "--delete", "empty/", "dst/"];
        let (code, stderr) = run(&[&explain[..], options].concat());
        assert!(
            stderr.contains("the run itself would change nothing"),
            "{stderr}"
        );
        assert!(stderr.contains(message), "{stderr}");
        assert_eq!(code, Some(0), "{stderr}");
    }
    for option in [
        "--no-delete-guard",
        "--delete-guard=100%",
        "--delete-guard=40",
    ] {
        let plan = [
            "plan", "-a", "--delete", option, "-o", "p", "empty/", "dst/",
        ];
        assert_eq!(run(&plan), (Some(0), String::new()));
        let explain = [
            "explain", "dst/7", "--", "-a", "--delete", option, "empty/", "dst/",
        ];
        assert_eq!(run(&explain), (Some(0), String::new()));
    }
    assert_eq!(run(&["apply", "p"]).0, Some(0));
    assert_eq!(std::fs::read_dir(top.join("dst")).unwrap().count(), 0);
}

/// The default guard does not refuse a run that cannot be counted.
#[test]
fn default_guard_leaves_alone_what_cannot_be_counted() {
    let runs = [
        "--write-batch=batch",
        "--exclude-from=-",
        "--files-from=-",
        "--exclude-from=<(:)",
    ];
    for option in runs {
        let dir = trees();
        let top = dir.path();
        for n in 0..30 {
            std::fs::write(top.join(format!("dst/{n}")), "").unwrap();
        }
        std::fs::create_dir(top.join("empty")).unwrap();
        let script = format!("exec \"$0\" -a -r --delete {option} empty/ dst/ </dev/null");
        let ended = Command::new("bash")
            .args(["-ec", &script])
            .arg(oracle::under_test())
            .current_dir(top)
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(0), "{option}: {ended:?}");
    }
}
