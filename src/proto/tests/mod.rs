//! What the codec must hold: laws on random messages, golden bytes, and what it refuses.

mod any;
mod golden;
mod greetings;
mod laws;
mod refusals;
mod specification;

use super::{Dialect, Message, Native};
use crate::error::Result;

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    Native::new(1).encode(message, &mut out).expect("a valid message can be said");
    out
}

/// The one message that the bytes are.
fn decoded(mut bytes: &[u8]) -> Result<Message> {
    let message = Native::new(1).decode(&mut bytes)?.expect("the frame is whole");
    assert!(bytes.is_empty(), "{} bytes are left", bytes.len());
    Ok(message)
}

/// All that is in a message, to compare it by.
fn text(message: &Message) -> String {
    format!("{message:?}")
}

fn same(one: &Message, other: &Message) -> bool {
    text(one) == text(other)
}
