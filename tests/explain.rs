//! `sparsync explain`: what it says of paths at both ends, at one, and at none.

use crate::json::check_line;
use crate::kit::{World, synctest};
use serde_json::Value;

const NO_CLIENT: &str = "the client is rsync, which has no such command";
const NO_PEER: &str = "both ends must be a sparsync";

/// What must be printed about a path.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    pub path: String,
    pub verdict: String,
    /// The end, a colon, and the text.
    pub reasons: Vec<String>,
}

/// Reads the lines of `explain --json`.
pub fn explanations(stdout: &str) -> Vec<Told> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let lines = stdout.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("a line is an object");
        check_line(&line);
        let reasons = line["reasons"].as_array().expect("a list").iter();
        Told {
            path: text(&line["path"]),
            verdict: text(&line["verdict"]),
            reasons: reasons
                .map(|why| format!("{}: {}", text(&why["end"]), text(&why["text"])))
                .collect(),
        }
    });
    lines.collect()
}

fn explained(w: &World) -> &World {
    w.not_served(NO_CLIENT).not_with_stock(NO_PEER)
}

/// Explains paths of a copy from `src/` to `dst/` and compares with what is expected: path, verdict, reasons.
#[track_caller]
fn says(w: &World, options: &[&str], expected: &[(&str, &str, &[&str])]) {
    let paths: Vec<_> = expected.iter().map(|(path, ..)| path).collect();
    let seen = w.try_explain(&paths, options, &["src/", "dst/"]).unwrap();
    assert_eq!(seen.exit, 0, "{}{}", seen.stdout, seen.stderr);
    let wanted = expected.iter().map(|(path, verdict, reasons)| Told {
        path: (*path).to_owned(),
        verdict: (*verdict).to_owned(),
        reasons: reasons.iter().map(|why| (*why).to_owned()).collect(),
    });
    assert_eq!(explanations(&seen.stdout), wanted.collect::<Vec<_>>());
}

synctest!(rules_are_named_by_option_or_file_and_line, |w: World| {
    explained(&w)
        .source("a.o d/x.tmp d/e/y.tmp d/.rules=#_ cache/f keep.c skip.c core e/z")
        .dest("a.o old.bak d/x.tmp e/mine gone.o");
    w.file("excl", "# first\n\n- cache/\n*.bak\n")
        .change(|twin| {
            std::fs::write(twin.join("src/d/.rules"), "# text\n- *.tmp\n").unwrap();
        });
    let has = "sender: the source has no such entry";
    says(
        &w,
        &[
            "-a",
            "--delete",
            "-C",
            "--exclude=*.o",
            "--exclude-from=excl",
            "--include=/keep.*",
            "--exclude=/*.c",
            "--filter=P mine",
            "--filter=: .rules",
        ],
        &[
            (
                "a.o",
                "not_copied",
                &[
                    "sender: excluded by `*.o` (--exclude=*.o)",
                    "receiver: protected by `*.o` (--exclude=*.o)",
                ],
            ),
            (
                "d/x.tmp",
                "deleted",
                &[
                    "sender: excluded by line 2 of d/.rules",
                    "receiver: the transfer does not have it, and --delete removes such entries",
                ],
            ),
            (
                "d/e/y.tmp",
                "not_copied",
                &["sender: excluded by line 2 of d/.rules"],
            ),
            (
                "cache",
                "not_copied",
                &["sender: excluded by `cache/` (line 3 of excl)"],
            ),
            (
                "cache/f",
                "not_copied",
                &["sender: cache/: excluded by `cache/` (line 3 of excl)"],
            ),
            (
                "keep.c",
                "copied",
                &[
                    "sender: included by `/keep.*` (--include=/keep.*)",
                    "receiver: the destination does not have it",
                ],
            ),
            (
                "skip.c",
                "not_copied",
                &["sender: excluded by `/*.c` (--exclude=/*.c)"],
            ),
            ("core", "not_copied", &["sender: excluded by `core` (-C)"]),
            (
                "old.bak",
                "kept",
                &[has, "receiver: protected by `*.bak` (line 4 of excl)"],
            ),
            (
                "e/mine",
                "kept",
                &[has, "receiver: protected by `mine` (--filter=P mine)"],
            ),
        ],
    );
});

