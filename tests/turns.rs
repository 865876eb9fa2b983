//! The number of round trips of a run over the network, counted and not timed.
//!
//! A relay between client and server holds all data back until both are silent, then forwards the data of one side: the
//! two sides take turns, as on a link with a very long latency. A busy machine can only add turns, so the minimum of
//! several runs counts.

use crate::kit::Scene;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A side that sends nothing for this long has sent all that it can for now.
const SILENCE: Duration = Duration::from_millis(150);
/// The maximum number of runs of which the minimum counts.
const RUNS_MAX: usize = 6;
/// The round trip of the TCP handshake, which the relay answers itself and does not count.
const TURNS_OF_TCP: usize = 1;

/// A piece of data from one side, or the end of its stream.
enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// A link with a very long latency.
trait RelaySockets: Send {
    /// Returns the next piece from one side, or `None` if nothing has arrived.
    fn receive(&mut self, of_client: bool) -> Option<Piece>;
    /// Forwards a piece of one side to the other.
    fn forward(&mut self, of_client: bool, pieces: Piece);
    /// Returns the sockets on which a piece may arrive.
    fn open(&self) -> Vec<BorrowedFd<'_>>;
}

struct Udp {
    near: UdpSocket,
    far: UdpSocket,
    client: Option<SocketAddr>,
}

impl RelaySockets for Udp {
    fn receive(&mut self, of_client: bool) -> Option<Piece> {
        let mut datagram = vec![0; 1 << 16];
        let (count, from) = if of_client { &self.near } else { &self.far }
            .recv_from(&mut datagram)
            .ok()?;
        // Another socket of the client only probes for a listener.
        if of_client && *self.client.get_or_insert(from) != from {
            return None;
        }
        datagram.truncate(count);
        Some(Piece::Bytes(datagram))
    }

    fn forward(&mut self, of_client: bool, pieces: Piece) {
        let Piece::Bytes(datagram) = pieces else {
            return;
        };
        // The receiving side may have exited already.
        let _ = match (of_client, self.client) {
            (true, _) => self.far.send(&datagram),
            (false, Some(client)) => self.near.send_to(&datagram, client),
            (false, None) => Ok(0),
        };
    }

    fn open(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.near.as_fd(), self.far.as_fd()]
    }
}

struct Tcp {
    listener: TcpListener,
    server: SocketAddr,
    /// The connections to the client and to the server, and whether each stream has ended.
    sockets: Option<[(TcpStream, bool); 2]>,
}

impl RelaySockets for Tcp {
    fn receive(&mut self, of_client: bool) -> Option<Piece> {
        if self.sockets.is_none() {
            let (near, _) = self.listener.accept().ok()?;
            let far = TcpStream::connect(self.server).unwrap();
            for socket in [&near, &far] {
                socket.set_nonblocking(true).unwrap();
                socket.set_nodelay(true).unwrap();
            }
            self.sockets = Some([(near, false), (far, false)]);
        }
        let (socket, has_ended) = &mut self.sockets.as_mut()?[usize::from(!of_client)];
        let mut piece = vec![0; 1 << 16];
        match socket.read(&mut piece) {
            _ if *has_ended => None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Ok(count) if count > 0 => {
                piece.truncate(count);
                Some(Piece::Bytes(piece))
            }
            _ => {
                *has_ended = true;
                Some(Piece::End)
            }
        }
    }

    fn forward(&mut self, of_client: bool, pieces: Piece) {
        let Some(sockets) = &mut self.sockets else {
            return;
        };
        let (socket, _) = &mut sockets[usize::from(of_client)];
        // The receiving side may have exited already.
        let _ = match pieces {
            Piece::Bytes(bytes) => socket.write_all(&bytes),
            Piece::End => socket.shutdown(Shutdown::Write),
        };
    }

    fn open(&self) -> Vec<BorrowedFd<'_>> {
        let Some(sockets) = &self.sockets else {
            return vec![self.listener.as_fd()];
        };
        let open = sockets.iter().filter(|(_, has_ended)| !has_ended);
        open.map(|(socket, _)| socket.as_fd()).collect()
    }
}

