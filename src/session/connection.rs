//! One end of a connection: an output buffer that one thread writes, and a thread that reads.
//!
//! A caller that sends waits for room in the buffer. What is sent is encoded by an [`WireOutput`], which also writes what the
//! connection sends by itself. A protocol whose messages also wait for windows of the peer has its own ways to send, which use
//! [`Connection::lock`] and [`Connection::await_room`].

mod profile;
mod reading;
mod writing;

pub use self::profile::Wait;
pub use self::reading::{EndHandler, Intake, READ_BYTES, cannot_read, lost, unexpected};

use self::profile::Profile;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::session::minimum_rate::MinimumRate;
use crate::transport::LinkBytes;
use crate::transport::compression::AsItIs;
use crate::transport::link::Moved;
use crate::work::clock::Since;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a connection sends, in the words of its protocol, and what that protocol needs to know for it. The threads that send
/// change it, one at a time, under the lock of the connection, so bytes are appended in the order of the calls.
pub trait WireOutput: Send + 'static {
    /// The buffered bytes at which the writer stops gathering and writes.
    const GATHERED_BYTES: usize;
    /// The size of the output buffer at which senders wait for the writer.
    const BUFFER_MAX_BYTES: usize;

    /// Appends what shows that this end works, although it has nothing to send.
    fn keepalive(&mut self, out: &mut Vec<u8>);

    /// Appends the error with which this end gives up, if the peer learns of it.
    fn failure(&mut self, error: &Error, out: &mut Vec<u8>);

    /// Appends what the protocol says of its windows at this moment, before the buffer is written.
    fn windows(&mut self, _out: &mut Vec<u8>) {}
}

/// When something may be sent by [`Connection::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Once the buffer has room.
    Ordinary,
    /// The same; also while this end stops the run.
    Report,
    /// At once: other threads wait for the caller.
    Urgent,
}

/// One end of a connection.
pub struct Connection<O: WireOutput> {
    state: Mutex<ConnectionState<O>>,
    /// Signals that there is something to write, or that the connection is shut.
    to_write: Condvar,
    /// Signals that the buffer has room, a window has opened, or the connection is shut.
    room: Condvar,
    /// Bytes written and read, as messages.
    traffic: LinkBytes,
    profile: Mutex<Profile>,
    /// Set while the data being written must not be compressed.
    pub as_it_is: AsItIs,
    moved: Moved,
    /// The check of what arrives.
    pub rate: Arc<MinimumRate>,
    /// The timeout that a daemon has announced, in seconds; 0: none.
    adopted_secs: AtomicU32,
}

/// What the threads that send share, and the thread that writes.
pub struct ConnectionState<O> {
    /// What the protocol knows.
    pub output: O,
    /// What was sent and not written yet.
    pub buffer: Vec<u8>,
    /// The ranges of the buffer that are sent uncompressed, in order.
    pub as_it_is: Vec<Range<usize>>,
    /// Why nothing more can be sent. An empty message means a normal end.
    shut: Option<Error>,
    /// Write what is buffered, then end.
    ending: bool,
    /// The peer has stopped reading: it has given up or closed the connection.
    pub has_stopped_reading: bool,
    /// The error of the last write to the peer.
    write_error: Option<Error>,
    /// Whether the peer had closed its end.
    has_hung_up: bool,
    last_write: Since,
    /// The writer waits for the first message after a pause.
    writer_sleeps: bool,
}

impl<O: WireOutput> ConnectionState<O> {
    /// Fails if nothing more can be sent.
    pub fn check(&self) -> Result<()> {
        self.shut.clone().map_or(Ok(()), Err)
    }

    /// Whether an event or item may still be sent while this end stops the run: its user has stopped it, or the peer exceeds a
    /// limit of this end. The peer must be reading, and there must be room: nothing waits for room any more.
    pub fn may_still_report(&self) -> bool {
        let is_own_decision = |error: &Error| matches!(error.exit, Exit::Signal | Exit::Malloc);
        let has_stopped =
            self.shut.as_ref().is_some_and(is_own_decision) && !self.has_stopped_reading;
        has_stopped && self.buffer.len() < O::BUFFER_MAX_BYTES && !self.ending
    }
}

/// Waits until `take` returns a value for the locked state. Whatever changes the state must notify `changed`.
pub fn wait_for<S, T>(
    mut state: MutexGuard<'_, S>,
    changed: &Condvar,
    mut take: impl FnMut(&mut S) -> Option<T>,
) -> T {
    loop {
        if let Some(found) = take(&mut state) {
            return found;
        }
        changed.wait(&mut state);
    }
}

impl<O: WireOutput> Connection<O> {
    /// Creates the connection for a new session.
    pub fn of(output: O) -> Connection<O> {
        Connection {
            state: Mutex::new(ConnectionState {
                output,
                buffer: Vec::new(),
                as_it_is: Vec::new(),
                shut: None,
                ending: false,
                has_stopped_reading: false,
                write_error: None,
                has_hung_up: false,
                last_write: Since::now(),
                writer_sleeps: false,
            }),
            to_write: Condvar::new(),
            room: Condvar::new(),
            traffic: Default::default(),
            profile: Mutex::new(Profile::new()),
            as_it_is: AsItIs::default(),
            moved: Moved::default(),
            rate: Arc::default(),
            adopted_secs: AtomicU32::new(0),
        }
    }

