//! The ways to a peer: each gives a [`Link`], bytes there and bytes back. What the bytes mean is not known here.

pub mod ceiling;
pub mod link;
#[allow(dead_code, reason = "the routes that use it come next")]
pub mod net;
#[allow(dead_code, reason = "the tests of conversations use it")]
pub mod pipe;
pub mod shell;
pub mod squeeze;
pub mod stdio;

pub use link::Link;
