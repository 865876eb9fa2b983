//! A relay in front of a server, for TCP and UDP on one port, which loses connections as a test requests.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a thread that waits for a datagram checks whether the relay has ended.
const LOOK: Duration = Duration::from_millis(50);

/// What happens to the connections that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// They end for both ends. Datagrams vanish.
    End,
    /// They are reset. Datagrams vanish.
    Reset,
    /// They end for the client. For the server they stay open until [`Relay::release`].
    AtClient,
    /// The server does not notice their end until [`Relay::release`].
    Hold,
    /// Everything to the server vanishes from now on, on later connections too.
    ToServer,
    /// Everything to the client vanishes from now on, on later connections too.
    ToClient,
    /// Nothing.
    None,
}

/// When a relay loses the connections, and how.
pub struct Trigger {
    /// Count the bytes towards the server, otherwise those towards the client.
    pub to_server: bool,
    /// The number of bytes that still pass, since the last loss.
    pub after_bytes: usize,
    /// What happens.
    pub cut: Cut,
    /// Called after that, before anything else passes in this direction. Returns the server of later connections, if
    /// it is another one.
    pub then: Box<dyn FnOnce() -> Option<SocketAddr> + Send>,
}

/// A relay. It ends when it is dropped.
pub struct Relay {
    /// The port of 127.0.0.1 to which the client connects.
    pub port: u16,
    state: Arc<State>,
}

struct State {
    server: Mutex<SocketAddr>,
    triggers: Mutex<Triggers>,
    links: Mutex<Vec<Arc<TcpPair>>>,
    /// The number of TCP connections that clients have made.
    connections: AtomicUsize,
    /// How many triggers have fired.
    losses: AtomicUsize,
    /// How often all UDP flows were lost. Earlier flows carry nothing.
    generation: AtomicUsize,
    /// Whether everything vanishes, by direction: to the client, to the server.
    is_silent: [AtomicBool; 2],
    is_over: AtomicBool,
}

struct Triggers {
    queue: VecDeque<Trigger>,
    passed_bytes: usize,
}

struct TcpPair {
    client: TcpStream,
    server: TcpStream,
    is_held: AtomicBool,
    is_reset: AtomicBool,
}

impl Relay {
    /// Starts a relay to this server, with triggers that fire one after the other.
    pub fn start(server: SocketAddr, triggers: impl IntoIterator<Item = Trigger>) -> Relay {
        // The client uses one port number for both.
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
            let port = tcp.local_addr().expect("it is bound").port();
            if let Ok(udp) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) {
                break (tcp, Arc::new(udp));
            }
        };
        let port = tcp.local_addr().expect("it is bound").port();
        let state = Arc::new(State {
            server: Mutex::new(server),
            triggers: Mutex::new(Triggers {
                queue: triggers.into_iter().collect(),
                passed_bytes: 0,
            }),
            links: Mutex::default(),
            connections: AtomicUsize::default(),
            losses: AtomicUsize::default(),
            generation: AtomicUsize::default(),
            is_silent: Default::default(),
            is_over: AtomicBool::default(),
        });
        let (streams, datagrams) = (state.clone(), state.clone());
        std::thread::spawn(move || streams.accept(&tcp));
        std::thread::spawn(move || datagrams.relay_datagrams(&udp));
        Relay { port, state }
    }

    /// Returns how many TCP connections clients have made.
    pub fn connections(&self) -> usize {
        self.state.connections.load(SeqCst)
    }

    /// Returns how many triggers have fired.
    pub fn losses(&self) -> usize {
        self.state.losses.load(SeqCst)
    }

    /// Ends the connections that the server still considers open.
    pub fn release(&self) {
        let links = std::mem::take(&mut *self.state.links.lock().expect("no panic"));
        links
            .iter()
            .filter(|link| link.is_held.load(SeqCst))
            .for_each(|link| link.shut(&link.server));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, SeqCst);
        // They may own the server, and a thread that ends later must not keep it running.
        self.state.triggers.lock().expect("no panic").queue.clear();
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        for link in self.state.links.lock().expect("no panic").iter() {
            link.shut(&link.client);
            link.shut(&link.server);
        }
    }
}

