//! A plan that a hostile client sends: it comes first, once, and only if it was announced.

use super::*;

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
