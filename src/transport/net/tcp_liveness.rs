//! Detection of dead TCP connections by means of a fresh one.
//!
//! TCP stays with the address with which it began, and retransmits ever more rarely. So a client with a new address, or
//! one whose NAT mapping is gone, stalls until the system gives up, and after a network outage of one minute it may
//! stall for most of another. Such a client connects again and queries its session by the name that it has given it.
//! Either side sees the state of the old connection there, and either can end it for both; docs/PROTOCOL.md, section
//! 15, specifies the bytes. A client that learns that its session is over dials again.
//!
//! A path that is slow or loses much is not given up for that:
//!
//! - There is no doubt while anything is received, even if it is only an acknowledgement.
//! - A fresh connection is made only after TCP itself has retransmitted several times, at the pace of the path.
//! - The fresh connection needs two round trips, behind everything that is queued on the path.
//! - If TCP is about to retransmit, that is awaited.
//!
//! Without doubt, the cost is one system call per [`ROAM_LOOK`].

use super::limits::{QUIET, ROAM_LOOK};
use super::trouble::Trouble;
use super::{migration, tls};
use crate::fs::sys::{self, TcpStanding};
use crate::trust::Pin;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The client's name for a session, known only to the client and its server.
pub type SessionName = [u8; 32];

/// The client's first byte, instead of [`super::quic::BEGINS`], to query a session; the name follows.
pub const ASKS: [u8; 1] = [2];
/// The client queries the state again.
const AGAIN: [u8; 1] = [0];
/// The client ends the session.
const END: [u8; 1] = [1];
/// The server's answer: the session continues.
const GOES_ON: [u8; 1] = [0];
/// The server's answer: the session has ended, or there is none with this name.
const OVER: [u8; 1] = [1];

/// How often TCP retransmits before a fresh connection is made; each retransmission takes twice as long.
const REPEATS: u8 = 3;
/// If TCP retransmits within this time, that is awaited.
const SOON: Duration = Duration::from_secs(5);
/// How long a fresh connection, and each answer on it, may take: this time plus this many round trips. TCP repeats its
/// connection request after a second.
const FRESH_WITHIN: Duration = Duration::from_secs(3);
const FRESH_WITHIN_RTTS: u32 = 4;

/// Returns whether nothing was received for a while although `repeats` retransmissions or probes were sent.
fn is_silent(standing: &TcpStanding, repeats: u8) -> bool {
    standing.silent >= QUIET && standing.repeats >= repeats
}

/// Returns whether a connection is dead, given that a fresh one has worked for `fresh_for`. A side without
/// unacknowledged data probes the peer every [`super::limits::KEEP_ALIVE`], and would have had an answer since.
fn is_hopeless(standing: &TcpStanding, fresh_for: Duration) -> bool {
    is_silent(standing, REPEATS)
        && if standing.has_unacknowledged {
            standing.repeats_after > SOON
        } else {
            fresh_for >= QUIET
        }
}

/// How the state of a connection is observed.
#[derive(Debug, Clone, Copy)]
pub struct LivenessSigns {
    /// Returns the TCP state of a socket.
    pub standing: fn(BorrowedFd<'_>) -> io::Result<TcpStanding>,
    /// Returns whether packets to the peer would now leave from another address; takes the connection's own address and
    /// the peer's.
    pub is_elsewhere: fn(SocketAddr, SocketAddr) -> bool,
    /// How often the state is checked.
    pub look: Duration,
}

impl Default for LivenessSigns {
    fn default() -> LivenessSigns {
        LivenessSigns {
            standing: sys::tcp_standing,
            is_elsewhere: migration::is_elsewhere,
            look: ROAM_LOOK,
        }
    }
}

/// How a client watches over a connection.
pub struct Watch {
    /// The server.
    pub peer: SocketAddr,
    /// The TLS configuration of fresh connections.
    pub tls: Arc<rustls::ClientConfig>,
    pub name: SessionName,
    /// How the connection is observed.
    pub signs: LivenessSigns,
    /// The server learns of the end of the session in another way.
    pub server_is_informed: bool,
}

impl Watch {
    /// Waits until the server knows that a connection is dead; returns `false` if it ended before.
    pub async fn breaks(&self, connection: &tls::Watched) -> bool {
        let mut in_doubt = false;
        loop {
            tokio::time::sleep(self.signs.look).await;
            let Some(standing) = connection.standing(self.signs.standing) else {
                return false;
            };
            let is_elsewhere = is_silent(&standing, 1) && self.is_elsewhere(connection);
            if is_elsewhere && self.server_is_informed {
                return true;
            }
            // Once in doubt, query even if something is received: TCP of the server may be the side that waits.
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
                // The network is down.
                Err(_) | Ok(Err(Trouble::Refused | Trouble::Unreachable(_))) => {}
                // The server does not support queries.
                Ok(Err(_)) => {
                    in_doubt = false;
                    tokio::time::sleep(QUIET).await;
                }
            }
        }
    }

    fn is_elsewhere(&self, connection: &tls::Watched) -> bool {
        connection
            .ends()
            .is_some_and(|(own, peer)| (self.signs.is_elsewhere)(own, peer))
    }

