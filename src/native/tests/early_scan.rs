//! A client that scans its source or destination before it is connected, and sends messages before the server does.

use super::*;
use crate::native::dest_prescan::Guess;
use crate::native::dir_digest::SourceDigester;
use crate::native::early_scan::EarlyScan;
use crate::native::tests::no_room::{Trees, all};
use crate::options::Compression;
use crate::path::RelPath;
use crate::proto::message::ASKS_FIRST;
use crate::session::source_prefetch::PrefetchParams;
use crate::transport::window_limit::Ceiling;
use crate::walk::run_context::{Process, RunContext};

/// Returns a client in `cwd` that sends `src` to `dst`, or receives it.
fn client<'a>(
    options: &'a Options,
    cwd: &'a [u8],
    stop: &'a AtomicBool,
    is_pull: bool,
) -> NativeClient<'a> {
    NativeClient {
        headway: Default::default(),
        key: [7; 16],
        support: ProtocolSupport::ours(compression_choice::features(None)),
        client: Client {
            options,
            setup: setup(is_pull),
            sources: vec![at(cwd, "src")],
            dest: is_pull.then(|| at(cwd, "dst")),
            rules: rules(),
            listed: None,
            process: Process {
                cwd,
                umask: 0o022,
                stop,
                threads: 2,
                checksum_cache: None,
                stored: None,
                explainer: None,
            },
            repeats: false,
            interrupted: stop,
            is_net: false,
            is_local: false,
            gauge: None,
        },
    }
}

/// Returns the context of such a client.
fn terms_of<'a>(near: &'a NativeClient<'_>) -> RunContext<'a> {
    RunContext {
        options: near.client.options,
        rules: &near.client.rules,
        process: near.client.process,
        repeats: false,
        interrupted: near.client.process.stop,
        gauge: None,
    }
}

/// Returns what its server makes of the request. `operand`: the path to serve.
fn settled(options: &Options, operand: &[u8]) -> SettledSetup {
    let operands = vec![operand.to_vec()];
    SettledSetup {
        options: options.clone(),
        rules: rules(),
        operands,
        listed: None,
        repeats: false,
        server_stops: Arc::default(),
        ceiling: Ceiling::default(),
        beyond: None,
    }
}

fn rules() -> Rules {
    Rules::new(Vec::new(), ChainOptions::default())
}

fn at(cwd: &[u8], name: &str) -> Vec<u8> {
    [cwd, b"/", name.as_bytes(), b"/"].concat()
}

