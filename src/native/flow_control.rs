//! The flow-control window of one class of messages, as counted by the sending and the receiving end. Does no I/O.
//!
//! A window begins with the size in [`INITIAL_WINDOWS`], which is enough for any path within a continent. On a longer
//! path the sending end uses it up before a grant arrives, and stalls. It reports this with
//! [`Message::Blocked`](crate::proto::Message::Blocked). If the receiving end has consumed everything by then, it
//! doubles the window, up to [`WINDOWS_MAX`]. If it has not, it is slower than the path, and more data would only wait
//! there. A window that has grown shrinks again by half of what was waiting to be consumed at all times.

use crate::proto::Class;
use crate::proto::limits::{INITIAL_WINDOWS, WINDOWS_MAX};
use std::collections::VecDeque;

/// A grant is at least the initial window divided by this.
const GRANT_PART: u64 = 4;
/// The initial window divided by this is available to short messages whatever memory they take at the peer.
const SMALL_PART: u64 = GRANT_PART;
/// The limit of the memory that messages of a class take at the peer besides their length.
const TAKEN_MAX_BYTES: u64 = 16 << 20;
/// The granularity, in bytes, of the record of what was sent.
const NOTED_BYTES: u64 = 64 << 10;
/// A window that has grown shrinks by the least amount that was waiting while one window was consumed, divided by this.
const SHRINK_PART: u64 = 2;

/// The receiving end of a class. The peer may send the part of the window that is neither `waiting` nor `ungranted`.
#[derive(Debug)]
pub struct ReceiveWindow {
    initial: u64,
    max: u64,
    window: u64,
    /// Bytes received but not consumed.
    pub waiting: u64,
    /// Bytes that the peer may send but was not granted yet.
    ungranted: u64,
    /// The peer has used up its window and waits.
    is_blocked: bool,
    /// Bytes that are not granted again when they are consumed.
    excess: u64,
    /// Bytes to consume until the window is next checked for shrinking, and the least `waiting` since the last check.
    judged_in: u64,
    least_waiting: u64,
}

impl ReceiveWindow {
    /// Creates the state of a class before anything is received.
    pub fn new(class: Class) -> ReceiveWindow {
        let initial = INITIAL_WINDOWS[class as usize];
        ReceiveWindow {
            initial,
            max: WINDOWS_MAX[class as usize],
            window: initial,
            waiting: 0,
            ungranted: 0,
            is_blocked: false,
            excess: 0,
            judged_in: initial,
            least_waiting: u64::MAX,
        }
    }

    /// Returns whether the peer may send another message.
    fn has_room(&self) -> bool {
        self.waiting < self.window
    }

    /// Counts a received message. Returns `false` if it exceeds the window.
    pub fn count_received(&mut self, cost: u64) -> bool {
        // The one message that goes below zero may still be sent.
        let may_send = self.has_room();
        self.waiting = self.waiting.saturating_add(cost);
        self.is_blocked = false;
        may_send
    }

    /// Counts consumed bytes. `most` returns how far the window may grow at this moment.
    pub fn consumed(&mut self, cost: u64, most: impl Fn() -> u64) {
        self.waiting = self.waiting.saturating_sub(cost);
        self.ungranted += cost;
        self.grow(&most);
        self.least_waiting = self.least_waiting.min(self.waiting);
        self.judged_in = self.judged_in.saturating_sub(cost);
        if self.judged_in == 0 {
            let beyond = self.window.saturating_sub(self.most(&most));
            self.excess = (self.least_waiting / SHRINK_PART)
                .max(beyond)
                .min(self.window - self.initial);
            (self.judged_in, self.least_waiting) = (self.window, u64::MAX);
        }
        let less = self.ungranted.min(self.excess);
        self.window -= less;
        self.ungranted -= less;
        self.excess -= less;
    }

    /// Notes that the peer has used up its window and waits, with nothing else in flight. `most` as in
    /// [`ReceiveWindow::consumed`].
    pub fn blocked(&mut self, most: impl Fn() -> u64) {
        self.is_blocked = true;
        self.grow(&most);
    }

    /// Doubles the window if the peer waits and everything is consumed: then the path is the bottleneck.
    fn grow(&mut self, most: impl Fn() -> u64) {
        if self.is_blocked && self.waiting == 0 {
            (self.is_blocked, self.excess) = (false, 0);
            let more = self.window.min(self.most(most).saturating_sub(self.window));
            self.window += more;
            self.ungranted += more;
        }
    }

