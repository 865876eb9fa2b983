//! Copies file contents on one machine: shares blocks if possible, else copies in the kernel, else reads and writes.

use super::compare::read_until;
use super::source_reader::SourceReader;
use super::{errno, sys};
use crate::digest::{CONTENT_LEN_BYTES, ContentHasher};
use crate::flist::Kind;
use rustix::fd::BorrowedFd;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Up to this length, one read and one write are cheaper than `copy_file_range`.
const SMALL_BYTES: usize = 128 * 1024;
/// How much is copied between checks for interruption and progress reports.
const STEP_BYTES: usize = 8 * 1024 * 1024;
/// Differences are written in whole blocks of this length, the smallest that file systems share.
const BLOCK_BYTES: usize = 4096;
/// The unit in which `--sparse` searches for zeros, as in rsync.
const SPARSE_UNIT: usize = 1024;

/// Which side of a copy failed.
#[derive(Debug)]
pub enum CopyError {
    /// The source could not be read, or has become shorter while it was read.
    Read(io::Error),
    /// The source is not a regular file any more.
    NotRegular,
    /// The destination could not be written.
    Write(io::Error),
    /// The run is stopping.
    Stopped,
}

impl CopyError {
    /// Returns the error of whichever side failed.
    pub fn into_io(self) -> io::Error {
        match self {
            CopyError::Read(error) | CopyError::Write(error) => error,
            CopyError::NotRegular => errno::invalid(),
            CopyError::Stopped => io::ErrorKind::Interrupted.into(),
        }
    }
}

/// Operations that the file systems of a run have turned out not to support.
#[derive(Debug, Default)]
pub struct UnsupportedCalls {
    no_clone: AtomicBool,
    no_copy_range: AtomicBool,
    reported_no_clone: AtomicBool,
}

impl UnsupportedCalls {
    /// Records that the user knows that blocks cannot be shared. Returns whether that was recorded before.
    pub fn was_reported_no_clone(&self) -> bool {
        self.reported_no_clone.swap(true, Ordering::Relaxed)
    }
}

/// How to copy a file.
#[derive(Debug, Clone, Copy)]
pub struct CopyMethod {
    /// The length of the source when it was listed.
    pub len_bytes: u64,
    /// Runs of zeros become holes.
    pub sparse: bool,
    /// The data must pass through this process (`--bwlimit`, sparse writing, destination is a device).
    pub by_hand: bool,
    /// Where the copy begins in both files, which are at that position.
    pub start_bytes: u64,
    /// The source is a device. It is read up to `len_bytes` and no further, because it need not have an end.
    pub from_device: bool,
    /// The destination is empty and at its start. Otherwise it is overwritten from its start.
    pub fresh: bool,
}

/// The result of overwriting a file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Bytes in blocks that were written.
    pub written_bytes: u64,
    /// Bytes in blocks that were already identical.
    pub same_bytes: u64,
}

/// Copies whole files. Each thread has its own.
pub struct Copier<'a> {
    buffer: Vec<u8>,
    unsupported_calls: &'a UnsupportedCalls,
    /// How many bytes were written so far, in all copies.
    written_bytes: u64,
    /// Computes the digest of what is read, if that is wanted. Then all data passes through this process.
    hasher: Option<ContentHasher>,
    /// Called after each step with its number of bytes. Returning `false` stops the copy.
    step: &'a mut dyn FnMut(u64) -> bool,
}

