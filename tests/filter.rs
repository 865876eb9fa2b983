//! Filter rules: what they match, on which side, and where they come from.

use crate::kit::{World, synctest};

/// A tree with something for most patterns: names that repeat at several depths, and near misses.
const TREE: &str = "a.c a.h a.o b.o build/x.o build/x.c foo foo.x foo-bar/f lib/foo lib/a.c lib/deep/a.c lib/deep/a.o \
     lib/deep/build/y lib/deep/foo/z empty/ x1 x2 xa [q] t/x?/u";

/// [`TREE`] as the source, and a destination with entries that the source lacks.
fn grown(w: &World) {
    w.source(TREE)
        .dest("a.c old.c old.o build/old.o build/old.c lib/old.o lib/deep/old.c gone/a.c gone/b.o gone/in/c.o");
}

/// Declares a case that copies [`TREE`] to an empty destination under some rules.
macro_rules! selects {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source(TREE);
            w.agree(&["-ai", $($option),+]).exits(0);
        });
    };
}

/// Declares a case that mirrors [`TREE`] onto an older tree under some rules.
macro_rules! mirrors {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            grown(&w);
            w.agree(&["-ai", "--delete", $($option),+]).exits(0);
        });
    };
}

// ── patterns ────────────────────────────────────────────────────────────────────────────────────
selects!(a_plain_name_matches_at_every_depth, ["--exclude=foo"]);
selects!(a_leading_slash_anchors_at_the_top, ["--exclude=/foo"]);
selects!(
    a_trailing_slash_matches_only_directories,
    ["--exclude=foo/"]
);
selects!(
    anchored_directory_excludes_everything_below,
    ["--exclude=/lib/"]
);
selects!(
    an_inner_slash_matches_the_tail_of_the_path,
    ["--exclude=deep/a.c"]
);
selects!(
    an_inner_slash_does_not_match_half_a_component,
    ["--exclude=eep/a.c"]
);
selects!(star_does_not_match_a_slash, ["--exclude=lib/*.c"]);
selects!(a_star_in_the_middle_of_a_path, ["--exclude=/*/deep"]);
selects!(two_stars_cross_slashes, ["--exclude=lib/**.c"]);
selects!(two_stars_at_the_front, ["--exclude=**/a.o"]);
selects!(two_stars_alone_match_everything, ["--exclude=**"]);
selects!(
    two_stars_after_a_directory_keep_the_directory,
    ["--exclude=lib/**"]
);
selects!(three_stars_include_the_directory, ["--exclude=lib/***"]);
selects!(
    three_stars_included_then_all_else_excluded,
    ["--include=/lib/***", "--exclude=*"]
);
selects!(a_question_mark_is_one_character, ["--exclude=x?"]);
selects!(a_question_mark_never_matches_a_slash, ["--exclude=lib?foo"]);
selects!(a_class_matches_one_of_a_range, ["--exclude=x[0-9]"]);
selects!(a_negated_class_with_a_caret, ["--exclude=x[^0-9]"]);
selects!(
    a_negated_class_with_an_exclamation_mark,
    ["--exclude=x[!0-9]"]
);
selects!(a_named_class, ["--exclude=x[[:alpha:]]"]);
selects!(a_named_class_among_others, ["--exclude=[[:digit:]x]?"]);
selects!(an_unclosed_class_matches_nothing, ["--exclude=x[0-9"]);
selects!(a_bracket_escaped_beside_a_wildcard, ["--exclude=\\[q*"]);
selects!(
    a_backslash_without_a_wildcard_is_itself,
    ["--exclude=\\[q]"]
);
selects!(a_bracket_as_class_of_a_bracket, ["--exclude=[[]q]"]);
selects!(an_escaped_question_mark, ["--exclude=x\\?"]);
selects!(a_wildcard_directory_pattern, ["--exclude=*/"]);
selects!(
    files_of_one_suffix_in_all_directories,
    ["--include=*/", "--include=*.c", "--exclude=*"]
);
selects!(
    include_below_an_excluded_directory_has_no_effect,
    ["--include=/lib/deep/a.c", "--exclude=/lib", "--exclude=*.o"]
);
selects!(
    parents_must_be_included_one_by_one,
    [
        "--include=/lib/",
        "--include=/lib/deep/",
        "--include=/lib/deep/a.c",
        "--exclude=*"
    ]
);
selects!(
    the_first_match_wins,
    ["--include=a.o", "--exclude=*.o", "--include=b.o"]
);
selects!(names_starting_with_a_prefix_at_the_top, ["--exclude=/foo*"]);
selects!(
    empty_directories_are_kept_without_prune,
    ["--include=*/", "--exclude=*"]
);
selects!(
    prune_removes_directories_emptied_by_rules,
    ["-m", "--include=*/", "--include=*.o", "--exclude=*"]
);
selects!(prune_removes_every_empty_directory, ["-m"]);

