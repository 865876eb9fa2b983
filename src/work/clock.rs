//! The clock: the only place that reads the current time.

#![allow(clippy::disallowed_methods, reason = "this is their home")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the current time as seconds since 1970 and nanoseconds.
pub fn now_unix() -> (i64, u32) {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => (-(before.duration().as_secs() as i64), 0),
    }
}

/// A point in time from which elapsed time is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Since(Instant);

impl Since {
    /// Starts measuring now.
    pub fn now() -> Since {
        Since(Instant::now())
    }

    /// Returns the time since then.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
