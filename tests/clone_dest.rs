//! `--clone-dest`: copies of files in an alternate tree share their blocks. The result must be that of rsync under
//! `--copy-dest`, which the kit gives to rsync instead.

use crate::kit::{World, noise, synctest};
use std::path::Path;

/// The beginning of the warning that files are copied.
const NOTE: &str = "sparsync: cannot share blocks of \"";

/// Hides the warning, which rsync does not have.
pub fn without_note(line: &str) -> Option<String> {
    (!line.starts_with(NOTE)).then(|| line.to_owned())
}

/// Skips routes on which an rsync receives, or has the command line.
fn ours(w: &World) -> &World {
    w.not_pushed_to_stock("an rsync cannot share blocks")
        .not_served("an rsync has no such option")
}

// ── the result ──────────────────────────────────────────────────────────────────────────────────

/// A source, and an earlier copy of it in `alt` with equal, changed and missing entries.
fn earlier(w: &World) {
    ours(w).mask_with(without_note);
    w.source("same changed=now@9 mode%600 time@50 new d/same d/new l->same m->new e/ x/y empty=");
    w.tree(
        "alt",
        "same changed=before mode time d/same gone l->same m->old e/ x/y empty=",
    );
    let old = noise(5, 300_000);
    let mut new = old.clone();
    new[150_000] ^= 1;
    w.build("src", |tree| {
        tree.file("large", &old).mtime(5);
        tree.file("edited", &new).mtime(5);
    });
    w.build("alt", |tree| {
        tree.file("large", &old).mtime(5);
        tree.file("edited", &old).mtime(3);
    });
}

macro_rules! compares {
    ($name:ident, $dest:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            earlier(&w);
            w.dest($dest);
            w.agree(&["--clone-dest=../alt", $($option),+]).exits(0);
        });
    };
}

compares!(equal_files_are_copied, "", ["-ai"]);
compares!(unchanged_lines_are_the_same, "", ["-aii"]);
compares!(names_are_the_same, "", ["-av"]);
compares!(counts_are_the_same, "", ["-a", "--stats"]);
compares!(existing_files, "same changed=older edited=x", ["-ai"]);
compares!(deletions, "old d/old", ["-ai", "--delete"]);
compares!(digests, "", ["-aic"]);
compares!(without_times, "", ["-rlpi"]);
compares!(whole_files, "", ["-ai", "-W"]);
compares!(local_deltas, "", ["-ai", "--no-whole-file"]);
compares!(in_place, "same=older", ["-ai", "--inplace"]);
compares!(
    in_place_deltas,
    "same=older edited=other",
    ["-ai", "--inplace", "--no-whole-file"]
);
compares!(backups, "same=older changed=x", ["-aib"]);
compares!(delayed_updates, "changed=x", ["-ai", "--delay-updates"]);
compares!(partial_directory, "", ["-ai", "--partial-dir=.part"]);
compares!(sparse_files, "", ["-aiS", "--no-whole-file"]);
compares!(preallocated_files, "", ["-ai", "--preallocate"]);
compares!(limited_rate, "", ["-ai", "--bwlimit=100m"]);
compares!(fsynced_files, "", ["-ai", "--fsync"]);
compares!(
    temporary_directory,
    "",
    ["-ai", "--temp-dir={W}/alt", "--no-whole-file"]
);

synctest!(attributes_are_those_of_the_source, as root, |w: World| {
    earlier(&w);
    w.needs_xattrs().needs_acls().no_dry_run().dest("");
    w.build("src", |tree| drop(tree.file("owned", "x").owner(7, 8).mode(0o4750).xattr("user.k", "v")));
    w.build("alt", |tree| drop(tree.file("owned", "x").owner(9, 8).mode(0o600).xattr("user.o", "w")));
    w.agree(&["-aiAX", "--clone-dest=../alt"]).exits(0);
});

synctest!(privileges_can_be_stored, as user, |w: World| {
    earlier(&w);
    w.needs_xattrs().dest("");
    w.agree(&["-ai", "--fake-super", "--clone-dest=../alt"]).exits(0);
});

synctest!(hard_links, |w: World| {
    ours(&w).mask_with(without_note);
    w.source("a b==a d/c==a z y==z")
        .tree("alt", "a b==a d/c==a z=old y==z")
        .dest("");
    w.agree(&["-aiiH", "--clone-dest=../alt"]).exits(0);
});

synctest!(several_trees_are_tried_in_order, |w: World| {
    earlier(&w);
    w.tree("older", "changed=now@9 new same=stale x/z").dest("");
    w.agree(&["-ai", "--clone-dest=../alt", "--clone-dest=../older"])
        .exits(0);
});

