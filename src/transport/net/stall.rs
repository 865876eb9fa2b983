//! A connection of TCP that leads nowhere any more, found out by a fresh one.
//!
//! TCP goes from the address with which it began, and tries again ever more rarely. So a client that got another address, or
//! one that a router has forgotten, stands still until the system gives up, and one whose network was gone for a minute does
//! for most of another. Such a client connects anew, and asks for its conversation by the name that it has given it: either
//! end sees there how the old connection stands, and either can end it for both; docs/PROTOCOL.md, section 15, has the bytes.
//! Whoever is told so dials again.
//!
//! A way that is slow, or loses much, is not given up for that. There is no doubt while anything is heard, be it only that
//! something was heard; a fresh connection is made where TCP itself has tried several times, as slowly as the way wants it;
//! that one must come through, there and back twice, behind whatever waits on the way; and where TCP is about to try once
//! more, that is waited for. Where nothing is in doubt, all of it costs one system call a [`ROAM_LOOK`].

use super::limits::{QUIET, ROAM_LOOK};
use super::{Trouble, roam, tls};
use crate::fs::sys::{self, TcpStanding};
use crate::trust::Pin;
use crate::work::clock::Since;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a client calls a conversation: nobody else knows it.
pub type Name = [u8; 32];

/// What a client says in place of [`super::BEGINS`] where it asks for a conversation; its name follows.
pub const ASKS: [u8; 1] = [2];
/// The client asks how the conversation stands by now.
const AGAIN: [u8; 1] = [0];
/// The client wants it to end.
const END: [u8; 1] = [1];
/// The server's answer: it goes on.
const GOES_ON: [u8; 1] = [0];
/// The server's answer: it has ended, or there is none of that name.
const OVER: [u8; 1] = [1];

/// So often TCP tries before a fresh connection does: every time it takes twice as long.
const REPEATS: u8 = 3;
/// If it takes TCP no longer than this to try again, it is waited for.
const SOON: Duration = Duration::from_secs(5);
/// So long a fresh connection may take, and so many times there and back, and each answer on it: TCP asks for one a second
/// time after a second.
const FRESH_WITHIN: Duration = Duration::from_secs(3);
const FRESH_WITHIN_RTTS: u32 = 4;

/// Whether nothing has been heard for a while, although something was tried: so many times.
fn is_silent(standing: &TcpStanding, repeats: u8) -> bool {
    standing.silent >= QUIET && standing.repeats >= repeats
}

/// Whether nothing is to be hoped for, although a fresh connection came through so long ago. Who owes the peer nothing asks
/// it each [`super::limits::KEEP_ALIVE`], and would have been answered since.
fn is_hopeless(standing: &TcpStanding, fresh_for: Duration) -> bool {
    is_silent(standing, REPEATS)
        && match standing.is_owed {
            true => standing.repeats_after > SOON,
            false => fresh_for >= QUIET,
        }
}

/// How it is seen what becomes of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Signs {
    /// What TCP knows.
    pub standing: fn(BorrowedFd<'_>) -> io::Result<TcpStanding>,
    /// Whether the way to the peer begins at another address: by the connection's own and the peer's.
    pub is_elsewhere: fn(SocketAddr, SocketAddr) -> bool,
    /// How often it is looked.
    pub look: Duration,
}

impl Default for Signs {
    fn default() -> Signs {
        Signs { standing: sys::tcp_standing, is_elsewhere: roam::is_elsewhere, look: ROAM_LOOK }
    }
}

/// How a client watches over a connection.
pub struct Watch {
    /// The server.
    pub peer: SocketAddr,
    /// By which it is asked.
    pub tls: Arc<rustls::ClientConfig>,
    /// What it knows the conversation by.
    pub name: Name,
    /// What is looked at.
    pub signs: Signs,
    /// The server hears otherwise that the conversation ends.
    pub is_told: bool,
}

impl Watch {
    /// Waits until the server knows that a connection leads nowhere; `false`: it ended before.
    pub async fn breaks(&self, connection: &tls::Watched) -> bool {
        let mut in_doubt = false;
        loop {
            tokio::time::sleep(self.signs.look).await;
            let Some(standing) = connection.standing(self.signs.standing) else { return false };
            let is_elsewhere = is_silent(&standing, 1) && self.is_elsewhere(connection);
            if is_elsewhere && self.is_told {
                return true;
            }
            // Once in doubt, it asks, also where something is heard meanwhile: TCP over there may be what waits.
            in_doubt |= is_elsewhere || is_silent(&standing, REPEATS);
            if !in_doubt {
                continue;
            }
            let limit = FRESH_WITHIN + FRESH_WITHIN_RTTS * standing.rtt;
            match tokio::time::timeout(limit, tls::connect(self.peer, self.tls.clone())).await {
                Ok(Ok(fresh)) => match self.settle(connection, fresh, limit).await {
                    Ok(true) => return true,
                    Ok(false) => in_doubt = false,
                    Err(_) => {}
                },
                // The network is gone.
                Err(_) | Ok(Err(Trouble::Unreachable(_))) => {}
                // A server that does not know how.
                Ok(Err(_)) => {
                    in_doubt = false;
                    tokio::time::sleep(QUIET).await;
                }
            }
        }
    }