// ── the text of a rule ──────────────────────────────────────────────────────────────────────────
selects!(a_filter_with_a_minus_excludes, ["-f", "- *.o"]);
selects!(filter_with_an_underscore_as_separator, ["-f-_*.o"]);
selects!(
    long_names_of_rules,
    ["--filter=include a.o", "--filter=exclude *.o"]
);
selects!(
    a_long_name_with_modifiers,
    ["--filter=exclude,! *.c", "-f+ */"]
);
selects!(a_rule_with_a_comma_before_its_modifiers, ["-f-,s *.o"]);
selects!(
    exclude_option_with_an_include_prefix,
    ["--exclude=+ a.o", "--exclude=*.o"]
);
selects!(include_option_with_an_exclude_prefix, ["--include=- *.o"]);
selects!(
    exclamation_mark_clears_earlier_rules,
    ["--exclude=*.c", "-f!", "--exclude=*.o"]
);
selects!(
    an_exclude_that_is_an_exclamation_mark_clears,
    ["--exclude=*.c", "--exclude=!", "--exclude=*.o"]
);
selects!(a_negated_rule_matches_all_else, ["-f-! */", "-f+ */"]);
selects!(a_negated_rule_on_files, ["-f+ */", "-f-! *.c"]);
selects!(
    absolute_rule_matches_the_full_path,
    ["-f-/ {W}/src/lib/foo"]
);
selects!(
    absolute_rule_does_not_match_the_transfer_path,
    ["-f-/ /lib/foo"]
);

synctest!(second_space_is_part_of_the_pattern, |w: World| {
    w.build("src", |t| {
        t.file(" lead", "1");
        t.file("trail ", "2");
        t.file("lead", "3");
        t.file("trail", "4");
    });
    w.agree(&["-ai", "-f-  lead", "--exclude=trail "])
        .never_prints("trail \n");
});

synctest!(non_ascii_names_match_as_bytes, |w: World| {
    w.build("src", |t| {
        t.file(b"caf\xe9", "latin");
        t.file("caf\u{e9}", "utf-8");
        t.file("caf", "plain");
    });
    w.agree(&["-ai", "--exclude=caf?"])
        .prints("caf\\#303\\#251");
});

synctest!(
    a_pattern_of_raw_bytes_matches_a_name_of_raw_bytes,
    |w: World| {
        w.build("src", |t| {
            t.file(b"caf\xe9", "latin");
            t.file(b"caf\xe8", "latin");
        });
        w.agree(&[&b"-ai"[..], b"--exclude=caf\xe9"])
            .prints("caf\\#350")
            .never_prints("351");
    }
);

synctest!(patterns_are_case_sensitive, |w: World| {
    w.source("README readme Makefile");
    w.agree(&["-ai", "--exclude=readme", "--exclude=[M]*"])
        .prints("README");
});

synctest!(
    an_anchor_is_the_parent_when_the_source_has_no_slash,
    |w: World| {
        w.source(TREE);
        w.agree_paths(
            &[
                "-ai",
                "--exclude=/foo",
                "--exclude=/src/a.c",
                "--exclude=src/b.o",
            ],
            &["src", "dst"],
        )
        .prints("src/foo");
    }
);

synctest!(
    with_relative_the_anchor_is_the_root_of_the_kept_path,
    |w: World| {
        w.source(TREE);
        w.agree_paths(
            &["-aiR", "--exclude=/lib/a.c", "--exclude=/src/lib/foo"],
            &["src/lib", "dst"],
        )
        .prints("src/lib/a.c");
    }
);

synctest!(source_arguments_are_filtered, |w: World| {
    w.source("a.o b.c").dest("");
    w.agree_paths(&["-ai", "--exclude=*.o"], &["src/a.o", "src/b.c", "dst/"])
        .prints("b.c");
});

