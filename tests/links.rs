//! Symbolic links and hard links.

use crate::kit::{World, synctest};

// ── symlinks ────────────────────────────────────────────────────────────────────────────────────
/// Symlinks of all kinds: inside, outside, dangling, to directories, absolute, with `..`.
const LINKS: &str = "a d/x d/y/z in->a up->../secret dir->d dangling->nowhere abs->/etc/hostname d/back->../a d/out->../../secret \
     mid->d/../a outdir->../elsewhere self->.";

/// [`LINKS`], and targets outside the source.
fn links(w: &World) {
    w.source(LINKS).dest("").tree(".", "secret").tree("elsewhere", "e/f");
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

follows!(symlinks_are_skipped_aloud_unless_asked_for, ["-rti"]);
follows!(symlinks_are_skipped_quietly_with_q, ["-rtq"]);
follows!(symlinks_are_copied_as_symlinks, ["-rlti"]);
follows!(symlinks_without_times, ["-rli"]);
follows!(safe_links_skips_what_leads_outside, ["-rlti", "--safe-links"]);
follows!(safe_links_tells_with_v, ["-rltv", "--safe-links"]);
follows!(copy_unsafe_links_copies_what_leads_outside, ["-rlti", "--copy-unsafe-links"]);
follows!(copy_unsafe_links_without_links, ["-rti", "--copy-unsafe-links"]);
follows!(copy_unsafe_links_tells_with_vv, ["-rltvv", "--copy-unsafe-links", "--exclude=outdir"]);
follows!(copy_dirlinks_follows_directories_only, ["-rltik", "--exclude=self"]);
follows!(munge_links_disarms_symlinks, ["-rlti", "--munge-links"]);
follows!(archive_takes_links, ["-ai"]);
follows!(no_links_takes_them_out_of_archive, ["-ai", "--no-links"]);
follows!(links_and_safe_links_and_delete, ["-ai", "--safe-links", "--delete"]);

synctest!(copy_links_follows_everything, |w: World| {
    links(&w);
    w.agree(&["-rtiL", "--exclude=self"]).exits(23).warns("symlink has no referent");
});

synctest!(copy_links_without_dangling_ones, |w: World| {
    w.source("a d/x l->a k->d d/m->../a").dest("");
    w.agree(&["-aiL"]).exits(0);
});

synctest!(copy_links_replaces_the_symlink_in_the_destination, |w: World| {
    w.source("a l->a k->d d/x").dest("a l->a k->d d/x");
    w.agree(&["-aiL"]).exits(0);
});

synctest!(a_symlink_with_another_target_is_replaced, |w: World| {
    w.source("a b l->b").dest("a b l->a");
    w.agree(&["-ai"]).says("cL");
});

synctest!(symlink_with_another_time_is_updated, |w: World| {
    w.source("a l->a@7").dest("a l->a");
    w.agree(&["-ai"]).says(".L..t......");
});

synctest!(a_symlink_replaces_a_file, |w: World| {
    w.source("a l->a").dest("a l=file");
    w.agree(&["-ai"]).says("cL");
});

synctest!(a_file_replaces_a_symlink_and_not_its_target, |w: World| {
    w.source("a f=new").dest("a=old f->../outside").tree(".", "outside");
    w.agree(&["-ai"]).exits(0);
});

synctest!(safe_links_keeps_an_existing_unsafe_symlink, |w: World| {
    w.source("l->../out").dest("l->../out").tree(".", "out");
    w.agree(&["-ai", "--safe-links", "--delete"]).exits(0);
});

/// Unsafe symlinks and others at the destination, in the way of entries of all kinds.
fn in_the_way(w: &World) {
    w.source("file link->a dir/x ok->b a b kept->/out").dest("file->/out link->/out dir->/out ok->a gone->/out");
    w.dest("d/gone->/out d/down->../../x d/fine->x a b kept->/in old");
}

synctest!(an_unsafe_link_is_not_backed_up_under_safe_links, |w: World| {
    in_the_way(&w);
    w.once().agree(&["-ai", "--safe-links", "-b", "--delete"]).exits(0);
    w.build("dst", |t| drop(t.symlink("gone", "/out")));
    w.agree(&["-ai", "--safe-links", "-b", "--backup-dir=../old", "--delete"]).exits(0);
});

macro_rules! tells_of_no_backup {
    ($name:ident, [$($option:expr),+]) => {
        synctest!($name, |w: World| {
            in_the_way(&w);
            // Only early deletions: the order between the lines of rsync's processes is not fixed.
            let rest = ["--backup-dir=../old", "--delete-before", "--filter=- /[fklo]*", "--exclude=/dir"];
            w.agree(&[&[$($option),+], &rest[..]].concat()).says("gone");
        });
    };
}

tells_of_no_backup!(an_unsafe_link_without_backup_is_told, ["-rltbv", "--safe-links"]);
tells_of_no_backup!(
    an_unsafe_link_without_backup_is_told_as_if_it_had_one,
    ["-rltbv", "--safe-links", "--info=backup"]
);
tells_of_no_backup!(an_unsafe_link_without_backup_is_told_by_its_word, ["-rltb", "--safe-links", "--info=symsafe"]);
tells_of_no_backup!(an_unsafe_link_that_is_not_kept_is_backed_up, ["-rtbv", "--safe-links", "--info=backup"]);

synctest!(an_unsafe_link_does_not_replace_a_file, |w: World| {
    w.source("l->/dev/null k->ok").dest("l=file");
    w.agree(&["-ai", "--safe-links"]).exits(0);
});

synctest!(safe_links_without_a_slash_are_relative_to_the_parent, |w: World| {
    w.source("d/l->../a d/m->../../src/a d/n->../../x a").dest("");
    w.agree_paths(&["-ai", "--safe-links"], &["src", "dst"]);
});

synctest!(safe_links_are_relative_to_the_source, |w: World| {
    w.source("d/l->../a d/k->../d/x d/x d/m->x d/n->./x d/o->y/../x a").dest("");
    w.agree_paths(&["-ai", "--safe-links"], &["src/d", "dst"]);
});

synctest!(munged_links_are_restored_by_the_other_side, |w: World| {
    w.source("l->/rsyncd-munged/../a m->/rsyncd-munged//dev/null n->plain").dest("");
    w.agree(&["-ai", "--munge-links"]).exits(0);
});

synctest!(keep_dirlinks_writes_through_a_link_inside, |w: World| {
    w.source("d/x d/y/z").dest("real/old d->real");
    // With -O, because rsync 3.5.0 sets the directory's time on the symlink, where it has no effect.
    w.agree(&["-aiKO"]).exits(0);
});

synctest!(without_keep_dirlinks_the_link_is_replaced, |w: World| {
    w.source("d/x").dest("real/old d->real");
    w.agree(&["-ai"]).exits(0);
});

synctest!(keep_dirlinks_with_delete, |w: World| {
    // The source must not contain both names of the directory. That is a race in rsync: entries listed under one name
    // may or may not have arrived through the other.
    w.source("d/x").dest("real/old d->real");
    w.agree(&["-aiKO", "--delete", "--exclude=/real"]).says("*deleting   d/old");
});

synctest!(munged_targets_count_with_their_original_length, |w: World| {
    w.source("a l->/rsyncd-munged/a k->a").dest("").agree(&["-ai", "--munge-links", "--stats"]).exits(0);
    w.agree_paths(&["-a", "--munge-links", "-I", "--out-format=%l %n%L"], &["src/", "dst2"]).exits(0);
});

macro_rules! loses_what_it_leads_to {
    ($name:ident, $($when:expr),+) => {
        synctest!($name, |w: World| {
            w.source("d/f d/n/g z").dest("real/old real/n/g=other d->real");
            w.agree(&["-aiK", $($when),+]).exits(0);
        });
    };
}

// rsync's --delete-after decides about the directory while everything still exists. Both programs then leave the link
// dangling.
loses_what_it_leads_to!(keep_dirlinks_loses_the_directory, "--delete");
loses_what_it_leads_to!(keep_dirlinks_loses_the_directory_before, "--delete-before");
loses_what_it_leads_to!(keep_dirlinks_loses_the_directory_and_keeps_links, "--delete", "-H");
loses_what_it_leads_to!(keep_dirlinks_loses_the_directory_after, "--delete-after");

synctest!(keep_dirlinks_refuses_a_link_that_leads_outside, |w: World| {
    w.needs_rsync("3.5.0").source("d/x d/y/z e").dest("d->../outside").tree("outside", "old");
    w.stderr_unordered().agree(&["-aiK"]).exits(23).warns("Too many levels of symbolic links");
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
    w.agree(&["-ai"]).says("cL");
});

synctest!(a_named_symlink_is_not_followed, |w: World| {
    w.source("a l->a d/x k->d").dest("");
    w.agree_paths(&["-ai"], &["src/l", "src/k", "dst/"]).says("cL");
});

synctest!(a_named_symlink_without_links_is_skipped, |w: World| {
    w.source("a l->a").dest("");
    w.agree_paths(&["-ti"], &["src/l", "src/a", "dst/"]).exits(0);
});

// ── hard links ──────────────────────────────────────────────────────────────────────────────────

// Names of one file in several directories, beside directories in which nothing is to be done.
synctest!(hard_links_between_directories_beside_unchanged_ones, |w: World| {
    w.source("a/x b/y==a/x c/z d/u e/v==d/u e/w").dest("a/x b/y c/z d/u e/v e/w");
    w.once().agree(&["-aiH", "--delete"]).exits(0);
    w.agree(&["-aiH", "--delete"]).exits(0);
});

synctest!(hard_links_that_only_the_destination_has, |w: World| {
    w.source("a/x b/y c/z d/u").dest("a/x b/y==a/x c/z d/u e/v==d/u");
    w.once().agree(&["-aiH", "--delete"]).exits(0);
    w.agree(&["-aiHAX", "--delete"]).exits(0);
});

synctest!(hard_links_of_which_one_name_is_new, |w: World| {
    w.source("a/x b/y==a/x c/z d/u==a/x").dest("a/x b/y==a/x c/z d/old");
    w.once().agree(&["-aiH", "--delete-delay"]).exits(0);
    w.agree(&["-aiH", "--delete-after"]).exits(0);
});
macro_rules! joins {
    ($name:ident, $source:expr, $dest:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source($source).dest($dest);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

joins!(a_pair_is_joined, "a b==a", "", ["-aiH"]);
joins!(without_upper_h_names_are_separate, "a b==a", "", ["-ai"]);
joins!(a_group_across_directories, "a b==a c==a d/e==a d/f/g==a z", "", ["-aiH"]);
joins!(a_group_only_in_depths, "p/q/a p/r/b==p/q/a s/c==p/q/a", "", ["-aiH"]);
joins!(two_groups_are_kept_apart, "a b==a c=2 d==c e/f==c e/g==a", "", ["-aiH"]);
joins!(a_group_without_incremental_recursion, "a b==a d/e==a", "", ["-aiH", "--no-inc-recursive"]);
joins!(separate_files_become_a_group, "a b==a d/c==a", "a b=a\n d/c=x", ["-aiH"]);
joins!(a_group_that_is_up_to_date, "a b==a d/c==a", "a b==a d/c==a", ["-aiH"]);
joins!(a_group_that_is_up_to_date_told_with_ii, "a b==a d/c==a", "a b==a d/c==a", ["-aiiH"]);
joins!(a_group_of_which_one_is_missing, "a b==a d/c==a", "a d/c==a", ["-aiH"]);
joins!(a_group_of_which_the_last_is_missing, "a b==a d/c==a", "a b==a", ["-aiH"]);
joins!(a_group_that_grew_apart, "a=1 b=1", "a=1 b==a", ["-aiH"]);
joins!(a_joined_destination_stays_joined_without_upper_h, "a=1 b=1", "a=1 b==a", ["-ai"]);
joins!(one_of_a_joined_destination_changes, "a=new b=1", "a=1 b==a", ["-ai"]);
joins!(a_group_with_names_to_delete, "a b==a", "a b==a c==a d/e==a", ["-aiH", "--delete"]);
joins!(a_group_with_excluded_members, "a b==a c.o==a d/e==a", "", ["-aiH", "--exclude=*.o"]);
joins!(a_group_of_empty_files, "a= b==a c==a", "", ["-aiH"]);
joins!(a_group_told_verbosely, "a b==a d/c==a", "", ["-avH"]);
joins!(a_group_told_very_verbosely, "a b==a d/c==a", "", ["-avvH"]);
joins!(a_group_with_statistics, "a b==a d/c==a", "", ["-aH", "--stats"]);
joins!(a_group_with_checksums, "a b==a d/c==a", "a b=b\n", ["-aicH"]);
joins!(a_group_with_inplace, "a=new b==a", "a=old! b==a c==a", ["-aiH", "--inplace"]);
joins!(a_name_that_is_there_leads, "a b==a c==a d/e==a", "b", ["-aiH"]);
joins!(a_name_that_is_there_and_differs_leads, "a a1==a b==a c==a d/e==a", "b=old", ["-aiH"]);
joins!(the_first_of_several_names_leads, "a b==a c==a d/e==a", "b c=old! d/e=older", ["-aiH"]);
joins!(a_group_without_times, "a b==a c==a", "a b=y@5 c=yy@7", ["-rliH"]);
joins!(an_existing_name_takes_no_part, "a b==a c==a", "c=q", ["-aiH", "--ignore-existing"]);
joins!(a_group_of_symlinks_that_are_there, "t l->t k==l", "t l->t", ["-aiH"]);
joins!(a_group_with_backups, "a=new! b==a", "a=old b=older", ["-aibH"]);
joins!(a_group_of_symlinks, "t l->t k==l", "", ["-aiH"]);
joins!(a_group_of_fifos, "p| q==p", "", ["-aiH"]);
joins!(a_group_whose_mode_changes, "a%600 b==a d/c==a", "a%644 b==a d/c==a", ["-aiH"]);
joins!(a_group_whose_time_changes, "a@9 b==a d/c==a", "a b==a d/c==a", ["-aiH"]);

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
    w.source("a=new b==a").tree(".", "dst/a=old! dst/b==dst/a outside==dst/a");
    w.agree(&["-aiH"]).exits(0);
});

synctest!(a_group_across_two_sources, |w: World| {
    w.tree(".", "src/a src/b==src/a two/c==src/a two/d/e==src/a").dest("");
    w.agree_paths(&["-aiH"], &["src/", "two/", "dst/"]).exits(0);
});

synctest!(a_group_with_relative_names, |w: World| {
    w.source("p/a q/b==p/a").dest("");
    w.agree_paths(&["-aiHR"], &["src/./p", "src/./q", "dst/"]).exits(0);
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
    w.source(&format!("a/x z/x==a/x d0/x d0/y==d0/x {}", between.join(" "))).dest("");
    w.once().agree(&["-aiH"]).says("z/x => a/x").says("d0/x => d0/y");
    w.agree(&["-aiH"]).exits(0);
});

synctest!(a_large_group, |w: World| {
    let names: Vec<_> = (0..60).map(|n| format!("d{}/l{n}==a", n % 7)).collect();
    w.source(&format!("a {}", names.join(" "))).dest("");
    w.agree(&["-aiH"]).exits(0);
});

/// Declares a case in which arguments under `-R` continue past a symlink, or do not.
macro_rules! goes_on {
    ($name:ident, [$($operand:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("a/l->../h h/f h/k/g").dest("");
            w.agree_paths(&["-aiR"], &[$($operand),+, "dst"]).exits(0);
        });
    };
}

goes_on!(relative_a_slash_asks_for_what_a_symlink_leads_to, ["src/a/l/"]);
goes_on!(relative_a_symlink_and_what_it_leads_to, ["src/a/l", "src/a/l/"]);
goes_on!(relative_a_symlink_and_a_name_behind_it, ["src/a/l", "src/a/l/f"]);
goes_on!(relative_a_tree_and_what_a_symlink_in_it_leads_to, ["src/a", "src/a/l/"]);
goes_on!(relative_a_tree_and_a_name_behind_a_symlink, ["src/a", "src/a/l/f"]);

synctest!(a_symlink_and_a_directory_of_one_name, |w: World| {
    w.source("d->. e->nowhere").tree("src2", "d/x e/y").dest("old");
    w.agree_paths(&["-ai", "--delete"], &["src/", "src2/", "dst/"]).exits(0).says("*deleting   old");
});

/// Declares a case with symlinks that dangle, form a loop, and lead out of the tree to a missing target.
macro_rules! loses {
    ($name:ident, [$($option:expr),+ $(,)?], $code:expr) => {
        synctest!($name, |w: World| {
            w.source("f x.o->nope loop.o->loop.o u.o->../../nope").dest("old");
            w.stderr_unordered().agree(&["-ai", "--delete", $($option),+]).exits($code);
        });
    };
}

loses!(excluded_symlinks_that_lead_nowhere_are_no_error, ["-L", "--exclude=*.o"], 0);
loses!(excluded_as_directories_they_are_no_error, ["-L", "-f- */"], 0);
loses!(included_as_directories_alone_they_are_no_error, ["-L", "-f+ */", "-f+ f", "-f- *"], 0);
loses!(excluded_unsafe_symlinks_that_lead_nowhere, ["--copy-unsafe-links", "--exclude=*.o"], 0);
loses!(symlinks_that_lead_nowhere_stop_deletion, ["-L"], 23);
loses!(unsafe_symlinks_that_lead_nowhere_stop_deletion, ["--copy-unsafe-links"], 23);

/// Declares a case that removes sources reached through symlinks.
macro_rules! follows_and_removes {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("l->../target in->r r=regular").tree(".", "target=elsewhere").dest("");
            w.stderr_unordered().agree(&["-ai", $($option),+]);
        });
    };
}

