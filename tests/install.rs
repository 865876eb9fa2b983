//! What other programs read: the version.

use crate::kit::oracle;
use std::process::Command;

/// Runs sparsync and returns its output.
#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = Command::new(oracle::under_test()).args(args).output().expect("the program can be started");
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {}", output.stderr.escape_ascii());
    String::from_utf8(output.stdout).expect("the text is UTF-8")
}

#[test]
fn the_version_is_json() {
    let version: serde_json::Value = serde_json::from_str(&printed(&["--version", "--json"])).expect("it is JSON");
    assert_eq!(version["name"], "sparsync");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["protocol_versions"], serde_json::json!([1]));
    assert_eq!(version["rsync"], serde_json::json!({ "version": "3.5.0", "protocol": 32 }));
    assert_eq!(version["capabilities"]["ACLs"], true);
    assert_eq!(version["methods"]["compression"][0], "zstd");
    assert_eq!(version["methods"]["transport"], serde_json::json!(["auto", "quic", "tls", "ssh"]));
    assert_eq!(printed(&["--json", "-V"]), printed(&["--version", "--json"]));
    let rsyncs: serde_json::Value = serde_json::from_str(&printed(&["-VV"])).expect("it is JSON");
    assert_eq!((&rsyncs["program"], &rsyncs["capabilities"]), (&serde_json::json!("rsync"), &version["capabilities"]));
}

#[test]
fn texts_do_not_depend_on_the_name_of_the_program() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let rsync = dir.path().join("rsync");
    std::os::unix::fs::symlink(oracle::under_test(), &rsync).expect("scratch can be written");
    for args in [&["--version", "--json"]] {
        let output = Command::new(&rsync).args(args).output().expect("the program can be started");
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed(args));
    }
}

#[test]
fn wrong_values_are_usage_errors() {
    for (args, message) in [
        (&["--json", "src", "dst"][..], "sparsync: --json cannot be used without --version\n"),
        (&["--json", "src", "host:dst"], "sparsync: --json cannot be used without --version\n"),
    ] {
        let output = Command::new(oracle::under_test()).args(args).output().expect("the program can be started");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.starts_with(message), "{args:?}: {errors}");
    }
}
