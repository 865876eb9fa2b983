//! Tests of links on loopback: transfer, shutdown, and rejected clients.

mod limits;
mod moved;
mod race;
mod relay;
mod stalled;
#[path = "../../../tests/kit/wait.rs"]
mod wait;

use self::relay::Relay;
use self::wait::reached;
use super::client::{Dial, DialWinner, FirstBytes, KIND_STEP, race};
use super::limits::{FIRST_WORDS_MAX_BYTES, HANDSHAKE, LAST_WORDS};
use super::server::{AcceptedClient, Lasting, Listener, listen};
use super::server_limits::Limits;
use super::trouble::Rejection;
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
        World::that(
            near,
            Arc::new(move |shown: &Pin| *shown == pin),
            &Limits::default(),
        )
    }

    fn that(near: Identity, admit: tls::Admit, limits: &Limits) -> World {
        let far = Identity::passing().unwrap();
        let listener = listen(
            &[HERE.into()],
            tls::server_config(&far, admit),
            lasting(&far),
            limits,
            &Patience::default(),
        )
        .unwrap();
        World {
            near,
            far,
            listener,
        }
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

    fn meet_at(
        &self,
        address: SocketAddr,
        kind: NetTransport,
        patience: Patience,
    ) -> (Link, AcceptedClient) {
        self.meet_by(address, kind, self.dial(patience))
    }

    fn meet_by(
        &self,
        address: SocketAddr,
        kind: NetTransport,
        dial: Dial,
    ) -> (Link, AcceptedClient) {
        std::thread::scope(|scope| {
            let near = scope.spawn(move || dial_over(kind, address, &dial));
            let mut accepted = self
                .listener
                .accept(LONG)
                .unwrap()
                .expect("a client connects");
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
    let block: Vec<u8> = (0..4099u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
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
            let AcceptedClient {
                mut reader,
                mut writer,
                ..
            } = accepted;
            scope.spawn(move || writer.write_all(down).unwrap());
            scope.spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                assert!(
                    got == *up,
                    "the server did not receive what the client sent"
                );
            });
            let Link {
                mut reader,
                mut writer,
                ..
            } = link;
            scope.spawn(move || writer.write_all(up).unwrap());
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            assert_eq!(got[0], b'!');
            assert!(
                got[1..] == *down,
                "the client did not receive what the server sent"
            );
        });
    });
}

#[test]
fn each_direction_closes_independently() {
    each(|kind| {
        let world = World::new();
        let (
            Link {
                mut reader,
                mut writer,
                ..
            },
            mut accepted,
        ) = world.meet(kind, patient());
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
        assert_eq!(
            reader.read(&mut [0; 8]).unwrap(),
            0,
            "each further read returns the end"
        );
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
                let AcceptedClient {
                    reader, mut writer, ..
                } = world
                    .listener
                    .accept(LONG)
                    .unwrap()
                    .expect("a client connects");
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
        let dial = Dial {
            tls: tls::client_config(&world.near, unknown.pin),
            ..world.dial(patient())
        };
        let trouble = dial_over(kind, world.address(), &dial).err();
        assert!(matches!(trouble, Some(Trouble::WrongKey(_))), "{trouble:?}");
        assert!(
            world
                .listener
                .accept(Duration::from_millis(50))
                .unwrap()
                .is_none(),
            "no client was admitted"
        );
    });
}

#[test]
fn rejected_client_gets_the_reason() {
    each(|kind| {
        let world = World::that(
            Identity::passing().unwrap(),
            Arc::new(|_| false),
            &Limits::default(),
        );
        // Regardless of how much it sends, although the server does not read it.
        for len in [0, FIRST_WORDS_MAX_BYTES] {
            let dial = Dial {
                first_words: words(bytes(len)),
                ..world.dial(patient())
            };
            let trouble = dial_over(kind, world.address(), &dial).err();
            assert!(matches!(trouble, Some(Trouble::NotAdmitted)), "{trouble:?}");
        }
        assert!(
            world
                .listener
                .accept(Duration::from_millis(50))
                .unwrap()
                .is_none(),
            "no client was admitted"
        );
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
        let trouble = dial_over(NetTransport::Tls, address, &world.dial(patient()))
            .err()
            .unwrap();
        assert!(matches!(trouble, Trouble::Broken(_)), "{trouble:?}");
    });
}

#[test]
fn silent_server_is_reported_within_the_limit() {
    each(|kind| {
        let world = World::new();
        // Bound, but never read from or accepted on.
        let (udp, tcp) = (
            std::net::UdpSocket::bind(HERE).unwrap(),
            std::net::TcpListener::bind(HERE).unwrap(),
        );
        let address = match kind {
            NetTransport::Quic => udp.local_addr().unwrap(),
            NetTransport::Tls => tcp.local_addr().unwrap(),
        };
        let begun = Since::now();
        let limit = Duration::from_millis(200);
        let trouble = dial_over(
            kind,
            address,
            &Dial {
                limit,
                ..world.dial(patient())
            },
        )
        .err();
        assert!(
            matches!(trouble, Some(Trouble::Silent(_) | Trouble::Unreachable(_))),
            "{trouble:?}"
        );
        assert!(begun.elapsed() < LONG / 2);
    });
}

