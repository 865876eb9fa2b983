//! The protocol between two sparsync peers: messages, encoding, limits, flow-control classes.

mod bytes;
pub mod dialect;
mod encoding;
mod enum_values;
pub mod fragment;
pub mod greeting;
pub mod limits;
mod list;
pub mod message;
mod message_kinds;
pub mod native;
#[allow(dead_code, reason = "the server's end, daemons, batch files and older protocols are not used yet")]
pub mod rsync;

pub use crate::flist::{DirId, FileId};
pub use dialect::{Dialect, Encoder, ProtocolSupport};
pub use fragment::{Joiner, cut};
#[allow(unused_imports, reason = "for code that reads first bytes without `sniff`")]
pub use greeting::{MAGIC, VERSIONS};
pub use greeting::{Sniffed, agree, decode_greeting, encode_greeting, sniff};
pub use list::unfit;
pub use message_kinds::{class_of, name_of};
#[cfg(test)]
pub use native::Native;

pub use message::{
    Basis, Class, ContentDigest, DestDirState, DirListing, Greeting, IdName, Lane, Meeting, Message, Roots, Setup,
    SubdirFlags,
};

#[cfg(test)]
mod tests;
