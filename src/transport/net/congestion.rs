//! How much may be under way: control of congestion by the rate at which a path delivers.
//!
//! What is lost says little of a path by radio, and the time there and back says little where it changes by itself. So the
//! window follows what was measured: the rate at which the peer hears, and the time there and back while no queue of ours
//! stands in between. Their product fills the path; the window is [`GAIN`] times that. Losses count only where they are more
//! than a path loses by nature, and then they bound the window. It is of the family of BBR (draft-ietf-ccwg-bbr), with less
//! in it: quinn spreads a window over a round trip by itself, so there is a window and no pace.
//!
//! - *Rate*: what was heard by the time in which it was sent or heard, whichever was longer; the highest of an epoch and
//!   the one before (draft-cheng-iccrg-delivery-rate-estimation). Where there was not enough to send it can only rise.
//! - *Base*: the time there and back of an empty path. It falls with what is measured. A pause in which our own queue drains
//!   shows whether it is longer now: at the end of each epoch, and where a full window brings less than the rate. It goes down
//!   in steps, so that a path that has grown longer is not left empty: if a step makes the way no shorter, then there was no
//!   queue, and that is the path. Where the way becomes as short as it was, a rate that was not brought has fallen.
//! - *Gathered*: what was heard at once, beyond the rate. It waited somewhere, and something else fills the path meanwhile.
//!
//! Here is no clock and no socket: moments are times since a beginning, and they are handed in.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

/// The window before anything is known, in datagrams. RFC 6928 says 10, of a time when links carried a tenth of today's;
/// 32 are what QUIC begins with where it is used most (Chromium), and quinn spreads them over a round trip.
const INITIAL_DATAGRAMS: u64 = 32;
/// The window is never below so many: two may be lost, and there still is something to hear of (BBR).
const FLOOR_DATAGRAMS: u64 = 4;
/// The window by what fills the path. With two the rate doubles in a round where there is room for more, and the path stays
/// full while a round's acknowledgements are late. The queue that stands for it is as long as the path.
const GAIN: f64 = 2.0;
/// The same while the rate still grows: it is measured over a round in which it grew, so twice as much is 2 / ln 2 (BBR).
const GROWING_GAIN: f64 = 2.89;
/// It grows while a round brings so much more than what was there before ..
const GROWTH: f64 = 1.25;
/// .. or one of so many rounds did (both as in BBR): one may be disturbed.
const FLAT_ROUNDS: u32 = 3;
/// What is gathered is taken to be so much at least: timers and processors are late by about as much ..
const GATHERED_MIN: Duration = Duration::from_millis(2);
/// .. and no more than this: a radio holds frames back for some 40 ms, and with more the queue of a home's link would overflow.
const GATHERED_MAX: Duration = Duration::from_millis(50);
/// An epoch is at least so long, and so many rounds: what changes in a path is met within a few seconds, and the pauses cost
/// no more than a hundredth on paths of 50 ms.
const EPOCH: Duration = Duration::from_secs(2);
const EPOCH_ROUNDS: u32 = 5;
/// A queue has drained when so much is under way of what fills the path: less than all, so that a rate that is believed too
/// high by a fourth does not leave a queue that passes for the path ..
const DRAINED: f64 = 0.8;
/// .. but in each step no less than this part of what fills the path if there is no queue. From a window of two times the path
/// two steps end just below it.
const STEP: f64 = 0.65;
/// A time there and back is another than before outside of these parts of it; jitter and a slow drift are inside.
const SHORTER: f64 = 0.9;
const LONGER: f64 = 1.25;
/// The window is what holds up a round in which so much of it was under way.
const USED: f64 = 0.8;
/// A round was full where it brought at least this part of the rate.
const FULL: f64 = 0.9;
/// Where it was not, and took so many times the base, a pause shows why. With less the window was not two times the path.
const DOUBTED: f64 = 1.5;
/// Losses count where they are more than this part (BBR's draft) ..
const LOST_PART: f64 = 0.02;
/// .. and so many datagrams: radios lose bursts of eight and more while nothing is full.
const LOST_DATAGRAMS: u64 = 24;
/// So many of those that are told at once count. A full link goes on to carry what it can, so what it loses is told little by
/// little between what is heard; a link that fades loses all for a while, and then that is told together.
const LOST_AT_ONCE_DATAGRAMS: u64 = 16;
/// They are counted over rounds until so many datagrams were heard or lost: together with the burst 4 %.
const JUDGED_DATAGRAMS: u64 = 1200;
/// Losses that count cut the window to what the round brought, but to no less than this part of it at once ..
const CUT_MAX: f64 = 0.5;
/// .. and to no more than this (Cubic: 0.7). Never below what fills the path: less would leave it empty.
const CUT_MIN: f64 = 0.85;
/// They cut the rate to what the round showed, but to no less than this part of it at once: one may be disturbed.
const RATE_CUT_MAX: f64 = 0.7;
/// The bound stays for so long, as each attempt to go beyond it costs losses (BBR: 2 to 3 s) ..
const HELD: Duration = Duration::from_secs(1);
/// .. then it grows by a datagram in a round, two in the next, and so on up to this part of it. Datagrams and not a part
/// at first, so that the smaller of two flows gains more.
const STEP_MAX: f64 = 0.125;
/// No measurement is of a shorter time.
const SHORTEST: Duration = Duration::from_micros(1);
/// So many moments of sending are remembered: 64 MiB in datagrams that went one by one.
const SENT_MAX: usize = 48_000;

