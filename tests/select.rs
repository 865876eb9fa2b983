//! Which entries take part, and when two files count as the same.

use crate::kit::{World, synctest};

/// Pairs that differ in every combination of size, time and content.
fn pairs(w: &World) {
    w.source(
        "same newer=x@50 older=x@-50 size=longer content=abc@0 both=longer@50 back=longer@-50 fresh d/in@50 d/fresh",
    );
    w.dest("same newer=x older=x size=short content=xyz both=short back=short d/in extra");
}

macro_rules! compares {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            pairs(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

compares!(size_and_time_decide, ["-ai"]);
compares!(update_skips_newer_files, ["-aiu"]);
compares!(update_prints_skipped_files_with_vv, ["-avvu"]);
compares!(ignore_times_transfers_all, ["-aiI"]);
compares!(size_only, ["-ai", "--size-only"]);
compares!(size_only_without_times, ["-rlpi", "--size-only"]);
compares!(checksum_decides_by_content, ["-aic"]);
compares!(checksum_without_times, ["-rlpic"]);
compares!(checksum_and_update, ["-aicu"]);
compares!(checksum_and_ignore_times, ["-aicI"]);
compares!(
    checksum_by_a_named_algorithm,
    ["-aic", "--checksum-choice=md5"]
);
compares!(
    checksum_in_a_format,
    ["-ac", "--out-format=%i %n", "--cc=xxh64"]
);
compares!(
    modify_window_larger_than_the_difference,
    ["-ai", "--modify-window=60"]
);
compares!(
    modify_window_smaller_than_the_difference,
    ["-ai", "--modify-window=49"]
);
compares!(
    modify_window_equal_to_the_difference,
    ["-ai", "--modify-window=50"]
);
compares!(modify_window_in_short, ["-ai", "-@60"]);
compares!(existing_creates_nothing, ["-ai", "--existing"]);
compares!(existing_by_its_other_name, ["-ai", "--ignore-non-existing"]);
compares!(existing_with_delete, ["-ai", "--existing", "--delete"]);
compares!(
    ignore_existing_updates_nothing,
    ["-ai", "--ignore-existing"]
);
compares!(ignore_existing_with_vv, ["-avv", "--ignore-existing"]);
compares!(
    existing_and_ignore_existing_do_nothing,
    ["-ai", "--existing", "--ignore-existing"]
);
compares!(
    existing_and_ignore_existing_delete,
    ["-ai", "--existing", "--ignore-existing", "--delete"]
);

// A file of the source that has the name which another one gets at the destination has nothing to do with it.
synctest!(checksum_of_a_file_that_gets_another_name, |w: World| {
    w.source("a=1234 b=9999 c=0000").dest("b=9999 c=1234");
    w.agree_paths(&["-aic"], &["src/a", "dst/b"])
        .prints(">fc........ a");
    w.agree_paths(&["-aic"], &["src/a", "dst/c"]).exits(0);
});

synctest!(
    checksum_in_another_tree_of_a_file_that_gets_another_name,
    |w: World| {
        w.source("a=1234 b=9999").dest("kept");
        w.build("alt", |t| drop(t.file("b", "1234")));
        w.agree_paths(&["-aic", "--copy-dest=../alt"], &["src/a", "dst/b"])
            .exits(0);
    }
);

synctest!(a_negative_window_compares_nanoseconds, |w: World| {
    w.build("src", |t| {
        t.file("a", "a").mtime_ns(0, 1);
        t.file("b", "b").mtime_ns(0, 2);
    });
    w.build("dst", |t| {
        t.file("a", "a").mtime_ns(0, 1);
        t.file("b", "b").mtime_ns(0, 1);
    });
    w.agree(&["-ai", "--modify-window=-1"])
        .prints(" b")
        .never_prints(" a");
});

synctest!(update_within_a_window, |w: World| {
    pairs(&w);
    w.agree(&["-aiu", "--modify-window=49"]).exits(0);
});

synctest!(update_to_the_second, |w: World| {
    w.build("src", |t| drop(t.file("a", "new").mtime_ns(0, 1)));
    w.build("dst", |t| drop(t.file("a", "older").mtime_ns(0, 9)));
    w.agree(&["-aiu"]).exits(0);
});

synctest!(update_applies_only_to_files, |w: World| {
    w.source("l->new@-50 p|@-50 d/@-50 k=file@-50")
        .dest("l->old p|%600 d/%700 k->link");
    w.agree(&["-aiu"]).exits(0);
});

synctest!(update_replaces_entries_of_another_type, |w: World| {
    w.source("a@-50 b/@-50").dest("a->b b=file");
    w.agree(&["-aiu"]).exits(0);
});

synctest!(ignore_existing_descends_into_directories, |w: World| {
    w.source("d/%750 d/new d/old=newer l->x k->y")
        .dest("d/old l->z");
    w.agree(&["-ai", "--ignore-existing"]).prints("d/new");
});

synctest!(existing_creates_no_symlinks_or_fifos, |w: World| {
    w.source("l->x p| d/e/f g").dest("g=old");
    w.agree(&["-ai", "--existing"]).exits(0);
});

synctest!(stats_count_entries_skipped_by_existing, |w: World| {
    w.source("a d/b d/e/c d/l->x z").dest("a=old");
    for options in [
        &["-rlt", "--existing"][..],
        &["-a", "--existing", "-m"],
        &["-aH", "--existing", "--delete-after"],
    ] {
        w.agree(&[options, &["--stats", "-v"]].concat())
            .exits(0)
            .prints("Number of files: 8 (reg: 4, dir: 3, link: 1)");
    }
});

synctest!(stats_count_entries_that_cannot_be_created, as user, |w: World| {
    w.source("a d/b/c d/b/e/g z").build("dst", |t| drop(t.dir("d").owner(1, 1)));
    w.stderr_unordered().agree(&["-rli", "--stats"]).exits(23).prints("Number of files: 8 (reg: 4, dir: 4)");
});

synctest!(error_in_a_directory_skipped_by_existing_exits_23, as user, |w: World| {
    w.source("d/b d/closed/%0 z/a").dest("z/old");
    w.stderr_unordered().agree(&["-ai", "--existing"]).exits(23).warns("opendir");
    w.agree(&["-ai", "--existing", "--delete-after"]).exits(23).never_prints("deleting   z/old");
});

synctest!(error_in_a_pruned_directory_exits_23, as user, |w: World| {
    w.source("d/closed/%0 z/a").dest("z/old");
    w.stderr_unordered().agree(&["-aim"]).exits(23).warns("opendir");
    w.agree(&["-aim", "--delete-after"]).exits(23).never_prints("deleting   z/old");
});

synctest!(deletions_precede_entries_skipped_by_existing, |w: World| {
    w.source("b/x d/y z/a").dest("d/old z/old");
    for options in [
        &["--delete-before"][..],
        &["--delete", "-m"],
        &["--delete-after", "-H"],
    ] {
        w.agree(&[&["-ai", "--existing"][..], options].concat())
            .exits(0);
    }
});

synctest!(stats_count_entries_of_each_source, |w: World| {
    w.not_served_pull("an entry is sent and counted once");
    w.source("a d/b d/e/c l->x")
        .tree("src2", "a=other d/b=other d/n")
        .dest("a=old");
    w.agree_paths(&["-ai", "--stats"], &["src/", "src2/", "dst"])
        .prints("Number of files: 12 (reg: 6, dir: 5, link: 1)");
    w.agree_paths(&["-aim", "--stats"], &["src/", "src2/", "dst"])
        .exits(0);
    w.agree_paths(&["-ai", "--stats"], &["src/d", "src2/d", "new"])
        .prints("Number of files: 7 (reg: 4, dir: 3)");
});

synctest!(
    stats_count_a_source_named_before_and_after_another,
    |w: World| {
        w.not_served_pull("an entry is sent and counted once");
        w.source("d/a").tree("src2", "d/b d/n");
        w.agree_paths(&["-ai", "--stats"], &["src/d", "src2/d", "src/d", "new"])
            .prints("Number of files: 7 (reg: 4, dir: 3)");
        w.agree_paths(
            &["-ai", "--stats"],
            &["src/d", "src/d", "src2/d", "src2/d", "src/d", "new2"],
        )
        .exits(0);
    }
);

synctest!(
    existing_creates_no_destination_for_an_empty_directory,
    |w: World| {
        w.source("excluded empty/");
        for (options, source) in [
            (&["-ai", "--exclude=*"][..], "src/"),
            (&["-ai", "--ignore-existing"], "src/empty/"),
            (&["-di", "--stats"], "src/empty/"),
            (&["-ai", "--mkpath", "--delete"], "src/empty/"),
            (&["-ain"], "src/empty/"),
        ] {
            w.agree_paths(&[options, &["--existing"]].concat(), &[source, "new"])
                .exits(0)
                .never_prints("cd+++++++++");
        }
        w.agree_paths(&["-ai", "--existing"], &["src/empty/", "new/"])
            .prints("cd+++++++++ ./");
    }
);

synctest!(existing_creates_the_destination, |w: World| {
    w.source("a d/b")
        .agree_paths(&["-rti", "--existing"], &["src/", "new"])
        .prints("cd+++++++++ ./");
    w.agree_paths(&["-av", "--existing", "--mkpath"], &["src/", "new2/x/"])
        .exits(0);
});

synctest!(
    skipped_file_is_reported_by_its_destination_name,
    |w: World| {
        w.source("a l->/etc/x").file("there", "other");
        w.agree_paths(&["-vv", "--existing"], &["src/a", "new"])
            .prints("not creating new file \"new\"");
        w.agree_paths(&["-vv", "--ignore-existing"], &["src/a", "there"])
            .prints("there exists");
        w.build("src", |t| drop(t.file("a", "a").mtime(-9)));
        w.agree_paths(&["-vv", "-tu"], &["src/a", "there"])
            .prints("there is newer");
    }
);

// ── sizes ───────────────────────────────────────────────────────────────────────────────────────
macro_rules! selects_by_size {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("e= a*999 b*1000 c*1001 d*1023 k*1024 l*1025 m*1499 n*1500 o*1501 p*2048 dir/q*5000 s->p").dest("a=old q=old");
            w.agree(&["-ai", $($option),+]).exits(0);
        });
    };
}

