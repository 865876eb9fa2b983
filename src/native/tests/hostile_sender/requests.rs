//! Entries that a client has not requested.

use super::*;

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
