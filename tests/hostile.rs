//! Peers that want a far end's memory: the real program hears what has no end, or says to be longer than it is, and its
//! peak stays below a bound.
//!
//! What they say is spelled here by docs/PROTOCOL.md, by hand: our own encoder keeps to the limits.

use crate::kit::{oracle, until};
use std::io::{ErrorKind, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// No far end takes so long to refuse somebody.
const LIMIT: Duration = Duration::from_secs(120);

// ── what is said ────────────────────────────────────────────────────────────────────────────────

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

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &varint(body.len() as u64), body].concat()
}

/// Chunks of what a sender says, as it is.
fn chunks(said: &[u8]) -> Vec<u8> {
    said.chunks(256 << 10).flat_map(|piece| chunk(0, piece)).collect()
}

fn chunk(kind: u8, piece: &[u8]) -> Vec<u8> {
    [&[kind][..], &(piece.len() as u32).to_le_bytes(), piece].concat()
}

/// Magic and greeting of version 1, without features.
pub fn greeting() -> Vec<u8> {
    let magic = [0xd5, 0xff, 0xa9, 0x00, 0xf1, 0x8e, 0xfe, 0x01];
    [&magic[..], &30u16.to_le_bytes(), &1u16.to_le_bytes(), &1u16.to_le_bytes(), &[0; 8 + 16 + 2]].concat()
}

/// A setup with these counted lists: words, remote words, rules, operands; each is given with its count.
fn setup(server_sends: bool, lists: [&[u8]; 4]) -> Vec<u8> {
    let [words, remote_words, rules, operands] = lists;
    let body = [&[u8::from(server_sends), 0], words, remote_words, rules, operands, &varint(0o022)].concat();
    frame(SETUP, &body)
}

/// The words `-r`, and nothing else.
fn plain_setup(server_sends: bool) -> Vec<u8> {
    setup(server_sends, [&[1, 2, b'-', b'r'], &[0], &[0], &[0]])
}

/// An entry that shares all but name and mode with the one before it.
fn entry(name: &[u8], mode: u64) -> Vec<u8> {
    [&[0x6e, 0][..], &bytes(name), &varint(mode)].concat()
}

/// So many files by names that begin so, in order.
fn files(start: &str, count: u64) -> Vec<u8> {
    let entries = (0..count).flat_map(|n| entry(format!("{start}{n:06}").as_bytes(), 0o100_644));
    varint(count).into_iter().chain(entries).collect()
}

/// Roots whose content is the transfer.
fn roots() -> Vec<u8> {
    frame(ROOTS, &[&[1, 8, 1][..], &entry(b".", 0o040_755), &[0; 6]].concat())
}

fn dir(flags: u8, id: u64, path: &[u8], list: &[u8]) -> Vec<u8> {
    frame(DIR, &[&[flags][..], &varint(id), &bytes(path), &[0, 0, 0], list, &[0, 0]].concat())
}

fn more(list: &[u8]) -> Vec<u8> {
    frame(MORE, &[&[0], list, &[0, 0]].concat())
}

// ── who hears it ────────────────────────────────────────────────────────────────────────────────

/// The program under test as the far end.
struct Far {
    top: tempfile::TempDir,
    child: Child,
    stdin: Option<ChildStdin>,
    heard: Arc<Mutex<Vec<u8>>>,
    silent: mpsc::Receiver<()>,
    peak_kib: Arc<AtomicU64>,
    said_bytes: u64,
}

/// How it ended.
struct Ended {
    exit: Option<i32>,
    /// The most memory that it had, as often as somebody looked: before each 64 KiB that were said.
    peak_kib: u64,
    said_bytes: u64,
    /// The end of what it said: its reason.
    last_words: String,
}

/// What the pipe and the reader of a far end hold is all that can be said between two looks.
const PIECE_BYTES: usize = 64 << 10;
/// What is kept of a far end's words.
const LAST_BYTES: usize = 4096;

impl Far {
    /// Starts it as a remote shell would, with a tree of one file, and greets.
    fn start(sends: bool) -> Far {
        let top = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        std::fs::create_dir(top.path().join("tree")).unwrap();
        std::fs::write(top.path().join("tree/known"), vec![b'k'; 1 << 20]).unwrap();
        let mut command = Command::new(oracle::under_test());
        command.arg("--server").args(sends.then_some("--sender")).args(["-re.iLsfxCIvuZ", ".", "tree/"]);
        command.current_dir(top.path()).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program can be started");
        let mut stdout = child.stdout.take().unwrap();
        let stdin = child.stdin.take();
        let (heard, peak_kib) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
        let (tell, silent) = mpsc::channel();
        let (hears, looks, pid) = (heard.clone(), peak_kib.clone(), child.id());
        std::thread::spawn(move || {
            let mut piece = vec![0; PIECE_BYTES];
            while let Ok(got @ 1..) = stdout.read(&mut piece) {
                look(pid, &looks);
                let mut heard = hears.lock().unwrap();
                heard.extend_from_slice(&piece[..got]);
                let old = heard.len().saturating_sub(LAST_BYTES);
                heard.drain(..old);
            }
            let _ = tell.send(());
        });
        let mut far = Far { top, child, stdin, heard, silent, peak_kib, said_bytes: 0 };
        // It greets first. Who spoke before might be refused, and it gone, before anybody looked at it.
        until(|| !far.heard.lock().unwrap().is_empty());
        far.say(&greeting());
        far
    }

