//! `--checksum-cache`: unchanged files are not read again under `-c`, and no run becomes wrong by it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::kit::{World, oracle, synctest, until};

const CACHE: &str = "--checksum-cache";

/// Files in several directories, at both ends; one differs, one is missing.
const SOURCE: &str =
    "a=one b=two c*200000 d/e=three d/f=four d/g=same-text link->a h==a new=only here=after-1";
const DEST: &str = "a=one b=two c*200000 d/e=three d/f=four d/g=same-text here=before1";

/// Both ends keep their digests below the scratch directory.
fn cached(w: &World) -> &World {
    w.not_served("an rsync has no such option");
    if !w.route().has_server() {
        let config = config(w);
        fs::create_dir_all(&config).expect("scratch can be written");
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&config, open).expect("the test owns it");
        w.env("SPARSYNC_CONFIG_DIR", config.to_str().expect("it is text"));
    }
    w.source(SOURCE).dest(DEST)
}

fn config(w: &World) -> PathBuf {
    w.tested().with_extension("config")
}

/// Waits until all files of the trees have been left alone for so long that their digests are kept.
fn until_settled(w: &World) {
    let newest = ["src", "dst"].map(|tree| newest_change_nanos(&w.tested().join(tree)));
    let newest = newest.into_iter().max().unwrap_or_default();
    until(|| {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("it is after 1970");
        now.as_nanos() as i128 > newest + 60_000_000
    });
}

fn newest_change_nanos(top: &Path) -> i128 {
    let mut newest = 0;
    for entry in fs::read_dir(top).expect("a directory") {
        let path = entry.expect("a directory can be listed").path();
        let stat = fs::symlink_metadata(&path).expect("an entry");
        newest =
            newest.max(i128::from(stat.ctime()) * 1_000_000_000 + i128::from(stat.ctime_nsec()));
        if stat.is_dir() {
            newest = newest.max(newest_change_nanos(&path));
        }
    }
    newest
}

/// Returns the files with records of the test's own store.
fn records(store: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(store) else {
        return Vec::new();
    };
    found
        .map(|entry| entry.expect("a directory can be listed").path())
        .collect()
}

// ── what it saves ───────────────────────────────────────────────────────────────────────────────
synctest!(unchanged_files_are_not_opened_again, |w: World| {
    let log = w.tested().with_extension("calls");
    w.env("SPARSYNC_CALL_LOG", log.to_str().expect("it is text"));
    let w = cached(&w);
    w.not_with_stock("nothing is kept then")
        .not_with_daemon("the module has no digests");
    w.source("many/1=1 many/2=2 many/3=3 many/4=4 many/5=5 many/6=6 many/7=7 many/8=8");
    w.alone(&["-a"]).exits(0);
    until_settled(w);
    let opened = |options: &[&str]| {
        fs::write(&log, "").expect("scratch can be written");
        w.alone(options).exits(0);
        let calls = fs::read_to_string(&log).expect("a debug build logs its calls");
        calls.lines().filter(|line| line.ends_with(" Open")).count()
    };
    let uncached = opened(&["-ac"]);
    let first = opened(&["-ac", CACHE]);
    let second = opened(&["-ac", CACHE]);
    // Each of the 15 files is opened at both ends without a cache, and only records are opened with it.
    assert!(uncached >= 30, "{uncached}");
    assert!(first >= 30, "{first}");
    assert!(second + 26 <= first, "{first}, then {second}");
    let by_check = opened(&["-ac", "-n", CACHE]);
    assert!(by_check + 26 <= first, "{by_check}");
});

synctest!(check_uses_it, |w: World| {
    let w = cached(&w);
    w.not_with_stock("nothing is kept then");
    w.not_with_daemon("the module has no digests");
    for _ in 0..2 {
        until_settled(w);
        let checked = w.checks(&[CACHE], &["-aicn", "--delete", "-O"]);
        assert_eq!(checked.exit, 1);
        assert_eq!(checked.stderr, "");
    }
});

// ── it never makes a run wrong ──────────────────────────────────────────────────────────────────
synctest!(same_result_as_rsync, |w: World| {
    let w = cached(&w);
    w.keep_dest();
    for options in [
        &["-aci"][..],
        &["-acHi", "--delete"],
        &["-rci"],
        &["-aci", "--inplace"],
    ] {
        w.restore_dest();
        until_settled(w);
        w.agree_beside(&[CACHE], options);
        until_settled(w);
        w.agree_beside(&[CACHE], options);
    }
});

