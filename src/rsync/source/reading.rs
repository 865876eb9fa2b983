//! Reads the lists and contents that a stock rsync sends, to the goodbye, which it answers.

mod items;

use crate::error::Error;
use crate::exit::Exit;
use crate::flist::order::compare_paths;
use crate::flist::{DirList, Entry, Kind, Xattrs};
use crate::fs::{charset, sys};
use crate::options::Recurse;
use crate::path::RelPath;
use crate::plan;
use crate::proto::rsync::attributes::IdsWithName;
use crate::proto::rsync::decode_error::{self, DecodeError, violation};
use crate::proto::rsync::file_list::{FileEntry, HardLink, IdLists, ListDecoder, ListItem};
use crate::proto::rsync::handshake::VERSIONS;
use crate::proto::rsync::message::RsyncMessage;
use crate::proto::rsync::number::{Ndx, NdxDecoder};
use crate::proto::rsync::sort;
use crate::proto::rsync::stats::{DeletionCounts, Stats};
use crate::proto::rsync::tokens::TokenDecoder;
use crate::proto::{DirId, IdName, Roots, SubdirFlags};
use crate::report::Tally;
use crate::report::event::{Problem, Weight, strerror};
use crate::rsync::attributes::{AclOf, acl_from_wire, xattrs_from_wire};
use crate::rsync::controls::{
    Controls, IO_ERROR_DELETE_LIMIT, IO_ERROR_GENERAL, IO_ERROR_VANISHED, Input,
};
use crate::rsync::source::lists::{
    ListSlot, PendingListing, SortedList, entry_of, len_of, number_links,
};
use crate::rsync::source::{
    ListingIndex, ReceivedList, SentRequest, SourceEncoder, SourceIntake, unsent,
};
use crate::session::connection::Connection;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// A directory in the order in which a sender numbers them for its piecewise lists.
struct NumberedDir {
    path: RelPath,
    /// The receiver gets its listing.
    is_walked: bool,
    /// The listing is complete, so that other entries of the destination may be deleted.
    has_content: bool,
}

impl NumberedDir {
    /// Returns a directory that the receiver does not get.
    fn left_out() -> NumberedDir {
        NumberedDir {
            path: RelPath::root(),
            is_walked: false,
            has_content: false,
        }
    }
}

/// The lists and contents of a sender, as they are read.
pub(super) struct Reading<'i, 'r> {
    intake: &'i SourceIntake<'i>,
    connection: &'i Connection<SourceEncoder>,
    controls: &'i Controls<'i>,
    lists: ListDecoder,
    indices: NdxDecoder,
    tokens: TokenDecoder,
    digest_len_bytes: usize,
    /// `None`: its list has come.
    dirs: Vec<Option<NumberedDir>>,
    /// The index of the first entry of the next list.
    next_index: i32,
    /// The errors that the sender has reported with its lists, as bits.
    io_error: i32,
    /// The list of a directory that was read before the roots were passed on.
    read_ahead: Option<(i32, SortedList)>,
    /// Listings that wait for those that precede them, with the numbers of their lists (`--iconv`).
    held: Vec<(PendingListing, usize)>,
    /// The root was in a list.
    has_root: bool,
    counted: Tally,
    /// The extended attributes of each list of attributes, by its number, and whether some values are abbreviated.
    xattrs: HashMap<u32, (Arc<Xattrs>, bool)>,
    /// The total length of the values that came on request.
    xattrs_bytes: u64,
    /// The ids in ACLs whose names have come.
    named: IdsWithName,
    input: &'i mut Input<'r>,
}

impl<'i, 'r> Reading<'i, 'r> {
    /// Returns a reading at its start.
    pub(super) fn new(
        intake: &'i SourceIntake<'i>,
        connection: &'i Connection<SourceEncoder>,
        controls: &'i Controls<'i>,
        tokens: TokenDecoder,
        input: &'i mut Input<'r>,
    ) -> Reading<'i, 'r> {
        Reading {
            intake,
            connection,
            controls,
            lists: ListDecoder::new(intake.terms.list_options(intake.options)),
            indices: NdxDecoder::new(intake.terms.protocol),
            tokens,
            digest_len_bytes: intake.terms.sums.digest_len_bytes(),
            dirs: Vec::new(),
            next_index: i32::from(intake.is_incremental()),
            io_error: 0,
            read_ahead: None,
            held: Vec::new(),
            has_root: false,
            counted: Tally::default(),
            xattrs: HashMap::new(),
            xattrs_bytes: 0,
            named: IdsWithName::default(),
            input,
        }
    }

