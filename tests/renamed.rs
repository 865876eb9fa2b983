//! `--detect-renamed`: new files take the content of equal files of the destination. The result must be that of rsync,
//! which sends them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::faults::{Stage, Trees, write};
use crate::kit::{Acl, Scene, World, calls_with_faults, diff, files, is_temp, oracle, synctest};

/// A renamed directory, a moved file, a renamed file, a copy, a new file, and files that stay or change.
const SOURCE: &str = "new/a=alpha new/sub/b=beta@5 new/%750 moved/c=gamma@7 d/renamed=delta@9 d/copy=kept@11 d/kept=kept@11 \
    fresh=nothing changed=after@33";
const DEST: &str = "old/a=alpha old/sub/b=beta@5 c=gamma@7 d/before=delta@9 d/kept=kept@11 gone=bye empty= changed=before@-3";

const MOVED: &str = "--detect-renamed=moved";
const QUICK: &str = "--detect-renamed=quick";
const SAME: &str = "--detect-renamed";

fn reorganised(w: &World) -> &World {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source(SOURCE).dest(DEST)
}

/// Compares with rsync, and checks which files came from where.
#[track_caller]
pub fn reuses(w: &World, own: &str, options: &[&str], lines: &[&str]) {
    w.keep_dest();
    w.agree_beside(&[own], options);
    w.restore_dest();
    let all = [options, &[own, "--info=rename"]].concat();
    let mut alone = w.alone(&all);
    for line in lines {
        alone = alone.prints(line);
    }
}

const ALL_MOVED: [&str; 3] = [
    "renamed old/a => new/a",
    "renamed old/sub/b => new/sub/b",
    "renamed c => moved/c",
];
const ALL_COPIED: [&str; 3] = [
    "copied old/a => new/a",
    "copied old/sub/b => new/sub/b",
    "copied c => moved/c",
];

/// One row of the table: options, and what happens to what was moved.
macro_rules! moves {
    ($name:ident, [$($option:expr),+ $(,)?], $lines:expr) => {
        synctest!($name, |w: World| {
            reuses(reorganised(&w), MOVED, &[$($option),+], &$lines);
        });
    };
}

moves!(default_time, ["-ai", "--delete"], ALL_MOVED);
moves!(before, ["-ai", "--delete-before"], ALL_MOVED);
moves!(during, ["-ai", "--delete-during"], ALL_MOVED);
moves!(delay, ["-ai", "--delete-delay"], ALL_MOVED);
moves!(after, ["-ai", "--delete-after"], ALL_MOVED);
moves!(without_delete, ["-ai"], ALL_COPIED);
moves!(verbose, ["-av", "--delete"], ALL_MOVED);
moves!(prune, ["-aim", "--delete"], ALL_MOVED);
moves!(
    delay_updates,
    ["-ai", "--delete", "--delay-updates"],
    ALL_MOVED
);
moves!(
    partial_dir,
    ["-ai", "--delete", "--partial-dir=.p"],
    ALL_MOVED
);
moves!(in_place, ["-ai", "--delete", "--inplace"], ALL_MOVED);
moves!(in_deltas, ["-ai", "--delete", "--no-whole-file"], ALL_MOVED);
moves!(sparse, ["-aiS", "--delete"], ALL_MOVED);
moves!(one_file_system, ["-aix", "--delete"], ALL_MOVED);
moves!(existing, ["-ai", "--delete", "--existing"], [] as [&str; 0]);
moves!(
    ignore_existing,
    ["-ai", "--delete", "--ignore-existing"],
    ALL_MOVED
);
moves!(update, ["-aiu", "--delete"], ALL_MOVED);
moves!(synced, ["-ai", "--delete", "--fsync"], ALL_MOVED);
moves!(hard_links, ["-aiH", "--delete"], ALL_MOVED);
moves!(
    no_incremental_recursion,
    ["-ai", "--delete", "--no-inc-recursive"],
    ALL_MOVED
);
moves!(chmod, ["-ai", "--delete", "--chmod=D750,F640"], ALL_MOVED);
moves!(without_perms, ["-ai", "--delete", "--no-perms"], ALL_MOVED);
moves!(
    max_delete_at_the_end,
    ["-ai", "--delete-after", "--max-delete=100"],
    ALL_MOVED
);
moves!(
    delete_excluded,
    ["-ai", "--delete-excluded", "--exclude=empty"],
    ALL_MOVED
);

// ── equal contents ──────────────────────────────────────────────────────────────────────────────

/// The same trees with other times, files that have only size and time in common, and new files that are equal to each
/// other.
const RETIMED_DEST: &str = "old/a=alpha@1 old/sub/b=beta@2 c=gamma@3 d/before=delta@4 d/kept=kept@11 gone=bye empty= \
    changed=before@-3 e/b=ateb@5 e/c=ammag@7";
const TWICE: &str = "t/1=double@31 t/2=double@32 u/3=double@31";

fn retimed(w: &World) -> &World {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source(SOURCE).source(TWICE).dest(RETIMED_DEST)
}

/// Compares with rsync, and checks which files came from where. An rsync sends no digests, so twins are only bases there.
#[track_caller]
fn compares(w: &World, options: &[&str], lines: &[&str]) {
    let lines = if w.route().is_stock() { &[] } else { lines };
    reuses(w, SAME, options, lines);
}

const SAME_MOVED: [&str; 7] = [
    "renamed old/a => new/a",
    "renamed old/sub/b => new/sub/b",
    "renamed c => moved/c",
    "renamed d/before => d/renamed",
    "copied d/kept => d/copy",
    "copied t/1 => t/2",
    "copied t/1 => u/3",
];
const SAME_COPIED: [&str; 7] = [
    "copied old/a => new/a",
    "copied old/sub/b => new/sub/b",
    "copied c => moved/c",
    "copied d/before => d/renamed",
    "copied d/kept => d/copy",
    "copied t/1 => t/2",
    "copied t/1 => u/3",
];

