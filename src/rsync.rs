//! A session with a stock rsync: its wire protocol instead of ours, with the same sender and receiver.
//!
//! The sender and the receiver of this crate know their peer by two traits: [`DestPeer`](crate::session::sender::DestPeer) and
//! [`SourcePeer`](crate::session::receiver::SourcePeer). Here the peer is a stock rsync ([`dest`], [`source`]), to which they
//! speak its own protocol. So all decisions, and all reading and writing of trees, are those of every other run. The
//! protocol has no counterpart for directory digests and for content that is sent without a request, so these are not used.

mod attributes;
mod basis;
pub mod batch;
mod before_session;
mod block_sums;
mod client;
mod controls;
pub mod daemon;
pub mod dest;
pub mod error;
mod framing;
mod link_io;
mod negotiation;
mod older;
mod rules_for_server;
mod served_items;
pub mod server;
mod session_terms;
pub mod source;
mod support;

pub use self::client::RsyncClient;
pub use self::framing::text_of;
pub use self::negotiation::newest_version;
pub use self::support::needs_whole_list;

use crate::fs::charset;
use crate::options::Options;

/// Returns the line that names the character set of this end, if the options request it. `role`: the one of this end.
pub fn charset_line(options: &Options, role: &str) -> Option<Vec<u8>> {
    if options.output.debug.iconv == 0 {
        return None;
    }
    Some(charset::of_names()?.line(role))
}
