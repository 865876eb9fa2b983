//! A client that looks at its source before it has a server, and speaks before that does.

use super::no_room::Trees;
use super::*;
use crate::options::Compression;
use crate::path::RelPath;
use crate::role::ahead::{Aim, Early};
use crate::role::sight::Guess;
use crate::role::terms::Terms;

/// A client in `cwd` that sends `src` to `dst`, or gets it from there.
fn client<'a>(options: &'a Options, cwd: &'a [u8], stop: &'a AtomicBool, is_pull: bool) -> Near<'a> {
    Near {
        options,
        speech: Speech::ours(codec::features(None)),
        setup: setup(is_pull),
        sources: vec![at(cwd, "src")],
        dest: is_pull.then(|| at(cwd, "dst")),
        rules: rules(),
        listed: None,
        cwd,
        umask: 0o022,
        stop,
        threads: 2,
        stop_at_unix_secs: None,
        outlives_loss: false,
    }
}

/// The terms of such a client.
fn terms_of<'a>(near: &'a Near<'_>) -> Terms<'a> {
    Terms {
        options: near.options,
        rules: &near.rules,
        cwd: near.cwd,
        umask: near.umask,
        stop: near.stop,
        threads: near.threads,
        stop_at_unix_secs: None,
        outlives_loss: false,
    }
}

/// What its server makes of what it says; `operand`: the path that is there.
fn settled(options: &Options, operand: &[u8]) -> Settled {
    let operands = vec![operand.to_vec()];
    Settled { options: options.clone(), rules: rules(), operands, listed: None, outlives_loss: false }
}

fn rules() -> Rules {
    Rules::new(Vec::new(), ChainOptions::default())
}

fn at(cwd: &[u8], name: &str) -> Vec<u8> {
    [cwd, b"/", name.as_bytes(), b"/"].concat()
}

