//! Messages without end, and more data than was announced.

use super::*;

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
        takes_totals: None,
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
