//! Deletion: which entries are deleted, when, in which order, and which are kept.

use crate::kit::{Scene, World, assert_output, oracle, synctest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use std::path::Path;
use std::process::Output;

/// A destination with extra entries at every depth.
fn extra_entries(w: &World) {
    w.source("a m/b m/n/c z/d")
        .dest("a old m/b m/old m/n/old m/p/q/r m/p/s z/d x/y/z x/w b~ A");
}

/// Declares a case that mirrors onto [`extra_entries`].
macro_rules! mirrors {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            extra_entries(&w);
            w.agree(&["-ai", $($option),+]).exits(0).prints("*deleting   old");
        });
    };
}

synctest!(delete_keeps_excluded_files, |w: World| {
    w.source("keep a.o").dest("keep old b.o");
    w.agree(&["-ai", "--delete", "--exclude=*.o"])
        .prints("*deleting   old")
        .never_prints("b.o");
});

mirrors!(delete_removes_children_before_their_directory, ["--delete"]);
mirrors!(del_is_delete_during, ["--del"]);
mirrors!(delete_during_by_its_full_name, ["--delete-during"]);
mirrors!(
    delete_before_deletes_before_the_transfer,
    ["--delete-before"]
);
mirrors!(delete_delay_deletes_at_the_end, ["--delete-delay"]);
mirrors!(delete_after_deletes_at_the_end, ["--delete-after"]);
mirrors!(delete_excluded_alone_means_delete, ["--delete-excluded"]);
mirrors!(
    delete_without_incremental_recursion,
    ["--delete", "--no-inc-recursive"]
);
mirrors!(delete_with_prune_empty_dirs, ["--delete", "-m"]);
mirrors!(delete_with_delay_updates, ["--delete", "--delay-updates"]);
mirrors!(delete_with_v, ["--delete", "-v"]);

/// Declares a case whose partial directories are extra, and are removed when their files are placed, before the deletions.
macro_rules! partial_dirs_are_extra {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("d/f=12345678 e/f=12345678");
            w.dest("d/.p/f=1234 e/.p/f=1234 e/.p/other=1234");
            w.agree(&["-a", "--partial-dir=.p", "--delete-excluded", $($option),+]).exits(0);
        });
    };
}

partial_dirs_are_extra!(delete_delay_after_partial_dirs, ["--delete-delay"]);
partial_dirs_are_extra!(delete_after_partial_dirs, ["--delete-after"]);
partial_dirs_are_extra!(delete_before_partial_dirs, ["--delete-before"]);
partial_dirs_are_extra!(delete_during_partial_dirs, ["--delete-during"]);
partial_dirs_are_extra!(
    delete_delay_after_staged_partial_dirs,
    ["--delete-delay", "--delay-updates"]
);

synctest!(delete_as_root_and_as_user, as both, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete"]).exits(0);
});

synctest!(delete_prints_names_with_v, |w: World| {
    extra_entries(&w);
    w.agree(&["-av", "--delete"]).prints("deleting x/y/z\n");
});

synctest!(delete_is_silent_without_v, |w: World| {
    extra_entries(&w);
    w.agree(&["-a", "--delete"]).never_prints("x");
});

synctest!(delete_of_every_kind, as root, |w: World| {
    w.source("a").build("dst", |t| {
        t.text("f l->f p| d/ d/e h==f dangling->nowhere");
        t.char_device("null", 1, 3);
        t.block_device("loop", 7, 0);
        t.socket("sock");
    });
    w.agree(&["-ai", "--delete", "--stats"]).prints("Number of deleted files: 10 (reg: 3, dir: 1, link: 2, dev: 2, special: 2)");
});

synctest!(delete_does_not_follow_symlinks, |w: World| {
    w.source("a")
        .dest("l->../outside d/m->../../outside")
        .tree("outside", "precious");
    w.agree(&["-ai", "--delete"]).prints("*deleting   l");
});

synctest!(delete_without_recursion_exits_1, |w: World| {
    extra_entries(&w);
    w.once()
        .agree(&["-lpti", "--delete"])
        .exits(1)
        .warns("--delete does not work without --recursive (-r) or --dirs (-d).");
});

synctest!(delete_with_dirs_affects_only_the_top_level, |w: World| {
    extra_entries(&w);
    w.agree(&["-dti", "--delete"])
        .prints("*deleting   old")
        .never_prints("m/old");
});

