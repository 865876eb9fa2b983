//! What an rsync that has the destination wants of the sender, until it is taken.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::proto::{DirId, FileId};
use crate::report::Tally;
use crate::session::connection::{EndHandler, unexpected, wait_for};
use crate::session::sender::ContentRequest;
use crate::walk::cold_files::COLD_FILES_MAX;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many bytes of requests may wait to be taken. Then the transport slows the peer down.
const ORDERS_MAX_BYTES: u64 = 4 << 20;
/// The same for events.
const EVENTS_MAX_BYTES: u64 = 1 << 20;

/// What the receiver wants, in its order. The thread that reads fills it; the thread that sends takes it.
///
/// What holds: there is one queue, because the receiver expects its items back in the order in which it has sent them. Reading
/// waits only for room. A listing is counted in `unfinished` from before it is sent until the receiver has ended its list.
#[derive(Default)]
pub struct DestInbox {
    state: Mutex<DestInboxState>,
    /// Signalled when something was ordered, or nothing more is.
    ordered: Condvar,
    /// Signalled for other changes.
    changed: Condvar,
    /// Signalled when something was taken, so the reading thread may go on.
    room: Condvar,
}

/// What was not taken yet, and what may still come.
#[derive(Default)]
struct DestInboxState {
    /// Each with its cost.
    orders: VecDeque<(Order, u64)>,
    order_bytes: u64,
    event_bytes: u64,
    /// The listings that the receiver has not ended, with their numbers of entries.
    unfinished: BTreeMap<DirId, u64>,
    /// All listings were sent, so the receiver may end the session.
    has_sent_all: bool,
    finished: Option<Tally>,
    failed: Option<Error>,
    /// Set when nothing more comes.
    peer_is_gone: Option<Arc<AtomicBool>>,
    /// Nothing more is taken.
    is_closed: bool,
}

/// What the receiver wants.
pub(super) enum Order {
    /// Send the content of a file.
    Send(ContentRequest),
    /// Remove a file, which has arrived.
    Remove(FileId),
    /// Remove what may have several paths in the transfer. An rsync that is the client takes reports about it only until
    /// this end has ended the last phase but the session.
    RemoveLate,
    /// End a list, of which nothing more is wanted.
    Forget(DirId),
    /// Return an item that requests no content, in its place between the contents. Its index.
    Return(i32),
    /// End a phase, or a list without a listing.
    EndPhase,
}

impl DestInbox {
    fn lock(&self) -> MutexGuard<'_, DestInboxState> {
        self.state.lock()
    }

    fn wait_on<T>(
        &self,
        changed: &Condvar,
        mut take: impl FnMut(&mut DestInboxState) -> Option<T>,
    ) -> Result<T> {
        wait_for(self.lock(), changed, |state| {
            let found = take(state).map(Ok);
            found.or_else(|| state.failed.clone().map(Err))
        })
    }

    /// Waits until there is room, or until nothing more is taken.
    fn wait_for_room(
        &self,
        mut has_room: impl FnMut(&DestInboxState) -> bool,
    ) -> Result<MutexGuard<'_, DestInboxState>> {
        let mut state = self.lock();
        while !has_room(&state) {
            if state.is_closed {
                return Err(Error::new(Exit::Stream, ""));
            }
            self.room.wait(&mut state);
        }
        Ok(state)
    }
}

/// What the reading thread puts in.
impl DestInbox {
    /// Adds an order that takes memory, once there is room.
    pub(super) fn add_request(&self, order: Order, cost: u64) -> Result<()> {
        let state = self.wait_for_room(|state| state.order_bytes < ORDERS_MAX_BYTES)?;
        self.put(state, order, cost)
    }

    /// Adds an order that takes almost no memory.
    pub(super) fn add(&self, order: Order) -> Result<()> {
        self.put(self.lock(), order, 0)
    }