    /// Reads everything, until the goodbye.
    pub(super) fn run(mut self) -> decode_error::Result<()> {
        let is_incremental = self.intake.is_incremental();
        let is_empty = self.first_list()?;
        let mut has_all_lists = !is_incremental;
        self.intake.shared.lock().has_all_lists = has_all_lists;
        if has_all_lists {
            self.intake.inbox.end_list(self.counted.clone());
        }
        // How many lists and phases the sender has ended. A server without any entry leaves at once.
        let is_empty = is_empty && !self.intake.is_served();
        let mut ended = 0;
        // Before protocol 29, there is no phase for delayed updates.
        let answered_phases = if self.intake.terms.protocol < 29 {
            1
        } else {
            2
        };
        while !has_all_lists || !is_empty && ended < self.list_count() + answered_phases {
            let ndx = match &self.read_ahead {
                Some((dir, _)) => Ndx::List(*dir),
                None => self.indices.decode(self.input)?,
            };
            match ndx {
                Ndx::List(dir) if !has_all_lists => self.list_of(dir)?,
                Ndx::ListsEnd if !has_all_lists => {
                    has_all_lists = true;
                    self.intake.shared.lock().has_all_lists = true;
                    let mut held = std::mem::take(&mut self.held);
                    let path = |listing: &PendingListing| listing.message.path.as_bytes().to_vec();
                    held.sort_by(|(a, _), (b, _)| {
                        compare_paths((&path(a), true), (&path(b), true))
                    });
                    held.into_iter()
                        .try_for_each(|(listing, list)| self.deliver(listing, Some(list)))?;
                    self.intake.inbox.end_list(self.counted.clone());
                }
                Ndx::Entry(index) => self.item(index)?,
                Ndx::Done if has_all_lists || ended + 1 < self.list_count() => {
                    self.answered(SentRequest::End)?;
                    ended += 1;
                }
                Ndx::List(_) | Ndx::ListsEnd | Ndx::Done | Ndx::Deletions => {
                    return Err(violation("unexpected end of a list"));
                }
            }
            sys::note_work();
        }
        let mut rest = Tally::default();
        if !is_empty {
            rest = self.goodbye()?;
        }
        let reported = self.controls.lock().io_error;
        let lacks_cause = self.intake.shared.lock().unsent > 0 && reported | self.io_error == 0;
        // The text of a daemon comes with the messages, so one failure may be told twice. It counts once.
        let is_counted = (reported | self.io_error) & IO_ERROR_GENERAL != 0;
        if self.controls.lock().has_failed {
            if !is_counted {
                rest.at_peer(|rest| rest.problem(Weight::Failed));
            }
        } else if lacks_cause {
            rest.problem(Weight::Failed);
        }
        let io_error = reported & !self.io_error;
        if io_error & IO_ERROR_GENERAL != 0 {
            rest.problem(Weight::SourceError);
        }
        if io_error & IO_ERROR_VANISHED != 0 {
            rest.problem(Weight::Vanished);
        }
        rest.delete_limit_reached |= reported & IO_ERROR_DELETE_LIMIT != 0;
        // Such a client ends the last phase before the receiver has everything.
        if is_empty || self.intake.is_served() && self.intake.terms.protocol < 29 {
            // The end of the reading closes the connection, so the receiver must have sent its last message.
            let waited = self.intake.inbox.await_report();
            waited.map_err(|error| self.controls.fail(error))?;
        } else if !self.intake.inbox.has_all() {
            return Err(violation("the end before all requested files"));
        }
        if !is_empty {
            self.connection
                .send(&RsyncMessage::Goodbye)
                .map_err(|error| self.controls.fail(error))?;
        }
        let reported = self.controls.report_incomplete_lines();
        reported.map_err(|error| self.controls.fail(error))?;
        self.intake
            .inbox
            .end_session(rest)
            .map_err(|error| self.controls.fail(error))
    }