    /// Returns how far the window may grow: never below its initial size. `most` is called only if the window can grow.
    fn most(&self, most: impl Fn() -> u64) -> u64 {
        if self.max == self.initial {
            self.max
        } else {
            most().clamp(self.initial, self.max)
        }
    }

    /// Whether there are enough bytes for a grant.
    pub fn may_grant(&self) -> bool {
        self.ungranted >= self.initial / GRANT_PART
    }

    /// Takes the bytes to grant now, if there are enough. The caller must send the grant.
    pub fn grant(&mut self) -> Option<u64> {
        self.may_grant()
            .then(|| std::mem::take(&mut self.ungranted))
    }
}

/// The sending end of a class.
#[derive(Debug)]
pub struct Credit {
    /// Bytes that may be sent; negative after a message that took more than was left.
    credit: i64,
    initial: u64,
    max: i64,
    grows: bool,
    /// Send less than the window allows if it would take much memory at the peer.
    spares: bool,
    /// What the peer may not have consumed yet, oldest first: bytes, and the additional memory that they take there.
    in_flight: VecDeque<(u64, u64)>,
    /// The sums of `in_flight`.
    in_flight_bytes: u64,
    taken_bytes: u64,
    /// Whether a thread waits for room, and whether the peer was informed. Both are reset by the next grant.
    is_wanting: bool,
    is_reported: bool,
}

impl Credit {
    /// Creates the state of a class before anything is sent. `grows`: the peer may grow the window beyond its initial
    /// size.
    pub fn new(class: Class, grows: bool) -> Credit {
        let [initial, max] =
            [INITIAL_WINDOWS, WINDOWS_MAX].map(|windows| windows[class as usize].cast_signed());
        let grows = grows && max > initial;
        Credit {
            credit: initial,
            initial: initial.cast_unsigned(),
            max: if grows { max } else { initial },
            grows,
            spares: false,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            taken_bytes: 0,
            is_wanting: false,
            is_reported: false,
        }
    }

    /// From now on limits the class to what the peer has memory for. Only valid if the peer consumes everything that
    /// arrives.
    pub fn spare(&mut self) {
        self.spares = true;
    }

    /// Whether there is room for so many bytes and one more.
    pub fn has_room(&self, bytes: u64) -> bool {
        i64::try_from(bytes).is_ok_and(|bytes| self.credit > bytes) && !self.is_much()
    }

    /// Whether the bytes in flight are few but take much memory. The peer may have consumed less than a grant without
    /// reporting it.
    fn is_much(&self) -> bool {
        self.spares
            && self.taken_bytes >= TAKEN_MAX_BYTES
            && self.in_flight_bytes >= self.initial / SMALL_PART
    }

    /// Counts a sent message, which takes `taken_bytes` of additional memory at the other end.
    pub fn count_sent(&mut self, bytes: u64, taken_bytes: u64) {
        self.credit = self.credit.saturating_sub_unsigned(bytes);
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(bytes);
        self.taken_bytes = self.taken_bytes.saturating_add(taken_bytes);
        match self
            .in_flight
            .back_mut()
            .filter(|last| last.0 < NOTED_BYTES)
        {
            Some(last) => {
                *last = (
                    last.0.saturating_add(bytes),
                    last.1.saturating_add(taken_bytes),
                )
            }
            None => self.in_flight.push_back((bytes, taken_bytes)),
        }
    }

    /// Notes that a thread waits for room.
    pub fn want(&mut self) {
        // A larger window would not help if the limit is the peer's memory.
        self.is_wanting = !self.is_much();
    }

    /// Whether to inform the peer that a thread waits: once until the next grant, and only if the window can grow.
    pub fn should_report_blocked(&mut self) -> bool {
        let should = self.grows && self.is_wanting && !self.is_reported;
        self.is_reported |= should;
        should
    }

    /// Adds a grant of the peer. Returns `false` if the peer cannot have consumed as much.
    pub fn granted(&mut self, bytes: u64) -> bool {
        // A peer that grants bytes that were never sent could cause an overflow.
        let more = self
            .credit
            .checked_add_unsigned(bytes)
            .filter(|&more| more <= self.max);
        (self.is_wanting, self.is_reported) = (false, false);
        self.consumed(bytes);
        more.map(|more| self.credit = more).is_some()
    }

