//! TLS sessions whose connection is dead: a fresh one detects it, and both sides learn of it.

use super::moved::{Ends, open_world, relay_of_both};
use super::*;
use crate::fs::sys::TcpStanding;
use crate::transport::net::bridge::{Engine, wait};
use crate::transport::net::quic::BEGINS;
use crate::transport::net::tcp_liveness::{ASKS, LivenessSigns};
use crate::transport::net::tls as over_tls;
use crate::trust::tls::{ALPN, ALPN_NAMED, client_config_for};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;

/// TCP gets no answer and waits long before it retransmits.
fn hopeless(_: BorrowedFd<'_>) -> io::Result<TcpStanding> {
    Ok(TcpStanding {
        repeats_after: LONG,
        ..doubtful()
    })
}

/// TCP gets no answer but retransmits at once.
fn doubtful() -> TcpStanding {
    TcpStanding {
        repeats: 9,
        silent: LONG,
        has_unacknowledged: true,
        ..TcpStanding::default()
    }
}

const SIGNS: LivenessSigns = LivenessSigns {
    standing: |_| Ok(TcpStanding::default()),
    is_elsewhere: |_, _| false,
    look: Duration::from_millis(5),
};

/// Returns a TLS session whose state each side sees as given. The relay does not forward the end of a stream.
fn meet(near: LivenessSigns, far: LivenessSigns) -> (World, Link, AcceptedClient, Relay) {
    let limits = Limits {
        signs: far,
        ..Limits::default()
    };
    let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
    let relay = relay_of_both(&world, Ends::Lost);
    let dial = Dial {
        signs: near,
        ..world.dial(Patience {
            idle: Some(LONG),
            ..patient()
        })
    };
    let (link, accepted) = world.meet_by(relay.address, NetTransport::Tls, dial);
    (world, link, accepted, relay)
}

/// Waits until both sides have learned that the session is over, and no other session has begun.
fn await_end(world: &World, mut link: Link, mut accepted: AcceptedClient) {
    link.reader.read_exact(&mut [0]).unwrap();
    assert_eq!(
        link.reader.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert!(accepted.hang_up.is_over(), "the server knew before");
    assert_eq!(
        accepted.reader.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert!(
        world.listener.accept(Duration::ZERO).unwrap().is_none(),
        "a query begins no session"
    );
}

#[test]
fn client_that_gets_no_answer_ends_the_session_at_both_ends() {
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    let late = |fd: BorrowedFd<'_>| {
        if IS_LATE.load(Ordering::SeqCst) {
            hopeless(fd)
        } else {
            (SIGNS.standing)(fd)
        }
    };
    let (world, link, accepted, _relay) = meet(
        LivenessSigns {
            standing: late,
            ..SIGNS
        },
        SIGNS,
    );
    IS_LATE.store(true, Ordering::SeqCst);
    await_end(&world, link, accepted);
}

#[test]
fn client_with_a_changed_path_does_not_wait_for_tcp() {
    let once = |_: BorrowedFd<'_>| {
        Ok(TcpStanding {
            repeats: 1,
            ..doubtful()
        })
    };
    let (world, link, accepted, _relay) = meet(
        LivenessSigns {
            standing: once,
            is_elsewhere: |_, _| true,
            ..SIGNS
        },
        SIGNS,
    );
    await_end(&world, link, accepted);
}

#[test]
fn server_reports_a_stalled_connection_when_queried() {
    let doubts = |_: BorrowedFd<'_>| Ok(doubtful());
    let (world, link, accepted, _relay) = meet(
        LivenessSigns {
            standing: doubts,
            ..SIGNS
        },
        LivenessSigns {
            standing: hopeless,
            ..SIGNS
        },
    );
    await_end(&world, link, accepted);
}

#[test]
fn session_continues_if_tcp_recovers() {
    static LOOKS: AtomicU32 = AtomicU32::new(0);
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (near, far) = (
        |_: BorrowedFd<'_>| {
            LOOKS.fetch_add(1, Ordering::SeqCst);
            Ok(if ASKED.load(Ordering::SeqCst) < 3 {
                doubtful()
            } else {
                TcpStanding::default()
            })
        },
        |_: BorrowedFd<'_>| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Ok(doubtful())
        },
    );
    let (_world, mut link, mut accepted, _relay) = meet(
        LivenessSigns {
            standing: near,
            ..SIGNS
        },
        LivenessSigns {
            standing: far,
            ..SIGNS
        },
    );
    assert!(
        reached(LONG, || ASKED.load(Ordering::SeqCst) >= 3),
        "the server is queried"
    );
    let looks = LOOKS.load(Ordering::SeqCst);
    assert!(reached(LONG, || LOOKS.load(Ordering::SeqCst) > looks + 3));
    assert_eq!(
        ASKED.load(Ordering::SeqCst),
        3,
        "the connection is no longer in doubt"
    );
    link.writer.write_all(b"hello").unwrap();
    accepted.reader.read_exact(&mut [0; 5]).unwrap();
    accepted.writer.write_all(b"hello").unwrap();
    link.reader.read_exact(&mut [0; 6]).unwrap();
}

