//! `--verify`: what was written is read back before a file gets its name. A debug build spoils what is written if
//! `SPARSYNC_SPOIL_WRITE=TEXT` is set and the data has this text, so that there is something to find.

use crate::kit::{World, files, is_temp, synctest};

/// Files that are new, replaced, extended and unchanged, with a second name and a hole.
const SOURCE: &str = "new=fresh%640 d/other=more%750@3 longer=begin-MARK-and-end@9 changed=after-MARK@5 same \
    link==new empty= big*300000";
const DEST: &str = "longer=begin- changed=before same gone";

fn updated(w: &World) -> &World {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source(SOURCE).dest(DEST);
    w.build("src", |tree| {
        let mut content = vec![b'a'; 400_000];
        content[250_000..250_008].copy_from_slice(b"one-MARK");
        tree.file("large", content);
    });
    w.build("dst", |tree| {
        tree.file("large", vec![b'a'; 390_000]).mtime(7);
    });
    w.tree("alt", "changed=after-MARK@5 big*300000")
}

fn content(w: &World, path: &str) -> Vec<u8> {
    std::fs::read(w.tested().join(path)).unwrap_or_default()
}

/// Does what rsync does, and verifies it. Then everything that is written is spoiled where the source has `MARK`: each
/// such file is reported, and the next run repairs it. `keeps`: the old files stay meanwhile.
#[track_caller]
fn verifies(w: &World, options: &[&str], keeps: bool) {
    let w = updated(w);
    w.keep_dest();
    w.agree_beside(&["--verify"], options);

    w.restore_dest();
    let before = ["longer", "changed", "large"].map(|name| content(w, &format!("dst/{name}")));
    let verify = [options, &["--verify"]].concat();
    w.env("SPARSYNC_SPOIL_WRITE", "MARK");
    w.alone(&verify)
        .exits(23)
        .warns("verification failed for")
        .warns("changed\": what was read back differs from what was sent")
        .warns("large\": what was read back differs from what was sent");
    let after = ["longer", "changed", "large"].map(|name| content(w, &format!("dst/{name}")));
    assert_eq!(before == after, keeps);
    let has_temp =
        |path: &std::path::PathBuf| path.iter().any(|name| is_temp(&name.to_string_lossy()));
    let left: Vec<_> = files(&w.tested().join("dst"))
        .into_keys()
        .filter(has_temp)
        .collect();
    assert!(left.is_empty(), "{left:?}");

    w.env("SPARSYNC_SPOIL_WRITE", "no such text");
    w.alone(&verify).exits(0);
    for name in ["longer", "changed", "large"] {
        assert!(
            content(w, &format!("dst/{name}")) == content(w, &format!("src/{name}")),
            "{name}"
        );
    }
}

/// One row of the table: the options of a way in which files get their content.
macro_rules! verified {
    ($name:ident, [$($option:expr),+ $(,)?], $keeps:expr) => {
        synctest!($name, |w: World| verifies(&w, &[$($option),+], $keeps));
    };
}

// Each way in which a file gets its content. "true": the old version stays if that is damaged.
verified!(whole, ["-ai", "--whole-file"], true);
verified!(in_deltas, ["-ai", "--no-whole-file"], true);
verified!(sparse, ["-aiS"], true);
verified!(preallocated, ["-ai", "--preallocate"], true);
verified!(sparse_and_preallocated, ["-aiS", "--preallocate"], true);
verified!(partial, ["-ai", "--partial"], true);
verified!(partial_dir, ["-ai", "--partial-dir=.part"], true);
verified!(delay_updates, ["-ai", "--delay-updates"], true);
verified!(hard_links, ["-aiH"], true);
verified!(synced, ["-ai", "--fsync"], true);
verified!(limited, ["-ai", "--bwlimit=100m"], true);
verified!(compressed, ["-aiz"], true);
verified!(backups, ["-aib"], true);
verified!(no_checksum, ["-ai", "--checksum-choice=none"], true);
verified!(delete, ["-ai", "--delete"], true);
verified!(in_place, ["-ai", "--inplace"], false);
verified!(
    in_place_deltas,
    ["-ai", "--inplace", "--no-whole-file"],
    false
);
verified!(in_place_sparse, ["-aiS", "--inplace"], false);

// ── what is appended ────────────────────────────────────────────────────────────────────────────
fn appends(w: &World, option: &str) {
    let w = w
        .not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("log=first-MARK-and-second new=one")
        .dest("log=first-MARK");
    w.keep_dest();
    w.agree_beside(&["--verify"], &["-ai", option]);

    // What was there is not read back, but what was appended is.
    w.restore_dest();
    w.env("SPARSYNC_SPOIL_WRITE", "second");
    w.alone(&["-ai", option, "--verify"])
        .exits(23)
        .warns("log\": what was read back differs from what was sent");
    assert_eq!(content(w, "dst/log"), b"first-MARK-and-recond");
}

synctest!(appended, |w: World| appends(&w, "--append"));
synctest!(appended_and_compared, |w: World| appends(
    &w,
    "--append-verify"
));

