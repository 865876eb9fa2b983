//! Limits of the server, and clients that are silent, unresponsive or gone.

use super::*;

#[test]
fn number_of_sessions_is_limited() {
    each(|kind| {
        let near = Identity::passing().unwrap();
        let world = World::that(
            near,
            Arc::new(|_| true),
            &Limits {
                sessions: 1,
                ..Limits::default()
            },
        );
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
                    if let Some(mut accepted) =
                        world.listener.accept(Duration::from_millis(5)).unwrap()
                    {
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
    let world = World::that(
        near,
        Arc::new(|_| true),
        &Limits {
            handshakes_per_sec: 100_000,
            ..Limits::default()
        },
    );
    let address = world.address();
    let noise: [&[u8]; 3] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 1200],
        &[0x16, 3, 1, 2, 0, 1],
    ];
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
        let (mut link, _accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
        link.reader.read_exact(&mut [0]).unwrap();
        relay.lead_to(again.addresses()[0]);
        let begun = Since::now();
        if client_sends_first {
            let _ = link.writer.write_all(&bytes(1 << 20));
        }
        let error = link.reader.read(&mut [0]).unwrap_err();
        assert!(
            error.to_string().contains("the peer was restarted"),
            "{error}"
        );
        // A silent client sends keepalives.
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    }
}

#[test]
fn silent_peers_do_not_block_others() {
    let limits = Limits {
        half_open: 4,
        retry_from: 4,
        ..Limits::default()
    };
    let soon = || {
        let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
        let begun = Since::now();
        let mut mute: Vec<_> = (0..8)
            .map(|_| std::net::TcpStream::connect(world.address()).unwrap())
            .collect();
        for old in &mut mute[..4] {
            assert!(
                matches!(old.read(&mut [0]), Ok(0) | Err(_)),
                "the handshake was aborted for another"
            );
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
    let limits = Limits {
        half_open: 4,
        retry_from: 100,
        ..Limits::default()
    };
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
        let limits = Limits {
            sessions_per_key: 1,
            ..Limits::default()
        };
        let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
        let first = world.meet(kind, patient());
        let trouble = dial_over(kind, world.address(), &world.dial(patient())).err();
        assert_eq!(trouble, Some(Trouble::Busy(Rejection::TooManyOfKey)));
        let other = Identity::passing().unwrap();
        let dial = Dial {
            tls: tls::client_config(&other, world.far.pin),
            ..world.dial(patient())
        };
        drop((first, world.meet_by(world.address(), kind, dial)));
    });
}

#[test]
fn wait_for_an_unresponsive_client_is_limited() {
    let limits = Limits {
        last_words_max: Duration::from_millis(100),
        ..Limits::default()
    };
    let world = World::that(Identity::passing().unwrap(), Arc::new(|_| true), &limits);
    let relay = Relay::to(world.address());
    let (link, mut accepted) = world.meet_at(relay.address, NetTransport::Quic, patient());
    // The client keeps sending, but receives nothing.
    relay.mute(true);
    accepted.writer.write_all(&bytes(1 << 20)).unwrap();
    drop(accepted);
    assert!(
        reached(LONG / 2, || world.listener.conversations() == 0),
        "the slot is not freed"
    );
    drop(link);
}

#[test]
fn client_leaving_with_a_full_window_frees_its_slot() {
    let world = World::new();
    let relay = Relay::to(world.address());
    let (
        link,
        AcceptedClient {
            reader: mut far_reader,
            writer: far_writer,
            ..
        },
    ) = world.meet_at(relay.address, NetTransport::Quic, patient());
    // Nothing that the client sends is acknowledged any more.
    relay.mute(true);
    let Link {
        reader,
        mut writer,
        parting,
        ..
    } = link;
    parting.begin();
    assert!(
        writer.write_all(&bytes(16 << 20)).is_err(),
        "the window is smaller"
    );
    drop((reader, writer));
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        while matches!(far_reader.read(&mut [0; 1 << 10]), Ok(1..)) {}
        let _ = tx.send(());
    });
    rx.recv_timeout(LONG).expect("the close is announced");
    drop(far_writer);
    assert!(
        reached(LONG, || world.listener.conversations() == 0),
        "the slot is not freed"
    );
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
    assert!(reached(LAST_WORDS + LONG, || world
        .listener
        .conversations()
        == 0));
}
