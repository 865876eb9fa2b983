//! Splits a directory listing of any length into messages of bounded length, and joins them again.

use super::limits::{DIR_ENTRIES_MAX, LINES_MAX, LIST_ENTRIES_MAX, LIST_FRAME_BYTES, XATTRS_MAX};
use super::list::{likely_len, twin};
use super::message::{DirListing, Message, SubdirFlags};
use super::message_kinds::name_of;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::{DirList, order};
use crate::report::event::Problem;
use std::sync::Arc;

/// The content of one listing message.
#[derive(Default)]
struct ListingPiece {
    list: DirList,
    subs: Vec<SubdirFlags>,
    problems: Vec<Problem>,
    notes: Vec<Vec<u8>>,
    /// Approximate length on the wire.
    len_bytes: usize,
    /// Number of extended attributes of all entries.
    xattrs: usize,
}

impl ListingPiece {
    fn is_empty(&self) -> bool {
        self.list.is_empty() && self.problems.is_empty() && self.notes.is_empty()
    }

    /// Returns whether an item of this length, with so many attributes, would exceed the limits of a piece.
    fn is_full_with(&self, len_bytes: usize, xattrs: usize) -> bool {
        !self.is_empty()
            && (self.len_bytes + len_bytes > LIST_FRAME_BYTES
                || self.list.len() >= LIST_ENTRIES_MAX
                || self.problems.len().max(self.notes.len()) >= LINES_MAX
                || self.xattrs + xattrs > XATTRS_MAX)
    }
}

/// The length prefix of a line and its share of the count.
const LINE_OVERHEAD_BYTES: usize = 8;

/// Emits a directory listing as one [`Message::Dir`] and, if it is long, as many [`Message::More`] as needed.
///
/// `listing.list` must be sorted and `listing.subs` must have one value for each directory in it; `listing.more` is ignored.
/// Entries, problems and notes each keep their order.
pub fn cut(mut listing: DirListing, emit: &mut dyn FnMut(Message)) {
    if fits(&listing) {
        listing.more = false;
        return emit(Message::Dir(Box::new(listing)));
    }
    let mut whole = Arc::unwrap_or_clone(std::mem::take(&mut listing.list));
    let mut subs = std::mem::take(&mut listing.subs).into_iter();
    let problems = std::mem::take(&mut listing.problems);
    let notes = std::mem::take(&mut listing.notes);
    let mut cutter = Fragmenter {
        listing: Some(listing),
        piece: ListingPiece::default(),
        emit,
    };
    for entry in std::mem::take(&mut whole.entries) {
        let name = whole.name(&entry);
        let len_bytes = likely_len(name, &entry);
        let xattrs = entry.xattrs().len();
        cutter.make_room(len_bytes, xattrs);
        if entry.is_dir() {
            cutter.piece.subs.extend(subs.next());
        }
        cutter.piece.list.push_entry(name, entry);
        cutter.piece.xattrs += xattrs;
    }
    // If there are more than the list has directories, encoding the piece reports it.
    cutter.piece.subs.extend(subs);
    for problem in problems {
        cutter.make_room(problem.line.len() + LINE_OVERHEAD_BYTES, 0);
        cutter.piece.problems.push(problem);
    }
    for note in notes {
        cutter.make_room(note.len() + LINE_OVERHEAD_BYTES, 0);
        cutter.piece.notes.push(note);
    }
    cutter.flush(true);
}

/// Returns whether one message is enough.
fn fits(listing: &DirListing) -> bool {
    let entries = listing.list.entries.iter();
    let entries = entries.map(|entry| {
        (
            likely_len(listing.list.name(entry), entry),
            entry.xattrs().len(),
        )
    });
    let (entries_len, xattrs) = entries.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let lines = listing
        .problems
        .iter()
        .map(|problem| &problem.line)
        .chain(&listing.notes);
    let lines_len = lines
        .map(|line| line.len() + LINE_OVERHEAD_BYTES)
        .sum::<usize>();
    entries_len + lines_len <= LIST_FRAME_BYTES
        && listing.list.len() <= LIST_ENTRIES_MAX
        && xattrs <= XATTRS_MAX
}

struct Fragmenter<'a> {
    /// The fields that only the first message has; `None` once it was emitted.
    listing: Option<DirListing>,
    piece: ListingPiece,
    emit: &'a mut dyn FnMut(Message),
}

