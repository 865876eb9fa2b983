//! Tests of links on loopback: transfer, shutdown, and rejected clients.

mod moved;
mod relay;
mod stalled;

use self::relay::Relay;
use super::admission::Rejection;
use super::client::{Dial, DialWinner, FirstBytes, KIND_STEP, race};
use super::limits::{FIRST_WORDS_MAX_BYTES, HANDSHAKE, LAST_WORDS};
use super::server::{AcceptedClient, Lasting, Listener, listen};
use super::server_limits::Limits;
use super::{NetTransport, Trouble};
use crate::transport::Link;
use crate::transport::link::{FAREWELL, Patience};
use crate::trust::Pin;
use crate::trust::identity::Identity;
use crate::trust::tls;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longer than anything here takes on a busy machine, and less than [`Limits::idle`].
const LONG: Duration = Duration::from_secs(60);
/// The pause between two looks at an awaited state.
const LOOK: Duration = Duration::from_millis(1);
const HERE: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

/// A server on loopback, and the identities of both sides.
struct World {
    near: Identity,
    far: Identity,
    listener: Listener,
}

impl World {
    fn new() -> World {
        let near = Identity::passing().unwrap();
        let pin = near.pin;
        World::that(near, Arc::new(move |shown: &Pin| *shown == pin), &Limits::default())
    }

    fn that(near: Identity, admit: tls::Admit, limits: &Limits) -> World {
        let far = Identity::passing().unwrap();
        let listener =
            listen(&[HERE.into()], tls::server_config(&far, admit), lasting(&far), limits, &Patience::default())
                .unwrap();
        World { near, far, listener }
    }

    fn address(&self) -> SocketAddr {
        self.listener.addresses()[0]
    }

    fn dial(&self, patience: Patience) -> Dial {
        Dial::new(tls::client_config(&self.near, self.far.pin), LONG, patience)
    }

    /// Returns both ends of a session; the server has sent one byte, which the client has not read yet.
    fn meet(&self, kind: NetTransport, patience: Patience) -> (Link, AcceptedClient) {
        self.meet_at(self.address(), kind, patience)
    }

    fn meet_at(&self, address: SocketAddr, kind: NetTransport, patience: Patience) -> (Link, AcceptedClient) {
        self.meet_by(address, kind, self.dial(patience))
    }

    fn meet_by(&self, address: SocketAddr, kind: NetTransport, dial: Dial) -> (Link, AcceptedClient) {
        std::thread::scope(|scope| {
            let near = scope.spawn(move || dial_over(kind, address, &dial));
            let mut accepted = self.listener.accept(LONG).unwrap().expect("a client connects");
            accepted.writer.write_all(b"!").unwrap();
            (near.join().unwrap().unwrap(), accepted)
        })
    }
}

fn lasting(far: &Identity) -> Lasting {
    Lasting(far.secret_for("tests"))
}

fn dial_over(kind: NetTransport, address: SocketAddr, dial: &Dial) -> Result<Link, Trouble> {
    race(&[address], &[kind], dial).map(|won| won.link)
}

fn patient() -> Patience {
    Patience::default()
}

/// Runs the case over each transport.
fn each(case: impl Fn(NetTransport)) {
    case(NetTransport::Quic);
    case(NetTransport::Tls);
}

/// First bytes that are known in advance.
fn words(bytes: Vec<u8>) -> FirstBytes {
    FirstBytes::by(move || bytes.clone())
}

/// Returns bytes in which a shift or swap is visible: each block begins with its number.
fn bytes(len: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..4099u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut all = Vec::with_capacity(len + block.len());
    while all.len() < len {
        let number = all.len().to_le_bytes();
        all.extend_from_slice(&number);
        all.extend_from_slice(&block);
    }
    all.truncate(len);
    all
}

#[test]
fn bytes_arrive_in_both_directions_concurrently() {
    each(|kind| {
        let world = World::new();
        let (link, accepted) = world.meet(kind, patient());
        let (up, down) = (bytes(64 << 20), bytes((12 << 20) + 7));
        std::thread::scope(|scope| {
            let (up, down) = (&up, &down);
            let AcceptedClient { mut reader, mut writer, .. } = accepted;
            scope.spawn(move || writer.write_all(down).unwrap());
            scope.spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                assert!(got == *up, "the server did not receive what the client sent");
            });
            let Link { mut reader, mut writer, .. } = link;
            scope.spawn(move || writer.write_all(up).unwrap());
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            assert_eq!(got[0], b'!');
            assert!(got[1..] == *down, "the client did not receive what the server sent");
        });
    });
}

