//! How file content is written: temporary files, in place, append, backups, sparse files; and the removal of sources.

use crate::kit::{Acl, World, noise, synctest};
use std::path::Path;
use std::process::Command;

/// A destination with an older `a`, an equal `b`, and extra entries.
fn older(w: &World) {
    w.source("a=newer@5 b d/c=longer@9 d/e new")
        .dest("a=old b d/c=long d/e old d/old");
}

macro_rules! places {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            older(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

// ── backups ─────────────────────────────────────────────────────────────────────────────────────
places!(backup_renames_the_old_file, ["-aib"]);
places!(backup_with_delete, ["-aib", "--delete"]);
places!(backup_with_another_suffix, ["-aib", "--suffix=.orig"]);
places!(
    backup_with_another_suffix_and_delete,
    ["-aib", "--suffix=.orig", "--delete"]
);
places!(
    backup_with_an_empty_suffix_equal_to_none,
    ["-aib", "--backup-dir=bk", "--suffix="]
);
places!(backup_into_a_directory, ["-aib", "--backup-dir=bk"]);
places!(
    backup_into_a_directory_with_a_suffix,
    ["-aib", "--backup-dir=bk", "--suffix=.orig"]
);
places!(
    backup_into_a_directory_beside,
    ["-aib", "--backup-dir=../bk/deep"]
);
places!(
    backup_into_an_absolute_directory,
    ["-aib", "--backup-dir={W}/bk"]
);
places!(
    backup_into_a_directory_with_delete,
    ["-aib", "--backup-dir=../bk", "--delete"]
);
places!(
    backup_dir_implies_backup,
    ["-ai", "--backup-dir=../bk", "--delete"]
);
places!(backup_with_vv, ["-avvb", "--backup-dir=../bk", "--delete"]);
places!(backup_in_place, ["-aib", "--inplace"]);
places!(backup_with_delete_after, ["-aib", "--delete-after"]);
places!(no_backup_overrides_backup, ["-aib", "--no-backup"]);

// The backup of `f` gets the name of a new file, and is backed up itself.
synctest!(backup_with_the_name_of_a_new_file, |w: World| {
    w.source("f=new f~=new f.o=new")
        .dest("f=old@-9")
        .keep_dest();
    for options in [
        &["-ab"][..],
        &["-ab", "--suffix=.o"],
        &["-ab", "--inplace"],
        &["-ab", "--delay-updates"],
    ] {
        w.restore_dest().agree(options);
    }
});

// The backup of `f` replaces a file that only gets other attributes, so it must not get these itself.
synctest!(
    backup_with_the_name_of_a_file_with_other_attributes,
    |w: World| {
        w.source("f=new f~=same%600")
            .dest("f=old@-9 f~=same")
            .keep_dest();
        for options in [
            &["-aib"][..],
            &["-aibc"],
            &["-aibc", "--inplace"],
            &["-aib", "--delay-updates"],
            &["-aAXib"],
        ] {
            w.restore_dest().agree(options).exits(0);
        }
        // Some names have their places in the list between the two.
        w.build("src", |t| {
            (0..100).for_each(|n| drop(t.file(format!("f-{n}"), "")))
        });
        w.restore_dest().agree(&["-aib"]).exits(0);
    }
);

// rsync replaces a symlink at once, and then finds the backup.
synctest!(
    backup_of_a_replaced_entry_with_the_name_of_an_unchanged_file,
    |w: World| {
        w.source("f->new f~=same g->new g~=same%600 h=new h~");
        w.dest("f=old f~=same g=old@-9 g~=same h=old@-9 h~")
            .keep_dest();
        w.tree("alt", "h=new");
        w.agree(&["-aib"]).exits(0);
        w.restore_dest().agree(&["-aibc"]).exits(0);
        w.restore_dest()
            .agree(&["-aib", "--copy-dest=../alt"])
            .exits(0);
    }
);

synctest!(backup_with_the_name_of_a_hard_link, |w: World| {
    w.source("f=new f~=same%600 g==f~")
        .dest("f=old@-9 f~=same g==f~")
        .keep_dest();
    w.agree(&["-abH"]).exits(0);
    w.source("e==f~").dest("e==f~").agree(&["-abH"]).exits(0);
});

// Only the destination has several names for the file. Each is transferred, because its time differs.
synctest!(
    backup_with_the_name_of_a_file_that_has_other_names,
    |w: World| {
        w.source("e=same@-7 f=new f~=same@-5 g=same@-3")
            .dest("e=same f=old@-9 f~==e g==e")
            .keep_dest();
        w.agree(&["-ab"]).exits(0);
        w.source("h~=same@-1")
            .dest("h~==e")
            .agree(&["-ab"])
            .exits(0);
    }
);

// At first, the last name needs no change; the change for the first one makes it need one.
synctest!(
    backup_with_the_name_of_a_file_that_another_name_changes,
    |w: World| {
        w.source("e=same%600 f=new f~=same")
            .dest("e=same f=old@-9 f~==e")
            .keep_dest();
        w.agree(&["-ab"]).exits(0);
        w.restore_dest()
            .source("f~=same%640 g=same%604")
            .agree(&["-ab"])
            .exits(0);
    }
);

synctest!(
    backup_of_a_replaced_entry_with_the_name_of_a_hard_link,
    |w: World| {
        w.source("f->new f~=same g==f~")
            .dest("f=old@-9 f~=same")
            .keep_dest();
        w.agree(&["-abH"]).exits(0);
        w.restore_dest()
            .source("a==f~ z==f~")
            .agree(&["-abH"])
            .exits(0);
    }
);

synctest!(
    backup_with_the_name_of_a_file_with_other_values,
    |w: World| {
        w.needs_xattrs()
            .source("f=new f~=same")
            .dest("f=old@-9 f~=same");
        w.build("src", |t| {
            drop(t.file("f~", "same").xattr("user.long", "v".repeat(99)))
        });
        w.agree(&["-abX"]).exits(0);
    }
);

synctest!(
    backup_of_a_large_file_with_the_name_of_a_new_file,
    |w: World| {
        for old in ["f=old@-9", "f=old@-9 f~=older@-9"] {
            w.build("src", |t| {
                t.file("f", vec![b'x'; 3 << 20]);
                t.file("f~", "new");
            });
            w.dest(old).no_dry_run().agree(&["-ab"]).exits(0);
        }
    }
);

// The rate limit delays the large file. Meanwhile, another thread must not make the symlink, which needs no content.
synctest!(
    backup_of_a_slow_file_with_the_name_of_a_new_link,
    |w: World| {
        let reason = "rsync replaces the new symlink by the backup";
        w.not_pushed_to_stock(reason).not_served_pull(reason);
        w.build("src", |t| drop(t.file("f", vec![b'x'; 2 << 20])));
        w.source("f~->nowhere")
            .dest("f=old@-9")
            .keep_dest()
            .no_dry_run();
        for name_count in [0, 1, 63, 100] {
            // They have their places in the list between the two.
            w.build("src", |t| {
                (0..name_count).for_each(|n| drop(t.file(format!("f-{n}"), "")))
            });
            w.restore_dest().alone(&["-ab", "--bwlimit=4m"]).exits(0);
            let dst = w.tested().join("dst");
            assert_eq!(
                std::fs::read_link(dst.join("f~")).unwrap(),
                std::path::Path::new("nowhere"),
                "{name_count}"
            );
            assert_eq!(
                std::fs::read(dst.join("f~~")).unwrap(),
                b"old",
                "{name_count}"
            );
        }
    }
);

synctest!(backup_with_the_name_of_a_new_link, |w: World| {
    let reason = "rsync loses the new symlink or the backup, depending on what comes first";
    w.not_pushed_to_stock(reason).not_served_pull(reason);
    w.build("src", |t| drop(t.file("f", vec![b'x'; 3 << 20])));
    w.source("f~->nowhere g=new h=new h~==g")
        .dest("f=old@-9 h=old@-9")
        .keep_dest()
        .no_dry_run();
    w.tree("alt", "f~->nowhere h~=new");
    w.agree(&["-ab", "--inplace"]).exits(0);
    w.restore_dest().agree(&["-abH", "--exclude=f~"]).exits(0);
    for options in [&["-ab"][..], &["-ab", "--link-dest=../alt"]] {
        w.restore_dest().alone(options).exits(0);
        let kept = |name: &str| std::fs::read(w.tested().join("dst").join(name)).unwrap();
        assert_eq!(
            (&kept("f~~")[..], &kept("h~~")[..]),
            (&b"old"[..], &b"old"[..]),
            "{options:?}"
        );
        assert_eq!((&kept("h~")[..], kept("f").len()), (&b"new"[..], 3 << 20));
    }
});

synctest!(backups_of_backups, |w: World| {
    w.source("a=3").dest("a=22 a~=1").no_dry_run();
    w.agree(&["-aib"]).exits(0);
    w.source("a=4444@50");
    w.agree(&["-aib", "--delete"]).exits(0);
});

// What is replaced is backed up, even if it is itself a backup by its name. The backup of `f~` replaces `f~~`.
synctest!(replaced_backups_are_backed_up, |w: World| {
    w.source("f~=new f~~=same%600 g~->new g~~=same h~=new h~~")
        .dest("f~=old@-9 f~~=same g~=old@-9 g~~=same h~=old@-9")
        .keep_dest();
    for options in [
        &["-aib"][..],
        &["-aibc"],
        &["-ab", "--inplace"],
        &["-aib", "--delay-updates"],
        &["-aibH", "--delete"],
    ] {
        w.restore_dest().agree(options).exits(0);
    }
});

synctest!(a_name_that_is_only_the_suffix_is_backed_up, |w: World| {
    w.source("d/").dest("~ d/~ gone/~ .o d/.o").keep_dest();
    w.agree(&["-aib", "--delete", "--delete-excluded"]).exits(0);
    w.restore_dest()
        .agree(&["-aib", "--delete-after", "--delete-excluded", "--suffix=.o"])
        .exits(0);
    w.source("~/x d/~/x")
        .restore_dest()
        .agree(&["-aib"])
        .exits(0);
});

synctest!(a_deleted_backup_is_not_backed_up_again, |w: World| {
    w.source("a").dest("gone gone~ other.o");
    w.agree(&["-aib", "--delete", "--filter=R *~"])
        .exits(0)
        .prints("*deleting   gone~");
    w.dest("gone gone~ other.o")
        .agree(&["-aib", "--delete", "--suffix=.o", "--delete-excluded"])
        .exits(0);
});

synctest!(backup_dir_backs_up_names_with_the_suffix, |w: World| {
    w.source("a").dest("gone gone.o");
    w.agree(&["-aib", "--delete", "--backup-dir=../bk", "--suffix=.o"])
        .exits(0)
        .prints("*deleting   gone.o");
});

synctest!(
    a_backup_dir_inside_is_moved_into_itself_by_delete,
    |w: World| {
        older(&w);
        w.agree(&["-aib", "--backup-dir=bk", "--delete"]).exits(0);
    }
);

synctest!(backups_on_another_file_system, as root, |w: World| {
    older(&w);
    w.source("l->new p").dest("l->old p| d/l->gone").tree("bk", "").mount_tmpfs("bk", 1 << 20);
    w.once().agree(&["-aib", "--backup-dir={W}/bk", "--delete", "--suffix=.o"]).exits(0);
});

synctest!(backup_of_another_users_special_file_on_another_file_system, as user, |w: World| {
    w.source("l->x").dest("").tree("bk", "");
    w.mount_tmpfs("bk", 1 << 20);
    w.build("bk", |t| drop(t.dir("open").mode(0o777)));
    w.build("dst", |t| {
        for name in ["gone", "l"] {
            t.fifo(name).mode(0o666).owner(1, 1);
        }
    });
    let options = ["-aib", "--super", "--delete", "--backup-dir={W}/bk/open"];
    w.stderr_unordered().once().agree(&options).exits(23).warns("Operation not permitted (1)");
});

synctest!(leftovers_do_not_prevent_backups_on_another_file_system, as root, |w: World| {
    w.not_pushed_to_stock("rsync removes no leftovers").not_served_pull("rsync removes no leftovers");
    w.source("a->new").dest("a->old").tree("bk", "").mount_tmpfs("bk", 1 << 20);
    // The temporary name of `a`.
    std::os::unix::fs::symlink("half", w.tested().join("bk/.a.Auwq2e")).unwrap();
    w.no_dry_run().once().agree(&["-aib", "--backup-dir={W}/bk"]).exits(0);
});

/// Declares a case with backups on another file system, where a hard link is not possible, of all kinds of entries.
macro_rules! backups_elsewhere {
    ($name:ident, [$($option:expr),+]) => {
        synctest!($name, as root, |w: World| {
            w.needs_xattrs().needs_acls().source("a=new d/b=new l->new").dest("l->old").tree("bk", "");
            w.build("dst", |t| {
                let acl = [Acl::Owner(6), Acl::User(5, 6), Acl::OwnGroup(4), Acl::Mask(6), Acl::Other(0)];
                for path in ["a", "d/b", "d/gone", "gone"] {
                    t.file(path, "old!").xattr("user.k", "v").acl(&acl).owner(7, 8);
                }
                t.dir("d").mode(0o751).owner(11, 12).xattr("user.dir", "v");
                t.file("suid", "").mode(0o4755);
                t.symlink("lgone", "x").owner(9, 9);
                t.fifo("p").owner(3, 3);
                t.char_device("null", 1, 3);
            });
            w.mount_tmpfs("bk", 1 << 20);
            w.once().agree(&[$($option),+, "--delete", "--backup-dir={W}/bk"]).exits(0);
        });
    };
}

backups_elsewhere!(
    backup_on_another_file_system_keeps_preserved_attributes,
    ["-aAX"]
);
backups_elsewhere!(backup_on_another_file_system_keeps_owner_and_time, ["-a"]);
backups_elsewhere!(
    backup_on_another_file_system_keeps_only_requested_ones,
    ["-rtg"]
);
backups_elsewhere!(backup_on_another_file_system_keeps_only_the_mode, ["-r"]);
backups_elsewhere!(
    delay_updates_with_backups_on_another_file_system,
    ["-aX", "--delay-updates"]
);

synctest!(a_backup_dir_that_may_not_be_written, as user, |w: World| {
    w.source("a=new b=new z").dest("a=old! old").build("bk", |t| drop(t.dir(".").owner(1, 1).mode(0o555)));
    w.not_pulled("rsync reports `Success (0)` as the reason there");
    w.stderr_unordered().once().agree(&["-ab", "--backup-dir=../bk", "--delete"]).exits(11);
});

synctest!(inplace_leaves_only_the_file_whose_backup_fails, as user, |w: World| {
    w.source("a=new b=new c=new z").dest("a=old! b=old! old").build("bk", |t| drop(t.dir(".").owner(1, 1).mode(0o555)));
    let options = ["-a", "--inplace", "--backup-dir=../bk"];
    w.stderr_unordered().no_dry_run().once().agree(&options).exits(23).warns("open \"{W}/dst/../bk/a\"");
});

synctest!(a_backup_dir_that_is_a_file, |w: World| {
    older(&w);
    w.file("bk", "file")
        .agree(&["-ab", "--backup-dir=../bk"])
        .exits(1)
        .warns("The backup-dir is not a directory: ../bk");
});

synctest!(an_option_that_names_a_path_below_a_file, |w: World| {
    older(&w);
    w.file("f", "file");
    for option in ["--backup-dir=../f/x", "--temp-dir=../f/x/y"] {
        let what = if option.starts_with("--temp") {
            "temp-dir "
        } else {
            ""
        };
        let path = option.split_once('=').unwrap().1;
        w.agree(&["-aib", option])
            .exits(11)
            .warns(&format!("Failed to stat {what}{path}: Not a directory"));
    }
});

synctest!(an_option_that_names_a_path_in_a_closed_directory, as user, |w: World| {
    older(&w);
    w.tree(".", "closed/%000");
    for option in ["--backup-dir=../closed/x", "--temp-dir=../closed/x"] {
        w.agree(&["-aib", option]).exits(11).warns(": Permission denied");
    }
});

/// Declares a case of a backup directory that a deletion creates in a directory of the transfer.
macro_rules! new_backup_dir {
    ($name:ident, $place:literal, $($option:literal),+) => {
        synctest!($name, |w: World| {
            // rsync finishes the directories above the next level before it deletes there.
            w.source("d/f d/e/k").dest("d/f d/x d/e/k");
            let backup_dir = concat!("--backup-dir=", $place);
            let exclude = concat!("--exclude=/", $place);
            w.no_dry_run()
                .agree(&["-ai", "--delete", backup_dir, exclude, $($option),+])
                .prints("*deleting   d/x");
        });
    };
}

new_backup_dir!(a_new_backup_dir_in_the_destination, "old", "-b");
new_backup_dir!(a_new_backup_dir_in_a_new_one, "old/er", "-b");
new_backup_dir!(a_new_backup_dir_in_a_directory, "d/old", "-b");
new_backup_dir!(
    a_new_backup_dir_with_delete_after,
    "d/old",
    "--delete-after"
);
synctest!(backup_dir_through_another_directory, |w: World| {
    w.source("d/ f old/").dest("d/ f=older old/");
    // Whether the directory has another time when rsync examines it depends on how far its receiver is.
    w.no_dry_run()
        .once()
        .agree(&["-ab", "--backup-dir=d/../old"]);
});

synctest!(an_excluded_backup_dir_stays, |w: World| {
    older(&w);
    w.agree(&["-aib", "--backup-dir=bk", "--delete", "--exclude=/bk"])
        .exits(0);
});

synctest!(backups_of_symlinks_and_fifos, |w: World| {
    w.source("l->new p").dest("l->old p| x->y f|");
    w.agree(&["-aib", "--delete"]).exits(0);
});

synctest!(backups_of_a_deleted_directory, |w: World| {
    w.source("d=file").dest("d/x d/y/z e/f");
    w.agree(&["-aib", "--backup-dir=../bk", "--delete"])
        .exits(0);
});

synctest!(backups_keep_modes_and_times, |w: World| {
    w.source("a=new d/b=new")
        .dest("a=old!%600@-5 d/%750 d/b=old!%640@-6");
    w.agree(&["-aib", "--backup-dir=../bk"]).exits(0);
});

synctest!(
    directories_of_backups_have_no_extended_attributes,
    |w: World| {
        w.needs_xattrs();
        for (name, content) in [("src", "new"), ("dst", "old")] {
            w.build(name, |tree| {
                tree.dir("d/e").xattr("user.e", name);
                tree.dir("d").xattr("user.d", name);
                tree.file("d/e/f", content).xattr("user.f", name);
                tree.file("d/f", content).xattr("user.f", name);
            });
        }
        w.dest("d/e/extra");
        w.agree(&["-aibX", "--backup-dir=../bk", "--delete"])
            .exits(0);
    }
);

// ── in place ────────────────────────────────────────────────────────────────────────────────────
places!(inplace_updates, ["-ai", "--inplace"]);
places!(inplace_with_delete, ["-ai", "--inplace", "--delete"]);

synctest!(inplace_keeps_the_inode, |w: World| {
    w.source("a=new").dest("a=old! b==a");
    w.agree(&["-ai", "--inplace"]).exits(0);
});

synctest!(without_inplace_the_inode_is_new, |w: World| {
    w.source("a=new").dest("a=old! b==a");
    w.agree(&["-ai"]).exits(0);
});

synctest!(inplace_truncates, |w: World| {
    w.source("a=s b*1000").dest("a*200000 b*300000");
    w.agree(&["-ai", "--inplace"]).exits(0);
});

synctest!(inplace_cannot_write_another_users_read_only_file, as user, |w: World| {
    w.source("a=new b").build("dst", |t| drop(t.file("a", "old!").owner(1, 1).mode(0o444)));
    w.stderr_unordered();
    w.agree(&["-ai", "--inplace"]);
});

synctest!(inplace_writes_an_own_read_only_file, as user, |w: World| {
    w.source("a=new%444").dest("a=old!%444");
    w.stderr_unordered();
    w.agree(&["-ai", "--inplace"]);
});

// ── deltas in a local copy ──────────────────────────────────────────────────────────────────────
places!(delta_transfer, ["-ai", "--no-whole-file"]);
places!(delta_transfer_by_the_short_name, ["-avv", "--no-W"]);
places!(
    delta_transfer_with_stats,
    ["-ai", "--no-whole-file", "--stats", "--info=stats2"]
);
places!(
    delta_transfer_with_backups,
    ["-aib", "--no-whole-file", "--delete"]
);
places!(
    delta_transfer_with_delay_updates,
    ["-ai", "--no-whole-file", "--delay-updates"]
);
places!(
    delta_transfer_with_append,
    ["-ai", "--no-whole-file", "--append"]
);
places!(
    delta_transfer_with_copy_dest,
    ["-ai", "--no-whole-file", "--copy-dest=../src"]
);
places!(
    delta_transfer_in_place,
    ["-ai", "--no-whole-file", "--inplace"]
);
places!(
    delta_transfer_in_place_with_backups,
    ["-aib", "--no-whole-file", "--inplace", "--backup-dir=bk"]
);
places!(
    last_of_whole_file_and_no_whole_file_wins,
    ["-ai", "--no-whole-file", "-W", "--stats", "--info=stats2"]
);

synctest!(delta_of_a_large_file, |w: World| {
    for options in [
        &["-ai", "--no-whole-file"][..],
        &["-ai", "--no-whole-file", "--inplace"],
    ] {
        w.source("big*1000000@1 grown*700001@1 cut*300000@1")
            .dest("big*1000001 grown*400000 cut*900000");
        w.agree(options).exits(0).prints(">f.st...... grown");
    }
});

synctest!(inplace_does_not_rewrite_equal_blocks, |w: World| {
    // Zeros over a hole: writing them would fill it.
    w.build("src", |t| {
        drop(t.file("a", [vec![0; 600_000], vec![1; 400_000]].concat()))
    });
    w.build("dst", |t| {
        drop(t.sparse(
            "a",
            1_000_000,
            &[(600_000, &[1; 200_000]), (900_000, b"other")],
        ))
    });
    w.compare_blocks()
        .agree(&["-I", "-ai", "--inplace", "--no-whole-file"])
        .exits(0)
        .prints(">f......... a");
});

synctest!(inplace_delta_with_holes, |w: World| {
    holes(&w);
    w.dest("all*500000 tail*10000 zeros=short");
    w.agree(&["-aiS", "--inplace", "--no-whole-file"]).exits(0);
});

synctest!(delta_against_an_unreadable_basis, as user, |w: World| {
    w.stderr_unordered();
    for options in ["-ri", "-ai", "-rvvb", "-rci"] {
        for more in [&["--no-whole-file"][..], &["--no-whole-file", "--inplace", "--info=stats2"], &["-W"]] {
            w.source("a=newer@5%640 b").dest("a=old%000 b");
            w.agree(&[&[options], more].concat()).exits(0);
        }
    }
});

synctest!(inplace_delta_of_swapped_parts, |w: World| {
    // The old beginning is overwritten before it could be reused.
    let part = |seed: u32| {
        (0..100_000u32)
            .flat_map(|n| (n * 31 + seed).to_le_bytes())
            .collect::<Vec<u8>>()
    };
    w.build("src", |t| {
        drop(t.file("a", [part(7), part(1 << 30), b"more".to_vec()].concat()))
    });
    w.build("dst", |t| {
        drop(t.file("a", [part(1 << 30), part(7)].concat()))
    });
    w.once()
        .agree(&["-ai", "--inplace", "--no-whole-file"])
        .exits(0);
});

// ── append ──────────────────────────────────────────────────────────────────────────────────────
synctest!(append_adds_the_tail, |w: World| {
    w.source("a=0123456789 same longer=01 new")
        .dest("a=01234 same longer=0123");
    w.agree(&["-ai", "--append"]).exits(0);
});

synctest!(append_does_not_compare_the_beginning, |w: World| {
    w.source("a=0123456789").dest("a=XXXXX");
    w.agree(&["-ai", "--append"]).exits(0);
});

synctest!(append_verify_compares_the_beginning, |w: World| {
    w.source("a=0123456789 b=abcdef").dest("a=XXXXX b=abc");
    w.stderr_unordered()
        .agree(&["-ai", "--append-verify"])
        .warns("WARNING: a failed verification -- update");
});

synctest!(append_verify_retry_prints_the_name, |w: World| {
    w.source("a=0123456789").dest("a=XXXXX");
    w.agree(&["-a", "--append-verify", "--out-format=%n"])
        .exits(0);
});

synctest!(
    append_skips_longer_files_with_their_attributes,
    |w: World| {
        w.source("a=01%600@9 same%600 b=012%640@9")
            .dest("a=0123 same b=0");
        w.agree(&["-ai", "--append"]).exits(0);
    }
);

synctest!(append_skips_differing_files_of_equal_length, |w: World| {
    w.source("a=0123%600@9 b=0123@9").dest("a=abcd b=0123");
    w.agree(&["-ai", "--append"]).exits(0);
    w.agree(&["-aic", "--append"]).exits(0);
});

synctest!(append_to_a_large_file, |w: World| {
    w.source("a*300000").dest("a*200000");
    w.agree(&["-ai", "--append"]).exits(0);
});

// ── partial and temporary files, delayed updates ────────────────────────────────────────────────
places!(partial_leaves_nothing_after_success, ["-ai", "--partial"]);
places!(
    partial_dir_leaves_nothing_after_success,
    ["-ai", "--partial-dir=.part"]
);
places!(
    partial_dir_is_not_deleted,
    ["-ai", "--partial-dir=.part", "--delete"]
);
places!(delay_updates, ["-ai", "--delay-updates"]);
places!(
    delay_updates_with_delete_after,
    ["-ai", "--delay-updates", "--delete-after"]
);
places!(delay_updates_with_backups, ["-aib", "--delay-updates"]);
places!(fsync_changes_nothing, ["-ai", "--fsync"]);
places!(whole_file_changes_nothing, ["-aiW"]);
places!(compression_has_no_effect, ["-aiz"]);
synctest!(remote_options_have_no_effect_on_a_local_copy, |w: World| {
    older(&w);
    w.only_local("the options have an effect with a peer")
        .agree(&["-ai", "-e", "nowhere", "--rsync-path=nothing"])
        .exits(0);
    let options = "-aiz -s --timeout=5 --blocking-io --port=1 --sockopts=x -4 --no-motd --trust-sender --compress-level=3 \
        --skip-compress=gz --checksum-seed=5 --max-alloc=1g -B800";
    w.agree(&options.split_whitespace().collect::<Vec<_>>())
        .exits(0);
});
places!(timeout_has_no_effect, ["-ai", "--timeout=30"]);
places!(bwlimit_prints_nothing, ["-ai", "--bwlimit=100m"]);
places!(stop_at_a_future_time, ["-ai", "--stop-at=2099-12-31T23:59"]);
places!(stop_after_some_minutes, ["-ai", "--stop-after=5"]);

synctest!(delay_updates_keeps_hard_links, |w: World| {
    w.source("a=newer@5 d/b==a z==a y")
        .dest("a=old d/b==a y z=other x");
    w.agree(&["-aiH", "--delay-updates"]).exits(0);
});

synctest!(delay_updates_of_hard_links_with_backups, |w: World| {
    w.source("a=newer@5 d/b==a z==a")
        .dest("a=old d/b=old z=other x");
    w.agree(&["-aibH", "--delay-updates", "--backup-dir=../bak"])
        .exits(0);
});

synctest!(delay_updates_with_copy_dest_removes_sources, |w: World| {
    w.source("a b c=3 d/a").tree("alt", "a%600 b c=2").dest("");
    w.agree(&[
        "-ai",
        "--delay-updates",
        "--remove-source-files",
        "--copy-dest=../alt",
    ])
    .exits(0);
});

synctest!(
    file_with_the_name_of_the_partial_dir_is_replaced,
    |w: World| {
        w.source("a=newer@5 d/c=newer@5")
            .dest("a .part=file d/c d/.part->..");
        w.agree(&["-ai", "--delay-updates", "--partial-dir=.part"])
            .exits(0);
    }
);

synctest!(only_directories_are_excluded_as_partial_dirs, |w: World| {
    w.not_with_server("old protocols are possible only over a remote shell");
    w.once()
        .source(".part->a x/.part y/.part/f z/.part| z/.~tmp~")
        .dest("y/.part/g a/.part extra/.part/f")
        .keep_dest();
    for dir in [
        "--partial-dir=.part",
        "--partial-dir=.part/",
        "--partial-dir=x/.part",
        "--delay-updates",
    ] {
        for options in [
            &["-ai"][..],
            &["-ai", "--delete"],
            &["-a", "--delete-after", "--protocol=29"],
        ] {
            w.restore_dest().agree(&[options, &[dir]].concat());
        }
    }
});

synctest!(
    missing_parent_of_the_partial_dir_discards_delayed_files,
    |w: World| {
        w.source("a b d/c").dest("d/x/");
        w.agree(&["-a", "--delay-updates", "--partial-dir=x/y"])
            .exits(0);
    }
);

synctest!(delayed_files_cannot_wait_above, |w: World| {
    w.source("d/a=one e/a=other").dest("x/");
    w.agree(&["-a", "--delay-updates", "--partial-dir=../x"])
        .exits(23);
});

synctest!(absolute_partial_dir_drops_completed_files, |w: World| {
    w.source("a=newer@5 b")
        .dest("a")
        .tree("part", "a=half stranger");
    w.agree(&["-ai", "--partial-dir={W}/part"]).exits(0);
    w.tree("part", "c=half").source("c");
    w.agree(&["-ai", "--delay-updates", "--partial-dir={W}/part"])
        .exits(0);
});

// rsync removes files that it has finished, if the directory is that of a file with an equal name.
synctest!(
    a_destination_as_its_own_partial_dir_loses_nothing,
    |w: World| {
        w.not_served_pull("rsync receives, and ends with exit 12 for `.`")
            .not_pushed_to_stock("rsync receives, and ends with exit 12 for `.`")
            .source("a=newer@5 new b*300000")
            .dest("a old b*300001")
            .keep_dest();
        for dir in ["{W}/dst", "{W}//dst/.", "{W}/dst/../dst", "."] {
            for more in ["--partial", "--delay-updates"] {
                let option = format!("--partial-dir={dir}");
                w.restore_dest().alone(&["-a", &option, more]).exits(0);
                w.alone(&["-ain", "--delete"]).never_prints(">f");
            }
        }
    }
);

synctest!(a_partial_file_is_replaced, |w: World| {
    w.source("a*9000 d/b*8000")
        .dest(".part/a=half d/.part/b=half");
    w.agree(&["-ai", "--partial-dir=.part"]).exits(0);
});

/// Partial files of entries that are up to date, differ in mode, are older, are newer, and are unknown.
fn left_overs(w: &World) {
    w.source("same mode%600 old=2 new=2@-9 big*5000 d/same d/e/f")
        .dest("same mode old=1@-9 new=1 big*5000 d/same d/e/f");
    w.dest(".part/same .part/mode .part/old .part/new .part/big .part/%700 d/.part/same d/.part/other d/e/.part/f");
}

synctest!(leftover_of_an_unchanged_file_is_removed, |w: World| {
    left_overs(&w);
    w.agree(&["-ai", "--partial-dir=.part"])
        .exits(0)
        .never_prints(".part");
});

// None of these was left by a run.
synctest!(links_and_fifos_in_the_partial_dir_are_kept, |w: World| {
    w.source("same link fifo big*5000 pipe*5000")
        .dest("same fifo big*900@-4 .part/same->../big .part/link->nowhere .part/fifo| .part/big->../same .part/pipe|")
        .keep_dest();
    w.agree(&["-ai", "--partial-dir=.part"]).exits(0);
    w.restore_dest()
        .agree(&["-ai", "--partial-dir=.part", "--no-whole-file"])
        .exits(0);
    w.restore_dest()
        .agree(&["-ai", "--delay-updates", "--partial-dir=.part"])
        .exits(0);
    w.tree(
        "part",
        "same->../big link->nowhere fifo| big->../same pipe|",
    );
    w.restore_dest()
        .agree(&["-ai", "--partial-dir={W}/part"])
        .exits(0);
});

synctest!(leftover_of_a_skipped_file_is_kept, |w: World| {
    left_overs(&w);
    w.agree(&["-aiu", "--partial-dir=.part", "--max-size=1k"])
        .exits(0);
    w.agree(&[
        "-ai",
        "--partial-dir=.part",
        "--exclude=same",
        "--ignore-existing",
    ])
    .exits(0);
});

synctest!(
    leftover_in_an_absolute_partial_dir_is_removed,
    |w: World| {
        w.source("same d/other")
            .dest("same d/other")
            .tree("part", "same=1 other=2 third=3");
        w.agree(&["-ai", "--partial-dir={W}/part"]).exits(0);
    }
);

synctest!(leftover_of_delay_updates_is_removed, |w: World| {
    w.source("same d/same")
        .dest("same d/same .~tmp~/same d/.~tmp~/same d/.~tmp~/gone");
    w.agree(&["-ai", "--delay-updates"]).exits(0);
});

synctest!(partial_dir_with_other_files_is_kept, |w: World| {
    w.source("a").dest(".part/other old");
    w.agree(&["-ai", "--partial-dir=.part", "--delete"])
        .exits(0);
});

synctest!(temp_dir_outside_the_destination, |w: World| {
    older(&w);
    w.tree("tmp", "");
    w.agree(&["-ai", "--temp-dir={W}/tmp"]).exits(0);
});

synctest!(temp_dir_inside_the_destination, |w: World| {
    older(&w);
    w.tree("dst/tmp", "");
    w.agree(&["-ai", "--temp-dir=tmp"]).exits(0);
});

synctest!(temp_dir_on_another_file_system, as root, |w: World| {
    older(&w);
    w.tree("tmp", "").mount_tmpfs("tmp", 1 << 20);
    w.agree(&["-ai", "--temp-dir={W}/tmp"]).exits(0);
});

synctest!(temp_dir_when_both_versions_do_not_fit, as root, |w: World| {
    w.source("a big*700000").dest("");
    w.tree("tmp", "").mount_tmpfs("tmp", 4 << 20);
    w.mount_tmpfs("dst", 1 << 20);
    for option in ["--whole-file", "--no-whole-file", "--delete"] {
        w.dest("big*699000@-9 extra");
        w.once().no_dry_run().agree(&["-ai", option, "--temp-dir={W}/tmp"]).exits(0);
        assert_eq!(std::fs::read_dir(w.tested().join("tmp")).expect("mounted").count(), 0);
    }
});

synctest!(temp_dir_does_not_help_a_file_that_never_fits, as root, |w: World| {
    let reason = "an rsync that receives leaves half of the new file";
    w.not_pushed_to_stock(reason).not_served_pull(reason);
    w.source("big*2000000").dest("");
    w.tree("tmp", "").mount_tmpfs("tmp", 4 << 20);
    w.mount_tmpfs("dst", 1 << 20);
    w.dest("big=old");
    let run = w.alone(&["-a", "--temp-dir={W}/tmp"]);
    run.exits(23).warns("No space left on device (28)");
    let left = std::fs::read(w.tested().join("dst/big")).expect("it stays");
    assert!(left == b"old", "{} bytes", left.len());
    for dir in ["tmp", "dst"] {
        assert!(std::fs::read_dir(w.tested().join(dir)).expect("mounted").count() < 2);
    }
});

synctest!(temp_dir_that_cannot_be_written, as user, |w: World| {
    older(&w);
    w.build(".", |t| drop(t.dir("tmp").mode(0o555)));
    w.agree(&["-ai", "--temp-dir={W}/tmp"]).exits(23).warns("mkstemp \"{W}/tmp/");
});

// Others may put files into such a directory, but not list it.
synctest!(directories_of_options_need_not_be_listed, as user, |w: World| {
    w.source("a=new b d/c same").dest("a=old@-9 d/c=old@-9").keep_dest();
    w.tree(".", "part/%333 box/%333 full/ shut/%0").tree("full", "b same d/c");
    w.build(".", |t| drop(t.dir("full").mode(0o311)));
    for option in ["--temp-dir={W}/box", "--temp-dir={W}/shut", "--partial-dir={W}/part", "--link-dest={W}/full", "--copy-dest={W}/full"] {
        w.restore_dest().agree(&["-ai", option]);
    }
    w.restore_dest().agree(&["-aib", "--backup-dir={W}/box"]);
});

synctest!(inplace_does_not_use_the_temp_dir, |w: World| {
    for (option, new) in [("--inplace", "one"), ("--append", "two")] {
        older(&w);
        w.tree(".", &format!("tmp/@-100 src/{new}"));
        w.keep_dest();
        for dir in ["--temp-dir={W}/tmp", "--temp-dir=../tmp"] {
            w.restore_dest();
            w.agree(&["-ai", option, dir]).exits(0).prints(new);
        }
    }
});

synctest!(relative_temp_dir_may_not_climb, |w: World| {
    older(&w);
    w.needs_rsync("3.5.0").tree("tmp", "");
    w.agree(&["-ai", "--temp-dir=../tmp"])
        .exits(23)
        .warns("Invalid argument (22)");
});

synctest!(missing_temp_dir_exits_1, |w: World| {
    older(&w);
    w.agree(&["-ai", "--temp-dir=nowhere"])
        .exits(1)
        .warns("The temp-dir does not exist: nowhere");
});

synctest!(rsyncs_leftover_temp_files_are_ordinary_files, |w: World| {
    w.source("a=new").dest("a=old! .a.Xy12Zz=half");
    w.agree(&["-ai"]).exits(0);
    w.agree(&["-ai", "--delete"])
        .prints("*deleting   .a.Xy12Zz");
});

// ── sparse and preallocated ─────────────────────────────────────────────────────────────────────
fn holes(w: &World) {
    w.build("src", |t| {
        t.sparse("all", 1 << 20, &[]);
        t.sparse("ends", 1 << 20, &[(0, b"begin"), ((1 << 20) - 3, b"end")]);
        t.sparse("tail", (1 << 20) + 7, &[(4096, &[7; 5000])]);
        t.file("zeros", vec![0; 200_000]);
        t.file("small", vec![0; 500]);
        t.file("none", vec![1; 10_000]);
    });
}

synctest!(sparse_files_stay_sparse, |w: World| {
    holes(&w);
    w.compare_blocks().agree(&["-aiS"]).exits(0);
});

synctest!(without_sparse_holes_are_filled_with_zeros, |w: World| {
    holes(&w);
    w.agree(&["-ai"]).exits(0);
});

synctest!(sparse_in_place, |w: World| {
    holes(&w);
    w.dest("all*500000 tail*10000 zeros=short");
    w.agree(&["-aiS", "--inplace"]).exits(0);
});

synctest!(sparse_in_place_frees_zeros_of_equal_blocks, |w: World| {
    let noise = crate::kit::noise(7, 3 << 20);
    let zeros = |mut content: Vec<u8>| {
        // Runs of whole blocks, within a block, across blocks of the delta, and at the end.
        for (at, len) in [
            (1 << 20, 24 << 10),
            ((1 << 20) + 100_500, 9000),
            (2 << 20, 1024),
            ((2 << 20) + 50_001, 300_000),
        ] {
            content[at..at + len].fill(0);
        }
        content.extend([0; 10_000]);
        content
    };
    let content = zeros(noise);
    w.build("src", |t| {
        t.file("moved", [&content[..], b"end"].concat());
        let mut changed = content.clone();
        changed[100..110].fill(b'x');
        t.file("changed", changed);
    });
    w.build("dst", |t| {
        t.file("moved", [b"begin".as_slice(), &content].concat());
        t.file("changed", &content);
    });
    w.compare_blocks().once().no_dry_run();
    w.agree(&["-aS", "--inplace", "--no-whole-file"]).exits(0);
});

synctest!(preallocated_files_have_the_same_content, |w: World| {
    holes(&w);
    w.agree(&["-ai", "--preallocate"]).exits(0);
});

synctest!(preallocated_and_sparse, |w: World| {
    holes(&w);
    w.agree(&["-aiS", "--preallocate"]).exits(0);
});

synctest!(a_huge_sparse_file, |w: World| {
    w.build("src", |t| {
        drop(t.sparse("huge", 64 << 20, &[(32 << 20, b"middle")]))
    });
    w.compare_blocks()
        .once()
        .no_dry_run()
        .agree(&["-aiS"])
        .exits(0);
});

// ── removal of sources ──────────────────────────────────────────────────────────────────────────
places!(
    remove_source_files_removes_transferred_files,
    ["-ai", "--remove-source-files"]
);
places!(
    remove_sent_files_removes_transferred_files,
    ["-ai", "--remove-sent-files"]
);
places!(
    remove_source_files_removes_up_to_date_files,
    ["-aii", "--remove-source-files"]
);
places!(
    remove_source_files_with_vv,
    ["-avv", "--remove-source-files"]
);

synctest!(remove_source_files_removes_unchanged_files, |w: World| {
    w.source("d/a d/b e/c f").dest("d/a d/b e/c f");
    w.agree(&["-a", "--remove-source-files"]).exits(0);
});

synctest!(remove_source_files_keeps_directories, |w: World| {
    w.source("a d/b d/e/ l->a p| x.o").dest("");
    w.agree(&["-ai", "--remove-source-files", "--exclude=*.o"])
        .exits(0);
});

synctest!(
    source_file_changed_since_listing_is_not_removed,
    |w: World| {
        // The destination of the first file is the second file: writing it changes that file's time.
        w.source("d/a=same@5 d/b=same")
            .tree(".", "dst/d/a==src/d/b")
            .stderr_unordered()
            .once();
        w.agree(&["-ai", "--inplace", "--remove-source-files"])
            .exits(23)
            .warns("Skipping sender remove for changed file: ");
    }
);

synctest!(remove_source_files_names_files_that_stay, as user, |w: World| {
    w.source("a").build("src", |t| {
        t.file("d/b", "b");
        t.dir("d").owner(1, 1).mode(0o555);
    });
    w.agree(&["-a", "--remove-source-files"]).exits(23).warns("sender failed to remove d/b: Permission denied (13)");
});

synctest!(remove_source_files_with_hard_links, |w: World| {
    w.source("a b==a d/c==a").dest("");
    w.agree(&["-aiH", "--remove-source-files"]).exits(0);
});

synctest!(remove_sent_files_also_removes_new_symlinks, |w: World| {
    w.source("a b d/c l->a m->a p|").dest("b m->a");
    w.agree(&["-ai", "--remove-sent-files", "--info=remove"])
        .exits(0);
});

synctest!(
    remove_source_files_onto_themselves_removes_nothing,
    |w: World| {
        w.only_local("two machines cannot detect that both trees are the same")
            .source("a b");
        w.stderr_unordered()
            .agree_paths(&["-ai", "--remove-source-files"], &["src/", "src/"]);
    }
);

synctest!(remove_source_files_keeps_skipped_files, |w: World| {
    w.source("big*9000 small old@-5").dest("old=newer");
    w.agree(&["-aiu", "--remove-source-files", "--max-size=100"])
        .exits(0);
});

// ── read-only destinations ──────────────────────────────────────────────────────────────────────
synctest!(read_only_directory_keeps_what_is_in_the_way_of_a_directory, as user, |w: World| {
    w.source("a/x/f a/y/ b").build("dst", |t| {
        t.text("a/x->e a/y=n");
        t.dir("a").owner(1, 1).mode(0o555);
    });
    // With incremental recursion, rsync reports each directory twice.
    w.no_dry_run().agree(&["-rl", "--no-inc-recursive"]).exits(23).warns("could not make way for new directory: a/x");
});

synctest!(read_only_directory_rejects_new_files, as user, |w: World| {
    w.source("a d/b z").build("dst", |t| drop(t.dir("d").owner(1, 1).mode(0o555)));
    w.stderr_unordered().agree(&["-rlti"]).exits(23).warns("Permission denied");
});

synctest!(a_read_only_destination, as user, |w: World| {
    w.source("a b").build("dst", |t| drop(t.dir(".").owner(1, 1).mode(0o555)));
    w.stderr_unordered().agree(&["-rlti"]).exits(23).warns("Permission denied");
});

synctest!(read_only_directory_rejects_deletions, as user, |w: World| {
    w.source("a d/").build("dst", |t| {
        t.dir("d").owner(1, 1).mode(0o555);
        t.file("d/old", "old");
    });
    w.stderr_unordered().agree(&["-rlti", "--delete"]);
});

synctest!(read_only_file_is_replaced, as user, |w: World| {
    w.source("a=new").dest("a=old!%400");
    w.agree(&["-ai"]).exits(0);
});

synctest!(new_file_written_in_place_is_no_backup, |w: World| {
    w.source("f~ g");
    for (option, dest) in [
        ("--inplace", "one/"),
        ("--append", "two/"),
        ("--append-verify", "three/"),
    ] {
        w.agree_paths(&["-aib", option], &["src/", dest])
            .exits(0)
            .prints("f+++++++++ f~")
            .never_prints("f~~");
    }
});

synctest!(
    backup_replaced_by_a_directory_is_not_backed_up,
    |w: World| {
        w.source("f~/x h~/ g/").dest("f~ h~->nowhere g");
        w.agree(&["-aib", "--info=backup"])
            .exits(0)
            .prints("backed up g to g~")
            .never_prints("f~~");
    }
);

// ── no source left ──────────────────────────────────────────────────────────────────────────────
macro_rules! has_no_source {
    ($name:ident, [$($option:expr),*], [$($path:expr),+], $code:expr) => {
        synctest!($name, |w: World| {
            w.source("a d/b").dest("old").file("file", "x").once().stderr_unordered();
            let agreed = w.agree_paths(&["-v", $($option),*], &[$($path),+]);
            // In a pull, rsync's client does not check the destination if there is nothing to receive.
            if !w.is_pulled() {
                agreed.exits($code);
            }
        });
    };
}

has_no_source!(
    missing_source_creates_a_destination_with_a_slash,
    ["-a"],
    ["src/nope", "new/"],
    23
);
has_no_source!(
    missing_source_creates_no_directory,
    ["-a"],
    ["src/nope", "new"],
    23
);
has_no_source!(
    missing_source_with_a_slash_creates_no_directory,
    ["-a"],
    ["src/nope/", "new"],
    23
);
has_no_source!(
    skipped_source_directory_creates_the_destination,
    [],
    ["src/", "new/"],
    0
);
has_no_source!(
    missing_source_needs_the_parent_of_the_destination,
    [],
    ["src/nope/x", "nodir/x"],
    3
);
has_no_source!(
    missing_source_needs_the_directory_above_the_destination,
    [],
    ["src/nope/", "new/x/"],
    11
);
has_no_source!(
    missing_source_with_mkpath,
    ["-a", "--mkpath"],
    ["src/nope/", "new/x/"],
    23
);
has_no_source!(
    missing_source_with_a_file_as_destination,
    [],
    ["src/nope/", "file"],
    23
);
has_no_source!(
    missing_source_with_a_destination_below_a_file,
    [],
    ["src/nope", "file/x"],
    3
);
has_no_source!(
    missing_source_with_a_file_and_slash_as_destination,
    [],
    ["src/nope", "file/"],
    3
);
has_no_source!(
    two_missing_sources,
    ["-a"],
    ["src/nope", "src/nope2", "new"],
    23
);
has_no_source!(
    excluded_source_needs_the_parent_of_the_destination,
    ["-a", "--exclude=a"],
    ["src/a", "nodir/new"],
    3
);
has_no_source!(
    ignored_missing_source_creates_the_destination,
    ["-a", "--ignore-missing-args"],
    ["src/nope", "new/"],
    0
);
has_no_source!(
    missing_source_deletes_nothing,
    ["-a", "--delete"],
    ["src/nope/", "dst/"],
    23
);
has_no_source!(missing_source_is_not_listed, ["-a"], ["src/nope"], 23);

synctest!(
    files_from_without_existing_names_creates_the_destination,
    |w: World| {
        w.source("a").file("list", "./nope\n").once();
        w.agree_paths(&["-rlti", "--files-from=list"], &["src/", "new/"])
            .exits(23);
        w.dest("")
            .agree_paths(&["-rlti", "--files-from=list"], &["src/", "dst"])
            .exits(23);
    }
);

macro_rules! reports_paths {
    ($name:ident, $($path:expr),+) => {
        synctest!($name, as user, |w: World| {
            w.source("d/f f0%0 closed/%0").dest("").once().stderr_unordered();
            for path in [$($path),+] {
                w.agree_paths(&["-a"], &[path, "dst/"]).exits(23);
            }
        });
    };
}

reports_paths!(
    inaccessible_path_is_reported_as_given,
    "src/nope/.",
    "src//nope/",
    "src/./nope/",
    "src/../src/nope/",
    "nope//"
);
reports_paths!(
    path_below_a_missing_directory_is_reported_as_given,
    "src/../src/nope/x",
    "src//nope/x",
    "./nope/x",
    "{W}/src/./nope/x"
);
reports_paths!(
    missing_path_is_reported_normalized,
    "./src//nope",
    "src/d/../nope",
    "{W}/src/../src/nope"
);
reports_paths!(
    unreadable_path_is_reported_normalized,
    "src/./",
    "src//",
    "src/../src/",
    "./src/.",
    "src/d/../closed"
);

macro_rules! has_dot_dot_paths {
    ($name:ident, $($path:expr),+) => {
        synctest!($name, |w: World| {
            w.source("d/f b/f").dest("").once();
            // Drops rsync's line about one of its processes ending the other.
            w.mask_with(|line| (!line.contains("received SIGUSR1 (code 19)")).then(|| line.to_owned()));
            for path in [$($path),+] {
                w.agree_paths(&["-aR"], &[path, "dst/"]).exits(1).warns("found \"..\" dir in relative path");
            }
        });
    };
}

has_dot_dot_paths!(
    relative_path_with_dot_dot,
    "src/d/../b",
    "src//./d/../b",
    "src/..",
    "../src",
    "{W}/src/d/../b"
);

// ── older backups in the way ────────────────────────────────────────────────────────────────────
macro_rules! backs_up_again {
    ($name:ident, $source:expr, $dest:expr, $older:expr, [$($option:expr),+]) => {
        synctest!($name, |w: World| {
            w.source($source).dest($dest).tree("bk", $older).once();
            w.agree(&["-aib", "--backup-dir=../bk", $($option),+]).exits(0);
        });
    };
}

backs_up_again!(
    directory_whose_earlier_backup_is_a_file,
    "c/x/f=new c/g",
    "c/x/f c/g=old",
    "c",
    ["--delete"]
);
backs_up_again!(
    deleted_directory_whose_earlier_backup_is_a_file,
    "a",
    "c/x/f c/g=old",
    "c",
    ["--delete"]
);
backs_up_again!(
    directory_whose_earlier_backup_is_a_symlink,
    "c/x/f=new",
    "c/x/f",
    "c->../src",
    ["--delete"]
);
backs_up_again!(
    file_whose_earlier_backup_is_a_directory,
    "c=new",
    "c",
    "c/x/f c/g",
    ["-I"]
);
backs_up_again!(
    deleted_file_whose_earlier_backup_is_a_directory,
    "a",
    "c",
    "c/x/f c/g c/l->x",
    ["--delete"]
);

synctest!(
    inplace_without_times_updates_the_time_of_equal_files,
    |w: World| {
        w.source("same empty= longer")
            .dest("same@-5 empty=@-5 longer=x@-5");
        w.agree(&["-ri", "--inplace"]).exits(0);
    }
);

// ── shared blocks ───────────────────────────────────────────────────────────────────────────────

const SHARED_BYTES: usize = 16 << 20;

/// Returns how many bytes of its file system are used.
pub fn used_bytes(place: &Path) -> u64 {
    let synced = Command::new("sync").arg("-f").arg(place).status();
    assert!(synced.expect("sync can be started").success());
    let stat = rustix::fs::statvfs(place).expect("it is mounted");
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

/// Updates a file of which a snapshot exists, and checks how much of it is not shared any more.
fn shares_blocks(w: &World, kind: &str) {
    w.not_pushed_to_stock("an rsync writes the file")
        .not_served("an rsync writes or reads the file");
    w.source("").dest("").mount_image("dst", kind);
    let mut content = noise(71, SHARED_BYTES);
    let dest = w.tested().join("dst");
    let old = dest.join("f");
    std::fs::write(&old, &content).expect("scratch can be written");
    let cloned = Command::new("cp")
        .arg("--reflink=always")
        .args([&old, &dest.join("snapshot")])
        .status();
    assert!(cloned.expect("cp can be started").success());

    for (option, most) in [("--no-whole-file", 1 << 20), ("--whole-file", u64::MAX)] {
        content[SHARED_BYTES / 2] ^= 1;
        std::fs::write(w.tested().join("src/f"), &content).expect("scratch can be written");
        let before = used_bytes(&dest);
        w.alone(&["-aI", "--inplace", option]).exits(0);
        let grown = used_bytes(&dest).saturating_sub(before);
        assert!(std::fs::read(&old).expect("it is there") == content);
        assert!(grown <= most, "{option}: {grown} bytes are not shared");
        // Otherwise the measure says nothing.
        let is_whole = option == "--whole-file";
        assert!(!is_whole || grown > SHARED_BYTES as u64 / 2, "{grown}");
    }
}

synctest!(in_place_updates_leave_snapshots_of_btrfs_shared, as root, |w: World| {
    shares_blocks(&w, "btrfs");
});

synctest!(in_place_updates_leave_snapshots_of_xfs_shared, as root, |w: World| {
    shares_blocks(&w, "xfs");
});
