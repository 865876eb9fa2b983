//! The remote side of a copy: what a remote shell, a server or a daemon starts for a client.

mod ephemeral_server;
mod forced_command;
pub mod rsync_client;
pub mod sparsync_client;
