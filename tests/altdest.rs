//! Alternate destinations: entries that already exist elsewhere are not copied.

use crate::kit::{Route, Who, World, synctest};

/// A source, and an earlier copy of it in `alt` with equal, changed and missing entries.
fn earlier(w: &World) {
    w.source("same changed=now@9 mode%600 time@50 new d/same d/new l->same m->new e/ x/y");
    w.tree(
        "alt",
        "same changed=before mode time d/same gone l->same m->old e/ x/y",
    );
}

macro_rules! compares {
    ($name:ident, $dest:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            earlier(&w);
            w.dest($dest);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

compares!(
    link_dest_links_equal_files,
    "",
    ["-ai", "--link-dest=../alt"]
);
compares!(link_dest_with_ii, "", ["-aii", "--link-dest=../alt"]);
compares!(
    link_dest_by_an_absolute_path,
    "",
    ["-ai", "--link-dest={W}/alt"]
);
compares!(
    link_dest_with_a_trailing_slash,
    "",
    ["-ai", "--link-dest=../alt/"]
);
compares!(
    link_dest_with_existing_destination_files,
    "same changed=older d/same=other",
    ["-ai", "--link-dest=../alt"]
);
compares!(
    link_dest_with_delete,
    "old d/old",
    ["-ai", "--delete", "--link-dest=../alt"]
);
compares!(link_dest_with_checksums, "", ["-aic", "--link-dest=../alt"]);
compares!(link_dest_without_times, "", ["-rlpi", "--link-dest=../alt"]);
compares!(link_dest_without_perms, "", ["-rlti", "--link-dest=../alt"]);
compares!(
    link_dest_with_size_only,
    "",
    ["-ai", "--size-only", "--link-dest=../alt"]
);
compares!(
    link_dest_with_ignored_times,
    "",
    ["-aiI", "--link-dest=../alt"]
);
compares!(link_dest_with_v, "", ["-av", "--link-dest=../alt"]);
compares!(link_dest_with_vv, "", ["-avv", "--link-dest=../alt"]);
compares!(
    link_dest_with_statistics,
    "",
    ["-a", "--stats", "--link-dest=../alt"]
);
compares!(
    link_dest_with_chmod,
    "",
    ["-ai", "--chmod=F640", "--link-dest=../alt"]
);
compares!(
    copy_dest_copies_equal_files,
    "",
    ["-ai", "--copy-dest=../alt"]
);
compares!(copy_dest_with_ii, "", ["-aii", "--copy-dest=../alt"]);
compares!(
    copy_dest_with_statistics,
    "",
    ["-a", "--stats", "--copy-dest=../alt"]
);
compares!(
    copy_dest_with_existing_destination_files,
    "same changed=older",
    ["-ai", "--copy-dest=../alt"]
);
compares!(
    compare_dest_skips_equal_files,
    "",
    ["-ai", "--compare-dest=../alt"]
);
compares!(compare_dest_with_ii, "", ["-aii", "--compare-dest=../alt"]);
compares!(
    compare_dest_with_existing_destination_files,
    "same changed=older d/same=other",
    ["-ai", "--compare-dest=../alt"]
);
compares!(
    compare_dest_with_delete,
    "same old",
    ["-ai", "--delete", "--compare-dest=../alt"]
);
compares!(
    compare_dest_with_checksums,
    "",
    ["-aic", "--compare-dest=../alt"]
);
compares!(
    compare_dest_and_pruned_directories,
    "",
    ["-aim", "--compare-dest=../alt"]
);

synctest!(missing_link_dest_is_only_a_warning, |w: World| {
    earlier(&w);
    w.dest("")
        .agree(&["-ai", "--link-dest=../nowhere"])
        .exits(0);
});

synctest!(link_dest_that_is_a_file, |w: World| {
    earlier(&w);
    w.dest("").agree(&["-ai", "--link-dest=../alt/same"]);
});

synctest!(several_alternates_are_tried_in_order, |w: World| {
    earlier(&w);
    w.tree("older", "changed=now@9 new same=stale x/z").dest("");
    w.agree(&["-ai", "--link-dest=../alt", "--link-dest=../older"])
        .exits(0);
});

synctest!(
    alternate_with_better_matching_attributes_wins,
    |w: World| {
        w.source("a%600")
            .tree("one", "a%644")
            .tree("two", "a%600")
            .dest("");
        w.agree(&["-ai", "--link-dest=../one", "--link-dest=../two"])
            .exits(0);
    }
);

synctest!(several_compare_dest_directories, |w: World| {
    earlier(&w);
    w.tree("older", "changed=now@9 new same=stale x/z").dest("");
    w.agree(&["-ai", "--compare-dest=../alt", "--compare-dest=../older"])
        .exits(0);
});

// In other orders rsync 3.5.0 hangs. Its dry run shows these files as existing.
synctest!(
    hard_links_of_a_created_name_do_not_stay_in_compare_dest,
    |w: World| {
        w.source("a=new b==a d/c==a k->x l==k");
        w.tree("alt", "a=older b=new d/c=new l->x").dest("");
        w.no_dry_run()
            .agree(&["-aiH", "--compare-dest=../alt"])
            .prints("hf+++++++++ d/c => a");
    }
);

synctest!(link_dest_with_hard_links, |w: World| {
    w.source("a b==a d/c==a z y==z")
        .tree("alt", "a b==a d/c==a z=old y==z")
        .dest("");
    w.agree(&["-aiH", "--link-dest=../alt"]).exits(0);
});

/// Combines every state of a file, a symlink and a directory at the destination with every state in the alternate tree.
fn every_pair(w: &World) {
    type State = (&'static str, fn(&str) -> String);
    let states: &[State] = &[
        ("none", |_| String::new()),
        ("same", |name| format!("f{name} l{name}->to d{name}/")),
        ("mode", |name| {
            format!("f{name}%600 l{name}->to@7 d{name}/%700")
        }),
        ("time", |name| {
            format!("f{name}@7 l{name}->other d{name}/@7")
        }),
        ("data", |name| {
            format!("f{name}=quite_another@7 l{name}->other@7 d{name}/%750@7")
        }),
        ("kind", |name| {
            format!("f{name}->to l{name}=file d{name}->to")
        }),
    ];
    for (of_dest, dest) in states {
        for (of_alt, alt) in states {
            let name = format!("_{of_dest}_{of_alt}");
            w.source(&format!("f{name} l{name}->to d{name}/"));
            w.dest(&dest(&name)).tree("alt", &alt(&name));
        }
    }
}

macro_rules! pairs {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            every_pair(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

pairs!(link_dest_and_every_pair, ["-aii", "--link-dest=../alt"]);
pairs!(copy_dest_and_every_pair, ["-aii", "--copy-dest=../alt"]);
pairs!(
    compare_dest_and_every_pair,
    ["-aii", "--compare-dest=../alt"]
);
pairs!(
    link_dest_and_every_pair_without_times,
    ["-rlpii", "--link-dest=../alt"]
);
pairs!(
    copy_dest_and_every_pair_without_times,
    ["-rlpii", "--copy-dest=../alt"]
);
pairs!(
    link_dest_and_every_pair_with_checksums,
    ["-aiic", "--link-dest=../alt"]
);
pairs!(
    compare_dest_and_every_pair_with_stats,
    ["-a", "--stats", "--compare-dest=../alt"]
);
pairs!(
    link_dest_and_every_pair_with_update,
    ["-aiiu", "--link-dest=../alt"]
);

// If a symlink is in the way, rsync gives the copy the symlink's mode, 0777. Such pairs are left out here.
synctest!(copy_dest_without_perms, |w: World| {
    w.source("a b%755 c d/%750")
        .tree("alt", "a%600 b%640 c=older%640 d/%700")
        .dest("");
    w.agree(&["-rltii", "--copy-dest=../alt"]).exits(0);
});

synctest!(first_of_equal_alternates_is_used, |w: World| {
    w.source("a b c d/ e/ l->x")
        .tree("one", "a=one@3 b=1@4 c%600 d/%700 e/ l->y")
        .dest("");
    w.tree("two", "a=two@5 b%640 c%640 d/%750 e/%700 l->x")
        .tree("three", "a=three@9 b%600 c@4 d/ l->x@5");
    w.agree(&[
        "-aii",
        "--link-dest=../one",
        "--link-dest=../two",
        "--link-dest=../three",
    ])
    .exits(0);
});

synctest!(copy_dest_with_hard_links, |w: World| {
    w.source("a b==a d/c==a z y==z m n==m")
        .tree("alt", "a b d/c@5 z%600 y%640 m%600 n==m")
        .dest("");
    w.agree(&["-aiiH", "--copy-dest=../alt"]).exits(0);
});

synctest!(
    link_dest_with_hard_links_that_are_separate_there,
    |w: World| {
        w.source("a b==a d/c==a z y==z m n==m")
            .tree("alt", "a b d/c@5 z%600 y%640 m%600 n==m")
            .dest("");
        w.agree(&["-aiiH", "--link-dest=../alt"]).exits(0);
    }
);

synctest!(link_dest_with_hard_links_without_times, |w: World| {
    w.source("a b==a d/c==a")
        .tree("alt", "a b==a d/c==a")
        .dest("");
    w.agree(&["-rHii", "--link-dest=../alt"])
        .exits(0)
        .prints("hf..T...... b => a");
});

synctest!(alternates_of_devices_that_differ, as root, |w: World| {
    for (tree, minor, mode) in [("src", 3, 0o644), ("alt", 5, 0o644), ("older", 3, 0o600)] {
        w.build(tree, |t| {
            t.char_device("null", 1, minor).mode(mode);
            t.fifo("p").mode(mode);
        });
    }
    w.dest("").agree(&["-aii", "--link-dest=../alt", "--link-dest=../older"]).exits(0);
});

synctest!(link_dest_of_devices_and_fifos, as root, |w: World| {
    for tree in ["src", "alt"] {
        w.build(tree, |t| {
            t.char_device("null", 1, 3);
            t.fifo("p");
            t.socket("s");
        });
    }
    w.dest("").agree(&["-ai", "--link-dest=../alt"]).exits(0);
});

synctest!(link_dest_for_a_single_file, |w: World| {
    earlier(&w);
    w.dest("")
        .agree_paths(
            &["-ai", "--link-dest=../alt"],
            &["src/same", "src/changed", "dst/"],
        )
        .exits(0);
});

synctest!(link_dest_in_a_backup_chain, |w: World| {
    w.source("a b=1 d/c").no_dry_run();
    w.agree_paths(&["-a"], &["src/", "day1"]).exits(0);
    w.source("b=22@9 e");
    w.agree_paths(&["-ai", "--link-dest=../day1"], &["src/", "day2"])
        .exits(0);
    w.source("a=3333@11");
    w.agree_paths(
        &["-ai", "--delete", "--link-dest=../day2"],
        &["src/", "day3"],
    )
    .exits(0);
});

synctest!(link_dest_with_owners, as root, |w: World| {
    w.build("src", |t| {
        t.file("a", "a").owner(7, 7);
        t.file("b", "b");
    });
    w.tree("alt", "a=a b=b").dest("");
    w.agree(&["-ai", "--link-dest=../alt"]).exits(0);
});

synctest!(alternate_dest_kinds_cannot_be_combined, |w: World| {
    w.source("a").dest("");
    w.once()
        .agree(&["-ai", "--link-dest=x", "--compare-dest=y"])
        .exits(1)
        .warns("conflicts with");
});

synctest!(too_many_alternates, |w: World| {
    w.source("a").dest("");
    let options: Vec<_> = (0..21).map(|n| format!("--link-dest=../d{n}")).collect();
    w.once().agree(&options).exits(1);
});

synctest!(alternate_relative_to_a_new_destination, |w: World| {
    w.source("a d/b").tree("alt", "a d/b").no_dry_run().once();
    for kind in ["--link-dest", "--copy-dest", "--compare-dest"] {
        w.agree_paths(&["-nai", &format!("{kind}=../alt")], &["src/", "new"])
            .exits(0);
    }
    w.agree_paths(&["-ai", "--link-dest=../alt"], &["src/", "new"])
        .exits(0);
});

synctest!(missing_directories_are_named_without_a_slash, |w: World| {
    w.source("a").dest("").file("f", "file");
    for option in [
        "--link-dest={W}/nosuch/",
        "--copy-dest=../nosuch/",
        "--compare-dest=nosuch//",
        "--link-dest={W}/f/",
    ] {
        w.agree(&["-ai", option]).exits(0).warns(" arg ");
    }
    w.agree(&["-aib", "--backup-dir={W}/f/"]).exits(1);
});

// rsync is in the parent of the destination then.
synctest!(
    directories_of_options_if_an_empty_directory_is_copied_to_a_new_name,
    |w: World| {
        w.source("").tree("arg", "");
        for option in [
            "--compare-dest=arg",
            "--copy-dest=nosuch",
            "--temp-dir=arg",
            "--backup-dir=arg",
        ] {
            w.once()
                .agree_paths(&["-aib", option], &["src/", &format!("new{option}")])
                .exits(0);
        }
        w.tree("arg", "f");
        for option in [
            "--temp-dir=nosuch",
            "--temp-dir=arg/f",
            "--backup-dir=arg/f",
        ] {
            w.agree_paths(&["-aib", option], &["src/", "failed"])
                .exits(1);
        }
        w.agree_paths(
            &["-ai", "--mkpath", "--temp-dir=nosuch"],
            &["src/", "up/failed"],
        )
        .exits(1);
    }
);

// `./` names the root as well, so the list has two entries and the destination is a directory.
synctest!(
    directories_of_options_if_a_name_implies_the_root,
    |w: World| {
        w.source("f").dest("file").file("list", "./f\n");
        w.no_dry_run();
        w.once()
            .agree_paths(
                &["-ai", "--link-dest=../src", "--files-from=list"],
                &["src/", "new"],
            )
            .exits(0);
        w.agree_paths(&["-aiR"], &["src/./f", "dst/file"]).exits(0);
        w.agree_paths(&["-ai", "--files-from=list"], &["src/", "dst/file"])
            .exits(3);
    }
);

synctest!(alternate_directories_with_omit_dir_times, |w: World| {
    w.source("same/f other/f perm/f%600 perm/%700 new/f")
        .tree("ld", "same/f other/f other/@-9 perm/g")
        .dest("");
    for (option, dest) in [
        ("--compare-dest=../ld", "1"),
        ("--link-dest=../ld", "2"),
        ("--copy-dest=../ld", "3"),
    ] {
        w.agree_paths(&["-aiO", option], &["src/", dest]).exits(0);
    }
    w.agree(&["-rpiO", "--compare-dest=../ld"]).exits(0);
});

/// An alternate tree whose directories are symlinks: to places inside and outside of it, some through a second link.
fn linked(w: &World) {
    w.source("in/a in/e/b out/a out/e/b two/a two/e/b file/a gone/a f")
        .dest("");
    w.tree("far", "a e/b").tree(
        "alt",
        "real/a real/e/b in->real out->../far two->out file=x gone->nowhere f->in/a",
    );
    w.tree("alt", "real/a=in/a real/e/b=in/e/b")
        .tree("far", "a=out/a e/b=out/e/b");
    w.build("src", |t| {
        ["a", "e/b"]
            .iter()
            .for_each(|name| drop(t.file(format!("two/{name}"), format!("out/{name}"))))
    });
    w.source("in/a=in/a in/e/b=in/e/b out/a=out/a out/e/b=out/e/b");
}

// What is not shorter than the source is not appended to, but an identical file replaces it.
synctest!(files_that_are_not_appended_to, |w: World| {
    w.source("a*5000 b*5000 c*5000 d=x")
        .dest("a*5000@-9 b*6000 c*4000 d=x@-9")
        .tree("alt", "a*5000 b*5000 c*5000 d=x@5")
        .keep_dest();
    for option in [
        "--link-dest=../alt",
        "--compare-dest=../alt",
        "--copy-dest=../alt",
    ] {
        w.restore_dest().agree(&["-ai", "--append", option]);
        w.restore_dest().agree(&["-ai", "--append-verify", option]);
    }
});

synctest!(
    sources_of_files_that_alternate_trees_have_are_removed,
    |w: World| {
        let tree = "a*5000 b*5000 c d/e";
        w.dest("a*5000@-9 b*5000 d/")
            .tree("alt", tree)
            .keep_dest()
            .once()
            .no_dry_run();
        for check in ["--append", "--checksum"] {
            for option in [
                "--link-dest=../alt",
                "--compare-dest=../alt",
                "--copy-dest=../alt",
            ] {
                w.source(tree)
                    .restore_dest()
                    .agree(&["-ai", "--remove-source-files", check, option])
                    .exits(0);
            }
        }
    }
);

// rsync removes the only copies.
#[test]
fn alternate_tree_that_is_the_source_is_kept() {
    let w = World::new(
        "alternate_tree_that_is_the_source_is_kept",
        Route::Local,
        Who::Current,
    );
    let agreed =
        w.source("a d/b")
            .dest("")
            .alone(&["-a", "--compare-dest=../src", "--remove-source-files"]);
    agreed
        .exits(23)
        .warns("Skipping sender remove of destination file: d/b");
}

macro_rules! follows {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            linked(&w);
            w.agree(&[$($option),+]).exits(0).never_prints("in/a");
        });
    };
}

follows!(
    link_dest_follows_symlinks_to_directories,
    ["-ai", "--link-dest=../alt"]
);
follows!(
    copy_dest_follows_symlinks_to_directories,
    ["-ai", "--copy-dest=../alt"]
);
follows!(
    compare_dest_follows_symlinks_to_directories,
    ["-ai", "--compare-dest=../alt"]
);
follows!(
    link_dest_follows_symlinks_with_hard_links,
    ["-aiH", "--link-dest=../alt"]
);

// Names in it are still found, also behind a symlink to it.
synctest!(directories_of_an_alternate_tree_need_not_be_listed, as user, |w: World| {
    w.source("a d/b d/c=new d/e/f l/g").tree(".", "alt/a alt/d/e/f real/g").tree("alt", "d/b d/c=old");
    w.build("alt", |t| {
        t.dir("d/e").mode(0o311);
        t.dir("d").mode(0o311);
        t.symlink("l", "../real");
    });
    w.build(".", |t| drop(t.dir("real").mode(0o311)));
    w.dest("").keep_dest();
    for option in ["--link-dest=../alt", "--copy-dest=../alt", "--compare-dest=../alt"] {
        w.restore_dest().agree(&["-aii", option]).exits(0);
        w.restore_dest().agree(&["-aiic", option]).exits(0);
    }
    w.build("alt", |t| drop(t.dir("d/e").mode(0)));
    w.restore_dest().agree(&["-aii", "--link-dest=../alt"]);
});

// The client does not know what they mean to the receiver, which takes no content that it has not requested.
synctest!(options_of_the_receiver_alone, between machines, |w: World| {
    w.source("a d/b d/e/c==a").tree(".", "alt/a alt/d/b").dest("").keep_dest().once().no_dry_run();
    for word in ["-M--link-dest=../alt", "-M--copy-dest=../alt", "-M--existing", "-M--max-size=1", "-M-H"] {
        w.restore_dest().agree(&["-rt", word]).exits(0);
    }
});