synctest!(similar_files, |w: World| {
    earlier(&w);
    w.dest("").once();
    w.build("src", |tree| {
        drop(tree.file("n/edited2", noise(5, 290_000)).mtime(8))
    });
    w.build("dst", |tree| {
        drop(tree.file("n/edited1", noise(5, 300_000)).mtime(7))
    });
    w.agree(&["-aiy", "--clone-dest=../alt"]).exits(0);
});

synctest!(trees_cannot_be_mixed, |w: World| {
    ours(&w).source("a").dest("").once();
    let words = "ERROR: the --clone-dest option conflicts with the --copy-dest option";
    w.alone(&["--copy-dest=../x", "--clone-dest=../x"])
        .exits(1)
        .warns(words);
    let words = "ERROR: the --link-dest option conflicts with the --clone-dest option";
    w.alone(&["--clone-dest=../x", "--link-dest=../x"])
        .exits(1)
        .warns(words);
});

synctest!(missing_tree_is_a_warning, |w: World| {
    ours(&w).source("a").dest("");
    w.alone(&["-a", "--clone-dest=../nowhere"])
        .exits(0)
        .warns("--clone-dest arg does not exist: ");
});

// ── the warning ─────────────────────────────────────────────────────────────────────────────────

synctest!(copies_instead_of_clones_are_reported_once, |w: World| {
    ours(&w);
    w.source("").dest("").tree("fs", "");
    w.mount_tmpfs("fs", 1 << 20);
    w.tree("src", "a b c")
        .tree("fs/alt", "a b c")
        .tree("fs/dst", "");
    let agreed = w.alone_paths(&["-a", "--clone-dest=../alt"], &["src/", "fs/dst/"]);
    let notes = agreed.stderr.lines().filter(|line| line.starts_with(NOTE));
    assert_eq!(notes.count(), 1, "{}", agreed.stderr);
    agreed.exits(0).warns(
        "(--clone-dest): Operation not supported (95); files are copied where blocks cannot be shared",
    );
    for name in ["a", "b", "c"] {
        assert!(w.tested().join("fs/dst").join(name).exists());
    }
    // Nothing is copied from there.
    w.tree("src", "other");
    let agreed = w.alone_paths(&["-a", "--clone-dest=../alt"], &["src/", "fs/dst/"]);
    assert!(!agreed.stderr.contains(NOTE), "{}", agreed.stderr);
});

synctest!(trees_of_another_file_system_are_copied, as root, |w: World| {
    ours(&w);
    w.source("").dest("").tree("fs", "").mount_image("fs", "xfs");
    build(&w, "src", "fs/alt");
    for options in [&["-a"][..], &["-a", "--no-whole-file"]] {
        let _ = std::fs::remove_dir_all(w.tested().join("dst"));
        let options = [options, &["--clone-dest={W}/fs/alt"]].concat();
        w.alone(&options).exits(0).warns("Invalid cross-device link (18)");
        assert_same(&w.tested().join("src"), &w.tested().join("dst"));
    }
});

/// The answers to a clone that is refused.
const REFUSALS: [&str; 8] = [
    "EXDEV",
    "EOPNOTSUPP",
    "EINVAL",
    "ETXTBSY",
    "ENOSYS",
    "EPERM",
    "EIO",
    "ENOSPC",
];

synctest!(refused_clones_become_copies, as root, |w: World| {
    ours(&w);
    w.source("").dest("").tree("fs", "").mount_image("fs", "btrfs");
    build(&w, "src", "fs/alt");
    for error in REFUSALS {
        w.env("SPARSYNC_REFUSE", &format!("ficlone:{error}"));
        let dest = format!("fs/{error}/");
        w.alone_paths(&["-a", "--no-whole-file", "--clone-dest=../alt"], &["src/", &dest])
            .exits(0)
            .warns("files are copied where blocks cannot be shared");
        let dest = w.tested().join(dest);
        assert_same(&w.tested().join("src"), &dest);
        std::fs::remove_dir_all(dest).expect("scratch can be written");
    }
});

// ── shared blocks ───────────────────────────────────────────────────────────────────────────────

const LARGE_BYTES: usize = 8 << 20;
const SMALL_BYTES: usize = 100 << 10;
const SMALL_FILES: u64 = 40;
/// Metadata, and the blocks around what has changed.
const MOST_BYTES: u64 = 2 << 20;

fn put(path: &Path, content: &[u8], age_secs: u64) {
    std::fs::create_dir_all(path.parent().expect("it is below")).expect("scratch can be written");
    std::fs::write(path, content).expect("scratch can be written");
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000 - age_secs);
    std::fs::File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_modified(at))
        .expect("scratch can be written");
}