#[test]
fn each_direction_closes_independently() {
    each(|kind| {
        let world = World::new();
        let (Link { mut reader, mut writer, .. }, mut accepted) = world.meet(kind, patient());
        writer.write_all(b"all of it").unwrap();
        drop(writer);
        let mut got = Vec::new();
        accepted.reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"all of it");
        accepted.writer.write_all(b" thanks").unwrap();
        drop(accepted);
        got.clear();
        reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"! thanks");
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0, "each further read returns the end");
    });
}

#[test]
fn last_bytes_arrive_if_the_sender_closes_at_once() {
    each(|kind| {
        let world = World::new();
        let sent = bytes(3 << 20);
        for _ in 0..8 {
            let (mut link, mut accepted) = world.meet(kind, patient());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    link.writer.write_all(&sent).unwrap();
                    drop(link);
                });
                let mut got = Vec::new();
                accepted.reader.read_to_end(&mut got).unwrap();
                assert!(got == sent);
            });
        }
    });
}

/// The only bytes of a server and the end of its stream can arrive in one piece.
#[test]
fn an_answer_of_a_server_that_closes_at_once_arrives() {
    each(|kind| {
        let world = World::new();
        for _ in 0..8 {
            std::thread::scope(|scope| {
                let near = scope.spawn(|| dial_over(kind, world.address(), &world.dial(patient())));
                let AcceptedClient { reader, mut writer, .. } =
                    world.listener.accept(LONG).unwrap().expect("a client connects");
                writer.write_all(b"!").unwrap();
                drop(writer);
                let mut link = near.join().unwrap().unwrap();
                let mut got = Vec::new();
                link.reader.read_to_end(&mut got).unwrap();
                assert_eq!(got, b"!");
                drop(reader);
            });
        }
    });
}

#[test]
fn client_sends_nothing_to_a_server_with_another_key() {
    each(|kind| {
        let world = World::new();
        let unknown = Identity::passing().unwrap();
        let dial = Dial { tls: tls::client_config(&world.near, unknown.pin), ..world.dial(patient()) };
        let trouble = dial_over(kind, world.address(), &dial).err();
        assert!(matches!(trouble, Some(Trouble::WrongKey(_))), "{trouble:?}");
        assert!(world.listener.accept(Duration::from_millis(50)).unwrap().is_none(), "no client was admitted");
    });
}

#[test]
fn rejected_client_gets_the_reason() {
    each(|kind| {
        let world = World::that(Identity::passing().unwrap(), Arc::new(|_| false), &Limits::default());
        // Regardless of how much it sends, although the server does not read it.
        for len in [0, FIRST_WORDS_MAX_BYTES] {
            let dial = Dial { first_words: words(bytes(len)), ..world.dial(patient()) };
            let trouble = dial_over(kind, world.address(), &dial).err();
            assert!(matches!(trouble, Some(Trouble::NotAdmitted)), "{trouble:?}");
        }
        assert!(world.listener.accept(Duration::from_millis(50)).unwrap().is_none(), "no client was admitted");
    });
}

#[test]
fn plaintext_alert_is_a_broken_connection() {
    let world = World::new();
    let liar = std::net::TcpListener::bind(HERE).unwrap();
    let address = liar.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = liar.accept().unwrap();
            let _ = socket.read(&mut [0; 4096]);
            // A plaintext alert: access denied.
            let _ = socket.write_all(&[21, 3, 3, 0, 2, 2, 49]);
        });
        let trouble = dial_over(NetTransport::Tls, address, &world.dial(patient())).err().unwrap();
        assert!(matches!(trouble, Trouble::Broken(_)), "{trouble:?}");
    });
}

#[test]
fn silent_server_is_reported_within_the_limit() {
    each(|kind| {
        let world = World::new();
        // Bound, but never read from or accepted on.
        let (udp, tcp) = (std::net::UdpSocket::bind(HERE).unwrap(), std::net::TcpListener::bind(HERE).unwrap());
        let address = match kind {
            NetTransport::Quic => udp.local_addr().unwrap(),
            NetTransport::Tls => tcp.local_addr().unwrap(),
        };
        let begun = Since::now();
        let limit = Duration::from_millis(200);
        let trouble = dial_over(kind, address, &Dial { limit, ..world.dial(patient()) }).err();
        assert!(matches!(trouble, Some(Trouble::Silent(_) | Trouble::Unreachable(_))), "{trouble:?}");
        assert!(begun.elapsed() < LONG / 2);
    });
}

#[test]
fn connection_refused_is_reported() {
    each(|kind| {
        let world = World::new();
        let address = std::net::UdpSocket::bind(HERE).unwrap().local_addr().unwrap();
        let trouble = dial_over(kind, address, &world.dial(patient())).err();
        assert_eq!(trouble, Some(Trouble::Refused));
    });
}

