//! Every limit and timeout of the network transports, by name.

use std::time::Duration;

/// A silent peer is considered gone after this time. Phones lose their network for 90 s.
pub const IDLE: Duration = Duration::from_secs(100);
/// How long a silent client may take to answer a question of the server.
pub const ANSWER: Duration = Duration::from_secs(1);
/// A client sends a keepalive after this time without data, which detects a restarted server at once and keeps the NAT
/// mappings of home routers alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// A client that has received nothing for this time moves to another socket, and again after each further interval.
/// More than [`KEEP_ALIVE`] and a round trip.
pub const QUIET: Duration = Duration::from_secs(3);
/// How often a client checks whether it still receives data from the server, and what its own address is.
pub const ROAM_LOOK: Duration = Duration::from_millis(500);
/// How long a server waits for a handshake to complete.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// At the end of a session: how long the server waits for a silent client that has not received everything.
pub const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long it waits for a client that is not silent: at 28 kB/s, a window takes this long.
pub const LAST_WORDS_MAX: Duration = Duration::from_secs(300);

/// The maximum that a client sends before it knows that the server accepts it. If the server does not, all of it was
/// sent in vain, and an attempt is given up after a while.
pub const FIRST_WORDS_MAX_BYTES: usize = 64 << 10;

/// The bytes in flight in one direction. With fewer, a fast long path would not be full; more would not fit into the
/// CPU caches.
pub const WINDOW_BYTES: u32 = 8 << 20;
/// The largest window on a path that holds more than [`WINDOW_BYTES`], which costs as much memory: one gigabit per
/// second for half a second.
pub const WINDOW_MAX_BYTES: u32 = 64 << 20;
/// The minimum that QUIC accepts from the writer, however small the congestion window is. Less than the windows of the
/// session, so that a sender that waits for a grant knows that everything is in flight.
pub const SEND_MIN_BYTES: u64 = 4 << 20;
/// The requested buffer size of a UDP socket: one window, so that nothing is lost on loopback.
pub const SOCKET_ROOM_BYTES: usize = 8 << 20;
/// The datagram size until a path is known to carry larger ones. Every QUIC path carries this size.
pub const DATAGRAM_MIN_BYTES: u16 = 1_200;
/// The datagram size on Ethernet, used if the path MTU is unknown.
pub const DATAGRAM_USUAL_BYTES: u16 = 1_452;
/// The maximum size of a datagram.
pub const DATAGRAM_MAX_BYTES: u16 = 65_527;
/// The largest size to probe on a path within this machine: several of these fit into one system call.
pub const DATAGRAM_LOCAL_BYTES: u16 = 16_000;

/// The number of datagrams that quinn passes to the kernel at once under segmentation offload.
pub const SEGMENTS_AT_ONCE: usize = 10;
/// The maximum that the kernel accepts at once: an IPv4 UDP packet without its headers.
pub const SENT_AT_ONCE_MAX_BYTES: usize = 65_507;

/// The number of chunks read from a stream at once.
pub const PIECES: usize = 32;
/// The longest chunk passed to a stream at once.
pub const PIECE_MAX_BYTES: usize = 128 << 10;

/// After this many bytes, a client checks whether the session would be faster over TLS. By then the properties of the
/// path have shown; more bytes would add little.
pub const LANE_AFTER_BYTES: u64 = 1 << 20;
/// The longest round trip for a move to TLS. A longer path leaves the building, or is a radio link of a device that may
/// be carried away, and it is not so fast that the CPU would be the bottleneck.
pub const LANE_RTT_MAX: Duration = Duration::from_millis(2);
/// The session also stays on QUIC if more than one in this many datagrams was lost.
pub const LANE_LOST_ONE_IN: u64 = 1_000;
/// How long agreeing on the move over TLS may take; after that QUIC stays. Less than [`HANDSHAKE`], so that the server
/// still waits when the client decides.
pub const LANE_LIMIT: Duration = Duration::from_secs(2);
