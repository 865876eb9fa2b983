//! What the two directions share with an rsync that has the destination: the lists that were sent, and the items that are to be returned.

use crate::flist::{DirList, Entry, Xattrs};
use crate::path::{self, RelPath};
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::item::{ItemFlags, ItemHead, SumHead};
use crate::proto::rsync::stats::DeletionCounts;
use crate::proto::{DirId, FileId};
use crate::report::event::Item;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What the two directions share.
///
/// What holds: the thread that reads appends each item to `items` before it queues the sender's order for it, and the sender
/// answers in the order of its orders. So the item of an answer is always the first one. A list is in `lists` before any of
/// its bytes are sent, so each index that the receiver may name is known; a listing stays in `listings` until the receiver
/// has ended its list.
#[derive(Default)]
pub(super) struct DestShared {
    /// The listings that were sent and are still needed, by number.
    pub(super) listings: HashMap<DirId, SentListing>,
    /// The lists that were sent, in order.
    pub(super) lists: Vec<SentList>,
    /// Of a whole list: its entries in sorted order. `None`: the root, or an argument that does not exist.
    pub(super) sorted: Vec<Option<FileId>>,
    pub(super) has_all_lists: bool,
    /// The root of the transfer, if it is an entry.
    pub(super) root: Option<OwnEntry>,
    /// The items that are to be returned, in order.
    pub(super) items: VecDeque<PendingItem>,
    /// The files that could not be read to their end, by index. The receiver requests them again.
    pub(super) unread: HashSet<i32>,
    /// The files that the receiver counts as new, and that could not be opened.
    pub(super) absent_files: u64,
    /// What the receiver has deleted.
    pub(super) deletions: Option<DeletionCounts>,
}

/// A listing that was sent.
pub(super) struct SentListing {
    pub(super) path: RelPath,
    pub(super) list: Arc<DirList>,
    /// See [`shown`](crate::proto::DirListing::shown).
    pub(super) shown: Vec<Vec<u8>>,
}

impl SentListing {
    /// Returns the path of an entry as the sender shows it (`%f`).
    pub(super) fn shown(&self, entry: &Entry) -> Vec<u8> {
        let base = self
            .shown
            .get(entry.origin as usize)
            .map_or(self.path.as_bytes(), Vec::as_slice);
        path::join(base, self.list.name(entry))
    }
}

/// A directory whose list was sent.
#[derive(Clone)]
pub(super) struct OwnEntry {
    pub(super) path: RelPath,
    pub(super) entry: Entry,
    pub(super) shown: Vec<u8>,
}

/// A list that was sent: the content of a directory, or the whole tree.
pub(super) struct SentList {
    /// The index of its first entry.
    pub(super) first: i32,
    /// How many entries it has.
    pub(super) count: i32,
    /// The listing; `None` if the list is empty or holds the whole tree.
    pub(super) dir: Option<DirId>,
    /// The root precedes the entries of the listing.
    pub(super) has_root: bool,
    /// The places of arguments that do not exist, sorted. No item is about them.
    pub(super) gaps: Vec<i32>,
    /// The directory itself, with its path. Its own index is the one before the list.
    pub(super) own: Option<Box<OwnEntry>>,
}

/// All extended attributes of an entry, and the numbers of those that are requested.
pub(super) type RequestedXattrs = (Option<Arc<Xattrs>>, Vec<u32>);

/// An item that is to be returned. A client can request thousands at once.
pub(super) struct PendingItem {
    /// The file whose content it requests, with the head of its sums.
    pub(super) content: Option<(FileId, SumHead)>,
    pub(super) index: i32,
    pub(super) flags: ItemFlags,
    /// Parts that most items lack, such as the name of a basis: apart, so that an item stays small.
    pub(super) more: Option<Box<ItemParts>>,
    /// Reported when the item is returned.
    pub(super) event: Option<Box<Item>>,
}

/// The head of an item that is more than its flags, and the extended attributes that it requests.
pub(super) struct ItemParts {
    pub(super) head: ItemHead,
    /// `None` if the item has no such part.
    pub(super) xattrs: Option<RequestedXattrs>,
}

impl DestShared {
    /// Returns the entry with an index. `None`: the root, or a directory by the index before its own list.
    pub(super) fn file(&self, index: i32) -> decode_error::Result<Option<FileId>> {
        let unknown = || violation(format!("unknown index {index}"));
        if !self.sorted.is_empty() {
            let place = usize::try_from(index).map_err(|_| unknown())?;
            return self.sorted.get(place).copied().ok_or_else(unknown);
        }
        let at = self.lists.partition_point(|list| list.first <= index);
        let Some(list) = at.checked_sub(1).map(|at| &self.lists[at]) else {
            return Ok(None);
        };
        let place = index - list.first;
        if place >= list.count {
            return if self
                .lists
                .get(at)
                .is_some_and(|next| next.first == index + 1)
            {
                Ok(None)
            } else {
                Err(unknown())
            };
        }
        if list.gaps.binary_search(&place).is_ok() {
            return Ok(None);
        }
        let place =
            place - i32::from(list.has_root) - list.gaps.partition_point(|gap| *gap < place) as i32;
        match (list.dir, u32::try_from(place)) {
            (Some(dir), Ok(entry)) => Ok(Some(FileId { dir, entry })),
            _ => Ok(None),
        }
    }

    /// Returns how many entries the lists have.
    pub(super) fn entries(&self) -> u64 {
        let end = self.lists.last().map_or(0, |last| last.first + last.count);
        self.place(end, self.lists.len().saturating_sub(1))
    }

    /// Returns how many entries are before the one with an index, with it. One index is left out before each list.
    pub(super) fn position(&self, index: i32) -> u64 {
        self.place(
            index,
            self.lists
                .partition_point(|list| list.first <= index)
                .saturating_sub(1),
        ) + 1
    }

    /// Returns how many entries are before an index that has this many lists before its own.
    pub(super) fn place(&self, index: i32, lists_before: usize) -> u64 {
        let first = self.lists.first().map_or(0, |list| list.first);
        u64::try_from(index - first)
            .map_or(0, |indices| indices.saturating_sub(lists_before as u64))
    }

    /// Returns the directory whose own index this is: the one before its list.
    pub(super) fn dir_before(&self, index: i32) -> Option<&OwnEntry> {
        let at = self.lists.partition_point(|list| list.first <= index);
        self.lists
            .get(at)
            .filter(|list| list.first == index + 1)
            .and_then(|list| list.own.as_deref())
    }
}

/// The state of both directions.
#[derive(Default)]
pub(super) struct DestConnectionState {
    pub(super) shared: Mutex<DestShared>,
    /// How much content was sent.
    pub(super) literal_bytes: AtomicU64,
    pub(super) matched_bytes: AtomicU64,
}
