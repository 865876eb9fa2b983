//! The messages that a receiver gets: checks that each may come now, and queues it for the receiver's threads.

use crate::apply::ContentPiece;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Kind;
use crate::native::connection::NativeConnection;
use crate::native::digest_exchange::{Survey, SurveyStep};
use crate::native::intake::MessageHandler;
use crate::native::received_plan::ReceivedPlan;
use crate::proto::limits::DIR_MAX_BYTES;
use crate::proto::{Class, ContentDigest, DirId, DirListing, FileId, Joiner, Lane, Message, Roots};
use crate::report::Tally;
use crate::report::event::Event;
use crate::report::gauge::Gauge;
use crate::session::connection::{EndHandler, unexpected, wait_for};
use crate::session::receiver::EventSource;
use crate::session::receiver::listing_queue::ListingQueue;
use crate::walk::TaskId;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

/// The messages of a sparsync that sends, until they are taken. The thread that reads fills it and never waits: what may come is
/// bounded by the windows that were granted, and taking something grants more. The generator takes the listings, the appliers
/// the contents, one thread the survey.
///
/// What holds: listings come in the order of their ids. Unrequested contents come in the order of the files of the last listing,
/// and all of them before the next listing. On each lane one file comes at a time.
#[derive(Default)]
pub struct ReceiverInbox {
    state: Mutex<ReceiverState>,
    /// Signalled for a directory listing, the roots, or the end.
    pub(super) changed: Condvar,
    /// Signalled for a piece of an awaited file.
    pub(super) arrived: Condvar,
}

/// Messages that were not taken yet, and what may still come.
#[derive(Default)]
pub(super) struct ReceiverState {
    pub(super) roots: Option<Roots>,
    has_roots: bool,
    joiner: Joiner,
    /// The cost of the pieces of the listing that is being assembled.
    joining_cost: u64,
    pub(super) dirs: ListingQueue,
    /// The digests of the destination that are still to be sent. Listings from the sender shorten the list.
    pub(super) survey: Survey,
    /// How many directory listings have begun.
    next_dir: DirId,
    /// Files of the last listing whose unrequested data is still to come.
    unrequested: VecDeque<FileId>,
    pub(super) dirs_ended: Option<Tally>,
    /// How many first requests for files are not answered completely.
    pub(super) requested: usize,
    /// Files that were requested or come without a request, as far as they arrived.
    pub(super) files: HashMap<(Lane, FileId), FileSlot>,
    /// The file in progress on each lane.
    under_way: [Option<FileId>; 3],
    /// For the client: the events of the server.
    events: VecDeque<(Event, u64)>,
    /// We have everything, and report it.
    pub(super) has_all: bool,
    /// The digests of single files that were requested, and the answers that were not taken yet.
    pub(super) digests: HashMap<FileId, Option<Option<ContentDigest>>>,
    pub(super) bye: Option<Tally>,
    pub(super) failed: Option<Error>,
}

/// A file as far as it arrived.
#[derive(Default)]
pub(super) struct FileSlot {
    pub(super) pieces: VecDeque<(ContentPiece, u64)>,
    /// It is not needed: discard its data.
    pub(super) declined: bool,
    /// All of it has arrived.
    pub(super) is_whole: bool,
    /// The sender has opened it, so a failure is one of reading.
    pub(super) has_begun: bool,
    /// A thread waits for it.
    pub(super) awaited: bool,
    /// It was requested with the blocks of a basis.
    pub(super) has_blocks: bool,
}

impl ReceiverInbox {
    pub(super) fn lock(&self) -> MutexGuard<'_, ReceiverState> {
        self.state.lock()
    }

    /// Records that no more messages will come, and why.
    pub(super) fn handle_end(&self, error: Error) {
        let mut state = self.lock();
        if state.bye.is_none() {
            state.failed.get_or_insert(error);
        }
        drop(state);
        self.changed.notify_all();
        self.arrived.notify_all();
    }

    /// Starts the survey of the destination.
    pub(super) fn begin(&self, survey: Survey) {
        let state = &mut *self.lock();
        state.survey = survey;
        // The survey may have begun before these listings arrived.
        for listing in state.dirs.iter() {
            state.survey.handle_listing(listing);
        }
    }

    /// Returns the next step of the survey, and the directories that need not be scanned. `None`: there is nothing left
    /// to send, or the sender no longer needs it.
    pub(super) fn next(&self) -> Option<(SurveyStep, Vec<TaskId>)> {
        let mut state = self.lock();
        let is_over = state.dirs_ended.is_some() || state.failed.is_some();
        let next = if is_over { None } else { state.survey.begin() };
        next.map(|next| (next, state.survey.needless()))
    }

    pub(super) fn wait<T>(
        &self,
        mut take: impl FnMut(&mut ReceiverState) -> Option<T>,
    ) -> Result<T> {
        wait_for(self.lock(), &self.changed, |state| {
            let found = take(state).map(Ok);
            found.or_else(|| state.failed.clone().map(Err))
        })
    }
}

