//! The messages that a sender receives: checks that each may come now, and queues it for the sender's threads.

use crate::error::{Error, Result};
use crate::proto::message::LARGE_TIMES_MAX;
use crate::proto::{Basis, DestDirState, DirId, FileId, Lane, Message};
use crate::report::Tally;
use crate::session::connection::{MessageHandler, unexpected, wait_for};
use crate::walk::cold_files::COLD_FILES_MAX;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The receiver's messages, until they are taken.
#[derive(Default)]
pub struct SenderInbox {
    /// The receiver is a stock rsync.
    is_stock: bool,
    /// How many entries a stock rsync is sent beyond those that it works on.
    listed_ahead: u64,
    state: Mutex<SenderState>,
    /// Signals to the thread of each lane that a request has come, or that no more come.
    requested: [Condvar; 2],
    /// Signals other changes.
    changed: Condvar,
}

/// Messages that were not taken yet, and what may still come.
#[derive(Default)]
pub(super) struct SenderState {
    pub(super) seen: VecDeque<(DestDirState, u64)>,
    /// The last [`DestDirState::Large`] reports on the current directory.
    large: Larger,
    /// One queue for each lane of requests: [`Lane::Requested`] and [`Lane::Again`].
    pub(super) orders: [VecDeque<(Order, u64)>; 2],
    /// All listings were sent, so the receiver may report that it is done.
    pub(super) has_sent_all: bool,
    pub(super) finished: Option<Tally>,
    failed: Option<Error>,
    /// Set when no more messages will come.
    peer_is_gone: Option<Arc<AtomicBool>>,
    /// The listings that a stock rsync has not finished, with their numbers of entries.
    unfinished: BTreeMap<DirId, u64>,
}

/// As many as a sending rsync keeps ahead.
const LISTED_AHEAD: u64 = 1000;

/// A request of the receiver.
pub(super) enum Order {
    Send(FileId, Basis),
    Remove(FileId),
    Forget(DirId),
    /// Return an item without content, as a stock rsync expects it.
    Confirm(FileId),
}

impl SenderInbox {
    /// Creates the inbox of a sender whose receiver is a stock rsync.
    /// `is_incremental`: it reports which listings are finished.
    pub fn of_stock(is_incremental: bool) -> SenderInbox {
        let listed_ahead = if is_incremental {
            LISTED_AHEAD
        } else {
            u64::MAX
        };
        SenderInbox {
            is_stock: true,
            listed_ahead,
            ..SenderInbox::default()
        }
    }

