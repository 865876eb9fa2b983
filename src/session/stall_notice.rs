//! Watches the connection of a session over a network and reports when no data moves.

use crate::proto::limits::DATA_MAX_BYTES;
use crate::transport::LinkBytes;
use crate::work::clock::Since;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long a silence lasts before it is reported: longer than the recovery of a lost packet or a move to another
/// address.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// The polling interval.
const LOOK: Duration = Duration::from_millis(250);

/// Returns how long a silence lasts before it is reported. Under a rate limit nothing moves between two pieces of data.
pub fn stall_threshold(bytes_per_sec: Option<u64>) -> Duration {
    let piece_secs = bytes_per_sec.map_or(0, |rate| DATA_MAX_BYTES as u64 / rate);
    TOLD_AFTER + Duration::from_secs(piece_secs)
}

/// Calls `report` once each time that no byte was sent or received for `long`, until the sender of `over` is dropped.
pub fn watch(traffic: &LinkBytes, long: Duration, over: Receiver<()>, report: impl Fn()) {
    let (mut last, mut since, mut is_reported) = (traffic.counts(), Since::now(), false);
    while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let now = traffic.counts();
        if now != last {
            (last, since, is_reported) = (now, Since::now(), false);
        } else if !is_reported && since.elapsed() >= long {
            is_reported = true;
            report();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::channel;

    #[test]
    fn stall_threshold_allows_for_the_bandwidth_limit() {
        assert_eq!([None, Some(10 << 20)].map(stall_threshold), [TOLD_AFTER; 2]);
        assert!(
            stall_threshold(Some(1024))
                > TOLD_AFTER + Duration::from_secs(DATA_MAX_BYTES as u64 / 1025)
        );
    }

    #[test]
    fn each_stall_is_reported_once() {
        let traffic = LinkBytes::default();
        let (going, over) = channel();
        let (report, reports) = channel();
        std::thread::scope(|scope| {
            let traffic = &traffic;
            scope.spawn(move || watch(traffic, Duration::ZERO, over, || report.send(()).unwrap()));
            for count in [&traffic.sent, &traffic.received] {
                reports.recv().unwrap();
                assert!(
                    reports.try_recv().is_err(),
                    "the same stall is reported once"
                );
                count.fetch_add(1, Ordering::Relaxed);
            }
            reports.recv().unwrap();
            drop(going);
        });
        assert!(reports.try_recv().is_err());
    }
}
