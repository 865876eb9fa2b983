//! Who may come in: counts handshakes and conversations, so that nobody takes more than there is.

use super::limits::Limits;
use crate::work::clock::Since;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The places of a server.
pub struct Room {
    limits: Limits,
    counts: Mutex<Counts>,
}

struct Counts {
    sessions: usize,
    half_open: usize,
    /// Handshakes of this second, by address.
    knocks: HashMap<IpAddr, u32>,
    second: Since,
    /// Handshakes that can be given up for others, the oldest first.
    waiting: VecDeque<(u64, GiveUp)>,
    next: u64,
}

/// Ends a handshake.
type GiveUp = Box<dyn FnOnce() + Send>;

/// How many addresses are told apart within a second; all others count as one.
const ADDRESSES_MAX: usize = 4096;

/// What becomes of somebody who knocks.
pub enum Answer {
    /// A handshake may begin.
    Begin(Place),
    /// First it shall show that the address is its own.
    ShowAddress,
    /// Not now.
    Refuse,
}

impl Room {
    /// An empty one.
    pub fn new(limits: &Limits) -> Arc<Room> {
        let (knocks, waiting) = (HashMap::new(), VecDeque::new());
        let counts = Counts { sessions: 0, half_open: 0, knocks, second: Since::now(), waiting, next: 0 };
        Arc::new(Room { limits: limits.clone(), counts: Mutex::new(counts) })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody knocks; `is_shown`: the address is certainly its own; `may_belong`: it may belong to a conversation that has
    /// its place. Where all places are taken, that of the oldest handshake which can be given up becomes free.
    pub fn knock(self: &Arc<Room>, address: IpAddr, is_shown: bool, may_belong: bool) -> Answer {
        let Limits { sessions, half_open, retry_from, handshakes_per_sec, .. } = self.limits;
        let mut counts = self.lock();
        if counts.sessions >= sessions && !may_belong {
            return Answer::Refuse;
        }
        if !is_shown && counts.half_open >= retry_from {
            return Answer::ShowAddress;
        }
        if counts.second.elapsed() >= Duration::from_secs(1) {
            counts.knocks.clear();
            counts.second = Since::now();
        }
        let mut whose = network(address);
        if counts.knocks.len() >= ADDRESSES_MAX && !counts.knocks.contains_key(&whose) {
            whose = Ipv6Addr::UNSPECIFIED.into();
        }
        let knocks = counts.knocks.entry(whose).or_default();
        *knocks += 1;
        if *knocks > handshakes_per_sec {
            return Answer::Refuse;
        }
        if counts.half_open >= half_open {
            let Some((_, give_up)) = counts.waiting.pop_front() else {
                return Answer::Refuse;
            };
            counts.half_open -= 1;
            give_up();
        }
        counts.half_open += 1;
        Answer::Begin(Place { room: self.clone(), held: Held::Handshake })
    }
}

/// Whoever has one address of IPv6 has a network of them.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(own) => match own.to_ipv4_mapped() {
            Some(own) => own.into(),
            None => Ipv6Addr::from(u128::from(own) >> 64 << 64).into(),
        },
    }
}

/// A place that is taken until this is dropped: first of a handshake, then of a conversation.
pub struct Place {
    room: Arc<Room>,
    held: Held,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Handshake,
    /// With its number; the place is somebody else's when the number is not waiting any more.
    Waiting(u64),
    Session,
}

impl Place {
    /// From now on the handshake can be given up for another one. `give_up` may be called by whoever knocks; it must not
    /// drop this place itself.
    pub fn can_be_given_up(&mut self, give_up: impl FnOnce() + Send + 'static) {
        let mut counts = self.room.lock();
        let number = counts.next;
        counts.next += 1;
        counts.waiting.push_back((number, Box::new(give_up)));
        drop(counts);
        self.held = Held::Waiting(number);
    }

