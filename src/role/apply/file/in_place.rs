//! `--inplace` and `--append`: content goes into the destination's own file.

use super::failure::{Failure, io_failed, no_backup};
use super::fill::fill;
use super::{Hands, cannot_read_old, tell_begun, wanted_mode};
use crate::flist::Kind;
use crate::fs::compare::same_bytes;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::options::Append;
use crate::plan::{Changes, keeps_time};
use crate::proto::limits::content_max_bytes;
use crate::report::event::{Event, Problem, Update, Voice, Weight};
use crate::role::apply::attrs::{self, Has, Subject};
use crate::role::apply::content::{Content, Poured, Vessel};
use crate::role::apply::entry::Job;
use crate::role::apply::{Context, Outcome, backup};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Writes into the destination's own file.
pub(super) fn overwrite(
    context: &Context<'_>,
    hands: &mut Hands,
    job: &Job<'_>,
    dir: &Dir,
    content: &mut Content<'_>,
    out: &mut Outcome<'_>,
) -> Result<Poured, Failure> {
    let there = job.dest().expect("asked before");
    let full = || context.full(job.path.as_bytes());
    // What rsync takes for missing it does not keep either.
    let counts = !context.finds_differences() || cannot_read_old(context, job).is_none();
    if context.options.place.backup.is_some() && counts {
        // The file itself must stay, so its content is copied away.
        backup::copy_away(context, dir, &job.path, &mut out.events).map_err(no_backup)?;
    }
    let mode = wanted_mode(context, job);
    let (to, opened_up) = open_for_writing(dir, job.name(), there.mode)
        .map_err(|error| Failure::from(Problem::failed(Voice::Receiver, "open", &full(), &error)))?;
    tell_begun(job, out);
    let start = match context.options.place.append {
        Some(append) => appended_from(context, job, append, to.as_fd(), content, out)?,
        None => 0,
    };
    if let Content::File(from) = content {
        let moved = sys::seek_to(from.as_fd(), start).and_then(|()| sys::seek_to(to.as_fd(), start));
        moved.map_err(|error| Failure::from(Problem::failed(Voice::Receiver, "lseek", &full(), &error)))?;
    }
    let mut poured = Poured::default();
    if start < job.source().len_bytes || start == 0 || matches!(content, Content::Stream { .. }) {
        let basis = Some(to.as_fd()).filter(|_| context.options.place.append.is_none());
        let vessel = Vessel {
            to: to.as_fd(),
            start_bytes: start,
            basis,
            in_place: true,
            sparse: context.options.place.sparse,
            fresh: false,
            max_bytes: content_max_bytes(job.source().len_bytes),
            threads: context.threads,
        };
        poured = fill(context, hands, job, content, vessel, out)?;
    }
    let end = start + poured.literal_bytes + poured.matched_bytes;
    // Where nothing had to be written, this gives it the time of now, as if it had been.
    let is_unwritten = poured.literal_bytes == 0 && !keeps_time(Kind::File, &context.policy.preserve);
    if (is_unwritten || sys::fstat(to.as_fd()).is_ok_and(|stat| stat.len_bytes > end))
        && let Err(error) = sys::truncate(to.as_fd(), end)
    {
        return Err(Problem::failed(Voice::Receiver, "ftruncate", &full(), &error).into());
    }
    // Before it has the time of its source, by which the next run would take it for the same.
    sys::settle(to.as_fd()).map_err(|error| io_failed(context, job, "close", &error))?;
    if context.options.place.fsync {
        sys::fsync(to.as_fd()).map_err(|error| io_failed(context, job, "fsync", &error))?;
    }
    let mut problems = Vec::new();
    let subject = Subject { fd: to.as_fd(), name: b"", full: &full, path: job.path.as_bytes(), voice: Voice::Receiver };
    let mut has = Has::of(there, Changes::TIME | Changes::ATIME);
    has.mode = has.mode.filter(|_| !opened_up);
    attrs::finish(context, subject, job.source(), has, mode, &mut problems);
    out.events.extend(problems.into_iter().map(Event::Problem));
    Ok(poured)
}

/// From where on content is appended: the end of what there is, unless that does not begin as the source does.
fn appended_from(
    context: &Context<'_>,
    job: &Job<'_>,
    append: Append,
    there: BorrowedFd<'_>,
    content: &mut Content<'_>,
    out: &mut Outcome<'_>,
) -> Result<u64, Failure> {
    let start = job.dest().expect("asked before").len_bytes;
    let begins_otherwise = match content {
        Content::File(from) => {
            append == Append::Verify && !same_bytes(from.as_fd(), there, start, context.stop).unwrap_or(false)
        }
        Content::Stream { incoming, .. } => incoming.begins_otherwise().map_err(Failure::Fatal)?,
    };
    if !begins_otherwise {
        return Ok(start);
    }
    if context.stopped() {
        return Err(Failure::Stopped);
    }
    let words = b" failed verification -- update retained (will try again).";
    let line = [b"WARNING: ", job.path.as_bytes(), words].concat();
    out.events.push(Event::Problem(Problem::said(line, Weight::Warning)));
    tell_again(context, job);
    if let Content::Stream { wire, file, incoming } = content {
        *incoming = wire.again(*file).map_err(Failure::Fatal)?;
    }
    Ok(0)
}

/// Notes that a file is transferred a second time, because the first did not succeed: told at the end.
fn tell_again(context: &Context<'_>, job: &Job<'_>) {
    if context.wants.items {
        // The first attempt would have left it with the time of now.
        let changes = attrs::left_as_new(context, job.source());
        let mut item = job.item(context, Update::Received, changes);
        item.transfer = true;
        let mut again = context.again.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        again.push((job.path.clone(), Event::Item(item)));
    }
}

/// Opens a file for writing in place, making it writable first where its mode forbids that to its owner;
/// whether that was done.
fn open_for_writing(dir: &Dir, name: &[u8], mode: u32) -> io::Result<(OwnedFd, bool)> {
    match sys::open_write(dir.fd(), name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && mode & 0o200 == 0 => {
            sys::chmod(dir.fd(), name, mode | 0o600)?;
            Ok((sys::open_write(dir.fd(), name)?, true))
        }
        other => Ok((other?, false)),
    }
}
