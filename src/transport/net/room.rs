//! Who may come in: counts handshakes and conversations, so that nobody takes more than there is.

use super::limits::Limits;
use crate::work::clock::Since;
use std::collections::HashMap;
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
}

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
        let counts = Counts { sessions: 0, half_open: 0, knocks: HashMap::new(), second: Since::now() };
        Arc::new(Room { limits: limits.clone(), counts: Mutex::new(counts) })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody knocks; `is_shown`: the address is certainly its own.
    pub fn knock(self: &Arc<Room>, address: IpAddr, is_shown: bool) -> Answer {
        let Limits { sessions, half_open, retry_from, handshakes_per_sec, .. } = self.limits;
        let mut counts = self.lock();
        if counts.sessions >= sessions || counts.half_open >= half_open {
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
        counts.half_open += 1;
        Answer::Begin(Place { room: self.clone(), is_session: false })
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
    is_session: bool,
}

impl Place {
    /// The handshake has ended well; `None`: others were faster, and there is no place for another conversation.
    pub fn come_in(mut self) -> Option<Place> {
        let mut counts = self.room.lock();
        if counts.sessions >= self.room.limits.sessions {
            return None;
        }
        counts.half_open -= 1;
        counts.sessions += 1;
        drop(counts);
        self.is_session = true;
        Some(self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.room.lock();
        match self.is_session {
            true => counts.sessions -= 1,
            false => counts.half_open -= 1,
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
        let knock = |is_shown| room.knock([127, 0, 0, 1].into(), is_shown);
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
    fn one_address_does_not_take_the_time_of_others() {
        let room = Room::new(&Limits { handshakes_per_sec: 2, ..Limits::default() });
        let knock = |address: &str| begins(room.knock(address.parse().unwrap(), true)).is_some();
        assert_eq!([1, 2, 3].map(|_| knock("192.0.2.1")), [true, true, false]);
        assert_eq!(["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(knock), [true, true, false], "one network");
        assert!(knock("192.0.2.2"));
        (0..2 * ADDRESSES_MAX as u32).for_each(|n| drop(room.knock(std::net::Ipv4Addr::from(n).into(), true)));
        assert!(room.lock().knocks.len() <= ADDRESSES_MAX + 1, "what is remembered is bounded");
    }
}
