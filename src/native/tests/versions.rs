//! Two versions of the protocol: programs with different ranges of versions agree on one, or report why they cannot.
//!
//! There is only one version yet. The later one is defined here, as a future program could define it; the roles run on
//! both.

use super::*;
use crate::native::dest_prescan::LARGE_NAMES;
use crate::native::tests::no_room::{Trees, all, converse, scratch, text};
use crate::proto::message::{ACTS_AS_SUPER, DestDirState};
use crate::proto::{Basis, Encoder};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn alpn_contains_the_newest_version() {
    // The client's first messages are encoded in the newest version.
    let newest = crate::proto::VERSIONS.end();
    assert_eq!(
        crate::trust::tls::ALPN,
        format!("sparsync/{newest}").as_bytes()
    );
    assert_eq!(
        crate::trust::tls::ALPN_LANES,
        format!("sparsync/{newest}+lanes").as_bytes()
    );
}

/// The kind of a message that version 2 introduced.
const FINISHED: u8 = 29;
/// The message of version 1 that it replaces.
const END: u8 = 15;

/// How many frames were encoded in version 1 and in version 2, by programs that support both.
static SPELLED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Version 2: each frame has a prefix of four bytes with its length, and a file ends with another kind of message.
struct Second(Native);

impl Second {
    fn len_of(input: &[u8]) -> Option<usize> {
        input
            .first_chunk()
            .map(|len| 4 + u32::from_le_bytes(*len) as usize)
    }
}

impl Encoder for Second {
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> crate::error::Result<()> {
        let mut frame = Vec::new();
        self.0.encode(message, &mut frame)?;
        if frame[0] == END {
            frame[0] = FINISHED;
        }
        out.extend((frame.len() as u32).to_le_bytes());
        out.extend(frame);
        SPELLED[1].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Dialect for Second {
    fn decode(&mut self, input: &mut &[u8]) -> crate::error::Result<Option<Message>> {
        let Some(frame) = Self::len_of(input).and_then(|len| input.get(4..len)) else {
            return Ok(None);
        };
        let mut frame = frame.to_vec();
        assert_ne!(frame[0], END, "version 2 has no such message");
        if frame[0] == FINISHED {
            frame[0] = END;
        }
        *input = &input[4 + frame.len()..];
        self.0.decode(&mut &frame[..])
    }

    fn frame_len(&self, input: &[u8]) -> crate::error::Result<Option<usize>> {
        Ok(Self::len_of(input))
    }
}

/// Version 1, counted.
struct First(Native);

impl Encoder for First {
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> crate::error::Result<()> {
        SPELLED[0].fetch_add(1, Ordering::Relaxed);
        self.0.encode(message, out)
    }
}

impl Dialect for First {
    fn decode(&mut self, input: &mut &[u8]) -> crate::error::Result<Option<Message>> {
        self.0.decode(input)
    }

    fn frame_len(&self, input: &[u8]) -> crate::error::Result<Option<usize>> {
        self.0.frame_len(input)
    }
}

/// A feature bit that this program does not know.
const OF_ANOTHER_YEAR: u64 = 1 << 40;

/// The versions and features of this program.
fn today() -> ProtocolSupport {
    ProtocolSupport::ours(compression_choice::features(None))
}

/// The versions and features of a later program, which has another feature and may not support version 1.
fn later(versions: std::ops::RangeInclusive<u16>) -> ProtocolSupport {
    let dialect = |version| -> Box<dyn Dialect + Send> {
        match version {
            1 => Box::new(First(Native::new(1))),
            _ => Box::new(Second(Native::new(1))),
        }
    };
    ProtocolSupport {
        versions,
        features: compression_choice::features(None) | OF_ANOTHER_YEAR,
        dialect,
    }
}

/// Files that are sent whole, in pieces and as a delta, and one that is extra.
fn trees() -> Trees {
    let large = text("large", 300_000);
    let source = [
        ("a", "a".into()),
        ("d/large", large.clone()),
        ("d/new", text("new", 200_000)),
    ];
    let dest = [("d/large", large + "less"), ("gone", "gone".into())];
    let owned = |tree: &[(&str, String)]| {
        tree.iter()
            .map(|(name, text)| ((*name).into(), text.clone()))
            .collect()
    };
    let (source, dest): (Vec<_>, Vec<_>) = (owned(&source), owned(&dest));
    Trees::of(&source, &dest)
}

const WORDS: &[&str] = &["-a", "--delete", "--no-whole-file"];

#[test]
fn peers_use_the_newest_common_version() {
    // Only programs that support both versions count their frames.
    for (near, far, first, second) in [
        (later(1..=2), later(1..=2), false, true),
        (later(1..=2), today(), true, false),
        (today(), later(1..=2), true, false),
        (later(2..=2), later(1..=3), false, true),
        (today(), today(), false, false),
    ] {
        for is_pull in [false, true] {
            SPELLED
                .iter()
                .for_each(|count| count.store(0, Ordering::Relaxed));
            let top = scratch();
            trees().make(top.path());
            let case = format!(
                "{:?} with {:?}, pull: {is_pull}",
                near.versions, far.versions
            );
            let speeches = [near.clone(), far.clone()];
            let [near, far] = converse(top.path(), options(WORDS), is_pull, ROOM_BYTES, speeches);
            assert_eq!(
                (near.exit, far.exit),
                (Exit::Ok, Exit::Ok),
                "{case}: {}",
                near.sentence
            );
            let all = all(top.path());
            let in_tree = |tree: &str| -> Vec<_> {
                let files = all
                    .iter()
                    .filter_map(|(path, state)| Some((path.strip_prefix(tree).ok()?, state)));
                files
                    .filter(|(path, _)| !path.as_os_str().is_empty())
                    .map(|(path, state)| {
                        // After mode and time comes the path of the file's first link, which begins with the tree.
                        (path.to_owned(), state.replace(&format!(" {tree}/"), " "))
                    })
                    .collect()
            };
            assert_eq!(in_tree("src"), in_tree("dst"), "{case}");
            let [spelled_first, spelled_second] = SPELLED
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed) > 0);
            assert_eq!((spelled_first, spelled_second), (first, second), "{case}");
        }
    }
}