follows_and_removes!(sources_behind_symlinks_are_removed, ["-L", "--remove-source-files"]);
follows_and_removes!(what_was_sent_from_behind_symlinks_is_removed, ["-L", "--remove-sent-files"]);
follows_and_removes!(sources_behind_unsafe_symlinks_stay, ["--copy-unsafe-links", "--remove-source-files"]);

synctest!(remove_source_files_keeps_symlinks_to_the_destination, |w: World| {
    w.only_local("nobody knows that the two are one");
    w.source("d->../dst/d").dest("d=there");
    w.agree(&["-aiL", "--remove-source-files"]).exits(23).warns("of destination file: d");
});

macro_rules! speaks_of_unsafe_links {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("a l->../../out").dest("");
            w.agree(&[$($option),+]);
        });
    };
}

speaks_of_unsafe_links!(safe_links_tells_where_names_are_told, ["-rlt", "--safe-links", "--info=name"]);
speaks_of_unsafe_links!(safe_links_tells_under_name_alone, ["-rlt", "--safe-links", "--info=symsafe2"]);
speaks_of_unsafe_links!(safe_links_tells_in_spite_of_symsafe, ["-rltv", "--safe-links", "--info=symsafe0"]);

synctest!(dangling_symlink_argument_with_a_slash, |w: World| {
    w.source("d->nowhere e/l->../none").dest("");
    w.agree_paths(&["-aiR"], &["src/d/.", "src/e/l/", "dst/"]).exits(0);
    w.agree_paths(&["-Ri"], &["src/d/", "dst2/"]).exits(0);
    w.agree_paths(&["-aRiL"], &["src/./d/", "dst3/"]).exits(23);
});

speaks_of_unsafe_links!(safe_links_is_silent_with_i, ["-rlti", "--safe-links"]);
speaks_of_unsafe_links!(safe_links_is_silent_with_a_format, ["-rlt", "--safe-links", "--out-format=%n"]);

synctest!(safe_links_reports_skipped_links_with_progress, |w: World| {
    w.only_local("rsync's far end does not hear that names are told").source("a l->../../out").dest("");
    w.agree(&["-rlt", "--safe-links", "--progress", "--no-i-r"]).says("ignoring");
    w.agree_paths(&["-rlti", "--safe-links", "--progress", "--no-i-r"], &["src/", "2/"]).never_says("ignoring");
});

synctest!(no_hard_link_to_a_file_that_was_not_transferred, as user, |w: World| {
    w.not_with_stock("rsync 3.5.0 waits for ever, also with itself");
    w.source("a%0 b==a c d==c").dest("a=old@-9 c=old@-9");
    w.alone(&["-aiH"]).exits(23).warns("src/a\": Permission denied").warns("src/b\": Permission denied").says("d => c");
    assert!(!w.tested().join("dst/b").exists(), "b is not what the source has, and not there");
});
