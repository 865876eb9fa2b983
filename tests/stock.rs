//! Sessions with a stock rsync by its own protocol. These cases run both ways on every run of the tests; the routes
//! `stock-push` and `stock-pull` of `SPARSYNC_TEST_ROUTES` run all other cases, too.

use crate::kit::{World, oracle, synctest};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

macro_rules! copies {
    ($name:ident, $source:expr, $dest:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, with stock, |w: World| {
            w.source($source).dest($dest);
            w.agree(&[$($option),+]);
        });
    };
}

const TREE: &str = "a b*70000 empty= l->a ;s d/x d/y/z d/e/";
const OLD: &str = "a=old@-9 b*69000@-4 extra d/old gone/x";

copies!(first_copy, TREE, "", ["-ai", "--stats"]);
copies!(update_with_deletion, TREE, OLD, ["-ai", "--delete"]);
copies!(deletion_before, TREE, OLD, ["-ai", "--delete-before"]);
copies!(deletion_after_with_delayed_updates, TREE, OLD, ["-ai", "--delete-after", "--delay-updates"]);
copies!(nothing_to_do, "a b d/x", "a b d/x", ["-aii"]);
copies!(delta_with_each_block_length, "f*700000", "f*650000@-4", ["-ai", "--no-whole-file", "-B2000"]);
copies!(delta_in_place, "f*300000 g*100", "f*250000@-4 g*900@-4", ["-ai", "--inplace"]);
copies!(compression_by_default, TREE, OLD, ["-aiz"]);
copies!(compression_by_lz4, TREE, OLD, ["-ai", "--zc=lz4"]);
copies!(compression_by_zlibx, TREE, OLD, ["-ai", "--zc=zlibx"]);
copies!(checksums, "a b*70000 c", "a=x b*70000 c", ["-aic"]);
copies!(checksums_by_md5, TREE, OLD, ["-aic", "--cc=md5"]);
copies!(appending, "a*5000 b*100", "a*3000@-4 b*100", ["-ai", "--append"]);
copies!(hard_links, "a b==a d/c==a e f", "a@-5 e", ["-aiH"]);
copies!(backups, TREE, OLD, ["-aib", "--delete", "--backup-dir=../old"]);
copies!(filters_with_deletion, "a.o a.c d/b.o d/b.c", "a.o old.o old.c d/x.o", ["-ai", "--delete", "--exclude=*.o"]);
copies!(modes_and_owners, "a%600 d%700/b", "a%644", ["-ai", "--chmod=g+r", "--chown=7:8"]);
copies!(names_only, TREE, OLD, ["-av", "--delete"]);
copies!(pruned_directories, "a d/x e/f/", "old", ["-aim", "--exclude=x", "--delete"]);

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

/// Runs a pull whose remote program is this shell script.
fn pull_from(script: &str, options: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("shell");
    std::fs::write(&shell, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).arg(oracle::under_test()).args(options);
    command.arg("-e").arg(&shell).args(["--rsync-path=rsync", "host:src/", "dst/"]).current_dir(dir.path());
    command.env("SPARSYNC_STOCK", "1").env("HOME", dir.path()).stdin(Stdio::null());
    let output = command.output().expect("a program can be started");
    let left = std::fs::read_dir(dir.path().join("dst")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "a rejected peer leaves nothing");
    output
}

#[test]
fn unsupported_option_is_named_and_changes_nothing() {
    let output = pull_from("printf '\\040\\000\\000\\000'; cat >/dev/null", &["-aA"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("sparsync: --acls is not supported with host"), "{stderr}");
    assert!(stderr.contains("hint: install rsync here or sparsync there"), "{stderr}");
}

/// After the handshake of protocol 31 without algorithm lists (compatibility flags 0), the peer sends these bytes.
fn hostile(bytes: &str) -> Output {
    pull_from(&format!("printf '\\037\\000\\000\\000\\000\\001\\002\\003\\004{bytes}'; cat >/dev/null"), &["-a"])
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
    ] {
        let begun = Instant::now();
        let output = hostile(bytes);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(begun.elapsed() < Duration::from_secs(50), "{bytes}: the peer was waited for");
        assert!(!stderr.contains("panicked"), "{stderr}");
        let code = output.status.code().unwrap_or(-1);
        assert!(matches!(code, 2 | 4 | 12 | 22) && stderr.contains(what), "{bytes}: exit {code}, {stderr}");
    }
}
