//! Messages that only sessions in rsync's protocol have. What both protocols have is a [`Message`](crate::proto::Message).

use crate::flist::FileId;
use crate::flist::abbreviated::RequestedValues;
use crate::plan::BasisName;
use crate::proto::{Basis, DirId};
use crate::report::Tally;
use crate::report::event::Item;

/// A message of a session in rsync's protocol. "R to S": a receiver sends it to an rsync that sends, "S to R": the reverse.
#[derive(Debug)]
pub enum RsyncMessage {
    /// What comes before all else: the filter rules, and the names of `--files-from`. The encoder has it.
    Opening,
    /// R to S: requests the content of a file.
    Want(FileRequest),
    /// R to S: the item of an entry of which no content is requested.
    Item {
        /// The entry.
        file: FileId,
        /// The values of its attributes that are requested.
        values: RequestedValues,
        /// How the peer prints it.
        item: Box<Item>,
    },
    /// R to S: requests values of extended attributes.
    WantValues {
        /// The entry.
        file: FileId,
        /// The values.
        values: RequestedValues,
    },
    /// R to S: ends the first requests, although work is not done; or, for the second time, those of retries.
    EndRequests,
    /// R to S: nothing more of a listing is needed.
    Done(DirId),
    /// R to S: a file has its name (`--remove-source-files`).
    Placed(FileId),
    /// R to S: everything is in place. The counts of the receiver.
    AllReceived(Box<Tally>),
    /// R to S: the goodbye.
    Goodbye,
    /// S to R: returns the next item that requests no content. Its index.
    Return(i32),
    /// S to R: ends a list or a phase that the receiver has ended.
    End,
    /// S to R: the next bytes of a file are a range of the basis.
    Copy {
        /// Where the range begins in the basis.
        offset_bytes: u64,
        /// Its length; not 0.
        len_bytes: u64,
        /// The bytes, if they are the history of the compression (zlib), else empty. They are never sent.
        content: Vec<u8>,
    },
}

/// Whether content is requested for the first time, or again because the first content was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attempt {
    First,
    Again,
}

/// A request for the content of a file, with all that its item has.
#[derive(Debug)]
pub struct FileRequest {
    pub file: FileId,
    /// Whether it is requested for the first time.
    pub attempt: Attempt,
    /// What the receiver has of it.
    pub basis: Basis,
    /// Which file the basis is; `None`: the one that the new one replaces.
    pub name: Option<BasisName>,
    /// The values of its attributes that are requested.
    pub values: RequestedValues,
    /// How the peer prints it; `None` if it gets no other items.
    pub item: Option<Box<Item>>,
}
