//! Laws of the codec: messages survive a round trip, invalid bytes are rejected, and nothing panics.

use super::{any, decoded, encoded, golden, same, text};
use crate::filter::{Parsed, Rule};
use crate::flist::entry::Stat;
use crate::flist::{Entry, Time, Xattrs};
use crate::path::RelPath;
use crate::proto::bytes::{put_varint, varint_at};
use crate::proto::limits::{LIST_FRAME_BYTES, XATTRS_MAX};
use crate::proto::message_kinds::name_of;
use crate::proto::{
    DestDirState, Dialect, DirListing, Encoder, IdName, Joiner, Message, Native, Setup,
    SubdirFlags, class_of, cut,
};
use crate::report::event::{Problem, Weight};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::Arc;

#[test]
fn many_rules_round_trip() {
    let rule = |n: u32| {
        Parsed::Rule(Rule {
            pattern: n.to_string().into_bytes().into(),
            ..Rule::default()
        })
    };
    let setup = Setup {
        rules: (0..2_500).map(rule).collect::<Vec<_>>().into(),
        ..golden::setup()
    };
    let message = Message::Setup(Box::new(setup));
    assert!(same(
        &decoded(&encoded(&message)).expect("it is valid"),
        &message
    ));
}

/// As in a directory with the homes of a large organization.
#[test]
fn many_names_of_ids_round_trip() {
    let name = |id| IdName {
        is_group: false,
        id,
        name: format!("user of the organization {id}").into_bytes(),
    };
    let listing = DirListing {
        ids: (0..100_000).map(name).collect(),
        ..DirListing::default()
    };
    let message = Message::Dir(Box::new(listing));
    assert!(same(
        &decoded(&encoded(&message)).expect("it is valid"),
        &message
    ));
}

proptest! {
    #[test]
    fn every_message_round_trips(message in any::message()) {
        let frame = encoded(&message);
        prop_assert_eq!(Native::new(1).frame_len(&frame).unwrap(), Some(frame.len()));
        let mut input = &frame[..];
        let back = Native::new(1).decode(&mut input).unwrap().expect("the frame is complete");
        prop_assert!(input.is_empty());
        prop_assert_eq!(text(&back), text(&message));
    }

    #[test]
    fn decode_consumes_exactly_one_frame(one in any::message(), two in any::message()) {
        let both = [encoded(&one), encoded(&two)].concat();
        let mut input = &both[..];
        let mut dialect = Native::new(1);
        prop_assert!(same(&dialect.decode(&mut input).unwrap().unwrap(), &one));
        prop_assert!(same(&dialect.decode(&mut input).unwrap().unwrap(), &two));
        prop_assert!(input.is_empty());
    }

    /// Invalid bytes are rejected; a message decoded from valid ones can be encoded again and means the same.
    #[test]
    fn any_body_is_rejected_or_round_trips(kind in 0u8..25, body in vec(any::<u8>(), 0..300)) {
        let mut frame = vec![kind];
        put_varint(&mut frame, body.len() as u64);
        frame.extend_from_slice(&body);
        check_meaning(&frame);
    }

    #[test]
    fn any_bytes_are_rejected_incomplete_or_round_trip(bytes in vec(any::<u8>(), 0..300)) {
        check_meaning(&bytes);
    }

    #[test]
    fn tampered_message_is_rejected_or_round_trips(
        message in any::message(),
        changes in vec((any::<Index>(), any::<u8>(), 0u8..4), 1..4),
    ) {
        let frame = encoded(&message);
        let head = frame.len() - body_of(&frame).len();
        let mut body = frame[head..].to_vec();
        for (at, byte, how) in changes {
            let len = body.len();
            match (how, len) {
                (0, _) | (_, 0) => body.insert(at.index(len + 1), byte),
                (1, _) => drop(body.remove(at.index(len))),
                (2, _) => body[at.index(len)] = byte,
                (_, _) => body.truncate(at.index(len)),
            }
        }
        let mut tampered = vec![frame[0]];
        put_varint(&mut tampered, body.len() as u64);
        tampered.extend_from_slice(&body);
        check_meaning(&tampered);
        // And without correcting the length.
        check_meaning(&[&frame[..head], &body].concat());
    }

    #[test]
    fn incomplete_frame_needs_more_bytes(message in any::message()) {
        let frame = encoded(&message);
        for len in 0..frame.len() {
            let mut input = &frame[..len];
            prop_assert!(Native::new(1).decode(&mut input).unwrap().is_none(), "{} of {}", len, frame.len());
            prop_assert_eq!(input.len(), len);
            prop_assert!(Native::new(1).frame_len(&frame[..len]).unwrap().is_none_or(|whole| whole == frame.len()));
        }
    }

    #[test]
    fn all_but_listed_kinds_are_charged_to_a_window(message in any::message()) {
        let is_charged = class_of(&message).is_some();
        const FREE: [&str; 11] =
            ["Setup", "Roots", "WantsEnd", "Grant", "Ping", "Fail", "Bye", "Meet", "Blocked", "Verdict", "Totals"];
        let is_free = FREE.contains(&name_of(&message));
        prop_assert_ne!(is_charged, is_free);
    }

    #[test]
    fn directory_round_trips_through_fragments(listing in any::listing(40)) {
        prop_assert_eq!(check_cut(listing).len(), 1);
    }
}

