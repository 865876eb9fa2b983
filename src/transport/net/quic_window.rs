//! The sizes of the QUIC windows on a path, for the receiver and the sender; pure.
//!
//! The receiver consumes data as soon as it arrives; the session's own flow control limits how much is sent. So these
//! windows only need to cover the path: larger ones would cost memory when the CPU is the bottleneck.

use super::limits::{SEND_MIN_BYTES, WINDOW_BYTES, WINDOW_MAX_BYTES};
use std::time::Duration;

/// If a path delivered this fraction of the window (one half) within a round trip, the window may be the bottleneck.
const FULL_PART: u64 = 2;
/// The writer may be this many congestion windows ahead: one round trip's worth waits to be sent next.
const AHEAD: u64 = 2;

/// The window of the receiver.
#[derive(Debug)]
pub struct QuicWindow {
    window_bytes: u64,
    /// The shortest round trip seen; on a slow CPU others are longer.
    round: Duration,
    /// When the current measurement began. `came_bytes` counts the bytes received since then.
    since: Duration,
    came_bytes: u64,
}

impl Default for QuicWindow {
    fn default() -> QuicWindow {
        QuicWindow {
            window_bytes: WINDOW_BYTES.into(),
            round: Duration::MAX,
            since: Duration::ZERO,
            came_bytes: 0,
        }
    }
}

impl QuicWindow {
    /// Records that `bytes` were read at `now` on a path with this round trip. Returns the window if it changes. `most`
    /// returns how far it may grow; it is only called if that matters.
    pub fn took(
        &mut self,
        now: Duration,
        bytes: u64,
        round: Duration,
        most: impl FnOnce() -> u64,
    ) -> Option<u64> {
        self.round = self.round.min(round);
        self.came_bytes += bytes;
        let is_within = now.saturating_sub(self.since) <= self.round;
        let is_full = self.came_bytes >= self.window_bytes / FULL_PART;
        if is_within && !is_full {
            return None;
        }
        (self.since, self.came_bytes) = (now, 0);
        let wanted = if is_within {
            2 * self.window_bytes
        } else {
            self.window_bytes
        };
        let window_bytes = at_most(wanted, most);
        let changes = window_bytes != self.window_bytes;
        self.window_bytes = window_bytes;
        if changes { Some(window_bytes) } else { None }
    }
}

/// Returns the window of the sender for a congestion window of `control_bytes`; `most` as in [`QuicWindow::took`].
pub fn writing(control_bytes: u64, most: impl FnOnce() -> u64) -> u64 {
    at_most(
        control_bytes.saturating_mul(AHEAD).max(SEND_MIN_BYTES),
        most,
    )
}

/// Limits a window to `most`, but never below the initial size, which is always available.
fn at_most(wanted: u64, most: impl FnOnce() -> u64) -> u64 {
    let start = u64::from(WINDOW_BYTES);
    if wanted <= start {
        wanted
    } else {
        wanted.min(most().clamp(start, WINDOW_MAX_BYTES.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns the window after a minute with `per_ms` bytes per millisecond, as far as the window permits.
    fn after_a_minute(reading: &mut QuicWindow, per_ms: u64, round_ms: u64, most: u64) -> u64 {
        let mut window = reading.window_bytes;
        let (mut under_way, mut came) = (
            std::collections::VecDeque::from(vec![0; round_ms as usize]),
            0,
        );
        for ms in 0..60_000 {
            let sent_bytes = per_ms.min(window.saturating_sub(under_way.iter().sum::<u64>()));
            under_way.push_back(sent_bytes);
            came += under_way.pop_front().unwrap();
            // The reader is a little late and then reads several pieces at once.
            if ms % 2 == 0 {
                let [now, round] = [ms, round_ms].map(Duration::from_millis);
                window = reading
                    .took(now, std::mem::take(&mut came), round, || most)
                    .unwrap_or(window);
            }
        }
        window
    }

    #[test]
    fn window_grows_with_the_bandwidth_delay_product() {
        let start = u64::from(WINDOW_BYTES);
        // Mbit/s, ms, multiple of the initial window: the path holds less than half of the result.
        for (mbit, ms, times) in [
            (10_000, 1, 1),
            (250, 38, 1),
            (40, 800, 1),
            (1000, 38, 2),
            (1000, 150, 8),
            (250, 400, 4),
            (1000, 600, 8),
        ] {
            let window = after_a_minute(&mut QuicWindow::default(), mbit * 125, ms, u64::MAX);
            assert_eq!(window, times * start, "{mbit} Mbit/s, {ms} ms");
        }
        assert_eq!(u64::from(WINDOW_MAX_BYTES), 8 * start);
    }

    #[test]
    fn window_follows_a_changing_ceiling() {
        let start = u64::from(WINDOW_BYTES);
        let mut reading = QuicWindow::default();
        let mut window_below = |most| {
            reading.since = Duration::ZERO;
            after_a_minute(&mut reading, 125_000, 150, most)
        };
        let below = [3 * start, 0, u64::MAX, 20 * MIB].map(&mut window_below);
        assert_eq!(below, [3 * start, start, 8 * start, 20 * MIB]);
    }

    #[test]
    fn inflated_round_trips_do_not_grow_the_window() {
        let mut reading = QuicWindow::default();
        let ms = Duration::from_millis;
        for now in 0..1000 {
            let round = if now == 0 { ms(1) } else { ms(500) };
            assert_eq!(reading.took(ms(now), MIB, round, || u64::MAX), None);
        }
    }

    #[test]
    fn send_buffer_follows_the_congestion_window() {
        for (control_bytes, bytes) in [
            (0, 4 * MIB),
            (MIB, 4 * MIB),
            (5 * MIB, 10 * MIB),
            (u64::MAX, u64::from(WINDOW_MAX_BYTES)),
        ] {
            assert_eq!(writing(control_bytes, || u64::MAX), bytes);
        }
        let most = [0, 9 * MIB, 20 * MIB].map(|most| writing(u64::MAX, || most));
        assert_eq!(most, [8 * MIB, 9 * MIB, 20 * MIB]);
        assert_eq!(
            writing(MIB, || unreachable!(
                "the ceiling is not read for a short window"
            )),
            4 * MIB
        );
    }
}
