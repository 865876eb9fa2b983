//! What the live display measures from one moment to the next: rates, the remaining time of single files, and stalls.

use crate::report::gauge::Counts;
use std::collections::VecDeque;
use std::time::Duration;

/// The time over which rates are measured.
const WINDOW: Duration = Duration::from_secs(10);
/// The shortest time over which a rate is measured.
const WINDOW_MIN: Duration = Duration::from_millis(500);
/// The parts of that time of which the median is taken.
const SLICE: Duration = Duration::from_secs(1);
/// From this time on, a run in which nothing moves is shown as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(3);

/// The bytes per second of the last seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Those that are copied.
    pub copied: u64,
    /// Those that need no more work, as far as what is left will go on like that: the mean of what is copied, and the
    /// median second of what is skipped. Thousands of files are skipped at once, for example when the walk overtakes the
    /// copy. In the mean, such a burst would make the remaining time too short for as long as the window has it.
    pub done: u64,
}

/// Measures rates over the last seconds.
#[derive(Debug, Default)]
pub struct Rates {
    /// Moments since the beginning, with the bytes copied and skipped by then.
    history: VecDeque<(Duration, u64, u64)>,
}

impl Rates {
    /// Adds a moment. Returns the rates; `None` if too little time has passed.
    pub fn measure(&mut self, now: Duration, counts: &Counts) -> Option<Rate> {
        let copied = counts.copied.1;
        let skipped = counts.done.1.saturating_sub(copied);
        // A run that is repeated counts from 0 again.
        if self
            .history
            .back()
            .is_some_and(|newest| copied < newest.1 || skipped < newest.2)
        {
            self.history.clear();
        }
        self.history.push_back((now, copied, skipped));
        while self.history.len() > 2 && self.history[1].0 + WINDOW <= now {
            self.history.pop_front();
        }
        let &(since, copied_before, _) = self.history.front()?;
        let span = now.saturating_sub(since);
        if span < WINDOW_MIN {
            return None;
        }
        let rate = per_second(copied - copied_before, span);
        Some(Rate {
            copied: rate,
            done: rate.saturating_add(self.median_skipped()),
        })
    }

    /// Returns the median of the bytes skipped per second, over the seconds of the history. The lower one of two: a burst
    /// in one of two seconds is no rate.
    fn median_skipped(&self) -> u64 {
        let mut rates = Vec::new();
        let mut begin = self.history.front();
        for moment in &self.history {
            let Some(&(since, _, before)) = begin else {
                break;
            };
            let &(now, _, skipped) = moment;
            if now >= since + SLICE {
                rates.push(per_second(skipped - before, now - since));
                begin = Some(moment);
            }
        }
        rates.sort_unstable();
        let middle = rates.len().saturating_sub(1) / 2;
        rates.get(middle).copied().unwrap_or(0)
    }
}

fn per_second(bytes: u64, span: Duration) -> u64 {
    (bytes as f64 / span.as_secs_f64()) as u64
}

/// Measures how long the large files in progress still take.
#[derive(Debug, Default)]
pub struct FileTimes {
    /// The files in progress, when each was seen first, and the bytes done by then.
    seen: Vec<(Vec<u8>, Duration, u64)>,
}

impl FileTimes {
    /// Adds a moment. Returns the seconds that each file in progress still takes at its rate so far; `None` if nothing
    /// moves or too little time has passed.
    pub fn measure(&mut self, now: Duration, counts: &Counts) -> Vec<Option<u64>> {
        let earlier = std::mem::take(&mut self.seen);
        let mut left = Vec::new();
        for (path, done, len) in &counts.files {
            let before = earlier.iter().find(|(seen, ..)| seen == path);
            // A file that is sent again counts from 0 again.
            let (since, begun) = match before {
                Some((_, since, begun)) if begun <= done => (*since, *begun),
                _ => (now, *done),
            };
            self.seen.push((path.clone(), since, begun));
            let span = now.saturating_sub(since);
            let rate = (done - begun) as f64 / span.as_secs_f64();
            left.push(if span >= WINDOW_MIN && rate >= 1.0 {
                Some((len.saturating_sub(*done) as f64 / rate) as u64)
            } else {
                None
            });
        }
        left
    }
}

/// Finds out since when nothing has moved.
#[derive(Debug, Default)]
pub struct Stall {
    /// The counters without the silence of the link, and when they changed last.
    last: Counts,
    since: Duration,
}

impl Stall {
    /// Adds a moment. Returns for how long neither the link nor the counters have moved, if that is long. Either of
    /// them can rest alone: a peer may compare contents, and this end may write what has arrived.
    pub fn measure(&mut self, now: Duration, counts: &Counts) -> Option<Duration> {
        let counters = Counts {
            silence: Duration::ZERO,
            ..counts.clone()
        };
        if counters != self.last {
            self.last = counters;
            self.since = now;
        }
        let resting = now.saturating_sub(self.since).min(counts.silence);
        if resting >= STALLED_AFTER {
            Some(resting)
        } else {
            None
        }
    }
}
