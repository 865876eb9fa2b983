//! A client that looks at its source before it has a server.

use super::no_room::Trees;
use super::*;
use crate::role::ahead::Aim;
use crate::role::terms::Terms;

/// Pushes a file that is changed once the client has looked at it; what the destination has then. `good_for`: so long the
/// look counts.
fn pushed(good_for: Duration) -> String {
    let top = tempfile::tempdir().unwrap();
    let trees = [("d/file".to_owned(), "before".to_owned())];
    Trees::of(&trees, &[]).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let at = |name: &str| [cwd, b"/", name.as_bytes(), b"/"].concat();
    let (sources, dest) = (vec![at("src")], at("dst"));
    let (options, stop) = (options(&["-a"]), AtomicBool::new(false));
    let rules = || Rules::new(Vec::new(), ChainOptions::default());
    let near = Near {
        options: &options,
        speech: Speech::ours(codec::features(None)),
        setup: setup(false),
        sources: sources.clone(),
        dest: None,
        rules: rules(),
        listed: None,
        cwd,
        umask: 0o022,
        stop: &stop,
        threads: 2,
        stop_at_unix_secs: None,
        outlives_loss: false,
    };
    let settle = |_: &Setup| {
        let operands = vec![dest.clone()];
        Ok(Settled { options: options.clone(), rules: rules(), operands, listed: None, outlives_loss: false })
    };
    let terms = Terms {
        options: &options,
        rules: &near.rules,
        cwd,
        umask: 0o022,
        stop: &stop,
        threads: 2,
        stop_at_unix_secs: None,
        outlives_loss: false,
    };
    let aim = Aim { early: Some(good_for), ..Aim::early(terms, &sources, [7; 16], true) };
    let ended = aim.look(|looking| {
        while looking.found() < 2 {
            std::thread::yield_now();
        }
        std::fs::write(top.path().join("src/d/other"), "new").unwrap();
        let (ours, theirs) = pipe::pair(ROOM_BYTES);
        std::thread::scope(|scope| {
            let speech = Speech::ours(codec::features(None));
            scope.spawn(move || session::serve(theirs, &speech, cwd, 0o022, &AtomicBool::new(false), 2, &settle));
            near.run(ours, Some(looking), &mut reporter(&options), &mut Tally::default())
        })
    });
    ended.unwrap().unwrap();
    let mut there: Vec<_> = std::fs::read_dir(top.path().join("dst/d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    there.join(" ")
}

#[test]
fn a_look_counts_for_a_while_and_then_there_is_another() {
    assert_eq!(pushed(LIMIT), "file");
    assert_eq!(pushed(Duration::ZERO), "file other");
}
