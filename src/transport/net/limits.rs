//! Every bound of the network, by name.

use super::stall::Signs;
use crate::transport::ceiling::Ceiling;
use std::time::Duration;

/// A peer that was not heard for so long is gone. Phones lose their network for 90 s.
pub const IDLE: Duration = Duration::from_secs(100);
/// After so long without a word a client asks whether the server is there: it hears at once when the server was started anew.
/// That also holds the mappings of home routers open.
pub const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// A client that has heard nothing for so long moves to another socket, and does so again after as long. More than
/// [`KEEP_ALIVE`] and a way to and fro.
pub const QUIET: Duration = Duration::from_secs(3);
/// How often a client looks whether it still hears the server, and at its own address.
pub const ROAM_LOOK: Duration = Duration::from_millis(500);
/// How long a server waits for a handshake to end.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a server whose conversation ends waits for a client that it does not hear, and that has not heard everything.
pub const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long it waits for one that it hears: a window takes as long at 28 kB/s.
pub const LAST_WORDS_MAX: Duration = Duration::from_secs(300);

/// The most that a client says before it knows that the server takes it. More would be said for nothing where it does not,
/// and an attempt is given up after a while.
pub const FIRST_WORDS_MAX_BYTES: usize = 64 << 10;

/// How many bytes may be under way in one direction. Less holds up a fast link that is long; more leaves the caches.
pub const WINDOW_BYTES: u32 = 8 << 20;
/// The most that this grows to on a path that holds more, which takes as much memory: a gigabit for half a second.
pub const WINDOW_MAX_BYTES: u32 = 64 << 20;
/// So much is taken from whoever writes, however little may be under way. Less than what the conversation lets wait, so that
/// whoever waits for leave there knows that it is all under way.
pub const SEND_MIN_BYTES: u64 = 4 << 20;
/// How many bytes a UDP socket shall hold for us: a window, so that nothing is lost where the network is this machine.
pub const SOCKET_ROOM_BYTES: usize = 8 << 20;
/// Until it is known that a path carries longer ones, the bytes of a datagram. Every path of QUIC carries these.
pub const DATAGRAM_MIN_BYTES: u16 = 1_200;
/// The bytes of a datagram on Ethernet, where nothing is known of the path.
pub const DATAGRAM_USUAL_BYTES: u16 = 1_452;
/// The most that a datagram may have.
pub const DATAGRAM_MAX_BYTES: u16 = 65_527;
/// The most that is tried on a path within this machine: several fit into what the kernel takes at once.
pub const DATAGRAM_LOCAL_BYTES: u16 = 16_000;

/// So many datagrams quinn hands to the kernel at once, where that cuts them apart again.
pub const SEGMENTS_AT_ONCE: usize = 10;
/// So much the kernel takes at once: a packet of UDP over IPv4, without its headers.
pub const SENT_AT_ONCE_MAX_BYTES: usize = 65_507;

/// How many pieces are taken off a stream at once.
pub const PIECES: usize = 32;
/// The longest piece that is handed to a stream at once.
pub const PIECE_MAX_BYTES: usize = 128 << 10;

/// After so many bytes a client sees whether a conversation over QUIC would go faster over TLS: they have met what is to be
/// met on the way, and of more it would not be told much that is new.
pub const LANE_AFTER_BYTES: u64 = 1 << 20;
/// On a longer way, there and back, QUIC stays: it is a way out of the building, or by radio to something that may be
/// carried away, and not so fast that the processor would be what holds it up.
pub const LANE_RTT_MAX: Duration = Duration::from_millis(2);
/// And where more than one datagram in so many was lost.
pub const LANE_LOST_ONE_IN: u64 = 1_000;
/// If it takes longer than this to come to terms over TLS, QUIC stays. Less than [`HANDSHAKE`], so that the server is there
/// when the client makes up its mind.
pub const LANE_LIMIT: Duration = Duration::from_secs(2);

/// What a server takes on.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Conversations at a time.
    pub sessions: usize,
    /// Those of one key: it does not take the places of all others.
    pub sessions_per_key: usize,
    /// Handshakes that have begun and not ended, at a time.
    pub half_open: usize,
    /// Those from one network.
    pub half_open_per_network: usize,
    /// From so many of them on, a QUIC client must first show that its address is its own.
    pub retry_from: usize,
    /// Handshakes that one network may begin in a second.
    pub handshakes_per_sec: u32,
    /// A client that was not heard for so long is gone.
    pub idle: Duration,
    /// How long a conversation that ends waits for a client that lets hear of itself, and does not take all that was said.
    pub last_words_max: Duration,
    /// A conversation is moved to another lane unless more than one datagram in so many was lost.
    pub lane_lost_one_in: u64,
    /// How far the windows of conversations grow, each, and whether there is room for more of them.
    pub ceiling: Ceiling,
    /// How it is seen that a connection of TCP leads nowhere.
    pub signs: Signs,
}

impl Limits {
    /// Whether nobody new is let in where there are so many conversations.
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
            signs: Signs::default(),
        }
    }
}
