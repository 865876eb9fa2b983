//! What a sender reports for the lines of `--progress`, as an rsync receives its files.

use crate::report::event::{Event, Item, Wants};
use crate::rsync::dest::reports::SenderReports;
use crate::rsync::dest::shared::DestConnectionState;
use std::sync::Arc;

/// What was reported so far.
pub(super) struct DestProgress {
    wants: Wants,
    reports: Arc<SenderReports>,
    state: Arc<DestConnectionState>,
    /// How many entries are before the last file that was begun, with it.
    checked: u64,
    /// How much of the file under way was sent.
    done_bytes: u64,
    /// Its length.
    len_bytes: u64,
}

impl DestProgress {
    /// Returns the progress of a session that begins.
    pub(super) fn new(
        wants: Wants,
        reports: Arc<SenderReports>,
        state: Arc<DestConnectionState>,
    ) -> DestProgress {
        DestProgress {
            wants,
            reports,
            state,
            checked: 0,
            done_bytes: 0,
            len_bytes: 0,
        }
    }

    /// Reports that a file is begun.
    pub(super) fn begin(&mut self, index: i32, item: &Item) {
        if !self.wants.progress {
            return;
        }
        let position = self.state.shared.lock().position(index);
        let more = position.saturating_sub(self.checked);
        self.checked += more;
        self.done_bytes = 0;
        self.len_bytes = item.len_bytes;
        self.reports.events.push(Event::Checked(more), 0);
        if self.wants.begin {
            self.reports.events.push(Event::Begin(item.name.clone()), 0);
        }
    }

    /// Reports that more of the file under way was sent.
    pub(super) fn add(&mut self, more_bytes: u64) {
        self.done_bytes += more_bytes;
        // Its end is reported once all is sent.
        if self.done_bytes < self.len_bytes {
            self.report(self.done_bytes);
        }
    }

    /// Reports that the file under way was sent to its end.
    pub(super) fn end(&self) {
        self.report(self.len_bytes);
    }

    fn report(&self, done_bytes: u64) {
        if self.wants.progress {
            let len_bytes = self.len_bytes;
            let event = Event::Progress {
                done_bytes,
                len_bytes,
            };
            self.reports.events.push(event, 0);
        }
    }

    /// Reports that no more files follow.
    pub(super) fn check_rest(&self) {
        if self.wants.progress {
            let entries = self.state.shared.lock().entries();
            let rest = entries.saturating_sub(self.checked);
            self.reports.events.push(Event::Checked(rest), 0);
        }
    }
}
