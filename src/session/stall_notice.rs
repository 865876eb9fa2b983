//! Watches the link of a session, for the live display and for a notice when no data moves.

use crate::proto::limits::DATA_MAX_BYTES;
use crate::transport::LinkBytes;
use crate::work::clock::Since;
use crate::work::thread::spawn;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
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

/// Runs a session while another thread passes to `observe`, a few times a second, for how long no byte was sent or
/// received. Without `observe`, there is no thread.
pub fn watched<T>(
    traffic: &LinkBytes,
    observe: Option<impl FnMut(Duration) + Send>,
    session: impl FnOnce() -> T,
) -> T {
    let Some(observe) = observe else {
        return session();
    };
    std::thread::scope(|scope| {
        // Dropped at the end of the session, even after a panic, which ends the thread.
        let (_going, over) = channel();
        // The run goes on if this thread cannot be started. A thread that the run needs fails with an error.
        let _ = spawn(scope, "link-watch", move || watch(traffic, over, observe));
        session()
    })
}

/// Calls `observe` with the length of the present silence until the sender of `over` is dropped.
fn watch(traffic: &LinkBytes, over: Receiver<()>, mut observe: impl FnMut(Duration)) {
    let mut last = traffic.counts();
    let mut since = Since::now();
    while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let now = traffic.counts();
        if now != last {
            last = now;
            since = Since::now();
            observe(Duration::ZERO);
        } else {
            observe(since.elapsed());
        }
    }
}

/// Reports each silence once, when it has become long.
pub struct StallNotice<F> {
    long: Duration,
    is_reported: bool,
    report: F,
}

impl<F: FnMut()> StallNotice<F> {
    /// Creates a notice that calls `report` once a silence has lasted for `long`.
    pub fn new(long: Duration, report: F) -> StallNotice<F> {
        StallNotice {
            long,
            is_reported: false,
            report,
        }
    }

    /// Takes the length of the present silence.
    pub fn observe(&mut self, silence: Duration) {
        if silence < self.long {
            self.is_reported = false;
        } else if !self.is_reported {
            self.is_reported = true;
            (self.report)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn stall_threshold_allows_for_the_bandwidth_limit() {
        assert_eq!([None, Some(10 << 20)].map(stall_threshold), [TOLD_AFTER; 2]);
        assert!(
            stall_threshold(Some(1024))
                > TOLD_AFTER + Duration::from_secs(DATA_MAX_BYTES as u64 / 1025)
        );
    }

    #[test]
    fn silence_ends_with_the_next_byte() {
        let traffic = LinkBytes::default();
        let (observed, silences) = channel();
        let observe = move |silence| observed.send(silence).unwrap();
        watched(&traffic, Some(observe), || {
            for count in [&traffic.sent, &traffic.received] {
                while silences.recv().unwrap() == Duration::ZERO {}
                count.fetch_add(1, Ordering::Relaxed);
                while silences.recv().unwrap() > Duration::ZERO {}
            }
        });
        assert!(silences.iter().count() < usize::MAX, "the thread has ended");
    }

    #[test]
    fn each_stall_is_reported_once() {
        let mut reports = 0;
        let mut notice = StallNotice::new(Duration::from_secs(5), || reports += 1);
        for secs in [1, 4, 5, 6, 7, 0, 3, 8, 9] {
            notice.observe(Duration::from_secs(secs));
        }
        assert_eq!(reports, 2);
    }
}
