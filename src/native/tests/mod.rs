//! Tests of whole sessions inside this process, against a scripted peer.

mod early_scan;
mod hostile_receiver;
mod hostile_sender;
mod long_path;
mod no_room;
mod versions;

use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{ChainOptions, Parsed, Rules, parse_exclude};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry};
use crate::native::client::NativeClient;
use crate::native::compression_choice;
use crate::native::server::{Server, SettledSetup};
use crate::options::Options;
use crate::path::RelPath;
use crate::proto::{Dialect, Encoder, Native, decode_greeting, encode_greeting};
use crate::proto::{
    DirId, DirListing, FileId, Greeting, Lane, Message, ProtocolSupport, Roots, Setup, SubdirFlags,
};
use crate::report::event::Wants;
use crate::report::{Banner, RunFacts, Tally, TextReporter};
use crate::session::client::Client;
use crate::session::in_time::LIMIT;
use crate::session::refusal::Refusal;
use crate::transport::Link;
use crate::transport::compression::{CHUNK_MAX_BYTES, Expander};
use crate::transport::pipe;
use crate::transport::window_limit::Ceiling;
use crate::walk::run_context::Process;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The capacity of the pipe between the two ends.
const ROOM_BYTES: usize = 1 << 20;

/// Returns a server in this directory.
pub fn server_at<'a>(
    cwd: &'a [u8],
    stop: &'a AtomicBool,
    settle: &'a (dyn Fn(&Setup) -> Result<SettledSetup, Refusal> + 'a),
) -> Server<'a> {
    Server {
        process: Process {
            cwd,
            umask: 0o022,
            stop,
            threads: 2,
            checksum_cache: None,
            stored: None,
            explainer: None,
        },
        settle,
        daemon: None,
    }
}

/// A directory with the tree of the honest end, and one that this end must not touch.
pub struct Stage {
    top: tempfile::TempDir,
    /// The limit for the windows of the honest end.
    pub ceiling: Ceiling,
}

impl Stage {
    /// Creates `home`, the honest end's tree, and `outside`, which belongs to neither end.
    pub fn new() -> Stage {
        let top = tempfile::tempdir().expect("a scratch directory");
        for dir in ["home", "outside"] {
            std::fs::create_dir(top.path().join(dir)).expect("our own directory");
        }
        std::fs::write(top.path().join("outside/secret"), "secret").expect("our own directory");
        Stage {
            top,
            ceiling: Ceiling::default(),
        }
    }

    /// Returns the directory of the honest end's tree.
    pub fn home(&self) -> PathBuf {
        self.top.path().join("home")
    }

    /// Returns the directory in which nothing may change.
    pub fn outside(&self) -> PathBuf {
        self.top.path().join("outside")
    }

    /// Writes a file of the honest end.
    pub fn has(&self, name: &str, text: &str) -> &Stage {
        let path = self.home().join(name);
        std::fs::create_dir_all(path.parent().expect("it is in home")).expect("our own directory");
        std::fs::write(path, text).expect("our own directory");
        self
    }

    /// Returns the names in the honest end's tree, sorted, directories with a slash.
    pub fn names(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(self.home().join(&dir)).expect("our own directory") {
                let entry = entry.expect("our own directory");
                let path = dir.join(entry.file_name());
                let is_dir = entry.file_type().expect("the entry exists").is_dir();
                found.push(format!(
                    "{}{}",
                    path.display(),
                    if is_dir { "/" } else { "" }
                ));
                dirs.extend(is_dir.then_some(path));
            }
        }
        found.sort();
        found
    }

    /// Returns those names that are not directories.
    pub fn files(&self) -> Vec<String> {
        self.names()
            .into_iter()
            .filter(|name| !name.ends_with('/'))
            .collect()
    }

    /// Asserts that nothing outside was touched, and no temporary file was left inside.
    pub fn is_clean(&self) {
        let outside: Vec<_> = std::fs::read_dir(self.outside())
            .expect("the entry exists")
            .collect();
        assert_eq!(outside.len(), 1, "{outside:?}");
        assert_eq!(
            std::fs::read(self.outside().join("secret")).expect("the entry exists"),
            b"secret"
        );
        let top: Vec<_> = std::fs::read_dir(self.top.path())
            .expect("the entry exists")
            .collect();
        assert_eq!(top.len(), 2, "{top:?}");
        let names = self.names();
        let is_temporary = |name: &&String| {
            name.rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with('.'))
        };
        assert_eq!(names.iter().find(is_temporary), None, "{names:?}");
    }
}

/// How the honest end ended, and its error message.
#[derive(Debug)]
pub struct Ended {
    pub exit: Exit,
    /// The error of a client, or the error that a server sent to its client.
    pub sentence: String,
}

