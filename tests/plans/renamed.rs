//! Plans of runs with `--detect-renamed`: they hold the files whose content new files take, and no use searches for others.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{applied_here, killed_at_every_call, lines_of};
use crate::faults::write;
use crate::json::check_line;
use crate::kit::{HashedTree, World, oracle, synctest};

const SAME: &str = "--detect-renamed";
const QUICK: &str = "--detect-renamed=quick";

/// Trees in which files were renamed, also with other attributes, and copied, and in which new files are equal.
fn renamed(w: &World) -> &World {
    applied_here(w)
        .source(
            "new/a=alpha new/sub/b=beta@5 new/%750 moved/c=gamma@7%640 d/renamed=delta@9 d/copy=kept@11 d/kept=kept@11 \
             one=more_than_once two=more_than_once d/three=more_than_once changed=after fresh=nothing mode=adjusted%600 other=adjusted",
        )
        .dest(
            "old/a=alpha old/sub/b=beta@5 c=gamma@7 d/before=delta@9 d/kept=kept@11 gone=bye changed=before@-3 \
             mode=adjusted%644",
        )
}

/// One row: the options with which plan and apply end as rsync on those trees.
macro_rules! renames_as_the_run {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            renamed(&w).agree_by_plan(&[$($option),+]);
        });
    };
}

renames_as_the_run!(with_deletions, ["-a", "--delete", SAME]);
renames_as_the_run!(with_deletions_before, ["-a", "--delete-before", SAME]);
renames_as_the_run!(with_deletions_after, ["-a", "--delete-after", QUICK]);
renames_as_the_run!(without_deletions, ["-a", SAME]);
renames_as_the_run!(moved, ["-a", "--delete-delay", "--detect-renamed=moved"]);
renames_as_the_run!(with_checksums, ["-ac", "--delete", SAME]);
renames_as_the_run!(with_hard_links, ["-aH", "--delete", SAME]);
renames_as_the_run!(
    with_delayed_updates,
    ["-a", "--delete", "--delay-updates", SAME]
);
renames_as_the_run!(with_backups, ["-ab", "--delete", SAME]);
renames_as_the_run!(at_most, ["-a", "--delete-after", "--max-delete=2", SAME]);
renames_as_the_run!(without_whole_list, ["-am", "--delete", SAME]);

synctest!(names_of_files_of_an_alternate_tree, |w: World| {
    renamed(&w).tree("alt", "x=alpha deep/x=nothing d/y=gamma@7%640");
    w.agree_by_plan(&["-a", "--delete", SAME, "--copy-dest=../alt"]);
});

synctest!(files_of_an_alternate_tree_are_linked, |w: World| {
    applied_here(&w)
        .source("d/new=one copy=two")
        .dest("other")
        .tree("alt", "old=one e/other=two");
    assert_eq!(w.plan(&["-a", SAME, "--link-dest=../alt"]).exit, 0);
    let shown: Vec<_> = w.planned_twins();
    assert_eq!(shown.len(), 2);
    for _ in 0..2 {
        let applied = w.apply(&[]);
        assert_eq!(applied.exit, 0, "{}", applied.stderr);
        let inode = |path: &str| std::fs::metadata(w.tested().join(path)).unwrap().ino();
        assert_eq!(inode("dst/d/new"), inode("alt/old"));
        assert_eq!(inode("dst/copy"), inode("alt/e/other"));
    }
});

synctest!(twins_come_from_the_plan, |w: World| {
    renamed(&w);
    let inode = |path: &str| std::fs::metadata(w.tested().join(path)).unwrap().ino();
    assert_eq!(w.plan(&["-a", "--delete", SAME]).exit, 0);
    let before = inode("dst/old/a");
    // No use searches for this one.
    std::fs::write(w.tested().join("dst/unplanned"), "nothing").unwrap();
    let applied = w.apply(&["--info=rename"]);
    assert_eq!(applied.exit, 0, "{}", applied.stderr);
    let mut lines: Vec<_> = applied
        .stdout
        .lines()
        .filter(|line| line.contains(" => "))
        .collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "copied d/kept => d/copy",
            "copied mode => other",
            "copied one => d/three",
            "copied one => two",
            "renamed c => moved/c",
            "renamed d/before => d/renamed",
            "renamed old/a => new/a",
            "renamed old/sub/b => new/sub/b",
        ]
    );
    assert_eq!(inode("dst/new/a"), before);
    assert!(!w.tested().join("dst/old").exists());
});

synctest!(a_twin_that_has_changed_since_is_spared, |w: World| {
    renamed(&w);
    assert_eq!(w.plan(&["-a", "--delete", SAME]).exit, 0);
    let top = w.tested();
    std::fs::write(top.join("dst/old/a"), "ALPHA").unwrap();
    std::fs::write(top.join("dst/d/kept"), "KEPT").unwrap();
    std::fs::remove_file(top.join("dst/c")).unwrap();
    for _ in 0..2 {
        let applied = w.apply(&[]);
        assert_eq!(applied.exit, 23, "{}", applied.stderr);
        for path in ["new/a", "d/copy", "moved/c"] {
            let line = format!(
                "sparsync: left alone, because the file whose content it takes has changed since the plan: \"{path}\""
            );
            assert!(applied.stderr.contains(&line), "{}", applied.stderr);
            assert!(!top.join("dst").join(path).exists(), "{path}");
        }
        let line = "because the destination has changed since the plan: \"old/a\"";
        assert!(applied.stderr.contains(line), "{}", applied.stderr);
        let text = |path: &str| std::fs::read_to_string(top.join("dst").join(path)).unwrap();
        assert_eq!(text("old/a"), "ALPHA");
        assert_eq!(text("d/kept"), "KEPT");
        assert_eq!(text("new/sub/b"), "beta");
        assert!(!top.join("dst/old/sub").exists());
    }
});

