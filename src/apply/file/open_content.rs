//! Opens the content of a file: its twin, the source on this machine, or a stream of the peer.

use crate::apply::content::Content;
use crate::apply::file::failure::{Failure, cannot_open, cannot_read, diminished};
use crate::apply::held_twins::OldContent;
use crate::apply::job::Job;
use crate::apply::twins::Twin;
use crate::fs::sys;
use std::os::fd::{AsFd, OwnedFd};

/// Opens the content to be copied: the twin, or else the source.
pub(super) fn open_content<'c>(job: &Job<'c>) -> Result<Content<'c>, Failure> {
    match job.twin().and_then(|twin| open_twin(job, &twin)) {
        Some(file) => Ok(Content::Twin(file)),
        None => open_source(job),
    }
}

/// Opens the source, on this machine or at a peer.
pub(super) fn open_source<'c>(job: &Job<'c>) -> Result<Content<'c>, Failure> {
    if let (Some(peer), Some(file)) = (job.context.peer, job.file_id()) {
        let unrequested = if job.plan.found.listing.with_data {
            peer.unrequested(file)
        } else {
            None
        };
        let mut incoming = match unrequested {
            Some(incoming) => incoming,
            None => peer.answer(file).map_err(Failure::Fatal)?,
        };
        return match incoming.refusal().map_err(Failure::Fatal)? {
            None => Ok(Content::Stream {
                peer,
                file,
                incoming,
            }),
            Some(problem) => Err(problem.into()),
        };
    }
    let Some(place) = job.place() else {
        return Err(Failure::Stopped);
    };
    let full = || place.full(job.source_name());
    let file = job
        .open_source(place)
        .map_err(|error| cannot_open(&full(), &error))?;
    if job.context.options.place.append.is_some() && job.dest().is_some() {
        let stat = sys::fstat(file.as_fd()).map_err(|error| cannot_read(&full(), &error))?;
        if stat.len_bytes < job.source().len_bytes {
            return Err(diminished(&full()).into());
        }
    }
    Ok(Content::File(file))
}

/// Opens a twin if it is unchanged, or else the file that holds its content.
fn open_twin(job: &Job<'_>, twin: &Twin) -> Option<OwnedFd> {
    let dir = twin.open_dir(job.context)?;
    if twin.held.is_none()
        && let Ok(file) = job.context.open_read(&dir, twin.path.name())
        && is_unchanged(twin, &file)
    {
        return Some(file);
    }
    // If the run has changed it just now, its content was held before.
    open_held(job)
}

/// Opens the file that holds the content of a twin that the run has changed.
pub(super) fn open_held(job: &Job<'_>) -> Option<OwnedFd> {
    let twin = job.twin()?;
    let Some(OldContent::Held(held)) = &twin.held else {
        return None;
    };
    let dir = twin.open_dir(job.context)?;
    let file = job.context.open_read(&dir, held.path.name()).ok()?;
    if is_unchanged(&twin, &file) {
        Some(file)
    } else {
        None
    }
}

/// Returns whether an open file is still the twin that was found, or what holds its content.
pub(super) fn is_unchanged(twin: &Twin, file: &OwnedFd) -> bool {
    sys::fstat(file.as_fd()).is_ok_and(|stat| twin.is(&stat))
}
