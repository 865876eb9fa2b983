//! The first bytes: greetings, version negotiation, and the output of login shells and stock rsync.

use super::own_messages::record_error;
use crate::exit::Exit;
use crate::path::RelPath;
use crate::proto::greeting::{MAGIC, VERSIONS};
use crate::proto::limits::NOISE_MAX_BYTES;
use crate::proto::{Greeting, Sniffed, agree, decode_greeting, encode_greeting, sniff};
use proptest::prelude::*;

/// The tests of rejected greetings.
pub const ALL: [fn(); 3] = [
    malformed_greetings_are_rejected,
    malformed_guesses_are_rejected,
    newest_common_version_is_chosen_or_run_fails,
];

fn greeting(oldest: u16, newest: u16, program: &str) -> Greeting {
    Greeting {
        oldest,
        newest,
        features: 0,
        key: [0; 16],
        program: program.into(),
        guess: None,
    }
}

#[test]
fn malformed_greetings_are_rejected() {
    let refused = |bytes: &[u8], words: &str| {
        let error = decode_greeting(bytes).unwrap_err();
        record_error(&error);
        assert_eq!(error.exit, Exit::Protocol);
        assert!(error.to_string().contains(words), "{error}");
    };
    let mut good = Vec::new();
    encode_greeting(&greeting(1, 1, "p"), &mut good);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    refused(b"hello", "it does not begin with the magic bytes");
    refused(&with(7, 0), "it does not begin with the magic bytes");
    refused(&with(9, 0xff), "its length is 65312 bytes, not 30 to 1024");
    refused(&with(8, 29), "its length is 29 bytes, not 30 to 1024");
    refused(&with(10, 2), "its oldest version is 2 and its newest 1");
    refused(&with(38, 3), "it ends inside the program's name");
    refused(
        &with(39, 2),
        "the program's name is longer than PROGRAM_MAX_BYTES",
    );
}

#[test]
fn guess_may_be_as_long_as_a_name() {
    let greeting = Greeting {
        guess: Some(RelPath::parse(&[b'a'; 255]).unwrap()),
        ..greeting(1, 1, "p")
    };
    let mut bytes = Vec::new();
    encode_greeting(&greeting, &mut bytes);
    let (decoded, _) = decode_greeting(&bytes).unwrap().unwrap();
    assert_eq!(decoded.guess, greeting.guess);
}

