//! What ends a run: what was being done, to what, and the exit code it earns.
//!
//! Trouble with one entry is not an `Error` but a `report::Problem`, which is counted.

use crate::exit::Exit;

/// Why the run must stop. Printed once, at the top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The code the process ends with.
    pub exit: Exit,
    /// Lines for stderr, without a newline at the end; empty when all was said already.
    pub message: Vec<u8>,
    /// What the user can do next, printed behind the message as `hint: …`.
    pub hint: Option<String>,
    /// The role named in the closing line: client, sender, generator, Receiver.
    pub role: &'static str,
}

impl Error {
    /// An error of the whole client, in words that stand alone on a line.
    pub fn new(exit: Exit, message: impl Into<Vec<u8>>) -> Error {
        Error { exit, message: message.into(), hint: None, role: "client" }
    }

    /// The same error with a next step for the user.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// The line of the hint, without a newline at the end; `None`: there is none.
    pub fn hint_line(&self) -> Option<String> {
        self.hint.as_ref().map(|hint| format!("hint: {hint}"))
    }

    /// The same error, told by another role.
    pub fn by(mut self, role: &'static str) -> Error {
        self.role = role;
        self
    }

    /// A mistake on the command line.
    pub fn usage(message: impl Into<Vec<u8>>) -> Error {
        Error::new(Exit::Usage, message)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (code {})", String::from_utf8_lossy(&self.message), self.exit.code())
    }
}

impl std::error::Error for Error {}

/// The result of what may end the run.
pub type Result<T> = std::result::Result<T, Error>;