#[test]
fn client_retransmits_unanswered_initial_packets() {
    let world = World::new();
    let relay = Relay::to(world.address());
    // The datagrams of the first two seconds.
    relay.lose_first(4);
    let (_link, _guest) = world.meet_at(relay.address, NetTransport::Quic, patient());
    // Each attempt has a socket, and the first one checked for a closed port with another.
    assert!(relay.clients() > 2, "{}", relay.clients());
}

#[test]
fn stop_request_interrupts_dial_and_read() {
    each(|kind| {
        let world = World::new();
        let stop = Arc::new(AtomicBool::new(false));
        let patience = Patience { stop: stop.clone(), ..patient() };
        let (mut link, _guest) = world.meet(kind, patience.clone());
        link.reader.read_exact(&mut [0]).unwrap();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| link.reader.read(&mut [0; 8]));
            stop.store(true, Ordering::Relaxed);
            let error = read.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        });
        // Without the delay of a farewell.
        assert!(!patience.parting.has_begun());
        let soon = || {
            let begun = Since::now();
            link.reader.read(&mut [0; 8]).unwrap_err();
            begun.elapsed() < FAREWELL
        };
        assert!(at_least_once(soon));
        let udp = std::net::UdpSocket::bind(HERE).unwrap();
        let trouble = dial_over(kind, udp.local_addr().unwrap(), &world.dial(patience)).err();
        assert!(matches!(trouble, Some(Trouble::Stopped | Trouble::Unreachable(_))), "{trouble:?}");
    });
}

#[test]
fn idle_timeout_ends_a_read() {
    each(|kind| {
        let world = World::new();
        let patience = Patience { idle: Some(Duration::from_millis(150)), ..patient() };
        let (mut link, _guest) = world.meet(kind, patience);
        link.reader.read_exact(&mut [0]).unwrap();
        let begun = Since::now();
        assert_eq!(link.reader.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_millis(150));
    });
}

#[test]
fn parting_ends_reads_and_writes_after_the_farewell_time() {
    each(|kind| {
        let world = World::new();
        let (mut link, _guest) = world.meet(kind, patient());
        link.reader.read_exact(&mut [0]).unwrap();
        let begun = Since::now();
        link.parting.begin();
        assert_eq!(link.reader.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert!(begun.elapsed() >= FAREWELL);
        // A writer does not wait for a peer that never reads either.
        let error = std::iter::repeat_with(|| link.writer.write_all(&[0; 1 << 20])).take(64).find_map(Result::err);
        assert_eq!(error.expect("the windows are smaller").kind(), ErrorKind::ConnectionAborted);
    });
}

#[test]
fn write_fails_if_the_reader_is_gone() {
    each(|kind| {
        let world = World::new();
        let (link, mut accepted) = world.meet(kind, patient());
        let Link { reader, writer, .. } = link;
        drop(reader);
        // TCP cannot signal that only the reader is gone.
        let kept = [writer].into_iter().find(|_| kind == NetTransport::Quic);
        let error = std::iter::repeat_with(|| accepted.writer.write_all(&[0; 1 << 20])).find_map(Result::err).unwrap();
        assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error:?}");
        drop(kept);
    });
}

#[test]
fn hang_up_ends_both_ends_with_the_reason() {
    each(|kind| {
        let world = World::new();
        let (mut link, accepted) = world.meet(kind, patient());
        link.reader.read_exact(&mut [0]).unwrap();
        std::thread::scope(|scope| {
            let (blocked, is_blocked) = mpsc::channel();
            let AcceptedClient { mut reader, hang_up, .. } = accepted;
            let far = scope.spawn(move || {
                blocked.send(()).unwrap();
                reader.read(&mut [0; 8])
            });
            is_blocked.recv().unwrap();
            hang_up.now("revoked");
            assert_eq!(far.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
        });
        let error = link.reader.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        if kind == NetTransport::Quic {
            assert!(error.to_string().contains("revoked"), "{error}");
        }
    });
}

#[test]
fn shutdown_of_the_server_is_an_error_at_the_client() {
    let world = World::new();
    let (mut link, accepted) = world.meet(NetTransport::Quic, patient());
    link.reader.read_exact(&mut [0]).unwrap();
    drop(world);
    assert!(link.reader.read(&mut [0; 8]).is_err(), "an unannounced end is an error");
    drop(accepted);
}

#[test]
fn draining_server_keeps_its_sessions() {
    each(|kind| {
        let world = World::new();
        let (mut link, mut accepted) = world.meet(kind, patient());
        world.listener.drain();
        let dial = Dial { limit: Duration::from_millis(200), ..world.dial(patient()) };
        assert!(dial_over(kind, world.address(), &dial).is_err());
        link.writer.write_all(b"still here").unwrap();
        let mut got = [0; 10];
        accepted.reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still here");
    });
}

/// Runs a race while the server sends a byte to each guest.
fn race_with(world: &World, peers: &[SocketAddr], kinds: &[NetTransport], dial: &Dial) -> Result<DialWinner, Trouble> {
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(peers, kinds, dial));
        let mut accepted_clients = Vec::new();
        while !racing.is_finished() {
            if let Some(mut accepted) = world.listener.accept(Duration::from_millis(10)).unwrap() {
                accepted.writer.write_all(b"!").unwrap();
                accepted_clients.push(accepted);
            }
        }
        racing.join().unwrap()
    })
}