impl TcpPair {
    fn shut(&self, end: &TcpStream) {
        // The other end may have gone already.
        let _ = end.shutdown(Shutdown::Both);
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Counts bytes of a direction. Returns how many of them pass before the next trigger fires, and that trigger.
    fn count(&self, to_server: bool, bytes: usize) -> (usize, Option<Trigger>) {
        let mut triggers = self.triggers.lock().expect("no panic");
        let passed = triggers.passed_bytes;
        match triggers.queue.front() {
            Some(next) if next.to_server == to_server => {
                let left = next.after_bytes.saturating_sub(passed);
                if bytes < left {
                    triggers.passed_bytes += bytes;
                    return (bytes, None);
                }
                triggers.passed_bytes = 0;
                (left, triggers.queue.pop_front())
            }
            _ => (bytes, None),
        }
    }

    fn vanishes(&self, to_server: bool) -> bool {
        self.is_silent[usize::from(to_server)].load(SeqCst)
    }

    fn fire(&self, trigger: Trigger) {
        // Counted first: the client may end at once.
        self.losses.fetch_add(1, SeqCst);
        let ended = match trigger.cut {
            Cut::End | Cut::Reset | Cut::AtClient => {
                self.generation.fetch_add(1, SeqCst);
                std::mem::take(&mut *self.links.lock().expect("no panic"))
            }
            Cut::Hold => self.links.lock().expect("no panic").clone(),
            Cut::ToServer | Cut::ToClient => {
                self.is_silent[usize::from(trigger.cut == Cut::ToServer)].store(true, SeqCst);
                Vec::new()
            }
            Cut::None => Vec::new(),
        };
        for link in &ended {
            match trigger.cut {
                Cut::Reset => {
                    link.is_reset.store(true, SeqCst);
                    for end in [&link.client, &link.server] {
                        let _ = rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO));
                        // Wakes the thread that reads. The reset follows when the last descriptor is closed.
                        let _ = end.shutdown(Shutdown::Read);
                    }
                }
                Cut::AtClient => {
                    link.is_held.store(true, SeqCst);
                    link.shut(&link.client);
                }
                Cut::Hold => link.is_held.store(true, SeqCst),
                Cut::End | Cut::ToServer | Cut::ToClient | Cut::None => {
                    link.shut(&link.client);
                    link.shut(&link.server);
                }
            }
        }
        // Held connections are needed for `release`.
        if trigger.cut == Cut::AtClient {
            self.links.lock().expect("no panic").extend(ended);
        }
        if let Some(server) = (trigger.then)() {
            *self.server.lock().expect("no panic") = server;
        }
    }

    // ── TCP ─────────────────────────────────────────────────────────────────────────────────────

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().map_while(Result::ok) {
            if self.is_over() {
                return;
            }
            self.connections.fetch_add(1, SeqCst);
            let server = *self.server.lock().expect("no panic");
            let Ok(server) = TcpStream::connect(server) else {
                continue;
            };
            let link = TcpPair {
                client,
                server,
                is_held: AtomicBool::default(),
                is_reset: AtomicBool::default(),
            };
            let link = Arc::new(link);
            self.links.lock().expect("no panic").push(link.clone());
            for to_server in [true, false] {
                let (state, link) = (self.clone(), link.clone());
                std::thread::spawn(move || state.pass(&link, to_server));
            }
        }
    }

    /// Forwards one direction of a connection until it ends.
    fn pass(&self, link: &TcpPair, to_server: bool) {
        let (mut from, mut to) = if to_server {
            (&link.client, &link.server)
        } else {
            (&link.server, &link.client)
        };
        let mut piece = [0; 16 << 10];
        'open: while let Ok(count @ 1..) = from.read(&mut piece) {
            let mut rest = &piece[..count];
            while !rest.is_empty() {
                let (passes, trigger) = self.count(to_server, rest.len());
                if !self.vanishes(to_server) && to.write_all(&rest[..passes]).is_err() {
                    break 'open;
                }
                rest = &rest[passes..];
                trigger.into_iter().for_each(|trigger| self.fire(trigger));
            }
        }
        let is_unnoticed = to_server && link.is_held.load(SeqCst) || link.is_reset.load(SeqCst);
        // The end of a direction that fails vanishes too.
        if !is_unnoticed && !self.vanishes(to_server) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    // ── UDP ─────────────────────────────────────────────────────────────────────────────────────

    /// Forwards the datagrams of any number of clients, each through a socket of its own.
    fn relay_datagrams(self: &Arc<Self>, clients: &Arc<UdpSocket>) {
        let mut flows: Vec<(SocketAddr, usize, Arc<UdpSocket>)> = Vec::new();
        let mut datagram = vec![0; 64 << 10];
        clients.set_read_timeout(Some(LOOK)).expect("a valid time");
        while !self.is_over() {
            let Ok((count, client)) = clients.recv_from(&mut datagram) else {
                continue;
            };
            let known = flows.iter().find(|(address, ..)| *address == client);
            let known = known.map(|(_, generation, upstream)| (*generation, upstream.clone()));
            let (generation, upstream) = known.unwrap_or_else(|| {
                let upstream = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
                upstream.set_read_timeout(Some(LOOK)).expect("a valid time");
                let (generation, upstream) = (self.generation.load(SeqCst), Arc::new(upstream));
                flows.push((client, generation, upstream.clone()));
                let (state, answers, clients) = (self.clone(), upstream.clone(), clients.clone());
                std::thread::spawn(move || {
                    state.relay_answers(&answers, &clients, client, generation)
                });
                (generation, upstream)
            });
            let server = *self.server.lock().expect("no panic");
            self.pass_datagram(true, generation, count, || {
                upstream.send_to(&datagram[..count], server)
            });
        }
    }

    fn relay_answers(
        &self,
        server: &UdpSocket,
        clients: &UdpSocket,
        client: SocketAddr,
        generation: usize,
    ) {
        let mut datagram = vec![0; 64 << 10];
        while !self.is_over() {
            let Ok(count) = server.recv(&mut datagram) else {
                continue;
            };
            self.pass_datagram(false, generation, count, || {
                clients.send_to(&datagram[..count], client)
            });
        }
    }

    fn pass_datagram(
        &self,
        to_server: bool,
        generation: usize,
        bytes: usize,
        send: impl FnOnce() -> std::io::Result<usize>,
    ) {
        if generation < self.generation.load(SeqCst) {
            return;
        }
        let (_, trigger) = self.count(to_server, bytes);
        if !self.vanishes(to_server) {
            // A lost datagram.
            let _ = send();
        }
        trigger.into_iter().for_each(|trigger| self.fire(trigger));
    }
}
