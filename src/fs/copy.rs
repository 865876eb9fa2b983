//! Copies file contents on one machine: shares blocks if possible, else copies in the kernel, else reads and writes.

mod sparse;
#[cfg(test)]
mod tests;

pub use self::sparse::SparseWriter;
use self::sparse::{clear, write_where_not_zero};
use super::compare::read_until;
use super::source_reader::SourceReader;
use super::{errno, sys};
use crate::digest::{CONTENT_LEN_BYTES, ContentHasher};
use crate::flist::Kind;
use rustix::fd::BorrowedFd;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Up to this length, one read and one write are cheaper than `copy_file_range`.
const SMALL_BYTES: usize = 128 * 1024;

/// How much is copied between checks for interruption and progress reports.
const STEP_BYTES: usize = 8 * 1024 * 1024;

/// Differences are written in whole blocks of this length, the smallest that file systems share.
const BLOCK_BYTES: usize = 4096;

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
