//! Writes content into an open file, from this machine or from a peer.

use crate::apply::content::{
    Content, ContentCounts, ContentError, ContentTarget, ExpectedContent, basis_of_retry,
    write_content,
};
use crate::apply::file::failure::{
    Failure, cannot_open, cannot_read, io_failed, no_longer_regular,
};
use crate::apply::file::open_content::{is_unchanged, open_held, open_source};
use crate::apply::file::{share_blocks, verify};
use crate::apply::job::Job;
use crate::apply::twins::{Twin, TwinIdentity};
use crate::apply::{ContentPeer, Incoming, Outcome, Redo, attributes};
use crate::digest::{By, ContentHasher};
use crate::flist::Kind;
use crate::fs::compare::digest_of_beginning;
use crate::fs::copy::{Copier, CopyError, CopyMethod};
use crate::fs::source_reader::SourceWatch;
use crate::fs::sys::{self, FileVersion};
use crate::plan::{Action, Changes};
use crate::proto::{Basis, FileId};
use crate::report::event::{Event, Item, Problem, Weight};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Writes content into a file. If it is wrong or cannot be read to its end, it is requested or read again, once.
pub(super) fn fill<'c>(
    job: &Job<'c>,
    content: &mut Content<'c>,
    target: ContentTarget<'_>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    match content {
        Content::File(from) | Content::Alternate(from) => fill_from_local(job, from, target, out),
        Content::Twin(from) => {
            if let Some(content_counts) = fill_from_twin(job, from, target, out)? {
                return Ok(content_counts);
            }
            begin_again(job, target)?;
            // It may have been overwritten meanwhile.
            if let Some(held) = open_held(job) {
                if let Some(content_counts) = fill_from_twin(job, &held, target, out)? {
                    return Ok(content_counts);
                }
                begin_again(job, target)?;
            }
            *content = open_source(job)?;
            let of_source = ContentTarget {
                clones_content: false,
                basis: None,
                ..target
            };
            fill(job, content, of_source, out)
        }
        Content::Stream {
            peer,
            file,
            incoming,
        } => fill_from_peer(job, (*peer, *file), incoming, target, out),
    }
}

/// Discards what was written into a file, so that it can be written from its beginning.
fn begin_again(job: &Job<'_>, target: ContentTarget<'_>) -> Result<(), Failure> {
    let emptied = sys::seek_to(target.to, 0).and_then(|()| sys::truncate(target.to, 0));
    emptied.map_err(|error| io_failed(job, "write", &error))
}

fn fill_from_peer<'c>(
    job: &Job<'_>,
    (peer, file): (&'c dyn ContentPeer, FileId),
    incoming: &mut Box<dyn Incoming + 'c>,
    target: ContentTarget<'_>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    let whole = ContentTarget {
        basis: None,
        is_clone: false,
        start_bytes: 0,
        verified_bytes: 0,
        ..target
    };
    // What is requested after all first requests is requested without a basis.
    let first = if out.is_repeated { whole } else { target };
    let written = write_content(&mut **incoming, first, &mut stepper(job, out));
    let first_bytes = match written {
        Ok(content_counts) => return Ok(content_counts),
        Err(error) => wrong_bytes(job, error, out)?,
    };
    if out.is_repeated || job.context.stopped() {
        return Err(given_up(job, out));
    }

    report_retry(job, out);
    let item = record_retry(job);
    // Under --append-verify, only what is appended was sent so far, and most of the rest can be right.
    let facts = peer.facts();
    let old = match target.verified_bytes {
        0 => None,
        _ if facts.presumes_backup => target.basis,
        _ => Some(target.to),
    };
    let basis = old.map_or(Basis::None, |old| basis_of_retry(job.context, old, facts));
    let second = ContentTarget {
        basis: if basis.blocks().is_some() { old } else { None },
        ..whole
    };
    *incoming = redo(peer, file, basis, item)?;
    if let Some(problem) = incoming.refusal().map_err(Failure::Fatal)? {
        return Err(problem.into());
    }
    if target.fresh {
        sys::truncate(target.to, 0).map_err(|error| io_failed(job, "write", &error))?;
    }
    let written = write_content(&mut **incoming, second, &mut stepper(job, out));
    match written {
        Ok(counts) => Ok(ContentCounts {
            literal_bytes: first_bytes + counts.literal_bytes,
            ..counts
        }),
        Err(error) => {
            wrong_bytes(job, error, out)?;
            Err(given_up(job, out))
        }
    }
}