#[test]
fn connection_refused_is_reported() {
    each(|kind| {
        let world = World::new();
        let address = std::net::UdpSocket::bind(HERE)
            .unwrap()
            .local_addr()
            .unwrap();
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
    let (_link, _accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
    // Each attempt has a socket, and the first one checked for a closed port with another.
    assert!(relay.clients() > 2, "{}", relay.clients());
}

#[test]
fn stop_request_interrupts_dial_and_read() {
    each(|kind| {
        let world = World::new();
        let stop = Arc::new(AtomicBool::new(false));
        let patience = Patience {
            stop: stop.clone(),
            ..patient()
        };
        let (mut link, _accepted) = world.meet(kind, patience.clone());
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
        assert!(
            matches!(trouble, Some(Trouble::Stopped | Trouble::Unreachable(_))),
            "{trouble:?}"
        );
    });
}

#[test]
fn idle_timeout_ends_a_read() {
    each(|kind| {
        let world = World::new();
        let patience = Patience {
            idle: Some(Duration::from_millis(150)),
            ..patient()
        };
        let (mut link, _accepted) = world.meet(kind, patience);
        link.reader.read_exact(&mut [0]).unwrap();
        let begun = Since::now();
        assert_eq!(
            link.reader.read(&mut [0; 8]).unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        assert!(begun.elapsed() >= Duration::from_millis(150));
    });
}

#[test]
fn parting_ends_reads_and_writes_after_the_farewell_time() {
    each(|kind| {
        let world = World::new();
        let (mut link, _accepted) = world.meet(kind, patient());
        link.reader.read_exact(&mut [0]).unwrap();
        let begun = Since::now();
        link.parting.begin();
        assert_eq!(
            link.reader.read(&mut [0; 8]).unwrap_err().kind(),
            ErrorKind::ConnectionAborted
        );
        assert!(begun.elapsed() >= FAREWELL);
        // A writer does not wait for a peer that never reads either.
        let error = std::iter::repeat_with(|| link.writer.write_all(&[0; 1 << 20]))
            .take(64)
            .find_map(Result::err);
        assert_eq!(
            error.expect("the windows are smaller").kind(),
            ErrorKind::ConnectionAborted
        );
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
        let error = std::iter::repeat_with(|| accepted.writer.write_all(&[0; 1 << 20]))
            .find_map(Result::err)
            .unwrap();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
            ),
            "{error:?}"
        );
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
            let AcceptedClient {
                mut reader,
                hang_up,
                ..
            } = accepted;
            let far = scope.spawn(move || {
                blocked.send(()).unwrap();
                reader.read(&mut [0; 8])
            });
            is_blocked.recv().unwrap();
            hang_up.now("revoked");
            assert_eq!(
                far.join().unwrap().unwrap_err().kind(),
                ErrorKind::ConnectionReset
            );
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
    assert!(
        link.reader.read(&mut [0; 8]).is_err(),
        "an unannounced end is an error"
    );
    drop(accepted);
}

#[test]
fn draining_server_keeps_its_sessions() {
    each(|kind| {
        let world = World::new();
        let (mut link, mut accepted) = world.meet(kind, patient());
        world.listener.drain();
        let dial = Dial {
            limit: Duration::from_millis(200),
            ..world.dial(patient())
        };
        assert!(dial_over(kind, world.address(), &dial).is_err());
        link.writer.write_all(b"still here").unwrap();
        let mut got = [0; 10];
        accepted.reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still here");
    });
}

/// Sends enough data that some is in flight while `meanwhile` changes the network, and compares what arrives.
fn send(link: Link, accepted: AcceptedClient, up: bool, meanwhile: impl FnOnce() + Send) {
    let sent = bytes(24 << 20);
    let (
        Link {
            mut reader,
            mut writer,
            ..
        },
        AcceptedClient {
            reader: mut far_reader,
            writer: mut far_writer,
            ..
        },
    ) = (link, accepted);
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

const UNDER_WAY_BYTES: u64 = 2 << 20;

#[test]
fn session_survives_a_client_address_change() {
    for up in [true, false] {
        let world = World::new();
        let relay = Relay::to(world.address());
        let (link, accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
        let begun = Since::now();
        send(link, accepted, up, || {
            assert!(reached(LONG, || relay.bytes() > UNDER_WAY_BYTES));
            relay.roam();
        });
        assert!(
            relay.clients() > 1 && begun.elapsed() < LONG,
            "{:?}",
            begun.elapsed()
        );
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
            assert!(reached(LONG, || relay.bytes() > UNDER_WAY_BYTES));
            relay.shut(true);
            let before = relay.clients();
            let has_retried = reached(LONG, || relay.clients() >= before + ASKS);
            *begun.lock() = Since::now();
            relay.shut(false);
            assert!(
                has_retried,
                "up: {up}; {} attempts",
                relay.clients() - before
            );
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
    let Some(mib) = std::env::var("SPARSYNC_BENCH_MIB")
        .ok()
        .and_then(|value| value.parse::<usize>().ok())
    else {
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
            let _ = writeln!(
                io::stderr(),
                "{kind}, {}: {rate:.0} MB/s",
                if up { "up" } else { "down" }
            );
        }
    });
}