/// Pushes a file that is changed once the client has looked at it; what the destination has then. `good_for`: so long the
/// look counts. `speaks_first`: the client says what it can before the server says anything.
fn pushed(good_for: Duration, speaks_first: bool) -> String {
    let top = tempfile::tempdir().unwrap();
    let trees = [("d/file".to_owned(), "before".to_owned())];
    Trees::of(&trees, &[]).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let (options, stop) = (options(&["-a"]), AtomicBool::new(false));
    let near = client(&options, cwd, &stop, false);
    let settle = |_: &Setup| Ok(settled(&options, &at(cwd, "dst")));
    let aim = Aim { early: Some(good_for), ..Aim::early(terms_of(&near), &near.sources, [7; 16], true) };
    let ended = aim.look(|looking| {
        while looking.found() < 2 {
            std::thread::yield_now();
        }
        std::fs::write(top.path().join("src/d/other"), "new").unwrap();
        let early = Early::Source(Box::new(looking));
        let (mut ours, theirs) = pipe::pair(ROOM_BYTES);
        let said = speaks_first.then(|| near.first_words(Some(&early)));
        said.iter().for_each(|first| ours.writer.write_all(&first.bytes).unwrap());
        std::thread::scope(|scope| {
            let speech = Speech::ours(codec::features(None));
            scope.spawn(move || session::serve(theirs, &speech, cwd, 0o022, &AtomicBool::new(false), 2, &settle));
            near.run(ours, (said, Some(early)), &mut reporter(&options), &mut Tally::default())
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
    assert_eq!(pushed(LIMIT, false), "file");
    assert_eq!(pushed(Duration::ZERO, false), "file other");
}

#[test]
fn a_look_of_which_the_server_was_told_counts() {
    assert_eq!(pushed(LIMIT, true), "file");
    assert_eq!(pushed(Duration::ZERO, true), "file");
}

/// Pulls into a destination in which a file is changed once the client has looked at it; what that has then. `good_for`: so
/// long the look counts. `whole`: what is looked at, it is thought. `elsewhere`: the destination is another one by then.
fn pulled(good_for: Duration, whole: &str, elsewhere: bool) -> String {
    let top = tempfile::tempdir().unwrap();
    let tree = [("d/file".to_owned(), "text".to_owned())];
    Trees::of(&tree, &tree).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let (options, stop) = (options(&["-a"]), AtomicBool::new(false));
    let near = client(&options, cwd, &stop, true);
    let settle = |_: &Setup| Ok(settled(&options, &at(cwd, "src")));
    let set_time = |path: &str| {
        let file = std::fs::File::options().write(true).open(top.path().join(path)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(9)).unwrap();
    };
    ["src/d/file", "dst/d/file"].iter().for_each(|path| set_time(path));
    for name in ["d", "."] {
        let time = std::fs::metadata(top.path().join("src").join(name)).unwrap().modified().unwrap();
        std::fs::File::open(top.path().join("dst").join(name)).unwrap().set_modified(time).unwrap();
    }
    let whole = RelPath::parse(whole.as_bytes()).unwrap();
    let dest = at(cwd, "dst");
    let guess = Guess { terms: terms_of(&near), dest: &dest, whole: whole.clone(), key: [7; 16], good_for };
    let ended = guess.look(|glance| {
        let glance = glance.expect("there is a destination");
        while glance.seen() < if whole.is_root() { 2 } else { 1 } {
            std::thread::yield_now();
        }
        std::fs::write(top.path().join("dst/d/file"), "changed since").unwrap();
        if elsewhere {
            std::fs::rename(top.path().join("dst"), top.path().join("old")).unwrap();
        }
        let (ours, theirs) = pipe::pair(ROOM_BYTES);
        std::thread::scope(|scope| {
            let speech = Speech::ours(codec::features(None));
            scope.spawn(move || session::serve(theirs, &speech, cwd, 0o022, &AtomicBool::new(false), 2, &settle));
            near.run(ours, (None, Some(Early::Dest(glance))), &mut reporter(&options), &mut Tally::default())
        })
    });
    ended.unwrap().unwrap();
    std::fs::read_to_string(top.path().join("dst/d/file")).unwrap()
}

#[test]
fn a_look_at_the_destination_counts_for_a_while_and_then_there_is_another() {
    assert_eq!(pulled(LIMIT, "", false), "changed since");
    assert_eq!(pulled(Duration::ZERO, "", false), "text");
}

#[test]
fn a_look_at_something_else_does_not_count() {
    assert_eq!(pulled(LIMIT, "d", false), "text");
    assert_eq!(pulled(LIMIT, "", true), "text");
}

/// Copies with a client that says what it can before it hears a server, which takes these compressions; how it ended, and
/// whether it could say what it wants.
fn met(words: &[&str], takes: &[Compression], is_pull: bool) -> (Exit, bool) {
    let top = tempfile::tempdir().unwrap();
    Trees::of(&[("d/file".to_owned(), "text".to_owned())], &[]).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let (options, stop) = (options(words), AtomicBool::new(false));
    let near = client(&options, cwd, &stop, is_pull);
    let settle = |_: &Setup| Ok(settled(&options, &at(cwd, if is_pull { "src" } else { "dst" })));
    let (mut ours, theirs) = pipe::pair(ROOM_BYTES);
    let first = near.first_words(None);
    ours.writer.write_all(&first.bytes).unwrap();
    let mut greeting = Vec::new();
    encode_greeting(&Greeting::ours([0; 16]), &mut greeting);
    let has_setup = first.bytes.len() > greeting.len();
    let speech = Speech::ours(codec::features(Some(takes)));
    let ended = std::thread::scope(|scope| {
        scope.spawn(move || session::serve(theirs, &speech, cwd, 0o022, &AtomicBool::new(false), 2, &settle));
        near.run(ours, (Some(first), None), &mut reporter(&options), &mut Tally::default())
    });
    let text = std::fs::read_to_string(top.path().join("dst/d/file"));
    assert_eq!(text.is_ok_and(|text| text == "text"), ended.is_ok(), "{words:?}");
    (ended.map_or_else(|error| error.exit, |()| Exit::Ok), has_setup)
}

#[test]
fn what_is_said_first_suits_a_server_that_is_not_known() {
    use Compression::{Lz4, Zlib, Zstd};
    let (auto, lz4) = (["-a", "-z"], ["-a", "-z", "--compress-choice=lz4"]);
    for is_pull in [true, false] {
        for takes in [&[Zstd, Lz4][..], &[Lz4], &[Zlib]] {
            assert_eq!(met(&["-a"], takes, is_pull), (Exit::Ok, true));
            assert_eq!(met(&auto, takes, is_pull), (Exit::Ok, true));
            // What depends on the server waits for it.
            let ended = if takes.contains(&Lz4) { Exit::Ok } else { Exit::Unsupported };
            assert_eq!(met(&lz4, takes, is_pull), (ended, false));
        }
    }
}
