//! Rejected input, case by case, with the error messages.

use super::golden::bytes;
use super::own_messages::{record, record_error};
use super::{decoded, encoded, golden};
use crate::exit::Exit;
use crate::filter::{Merge, Parsed};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Extra};
use crate::proto::bytes::put_varint;
use crate::proto::limits::*;
use crate::proto::{
    Basis, Class, DestDirState, Dialect, DirListing, Encoder, FileId, Joiner, Lane, Message,
    Native, Setup, SubdirFlags, unfit,
};
use crate::report::Tally;
use crate::report::tally::Kinds;
use std::sync::Arc;

/// All tests of this file.
pub const ALL: [fn(); 17] = [
    unmodified_messages_are_accepted,
    merge_files_that_are_read_once_are_rejected,
    invalid_entry_names_are_rejected,
    unsorted_or_duplicate_entries_are_rejected,
    invalid_entry_attributes_are_rejected,
    wrong_counts_and_lengths_are_rejected,
    invalid_paths_are_rejected,
    invalid_entries_of_the_directory_itself_are_rejected,
    unknown_enum_numbers_and_bits_are_rejected,
    out_of_range_numbers_are_rejected,
    malformed_frames_are_rejected,
    frames_longer_than_their_limit_are_rejected,
    mismatched_directory_fragments_are_rejected,
    encoder_rejects_messages_that_decoders_reject,
    oversized_entry_is_detected_before_encoding,
    tally_sums_are_clamped_to_their_limits,
    long_lines_are_truncated,
];

/// A frame with this kind and a body in hexadecimal digits.
fn frame(kind: u8, body: &str) -> Vec<u8> {
    framed(kind, &bytes(body))
}

pub fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    put_varint(&mut frame, body.len() as u64);
    frame.extend_from_slice(body);
    frame
}

/// A `Dir` of the root with this list and the bytes after it.
fn dir(list: &str) -> Vec<u8> {
    frame(4, &format!("00 00 00 | 00 | 00 | 00 | {list}"))
}

/// What follows the name of every file in these tests: a regular file of root, empty, from 1970.
const FILE: &str = "808002";
/// The same for a directory.
const SUB: &str = "808001";
/// No subdirectories, problems or notes.
const NO_MORE: &str = "00 00";

#[track_caller]
fn refused(name: &str, frame: &[u8], words: &str) {
    let error = match Native::new(1).decode(&mut &frame[..]) {
        Err(error) => error,
        Ok(message) => panic!("{name}: was not refused: {message:?}"),
    };
    record_error(&error);
    assert_eq!(error.exit, Exit::Protocol, "{name}: {error}");
    assert!(error.to_string().contains(words), "{name}: {error}");
}

#[test]
fn unmodified_messages_are_accepted() {
    decoded(&dir(&format!("01 6e 00 01|61 {FILE} {NO_MORE}"))).unwrap();
    decoded(&dir(&format!(
        "02 6e 00 01|61 {FILE} 6e 00 01|62 {SUB} 03 {NO_MORE}"
    )))
    .unwrap();
    decoded(&dir(&format!(
        "02 6e 00 01|61 {FILE} 6f 00 01|62 {NO_MORE}"
    )))
    .unwrap();
}

/// The client reads these files and sends their rules.
#[test]
fn merge_files_that_are_read_once_are_rejected() {
    let rules = vec![Parsed::Merge(Box::new(Merge {
        name: b"f".to_vec(),
        ..Merge::default()
    }))];
    let setup = Setup {
        rules: rules.into(),
        ..golden::setup()
    };
    refused(
        "read once",
        &encoded(&Message::Setup(Box::new(setup))),
        "rule is a merge file that the client reads",
    );
}

