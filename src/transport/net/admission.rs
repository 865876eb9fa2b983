//! Admission control: counts handshakes and sessions, so that no client exceeds its share.

use super::server_limits::Limits;
use super::trouble::Rejection;
use crate::trust::Pin;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// The slots of a server.
pub struct Room {
    limits: Limits,
    counts: Mutex<AdmissionCounts>,
}

struct AdmissionCounts {
    sessions: usize,
    /// Sessions by key.
    of_key: HashMap<Pin, usize>,
    half_open: usize,
    /// Handshakes of the current second, by network.
    attempts: HashMap<IpAddr, u32>,
    second: Since,
    /// Handshakes that can be aborted in favor of others, the oldest first.
    waiting: VecDeque<Waiting>,
    next: u64,
}

struct Waiting {
    number: u64,
    network: IpAddr,
    give_up: GiveUp,
}

/// Aborts a handshake.
type GiveUp = Box<dyn FnOnce() + Send>;

/// How many addresses are counted separately within a second; all others share one counter.
const ADDRESSES_MAX: usize = 4096;

/// The decision about a new connection.
pub enum Admission {
    /// The handshake may begin.
    Begin(Slot),
    /// The client must first validate its address.
    ShowAddress,
    /// The maximum number of sessions is reached.
    Refuse,
    /// No answer: there were too many handshakes from this network. A legitimate client retries.
    Ignore,
}

impl Room {
    /// Creates an empty room.
    pub fn new(limits: &Limits) -> Arc<Room> {
        let counts = AdmissionCounts {
            sessions: 0,
            of_key: HashMap::new(),
            half_open: 0,
            attempts: HashMap::new(),
            second: Since::now(),
            waiting: VecDeque::new(),
            next: 0,
        };
        Arc::new(Room {
            limits: limits.clone(),
            counts: Mutex::new(counts),
        })
    }

    /// Returns the number of sessions.
    pub fn conversations(&self) -> usize {
        self.counts.lock().sessions
    }

    /// Decides about a new connection. `is_shown`: the address was validated; `may_belong`: it may belong to a session
    /// that has a slot. If all slots for handshakes are taken, in total or for its network, the oldest handshake that
    /// can be aborted gives up its slot.
    pub fn admit(self: &Arc<Room>, address: IpAddr, is_shown: bool, may_belong: bool) -> Admission {
        let limits = &self.limits;
        let mut counts = self.counts.lock();
        if limits.is_full(counts.sessions) && !may_belong {
            return Admission::Refuse;
        }
        if !is_shown && counts.half_open >= limits.retry_from {
            return Admission::ShowAddress;
        }
        if counts.second.elapsed() >= Duration::from_secs(1) {
            counts.attempts.clear();
            counts.second = Since::now();
        }
        let network = network(address);
        let is_one_of_many =
            counts.attempts.len() >= ADDRESSES_MAX && !counts.attempts.contains_key(&network);
        let attempts = counts
            .attempts
            .entry(if is_one_of_many {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                network
            })
            .or_default();
        *attempts += 1;
        if *attempts > limits.handshakes_per_sec {
            return Admission::Ignore;
        }
        let of_network = counts
            .waiting
            .iter()
            .filter(|waits| waits.network == network)
            .count();
        let has_room = if of_network >= limits.half_open_per_network {
            counts.abort_oldest(|waits| waits.network == network)
        } else {
            counts.half_open < limits.half_open || counts.abort_oldest(|_| true)
        };
        if !has_room {
            return Admission::Ignore;
        }
        counts.half_open += 1;
        Admission::Begin(Slot {
            room: self.clone(),
            network,
            held: Held::Handshake,
        })
    }
}

/// Returns the network of an address: a client with one IPv6 address has a /64 of them.
pub fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(own) => match own.to_ipv4_mapped() {
            Some(own) => own.into(),
            None => Ipv6Addr::from(u128::from(own) >> 64 << 64).into(),
        },
    }
}

/// A slot, first of a handshake, then of a session. Dropping it frees the slot.
pub struct Slot {
    room: Arc<Room>,
    network: IpAddr,
    held: Held,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Handshake,
    /// With its number. If that is no longer in `waiting`, the slot was given to another client.
    Waiting(u64),
    Session(Pin),
}

