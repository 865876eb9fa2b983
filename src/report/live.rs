//! The lines of the live display (`--ui`) and of its summary. Pure: the caller passes times and the terminal's width.

use super::escape::{self, Charset};
use super::gauge::Counts;
use super::number::put_int;
use super::tally::{Tally, Traffic};
use std::collections::VecDeque;
use std::time::Duration;
use unicode_width::UnicodeWidthChar;

/// How many files in progress are shown.
pub const FILES_SHOWN: usize = 3;
/// The columns that a file's name gets at least, before there is room for the remaining time.
const NAME_COLUMNS: usize = 12;
/// The time over which rates are measured.
const WINDOW: Duration = Duration::from_secs(10);
/// The shortest time over which a rate is measured.
const WINDOW_MIN: Duration = Duration::from_millis(500);
/// The parts of that time of which the median is taken.
const SLICE: Duration = Duration::from_secs(1);
/// From this time on, a run in which nothing moves is shown as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(3);
/// A remaining time at or above this is not shown.
const REMAINING_MAX_SECS: u64 = 100 * 3600;

/// The bytes per second of the last seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Those that are copied.
    pub copied: u64,
    /// Those that need no more work, as far as what is left will go on like that: the mean of what is copied, and the
    /// median second of what is skipped. Thousands of files are skipped at once, for example when the walk overtakes the
    /// copy. In the mean, such a burst would make the remaining time too short for as long as the window has it.
    pub done: u64,
}

/// Measures rates over the last seconds.
#[derive(Debug, Default)]
pub struct Rates {
    /// Moments since the beginning, with the bytes copied and skipped by then.
    history: VecDeque<(Duration, u64, u64)>,
}

impl Rates {
    /// Adds a moment. Returns the rates; `None` if too little time has passed.
    pub fn measure(&mut self, now: Duration, counts: &Counts) -> Option<Rate> {
        let copied = counts.copied.1;
        let skipped = counts.done.1.saturating_sub(copied);
        // A run that is repeated counts from 0 again.
        if self
            .history
            .back()
            .is_some_and(|newest| copied < newest.1 || skipped < newest.2)
        {
            self.history.clear();
        }
        self.history.push_back((now, copied, skipped));
        while self.history.len() > 2 && self.history[1].0 + WINDOW <= now {
            self.history.pop_front();
        }
        let &(since, copied_before, _) = self.history.front()?;
        let span = now.saturating_sub(since);
        if span < WINDOW_MIN {
            return None;
        }
        let rate = per_second(copied - copied_before, span);
        Some(Rate {
            copied: rate,
            done: rate.saturating_add(self.median_skipped()),
        })
    }

    /// Returns the median of the bytes skipped per second, over the seconds of the history. The lower one of two: a burst
    /// in one of two seconds is no rate.
    fn median_skipped(&self) -> u64 {
        let mut rates = Vec::new();
        let mut begin = self.history.front();
        for moment in &self.history {
            let Some(&(since, _, before)) = begin else {
                break;
            };
            let &(now, _, skipped) = moment;
            if now >= since + SLICE {
                rates.push(per_second(skipped - before, now - since));
                begin = Some(moment);
            }
        }
        rates.sort_unstable();
        let middle = rates.len().saturating_sub(1) / 2;
        rates.get(middle).copied().unwrap_or(0)
    }
}

fn per_second(bytes: u64, span: Duration) -> u64 {
    (bytes as f64 / span.as_secs_f64()) as u64
}

/// Measures how long the large files in progress still take.
#[derive(Debug, Default)]
pub struct FileTimes {
    /// The files in progress, when each was seen first, and the bytes done by then.
    seen: Vec<(Vec<u8>, Duration, u64)>,
}

