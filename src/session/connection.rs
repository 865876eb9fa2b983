//! The message layer of a connection: sends and receives messages over a link within the flow-control windows of the
//! peer.
//!
//! One thread writes, one reads. A caller that sends waits for its window and for room in the output buffer. The reader
//! never waits for other threads. So the peer can send no more than it was granted, and the two ends cannot deadlock.

mod profile;
mod reading;
mod writing;

pub use self::reading::{Intake, MessageHandler, cannot_read, undecodable, unexpected};

use self::profile::Profile;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::proto::rsync::message::{Attempt, RsyncMessage};
use crate::proto::{Class, Encoder, Lane, Message, class_of, name_of};
use crate::session::flow_control::{Credit, ReceiveWindow};
use crate::session::minimum_rate::MinimumRate;
use crate::transport::LinkBytes;
use crate::transport::compression::AsItIs;
use crate::transport::link::Moved;
use crate::transport::window_limit::Ceiling;
use crate::work::clock::Since;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The size of the output buffer at which senders wait for the writer, unless they send to a stock rsync.
const BUFFER_MAX_BYTES: usize = 1 << 20;
/// The buffered bytes at which the writer stops gathering and writes.
const GATHERED_BYTES: usize = 16 << 10;
/// The same for a stock rsync, which gets shorter pieces of files: each wakeup of the writer costs a context switch.
const STOCK_GATHERED_BYTES: usize = 128 << 10;
/// [`BUFFER_MAX_BYTES`] for senders to a stock rsync: a daemon has many such sessions, and clients are slow.
const STOCK_BUFFER_MAX_BYTES: usize = STOCK_GATHERED_BYTES;
/// The part of the [`Class::Wants`] window that is reserved, twice. First requests leave twice this much for
/// [`Message::Done`] and [`Message::Placed`], and those leave this much for repeated requests.
///
/// A sender processes requests only as fast as its data is consumed. If the consumer of that data had to wait for a
/// window that is full of requests, the two ends would deadlock.
const KEPT_BYTES: u64 = 128 << 10;
/// The maximum size of the messages queued by [`Connection::send_later`]: a few bytes for each of millions of directories.
const LATER_MAX_BYTES: usize = 64 << 20;
/// The maximum room that any message has to wait for. The peer grants at least this much once it has processed all
/// earlier messages, so a longer message cannot wait forever.
const NEEDED_MAX_BYTES: u64 = 2 << 20;

/// One end of a connection.
pub struct Connection {
    state: Mutex<ConnectionState>,
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
    ceiling: Ceiling,
    /// The check of what arrives.
    pub rate: Arc<MinimumRate>,
    /// The timeout that a daemon has announced, in seconds; 0: none.
    adopted_secs: AtomicU32,
}

struct ConnectionState {
    encoder: Box<dyn Encoder + Send>,
    buffer: Vec<u8>,
    /// The ranges of the buffer that are sent uncompressed, in order.
    as_it_is: Vec<Range<usize>>,
    /// The windows that the peer granted, by class.
    credits: [Credit; Class::ALL.len()],
    /// The windows that we granted, by class.
    receive_windows: [ReceiveWindow; Class::ALL.len()],
    /// Encoded messages that are sent as soon as the window of [`Class::Wants`] has room; see [`Connection::send_later`].
    later: Vec<u8>,
    /// The length of each message in `later`.
    later_lens: VecDeque<u32>,
    /// Why nothing more can be sent. An empty message means a normal end.
    shut: Option<Error>,
    /// Write what is buffered, then end.
    ending: bool,
    /// The peer has stopped reading: it sent [`Message::Fail`] or closed the connection.
    has_stopped_reading: bool,
    /// The error of the last write to the peer.
    write_error: Option<Error>,
    /// Whether the peer had closed its end.
    has_hung_up: bool,
    last_write: Since,
    /// The writer waits for the first message after a pause.
    writer_sleeps: bool,
    /// The buffered bytes at which the writer stops gathering.
    gathered_bytes: usize,
    /// The buffered bytes at which senders wait for the writer.
    buffer_max_bytes: usize,
}

