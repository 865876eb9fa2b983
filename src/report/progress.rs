//! The moving line of `--progress` and `--info=progress2`.
//!
//! The caller passes times, in milliseconds since an arbitrary moment, and decides when to flush the output.

use super::gauge::Counts;
use super::number::put_count;
use std::collections::VecDeque;
use std::io::Write;
use std::time::Duration;

/// The minimum time between two running lines.
const PERIOD_MS: i64 = 1000;
/// The number of running lines over which the rate is computed.
const HISTORY: usize = 5;
/// rsync prints a file's first line after its first block. If the first event comes later, the line still shows this
/// length.
const FIRST_BYTES: u64 = 32 * 1024;
/// A remaining time at or above this is not shown.
const REMAINING_MAX_SECS: f64 = 9999.0 * 3600.0;

/// What a line reports on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressScope {
    /// `--progress`: lines for each file.
    File,
    /// `--info=progress2`: one line for the run.
    Run,
}

/// The size of the list as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListTotal {
    /// The number of entries.
    pub entries: u64,
    /// The total length of the files and symlinks among them.
    pub bytes: u64,
    /// Whether the list is complete.
    pub complete: bool,
}

/// How much the source has, as far as the end that reads it knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceTotals {
    /// The whole list.
    pub list: ListTotal,
    /// What of it is in directories that are not listed, because the destination has the same.
    pub unchanged: EntryCounts,
}

/// Numbers of entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryCounts {
    /// The entries of all kinds.
    pub entries: u64,
    /// The regular files among them.
    pub files: u64,
    /// The total length of the files and symlinks.
    pub bytes: u64,
}

/// The state of the run, and the lines that show it.
#[derive(Debug)]
pub struct Meter {
    scope: ProgressScope,
    human: u8,
    /// The size of the list, set by the caller.
    pub total: ListTotal,
    /// The number of entries examined.
    pub checked: u64,
    /// The number of files transferred.
    pub transferred: u64,
    /// The total length of the completed files.
    bytes_before: u64,
    /// The last running lines, as (time, bytes); empty before the first.
    history: VecDeque<(i64, u64)>,
    /// When the file or run began.
    started_ms: i64,
    in_file: bool,
}

impl Meter {
    /// Creates a meter for a run that has not begun.
    pub fn new(scope: ProgressScope, human: u8) -> Meter {
        Meter {
            scope,
            human,
            total: ListTotal::default(),
            checked: 0,
            transferred: 0,
            bytes_before: 0,
            history: VecDeque::with_capacity(HISTORY),
            started_ms: 0,
            in_file: false,
        }
    }

    /// Appends the lines for this progress of a file. The file ends when all its bytes are done.
    pub fn update(&mut self, out: &mut Vec<u8>, done_bytes: u64, len_bytes: u64, now_ms: i64) {
        if !self.in_file {
            self.begin(out, done_bytes, len_bytes, now_ms);
        }
        if done_bytes >= len_bytes {
            self.end(out, len_bytes, now_ms);
            return;
        }
        let Some(&(newest_ms, _)) = self.history.back() else {
            return;
        };
        if now_ms - newest_ms < PERIOD_MS {
            return;
        }
        let (bytes, of) = self.position(done_bytes, len_bytes);
        let (oldest_ms, oldest_bytes) = self.history[0];
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((now_ms, bytes));
        let rate = rate(bytes.saturating_sub(oldest_bytes), now_ms - oldest_ms);
        self.put_running(out, bytes, of, rate);
    }

    /// Counts a file that a dry run would transfer, without printing a line.
    pub fn count(&mut self, len_bytes: u64) {
        self.transferred += 1;
        self.bytes_before += len_bytes;
    }

    /// Returns what the lines report on.
    pub fn scope(&self) -> ProgressScope {
        self.scope
    }

