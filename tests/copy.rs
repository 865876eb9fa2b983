//! Copying: which names arrive where.

use crate::kit::{World, synctest};

const TREE: &str = "a b=text d/x d/y/z empty/ l->a dangling->nowhere p|";

synctest!(first_copy_is_complete, as both, |w: World| {
    w.source(TREE).dest("");
    w.agree(&["-ai"]).exits(0).prints(">f+++++++++ d/y/z");
});

synctest!(missing_destination_is_created, |w: World| {
    w.source(TREE);
    w.agree(&["-ai"]).prints("created directory dst");
});

synctest!(destination_is_created_silently_without_v, |w: World| {
    w.source(TREE);
    w.agree(&["-a"]).exits(0).never_prints("created");
});

synctest!(an_empty_source, |w: World| {
    w.source("").dest("kept");
    w.agree(&["-ai"]).exits(0);
});

synctest!(an_empty_file_and_an_empty_directory, |w: World| {
    w.source("e= d/").dest("");
    w.agree(&["-ai"]).exits(0);
});

synctest!(a_changed_file_is_updated, |w: World| {
    w.source("a=longer b=same@5 c").dest("a=old b=same c");
    w.agree(&["-ai"]).prints(">f.s....... a");
});

synctest!(without_recursion_a_directory_is_skipped, |w: World| {
    w.source(TREE).dest("");
    w.agree_paths(&["-i"], &["src/a", "src/d", "dst/"])
        .exits(0)
        .prints("skipping directory d");
});

synctest!(
    without_recursion_a_source_with_a_slash_is_skipped,
    |w: World| {
        w.source(TREE).dest("");
        w.agree(&["-lpti"]).prints("skipping directory .");
    }
);

synctest!(an_empty_directory_without_recursion, |w: World| {
    w.source("empty/ file").dest("f");
    w.agree_paths(&["-di"], &["src/empty/", "no/such"]).exits(3);
    w.agree_paths(&["-di"], &["src/empty/", "dst/f"]).exits(3);
    w.agree_paths(&["-di"], &["src/", "dst/f"]).exits(3);
    w.agree_paths(&["-di"], &["src/empty/", "new"]).exits(0);
});

synctest!(
    an_empty_directory_replaces_a_symlink_that_leads_nowhere,
    |w: World| {
        w.source("empty/ full/x a")
            .dest("old a->nowhere b->b file->old")
            .keep_dest()
            .no_dry_run();
        const EXISTING: &str = "--existing";
        const IGNORE: &str = "--ignore-existing";
        for options in [
            &["-ri"][..],
            &["-di", EXISTING],
            &["-rni"],
            &["-rni", EXISTING],
            &["-ri", IGNORE],
            &["-rni", IGNORE],
            &["-ri", IGNORE, EXISTING],
        ] {
            for source in ["src/empty/", "src/full/"] {
                for dest in ["dst/a", "dst/b"] {
                    w.restore_dest().agree_paths(options, &[source, dest]);
                }
            }
        }
    }
);

synctest!(relative_path_with_dot_marker_needs_recursion, |w: World| {
    w.source(TREE).dest("");
    w.agree_paths(&["-Ri"], &["src/./", "dst/"])
        .exits(0)
        .prints("skipping directory .");
    w.agree_paths(&["-Ri"], &["src/d/./", "src/./a", "dst/"])
        .exits(0)
        .prints("skipping directory .");
    w.agree_paths(&["-Ri"], &["src/././a", "src/././b", "dst2/"])
        .exits(0)
        .prints("skipping directory .");
});

synctest!(source_without_a_slash_keeps_its_name, |w: World| {
    w.source(TREE).dest("");
    w.agree_paths(&["-ai"], &["src", "dst"])
        .prints("cd+++++++++ src/");
});

synctest!(a_source_that_ends_in_a_dot_is_its_content, |w: World| {
    w.source(TREE).dest("");
    w.agree_paths(&["-ai"], &["src/.", "dst"])
        .prints(">f+++++++++ a");
});

synctest!(
    a_source_that_ends_in_dot_slash_is_its_content,
    |w: World| {
        w.source(TREE).dest("");
        w.agree_paths(&["-ai"], &["src/d/./", "dst"])
            .prints(">f+++++++++ x");
    }
);

