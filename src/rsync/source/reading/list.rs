//! Reads one file list: its entries in order, the names of ids, and what could not be read.

use super::Reading;
use crate::fs::{charset, sys};
use crate::options::Recurse;
use crate::proto::IdName;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::file_list::{FileEntry, HardLink, IdLists, ListItem};
use crate::proto::rsync::handshake::VERSIONS;
use crate::proto::rsync::sort;
use crate::report::event::{Problem, Weight, strerror};
use crate::rsync::controls::{IO_ERROR_GENERAL, IO_ERROR_VANISHED};
use crate::rsync::source::lists::{ListSlot, SortedList, len_of, number_links};
use std::collections::HashSet;
use std::io;

/// One list in the order of sending.
#[derive(Default)]
struct UnsortedList {
    /// The entries whose names could be converted, in the order of sending.
    entries: Vec<FileEntry>,
    /// The place of each of them among all entries that were sent.
    places: Vec<u32>,
    /// How many entries were sent.
    sent: u32,
    /// The places of directories whose names could not be converted.
    lost_dirs: Vec<u32>,
    ids: Vec<IdName>,
    problems: Vec<Problem>,
}

impl Reading<'_, '_> {
    /// Reads one list, and returns it in sorted order with the names of ids.
    pub(super) fn list(&mut self) -> decode_error::Result<SortedList> {
        let protocol = self.intake.terms.protocol;
        let mut list = self.unsorted_list()?;
        if protocol < 30 {
            number_links(&mut list.entries);
        }

        // With the slashes of absolute paths, which are not part of the names.
        let order = sort::sorted(&list.entries, protocol);
        let had_absolute_paths = strip_leading_slashes(&mut list.entries);
        let named_dirs = if self.intake.options.select.relative {
            named_dirs(&list.entries)
        } else {
            HashSet::new()
        };
        let dropped = sort::drop_duplicates(&mut list.entries, &order, protocol);

        let mut slots = into_slots(list.entries, &list.places, &order);
        let mut dropped_dirs = HashSet::new();
        for at in dropped {
            let ListSlot { place, entry } = &mut slots[at as usize];
            if entry.take().is_some_and(|entry| entry.is_dir()) {
                dropped_dirs.insert(*place);
            }
        }

        if protocol < 29 || had_absolute_paths {
            // The receiver needs the order of later protocols.
            slots.sort_by(|a, b| match (&a.entry, &b.entry) {
                (Some(a), Some(b)) => sort::compare(a, b, *VERSIONS.end()),
                (a, b) => a.is_none().cmp(&b.is_none()),
            });
        }
        if protocol < 30 {
            self.mark_content(&mut slots);
        }

        let first = self.next_index;
        self.next_index = index_of_next_list(first, list.sent)?;
        Ok(SortedList {
            first,
            entries: slots,
            dropped_dirs,
            lost_dirs: list.lost_dirs,
            named_dirs,
            ids: list.ids,
            problems: list.problems,
        })
    }

    /// Reads the entries of one list, and what follows them.
    fn unsorted_list(&mut self) -> decode_error::Result<UnsortedList> {
        let mut list = UnsortedList::default();
        let mut held_bytes = 0;
        loop {
            let index = self.lists.next_index();
            let mut entry = match self.lists.next(self.input)? {
                ListItem::Entry(entry) => entry,
                ListItem::End { io_error, ids } => {
                    list.ids.extend(names_of_lists(ids));
                    list.problems.extend(self.problems_of(io_error));
                    return Ok(list);
                }
            };
            self.take_id_names(&mut entry, &mut list.ids);
            if entry.hard_link == HardLink::First {
                entry.hard_link = HardLink::Member(index);
            }

            let place = list.sent;
            list.sent += 1;
            if let Err(problem) = from_wire(&mut entry) {
                // Its place stays empty.
                list.problems.push(problem);
                if entry.is_dir() {
                    list.lost_dirs.push(place);
                }
            } else {
                self.count(&entry);
                let len_bytes = size_of::<FileEntry>() + entry.path.len() + entry.target.len();
                held_bytes += len_bytes as u64;
                if held_bytes > self.max_alloc_bytes() {
                    return Err(self.lists_too_long());
                }
                list.entries.push(*entry);
                list.places.push(place);
            }
            sys::note_work();
        }
    }

    /// Takes the names that came with the ids of an entry: those of its owner and group, and of its ACLs unless an earlier
    /// ACL named the same id.
    fn take_id_names(&mut self, entry: &mut FileEntry, ids: &mut Vec<IdName>) {
        ids.extend(
            entry
                .user
                .take()
                .and_then(|name| id_name(false, entry.uid, name)),
        );
        ids.extend(
            entry
                .group
                .take()
                .and_then(|name| id_name(true, entry.gid, name)),
        );
        let acls = [&entry.access_acl, &entry.default_acl];
        let in_acls = acls.into_iter().flatten().flat_map(|acl| &acl.named);
        for acl_entry in in_acls.flatten() {
            let Some(name) = &acl_entry.name else {
                continue;
            };
            if self.named.is_new(acl_entry.is_user, acl_entry.id) {
                ids.extend(id_name(!acl_entry.is_user, acl_entry.id, name.clone()));
            }
        }
    }

