//! The traits [`Encoder`] and [`Dialect`], which encode and decode messages. Roles and transports use only these, never
//! a concrete encoding.

use super::message::{Greeting, Message};
use crate::error::Result;
use std::ops::RangeInclusive;

/// Encodes messages.
///
/// Does no I/O. A value serves one direction of one connection, because an encoder may keep state between messages.
pub trait Encoder {
    /// Appends the frame of a message to `out`.
    ///
    /// Fails with [`crate::exit::Exit::Protocol`] if the message exceeds a limit; `out` is then unchanged.
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> Result<()>;
}

/// Encodes and decodes messages. The caller reads, and keeps incomplete input.
pub trait Dialect: Encoder {
    /// Decodes one frame and removes it from the front of `input`. Returns `None` and leaves `input` unchanged if the
    /// frame is incomplete.
    ///
    /// Fails with [`crate::exit::Exit::Protocol`] and an error that names the message and the fault. The rest of
    /// `input` is then unusable.
    fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Message>>;

    /// Returns the length of the whole frame at the front of `input`, so that a reader knows how many bytes it needs.
    /// `None` if there are too few bytes to decide.
    ///
    /// Fails if the frame is longer than its kind permits: at most [`super::limits::FRAME_MAX_BYTES`], or
    /// [`super::limits::OPENING_MAX_BYTES`] for the two opening messages.
    fn frame_len(&self, input: &[u8]) -> Result<Option<usize>>;
}

/// The protocol versions and features of this program, and their encoding.
#[derive(Debug, Clone)]
pub struct ProtocolSupport {
    /// The supported versions; `dialect` accepts each of them.
    pub versions: RangeInclusive<u16>,
    /// See [`Greeting::features`].
    pub features: u64,
    /// Creates the dialect of one direction for the agreed version.
    pub dialect: fn(version: u16) -> Box<dyn Dialect + Send>,
}

impl ProtocolSupport {
    /// Returns the greeting to send. The key must not be predictable.
    pub fn greeting(&self, key: [u8; 16]) -> Greeting {
        let oldest = *self.versions.start();
        let newest = *self.versions.end();
        Greeting {
            oldest,
            newest,
            features: self.features,
            ..Greeting::ours(key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_announces_what_is_supported() {
        let support = ProtocolSupport {
            versions: 3..=5,
            features: 6,
            dialect: |version| Box::new(crate::proto::Native::new(version)),
        };
        let greeting = support.greeting([7; 16]);
        assert_eq!((greeting.oldest, greeting.newest), (3, 5));
        assert_eq!((greeting.features, greeting.key), (6, [7; 16]));
    }
}