#[test]
fn quic_wins_the_race_if_available() {
    let world = World::new();
    // Nothing listens at the first address, which is tried first.
    let closed = std::net::UdpSocket::bind(HERE).unwrap().local_addr().unwrap();
    let dial = Dial { kind_step: LONG, ..world.dial(patient()) };
    let won = race_with(&world, &[closed, world.address()], &NetTransport::BOTH, &dial).ok().unwrap();
    assert_eq!((won.kind, won.address), (NetTransport::Quic, world.address()));
    let mut link = won.link;
    link.reader.read_exact(&mut [0]).unwrap();
}

#[test]
fn first_transport_of_a_race_has_a_head_start() {
    let world = World::new();
    for kinds in [[NetTransport::Tls, NetTransport::Quic], [NetTransport::Quic, NetTransport::Tls]] {
        let dial = Dial { kind_step: LONG, ..world.dial(patient()) };
        let won = race_with(&world, &[world.address()], &kinds, &dial).ok().unwrap();
        assert_eq!(won.kind, kinds[0]);
    }
}

#[test]
fn tls_wins_the_race_if_udp_is_blocked() {
    let world = World::new();
    // TCP of this address leads to the server; its UDP is not answered.
    let mute = std::net::UdpSocket::bind(HERE).unwrap();
    let address = mute.local_addr().unwrap();
    let relay = std::net::TcpListener::bind(address).unwrap();
    let far = world.address();
    std::thread::spawn(move || {
        let (near, _) = relay.accept().unwrap();
        let far = std::net::TcpStream::connect(far).unwrap();
        let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || io::copy(&mut from, &mut to));
        let _ = io::copy(&mut &far, &mut &near);
    });
    let begun = Since::now();
    let won = race_with(&world, &[address], &NetTransport::BOTH, &world.dial(patient())).ok().unwrap();
    assert_eq!((won.kind, won.address), (NetTransport::Tls, address));
    assert!(begun.elapsed() >= KIND_STEP && begun.elapsed() < LONG);
    let mut link = won.link;
    link.reader.read_exact(&mut [0]).unwrap();
}

#[test]
fn failed_race_reports_the_most_important_error() {
    let world = World::new();
    let mute = std::net::UdpSocket::bind(HERE).unwrap();
    let address = mute.local_addr().unwrap();
    let dial = Dial { limit: 2 * KIND_STEP, ..world.dial(patient()) };
    let lost = race(&[address], &NetTransport::BOTH, &dial).err().unwrap();
    assert_eq!(lost, Trouble::Refused, "TCP was refused, and nothing answered over QUIC");
    // A wrong key at one address is more important than silence at another.
    let unknown = Identity::passing().unwrap();
    let limit = Duration::from_secs(3);
    let dial = Dial { tls: tls::client_config(&world.near, unknown.pin), limit, ..dial };
    let lost = race_with(&world, &[address, world.address()], &NetTransport::BOTH, &dial).err().unwrap();
    assert!(matches!(lost, Trouble::WrongKey(_)), "{lost:?}");
    assert!(race(&[], &NetTransport::BOTH, &dial).is_err());
}

/// Accepts guests until one uses this transport.
fn accepted_over(world: &World, kind: NetTransport) -> AcceptedClient {
    std::iter::repeat_with(|| world.listener.accept(LONG).unwrap().expect("a client connects"))
        .find(|accepted| accepted.kind == kind)
        .unwrap()
}

/// Checks that the server notices that this guest has left; otherwise it would wait for [`Limits::idle`].
fn expect_end(mut accepted: AcceptedClient) {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || tx.send(accepted.reader.read(&mut [0]).is_err()));
    assert_eq!(rx.recv_timeout(LONG), Ok(true));
}

#[test]
fn only_one_racing_connection_starts_a_session() {
    let world = World::new();
    let dial = Dial { first_words: words(b"first".to_vec()), ..world.dial(patient()) };
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(&[world.address()], &NetTransport::BOTH, &dial));
        let mut first = world.listener.accept(LONG).unwrap().expect("a client connects");
        // By now the other attempt has completed its handshake too.
        assert!(world.listener.accept(2 * KIND_STEP).unwrap().is_none(), "only one connection sends");
        first.writer.write_all(b"!").unwrap();
        assert_eq!(racing.join().unwrap().ok().unwrap().kind, first.kind);
        assert!(world.listener.accept(Duration::from_millis(50)).unwrap().is_none(), "the other connection is closed");
    });
}