#[test]
fn invalid_entry_names_are_rejected() {
    let named = |name: &str| dir(&format!("01 6e 00 {name} {FILE} {NO_MORE}"));
    refused(
        "empty",
        &named("00"),
        "invalid message Dir: name \"\" is empty",
    );
    refused(".", &named("01|2e"), "name \".\" is not a valid entry name");
    refused(
        "..",
        &named("02|2e2e"),
        "name \"..\" is not a valid entry name",
    );
    refused(
        "a slash",
        &named("03|612f62"),
        "name \"a/b\" contains a slash",
    );
    refused(
        "a leading slash",
        &named("02|2f61"),
        "name \"/a\" contains a slash",
    );
    refused("NUL", &named("02|6100"), "contains NUL");
    refused(
        "1025 bytes",
        &named(&format!("8108 {}", "61".repeat(1025))),
        "name is 1025 bytes long, at most 1024 are allowed",
    );
    let shared = format!(
        "02 6e 00 c806|{} {FILE} 6e c806 c806|{} {FILE}",
        "61".repeat(840),
        "61".repeat(840)
    );
    refused(
        "1680 bytes, partly shared",
        &dir(&shared),
        "is longer than NAME_MAX_BYTES",
    );
    refused(
        "shares with a missing name",
        &dir(&format!("01 6e 01 01|61 {FILE} {NO_MORE}")),
        "shares more than the name before",
    );
    let too_much = format!("02 6e 00 01|61 {FILE} 6e 02 01|62 {FILE} {NO_MORE}");
    refused(
        "shares more than the previous name",
        &dir(&too_much),
        "shares more than the name before it has",
    );
    let climbs = format!("02 6e 00 01|2d {FILE} 6e 00 02|2e2e {SUB} 00 {NO_MORE}");
    refused(
        "a directory ..",
        &dir(&climbs),
        "name \"..\" is not a valid entry name",
    );
}

#[test]
fn unsorted_or_duplicate_entries_are_rejected() {
    let two = |one: &str, two: &str| dir(&format!("02 6e 00 01|{one} 6e 00 01|{two} 00 {NO_MORE}"));
    refused(
        "unsorted",
        &two(&format!("62 {FILE}"), &format!("61 {FILE}")),
        "\"a\" is out of sort order",
    );
    refused(
        "twice",
        &two(&format!("61 {FILE}"), &format!("61 {FILE}")),
        "\"a\" is duplicated",
    );
    refused(
        "a file after a directory",
        &two(&format!("61 {SUB}"), &format!("62 {FILE}")),
        "\"b\" is out of sort order",
    );
    refused(
        "a file and a directory",
        &two(&format!("61 {FILE}"), &format!("61 {SUB}")),
        "\"a\" is duplicated",
    );
    // `foo-bar/` sorts before `foo/`.
    let dirs = format!("02 6e 00 03|666f6f {SUB} 6e 03 04|2d626172 {SUB} 0000 {NO_MORE}");
    refused(
        "foo before foo-bar",
        &dir(&dirs),
        "\"foo-bar\" is out of sort order",
    );
}

#[test]
fn invalid_entry_attributes_are_rejected() {
    let entry = |entry: &str| dir(&format!("01 {entry} {NO_MORE}"));
    refused(
        "no type",
        &entry("6e 00 01|61 a403"),
        "mode 644 has no known file type",
    );
    refused(
        "mode of the entry before the first",
        &entry("6f 00 01|61"),
        "mode 0 has no known file type",
    );
    refused(
        "bits above a mode's",
        &entry("6e 00 01|61 808082 01"),
        "has no known file type",
    );
    refused(
        "a mode of 33 bits",
        &entry("6e 00 01|61 8080808010"),
        "mode is 4294967296, which exceeds 32 bits",
    );
    refused(
        "a uid of 33 bits",
        &entry("6c 00 01|61 808002 8080808010"),
        "uid is 4294967296",
    );
    refused(
        "a gid of 33 bits",
        &entry("6a 00 01|61 808002 8080808010"),
        "gid is 4294967296",
    );
    refused(
        "a second of nanoseconds",
        &entry("76 00 01|61 808002 00 00ca9a3b"),
        "more nanoseconds than a second has",
    );
    refused(
        "a time both unchanged and given",
        &entry("7e 00 01|61 808002"),
        "both unchanged and given",
    );
    refused(
        "a length above off_t's",
        &entry("4e 00 01|61 808002 80808080808080808001"),
        "length is 9223372036854775808",
    );
    refused(
        "an origin of 17 bits",
        &entry("2e 00 01|61 808002 808004"),
        "origin is 65536",
    );
    let extra = |extra: &str| entry(&format!("ee 00 01|61 808002 {extra}"));
    refused(
        "empty extra flags",
        &extra("00 00"),
        "extra flags are empty",
    );
    refused(
        "links without an inode",
        &extra("08 00"),
        "extra flags give a link count without an inode",
    );
    refused(
        "unknown extra",
        &extra("00 08"),
        "extra flags has unknown bits (0x08)",
    );
    refused(
        "a long target",
        &extra(&format!("01 00 8120|{}", "74".repeat(4097))),
        "target is 4097 bytes long",
    );
    refused(
        "attributes to repeat",
        &extra("20 04"),
        "there were none before",
    );
    refused(
        "no attributes, the same",
        &extra("02 04 01"),
        "absent attributes as unchanged",
    );
    refused(
        "unsorted attributes",
        &extra("20 00 02 01|62 00 01|61 00"),
        "out of sort order",
    );
    refused(
        "an attribute twice",
        &extra("20 00 02 01|61 00 01|61 00"),
        "out of sort order",
    );
    refused(
        "an attribute without name",
        &extra("20 00 01 00 00 00"),
        "is not a valid attribute name",
    );
    refused(
        "more attributes than bytes",
        &extra("20 00 8004 01|61 00"),
        "has the count 512, but only",
    );
    refused(
        "too many attributes",
        &extra("20 00 818004"),
        "has the count 65537, at most 65536 are allowed",
    );
    refused(
        "a long ACL",
        &extra("40 00 818040"),
        "acl is 1048577 bytes long",
    );
    refused("a short digest", &extra("00 01 00"), "digest is truncated");
    refused(
        "a time of more than a second",
        &extra("10 00 00 ffffffff"),
        "more nanoseconds than a second has",
    );
}

