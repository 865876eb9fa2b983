//! Splits a directory listing of any length into messages of bounded length, and joins them again.

use super::limits::{DIR_ENTRIES_MAX, LINES_MAX, LIST_ENTRIES_MAX, LIST_FRAME_BYTES, XATTRS_MAX};
use super::list::likely_len;
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
}

impl ListingPiece {
    fn is_empty(&self) -> bool {
        self.list.is_empty() && self.problems.is_empty() && self.notes.is_empty()
    }

    /// Returns whether an item of this length would exceed the limits of a piece.
    fn is_full_with(&self, len_bytes: usize) -> bool {
        !self.is_empty() && self.len_bytes + len_bytes > LIST_FRAME_BYTES
    }
}

/// The length prefix of a line and its share of the count.
const LINE_OVERHEAD_BYTES: usize = 8;

// The limits on the numbers of entries, lines and attributes follow from that on the length: each of them counts for at
// least the overhead of a line, see `likely_len`. One item alone is below them; see `unfit`.
const _: () = {
    let most = LIST_FRAME_BYTES / LINE_OVERHEAD_BYTES;
    assert!(most <= LIST_ENTRIES_MAX && most <= LINES_MAX && most <= XATTRS_MAX);
};

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
        cutter.make_room(len_bytes);
        if entry.is_dir() {
            cutter.piece.subs.extend(subs.next());
        }
        cutter.piece.list.push_entry(name, entry);
    }
    // If there are more than the list has directories, encoding the piece reports it.
    cutter.piece.subs.extend(subs);
    for problem in problems {
        cutter.make_room(problem.line.len() + LINE_OVERHEAD_BYTES);
        cutter.piece.problems.push(problem);
    }
    for note in notes {
        cutter.make_room(note.len() + LINE_OVERHEAD_BYTES);
        cutter.piece.notes.push(note);
    }
    cutter.flush(true);
}

/// Returns whether one message is enough.
fn fits(listing: &DirListing) -> bool {
    let entries_len = listing
        .list
        .entries
        .iter()
        .map(|entry| likely_len(listing.list.name(entry), entry))
        .sum::<usize>();
    let lines = listing
        .problems
        .iter()
        .map(|problem| &problem.line)
        .chain(&listing.notes);
    let lines_len = lines
        .map(|line| line.len() + LINE_OVERHEAD_BYTES)
        .sum::<usize>();
    entries_len + lines_len <= LIST_FRAME_BYTES
}

struct Fragmenter<'a> {
    /// The fields that only the first message has; `None` once it was emitted.
    listing: Option<DirListing>,
    piece: ListingPiece,
    emit: &'a mut dyn FnMut(Message),
}

impl Fragmenter<'_> {
    /// Emits the current piece if an item of this length does not fit into it.
    fn make_room(&mut self, len_bytes: usize) {
        if self.piece.is_full_with(len_bytes) {
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
                if let Some(twin) = open.list.twin() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::entry::{Entry, Stat};
    use crate::path::RelPath;
    use crate::report::event::Weight;

    /// How many entries, problems and notes each message has.
    fn sizes(listing: DirListing) -> Vec<(usize, usize, usize)> {
        let mut sizes = Vec::new();
        cut(listing, &mut |message| {
            sizes.push(match message {
                Message::Dir(listing) => {
                    let DirListing {
                        list,
                        problems,
                        notes,
                        ..
                    } = *listing;
                    (list.len(), problems.len(), notes.len())
                }
                Message::More {
                    list,
                    problems,
                    notes,
                    ..
                } => (list.len(), problems.len(), notes.len()),
                other => panic!("{other:?}"),
            });
        });
        sizes
    }

    fn listing_of(names: impl Iterator<Item = String>) -> DirListing {
        let entry = Entry::from_stat(&Stat {
            mode: 0o100_644,
            ..Stat::default()
        });
        let mut list = DirList::default();
        for name in names {
            list.push_entry(name.as_bytes(), entry.clone());
        }
        DirListing {
            list: Arc::new(list),
            ..DirListing::default()
        }
    }

    fn with_notes(notes: Vec<Vec<u8>>) -> DirListing {
        DirListing {
            notes,
            ..listing_of(std::iter::empty())
        }
    }

    /// Half of the longest piece, as a line.
    fn half() -> Vec<u8> {
        vec![b'n'; LIST_FRAME_BYTES / 2 - LINE_OVERHEAD_BYTES]
    }

    #[test]
    fn pieces_are_as_long_as_they_may_be() {
        let longer = [half(), b"n".to_vec()].concat();
        assert_eq!(sizes(with_notes(vec![half(); 2])), [(0, 0, 2)]);
        assert_eq!(sizes(with_notes(vec![half(); 3])), [(0, 0, 2), (0, 0, 1)]);
        let split = with_notes(vec![half(), longer.clone()]);
        assert_eq!(sizes(split), [(0, 0, 1), (0, 0, 1)]);
        let short = with_notes(vec![b"n".to_vec(); LIST_FRAME_BYTES / 9 + 1]);
        assert_eq!(sizes(short), [(0, 0, LIST_FRAME_BYTES / 9), (0, 0, 1)]);

        let problems = vec![half(), half(), half()]
            .into_iter()
            .map(|line| Problem {
                weight: Weight::Failed,
                line,
                is_of_peer: false,
            });
        let problems = DirListing {
            problems: problems.collect(),
            ..with_notes(Vec::new())
        };
        assert_eq!(sizes(problems), [(0, 2, 0), (0, 1, 0)]);

        // An entry takes 48 bytes and its name.
        let names = |count| listing_of((0..count).map(|at| format!("{at:016}")));
        assert_eq!(sizes(names(4096)), [(4096, 0, 0)]);
        assert_eq!(sizes(names(4097)), [(4096, 0, 0), (1, 0, 0)]);
    }

    #[test]
    fn item_that_is_longer_than_a_piece_has_its_own() {
        let long = vec![b'n'; LIST_FRAME_BYTES];
        assert_eq!(sizes(with_notes(vec![long.clone()])), [(0, 0, 1)]);
        let three = with_notes(vec![b"a".to_vec(), long, b"b".to_vec()]);
        assert_eq!(sizes(three), [(0, 0, 1), (0, 0, 1), (0, 0, 1)]);
    }

    #[test]
    fn incomplete_directory_is_named_and_counted() {
        let mut joiner = Joiner::default();
        assert_eq!((joiner.path(), joiner.held_bytes()), (&b""[..], 0));
        let listing = DirListing {
            path: RelPath::parse(b"d/e").unwrap(),
            more: true,
            ..listing_of(["a".to_owned(), "b".to_owned()].into_iter())
        };
        let held_bytes = listing.list.held_bytes();
        assert!(held_bytes > 1);
        joiner.push(Message::Dir(Box::new(listing))).unwrap();
        assert_eq!(
            (joiner.path(), joiner.held_bytes()),
            (&b"d/e"[..], held_bytes)
        );
    }
}