#[test]
fn malformed_guesses_are_rejected() {
    let mut good = Vec::new();
    encode_greeting(&greeting(1, 1, "p"), &mut good);
    assert_eq!(good.pop(), Some(0), "no guess was encoded");
    for (tail, words) in [
        (&b""[..], "it ends inside the guess"),
        (b"\x01\x03", "it ends inside the guess"),
        (b"\x01\x03\0di", "it ends inside the guess"),
        (b"\x01\0\x01", "the guess is longer than GUESS_MAX_BYTES"),
        (
            b"\x01\x04\0../a",
            "the guess is not a path inside of a tree",
        ),
        (b"\x01\x02\0/a", "the guess is not a path inside of a tree"),
        (b"\x01\x02\0a\0", "the guess is not a path inside of a tree"),
    ] {
        let mut spelled = [&good, tail].concat();
        spelled[8] = (spelled.len() - 10) as u8;
        let error = decode_greeting(&spelled).unwrap_err();
        record_error(&error);
        assert_eq!(error.exit, Exit::Protocol);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn newest_common_version_is_chosen_or_run_fails() {
    let ours = greeting(2, 4, "sparsync 1.2");
    assert_eq!(agree(&ours, &greeting(1, 3, "old")).unwrap(), 3);
    assert_eq!(agree(&ours, &greeting(4, 9, "new")).unwrap(), 4);
    assert_eq!(agree(&ours, &greeting(1, 2, "older")).unwrap(), 2);
    let error = agree(&ours, &greeting(5, 7, "sparsync 9.0")).unwrap_err();
    record_error(&error);
    assert_eq!(error.exit, Exit::Protocol);
    assert_eq!(
        String::from_utf8(error.text()).unwrap(),
        "sparsync: no common protocol version: this program (sparsync 1.2) supports versions 2 to 4, the peer (sparsync \
         9.0) supports versions 5 to 7\nhint: upgrade sparsync here"
    );
    let error = agree(&ours, &greeting(1, 1, "sparsync 0.1\x1b[2J")).unwrap_err();
    record_error(&error);
    let message = String::from_utf8(error.text()).unwrap();
    assert!(
        message.ends_with(
            "the peer (sparsync 0.1[2J) supports version 1\nhint: upgrade sparsync there"
        )
    );
}

#[test]
fn features_of_only_one_side_are_ignored() {
    let ours = Greeting {
        features: 0b0101,
        ..greeting(1, 1, "a")
    };
    let theirs = Greeting {
        features: 0b1100 | 1 << 63,
        ..greeting(1, 1, "b")
    };
    let mut spelled = Vec::new();
    encode_greeting(&theirs, &mut spelled);
    let (theirs, _) = decode_greeting(&spelled).unwrap().unwrap();
    assert_eq!(agree(&ours, &theirs).unwrap(), 1);
    assert_eq!(ours.features & theirs.features, 0b0100);
}

#[test]
fn trailing_bytes_of_a_newer_greeting_are_ignored() {
    let mut spelled = Vec::new();
    encode_greeting(&greeting(1, 1, "p"), &mut spelled);
    spelled.extend_from_slice(b"more");
    spelled[8] += 4;
    let (greeting, len) = decode_greeting(&spelled).unwrap().unwrap();
    assert_eq!(
        (greeting.program.as_slice(), len),
        (&b"p"[..], spelled.len())
    );
}

#[test]
fn own_greeting_is_accepted() {
    let ours = Greeting::ours([7; 16]);
    let mut spelled = b"noise".to_vec();
    encode_greeting(&ours, &mut spelled);
    assert_eq!(
        decode_greeting(&spelled[5..]).unwrap(),
        Some((ours.clone(), spelled.len() - 5))
    );
    assert_eq!(agree(&ours, &ours).unwrap(), *VERSIONS.end());
    assert!(ours.program.starts_with(b"sparsync "));
}

#[test]
fn incomplete_greeting_needs_more_bytes() {
    let mut spelled = Vec::new();
    encode_greeting(&greeting(1, 1, "p"), &mut spelled);
    for len in 0..spelled.len() {
        assert_eq!(decode_greeting(&spelled[..len]).unwrap(), None, "{len}");
    }
}

#[test]
fn magic_is_neither_text_nor_an_rsync_version() {
    assert!(MAGIC[0] >= 0x80);
    assert!(!(20..=40).contains(&i32::from_le_bytes(*MAGIC.first_chunk().unwrap())));
    assert!(
        MAGIC.iter().all(|byte| !(0x07..=0x7f).contains(byte)),
        "the magic bytes contain no newline, escape or printable character"
    );
    assert!(MAGIC.contains(&0xff), "0xff does not occur in UTF-8");
}

#[test]
fn native_greeting_is_found_after_noise() {
    for noise in [
        &b""[..],
        b"Welcome!\r\n",
        &[0xd5, 0xff, 0xa9],
        &[b'x'; NOISE_MAX_BYTES],
    ] {
        let bytes = [noise, &MAGIC, &b"\x21\0"[..]].concat();
        let noise_len = noise.len();
        assert_eq!(sniff(&bytes, false), Sniffed::Native { noise_len });
        assert_eq!(sniff(&bytes, true), Sniffed::Native { noise_len });
        let whole = noise_len + MAGIC.len();
        for len in (0..whole.min(20)).chain(whole.saturating_sub(20)..whole) {
            assert_eq!(sniff(&bytes[..len], false), Sniffed::NeedMore, "{len}");
            assert_eq!(sniff(&bytes[..len], true), Sniffed::Hopeless, "{len}");
        }
    }
}

#[test]
fn noise_beyond_the_limit_is_hopeless() {
    let mut bytes = vec![b'x'; NOISE_MAX_BYTES + 1];
    bytes.extend_from_slice(&MAGIC);
    assert_eq!(sniff(&bytes, false), Sniffed::Hopeless);
    assert_eq!(
        sniff(&[b'x'; NOISE_MAX_BYTES + 8], false),
        Sniffed::Hopeless
    );
    assert_eq!(
        sniff(&[b'x'; NOISE_MAX_BYTES + 7], false),
        Sniffed::NeedMore
    );
}

#[test]
fn stock_rsync_is_recognized_by_its_version() {
    let rsync = |noise_len| Sniffed::Rsync { noise_len };
    assert_eq!(sniff(&[30, 0, 0, 0, 1], false), rsync(0));
    assert_eq!(sniff(&[20, 0, 0, 0, 1, 2, 3], false), rsync(0));
    assert_eq!(sniff(&[40, 0, 0, 0, 0], false), rsync(0));
    assert_eq!(sniff(&[31, 0, 0], false), Sniffed::NeedMore);
    assert_eq!(sniff(b"motd\n\x1f\0\0\0more", false), rsync(5));
    assert_eq!(sniff(b"motd \x1f\0\0\0\x81\xff", true), rsync(5));
    assert_eq!(sniff(b"motd\n\x1f\0\0", false), Sniffed::NeedMore);
    // Text has no NUL.
    assert_eq!(
        sniff(b"rsync\0-a\0\0\x1f\0\0\0more", false),
        Sniffed::NeedMore
    );
    // Versions that no rsync uses.
    let unknown = |noise_len| Sniffed::UnknownVersion { noise_len };
    assert_eq!(sniff(&[19, 0, 0, 0], false), unknown(0));
    assert_eq!(sniff(&[41, 0, 0, 0], false), unknown(0));
    assert_eq!(sniff(b"motd\n\x63\0\0\0", true), unknown(5));
    assert_eq!(sniff(&[31, 0, 0, 0x80], true), Sniffed::Hopeless);
    assert_eq!(
        sniff(b"bash: rsync: command not found\n", true),
        Sniffed::Hopeless
    );
}

#[test]
fn an_echo_of_the_clients_version_is_no_answer() {
    let echo = [32, 0, 0, 0];
    assert_eq!(sniff(&echo, false), Sniffed::NeedMore);
    assert_eq!(sniff(b"motd\n\x20\0\0\0", false), Sniffed::NeedMore);
    for len in 0..MAGIC.len() {
        let bytes = [&echo, &MAGIC[..len]].concat();
        assert_eq!(sniff(&bytes, false), Sniffed::NeedMore, "{len}");
    }
    assert_eq!(
        sniff(&[&echo, &MAGIC[..]].concat(), false),
        Sniffed::Native { noise_len: 4 }
    );
    // An rsync that ends after its version is one.
    assert_eq!(sniff(&echo, true), Sniffed::Rsync { noise_len: 0 });
}

proptest! {
    #[test]
    fn greeting_decoders_do_not_panic_on_any_bytes(bytes: Vec<u8>, at_end: bool) {
        sniff(&bytes, at_end);
        let _ = decode_greeting(&bytes);
        let _ = decode_greeting(&[&MAGIC[..], &bytes].concat());
    }

    #[test]
    fn printable_noise_never_looks_like_a_greeting(noise in "[ -~\r\n\t\x1b]{0,300}") {
        prop_assert_eq!(sniff(noise.as_bytes(), false), Sniffed::NeedMore);
    }
}
