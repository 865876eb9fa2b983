//! The one place that asks what time it is.

#![allow(clippy::disallowed_methods, reason = "this is their home")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds since 1970 and nanoseconds.
pub fn now_unix() -> (i64, u32) {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => (-(before.duration().as_secs() as i64), 0),
    }
}

/// A moment from which time is measured.
#[derive(Debug, Clone, Copy)]
pub struct Since(Instant);

impl Since {
    /// Now.
    pub fn now() -> Since {
        Since(Instant::now())
    }

    /// How long ago it was.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
