//! The lines that remain on the terminal when a run with a live display has ended, or was stopped.

use super::terminal_text::{escaped, grouped, size};
use super::{done, percent};
use crate::report::escape::Charset;
use crate::report::gauge::Counts;
use crate::report::tally::{Tally, Traffic};
use std::time::Duration;

/// What this process knows of the entries that it is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// They are in place.
    InPlace,
    /// They are up to date, or were sent. Whether the other end has written them is not known before the end.
    Sent,
    /// Nothing is written, because it is a dry run.
    Compared,
}

/// Returns the line that remains of a run that was stopped.
pub fn stopped(counts: &Counts, knowledge: Knowledge) -> String {
    // What failed, or was stopped, needs no more work in this run, but is not in place. Not everything that fails was begun.
    let missing = counts.given_up.0.max(counts.failures);
    let placed = Counts {
        done: (
            counts.done.0.saturating_sub(missing),
            counts.done.1.saturating_sub(counts.given_up.1),
        ),
        ..counts.clone()
    };
    let (entries, bytes) = done(&placed);
    let (of_entries, of_bytes) = counts.listed;
    let (at, more) = if counts.list_is_complete {
        (format!(" at {}%", percent(&placed)), "")
    } else {
        (String::new(), "+")
    };
    let done = match knowledge {
        Knowledge::InPlace => "are in place",
        Knowledge::Sent => "are up to date or were sent",
        Knowledge::Compared => "were compared",
    };
    let next = match knowledge {
        Knowledge::InPlace | Knowledge::Sent => "; run again to continue",
        Knowledge::Compared => "",
    };
    format!(
        "stopped{at}: {} of {}{more} entries {done}, {}B of {}B{more}{next}",
        grouped(entries),
        grouped(of_entries),
        size(bytes),
        size(of_bytes)
    )
}

/// What went wrong in a run that has reached its end.
#[derive(Debug, Clone)]
pub struct Failures<'a> {
    /// How many problems were reported.
    pub count: u64,
    /// The exit code.
    pub exit: u8,
    /// The message of the first problem.
    pub first: &'a [u8],
    /// The characters of the terminal.
    pub charset: Charset,
}

impl Failures<'_> {
    fn line(&self, copied: u64) -> String {
        let Failures {
            count,
            exit,
            first,
            charset,
        } = self;
        let count = grouped(*count);
        let first = escaped(first, *charset);
        let copied = grouped(copied);
        format!("{copied} copied, {count} FAILED (exit {exit}), first: {first}")
    }
}

/// New files that were renamed from others. The counts of the run have them as transferred, created and deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Renames {
    /// How many there are.
    pub files: u64,
    /// Their total length.
    pub bytes: u64,
}

/// Returns the lines that remain of a completed run: three, and one about problems if there were any. `traffic`: bytes
/// sent to and received from a peer. What was renamed counts as nothing else.
pub fn summary(
    tally: &Tally,
    renames: Renames,
    traffic: Option<Traffic>,
    elapsed: Duration,
    dry_run: bool,
    route: &str,
    failures: Option<&Failures<'_>>,
) -> Vec<String> {
    let (copied_files, copied_bytes) = tally.copied();
    let copied_files = copied_files.saturating_sub(renames.files);
    let copied_bytes = copied_bytes.saturating_sub(renames.bytes);
    let created = tally.present().total().saturating_sub(renames.files);
    let deleted = tally.deleted.total().saturating_sub(renames.files);
    let would = if dry_run { "would be " } else { "" };
    let renamed = match renames.files {
        0 => String::new(),
        files => format!("{} {would}renamed, ", grouped(files)),
    };
    let changed = format!(
        "{} of {} files {would}copied, {renamed}{} entries {would}created, {} {would}deleted",
        grouped(copied_files),
        grouped(tally.listed.files),
        grouped(created),
        grouped(deleted),
    );
    let full = tally.total_bytes;
    let share = |bytes: u64| match full {
        0 => String::new(),
        _ => format!(
            ", {:.1}% of a full copy ({}B)",
            bytes as f64 * 100.0 / full as f64,
            size(full)
        ),
    };
    let amount = match (dry_run, traffic) {
        (true, _) => {
            format!(
                "{}B would be copied{}",
                size(copied_bytes),
                share(copied_bytes)
            )
        }
        (false, None) => format!(
            "{}B written{}",
            size(tally.literal_bytes),
            share(tally.literal_bytes)
        ),
        (
            false,
            Some(Traffic {
                sent_bytes: sent,
                received_bytes: received,
            }),
        ) => {
            format!(
                "{}B sent, {}B received{}",
                size(sent),
                size(received),
                share(sent.max(received))
            )
        }
    };
    let rate = (copied_bytes as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let rate = if dry_run {
        String::new()
    } else {
        format!(", {}B/s", size(rate))
    };
    let end = format!("{:.1} s{rate}, {route}", elapsed.as_secs_f64());
    [
        Some(changed),
        failures.map(|failures| failures.line(copied_files)),
        Some(amount),
        Some(end),
    ]
    .into_iter()
    .flatten()
    .collect()
}
