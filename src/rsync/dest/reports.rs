//! What a sender to an rsync reports itself, and how the receiver learns of its errors.

use crate::options::Options;
use crate::report::Tally;
use crate::report::event::{Event, Problem, Weight};
use crate::rsync::controls::{IO_ERROR_GENERAL, IO_ERROR_VANISHED};
use crate::session::event_relay::EventQueue;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// What this end reports as the sender.
pub(in crate::rsync) struct SenderReports {
    /// The events to report.
    pub events: EventQueue,
    /// The counts of its problems.
    pub problems: Mutex<Tally>,
    /// Its errors, as the bits by which the receiver learns of them.
    pub(super) io_error: AtomicI32,
    /// `--ignore-errors`: the receiver does not learn of them.
    ignores_errors: bool,
}

impl SenderReports {
    pub fn new(options: &Options, events: EventQueue) -> Arc<SenderReports> {
        let ignores_errors = options.delete.ignore_errors;
        Arc::new(SenderReports {
            events,
            problems: Mutex::default(),
            io_error: AtomicI32::new(0),
            ignores_errors,
        })
    }

    /// Counts the problem that an event reports, if it does.
    pub fn count(&self, event: &Event) {
        let Event::Problem(Problem { weight, .. }) = event else {
            return;
        };
        self.problems.lock().problem(*weight);
        let bits = match weight {
            _ if self.ignores_errors => 0,
            Weight::SourceError => IO_ERROR_GENERAL,
            Weight::Vanished => IO_ERROR_VANISHED,
            Weight::Failed | Weight::Warning => 0,
        };
        self.io_error.fetch_or(bits, Ordering::Relaxed);
    }
}
