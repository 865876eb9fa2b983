//! Tests: the encoding of entries at each version of the protocol.

use super::*;
use crate::proto::rsync::limits::PATH_MAX_BYTES;

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const FIFO: u32 = 0o010_644;
const DEVICE: u32 = 0o020_600;

fn of_protocol(protocol: u8) -> ListOptions {
    ListOptions {
        protocol,
        ..ListOptions::default()
    }
}

fn encoded(options: ListOptions, entries: &[FileEntry]) -> Vec<u8> {
    let mut encoder = ListEncoder::new(options);
    let mut out = Vec::new();
    for entry in entries {
        encoder.entry(entry, &mut out);
    }
    out
}

fn decoded(options: ListOptions, entries: &[FileEntry]) -> Vec<FileEntry> {
    let bytes = encoded(options, entries);
    let mut input = &bytes[..];
    let mut decoder = ListDecoder::new(options);
    let mut decoded = Vec::new();
    while !input.is_empty() {
        match decoder.next(&mut input).unwrap() {
            ListItem::Entry(entry) => decoded.push(*entry),
            end => panic!("{end:?}"),
        }
    }
    decoded
}

#[test]
fn names_are_in_the_entries_of_incremental_lists() {
    for (protocol, compat, numeric_ids, is_inline) in [
        (29, CompatFlags::INC_RECURSE, false, false),
        (30, CompatFlags::INC_RECURSE, false, true),
        (30, CompatFlags::INC_RECURSE, true, false),
        (30, CompatFlags::default(), false, false),
    ] {
        let options = ListOptions {
            compat,
            numeric_ids,
            ..of_protocol(protocol)
        };
        assert_eq!(options.has_inline_names(), is_inline, "{options:?}");
    }
}

#[test]
fn every_entry_has_a_digest_before_protocol_28() {
    for (protocol, kind, expected) in [
        (27, Kind::Dir, 16),
        (28, Kind::Dir, 0),
        (28, Kind::File, 16),
    ] {
        let options = ListOptions {
            digest_len_bytes: 16,
            ..of_protocol(protocol)
        };
        assert_eq!(options.digest_len(kind), expected, "{protocol} {kind:?}");
    }
}

#[test]
fn links_are_not_sent_where_they_are_not_kept() {
    let with_link = |hard_link| FileEntry {
        hard_link,
        ..FileEntry::new("a", FILE)
    };
    let inode = HardLink::Inode { dev: 1, inode: 2 };
    for (hard_links, protocol, link) in [
        (false, 32, HardLink::First),
        (false, 32, HardLink::Member(0)),
        (true, 29, HardLink::Member(0)),
        (true, 32, inode),
    ] {
        let options = ListOptions {
            hard_links,
            ..of_protocol(protocol)
        };
        let plain = encoded(options, &[with_link(HardLink::None)]);
        assert_eq!(encoded(options, &[with_link(link)]), plain, "{link:?}");
    }
}

#[test]
fn name_of_an_owner_comes_with_the_first_link_only() {
    let options = ListOptions {
        compat: CompatFlags::INC_RECURSE,
        owners: true,
        groups: true,
        hard_links: true,
        ..of_protocol(32)
    };
    let entry = |path, hard_link| FileEntry {
        uid: 7,
        gid: 8,
        user: Some(b"user".to_vec()),
        group: Some(b"group".to_vec()),
        hard_link,
        ..FileEntry::new(path, FILE)
    };
    let entries = [entry("a", HardLink::First), entry("b", HardLink::Member(1))];
    let found = decoded(options, &entries);
    assert_eq!(found[0], entries[0]);
    let unnamed = FileEntry {
        user: None,
        group: None,
        ..entries[1].clone()
    };
    assert_eq!(found[1], unnamed);
}

#[test]
fn access_time_is_always_sent_at_protocol_27() {
    for protocol in [27, 28] {
        let options = ListOptions {
            atimes: true,
            ..of_protocol(protocol)
        };
        let entry = |path| FileEntry {
            atime: 9,
            ..FileEntry::new(path, FILE)
        };
        let entries = [entry("a"), entry("b")];
        assert_eq!(decoded(options, &entries), entries, "{protocol}");
    }
}

#[test]
fn specials_have_no_number_at_protocol_27() {
    let with = |specials| {
        let options = ListOptions {
            specials,
            ..of_protocol(27)
        };
        let fifo = FileEntry {
            rdev: (3, 4),
            ..FileEntry::new("a", FIFO)
        };
        encoded(options, &[fifo]).len()
    };
    assert_eq!(with(true), with(false));
}