synctest!(a_source_that_ends_in_two_dots, |w: World| {
    w.not_pulled("rsync rejects the path to which its server resolves `..`");
    w.source(TREE).dest("");
    w.agree_paths(&["-ai"], &["src/d/y/..", "dst"])
        .prints("y/z");
});

synctest!(repeated_slashes_count_as_one, |w: World| {
    w.source(TREE).dest("");
    w.agree_paths(&["-ai"], &["src//d///", "dst//"])
        .prints(">f+++++++++ x");
});

synctest!(absolute_operands, |w: World| {
    w.source(TREE).dest("");
    w.agree_paths(&["-ai"], &["{W}/src/", "{W}/dst"]).exits(0);
});

synctest!(a_single_file_is_renamed, |w: World| {
    w.source("a");
    w.agree_paths(&["-ai"], &["src/a", "renamed"])
        .prints(">f+++++++++ a");
});

synctest!(a_single_file_into_a_directory, |w: World| {
    w.source("a").dest("");
    w.agree_paths(&["-ai"], &["src/a", "dst"])
        .prints(">f+++++++++ a");
});

synctest!(single_file_into_a_new_directory, |w: World| {
    w.source("a");
    w.agree_paths(&["-ai"], &["src/a", "new/"])
        .prints("created directory new");
});

synctest!(a_single_file_over_another_name, |w: World| {
    w.source("a=new").dest("b=old");
    w.agree_paths(&["-ai"], &["src/a", "dst/b"]).exits(0);
});

synctest!(a_single_symlink_is_renamed, |w: World| {
    w.source("l->target");
    w.agree_paths(&["-ai"], &["src/l", "renamed"]).exits(0);
});

synctest!(a_single_empty_directory_without_a_slash, |w: World| {
    w.source("e/");
    w.agree_paths(&["-ai"], &["src/e", "renamed"]).exits(0);
});

synctest!(a_single_empty_directory_with_its_path, |w: World| {
    w.tree("e", "").tree("kept", "x").tree("shallow", "d/x");
    for (options, source) in [
        (&["-aiR"][..], "e"),
        (&["-aiR", "--existing"], "e/"),
        (&["-aiR"], "e/./"),
        (&["-aiR"], "./e"),
        (&["-aiR", "--exclude=/kept/x"], "kept"),
        (&["-diR"], "shallow"),
        (&["-diR"], "shallow/"),
        (&["-iR"], "e/./"),
        (&["-aiR"], "shallow/d"),
    ] {
        w.once()
            .agree_paths(
                options,
                &[
                    source,
                    &format!("new-{}{}", options.len(), source.replace('/', "-")),
                ],
            )
            .exits(0);
    }
});

synctest!(
    root_that_a_name_implies_is_listed_without_attributes,
    |w: World| {
        w.tree("e", "").source("f").dest("g");
        for (options, sources, dest) in [
            (&["-aiR"][..], &["./e"][..], "new-e"),
            (&["-aiR", "--stats"], &["./src/f"], "new-f"),
            (&["-aiiR", "--stats"], &["./e", "src/f"], "dst"),
            (&["-aiR", "--delete", "--existing"], &["./e"], "new"),
            (&["-diiR", "--delete"], &["./e"], "dst"),
        ] {
            w.once()
                .agree_paths(
                    &[options, &["--no-implied-dirs"]].concat(),
                    &[sources, &[dest]].concat(),
                )
                .exits(0);
        }
    }
);

synctest!(single_non_empty_directory_is_not_renamed, |w: World| {
    w.source("d/x");
    w.agree_paths(&["-ai"], &["src/d", "new"]).prints("d/x");
});

synctest!(
    directory_whose_merge_file_excludes_everything_is_renamed,
    |w: World| {
        w.source("d/x e/x").once();
        w.build("src", |t| drop(t.file("d/.rsync-filter", "- *\n")));
        for (options, dest) in [
            (&["-aiRF"][..], "new"),
            (&["-aiF"], "new2"),
            (&["-aiF", "--no-i-r"], "no/such"),
        ] {
            w.agree_paths(options, &["src/./d", dest]);
        }
    }
);

synctest!(two_files_make_the_destination_a_directory, |w: World| {
    w.source("a b");
    w.agree_paths(&["-ai"], &["src/a", "src/b", "new"])
        .prints("created directory new");
});

