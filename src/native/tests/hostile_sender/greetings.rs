//! Greetings, the request, and sessions that end in the middle.

use super::*;

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
