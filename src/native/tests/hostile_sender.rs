//! A hostile sender, against a server that receives and a client that receives.

use super::*;
use crate::digest;
use crate::flist::Entry;
use crate::plan::planned::PlannedAction;
use crate::proto::{Basis, Class, PlanPiece};
use crate::transport::compression::{AsItIs, CompressingWriter, CompressionPolicy, Method};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

/// Pushes to an honest server after greeting and setup.
fn push(stage: &Stage, words: &[&str], play: impl FnOnce(&mut Peer)) -> Ended {
    let ended = serve(stage, words, false, |peer| {
        peer.greet(Some(setup(false)));
        peer.receive_greeting();
        peer.send();
        play(peer);
    });
    stage.is_clean();
    ended
}

/// Serves an honest client that requested `sources`.
fn pulled(stage: &Stage, client: &TestClient<'_>, play: impl FnOnce(&mut Peer)) -> Ended {
    let ended = client.against(stage, |peer| {
        peer.receive_greeting();
        assert!(matches!(peer.receive_message(), Some(Message::Setup(_))));
        peer.send();
        play(peer);
    });
    stage.is_clean();
    ended
}

fn pull(words: &'static [&'static str], sources: &'static [&'static str]) -> TestClient<'static> {
    TestClient {
        words,
        sources,
        ..TestClient::default()
    }
}

/// Answers every request with a file of five bytes, and ends the session normally.
fn answer_requests(peer: &mut Peer) {
    while let Some(message) = peer.receive_message() {
        match message {
            Message::Want { file, lane, .. } => _ = peer.send_message(&whole(lane, file)),
            Message::WantsEnd(_) => {
                peer.send_message(&Message::Bye(Box::default()));
                return;
            }
            _ => {}
        }
    }
}

/// Defines a test in which the sender sends these messages after its roots, to a server with `-r`.
macro_rules! refused {
    ($name:ident, $exit:ident, $words:expr, [$($message:expr),* $(,)?]) => {
        #[test]
        fn $name() {
            let stage = Stage::new();
            push(&stage, &["-r"], |peer| peer.send_messages(&[roots_message(), $($message),*])).refuses(Exit::$exit, $words);
            assert_eq!(stage.files(), [""; 0]);
        }
    };
}

fn with_data(id: DirId, path: &str, entries: &[(&str, u32)]) -> Message {
    Message::Dir(Box::new(DirListing {
        with_data: true,
        ..listing(id, path, entries)
    }))
}

fn open_ended(id: DirId, path: &str, entries: &[(&str, u32)]) -> Message {
    Message::Dir(Box::new(DirListing {
        more: true,
        ..listing(id, path, entries)
    }))
}

fn more(entries: &[(&str, u32)], last: bool) -> Message {
    Message::More {
        list: list(entries, 5),
        subs: Vec::new(),
        problems: Vec::new(),
        notes: Vec::new(),
        last,
    }
}

