//! Writes content into an open file, from this machine or from a peer.

use crate::apply::content::{
    Content, ContentCounts, ContentError, ContentTarget, basis_of_retry, write_content,
};
use crate::apply::file::failure::{Failure, cannot_read, io_failed, no_longer_regular};
use crate::apply::job::Job;
use crate::apply::{BlockSums, Outcome, Retry, attributes};
use crate::error::Error;
use crate::flist::Kind;
use crate::fs::copy::{Copier, CopyError, CopyMethod};
use crate::fs::sys;
use crate::proto::Basis;
use crate::report::event::{Event, Problem, Weight};
use std::os::fd::{AsFd, BorrowedFd};

/// Writes content into a file. A peer's content is checked, and requested again once if it is wrong.
pub(super) fn fill(
    job: &Job<'_>,
    content: &mut Content<'_>,
    target: ContentTarget<'_>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    let (wire, file, incoming) = match content {
        Content::File(from) => return fill_from_local(job, from.as_fd(), target, out),
        Content::Stream {
            wire,
            file,
            incoming,
        } => (*wire, *file, incoming),
    };
    let retry = wire.retry();
    let whole = ContentTarget {
        basis: None,
        start_bytes: 0,
        verified_bytes: 0,
        ..target
    };
    let first = if retry == Retry::Never { whole } else { target };
    let mut content_counts = write_content(&mut **incoming, first, &mut stepper(job, out));
    if let Err(ContentError::Mismatch(first_bytes)) = content_counts
        && retry != Retry::Never
        && !job.context.stopped()
    {
        if job.context.reports_retries() {
            let then = if target.verified_bytes > 0 {
                AfterMismatch::Retain
            } else {
                AfterMismatch::Discard
            };
            report_mismatch(job, then, &mut out.events);
        }
        if target.verified_bytes > 0 {
            record_retry(job).map_err(Failure::Fatal)?;
        }
        if retry == Retry::Later {
            return Err(Failure::Later);
        }
        // Only what is appended was sent so far, and most of the rest can be right. Before protocol 29, a sender expects
        // that the basis of a file with a backup is not overwritten.
        let old = match wire.block_sums() {
            BlockSums::Stock { protocol: ..29, .. } => target.basis,
            BlockSums::Stock { .. } | BlockSums::Native => Some(target.to),
        };
        let old = old.filter(|_| target.verified_bytes > 0);
        let basis = old.map_or(Basis::None, |old| basis_of_retry(job.context, old, wire));
        let second = ContentTarget {
            basis: old.filter(|_| basis.blocks().is_some()),
            ..whole
        };
        *incoming = wire.again(file, basis).map_err(Failure::Fatal)?;
        if target.fresh {
            sys::truncate(target.to, 0).map_err(|error| io_failed(job, "write", &error))?;
        }
        content_counts =
            write_content(&mut **incoming, second, &mut stepper(job, out)).map(|counts| {
                ContentCounts {
                    literal_bytes: first_bytes + counts.literal_bytes,
                    ..counts
                }
            });
    }
    content_counts.map_err(|error| match error {
        ContentError::Unsent(problem) => problem.into(),
        ContentError::Mismatch(_) | ContentError::OtherBeginning => {
            report_mismatch(job, AfterMismatch::GiveUp, &mut out.events);
            Failure::Stopped
        }
        ContentError::Write(error) => io_failed(job, "write", &error),
        ContentError::Lost(error) => Failure::Fatal(error),
        ContentError::Stopped => Failure::Stopped,
    })
}

/// Records that a file is transferred a second time because the first attempt failed. Reported at the end, or by the
/// peer.
pub(super) fn record_retry(job: &Job<'_>) -> Result<(), Error> {
    if !job.context.wants.items {
        return Ok(());
    }
    // The first attempt would have left it with the current time.
    let changes = attributes::left_as_new(job.context, job.source());
    let item = job.transfer_item(changes);
    if let Some(wire) = job
        .context
        .wire
        .filter(|_| job.context.is_reported_by_peer())
    {
        return wire.announce(item);
    }
    job.context
        .again
        .lock()
        .push((job.path.clone(), Event::Item(item)));
    Ok(())
}