#[test]
fn incompatible_versions_end_the_run_at_both_ends() {
    for (near, far, words) in [
        (
            today(),
            later(2..=3),
            "supports version 1, the peer (sparsync 0.1.0) supports versions 2 to 3",
        ),
        (
            later(2..=3),
            today(),
            "supports versions 2 to 3, the peer (sparsync 0.1.0) supports version 1",
        ),
    ] {
        for is_pull in [false, true] {
            let top = scratch();
            trees().make(top.path());
            let before = all(top.path());
            let [near, far] = converse(
                top.path(),
                options(WORDS),
                is_pull,
                ROOM_BYTES,
                [near.clone(), far.clone()],
            );
            near.refuses(Exit::Protocol, words);
            assert_eq!(far.exit, Exit::Protocol);
            assert_eq!(all(top.path()), before);
        }
    }
}

#[test]
fn message_kind_of_a_later_version_is_rejected() {
    let words = "unknown message kind 29: protocol version 1 is in use, 1 is the newest known";
    let stage = Stage::new();
    let ended = serve(&stage, &["-r"], false, |peer| {
        peer.greet(Some(setup(false)));
        peer.receive_greeting();
        peer.send();
        peer.send_bytes(&[FINISHED, 0]);
    });
    ended.refuses(Exit::Protocol, words);
    let client = TestClient {
        words: &["-r"],
        ..TestClient::default()
    };
    let ended = client.against(&stage, |peer| {
        peer.receive_greeting();
        assert!(matches!(peer.receive_message(), Some(Message::Setup(_))));
        peer.receive();
        peer.send_bytes(&[FINISHED, 0]);
    });
    ended.refuses(Exit::Protocol, words);
}

#[test]
fn unknown_feature_bits_are_ignored() {
    for features in [OF_ANOTHER_YEAR, !ACTS_AS_SUPER] {
        let top = scratch();
        trees().make(top.path());
        let knows_more = ProtocolSupport {
            features: compression_choice::features(None) | features,
            ..today()
        };
        for speeches in [[knows_more.clone(), today()], [today(), knows_more]] {
            let [near, far] = converse(top.path(), options(WORDS), false, ROOM_BYTES, speeches);
            assert_eq!(
                (near.exit, far.exit),
                (Exit::Ok, Exit::Ok),
                "{}",
                near.sentence
            );
        }
    }
}

