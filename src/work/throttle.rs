//! The rate limit of `--bwlimit`.

use super::clock::Since;
use crate::fs::sys::note_work;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limits the rate at which bytes are copied.
pub struct Throttle<'a> {
    bytes_per_sec: u64,
    began: Since,
    /// When, after `began`, all admitted bytes have been transferred at this rate.
    spent: Mutex<Duration>,
    stop: &'a AtomicBool,
}

/// The longest single sleep, so that a signal is noticed.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How much idle time can be made up for later. Without this bound, a scan or a slow peer would be followed by a burst.
const SAVED_MAX: Duration = Duration::from_millis(100);

impl Throttle<'_> {
    /// Creates a limit. Once `stop` is set, waits return.
    pub fn new(bytes_per_sec: u64, stop: &AtomicBool) -> Throttle<'_> {
        Throttle {
            bytes_per_sec,
            began: Since::now(),
            spent: Mutex::default(),
            stop,
        }
    }

    /// Blocks until this many more bytes fit the rate.
    pub fn wait(&self, bytes: u64) {
        let due = {
            let mut spent = self.spent.lock();
            *spent = spent_then(*spent, self.began.elapsed(), bytes, self.bytes_per_sec);
            *spent
        };
        while !self.stop.load(Ordering::Relaxed) {
            let behind = due.saturating_sub(self.began.elapsed());
            if behind.is_zero() {
                return;
            }
            note_work();
            std::thread::sleep(behind.min(PAUSE_MAX));
        }
    }
}

/// Returns the new value of `spent` after `bytes` more, with `now` as the current time. All times count from `began`.
fn spent_then(spent: Duration, now: Duration, bytes: u64, bytes_per_sec: u64) -> Duration {
    let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_sec);
    let takes = Duration::from_nanos(u64::try_from(takes_ns).unwrap_or(u64::MAX));
    spent
        .max(now.saturating_sub(SAVED_MAX))
        .saturating_add(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_saves_at_most_one_piece() {
        let [rate, piece] = [10_000_000, 1_000_000];
        let at = Duration::from_millis;
        let mut spent = Duration::ZERO;
        for nth in 1..=5 {
            spent = spent_then(spent, at(3), piece, rate);
            assert_eq!(spent, at(100 * nth), "pieces are spaced by the rate");
        }
        // A short delay is made up for.
        assert_eq!(
            spent_then(spent, spent + at(20), piece, rate),
            spent + at(100)
        );
        let late = spent + Duration::from_secs(20);
        assert_eq!(
            spent_then(spent, late, piece, rate),
            late,
            "at most one piece is saved"
        );
        assert_eq!(spent_then(late, late, piece, rate), late + at(100));
        assert!(
            spent_then(spent, late, u64::MAX, 1) > late + Duration::from_secs(1 << 34),
            "the time saturates"
        );
    }
}