synctest!(
    two_empty_directories_of_one_name_make_the_destination_a_directory,
    |w: World| {
        w.source("d/ e").tree("t", "d/").once();
        for options in [
            &["-ri"][..],
            &["-ai", "--delete"],
            &["-ri", "--no-i-r"],
            &["-aim"],
            &["-di"],
        ] {
            let new = format!("new{}", options.concat());
            w.agree_paths(options, &["src/d", "t/d", &new]);
            w.agree_paths(options, &["src/d", "src/d", &new]);
        }
        if !w.route().is_by_server() {
            w.agree_paths(&["-ai", "--protocol=29"], &["src/d", "t/d", "new29"]);
        }
        w.agree_paths(&["-ri"], &["src/d", "src/d", "src/e", "new"])
            .prints("d/");
    }
);

synctest!(two_directories_of_one_name_are_merged, |w: World| {
    w.source("d/a/b/c d/x d/empty/ d/z/y")
        .tree("t", "d/a/b/k d/a/l d/q/m d/x=other")
        .dest("d/a/old")
        .once();
    for options in [
        &["-ri"][..],
        &["-aiH", "--delete"],
        &["-ri", "--no-i-r"],
        &["-aim"],
        &["-di"],
    ] {
        let new = format!("new{}", options.concat());
        for sources in [["src/d", "t/d"], ["src/d", "src/d"]] {
            for dest in [&new, "dst", "dst/"] {
                w.agree_paths(options, &[sources[0], sources[1], dest]);
            }
        }
    }
});

synctest!(
    two_files_of_one_name_make_the_destination_a_directory,
    |w: World| {
        w.source("a c empty/").tree("t", "a=other empty/").once();
        w.agree_paths(&["-ai"], &["src/a", "t/a", "new"])
            .prints("created directory new");
        w.agree_paths(&["-ai", "--no-i-r"], &["src/a", "t/a", "src/a", "new2"])
            .prints("created directory new2");
        if !w.route().is_by_server() {
            w.agree_paths(&["-aiH", "--protocol=29"], &["src/a", "t/a", "new3"])
                .prints("created directory new3");
            w.agree_paths(&["-ai", "--protocol=28"], &["src/a", "src/a", "new4"])
                .prints("created directory new4");
        }
        w.agree_paths(&["-ai"], &["src/a", "t/a", "dst"])
            .prints("created directory dst");
        w.agree_paths(
            &["-ai", "-I", "--remove-source-files"],
            &["src/a", "t/a", "dst"],
        );
    }
);

synctest!(two_files_onto_a_file_exit_3, |w: World| {
    w.source("a b").dest("f");
    w.agree_paths(&["-ai"], &["src/a", "src/b", "dst/f"])
        .exits(3)
        .warns("destination must be a directory");
});

synctest!(directory_onto_a_file_exits_3, |w: World| {
    w.source("a b").dest("f");
    w.agree_paths(&["-ai"], &["src/", "dst/f"]).exits(3);
});

synctest!(
    a_file_onto_a_name_with_a_slash_that_is_a_file,
    |w: World| {
        w.source("a").dest("f");
        w.agree_paths(&["-ai"], &["src/a", "dst/f/"]);
    }
);

synctest!(a_missing_parent_of_the_destination, |w: World| {
    w.source("a");
    w.agree_paths(&["-ai"], &["src/", "no/such/place"])
        .exits(11)
        .warns("mkdir");
});

synctest!(mkpath_creates_all_parents, |w: World| {
    w.source("a b");
    w.agree_paths(&["-ai", "--mkpath"], &["src/", "no/such/place"])
        .exits(0);
});

synctest!(mkpath_for_a_single_file, |w: World| {
    w.source("a");
    w.agree_paths(&["-ai", "--mkpath"], &["src/a", "no/such/name"])
        .exits(0);
});

synctest!(mkpath_for_a_single_file_with_a_slash, |w: World| {
    w.source("a");
    w.agree_paths(&["-ai", "--mkpath"], &["src/a", "no/such/name/"])
        .exits(0);
});