impl Ended {
    /// Asserts that it failed with this exit code, and that its message contains these words.
    #[track_caller]
    pub fn refuses(&self, exit: Exit, words: &str) {
        assert_eq!(self.exit, exit, "{}", self.sentence);
        assert!(
            self.sentence.contains(words),
            "{:?} does not contain {words:?}",
            self.sentence
        );
        assert!(!words.is_empty() || !self.sentence.is_empty());
    }
}

/// The scripted peer.
pub struct Peer {
    link: Option<Link>,
    encoder: Native,
    decoder: Native,
    rest: Vec<u8>,
    /// Bytes that the honest end accepted.
    pub sent_bytes: usize,
    /// Messages are sent in chunks, as by a sender.
    is_chunked: bool,
    /// The error message that the honest end sent.
    failed: Option<String>,
}

impl Peer {
    fn new(link: Link) -> Peer {
        Peer {
            link: Some(link),
            encoder: Native::new(1),
            decoder: Native::new(1),
            rest: Vec::new(),
            sent_bytes: 0,
            is_chunked: false,
            failed: None,
        }
    }

    /// Sends bytes. Returns `false` if the honest end has closed the connection.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let is_written = match self.is_chunked {
            true => bytes
                .chunks(CHUNK_MAX_BYTES)
                .all(|piece| link.writer.write_all(&chunk(piece)).is_ok()),
            false => link.writer.write_all(bytes).is_ok(),
        };
        self.sent_bytes += if is_written { bytes.len() } else { 0 };
        is_written
    }

    /// Acts as the sender from here on.
    pub fn send(&mut self) {
        self.is_chunked = true;
    }

    /// Acts as the receiver from here on.
    pub fn receive(&mut self) {
        let Some(Link {
            reader,
            writer,
            parting,
            leave,
            moved,
        }) = self.link.take()
        else {
            return;
        };
        let reader = std::io::Cursor::new(std::mem::take(&mut self.rest)).chain(reader);
        self.link = Some(Link {
            reader: Box::new(Expander::new(reader)),
            writer,
            parting,
            leave,
            moved,
        });
    }

    /// Sends a message. Returns `false` if the honest end has closed the connection.
    pub fn send_message(&mut self, message: &Message) -> bool {
        let mut frame = Vec::new();
        self.encoder
            .encode(message, &mut frame)
            .expect("messages of the tests can be encoded");
        self.send_bytes(&frame)
    }

    /// Sends these messages.
    pub fn send_messages(&mut self, messages: &[Message]) {
        for message in messages {
            self.send_message(message);
        }
    }

    /// Sends a greeting, and as the client a setup.
    pub fn greet(&mut self, setup: Option<Setup>) {
        self.greet_so(&Greeting::ours([7; 16]), setup);
    }

    /// As [`Peer::greet`], with this greeting.
    pub fn greet_so(&mut self, greeting: &Greeting, setup: Option<Setup>) {
        let mut spelled = Vec::new();
        encode_greeting(greeting, &mut spelled);
        let greeting = spelled;
        self.send_bytes(&greeting);
        if let Some(setup) = setup {
            self.send_message(&Message::Setup(Box::new(setup)));
        }
    }

    fn fill(&mut self) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let mut piece = vec![0; 64 << 10];
        let got = link.reader.read(&mut piece).unwrap_or(0);
        self.rest.extend_from_slice(&piece[..got]);
        got > 0
    }

    /// Reads the greeting of the honest end.
    pub fn receive_greeting(&mut self) -> Option<Greeting> {
        loop {
            if let Some((greeting, len)) =
                decode_greeting(&self.rest).expect("the honest end greets")
            {
                self.rest.drain(..len);
                return Some(greeting);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads the next message, or returns `None` at the end of the connection.
    pub fn receive_message(&mut self) -> Option<Message> {
        loop {
            let mut input = &self.rest[..];
            if let Some(message) = self
                .decoder
                .decode(&mut input)
                .expect("the honest end can be understood")
            {
                let left = input.len();
                self.rest.drain(..self.rest.len() - left);
                if let Message::Fail { message, .. } = &message {
                    self.failed = Some(String::from_utf8_lossy(message).into_owned());
                }
                return Some(message);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Returns whether more data arrived together with the last message.
    pub fn has_more(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Reads messages until `wanted` returns a value, or returns `None` at the end of the connection.
    pub fn receive_until<T>(&mut self, mut wanted: impl FnMut(&Message) -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = wanted(&self.receive_message()?) {
                return Some(found);
            }
        }
    }

    /// Reads until the honest end closes the connection. Returns the error message that it sent.
    fn receive_fail(&mut self) -> Option<String> {
        while self.receive_message().is_some() {}
        self.failed.take()
    }

    /// Neither reads nor closes the connection as long as the test runs.
    pub fn forget(&mut self) {
        std::mem::forget(self.link.take());
    }

    /// Closes the connection.
    pub fn hang_up(&mut self) {
        self.link = None;
    }
}

/// Wraps bytes of a sender in an uncompressed chunk.
pub fn chunk(piece: &[u8]) -> Vec<u8> {
    [&[0], &(piece.len() as u32).to_le_bytes()[..], piece].concat()
}

/// Returns the options of these command-line words.
pub fn options(words: &[&str]) -> Options {
    let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
    cli::settle(&words, &[], 0o022, 0).expect("the tests' options are right")
}

/// Runs the honest end and the scripted peer at once. The test fails if the honest end crashes or hangs. Returns the
/// result of the honest end, and the error message that it sent.
pub fn against<T: Send + 'static>(
    room_bytes: usize,
    honest: impl FnOnce(Link) -> T + Send + 'static,
    play: impl FnOnce(&mut Peer),
) -> (T, Option<String>) {
    let (ours, theirs) = pipe::pair(room_bytes);
    let (tx, rx) = mpsc::channel();
    let honest = std::thread::spawn(move || {
        let _ = tx.send(honest(ours));
    });
    let mut peer = Peer::new(theirs);
    play(&mut peer);
    let failed = peer.receive_fail();
    drop(peer);
    let ended = rx
        .recv_timeout(LIMIT)
        .expect("the honest end neither hangs nor crashes");
    honest.join().expect("the result was sent");
    (ended, failed)
}

/// Runs a server that accepts any request of a client that `words` allow. It serves `home` or a path in it.
pub fn serve(stage: &Stage, words: &[&str], sends: bool, play: impl FnOnce(&mut Peer)) -> Ended {
    serve_by(ROOM_BYTES, stage, words, sends, play)
}

/// As [`serve`], over a pipe of this capacity.
pub fn serve_by(
    room_bytes: usize,
    stage: &Stage,
    words: &[&str],
    sends: bool,
    play: impl FnOnce(&mut Peer),
) -> Ended {
    let (options, home) = (options(words), stage.home());
    let ceiling = stage.ceiling.clone();
    let honest = move |link: Link| {
        let operand = [home.as_os_str().as_bytes(), b"/"].concat();
        let settle = |setup: &Setup| {
            if setup.server_sends != sends {
                return Err(Error::new(Exit::Protocol, "sparsync: the other direction").into());
            }
            let rules = Rules::new(setup.rules.clone(), ChainOptions::default());
            Ok(SettledSetup {
                options: options.clone(),
                rules,
                operands: vec![operand.clone()],
                listed: None,
                repeats: false,
                server_stops: Default::default(),
                ceiling: ceiling.clone(),
                beyond: None,
            })
        };
        let support = ProtocolSupport::ours(compression_choice::features(None));
        server_at(
            home.as_os_str().as_bytes(),
            &AtomicBool::new(false),
            &settle,
        )
        .serve(link, &support)
    };
    let (exit, failed) = against(room_bytes, honest, play);
    Ended {
        exit,
        sentence: failed.unwrap_or_default(),
    }
}

/// Returns the request of a client to a server that sends or receives.
pub fn setup(server_sends: bool) -> Setup {
    Setup {
        server_sends,
        words: Vec::new(),
        remote_words: Vec::new(),
        rules: Arc::default(),
        cvs_home: None,
        cvs_env: None,
        listed: None,
        operands: Vec::new(),
        wants: Wants::default(),
        profile: false,
        umask: 0o022,
    }
}

/// A client that sends `home`, or receives `sources` into it.
#[derive(Default)]
pub struct TestClient<'a> {
    pub words: &'a [&'a str],
    pub excludes: &'a [&'a str],
    /// If empty, the client sends.
    pub sources: &'a [&'a str],
}

