//! Congestion control by the delivery rate of a path: how many bytes may be in flight.
//!
//! On radio links, losses say little about congestion, and the round trip time says little where it varies by itself.
//! So the window follows two measurements: the delivery rate, and the round trip time without a queue of our own. Their
//! product (the bandwidth-delay product, BDP) fills the path; the window is [`GAIN`] times that. Losses only count if a
//! path loses more than it does by nature; then they bound the window. The algorithm is of the BBR family
//! (draft-ietf-ccwg-bbr) with fewer parts: quinn itself paces a window over a round trip, so there is a window and no
//! pacing rate.
//!
//! - *Rate*: acknowledged bytes divided by the time in which they were sent or acknowledged, whichever is longer; the
//!   maximum of this epoch and the previous one (draft-cheng-iccrg-delivery-rate-estimation). While the sender is
//!   application-limited, it can only rise.
//! - *Base*: the round trip time of an empty path. It falls with every shorter measurement. A pause in which our own
//!   queue drains shows whether it has become longer: at the end of each epoch, and when a full window delivers less
//!   than the rate. The pause reduces the window in steps, so that a path that has become longer does not run empty: if
//!   a step does not shorten the round trip, there was no queue, and the measured time is the path. If the round trip
//!   becomes as short as before, a rate that was not reached has fallen.
//! - *Gathered*: bytes acknowledged at once, beyond the rate. They waited somewhere, while other data fills the path.
//!
//! There is no clock and no socket here: times are durations since a common start, passed in by the caller.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

/// The window before any measurement, in datagrams. RFC 6928 says 10, from a time when links carried a tenth of today's
/// rates; 32 is the value of Chromium, the most widely used QUIC implementation, and quinn paces them over a round
/// trip.
const INITIAL_DATAGRAMS: u64 = 32;
/// The minimum window, in datagrams: if two are lost, others are still acknowledged (BBR).
const FLOOR_DATAGRAMS: u64 = 4;
/// The window as a multiple of the BDP. With two, the rate doubles in a round if there is room for more, and the path
/// stays full while the acknowledgements of a round are late. The standing queue is then as long as the path.
const GAIN: f64 = 2.0;
/// The same during startup: the rate is measured over a round in which it grew, so doubling needs 2 / ln 2 (BBR).
const GROWING_GAIN: f64 = 2.89;
/// Startup continues while a round delivers this many times the previous rate ..
const GROWTH: f64 = 1.25;
/// .. or one of this many rounds did (both as in BBR), because a single round may be disturbed.
const FLAT_ROUNDS: u32 = 3;
/// The minimum for gathered bytes, as time at the current rate: timers and CPUs are late by about as much ..
const GATHERED_MIN: Duration = Duration::from_millis(2);
/// .. and the maximum: a radio holds back frames for some 40 ms, and more would overflow the queue of a home link.
const GATHERED_MAX: Duration = Duration::from_millis(50);
/// The minimum length of an epoch, in time and in rounds: changes of a path are detected within a few seconds, and the
/// pauses cost at most one percent on paths of 50 ms.
const EPOCH: Duration = Duration::from_secs(2);
const EPOCH_ROUNDS: u32 = 5;
/// The target of a pause, as a fraction of the BDP. Less than all of it, so that a rate estimate that is too high by a
/// fourth does not leave a queue that is mistaken for the path ..
const DRAINED: f64 = 0.8;
/// .. but each step leaves at least this fraction of what fills the path if there is no queue. From a window of two
/// BDPs, two steps end just below one BDP.
const STEP: f64 = 0.65;
/// A round trip time counts as different outside of these fractions of another; jitter and slow drift stay inside.
const SHORTER: f64 = 0.9;
const LONGER: f64 = 1.25;
/// A round was limited by the window if this fraction of it was in flight.
const USED: f64 = 0.8;
/// A round was full if it delivered at least this fraction of the rate.
const FULL: f64 = 0.9;
/// If it was not full and its round trip was this many times the base, a pause finds out why. Below that, the window
/// was less than two BDPs.
const DOUBTED: f64 = 1.5;
/// Losses count if they exceed this fraction (BBR draft) ..
const LOST_PART: f64 = 0.02;
/// .. plus this many datagrams: radios lose bursts of eight and more although no queue is full.
const LOST_DATAGRAMS: u64 = 24;
/// At most this many of the datagrams reported lost at once count. A full link keeps delivering, so its losses are
/// reported little by little between acknowledgements; a fading link loses everything for a while, and that is reported
/// at once.
const LOST_AT_ONCE_DATAGRAMS: u64 = 16;
/// Losses are counted over rounds until this many datagrams were acknowledged or lost: together with the burst, 4 %.
const JUDGED_DATAGRAMS: u64 = 1200;
/// Losses that count reduce the window to what the round delivered, but not below this fraction of it at once ..
const CUT_MAX: f64 = 0.5;
/// .. and not above this one (Cubic: 0.7). Never below the BDP, because that would leave the path empty.
const CUT_MIN: f64 = 0.85;
/// They reduce the rate to that of the round, but not below this fraction of it at once, because a round may be
/// disturbed.
const RATE_CUT_MAX: f64 = 0.7;
/// The bound is held for this time, because each attempt to exceed it costs losses (BBR: 2 to 3 s) ..
const HELD: Duration = Duration::from_secs(1);
/// .. then it grows by one datagram in a round, two in the next, and so on, up to this fraction of it. Datagrams rather
/// than a fraction at first, so that the smaller of two flows gains more.
const STEP_MAX: f64 = 0.125;
/// Shorter measurements count as this long.
const SHORTEST: Duration = Duration::from_micros(1);
/// The maximum number of remembered send times: 64 MiB in datagrams that were sent one by one.
const SENT_MAX: usize = 48_000;

