//! Symbolic links and hard links.

use crate::kit::{World, synctest};

// ── symlinks ────────────────────────────────────────────────────────────────────────────────────
/// Symlinks of all kinds: inside, outside, dangling, to directories, absolute, with `..`.
const LINKS: &str = "a d/x d/y/z in->a up->../secret dir->d dangling->nowhere abs->/etc/hostname d/back->../a d/out->../../secret \
     mid->d/../a outdir->../elsewhere self->.";

/// [`LINKS`], and targets outside the source.
fn links(w: &World) {
    w.source(LINKS)
        .dest("")
        .tree(".", "secret")
        .tree("elsewhere", "e/f");
    // A target that is the same on every machine.
    w.build("src", |t| {
        t.remove("abs");
        t.symlink("abs", "/dev/null");
    });
}

macro_rules! follows {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            links(&w);
            w.stderr_unordered().agree(&[$($option),+]);
        });
    };
}

follows!(symlinks_are_skipped_with_a_notice, ["-rti"]);
follows!(symlinks_are_skipped_quietly_with_q, ["-rtq"]);
follows!(symlinks_are_copied_as_symlinks, ["-rlti"]);
follows!(symlinks_without_times, ["-rli"]);
follows!(
    safe_links_skips_links_that_lead_outside,
    ["-rlti", "--safe-links"]
);
follows!(safe_links_with_v, ["-rltv", "--safe-links"]);
follows!(
    copy_unsafe_links_copies_targets_outside,
    ["-rlti", "--copy-unsafe-links"]
);
follows!(
    copy_unsafe_links_without_links,
    ["-rti", "--copy-unsafe-links"]
);
follows!(
    copy_unsafe_links_with_vv,
    ["-rltvv", "--copy-unsafe-links", "--exclude=outdir"]
);
follows!(
    copy_dirlinks_follows_directories_only,
    ["-rltik", "--exclude=self"]
);
follows!(munge_links_disarms_symlinks, ["-rlti", "--munge-links"]);
follows!(archive_includes_links, ["-ai"]);
follows!(no_links_overrides_archive, ["-ai", "--no-links"]);
follows!(
    links_and_safe_links_and_delete,
    ["-ai", "--safe-links", "--delete"]
);

synctest!(copy_links_follows_everything, |w: World| {
    links(&w);
    w.agree(&["-rtiL", "--exclude=self"])
        .exits(23)
        .warns("symlink has no referent");
});

synctest!(copy_links_without_dangling_ones, |w: World| {
    w.source("a d/x l->a k->d d/m->../a").dest("");
    w.agree(&["-aiL"]).exits(0);
});

synctest!(
    copy_links_replaces_the_symlink_in_the_destination,
    |w: World| {
        w.source("a l->a k->d d/x").dest("a l->a k->d d/x");
        w.agree(&["-aiL"]).exits(0);
    }
);

synctest!(a_symlink_with_another_target_is_replaced, |w: World| {
    w.source("a b l->b").dest("a b l->a");
    w.agree(&["-ai"]).prints("cL");
});

synctest!(symlink_with_another_time_is_updated, |w: World| {
    w.source("a l->a@7").dest("a l->a");
    w.agree(&["-ai"]).prints(".L..t......");
});

synctest!(a_symlink_replaces_a_file, |w: World| {
    w.source("a l->a").dest("a l=file");
    w.agree(&["-ai"]).prints("cL");
});

synctest!(a_file_replaces_a_symlink_and_not_its_target, |w: World| {
    w.source("a f=new")
        .dest("a=old f->../outside")
        .tree(".", "outside");
    w.agree(&["-ai"]).exits(0);
});

synctest!(safe_links_keeps_an_existing_unsafe_symlink, |w: World| {
    w.source("l->../out").dest("l->../out").tree(".", "out");
    w.agree(&["-ai", "--safe-links", "--delete"]).exits(0);
});

/// Unsafe symlinks and others at the destination, in the way of entries of all kinds.
fn in_the_way(w: &World) {
    w.source("file link->a dir/x ok->b a b kept->/out")
        .dest("file->/out link->/out dir->/out ok->a gone->/out");
    w.dest("d/gone->/out d/down->../../x d/fine->x a b kept->/in old");
}

synctest!(
    an_unsafe_link_is_not_backed_up_under_safe_links,
    |w: World| {
        in_the_way(&w);
        w.once()
            .agree(&["-ai", "--safe-links", "-b", "--delete"])
            .exits(0);
        w.build("dst", |t| drop(t.symlink("gone", "/out")));
        w.agree(&[
            "-ai",
            "--safe-links",
            "-b",
            "--backup-dir=../old",
            "--delete",
        ])
        .exits(0);
    }
);