/// Returns the function called with the bytes of each step: limits the rate, reports progress, returns whether to go
/// on.
fn stepper<'s>(job: &Job<'s>, out: &'s mut Outcome<'_>) -> impl FnMut(u64) -> bool + 's {
    let (context, len_bytes) = (job.context, job.source().len_bytes);
    let mut done = 0;
    let (events, live, mark) = (&mut out.events, out.live, out.mark.as_ref());
    move |bytes| {
        if let Some(wait) = context.throttle {
            wait(bytes);
        }
        done += bytes;
        if let Some(mark) = mark {
            mark.add(bytes);
        }
        if let (Some(live), true) = (live, context.wants.progress && done < len_bytes) {
            events.push(Event::Progress {
                done_bytes: done,
                len_bytes,
            });
            if !live(events) {
                events.pop();
            }
        }
        !context.stopped()
    }
}

fn fill_from_local(
    job: &Job<'_>,
    from: BorrowedFd<'_>,
    target: ContentTarget<'_>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    let len_bytes = job.source().len_bytes;
    let (sparse, by_hand) = (
        target.sparse,
        job.context.throttle.is_some() || target.is_device,
    );
    let from_device = job.context.options.select.copy_devices && is_device(from);
    let start = from_device.then_some(target.start_bytes);
    let manner = CopyMethod {
        len_bytes,
        sparse,
        by_hand,
        from_device: start,
        fresh: target.fresh,
    };
    let max_bytes = if from_device { len_bytes } else { u64::MAX };
    let buffer = std::mem::take(&mut out.applier.buffer);
    let mut step = stepper(job, out);
    let mut copier = Copier::new(buffer, &job.context.unsupported_calls, &mut step);
    let copied = match target.basis {
        Some(basis) if target.in_place && job.context.finds_differences() => copier
            .copy_changed(from, basis, sparse, max_bytes)
            .map(|changed| (changed.written_bytes, changed.same_bytes)),
        _ => copier.copy(from, target.to, manner).map(|bytes| (bytes, 0)),
    };
    let copied = copied.map(|(literal_bytes, matched_bytes)| ContentCounts {
        literal_bytes,
        matched_bytes,
        end_bytes: target.start_bytes + literal_bytes + matched_bytes,
    });
    let buffer = copier.into_buffer();
    drop(step);
    out.applier.buffer = buffer;
    if let Ok(content_counts) = copied
        && content_counts.literal_bytes + content_counts.matched_bytes != len_bytes
        && !from_device
        && sys::fstat(from).is_ok_and(|stat| Kind::of_mode(stat.mode) != Some(Kind::File))
    {
        // An empty fifo would look like an empty file.
        let full = job
            .place()
            .map(|place| place.full(job.source_name()))
            .unwrap_or_default();
        return Err(no_longer_regular(&full).into());
    }
    copied.map_err(|error| copy_failed(job, error))
}

/// Returns whether an open file is a device.
fn is_device(fd: BorrowedFd<'_>) -> bool {
    sys::fstat(fd).is_ok_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::Device))
}

/// What happens after wrong content.
enum AfterMismatch {
    /// What was written stays, and the rest is requested again.
    Retain,
    /// The content is requested again.
    Discard,
    /// The file fails.
    GiveUp,
}

/// Reports that the content is not the source's.
fn report_mismatch(job: &Job<'_>, then: AfterMismatch, events: &mut Vec<Event>) {
    let (start, end, weight): (&[u8], &[u8], _) = match then {
        AfterMismatch::Retain => (
            b"WARNING: ",
            b" failed verification -- update retained (will try again).",
            Weight::Warning,
        ),
        AfterMismatch::Discard => (
            b"WARNING: ",
            b" failed verification -- update discarded (will try again).",
            Weight::Warning,
        ),
        AfterMismatch::GiveUp => (
            b"ERROR: ",
            b" failed verification -- update discarded.",
            Weight::Failed,
        ),
    };
    events.push(Event::Problem(Problem::new(
        [start, job.path.as_bytes(), end].concat(),
        weight,
    )));
}

fn copy_failed(job: &Job<'_>, error: CopyError) -> Failure {
    match error {
        CopyError::Stopped => Failure::Stopped,
        CopyError::Read(error) => {
            let full = job
                .place()
                .map(|place| place.full(job.source_name()))
                .unwrap_or_default();
            cannot_read(&full, &error).into()
        }
        CopyError::Write(error) => io_failed(job, "write", &error),
    }
}
