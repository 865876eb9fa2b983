//! Messages that come out of order, or that only a receiver may send.

use super::*;

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
    totals_without_a_request_are_rejected,
    Protocol,
    "totals that were not requested",
    [Message::Totals(Default::default())]
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