#[test]
fn valid_push_is_received() {
    let stage = Stage::new();
    let ended = push(&stage, &["-r"], |peer| {
        peer.send_messages(&[
            roots_message(),
            dir(0, "", &[("a", FILE), ("d", DIR)]),
            with_data(1, "d", &[("b", FILE)]),
        ]);
        peer.send_messages(&[whole(Lane::Unrequested, file(1, 0)), dirs_end()]);
        answer_requests(peer);
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
    assert_eq!(stage.names(), ["a", "d/", "d/b"]);
}

/// Pushes two files of which the sender says that they have the same content. Returns the exit code, and the lanes on which
/// their contents were requested.
fn push_of_two(stage: &Stage, answers: usize) -> (Ended, Vec<(Lane, FileId)>) {
    let mut wanted = Vec::new();
    let ended = push(stage, &["-r", "--detect-renamed"], |peer| {
        peer.send_messages(&[
            roots_message(),
            dir(0, "", &[("a", FILE), ("b", FILE)]),
            dirs_end(),
        ]);
        while let Some(message) = peer.receive_message() {
            match message {
                Message::WantDigest(file) => {
                    let mut digest = [0; digest::CONTENT_LEN_BYTES];
                    digest[..digest::OWN_LEN_BYTES].fill(7);
                    let digest = Some(digest);
                    for _ in 0..answers {
                        peer.send_message(&Message::FileDigest { file, digest });
                    }
                }
                Message::Want { file, lane, .. } => {
                    wanted.push((lane, file));
                    peer.send_message(&whole(lane, file));
                }
                Message::WantsEnd(_) => {
                    peer.send_message(&Message::Bye(Box::default()));
                    return;
                }
                _ => {}
            }
        }
    });
    (ended, wanted)
}

/// A file can change between its digest and its transfer.
#[test]
fn file_whose_content_has_another_digest_is_not_copied() {
    let stage = Stage::new();
    let (ended, wanted) = push_of_two(&stage, 1);
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
    assert_eq!(
        wanted,
        [(Lane::Requested, file(0, 0)), (Lane::Again, file(0, 1))]
    );
    assert_eq!(stage.names(), ["a", "b"]);
}

#[test]
fn second_digest_of_a_file_is_rejected() {
    let (ended, _) = push_of_two(&Stage::new(), 2);
    ended.refuses(Exit::Protocol, "digest of a file that was not requested");
}

// A plan comes first, once, and only if it was announced.

fn plan(paths: &[&str], is_last: bool) -> Message {
    let action = |path: &&str| {
        let entry = Entry::from_stat(&Stat {
            mode: 0o100_644,
            ..Stat::default()
        });
        PlannedAction::of_deletion(path.as_bytes().to_vec(), &entry)
    };
    Message::Plan(PlanPiece {
        actions: paths.iter().map(action).collect(),
        creates_dest: false,
        is_last,
    })
}

/// Pushes these messages to a server that carries out a plan. Nothing may change.
fn refuses_plan(messages: &[Message], words: &str) {
    let stage = Stage::new();
    let ended = push(&stage, &["-rt", "--replay-plan"], |peer| {
        peer.send_messages(messages);
    });
    ended.refuses(Exit::Protocol, words);
    assert_eq!(stage.files(), [""; 0]);
}

#[test]
fn plan_must_be_complete_before_the_arguments() {
    let words = "arguments before the end of the plan";
    refuses_plan(&[roots_message()], words);
    refuses_plan(&[plan(&["a"], false), roots_message()], words);
}

#[test]
fn nothing_is_added_to_a_complete_plan() {
    let words = "plan that was not announced";
    let done = || plan(&["a"], true);
    refuses_plan(&[done(), done()], words);
    refuses_plan(&[done(), roots_message(), plan(&["b"], false)], words);
}

#[test]
fn plan_that_was_not_announced_is_rejected() {
    let stage = Stage::new();
    push(&stage, &["-r"], |peer| {
        peer.send_messages(&[plan(&["a"], true)])
    })
    .refuses(Exit::Protocol, "plan that was not announced");
    let play = |peer: &mut Peer| peer.send_messages(&[plan(&["a"], true)]);
    pulled(&stage, &pull(&["-r"], &["d/"]), play)
        .refuses(Exit::Protocol, "plan that was not announced");
}

#[test]
fn plan_that_takes_too_much_memory_ends_the_run() {
    let stage = Stage::new();
    let words = &["-rt", "--replay-plan", "--max-alloc=1m"];
    let mut pieces = 0;
    let ended = push(&stage, words, |peer| {
        for piece in 0.. {
            pieces = piece;
            let paths: Vec<_> = (0..2000).map(|n| format!("{piece}/{n}")).collect();
            let paths: Vec<_> = paths.iter().map(String::as_str).collect();
            if !peer.send_message(&plan(&paths, false)) {
                break;
            }
        }
    });
    ended.refuses(
        Exit::Malloc,
        "the plan takes more than 1048576 bytes of memory",
    );
    assert!(pieces < 100, "{pieces}");
}

/// Only what is in the plan happens.
#[test]
fn entries_that_are_not_in_the_plan_are_not_created() {
    let stage = Stage::new();
    let ended = push(&stage, &["-rt", "--replay-plan"], |peer| {
        peer.send_messages(&[
            plan(&[], true),
            roots_message(),
            dir(0, "", &[("a", FILE), ("d", DIR)]),
            dirs_end(),
        ]);
        answer_requests(peer);
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
    assert_eq!(stage.names(), [""; 0]);
}

// Names encoded by hand, because the encoder rejects them.

/// Encodes a `Dir` of one file with this path and this name.
fn forged(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let honest = dir(
        0,
        &"p".repeat(path.len()),
        &[(&"n".repeat(name.len()), FILE)],
    );
    Native::new(1).encode(&honest, &mut frame).unwrap();
    for (spelled, wanted) in [(b'p', path), (b'n', name)] {
        let at = frame
            .windows(wanted.len())
            .position(|window| window.iter().all(|&byte| byte == spelled));
        let at = at.expect("the name is not shared");
        frame[at..at + wanted.len()].copy_from_slice(wanted);
    }
    frame
}

macro_rules! forged_name {
    ($name:ident, $path:expr, $entry:expr, $words:expr) => {
        #[test]
        fn $name() {
            let stage = Stage::new();
            let frame = forged($path, $entry);
            let play = |peer: &mut Peer| {
                peer.send_message(&roots_message());
                peer.send_bytes(&frame);
            };
            push(&stage, &["-r"], play).refuses(Exit::Protocol, $words);
            let play = |peer: &mut Peer| {
                peer.send_message(&roots_message());
                peer.send_bytes(&frame);
            };
            pulled(&stage, &pull(&["-r"], &["d/"]), play).refuses(Exit::Protocol, $words);
            assert_eq!(stage.names(), [""; 0]);
        }
    };
}

forged_name!(
    dot_dot_as_a_name_is_rejected,
    b"ppp",
    b"..",
    "invalid message Dir: name"
);
forged_name!(
    name_with_a_slash_is_rejected,
    b"ppp",
    b"../outside/x",
    "invalid message Dir: name"
);
forged_name!(
    name_with_nul_is_rejected,
    b"ppp",
    b"a\0b",
    "invalid message Dir: name"
);
forged_name!(
    absolute_name_is_rejected,
    b"ppp",
    b"/etc/x",
    "invalid message Dir: name"
);
forged_name!(
    dot_as_a_name_is_rejected,
    b"ppp",
    b".",
    "invalid message Dir: name"
);
forged_name!(
    path_starting_with_dot_dot_is_rejected,
    b"../outside",
    b"xx",
    "invalid message Dir: path"
);
forged_name!(
    path_with_dot_dot_in_the_middle_is_rejected,
    b"a/../../outside",
    b"xx",
    "invalid message Dir: path"
);
forged_name!(
    absolute_path_is_rejected,
    b"/etc",
    b"xx",
    "invalid message Dir: path"
);

#[test]
fn name_as_both_symlink_and_directory_is_rejected() {
    // The encoder rejects this list, but the pieces of a listing can contain it.
    let stage = Stage::new();
    let ended = push(&stage, &["-rl"], |peer| {
        peer.send_message(&roots_message());
        peer.send_message(&open_ended(0, "", &[("d", LINK)]));
        let piece = Message::More {
            list: list(&[("d", DIR)], 0),
            subs: vec![SubdirFlags {
                is_walked: true,
                ..SubdirFlags::default()
            }],
            problems: Vec::new(),
            notes: Vec::new(),
            last: true,
        };
        peer.send_messages(&[piece, dir(1, "d", &[("x", FILE)])]);
    });
    ended.refuses(Exit::Protocol, "is duplicated");
    assert_eq!(stage.names(), [""; 0]);
}

#[test]
fn directory_below_a_listed_symlink_is_rejected() {
    let stage = Stage::new();
    let ended = push(&stage, &["-rl"], |peer| {
        peer.send_messages(&[
            roots_message(),
            dir(0, "", &[("d", LINK)]),
            dir(1, "d", &[("x", FILE)]),
            dirs_end(),
        ]);
        answer_requests(peer);
    });
    ended.refuses(Exit::Protocol, "directory without a parent");
}

#[test]
fn symlink_in_place_of_a_directory_is_replaced() {
    let stage = Stage::new();
    std::os::unix::fs::symlink("../outside", stage.home().join("d")).unwrap();
    let ended = push(&stage, &["-r"], |peer| {
        peer.send_messages(&[
            roots_message(),
            dir(0, "", &[("d", DIR)]),
            dir(1, "d", &[("x", FILE)]),
            dirs_end(),
        ]);
        answer_requests(peer);
    });
    // The symlink is replaced, as in rsync.
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.sentence);
    assert_eq!(stage.names(), ["d/", "d/x"]);
}

#[test]
fn directory_below_a_receiver_symlink_is_rejected() {
    let stage = Stage::new();
    std::os::unix::fs::symlink("../outside", stage.home().join("d")).unwrap();
    let stray = DirListing {
        itself: list(&[(".", DIR)], 0),
        ..listing(0, "d/sub", &[("x", FILE)])
    };
    let ended = push(&stage, &["-r"], |peer| {
        peer.send_messages(&[roots_message(), Message::Dir(Box::new(stray)), dirs_end()]);
        answer_requests(peer);
    });
    assert_ne!(ended.exit, Exit::Ok);
    assert_eq!(stage.names(), ["d"]);
}

#[test]
fn symlink_swapped_in_during_the_run_is_not_followed() {
    let stage = Stage::new();
    let home = stage.home();
    let ended = push(&stage, &["-r"], |peer| {
        peer.send_messages(&[
            roots_message(),
            dir(0, "", &[("d", DIR)]),
            dir(1, "d", &[("x", FILE)]),
        ]);
        // The receiver requests the file once the directory exists and is open.
        let wanted = peer.receive_until(|message| match message {
            Message::Want { file, lane, .. } => Some((*lane, *file)),
            _ => None,
        });
        std::fs::rename(home.join("d"), home.join("e")).unwrap();
        std::os::unix::fs::symlink("../outside", home.join("d")).unwrap();
        let (lane, file) = wanted.expect("the receiver requests the file");
        peer.send_messages(&[whole(lane, file), dirs_end()]);
        answer_requests(peer);
    });
    assert!(matches!(ended.exit, Exit::Ok | Exit::Partial), "{ended:?}");
    assert_eq!(std::fs::read(home.join("e/x")).unwrap(), b"hello");
}

// Directories out of order.

refused!(
    directory_out_of_order_is_rejected,
    Protocol,
    "protocol error",
    [
        dir(0, "", &[("a", DIR), ("b", DIR)]),
        dir(1, "b", &[]),
        dir(2, "a", &[("y", FILE)]),
        dirs_end(),
    ]
);
refused!(
    directory_without_a_parent_is_rejected,
    Protocol,
    "directory without a parent",
    [dir(0, "", &[]), dir(1, "x", &[("y", FILE)]), dirs_end()]
);
refused!(
    skipped_directory_id_is_rejected,
    Protocol,
    "unexpected directory id",
    [dir(1, "", &[])]
);
refused!(
    duplicate_directory_id_is_rejected,
    Protocol,
    "unexpected directory id",
    [dir(0, "", &[]), dir(0, "a", &[])]
);
refused!(
    fragment_without_a_directory_is_rejected,
    Protocol,
    "no directory to continue",
    [more(&[], true)]
);
refused!(
    fragment_after_the_last_is_rejected,
    Protocol,
    "no directory to continue",
    [dir(0, "", &[]), more(&[("x", FILE)], true)]
);
refused!(
    fragments_out_of_order_are_rejected,
    Protocol,
    "do not follow the previous ones",
    [
        open_ended(0, "", &[("b", FILE)]),
        more(&[("a", FILE)], true)
    ]
);
refused!(
    directory_before_the_last_fragment_is_rejected,
    Protocol,
    "comes before the end of directory",
    [open_ended(0, "", &[]), dir(1, "a", &[])]
);
refused!(
    dirs_end_before_the_last_fragment_is_rejected,
    Protocol,
    "comes before the end of directory",
    [open_ended(0, "", &[]), dirs_end()]
);
// The receiver is still running because it waits for a file.
refused!(
    duplicate_dirs_end_is_rejected,
    Protocol,
    "protocol error",
    [dir(0, "", &[("a", FILE)]), dirs_end(), dirs_end()]
);
refused!(
    directory_after_dirs_end_is_rejected,
    Protocol,
    "protocol error",
    [dir(0, "", &[("a", FILE)]), dirs_end(), dir(1, "d", &[])]
);
refused!(
    duplicate_roots_are_rejected,
    Protocol,
    "protocol error",
    [roots_message()]
);
refused!(
    duplicate_setup_is_rejected,
    Protocol,
    "protocol error",
    [Message::Setup(Box::new(setup(false)))]
);
refused!(
    event_of_a_client_is_rejected,
    Protocol,
    "protocol error",
    [Message::Event(crate::report::event::Event::Checked(1))]
);
refused!(
    early_bye_is_rejected,
    Protocol,
    "protocol error",
    [Message::Bye(Box::default())]
);
refused!(
    bye_before_the_requested_files_is_rejected,
    Protocol,
    "protocol error",
    [
        dir(0, "", &[("a", FILE)]),
        dirs_end(),
        Message::Bye(Box::default())
    ]
);
refused!(
    deletion_in_a_directory_that_is_only_named_is_rejected,
    Protocol,
    "rejecting to clear",
    [Message::Dir(Box::new(DirListing {
        is_named: true,
        may_delete: true,
        ..listing(0, "", &[])
    }))]
);

#[test]
fn directory_before_the_roots_is_rejected() {
    push(&Stage::new(), &["-r"], |peer| {
        _ = peer.send_message(&dir(0, "", &[]))
    })
    .refuses(Exit::Protocol, "before the arguments");
}

#[test]
fn dirs_end_before_the_roots_is_rejected() {
    push(&Stage::new(), &["-r"], |peer| {
        _ = peer.send_message(&dirs_end())
    })
    .refuses(Exit::Protocol, "protocol error");
}

// Messages of a receiver, sent by the sender.

refused!(
    digests_of_a_sender_are_rejected,
    Protocol,
    "protocol error",
    [Message::Digests(Vec::new())]
);
refused!(
    want_of_a_sender_is_rejected,
    Protocol,
    "protocol error",
    [Message::Want {
        file: file(0, 0),
        lane: Lane::Requested,
        basis: Basis::None
    }]
);
refused!(
    done_of_a_sender_is_rejected,
    Protocol,
    "protocol error",
    [Message::Done(0)]
);
refused!(
    placed_of_a_sender_is_rejected,
    Protocol,
    "protocol error",
    [Message::Placed(file(0, 0))]
);
refused!(
    digest_request_of_a_sender_is_rejected,
    Protocol,
    "protocol error",
    [Message::WantDigest(file(0, 0))]
);
refused!(
    digest_that_was_not_requested_is_rejected,
    Protocol,
    "digest of a file that was not requested",
    [
        dir(0, "", &[("a", FILE)]),
        Message::FileDigest {
            file: file(0, 0),
            digest: None
        }
    ]
);
refused!(
    wants_end_of_a_sender_is_rejected,
    Protocol,
    "protocol error",
    [Message::WantsEnd(Box::default())]
);

// Data.

refused!(
    data_before_any_directory_is_rejected,
    Protocol,
    "unrequested",
    [whole(Lane::Unrequested, file(0, 0))]
);
refused!(
    unrequested_data_of_a_directory_without_data_is_rejected,
    Protocol,
    "unrequested",
    [
        dir(0, "", &[("a", FILE)]),
        whole(Lane::Unrequested, file(0, 0))
    ]
);
refused!(
    unrequested_data_is_rejected,
    Protocol,
    "unrequested",
    [
        dir(0, "", &[("a", FILE)]),
        whole(Lane::Requested, file(0, 1))
    ]
);
refused!(
    unrequested_data_on_the_again_lane_is_rejected,
    Protocol,
    "unrequested",
    [dir(0, "", &[("a", FILE)]), whole(Lane::Again, file(0, 0))]
);
refused!(
    unrequested_begin_is_rejected,
    Protocol,
    "unrequested",
    [Message::Begin {
        file: file(0, 7),
        lane: Lane::Requested
    }]
);
refused!(
    data_outside_a_file_is_rejected,
    Protocol,
    "data outside of a file",
    [Message::Data {
        lane: Lane::Requested,
        data: vec![1]
    }]
);
refused!(
    copy_outside_a_file_is_rejected,
    Protocol,
    "data outside of a file",
    [Message::Copy {
        lane: Lane::Again,
        offset_bytes: 0,
        len_bytes: 9,
    }]
);
refused!(
    end_outside_a_file_is_rejected,
    Protocol,
    "data outside of a file",
    [Message::End {
        lane: Lane::Unrequested,
        digest: [0; 20]
    }]
);
refused!(
    unrequested_unsent_is_rejected,
    Protocol,
    "unrequested",
    [Message::Unsent {
        file: file(3, 3),
        lane: Lane::Requested,
        problem: None
    }]
);
refused!(
    unrequested_data_for_a_directory_entry_is_rejected,
    Protocol,
    "unrequested",
    [
        with_data(0, "", &[("d", DIR)]),
        whole(Lane::Unrequested, file(0, 0))
    ]
);
refused!(
    unrequested_data_out_of_order_is_rejected,
    Protocol,
    "unrequested",
    [
        with_data(0, "", &[("a", FILE), ("b", FILE)]),
        whole(Lane::Unrequested, file(0, 1))
    ]
);
refused!(
    directory_before_the_data_of_the_previous_is_rejected,
    Protocol,
    "before the data of the previous one",
    [
        with_data(0, "", &[("a", FILE), ("d", DIR)]),
        dir(1, "d", &[])
    ]
);
refused!(
    dirs_end_before_the_data_of_the_last_is_rejected,
    Protocol,
    "before the data of the last",
    [with_data(0, "", &[("a", FILE)]), dirs_end()]
);

#[test]
fn duplicate_unrequested_data_is_rejected() {
    let stage = Stage::new();
    push(&stage, &["-r"], |peer| {
        let again = whole(Lane::Unrequested, file(0, 0));
        peer.send_messages(&[
            roots_message(),
            with_data(0, "", &[("a", FILE)]),
            again.clone(),
            again,
        ]);
    })
    .refuses(Exit::Protocol, "unrequested");
}

#[test]
fn file_inside_another_file_is_rejected() {
    let stage = Stage::new();
    push(&stage, &["-r"], |peer| {
        peer.send_messages(&[
            roots_message(),
            with_data(0, "", &[("a", FILE), ("b", FILE)]),
        ]);
        peer.send_messages(&[
            Message::Begin {
                file: file(0, 0),
                lane: Lane::Unrequested,
            },
            whole(Lane::Unrequested, file(0, 0)),
        ]);
    })
    .refuses(Exit::Protocol, "file inside of another file");
    assert_eq!(stage.names(), [""; 0]);
}

#[test]
fn unrequested_data_is_rejected_if_options_forbid_it() {
    for words in [
        &["-rn"][..],
        &["-r", "--append"],
        &["-r", "--max-size=1"],
        &["-rH"],
    ] {
        let stage = Stage::new();
        push(&stage, words, |peer| {
            peer.send_messages(&[
                roots_message(),
                with_data(0, "", &[("a", FILE)]),
                whole(Lane::Unrequested, file(0, 0)),
            ]);
        })
        .refuses(Exit::Protocol, "unrequested data");
        assert_eq!(stage.names(), [""; 0]);
    }
}

#[test]
fn file_with_repeated_wrong_digest_fails_alone() {
    let stage = Stage::new();
    stage.has("a", "old").has("b", "old");
    let ended = push(&stage, &["-rI"], |peer| {
        peer.send_messages(&[
            roots_message(),
            dir(0, "", &[("a", FILE), ("b", FILE)]),
            dirs_end(),
        ]);
        while let Some(message) = peer.receive_message() {
            match message {
                Message::Want { file, lane, .. } if file.entry == 0 => {
                    peer.send_message(&Message::Whole {
                        file,
                        lane,
                        data: b"wrong".to_vec(),
                        digest: [0; 20],
                    });
                }
                Message::Want { file, lane, .. } => _ = peer.send_message(&whole(lane, file)),
                Message::WantsEnd(_) => break,
                _ => {}
            }
        }
        peer.send_message(&Message::Bye(Box::default()));
    });
    assert_eq!(ended.exit, Exit::Partial, "{}", ended.sentence);
    assert_eq!(std::fs::read(stage.home().join("a")).unwrap(), b"old");
    assert_eq!(std::fs::read(stage.home().join("b")).unwrap(), b"hello");
}

#[test]
fn file_copied_from_a_missing_basis_fails_alone() {
    let stage = Stage::new();
    let ended = push(&stage, &["-r"], |peer| {
        peer.send_messages(&[roots_message(), dir(0, "", &[("a", FILE)]), dirs_end()]);
        while let Some(message) = peer.receive_message() {
            match message {
                Message::Want { file, lane, .. } => peer.send_messages(&[
                    Message::Begin { file, lane },
                    Message::Copy {
                        lane,
                        offset_bytes: 1 << 60,
                        len_bytes: 1 << 60,
                    },
                    Message::End {
                        lane,
                        digest: digest::whole(b""),
                    },
                ]),
                Message::WantsEnd(_) => break,
                _ => {}
            }
        }
        peer.send_message(&Message::Bye(Box::default()));
    });
    assert_eq!(ended.exit, Exit::Partial, "{}", ended.sentence);
    assert_eq!(stage.names(), [""; 0]);
}

#[test]
fn wrong_length_reserves_no_memory() {
    let stage = Stage::new();
    let ended = push(&stage, &["-r"], |peer| {
        let mut listing = listing(0, "", &[("a", FILE)]);
        Arc::make_mut(&mut listing.list).entries[0].len_bytes = i64::MAX as u64;
        peer.send_messages(&[roots_message(), Message::Dir(Box::new(listing)), dirs_end()]);
        answer_requests(peer);
    });
    // The file may have become shorter meanwhile. Its content has the right digest.
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.sentence);
    assert_eq!(std::fs::read(stage.home().join("a")).unwrap(), b"hello");
}

#[test]
fn connection_lost_within_a_file_keeps_the_old_file() {
    let stage = Stage::new();
    stage.has("a", "old");
    let ended = push(&stage, &["-rI"], |peer| {
        peer.send_messages(&[roots_message(), dir(0, "", &[("a", FILE)])]);
        let found = peer.receive_until(|message| match message {
            Message::Want { file, lane, .. } => Some((*lane, *file)),
            _ => None,
        });
        let (lane, file) = found.expect("the receiver requests the file");
        peer.send_messages(&[
            Message::Begin { file, lane },
            Message::Data {
                lane,
                data: vec![b'x'; 1000],
            },
        ]);
        peer.hang_up();
    });
    assert_eq!(ended.exit, Exit::Stream);
    assert_eq!(std::fs::read(stage.home().join("a")).unwrap(), b"old");
}

// Endless messages.

/// Sends messages until the connection is closed. Returns how many bytes were accepted.
fn endless(peer: &mut Peer, mut next: impl FnMut(u64) -> Message) -> usize {
    let begun = peer.sent_bytes;
    for turn in 0.. {
        if !peer.send_message(&next(turn)) {
            break;
        }
    }
    peer.sent_bytes - begun
}

#[test]
fn endless_unlisted_directories_are_rejected() {
    let stage = Stage::new();
    let mut taken = 0;
    let ended = push(&stage, &["-r"], |peer| {
        // No listing leads to these directories, so the first one blocks the others.
        peer.send_messages(&[roots_message(), dir(0, "", &[("z", FILE)])]);
        let names: Vec<String> = (0..2000).map(|at| format!("name{at:05}")).collect();
        let entries: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), FILE)).collect();
        let mut refused = 0;
        taken = endless(peer, |turn| {
            refused = turn;
            dir(turn + 1, &format!("x{turn:08}"), &entries)
        });
    });
    ended.refuses(Exit::Protocol, "Dirs messages exceed the window");
    // Messages after the rejection were discarded for a while.
    assert!(taken > 0);
}

