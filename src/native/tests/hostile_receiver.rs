//! A hostile receiver, against a server that sends and a client that sends.

use super::*;
use crate::proto::{Basis, Class, DestDirState};
use crate::transport::window_limit::Ceiling;

/// Pulls from an honest server after greeting and setup. The server has a file `a` and a directory `d` with a file `b`.
fn pull(words: &[&str], play: impl FnOnce(&mut Peer)) -> (Stage, Ended) {
    let stage = Stage::new();
    stage.has("a", "hello").has("d/b", "hello");
    let ended = serve(&stage, words, true, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
        play(peer);
    });
    stage.is_clean();
    (stage, ended)
}

/// Serves an honest client that sends the same tree.
fn pushed(words: &[&str], play: impl FnOnce(&mut Peer)) -> (Stage, Ended) {
    let stage = Stage::new();
    stage.has("a", "hello").has("d/b", "hello");
    let ended = TestClient {
        words,
        ..TestClient::default()
    }
    .against(&stage, |peer| {
        peer.receive_greeting();
        assert!(matches!(peer.receive_message(), Some(Message::Setup(_))));
        peer.receive();
        play(peer);
    });
    stage.is_clean();
    (stage, ended)
}

/// As [`pull`], with a guess of what is compared, and digests that are sent before anything is read.
fn guessed(guess: &str, messages: &[Message], play: impl FnOnce(&mut Peer)) -> (Stage, Ended) {
    let stage = Stage::new();
    stage.has("a", "hello").has("d/b", "hello");
    let ended = serve(&stage, &["-r"], true, |peer| {
        let guess = RelPath::parse(guess.as_bytes()).ok();
        peer.greet_so(
            &Greeting {
                guess,
                ..Greeting::ours([7; 16])
            },
            Some(setup(true)),
        );
        peer.send_messages(messages);
        peer.receive_greeting();
        peer.receive();
        play(peer);
    });
    stage.is_clean();
    (stage, ended)
}

/// Returns the report on a directory whose listing must be sent, with this many subdirectories.
fn seen(children: usize) -> DestDirState {
    DestDirState::Dir {
        digest: None,
        children: vec![7; children],
    }
}

/// Reads which directories are listed, and whether with their data, until the end.
fn receive_listings(peer: &mut Peer) -> Vec<(String, bool)> {
    let mut listings = Vec::new();
    while let Some(message) = peer.receive_message() {
        match message {
            Message::Dir(dir) => listings.push((
                String::from_utf8_lossy(dir.path.as_bytes()).into_owned(),
                dir.with_data,
            )),
            Message::DirsEnd(_) => _ = peer.send_message(&Message::WantsEnd(Box::default())),
            _ => {}
        }
    }
    listings
}

#[test]
fn digests_of_a_wrong_guess_are_ignored() {
    let all = || vec![(String::new(), true), ("d".to_owned(), true)];
    let listed = || vec![(String::new(), false), ("d".to_owned(), true)];
    let digests = |seen: &[DestDirState]| Message::Digests(seen.to_vec());
    let cases = [
        // The guess is right: the digests count, and no others are awaited.
        ("", vec![digests(&[DestDirState::Absent])], all()),
        ("", vec![digests(&[seen(0)])], listed()),
        // The guess is wrong: the digests are ignored, however many and in however many messages.
        (
            "d",
            vec![digests(&[DestDirState::Absent, seen(0)])],
            listed(),
        ),
        (
            "d",
            vec![digests(&[seen(0)]), digests(&[DestDirState::Absent])],
            all(),
        ),
        (
            "x",
            vec![
                digests(&[seen(2), seen(1)]),
                digests(&[DestDirState::Absent, DestDirState::Absent, seen(0)]),
            ],
            listed(),
        ),
    ];
    for (guess, messages, expected) in cases {
        let mut listings = Vec::new();
        let (_, ended) = guessed(guess, &messages, |peer| listings = receive_listings(peer));
        assert_eq!(
            (listings, ended.exit),
            (expected, Exit::Ok),
            "{guess}: {}",
            ended.sentence
        );
    }
}

