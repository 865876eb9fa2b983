//! A stored plan in place of free decisions (`sparsync apply`): of what a walk decides, only the actions of the plan stay,
//! where both ends are as they were when it was made.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Entry;
use crate::plan::planned::{ChangedEnd, EntryNow, PlannedVerdict, StoredPlan};
use crate::plan::{Action, Changes, Decision, Policy, Reason};
use crate::report::event::{Problem, Weight, errno_words};
use std::io;

/// What the verdicts about the actions of one directory have left to do for the generator, when it enters the directory.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The numbers of the actions that have a verdict.
    pub settled: Vec<u32>,
    /// About entries that are left alone.
    pub problems: Vec<Problem>,
}

/// A decision about an entry, and what it is about.
pub struct Proposed<'p> {
    /// The path below the destination.
    pub path: &'p [u8],
    pub source: &'p Entry,
    pub dest: Option<&'p Entry>,
    pub decision: Decision,
}

/// Returns what is done about an entry: what was decided, if the plan has it and both ends are as they were then.
pub fn restricted(
    stored: &dyn StoredPlan,
    policy: &Policy,
    proposed: &Proposed<'_>,
    replayed: &mut Replayed,
) -> Result<Action> {
    let Proposed {
        path,
        source,
        dest,
        decision,
    } = *proposed;
    let planned = stored
        .action(path, false)
        .map_err(|error| unreadable(&error))?;
    let is_present_dir = source.is_dir() && dest.is_some_and(Entry::is_dir);
    let left = match decision.action {
        Action::Keep | Action::Refuse(_) => decision.action,
        // Nothing is done.
        Action::Elsewhere if dest.is_none() => decision.action,
        // What is in it may be planned.
        _ if is_present_dir => Action::Keep,
        _ => Action::Refuse(Reason::NotPlanned),
    };
    let Some((number, planned)) = planned else {
        return Ok(left);
    };
    replayed.settled.push(number);
    let given = planned.given(stored).map_err(|error| unreadable(&error))?;
    let now = EntryNow {
        source,
        dest,
        decision,
        policy,
        given: &given,
    };
    Ok(match planned.verdict(&now) {
        PlannedVerdict::Act => decision.action,
        PlannedVerdict::Done => left,
        PlannedVerdict::Left(end) => {
            replayed.problems.push(left_alone(path, end));
            left
        }
    })
}

/// Restricts what is decided about a directory whose time has changed because of this run.
pub fn restricted_again(stored: &dyn StoredPlan, path: &[u8], action: Action) -> Result<Action> {
    let Action::Adjust(changes) = action else {
        return Ok(action);
    };
    let planned = stored
        .action(path, false)
        .map_err(|error| unreadable(&error))?;
    Ok(match planned {
        Some(_) => action,
        None if changes.has(Changes::TIME) => Action::Adjust(Changes::TIME),
        None => Action::Keep,
    })
}

/// Returns the problem of an entry that is not as it was when the plan was made.
pub fn left_alone(path: &[u8], end: ChangedEnd) -> Problem {
    let start: &[u8] = match end {
        ChangedEnd::Source => {
            b"sparsync: left alone, because the source has changed since the plan: \""
        }
        ChangedEnd::Dest => {
            b"sparsync: left alone, because the destination has changed since the plan: \""
        }
        ChangedEnd::Backup => {
            b"sparsync: left alone, because the place of its backup has changed since the plan: \""
        }
        ChangedEnd::Twin => {
            b"sparsync: left alone, because the file whose content it takes has changed since the plan: \""
        }
    };
    Problem::new([start, path, b"\""].concat(), Weight::Failed)
}

/// Returns the error that ends the run, because the plan cannot be read any more.
pub fn unreadable(error: &io::Error) -> Error {
    let start = b"sparsync: cannot read the plan: ".as_slice();
    Error::new(Exit::FileIo, [start, &errno_words(error)].concat())
}