macro_rules! reports_a_missing_backup {
    ($name:ident, [$($option:expr),+]) => {
        synctest!($name, |w: World| {
            in_the_way(&w);
            // Only early deletions: the order between the lines of rsync's processes is not fixed.
            let rest = ["--backup-dir=../old", "--delete-before", "--filter=- /[fklo]*", "--exclude=/dir"];
            w.agree(&[&[$($option),+], &rest[..]].concat()).prints("gone");
        });
    };
}

reports_a_missing_backup!(
    unsafe_link_without_backup_is_reported,
    ["-rltbv", "--safe-links"]
);
reports_a_missing_backup!(
    unsafe_link_without_backup_is_reported_as_backed_up,
    ["-rltbv", "--safe-links", "--info=backup"]
);
reports_a_missing_backup!(
    unsafe_link_without_backup_is_reported_with_info_symsafe,
    ["-rltb", "--safe-links", "--info=symsafe"]
);
reports_a_missing_backup!(
    replaced_unsafe_link_is_backed_up,
    ["-rtbv", "--safe-links", "--info=backup"]
);

synctest!(an_unsafe_link_does_not_replace_a_file, |w: World| {
    w.source("l->/dev/null k->ok").dest("l=file");
    w.agree(&["-ai", "--safe-links"]).exits(0);
});

synctest!(
    safe_links_without_a_slash_are_relative_to_the_parent,
    |w: World| {
        w.source("d/l->../a d/m->../../src/a d/n->../../x a")
            .dest("");
        w.agree_paths(&["-ai", "--safe-links"], &["src", "dst"]);
    }
);

synctest!(safe_links_are_relative_to_the_source, |w: World| {
    w.source("d/l->../a d/k->../d/x d/x d/m->x d/n->./x d/o->y/../x a")
        .dest("");
    w.agree_paths(&["-ai", "--safe-links"], &["src/d", "dst"]);
});

synctest!(munged_links_are_restored_by_the_other_side, |w: World| {
    w.source("l->/rsyncd-munged/../a m->/rsyncd-munged//dev/null n->plain")
        .dest("");
    w.agree(&["-ai", "--munge-links"]).exits(0);
});

synctest!(keep_dirlinks_writes_through_a_link_inside, |w: World| {
    w.source("d/x d/y/z").dest("real/old d->real");
    w.agree(&["-aiK"]).exits(0);
});

// Without the order, the large files would be finished last.
synctest!(
    keep_dirlinks_writes_names_of_one_directory_in_order,
    |w: World| {
        w.build("src", |tree| {
            for (dir, len) in [("a", 4_000_000), ("b/in", 1_000_000), ("real/in", 9)] {
                for name in ["x", "y", "z"] {
                    tree.file(format!("{dir}/{name}"), dir.repeat(len / dir.len()));
                }
            }
        });
        w.dest("real/in/old b->real a->real/in");
        w.no_dry_run().once().agree(&["-aKW"]).exits(0);
    }
);

// The symlink gets the attributes, so the directory is reported by every run.
synctest!(keep_dirlinks_sets_the_time_of_the_link, |w: World| {
    w.source("d/%755@-5 d/x%644@-5 e/%755@-5 e/x%644@-5");
    w.dest("real/%755@-7 real/x=d/x%644@-5 d->real dir/%755@-8 e->dir");
    w.agree(&["-aiK"]).exits(0).prints(".d..t...... d/");
});

synctest!(
    keep_dirlinks_sets_the_time_of_a_link_to_an_equal_directory,
    |w: World| {
        w.source("d/%755@-5 d/x=equal@-5");
        w.dest("real/%755@-5 real/x=equal@-5 d->real@-9");
        for options in [&["-aiKO"], &["-aiKn"], &["-aiK"]] {
            w.agree(options).exits(0).never_prints("d/");
        }
    }
);

/// Declares a case about a directory that has a name of its own and that of a symlink in a directory before it.
macro_rules! directory_and_link {
    ($name:ident, $($option:expr),*) => {
        synctest!($name, |w: World| {
            w.source("a/%755@-5 a/l/%755@-5 a/l/f*3000000@-5 a/l/g real/%755@-5 real/h@-5");
            w.dest("a/%755@-5 a/l->../real real/%755@-5 real/h@-5");
            // Whether rsync reports the time of the directory depends on the order of events.
            w.agree(&["-aK", "--exclude=g", $($option),*]).exits(0);
            w.agree(&["-aK", $($option),*]).exits(0);
        });
    };
}

directory_and_link!(keep_dirlinks_restores_the_time_under_the_other_name,);
directory_and_link!(
    keep_dirlinks_restores_the_time_after_writing_in_place,
    "--inplace"
);

synctest!(keep_dirlinks_sets_the_owner_of_the_link, as root, |w: World| {
    w.source("d/x d/y").dest("real/old d->real");
    w.build("src", |t| drop(t.dir("d").owner(5, 6)));
    w.agree(&["-aiK"]).exits(0);
    w.agree_paths(&["-aiK", "--fake-super"], &["src/", "dst/"]).exits(0);
});