/// Handles the messages of a sender: queues them in [`ReceiverInbox`], and consumes those on the line that need not be kept.
pub struct ReceiverHandler<'a> {
    /// The queues.
    pub inbox: &'a ReceiverInbox,
    pub connection: &'a NativeConnection,
    /// Data may come without a request.
    pub accepts_unrequested: bool,
    /// Set if the sender is the client; otherwise it is the server, which sends its events.
    pub at_server: Option<AtServer<'a>>,
    /// Set when the sender is the client and reports that its user stopped the run.
    pub interrupted: &'a AtomicBool,
    /// Shows the totals that the sender sends, if they were requested.
    pub takes_totals: Option<&'a Gauge>,
    /// The most memory that the listing of one directory may take, in bytes; `None`: no limit.
    pub max_alloc_bytes: Option<u64>,
}

/// What a receiver at the server has besides.
pub struct AtServer<'a> {
    /// The plan that the client sends, if this run carries one out.
    pub plan: Option<&'a ReceivedPlan>,
}

impl ReceiverHandler<'_> {
    /// Returns the plan that the client sends first, until it is complete.
    fn awaited_plan(&self) -> Option<&ReceivedPlan> {
        let plan = self.at_server.as_ref()?.plan?;
        if plan.is_complete() { None } else { Some(plan) }
    }

    /// Checks that a listing may begin: the one before it must be complete.
    fn begin_dir(&self, state: &mut ReceiverState, listing: &DirListing) -> Result<()> {
        if !state.has_roots {
            return Err(unexpected("directory before the arguments"));
        }
        if listing.id != state.next_dir {
            return Err(unexpected("unexpected directory id"));
        }
        if !state.unrequested.is_empty() {
            return Err(unexpected("directory before the data of the previous one"));
        }
        if listing.with_data && !self.accepts_unrequested {
            return Err(unexpected("unrequested data"));
        }
        state.next_dir += 1;
        Ok(())
    }

    /// Checks that a file may come on a lane: it was requested, or it is next.
    fn expect(&self, state: &ReceiverState, lane: Lane, file: FileId) -> Result<()> {
        let is_expected = match lane {
            Lane::Unrequested => state.unrequested.front() == Some(&file),
            Lane::Requested | Lane::Again => state
                .files
                .get(&(lane, file))
                .is_some_and(|slot| !slot.is_whole),
        };
        if is_expected {
            Ok(())
        } else {
            Err(unexpected("data of an unrequested file"))
        }
    }

    /// Handles a piece of a file.
    fn piece(
        &self,
        state: &mut ReceiverState,
        lane: Lane,
        file: FileId,
        piece: ContentPiece,
        cost: u64,
    ) -> Result<()> {
        let is_last = piece.is_last();
        self.expect(state, lane, file)?;
        match lane {
            Lane::Unrequested if is_last => _ = state.unrequested.pop_front(),
            Lane::Requested if is_last => state.requested -= 1,
            _ => {}
        }
        let slot = match lane {
            Lane::Unrequested => state.files.entry((lane, file)).or_default(),
            Lane::Requested | Lane::Again => state
                .files
                .get_mut(&(lane, file))
                .ok_or_else(|| unexpected("data of an unrequested file"))?,
        };
        if slot.declined {
            self.connection.consumed(Class::for_lane(lane), cost);
            if is_last {
                state.files.remove(&(lane, file));
            }
            return Ok(());
        }
        slot.is_whole = is_last;
        // A small file comes in one piece, and there may be half a million of them: allocate more only when more comes.
        if is_last && slot.pieces.is_empty() {
            slot.pieces.reserve_exact(1);
        }
        slot.pieces.push_back((piece, cost));
        if slot.awaited {
            self.inbox.arrived.notify_all();
        }
        Ok(())
    }

    /// Handles the beginning or continuation of a listing.
    fn part_of_dir(&self, state: &mut ReceiverState, message: Message, cost: u64) -> Result<()> {
        if let Message::Dir(listing) = &message {
            self.begin_dir(state, listing)?;
        }
        state.joining_cost += cost;
        // What was decoded is counted once; this piece is not decoded yet.
        let held_bytes = state.joiner.held_bytes() + cost;
        if let Some(max_bytes) = self
            .max_alloc_bytes
            .filter(|&max_bytes| held_bytes > max_bytes)
        {
            return Err(too_long(state.joiner.path(), max_bytes));
        }
        match state.joiner.push(message)? {
            Some(listing) => {
                if listing.with_data {
                    let files = listing.list.entries.iter().enumerate();
                    let files = files.filter(|(_, entry)| entry.kind() == Kind::File);
                    state.unrequested.extend(files.map(|(at, _)| FileId {
                        dir: listing.id,
                        entry: at as u32,
                    }));
                }
                // The cost of its earlier pieces was consumed as they came.
                state.joining_cost = 0;
                state.survey.handle_listing(&listing);
                state.dirs.push(listing, cost);
            }
            None if state.joining_cost > DIR_MAX_BYTES as u64 => {
                return Err(unexpected("endless directory"));
            }
            // A listing may be longer than the window, and is not taken before it is complete.
            None => self.connection.consumed(Class::Dirs, cost),
        }
        Ok(())
    }

    /// Handles the beginning, a piece or the end of a file, or the report that it does not come.
    fn part_of_file(&self, state: &mut ReceiverState, message: Message, cost: u64) -> Result<()> {
        let under_way = |lane: Lane| {
            state.under_way[lane as usize].ok_or_else(|| unexpected("data outside of a file"))
        };
        let (lane, file, piece) = match message {
            Message::Whole {
                file,
                lane,
                data,
                digest,
            } => {
                if state.under_way[lane as usize].is_some() {
                    return Err(unexpected("file inside of another file"));
                }
                (lane, file, ContentPiece::Whole(data, digest))
            }
            Message::Begin { file, lane } => {
                self.expect(state, lane, file)?;
                if state.under_way[lane as usize].replace(file).is_some() {
                    return Err(unexpected("file inside of another file"));
                }
                self.connection.consumed(Class::for_lane(lane), cost);
                if lane == Lane::Unrequested {
                    state.files.entry((lane, file)).or_default();
                }
                if let Some(slot) = state.files.get_mut(&(lane, file)) {
                    slot.has_begun = true;
                }
                return Ok(());
            }
            Message::Data { lane, data } => (lane, under_way(lane)?, ContentPiece::Data(data)),
            Message::Copy {
                lane,
                offset_bytes,
                len_bytes,
            } => (
                lane,
                under_way(lane)?,
                ContentPiece::Copy {
                    offset_bytes,
                    len_bytes,
                },
            ),
            Message::End { lane, digest } => (lane, under_way(lane)?, ContentPiece::End(digest)),
            Message::Unsent {
                file,
                lane,
                problem,
            } => {
                if state.under_way[lane as usize].is_some_and(|other| other != file) {
                    return Err(unexpected("end of a file that was not begun"));
                }
                (lane, file, ContentPiece::Unsent(problem))
            }
            _ => unreachable!("the caller passes only parts of a file"),
        };
        if piece.is_last() {
            state.under_way[lane as usize] = None;
        }
        self.piece(state, lane, file, piece, cost)
    }
}