#[test]
fn sender_does_not_wait_for_digests_of_extra_directories() {
    // After ours it has two more directories, about which it could report for a long time.
    let (_, ended) = pull(&["-r"], |peer| {
        let d = crate::digest::keyed_name(&[7; 16], b"d");
        let root = DestDirState::Dir {
            digest: None,
            children: vec![1, d, 2, 3],
        };
        peer.send_message(&Message::Digests(vec![
            root,
            DestDirState::Dir {
                digest: None,
                children: vec![4],
            },
            DestDirState::Absent,
            seen(0),
        ]));
        assert_eq!(
            receive_listings(peer),
            [(String::new(), false), ("d".to_owned(), false)]
        );
    });
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.sentence);
}

#[test]
fn listing_precedes_the_digest_of_a_larger_directory() {
    let d = crate::digest::keyed_name(&[7; 16], b"d");
    let listings = || [(String::new(), false), ("d".to_owned(), false)];
    let root = || DestDirState::Dir {
        digest: None,
        children: vec![d],
    };
    // The source has two entries. At least two may be the same, three are more.
    for (large, received_first) in [
        (vec![3], 1),
        (vec![2, 3], 1),
        (vec![3, 9], 1),
        (vec![1, 2], 0),
    ] {
        let (_, ended) = pull(&["-r"], |peer| {
            peer.send_message(&Message::Digests(
                large
                    .iter()
                    .map(|&count| DestDirState::Large(count))
                    .collect(),
            ));
            let mut first = Vec::new();
            if received_first > 0 {
                first.extend(peer.receive_until(|message| match message {
                    Message::Dir(dir) => Some((
                        String::from_utf8_lossy(dir.path.as_bytes()).into_owned(),
                        dir.with_data,
                    )),
                    _ => None,
                }));
            }
            peer.send_message(&Message::Digests(vec![root(), seen(0)]));
            let all: Vec<_> = first.into_iter().chain(receive_listings(peer)).collect();
            assert_eq!(all, listings(), "{large:?}");
        });
        assert_eq!(ended.exit, Exit::Ok, "{large:?}: {}", ended.sentence);
    }
}

#[test]
fn unfinished_digests_of_a_wrong_guess_end_the_run() {
    let (_, ended) = guessed("x", &[Message::Digests(vec![seen(60); 100])], Peer::hang_up);
    assert_eq!(ended.exit, Exit::Stream);
}

fn want(dir: DirId, entry: u32) -> Message {
    Message::Want {
        file: file(dir, entry),
        lane: Lane::Requested,
        basis: Basis::None,
    }
}

/// Reads all listings of the sender, which learns that the receiver has nothing.
fn receive_all_listings(peer: &mut Peer) {
    // Digests are expected if the options permit comparing them; without them nothing is listed.
    peer.send_message(&Message::Digests(vec![DestDirState::Dir {
        digest: None,
        children: Vec::new(),
    }]));
    let end = peer.receive_until(|message| matches!(message, Message::DirsEnd(_)).then_some(()));
    assert!(end.is_some(), "everything is listed");
}

/// A receiver that sends these messages after all listings, to a server and to a client. Both reject them.
#[track_caller]
fn refused(messages: &[Message], words: &str) {
    let server = pull(&["-r"], |peer| {
        receive_all_listings(peer);
        peer.send_messages(messages);
    });
    let client = pushed(&["-r"], |peer| {
        receive_all_listings(peer);
        peer.send_messages(messages);
    });
    for (stage, ended) in [server, client] {
        ended.refuses(Exit::Protocol, words);
        assert_eq!(stage.names(), ["a", "d/", "d/b"]);
    }
}

macro_rules! refused {
    ($name:ident, $words:expr, [$($message:expr),* $(,)?]) => {
        #[test]
        fn $name() {
            refused(&[$($message),*], $words);
        }
    };
}

