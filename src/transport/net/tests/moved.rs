//! Sessions that begin over QUIC and move to TLS, and those that must not.

use super::race::race_with;
use super::*;
use crate::fs::sys::TcpStanding;
use crate::transport::net::bridge::{Engine, wait};
use crate::transport::net::limits::LANE_LOST_ONE_IN;
use crate::transport::net::quic::{self, BEGINS};
use crate::transport::net::tcp_liveness::LivenessSigns;
use crate::transport::net::tls as over_tls;
use crate::transport::net::tls_upgrade::{self, Progress, UpgradeTerms};
use crate::trust::tls::{ALPN, ALPN_LANES, client_config_for};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;

/// Moves on any path, after this many bytes.
fn after(after_bytes: u64) -> UpgradeTerms {
    UpgradeTerms {
        after_bytes,
        rtt_max: Duration::MAX,
        lost_one_in: 0,
        limit: LONG,
    }
}

/// A server that also moves on any path, for clients with any key.
pub(super) fn open_world() -> World {
    World::that(
        Identity::passing().unwrap(),
        Arc::new(|_| true),
        &Limits {
            lane_lost_one_in: 0,
            ..Limits::default()
        },
    )
}

/// Both ends of a session that can move; the server has sent one byte, which the client has not read yet.
struct Met {
    link: Link,
    near: Arc<Progress>,
    accepted: AcceptedClient,
}

impl Met {
    fn at(world: &World, address: SocketAddr, patience: Patience, terms: UpgradeTerms) -> Met {
        Met::by(
            world,
            address,
            Dial {
                lanes: terms,
                ..world.dial(patience)
            },
        )
    }

    fn by(world: &World, address: SocketAddr, dial: Dial) -> Met {
        let dial = Dial {
            kind_step: LONG,
            ..dial
        };
        std::thread::scope(|scope| {
            let racing = scope.spawn(|| race(&[address], &NetTransport::BOTH, &dial));
            let mut accepted = world
                .listener
                .accept(LONG)
                .unwrap()
                .expect("a client connects");
            accepted.writer.write_all(b"!").unwrap();
            let won = racing.join().unwrap().ok().unwrap();
            Met {
                link: won.link,
                near: won.lanes.expect("the session may move"),
                accepted,
            }
        })
    }

    fn that(world: &World, terms: UpgradeTerms) -> Met {
        Met::at(world, world.address(), patient(), terms)
    }

    /// Returns a session that uses TLS in both directions. The byte was read.
    fn moved(world: &World, patience: Patience) -> Met {
        let mut met = Met::at(world, world.address(), patience, after(1));
        let Met {
            link,
            near,
            accepted,
        } = &mut met;
        link.reader.read_exact(&mut [0]).unwrap();
        await_move(near, &accepted.hang_up);
        for (from, to) in [
            (
                &mut link.writer as &mut dyn Write,
                &mut accepted.reader as &mut dyn Read,
            ),
            (&mut accepted.writer, &mut link.reader),
        ] {
            from.write_all(b"hello").unwrap();
            to.read_exact(&mut [0; 5]).unwrap();
        }
        met
    }
}

/// Waits until both sides can switch to TLS.
fn await_move(near: &Progress, far: &crate::transport::net::HangUp) {
    assert!(
        reached(LONG, || near.moved_after().is_some()
            && far.moved_after().is_some()),
        "it is not moved"
    );
}

/// Writes in pieces of various lengths, and calls `wait` at byte `wait_at`.
fn write(to: &mut dyn Write, bytes: &[u8], wait_at: usize, wait: &dyn Fn()) {
    let (mut done, mut has_waited) = (0, false);
    while done < bytes.len() {
        if !has_waited && done >= wait_at {
            wait();
            has_waited = true;
        }
        let until = if has_waited {
            bytes.len()
        } else {
            bytes.len().min(wait_at)
        };
        let len = (done * 7919 % 300_007 + 1).min(until - done);
        to.write_all(&bytes[done..done + len]).unwrap();
        done += len;
    }
}

