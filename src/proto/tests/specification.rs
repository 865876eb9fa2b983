//! Compares docs/PROTOCOL.md with the program: kinds, limits, windows, numbers, magic.

use crate::proto::enum_values::{Numbered, Role};
use crate::proto::greeting::MAGIC;
use crate::proto::limits::*;
use crate::proto::message_kinds::ROWS;
use crate::proto::{Class, Message, class_of};

const TEXT: &str = include_str!("../../../docs/PROTOCOL.md");

/// Returns the cells of the table row that begins with `first`.
fn row(first: &[&str]) -> Vec<&'static str> {
    let cells = |line: &'static str| {
        line.trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect::<Vec<_>>()
    };
    let mut rows = TEXT.lines().filter(|line| line.starts_with('|')).map(cells);
    rows.find(|cells| cells.starts_with(first))
        .unwrap_or_else(|| panic!("no row {first:?} in docs/PROTOCOL.md"))
}

#[test]
fn specification_lists_kinds_and_their_limits() {
    for kind in ROWS {
        let cells = row(&[&kind.number.to_string(), kind.name]);
        let longest = match cells[4] {
            "OPENING_MAX_BYTES" => OPENING_MAX_BYTES,
            "FRAME_MAX_BYTES" => FRAME_MAX_BYTES,
            "SHORT_MAX_BYTES" => SHORT_MAX_BYTES,
            "REPORT_MAX_BYTES" => REPORT_MAX_BYTES,
            "WHOLE_MAX_BYTES + 64" => WHOLE_MAX_BYTES + 64,
            "DATA_MAX_BYTES + 64" => DATA_MAX_BYTES + 64,
            other => panic!("{}: {other}", kind.name),
        };
        assert_eq!(longest, kind.max_bytes, "{}", kind.name);
    }
    let stated = TEXT.lines().filter(|line| line.starts_with("### "));
    let mut stated: Vec<&str> = stated.flat_map(|line| line[4..].split(", ")).collect();
    let mut kinds: Vec<&str> = ROWS.iter().map(|kind| kind.name).collect();
    stated.sort_unstable();
    kinds.sort_unstable();
    assert_eq!(stated, kinds, "each message has a section");
}

#[test]
fn specification_lists_windows() {
    for (class, window) in Class::ALL
        .into_iter()
        .zip(INITIAL_WINDOWS.into_iter().zip(WINDOWS_MAX))
    {
        row(&[
            &format!("{class:?}"),
            &window.0.to_string(),
            &window.1.to_string(),
        ]);
    }
    let mut messages = super::golden::table();
    messages.sort_by_key(|(name, ..)| name.len());
    for kind in ROWS {
        let (_, message, _) = messages
            .iter()
            .find(|(name, ..)| name.starts_with(kind.name))
            .expect("every kind has a golden message");
        let stated = row(&[&kind.number.to_string(), kind.name])[3];
        let is_data = (11..=16).contains(&kind.number);
        match class_of(message) {
            Some(Class::Unrequested | Class::Requested | Class::Again) if is_data => {
                assert_eq!(stated, "its lane")
            }
            Some(class) => assert_eq!(stated, format!("{class:?}"), "{}", kind.name),
            None => assert_eq!(stated, "", "{}", kind.name),
        }
    }
}

#[test]
fn specification_lists_limits() {
    for (name, value) in [
        ("FILE_MAX_BYTES", FILE_MAX_BYTES),
        ("GRANT_MAX_BYTES", GRANT_MAX_BYTES),
        ("COUNT_MAX", COUNT_MAX),
        ("TOTAL_MAX_BYTES", TOTAL_MAX_BYTES),
    ] {
        row(&[name, &value.to_string()]);
    }
    for (name, value) in [
        ("FRAME_MAX_BYTES", FRAME_MAX_BYTES),
        ("OPENING_MAX_BYTES", OPENING_MAX_BYTES),
        ("REPORT_MAX_BYTES", REPORT_MAX_BYTES),
        ("SHORT_MAX_BYTES", SHORT_MAX_BYTES),
        ("LIST_FRAME_BYTES", LIST_FRAME_BYTES),
        ("LIST_ENTRIES_MAX", LIST_ENTRIES_MAX),
        ("DIR_ENTRIES_MAX", DIR_ENTRIES_MAX),
        ("DIGESTS_MAX", DIGESTS_MAX),
        ("LINES_MAX", LINES_MAX),
        ("IDS_MAX", IDS_MAX),
        ("PLAN_PIECE_BYTES", PLAN_PIECE_BYTES),
        ("PLANNED_MAX_BYTES", PLANNED_MAX_BYTES),
        ("PLAN_ACTIONS_MAX", PLAN_ACTIONS_MAX),
        ("PLAN_MAX_BYTES", PLAN_MAX_BYTES),
        ("DATA_MAX_BYTES", DATA_MAX_BYTES),
        ("WHOLE_MAX_BYTES", WHOLE_MAX_BYTES),
        ("NAME_MAX_BYTES", NAME_MAX_BYTES),
        ("GUESS_MAX_BYTES", GUESS_MAX_BYTES),
        ("PATH_MAX_BYTES", PATH_MAX_BYTES),
        ("TARGET_MAX_BYTES", TARGET_MAX_BYTES),
        ("XATTRS_MAX", XATTRS_MAX),
        ("XATTR_MAX_BYTES", XATTR_MAX_BYTES),
        ("LINE_MAX_BYTES", LINE_MAX_BYTES),
        ("WORDS_MAX", WORDS_MAX),
        ("WORD_MAX_BYTES", WORD_MAX_BYTES),
        ("CVS_MAX_BYTES", CVS_MAX_BYTES),
        ("BASIS_MAX_BYTES", BASIS_MAX_BYTES),
        ("GREETING_MAX_BYTES", GREETING_MAX_BYTES),
        ("PROGRAM_MAX_BYTES", PROGRAM_MAX_BYTES),
        ("UMASK_MAX", UMASK_MAX as usize),
        ("NOISE_MAX_BYTES", NOISE_MAX_BYTES),
        ("ADDRESSES_MAX", ADDRESSES_MAX),
    ] {
        row(&[name, &value.to_string()]);
    }
    // This also covers limits that are added later.
    let limits = include_str!("../limits.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "));
    for name in limits
        .filter_map(|line| line.split(':').next())
        .filter(|name| *name != "ROLES")
    {
        assert!(TEXT.contains(name), "docs/PROTOCOL.md does not name {name}");
    }
}

#[test]
fn specification_lists_numbers_and_magic() {
    let classes: Vec<String> = Class::ALL
        .into_iter()
        .map(|class| format!("{} {class:?}", class.number()))
        .collect();
    row(&["class", &classes.join(", ")]);
    let roles: Vec<String> = ROLES
        .iter()
        .map(|role| format!("{} {role}", Role(role).number()))
        .collect();
    row(&["role", &roles.join(", ")]);
    let magic: Vec<String> = MAGIC.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(TEXT.contains(&format!("`{}`", magic.join(" "))));
    // The table has no kinds besides those of the program.
    let is_row = |line: &&str| line.starts_with('|') && line.split('|').count() == 7;
    assert_eq!(
        TEXT.lines().filter(is_row).count(),
        ROWS.len() + 2,
        "a head and a rule, and one row for each kind"
    );
    assert!(class_of(&Message::Ping).is_none());
}
