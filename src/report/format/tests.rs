//! Tests of the formats, and entries for the tests of other reports.

use super::*;
use crate::flist::Time;
use crate::plan::changes::Changes;
use crate::report::event::Update;
use jiff::tz::TimeZone;
use proptest::prelude::*;

/// Returns a new file of 1,234,567 bytes.
pub fn item(name: &str) -> Item {
    Item {
        name: name.into(),
        sender_path: format!("s/{name}").into(),
        kind: Kind::File,
        update: Update::Received,
        changes: Changes::NEW,
        target: None,
        source_target: None,
        linked_to: None,
        mode: 0o100644,
        uid: 12,
        gid: 34,
        mtime: Time {
            secs: 1_580_702_706,
            nanos: 0,
        },
        atime: None,
        len_bytes: 1_234_567,
        moved_bytes: 1_234_758,
        sums_bytes: 0,
        digest: None,
        transfer: true,
        file: None,
    }
}

pub fn link(name: &str) -> Item {
    Item {
        kind: Kind::Symlink,
        update: Update::Local,
        target: Some(b"tgt".into()),
        mode: 0o120777,
        len_bytes: 3,
        moved_bytes: 0,
        transfer: false,
        file: None,
        ..item(name)
    }
}

pub const CONSTANTS: Constants = Constants {
    pid: 3240,
    sends: true,
    keeps_owner: true,
    keeps_group: true,
    dry_run: false,
    shows_sums: true,
    sum: Checksum::Xxh128,
    dest_dir: Vec::new(),
    rooted: Vec::new(),
};

fn line(format: &str, shown: &Shown<'_>) -> String {
    let mut out = Vec::new();
    Format::parse(format.as_bytes()).put(&mut out, shown, &mut LocalTimes::new(TimeZone::UTC));
    String::from_utf8(out).expect("UTF-8")
}

fn of(format: &str, item: &Item) -> String {
    line(format, &Shown::item(item, &CONSTANTS, 1_795_222_800))
}

#[test]
fn file_escapes_match_rsync() {
    let digest = Some(vec![
        0xa7, 0xf9, 0xb5, 0xf4, 0x05, 0x94, 0xe4, 0x97, 0x80, 0x3f, 0xdd, 0x24, 0x5c, 0x4b, 0x14,
        0x70,
    ]);
    let big = Item {
        digest,
        ..item("big.bin")
    };
    assert_eq!(
        of("%o|%i|%n|%L|%l|%b|%c|%M|%B|%U|%G|%f|%t|%C|%m|%p|%%", &big),
        "send|>f+++++++++|big.bin||1234567|1234758|16|2020/02/03-04:05:06|rw-r--r--|12|34|s/big.bin|\
         2026/11/21 01:00:00|a7f9b5f40594e497803fdd245c4b1470||3240|%"
    );
}

#[test]
fn deletion_escapes_match_rsync() {
    let constants = CONSTANTS;
    let shown = Shown::deleted(b"xd", Kind::Dir, &constants, 0);
    assert_eq!(
        line("%i|%n|%L|%o|%l|%M|%B|%U|%G|%b|%C|%f|%c|%p", &shown),
        "*deleting  |xd/||del.|0|1970/01/01-00:00:00|---------|0|0|0|                                |xd|0|3240"
    );
}

#[test]
fn widths_and_alignment_match_rsync() {
    let g = Item {
        name: b"dd".into(),
        kind: Kind::Dir,
        len_bytes: 40,
        ..item("")
    };
    assert_eq!(
        of("[%20l][%-20l][%20n][%-20n]", &g),
        "[                  40][40                  ][                 dd/][dd/                 ]"
    );
    let file = item("big");
    assert_eq!(
        of("[%012l][%3l][%3n][%-l]", &file),
        "[     1234567][1234567][big][1234567]"
    );
    assert_eq!(
        of("%30i|%-30i|", &file),
        "                   >f+++++++++|>f+++++++++                   |"
    );
    assert_eq!(
        of("%13B|%-13B|%8U|%-8G|%8o|%-8o", &file),
        "    rw-r--r--|rw-r--r--    |      12|34      |    send|send    "
    );
    assert_eq!(of("%99999l", &file).len(), 4095);
    assert_eq!(of("%9999999999999999999999l", &file).len(), 4095);
}

#[test]
fn link_width_applies_to_the_target() {
    assert_eq!(
        of("%5L|%-15L|%15L|%L", &item("a")),
        "         |                   |                   |"
    );
    assert_eq!(
        of("%5L|%-15L|%15L|%L", &link("l")),
        " ->   tgt| -> tgt            | ->             tgt| -> tgt"
    );
    let linked = Item {
        linked_to: Some(b"g".into()),
        ..item("f")
    };
    assert_eq!(
        of("%5L|%-15L|%15L", &linked),
        " =>     g| => g              | =>               g"
    );
}