/// Keeps digests, changes the trees, and compares with rsync, at once and when the change is old.
#[track_caller]
fn sees(w: &World, change: impl Fn(&Path)) {
    let w = cached(w);
    w.agree_beside(&[CACHE], &["-aci", "--delete"]);
    until_settled(w);
    w.agree_beside(&[CACHE], &["-aci", "--delete"]);
    w.keep_dest();
    w.change(&change);
    w.agree_beside(&[CACHE], &["-aci", "--delete"]);
    w.restore_dest();
    w.change(&change);
    until_settled(w);
    w.agree_beside(&[CACHE], &["-aci", "--delete"]);
}

/// Writes other content of the same length, and restores the time of the old one.
fn rewrite_unseen(path: &Path, content: &str) {
    let stat = fs::metadata(path).expect("a file");
    assert_eq!(stat.len() as usize, content.len());
    fs::write(path, content).expect("scratch can be written");
    restore_time(path, &stat);
}

fn restore_time(path: &Path, stat: &fs::Metadata) {
    let file = fs::File::options().write(true).open(path).expect("a file");
    file.set_modified(stat.modified().expect("there is one"))
        .expect("the owner may set the time");
}

synctest!(content_of_same_length_and_time, |w: World| {
    sees(&w, |top| rewrite_unseen(&top.join("src/d/g"), "text-same"));
});

synctest!(content_of_the_destination, |w: World| {
    sees(&w, |top| rewrite_unseen(&top.join("dst/d/g"), "text-same"));
});

synctest!(file_renamed_over_another, |w: World| {
    sees(&w, |top| {
        let stat = fs::metadata(top.join("src/a")).expect("a file");
        fs::write(top.join("src/spare"), "eno").expect("scratch can be written");
        restore_time(&top.join("src/spare"), &stat);
        fs::rename(top.join("src/spare"), top.join("src/a")).expect("both are files");
    });
});

synctest!(files_that_change_places, |w: World| {
    sees(&w, |top| {
        let at = |name: &str| top.join("src").join(name);
        rewrite_unseen(&at("b"), "owt");
        for (from, to) in [("a", "x"), ("b", "a"), ("x", "b")] {
            fs::rename(at(from), at(to)).expect("a file");
        }
    });
});

synctest!(inode_that_is_used_again, |w: World| {
    sees(&w, |top| {
        for tree in ["src", "dst"] {
            let path = top.join(tree).join("d/e");
            let stat = fs::metadata(&path).expect("a file");
            fs::remove_file(&path).expect("a file");
            fs::write(&path, if tree == "src" { "eerht" } else { "three" }).expect("scratch");
            restore_time(&path, &stat);
        }
    });
});

synctest!(content_through_another_link, |w: World| {
    sees(&w, |top| {
        let other = top.join("src/other-name");
        let _ = fs::remove_file(&other);
        fs::hard_link(top.join("src/d/f"), &other).expect("the same file system");
        rewrite_unseen(&other, "ruof");
        fs::remove_file(&other).expect("a file");
    });
});

synctest!(directory_that_is_replaced, |w: World| {
    sees(&w, |top| {
        let (dir, spare) = (top.join("src/d"), top.join("src/spare"));
        fs::create_dir(&spare).expect("scratch can be written");
        for (name, content) in [("e", "three"), ("f", "ruof"), ("g", "text-same")] {
            fs::write(spare.join(name), content).expect("scratch can be written");
            let stat = fs::metadata(dir.join(name)).expect("a file");
            restore_time(&spare.join(name), &stat);
        }
        fs::remove_dir_all(&dir).expect("a directory");
        fs::rename(&spare, &dir).expect("a directory");
    });
});

synctest!(unreadable_file_stays_unreadable, as user, |w: World| {
    w.not_with_stock("an rsync skips deletions at another time");
    sees(&w, |top| {
        let closed = fs::Permissions::from_mode(0o000);
        fs::set_permissions(top.join("src/b"), closed).expect("the owner may do that");
    });
});

