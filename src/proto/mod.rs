//! The protocol between two sparsync peers: messages, encoding, limits, flow-control classes.

mod bytes;
pub mod dialect;
pub mod greeting;
mod kinds;
pub mod limits;
mod list;
pub mod message;
pub mod native;
mod numbers;
mod parts;
pub mod pieces;

pub use dialect::{Dialect, Speech};
#[allow(unused_imports, reason = "for whoever looks at first bytes without `sniff`")]
pub use greeting::{MAGIC, VERSIONS};
pub use greeting::{Sniffed, agree, decode_greeting, encode_greeting, sniff};
pub use kinds::{class_of, name_of};
pub use list::unfit;
#[cfg(test)]
pub use native::Native;
pub use pieces::{Joiner, cut};

pub use message::{
    Basis, Class, ContentDigest, DirId, FileId, Greeting, IdName, Lane, Meeting, Message, Roots, Seen, Setup, Told,
    ToldSub,
};

#[cfg(test)]
mod tests;