impl<'a> Copier<'a> {
    /// Creates a copier that reuses `buffer`.
    pub fn new(
        buffer: Vec<u8>,
        unsupported_calls: &'a UnsupportedCalls,
        step: &'a mut dyn FnMut(u64) -> bool,
    ) -> Copier<'a> {
        Copier {
            buffer,
            unsupported_calls,
            written_bytes: 0,
            hasher: None,
            step,
        }
    }

    /// Computes the digest of what the next copy reads; see [`Copier::digest`].
    pub fn with_hasher(self, hasher: ContentHasher) -> Copier<'a> {
        Copier {
            hasher: Some(hasher),
            ..self
        }
    }

    /// Returns the digest of what was read, with zeros for holes. `None` without a hasher.
    pub fn digest(&self) -> Option<[u8; CONTENT_LEN_BYTES]> {
        self.hasher.as_ref().map(ContentHasher::finish)
    }

    /// Returns how many bytes were written so far, also by copies that failed.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Returns the buffer.
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Copies from the current positions of both files to the end of the source. Returns the number of bytes.
    pub fn copy(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        how: CopyMethod,
    ) -> Result<u64, CopyError> {
        if how.from_device {
            return self.copy_device(from, to, how);
        }
        let is_small = how.len_bytes <= SMALL_BYTES as u64;
        if is_small && !how.sparse && how.start_bytes == 0 {
            return self.copy_small(from, to, how.len_bytes as usize);
        }

        let source = opened(from)?;
        if source.len_bytes() < how.start_bytes {
            // It does not even have the beginning that the destination has.
            return Err(CopyError::Read(errno::no_data()));
        }
        if how.sparse {
            return self.copy_sparse(&source, to, how);
        }
        let by_hand = how.by_hand || self.hasher.is_some();
        if how.fresh && !by_hand && self.try_clone(from, to) {
            self.count(source.len_bytes())?;
            return Ok(source.len_bytes());
        }
        let mut copied = 0;
        if !by_hand && !self.unsupported_calls.no_copy_range.load(Ordering::Relaxed) {
            let rest = source.len_bytes().saturating_sub(how.start_bytes);
            copied = self.copy_in_kernel(from, to, rest)?;
        }
        Ok(copied + self.copy_by_hand(&source, how.start_bytes + copied, to)?)
    }

    /// Copies a short file. A read for one byte more than the listed length returns the content and shows that the file
    /// ends there.
    fn copy_small(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        listed_bytes: usize,
    ) -> Result<u64, CopyError> {
        self.room_for(listed_bytes + 1);
        let got = sys::read(from, &mut self.buffer[..listed_bytes + 1]).map_err(CopyError::Read)?;
        let mut rest = None;
        if got != listed_bytes {
            rest = Some(reader_of_rest(from, listed_bytes as u64, got as u64)?);
        }
        self.note_read(got);
        sys::write_all(to, &self.buffer[..got]).map_err(CopyError::Write)?;
        self.count(got as u64)?;
        match rest {
            None => Ok(got as u64),
            Some(source) => Ok(got as u64 + self.copy_by_hand(&source, got as u64, to)?),
        }
    }

    fn try_clone(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> bool {
        if self.unsupported_calls.no_clone.load(Ordering::Relaxed) {
            return false;
        }
        let cloned = sys::clone(to, from).is_ok();
        if !cloned {
            self.unsupported_calls
                .no_clone
                .store(true, Ordering::Relaxed);
        }
        cloned
    }

    /// Copies up to `rest_bytes`. Returns how much was copied. Less than that need not be an error: reading and writing
    /// will show it.
    fn copy_in_kernel(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        rest_bytes: u64,
    ) -> Result<u64, CopyError> {
        let mut copied = 0;
        while copied < rest_bytes {
            let want = usize::try_from(rest_bytes - copied)
                .map_or(STEP_BYTES, |rest| rest.min(STEP_BYTES));
            match sys::copy_range(from, to, want) {
                // Some file systems (proc, fuse) return 0 for files that can be read.
                Ok(0) => break,
                Ok(n) => {
                    copied += n as u64;
                    self.count(n as u64)?;
                }
                Err(error) => {
                    if copied == 0 && cannot_copy_range(&error) {
                        self.unsupported_calls
                            .no_copy_range
                            .store(true, Ordering::Relaxed);
                    }
                    // The kernel does not report which side failed.
                    break;
                }
            }
        }
        Ok(copied)
    }

    /// Copies from an offset on to the position of the other file.
    fn copy_by_hand(
        &mut self,
        source: &SourceReader<BorrowedFd<'_>>,
        start: u64,
        to: BorrowedFd<'_>,
    ) -> Result<u64, CopyError> {
        self.room_for(SMALL_BYTES);
        let mut copied = 0;
        loop {
            let got = source
                .read_at(start + copied, &mut self.buffer[..SMALL_BYTES])
                .map_err(CopyError::Read)?;
            if got == 0 {
                return Ok(copied);
            }
            self.note_read(got);
            sys::write_all(to, &self.buffer[..got]).map_err(CopyError::Write)?;
            copied += got as u64;
            self.count(got as u64)?;
        }
    }

    fn copy_device(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        how: CopyMethod,
    ) -> Result<u64, CopyError> {
        let source = SourceReader::of_device(from, how.len_bytes, u64::MAX);
        self.room_for(SMALL_BYTES);
        let mut at = how.start_bytes;
        while at < how.len_bytes {
            let got = source
                .read_at(at, &mut self.buffer[..SMALL_BYTES])
                .map_err(CopyError::Read)?;
            self.note_read(got);
            let bytes = &self.buffer[..got];
            let written = if how.sparse {
                write_where_not_zero(to, bytes, at, how.fresh).map(|_| ())
            } else {
                sys::pwrite_all(to, bytes, at)
            };
            written.map_err(CopyError::Write)?;
            at += got as u64;
            self.count(got as u64)?;
        }
        if how.sparse {
            sys::truncate(to, at).map_err(CopyError::Write)?;
        }
        Ok(at - how.start_bytes)
    }

    /// Writes only data that is not zero, and reads only what is not a hole.
    fn copy_sparse(
        &mut self,
        source: &SourceReader<BorrowedFd<'_>>,
        to: BorrowedFd<'_>,
        how: CopyMethod,
    ) -> Result<u64, CopyError> {
        self.room_for(SMALL_BYTES);
        let len_bytes = source.len_bytes();
        let mut at = how.start_bytes;
        loop {
            if !source.has_false_len() {
                if at == len_bytes {
                    break;
                }
                match sys::next_data(source.file(), at) {
                    Ok(Some(data)) if data < len_bytes => {
                        if !how.fresh && data > at {
                            clear(to, at, data - at).map_err(CopyError::Write)?;
                        }
                        self.note_hole(data - at);
                        at = data;
                    }
                    // A hole up to the end, unless the file was cut off.
                    Ok(_) => {
                        source.check_len().map_err(CopyError::Read)?;
                        break;
                    }
                    // The file system does not report holes, so everything is read.
                    Err(_) => {}
                }
            }
            let data_start = at;
            loop {
                let got = source
                    .read_at(at, &mut self.buffer[..SMALL_BYTES])
                    .map_err(CopyError::Read)?;
                if got == 0 {
                    break;
                }
                self.note_read(got);
                let zeros = write_where_not_zero(to, &self.buffer[..got], at, how.fresh)
                    .map_err(CopyError::Write)?;
                at += got as u64;
                self.count(got as u64)?;
                if zeros {
                    break;
                }
            }
            if at == data_start {
                break;
            }
        }
        let end = if source.has_false_len() {
            at
        } else {
            len_bytes
        };
        if !how.fresh && end > at {
            clear(to, at, end - at).map_err(CopyError::Write)?;
        }
        self.note_hole(end.saturating_sub(at));
        sys::truncate(to, end).map_err(CopyError::Write)?;
        Ok(end - how.start_bytes)
    }

    /// Copies from the start over a readable file, and writes only the blocks that differ. The others remain, possibly
    /// shared with a snapshot; with `how.sparse`, zeros in them become holes.
    pub fn copy_changed(
        &mut self,
        from: BorrowedFd<'_>,
        over: BorrowedFd<'_>,
        how: CopyMethod,
    ) -> Result<Changed, CopyError> {
        let source = if how.from_device {
            SourceReader::of_device(from, how.len_bytes, u64::MAX)
        } else {
            opened(from)?
        };
        self.room_for(2 * SMALL_BYTES);
        let mut changed = Changed::default();
        let mut holes = SparseWriter::new(over, false);
        let mut at = 0;
        loop {
            let (wanted, existing) = self.buffer.split_at_mut(SMALL_BYTES);
            let got = source
                .fill_at(at, &mut wanted[..SMALL_BYTES])
                .map_err(CopyError::Read)?;
            if got == 0 {
                break;
            }
            let known = read_until(over, &mut existing[..got], at).map_err(CopyError::Write)?;
            let block_end = |start: usize| got.min(start + BLOCK_BYTES);
            let is_equal = |start: usize| {
                let end = block_end(start);
                end <= known && wanted[start..end] == existing[start..end]
            };
            let mut start = 0;
            while start < got {
                let stays = is_equal(start);
                let mut end = block_end(start);
                while end < got && is_equal(end) == stays {
                    end = block_end(end);
                }
                let bytes = &wanted[start..end];
                let place = at + start as u64;
                if how.sparse {
                    let written = holes.put(bytes, place, stays);
                    written.map_err(CopyError::Write)?;
                } else if !stays {
                    sys::pwrite_all(over, bytes, place).map_err(CopyError::Write)?;
                }
                if stays {
                    changed.same_bytes += bytes.len() as u64;
                } else {
                    changed.written_bytes += bytes.len() as u64;
                    self.written_bytes += bytes.len() as u64;
                }
                start = end;
            }
            self.note_read(got);
            at += got as u64;
            if !(self.step)(got as u64) {
                return Err(CopyError::Stopped);
            }
        }
        holes.finish().map_err(CopyError::Write)?;
        // Zeros at the end were not written, so the file may be too short.
        if how.sparse && sys::fstat(over).map_err(CopyError::Write)?.len_bytes < at {
            sys::truncate(over, at).map_err(CopyError::Write)?;
        }
        Ok(changed)
    }

    /// Adds the first bytes of the buffer to the digest.
    fn note_read(&mut self, len_bytes: usize) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&self.buffer[..len_bytes]);
        }
    }

    /// Adds a hole to the digest.
    fn note_hole(&mut self, len_bytes: u64) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update_zeros(len_bytes);
        }
    }

    /// Counts bytes that were written.
    fn count(&mut self, bytes: u64) -> Result<(), CopyError> {
        self.written_bytes += bytes;
        if (self.step)(bytes) {
            Ok(())
        } else {
            Err(CopyError::Stopped)
        }
    }

    fn room_for(&mut self, len: usize) {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
    }
}

