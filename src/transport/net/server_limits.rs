//! The limits of a server of network links, which its options can change.

use super::limits::{IDLE, LANE_LOST_ONE_IN, LAST_WORDS_MAX};
use super::tcp_liveness::LivenessSigns;
use crate::transport::window_limit::Ceiling;
use std::time::Duration;

/// The limits of a server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Concurrent sessions.
    pub sessions: usize,
    /// Concurrent sessions of one key, so that it cannot occupy all of them.
    pub sessions_per_key: usize,
    /// Concurrent incomplete handshakes.
    pub half_open: usize,
    /// Concurrent incomplete handshakes from one network.
    pub half_open_per_network: usize,
    /// From this many incomplete handshakes on, a QUIC client must first validate its address.
    pub retry_from: usize,
    /// Handshakes per second from one network.
    pub handshakes_per_sec: u32,
    /// A silent client is considered gone after this time.
    pub idle: Duration,
    /// How long a finished session waits for a client that is not silent but has not received everything.
    pub last_words_max: Duration,
    /// A session can move to TLS unless more than one in this many datagrams was lost.
    pub lane_lost_one_in: u64,
    /// How far the windows of sessions can grow, each, and whether new sessions are admitted.
    pub ceiling: Ceiling,
    /// How dead TCP connections are detected.
    pub signs: LivenessSigns,
}

impl Limits {
    /// Returns whether new clients are refused at this number of sessions.
    pub fn is_full(&self, sessions: usize) -> bool {
        sessions >= self.sessions || self.ceiling.is_shut()
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions: 256,
            sessions_per_key: 128,
            half_open: 256,
            half_open_per_network: 64,
            retry_from: 32,
            handshakes_per_sec: 100,
            idle: IDLE,
            last_words_max: LAST_WORDS_MAX,
            lane_lost_one_in: LANE_LOST_ONE_IN,
            ceiling: Ceiling::default(),
            signs: LivenessSigns::default(),
        }
    }
}