/// The control of one path, in one direction.
#[derive(Debug, Clone)]
pub struct Control {
    datagram_bytes: u64,
    /// Told to be heard, in all, and when that was told last.
    heard_bytes: u64,
    heard_at: Duration,
    /// How much of it was counted as gathered or not.
    gathered_until: u64,
    /// When the last of what was heard had been sent.
    heard_sent_at: Duration,
    /// About as much is under way.
    out_bytes: u64,
    /// What is sent until so much was heard says nothing against the rate: there was not enough to send.
    idle_until_bytes: u64,
    sent: VecDeque<Sent>,
    /// When the newest of those that were just told to be heard had been sent.
    newest: Option<Duration>,
    round: Round,
    judged: Judged,
    epoch: Epoch,
    /// Bytes in a second, of the epoch before; 0: there was none.
    rate_before: f64,
    gathered_before: f64,
    /// From when on it is counted what is heard at once, and how much it is.
    gathering: (Duration, f64),
    base: Option<Duration>,
    growth: Growth,
    pause: Option<Pause>,
    bound: Option<Bound>,
}

/// What was sent at one moment, and what had been heard by then.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Duration,
    heard_bytes: u64,
    heard_at: Duration,
    heard_sent_at: Duration,
    is_idle: bool,
}

/// From the sending of a datagram until it is heard.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// It ends when something is heard that was sent after so much had been heard.
    until_bytes: u64,
    began_at: Duration,
    began_bytes: u64,
    /// There was not always enough to send.
    is_idle: bool,
    /// The window was what held it up.
    is_used: bool,
    /// The highest that was measured.
    rate: f64,
    shortest: Option<Duration>,
}

/// What is heard and lost before a judgement.
#[derive(Debug, Clone, Copy, Default)]
struct Judged {
    heard_bytes: u64,
    lost_bytes: u64,
    /// A router said that its queue grows.
    is_marked: bool,
    /// The window has just been cut: what is told now to be lost was sent before.
    is_settling: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Epoch {
    began_at: Duration,
    /// Those with enough to send.
    rounds: u32,
    rate: f64,
    /// The most that was heard at once, beyond what the rate brings.
    gathered: f64,
}

/// Whether the rate still grows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Growth {
    /// Nothing is known: no round had enough to send.
    Unknown,
    /// It was so much when it last grew, so many rounds ago.
    Grows { rate: f64, flat: u32 },
    /// What the path carries is found.
    Found,
}

/// Less is under way, to see what that does to the time there and back.
#[derive(Debug, Clone, Copy)]
enum Pause {
    /// The queue drains, by a step.
    Drains(Step),
    /// What was sent from this moment on found it shorter; the shortest of their times.
    Measures { step: Step, from: Duration, shortest: Option<Duration> },
}

/// One step of a pause.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// The base that was believed when the pause began.
    believed: Duration,
    /// The time there and back before this step.
    before: Duration,
    /// Bytes in a second, as far as is known.
    rate: f64,
    /// A full window brought less than the rate: has the path grown longer, or has its rate fallen?
    is_doubt: bool,
}

impl Step {
    /// How long a path is filled by what is under way at the end of this step.
    fn target(&self) -> Duration {
        self.believed.mul_f64(DRAINED).max(self.before.mul_f64(STEP))
    }
}

/// What losses have set.
#[derive(Debug, Clone, Copy)]
struct Bound {
    bytes: f64,
    /// By so much it grows next.
    step: f64,
    held_until: Duration,
}