#[test]
fn file_without_a_digest_has_zeros() {
    let options = ListOptions {
        digest_len_bytes: 16,
        ..of_protocol(32)
    };
    let file = FileEntry::new("a", FILE);
    let bytes = encoded(options, std::slice::from_ref(&file));
    assert!(bytes.ends_with(&[0; 16]));
    assert_eq!(decoded(options, &[file])[0].digest, [0; 16]);
}

/// The shared part counts too.
#[test]
fn path_is_as_long_as_allowed() {
    let path = |len| [b"x".repeat(255), b"/y".repeat((len - 255) / 2)].concat();
    for (len, is_valid) in [(PATH_MAX_BYTES, true), (PATH_MAX_BYTES + 2, false)] {
        let options = of_protocol(32);
        let entries = [path(255), path(len)].map(|path| FileEntry::new(path, FILE));
        let bytes = encoded(options, &entries);
        let mut input = &bytes[..];
        let mut decoder = ListDecoder::new(options);
        decoder.next(&mut input).unwrap();
        assert_eq!(decoder.next(&mut input).is_ok(), is_valid, "{len}");
    }
}

#[test]
fn major_number_is_sent_if_it_changes() {
    let options = ListOptions {
        devices: true,
        ..of_protocol(32)
    };
    let device = |major| FileEntry {
        rdev: (major, 7),
        ..FileEntry::new("a", DEVICE)
    };
    let len = |majors: [u32; 2]| encoded(options, &majors.map(device)).len();
    // A number of three bytes, or a flag in one.
    assert_eq!(len([70_001, 70_000]) - len([70_000, 70_000]), 2);
}

#[test]
fn small_minor_numbers_take_one_byte_before_protocol_30() {
    let options = ListOptions {
        devices: true,
        ..of_protocol(29)
    };
    let device = |minor| FileEntry {
        rdev: (1, minor),
        ..FileEntry::new("a", DEVICE)
    };
    let len = |minor| encoded(options, &[device(minor)]).len();
    // The flag of the short form takes another one.
    assert_eq!(len(256) - len(255), 2);
    assert_eq!(decoded(options, &[device(255)]), [device(255)]);
    assert_eq!(decoded(options, &[device(256)]), [device(256)]);
}

#[test]
fn device_numbers_are_compared_with_those_that_were_sent() {
    let device = |path, rdev| FileEntry {
        rdev,
        ..FileEntry::new(path, DEVICE)
    };
    let entries = [
        device("a", (1, 5)),
        FileEntry::new("b", FILE),
        device("c", (0, 0)),
    ];
    let options = ListOptions {
        devices: true,
        ..of_protocol(27)
    };
    assert_eq!(decoded(options, &entries), entries);

    // The fields of a further link count, too, although they are not sent.
    let link = |entry: FileEntry, hard_link| FileEntry { hard_link, ..entry };
    let entries = [
        link(device("a", (3, 1)), HardLink::First),
        device("b", (4, 1)),
        link(device("c", (3, 1)), HardLink::Member(0)),
        device("d", (3, 2)),
        link(FileEntry::new("e", FILE), HardLink::First),
        link(FileEntry::new("f", FILE), HardLink::Member(4)),
        device("g", (3, 3)),
    ];
    let options = ListOptions {
        hard_links: true,
        ..options
    };
    let options = ListOptions {
        protocol: 32,
        ..options
    };
    assert_eq!(decoded(options, &entries), entries);
}

#[test]
fn symlinks_have_a_target_without_nul() {
    let options = ListOptions {
        links: true,
        ..of_protocol(32)
    };
    for (target, is_valid) in [("a", true), ("", false), ("a\0", false)] {
        let link = FileEntry {
            target: target.into(),
            ..FileEntry::new("a", 0o120_777)
        };
        let bytes = encoded(options, &[link]);
        let found = ListDecoder::new(options).next(&mut &bytes[..]);
        assert_eq!(found.is_ok(), is_valid, "{target:?}");
    }
}

#[test]
fn long_names_have_a_longer_length() {
    let len = |name_len: usize| {
        let entry = FileEntry::new(vec![b'a'; name_len], FILE);
        encoded(of_protocol(32), &[entry]).len()
    };
    assert_eq!(len(255) - len(254), 1);
    assert_eq!(len(256) - len(255), 2);
}

#[test]
fn directory_without_flags_is_not_the_end() {
    for protocol in [27, 28, 30] {
        let options = ListOptions {
            owners: true,
            groups: true,
            ..of_protocol(protocol)
        };
        let dir = FileEntry {
            uid: 5,
            gid: 6,
            mtime: 7,
            ..FileEntry::new("d", DIR)
        };
        let entries = std::slice::from_ref(&dir);
        assert_eq!(decoded(options, entries), entries, "{protocol}");
    }
}