synctest!(keep_dirlinks_cannot_set_the_mode_of_a_link, |w: World| {
    w.source("d/%750 d/x").dest("real/%700 real/old d->real");
    w.needs_rsync("3.5.0")
        .stderr_unordered()
        .agree(&["-aiK"])
        .exits(23);
});

synctest!(without_keep_dirlinks_the_link_is_replaced, |w: World| {
    w.source("d/x").dest("real/old d->real");
    w.agree(&["-ai"]).exits(0);
});

synctest!(keep_dirlinks_with_delete, |w: World| {
    // The source must not contain both names of the directory. That is a race in rsync: entries listed under one name
    // may or may not have arrived through the other.
    w.source("d/x").dest("real/old d->real");
    w.agree(&["-aiK", "--delete", "--exclude=/real"])
        .prints("*deleting   d/old");
});

synctest!(
    munged_targets_count_with_their_original_length,
    |w: World| {
        w.source("a l->/rsyncd-munged/a k->a")
            .dest("")
            .agree(&["-ai", "--munge-links", "--stats"])
            .exits(0);
        w.agree_paths(
            &["-a", "--munge-links", "-I", "--out-format=%l %n%L"],
            &["src/", "dst2"],
        )
        .exits(0);
    }
);

macro_rules! deletes_the_target_of_a_dirlink {
    ($name:ident, $($when:expr),+) => {
        synctest!($name, |w: World| {
            w.source("d/f d/n/g z").dest("real/old real/n/g=other d->real");
            w.agree(&["-aiK", $($when),+]).exits(0);
        });
    };
}

// rsync's --delete-after decides about the directory while everything still exists. Both programs then leave the link
// dangling.
deletes_the_target_of_a_dirlink!(keep_dirlinks_with_a_deleted_target, "--delete");
deletes_the_target_of_a_dirlink!(
    keep_dirlinks_with_a_target_deleted_before,
    "--delete-before"
);
deletes_the_target_of_a_dirlink!(
    keep_dirlinks_with_a_deleted_target_and_hard_links,
    "--delete",
    "-H"
);
deletes_the_target_of_a_dirlink!(keep_dirlinks_with_a_target_deleted_after, "--delete-after");

synctest!(
    keep_dirlinks_rejects_a_link_that_leads_outside,
    |w: World| {
        w.needs_rsync("3.5.0")
            .source("d/x d/y/z e")
            .dest("d->../outside")
            .tree("outside", "old");
        w.stderr_unordered()
            .agree(&["-aiK"])
            .exits(23)
            .warns("Too many levels of symbolic links");
    }
);

// The symlink gets the attributes, or the run says that it cannot.
synctest!(keep_dirlinks_changes_a_link_that_leads_outside, as both, |w: World| {
    w.needs_rsync("3.5.0")
        .not_with_daemon("the link leads to another directory of the module, which rsync changes")
        .source("d/%755@-5 d/x e/%755@-5 e/x")
        .dest("d->../outside@-9 e->../outside/e@-9")
        .build("outside", |t| {
            t.text("old e/%700@-5");
            t.dir(".").mode(0o700);
        });
    w.stderr_unordered();
    for options in [&["-rliKn", "--exclude=x"], &["-rltiK", "--exclude=x"], &["-aiK", "--exclude=x"], &["-aiK", "-O"]] {
        w.agree(options);
    }
});

synctest!(keep_dirlinks_does_not_keep_for_a_file, |w: World| {
    w.source("d=file").dest("real/x d->real");
    w.agree(&["-aiK"]).exits(0);
});

synctest!(a_symlink_loop_is_copied_as_it_is, |w: World| {
    w.source("a->b b->a").dest("");
    w.agree(&["-ai"]).exits(0);
});

synctest!(a_symlink_loop_cannot_be_followed, |w: World| {
    w.source("a->b b->a c").dest("");
    w.stderr_unordered().agree(&["-aiL"]).exits(23);
});

synctest!(a_very_long_target, |w: World| {
    let target = "t/".repeat(2000);
    w.build("src", |t| drop(t.symlink("l", target)));
    w.agree(&["-ai"]).exits(0);
});

synctest!(target_with_non_printable_bytes, |w: World| {
    w.build("src", |t| {
        t.symlink("l", b"caf\xe9\n -> x");
        t.symlink("m", "\x1b[0m\\");
    });
    w.agree(&["-ai"]).prints("cL");
});

synctest!(a_named_symlink_is_not_followed, |w: World| {
    w.source("a l->a d/x k->d").dest("");
    w.agree_paths(&["-ai"], &["src/l", "src/k", "dst/"])
        .prints("cL");
});

synctest!(a_named_symlink_without_links_is_skipped, |w: World| {
    w.source("a l->a").dest("");
    w.agree_paths(&["-ti"], &["src/l", "src/a", "dst/"])
        .exits(0);
});