synctest!(delete_keeps_entries_outside_the_sources, |w: World| {
    extra_entries(&w);
    w.agree_paths(&["-ai", "--delete"], &["src/m", "dst"])
        .prints("*deleting   m/old")
        .never_prints("   old");
});

synctest!(a_single_file_deletes_nothing, |w: World| {
    extra_entries(&w);
    w.agree_paths(&["-ai", "--delete"], &["src/a", "dst"])
        .never_prints("deleting");
});

synctest!(
    several_sources_delete_entries_missing_from_all,
    |w: World| {
        w.source("a d/x")
            .tree("more", "b d/y")
            .dest("a b c d/x d/y d/z");
        w.agree_paths(&["-ai", "--delete"], &["src/", "more/", "dst/"])
            .prints("*deleting   d/z");
    }
);

synctest!(relative_deletes_only_below_named_directories, |w: World| {
    w.source("m/n/c")
        .dest("src/old src/m/old src/m/n/old src/m/n/c");
    w.agree_paths(&["-aiR", "--delete"], &["src/m/n", "dst"])
        .prints("*deleting   src/m/n/old")
        .never_prints("m/old\n*");
});

synctest!(max_delete_stops_and_exits_25, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete", "--max-delete=3"])
        .exits(25)
        .warns("Deletions stopped due to --max-delete limit");
});

synctest!(max_delete_0_deletes_nothing_and_exits_25, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete", "--max-delete=0"]).exits(25);
});

synctest!(max_delete_above_the_number_of_deletions, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete", "--max-delete=100"]).exits(0);
});

synctest!(max_delete_minus_1_means_zero, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete", "--max-delete=-1"]);
});

synctest!(max_delete_with_delete_before, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete-before", "--max-delete=2"])
        .exits(25);
});

synctest!(max_delete_with_delete_after, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete-after", "--max-delete=2"])
        .exits(25);
});

synctest!(max_delete_with_delete_delay, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete-delay", "--max-delete=2"])
        .exits(25);
});

synctest!(max_delete_without_delete_has_no_effect, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--max-delete=0"]).exits(0);
});

synctest!(a_directory_with_protected_content_stays, |w: World| {
    w.source("a").dest("a gone/x gone/y.o gone/in/z.o");
    w.agree(&["-ai", "--delete", "--exclude=*.o"])
        .exits(0)
        .prints("cannot delete non-empty directory: gone");
});

synctest!(
    a_directory_with_protected_content_stays_when_quiet,
    |w: World| {
        w.source("a").dest("a gone/x gone/y.o");
        w.agree(&["-a", "--delete", "--exclude=*.o"])
            .exits(0)
            .prints("cannot delete non-empty directory: gone");
    }
);

synctest!(protected_content_with_delete_delay, |w: World| {
    w.source("a").dest("a gone/x gone/y.o gone/in/z.o");
    w.agree(&["-ai", "--delete-delay", "--exclude=*.o"])
        .exits(0)
        .prints("cannot delete non-empty directory: gone");
});

synctest!(unreadable_source_directory_disables_deletion, as user, |w: World| {
    w.source("a closed/x open/y").dest("a old open/old closed/x closed/old");
    w.build("src", |t| drop(t.dir("closed").mode(0o000)));
    w.agree(&["-ai", "--delete"]).exits(23).prints("IO error encountered -- skipping file deletion");
});

synctest!(ignore_errors_deletes_despite_io_errors, as user, |w: World| {
    w.source("a closed/x open/y").dest("a old open/old closed/x closed/old");
    w.build("src", |t| drop(t.dir("closed").mode(0o000)));
    w.agree(&["-ai", "--delete", "--ignore-errors"]).exits(23).prints("*deleting   old");
});

synctest!(an_unreadable_source_file_does_not_stop_deletion, as user, |w: World| {
    w.source("a b").dest("old").build("src", |t| drop(t.file("shut", "x").mode(0)));
    w.agree(&["-ai", "--delete"]).exits(23).prints("*deleting   old");
});

