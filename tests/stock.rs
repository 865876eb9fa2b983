//! Sessions with a stock rsync by its own protocol. These cases run both ways on every run of the tests; the routes
//! `stock-push` and `stock-pull` of `SPARSYNC_TEST_ROUTES` run all other cases, too.

use crate::kit::{OLD, TREE, World, copies, oracle, synctest, write_script};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

copies!(with stock, first_copy, TREE, "", ["-ai", "--stats"]);
copies!(with stock, update_with_deletion, TREE, OLD, ["-ai", "--delete"]);
copies!(with stock, deletion_before, TREE, OLD, ["-ai", "--delete-before"]);
copies!(with stock, deletion_after_with_delayed_updates, TREE, OLD, ["-ai", "--delete-after", "--delay-updates"]);
copies!(with stock, nothing_to_do, "a b d/x", "a b d/x", ["-aii"]);
copies!(with stock, delta_with_each_block_length, "f*700000", "f*650000@-4", ["-ai", "--no-whole-file", "-B2000"]);
copies!(with stock, delta_in_place, "f*300000 g*100", "f*250000@-4 g*900@-4", ["-ai", "--inplace"]);
copies!(with stock, compression_by_default, TREE, OLD, ["-aiz"]);
copies!(with stock, compression_by_lz4, TREE, OLD, ["-ai", "--zc=lz4"]);
copies!(with stock, compression_by_zlibx, TREE, OLD, ["-ai", "--zc=zlibx"]);
copies!(with stock, checksums, "a b*70000 c", "a=x b*70000 c", ["-aic"]);
copies!(with stock, checksums_by_md5, TREE, OLD, ["-aic", "--cc=md5"]);
copies!(with stock, option_for_the_remote_side_only, TREE, OLD, ["-ai", "-M--bwlimit=1000000", "-M--no-times"]);
// Two names are not negotiated, even if one of them is "auto".
copies!(with stock, checksums_by_auto_and_md5, TREE, OLD, ["-aic", "--cc=auto,md5"]);
copies!(with stock, checksums_by_twice_auto, TREE, OLD, ["-aic", "--cc=auto,auto"]);
copies!(with stock, appending, "a*5000 b*100", "a*3000@-4 b*100", ["-ai", "--append"]);
copies!(with stock, hard_links, "a b==a d/c==a e f", "a@-5 e", ["-aiH"]);
copies!(with stock, backups, TREE, OLD, ["-aib", "--delete", "--backup-dir=../old"]);
copies!(with stock, filters_with_deletion, "a.o a.c d/b.o d/b.c", "a.o old.o old.c d/x.o", ["-ai", "--delete", "--exclude=*.o"]);
copies!(with stock, modes_and_owners, "a%600 d%700/b", "a%644", ["-ai", "--chmod=g+r", "--chown=7:8"]);
copies!(with stock, names_only, TREE, OLD, ["-av", "--delete"]);
copies!(with stock, pruned_directories, "a d/x e/f/", "old", ["-aim", "--exclude=x", "--delete"]);

synctest!(listed_names, with stock, |w: World| {
    w.source(TREE).dest("old").file("list", "a\nd/x\n");
    w.agree(&["-ai", "--files-from=list"]);
});

// rsync lists about 1,000 entries ahead of those that are finished.
synctest!(many_unchanged_directories, with stock, |w: World| {
    for name in ["src", "dst"] {
        w.build(name, |t| {
            for dir in 0..60 {
                (0..30).for_each(|file| drop(t.file(format!("{dir}/d/{file}"), "same")));
            }
        });
    }
    w.once().no_dry_run().agree(&["-ai"]).exits(0);
});

synctest!(removed_sources, with stock, |w: World| {
    w.source("a b d/x").dest("b").no_dry_run().agree(&["-ai", "--remove-source-files"]);
});

synctest!(alternate_tree, with stock, |w: World| {
    w.source("a b d/x").tree("alt", "a d/x").agree(&["-ai", "--link-dest=../alt"]);
});

synctest!(unreadable_file, as user, with stock, |w: World| {
    w.source("a shut%0 z").agree(&["-ai"]).exits(23);
});