/// Pushes a tree in which a file appears after the client has scanned it. Returns the names in `dst/d` afterwards.
/// `good_for`: how long the scan is valid. `sends_first`: the client sends what it can before the server sends
/// anything.
fn pushed(good_for: Duration, sends_first: bool) -> String {
    let top = tempfile::tempdir().unwrap();
    let trees = [("d/file".to_owned(), "before".to_owned())];
    Trees::of(&trees, &[]).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let (options, stop) = (options(&["-a"]), AtomicBool::new(false));
    let near = client(&options, cwd, &stop, false);
    let settle = |_: &Setup| Ok(settled(&options, &at(cwd, "dst")));
    let digester = SourceDigester {
        key: [7; 16],
        options: &options,
    };
    let params = PrefetchParams {
        early: Some(good_for),
        ..PrefetchParams::early(terms_of(&near), &near.client.sources, Some(&digester), true)
    };
    let ended = params.with_prefetch(|prefetch| {
        while prefetch.count_so_far().entries < 2 {
            std::thread::yield_now();
        }
        std::fs::write(top.path().join("src/d/other"), "new").unwrap();
        let early = EarlyScan::Source(Box::new(prefetch));
        let (mut ours, theirs) = pipe::pair(ROOM_BYTES);
        let first_words = sends_first.then(|| near.first_words(Some(&early)));
        first_words
            .iter()
            .for_each(|first| ours.writer.write_all(&first.words()).unwrap());
        std::thread::scope(|scope| {
            let support = ProtocolSupport::ours(compression_choice::features(None));
            scope.spawn(move || {
                server_at(cwd, &AtomicBool::new(false), &settle).serve(theirs, &support)
            });
            near.run(
                ours,
                first_words,
                Some(early),
                &mut reporter(&options),
                &mut Tally::default(),
            )
        })
    });
    ended.unwrap().unwrap();
    let mut names: Vec<_> = std::fs::read_dir(top.path().join("dst/d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.join(" ")
}

#[test]
fn expired_source_prefetch_is_repeated() {
    assert_eq!(pushed(LIMIT, false), "file");
    assert_eq!(pushed(Duration::ZERO, false), "file other");
}

#[test]
fn announced_source_prefetch_does_not_expire() {
    assert_eq!(pushed(LIMIT, true), "file");
    assert_eq!(pushed(Duration::ZERO, true), "file");
}

/// Pulls into a destination in which a file changes after the client has scanned it. Returns the text of the file
/// afterwards. `good_for`: how long the scan is valid. `whole`: the guess of what is compared. `elsewhere`: the
/// destination is replaced meanwhile.
fn pulled(good_for: Duration, whole: &str, elsewhere: bool) -> String {
    let top = tempfile::tempdir().unwrap();
    let tree = [("d/file".to_owned(), "text".to_owned())];
    Trees::of(&tree, &tree).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let (options, stop) = (options(&["-a"]), AtomicBool::new(false));
    let near = client(&options, cwd, &stop, true);
    let settle = |_: &Setup| Ok(settled(&options, &at(cwd, "src")));
    let set_time = |path: &str| {
        let file = std::fs::File::options()
            .write(true)
            .open(top.path().join(path))
            .unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(9))
            .unwrap();
    };
    ["src/d/file", "dst/d/file"]
        .iter()
        .for_each(|path| set_time(path));
    for name in ["d", "."] {
        let time = std::fs::metadata(top.path().join("src").join(name))
            .unwrap()
            .modified()
            .unwrap();
        std::fs::File::open(top.path().join("dst").join(name))
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
    let whole = RelPath::parse(whole.as_bytes()).unwrap();
    let dest = at(cwd, "dst");
    let guess = Guess {
        run_context: terms_of(&near),
        dest: &dest,
        whole: whole.clone(),
        key: [7; 16],
        good_for,
    };
    let ended = guess.with_prescan(|prescan| {
        let prescan = prescan.expect("the destination exists");
        while prescan.predicted.count() < if whole.is_root() { 2 } else { 1 } {
            std::thread::yield_now();
        }
        std::fs::write(top.path().join("dst/d/file"), "changed since").unwrap();
        if elsewhere {
            std::fs::rename(top.path().join("dst"), top.path().join("old")).unwrap();
        }
        let (ours, theirs) = pipe::pair(ROOM_BYTES);
        std::thread::scope(|scope| {
            let support = ProtocolSupport::ours(compression_choice::features(None));
            scope.spawn(move || {
                server_at(cwd, &AtomicBool::new(false), &settle).serve(theirs, &support)
            });
            near.run(
                ours,
                None,
                Some(EarlyScan::Dest(prescan)),
                &mut reporter(&options),
                &mut Tally::default(),
            )
        })
    });
    ended.unwrap().unwrap();
    std::fs::read_to_string(top.path().join("dst/d/file")).unwrap()
}

#[test]
fn expired_destination_prescan_is_repeated() {
    assert_eq!(pulled(LIMIT, "", false), "changed since");
    assert_eq!(pulled(Duration::ZERO, "", false), "text");
}

#[test]
fn prescan_of_another_directory_is_ignored() {
    assert_eq!(pulled(LIMIT, "d", false), "text");
    assert_eq!(pulled(LIMIT, "", true), "text");
}

/// A pull of `source` into `dst` by a client that guesses that `whole` will be compared.
struct Guessing<'a> {
    source: &'a str,
    whole: &'a str,
    /// The files in the destination; `None` if it does not exist.
    dest: Option<&'a [(&'a str, &'a str)]>,
    /// The client does not wait for the server's greeting.
    sends_first: bool,
}

impl Guessing<'_> {
    /// Returns the exit code, and whether the copy equals the source.
    fn run(&self) -> (Exit, bool) {
        let top = tempfile::tempdir().unwrap();
        let source = [("a", "a"), ("d/b", "b"), ("d/e/c", "c")];
        let owned = |tree: &[(&str, &str)]| {
            tree.iter()
                .map(|(name, text)| (name.to_string(), text.to_string()))
                .collect()
        };
        let (source, dest): (Vec<_>, Vec<_>) =
            (owned(&source), owned(self.dest.unwrap_or_default()));
        Trees::of(&source, &dest).make(top.path());
        if self.dest.is_none() {
            std::fs::remove_dir(top.path().join("dst")).unwrap();
        }
        let cwd = top.path().as_os_str().as_bytes();
        let (options, stop) = (options(&["-a", "--delete"]), AtomicBool::new(false));
        let near = client(&options, cwd, &stop, true);
        let settle = |_: &Setup| {
            Ok(settled(
                &options,
                &[cwd, b"/", self.source.as_bytes()].concat(),
            ))
        };
        let (dest, whole) = (
            at(cwd, "dst"),
            RelPath::parse(self.whole.as_bytes()).unwrap(),
        );
        let guess = Guess {
            run_context: terms_of(&near),
            dest: &dest,
            whole,
            key: [7; 16],
            good_for: LIMIT,
        };
        let (mut ours, theirs) = pipe::pair(ROOM_BYTES);
        let ended = guess.with_prescan(|prescan| {
            let prescan = prescan.expect("a directory, or missing");
            while prescan.predicted.count() == 0 {
                std::thread::yield_now();
            }
            let early = EarlyScan::Dest(prescan);
            let first_words = self.sends_first.then(|| near.first_words(Some(&early)));
            first_words
                .iter()
                .for_each(|first| ours.writer.write_all(&first.words()).unwrap());
            std::thread::scope(|scope| {
                let support = ProtocolSupport::ours(compression_choice::features(None));
                scope.spawn(move || {
                    server_at(cwd, &AtomicBool::new(false), &settle).serve(theirs, &support)
                });
                near.run(
                    ours,
                    first_words,
                    Some(early),
                    &mut reporter(&options),
                    &mut Tally::default(),
                )
            })
        });
        let tree = |name: &str| {
            let all = all(&top.path().join(name));
            all.into_iter()
                .map(|(path, content)| (path, content.replace(&format!("{name}/"), "")))
                .collect::<Vec<_>>()
        };
        let dest = if self.source.ends_with('/') {
            "dst"
        } else {
            "dst/src"
        };
        let is_whole =
            std::fs::read_dir(top.path().join("dst")).is_ok() && tree(dest) == tree("src");
        (
            ended
                .unwrap()
                .map_or_else(|error| error.exit, |()| Exit::Ok),
            is_whole,
        )
    }
}

