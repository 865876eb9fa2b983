//! A rate at which bytes may go: `--bwlimit`.

use super::clock::Since;
use crate::fs::sys::note_work;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Holds the bytes that are copied to a rate.
pub struct Throttle<'a> {
    bytes_per_sec: u64,
    began: Since,
    /// So long after that all bytes have gone that were let through.
    spent: Mutex<Duration>,
    stop: &'a AtomicBool,
}

/// The longest pause at a time, so that a signal is heard.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// So much time in which nothing went counts for later. What was not copied while a tree was looked at, or while a peer did
/// not answer, does not go all at once then.
const SAVED_MAX: Duration = Duration::from_millis(100);

impl Throttle<'_> {
    /// A rate; once `stop` is set nobody waits any more.
    pub fn new(bytes_per_sec: u64, stop: &AtomicBool) -> Throttle<'_> {
        Throttle { bytes_per_sec, began: Since::now(), spent: Mutex::default(), stop }
    }

    /// Waits until so many more bytes fit the rate.
    pub fn wait(&self, bytes: u64) {
        let due = {
            let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
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

/// When so many bytes more have gone, where those before are gone at `spent`.
fn spent_then(spent: Duration, now: Duration, bytes: u64, bytes_per_sec: u64) -> Duration {
    let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_sec);
    let takes = Duration::from_nanos(u64::try_from(takes_ns).unwrap_or(u64::MAX));
    spent.max(now.saturating_sub(SAVED_MAX)).saturating_add(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nothing_went_is_not_made_up_for() {
        let [rate, piece] = [10_000_000, 1_000_000];
        let at = Duration::from_millis;
        let mut spent = Duration::ZERO;
        for nth in 1..=5 {
            spent = spent_then(spent, at(3), piece, rate);
            assert_eq!(spent, at(100 * nth), "one behind the other, whoever comes early");
        }
        // A little late each time costs nothing.
        assert_eq!(spent_then(spent, spent + at(20), piece, rate), spent + at(100));
        let late = spent + Duration::from_secs(20);
        assert_eq!(spent_then(spent, late, piece, rate), late, "what is saved is one piece");
        assert_eq!(spent_then(late, late, piece, rate), late + at(100));
        assert!(spent_then(spent, late, u64::MAX, 1) > late + Duration::from_secs(1 << 34), "more than can be counted");
    }
}