#[test]
fn valid_pull_is_served() {
    let (_, ended) = pull(&["-r"], |peer| {
        receive_all_listings(peer);
        peer.send_message(&want(0, 0));
        let came = peer.receive_until(|message| match message {
            Message::Whole { data, .. } => Some(data.clone()),
            _ => None,
        });
        assert_eq!(came.as_deref(), Some(&b"hello"[..]));
        peer.send_messages(&[Message::Done(0), Message::WantsEnd(Box::default())]);
        assert!(
            peer.receive_until(|message| matches!(message, Message::Bye(_)).then_some(()))
                .is_some()
        );
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
}

// Listing 0 is the root: entry 0 is `a`, entry 1 is `d`. Listing 1 is `d`.

refused!(
    request_for_a_directory_is_rejected,
    "not a regular file",
    [want(0, 1)]
);
refused!(
    request_out_of_range_is_rejected,
    "not a regular file",
    [want(0, 2)]
);
refused!(
    request_far_out_of_range_is_rejected,
    "not a regular file",
    [want(1, u32::MAX)]
);
refused!(
    request_in_an_unlisted_directory_is_rejected,
    "unknown directory id",
    [want(2, 0)]
);
refused!(
    request_with_the_maximum_directory_id_is_rejected,
    "unknown directory id",
    [want(u64::MAX, 0)]
);
refused!(
    request_after_done_is_rejected,
    "unknown directory id",
    [Message::Done(0), want(0, 0)]
);
refused!(
    repeated_request_in_an_unlisted_directory_is_rejected,
    "unknown directory id",
    [Message::Want {
        file: file(9, 0),
        lane: Lane::Again,
        basis: Basis::None
    }]
);
refused!(
    digest_of_a_directory_is_rejected,
    "not a regular file",
    [Message::WantDigest(file(0, 1))]
);
refused!(
    digest_in_an_unlisted_directory_is_rejected,
    "unknown directory id",
    [Message::WantDigest(file(7, 0))]
);
refused!(
    removal_without_the_option_is_rejected,
    "without --remove-source-files",
    [Message::Placed(file(0, 0))]
);
refused!(
    removal_of_a_directory_is_rejected,
    "removal of an unknown file",
    [Message::Placed(file(0, 1))]
);
refused!(
    removal_in_an_unlisted_directory_is_rejected,
    "unknown directory id",
    [Message::Placed(file(7, 0))]
);
refused!(
    malformed_basis_signature_is_rejected,
    "",
    [Message::Want {
        file: file(0, 0),
        lane: Lane::Requested,
        basis: Basis::Blocks(vec![0xff; 40])
    }]
);
refused!(
    roots_of_a_receiver_are_rejected,
    "must not send",
    [roots_message()]
);
refused!(
    directory_of_a_receiver_is_rejected,
    "must not send",
    [dir(0, "", &[])]
);
refused!(
    dirs_end_of_a_receiver_is_rejected,
    "must not send",
    [dirs_end()]
);
refused!(
    data_of_a_receiver_is_rejected,
    "must not send",
    [whole(Lane::Requested, file(0, 0))]
);
refused!(
    bye_of_a_receiver_is_rejected,
    "must not send",
    [Message::Bye(Box::default())]
);
refused!(
    duplicate_setup_is_rejected,
    "must not send",
    [Message::Setup(Box::new(setup(true)))]
);
refused!(
    huge_grant_is_rejected,
    "Unrequested grant exceeds the bytes sent",
    [Message::Grant {
        class: Class::Unrequested,
        bytes: 1 << 40
    }]
);
refused!(
    grant_beyond_the_sent_bytes_is_rejected,
    "Dirs grant exceeds the bytes sent",
    [Message::Grant {
        class: Class::Dirs,
        bytes: 4 << 20
    }]
);

#[test]
fn wants_end_before_the_last_listing_is_rejected() {
    for run in [pull as fn(&[&str], fn(&mut Peer)) -> (Stage, Ended), pushed] {
        let (_, ended) = run(&["-r"], |peer| {
            _ = peer.send_message(&Message::WantsEnd(Box::default()))
        });
        ended.refuses(Exit::Protocol, "must not send");
    }
}

#[test]
fn requests_after_wants_end_are_not_served() {
    for behind in [
        Message::WantsEnd(Box::default()),
        want(0, 0),
        Message::Done(0),
    ] {
        let (_, ended) = pull(&["-r"], |peer| {
            receive_all_listings(peer);
            peer.send_messages(&[Message::WantsEnd(Box::default()), behind]);
            let came = peer
                .receive_until(|message| matches!(message, Message::Whole { .. }).then_some(()));
            assert!(came.is_none());
        });
        // The server may have ended the session before this message arrived.
        assert!(matches!(ended.exit, Exit::Ok | Exit::Protocol), "{ended:?}");
    }
}

#[test]
fn source_file_changed_since_listing_is_not_removed() {
    let stage = Stage::new();
    stage.has("a", "hello");
    let home = stage.home();
    let ended = serve(&stage, &["-r", "--remove-source-files"], true, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
        receive_all_listings(peer);
        std::fs::write(home.join("a"), "something else").unwrap();
        peer.send_messages(&[
            Message::Placed(file(0, 0)),
            Message::WantsEnd(Box::default()),
        ]);
        assert!(
            peer.receive_until(|message| matches!(message, Message::Bye(_)).then_some(()))
                .is_some()
        );
    });
    assert_eq!(ended.exit, Exit::Partial, "{}", ended.sentence);
    assert_eq!(stage.names(), ["a"]);
}

#[test]
fn file_replaced_by_a_symlink_is_not_sent() {
    let (_, ended) = {
        let stage = Stage::new();
        stage.has("a", "hello");
        let home = stage.home();
        let ended = serve(&stage, &["-r"], true, |peer| {
            peer.greet(Some(setup(true)));
            peer.receive_greeting();
            peer.receive();
            receive_all_listings(peer);
            std::fs::remove_file(home.join("a")).unwrap();
            std::os::unix::fs::symlink("../outside/secret", home.join("a")).unwrap();
            peer.send_message(&want(0, 0));
            let came = peer.receive_until(|message| match message {
                Message::Unsent { .. } => Some(false),
                Message::Whole { .. } | Message::Begin { .. } => Some(true),
                _ => None,
            });
            assert_eq!(came, Some(false), "the target of the symlink is not sent");
            peer.send_message(&Message::WantsEnd(Box::default()));
        });
        (stage, ended)
    };
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.sentence);
}