/// Requests content again. Fails if it comes later, with other work.
pub(super) fn redo<'c>(
    peer: &'c dyn ContentPeer,
    file: FileId,
    basis: Basis,
    item: Option<Box<Item>>,
) -> Result<Box<dyn Incoming + 'c>, Failure> {
    match peer.redo(file, basis, item).map_err(Failure::Fatal)? {
        Redo::Now(incoming) => Ok(incoming),
        Redo::Later => Err(Failure::Later),
    }
}

/// Returns how many bytes came from the source of a content that is wrong, or that the peer could not read to its end,
/// which is reported. Fails for every other error.
fn wrong_bytes(job: &Job<'_>, error: ContentError, out: &mut Outcome<'_>) -> Result<u64, Failure> {
    match error {
        ContentError::Mismatch(literal_bytes) => Ok(literal_bytes),
        ContentError::Unsent(problem, literal_bytes) => {
            out.events.push(Event::Problem(problem));
            Ok(literal_bytes)
        }
        ContentError::OtherBeginning => Err(given_up(job, out)),
        ContentError::Write(error) => Err(io_failed(job, "write", &error)),
        ContentError::Lost(error) => Err(Failure::Fatal(error)),
        ContentError::Stopped => Err(Failure::Stopped),
    }
}

/// Records that a file is transferred a second time because the first attempt failed. Reported at the end; or returns the
/// item by which the peer reports it.
pub(super) fn record_retry(job: &Job<'_>) -> Option<Box<Item>> {
    let Action::Transfer(first) = job.step.decision.action else {
        return None;
    };
    if !job.context.wants.items {
        return None;
    }
    let changes = if stays_in_place(job) {
        // The first attempt would have left it with the current time.
        attributes::left_as_new(job.context, job.source())
    } else {
        first.with(Changes::CHECKSUM, false)
    };
    let item = job.transfer_item(changes);
    if job.context.printer.is_peer() {
        return Some(item);
    }
    job.context
        .again
        .lock()
        .push((job.path.clone(), Event::Item(item)));
    None
}

/// Returns the function called with the bytes of each step: limits the rate, reports progress, returns whether to go
/// on.
fn stepper<'s>(job: &Job<'s>, out: &'s mut Outcome<'_>) -> impl FnMut(u64) -> bool + 's {
    let context = job.context;
    let len_bytes = job.source().len_bytes;
    let done = &mut out.filled_bytes;
    *done = 0;
    let events = &mut out.events;
    let live = out.live;
    let mark = out.mark.as_ref();
    move |bytes| {
        if let Some(wait) = context.throttle {
            wait(bytes);
        }
        *done += bytes;
        if let Some(mark) = mark {
            mark.add(bytes);
        }
        if let (Some(live), true) = (live, context.wants.progress && *done < len_bytes) {
            events.push(Event::Progress {
                done_bytes: *done,
                len_bytes,
            });
            if !live(events) {
                events.pop();
            }
        }
        !context.stopped()
    }
}

/// Copies a twin. `None`: it cannot be read, or has changed meanwhile.
fn fill_from_twin(
    job: &Job<'_>,
    from: &OwnedFd,
    target: ContentTarget<'_>,
    out: &mut Outcome<'_>,
) -> Result<Option<ContentCounts>, Failure> {
    let before = sys::version(from.as_fd()).ok();
    let copied = copy_local(job, from.as_fd(), target, out).0;
    // Whether the run has begun to overwrite it is asked afterwards.
    let Some(twin) = job.twin() else {
        return Ok(None);
    };
    let is_right = |content_counts: &ContentCounts| {
        content_counts.end_bytes == job.source().len_bytes
            && is_unchanged(&twin, from)
            && has_expected_content(job, &twin, from, before)
    };
    match copied {
        // Nothing came from the source.
        Ok(content_counts) if is_right(&content_counts) => Ok(Some(ContentCounts {
            literal_bytes: 0,
            matched_bytes: content_counts.end_bytes,
            ..content_counts
        })),
        Ok(_) | Err(CopyError::Read(_) | CopyError::NotRegular) => Ok(None),
        Err(error @ (CopyError::Write(_) | CopyError::Stopped)) => Err(copy_failed(job, error)),
    }
}

