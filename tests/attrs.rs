//! Attributes: permissions, owners, times, ACLs, extended attributes.

use crate::kit::{Acl, World, synctest};

/// Source files with many modes, and existing destination files with other modes.
fn modes(w: &World) {
    w.source("a%600 b%755 c%4755 d%2711 e%444 sub/%2775 sub/f%640 tmp/%1777 run%711");
    w.dest("a%644 b%600 e%600 sub/%700 sub/f%644 run%644");
}

macro_rules! keeps_modes {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            modes(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

keeps_modes!(perms_are_copied, ["-rtpi"]);
keeps_modes!(without_perms_existing_files_keep_their_mode, ["-rti"]);
keeps_modes!(executability_alone_copies_only_x, ["-rtiE"]);
keeps_modes!(executability_with_perms_has_no_effect, ["-rtipE"]);
keeps_modes!(
    chmod_with_perms_changes_existing_files,
    ["-rtpi", "--chmod=go-rwx"]
);
keeps_modes!(
    chmod_without_perms_changes_only_new_files,
    ["-rti", "--chmod=go-rwx"]
);
keeps_modes!(
    chmod_of_directories_and_files,
    ["-rtpi", "--chmod=D2755,F644"]
);
keeps_modes!(
    chmod_of_directories_and_files_symbolically,
    ["-rtpi", "--chmod=Du=rwx,Dgo=rx,Fu=rw,Fgo=r"]
);
keeps_modes!(chmod_with_an_upper_x, ["-rtpi", "--chmod=a-x,a+X"]);
keeps_modes!(chmod_that_copies_bits, ["-rtpi", "--chmod=g=u,o=g"]);
keeps_modes!(chmod_with_s_and_t, ["-rtpi", "--chmod=u+s,g+s,D+t"]);
keeps_modes!(chmod_a_plus_s_sets_both, ["-rtpi", "--chmod=a+s"]);
keeps_modes!(
    repeated_chmod_options_are_combined,
    ["-rtpi", "--chmod=F600", "--chmod=g+r"]
);
keeps_modes!(chmod_without_class_uses_the_umask, ["-rtpi", "--chmod=+w"]);

synctest!(chmod_without_class_uses_the_client_umask, |w: World| {
    modes(&w);
    w.umask(0o027)
        .far_umask(0o002)
        .agree(&["-rtpi", "--chmod=+w"])
        .exits(0);
});

synctest!(
    chmod_copy_without_class_uses_the_client_umask,
    |w: World| {
        modes(&w);
        w.umask(0o002)
            .far_umask(0o077)
            .agree(&["-rtpi", "--chmod=F=u,D+X"])
            .exits(0);
    }
);

synctest!(new_files_get_the_umask_of_the_receiver, |w: World| {
    modes(&w);
    w.umask(0o022).far_umask(0o077).agree(&["-rti"]).exits(0);
});

keeps_modes!(chmod_ugo_equals, ["-rtpi", "--chmod=ugo=rwX"]);
keeps_modes!(chmod_octal, ["-rtpi", "--chmod=0755"]);

synctest!(file_without_permissions_is_copied_by_root, as root, |w: World| {
    w.source("shut%000 d/%000 d/f").dest("shut=old%000");
    w.agree(&["-ai"]).exits(0);
});

synctest!(perms_as_an_unprivileged_user, as user, |w: World| {
    w.source("a%600 b%755 c%4755 d%2711 e%444 sub/%2775 sub/f%640 tmp/%1777").dest("a%644 b%600 e%444=old sub/%700");
    w.agree(&["-ai"]).exits(0);
});

synctest!(new_files_get_the_umask_without_perms, as both, |w: World| {
    w.source("a%666 b%777 c%4755 d/%2777 d/e%600").dest("");
    w.umask(0o027).agree(&["-rti"]).exits(0);
});

synctest!(perms_ignores_the_umask, |w: World| {
    w.source("a%666 b%777 d/%777 d/e%600").dest("");
    w.umask(0o077).agree(&["-rtpi"]).exits(0);
});

synctest!(new_destination_gets_the_umask, |w: World| {
    w.source("a d/e");
    w.umask(0o077).agree(&["-rti"]).exits(0);
});

synctest!(setgid_directory_passes_on_its_group, as root, |w: World| {
    w.source("a d/b").build("dst", |t| drop(t.dir(".").mode(0o2775).owner(0, 77)));
    w.agree(&["-rti"]).exits(0);
});

synctest!(read_only_source_directory_is_copied_with_content, as user, |w: World| {
    w.source("shut/%555 shut/a shut/b/c").dest("");
    w.agree(&["-ai"]).exits(0);
});

synctest!(read_only_destination_directory_is_updated, as user, |w: World| {
    w.source("shut/%555 shut/a=new").dest("shut/a=old! shut/%555");
    w.agree(&["-ai"]);
});

/// Declares a case whose destination directories belong to another user, are writable by all and have a time offset.
macro_rules! another_users_destination {
    ($name:ident, $offset_secs:expr, [$($option:expr),+], $exit:expr) => {
        synctest!($name, as user, |w: World| {
            w.source("a sub/b e/").dest("sub/ e/").build("dst", |t| {
                for dir in [".", "sub", "e"] {
                    t.dir(dir).mode(0o777).owner(1, 1).mtime($offset_secs);
                }
            });
            w.agree(&[$($option),+]).exits($exit);
        });
    };
}

another_users_destination!(another_users_directory_is_filled, 0, ["-rti"], 0);
another_users_destination!(
    time_of_another_users_directory_cannot_be_set,
    100,
    ["-rti"],
    23
);
another_users_destination!(
    mode_of_another_users_directory_cannot_be_set,
    0,
    ["-rtpi"],
    23
);
another_users_destination!(
    time_and_mode_of_another_users_directory_cannot_be_set,
    100,
    ["-rtpi"],
    23
);
another_users_destination!(
    another_users_directory_is_filled_with_omit_dir_times,
    100,
    ["-rtOi"],
    0
);
another_users_destination!(
    owner_of_another_users_directory_is_not_changed,
    100,
    ["-ai"],
    23
);

synctest!(attributes_of_another_users_file_cannot_be_set, as user, |w: World| {
    w.source("a=text%600 b=text%600").dest("").build("dst", |t| {
        drop(t.file("a", "text").mode(0o644).owner(1, 1).mtime(100));
        drop(t.file("b", "text").mode(0o644).owner(1, 1));
    });
    w.agree(&["-rtpi", "--size-only"]).exits(23);
});

synctest!(backup_by_copy_if_the_file_cannot_be_renamed, as user, |w: World| {
    w.source("a=new b/c=new d=new").dest("b/ d=old").build("dst", |t| {
        for dir in [".", "b"] {
            drop(t.dir(dir).mode(0o1777).owner(1, 1));
        }
        for file in ["a", "b/c"] {
            drop(t.file(file, "before").mode(0o644).owner(1, 1));
        }
    });
    w.agree(&["-rtbi"]).exits(23);
});

synctest!(delay_updates_in_sticky_directories, as user, |w: World| {
    w.source("a=new b/c=new d=new").dest("b/ d=old").build("dst", |t| {
        for dir in [".", "b"] {
            drop(t.dir(dir).mode(0o1777).owner(1, 1));
        }
        for file in ["a", "b/c"] {
            drop(t.file(file, "before").mode(0o644).owner(1, 1));
        }
    });
    w.agree(&["-rti", "--delay-updates"]).exits(23);
});

synctest!(delay_updates_without_write_permission, as user, |w: World| {
    w.source("a=new b/c=new").dest("b/").build("dst", |t| {
        for dir in [".", "b"] {
            drop(t.dir(dir).mode(0o755).owner(1, 1));
        }
    });
    w.agree(&["-rti", "--delay-updates"]).exits(23);
});

/// Declares a case whose destination directory gives its owner only some of the permissions.
macro_rules! partly_accessible_destination {
    ($name:ident, $mode:expr, [$($option:expr),+]) => {
        synctest!($name, as user, |w: World| {
            w.source("a d/b").dest("old d/b=other").build("dst", |t| drop(t.dir(".").mode($mode)));
            w.agree(&[$($option),+]);
        });
    };
}

partly_accessible_destination!(unlistable_destination_is_made_accessible, 0o300, ["-ai"]);
partly_accessible_destination!(
    unlistable_destination_is_not_listed_in_a_dry_run,
    0o300,
    ["-ain", "--delete"]
);
partly_accessible_destination!(
    unlistable_destination_loses_extras_with_delete,
    0o300,
    ["-ai", "--delete"]
);
partly_accessible_destination!(
    destination_made_accessible_stays_accessible,
    0o300,
    ["-rti"]
);
partly_accessible_destination!(unwritable_destination_gets_its_mode_back, 0o100, ["-rti"]);
partly_accessible_destination!(read_only_destination_gets_its_mode_back, 0o500, ["-rti"]);
partly_accessible_destination!(
    destination_without_search_permission_is_an_error,
    0o600,
    ["-ai"]
);
partly_accessible_destination!(write_only_destination_is_an_error, 0o200, ["-ai"]);

synctest!(inaccessible_destination_directories_are_made_accessible, as user, |w: World| {
    w.source("n3/a n2/a n1/a n6/a n4/a n0/a").dest("n3/%300 n2/%200 n1/%100 n6/%600 n4/%400 n0/%000 n3/x n6/x");
    w.no_dry_run().agree(&["-rti"]).exits(0);
});

/// Declares a case whose source directory gives its owner only some of the permissions.
macro_rules! partly_accessible_source {
    ($name:ident, $mode:expr, $exit:expr) => {
        synctest!($name, as user, |w: World| {
            w.source("a d/b d/c").dest("old").build("src", |t| drop(t.dir(".").mode($mode)));
            for operands in [&["src/"][..], &["src"], &["src/a"], &["src/d"], &["src/a", "src/d/"]] {
                w.agree_paths(&["-rtin"], &[operands, &["dst/"]].concat());
            }
            w.agree_paths(&["-rti", "--delete"], &["src/", "dst/"]).exits(23);
            w.agree_paths(&["-rtiR"], &["src/./a", "src/d", "dst/"]).exits($exit);
        });
    };
}

partly_accessible_source!(unlistable_source_provides_named_files, 0o300, 0);
partly_accessible_source!(search_only_source_provides_named_files, 0o100, 0);
partly_accessible_source!(source_without_search_permission_provides_nothing, 0o600, 23);
partly_accessible_source!(inaccessible_source_provides_nothing, 0o000, 23);

synctest!(single_files_into_an_unlistable_directory, as user, |w: World| {
    w.source("a b").dest("b=old").build("dst", |t| drop(t.dir(".").mode(0o300)));
    w.agree_paths(&["-ai"], &["src/a", "src/b", "dst/"]).exits(0);
    w.agree_paths(&["-aib", "--inplace", "-I"], &["src/a", "src/b", "dst/"]).exits(0);
});

// ── owners ──────────────────────────────────────────────────────────────────────────────────────
fn owners(w: &World) {
    w.build("src", |t| {
        t.file("a", "a").owner(1, 1);
        t.file("b", "b").owner(4321, 8765);
        t.file("suid", "s").mode(0o6755).owner(4321, 0);
        t.dir("d").owner(2, 2);
        t.file("d/c", "c").owner(3, 0);
        t.symlink("l", "a").owner(4321, 1);
    });
    w.dest("a=a d/");
}

macro_rules! keeps_owners {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, as root, |w: World| {
            owners(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

keeps_owners!(owner_and_group_are_copied, ["-ai"]);
keeps_owners!(owner_alone, ["-rlpti", "-o"]);
keeps_owners!(group_alone, ["-rlpti", "-g"]);
keeps_owners!(numeric_ids, ["-ai", "--numeric-ids"]);
keeps_owners!(chown_to_names, ["-ai", "--chown=daemon:bin"]);
keeps_owners!(chown_to_numbers, ["-ai", "--chown=1001:1002"]);
keeps_owners!(chown_of_the_user_alone, ["-ai", "--chown=1001"]);
keeps_owners!(chown_of_the_group_alone, ["-ai", "--chown=:1002"]);
keeps_owners!(
    usermap_of_numbers_and_ranges,
    ["-ai", "--usermap=1:50,2-3:60,4000-5000:70"]
);
keeps_owners!(usermap_of_names, ["-ai", "--usermap=daemon:sys,*:nobody"]);
keeps_owners!(usermap_of_wildcards, ["-ai", "--usermap=d*:60"]);
keeps_owners!(usermap_of_the_nameless, ["-ai", "--usermap=:99"]);
keeps_owners!(groupmap_of_numbers, ["-ai", "--groupmap=0:10,1:11,8765:12"]);
keeps_owners!(
    groupmap_with_numeric_ids,
    ["-ai", "--numeric-ids", "--groupmap=0:10,*:13"]
);
keeps_owners!(no_super_changes_no_owner, ["-ai", "--no-super"]);
keeps_owners!(super_is_the_default_of_root, ["-ai", "--super"]);
keeps_owners!(no_owner_no_group, ["-ai", "--no-o", "--no-g"]);
keeps_owners!(
    no_owner_no_group_after_chown,
    ["-ai", "--chown=7:8", "--no-o", "--no-g"]
);

synctest!(invalid_id_cannot_be_set, as root, |w: World| {
    w.source("a%640 c/z@9 l->x p| same").dest("a=old c/ l->x same");
    // In a dry run, rsync reports this for existing entries. sparsync does not try to set anything then.
    w.no_dry_run().stderr_unordered();
    for map in ["--chown=4294967295:5", "--usermap=*:4294967295", "--groupmap=*:4294967295"] {
        w.agree(&["-ai", map]).exits(23).warns("(-1) is impossible to set on");
    }
});

synctest!(invalid_id_is_ignored_for_an_unprivileged_user, as user, |w: World| {
    w.source("a c/z same").dest("a=old same");
    w.agree(&["-ai", "--usermap=*:4294967295", "--groupmap=*:4294967295"]).exits(0);
});

synctest!(owner_maps_apply_to_otherwise_unchanged_entries, as root, |w: World| {
    w.source("d/a d/b e/c").dest("d/a d/b e/c");
    for map in ["--usermap=*:77", "--groupmap=*:88"] {
        w.agree(&["-a", map]).exits(0);
    }
});

synctest!(owner_maps_apply_to_changes_of_single_entries, as root, |w: World| {
    w.stderr_unordered();
    for (n, options) in [
        &["--chown=daemon:bin"][..],
        &["--chown=root:0"],
        &["--chown=1:1", "--numeric-ids"],
        &["--usermap=1:50,2-3:60,4000-5000:70"],
        &["--usermap=1:nosuch,daemon:games,*:root"],
        &["--usermap=daemon:bin", "--groupmap=:daemon"],
        &["--groupmap=root:daemon,daemon:root"],
        &["--usermap=*:daemon", "--fake-super"],
    ]
    .into_iter()
    .enumerate()
    {
        let (src, dst) = (format!("src{n}"), format!("dst{n}"));
        w.build(&src, |t| {
            t.file("d/a", "a").owner(1, 1);
            t.file("d/b", "b").owner(2, 0);
            t.file("e/c", "c").owner(0, 1);
            t.file("f/d", "d").owner(4321, 8765);
        });
        let agree = || w.agree_paths(&[&["-ai"], options].concat(), &[&format!("{src}/"), &format!("{dst}/")]).exits(0);
        agree();
        for (tree, file, owner, group) in
            [(&src, "d/a", 2, 1), (&src, "e/c", 0, 0), (&dst, "d/b", 1, 1), (&dst, "e/c", 0, 3), (&dst, "f/d", 0, 8765)]
        {
            w.build(tree, |t| drop(t.file(file, &file[2..]).owner(owner, group)));
            agree();
        }
    }
});

// The two maps of a push are an error.
synctest!(owner_maps_for_both_ends_of_a_pull, as root, |w: World| {
    if w.is_pulled() {
        owners(&w);
        w.agree(&["-ai", "--groupmap=1:2", "-M--groupmap=1:3"]).exits(0);
        w.agree(&["-ai", "--chown=7", "-M--usermap=4321:5"]).exits(0);
    }
});

// If the digests of a directory are equal, only the listing of the changed directory below it names the owners.
synctest!(owner_maps_apply_below_unchanged_directories, as root, |w: World| {
    for (n, map) in ["--usermap=daemon:2", "--groupmap=:nogroup", "--groupmap=daemon:sys"].into_iter().enumerate() {
        let (src, dst) = (format!("src{n}"), format!("dst{n}"));
        let build = |mode| {
            w.build(&src, |t| {
                t.dir("d").owner(1, 1);
                t.file("d/f", "f").owner(1, 1).mode(mode);
            });
            w.agree_paths(&["-ai", map], &[&format!("{src}/"), &format!("{dst}/")]).exits(0);
        };
        build(0o644);
        build(0o600);
    }
});

synctest!(unprivileged_user_owns_received_files, as user, |w: World| {
    w.build("src", |t| {
        t.file("a", "a").owner(1, 1);
        t.file("b", "b");
    });
    w.dest("a=a");
    w.agree(&["-ai"]).exits(0);
});

// A new destination inherits the bit and the group, as all directories in it do.
synctest!(new_destination_below_a_setgid_directory, as root, |w: World| {
    w.source("a sub/b").tree("top", "");
    w.build("top", |t| drop(t.dir("g").mode(0o2775).owner(0, 1)));
    for (at, options) in [&["-ri"][..], &["-rti"], &["-rlpi"], &["-ai"], &["-ri", "--chmod=Dg-w"]].iter().enumerate() {
        let dest = format!("top/g/{at}/");
        w.agree_paths(options, &["src/", &dest]).exits(0);
    }
    w.agree_paths(&["-ri", "--mkpath"], &["src/", "top/g/n/o"]).exits(0);
    w.agree_paths(&["-ri"], &["src/a", "src/sub", "top/g/p/"]).exits(0);
});

synctest!(super_as_an_unprivileged_user_exits_23, as user, |w: World| {
    w.build("src", |t| {
        for mode in [0o555, 0o644, 0o777, 0o4755, 0o2775] {
            t.file(format!("f{mode:o}"), "new").mode(mode).owner(1, 1);
            t.file(format!("old{mode:o}"), "new").mode(mode).owner(1, 1);
            t.dir(format!("d{mode:o}")).mode(mode | 0o111).owner(1, 1);
        }
    });
    w.build("src", |t| drop(t.dir("g/n").mode(0o775).owner(1, 1)));
    w.dest("old644 old777 d644/@9 d777/@9 g/%2755").stderr_unordered();
    for options in [
        &["-ai", "--super"][..],
        &["-ai", "--super", "--inplace"],
        &["-ai", "--super", "--no-inc-recursive"],
        &["-ai", "--super", "--delay-updates", "--no-p"],
        &["-ai", "--super", "--delete-after", "-O"],
    ] {
        w.agree(options).exits(23);
    }
});

synctest!(owner_change_keeps_setuid_and_setgid, as root, |w: World| {
    w.build("src", |t| drop(t.file("s", "s").mode(0o6755).owner(4321, 4321)));
    w.build("dst", |t| drop(t.file("s", "s").mode(0o6755).owner(1, 1)));
    // The dry run prints `.f....og...`. The real run stats the file again after chown and then finds only another mode.
    w.agree(&["-ai"]).prints(".f...p.....");
});

synctest!(inplace_keeps_set_id_bits, as both, |w: World| {
    // The kernel takes them away when an ordinary user writes.
    w.build("src", |t| {
        t.file("same", "new").mode(0o6755);
        t.file("gained", "new").mode(0o4711);
        t.file("longer", [b"old".as_slice(), &[b'x'; 5000]].concat()).mode(0o2755);
    });
    w.build("dst", |t| {
        t.file("same", "older").mode(0o6755);
        t.file("gained", "older").mode(0o755);
        t.file("longer", "old").mode(0o2755);
    });
    w.keep_dest().once();
    for options in [["-ai", "--inplace"], ["-rti", "--inplace"], ["-ai", "--append"]] {
        w.restore_dest().agree(&options).exits(0);
    }
});

/// A value of `security.capability`: `cap_net_bind_service=ep`.
const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

synctest!(inplace_and_new_owners_keep_capabilities, as root, |w: World| {
    // The kernel removes them when a file is written or gets another owner.
    w.needs_xattrs().build("src", |t| {
        t.file("written", "new").xattr("security.capability", CAPABILITY);
        t.file("owned", "same").xattr("security.capability", CAPABILITY);
        t.file("extra", "new");
    });
    w.build("dst", |t| {
        t.file("written", "older").xattr("security.capability", CAPABILITY);
        t.file("owned", "same").owner(1, 1).xattr("security.capability", CAPABILITY);
        t.file("extra", "older").xattr("security.capability", CAPABILITY);
    });
    w.agree(&["-aiX", "--inplace"]).prints(".f....og..x owned");
});

// ── times ───────────────────────────────────────────────────────────────────────────────────────
synctest!(times_to_the_nanosecond, |w: World| {
    w.build("src", |t| {
        t.file("a", "a").mtime_ns(0, 1);
        t.file("b", "b").mtime_ns(-3, 999_999_999);
        t.symlink("l", "a").mtime_ns(7, 5);
        t.dir("d").mtime_ns(9, 123);
    });
    w.agree(&["-ai"]).exits(0);
});

synctest!(quick_check_ignores_nanoseconds, |w: World| {
    w.build("src", |t| drop(t.file("a", "a").mtime_ns(0, 1)));
    w.build("dst", |t| drop(t.file("a", "a").mtime_ns(0, 2)));
    w.agree(&["-aii"]).prints(".f          a");
});

/// Entries whose times differ by nanoseconds, or by two seconds.
fn times_that_count_as_equal(w: &World) {
    for (tree, nanos) in [("src", 1), ("dst", 2)] {
        w.build(tree, |t| {
            t.file("a", "a").mtime_ns(0, nanos);
            t.file("mode", "m")
                .mtime_ns(0, nanos)
                .mode(if tree == "src" { 0o600 } else { 0o640 });
            t.file("late", "l").mtime_ns(2 * nanos, nanos);
            t.symlink("link", "a").mtime_ns(0, nanos);
            t.file("d/b", "b").mtime_ns(0, nanos);
            t.dir("d").mtime_ns(0, nanos);
        });
    }
}

macro_rules! compares_close_times {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            times_that_count_as_equal(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

compares_close_times!(checksums_set_the_exact_time_of_equal_files, ["-aic"]);
compares_close_times!(checksums_show_no_exact_time, ["-aiic"]);
compares_close_times!(
    checksums_set_times_within_the_window,
    ["-aic", "--modify-window=3"]
);
compares_close_times!(times_within_the_window_stay, ["-ai", "--modify-window=3"]);
compares_close_times!(times_of_files_of_equal_size_stay, ["-ai", "--size-only"]);
compares_close_times!(checksums_without_times_set_none, ["-rlpic"]);
synctest!(checksums_by_an_older_protocol_drop_fractions, |w: World| {
    w.not_with_server("an older protocol needs a remote shell");
    times_that_count_as_equal(&w);
    w.agree(&["-aic", "--protocol=30"]).exits(0);
});

synctest!(changed_atime_leaves_an_equal_time, |w: World| {
    w.build("src", |t| drop(t.file("a", "a").mtime_ns(0, 1).atime(-500)));
    w.build("dst", |t| drop(t.file("a", "a").mtime_ns(0, 2).atime(-100)));
    w.agree(&["-aiU", "--open-noatime"]).prints(".f......u.. a");
});

synctest!(times_before_1970_and_after_2038, |w: World| {
    w.source("old@-1700000000 far@2000000000 d/@-1700000001 zero@-1600000000")
        .dest("old");
    w.agree(&["-ai"]).exits(0);
});

synctest!(without_times_all_files_are_transferred, |w: World| {
    w.source("a b=text d/c l->a").dest("a=other d/");
    w.agree(&["-rlpi"]).prints("T");
});

synctest!(
    directories_get_their_time_after_their_content,
    |w: World| {
        w.source("d/e/f/g d/@-9 d/e/@-8 d/e/f/@-7").dest("d/e/old");
        w.agree(&["-ai", "--delete"]).exits(0);
    }
);

synctest!(omit_dir_times_leaves_directories, |w: World| {
    w.source("d/a d/@-9 e/@-9").dest("d/");
    w.agree(&["-aiO"]).exits(0);
});

synctest!(omit_link_times_leaves_symlinks, |w: World| {
    w.source("l->a@-9 a m->a@-9 n->a").dest("l->a n->b");
    w.agree(&["-aiJ"]).prints("cLc.t...... n -> a");
});

synctest!(checksum_run_updates_differing_times, |w: World| {
    w.source("a@50 d/@60").dest("a d/");
    w.agree(&["-aic"]).prints(".f..t...... a");
});

synctest!(differing_time_causes_a_transfer, |w: World| {
    w.source("a@50").dest("a");
    w.agree(&["-ai"]).prints(">f..t...... a");
});

synctest!(atimes_are_copied, |w: World| {
    w.compare_atimes().build("src", |t| {
        t.file("a", "a").atime(-500);
        t.file("b", "b").atime(-600);
    });
    w.build("dst", |t| drop(t.file("a", "a").atime(-100)));
    w.once()
        .no_dry_run()
        .agree(&["-aiU", "--open-noatime"])
        .exits(0);
});

// A changed access time of a symlink is set, but rsync does not show it. Each directory has few names, because a listing
// of the destination would change its access time.
synctest!(atimes_of_symlinks_are_copied, |w: World| {
    w.compare_atimes().build("src", |t| {
        t.symlink("new", "a").atime(-500);
        t.symlink("same", "a").atime(-500);
        t.symlink("d/other", "a").atime(-500);
    });
    w.build("dst", |t| {
        t.symlink("same", "a").atime(-600);
        t.symlink("d/other", "b").atime(-600);
    });
    w.once()
        .no_dry_run()
        .agree(&["-aiU", "--open-noatime"])
        .exits(0);
});

synctest!(atimes_of_special_files_are_copied, |w: World| {
    w.compare_atimes().build("src", |t| {
        t.fifo("new").atime(-500);
        t.fifo("same").atime(-500);
    });
    w.build("dst", |t| drop(t.fifo("same").atime(-600)));
    w.once()
        .no_dry_run()
        .agree(&["-aiU", "--open-noatime"])
        .prints(".S......u.. same");
});

synctest!(atimes_of_directories_are_not_copied, |w: World| {
    w.compare_atimes().build("src", |t| {
        t.file("d/a", "a");
        t.dir("d").atime(-500);
    });
    w.once()
        .no_dry_run()
        .agree(&["-aiU", "--open-noatime"])
        .exits(0);
});

/// Declares a case in which files of the destination are read, and are not replaced.
macro_rules! spares_atimes {
    ($name:ident, [$($option:expr),+]) => {
        synctest!($name, |w: World| {
            w.compare_atimes().build("src", |t| {
                t.file("same", "same").atime(-500);
                t.file("grown", "old and new").atime(-500);
            });
            w.build("dst", |t| {
                t.file("same", "same").atime(-600);
                t.file("grown", "old").atime(-700);
            });
            w.once()
                .no_dry_run()
                .agree(&["-ai", "--open-noatime", $($option),+])
                .exits(0);
        });
    };
}

spares_atimes!(
    atimes_of_compared_files_stay,
    ["-c", "--existing", "--max-size=5"]
);
spares_atimes!(
    atimes_of_files_in_place_stay,
    ["--inplace", "--no-whole-file", "-I"]
);

synctest!(crtimes_are_rejected, |w: World| {
    w.source("a").dest("");
    w.once().agree(&["-aiN"]).exits(1);
});

// ── devices and specials ────────────────────────────────────────────────────────────────────────
fn nodes(w: &World) {
    w.source("p| f");
    w.build("src", |t| {
        t.socket("s");
        t.char_device("null", 1, 3).mode(0o666);
        t.block_device("loop", 7, 1).mode(0o660);
    });
    w.build("dst", |t| {
        // With equal numbers, rsync 3.5.0 would mistake the character device for the block device and keep it.
        t.char_device("loop", 7, 2);
        t.file("p", "a file");
    });
}

macro_rules! makes_nodes {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, as root, |w: World| {
            nodes(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

makes_nodes!(devices_and_specials, ["-ai"]);
makes_nodes!(devices_alone, ["-rpti", "--devices"]);
makes_nodes!(specials_alone, ["-rpti", "--specials"]);
makes_nodes!(neither_devices_nor_specials, ["-rpti"]);
makes_nodes!(no_devices_out_of_archive, ["-ai", "--no-devices"]);
makes_nodes!(no_specials_out_of_archive, ["-ai", "--no-specials"]);
makes_nodes!(no_upper_d, ["-ai", "--no-D"]);

synctest!(a_device_with_another_number_is_replaced, as root, |w: World| {
    w.build("src", |t| drop(t.char_device("n", 1, 3)));
    w.build("dst", |t| drop(t.char_device("n", 1, 5)));
    w.agree(&["-ai"]).prints("cD");
});

synctest!(unprivileged_user_skips_devices, as user, |w: World| {
    w.source("p| f").dest("");
    if rustix::process::geteuid().is_root() {
        w.build("src", |t| drop(t.char_device("null", 1, 3).mode(0o666)));
    }
    w.agree(&["-ai"]);
});

// ── extended attributes ─────────────────────────────────────────────────────────────────────────
fn labels(w: &World) {
    w.needs_xattrs();
    w.build("src", |t| {
        t.file("a", "a")
            .xattr("user.one", "1")
            .xattr("user.two", "22");
        t.file("b", "b").xattr("user.long", "x".repeat(900));
        t.file("none", "n");
        t.dir("d").xattr("user.dir", "yes");
        t.file("bin", "b")
            .xattr("user.bytes", b"\0\xff\n")
            .xattr("user.empty", "");
    });
    w.build("dst", |t| {
        t.file("a", "a")
            .xattr("user.one", "old")
            .xattr("user.gone", "3");
        t.file("none", "n").xattr("user.gone", "3");
        t.dir("d");
    });
}

synctest!(extended_attributes_are_copied_and_removed, as both, |w: World| {
    labels(&w);
    w.agree(&["-aiX"]).prints("x a");
});

synctest!(
    extended_attributes_are_ignored_without_xattrs,
    |w: World| {
        labels(&w);
        w.agree(&["-ai"]).exits(0);
    }
);

synctest!(extended_attributes_with_delete_and_checksums, |w: World| {
    labels(&w);
    w.agree(&["-aicX", "--delete"]).exits(0);
});

synctest!(
    the_destination_has_no_extended_attributes,
    as root,
    |w: World| {
        w.needs_xattrs().tree("dst", "").mount_ramfs("dst");
        w.build("src", |t| drop(t.dir("d").xattr("user.dir", "yes")));
        w.no_dry_run().agree(&["-aX"]).exits(23).warns("setxattr(\"{W}/dst/d\",\"user.dir\") failed: Operation not supported (95)");
    }
);

synctest!(single_differing_xattr_value_is_updated, |w: World| {
    w.needs_xattrs().source("d/b").dest("d/b");
    w.build("src", |t| drop(t.file("d/a", "a").xattr("user.one", "1")));
    w.build("dst", |t| drop(t.file("d/a", "a").xattr("user.one", "2")));
    w.agree(&["-aiX"]).exits(0).prints(".f........x d/a");
});

synctest!(trusted_xattrs_are_copied_by_root, as root, |w: World| {
    w.needs_xattrs().build("src", |t| {
        t.file("a", "a").xattr("trusted.t", "1").xattr("user.u", "2");
        t.symlink("l", "a").xattr("trusted.link", "3");
    });
    w.agree(&["-aiX"]).exits(0);
});

synctest!(fake_super_at_the_source_shows_all_xattrs, as both, |w: World| {
    let is_root = rustix::process::geteuid().is_root();
    w.needs_xattrs().build("src", |t| {
        t.file("a", "a").xattr("user.u", "1").xattr("user.rsync.trusted.stored", "2");
        t.dir("d").xattr("user.u", "1");
        if is_root {
            t.file("a", "a").xattr("security.capability", CAPABILITY);
            t.dir("d").xattr("trusted.t", "value");
        }
    });
    w.agree(&["-aiX", "--fake-super"]);
    if is_root {
        w.agree_paths(&["-aiX", "-M--fake-super"], &["src/", "remote-option/"]);
        // The stored attribute counts. rsync sends both, and sets it again in each run.
        w.build("src", |t| {
            t.file("both", "b").xattr("user.rsync.trusted.t", "stored").xattr("trusted.t", "value");
        });
        w.once().no_dry_run().agree(&["-aiX", "--fake-super"]);
    }
});

synctest!(rsyncs_own_xattrs_are_hidden, |w: World| {
    w.needs_xattrs().build("src", |t| {
        drop(
            t.file("a", "a")
                .xattr("user.rsync.%note", "1")
                .xattr("user.u", "2"),
        )
    });
    w.agree(&["-aiX"]).exits(0);
});

synctest!(rsyncs_own_xattrs_are_copied_with_xx, |w: World| {
    w.needs_xattrs().build("src", |t| {
        drop(
            t.file("a", "a")
                .xattr("user.rsync.%note", "1")
                .xattr("user.u", "2"),
        )
    });
    w.agree(&["-aiXX"]).exits(0);
});

synctest!(xattrs_of_a_hard_link_group, |w: World| {
    w.needs_xattrs().build("src", |t| {
        t.file("a", "a").xattr("user.u", "2");
        t.hardlink("b", "a");
    });
    w.agree(&["-aiHX"]).exits(0);
});

// ── ACLs ────────────────────────────────────────────────────────────────────────────────────────
const READ_FOR_99: &[Acl] = &[
    Acl::Owner(6),
    Acl::User(99, 4),
    Acl::OwnGroup(4),
    Acl::Mask(4),
    Acl::Other(4),
];
const GROUPS: &[Acl] = &[
    Acl::Owner(7),
    Acl::User(5, 6),
    Acl::OwnGroup(5),
    Acl::Group(50, 7),
    Acl::Group(60, 1),
    Acl::Mask(7),
    Acl::Other(0),
];

fn lists(w: &World) {
    w.needs_acls();
    w.build("src", |t| {
        t.file("a", "a").acl(READ_FOR_99);
        t.file("b", "b").mode(0o640);
        t.file("c", "c").acl(GROUPS);
        t.dir("d").acl(GROUPS).default_acl(READ_FOR_99);
        t.file("plain", "p");
    });
    w.build("dst", |t| {
        t.file("a", "a");
        t.file("b", "b").acl(READ_FOR_99);
        t.file("plain", "p").acl(GROUPS);
    });
}

synctest!(acls_are_copied_and_removed, as both, |w: World| {
    lists(&w);
    w.agree(&["-aiA"]).prints(".f.......a. a");
});

synctest!(acls_are_ignored_without_acls_option, |w: World| {
    lists(&w);
    w.agree(&["-ai"]).exits(0);
});

synctest!(acls_imply_perms, |w: World| {
    lists(&w);
    w.agree(&["-rtiA"]).exits(0);
});

synctest!(acls_and_attributes_together, |w: World| {
    lists(&w);
    w.build("src", |t| {
        drop(t.file("e", "e").acl(GROUPS).xattr("user.u", "1"))
    });
    w.agree(&["-aiAX"]).exits(0);
});

synctest!(acls_with_numeric_ids, as root, |w: World| {
    lists(&w);
    w.agree(&["-aiA", "--numeric-ids"]).exits(0);
});

synctest!(default_acl_applies_to_new_files, |w: World| {
    w.needs_acls()
        .source("a%666 x%777 d/e")
        .build("dst", |t| drop(t.dir(".").default_acl(GROUPS)));
    w.agree(&["-rti"]).exits(0);
});

synctest!(default_acl_applies_to_a_new_destination, |w: World| {
    w.needs_acls()
        .source("a d/e")
        .build("dst", |t| drop(t.dir(".").default_acl(GROUPS)))
        .umask(0o077);
    w.agree_paths(&["-ri"], &["src/", "dst/new"]).exits(0);
    w.agree_paths(&["-a"], &["src/a", "dst/one/"]).exits(0);
});

synctest!(
    default_acl_applies_to_directories_that_are_not_copied,
    |w: World| {
        w.needs_acls()
            .source("a d/e/f")
            .build("dst", |t| {
                t.dir(".").default_acl(GROUPS);
                t.file("a", "old").mtime(-9);
                t.file("d/e/f", "old").mtime(-9);
            })
            .umask(0o077);
        let backups = ["-rtib", "--backup-dir=old/1"];
        w.agree(&backups).exits(0);
        let bare = ["-riR", "--no-implied-dirs"];
        w.agree_paths(&bare, &["src/./d/e/f", "dst/bare/"]).exits(0);
        let made = ["-ri", "--mkpath"];
        w.agree_paths(&made, &["src/", "dst/x/y"]).exits(0);
    }
);

// A user who is not in the group of a directory loses its setgid bit by any chmod, also by one that changes nothing.
synctest!(new_destination_keeps_a_setgid_bit_that_it_inherits, as user, |w: World| {
    w.needs_acls().source("k n/").build("dst", |t| {
        let as_in_source = [Acl::Owner(7), Acl::OwnGroup(5), Acl::Other(5)];
        t.dir(".").owner(1, 4).mode(0o2777);
        t.dir(".").default_acl(&as_in_source);
    });
    w.agree_paths(&["-r"], &["src/", "dst/new/"]).exits(0);
    w.agree_paths(&["-rp"], &["src/", "dst/perms/"]).exits(0);
});

synctest!(default_acl_with_perms, |w: World| {
    w.needs_acls()
        .source("a%666 x%777 d/e")
        .build("dst", |t| drop(t.dir(".").default_acl(GROUPS)));
    w.agree(&["-ai"]).exits(0);
});

synctest!(default_acl_is_removed_with_acls, |w: World| {
    w.needs_acls()
        .source("a d/e")
        .build("dst", |t| drop(t.dir("d").default_acl(GROUPS)));
    w.agree(&["-aiA"]).exits(0);
});

synctest!(privileged_attributes_as_super_user, as user, |w: World| {
    w.needs_xattrs().source("a b");
    w.build("src", |t| {
        let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        // A change of the owner would remove it.
        drop(t.file("a", "a").owner(1, 1).xattr("user.u", "1").xattr("security.capability", capability));
    });
    w.stderr_unordered();
    w.agree(&["-rltX", "--super"]).exits(23);
    w.agree(&["-rltX", "--no-super"]).exits(0);
    w.agree(&["-rltX"]).exits(0);
});

// ── --fake-super ────────────────────────────────────────────────────────────────────────────────
synctest!(fake_super_stores_privileged_attributes, as both, |w: World| {
    w.needs_xattrs().source("a%4755 d/%700 d/b%600 l->a p|");
    if rustix::process::geteuid().is_root() {
        w.build("src", |t| {
            t.file("other", "o").owner(4321, 8765);
            t.char_device("null", 1, 3).mode(0o666);
        });
    }
    w.agree(&["-ai", "--fake-super"]).exits(0);
});

synctest!(fake_super_with_unreadable_sources, as user, |w: World| {
    w.needs_xattrs().source("a shut%000 none/%000 none/x d/b").dest("extra d/extra");
    w.stderr_unordered();
    // A push creates the closed directory as it is, and a dry run of rsync does not try to open that.
    w.once().agree(&["-ai", "--fake-super"]).exits(23);
    w.no_dry_run().agree(&["-aiX", "--fake-super", "--delete"]).exits(23);
});

synctest!(fake_super_with_an_unreadable_file_deletes, as user, |w: World| {
    let sends_late = "a file that cannot be read stops deletions";
    w.not_pushed_to_stock(sends_late).not_served_pull(sends_late);
    w.needs_xattrs().source("a shut%000 d/b").dest("extra d/extra");
    w.stderr_unordered();
    w.agree(&["-ai", "--fake-super", "--delete"]).exits(23);
});

synctest!(fake_super_updates_existing_entries, as user, |w: World| {
    w.needs_xattrs().source("a%640 b%755 d/c").dest("a%600 b=old d/%700");
    w.agree(&["-ai", "--fake-super"]).exits(0);
});

synctest!(fake_super_with_checksums, as both, |w: World| {
    w.needs_xattrs().source("a%640 b%600 d/c").dest("a%640 b=B%600");
    // The attribute describes a character device.
    w.build("src", |t| drop(t.file("null", "").xattr("user.rsync.%stat", "20644 1,3 0:0")));
    w.agree(&["-aic", "--fake-super"]).exits(0);
});

synctest!(fake_super_stores_modes_that_take_directories_from_their_owner, as both, |w: World| {
    w.source("a/%644 b/%755 b/c").dest("a/%644 b/");
    w.stderr_unordered();
    w.agree(&["-a", "--fake-super"]);
    w.agree_paths(&["-a", "--fake-super"], &["src/", "new/"]);
});

synctest!(fake_super_keeps_directories_accessible, as both, |w: World| {
    w.needs_xattrs().source("open/f shut/f%400 shut/%500 in/deep/f in/deep/%500 in/%511").dest("shut/old shut/%700");
    w.agree(&["-ai", "--fake-super", "--delete"]).exits(0);
});

// A symlink is stored as a file, and rsync does not know that yet when it creates it.
synctest!(fake_super_with_omit_link_times, as both, |w: World| {
    w.source("l->a@-5 m->b@-5").dest("m=b@-9");
    w.agree(&["-aiJ", "--fake-super"]).exits(0).prints("cL+++++++++ l -> a");
    w.build("src", |tree| {
        tree.remove("l");
        tree.symlink("l", "c").mtime(-5);
    });
    w.agree(&["-aiJ", "--fake-super"]).exits(0).prints("cLc.t...... l -> c");
});

// rsync reads the attributes of an entry only if it compares them.
synctest!(attributes_that_are_not_compared_are_not_read, as user, |w: World| {
    w.needs_xattrs().source("f l->x p| d/");
    w.dest("").build("dst", |t| {
        for name in ["f", "l", "p", "d"] {
            t.file(name, "old").xattr("user.x", "v").mtime(90).mode(0);
        }
    });
    w.keep_dest().once();
    for (options, exit) in [
        (&["-aiX", "--exclude=f"][..], 0),
        (&["-aiX", "--ignore-existing", "--exclude=d"], 0),
        (&["-aiXu"], 0),
        (&["-aiX", "--max-size=0", "--exclude=f"], 0),
        (&["-riX", "--exclude=f"], 0),
        (&["-aiX", "--no-D", "--no-l", "--exclude=f"], 0),
    ] {
        w.restore_dest().agree(options).exits(exit);
    }
});

synctest!(last_of_super_and_fake_super_wins, as root, |w: World| {
    w.needs_xattrs().build("src", |t| drop(t.file("a", "a").owner(7, 7).mode(0o4755)));
    for (dest, options) in [
        ("1", ["--fake-super", "--no-super"]),
        ("2", ["--fake-super", "--super"]),
        ("3", ["--no-super", "--fake-super"]),
        ("4", ["--super", "--fake-super"]),
    ] {
        w.agree_paths(&["-ai", options[0], options[1]], &["src/", dest]).exits(0);
    }
});

synctest!(fake_super_replaces_real_attributes, as root, |w: World| {
    w.needs_xattrs().source("suid%4755 sealed%444 gone%644 l->a k->a p|%640 sgid/%2755 shut/f%555 shut/%555");
    w.dest("suid%4755 sealed%444 gone%644 l->a k->other p|%640 sgid/%2755 shut/f%555 shut/%555");
    w.build("dst", |t| drop(t.file("gone", "gone").xattr("user.rsync.%stat", "100644 0,0 0:0")));
    for tree in ["src", "dst"] {
        w.build(tree, |t| drop(t.char_device("c", 1, 3).mode(0o600)));
    }
    w.agree(&["-ai", "--fake-super"]).exits(0);
    w.tree("src2", "suid%4755 q|%4755").tree("dst", "q|%644");
    w.agree_paths(&["-ai", "--fake-super"], &["src2/", "dst/"]);
});

synctest!(fake_super_with_acls_and_attributes, as root, |w: World| {
    lists(&w);
    w.build("src", |t| drop(t.file("e", "e").owner(77, 88).acl(GROUPS).xattr("user.u", "1")));
    w.agree(&["-aiAX", "--fake-super"]).exits(0);
});

synctest!(fake_super_removes_leftover_attributes, as both, |w: World| {
    w.needs_xattrs().source("a").dest("a");
    w.build("dst", |t| {
        t.file("a", "old").xattr("user.rsync.%other", "1").xattr("user.rsync.trusted.t", "2");
    });
    w.agree(&["-aiX", "--fake-super"]).exits(0);
});

synctest!(corrupt_stored_acl_is_replaced, as root, |w: World| {
    w.needs_xattrs().build("src", |t| {
        t.file("file", "a");
        t.dir("dir");
    });
    w.build("dst", |t| {
        t.file("file", "a").xattr("user.rsync.%aacl", [0xff; 16]);
        t.dir("dir").xattr("user.rsync.%dacl", [0xff; 16]);
    });
    w.agree(&["-aA", "-M--fake-super"]).exits(0);
    w.agree(&["-aA", "-M--fake-super"]).exits(0);
});

synctest!(corrupt_fake_super_attribute_exits_11, |w: World| {
    w.only_local("--fake-super applies only to the client");
    w.needs_xattrs().build("src", |t| {
        drop(t.file("d/a", "a").xattr("user.rsync.%stat", "oops"))
    });
    // Drops rsync's line about one of its processes ending the other.
    w.mask_with(|line| (!line.contains("received SIGUSR1")).then(|| line.to_owned()));
    w.dest("d/")
        .once()
        .agree(&["-ai", "--fake-super"])
        .exits(11);
});

synctest!(
    corrupt_fake_super_attribute_of_the_root_exits_11,
    |w: World| {
        w.only_local("--fake-super applies only to the client");
        w.needs_xattrs().source("").dest("").once();
        w.mask_with(|line| (!line.contains("received SIGUSR1")).then(|| line.to_owned()));
        let corrupt = |tree| w.build(tree, |t| drop(t.dir(".").xattr("user.rsync.%stat", "oops")));
        corrupt("dst");
        w.agree(&["-ai", "--fake-super"]).exits(11);
        corrupt("src");
        w.agree(&["-ai", "--fake-super"]).exits(11);
    }
);

synctest!(fifo_replaces_a_socket, as root, |w: World| {
    w.source("p|").build("dst", |t| drop(t.socket("p")));
    w.agree(&["-ai"]).exits(0);
});

synctest!(fake_super_conflicts_with_xx, |w: World| {
    w.source("a").dest("");
    w.once().agree(&["-aiXX", "--fake-super"]);
});

synctest!(xattr_change_sets_the_exact_time, as both, |w: World| {
    for (tree, value) in [("src", "new"), ("dst", "old")] {
        w.needs_xattrs().build(tree, |t| {
            for name in ["other", "lost", "same"] {
                t.file(name, name).xattr("user.a", if name == "other" { value } else { "same" });
            }
            t.dir("d").xattr("user.a", value);
            t.file("mode", "mode").mode(if tree == "src" { 0o600 } else { 0o644 });
        });
    }
    // Different nanoseconds within the same second.
    w.build("dst", |t| ["other", "lost", "same", "mode", "d"].iter().for_each(|name| t.nanos(name, 5)));
    w.build("dst", |t| drop(t.file("lost", "lost").xattr("user.b", "1")));
    w.build("dst", |t| t.nanos("lost", 5));
    w.agree(&["-aiX"]).exits(0).prints(".d........x d/");
    w.build("dst", |t| ["other", "d"].iter().for_each(|name| t.nanos(name, 5)));
    w.build("src", |t| drop(t.dir("d").xattr("user.a", "newer")));
    w.agree(&["-rlpiX"]).exits(0);
});

// --fake-super stores a new owner or ACL, so that the file keeps its set-ID bits and its mode.
synctest!(fake_super_reports_the_changes_that_it_found, as root, |w: World| {
    let text = "plain%640 suid%4755 sgid%2755 both%600 dir/%2755";
    w.needs_xattrs().needs_acls().source(text);
    w.dest("plain%640 suid%4755 sgid%2755 both%4711 dir/%2755").keep_dest();
    for options in [&["-ai"][..], &["-aiA"], &["-aiAX"], &["-ai", "--no-p"]] {
        for owner in ["--no-fuzzy", "--chown=1:1", "--chown=:1"] {
            let options = [options, &["--fake-super", owner]].concat();
            w.restore_dest().agree(&options).exits(0);
        }
    }
    w.build("src", |t| drop(t.file("with_acl", "a").acl(GROUPS)));
    w.build("dst", |t| drop(t.file("with_acl", "a")));
    w.keep_dest();
    for options in [&["-aiA"][..], &["-aiAX", "--chown=1:1"]] {
        w.restore_dest().agree(&[options, &["--fake-super"]].concat()).exits(0);
    }
});