/// Makes a source, and a tree that has most of its content: equal files, and one in which a byte differs.
fn build(w: &World, source: &str, tree: &str) {
    let [source, tree] = [source, tree].map(|it| w.tested().join(it));
    for n in 0..SMALL_FILES {
        let content = noise(100 + n, SMALL_BYTES);
        put(&source.join(format!("small{n}")), &content, 0);
        put(&tree.join(format!("small{n}")), &content, 0);
    }
    let mut content = noise(71, LARGE_BYTES);
    put(&source.join("large"), &content, 0);
    put(&tree.join("large"), &content, 0);
    put(&tree.join("changed"), &content, 9);
    content[LARGE_BYTES / 2] ^= 1;
    put(&source.join("changed"), &content, 0);
}

/// Checks that two directories have files with the same names and content.
fn assert_same(wanted: &Path, got: &Path) {
    let names = |dir: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .expect("it is there")
            .map(|entry| entry.expect("it can be listed").file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(wanted), names(got));
    for name in names(wanted) {
        let read = |dir: &Path| std::fs::read(dir.join(&name)).expect("it is there");
        assert!(read(wanted) == read(got), "{name:?} differs");
    }
}

/// Copies with `--clone-dest`, and checks how much is not shared.
fn shares_blocks(w: &World, kind: &str) {
    ours(w);
    w.source("").dest("").tree("fs", "").mount_image("fs", kind);
    build(w, "src", "fs/alt");
    let fs = w.tested().join("fs");
    let grown = |option: &str, dest: &str| {
        let before = crate::place::used_bytes(&fs);
        w.alone_paths(
            &["-a", "--no-whole-file", option],
            &["src/", &format!("fs/{dest}/")],
        )
        .exits(0);
        assert_same(&w.tested().join("src"), &fs.join(dest));
        crate::place::used_bytes(&fs).saturating_sub(before)
    };

    let cloned = grown("--clone-dest=../alt", "cloned");
    assert!(cloned <= MOST_BYTES, "{cloned} bytes are not shared");
    // Otherwise the measure says nothing.
    let copied = grown("--copy-dest=../alt", "copied");
    let least = (LARGE_BYTES as u64 + SMALL_FILES * SMALL_BYTES as u64) * 9 / 10;
    assert!(copied > least, "{copied}");

    // The basis is the older version at the destination.
    let mut content = noise(71, LARGE_BYTES);
    content[LARGE_BYTES / 3] ^= 1;
    put(&w.tested().join("src/changed"), &content, 5);
    let updated = grown("--clone-dest=../alt", "cloned");
    assert!(updated <= MOST_BYTES, "{updated} bytes are not shared");
    let old = std::fs::read(fs.join("alt/changed")).expect("it is there");
    assert!(old == noise(71, LARGE_BYTES), "a snapshot has changed");
}

synctest!(blocks_of_btrfs_are_shared, as root, |w: World| {
    shares_blocks(&w, "btrfs");
});

synctest!(blocks_of_xfs_are_shared, as root, |w: World| {
    shares_blocks(&w, "xfs");
});

synctest!(renamed_files_share_blocks, as root, |w: World| {
    ours(&w);
    w.source("").dest("").tree("fs", "").mount_image("fs", "btrfs");
    build(&w, "src", "fs/alt");
    let fs = w.tested().join("fs");
    std::fs::rename(fs.join("alt"), fs.join("old")).expect("scratch can be written");
    std::fs::create_dir(fs.join("alt")).expect("scratch can be written");
    std::fs::rename(fs.join("old"), fs.join("alt/moved")).expect("scratch can be written");
    std::fs::remove_file(w.tested().join("src/changed")).expect("scratch can be written");
    let before = crate::place::used_bytes(&fs);
    w.alone_paths(&["-a", "--detect-renamed=moved", "--clone-dest=../alt"], &["src/", "fs/dst/"])
        .exits(0);
    assert_same(&w.tested().join("src"), &fs.join("dst"));
    let grown = crate::place::used_bytes(&fs).saturating_sub(before);
    assert!(grown <= MOST_BYTES, "{grown} bytes are not shared");
});