#[test]
fn wrong_counts_and_lengths_are_rejected() {
    refused(
        "entries",
        &dir("ffff03"),
        "entries has the count 65535, but only 0 bytes follow",
    );
    refused(
        "too many entries",
        &dir("818004"),
        "entries has the count 65537, at most 65536 are allowed",
    );
    refused(
        "entries beyond 64 bits",
        &dir("ffffffffffffffffff02"),
        "entries exceeds 64 bits",
    );
    let meeting = format!("{} 00 01 05|0000000000", "a9".repeat(32));
    refused(
        "an address",
        &frame(22, &meeting),
        "address has 5 bytes, not 4 or 16",
    );
    refused(
        "words",
        &frame(1, "00 00 ff07"),
        "words has the count 1023, but only 0 bytes follow",
    );
    refused(
        "too many words",
        &frame(1, "00 00 81808008"),
        "words has the count 16777217, at most 16777216 are allowed",
    );
    refused(
        "a word",
        &frame(1, "00 00 01 ff07|61"),
        "words is truncated",
    );
    refused(
        "a long word",
        &frame(1, "00 00 01 81808020"),
        "words is 67108865 bytes long, at most 67108864 are allowed",
    );
    refused(
        "a long .cvsignore",
        &frame(1, "02 00 00 00 00 81808020"),
        ".cvsignore is 67108865 bytes long",
    );
    refused(
        "directories",
        &frame(3, "05 00"),
        "directories has the count 5, but only 1 bytes follow",
    );
    refused(
        "too many directories",
        &frame(3, "818004"),
        "directories has the count 65537",
    );
    refused(
        "children",
        &frame(3, "01 01 ffffff7f 00000000"),
        "children has the count 268435455, but only 4 bytes follow",
    );
    refused("a digest", &frame(3, "01 02 dddd"), "digest is truncated");
    refused(
        "a long line",
        &frame(17, "02 818010"),
        "note is 262145 bytes long, at most 262144 are allowed",
    );
    refused(
        "a long path",
        &frame(17, "07 818004"),
        "name is 65537 bytes long, at most 65536 are allowed",
    );
    refused(
        "problems",
        &dir("00 09"),
        "problems has the count 9, but only 0 bytes follow",
    );
    refused(
        "no subdirectories",
        &dir(&format!("01 6e 00 01|61 {SUB}")),
        "subdirectories is truncated",
    );
    refused(
        "data",
        &framed(11, &[0; 2 + 1 + 16 + WHOLE_MAX_BYTES + 1]),
        "data is 65537 bytes long, at most 65536 are allowed",
    );
    refused(
        "a piece of data",
        &framed(13, &[0; 1 + DATA_MAX_BYTES + 1]),
        "data has 262145 bytes, not 1 to 262144",
    );
    refused(
        "no data",
        &frame(13, "00"),
        "data has 0 bytes, not 1 to 262144",
    );
    let long = vec![0u8; 100];
    refused(
        "a long shown digest",
        &framed(
            17,
            &[
                &bytes("00 08 00 00 00 00 00 00 00 00 00|00000000 00 00 64")[..],
                &long,
            ]
            .concat(),
        ),
        "digest is 100 bytes long, at most 64 are allowed",
    );
}

