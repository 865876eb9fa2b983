//! What an rsync that has the source has sent and this end has not taken yet.

#[cfg(test)]
mod tests;

use crate::apply::ContentPiece;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::FileId;
use crate::fs::root::Dir;
use crate::proto::rsync::message::Attempt;
use crate::proto::{ContentDigest, DirListing, Roots};
use crate::report::Tally;
use crate::report::event::{Event, Problem, errno_words};
use crate::rsync::source::set_aside::SetAside;
use crate::session::connection::{EndHandler, unexpected, wait_for};
use crate::session::receiver::EventSource;
use crate::session::receiver::listing_queue::ListingQueue;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// How much content of first requests may wait to be taken, in bytes. Then the transport slows the peer down.
const FIRST_MAX_BYTES: u64 = 8 << 20;
/// The same for content that was requested again.
const AGAIN_MAX_BYTES: u64 = 1 << 20;
/// The same for events.
const EVENTS_MAX_BYTES: u64 = 1 << 20;
/// How much may wait of each file that a thread is taking, although there is no room for more content, in bytes.
const TAKEN_MAX_BYTES: u64 = 1 << 20;
/// How much content may wait in memory if it has no room there and cannot be set aside, in bytes. Then the run ends.
const CROWDED_MAX_BYTES: u64 = 1 << 30;

/// What has come from the peer, until it is taken.
///
/// The thread that reads fills it, in the order of the stream: the roots, listings and contents, the end of the list, the
/// end of the session. The generator takes listings, the appliers contents, and a thread of the client events. Reading waits
/// only for room: rsync's protocol has no windows, so a peer that sends faster than this end takes is slowed down by the
/// transport. Listings never wait, because the generator may wait for content that comes behind them; their total is
/// bounded by `--max-alloc`.
///
/// Nor does content that is not being taken wait for room while a file is requested again. The second content comes behind
/// all that was requested before, and every applier may wait for one. So what has no room is set aside in the file system
/// of the destination, which is about to hold it anyway. More appliers would not do instead: hard links and later writes of
/// a file wait for its second content, and contents that they need may come before it.
pub struct SourceInbox {
    state: Mutex<SourceInboxState>,
    /// Signalled for everything but content.
    changed: Condvar,
    /// Signalled for a piece of an awaited file.
    arrived: Condvar,
    /// Signalled when something was taken, so the reading thread may go on.
    room: Condvar,
    /// The content that has no room.
    set_aside: SetAside,
    /// The peer is the server, which sends its events.
    receives_events: bool,
}

/// The content of a file as it was requested. A file that is requested again may still have the rest of its first content.
pub(super) type ContentKey = (FileId, Attempt);

/// What was not taken yet.
#[derive(Default)]
pub(super) struct SourceInboxState {
    pub(super) roots: Option<Roots>,
    pub(super) listings: ListingQueue,
    pub(super) list_ended: Option<Tally>,
    /// The requested files, as far as they arrived.
    files: HashMap<ContentKey, FileContent>,
    /// How much waits to be taken.
    waiting: WaitingBytes,
    /// How many files were requested again and have not come.
    repeated: u64,
    /// The files of which the content was wrong, and is requested again after all first requests.
    pub(super) to_repeat: Vec<FileId>,
    /// The requested values of abbreviated attributes, by the numbers of their list and in it.
    pub(super) xattrs: HashMap<(u32, u32), Arc<[u8]>>,
    events: VecDeque<(Event, u64)>,
    /// This end has everything, and reports it.
    has_all: bool,
    /// The report was sent.
    has_reported_all: bool,
    pub(super) ended: Option<Tally>,
    pub(super) failed: Option<Error>,
    /// Nothing more is taken.
    is_closed: bool,
}

/// How many bytes wait to be taken.
#[derive(Default)]
struct WaitingBytes {
    first_bytes: u64,
    again_bytes: u64,
    event_bytes: u64,
}

