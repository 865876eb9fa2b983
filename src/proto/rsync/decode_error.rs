//! Why bytes of a peer could not be decoded: the stream failed, or its content violates the protocol.

use crate::exit::Exit;
use std::fmt;
use std::io;

/// Why a value could not be decoded.
#[derive(Debug)]
pub enum DecodeError {
    /// The stream failed or ended.
    Io(io::Error),
    /// The content violates the protocol.
    Violation {
        /// The exit code with which rsync ends after such a violation.
        exit: Exit,
        /// What is wrong, without a prefix.
        cause: String,
    },
}

/// The result of decoding.
pub type Result<T> = std::result::Result<T, DecodeError>;

/// Creates a violation that ends the run with exit code 2.
pub fn violation(cause: impl Into<String>) -> DecodeError {
    violated(Exit::Protocol, cause.into())
}

/// Creates a violation of the data stream, exit code 12.
pub fn broken_stream(cause: impl Into<String>) -> DecodeError {
    violated(Exit::Stream, cause.into())
}

/// Creates an error for something that one of the peers does not support, exit code 4.
pub fn unsupported(cause: impl Into<String>) -> DecodeError {
    violated(Exit::Unsupported, cause.into())
}

fn violated(exit: Exit, cause: String) -> DecodeError {
    #[cfg(test)]
    crate::proto::tests::record(&format!("protocol error: {cause}"));
    DecodeError::Violation { exit, cause }
}

/// Returns a count or length, or an error if it is negative or greater than `max`.
pub fn checked(value: i64, max: usize, what: &str) -> Result<usize> {
    let fits = usize::try_from(value).ok().filter(|&value| value <= max);
    fits.ok_or_else(|| violation(format!("{what} is {value}, not 0 to {max}")))
}

impl DecodeError {
    /// Returns the same violation with the exit code that rsync has for it.
    pub fn with_exit(self, exit: Exit) -> DecodeError {
        match self {
            DecodeError::Violation { cause, .. } => DecodeError::Violation { exit, cause },
            error @ DecodeError::Io(_) => error,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Io(error) => error.fmt(f),
            DecodeError::Violation { cause, .. } => write!(f, "protocol error: {cause}"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<io::Error> for DecodeError {
    /// Finds the violation that a [`super::mux::Demultiplexer`] reported as an I/O error.
    fn from(error: io::Error) -> DecodeError {
        match error.downcast::<DecodeError>() {
            Ok(violation) => violation,
            Err(error) => DecodeError::Io(error),
        }
    }
}

impl From<DecodeError> for io::Error {
    fn from(error: DecodeError) -> io::Error {
        match error {
            DecodeError::Io(error) => error,
            violation => io::Error::new(io::ErrorKind::InvalidData, violation),
        }
    }
}