    /// Determines for which directories of a whole list the content was sent: before protocol 30, only arguments have a
    /// mark. openrsync marks the first directory that leads to an argument in place of the argument.
    fn mark_content(&self, sorted: &mut [ListSlot]) {
        let select = &self.intake.options.select;
        let mut top: Option<Vec<u8>> = None;
        let entries = sorted.iter_mut().filter_map(|slot| slot.entry.as_mut());
        for entry in entries.filter(|entry| entry.is_dir()) {
            let is_below = top.as_ref().is_some_and(|top| is_below(&entry.path, top));
            entry.is_top_dir &= self.intake.request.includes_content(&entry.path);
            if entry.is_top_dir && !is_below {
                top = Some(entry.path.clone());
            }
            entry.has_content = entry.is_top_dir || is_below && select.recurse == Recurse::Full;
            // A leading element of an argument.
            entry.is_top_dir |= !entry.has_content && select.relative;
        }
    }

    /// Counts an entry, also one that is a duplicate. The generator counts the first root.
    fn count(&mut self, entry: &FileEntry) {
        let is_first_root = entry.path == b"." && !std::mem::replace(&mut self.has_root, true);
        if !is_first_root {
            let name_len = entry.path.len() + entry.target.len();
            self.counted.list(entry.kind(), len_of(entry), name_len);
        }
    }

    /// Returns the problems of a list with these errors, and of those reported before it. The peer has printed the
    /// reasons.
    fn problems_of(&mut self, io_error: i32) -> Vec<Problem> {
        let io_error = io_error | self.controls.lock().io_error;
        let new = io_error & !self.io_error;
        self.io_error |= io_error;
        let weights = [
            (IO_ERROR_GENERAL, Weight::SourceError),
            (IO_ERROR_VANISHED, Weight::Vanished),
        ];
        let weights = weights.into_iter().filter(|(bit, _)| new & bit != 0);
        weights
            .map(|(_, weight)| Problem::new("", weight))
            .collect()
    }
}

/// Converts the names of an entry. The error reports one that cannot be expressed in the character set of this machine.
fn from_wire(entry: &mut FileEntry) -> std::result::Result<(), Problem> {
    let Some(charset) = charset::of_names() else {
        return Ok(());
    };
    let problem = |what: &[u8], after: &[u8], error: &io::Error| {
        let line = [
            b"[Receiver] cannot convert ",
            what,
            &entry.path[..],
            after,
            b" (",
            &strerror(error),
            b")",
        ]
        .concat();
        Problem::new(line, Weight::SourceError)
    };
    let target = charset.decode_target(&entry.target);
    let target = target.map_err(|error| problem(b"symlink data for: \"", b"\"", &error))?;
    let path = charset
        .decode(&entry.path)
        .map_err(|error| problem(b"filename: ", b"", &error))?;
    (entry.path, entry.target) = (path, target);
    Ok(())
}

fn id_name(is_group: bool, id: u32, name: Vec<u8>) -> Option<IdName> {
    if name.is_empty() {
        return None;
    }
    Some(IdName { is_group, id, name })
}

/// Returns the names that follow a list.
fn names_of_lists(ids: IdLists) -> impl Iterator<Item = IdName> {
    let IdLists {
        users,
        groups,
        root_user,
        root_group,
    } = ids;
    let named = |is_group, list: Vec<(u32, Vec<u8>)>, root| {
        list.into_iter()
            .chain([(0, root)])
            .filter_map(move |(id, name)| id_name(is_group, id, name))
    };
    named(false, users, root_user).chain(named(true, groups, root_group))
}

/// Makes absolute paths relative, and returns whether there were any.
fn strip_leading_slashes(entries: &mut [FileEntry]) -> bool {
    let mut were_any = false;
    for entry in entries {
        let slashes = entry.path.iter().take_while(|&&byte| byte == b'/').count();
        if slashes > 0 {
            entry.path.drain(..slashes);
            were_any = true;
        }
    }
    were_any
}

/// Returns the directories that are not only leading elements of arguments.
fn named_dirs(entries: &[FileEntry]) -> HashSet<Vec<u8>> {
    let is_named = |entry: &&FileEntry| entry.is_dir() && (!entry.is_top_dir || entry.has_content);
    let named = entries.iter().filter(is_named);
    named.map(|entry| entry.path.clone()).collect()
}

/// Moves entries into sorted order. They are numbered in that order, but in the order of sending, which `places` has, if
/// names are converted: the sender has sorted other names.
fn into_slots(entries: Vec<FileEntry>, places: &[u32], order: &[u32]) -> Vec<ListSlot> {
    let is_converted = charset::of_names().is_some();
    let mut entries: Vec<Option<FileEntry>> = entries.into_iter().map(Some).collect();
    let mut slots = Vec::with_capacity(order.len());
    for (sorted_place, &at) in (0..).zip(order) {
        let at = at as usize;
        slots.push(ListSlot {
            place: if is_converted {
                places[at]
            } else {
                sorted_place
            },
            entry: entries[at].take(),
        });
    }
    slots
}

/// Returns whether a path is below a directory.
fn is_below(path: &[u8], dir: &[u8]) -> bool {
    dir == b"."
        || path
            .strip_prefix(dir)
            .is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns the index of the first entry of the list after one of `sent` entries: one index between them is for the
/// directory of that list.
fn index_of_next_list(first: i32, sent: u32) -> decode_error::Result<i32> {
    let sent = i32::try_from(sent).ok();
    let next = sent.and_then(|sent| first.checked_add(sent)?.checked_add(1));
    next.ok_or_else(|| violation("too many entries"))
}