/// One row of the table for equal contents.
macro_rules! equals {
    ($name:ident, [$($option:expr),+ $(,)?], $lines:expr) => {
        synctest!($name, |w: World| {
            compares(retimed(&w), &[$($option),+], &$lines);
        });
    };
}

equals!(same_content, ["-ai", "--delete"], SAME_MOVED);
equals!(same_before, ["-ai", "--delete-before"], SAME_MOVED);
equals!(same_delay, ["-ai", "--delete-delay"], SAME_MOVED);
equals!(same_after, ["-ai", "--delete-after"], SAME_MOVED);
equals!(same_without_delete, ["-ai"], SAME_COPIED);
equals!(same_verbose, ["-av", "--delete"], SAME_MOVED);
equals!(same_checksum, ["-aic", "--delete"], SAME_MOVED);
equals!(same_ignoring_times, ["-aiI", "--delete"], SAME_MOVED[..2]);
equals!(same_prune, ["-aim", "--delete"], SAME_MOVED);
equals!(
    same_delay_updates,
    ["-ai", "--delete", "--delay-updates"],
    SAME_MOVED
);
equals!(
    same_partial_dir,
    ["-ai", "--delete", "--partial-dir=.p"],
    SAME_MOVED
);
equals!(same_in_place, ["-ai", "--delete", "--inplace"], SAME_MOVED);
equals!(
    same_in_deltas,
    ["-ai", "--delete", "--no-whole-file"],
    SAME_MOVED
);
equals!(same_whole, ["-aiW", "--delete"], SAME_MOVED);
equals!(same_sparse, ["-aiS", "--delete"], SAME_MOVED);
equals!(same_update, ["-aiu", "--delete"], SAME_MOVED);
equals!(same_synced, ["-ai", "--delete", "--fsync"], SAME_MOVED);
equals!(same_fuzzy, ["-aiy", "--delete-after"], SAME_MOVED);
equals!(
    same_existing,
    ["-ai", "--delete", "--existing"],
    [] as [&str; 0]
);
equals!(
    same_ignore_existing,
    ["-ai", "--delete", "--ignore-existing"],
    SAME_MOVED
);
equals!(
    same_chmod,
    ["-ai", "--delete", "--chmod=D750,F640"],
    SAME_MOVED
);
equals!(
    same_without_perms,
    ["-ai", "--delete", "--no-perms"],
    SAME_MOVED
);
equals!(same_backups, ["-aib", "--delete-after"], SAME_COPIED);
equals!(
    same_backup_dir,
    ["-ai", "--delete-delay", "--backup-dir=../bak"],
    SAME_COPIED
);
equals!(same_backups_during, ["-aib", "--delete"], SAME_MOVED[4..]);
equals!(
    same_protected,
    ["-ai", "--delete", "--filter=P old/a", "--filter=P /c"],
    [SAME_COPIED[0], SAME_MOVED[1], SAME_COPIED[2]]
);
equals!(
    same_hidden,
    ["-ai", "--delete", "--filter=H new/a", "--filter=H /t/1"],
    [SAME_MOVED[1], "copied t/2 => u/3"]
);
equals!(
    same_of_some_sizes,
    ["-ai", "--delete", "--max-size=5"],
    [SAME_MOVED[0], SAME_MOVED[3]]
);

synctest!(same_max_delete_used_up, |w: World| {
    let w = retimed(&w);
    w.not_with_daemon("rsync's client does not learn that the limit was reached");
    compares(
        w,
        &["-ai", "--delete-delay", "--max-delete=2"],
        &SAME_MOVED[4..],
    );
});

synctest!(same_without_times, |w: World| {
    let w = retimed(&w);
    w.once();
    compares(w, &["-rlpgoDi", "--delete"], &SAME_COPIED);
});

synctest!(same_hard_links, |w: World| {
    let w = retimed(&w);
    w.source("h/1=linked@8 h/2==h/1 i/3=linked@9")
        .dest("j/4=linked@5 k/5=linked@6 k/6==k/5");
    for options in [&["-ai", "--delete"][..], &["-aiH", "--delete"]] {
        compares(w, options, &SAME_MOVED);
        w.restore_dest();
    }
});

synctest!(same_content_linked_twice, |w: World| {
    let w = retimed(&w);
    w.source("h/1=linked@8 h/2==h/1 i/3=linked@9");
    compares(w, &["-aiH", "--delete"], &["copied h/1 => i/3"]);
});

synctest!(same_sources_are_removed, |w: World| {
    let w = retimed(&w);
    w.once();
    w.agree_beside(&[SAME], &["-ai", "--delete", "--remove-source-files"]);
});

synctest!(nothing_is_read_of_other_sizes, |w: World| {
    let w = retimed(&w);
    w.source("one=longer_than_all_others");
    compares(w, &["-ain", "--delete"], &SAME_MOVED);
});

synctest!(many_files_of_one_size, |w: World| {
    let w = retimed(&w);
    let names = |dir: &str, offset: i32| {
        let files = (0..12).map(|n| format!("{dir}/{n}=content{:02}@{} ", n, 100 + n + offset));
        files.collect::<String>()
    };
    // Those with equal times are compared, and one of them has another content.
    w.source(&names("many", 0)).dest(&names("much", 0));
    w.dest("much/3=contentXX@103");
    compares(
        w,
        &["-ai", "--delete"],
        &[
            "renamed much/2 => many/2",
            "renamed much/11 => many/11",
            SAME_MOVED[0],
        ],
    );
    w.restore_dest();
    w.dest("much/0=content00@7");
    w.keep_dest();
    w.agree_beside(&[SAME], &["-ai", "--delete"]);
});

synctest!(same_content_from_alternates_comes_first, |w: World| {
    let w = retimed(&w);
    w.tree("alt", "new/a=alpha");
    for kind in [
        "--link-dest=../alt",
        "--copy-dest=../alt",
        "--compare-dest=../alt",
    ] {
        compares(w, &["-ai", "--delete", kind], &["renamed c => moved/c"]);
        w.restore_dest();
    }
});