    fn put(
        &self,
        mut state: MutexGuard<'_, DestInboxState>,
        order: Order,
        cost: u64,
    ) -> Result<()> {
        if state.finished.is_some() {
            return Err(unexpected("message after the end of the session"));
        }
        // The thread that lists may wait until a list is ended.
        let ends_listing = match &order {
            Order::Forget(dir) => state.unfinished.remove(dir).is_some(),
            Order::Send(_)
            | Order::Remove(_)
            | Order::RemoveLate
            | Order::Return(_)
            | Order::EndPhase => false,
        };
        state.order_bytes += cost;
        state.orders.push_back((order, cost));
        drop(state);
        self.ordered.notify_one();
        if ends_listing {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Counts an event of the receiver, once there is room.
    pub(super) fn count_event(&self, cost: u64) -> Result<()> {
        let mut state = self.wait_for_room(|state| state.event_bytes < EVENTS_MAX_BYTES)?;
        state.event_bytes += cost;
        Ok(())
    }

    /// Notes that the receiver has everything, with its counts.
    pub(super) fn end_session(&self, counted: Tally) -> Result<()> {
        let mut state = self.lock();
        if state.finished.is_some() {
            return Err(unexpected("message after the end of the session"));
        }
        if !state.has_sent_all {
            return Err(unexpected("message that a receiver must not send"));
        }
        state.finished = Some(counted);
        drop(state);
        self.ordered.notify_all();
        self.changed.notify_all();
        Ok(())
    }
}

/// What the sender does with it.
impl DestInbox {
    /// Waits for the next order. `None`: no more come.
    pub(super) fn next(&self) -> Result<Option<Order>> {
        let next = self.wait_on(&self.ordered, |state| match state.orders.pop_front() {
            None if state.finished.is_some() => Some(None),
            None => None,
            Some((order, cost)) => {
                state.order_bytes -= cost;
                Some(Some(order))
            }
        })?;
        self.room.notify_all();
        Ok(next)
    }

    /// Returns which files of a directory are wanted next, without other orders between them.
    pub(super) fn next_files(&self, dir: DirId) -> Vec<u32> {
        let state = self.lock();
        let files = state.orders.iter().map_while(|(order, _)| match order {
            Order::Send(ContentRequest { file, .. }) if file.dir == dir => Some(file.entry),
            _ => None,
        });
        files.take(COLD_FILES_MAX).collect()
    }

    /// Notes that an event was reported.
    pub(in crate::rsync) fn event_taken(&self, cost: u64) {
        self.lock().event_bytes -= cost;
        self.room.notify_all();
    }

    /// Waits while the receiver has this many entries to work on, and then counts a listing.
    pub(super) fn wait_to_list(&self, dir: DirId, entries: u64, ahead_max: u64) -> Result<()> {
        self.wait_on(&self.changed, |state| {
            // It may need the next listing to finish the oldest one.
            let oldest = state
                .unfinished
                .first_key_value()
                .map_or(0, |(_, entries)| *entries);
            let ahead = state.unfinished.values().sum::<u64>() - oldest;
            if ahead < ahead_max {
                state.unfinished.insert(dir, entries);
                Some(())
            } else {
                None
            }
        })
    }

    /// Notes that all listings are sent now.
    pub(super) fn has_sent_all(&self) {
        self.lock().has_sent_all = true;
    }

    /// Waits until the receiver has everything, and returns its counts.
    pub(super) fn finished(&self) -> Result<Tally> {
        self.wait_on(&self.changed, |state| state.finished.clone())
    }

    /// Registers a flag that is set when nothing more will come.
    pub(super) fn set_on_end(&self, peer_is_gone: Arc<AtomicBool>) {
        let mut state = self.lock();
        if state.failed.is_some() {
            peer_is_gone.store(true, Ordering::Relaxed);
        }
        state.peer_is_gone = Some(peer_is_gone);
    }

    /// Returns whether nothing more will come.
    pub(super) fn is_silent(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// Records that nothing more will come, and why.
    pub(super) fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.failed.get_or_insert(error);
        if let Some(peer_is_gone) = &state.peer_is_gone {
            peer_is_gone.store(true, Ordering::Relaxed);
        }
        drop(state);
        self.ordered.notify_all();
        self.changed.notify_all();
    }

    /// Records that nothing more is taken, so the reading thread must not wait for room.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.room.notify_all();
        self.fail(Error::new(Exit::Stream, ""));
    }
}

/// The intake of rsync's protocol puts everything into the inbox itself. Only the end comes from the session.
impl EndHandler for DestInbox {
    fn handle_end(&self, error: Error) {
        self.fail(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Basis;
    use crate::session::in_time::in_time;
    use crate::session::sender::BasisFate;

    /// A receiver that speaks rsync's protocol expects its items back in the order in which it has sent them.
    #[test]
    fn orders_stay_in_one_sequence() {
        let inbox = DestInbox::default();
        inbox.wait_to_list(7, 100, 1000).unwrap();
        let request = ContentRequest {
            file: FileId { dir: 7, entry: 0 },
            basis: Basis::None,
            fate: BasisFate::Kept,
        };
        inbox.add_request(Order::Return(4), 64).unwrap();
        inbox.add_request(Order::Send(request), 64).unwrap();
        inbox.add_request(Order::Return(5), 64).unwrap();
        inbox.add(Order::Forget(7)).unwrap();
        inbox.add(Order::EndPhase).unwrap();
        let next = || inbox.next().unwrap();
        assert!(matches!(next(), Some(Order::Return(4))));
        assert!(matches!(next(), Some(Order::Send(_))));
        assert!(matches!(next(), Some(Order::Return(5))));
        assert!(matches!(next(), Some(Order::Forget(7))));
        assert!(matches!(next(), Some(Order::EndPhase)));
        assert!(inbox.lock().unfinished.is_empty());
        assert_eq!(inbox.lock().order_bytes, 0);
    }

    /// A receiver may send any number of requests before one is answered.
    #[test]
    fn reading_waits_for_room_until_nothing_more_is_taken() {
        in_time(|| {
            let inbox = DestInbox::default();
            let add = || inbox.add_request(Order::Return(4), ORDERS_MAX_BYTES);
            // The reading thread waits many times.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        add().unwrap();
                    }
                });
                for _ in 0..999 {
                    assert!(inbox.next().unwrap().is_some());
                }
            });
            inbox.add(Order::EndPhase).unwrap();
            inbox.count_event(EVENTS_MAX_BYTES).unwrap();
            inbox.event_taken(EVENTS_MAX_BYTES);
            inbox.count_event(EVENTS_MAX_BYTES).unwrap();
            inbox.close();
            assert!(add().is_err());
            assert!(inbox.count_event(1).is_err());
        });
    }

    #[test]
    fn session_ends_after_all_listings_and_once() {
        let inbox = DestInbox::default();
        assert!(inbox.end_session(Tally::default()).is_err());
        inbox.has_sent_all();
        inbox.end_session(Tally::default()).unwrap();
        assert!(inbox.end_session(Tally::default()).is_err());
        assert!(inbox.add(Order::EndPhase).is_err());
        assert!(inbox.next().unwrap().is_none());
        inbox.finished().unwrap();
    }
}