/// Congestion control of one path, in one direction.
#[derive(Debug, Clone, Default)]
pub struct CongestionControl {
    datagram_bytes: u64,
    /// Acknowledged bytes in total, and when the last acknowledgement arrived.
    acked_bytes: u64,
    acked_at: Duration,
    /// The value of `acked_bytes` up to which gathered bytes were counted.
    gathered_until: u64,
    /// When the newest acknowledged datagram was sent.
    acked_sent_at: Duration,
    /// Approximate number of bytes in flight.
    out_bytes: u64,
    /// Until `acked_bytes` reaches this value, samples are application-limited and cannot lower the rate.
    idle_until_bytes: u64,
    sent: VecDeque<SentDatagrams>,
    /// When the newest datagram of the current acknowledgements was sent.
    newest: Option<Duration>,
    round: Round,
    judged: Judged,
    epoch: Epoch,
    /// The rate of the previous epoch in bytes per second; 0 if there was none.
    rate_before: f64,
    gathered_before: f64,
    /// The start of the current measurement of gathered bytes, and the bytes acknowledged since then.
    gathering: (Duration, f64),
    base: Option<Duration>,
    growth: Growth,
    pause: Option<Pause>,
    bound: Option<WindowBound>,
}

/// The datagrams sent at one moment, and what had been acknowledged by then.
#[derive(Debug, Clone, Copy)]
struct SentDatagrams {
    at: Duration,
    acked_bytes: u64,
    acked_at: Duration,
    acked_sent_at: Duration,
    is_idle: bool,
}

/// A round: from the sending of a datagram until its acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// The round ends with the acknowledgement of a datagram that was sent after this many bytes had been acknowledged.
    until_bytes: u64,
    began_at: Duration,
    began_bytes: u64,
    /// The sender was application-limited at times.
    is_idle: bool,
    /// The window was the limit.
    is_used: bool,
    /// The highest rate measured.
    rate: f64,
    shortest: Option<Duration>,
}