#[test]
fn repeated_request_is_answered_again() {
    let (_, ended) = pull(&["-r"], |peer| {
        receive_all_listings(peer);
        peer.send_messages(&[want(0, 0), want(0, 0)]);
        for _ in 0..2 {
            assert!(peer.receive_until(|message| matches!(message, Message::Whole { .. }).then_some(())).is_some());
        }
        peer.send_message(&Message::WantsEnd(Box::default()));
    });
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.sentence);
}

#[test]
fn prefix_longer_than_the_file_is_handled() {
    let (_, ended) = pull(&["-r"], |peer| {
        receive_all_listings(peer);
        let basis = Basis::Prefix {
            len_bytes: i64::MAX as u64,
            digest: None,
        };
        peer.send_message(&Message::Want {
            file: file(0, 0),
            lane: Lane::Requested,
            basis,
        });
        let is_over = |message: &Message| {
            matches!(message, Message::End { .. } | Message::Unsent { .. }).then_some(())
        };
        assert!(peer.receive_until(is_over).is_some());
        peer.send_message(&Message::WantsEnd(Box::default()));
    });
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.sentence);
}

#[test]
fn request_in_a_dry_run_is_rejected() {
    let (_, ended) = pull(&["-rn"], |peer| {
        receive_all_listings(peer);
        peer.send_message(&want(0, 0));
    });
    ended.refuses(Exit::Protocol, "unknown directory id");
}

#[test]
fn event_to_a_sending_server_is_rejected() {
    let (_, ended) = pull(&["-r"], |peer| {
        receive_all_listings(peer);
        peer.send_message(&Message::Event(crate::report::event::Event::Checked(1)));
    });
    ended.refuses(Exit::Protocol, "must not send");
}

// Endless messages.

/// Sends a message until the connection is closed, or far more often than any window permits.
fn endless(peer: &mut Peer, message: &Message) -> bool {
    let begun = peer.sent_bytes;
    while peer.sent_bytes - begun < 64 << 20 {
        if !peer.send_message(message) {
            return false;
        }
    }
    true
}

#[test]
fn endless_digests_of_missing_directories_are_skipped() {
    // An endless tree that the sender lacks is skipped, and nothing of it is stored.
    let seen = vec![
        DestDirState::Dir {
            digest: None,
            children: vec![1; 1000]
        };
        16
    ];
    let (_, ended) = pull(&["-r"], |peer| {
        endless(peer, &Message::Digests(seen));
        peer.hang_up();
    });
    // A receiver that sends faster than the sender skips is rejected.
    assert!(
        matches!(ended.exit, Exit::Stream | Exit::Protocol),
        "{ended:?}"
    );
}

#[test]
fn endless_digests_beyond_the_window_are_rejected() {
    // The sender skips only the digests of directories that it lacks.
    let (_, ended) = pull(&["-r"], |peer| {
        _ = endless(peer, &Message::Digests(vec![DestDirState::Absent; 1000]))
    });
    ended.refuses(Exit::Protocol, "Digests messages exceed the window");
}

