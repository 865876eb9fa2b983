//! Golden bytes for every kind of message, worked out by hand from docs/PROTOCOL.md.
//!
//! These bytes never change within a protocol version. A change to one of them needs a new version.

use super::{encoded, same};
use crate::exit::Exit;
use crate::filter::{Cvs, FoundRule, Merge, MergeFormat, Parsed, Rule, RulePlace, Side, Sides};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Extra, Inode, Kind, Time};
use crate::path::RelPath;
use crate::plan::explained::{DecidedFact, DecidedOutcome, Explained, Fact, Fate};
use crate::plan::planned::{EntryState, PlannedAct, PlannedAction};
use crate::plan::{Changes, InTheWay, Reason};
use crate::proto::message::ContentDigest;
use crate::proto::{
    Basis, Class, DestDirState, DirListing, FileId, Greeting, IdName, Lane, Meeting, Message,
    PlanPiece, Roots, Setup, SubdirFlags, decode_greeting, encode_greeting,
};
use crate::report::Tally;
use crate::report::event::{Event, Item, Problem, ReusedBy, Update, Wants, Weight};
use crate::report::progress::{EntryCounts, ListTotal, SourceTotals};
use crate::report::tally::Kinds;
use std::sync::Arc;

const DIGEST: ContentDigest = {
    let mut digest = [0xd1; 20];
    let mut at = 16;
    while at < digest.len() {
        digest[at] = 0;
        at += 1;
    }
    digest
};
const FILE: FileId = FileId { dir: 3, entry: 300 };

/// Parses hexadecimal digits; spaces, bars and newlines only help the reader.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    assert!(
        hex.bytes()
            .all(|b| b.is_ascii_hexdigit() || b.is_ascii_whitespace() || b == b'|'),
        "{hex}"
    );
    digits
        .chunks(2)
        .map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

fn stat(mode: u32, secs: i64, nanos: u32, len_bytes: u64) -> Stat {
    Stat {
        mode,
        uid: 1000,
        gid: 1000,
        mtime: Time { secs, nanos },
        len_bytes,
        ..Stat::default()
    }
}

/// Two files, and a directory with an attribute.
fn list() -> DirList {
    let mut list = DirList::default();
    list.push(b"a", &stat(0o100644, 1_700_000_000, 0, 5));
    list.push(b"ab", &stat(0o100644, 1_700_000_000, 7, 300));
    let dir = list.push(b"d", &stat(0o040755, 1_700_000_000, 7, 4096));
    dir.extra_mut().xattrs = Some(Arc::new(vec![(b"user.a"[..].into(), b"1"[..].into())]));
    list
}

const LIST: &str = "03
    40 00 01|61 a48302 e807 e807 80c49fd50c 05
    57 01 01|62 00 07000000 ac02
    ce 00 01|64 ed8301 8020 20 00 01 06|757365722e61 01|31";

fn itself() -> DirList {
    let mut list = DirList::default();
    list.push(b".", &stat(0o040755, -1, 0, 4096));
    list
}

const ITSELF: &str = "01 40 00 01|2e ed8301 e807 e807 01 8020";

/// One entry of every other kind, with every optional field.
fn rare() -> DirList {
    let mut list = DirList::default();
    list.push(b"l", &stat(0o120777, 0, 0, 1)).extra_mut().target = Some(b"t"[..].into());
    let fifo = list.push(b"p", &stat(0o010600, 0, 0, 0));
    fifo.origin = 2;
    fifo.inode = Some(Box::new(Inode {
        dev: 1,
        ino: 2,
        nlink: 3,
    }));
    fifo.extra = Some(Box::new(Extra {
        ctime: None,
        target: None,
        rdev: 0x0103,
        atime: Some(Time { secs: 1, nanos: 2 }),
        xattrs: None,
        acl: Some(b"A"[..].into()),
        default_acl: Some(b""[..].into()),
        digest: Some(crate::digest::padded(&[0xd9; 16])),
        is_mount_point: true,
        source_ids: None,
        source_target: None,
        takes_content: false,
        has_abbreviated: false,
        is_unsettled: false,
    }));
    list
}

const RARE: &str = "02
    c8 00 01|6c ffc302 e807 e807 01 01 00 01|74
    8e 00 01|70 8023 00 02 de 03 8302 01 02 03 02|02000000 01|41 00 d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9";

