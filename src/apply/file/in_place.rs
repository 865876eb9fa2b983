//! `--inplace` and `--append` write into the destination's own file, `--write-devices` into a device.

use crate::apply::attributes::Has;
use crate::apply::content::{Content, ContentCounts, ContentTarget, basis_of_retry, open_basis};
use crate::apply::file::failure::{Failure, io_failed};
use crate::apply::file::hold_twin;
use crate::apply::file::verify::read_back;
use crate::apply::file::write_content::{fill, record_retry, redo, report_retry};
use crate::apply::job::Job;
use crate::apply::{Outcome, attributes, backup};
use crate::flist::entry::{S_IFMT, Stat};
use crate::flist::{Entry, Kind};
use crate::fs::compare::same_bytes;
use crate::fs::root::Dir;
use crate::fs::{errno, sys};
use crate::options::Append;
use crate::plan::{TimesToSet, keeps_time};
use crate::proto::limits::content_max_bytes;
use crate::report::event::{ErrorRole, Problem};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Writes into the destination's own file.
pub(super) fn overwrite<'c>(
    job: &Job<'c>,
    dir: &Dir,
    content: &mut Content<'c>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    let existing = job.dest().expect("checked before");
    if !hold_twin::before_overwriting(job, dir, out) {
        return Err(Failure::Stopped);
    }
    let full = || job.full();
    // rsync treats a file that it cannot read as missing, and makes no backup of it.
    let counts = !job.context.finds_differences() || job.cannot_read_dest().is_none();
    let mut copy = None;
    if job.context.options.place.backup.is_some() && counts && !out.is_repeated {
        // The file itself must stay, so its content is copied. A second attempt finds what the first one wrote.
        // As in rsync, only this file stays as it is if that fails.
        let (to, name) = backup::copy_away(job.context, dir, &job.path, &mut out.events)?;
        if content.facts().is_some_and(|facts| facts.rereads_basis) {
            copy = open_basis(job.context, &to, &name);
        }
    }
    let mode = job.wanted_mode();
    let failed = |what: &str, error: &io::Error| {
        Failure::from(Problem::failed(ErrorRole::Receiver, what, &full(), error))
    };
    let (to, opened_up) =
        open_for_writing(dir, job.name(), existing).map_err(|error| failed("open", &error))?;
    if job.context.options.select.open_noatime {
        // It may be read as the basis. A file of another user cannot be spared.
        let _ = sys::spare_atime(to.as_fd());
    }
    let was = sys::fstat(to.as_fd()).map_err(|error| failed("fstat", &error))?;
    let is_device = Kind::of_mode(was.mode) == Some(Kind::Device);
    if is_device && existing.kind() != Kind::Device {
        // A device has replaced the file that was listed.
        return Err(failed("open", &errno::denied()));
    }
    out.report_begun(job.source().len_bytes);
    let start = match job.context.options.place.append {
        Some(append) => appended_from(job, append, to.as_fd(), content, out)?,
        None => 0,
    };
    if let (Content::File(from) | Content::Alternate(from), 1..) = (&content, start) {
        let moved =
            sys::seek_to(from.as_fd(), start).and_then(|()| sys::seek_to(to.as_fd(), start));
        moved.map_err(|error| failed("lseek", &error))?;
    }
    let mut content_counts = ContentCounts {
        end_bytes: start,
        ..ContentCounts::default()
    };
    if start < job.source().len_bytes || start == 0 || matches!(content, Content::Stream { .. }) {
        // A device without a length cannot be read as a basis.
        let appends = job.context.options.place.append.is_some() && start == existing.len_bytes;
        let is_basis = !(appends || is_device && existing.len_bytes == 0);
        let digests_prefix = content.facts().is_some_and(|facts| facts.digests_prefix);
        let verifies = job.context.options.place.append == Some(Append::Verify) && digests_prefix;
        let verified_bytes = if verifies { start } else { 0 };
        let old = copy.as_ref().map_or(to.as_fd(), |(fd, _)| fd.as_fd());
        let basis = if is_basis || verified_bytes > 0 {
            Some(old)
        } else {
            None
        };
        let target = ContentTarget {
            to: to.as_fd(),
            start_bytes: start - verified_bytes,
            verified_bytes,
            basis,
            in_place: true,
            is_clone: false,
            clones_content: false,
            sparse: job.context.options.place.sparse && !is_device,
            fresh: false,
            is_device,
            verifies: job.context.options.place.verify.is_some(),
            max_bytes: content_max_bytes(job.source().len_bytes),
            threads: job.context.process.threads,
        };
        content_counts = fill(job, content, target, out)?;
    }
    if !is_device {
        cut_off(job, to.as_fd(), &was, &content_counts)
            .map_err(|error| failed("ftruncate", &error))?;
    }
    if let Err(failure) = read_back(job, to.as_fd(), &content_counts, out) {
        if matches!(failure, Failure::Damaged(_)) {
            // If all blocks were there, nothing was written, and the file may have the time of its source. The next run
            // must not treat it as unchanged.
            let _ = sys::truncate(to.as_fd(), content_counts.end_bytes);
        }
        return Err(failure);
    }
    // Before the file gets the source's time, which makes the next run treat it as unchanged.
    sys::settle(to.as_fd()).map_err(|error| io_failed(job, "close", &error))?;
    // Write errors of a block device would not be reported later. Other devices cannot be synced.
    let is_block_device = was.mode & S_IFMT == 0o060000;
    if is_block_device || (job.context.options.place.fsync && !is_device) {
        sys::fsync(to.as_fd()).map_err(|error| io_failed(job, "fsync", &error))?;
    }
    let target = job.target((to.as_fd(), b""), &full, ErrorRole::Receiver);
    let mut has = Has::from_entry(existing, TimesToSet::Both);
    if opened_up {
        has.mode = None;
    }
    has.is_rewritten = true;
    has.local = job.local_values();
    attributes::finish(
        job.context,
        target,
        job.source(),
        has,
        mode,
        &mut out.events,
    );
    Ok(content_counts)
}