synctest!(
    single_symlink_to_a_directory_that_is_followed,
    |w: World| {
        w.source(
            "kept/x kept/y empty/ sub/in->../kept in->kept none->empty file->kept/x out->../away",
        )
        .tree("away", "z");
        w.dest("f");
        let lines: &[&[&str]] = &[
            &["-aik", "src/./in"],
            &["-rik", "src/./in"],
            &["-aiRk", "src/./in"],
            &["-aiRk", "src/./sub/in"],
            &["-aik", "src/./none"],
            &["-aik", "src/./file"],
            &["-lik", "src/./in"],
            &["-dik", "src/./in"],
            &["-aik", "--exclude=in/", "src/./in"],
            &["-ai", "--copy-unsafe-links", "src/./out"],
            &["-aiR", "--copy-unsafe-links", "src/./out"],
            &["-ltdi", "--copy-unsafe-links", "src/./out"],
        ];
        for (at, line) in lines.iter().enumerate() {
            let (source, options) = line.split_last().unwrap();
            w.agree_paths(options, &[source, &format!("new{at}")[..]]);
        }
        // A file is not replaced by the directory.
        w.agree_paths(&["-aik"], &["src/in", "dst/f"]).exits(3);
        w.agree_paths(&["-ai", "--copy-unsafe-links"], &["src/out", "dst/f"])
            .exits(3);
    }
);

// ── hard links ──────────────────────────────────────────────────────────────────────────────────

// Names of one file in several directories, beside directories in which nothing is to be done.
synctest!(
    hard_links_between_directories_beside_unchanged_ones,
    |w: World| {
        w.source("a/x b/y==a/x c/z d/u e/v==d/u e/w")
            .dest("a/x b/y c/z d/u e/v e/w");
        w.once().agree(&["-aiH", "--delete"]).exits(0);
        w.agree(&["-aiH", "--delete"]).exits(0);
    }
);

synctest!(hard_links_that_only_the_destination_has, |w: World| {
    w.source("a/x b/y c/z d/u")
        .dest("a/x b/y==a/x c/z d/u e/v==d/u");
    w.once().agree(&["-aiH", "--delete"]).exits(0);
    w.agree(&["-aiHAX", "--delete"]).exits(0);
});

synctest!(hard_links_of_which_one_name_is_new, |w: World| {
    w.source("a/x b/y==a/x c/z d/u==a/x")
        .dest("a/x b/y==a/x c/z d/old");
    w.once().agree(&["-aiH", "--delete-delay"]).exits(0);
    w.agree(&["-aiH", "--delete-after"]).exits(0);
});

// Over a network, the directories between the names are not listed, because nothing is to be done in them.
synctest!(hard_links_below_unchanged_directories, |w: World| {
    w.source(
        "p/a/x=new p/b/c/y==p/a/x p/u q/r/s/z==p/a/x q/r/t q/v/w q/v/o/k k/l/m/n==q/v/w k/l/o",
    );
    w.dest("p/a/x=old! p/b/c/y p/u q/r/s/z==p/a/x q/r/t q/v/w q/v/o/k k/l/m/n k/l/o");
    w.once()
        .agree(&["-aiH", "--delete"])
        .exits(0)
        .prints("q/r/s/z");
    w.agree(&["-aH", "--delete"]).exits(0);
});

synctest!(
    more_hard_links_below_an_unchanged_directory_than_are_examined_ahead,
    |w: World| {
        let names = |content: &str| -> String {
            (0..1100)
                .map(|n| format!("p/d{n}/f={content}{n} q/{}/y{n}==p/d{n}/f ", n % 3))
                .collect()
        };
        w.source(&names("new")).dest(&names("old!"));
        w.once().agree(&["-aH"]).exits(0);
    }
);

/// Entries of several kinds that are hard links in the first tree only.
const SEPARATE: [&str; 2] = ["a b==a l->x m==l p| q==p", "a b l->x m->x p| q|"];