fn tally() -> Box<Tally> {
    let kinds = |n| Kinds {
        files: n,
        dirs: n + 1,
        symlinks: n + 2,
        devices: n + 3,
        specials: n + 4,
    };
    Box::new(Tally {
        listed: kinds(1),
        created: kinds(6),
        absent: Kinds::default(),
        deleted: kinds(11),
        transferred: 16,
        unsent: 0,
        unsent_bytes: 0,
        total_bytes: 300,
        transferred_bytes: 18,
        literal_bytes: 19,
        matched_bytes: 20,
        name_bytes: 21,
        list_generation_ms: 22,
        list_transfer_ms: 23,
        source_errors: 24,
        failed: 0,
        failed_at_peer: 25,
        vanished: 26,
        delete_limit_reached: true,
    })
}

const TALLY: &str = "01 0102030405 060708090a 0b0c0d0e0f 10 ac02 12 13 14 15 16 17 18 19 1a";

fn problem() -> Problem {
    Problem {
        line: b"oh".to_vec(),
        weight: Weight::Vanished,
        is_of_peer: true,
    }
}

fn path(path: &str) -> RelPath {
    RelPath::parse(path.as_bytes()).unwrap()
}

pub fn setup() -> Setup {
    let rules = vec![
        Parsed::Rule(Rule {
            perishable: true,
            pattern: b"*.o".as_slice().into(),
            ..Rule::default()
        }),
        Parsed::Clear,
        Parsed::Merge(Box::new(Merge {
            name: b".r".to_vec(),
            per_dir: true,
            format: MergeFormat::Excludes,
            sides: Sides::Sender,
            named_at: Some(b"f line 3".to_vec()),
            ..Merge::default()
        })),
        Parsed::Cvs(Cvs {
            include: true,
            sides: Sides::Both,
            ..Cvs::default()
        }),
        Parsed::Nothing,
    ];
    Setup {
        server_sends: true,
        words: vec![b"-a".to_vec(), b"x".to_vec()],
        remote_words: vec![b"--b".to_vec()],
        rules: rules.into(),
        cvs_home: Some(b"*.a".to_vec()),
        cvs_env: None,
        listed: Some(vec![b"d/f".to_vec()]),
        operands: vec![b"dst".to_vec()],
        wants: Wants {
            items: true,
            progress: true,
            ..Wants::default()
        },
        profile: false,
        umask: 0o077,
    }
}

fn listing() -> DirListing {
    let subs = vec![SubdirFlags {
        is_walked: true,
        ..SubdirFlags::default()
    }];
    let ids = vec![IdName {
        is_group: true,
        id: 1000,
        name: b"us".to_vec(),
    }];
    DirListing {
        id: 3,
        path: path("x/y"),
        itself: itself(),
        list: list().into(),
        subs,
        may_delete: true,
        is_named: false,
        with_data: true,
        more: false,
        problems: vec![problem()],
        notes: vec![b"n".to_vec()],
        ids,
        shown: vec![b"/s".to_vec()],
        renamed_from: Some(b"old".to_vec()),
    }
}

fn item() -> Item {
    Item {
        name: b"a".to_vec(),
        sender_path: b"s/a".to_vec(),
        kind: Kind::Symlink,
        update: Update::Local,
        changes: Changes::NEW | Changes::TIME,
        target: Some(b"t".to_vec()),
        linked_to: Some(b"b".to_vec()),
        source_target: None,
        mode: 0o120777,
        uid: 0,
        gid: 1000,
        mtime: Time {
            secs: -1,
            nanos: 999_999_999,
        },
        atime: Some(Time { secs: 1, nanos: 0 }),
        len_bytes: 1,
        moved_bytes: 0,
        sums_bytes: 0,
        digest: Some(vec![0xaa, 0xbb]),
        transfer: true,
        file: None,
    }
}