impl TestClient<'_> {
    /// Runs it against a scripted server.
    pub fn against(&self, stage: &Stage, play: impl FnOnce(&mut Peer)) -> Ended {
        self.against_unmet(stage, |peer| {
            peer.greet(None);
            play(peer);
        })
    }

    /// As [`TestClient::against`], but the server has not sent its greeting.
    pub fn against_unmet(&self, stage: &Stage, play: impl FnOnce(&mut Peer)) -> Ended {
        let (options, home) = (options(self.words), stage.home());
        let parsed: Vec<Parsed> = self
            .excludes
            .iter()
            .map(|rule| parse_exclude(rule.as_bytes()).expect("a rule"))
            .collect();
        let sources: Vec<Vec<u8>> = self
            .sources
            .iter()
            .map(|source| source.as_bytes().to_vec())
            .collect();
        let honest = move |link: Link| {
            let receives = !sources.is_empty();
            let home = [home.as_os_str().as_bytes(), b"/"].concat();
            let rules = Rules::new(parsed.clone(), ChainOptions::default());
            let near = NativeClient {
                headway: Default::default(),
                key: crate::fs::sys::random(),
                support: ProtocolSupport::ours(compression_choice::features(None)),
                client: Client {
                    options: &options,
                    setup: setup(receives),
                    sources: if receives {
                        sources
                    } else {
                        vec![home.clone()]
                    },
                    dest: receives.then(|| home.clone()),
                    rules,
                    listed: None,
                    process: Process {
                        cwd: &home,
                        umask: 0o022,
                        stop: &AtomicBool::new(false),
                        threads: 2,
                        checksum_cache: None,
                        stored: None,
                        explainer: None,
                    },
                    repeats: false,
                    interrupted: &AtomicBool::new(false),
                    is_net: false,
                    is_local: false,
                    gauge: None,
                },
            };
            let mut tally = Tally::default();
            let ended = near.run(link, None, None, &mut reporter(&options), &mut tally);
            ended.map(|()| tally.exit())
        };
        let (ended, _) = against(ROOM_BYTES, honest, play);
        match ended {
            Ok(exit) => Ended {
                exit,
                sentence: String::new(),
            },
            Err(error) => Ended {
                exit: error.exit,
                sentence: String::from_utf8_lossy(&error.message).into_owned(),
            },
        }
    }
}

