//! `--checksum-cache`: unchanged files are not read again under `-c`, and no run becomes wrong by it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::json::check_line;
use crate::kit::{World, oracle, report_skip, synctest, until};

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

// The large file takes so long to read that the run waits until it can have a digest.
synctest!(
    what_a_run_has_written_is_not_read_by_the_next,
    |w: World| {
        let log = w.tested().with_extension("calls");
        w.env("SPARSYNC_CALL_LOG", log.to_str().expect("it is text"));
        let w = cached(&w);
        w.not_with_stock("nothing is kept then")
            .not_with_daemon("the module has no digests");
        w.source(
            "many/1=1 many/2=2 many/3=3 many/4=4 many/5=5 many/6=6 many/7=7 many/8=8 big*40000000",
        );
        until_settled(w);
        let opened = |options: &[&str]| {
            fs::write(&log, "").expect("scratch can be written");
            w.alone(options).exits(0);
            let calls = fs::read_to_string(&log).expect("a debug build logs its calls");
            calls.lines().filter(|line| line.ends_with(" Open")).count()
        };
        opened(&["-ac", CACHE]);
        // Names and attributes are changed, but no content.
        until_settled(w);
        w.change(|top| {
            let group = fs::Permissions::from_mode(0o640);
            fs::set_permissions(top.join("src/many/1"), group).expect("it is there");
        });
        until_settled(w);
        let adjusted = opened(&["-ac", CACHE]);
        let idle = opened(&["-ac", CACHE]);
        let uncached = opened(&["-ac"]);
        // There are 16 files, of which one was changed, at both ends.
        assert!(uncached >= 32, "{uncached}");
        assert!(adjusted + 28 <= uncached, "{adjusted} of {uncached}");
        assert!(idle + 28 <= uncached, "{idle} of {uncached}");
    }
);

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