selects_by_size!(max_size_in_bytes, ["--max-size=1000"]);
selects_by_size!(max_size_in_kibibytes, ["--max-size=1k"]);
selects_by_size!(max_size_in_kilobytes, ["--max-size=1kb"]);
selects_by_size!(
    max_size_in_kibibytes_by_the_long_suffix,
    ["--max-size=1KiB"]
);
selects_by_size!(max_size_in_fractions, ["--max-size=1.5kb"]);
selects_by_size!(max_size_less_one, ["--max-size=1.5kb-1"]);
selects_by_size!(max_size_plus_one, ["--max-size=1.5kb+1"]);
selects_by_size!(max_size_with_b, ["--max-size=1000b"]);
selects_by_size!(max_size_of_zero, ["--max-size=0"]);
selects_by_size!(min_size, ["--min-size=1k"]);
selects_by_size!(min_size_of_one, ["--min-size=1"]);
selects_by_size!(min_and_max_size, ["--min-size=1000", "--max-size=1024"]);
selects_by_size!(max_size_deletes_nothing, ["--max-size=10", "--delete"]);
selects_by_size!(max_size_with_vv, ["-vv", "--max-size=1000"]);
selects_by_size!(max_size_prunes_nothing, ["-m", "--max-size=10"]);

// ── pruning and mount points ────────────────────────────────────────────────────────────────────
synctest!(prune_skips_empty_directory_chains, |w: World| {
    w.source("a e/ f/g/h/ k/l/m k/n/").dest("");
    w.agree(&["-aim"]).never_prints("f/");
});