#[test]
fn endless_directory_is_limited() {
    for (max_alloc_bytes, exit) in [(None, Exit::Protocol), (Some(1 << 23), Exit::Malloc)] {
        let error = directory_without_end(max_alloc_bytes);
        assert_eq!(error.exit, exit, "{error}");
    }
}

/// Receives a directory that never ends, as pieces of 16 MiB.
fn directory_without_end(max_alloc_bytes: Option<u64>) -> crate::error::Error {
    let inbox = crate::native::receiver_inbox::ReceiverInbox::default();
    let connection = crate::session::connection::Connection::new(Box::new(Native::new(1)));
    let handler = crate::native::receiver_inbox::ReceiverHandler {
        inbox: &inbox,
        connection: &connection,
        accepts_unrequested: true,
        at_server: Some(crate::native::receiver_inbox::AtServer { plan: None }),
        interrupted: &AtomicBool::new(false),
        max_alloc_bytes,
    };
    let receive_message = |message: Message, cost: u64| {
        crate::native::intake::MessageHandler::handle(&handler, message, cost)
    };
    receive_message(roots_message(), 1).unwrap();
    receive_message(open_ended(0, "", &[]), 1).unwrap();
    let ended = (0..1000).find_map(|_| receive_message(more(&[], false), 1 << 24).err());
    ended.expect("it is too long")
}

