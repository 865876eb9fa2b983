//! The items of a receiver at the server. The client, which sends, reports every changed entry from them, and returns
//! each item.

use crate::flist::Kind;
use crate::flist::abbreviated::RequestedValues;
use crate::plan::Changes;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::item::{ItemFlags, ItemHead};
use crate::proto::rsync::stats::DeletionCounts;
use crate::report::Tally;
use crate::report::event::{Item, Update};
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, VecDeque};

/// What the two directions of such a session share in addition.
///
/// What holds: the client returns items without content in the order in which they were sent, mixed with answers to requests.
/// It sends each value of a list of attributes once, so only the first item that needs a value requests it. Another item with
/// that list is returned later, and then the value has come.
#[derive(Default)]
pub(super) struct Served {
    /// Items have a part about extended attributes.
    pub(super) has_xattrs: bool,
    /// The own index of each directory of a piecewise list, by its number.
    own_indices: Vec<Option<i32>>,
    /// Whether each requested value has come, by the number of its list, and its number in it. A client rejects a second
    /// request.
    requested_xattrs: HashMap<(u32, u32), bool>,
    /// The indices of items without content that the client has not returned, in order.
    to_return: VecDeque<i32>,
}

impl Served {
    /// Creates the state at the beginning of a session.
    pub(super) fn new(has_xattrs: bool) -> Served {
        Served {
            has_xattrs,
            ..Served::default()
        }
    }

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

    /// Returns the values that an item requests, without those that other items have requested.
    pub(super) fn first_requests(&mut self, values: RequestedValues) -> RequestedValues {
        let RequestedValues { list, numbers } = values;
        let is_new = |number: &u32| match self.requested_xattrs.entry((list, *number)) {
            Occupied(_) => false,
            Vacant(vacant) => !*vacant.insert(false),
        };
        RequestedValues {
            list,
            numbers: numbers.into_iter().filter(is_new).collect(),
        }
    }

    /// Checks the values of an item that has requested those with these numbers. A file that could not be read leaves
    /// its values to the next item with the same list.
    pub(super) fn take_xattrs<'n>(
        &mut self,
        RequestedValues { list, numbers }: &RequestedValues,
        mut values: impl Iterator<Item = &'n u32> + Clone,
    ) -> decode_error::Result<()> {
        let has_all = numbers
            .iter()
            .all(|number| values.clone().any(|other| other == number));
        let is_due = |number: &u32| {
            let has_come = self.requested_xattrs.get_mut(&(*list, *number));
            has_come.is_some_and(|has_come| !std::mem::replace(has_come, true))
        };
        if has_all && values.all(is_due) {
            return Ok(());
        }
        Err(violation("other extended attributes than those requested"))
    }

    /// Notes that an item without content was sent.
    pub(super) fn expect_return(&mut self, index: i32) {
        self.to_return.push_back(index);
    }

    /// Checks an item that the client returns, or of which it reports that it leaves it out.
    pub(super) fn take_returned(&mut self, index: i32) -> decode_error::Result<()> {
        match self.to_return.pop_front() {
            Some(expected) if expected == index => Ok(()),
            _ => Err(violation(format!("item {index} was not sent"))),
        }
    }

    /// As [`Served::take_returned`], but before protocol 30, when a client leaves out files without a report.
    pub(super) fn take_returned_later(&mut self, index: i32) -> decode_error::Result<()> {
        while let Some(expected) = self.to_return.pop_front() {
            if expected == index {
                return Ok(());
            }
        }
        Err(violation(format!("item {index} was not sent")))
    }
}

/// Returns the head of the item that reports an entry.
pub(super) fn head_of(item: &Item) -> ItemHead {
    let flags = match item.update {
        Update::Received | Update::Sent => ItemFlags::TRANSFER,
        Update::Local | Update::HardLink => ItemFlags::LOCAL_CHANGE,
        Update::Attrs => ItemFlags::default(),
    };
    let name =
        (item.update == Update::HardLink).then(|| item.linked_to.clone().unwrap_or_default());
    ItemHead {
        flags: flags | flags_of(item.changes, item.kind),
        basis: None,
        name,
    }
}

/// Returns the flags that report changes of an entry of this kind.
pub(super) fn flags_of(changes: Changes, kind: Kind) -> ItemFlags {
    let is_link = kind == Kind::Symlink;
    [
        (Changes::CHECKSUM, ItemFlags::REPORT_CHANGE),
        (
            Changes::SIZE,
            if is_link {
                ItemFlags::default()
            } else {
                ItemFlags::REPORT_SIZE
            },
        ),
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
pub(super) fn deletions_of(tally: &Tally) -> DeletionCounts {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let deleted = &tally.deleted;
    DeletionCounts {
        files: count(deleted.files),
        dirs: count(deleted.dirs),
        symlinks: count(deleted.symlinks),
        devices: count(deleted.devices),
        specials: count(deleted.specials),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(list: u32, numbers: &[u32]) -> RequestedValues {
        let numbers = numbers.to_vec();
        RequestedValues { list, numbers }
    }

    #[test]
    fn values_come_once_and_on_request() {
        let mut served = Served::new(true);
        // Two entries share list 7. The second one requests what the first one has not.
        let first = served.first_requests(values(7, &[1, 3]));
        assert_eq!(first, values(7, &[1, 3]));
        assert_eq!(served.first_requests(values(7, &[1, 3])), values(7, &[]));
        for other in [&[1][..], &[1, 2, 3], &[2], &[]] {
            assert!(
                served.take_xattrs(&first, other.iter()).is_err(),
                "{other:?}"
            );
        }
    }

    #[test]
    fn values_of_an_unreadable_file_come_with_the_next_one() {
        let mut served = Served::new(true);
        served.first_requests(values(7, &[1, 3]));
        let second = served.first_requests(values(7, &[1, 3]));
        // Not those of another list.
        assert!(served.take_xattrs(&values(8, &[]), [1].iter()).is_err());
        assert!(served.take_xattrs(&second, [1, 3].iter()).is_ok());
        assert!(served.take_xattrs(&second, [1].iter()).is_err());
    }
}