synctest!(prune_deletes_pruned_directories, |w: World| {
    w.source("a e/ f/g.o").dest("e/ f/g.o h/");
    w.agree(&["-aim", "--delete", "--exclude=*.o"]).exits(0);
});

synctest!(prune_keeps_protected_directories, |w: World| {
    w.source("a e/ f/").dest("e/x f/y");
    w.agree(&["-aim", "--delete", "-fP e/"]).exits(0);
});

synctest!(
    prune_keeps_protected_directories_without_delete,
    |w: World| {
        w.source("a e/@5 f/g/ h/i/j/").dest("f/%700");
        w.agree(&["-aim", "-fP e/", "-fP i/"])
            .exits(0)
            .prints("cd+++++++++ e/")
            .never_prints("j/");
    }
);

synctest!(prune_with_each_delete_timing, |w: World| {
    w.source("a e/ k/e/ k/f g/h/").dest("e/f/x k/e/y g=file d/");
    for when in ["--delete-before", "--delete-delay", "--delete-after"] {
        w.agree(&["-aim", when]).exits(0);
        w.dest("e/f/x k/e/y g=file d/");
    }
});

synctest!(update_at_the_edge_of_the_modify_window, |w: World| {
    w.source("a=longer@48 b=longer@49 c=longer@50 d=longer")
        .dest("a b c d@1");
    w.agree(&["-aiu", "--modify-window=49"]).exits(0);
});

