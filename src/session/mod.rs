//! A session between two machines: the client's end, and what both ends share.

pub mod flow_control;

pub mod minimum_rate;

pub mod connection;

pub mod refusal;

pub mod shortcuts;

pub mod source_prefetch;

pub mod dir_digest;

pub mod digest_exchange;

pub mod dest_prescan;

pub mod early_scan;

pub mod response_validation;

pub mod client;

pub mod compression;

pub mod compression_choice;

pub mod handshake;

pub mod checksums;

pub mod native_connection;

pub mod native_intake;

pub mod received_plan;

pub mod sender;

pub mod receiver;

pub mod stall_notice;

pub mod event_relay;

pub mod event_messages;

pub mod module_log;

pub mod io_threads;

pub mod native_io;

pub mod native_facts;

pub mod run_role;

pub mod native_client;

pub mod server;

#[cfg(test)]
pub mod tests;
