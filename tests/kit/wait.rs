//! Waits for a state that another thread or process brings about. Tests wait for an event where there is one (the end of
//! a pipe, a message, a lock), and for a state otherwise: this is the only place of the tests that sleeps.

use std::time::{Duration, Instant};

/// The pause between two looks: looking without pause takes a processor from the other tests.
const LOOK: Duration = Duration::from_millis(1);

/// Waits until `is_so` returns true, and returns whether it did within the limit. It may hold only once, so it is not
/// evaluated again.
pub fn reached(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}
