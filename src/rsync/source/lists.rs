//! The lists of a stock rsync on their way to listings.

use crate::digest;
use crate::flist::entry::Stat;
use crate::flist::{Entry, Inode, Kind, Time, Xattr};
use crate::fs::{charset, sys};
use crate::path::RelPath;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::file_list::{FileEntry, HardLink};
use crate::proto::{DirListing, IdName, SubdirFlags};
use crate::report::event::Problem;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A place in a list that the sender has sorted.
pub(super) struct ListSlot {
    pub(super) place: u32,
    /// `None` for a duplicate, and for what was taken out.
    pub(super) entry: Option<FileEntry>,
}

/// A list in sorted order.
pub(super) struct SortedList {
    /// The index of its first entry.
    pub(super) first: i32,
    pub(super) entries: Vec<ListSlot>,
    /// The places of the duplicates that are directories. They are numbered, too.
    pub(super) dropped_dirs: HashSet<u32>,
    /// The places of directories whose names cannot be converted. They are numbered, too.
    pub(super) lost_dirs: Vec<u32>,
    /// Under `-R`, the directories that are not only leading elements of arguments.
    pub(super) named_dirs: HashSet<Vec<u8>>,
    pub(super) ids: Vec<IdName>,
    pub(super) problems: Vec<Problem>,
}

impl SortedList {
    /// Takes the arguments that do not exist.
    pub(super) fn take_missing(&mut self) -> decode_error::Result<Vec<RelPath>> {
        let missing = self
            .entries
            .iter_mut()
            .filter_map(|slot| slot.entry.take_if(|entry| entry.mode == 0));
        missing
            .map(|entry| {
                RelPath::parse(&entry.path).map_err(|_| violation("invalid path of an entry"))
            })
            .collect()
    }

    /// Takes out the directories that lead to no entry, only to arguments that do not exist.
    pub(super) fn drop_bare_leading_dirs(&mut self) {
        let mut parents = HashSet::new();
        for slot in self.entries.iter_mut().rev() {
            let is_bare = |entry: &mut FileEntry| {
                let leads = entry.is_dir() && entry.is_top_dir && !entry.has_content;
                leads
                    && !self.named_dirs.contains(&entry.path)
                    && !parents.contains(&entry.path[..])
            };
            slot.entry.take_if(is_bare);
            parents.extend(
                slot.entry
                    .as_ref()
                    .map(|entry| crate::path::split_parent(&entry.path).0.to_vec()),
            );
        }
    }
}

/// A directory in the order in which a sender numbers them for its piecewise lists.
pub(super) struct NumberedDir {
    pub(super) path: RelPath,
    /// The receiver gets its listing.
    pub(super) is_walked: bool,
    /// The listing is complete, so that other entries of the destination may be deleted.
    pub(super) has_content: bool,
}

impl NumberedDir {
    /// Returns a directory that the receiver does not get.
    pub(super) fn left_out() -> NumberedDir {
        NumberedDir {
            path: RelPath::root(),
            is_walked: false,
            has_content: false,
        }
    }
}

/// The listing of a directory that is being assembled.
pub(super) struct PendingListing {
    pub(super) message: DirListing,
    /// The index of the first entry of the list that contains it.
    pub(super) first: i32,
    /// The place of each entry in that list.
    pub(super) places: Vec<u32>,
    /// The memory that it takes, in bytes.
    pub(super) cost: u64,
    /// See [`ListingIndex::dirs`](crate::rsync::source::ListingIndex::dirs).
    pub(super) dirs: (u32, Vec<u32>),
}

impl PendingListing {
    pub(super) fn new(path: RelPath, first: i32, has_content: bool) -> PendingListing {
        let message = DirListing {
            path,
            may_delete: has_content,
            is_named: !has_content,
            ..DirListing::default()
        };
        PendingListing {
            message,
            first,
            places: Vec::new(),
            cost: size_of::<DirListing>() as u64,
            dirs: Default::default(),
        }
    }

    pub(super) fn push(&mut self, place: u32, name: &[u8], entry: Entry, sub: Option<SubdirFlags>) {
        let (access, default) = entry.acls();
        let xattrs_len = entry
            .xattrs()
            .iter()
            .map(|(name, value)| size_of::<Xattr>() + name.len() + value.len());
        let rest = access.len() + default.len() + xattrs_len.sum::<usize>();
        self.cost += (size_of::<Entry>() + name.len() + entry.target().len() + rest) as u64;
        Arc::make_mut(&mut self.message.list).push_entry(name, entry);
        self.places.push(place);
        self.message.subs.extend(sub);
    }

    /// Moves the index of the first entry here, and returns whether the others do not count up from it. `has_dirs`:
    /// directories have items.
    pub(super) fn has_gaps(&mut self, has_dirs: bool) -> bool {
        let Some(&first) = self.places.iter().min() else {
            return false;
        };
        self.first = self.first.saturating_add_unsigned(first);
        for place in &mut self.places {
            *place -= first;
        }
        // Directories are requested only for their attributes.
        let is_requested = |entry: &Entry| has_dirs || !entry.is_dir() || entry.has_abbreviated();
        let entries = (0..).zip(&self.places).zip(&self.message.list.entries);
        entries
            .into_iter()
            .any(|((at, &place), entry)| place != at && is_requested(entry))
    }
}

/// Replaces inode numbers by numbers of groups, for files with several names.
pub(super) fn number_links(entries: &mut [FileEntry]) {
    let mut groups: HashMap<(i64, i64), (i32, u32)> = HashMap::new();
    for (number, entry) in (0..).zip(&*entries) {
        if let HardLink::Inode { dev, inode } = entry.hard_link {
            groups.entry((dev, inode)).or_insert((number, 0)).1 += 1;
        }
    }
    for entry in entries {
        if let HardLink::Inode { dev, inode } = entry.hard_link {
            let group = groups.get(&(dev, inode)).filter(|(_, count)| *count > 1);
            entry.hard_link = group.map_or(HardLink::None, |(number, _)| HardLink::Member(*number));
        }
    }
}

pub(super) fn len_of(entry: &FileEntry) -> u64 {
    // The target is missing without `-l`, and a converted one has another length.
    if entry.target.is_empty() || charset::of_names().is_some() {
        entry.size.max(0).cast_unsigned()
    } else {
        entry.target.len() as u64
    }
}

pub(super) fn entry_of(entry: &FileEntry) -> Entry {
    let time = |secs, nanos| Time { secs, nanos };
    let stat = Stat {
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        mtime: time(entry.mtime, entry.mtime_nanos),
        len_bytes: len_of(entry),
        ..Stat::default()
    };
    let mut converted = Entry::from_stat(&stat);
    if !entry.target.is_empty() {
        converted.extra_mut().target = Some(entry.target.clone().into());
    }
    if entry.kind() == Kind::Device {
        converted.extra_mut().rdev = sys::device_number(entry.rdev.0, entry.rdev.1);
    }
    if entry.atime != 0 {
        converted.extra_mut().atime = Some(time(entry.atime, 0));
    }
    // Zeros stand for a file that the sender could not read.
    if entry.digest.iter().any(|&byte| byte != 0) {
        converted.extra_mut().digest = Some(digest::padded(&entry.digest));
    }
    if let HardLink::Member(group) = entry.hard_link {
        let ino = u64::from(group.unsigned_abs());
        converted.inode = Some(Box::new(Inode {
            dev: 0,
            ino,
            nlink: 2,
        }));
    }
    converted
}