synctest!(unreadable_sources_are_reported, as user, |w: World| {
    let w = retimed(&w);
    w.source("new/%750 new/a%0");
    w.stderr_unordered();
    compares(w, &["-ai", "--delete"], &[]);
});

synctest!(unreadable_twins_are_not_used, as user, |w: World| {
    let w = retimed(&w);
    w.dest("old/a%0 d/kept%0");
    compares(w, &["-ai", "--delete"], &["renamed c => moved/c"]);
});

synctest!(cached_digests_find_twins, |w: World| {
    let w = retimed(&w);
    w.not_with_stock("an rsync has no digests of single files");
    w.alone(&["-ai", "--delete", SAME, "--checksum-cache", "--info=rename"])
        .prints(SAME_MOVED[0])
        .prints(SAME_MOVED[6]);
});

// ── alternate trees ─────────────────────────────────────────────────────────────────────────────

/// An empty destination, and an earlier copy beside it.
fn snapshot(w: &World) -> &World {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.compare_links_within()
        .source(SOURCE)
        // No other file has its size and time.
        .source("changed=after@33")
        .tree("alt", DEST)
        .dest("")
}

const ALL_LINKED: [&str; 3] = [
    "linked ../alt/old/a => new/a",
    "linked ../alt/old/sub/b => new/sub/b",
    "linked ../alt/c => moved/c",
];
const ALL_COPIED_FROM_ALT: [&str; 3] = [
    "copied ../alt/old/a => new/a",
    "copied ../alt/old/sub/b => new/sub/b",
    "copied ../alt/c => moved/c",
];

/// One row of the table for alternate trees: options, and what happens to what was moved.
macro_rules! snapshots {
    ($name:ident, [$($option:expr),+ $(,)?], $lines:expr) => {
        synctest!($name, |w: World| {
            reuses(snapshot(&w), MOVED, &[$($option),+], &$lines);
        });
    };
}