synctest!(path_longer_than_path_max_is_left_out, with stock, |w: World| {
    let deep = ["component".repeat(20).as_str(); 25].join("/");
    w.build("src", |t| drop(t.file(format!("{deep}/leaf"), "deep"))).dest("extra");
    w.no_dry_run().agree(&["-a", "--delete"]).exits(23).warns("filename overflows max-path len by ");
});

/// Runs the program with these arguments and a remote program that is this shell script, in a new directory with the
/// source `src/a`.
fn run_against(script: &str, arguments: &[&str], environment: &[(&str, &str)]) -> (TempDir, Output) {
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("shell");
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/a"), vec![b'a'; 300_000]).unwrap();
    write_script(&shell, &format!("#!/bin/sh\n{script}\n"));
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).arg(oracle::under_test());
    command.arg("-e").arg(&shell).arg("--rsync-path=rsync").args(arguments).current_dir(dir.path());
    command.env("SPARSYNC_STOCK", "1").env("HOME", dir.path()).envs(environment.iter().copied()).stdin(Stdio::null());
    let output = command.output().expect("a program can be started");
    (dir, output)
}

/// Runs a pull whose remote program is this shell script.
fn pull_from(script: &str, options: &[&str]) -> Output {
    let (dir, output) = run_against(script, &[options, &["host:src/", "dst/"]].concat(), &[]);
    let left = std::fs::read_dir(dir.path().join("dst")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "a rejected peer leaves nothing");
    output
}

