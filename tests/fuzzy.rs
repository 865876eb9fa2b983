//! `--fuzzy`: a similar file is the basis of a new one. `plan::fuzzy` tests which file is chosen, this file the result.

use crate::kit::{World, synctest};

/// New files next to possible bases: a similar name, a dissimilar name, an empty file, and entries that are not files.
fn renamed(w: &World) {
    w.source("report-2.txt*70000 d/moved*5000@-7 x/new*900 empty= same");
    w.dest(
        "report-1.txt*70001 report-x.doc*70000@5 report-3.txt= report-4.txt/ report-5.txt->same same d/orig*5000@-7",
    );
}

macro_rules! agrees {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            renamed(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

agrees!(similar_files, ["-aiy", "--no-whole-file"]);
agrees!(similar_files_with_whole_file, ["-aiy", "-W"]);
agrees!(similar_files_by_default, ["-avy"]);
agrees!(
    similar_files_with_delete,
    ["-aiy", "--no-whole-file", "--delete"]
);
agrees!(
    similar_files_with_delete_before,
    ["-aiy", "--no-whole-file", "--delete-before"]
);
agrees!(
    similar_files_with_delete_after,
    ["-aiy", "--no-whole-file", "--delete-after"]
);
agrees!(
    similar_files_with_delete_delay,
    ["-aiy", "--no-whole-file", "--delete-delay"]
);
agrees!(
    similar_files_in_place,
    ["-aiy", "--no-whole-file", "--inplace"]
);
agrees!(
    similar_files_with_delay_updates,
    ["-aiy", "--no-whole-file", "--delay-updates"]
);
agrees!(similar_files_and_sparse_ones, ["-aiyS", "--no-whole-file"]);
agrees!(similar_files_and_hard_links, ["-aiyH", "--no-whole-file"]);
agrees!(similar_files_and_backups, ["-aiyb", "--no-whole-file"]);
agrees!(similar_files_with_checksum, ["-aiyc", "--no-whole-file"]);
agrees!(
    similar_files_and_small_blocks,
    ["-aiy", "--no-whole-file", "-B700"]
);
agrees!(
    no_fuzzy_overrides_fuzzy,
    ["-aiy", "--no-fuzzy", "--no-whole-file"]
);

synctest!(debug_fuzzy_prints_the_chosen_file, |w: World| {
    w.source("report-2.txt*70000")
        .dest("report-1.txt*70001 report-x.doc*70000@5");
    w.agree(&["-aiy", "--debug=fuzzy"]).exits(0);
});

synctest!(file_of_same_length_and_time_is_preferred, |w: World| {
    w.source("d/moved*5000@-7")
        .dest("d/move*5000 d/orig*5000@-7");
    w.agree(&["-aiy", "--debug=fuzzy"]).exits(0);
});

synctest!(partial_file_is_preferred_to_a_similar_file, |w: World| {
    w.source("abc*70000").dest("abd*69000 .part/abc*40000");
    w.agree(&[
        "-aiy",
        "--no-whole-file",
        "--partial-dir=.part",
        "--debug=fuzzy",
    ])
    .exits(0)
    .never_prints("fuzzy");
});

synctest!(fuzzy_basis_if_another_type_has_the_name, |w: World| {
    w.source("abc*70000 abe*70000")
        .dest("abd*69000 abc->abd abe/");
    w.agree(&["-aiy", "--no-whole-file"]).exits(0);
});

macro_rules! alternates {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("abc*70000 d/abc*60000").dest("abz*69000").tree("a", "abb*68000 d/q").tree("b", "abd*67000 d/abd*59000");
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

alternates!(
    similar_files_in_copy_dest,
    [
        "-aiyy",
        "--no-whole-file",
        "--copy-dest={W}/a",
        "--copy-dest={W}/b"
    ]
);
alternates!(
    similar_files_in_link_dest,
    [
        "-aiyy",
        "--no-whole-file",
        "--link-dest={W}/a",
        "--link-dest={W}/b"
    ]
);
alternates!(
    similar_files_in_compare_dest,
    ["-aiyy", "--no-whole-file", "--compare-dest={W}/a"]
);
alternates!(
    fuzzy_once_ignores_alternate_trees,
    [
        "-aiy",
        "--no-whole-file",
        "--copy-dest={W}/a",
        "--copy-dest={W}/b"
    ]
);