synctest!(unreadable_source_file_disables_delete_after, as user, |w: World| {
    for (option, expected) in [
        ("--delete-after", "IO error encountered -- skipping file deletion"),
        ("--delete-before", "*deleting   d/old"),
    ] {
        w.source("a d/b").dest("old d/old").build("src", |t| drop(t.file("shut", "x").mode(0)));
        w.stderr_unordered().once().agree(&["-ai", option]).exits(23).prints(expected);
    }
    w.agree(&["-ai", "--delete-after", "--ignore-errors"]).exits(23).never_prints("IO error");
});

synctest!(unreadable_source_file_does_not_disable_delete_delay, as user, |w: World| {
    let reason = "`d` may be listed after the error";
    w.not_pushed_to_stock(reason).not_served_pull(reason);
    w.source("a d/b").dest("old d/old").build("src", |t| drop(t.file("shut", "x").mode(0)));
    w.stderr_unordered().once().agree(&["-ai", "--delete-delay"]).exits(23).prints("*deleting   d/old");
});

macro_rules! meets_a_closed_dir_before_the_copy {
    ($name:ident, $mode:expr, $option:expr) => {
        synctest!($name, as user, |w: World| {
            w.source("d/a e/a").dest("x d/x e/x").build("dst", |t| drop(t.dir("d").mode($mode)));
            w.agree(&["-rpi", $option]).exits(23);
        });
    };
}
meets_a_closed_dir_before_the_copy!(
    a_directory_that_cannot_be_listed_before_stops_deletion,
    0o311,
    "--delete-before"
);
meets_a_closed_dir_before_the_copy!(
    a_directory_that_cannot_be_entered_before_stops_deletion,
    0,
    "--delete-before"
);
synctest!(errors_may_be_ignored_before_the_copy, as user, |w: World| {
    w.source("d/a e/a").dest("x d/x e/x").build("dst", |t| drop(t.dir("d").mode(0o311)));
    w.agree(&["-rpi", "--delete-before", "--ignore-errors"]).exits(23);
});

macro_rules! has_an_inaccessible_dir {
    ($name:ident, $option:expr) => {
        synctest!($name, as user, |w: World| {
            w.source("a d/e/f").dest("a x d/x d/e/y z/closed/f").build("dst", |t| drop(t.dir("z/closed").mode(0)));
            w.stderr_unordered().agree(&["-ai", $option]).exits(23);
        });
    };
}

has_an_inaccessible_dir!(
    inaccessible_extra_directory_stops_deletion_in_others,
    "--delete"
);
has_an_inaccessible_dir!(
    inaccessible_extra_directory_with_delete_before,
    "--delete-before"
);
has_an_inaccessible_dir!(
    inaccessible_extra_directory_with_delete_after,
    "--delete-after"
);
has_an_inaccessible_dir!(
    inaccessible_extra_directory_with_delete_delay,
    "--delete-delay"
);

synctest!(a_missing_argument_does_not_stop_deletion, |w: World| {
    w.source("a").dest("a old");
    w.agree_paths(&["-ai", "--delete"], &["src/", "nowhere", "dst/"])
        .exits(23)
        .prints("*deleting   old");
});

synctest!(ignore_missing_args_is_no_error, |w: World| {
    w.source("a").dest("a old");
    w.agree_paths(
        &["-ai", "--ignore-missing-args"],
        &["src/a", "src/nowhere", "dst/"],
    )
    .exits(0);
});

synctest!(delete_missing_args_deletes_them, |w: World| {
    w.source("a").dest("a gone old");
    w.agree_paths(
        &["-ai", "--delete-missing-args"],
        &["src/a", "src/gone", "dst/"],
    )
    .exits(0)
    .prints("*deleting   gone");
});

/// Missing arguments before, after and between existing ones, and extra entries.
fn missing_among_others(w: &World) {
    w.source("b k d/x e/y")
        .dest("a c d/gone d/x l zd/sub/f m extra e/q none/x");
    w.file(
        "list",
        "a\nb\nc\nd/gone\nd/x\nk\nl\nzd\ne\nm\nnever\nnone/x\nzz/y\n",
    );
}

macro_rules! deletes_missing_args {
    ($name:ident, [$($option:expr),*]) => {
        synctest!($name, |w: World| {
            missing_among_others(&w);
            w.agree(&["-ai", "--delete-missing-args", "--files-from=list", $($option),*]);
        });
    };
}