snapshots!(links, ["-ai", "--link-dest=../alt"], ALL_LINKED);
snapshots!(copies, ["-ai", "--copy-dest=../alt"], ALL_COPIED_FROM_ALT);
snapshots!(
    compared,
    ["-ai", "--compare-dest=../alt"],
    ALL_COPIED_FROM_ALT
);
snapshots!(
    links_with_delete,
    ["-ai", "--delete", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_in_deltas,
    ["-ai", "--no-whole-file", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_delayed,
    ["-ai", "--delay-updates", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_with_partial_dir,
    ["-ai", "--partial-dir=.p", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_with_backups,
    ["-aib", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_in_place,
    ["-ai", "--inplace", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_synced,
    ["-ai", "--fsync", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_with_hard_links,
    ["-aiH", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(links_verbosely, ["-av", "--link-dest=../alt"], ALL_LINKED);
snapshots!(
    links_without_groups,
    ["-rlptoDi", "--link-dest=../alt"],
    ALL_LINKED
);
snapshots!(
    links_without_perms,
    ["-rltgoDi", "--link-dest=../alt"],
    ALL_LINKED
);
// The times of new files are those of the copy.
snapshots!(
    copies_without_times,
    ["-rlpgoDi", "--link-dest=../alt"],
    ALL_COPIED_FROM_ALT
);
// The permissions that are wanted are not those of the tree.
snapshots!(
    other_modes_are_copied,
    ["-ai", "--chmod=F640", "--link-dest=../alt"],
    ALL_COPIED_FROM_ALT
);
snapshots!(
    links_to_trees_of_protected_names,
    [
        "-ai",
        "--filter=P old/a",
        "--exclude=/gone",
        "--link-dest=../alt"
    ],
    ALL_LINKED
);
snapshots!(
    existing_names_no_new_file,
    ["-ai", "--existing", "--link-dest=../alt"],
    [] as [&str; 0]
);

synctest!(statistics_count_what_was_linked, |w: World| {
    snapshot(&w);
    w.alone(&["-a", "--stats", "--link-dest=../alt", MOVED])
        .prints("Number of files taken from other files: 3 (14 bytes)")
        .prints("Number of regular files transferred: 7")
        .prints("Total transferred file size: 35 bytes");
});

synctest!(quick_links_other_names, |w: World| {
    let lines = [
        "linked ../alt/d/before => d/renamed",
        // `d/kept` is a name of it already.
        "copied ../alt/d/kept => d/copy",
    ];
    reuses(snapshot(&w), QUICK, &["-ai", "--link-dest=../alt"], &lines);
});

/// Compares with rsync, and checks which files came from where. An rsync sends no digests.
#[track_caller]
fn compares_snapshots(w: &World, options: &[&str], lines: &[&str]) {
    let lines = if w.route().is_stock() { &[] } else { lines };
    reuses(w, SAME, options, lines);
}

synctest!(same_content_is_linked, |w: World| {
    compares_snapshots(
        snapshot(&w),
        &["-ai", "--link-dest=../alt"],
        &[
            ALL_LINKED[0],
            ALL_LINKED[2],
            "copied ../alt/d/kept => d/copy",
        ],
    );
});

synctest!(same_content_with_other_times_is_copied, |w: World| {
    let w = snapshot(&w);
    w.tree("alt", RETIMED_DEST);
    for options in [
        ["-ai", "--link-dest=../alt"],
        ["-aic", "--link-dest=../alt"],
        ["-aiI", "--link-dest=../alt"],
        ["-ai", "--copy-dest=../alt"],
        ["-ai", "--compare-dest=../alt"],
    ] {
        let lines: &[&str] = if options[0] == "-aiI" {
            &[]
        } else {
            &ALL_COPIED_FROM_ALT
        };
        compares_snapshots(w, &options, lines);
        w.restore_dest();
    }
});

synctest!(other_owners_are_copied, as root, |w: World| {
    let w = snapshot(&w);
    w.build("alt", |tree| {
        tree.file("p/c2", "owned").owner(7, 8).mtime(50);
    });
    w.build("src", |tree| {
        tree.file("q/c2", "owned").mtime(50);
    });
    let link = "--link-dest=../alt";
    for options in [["-ai", link], ["-rltpi", link]] {
        reuses(w, MOVED, &options, &["copied ../alt/p/c2 => q/c2"]);
        w.restore_dest();
    }
});

synctest!(other_attributes_are_copied, |w: World| {
    let w = snapshot(&w);
    w.needs_xattrs();
    // A dry run of rsync cannot copy the attributes of directories.
    w.no_dry_run();
    w.build("alt", |tree| {
        tree.file("p/c2", "attributes")
            .mtime(50)
            .xattr("user.a", "1");
        tree.file("p/c3", "attributes")
            .mtime(51)
            .xattr("user.a", "1");
    });
    w.build("src", |tree| {
        tree.file("q/c2", "attributes")
            .mtime(50)
            .xattr("user.a", "2");
        tree.file("q/c3", "attributes")
            .mtime(51)
            .xattr("user.a", "1");
    });
    let lines = ["copied ../alt/p/c2 => q/c2", "linked ../alt/p/c3 => q/c3"];
    reuses(w, MOVED, &["-aiX", "--link-dest=../alt"], &lines);
    w.restore_dest();
    let lines = ["copied ../alt/p/c2 => q/c2", "copied ../alt/p/c3 => q/c3"];
    reuses(w, MOVED, &["-ai", "--link-dest=../alt"], &lines);
});

// A file that an earlier one with its name could be the basis of.
synctest!(rotated_logs_are_linked, |w: World| {
    let w = snapshot(&w);
    w.source("log.1=newest_line@90 log.2=older_line@80")
        .tree("alt", "log.1=older_line@80 log.2=oldest@70");
    let lines = ["linked ../alt/log.1 => log.2"];
    reuses(w, QUICK, &["-ai", "--link-dest=../alt"], &lines);
    w.restore_dest();
    w.dest("old/log.2=older_line@80");
    let options = ["-ai", "--delete", "--link-dest=../alt"];
    reuses(w, MOVED, &options, &["renamed old/log.2 => log.2"]);
});

synctest!(one_file_of_a_tree_gets_one_name, |w: World| {
    let w = snapshot(&w);
    w.source("e/c=gamma@7 f/c=gamma@7");
    let lines = [
        "linked ../alt/c => e/c",
        "copied ../alt/c => f/c",
        "copied ../alt/c => moved/c",
    ];
    reuses(w, MOVED, &["-ai", "--link-dest=../alt"], &lines);
});

synctest!(several_names_of_one_file_in_a_tree, |w: World| {
    let w = snapshot(&w);
    // The file gets a name at the destination by another of its names, `same/y`.
    w.source("same/y=gamma@7")
        .tree("alt", "same/y==c old/other==old/a");
    let lines = ["linked ../alt/old/a => new/a", "copied ../alt/c => moved/c"];
    for options in [
        ["-ai", "--link-dest=../alt"],
        ["-aiH", "--link-dest=../alt"],
    ] {
        reuses(w, MOVED, &options, &lines);
        w.restore_dest();
    }
});

synctest!(names_at_the_destination_prevent_links, |w: World| {
    let w = snapshot(&w);
    // As after an interrupted run, and of an entry that only the destination has.
    w.source("again/c=gamma@7").dest("again/");
    w.change(|top| {
        let link = |old: &str, new: &str| {
            std::fs::hard_link(top.join(old), top.join(new)).expect("a file can get another name");
        };
        link("alt/c", "dst/again/c");
        std::fs::create_dir(top.join("dst/protected")).expect("scratch can be written");
        link("alt/old/a", "dst/protected/not-a");
    });
    let options = [
        "-ai",
        "--delete",
        "--filter=P protected",
        "--link-dest=../alt",
    ];
    // `restore_dest` would separate the names.
    w.agree_beside(&[MOVED], &options);
});

synctest!(new_hard_links_are_not_linked, |w: World| {
    let w = snapshot(&w);
    w.source("h/c=gamma@7 h/b==h/c");
    let lines = ["copied ../alt/c => h/c", "linked ../alt/c => moved/c"];
    reuses(w, MOVED, &["-aiH", "--link-dest=../alt"], &lines);
});

synctest!(several_trees, |w: World| {
    let w = snapshot(&w);
    w.tree("older", "x/c=gamma@7 old/a=alpha y/z=delta@9");
    let options = ["-ai", "--link-dest=../alt", "--link-dest=../older"];
    let lines = [
        ALL_LINKED[0],
        ALL_LINKED[2],
        "linked ../alt/d/before => d/renamed",
    ];
    reuses(w, QUICK, &options, &lines);
    w.restore_dest();
    let options = ["-ai", "--link-dest=../none", "--link-dest=../alt"];
    w.agree_beside(&[MOVED], &options);
});

synctest!(destination_comes_first, |w: World| {
    let w = snapshot(&w);
    w.dest("old/a=alpha c=gamma@7");
    let options = ["-ai", "--delete", "--filter=P c", "--copy-dest=../alt"];
    let lines = [
        "renamed old/a => new/a",
        "copied c => moved/c",
        "copied ../alt/old/sub/b => new/sub/b",
    ];
    reuses(w, MOVED, &options, &lines);
});

synctest!(tree_that_holds_the_destination, |w: World| {
    let w = snapshot(&w);
    w.dest("old/a=alpha changed=before@-3 k=@1");
    for tree in ["--copy-dest=..", "--compare-dest=..", "--link-dest=.."] {
        for options in [&["-ai", "--delete", tree][..], &["-ai", tree, "--inplace"]] {
            w.keep_dest();
            w.agree_beside(&[MOVED], options);
            w.restore_dest();
        }
    }
});

synctest!(tree_below_the_destination, |w: World| {
    let w = snapshot(&w);
    w.dest(".old/old/a=alpha .old/c=gamma@7");
    for when in ["--delete-before", "--delete", "--delete-after"] {
        for tree in [
            "--copy-dest=.old",
            "--link-dest=.old",
            "--compare-dest=.old",
        ] {
            w.keep_dest();
            w.agree_beside(&[MOVED], &["-ai", when, tree]);
            w.restore_dest();
        }
    }
});

synctest!(parts_in_a_tree_are_no_twins, |w: World| {
    let w = snapshot(&w);
    w.source("part/q2=partial@78 part/r2=12345@79");
    w.tree("alt", ".~tmp~/q2=partial@78 x/l->c x/r2->12345");
    w.keep_dest();
    w.agree_beside(&[QUICK], &["-ai", "--link-dest=../alt"]);
    w.restore_dest();
    w.alone(&["-ai", "--link-dest=../alt", QUICK, "--info=rename"])
        .never_prints("=> part/");
});

synctest!(unreadable_trees, as user, |w: World| {
    let w = snapshot(&w);
    w.tree("alt", "old/a%0 d/%0");
    w.stderr_unordered();
    for tree in ["--copy-dest=../alt", "--link-dest=../alt"] {
        w.keep_dest();
        w.agree_beside(&[SAME], &["-ai", tree]);
        w.restore_dest();
    }
});

synctest!(sources_are_removed_after_links, |w: World| {
    let w = snapshot(&w);
    w.once();
    let options = ["-ai", "--remove-source-files", "--link-dest=../alt"];
    w.agree_beside(&[MOVED], &options);
});

synctest!(search_ends_at_a_limit, |w: World| {
    let w = snapshot(&w);
    w.only_local("the hook is set for the client");
    w.env("SPARSYNC_TWIN_ENTRIES", "3");
    w.keep_dest();
    let note =
        "sparsync: --detect-renamed has looked at a part of the files, because they are many";
    w.alone(&["-a", "--link-dest=../alt", MOVED, "--info=rename"])
        .exits(0)
        .prints(note)
        // It may be a name of a file that was not looked at.
        .never_prints("linked ");
    w.alone(&["-ai", "--delete"]).exits(0).never_prints("f+++");
    w.restore_dest();
    w.tree(
        "dst",
        "old/a=alpha old/sub/b=beta@5 old/1 old/2 old/3 old/4",
    );
    w.alone(&["-a", "--delete", MOVED]).exits(0).prints(note);
    w.alone(&["-ai", "--delete"]).exits(0).never_prints("f");
});

synctest!(search_is_bounded_in_directories_of_both_ends, |w: World| {
    w.only_local("the hook is set for the client");
    w.source("").dest("");
    w.env("SPARSYNC_TWIN_ENTRIES", "3");
    let note =
        "sparsync: --detect-renamed has looked at a part of the files, because they are many";
    let (new, old) = (
        "d/1=one d/2=two@5 d/3=three@6",
        "d/4=one d/5=two@5 d/6=three@6",
    );
    for (n, (source, dest, is_cut)) in [
        (new.to_owned(), old.to_owned(), false),
        (new.to_owned(), format!("{old} d/7=four d/8=five"), true),
        (format!("{new} d/9=two@5 e/f=one"), old.to_owned(), true),
    ]
    .into_iter()
    .enumerate()
    {
        let [source_dir, dest_dir] = ["source", "dest"].map(|it| format!("{it}{n}"));
        w.tree(&source_dir, &source).tree(&dest_dir, &dest);
        let paths = [&format!("{source_dir}/")[..], &format!("{dest_dir}/")];
        let options = ["-a", "--delete", QUICK, "--info=rename"];
        let ran = w.alone_paths(&options, &paths).exits(0);
        if is_cut {
            ran.prints(note);
        } else {
            ran.never_prints(note).prints("renamed d/6 => d/3");
        }
        w.alone_paths(&["-aic", "--delete"], &paths)
            .exits(0)
            .never_prints("f");
    }
});

synctest!(names_at_the_destination_are_bounded, |w: World| {
    w.only_local("the hook is set for the client");
    w.env("SPARSYNC_TWIN_ENTRIES", "3");
    let note =
        "sparsync: --detect-renamed has looked at a part of the files, because they are many";
    let kept = "d/1=11111@9 d/2=22222@10 d/3=33333@11";
    w.tree("alt", "c=gamma@7");
    w.source(kept).source("moved/c=gamma@7").dest(kept);
    w.keep_dest();
    for is_cut in [false, true] {
        if is_cut {
            w.restore_dest();
            w.source("d/4=44444@12").dest("d/4=44444@12");
        }
        let ran = w
            .alone(&["-a", "--link-dest=../alt", MOVED, "--info=rename"])
            .exits(0);
        if is_cut {
            ran.prints(note).prints("copied ../alt/c => moved/c");
        } else {
            ran.never_prints(note).prints("linked ../alt/c => moved/c");
        }
    }
});

// ── what prevents a rename ──────────────────────────────────────────────────────────────────────
moves!(backups, ["-aib", "--delete-after"], ALL_COPIED);
moves!(
    backup_dir,
    ["-ai", "--delete-delay", "--backup-dir=../bak"],
    ALL_COPIED
);
moves!(backups_during, ["-aib", "--delete"], [] as [&str; 0]);
synctest!(max_delete_during, |w: World| {
    let w = reorganised(&w);
    w.not_with_daemon("rsync's client does not learn that the limit was reached");
    reuses(
        w,
        MOVED,
        &["-ai", "--delete", "--max-delete=2"],
        &([] as [&str; 0]),
    );
});
synctest!(max_delete_at_the_end_used_up, |w: World| {
    let w = reorganised(&w);
    w.not_with_daemon("rsync's client does not learn that the limit was reached");
    reuses(
        w,
        MOVED,
        &["-ai", "--delete-delay", "--max-delete=2"],
        &([] as [&str; 0]),
    );
});
synctest!(no_deletion_at_all, |w: World| {
    let w = reorganised(&w);
    w.not_with_daemon("rsync's client does not learn that the limit was reached");
    reuses(
        w,
        MOVED,
        &["-ai", "--delete-delay", "--max-delete=0"],
        &ALL_COPIED,
    );
});

synctest!(few_files_without_delete, |w: World| {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("new/a=alpha b=beta@5")
        .dest("old/a=alpha old/deep/b=beta@5 c d e f g h new/x");
    // Nothing is taken from files that are not complete.
    w.dest(".~tmp~/a=alpha .~tmp~/%700");
    reuses(
        &w,
        MOVED,
        &["-ai"],
        &["copied old/a => new/a", "copied old/deep/b => b"],
    );
});

synctest!(progress_counts_each_file, |w: World| {
    reorganised(&w);
    w.alone(&["-a", "--delete", "--progress", MOVED])
        .prints("xfr#7, to-chk=0/13)");
});

synctest!(statistics_count_what_was_not_sent, |w: World| {
    reorganised(&w);
    w.alone(&["-a", "--delete", "--stats", MOVED])
        .prints("Number of files taken from other files: 3 (14 bytes)")
        .prints("Number of regular files transferred: 7")
        .prints("Total transferred file size: 35 bytes");
});

synctest!(without_times, |w: World| {
    let w = reorganised(&w);
    w.once();
    // The times of new files are those of the copy.
    reuses(
        w,
        MOVED,
        &["-rlpgoDi", "--delete"],
        &["copied old/a => new/a"],
    );
});

synctest!(quick_finds_other_names, |w: World| {
    let w = reorganised(&w);
    reuses(
        w,
        QUICK,
        &["-ai", "--delete"],
        &["renamed d/before => d/renamed", "copied d/kept => d/copy"],
    );
});

synctest!(protected_twin_is_copied, |w: World| {
    let w = reorganised(&w);
    let options = [
        "-ai",
        "--delete",
        "-fP_old/a",
        "--exclude=/c",
        "--filter=protect c",
    ];
    reuses(w, MOVED, &options[..2], &ALL_MOVED);
    w.restore_dest();
    reuses(
        w,
        MOVED,
        &["-ai", "--delete", "--filter=P old/a", "--filter=P /c"],
        &[
            "copied old/a => new/a",
            "renamed old/sub/b => new/sub/b",
            "copied c => moved/c",
        ],
    );
});

synctest!(hidden_source_leaves_its_twin_alone, |w: World| {
    let w = reorganised(&w);
    reuses(
        w,
        MOVED,
        &["-ai", "--delete", "--filter=H new/a", "--filter=H /moved"],
        &["renamed old/sub/b => new/sub/b"],
    );
});

synctest!(swapped_files, |w: World| {
    reorganised(&w);
    w.source("x=first@20 y=second@21")
        .dest("x=second@21 y=first@20");
    w.agree_beside(&[QUICK], &["-ai", "--delete"]);
});

synctest!(chain_of_names, |w: World| {
    reorganised(&w);
    w.source("n2=first@20 n3=second@21 n4=third@22")
        .dest("n1=first@20 n2=second@21 n3=third@22");
    w.agree_beside(&[QUICK], &["-ai", "--delete"]);
});

synctest!(two_heirs_of_one_twin, |w: World| {
    let w = reorganised(&w);
    w.source("e/c=gamma@7 f/c=gamma@7");
    reuses(
        w,
        MOVED,
        &["-ai", "--delete"],
        &["renamed c => e/c", "copied c => f/c", "copied c => moved/c"],
    );
});

synctest!(heirs_that_are_hard_links, |w: World| {
    let w = reorganised(&w);
    w.source("h/c=gamma@7 h/b==h/c");
    reuses(
        w,
        MOVED,
        &["-aiH", "--delete"],
        &["copied c => h/c", "renamed c => moved/c"],
    );
});

synctest!(twin_with_other_names, |w: World| {
    let w = reorganised(&w);
    w.dest("other==c");
    for options in [&["-ai", "--delete"][..], &["-aiH", "--delete"]] {
        reuses(
            w,
            MOVED,
            options,
            &["copied c => moved/c", "renamed old/a => new/a"],
        );
        w.restore_dest();
    }
});

synctest!(symlinks_are_no_twins, |w: World| {
    reorganised(&w);
    w.source("l/c=12345@77").dest("k/c->12345 m->old");
    w.agree_beside(&[MOVED], &["-ai", "--delete"]);
});

synctest!(sources_are_removed, |w: World| {
    let w = reorganised(&w);
    w.once();
    w.agree_beside(&[MOVED], &["-ai", "--delete", "--remove-source-files"]);
});

synctest!(twin_of_another_owner, as root, |w: World| {
    let w = reorganised(&w);
    w.build("dst", |tree| {
        tree.file("p/c2", "owned").owner(7, 8).mtime(50);
    });
    w.build("src", |tree| {
        tree.file("q/c2", "owned").mtime(50);
    });
    reuses(w, MOVED, &["-ai", "--delete"], &["renamed p/c2 => q/c2"]);
    w.restore_dest();
    reuses(w, MOVED, &["-rltpi", "--delete"], &["copied p/c2 => q/c2"]);
});

synctest!(attributes_of_a_twin_do_not_stay, |w: World| {
    let w = reorganised(&w);
    w.needs_xattrs();
    w.build("dst", |tree| {
        tree.file("p/c2", "attributes")
            .mtime(50)
            .xattr("user.old", "1");
    });
    w.build("src", |tree| {
        tree.file("q/c2", "attributes").mtime(50).mode(0o600);
        tree.file("r/c2", "attributes")
            .mtime(50)
            .xattr("user.new", "2");
    });
    for options in [
        &["-ai", "--delete"][..],
        &["-aiX", "--delete"],
        &["-ai", "--delete", "--delay-updates"],
    ] {
        reuses(
            w,
            MOVED,
            options,
            &["copied p/c2 => q/c2", "copied p/c2 => r/c2"],
        );
        w.restore_dest();
    }
});

synctest!(read_only_directories, as user, |w: World| {
    let w = reorganised(&w);
    w.source("ro/c3=readonly@70 ro/%555").dest("bo/c3=readonly@70 bo/%555");
    // Nothing can be removed from a directory that is not writable, unless it is to be deleted itself.
    reuses(w, MOVED, &["-ai", "--delete"], &["renamed bo/c3 => ro/c3"]);
});

synctest!(twin_in_a_read_only_directory_that_stays, as user, |w: World| {
    let w = reorganised(&w);
    w.source("ro/c3=readonly@70 bo/x bo/%555").dest("bo/c3=readonly@70 bo/x bo/%555");
    w.stderr_unordered();
    w.agree_beside(&[MOVED], &["-rltgoDi", "--delete"]);
});

synctest!(unreadable_directory_keeps_extra_files, as user, |w: World| {
    let w = reorganised(&w);
    w.not_with_stock("its whole list comes first, with the error");
    w.source("zz/in=1 zz/%0");
    for when in ["--delete-before", "--delete-during", "--delete-after"] {
        w.keep_dest();
        w.agree_beside(&[MOVED], &["-ai", when]);
        w.restore_dest();
    }
});

synctest!(alternates_come_first, |w: World| {
    let w = reorganised(&w);
    w.tree("alt", "new/a=alpha");
    for kind in [
        "--link-dest=../alt",
        "--copy-dest=../alt",
        "--compare-dest=../alt",
    ] {
        reuses(
            w,
            MOVED,
            &["-ai", "--delete", kind],
            &["renamed c => moved/c"],
        );
        w.restore_dest();
    }
});

synctest!(twins_on_another_file_system_are_copied, as root, |w: World| {
    let w = reorganised(&w);
    w.dest("old/m/").mount_tmpfs("dst/old/m", 1 << 20);
    w.dest("old/m/c5=mounted@60").source("moved/c5=mounted@60");
    let lines = ["copied old/m/c5 => moved/c5", "renamed c => moved/c"];
    w.alone(&["-a", "--delete", "-x", MOVED, "--info=rename"])
        .exits(0)
        .prints(lines[0])
        .prints(lines[1]);
    w.alone(&["-aic", "--delete", "-x"]).exits(0).never_prints("f");
});

synctest!(file_in_the_way_of_a_directory_is_no_twin, |w: World| {
    reorganised(&w);
    w.source("way/way=road@30").dest("way=road@30");
    w.agree_beside(&[MOVED], &["-ai", "--delete"]);
});

synctest!(default_acl_of_the_new_directory, as root, |w: World| {
    let w = reorganised(&w);
    w.needs_acls();
    let acl = [Acl::Owner(7), Acl::User(7, 7), Acl::OwnGroup(5), Acl::Mask(7), Acl::Other(5)];
    w.build("dst", |tree| {
        tree.dir("acl").default_acl(&acl);
        tree.file("p/c4", "acl").mtime(50);
    });
    w.build("src", |tree| {
        tree.file("acl/c4", "acl").mtime(50);
    });
    reuses(w, MOVED, &["-ai", "--delete"], &["copied p/c4 => acl/c4"]);
});

// ── full disks ──────────────────────────────────────────────────────────────────────────────────

synctest!(no_room_for_copies, as root, |w: World| {
    w.not_pushed_to_stock("an rsync cannot receive")
        .not_served("an rsync has no such option");
    w.source("new/a*600000@5 old/a*600000@5 small").dest("");
    w.mount_tmpfs("dst", 1 << 20);
    w.dest("old/a*600000@5");
    w.alone(&["-ai", MOVED]).exits(11).warns("No space left on device (28)");
    // The old file is still complete, and the new one does not exist.
    w.alone_paths(&["-aicn"], &["src/old/", "dst/old/"]).exits(0).never_prints("f");
    w.alone_paths(&["-ain"], &["src/new/", "dst/new/"]).exits(0).prints("f+++++++++ a");
});

// ── a daemon ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn twins_that_a_daemon_hides_are_not_used() {
    for (module, is_hidden) in [
        ("", false),
        ("exclude = /old/a", true),
        ("filter = - /old/***", true),
    ] {
        let scene = Scene::empty();
        let is_root = rustix::process::geteuid().is_root();
        let owner = if is_root { "uid = 0\ngid = 0\n" } else { "" };
        scene.daemon_config(&format!(
            "use chroot = no\nlog file = /dev/null\n{owner}[m]\npath = TOP/mod\nread only = no\n{module}\n"
        ));
        write(&scene.path("src/new/a"), "alpha", 2);
        write(&scene.path("mod/old/a"), "alpha", 2);
        let push = |own: &[&str]| {
            scene
                .program(oracle::under_test())
                .args(["-a", "--delete", "--info=rename"])
                .args(own)
                .args(["src/", "rsync://localhost/m/"])
                .env(
                    "RSYNC_CONNECT_PROG",
                    scene.daemon_command(oracle::under_test()),
                )
                .output()
                .expect("the program can be started")
        };
        let output = push(&[MOVED]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        if !is_hidden {
            assert!(output.status.success(), "{output:?}");
            assert!(stdout.contains("renamed old/a => new/a"), "{output:?}");
            continue;
        }
        // Modules with filters speak rsync's protocol, in which there are no twins: nothing is changed.
        assert_eq!(output.status.code(), Some(4), "{module}: {output:?}");
        assert!(scene.path("mod/old/a").exists() && !scene.path("mod/new").exists());
        assert!(push(&[]).status.success(), "{module}");
        assert!(scene.path("mod/old/a").exists() && scene.path("mod/new/a").exists());
    }
}

// ── kills and errors ────────────────────────────────────────────────────────────────────────────

/// Everything that is renamed in [`kills_lose_nothing`].
pub fn build(top: &Path) {
    write(&top.join("src/new/a"), "alpha", 2);
    write(&top.join("src/new/deep/b"), "beta and more", 3);
    write(&top.join("src/d/c"), "gamma", 4);
    write(&top.join("src/d/copy"), "kept", 5);
    write(&top.join("src/kept"), "kept", 5);
    write(&top.join("src/fresh"), "fresh", 6);
    write(&top.join("src/twice/1"), "twice", 8);
    write(&top.join("src/twice/2"), "twice", 9);
    write(&top.join("src/changed"), "changed now", 7);
    write(&top.join("dst/old/a"), "alpha", 2);
    write(&top.join("dst/old/deep/b"), "beta and more", 3);
    write(&top.join("dst/before"), "gamma", 4);
    write(&top.join("dst/kept"), "kept", 5);
    write(&top.join("dst/changed"), "before", 1);
    write(&top.join("dst/extra"), "extra", 1);
}

/// A snapshot beside an earlier one, from which it takes what was renamed.
pub fn build_snapshot(top: &Path) {
    build(top);
    std::fs::rename(top.join("dst"), top.join("alt")).expect("scratch can be written");
    write(&top.join("dst/kept"), "kept", 5);
}

/// Runs rsync and the program under test, which fails or is killed at each call of a sample, as `hook` says. No content that
/// both trees have may be lost, and the next run must finish the job.
#[track_caller]
fn nothing_is_lost(hook: &str, suffix: &str, own: &str, options: &[&str]) {
    nothing_is_lost_of((build, false), (hook, suffix), own, options);
}

/// Does that for trees that `build` makes. If `may_be_held`, content that has a temporary name is not lost.
#[track_caller]
pub fn nothing_is_lost_of(
    (build, may_be_held): (fn(&Path), bool),
    (hook, suffix): (&str, &str),
    own: &str,
    options: &[&str],
) {
    let trees = Trees {
        options: &[],
        build,
        backups: &[],
    };
    let twin = Stage::new(&trees);
    assert_eq!(twin.run_program(oracle::rsync(), options, &[]).exit, 0);
    let wanted = twin.snapshot_without_links_between();
    let own = [options, &[own]].concat();
    for n in calls_with_faults(&format!("{own:?} {suffix}")) {
        let stage = Stage::new(&trees);
        let before = contents(&stage.top.join("dst"), may_be_held);
        let needed = contents(&stage.top.join("src"), may_be_held);
        // Each failure is logged, so a run without one has no further call.
        let log = stage.top.with_extension("log");
        let hooks = [
            (hook, format!("{n}{suffix}")),
            ("SPARSYNC_FAULT_LOG", log.display().to_string()),
        ];
        let broken = stage.run_program(oracle::under_test(), &own, &hooks);
        let is_over = broken.exit == 0 && std::fs::remove_file(&log).is_err();
        let shown = format!(
            "{own:?}, {hook}={n}{suffix}: {}: {}",
            broken.exit,
            broken.stderr.escape_ascii()
        );
        if broken.exit == 0 {
            assert_eq!(
                diff::trees(&wanted, &stage.snapshot_without_links_between()),
                None,
                "{shown}"
            );
        }
        let after = contents(&stage.top.join("dst"), may_be_held);
        // What a directory or a file needs that cannot be listed is not known.
        let stderr = String::from_utf8_lossy(&broken.stderr);
        let is_listed = !["opendir", "[sender] ", "failed to stat"]
            .iter()
            .any(|words| stderr.contains(words));
        for content in before.intersection(&needed).filter(|_| is_listed) {
            assert!(
                after.contains(content),
                "{} is lost: {shown}",
                content.escape_ascii()
            );
        }
        let next = stage.run_program(oracle::under_test(), &own, &[]);
        assert_eq!(
            next.exit,
            0,
            "{shown}, then: {}",
            next.stderr.escape_ascii()
        );
        assert_eq!(
            diff::trees(&wanted, &stage.snapshot_without_links_between()),
            None,
            "{shown}, run again"
        );
        if is_over {
            return;
        }
    }
}

/// Returns the contents of all files, and of those with temporary names if `with_temps`.
pub fn contents(top: &Path, with_temps: bool) -> BTreeSet<Vec<u8>> {
    let is_counted = |path: &Path| {
        let name = path.file_name().expect("a file has a name");
        with_temps || !is_temp(&name.to_string_lossy())
    };
    let found = files(top).into_iter();
    let counted = found.filter(|(path, _)| is_counted(path));
    counted.map(|(_, content)| content).collect()
}

#[test]
fn kills_lose_nothing() {
    for options in [
        &["-a", "--delete"][..],
        &["-a", "--delete-after"],
        &["-a", "--delete", "--delay-updates"],
        &["-a", "--delete", "--inplace"],
        &["-a"],
    ] {
        for own in [QUICK, SAME] {
            nothing_is_lost("SPARSYNC_KILL_AT", "", own, options);
        }
    }
}

#[test]
fn errors_lose_nothing() {
    for error in [":EIO", ":ENOSPC", ":EACCES"] {
        for own in [QUICK, SAME] {
            nothing_is_lost("SPARSYNC_FAIL_AT", error, own, &["-a", "--delete"]);
        }
    }
}

#[test]
fn kills_and_errors_lose_nothing_of_snapshots() {
    for tree in ["--link-dest=../alt", "--copy-dest=../alt"] {
        for (hook, suffix) in [("SPARSYNC_KILL_AT", ""), ("SPARSYNC_FAIL_AT", ":EIO")] {
            for own in [QUICK, SAME] {
                let trees = (build_snapshot as fn(&Path), false);
                nothing_is_lost_of(trees, (hook, suffix), own, &["-a", tree]);
            }
        }
    }
}
