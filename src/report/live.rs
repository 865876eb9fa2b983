//! The lines of the live display (`--ui`) and of its summary. Pure: the caller passes times and the terminal's width.

mod measures;
mod summary;
mod terminal_text;
#[cfg(test)]
mod tests;

pub use measures::{FileTimes, Rate, Rates, Stall};
pub use summary::{Failures, Knowledge, Renames, stopped, summary};
pub use terminal_text::{rows, width};

use self::terminal_text::{clock, cut, ending, escaped, grouped, size};
use super::escape::Charset;
use super::gauge::Counts;
use std::time::Duration;

/// How many files in progress are shown.
pub const FILES_SHOWN: usize = 3;
/// The columns that a file's name gets at least, before there is room for the remaining time.
const NAME_COLUMNS: usize = 12;
/// A remaining time at or above this is not shown.
const REMAINING_MAX_SECS: u64 = 100 * 3600;

/// A moment of a run.
#[derive(Debug, Clone)]
pub struct Moment<'a> {
    /// The counters.
    pub counts: &'a Counts,
    /// The rates, if enough time has passed.
    pub rates: Option<Rate>,
    /// The seconds that each file in progress still takes, as far as they are known.
    pub files_left: &'a [Option<u64>],
    /// For how long nothing has moved, if that is long, and the peer that sends nothing.
    pub stalled: Option<(Duration, &'a str)>,
    /// The time since the beginning.
    pub elapsed: Duration,
    /// How the data travels, and why so.
    pub route: &'a str,
    /// The characters of the terminal.
    pub charset: Charset,
}

/// Returns the lines of the display, none wider than `width` columns.
pub fn lines(moment: &Moment<'_>, width: usize) -> Vec<String> {
    let Moment {
        counts,
        files_left,
        elapsed,
        route,
        charset,
        ..
    } = moment;
    let mut begin = vec![phase(counts).to_owned(), clock(elapsed.as_secs())];
    begin.extend(results(counts));
    let mut lines = vec![
        cut(&format!("{}  {route}", fitting(&begin, ", ", width)), width),
        cut(
            &format!(
                "  {}",
                fitting(&parts(moment), "  ", width.saturating_sub(2))
            ),
            width,
        ),
    ];
    for (at, (path, done, len)) in counts.files.iter().take(FILES_SHOWN).enumerate() {
        let percent = u128::from(*done) * 100 / u128::from((*len).max(1));
        let left = match files_left.get(at) {
            Some(Some(secs)) if *secs < REMAINING_MAX_SECS => format!("  ETA {}", clock(*secs)),
            _ => String::new(),
        };
        let mut tail = format!("  {percent:>3}% of {}B", size(*len));
        if 2 + NAME_COLUMNS + tail.len() + left.len() <= width {
            tail += &left;
        }
        let room = width.saturating_sub(2 + tail.len());
        lines.push(cut(
            &format!("  {}{tail}", ending(path, room, *charset)),
            width,
        ));
    }
    if !counts.last_failure.is_empty() {
        let last = escaped(&counts.last_failure, *charset);
        lines.push(cut(&format!("  last error: {last}"), width));
    }
    lines
}

/// Returns the line of `--ui=plain`.
pub fn plain_line(moment: &Moment<'_>) -> String {
    let Moment {
        counts, elapsed, ..
    } = moment;
    let parts = parts(moment).join(", ");
    format!(
        "sparsync: {}, {}, {parts}, {}",
        phase(counts),
        clock(elapsed.as_secs()),
        results(counts).join(", ")
    )
}

/// Returns what the run is doing.
fn phase(counts: &Counts) -> &'static str {
    let (entries, bytes) = done(counts);
    let (of_entries, of_bytes) = counts.listed;
    match (counts.is_deleting, counts.list_is_complete) {
        (true, _) => "deleting",
        (false, false) if counts.copied.0 == 0 && counts.files.is_empty() => "listing",
        (false, false) => "listing and copying",
        (false, true) if entries < of_entries || bytes < of_bytes => "copying",
        (false, true) => "finishing",
    }
}

/// Returns what has happened so far, the most important first: how many files were copied, and what else there was. A file
/// that was renamed counts as nothing else.
fn results(counts: &Counts) -> Vec<String> {
    let mut results = vec![match counts.copied.0.saturating_sub(counts.renamed) {
        1 => "1 file copied".to_owned(),
        files => format!("{} files copied", grouped(files)),
    }];
    if counts.failures > 0 {
        results.push(format!("{} FAILED", grouped(counts.failures)));
    }
    if counts.skipped > 0 {
        results.push(format!("{} skipped", grouped(counts.skipped)));
    }
    if counts.renamed > 0 {
        results.push(format!("{} renamed", grouped(counts.renamed)));
    }
    // The rename counts a moment before its deletion, or after it.
    let deleted = counts.deleted.saturating_sub(counts.renamed);
    if deleted > 0 {
        results.push(format!("{} deleted", grouped(deleted)));
    }
    match counts.reconnections {
        0 => {}
        1 => results.push("1 reconnection".to_owned()),
        more => results.push(format!("{} reconnections", grouped(more))),
    }
    results
}

/// Returns the entries and bytes that need no more work. A peer may request a file again.
fn done(counts: &Counts) -> (u64, u64) {
    let (of_entries, of_bytes) = counts.listed;
    (counts.done.0.min(of_entries), counts.done.1.min(of_bytes))
}

/// Returns how far the run is, the most important first. A `+` marks what grows with the list.
fn parts(moment: &Moment<'_>) -> Vec<String> {
    let Moment {
        counts,
        rates,
        stalled,
        elapsed,
        ..
    } = moment;
    let (entries, bytes) = done(counts);
    let (of_entries, of_bytes) = counts.listed;
    let more = if counts.list_is_complete { "" } else { "+" };
    let mut parts = Vec::new();
    if counts.list_is_complete {
        parts.push(format!("{}%", percent(counts)));
    }
    parts.push(format!("{}B of {}B{more}", size(bytes), size(of_bytes)));
    parts.push(format!(
        "{} of {}{more} entries",
        grouped(entries),
        grouped(of_entries)
    ));
    if let Some((stalled, peer)) = stalled {
        let secs = stalled.as_secs();
        parts.push(format!("stalled {secs} s: no data from {peer}"));
        return parts;
    }
    let Some(Rate { copied, done }) = *rates else {
        return parts;
    };
    parts.push(format!("{}B/s", size(copied)));
    let left = of_bytes - bytes;
    let secs = left.checked_div(done);
    if let Some(secs) = secs
        && left > 0
        && secs < REMAINING_MAX_SECS
    {
        parts.push(format!("ETA {}{more}", clock(secs)));
    }
    let mean = counts.copied.1 as f64 / elapsed.as_secs_f64().max(0.001);
    parts.push(format!("mean {}B/s", size(mean as u64)));
    parts
}

/// Returns the parts that fit into a line, without the last ones if there is no room.
fn fitting(parts: &[String], between: &str, columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let between = if line.is_empty() { "" } else { between };
        if width(&line) + between.len() + width(part) > columns {
            break;
        }
        line += between;
        line += part;
    }
    line
}

/// Returns the share of bytes that are done; that of the entries if there are no bytes. Nothing of nothing is all.
fn percent(counts: &Counts) -> u128 {
    let (entries, bytes) = done(counts);
    let (of_entries, of_bytes) = counts.listed;
    match (of_bytes, of_entries) {
        (0, 0) => 100,
        (0, _) => u128::from(entries) * 100 / u128::from(of_entries),
        (_, _) => u128::from(bytes) * 100 / u128::from(of_bytes),
    }
}