/// A TLS session that the test begins by hand.
struct ByHand {
    engine: Engine,
    accepted: AcceptedClient,
    _tunnel: over_tls::Tunnel,
}

impl ByHand {
    fn with_first_bytes(world: &World, alpn: &[u8], words: &[u8]) -> ByHand {
        let engine = Engine::start("test").unwrap();
        let (config, address) = (config(&world.near, world, alpn), world.address());
        let words = words.to_vec();
        let dialling = engine.handle().spawn(async move {
            let mut tunnel = over_tls::connect(address, config).await.unwrap();
            tunnel.send_short(&words).await.unwrap();
            tunnel
        });
        let accepted = world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("a client connects");
        ByHand {
            engine,
            accepted,
            _tunnel: wait(dialling, || Ok(())).unwrap().unwrap(),
        }
    }

    /// Returns the server's answers to a query of this name and to each byte that follows it.
    fn query(&self, world: &World, who: &Identity, name: [u8; 32], then: &[u8]) -> Vec<u8> {
        let (config, address) = (config(who, world, ALPN_NAMED), world.address());
        let then = then.to_vec();
        let running = self.engine.handle().spawn(async move {
            let mut tunnel = over_tls::connect(address, config).await.unwrap();
            tunnel
                .send_short(&[&ASKS[..], &name].concat())
                .await
                .unwrap();
            let mut answers = Vec::new();
            for byte in then.into_iter().map(Some).chain([None]) {
                let Ok([answer]) = tunnel.receive_exact().await else {
                    break;
                };
                answers.push(answer);
                if let Some(byte) = byte {
                    tunnel.send_short(&[byte]).await.unwrap();
                }
            }
            answers
        });
        wait(running, || Ok(())).unwrap().unwrap()
    }
}

fn config(who: &Identity, world: &World, alpn: &[u8]) -> Arc<rustls::ClientConfig> {
    client_config_for(&tls::client_config(who, world.far.pin), &[alpn])
}

#[test]
fn session_is_ended_only_by_its_owner() {
    let world = open_world();
    let (name, other) = ([7; 32], [8; 32]);
    let mut met =
        ByHand::with_first_bytes(&world, ALPN_NAMED, &[&BEGINS[..], &name, b"hello"].concat());
    let thief = Identity::passing().unwrap();
    assert_eq!(
        met.query(&world, &thief, name, &[1]),
        [1],
        "this key has no session"
    );
    assert_eq!(
        met.query(&world, &world.near, other, &[1]),
        [1],
        "no session has this name"
    );
    assert_eq!(
        met.query(&world, &world.near, name, &[0, 0, 2]),
        [0, 0, 0],
        "the session continues, and 2 has no meaning"
    );
    met.accepted.reader.read_exact(&mut [0; 5]).unwrap();
    assert!(!met.accepted.hang_up.is_over());
    assert_eq!(met.query(&world, &world.near, name, &[1]), [0, 1]);
    assert_eq!(
        met.accepted.reader.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert_eq!(
        met.query(&world, &world.near, name, &[]),
        [1],
        "the session has ended"
    );
}

#[test]
fn session_without_a_name_works() {
    // A client without a name.
    let world = open_world();
    let mut met = ByHand::with_first_bytes(&world, ALPN, &[&BEGINS[..], b"hello"].concat());
    let mut got = [0; 5];
    met.accepted.reader.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    // A server that does not support names: the connection stays, whatever its state.
    let mut config = (*tls::server_config(&world.far, Arc::new(|_| true))).clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let far = Identity::passing().unwrap();
    let listener = listen(
        &[HERE.into()],
        Arc::new(config),
        lasting(&far),
        &Limits::default(),
        &Patience::default(),
    )
    .unwrap();
    let old = World {
        listener,
        near: world.near,
        far: world.far,
    };
    let dial = Dial {
        signs: LivenessSigns {
            standing: hopeless,
            ..SIGNS
        },
        ..old.dial(patient())
    };
    let (mut link, mut accepted) = old.meet_by(old.address(), NetTransport::Tls, dial);
    link.writer.write_all(b"hello").unwrap();
    accepted.reader.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    drop(link);
}