synctest!(comparisons, |w: World| {
    explained(&w)
        .source("same size=1234 time@5 mode%600 new l->x d/f")
        .dest("same size=123 time@9 mode%644 l->y d/f extra/f");
    says(
        &w,
        &["-rlpt"],
        &[
            ("same", "unchanged", &["receiver: same size and time"]),
            (
                "size",
                "copied",
                &["receiver: the size differs: 4 bytes at the source, 3 bytes at the destination"],
            ),
            (
                "new",
                "copied",
                &["receiver: the destination does not have it"],
            ),
            (
                "mode",
                "updated",
                &[
                    "receiver: same size and time",
                    "receiver: the permissions differ: 600 at the source, 644 at the destination",
                ],
            ),
            ("l", "copied", &["receiver: the target differs"]),
            (
                "extra",
                "kept",
                &[
                    "sender: the source has no such entry",
                    "receiver: kept: there is no option that deletes, such as --delete",
                ],
            ),
            (
                "extra/f",
                "kept",
                &[
                    "sender: extra/: the source has no such entry",
                    "receiver: extra/: kept: there is no option that deletes, such as --delete",
                ],
            ),
        ],
    );
    says(
        &w,
        &["-rc"],
        &[(
            "same",
            "unchanged",
            &["receiver: same content (--checksum)"],
        )],
    );
    says(
        &w,
        &["-r", "--size-only"],
        &[("time", "unchanged", &["receiver: same size (--size-only)"])],
    );
    says(
        &w,
        &["-rtI"],
        &[(
            "same",
            "copied",
            &["receiver: --ignore-times: no file counts as the same"],
        )],
    );
    let seen = w
        .try_explain(&["time"], &["-rt"], &["src/", "dst/"])
        .unwrap();
    let told = explanations(&seen.stdout);
    assert_eq!(told[0].verdict, "copied");
    assert!(
        told[0].reasons[0].starts_with("receiver: the time differs: 2020/09/13 "),
        "{told:?}"
    );
});

synctest!(options_that_leave_entries_alone, |w: World| {
    explained(&w)
        .source("new there=1234 old@5 big*100 l->there d/f e/f empty/")
        .dest("there=1 old@9 d/f");
    let not = "not_copied";
    says(
        &w,
        &["-r", "--existing"],
        &[
            (
                "new",
                not,
                &["receiver: the destination does not have it (--existing)"],
            ),
            (
                "e/f",
                not,
                &["receiver: e/: the destination does not have it (--existing)"],
            ),
        ],
    );
    says(
        &w,
        &["-r", "--ignore-existing"],
        &[(
            "there",
            not,
            &["receiver: the destination has it (--ignore-existing)"],
        )],
    );
    says(
        &w,
        &["-r", "--max-size=50"],
        &[(
            "big",
            not,
            &["receiver: 100 bytes are more than --max-size=50"],
        )],
    );
    says(
        &w,
        &["-r", "--min-size=50"],
        &[(
            "there",
            not,
            &["receiver: 4 bytes are less than --min-size=50"],
        )],
    );
    says(
        &w,
        &["-r"],
        &[(
            "l",
            not,
            &["receiver: a symlink, and neither --links nor --copy-links is given"],
        )],
    );
    says(
        &w,
        &["-d"],
        &[(
            "d/f",
            not,
            &["sender: d/: its content takes no part without --recursive"],
        )],
    );
    says(
        &w,
        &["-rm"],
        &[(
            "empty",
            not,
            &["receiver: --prune-empty-dirs: nothing in it takes part"],
        )],
    );
    let seen = w
        .try_explain(&["old"], &["-rtu"], &["src/", "dst/"])
        .unwrap();
    let told = explanations(&seen.stdout);
    assert_eq!(told[0].verdict, not);
    let start = "receiver: the destination's file is newer (--update): ";
    assert!(told[0].reasons[0].starts_with(start), "{told:?}");
});

