//! Says how long the list of the source is, while it is sent, to a peer that shows how far the run is.
//!
//! The scanners run far ahead of what is sent: listings wait for the contents between them, for seconds or hours over a
//! slow link. Without their counts, the peer would take the list that it has for the whole.

use super::DestPeer;
use crate::report::progress::{EntryCounts, ListTotal, SourceTotals};
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// The time between two messages.
const PERIOD: Duration = Duration::from_millis(250);

/// Counts what is not listed, and sends the totals.
#[derive(Default)]
pub(super) struct TotalsSender {
    unchanged: Mutex<EntryCounts>,
}

impl TotalsSender {
    /// Counts a directory that is not listed, because the destination has the same.
    pub(super) fn pass(&self, dir: EntryCounts) {
        let mut unchanged = self.unchanged.lock();
        unchanged.entries += dir.entries;
        unchanged.files += dir.files;
        unchanged.bytes = unchanged.bytes.saturating_add(dir.bytes);
    }

    /// Sends the totals when they have changed, until the sender of `over` is dropped. `list` returns the list so far.
    pub(super) fn run(
        &self,
        peer: &dyn DestPeer,
        list: impl Fn() -> ListTotal,
        over: Receiver<()>,
    ) {
        let mut sent = SourceTotals::default();
        while over.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            let totals = SourceTotals {
                list: list(),
                unchanged: *self.unchanged.lock(),
            };
            if totals == sent {
                continue;
            }
            // If the connection is lost, the other threads report it.
            if peer.send_totals(totals).is_err() {
                return;
            }
            sent = totals;
        }
    }
}