synctest!(several_sources_are_merged_and_the_first_wins, |w: World| {
    w.source("a=first d/x")
        .tree("two", "a=second! b d/x=other d/y")
        .dest("");
    w.agree_paths(&["-ai"], &["src/", "two/", "dst/"])
        .prints("d/y");
});

synctest!(several_sources_in_the_other_order, |w: World| {
    w.source("a=first d/x")
        .tree("two", "a=second! b d/x=other d/y")
        .dest("");
    w.agree_paths(&["-ai"], &["two/", "src/", "dst/"])
        .prints("d/y");
});

synctest!(the_same_source_twice, |w: World| {
    w.source(TREE).dest("");
    w.agree_paths(&["-ai"], &["src/", "src/", "dst/"]).exits(0);
});

synctest!(of_equal_names_the_first_argument_wins, |w: World| {
    w.source("a/d/%700 a/d/x=a a/x=a b/d/x=b b/d/y=b b/x=b")
        .once();
    w.agree_paths(&["-ai"], &["src/b/x", "src/a/", "one/"])
        .exits(0);
    w.agree_paths(
        &["-ai", "--no-inc-recursive"],
        &["src/b/d", "src/a/", "two/"],
    )
    .exits(0);
    w.agree_paths(
        &["-ai"],
        &["src/a/x", "src/b/d/x", "src/a/d/x", "src/b/x", "three/"],
    )
    .exits(0);
});

synctest!(
    several_sources_are_listed_in_the_order_of_names,
    |w: World| {
        w.source("b a d/x c/y").dest("");
        w.agree_paths(&["-ai"], &["src/d", "src/b", "src/c", "src/a", "dst/"])
            .exits(0);
    }
);

synctest!(
    a_file_and_a_directory_of_one_name_from_two_sources,
    |w: World| {
        w.source("n").tree("two", "n/x").dest("");
        w.stderr_unordered()
            .agree_paths(&["-ai"], &["src/", "two/", "dst/"]);
    }
);

// ── --relative ──────────────────────────────────────────────────────────────────────────────────
synctest!(relative_keeps_the_path, |w: World| {
    w.source("d/y/z d/x").dest("");
    w.agree_paths(&["-aiR"], &["src/d/y", "dst"])
        .prints("src/d/y/z");
});

synctest!(relative_cuts_at_slash_dot_slash, |w: World| {
    w.source("d/y/z d/x").dest("");
    w.agree_paths(&["-aiR"], &["src/./d/y", "dst"])
        .prints("d/y/z")
        .never_prints("src");
});

synctest!(relative_cuts_at_the_first_slash_dot_slash, |w: World| {
    w.source("d/y/z").dest("");
    w.agree_paths(&["-aiR"], &["./src/./d/./y/z", "dst"])
        .exits(0);
    w.agree_paths(
        &["-aiR", "--no-inc-recursive"],
        &["src/.//./d/./y/z", "new"],
    )
    .exits(0)
    .prints("./");
});

synctest!(relative_with_an_absolute_source, |w: World| {
    w.source("d/y/z").dest("");
    w.agree_paths(&["-aiR"], &["{W}/src/./d/y/z", "dst"])
        .prints("d/y/z");
});

synctest!(
    relative_prints_absolute_sources_with_a_leading_slash,
    |w: World| {
        w.source("d/y/z d/x l->d")
            .tree("other", "y")
            .file("list", "src/d/y/z\n")
            .dest("")
            .once()
            .no_dry_run();
        // A dry run without implied directories, because the paths of the twins differ.
        let dry = |options: &[&str], sources: &[&str]| {
            let options = [&["-anR", "--no-implied-dirs"], options].concat();
            w.agree_paths(&options, &[sources, &["dst"]].concat())
                .exits(0)
        };
        // A client that receives prints the path without its leading slash.
        let whole = if w.is_pulled() { "{w}" } else { "{W}" };
        for options in [
            &["-i"][..],
            &["-v"],
            &["--out-format=%o %f %n%L"],
            &["-i", "--log-file=run.log"],
        ] {
            dry(options, &["{W}/src"]).prints(&format!("{whole}/src/d/y/z\n"));
        }
        dry(&["-i"], &["{W}//src/d/y", "{W}/./other"])
            .prints(&format!(" {whole}/src/d/y/z\n"))
            .prints(" other/y\n");
        dry(&["-i"], &["/.{W}/src"]).prints(" {w}/src/d/y/z\n");
        dry(&["-i", "--files-from=list"], &["{W}"]).prints(" src/d/y/z\n");
        w.agree_paths(&["-inR", "--no-implied-dirs", "--list-only"], &["{W}/src"])
            .prints(" {w}/src\n");
    }
);

