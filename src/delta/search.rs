//! Finds the parts of a source that the basis already has.

use crate::digest::CONTENT_LEN_BYTES;
use parking_lot::Mutex;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::Op;
use super::index::Index;
use super::op_builder::Emitter;
use super::scan::{BlockScanner, Part, SourceRange};
use super::signature::{ReadAt, Signature, fill_at};

/// How much of the source is in memory at once, unless blocks are very long. It should stay in a core's cache between
/// passes.
const WINDOW_BYTES: usize = 256 << 10;

/// How much of the source a thread searches at a time, unless blocks are very long.
const SEGMENT_BYTES: usize = 1 << 20;

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchResult {
    /// The number of source bytes sent as literal data.
    pub literal_bytes: u64,
    /// The number of source bytes copied from the basis.
    pub matched_bytes: u64,
    /// The length of the source: the sum of both.
    pub len_bytes: u64,
    /// The digest of the source's content: `digest::content`.
    pub digest: [u8; CONTENT_LEN_BYTES],
}

/// Encodes a source as ops, from its beginning to its end.
///
/// `read` fills its buffer from the start and returns the number of bytes, 0 at the end. `len_hint` is the expected
/// length of the source in bytes; a wrong value may lose matches. `in_place` means that the receiver overwrites the
/// basis while it carries out the ops. Then the basis offset of each [`Op::Copy`] is at or behind its destination
/// offset, so that no overwritten data is read. A range may overlap its destination, as with `memmove`.
///
/// Returns the first error of `read` or `emit`. Memory: a window of 256 KiB (more for blocks of more than 32 KiB) and
/// about 30 bytes per block.
pub fn search(
    signature: &Signature,
    len_hint: u64,
    in_place: bool,
    read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<SearchResult> {
    search_by(WINDOW_BYTES, signature, len_hint, in_place, read, emit)
}

/// Like [`search`], with a window of this size or the minimum size.
pub(super) fn search_by(
    window_bytes: usize,
    signature: &Signature,
    len_hint: u64,
    in_place: bool,
    read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<SearchResult> {
    let index = Index::new(signature, len_hint);
    let mut scanner = BlockScanner::new(&index, len_hint, in_place);
    let mut emitter = Emitter::new(emit);
    let row_len = index.row() * signature.block_len() as usize;
    // One byte longer than the source, so that the first pass sees the end of file.
    let enough = len_hint.saturating_add(1).max(2 * row_len as u64);
    let mut window = vec![0; enough.min(window_bytes.max(2 * row_len) as u64) as usize];
    let mut parts = Vec::new();
    let mut filled = 0;
    let mut is_end = false;
    loop {
        while filled < window.len() && !is_end {
            match read(&mut window[filled..])? {
                0 => is_end = true,
                n => filled += n,
            }
        }
        let positions = if is_end { filled } else { filled - row_len };
        let range = SourceRange {
            bytes: &window[..filled],
            offset: emitter.emitted_bytes(),
            positions,
        };
        let done = scanner.scan(range, &mut parts);
        emit_parts(&mut emitter, &window[..done], 0, &mut parts)?;
        if is_end {
            return emitter.finish();
        }
        window.copy_within(done..filled, 0);
        filled -= done;
    }
}

/// Like [`search`], on `threads` threads besides the caller's, for sources of 64 MiB and more.
///
/// The source is `len` bytes long; if it turns out to be shorter, the ops end where it ends. `emit` runs on the calling
/// thread, in order. At the borders between threads, only a block surrounded by changes may be missed. Memory: three
/// segments of 1 MiB per thread (more for blocks of more than 512 KiB) and about 30 bytes per block.
pub fn search_at(
    signature: &Signature,
    len: u64,
    in_place: bool,
    threads: usize,
    read_at: &ReadAt<'_>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<SearchResult> {
    search_at_by(
        SEGMENT_BYTES,
        signature,
        len,
        in_place,
        threads,
        read_at,
        emit,
    )
}

/// Like [`search_at`], with segments of this length or the minimum length.
pub(super) fn search_at_by(
    segment_bytes: usize,
    signature: &Signature,
    len: u64,
    in_place: bool,
    threads: usize,
    read_at: &ReadAt<'_>,
    emit: &mut dyn FnMut(Op<'_>) -> io::Result<()>,
) -> io::Result<SearchResult> {
    let index = Index::new(signature, len);
    let plan = SearchPlan::new(&index, len, in_place, segment_bytes);
    let mut emitter = Emitter::new(emit);
    let threads = threads.clamp(1, plan.segments.clamp(1, 1024) as usize);
    std::thread::scope(|scope| {
        // The segments of a thread depend on the number of threads, so threads wait until that is known.
        let mut starts = Vec::new();
        let mut lanes: Vec<Receiver<_>> = Vec::new();
        for first in 0..threads as u64 {
            // Each thread works on one segment and queues at most one, so memory is bounded.
            let (results, lane) = sync_channel(1);
            let (start, started) = sync_channel::<usize>(1);
            let plan = &plan;
            let work = move || {
                if let Ok(threads) = started.recv() {
                    plan.work(first, threads, read_at, &results);
                }
            };
            match std::thread::Builder::new().spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(error) if starts.is_empty() => return Err(error),
                Err(_) => break,
            }
            starts.push(start);
            lanes.push(lane);
        }
        for start in &starts {
            // A thread that does not receive this has panicked, see below.
            let _ = start.send(starts.len());
        }
        for (_, lane) in (0..plan.segments).zip(lanes.iter().cycle()) {
            // If the channel is closed, its thread has panicked; the scope resumes that panic.
            let Ok(segment) = lane.recv() else { break };
            let SearchSegment {
                offset,
                bytes,
                done,
                mut parts,
                is_end,
            } = segment?;
            // The last match of the previous segment may extend into this one; this segment's thread could not know
            // that.
            let emitted_len = (emitter.emitted_bytes() - offset) as usize;
            emit_parts(
                &mut emitter,
                &bytes[emitted_len.min(done)..done],
                emitted_len,
                &mut parts,
            )?;
            if is_end {
                break;
            }
            plan.give_back(bytes);
        }
        emitter.finish()
    })
}

/// The division of a source into segments for several threads.
struct SearchPlan<'a> {
    index: &'a Index<'a>,
    len: u64,
    in_place: bool,
    segment_len: u64,
    segments: u64,
    /// Buffers to reuse. Allocating memory for each segment would take as long as reading it.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A segment of the source that a thread has searched.
struct SearchSegment {
    /// The offset in the source.
    offset: u64,
    /// Its bytes, and some of those that follow.
    bytes: Vec<u8>,
    /// How many of the bytes the parts cover.
    done: usize,
    parts: Vec<Part>,
    /// Whether the source ends here.
    is_end: bool,
}

impl<'a> SearchPlan<'a> {
    fn new(index: &'a Index<'a>, len: u64, in_place: bool, segment_bytes: usize) -> SearchPlan<'a> {
        let block_len = index.signature().block_len() as usize;
        // A multiple of the block length, so that blocks at an unchanged offset do not cross a border.
        let segment_len = (segment_bytes.max(2 * block_len) / block_len * block_len) as u64;
        SearchPlan {
            index,
            len,
            in_place,
            segment_len,
            segments: len.div_ceil(segment_len),
            spare: Mutex::default(),
        }
    }

    /// Searches the segments `first`, `first + step` and so on, until the end or until the receiver of the results is
    /// dropped.
    fn work(
        &self,
        first: u64,
        step: usize,
        read_at: &ReadAt<'_>,
        results: &SyncSender<io::Result<SearchSegment>>,
    ) {
        for number in (first..self.segments).step_by(step) {
            if results.send(self.search(number, read_at)).is_err() {
                return;
            }
        }
    }

    /// Takes back a buffer that is no longer in use.
    fn give_back(&self, bytes: Vec<u8>) {
        self.spare.lock().push(bytes);
    }

    /// Reads and searches one segment.
    fn search(&self, number: u64, read_at: &ReadAt<'_>) -> io::Result<SearchSegment> {
        let offset = number * self.segment_len;
        let reach = (self.index.row() as u64) * u64::from(self.index.signature().block_len());
        let wanted = (self.segment_len + reach).min(self.len - offset) as usize;
        let mut bytes = self.spare.lock().pop().unwrap_or_default();
        bytes.resize(wanted, 0);
        let filled = fill_at(read_at, offset, &mut bytes)?;
        bytes.truncate(filled);
        let positions = filled.min(self.segment_len as usize);
        let mut parts = Vec::new();
        let range = SourceRange {
            bytes: &bytes,
            offset,
            positions,
        };
        let done = BlockScanner::new(self.index, self.len, self.in_place).scan(range, &mut parts);
        Ok(SearchSegment {
            offset,
            done,
            parts,
            // Where the source goes on, a whole row is behind the positions, and no match extends as far.
            is_end: done == filled,
            bytes,
        })
    }
}

/// Emits the parts except for their first `skipped` bytes, and clears them. `bytes` starts after the skipped bytes.
fn emit_parts(
    emitter: &mut Emitter<'_>,
    bytes: &[u8],
    skipped: usize,
    parts: &mut Vec<Part>,
) -> io::Result<()> {
    emitter.digest(bytes);
    let mut skipped = skipped;
    let mut rest = bytes;
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

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 64;

    fn read_at(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<usize> + Sync {
        |offset, buffer| io::Read::read(&mut &bytes[offset as usize..], buffer)
    }

    /// A thread reads a segment of four blocks, and the row of blocks behind it that a match may extend into.
    #[test]
    fn segment_is_searched_with_the_row_behind_it() {
        // The basis has none of the blocks of the source.
        let signature = Signature::read(640, BLOCK as u32, 1, &read_at(&[1; 640])).unwrap();
        let source = [2; 1000];
        for (number, len, row, read_bytes, done, is_end) in [
            (0, 1000, 1, 320, 256, false),
            (1, 1000, 1, 320, 256, false),
            (2, 1000, 1, 320, 256, false),
            (3, 1000, 1, 232, 232, true),
            // Longer rows need more bytes.
            (0, 1000, 2, 384, 256, false),
            // The rest of the source is shorter than a row.
            (0, 300, 1, 300, 256, false),
            (1, 300, 1, 44, 44, true),
            // The source is shorter than expected.
            (3, 5000, 1, 232, 232, true),
            (4, 5000, 1, 0, 0, true),
            // It has grown.
            (1, 500, 1, 244, 244, true),
        ] {
            let source_len = if row == 1 { len } else { 1 << 50 };
            let index = Index::new(&signature, source_len);
            assert_eq!(index.row(), row);
            let plan = SearchPlan::new(&index, len, false, 4 * BLOCK);
            let reader = |offset: u64, buffer: &mut [u8]| {
                read_at(&source)(offset.min(source.len() as u64), buffer)
            };
            let segment = plan.search(number, &reader).unwrap();
            assert_eq!(segment.offset, number * 256);
            assert_eq!(
                (segment.bytes.len(), segment.done, segment.is_end),
                (read_bytes, done, is_end),
                "{number} of {len}"
            );
        }
    }

    #[test]
    fn buffer_of_a_segment_is_used_again() {
        let signature = Signature::read(640, BLOCK as u32, 1, &read_at(&[1; 640])).unwrap();
        let index = Index::new(&signature, 1000);
        let plan = SearchPlan::new(&index, 1000, false, 4 * BLOCK);
        let first = plan.search(0, &read_at(&[2; 1000])).unwrap();
        plan.give_back(first.bytes);
        assert_eq!(plan.spare.lock().len(), 1);
        plan.search(1, &read_at(&[2; 1000])).unwrap();
        assert_eq!(plan.spare.lock().len(), 0);
    }

    /// The window is two rows long if blocks are long, so that each pass searches half of it.
    #[test]
    fn source_is_read_in_few_pieces() {
        let signature = Signature::read(640, BLOCK as u32, 1, &read_at(&[1; 640])).unwrap();
        let source = [2; 6400];
        for (window_bytes, expected_reads) in [(1, 100), (1000, 8), (6401, 2)] {
            let mut rest = &source[..];
            let mut reads = 0;
            let mut read = |piece: &mut [u8]| {
                reads += 1;
                io::Read::read(&mut rest, piece)
            };
            search_by(
                window_bytes,
                &signature,
                6400,
                false,
                &mut read,
                &mut |_| Ok(()),
            )
            .unwrap();
            assert_eq!(reads, expected_reads, "{window_bytes}");
        }
    }

    /// The last match of a segment may extend into the next one.
    #[test]
    fn bytes_that_are_already_emitted_are_skipped() {
        let parts = [Part::Copy(640, 10), Part::Literal(5), Part::Copy(64, 10)];
        let source: Vec<u8> = (0..25).collect();
        for (skipped, expected) in [
            (0, "640+10 5 64+10"),
            (4, "644+6 5 64+10"),
            (10, "5 64+10"),
            (12, "3 64+10"),
            (15, "64+10"),
            (16, "65+9"),
            (25, ""),
        ] {
            let mut ops = Vec::new();
            let mut emit = |op: Op<'_>| {
                ops.push(match op {
                    Op::Data(bytes) => bytes.len().to_string(),
                    Op::Copy {
                        offset_bytes,
                        len_bytes,
                    } => format!("{offset_bytes}+{len_bytes}"),
                });
                Ok(())
            };
            let mut emitter = Emitter::new(&mut emit);
            let mut parts = parts.to_vec();
            emit_parts(&mut emitter, &source[skipped..], skipped, &mut parts).unwrap();
            emitter.finish().unwrap();
            assert_eq!(ops.join(" "), expected, "{skipped}");
        }
    }
}
