//! A rate at which bytes may go: `--bwlimit`.

use super::clock::Since;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Holds the bytes that are copied to a rate.
pub struct Throttle<'a> {
    bytes_per_sec: u64,
    state: Mutex<(u64, Since)>,
    stop: &'a AtomicBool,
}

/// The longest pause at a time, so that a signal is heard.
const PAUSE_MAX_MS: u64 = 200;

impl Throttle<'_> {
    /// A rate; once `stop` is set nobody waits any more.
    pub fn new(bytes_per_sec: u64, stop: &AtomicBool) -> Throttle<'_> {
        Throttle { bytes_per_sec, state: Mutex::new((0, Since::now())), stop }
    }

    /// Waits until so many more bytes fit the rate.
    pub fn wait(&self, bytes: u64) {
        let due_ms = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 += bytes;
            (u128::from(state.0) * 1000 / u128::from(self.bytes_per_sec), state.1)
        };
        while !self.stop.load(Ordering::Relaxed) {
            let behind = due_ms.0.saturating_sub(due_ms.1.elapsed().as_millis()) as u64;
            if behind == 0 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(behind.min(PAUSE_MAX_MS)));
        }
    }
}
