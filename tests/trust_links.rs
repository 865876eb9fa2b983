//! Symlinks of other users in paths on the command line are not followed.
//!
//! A link that root creates belongs to root, so these cases run as root and change the owner of links. sparsync misses
//! the same links as rsync's path walk: it creates and checks directories through any link.

use crate::kit::{World, synctest};

/// A user that is neither root nor the user who runs the tests.
const STRANGER: u32 = 12345;
const LINE: &str = "refusing to follow a symlink owned by an untrusted user";

/// Creates a symlink that belongs to [`STRANGER`].
fn planted(w: &World, path: &str, target: &str) {
    w.needs_rsync("3.5.0");
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    w.build(dir, |t| {
        drop(t.symlink(name, target).owner(STRANGER, STRANGER))
    });
}

/// A source, an earlier copy of it, and an empty directory as a target for links.
fn scene(w: &World) {
    w.source("a d/b").tree("alt", "a d/b").tree("t", "");
}

// ── the destination ─────────────────────────────────────────────────────────────────────────────
macro_rules! destination {
    ($name:ident, [$($option:expr),+], $source:expr, $dest:expr, $exit:expr) => {
        synctest!($name, as root, |w: World| {
            scene(&w);
            planted(&w, "link", "t");
            planted(&w, "t/deep", "../alt");
            w.tree(".", "good->t");
            w.build("alt", |t| drop(t.symlink("good", "../link")));
            w.agree_paths(&[$($option),+], &[$source, $dest]).exits($exit).warns(LINE);
        });
    };
}

destination!(destination_that_is_a_link, ["-ai"], "src/", "link", 3);
destination!(
    destination_that_is_a_link_with_a_slash,
    ["-ai"],
    "src/",
    "link/",
    3
);
destination!(
    destination_that_is_a_link_absolute,
    ["-ai"],
    "src/",
    "{W}/link/",
    3
);
destination!(
    destination_that_is_a_link_for_a_directory,
    ["-ai"],
    "src",
    "link/",
    3
);
destination!(
    destination_that_is_a_link_for_a_file,
    ["-ai"],
    "src/a",
    "link/",
    3
);
destination!(destination_below_a_link, ["-ai"], "src/", "link/deep/", 3);
destination!(
    destination_whose_last_link_is_untrusted,
    ["-ai"],
    "src/",
    "good/deep/",
    3
);
destination!(
    destination_behind_a_trusted_link_to_an_untrusted_one,
    ["-ai"],
    "src/",
    "alt/good/",
    3
);
destination!(destination_name_below_a_link, ["-ai"], "src/a", "link/x", 3);
destination!(
    destination_that_is_a_link_with_keep_dirlinks,
    ["-aiK"],
    "src/",
    "link/",
    3
);

synctest!(destination_created_through_an_untrusted_link, as root, |w: World| {
    scene(&w);
    planted(&w, "link", "t");
    // A dry run creates nothing, so it enters nothing. With -i, rsync would print what it has created.
    w.no_dry_run().agree_paths(&["-a"], &["src/", "link/new/"]).exits(3).warns(LINE);
});

synctest!(destination_behind_trusted_links, as root, |w: World| {
    scene(&w);
    planted(&w, "unused", "t");
    w.tree(".", "good->t better->good");
    w.agree_paths(&["-ai"], &["src/", "better/"]).exits(0);
});

synctest!(destination_that_is_a_dangling_link_is_replaced, as root, |w: World| {
    scene(&w);
    planted(&w, "link", "nowhere");
    w.agree_paths(&["-ai"], &["src/a", "link"]).exits(0);
});

synctest!(source_operands_are_followed, as root, |w: World| {
    scene(&w);
    planted(&w, "link", "alt");
    planted(&w, "file", "alt/a");
    w.agree_paths(&["-ai"], &["link/", "dst/"]).exits(0).never_prints(LINE);
    w.agree_paths(&["-aiL"], &["file", "dst/"]).exits(0).never_prints(LINE);
});

synctest!(insecure_links_applies_only_to_the_end_that_gets_it, as root, |w: World| {
    scene(&w);
    planted(&w, "link", "t");
    // A remote receiver does not get the option, so it rejects the link.
    w.agree_paths(&["-ai", "--insecure-links"], &["src/", "link/"]);
});

// ── alternate trees ─────────────────────────────────────────────────────────────────────────────
macro_rules! alternate {
    ($name:ident, [$($option:expr),+]) => {
        synctest!($name, as root, |w: World| {
            scene(&w);
            planted(&w, "link", "alt");
            planted(&w, "gone", "nowhere");
            planted(&w, "file", "alt/a");
            w.dest("");
            w.agree(&["-ai", $($option),+]).exits(0).warns(LINE);
        });
    };
}

