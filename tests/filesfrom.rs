//! Lists of names: `--files-from` and what it implies.

use crate::delete::{make_levels, remove_levels};
use crate::kit::{Scene, World, assert_output, synctest};

const TREE: &str = "a b d/x d/y/z d/y/w e/f e/y/z=e f/w=f top/in/deep l->a #h ;s loop->loop d/loop->loop top/loop->loop";

/// Declares a case with the list in a file.
macro_rules! lists {
    ($name:ident, $list:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source(TREE).dest("old d/old").file("list", $list);
            w.agree(&["--files-from=list", $($option),+]);
        });
    };
}

lists!(the_names_in_a_list, "a\nd/x\n", ["-ai"]);
lists!(names_in_any_order_are_sorted, "e/f\nb\nd/x\na\n", ["-ai"]);
lists!(duplicate_names_count_once, "a\na\nd/x\n./a\n", ["-ai"]);
lists!(directory_without_a_slash_is_created_empty, "d\n", ["-ai"]);
lists!(directory_with_a_slash_includes_its_content, "d/\n", ["-ai"]);
lists!(a_directory_with_recursion, "d\n", ["-air"]);
lists!(dot_in_the_list, ".\n", ["-ai"]);
lists!(dot_slash_in_the_list, "./\n", ["-ai"]);
synctest!(
    without_directories_only_where_the_list_is_read,
    |w: World| {
        w.source(TREE).file("list", ".\n").file("f", "");
        w.agree_paths(&["-i", "--no-d", "--files-from=list"], &["src/", "f"]);
        w.file("list", "d/y\na\n").agree_paths(
            &["-ai", "-d", "--no-dirs", "--files-from=list"],
            &["src/", "dst"],
        );
    }
);
lists!(
    symlink_loop_with_a_slash,
    "loop/\nd/loop/\n./top/./loop/\na\n",
    ["-ai"]
);

// Without -l, the symlinks are skipped.
synctest!(
    symlink_loop_with_a_slash_if_some_links_are_followed,
    |w: World| {
        w.source("loop->loop a->b b->a d/x u->d/../../src/u")
            .dest("old")
            .file("list", "loop/\na/.\nu/\n")
            .keep_dest();
        for option in ["--copy-unsafe-links", "--copy-dirlinks", "--copy-links"] {
            w.restore_dest()
                .agree(&["-ai", "--files-from=list", option]);
            w.restore_dest().agree(&["-r", "--files-from=list", option]);
        }
        w.file("list", "u\n")
            .agree(&["-ai", "--files-from=list", "--copy-unsafe-links"])
            .exits(23);
    }
);
lists!(slash_in_the_list_with_recursion, "/\n", ["-air"]);
lists!(
    an_implied_root_counts_once,
    "./a\n./d/x\n./b\n",
    ["-ai", "--stats"]
);
synctest!(
    an_implied_root_without_attributes_counts_once,
    |w: World| {
        w.not_served_pull("it is not sent");
        w.source(TREE).dest("old d/old").file("list", "./a\n./d\n");
        w.agree(&["--files-from=list", "-ai", "--no-implied-dirs", "--stats"]);
    }
);
lists!(
    comments_and_blank_lines,
    "# comment\n; comment\n\na\n#h\n",
    ["-ai"]
);
lists!(leading_slashes_are_dropped, "/a\n//d/x\n", ["-ai"]);
synctest!(two_dots_stay_inside, |w: World| {
    w.not_pulled("rsync rejects the path to which its server resolves `..`");
    w.source(TREE)
        .dest("old d/old")
        .file("list", "../a\nd/../b\nd/y/../x\n");
    w.agree(&["--files-from=list", "-ai"]);
});
lists!(dot_element_is_a_marker, "top/./in/deep\n", ["-ai"]);
lists!(carriage_returns_end_lines_too, "a\r\nd/x\r\n", ["-ai"]);
lists!(
    names_in_a_file_without_paths,
    "a/x\nd/x\n",
    ["-ai", "--no-R"]
);
lists!(no_last_newline, "a\nd/x", ["-ai"]);
lists!(an_empty_list, "", ["-ai"]);
lists!(missing_names_exit_23, "a\nnowhere\nd/gone\n", ["-ai"]);
lists!(
    missing_names_ignored,
    "a\nnowhere\n",
    ["-ai", "--ignore-missing-args"]
);
lists!(
    missing_names_deleted,
    "a\nold\n",
    ["-ai", "--delete-missing-args"]
);
lists!(separated_by_nul, "a\0d/x\0#h\0", ["-ai", "--from0"]);
lists!(
    without_relative_names_are_flat,
    "d/x\nd/y/z\na\n",
    ["-ai", "--no-R"]
);
lists!(
    of_equal_last_elements_the_first_wins,
    "e/y/z\nd/y/\nf/w\nd/y/w\n",
    ["-ai", "--no-R"]
);
lists!(
    without_implied_directories,
    "d/x\ne/f\n",
    ["-ai", "--no-implied-dirs"]
);
lists!(
    with_rules_for_an_implied_root,
    "./d/x\n./nowhere\na\n",
    ["-ai", "--include=d/", "--include=x", "--exclude=*"]
);
lists!(
    with_rules,
    "a\nb\nd/x\nd/y/z\n",
    ["-ai", "--exclude=b", "--exclude=z"]
);
synctest!(with_an_excluded_parent, |w: World| {
    w.not_pulled("rsync rejects entries of its own sender");
    w.source(TREE)
        .dest("old d/old")
        .file("list", "d/x\nd/y/z\n");
    w.agree(&["--files-from=list", "-ai", "--exclude=d"]);
});