    /// Says bytes; `false`: nobody hears them any more.
    fn say(&mut self, said: &[u8]) -> bool {
        let Some(stdin) = &mut self.stdin else { return false };
        for piece in said.chunks(PIECE_BYTES) {
            look(self.child.id(), &self.peak_kib);
            match stdin.write_all(piece) {
                Ok(()) => self.said_bytes += piece.len() as u64,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                    return false;
                }
            }
        }
        look(self.child.id(), &self.peak_kib);
        true
    }

    /// Says what comes until nobody hears it any more, or there is no more.
    fn say_on(&mut self, said: impl IntoIterator<Item = Vec<u8>>) {
        let _ = said.into_iter().all(|said| self.say(&said));
    }

    /// Waits until it has said these bytes.
    fn hears(&self, wanted: &[u8]) {
        until(|| self.heard.lock().unwrap().windows(wanted.len()).any(|part| part == wanted));
    }

    /// Hangs up and waits for its end.
    fn ends(mut self) -> Ended {
        drop(self.stdin.take());
        let is_stuck = self.silent.recv_timeout(LIMIT).is_err();
        if is_stuck {
            let _ = self.child.kill();
        }
        let exit = self.child.wait().unwrap().code();
        assert!(!is_stuck, "it hangs");
        let last_words = String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned();
        let left: Vec<_> = std::fs::read_dir(self.top.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        Ended { exit, peak_kib: self.peak_kib.load(Ordering::Relaxed), said_bytes: self.said_bytes, last_words }
    }
}

/// Notes the most memory that a process has had so far, if it is there yet.
fn look(pid: u32, peak_kib: &AtomicU64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    peak_kib.fetch_max(kib.unwrap_or(0), Ordering::Relaxed);
}

impl Ended {
    /// It refused with exit 2 and these words, and its memory stayed below the bound.
    #[track_caller]
    fn refuses(&self, words: &str, max_mib: u64) {
        assert_eq!(self.exit, Some(2), "{}", self.last_words);
        assert!(self.last_words.contains(words), "{words:?} is not in {:?}", self.last_words);
        self.is_small(max_mib);
    }

    /// Its peer hung up, or had said more than its window by then: that depends on who is faster.
    #[track_caller]
    fn breaks_off(&self) {
        let is_overdrawn = self.exit == Some(2) && self.last_words.contains("said more of");
        assert!(self.exit == Some(12) || is_overdrawn, "{:?}: {}", self.exit, self.last_words);
    }

    #[track_caller]
    fn is_small(&self, max_mib: u64) {
        assert!(self.peak_kib > 1000, "nobody looked");
        let (peak_mib, said_mib) = (self.peak_kib >> 10, self.said_bytes >> 20);
        assert!(peak_mib < max_mib, "its peak was {peak_mib} MiB of {max_mib}, after {said_mib} MiB from its peer");
    }
}

/// A far end that receives and was told where to, and hears this until it refuses.
fn pushed(said: impl IntoIterator<Item = Vec<u8>>) -> Ended {
    let mut far = Far::start(false);
    far.say(&plain_setup(false));
    far.say(&chunks(&roots()));
    far.say_on(said.into_iter().map(|said| chunks(&said)));
    far.ends()
}

/// A far end that sends and hears this, once it has told what it has, until it refuses.
fn pulled(said: impl IntoIterator<Item = Vec<u8>>) -> Ended {
    let mut far = Far::start(true);
    far.say(&plain_setup(true));
    // It shall tell the root in any case.
    far.say(&frame(DIGESTS, &[1, 1, 0]));
    far.hears(b"known");
    far.say_on(said);
    far.ends()
}

/// The program itself, and a little.
const IDLE_MIB: u64 = 32;
/// That, a windowful, and the longest frame, decoded.
const MAX_MIB: u64 = 96;
/// A million of each of the four kinds of words that a client may ask for anything in.
const SETUP_MAX_MIB: u64 = 448;

#[test]
fn directories_without_end() {
    let list = files("f", 2000);
    let first = dir(0, 0, b"", &files("z", 1));
    let others = (1u64..).map(|id| dir(0, id, format!("x{id:08}").as_bytes(), &list));
    pushed(std::iter::once(first).chain(others)).refuses("more of Dirs than it may", MAX_MIB);
}

