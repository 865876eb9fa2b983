//! A dialect: how messages are spelled. Roles and transports know this trait alone, never a spelling.

use super::message::{Greeting, Message};
use crate::error::Result;
use std::ops::RangeInclusive;

/// Turns messages into bytes and back. No I/O: the caller reads, writes and keeps what is left over.
///
/// One value serves one direction of one connection: a dialect may remember what was said before.
pub trait Dialect {
    /// Appends the frame of a message to `out`.
    ///
    /// Errs with [`crate::exit::Exit::Protocol`] if the message breaks a limit; `out` is then as it was.
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> Result<()>;

    /// Takes one frame off the front of `input`; `None` and an untouched `input` while it is not complete.
    ///
    /// Errs with [`crate::exit::Exit::Protocol`] and a sentence that names the message and what is wrong with it.
    /// After that nothing in `input` has a meaning any more.
    fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Message>>;

    /// The length of the whole frame at the front of `input`, so that a reader knows how many bytes it needs; `None` while
    /// there are too few to tell.
    ///
    /// Errs if the frame is longer than its kind may be: never more than [`super::limits::FRAME_MAX_BYTES`], or
    /// [`super::limits::OPENING_MAX_BYTES`] for the two opening messages.
    fn frame_len(&self, input: &[u8]) -> Result<Option<usize>>;
}

/// What a program speaks: its versions of the conversation, and how each is spelled.
#[derive(Debug, Clone)]
pub struct Speech {
    /// The versions, each of which `dialect` can spell.
    pub versions: RangeInclusive<u16>,
    /// What it can do beyond them; see [`Greeting::features`].
    pub features: u64,
    /// The dialect of one direction in the agreed version.
    pub dialect: fn(version: u16) -> Box<dyn Dialect + Send>,
}

impl Speech {
    /// What is said first, with a key that nobody could guess.
    pub fn greeting(&self, key: [u8; 16]) -> Greeting {
        let (oldest, newest) = (*self.versions.start(), *self.versions.end());
        Greeting { oldest, newest, features: self.features, ..Greeting::ours(key) }
    }
}
