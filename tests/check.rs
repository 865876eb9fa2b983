//! `sparsync check`: what it finds is what a dry run of rsync with `-c --delete -O` would do, and nothing is changed.

use crate::json::check_line;
use crate::kit::{HashedTree, World, run_program, synctest};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Output, Stdio};

// ── trees ───────────────────────────────────────────────────────────────────────────────────

/// What `check` stands for.
const DRY_RUN: [&str; 4] = ["-nica", "-O", "--delete", "--"];
const NONE: [&str; 0] = [];
/// Why a served route has no case.
const NO_CLIENT: &str = "the client is rsync, which has no such command";

synctest!(equal_trees_are_equal, |w: World| {
    let tree = "a b*70000 l->a d/x d/y/z e/";
    w.not_served(NO_CLIENT).source(tree).dest(tree);
    let found = w.checks(&NONE, &DRY_RUN);
    assert_eq!(found.exit, 0, "{}", found.stderr);
    assert_eq!(
        found.last,
        "9 equal, 0 differ, 0 only at the source, 0 only at the destination, 0 unreadable"
    );
});

synctest!(each_kind_of_difference_is_counted, |w: World| {
    w.not_served(NO_CLIENT)
        .source("same size*10 text=abc mode%644 time@5 new d/new l->same")
        .dest("same size*11 text=abd mode%600 time gone/x l->size");
    let found = w.checks(&NONE, &DRY_RUN);
    assert_eq!(
        found.last,
        "2 equal, 5 differ, 3 only at the source, 2 only at the destination, 0 unreadable"
    );
    assert_eq!(found.exit, 1);
});

synctest!(
    changed_content_of_the_same_size_and_time_is_found,
    |w: World| {
        w.not_served(NO_CLIENT)
            .source("d/a=one d/b=two big*300000")
            .dest("d/a=one d/b=TWO big*300000");
        let found = w.checks(&NONE, &DRY_RUN);
        assert!(found.lines.ends_with("fc........ d/b\n"), "{}", found.lines);
        assert!(found.last.starts_with("4 equal, 1 differs, 0 only"));
        assert_eq!(found.exit, 1);
        // A quick check takes them for equal.
        let quick = ["-nia", "-O", "--delete"];
        assert_eq!(w.checks(&["--quick"], &quick).exit, 0);
    }
);

synctest!(times_of_directories_are_not_compared, |w: World| {
    w.not_served(NO_CLIENT).source("a d/x").dest("a d/x");
    w.change(|twin| {
        let dir = std::fs::File::open(twin.join("dst/d")).expect("it is there");
        dir.set_modified(std::time::UNIX_EPOCH).expect("it is ours");
    });
    assert_eq!(w.checks(&NONE, &DRY_RUN).exit, 0);
});

synctest!(only_the_given_attributes_are_compared, |w: World| {
    w.not_served(NO_CLIENT)
        .source("a%644 t@5 d/%700")
        .dest("a%600 t d/%755");
    assert_eq!(w.checks(&["-r"], &["-nicr", "-O", "--delete"]).exit, 0);
    let found = w.checks(&["-rp"], &["-nicrp", "-O", "--delete"]);
    assert!(
        found.last.starts_with("2 equal, 2 differ"),
        "{}",
        found.last
    );
    // One that -a does not have is added to the default.
    w.source("h1=x h2==h1").dest("h1=x h2=x");
    let plain = w.checks(&NONE, &DRY_RUN);
    let linked = w.checks(&["-H"], &["-nicaH", "-O", "--delete"]);
    assert_ne!(plain.last, linked.last);
});

synctest!(one_way_ignores_what_only_the_destination_has, |w: World| {
    w.not_served(NO_CLIENT)
        .source("a d/x")
        .dest("a b d/x d/y gone/z");
    let found = w.checks(&["--one-way"], &["-nica", "-O"]);
    assert_eq!(
        found.last,
        "4 equal, 0 differ, 0 only at the source, 0 only at the destination, 0 unreadable"
    );
    assert_eq!(found.exit, 0);
});