#[test]
fn endless_events_of_a_server_take_no_memory() {
    // The client reads and prints all of them, so they take no memory.
    let stage = Stage::new();
    let ended = pulled(&stage, &pull(&["-r"], &["d/"]), |peer| {
        for _ in 0..500 {
            peer.send_message(&Message::Event(crate::report::event::Event::Note(
                vec![b'x'; 10_000],
            )));
        }
        peer.hang_up();
    });
    // They exceed the window: they were not granted, or they were consumed.
    assert!(
        matches!(ended.exit, Exit::Stream | Exit::Protocol),
        "{ended:?}"
    );
}

#[test]
fn endless_pings_do_not_delay_the_end() {
    let stage = Stage::new();
    let ended = push(&stage, &["-r"], |peer| {
        let mut pings = Vec::new();
        (0..100_000).for_each(|_| Native::new(1).encode(&Message::Ping, &mut pings).unwrap());
        peer.send_bytes(&pings);
        peer.hang_up();
    });
    assert_eq!(ended.exit, Exit::Stream);
}

#[test]
fn grant_beyond_the_sent_bytes_is_rejected() {
    for bytes in [1, 1 << 40] {
        push(&Stage::new(), &["-r"], |peer| {
            _ = peer.send_message(&Message::Grant {
                class: Class::Wants,
                bytes,
            })
        })
        .refuses(Exit::Protocol, "Wants grant exceeds the bytes sent");
    }
}