/// The digests at the ends of contents.
static ENDED: Mutex<Vec<crate::proto::ContentDigest>> = Mutex::new(Vec::new());

/// The digests that were sent for comparing contents.
static COMPARED: Mutex<Vec<crate::proto::ContentDigest>> = Mutex::new(Vec::new());

/// How many contents were requested.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// Held by the test whose sessions are recorded here.
static NOTED: Mutex<()> = Mutex::new(());

/// How many large directories were reported before they were scanned, and how many listings were sent.
static LARGE: AtomicUsize = AtomicUsize::new(0);
static LISTED: AtomicUsize = AtomicUsize::new(0);

/// Today's version, which records these.
struct Noting(Native);

impl Encoder for Noting {
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> crate::error::Result<()> {
        match message {
            Message::End { digest, .. } => ENDED.lock().push(*digest),
            Message::Digests(all) => {
                let large = all
                    .iter()
                    .filter(|seen| matches!(seen, DestDirState::Large(_)))
                    .count();
                LARGE.fetch_add(large, Ordering::Relaxed);
            }
            Message::Dir(listing) => {
                LISTED.fetch_add(1, Ordering::Relaxed);
                let listed = |entry: &Entry| entry.extra.as_ref()?.digest;
                COMPARED
                    .lock()
                    .extend(listing.list.entries.iter().filter_map(listed));
            }
            Message::Want { basis, .. } => {
                WANTED.fetch_add(1, Ordering::Relaxed);
                if let Basis::Prefix {
                    digest: Some(digest),
                    ..
                } = basis
                {
                    COMPARED.lock().push(*digest);
                }
            }
            _ => {}
        }
        self.0.encode(message, out)
    }
}

impl Dialect for Noting {
    fn decode(&mut self, input: &mut &[u8]) -> crate::error::Result<Option<Message>> {
        self.0.decode(input)
    }

    fn frame_len(&self, input: &[u8]) -> crate::error::Result<Option<usize>> {
        self.0.frame_len(input)
    }
}

/// Today's version, which records what is sent.
fn noting() -> ProtocolSupport {
    ProtocolSupport {
        dialect: |version| Box::new(Noting(Native::new(version))),
        ..today()
    }
}

#[test]
fn content_without_blocks_has_the_quick_digest() {
    let _noted = NOTED.lock();
    let plain = text("new", 200_000);
    let pieced = text("large", 300_000);
    for is_pull in [false, true] {
        ENDED.lock().clear();
        let top = scratch();
        trees().make(top.path());
        let [near, far] = converse(
            top.path(),
            options(WORDS),
            is_pull,
            ROOM_BYTES,
            [noting(), noting()],
        );
        assert_eq!(
            (near.exit, far.exit),
            (Exit::Ok, Exit::Ok),
            "{}",
            near.sentence
        );
        let mut wanted = vec![
            crate::digest::whole(plain.as_bytes()),
            crate::digest::content(pieced.as_bytes()),
        ];
        let mut ended = ENDED.lock().clone();
        wanted.sort_unstable();
        ended.sort_unstable();
        assert_eq!(ended, wanted, "pull: {is_pull}");
    }
}