    /// Appends the last line of a run under [`ProgressScope::Run`], without its newline. The list is complete then.
    pub fn finish(mut self, out: &mut Vec<u8>, now_ms: i64) {
        self.total.complete = true;
        match self.scope {
            ProgressScope::File => {}
            ProgressScope::Run => self.put_final(out, self.bytes_before, self.total.bytes, now_ms),
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>, done_bytes: u64, len_bytes: u64, now_ms: i64) {
        self.in_file = true;
        let first_bytes = done_bytes.min(len_bytes).min(FIRST_BYTES);
        let (bytes, of) = self.position(first_bytes, len_bytes);
        let first_ever = self.history.is_empty();
        match (self.history.back().copied(), self.scope) {
            (None, _) => {
                self.started_ms = now_ms;
                self.history.push_back((now_ms, bytes));
            }
            // rsync counts a file's time from the last running line of the previous file.
            (Some((newest_ms, _)), ProgressScope::File) => {
                self.started_ms = newest_ms;
                self.history.clear();
                self.history.push_back((newest_ms, 0));
            }
            (Some(_), ProgressScope::Run) => return,
        }
        if first_bytes > 0 {
            let (oldest_ms, oldest_bytes) = self.history[0];
            let rate = if first_ever {
                0.0
            } else {
                rate(bytes - oldest_bytes, now_ms - oldest_ms)
            };
            self.put_running(out, bytes, of, rate);
        }
    }

    fn end(&mut self, out: &mut Vec<u8>, len_bytes: u64, now_ms: i64) {
        self.in_file = false;
        self.transferred += 1;
        let (bytes, of) = self.position(len_bytes, len_bytes);
        self.bytes_before += len_bytes;
        self.put_final(out, bytes, of, now_ms);
        if self.scope == ProgressScope::File {
            out.push(b'\n');
        }
    }

    /// Returns the bytes done and the total, of the file or the run.
    pub fn position(&self, done_bytes: u64, len_bytes: u64) -> (u64, u64) {
        match self.scope {
            ProgressScope::File => (done_bytes, len_bytes),
            ProgressScope::Run => (self.bytes_before + done_bytes, self.total.bytes),
        }
    }

    fn put_running(&self, out: &mut Vec<u8>, bytes: u64, of: u64, rate: f64) {
        // Divides bytes by a rate in KiB and by 1000, as rsync does.
        let remaining = if rate > 0.0 {
            of.saturating_sub(bytes) as f64 / rate / 1000.0
        } else {
            0.0
        };
        self.put_line(out, bytes, of, rate, remaining);
        out.extend_from_slice(b"  ");
    }

    fn put_final(&self, out: &mut Vec<u8>, bytes: u64, of: u64, now_ms: i64) {
        let took_ms = if self.history.is_empty() {
            0
        } else {
            now_ms - self.started_ms
        };
        self.put_line(
            out,
            bytes,
            of,
            rate(bytes, took_ms),
            took_ms.max(0) as f64 / 1000.0,
        );
        let left = self.total.entries.saturating_sub(self.checked);
        let word = if self.total.complete {
            "to-chk"
        } else {
            "ir-chk"
        };
        _ = write!(
            out,
            " (xfr#{}, {word}={left}/{})",
            self.transferred, self.total.entries
        );
    }

    fn put_line(&self, out: &mut Vec<u8>, bytes: u64, of: u64, rate: f64, secs: f64) {
        out.push(b'\r');
        let start = out.len();
        put_count(out, bytes, self.human);
        let len = out.len() - start;
        if len < 15 {
            out.resize(start + 15, b' ');
            out[start..].rotate_right(15 - len);
        }
        let percent = if bytes >= of {
            100
        } else {
            u128::from(bytes) * 100 / u128::from(of)
        };
        let (rate, unit) = match rate {
            rate if rate > 1024.0 * 1024.0 => (rate / (1024.0 * 1024.0), "GB/s"),
            rate if rate > 1024.0 => (rate / 1024.0, "MB/s"),
            rate => (rate, "kB/s"),
        };
        _ = write!(out, " {percent:3}% {rate:7.2}{unit} ");
        if secs < REMAINING_MAX_SECS {
            let secs = secs as u64;
            _ = write!(
                out,
                "{:4}:{:02}:{:02}",
                secs / 3600,
                secs / 60 % 60,
                secs % 60
            );
        } else {
            out.extend_from_slice(b"  ??:??:??");
        }
    }
}

/// Appends one complete line in the form of `--info=progress2`, for a user who requests it by a signal. On a terminal it
/// begins without the return of the cursor, which a stream that shows no moving lines would escape.
pub fn put_answer(out: &mut Vec<u8>, counts: &Counts, human: u8, took: Duration, is_tty: bool) {
    let (entries, bytes) = counts.listed;
    let mut meter = Meter::new(ProgressScope::Run, human);
    meter.total = ListTotal {
        entries,
        bytes,
        complete: counts.list_is_complete,
    };
    meter.checked = counts.done.0;
    meter.transferred = counts.copied.0;
    meter.history.push_back((0, 0));
    let start = out.len();
    let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    meter.put_final(out, counts.copied.1, bytes, took_ms);
    if is_tty {
        out.remove(start);
    }
    out.push(b'\n');
}

/// Returns the rate in KiB per second; 0 if no time has passed.
fn rate(bytes: u64, ms: i64) -> f64 {
    if ms <= 0 {
        0.0
    } else {
        bytes as f64 * 1000.0 / ms as f64 / 1024.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn meter(scope: ProgressScope) -> Meter {
        let total = ListTotal {
            entries: 11,
            bytes: 6_000_007,
            complete: true,
        };
        Meter {
            total,
            checked: 2,
            ..Meter::new(scope, 1)
        }
    }

    /// Returns the output for these moments of one file, with `\r` as `~`.
    fn lines(meter: &mut Meter, len_bytes: u64, moments: &[(u64, i64)]) -> String {
        let mut out = Vec::new();
        for (done_bytes, now_ms) in moments {
            meter.update(&mut out, *done_bytes, len_bytes, *now_ms);
        }
        String::from_utf8(out).expect("ASCII").replace('\r', "~")
    }

    /// Output of a run with `--bwlimit=1000`; the times are derived from its rates.
    #[test]
    fn file_progress_lines_match_rsync() {
        let mut meter = meter(ProgressScope::File);
        assert_eq!(
            lines(
                &mut meter,
                3_000_000,
                &[
                    (32768, 0),
                    (700_000, 600),
                    (1_081_344, 1023),
                    (2_129_920, 2047),
                    (3_000_000, 2830)
                ]
            ),
            "~         32,768   1%    0.00kB/s    0:00:00  \
             ~      1,081,344  36% 1000.98kB/s    0:00:01  \
             ~      2,129,920  70% 1000.49kB/s    0:00:00  \
             ~      3,000,000 100%    1.01MB/s    0:00:02 (xfr#1, to-chk=9/11)\n"
        );
        meter.checked += 1;
        assert_eq!(
            lines(
                &mut meter,
                1_500_000,
                &[
                    (32768, 2047 + 882),
                    (163_840, 2047 + 1009),
                    (1_212_416, 2047 + 2033),
                    (1_500_000, 2047 + 2289)
                ]
            ),
            "~         32,768   2%   36.28kB/s    0:00:40  \
             ~        163,840  10%  158.57kB/s    0:00:08  \
             ~      1,212,416  80%  582.39kB/s    0:00:00  \
             ~      1,500,000 100%  639.95kB/s    0:00:02 (xfr#2, to-chk=8/11)\n"
        );
        meter.checked += 1;
        assert_eq!(
            lines(&mut meter, 0, &[(0, 2047 + 2290)]),
            "~              0 100%    0.00kB/s    0:00:00 (xfr#3, to-chk=7/11)\n"
        );
    }

    #[test]
    fn small_file_has_an_intermediate_progress_line() {
        assert_eq!(
            lines(&mut meter(ProgressScope::File), 2, &[(2, 5)]),
            "~              2 100%    0.00kB/s    0:00:00  ~              2 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=9/11)\n"
        );
        assert_eq!(
            lines(&mut meter(ProgressScope::File), 100_000, &[(100_000, 5)]),
            "~         32,768  32%    0.00kB/s    0:00:00  ~        100,000 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=9/11)\n"
        );
    }

    #[test]
    fn run_progress_lines_match_rsync() {
        let mut meter = meter(ProgressScope::Run);
        assert_eq!(
            lines(
                &mut meter,
                3_000_000,
                &[
                    (32768, 0),
                    (1_081_344, 1023),
                    (2_129_920, 2046),
                    (3_000_000, 2830)
                ]
            ),
            "~         32,768   0%    0.00kB/s    0:00:00  \
             ~      1,081,344  18% 1000.98kB/s    0:00:04  \
             ~      2,129,920  35% 1000.98kB/s    0:00:03  \
             ~      3,000,000  49%    1.01MB/s    0:00:02 (xfr#1, to-chk=9/11)"
        );
        meter.checked = 11;
        let mut out = Vec::new();
        meter.finish(&mut out, 2830);
        assert_eq!(
            out,
            b"\r      3,000,000  49%    1.01MB/s    0:00:02 (xfr#1, to-chk=0/11)"
        );
    }

    #[test]
    fn run_without_transfers_prints_a_final_progress_line() {
        let mut out = Vec::new();
        let total = ListTotal {
            entries: 11,
            bytes: 1,
            complete: false,
        };
        Meter {
            checked: 11,
            total,
            ..meter(ProgressScope::Run)
        }
        .finish(&mut out, 99);
        assert_eq!(
            out,
            b"\r              0   0%    0.00kB/s    0:00:00 (xfr#0, to-chk=0/11)"
        );
    }

    #[test]
    fn incomplete_list_and_unknown_time_are_shown() {
        let mut meter = meter(ProgressScope::File);
        meter.total.complete = false;
        let long = lines(&mut meter, u64::MAX, &[(1, 0), (2, 100_000)]);
        assert!(long.contains("  ??:??:??  "), "{long}");
        let end = lines(&mut meter, u64::MAX, &[(u64::MAX, 100_001)]);
        assert!(end.ends_with("(xfr#1, ir-chk=9/11)\n"), "{end}");
    }

    proptest! {
        #[test]
        fn meter_does_not_panic_on_any_event_order(events: Vec<(u32, u32, i32)>, run: bool) {
            let mut meter = meter(if run { ProgressScope::Run } else { ProgressScope::File });
            let mut out = Vec::new();
            for (done, len, now_ms) in events {
                meter.update(&mut out, done.into(), len.into(), now_ms.into());
            }
            meter.finish(&mut out, 0);
        }
    }
}
