//! The items of a receiver at the server. The client, which sends, reports every changed entry from them, and returns
//! each item.

use crate::flist::{DirId, FileId, Kind};
use crate::plan::Changes;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::item::{ItemFlags, ItemHead};
use crate::proto::rsync::stats::Deletions;
use crate::report::Tally;
use crate::report::event::{Item, Update};
use std::collections::{HashMap, VecDeque};

/// What the two directions of such a session share in addition.
#[derive(Default)]
pub(super) struct Served {
    /// The own index of each directory of a piecewise list, by its number.
    own_indices: Vec<Option<i32>>,
    /// The flags of requested files, by listing and place. A file can be requested twice.
    announced: HashMap<DirId, HashMap<u32, ItemFlags>>,
    /// The indices of items without content that the client has not returned, in order.
    to_return: VecDeque<i32>,
}

impl Served {
    /// Notes that the list of a directory has come, with the index of its first entry.
    pub(super) fn number(&mut self, dir: i32, first: i32) {
        let Ok(at) = usize::try_from(dir) else { return };
        if self.own_indices.len() <= at {
            self.own_indices.resize(at + 1, None);
        }
        self.own_indices[at] = Some(first - 1);
    }

    /// Returns the own index of a directory, if its list has come.
    pub(super) fn own_index(&self, number: u32) -> Option<i32> {
        *self.own_indices.get(number as usize)?
    }

    /// Notes how a file is reported whose next request follows.
    pub(super) fn announce(&mut self, file: FileId, flags: ItemFlags) {
        self.announced.entry(file.dir).or_default().insert(file.entry, flags);
    }

    /// Returns what was noted about a file.
    pub(super) fn announced(&self, file: FileId) -> Option<ItemFlags> {
        self.announced.get(&file.dir)?.get(&file.entry).copied()
    }

    /// Forgets what was noted about the files of a listing that is done.
    pub(super) fn forget(&mut self, dir: DirId) {
        self.announced.remove(&dir);
    }

    /// Notes that an item without content was sent.
    pub(super) fn expect_return(&mut self, index: i32) {
        self.to_return.push_back(index);
    }

    /// Checks an item without content that the client returns.
    pub(super) fn take_returned(&mut self, index: i32) -> decode_error::Result<()> {
        match self.to_return.pop_front() {
            Some(expected) if expected == index => Ok(()),
            _ => Err(violation(format!("item {index} was not sent"))),
        }
    }
}

/// Returns the head of the item that reports an entry.
pub(super) fn head_of(item: &Item) -> ItemHead {
    let flags = match item.update {
        Update::Received | Update::Sent => ItemFlags::TRANSFER,
        Update::Local | Update::HardLink => ItemFlags::LOCAL_CHANGE,
        Update::Attrs => ItemFlags::default(),
    };
    let name = (item.update == Update::HardLink).then(|| item.linked_to.clone().unwrap_or_default());
    ItemHead { flags: flags | flags_of(item.changes, item.kind), basis: None, name }
}

fn flags_of(changes: Changes, kind: Kind) -> ItemFlags {
    let is_link = kind == Kind::Symlink;
    [
        (Changes::CHECKSUM, ItemFlags::REPORT_CHANGE),
        (Changes::SIZE, if is_link { ItemFlags::default() } else { ItemFlags::REPORT_SIZE }),
        (Changes::TIME, ItemFlags::REPORT_TIME),
        (Changes::TIME_NOW, ItemFlags::REPORT_TIME),
        (Changes::PERMS, ItemFlags::REPORT_PERMS),
        (Changes::OWNER, ItemFlags::REPORT_OWNER),
        (Changes::GROUP, ItemFlags::REPORT_GROUP),
        (Changes::ATIME, ItemFlags::REPORT_ATIME),
        (Changes::ACL, ItemFlags::REPORT_ACL),
        (Changes::XATTR, ItemFlags::REPORT_XATTR),
        (Changes::NEW, ItemFlags::IS_NEW),
    ]
    .into_iter()
    .filter(|(change, _)| changes.has(*change))
    .fold(ItemFlags::default(), |flags, (_, flag)| flags | flag)
}

/// Returns the counts of deleted entries.
pub(super) fn deletions_of(tally: &Tally) -> Deletions {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let deleted = &tally.deleted;
    Deletions {
        files: count(deleted.files),
        dirs: count(deleted.dirs),
        symlinks: count(deleted.symlinks),
        devices: count(deleted.devices),
        specials: count(deleted.specials),
    }
}