#[test]
fn repeated_large_directory_report_is_rejected() {
    for messages in [&[9, 9][..], &[9, 8], &[9, 10, 11]] {
        let (_, ended) = pull(&["-r"], |peer| {
            for &entries in messages {
                peer.send_message(&Message::Digests(vec![DestDirState::Large(entries)]));
            }
        });
        ended.refuses(Exit::Protocol, "reported without growth");
    }
}

#[test]
fn endless_requests_without_reading_are_rejected() {
    let stage = Stage::new();
    stage.has("a", &"x".repeat(60_000));
    let ended = serve(&stage, &["-r"], true, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
        receive_all_listings(peer);
        endless(peer, &want(0, 0));
    });
    // By then data has filled its window, so the requests are not consumed.
    ended.refuses(Exit::Protocol, "Wants messages exceed the window");
}

#[test]
fn endless_events_to_a_client_take_no_memory() {
    let (_, ended) = pushed(&["-r"], |peer| {
        for _ in 0..50_000 {
            peer.send_message(&Message::Event(crate::report::event::Event::Note(vec![
                b'x';
                100
            ])));
        }
        peer.hang_up();
    });
    assert!(
        matches!(ended.exit, Exit::Stream | Exit::Protocol),
        "{ended:?}"
    );
}

// Ends of sessions.

#[test]
fn fail_message_ends_the_run_with_its_code() {
    for code in [Exit::Protocol, Exit::Partial, Exit::Malloc] {
        let (_, ended) = pushed(&["-r"], |peer| {
            let message = b"\x1b]0;title\x07".to_vec();
            peer.send_message(&Message::Fail {
                exit: code,
                message,
                role: "Receiver",
            });
        });
        assert_eq!(ended.exit, code);
    }
}

#[test]
fn receiver_that_hangs_up_ends_the_run() {
    for words in [&["-r"][..], &["-rn"], &["-rt"]] {
        let (_, ended) = pull(words, |peer| peer.hang_up());
        assert_eq!(ended.exit, Exit::Stream);
        let (_, ended) = pushed(words, |peer| peer.hang_up());
        assert_eq!(ended.exit, Exit::Stream);
    }
}

/// Returns what a receiver sends in a whole session, if it need not react to the sender.
fn recorded() -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_greeting(&Greeting::ours([7; 16]), &mut bytes);
    let mut dialect = Native::new(1);
    let messages = [
        Message::Setup(Box::new(setup(true))),
        Message::Digests(vec![
            DestDirState::Dir {
                digest: None,
                children: vec![1, 2],
            },
            DestDirState::Absent,
            DestDirState::Absent,
        ]),
        Message::Ping,
    ];
    messages
        .iter()
        .for_each(|message| dialect.encode(message, &mut bytes).unwrap());
    bytes
}

#[test]
fn pull_session_truncated_at_every_byte_fails_cleanly() {
    let bytes = recorded();
    for end in 0..=bytes.len() {
        let stage = Stage::new();
        stage.has("a", "hello").has("d/b", "hello");
        let ended = serve(&stage, &["-r"], true, |peer| {
            peer.send_bytes(&bytes[..end]);
            peer.hang_up();
        });
        assert_eq!(ended.exit, Exit::Stream, "cut off behind byte {end}");
        assert_eq!(stage.names(), ["a", "d/", "d/b"]);
    }
}

/// Returns what a server that receives sends to a client: before the last listing, and after it.
fn recorded_for_a_client() -> [Vec<u8>; 2] {
    let mut before = Vec::new();
    encode_greeting(&Greeting::ours([7; 16]), &mut before);
    let mut dialect = Native::new(1);
    let digests = Message::Digests(vec![
        DestDirState::Dir {
            digest: None,
            children: vec![1, 2],
        },
        DestDirState::Absent,
        DestDirState::Absent,
    ]);
    dialect.encode(&digests, &mut before).unwrap();
    let mut behind = Vec::new();
    let messages = [
        want(0, 0),
        Message::Event(crate::report::event::Event::Note(b"note".to_vec())),
        Message::Placed(file(0, 0)),
        Message::Done(0),
        want(1, 0),
        Message::Done(1),
        Message::WantsEnd(Box::default()),
    ];
    messages
        .iter()
        .for_each(|message| dialect.encode(message, &mut behind).unwrap());
    [before, behind]
}