// ── sides ───────────────────────────────────────────────────────────────────────────────────────
mirrors!(an_exclude_hides_and_protects, ["--exclude=*.o"]);
mirrors!(a_sender_rule_hides_but_does_not_protect, ["-f-s *.o"]);
mirrors!(a_receiver_rule_protects_but_does_not_hide, ["-f-r *.o"]);
mirrors!(hide_is_an_exclude_of_the_sender, ["-fH *.o"]);
mirrors!(protect_is_an_exclude_of_the_receiver, ["-fP *.o"]);
mirrors!(show_before_hide, ["-fS a.o", "-fH *.o"]);
mirrors!(risk_before_protect, ["-fR /old.o", "-fP *.o"]);
mirrors!(
    long_names_of_the_sides,
    [
        "--filter=hide *.h",
        "--filter=protect old.c",
        "--filter=show b.o",
        "--filter=risk old.o",
        "--exclude=*.o"
    ]
);
mirrors!(rule_with_both_side_modifiers, ["-f-sr *.o"]);
mirrors!(
    delete_excluded_deletes_hidden_files,
    ["--delete-excluded", "--exclude=*.o"]
);
mirrors!(
    delete_excluded_keeps_protected_files,
    ["--delete-excluded", "--exclude=*.o", "-fP old.o"]
);
mirrors!(
    delete_excluded_respects_receiver_rules,
    ["--delete-excluded", "-f-r *.o", "--exclude=*.c"]
);
mirrors!(excluded_file_keeps_an_extra_directory, ["--exclude=b.o"]);
mirrors!(a_perishable_rule_does_not_keep_a_directory, ["-f-p *.o"]);
mirrors!(
    excluded_directory_is_kept_with_its_content,
    ["--exclude=gone/"]
);
mirrors!(protect_rule_below_a_deleted_directory, ["-fP gone/in/c.o"]);

// ── rules from files ────────────────────────────────────────────────────────────────────────────
synctest!(a_list_of_excludes_with_comments_and_prefixes, |w: World| {
    w.source(TREE).file(
        "rules",
        "# comment\n; comment\n\n+ a.o\n*.o\n- /foo\n/lib/deep/\n",
    );
    w.agree(&["-ai", "--exclude-from=rules"])
        .prints("a.o")
        .never_prints("b.o");
});

synctest!(a_list_of_includes, |w: World| {
    w.source(TREE).file("rules", "*/\n*.c\n- x*\n");
    w.agree(&["-ai", "--include-from=rules", "--exclude=*"])
        .never_prints("a.h");
});

synctest!(
    a_list_without_a_last_newline_and_with_carriage_returns,
    |w: World| {
        w.source(TREE).file("rules", "*.o\r\n*.c");
        w.agree(&["-ai", "--exclude-from=rules"])
            .never_prints("a.h.");
    }
);

synctest!(a_list_clears_with_an_exclamation_mark, |w: World| {
    w.source(TREE).file("rules", "*.o\n!\n*.c\n");
    w.agree(&["-ai", "--exclude=*.h", "--exclude-from=rules"])
        .prints("a.h");
});

synctest!(excludes_from_stdin, |w: World| {
    w.source(TREE).stdin("*.o\n/lib\n");
    w.agree(&["-ai", "--exclude-from=-"]).never_prints("lib/");
});

synctest!(excludes_separated_by_nul, |w: World| {
    w.source(TREE).file("rules", "*.o\0# no comment\0/lib\0");
    w.agree(&["-ai", "--from0", "--exclude-from=rules"])
        .never_prints("lib/");
});

synctest!(trailing_space_in_a_list_is_significant, |w: World| {
    w.source("foo lib/foo").file("rules", "foo \n");
    w.agree(&["-ai", "--exclude-from=rules"]).prints("foo");
});

synctest!(a_merge_file_holds_full_rules, |w: World| {
    w.source(TREE)
        .file("rules", "# comment\nH *.o\nP old.c\n\n+ /lib/\n")
        .dest("old.c old.o");
    w.agree(&["-ai", "--delete", "-f. rules"])
        .prints("deleting   old.o")
        .never_prints("old.c");
});

