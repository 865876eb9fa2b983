//! How the transfer of a file fails, and the messages for that.

use crate::apply::Outcome;
use crate::apply::job::Job;
use crate::error::Error;
use crate::exit::Exit;
use crate::report::event::{ErrorRole, Event, Problem, Weight};
use std::io;

/// How a file transfer failed.
pub(super) enum Failure {
    /// Reported by this event; the run goes on.
    Reported(Event),
    /// What was written reads back differently, which this event reports. Nothing of it is kept.
    Damaged(Event),
    /// Already reported, or the run is being stopped.
    Stopped,
    /// It is repeated after all first requests.
    Later,
    /// The run cannot go on.
    Fatal(Error),
}

impl Failure {
    /// Reports the failure.
    pub(super) fn report(self, out: &mut Outcome<'_>) {
        match self {
            Failure::Reported(event) | Failure::Damaged(event) => out.events.push(event),
            Failure::Stopped => {}
            Failure::Later => out.is_to_repeat = true,
            Failure::Fatal(error) => out.fatal = Some(error),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Reported(Event::Problem(problem))
    }
}

/// The file could not be renamed to its final name.
pub(super) fn rename_failed(job: &Job<'_>, error: &io::Error) -> Failure {
    let paths = [&job.temp_full(), &b"\" -> \""[..], job.path.as_bytes()].concat();
    Problem::about(ErrorRole::Receiver, "rename", &paths, error).into()
}

/// As in rsync, a failed backup ends the run, so that the old file is not lost.
pub(super) fn no_backup(problem: Problem) -> Failure {
    Failure::Fatal(Error::new(Exit::FileIo, problem.line).by("receiver"))
}

/// The file cannot be written to its medium, which ends the run.
pub(super) fn io_failed(job: &Job<'_>, what: &str, error: &io::Error) -> Failure {
    let full = job.full();
    let problem = Problem::about(
        ErrorRole::Receiver,
        &format!("{what} failed on"),
        &full,
        error,
    );
    Failure::Fatal(Error::new(Exit::FileIo, problem.line).by("receiver"))
}

/// Returns the message for a source file that cannot be opened.
pub fn cannot_open(full: &[u8], error: &io::Error) -> Problem {
    if error.kind() == io::ErrorKind::NotFound {
        return Problem::new(
            [b"file has vanished: \"", full, b"\""].concat(),
            Weight::Vanished,
        );
    }
    Problem::about(ErrorRole::Sender, "send_files failed to open", full, error)
        .weighing(Weight::SourceError)
}

/// Returns the message for a source file that is not a regular file any more.
pub fn no_longer_regular(full: &[u8]) -> Problem {
    Problem::new(
        [b"rsync: [sender] no longer a regular file: \"", full, b"\""].concat(),
        Weight::Failed,
    )
}

/// Returns the message for a source file to be appended that has become shorter since it was listed. As in rsync, it is
/// left out.
pub fn diminished(full: &[u8]) -> Problem {
    Problem::new(
        [b"skipped diminished file: \"", full, b"\""].concat(),
        Weight::Warning,
    )
}

/// Returns the message for a source file that cannot be read to its end.
pub fn cannot_read(full: &[u8], error: &io::Error) -> Problem {
    Problem::about(ErrorRole::Sender, "read errors mapping", full, error)
        .weighing(Weight::SourceError)
}