/// How the new content of a file differs from the one that is cloned.
fn edits() -> Vec<(&'static str, Vec<u8>)> {
    let old = noise(9, 1_500_000);
    let mut edited = old.clone();
    edited[700_000..700_100].fill(7);
    vec![
        ("edited", edited.clone()),
        ("shorter", old[..900_001].to_vec()),
        ("shorter_and_edited", edited[..1_200_003].to_vec()),
        ("longer", [&edited[..], &noise(10, 77_777)].concat()),
        ("inserted", [&b"in front"[..], &old].concat()),
        ("removed", old[12_345..].to_vec()),
        ("swapped", [&old[800_000..], &old[..800_000]].concat()),
        ("twice", [&old[..], &old].concat()),
        ("zeros", vec![0; 1_500_000]),
        ("one", vec![1]),
        ("empty", Vec::new()),
    ]
}

synctest!(deltas_over_clones_have_the_content_of_the_source, as root, |w: World| {
    ours(&w).mask_with(without_note);
    w.source("").dest("").tree("fs", "").mount_image("fs", "btrfs");
    w.tree("fs/dst", "");
    for (name, content) in edits() {
        w.build("src", |tree| drop(tree.file(name, &content).mtime(9)));
        w.build("fs/alt", |tree| drop(tree.file(name, noise(9, 1_500_000)).mtime(3)));
    }
    w.agree_paths(&["-ai", "--no-whole-file", "--clone-dest=../alt"], &["src/", "fs/dst/"]).exits(0);
});

// ── options that decide how a file is written ──────────────────────────────────────────────────────

/// Options that decide how a file is written, or what is written with it.
const WRITING: [&[&str]; 20] = [
    &["-S"],
    &["-S", "-W"],
    &["--preallocate"],
    &["--inplace"],
    &["--inplace", "-S"],
    &["--inplace", "--backup"],
    &["--partial"],
    &["--partial-dir=.part"],
    &["--delay-updates"],
    &["--delay-updates", "--partial-dir=.part"],
    &["-H"],
    &["-X"],
    &["-AX"],
    &["--fake-super"],
    &["-z"],
    &["-z", "--compress-choice=zlib"],
    &["-W"],
    &["-I"],
    &["-c"],
    &["--backup", "--backup-dir=../bak"],
];

/// A source, and on a file system that can share blocks what runs are compared with: an earlier copy in `fs/alt`.
fn on_btrfs(w: &World) {
    ours(w).mask_with(without_note).needs_xattrs();
    w.source("")
        .dest("")
        .tree("fs", "")
        .mount_image("fs", "btrfs");
    w.tree("fs/bak", "");
    w.source("same h/1=linked h/2==h/1 mode%600 l->same new")
        .tree("fs/alt", "same h/1=linked h/2==h/1 mode%644 l->same time");
    for (name, content) in edits() {
        w.build("src", |tree| drop(tree.file(name, &content).mtime(9)));
        w.build("fs/alt", |tree| {
            drop(tree.file(name, noise(9, 1_500_000)).mtime(3))
        });
    }
    w.build("src", |tree| {
        drop(
            tree.file("attributes", noise(11, 9_000))
                .mtime(9)
                .xattr("user.k", "new"),
        );
        drop(tree.file("grown", noise(12, 300_000)).mtime(9));
        drop(
            tree.file(
                "holes",
                [&noise(13, 5_000)[..], &[0; 400_000], &noise(14, 5_000)].concat(),
            )
            .mtime(9),
        );
    });
    w.build("fs/alt", |tree| {
        drop(
            tree.file("attributes", noise(11, 9_000))
                .mtime(9)
                .xattr("user.k", "old"),
        );
        drop(tree.file("grown", noise(12, 200_000)).mtime(3));
        drop(tree.file("holes", noise(15, 410_000)).mtime(3));
    });
}

/// Makes a destination with older versions of some files.
fn older(w: &World, name: &str) {
    w.tree(name, "");
    w.build(name, |tree| {
        drop(tree.file("edited", noise(16, 700_000)).mtime(2));
        drop(tree.file("grown", noise(12, 100_000)).mtime(2));
    });
}

synctest!(results_do_not_depend_on_how_files_are_written, as root, |w: World| {
    w.only_local("routes differ in how content comes, not in how it is written");
    on_btrfs(&w);
    w.no_dry_run();
    for (n, options) in WRITING.into_iter().enumerate() {
        let dest = format!("fs/dst{n}");
        older(&w, &dest);
        let options = [&["-ai", "--no-whole-file", "--clone-dest=../alt"], options].concat();
        w.agree_paths(&options, &["src/", &format!("{dest}/")]).exits(0);
    }
});