fn body_of(frame: &[u8]) -> &[u8] {
    let (_, len) = varint_at(&frame[1..]).unwrap().unwrap();
    &frame[1 + len..]
}

/// Decodes `bytes`. If they are accepted, the message must survive another round trip.
fn check_meaning(bytes: &[u8]) {
    let mut input = bytes;
    if let Ok(Some(message)) = Native::new(1).decode(&mut input) {
        let frame = encoded(&message);
        assert!(
            frame.len() <= bytes.len() - input.len(),
            "it is never longer than what was accepted"
        );
        assert_eq!(text(&decoded(&frame).unwrap()), text(&message));
    }
}

/// Cuts a listing, encodes the pieces, joins them, and compares. Returns the lengths of the frames.
fn check_cut(listing: DirListing) -> Vec<usize> {
    let mut joiner = Joiner::default();
    let (mut whole, mut lens) = (None, Vec::new());
    let mut want = listing.clone();
    want.more = false;
    cut(listing, &mut |message| {
        assert!(whole.is_none(), "nothing follows the last fragment");
        assert_eq!(joiner.end().is_err(), !lens.is_empty());
        let frame = encoded(&message);
        lens.push(frame.len());
        whole = joiner.push(decoded(&frame).unwrap()).unwrap();
        assert_eq!(joiner.end().is_err(), whole.is_none());
    });
    let mut back = *whole.expect("the last fragment completes it");
    // Printing long lists would take seconds.
    let (one, other) = (
        std::mem::take(&mut back.list),
        std::mem::take(&mut want.list),
    );
    assert!(
        one.len() == other.len()
            && one.entries.iter().zip(&other.entries).all(|(a, b)| {
                let values = |e: &Entry| (e.mode, e.uid, e.gid, e.mtime, e.len_bytes, e.origin);
                one.name(a) == other.name(b) && values(a) == values(b) && a.extra == b.extra
            })
    );
    let lines = |listing: &mut DirListing| {
        std::mem::take(&mut listing.problems)
            .into_iter()
            .map(|p| p.line)
            .collect::<Vec<_>>()
    };
    assert!(lines(&mut back) == lines(&mut want));
    assert_eq!(
        text(&Message::Dir(Box::new(back))),
        text(&Message::Dir(Box::new(want)))
    );
    lens
}

/// A directory with this many entries, a quarter of which are directories.
fn long(entries: usize, name_len: usize) -> DirListing {
    let mut listing = DirListing {
        path: RelPath::parse(b"x").unwrap(),
        may_delete: true,
        ..DirListing::default()
    };
    for at in 0..entries {
        let is_dir = at >= entries - entries / 4;
        Arc::make_mut(&mut listing.list).push_name(format!("{at:0name_len$}").as_bytes(), is_dir);
        if is_dir {
            listing.subs.push(SubdirFlags {
                is_walked: at % 3 == 0,
                ..SubdirFlags::default()
            });
        }
    }
    listing
}

#[test]
fn long_directories_are_split_into_bounded_fragments() {
    assert_eq!(check_cut(long(0, 8)).len(), 1);
    let lens = check_cut(long(16_000, 100));
    assert!(lens.len() > 5, "{lens:?}");
    assert!(lens.iter().all(|len| *len <= LIST_FRAME_BYTES), "{lens:?}");
}

