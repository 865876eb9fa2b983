//! A stock rsync as the receiver: the listings of the sender become its file lists, and its items become requests.
//!
//! The list is sent whole, or piecewise: then each listing is one list, and each directory gets one, in the order of the
//! walk. The receiver returns an item for each entry that it changes; the sender returns them all, with the content of
//! those that request it.

mod dest;
mod encoder;
mod inbox;
mod intake;

pub use self::dest::RsyncDest;
pub(super) use self::encoder::{PushEncoder, PushRecorder, ServingSender};
pub use self::inbox::PushInbox;
pub(super) use self::intake::PushIntake;
use super::controls::{IO_ERROR_GENERAL, IO_ERROR_VANISHED};
use super::stock_terms::StockTerms;
use crate::error::Result;
use crate::flist::{DirList, Entry, Xattrs};
use crate::options::Options;
use crate::path::{self, RelPath};
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::item::{ItemFlags, ItemHead, SumHead};
use crate::proto::rsync::stats::DeletionCounts;
use crate::proto::{DirId, FileId};
use crate::report::Tally;
use crate::report::event::{Event, Item, Problem, Wants, Weight};
use crate::session::event_relay::EventQueue;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// What the two directions of a push share.
///
/// What holds: the thread that reads appends each item to `items` before it queues the sender's order for it, and the sender
/// answers in the order of its orders. So the item of an answer is always the first one. A list is in `lists` before any of
/// its bytes are sent, so each index that the receiver may name is known; a listing stays in `listings` until the receiver
/// has ended its list.
#[derive(Default)]
struct PushShared {
    /// The listings that were sent and are still needed, by number.
    listings: HashMap<DirId, SentListing>,
    /// The lists that were sent, in order.
    lists: Vec<SentList>,
    /// Of a whole list: its entries in sorted order. `None`: the root, or an argument that does not exist.
    sorted: Vec<Option<FileId>>,
    has_all_lists: bool,
    /// The root of the transfer, if it is an entry.
    root: Option<OwnEntry>,
    /// The items that are to be returned, in order.
    items: VecDeque<PendingItem>,
    /// The files that could not be read to their end, by index. The receiver requests them again.
    unread: HashSet<i32>,
    /// What the receiver has deleted.
    deletions: Option<DeletionCounts>,
}

/// A listing that was sent.
struct SentListing {
    path: RelPath,
    list: Arc<DirList>,
    /// See [`shown`](crate::proto::DirListing::shown).
    shown: Vec<Vec<u8>>,
}

impl SentListing {
    /// Returns the path of an entry as the sender shows it (`%f`).
    fn shown(&self, entry: &Entry) -> Vec<u8> {
        let base = self
            .shown
            .get(entry.origin as usize)
            .map_or(self.path.as_bytes(), Vec::as_slice);
        path::join(base, self.list.name(entry))
    }
}

/// A directory whose list was sent.
#[derive(Clone)]
struct OwnEntry {
    path: RelPath,
    entry: Entry,
    shown: Vec<u8>,
}

/// A list that was sent: the content of a directory, or the whole tree.
struct SentList {
    /// The index of its first entry.
    first: i32,
    /// How many entries it has.
    count: i32,
    /// The listing; `None` if the list is empty or holds the whole tree.
    dir: Option<DirId>,
    /// The root precedes the entries of the listing.
    has_root: bool,
    /// The places of arguments that do not exist, sorted. No item is about them.
    gaps: Vec<i32>,
    /// The directory itself, with its path. Its own index is the one before the list.
    own: Option<Box<OwnEntry>>,
}

/// All extended attributes of an entry, and the numbers of those that are requested.
type RequestedXattrs = (Option<Arc<Xattrs>>, Vec<u32>);