#[test]
fn next_connection_takes_over_if_the_first_is_rejected() {
    let world = World::new();
    let dial = Dial { first_words: words(b"first".to_vec()), ..world.dial(patient()) };
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(&[world.address()], &NetTransport::BOTH, &dial));
        let first = world.listener.accept(LONG).unwrap().expect("a client connects");
        first.hang_up.now("not you");
        let mut next = world.listener.accept(LONG).unwrap().expect("another client connects");
        assert_ne!(first.kind, next.kind);
        let mut got = [0; 5];
        next.reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"first", "the first words are sent again");
        next.writer.write_all(b"!").unwrap();
        let won = racing.join().unwrap().ok().unwrap();
        assert_eq!(won.kind, next.kind);
    });
}

#[test]
fn next_connection_takes_over_if_the_first_is_unanswered() {
    let world = World::new();
    let relay = Relay::to(world.address());
    let tcp = std::net::TcpListener::bind(relay.address).unwrap();
    let far = world.address();
    std::thread::spawn(move || {
        let (near, _) = tcp.accept().unwrap();
        let far = std::net::TcpStream::connect(far).unwrap();
        let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || io::copy(&mut from, &mut to));
        let _ = io::copy(&mut &far, &mut &near);
    });
    let dial = world.dial(patient());
    std::thread::scope(|scope| {
        // QUIC has begun its session when TLS begins.
        let racing = scope.spawn(|| race(&[relay.address], &NetTransport::BOTH, &dial));
        let first = world.listener.accept(LONG).unwrap().expect("a client connects");
        // Like a network that blocks QUIC once it has recognized it.
        relay.shut(true);
        let mut next = match first.kind {
            NetTransport::Quic => world.listener.accept(LONG).unwrap().expect("the other connection takes over"),
            NetTransport::Tls => first,
        };
        next.writer.write_all(b"!").unwrap();
        assert_eq!(racing.join().unwrap().ok().unwrap().kind, NetTransport::Tls);
    });
}

#[test]
fn unanswered_connection_releases_the_floor() {
    let world = World::new();
    let dial = world.dial(patient());
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(&[world.address()], &[NetTransport::Quic], &dial));
        let mut accepted = world.listener.accept(LONG).unwrap().expect("a client connects");
        assert!(!dial.permit.take(), "the server may still answer");
        let begun = Since::now();
        while !dial.permit.take() {
            assert!(begun.elapsed() < LONG, "the floor is not released");
            std::thread::sleep(LOOK);
        }
        accepted.writer.write_all(b"!").unwrap();
        assert_eq!(racing.join().unwrap().err(), Some(Trouble::Stopped));
    });
}

#[test]
fn connection_without_the_floor_sends_nothing() {
    each(|kind| {
        let world = World::new();
        let dial = world.dial(patient());
        assert!(dial.permit.take() && !dial.permit.take());
        assert_eq!(dial_over(kind, world.address(), &dial).err(), Some(Trouble::Stopped));
        assert!(world.listener.accept(Duration::from_millis(50)).unwrap().is_none(), "no client was admitted");
    });
}

#[test]
fn first_words_precede_the_other_bytes() {
    each(|kind| {
        for len in [0, 1, FIRST_WORDS_MAX_BYTES] {
            let world = World::new();
            let first_words = bytes(len);
            let dial = Dial { first_words: words(first_words.clone()), ..world.dial(patient()) };
            std::thread::scope(|scope| {
                let near = scope.spawn(|| dial_over(kind, world.address(), &dial));
                let mut accepted = world.listener.accept(LONG).unwrap().expect("a client connects");
                let mut got = vec![0; len];
                accepted.reader.read_exact(&mut got).unwrap();
                assert!(got == first_words, "received before any answer");
                accepted.writer.write_all(b"!").unwrap();
                let mut link = near.join().unwrap().unwrap();
                link.writer.write_all(b"and the rest").unwrap();
                drop(link);
                got.clear();
                accepted.reader.read_to_end(&mut got).unwrap();
                assert_eq!(got, b"and the rest");
            });
        }
    });
}