synctest!(filters_and_lists_choose_what_is_compared, |w: World| {
    w.not_served(NO_CLIENT)
        .source("a=1 b.o=1 d/c.o d/e=1")
        .dest("a=2 b.o=2 d/e=2 x.o")
        .file("list", "a\nd/\n");
    let found = w.checks(
        &["--exclude=*.o"],
        &["-nica", "-O", "--delete", "--exclude=*.o"],
    );
    assert!(
        found
            .last
            .starts_with("2 equal, 2 differ, 0 only at the source, 0"),
        "{}",
        found.last
    );
    let found = w.checks(
        &["--files-from=list"],
        &["-nica", "-O", "--files-from=list"],
    );
    assert!(
        found.last.contains(" 2 differ, 1 only at the source"),
        "{}",
        found.last
    );
});

synctest!(entries_are_listed_by_what_was_found, |w: World| {
    w.not_served(NO_CLIENT)
        .source("same=1 text=abc new")
        .dest("same=1 text=abd gone");
    let names = |list: &str| {
        let list = format!("--list={list}");
        let (found, ..) = w.runs("check", &[&list]);
        let lines: Vec<_> = found.lines().map(|line| line[12..].to_owned()).collect();
        lines[..lines.len() - 1].to_vec()
    };
    assert_eq!(names("equal"), ["./", "same"]);
    assert_eq!(names("differ"), ["text"]);
    assert_eq!(names("source-only"), ["new"]);
    assert_eq!(names("dest-only"), ["gone"]);
    assert_eq!(names("dest-only,source-only").len(), 2);
});

synctest!(json_has_an_object_for_each_finding, |w: World| {
    w.not_served(NO_CLIENT)
        .source("same=1 text=abc new")
        .dest("same=1 text=abd gone");
    let (text, ..) = w.runs("check", &["--json", "--list=equal,differ,dest-only"]);
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    lines.iter().for_each(check_line);
    let result = |path: &str| {
        let line = lines.iter().find(|line| line["path"] == path);
        line.map(|line| line["result"].as_str().expect("a string").to_owned())
    };
    assert_eq!(result("same").as_deref(), Some("equal"));
    assert_eq!(result("text").as_deref(), Some("differ"));
    assert_eq!(result("gone").as_deref(), Some("dest-only"));
    assert_eq!(result("new"), None);
    let counts = lines.iter().find(|line| line["type"] == "comparison");
    let counts = counts.expect("it ends with the counts");
    assert_eq!(
        ["equal", "differ", "source_only", "dest_only", "unreadable"]
            .map(|name| counts[name].as_u64()),
        [2, 1, 1, 1, 0].map(Some)
    );
    assert_eq!(lines.last().expect("an end")["exit_code"], 1);
});

synctest!(
    what_cannot_be_read_is_counted,
    as user,
    |w: World| {
        w.not_served(NO_CLIENT)
            .not_pushed_to_stock("an rsync that receives does not tell what it cannot read")
            .source("a=1 b=1%0 c=1%0 d=1 e/%0")
            .dest("a=1%0 b=1 c=1%0 d=1 e/");
        let (stdout, stderr, exit) = w.runs("check", &["-rt"]);
        // Over a shell, a far rsync tells its client only that something failed while it listed, and prints the rest
        // itself.
        let is_untold = w.route().is_stock() && !w.route().is_daemon();
        let unreadable = if is_untold { 3 } else { 4 };
        let end = format!("0 differ, 0 only at the source, 0 only at the destination, {unreadable} unreadable\n");
        assert!(stdout.ends_with(&end), "{stdout}{stderr}");
        assert_eq!(exit, 23);
        // Nothing is deleted, so no deletion is skipped.
        assert!(!stdout.contains("deletion"), "{stdout}");
        assert!(stderr.contains("not all that is only at the destination is found\n"), "{stderr}");
        for name in ["\"a\"", "\"b\"", "\"c\"", "/e\""] {
            assert!(stderr.contains(name), "{name}: {stderr}");
        }
    }
);

/// Options that change how a copy writes, or leave entries out.
const REJECTED: &str = "--inplace --append --append-verify --partial -P --partial-dir=x --delay-updates --temp-dir=x -b \
    --backup-dir=x --suffix=x -S --preallocate --fsync --mkpath --remove-source-files --remove-sent-files --write-batch=x \
    --only-write-batch=x --read-batch=x --log-file=x --update --existing --ignore-existing --size-only -I --fuzzy \
    --compare-dest=x --copy-dest=x --clone-dest=x --link-dest=x --max-delete=1 --delete-missing-args --ignore-errors --write-devices \
    --copy-as=x -M--log-file=x --list-only --daemon --server --sender --stop-after=1 --metrics-file=x --out-format=x --stats -q";