/// Acknowledged and lost bytes since the last judgement.
#[derive(Debug, Clone, Copy, Default)]
struct Judged {
    acked_bytes: u64,
    lost_bytes: u64,
    /// A router marked congestion (ECN).
    is_marked: bool,
    /// The window was just reduced: losses reported now were sent before.
    is_settling: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Epoch {
    began_at: Duration,
    /// Rounds that were limited by the window.
    rounds: u32,
    rate: f64,
    /// The most bytes that were acknowledged at once, beyond the rate.
    gathered: f64,
}

/// Whether the rate still grows (startup).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Growth {
    /// Unknown: no round was limited by the window yet.
    #[default]
    Unknown,
    /// The rate at its last growth, and the number of rounds since then.
    Grows { rate: f64, flat: u32 },
    /// The capacity of the path is known.
    Found,
}

/// A reduction of the bytes in flight that measures its effect on the round trip time.
#[derive(Debug, Clone, Copy)]
enum Pause {
    /// The queue drains, by one step.
    Drains(RateStep),
    /// Datagrams sent from this moment on measure the effect; the shortest of their round trips.
    Measures {
        step: RateStep,
        from: Duration,
        shortest: Option<Duration>,
    },
}

/// One step of a pause.
#[derive(Debug, Clone, Copy)]
struct RateStep {
    /// The base at the beginning of the pause.
    believed: Duration,
    /// The round trip time before this step.
    before: Duration,
    /// Bytes per second, as far as known.
    rate: f64,
    /// A full window delivered less than the rate: either the path has become longer, or its rate has fallen.
    is_doubt: bool,
}

impl RateStep {
    /// Returns for how long the bytes in flight at the end of this step fill the path.
    fn target(&self) -> Duration {
        self.believed
            .mul_f64(DRAINED)
            .max(self.before.mul_f64(STEP))
    }
}

/// The bound of the window after losses.
#[derive(Debug, Clone, Copy)]
struct WindowBound {
    bytes: f64,
    /// By how much it grows next.
    step: f64,
    held_until: Duration,
}

impl CongestionControl {
    /// Creates the control of a path of which only the maximum datagram size is known.
    pub fn new(datagram_bytes: u64) -> CongestionControl {
        CongestionControl {
            datagram_bytes,
            ..CongestionControl::default()
        }
    }

    /// Sets a new maximum datagram size.
    pub fn resize(&mut self, datagram_bytes: u64) {
        self.datagram_bytes = datagram_bytes;
    }

    /// Returns the congestion window: how many bytes may be in flight.
    pub fn window_bytes(&self) -> u64 {
        let window = match self.pause {
            Some(Pause::Drains(step)) => step.rate * step.target().as_secs_f64(),
            Some(Pause::Measures { .. }) | None => self.wanted_bytes(),
        };
        let bound = self.bound.map_or(f64::MAX, |bound| bound.bytes);
        (window.min(bound) as u64).max(FLOOR_DATAGRAMS * self.datagram_bytes)
    }

    /// Returns the window before any measurement.
    pub fn initial_bytes(&self) -> u64 {
        INITIAL_DATAGRAMS * self.datagram_bytes
    }

    /// Returns the window that follows from the measurements, in bytes.
    fn wanted_bytes(&self) -> f64 {
        let gain = if self.growth == Growth::Found {
            GAIN
        } else {
            GROWING_GAIN
        };
        let gathered = self
            .epoch
            .gathered
            .max(self.gathered_before)
            .max(self.rate() * GATHERED_MIN.as_secs_f64());
        let measured = gain * self.path_bytes() + gathered;
        match self.growth {
            Growth::Unknown | Growth::Grows { .. } => measured.max(self.initial_bytes() as f64),
            Growth::Found => measured,
        }
    }

    /// Returns the delivery rate in bytes per second; 0 if unknown.
    fn rate(&self) -> f64 {
        self.epoch.rate.max(self.rate_before)
    }

    /// Returns the BDP: the bytes that fill the path without a queue.
    fn path_bytes(&self) -> f64 {
        self.rate() * self.base_secs()
    }