#[test]
fn invalid_paths_are_rejected() {
    let dir_frame = |path: &str| frame(4, &format!("00 00 {path} 00 00 00 00 00 00"));
    decoded(&dir_frame("03|612f62")).unwrap();
    refused(
        "absolute",
        &dir_frame("02|2f61"),
        "path is an absolute path",
    );
    refused(
        "climbs",
        &dir_frame("04|612f2e2e"),
        "path climbs out of the tree (..)",
    );
    refused(
        "only climbs",
        &dir_frame("02|2e2e"),
        "path climbs out of the tree (..)",
    );
    refused(
        "an empty element",
        &dir_frame("04|612f2f62"),
        "path is not a normalized path",
    );
    refused(
        "a slash at the end",
        &dir_frame("02|612f"),
        "path is not a normalized path",
    );
    refused(
        "NUL",
        &dir_frame("02|6100"),
        "path is not a normalized path",
    );
    refused(
        "too long",
        &dir_frame("818004"),
        "path is 65537 bytes long, at most 65536 are allowed",
    );
    let roots = |body: &str| frame(2, body);
    refused(
        "missing",
        &roots("00 00 00 01 03|2e2e2f 00 00 00 00"),
        "missing climbs out of the tree",
    );
    refused(
        "whole",
        &roots("00 00 00 00 01 02|2f61 00 00 00"),
        "whole is an absolute path",
    );
    refused(
        "single",
        &roots("01 01 02|2e2e 00 00 00 00 00 00"),
        "single name climbs out of the tree",
    );
    refused(
        "no single",
        &roots("01 01 00 00 00 00 00 00 00"),
        "single name is empty",
    );
}

#[test]
fn invalid_entries_of_the_directory_itself_are_rejected() {
    let roots = |top: &str| frame(2, &format!("00 08 {top} 00 00 00 00 00 00"));
    decoded(&roots(&format!("01 6e 00 01|2e {SUB}"))).unwrap();
    refused("a missing top", &roots("00"), "directory itself is missing");
    refused(
        "a file as top",
        &roots(&format!("01 6e 00 01|2e {FILE}")),
        "name \".\" is . but not a directory",
    );
    refused(
        "another name",
        &roots(&format!("01 6e 00 01|61 {SUB}")),
        "name \"a\" is not . in the entry of the directory itself",
    );
    refused(
        "..",
        &roots(&format!("01 6e 00 02|2e2e {SUB}")),
        "is not . in the entry of the directory itself",
    );
    refused(
        "two",
        &roots(&format!("02 6e 00 01|2e {SUB} 6e 00 01|2e {SUB}")),
        "has the count 2, at most 1 are allowed",
    );
    refused(
        "a missing bare directory",
        &frame(2, "00 04"),
        "mark a missing directory as bare",
    );
}

#[test]
fn unknown_enum_numbers_and_bits_are_rejected() {
    refused(
        "lane",
        &frame(12, "00 00 03"),
        "invalid message Begin: lane has the unknown number 3",
    );
    refused(
        "wanted lane",
        &frame(7, "00 00 00 00"),
        "lane is a lane without requests",
    );
    refused(
        "basis",
        &frame(7, "00 00 01 04"),
        "basis has the unknown number 4",
    );
    refused(
        "class",
        &frame(18, "07 00"),
        "class has the unknown number 7",
    );
    refused(
        "exit",
        &frame(20, "06 00 00"),
        "exit has the unknown number 6",
    );
    refused(
        "success",
        &frame(20, "00 00 00"),
        "exit is the code of success",
    );
    refused(
        "role",
        &frame(20, "01 05 00"),
        "role has the unknown number 5",
    );
    refused(
        "weight",
        &frame(17, "03 04 00"),
        "weight of a problem has the unknown number 4",
    );
    refused("event", &frame(17, "0e"), "event has the unknown number 14");
    refused(
        "fact",
        &frame(17, "0d 01|61 0a"),
        "fact has the unknown number 10",
    );
    refused(
        "outcome",
        &frame(17, "0d 01|61 05 08"),
        "outcome has the unknown number 8",
    );
    refused(
        "place of a rule",
        &frame(17, "0d 01|61 00 00 00 00 03"),
        "place of a rule has the unknown number 3",
    );
    refused(
        "mode of a state",
        &frame(17, "0d 01|61 05 00 00 00 00 00"),
        "mode 0 is not one of an entry",
    );
    refused(
        "planned action",
        &frame(17, "0c 02|7b7d"),
        "planned action is not one of a plan",
    );
    refused(
        "kind of an entry",
        &frame(17, "01 05"),
        "kind has the unknown number 5",
    );
    refused(
        "update",
        &frame(17, "00 00 00 05"),
        "update has the unknown number 5",
    );
    refused(
        "changes",
        &frame(17, "00 00 00 00 8010"),
        "changes have unknown bits (0x0800)",
    );
    refused(
        "rule",
        &frame(1, "00 00 00 00 01 05"),
        "rule has the unknown number 5",
    );
    refused(
        "sides",
        &frame(1, "00 00 00 00 01 00 00 04"),
        "sides has the unknown number 4",
    );
    refused(
        "kind of an id",
        &frame(4, "00 00 00 00 01 02 0000 0000"),
        "kind of an id has unknown bits (0x02)",
    );
    refused(
        "merge format",
        &frame(1, "00 00 00 00 01 02 01 04"),
        "merge format has the unknown number 4",
    );
    refused(
        "directory",
        &frame(3, "01 04"),
        "directory has the unknown number 4",
    );
    refused(
        "directory flags",
        &frame(4, "20"),
        "directory flags has unknown bits (0x20)",
    );
    refused(
        "tally flags",
        &frame(21, "02"),
        "tally flags has unknown bits (0x02)",
    );
    refused(
        "subdirectory",
        &dir(&format!("01 6e 00 01|61 {SUB} 08")),
        "subdirectories has unknown bits (0x08)",
    );
}