synctest!(
    relative_gives_implied_directories_their_attributes,
    |w: World| {
        w.build("src", |t| {
            t.dir("d").mode(0o750).mtime(-50);
            t.dir("d/y").mode(0o711).mtime(-40);
            t.file("d/y/z", "z");
        });
        w.dest("d/kept");
        w.agree_paths(&["-aiR"], &["src/./d/y/z", "dst"])
            .prints("d/y/z");
    }
);

synctest!(relative_without_implied_directories, |w: World| {
    w.build("src", |t| {
        t.dir("d").mode(0o750).mtime(-50);
        t.dir("d/y").mode(0o711).mtime(-40);
        t.file("d/y/z", "z");
    });
    w.dest("d/kept");
    w.agree_paths(&["-aiR", "--no-implied-dirs"], &["src/./d/y/z", "dst"])
        .prints("d/y/z");
});

synctest!(
    root_implied_by_an_earlier_name_without_implied_directories,
    |w: World| {
        w.build("src", |t| {
            t.dir(".").mode(0o700).mtime(-50);
            t.file("a", "a");
        });
        w.tree("before", "e").dest("").keep_dest();
        for sources in [
            &["before/././e", "src/./"][..],
            &["src/./", "before/././e"],
            &["before/././e"],
        ] {
            let paths = [sources, &["dst"]].concat();
            w.restore_dest()
                .agree_paths(&["-aiR", "--no-implied-dirs"], &paths)
                .exits(0);
            w.restore_dest().agree_paths(&["-aiR"], &paths).exits(0);
        }
    }
);

synctest!(
    implied_parent_may_be_a_symlink_to_a_directory,
    |w: World| {
        w.source("l/sub/a m/sub/b")
            .dest("real/ l->real other/sub/ m->other");
        w.agree_paths(
            &["-aiR", "--no-implied-dirs"],
            &["src/./l/sub/a", "src/./m/sub/b", "dst"],
        )
        .prints("l/sub/a");
    }
);

synctest!(implied_parent_that_is_no_directory_stays, |w: World| {
    w.source("d/b/c/f e/b/c/f f/b/c/f g/b/c/f h/f i/b/f")
        .tree("outside", "");
    w.dest("d/b=file e/b->nowhere f/b->b g->../outside h->../outside i=file");
    let paths =
        ["d/b/c", "e/b/c", "f/b/c", "g/b/c", "h/f", "i/b"].map(|path| format!("src/./{path}"));
    let paths: Vec<_> = paths.iter().map(String::as_str).chain(["dst"]).collect();
    w.agree_paths(&["-aR", "--no-implied-dirs"], &paths)
        .exits(23);
});

synctest!(relative_with_several_sources_of_one_parent, |w: World| {
    w.source("d/y/z d/x e/f").dest("");
    w.agree_paths(&["-aiR"], &["src/./d/y", "src/./d/x", "src/./e/f", "dst"])
        .exits(0);
});

synctest!(relative_with_a_symlink_among_the_parents, |w: World| {
    w.source("real/f link->real").dest("");
    w.agree_paths(&["-aiR"], &["src/./link/f", "dst"]);
});

// ── --dirs ──────────────────────────────────────────────────────────────────────────────────────
synctest!(dirs_copies_only_the_top_level, |w: World| {
    w.source(TREE).dest("");
    w.agree(&["-dlpti"])
        .prints("cd+++++++++ d/")
        .never_prints("d/x");
});

synctest!(
    dirs_without_a_slash_creates_the_empty_directory,
    |w: World| {
        w.source(TREE).dest("");
        w.agree_paths(&["-di"], &["src/d", "dst"])
            .prints("d/")
            .never_prints("d/x");
    }
);

synctest!(old_dirs, |w: World| {
    w.source(TREE).dest("");
    w.agree(&["--old-dirs", "-lpti"]).never_prints("d/x");
});