/// A file as far as it arrived.
#[derive(Default)]
struct FileContent {
    pieces: VecDeque<QueuedPieces>,
    /// It is not needed: discard its data.
    is_declined: bool,
    /// All of it has arrived.
    is_whole: bool,
    /// The sender has opened it, so a failure is one of reading.
    has_begun: bool,
    /// A thread waits for it.
    is_awaited: bool,
    /// A thread has begun to take it, and does nothing else until it has all or declines the rest.
    is_taken: bool,
    /// How much of it waits in memory.
    held_bytes: u64,
    /// How many bytes of the protocol it took, once all of it has arrived.
    moved_bytes: Option<u64>,
}

/// What waits of a file.
enum QueuedPieces {
    /// A piece in memory, and its cost.
    Held(ContentPiece, u64),
    /// Pieces that were set aside, none of which is the last one of the file.
    SetAside(Range<u64>),
}

/// Where there is room for a piece.
enum PieceRoom {
    Memory,
    Disk,
    /// Nowhere, until a consumer has taken something.
    Later,
}

impl SourceInboxState {
    fn place_for(&self, key: ContentKey) -> PieceRoom {
        let has_room = self.waiting.has_room_for_content(key.1);
        match self.files.get(&key) {
            Some(slot) if !has_room && !slot.is_declined => {
                if self.repeated == 0 {
                    PieceRoom::Later
                } else if !slot.is_taken {
                    // Its consumer may wait for content that was requested again and comes later.
                    PieceRoom::Disk
                } else if slot.held_bytes < TAKEN_MAX_BYTES {
                    PieceRoom::Memory
                } else {
                    PieceRoom::Later
                }
            }
            Some(_) | None => PieceRoom::Memory,
        }
    }
}

impl FileContent {
    fn push(&mut self, queued: QueuedPieces) {
        if let QueuedPieces::SetAside(next) = &queued
            && let Some(QueuedPieces::SetAside(last)) = self.pieces.back_mut()
            && last.end == next.start
        {
            last.end = next.end;
        } else {
            self.pieces.push_back(queued);
        }
    }
}

impl WaitingBytes {
    fn of_content(&mut self, attempt: Attempt) -> &mut u64 {
        match attempt {
            Attempt::First => &mut self.first_bytes,
            Attempt::Again => &mut self.again_bytes,
        }
    }

    fn content_bytes(&self) -> u64 {
        self.first_bytes + self.again_bytes
    }

    fn has_room_for_content(&self, attempt: Attempt) -> bool {
        match attempt {
            Attempt::First => self.first_bytes < FIRST_MAX_BYTES,
            Attempt::Again => self.again_bytes < AGAIN_MAX_BYTES,
        }
    }
}

impl SourceInbox {
    /// Creates it empty. `receives_events`: the peer is the server, which sends its events.
    pub fn new(receives_events: bool) -> SourceInbox {
        SourceInbox {
            state: Mutex::default(),
            changed: Condvar::new(),
            arrived: Condvar::new(),
            room: Condvar::new(),
            set_aside: SetAside::default(),
            receives_events,
        }
    }

    /// Permits that content which has no room in memory is set aside in the file system of a directory.
    pub(super) fn set_aside_in(&self, dir: &Dir) {
        self.set_aside.permit(dir);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SourceInboxState> {
        self.state.lock()
    }

    /// Wakes the threads that wait for something that is not in the inbox.
    pub(super) fn wake(&self) {
        // Under the lock, so that no thread misses it.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Waits until `take` returns a value. Fails once nothing more comes.
    pub(super) fn wait<T>(
        &self,
        mut take: impl FnMut(&mut SourceInboxState) -> Option<T>,
    ) -> Result<T> {
        wait_for(self.lock(), &self.changed, |state| {
            let found = take(state).map(Ok);
            found.or_else(|| state.failed.clone().map(Err))
        })
    }

    /// Waits until `holds` returns true. Fails once nothing more comes.
    pub(super) fn wait_until(
        &self,
        mut holds: impl FnMut(&SourceInboxState) -> bool,
    ) -> Result<()> {
        self.wait(|state| if holds(state) { Some(()) } else { None })
    }

    /// Records that nothing more will come, and why.
    pub(super) fn fail(&self, error: Error) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.failed.get_or_insert(error);
        }
        drop(state);
        self.changed.notify_all();
        self.arrived.notify_all();
    }