/// Cuts off what the file has behind the content. `was`: its attributes before.
fn cut_off(
    job: &Job<'_>,
    to: BorrowedFd<'_>,
    was: &Stat,
    written: &ContentCounts,
) -> io::Result<()> {
    let end = written.end_bytes;
    // Wrong content, which was replaced, may have been longer. Without an answer, cutting off nothing does no harm.
    let is_longer =
        || was.len_bytes > end || sys::fstat(to).map_or(true, |stat| stat.len_bytes > end);
    // If nothing had to be written, this sets the time to now, as a write would.
    let is_unwritten =
        written.literal_bytes == 0 && !keeps_time(Kind::File, &job.context.policy.preserve);
    if is_unwritten || is_longer() {
        sys::truncate(to, end)
    } else {
        Ok(())
    }
}

/// Returns the offset to append at: the length of the existing file, or 0 if the source does not begin with it.
fn appended_from(
    job: &Job<'_>,
    append: Append,
    existing: BorrowedFd<'_>,
    content: &mut Content<'_>,
    out: &mut Outcome<'_>,
) -> Result<u64, Failure> {
    let start = job.dest().expect("checked before").len_bytes;
    let begins_otherwise = match content {
        Content::File(from) | Content::Alternate(from) | Content::Twin(from) => {
            append == Append::Verify
                && !same_bytes(from.as_fd(), existing, start, job.context.process.stop)
                    .unwrap_or(false)
        }
        Content::Stream { incoming, .. } => incoming.begins_otherwise().map_err(Failure::Fatal)?,
    };
    if !begins_otherwise {
        return Ok(start);
    }
    if job.context.stopped() {
        return Err(Failure::Stopped);
    }
    report_retry(job, out);
    let item = record_retry(job);
    if let Content::Stream {
        peer,
        file,
        incoming,
    } = content
    {
        let basis = basis_of_retry(job.context, existing, peer.facts());
        *incoming = redo(*peer, *file, basis, item)?;
    }
    Ok(0)
}

/// Opens a file for writing in place, and first makes it writable if its owner may not write to it. Returns whether
/// that was done.
fn open_for_writing(dir: &Dir, name: &[u8], existing: &Entry) -> io::Result<(OwnedFd, bool)> {
    let is_closed = existing.kind() == Kind::File && existing.mode & 0o200 == 0;
    match sys::open_write(dir.fd(), name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_closed => {
            sys::chmod(dir.fd(), name, existing.mode | 0o600)?;
            Ok((sys::open_write(dir.fd(), name)?, true))
        }
        other => Ok((other?, false)),
    }
}