synctest!(one_file_system_leaves_a_mount_point_empty, as root, |w: World| {
    w.source("a m/ d/b").dest("");
    w.mount_tmpfs("src/m", 1 << 16);
    w.tree("src/m", "inside");
    w.agree(&["-aix"]).prints("cd+++++++++ m/").never_prints("inside");
});

synctest!(one_file_system_twice_skips_the_mount_point, as root, |w: World| {
    w.source("a m/ d/b").dest("");
    w.mount_tmpfs("src/m", 1 << 16);
    w.tree("src/m", "inside");
    w.agree(&["-aixx"]).never_prints("m/");
});

synctest!(mount_points_are_crossed_without_one_file_system, as root, |w: World| {
    w.source("a m/ d/b").dest("");
    w.mount_tmpfs("src/m", 1 << 16);
    w.tree("src/m", "inside");
    w.agree(&["-ai"]).prints("m/inside");
});

/// A file system inside another file system in the source, and a symlink to the outer one.
fn mounts(w: &World) {
    w.source("a m/ d/b d/l->../m")
        .dest("m/old m/n/old src/m/n/old");
    w.mount_tmpfs("src/m", 1 << 16);
    w.tree("src/m", "inside n/");
    w.mount_tmpfs("src/m/n", 1 << 16);
    w.tree("src/m/n", "deep");
}

/// Declares a case that copies the named parts of [`mounts`].
macro_rules! stays_on_a_file_system {
    ($name:ident, [$($option:expr),+ $(,)?], [$($operand:expr),+ $(,)?]) => {
        synctest!($name, as root, |w: World| {
            mounts(&w);
            w.agree_paths(&["-ai", $($option),+], &[$($operand),+, "dst"]).exits(0);
        });
    };
}