#[test]
fn every_byte_arrives_once_and_in_order_whenever_moved() {
    let world = open_world();
    let (up, down) = (bytes(14 << 20), bytes((11 << 20) + 7));
    for (after_bytes, wait_up, wait_down) in [
        (1, 0, 0),
        (1, 1, 500_000),
        (4_000, 6 << 20, 4_001),
        (70_000, 70_000, 9 << 20),
        (1 << 20, 1 << 20, 1 << 20),
        (3 << 20, 14 << 20, 2 << 20),
        (9 << 20, 10 << 20, 11 << 20),
    ] {
        let Met {
            link,
            near,
            accepted,
        } = Met::that(&world, after(after_bytes));
        let AcceptedClient {
            mut reader,
            mut writer,
            hang_up,
            ..
        } = accepted;
        let Link {
            reader: mut near_reader,
            writer: mut near_writer,
            ..
        } = link;
        let wait = || await_move(&near, &hang_up);
        std::thread::scope(|scope| {
            let (up, down, wait) = (&up, &down, &wait);
            scope.spawn(move || write(&mut writer, down, wait_down, wait));
            scope.spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                assert!(
                    got == *up,
                    "the server did not receive what the client sent"
                );
            });
            scope.spawn(move || write(&mut near_writer, up, wait_up, wait));
            let mut got = Vec::new();
            near_reader.read_to_end(&mut got).unwrap();
            assert_eq!(got[0], b'!');
            assert!(
                got[1..] == *down,
                "the client did not receive what the server sent"
            );
        });
        let (of_near, all) = (
            near.moved_after().unwrap(),
            (up.len() + down.len() + 1) as u64,
        );
        assert_eq!(
            hang_up.moved_after(),
            Some(of_near),
            "both ends count the same bytes over QUIC"
        );
        assert!(
            (after_bytes.min(all)..=all).contains(&of_near),
            "{of_near} of {all}"
        );
    }
}

#[test]
fn end_of_stream_is_seen_before_during_and_after_the_move() {
    let world = open_world();
    // Ends before the move, once it is possible but nothing more is sent, and after it; in each direction.
    for (up, down) in (0..3).flat_map(|up| (0..3).map(move |down| (up, down))) {
        let Met {
            link,
            near,
            accepted,
        } = Met::that(&world, after(1));
        let AcceptedClient {
            mut reader,
            mut writer,
            hang_up,
            ..
        } = accepted;
        let Link {
            reader: mut near_reader,
            writer: mut near_writer,
            ..
        } = link;
        let sent = bytes(300_000);
        let wait = || await_move(&near, &hang_up);
        let send_bytes = |to: &mut dyn Write, when: usize| {
            to.write_all(&sent[..200_000]).unwrap();
            if when > 0 {
                wait();
            }
            if when > 1 {
                to.write_all(&sent[200_000..]).unwrap();
            }
        };
        let len = |when| if when > 1 { 300_000 } else { 200_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_bytes(&mut near_writer, up);
                drop(near_writer);
            });
            scope.spawn(|| {
                send_bytes(&mut writer, down);
                drop(writer);
            });
            scope.spawn(|| {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                assert!(
                    got == sent[..len(up)],
                    "{up} {down}: {} bytes arrived",
                    got.len()
                );
                assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
            });
            let mut got = Vec::new();
            near_reader.read_to_end(&mut got).unwrap();
            assert!(
                got[1..] == sent[..len(down)],
                "{up} {down}: {} bytes arrived",
                got.len()
            );
            assert_eq!(near_reader.read(&mut [0; 8]).unwrap(), 0);
        });
    }
}

#[test]
fn last_bytes_arrive_if_a_moved_sender_closes_at_once() {
    let world = open_world();
    let sent = bytes(5 << 20);
    for round in 0..6 {
        let Met {
            mut link,
            near,
            mut accepted,
        } = Met::that(&world, after(1 << 20));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The data sent over QUIC is still queued while the rest is sent over TLS.
                write(
                    &mut link.writer,
                    &sent,
                    (2 << 20) + round * 300_000,
                    &|| await_move(&near, &accepted.hang_up),
                );
                drop(link);
            });
            assert!(reached(LONG, || near.moved_after().is_some()));
            let mut got = Vec::new();
            accepted.reader.read_to_end(&mut got).unwrap();
            assert!(got == sent, "{} bytes arrived", got.len());
        });
    }
}