#[test]
fn options_that_change_anything_are_rejected_by_name() {
    let tree = HashedTree::new(&[b"a"]);
    for option in REJECTED.split_whitespace() {
        let output = tree.run(&["check", option, "t/", "u/"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        let name = option.split('=').next().unwrap();
        let name = if name.starts_with("--") {
            name
        } else {
            &name[..2]
        };
        assert!(
            errors.starts_with(&format!("sparsync check: {name} cannot be used")),
            "{option}: {errors}"
        );
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(output.stdout.is_empty() && !tree.path("u").exists());
    }
}

#[test]
fn wrong_command_lines_have_exit_code_2() {
    let tree = HashedTree::new(&[b"a"]);
    for (line, words) in [
        ("check", "expected SRC and DST"),
        ("check t/", "expected SRC and DST"),
        ("check --bogus t/ u/", "--bogus: unknown option"),
        ("check --lst=equal t/ u/", "did you mean `--list`?"),
        ("check --list=new t/ u/", "invalid --list value `new`"),
        (
            "check --algorithm=md5 t/ u/",
            "--algorithm cannot be used without --manifest",
        ),
        ("check --manifest=m", "expected one TREE with --manifest"),
        (
            "check --manifest=m t u",
            "expected one TREE with --manifest",
        ),
        (
            "check --manifest=m -a t",
            "-a cannot be used with --manifest",
        ),
        (
            "check --manifest=m --list=dest-only t",
            "expected a list of equal, differ, missing, new",
        ),
        (
            "check --manifest=m --algorithm=crc t",
            "invalid --algorithm value `crc`",
        ),
        ("check h1:a h2:b", "cannot both be remote"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let output = tree.run(&args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(words), "{line}: {errors}");
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
    }
}

#[test]
fn a_file_named_check_is_not_ignored() {
    let tree = HashedTree::new(&[b"a"]);
    std::fs::write(tree.path("check"), "a file").unwrap();
    let output = tree.run(&["check", "t/", "u/"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("`check` is both a command and a file")
            && errors.contains("`sparsync ./check ...`"),
        "{errors}"
    );
    assert_eq!(output.status.code(), Some(2));
    tree.well(&["--", "check", "copy"]);
    assert_eq!(std::fs::read(tree.path("copy")).unwrap(), b"a file");
}

// ── manifests ───────────────────────────────────────────────────────────────────────────────

/// Runs `check --manifest=sums` with these options, and returns its exit code, the lines and the counts.
#[track_caller]
fn verify(tree: &HashedTree, options: &[&str]) -> (i32, Vec<String>, String) {
    let output = tree.run(&[&["check", "--manifest=sums"], options, &["t"]].concat());
    let mut lines: Vec<String> = String::from_utf8(output.stdout.clone())
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    let last = lines.pop().unwrap_or_else(|| panic!("{output:?}"));
    (output.status.code().unwrap(), lines, last)
}

#[test]
fn a_manifest_of_each_program_is_verified() {
    let names: [&[u8]; 6] = [b"a", b"b\\s", b"cr\rcr", b"d/e", b"n\nl", b" lead"];
    for (programs, tag) in [
        (&["b3sum"][..], false),
        (&["sha256sum"], false),
        (&["sha256sum", "--tag"], true),
        (&["sha256sum", "--binary"], false),
        (&["sha1sum"], false),
        (&["md5sum"], false),
        (&["md5sum", "--tag"], true),
        (&["xxhsum", "-H2"], false),
        (&["xxhsum", "-H2", "--tag"], true),
        (&["xxhsum", "-H1"], false),
    ] {
        let has_newlines = programs[0] != "xxhsum";
        let names: Vec<&[u8]> = names
            .into_iter()
            .filter(|name| has_newlines || !name.contains(&b'\n'))
            .collect();
        let tree = HashedTree::new(&names);
        tree.write(b"large", &vec![7; 300_000]);
        // In no order, and with the prefix that find writes.
        let paths: Vec<_> = names
            .iter()
            .chain([&&b"large"[..]])
            .rev()
            .map(|name| [b"./", *name].concat())
            .collect();
        let paths: Vec<_> = paths.iter().map(|path| OsStr::from_bytes(path)).collect();
        let Some(sums) = run_program(programs, &paths, &tree.path("t")) else {
            continue;
        };
        std::fs::write(tree.path("sums"), sums.stdout).unwrap();
        let count = paths.len();
        let all_equal = format!("{count} equal, 0 differ, 0 missing, 0 new, 0 unreadable");
        assert_eq!(
            verify(&tree, &[]),
            (0, Vec::new(), all_equal),
            "{programs:?}"
        );

        tree.write(b"a", b"A");
        tree.write(b"d/new", b"");
        std::fs::remove_file(tree.path("t/large")).unwrap();
        let (exit, lines, last) = verify(&tree, &[]);
        assert_eq!(
            lines,
            ["differ   a", "new      d/new", "missing  large"],
            "{programs:?}, {tag}"
        );
        let rest = count - 2;
        assert_eq!(
            last,
            format!("{rest} equal, 1 differs, 1 missing, 1 new, 0 unreadable")
        );
        assert_eq!(exit, 1);
    }
}

#[test]
fn our_manifest_is_verified_from_standard_input() {
    let tree = HashedTree::new(&[b"a", b"d/e", b"z"]);
    for algorithm in ["blake3", "sha256", "md5", "xxh128"] {
        let manifest = tree.well(&["hash", &format!("--algorithm={algorithm}"), "t"]);
        let mut child = tree
            .command(&["check", "--manifest=-", "t"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .expect("it was asked for a pipe")
            .write_all(&manifest)
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "3 equal, 0 differ, 0 missing, 0 new, 0 unreadable\n"
        );
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn options_limit_what_is_verified_and_printed() {
    let tree = HashedTree::new(&[b"a", b"b", b"c"]);
    std::fs::write(tree.path("sums"), tree.well(&["hash", "t"])).unwrap();
    tree.write(b"b", b"B");
    tree.write(b"new", b"");
    std::fs::remove_file(tree.path("t/c")).unwrap();
    let counts = "1 equal, 1 differs, 1 missing, 1 new, 0 unreadable";
    for (list, lines) in [
        ("equal", &["equal    a"][..]),
        ("differ", &["differ   b"]),
        ("missing,new", &["missing  c", "new      new"]),
    ] {
        let list = format!("--list={list}");
        let found = verify(&tree, &[&list]);
        assert_eq!(
            (found.1, found.2.as_str()),
            (lines.iter().map(|l| (*l).to_owned()).collect(), counts)
        );
    }
    let (exit, lines, last) = verify(&tree, &["--one-way"]);
    assert_eq!(lines, ["differ   b", "missing  c"]);
    assert_eq!(
        (exit, last.as_str()),
        (1, "1 equal, 1 differs, 1 missing, 0 new, 0 unreadable")
    );
    // Digests of 64 digits can be of two algorithms.
    assert_eq!(verify(&tree, &["--algorithm=blake3"]).2, counts);
    let wrong = verify(&tree, &["--algorithm=sha256", "--one-way"]).2;
    assert_eq!(wrong, "0 equal, 2 differ, 1 missing, 0 new, 0 unreadable");
}

#[test]
fn a_manifest_that_mixes_algorithms_has_the_same_result_each_time() {
    let names: Vec<Vec<u8>> = (0..200).map(|n| format!("f{n}").into_bytes()).collect();
    let tree = HashedTree::new(&names.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let [blake3, sha256] = ["blake3", "sha256"].map(|name| {
        let manifest = tree.well(&["hash", &format!("--algorithm={name}"), "t"]);
        String::from_utf8(manifest).unwrap()
    });
    let mixed: String = blake3
        .lines()
        .zip(sha256.lines())
        .enumerate()
        .map(|(at, (a, b))| format!("{}\n", if at % 2 == 0 { a } else { b }))
        .collect();
    std::fs::write(tree.path("sums"), mixed).unwrap();
    assert_eq!(
        verify(&tree, &[]).2,
        "200 equal, 0 differ, 0 missing, 0 new, 0 unreadable"
    );
}

#[test]
fn other_kinds_and_hidden_files_are_not_equal() {
    let tree = HashedTree::new(&[b"a", b"b", b"d/x", b"d/y", b"z"]);
    std::fs::write(tree.path("t/sums"), "").unwrap();
    std::fs::write(tree.path("sums"), tree.well(&["hash", "t"])).unwrap();
    // A symlink to the same content is another kind.
    std::fs::remove_file(tree.path("t/a")).unwrap();
    symlink("b", tree.path("t/a")).unwrap();
    let (exit, lines, _) = verify(&tree, &[]);
    assert_eq!((exit, lines), (1, vec!["differ   a".to_owned()]));

    // A manifest in the tree is not new.
    std::fs::remove_file(tree.path("t/a")).unwrap();
    tree.write(b"a", b"a");
    std::fs::remove_file(tree.path("t/sums")).unwrap();
    std::fs::rename(tree.path("sums"), tree.path("t/sums")).unwrap();
    let output = tree.run(&["check", "--manifest=t/sums", "--list=new", "t"]);
    let text = String::from_utf8(output.stdout).unwrap();
    // It lists itself, as it was when it was empty.
    assert_eq!(text, "5 equal, 1 differs, 0 missing, 0 new, 0 unreadable\n");
}

#[test]
fn what_is_below_an_unreadable_directory_is_not_missing() {
    let tree = HashedTree::new(&[b"a", b"d/x", b"d/y", b"d-gone", b"d.z"]);
    std::fs::write(tree.path("sums"), tree.well(&["hash", "t"])).unwrap();
    std::fs::remove_file(tree.path("t/d-gone")).unwrap();
    for (name, mode) in [("t/d", 0o300), ("t/a", 0o200)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(tree.path(name), mode).unwrap();
    }
    let output = tree.run_as_user(&["check", "--manifest=sums", "t"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "missing  d-gone\n1 equal, 0 differ, 1 missing, 0 new, 4 unreadable\n"
    );
    assert_eq!(output.status.code(), Some(23));
}

#[test]
fn a_failed_read_is_reported_and_counted() {
    let tree = HashedTree::new(&[b"a", b"b"]);
    std::fs::write(tree.path("sums"), tree.well(&["hash", "t"])).unwrap();
    let log = tree.path("calls");
    let run = |variable: &str, value: &OsStr| -> Output {
        tree.command(&["check", "--manifest=sums", "t"])
            .env(variable, value)
            .output()
            .expect("the program can be started")
    };
    run("SPARSYNC_CALL_LOG", log.as_os_str());
    let calls = std::fs::read_to_string(&log).unwrap();
    let open_of_a = calls
        .lines()
        .enumerate()
        .filter(|(_, line)| line.ends_with(" Read"))
        .map(|(at, _)| at + 1)
        .next()
        .expect("a file is read");
    let output = run("SPARSYNC_FAIL_AT", OsStr::new(&format!("{open_of_a}:EIO")));
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        text, "1 equal, 0 differ, 0 missing, 0 new, 1 unreadable\n",
        "{errors}"
    );
    assert!(errors.ends_with("\": Input/output error (5)\n"), "{errors}");
    assert_eq!(output.status.code(), Some(23));
}

#[test]
fn a_wrong_line_is_named_before_anything_is_read() {
    let tree = HashedTree::new(&[b"a"]);
    let md5 = "0cc175b9c0f1b6a831c399e269772661";
    for (text, line, reason) in [
        (
            format!("{md5}  a\nnot a line\n"),
            2,
            "expected a digest, two blanks and a path",
        ),
        (format!("{md5}  /etc/passwd\n"), 1, "the path is absolute"),
        (
            format!("{md5}  a\n{md5}  b/../../c\n"),
            2,
            "the path contains `..`",
        ),
        (
            format!("{}  a\n", &md5[..30]),
            1,
            "no known digest has 30 digits",
        ),
        (
            format!("\\{md5}  a\\q\n"),
            1,
            "expected `\\\\`, `\\n` or `\\r` after a backslash",
        ),
    ] {
        std::fs::write(tree.path("sums"), text).unwrap();
        let output = tree.run(&["check", "--manifest=sums", "t"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            errors,
            format!("sparsync: cannot use line {line} of the manifest sums: {reason}\n")
        );
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
    }
    let output = tree.run(&["check", "--manifest=none", "t"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot open the manifest none: No such file or directory (2)\n"
    );
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn json_and_progress_of_a_manifest() {
    let tree = HashedTree::new(&[b"a", b"b\xff", b"c"]);
    std::fs::write(
        tree.path("sums"),
        tree.well(&["hash", "--algorithm=md5", "t"]),
    )
    .unwrap();
    tree.write(b"b\xff", b"B");
    let output = tree.run(&["check", "--manifest=sums", "--json", "--progress", "t"]);
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    lines.iter().for_each(check_line);
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0]["result"], "differ");
    assert_eq!(lines[0]["path_base64"], "Yv8=");
    assert_eq!(lines[1]["equal"], 2);
    assert_eq!(lines[2]["exit_code"], 1);
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(shown.contains("\r3 of 3 files, "), "{shown:?}");
}