macro_rules! hard_links {
    ($name:ident, $source:expr, $dest:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source($source).dest($dest);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

hard_links!(pair_is_hard_linked, "a b==a", "", ["-aiH"]);
hard_links!(names_are_separate_without_hard_links, "a b==a", "", ["-ai"]);
hard_links!(
    a_group_across_directories,
    "a b==a c==a d/e==a d/f/g==a z",
    "",
    ["-aiH"]
);
hard_links!(
    group_only_in_subdirectories,
    "p/q/a p/r/b==p/q/a s/c==p/q/a",
    "",
    ["-aiH"]
);
hard_links!(
    two_groups_stay_separate,
    "a b==a c=2 d==c e/f==c e/g==a",
    "",
    ["-aiH"]
);
hard_links!(
    a_group_without_incremental_recursion,
    "a b==a d/e==a",
    "",
    ["-aiH", "--no-inc-recursive"]
);
hard_links!(
    separate_files_become_a_group,
    "a b==a d/c==a",
    "a b=a\n d/c=x",
    ["-aiH"]
);
hard_links!(
    a_group_that_is_up_to_date,
    "a b==a d/c==a",
    "a b==a d/c==a",
    ["-aiH"]
);
hard_links!(
    group_that_is_up_to_date_with_ii,
    "a b==a d/c==a",
    "a b==a d/c==a",
    ["-aiiH"]
);
hard_links!(
    names_that_replace_other_kinds,
    "a b==a c==a l->x m==l",
    "a b/y c->x l->x m=file",
    ["-aiH", "--delete"]
);
hard_links!(
    names_before_their_leader_that_replace_other_kinds,
    "a b==a",
    "a->x b",
    ["-aiH"]
);
hard_links!(
    a_group_of_which_one_is_missing,
    "a b==a d/c==a",
    "a d/c==a",
    ["-aiH"]
);
hard_links!(
    a_group_of_which_the_last_is_missing,
    "a b==a d/c==a",
    "a b==a",
    ["-aiH"]
);
hard_links!(
    hard_linked_destination_of_separate_files,
    "a=1 b=1",
    "a=1 b==a",
    ["-aiH"]
);
hard_links!(
    destination_stays_hard_linked_without_hard_links_option,
    "a=1 b=1",
    "a=1 b==a",
    ["-ai"]
);
hard_links!(
    one_name_of_a_hard_linked_destination_changes,
    "a=new b=1",
    "a=1 b==a",
    ["-ai"]
);
hard_links!(
    a_group_with_names_to_delete,
    "a b==a",
    "a b==a c==a d/e==a",
    ["-aiH", "--delete"]
);
hard_links!(
    a_group_with_excluded_members,
    "a b==a c.o==a d/e==a",
    "",
    ["-aiH", "--exclude=*.o"]
);
hard_links!(a_group_of_empty_files, "a= b==a c==a", "", ["-aiH"]);
hard_links!(group_with_v, "a b==a d/c==a", "", ["-avH"]);
hard_links!(group_with_vv, "a b==a d/c==a", "", ["-avvH"]);
hard_links!(
    a_group_with_statistics,
    "a b==a d/c==a",
    "",
    ["-aH", "--stats"]
);
hard_links!(
    a_group_with_checksums,
    "a b==a d/c==a",
    "a b=b\n",
    ["-aicH"]
);
hard_links!(
    a_group_with_inplace,
    "a=new b==a",
    "a=old! b==a c==a",
    ["-aiH", "--inplace"]
);
hard_links!(
    existing_name_leads_the_group,
    "a b==a c==a d/e==a",
    "b",
    ["-aiH"]
);
hard_links!(
    existing_differing_name_leads_the_group,
    "a a1==a b==a c==a d/e==a",
    "b=old",
    ["-aiH"]
);
hard_links!(
    first_of_several_existing_names_leads_the_group,
    "a b==a c==a d/e==a",
    "b c=old! d/e=older",
    ["-aiH"]
);
hard_links!(
    a_group_without_times,
    "a b==a c==a",
    "a b=y@5 c=yy@7",
    ["-rliH"]
);
hard_links!(
    equal_entries_are_linked_without_times,
    SEPARATE[0],
    SEPARATE[1],
    ["-rliDH"]
);
hard_links!(
    equal_entries_are_linked_without_link_times,
    SEPARATE[0],
    SEPARATE[1],
    ["-aiJH"]
);
hard_links!(
    equal_entries_are_linked_with_sizes_only,
    SEPARATE[0],
    SEPARATE[1],
    ["-rliDH", "--size-only"]
);
hard_links!(
    linked_entries_are_kept_without_times,
    SEPARATE[0],
    SEPARATE[0],
    ["-rliiDH"]
);
hard_links!(
    mode_of_linked_entries_changes_without_times,
    SEPARATE[0],
    "a%640 b==a p|%640 q==p",
    ["-rlpiDH"]
);
hard_links!(
    ignore_existing_excludes_a_name_from_the_group,
    "a b==a c==a",
    "c=q",
    ["-aiH", "--ignore-existing"]
);
hard_links!(
    group_of_existing_symlinks,
    "t l->t k==l",
    "t l->t",
    ["-aiH"]
);
hard_links!(
    a_group_with_backups,
    "a=new! b==a",
    "a=old b=older",
    ["-aibH"]
);
hard_links!(a_group_of_symlinks, "t l->t k==l", "", ["-aiH"]);
hard_links!(a_group_of_fifos, "p| q==p", "", ["-aiH"]);
hard_links!(
    a_group_whose_mode_changes,
    "a%600 b==a d/c==a",
    "a%644 b==a d/c==a",
    ["-aiH"]
);
hard_links!(
    a_group_whose_time_changes,
    "a@9 b==a d/c==a",
    "a b==a d/c==a",
    ["-aiH"]
);

synctest!(newer_name_is_not_hard_linked, |w: World| {
    w.source("a b==a c==a").dest("b=q@9");
    // Only once: in a second run rsync 3.5.0 replaces the newer file with a link, in spite of -u.
    w.once().agree(&["-aiuH"]).exits(0);
});

synctest!(a_group_that_changes_content, |w: World| {
    w.source("a=newer b==a d/c==a").dest("a=old b==a d/c==a");
    w.agree(&["-aiH"]).exits(0);
});

synctest!(a_group_with_a_link_from_outside_the_transfer, |w: World| {
    w.tree(".", "src/a src/b==src/a outside==src/a").dest("");
    w.agree(&["-aiH"]).exits(0);
});

synctest!(destination_hard_linked_to_a_file_outside, |w: World| {
    w.source("a=new b==a")
        .tree(".", "dst/a=old! dst/b==dst/a outside==dst/a");
    w.agree(&["-aiH"]).exits(0);
});

synctest!(a_group_across_two_sources, |w: World| {
    w.tree(".", "src/a src/b==src/a two/c==src/a two/d/e==src/a")
        .dest("");
    w.agree_paths(&["-aiH"], &["src/", "two/", "dst/"]).exits(0);
});

synctest!(a_group_with_relative_names, |w: World| {
    w.source("p/a q/b==p/a").dest("");
    w.agree_paths(&["-aiHR"], &["src/./p", "src/./q", "dst/"])
        .exits(0);
});

synctest!(a_group_of_devices, as root, |w: World| {
    w.build("src", |t| {
        t.char_device("null", 1, 3);
        t.hardlink("nil", "null");
    });
    w.dest("");
    w.agree(&["-aiH"]).exits(0);
});

synctest!(hard_link_names_beyond_the_lookahead, |w: World| {
    // Too many entries lie between the names for the lookahead, so the first name leads, not the last. In d0 both names
    // are within the lookahead.
    let between: Vec<_> = (0..1100).map(|n| format!("d{n}/f")).collect();
    w.source(&format!(
        "a/x z/x==a/x d0/x d0/y==d0/x {}",
        between.join(" ")
    ))
    .dest("");
    w.once()
        .agree(&["-aiH"])
        .prints("z/x => a/x")
        .prints("d0/x => d0/y");
    w.agree(&["-aiH"]).exits(0);
});

synctest!(a_large_group, |w: World| {
    let names: Vec<_> = (0..60).map(|n| format!("d{}/l{n}==a", n % 7)).collect();
    w.source(&format!("a {}", names.join(" "))).dest("");
    w.agree(&["-aiH"]).exits(0);
});

/// Declares a case in which arguments under `-R` continue past a symlink, or do not.
macro_rules! follows_relative_symlinks {
    ($name:ident, [$($operand:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("a/l->../h h/f h/k/g").dest("");
            w.agree_paths(&["-aiR"], &[$($operand),+, "dst"]).exits(0);
        });
    };
}

follows_relative_symlinks!(relative_symlink_with_a_slash_means_its_target, ["src/a/l/"]);
follows_relative_symlinks!(relative_symlink_and_its_target, ["src/a/l", "src/a/l/"]);
follows_relative_symlinks!(
    relative_symlink_and_a_name_below_its_target,
    ["src/a/l", "src/a/l/f"]
);
follows_relative_symlinks!(
    relative_tree_and_the_target_of_a_symlink_in_it,
    ["src/a", "src/a/l/"]
);
follows_relative_symlinks!(
    relative_tree_and_a_name_below_a_symlink,
    ["src/a", "src/a/l/f"]
);

synctest!(a_symlink_and_a_directory_of_one_name, |w: World| {
    w.source("d->. e->nowhere")
        .tree("src2", "d/x e/y")
        .dest("old");
    w.agree_paths(&["-ai", "--delete"], &["src/", "src2/", "dst/"])
        .exits(0)
        .prints("*deleting   old");
});

/// Declares a case with symlinks that dangle, form a loop, and lead out of the tree to a missing target.
macro_rules! has_dangling_symlinks {
    ($name:ident, [$($option:expr),+ $(,)?], $code:expr) => {
        synctest!($name, |w: World| {
            w.source("f x.o->nope loop.o->loop.o u.o->../../nope").dest("old");
            w.stderr_unordered().agree(&["-ai", "--delete", $($option),+]).exits($code);
        });
    };
}

has_dangling_symlinks!(
    excluded_dangling_symlinks_are_no_error,
    ["-L", "--exclude=*.o"],
    0
);
has_dangling_symlinks!(
    dangling_symlinks_excluded_as_directories,
    ["-L", "-f- */"],
    0
);
has_dangling_symlinks!(
    dangling_symlinks_included_only_as_directories,
    ["-L", "-f+ */", "-f+ f", "-f- *"],
    0
);
has_dangling_symlinks!(
    excluded_dangling_unsafe_symlinks_are_no_error,
    ["--copy-unsafe-links", "--exclude=*.o"],
    0
);
has_dangling_symlinks!(dangling_symlinks_stop_deletion, ["-L"], 23);
has_dangling_symlinks!(
    dangling_unsafe_symlinks_stop_deletion,
    ["--copy-unsafe-links"],
    23
);

/// Declares a case that removes sources reached through symlinks.
macro_rules! follows_and_removes {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("l->../target in->r r=regular").tree(".", "target=elsewhere").dest("");
            w.stderr_unordered().agree(&["-ai", $($option),+]);
        });
    };
}