#[test]
fn malformed_frame_length_is_rejected() {
    let stage = Stage::new();
    push(&stage, &["-r"], |peer| _ = peer.send_bytes(&[0xff; 64])).refuses(Exit::Protocol, "");
}

#[test]
fn fail_message_with_control_bytes_ends_the_run() {
    let stage = Stage::new();
    let message = b"\x1b[2J\0\xff\nrsync error: all is well".to_vec();
    let ended = push(&stage, &["-r"], |peer| {
        peer.send_message(&Message::Fail {
            exit: Exit::Malloc,
            message,
            role: "sender",
        });
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Malloc, ""));
}

// Requests of a client.

#[test]
fn requested_entries_are_accepted() {
    let stage = Stage::new();
    let ended = pulled(&stage, &pull(&["-r"], &["x/d"]), |peer| {
        let named = DirListing {
            is_named: true,
            ..listing(0, "", &[("d", DIR)])
        };
        let roots = Roots {
            found: 1,
            ..Roots::default()
        };
        peer.send_messages(&[
            Message::Roots(Box::new(roots)),
            Message::Dir(Box::new(named)),
        ]);
        peer.send_messages(&[dir(1, "d", &[("a", FILE)]), dirs_end()]);
        answer_requests(peer);
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
    assert_eq!(stage.names(), ["d/", "d/a"]);
}

/// Defines a test in which a server sends these messages after roots without a top.
macro_rules! unrequested {
    ($name:ident, $client:expr, $words:expr, [$($message:expr),* $(,)?]) => {
        #[test]
        fn $name() {
            let stage = Stage::new();
            stage.has("mine", "mine");
            let roots = Message::Roots(Box::new(Roots { found: 1, ..Roots::default() }));
            let ended = pulled(&stage, &$client, |peer| {
                peer.send_messages(&[roots, $($message,)* dirs_end()]);
                answer_requests(peer);
            });
            ended.refuses(Exit::Protocol, $words);
            assert_eq!(stage.files(), ["mine"]);
        }
    };
}

unrequested!(
    unrequested_name_is_rejected,
    pull(&["-r"], &["x/d"]),
    "unrequested file-list name: .bashrc",
    [dir(0, "", &[(".bashrc", FILE), ("d", DIR)])]
);
unrequested!(
    unrequested_name_with_a_requested_prefix_is_rejected,
    pull(&["-r"], &["x/d"]),
    "unrequested file-list name: dd",
    [dir(0, "", &[("dd", FILE)])]
);
unrequested!(
    content_of_a_non_recursive_directory_is_rejected,
    pull(&["-d"], &["x/d"]),
    "unrequested file-list name: d/f",
    [dir(0, "", &[("d", DIR)]), dir(1, "d", &[("f", FILE)])]
);
unrequested!(
    unrequested_relative_name_is_rejected,
    pull(&["-rR"], &["a/b"]),
    "unrequested file-list name: a/c",
    [dir(0, "", &[("a", DIR)]), dir(1, "a", &[("c", FILE)])]
);
unrequested!(
    unrequested_parent_directory_is_rejected,
    pull(&["-rR"], &["a/b"]),
    "unrequested file-list name: c",
    [dir(0, "", &[("c", DIR)])]
);
unrequested!(
    symlink_in_place_of_a_parent_directory_is_rejected,
    pull(&["-rlR"], &["a/b"]),
    "unrequested file-list name: a",
    [dir(0, "", &[("a", LINK)])]
);
unrequested!(
    file_in_place_of_a_parent_directory_is_rejected,
    pull(&["-rR"], &["a/b"]),
    "unrequested file-list name: a",
    [dir(0, "", &[("a", FILE)])]
);
unrequested!(
    excluded_name_is_rejected,
    TestClient {
        excludes: &["*.o"],
        ..pull(&["-r"], &["x/"])
    },
    "excluded file-list name: a.o",
    [dir(0, "", &[("a.o", FILE)])]
);
unrequested!(
    excluded_directory_is_rejected,
    TestClient {
        excludes: &["/deep/"],
        ..pull(&["-r"], &["x/"])
    },
    "excluded file-list name: deep",
    [dir(0, "", &[("deep", DIR)])]
);
unrequested!(
    excluded_name_in_a_subdirectory_is_rejected,
    TestClient {
        excludes: &["d/*.o"],
        ..pull(&["-r"], &["x/"])
    },
    "excluded file-list name: d/a.o",
    [Message::Dir(Box::new(DirListing {
        itself: list(&[(".", DIR)], 0),
        ..listing(0, "d", &[("a.o", FILE)])
    }))]
);
unrequested!(
    deletion_in_the_root_for_a_named_argument_is_rejected,
    pull(&["-r", "--delete"], &["x/d"]),
    "rejecting to clear",
    [Message::Dir(Box::new(DirListing {
        may_delete: true,
        ..listing(0, "", &[("d", DIR)])
    }))]
);
unrequested!(
    deletion_in_the_root_for_wildcards_is_rejected,
    pull(&["-r", "--delete"], &["x/d*"]),
    "rejecting to clear",
    [Message::Dir(Box::new(DirListing {
        may_delete: true,
        ..listing(0, "", &[("d", DIR)])
    }))]
);
unrequested!(
    deletion_in_a_directory_named_without_its_content_is_rejected,
    pull(&["-d", "--delete"], &["x/d"]),
    "rejecting to clear",
    [
        Message::Dir(Box::new(DirListing {
            is_named: true,
            ..listing(0, "", &[("d", DIR)])
        })),
        Message::Dir(Box::new(DirListing {
            may_delete: true,
            ..listing(1, "d", &[])
        })),
    ]
);
unrequested!(
    deletion_in_a_parent_of_an_argument_is_rejected,
    pull(&["-rR", "--delete"], &["mine/b"]),
    "rejecting to clear",
    [Message::Dir(Box::new(DirListing {
        itself: list(&[(".", DIR)], 0),
        may_delete: true,
        ..listing(0, "mine", &[])
    }))]
);

#[test]
fn file_types_without_their_option_are_not_created() {
    // A pipe, a socket, a device of each kind, a symlink. Symlinks and devices need options.
    const KINDS: [(&str, u32); 5] = [
        ("b", 0o060_644),
        ("c", 0o020_644),
        ("l", LINK),
        ("p", 0o010_644),
        ("s", 0o140_644),
    ];
    for (words, made) in [
        (&["-r"][..], &["f"][..]),
        (&["-rl"], &["f", "l"]),
        (&["-rp"], &["f"]),
    ] {
        let stage = Stage::new();
        let client = TestClient {
            words,
            sources: &["x/"],
            ..TestClient::default()
        };
        let ended = pulled(&stage, &client, |peer| {
            let mut entries = vec![("f", 0o106_755)];
            entries.extend(KINDS);
            entries.sort_unstable();
            let at = entries
                .iter()
                .position(|(name, _)| *name == "f")
                .expect("the entry exists") as u32;
            peer.send_messages(&[
                roots_message(),
                with_data(0, "", &entries),
                whole(Lane::Unrequested, file(0, at)),
                dirs_end(),
            ]);
            peer.receive_until(|message| matches!(message, Message::WantsEnd(_)).then_some(()));
            peer.send_message(&Message::Bye(Box::default()));
        });
        assert_eq!(ended.exit, Exit::Ok, "{words:?}: {}", ended.sentence);
        assert_eq!(stage.names(), made, "{words:?}");
        let mode = std::fs::metadata(stage.home().join("f"))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777;
        assert_eq!(
            mode,
            if words == ["-rp"] { 0o6755 } else { 0o755 },
            "{words:?}"
        );
    }
}

fn refuses_roots(client: &TestClient<'_>, roots: Roots, words: &str) {
    let stage = Stage::new();
    stage.has("mine", "mine");
    let ended = pulled(&stage, client, |peer| {
        peer.send_messages(&[Message::Roots(Box::new(roots)), dirs_end()]);
        answer_requests(peer);
    });
    ended.refuses(Exit::Protocol, words);
    assert_eq!(stage.names(), ["mine"]);
}

fn path(path: &str) -> RelPath {
    RelPath::parse(path.as_bytes()).unwrap()
}

#[test]
fn removal_without_delete_missing_args_is_rejected() {
    let roots = Roots {
        missing: vec![path("mine")],
        ..roots()
    };
    refuses_roots(
        &pull(&["-r"], &["x/"]),
        roots,
        "rejecting to remove file-list name: mine",
    );
}

#[test]
fn removal_of_an_unrequested_name_is_rejected() {
    let roots = Roots {
        missing: vec![path("mine")],
        ..Roots::default()
    };
    refuses_roots(
        &pull(&["-r", "--delete-missing-args"], &["x/d"]),
        roots,
        "unrequested file-list name: mine",
    );
}

#[test]
fn attributes_of_an_unrequested_root_are_rejected() {
    refuses_roots(
        &pull(&["-r"], &["x/d"]),
        roots(),
        "unrequested file-list name: .",
    );
}

#[test]
fn digest_request_for_an_unrequested_directory_is_rejected() {
    let roots = Roots {
        found: 1,
        whole: vec![path("private")],
        ..Roots::default()
    };
    refuses_roots(
        &pull(&["-r"], &["x/d"]),
        roots,
        "unrequested file-list name: private",
    );
}

#[test]
fn trust_sender_accepts_unrequested_names() {
    let stage = Stage::new();
    let ended = pulled(&stage, &pull(&["-r", "--trust-sender"], &["x/d"]), |peer| {
        peer.send_messages(&[roots_message(), dir(0, "", &[("other", FILE)]), dirs_end()]);
        answer_requests(peer);
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
    assert_eq!(stage.names(), ["other"]);
}

// Greetings.

#[test]
fn incompatible_versions_end_the_run() {
    for (oldest, newest) in [(2, 9), (0, 0)] {
        let stage = Stage::new();
        let ended = serve(&stage, &["-r"], false, |peer| {
            let mut greeting = Vec::new();
            encode_greeting(
                &Greeting {
                    oldest,
                    newest,
                    ..Greeting::ours([7; 16])
                },
                &mut greeting,
            );
            peer.send_bytes(&greeting);
            peer.receive_greeting();
        });
        assert_eq!(ended.exit, Exit::Protocol);
        stage.is_clean();
    }
}

#[test]
fn client_without_a_greeting_is_rejected() {
    let ended = serve(&Stage::new(), &["-r"], false, |peer| {
        peer.send_bytes(b"GET / HTTP/1.1\r\n\r\n");
        peer.receive_greeting();
    });
    assert_eq!(ended.exit, Exit::Protocol);
}

#[test]
fn client_that_hangs_up_during_greeting_ends_the_run() {
    let ended = serve(&Stage::new(), &["-r"], false, |peer| peer.hang_up());
    assert_eq!(ended.exit, Exit::Stream);
}

#[test]
fn setup_for_the_other_direction_is_rejected() {
    let ended = serve(&Stage::new(), &["-r"], false, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
    });
    ended.refuses(Exit::Protocol, "the other direction");
}

#[test]
fn message_in_place_of_the_setup_is_rejected() {
    let ended = serve(&Stage::new(), &["-r"], false, |peer| {
        peer.greet(None);
        peer.send_message(&roots_message());
        peer.receive_greeting();
    });
    assert_eq!(ended.exit, Exit::Protocol);
}

/// Returns what a sender sends in a whole session, if it need not react to the receiver.
fn recorded() -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_greeting(&Greeting::ours([7; 16]), &mut bytes);
    let mut dialect = Native::new(1);
    dialect
        .encode(&Message::Setup(Box::new(setup(false))), &mut bytes)
        .unwrap();
    let messages = [
        roots_message(),
        with_data(0, "", &[("a", FILE), ("d", DIR)]),
        whole(Lane::Unrequested, file(0, 0)),
        with_data(1, "d", &[("b", FILE)]),
        Message::Begin {
            file: file(1, 0),
            lane: Lane::Unrequested,
        },
        Message::Data {
            lane: Lane::Unrequested,
            data: b"hello".to_vec(),
        },
        Message::End {
            lane: Lane::Unrequested,
            digest: digest::whole(b"hello"),
        },
        dirs_end(),
    ];
    let mut frames = Vec::new();
    messages
        .iter()
        .for_each(|message| dialect.encode(message, &mut frames).unwrap());
    frames
        .chunks(70)
        .for_each(|piece| bytes.extend(chunk(piece)));
    bytes
}

#[test]
fn push_session_truncated_at_every_byte_fails_cleanly() {
    let bytes = recorded();
    for end in 0..=bytes.len() {
        let stage = Stage::new();
        let ended = serve(&stage, &["-r"], false, |peer| {
            peer.send_bytes(&bytes[..end]);
            peer.hang_up();
        });
        assert_eq!(ended.exit, Exit::Stream, "cut off behind byte {end}");
        stage.is_clean();
        for name in stage.names().iter().filter(|name| !name.ends_with('/')) {
            assert_eq!(
                std::fs::read(stage.home().join(name)).unwrap(),
                b"hello",
                "cut off behind byte {end}: {name}"
            );
        }
    }
}

/// Returns what a sender sends to a client that pulls: its greeting, then the recorded push after its setup.
fn recorded_for_a_client() -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_greeting(&Greeting::ours([7; 16]), &mut bytes);
    let mut behind = bytes.clone();
    Native::new(1)
        .encode(&Message::Setup(Box::new(setup(false))), &mut behind)
        .unwrap();
    bytes.extend(&recorded()[behind.len()..]);
    bytes
}

#[test]
fn pull_session_truncated_at_every_byte_fails_cleanly() {
    let bytes = recorded_for_a_client();
    for end in 0..=bytes.len() {
        let stage = Stage::new();
        let ended = pull(&["-r"], &["x/"]).against_unmet(&stage, |peer| {
            peer.send_bytes(&bytes[..end]);
            peer.hang_up();
        });
        assert_eq!(ended.exit, Exit::Stream, "cut off behind byte {end}");
        stage.is_clean();
        for name in stage.files() {
            assert_eq!(
                std::fs::read(stage.home().join(&name)).unwrap(),
                b"hello",
                "cut off behind byte {end}: {name}"
            );
        }
    }
}

// Floods.

#[test]
fn content_far_beyond_the_reported_length_is_rejected() {
    let stage = Stage::new();
    stage.has("a", "basis");
    let ended = push(&stage, &["-rI"], |peer| {
        peer.send_messages(&[roots_message(), dir(0, "", &[("a", FILE)]), dirs_end()]);
        let wanted = peer.receive_until(|message| match message {
            Message::Want { file, lane, .. } => Some((*lane, *file)),
            _ => None,
        });
        let (lane, file) = wanted.expect("the receiver requests the file");
        // Copies of the whole basis, as many as it takes.
        let copies = vec![
            Message::Copy {
                lane,
                offset_bytes: 0,
                len_bytes: 1 << 31,
            };
            4
        ];
        peer.send_message(&Message::Begin { file, lane });
        peer.send_messages(&copies);
    });
    ended.refuses(Exit::Protocol, "far beyond its reported length");
    assert_eq!(std::fs::read(stage.home().join("a")).unwrap(), b"basis");
}

#[test]
fn compression_bomb_is_rejected() {
    // Half a gigabyte of frames of an unknown kind. The first one is rejected.
    let zeros = vec![0; 1 << 20];
    let mut bomb = Vec::new();
    let mut squeezer = CompressingWriter::new(
        &mut bomb,
        CompressionPolicy::Always(Method::Zstd(3)),
        AsItIs::default(),
    );
    (0..512).for_each(|_| std::io::Write::write_all(&mut squeezer, &zeros).unwrap());
    drop(squeezer);
    assert!(bomb.len() < 200_000, "{}", bomb.len());
    let stage = Stage::new();
    let ended = serve(&stage, &["-r"], false, |peer| {
        peer.greet(Some(setup(false)));
        peer.receive_greeting();
        peer.send_bytes(&bomb);
    });
    ended.refuses(Exit::Protocol, "unknown message kind 0");
    assert_eq!(stage.names(), [""; 0]);
}