/// Returns a reader of a source.
fn opened(from: BorrowedFd<'_>) -> Result<SourceReader<BorrowedFd<'_>>, CopyError> {
    let stat = sys::fstat(from).map_err(CopyError::Read)?;
    if Kind::of_mode(stat.mode) != Some(Kind::File) {
        return Err(CopyError::NotRegular);
    }
    Ok(SourceReader::of_file(from, stat.len_bytes, u64::MAX))
}

/// Returns a reader for the rest of a short file, of which the first read has not returned the listed length. Some file
/// systems return less than they have, or report a false length. Otherwise the file has changed since it was listed.
fn reader_of_rest(
    from: BorrowedFd<'_>,
    listed_bytes: u64,
    got_bytes: u64,
) -> Result<SourceReader<BorrowedFd<'_>>, CopyError> {
    let source = opened(from)?;
    if got_bytes > source.len_bytes() {
        if source.len_bytes() != listed_bytes {
            return Err(CopyError::Read(errno::no_data()));
        }
        source.distrust_len();
    }
    Ok(source)
}

/// Writes the units that are not all zero. Returns whether everything was zero. If `fresh` is false, punches holes for
/// zeros in the old file.
pub fn write_where_not_zero(
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
fn clear(to: BorrowedFd<'_>, at: u64, len_bytes: u64) -> io::Result<()> {
    match sys::punch(to, at, len_bytes) {
        Err(error) if errno::is_call_refused(&error) => write_zeros(to, at, len_bytes),
        other => other,
    }
}

fn write_zeros(to: BorrowedFd<'_>, at: u64, len_bytes: u64) -> io::Result<()> {
    let zeros = vec![0; len_bytes.min(SMALL_BYTES as u64) as usize];
    let end = at + len_bytes;
    (at..end)
        .step_by(SMALL_BYTES)
        .try_for_each(|at| sys::pwrite_all(to, &zeros[..zeros.len().min((end - at) as usize)], at))
}

fn cannot_copy_range(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EXDEV
                | libc::EINVAL
                | libc::ENOSYS
                | libc::EOPNOTSUPP
                | libc::EPERM
                | libc::EBADF
                | libc::ETXTBSY
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::AsFd;

    fn copied(content: &[u8], how: impl Fn(u64) -> CopyMethod) -> (Vec<u8>, u64) {
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(content).unwrap();
        from.seek(SeekFrom::Start(0)).unwrap();
        let mut to = tempfile::tempfile().unwrap();
        let unsupported_calls = UnsupportedCalls::default();
        let mut step = |_| true;
        let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
        let n = copier
            .copy(from.as_fd(), to.as_fd(), how(content.len() as u64))
            .unwrap();
        let mut got = Vec::new();
        to.seek(SeekFrom::Start(0)).unwrap();
        to.read_to_end(&mut got).unwrap();
        (got, n)
    }

    fn plain(len_bytes: u64) -> CopyMethod {
        CopyMethod {
            len_bytes,
            sparse: false,
            by_hand: false,
            start_bytes: 0,
            from_device: false,
            fresh: true,
        }
    }

    #[test]
    fn every_copy_method_copies_the_whole_file() {
        for len in [
            0,
            1,
            4096,
            SMALL_BYTES,
            SMALL_BYTES + 1,
            3 * SMALL_BYTES + 17,
        ] {
            let content: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            for how in [
                &plain as &dyn Fn(u64) -> CopyMethod,
                &|n| CopyMethod {
                    by_hand: true,
                    ..plain(n)
                },
                &|n| CopyMethod {
                    sparse: true,
                    ..plain(n)
                },
            ] {
                let (got, n) = copied(&content, how);
                assert!(got == content && n == len as u64, "{len}");
            }
        }
    }

    #[test]
    fn file_resized_after_listing_is_copied_in_full() {
        let content = vec![7u8; 300_000];
        for listed in [0, 10, 299_999, 300_001, 1 << 30] {
            let (got, n) = copied(&content, |_| plain(listed));
            assert!(got == content && n == 300_000, "{listed}");
        }
    }

    #[test]
    fn device_is_copied_up_to_its_length() {
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(sys::content_len(zeros.as_fd()).unwrap(), 0);
        let unsupported_calls = UnsupportedCalls::default();
        for (len_bytes, sparse) in [(0, false), (300_000, false), (300_000, true)] {
            let to = tempfile::tempfile().unwrap();
            let mut step = |_| true;
            let how = CopyMethod {
                from_device: true,
                sparse,
                ..plain(len_bytes)
            };
            let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
            assert_eq!(
                copier.copy(zeros.as_fd(), to.as_fd(), how).unwrap(),
                len_bytes
            );
            assert_eq!(to.metadata().unwrap().len(), len_bytes);
        }
        // A device that ends too early is not accepted as complete.
        let (null, to) = (
            std::fs::File::open("/dev/null").unwrap(),
            tempfile::tempfile().unwrap(),
        );
        let mut step = |_| true;
        let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
        let copied = copier.copy(
            null.as_fd(),
            to.as_fd(),
            CopyMethod {
                from_device: true,
                ..plain(1)
            },
        );
        assert!(matches!(copied, Err(CopyError::Read(_))));
    }

    #[test]
    fn zeros_become_holes() {
        let mut content = vec![0u8; 2_000_000];
        content[1_000_000] = 1;
        let (got, _) = copied(&content, |n| CopyMethod {
            sparse: true,
            ..plain(n)
        });
        assert_eq!(got, content);
    }

    #[test]
    fn zeros_written_over_data_become_holes() {
        use std::os::unix::fs::MetadataExt;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 3 * SMALL_BYTES]).unwrap();
        let before = file.metadata().unwrap().blocks();
        let mut piece = vec![0; SMALL_BYTES];
        (piece[0], piece[SMALL_BYTES - 1]) = (1, 2);
        assert!(!write_where_not_zero(file.as_fd(), &piece, SMALL_BYTES as u64, false).unwrap());
        let mut got = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut got).unwrap();
        let sevens = vec![7; SMALL_BYTES];
        assert_eq!(got, [&sevens[..], &piece, &sevens].concat());
        // All blocks of the piece except the first and the last are freed, if the file system supports holes.
        let freed_bytes = (before - file.metadata().unwrap().blocks()) * 512;
        assert!(
            [0, SMALL_BYTES as u64 - 2 * BLOCK_BYTES as u64].contains(&freed_bytes),
            "{freed_bytes}"
        );
    }

    #[test]
    fn write_zeros_overwrites_exactly_its_range() {
        let mut file = tempfile::tempfile().unwrap();
        let content = vec![7; 2 * SMALL_BYTES + 1000];
        file.write_all(&content).unwrap();
        write_zeros(file.as_fd(), 5, SMALL_BYTES as u64 + 90).unwrap();
        let mut got = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut got).unwrap();
        let zeros = vec![0; SMALL_BYTES + 90];
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

    #[test]
    fn copy_changed_writes_only_differing_blocks() {
        let mut content: Vec<u8> = (0..3 * SMALL_BYTES as u32 + 4000)
            .flat_map(u32::to_le_bytes)
            .collect();
        let zeros = content.len() - 20_000;
        content[zeros..].fill(0);
        let mut other = content.clone();
        other[10] ^= 1;
        other[5 * BLOCK_BYTES..7 * BLOCK_BYTES].fill(0);
        let mut longer = content.clone();
        longer.extend([1; 9000]);
        let shorter = &content[..content.len() - 5000];
        // The last block of the shorter file is incomplete, and the rest is missing.
        let len = content.len() as u64;
        let missing = len - (len - 5000) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        for (old, written_bytes) in [
            (&content[..], 0),
            (&other, 3 * BLOCK_BYTES as u64),
            (&longer, 0),
            (shorter, missing),
            (b"".as_slice(), len),
        ] {
            for sparse in [false, true] {
                let [mut from, mut to] = [(); 2].map(|()| tempfile::tempfile().unwrap());
                from.write_all(&content).unwrap();
                to.write_all(old).unwrap();
                let unsupported_calls = UnsupportedCalls::default();
                let mut step = |_| true;
                let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
                let changed = copier
                    .copy_changed(
                        from.as_fd(),
                        to.as_fd(),
                        CopyMethod {
                            sparse,
                            fresh: false,
                            ..plain(len)
                        },
                    )
                    .unwrap();
                assert_eq!(
                    changed,
                    Changed {
                        written_bytes,
                        same_bytes: len - written_bytes
                    }
                );
                let mut got = Vec::new();
                to.seek(SeekFrom::Start(0)).unwrap();
                to.read_to_end(&mut got).unwrap();
                assert!(got.starts_with(&content));
            }
        }
    }
}
