//! The control messages of a stock rsync, which come between any two pieces of data.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Kind;
use crate::fs::{charset, sys};
use crate::proto::rsync::decode_error::{self, DecodeError, broken_stream};
use crate::proto::rsync::limits::TIMEOUT_MAX_SECS;
use crate::proto::rsync::mux::{Control, Demultiplexer, FrameTag};
use crate::report::event::{Event, Problem, Weight};
use crate::rsync::error::undecodable;
use crate::session::connection::unexpected;
use parking_lot::{Mutex, MutexGuard};
use std::io::Read;

/// The maximum length of a line of text.
const LINE_MAX_BYTES: usize = 64 << 10;

/// What an event costs besides its text, in bytes.
const EVENT_COST: u64 = 64;

/// How many files that will not come may be reported within the content of another one.
const UNSENT_MAX: usize = 1 << 20;

/// The bit of an error that forbids deletions.
pub const IO_ERROR_GENERAL: i32 = 1;
/// The bit of a file that vanished.
pub const IO_ERROR_VANISHED: i32 = 2;
/// `--max-delete` has stopped deletions.
pub const IO_ERROR_DELETE_LIMIT: i32 = 4;

/// The role of the peer, with what to do about a file that it names by its index.
pub enum PeerRole<'a> {
    /// The peer sends.
    Sender {
        /// Called for a file that was requested and will not come.
        unsent: &'a dyn Fn(i32) -> Result<()>,
        /// Called for a line that reports such a file without its index: before protocol 30.
        unread: &'a dyn Fn(InFile) -> Result<()>,
    },
    /// The peer receives. A file is in its place (`--remove-source-files`).
    Receiver(&'a dyn Fn(i32) -> Result<()>),
}

/// Whether the data is inside of a file.
pub type InFile = bool;

/// Reads the data of a peer with `read`, and handles the control messages in between. `report` is called with the events
/// of the peer and what each costs, and may wait; `adopt_timeout` with the timeout that a daemon announces, in seconds.
/// `has_frames`: see
/// [`RsyncTerms::client_has_frames`](crate::rsync::session_terms::RsyncTerms::client_has_frames).
pub fn read_all(
    reader: &mut dyn Read,
    role: &PeerRole<'_>,
    has_frames: bool,
    adopt_timeout: &dyn Fn(u32),
    report: &dyn Fn(Event, u64) -> Result<()>,
    read: impl FnOnce(&mut Input<'_>, &Controls<'_>) -> decode_error::Result<()>,
) -> Result<()> {
    let controls = Controls {
        role,
        adopt_timeout,
        report,
        state: Mutex::default(),
    };
    let mut handle = |control: Control| {
        sys::note_work();
        controls
            .handle(control)
            .map_err(|error| controls.fail(error))
    };
    let mut input = Input::new(reader, &mut handle);
    input.set_frames(has_frames);
    let ended = read(&mut input, &controls);
    // If this fails, the session's own error is more important.
    let _ = controls.report_incomplete_lines();
    let failed = controls.lock().failed.take();
    ended.map_err(|error| failed.unwrap_or_else(|| undecodable(error)))
}

/// The data of a peer.
pub type Input<'r> =
    Demultiplexer<&'r mut dyn Read, &'r mut dyn FnMut(Control) -> decode_error::Result<()>>;

/// Handles control messages.
pub struct Controls<'a> {
    role: &'a PeerRole<'a>,
    adopt_timeout: &'a dyn Fn(u32),
    report: &'a dyn Fn(Event, u64) -> Result<()>,
    state: Mutex<ControlState>,
}

/// What the control messages have said so far.
#[derive(Default)]
pub struct ControlState {
    /// The data is inside of a file.
    pub is_in_file: bool,
    /// Files that will not come, reported while another one was under way.
    unsent: Vec<i32>,
    /// Incomplete lines of text, by tag.
    partial: Vec<(FrameTag, Vec<u8>)>,
    /// The errors that the sender has reported by itself, as bits.
    pub io_error: i32,
    /// The text of the peer reports an error that makes the result incomplete.
    pub has_failed: bool,
    /// The error that ends the session.
    failed: Option<Error>,
}

