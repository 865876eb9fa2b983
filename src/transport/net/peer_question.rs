//! A server's question to a silent client whether it is still there.

use super::HangUp;
use super::limits::ANSWER;
use quinn::VarInt;
use std::time::Duration;

/// How many round trips a client may take for its answer, if that is longer than [`ANSWER`]: a full queue on its way
/// doubles the time, and a lost datagram is sent again.
const ANSWER_ROUND_TRIPS: u32 = 4;

/// The most questions to one client. Each doubles the number of streams that it may open, on which nothing is read.
const QUESTIONS_MAX: u32 = 16;

/// A question to a client whether it is still there. A process that is killed leaves a QUIC connection without a word;
/// the system closes its TCP connections.
pub struct PeerQuestion {
    hang_up: HangUp,
    /// The number of datagrams received before; `None` if the session has no QUIC connection, or was asked too often.
    received_before: Option<u64>,
    /// How long the client may take.
    limit: Duration,
}

impl PeerQuestion {
    /// Asks the client of a session for the `nth` time, beginning with 1.
    pub fn new(hang_up: &HangUp, nth: u32) -> PeerQuestion {
        let quic = if nth <= QUESTIONS_MAX {
            hang_up.quic()
        } else {
            None
        };
        let received_before = quic.map(|connection| {
            let received = connection.stats().udp_rx.datagrams;
            // Every peer acknowledges a new limit. A plain PING would do, but this is what the library offers.
            connection.set_max_concurrent_uni_streams(VarInt::from_u32(1 << nth));
            received
        });
        let round_trip = quic.map_or(Duration::ZERO, quinn::Connection::rtt);
        PeerQuestion {
            hang_up: hang_up.clone(),
            received_before,
            limit: ANSWER.max(round_trip * ANSWER_ROUND_TRIPS),
        }
    }

    /// Returns whether the client is there: something has arrived since, or it keeps a TCP connection open.
    pub fn is_answered(&self) -> bool {
        let received = || Some(self.hang_up.quic()?.stats().udp_rx.datagrams);
        match self.received_before {
            _ if self.hang_up.is_over() => false,
            Some(before) => received().is_some_and(|now| now > before),
            None => true,
        }
    }

    /// Returns whether the client has not answered for so long that it is gone. One that has closed its connection is
    /// not asked: its session ends by itself when it has handled what has arrived.
    pub fn is_overdue(&self, waited: Duration) -> bool {
        !self.hang_up.is_over() && !self.is_answered() && waited >= self.limit
    }
}