    /// Adopts the timeout of a daemon, so that keepalives are sent well before it.
    pub fn adopt_timeout(&self, secs: u32) {
        self.adopted_secs.store(secs, Ordering::Relaxed);
        // Under the lock, so that the writer does not miss it.
        let _state = self.state.lock();
        self.to_write.notify_all();
    }

    /// Returns the connection for a link that reports in `moved` when it moves.
    pub fn over(self, moved: Moved) -> Connection<O> {
        Connection { moved, ..self }
    }

    /// Returns the connection of a run with this `--timeout`; 0: none.
    pub fn timing_out(self, timeout_secs: u32) -> Connection<O> {
        Connection {
            rate: Arc::new(MinimumRate::new(timeout_secs)),
            ..self
        }
    }

    /// Sends what `encode` appends to the buffer. Only for protocols without windows, or for what has none.
    pub fn encode(
        &self,
        urgency: Urgency,
        encode: impl FnOnce(&mut O, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Err(error) = state.check()
                && !(urgency == Urgency::Report && state.may_still_report())
            {
                return Err(error);
            }
            if urgency == Urgency::Urgent || state.buffer.len() < O::BUFFER_MAX_BYTES {
                break;
            }
            self.await_room(&mut state, Wait::Buffer);
        }
        let ConnectionState { output, buffer, .. } = &mut *state;
        let before = buffer.len();
        encode(output, buffer)?;
        self.wake_writer(&state, before);
        Ok(())
    }

    /// Locks what the threads that send share.
    pub fn lock(&self) -> MutexGuard<'_, ConnectionState<O>> {
        self.state.lock()
    }

    /// Waits until something has changed for the threads that send: the buffer has room, a window has opened, or the
    /// connection is shut. `cause` is what the caller waits for.
    pub fn await_room(&self, state: &mut MutexGuard<'_, ConnectionState<O>>, cause: Wait) {
        let waits = Since::now();
        self.room.wait(state);
        self.note_wait(cause, waits);
    }

    /// Wakes the threads that wait in [`Connection::await_room`].
    pub fn wake_senders(&self) {
        self.room.notify_all();
    }

    /// Wakes the writer, which has something to write beside the buffer.
    pub fn wake_writer_for_windows(&self) {
        self.to_write.notify_one();
    }

    /// Records a message that was sent.
    pub fn note_sent(&self, name: &'static str, len_bytes: u64) {
        self.profile.lock().sent(name, len_bytes);
    }

    /// Records a message that was received.
    pub fn note_received(&self, name: &'static str, len_bytes: u64) {
        self.profile.lock().received(name, len_bytes);
    }

    /// Records bytes that were read, and for how long this thread waited for them.
    pub fn note_read(&self, bytes: u64, waits: Since) {
        self.note_wait(Wait::Reading, waits);
        self.traffic.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the costs of the session so far, as a table for `end`.
    pub fn cost(&self, end: &str) -> Vec<String> {
        self.profile
            .lock()
            .table(end, self.traffic.counts(), self.moved.since())
    }

    /// Wakes the writer after the buffer has grown from a length. It takes the whole buffer: if it sleeps, it waits for the
    /// first byte, otherwise for enough bytes.
    pub fn wake_writer(&self, state: &ConnectionState<O>, before: usize) {
        let is_enough = before < O::GATHERED_BYTES && state.buffer.len() >= O::GATHERED_BYTES;
        if before == 0 && state.writer_sleeps || is_enough {
            self.to_write.notify_one();
        }
    }

    /// Records a wait.
    fn note_wait(&self, cause: Wait, waits: Since) {
        let has_moved = self.moved.since().is_some();
        self.profile.lock().waited[usize::from(has_moved)][cause as usize] += waits.elapsed();
    }

    /// Ends sending. Threads that wait for room get this error.
    pub fn shut(&self, error: Error) {
        self.state.lock().shut.get_or_insert(error);
        self.room.notify_all();
        self.to_write.notify_all();
    }

    /// Returns the error of the last write, if it failed.
    pub fn write_error(&self) -> Option<Error> {
        self.state.lock().write_error.clone()
    }

    /// Fails if the last messages could not be written, unless the peer had closed its end.
    pub fn check_written(&self) -> Result<()> {
        let state = self.state.lock();
        match &state.write_error {
            Some(error) if !state.has_hung_up => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Sends the reason why the run ends, after everything that is buffered, and regardless of room. Returns `false`
    /// without sending anything if the peer failed first or is gone.
    pub fn fail(&self, error: &Error) -> bool {
        let mut state = self.state.lock();
        if state.has_stopped_reading || state.ending {
            return false;
        }
        let ConnectionState { output, buffer, .. } = &mut *state;
        output.failure(error, buffer);
        drop(state);
        self.end();
        true
    }

    /// Lets the writer end once everything is written.
    pub fn end(&self) {
        self.state.lock().ending = true;
        self.room.notify_all();
        self.to_write.notify_all();
    }
}