// ── what comes from other files ─────────────────────────────────────────────────────────────────
synctest!(copied_from_alternate, |w: World| {
    let w = w
        .not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("a=one-MARK b=two")
        .tree("alt", "a=one-MARK")
        .dest("c=three");
    w.keep_dest();
    w.agree_beside(&["--verify"], &["-ai", "--copy-dest=../alt"]);
    w.restore_dest();
    w.env("SPARSYNC_SPOIL_WRITE", "MARK");
    w.alone(&["-ai", "--copy-dest=../alt", "--verify"])
        .exits(23)
        .warns("a\": what was read back differs");
    assert!(!w.tested().join("dst/a").exists());
});

synctest!(linked_from_alternate, |w: World| {
    let w = w
        .not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("a=one-MARK b=two").tree("alt", "a=one-MARK");
    w.env("SPARSYNC_SPOIL_WRITE", "MARK");
    // A link has nothing that was written.
    w.agree_beside(&["--verify"], &["-ai", "--link-dest=../alt"])
        .exits(0);
});

synctest!(copied_from_twin, |w: World| {
    let w = w
        .not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("d/a=one-MARK kept=two").dest("a=one-MARK");
    w.keep_dest();
    // Backups prevent a rename.
    let options = [
        "-aib",
        "--delete-after",
        "--detect-renamed=moved",
        "--verify",
        "--stats",
    ];
    w.alone(&options)
        .exits(0)
        .prints("Number of files taken from other files: 1 (8 bytes)")
        .prints("Number of files verified: 2 (11 bytes read back)");
    w.restore_dest();
    w.env("SPARSYNC_SPOIL_WRITE", "MARK");
    w.alone(&options)
        .exits(23)
        .warns("d/a\": what was read back differs");
    assert!(!w.tested().join("dst/d/a").exists());
    let has_content = |path: &str| content(w, path) == b"one-MARK";
    assert!(has_content("dst/a") || has_content("dst/a~"));
});

synctest!(removed_only_if_verified, |w: World| {
    let w = w
        .not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("a=one-MARK b=two");
    w.env("SPARSYNC_SPOIL_WRITE", "MARK");
    w.alone(&["-a", "--remove-source-files", "--verify"])
        .exits(23);
    assert!(w.tested().join("src/a").exists());
    assert!(!w.tested().join("src/b").exists());
});

// ── the source ──────────────────────────────────────────────────────────────────────────────────
fn both_ends(w: &World) -> &World {
    w.not_with_stock("an rsync does not read the source again")
}

synctest!(source_is_read_again, |w: World| {
    updated(both_ends(&w));
    w.agree_beside(&["--verify=source"], &["-ai"]).exits(0);
});

synctest!(source_that_reads_differently, |w: World| {
    updated(both_ends(&w));
    w.keep_dest();
    for options in [
        &["-a"][..],
        &["-a", "--no-whole-file"],
        &["-a", "--inplace"],
    ] {
        w.restore_dest();
        w.env("SPARSYNC_SPOIL_REREAD", "MARK");
        let all = [options, &["--verify=source"]].concat();
        w.alone(&all)
            .exits(23)
            .warns("changed\": the content is different when it is read again")
            .warns("large\": the content is different when it is read again");
        if !options.contains(&"--inplace") {
            assert_eq!(content(&w, "dst/changed"), b"before", "{options:?}");
        }
        // It is not read again without the value.
        w.alone(&[options, &["--verify"]].concat()).exits(0);
    }
});

// ── what is reported ────────────────────────────────────────────────────────────────────────────
synctest!(statistics_and_json, |w: World| {
    let w = w
        .not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("a=one b=three same").dest("same");
    w.keep_dest();
    w.alone(&["-a", "--verify", "--stats"])
        .prints("Number of files verified: 2 (8 bytes read back)");
    w.alone(&["-a", "--verify", "--stats"])
        .prints("Number of files verified: 0 (0 bytes read back)");
    w.restore_dest();
    w.alone(&["-an", "--verify", "--stats"])
        .never_prints("verified");
    w.alone(&["-a", "--verify", "--json"])
        .prints("\"verified_files\":2,\"verified_bytes\":8,");
});

synctest!(failed_list_names_it, |w: World| {
    let w = w
        .not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option")
        .not_with_daemon("the path of a module is not that of the transfer");
    w.source("d/a=one-MARK b=two");
    w.env("SPARSYNC_SPOIL_WRITE", "MARK");
    w.alone(&["-a", "--verify", "--failed-list=list"]).exits(23);
    assert_eq!(content(w, "list"), b"d/a\n");
});

synctest!(without_the_option_nothing_is_noticed, |w: World| {
    w.only_local("one route shows it");
    w.source("a=one-MARK");
    w.env("SPARSYNC_SPOIL_WRITE", "MARK");
    w.alone(&["-a"]).exits(0);
    assert_eq!(content(&w, "dst/a"), b"one-LARK");
});