// ── a store that cannot be used ─────────────────────────────────────────────────────────────────
// All records are damaged in each way; each run must end as without them.
synctest!(damaged_records, |w: World| {
    let w = cached(&w);
    w.only_local("the store of this end is that of all");
    let store = config(w).join("state/checksums");
    type Damage = fn(&Path, Vec<u8>);
    let damages: [Damage; 6] = [
        |path, bytes| fs::write(path, &bytes[..bytes.len() / 2]).expect("scratch"),
        |path, _| fs::write(path, "").expect("scratch"),
        |path, mut bytes| {
            let at = bytes.len() - 40;
            bytes[at] ^= 1;
            fs::write(path, bytes).expect("scratch");
        },
        |path, mut bytes| {
            bytes[15] ^= 1;
            fs::write(path, bytes).expect("scratch");
        },
        |path, _| {
            fs::remove_file(path).expect("scratch");
            fs::create_dir(path).expect("scratch");
        },
        |path, _| {
            fs::remove_file(path).expect("scratch");
            std::os::unix::fs::symlink("/etc/passwd", path).expect("scratch");
        },
    ];
    w.alone(&["-ac", CACHE]).exits(0);
    for damage in damages {
        until_settled(w);
        w.alone(&["-ac", CACHE]).exits(0);
        let found = records(&store);
        assert!(found.len() >= 4, "{found:?}");
        for path in &found {
            damage(path, fs::read(path).unwrap_or_default());
        }
        rewrite_unseen(&w.tested().join("src/d/g"), "text-same");
        w.alone(&["-ac", CACHE]).exits(0);
        let content = fs::read(w.tested().join("dst/d/g")).expect("a file");
        assert_eq!(content, b"text-same");
        rewrite_unseen(&w.tested().join("src/d/g"), "same-text");
        for path in records(&store) {
            if path.is_dir() {
                fs::remove_dir(path).expect("it is empty");
            }
        }
    }
});

synctest!(directory_that_cannot_be_used, |w: World| {
    let w = cached(&w);
    w.only_local("the directory is one of this end");
    w.file("file", "");
    w.build(".", |tree| drop(tree.dir("open").mode(0o777)));
    w.keep_dest();
    for dir in ["file", "file/below", "open"] {
        w.restore_dest();
        let option = format!("{CACHE}={dir}");
        w.alone(&["-ac", &option]).exits(0).warns(&format!(
            "sparsync: --checksum-cache is not used: cannot open {dir}: "
        ));
        let content = fs::read(w.tested().join("dst/here")).expect("a file");
        assert_eq!(content, b"after-1");
    }
});

synctest!(two_runs_at_once, |w: World| {
    let w = cached(&w);
    w.only_local("the store of this end is that of all");
    w.alone(&["-a", "--delete"]).exits(0);
    until_settled(w);
    for round in 0..4 {
        if round == 2 {
            rewrite_unseen(&w.tested().join("src/d/g"), "text-same");
        }
        let start = |dest: &str| {
            Command::new(oracle::under_test())
                .args(["-ac", "--delete", CACHE, "src/", dest])
                .current_dir(w.tested())
                .env("SPARSYNC_CONFIG_DIR", config(w))
                .stdout(Stdio::null())
                .spawn()
                .expect("the program under test can be started")
        };
        let runs = [start("dst/"), start("dst2/"), start("dst/")];
        for mut run in runs {
            let status = run.wait().expect("it is a child");
            // One of those that copy to the same place may find that the other was faster.
            assert!(matches!(status.code(), Some(0 | 23 | 24)), "{status}");
        }
        for dest in ["dst", "dst2"] {
            for name in ["a", "d/g", "here"] {
                assert_eq!(
                    fs::read(w.tested().join(dest).join(name)).expect("a file"),
                    fs::read(w.tested().join("src").join(name)).expect("a file"),
                    "{dest}/{name}"
                );
            }
        }
    }
});

// A run is killed at each system call. The next one must end as rsync does, whatever the store contains.
synctest!(killed_runs, |w: World| {
    let w = cached(&w);
    w.only_local("the store of this end is that of all");
    w.keep_dest();
    let mut at = 1;
    loop {
        w.restore_dest();
        let content = if at % 2 == 0 {
            "same-text"
        } else {
            "text-same"
        };
        rewrite_unseen(&w.tested().join("src/d/g"), content);
        let run = |hooks: &[(&str, String)]| {
            Command::new(oracle::under_test())
                .args(["-ac", CACHE, "src/", "dst/"])
                .current_dir(w.tested())
                .env("SPARSYNC_CONFIG_DIR", config(w))
                .envs(hooks.iter().map(|(name, value)| (name, value)))
                .stderr(Stdio::null())
                .status()
                .expect("the program under test can be started")
        };
        if at % 3 == 0 {
            until_settled(w);
        }
        let killed = run(&[("SPARSYNC_KILL_AT", at.to_string())]);
        assert!(run(&[]).success(), "killed at {at}");
        let copied = fs::read_to_string(w.tested().join("dst/d/g")).expect("a file");
        assert_eq!(copied, content, "killed at {at}");
        if killed.success() {
            break;
        }
        at += 3;
    }
    assert!(at > 60, "only {at} calls");
});
