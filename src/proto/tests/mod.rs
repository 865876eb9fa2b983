//! Tests of the codec: laws on random messages, golden bytes, and rejected input.

mod any;
mod golden;
mod greetings;
mod laws;
mod own_messages;
mod refusals;
mod specification;

#[allow(
    clippy::disallowed_types,
    reason = "the tests of the program share this file and use no parking_lot"
)]
#[path = "../../../tests/kit/golden.rs"]
mod golden_file;

pub use golden_file::compare;
pub use own_messages::{record, section};

use super::{Dialect, Encoder, Message, Native};
use crate::error::Result;

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    Native::new(1)
        .encode(message, &mut out)
        .expect("a valid message can be encoded");
    out
}

/// Decodes exactly one message.
fn decoded(mut bytes: &[u8]) -> Result<Message> {
    let message = Native::new(1)
        .decode(&mut bytes)?
        .expect("the frame is complete");
    assert!(bytes.is_empty(), "{} bytes are left", bytes.len());
    Ok(message)
}

/// The text by which messages are compared: it shows every field.
fn text(message: &Message) -> String {
    format!("{message:?}")
}

fn same(one: &Message, other: &Message) -> bool {
    text(one) == text(other)
}
