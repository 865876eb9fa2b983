//! The conversation of two peers: what is said, how it is spelled, how much of it may be under way.
#![allow(dead_code, unused_imports, reason = "the remote roles that speak it come next")]

pub mod limits;
pub mod message;

pub use message::{
    Basis, Class, ContentDigest, DirId, FileId, Greeting, IdName, Lane, Message, Roots, Seen, Setup, Told, ToldSub,
};