#[test]
fn copy_is_complete_whatever_was_guessed() {
    let same: &[_] = &[("a", "a"), ("d/b", "b"), ("d/e/c", "c")];
    let other: &[_] = &[
        ("a", "other"),
        ("d/b", "b"),
        ("d/x/y", "y"),
        ("src/d/e/c", "old"),
        ("z", "z"),
    ];
    for dest in [None, Some(&[][..]), Some(same), Some(other)] {
        for (source, whole) in [
            ("src/", ""),
            ("src", "src"),
            ("src/", "d"),
            ("src/", "x"),
            ("src", ""),
            ("src", "d"),
        ] {
            for sends_first in [true, false] {
                let case = Guessing {
                    source,
                    whole,
                    dest,
                    sends_first,
                };
                let name = format!("{source} as {whole:?} to {dest:?}, {sends_first}");
                assert_eq!(case.run(), (Exit::Ok, true), "{name}");
            }
        }
    }
}

/// Runs a client that has scanned `dst` in `home`, and requests a tree from a scripted server.
fn by_hand(stage: &Stage, play: impl FnOnce(&mut Peer)) -> Ended {
    let home = stage.home();
    let honest = move |link: Link| {
        let cwd = home.as_os_str().as_bytes();
        let (options, stop) = (options(&["-a"]), AtomicBool::new(false));
        let near = client(&options, cwd, &stop, true);
        let dest = at(cwd, "dst");
        let guess = Guess {
            run_context: terms_of(&near),
            dest: &dest,
            whole: RelPath::root(),
            key: [7; 16],
            good_for: LIMIT,
        };
        let ended = guess.with_prescan(|prescan| {
            let prescan = prescan.expect("the destination exists");
            while prescan.predicted.count() < 2 {
                std::thread::yield_now();
            }
            near.run(
                link,
                None,
                Some(EarlyScan::Dest(prescan)),
                &mut reporter(&options),
                &mut Tally::default(),
            )
        });
        ended.unwrap()
    };
    let (ended, _) = against(ROOM_BYTES, honest, play);
    let (exit, message) = ended.map_or_else(
        |error| (error.exit, error.message),
        |()| (Exit::Ok, Vec::new()),
    );
    Ended {
        exit,
        sentence: String::from_utf8_lossy(&message).into_owned(),
    }
}