follows_and_removes!(
    sources_behind_symlinks_are_removed,
    ["-L", "--remove-source-files"]
);
follows_and_removes!(
    remove_sent_files_removes_targets_of_symlinks,
    ["-L", "--remove-sent-files"]
);
follows_and_removes!(
    sources_behind_unsafe_symlinks_stay,
    ["--copy-unsafe-links", "--remove-source-files"]
);

synctest!(
    remove_source_files_keeps_symlinks_to_the_destination,
    |w: World| {
        w.only_local("the two ends do not know that both trees are the same");
        w.source("d->../dst/d").dest("d=there");
        w.agree(&["-aiL", "--remove-source-files"])
            .exits(23)
            .warns("of destination file: d");
    }
);

macro_rules! reports_unsafe_links {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("a l->../../out").dest("");
            w.agree(&[$($option),+]);
        });
    };
}

reports_unsafe_links!(
    safe_links_reports_skipped_links_with_info_name,
    ["-rlt", "--safe-links", "--info=name"]
);
reports_unsafe_links!(
    safe_links_is_independent_of_info_symsafe2,
    ["-rlt", "--safe-links", "--info=symsafe2"]
);
reports_unsafe_links!(
    safe_links_reports_despite_info_symsafe0,
    ["-rltv", "--safe-links", "--info=symsafe0"]
);