synctest!(a_merge_file_of_excludes_only, |w: World| {
    w.source(TREE).file("rules", "*.o\n/foo\n");
    w.agree(&["-ai", "-f.- rules"]).never_prints("b.o");
});

synctest!(a_merge_file_of_includes_only, |w: World| {
    w.source(TREE).file("rules", "a.o\n*/\n");
    w.agree(&["-ai", "--filter=merge,+ rules", "--exclude=*"])
        .prints("a.o");
});

synctest!(a_merge_file_split_at_blanks, |w: World| {
    w.source(TREE).file("rules", "*.o *.c\n/foo");
    w.agree(&["-ai", "-f.-w rules"]).never_prints("b.o");
});

synctest!(a_merge_file_merges_another, |w: World| {
    w.source(TREE)
        .file("rules", ". more\n- *.h\n")
        .file("more", "- *.o\n");
    w.agree(&["-ai", "-f. rules"]).never_prints("a.h");
});

synctest!(a_merge_file_from_stdin, |w: World| {
    w.source(TREE).stdin("- *.o\n+ foo\n");
    w.agree(&["-ai", "-f. -"]).never_prints("a.o");
});

synctest!(merge_file_with_a_side_modifier, |w: World| {
    grown(&w);
    w.file("rules", "*.o\n");
    w.agree(&["-ai", "--delete", "-f.-s rules"])
        .prints("deleting   old.o");
});

synctest!(
    merge_file_for_the_receiver_is_not_read_by_a_server_that_sends,
    |w: World| {
        w.source("a d/x").dest("old");
        w.build("src", |t| drop(t.file("d/.rules", "bad\n")));
        if !w.is_pulled() {
            w.alone(&["-ai", "-f:r .rules"]).exits(1);
            return;
        }
        w.agree(&["-ai", "-f:r .rules"]).exits(0);
        w.agree_paths(&["-ai", "-f:re .rules"], &["src/", "new/"])
            .exits(0);
    }
);

// ── per-directory rules ─────────────────────────────────────────────────────────────────────────
/// A tree with rule files on both sides at several depths.
fn ruled(w: &World, top: &str, below: &str) {
    grown(w);
    w.build("src", |t| {
        t.file(".rules", top);
        t.file("lib/.rules", below);
    });
    w.build("dst", |t| {
        t.file(".rules", top);
        t.file("lib/.rules", below);
    });
}

synctest!(per_directory_rules_are_inherited, |w: World| {
    ruled(&w, "- *.o\n", "- *.c\n");
    w.agree(&["-ai", "--delete", "-f: .rules"])
        .prints("deleting   old.c");
});

synctest!(deeper_rules_come_before_inherited_ones, |w: World| {
    ruled(&w, "- *.o\n", "+ a.o\n");
    w.agree(&["-ai", "-f: .rules"]).prints("lib/deep/a.o");
});

synctest!(
    anchors_in_a_rule_file_are_relative_to_its_directory,
    |w: World| {
        ruled(&w, "- /foo\n", "- /deep/a.c\n");
        w.agree(&["-ai", "-f: .rules"])
            .prints("lib/foo")
            .never_prints("lib/deep/a.c");
    }
);

synctest!(clear_in_a_rule_file_removes_inherited_rules, |w: World| {
    ruled(&w, "- *.o\n", "!\n- foo\n");
    w.agree(&["-ai", "-f: .rules"]).prints("lib/deep/a.o");
});

synctest!(rules_that_are_not_inherited, |w: World| {
    ruled(&w, "- *.o\n", "- foo\n");
    w.agree(&["-ai", "-f:n .rules"]).prints("build/x.o");
});

synctest!(a_rule_file_that_excludes_itself, |w: World| {
    ruled(&w, "- *.o\n", "- foo\n");
    w.agree(&["-ai", "--delete", "-f:e .rules"])
        .never_prints("+ .rules");
});

synctest!(rule_files_of_excludes_only, |w: World| {
    ruled(&w, "*.o\n", "foo\n");
    w.agree(&["-ai", "--delete", "-f:- .rules"])
        .never_prints("a.o");
});

synctest!(rule_files_of_includes_only, |w: World| {
    ruled(&w, "*.o\n*/\n", "foo\n");
    w.agree(&["-ai", "-f:+ .rules", "--exclude=*"])
        .prints("a.o");
});

