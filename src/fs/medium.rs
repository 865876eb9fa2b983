//! Reads contents again from the medium, after they were written or sent (`--verify`).

use super::sys;
use crate::digest::{CONTENT_LEN_BYTES, ContentHasher};
use rustix::fd::BorrowedFd;
use std::io;
use std::ops::Range;

/// How much is read and hashed at a time.
const PIECE_BYTES: usize = 128 * 1024;

/// A range of a file that is read again.
pub struct Reread<'a> {
    /// The file, open for reading.
    pub file: BorrowedFd<'a>,
    /// The range of the content.
    pub range: Range<u64>,
    /// Computes its digest.
    pub hasher: ContentHasher,
    /// Returns whether the run is over, so that reading should end.
    pub is_over: &'a dyn Fn() -> bool,
}

impl Reread<'_> {
    /// Returns the digest of what was written. The data must have been synced: pages that are not stored yet cannot be
    /// dropped.
    pub fn of_written(self) -> io::Result<[u8; CONTENT_LEN_BYTES]> {
        self.digest(|_| {})
    }

    /// Returns the digest of a source.
    pub fn of_source(self) -> io::Result<[u8; CONTENT_LEN_BYTES]> {
        self.digest(|bytes| {
            #[cfg(debug_assertions)]
            super::hooks::spoil_reread(bytes);
            let _ = bytes;
        })
    }

    /// Reads the range after the kernel has dropped its cached pages. Fails if the file is shorter. `see` gets each piece
    /// first.
    fn digest(mut self, see: impl Fn(&mut [u8])) -> io::Result<[u8; CONTENT_LEN_BYTES]> {
        // A file system that keeps them has no medium, or reads as the kernel permits.
        let _ = sys::drop_pages(self.file);
        let len_bytes = self.range.end - self.range.start;
        let piece_bytes =
            usize::try_from(len_bytes).map_or(PIECE_BYTES, |len| len.min(PIECE_BYTES));
        let mut piece = vec![0; piece_bytes];
        let mut at = self.range.start;
        while at < self.range.end {
            if (self.is_over)() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let left_bytes = self.range.end - at;
            let want =
                usize::try_from(left_bytes).map_or(piece_bytes, |left| left.min(piece_bytes));
            let got = sys::pread(self.file, &mut piece[..want], at)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            see(&mut piece[..got]);
            self.hasher.update(&piece[..got]);
            at += got as u64;
        }
        Ok(self.hasher.finish())
    }
}