synctest!(
    symlink_to_no_directory_as_an_argument_with_a_slash,
    |w: World| {
        w.source("d->nowhere e/l->../none f->g g loop->loop h->g/x")
            .dest("");
        w.agree_paths(
            &["-aiR"],
            &[
                "src/d/.",
                "src/e/l/",
                "src/f/",
                "src/loop/",
                "src/h/",
                "dst/",
            ],
        )
        .exits(0);
        w.agree_paths(&["-Ri"], &["src/d/", "dst2/"]).exits(0);
        w.agree_paths(&["-aRiL"], &["src/./d/", "dst3/"]).exits(23);
    }
);

reports_unsafe_links!(safe_links_is_silent_with_i, ["-rlti", "--safe-links"]);
reports_unsafe_links!(
    safe_links_is_silent_with_a_format,
    ["-rlt", "--safe-links", "--out-format=%n"]
);

synctest!(
    safe_links_reports_skipped_links_with_progress,
    |w: World| {
        w.only_local("rsync does not pass on to its server that names are printed")
            .source("a l->../../out")
            .dest("");
        w.agree(&["-rlt", "--safe-links", "--progress", "--no-i-r"])
            .prints("ignoring");
        w.agree_paths(
            &["-rlti", "--safe-links", "--progress", "--no-i-r"],
            &["src/", "2/"],
        )
        .never_prints("ignoring");
    }
);

synctest!(no_hard_link_to_a_file_that_was_not_transferred, as user, |w: World| {
    let reason = "rsync 3.5.0 waits for ever, also with itself";
    w.not_with_stock(reason).not_served_pull(reason);
    w.source("a%0 b==a c d==c").dest("a=old@-9 c=old@-9");
    w.alone(&["-aiH"]).exits(23).warns("src/a\": Permission denied").warns("src/b\": Permission denied").prints("d => c");
    assert!(!w.tested().join("dst/b").exists(), "b does not exist, because its content was not transferred");
});

/// A destination with three names of a file, whose sources are separate files.
fn names_of_one_file(w: &World, contents: [&str; 3], modes: [u32; 3]) {
    for (at, name) in ["a", "b", "c"].iter().enumerate() {
        w.build("src", |t| {
            drop(t.file(name, contents[at]).mtime(at as i64).mode(modes[at]))
        });
    }
    w.build("dst", |t| {
        t.file("a", "old").mtime(-9).mode(0o644);
        t.hardlink("b", "a");
        t.hardlink("c", "a");
    });
}

macro_rules! updates_names_of_one_file {
    ($name:ident, $contents:expr, $modes:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            names_of_one_file(&w, $contents, $modes);
            // Each run changes the file again.
            w.once().agree(&[$($option),+]).exits(0);
        });
    };
}

