//! Writes zeros as holes (`--sparse`).

use crate::fs::{errno, sys};
use rustix::fd::BorrowedFd;
use std::io;
use std::ops::Range;

/// The unit in which `--sparse` searches for zeros, as in rsync.
const SPARSE_UNIT: usize = 1024;
/// How many zeros are written by one call where holes are not supported.
const ZEROS_BYTES: usize = 128 * 1024;

/// Writes the units that are not all zero. Returns whether everything was zero. If `fresh` is false, punches holes for
/// zeros in the old file.
pub(super) fn write_where_not_zero(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    at: u64,
    fresh: bool,
) -> io::Result<bool> {
    let is_zero = |unit: &[u8]| unit.iter().all(|&b| b == 0);
    let mut wrote = false;
    let mut start = 0;
    while start < bytes.len() {
        // Combine units of the same kind, because a file system frees only whole blocks.
        let mut units = bytes[start..].chunks(SPARSE_UNIT);
        let zeros = units.next().is_some_and(is_zero);
        let alike = 1 + units.take_while(|unit| is_zero(unit) == zeros).count();
        let end = bytes.len().min(start + alike * SPARSE_UNIT);
        if !zeros {
            sys::pwrite_all(to, &bytes[start..end], at + start as u64)?;
            wrote = true;
        } else if !fresh {
            clear(to, at + start as u64, (end - start) as u64)?;
        }
        start = end;
    }
    Ok(!wrote)
}

/// Writes the pieces of a content in order, and leaves or punches holes for zeros (`--sparse`).
///
/// Runs of zeros are found to the byte and across pieces, because a file system frees only whole blocks, which begin
/// anywhere in a piece.
pub struct SparseWriter<'a> {
    to: BorrowedFd<'a>,
    /// The file is new: what is not written is a hole.
    fresh: bool,
    /// Zeros at the end of what was put, for which nothing was done yet.
    zeros: Range<u64>,
    /// The file has all of these zeros already.
    zeros_are_there: bool,
}

impl<'a> SparseWriter<'a> {
    /// Creates a writer for a file. `fresh`: it is new.
    pub fn new(to: BorrowedFd<'a>, fresh: bool) -> SparseWriter<'a> {
        SparseWriter {
            to,
            fresh,
            zeros: 0..0,
            zeros_are_there: true,
        }
    }

    /// Puts a piece. `is_there`: the file has these bytes already, so that only holes are made.
    pub fn put(&mut self, bytes: &[u8], at: u64, is_there: bool) -> io::Result<()> {
        if at != self.zeros.end {
            self.finish()?;
            self.zeros = at..at;
        }
        let leading = bytes.iter().take_while(|&&b| b == 0).count();
        self.add_zeros(leading, is_there);
        if leading == bytes.len() {
            return Ok(());
        }
        self.finish()?;
        let trailing = bytes.iter().rev().take_while(|&&b| b == 0).count();
        let end = bytes.len() - trailing;
        let mut start = leading;
        while start < end {
            let run = next_zeros(&bytes[..end], start);
            if !is_there {
                sys::pwrite_all(self.to, &bytes[start..run.start], at + start as u64)?;
            }
            self.zeros = at + run.start as u64..at + run.start as u64;
            self.add_zeros(run.len(), is_there);
            self.finish()?;
            start = run.end;
        }
        self.add_zeros(trailing, is_there);
        Ok(())
    }

    /// Makes a hole of the zeros at the end of what was put. Does not lengthen the file.
    pub fn finish(&mut self) -> io::Result<()> {
        let Range { start, end } = self.zeros;
        let len_bytes = end - start;
        let is_short = len_bytes < SPARSE_UNIT as u64;
        if len_bytes > 0 && !self.fresh && !(is_short && self.zeros_are_there) {
            clear(self.to, start, len_bytes)?;
        }
        self.zeros = end..end;
        self.zeros_are_there = true;
        Ok(())
    }

    fn add_zeros(&mut self, count: usize, are_there: bool) {
        self.zeros.end += count as u64;
        self.zeros_are_there &= are_there || count == 0;
    }
}

/// Returns the first run of zeros from `start` on that can contain a block of a file system; an empty range at the end
/// if there is none. The bytes at `start` and at the end are not zero.
fn next_zeros(bytes: &[u8], start: usize) -> Range<usize> {
    let is_zero = |unit: &[u8]| unit.iter().all(|&b| b == 0);
    let Some(unit) = bytes[start..].chunks_exact(SPARSE_UNIT).position(is_zero) else {
        return bytes.len()..bytes.len();
    };
    let inside = start + unit * SPARSE_UNIT;
    let before = bytes[..inside].iter().rev().take_while(|&&b| b == 0);
    let after = bytes[inside..].iter().take_while(|&&b| b == 0);
    inside - before.count()..inside + after.count()
}

/// Punches a hole, or writes zeros if holes are not supported.
pub(super) fn clear(to: BorrowedFd<'_>, at: u64, len_bytes: u64) -> io::Result<()> {
    match sys::punch(to, at, len_bytes) {
        Err(error) if errno::is_call_refused(&error) => write_zeros(to, at, len_bytes),
        other => other,
    }
}

fn write_zeros(to: BorrowedFd<'_>, at: u64, len_bytes: u64) -> io::Result<()> {
    let zeros = vec![0; len_bytes.min(ZEROS_BYTES as u64) as usize];
    let end = at + len_bytes;
    for piece_at in (at..end).step_by(ZEROS_BYTES) {
        let piece_bytes = (end - piece_at).min(zeros.len() as u64) as usize;
        sys::pwrite_all(to, &zeros[..piece_bytes], piece_at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::copy::BLOCK_BYTES;
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::AsFd;

    #[test]
    fn zeros_written_over_data_become_holes() {
        use std::os::unix::fs::MetadataExt;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 3 * ZEROS_BYTES]).unwrap();
        let before = file.metadata().unwrap().blocks();
        let mut piece = vec![0; ZEROS_BYTES];
        (piece[0], piece[ZEROS_BYTES - 1]) = (1, 2);
        assert!(!write_where_not_zero(file.as_fd(), &piece, ZEROS_BYTES as u64, false).unwrap());
        let mut got = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut got).unwrap();
        let sevens = vec![7; ZEROS_BYTES];
        assert_eq!(got, [&sevens[..], &piece, &sevens].concat());
        // All blocks of the piece except the first and the last are freed, if the file system supports holes.
        let freed_bytes = (before - file.metadata().unwrap().blocks()) * 512;
        assert!(
            [0, ZEROS_BYTES as u64 - 2 * BLOCK_BYTES as u64].contains(&freed_bytes),
            "{freed_bytes}"
        );
    }

