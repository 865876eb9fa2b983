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

impl Reading<'_, '_> {
    /// Reads one list, in the order of sending, and returns it with the names of ids.
    pub(super) fn list(&mut self) -> decode_error::Result<SortedList> {
        let protocol = self.intake.terms.protocol;
        let mut entries = Vec::new();
        let mut ids = Vec::new();
        // The places of the entries in the order of sending, and how many were sent.
        let mut places = Vec::new();
        let mut sent = 0u32;
        let mut unconverted = Vec::new();
        let mut lost_dirs = Vec::new();
        let mut held_bytes = 0;
        let mut sent_index = self.lists.next_index();
        let (io_error, more) = loop {
            match self.lists.next(self.input)? {
                ListItem::Entry(mut entry) => {
                    let names = [
                        (false, entry.uid, entry.user.take()),
                        (true, entry.gid, entry.group.take()),
                    ];
                    ids.extend(
                        names
                            .into_iter()
                            .filter_map(|(is_group, id, name)| id_name(is_group, id, name?)),
                    );
                    for acl in [&entry.access_acl, &entry.default_acl]
                        .into_iter()
                        .flatten()
                    {
                        let named = acl
                            .named
                            .iter()
                            .flatten()
                            .filter(|named| named.name.is_some());
                        let new = named.filter(|named| self.named.is_new(named.is_user, named.id));
                        ids.extend(
                            new.filter_map(|new| id_name(!new.is_user, new.id, new.name.clone()?)),
                        );
                    }
                    if entry.hard_link == HardLink::First {
                        entry.hard_link = HardLink::Member(sent_index);
                    }
                    let place = sent;
                    sent += 1;
                    sent_index = self.lists.next_index();
                    if let Err(problem) = from_wire(&mut entry) {
                        // Its place stays empty.
                        unconverted.push(problem);
                        if entry.is_dir() {
                            lost_dirs.push(place);
                        }
                        continue;
                    }
                    self.count(&entry);
                    held_bytes +=
                        (size_of::<FileEntry>() + entry.path.len() + entry.target.len()) as u64;
                    if held_bytes > self.max_alloc_bytes() {
                        return Err(self.lists_too_long());
                    }
                    entries.push(*entry);
                    places.push(place);
                }
                ListItem::End { io_error, ids } => break (io_error, ids),
            }
            sys::note_work();
        };
        if protocol < 30 {
            number_links(&mut entries);
        }
        // With the slashes of absolute paths, which are not part of the names.
        let order = sort::sorted(&entries, protocol);
        let mut is_resorted = protocol < 29;
        for entry in entries
            .iter_mut()
            .filter(|entry| entry.path.first() == Some(&b'/'))
        {
            let start = entry
                .path
                .iter()
                .position(|&byte| byte != b'/')
                .unwrap_or(entry.path.len());
            entry.path.drain(..start);
            is_resorted = true;
        }
        let IdLists {
            users,
            groups,
            root_user,
            root_group,
        } = more;
        let named = |is_group, list: Vec<(u32, Vec<u8>)>, root| {
            list.into_iter()
                .chain([(0, root)])
                .filter_map(move |(id, name)| id_name(is_group, id, name))
        };
        ids.extend(named(false, users, root_user));
        ids.extend(named(true, groups, root_group));
        let is_named =
            |entry: &&FileEntry| entry.is_dir() && (!entry.is_top_dir || entry.has_content);
        let mut named_dirs = HashSet::new();
        if self.intake.options.select.relative {
            let named = entries.iter().filter(is_named);
            named_dirs.extend(named.map(|entry| entry.path.clone()));
        }
        let dropped = sort::drop_duplicates(&mut entries, &order, protocol);
        let is_dir = |&place: &u32| entries[order[place as usize] as usize].is_dir();
        // Converted entries are numbered in the order of sending.
        let number = |place: u32| match charset::of_names() {
            Some(_) => places[order[place as usize] as usize],
            None => place,
        };
        let dropped_dirs = dropped.iter().copied().filter(is_dir).map(number).collect();
        let mut entries: Vec<Option<FileEntry>> = entries.into_iter().map(Some).collect();
        let sorted = order.iter().map(|&at| {
            entries[at as usize]
                .take()
                .expect("each place is taken once")
        });
        let sorted = (0..).zip(sorted.map(Some));
        let mut sorted: Vec<ListSlot> = sorted
            .map(|(place, entry)| ListSlot {
                place: number(place),
                entry,
            })
            .collect();
        for place in dropped {
            sorted[place as usize].entry = None;
        }
        if is_resorted {
            // The receiver needs the order of later protocols.
            sorted.sort_by(|a, b| match (&a.entry, &b.entry) {
                (Some(a), Some(b)) => sort::compare(a, b, *VERSIONS.end()),
                (a, b) => a.is_none().cmp(&b.is_none()),
            });
        }
        if protocol < 30 {
            self.mark_content(&mut sorted);
        }
        let first = self.next_index;
        let past = i32::try_from(sent)
            .ok()
            .and_then(|count| first.checked_add(count)?.checked_add(1));
        self.next_index = past.ok_or_else(|| violation("too many entries"))?;
        let mut problems = unconverted;
        problems.extend(self.problems_of(io_error));
        Ok(SortedList {
            first,
            entries: sorted,
            dropped_dirs,
            lost_dirs,
            named_dirs,
            ids,
            problems,
        })
    }

    /// Determines for which directories of a whole list the content was sent: before protocol 30, only arguments have a
    /// mark. openrsync marks the first directory that leads to an argument in place of the argument.
    fn mark_content(&self, sorted: &mut [ListSlot]) {
        let select = &self.intake.options.select;
        let mut top: Option<Vec<u8>> = None;
        for entry in sorted
            .iter_mut()
            .filter_map(|slot| slot.entry.as_mut())
            .filter(|entry| entry.is_dir())
        {
            let is_below = top.as_ref().is_some_and(|top| {
                top == b"."
                    || entry
                        .path
                        .strip_prefix(&top[..])
                        .is_some_and(|rest| rest.starts_with(b"/"))
            });
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