deletes_missing_args!(missing_arguments_in_list_order, []);
deletes_missing_args!(missing_arguments_of_a_whole_tree, ["-r"]);
synctest!(missing_arguments_with_vv, |w: World| {
    missing_among_others(&w);
    // No names in missing directories: rsync reports those as vanished, after an empty line.
    w.file("list", "a\nb\nc\nd/gone\nd/x\nk\nl\nzd\ne\nm\nnever\n");
    w.once()
        .agree(&["-avv", "--delete-missing-args", "--files-from=list"])
        .exits(0);
});
deletes_missing_args!(missing_arguments_with_force, ["--force"]);
deletes_missing_args!(missing_arguments_with_backups, ["-b"]);
deletes_missing_args!(missing_arguments_and_extras, ["-r", "--delete"]);
deletes_missing_args!(missing_arguments_after_extras, ["-r", "--delete-before"]);
deletes_missing_args!(
    missing_arguments_before_extras,
    ["-r", "--delete-after", "--max-delete=4"]
);
deletes_missing_args!(missing_arguments_and_a_limit, ["--max-delete=3"]);
deletes_missing_args!(
    missing_arguments_and_extras_share_a_limit,
    ["-r", "--delete-during", "--max-delete=5"]
);
synctest!(missing_arguments_in_a_listing, |w: World| {
    w.not_served_push("lists no missing arguments");
    missing_among_others(&w);
    w.agree(&[
        "-ai",
        "--delete-missing-args",
        "--files-from=list",
        "--list-only",
    ]);
});

synctest!(name_from_another_argument_is_not_missing, |w: World| {
    w.source("a b").tree("other", "x").dest("a b gone");
    let operands = ["src/", "other/a", "other/gone", "other/b", "dst/"];
    w.agree_paths(&["-ai", "--delete-missing-args"], &operands)
        .exits(0)
        .prints("*deleting   gone");
});

synctest!(delete_missing_args_keeps_a_full_directory, |w: World| {
    w.source("a").dest("a gone/x empty/");
    w.agree_paths(
        &["-ai", "--delete-missing-args"],
        &["src/a", "src/gone", "src/empty", "dst/"],
    );
});

synctest!(
    delete_missing_args_with_force_deletes_a_full_directory,
    |w: World| {
        w.source("a").dest("a gone/x");
        w.agree_paths(
            &["-ai", "--delete-missing-args", "--force"],
            &["src/a", "src/gone", "dst/"],
        )
        .prints("deleting   gone");
    }
);

synctest!(full_directory_is_not_replaced_without_force, |w: World| {
    w.source("a b").dest("a/x");
    w.agree(&["-ai"]).exits(23).warns("could not make way for");
});

synctest!(read_only_directory_is_not_replaced, as user, |w: World| {
    w.source("d->t e->t").dest("d/%555 d/x e/ e/f/%555 e/f/x");
    for options in [&["-ai"][..], &["-ai", "--force"], &["-ai", "--delete"]] {
        w.stderr_unordered().agree(options);
    }
});

synctest!(a_source_directory_that_cannot_be_searched_stops_deletions, as user, |w: World| {
    w.source("a empty/%444 full/%644 full/b.o z/%600 z/n/").dest("a old empty/x full/b full/old z/n/x");
    for options in [
        &["-rt", "--exclude=*.o", "--exclude=n/", "--delete"][..],
        &["-rt", "--exclude=*.o", "--delete-before"],
        &["-rt", "--delete-after"],
        &["-rt", "--include=*/", "--exclude=*", "--delete-excluded"],
        &["-d", "--delete"],
        &["-rt", "--exclude=*.o", "--delete", "--ignore-errors"],
    ] {
        w.stderr_unordered().agree(options);
    }
});

// rsync has noted deletions before it meets the directory. It carries them out; a local copy of sparsync does not.
synctest!(delete_delay_deletes_nothing_after_a_source_error, as user, |w: World| {
    w.only_local("over a connection, sparsync has noted the same deletions");
    w.source("a closed/%000 open/b").dest("a old closed/x open/old");
    let run = w.alone(&["-rti", "--delete-delay"]);
    run.exits(23).never_prints("*deleting");
});