synctest!(archive_without_recursion, |w: World| {
    w.source(TREE).dest("");
    w.agree(&["-a", "--no-r", "-i"]);
});

// ── order ───────────────────────────────────────────────────────────────────────────────────────
synctest!(
    files_come_before_directories_and_names_sort_as_bytes,
    |w: World| {
        w.source("foo/x foo-bar/x foo.x foo-a foo0 Foo _foo b/c/d b/a b.c b-c/x a~ a B/y")
            .dest("");
        w.agree(&["-ai"]).exits(0);
    }
);

synctest!(directories_sort_as_if_they_ended_in_a_slash, |w: World| {
    w.source("foo/x foo-bar/x foo.d/x foo0/x foo!/x").dest("");
    w.agree(&["-ai"]).exits(0);
});

synctest!(high_bytes_sort_after_ascii, |w: World| {
    w.build("src", |t| {
        for name in [
            &b"z"[..],
            b"\x80",
            b"\xff",
            b"\xc3\xa9",
            b"a\x01",
            b"a",
            b"a b",
        ] {
            t.file(name, "x");
        }
        t.file(b"\xff\xfe/f", "x");
        t.file(b"y/f\x7f", "x");
    });
    w.dest("");
    w.agree(&["-ai"]).exits(0);
});

synctest!(order_without_incremental_recursion, |w: World| {
    w.source("b/c/d b/a a/z c foo/x foo-bar/x").dest("");
    w.agree(&["-ai", "--no-inc-recursive"]).exits(0);
});

// ── names ───────────────────────────────────────────────────────────────────────────────────────
synctest!(names_that_are_not_utf_8, |w: World| {
    w.build("src", |t| {
        t.file(b"caf\xe9", "latin");
        t.file(b"\xf0\x28\x8c\x28/\xff", "garbage");
        t.symlink(b"link\xfe", b"caf\xe9");
    });
    w.agree(&["-ai"]).prints("caf\\#351");
});

synctest!(names_with_newlines_and_controls, |w: World| {
    w.build("src", |t| {
        for name in [
            "new\nline",
            "tab\tname",
            "cr\rname",
            "esc\x1b[1m",
            "bell\x07",
            "back\\slash",
            "back\\#012",
            "-dash",
            " lead",
            "trail ",
        ] {
            t.file(name, name);
        }
        t.dir("dir\nline");
    });
    w.agree(&["-ai"]).prints("new\\#012line");
});

synctest!(names_like_options_and_shell_syntax, |w: World| {
    w.source("--delete -n $HOME `id` a;b a&b *?[] 'q' ~ #h a:b")
        .dest("");
    w.agree(&["-ai"]).exits(0);
});

synctest!(a_name_of_255_bytes, |w: World| {
    let (file, dir) = ("f".repeat(255), "d".repeat(255));
    w.source(&format!("{file} {dir}/{file} {dir}/x"));
    w.agree(&["-ai"]).exits(0);
    w.source(&format!("{dir}/{file}=changed@9"));
    w.agree(&["-ai"]).exits(0);
});

synctest!(path_close_to_path_max, |w: World| {
    let deep = ["component".repeat(20).as_str(); 20].join("/");
    w.build("src", |t| drop(t.file(format!("{deep}/leaf"), "deep")));
    w.agree(&["-ai"]).exits(0);
});

// rsync opens each file by its whole path and fails on this one with exit 23.
synctest!(path_longer_than_path_max, |w: World| {
    w.not_with_stock("rsync has no such paths")
        .not_served("rsync has no such paths");
    let deep = ["component".repeat(20).as_str(); 25].join("/");
    w.build("src", |t| drop(t.file(format!("{deep}/leaf"), "deep")));
    w.copies_all(&["-a"]);
});

synctest!(path_with_a_colon_after_a_slash_is_local, |w: World| {
    w.source("a:b").dest("");
    w.agree_paths(&["-ai"], &["./src/a:b", "dst/"])
        .prints("a:b");
});

synctest!(a_source_after_two_dashes, |w: World| {
    w.tree("-x", "a").dest("");
    w.agree_paths(&["-ai"], &["--", "-x", "dst/"]).exits(0);
});