/// Returns whether a twin that was copied has the content that it must have, if that was not known before. `before`: its
/// version before it was copied.
fn has_expected_content(
    job: &Job<'_>,
    twin: &Twin,
    file: &OwnedFd,
    before: Option<FileVersion>,
) -> bool {
    let TwinIdentity::New(expected) = twin.identity else {
        return true;
    };
    let Some(compared_by) = job.context.twins.compared_by() else {
        return false;
    };
    if sys::seek_to(file.as_fd(), 0).is_err() {
        return false;
    }
    let is_over = || job.context.is_over();
    let digest = digest_of_beginning(file.as_fd(), twin.len_bytes, compared_by, &is_over);
    // What was read is what was copied.
    let is_same = sys::version(file.as_fd()).ok() == before;
    is_same && digest.is_ok_and(|digest| digest == expected)
}

fn fill_from_local(
    job: &Job<'_>,
    from: &mut OwnedFd,
    target: ContentTarget<'_>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    let (copied, first_bytes) = copy_local(job, from.as_fd(), target, out);
    let error = match copied {
        Ok(content_counts) => return Ok(content_counts),
        Err(CopyError::Read(error)) => error,
        Err(error) => return Err(copy_failed(job, error)),
    };
    let unreadable = |error: &io::Error| Event::Problem(cannot_read(&source_full(job), error));
    out.events.push(unreadable(&error));
    if job.context.stopped() {
        return Err(Failure::Stopped);
    }
    let Some(place) = job.place() else {
        return Err(Failure::Stopped);
    };

    report_retry(job, out);
    // The source is here, so no peer prints it.
    record_retry(job);
    *from = job
        .open_source(place)
        .map_err(|error| cannot_open(&source_full(job), &error))?;
    if sys::seek_to(target.to, 0).is_err() {
        // A device that cannot be written again.
        return Err(given_up(job, out));
    }
    if target.fresh {
        sys::truncate(target.to, 0).map_err(|error| io_failed(job, "write", &error))?;
    }
    let second = ContentTarget {
        start_bytes: 0,
        is_clone: false,
        clones_content: false,
        ..target
    };
    match copy_local(job, from.as_fd(), second, out).0 {
        Ok(counts) => Ok(ContentCounts {
            literal_bytes: first_bytes + counts.literal_bytes,
            ..counts
        }),
        Err(CopyError::Read(error)) => {
            out.events.push(unreadable(&error));
            Err(given_up(job, out))
        }
        Err(error) => Err(copy_failed(job, error)),
    }
}