impl Control {
    /// Of a path of which nothing is known but the longest datagram.
    pub fn new(datagram_bytes: u64) -> Control {
        Control {
            datagram_bytes,
            heard_bytes: 0,
            heard_at: Duration::ZERO,
            gathered_until: 0,
            heard_sent_at: Duration::ZERO,
            out_bytes: 0,
            idle_until_bytes: 0,
            sent: VecDeque::new(),
            newest: None,
            round: Round::default(),
            judged: Judged::default(),
            epoch: Epoch::default(),
            rate_before: 0.0,
            gathered_before: 0.0,
            gathering: (Duration::ZERO, 0.0),
            base: None,
            growth: Growth::Unknown,
            pause: None,
            bound: None,
        }
    }

    /// The longest datagram is another now.
    pub fn resize(&mut self, datagram_bytes: u64) {
        self.datagram_bytes = datagram_bytes;
    }

    /// How many bytes may be under way.
    pub fn window_bytes(&self) -> u64 {
        let window = match self.pause {
            Some(Pause::Drains(step)) => step.rate * step.target().as_secs_f64(),
            Some(Pause::Measures { .. }) | None => self.wanted_bytes(),
        };
        let bound = self.bound.map_or(f64::MAX, |bound| bound.bytes);
        (window.min(bound) as u64).max(FLOOR_DATAGRAMS * self.datagram_bytes)
    }

    /// How many bytes may be under way before anything is known.
    pub fn initial_bytes(&self) -> u64 {
        INITIAL_DATAGRAMS * self.datagram_bytes
    }

    /// The window by what was measured.
    fn wanted_bytes(&self) -> f64 {
        let gain = if self.growth == Growth::Found { GAIN } else { GROWING_GAIN };
        let gathered = self.epoch.gathered.max(self.gathered_before).max(self.rate() * GATHERED_MIN.as_secs_f64());
        let measured = gain * self.path_bytes() + gathered;
        match self.growth {
            Growth::Unknown | Growth::Grows { .. } => measured.max(self.initial_bytes() as f64),
            Growth::Found => measured,
        }
    }

    /// Bytes in a second; 0: nothing is known.
    fn rate(&self) -> f64 {
        self.epoch.rate.max(self.rate_before)
    }

    /// What fills the path and no queue.
    fn path_bytes(&self) -> f64 {
        self.rate() * self.base_secs()
    }

    fn base_secs(&self) -> f64 {
        self.base.unwrap_or_default().as_secs_f64()
    }