/// Declares a case with merge files in the directories that lead to the listed names.
macro_rules! below_merge_files {
    ($name:ident, $list:expr) => {
        synctest!($name, |w: World| {
            w.not_pulled(
                "rsync's server takes the lines of a merge file for one rule, because of the --from0 it is given",
            );
            w.source(
                "h1 h2 h4 a/h1 a/h2 a/h4 b/h1 b/h2 b/h4 g/h1 g/h2 g/h4 g/d/h1 g/d/h2 g/d/h3 g/d/h4 g/d/e/h2 g/d/e/k",
            );
            for (path, rule) in
                [(".f", "- h4"), ("a/.f", "P x"), ("b/.f", "- h4"), ("g/.f", "- h1"), ("g/d/.f", "- h2\n- .")]
            {
                w.file(&format!("src/{path}"), rule);
            }
            w.dest("b/h1 b/old g/d/e/old").file("list", $list).keep_dest();
            for (options, filter) in [("-ai", ": .f"), ("-ai", ": /.f"), ("-air --delete", ": .f"), ("-air", ": /.f")] {
                let options: Vec<&str> = options.split(' ').chain(["--files-from=list", "-f", filter]).collect();
                w.restore_dest().agree(&options).exits(0);
            }
        });
    };
}

below_merge_files!(merge_file_of_the_only_name, "g/d/h2\n");
below_merge_files!(
    merge_file_of_several_names,
    "g/d/h2\ng/d/h1\ng/d/h3\ng/d/h4\ng/d/h2\n"
);
below_merge_files!(
    merge_files_of_several_directories,
    "g/h4\ng/h1\na/h1\na/h2\nb/h4\ng/h2\nb/h1\nb/h4\nh4\nh1\n"
);
below_merge_files!(
    merge_files_above_named_directories,
    "g/d/h3\na\nb/\ng/d/e\ng/d/e/h2\n"
);
below_merge_files!(merge_files_and_an_implied_root, "g/d/h3\n./a/h1\n");
below_merge_files!(merge_files_behind_an_implied_root, "./g/d/h1\n");
below_merge_files!(merge_files_below_the_whole_tree, "g/d/h3\n.\na/h1\n");

synctest!(merge_file_of_a_listed_root_protects, |w: World| {
    w.source("d/k f")
        .dest("d/old d/mine old mine")
        .file("dst/.f", "P mine");
    for (options, list) in [
        ("-ai", "./f\nd/\n"),
        ("-air", "./f\nd\n"),
        ("-air", "f\nd\n"),
        ("-ai", "./\nd/\n"),
    ] {
        w.file("list", list).keep_dest();
        for when in [
            "--delete",
            "--delete-before",
            "--delete-after",
            "--delete-delay",
        ] {
            w.restore_dest()
                .agree(&[options, when, "-f: .f", "--files-from=list"])
                .exits(0);
        }
    }
});

lists!(with_deletion_and_recursion, "d\n", ["-air", "--delete"]);
lists!(
    with_deletion_of_a_slash_directory,
    "d/\n",
    ["-ai", "--delete"]
);
lists!(symlinks_in_a_list, "l\n", ["-ai"]);
lists!(list_with_v, "a\nd/x\n", ["-av"]);
lists!(spaces_belong_to_names, " a\nb \n", ["-ai"]);
lists!(
    sender_paths_begin_in_the_base_directory,
    "./a\nd/x\ntop/./in/deep\ne/\n",
    ["-a", "--out-format=%f|%n"]
);
lists!(
    sender_paths_without_relative,
    "a\nd/y/z\ne/\n",
    ["-a", "--no-R", "--out-format=%f|%n"]
);
lists!(listed_only, "a\nd/x\n", ["-a", "--list-only"]);

