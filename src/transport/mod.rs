//! The transports. Each provides a [`Link`], a byte stream in each direction, and knows nothing about its content.

pub mod compression;
pub mod link;
#[allow(dead_code, reason = "the routes that use it come next")]
pub mod net;
#[allow(dead_code, reason = "the tests of conversations use it")]
pub mod pipe;
pub mod shell;
pub mod stdio;
pub mod window_limit;

pub use link::Link;