    fn notify_all(&self) {
        for changed in self.requested.iter().chain([&self.changed]) {
            changed.notify_all();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SenderState> {
        self.state.lock()
    }

    /// Waits until `take` returns a value, or returns an error if the receiver's messages have ended.
    pub(super) fn wait<T>(&self, take: impl FnMut(&mut SenderState) -> Option<T>) -> Result<T> {
        self.wait_on(&self.changed, take)
    }

    /// Waits for the next request on a lane, with its cost. `None`: no more come.
    pub(super) fn next_order(&self, at: usize) -> Result<Option<(Order, u64)>> {
        self.wait_on(&self.requested[at], |state| {
            match state.orders[at].pop_front() {
                None if state.finished.is_some() => Some(None),
                found => found.map(Some),
            }
        })
    }

    /// Returns which files of a directory are requested next on a lane, without others between them.
    pub(super) fn next_files(&self, at: usize, dir: DirId) -> Vec<u32> {
        let state = self.lock();
        let files = state.orders[at].iter().map_while(|(order, _)| match order {
            Order::Send(file, _) if file.dir == dir => Some(file.entry),
            _ => None,
        });
        files.take(COLD_FILES_MAX).collect()
    }

    fn wait_on<T>(
        &self,
        changed: &Condvar,
        mut take: impl FnMut(&mut SenderState) -> Option<T>,
    ) -> Result<T> {
        wait_for(self.lock(), changed, |state| {
            let found = take(state).map(Ok);
            found.or_else(|| state.failed.clone().map(Err))
        })
    }

    /// Waits while a stock rsync has enough entries to work on, as its own sender does, and then counts a listing.
    pub(super) fn wait_to_list(&self, dir: DirId, entries: u64) -> Result<()> {
        self.wait(|state| {
            // It may need the next listing to finish the oldest one.
            let oldest = state
                .unfinished
                .first_key_value()
                .map_or(0, |(_, entries)| *entries);
            let ahead = state.unfinished.values().sum::<u64>() - oldest;
            (ahead < self.listed_ahead).then(|| state.unfinished.insert(dir, entries))
        })?;
        Ok(())
    }

    /// Registers a flag that is set when no more messages will come.
    pub(super) fn set_on_end(&self, peer_is_gone: Arc<AtomicBool>) {
        let mut state = self.lock();
        if state.failed.is_some() {
            peer_is_gone.store(true, Ordering::Relaxed);
        }
        state.peer_is_gone = Some(peer_is_gone);
    }

    /// Returns whether no more messages will come.
    pub(super) fn is_silent(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// Waits until the receiver has everything, and returns its counts. Digests of `to_skip` directories may still come
    /// and are no longer needed; `passed` is called with their cost.
    pub(super) fn finished(
        &self,
        mut to_skip: ReportsToSkip,
        passed: &dyn Fn(u64),
    ) -> Result<Tally> {
        loop {
            let (cost, finished) = self.wait(|state| {
                let mut all_cost = 0;
                while !to_skip.is_zero()
                    && let Some((seen, cost)) = state.seen.pop_front()
                {
                    to_skip.count_report(&seen);
                    all_cost += cost;
                }
                (all_cost > 0 || state.finished.is_some())
                    .then(|| (all_cost, state.finished.clone()))
            })?;
            match finished {
                Some(tally) => return Ok(tally),
                None => passed(cost),
            }
        }
    }
}

/// How many directories the receiver still reports before the next one that matters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReportsToSkip(pub(super) usize);

impl ReportsToSkip {
    pub(super) fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Counts the report on one directory.
    pub(super) fn count_report(&mut self, seen: &DestDirState) {
        match seen {
            DestDirState::Absent => self.0 -= 1,
            // Another report on the same directory follows.
            DestDirState::Large(_) => {}
            DestDirState::Dir { children, .. } => self.0 = self.0 - 1 + children.len(),
        }
    }
}

/// The last reported size of a large directory, and how often it was reported.
#[derive(Default)]
struct Larger {
    entries: u64,
    times: u32,
}

impl Larger {
    fn handle(&mut self, seen: &DestDirState) -> Result<()> {
        let DestDirState::Large(entries) = *seen else {
            *self = Larger::default();
            return Ok(());
        };
        if self.times == LARGE_TIMES_MAX || self.times > 0 && entries <= self.entries {
            return Err(unexpected(
                "size of a large directory reported without growth",
            ));
        }
        *self = Larger {
            entries,
            times: self.times + 1,
        };
        Ok(())
    }
}

impl MessageHandler for SenderInbox {
    fn handle(&self, message: Message, cost: u64) -> Result<()> {
        let mut state = self.lock();
        if state.finished.is_some() && !matches!(message, Message::Fail { .. }) {
            return Err(unexpected("message after the end of the session"));
        }
        let lane = match message {
            Message::Digests(seen) => {
                seen.iter().try_for_each(|seen| state.large.handle(seen))?;
                // The cost of the message is consumed with its last item.
                let count = seen.len();
                let costs = (1..=count).map(|at| if at == count { cost } else { 0 });
                state.seen.extend(seen.into_iter().zip(costs));
                None
            }
            Message::Want {
                file,
                lane: Lane::Early,
                ..
            } if self.is_stock => {
                state.orders[0].push_back((Order::Confirm(file), cost));
                Some(0)
            }
            Message::Want { file, lane, basis } => {
                let at = lane_index(lane)
                    .ok_or_else(|| unexpected("request on a lane without requests"))?;
                state.orders[at].push_back((Order::Send(file, basis), cost));
                Some(at)
            }
            Message::Placed(file) => {
                state.orders[0].push_back((Order::Remove(file), cost));
                Some(0)
            }
            Message::Done(dir) => {
                state.orders[0].push_back((Order::Forget(dir), cost));
                state.unfinished.remove(&dir).is_none().then_some(0)
            }
            Message::WantsEnd(tally) if state.has_sent_all => {
                state.finished = Some(*tally);
                None
            }
            Message::Fail {
                exit,
                message,
                role,
            } => return Err(Error::of_text(exit, &message).by(role)),
            _ => return Err(unexpected("message that a receiver must not send")),
        };
        drop(state);
        // Only the thread that takes a request is woken: most messages are requests.
        match lane {
            Some(at) => {
                self.requested[at].notify_one();
            }
            None => self.notify_all(),
        }
        Ok(())
    }

    fn handle_end(&self, error: Error) {
        let mut state = self.lock();
        state.failed.get_or_insert(error);
        if let Some(peer_is_gone) = &state.peer_is_gone {
            peer_is_gone.store(true, Ordering::Relaxed);
        }
        drop(state);
        self.notify_all();
    }
}

/// Returns the index of the request queue for a lane, or `None` if nothing is requested on it.
pub(super) fn lane_index(lane: Lane) -> Option<usize> {
    match lane {
        Lane::Requested => Some(0),
        Lane::Again => Some(1),
        Lane::Early => None,
    }
}
