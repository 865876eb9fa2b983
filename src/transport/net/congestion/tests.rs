//! Congestion control on simulated paths: senders that behave like quinn's, and a link with a queue.

use super::{CongestionControl, FLOOR_DATAGRAMS, LOST_AT_ONCE_DATAGRAMS, Pause, RateStep};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// The size of a datagram for QUIC, and on the link.
const DATAGRAM_BYTES: u64 = 1472;
const PACKET_BYTES: f64 = 1500.0;
const SEC: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// One direction of a path; the other one is as long and loses nothing.
struct Path {
    /// Bits per second at a given time.
    rate: Box<dyn Fn(f64) -> f64>,
    /// One-way delay in seconds at a given time.
    delay: Box<dyn Fn(f64) -> f64>,
    queue_bytes: f64,
    /// The fraction of packets that are lost, and the mean length of loss bursts.
    loss: (f64, f64),
    jitter_ms: u64,
    /// Policing: packets beyond the rate are dropped at once, except for this many bytes.
    policed: Option<f64>,
    /// The time span in which nothing passes, in nanoseconds.
    outage: (u64, u64),
}

fn path(mbit: f64, rtt_ms: f64, queue_bytes: f64) -> Path {
    Path {
        rate: Box::new(move |_| mbit * 1e6),
        delay: Box::new(move |_| rtt_ms / 2e3),
        queue_bytes,
        loss: (0.0, 1.0),
        jitter_ms: 0,
        policed: None,
        outage: (0, 0),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake(usize),
    Arrives(usize, u64),
    /// An acknowledgement that was delayed for a second datagram is sent at the latest now.
    AckDue(usize, u64),
    Acked(usize, Vec<u64>),
}

struct Sender {
    control: CongestionControl,
    begins: u64,
    next: u64,
    out: BTreeMap<u64, u64>,
    received: u64,
    largest: u64,
    smoothed: f64,
    var: f64,
    tokens: f64,
    tokens_at: u64,
    tries: u32,
    /// When the sender retransmits without an acknowledgement.
    probe_at: u64,
    wake_at: u64,
    /// Received datagrams that were not acknowledged yet.
    unacknowledged: Vec<u64>,
    lost: u64,
    /// The smallest window so far.
    smallest: u64,
}

struct World {
    path: Path,
    senders: Vec<Sender>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    now: u64,
    number: u64,
    free_at: f64,
    last_at: u64,
    bucket: (f64, u64),
    in_burst: bool,
    random: u64,
    /// The longest queue of each second, in seconds.
    queues: Vec<f64>,
}

impl World {
    fn new(path: Path, begins: &[u64], seed: u64) -> World {
        let senders = begins.iter().map(|&begins| Sender {
            control: CongestionControl::new(DATAGRAM_BYTES),
            begins,
            next: 0,
            out: BTreeMap::new(),
            received: 0,
            largest: 0,
            smoothed: 0.0,
            var: 0.0,
            tokens: 0.0,
            tokens_at: 0,
            tries: 0,
            probe_at: u64::MAX,
            wake_at: u64::MAX,
            unacknowledged: Vec::new(),
            lost: 0,
            smallest: u64::MAX,
        });
        let bucket = (path.policed.unwrap_or(0.0), 0);
        let mut world = World {
            path,
            senders: senders.collect(),
            events: BinaryHeap::new(),
            now: 0,
            number: 0,
            free_at: 0.0,
            last_at: 0,
            bucket,
            in_burst: false,
            random: seed * 2 + 1,
            queues: Vec::new(),
        };
        for at in 0..world.senders.len() {
            world.at(world.senders[at].begins, Event::Wake(at));
        }
        world
    }

    fn at(&mut self, when: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((when, self.number, event)));
    }

    fn chance(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    fn run_until(&mut self, until: u64) {
        while let Some(Reverse((when, _, _))) = self.events.peek() {
            if *when > until {
                break;
            }
            let Reverse((when, _, event)) = self.events.pop().unwrap();
            self.now = when;
            match event {
                Event::Wake(at) => {
                    if self.senders[at].wake_at == when {
                        self.senders[at].wake_at = u64::MAX;
                    }
                    if when >= self.senders[at].probe_at {
                        self.send(at);
                        self.send(at);
                        self.senders[at].tries += 1;
                        self.set_probe(at);
                    }
                    self.send_all(at);
                }
                Event::Arrives(at, number) => {
                    self.senders[at].unacknowledged.push(number);
                    match self.senders[at].unacknowledged.len() {
                        1 => self.at(when + 25 * MS, Event::AckDue(at, number)),
                        _ => self.acknowledge(at),
                    }
                }
                Event::AckDue(at, number) => {
                    if self.senders[at].unacknowledged.first() == Some(&number) {
                        self.acknowledge(at);
                    }
                }
                Event::Acked(at, numbers) => self.acked(at, &numbers),
            }
        }
        self.now = until;
    }

    fn acknowledge(&mut self, at: usize) {
        let numbers = std::mem::take(&mut self.senders[at].unacknowledged);
        let back = (self.path.delay)(self.secs()) * 1e9;
        if !self.is_out() {
            self.at(self.now + back as u64, Event::Acked(at, numbers));
        }
    }

    fn secs(&self) -> f64 {
        self.now as f64 / 1e9
    }

    fn is_out(&self) -> bool {
        (self.path.outage.0..self.path.outage.1).contains(&self.now)
    }

    fn moment(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn acked(&mut self, at: usize, numbers: &[u64]) {
        let (now, moment) = (self.now, self.moment());
        let sender = &mut self.senders[at];
        let mut is_new = false;
        for number in numbers {
            let Some(sent) = sender.out.remove(number) else {
                continue;
            };
            sender.received += DATAGRAM_BYTES;
            sender
                .control
                .acknowledged(moment, Duration::from_nanos(sent), DATAGRAM_BYTES);
            if *number >= sender.largest {
                sender.largest = *number;
                let time = (now - sent) as f64;
                if sender.smoothed == 0.0 {
                    (sender.smoothed, sender.var) = (time, time / 2.0);
                } else {
                    sender.var += ((sender.smoothed - time).abs() - sender.var) / 4.0;
                    sender.smoothed += (time - sender.smoothed) / 8.0;
                }
            }
            is_new = true;
        }
        if !is_new {
            return;
        }
        let out = sender.out.len() as u64 * DATAGRAM_BYTES;
        sender.control.all_acknowledged(moment, out, false);
        sender.tries = 0;
        let late = sender.smoothed * 1.125;
        let is_late =
            |number: u64, sent: u64| number + 3 <= sender.largest || (now - sent) as f64 > late;
        let gone = sender
            .out
            .range(..sender.largest)
            .map(|(number, sent)| (*number, *sent));
        let lost: Vec<_> = gone
            .take_while(|(number, sent)| is_late(*number, *sent))
            .collect();
        // Persistent congestion: everything sent over a long time is lost, with nothing acknowledged in between.
        let long = 3.0 * sender.timeout();
        let mut run: Option<(u64, u64)> = None;
        let mut is_all = false;
        for &(number, sent) in &lost {
            sender.out.remove(&number);
            run = match run {
                Some((last, first)) if last + 1 == number => Some((number, first)),
                _ => Some((number, sent)),
            };
            is_all |= run.is_some_and(|(_, first)| (sent - first) as f64 > long);
        }
        if !lost.is_empty() {
            sender.lost += lost.len() as u64;
            sender
                .control
                .lost(lost.len() as u64 * DATAGRAM_BYTES, is_all);
        }
        self.set_probe(at);
        self.send_all(at);
    }

    fn set_probe(&mut self, at: usize) {
        let sender = &mut self.senders[at];
        sender.probe_at = match sender.out.is_empty() {
            true => u64::MAX,
            false => self.now + (sender.timeout() * f64::from(1u32 << sender.tries.min(6))) as u64,
        };
        let when = sender.probe_at;
        if when < sender.wake_at {
            self.at(when, Event::Wake(at));
        }
    }

    /// Paces like quinn: a token bucket that fills by 1.25 windows per round trip.
    fn send_all(&mut self, at: usize) {
        loop {
            let now = self.now;
            let sender = &mut self.senders[at];
            let window = sender.control.window_bytes();
            sender.smallest = sender.smallest.min(window);
            if (sender.out.len() as u64 + 1) * DATAGRAM_BYTES >= window {
                return;
            }
            if sender.smoothed > 0.0 {
                let capacity =
                    (window as f64 * 2e6 / sender.smoothed).clamp(10.0 * 1472.0, 256.0 * 1472.0);
                let flows = window as f64 * 1.25 / sender.smoothed;
                sender.tokens =
                    (sender.tokens + flows * (now - sender.tokens_at) as f64).min(capacity);
                sender.tokens_at = now;
                if sender.tokens < DATAGRAM_BYTES as f64 {
                    let wake = now + ((capacity - sender.tokens) / flows) as u64 + 1;
                    sender.wake_at = wake;
                    self.at(wake, Event::Wake(at));
                    return;
                }
                sender.tokens -= DATAGRAM_BYTES as f64;
            }
            self.send(at);
        }
    }

    fn send(&mut self, at: usize) {
        let moment = self.moment();
        let sender = &mut self.senders[at];
        let number = sender.next;
        sender.next += 1;
        sender.out.insert(number, self.now);
        sender.control.sent(moment, DATAGRAM_BYTES);
        self.set_probe(at);
        if let Some(arrives) = self.pass() {
            self.at(arrives, Event::Arrives(at, number));
        }
    }

    /// Returns when a packet sent now arrives; `None` if it is lost.
    fn pass(&mut self) -> Option<u64> {
        let secs = self.secs();
        let rate = (self.path.rate)(secs) / 8.0;
        if self.is_out() {
            return None;
        }
        if let Some(most) = self.path.policed {
            let (tokens, when) = self.bucket;
            let tokens = (tokens + rate * (self.now - when) as f64 / 1e9).min(most);
            self.bucket = (tokens, self.now);
            if tokens < PACKET_BYTES {
                return None;
            }
            self.bucket.0 -= PACKET_BYTES;
        } else {
            let waits = (self.free_at - secs).max(0.0);
            if waits * rate + PACKET_BYTES > self.path.queue_bytes {
                return None;
            }
            self.free_at = self.free_at.max(secs) + PACKET_BYTES / rate;
            let second = secs as usize;
            self.queues.resize(self.queues.len().max(second + 1), 0.0);
            self.queues[second] = self.queues[second].max(waits);
        }
        let (part, burst) = self.path.loss;
        let lost = if self.in_burst {
            1.0 - 1.0 / burst
        } else {
            part / (1.0 - part) / burst
        };
        self.in_burst = self.chance() < lost;
        if self.in_burst {
            return None;
        }
        let jitter = (self.chance() * (self.path.jitter_ms * MS) as f64) as u64;
        let departs = self.free_at.max(secs);
        let arrives = ((departs + (self.path.delay)(departs)) * 1e9) as u64 + jitter;
        self.last_at = self.last_at.max(arrives);
        Some(self.last_at)
    }

    /// Returns the fraction of the capacity that each sender gets from now until `until_sec`.
    fn shares(&mut self, until_sec: u64) -> Vec<f64> {
        let before: Vec<_> = self.senders.iter().map(|sender| sender.received).collect();
        let begin = self.secs();
        self.run_until(until_sec * SEC);
        let steps = 1000;
        let took = self.secs() - begin;
        let carried: f64 = (0..steps)
            .map(|at| {
                (self.path.rate)(begin + took * at as f64 / steps as f64) / 8.0 * took
                    / steps as f64
            })
            .sum();
        let carried = carried * DATAGRAM_BYTES as f64 / PACKET_BYTES;
        self.senders
            .iter()
            .zip(before)
            .map(|(sender, before)| (sender.received - before) as f64 / carried)
            .collect()
    }
}

impl Sender {
    fn timeout(&self) -> f64 {
        if self.smoothed == 0.0 {
            1e9
        } else {
            self.smoothed + (4.0 * self.var).max(1e6) + 25e6
        }
    }
}

impl World {
    /// Returns the fraction of the capacity that the first sender gets between two times, in seconds.
    fn share(mut self, from_sec: u64, until_sec: u64) -> (f64, World) {
        self.run_until(from_sec * SEC);
        let share = self.shares(until_sec)[0];
        (share, self)
    }

    /// Returns the fraction of sent datagrams that were lost.
    fn lost(&self) -> f64 {
        let (lost, sent) = self.senders.iter().fold((0, 0), |(lost, sent), one| {
            (lost + one.lost, sent + one.next)
        });
        lost as f64 / sent as f64
    }

    /// Returns the longest queue from this time on, in seconds.
    fn queue_secs(&self, from_sec: usize) -> f64 {
        self.queues[from_sec..].iter().copied().fold(0.0, f64::max)
    }
}

fn alone(path: Path) -> World {
    World::new(path, &[0], 1)
}

#[test]
fn path_is_filled_within_seconds_and_stays_full() {
    let cases = [
        ("home, up", path(40.0, 38.0, 500e3)),
        ("home, down", path(250.0, 38.0, 1500e3)),
        ("slow", path(0.5, 100.0, 60e3)),
        ("near", path(100.0, 1.0, 500e3)),
        ("a queue of a tenth of the path", path(50.0, 40.0, 25e3)),
        (
            "radio",
            Path {
                loss: (0.0005, 1.0),
                jitter_ms: 2,
                ..path(100.0, 6.0, 500e3)
            },
        ),
    ];
    for (name, path) in cases {
        let (share, _) = alone(path).share(1, 4);
        assert!(share > 0.95, "{name}: {share}");
    }
}

#[test]
fn random_losses_do_not_reduce_the_rate() {
    for (part, burst) in [(0.001, 1.0), (0.01, 1.0), (0.02, 1.0), (0.005, 8.0)] {
        let (share, _) = alone(Path {
            loss: (part, burst),
            ..path(40.0, 38.0, 500e3)
        })
        .share(1, 10);
        assert!(share > 0.9, "{part} in bursts of {burst}: {share}");
    }
}

#[test]
fn deep_queue_stays_short_without_losses() {
    let (share, world) = alone(path(20.0, 30.0, 20e6)).share(2, 12);
    assert!(share > 0.98, "{share}");
    assert!(
        world.queue_secs(2) < 0.045,
        "as long as the path, and what is gathered: {}",
        world.queue_secs(2)
    );
    assert_eq!(world.senders[0].lost, 0);
}

#[test]
fn policer_causes_few_losses() {
    let (share, world) = alone(Path {
        policed: Some(60e3),
        ..path(50.0, 30.0, 0.0)
    })
    .share(1, 8);
    assert!(share > 0.9, "{share}");
    assert!(world.lost() < 0.1, "{}", world.lost());
}

#[test]
fn control_follows_a_falling_and_rising_rate() {
    let rate = |t: f64| if (6.0..20.0).contains(&t) { 5e6 } else { 50e6 };
    for (queue, bytes) in [("deep", 1e6), ("shallow", 200e3)] {
        let mut world = alone(Path {
            rate: Box::new(rate),
            ..path(0.0, 40.0, bytes)
        });
        let shares = [6, 7, 20, 21, 24].map(|until| world.shares(until)[0]);
        assert!(
            shares[0] > 0.9 && shares[2] > 0.95 && shares[4] > 0.95,
            "{queue}: {shares:?}"
        );
        assert!(
            world.queues[18] < 0.09,
            "{queue}: the queue is short again: {}",
            world.queues[18]
        );
    }
}

#[test]
fn control_follows_an_increased_path_delay() {
    let mut world = alone(Path {
        delay: Box::new(|t| if t < 5.0 { 0.01 } else { 0.1 }),
        ..path(20.0, 0.0, 500e3)
    });
    world.run_until(7 * SEC);
    let share = world.shares(14)[0];
    assert!(share > 0.9, "{share}");
}

#[test]
fn radio_path_with_varying_delay_and_bursts_is_used() {
    // Round trips of 60 to 800 ms within 10 s, as when a train moves between cells.
    let wave = |t: f64| 0.03 + 0.37 * (1.0 - (t / 10.0 % 2.0 - 1.0).abs());
    let path = Path {
        loss: (0.005, 8.0),
        jitter_ms: 8,
        delay: Box::new(wave),
        ..path(12.0, 0.0, 600e3)
    };
    let (share, _) = alone(path).share(0, 40);
    assert!(share > 0.9, "{share}");
}

#[test]
fn rate_step_lasts_until_the_queue_is_drained() {
    let mut world = alone(path(40.0, 38.0, 500e3));
    world.run_until(5 * SEC);
    let (moment, control) = (world.moment(), &mut world.senders[0].control);
    let believed = control.base.unwrap();
    // A step that ended a little above the BDP: part of the measured round trip is still queue.
    let (rate, before) = (control.rate(), believed.mul_f64(1.8));
    let step = RateStep {
        believed,
        before,
        rate,
        is_doubt: false,
    };
    let found = believed.mul_f64(1.17);
    let next = control
        .conclude(moment, &step, found, rate)
        .expect("the pause continues");
    assert_eq!(control.base, Some(believed));
    assert!(next.target() < believed, "{next:?}");
    // A pause that began without a queue ends with the first step.
    let step = RateStep {
        before: believed.mul_f64(1.1),
        ..step
    };
    assert!(control.conclude(moment, &step, believed, rate).is_none());
    // If a doubt finds that the path has become longer, the rate stays.
    let grown = believed.mul_f64(3.0);
    let doubt = RateStep {
        before: grown,
        rate: rate / 2.0,
        is_doubt: true,
        ..step
    };
    assert!(
        control
            .conclude(moment, &doubt, grown, rate / 2.0)
            .is_none()
    );
    assert_eq!((control.base, control.rate()), (Some(grown), rate));
    // A queue of another flow is not taken for a longer path either.
    let step = RateStep {
        before: believed.mul_f64(2.0),
        ..step
    };
    assert!(
        control
            .conclude(moment, &step, believed.mul_f64(4.0), rate)
            .is_some()
    );
    control.pause = Some(Pause::Drains(step));
    assert!(
        control.window_bytes() as f64 >= 1.2 * rate * believed.as_secs_f64(),
        "no step halves the window"
    );
}

#[test]
fn burst_losses_do_not_set_a_rate_bound() {
    let mut world = alone(path(40.0, 38.0, 500e3));
    let loses = |world: &mut World, times: u64, datagrams: u64| {
        world.run_until(world.now + 2 * SEC);
        (0..times).for_each(|_| {
            world.senders[0]
                .control
                .lost(datagrams * DATAGRAM_BYTES, false)
        });
        world.run_until(world.now + 300 * MS);
        world.senders[0].control.bound.is_some()
    };
    assert!(!loses(&mut world, 1, 400), "all at once");
    assert!(!loses(&mut world, 2, 400), "twice within a second");
    assert!(
        loses(&mut world, 50, LOST_AT_ONCE_DATAGRAMS / 2),
        "as many, spread over time"
    );
}

#[test]
fn control_recovers_after_an_outage() {
    let mut world = alone(Path {
        outage: (3 * SEC, 8 * SEC),
        ..path(40.0, 38.0, 500e3)
    });
    // quinn retransmits ever more rarely; by this time it has.
    world.run_until(14 * SEC);
    let share = world.shares(17)[0];
    assert!(share > 0.95, "{share}");
}

#[test]
fn two_flows_share_a_path() {
    for queue_bytes in [200e3, 1e6] {
        let mut world = World::new(path(40.0, 38.0, queue_bytes), &[0, 4 * SEC], 1);
        world.run_until(10 * SEC);
        let shares = world.shares(40);
        assert!(
            shares.iter().all(|share| *share > 0.2),
            "{queue_bytes}: {shares:?}"
        );
        assert!(
            shares.iter().sum::<f64>() > 0.95,
            "{queue_bytes}: {shares:?}"
        );
        assert!(world.lost() < 0.1, "{queue_bytes}: {}", world.lost());
    }
}

#[test]
fn application_limited_flow_keeps_its_window() {
    let mut world = alone(path(40.0, 38.0, 500e3));
    world.run_until(5 * SEC);
    let control = &mut world.senders[0].control;
    let before = control.window_bytes();
    let mut now = Duration::from_secs(60);
    // Single datagrams at intervals, then large bursts with long pauses.
    for bytes in
        std::iter::repeat_n(DATAGRAM_BYTES, 500).chain(std::iter::repeat_n(before * 9 / 10, 100))
    {
        control.sent(now, bytes);
        control.acknowledged(now + Duration::from_millis(200), now, bytes);
        control.all_acknowledged(now + Duration::from_millis(200), 0, true);
        now += Duration::from_secs(1);
    }
    assert!(
        control.window_bytes() >= before * 9 / 10,
        "{before}, then {}",
        control.window_bytes()
    );
}

#[test]
fn sparse_sender_keeps_the_initial_window() {
    let mut control = CongestionControl::new(DATAGRAM_BYTES);
    for at in 0..100 {
        let now = Duration::from_secs(at);
        // Acknowledgements are not acknowledged themselves.
        (0..1000).for_each(|_| control.sent(now, 50));
        let sent_at = now + Duration::from_millis(1);
        control.sent(sent_at, DATAGRAM_BYTES);
        control.acknowledged(sent_at + Duration::from_millis(40), sent_at, DATAGRAM_BYTES);
        control.all_acknowledged(sent_at + Duration::from_millis(40), 0, true);
    }
    assert!(control.window_bytes() >= control.initial_bytes());
}

#[test]
fn persistent_congestion_resets_the_window() {
    let mut world = alone(path(40.0, 38.0, 500e3));
    world.run_until(5 * SEC);
    let control = &mut world.senders[0].control;
    assert!(control.window_bytes() > 2 * control.initial_bytes());
    control.lost(DATAGRAM_BYTES, true);
    assert_eq!(control.window_bytes(), control.initial_bytes());
}

#[test]
fn ecn_mark_reduces_the_window_like_a_loss() {
    let mut world = alone(path(40.0, 38.0, 500e3));
    world.run_until(5 * SEC);
    let before = world.senders[0].control.window_bytes();
    world.senders[0].control.lost(0, false);
    world.run_until(5 * SEC + 300 * MS);
    let after = world.senders[0].control.window_bytes();
    assert!(after <= before * 9 / 10, "{before}, then {after}");
}

#[test]
fn initial_window_is_32_datagrams() {
    let mut control = CongestionControl::new(1200);
    assert_eq!(
        (control.window_bytes(), control.initial_bytes()),
        (32 * 1200, 32 * 1200)
    );
    control.resize(1452);
    assert_eq!(control.window_bytes(), 32 * 1452);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any usual path is used, and the window stays above its minimum.
    #[test]
    fn any_usual_path_is_filled(mbit in 1.0..60f64, rtt_ms in 5.0..200f64, queue in 0.3..4.0f64, lost in 0.0..0.01f64, seed in 1..1000u64) {
        let queue_bytes = (queue * mbit * 1e3 / 8.0 * rtt_ms).max(20e3);
        let mut world = World::new(Path { loss: (lost, 1.0), ..path(mbit, rtt_ms, queue_bytes) }, &[0], seed);
        world.run_until(4 * SEC);
        let share = world.shares(8)[0];
        prop_assert!(share > 0.85, "{}", share);
        prop_assert!(world.senders[0].smallest >= FLOOR_DATAGRAMS * DATAGRAM_BYTES);
    }

    /// For any sequence of events, the window stays above its minimum and finite.
    #[test]
    fn any_event_sequence_keeps_the_window_in_range(events in proptest::collection::vec((0..4u8, 0..2_000_000u64, any::<bool>()), 1..400)) {
        let mut control = CongestionControl::new(DATAGRAM_BYTES);
        let mut now = Duration::ZERO;
        for (what, number, flag) in events {
            now += Duration::from_micros(number % 50_000 * u64::from(flag));
            match what {
                0 => control.sent(now, number),
                1 => control.acknowledged(now, now.saturating_sub(Duration::from_micros(number)), number),
                2 => control.all_acknowledged(now, number, flag),
                _ => control.lost(number * u64::from(number % 3 > 0), flag),
            }
            prop_assert!(control.window_bytes() >= FLOOR_DATAGRAMS * DATAGRAM_BYTES);
            prop_assert!(control.window_bytes() < 1 << 60);
        }
    }
}