synctest!(read_only_directory_is_replaced_by_a_file, as user, |w: World| {
    w.source("a b h==b")
        .dest("a/%555 a/x a/y/%500 a/y/z h/%555 h/");
    for options in [
        &["-ai"][..],
        &["-ai", "--delete", "--exclude=x"],
        &["-aiH", "--delete", "--max-delete=0"],
        &["-aib", "--force", "--backup-dir=../old"],
        &["-aiH", "--delete"],
    ] {
        w.stderr_unordered().agree(options);
    }
});

synctest!(an_empty_directory_is_replaced_by_a_file, |w: World| {
    w.source("a b").dest("a/");
    w.agree(&["-ai"]).exits(0);
});

synctest!(force_replaces_a_full_directory_by_a_file, |w: World| {
    w.source("a b").dest("a/x a/y/z");
    w.agree(&["-ai", "--force"]).exits(0).prints("a/y/z");
});

synctest!(delete_replaces_a_full_directory_by_a_file, |w: World| {
    w.source("a b").dest("a/x a/y/z");
    w.agree(&["-ai", "--delete"]).exits(0);
});

synctest!(a_full_directory_is_replaced_by_a_symlink, |w: World| {
    w.source("a->b b").dest("a/x a/y/z");
    w.agree(&["-ai", "--delete"]).exits(0);
});

synctest!(
    full_directory_with_protected_files_is_not_replaced,
    |w: World| {
        w.source("a b").dest("a/x a/y.o");
        w.agree(&["-ai", "--delete", "--exclude=*.o"]).exits(23);
    }
);

synctest!(a_file_is_replaced_by_a_directory, |w: World| {
    w.source("a/x a/y/z").dest("a");
    w.agree(&["-ai"]).exits(0);
});

synctest!(a_symlink_is_replaced_by_a_directory, |w: World| {
    w.source("a/x")
        .dest("a->../outside")
        .tree("outside", "x=precious");
    w.agree(&["-ai"]).exits(0);
});

synctest!(file_types_replace_each_other, |w: World| {
    w.source("f l->f p| d/ s->d").dest("f->l l p->x d|  s/");
    w.agree(&["-ai"]).exits(0);
});

synctest!(existing_does_not_stop_deletion, |w: World| {
    extra_entries(&w);
    w.agree(&["-ai", "--delete", "--existing"])
        .prints("*deleting   old");
});

synctest!(deletions_are_counted_by_kind, |w: World| {
    extra_entries(&w);
    w.agree(&["-a", "--delete", "--stats"])
        .prints("Number of deleted files: 13 (reg: 9, dir: 4)");
});

synctest!(deletions_are_ordered_by_name_not_by_type, |w: World| {
    w.source("k")
        .dest("k b a/x c/y d e/ foo foo-bar/f foo.x foo0");
    w.agree(&["-ai", "--delete-before"]).prints("deleting");
});

synctest!(delete_is_printed_with_info_del, |w: World| {
    extra_entries(&w);
    w.agree(&["-a", "--delete", "--info=del"])
        .prints("deleting x/w");
});

/// Declares a case with an argument that does not exist, in addition to one with a tree.
macro_rules! has_a_missing_dir {
    ($name:ident, [$($option:expr),+ $(,)?], [$($operand:expr),+ $(,)?], $code:expr) => {
        synctest!($name, |w: World| {
            w.source("z/f z/k/ nodir").dest("XD f z/old");
            w.stderr_unordered().agree_paths(&["-ai", $($option),+], &[$($operand),+, "dst/"]).exits($code);
        });
    };
}