#[test]
fn compared_contents_have_the_digest_of_their_session() {
    let _noted = NOTED.lock();
    // One is read in several pieces, the other in one.
    let (long, short) = (text("same", 200_000), text("short", 1000));
    let owned = |tree: &[(&str, &str)]| {
        tree.iter()
            .map(|&(name, text)| (name.into(), text.into()))
            .collect::<Vec<_>>()
    };
    let other = owned(&[("long", &long), ("short", &short), ("other", "one")]);
    let alike = owned(&[("long", &long), ("short", &short), ("other", "two")]);
    let prefix = owned(&[("long", &long[..150_000])]);
    let digests = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| crate::digest::whole(text.as_bytes()))
            .collect::<Vec<_>>()
    };
    let mut known: Vec<crate::proto::ContentDigest> = Vec::new();
    // The number of requests: the file that differs; or the file that is appended to and two that were missing.
    for (words, dest, compared, wanted) in [
        (&["-ac"], &alike, digests(&[&long, "one", &short]), 1),
        (
            &["-a", "--append-verify"],
            &prefix,
            digests(&[&long[..150_000]]),
            3,
        ),
    ] as [(&[&str], _, _, _); 2]
    {
        for is_pull in [false, true] {
            COMPARED.lock().clear();
            WANTED.store(0, Ordering::Relaxed);
            let top = scratch();
            Trees::of(&other, dest).make(top.path());
            let [near, far] = converse(
                top.path(),
                options(words),
                is_pull,
                ROOM_BYTES,
                [noting(), noting()],
            );
            let case = format!("{words:?}, pull: {is_pull}");
            assert_eq!(
                (near.exit, far.exit),
                (Exit::Ok, Exit::Ok),
                "{case}: {}",
                near.sentence
            );
            assert_eq!(
                std::fs::read(top.path().join("dst/other")).unwrap(),
                b"one",
                "{case}"
            );
            assert_eq!(
                std::fs::read(top.path().join("dst/long")).unwrap(),
                long.as_bytes(),
                "{case}"
            );
            let sent_digests = std::mem::take(&mut *COMPARED.lock());
            known.extend(&compared);
            assert_eq!(sent_digests.len(), compared.len(), "{case}");
            assert!(
                sent_digests.iter().all(|digest| !known.contains(digest)),
                "{case}: each session has its own key"
            );
            known.extend(&sent_digests);
            assert_eq!(WANTED.load(Ordering::Relaxed), wanted, "{case}");
        }
    }
}

#[test]
fn large_directories_are_reported_before_they_are_scanned() {
    let _noted = NOTED.lock();
    let owned = |tree: &[&str]| {
        tree.iter()
            .map(|&name| (name.to_owned(), "text".to_owned()))
            .collect::<Vec<_>>()
    };
    let few = owned(&["a", "d/b", "d/e/c"]);
    // Links are made faster than files.
    let many: Vec<(String, String)> = (0..=LARGE_NAMES)
        .map(|at| {
            (
                format!("many{at}"),
                if at == 0 {
                    String::new()
                } else {
                    "=many0".to_owned()
                },
            )
        })
        .chain(owned(&["a", "d/b", "d/f/g", "h/i"]))
        .collect();
    for (source, listings) in [(&few, 3), (&many, 0)] {
        let top = scratch();
        Trees::of(source, &many).make(top.path());
        if listings == 0 {
            alike(top.path(), &["", "d", "d/f", "h"], &many);
        }
        LARGE.store(0, Ordering::Relaxed);
        LISTED.store(0, Ordering::Relaxed);
        let [near, far] = converse(
            top.path(),
            options(&["-a"]),
            false,
            ROOM_BYTES,
            [noting(), noting()],
        );
        let case = format!("{} files", source.len());
        assert_eq!(
            (near.exit, far.exit),
            (Exit::Ok, Exit::Ok),
            "{case}: {}",
            near.sentence
        );
        assert_eq!(
            (
                LARGE.load(Ordering::Relaxed) > 0,
                LISTED.load(Ordering::Relaxed)
            ),
            (true, listings),
            "{case}"
        );
        for (name, text) in source.iter().chain(&many) {
            let text = if text.starts_with('=') { "" } else { text };
            assert_eq!(
                std::fs::read_to_string(top.path().join("dst").join(name)).unwrap(),
                text,
                "{case}: {name}"
            );
        }
    }
}

/// Sets the same time on all directories and files of both trees.
fn alike(top: &Path, dirs: &[&str], files: &[(String, String)]) {
    for tree in ["src", "dst"] {
        for name in files
            .iter()
            .map(|(name, _)| name.as_str())
            .chain(dirs.iter().copied())
        {
            let entry = std::fs::File::open(top.join(tree).join(name)).unwrap();
            entry
                .set_modified(std::time::UNIX_EPOCH + Duration::from_secs(9))
                .unwrap();
        }
    }
}