/// Copies a file of this machine. Also returns how many bytes were written, whether or not the copy succeeded.
fn copy_local(
    job: &Job<'_>,
    from: BorrowedFd<'_>,
    target: ContentTarget<'_>,
    out: &mut Outcome<'_>,
) -> (Result<ContentCounts, CopyError>, u64) {
    if target.clones_content {
        let cloned = share_blocks::clone_content(job, from, target.to, out);
        match cloned.map_err(CopyError::Write) {
            Ok(None) => {}
            Ok(Some(len_bytes)) => {
                let content_counts = ContentCounts {
                    literal_bytes: len_bytes,
                    end_bytes: len_bytes,
                    ..ContentCounts::default()
                };
                return (Ok(content_counts), len_bytes);
            }
            Err(error) => return (Err(error), 0),
        }
    }
    let method = CopyMethod {
        len_bytes: job.source().len_bytes,
        sparse: target.sparse,
        by_hand: job.context.throttle.is_some() || target.is_device,
        start_bytes: target.start_bytes,
        from_device: job.context.options.select.copy_devices && is_device(from),
        fresh: target.fresh,
    };
    let is_twin = job.twin().is_some();
    let watch = if job.context.wants.source_changes && !is_twin {
        SourceWatch::begin(from)
    } else {
        None
    };
    let buffer = std::mem::take(&mut out.applier.buffer);
    let mut step = stepper(job, out);
    let mut copier = Copier::new(buffer, &job.context.unsupported_calls, &mut step);
    if target.verifies {
        copier = copier.with_hasher(ContentHasher::new(By::Xxh3));
    }
    let finds_differences = target.is_clone || target.in_place && job.context.finds_differences();
    let copied = match target.basis {
        Some(basis) if finds_differences => copier
            .copy_changed(from, basis, method)
            .map(|changed| (changed.written_bytes, changed.same_bytes)),
        _ => copier.copy(from, target.to, method).map(|bytes| (bytes, 0)),
    };
    let expected = copier.digest().map(|digest| ExpectedContent {
        start_bytes: target.start_bytes,
        by: By::Xxh3,
        digest,
    });
    let mut content_counts = copied.map(|(literal_bytes, matched_bytes)| ContentCounts {
        literal_bytes,
        matched_bytes,
        end_bytes: target.start_bytes + literal_bytes + matched_bytes,
        expected,
    });
    let written_bytes = copier.written_bytes();
    let buffer = copier.into_buffer();
    drop(step);
    out.applier.buffer = buffer;
    if !is_twin && let Ok(counts) = &content_counts {
        // A source that reads differently counts as one that cannot be read.
        if let Err(error) = verify::reread_source(job, from, counts) {
            content_counts = Err(CopyError::Read(error));
        }
    }
    if content_counts.is_ok() && watch.is_some_and(|watch| watch.has_changed(from)) {
        let name = job.reported_path().to_vec();
        out.events.push(Event::SourceChanged(name));
    }
    (content_counts, written_bytes)
}

/// Returns whether an open file is a device.
fn is_device(fd: BorrowedFd<'_>) -> bool {
    sys::fstat(fd).is_ok_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::Device))
}

/// Returns whether wrong content stays where it was written until the right one replaces it.
fn stays_in_place(job: &Job<'_>) -> bool {
    let place = &job.context.options.place;
    place.inplace || place.append.is_some()
}

/// Reports that the content of a file was wrong and is transferred again, if that is wanted.
pub(super) fn report_retry(job: &Job<'_>, out: &mut Outcome<'_>) {
    if job.context.reports_retries() {
        let line = mismatch_line(job, b"WARNING: ", b" (will try again).");
        out.events
            .push(Event::Problem(Problem::new(line, Weight::Warning)));
    }
}

/// Reports that the content of a file was wrong twice.
fn given_up(job: &Job<'_>, out: &mut Outcome<'_>) -> Failure {
    let line = mismatch_line(job, b"ERROR: ", b".");
    out.events
        .push(Event::Problem(Problem::new(line, Weight::Failed)));
    Failure::Stopped
}

fn mismatch_line(job: &Job<'_>, start: &[u8], end: &[u8]) -> Vec<u8> {
    let fate: &[u8] = if stays_in_place(job) {
        b"retained"
    } else {
        b"discarded"
    };
    [
        start,
        job.path.as_bytes(),
        b" failed verification -- update ",
        fate,
        end,
    ]
    .concat()
}

/// Returns the absolute path of the source file, for messages.
fn source_full(job: &Job<'_>) -> Vec<u8> {
    job.place()
        .map(|place| place.full(job.source_name()))
        .unwrap_or_default()
}

fn copy_failed(job: &Job<'_>, error: CopyError) -> Failure {
    match error {
        CopyError::Stopped => Failure::Stopped,
        CopyError::Read(error) => cannot_read(&source_full(job), &error).into(),
        CopyError::NotRegular => no_longer_regular(&source_full(job)).into(),
        CopyError::Write(error) => io_failed(job, "write", &error),
    }
}
