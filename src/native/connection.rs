//! The connection of a session of two sparsyncs: sends and receives messages within the flow-control windows of the peer.
//!
//! A caller that sends waits for its window as well as for room in the output buffer. The reader never waits for other
//! threads. So the peer can send no more than it was granted, and the two ends cannot deadlock.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::flow_control::{Credit, ReceiveWindow};
use crate::proto::{Class, Encoder, Lane, Message, class_of, name_of};
use crate::session::connection::{Connection, ConnectionState, Wait, WireOutput};
use crate::transport::window_limit::Ceiling;
use std::collections::VecDeque;

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

/// Encodes native messages, and counts their windows.
pub struct NativeOutput {
    encoder: Box<dyn Encoder + Send>,
    /// The windows that the peer granted, by class.
    credits: [Credit; Class::ALL.len()],
    /// The windows that we granted, by class.
    receive_windows: [ReceiveWindow; Class::ALL.len()],
    /// How far they may grow.
    ceiling: Ceiling,
    /// Encoded messages that are sent as soon as the window of [`Class::Wants`] has room; see [`Connection::send_later`].
    later: Vec<u8>,
    /// The length of each message in `later`.
    later_lens: VecDeque<u32>,
    headway: Headway,
}

/// What the peer has sent that shows how far a session has come. The connection counts it while it reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Headway {
    /// Content that was received, and content for which the peer granted new room because it has consumed as much.
    pub content_bytes: u64,
    /// Requests and what the peer says is done. As long as a run is repeated from the same state, this is the same: what
    /// is done is not requested again, and a request for a part of a file has the signature of the rest.
    pub request_bytes: u64,
}

/// Returns whether the messages of a class carry the content of files.
fn has_content(class: Class) -> bool {
    match class {
        Class::Unrequested | Class::Requested | Class::Again => true,
        Class::Digests | Class::Dirs | Class::Wants | Class::Events => false,
    }
}

impl NativeOutput {
    /// Whether the window of a message has room for it.
    fn has_window(&self, message: &Message) -> bool {
        match class_of(message) {
            Some(class) => self.credits[class as usize].has_room(needed_bytes(message)),
            // The last message has no window and must follow the queued ones.
            None => self.later.is_empty(),
        }
    }
}

impl WireOutput for NativeOutput {
    const GATHERED_BYTES: usize = 16 << 10;
    const BUFFER_MAX_BYTES: usize = 1 << 20;

    fn keepalive(&mut self, out: &mut Vec<u8>) {
        // It has no content, so encoding cannot fail.
        let _ = self.encoder.encode(&Message::Ping, out);
    }

    fn failure(&mut self, error: &Error, out: &mut Vec<u8>) {
        let fail = |message: Vec<u8>| Message::Fail {
            exit: error.exit,
            message,
            role: error.role,
        };
        // If the message is too long, the exit code is sent alone.
        if self.encoder.encode(&fail(error.text()), out).is_err() {
            // Without text it is a few numbers, so encoding cannot fail.
            let _ = self.encoder.encode(&fail(Vec::new()), out);
        }
    }