    fn base_secs(&self) -> f64 {
        self.base.unwrap_or_default().as_secs_f64()
    }

    /// Records that `bytes` were sent now.
    pub fn sent(&mut self, now: Duration, bytes: u64) {
        if self.out_bytes == 0 {
            // The measurement of the rate starts here.
            (self.acked_at, self.acked_sent_at) = (now, now);
        }
        self.out_bytes += bytes;
        self.round.is_used |= self.out_bytes as f64 >= USED * self.window_bytes() as f64;
        if self.sent.back().is_some_and(|last| last.at >= now) {
            return;
        }
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(SentDatagrams {
            at: now,
            acked_bytes: self.acked_bytes,
            acked_at: self.acked_at,
            acked_sent_at: self.acked_sent_at,
            is_idle: self.idle_until_bytes > self.acked_bytes,
        });
    }

    /// Records the acknowledgement of `bytes` that were sent at `sent_at`. [`CongestionControl::all_acknowledged`] follows.
    pub fn acknowledged(&mut self, now: Duration, sent_at: Duration, bytes: u64) {
        self.acked_bytes += bytes;
        self.judged.acked_bytes += bytes;
        self.acked_at = now;
        self.newest = self.newest.max(Some(sent_at));
    }

    /// Evaluates all acknowledgements recorded at this moment. `out_bytes` are still in flight; `is_idle` means that
    /// the sender is application-limited.
    pub fn all_acknowledged(&mut self, now: Duration, out_bytes: u64, is_idle: bool) {
        self.out_bytes = out_bytes;
        let just = self.acked_bytes - std::mem::replace(&mut self.gathered_until, self.acked_bytes);
        self.gather(now, just);
        if is_idle {
            self.idle_until_bytes = self.acked_bytes + out_bytes.max(1);
        }
        let Some(newest) = self.newest.take() else {
            return;
        };
        while self.sent.front().is_some_and(|sent| sent.at < newest) {
            self.sent.pop_front();
        }
        // Datagrams that are older than ones acknowledged before, or were sent on another path, give no sample.
        let Some(sent) = self.sent.front().copied().filter(|sent| sent.at == newest) else {
            return;
        };
        self.acked_sent_at = newest;
        self.measure(now, &sent);
        if sent.acked_bytes >= self.round.until_bytes {
            self.end_round(now);
        }
        if let Some(Pause::Drains(step)) = self.pause
            && self.out_bytes <= self.window_bytes()
        {
            self.pause = Some(Pause::Measures {
                step,
                from: now,
                shortest: None,
            });
        }
    }

    fn measure(&mut self, now: Duration, sent: &SentDatagrams) {
        let time = now.saturating_sub(sent.at);
        self.base = shorter(self.base, time);
        self.round.shortest = shorter(self.round.shortest, time);
        if let Some(Pause::Measures { from, shortest, .. }) = &mut self.pause
            && sent.at >= *from
        {
            *shortest = shorter(*shortest, time);
        }
        let took = now
            .saturating_sub(sent.acked_at)
            .max(sent.at.saturating_sub(sent.acked_sent_at));
        let rate = (self.acked_bytes - sent.acked_bytes) as f64
            / took.as_secs_f64().max(SHORTEST.as_secs_f64());
        self.round.is_idle |= sent.is_idle;
        self.round.rate = self.round.rate.max(rate);
        self.epoch.rate = self.epoch.rate.max(rate);
    }

