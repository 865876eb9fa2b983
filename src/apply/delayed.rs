//! `--delay-updates`: complete files wait in a staging directory until all are complete.

use crate::apply::job::Job;
use crate::apply::partial::open_or_make;
use crate::apply::remove_source::leaving;
use crate::apply::{Context, DelayedFile, SourceRemoval, backup};
use crate::flist::order;
use crate::fs::root::Dir;
use crate::fs::{errno, replace, sys};
use crate::path::{self, RelPath};
use crate::report::event::{ErrorRole, Event, Problem, Weight, errno_words};
use std::io;

/// Returns the staging directory of a file, if it has to wait.
pub(super) fn staging_dir(job: &Job<'_>, dir: &Dir) -> Result<Option<Dir>, Problem> {
    let place = &job.context.options.place;
    if !place.delay_updates {
        return Ok(None);
    }
    let name = job.context.staging_name();
    if path::climbs(name) {
        // Files of the same name from several directories would be mixed up there.
        let waiting = path::join(&path::join(job.dest_dir.path.as_bytes(), name), job.name());
        let names = [&job.temp_full(), &b"\" -> \""[..], &waiting].concat();
        return Err(Problem::about(
            ErrorRole::Receiver,
            "rename",
            &names,
            &errno::invalid(),
        ));
    }
    open_or_make(job.context, dir, name)
        .map(Some)
        .map_err(|error| match error.kind() {
            // rsync creates the temporary file first, which would fail as well.
            io::ErrorKind::PermissionDenied => {
                Problem::failed(ErrorRole::Receiver, "mkstemp", &job.temp_full(), &error)
            }
            io::ErrorKind::NotFound => {
                let line = [
                    b"Unable to create partial-dir for ",
                    job.path.as_bytes(),
                    b" -- discarding completed file.",
                ];
                Problem::new(line.concat(), Weight::Warning)
            }
            _ => {
                let full = job
                    .context
                    .full(&path::join(job.dest_dir.path.as_bytes(), name));
                Problem::failed(ErrorRole::Receiver, "mkdir", &full, &error)
            }
        })
}

/// Records a complete file in the staging directory.
pub(super) fn delay(job: &Job<'_>) {
    let delayed = DelayedFile {
        path: job.path.clone(),
        last: job.dest_dir.last.clone(),
        replaces: job.replaces() || job.context.options.place.inplace,
        leaving: leaving(job).map(SourceRemoval::parked),
    };
    job.context.delayed.lock().push(delayed);
}

/// Stages another name of a file that waits for its final name.
pub(super) fn stage_link(job: &Job<'_>, dir: &Dir, leader: (&Dir, &[u8])) -> io::Result<()> {
    let from = open_or_make(job.context, leader.0, job.context.staging_name())?;
    let to = open_or_make(job.context, dir, job.context.staging_name())?;
    replace::link(&from, leader.1, &to, job.name(), true)?;
    delay(job);
    Ok(())
}

/// Returns whether a file waits for its final name.
pub fn is_delayed(context: &Context<'_>, path: &RelPath) -> bool {
    let delayed = context.delayed.lock();
    delayed.iter().rev().any(|file| file.path == *path)
}

/// Gives all waiting files their final names.
pub fn place_delayed(context: &Context<'_>, events: &mut Vec<Event>) {
    let mut files = std::mem::take(&mut *context.delayed.lock());
    // Appliers record them as they finish; messages come in list order.
    files.sort_by(|one, other| {
        order::compare_paths((one.path.as_bytes(), false), (other.path.as_bytes(), false))
    });
    let staging_name = context.staging_name();
    let Some(root) = context.dest else { return };
    // Files of one directory are adjacent, so only one directory is open at a time.
    let mut open: Option<(RelPath, io::Result<(Dir, Dir)>)> = None;
    for DelayedFile {
        path,
        last: _last,
        replaces,
        leaving,
    } in files
    {
        let parent = path.parent().unwrap_or_default();
        if open.as_ref().is_none_or(|(last, _)| *last != parent) {
            let dirs = root.open_dir(&parent).and_then(|dir| {
                let staging = open_or_make(context, &dir, staging_name)?;
                Ok((staging, dir))
            });
            open = Some((parent.clone(), dirs));
        }
        let (staging, dir) = match &open {
            Some((_, Ok((staging, dir)))) => (staging, dir),
            Some((_, Err(error))) => {
                events.push(Event::Problem(unnamed(context, &path, error)));
                continue;
            }
            None => unreachable!("opened above"),
        };
        let name = path.name();
        let role = ErrorRole::Receiver;
        if let Err(problem) = backup::back_up_replaced(context, role, dir, &path, replaces, events)
        {
            events.push(Event::Problem(problem));
            continue;
        }
        let renamed = sys::rename(staging.fd(), name, dir.fd(), name);
        let is_gone = |()| {
            if replaces {
                unlink_twin(staging, name)
            } else {
                Ok(())
            }
        };
        match renamed.and_then(is_gone) {
            Ok(()) => {
                if let Some(leaving) = leaving {
                    leaving.go(context, (dir, name), events);
                }
            }
            Err(error) => events.push(Event::Problem(unnamed(context, &path, &error))),
        }
        // Succeeds after the last file of the directory.
        match sys::rmdir(dir.fd(), staging_name) {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound
                ) =>
            {
                let full = context.full(&crate::path::join(parent.as_bytes(), staging_name));
                events.push(Event::Problem(Problem::failed(
                    ErrorRole::Receiver,
                    "rmdir",
                    &full,
                    &error,
                )));
            }
            _ => {}
        }
    }
}

/// Removes the staged name if it still exists: a rename between two names of one file does nothing.
fn unlink_twin(staging: &Dir, name: &[u8]) -> io::Result<()> {
    match sys::unlink(staging.fd(), name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        unlinked => unlinked,
    }
}

/// Returns the message for a waiting file that did not get its final name.
fn unnamed(context: &Context<'_>, path: &RelPath, error: &io::Error) -> Problem {
    let staging = path::join(
        path.parent().unwrap_or_default().as_bytes(),
        context.staging_name(),
    );
    let waited = path::join(&staging, path.name());
    let places = [
        &context.full(path.as_bytes()),
        &b"\" (from "[..],
        &waited,
        b")",
    ]
    .concat();
    let head = format!(
        "rsync: [{}] rename failed for \"",
        ErrorRole::Receiver.word()
    );
    Problem::new(
        [head.as_bytes(), &places, b": ", &errno_words(error)].concat(),
        Weight::Failed,
    )
}
