//! A source and a signature: what of the source the basis has already.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use super::Op;
use super::emit::Emitter;
use super::index::Index;
use super::scan::{Part, Scanner, Stretch};
use super::signature::{ReadAt, Signature, fill_at};

/// How much of the source is in memory at once, for blocks that are not very long: it should stay in the cache of a
/// core from one look at it to the next.
const WINDOW_BYTES: usize = 256 << 10;

/// How much of the source a thread searches at a time, for blocks that are not very long.
const SEGMENT_BYTES: usize = 1 << 20;

/// What a search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// How many bytes of the source the ops carry.
    pub literal_bytes: u64,
    /// How many bytes of the source come from the basis.
    pub matched_bytes: u64,
    /// The length of the source: both together.
    pub len_bytes: u64,
    /// Of the content of the source: `digest::content`.
    pub digest: [u8; 16],
}

/// Tells a source as ops, from its beginning to its end.
///
/// `read` fills its buffer from the start, says how much, and 0 at the end. `len_hint` is how long the source is
/// thought to be, in bytes; if that is wrong, less may be found. `in_place` means that the basis is overwritten while
/// the ops are carried out: each [`Op::Copy`] then begins in the basis where it goes to or behind that, so that nothing
/// is read that was overwritten. A range may overlap its own place, as with `memmove`.
///
/// Errs as `read` and `emit` do, at once. Memory: a window of 256 KiB (more for blocks of more than 32 KiB), and about 30
/// bytes for each block.
pub fn search(
    signature: &Signature,
    len_hint: u64,
    in_place: bool,
    read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<Found> {
    search_by(WINDOW_BYTES, signature, len_hint, in_place, read, emit)
}

/// As [`search`], with so much in memory, or as little as there must be.
pub(super) fn search_by(
    window_bytes: usize,
    signature: &Signature,
    len_hint: u64,
    in_place: bool,
    read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<Found> {
    let index = Index::new(signature, len_hint);
    let mut scanner = Scanner::new(&index, len_hint, in_place);
    let mut emitter = Emitter::new(emit);
    let row_len = index.row() * signature.block_len() as usize;
    // One byte more than the source has: the end is seen without another turn.
    let enough = len_hint.saturating_add(1).max(2 * row_len as u64);
    let mut window = vec![0; enough.min(window_bytes.max(2 * row_len) as u64) as usize];
    let mut parts = Vec::new();
    let (mut filled, mut is_end) = (0, false);
    loop {
        while filled < window.len() && !is_end {
            match read(&mut window[filled..])? {
                0 => is_end = true,
                n => filled += n,
            }
        }
        let positions = if is_end { filled } else { filled - row_len };
        let stretch = Stretch { bytes: &window[..filled], offset: emitter.told_bytes(), positions, is_end };
        let done = scanner.scan(stretch, &mut parts);
        tell(&mut emitter, &window[..done], 0, &mut parts)?;
        if is_end {
            return emitter.finish();
        }
        window.copy_within(done..filled, 0);
        filled -= done;
    }
}

/// As [`search`], on `threads` threads besides the caller's: for sources of 64 MiB and more.
///
/// The source is `len` bytes long; if it turns out to be shorter, it is told as far as it goes. `emit` is called by the
/// calling thread, in order. Where the work of one thread meets that of the next, nothing is lost but that a block in
/// the midst of changes may be missed. Memory: three segments of 1 MiB for each thread (more for blocks of more than
/// 512 KiB), and about 30 bytes for each block.
pub fn search_at(
    signature: &Signature,
    len: u64,
    in_place: bool,
    threads: usize,
    read_at: &ReadAt<'_>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<Found> {
    search_at_by(SEGMENT_BYTES, signature, len, in_place, threads, read_at, emit)
}

/// As [`search_at`], in segments of this length, or as short as they can be.
pub(super) fn search_at_by(
    segment_bytes: usize,
    signature: &Signature,
    len: u64,
    in_place: bool,
    threads: usize,
    read_at: &ReadAt<'_>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<Found> {
    let index = Index::new(signature, len);
    let plan = Plan::new(&index, len, in_place, segment_bytes);
    let mut emitter = Emitter::new(emit);
    let threads = threads.clamp(1, plan.segments.clamp(1, 1024) as usize);
    std::thread::scope(|scope| {
        // The segments of a thread depend on the number of threads, so they wait until that is known.
        let mut starts = Vec::new();
        let mut lanes: Vec<Receiver<_>> = Vec::new();
        for first in 0..threads as u64 {
            // Each thread works on one segment and queues at most one, so memory is bounded.
            let (results, lane) = sync_channel(1);
            let (start, started) = sync_channel::<usize>(1);
            let plan = &plan;
            let work =
                move || started.recv().into_iter().for_each(|threads| plan.work(first, threads, read_at, &results));
            match std::thread::Builder::new().spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(error) if starts.is_empty() => return Err(error),
                Err(_) => break,
            }
            starts.push(start);
            lanes.push(lane);
        }
        for start in &starts {
            // A thread that does not receive it has panicked, see below.
            let _ = start.send(starts.len());
        }
        for (_, lane) in (0..plan.segments).zip(lanes.iter().cycle()) {
            // A lane that is cut off: its thread has panicked, and the scope goes on with that.
            let Ok(segment) = lane.recv() else { break };
            let Segment { offset, bytes, done, mut parts, is_end } = segment?;
            // The last match of the segment before may reach into this one, whose thread could not know.
            let told = (emitter.told_bytes() - offset) as usize;
            tell(&mut emitter, &bytes[told.min(done)..done], told, &mut parts)?;
            if is_end {
                break;
            }
            plan.give_back(bytes);
        }
        emitter.finish()
    })
}

/// How a source is cut for several threads.
struct Plan<'a> {
    index: &'a Index<'a>,
    len: u64,
    in_place: bool,
    segment_len: u64,
    segments: u64,
    /// Buffers that were of use. New memory for each segment would cost as much time as reading it.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A part of the source that one thread has searched.
struct Segment {
    /// Where it begins in the source.
    offset: u64,
    /// Its bytes, and some behind it.
    bytes: Vec<u8>,
    /// How many of the bytes the parts are.
    done: usize,
    parts: Vec<Part>,
    /// The source ends here.
    is_end: bool,
}

impl<'a> Plan<'a> {
    fn new(index: &'a Index<'a>, len: u64, in_place: bool, segment_bytes: usize) -> Plan<'a> {
        let block_len = index.signature().block_len() as usize;
        // A multiple of the block's length: nothing that stayed where it was crosses a border.
        let segment_len = (segment_bytes.max(2 * block_len) / block_len * block_len) as u64;
        Plan { index, len, in_place, segment_len, segments: len.div_ceil(segment_len), spare: Mutex::default() }
    }

    /// Searches the segments `first`, `first + step` and so on, until there are no more or nobody wants them.
    fn work(&self, first: u64, step: usize, read_at: &ReadAt<'_>, results: &SyncSender<io::Result<Segment>>) {
        for number in (first..self.segments).step_by(step) {
            if results.send(self.search(number, read_at)).is_err() {
                return;
            }
        }
    }

    /// Takes a buffer that is of no use any more.
    fn give_back(&self, bytes: Vec<u8>) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
    }

    /// Reads and searches one segment.
    fn search(&self, number: u64, read_at: &ReadAt<'_>) -> io::Result<Segment> {
        let offset = number * self.segment_len;
        let reach = (self.index.row() as u64) * u64::from(self.index.signature().block_len());
        let wanted = (self.segment_len + reach).min(self.len - offset) as usize;
        let mut bytes = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        bytes.resize(wanted, 0);
        let filled = fill_at(read_at, offset, &mut bytes)?;
        bytes.truncate(filled);
        let is_end = filled < wanted || offset + filled as u64 == self.len;
        let positions = filled.min(self.segment_len as usize);
        let mut parts = Vec::new();
        let stretch = Stretch { bytes: &bytes, offset, positions, is_end };
        let done = Scanner::new(self.index, self.len, self.in_place).scan(stretch, &mut parts);
        Ok(Segment { offset, done, parts, is_end: is_end && done == filled, bytes })
    }
}

/// Tells the parts but for the first `skipped` bytes of them; `bytes` begin behind these. Leaves no parts.
fn tell(emitter: &mut Emitter<'_>, bytes: &[u8], skipped: usize, parts: &mut Vec<Part>) -> io::Result<()> {
    emitter.digest(bytes);
    let (mut skipped, mut rest) = (skipped, bytes);
    for part in parts.drain(..) {
        let skip = skipped.min(part.len());
        skipped -= skip;
        let (now, later) = rest.split_at(part.len() - skip);
        rest = later;
        match part {
            _ if now.is_empty() => {}
            Part::Literal(_) => emitter.data(now)?,
            Part::Copy(offset, _) => emitter.copy(offset + skip as u64, now.len() as u64)?,
        }
    }
    Ok(())
}