    /// The handshake has ended well; `None`: others were faster, and there is no place for another conversation.
    pub fn come_in(mut self) -> Option<Place> {
        let mut counts = self.room.lock();
        if counts.sessions >= self.room.limits.sessions || !counts.end_handshake(self.held) {
            return None;
        }
        counts.sessions += 1;
        drop(counts);
        self.held = Held::Session;
        Some(self)
    }
}

impl Counts {
    /// Whether it still had its place.
    fn end_handshake(&mut self, held: Held) -> bool {
        if let Held::Waiting(number) = held {
            let Some(at) = self.waiting.iter().position(|waits| waits.0 == number) else {
                return false;
            };
            self.waiting.remove(at);
        }
        self.half_open -= 1;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.room.lock();
        match self.held {
            Held::Session => counts.sessions -= 1,
            Held::Handshake | Held::Waiting(_) => {
                counts.end_handshake(self.held);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begins(answer: Answer) -> Option<Place> {
        match answer {
            Answer::Begin(place) => Some(place),
            Answer::ShowAddress | Answer::Refuse => None,
        }
    }

    #[test]
    fn there_are_as_many_places_as_the_limits_say() {
        let limits = Limits { sessions: 1, half_open: 3, retry_from: 2, handshakes_per_sec: 1000, ..Limits::default() };
        let room = Room::new(&limits);
        let knock = |is_shown| room.knock([127, 0, 0, 1].into(), is_shown, false);
        let first = begins(knock(false)).unwrap();
        let second = begins(knock(false)).unwrap();
        assert!(matches!(knock(false), Answer::ShowAddress));
        let third = begins(knock(true)).unwrap();
        assert!(matches!(knock(true), Answer::Refuse), "three handshakes are open");
        let session = first.come_in().unwrap();
        assert!(second.come_in().is_none(), "there is one conversation already");
        assert!(matches!(knock(true), Answer::Refuse));
        drop(third);
        drop(session);
        assert!(begins(knock(false)).is_some());
        let counts = room.lock();
        assert_eq!((counts.sessions, counts.half_open), (0, 0));
    }

    #[test]
    fn the_oldest_handshake_that_may_be_is_given_up_for_another() {
        let room = Room::new(&Limits { half_open: 3, ..Limits::default() });
        let knock = || begins(room.knock([127, 0, 0, 1].into(), true, false));
        let given_up = Arc::new(Mutex::new(Vec::new()));
        let mut places: Vec<_> = (0..3).map(|_| knock().unwrap()).collect();
        for (number, place) in places.iter_mut().enumerate().skip(1) {
            let given_up = given_up.clone();
            place.can_be_given_up(move || given_up.lock().unwrap().push(number));
        }
        let last = places.pop().unwrap();
        let new = knock().unwrap();
        assert_eq!(*given_up.lock().unwrap(), [1]);
        assert!(places.pop().unwrap().come_in().is_none(), "its place is another's");
        let session = last.come_in().unwrap();
        let more = knock().unwrap();
        assert!(knock().is_none(), "those who wait are none that could be given up");
        assert_eq!(*given_up.lock().unwrap(), [1]);
        drop((new, more, session, places));
        let counts = room.lock();
        assert_eq!((counts.sessions, counts.half_open, counts.waiting.len()), (0, 0, 0));
    }

    #[test]
    fn one_address_does_not_take_the_time_of_others() {
        let room = Room::new(&Limits { handshakes_per_sec: 2, ..Limits::default() });
        let knock = |address: &str| begins(room.knock(address.parse().unwrap(), true, false)).is_some();
        assert_eq!([1, 2, 3].map(|_| knock("192.0.2.1")), [true, true, false]);
        assert_eq!(["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(knock), [true, true, false], "one network");
        assert!(knock("192.0.2.2"));
        (0..2 * ADDRESSES_MAX as u32).for_each(|n| drop(room.knock(std::net::Ipv4Addr::from(n).into(), true, false)));
        assert!(room.lock().knocks.len() <= ADDRESSES_MAX + 1, "what is remembered is bounded");
    }
}