/// A directory whose listing takes more memory than `--max-alloc` permits.
fn too_long(path: &[u8], max_bytes: u64) -> Error {
    let path = if path.is_empty() {
        ".".into()
    } else {
        String::from_utf8_lossy(path)
    };
    let words =
        format!("sparsync: the listing of directory \"{path}\" exceeds --max-alloc={max_bytes}");
    Error::new(Exit::Malloc, words)
        .with_hint("use a larger --max-alloc (a daemon: RSYNC_MAX_ALLOC), or copy in parts")
}

impl EventSource for ReceiverHandler<'_> {
    fn await_event(&self) -> bool {
        let has_event = |state: &mut ReceiverState| {
            if !state.events.is_empty() {
                Some(true)
            } else if state.bye.is_some() {
                Some(false)
            } else {
                None
            }
        };
        self.inbox.wait(has_event).unwrap_or(false)
    }

    fn relay_events(&self, report: &mut dyn FnMut(&Event)) {
        loop {
            let Some((event, cost)) = self.inbox.lock().events.pop_front() else {
                return;
            };
            report(&event);
            self.connection.consumed(Class::Events, cost);
        }
    }
}

impl MessageHandler for ReceiverHandler<'_> {
    fn handle(&self, message: Message, cost: u64) -> Result<()> {
        let mut state = self.inbox.lock();
        let state = &mut *state;
        if state.bye.is_some() && !matches!(message, Message::Fail { .. }) {
            return Err(unexpected("message after the end of the session"));
        }
        match message {
            Message::Plan(piece) => {
                let plan = self.awaited_plan();
                let plan = plan.ok_or_else(|| unexpected("plan that was not announced"))?;
                plan.add(&piece)?;
                self.connection.consumed(Class::Dirs, cost);
            }
            Message::Roots(roots) if !state.has_roots => {
                if self.awaited_plan().is_some() {
                    return Err(unexpected("arguments before the end of the plan"));
                }
                state.has_roots = true;
                state.roots = Some(*roots);
            }
            Message::Totals(totals) => {
                let gauge = self.takes_totals;
                let gauge = gauge.ok_or_else(|| unexpected("totals that were not requested"))?;
                gauge.list_of_source(&totals);
                return Ok(());
            }
            message @ (Message::Dir(_) | Message::More { .. }) if state.dirs_ended.is_none() => {
                self.part_of_dir(state, message, cost)?;
            }
            Message::DirsEnd(tally) if state.dirs_ended.is_none() && state.has_roots => {
                state.joiner.end()?;
                if !state.unrequested.is_empty() {
                    return Err(unexpected(
                        "end of the listing before the data of the last directory",
                    ));
                }
                self.connection.consumed(Class::Dirs, cost);
                state.dirs_ended = Some(*tally);
            }
            // Only a thread that waits for the piece is woken: there may be a hundred thousand pieces.
            message @ (Message::Whole { .. }
            | Message::Begin { .. }
            | Message::Data { .. }
            | Message::Copy { .. }
            | Message::End { .. }
            | Message::Unsent { .. }) => return self.part_of_file(state, message, cost),
            Message::FileDigest { file, digest } => {
                let pending = state.digests.get_mut(&file).filter(|it| it.is_none());
                let pending =
                    pending.ok_or_else(|| unexpected("digest of a file that was not requested"))?;
                *pending = Some(digest);
                // There are no more of them than were requested.
                self.connection.consumed(Class::Requested, cost);
            }
            Message::Event(event) if self.at_server.is_none() => {
                state.events.push_back((event, cost))
            }
            Message::Bye(tally) if state.has_all => state.bye = Some(*tally),
            Message::Fail {
                exit,
                message,
                role,
            } => {
                if exit == Exit::Signal && self.at_server.is_some() {
                    self.interrupted.store(true, Ordering::Relaxed);
                }
                return Err(Error::of_text(exit, &message).by(role));
            }
            _ => return Err(unexpected("message that a sender must not send now")),
        }
        self.inbox.changed.notify_all();
        Ok(())
    }
}

