//! Peers that try to exhaust the memory of the remote side: the real program receives endless input, or messages with
//! false lengths, and its peak memory must stay below a bound.
//!
//! The messages are encoded here by hand from docs/PROTOCOL.md, because our own encoder keeps the limits.

use crate::kit::{oracle, until};
use std::io::{ErrorKind, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// The limit for rejecting a peer.
const LIMIT: Duration = Duration::from_secs(120);

// ── messages ────────────────────────────────────────────────────────────────────────────────────

pub const SETUP: u8 = 1;
const ROOTS: u8 = 2;
const DIGESTS: u8 = 3;
const DIR: u8 = 4;
const MORE: u8 = 5;
const WANT: u8 = 7;
const BEGIN: u8 = 12;
const DATA: u8 = 13;
const EVENT: u8 = 17;
const GRANT: u8 = 18;
const PING: u8 = 19;

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn bytes(text: &[u8]) -> Vec<u8> {
    [&varint(text.len() as u64), text].concat()
}

pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &varint(body.len() as u64), body].concat()
}

/// Splits the bytes of a sender into uncompressed chunks.
pub fn chunks(sent: &[u8]) -> Vec<u8> {
    sent.chunks(256 << 10)
        .flat_map(|piece| chunk(0, piece))
        .collect()
}

pub fn chunk(kind: u8, piece: &[u8]) -> Vec<u8> {
    [&[kind][..], &(piece.len() as u32).to_le_bytes(), piece].concat()
}

/// Encodes the magic and the greeting of version 1, without features and guess.
pub fn greeting() -> Vec<u8> {
    let magic = [0xd5, 0xff, 0xa9, 0x00, 0xf1, 0x8e, 0xfe, 0x01];
    [
        &magic[..],
        &31u16.to_le_bytes(),
        &1u16.to_le_bytes(),
        &1u16.to_le_bytes(),
        &[0; 8 + 16 + 2 + 1],
    ]
    .concat()
}

/// Encodes a `Setup` with these lists, each with its count: words, remote words, rules, operands.
pub fn setup(server_sends: bool, lists: [&[u8]; 4]) -> Vec<u8> {
    let [words, remote_words, rules, operands] = lists;
    let body = [
        &[u8::from(server_sends), 0],
        words,
        remote_words,
        rules,
        operands,
        &varint(0o022),
    ]
    .concat();
    frame(SETUP, &body)
}

/// Encodes a `Setup` for a server that sends, which lists one name as `--files-from` would.
pub fn setup_with_listed_name(word: &[u8], name: &[u8]) -> Vec<u8> {
    const SERVER_SENDS: u8 = 1;
    const HAS_LISTED: u8 = 1 << 3;
    let body = [
        &[SERVER_SENDS | HAS_LISTED, 0][..],
        &[&[1][..], &bytes(word)].concat(),
        &[0, 0],
        &[&[1][..], &bytes(name)].concat(),
        &[0],
        &varint(0o022),
    ]
    .concat();
    frame(SETUP, &body)
}

/// Encodes a `Setup` whose only word is `-r`.
pub fn plain_setup(server_sends: bool) -> Vec<u8> {
    setup(server_sends, [&[1, 2, b'-', b'r'], &[0], &[0], &[0]])
}

/// Encodes an entry that shares all but name and mode with the previous one.
pub fn entry(name: &[u8], mode: u64) -> Vec<u8> {
    [&[0x6e, 0][..], &bytes(name), &varint(mode)].concat()
}

/// Encodes `count` files whose names begin with `start`, in order.
fn files(start: &str, count: u64) -> Vec<u8> {
    let entries = (0..count).flat_map(|n| entry(format!("{start}{n:06}").as_bytes(), 0o100_644));
    varint(count).into_iter().chain(entries).collect()
}

/// Encodes `Roots` with one root, whose content is transferred.
pub fn roots() -> Vec<u8> {
    frame(
        ROOTS,
        &[&[1, 8, 1][..], &entry(b".", 0o040_755), &[0; 6]].concat(),
    )
}

