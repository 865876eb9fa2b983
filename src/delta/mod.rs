//! From a basis to a file, over bytes only: what the receiver says of its basis, and what the sender finds in it.
//!
//! 1. The receiver cuts its basis into blocks of one length and tells a short tag of each: a [`Signature`].
//! 2. The sender goes through the source and tells it as ranges of the basis and literal bytes: [`Op`]s.
//! 3. The receiver puts the ops one behind the other. A tag is too short to be proof, so the digest of the whole
//!    content, which the search hands over at its end, has the last word: if it differs, the file is sent whole.
//!
//! Nothing here reads a file or knows one; whoever calls hands in a way to read.

mod block;
mod emit;
mod index;
mod rolling;
mod scan;
mod search;
mod signature;

#[cfg(test)]
mod laws;

pub use block::block_len;
pub use search::{search, search_at};
pub use signature::Signature;

/// What the next bytes of the source are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// These; at least one, at most [`DATA_MAX_BYTES`].
    Data(&'a [u8]),
    /// A range of the basis. It is not empty, lies within what the signature covers, and does not begin where the range
    /// before it ended, unless that one was long: 4 MiB or more.
    Copy {
        /// Where it begins in the basis.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: u64,
    },
}

/// The longest literal piece of an [`Op`].
pub const DATA_MAX_BYTES: usize = 128 * 1024;
