//! Reads native messages from a connection.

use crate::error::Result;
use crate::fs::sys;
use crate::native::connection::{NativeConnection, NativeOutput};
use crate::proto::{Dialect, Message, class_of, name_of};
use crate::session::connection::{EndHandler, Intake, READ_BYTES, cannot_read};
use crate::work::clock::Since;
use std::io::{ErrorKind, Read};

/// Reads native messages and passes them on.
pub struct NativeIntake<'a> {
    pub dialect: Box<dyn Dialect + Send>,
    pub handler: &'a dyn MessageHandler,
}

/// Takes the messages of a sparsync. Its methods must not block.
pub trait MessageHandler: EndHandler {
    /// Handles one message; `cost` counts against the window of its class. An error ends the session.
    fn handle(&self, message: Message, cost: u64) -> Result<()>;
}

impl Intake<NativeOutput> for NativeIntake<'_> {
    fn read_all(&mut self, connection: &NativeConnection, reader: &mut dyn Read) -> Result<()> {
        // Bytes that were read and not decoded are from `start` to `end`.
        let mut buffer = vec![0; READ_BYTES];
        let mut start = 0;
        let mut end = 0;
        let mut pinged = false;
        loop {
            loop {
                let mut input = &buffer[start..end];
                let before = input.len();
                let Some(message) = self.dialect.decode(&mut input)? else {
                    break;
                };
                let cost = (before - input.len()) as u64;
                start += before - input.len();
                connection.note_received(name_of(&message), cost);
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
                            connection.lock().has_stopped_reading = true;
                        }
                        if let Some(class) = class_of(&message) {
                            connection.count_received(class, cost)?;
                        }
                        self.handler.handle(message, cost)?;
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
            let known = self.dialect.frame_len(&buffer[..end])?.unwrap_or(0);
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
            connection.note_read(got as u64, waits);
            end += got;
            if got == 0 {
                return Ok(());
            }
        }
    }
}