synctest!(rule_files_split_at_blanks, |w: World| {
    ruled(&w, "*.o /foo", "a.c deep/");
    w.agree(&["-ai", "-f:w- .rules"]).never_prints("a.o");
});

synctest!(rule_files_in_cvs_format, |w: World| {
    ruled(&w, "*.o /foo", "a.c deep");
    w.agree(&["-ai", "-f:C .rules"]).never_prints("a.o");
});

synctest!(rule_files_of_the_sender, |w: World| {
    ruled(&w, "*.o\n", "foo\n");
    w.agree(&["-ai", "--delete", "-f:s- .rules"])
        .prints("deleting   old.o");
});

synctest!(rule_files_of_the_receiver, |w: World| {
    ruled(&w, "*.o\n", "foo\n");
    w.agree(&["-ai", "--delete", "-f:r- .rules"])
        .prints("b.o")
        .never_prints("old.o");
});

synctest!(perishable_rule_files, |w: World| {
    ruled(&w, "*.o\n", "foo\n");
    w.agree(&["-ai", "--delete", "-f:p- .rules"])
        .never_prints("deleting   old.o");
});

synctest!(transferred_rule_files_apply_to_delete_after, |w: World| {
    w.source("a.c build/x.o").dest("a.c old.o build/old.o");
    w.build("src", |t| drop(t.file(".rules", "- *.o\n")));
    w.agree(&["-ai", "--delete-after", "-f: .rules"])
        .never_prints("old.o");
});

synctest!(
    rule_files_not_yet_transferred_protect_nothing,
    |w: World| {
        w.source("a.c build/x.o").dest("a.c old.o build/old.o");
        w.build("src", |t| drop(t.file(".rules", "- *.o\n")));
        w.agree(&["-ai", "--delete-before", "-f: .rules"])
            .prints("deleting   old.o");
    }
);

/// Drops rsync's line about one of its processes ending the other.
fn one_end(line: &str) -> Option<String> {
    (!line.contains("received SIGUSR1")).then(|| line.to_owned())
}

synctest!(invalid_rule_in_a_source_file_exits_1, |w: World| {
    w.source("d/a")
        .dest("d/")
        .build("src", |t| drop(t.file("d/.rules", "bogus x\n")));
    w.once()
        .mask_with(one_end)
        .agree(&["-ai", "-f: .rules"])
        .exits(1)
        .warns("Unknown filter rule");
});

synctest!(invalid_rule_in_a_destination_file_exits_1, |w: World| {
    w.source("d/")
        .dest("d/old")
        .build("dst", |t| drop(t.file("d/.rules", "bogus x\n")));
    w.once()
        .agree(&["-ai", "--delete", "-f: .rules"])
        .exits(1)
        .warns("Unknown filter rule");
});

synctest!(
    merge_files_that_exclude_themselves_are_deleted_as_excluded,
    |w: World| {
        w.source("a x")
            .file("src/.r", "- x\n")
            .dest("x")
            .file("dst/.r", "- y\n")
            .keep_dest();
        for rule in [":e .r", ":er .r", ":es .r", ":ep .r"] {
            for option in ["--delete", "--delete-excluded"] {
                w.restore_dest().agree(&["-a", option, "-f", rule]).exits(0);
            }
        }
    }
);

synctest!(rule_file_that_merges_itself_exits_11, |w: World| {
    w.source("a").dest("a");
    w.build("src", |t| drop(t.file(".r", ". .r\n")));
    w.once()
        .mask_with(one_end)
        .agree(&["-ai", "--filter=: .r"])
        .exits(11);
});

synctest!(rule_file_that_merges_a_missing_file_exits_11, |w: World| {
    w.source("d/a")
        .dest("d/")
        .build("src", |t| drop(t.file("d/.rules", ". nope\n")));
    w.once()
        .mask_with(one_end)
        .agree(&["-ai", "-f: .rules"])
        .exits(11);
});

synctest!(
    directory_with_the_name_of_a_rule_file_is_copied,
    |w: World| {
        w.source("a .rules/b").dest("");
        w.agree(&["-ai", "-f: .rules"]).exits(0);
    }
);