    fn list_count(&self) -> usize {
        self.intake.shared.lock().lists.len()
    }

    /// Reads what follows the last item: the statistics, and the answer to the end of deletions.
    fn goodbye(&mut self) -> decode_error::Result<Tally> {
        // A client sends no statistics.
        let protocol = self.intake.terms.protocol;
        let stats = if self.intake.is_served() {
            Stats::default()
        } else {
            Stats::decode(self.input, protocol)?
        };
        if protocol >= 31 {
            let mut ndx = self.indices.decode(self.input)?;
            if ndx == Ndx::Deletions {
                DeletionCounts::decode(self.input)?;
                ndx = self.indices.decode(self.input)?;
            }
            if ndx != Ndx::Done {
                return Err(violation("unexpected index after the statistics"));
            }
        }
        let ms = |number: i64| number.unsigned_abs();
        let (list_generation_ms, list_transfer_ms) =
            (ms(stats.list_build_ms), ms(stats.list_send_ms));
        Ok(Tally {
            list_generation_ms,
            list_transfer_ms,
            ..Tally::default()
        })
    }

    fn max_alloc_bytes(&self) -> u64 {
        self.intake
            .options
            .connect
            .max_alloc_bytes
            .unwrap_or(u64::MAX)
    }

    fn lists_too_long(&self) -> DecodeError {
        let error = Error::new(Exit::Malloc, "sparsync: the file list exceeds --max-alloc");
        self.controls.fail(
            error.with_hint(
                "use a larger --max-alloc (a daemon: RSYNC_MAX_ALLOC), or copy in parts",
            ),
        )
    }

