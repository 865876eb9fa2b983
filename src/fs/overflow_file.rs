//! Bytes that have no room in memory, in a file without a name.

use super::root::Dir;
use super::sys;
use super::unnamed_file::create_unnamed;
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::ops::Range;

/// Bytes in a file without a name, which disappears with its descriptor. Space is given back as soon as bytes are
/// released.
pub struct OverflowFile {
    file: OwnedFd,
    /// Where the next bytes go.
    end: u64,
    /// How many bytes were appended and not released.
    held_bytes: u64,
}

impl OverflowFile {
    /// Creates it in a directory. Where it needs a name for a moment, that is a temp name of `name`.
    pub fn create(dir: &Dir, name: &[u8]) -> io::Result<OverflowFile> {
        let (file, _) = create_unnamed(dir, name)?;
        Ok(OverflowFile {
            file,
            end: 0,
            held_bytes: 0,
        })
    }

    /// Appends bytes. Returns where they are. If that fails, nothing is held of them.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<Range<u64>> {
        sys::pwrite_all(self.file.as_fd(), bytes, self.end)?;
        let start = self.end;
        self.end += bytes.len() as u64;
        self.held_bytes += bytes.len() as u64;
        Ok(start..self.end)
    }

    /// Reads bytes that are held, from an offset on.
    pub fn read(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        sys::pread_exact(self.file.as_fd(), into, at)
    }

    /// Releases bytes that are held.
    pub fn release(&mut self, range: Range<u64>) {
        let len_bytes = range.end - range.start;
        self.held_bytes -= len_bytes;
        // If either fails, the file takes its space longer.
        if self.held_bytes > 0 {
            let _ = sys::punch(self.file.as_fd(), range.start, len_bytes);
        } else if sys::truncate(self.file.as_fd(), 0).is_ok() {
            self.end = 0;
        }
    }

    /// Returns how many bytes were appended and not released.
    #[cfg(test)]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
}
