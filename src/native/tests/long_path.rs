//! Windows that grow on a long round trip. The peer is scripted, so the round trip takes as long as the script does.

use super::*;
use crate::proto::limits::{INITIAL_WINDOWS, WINDOWS_MAX};
use crate::proto::{Basis, Class, DestDirState, class_of};
use crate::transport::window_limit::Ceiling;

const REQUESTED: usize = Class::Requested as usize;
/// A frame may exceed the rest of a window by this much.
const FRAME_MAX_BYTES: u64 = (256 << 10) + 64;

fn cost(message: &Message) -> u64 {
    let mut frame = Vec::new();
    Native::new(1).encode(message, &mut frame).unwrap();
    frame.len() as u64
}

/// Requests a file of this length from an honest server and continues with `play`.
fn pull(len_bytes: u64, play: impl FnOnce(&mut Peer)) -> Ended {
    let stage = Stage::new();
    stage.has("f", "");
    std::fs::File::options()
        .write(true)
        .open(stage.home().join("f"))
        .unwrap()
        .set_len(len_bytes)
        .unwrap();
    serve(&stage, &["-r", "--no-compress"], true, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
        peer.send_message(&Message::Digests(vec![DestDirState::Dir {
            digest: None,
            children: Vec::new(),
        }]));
        assert!(
            peer.receive_until(|message| matches!(message, Message::DirsEnd(_)).then_some(()))
                .is_some()
        );
        peer.send_message(&Message::Want {
            file: file(0, 0),
            lane: Lane::Requested,
            basis: Basis::None,
        });
        play(peer);
    })
}

/// Reads data until the file ends or the sender reports that it is blocked. Returns the length of the data, and whether
/// there is more.
fn take(peer: &mut Peer) -> (u64, bool) {
    let mut bytes = 0;
    let is_blocked = peer.receive_until(|message| {
        bytes += if class_of(message) == Some(Class::Requested) {
            cost(message)
        } else {
            0
        };
        match message {
            Message::End { .. } => Some(false),
            Message::Blocked(class) => Some(*class == Class::Requested),
            _ => None,
        }
    });
    (bytes, is_blocked.expect("more content follows"))
}

#[test]
fn sender_fills_a_growing_window_and_reports_blocked() {
    let ended = pull(32 << 20, |peer| {
        let mut window = INITIAL_WINDOWS[REQUESTED];
        let mut overdrawn = 0;
        for is_blocked in [true, true, false] {
            let (bytes, more) = take(peer);
            assert_eq!(more, is_blocked);
            if more {
                let sent = bytes + overdrawn;
                assert!(
                    (window..window + FRAME_MAX_BYTES).contains(&sent),
                    "{sent} of {window}"
                );
                overdrawn = sent - window;
                peer.send_message(&Message::Grant {
                    class: Class::Requested,
                    bytes: 2 * window,
                });
                window *= 2;
            }
        }
        peer.send_messages(&[Message::Done(0), Message::WantsEnd(Box::default())]);
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
}

#[test]
fn grant_beyond_the_maximum_window_is_rejected() {
    let (initial, max) = (INITIAL_WINDOWS[REQUESTED], WINDOWS_MAX[REQUESTED]);
    // Nothing was sent in this class, so its window still has its initial size.
    let ended = serve(&Stage::new(), &["-r"], true, |peer| {
        peer.greet(Some(setup(true)));
        peer.receive_greeting();
        peer.receive();
        peer.send_message(&Message::Grant {
            class: Class::Requested,
            bytes: max - initial + 1,
        });
    });
    ended.refuses(Exit::Protocol, "Requested grant exceeds the bytes sent");
}

/// Pushes a file and is blocked by each window in turn. `windows`: the expected sizes of the next windows.
fn is_blocked_by(stage: &Stage, windows: &[u64]) {
    let ended = serve(stage, &["-r"], false, |peer| {
        peer.greet(Some(setup(false)));
        peer.receive_greeting();
        peer.send();
        peer.send_messages(&[roots_message(), dir(0, "", &[("f", FILE)]), dirs_end()]);
        let wanted = peer.receive_until(|message| match message {
            Message::Want { file, .. } => Some(*file),
            _ => None,
        });
        let (file, lane) = (wanted.expect("it wants the file"), Lane::Requested);
        let data = Message::Data {
            lane,
            data: vec![7; 256 << 10],
        };
        peer.send_message(&Message::Begin { file, lane });
        let mut sent = cost(&Message::Begin { file, lane });
        let (mut granted, mut pieces) = (INITIAL_WINDOWS[REQUESTED], 0);
        for window in windows {
            while sent < granted {
                peer.send_message(&data);
                (sent, pieces) = (sent + cost(&data), pieces + 1);
            }
            // Whether or not the receiver writes as fast as it reads, it gets no more data before all is written.
            peer.send_message(&Message::Blocked(Class::Requested));
            while granted < sent + window {
                match peer.receive_message().expect("more content follows") {
                    Message::Grant {
                        class: Class::Requested,
                        bytes,
                    } => granted += bytes,
                    Message::Fail { message, .. } => {
                        panic!("{}", String::from_utf8_lossy(&message))
                    }
                    _ => {}
                }
            }
            assert_eq!(
                granted,
                sent + window,
                "everything sent was consumed, and the window grew"
            );
        }
        let digest = crate::digest::whole(&vec![7; pieces * (256 << 10)]);
        peer.send_message(&Message::End { lane, digest });
        assert!(
            peer.receive_until(|message| matches!(message, Message::WantsEnd(_)).then_some(()))
                .is_some()
        );
        peer.send_message(&Message::Bye(Box::default()));
    });
    assert_eq!((ended.exit, ended.sentence.as_str()), (Exit::Ok, ""));
    assert_eq!(stage.files(), ["f"]);
}

#[test]
fn receiver_grows_its_window_for_a_blocked_sender() {
    is_blocked_by(
        &Stage::new(),
        &[
            2 * INITIAL_WINDOWS[REQUESTED],
            4 * INITIAL_WINDOWS[REQUESTED],
        ],
    );
}

#[test]
fn window_grows_up_to_the_limit_of_the_server() {
    let between = INITIAL_WINDOWS[REQUESTED] * 3 / 2;
    let stage = Stage {
        ceiling: Ceiling::shared().unwrap(),
        ..Stage::new()
    };
    stage.ceiling.set(between).unwrap();
    is_blocked_by(&stage, &[between]);
}