    /// Records that nothing more is taken, so the reading thread must not wait for room.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.room.notify_all();
        self.fail(Error::new(Exit::Stream, ""));
    }
}

/// What the reading thread puts in.
impl SourceInbox {
    pub(super) fn set_roots(&self, roots: Roots) {
        self.lock().roots = Some(roots);
        self.changed.notify_all();
    }

    /// Appends a listing. Returns whether at most `max_bytes` of listings wait.
    pub(super) fn add_listing(&self, listing: Box<DirListing>, cost: u64, max_bytes: u64) -> bool {
        let mut state = self.lock();
        if state.listings.cost.saturating_add(cost) > max_bytes {
            return false;
        }
        state.listings.push(listing, cost);
        drop(state);
        self.changed.notify_all();
        true
    }

    pub(super) fn end_list(&self, counted: Tally) {
        self.lock().list_ended = Some(counted);
        self.changed.notify_all();
    }

    /// Notes that the sender has opened a file.
    pub(super) fn begin_file(&self, key: ContentKey) {
        if let Some(slot) = self.lock().files.get_mut(&key) {
            slot.has_begun = true;
        }
    }

    /// Adds a piece of a file that is not its last one, once there is room. While a file is requested again, sets it aside
    /// if there is none.
    pub(super) fn add_piece(&self, key: ContentKey, piece: ContentPiece, cost: u64) -> Result<()> {
        let mut state = self.lock();
        loop {
            match state.place_for(key) {
                PieceRoom::Memory => {
                    return self.put(&mut state, key, QueuedPieces::Held(piece, cost));
                }
                PieceRoom::Disk => break,
                PieceRoom::Later if state.is_closed => return Err(Error::new(Exit::Stream, "")),
                PieceRoom::Later => self.room.wait(&mut state),
            }
        }
        drop(state);
        let stored = self.set_aside.store(&piece);
        let mut state = self.lock();
        let queued = match stored {
            Ok(range) => QueuedPieces::SetAside(range),
            // No file can be created there, or the file system is full.
            Err(_) if state.waiting.content_bytes() < CROWDED_MAX_BYTES => {
                QueuedPieces::Held(piece, cost)
            }
            Err(error) => return Err(lost_content(Exit::Malloc, &error)),
        };
        self.put(&mut state, key, queued)
    }

    /// Adds the end of a file, or the reason why it does not come. `moved_bytes`: how many bytes of the protocol it took.
    pub(super) fn end_file(
        &self,
        key: ContentKey,
        end: std::result::Result<ContentDigest, Problem>,
        moved_bytes: Option<u64>,
    ) -> Result<()> {
        let mut state = self.lock();
        if key.1 == Attempt::Again {
            state.repeated = state.repeated.saturating_sub(1);
        }
        if let Some(slot) = state.files.get_mut(&key) {
            slot.moved_bytes = moved_bytes;
        }
        let piece = match end {
            Ok(digest) => ContentPiece::End(digest),
            Err(problem) => ContentPiece::Unsent(Some(problem)),
        };
        self.put(&mut state, key, QueuedPieces::Held(piece, 0))
    }

