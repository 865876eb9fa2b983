//! What a receiver sends to an rsync that has the source, as values.

use crate::flist::FileId;
use crate::flist::abbreviated::RequestedValues;
use crate::plan::{BasisName, Changes};
use crate::proto::{Basis, DirId};
use crate::report::Tally;
use crate::report::event::Item;

/// What a receiver sends to an rsync that has the source.
#[derive(Debug)]
pub enum RsyncMessage {
    /// What comes before all else: the filter rules, and the names of `--files-from`. The encoder has it.
    Opening,
    /// Requests the content of a file.
    Want(FileRequest),
    /// The item of an entry of which no content is requested.
    Item {
        /// The entry.
        file: FileId,
        /// The values of its attributes that are requested.
        values: RequestedValues,
        /// How the peer prints it.
        item: Box<Item>,
    },
    /// Requests values of extended attributes.
    WantValues {
        /// The entry.
        file: FileId,
        /// The values.
        values: RequestedValues,
    },
    /// Ends the first requests, although work is not done; or, for the second time, those of retries.
    EndRequests,
    /// Nothing more of a listing is needed.
    Done(DirId),
    /// A file has its name (`--remove-source-files`).
    Placed(FileId),
    /// Everything is in place. The counts of the receiver.
    AllReceived(Box<Tally>),
    /// The goodbye.
    Goodbye,
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
    /// What differs, for the log of a peer that gets no other items.
    pub changes: Changes,
    /// The values of its attributes that are requested.
    pub values: RequestedValues,
    /// How the peer prints it; `None` if it gets no other items.
    pub item: Option<Box<Item>>,
}