    fn end_round(&mut self, now: Duration) {
        let began = Round {
            until_bytes: self.acked_bytes,
            began_at: now,
            began_bytes: self.acked_bytes,
            ..Round::default()
        };
        let round = std::mem::replace(&mut self.round, began);
        let brought = (self.acked_bytes - round.began_bytes) as f64;
        let rate = brought
            / now
                .saturating_sub(round.began_at)
                .max(SHORTEST)
                .as_secs_f64();
        self.judge(&round, brought);
        if let Some(Pause::Measures {
            step,
            shortest: Some(found),
            ..
        }) = self.pause
        {
            self.pause = self.conclude(now, &step, found, rate).map(Pause::Drains);
        }
        if round.is_idle || !round.is_used {
            return;
        }
        self.epoch.rounds += 1;
        self.grow();
        if self.growth != Growth::Found || self.pause.is_some() {
            return;
        }
        let Some(base) = self.base else {
            return;
        };
        let is_full = rate >= FULL * self.rate();
        if !is_full {
            if let Some(bound) = self.bound.as_mut().filter(|bound| now >= bound.held_until) {
                bound.bytes *= 1.0 + STEP_MAX;
            }
            if let Some(before) = round
                .shortest
                .filter(|shortest| *shortest > base.mul_f64(DOUBTED))
            {
                self.pause = Some(Pause::Drains(RateStep {
                    believed: base,
                    before,
                    rate,
                    is_doubt: true,
                }));
                return;
            }
        }
        if now.saturating_sub(self.epoch.began_at) >= EPOCH && self.epoch.rounds >= EPOCH_ROUNDS {
            if is_full {
                let before = round.shortest.unwrap_or(base);
                self.pause = Some(Pause::Drains(RateStep {
                    believed: base,
                    before,
                    rate: self.rate(),
                    is_doubt: false,
                }));
            } else {
                self.begin_epoch(now);
            }
        }
    }

    /// Evaluates a step of a pause that measured the round trip `found`, in a round with this rate. Returns the next
    /// step.
    fn conclude(
        &mut self,
        now: Duration,
        step: &RateStep,
        found: Duration,
        rate: f64,
    ) -> Option<RateStep> {
        let RateStep {
            believed,
            before,
            is_doubt,
            ..
        } = *step;
        if found < believed.mul_f64(SHORTER) {
            // The queue was longer than assumed. If the doubt was justified, it arises again.
            self.base = Some(found);
            return Some(RateStep {
                believed: found,
                before: found,
                rate: self.rate(),
                is_doubt: false,
            });
        }
        let is_empty = found <= believed.mul_f64(LONGER) && step.target() <= believed;
        let is_as_before = (before.mul_f64(SHORTER)..before.mul_f64(LONGER)).contains(&found);
        if !is_empty && !is_as_before {
            // A queue is left.
            let rate = if is_doubt { rate } else { self.rate() };
            return Some(RateStep {
                believed,
                before: found,
                rate,
                is_doubt,
            });
        }
        if is_doubt {
            // Either the path is unchanged, so its rate has fallen, or there was no queue and the path has become
            // longer.
            self.epoch.rate = if is_empty { step.rate } else { self.rate() };
        }
        self.base = Some(found);
        self.begin_epoch(now);
        None
    }

    /// Ends a round that was limited by the window: updates [`Growth`].
    fn grow(&mut self) {
        let now = self.rate();
        self.growth = match self.growth {
            Growth::Unknown => Growth::Grows { rate: now, flat: 0 },
            Growth::Grows { rate, .. } if now >= rate * GROWTH => {
                Growth::Grows { rate: now, flat: 0 }
            }
            Growth::Grows { flat, .. } if flat + 1 >= FLAT_ROUNDS => Growth::Found,
            Growth::Grows { rate, flat } => Growth::Grows {
                rate,
                flat: flat + 1,
            },
            Growth::Found => Growth::Found,
        };
    }

    /// Counts bytes acknowledged beyond the rate. They were held up somewhere, and bytes that wait there do not fill
    /// the path.
    fn gather(&mut self, now: Duration, bytes: u64) {
        let (from, acked) = &mut self.gathering;
        let rate = self.epoch.rate.max(self.rate_before);
        let mut expected = rate * now.saturating_sub(*from).as_secs_f64();
        if *acked <= expected {
            (*from, *acked, expected) = (now, 0.0, 0.0);
        }
        *acked += bytes as f64;
        if self.growth == Growth::Found {
            let gathered = (*acked - expected).min(rate * GATHERED_MAX.as_secs_f64());
            self.epoch.gathered = self.epoch.gathered.max(gathered);
        }
    }

