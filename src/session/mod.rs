//! A session between two machines, in any protocol: the two roles, their ports to the other end, and the connection.
//!
//! A protocol implements the ports: ours in `native`, and rsync's in `rsync`. Nothing here names either.

pub mod minimum_rate;

pub mod connection;

pub mod refusal;

pub mod source_prefetch;

pub mod response_validation;

pub mod client;

pub mod compression;

pub mod checksums;

pub mod sender;

pub mod receiver;

pub mod stall_notice;

pub mod event_relay;

pub mod module_log;

pub mod io_threads;

pub mod run_role;

#[cfg(test)]
pub mod in_time;