#[test]
fn directory_with_long_xattrs_is_split() {
    let mut listing = long(40, 8);
    for (at, entry) in Arc::make_mut(&mut listing.list)
        .entries
        .iter_mut()
        .enumerate()
    {
        let value = vec![b'v'; LIST_FRAME_BYTES / 3 + at].into_boxed_slice();
        entry.extra_mut().xattrs = Some(Arc::new(vec![(b"user.a"[..].into(), value)]));
    }
    let lens = check_cut(listing);
    assert!(lens.len() >= 20, "{lens:?}");
    assert!(lens.iter().all(|len| *len <= LIST_FRAME_BYTES), "{lens:?}");
}

#[test]
fn directory_with_many_xattrs_is_split() {
    let mut listing = long(8, 8);
    let xattrs: Xattrs = (0..XATTRS_MAX / 4)
        .map(|at| (format!("{at:06}").into_bytes().into(), b""[..].into()))
        .collect();
    let (one, other) = (Arc::new(xattrs[1..].to_vec()), Arc::new(xattrs));
    for (at, entry) in Arc::make_mut(&mut listing.list)
        .entries
        .iter_mut()
        .enumerate()
    {
        entry.extra_mut().xattrs = Some(Arc::clone(if at % 2 == 0 { &one } else { &other }));
    }
    assert!(check_cut(listing).len() > 1);
}

#[test]
fn directory_with_many_problems_is_split() {
    let mut listing = long(10, 8);
    listing.problems = (0..70_000)
        .map(|at| Problem::new(format!("problem {at}"), Weight::Failed))
        .collect();
    listing.notes = (0..9000).map(|at| vec![b'n'; at % 100]).collect();
    let lens = check_cut(listing);
    assert!(lens.len() > 5, "{lens:?}");
    assert!(lens.iter().all(|len| *len <= LIST_FRAME_BYTES), "{lens:?}");
}

#[test]
fn oversized_entry_gets_its_own_fragment() {
    let mut listing = long(3, 8);
    let value = vec![b'v'; 3 * LIST_FRAME_BYTES].into_boxed_slice();
    Arc::make_mut(&mut listing.list).entries[1]
        .extra_mut()
        .xattrs = Some(Arc::new(vec![(b"user.a"[..].into(), value)]));
    assert_eq!(check_cut(listing).len(), 3);
}

/// A design goal: values equal to those of the previous entry are not sent again.
#[test]
fn ordinary_entry_takes_at_most_18_bytes() {
    let mut listing = DirListing::default();
    for at in 0..1000i64 {
        let mtime = Time {
            secs: 1_700_000_000 + at * 977 % 5000,
            nanos: 123_456_789,
        };
        let stat = Stat {
            mode: 0o100644,
            uid: 1000,
            gid: 1000,
            mtime,
            len_bytes: 4000,
            ..Stat::default()
        };
        Arc::make_mut(&mut listing.list).push(format!("file-{at:04}.txt").as_bytes(), &stat);
    }
    let frame = encoded(&Message::Dir(Box::new(listing)));
    assert!(
        frame.len() < 1000 * 18,
        "{} bytes for 1000 entries",
        frame.len()
    );
}

/// 16 bytes for its own item and its hash in the parent; one more each if it has many subdirectories.
#[test]
fn unchanged_directory_takes_at_most_20_bytes() {
    let seen = DestDirState::Dir {
        digest: Some([1; 12]),
        children: vec![7],
    };
    let frame = encoded(&Message::Digests(vec![seen; 1000]));
    assert!(
        frame.len() <= 20 * 1000,
        "{} bytes for 1000 directories",
        frame.len()
    );
}

#[test]
fn truncated_message_sequence_needs_more_bytes() {
    let mut conversation = Vec::new();
    let mut ends = vec![0];
    for (_, message, _) in golden::table() {
        Native::new(1).encode(&message, &mut conversation).unwrap();
        ends.push(conversation.len());
    }
    for len in 0..=conversation.len() {
        let mut dialect = Native::new(1);
        let mut input = &conversation[..len];
        let mut decoded = 0;
        while dialect.decode(&mut input).unwrap().is_some() {
            decoded += 1;
        }
        let whole = ends.iter().filter(|end| **end <= len).count() - 1;
        assert_eq!((decoded, len - input.len()), (whole, ends[whole]));
    }
}
