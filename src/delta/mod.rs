//! The delta algorithm over bytes: block signatures of a basis, and matching a source against them.
//!
//! 1. The receiver splits its basis into blocks of equal length and sends a short tag of each: a [`Signature`].
//! 2. The sender scans the source and encodes it as ranges of the basis and literal bytes: [`Op`]s.
//! 3. The receiver concatenates the ops. A tag is too short to prove a match, so the search also returns the digest of
//!    the whole content. If that differs, the file is sent whole.
//!
//! This module does not open or read files; the caller passes closures that read.

mod block;
mod index;
mod op_builder;
mod rolling;
mod scan;
mod search;
mod signature;

#[cfg(test)]
mod tests;

pub use block::block_len;
pub use search::{search, search_at};
pub use signature::{ReadAt, Signature};

/// The next bytes of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// Literal bytes: at least one, at most [`DATA_MAX_BYTES`].
    Data(&'a [u8]),
    /// A range of the basis. It is not empty and lies within the part that the signature covers. It does not begin
    /// where the previous range ended, unless that one was 4 MiB or longer.
    Copy {
        /// The offset in the basis.
        offset_bytes: u64,
        /// The length of the range.
        len_bytes: u64,
    },
}

/// The maximum length of the literal bytes in one [`Op`].
pub const DATA_MAX_BYTES: usize = 128 * 1024;
