//! The error that ends a run: operation, object, cause and exit code.
//!
//! A problem with a single entry is not an `Error` but a `report::Problem`, which is counted.

use crate::exit::Exit;

/// Why the run must stop. Printed once, at the top level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The exit code of the process.
    pub exit: Exit,
    /// Lines for stderr, without a trailing newline; empty if everything has been printed already.
    pub message: Vec<u8>,
    /// What the user can do next, printed after the message as `hint: …`.
    pub hint: Option<String>,
    /// The role named in the closing line: client, sender, generator, Receiver.
    pub role: &'static str,
}

/// The role of a new error.
const CLIENT: &str = "client";

impl Error {
    /// Creates an error of the client. The message forms its own line.
    pub fn new(exit: Exit, message: impl Into<Vec<u8>>) -> Error {
        Error {
            exit,
            message: message.into(),
            hint: None,
            role: CLIENT,
        }
    }

    /// Returns the same error with a hint for the user.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// Creates an error from the text that another process made of it, see [`Error::text`].
    pub fn of_text(exit: Exit, text: &[u8]) -> Error {
        const HINT: &[u8] = b"\nhint: ";
        match text.windows(HINT.len()).rposition(|at| at == HINT) {
            Some(at) => {
                let hint = String::from_utf8_lossy(&text[at + HINT.len()..]).into_owned();
                Error::new(exit, &text[..at]).with_hint(hint)
            }
            None => Error::new(exit, text),
        }
    }

    /// Returns the message and the hint in the form in which they are sent to another process.
    pub fn text(&self) -> Vec<u8> {
        let mut text = self.message.clone();
        if let Some(hint) = self.hint_line() {
            text.extend_from_slice(format!("\n{hint}").as_bytes());
        }
        text
    }

    /// Returns the hint line without a trailing newline; `None` if there is no hint.
    pub fn hint_line(&self) -> Option<String> {
        self.hint.as_ref().map(|hint| format!("hint: {hint}"))
    }

    /// Returns the same error, reported by another role.
    pub fn by(mut self, role: &'static str) -> Error {
        self.role = role;
        self
    }

    /// Returns the same error, reported by another role unless [`Error::by`] has named one.
    pub fn or_by(self, role: &'static str) -> Error {
        if self.role == CLIENT {
            self.by(role)
        } else {
            self
        }
    }

    /// Creates an error for a wrong command line.
    pub fn usage(message: impl Into<Vec<u8>>) -> Error {
        Error::new(Exit::Usage, message)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} (code {})",
            String::from_utf8_lossy(&self.message),
            self.exit.code()
        )
    }
}

impl std::error::Error for Error {}

/// The result of an operation that can end the run.
pub type Result<T> = std::result::Result<T, Error>;
