//! What the engine asks about the ends of a run: facts about the peer that has the source, and who prints the items.
//!
//! The engine never asks which protocol a peer speaks. It asks for a fact. Each has a single meaning, and nothing in it
//! prevents a second kind of peer from having it. [`SourceFacts`] says for each which peers have it today.

use crate::apply::block_sums::BlockSums;
use crate::digest::Comparison;
use std::sync::Arc;

/// Facts about the peer that has the source. A session settles them once, before it receives anything.
#[derive(Clone)]
pub struct SourceFacts {
    /// Which items the peer must get, and when.
    pub order: ItemOrder,
    /// The peer answers a request for a file that it cannot read. Otherwise nothing may wait for an answer before the
    /// first requests are ended, because only the answer to that end shows which files will not come. All peers answer
    /// but an rsync that pushes to us by a protocol before 29.
    pub answers_unreadable: bool,
    /// Abbreviated values of extended attributes are requested and sent with the items of their entries: an rsync that
    /// pushes to us. An rsync that sends to a client of ours is asked for them when a directory is planned, and a
    /// sparsync does not abbreviate.
    pub values_with_items: bool,
    /// Ranges can refer to any part of the basis as it was, also after that part was overwritten. So the backup of a file
    /// that is updated in place is its basis. All rsyncs; a sparsync knows how far the file has been written.
    pub rereads_basis: bool,
    /// Under `--append-verify`, the digest of the file covers the beginning that both ends have: all rsyncs. A sparsync
    /// gets a digest of the beginning with the request instead.
    pub digests_prefix: bool,
    /// Under `--backup`, the peer takes it for granted that each basis is the backup of its file, which nothing
    /// overwrites: rsyncs before protocol 29, to which no request can say otherwise.
    pub presumes_backup: bool,
    /// It lists further directories only after it was informed that earlier ones are finished: all rsyncs. A sparsync
    /// lists as far ahead as its window permits.
    pub lists_in_turn: bool,
    /// It answers a request for the digest of a single file ([`crate::apply::ContentPeer::ask_digest`]): a sparsync.
    pub digests: bool,
    /// It sends the names of user 0 and group 0 like all others, so those that do not come have no name: a sparsync, and an
    /// rsync with the capability letter `u`. For others, id 0 is the same user everywhere.
    pub names_zero: bool,
    /// The sums of the blocks of a basis.
    pub block_sums: Arc<dyn BlockSums>,
    /// The digest for comparing contents that both ends have.
    pub compared_by: Comparison,
}

/// Which items the peer that has the source must get, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemOrder {
    /// Only requests for content, in any order: a sparsync, and an rsync that is the server.
    Requests,
    /// The items of all entries in the order of the list, those of requested files just before their requests: an rsync
    /// that is the client, because it prints them, and an rsync that is the server if it returns them for a batch file or
    /// a log. So whatever needs no content is done before the next request. It lists its tree piecewise, and lists more
    /// only after earlier entries are done.
    List,
}

/// Who prints the items of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemPrinter {
    /// The events of this end are printed, here or by a client that gets them.
    Us {
        /// When a file that is transferred is reported.
        when: ReportTime,
    },
    /// The peer prints the items that it gets: an rsync that is the client and pushes to us.
    Peer,
    /// This end is a receiving client and prints, and the peer gets all items, too, and returns them: for a batch file, or
    /// for the log of a server.
    Both,
}

/// When a file that is transferred is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportTime {
    /// Once it is open for writing, as by rsync's receiver: the client receives.
    Open,
    /// Before its content is sent, as by rsync's sender, and in order only once it is done: a local copy, and a client
    /// that sends.
    Done,
}

impl ItemPrinter {
    /// The receiver is the client, and so prints as rsync's receiver does: it reports a file once it is open for writing,
    /// shows the mapped owners, and prints what only a client does.
    pub fn is_receiver(self) -> bool {
        match self {
            ItemPrinter::Us {
                when: ReportTime::Open,
            }
            | ItemPrinter::Both => true,
            ItemPrinter::Us {
                when: ReportTime::Done,
            }
            | ItemPrinter::Peer => false,
        }
    }

    /// The peer gets the items, so it has that of a file before the content comes.
    pub fn is_peer(self) -> bool {
        match self {
            ItemPrinter::Peer | ItemPrinter::Both => true,
            ItemPrinter::Us { .. } => false,
        }
    }
}
