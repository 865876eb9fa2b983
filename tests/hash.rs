//! `sparsync hash`: its manifests are those of b3sum, sha256sum, md5sum and xxhsum, which accept them.

use crate::json::check_line;
use crate::kit::{HashedTree, oracle, run_program};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Stdio};

/// The algorithms, and the programs that write and read their manifests.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("blake3", &["b3sum"]),
    ("sha256", &["sha256sum"]),
    ("md5", &["md5sum"]),
    ("xxh128", &["xxhsum", "-H2"]),
];

/// The files of a manifest, in the order of their bytes.
const NAMES: [&[u8]; 13] = [
    b" lead",
    b"*star",
    b"-dash",
    b"a!",
    b"a/b/c",
    b"a/b.c",
    b"a/b0",
    b"a0",
    b"b\\s",
    b"cr\rcr",
    b"end ",
    b"n\nl",
    b"\xc3\xa9/\xe2\x82\xac",
];

#[test]
fn manifest_is_what_the_program_of_the_format_writes_and_accepts() {
    for (algorithm, program) in PROGRAMS {
        let has_newlines = algorithm != "xxh128";
        let mut names: Vec<&[u8]> = NAMES
            .into_iter()
            .filter(|name| has_newlines || !name.contains(&b'\n'))
            .collect();
        names.sort();
        let tree = HashedTree::new(&names);
        // More than one piece, and nothing.
        tree.write(b"large", &vec![7; 300_000]);
        tree.write(b"void", b"");
        symlink("large", tree.path("t/link")).unwrap();
        names.extend([&b"large"[..], b"void"]);
        names.sort();

        let manifest = tree.well(&["hash", &format!("--algorithm={algorithm}"), "t"]);
        let paths: Vec<_> = names.iter().map(|name| OsStr::from_bytes(name)).collect();
        let with_end: Vec<_> = [OsStr::new("--")].into_iter().chain(paths).collect();
        let Some(wanted) = run_program(program, &with_end, &tree.path("t")) else {
            continue;
        };
        assert_eq!(
            String::from_utf8_lossy(&manifest),
            String::from_utf8_lossy(&wanted.stdout),
            "{algorithm}"
        );

        std::fs::write(tree.path("sums"), &manifest).unwrap();
        let check = [OsStr::new("--check"), OsStr::new("../sums")];
        let accepted = run_program(program, &check, &tree.path("t")).expect("it is installed");
        assert!(accepted.status.success(), "{accepted:?}");
        tree.write(b"a/b0", b"changed");
        let rejected = run_program(program, &check, &tree.path("t")).expect("it is installed");
        assert_eq!(rejected.status.code(), Some(1), "{rejected:?}");
    }
}

#[test]
fn blake3_is_the_default_and_any_number_of_workers_writes_the_same() {
    let names: Vec<Vec<u8>> = (0..400)
        .map(|n| format!("d{}/f{n}", n % 7).into_bytes())
        .collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let tree = HashedTree::new(&names);
    let one = tree.well(&["hash", "--workers=1", "t"]);
    assert_eq!(one.iter().filter(|&&byte| byte == b'\n').count(), 400);
    for args in [
        &["hash", "t/"][..],
        &["hash", "--workers", "7", "t"],
        &["hash", "--algorithm=blake3", "--", "t"],
    ] {
        assert_eq!(tree.well(args), one, "{args:?}");
    }
    let lines = String::from_utf8(one).unwrap();
    let paths: Vec<&str> = lines.lines().map(|line| &line[66..]).collect();
    assert!(paths.is_sorted(), "{paths:?}");
}

