//! Reads what the peer sends on a connection, and passes it on.

use super::{Connection, WireOutput};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::transport::link::Parting;
use std::io::{ErrorKind, Read};

/// The size of a read.
pub const READ_BYTES: usize = 256 << 10;

/// Reads what the peer sends, and passes it on.
pub trait Intake<O: WireOutput>: Send {
    /// Reads until the end of the stream, or until an error.
    fn read_all(&mut self, connection: &Connection<O>, reader: &mut dyn Read) -> Result<()>;
}

/// Learns that nothing more comes from the peer. Its method must not block.
pub trait EndHandler: Sync {
    /// Notes that nothing more comes, and why.
    fn handle_end(&self, error: Error);
}

impl<O: WireOutput> Connection<O> {
    /// Reads what the peer sends until an error or the end of the stream, of which `handler` learns. Then discards input
    /// until the peer hangs up or `parting` is over: a peer that cannot send its own messages might never read our last one.
    pub fn read(
        &self,
        mut reader: Box<dyn Read + Send>,
        mut intake: Box<dyn Intake<O> + '_>,
        handler: &dyn EndHandler,
        parting: &Parting,
    ) {
        let ended = intake.read_all(self, &mut *reader);
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

/// Converts a failed read or write of a link into the error of the run.
pub fn lost(what: &str, error: &std::io::Error) -> Error {
    Error::new(
        Exit::Stream,
        format!("sparsync: connection unexpectedly closed ({what}: {error})"),
    )
}

/// Returns the protocol error for a message that the peer must not send, or not now.
pub fn unexpected(what: &str) -> Error {
    Error::new(Exit::Protocol, format!("sparsync: protocol error: {what}"))
}
