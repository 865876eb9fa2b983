//! What is wrong with the bytes of an rsync, as the error of the run.

use crate::error::Error;
use crate::proto::rsync::decode_error::DecodeError;
use crate::session::connection::cannot_read;

/// Returns the error of a run that cannot decode what an rsync has sent.
pub fn undecodable(error: DecodeError) -> Error {
    match error {
        DecodeError::Io(error) => cannot_read(&error),
        DecodeError::Violation { exit, cause } => {
            Error::new(exit, format!("sparsync: protocol error: {cause}"))
        }
    }
}
