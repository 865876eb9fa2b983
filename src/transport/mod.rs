//! The ways to a peer: each gives a [`Link`], bytes there and bytes back. What the bytes mean is not known here.
#![allow(dead_code, reason = "the roles that speak over a link come next")]

pub mod link;
pub mod pipe;
pub mod shell;
pub mod stdio;

pub use link::Link;