synctest!(deletions, |w: World| {
    explained(&w)
        .source("a d/x f")
        .dest("a gone/p gone/q/r z1 z2 d/x/y f/in");
    let lacks = "sender: the source has no such entry";
    let below = "sender: gone/: the source has no such entry";
    let deleted = "receiver: the transfer does not have it, and --delete removes such entries";
    says(
        &w,
        &["-a", "--delete-after", "--filter=P p"],
        &[
            (
                "gone",
                "kept",
                &[lacks, "receiver: kept: something in it stays"],
            ),
            (
                "gone/p",
                "kept",
                &[below, "receiver: protected by `p` (--filter=P p)"],
            ),
            ("gone/q", "deleted", &[below, deleted]),
            (
                "gone/q/r",
                "deleted",
                &["sender: gone/: the source has no such entry", deleted],
            ),
            ("z1", "deleted", &[lacks, deleted]),
            (
                "d/x",
                "copied",
                &["receiver: replaces a directory of the destination"],
            ),
            (
                "d/x/y",
                "deleted",
                &["sender: d/x is a file, not a directory", deleted],
            ),
        ],
    );
    let seen = w
        .try_explain(
            &["z1", "z2", "f"],
            &["-a", "--delete", "--max-delete=0"],
            &["src/", "dst/"],
        )
        .unwrap();
    assert_eq!(seen.exit, 23, "{}", seen.stderr);
    let told = explanations(&seen.stdout);
    for told in &told[..2] {
        let limited = "receiver: kept: --max-delete permits no more deletions";
        assert_eq!(told.reasons, [lacks, limited]);
    }
    assert_eq!(told[2].verdict, "not_copied");
    assert_eq!(
        told[2].reasons,
        ["receiver: its name is taken by a directory that must not be deleted"]
    );
});

synctest!(paths_are_found_as_the_operands_spell_them, |w: World| {
    explained(&w).source("a d/f b:c/g").dest("a old");
    let operands = ["src", "dst/"];
    // What `-i` prints is a path, too, even if it looks like one on another machine.
    let told = |path: &str| {
        let seen = w.try_explain(&[path], &["-a"], &["src/", "dst/"]).unwrap();
        explanations(&seen.stdout).remove(0).verdict
    };
    assert_eq!([told("b:c/g"), told("b:none")], ["copied", "absent"]);
    let paths = [
        "src/a",
        "dst/src/d",
        "/etc/none",
        "../x",
        "src/./d//f",
        "nowhere",
    ];
    let seen = w.try_explain(&paths, &["-a"], &operands).unwrap();
    assert_eq!(seen.exit, 0, "{}", seen.stderr);
    let told = explanations(&seen.stdout);
    let verdicts: Vec<_> = told.iter().map(|told| &told.verdict[..]).collect();
    if w.route().is_far() {
        // Paths at the other end begin with its name.
        assert_eq!(verdicts[2..4], ["outside", "outside"]);
        return;
    }
    assert_eq!(
        verdicts,
        [
            "copied",
            "copied",
            "outside",
            "outside",
            "copied",
            "not_copied"
        ]
    );
    assert_eq!(
        told[5].reasons,
        ["sender: not in the list: no source argument leads to it"]
    );
});

synctest!(paths_with_two_meanings_are_explained_twice, |w: World| {
    explained(&w).only_local("operands at the other end begin with its name");
    w.source("dst a src/a").dest("a src/gone");
    let told = |path: &str| {
        let seen = w.try_explain(&[path], &["-a"], &["src/", "dst/"]).unwrap();
        assert_eq!(seen.exit, 0, "{}{}", seen.stdout, seen.stderr);
        let told = explanations(&seen.stdout).into_iter();
        Vec::from_iter(told.map(|it| format!("{}: {}", it.path, it.verdict)))
    };
    assert_eq!(told("src/a"), ["src/a: copied", "./src/a: unchanged"]);
    assert_eq!(told("./src/a"), ["./src/a: unchanged"]);
    // The destination itself has the other meaning.
    let of_dest = told("dst");
    assert_eq!((of_dest.len(), &of_dest[0][..]), (2, "dst: copied"));
    assert!(of_dest[1].starts_with("./dst: "), "{of_dest:?}");
    assert_eq!(told("./dst").len(), 1);
    // There is an entry of only one of the meanings, or of none.
    assert_eq!(told("src/gone"), ["src/gone: kept"]);
    assert_eq!(told("dst/a"), ["dst/a: unchanged"]);
    assert_eq!(told("dst/none"), ["dst/none: absent"]);
    assert_eq!(told("a"), ["a: unchanged"]);
});

synctest!(lists_and_relative_arguments, |w: World| {
    explained(&w).only_local("a list of the client");
    w.source("a b d/f d/g").dest("b").file("list", "a\nd/f\n");
    says(
        &w,
        &["-a", "--files-from=list"],
        &[
            (
                "a",
                "copied",
                &["receiver: the destination does not have it"],
            ),
            (
                "d/f",
                "copied",
                &["receiver: the destination does not have it"],
            ),
            (
                "d/g",
                "not_copied",
                &["sender: --files-from does not name it"],
            ),
        ],
    );
    let seen = w
        .try_explain(&["src/d/g", "d/f"], &["-aR"], &["src/./d/g", "dst/"])
        .unwrap();
    let told = explanations(&seen.stdout);
    assert_eq!(
        [&told[0].verdict, &told[1].verdict],
        ["copied", "not_copied"]
    );
});