alternate!(link_dest_behind_a_link, ["--link-dest=../link"]);
alternate!(link_dest_behind_a_link_absolute, ["--link-dest={W}/link"]);
alternate!(link_dest_through_a_link, ["--link-dest=../link/d/.."]);
alternate!(copy_dest_behind_a_link, ["--copy-dest=../link"]);
alternate!(compare_dest_behind_a_link, ["--compare-dest=../link"]);
alternate!(
    link_dest_behind_a_link_after_another,
    ["--link-dest=../t", "--link-dest=../link"]
);
alternate!(
    link_dest_behind_a_link_that_dangles,
    ["--link-dest=../gone"]
);
alternate!(link_dest_behind_a_link_to_a_file, ["--link-dest=../file"]);

synctest!(untrusted_link_in_an_alternate_tree, as root, |w: World| {
    w.source("d/a=1 d/e/b=2 k/c").dest("").tree("t", "a=1 e/b=2").tree("alt", "k/c").stderr_unordered();
    planted(&w, "alt/d", "../t");
    for (option, dest) in [("--link-dest=../alt", "1"), ("--copy-dest=../alt", "2"), ("--compare-dest=../alt", "3")] {
        w.no_dry_run().agree_paths(&["-ai", option], &["src/", dest]).exits(0).warns(LINE).prints("d/e/b");
    }
    w.agree_paths(&["-ai", "--insecure-links", "--link-dest=../alt"], &["src/", "dst/"]).exits(0);
});

synctest!(link_dest_behind_an_untrusted_link, as root, |w: World| {
    scene(&w);
    planted(&w, "link", "alt");
    // In a dry run the destination does not exist, so the relative path has no starting point.
    w.no_dry_run().agree(&["-ai", "--link-dest=../link"]).exits(0).warns(LINE);
});

// ── temporary, backup and partial directories ───────────────────────────────────────────────────
macro_rules! placed {
    ($name:ident, [$($option:expr),+], $exit:expr) => {
        synctest!($name, as root, |w: World| {
            w.source("a").tree("t", "").dest("a=older");
            planted(&w, "link", "t");
            planted(&w, "dst/in", "../t");
            let agreed = w.no_dry_run().agree(&["-ai", $($option),+]).exits($exit);
            if $exit != 0 {
                agreed.warns("symbolic links");
            }
        });
    };
}

placed!(temp_dir_behind_a_link, ["--temp-dir={W}/link"], 23);
placed!(
    temp_dir_behind_a_link_in_the_destination,
    ["--temp-dir=in"],
    23
);
placed!(
    temp_dir_behind_a_link_with_inplace,
    ["--temp-dir={W}/link", "--inplace"],
    0
);
placed!(
    backup_dir_behind_a_link,
    ["-b", "--backup-dir={W}/link"],
    11
);
placed!(
    backup_dir_behind_a_link_by_a_relative_path,
    ["-b", "--backup-dir=../link"],
    11
);
placed!(partial_dir_behind_a_link, ["--partial-dir={W}/link"], 0);

synctest!(backup_dir_of_deletions_behind_an_untrusted_link, as root, |w: World| {
    w.not_pulled("rsync's line then ends in \"Success (0)\"");
    w.source("a").tree("t", "").dest("a gone");
    planted(&w, "link", "t");
    w.no_dry_run().agree(&["-ai", "--delete", "-b", "--backup-dir={W}/link"]).exits(23).warns(LINE);
});

synctest!(partial_dir_behind_an_untrusted_link_is_ignored, as root, |w: World| {
    w.not_with_stock("rsync reports the link, too").not_served_pull("rsync receives, and fails");
    w.source("a").tree("t", "a=a_part").dest("");
    planted(&w, "link", "t");
    // rsync finds the file there, does not open it, and fails ("got a block match with no basis file", exit 2).
    w.copies_all(&["-a", "--no-whole-file", "--partial-dir={W}/link"]);
    assert!(w.tested().join("t/a").exists(), "the file behind the link was taken for a partial file");
});

// ── files that options name ─────────────────────────────────────────────────────────────────────
macro_rules! named {
    ($name:ident, [$($option:expr),+], $exit:expr) => {
        synctest!($name, as root, |w: World| {
            scene(&w);
            w.file("list", "a\n").file("rules", "- b\n").file("outer", ". lrules\n");
            planted(&w, "llist", "list");
            planted(&w, "lrules", "rules");
            planted(&w, "gone", "nowhere");
            planted(&w, "ldir", ".");
            w.dest("").agree(&["-ai", $($option),+]).exits($exit).warns(LINE);
        });
    };
}

