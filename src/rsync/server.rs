//! The server's end of a session that an rsync has started: the client pulls from this sender, or pushes to this receiver.

mod receiver;
pub mod sender;