impl FileTimes {
    /// Adds a moment. Returns the seconds that each file in progress still takes at its rate so far; `None` if nothing
    /// moves or too little time has passed.
    pub fn measure(&mut self, now: Duration, counts: &Counts) -> Vec<Option<u64>> {
        let earlier = std::mem::take(&mut self.seen);
        let mut left = Vec::new();
        for (path, done, len) in &counts.files {
            let before = earlier.iter().find(|(seen, ..)| seen == path);
            // A file that is sent again counts from 0 again.
            let (since, begun) = match before {
                Some((_, since, begun)) if begun <= done => (*since, *begun),
                _ => (now, *done),
            };
            self.seen.push((path.clone(), since, begun));
            let span = now.saturating_sub(since);
            let rate = (done - begun) as f64 / span.as_secs_f64();
            left.push(if span >= WINDOW_MIN && rate >= 1.0 {
                Some((len.saturating_sub(*done) as f64 / rate) as u64)
            } else {
                None
            });
        }
        left
    }
}

/// Finds out since when nothing has moved.
#[derive(Debug, Default)]
pub struct Stall {
    /// The counters without the silence of the link, and when they changed last.
    last: Counts,
    since: Duration,
}

impl Stall {
    /// Adds a moment. Returns for how long neither the link nor the counters have moved, if that is long. Either of
    /// them can rest alone: a peer may compare contents, and this end may write what has arrived.
    pub fn measure(&mut self, now: Duration, counts: &Counts) -> Option<Duration> {
        let counters = Counts {
            silence: Duration::ZERO,
            ..counts.clone()
        };
        if counters != self.last {
            self.last = counters;
            self.since = now;
        }
        let resting = now.saturating_sub(self.since).min(counts.silence);
        if resting >= STALLED_AFTER {
            Some(resting)
        } else {
            None
        }
    }
}

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
    let created = tally.created.total().saturating_sub(renames.files);
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

/// Returns a size in units of 1000.
fn size(bytes: u64) -> String {
    number(bytes, 2)
}

fn grouped(count: u64) -> String {
    number(count, 1)
}