// A file of equal content gets the exact time, although such a difference is none that is reported.
synctest!(time_that_differs_within_its_second, |w: World| {
    sees(&w, |top| {
        let path = top.join("dst/d/g");
        let stat = fs::metadata(&path).expect("a file");
        let more = if stat.mtime_nsec() < 500_000_000 {
            1
        } else {
            -1
        };
        let file = fs::File::options().write(true).open(&path).expect("a file");
        let nanos = (stat.mtime_nsec() + more) as u32;
        let time = UNIX_EPOCH + Duration::new(stat.mtime() as u64, nanos);
        file.set_modified(time).expect("the owner may set the time");
    });
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
    let damages: [Damage; 8] = [
        |path, bytes| fs::write(path, &bytes[..bytes.len() / 2]).expect("scratch"),
        |path, _| fs::write(path, "").expect("scratch"),
        |path, mut bytes| {
            let at = bytes.len() - 40;
            bytes[at] ^= 1;
            fs::write(path, bytes).expect("scratch");
        },
        // Another version of the format.
        |path, mut bytes| {
            bytes[15] ^= 1;
            fs::write(path, bytes).expect("scratch");
        },
        |path, bytes| {
            let file = fs::File::options().write(true).open(path).expect("scratch");
            file.set_len(1 << 40).expect("it has holes");
            drop(bytes);
        },
        // No process writes to it.
        |path, _| {
            fs::remove_file(path).expect("scratch");
            let made = Command::new("mkfifo")
                .arg(path)
                .status()
                .expect("mkfifo can be started");
            assert!(made.success());
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

// ── file systems ────────────────────────────────────────────────────────────────────────────────
/// Runs a shell script in a mount namespace, in the scratch directory: `run` copies with the cache, `same` compares the
/// trees, and `settle` lets so much time pass that all files can have digests. Returns standard error, or `None` if nothing
/// can be mounted here.
fn in_namespace(w: &World, name: &str, script: &str) -> Option<String> {
    let flags = if rustix::process::geteuid().is_root() {
        "-m"
    } else {
        "-rm"
    };
    let program = oracle::under_test().display();
    let common = format!(
        "mount -t tmpfs none /mnt && umount /mnt || {{ echo cannot mount >&2; exit 99; }}
         run() {{ {program} -acH --delete {CACHE}=\"$PWD/sums\" \"$@\" src/ dst/; }}
         same() {{ diff -r src dst; }}
         settle() {{ local end=$(($(date +%s%N) + 70000000)); while [ $(date +%s%N) -lt $end ]; do :; done; }}
         again() {{ run; same; settle; run; same; run; same; }}
         rewrite() {{ printf %s \"$2\" >\"$1\"; touch -d '2001-02-03 04:05:06.789' \"$1\"; }}
         {script}"
    );
    let output = Command::new("unshare")
        .args([flags, "bash", "-euc", &common])
        .current_dir(w.tested())
        .env("SPARSYNC_CONFIG_DIR", config(w))
        .output();
    let Ok(output) = output else {
        report_skip(name, "unshare is missing");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(99) || errors.starts_with("unshare:") {
        report_skip(name, "no file system can be mounted here");
        return None;
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{errors}{lines}");
    Some(errors)
}

synctest!(bind_mounts, |w: World| {
    let w = cached(&w);
    w.only_local("the namespace has no server");
    let script = "
        mkdir other; rewrite other/e three; rewrite other/f fuor; rewrite src/d/e three; rewrite src/d/f four
        again
        mount --bind other src/d
        again
        rewrite src/d/f ruof
        again
        umount src/d
        again
        mkdir src/k
        mount --bind src/d src/k
        again
        rewrite src/k/f four
        again";
    let errors = in_namespace(w, "checksum_cache::bind_mounts", script);
    assert!(errors.is_none_or(|errors| errors.is_empty()));
});

synctest!(overlays, |w: World| {
    let w = cached(&w);
    w.only_local("the namespace has no server");
    let script = "
        mv src lower; mkdir upper work src space; rewrite lower/d/f four; rewrite lower/d/e three
        mount -t tmpfs none space; mkdir space/upper space/work
        mount -t overlay -o lowerdir=lower,upperdir=space/upper,workdir=space/work none src ||
            { echo cannot mount >&2; exit 99; }
        again
        rewrite src/d/f ruof; again
        chmod 600 src/d/e; again
        rewrite src/d/e eerht; again
        rm src/d/f; rewrite src/d/f fuor; again
        mv src/d/e src/d/x; mv src/d/f src/d/e; mv src/d/x src/d/f; again";
    let errors = in_namespace(w, "checksum_cache::overlays", script);
    assert!(errors.is_none_or(|errors| errors.is_empty()));
});

synctest!(full_disk, |w: World| {
    let w = cached(&w);
    w.only_local("the namespace has no server");
    let script = "
        mkdir -m 700 sums; mount -t tmpfs -o size=4k,mode=700 none sums
        settle; run; same; run; same
        rewrite src/d/f ruof; run; same";
    let Some(errors) = in_namespace(w, "checksum_cache::full_disk", script) else {
        return;
    };
    let warning = "sparsync: --checksum-cache is not used: cannot store digests: No space left on device (28)\n";
    assert!(errors.contains(warning), "{errors}");
    assert_eq!(errors.replace(warning, ""), "");
});

synctest!(store_that_can_only_be_read, |w: World| {
    let w = cached(&w);
    w.only_local("the namespace has no server");
    let script = "
        mkdir -m 700 sums; mount -t tmpfs -o mode=700 none sums
        again; mount -o remount,ro sums; run; same
        rewrite src/d/f ruof; settle; run; same; run; same; rewrite src/d/f four; run; same";
    let Some(errors) = in_namespace(w, "checksum_cache::store_that_can_only_be_read", script)
    else {
        return;
    };
    let warning = "sparsync: --checksum-cache is not used: cannot store digests: Read-only file system (30)\n";
    assert!(errors.contains(warning), "{errors}");
    assert_eq!(errors.replace(warning, ""), "");
});

// ramfs is not known to keep change times. It does.
synctest!(file_systems_that_are_not_trusted, |w: World| {
    let w = cached(&w);
    w.only_local("the namespace has no server");
    let script = "
        mv src old; mkdir src; mount -t ramfs none src || { echo cannot mount >&2; exit 99; }
        cp -a old/. src; rm -rf dst; settle
        mkdir dst; mount -t ramfs none dst
        run; same; run; same
        [ -z \"$(ls sums)\" ]
        echo forced >&2
        settle; run --checksum-cache-force; same
        [ -n \"$(ls sums)\" ]
        rewrite src/d/f ruof; run --checksum-cache-force; same";
    let Some(errors) = in_namespace(w, "checksum_cache::file_systems", script) else {
        return;
    };
    let warning = "sparsync: --checksum-cache is not used: a network file system or one in user space may keep change \
                   times that cannot be trusted (--checksum-cache-force trusts them)\n";
    assert_eq!(errors, format!("{warning}{warning}forced\n"));
});

// ── the command ─────────────────────────────────────────────────────────────────────────────────
/// Runs `sparsync cache`. Returns what it has printed, standard error, and the exit code.
fn cache_command(w: &World, words: &[&str]) -> (String, String, i32) {
    let output = Command::new(oracle::under_test())
        .arg("cache")
        .args(words)
        .current_dir(w.tested())
        .env("SPARSYNC_CONFIG_DIR", config(w))
        .output()
        .expect("the program under test can be started");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    let exit = output.status.code().expect("it was not killed");
    (text(output.stdout), text(output.stderr), exit)
}

fn print_only(text: &str) -> (String, String, i32) {
    (text.to_owned(), String::new(), 0)
}

synctest!(command_shows_and_removes_digests, |w: World| {
    let w = cached(&w);
    w.only_local("the command has no remote end");
    let sums = format!("{CACHE}=sums");
    assert_eq!(
        cache_command(w, &["stat", &sums]),
        print_only("sums: 0 digests of 0 directories, 0 bytes\n")
    );
    assert!(!w.tested().join("sums").exists());
    until_settled(w);
    w.alone(&["-ac", &sums]).exits(0);
    fs::write(w.tested().join("sums/letter"), "").expect("scratch can be written");
    // The top and one directory below it, at both ends, with those files of each that were there before.
    let (shown, _, exit) = cache_command(w, &["stat", &sums]);
    assert!(
        shown.starts_with("sums: 1") && shown.contains(" digests of 4 directories, "),
        "{shown}"
    );
    assert_eq!(exit, 0);
    assert_eq!(
        cache_command(w, &["clear", &sums]),
        print_only("removed the digests of 4 directories\n")
    );
    let left: Vec<_> = records(&w.tested().join("sums"));
    assert_eq!(left, [w.tested().join("sums/letter")]);
    assert_eq!(
        cache_command(w, &["stat", &sums]),
        print_only("sums: 0 digests of 0 directories, 0 bytes\n")
    );
});

synctest!(command_verifies_contents, |w: World| {
    let w = cached(&w);
    w.only_local("the command has no remote end");
    let verify = |words: &[&str]| cache_command(w, &[&["verify"], words].concat());
    let files = 9;
    let unknown = format!("0 intact, 0 damaged, {files} without a digest, 0 unreadable\n");
    assert_eq!(verify(&["src"]), print_only(&unknown));
    until_settled(w);
    w.alone(&["-ac", CACHE]).exits(0);
    let intact = format!("{files} intact, 0 damaged, 0 without a digest, 0 unreadable\n");
    assert_eq!(verify(&["src"]), print_only(&intact));
    // An ordinary change is none of a disk.
    rewrite_unseen(&w.tested().join("src/d/f"), "ruof");
    let changed = format!(
        "{} intact, 0 damaged, 1 without a digest, 0 unreadable\n",
        files - 1
    );
    assert_eq!(verify(&["src/"]), print_only(&changed));

    for (words, message) in [
        (&["stat", "x"][..], "unexpected operand"),
        (&["verify"], "expected one TREE"),
        (&["verify", "a", "b"], "expected one TREE"),
        (&["clean"], "expected stat, verify or clear"),
        (&[], "expected stat, verify or clear"),
        (
            &["clear", "--progress"],
            "--progress, --json and --checksum-cache-force belong to verify",
        ),
    ] {
        let error = format!("sparsync cache: {message}\nhint: see `sparsync cache --help`\n");
        assert_eq!(cache_command(w, words), (String::new(), error, 2));
    }
    let (_, errors, exit) = verify(&["src/missing"]);
    assert!(
        errors.starts_with("sparsync: cannot open src/missing: No such file"),
        "{errors}"
    );
    assert_eq!(exit, 3);
});

// A store through a mapping of a page that is dirty already leaves no trace in the times of its file, like bit rot.
synctest!(command_finds_what_has_changed_unseen, |w: World| {
    let w = cached(&w);
    w.only_local("the command has no remote end");
    let script = "import mmap, sys\n\
        with open('src/d/g', 'r+b') as file:\n\
        \x20   page = mmap.mmap(file.fileno(), 0)\n\
        \x20   page[0] = ord('s')\n\
        \x20   print('dirty', flush=True)\n\
        \x20   sys.stdin.readline()\n\
        \x20   page[0] = ord('S')\n\
        \x20   print('changed', flush=True)\n\
        \x20   sys.stdin.readline()\n";
    let mapping = Command::new("python3")
        .args(["-c", script])
        .current_dir(w.tested())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut mapping) = mapping else {
        return report_skip("checksum_cache::command_finds", "python3 is missing");
    };
    let mut told = BufReader::new(mapping.stdout.take().expect("it is a pipe"));
    let mut input = mapping.stdin.take().expect("it is a pipe");
    let mut line = String::new();
    told.read_line(&mut line).expect("a pipe can be read");
    until_settled(w);
    w.alone(&["-ac", CACHE]).exits(0);
    input.write_all(b"\n").expect("it reads that");
    told.read_line(&mut line).expect("a pipe can be read");
    assert_eq!(line, "dirty\nchanged\n");
    let found = cache_command(w, &["verify", "src"]);
    let counts = "8 intact, 1 damaged, 0 without a digest, 0 unreadable\n";
    assert_eq!(found, (format!("damaged d/g\n{counts}"), String::new(), 1));
    let (printed, errors, exit) = cache_command(w, &["verify", "--json", "src"]);
    assert_eq!((errors.as_str(), exit), ("", 1));
    let lines: Vec<serde_json::Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is an object"))
        .collect();
    for line in &lines {
        check_line(line);
    }
    let damaged = serde_json::json!({"type": "damaged", "path": "d/g"});
    let counts = serde_json::json!({
        "type": "verification", "intact": 8, "damaged": 1, "without_digest": 0, "unreadable": 0,
    });
    let end = serde_json::json!({"type": "end", "exit_code": 1});
    assert_eq!(lines, [damaged, counts, end]);
    // A run does not see it.
    w.alone(&["-ac", CACHE]).exits(0);
    assert_eq!(
        fs::read(w.tested().join("dst/d/g")).expect("a file"),
        b"same-text"
    );
    drop(input);
    assert!(mapping.wait().expect("it is a child").success());
});