impl Fragmenter<'_> {
    /// Emits the current piece if an item of this length does not fit into it.
    fn make_room(&mut self, len_bytes: usize, xattrs: usize) {
        if self.piece.is_full_with(len_bytes, xattrs) {
            self.flush(false);
        }
        self.piece.len_bytes += len_bytes;
    }

    fn flush(&mut self, last: bool) {
        let ListingPiece {
            list,
            subs,
            problems,
            notes,
            ..
        } = std::mem::take(&mut self.piece);
        (self.emit)(match self.listing.take() {
            Some(listing) => {
                let list = Arc::new(list);
                Message::Dir(Box::new(DirListing {
                    list,
                    subs,
                    problems,
                    notes,
                    more: !last,
                    ..listing
                }))
            }
            None => Message::More {
                list,
                subs,
                problems,
                notes,
                last,
            },
        });
    }
}

/// Joins directory listings that arrive in pieces.
#[derive(Default)]
pub struct Joiner {
    open: Option<Box<DirListing>>,
}

impl Joiner {
    /// The path of the directory that is not complete yet; empty if there is none.
    pub fn path(&self) -> &[u8] {
        self.open
            .as_ref()
            .map_or(b"", |listing| listing.path.as_bytes())
    }

    /// The memory that the entries of this directory take, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.open
            .as_ref()
            .map_or(0, |listing| listing.list.held_bytes())
    }

    /// Checks at [`Message::DirsEnd`] that no listing is incomplete.
    pub fn end(&self) -> Result<()> {
        match &self.open {
            None => Ok(()),
            Some(open) => Err(refuse("DirsEnd", &unfinished(open))),
        }
    }

    /// Adds the next decoded [`Message::Dir`] or [`Message::More`]. Returns the listing once it is complete, with
    /// `more` unset.
    ///
    /// Fails if pieces are out of order or do not fit together, and on any other message.
    pub fn push(&mut self, message: Message) -> Result<Option<Box<DirListing>>> {
        let name = name_of(&message);
        match (message, self.open.take()) {
            (Message::Dir(listing), None) if !listing.more => Ok(Some(listing)),
            (Message::Dir(listing), None) => {
                self.open = Some(listing);
                Ok(None)
            }
            (Message::Dir(_), Some(open)) => Err(refuse(name, &unfinished(&open))),
            (
                Message::More {
                    list,
                    subs,
                    problems,
                    notes,
                    last,
                },
                Some(mut open),
            ) => {
                if let Some(fault) = fault_behind(&open.list, &list) {
                    return Err(refuse(name, fault));
                }
                Arc::make_mut(&mut open.list).append(list);
                open.subs.extend(subs);
                open.problems.extend(problems);
                open.notes.extend(notes);
                if !last {
                    self.open = Some(open);
                    return Ok(None);
                }
                if let Some(twin) = twin(&open.list) {
                    return Err(refuse(
                        name,
                        &format!("name {:?} is duplicated", String::from_utf8_lossy(twin)),
                    ));
                }
                open.more = false;
                Ok(Some(open))
            }
            (Message::More { .. }, None) => Err(refuse(name, "no directory to continue")),
            _ => Err(refuse(name, "not part of a directory")),
        }
    }
}

fn unfinished(open: &DirListing) -> String {
    format!(
        "it comes before the end of directory {:?}",
        String::from_utf8_lossy(open.path.as_bytes())
    )
}

fn refuse(message: &str, why: &str) -> Error {
    Error::new(
        Exit::Protocol,
        format!("sparsync: protocol error: invalid message {message}: {why}"),
    )
}

/// Returns what is wrong with appending `further` to `list`, if anything; both are sorted.
fn fault_behind(list: &DirList, further: &DirList) -> Option<&'static str> {
    if list.len() + further.len() > DIR_ENTRIES_MAX {
        return Some("the directory exceeds DIR_ENTRIES_MAX");
    }
    let last = list.entries.last()?;
    let first = further.entries.first()?;
    let ordered = order::compare(
        (list.name(last), last.is_dir()),
        (further.name(first), first.is_dir()),
    );
    if ordered.is_lt() {
        return None;
    }
    Some("its entries do not follow the previous ones in sort order")
}
