//! Merges adjacent ranges, splits long literals, counts bytes, and computes the digest of the source.

use std::io;

use super::search::SearchResult;
use super::{DATA_MAX_BYTES, Op};
use crate::digest::{By, ContentHasher};

/// A range of the basis is emitted when it reaches this length, even if it continues. Otherwise a file with an
/// insertion at the front would leave the receiver idle until the end of the search.
pub const RANGE_BYTES: u64 = 4 << 20;

/// Passes the results of a search to a callback.
pub struct Emitter<'a> {
    emit: &'a mut dyn FnMut(Op<'_>) -> io::Result<()>,
    hasher: ContentHasher,
    /// A range of the basis that may continue: its offset and its length.
    pending: Option<(u64, u64)>,
    literal_bytes: u64,
    matched_bytes: u64,
}

impl<'a> Emitter<'a> {
    /// Creates an emitter that has emitted nothing yet.
    pub fn new(emit: &'a mut dyn FnMut(Op<'_>) -> io::Result<()>) -> Emitter<'a> {
        Emitter {
            emit,
            hasher: ContentHasher::new(By::Blake3),
            pending: None,
            literal_bytes: 0,
            matched_bytes: 0,
        }
    }

    /// Adds the next bytes of the source to the digest. Larger calls are faster.
    pub fn digest(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Emits the next bytes as literal data.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.copy_now()?;
        self.literal_bytes += bytes.len() as u64;
        bytes
            .chunks(DATA_MAX_BYTES)
            .try_for_each(|piece| (self.emit)(Op::Data(piece)))
    }

    /// Emits the next bytes as a range of the basis.
    pub fn copy(&mut self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.matched_bytes += len_bytes;
        let range = match self.pending.take() {
            Some((begin, len)) if begin + len == offset_bytes => (begin, len + len_bytes),
            before => {
                self.emit_range(before)?;
                (offset_bytes, len_bytes)
            }
        };
        if range.1 >= RANGE_BYTES {
            return self.emit_range(Some(range));
        }
        self.pending = Some(range);
        Ok(())
    }

    /// Returns how many bytes of the source have been passed to the emitter.
    pub fn emitted_bytes(&self) -> u64 {
        self.literal_bytes + self.matched_bytes
    }

    /// Emits the pending range and returns the totals.
    pub fn finish(mut self) -> io::Result<SearchResult> {
        self.copy_now()?;
        Ok(SearchResult {
            literal_bytes: self.literal_bytes,
            matched_bytes: self.matched_bytes,
            len_bytes: self.emitted_bytes(),
            digest: self.hasher.finish(),
        })
    }

    fn copy_now(&mut self) -> io::Result<()> {
        let pending = self.pending.take();
        self.emit_range(pending)
    }

    fn emit_range(&mut self, range: Option<(u64, u64)>) -> io::Result<()> {
        match range {
            Some((offset_bytes, len_bytes)) => (self.emit)(Op::Copy {
                offset_bytes,
                len_bytes,
            }),
            None => Ok(()),
        }
    }
}