has_a_missing_dir!(
    a_missing_directory_stops_deletion,
    ["--delete"],
    ["src/nope/", "src/z/"],
    23
);
has_a_missing_dir!(
    missing_directory_stops_deletion_in_any_position,
    ["--delete-before"],
    ["src/z/", "src/nope/"],
    23
);
has_a_missing_dir!(
    a_missing_directory_stops_deletion_after,
    ["--delete-after"],
    ["src/z/", "src/nope/"],
    23
);
has_a_missing_dir!(
    a_file_with_a_slash_stops_deletion,
    ["--delete"],
    ["src/z/", "src/nodir/"],
    23
);
has_a_missing_dir!(
    a_name_in_a_file_stops_deletion,
    ["--delete"],
    ["src/z/", "src/nodir/f"],
    23
);
has_a_missing_dir!(
    a_name_in_a_missing_directory_stops_deletion,
    ["--delete-delay"],
    ["src/z/", "src/nope/XD"],
    23
);
has_a_missing_dir!(
    a_missing_name_does_not_stop_deletion,
    ["--delete"],
    ["src/z/", "src/XD"],
    23
);
has_a_missing_dir!(
    a_missing_base_stops_deletion,
    ["-R", "--delete"],
    ["src/./z/", "src/nope/./x"],
    23
);
has_a_missing_dir!(
    ignore_errors_deletes_after_a_missing_directory,
    ["--delete", "--ignore-errors"],
    ["src/z/", "src/nope/"],
    23
);
has_a_missing_dir!(
    a_missing_directory_is_not_ignored,
    ["--delete", "--ignore-missing-args"],
    ["src/z/", "src/nope/"],
    23
);
has_a_missing_dir!(
    a_name_in_a_file_is_not_ignored,
    ["--delete", "--ignore-missing-args"],
    ["src/z/", "src/nodir/f"],
    23
);
has_a_missing_dir!(
    a_name_in_a_missing_directory_is_not_ignored,
    ["--delete", "--ignore-missing-args"],
    ["src/z/", "src/nope/f"],
    23
);
has_a_missing_dir!(
    a_missing_name_is_ignored,
    ["--delete", "--ignore-missing-args"],
    ["src/z/", "src/XD"],
    0
);
has_a_missing_dir!(
    a_missing_directory_is_not_deleted,
    ["--delete-missing-args"],
    ["src/z/", "src/XD/"],
    23
);
has_a_missing_dir!(
    a_name_in_a_file_is_not_deleted,
    ["--delete-missing-args"],
    ["src/z/", "src/nodir/XD"],
    23
);
has_a_missing_dir!(
    a_name_in_a_missing_directory_is_not_deleted,
    ["--delete-missing-args"],
    ["src/z/", "src/nope/XD"],
    23
);
has_a_missing_dir!(
    a_missing_name_is_deleted,
    ["--delete-missing-args"],
    ["src/z/", "src/XD"],
    0
);

synctest!(
    skipped_deletion_is_reported_even_if_nothing_changes,
    |w: World| {
        w.source("d/f z/").dest("d/old d/f");
        for when in [
            "--delete",
            "--delete-delay",
            "--delete-before",
            "--delete-after",
        ] {
            // The second run finds everything up to date, except for the entries that it may not delete.
            w.stderr_unordered();
            w.agree_paths(&["-ai", when], &["src/nope/x", "src/", "dst/"])
                .exits(23)
                .prints("IO error encountered");
            w.agree_paths(&["-ai", when], &["src/nope/x", "src/d", "dst/"])
                .exits(23)
                .prints("IO error encountered");
        }
    }
);

macro_rules! has_untyped_entries {
    ($name:ident, $($option:expr),+) => {
        synctest!($name, |w: World| {
            // Makes debug builds of the program under test list names without types, as some file systems do.
            w.env("SPARSYNC_UNTYPED", "1");
            w.source("a d/b l->a x.o/in").dest("a=old old/sub/f gone l2->a d/old d/dir/ x.o=file");
            w.agree(&["-ai", $($option),+]).exits(0).prints("deleting   old/sub/f");
        });
    };
}

has_untyped_entries!(untyped_entries_are_checked_for_deletion, "--delete");
has_untyped_entries!(
    untyped_entries_are_checked_for_delete_before,
    "--delete-before"
);
has_untyped_entries!(
    untyped_entries_are_checked_for_delete_after,
    "--delete-after",
    "--exclude=d/dir/"
);
has_untyped_entries!(
    untyped_entries_are_checked_for_delete_delay,
    "--delete-delay"
);

synctest!(
    untyped_entries_are_checked_for_directory_excludes,
    |w: World| {
        w.env("SPARSYNC_UNTYPED", "1");
        w.source("d/one/f d/two/")
            .once()
            .agree_paths(&["-ai", "--exclude=*/*/"], &["src/d", "new/x"]);
        w.agree_paths(&["-ai", "--exclude=d/*/"], &["src/d", "new"])
            .exits(0);
    }
);