impl Slot {
    /// Lets other connections abort this handshake. `give_up` is called while another is admitted; it must not drop
    /// this place itself.
    pub fn set_abortable(&mut self, give_up: impl FnOnce() + Send + 'static) {
        let mut counts = self.room.counts.lock();
        let number = counts.next;
        counts.next += 1;
        counts.waiting.push_back(Waiting {
            number,
            network: self.network,
            give_up: Box::new(give_up),
        });
        drop(counts);
        self.held = Held::Waiting(number);
    }

    /// Turns the slot of a completed handshake into that of a session with this key.
    pub fn into_session(mut self, pin: Pin) -> Result<Slot, Rejection> {
        let limits = &self.room.limits;
        let mut counts = self.room.counts.lock();
        if limits.is_full(counts.sessions) {
            return Err(Rejection::Full);
        }
        if counts
            .of_key
            .get(&pin)
            .is_some_and(|count| *count >= limits.sessions_per_key)
        {
            return Err(Rejection::TooManyOfKey);
        }
        if !counts.end_handshake(self.held) {
            return Err(Rejection::GivenUp);
        }
        counts.sessions += 1;
        *counts.of_key.entry(pin).or_default() += 1;
        drop(counts);
        self.held = Held::Session(pin);
        Ok(self)
    }
}

impl AdmissionCounts {
    /// Frees the slot of a handshake; returns whether it still had one.
    fn end_handshake(&mut self, held: Held) -> bool {
        if let Held::Waiting(number) = held {
            let Some(at) = self.waiting.iter().position(|waits| waits.number == number) else {
                return false;
            };
            self.waiting.remove(at);
        }
        self.half_open -= 1;
        true
    }

    /// Aborts the oldest handshake that matches `of`; returns whether there was one.
    fn abort_oldest(&mut self, of: impl Fn(&Waiting) -> bool) -> bool {
        let oldest = self
            .waiting
            .iter()
            .position(of)
            .and_then(|at| self.waiting.remove(at));
        let was_found = oldest.is_some();
        if let Some(oldest) = oldest {
            self.half_open -= 1;
            (oldest.give_up)();
        }
        was_found
    }