#[test]
fn clean_close_does_not_wait() {
    // Over QUIC it waits on a path this short; tests/turns.rs tests a long one.
    let world = World::new();
    let soon = || {
        let (link, mut accepted) = world.meet_at(world.address(), NetTransport::Tls, patient());
        let Link { mut reader, mut writer, leave, .. } = link;
        reader.read_exact(&mut [0]).unwrap();
        // A blocked reader does not prevent it.
        let reading = std::thread::spawn(move || reader.read(&mut [0]).map_or(0, |got| got));
        let begun = Since::now();
        writer.write_all(b"bye").unwrap();
        drop(writer);
        leave.expect("network links have a `leave` function")();
        assert_eq!(reading.join().unwrap(), 0);
        let took = begun.elapsed();
        let mut got = [0; 3];
        accepted.reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"bye");
        assert!(!matches!(accepted.reader.read(&mut [0]), Ok(1..)), "nothing more arrives");
        took < FAREWELL
    };
    assert!(at_least_once(soon));
}

#[test]
fn abandoned_race_notifies_the_server_at_once() {
    let world = World::new();
    let patience = patient();
    let dial = world.dial(patience.clone());
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(&[world.address()], &[NetTransport::Quic], &dial));
        let accepted = accepted_over(&world, NetTransport::Quic);
        patience.beaten.store(true, Ordering::Relaxed);
        assert_eq!(racing.join().unwrap().err().unwrap(), Trouble::Stopped);
        expect_end(accepted);
    });
}

#[test]
fn race_ends_if_the_server_rejects_the_client() {
    let world = World::that(Identity::passing().unwrap(), Arc::new(|_| false), &Limits::default());
    let mute = std::net::UdpSocket::bind(HERE).unwrap();
    let lost = race(&[world.address(), mute.local_addr().unwrap()], &NetTransport::BOTH, &world.dial(patient()))
        .err()
        .unwrap();
    assert!(matches!(lost, Trouble::NotAdmitted), "{lost:?}");
}

#[test]
fn number_of_sessions_is_limited() {
    each(|kind| {
        let near = Identity::passing().unwrap();
        let world = World::that(near, Arc::new(|_| true), &Limits { sessions: 1, ..Limits::default() });
        let (link, accepted) = world.meet(kind, patient());
        let trouble = dial_over(kind, world.address(), &world.dial(patient())).err();
        assert_eq!(trouble, Some(Trouble::Busy(Rejection::Full)));
        drop((link, accepted));
        // The slot is freed when both ends have closed, which takes a moment.
        let begun = Since::now();
        loop {
            let begins = world.dial(patient());
            let dialled = std::thread::scope(|scope| {
                let near = scope.spawn(|| dial_over(kind, world.address(), &begins));
                while !near.is_finished() {
                    if let Some(mut accepted) = world.listener.accept(Duration::from_millis(5)).unwrap() {
                        accepted.writer.write_all(b"!").unwrap();
                    }
                }
                near.join().unwrap()
            });
            if dialled.is_ok() {
                break;
            }
            assert!(begun.elapsed() < LONG, "no slot was freed");
        }
    });
}

#[test]
fn noise_at_both_ports_does_not_block_clients() {
    let near = Identity::passing().unwrap();
    let world = World::that(near, Arc::new(|_| true), &Limits { handshakes_per_sec: 100_000, ..Limits::default() });
    let address = world.address();
    let noise: [&[u8]; 3] = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[0xff; 1200], &[0x16, 3, 1, 2, 0, 1]];
    // Another address of this machine, which only sends noise.
    let udp = std::net::UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap();
    let mut held = std::collections::VecDeque::new();
    for n in 0..10_000 {
        let _ = udp.send_to(noise[n % 3], address);
        // A QUIC version 1 long header that begins a handshake and continues with noise.
        let mut initial = vec![0xa5; 1200];
        initial[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
        initial[6..14].copy_from_slice(&n.to_le_bytes());
        initial[14] = 0;
        let _ = udp.send_to(&initial, address);
        if n % 50 == 0 {
            let mut tcp = std::net::TcpStream::connect(address).unwrap();
            let _ = tcp.write_all(noise[n / 50 % 3]);
            held.push_back(tcp);
        }
    }
    each(|kind| {
        let (mut link, mut accepted) = world.meet(kind, patient());
        link.writer.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        accepted.reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    });
}

#[test]
fn client_detects_a_restarted_server_at_once() {
    let world = World::new();
    let again = listen(
        &[HERE.into()],
        tls::server_config(&world.far, Arc::new(|_| true)),
        lasting(&world.far),
        &Limits::default(),
        &Patience::default(),
    );
    let again = again.unwrap();
    // The first server keeps running but receives nothing, like a server that was killed.
    let relay = Relay::to(world.address());
    for client_sends_first in [true, false] {
        relay.lead_to(world.address());
        let (mut link, _guest) = world.meet_at(relay.address, NetTransport::Quic, patient());
        link.reader.read_exact(&mut [0]).unwrap();
        relay.lead_to(again.addresses()[0]);
        let begun = Since::now();
        if client_sends_first {
            let _ = link.writer.write_all(&bytes(1 << 20));
        }
        let error = link.reader.read(&mut [0]).unwrap_err();
        assert!(error.to_string().contains("the peer was restarted"), "{error}");
        // A silent client sends keepalives.
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    }
}