    #[test]
    fn write_zeros_overwrites_exactly_its_range() {
        let mut file = tempfile::tempfile().unwrap();
        let content = vec![7; 2 * ZEROS_BYTES + 1000];
        file.write_all(&content).unwrap();
        write_zeros(file.as_fd(), 5, ZEROS_BYTES as u64 + 90).unwrap();
        let mut got = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut got).unwrap();
        let zeros = vec![0; ZEROS_BYTES + 90];
        assert_eq!(
            got,
            [&content[..5], &zeros, &content[5 + zeros.len()..]].concat()
        );
    }

    #[test]
    fn sparse_writer_finds_zeros_across_pieces() {
        let mut content: Vec<u8> = (0..60_000_u32).map(|i| (i % 251 + 1) as u8).collect();
        for zeros in [
            0..300,
            4000..13_000,
            20_001..20_700,
            30_500..50_000,
            59_990..60_000,
        ] {
            content[zeros].fill(0);
        }
        // Blocks that are all zero: 2 in the second run, 4 in the fourth.
        let blocks_of = |file: &std::fs::File| {
            use std::os::unix::fs::MetadataExt as _;
            file.metadata().unwrap().blocks()
        };
        let is_there_at = |at: usize| (at / 700).is_multiple_of(2);
        for piece_bytes in [1, 700, 4096, 60_000] {
            for fresh in [true, false] {
                let mut file = tempfile::tempfile().unwrap();
                if !fresh {
                    let mut old = content.clone();
                    for (at, byte) in old.iter_mut().enumerate() {
                        let piece_at = at / piece_bytes * piece_bytes;
                        *byte = if is_there_at(piece_at) { *byte } else { 7 };
                    }
                    file.write_all(&old).unwrap();
                    file.sync_all().unwrap();
                }
                let full = blocks_of(&file);
                let mut writer = SparseWriter::new(file.as_fd(), fresh);
                for (index, piece) in content.chunks(piece_bytes).enumerate() {
                    let at = index * piece_bytes;
                    writer
                        .put(piece, at as u64, !fresh && is_there_at(at))
                        .unwrap();
                }
                writer.finish().unwrap();
                file.set_len(content.len() as u64).unwrap();
                let mut got = Vec::new();
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_to_end(&mut got).unwrap();
                assert_eq!(got, content, "{piece_bytes} {fresh}");
                file.sync_all().unwrap();
                if !fresh && full > 0 {
                    assert_eq!(full - blocks_of(&file), 6 * 8, "{piece_bytes}");
                }
            }
        }
    }
}