#[test]
fn out_of_range_numbers_are_rejected() {
    refused(
        "entry",
        &frame(9, "00 8080808010"),
        "entry is 4294967296, which exceeds 32 bits",
    );
    refused(
        "not minimal",
        &frame(8, "8000"),
        "directory is not encoded in its shortest form",
    );
    refused("an empty range", &frame(14, "01 00 00"), "range is empty");
    refused(
        "a range beyond off_t",
        &frame(14, "01 ffffffffffffffff7f 01"),
        "range ends beyond FILE_MAX_BYTES",
    );
    refused(
        "a range that wraps",
        &frame(14, "01 ffffffffffffffffff01 02"),
        "range ends beyond FILE_MAX_BYTES",
    );
    refused(
        "a prefix beyond off_t",
        &frame(7, "00 00 01 02 80808080808080808001"),
        "prefix is 9223372036854775808",
    );
    refused(
        "a large directory",
        &frame(3, "01 03 818080808080 40"),
        "entries of a directory is 281474976710657",
    );
    refused(
        "a tally of entries",
        &frame(21, "00 818080808080 40"),
        "count of a kind is 281474976710657",
    );
    let sum = format!("00 {} 00 8180808080808080 04", "00".repeat(15));
    refused(
        "a tally of bytes",
        &frame(21, &sum),
        "count of bytes is 288230376151711745",
    );
    refused(
        "progress",
        &frame(17, "08 00 80808080808080808001"),
        "length is 9223372036854775808",
    );
    refused(
        "a umask",
        &frame(1, "00 00 00 00 00 00 8004"),
        "umask is 512, at most 511 are allowed",
    );
    refused(
        "a port",
        &frame(22, &format!("{} 808004 00", "00".repeat(32))),
        "port is 65536, at most 65535 are allowed",
    );
    refused(
        "a blocked class",
        &frame(23, "07"),
        "invalid message Blocked: class has the unknown number 7",
    );
    refused(
        "a verdict",
        &frame(24, "02"),
        "invalid message Verdict: verdict",
    );
    refused("totals", &frame(28, "02"), "invalid message Totals: totals");
    refused(
        "a digest",
        &frame(26, "00 00 02"),
        "invalid message FileDigest: digest",
    );
    refused(
        "a grant",
        &frame(18, "00 818080808020"),
        "bytes is 1099511627777, at most 1099511627776 are allowed",
    );
}

