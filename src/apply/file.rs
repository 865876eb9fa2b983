//! Transfers the content of a file to its final name.

pub mod failure;
mod hold_twin;
mod in_place;
mod open_content;
mod share_blocks;
mod temp_rename;
mod twin_link;
pub mod verify;
mod write_content;

use self::failure::Failure;
use self::open_content::open_content;
use crate::apply::content::{Content, ContentCounts, NewContent};
use crate::apply::delayed::staging_dir;
use crate::apply::job::Job;
use crate::apply::twins::{Reuse, Twin};
use crate::apply::{Outcome, Similar, backup};
use crate::flist::Kind;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::plan::{Changes, InTheWay};
use crate::report::event::{Event, Item, Problem, ReusedBy, Update, Weight};
use std::os::fd::AsFd;

/// Transfers a file's content to its place. Returns whether the destination has the file now.
pub fn transfer(job: &Job<'_>, changes: Changes, out: &mut Outcome<'_>) -> bool {
    let was_requested = job.context.printer.is_peer() && !job.context.is_dry();
    let (changes, warning) = changes_of_transfer(job, changes);
    if !was_requested {
        out.events.extend(warning);
    }
    let similar = job.context.chosen.take(&job.path);
    out.events.extend(
        similar
            .as_ref()
            .and_then(|similar| similar.line(job))
            .map(Event::Note),
    );
    if job.context.is_dry() {
        count(out, job.source().len_bytes, changes, 0);
        if let (InTheWay::Other, Some(dir)) = (job.step.decision.in_the_way, &job.dest_dir.dir) {
            backup::report_backup(job.context, dir, &job.path, &mut out.events);
        }
        if job.context.wants.items {
            out.events.push(Event::Item(job.transfer_item(changes)));
        }
        if let Some(twin) = job.twin() {
            let how = match twin.reuse {
                Reuse::Renamed => ReusedBy::Rename,
                Reuse::Linked if twin_link::would_be_made(job, &twin) => ReusedBy::Link,
                Reuse::Linked | Reuse::Copied | Reuse::CopiedAtEnd | Reuse::Basis => ReusedBy::Copy,
            };
            report_twin(job, &twin, how, out);
        }
        if let Some(twin) = job.any_twin() {
            job.context.twins.placed(job.context, &twin);
        }
        return false;
    }
    if let Some(twin) = job.twin()
        && twin.reuse == Reuse::Linked
        && twin_link::make(job, &twin)
    {
        report_reused(job, &twin, ReusedBy::Link, out);
        return true;
    }
    out.mark = job
        .context
        .gauge
        .map(|gauge| gauge.begin(job.source().len_bytes, || job.path.as_bytes().to_vec()));
    let brought = bring(job, changes, similar.as_ref(), out);
    if brought.is_err()
        && let Some(mark) = &out.mark
    {
        mark.give_up();
    }
    // Counts what remains of the file.
    out.mark = None;
    match brought {
        Ok(()) => {
            if let Some(twin) = job.any_twin() {
                let problem = job.context.twins.placed(job.context, &twin);
                out.events.extend(problem.map(Event::Problem));
            }
            true
        }
        Err(failure) => {
            if let Some(twin) = job.any_twin() {
                job.context.twins.failed(&twin);
            }
            failure.report(out);
            false
        }
    }
}

/// Returns the item of a file that is about to be requested from a peer that prints it, and a warning.
pub fn requested_item(job: &Job<'_>, changes: Changes) -> (Box<Item>, Option<Event>) {
    let (changes, warning) = changes_of_transfer(job, changes);
    (job.transfer_item(changes), warning)
}

/// Returns the changes that are reported for a file that is transferred. Without a readable basis it counts as new, with
/// a warning.
fn changes_of_transfer(job: &Job<'_>, changes: Changes) -> (Changes, Option<Event>) {
    let needs_basis = !job.context.is_dry() && job.context.finds_differences();
    let Some(error) = needs_basis.then(|| job.cannot_read_dest()).flatten() else {
        return (changes, None);
    };
    let full = job.full();
    let words = crate::report::event::errno_words(&error);
    let start = b"rsync: [generator] failed to open \"";
    let line = [start.as_slice(), &full, b"\", continuing: ", &words].concat();
    (
        Changes::NEW,
        Some(Event::Problem(Problem::new(line, Weight::Warning))),
    )
}