synctest!(
    the_rule_file_above_a_named_source_is_not_read,
    |w: World| {
        ruled(&w, "- *.o\n", "- *.c\n");
        w.agree_paths(
            &["-ai", "--delete", "-f: .rules"],
            &["src/lib", "src/build", "dst/"],
        )
        .prints("build/x.o");
    }
);

synctest!(with_relative_rule_files_of_parents_are_read, |w: World| {
    ruled(&w, "- *.o\n", "- *.c\n");
    w.agree_paths(
        &["-aiR", "--delete", "-f: .rules"],
        &["src/./lib/deep", "dst/"],
    )
    .prints("lib/deep/a.o");
});

synctest!(
    excluded_relative_name_excludes_its_implied_parents,
    |w: World| {
        grown(&w);
        w.agree_paths(
            &["-aiR", "--exclude=deep"],
            &["src/./lib/deep", "src/./a.o", "dst/"],
        )
        .never_prints("lib/");
    }
);

synctest!(a_parent_of_a_relative_name_is_not_filtered, |w: World| {
    w.not_pulled("rsync rejects entries of its own sender");
    grown(&w);
    w.agree_paths(&["-aiR", "--exclude=lib"], &["src/./lib/deep", "dst/"])
        .prints("lib/deep/a.o");
});

synctest!(
    rules_of_an_unchanged_directory_apply_below_it,
    |w: World| {
        const RULES: &str = "- *.o\n";
        w.source("d/same d/e/new d/f/same d/f/old/")
            .dest("d/same d/e/x.o d/f/same d/f/x.o d/f/old/y d/f/old/y.o");
        w.build("src", |t| drop(t.file("d/.rules", RULES)))
            .build("dst", |t| drop(t.file("d/.rules", RULES)));
        w.agree(&["-ai", "--delete", "-f: .rules"])
            .exits(0)
            .prints("*deleting   d/f/old/y")
            .never_prints(".o");
    }
);

synctest!(
    parent_rule_files_apply_only_to_the_first_source,
    |w: World| {
        w.tree(".", "one/x one/y two/x two/y")
            .dest("")
            .file(".rules", "- x\n");
        w.agree_paths(&["-ai", "-f: /.rules"], &["one", "two", "dst/"])
            .prints("two/x")
            .never_prints("one/x");
    }
);

synctest!(
    parent_rule_files_protect_only_the_first_source,
    |w: World| {
        w.tree(".", "one/y two/y")
            .dest("one/x two/x")
            .file(".rules", "- x\n");
        w.agree_paths(&["-ai", "--delete", "-f: /.rules"], &["one", "two", "dst/"])
            .prints("*deleting   two/x");
    }
);

synctest!(rule_file_adds_a_per_directory_file, |w: World| {
    grown(&w);
    w.build("src", |t| {
        t.file(".rules", ": .local\n- *.h\n");
        t.file("lib/.local", "- foo\n");
        t.file("lib/deep/.local", "- a.c\n");
    });
    w.agree(&["-ai", "-f: .rules"]).never_prints("lib/foo");
});

synctest!(
    rule_files_above_the_source_are_read_with_a_leading_slash,
    |w: World| {
        w.source(TREE).file(".rules", "- *.o\n- /src/foo\n");
        w.agree(&["-ai", "-f: /.rules"]).never_prints("a.o");
    }
);

synctest!(position_of_a_per_directory_rule_matters, |w: World| {
    ruled(&w, "+ b.o\n", "- a.c\n");
    w.agree(&["-ai", "-f- a.o", "-f: .rules", "-f- *.o"])
        .prints("b.o")
        .never_prints("a.o");
});

synctest!(f_option_reads_rsync_filter_files, |w: World| {
    grown(&w);
    w.build("src", |t| {
        t.file(".rsync-filter", "- *.o\n");
        t.file("lib/.rsync-filter", "+ a.o\n- foo\n");
    });
    w.agree(&["-aiF"]).prints(".rsync-filter");
});

synctest!(ff_excludes_the_rsync_filter_files, |w: World| {
    grown(&w);
    w.build("src", |t| drop(t.file(".rsync-filter", "- *.o\n")));
    w.agree(&["-aiFF", "--delete"])
        .never_prints(".rsync-filter");
});

// ── CVS rules ───────────────────────────────────────────────────────────────────────────────────
const JUNK: &str = "a.c a.o a.bak tags core .git/config CVS/Root RCS/x .svn/e #x .#y x~ old.orig .nse_1 a.elc cvslog.1 sub/b.o sub/c.ln \
     ,e _$z lib.a x.so x.exe .make.state";