#[test]
fn a_file_that_cannot_be_listed_read_or_named_is_reported() {
    let tree = HashedTree::new(&[b"a", b"b\xff", b"u\xef\xbf\xbd", b"z"]);
    let output = tree.run(&["hash", "t"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot represent \"b\\#377\": b3sum's format requires UTF-8\n\
         sparsync: cannot represent \"u\u{fffd}\": b3sum rejects the character U+FFFD\n"
    );
    assert_eq!(output.status.code(), Some(23));
    assert_eq!(output.stdout.iter().filter(|&&b| b == b'\n').count(), 2);
    assert_eq!(
        tree.run(&["hash", "--algorithm=md5", "t"]).status.code(),
        Some(0)
    );
    let tree = HashedTree::new(&[b"a\nb", b"c"]);
    let output = tree.run(&["hash", "--algorithm=xxh128", "t"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot represent \"a\\#012b\": xxhsum's format cannot represent a newline\n"
    );
    assert_eq!(output.status.code(), Some(23));

    let tree = HashedTree::new(&[b"a", b"d/f", b"z"]);
    for (name, mode) in [("t/a", 0o200), ("t/d", 0o300)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(tree.path(name), mode).unwrap();
    }
    let output = tree.run_as_user(&["hash", "t"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot read \"a\": Permission denied (13)\n\
         sparsync: cannot read \"d\": Permission denied (13)\n"
    );
    assert_eq!(output.status.code(), Some(23));
    assert!(output.stdout.ends_with(b"  z\n"), "{:?}", output.stdout);
}

#[test]
fn an_error_of_a_read_is_reported_and_the_other_files_are_hashed() {
    let tree = HashedTree::new(&[b"a", b"b", b"c"]);
    let log = tree.path("calls");
    tree.command(&["hash", "--workers=1", "t"])
        .env("SPARSYNC_CALL_LOG", &log)
        .output()
        .expect("the program can be started");
    let calls = std::fs::read_to_string(log).unwrap();
    let reads: Vec<_> = calls
        .lines()
        .enumerate()
        .filter(|(_, line)| line.ends_with(" Read"))
        .map(|(at, _)| at + 1)
        .collect();
    assert_eq!(reads.len(), 6, "two for each file: {calls}");

    let output = tree
        .command(&["hash", "--workers=1", "t"])
        .env("SPARSYNC_FAIL_AT", format!("{}:EIO", reads[2]))
        .output()
        .expect("the program can be started");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot read \"b\": Input/output error (5)\n"
    );
    assert_eq!(output.status.code(), Some(23));
    assert_eq!(output.stdout.iter().filter(|&&b| b == b'\n').count(), 2);
}

#[test]
fn only_regular_files_are_opened_and_nothing_outside() {
    let tree = HashedTree::new(&[b"a", b"d/f"]);
    std::fs::create_dir(tree.path("out")).unwrap();
    std::fs::write(tree.path("out/secret"), "secret").unwrap();
    symlink("../out", tree.path("t/dirlink")).unwrap();
    symlink("../out/secret", tree.path("t/filelink")).unwrap();
    symlink("nothing", tree.path("t/dangling")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.path("t/fifo"),
        fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    symlink("t", tree.path("top")).unwrap();
    for top in ["t", "top"] {
        let manifest = String::from_utf8(tree.well(&["hash", top])).unwrap();
        let paths: Vec<&str> = manifest.lines().map(|line| &line[66..]).collect();
        assert_eq!(paths, ["a", "d/f"]);
    }
}

#[test]
fn a_manifest_in_the_tree_does_not_contain_itself() {
    let tree = HashedTree::new(&[b"a", b"z"]);
    let wanted = tree.well(&["hash", "t"]);
    for _ in 0..2 {
        assert_eq!(tree.well(&["hash", "-o", "t/MANIFEST", "t"]), b"");
        assert_eq!(std::fs::read(tree.path("t/MANIFEST")).unwrap(), wanted);
    }
    let redirected = std::fs::File::create(tree.path("t/MANIFEST")).unwrap();
    let status = tree
        .command(&["hash", "t"])
        .stdout(redirected)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read(tree.path("t/MANIFEST")).unwrap(), wanted);
}

#[test]
fn an_output_file_is_replaced_as_a_whole_or_not_at_all() {
    let tree = HashedTree::new(&[b"a"]);
    std::fs::write(tree.path("old"), "old").unwrap();
    std::fs::create_dir(tree.path("dir")).unwrap();
    symlink("old", tree.path("link")).unwrap();
    for (output, cause) in [
        ("dir", "it is no regular file"),
        ("link", "it is no regular file"),
        ("none/file", "No such file or directory (2)"),
        ("dir/", "invalid filename"),
    ] {
        let ended = tree.run(&["hash", "--output", output, "t"]);
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            errors,
            format!("sparsync: cannot write the manifest to {output}: {cause}\n")
        );
        assert_eq!(ended.status.code(), Some(11));
    }
    assert_eq!(std::fs::read(tree.path("old")).unwrap(), b"old");

    // A call that fails leaves the old file and no other.
    let failed = tree
        .command(&["hash", "-o", "old", "t"])
        .env("SPARSYNC_FAIL_AT", "1:ENOSPC")
        .env("SPARSYNC_FAULT_IN", "fsync")
        .output()
        .expect("the program can be started");
    let errors = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot write the manifest to old: No space left on device (28)\n"
    );
    assert_eq!(failed.status.code(), Some(11));
    assert_eq!(std::fs::read(tree.path("old")).unwrap(), b"old");
    let names = std::fs::read_dir(tree.path("")).unwrap().count();
    assert_eq!(names, 4, "dir, link, old and t");

    tree.well(&["hash", "-o", "old", "t"]);
    assert!(std::fs::read(tree.path("old")).unwrap().ends_with(b"  a\n"));
}