#[test]
fn silent_or_gone_peer_is_detected_after_the_move() {
    let world = open_world();
    // Longer than a move takes on a busy machine.
    let patience = Patience {
        idle: Some(Duration::from_secs(4)),
        ..patient()
    };
    let Met {
        mut link, accepted, ..
    } = Met::moved(&world, patience);
    assert_eq!(
        link.reader.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    drop(accepted);
    let mut met = Met::moved(&world, patient());
    met.link.parting.begin();
    assert_eq!(
        met.link.reader.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::ConnectionAborted
    );
    let Met {
        link, mut accepted, ..
    } = Met::moved(&world, patient());
    drop(link);
    let error = std::iter::repeat_with(|| accepted.writer.write_all(&[0; 1 << 20]))
        .take(64)
        .find_map(Result::err);
    assert!(matches!(
        error.unwrap().kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    ));
}

#[test]
fn hang_up_ends_a_moved_session_with_the_reason() {
    let world = open_world();
    let says_why = || {
        let Met {
            mut link,
            accepted,
            near,
        } = Met::moved(&world, patient());
        let AcceptedClient {
            mut reader,
            mut writer,
            hang_up,
            ..
        } = accepted;
        std::thread::scope(|scope| {
            let far = scope.spawn(move || reader.read(&mut [0; 8]));
            hang_up.now("revoked");
            assert_eq!(
                far.join().unwrap().unwrap_err().kind(),
                ErrorKind::ConnectionReset
            );
        });
        assert!(writer.write_all(&[0; 8]).is_err());
        let error = link.reader.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(near.moved_after().is_some());
        error.to_string().contains("revoked")
    };
    // The reason arrives over QUIC, and the client does not wait long for it.
    assert!(at_least_once(says_why));
    // A session that was closed before does not move any more.
    let Met {
        mut link,
        near,
        accepted,
    } = Met::that(&world, after(1));
    accepted.hang_up.now("revoked");
    let mut all = Vec::new();
    assert!(link.reader.read_to_end(&mut all).is_err());
    assert_eq!(
        (near.moved_after(), accepted.hang_up.moved_after()),
        (None, None)
    );
}

/// Over TCP alone, the server would not notice before the system gives up.
#[test]
fn client_with_a_new_address_hangs_up_over_quic() {
    static HAS_MOVED: AtomicBool = AtomicBool::new(false);
    let standing = |_: BorrowedFd<'_>| {
        Ok(TcpStanding {
            repeats: 1,
            silent: LONG,
            ..TcpStanding::default()
        })
    };
    let signs = LivenessSigns {
        standing,
        is_elsewhere: |_, _| HAS_MOVED.load(Ordering::SeqCst),
        look: Duration::from_millis(5),
    };
    let world = open_world();
    let relay = relay_of_both(&world, Ends::Lost);
    let dial = Dial {
        lanes: after(1),
        signs,
        ..world.dial(patient())
    };
    let Met {
        mut link,
        near,
        mut accepted,
    } = Met::by(&world, relay.address, dial);
    link.reader.read_exact(&mut [0]).unwrap();
    await_move(&near, &accepted.hang_up);
    link.writer.write_all(b"hello").unwrap();
    accepted.reader.read_exact(&mut [0; 5]).unwrap();
    HAS_MOVED.store(true, Ordering::SeqCst);
    for end in [
        link.reader.read(&mut [0; 8]),
        accepted.reader.read(&mut [0; 8]),
    ] {
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert!(accepted.hang_up.is_over());
}

#[test]
fn moved_session_survives_a_liveness_query() {
    static HAS_MOVED: AtomicBool = AtomicBool::new(false);
    static IS_KNOWN: AtomicBool = AtomicBool::new(false);
    let look = Duration::from_millis(5);
    let doubts = |_: BorrowedFd<'_>| {
        let in_doubt = HAS_MOVED.load(Ordering::SeqCst) && !IS_KNOWN.load(Ordering::SeqCst);
        let silent = if in_doubt { LONG } else { Duration::ZERO };
        Ok(TcpStanding {
            repeats: 9,
            silent,
            has_unacknowledged: true,
            ..TcpStanding::default()
        })
    };
    // The server only checks the state of connections that it knows.
    let knows = |_: BorrowedFd<'_>| {
        IS_KNOWN.store(true, Ordering::SeqCst);
        Ok(TcpStanding::default())
    };
    let signs = |standing| LivenessSigns {
        standing,
        is_elsewhere: |_, _| false,
        look,
    };
    let limits = Limits {
        lane_lost_one_in: 0,
        signs: signs(knows),
        ..Limits::default()
    };
    let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
    let dial = Dial {
        lanes: after(1),
        signs: signs(doubts),
        ..world.dial(patient())
    };
    let Met {
        mut link,
        near,
        mut accepted,
    } = Met::by(&world, world.address(), dial);
    link.reader.read_exact(&mut [0]).unwrap();
    await_move(&near, &accepted.hang_up);
    HAS_MOVED.store(true, Ordering::SeqCst);
    assert!(
        reached(LONG, || IS_KNOWN.load(Ordering::SeqCst)),
        "the server does not know the session"
    );
    link.writer.write_all(b"hello").unwrap();
    accepted.reader.read_exact(&mut [0; 5]).unwrap();
    accepted.writer.write_all(b"hello").unwrap();
    link.reader.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn moved_session_takes_one_slot() {
    let near = Identity::passing().unwrap();
    let world = World::that(
        near,
        Arc::new(|_| true),
        &Limits {
            sessions: 1,
            lane_lost_one_in: 0,
            ..Limits::default()
        },
    );
    let is_let_in = || {
        let dial = world.dial(patient());
        let dialled = std::thread::scope(|scope| {
            let near = scope.spawn(|| dial_over(NetTransport::Quic, world.address(), &dial));
            while !near.is_finished() {
                if let Some(mut accepted) = world.listener.accept(Duration::from_millis(5)).unwrap()
                {
                    let _ = accepted.writer.write_all(b"!");
                }
            }
            near.join().unwrap()
        });
        dialled.is_ok()
    };
    let met = Met::moved(&world, patient());
    assert!(!is_let_in(), "the session holds the only slot");
    drop(met);
    assert!(reached(LONG, is_let_in), "the slot is freed");
}