impl Controls<'_> {
    pub fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock()
    }

    /// Handles one message. Text is passed on as events.
    fn handle(&self, control: Control) -> Result<()> {
        match (control, self.role) {
            (Control::Text(tag, text), PeerRole::Sender { unread, .. }) => {
                let is_about_unread = reports_unread(&text);
                self.text(tag, &text)?;
                let is_in_file = self.lock().is_in_file;
                if is_about_unread {
                    unread(is_in_file)
                } else {
                    Ok(())
                }
            }
            (Control::Text(tag, text), PeerRole::Receiver(_)) => self.text(tag, &text),
            (Control::IoError(bits), PeerRole::Sender { .. }) => {
                self.lock().io_error |= bits;
                Ok(())
            }
            (Control::NoSend(index), PeerRole::Sender { .. }) if self.lock().is_in_file => {
                let mut state = self.lock();
                state.unsent.push(index);
                if state.unsent.len() > UNSENT_MAX {
                    Err(unexpected("too many files that will not come"))
                } else {
                    Ok(())
                }
            }
            (Control::NoSend(index), PeerRole::Sender { unsent, .. }) => unsent(index),
            (Control::Success(index), PeerRole::Receiver(report)) => report(index),
            (Control::Deleted { path, is_dir }, PeerRole::Receiver(_)) => {
                let (kind, mode) = if is_dir {
                    (Kind::Dir, 0o040_755)
                } else {
                    (Kind::File, 0o100_644)
                };
                let len_bytes = path.len();
                self.report(
                    Event::Deleted {
                        name: charset::line_from_wire(path),
                        kind,
                        mode,
                    },
                    len_bytes,
                )
            }
            (Control::ErrorExit(Some(0)), _) => Err(unexpected("error exit with code 0")),
            (Control::ErrorExit(code), _) => {
                let exit = code
                    .and_then(|code| u8::try_from(code).ok())
                    .and_then(Exit::of_code);
                // The peer has printed the closing line, if it knows its exit code.
                Err(exit.map_or_else(
                    || Error::new(Exit::Stream, ""),
                    |exit| Error::new(exit, "").by(""),
                ))
            }
            (Control::IoTimeout(secs), _) => {
                let secs = u32::try_from(secs)
                    .ok()
                    .filter(|&secs| secs <= TIMEOUT_MAX_SECS.cast_unsigned());
                (self.adopt_timeout)(secs.unwrap_or(0));
                Ok(())
            }
            (Control::KeepAlive | Control::Noop, _) => Ok(()),
            (
                Control::Success(_)
                | Control::Deleted { .. }
                | Control::IoError(_)
                | Control::NoSend(_),
                _,
            ) => Err(unexpected("message that this end must not send")),
        }
    }

    /// Passes on an event.
    fn report(&self, event: Event, len_bytes: usize) -> Result<()> {
        (self.report)(event, len_bytes as u64 + EVENT_COST)
    }

    /// Passes on a line of the peer.
    fn report_line(&self, tag: FrameTag, line: Vec<u8>) -> Result<()> {
        let len_bytes = line.len();
        self.report(event_of(tag, line), len_bytes)
    }

    fn text(&self, tag: FrameTag, text: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let at = state
            .partial
            .iter()
            .position(|(of, _)| *of == tag)
            .unwrap_or_else(|| {
                state.partial.push((tag, Vec::new()));
                state.partial.len() - 1
            });
        state.has_failed |= tag == FrameTag::ErrorXfer;
        let partial = &mut state.partial[at].1;
        partial.extend_from_slice(text);
        if partial.len() > LINE_MAX_BYTES {
            return Err(unexpected("endless line of text"));
        }
        // A line break within a message is part of a name.
        if partial.pop_if(|last| *last == b'\n').is_none() {
            return Ok(());
        }
        let line = std::mem::take(partial);
        drop(state);
        // The client prints its own line about matches.
        if line.starts_with(b"total: matches=") {
            return Ok(());
        }
        self.report_line(tag, line)
    }

    /// Reports the text of the peer that does not end with a newline. Called before the last message of a session.
    pub fn report_incomplete_lines(&self) -> Result<()> {
        let partial = std::mem::take(&mut self.lock().partial);
        let mut lines = partial.into_iter().filter(|(_, text)| !text.is_empty());
        lines.try_for_each(|(tag, text)| self.report_line(tag, text))
    }

    /// Notes that the content of a file has ended. Returns the files that will not come, reported meanwhile.
    pub fn end_file(&self) -> Vec<i32> {
        let mut state = self.lock();
        state.is_in_file = false;
        std::mem::take(&mut state.unsent)
    }

    /// Notes the error that ends the session, and returns one that ends the reading.
    pub fn fail(&self, error: Error) -> DecodeError {
        let violation = broken_stream(String::from_utf8_lossy(&error.message).into_owned());
        self.lock().failed = Some(error);
        violation
    }
}

/// Returns whether a line of a sender reports that it cannot read a requested file.
fn reports_unread(line: &[u8]) -> bool {
    line.starts_with(b"file has vanished: ")
        || UNREAD
            .iter()
            .any(|words| line.windows(words.len()).any(|part| part == *words))
}

const UNREAD: [&[u8]; 2] = [b"send_files failed to open ", b"fstat failed"];

/// Returns the event that reports a line of the peer.
pub fn event_of(tag: FrameTag, line: Vec<u8>) -> Event {
    let line = charset::line_from_wire(line);
    match tag {
        FrameTag::Info => Event::Note(line),
        FrameTag::ErrorXfer => Event::Problem(Problem::new(line, Weight::Failed)),
        _ => Event::Problem(Problem::new(line, Weight::Warning)),
    }
}

/// Returns whether a stock peer learns the exit code with which this end gives up.
pub fn is_reported(exit: Exit) -> bool {
    !matches!(exit, Exit::SocketIo | Exit::Stream | Exit::Timeout)
}
