//! The sums of the blocks of a basis, by which the end that has the source finds the blocks in its file.
//!
//! Each protocol has its own sums and their encoding. Both ends of a session use the same implementation of [`BlockSums`].

use crate::delta::{Op, ReadAt};
use crate::digest::CONTENT_LEN_BYTES;
use crate::error::Result;
use std::io;

/// Makes and uses the sums of blocks.
pub trait BlockSums: Send + Sync {
    /// Returns the encoded sums of the blocks of a basis. Fails if it cannot be read, or is shorter than it was.
    fn of_basis(&self, basis: &SummedBasis<'_>) -> io::Result<Vec<u8>>;

    /// Searches a file for the blocks with these encoded sums, and passes its parts in order to `emit`. Returns the digest
    /// of the file, or the first error of reading or of `emit`. The outer error: the peer's bytes are not encoded sums.
    fn find(
        &self,
        encoded: &[u8],
        file: &SearchedFile<'_>,
        emit: &mut EmitPart<'_>,
    ) -> Result<io::Result<[u8; CONTENT_LEN_BYTES]>>;
}

/// Takes a part of a file. A range of the basis comes with its bytes if the peer's protocol needs these, else without.
pub type EmitPart<'a> = dyn FnMut(Op<'_>, &[u8]) -> io::Result<()> + 'a;

/// A basis whose blocks are summed.
pub struct SummedBasis<'a> {
    /// Its length.
    pub len_bytes: u64,
    /// `--block-size`, if it was given.
    pub block_len_bytes: Option<u32>,
    /// How many threads may read it.
    pub threads: usize,
    /// The file is requested again, because its content did not arrive as it is.
    pub is_retry: bool,
    /// Reads from it.
    pub read_at: &'a ReadAt<'a>,
}

/// A file that is searched for blocks.
pub struct SearchedFile<'a> {
    /// Its length when it was opened.
    pub len_bytes: u64,
    /// The receiver writes over the basis, so only blocks that are still there may be used.
    pub in_place: bool,
    /// How many threads may search.
    pub threads: usize,
    /// Reads from it.
    pub read_at: &'a ReadAt<'a>,
}
