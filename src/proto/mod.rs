//! The protocol between two sparsync peers: messages, encoding, limits, flow-control classes.

mod bytes;
pub mod dialect;
mod encoding;
mod enum_values;
mod explained_fact;
pub mod fragment;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod greeting;
pub mod limits;
mod list;
pub mod message;
mod message_kinds;
pub mod native;
pub mod rsync;

pub use crate::flist::{DirId, FileId};
pub use bytes::is_id_name;
pub use dialect::{Dialect, Encoder, ProtocolSupport};
pub use fragment::{Joiner, cut};
pub use greeting::{
    PLACE_BYTES, Sniffed, VERSIONS, agree, decode_greeting, encode_greeting, sniff,
};
pub use list::unfit;
pub use message_kinds::{class_of, name_of};
#[cfg(test)]
pub use native::Native;

pub use message::{
    Basis, Class, ContentDigest, DestDirState, DirListing, Greeting, IdName, Lane, Meeting,
    Message, PlanPiece, Roots, Setup, SubdirFlags,
};

#[cfg(test)]
mod tests;