#[test]
fn digests_of_the_prescan_are_sent_with_the_setup() {
    let stage = Stage::new();
    stage.has("dst/d/file", "text");
    let ended = by_hand(&stage, |peer| {
        peer.greet(None);
        assert_eq!(
            peer.receive_greeting().and_then(|greeting| greeting.guess),
            Some(RelPath::root())
        );
        assert!(matches!(peer.receive_message(), Some(Message::Setup(_))));
        assert!(peer.has_more(), "they are sent in one piece");
        assert!(matches!(peer.receive_message(), Some(Message::Digests(seen)) if seen.len() == 2));
        peer.send();
        peer.send_message(&Message::Roots(Box::new(Roots {
            whole: vec![RelPath::root()],
            ..roots()
        })));
        peer.send_message(&dirs_end());
        assert!(
            matches!(peer.receive_message(), Some(Message::WantsEnd(_))),
            "nothing is sent twice"
        );
    });
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.sentence);
}

#[test]
fn replaced_destination_after_early_digests_ends_the_run() {
    let stage = Stage::new();
    stage.has("dst/d/file", "text");
    let ended = by_hand(&stage, |peer| {
        peer.greet(None);
        peer.receive_greeting();
        assert!(
            peer.receive_until(|message| matches!(message, Message::Digests(_)).then_some(()))
                .is_some()
        );
        std::fs::rename(stage.home().join("dst"), stage.home().join("old")).unwrap();
        std::fs::create_dir(stage.home().join("dst")).unwrap();
        peer.send();
        peer.send_message(&Message::Roots(Box::new(Roots {
            whole: vec![RelPath::root()],
            ..roots()
        })));
        peer.send_message(&dirs_end());
    });
    ended.refuses(Exit::FileSelect, "was replaced while");
}

/// Copies with a client that sends what it can before it hears from a server with these compressions. Returns the exit
/// code, and whether the client could send its request.
fn met(words: &[&str], takes: &[Compression], is_pull: bool) -> (Exit, bool) {
    let top = tempfile::tempdir().unwrap();
    Trees::of(&[("d/file".to_owned(), "text".to_owned())], &[]).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let (options, stop) = (options(words), AtomicBool::new(false));
    let near = client(&options, cwd, &stop, is_pull);
    let settle = |_: &Setup| {
        Ok(settled(
            &options,
            &at(cwd, if is_pull { "src" } else { "dst" }),
        ))
    };
    let (mut ours, theirs) = pipe::pair(ROOM_BYTES);
    let first = near.first_words(None);
    let words = first.words();
    ours.writer.write_all(&words).unwrap();
    let mut greeting = Vec::new();
    encode_greeting(&near.support.greeting([0; 16]), &mut greeting);
    let has_setup = words.len() > greeting.len();
    let support = ProtocolSupport::ours(compression_choice::features(Some(takes)));
    let ended = std::thread::scope(|scope| {
        scope.spawn(move || {
            server_at(cwd, &AtomicBool::new(false), &settle).serve(theirs, &support)
        });
        near.run(
            ours,
            Some(first),
            None,
            &mut reporter(&options),
            &mut Tally::default(),
        )
    });
    let text = std::fs::read_to_string(top.path().join("dst/d/file"));
    assert_eq!(
        text.is_ok_and(|text| text == "text"),
        ended.is_ok(),
        "{words:?}"
    );
    (
        ended.map_or_else(|error| error.exit, |()| Exit::Ok),
        has_setup,
    )
}