synctest!(a_list_from_stdin, |w: World| {
    w.source(TREE).dest("").stdin("a\nd/x\n");
    w.agree(&["-ai", "--files-from=-"]).prints("d/x");
});

synctest!(list_with_non_ascii_names, |w: World| {
    w.build("src", |t| drop(t.file(b"caf\xe9", "1")));
    w.dest("").file("list", b"caf\xe9\n");
    w.agree(&["-ai", "--files-from=list"]).exits(0);
});

synctest!(a_list_with_newlines_in_names, |w: World| {
    w.build("src", |t| drop(t.file("new\nline", "1")));
    w.dest("").file("list", "new\nline\0");
    w.agree(&["-ai0", "--files-from=list"])
        .prints("new\\#012line");
});

synctest!(list_relative_to_a_source_without_a_slash, |w: World| {
    w.source(TREE).dest("").file("list", "a\nd/x\n");
    w.agree_paths(&["-ai", "--files-from=list"], &["src", "dst"])
        .exits(0);
});

synctest!(a_list_with_a_new_destination, |w: World| {
    w.source(TREE).file("list", "d/x\n");
    w.agree(&["-ai", "--files-from=list"])
        .prints("created directory dst");
});

synctest!(a_list_that_cannot_be_read, |w: World| {
    w.source(TREE).dest("");
    w.once()
        .agree(&["-ai", "--files-from=nowhere"])
        .exits(1)
        .warns("failed to open files-from file");
});

synctest!(list_without_read_permission_exits_1, as user, |w: World| {
    w.source(TREE).dest("old").build(".", |t| drop(t.file("shut", "a\n").mode(0)));
    w.once().agree(&["-ai", "--files-from=shut"]).exits(1).warns("failed to open files-from file shut: Permission denied");
});

synctest!(a_list_allows_one_source, |w: World| {
    w.source(TREE).dest("").file("list", "a\n");
    // Each program prints its own usage text.
    w.mask_with(|line| line.contains("rsync error:").then(|| line.to_owned()));
    w.once()
        .agree_paths(&["-ai", "--files-from=list"], &["src/", "src/d", "dst/"])
        .exits(1);
});

synctest!(a_long_list, |w: World| {
    let names: Vec<_> = (0..200).map(|n| format!("d{}/f{n}", n % 13)).collect();
    w.source(&names.join(" "))
        .dest("")
        .file("list", names.join("\n"));
    w.once().agree(&["-ai", "--files-from=list"]).exits(0);
});

// ── a list on the other machine ─────────────────────────────────────────────────────────────────
synctest!(remote_list, between machines, |w: World| {
    w.source(TREE).dest("old d/old").file("list", "a\n# a comment\nd/x\nnowhere\n");
    w.agree(&["-ai", "--files-from=:list"]).exits(23).prints(">f+++++++++ d/x");
});

synctest!(remote_list_of_a_root_and_names_below, between machines, |w: World| {
    w.source(TREE).dest("d/old").file("list", ".\nd/x\nd/y/z\n");
    w.agree(&["-ai", "--delete", "--files-from=:list"]).exits(0).prints(">f+++++++++ d/x");
});

synctest!(remote_list_without_paths, between machines, |w: World| {
    w.source("d/x e/f/y").dest("").file("list", "d/x\ne/f/y\n");
    w.agree(&["-ai", "--no-R", "--files-from=:list"]).exits(0).prints(">f+++++++++ x");
});

synctest!(remote_list_separated_by_nul, between machines, |w: World| {
    w.source(TREE).dest("old d/old").file("list", "a\0#h\0d/y/z");
    w.agree(&["-ai0", "--files-from=far:list"]).exits(0).prints(">f+++++++++ d/y/z");
});

/// Under `-m`, rsync keeps an empty directory that its list has twice, unless it is the last entry of the list.
pub fn pruned_of_names(w: &World, version: &str) {
    w.source("a/1 g/ h/i/ k/l/ k/m/ z/");
    w.dest("a/1 g/ h/i/ k/l/ k/m/ old z/").keep_dest();
    for (recurses, list) in [
        ("--dirs", ".\na\n"),
        ("--dirs", "g\n.\nz\n"),
        ("--dirs", ".\nk/l\n"),
        ("--dirs", "./\n.\n"),
        ("-r", "g\nh\ng\n"),
        ("-r", "k\na\nk/m\nk\n"),
    ] {
        w.restore_dest().file("list", list);
        w.agree(&[
            "-lptgoDim",
            version,
            "--delete",
            recurses,
            "--files-from=list",
        ])
        .exits(0);
    }
    let named: [&[&str]; 3] = [
        &["src/", "src/"],
        &["src/", "src/k", "src/k/m"],
        &["src/h", "src/", "src/z"],
    ];
    for names in named {
        w.restore_dest();
        w.agree_paths(&["-aim", version, "--delete"], &[names, &["dst/"]].concat())
            .exits(0);
    }
}