    /// Returns whether the session is over. Fails if the fresh connection is lost, or an answer takes longer than
    /// `limit`.
    async fn settle(
        &self,
        connection: &tls::Watched,
        mut fresh: tls::Tunnel,
        limit: Duration,
    ) -> io::Result<bool> {
        let since = Since::now();
        fresh.send_short(&[&ASKS[..], &self.name].concat()).await?;
        loop {
            if tokio::time::timeout(limit, fresh.receive_exact()).await?? == OVER {
                return Ok(true);
            }
            let Some(standing) = connection.standing(self.signs.standing) else {
                return Ok(false);
            };
            let is_elsewhere = is_silent(&standing, 1) && self.is_elsewhere(connection);
            if is_elsewhere || is_hopeless(&standing, since.elapsed()) {
                fresh.send_short(&END).await?;
            } else if is_silent(&standing, REPEATS) {
                tokio::time::sleep(self.signs.look).await;
                fresh.send_short(&AGAIN).await?;
            } else {
                return Ok(false);
            }
        }
    }
}

/// The TLS sessions of a server, by the names that their clients gave them.
#[derive(Default)]
pub struct NamedSessions(Mutex<HashMap<(Pin, SessionName), tls::Watched>>);

impl NamedSessions {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        !self.0.lock().values().any(tls::Watched::is_open)
    }

    /// Adds the session of a client with this key. If the client uses a name twice, the first session keeps it.
    pub fn put(&self, pin: Pin, name: SessionName, connection: tls::Watched) {
        let mut all = self.0.lock();
        all.retain(|_, known| known.is_open());
        all.entry((pin, name)).or_insert(connection);
    }

    /// Ends the session of this name if `shall_end`; returns whether it is over.
    fn is_over(
        &self,
        pin: Pin,
        name: SessionName,
        shall_end: impl Fn(&TcpStanding) -> bool,
        signs: &LivenessSigns,
    ) -> bool {
        let all = self.0.lock();
        let Some(connection) = all.get(&(pin, name)) else {
            return true;
        };
        let goes_on = connection
            .standing(signs.standing)
            .is_some_and(|standing| !shall_end(&standing));
        if !goes_on {
            connection.hang_up();
        }
        !goes_on
    }

    /// Answers the queries of a client with this key.
    pub async fn answer(
        &self,
        mut fresh: tls::Tunnel,
        pin: Pin,
        signs: &LivenessSigns,
    ) -> io::Result<()> {
        let since = Since::now();
        let name = fresh.receive_exact().await?;
        let mut wants_end = false;
        loop {
            let shall_end =
                |standing: &TcpStanding| wants_end || is_hopeless(standing, since.elapsed());
            if self.is_over(pin, name, shall_end, signs) {
                return fresh.send_short(&OVER).await;
            }
            fresh.send_short(&GOES_ON).await?;
            wants_end = match fresh.receive_exact().await? {
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
        has_unacknowledged: false,
        repeats_after: Duration::ZERO,
        rtt: Duration::ZERO,
    };

    /// The state after `times` retransmissions, the first after 200 ms, each after twice the time of the previous one;
    /// and a little more than that.
    fn repeated(times: u8) -> TcpStanding {
        let first = Duration::from_millis(200);
        let silent = first * (2u32.pow(times.into()) - 1) + Duration::from_millis(50);
        TcpStanding {
            silent,
            repeats: times,
            has_unacknowledged: true,
            repeats_after: first * 2u32.pow(times.into()),
            ..NONE
        }
    }

    fn probed(times: u8) -> TcpStanding {
        TcpStanding {
            silent: super::super::limits::KEEP_ALIVE * (u32::from(times) + 1),
            repeats: times,
            ..NONE
        }
    }

    #[test]
    fn path_is_in_doubt_after_several_unanswered_attempts() {
        let doubted = |standing: TcpStanding| is_silent(&standing, REPEATS);
        assert!(
            [0, 1, 2, 3]
                .map(repeated)
                .into_iter()
                .all(|standing| !doubted(standing)),
            "TCP retransmits quickly at first"
        );
        assert!(doubted(repeated(4)));
        assert!(
            !doubted(TcpStanding {
                silent: Duration::from_millis(700),
                ..repeated(9)
            }),
            "something was received recently"
        );
        assert!(
            !doubted(TcpStanding {
                silent: Duration::from_secs(60),
                ..NONE
            }),
            "both sides were silent"
        );
        assert!(
            !doubted(TcpStanding {
                repeats: 2,
                ..repeated(4)
            }),
            "a slow path takes longer"
        );
        assert!(!doubted(probed(2)) && doubted(probed(3)));
    }

    #[test]
    fn connection_is_hopeless_after_long_tcp_backoff_or_silence() {
        let fresh = Duration::from_millis(1);
        assert!(!is_hopeless(&repeated(4), fresh), "TCP retransmits in time");
        assert!(
            !is_hopeless(&repeated(4), LONG),
            "independently of the age of the fresh connection"
        );
        assert!(is_hopeless(&repeated(5), fresh));
        assert!(!is_hopeless(&probed(3), fresh), "TCP probes again in time");
        assert!(is_hopeless(&probed(3), QUIET));
        assert!(
            !is_hopeless(
                &TcpStanding {
                    silent: Duration::from_secs(1),
                    ..repeated(9)
                },
                LONG
            ),
            "something was received"
        );
    }

    const LONG: Duration = Duration::from_secs(60);
}
