//! The wire protocol of rsync(1), versions 27 to 32: values and their encoding.
//!
//! Nothing here opens, waits or decides; a driver owns the connection. Decoders read from a blocking [`std::io::Read`],
//! normally a [`mux::Demultiplexer`] over a buffered link. Encoders append to a `Vec<u8>`, which the driver wraps in
//! frames with [`mux::encode_data`]. State that lasts for a connection is in these types, one of each per direction:
//!
//! - [`number::NdxEncoder`] and [`number::NdxDecoder`] for indices;
//! - [`file_list::ListEncoder`] and [`file_list::ListDecoder`] for all lists of the connection;
//! - [`tokens::TokenEncoder`] and [`tokens::TokenDecoder`] for the data of all files.
//!
//! In the order of a connection:
//!
//! 1. [`daemon`] for a daemon: greeting, module, authentication, arguments.
//! 2. [`handshake`]: version, [`handshake::CompatFlags`], algorithm lists, an int for the seed. Then
//!    [`mux::Demultiplexer::set_frames`].
//! 3. [`filter_list::encode_rule`] and [`filter_list::decode`].
//! 4. Lists: [`file_list::ListDecoder::next`] until [`file_list::ListItem::End`]; [`sort::sorted`] gives the indices.
//!    Further lists follow [`number::Ndx::List`].
//! 5. Items: [`number::Ndx`], [`item::ItemHead`], values of extended attributes ([`attributes`]), [`item::SumHead`], and
//!    then [`item::BlockSum`]s in a request, tokens and a digest ([`FileDigest`](crate::digest::FileDigest)) in an answer.
//! 6. [`number::Ndx::Done`] for each list and each phase after the lists, and [`stats`].
//!
//! [`batch`] has the header of batch files, which contain the data of steps 4 to 6.

pub mod attributes;
pub mod batch;
pub mod block_sums;
pub mod daemon;
pub mod decode_error;
pub mod file_list;
pub mod filter_list;
pub mod handshake;
pub mod item;
pub mod limits;
pub mod message;
pub mod mux;
pub mod number;
pub mod search;
pub mod sort;
pub mod stats;
pub mod tokens;

#[cfg(test)]
mod tests;