pub fn dir(flags: u8, id: u64, path: &[u8], list: &[u8]) -> Vec<u8> {
    frame(
        DIR,
        &[
            &[flags][..],
            &varint(id),
            &bytes(path),
            &[0, 0, 0],
            list,
            &[0, 0],
        ]
        .concat(),
    )
}

fn more(list: &[u8]) -> Vec<u8> {
    frame(MORE, &[&[0], list, &[0, 0]].concat())
}

// ── the program under test ──────────────────────────────────────────────────────────────────────

/// The program under test as the remote side.
struct Far {
    top: tempfile::TempDir,
    child: Child,
    stdin: Option<ChildStdin>,
    received: Arc<Mutex<Vec<u8>>>,
    silent: mpsc::Receiver<()>,
    peak_kib: Arc<AtomicU64>,
    sent_bytes: u64,
}

/// The result of a run.
struct Ended {
    exit: Option<i32>,
    /// The peak memory when it was last sampled: before each 64 KiB that the test sends.
    peak_kib: u64,
    sent_bytes: u64,
    /// The end of its output, which holds the reason.
    last_words: String,
}

/// The size of reads and writes. Between two samples the test sends at most what the pipe and the program buffer.
const PIECE_BYTES: usize = 64 << 10;
/// How much of the output is kept.
const LAST_BYTES: usize = 4096;

impl Far {
    /// Starts the program as a remote shell would, with a tree of one file, and sends a greeting.
    fn start(sends: bool) -> Far {
        let top = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        std::fs::create_dir(top.path().join("tree")).unwrap();
        std::fs::write(top.path().join("tree/known"), vec![b'k'; 1 << 20]).unwrap();
        let mut command = Command::new(oracle::under_test());
        command
            .arg("--server")
            .args(sends.then_some("--sender"))
            .args(["-re.iLsfxCIvuY", ".", "tree/"]);
        command.current_dir(top.path()).env("LC_ALL", "C");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("the program can be started");
        let mut stdout = child.stdout.take().unwrap();
        let stdin = child.stdin.take();
        let (received, peak_kib) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicU64::new(0)),
        );
        let (tx, silent) = mpsc::channel();
        let (buffer, looks, pid) = (received.clone(), peak_kib.clone(), child.id());
        std::thread::spawn(move || {
            let mut piece = vec![0; PIECE_BYTES];
            while let Ok(got @ 1..) = stdout.read(&mut piece) {
                look(pid, &looks);
                let mut received = buffer.lock().unwrap();
                received.extend_from_slice(&piece[..got]);
                let old = received.len().saturating_sub(LAST_BYTES);
                received.drain(..old);
            }
            let _ = tx.send(());
        });
        let mut far = Far {
            top,
            child,
            stdin,
            received,
            silent,
            peak_kib,
            sent_bytes: 0,
        };
        // The program greets first. A client that sends earlier could be rejected before memory was sampled.
        until(|| !far.received.lock().unwrap().is_empty());
        far.send(&greeting());
        far
    }

    /// Sends bytes. Returns `false` if the program has closed its input.
    fn send(&mut self, sent: &[u8]) -> bool {
        let Some(stdin) = &mut self.stdin else {
            return false;
        };
        for piece in sent.chunks(PIECE_BYTES) {
            look(self.child.id(), &self.peak_kib);
            match stdin.write_all(piece) {
                Ok(()) => self.sent_bytes += piece.len() as u64,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                    return false;
                }
            }
        }
        look(self.child.id(), &self.peak_kib);
        true
    }

    /// Sends each item until the program closes its input.
    fn send_until_closed(&mut self, sent: impl IntoIterator<Item = Vec<u8>>) {
        let _ = sent.into_iter().all(|sent| self.send(&sent));
    }

    /// Waits until the program has sent these bytes.
    fn await_output(&self, wanted: &[u8]) {
        until(|| {
            self.received
                .lock()
                .unwrap()
                .windows(wanted.len())
                .any(|part| part == wanted)
        });
    }

    /// Closes the connection and waits until the program ends.
    fn ends(mut self) -> Ended {
        drop(self.stdin.take());
        let is_stuck = self.silent.recv_timeout(LIMIT).is_err();
        if is_stuck {
            let _ = self.child.kill();
        }
        let exit = self.child.wait().unwrap().code();
        assert!(!is_stuck, "it hangs");
        let last_words = String::from_utf8_lossy(&self.received.lock().unwrap()).into_owned();
        let left: Vec<_> = std::fs::read_dir(self.top.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        Ended {
            exit,
            peak_kib: self.peak_kib.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes,
            last_words,
        }
    }
}

