//! The end of a run: the block of `--stats`, the two lines of `-v`, and the last line: why the run failed.

use super::TextReporter;
use crate::exit::Exit;
use crate::options::findings::ComparisonKind;
use crate::report::comparison::DIFFERENT;
use crate::report::final_error::error_line;
use crate::report::json;
use crate::report::number::{put_count, put_fraction, put_fraction_grouped};
use crate::report::tally::{Kinds, Tally, Traffic};
use std::io::Write;
use std::time::Duration;

impl TextReporter {
    /// Prints the statistics and the summary of a completed run, as the options request.
    pub fn summary(&mut self, tally: &Tally, elapsed: Duration) {
        let traffic = self.traffic.unwrap_or(tally.traffic());
        self.totals = Some((traffic, tally.total_bytes));
        self.screen.release();
        self.answer_request(true);
        self.finish_progress();
        if let Some(counts) = self.comparison {
            if self.output.json {
                self.screen.put_object(&json::comparison(&counts));
            } else {
                self.screen
                    .print(counts.summary(ComparisonKind::Trees).as_bytes());
            }
            return self.flush();
        }
        if self.output.json {
            self.screen.put_object(&json::summary(
                tally,
                traffic,
                elapsed,
                self.facts.dry_run,
                self.counts,
            ));
        }
        if self.output.debug.deltasum >= 1 {
            let line = format!(
                "total: matches=0  hash_hits=0  false_alarms=0 data={}",
                tally.literal_bytes
            );
            self.screen.print(line.as_bytes());
            self.log_text(line.as_bytes());
        }
        if self.output.info.stats >= 2 {
            self.screen.print(b"");
            let mut text = Vec::new();
            put_statistics(
                &mut text,
                tally,
                traffic,
                self.output.human,
                self.facts.protocol,
            );
            if self.counts_changed_sources() && self.counts.changed_sources > 0 {
                _ = writeln!(
                    text,
                    "Number of files changed while they were read: {}",
                    self.counts.changed_sources
                );
            }
            if self.counts.reused.0 > 0 {
                _ = writeln!(
                    text,
                    "Number of files taken from other files: {} ({} bytes)",
                    self.counts.reused.0, self.counts.reused.1
                );
            }
            if self.facts.verifies {
                _ = writeln!(
                    text,
                    "Number of files verified: {} ({} bytes read back)",
                    self.counts.verified.0, self.counts.verified.1
                );
            }
            self.print_and_log(&text);
        }
        if self.output.info.stats >= 1 {
            self.screen.print(b"");
            let mut text = Vec::new();
            let remark: &[u8] = match (self.facts.dry_run, self.facts.leaves_dest) {
                (true, _) => b" (DRY RUN)",
                (false, true) => b" (BATCH ONLY)",
                (false, false) => b"",
            };
            put_totals(
                &mut text,
                tally,
                traffic,
                elapsed,
                self.output.human,
                remark,
            );
            self.print_and_log(&text);
        } else if self.constants.sends || tally.exit() == Exit::Ok {
            self.log_totals();
        }
        self.flush();
    }

    /// Records the totals of a run that ends before its summary, for the log file. Must be called before
    /// [`TextReporter::final_error`].
    pub fn interrupted(&mut self, tally: &Tally) {
        self.totals = Some((self.traffic.unwrap_or(tally.traffic()), tally.total_bytes));
    }

    /// Prints the last line: why the run failed. Prints nothing on success.
    pub fn final_error(&mut self, exit: Exit, role: &str) {
        self.screen.release();
        let line = match exit {
            // The counts say the same.
            DIFFERENT | Exit::Partial if self.is_comparison() => Vec::new(),
            _ => error_line(exit, role),
        };
        if !line.is_empty() {
            if self.constants.sends {
                self.log_totals();
            }
            self.put_error(&line);
        }
        if self.output.json {
            self.screen.put_object(&json::end(exit, &line));
        }
        self.flush();
    }

    /// Prints lines that each end with a newline.
    fn print_and_log(&mut self, lines: &[u8]) {
        for line in lines.split_inclusive(|&b| b == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            self.screen.print(line);
            self.log_text(line);
        }
    }

