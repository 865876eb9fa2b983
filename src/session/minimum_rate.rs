//! Progress of a session under `--timeout`: a peer that sends bytes but no messages, or only keepalives, is given up.

use crate::work::clock::Since;
use parking_lot::Mutex;
use std::io;
use std::time::Duration;

/// How fast a message must arrive, in bytes per second, measured over the timeout. Every modem is faster.
const MIN_BYTES_PER_SEC: u64 = 64;
/// How long a peer may send only keepalives. It sends one only after work, and reading the largest files takes hours.
const KEEPALIVES_MAX: Duration = Duration::from_secs(24 * 3600);

/// Fails reads from a peer whose bytes complete no message. A link whose bytes stop is the concern of
/// [`Patience`](crate::transport::link::Patience).
#[derive(Default)]
pub struct MinimumRate {
    /// The value of `--timeout`; `None`: nothing is checked.
    idle: Option<Duration>,
    /// The bytes that must arrive in this time.
    needed_bytes: u64,
    keepalives_max: Duration,
    state: Mutex<RateState>,
}

#[derive(Default)]
struct RateState {
    /// When the current measurement began, and the bytes since then; `None` after a complete message.
    partial: Option<(Since, u64)>,
    /// Since when the peer has sent only keepalives.
    keepalives: Option<Since>,
}

impl MinimumRate {
    /// Returns the check for a timeout in seconds; 0: none.
    pub fn new(timeout_secs: u32) -> MinimumRate {
        let idle = (timeout_secs > 0).then(|| Duration::from_secs(timeout_secs.into()));
        let needed_bytes = MIN_BYTES_PER_SEC * u64::from(timeout_secs);
        MinimumRate {
            idle,
            needed_bytes,
            keepalives_max: KEEPALIVES_MAX,
            state: Mutex::default(),
        }
    }

    /// Records a complete message. Fails if the peer has sent only keepalives for too long.
    pub fn note_message(&self, is_keepalive: bool) -> io::Result<()> {
        if self.idle.is_none() {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.partial = None;
        if !is_keepalive {
            state.keepalives = None;
            return Ok(());
        }

        let first_keepalive = state.keepalives.get_or_insert_with(Since::now);
        if first_keepalive.elapsed() >= self.keepalives_max {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "only keepalives from the peer",
            ));
        }
        Ok(())
    }

    /// Records bytes that have arrived. Fails if they are too few for the time since the message began.
    fn note_bytes(&self, bytes: usize) -> io::Result<()> {
        let Some(idle) = self.idle else { return Ok(()) };
        let mut state = self.state.lock();
        let (since, total_bytes) = state.partial.get_or_insert_with(|| (Since::now(), 0));
        *total_bytes += bytes as u64;
        if since.elapsed() >= idle {
            if *total_bytes < self.needed_bytes {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "too little data from the peer",
                ));
            }
            state.partial = None;
        }
        Ok(())
    }
}

/// A reader whose bytes are checked.
pub struct RatedReader<R> {
    /// The stream from the peer.
    pub inner: R,
    /// The check of the session.
    pub rate: std::sync::Arc<MinimumRate>,
}

impl<R: io::Read> io::Read for RatedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(into)?;
        self.rate.note_bytes(got)?;
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn rate(idle: Duration, keepalives_max: Duration) -> MinimumRate {
        MinimumRate {
            idle: Some(idle),
            needed_bytes: 64,
            keepalives_max,
            state: Mutex::default(),
        }
    }

    fn is_over(result: io::Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[test]
    fn a_message_that_trickles_in_is_given_up_after_the_timeout() {
        assert!(is_over(rate(Duration::ZERO, HOUR).note_bytes(63)));
        let slow = rate(Duration::ZERO, HOUR);
        (0..3).for_each(|_| slow.note_bytes(64).unwrap());
        let recent = rate(HOUR, HOUR);
        (0..3).for_each(|_| recent.note_bytes(1).unwrap());
        assert_eq!(recent.state.lock().partial.unwrap().1, 3);
        recent.note_message(false).unwrap();
        assert!(
            recent.state.lock().partial.is_none(),
            "each message has the whole time"
        );
    }

    #[test]
    fn a_session_without_a_timeout_is_never_too_slow() {
        let never = MinimumRate::new(0);
        (0..3).for_each(|_| never.note_bytes(1).and(never.note_message(true)).unwrap());
    }

    #[test]
    fn keepalives_alone_do_not_count_for_ever() {
        let over = rate(HOUR, Duration::ZERO);
        over.note_message(false).unwrap();
        assert!(is_over(over.note_message(true)));
        let recent = MinimumRate::new(1);
        (0..3).for_each(|_| recent.note_message(true).unwrap());
        assert!(recent.state.lock().keepalives.is_some());
        recent.note_message(false).unwrap();
        assert!(recent.state.lock().keepalives.is_none());
    }
}