    fn is_elsewhere(&self, connection: &tls::Watched) -> bool {
        connection.ends().is_some_and(|(own, peer)| (self.signs.is_elsewhere)(own, peer))
    }

    /// Whether the conversation is over; an error: the fresh connection has broken off, or an answer takes longer than `limit`.
    async fn settle(&self, connection: &tls::Watched, mut fresh: tls::Tunnel, limit: Duration) -> io::Result<bool> {
        let since = Since::now();
        fresh.say(&[&ASKS[..], &self.name].concat()).await?;
        loop {
            if tokio::time::timeout(limit, fresh.hear()).await?? == OVER {
                return Ok(true);
            }
            let Some(standing) = connection.standing(self.signs.standing) else { return Ok(false) };
            let is_elsewhere = is_silent(&standing, 1) && self.is_elsewhere(connection);
            if is_elsewhere || is_hopeless(&standing, since.elapsed()) {
                fresh.say(&END).await?;
            } else if is_silent(&standing, REPEATS) {
                tokio::time::sleep(self.signs.look).await;
                fresh.say(&AGAIN).await?;
            } else {
                return Ok(false);
            }
        }
    }
}

/// The conversations over TLS that a server has, by the names that their clients gave them.
#[derive(Default)]
pub struct Named(Mutex<HashMap<(Pin, Name), tls::Watched>>);

impl Named {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Pin, Name), tls::Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        !self.lock().values().any(tls::Watched::is_there)
    }

    /// Another one, of whoever has this key. Who gives a name twice means the first.
    pub fn put(&self, pin: Pin, name: Name, connection: tls::Watched) {
        let mut all = self.lock();
        all.retain(|_, known| known.is_there());
        all.entry((pin, name)).or_insert(connection);
    }

    /// Whether the conversation of that name is over, or `shall_end`.
    fn is_over(&self, pin: Pin, name: Name, shall_end: impl Fn(&TcpStanding) -> bool, signs: &Signs) -> bool {
        let all = self.lock();
        let Some(connection) = all.get(&(pin, name)) else { return true };
        let goes_on = connection.standing(signs.standing).is_some_and(|standing| !shall_end(&standing));
        if !goes_on {
            connection.hang_up();
        }
        !goes_on
    }

    /// Answers a client with this key that asks for a conversation.
    pub async fn answer(&self, mut fresh: tls::Tunnel, pin: Pin, signs: &Signs) -> io::Result<()> {
        let since = Since::now();
        let name = fresh.hear().await?;
        let mut wants_end = false;
        loop {
            let shall_end = |standing: &TcpStanding| wants_end || is_hopeless(standing, since.elapsed());
            if self.is_over(pin, name, shall_end, signs) {
                return fresh.say(&OVER).await;
            }
            fresh.say(&GOES_ON).await?;
            wants_end = match fresh.hear().await? {
                AGAIN => false,
                END => true,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: TcpStanding = TcpStanding {
        silent: Duration::ZERO,
        repeats: 0,
        is_owed: false,
        repeats_after: Duration::ZERO,
        rtt: Duration::ZERO,
    };

    /// TCP repeats after 200 ms first, and after twice as long each time; so many times, and something more than that.
    fn repeated(times: u8) -> TcpStanding {
        let first = Duration::from_millis(200);
        let silent = first * (2u32.pow(times.into()) - 1) + Duration::from_millis(50);
        TcpStanding { silent, repeats: times, is_owed: true, repeats_after: first * 2u32.pow(times.into()), ..NONE }
    }

    fn asked(times: u8) -> TcpStanding {
        TcpStanding { silent: super::super::limits::KEEP_ALIVE * (u32::from(times) + 1), repeats: times, ..NONE }
    }

    #[test]
    fn a_way_is_in_doubt_where_several_attempts_met_with_silence() {
        let doubted = |standing: TcpStanding| is_silent(&standing, REPEATS);
        assert!([0, 1, 2, 3].map(repeated).into_iter().all(|standing| !doubted(standing)), "TCP itself is quick");
        assert!(doubted(repeated(4)));
        assert!(!doubted(TcpStanding { silent: Duration::from_millis(700), ..repeated(9) }), "something was heard");
        assert!(!doubted(TcpStanding { silent: Duration::from_secs(60), ..NONE }), "nobody said anything");
        assert!(!doubted(TcpStanding { repeats: 2, ..repeated(4) }), "on a slow way it takes longer");
        assert!(!doubted(asked(2)) && doubted(asked(3)));
    }

    #[test]
    fn nothing_is_to_be_hoped_for_where_tcp_waits_for_long_or_is_not_answered() {
        let fresh = Duration::from_millis(1);
        assert!(!is_hopeless(&repeated(4), fresh), "it tries again in time");
        assert!(!is_hopeless(&repeated(4), LONG), "however long the fresh connection has been there");
        assert!(is_hopeless(&repeated(5), fresh));
        assert!(!is_hopeless(&asked(3), fresh), "it asks again in time");
        assert!(is_hopeless(&asked(3), QUIET));
        assert!(!is_hopeless(&TcpStanding { silent: Duration::from_secs(1), ..repeated(9) }, LONG), "it was heard");
    }

    const LONG: Duration = Duration::from_secs(60);
}