fn number(value: u64, level: u8) -> String {
    let mut out = Vec::new();
    put_int(&mut out, i64::try_from(value).unwrap_or(i64::MAX), level);
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns a duration as `1:02:03` or `2:03`.
fn clock(secs: u64) -> String {
    match secs / 3600 {
        0 => format!("{}:{:02}", secs / 60, secs % 60),
        hours => format!("{hours}:{:02}:{:02}", secs / 60 % 60, secs % 60),
    }
}

/// Returns the end of a path, escaped, in at most `room` columns.
fn ending(path: &[u8], room: usize, charset: Charset) -> String {
    let path = escaped(path, charset);
    if width(&path) <= room {
        return path;
    }
    let kept = room.saturating_sub(3);
    let mut columns = 0;
    let mut start = path.len();
    for (at, char) in path.char_indices().rev() {
        columns += columns_of(char);
        if columns > kept {
            break;
        }
        start = at;
    }
    // A mark whose letter has no room would end up on the dots.
    let is_mark = |char| columns_of(char) == 0;
    format!("...{}", path[start..].trim_start_matches(is_mark))
}

fn escaped(text: &[u8], charset: Charset) -> String {
    let mut escaped = Vec::new();
    escape::put(&mut escaped, text, charset);
    String::from_utf8_lossy(&escaped).replace(char::is_control, "?")
}

/// Returns the beginning of a line, in at most `width` columns.
fn cut(line: &str, width: usize) -> String {
    let line = line.replace(char::is_control, "?");
    let mut columns = 0;
    let fits = |char: &char| {
        columns += columns_of(*char);
        columns <= width
    };
    line.chars().take_while(fits).collect()
}

/// Returns how many columns a text takes on a terminal. Terminals disagree about sequences that join characters into one
/// picture, so each character counts by itself: such a line is cut too early, never too late.
pub fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// Returns how many rows a line takes on a terminal of this width that wraps it.
pub fn rows(line: &str, columns: usize) -> usize {
    let mut rows = 1;
    let mut column = 0;
    for char in line.chars() {
        let wide = columns_of(char);
        if column + wide > columns && column > 0 {
            rows += 1;
            column = 0;
        }
        column += wide;
    }
    rows
}

fn columns_of(char: char) -> usize {
    char.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::Kind;

    const SECS: Duration = Duration::from_secs(83);
    const RATE: Rate = Rate {
        copied: 103_400_000,
        done: 110_000_000,
    };

    fn counts() -> Counts {
        Counts {
            listed: (45_678, 2_850_000_000),
            list_is_complete: true,
            done: (12_345, 1_200_000_000),
            copied: (1_034, 900_000_000),
            given_up: (0, 0),
            skipped: 0,
            deleted: 0,
            renamed: 0,
            reconnections: 0,
            failures: 0,
            last_failure: Vec::new(),
            is_deleting: false,
            silence: Duration::ZERO,
            files: vec![
                (
                    b"images/a very long name of a disk image\n.img".to_vec(),
                    540_000_000,
                    1_200_000_000,
                ),
                ("später.iso".as_bytes().to_vec(), 3_000_000, 4_000_000),
            ],
        }
    }

    fn shown(counts: &Counts, width: usize) -> Vec<String> {
        let rates = Some(RATE);
        let route = "box, by QUIC, port 28792";
        lines(
            &Moment {
                counts,
                rates,
                files_left: &[Some(7), None],
                stalled: None,
                elapsed: SECS,
                route,
                charset: Charset::Utf8,
            },
            width,
        )
    }

    #[test]
    fn lines_fit_the_width() {
        assert_eq!(
            shown(&counts(), 80),
            [
                "copying, 1:23, 1,034 files copied  box, by QUIC, port 28792",
                "  42%  1.20GB of 2.85GB  12,345 of 45,678 entries  103.40MB/s  ETA 0:15",
                "  images/a very long name of a disk image\\#012.img   45% of 1.20GB  ETA 0:07",
                "  später.iso   75% of 4.00MB",
            ]
        );
        assert_eq!(
            shown(&counts(), 40),
            [
                "copying, 1:23, 1,034 files copied  box, ",
                "  42%  1.20GB of 2.85GB",
                "  ...\\#012.img   45% of 1.20GB  ETA 0:07",
                "  später.iso   75% of 4.00MB",
            ]
        );
        let wide = Counts {
            files: vec![(
                "\u{5199}\u{771f}/\u{4e00}\u{4e8c}\u{4e09}.img".into(),
                1,
                4_000_000,
            )],
            ..counts()
        };
        for columns in 0..100 {
            for counts in [&counts(), &wide] {
                for line in shown(counts, columns) {
                    assert!(width(&line) <= columns, "{columns}: {line}");
                }
            }
        }
    }

    #[test]
    fn time_of_a_file_follows_its_own_rate() {
        let mut times = FileTimes::default();
        let at = |secs: u64, files: &[(&[u8], u64, u64)]| {
            let files = files
                .iter()
                .map(|(path, done, len)| (path.to_vec(), *done, *len));
            let counts = Counts {
                files: files.collect(),
                ..Counts::default()
            };
            (Duration::from_secs(secs), counts)
        };
        let mut measure = |(now, counts): (Duration, Counts)| times.measure(now, &counts);
        assert_eq!(measure(at(10, &[(b"a", 100, 1000)])), [None]);
        assert_eq!(
            measure(at(12, &[(b"a", 300, 1000), (b"b", 0, 9)])),
            [Some(7), None]
        );
        // It rests, and the other one goes on.
        assert_eq!(
            measure(at(16, &[(b"a", 300, 1000), (b"b", 8, 9)])),
            [Some(21), Some(0)]
        );
        // It is sent again.
        assert_eq!(measure(at(17, &[(b"a", 0, 1000)])), [None]);
    }

    #[test]
    fn results_name_what_else_happened() {
        let busy = Counts {
            skipped: 44,
            deleted: 1_200,
            renamed: 30,
            reconnections: 2,
            failures: 3,
            ..counts()
        };
        assert_eq!(
            shown(&busy, 200)[0],
            "copying, 1:23, 1,004 files copied, 3 FAILED, 44 skipped, 30 renamed, 1,170 deleted, 2 reconnections  box, by QUIC, port 28792"
        );
    }

    #[test]
    fn remaining_time_is_marked_until_the_list_is_complete() {
        let growing = Counts {
            list_is_complete: false,
            ..counts()
        };
        let lines = shown(&growing, 200);
        assert!(lines[0].starts_with("listing and copying, "), "{lines:?}");
        assert_eq!(
            lines[1],
            "  1.20GB of 2.85GB+  12,345 of 45,678+ entries  103.40MB/s  ETA 0:15+  mean 10.84MB/s"
        );
    }

    #[test]
    fn stall_takes_the_place_of_rate_and_remaining_time() {
        let counts = counts();
        let moment = Moment {
            counts: &counts,
            rates: Some(RATE),
            files_left: &[],
            stalled: Some((Duration::from_millis(7900), "box")),
            elapsed: SECS,
            route: "box, by QUIC",
            charset: Charset::Utf8,
        };
        assert_eq!(
            lines(&moment, 200)[1],
            "  42%  1.20GB of 2.85GB  12,345 of 45,678 entries  stalled 7 s: no data from box"
        );
    }

    #[test]
    fn plain_line_says_what_the_display_shows() {
        let counts = counts();
        let moment = Moment {
            counts: &counts,
            rates: Some(RATE),
            files_left: &[],
            stalled: None,
            elapsed: SECS,
            route: "box, by QUIC",
            charset: Charset::Utf8,
        };
        assert_eq!(
            plain_line(&moment),
            "sparsync: copying, 1:23, 42%, 1.20GB of 2.85GB, 12,345 of 45,678 entries, 103.40MB/s, ETA 0:15, \
             mean 10.84MB/s, 1,034 files copied"
        );
    }

    #[test]
    fn run_is_stalled_if_link_and_counters_rest() {
        let at = |secs: u64, silence: u64, done: u64| {
            let counts = Counts {
                silence: Duration::from_secs(silence),
                done: (0, done),
                ..counts()
            };
            (Duration::from_secs(secs), counts)
        };
        let mut stall = Stall::default();
        let mut measure = |(now, counts): (Duration, Counts)| stall.measure(now, &counts);
        let secs = |secs| Some(Duration::from_secs(secs));
        assert_eq!(measure(at(1, 0, 1)), None);
        assert_eq!(measure(at(3, 2, 1)), None);
        assert_eq!(measure(at(4, 3, 1)), secs(3));
        assert_eq!(measure(at(9, 8, 1)), secs(8));
        // The counters move although the link rests, and the other way round.
        assert_eq!(measure(at(10, 9, 2)), None);
        assert_eq!(measure(at(20, 1, 2)), None);
    }

    #[test]
    fn stopped_run_says_how_much_is_done() {
        assert_eq!(
            stopped(&counts(), Knowledge::InPlace),
            "stopped at 42%: 12,345 of 45,678 entries are in place, 1.20GB of 2.85GB; run again to continue"
        );
        let growing = Counts {
            list_is_complete: false,
            ..counts()
        };
        assert_eq!(
            stopped(&growing, Knowledge::Sent),
            "stopped: 12,345 of 45,678+ entries are up to date or were sent, 1.20GB of 2.85GB+; run again to continue"
        );
        assert_eq!(
            stopped(&counts(), Knowledge::Compared),
            "stopped at 42%: 12,345 of 45,678 entries were compared, 1.20GB of 2.85GB"
        );
        let failed = Counts {
            given_up: (2, 200_000_000),
            failures: 5,
            ..counts()
        };
        assert_eq!(
            stopped(&failed, Knowledge::InPlace),
            "stopped at 35%: 12,340 of 45,678 entries are in place, 1.00GB of 2.85GB; run again to continue"
        );
    }

    #[test]
    fn rows_are_those_of_a_terminal_that_wraps() {
        assert_eq!(rows("", 10), 1);
        assert_eq!(rows("0123456789", 10), 1);
        assert_eq!(rows("0123456789a", 10), 2);
        // A wide character does not fit into the last column.
        assert_eq!(rows("012345678\u{5199}", 10), 2);
        assert_eq!(rows("\u{5199}", 1), 1);
    }

    #[test]
    fn mark_without_its_letter_is_dropped() {
        let name = "aaaae\u{301}bcd".as_bytes();
        assert_eq!(ending(name, 6, Charset::Utf8), "...bcd");
        assert_eq!(ending(name, 7, Charset::Utf8), "...e\u{301}bcd");
    }

    #[test]
    fn phase_follows_the_counts() {
        let phase = |counts: &Counts| shown(counts, 200)[0].split(',').next().map(str::to_owned);
        assert_eq!(phase(&Counts::default()).as_deref(), Some("listing"));
        assert_eq!(
            phase(&Counts {
                is_deleting: true,
                ..counts()
            })
            .as_deref(),
            Some("deleting")
        );
        let all = Counts {
            done: (50_000, u64::MAX),
            ..counts()
        };
        assert_eq!(phase(&all).as_deref(), Some("finishing"));
        assert!(
            shown(&all, 200)[1].starts_with("  100%  2.85GB of 2.85GB  45,678 of 45,678 entries")
        );
    }

    fn moment(secs: u64, copied: u64, skipped: u64) -> (Duration, Counts) {
        let counts = Counts {
            copied: (0, copied),
            done: (0, copied + skipped),
            ..Counts::default()
        };
        (Duration::from_secs(secs), counts)
    }

    #[test]
    fn rates_cover_the_last_seconds() {
        let mut rates = Rates::default();
        let mut measure = |secs, copied| {
            let (now, counts) = moment(secs, copied, 0);
            let rate = rates.measure(now, &counts)?;
            assert_eq!(rate.copied, rate.done);
            Some(rate.copied)
        };
        assert_eq!(measure(0, 0), None);
        assert_eq!(measure(1, 50), Some(50));
        assert_eq!(measure(20, 1000), Some(50));
        assert_eq!(measure(40, 1000), Some(0));
        // The run is repeated.
        assert_eq!(measure(41, 10), None);
    }

    /// Returns the rate that counts for the remaining time after each second. `skipped`: the bytes skipped in it.
    fn done_rates(skipped: &[u64]) -> Vec<u64> {
        let mut rates = Rates::default();
        let mut so_far = 0;
        let (begin, none) = moment(0, 0, 0);
        rates.measure(begin, &none);
        let mut found = Vec::new();
        for (at, more) in skipped.iter().enumerate() {
            so_far += more;
            let secs = at as u64 + 1;
            // What is copied goes on at 10 bytes per second.
            let (now, counts) = moment(secs, 10 * secs, so_far);
            let rate = rates.measure(now, &counts);
            found.push(rate.map_or(0, |rate| rate.done));
        }
        found
    }

    #[test]
    fn burst_of_skipped_files_is_no_rate() {
        let burst = [0, 0, 0, 0, 90_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(done_rates(&burst), [10; 18]);
        // At the beginning, it is forgotten after a second.
        assert_eq!(done_rates(&[90_000, 0, 0, 0]), [90_010, 10, 10, 10]);
        assert_eq!(
            done_rates(&[90_000, 90_000, 0, 0, 0]),
            [90_010, 90_010, 90_010, 10, 10]
        );
    }

    #[test]
    fn files_that_are_skipped_all_the_time_count() {
        assert_eq!(done_rates(&[500; 30]), [510; 30]);
        let uneven: Vec<u64> = (0..30).map(|at| [400, 500, 600][at % 3]).collect();
        for rate in &done_rates(&uneven)[2..] {
            assert!([410, 510].contains(rate), "{rate}");
        }
    }

    #[test]
    fn summary_compares_with_a_full_copy() {
        let mut tally = Tally::default();
        tally.list(Kind::File, 1_000_000, 1);
        tally.list(Kind::File, 9_000_000, 1);
        tally.transfer(1_000_000, 250_000);
        tally.created.add(Kind::File);
        let of = |traffic, dry_run| {
            summary(
                &tally,
                Renames::default(),
                traffic,
                Duration::from_millis(2500),
                dry_run,
                "local copy",
                None,
            )
        };
        assert_eq!(
            of(None, false),
            [
                "1 of 2 files copied, 1 entries created, 0 deleted",
                "250.00KB written, 2.5% of a full copy (10.00MB)",
                "2.5 s, 400.00KB/s, local copy",
            ]
        );
        assert_eq!(
            of(
                Some(Traffic {
                    sent_bytes: 30_000,
                    received_bytes: 200
                }),
                false
            )[1],
            "30.00KB sent, 200B received, 0.3% of a full copy (10.00MB)"
        );
        assert_eq!(
            of(None, true),
            [
                "1 of 2 files would be copied, 1 entries would be created, 0 would be deleted",
                "1.00MB would be copied, 10.0% of a full copy (10.00MB)",
                "2.5 s, local copy",
            ]
        );
    }

    #[test]
    fn renamed_files_count_as_nothing_else() {
        let mut tally = Tally::default();
        for len_bytes in [1_000_000, 9_000_000] {
            tally.list(Kind::File, len_bytes, 1);
            tally.transfer(len_bytes, 0);
            tally.created.add(Kind::File);
        }
        tally.deleted.add(Kind::File);
        tally.deleted.add(Kind::Dir);
        let renames = Renames {
            files: 1,
            bytes: 9_000_000,
        };
        let second = Duration::from_secs(1);
        let shown = |dry_run| summary(&tally, renames, None, second, dry_run, "local copy", None);
        assert_eq!(
            shown(false),
            [
                "1 of 2 files copied, 1 renamed, 1 entries created, 1 deleted",
                "0B written, 0.0% of a full copy (10.00MB)",
                "1.0 s, 1.00MB/s, local copy",
            ]
        );
        assert_eq!(
            shown(true)[..2],
            [
                "1 of 2 files would be copied, 1 would be renamed, 1 entries would be created, 1 would be deleted",
                "1.00MB would be copied, 10.0% of a full copy (10.00MB)",
            ]
        );
    }

    #[test]
    fn failures_are_shown_and_do_not_count_as_copied() {
        let mut tally = Tally::default();
        tally.list(Kind::File, 1_000_000, 1);
        tally.list(Kind::File, 9_000_000, 1);
        tally.transfer(1_000_000, 1_000_000);
        tally.transfer(9_000_000, 0);
        tally.unsend(9_000_000);
        let failures = Failures {
            count: 1,
            exit: 23,
            first:
                b"rsync: [sender] send_files failed to open \"/s/a\x1b\": Permission denied (13)",
            charset: Charset::Utf8,
        };
        let lines = summary(
            &tally,
            Renames::default(),
            None,
            Duration::from_secs(1),
            false,
            "local copy",
            Some(&failures),
        );
        assert_eq!(
            lines,
            [
                "1 of 2 files copied, 0 entries created, 0 deleted",
                "1 copied, 1 FAILED (exit 23), first: rsync: [sender] send_files failed to open \"/s/a\\#033\": Permission denied (13)",
                "1.00MB written, 10.0% of a full copy (10.00MB)",
                "1.0 s, 1.00MB/s, local copy",
            ]
        );
        let running = Counts {
            failures: 3,
            last_failure: b"rsync: \x1b".to_vec(),
            ..counts()
        };
        let last = shown(&running, 80).pop();
        assert_eq!(last.as_deref(), Some("  last error: rsync: \\#033"));
        assert_eq!(
            shown(&running, 80)[0],
            "copying, 1:23, 1,034 files copied, 3 FAILED  box, by QUIC, port 28792"
        );
    }
}