synctest!(pruning_of_named_directories, |w: World| pruned_of_names(
    &w,
    "--protocol=32"
));

synctest!(missing_base_directory_exits_3, |w: World| {
    w.not_pulled("rsync's client loses the connection before it prints the error");
    w.source("a").dest("").file("list", "a\n");
    // rsync also reports the end of its other process, before or after this.
    w.once()
        .no_dry_run()
        .mask_with(|line| (!line.starts_with("rsync error:")).then(|| line.to_owned()));
    for base in ["nowhere", "nowhere/", "src/a"] {
        w.agree_paths(&["--files-from=list", "-a"], &[base, "dst/"])
            .exits(3)
            .warns("change_dir \"{W}/");
    }
});

/// Declares a case with a list in which one line names a missing entry.
macro_rules! has_missing_names {
    ($name:ident, $list:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("z/f z/k/ nodir").dest("XD f").file("list", $list);
            w.stderr_unordered().agree(&["--files-from=list", "-ai", $($option),+]).exits(23);
        });
    };
}

// It stands for the destination, as a single file does.
synctest!(one_missing_name_creates_no_destination, |w: World| {
    w.source("a d/x").dest("gone kept").file("list", "gone\n");
    for missing in ["--delete-missing-args", "--ignore-missing-args"] {
        for option in ["-i", "--mkpath"] {
            for dest in ["new", "new/", "no/new", "dst/"] {
                w.agree_paths(
                    &["-ri", missing, option, "--files-from=list"],
                    &["src", dest],
                );
            }
        }
    }
});

synctest!(one_missing_name_deletes_the_destination, |w: World| {
    w.source("a").dest("kept").file("list", "gone\n");
    w.agree_paths(
        &["-ri", "--delete-missing-args", "--files-from=list"],
        &["src", "dst/kept"],
    );
    w.agree_paths(&["-riR", "--delete-missing-args"], &["src/./gone", "new"]);
});

synctest!(which_missing_names_create_the_destination, |w: World| {
    w.source("a d/x").dest("");
    for list in [
        "gone\ngone\n",
        "./gone\n",
        "d/gone\n",
        "gone/\n",
        "gone\nnone/x\n",
    ] {
        w.file("list", list);
        w.agree_paths(
            &["-ri", "--delete-missing-args", "--files-from=list"],
            &["src", "new"],
        );
        // Without incremental recursion, rsync warns about an absent directory in a second line, about ACLs.
        if !list.contains("none") {
            let options = [
                "-r",
                "--no-inc-recursive",
                "--delete-missing-args",
                "--files-from=list",
            ];
            w.agree_paths(&options, &["src", "new"]);
        }
    }
});

has_missing_names!(marker_below_a_missing_directory, "z/f\nnope/./x\n", ["-r"]);
has_missing_names!(
    marker_below_a_missing_directory_stops_deletion,
    "z/\nnope/./x\n./\n",
    ["-r", "--delete"]
);
has_missing_names!(
    marker_below_a_file,
    "nodir/./x\nz/f\n",
    ["--ignore-missing-args"]
);
has_missing_names!(
    a_missing_directory_without_relative,
    "z/\nnope/\n",
    ["--no-R", "-r", "--delete"]
);
has_missing_names!(
    a_name_in_a_file_without_relative,
    "z/\nnodir/x\n",
    ["--no-R", "--ignore-missing-args"]
);
synctest!(dot_in_the_list_without_relative, |w: World| {
    w.source(TREE).dest("").file("list", ".\na\n");
    w.agree_paths(&["-ai", "--no-R", "--files-from=list"], &["src", "dst"])
        .exits(0)
        .never_prints("src");
});

/// The depth of a listed path bounds the stack. rsync fails, too, because the path is too long.
#[test]
fn listed_path_has_too_many_elements() {
    let scene = Scene::new();
    scene.tree("src").text("a z");
    make_levels(&scene.path("src/d"));
    scene.file("list", &format!("a\n{}\nz\n", "d/".repeat(10_000)));
    let output = scene
        .command("client", "-r --files-from=list src/ dst/")
        .output()
        .expect("the program can be started");
    assert_output(&output, 23, &["failed: File name too long (36)"]);
    assert!(scene.path("dst/a").exists() && scene.path("dst/z").exists());
    remove_levels(&scene.path("src/d"));
}