    /// Notes that the peer has consumed bytes, presumably the oldest.
    fn consumed(&mut self, mut bytes: u64) {
        // A grant that grows the window includes bytes that were never sent.
        bytes = bytes.min(self.in_flight_bytes);
        self.in_flight_bytes -= bytes;
        while bytes > 0
            && let Some((oldest, taken)) = self.in_flight.front_mut()
        {
            let part = bytes.min(*oldest);
            let of_taken = if part == *oldest {
                *taken
            } else {
                taken.saturating_mul(part) / *oldest
            };
            (*oldest, *taken) = (*oldest - part, *taken - of_taken);
            self.taken_bytes -= of_taken;
            bytes -= part;
            if *oldest == 0 {
                self.in_flight.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: u64 = INITIAL_WINDOWS[Class::Unrequested as usize];
    const MAX: u64 = WINDOWS_MAX[Class::Unrequested as usize];
    const FRAME: u64 = 256 << 10;
    const MIB: u64 = 1 << 20;

    /// Both ends of a class with endless data, and what is in flight between them.
    struct Ends {
        credit: Credit,
        receive_window: ReceiveWindow,
        /// What was sent in each turn and not received yet, and whether the sender was blocked after it.
        outbound: Vec<(u64, bool)>,
        /// What was granted in each turn and not received yet.
        back: Vec<u64>,
        /// How often the sender reported that it was blocked.
        blocked: usize,
        /// The limit of the window.
        most: u64,
    }

    /// The result of some turns.
    #[derive(Debug, PartialEq)]
    struct Came {
        received: u64,
        window: u64,
        most_waiting: u64,
    }

    impl Ends {
        fn new(grows: bool) -> Ends {
            let credit = Credit::new(Class::Unrequested, grows);
            let receive_window = ReceiveWindow::new(Class::Unrequested);
            Ends {
                credit,
                receive_window,
                outbound: Vec::new(),
                back: Vec::new(),
                blocked: 0,
                most: ALL,
            }
        }

        /// Simulates `turns` turns. In each, the link carries `link` bytes and the consumer takes `consumer` bytes. One
        /// way takes `way` turns.
        fn play(&mut self, turns: usize, link: u64, consumer: u64, way: usize) -> Came {
            let mut received = 0;
            let mut most_waiting = 0;
            let most = self.most;
            for _ in 0..turns {
                let granted = if self.back.len() > way {
                    self.back.remove(0)
                } else {
                    0
                };
                assert!(granted == 0 || self.credit.granted(granted));
                let mut sent = 0;
                while sent < link && self.credit.has_room(0) {
                    self.credit.count_sent(FRAME, FRAME);
                    sent += FRAME;
                }
                if !self.credit.has_room(0) {
                    self.credit.want();
                }
                // If the link is full, not everything that was sent is in flight.
                let is_blocked = sent < link && self.credit.should_report_blocked();
                self.blocked += usize::from(is_blocked);
                self.outbound.push((sent, is_blocked));
                if self.outbound.len() > way {
                    let (sent, is_blocked) = self.outbound.remove(0);
                    assert!(
                        (0..sent / FRAME).all(|_| self.receive_window.count_received(FRAME)),
                        "never above the maximum"
                    );
                    received += sent;
                    most_waiting = most_waiting.max(self.receive_window.waiting);
                    if is_blocked {
                        self.receive_window.blocked(|| most);
                    }
                }
                self.receive_window
                    .consumed(self.receive_window.waiting.min(consumer), || most);
                self.back.push(self.receive_window.grant().unwrap_or(0));
            }
            Came {
                received,
                window: self.receive_window.window,
                most_waiting,
            }
        }
    }

    const ALL: u64 = u64::MAX;

    #[test]
    fn window_grows_to_the_bandwidth_delay_product() {
        // A round trip takes 11 turns, in which the link carries 22 MiB.
        let mut ends = Ends::new(true);
        ends.play(100, 2 * MIB, ALL, 5);
        assert_eq!(
            ends.play(100, 2 * MIB, ALL, 5),
            Came {
                received: 200 * MIB,
                window: 4 * INITIAL,
                most_waiting: 2 * MIB
            }
        );
        // The sender was blocked twice and never again.
        assert_eq!(ends.blocked, 2);
        let mut fixed = Ends::new(false);
        fixed.play(100, 2 * MIB, ALL, 5);
        let came = fixed.play(110, 2 * MIB, ALL, 5);
        assert_eq!((came.window, fixed.blocked), (INITIAL, 0));
        assert!(
            came.received <= 80 * MIB + MIB,
            "one window per round trip: {came:?}"
        );
    }

    #[test]
    fn window_follows_a_changing_ceiling() {
        let mut ends = Ends::new(true);
        let mut window_below = |ceiling: u64| {
            ends.most = ceiling;
            ends.play(500, 8 * MIB, ALL, 5).window
        };
        let below = [3 * INITIAL, INITIAL / 2, ALL, 20 * MIB, 0].map(&mut window_below);
        assert_eq!(below, [3 * INITIAL, INITIAL, MAX, 20 * MIB, INITIAL]);
    }

    #[test]
    fn window_never_exceeds_its_maximum() {
        let mut ends = Ends::new(true);
        ends.play(1000, 16 * MIB, ALL, 20);
        let came = ends.play(410, 16 * MIB, ALL, 20);
        assert_eq!(came.window, MAX);
        assert!(
            came.received > 9 * MAX && came.received <= 11 * MAX,
            "about ten round trips: {came:?}"
        );
    }

    #[test]
    fn slow_consumer_does_not_grow_the_window() {
        for way in [0, 1, 5] {
            let mut ends = Ends::new(true);
            let came = ends.play(500, 16 * MIB, MIB / 2, way);
            assert_eq!(
                (came.window, came.most_waiting > INITIAL),
                (INITIAL, false),
                "{way}: {came:?}"
            );
        }
    }

    #[test]
    fn slow_link_does_not_grow_the_window() {
        let mut ends = Ends::new(true);
        assert_eq!(
            ends.play(500, FRAME, ALL, 5),
            Came {
                received: 495 * FRAME,
                window: INITIAL,
                most_waiting: FRAME
            }
        );
        assert_eq!(ends.blocked, 0);
    }

    #[test]
    fn window_shrinks_if_received_data_is_not_consumed() {
        let mut ends = Ends::new(true);
        assert_eq!(ends.play(500, 8 * MIB, ALL, 5).window, MAX);
        let came = ends.play(1000, 8 * MIB, MIB / 2, 5);
        assert!(came.most_waiting <= MAX, "{came:?}");
        assert_eq!(
            ends.play(100, 8 * MIB, MIB / 2, 5),
            Came {
                received: 50 * MIB,
                window: INITIAL,
                most_waiting: 3 * MIB
            }
        );
        // It grows again when the consumer is fast again.
        assert_eq!(ends.play(500, 8 * MIB, ALL, 5).window, MAX);
    }

    #[test]
    fn small_messages_in_flight_are_limited_by_memory() {
        for (len, taken) in [(24, 256), (100, 256), (1000, 256), (300_000, 0)] {
            let mut credit = Credit::new(Class::Unrequested, true);
            let mut receive_window = ReceiveWindow::new(Class::Unrequested);
            let mut waiting = 0;
            let mut sent = 0;
            credit.spare();
            while sent < 100 * MIB {
                while credit.has_room(0) {
                    credit.count_sent(len, taken);
                    (waiting, sent) = (waiting + len, sent + len);
                    assert!(receive_window.count_received(len));
                }
                let most = (INITIAL / GRANT_PART).max(
                    (TAKEN_MAX_BYTES * len)
                        .checked_div(taken)
                        .map_or(INITIAL, |most| most.min(INITIAL)),
                );
                assert!(
                    waiting <= most + len + 2 * NOTED_BYTES,
                    "{waiting} bytes of {len} each are in flight, {most} fit"
                );
                credit.want();
                assert_eq!(
                    credit.should_report_blocked(),
                    most == INITIAL,
                    "a larger window would not help"
                );
                receive_window.consumed(waiting, || ALL);
                waiting = 0;
                assert!(
                    receive_window
                        .grant()
                        .is_some_and(|granted| credit.granted(granted)),
                    "a blocked sender is granted more"
                );
            }
        }
    }

    #[test]
    fn messages_and_grants_beyond_the_window_are_rejected() {
        let mut receive_window = ReceiveWindow::new(Class::Unrequested);
        assert!(
            receive_window.count_received(INITIAL - 1) && receive_window.count_received(u64::MAX),
            "one message may exceed the window"
        );
        assert!(!receive_window.count_received(1));
        for (grows, longest) in [(false, INITIAL), (true, MAX)] {
            let granted = |bytes| Credit::new(Class::Unrequested, grows).granted(bytes);
            assert!(
                granted(longest - INITIAL) && !granted(longest - INITIAL + 1) && !granted(u64::MAX),
                "{grows}"
            );
        }
        let mut dirs = Credit::new(Class::Dirs, true);
        dirs.count_sent(u64::MAX, u64::MAX);
        dirs.want();
        assert!(
            !dirs.has_room(0) && !dirs.should_report_blocked(),
            "a window that does not grow"
        );
    }
}