named!(files_from_behind_a_link, ["--files-from=llist"], 1);
named!(files_from_through_a_link, ["--files-from={W}/ldir/list"], 1);
named!(
    files_from_behind_a_link_that_dangles,
    ["--files-from=gone"],
    1
);
named!(exclude_from_behind_a_link, ["--exclude-from=lrules"], 11);
named!(
    include_from_through_a_link,
    ["--include-from=ldir/rules"],
    11
);
named!(merge_file_behind_a_link, ["--filter=. lrules"], 11);
named!(
    merge_file_in_a_merge_file_behind_a_link,
    ["--filter=. outer"],
    11
);
named!(log_file_behind_a_link, ["--log-file=llist"], 0);
named!(log_file_behind_a_link_that_dangles, ["--log-file=gone"], 0);

synctest!(option_files_behind_trusted_links, as root, |w: World| {
    scene(&w);
    w.needs_rsync("3.5.0").file("list", "a\nd/b\n").file("rules", "- b\n").tree(".", "ll->list lr->rules");
    w.dest("").agree(&["-ai", "--files-from=ll", "--exclude-from=lr"]).exits(0);
});

synctest!(merge_files_behind_an_untrusted_link, as root, |w: World| {
    scene(&w);
    w.file("rules", "- b\n").source("d/rules=-_b");
    planted(&w, "src/.rules", "../rules");
    planted(&w, "src/d/.rules", "rules");
    w.dest("").agree(&["-ai", "--filter=: .rules"]).exits(0).warns(LINE);
});

synctest!(merge_file_of_listed_names_behind_an_untrusted_link, as root, |w: World| {
    scene(&w);
    w.source("d/rules=-_b d/b d/c").file("list", "d/c\nd/b\n").dest("");
    planted(&w, "src/d/.rules", "rules");
    w.once().agree(&["-ai", "--filter=: .rules", "--files-from=list"]).exits(0).warns(LINE);
});

// ── the names in a list ─────────────────────────────────────────────────────────────────────────
/// Declares a case that copies each of these names by a list with the options.
macro_rules! listed {
    ($name:ident, [$($option:expr),*], $listed:expr) => {
        synctest!($name, as root, |w: World| {
            w.not_pulled_from_own_daemon("see docs/DIFFERENCES.md");
            w.source("a d/e/f d/g").tree("t", "x y/z");
            w.tree("src", "good->../t d/good->../../t");
            planted(&w, "src/l", "../t");
            planted(&w, "src/d/l", "../../t");
            planted(&w, "src/file", "../t/x");
            planted(&w, "t/back", "../src/d");
            w.dest("").keep_dest();
            for listed in $listed {
                w.file("list", &format!("a\n{listed}\nd/g\n"));
                w.restore_dest().stderr_unordered().agree(&["-ai", "--files-from=list", $($option),*]);
            }
        });
    };
}

/// Names that are symlinks, or that lead through symlinks of [`STRANGER`] or of root.
const LINKED_NAMES: [&str; 17] = [
    "l",
    "l/",
    "l/.",
    "l/x",
    "l/y/",
    "l/y/z",
    "d/l/x",
    "d/./l/x",
    "l/./y/z",
    "file",
    "file/",
    "good/",
    "good/x",
    "good/y/",
    "good/back/g",
    "d/good/x",
    "l/none",
];

listed!(names_behind_links, [], LINKED_NAMES);
listed!(names_behind_links_of_whole_trees, ["-r"], LINKED_NAMES);
listed!(
    names_behind_links_without_their_path,
    ["--no-R"],
    ["l/x", "l/y/", "d/l/x", "good/x"]
);
listed!(
    names_behind_links_that_are_followed,
    ["-L"],
    ["l/x", "l/y/", "d/l/x", "good/x"]
);
listed!(
    names_behind_links_to_directories_that_are_followed,
    ["-k"],
    ["l/x", "l/y/", "d/l/x", "good/x"]
);
listed!(
    names_behind_unsafe_links_that_are_followed,
    ["--copy-unsafe-links"],
    ["l/x", "l/y/", "d/l/x", "good/x"]
);
listed!(
    names_behind_links_are_permitted,
    ["--insecure-links"],
    ["l/x", "l/y/", "d/l/x", "good/x"]
);