    fn end_session(&mut self, pin: Pin) {
        self.sessions -= 1;
        if let Entry::Occupied(mut of_key) = self.of_key.entry(pin) {
            *of_key.get_mut() -= 1;
            if *of_key.get() == 0 {
                of_key.remove();
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.room.counts.lock();
        match self.held {
            Held::Session(pin) => counts.end_session(pin),
            Held::Handshake | Held::Waiting(_) => {
                counts.end_handshake(self.held);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::window_limit::Ceiling;

    fn begins(answer: Admission) -> Option<Slot> {
        match answer {
            Admission::Begin(place) => Some(place),
            Admission::ShowAddress | Admission::Refuse | Admission::Ignore => None,
        }
    }

    const KEYS: [Pin; 2] = [Pin([1; 32]), Pin([2; 32])];

    #[test]
    fn admission_enforces_session_and_handshake_limits() {
        let limits = Limits {
            sessions: 1,
            half_open: 3,
            retry_from: 2,
            handshakes_per_sec: 1000,
            ..Limits::default()
        };
        let room = Room::new(&limits);
        let admit = |is_shown| room.admit([127, 0, 0, 1].into(), is_shown, false);
        let first = begins(admit(false)).unwrap();
        let second = begins(admit(false)).unwrap();
        assert!(matches!(admit(false), Admission::ShowAddress));
        let third = begins(admit(true)).unwrap();
        assert!(
            matches!(admit(true), Admission::Ignore),
            "three handshakes are open"
        );
        let session = first.into_session(KEYS[0]).ok().unwrap();
        assert_eq!(
            second.into_session(KEYS[1]).err(),
            Some(Rejection::Full),
            "one session exists already"
        );
        assert!(matches!(admit(true), Admission::Refuse));
        drop(third);
        drop(session);
        assert!(begins(admit(false)).is_some());
        let counts = room.counts.lock();
        assert_eq!((counts.sessions, counts.half_open), (0, 0));
    }

    #[test]
    fn a_window_limit_of_zero_rejects_new_clients() {
        let limits = Limits {
            ceiling: Ceiling::shared().unwrap(),
            ..Limits::default()
        };
        let room = Room::new(&limits);
        let admit = |may_belong| room.admit([127, 0, 0, 1].into(), true, may_belong);
        let first = begins(admit(false)).unwrap();
        limits.ceiling.set(0).unwrap();
        assert!(matches!(admit(false), Admission::Refuse));
        assert_eq!(
            begins(admit(true)).unwrap().into_session(KEYS[0]).err(),
            Some(Rejection::Full)
        );
        limits.ceiling.set(1).unwrap();
        assert!(first.into_session(KEYS[0]).is_ok() && begins(admit(false)).is_some());
    }

    #[test]
    fn oldest_abandonable_handshake_makes_way_for_a_new_one() {
        let room = Room::new(&Limits {
            half_open: 3,
            ..Limits::default()
        });
        let admit = || begins(room.admit([127, 0, 0, 1].into(), true, false));
        let given_up = Arc::new(Mutex::new(Vec::new()));
        let mut places: Vec<_> = (0..3).map(|_| admit().unwrap()).collect();
        for (number, place) in places.iter_mut().enumerate().skip(1) {
            let given_up = given_up.clone();
            place.set_abortable(move || given_up.lock().push(number));
        }
        let last = places.pop().unwrap();
        let new = admit().unwrap();
        assert_eq!(*given_up.lock(), [1]);
        let given = places.pop().unwrap().into_session(KEYS[0]);
        assert_eq!(
            given.err(),
            Some(Rejection::GivenUp),
            "the slot belongs to another handshake"
        );
        let session = last.into_session(KEYS[0]).ok().unwrap();
        let more = admit().unwrap();
        assert!(admit().is_none(), "no waiting handshake can be aborted");
        assert_eq!(*given_up.lock(), [1]);
        drop((new, more, session, places));
        let counts = room.counts.lock();
        assert_eq!(
            (counts.sessions, counts.half_open, counts.waiting.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn sessions_per_key_are_limited() {
        let room = Room::new(&Limits {
            sessions: 3,
            sessions_per_key: 2,
            ..Limits::default()
        });
        let into_session = |key| {
            begins(room.admit([127, 0, 0, 1].into(), true, false))
                .unwrap()
                .into_session(key)
        };
        let sessions = [
            into_session(KEYS[0]).ok().unwrap(),
            into_session(KEYS[0]).ok().unwrap(),
        ];
        assert_eq!(into_session(KEYS[0]).err(), Some(Rejection::TooManyOfKey));
        let other = into_session(KEYS[1]).ok().unwrap();
        drop(sessions);
        assert!(into_session(KEYS[0]).is_ok());
        drop(other);
        let counts = room.counts.lock();
        assert_eq!(
            (counts.sessions, counts.half_open, counts.of_key.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn handshakes_per_network_are_limited() {
        let room = Room::new(&Limits {
            half_open: 4,
            half_open_per_network: 2,
            ..Limits::default()
        });
        let given_up = Arc::new(Mutex::new(Vec::new()));
        let places: Vec<_> = [
            "192.0.2.9",
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8::3",
            "2001:db8::4",
        ]
        .into_iter()
        .map(|address| {
            let mut place = begins(room.admit(address.parse().unwrap(), true, false)).unwrap();
            let given_up = given_up.clone();
            place.set_abortable(move || given_up.lock().push(address));
            place
        })
        .collect();
        assert_eq!(*given_up.lock(), ["2001:db8::1", "2001:db8::2"]);
        assert_eq!(room.counts.lock().half_open, 3);
        drop(places);
        assert_eq!(room.counts.lock().half_open, 0);
    }

    #[test]
    fn handshake_rate_per_network_is_limited() {
        let room = Room::new(&Limits {
            handshakes_per_sec: 2,
            ..Limits::default()
        });
        let admit =
            |address: &str| begins(room.admit(address.parse().unwrap(), true, false)).is_some();
        assert_eq!([1, 2, 3].map(|_| admit("192.0.2.1")), [true, true, false]);
        assert_eq!(
            ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(admit),
            [true, true, false],
            "one network"
        );
        assert!(admit("192.0.2.2"));
        (0..2 * ADDRESSES_MAX as u32)
            .for_each(|n| drop(room.admit(std::net::Ipv4Addr::from(n).into(), true, false)));
        assert!(
            room.counts.lock().attempts.len() <= ADDRESSES_MAX + 1,
            "the number of recorded addresses is limited"
        );
    }
}
