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

mod contents;
mod floods;
mod greetings;
mod names;
mod order;
mod plans;
mod requests;

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