#[test]
fn json_describes_each_file_and_each_problem() {
    let tree = HashedTree::new(&[b"a", b"d/\xff\n"]);
    let output = tree.run(&["hash", "--json", "--algorithm=md5", "t"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    lines.iter().for_each(check_line);
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(
        (
            lines[0]["path"].as_str(),
            lines[0]["size_bytes"].as_u64(),
            lines[0]["digest"].as_str()
        ),
        (Some("a"), Some(1), Some("0cc175b9c0f1b6a831c399e269772661"))
    );
    assert_eq!(lines[1]["path_base64"], "ZC//Cg==");
    assert_eq!(lines[2]["exit_code"], 0);
}

#[test]
fn progress_is_shown_on_standard_error_only() {
    let tree = HashedTree::new(&[b"a", b"bb"]);
    let output = tree.run(&["hash", "--progress", "t"]);
    assert_eq!(output.stdout, tree.well(&["hash", "t"]));
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(
        shown.contains("\r2 files, 3 bytes, ") && shown.ends_with("B/s\n"),
        "{shown:?}"
    );
}

#[test]
fn a_tree_that_cannot_be_opened_ends_the_run() {
    let tree = HashedTree::new(&[b"a"]);
    tree.well(&["hash", "t", "-o", "manifest"]);
    tree.well(&["hash", "t", "-o", &"n".repeat(255)]);
    let elsewhere = "hint: the tree must be on this machine; run sparsync on the other one: `ssh HOST sparsync ...`\n";
    for (operand, cause, hint) in [
        ("none", "No such file or directory (2)", ""),
        ("t/a", "Not a directory (20)", ""),
        ("host:t", "No such file or directory (2)", elsewhere),
        ("me@host:t", "No such file or directory (2)", elsewhere),
        ("host::module/t", "No such file or directory (2)", elsewhere),
        (
            "sparsync://host/t",
            "No such file or directory (2)",
            elsewhere,
        ),
    ] {
        for words in [
            &["hash", operand][..],
            &["check", "--manifest=manifest", operand],
            &["cache", "verify", operand],
        ] {
            let output = tree.run(words);
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(
                errors,
                format!("sparsync: cannot open {operand}: {cause}\n{hint}"),
                "{words:?}"
            );
            assert_eq!(output.status.code(), Some(3), "{words:?}");
        }
    }
}

#[test]
fn a_deep_tree_is_walked_with_few_open_files() {
    let tree = HashedTree::new(&[]);
    // Longer than a path may be in one call, and deeper than a process may have files open.
    let mut dir = std::fs::File::open(tree.path("t")).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&dir, "deep", rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let below = rustix::fs::openat(&dir, "deep", flags, rustix::fs::Mode::empty()).unwrap();
        dir = std::fs::File::from(below);
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&dir, "file", flags, rustix::fs::Mode::RUSR).unwrap();
    let shell = format!(
        "ulimit -n 64; exec {} hash t",
        oracle::under_test().display()
    );
    let output = Command::new("sh")
        .args(["-c", &shell])
        .current_dir(tree.path(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{:?}", output.stderr);
    assert!(output.stdout.ends_with(b"deep/file\n"));
    assert_eq!(output.stdout.len(), 66 + 1500 * 5 + 5);
    // The directory is removed by a program that can do so.
    let removed = Command::new("rm")
        .args(["-rf", "t"])
        .current_dir(tree.path(""))
        .status()
        .unwrap();
    assert!(removed.success());
}

/// Each file that waits for a thread keeps its directory open.
#[test]
fn files_in_many_directories_are_hashed_with_few_open_files() {
    let names: Vec<Vec<u8>> = (0..400)
        .map(|n| format!("{n}/a/b/f").into_bytes())
        .collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let tree = HashedTree::new(&names);
    let program = oracle::under_test().display();
    let shell = format!(
        "ulimit -n 24; {program} hash t >m && {program} check --manifest=m t && \
         {program} cache verify --checksum-cache=none t"
    );
    let output = Command::new("sh")
        .args(["-c", &shell])
        .current_dir(tree.path(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("Too many"),
        "{output:?}"
    );
}

#[test]
fn a_closed_output_ends_the_run() {
    let names: Vec<Vec<u8>> = (0..3000).map(|n| format!("f{n}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let tree = HashedTree::new(&names);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = tree
        .command(&["hash", "t"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot write the manifest to standard output: Broken pipe (32)\n"
    );
    assert_eq!(output.status.code(), Some(11));
}

#[test]
fn a_file_of_the_name_of_the_command_is_not_ignored() {
    let tree = HashedTree::new(&[b"a"]);
    std::fs::write(tree.path("hash"), "a file").unwrap();
    let output = tree.run(&["hash", "t"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: `hash` is both a command and a file of this directory\n\
         hint: to copy the file: `sparsync ./hash ...` or `sparsync -- hash ...`; to run the command: \
         `sparsync --sparsync hash ...`\n"
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");

    // Each of the three ways works.
    assert!(tree.well(&["--sparsync", "hash", "t"]).ends_with(b"  a\n"));
    for (args, copy) in [
        (&["./hash", "copy1"][..], "copy1"),
        (&["--", "hash", "copy2"], "copy2"),
    ] {
        tree.well(args);
        assert_eq!(std::fs::read(tree.path(copy)).unwrap(), b"a file");
    }
    // Under another name there is no such command.
    symlink(oracle::under_test(), tree.path("rsync")).unwrap();
    let copied = Command::new(tree.path("rsync"))
        .args(["hash", "copy3"])
        .current_dir(tree.path(""))
        .status()
        .unwrap();
    assert!(copied.success());
    assert_eq!(std::fs::read(tree.path("copy3")).unwrap(), b"a file");
}
