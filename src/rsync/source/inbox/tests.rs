//! Tests of the bounds on what waits.

use super::*;
use crate::session::in_time::in_time;

const FILE: FileId = FileId { dir: 1, entry: 2 };

#[test]
fn listings_that_wait_are_bounded() {
    let inbox = SourceInbox::new(true);
    let add = |cost| inbox.add_listing(Box::default(), cost, 100);
    assert_eq!([60, 40, 1].map(add), [true, true, false]);
    inbox.lock().listings.pop();
    assert_eq!([60, 1].map(add), [true, false]);
}

#[test]
fn content_waits_for_room_unless_a_file_is_repeated() {
    in_time(|| {
        let inbox = SourceInbox::new(true);
        let piece = || ContentPiece::Data(Vec::new());
        let first = (FILE, Attempt::First);
        inbox.expect_file(first);
        // The reading thread waits many times.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1000 {
                    inbox.add_piece(first, piece(), FIRST_MAX_BYTES).unwrap();
                }
            });
            for _ in 0..999 {
                inbox.take_piece(first).unwrap();
            }
        });
        // The one that is repeated comes behind another one. Nothing can be set aside here.
        let other = (FileId { dir: 7, entry: 7 }, Attempt::First);
        inbox.expect_file(other);
        inbox.expect_file((FILE, Attempt::Again));
        inbox.add_piece(other, piece(), 1).unwrap();
        inbox
            .end_file((FILE, Attempt::Again), Ok(ContentDigest::default()), None)
            .unwrap();
        inbox.close();
        assert!(inbox.add_piece(first, piece(), 1).is_err());
    });
}

#[test]
fn content_without_room_is_set_aside_while_a_file_is_repeated() {
    const PIECE_BYTES: usize = 1 << 20;
    in_time(|| {
        let top = tempfile::tempdir().unwrap();
        let inbox = SourceInbox::new(true);
        let opened = std::fs::File::open(top.path()).unwrap();
        inbox.set_aside_in(&Dir::new(opened.into()));
        let files: Vec<ContentKey> = (0..3)
            .map(|entry| (FileId { dir: 7, entry }, Attempt::First))
            .collect();
        for key in &files {
            inbox.expect_file(*key);
        }
        let repeated = (FILE, Attempt::Again);
        inbox.expect_file(repeated);
        let data = |number: u8| vec![number; PIECE_BYTES];
        let copy = |number: u8| ContentPiece::Copy {
            offset_bytes: u64::from(number) << 40,
            len_bytes: u64::MAX,
        };
        for key in &files {
            inbox.begin_file(*key);
            for number in 0..20 {
                let literal = ContentPiece::Data(data(number));
                inbox.add_piece(*key, literal, PIECE_BYTES as u64).unwrap();
                inbox.add_piece(*key, copy(number), 1).unwrap();
            }
            let digest = Ok(ContentDigest::default());
            inbox.end_file(*key, digest, Some(7)).unwrap();
        }
        let in_memory = inbox.lock().waiting.first_bytes;
        assert!(in_memory < FIRST_MAX_BYTES + 2 * PIECE_BYTES as u64);
        assert!(inbox.set_aside.stored_bytes() > 50 * PIECE_BYTES as u64);
        // The file has no name.
        assert_eq!(top.path().read_dir().unwrap().count(), 0);
        let digest = Ok(ContentDigest::default());
        inbox.end_file(repeated, digest, None).unwrap();

        assert!(inbox.refusal(files[2]).unwrap().is_none());
        inbox.discard(files[1]);
        for key in [files[0], files[2]] {
            for number in 0..20 {
                let (literal, _) = inbox.take_piece(key).unwrap();
                assert!(matches!(literal, ContentPiece::Data(got) if got == data(number)));
                let (range, _) = inbox.take_piece(key).unwrap();
                assert_eq!(format!("{range:?}"), format!("{:?}", copy(number)));
            }
            let (end, moved_bytes) = inbox.take_piece(key).unwrap();
            assert!(end.is_last() && moved_bytes == Some(7));
        }
        assert_eq!(inbox.set_aside.stored_bytes(), 0);
        assert_eq!(inbox.lock().waiting.content_bytes(), 0);
    });
}

#[test]
fn content_that_is_being_taken_waits_for_room_in_memory() {
    const PIECES: u64 = 100;
    for key in [(FILE, Attempt::First), (FILE, Attempt::Again)] {
        in_time(move || {
            let inbox = SourceInbox::new(true);
            let waiting = (FileId { dir: 7, entry: 7 }, Attempt::First);
            inbox.expect_file(waiting);
            inbox.expect_file((FileId { dir: 7, entry: 7 }, Attempt::Again));
            inbox.expect_file(key);
            let piece = || ContentPiece::Data(Vec::new());
            inbox.add_piece(waiting, piece(), FIRST_MAX_BYTES).unwrap();
            std::thread::scope(|scope| {
                let taking = scope.spawn(|| {
                    for _ in 0..PIECES {
                        inbox.take_piece(key).unwrap();
                    }
                });
                while !inbox.lock().files[&key].is_taken {
                    std::thread::yield_now();
                }
                for _ in 0..PIECES {
                    inbox.add_piece(key, piece(), TAKEN_MAX_BYTES / 2).unwrap();
                    let held_bytes = inbox.lock().files[&key].held_bytes;
                    assert!(held_bytes <= TAKEN_MAX_BYTES * 3 / 2, "{held_bytes}");
                }
                taking.join().unwrap();
            });
        });
    }
}

#[test]
fn declined_content_takes_no_room() {
    in_time(|| {
        let inbox = SourceInbox::new(true);
        let piece = || ContentPiece::Data(Vec::new());
        let key = (FILE, Attempt::First);
        inbox.expect_file(key);
        inbox.add_piece(key, piece(), FIRST_MAX_BYTES).unwrap();
        inbox.discard(key);
        inbox.add_piece(key, piece(), FIRST_MAX_BYTES).unwrap();
        inbox.add_piece(key, piece(), FIRST_MAX_BYTES).unwrap();
        inbox
            .end_file(key, Ok(ContentDigest::default()), None)
            .unwrap();
        assert!(!inbox.is_expected(key));
    });
}