impl ConnectionState {
    /// Fails if nothing more can be sent.
    fn check(&self) -> Result<()> {
        self.shut.clone().map_or(Ok(()), Err)
    }

    /// Whether an event or item may still be sent while this end stops the run: its user has stopped it, or the peer exceeds a
    /// limit of this end. The peer must be reading, and there must be room: nothing waits for room any more.
    fn may_still_report(&self) -> bool {
        let is_own_decision = |error: &Error| matches!(error.exit, Exit::Signal | Exit::Malloc);
        let has_stopped =
            self.shut.as_ref().is_some_and(is_own_decision) && !self.has_stopped_reading;
        has_stopped && self.buffer.len() < self.buffer_max_bytes && !self.ending
    }

    /// Whether the window of a message has room for it.
    fn has_window(&self, message: &Message) -> bool {
        match class_of(message) {
            Some(class) => self.credits[class as usize].has_room(needed_bytes(message)),
            // The last message has no window and must follow the queued ones.
            None => self.later.is_empty(),
        }
    }
}

/// Returns how much room in its window a message needs, besides the one byte that is enough for any message.
fn needed_bytes(message: &Message) -> u64 {
    match message {
        Message::Want {
            lane: Lane::Requested,
            basis,
            ..
        } => {
            let len_bytes = basis.blocks().map_or(0, |blocks| blocks.len() as u64);
            (len_bytes + 2 * KEPT_BYTES).min(NEEDED_MAX_BYTES)
        }
        Message::Done(_) | Message::Placed(_) => KEPT_BYTES,
        _ => 0,
    }
}