/// Records the peak memory of a process so far, if the process exists.
fn look(pid: u32, peak_kib: &AtomicU64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    peak_kib.fetch_max(kib.unwrap_or(0), Ordering::Relaxed);
}

impl Ended {
    /// Checks that the program rejected its peer with exit code 2 and these words, and that its memory stayed bounded.
    #[track_caller]
    fn refuses(&self, words: &str, max_mib: u64) {
        assert_eq!(self.exit, Some(2), "{}", self.last_words);
        assert!(
            self.last_words.contains(words),
            "{words:?} is not in {:?}",
            self.last_words
        );
        self.is_small(max_mib);
    }

    /// Checks that the program reports a closed connection or an exceeded window; which one comes first is a race.
    #[track_caller]
    fn breaks_off(&self) {
        let is_overdrawn = self.exit == Some(2) && self.last_words.contains("exceed the window");
        assert!(
            self.exit == Some(12) || is_overdrawn,
            "{:?}: {}",
            self.exit,
            self.last_words
        );
    }

    #[track_caller]
    fn is_small(&self, max_mib: u64) {
        assert!(self.peak_kib > 1000, "the peak memory was not measured");
        let (peak_mib, sent_mib) = (self.peak_kib >> 10, self.sent_bytes >> 20);
        assert!(
            peak_mib < max_mib,
            "its peak was {peak_mib} MiB of {max_mib}, after {sent_mib} MiB from its peer"
        );
    }
}

/// Starts a receiver, sends it a setup, roots and these messages until it rejects them.
fn pushed(sent: impl IntoIterator<Item = Vec<u8>>) -> Ended {
    let mut far = Far::start(false);
    far.send(&plain_setup(false));
    far.send(&chunks(&roots()));
    far.send_until_closed(sent.into_iter().map(|sent| chunks(&sent)));
    far.ends()
}

/// Starts a sender, waits until it has sent its listing, and sends it these messages until it rejects them.
fn pulled(sent: impl IntoIterator<Item = Vec<u8>>) -> Ended {
    let mut far = Far::start(true);
    far.send(&plain_setup(true));
    // Makes the program send the root in any case.
    far.send(&frame(DIGESTS, &[1, 1, 0]));
    far.await_output(b"known");
    far.send_until_closed(sent);
    far.ends()
}

/// The memory of the program itself, with a margin.
const IDLE_MIB: u64 = 32;
/// The same plus a full window and the longest frame, decoded.
const MAX_MIB: u64 = 96;
/// Room for a million items in each of the four lists of a `Setup`.
const SETUP_MAX_MIB: u64 = 448;

#[test]
fn endless_directories_are_rejected() {
    let list = files("f", 2000);
    let first = dir(0, 0, b"", &files("z", 1));
    let others = (1u64..).map(|id| dir(0, id, format!("x{id:08}").as_bytes(), &list));
    pushed(std::iter::once(first).chain(others)).refuses("Dirs messages exceed", MAX_MIB);
}

#[test]
fn long_directory_uses_memory_for_its_entries_only() {
    // The listing is collected before it is used. Its limit is DIR_ENTRIES_MAX.
    const FRAMES: u32 = 5;
    const FILES: u64 = 60_000;
    const MAX_BYTES_PER_FILE: u64 = 128;
    let first = dir(8, 0, b"", &[0]);
    let others = (0..FRAMES).map(|n| more(&files(&format!("f{n:06}"), FILES)));
    let ended = pushed(std::iter::once(first).chain(others));
    assert_eq!(ended.exit, Some(12), "{}", ended.last_words);
    ended.is_small(IDLE_MIB + ((u64::from(FRAMES) * FILES * MAX_BYTES_PER_FILE) >> 20));
}

