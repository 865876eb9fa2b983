//! A session of two sparsyncs: our own protocol behind the ports of `session`.
//!
//! Only this folder knows that there are windows, digests of directories and content without a request. Its messages are those
//! of `proto`.

pub mod flow_control;

pub mod connection;

pub mod intake;

pub mod session_io;

pub mod block_sums;

pub mod facts;

pub mod shortcuts;

pub mod dir_digest;

pub mod dest_children;

pub mod digest_exchange;

pub mod dest_prescan;

pub mod early_scan;

pub mod compression_choice;

pub mod handshake;

pub mod received_plan;

pub mod sender_inbox;

pub mod reported_dirs;

pub mod dest;

pub mod receiver_inbox;

pub mod dest_digests;

pub mod source;

pub mod event_messages;

pub mod module_encoder;

pub mod client;

pub mod server;

#[cfg(test)]
mod tests;