    /// Appends that we are blocked, if the link has accepted everything before, and the grants to the peer.
    fn windows(&mut self, out: &mut Vec<u8>) {
        let is_at_rest = out.is_empty();
        for class in Class::ALL {
            // These messages are one or two numbers, so encoding cannot fail.
            if is_at_rest && self.credits[class as usize].should_report_blocked() {
                let _ = self.encoder.encode(&Message::Blocked(class), out);
            }
            if let Some(bytes) = self.receive_windows[class as usize].grant() {
                let _ = self.encoder.encode(&Message::Grant { class, bytes }, out);
            }
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
        Message::WantDigest(_) => 2 * KEPT_BYTES,
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

/// The connection of a session of two sparsyncs.
pub type NativeConnection = Connection<NativeOutput>;

impl Connection<NativeOutput> {
    /// Creates the connection for a new session. `encoder`: encodes what this end sends.
    pub fn new(encoder: Box<dyn Encoder + Send>) -> NativeConnection {
        Connection::of(NativeOutput {
            encoder,
            credits: Class::ALL.map(|class| Credit::new(class, false)),
            receive_windows: Class::ALL.map(ReceiveWindow::new),
            ceiling: Ceiling::default(),
            later: Vec::new(),
            later_lens: VecDeque::new(),
            headway: Headway::default(),
        })
    }

    /// Returns the connection with windows that do not grow beyond `ceiling`.
    pub fn below(self, ceiling: Ceiling) -> NativeConnection {
        self.lock().output.ceiling = ceiling;
        self
    }

    /// Returns the connection for a peer that supports [`Message::Blocked`]. Must be called before anything is sent.
    pub fn growing(self) -> NativeConnection {
        self.lock().output.credits = Class::ALL.map(|class| Credit::new(class, true));
        self
    }

    /// From now on limits a class to what the peer has memory for; see [`Credit::spare`].
    pub fn spare(&self, class: Class) {
        self.lock().output.credits[class as usize].spare();
    }

    /// Sends a message once its window and the buffer have room.
    pub fn send(&self, message: &Message) -> Result<()> {
        self.send_with(message, false)
    }

    /// Sends a message like [`Connection::send`]. With `as_it_is` it is not worth compressing.
    pub fn send_with(&self, message: &Message, as_it_is: bool) -> Result<()> {
        let mut state = self.lock();
        loop {
            if let Err(error) = state.check() {
                let is_event = matches!(message, Message::Event(_));
                return if is_event && state.output.has_window(message) && state.may_still_report() {
                    self.put(&mut state, message, as_it_is)
                } else {
                    Err(error)
                };
            }
            let has_window = state.output.has_window(message);
            // The thread that repeats a request may be the one that reads what the peer sends, so it must not wait.
            let is_repeated = matches!(
                message,
                Message::Want {
                    lane: Lane::Again,
                    ..
                }
            );
            if has_window && (is_repeated || state.buffer.len() < NativeOutput::BUFFER_MAX_BYTES) {
                return self.put(&mut state, message, as_it_is);
            }
            if let Some(class) = class_of(message)
                && !has_window
            {
                state.output.credits[class as usize].want();
                self.wake_writer_for_windows();
            }
            let cause = if has_window {
                Wait::Buffer
            } else {
                Wait::Window
            };
            self.await_room(&mut state, cause);
        }
    }

    /// Counts a message of `len_bytes` that was sent before this connection existed.
    pub fn count_sent_before(&self, message: &Message, len_bytes: usize) {
        if let Some(class) = class_of(message) {
            let bytes = len_bytes as u64;
            self.lock().output.credits[class as usize]
                .count_sent(bytes, taken_bytes(message, bytes));
        }
        self.record_sent(message, len_bytes);
    }

    /// Sends [`Message::Done`] or [`Message::Placed`] once its window has room, without waiting for it: other threads
    /// wait for the caller.
    pub fn send_later(&self, message: &Message) -> Result<()> {
        let mut state = self.lock();
        while state.output.later.len() >= LATER_MAX_BYTES && state.check().is_ok() {
            self.await_room(&mut state, Wait::Window);
        }
        state.check()?;
        if state.output.later.is_empty() && state.output.has_window(message) {
            return self.put(&mut state, message, false);
        }
        let NativeOutput {
            encoder,
            later,
            later_lens,
            ..
        } = &mut state.output;
        let before = later.len();
        encoder.encode(message, later)?;
        let len = later.len() - before;
        later_lens.push_back(len as u32);
        self.record_sent(message, len);
        Ok(())
    }

    /// Encodes a message into the output buffer.
    fn put(
        &self,
        state: &mut ConnectionState<NativeOutput>,
        message: &Message,
        as_it_is: bool,
    ) -> Result<()> {
        let ConnectionState {
            output: NativeOutput {
                encoder, credits, ..
            },
            buffer,
            as_it_is: ranges,
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

    fn record_sent(&self, message: &Message, len_bytes: usize) {
        self.note_sent(name_of(message), len_bytes as u64);
    }

    /// Notes that `bytes` of a class were consumed, so the peer may be granted as many. Never blocks.
    pub fn consumed(&self, class: Class, bytes: u64) {
        let mut state = self.lock();
        let NativeOutput {
            receive_windows,
            ceiling,
            ..
        } = &mut state.output;
        let window = &mut receive_windows[class as usize];
        window.consumed(bytes, || ceiling.bytes());
        if window.may_grant() {
            drop(state);
            self.wake_writer_for_windows();
        }
    }

    /// Counts a received message. Fails if it exceeds the window.
    pub(super) fn count_received(&self, class: Class, cost: u64) -> Result<()> {
        let output = &mut self.lock().output;
        if has_content(class) {
            output.headway.content_bytes += cost;
        }
        if class == Class::Wants {
            output.headway.request_bytes += cost;
        }
        if output.receive_windows[class as usize].count_received(cost) {
            return Ok(());
        }
        Err(Error::new(
            Exit::Protocol,
            format!("sparsync: protocol error: {class:?} messages exceed the window"),
        ))
    }

    /// Returns how far the session has come.
    pub fn headway(&self) -> Headway {
        self.lock().output.headway
    }

    /// Notes that the peer waits for a grant.
    pub(super) fn blocked(&self, class: Class) {
        let NativeOutput {
            receive_windows,
            ceiling,
            ..
        } = &mut self.lock().output;
        receive_windows[class as usize].blocked(|| ceiling.bytes());
        self.wake_writer_for_windows();
    }

    /// Handles a grant of the peer.
    pub(super) fn granted(&self, class: Class, bytes: u64) -> Result<()> {
        let mut state = self.lock();
        if !state.output.credits[class as usize].granted(bytes) {
            let message =
                format!("sparsync: protocol error: {class:?} grant exceeds the bytes sent");
            return Err(Error::new(Exit::Protocol, message));
        }
        if has_content(class) {
            state.output.headway.content_bytes += bytes;
        }
        let ConnectionState {
            buffer,
            output:
                NativeOutput {
                    later,
                    later_lens,
                    credits,
                    ..
                },
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
        self.wake_senders();
        if sent > 0 {
            self.wake_writer_for_windows();
        }
        Ok(())
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
            connection.lock().has_stopped_reading = has_stopped_reading;
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
            while connection.lock().output.has_window(&request) {
                connection
                    .put(&mut connection.lock(), &request, false)
                    .unwrap();
                connection.lock().buffer.clear();
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
            while connection.lock().output.later.is_empty() {
                connection.send_later(&Message::Done(sent)).unwrap();
                connection.lock().buffer.clear();
                sent += 1;
            }
            assert!(sent > 1000, "{sent}");
            connection.send_later(&Message::Placed(FILE)).unwrap();
            for _ in 0..1000 {
                connection.send(&want(Lane::Again, 0)).unwrap();
            }
            assert!(
                !connection
                    .lock()
                    .output
                    .has_window(&Message::WantsEnd(Box::default())),
                "WantsEnd follows the queued messages"
            );
            connection.lock().buffer.clear();
            connection.granted(Class::Wants, 1 << 20).unwrap();
            let buffered = connection.lock().buffer.clone();
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
                        .lock()
                        .output
                        .has_window(&Message::WantsEnd(Box::default()))
            );
        }
    }
}