synctest!(hard_links, |w: World| {
    explained(&w).source("a").dest("");
    w.change(|twin| {
        // The link may be there already.
        let _ = std::fs::hard_link(twin.join("src/a"), twin.join("src/b"));
    });
    let seen = w
        .try_explain(&["a", "b"], &["-aH"], &["src/", "dst/"])
        .unwrap();
    let told = explanations(&seen.stdout);
    // Which name is the first one is a matter of the order of the list.
    let (first, other) = if told[0].verdict == "copied" {
        (&told[0], &told[1])
    } else {
        (&told[1], &told[0])
    };
    assert_eq!(
        first.reasons,
        ["receiver: the destination does not have it"]
    );
    assert_eq!(other.verdict, "linked");
    let same = format!("receiver: the same file as {} (--hard-links)", first.path);
    assert_eq!(other.reasons, [same]);
});

synctest!(what_cannot_be_read_is_23, |w: World| {
    explained(&w).source("a d/f").dest("old");
    w.change(|twin| {
        std::os::unix::fs::symlink("nowhere", twin.join("src/lost")).unwrap();
    });
    let seen = w
        .try_explain(&["old", "a"], &["-aL", "--delete"], &["src/", "dst/"])
        .unwrap();
    assert_eq!(seen.exit, 23, "{}", seen.stderr);
    let told = explanations(&seen.stdout);
    assert_eq!(
        told[0].reasons[1],
        "receiver: kept: nothing is deleted, because something could not be read"
    );
    assert_eq!(told[1].verdict, "copied");
});

synctest!(alternate_trees_are_named, |w: World| {
    explained(&w)
        .source("a b")
        .dest("")
        .tree("alt", "a b=other");
    let lacks = "receiver: the destination does not have it";
    for (option, verdict) in [
        ("--link-dest", "linked"),
        ("--copy-dest", "copied"),
        ("--clone-dest", "copied"),
        ("--compare-dest", "not_copied"),
    ] {
        let has = format!("receiver: a tree of {option} has the same");
        says(
            &w,
            &["-a", &format!("{option}=../alt")],
            &[("a", verdict, &[&has]), ("b", "copied", &[lacks])],
        );
    }
});

synctest!(what_an_alternate_tree_replaces_is_deleted, |w: World| {
    explained(&w).source("a").dest("a=older").tree("alt", "a");
    let has = "receiver: a tree of --compare-dest has the same";
    let removed = "receiver: what the destination has differs from it, and is removed";
    says(
        &w,
        &["-a", "--compare-dest=../alt"],
        &[("a", "deleted", &[has, removed])],
    );
});

synctest!(renamed_files_are_new_and_extra, |w: World| {
    explained(&w)
        .source("new*100000 d/f")
        .dest("d/old*100000 d/f");
    says(
        &w,
        &["-a", "--delete", "--detect-renamed"],
        &[
            (
                "new",
                "copied",
                &["receiver: the destination does not have it"],
            ),
            (
                "d/old",
                "deleted",
                &[
                    "sender: the source has no such entry",
                    "receiver: the transfer does not have it, and --delete removes such entries",
                ],
            ),
        ],
    );
});

synctest!(other_file_systems_are_named, as root, |w: World| {
    explained(&w).source("a").dest("a");
    w.tree("src/m", "").tree("dst/e", "");
    w.mount_tmpfs("src/m", 1 << 20).mount_tmpfs("dst/e", 1 << 20);
    w.tree("src/m", "f").tree("dst/e", "z");
    says(
        &w,
        &["-rlt", "-x", "--delete"],
        &[
            (
                "m/f",
                "not_copied",
                &["sender: m/: is on another file system (--one-file-system)"],
            ),
            (
                "e",
                "kept",
                &[
                    "sender: the source has no such entry",
                    "receiver: kept: it is on another file system (--one-file-system)",
                ],
            ),
            (
                "e/z",
                "kept",
                &[
                    "sender: e/: the source has no such entry",
                    "receiver: e/: kept: it is on another file system (--one-file-system)",
                ],
            ),
        ],
    );
});
