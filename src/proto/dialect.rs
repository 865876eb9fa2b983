//! A dialect: how messages are spelled. Roles and transports know this trait alone, never a spelling.

use super::message::Message;
use crate::error::Result;

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
}