macro_rules! has_a_missing_arg {
    ($name:ident, [$($from:expr),+], $dest:expr, $code:expr) => {
        synctest!($name, |w: World| {
            w.source("f").dest("nope=old").file("file", "x").once();
            w.agree_paths(&["-rlv", "--delete-missing-args"], &[$($from,)+ $dest]).exits($code);
        });
    };
}

synctest!(
    missing_argument_creates_no_implied_directories,
    |w: World| {
        w.source("f d/").dest("old").once();
        let options = ["-aiR", "--delete-missing-args", "--no-implied-dirs"];
        w.agree_paths(&options, &["src/./nope/x", "src/./f", "dst/"])
            .exits(24);
    }
);

synctest!(
    missing_argument_in_a_directory_creates_no_implied_directories,
    |w: World| {
        let reason = "rsync warns, because the list lacks `src`";
        w.not_pushed_to_stock(reason).not_served_pull(reason);
        w.source("f d/").dest("old").once();
        let options = ["-aiR", "--delete-missing-args", "--no-implied-dirs"];
        w.agree_paths(&options, &["src/x", "src/./f", "dst/"])
            .exits(0);
    }
);

synctest!(missing_arguments_behind_other_entries, as both, |w: World| {
    let reason = "rsync warns, because the list lacks the directories";
    w.not_pushed_to_stock(reason).not_served_pull(reason);
    w.source("file/ fifo/ loop/ away/ closed/ link/").tree("other", "x");
    w.dest("file fifo| loop->loop away->../other closed/%000 closed/x link->real real/x").once();
    for dir in ["file", "fifo", "loop", "closed", "link", "away"] {
        if dir == "away" {
            w.not_with_daemon("rsync's daemon deletes behind a symlink that leads to another directory of the module");
        }
        let source = format!("src/./{dir}/x");
        w.agree_paths(&["-aiR", "--delete-missing-args", "--no-implied-dirs"], &[&source, "dst/"]).exits(0);
    }
});

synctest!(missing_arguments_that_rules_protect_stay, |w: World| {
    let delete = [
        "-ai",
        "--delete",
        "--delete-missing-args",
        "--files-from=list",
    ];
    w.source("d/.r=P_x").file("list", "x\nd/x\nd/dir\n").once();
    let agree = |rule: &str| {
        w.dest("x d/x d/dir/y d/dir/z d/.r=P_x");
        w.agree(&[&delete[..], &["--force", rule]].concat())
            .exits(0);
    };
    for rule in [
        "--filter=P x",
        "--filter=-r /d/x",
        "--filter=: .r",
        "--filter=P d/dir/y",
    ] {
        agree(rule);
    }
    w.not_pulled("rsync rejects a list with excluded names");
    agree("--filter=-s x");
});

synctest!(missing_arguments_below_missing_directories, |w: World| {
    w.source("b")
        .dest("gone/sub/q d/sub/q")
        .file("list", "d/sub/q\ngone/sub/q\ngone/sub/r\nb\n");
    w.once()
        .agree(&["-ai", "--delete-missing-args", "--files-from=list"])
        .exits(24);
});

has_a_missing_arg!(
    missing_argument_with_a_file_as_destination,
    ["src/nope"],
    "file",
    0
);
has_a_missing_arg!(
    missing_argument_creates_no_directory,
    ["src/nope"],
    "new",
    0
);
has_a_missing_arg!(
    missing_argument_creates_a_destination_with_a_slash,
    ["src/nope"],
    "new/",
    0
);
has_a_missing_arg!(
    missing_argument_needs_the_parent_of_the_destination,
    ["src/nope"],
    "nodir/new",
    3
);
has_a_missing_arg!(
    missing_argument_with_a_directory_as_destination,
    ["src/nope"],
    "dst",
    0
);
has_a_missing_arg!(
    missing_arguments_need_a_directory,
    ["src/nope", "src/nope2"],
    "file",
    3
);
has_a_missing_arg!(
    a_missing_argument_and_another,
    ["src/nope", "src/f"],
    "new",
    0
);

macro_rules! has_an_unreadable_dir {
    ($name:ident, $($option:expr),+) => {
        synctest!($name, |w: World| {
            w.source("a/b z/l->nowhere").dest("a/old old/x z/old");
            w.stderr_unordered().agree(&["-aiL", "--delete", $($option),+]).exits(23).prints("IO error");
        });
    };
}