impl EndHandler for ReceiverHandler<'_> {
    fn handle_end(&self, error: Error) {
        self.inbox.handle_end(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::DirList;
    use crate::native::digest_exchange::ScannedDir;
    use crate::path::RelPath;
    use crate::proto::DestDirState;

    /// Over a network, the first part of the survey is sent before anything else. So the first listings may arrive
    /// before the survey goes on.
    #[test]
    fn listing_that_arrives_early_cuts_the_survey_short() {
        let mut survey = Survey::new(TaskId::new(0), [7; 16]);
        assert!(matches!(survey.begin(), Some(SurveyStep::Take(_))));
        let mut list = DirList::default();
        list.push_name(b"file", false);
        let seen = DestDirState::Dir {
            digest: None,
            children: vec![1, 2],
        };
        let task_ids = vec![TaskId::new(1), TaskId::new(2)];
        let found = ScannedDir {
            task_ids,
            list: Some((RelPath::root(), list)),
            ..ScannedDir::bare(seen)
        };
        survey.took(found, &mut |_, _| ());
        let inbox = ReceiverInbox::default();
        inbox.lock().dirs.push(Box::default(), 0);
        inbox.begin(survey);
        let Some((SurveyStep::Send(DestDirState::Absent), needless)) = inbox.next() else {
            panic!("unexpected wait")
        };
        assert_eq!(needless.len(), 2);
        // Once all listings have arrived, the sender needs nothing more.
        inbox.lock().dirs_ended = Some(Tally::default());
        assert!(inbox.next().is_none());
    }
}
