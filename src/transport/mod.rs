//! The transports. Each provides a [`Link`], a byte stream in each direction, and knows nothing about its content.

pub mod compression;
pub mod daemon_socket;
pub mod link;
pub mod net;
pub mod pipe;
pub mod shell;
pub mod stdio;
pub mod window_limit;

pub use link::{Link, LinkBytes};
