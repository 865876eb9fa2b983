//! `--confine-root`: directories of options, merge files and listed names must not lead out of a directory.

use crate::kit::{World, synctest};

/// A source, a destination, an identical tree and rules outside of the directory, and symlinks that lead there.
fn scene(w: &World) {
    w.needs_rsync("3.5.0")
        .source("a d/b")
        .dest("a=older")
        .tree("out/alt", "a d/b")
        .file("out/rules", "- b\n");
    w.tree("in", "x")
        .build("src", |t| drop(t.symlink("l", "../out/alt")));
    w.build("src/d", |t| drop(t.symlink(".rules", "../../out/rules")));
    w.build("in", |t| drop(t.symlink("l", "../out/alt")))
        .stderr_unordered();
}

const CONFINED: &str = "--confine-root={W}/in";

macro_rules! confined {
    ($name:ident, [$($option:expr),+], $exit:expr) => {
        synctest!($name, |w: World| {
            scene(&w);
            // A second run of rsync loses the files that it has copied.
            w.only_local("each end has an option of its own").no_dry_run().once();
            let agreed = w.agree(&["-ai", CONFINED, $($option),+]).exits($exit);
            if $exit != 0 {
                agreed.warns("Too many levels of symbolic links");
            }
        });
    };
}

confined!(link_dest_outside, ["--link-dest={W}/out/alt"], 23);
confined!(
    link_dest_outside_by_a_relative_path,
    ["--link-dest=../out/alt"],
    23
);
confined!(link_dest_outside_by_a_link, ["--link-dest={W}/in/l"], 23);
confined!(link_dest_inside, ["--link-dest={W}/in"], 0);
confined!(copy_dest_outside, ["--copy-dest={W}/out/alt"], 23);
confined!(compare_dest_outside, ["--compare-dest={W}/out/alt"], 0);
confined!(temp_dir_inside, ["--temp-dir={W}/in"], 0);
confined!(merge_file_outside, ["--filter=: .rules"], 0);
confined!(
    rules_and_operands_are_not_confined,
    ["--exclude-from=out/rules"],
    0
);

synctest!(backup_and_temp_dirs, |w: World| {
    scene(&w);
    w.only_local("see above");
    let run = |option: &str, more: &str| w.alone(&["-ai", CONFINED, option, more]);
    let words = "Too many levels of symbolic links";
    run("--temp-dir={W}/out", "-a").exits(23).warns(words);
    run("--backup-dir={W}/out/new", "-b").exits(11).warns(words);
    run("--backup-dir={W}/in/l", "-b").exits(11).warns(words);
    let read = |path: &str| std::fs::read_to_string(w.tested().join(path)).unwrap_or_default();
    assert_eq!(
        (read("dst/a"), w.tested().join("out/new").exists()),
        ("older".to_owned(), false)
    );
    // In both cases, rsync loses the old file if it must create the directory.
    run("--backup-dir={W}/in/new", "-b").exits(0);
    assert_eq!(
        (read("dst/a"), read("in/new/a")),
        ("a\n".to_owned(), "older".to_owned())
    );
});

synctest!(listed_names_that_lead_out, |w: World| {
    scene(&w);
    w.file("list", "l/a\nd/b\n")
        .file("dirs", "l/\nl\n")
        .only_local("see above")
        .dest("")
        .keep_dest();
    for options in [
        &["-ai"][..],
        &["-aiL"],
        &["-aik"],
        &["-ai", "--no-R"],
        &["-air"],
    ] {
        for list in ["--files-from=list", "--files-from=dirs"] {
            w.restore_dest()
                .agree(&[options, &[CONFINED, list]].concat());
        }
    }
});

synctest!(dry_run_with_a_confined_alternate, |w: World| {
    scene(&w);
    w.only_local("see above")
        .agree(&["-ain", CONFINED, "--link-dest={W}/out/alt"])
        .exits(0);
});

synctest!(confinement_contradictions, |w: World| {
    scene(&w);
    w.agree(&["-ai", "--confine-root=in"])
        .exits(1)
        .warns("must be an absolute path");
    w.agree(&["-ai", CONFINED, "--insecure-links"])
        .exits(1)
        .warns("cannot be combined with --confine-root");
    w.agree(&["-ai", "--confine-root=/", "--link-dest=../out/alt"])
        .exits(0);
    w.no_dry_run()
        .once()
        .agree(&["-ai", "--confine-root={W}/nowhere"])
        .exits(0);
});