/// Transfers the content, and reports and counts it.
fn bring(
    job: &Job<'_>,
    changes: Changes,
    similar: Option<&Similar>,
    out: &mut Outcome<'_>,
) -> Result<(), Failure> {
    let opened = open_content(job);
    let mut content = opened.inspect_err(|failure| count_unsent(job, changes, failure, out))?;
    out.begun.clear();
    let mut item = job.context.wants.items.then(|| job.transfer_item(changes));
    if job.context.wants.begin {
        let name = item.as_ref().map(|item| item.name.clone());
        out.begun.extend(name.map(Event::Begin));
    }
    if !job.context.wants.after_transfer {
        let shown = item.take();
        if !job.context.printer.is_peer() {
            out.begun.extend(shown.map(Event::Item));
        }
    }
    if !job.context.printer.is_receiver() {
        out.report_begun(job.source().len_bytes);
    }
    let content_counts = place_content(
        job,
        NewContent {
            content: &mut content,
            similar,
        },
        out,
    )?;
    // A source that has changed may have another length than the listed one.
    let len_bytes = content_counts.end_bytes;
    count(out, len_bytes, changes, content_counts.literal_bytes);
    out.tally.matched_bytes += content_counts.matched_bytes;
    if job.context.wants.progress {
        out.events.push(Event::Progress {
            done_bytes: len_bytes,
            len_bytes,
        });
    }
    if let Some(mut item) = item {
        let printer = job.context.printer;
        let is_received = printer.is_receiver() || printer.is_peer();
        if printer.is_receiver() {
            // If the peer gets items, it got this one before the transfer.
            item.file = None;
        }
        let counted = if let Content::Stream { incoming, .. } = &content {
            incoming.moved_bytes()
        } else {
            None
        };
        item.moved_bytes =
            counted.unwrap_or_else(|| moved_bytes(content_counts.literal_bytes, is_received));
        if job.context.wants.digest {
            item.digest = digest_of(&content, job);
        }
        out.events.push(Event::Item(item));
    }
    // If the twin could not be read, the content came from the source.
    if let (Content::Twin(_), Some(twin)) = (&content, job.twin()) {
        report_twin(job, &twin, ReusedBy::Copy, out);
    }
    Ok(())
}

/// Reports that a file has the content of its twin.
fn report_twin(job: &Job<'_>, twin: &Twin, how: ReusedBy, out: &mut Outcome<'_>) {
    if !job.context.wants.reused {
        return;
    }
    out.events.push(Event::Reused {
        from: twin.shown(job.context),
        name: job.path.as_bytes().to_vec(),
        len_bytes: twin.len_bytes,
        how,
    });
}

/// Counts and reports a new file that was renamed from its twin or linked to it.
pub fn report_reused(job: &Job<'_>, twin: &Twin, how: ReusedBy, out: &mut Outcome<'_>) {
    let context = job.context;
    let problem = context.twins.placed(context, twin);
    out.events.extend(problem.map(Event::Problem));
    let len_bytes = job.source().len_bytes;
    let changes = job.transferred().unwrap_or(Changes::NEW);
    count(out, len_bytes, changes, 0);
    out.tally.matched_bytes += len_bytes;
    if let Some(gauge) = context.gauge {
        if how == ReusedBy::Rename {
            gauge.rename();
        }
        // Dropping it counts the file as done.
        gauge.begin(len_bytes, || job.path.as_bytes().to_vec());
    }
    let mut item = context.wants.items.then(|| job.transfer_item(changes));
    if context.wants.begin {
        let name = item.as_ref().map(|item| item.name.clone());
        out.events.extend(name.map(Event::Begin));
    }
    if !context.wants.after_transfer {
        out.events.extend(item.take().map(Event::Item));
    }
    if context.wants.progress {
        out.events.push(Event::Progress {
            done_bytes: len_bytes,
            len_bytes,
        });
    }
    if let Some(mut item) = item {
        item.moved_bytes = moved_bytes(0, context.printer.is_receiver());
        if context.wants.digest {
            let opened = job
                .dest_dir
                .dir
                .as_ref()
                .and_then(|dir| context.open_read(dir, job.name()).ok());
            item.digest = opened.and_then(|file| context.shown_digest(file.as_fd(), len_bytes));
        }
        out.events.push(Event::Item(item));
    }
    report_twin(job, twin, how, out);
}