/// An item that is to be returned. A client can request thousands at once.
struct PendingItem {
    /// The file whose content it requests, with the head of its sums.
    content: Option<(FileId, SumHead)>,
    index: i32,
    flags: ItemFlags,
    /// Parts that most items lack, such as the name of a basis: apart, so that an item stays small.
    more: Option<Box<ItemParts>>,
    /// Reported when the item is returned.
    event: Option<Box<Item>>,
}

/// The head of an item that is more than its flags, and the extended attributes that it requests.
struct ItemParts {
    head: ItemHead,
    /// `None` if the item has no such part.
    xattrs: Option<RequestedXattrs>,
}

impl PushShared {
    /// Returns the entry with an index. `None`: the root, or a directory by the index before its own list.
    fn file(&self, index: i32) -> decode_error::Result<Option<FileId>> {
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
    fn entries(&self) -> u64 {
        let end = self.lists.last().map_or(0, |last| last.first + last.count);
        self.place(end, self.lists.len().saturating_sub(1))
    }

    /// Returns how many entries are before the one with an index, with it. One index is left out before each list.
    fn position(&self, index: i32) -> u64 {
        self.place(
            index,
            self.lists
                .partition_point(|list| list.first <= index)
                .saturating_sub(1),
        ) + 1
    }

    /// Returns how many entries are before an index that has this many lists before its own.
    fn place(&self, index: i32, lists_before: usize) -> u64 {
        let first = self.lists.first().map_or(0, |list| list.first);
        u64::try_from(index - first)
            .map_or(0, |indices| indices.saturating_sub(lists_before as u64))
    }

    /// Returns the directory whose own index this is: the one before its list.
    fn dir_before(&self, index: i32) -> Option<&OwnEntry> {
        let at = self.lists.partition_point(|list| list.first <= index);
        self.lists
            .get(at)
            .filter(|list| list.first == index + 1)
            .and_then(|list| list.own.as_deref())
    }
}

/// The state of both directions.
#[derive(Default)]
struct PushState {
    shared: Mutex<PushShared>,
    /// How much content was sent.
    literal_bytes: AtomicU64,
    matched_bytes: AtomicU64,
}

/// What this end reports as the sender.
pub(super) struct SenderReports {
    /// The events to report.
    pub events: EventQueue,
    /// The counts of its problems.
    pub problems: Mutex<Tally>,
    /// Its errors, as the bits by which the receiver learns of them.
    io_error: AtomicI32,
    /// `--ignore-errors`: the receiver does not learn of them.
    ignores_errors: bool,
}

impl SenderReports {
    pub fn new(options: &Options, events: EventQueue) -> Arc<SenderReports> {
        let ignores_errors = options.delete.ignore_errors;
        Arc::new(SenderReports {
            events,
            problems: Mutex::default(),
            io_error: AtomicI32::new(0),
            ignores_errors,
        })
    }

    /// Counts the problem that an event reports, if it does.
    pub fn count(&self, event: &Event) {
        let Event::Problem(Problem { weight, .. }) = event else {
            return;
        };
        self.problems.lock().problem(*weight);
        let bits = match weight {
            _ if self.ignores_errors => 0,
            Weight::SourceError => IO_ERROR_GENERAL,
            Weight::Vanished => IO_ERROR_VANISHED,
            Weight::Failed | Weight::Warning => 0,
        };
        self.io_error.fetch_or(bits, Ordering::Relaxed);
    }
}

/// Returns the two directions of a push. `opening` is sent first.
pub(super) fn directions<'a>(
    terms: StockTerms,
    opening: Vec<u8>,
    options: &'a Options,
    wants: Wants,
    reports: Arc<SenderReports>,
    inbox: &'a PushInbox,
) -> Result<(PushEncoder, PushIntake<'a>)> {
    let state = Arc::<PushState>::default();
    let encoder = PushEncoder::new(
        terms,
        opening,
        options,
        wants,
        reports.clone(),
        state.clone(),
    )?;
    Ok((
        encoder,
        PushIntake {
            terms,
            is_server: false,
            options,
            wants,
            state,
            reports,
            inbox,
        },
    ))
}