    /// Reads one list, in the order of sending, and returns it with the names of ids.
    fn list(&mut self) -> decode_error::Result<SortedList> {
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

    /// Handles what the sender has left out before an answer: files that it cannot read.
    fn answered(&self, answer: SentRequest) -> decode_error::Result<()> {
        if self.intake.terms.protocol >= 30 {
            return Ok(());
        }
        loop {
            let mut shared = self.intake.shared.lock();
            let sent = shared.unanswered.pop_front();
            match sent {
                Some(sent) if sent == answer => return Ok(()),
                Some(SentRequest::Request(index)) => {
                    shared.unread = shared.unread.saturating_sub(1);
                    drop(shared);
                    unsent(index, &self.intake.shared, self.intake.inbox)
                        .map_err(|error| self.controls.fail(error))?;
                }
                Some(SentRequest::Probe(_) | SentRequest::End) => {}
                None => return Err(violation("answer without a request")),
            }
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

    /// Reads the first list and passes on the roots. Returns whether there is no entry at all.
    fn first_list(&mut self) -> decode_error::Result<bool> {
        let mut list = self.list()?;
        let is_incremental = self.intake.is_incremental();
        let is_empty = list.entries.is_empty();
        self.intake.shared.lock().has_left = is_empty && !self.intake.is_served();
        let root = list
            .entries
            .first()
            .map_or(0, |slot| slot.place.cast_signed());
        let top = list
            .entries
            .first_mut()
            .and_then(|slot| slot.entry.take_if(|entry| entry.path == b"."));
        let first = list.entries.iter().find_map(|slot| slot.entry.as_ref());
        // An entry that is there twice is not the only one.
        let is_more =
            list.entries.len() > usize::from(top.is_some()) + usize::from(first.is_some());
        let single = first.filter(|entry| !is_more && top.is_none() && !entry.is_dir());
        let single = single.map(|entry| crate::path::file_name(&entry.path).to_vec());
        let lone_dir_is_bare = match (&top, first) {
            (Some(_), None) => Some(!is_more),
            (Some(_), Some(_)) => Some(false),
            (None, Some(first)) if first.is_dir() && !is_incremental => Some(!is_more),
            // The list of its content follows at once.
            (None, Some(first)) if first.is_dir() && !is_more => Some(self.read_ahead()?),
            (None, _) => None,
        };
        let missing = self.take_missing(&mut list)?;
        let found =
            u64::from(top.is_some() || list.entries.iter().any(|slot| slot.entry.is_some()));
        let mut roots = Roots {
            found,
            single,
            lone_dir_is_bare,
            missing,
            ..Roots::default()
        };
        roots.ids = std::mem::take(&mut list.ids);
        // The receiver counts these.
        roots.problems = std::mem::take(&mut list.problems);
        if let Some(entry) = &top {
            // The own index of a directory is the one before its list.
            let is_before = is_incremental && self.intake.reports_items();
            self.intake.shared.lock().root = list.first.saturating_add(root) - i32::from(is_before);
            let is_implied = entry.is_top_dir && !entry.has_content;
            if is_implied && self.intake.options.select.no_implied_dirs {
                self.counted.list(Kind::Dir, 0, 1);
            } else {
                let mut top = DirList::default();
                top.push_entry(b".", self.entry(entry)?);
                roots.top = Some(top);
            }
        }
        let has_content = top.as_ref().is_some_and(|top| top.has_content);
        if is_incremental {
            // The top is the first of the numbered directories.
            self.dirs.extend(top.map(|_| {
                Some(NumberedDir {
                    path: RelPath::root(),
                    is_walked: false,
                    has_content,
                })
            }));
            self.intake.inbox.set_roots(roots);
            self.pass_on_listing(RelPath::root(), list, has_content)?;
        } else {
            self.intake.inbox.set_roots(roots);
            self.pass_on_tree(list, has_content)?;
        }
        Ok(is_empty)
    }

    /// Takes the arguments that do not exist out of a list, and reports those whose directory is not in it. With
    /// incremental recursion, rsync would not notice the latter.
    fn take_missing(&self, list: &mut SortedList) -> decode_error::Result<Vec<RelPath>> {
        let select = &self.intake.options.select;
        let mut missing = list.take_missing()?;
        if missing.is_empty() {
            return Ok(missing);
        }
        let dirs = list
            .entries
            .iter()
            .filter_map(|slot| slot.entry.as_ref())
            .filter(|entry| entry.is_dir());
        let dirs: HashSet<&[u8]> = dirs.map(|entry| &entry.path[..]).collect();
        let is_absent = |dir: &RelPath| !dir.is_root() && !dirs.contains(dir.as_bytes());
        let absent: BTreeSet<_> = missing
            .iter()
            .filter_map(RelPath::parent)
            .filter(is_absent)
            .collect();
        if !select.no_inc_recursive {
            missing.retain(|path| path.parent().is_none_or(|dir| !absent.contains(&dir)));
        } else if !select.list_only {
            list.problems.extend(
                absent
                    .iter()
                    .map(|dir| Problem::absent_parent(dir.as_bytes())),
            );
        }
        if select.no_implied_dirs && !missing.is_empty() {
            list.drop_bare_leading_dirs();
        }
        Ok(missing)
    }

    /// Reads the list of the only directory before the roots are passed on. Returns whether it is empty.
    fn read_ahead(&mut self) -> decode_error::Result<bool> {
        let Ndx::List(dir) = self.indices.decode(self.input)? else {
            return Err(violation("a directory without a list"));
        };
        let list = self.list()?;
        let is_bare = list.entries.is_empty();
        self.read_ahead = Some((dir, list));
        Ok(is_bare)
    }

    /// Reads the list of a numbered directory.
    fn list_of(&mut self, dir: i32) -> decode_error::Result<()> {
        let found = usize::try_from(dir)
            .ok()
            .and_then(|at| self.dirs.get_mut(at)?.take());
        let found = found.ok_or_else(|| violation(format!("list of unknown directory {dir}")))?;
        let NumberedDir {
            path,
            is_walked,
            has_content,
        } = found;
        let list = match self.read_ahead.take() {
            Some((_, list)) => list,
            None => self.list()?,
        };
        if let Some(served) = &mut self.intake.shared.lock().served {
            served.number(dir, list.first);
        }
        // A thread may wait for that number.
        self.intake.inbox.wake();
        if !is_walked {
            if list.entries.iter().any(|slot| slot.entry.is_some()) {
                return Err(violation(format!("unrequested content of directory {dir}")));
            }
            self.dirs
                .extend(list.lost_dirs.iter().map(|_| Some(NumberedDir::left_out())));
            self.add_list(list.first, true);
            return Ok(());
        }
        self.pass_on_listing(path, list, has_content)
    }

    /// Passes on a list that is the content of one directory.
    fn pass_on_listing(
        &mut self,
        path: RelPath,
        list: SortedList,
        has_content: bool,
    ) -> decode_error::Result<()> {
        let SortedList {
            first,
            entries,
            dropped_dirs,
            lost_dirs,
            named_dirs,
            ids,
            problems,
        } = list;
        let mut listing = PendingListing::new(path, first, has_content);
        // The directories of the list by their places; `None`: it is not walked.
        let mut dirs: Vec<_> = lost_dirs.into_iter().map(|place| (place, None)).collect();
        listing.message.ids = ids;
        for problem in &problems {
            self.counted.problem(problem.weight);
        }
        listing.message.problems = problems;
        for ListSlot { place, entry } in entries {
            let Some(entry) = entry else {
                if dropped_dirs.contains(&place) {
                    dirs.push((place, None));
                }
                continue;
            };
            let (parent, name) = crate::path::split_parent(&entry.path);
            if parent != listing.message.path.as_bytes() || entry.mode == 0 {
                return Err(violation("an entry outside of its directory"));
            }
            let sub = self.sub(&entry, name, &named_dirs)?;
            let converted = self.entry(&entry)?;
            listing.push(place, name, converted, sub.as_ref().map(|sub| sub.0));
            dirs.extend(sub.map(|(_, dir)| (place, Some(dir))));
        }
        if charset::of_names().is_some() {
            dirs.sort_by_key(|(place, _)| *place);
        }
        let mut numbers = Vec::new();
        for (_, dir) in dirs {
            numbers.extend(dir.iter().map(|_| self.dirs.len() as u32));
            self.dirs
                .push(Some(dir.unwrap_or_else(NumberedDir::left_out)));
        }
        if self.intake.reports_items() {
            let first_dir = listing.message.list.len() - numbers.len();
            listing.dirs = (first_dir as u32, numbers);
        }
        let list = self.add_list(first, false);
        if charset::of_names().is_some() {
            // The receiver expects the directories in the order of their converted names. Only a batch file comes here,
            // whose lists precede all content.
            self.held.push((listing, list));
            return Ok(());
        }
        self.deliver(listing, Some(list))
    }

    /// Counts one more list. Returns its number.
    fn add_list(&self, first: i32, is_done: bool) -> usize {
        let mut shared = self.intake.shared.lock();
        shared.lists.push(ReceivedList { first, is_done });
        shared.next_index = self.next_index;
        shared.lists.len() - 1
    }

    /// Passes on a list that contains the whole tree, as one listing for each directory.
    fn pass_on_tree(&mut self, list: SortedList, has_content: bool) -> decode_error::Result<()> {
        let SortedList {
            first,
            entries,
            named_dirs,
            ..
        } = list;
        self.add_list(first, false);
        let mut listings = vec![PendingListing::new(RelPath::root(), first, has_content)];
        let mut at: HashMap<RelPath, usize> = HashMap::from([(RelPath::root(), 0)]);
        for ListSlot { place, entry } in entries {
            let Some(entry) = entry else { continue };
            let (parent, name) = crate::path::split_parent(&entry.path);
            let parent = RelPath::parse(parent)
                .ok()
                .and_then(|parent| at.get(&parent).copied());
            let parent = parent.ok_or_else(|| violation("an entry without its directory"))?;
            let sub = self.sub(&entry, name, &named_dirs)?;
            let converted = self.entry(&entry)?;
            listings[parent].push(place, name, converted, sub.as_ref().map(|sub| sub.0));
            if let Some((_, dir)) = sub.filter(|(_, dir)| dir.is_walked) {
                at.insert(dir.path.clone(), listings.len());
                listings.push(PendingListing::new(dir.path, first, dir.has_content));
            }
        }
        listings
            .into_iter()
            .try_for_each(|listing| self.deliver(listing, None))
    }

    /// Returns what a listing says about a subdirectory, and its place among the numbered directories.
    fn sub(
        &self,
        entry: &FileEntry,
        name: &[u8],
        named_dirs: &HashSet<Vec<u8>>,
    ) -> decode_error::Result<Option<(SubdirFlags, NumberedDir)>> {
        if name.is_empty() || name == b".." || name == b"." {
            return Err(violation("invalid name of an entry"));
        }
        let path =
            RelPath::parse(&entry.path).map_err(|_| violation("invalid path of an entry"))?;
        if !entry.is_dir() {
            return Ok(None);
        }
        let is_implied = entry.is_top_dir && !entry.has_content;
        let recurses = self.intake.options.select.recurse != Recurse::No
            || self.intake.options.select.relative;
        // A directory without content may have entries in a whole list. At the server, its item needs the index of its
        // own list.
        let may_have_entries = !self.intake.is_incremental() || self.intake.reports_items();
        let is_walked = (entry.has_content || is_implied || may_have_entries) && recurses;
        let is_implied = is_implied && !named_dirs.contains(&entry.path);
        Ok(Some((
            SubdirFlags {
                is_walked,
                is_implied,
                is_named: !entry.has_content,
                is_repeated: entry.is_repeated,
            },
            NumberedDir {
                path,
                is_walked,
                has_content: entry.has_content,
            },
        )))
    }

    /// Returns an entry as the receiver expects it from a sender, which applies `--chmod`.
    fn entry(&mut self, entry: &FileEntry) -> decode_error::Result<Entry> {
        let mut converted = entry_of(entry);
        if let Some(acl) = &entry.access_acl {
            let access = acl_from_wire(acl, AclOf::Entry(entry.mode))?;
            let default = entry
                .default_acl
                .as_ref()
                .map(|acl| acl_from_wire(acl, AclOf::NewEntries));
            let default = default.transpose()?.unwrap_or_default();
            if !(access.is_empty() && default.is_empty()) {
                let extra = converted.extra_mut();
                (extra.acl, extra.default_acl) = (Some(access), Some(default));
            }
        }
        if let Some(shared) = entry
            .xattrs
            .as_ref()
            .filter(|shared| !shared.list.is_empty())
        {
            let known = self.xattrs.entry(shared.number).or_insert_with(|| {
                let (xattrs, has_abbreviated) = xattrs_from_wire(shared);
                (Arc::new(xattrs), has_abbreviated)
            });
            let extra = converted.extra_mut();
            (extra.xattrs, extra.has_abbreviated) = (Some(known.0.clone()), known.1);
        }
        let chmod = &self.intake.options.preserve.chmod;
        if !chmod.is_empty() && entry.kind() != Kind::Symlink {
            converted.mode = plan::chmod::apply(converted.mode, converted.is_dir(), chmod);
        }
        Ok(converted)
    }

    fn deliver(
        &self,
        mut listing: PendingListing,
        list: Option<usize>,
    ) -> decode_error::Result<()> {
        let mut shared = self.intake.shared.lock();
        listing.message.id = shared.listings.len() as DirId;
        let has_dirs = shared.served.is_some() && !self.intake.is_incremental();
        let places = if listing.has_gaps(has_dirs) {
            Some(listing.places)
        } else {
            None
        };
        shared.listings.push(ListingIndex {
            first: listing.first,
            places,
            list,
            dirs: listing.dirs,
        });
        drop(shared);
        // The reader must not wait for the generator, which may wait for content that comes later.
        let listing_fits = self.intake.inbox.add_listing(
            Box::new(listing.message),
            listing.cost,
            self.max_alloc_bytes(),
        );
        if listing_fits {
            Ok(())
        } else {
            Err(self.lists_too_long())
        }
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