// ── nested trees ────────────────────────────────────────────────────────────────────────────────
synctest!(a_destination_inside_the_source, |w: World| {
    w.source("a d/x").tree("src/backup", "");
    w.once()
        .no_dry_run()
        .agree_paths(&["-ai", "--exclude=/backup"], &["src/", "src/backup/"])
        .exits(0);
});

synctest!(a_new_destination_inside_the_source, |w: World| {
    w.only_local(
        "with a peer, it depends on the time whether the sender has listed deeper directories",
    );
    w.once();
    let copies: [(&[&str], &str, &str); 5] = [
        (&["-a"], "", "new/"),
        (&["-ai"], "", "new"),
        (&["-aR"], "./d", "new"),
        (&["-a", "--delete-before"], "", "new"),
        (&["-a", "--mkpath"], "", "new/b/c"),
    ];
    for (at, (options, source, dest)) in copies.iter().enumerate() {
        let tree = format!("tree{at}");
        w.tree(&tree, "a d/x d/y");
        let (source, dest) = (format!("{tree}/{source}"), format!("{tree}/{dest}"));
        w.agree_paths(options, &[source, dest]).exits(0);
    }
});

synctest!(a_source_inside_the_destination, |w: World| {
    w.source("a d/x in/b");
    w.agree_paths(&["-ai"], &["src/in/", "src/"]).exits(0);
});

synctest!(a_tree_onto_itself, |w: World| {
    w.source(TREE);
    w.agree_paths(&["-ai", "--delete"], &["src/", "src/"])
        .exits(0);
});

synctest!(a_tree_onto_itself_with_all_times_ignored, |w: World| {
    w.source("a b=text");
    w.agree_paths(&["-aiI"], &["src/", "src/"]).exits(0);
});

synctest!(
    a_destination_that_is_a_symlink_to_a_directory,
    |w: World| {
        w.source("a d/x").tree("real", "old").tree(".", "dst->real");
        w.agree_paths(&["-ai", "--delete"], &["src/", "dst/"])
            .exits(0);
    }
);

synctest!(
    a_destination_that_is_a_symlink_without_a_slash,
    |w: World| {
        w.source("a d/x").tree("real", "old").tree(".", "dst->real");
        w.agree_paths(&["-ai"], &["src/", "dst"]).exits(0);
    }
);

synctest!(a_source_that_is_a_symlink_to_a_directory, |w: World| {
    w.source("d/x l->d").dest("");
    w.agree_paths(&["-ai"], &["src/l", "dst"]).prints("cL");
    w.agree_paths(&["-ai"], &["src/l/", "dst"]).prints("x");
});

synctest!(large_files_are_copied_completely, |w: World| {
    w.source("big*3000000 block*131072 odd*131073");
    w.agree(&["-ai"]).exits(0);
});

synctest!(many_files_are_listed_in_order, |w: World| {
    let names: Vec<_> = (0..300).map(|n| format!("d{}/f{n}", n % 17)).collect();
    w.source(&names.join(" "));
    w.once().agree(&["-ai"]).exits(0);
});

synctest!(options_may_follow_the_operands, |w: World| {
    w.source("a d/x").dest("");
    w.agree_paths(&["-a"], &["src/", "dst/", "-i"])
        .prints(">f+++++++++ a");
});

synctest!(a_few_hundred_empty_directories, |w: World| {
    let names: Vec<_> = (0..100).map(|n| format!("d{n}/e{n}/")).collect();
    w.source(&names.join(" ")).dest("d5/old d7=file");
    w.once().agree(&["-ai", "--delete"]).exits(0);
});

macro_rules! path_below_a_file {
    ($name:ident, $from:expr, $to:expr) => {
        synctest!($name, |w: World| {
            w.source("a b").tree(".", "file");
            w.agree_paths(&["-a", "--mkpath"], &[$from, $to]).exits(11);
        });
    };
}

path_below_a_file!(mkpath_onto_a_file, "src/", "file/");
path_below_a_file!(mkpath_below_a_file, "src/", "file/x");
path_below_a_file!(mkpath_far_below_a_file, "src/", "file/x/y/");
path_below_a_file!(
    mkpath_far_below_a_file_by_an_absolute_path,
    "src/",
    "{W}/file/x/y/"
);
path_below_a_file!(mkpath_for_a_name_below_a_file, "src/a", "file/x");
path_below_a_file!(mkpath_for_a_name_far_below_a_file, "src/a", "file/x/y");