updates_names_of_one_file!(
    contents_in_place_for_names_of_one_file,
    ["first", "second", "third"],
    [0o600, 0o640, 0o644],
    ["-aiO", "--inplace"]
);
updates_names_of_one_file!(
    contents_in_place_for_names_of_one_file_with_hard_links,
    ["first", "second", "third"],
    [0o600, 0o640, 0o644],
    ["-aiOH", "--inplace"]
);
updates_names_of_one_file!(
    deltas_in_place_for_names_of_one_file,
    ["first", "second", "third"],
    [0o600, 0o640, 0o644],
    ["-aiO", "--inplace", "--no-whole-file"]
);
updates_names_of_one_file!(
    attributes_of_names_of_one_file_with_hard_links,
    ["old", "old", "old"],
    [0o600, 0o640, 0o644],
    ["-aiOH", "--size-only"]
);

synctest!(
    content_in_place_outlives_attributes_of_other_names,
    |w: World| {
        names_of_one_file(&w, ["first", "old", "old"], [0o600, 0o640, 0o644]);
        // rsync may print that it changes the third name back.
        w.once()
            .no_dry_run()
            .agree(&["-a", "--inplace", "--size-only"])
            .exits(0);
    }
);

// A name that becomes a link is replaced whatever its length. One that is too long never leads: others do not become
// links of it.
synctest!(names_of_a_file_that_is_appended_to, |w: World| {
    w.source("f=0123456789 h==f k==f n==f");
    for dest in [
        "f=012 h=zzzzzzzzzz k=yyyyyyyyyyyyyyyy",
        "f=012 h=0123456789 k=zzzzzzzzzz n==k",
        "f=zzzzzzzzzz h=012 k=zzzzzzzzzz n=yyyyyyyyyyyyyyyy",
        "f=zzzzzzzzzz h==f k=012 n=zzzzzzzzzz",
        "h=012 k=zzzzzzzzzz n=yyyyyyyyyyyyyyyy",
        "k=zzzzzzzzzz",
        "h=zzzzzzzzzz n=012",
        "f=zzzzzzzzzz h=yyyyyyyyyyyyyyyy k==h n=0123456789",
    ] {
        for options in [
            ["-aHi", "--append"],
            ["-aHi", "--append-verify"],
            ["-aHib", "--append"],
            ["-aHic", "--append"],
            ["-aHin", "--append"],
        ] {
            w.change(|twin| {
                let _ = std::fs::remove_dir_all(twin.join("dst"));
            });
            w.dest(dest).agree(&options);
        }
    }
});

/// Files are copied through symlinks of the source, and not removed behind them.
macro_rules! leaves_what_links_lead_to {
    ($name:ident, [$($option:expr),+]) => {
        synctest!($name, |w: World| {
            w.source("a d/x").tree("secret", "f g/h").dest("");
            w.tree("src", "out->../secret file->../secret/f d/up->../../secret");
            w.stderr_unordered().agree(&["-i", "--remove-source-files", $($option),+]);
        });
    };
}

/// A file with several paths in the transfer is copied to all of them, and then removed. Nothing is removed behind a link
/// that leads up.
macro_rules! removes_what_has_several_paths {
    ($name:ident, [$($option:expr),+], [$($source:literal),+]) => {
        synctest!($name, |w: World| {
            w.not_sent_by_rsync("it removes what arrives at once, although another path may need it");
            w.not_with_daemon("in a module of rsync, links that lead up protect nothing");
            w.source("a b->a c->a d/f down->d x/y/g z/up->../x/y").dest("").file("list", "a\ndown/f\nz/up/g\n");
            // The order in which rsync notes removals depends on the time.
            w.stderr_unordered()
                .agree_paths(&["-q", "--remove-source-files", $($option),+], &[$($source),+, "dst/"]);
        });
    };
}

removes_what_has_several_paths!(several_paths_of_followed_links, ["-rtL"], ["src/"]);
removes_what_has_several_paths!(several_paths_of_followed_directories, ["-rtk"], ["src/"]);
removes_what_has_several_paths!(several_paths_of_relative_names, ["-rtLR"], ["src/"]);
removes_what_has_several_paths!(
    several_paths_of_given_names,
    ["-rtR"],
    ["src/down/f", "src/z/up/g"]
);
removes_what_has_several_paths!(
    several_paths_of_listed_names,
    ["-rt", "--files-from=list"],
    ["src/"]
);

leaves_what_links_lead_to!(sources_behind_followed_links_stay, ["-rtL"]);
leaves_what_links_lead_to!(
    sources_behind_followed_links_to_directories_stay,
    ["-rlt", "-k"]
);
leaves_what_links_lead_to!(
    sources_behind_unsafe_links_stay,
    ["-rlt", "--copy-unsafe-links"]
);
leaves_what_links_lead_to!(sources_behind_links_of_relative_names_stay, ["-rtLR"]);