#[test]
fn push_session_truncated_at_every_byte_fails_cleanly() {
    let [before, behind] = recorded_for_a_client();
    let len = before.len() + behind.len();
    let mut removed = 0;
    for end in 0..=len {
        let stage = Stage::new();
        stage.has("a", "hello").has("d/b", "hello");
        let client = TestClient {
            words: &["-r", "--remove-source-files"],
            ..TestClient::default()
        };
        let ended = client.against_unmet(&stage, |peer| {
            peer.send_bytes(&before[..end.min(before.len())]);
            if let Some(rest @ 0..) = end.checked_sub(before.len()) {
                peer.receive_greeting();
                assert!(matches!(peer.receive_message(), Some(Message::Setup(_))));
                peer.receive();
                assert!(
                    peer.receive_until(
                        |message| matches!(message, Message::DirsEnd(_)).then_some(())
                    )
                    .is_some()
                );
                peer.send_bytes(&behind[..rest]);
            }
            if end < len {
                peer.hang_up();
            }
        });
        let expected = if end < len { Exit::Stream } else { Exit::Ok };
        assert_eq!(
            ended.exit, expected,
            "cut off behind byte {end}: {}",
            ended.sentence
        );
        // Only a placed file may be removed.
        let names = stage.names();
        assert!(
            names == ["a", "d/", "d/b"] || names == ["d/", "d/b"],
            "cut off behind byte {end}: {names:?}"
        );
        let is_removed = names.len() == 2;
        assert!(
            !is_removed || end > before.len() + 5,
            "cut off behind byte {end}"
        );
        removed += usize::from(is_removed);
    }
    assert!(removed > 0, "nothing was removed");
}

#[test]
fn unresponsive_peer_does_not_delay_a_failed_run() {
    let stage = Stage::new();
    stage.has("a", &"x".repeat(8 << 20));
    let ended = serve(&stage, &["-r"], true, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
        receive_all_listings(peer);
        peer.send_message(&want(0, 0));
        peer.send_bytes(&[0xff; 64]);
        peer.forget();
    });
    assert_eq!(ended.exit, Exit::Protocol);
}

#[test]
fn error_follows_queued_data() {
    let stage = Stage::new();
    stage.has("a", &"x".repeat(16 << 20));
    let mut queued = 0;
    let is_data = |message: &Message| matches!(message, Message::Data { .. });
    let ended = serve_by(64 << 10, &stage, &["-r", "--no-compress"], true, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
        receive_all_listings(peer);
        peer.send_message(&want(0, 0));
        peer.receive_until(|message| is_data(message).then_some(()));
        // The beginning of the next message arrives as well, so its rest precedes the error.
        assert!(peer.has_more() || peer.fill(), "there is no more data");
        peer.send_bytes(&[0xff; 64]);
        while let Some(message) = peer.receive_message() {
            queued += usize::from(is_data(&message));
        }
    });
    ended.refuses(Exit::Protocol, "");
    assert!(queued > 0, "nothing was queued before the error");
}

#[test]
fn silent_peer_ends_with_the_timeout() {
    let (to_us, _kept) = (std::io::pipe().unwrap(), ());
    let (reader, writer) = to_us;
    let patience = crate::transport::link::Patience {
        idle: Some(Duration::from_millis(1)),
        ..crate::transport::link::Patience::default()
    };
    let mut greeting = Vec::new();
    encode_greeting(&Greeting::ours([7; 16]), &mut greeting);
    Native::new(1)
        .encode(&Message::Setup(Box::new(setup(true))), &mut greeting)
        .unwrap();
    std::io::Write::write_all(&mut &writer, &greeting).unwrap();
    let stage = Stage::new();
    let home = stage.home();
    let link = Link {
        parting: patience.parting.clone(),
        reader: Box::new(crate::transport::link::PatientReader::new(reader, patience)),
        writer: Box::new(std::io::sink()),
        leave: None,
        moved: Default::default(),
    };
    let settle = |setup: &Setup| {
        let rules = Rules::new(setup.rules.clone(), ChainOptions::default());
        let operands = vec![home.as_os_str().as_bytes().to_vec()];
        Ok(SettledSetup {
            options: options(&["-r", "--timeout=1"]),
            rules,
            operands,
            listed: None,
            repeats: false,
            server_stops: Default::default(),
            ceiling: Ceiling::default(),
            beyond: None,
        })
    };
    let support = ProtocolSupport::ours(compression_choice::features(None));
    let exit = server_at(b"/", &AtomicBool::new(false), &settle).serve(link, &support);
    drop(writer);
    assert_eq!(exit, Exit::Timeout);
}