/// Asserts the exit code, and that the texts are printed.
fn assert_prints(output: &Output, code: i32, texts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for text in texts {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
}

/// Ends what a peer sends, not what it receives.
const HANG_UP: &str = "exec >&-; cat >/dev/null";

/// A peer that announces its version and then only reads.
const GREETING: &str = "printf '\\040\\000\\000\\000'; cat >/dev/null";

#[test]
fn unsupported_option_is_named_and_changes_nothing() {
    let output = pull_from(GREETING, &["-aA"]);
    assert_prints(&output, 4, &["sparsync: --acls is not supported with host", "hint: install rsync here or sparsync"]);
}

#[test]
fn pushed_files_cannot_be_verified_with_sha1() {
    let named = "sparsync: the checksum sha1 is not supported with host";
    let (_, output) = run_against(GREETING, &["-a", "--cc=sha1,md5", "src/", "host:dst/"], &[]);
    assert_prints(&output, 4, &[named]);
    let (_, output) = run_against(GREETING, &["-a", "src/", "host:dst/"], &[("RSYNC_CHECKSUM_LIST", "sha1")]);
    assert_prints(&output, 4, &[named]);
}

#[test]
fn error_of_the_installed_rsync_is_printed() {
    let interpreter = "/nonexistent/interpreter";
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("rsync");
    write_script(&broken, &format!("#!{interpreter}\n"));
    let environment = [("SPARSYNC_STOCK", "0"), ("SPARSYNC_RSYNC", broken.to_str().unwrap())];
    let cannot = format!("sparsync: cannot start {}: No such file", broken.display());
    let (_, output) = run_against(GREETING, &["-a", "host:src/", "dst/"], &environment);
    assert_prints(&output, 14, &[&cannot]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("not supported"));
    let (_, output) = run_against(GREETING, &["-aA", "host:src/", "dst/"], &environment);
    assert_prints(&output, 4, &["sparsync: --acls is not supported with host", &cannot]);
}

#[test]
fn requested_version_is_announced() {
    let script = "printf '\\040\\000\\000\\000'; head -c 4 >version";
    let (dir, _) = run_against(script, &["-a", "--protocol=31", "host:src/", "dst/"], &[]);
    assert_eq!(std::fs::read(dir.path().join("version")).unwrap(), [31, 0, 0, 0]);
}

#[test]
fn sender_without_entries_is_sent_nothing_more() {
    // The handshake, and after version and rules of the client an empty list with empty lists of names.
    let handshake = "\\037\\000\\000\\000\\000\\001\\002\\003\\004";
    let list = "\\003\\000\\000\\007\\000\\000\\000";
    let script = format!("printf '{handshake}'; head -c 12 >rules; printf '{list}'; exec >&-; cat >rest");
    let (dir, output) = run_against(&script, &["-a", "host:src/", "dst/"], &[]);
    assert_prints(&output, 0, &[]);
    assert_eq!(std::fs::read(dir.path().join("rest")).unwrap(), b"");
}

#[test]
fn lost_connection_is_reported_by_the_role_of_this_end() {
    let (greeting, handshake) = ("\\037\\000\\000\\000", "\\037\\000\\000\\000\\000\\001\\002\\003\\004");
    for (sent, bytes) in [(greeting, 4), (handshake, 9)] {
        let script = &format!("printf '{sent}'; {HANG_UP}");
        for (operands, role) in [(["src/", "host:dst/"], "sender"), (["host:src/", "dst/"], "Receiver")] {
            let (_, output) = run_against(script, &[&["-a"], &operands[..]].concat(), &[]);
            let closed = format!("rsync: connection unexpectedly closed ({bytes} bytes received so far) [{role}]");
            assert_prints(&output, 12, &[&closed, &format!("[{role}=3.5.0]")]);
        }
    }
}

#[test]
fn last_line_without_its_end_is_printed() {
    // The text of an error that concerns a file, without a newline, and the end of the stream.
    let output = hostile("\\004\\000\\000\\010half", HANG_UP);
    assert_prints(&output, 12, &["half\n"]);
}

// A retry does not append, so the receiver sends the sums of what it has.
#[test]
fn appended_file_with_a_read_error_is_requested_again() {
    let rsync = oracle::rsync().display();
    let script = format!("mkdir dst; head -c 100000 src/a >dst/a; shift 2; exec {rsync} \"$@\"");
    let mut repaired = 0;
    for call in 1..200 {
        let fault = format!("{call}:EIO");
        let environment = [("SPARSYNC_FAIL_AT", fault.as_str()), ("SPARSYNC_FAULT_LOG", "fault")];
        let (dir, output) = run_against(&script, &["-a", "--append", "src/", "host:dst/"], &environment);
        let code = output.status.code();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(code, Some(0 | 23)), "call {call}: {code:?}, {stderr}");
        if stderr.contains("read errors mapping") {
            let [sent, received] = ["src/a", "dst/a"].map(|path| std::fs::read(dir.path().join(path)).unwrap());
            // A file that was not even begun is not requested again.
            assert!(sent == received || received.len() == 100_000, "call {call}: {stderr}");
            repaired += u32::from(sent == received);
        }
        if !dir.path().join("fault").exists() {
            break;
        }
    }
    assert!(repaired > 0, "no file was requested again");
}

/// After the handshake of protocol 31 without algorithm lists (compatibility flags 0), the peer sends these bytes.
fn hostile(bytes: &str, then: &str) -> Output {
    pull_from(&format!("printf '\\037\\000\\000\\000\\000\\001\\002\\003\\004{bytes}'; {then}"), &["-a"])
}

#[test]
fn hostile_sender_is_rejected() {
    for (bytes, what) in [
        // An unknown tag.
        ("\\001\\000\\000\\143\\000", "unexpected tag"),
        // A path that climbs: flags 0x02, name "../x", size 0, time 0.
        ("\\020\\000\\000\\007\\032\\004../x\\000\\000\\000\\000\\000\\000\\000\\000\\000", "path"),
        // A message with a length that its kind does not have.
        ("\\001\\000\\000\\155\\000", "message of kind 102"),
        // The peer gives up with exit code 0.
        ("\\004\\000\\000\\135\\000\\000\\000\\000", "error exit with code 0"),
    ] {
        let begun = Instant::now();
        let output = hostile(bytes, "cat >/dev/null");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(begun.elapsed() < Duration::from_secs(50), "{bytes}: the peer was waited for");
        assert!(!stderr.contains("panicked"), "{stderr}");
        let code = output.status.code().unwrap_or(-1);
        assert!(matches!(code, 2 | 4 | 12 | 22) && stderr.contains(what), "{bytes}: exit {code}, {stderr}");
    }
}