macro_rules! counts_repeated_names {
    ($name:ident, [$($option:expr),*], [$($operand:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.not_served_pull("an entry is sent and counted once");
            w.source("a/b/x a/b/z c/d/y t").file("list", "a/b/x\nc/d/y\na/b/z\na/b/x\nc/d\nt\n");
            w.agree_paths(&["--stats", $($option),*], &[$($operand),+, "dst/"]).exits(0);
        });
    };
}

counts_repeated_names!(
    a_file_that_is_named_twice_counts_twice,
    ["-a"],
    ["src/t", "src/t"]
);
counts_repeated_names!(
    a_directory_that_is_named_twice_counts_twice,
    ["-a"],
    ["src/c", "src/c"]
);
counts_repeated_names!(
    implied_directories_of_a_list_count_each_time,
    ["-a", "--files-from=list"],
    ["src"]
);
counts_repeated_names!(
    list_without_implied_directories_counts_names_only,
    ["-a", "--files-from=list", "--no-implied-dirs"],
    ["src"]
);
counts_repeated_names!(
    implied_directories_of_arguments_count_each_time,
    ["-aR"],
    ["src/./a/b/x", "src/./c/d/y", "src/./a/b/z"]
);
counts_repeated_names!(
    implied_directories_of_nested_arguments,
    ["-aR"],
    ["src/a/b/x", "src/a/b/z", "src/a/b/x", "src/a"]
);
counts_repeated_names!(
    implied_directories_without_incremental_recursion,
    ["-aR", "--no-i-r"],
    [
        "src/a/b/x",
        "src/c/d/y",
        "src/a/b/z",
        "src/a/b/x",
        "src/c/d"
    ]
);

/// Declares a case with directories that several arguments name, with and without incremental recursion.
macro_rules! counts_overlapping_arguments {
    ($name:ident, [$($option:expr),*], [$($operand:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.not_served_pull("an entry is sent and counted once");
            w.source("d/e/f/w d/e/z d/y g/ x").tree("t", "d/e/q d/y x");
            for recursion in ["--inc-recursive", "--no-inc-recursive"] {
                let options = ["-a", "--stats", recursion, $($option),*];
                w.once().agree_paths(&options, &[$($operand),+, "dst/"]).exits(0);
            }
        });
    };
}

counts_overlapping_arguments!(a_source_that_is_given_twice, [], ["src/", "src/"]);
counts_overlapping_arguments!(
    a_source_that_is_given_five_times,
    [],
    ["src/", "src/", "src/", "src/", "src/"]
);
counts_overlapping_arguments!(
    a_source_that_is_given_twice_before_others,
    [],
    ["src/", "src/.", "t/", "t/"]
);
counts_overlapping_arguments!(a_source_and_a_directory_in_it, [], ["src/", "src/d"]);
counts_overlapping_arguments!(
    directories_in_directories_with_paths,
    ["-R"],
    ["src/./d", "src/./d/e", "src/./d/e/f"]
);
counts_overlapping_arguments!(
    path_of_an_earlier_argument_further_on,
    ["-R"],
    ["src/d/e/f", "src/./g", "src/d/e"]
);
counts_overlapping_arguments!(
    path_of_an_earlier_argument_continued,
    ["-R"],
    ["src/x", "src/d/y", "src/d/e/"]
);
counts_overlapping_arguments!(
    the_same_path_in_two_sources,
    ["-R"],
    ["src/./d/e", "t/./d/e"]
);

synctest!(append_keeps_existing_data, |w: World| {
    w.source("a=longer").dest("a=long");
    w.agree(&["-rvv", "--append"]).exits(0);
});

// Network and FUSE file systems may do that while the directory changes.
synctest!(names_that_a_directory_lists_twice, |w: World| {
    w.env("SPARSYNC_LISTED_TWICE", "1");
    w.source("a d/b d/e/c l->a x/y")
        .dest("a=old old x=file z/u/v")
        .keep_dest();
    for options in [
        &["-ai"][..],
        &["-ai", "--stats", "--delete"],
        &["-aiv", "--delete-after"],
        &["-aicO", "--delete-before", "--remove-source-files"],
    ] {
        w.restore_dest().agree(options).exits(0);
    }
});
