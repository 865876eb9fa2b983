//! Tests over recorded conversations, tests/captures: every byte is decoded, and encoded again.

mod captures;
mod conversation;
mod hostile;
mod laws;
mod own_messages;