synctest!(cvs_exclude_skips_junk, |w: World| {
    w.source(JUNK);
    w.agree(&["-aiC"]).never_prints("a.o");
});

synctest!(cvs_exclude_does_not_delete_junk, |w: World| {
    w.source("a.c").dest("a.c b.o gone/x.o keep/CVS/Root");
    w.agree(&["-aiC", "--delete"]).prints("deleting   gone/");
});

synctest!(cvs_exclude_reads_cvsignore_files, |w: World| {
    w.source("a.c a.tmp sub/b.tmp sub/c.tmp sub/c.keep");
    w.build("src", |t| {
        t.file(".cvsignore", "a.tmp *.c");
        t.file("sub/.cvsignore", "c.*\n! b.tmp");
    });
    w.agree(&["-aiC"]).prints("sub/");
});

synctest!(cvs_exclude_reads_home_and_environment, |w: World| {
    w.source(JUNK)
        .home_file(".cvsignore", "*.c\n")
        .env("CVSIGNORE", "tags2 sub");
    w.agree(&["-aiC"]).never_prints("sub/");
});

synctest!(cvs_exclude_comes_after_all_other_rules, |w: World| {
    w.source(JUNK);
    w.agree(&["-aiC", "--include=a.o", "--include=/.git/"])
        .prints("a.o");
});

synctest!(filter_rule_can_add_the_cvs_list, |w: World| {
    w.source(JUNK);
    w.agree(&["-ai", "-f-C"]).never_prints("a.o");
});

synctest!(filter_rule_can_add_only_cvsignore_files, |w: World| {
    w.source(JUNK);
    w.build("src", |t| drop(t.file(".cvsignore", "tags")));
    w.agree(&["-ai", "-f:C"]).prints("a.o").never_prints("tags");
});

// ── rules for attribute names ───────────────────────────────────────────────────────────────────
synctest!(filter_rules_for_xattr_names, |w: World| {
    w.needs_xattrs();
    w.build("src", |t| {
        drop(
            t.file("a", "1")
                .xattr("user.keep", "1")
                .xattr("user.drop", "2"),
        )
    });
    w.agree(&["-aiX", "-f-x user.drop"]).exits(0);
});

// ── errors ──────────────────────────────────────────────────────────────────────────────────────
/// Declares a case in which a rule is rejected.
macro_rules! refuses {
    ($name:ident, $code:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("a.c").dest("").file("rules", "- *.o\nnonsense here\n");
            w.once().no_dry_run().agree(&["-ai", $($option),+]).exits($code).warns("rsync error: ");
        });
    };
}

refuses!(an_unknown_rule, 1, ["-f", "foo bar"]);
refuses!(an_unknown_modifier, 1, ["-f-q *.o"]);
refuses!(a_rule_without_a_pattern, 1, ["-f-"]);
refuses!(clear_rule_with_trailing_text, 1, ["-f! x"]);
refuses!(an_unknown_rule_in_a_file, 1, ["-f. rules"]);
refuses!(
    an_exclude_file_that_is_missing,
    11,
    ["--exclude-from=nowhere"]
);
refuses!(
    an_include_file_that_is_missing,
    11,
    ["--include-from=nowhere"]
);
refuses!(a_merge_file_that_is_missing, 11, ["-f. nowhere"]);

synctest!(a_merge_file_that_includes_itself, |w: World| {
    w.source("a").dest("");
    w.file("rules", ". other\n").file("other", "- x\n. rules\n");
    w.agree(&["-a", "--filter=. rules"]).exits(11);
});
refuses!(a_merge_rule_with_both_kinds, 1, ["-f.+- rules"]);

synctest!(vv_prints_rules_that_match_arguments, |w: World| {
    w.source("a b c/d e/f").dest("");
    w.agree_paths(
        &["-avv", "-f+ /b", "-f- a", "-f- /e"],
        &["src/a", "src/b", "src/c", "src/e", "dst/"],
    );
    w.agree_paths(
        &["-avvR", "--exclude=f", "--exclude=b"],
        &["src/./e/f", "src/./b", "src/./a", "dst/"],
    );
});