/// Each kind of message at least once, with its frame.
pub fn table() -> Vec<(&'static str, Message, String)> {
    let roots = Roots {
        found: 1,
        single: Some(b"a/f".to_vec()),
        lone_dir_is_bare: Some(true),
        top: Some(itself()),
        top_shown: b"src".to_vec(),
        missing: vec![path("m")],
        whole: vec![path(""), path("d/e")],
        problems: vec![problem()],
        notes: vec![b"n".to_vec()],
        ids: Vec::new(),
    };
    let seen = vec![
        DestDirState::Dir {
            digest: Some([0xdd; 12]),
            children: vec![1, 0xdeadbeef],
        },
        DestDirState::Absent,
        DestDirState::Large(20_000),
        DestDirState::Dir {
            digest: None,
            children: Vec::new(),
        },
    ];
    let digest = "d1d1d1d1 d1d1d1d1 d1d1d1d1 d1d1d1d1";
    let with_list = |before: &str, list: &str, after: &str| format!("{before} {list} {after}");
    let mut rows: Vec<(&'static str, Message, String)> = vec![
        (
            "Setup",
            Message::Setup(Box::new(setup())),
            "01 39 | 0b 09 | 02 02|2d61 01|78 | 01 03|2d2d62 | 05 00 08 00 03|2a2e6f 01
             02 81 01 01 02|2e72 08|66206c696e652033 03 01 03 04 | 03|2a2e61 | 01 03|642f66 | 01 03|647374 | 3f"
                .into(),
        ),
        (
            "Roots",
            Message::Roots(Box::new(roots)),
            with_list(
                "02 2b | 01 0f | 03|612f66 |",
                ITSELF,
                "| 03|737263 | 01 01|6d | 02 00 03|642f65
                | 01 02 02|6f68 | 01 01|6e | 00",
            ),
        ),
        (
            "Digests",
            Message::Digests(seen),
            "03 1e | 04 | 02 dddddddd dddddddd dddddddd 02 01000000 efbeadde | 00 | 03 a09c01 | 01 00".into(),
        ),
        (
            "Dir",
            Message::Dir(Box::new(listing())),
            with_list(
                &with_list("04 5f | 15 03 03|782f79 |", ITSELF, "| 03|6f6c64 | 01 01 e807 02|7573 | 01 02|2f73 |"),
                LIST,
                "| 01 | 01 02 02|6f68 | 01 01|6e",
            ),
        ),
        (
            "More",
            Message::More {
                list: rare(),
                subs: Vec::new(),
                problems: vec![problem()],
                notes: vec![b"n".to_vec()],
                last: true,
            },
            with_list("05 41 | 01", RARE, "| 01 02 02|6f68 | 01 01|6e"),
        ),
        ("DirsEnd", Message::DirsEnd(tally()), format!("06 1c | {TALLY}")),
        (
            "Want",
            Message::Want { file: FILE, lane: Lane::Requested, basis: Basis::None },
            "07 05 | 03 ac02 01 | 00".into(),
        ),
        (
            "Want with blocks",
            Message::Want { file: FILE, lane: Lane::Again, basis: Basis::Blocks(vec![0xb1, 0xb2]) },
            "07 07 | 03 ac02 02 | 01 b1b2".into(),
        ),
        (
            "Want with prefix",
            Message::Want { file: FILE, lane: Lane::Requested, basis: Basis::Prefix { len_bytes: 300, digest: None } },
            "07 07 | 03 ac02 01 | 02 ac02".into(),
        ),
        (
            "Want with verified prefix",
            Message::Want {
                file: FILE,
                lane: Lane::Requested,
                basis: Basis::Prefix { len_bytes: 300, digest: Some(DIGEST) },
            },
            format!("07 17 | 03 ac02 01 | 03 ac02 {digest}"),
        ),
        ("Done", Message::Done(300), "08 02 | ac02".into()),
        ("Placed", Message::Placed(FILE), "09 03 | 03 ac02".into()),
        ("WantDigest", Message::WantDigest(FILE), "19 03 | 03 ac02".into()),
        (
            "FileDigest",
            Message::FileDigest { file: FILE, digest: Some(DIGEST) },
            format!("1a 14 | 03 ac02 01 | {digest}"),
        ),
        ("FileDigest: none", Message::FileDigest { file: FILE, digest: None }, "1a 04 | 03 ac02 00".into()),
        ("WantsEnd", Message::WantsEnd(tally()), format!("0a 1c | {TALLY}")),
        (
            "Whole",
            Message::Whole { file: FILE, lane: Lane::Unrequested, data: b"hi".to_vec(), digest: DIGEST },
            format!("0b 16 | 03 ac02 00 | {digest} | 6869"),
        ),
        ("Begin", Message::Begin { file: FILE, lane: Lane::Requested }, "0c 04 | 03 ac02 01".into()),
        ("Data", Message::Data { lane: Lane::Again, data: b"hi".to_vec() }, "0d 03 | 02 6869".into()),
        (
            "Copy",
            Message::Copy { lane: Lane::Requested, offset_bytes: 1 << 20, len_bytes: 4096 },
            "0e 06 | 01 808040 8020".into(),
        ),
        ("End", Message::End { lane: Lane::Requested, digest: DIGEST }, format!("0f 11 | 01 {digest}")),
        (
            "Unsent",
            Message::Unsent { file: FILE, lane: Lane::Requested, problem: Some(problem()) },
            "10 09 | 03 ac02 01 | 01 02 02|6f68".into(),
        ),
        (
            "Unsent without problem",
            Message::Unsent { file: FILE, lane: Lane::Requested, problem: None },
            "10 05 | 03 ac02 01 | 00".into(),
        ),
        ("Grant", Message::Grant { class: Class::Again, bytes: 1 << 20 }, "12 04 | 06 808040".into()),
        ("Ping", Message::Ping, "13 00".into()),
        ("Blocked", Message::Blocked(Class::Requested), "17 01 | 05".into()),
        (
            "Plan: the end",
            Message::Plan(PlanPiece { actions: Vec::new(), creates_dest: true, is_last: true }),
            "1b 02 | 03 00".into(),
        ),
        (
            "Totals",
            Message::Totals(SourceTotals {
                list: ListTotal { entries: 300, bytes: 70_000, complete: true },
                unchanged: EntryCounts { entries: 3, files: 2, bytes: 128 },
            }),
            "1c 0a | 01 ac02 f0a204 | 03 02 8001".into(),
        ),
        ("Verdict", Message::Verdict { refused: None }, "18 01 | 00".into()),
        ("Verdict: no", Message::Verdict { refused: Some(b"oh".to_vec()) }, "18 04 | 01 02|6f68".into()),
        (
            "Fail",
            Message::Fail { exit: Exit::Timeout, message: b"oh".to_vec(), role: "receiver" },
            "14 05 | 1e 02 02|6f68".into(),
        ),
        ("Bye", Message::Bye(tally()), format!("15 1c | {TALLY}")),
        (
            "Meet",
            Message::Meet(Meeting {
                pin: [0xa9; 32],
                port: 28792,
                addresses: vec![[192, 0, 2, 7].into(), std::net::Ipv6Addr::LOCALHOST.into()],
            }),
            format!("16 3a | {} | f8e001 | 02 04|c0000207 10|00000000000000000000000000000001", "a9".repeat(32)),
        ),
    ];
    let events: [(&'static str, Event, &str); 16] = [
        (
            "Event: item",
            Event::Item(Box::new(item())),
            "11 25 | 00 1f 02 02 8408 | 01|61 03|732f61 01|74 01|62 | ffc302 00 e807 | 01|ffc99a3b 02|00000000
             | 01 00 02|aabb",
        ),
        (
            "Event: deleted",
            Event::Deleted { name: b"a".to_vec(), kind: Kind::Dir, mode: 0o040755 },
            "11 07 | 01 01 ed8301 01|61",
        ),
        ("Event: note", Event::Note(b"n".to_vec()), "11 03 | 02 01|6e"),
        ("Event: problem", Event::Problem(problem()), "11 05 | 03 02 02|6f68"),
        ("Event: missing", Event::Missing(b"m".to_vec()), "11 03 | 04 01|6d"),
        ("Event: listed", Event::Listed { entries: 300, bytes: 5, complete: true }, "11 05 | 05 01 ac02 05"),
        ("Event: checked", Event::Checked(300), "11 03 | 06 ac02"),
        ("Event: begin", Event::Begin(b"a".to_vec()), "11 03 | 07 01|61"),
        ("Event: progress", Event::Progress { done_bytes: 5, len_bytes: 300 }, "11 04 | 08 05 ac02"),
        ("Event: source changed", Event::SourceChanged(b"a".to_vec()), "11 03 | 09 01|61"),
        (
            "Event: planned",
            Event::Planned(Box::new(PlannedAction {
                path: b"a".to_vec(),
                act: PlannedAct::Delete,
                changes: Changes::NONE,
                before: Some(EntryState {
                    kind: Kind::Dir,
                    mode: 0o040755,
                    uid: None,
                    gid: None,
                    len_bytes: None,
                    mtime: None,
                    target: None,
                    rdev: None,
                    ctime: None,
                    digest: None,
                    attributes: Vec::new(),
                }),
                after: None,
                file: None,
                links: None,
                backup: None,
                twin: None,
                heir: None,
            })),
            "11 7d | 0c 7b|7b2274797065223a22616374696f6e222c22616374696f6e223a2264656c657465222c2270617468223a2261222c226974656d697a65223a222a64656c6574696e672020222c226368616e676573223a302c226265666f7265223a7b226b696e64223a22646972222c226d6f6465223a22303430373535227d7d0a",
        ),
        (
            "Event: explained by a rule",
            Event::Explained(Box::new(Explained {
                path: b"a".to_vec(),
                fact: Fact::Rule {
                    side: Side::Receiver,
                    is_dir: true,
                    rule: FoundRule {
                        include: false,
                        absolute: false,
                        negate: false,
                        perishable: true,
                        pattern: Vec::new(),
                        place: RulePlace::Dir { file: b"f".to_vec(), line: 300 },
                    },
                },
            })),
            "11 0c | 0d 01|61 00 01 11 00 02 01|66 ac02",
        ),
        (
            "Event: explained by a decision",
            Event::Explained(Box::new(Explained {
                path: b"a".to_vec(),
                fact: Fact::Decided(Box::new(DecidedFact {
                    outcome: DecidedOutcome::Refuse(Reason::TooLarge),
                    in_the_way: InTheWay::Other,
                    source: EntryState {
                        kind: Kind::File,
                        mode: 0o100644,
                        uid: Some(1),
                        gid: None,
                        len_bytes: Some(300),
                        mtime: None,
                        target: None,
                        rdev: None,
                        ctime: None,
                        digest: None,
                        attributes: Vec::new(),
                    },
                    dest: None,
                })),
            })),
            "11 0f | 0d 01|61 05 07 03 01 00 | 05 a48302 01 ac02",
        ),
        (
            "Event: explained by a fate",
            Event::Explained(Box::new(Explained { path: b"a".to_vec(), fact: Fact::Extra(Fate::Deleted) })),
            "11 05 | 0d 01|61 09 04",
        ),
        (
            "Event: reused",
            Event::Reused { from: b"a".to_vec(), name: b"b".to_vec(), len_bytes: 300, how: ReusedBy::Rename },
            "11 08 | 0a 01 01|61 01|62 ac02",
        ),
        ("Event: verified", Event::Verified { len_bytes: 300 }, "11 03 | 0b ac02"),
    ];
    rows.extend(
        events
            .into_iter()
            .map(|(name, event, hex)| (name, Message::Event(event), hex.to_owned())),
    );
    rows
}

#[test]
fn messages_encode_to_and_decode_from_golden_bytes() {
    for (name, message, hex) in table() {
        let want = bytes(&hex);
        let frame = encoded(&message);
        let show = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(show(&frame), show(&want), "{name}");
        assert!(same(&super::decoded(&want).unwrap(), &message), "{name}");
    }
}

#[test]
fn every_kind_has_golden_bytes() {
    let kinds: std::collections::BTreeSet<u8> =
        table().iter().map(|(_, _, hex)| bytes(hex)[0]).collect();
    assert_eq!(kinds, (1..=28).collect());
}

#[test]
fn greeting_has_its_golden_bytes() {
    let greeting = Greeting {
        oldest: 1,
        newest: 0x0203,
        features: 0x0102_0304_0506_0708,
        key: *b"0123456789abcdef",
        program: b"p 1".to_vec(),
        guess: Some(path("dir")),
    };
    let mut spelled = Vec::new();
    let begin = |len: &str, features: &str| {
        let key = "30313233343536373839616263646566";
        format!("d5ffa900 f18efe01 | {len}00 | 0100 0302 {features} | {key} | 0300 702031")
    };
    let known = "0807060504030201";
    for (greeting, want) in [
        (greeting.clone(), begin("27", known) + " | 01 0300 646972"),
        (
            Greeting {
                guess: Some(path("")),
                ..greeting.clone()
            },
            begin("24", known) + " | 01 0000",
        ),
        (
            Greeting {
                guess: None,
                ..greeting
            },
            begin("22", known) + " | 00",
        ),
    ] {
        spelled.clear();
        encode_greeting(&greeting, &mut spelled);
        assert_eq!(spelled, bytes(&want));
        assert_eq!(
            decode_greeting(&spelled).unwrap(),
            Some((greeting, spelled.len()))
        );
    }
}