    fn begin_epoch(&mut self, now: Duration) {
        self.rate_before = self.epoch.rate;
        self.gathered_before = self.epoch.gathered;
        self.epoch = Epoch {
            began_at: now,
            ..Epoch::default()
        };
    }

    /// Records lost bytes; 0 means that a router marked congestion. `is_all` means persistent congestion: nothing was
    /// acknowledged for so long that earlier measurements are void.
    pub fn lost(&mut self, bytes: u64, is_all: bool) {
        self.out_bytes = self.out_bytes.saturating_sub(bytes);
        if is_all {
            self.forget();
            return;
        }
        self.judged.lost_bytes += bytes.min(LOST_AT_ONCE_DATAGRAMS * self.datagram_bytes);
        self.judged.is_marked |= bytes == 0;
    }

    /// Resets everything except the counters.
    fn forget(&mut self) {
        let acked_bytes = self.acked_bytes;
        *self = CongestionControl {
            acked_bytes,
            acked_at: self.acked_at,
            gathered_until: acked_bytes,
            acked_sent_at: self.acked_sent_at,
            out_bytes: self.out_bytes,
            sent: std::mem::take(&mut self.sent),
            newest: self.newest,
            round: Round {
                until_bytes: acked_bytes,
                began_at: self.acked_at,
                began_bytes: acked_bytes,
                ..Round::default()
            },
            ..CongestionControl::new(self.datagram_bytes)
        };
    }

    /// Ends a round: checks whether more was lost than a path loses by nature.
    fn judge(&mut self, round: &Round, brought: f64) {
        let Judged {
            acked_bytes,
            lost_bytes,
            is_marked,
            is_settling,
        } = self.judged;
        if is_settling {
            self.judged = Judged::default();
            return;
        }
        let all_bytes = acked_bytes + lost_bytes;
        let by_nature =
            LOST_PART * all_bytes as f64 + (LOST_DATAGRAMS * self.datagram_bytes) as f64;
        if is_marked || lost_bytes as f64 > by_nature {
            self.judged = Judged {
                is_settling: true,
                ..Judged::default()
            };
            self.cut(round, brought);
            return;
        }
        if all_bytes >= JUDGED_DATAGRAMS * self.datagram_bytes {
            self.judged = Judged::default();
        }
        let wanted = self.wanted_bytes();
        if let Some(bound) = self
            .bound
            .as_mut()
            .filter(|bound| !round.is_idle && self.acked_at >= bound.held_until)
        {
            bound.bytes += bound.step;
            bound.step = (bound.step * 2.0).min(STEP_MAX * bound.bytes);
            if bound.bytes >= wanted {
                self.bound = None;
            }
        }
    }

    /// Reacts to excessive losses: the window was too large, and the rate estimate may be too high.
    fn cut(&mut self, round: &Round, brought: f64) {
        let before = self
            .wanted_bytes()
            .min(self.bound.map_or(f64::MAX, |bound| bound.bytes));
        if !round.is_idle {
            let rate = round.rate.max(RATE_CUT_MAX * self.rate());
            self.epoch.rate = self.epoch.rate.min(rate);
            self.rate_before = self.rate_before.min(rate);
        }
        let bytes = brought
            .clamp(CUT_MAX * before, CUT_MIN * before)
            .max(self.path_bytes());
        self.bound = Some(WindowBound {
            bytes,
            step: self.datagram_bytes as f64,
            held_until: self.acked_at + HELD,
        });
        if self.growth != Growth::Unknown {
            self.growth = Growth::Found;
        }
    }
}

fn shorter(known: Option<Duration>, time: Duration) -> Option<Duration> {
    Some(known.map_or(time, |known| known.min(time)))
}