synctest!(
    delete_after_reads_rule_files_updated_by_the_run,
    |w: World| {
        w.source("d/a d/e/f").dest("d/a d/b d/c d/e/b");
        w.file("src/d/.r", "P b\n").file("dst/d/.r", "nonsense\n");
        w.agree(&["-ai", "--delete-after", "--filter=: .r"])
            .exits(0)
            .prints("*deleting   d/c");
    }
);

// If several arguments name a directory, those whose rules exclude it contribute nothing to it.
synctest!(
    directory_named_by_one_argument_and_excluded_by_another,
    |w: World| {
        w.not_pulled("rsync rejects entries of its own sender");
        w.source("g~/a g~/b/c g~/d k/g~/e k/f h/.keep h/x")
            .dest("")
            .file("list", "./\ng~/a\nk/g~/\n");
        w.agree(&["-air", "--exclude=*~", "--files-from=list"])
            .exits(0)
            .never_prints("g~/d");
        for (paths, dest) in [
            (["src/./", "src/./g~/b"], "1"),
            (["src/./g~/b", "src/./"], "2"),
            (["src/./k", "src/./k/g~/e"], "3"),
        ] {
            w.agree_paths(&["-aRi", "--exclude=*~"], &[paths[0], paths[1], dest])
                .exits(0)
                .never_prints("g~/d");
        }
    }
);

synctest!(
    directory_excluded_by_only_one_of_several_sources,
    |w: World| {
        w.source("d/a d/b/c e/f")
            .tree("two", "d/x d/b/y")
            .tree("three", "e/g")
            .dest("");
        w.build("src", |t| drop(t.file(".rsync-filter", "- d\n")));
        w.build("three", |t| drop(t.file(".rsync-filter", "- e\n")));
        // With incremental recursion, rsync 3.5.0 applies the rules of the first source's top to the other sources as well.
        let sources = [
            ["src/", "two/", "three/"],
            ["two/", "three/", "src/"],
            ["three/", "src/", "two/"],
        ];
        for ([one, two, three], dest) in sources.into_iter().zip(["1", "2", "3"]) {
            w.agree_paths(&["-aiF", "--no-i-r"], &[one, two, three, dest])
                .exits(0)
                .never_prints("d/a");
        }
    }
);

// Each is reported, and has no effect.
synctest!(rules_that_are_too_long, |w: World| {
    let long = "x".repeat(4096);
    let longest = "x".repeat(4095);
    let text = format!("- *.o\n- {longest}\n- {long}\n+ {long}\n: {long}\n- zz\n");
    w.source("a b.o zz d/c d/c.o d/zz").dest("old.o old zz");
    w.file("rules", &text)
        .file("src/.rsync-filter", &text)
        .file("dst/.rsync-filter", &text)
        .file("list", text.replace("- ", "").replace("+ ", ""))
        .keep_dest();
    for options in [
        &["--exclude", &long][..],
        &["-f", &format!("-/s {long}")],
        &["-f", &format!(": {long}"), "--delete"],
        &["--exclude-from=list"],
        &["--exclude-from=list", "--delete"],
        &["-f. rules", "--delete"],
        &["-f.- list"],
        &["-F"],
        &["-FF", "--delete"],
    ] {
        w.restore_dest()
            .agree(&[&["-ai"], options].concat())
            .exits(0);
    }
    w.file("list", format!("*.o\n{}\nzz\n", "x".repeat(300_000)))
        .restore_dest()
        .agree(&["-ai", "--exclude-from=list"])
        .exits(0);
});

// rsync warns twice about a word of ~/.cvsignore.
synctest!(cvsignore_is_long, |w: World| {
    let mut text = format!("{}\n", "x".repeat(5000));
    for number in 0..120_000 {
        text += &format!("pattern{number}\n");
    }
    w.source("a zz b.o .cvsignore=pattern d/b").dest("old");
    w.not_pulled_from_own_daemon("a daemon of rsync reads the ~/.cvsignore of its own user");
    w.home_file(".cvsignore", &format!("{text}zz\n"));
    w.mask_with(|line| {
        (!line.starts_with("discarding over-long filter: ")).then(|| line.to_owned())
    });
    for options in [&["-aC"][..], &["-aC", "--delete"], &["-a", "-f-C"]] {
        w.agree(options).exits(0);
    }
});