    /// So many bytes were sent at this moment.
    pub fn sent(&mut self, now: Duration, bytes: u64) {
        if self.out_bytes == 0 {
            // From here on it is measured how fast they go.
            (self.heard_at, self.heard_sent_at) = (now, now);
        }
        self.out_bytes += bytes;
        self.round.is_used |= self.out_bytes as f64 >= USED * self.window_bytes() as f64;
        if self.sent.back().is_some_and(|last| last.at >= now) {
            return;
        }
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent {
            at: now,
            heard_bytes: self.heard_bytes,
            heard_at: self.heard_at,
            heard_sent_at: self.heard_sent_at,
            is_idle: self.idle_until_bytes > self.heard_bytes,
        });
    }

    /// So many bytes are told to be heard that had been sent at that moment. [`Control::all_heard`] follows.
    pub fn heard(&mut self, now: Duration, sent_at: Duration, bytes: u64) {
        self.heard_bytes += bytes;
        self.judged.heard_bytes += bytes;
        self.heard_at = now;
        self.newest = self.newest.max(Some(sent_at));
    }

    /// All that was told to be heard at this moment is counted. So much is under way yet; `is_idle`: there is not enough to
    /// send.
    pub fn all_heard(&mut self, now: Duration, out_bytes: u64, is_idle: bool) {
        self.out_bytes = out_bytes;
        let just = self.heard_bytes - std::mem::replace(&mut self.gathered_until, self.heard_bytes);
        self.gather(now, just);
        if is_idle {
            self.idle_until_bytes = self.heard_bytes + out_bytes.max(1);
        }
        let Some(newest) = self.newest.take() else {
            return;
        };
        while self.sent.front().is_some_and(|sent| sent.at < newest) {
            self.sent.pop_front();
        }
        // What is older than what was heard before, or was sent on another path, measures nothing.
        let Some(sent) = self.sent.front().copied().filter(|sent| sent.at == newest) else {
            return;
        };
        self.heard_sent_at = newest;
        self.measure(now, &sent);
        if sent.heard_bytes >= self.round.until_bytes {
            self.end_round(now);
        }
        if let Some(Pause::Drains(step)) = self.pause
            && self.out_bytes <= self.window_bytes()
        {
            self.pause = Some(Pause::Measures { step, from: now, shortest: None });
        }
    }

    fn measure(&mut self, now: Duration, sent: &Sent) {
        let time = now.saturating_sub(sent.at);
        self.base = shorter(self.base, time);
        self.round.shortest = shorter(self.round.shortest, time);
        if let Some(Pause::Measures { from, shortest, .. }) = &mut self.pause
            && sent.at >= *from
        {
            *shortest = shorter(*shortest, time);
        }
        let took = now.saturating_sub(sent.heard_at).max(sent.at.saturating_sub(sent.heard_sent_at));
        let rate = (self.heard_bytes - sent.heard_bytes) as f64 / took.as_secs_f64().max(SHORTEST.as_secs_f64());
        self.round.is_idle |= sent.is_idle;
        self.round.rate = self.round.rate.max(rate);
        self.epoch.rate = self.epoch.rate.max(rate);
    }

    fn end_round(&mut self, now: Duration) {
        let began =
            Round { until_bytes: self.heard_bytes, began_at: now, began_bytes: self.heard_bytes, ..Round::default() };
        let round = std::mem::replace(&mut self.round, began);
        let brought = (self.heard_bytes - round.began_bytes) as f64;
        let rate = brought / now.saturating_sub(round.began_at).max(SHORTEST).as_secs_f64();
        self.judge(&round, brought);
        if let Some(Pause::Measures { step, shortest: Some(found), .. }) = self.pause {
            self.pause = self.conclude(now, &step, found, rate).map(Pause::Drains);
        }
        if round.is_idle || !round.is_used {
            return;
        }
        self.epoch.rounds += 1;
        self.grow();
        let Some(base) = self.base.filter(|_| self.growth == Growth::Found && self.pause.is_none()) else {
            return;
        };
        let is_full = rate >= FULL * self.rate();
        if !is_full {
            if let Some(bound) = self.bound.as_mut().filter(|bound| now >= bound.held_until) {
                bound.bytes *= 1.0 + STEP_MAX;
            }
            if let Some(before) = round.shortest.filter(|shortest| *shortest > base.mul_f64(DOUBTED)) {
                self.pause = Some(Pause::Drains(Step { believed: base, before, rate, is_doubt: true }));
                return;
            }
        }
        if now.saturating_sub(self.epoch.began_at) >= EPOCH && self.epoch.rounds >= EPOCH_ROUNDS {
            if is_full {
                let before = round.shortest.unwrap_or(base);
                self.pause = Some(Pause::Drains(Step { believed: base, before, rate: self.rate(), is_doubt: false }));
            } else {
                self.begin_epoch(now);
            }
        }
    }

    /// A step has found this time there and back, while a round brought this rate. Returns the step that follows.
    fn conclude(&mut self, now: Duration, step: &Step, found: Duration, rate: f64) -> Option<Step> {
        let Step { believed, before, is_doubt, .. } = *step;
        if found < believed.mul_f64(SHORTER) {
            // The queue was longer than was believed. A doubt comes back if it was right.
            self.base = Some(found);
            return Some(Step { believed: found, before: found, rate: self.rate(), is_doubt: false });
        }
        let is_empty = found <= believed.mul_f64(LONGER) && step.target() <= believed;
        let is_as_before = (before.mul_f64(SHORTER)..before.mul_f64(LONGER)).contains(&found);
        if !is_empty && !is_as_before {
            // There is a queue yet.
            let rate = if is_doubt { rate } else { self.rate() };
            return Some(Step { believed, before: found, rate, is_doubt });
        }
        if is_doubt {
            // Either the path is what it was, so its rate has fallen, or there was no queue and it has grown longer.
            self.epoch.rate = if is_empty { step.rate } else { self.rate() };
        }
        self.base = Some(found);
        self.begin_epoch(now);
        None
    }

    /// A round with enough to send has ended: did it bring more?
    fn grow(&mut self) {
        let now = self.rate();
        self.growth = match self.growth {
            Growth::Unknown => Growth::Grows { rate: now, flat: 0 },
            Growth::Grows { rate, .. } if now >= rate * GROWTH => Growth::Grows { rate: now, flat: 0 },
            Growth::Grows { flat, .. } if flat + 1 >= FLAT_ROUNDS => Growth::Found,
            Growth::Grows { rate, flat } => Growth::Grows { rate, flat: flat + 1 },
            Growth::Found => Growth::Found,
        };
    }

    /// What is heard beyond the rate was held up somewhere. Bytes that wait there do not fill the path.
    fn gather(&mut self, now: Duration, bytes: u64) {
        let (from, heard) = &mut self.gathering;
        let rate = self.epoch.rate.max(self.rate_before);
        let mut expected = rate * now.saturating_sub(*from).as_secs_f64();
        if *heard <= expected {
            (*from, *heard, expected) = (now, 0.0, 0.0);
        }
        *heard += bytes as f64;
        if self.growth == Growth::Found {
            let gathered = (*heard - expected).min(rate * GATHERED_MAX.as_secs_f64());
            self.epoch.gathered = self.epoch.gathered.max(gathered);
        }
    }

    fn begin_epoch(&mut self, now: Duration) {
        self.rate_before = self.epoch.rate;
        self.gathered_before = self.epoch.gathered;
        self.epoch = Epoch { began_at: now, ..Epoch::default() };
    }

    /// So many bytes are held for lost; 0: a router says that its queue grows. `is_all`: nothing was heard for so long that
    /// what was known of the path is worth nothing.
    pub fn lost(&mut self, bytes: u64, is_all: bool) {
        self.out_bytes = self.out_bytes.saturating_sub(bytes);
        if is_all {
            self.forget();
            return;
        }
        self.judged.lost_bytes += bytes.min(LOST_AT_ONCE_DATAGRAMS * self.datagram_bytes);
        self.judged.is_marked |= bytes == 0;
    }

    /// Begins anew with all but what is counted.
    fn forget(&mut self) {
        let heard_bytes = self.heard_bytes;
        *self = Control {
            heard_bytes,
            heard_at: self.heard_at,
            gathered_until: heard_bytes,
            heard_sent_at: self.heard_sent_at,
            out_bytes: self.out_bytes,
            sent: std::mem::take(&mut self.sent),
            newest: self.newest,
            round: Round {
                until_bytes: heard_bytes,
                began_at: self.heard_at,
                began_bytes: heard_bytes,
                ..Round::default()
            },
            ..Control::new(self.datagram_bytes)
        };
    }

    /// A round has ended: was more lost than a path loses by nature?
    fn judge(&mut self, round: &Round, brought: f64) {
        let Judged { heard_bytes, lost_bytes, is_marked, is_settling } = self.judged;
        if is_settling {
            self.judged = Judged::default();
            return;
        }
        let all_bytes = heard_bytes + lost_bytes;
        let by_nature = LOST_PART * all_bytes as f64 + (LOST_DATAGRAMS * self.datagram_bytes) as f64;
        if is_marked || lost_bytes as f64 > by_nature {
            self.judged = Judged { is_settling: true, ..Judged::default() };
            self.cut(round, brought);
            return;
        }
        if all_bytes >= JUDGED_DATAGRAMS * self.datagram_bytes {
            self.judged = Judged::default();
        }
        let wanted = self.wanted_bytes();
        if let Some(bound) = self.bound.as_mut().filter(|bound| !round.is_idle && self.heard_at >= bound.held_until) {
            bound.bytes += bound.step;
            bound.step = (bound.step * 2.0).min(STEP_MAX * bound.bytes);
            if bound.bytes >= wanted {
                self.bound = None;
            }
        }
    }

    /// More was lost than by nature: the window was too large, and the rate may be believed too high.
    fn cut(&mut self, round: &Round, brought: f64) {
        let before = self.wanted_bytes().min(self.bound.map_or(f64::MAX, |bound| bound.bytes));
        if !round.is_idle {
            let rate = round.rate.max(RATE_CUT_MAX * self.rate());
            self.epoch.rate = self.epoch.rate.min(rate);
            self.rate_before = self.rate_before.min(rate);
        }
        let bytes = brought.clamp(CUT_MAX * before, CUT_MIN * before).max(self.path_bytes());
        self.bound = Some(Bound { bytes, step: self.datagram_bytes as f64, held_until: self.heard_at + HELD });
        if self.growth != Growth::Unknown {
            self.growth = Growth::Found;
        }
    }
}

fn shorter(known: Option<Duration>, time: Duration) -> Option<Duration> {
    Some(known.map_or(time, |known| known.min(time)))
}