#[test]
fn malformed_frames_are_rejected() {
    refused(
        "unknown kind",
        &frame(29, ""),
        "unknown message kind 29: protocol version 1 is in use, 1 is the newest known",
    );
    refused("kind 0", &frame(0, ""), "unknown message kind 0");
    refused(
        "unknown kind, not complete",
        &[0xee],
        "unknown message kind 238",
    );
    refused(
        "length not minimal",
        &[19, 0x80, 0x00],
        "invalid message Ping: its length is not encoded in its shortest form",
    );
    refused(
        "length beyond 64 bits",
        &[&[4][..], &[0xff; 10]].concat(),
        "its length exceeds 64 bits",
    );
    let meet = |addresses: &str| frame(22, &format!("{} 00 {addresses}", "00".repeat(32)));
    refused(
        "an address of an unknown family",
        &meet("01 05|0000000000"),
        "invalid message Meet: address has 5 bytes, not 4 or 16",
    );
    refused(
        "an address that is too long",
        &meet("01 11|00000000"),
        "invalid message Meet: address is 17 bytes long",
    );
    let line = |path: &str| {
        let line = format!(
            r#"{{"type":"action","action":"create","path":"{path}","itemize":"","changes":0,"after":{{"kind":"dir","mode":"040755"}}}}"#
        );
        let mut body = vec![0, 1];
        put_varint(&mut body, line.len() as u64);
        body.extend_from_slice(line.as_bytes());
        framed(27, &body)
    };
    let accepted = Native::new(1).decode(&mut &line("d/e")[..]);
    assert!(
        matches!(accepted, Ok(Some(Message::Plan(_)))),
        "{accepted:?}"
    );
    for path in ["../x", "/x", "a//b", "a/../b", "", "./a"] {
        let words = "invalid message Plan: planned action is not one of a plan";
        refused(
            "a planned path that is not below the root",
            &line(path),
            words,
        );
    }
    refused(
        "many planned actions",
        &frame(27, "00 818004"),
        "invalid message Plan: planned actions has the count 65537",
    );
    refused(
        "more planned actions than the frame can have",
        &frame(27, "00 80 20 | 00"),
        "invalid message Plan: planned actions",
    );
    refused(
        "unknown flags of a plan",
        &frame(27, "04 00"),
        "invalid message Plan: flags of a plan",
    );
    refused(
        "many addresses",
        &meet("11"),
        "invalid message Meet: addresses has the count 17, at most 16 are allowed",
    );
    refused(
        "trailing bytes after a ping",
        &frame(19, "00"),
        "invalid message Ping: frame has 1 trailing bytes",
    );
    refused(
        "trailing bytes after a list",
        &dir(&format!("01 6e 00 01|61 {FILE} {NO_MORE} 00")),
        "has 1 trailing bytes",
    );
    refused(
        "an empty body",
        &frame(1, ""),
        "invalid message Setup: setup flags is truncated: the frame ends too early",
    );
}

#[test]
fn frames_longer_than_their_limit_are_rejected() {
    for (kind, max) in [
        (1, OPENING_MAX_BYTES),
        (2, OPENING_MAX_BYTES),
        (3, FRAME_MAX_BYTES),
        (4, FRAME_MAX_BYTES),
        (5, FRAME_MAX_BYTES),
        (7, FRAME_MAX_BYTES),
        (17, FRAME_MAX_BYTES),
        (19, SHORT_MAX_BYTES),
        (20, REPORT_MAX_BYTES),
        (200, FRAME_MAX_BYTES),
    ] {
        let head = |len: usize| {
            let mut head = vec![kind];
            put_varint(&mut head, len as u64);
            head
        };
        // The reader detects it before it waits for the body.
        assert!(Native::new(1).frame_len(&head(max)).unwrap().is_some());
        let error = Native::new(1).frame_len(&head(max + 1)).unwrap_err();
        record_error(&error);
        assert!(
            error.to_string().contains(&format!(
                "its length is {} bytes, at most {max} are allowed",
                max + 1
            )),
            "{error}"
        );
        if kind != 200 {
            assert!(Native::new(1).decode(&mut &head(max + 1)[..]).is_err());
        }
    }
}

#[test]
fn mismatched_directory_fragments_are_rejected() {
    let list = |names: &[(&str, u32)]| {
        let mut list = DirList::default();
        names.iter().for_each(|(name, mode)| {
            list.push(
                name.as_bytes(),
                &Stat {
                    mode: *mode,
                    ..Stat::default()
                },
            );
        });
        list
    };
    const FILE: u32 = 0o100000;
    let first = |names| {
        Message::Dir(Box::new(DirListing {
            list: list(names).into(),
            more: true,
            ..DirListing::default()
        }))
    };
    let more = |names, last| Message::More {
        list: list(names),
        subs: Vec::new(),
        problems: Vec::new(),
        notes: Vec::new(),
        last,
    };
    let fails = |messages: Vec<Message>, words: &str| {
        let mut joiner = Joiner::default();
        let mut results: Vec<_> = messages
            .into_iter()
            .map(|message| joiner.push(message))
            .collect();
        let error = results.pop().expect("a message was pushed").unwrap_err();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        record_error(&error);
        assert_eq!(error.exit, Exit::Protocol);
        assert!(error.to_string().contains(words), "{error}");
    };
    fails(
        vec![more(&[("a", FILE)], true)],
        "invalid message More: no directory to continue",
    );
    fails(
        vec![first(&[]), more(&[], true), more(&[], true)],
        "invalid message More: no directory to continue",
    );
    fails(
        vec![first(&[]), first(&[])],
        "invalid message Dir: it comes before the end of directory \"\"",
    );
    fails(
        vec![Message::Ping],
        "invalid message Ping: not part of a directory",
    );
    fails(
        vec![first(&[("b", FILE)]), more(&[("a", FILE)], true)],
        "More: its entries do not follow the previous ones",
    );
    fails(
        vec![first(&[("b", FILE)]), more(&[("b", FILE)], true)],
        "More: its entries do not follow the previous ones",
    );
    fails(
        vec![
            first(&[("b", FILE)]),
            more(&[], false),
            more(&[("a", FILE)], true),
        ],
        "its entries do not follow the previous ones",
    );
    fails(
        vec![first(&[("b", FILE)]), more(&[("b", 0o040000)], true)],
        "More: name \"b\" is duplicated",
    );
}