#[test]
fn long_frame_headers_reserve_little_memory() {
    for (kind, len) in [
        (DIR, 1u64 << 24),
        (ROOTS, 1 << 26),
        (WANT, 1 << 24),
        (DATA, (256 << 10) + 64),
    ] {
        let head = [&[kind][..], &varint(len)].concat();
        let body = std::iter::repeat_with(|| vec![0; 64 << 10]);
        let max_mib = if kind == ROOTS { MAX_MIB + 48 } else { MAX_MIB };
        pushed(std::iter::once(head).chain(body)).refuses("invalid message", max_mib);
    }
    for (kind, len) in [(DIR, (1u64 << 24) + 1), (EVENT, 1 << 40), (PING, 1 << 63)] {
        let head = [&[kind][..], &varint(len)].concat();
        let body = std::iter::repeat_with(|| vec![0; 64 << 10]);
        pushed(std::iter::once(head).chain(body)).refuses("are allowed", IDLE_MIB);
    }
}

#[test]
fn wrong_counts_reserve_no_memory() {
    for list in [varint(65_536), varint(1 << 40), varint(u64::MAX)] {
        pushed([dir(0, 0, b"", &list)]).refuses("invalid message Dir", IDLE_MIB);
    }
}

#[test]
fn largest_setup_uses_bounded_memory() {
    let many = varint(1 << 20);
    let words = [&many[..], &bytes(b"--exclude=*.o").repeat(1 << 20)].concat();
    let rules = [&many[..], &[4].repeat(1 << 20)].concat();
    let mut far = Far::start(false);
    far.send(&setup(false, [&words, &words, &rules, &words]));
    far.ends().refuses("the paths differ from", SETUP_MAX_MIB);
}

#[test]
fn unconsumed_data_uses_bounded_memory() {
    let list = [&[1][..], &entry(b"new", 0o100_644)].concat();
    let data = frame(DATA, &[&[0][..], &vec![b'x'; 256 << 10]].concat());
    let begun = [dir(4, 0, b"", &list), frame(BEGIN, &[0, 0, 0])].concat();
    let ended = pushed(std::iter::once(begun).chain(std::iter::repeat_n(data, 256)));
    ended.breaks_off();
    ended.is_small(48);
}

/// The maximum size of a decompressed chunk.
const PIECE_MAX_BYTES: usize = 256 << 10;

/// Repeats the same bytes as one zstd stream, as lz4 blocks and as one zlib stream.
#[test]
fn compression_bombs_use_bounded_memory() {
    // A file of zeros.
    let list = [&[1][..], &entry(b"new", 0o100_644)].concat();
    let zeros = frame(DATA, &[0; 256 << 10]);
    let first = [roots(), dir(4, 0, b"", &list), frame(BEGIN, &[0, 0, 0])].concat();
    for kind in 1..=3u8 {
        let mut zstd = zstd::stream::raw::Encoder::new(3).unwrap();
        let mut zlib = flate2::Compress::new(flate2::Compression::new(6), false);
        let mut squeeze = |piece: &[u8]| {
            use zstd::stream::raw::{InBuffer, Operation as _, OutBuffer};
            let mut out = vec![0; 512 << 10];
            let len = match kind {
                1 => {
                    let mut output = OutBuffer::around(&mut out[..]);
                    let mut input = InBuffer::around(piece);
                    while input.pos < piece.len() {
                        zstd.run(&mut input, &mut output).unwrap();
                    }
                    while zstd.flush(&mut output).unwrap() > 0 {}
                    output.pos()
                }
                2 => lz4_flex::block::compress_into(piece, &mut out).unwrap(),
                _ => {
                    let before = zlib.total_out();
                    zlib.compress(piece, &mut out, flate2::FlushCompress::Sync)
                        .unwrap();
                    (zlib.total_out() - before) as usize
                }
            };
            chunk(kind, &out[..len])
        };
        let mut far = Far::start(false);
        far.send(&plain_setup(false));
        far.send(&squeeze(&first));
        let bomb: Vec<_> = (0..256)
            .flat_map(|_| {
                zeros
                    .chunks(PIECE_MAX_BYTES)
                    .map(&mut squeeze)
                    .collect::<Vec<_>>()
            })
            .collect();
        let sent: usize = bomb.iter().map(Vec::len).sum();
        assert!(
            sent * 50 < 256 * zeros.len(),
            "{sent} bytes are not a compression bomb"
        );
        far.send_until_closed(bomb);
        let ended = far.ends();
        ended.breaks_off();
        ended.is_small(32);
    }
}

