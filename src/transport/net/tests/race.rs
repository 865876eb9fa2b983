//! Several connections to one server, of which one becomes the session, and its first bytes.

use super::*;

/// Runs a race while the server sends a byte to each client.
pub(super) fn race_with(
    world: &World,
    peers: &[SocketAddr],
    transports: &[NetTransport],
    dial: &Dial,
) -> Result<DialWinner, Trouble> {
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(peers, transports, dial));
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
    let closed = std::net::UdpSocket::bind(HERE)
        .unwrap()
        .local_addr()
        .unwrap();
    let dial = Dial {
        kind_step: LONG,
        ..world.dial(patient())
    };
    let won = race_with(
        &world,
        &[closed, world.address()],
        &NetTransport::BOTH,
        &dial,
    )
    .ok()
    .unwrap();
    assert_eq!(
        (won.kind, won.address),
        (NetTransport::Quic, world.address())
    );
    let mut link = won.link;
    link.reader.read_exact(&mut [0]).unwrap();
}

#[test]
fn first_transport_of_a_race_has_a_head_start() {
    let world = World::new();
    for transports in [
        [NetTransport::Tls, NetTransport::Quic],
        [NetTransport::Quic, NetTransport::Tls],
    ] {
        let dial = Dial {
            kind_step: LONG,
            ..world.dial(patient())
        };
        let won = race_with(&world, &[world.address()], &transports, &dial)
            .ok()
            .unwrap();
        assert_eq!(won.kind, transports[0]);
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
    let won = race_with(
        &world,
        &[address],
        &NetTransport::BOTH,
        &world.dial(patient()),
    )
    .ok()
    .unwrap();
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
    let dial = Dial {
        limit: 2 * KIND_STEP,
        ..world.dial(patient())
    };
    let lost = race(&[address], &NetTransport::BOTH, &dial).err().unwrap();
    assert_eq!(
        lost,
        Trouble::Refused,
        "TCP was refused, and nothing answered over QUIC"
    );
    // A wrong key at one address is more important than silence at another.
    let unknown = Identity::passing().unwrap();
    let limit = Duration::from_secs(3);
    let dial = Dial {
        tls: tls::client_config(&world.near, unknown.pin),
        limit,
        ..dial
    };
    let lost = race_with(
        &world,
        &[address, world.address()],
        &NetTransport::BOTH,
        &dial,
    )
    .err()
    .unwrap();
    assert!(matches!(lost, Trouble::WrongKey(_)), "{lost:?}");
    assert!(race(&[], &NetTransport::BOTH, &dial).is_err());
}

/// Accepts clients until one uses this transport.
fn accepted_over(world: &World, kind: NetTransport) -> AcceptedClient {
    std::iter::repeat_with(|| {
        world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("a client connects")
    })
    .find(|accepted| accepted.kind == kind)
    .unwrap()
}

/// Checks that the server notices that this client has left; otherwise it would wait for [`Limits::idle`].
fn expect_end(mut accepted: AcceptedClient) {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || tx.send(accepted.reader.read(&mut [0]).is_err()));
    assert_eq!(rx.recv_timeout(LONG), Ok(true));
}

#[test]
fn only_one_racing_connection_starts_a_session() {
    let world = World::new();
    let dial = Dial {
        first_words: words(b"first".to_vec()),
        ..world.dial(patient())
    };
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(&[world.address()], &NetTransport::BOTH, &dial));
        let mut first = world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("a client connects");
        // By now the other attempt has completed its handshake too.
        assert!(
            world.listener.accept(2 * KIND_STEP).unwrap().is_none(),
            "only one connection sends"
        );
        first.writer.write_all(b"!").unwrap();
        assert_eq!(racing.join().unwrap().ok().unwrap().kind, first.kind);
        assert!(
            world
                .listener
                .accept(Duration::from_millis(50))
                .unwrap()
                .is_none(),
            "the other connection is closed"
        );
    });
}

#[test]
fn next_connection_takes_over_if_the_first_is_rejected() {
    let world = World::new();
    let dial = Dial {
        first_words: words(b"first".to_vec()),
        ..world.dial(patient())
    };
    std::thread::scope(|scope| {
        let racing = scope.spawn(|| race(&[world.address()], &NetTransport::BOTH, &dial));
        let first = world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("a client connects");
        first.hang_up.now("not you");
        let mut next = world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("another client connects");
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
        let first = world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("a client connects");
        // Like a network that blocks QUIC once it has recognized it.
        relay.shut(true);
        let mut next = match first.kind {
            NetTransport::Quic => world
                .listener
                .accept(LONG)
                .unwrap()
                .expect("the other connection takes over"),
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
        let mut accepted = world
            .listener
            .accept(LONG)
            .unwrap()
            .expect("a client connects");
        assert!(!dial.permit.take(), "the server may still answer");
        assert!(
            reached(LONG, || dial.permit.take()),
            "the floor is not released"
        );
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
        assert_eq!(
            dial_over(kind, world.address(), &dial).err(),
            Some(Trouble::Stopped)
        );
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
fn first_words_precede_the_other_bytes() {
    each(|kind| {
        for len in [0, 1, FIRST_WORDS_MAX_BYTES] {
            let world = World::new();
            let first_words = bytes(len);
            let dial = Dial {
                first_words: words(first_words.clone()),
                ..world.dial(patient())
            };
            std::thread::scope(|scope| {
                let near = scope.spawn(|| dial_over(kind, world.address(), &dial));
                let mut accepted = world
                    .listener
                    .accept(LONG)
                    .unwrap()
                    .expect("a client connects");
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
        let Link {
            mut reader,
            mut writer,
            leave,
            ..
        } = link;
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
        assert!(
            !matches!(accepted.reader.read(&mut [0]), Ok(1..)),
            "nothing more arrives"
        );
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
    let world = World::that(
        Identity::passing().unwrap(),
        Arc::new(|_| false),
        &Limits::default(),
    );
    let mute = std::net::UdpSocket::bind(HERE).unwrap();
    let lost = race(
        &[world.address(), mute.local_addr().unwrap()],
        &NetTransport::BOTH,
        &world.dial(patient()),
    )
    .err()
    .unwrap();
    assert!(matches!(lost, Trouble::NotAdmitted), "{lost:?}");
}