#[test]
fn encoder_rejects_messages_that_decoders_reject() {
    let says = |message: Message| {
        let mut out = b"before".to_vec();
        let error = Native::new(1).encode(&message, &mut out).unwrap_err();
        assert_eq!(out, b"before", "the partial encoding is removed");
        record_error(&error);
        assert_eq!(error.exit, Exit::Protocol);
        error.to_string()
    };
    let dir = |change: &dyn Fn(&mut DirListing)| {
        let mut listing = DirListing::default();
        change(&mut listing);
        says(Message::Dir(Box::new(listing)))
    };
    let names = |names: &[&[u8]]| {
        dir(&|listing| {
            names
                .iter()
                .for_each(|name| Arc::make_mut(&mut listing.list).push_name(name, false))
        })
    };
    assert!(names(&[b"b", b"a"]).contains("\"a\" is out of sort order"));
    assert!(names(&[b"a", b"a"]).contains("\"a\" is duplicated"));
    assert!(names(&[b"a/b"]).contains("contains a slash"));
    assert!(names(&[b".."]).contains("is not a valid entry name"));
    assert!(names(&[&[b'a'; NAME_MAX_BYTES + 1]]).contains("is longer than NAME_MAX_BYTES"));
    assert!(
        dir(&|listing| Arc::make_mut(&mut listing.list).push_name(b"d", true))
            .contains("subdirectories are 0 for 1 directories")
    );
    assert!(
        dir(&|listing| listing.subs = vec![SubdirFlags::default(); 2])
            .contains("subdirectories are 2 for 0 directories")
    );
    assert!(
        dir(&|listing| listing.itself.push_name(b"x", true))
            .contains("is not . in the entry of the directory itself")
    );
    assert!(
        dir(&|listing| {
            Arc::make_mut(&mut listing.list).push(b"x", &Stat::default());
        })
        .contains("mode 0 has no known file type")
    );
    let long = Stat {
        mode: 0o100644,
        len_bytes: FILE_MAX_BYTES + 1,
        ..Stat::default()
    };
    assert!(
        dir(&|listing| {
            Arc::make_mut(&mut listing.list).push(b"x", &long);
        })
        .contains("length is more than FILE_MAX_BYTES")
    );
    let many: Vec<String> = (0..=LIST_ENTRIES_MAX).map(|n| format!("{n:06}")).collect();
    let many: Vec<&[u8]> = many.iter().map(String::as_bytes).collect();
    assert!(names(&many).contains("entries are 65537, too many for one list"));
    assert!(
        dir(&|listing| listing.notes = vec![Vec::new(); LINES_MAX + 1])
            .contains("notes has the count 65537")
    );
    let file = FileId { dir: 0, entry: 0 };
    let whole = |len| Message::Whole {
        file,
        lane: Lane::Unrequested,
        data: vec![0; len],
        digest: [0; 20],
    };
    assert!(says(whole(WHOLE_MAX_BYTES + 1)).contains("data has 65537 bytes, not 0 to 65536"));
    encoded(&whole(WHOLE_MAX_BYTES));
    assert!(
        says(Message::Data {
            lane: Lane::Requested,
            data: Vec::new()
        })
        .contains("data has 0 bytes")
    );
    encoded(&Message::Data {
        lane: Lane::Requested,
        data: vec![0; DATA_MAX_BYTES],
    });
    let blocks = |len| Message::Want {
        file,
        lane: Lane::Requested,
        basis: Basis::Blocks(vec![0; len]),
    };
    assert!(says(blocks(BASIS_MAX_BYTES + 1)).contains("blocks has"));
    encoded(&blocks(BASIS_MAX_BYTES));
    assert!(
        says(Message::Want {
            file,
            lane: Lane::Unrequested,
            basis: Basis::None
        })
        .contains("a lane without requests")
    );
    let want = |basis| {
        says(Message::Want {
            file,
            lane: Lane::Requested,
            basis,
        })
    };
    let prefix = Basis::Prefix {
        len_bytes: FILE_MAX_BYTES + 1,
        digest: None,
    };
    assert!(want(prefix).contains("prefix is longer than FILE_MAX_BYTES"));
    let grant = Message::Grant {
        class: Class::Wants,
        bytes: GRANT_MAX_BYTES + 1,
    };
    assert!(says(grant).contains("bytes are more than GRANT_MAX_BYTES"));
    for largest in [
        Message::Want {
            file,
            lane: Lane::Requested,
            basis: Basis::Prefix {
                len_bytes: FILE_MAX_BYTES,
                digest: None,
            },
        },
        Message::Grant {
            class: Class::Wants,
            bytes: GRANT_MAX_BYTES,
        },
    ] {
        assert!(decoded(&encoded(&largest)).is_ok(), "{largest:?}");
    }
    let setup = Setup {
        words: vec![vec![0; WORD_MAX_BYTES + 1]],
        ..golden::setup()
    };
    assert!(says(Message::Setup(Box::new(setup))).contains("words is 67108865 bytes long"));
    assert!(
        says(Message::Digests(vec![
            DestDirState::Absent;
            DIGESTS_MAX + 1
        ]))
        .contains("directories has the count 65537")
    );
    let wide = DestDirState::Dir {
        digest: None,
        children: vec![0; FRAME_MAX_BYTES / 4],
    };
    assert!(says(Message::Digests(vec![wide])).contains("frame has"));
}