/// Returns a reporter without output.
pub fn reporter(options: &Options) -> TextReporter {
    reporter_to(options, Box::new(std::io::sink()))
}

/// Returns a reporter that prints to `stdout`.
pub fn reporter_to(options: &Options, stdout: Box<dyn std::io::Write + Send>) -> TextReporter {
    let facts = RunFacts {
        leaves_dest: false,
        dry_run: options.dry_run,
        list_only: options.select.list_only,
        protocol: None,
        atimes: false,
        banner: Banner::None,
        pid: 1,
        utf8_locale: true,
        stdout_is_tty: false,
        log_as_sender: false,
        keeps_owner: false,
        keeps_group: false,
        keeps_hard_links: false,
        sum: crate::options::Checksum::Xxh128,
        rooted: Vec::new(),
        at_server: false,
        is_named_ours: false,
        detects_renamed: false,
        verifies: false,
        records_plan: false,
    };
    TextReporter::new(
        &options.output,
        facts,
        stdout,
        Box::new(std::io::sink()),
        None,
        Arc::new(|| (0, 0)),
    )
}

/// The mode of a regular file.
pub const FILE: u32 = 0o100_644;
/// The mode of a directory.
pub const DIR: u32 = 0o040_755;
/// The mode of a symlink.
pub const LINK: u32 = 0o120_777;

/// Returns a sorted list of names and modes. Files have the given length; symlinks lead to `../outside`.
pub fn list(entries: &[(&str, u32)], len_bytes: u64) -> DirList {
    let mut list = DirList::default();
    for &(name, mode) in entries {
        let mut entry = Entry::from_stat(&Stat {
            mode,
            len_bytes,
            ..Stat::default()
        });
        if mode == LINK {
            entry.extra_mut().target = Some(b"../outside"[..].into());
        }
        list.push_entry(name.as_bytes(), entry);
    }
    list
}

/// Returns a directory listing whose subdirectories are walked.
pub fn listing(id: DirId, path: &str, entries: &[(&str, u32)]) -> DirListing {
    let subs = entries.iter().filter(|(_, mode)| *mode == DIR);
    DirListing {
        id,
        path: RelPath::parse(path.as_bytes()).expect("a path"),
        list: list(entries, 5).into(),
        subs: subs
            .map(|_| SubdirFlags {
                is_walked: true,
                ..SubdirFlags::default()
            })
            .collect(),
        ..DirListing::default()
    }
}

/// As [`listing`], as a message.
pub fn dir(id: DirId, path: &str, entries: &[(&str, u32)]) -> Message {
    Message::Dir(Box::new(listing(id, path, entries)))
}

/// Returns roots whose content is the transfer.
pub fn roots() -> Roots {
    Roots {
        found: 1,
        top: Some(list(&[(".", DIR)], 0)),
        ..Roots::default()
    }
}

/// As [`roots`], as a message.
pub fn roots_message() -> Message {
    Message::Roots(Box::new(roots()))
}

/// Returns the message after the last listing.
pub fn dirs_end() -> Message {
    Message::DirsEnd(Box::default())
}

/// Returns the id of a file.
pub fn file(dir: DirId, entry: u32) -> FileId {
    FileId { dir, entry }
}

/// Returns the message for a whole file of five bytes.
pub fn whole(lane: Lane, file: FileId) -> Message {
    let data = b"hello".to_vec();
    Message::Whole {
        file,
        lane,
        digest: crate::digest::whole(&data),
        data,
    }
}
