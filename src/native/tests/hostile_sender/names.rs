//! Names that the encoder rejects, encoded by hand, and names that lead out of the destination.

use super::*;

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
