//! The messages that a sender receives: checks that each may come now, and queues it for the sender's threads.

use crate::error::{Error, Result};
use crate::native::intake::MessageHandler;
use crate::proto::message::LARGE_TIMES_MAX;
use crate::proto::{DestDirState, DirId, Lane, Message};
use crate::report::Tally;
use crate::session::connection::{EndHandler, unexpected, wait_for};
use crate::session::sender::{BasisFate, ContentRequest, SenderJob};
use crate::walk::cold_files::COLD_FILES_MAX;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The receiver's messages, until they are taken. The thread that reads fills it. The walk takes the digests, and one thread for
/// each lane its requests, in their order.
///
/// What holds: requests of different lanes may be answered in any order, and those of one lane only in theirs, because the
/// receiver takes contents so.
#[derive(Default)]
pub struct SenderInbox {
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
    jobs: [VecDeque<(SenderJob, u64)>; 2],
    /// All listings were sent, so the receiver may report that it is done.
    pub(super) has_sent_all: bool,
    pub(super) finished: Option<Tally>,
    failed: Option<Error>,
    /// Set when no more messages will come.
    peer_is_gone: Option<Arc<AtomicBool>>,
    /// Once all listings were sent: how many reports still come that are not needed.
    pub(super) to_skip: ReportsToSkip,
}

impl SenderInbox {
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
    pub(super) fn next_job(&self, lane: Lane) -> Result<Option<(SenderJob, u64)>> {
        let at = lane_index(lane).expect("only lanes that are asked for are answered");
        self.wait_on(&self.requested[at], |state| {
            match state.jobs[at].pop_front() {
                None if state.finished.is_some() => Some(None),
                found => found.map(Some),
            }
        })
    }

    /// Returns which files of a directory are requested next on a lane, without others between them.
    pub(super) fn next_files(&self, lane: Lane, dir: DirId) -> Vec<u32> {
        let state = self.lock();
        let jobs = lane_index(lane).map(|at| &state.jobs[at]);
        let files = jobs.into_iter().flatten().map_while(|(job, _)| match job {
            SenderJob::Send(ContentRequest { file, .. }) if file.dir == dir => Some(file.entry),
            SenderJob::Send(_)
            | SenderJob::SendDigest(_)
            | SenderJob::Remove(_)
            | SenderJob::RemoveLate
            | SenderJob::Forget(_) => None,
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

    /// Waits until the receiver has everything, and returns its counts. Reports that are no longer needed may still come;
    /// `passed` is called with their cost.
    pub(super) fn finished(&self, passed: &dyn Fn(u64)) -> Result<Tally> {
        loop {
            let (cost, finished) = self.wait(|state| {
                let mut all_cost = 0;
                while !state.to_skip.is_zero()
                    && let Some((seen, cost)) = state.seen.pop_front()
                {
                    state.to_skip.count_report(&seen);
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

    fn queue(
        &self,
        mut state: MutexGuard<'_, SenderState>,
        lane: Lane,
        job: SenderJob,
        cost: u64,
    ) -> Result<()> {
        let at =
            lane_index(lane).ok_or_else(|| unexpected("request on a lane without requests"))?;
        state.jobs[at].push_back((job, cost));
        drop(state);
        // Only the thread that takes the request is woken: most messages are requests.
        self.requested[at].notify_one();
        Ok(())
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
        match message {
            Message::Digests(seen) => {
                seen.iter().try_for_each(|seen| state.large.handle(seen))?;
                // The cost of the message is consumed with its last item.
                let count = seen.len();
                let costs = (1..=count).map(|at| if at == count { cost } else { 0 });
                state.seen.extend(seen.into_iter().zip(costs));
            }
            Message::Want { file, lane, basis } => {
                let fate = BasisFate::ByOptions;
                let job = SenderJob::Send(ContentRequest { file, basis, fate });
                return self.queue(state, lane, job, cost);
            }
            Message::WantDigest(file) => {
                return self.queue(state, Lane::Requested, SenderJob::SendDigest(file), cost);
            }
            Message::Placed(file) => {
                return self.queue(state, Lane::Requested, SenderJob::Remove(file), cost);
            }
            Message::Done(dir) => {
                return self.queue(state, Lane::Requested, SenderJob::Forget(dir), cost);
            }
            Message::WantsEnd(tally) if state.has_sent_all => state.finished = Some(*tally),
            Message::Fail {
                exit,
                message,
                role,
            } => return Err(Error::of_text(exit, &message).by(role)),
            _ => return Err(unexpected("message that a receiver must not send")),
        }
        drop(state);
        self.notify_all();
        Ok(())
    }
}

impl EndHandler for SenderInbox {
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
fn lane_index(lane: Lane) -> Option<usize> {
    match lane {
        Lane::Requested => Some(0),
        Lane::Again => Some(1),
        Lane::Unrequested => None,
    }
}