has_an_unreadable_dir!(
    unreadable_directory_stops_deletion_with_no_inc_recursive,
    "--no-i-r"
);
has_an_unreadable_dir!(
    unreadable_directory_stops_deletion_with_delay_updates,
    "--delay-updates"
);

synctest!(protect_rule_is_reported_only_for_deletions, |w: World| {
    w.source("d/b").dest("a d/a");
    w.agree_paths(&["-avv", "--delete", "--filter=P a"], &["src/d", "dst"])
        .exits(0);
});

/// The depth of what is removed bounds the stack. rsync fails, too, because the path is too long.
#[test]
fn extra_directory_that_is_too_deep_stays() {
    let scene = Scene::new();
    scene.tree("src").text("a");
    scene.tree("dst").text("");
    make_levels(&scene.path("dst/extra"));
    for line in [
        "-r --delete src/ dst/",
        "-r --delete -e TOP/sh --rsync-path=PROGRAM src/ box:TOP/dst/",
    ] {
        let output = run(&scene, line);
        assert_output(
            &output,
            23,
            &[
                "failed: File name too long (36)",
                "cannot delete non-empty directory: extra\n",
            ],
        );
        assert!(scene.path("dst/a").exists() && scene.path("dst/extra").exists());
    }
    remove_levels(&scene.path("dst/extra"));
}

/// What one directory has too many levels of changes nothing about the next one.
#[test]
fn directory_in_the_way_that_is_too_deep_stays() {
    let scene = Scene::new();
    scene.tree("src").text("a/f b/f");
    scene.tree("dst").text("b/x/y/kept b/x/y/old");
    make_levels(&scene.path("dst/a/f"));
    let output = run(&scene, "-r --delete --force --filter=P_kept src/ dst/");
    let inner = "cannot delete non-empty directory: b/x/y\n";
    assert_output(&output, 23, &["failed: File name too long (36)", inner]);
    assert!(scene.path("dst/b/f").exists() && !scene.path("dst/b/x/y/old").exists());
    remove_levels(&scene.path("dst/a/f"));
}

/// So it does with older backups in the place of a new one.
#[test]
fn directory_of_backups_that_is_too_deep_stays() {
    let scene = Scene::new();
    scene.tree("src").text("x=new");
    scene.tree("dst").text("x=older bk/");
    make_levels(&scene.path("dst/bk/x"));
    let output = run(&scene, "-r -b --backup-dir=bk src/ dst/");
    assert_output(&output, 11, &["File name too long (36)"]);
    assert_eq!(
        std::fs::read(scene.path("dst/x")).expect("it stays"),
        b"older"
    );
    remove_levels(&scene.path("dst/bk/x"));
}

/// Runs a command line of sparsync, in which `PROGRAM` is sparsync and `TOP/sh` a remote shell.
pub fn run(scene: &Scene, line: &str) -> Output {
    let line = line.replace(
        "PROGRAM",
        oracle::under_test().to_str().expect("a usual path"),
    );
    scene.fake_shell("sh", "exec sh -c \"$*\"");
    scene
        .command("client", &line)
        .output()
        .expect("the program can be started")
}

/// Makes a directory with more levels than a stack has room for, if each takes a part of it.
pub fn make_levels(top: &Path) {
    const LEVELS: usize = 12_000;
    std::fs::create_dir_all(top).expect("scratch can be written");
    let mut dir = open_dir(CWD, top);
    for _ in 0..LEVELS {
        mkdirat(&dir, "d", Mode::RWXU).expect("scratch can be written");
        dir = open_dir(&dir, Path::new("d"));
    }
}

pub fn open_dir(at: impl AsFd, path: &Path) -> OwnedFd {
    openat(at, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("it exists")
}

/// Removes directories that are each the only entry of the one before, deepest first, without a stack or a long path: each is
/// moved beside the first one before the next is examined.
pub fn remove_levels(first: &Path) {
    let top = first.parent().expect("it has a parent").to_owned();
    let mut current = first.to_owned();
    let mut number = 0;
    while current.join("d").exists() {
        number += 1;
        let next = top.join(format!("level{number}"));
        std::fs::rename(current.join("d"), &next).expect("it can be moved");
        std::fs::remove_dir(&current).expect("it is empty");
        current = next;
    }
    std::fs::remove_dir(&current).expect("it is empty");
}
