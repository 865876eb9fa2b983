//! Reads what the peer sends on a connection, and passes it on as messages.

use super::Connection;
use super::profile::READING;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::proto::rsync::decode_error::DecodeError;
use crate::proto::{Dialect, Message, class_of, name_of};
use crate::transport::link::Parting;
use crate::work::clock::Since;
use std::io::{ErrorKind, Read};
use std::sync::atomic::Ordering;

/// The size of a read.
const READ_BYTES: usize = 256 << 10;

/// Reads what the peer sends and passes it on as messages.
pub trait Intake: Send {
    /// Reads until the end of the stream, or until an error.
    fn read_all(
        &mut self,
        connection: &Connection,
        reader: &mut dyn Read,
        handler: &dyn MessageHandler,
    ) -> Result<()>;
}

impl Intake for Box<dyn Dialect + Send> {
    fn read_all(
        &mut self,
        connection: &Connection,
        reader: &mut dyn Read,
        handler: &dyn MessageHandler,
    ) -> Result<()> {
        // Bytes that were read and not decoded are from `start` to `end`.
        let mut buffer = vec![0; READ_BYTES];
        let mut start = 0;
        let mut end = 0;
        let mut pinged = false;
        loop {
            loop {
                let mut input = &buffer[start..end];
                let before = input.len();
                let Some(message) = self.decode(&mut input)? else {
                    break;
                };
                let cost = (before - input.len()) as u64;
                start += before - input.len();
                connection.profile.lock().received(name_of(&message), cost);
                let is_keepalive = matches!(message, Message::Ping);
                connection
                    .rate
                    .note_message(is_keepalive)
                    .map_err(|error| cannot_read(&error))?;
                match message {
                    Message::Grant { class, bytes } => connection.granted(class, bytes)?,
                    Message::Blocked(class) => connection.blocked(class),
                    Message::Ping => pinged = true,
                    message => {
                        sys::note_work();
                        if let Message::Fail { .. } = message {
                            connection.state.lock().has_stopped_reading = true;
                        }
                        if let Some(class) = class_of(&message) {
                            connection.count_received(class, cost)?;
                        }
                        handler.handle(message, cost)?;
                    }
                }
            }
            buffer.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            if end > 0 && !std::mem::take(&mut pinged) {
                // A part of a long message has arrived.
                sys::note_work();
            }
            // The buffer at most doubles, because the length that a frame declares is not trusted.
            let known = self.frame_len(&buffer[..end])?.unwrap_or(0);
            let needed = known.min(READ_BYTES.max(2 * end)).max(end + 1);
            if buffer.len() < needed {
                buffer.resize(needed, 0);
            } else if needed < READ_BYTES && buffer.len() > 4 * READ_BYTES {
                buffer.truncate(READ_BYTES);
                buffer.shrink_to_fit();
            }
            let waits = Since::now();
            let got = loop {
                match reader.read(&mut buffer[end..]) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(cannot_read(&error)),
                    Ok(got) => break got,
                }
            };
            connection.note_wait(READING, waits);
            end += got;
            connection
                .traffic
                .received
                .fetch_add(got as u64, Ordering::Relaxed);
            if got == 0 {
                return Ok(());
            }
        }
    }
}

/// Consumes the messages of the peer. Its methods must not block.
pub trait MessageHandler: Sync {
    /// Handles one message; `cost` counts against the window of its class. An error ends the session.
    fn handle(&self, message: Message, cost: u64) -> Result<()>;
    /// Reports that no more messages follow, and why.
    fn handle_end(&self, error: Error);
}

impl Connection {
    /// Reads messages until an error or the end of the stream and passes them to `handler`. Then discards input until the
    /// peer hangs up or `parting` is over: a peer that cannot send its own messages might never read our last one.
    pub fn read(
        &self,
        mut reader: Box<dyn Read + Send>,
        mut intake: Box<dyn Intake + '_>,
        handler: &dyn MessageHandler,
        parting: &Parting,
    ) {
        let ended = intake.read_all(self, &mut *reader, handler);
        let error = match ended {
            Ok(()) => Error::new(Exit::Stream, "sparsync: connection unexpectedly closed"),
            // The read was aborted because a write had failed.
            Err(error) if error.exit == Exit::Signal => self.write_error().unwrap_or(error),
            Err(error) => error,
        };
        self.shut(error.clone());
        handler.handle_end(error);
        parting.begin();
        let mut passed = vec![0; READ_BYTES];
        while !parting.is_over() && reader.read(&mut passed).is_ok_and(|got| got > 0) {}
    }
}

/// Converts a failure to read from the peer into the error of the run.
pub fn cannot_read(error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::TimedOut => {
            let cause = error
                .get_ref()
                .map_or_else(|| "no data from the peer".to_owned(), ToString::to_string);
            Error::new(
                Exit::Timeout,
                format!("sparsync: connection timed out: {cause} (--timeout)"),
            )
        }
        // The run is being stopped.
        ErrorKind::ConnectionAborted => Error::new(Exit::Signal, ""),
        ErrorKind::InvalidData => Error::new(Exit::Protocol, format!("sparsync: {error}")),
        _ => Error::new(
            Exit::Stream,
            format!("sparsync: connection unexpectedly closed (reading: {error})"),
        ),
    }
}

/// Converts what is wrong with the bytes of a stock rsync into the error of the run.
pub fn undecodable(error: DecodeError) -> Error {
    match error {
        DecodeError::Io(error) => cannot_read(&error),
        DecodeError::Violation { exit, cause } => {
            Error::new(exit, format!("sparsync: protocol error: {cause}"))
        }
    }
}

/// Returns the protocol error for a message that the peer must not send, or not now.
pub fn unexpected(what: &str) -> Error {
    Error::new(Exit::Protocol, format!("sparsync: protocol error: {what}"))
}