/// Whether a TCP relay forwards the end of a stream.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Ends {
    Forwarded,
    Lost,
}

/// Returns a relay with one port that forwards both UDP and TCP to the server.
pub(super) fn relay_of_both(world: &World, ends: Ends) -> Relay {
    loop {
        let relay = Relay::to(world.address());
        let Ok(tcp) = TcpListener::bind(relay.address) else {
            continue;
        };
        let far = world.address();
        std::thread::spawn(move || {
            for near in tcp.incoming().flatten() {
                let far = TcpStream::connect(far).unwrap();
                let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    if ends == Ends::Forwarded {
                        let _ = to.shutdown(std::net::Shutdown::Write);
                    }
                });
                std::thread::spawn(move || {
                    let _ = io::copy(&mut &far, &mut &near);
                    let _ = near.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        return relay;
    }
}

#[test]
fn session_stays_on_quic_if_datagrams_are_lost() {
    // Each side checks the losses of its own datagrams. The case without checks shows that the session would move
    // otherwise.
    for (client_minds, server_minds, up) in [
        (true, false, true),
        (false, true, false),
        (false, false, true),
    ] {
        let one_in = |minds| if minds { LANE_LOST_ONE_IN } else { 0 };
        let limits = Limits {
            lane_lost_one_in: one_in(server_minds),
            ..Limits::default()
        };
        let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
        let relay = relay_of_both(&world, Ends::Forwarded);
        let terms = UpgradeTerms {
            lost_one_in: one_in(client_minds),
            ..after(2 << 20)
        };
        let Met {
            link,
            near,
            accepted,
        } = Met::at(&world, relay.address, patient(), terms);
        let far = accepted.hang_up.clone();
        relay.lose_one_in(10);
        let may_move = !client_minds && !server_minds;
        send(link, accepted, up, || {
            if may_move {
                await_move(&near, &far);
            }
        });
        assert_eq!(
            [near.moved_after(), far.moved_after()].map(|moved| moved.is_some()),
            [may_move; 2],
            "up: {up}"
        );
    }
}

#[test]
fn session_stays_on_quic_on_a_long_path() {
    let world = open_world();
    let Met {
        link,
        near,
        accepted,
    } = Met::that(
        &world,
        UpgradeTerms {
            rtt_max: Duration::ZERO,
            ..after(1)
        },
    );
    send(link, accepted, true, || {});
    assert_eq!(near.moved_after(), None);
}

#[test]
fn session_stays_on_quic_if_tcp_is_blocked() {
    let world = open_world();
    for is_mute in [false, true] {
        let (relay, tcp) = loop {
            let relay = Relay::to(world.address());
            if let Ok(tcp) = TcpListener::bind(relay.address) {
                break (relay, Some(tcp).filter(|_| is_mute));
            }
        };
        let Met {
            link,
            near,
            accepted,
        } = Met::at(&world, relay.address, patient(), after(1));
        let far = accepted.hang_up.clone();
        send(link, accepted, true, || {});
        assert_eq!((near.moved_after(), far.moved_after()), (None, None));
        drop(tcp);
    }
}

#[test]
fn draining_server_keeps_sessions_but_moves_none() {
    let world = open_world();
    let Met {
        link,
        near,
        accepted,
    } = Met::that(&world, after(1 << 20));
    world.listener.drain();
    send(link, accepted, true, || {});
    assert_eq!(near.moved_after(), None);
}

#[test]
fn peers_without_the_upgrade_feature_stay_on_quic() {
    let world = open_world();
    let (near, accepted) = world.meet(NetTransport::Quic, patient());
    assert!(
        matches!(accepted.hang_up, crate::transport::net::HangUp::Quic(_)),
        "the client did not request the upgrade"
    );
    drop((near, accepted));
    // A server that only supports the basic protocol.
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
    let address = listener.addresses()[0];
    let old = World {
        listener,
        near: world.near,
        far: world.far,
    };
    let won = race_with(
        &old,
        &[address],
        &NetTransport::BOTH,
        &Dial {
            lanes: after(1),
            ..old.dial(patient())
        },
    )
    .ok()
    .unwrap();
    assert!(won.lanes.is_none());
}

/// A QUIC connection that can move and does not, for tests that request the move themselves.
struct QuicSession {
    engine: Engine,
    conversation: quic::Conversation,
    accepted: AcceptedClient,
}

impl QuicSession {
    fn of(world: &World) -> QuicSession {
        let engine = Engine::start("test").unwrap();
        let (config, address) = (lanes_config(&world.near, world), world.address());
        let dialling = engine.handle().spawn(async move {
            let endpoint = quic::client_endpoint(quic::client_socket(address).unwrap()).unwrap();
            let connection = quic::connect(&endpoint, address, config).await.unwrap();
            quic::begin(connection, &BEGINS).await.unwrap()
        });
        let mut accepted = world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("a client connects");
        accepted.writer.write_all(b"!").unwrap();
        let conversation = wait(dialling, || Ok(())).unwrap().unwrap();
        QuicSession {
            engine,
            conversation,
            accepted,
        }
    }

    fn token(&self) -> [u8; 32] {
        tls_upgrade::token(&self.conversation.connection).unwrap()
    }

    /// Returns the server's answer to a request to move the session with this token.
    fn query(&self, world: &World, who: &Identity, token: [u8; 32]) -> io::Result<[u8; 1]> {
        let (config, address) = (lanes_config(who, world), world.address());
        let running = self.engine.handle().spawn(async move {
            let mut tunnel = over_tls::connect(address, config)
                .await
                .map_err(io::Error::from)?;
            tunnel.send_short(&token).await?;
            let reply = tunnel.receive_exact().await?;
            tunnel.send_short(&[1]).await?;
            Ok(reply)
        });
        wait(running, || Ok(())).unwrap().unwrap()
    }
}

fn lanes_config(who: &Identity, world: &World) -> Arc<rustls::ClientConfig> {
    client_config_for(&tls::client_config(who, world.far.pin), &[ALPN_LANES])
}

#[test]
fn session_is_moved_only_by_its_owner() {
    let world = open_world();
    let thief = Identity::passing().unwrap();
    let session = QuicSession::of(&world);
    let (token, other) = (session.token(), QuicSession::of(&world));
    assert_ne!(token, other.token());
    assert!(
        session.query(&world, &world.near, [7; 32]).is_err(),
        "no session has this token"
    );
    assert!(
        session.query(&world, &thief, token).is_err(),
        "another client's key"
    );
    assert_eq!(session.accepted.hang_up.moved_after(), None);
    assert_eq!(session.query(&world, &world.near, token).unwrap(), [1]);
    assert!(reached(LONG, || session
        .accepted
        .hang_up
        .moved_after()
        .is_some()));
    assert!(
        session.query(&world, &world.near, token).is_err(),
        "a token is valid once"
    );
    assert_eq!(
        other.accepted.hang_up.moved_after(),
        None,
        "other sessions are not affected"
    );
    // A session that has ended cannot be found by its token.
    let token = other.token();
    other.conversation.connection.close(0u32.into(), b"");
    assert!(reached(LONG, || session
        .query(&world, &world.near, token)
        .is_err()));
    assert!(
        world
            .listener
            .accept(Duration::from_millis(50))
            .unwrap()
            .is_none(),
        "no other client was admitted"
    );
}

#[test]
fn contradictory_switch_offsets_reset_the_session() {
    let world = open_world();
    // The client sends more over QUIC than announced, or resets the stream before it has sent that much.
    for (left_at, breaks_off) in [(9, false), (11, true)] {
        let QuicSession {
            engine,
            conversation,
            mut accepted,
        } = QuicSession::of(&world);
        let quic::Conversation {
            connection,
            mut send,
            ..
        } = conversation;
        let speaking = engine.handle().spawn(async move {
            send.write_all(&[b'x'; 10]).await.unwrap();
            let mut word = connection.open_uni().await.unwrap();
            word.write_all(&u64::to_le_bytes(left_at)).await.unwrap();
            word.finish().unwrap();
            if breaks_off {
                send.reset(0u32.into()).unwrap();
            }
            (connection, send)
        });
        let kept = wait(speaking, || Ok(())).unwrap().unwrap();
        let error = accepted.reader.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(
            breaks_off || error.to_string().contains("more over QUIC than announced"),
            "{error}"
        );
        drop(kept);
    }
}
