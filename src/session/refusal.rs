//! Why there is no session.

use crate::error::Error;
use crate::report::TextReporter;

/// Why there is no session.
pub enum Refusal {
    /// The server grants this client less than it requests. Nothing was done; another route to the machine may work.
    NotGranted(Error),
    /// Any other error.
    Failed(Error),
}

impl Refusal {
    /// Returns the error.
    pub fn into_error(self) -> Error {
        match self {
            Refusal::NotGranted(error) | Refusal::Failed(error) => error,
        }
    }

    /// Returns the error that ends the run. Of several lines, all but the last are printed now.
    pub fn print_details(self, reporter: &mut TextReporter) -> Error {
        let error = self.into_error();
        let mut lines: Vec<_> = error.message.split(|&byte| byte == b'\n').collect();
        let last = lines.pop().unwrap_or_default();
        for line in lines {
            reporter.error(line);
        }
        Error {
            message: last.to_vec(),
            ..error
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Failed(error)
    }
}