#[test]
fn quotes_select_number_grouping() {
    let big = item("big");
    assert_eq!(
        of("[%'l][%''l][%'''l][%''''l][%12'l][", &big),
        "[1,234,567][1.23M][1.18M][1.18M][   1,234,567]["
    );
    assert_eq!(
        of("[%'12l][%''12l][%-''12l][%-'12l]", &big),
        "[   1,234,567][       1.23M][%-''12l][%-'12l]"
    );
    assert_eq!(
        of("[%12''l][%'-12l][%-12'l][%12'-l]", &big),
        "[       1.23M][1,234,567   ][1,234,567   ][%12'-l]"
    );
    assert_eq!(
        of("[%'p][%'b][%12'U]", &big),
        "[3240][1,234,758][          12]"
    );
}

#[test]
fn unknown_escapes_are_printed_as_text() {
    let a = item("a");
    for text in [
        "%z", "%5z", "%q", "[%", "abc %", "abc%5", "%\\n\\tX", "%a", "%h", "%u", "%P", "%-'12l",
    ] {
        assert_eq!(of(text, &a), text);
    }
    assert_eq!(of("[%5%][%5'%]%%n", &a), "[    %][    %]%n");
    assert_eq!(of("[%m]", &a), "[]");
}

#[test]
fn missing_digests_print_as_blanks_or_zeros() {
    let blank = " ".repeat(32);
    assert_eq!(
        of("%C|%40C|%-40C", &link("l")),
        format!("{blank}|{blank}|{blank}")
    );
    let dry = Constants {
        dry_run: true,
        ..CONSTANTS
    };
    let shown = item("a");
    assert_eq!(
        line("%C %c", &Shown::item(&shown, &dry, 0)),
        format!("{} 0", "0".repeat(32))
    );
    let file = Item {
        digest: Some(vec![0x62; 16]),
        ..item("f")
    };
    assert_eq!(
        of("%40C|%-40C|", &file),
        format!("        {0}|{0}        |", "62".repeat(16))
    );
}

#[test]
fn paths_from_the_root_keep_their_leading_slash() {
    let rooted = |paths: &[&str]| {
        let rooted = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let constants = Constants {
            rooted,
            ..CONSTANTS
        };
        ["w", "w/x", "w/x/f", "w/xy", "v", "."]
            .map(|name| {
                line(
                    "%n %f",
                    &Shown::item(
                        &Item {
                            sender_path: Vec::new(),
                            ..item(name)
                        },
                        &constants,
                        0,
                    ),
                )
            })
            .map(|line| line.trim_end().to_owned())
    };
    assert_eq!(rooted(&[]), ["w", "w/x", "w/x/f", "w/xy", "v", "."]);
    assert_eq!(rooted(&["w/x"]), ["/w", "/w/x", "/w/x/f", "w/xy", "v", "."]);
    assert_eq!(
        rooted(&["v", "w/xy"]),
        ["/w", "w/x", "w/x/f", "/w/xy", "/v", "."]
    );
    assert_eq!(rooted(&[""]), ["/w", "/w/x", "/w/x/f", "/w/xy", "/v", "/."]);
    let constants = Constants {
        rooted: vec![b"xd".to_vec()],
        ..CONSTANTS
    };
    assert_eq!(
        line("%n", &Shown::deleted(b"xd", Kind::Dir, &constants, 0)),
        "xd/"
    );
}

#[test]
fn owners_that_are_not_preserved_print_defaults() {
    let none = Constants {
        keeps_owner: false,
        keeps_group: false,
        ..CONSTANTS
    };
    assert_eq!(
        line("%G %U", &Shown::item(&item("f"), &none, 0)),
        "DEFAULT 0"
    );
    assert_eq!(
        line("%G %U", &Shown::deleted(b"x", Kind::File, &none, 0)),
        "DEFAULT 0"
    );
}

#[test]
fn format_reports_which_data_it_needs() {
    let format = |text: &str| Format::parse(text.as_bytes());
    assert!(format("%n %b").needs_after_transfer() && format("%10C").needs_after_transfer());
    assert!(!format("%i %n%L").needs_after_transfer() && !format("%%b").needs_after_transfer());
    assert!(format("%30i").has_itemize() && !format("%%i%n").has_itemize());
    assert!(!format("%5-i").has_itemize() && format("%-5o").has_operation());
    assert!(format("%o").has_deletion() && !format("%n").has_deletion());
    assert!(format("").is_empty() && format("%C").has_digest());
}

proptest! {
    #[test]
    fn format_does_not_panic_on_any_text(text: Vec<u8>, letters in "(%'?-?[0-9]{0,3}'?[a-zA-Z%]|x){0,9}", name: Vec<u8>) {
        let shown = Item { name, ..link("l") };
        let mut times = LocalTimes::new(TimeZone::UTC);
        for text in [text.as_slice(), letters.as_bytes()] {
            let format = Format::parse(text);
            format.put(&mut Vec::new(), &Shown::item(&shown, &CONSTANTS, 0), &mut times);
            format.put(&mut Vec::new(), &Shown::deleted(&shown.name, Kind::Dir, &CONSTANTS, 0), &mut times);
        }
    }

    #[test]
    fn text_without_percent_is_printed_unchanged(text in "[^%]*") {
        prop_assert_eq!(of(&text, &item("a")), text);
    }
}