// rsync cannot verify, appends to files that are not there if it has an alternate tree, and writes new files in a temporary
// directory of another file system.
synctest!(other_ways_to_write_give_the_content_of_the_source, as root, |w: World| {
    on_btrfs(&w);
    for options in [
        &["--verify"][..],
        &["--verify=source"],
        &["--verify", "--inplace"],
        &["--append"],
        &["--append-verify"],
        &["--temp-dir={W}/src"],
    ] {
        older(&w, "fs/dst");
        if options == ["--append"] {
            // It would keep the beginning.
            std::fs::remove_file(w.tested().join("fs/dst/edited")).expect("scratch can be written");
        }
        let all = [&["-aX", "--no-whole-file", "--clone-dest=../alt"], options].concat();
        w.alone_paths(&all, &["src/", "fs/dst/"]).exits(0);
        w.alone_paths(&["-aXic"], &["src/", "fs/dst/"]).exits(0).never_prints("f");
        std::fs::remove_dir_all(w.tested().join("fs/dst")).expect("scratch can be written");
    }
});

synctest!(converted_names_are_found_in_the_tree, as root, |w: World| {
    on_btrfs(&w);
    w.not_with_server("names are converted only by rsync's protocol")
        .not_with_daemon("the module has no charset")
        .env("LC_ALL", "C.UTF-8");
    w.build("src", |tree| drop(tree.file("ä", noise(17, 90_000)).mtime(9)));
    w.build("fs/alt", |tree| drop(tree.file(b"\xe4", noise(17, 80_000)).mtime(3)));
    w.tree("fs/dst", "");
    if w.is_pulled() {
        let options = ["-ai", "--clone-dest=../alt", "--iconv=latin1,utf8"];
        w.agree_paths(&options, &["src/", "fs/dst/"]).exits(0);
    } else {
        // The receiver speaks rsync's protocol.
        w.alone_paths(&["-ai", "--clone-dest=../alt", "--iconv=utf8,latin1"], &["src/", "fs/dst/"])
            .exits(4)
            .warns("--clone-dest is not possible");
        assert_eq!(std::fs::read_dir(w.tested().join("fs/dst")).map_or(0, Iterator::count), 0);
    }
});

// ── interruptions ───────────────────────────────────────────────────────────────────────────────

/// Kills or fails a run at each call. What has its final name then must be old or new, or a part of the new content. The
/// next run must finish, and leave nothing else.
fn survives(w: &World, hook: &str, suffix: &str, options: &[&str]) {
    ours(w).not_with_server("a server lives on");
    w.source("")
        .dest("")
        .tree("fs", "")
        .mount_image("fs", "btrfs");
    let src = w.tested().join("src");
    let fs = w.tested().join("fs");
    let old = noise(9, 200_000);
    let mut new = old.clone();
    new[100_000] ^= 1;
    put(&src.join("equal"), &old, 0);
    put(&src.join("changed"), &new[..180_000], 0);
    put(&fs.join("alt/equal"), &old, 0);
    put(&fs.join("alt/changed"), &old, 9);
    let options = [options, &["--clone-dest=../alt"]].concat();
    let faults = w.tested().join("faults");
    w.env("SPARSYNC_FAULT_LOG", &faults.display().to_string());
    let mut at = 1;
    loop {
        std::fs::create_dir(fs.join("dst")).expect("scratch can be written");
        w.env(hook, &format!("{at}{suffix}"));
        let ended = w.alone_paths(&options, &["src/", "fs/dst/"]).exit;
        for (name, wanted) in [("equal", &old[..]), ("changed", &new[..180_000])] {
            if let Ok(got) = std::fs::read(fs.join("dst").join(name)) {
                assert!(wanted.starts_with(&got), "{hook} {at}: {name} is wrong");
                assert!(ended != 0 || got == wanted, "{hook} {at}: {name}");
            }
        }
        let has_failed = suffix.is_empty() || faults.exists();
        let _ = std::fs::remove_file(&faults);
        w.env(hook, &format!("1000000{suffix}"));
        w.alone_paths(&options, &["src/", "fs/dst/"]).exits(0);
        assert_same(&src, &fs.join("dst"));
        let alt = std::fs::read(fs.join("alt/changed")).expect("it is there");
        assert!(alt == old, "{hook} {at}: a snapshot has changed");
        std::fs::remove_dir_all(fs.join("dst")).expect("scratch can be written");
        if ended == 0 && (suffix.is_empty() || !has_failed) {
            break;
        }
        at += 1;
    }
    // Otherwise the hook had no effect.
    assert!(at > 20, "{at}");
}

synctest!(kills_leave_old_or_new_files, as root, |w: World| {
    survives(&w, "SPARSYNC_KILL_AT", "", &["-a", "--no-whole-file"]);
});

synctest!(errors_leave_parts_of_new_files, as root, |w: World| {
    survives(&w, "SPARSYNC_FAIL_AT", ":EIO", &["-a", "--no-whole-file", "--partial"]);
});