/// Estimates the memory that a message takes at the peer until it is consumed, besides its length. A listing is kept
/// here as well, until everything in it was requested.
fn taken_bytes(message: &Message, bytes: u64) -> u64 {
    match message {
        Message::Whole { .. } => 256,
        Message::Dir(_) | Message::More { .. } => 15 * bytes,
        _ => 0,
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

impl Connection {
    /// Creates the connection for a new session. `encoder`: encodes what this end sends.
    pub fn new(encoder: Box<dyn Encoder + Send>) -> Connection {
        Connection {
            state: Mutex::new(ConnectionState {
                encoder,
                buffer: Vec::new(),
                as_it_is: Vec::new(),
                credits: Class::ALL.map(|class| Credit::new(class, false)),
                receive_windows: Class::ALL.map(ReceiveWindow::new),
                later: Vec::new(),
                later_lens: VecDeque::new(),
                shut: None,
                ending: false,
                has_stopped_reading: false,
                write_error: None,
                has_hung_up: false,
                last_write: Since::now(),
                writer_sleeps: false,
                gathered_bytes: GATHERED_BYTES,
                buffer_max_bytes: BUFFER_MAX_BYTES,
            }),
            to_write: Condvar::new(),
            room: Condvar::new(),
            traffic: Default::default(),
            profile: Mutex::new(Profile::new()),
            as_it_is: AsItIs::default(),
            moved: Moved::default(),
            ceiling: Ceiling::default(),
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
    pub fn over(self, moved: Moved) -> Connection {
        Connection { moved, ..self }
    }

    /// Returns the connection with windows that do not grow beyond `ceiling`.
    pub fn below(self, ceiling: Ceiling) -> Connection {
        Connection { ceiling, ..self }
    }

    /// Returns the connection for a stock rsync, which has no windows.
    pub fn unlimited(self) -> Connection {
        let mut state = self.state.lock();
        state.credits = Class::ALL.map(Credit::unlimited);
        state.gathered_bytes = STOCK_GATHERED_BYTES;
        drop(state);
        self
    }

    /// As [`Connection::unlimited`], if this end sends.
    pub fn of_stock_sender(self) -> Connection {
        let connection = self.unlimited();
        connection.state.lock().buffer_max_bytes = STOCK_BUFFER_MAX_BYTES;
        connection
    }

    /// Returns the connection of a run with this `--timeout`; 0: none.
    pub fn timing_out(self, timeout_secs: u32) -> Connection {
        Connection {
            rate: Arc::new(MinimumRate::new(timeout_secs)),
            ..self
        }
    }

    /// Returns the connection for a peer that supports [`Message::Blocked`]. Must be called before anything is sent.
    pub fn growing(self) -> Connection {
        self.state.lock().credits = Class::ALL.map(|class| Credit::new(class, true));
        self
    }

    /// From now on limits a class to what the peer has memory for; see [`Credit::spare`].
    pub fn spare(&self, class: Class) {
        self.state.lock().credits[class as usize].spare();
    }

    /// Sends a message once its window and the buffer have room.
    pub fn send(&self, message: &Message) -> Result<()> {
        self.send_with(message, false)
    }

    /// Sends a message like [`Connection::send`]. With `as_it_is` it is not worth compressing.
    pub fn send_with(&self, message: &Message, as_it_is: bool) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Err(error) = state.check() {
                let is_event = matches!(message, Message::Event(_));
                return if is_event && state.has_window(message) && state.may_still_report() {
                    self.put(&mut state, message, as_it_is)
                } else {
                    Err(error)
                };
            }
            let has_window = state.has_window(message);
            // The thread that repeats a request may be the one that reads what the peer sends, so it must not wait.
            let is_repeated = matches!(
                message,
                Message::Want {
                    lane: Lane::Again,
                    ..
                }
            );
            if has_window && (is_repeated || state.buffer.len() < state.buffer_max_bytes) {
                return self.put(&mut state, message, as_it_is);
            }
            if let Some(class) = class_of(message)
                && !has_window
            {
                state.credits[class as usize].want();
                self.to_write.notify_one();
            }
            let waits = Since::now();
            self.room.wait(&mut state);
            self.note_wait(usize::from(has_window), waits);
        }
    }

    /// Sends a message that only rsync's protocol has, once the buffer has room. That protocol has no windows.
    pub fn send_rsync(&self, message: &RsyncMessage) -> Result<()> {
        // The thread that repeats a request may be the one for which the reading thread waits. The end of a list is sent
        // by whatever thread drops the listing.
        let is_urgent = match message {
            RsyncMessage::Want(request) => request.attempt == Attempt::Again,
            RsyncMessage::Done(_) | RsyncMessage::Placed(_) => true,
            _ => false,
        };
        let is_item = matches!(message, RsyncMessage::Item { .. });
        let mut state = self.state.lock();
        loop {
            if let Err(error) = state.check()
                && !(is_item && state.may_still_report())
            {
                return Err(error);
            }
            if is_urgent || state.buffer.len() < state.buffer_max_bytes {
                break;
            }
            let waits = Since::now();
            self.room.wait(&mut state);
            self.note_wait(1, waits);
        }
        let ConnectionState {
            encoder, buffer, ..
        } = &mut *state;
        let before = buffer.len();
        encoder.encode_rsync(message, buffer)?;
        self.wake_writer(&state, before);
        Ok(())
    }

    /// Wakes the writer after the buffer has grown from a length. It takes the whole buffer: if it sleeps, it waits for the
    /// first byte, otherwise for enough bytes.
    fn wake_writer(&self, state: &ConnectionState, before: usize) {
        let is_enough = before < state.gathered_bytes && state.buffer.len() >= state.gathered_bytes;
        if before == 0 && state.writer_sleeps || is_enough {
            self.to_write.notify_one();
        }
    }

    /// Counts a message of `len_bytes` that was sent before this connection existed.
    pub fn count_sent_before(&self, message: &Message, len_bytes: usize) {
        if let Some(class) = class_of(message) {
            let bytes = len_bytes as u64;
            self.state.lock().credits[class as usize]
                .count_sent(bytes, taken_bytes(message, bytes));
        }
        self.record_sent(message, len_bytes);
    }

    /// Sends [`Message::Done`] or [`Message::Placed`] once its window has room, without waiting for it: other threads
    /// wait for the caller.
    pub fn send_later(&self, message: &Message) -> Result<()> {
        let mut state = self.state.lock();
        while state.later.len() >= LATER_MAX_BYTES && state.shut.is_none() {
            self.room.wait(&mut state);
        }
        state.check()?;
        if state.later.is_empty() && state.has_window(message) {
            return self.put(&mut state, message, false);
        }
        let ConnectionState {
            encoder,
            later,
            later_lens,
            ..
        } = &mut *state;
        let before = later.len();
        encoder.encode(message, later)?;
        let len = later.len() - before;
        later_lens.push_back(len as u32);
        self.record_sent(message, len);
        Ok(())
    }

    /// Encodes a message into the output buffer.
    fn put(&self, state: &mut ConnectionState, message: &Message, as_it_is: bool) -> Result<()> {
        let ConnectionState {
            encoder,
            buffer,
            as_it_is: ranges,
            credits,
            ..
        } = state;
        let before = buffer.len();
        encoder.encode(message, buffer)?;
        let len = buffer.len();
        if as_it_is {
            match ranges.last_mut().filter(|last| last.end == before) {
                Some(last) => last.end = len,
                None => ranges.push(before..len),
            }
        }
        if let Some(class) = class_of(message) {
            let bytes = (len - before) as u64;
            credits[class as usize].count_sent(bytes, taken_bytes(message, bytes));
        }
        self.record_sent(message, len - before);
        self.wake_writer(state, before);
        Ok(())
    }

    /// Records a wait; `at` is an index in [`profile::WAITS`].
    fn note_wait(&self, at: usize, waits: Since) {
        self.profile.lock().waited[usize::from(self.moved.since().is_some())][at] +=
            waits.elapsed();
    }

    fn record_sent(&self, message: &Message, len_bytes: usize) {
        self.profile.lock().sent(name_of(message), len_bytes as u64);
    }

    /// Notes that `bytes` of a class were consumed, so the peer may be granted as many. Never blocks.
    pub fn consumed(&self, class: Class, bytes: u64) {
        let mut state = self.state.lock();
        let window = &mut state.receive_windows[class as usize];
        window.consumed(bytes, || self.ceiling.bytes());
        if state.receive_windows[class as usize].may_grant() {
            drop(state);
            self.to_write.notify_one();
        }
    }

    /// Counts a received message. Fails if it exceeds the window.
    fn count_received(&self, class: Class, cost: u64) -> Result<()> {
        if self.state.lock().receive_windows[class as usize].count_received(cost) {
            return Ok(());
        }
        Err(Error::new(
            Exit::Protocol,
            format!("sparsync: protocol error: {class:?} messages exceed the window"),
        ))
    }

    /// Notes that the peer waits for a grant.
    fn blocked(&self, class: Class) {
        self.state.lock().receive_windows[class as usize].blocked(|| self.ceiling.bytes());
        self.to_write.notify_one();
    }

    /// Handles a grant of the peer.
    fn granted(&self, class: Class, bytes: u64) -> Result<()> {
        let mut state = self.state.lock();
        if !state.credits[class as usize].granted(bytes) {
            let message =
                format!("sparsync: protocol error: {class:?} grant exceeds the bytes sent");
            return Err(Error::new(Exit::Protocol, message));
        }
        let ConnectionState {
            buffer,
            later,
            later_lens,
            credits,
            ..
        } = &mut *state;
        let wants = &mut credits[Class::Wants as usize];
        let mut sent = 0;
        while wants.has_room(KEPT_BYTES)
            && let Some(len) = later_lens.pop_front()
        {
            wants.count_sent(u64::from(len), 0);
            sent += len as usize;
        }
        buffer.extend(later.drain(..sent));
        drop(state);
        self.room.notify_all();
        if sent > 0 {
            self.to_write.notify_one();
        }
        Ok(())
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
        // If the message is too long, the exit code is sent alone.
        let fail = |message: Vec<u8>| Message::Fail {
            exit: error.exit,
            message,
            role: error.role,
        };
        let ConnectionState {
            encoder, buffer, ..
        } = &mut *state;
        if encoder.encode(&fail(error.text()), buffer).is_err() {
            // Without text it is a few numbers, so encoding cannot fail.
            let _ = encoder.encode(&fail(Vec::new()), buffer);
        }
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

    /// Returns the costs of the session so far; see [`Profile::table`].
    pub fn cost(&self, end: &str) -> Vec<String> {
        self.profile
            .lock()
            .table(end, self.traffic.counts(), self.moved.since())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Basis, Dialect as _, FileId, Native};

    const FILE: FileId = FileId { dir: 1, entry: 2 };

    fn want(lane: Lane, len_bytes: usize) -> Message {
        let basis = if len_bytes == 0 {
            Basis::None
        } else {
            Basis::Blocks(vec![7; len_bytes])
        };
        Message::Want {
            file: FILE,
            lane,
            basis,
        }
    }

    #[test]
    fn events_are_sent_while_a_signal_ends_the_run() {
        let event = Message::Event(crate::report::event::Event::Note(b"copied".to_vec()));
        let sends_failure = |exit: Exit, has_stopped_reading| {
            let connection = Connection::new(Box::new(Native::new(1)));
            connection.state.lock().has_stopped_reading = has_stopped_reading;
            connection.shut(Error::new(exit, ""));
            assert!(connection.send(&want(Lane::Requested, 0)).is_err());
            connection.send(&event).is_ok()
        };
        assert!(sends_failure(Exit::Signal, false));
        assert!(
            !sends_failure(Exit::Signal, true),
            "the peer requested the stop"
        );
        assert!(!sends_failure(Exit::Stream, false), "the peer is gone");
    }

    #[test]
    fn blocked_send_returns_the_error_of_the_connection() {
        let connection = Connection::new(Box::new(Native::new(1)));
        let error = Error::new(Exit::FileIo, "write failed").by("receiver");
        connection.shut(error.clone());
        assert_eq!(connection.send(&want(Lane::Requested, 0)), Err(error));
    }

    #[test]
    fn requests_leave_window_for_repeats_and_queued_messages() {
        for len_bytes in [300_000, 1 << 20, 15 << 20] {
            let connection = Connection::new(Box::new(Native::new(1)));
            let request = want(Lane::Requested, len_bytes);
            while connection.state.lock().has_window(&request) {
                connection
                    .put(&mut connection.state.lock(), &request, false)
                    .unwrap();
                connection.state.lock().buffer.clear();
                // A request longer than the window is sent only if no other is outstanding, and is processed at once.
                if len_bytes > 1 << 20 {
                    let overdrawn_bytes = (len_bytes as u64).saturating_sub(4 << 20);
                    connection
                        .granted(Class::Wants, overdrawn_bytes + (3 << 20))
                        .unwrap();
                    break;
                }
            }
            // `send_later` does not block, and repeated requests are sent although it has to queue.
            let mut sent = 0;
            while connection.state.lock().later.is_empty() {
                connection.send_later(&Message::Done(sent)).unwrap();
                connection.state.lock().buffer.clear();
                sent += 1;
            }
            assert!(sent > 1000, "{sent}");
            connection.send_later(&Message::Placed(FILE)).unwrap();
            for _ in 0..1000 {
                connection.send(&want(Lane::Again, 0)).unwrap();
            }
            assert!(
                !connection
                    .state
                    .lock()
                    .has_window(&Message::WantsEnd(Box::default())),
                "WantsEnd follows the queued messages"
            );
            connection.state.lock().buffer.clear();
            connection.granted(Class::Wants, 1 << 20).unwrap();
            let buffered = connection.state.lock().buffer.clone();
            let mut input = &buffered[..];
            let mut dialect = Native::new(1);
            assert!(
                matches!(dialect.decode(&mut input), Ok(Some(Message::Done(dir))) if dir == sent - 1)
            );
            assert!(matches!(
                dialect.decode(&mut input),
                Ok(Some(Message::Placed(FILE)))
            ));
            assert!(
                input.is_empty()
                    && connection
                        .state
                        .lock()
                        .has_window(&Message::WantsEnd(Box::default()))
            );
        }
    }
}