stays_on_a_file_system!(a_mount_point_that_is_named_is_entered, ["-x"], ["src/m"]);
stays_on_a_file_system!(
    a_mount_point_that_is_named_is_entered_under_xx,
    ["-xx"],
    ["src/m"]
);
stays_on_a_file_system!(
    each_argument_has_its_file_system,
    ["-x"],
    ["src/m", "src/d", "src"]
);
stays_on_a_file_system!(
    a_mount_point_by_its_content,
    ["-x", "--delete"],
    ["src/m/", "src/"]
);
stays_on_a_file_system!(
    a_mount_point_below_implied_directories,
    ["-xR"],
    ["src/m/n"]
);
stays_on_a_file_system!(
    a_mount_point_below_implied_directories_under_xx,
    ["-xxR"],
    ["src/m/n", "src"]
);
stays_on_a_file_system!(
    a_mount_point_named_and_walked_to,
    ["-xR", "--delete"],
    ["src", "src/m"]
);
stays_on_a_file_system!(mount_point_after_a_dot_marker, ["-xR"], ["src/./m"]);
stays_on_a_file_system!(a_mount_point_behind_a_symlink, ["-xL"], ["src/d"]);
stays_on_a_file_system!(
    a_mount_point_behind_a_symlink_to_a_directory,
    ["-xxk"],
    ["src/d"]
);
stays_on_a_file_system!(
    a_mount_point_by_a_symlink_that_is_named,
    ["-xL"],
    ["src/d/l"]
);
stays_on_a_file_system!(
    a_mount_point_without_recursion,
    ["-x", "--no-r", "-d"],
    ["src/m", "src/m/"]
);
stays_on_a_file_system!(
    a_mount_point_without_recursion_under_xx,
    ["-xx", "--no-r", "-d"],
    ["src/m", "src/m/"]
);

synctest!(mount_points_in_files_from, as root, |w: World| {
    mounts(&w);
    let lists = [("m\n", "-xr"), ("m\n.\n", "-xr"), ("m/\nm/n/deep\n", "-xx"), (".\nm/n/deep\n", "-xr")];
    for (at, (list, option)) in lists.into_iter().enumerate() {
        let dest = format!("to{at}");
        w.file("list", list).agree_paths(&["-ai", option, "--files-from=list"], &["src", &dest]).exits(0);
    }
});

synctest!(one_file_system_does_not_delete_mount_points, as root, |w: World| {
    w.source("a").dest("a m/ old");
    w.mount_tmpfs("dst/m", 1 << 16);
    w.tree("dst/m", "inside");
    w.stderr_unordered().agree(&["-aix", "--delete"]);
});

/// Declares a case that deletes in a destination with other file systems mounted in it.
macro_rules! spares {
    ($name:ident, [$($option:expr),+ $(,)?], [$($operand:expr),+ $(,)?]) => {
        synctest!($name, as root, |w: World| {
            w.source("m/n/f d/e/f d/e/g/").dest("m/ d/e/ d/old old");
            w.mount_tmpfs("dst/m", 1 << 16).mount_tmpfs("dst/d/e", 1 << 16);
            w.tree("dst/m", "old n/old n/q/").tree("dst/d/e", "old g/old");
            w.agree_paths(&["-aix", $($option),+], &[$($operand),+, "dst"]).exits(0);
        });
    };
}

spares!(deletion_stays_on_the_file_system, ["--delete"], ["src/"]);
spares!(
    deletion_before_stays_on_the_file_system,
    ["--delete-before"],
    ["src/"]
);
spares!(
    deletion_after_stays_on_the_file_system,
    ["--delete-after"],
    ["src/"]
);
spares!(
    delete_delay_stays_on_the_file_system,
    ["--delete-delay"],
    ["src/"]
);
spares!(
    delete_in_a_named_mount_point,
    ["--delete"],
    ["src/m", "src/d"]
);
spares!(
    delete_before_in_a_named_mount_point,
    ["--delete-before"],
    ["src/m", "src/d"]
);
spares!(
    delete_after_in_a_named_mount_point,
    ["--delete-after"],
    ["src/m", "src/d"]
);
spares!(
    delete_delay_in_a_named_mount_point,
    ["--delete-delay"],
    ["src/m", "src/d"]
);
spares!(
    deletion_below_implied_directories,
    ["-R", "--delete"],
    ["src/./m/n", "src/./d/e/g"]
);

synctest!(
    implied_directory_within_a_whole_tree_is_only_created,
    |w: World| {
        w.source("a e/f").dest("");
        // With -O, because rsync may create implied directories in the root after it has set the root's time.
        w.agree_paths(
            &["-aiRO", "--no-implied-dirs"],
            &["src/./", "src/e", "dst/"],
        )
        .exits(0);
    }
);
