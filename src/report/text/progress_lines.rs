//! Progress: the line that the next one overwrites, and the answers to requests for progress (SIGVTALRM).

use super::TextReporter;
use crate::report::gauge::Gauge;
use crate::report::json;
use crate::report::progress::{self, ListTotal, ProgressScope};
use std::sync::Arc;
use std::time::Duration;

impl TextReporter {
    /// Counts problems for the live display, and prints the answers to requests for progress, from now on.
    pub fn set_gauge(&mut self, gauge: Option<&Arc<Gauge>>) {
        self.gauge = gauge.cloned();
        self.begun_ms = self.now_ms();
    }

    /// Prints the answer to a request for progress (SIGVTALRM) if it is due: after the line of its file. `is_end`: no
    /// line follows.
    pub(super) fn answer_request(&mut self, is_end: bool) {
        let Some(gauge) = &self.gauge else { return };
        if !gauge.has_answer() {
            return;
        }
        // The line of a file comes before or after its content, as the other end decides.
        let reported = &self.reported;
        let is_due = |path: &[u8]| is_end || reported.iter().any(|name| name == path);
        let Some((path, counts)) = gauge.take_answer(is_due) else {
            return;
        };
        if self.output.json {
            let bytes = (counts.copied.1, counts.listed.1);
            let total = ListTotal {
                entries: counts.listed.0,
                bytes: counts.listed.1,
                complete: counts.list_is_complete,
            };
            let line = json::progress(Some(&path), bytes, counts.done.0, total);
            self.screen.put_object(&line);
            return self.flush();
        }
        let is_named = self.choice.name > 0 || self.format.is_some();
        if !is_named || self.reported.back() != Some(&path) {
            self.screen.print(&path);
        }
        let took = Duration::from_millis(u64::try_from(self.now_ms() - self.begun_ms).unwrap_or(0));
        let mut line = Vec::new();
        let is_tty = self.facts.stdout_is_tty;
        progress::put_answer(&mut line, &counts, self.output.human, took, is_tty);
        self.screen.put_moving(&line);
        self.flush();
    }

    pub(super) fn progress(&mut self, done_bytes: u64, len_bytes: u64) {
        if self.facts.dry_run {
            return;
        }
        let now_ms = self.now_ms();
        let Some(meter) = &mut self.meter else { return };
        self.line.clear();
        let position = meter.position(done_bytes, len_bytes);
        meter.update(&mut self.line, done_bytes, len_bytes, now_ms);
        if !self.line.is_empty() {
            if self.output.json {
                let name = match meter.scope() {
                    ProgressScope::File => Some(&*self.last_name),
                    ProgressScope::Run => None,
                };
                self.screen
                    .put_object(&json::progress(name, position, meter.checked, meter.total));
            }
            self.screen.put_moving(&self.line);
            self.screen.flush();
        }
    }

    /// Prints the last line of `--info=progress2`.
    pub(super) fn finish_progress(&mut self) {
        let now_ms = self.now_ms();
        if let Some(meter) = self.meter.take()
            && meter.scope() == ProgressScope::Run
        {
            self.line.clear();
            meter.finish(&mut self.line, now_ms);
            self.screen.put_moving(&self.line);
        }
        self.screen.end_moving_line();
    }

    fn now_ms(&self) -> i64 {
        let (secs, nanos) = (self.clock)();
        secs.saturating_mul(1000)
            .saturating_add(i64::from(nanos / 1_000_000))
    }
}