#[test]
fn huge_zstd_window_is_rejected() {
    // A frame whose window is 2 GiB, and a block of zeros.
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8];
    let block = [0x02, 0x00, 0x10, 0x00];
    let mut far = Far::start(false);
    far.send(&plain_setup(false));
    far.send(&chunk(1, &[&head[..], &block].concat()));
    far.ends().refuses("", IDLE_MIB);
}

#[test]
fn endless_digests_are_rejected() {
    let children = [&[1, 1][..], &varint(1 << 20), &vec![0; 4 << 20]].concat();
    pulled(std::iter::repeat(frame(DIGESTS, &children)))
        .refuses("Digests messages exceed", MAX_MIB);
}

#[test]
fn endless_requests_are_rejected() {
    // Blocks of 348 bytes, each with a tag of five bytes: as many as fit.
    let blocks = ((15u64 << 20) - 13) / 5;
    let tag = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let tags: Vec<u8> = (1..=blocks)
        .flat_map(|n| tag(n).into_iter().take(5))
        .collect();
    let basis = [
        &348u32.to_le_bytes()[..],
        &(blocks * 348).to_le_bytes(),
        &[5],
        &tags,
    ]
    .concat();
    let long = frame(WANT, &[&[0, 0, 1, 1][..], &basis].concat());
    let short = frame(WANT, &[0, 0, 1, 0]).repeat(1000);
    for (want, max_mib) in [(long, 160), (short, MAX_MIB)] {
        let mut far = Far::start(true);
        far.send(&plain_setup(true));
        far.send(&frame(DIGESTS, &[1, 1, 0]));
        far.await_output(b"known");
        // The first request is answered, which shows that the program has processed it.
        far.send(&want);
        far.await_output(&[b'k'; 100]);
        far.send_until_closed(std::iter::repeat(want));
        far.ends().refuses("Wants messages exceed", max_mib);
    }
}

#[test]
fn client_without_a_request_learns_the_reason_and_the_server_logs_it() {
    const WORDS: &str = "sparsync: protocol error: no request from the client";
    for (line, log) in [
        (
            &["server", "session", "--root", "/", "--memory=100000000"][..],
            format!("{WORDS}\n"),
        ),
        // A remote shell would print the reason twice.
        (&["--server", "-re.iLsfxCIvuY", ".", "dst"], String::new()),
    ] {
        let mut command = Command::new(oracle::under_test());
        command
            .args(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program can be run");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        stdin
            .write_all(&[greeting(), frame(PING, &[])].concat())
            .expect("the program reads it");
        drop(stdin);
        let output = child.wait_with_output().expect("its output can be read");
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(
            answer.ends_with(WORDS) && output.status.code() == Some(2),
            "{output:?}"
        );
        assert_eq!(String::from_utf8_lossy(&output.stderr), log);
    }
}

#[test]
fn huge_grants_are_rejected() {
    for class in 0..=6 {
        let grant = frame(GRANT, &[&[class][..], &varint(1 << 40)].concat());
        pulled([grant.clone()]).refuses("grant exceeds", IDLE_MIB);
        pushed([grant]).refuses("grant exceeds", IDLE_MIB);
    }
}