#[test]
fn silent_peers_do_not_block_others() {
    let limits = Limits { half_open: 4, retry_from: 4, ..Limits::default() };
    let soon = || {
        let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
        let begun = Since::now();
        let mut mute: Vec<_> = (0..8).map(|_| std::net::TcpStream::connect(world.address()).unwrap()).collect();
        for old in &mut mute[..4] {
            assert!(matches!(old.read(&mut [0]), Ok(0) | Err(_)), "the handshake was aborted for another");
        }
        each(|kind| {
            world.meet(kind, patient());
        });
        begun.elapsed() < HANDSHAKE
    };
    assert!(at_least_once(soon), "a client waited for silent peers");
}

/// Returns the first datagram of a QUIC client; each begins a handshake of its own.
fn first_word(world: &World) -> Vec<u8> {
    let mute = std::net::UdpSocket::bind(HERE).unwrap();
    let (patience, address) = (patient(), mute.local_addr().unwrap());
    let dial = world.dial(patience.clone());
    let mut word = vec![0; 1 << 16];
    std::thread::scope(|scope| {
        scope.spawn(|| dial_over(NetTransport::Quic, address, &dial).is_err());
        let len = mute.recv(&mut word).unwrap();
        word.truncate(len);
        patience.beaten.store(true, Ordering::Relaxed);
    });
    word
}

#[test]
fn single_packet_quic_clients_do_not_block_others() {
    let limits = Limits { half_open: 4, retry_from: 100, ..Limits::default() };
    let soon = || {
        let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
        let begun = Since::now();
        let mute = std::net::UdpSocket::bind(HERE).unwrap();
        for _ in 0..8 {
            mute.send_to(&first_word(&world), world.address()).unwrap();
            // An answer, so the handshake has begun.
            mute.recv(&mut [0; 1 << 16]).unwrap();
        }
        each(|kind| {
            world.meet(kind, patient());
        });
        begun.elapsed() < HANDSHAKE
    };
    assert!(at_least_once(soon), "a client waited for silent peers");
}

#[test]
fn number_of_sessions_per_key_is_limited() {
    each(|kind| {
        let limits = Limits { sessions_per_key: 1, ..Limits::default() };
        let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
        let first = world.meet(kind, patient());
        let trouble = dial_over(kind, world.address(), &world.dial(patient())).err();
        assert_eq!(trouble, Some(Trouble::Busy(Rejection::TooManyOfKey)));
        let other = Identity::passing().unwrap();
        let dial = Dial { tls: tls::client_config(&other, world.far.pin), ..world.dial(patient()) };
        drop((first, world.meet_by(world.address(), kind, dial)));
    });
}

#[test]
fn wait_for_an_unresponsive_client_is_limited() {
    let limits = Limits { last_words_max: Duration::from_millis(100), ..Limits::default() };
    let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
    let relay = Relay::to(world.address());
    let (link, mut accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
    // The client keeps sending, but receives nothing.
    relay.mute(true);
    accepted.writer.write_all(&bytes(1 << 20)).unwrap();
    drop(accepted);
    assert!(until(LONG / 2, || world.listener.conversations() == 0), "the slot is not freed");
    drop(link);
}

#[test]
fn client_leaving_with_a_full_window_frees_its_slot() {
    let world = World::new();
    let relay = Relay::to(world.address());
    let (link, AcceptedClient { reader: mut far_reader, writer: far_writer, .. }) =
        world.meet_at(relay.address, NetTransport::Quic, patient());
    // Nothing that the client sends is acknowledged any more.
    relay.mute(true);
    let Link { reader, mut writer, parting, .. } = link;
    parting.begin();
    assert!(writer.write_all(&bytes(16 << 20)).is_err(), "the window is smaller");
    drop((reader, writer));
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        while matches!(far_reader.read(&mut [0; 1 << 10]), Ok(1..)) {}
        let _ = tx.send(());
    });
    rx.recv_timeout(LONG).expect("the close is announced");
    drop(far_writer);
    assert!(until(LONG, || world.listener.conversations() == 0), "the slot is not freed");
}