    /// Logs the short last line, once.
    fn log_totals(&mut self) {
        if let Some((traffic, total_bytes)) = self.totals.take() {
            self.log_text(totals_line(traffic, total_bytes).as_bytes());
        }
    }
}

/// Returns the last line of a log.
pub fn totals_line(
    Traffic {
        sent_bytes,
        received_bytes,
    }: Traffic,
    total_bytes: u64,
) -> String {
    format!("sent {sent_bytes} bytes  received {received_bytes} bytes  total size {total_bytes}")
}

/// Appends the block of `--stats`, without the blank line before it.
fn put_statistics(
    out: &mut Vec<u8>,
    tally: &Tally,
    traffic: Traffic,
    human: u8,
    protocol: Option<u8>,
) {
    let kinds = |out: &mut Vec<u8>, words: &str, kinds: &Kinds| {
        out.extend_from_slice(words.as_bytes());
        // Counts are grouped with commas but never use units.
        put_count(out, kinds.total(), human.min(1));
        let mut between: &[u8] = b" (";
        for (word, count) in kinds.named().into_iter().filter(|(_, count)| *count > 0) {
            out.extend_from_slice(between);
            _ = write!(out, "{word}: ");
            put_count(out, count, human.min(1));
            between = b", ";
        }
        if kinds.total() > 0 {
            out.push(b')');
        }
        out.push(b'\n');
    };
    let count = |out: &mut Vec<u8>, words: &str, count: u64, human: u8, unit: &str| {
        out.extend_from_slice(words.as_bytes());
        put_count(out, count, human);
        out.extend_from_slice(unit.as_bytes());
        out.push(b'\n');
    };
    kinds(out, "Number of files: ", &tally.listed);
    // Older peers do not report these.
    let has_reported = |since: u8| protocol.is_none_or(|protocol| protocol >= since);
    if has_reported(29) {
        kinds(out, "Number of created files: ", &tally.created);
    }
    if has_reported(31) {
        kinds(out, "Number of deleted files: ", &tally.deleted);
    }
    count(
        out,
        "Number of regular files transferred: ",
        tally.transferred,
        human.min(1),
        "",
    );
    count(out, "Total file size: ", tally.total_bytes, human, " bytes");
    count(
        out,
        "Total transferred file size: ",
        tally.transferred_bytes,
        human,
        " bytes",
    );
    count(out, "Literal data: ", tally.literal_bytes, human, " bytes");
    count(out, "Matched data: ", tally.matched_bytes, human, " bytes");
    out.extend_from_slice(b"File list size: 0\n");
    if tally.list_generation_ms > 0 {
        let seconds = |ms: u64| format!("{}.{:03} seconds", ms / 1000, ms % 1000);
        _ = writeln!(
            out,
            "File list generation time: {}",
            seconds(tally.list_generation_ms)
        );
        _ = writeln!(
            out,
            "File list transfer time: {}",
            seconds(tally.list_transfer_ms)
        );
    }
    count(out, "Total bytes sent: ", traffic.sent_bytes, human, "");
    count(
        out,
        "Total bytes received: ",
        traffic.received_bytes,
        human,
        "",
    );
}

/// Appends the lines of `-v`. `elapsed` is the time since the run began.
fn put_totals(
    out: &mut Vec<u8>,
    tally: &Tally,
    Traffic {
        sent_bytes,
        received_bytes,
    }: Traffic,
    elapsed: Duration,
    human: u8,
    remark: &[u8],
) {
    out.extend_from_slice(b"sent ");
    put_count(out, sent_bytes, human);
    out.extend_from_slice(b" bytes  received ");
    put_count(out, received_bytes, human);
    out.extend_from_slice(b" bytes  ");
    let traffic = (sent_bytes + received_bytes) as f64;
    put_fraction(out, traffic / (0.5 + elapsed.as_secs() as f64), human);
    out.extend_from_slice(b" bytes/sec\ntotal size is ");
    put_count(out, tally.total_bytes, human);
    out.extend_from_slice(b"  speedup is ");
    let speedup = if traffic > 0.0 {
        tally.total_bytes as f64 / traffic
    } else {
        0.0
    };
    put_fraction_grouped(out, speedup, human > 0);
    out.extend_from_slice(remark);
    out.push(b'\n');
}