/// Waits until something arrives on one of the sockets, or for this long. Returns `false` at the end of the relay.
fn arrives(sockets: Vec<BorrowedFd<'_>>, limit: Option<Duration>, is_over: &PipeReader) -> bool {
    let mut waited = vec![PollFd::new(is_over, PollFlags::IN)];
    for socket in sockets {
        waited.push(PollFd::from_borrowed_fd(socket, PollFlags::IN));
    }
    let limit = limit.map(|limit| Timespec::try_from(limit).unwrap());
    poll(&mut waited, limit.as_ref()).unwrap();
    waited[0].revents().is_empty()
}

struct Relay {
    port: u16,
    /// Half turns: how often the relay has forwarded all data of one side.
    halves: Arc<AtomicUsize>,
    /// Dropped to end the relay.
    over: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    fn to(kind: &str, server: SocketAddr) -> Relay {
        let any = (Ipv4Addr::LOCALHOST, 0);
        let (port, mut way): (u16, Box<dyn RelaySockets>) = match kind {
            "quic" => {
                let (near, far) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
                far.connect(server).unwrap();
                near.set_nonblocking(true).unwrap();
                far.set_nonblocking(true).unwrap();
                (
                    near.local_addr().unwrap().port(),
                    Box::new(Udp {
                        near,
                        far,
                        client: None,
                    }),
                )
            }
            _ => {
                let listener = TcpListener::bind(any).unwrap();
                listener.set_nonblocking(true).unwrap();
                (
                    listener.local_addr().unwrap().port(),
                    Box::new(Tcp {
                        listener,
                        server,
                        sockets: None,
                    }),
                )
            }
        };
        let (is_over, over) = std::io::pipe().unwrap();
        let halves = Arc::new(AtomicUsize::new(0));
        let count = halves.clone();
        let thread = std::thread::spawn(move || {
            let mut pieces: [Vec<Piece>; 2] = Default::default();
            let (mut last, mut of_client) = (None, true);
            loop {
                for side in [true, false] {
                    while let Some(word) = way.receive(side) {
                        pieces[usize::from(side)].push(word);
                        last = Some(Instant::now());
                    }
                }
                // The first piece starts the timer.
                if last.is_some_and(|last| last.elapsed() >= SILENCE) {
                    for word in pieces[usize::from(of_client)].drain(..) {
                        way.forward(of_client, word);
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                    of_client = !of_client;
                    last = Some(Instant::now());
                }
                let rest = last.map(|last| SILENCE.saturating_sub(last.elapsed()));
                if !arrives(way.open(), rest, &is_over) {
                    break;
                }
            }
        });
        Relay {
            port,
            halves,
            over: Some(over),
            thread: Some(thread),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.over.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns a command that probes no datagrams longer than on Ethernet: the relay simulates a remote machine, but the
/// loopback interface would permit longer ones.
fn command(scene: &Scene, who: &str, line: &str) -> Command {
    let mut command = scene.command(who, line);
    command.env("SPARSYNC_DATAGRAM_BYTES", "1452");
    command
}

/// Returns the number of round trips that a run takes until the client exits.
fn turns(scene: &Scene, kind: &str, line: &str) -> usize {
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, scene.status("port").parse().unwrap()));
    let relay = Relay::to(kind, server);
    let hosts = format!(
        "[[host]]\nname = \"host\"\nssh = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {}\npin = \"{}\"\n\
         met = \"2026-01-01T00:00:00Z\"\n",
        relay.port,
        scene.status("pin")
    );
    std::fs::write(scene.path("client/hosts.toml"), hosts).unwrap();
    let mut command = command(scene, "client", &format!("--transport={kind} {line}"));
    let output = command.output().expect("a program can be started");
    let halves = relay.halves.load(Ordering::SeqCst);
    assert!(output.status.success(), "{line}: {output:?}");
    halves.div_ceil(2) + if kind == "tls" { TURNS_OF_TCP } else { 0 }
}

#[track_caller]
fn takes(scene: &Scene, kind: &str, line: &str, expected: usize) {
    takes_after(scene, &|| {}, kind, line, expected);
}

/// Like [`takes`], but calls `before` ahead of each run.
#[track_caller]
fn takes_after(scene: &Scene, before: &dyn Fn(), kind: &str, line: &str, expected: usize) {
    let mut least = usize::MAX;
    for _ in 0..RUNS_MAX {
        before();
        least = least.min(turns(scene, kind, line));
        if least <= expected {
            break;
        }
    }
    assert_eq!(least, expected, "round trips of {line} over {kind}");
}

/// Starts a server and its client with trees that are up to date in both directions.
fn idle() -> Scene {
    let scene = Scene::new();
    let start = command(&scene, "server", "server start --port PORT")
        .output()
        .expect("a program can be started");
    assert!(start.status.success(), "{start:?}");
    scene.enroll("--root TOP");
    for dir in ["src", "in"] {
        for n in 0..40 {
            std::fs::create_dir_all(scene.path(&format!("{dir}/d{}", n % 4))).unwrap();
            std::fs::write(
                scene.path(&format!("{dir}/d{}/f{n}", n % 4)),
                format!("file {n}"),
            )
            .unwrap();
        }
    }
    for line in [PUSH, PULL] {
        let output = scene
            .command("client", line)
            .output()
            .expect("a program can be started");
        assert!(output.status.success(), "{line}: {output:?}");
    }
    scene
}

const PUSH: &str = "-a --delete src/ host:TOP/pushed";
const PULL: &str = "-a --delete host:TOP/in/ pulled";

#[test]
fn an_idle_push_takes_three_round_trips() {
    let scene = idle();
    // The handshake; the digests of the destination; the receiver's message that it needs nothing.
    takes(&scene, "quic", PUSH, 3);
    takes(&scene, "tls", PUSH, 4);
}

#[test]
fn an_idle_pull_takes_two_round_trips() {
    let scene = idle();
    // The handshake; the server's message that nothing is new, because the client has already sent its digests.
    takes(&scene, "quic", PULL, 2);
    takes(&scene, "tls", PULL, 3);
}

#[test]
fn names_of_backups_take_no_round_trips() {
    let scene = idle();
    let write = |dir: &str, suffixes: &[&str], text: &str| {
        for suffix in suffixes {
            for n in 0..24 {
                std::fs::write(
                    scene.path(&format!("{dir}/d0/b{n:02}{suffix}")),
                    format!("{text} {n}"),
                )
                .unwrap();
            }
        }
    };
    // Most backups have the name of a file in the same batch. The first file moves the end of a batch of 64 between two.
    for dir in ["src", "in"] {
        std::fs::write(scene.path(&format!("{dir}/d0/a")), "new").unwrap();
        write(dir, &["", ".c", ".c~", "~"], "new");
    }
    for (line, dest, expected) in [(PUSH, "pushed", 4), (PULL, "pulled", 3)] {
        let before = || {
            std::fs::remove_dir_all(scene.path(&format!("{dest}/d0"))).unwrap();
            std::fs::create_dir(scene.path(&format!("{dest}/d0"))).unwrap();
            write(dest, &["", ".c"], "older");
        };
        takes_after(&scene, &before, "quic", &format!("-b {line}"), expected);
        let backed_up =
            |name: &str| std::fs::read_to_string(scene.path(&format!("{dest}/d0/{name}"))).unwrap();
        assert_eq!(
            (&backed_up("b07~")[..], &backed_up("b07~~")[..]),
            ("new 7", "older 7")
        );
    }
}

#[test]
fn first_pull_takes_no_more_round_trips_than_an_idle_one() {
    let scene = idle();
    let dest = scene.path("pulled");
    let remove = || std::fs::remove_dir_all(&dest).unwrap();
    let empty = || {
        remove();
        std::fs::create_dir(&dest).unwrap();
    };
    // The files come with the answer, whether the destination is missing or empty.
    for before in [&remove as &dyn Fn(), &empty] {
        takes_after(&scene, before, "quic", PULL, 2);
        takes_after(&scene, before, "tls", PULL, 3);
        assert!(scene.path("pulled/d3/f39").exists());
    }
}