    fn put(
        &self,
        state: &mut SourceInboxState,
        key: ContentKey,
        queued: QueuedPieces,
    ) -> Result<()> {
        let (is_last, cost) = match &queued {
            QueuedPieces::Held(piece, cost) => (piece.is_last(), *cost),
            QueuedPieces::SetAside(_) => (false, 0),
        };
        let slot = state
            .files
            .get_mut(&key)
            .filter(|slot| !slot.is_whole)
            .ok_or_else(|| unexpected("data of an unrequested file"))?;
        if slot.is_declined {
            if let QueuedPieces::SetAside(range) = queued {
                self.set_aside.drop_range(range);
            }
            if is_last {
                state.files.remove(&key);
            }
            return Ok(());
        }
        slot.is_whole = is_last;
        slot.held_bytes += cost;
        slot.push(queued);
        let is_awaited = slot.is_awaited;
        *state.waiting.of_content(key.1) += cost;
        // Only a thread that waits for the piece is woken: there may be a hundred thousand pieces.
        if is_awaited {
            self.arrived.notify_all();
        }
        Ok(())
    }

    /// Adds an event of the server, once there is room.
    pub(super) fn add_event(&self, event: Event, cost: u64) -> Result<()> {
        if !self.receives_events {
            return Err(unexpected("message that a sender must not send now"));
        }
        let mut state = self.lock();
        // The thread that takes them waits for no content.
        while state.waiting.event_bytes >= EVENTS_MAX_BYTES {
            if state.is_closed {
                return Err(Error::new(Exit::Stream, ""));
            }
            self.room.wait(&mut state);
        }
        state.waiting.event_bytes += cost;
        state.events.push_back((event, cost));
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Stores requested values of extended attributes, with their numbers in the list.
    pub(super) fn store_xattrs(&self, list: u32, values: Vec<(u32, Vec<u8>)>) {
        self.lock().xattrs.extend(
            values
                .into_iter()
                .map(|(number, value)| ((list, number), value.into())),
        );
        self.changed.notify_all();
    }

    /// Returns whether this end has everything.
    pub(super) fn has_all(&self) -> bool {
        self.lock().has_all
    }

    /// Waits until this end has reported that it has everything.
    pub(super) fn await_report(&self) -> Result<()> {
        self.wait_until(|state| state.has_reported_all)
    }

    /// Records the normal end of the session, with what the peer has counted since the end of the list.
    pub(super) fn end_session(&self, rest: Tally) -> Result<()> {
        let mut state = self.lock();
        if !state.has_all {
            return Err(unexpected("message that a sender must not send now"));
        }
        state.ended = Some(rest);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}

/// What the receiver does with it.
impl SourceInbox {
    /// Notes that the content of a file is requested.
    pub(super) fn expect_file(&self, key: ContentKey) {
        let mut state = self.lock();
        state.files.insert(key, FileContent::default());
        if key.1 == Attempt::Again {
            state.repeated += 1;
            drop(state);
            self.room.notify_all();
        }
    }

    /// Notes a file that cannot be requested, in place of its content.
    pub(super) fn refuse_file(&self, key: ContentKey, problem: Problem) {
        let slot = FileContent {
            pieces: [QueuedPieces::Held(ContentPiece::Unsent(Some(problem)), 0)].into(),
            is_whole: true,
            ..FileContent::default()
        };
        self.lock().files.insert(key, slot);
    }

    /// Returns whether content was requested and is not taken to its end.
    pub(super) fn is_expected(&self, key: ContentKey) -> bool {
        self.lock().files.contains_key(&key)
    }

    /// Takes the next piece of a file, and waits for it. With its last piece, returns how many bytes of the protocol the
    /// file took.
    pub(super) fn take_piece(&self, key: ContentKey) -> Result<(ContentPiece, Option<u64>)> {
        let take = |slot: &mut FileContent| {
            slot.is_taken = true;
            slot.pieces.pop_front()
        };
        let (piece, cost, rest) = match self.wait_for_file(key, take)? {
            QueuedPieces::Held(piece, cost) => (piece, cost, 0..0),
            QueuedPieces::SetAside(range) => {
                let taken = self.set_aside.take(range);
                let (piece, rest) = taken.map_err(|error| lost_content(Exit::FileIo, &error))?;
                (piece, 0, rest)
            }
        };
        let mut state = self.lock();
        if let Some(slot) = state.files.get_mut(&key) {
            slot.held_bytes -= cost;
            if !rest.is_empty() {
                slot.pieces.push_front(QueuedPieces::SetAside(rest));
            }
        }
        *state.waiting.of_content(key.1) -= cost;
        let slot = if piece.is_last() {
            state.files.remove(&key)
        } else {
            None
        };
        drop(state);
        self.room.notify_all();
        Ok((piece, slot.and_then(|slot| slot.moved_bytes)))
    }

    /// Waits for the first piece of a file. Returns why the file does not come, if the sender could not open it.
    pub(super) fn refusal(&self, key: ContentKey) -> Result<Option<Problem>> {
        self.wait_for_file(key, |slot| {
            let QueuedPieces::Held(piece, _) = slot.pieces.front()? else {
                return Some(None);
            };
            Some(match piece {
                ContentPiece::Unsent(problem) if !slot.has_begun => problem.clone(),
                ContentPiece::Unsent(_)
                | ContentPiece::Data(_)
                | ContentPiece::Copy { .. }
                | ContentPiece::Whole(..)
                | ContentPiece::End(_) => None,
            })
        })
    }

    fn wait_for_file<T>(
        &self,
        key: ContentKey,
        mut take: impl FnMut(&mut FileContent) -> Option<T>,
    ) -> Result<T> {
        let mut state = self.lock();
        loop {
            let slot = state
                .files
                .get_mut(&key)
                .ok_or_else(|| unexpected("duplicate file"))?;
            if let Some(found) = take(slot) {
                slot.is_awaited = false;
                return Ok(found);
            }
            slot.is_awaited = true;
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Discards what has arrived of a file and what will arrive.
    pub(super) fn discard(&self, key: ContentKey) {
        let mut state = self.lock();
        let Some(slot) = state.files.get_mut(&key) else {
            return;
        };
        slot.is_declined = true;
        let is_whole = slot.is_whole;
        let mut cost = 0;
        for queued in slot.pieces.drain(..) {
            match queued {
                QueuedPieces::Held(_, of_piece) => cost += of_piece,
                QueuedPieces::SetAside(range) => self.set_aside.drop_range(range),
            }
        }
        *state.waiting.of_content(key.1) -= cost;
        if is_whole {
            state.files.remove(&key);
        }
        drop(state);
        self.room.notify_all();
    }

    /// Notes that this end has everything; `send` reports it to the peer.
    pub(super) fn report_all(&self, send: impl FnOnce() -> Result<()>) -> Result<()> {
        self.lock().has_all = true;
        self.changed.notify_all();
        send()?;
        self.lock().has_reported_all = true;
        self.changed.notify_all();
        Ok(())
    }
}

/// Returns the error for content that has no room in memory and cannot be set aside, or not be read from there.
fn lost_content(exit: Exit, error: &io::Error) -> Error {
    let start = b"cannot set aside content that must wait: ".as_slice();
    let line = [start, &errno_words(error)].concat();
    Error::new(exit, line).by("receiver")
}

impl EventSource for SourceInbox {
    fn await_event(&self) -> bool {
        let has_event = |state: &mut SourceInboxState| {
            if !state.events.is_empty() {
                Some(true)
            } else if state.ended.is_some() {
                Some(false)
            } else {
                None
            }
        };
        self.wait(has_event).unwrap_or(false)
    }

    fn relay_events(&self, report: &mut dyn FnMut(&Event)) {
        loop {
            let Some((event, cost)) = self.lock().events.pop_front() else {
                return;
            };
            report(&event);
            self.lock().waiting.event_bytes -= cost;
            self.room.notify_all();
        }
    }
}

/// The intake of rsync's protocol puts everything into the inbox itself. Only the end comes from the session.
impl EndHandler for SourceInbox {
    fn handle_end(&self, error: Error) {
        self.fail(error);
    }
}
