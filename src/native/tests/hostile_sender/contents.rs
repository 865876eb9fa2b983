//! Contents of files that were not requested, are wrong, or come out of order.

use super::*;

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