#[test]
fn oversized_entry_is_detected_before_encoding() {
    let with = |extra: Extra| {
        let mut entry = Entry::from_stat(&Stat {
            mode: 0o100644,
            ..Stat::default()
        });
        entry.extra = Some(Box::new(extra));
        let fault = unfit(&entry);
        fault.into_iter().for_each(record);
        fault
    };
    let target = |len| {
        with(Extra {
            target: Some(vec![b't'; len].into()),
            ..Extra::default()
        })
    };
    assert_eq!(target(TARGET_MAX_BYTES), None);
    assert_eq!(
        target(TARGET_MAX_BYTES + 1),
        Some("the value of the symlink is too long")
    );
    let acl = |len| {
        with(Extra {
            acl: Some(vec![0; len].into()),
            ..Extra::default()
        })
    };
    assert_eq!(acl(XATTR_MAX_BYTES), None);
    assert_eq!(acl(XATTR_MAX_BYTES + 1), Some("the ACL is too long"));
    let xattrs = |count: usize, len: usize| {
        let xattr = |at: usize| {
            (
                format!("user.{at:08}").into_bytes().into(),
                vec![0; len].into(),
            )
        };
        with(Extra {
            xattrs: Some(std::sync::Arc::new((0..count).map(xattr).collect())),
            ..Extra::default()
        })
    };
    assert_eq!(xattrs(3, XATTR_MAX_BYTES), None);
    assert!(xattrs(1, XATTR_MAX_BYTES + 1).is_some());
    assert!(xattrs(9, XATTR_MAX_BYTES).is_some());
    assert!(xattrs(XATTRS_MAX + 1, 0).is_some());
}

#[test]
fn tally_sums_are_clamped_to_their_limits() {
    let kinds = Kinds {
        files: u64::MAX,
        ..Kinds::default()
    };
    let tally = Tally {
        listed: kinds,
        total_bytes: u64::MAX,
        ..Tally::default()
    };
    let Message::Bye(tally) = decoded(&encoded(&Message::Bye(Box::new(tally)))).unwrap() else {
        panic!("it is one")
    };
    assert_eq!(
        (tally.listed.files, tally.total_bytes),
        (COUNT_MAX, TOTAL_MAX_BYTES)
    );
    // Sums of a few of them stay below 2^64.
    let mut sum = (*tally).clone();
    (0..3).for_each(|_| sum.merge(&tally));
    sum.traffic();
}

#[test]
fn long_lines_are_truncated() {
    let long = vec![b'x'; LINE_MAX_BYTES + 1];
    let fail = Message::Fail {
        exit: Exit::Stream,
        message: long,
        role: "sender",
    };
    let Message::Fail { message, .. } = decoded(&encoded(&fail)).unwrap() else {
        panic!("it is one")
    };
    assert_eq!(message.len(), LINE_MAX_BYTES);
}