#[test]
fn a_long_directory_costs_what_it_holds() {
    // It is put together before anybody takes it; what bounds it is DIR_ENTRIES_MAX.
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
fn frames_that_say_to_be_long() {
    for (kind, len) in [(DIR, 1u64 << 24), (ROOTS, 1 << 26), (WANT, 1 << 24), (DATA, (256 << 10) + 64)] {
        let head = [&[kind][..], &varint(len)].concat();
        let body = std::iter::repeat_with(|| vec![0; 64 << 10]);
        let max_mib = if kind == ROOTS { MAX_MIB + 48 } else { MAX_MIB };
        pushed(std::iter::once(head).chain(body)).refuses("bad message", max_mib);
    }
    for (kind, len) in [(DIR, (1u64 << 24) + 1), (EVENT, 1 << 40), (PING, 1 << 63)] {
        let head = [&[kind][..], &varint(len)].concat();
        let body = std::iter::repeat_with(|| vec![0; 64 << 10]);
        pushed(std::iter::once(head).chain(body)).refuses("is the most", IDLE_MIB);
    }
}

#[test]
fn counts_that_are_not_there() {
    for list in [varint(65_536), varint(1 << 40), varint(u64::MAX)] {
        pushed([dir(0, 0, b"", &list)]).refuses("bad message Dir", IDLE_MIB);
    }
}

#[test]
fn a_setup_of_as_many_words_as_there_may_be() {
    let many = varint(1 << 20);
    let words = [&many[..], &bytes(b"--exclude=*.o").repeat(1 << 20)].concat();
    let rules = [&many[..], &[4].repeat(1 << 20)].concat();
    let mut far = Far::start(false);
    far.say(&setup(false, [&words, &words, &rules, &words]));
    far.ends().refuses("asks for other paths", SETUP_MAX_MIB);
}

#[test]
fn data_that_nobody_waits_for() {
    let list = [&[1][..], &entry(b"new", 0o100_644)].concat();
    let data = frame(DATA, &[&[0][..], &vec![b'x'; 256 << 10]].concat());
    let told = [dir(4, 0, b"", &list), frame(BEGIN, &[0, 0, 0])].concat();
    let ended = pushed(std::iter::once(told).chain(std::iter::repeat_n(data, 256)));
    ended.breaks_off();
    ended.is_small(48);
}

/// The longest that a chunk may expand to.
const PIECE_MAX_BYTES: usize = 256 << 10;

/// What one zstd stream, blocks of lz4 and one zlib stream make of the same bytes again and again.
#[test]
fn compressed_bombs() {
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
                    zlib.compress(piece, &mut out, flate2::FlushCompress::Sync).unwrap();
                    (zlib.total_out() - before) as usize
                }
            };
            chunk(kind, &out[..len])
        };
        let mut far = Far::start(false);
        far.say(&plain_setup(false));
        far.say(&squeeze(&first));
        let bomb: Vec<_> =
            (0..256).flat_map(|_| zeros.chunks(PIECE_MAX_BYTES).map(&mut squeeze).collect::<Vec<_>>()).collect();
        let said: usize = bomb.iter().map(Vec::len).sum();
        assert!(said * 50 < 256 * zeros.len(), "{said} bytes are no bomb");
        far.say_on(bomb);
        let ended = far.ends();
        ended.breaks_off();
        ended.is_small(32);
    }
}

#[test]
fn a_window_of_zstd_that_is_huge() {
    // A frame whose window is 2 GiB, and a block of zeros.
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8];
    let block = [0x02, 0x00, 0x10, 0x00];
    let mut far = Far::start(false);
    far.say(&plain_setup(false));
    far.say(&chunk(1, &[&head[..], &block].concat()));
    far.ends().refuses("", IDLE_MIB);
}

#[test]
fn digests_without_end() {
    let children = [&[1, 1][..], &varint(1 << 20), &vec![0; 4 << 20]].concat();
    pulled(std::iter::repeat(frame(DIGESTS, &children))).refuses("more of Digests than it may", MAX_MIB);
}

#[test]
fn wants_without_end() {
    // Blocks of 348 bytes, each with a tag of five: as many as fit.
    let blocks = ((15u64 << 20) - 13) / 5;
    let tag = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let tags: Vec<u8> = (1..=blocks).flat_map(|n| tag(n).into_iter().take(5)).collect();
    let basis = [&348u32.to_le_bytes()[..], &(blocks * 348).to_le_bytes(), &[5], &tags].concat();
    let long = frame(WANT, &[&[0, 0, 1, 1][..], &basis].concat());
    let short = frame(WANT, &[0, 0, 1, 0]).repeat(1000);
    for (want, max_mib) in [(long, 160), (short, MAX_MIB)] {
        let mut far = Far::start(true);
        far.say(&plain_setup(true));
        far.say(&frame(DIGESTS, &[1, 1, 0]));
        far.hears(b"known");
        // The first is answered: it was looked into.
        far.say(&want);
        far.hears(&[b'k'; 100]);
        far.say_on(std::iter::repeat(want));
        far.ends().refuses("more of Wants than it may", max_mib);
    }
}

#[test]
fn windows_without_bound() {
    for class in 0..=6 {
        let grant = frame(GRANT, &[&[class][..], &varint(1 << 40)].concat());
        pulled([grant.clone()]).refuses("granted more of", IDLE_MIB);
        pushed([grant]).refuses("granted more of", IDLE_MIB);
    }
}