/// Counts a file that is transferred.
fn count(out: &mut Outcome<'_>, len_bytes: u64, changes: Changes, literal_bytes: u64) {
    out.tally.transfer(len_bytes, literal_bytes);
    if changes.has(Changes::NEW) {
        out.tally.created.add(Kind::File);
    }
}

/// Counts a file that the source cannot provide, if the client is the sender: rsync's sender counts the files that it
/// begins to send.
fn count_unsent(job: &Job<'_>, changes: Changes, failure: &Failure, out: &mut Outcome<'_>) {
    if !job.context.printer.is_receiver() && matches!(failure, Failure::Reported(_)) {
        count(out, job.source().len_bytes, changes, 0);
        out.tally.unsend(job.source().len_bytes);
        if changes.has(Changes::NEW) {
            out.tally.absent.add(Kind::File);
        }
    }
}

/// Returns how many bytes rsync's sender would have sent for this many literal bytes: a header of 20 bytes, the data in
/// tokens of up to 32 KiB with four bytes of length each, an empty token, and a digest of 16 bytes.
fn moved_bytes(literal_bytes: u64, is_received: bool) -> u64 {
    // rsync's receiver does not count what the header contains about the entry.
    literal_bytes + 4 * literal_bytes.div_ceil(32 * 1024) + if is_received { 36 } else { 39 }
}

/// Returns the digest that `%C` shows, or `None` if the file cannot be read again.
fn digest_of(content: &Content<'_>, job: &Job<'_>) -> Option<Vec<u8>> {
    let placed;
    let file = match content {
        Content::File(fd) | Content::Alternate(fd) | Content::Twin(fd) => fd.as_fd(),
        Content::Stream { .. } => {
            let dir = job.dest_dir.dir.as_ref()?;
            let staging = staging_dir(job, dir).ok()?;
            placed = sys::open_read(
                staging.as_ref().unwrap_or(dir).fd(),
                job.name(),
                false,
                false,
            )
            .ok()?;
            placed.as_fd()
        }
    };
    sys::seek_to(file, 0).ok()?;
    job.context.shown_digest(file, job.source().len_bytes)
}

/// Creates the file from an alternate tree's file, with the source's attributes. Returns whether the destination has it
/// now, or `None` if the alternate's file could not be read.
pub fn copy_from(
    job: &Job<'_>,
    holder: &Dir,
    changes: Changes,
    out: &mut Outcome<'_>,
) -> Option<bool> {
    let item = job
        .context
        .wants
        .line_for(changes)
        .then(|| Event::Item(job.item(Update::Local, changes)));
    // Values of attributes come with the item.
    let is_first = job.source().has_abbreviated()
        && job.context.has_values_with_items()
        && !job.context.is_dry();
    let (first, last) = if is_first { (item, None) } else { (None, item) };
    if !job.context.is_dry() {
        let from = sys::open_read(holder.fd(), job.name(), false, false).ok()?;
        out.events.extend(first);
        if !job.await_xattrs(out) {
            return Some(false);
        }
        let mut content = Content::Alternate(from);
        let placed = quietly(out, |out| {
            place_content(
                job,
                NewContent {
                    content: &mut content,
                    similar: None,
                },
                out,
            )
        });
        if let Err(failure) = placed {
            failure.report(out);
            return Some(false);
        }
    }
    out.events.extend(last);
    Some(true)
}

/// Runs `work` without progress reports, because no data of the source moves.
fn quietly<'a, T>(out: &mut Outcome<'a>, work: impl FnOnce(&mut Outcome<'a>) -> T) -> T {
    let live = out.live.take();
    let done = work(out);
    out.live = live;
    done
}

/// Copies the content and sets name and attributes, in the way that the options require.
fn place_content<'c>(
    job: &Job<'c>,
    new: NewContent<'_, 'c>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    match &job.dest_dir.dir {
        None => Err(Failure::Stopped),
        Some(dir) if job.context.options.place.inplace && job.dest().is_some() => {
            in_place::overwrite(job, dir, new.content, out)
        }
        Some(dir) => temp_rename::replace(job, dir, new, out),
    }
}
