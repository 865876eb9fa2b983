//! How the transfer of a file fails, and in which words.

use crate::error::Error;
use crate::exit::Exit;
use crate::report::event::{Event, Problem, Voice};
use crate::role::apply::entry::Job;
use crate::role::apply::{Context, Outcome};
use std::io;

/// How a transfer of a file ended, short of the run's end.
pub(super) enum Failure {
    /// Told, and the entry is left.
    Told(Event),
    /// Nothing more to tell: it was told, or the run is being stopped.
    Stopped,
    /// The run cannot go on.
    Fatal(Error),
}

impl Failure {
    /// Tells of it.
    pub(super) fn tell(self, out: &mut Outcome<'_>) {
        match self {
            Failure::Told(event) => out.events.push(event),
            Failure::Stopped => {}
            Failure::Fatal(error) => out.fatal = Some(error),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Told(Event::Problem(problem))
    }
}

/// It could not be given its name.
pub(super) fn rename_failed(context: &Context<'_>, job: &Job<'_>, error: &io::Error) -> Failure {
    let temp = context.full(job.spot.path.join(&crate::fs::write::temp_name(job.name())).as_bytes());
    let paths = [&temp, &b"\" -> \""[..], job.path.as_bytes()].concat();
    Problem::about(Voice::Receiver, "rename", &paths, error).into()
}

/// A file without its backup ends the run, as it does with rsync: nothing may be lost that was to be kept.
pub(super) fn no_backup(problem: Problem) -> Failure {
    Failure::Fatal(Error::new(Exit::FileIo, problem.line).by("receiver"))
}

/// The medium does not take a file, so the run ends.
pub(super) fn io_failed(context: &Context<'_>, job: &Job<'_>, what: &str, error: &io::Error) -> Failure {
    let full = context.full(job.path.as_bytes());
    let problem = Problem::about(Voice::Receiver, &format!("{what} failed on"), &full, error);
    Failure::Fatal(Error::new(Exit::FileIo, problem.line).by("receiver"))
}