#[test]
fn session_slot_is_held_until_the_last_bytes_arrive() {
    let world = World::new();
    let relay = Relay::to(world.address());
    let (mut link, mut accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
    relay.mute(true);
    let sent = bytes(1 << 20);
    accepted.writer.write_all(&sent).unwrap();
    drop(accepted);
    assert_eq!(world.listener.conversations(), 1);
    relay.mute(false);
    let mut got = Vec::new();
    link.reader.read_to_end(&mut got).unwrap();
    assert!(got[1..] == sent);
    drop(link);
    // The client announces its end only once, and that datagram can be lost; then the server waits for the timeout.
    assert!(until(LAST_WORDS + LONG, || world.listener.conversations() == 0));
}

/// Sends enough data that some is in flight while `meanwhile` changes the network, and compares what arrives.
fn send(link: Link, accepted: AcceptedClient, up: bool, meanwhile: impl FnOnce() + Send) {
    let sent = bytes(24 << 20);
    let (Link { mut reader, mut writer, .. }, AcceptedClient { reader: mut far_reader, writer: mut far_writer, .. }) =
        (link, accepted);
    reader.read_exact(&mut [0]).unwrap();
    let (from, to): (&mut (dyn Write + Send), &mut (dyn Read + Send)) = match up {
        true => (&mut writer, &mut far_reader),
        false => (&mut far_writer, &mut reader),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).unwrap());
        scope.spawn(meanwhile);
        let mut got = vec![0; sent.len()];
        to.read_exact(&mut got).unwrap();
        assert!(got == sent, "received and sent bytes differ");
    });
}

/// Returns whether one of several attempts was fast: a busy machine may delay one of them, but not all.
fn at_least_once(mut is_fast: impl FnMut() -> bool) -> bool {
    (0..5).any(|_| is_fast())
}

/// Waits until `is_so` returns `true`; returns whether it did in time.
fn until(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let begun = Since::now();
    // The condition may hold only once, because asking can take a slot and give it back: do not evaluate it again.
    while begun.elapsed() < limit {
        if is_so() {
            return true;
        }
        std::thread::sleep(LOOK);
    }
    false
}

const UNDER_WAY_BYTES: u64 = 2 << 20;

#[test]
fn session_survives_a_client_address_change() {
    for up in [true, false] {
        let world = World::new();
        let relay = Relay::to(world.address());
        let (link, accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
        let begun = Since::now();
        send(link, accepted, up, || {
            assert!(until(LONG, || relay.bytes() > UNDER_WAY_BYTES));
            relay.roam();
        });
        assert!(relay.clients() > 1 && begun.elapsed() < LONG, "{:?}", begun.elapsed());
    }
}

#[test]
fn session_resumes_soon_after_a_network_outage() {
    // QUIC alone retransmits after ever longer times: 7 s into an outage, it sends nothing for another 6 s.
    const ASKS: u64 = 3;
    let case = |up| {
        let world = World::new();
        let relay = Relay::to(world.address());
        let (link, accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
        let begun = Mutex::new(Since::now());
        send(link, accepted, up, || {
            assert!(until(LONG, || relay.bytes() > UNDER_WAY_BYTES));
            relay.shut(true);
            let before = relay.clients();
            let has_retried = until(LONG, || relay.clients() >= before + ASKS);
            *begun.lock() = Since::now();
            relay.shut(false);
            assert!(has_retried, "up: {up}; {} attempts", relay.clients() - before);
        });
        assert!(begun.into_inner().elapsed() < LONG);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| case(true));
        case(false);
    });
}

/// Not a test: prints the throughput if `SPARSYNC_BENCH_MIB` sets how much to send.
#[test]
fn benchmark_throughput() {
    let Some(mib) = std::env::var("SPARSYNC_BENCH_MIB").ok().and_then(|value| value.parse::<usize>().ok()) else {
        let _ = writeln!(io::stderr(), "skipped: SPARSYNC_BENCH_MIB is not set");
        return;
    };
    each(|kind| {
        let world = World::new();
        for up in [true, false] {
            let (mut link, mut accepted) = world.meet(kind, patient());
            link.reader.read_exact(&mut [0]).unwrap();
            let begun = Since::now();
            std::thread::scope(|scope| {
                let (from, to): (&mut (dyn Write + Send), &mut (dyn Read + Send)) = match up {
                    true => (&mut link.writer, &mut accepted.reader),
                    false => (&mut accepted.writer, &mut link.reader),
                };
                scope.spawn(move || {
                    let piece = bytes(256 << 10);
                    (0..mib * 4).for_each(|_| from.write_all(&piece).unwrap());
                });
                let mut piece = vec![0; 256 << 10];
                (0..mib * 4).for_each(|_| to.read_exact(&mut piece).unwrap());
            });
            let rate = mib as f64 * 1.048_576 / begun.elapsed().as_secs_f64();
            let _ = writeln!(io::stderr(), "{kind}, {}: {rate:.0} MB/s", if up { "up" } else { "down" });
        }
    });
}