#[test]
fn first_words_suit_an_unknown_server() {
    use Compression::{Lz4, Zlib, Zstd};
    let (auto, lz4) = (["-a", "-z"], ["-a", "-z", "--compress-choice=lz4"]);
    for is_pull in [true, false] {
        for takes in [&[Zstd, Lz4][..], &[Lz4], &[Zlib]] {
            assert_eq!(met(&["-a"], takes, is_pull), (Exit::Ok, true));
            assert_eq!(met(&auto, takes, is_pull), (Exit::Ok, true));
            // What depends on the server waits for its greeting.
            let ended = if takes.contains(&Lz4) {
                Exit::Ok
            } else {
                Exit::Unsupported
            };
            assert_eq!(met(&lz4, takes, is_pull), (ended, false));
        }
    }
}

/// A copy of which the server grants only a part, with these feature bits. Returns whether it was rejected as a whole,
/// and whether the file was copied.
fn copy_with_partial_grant(
    [ours, theirs]: [u64; 2],
    is_pull: bool,
    sends_first: bool,
) -> (bool, bool) {
    let top = tempfile::tempdir().unwrap();
    Trees::of(&[("d/file".to_owned(), "text".to_owned())], &[]).make(top.path());
    let cwd = top.path().as_os_str().as_bytes();
    let (options, stop) = (options(&["-a"]), AtomicBool::new(false));
    let near = client(&options, cwd, &stop, is_pull);
    let near = NativeClient {
        support: ProtocolSupport {
            features: near.support.features | ours,
            ..near.support.clone()
        },
        ..near
    };
    let settle = |_: &Setup| {
        let beyond = Some(Error::new(Exit::FileSelect, "a part"));
        Ok(SettledSetup {
            beyond,
            ..settled(&options, &at(cwd, if is_pull { "src" } else { "dst" }))
        })
    };
    let (mut link, far) = pipe::pair(ROOM_BYTES);
    let first_words = sends_first.then(|| near.first_words(None));
    first_words
        .iter()
        .for_each(|first| link.writer.write_all(&first.words()).unwrap());
    let support = ProtocolSupport::ours(compression_choice::features(None) | theirs);
    let is_refused = std::thread::scope(|scope| {
        scope.spawn(move || server_at(cwd, &AtomicBool::new(false), &settle).serve(far, &support));
        match near.open(link, first_words, None) {
            Err(Refusal::NotGranted(why)) => {
                assert_eq!(
                    (why.exit, &why.message[..]),
                    (Exit::FileSelect, &b"a part"[..])
                );
                true
            }
            Err(Refusal::Failed(error)) => panic!("{error}"),
            Ok(opened) => {
                near.play(opened, None, &mut reporter(&options), &mut Tally::default())
                    .unwrap();
                false
            }
        }
    });
    (is_refused, top.path().join("dst/d/file").exists())
}

#[test]
fn verdict_arrives_before_the_run_changes_anything() {
    for (is_pull, sends_first) in [(false, false), (false, true), (true, false), (true, true)] {
        assert_eq!(
            copy_with_partial_grant([ASKS_FIRST; 2], is_pull, sends_first),
            (true, false)
        );
        for one_knows in [[ASKS_FIRST, 0], [0, ASKS_FIRST]] {
            assert_eq!(
                copy_with_partial_grant(one_knows, is_pull, sends_first),
                (false, true),
                "the run proceeds without a verdict"
            );
        }
    }
}