synctest!(renames_without_deletions_are_copies, |w: World| {
    renamed(&w);
    assert_eq!(w.plan(&["-a", "--delete", SAME]).exit, 0);
    let applied = w.apply(&["--without-deletions", "--info=rename"]);
    assert_eq!(applied.exit, 0, "{}", applied.stderr);
    assert!(
        applied.stdout.contains("copied old/a => new/a"),
        "{}",
        applied.stdout
    );
    let is_renamed = applied
        .stdout
        .lines()
        .any(|line| line.starts_with("renamed "));
    assert!(!is_renamed, "{}", applied.stdout);
    for path in ["old/a", "new/a", "c", "moved/c"] {
        assert!(w.tested().join("dst").join(path).exists(), "{path}");
    }
    assert_eq!(w.apply(&[]).exit, 0);
    assert!(!w.tested().join("dst/old").exists());
});

// A file with the attributes of the new one is that of an interrupted run, which sets them before it renames the file.
synctest!(a_rename_that_has_begun_is_completed, |w: World| {
    use std::os::unix::fs::PermissionsExt as _;
    applied_here(&w).source("new=text%640").dest("old=text%600");
    assert_eq!(w.plan(&["-a", "--delete", SAME]).exit, 0);
    let old = w.tested().join("dst/old");
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o640)).unwrap();
    let inode = std::fs::metadata(&old).unwrap().ino();
    let applied = w.apply(&[]);
    assert_eq!(applied.exit, 0, "{}", applied.stderr);
    assert_eq!(
        std::fs::metadata(w.tested().join("dst/new")).unwrap().ino(),
        inode
    );
    assert!(!old.exists());
});

/// The summary has the renames, and no deletion of what is kept under another name.
#[test]
fn renames_are_shown() {
    let tree = HashedTree::new(&[b"new/a", b"new/b", b"c", b"d/e"]);
    for (from, to) in [
        ("new/a", "old/a"),
        ("new/b", "old/b2"),
        ("c", "was"),
        ("d/e", "d/f"),
    ] {
        let text = std::fs::read_to_string(tree.path("t").join(from)).unwrap();
        write(&tree.path("d").join(to), &text, 1);
    }
    write(&tree.path("d/gone"), "bye", 1);
    let text = std::fs::read_to_string(tree.path("t/c")).unwrap();
    write(&tree.path("t/copy"), &text, 1);
    let shown =
        String::from_utf8(tree.well(&["plan", "-a", "--delete", SAME, "t/", "d/", "-o", "p"]))
            .unwrap();
    let summary = "1 created, 0 transferred (0 bytes), 0 with other attributes, 4 renamed, \
                   1 with the content of other files, 2 deleted\n\
                   most renames:\n    2 from old/ to new/\n    1 within the destination itself\n    1 within d/\n\
                   most deletions:\n    2 in the destination itself\n";
    assert!(shown.ends_with(summary), "{shown}");
    let actions = String::from_utf8(tree.well(&["plan", "--show", "p", "-v"])).unwrap();
    for line in [
        ">f+++++++++ new/b (renamed from old/b2)\n",
        "*deleting   old/b2 (renamed to new/b)\n",
        "*deleting   old/\n",
        ">f+++++++++ copy (",
    ] {
        assert!(actions.contains(line), "{line}{actions}");
    }
    for line in lines_of(&tree, "p") {
        check_line(&serde_json::from_str(&line).unwrap());
    }
}

/// An `apply` that is killed at any call, and then repeated, ends as the run.
#[test]
fn renamed_after_a_kill_at_every_call() {
    for options in [
        &["-a", "--delete", SAME][..],
        &["-aU", "--delete-before", "--delay-updates", SAME],
    ] {
        killed_at_every_call(options, &[], "dst/", &[]);
    }
}

/// Client and server die at the n-th call.
#[test]
fn pushed_and_renamed_after_a_kill_at_every_call() {
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let far = ["--rsh=./shell", &program];
    killed_at_every_call(&["-a", "--delete", SAME], &far, "far:dst/", &[]);
}

/// Adds renamed files to the trees of the tests with kills.
pub fn add_renamed(top: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    for (tree, path, mode, time) in [
        ("dst", "before/one", 0o600, 1),
        ("src", "after/one", 0o640, 2),
        ("dst", "before/two", 0o644, 3),
        ("src", "after two", 0o644, 3),
        ("src", "another after two", 0o644, 3),
    ] {
        let path = top.join(tree).join(path);
        let text = format!(
            "it was {}",
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .replace("another ", "")
                .replace("after ", "")
        );
        write(&path, &text, time);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    write(&top.join("src/after/fresh"), "both are new", 4);
    write(&top.join("src/fresh"), "both are new", 5);
}
