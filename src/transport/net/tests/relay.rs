//! Tests: a UDP relay between client and server that can drop datagrams and change its own address.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Forwards datagrams between clients and a server, like a home router, until it is dropped.
pub struct Relay {
    /// The address to which clients send.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Shared {
    inside: UdpSocket,
    server: Mutex<SocketAddr>,
    /// For each client, the socket that the server sees.
    outside: Mutex<HashMap<SocketAddr, Arc<UdpSocket>>>,
    is_shut: AtomicBool,
    is_mute: AtomicBool,
    /// One in this many datagrams is dropped; 0: none.
    loses_one_in: AtomicU64,
    /// This many datagrams at the beginning are dropped.
    loses_first: AtomicU64,
    datagrams: AtomicU64,
    bytes: AtomicU64,
    clients: AtomicU64,
    over: AtomicBool,
}

const LOOK: Duration = Duration::from_millis(2);
const LONGEST_BYTES: usize = 1 << 16;

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(LOOK)).unwrap();
    socket
}

impl Relay {
    /// Starts a relay to this server.
    pub fn to(server: SocketAddr) -> Relay {
        let inside = socket();
        let address = inside.local_addr().unwrap();
        let shared = Arc::new(Shared {
            inside,
            server: Mutex::new(server),
            outside: Mutex::default(),
            is_shut: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            loses_one_in: AtomicU64::new(0),
            loses_first: AtomicU64::new(0),
            datagrams: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            clients: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let own = shared.clone();
        let threads = vec![std::thread::spawn(move || own.carry_out())];
        Relay {
            address,
            shared,
            threads,
        }
    }

    /// Forwards to another server from now on.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock() = server;
    }

    /// Gives every client a new port towards the server from now on; datagrams to the old ports are lost.
    pub fn roam(&self) {
        self.shared.outside.lock().clear();
    }

    /// Drops everything from now on, or nothing.
    pub fn shut(&self, is_shut: bool) {
        self.shared.is_shut.store(is_shut, Ordering::SeqCst);
    }

    /// Drops what the server sends from now on, or nothing.
    pub fn mute(&self, is_mute: bool) {
        self.shared.is_mute.store(is_mute, Ordering::SeqCst);
    }

    /// Drops one in this many datagrams from now on.
    pub fn lose_one_in(&self, datagrams: u64) {
        self.shared.loses_one_in.store(datagrams, Ordering::SeqCst);
    }

    /// Drops the first datagrams of all, up to this many.
    pub fn lose_first(&self, datagrams: u64) {
        self.shared.loses_first.store(datagrams, Ordering::SeqCst);
    }

    /// Returns how many bytes were forwarded.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }

    /// Returns how many client addresses were seen; after [`Relay::roam`] each counts again.
    pub fn clients(&self) -> u64 {
        self.shared.clients.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn is_lost(&self) -> bool {
        let one_in = self.loses_one_in.load(Ordering::SeqCst);
        let number = self.datagrams.fetch_add(1, Ordering::SeqCst);
        let is_early = number < self.loses_first.load(Ordering::SeqCst);
        is_early
            || self.is_shut.load(Ordering::SeqCst)
            || one_in > 0 && number % one_in == one_in - 1
    }

    fn carry_out(self: Arc<Shared>) {
        let mut datagram = vec![0; LONGEST_BYTES];
        while !self.over.load(Ordering::SeqCst) {
            // A timeout, or an ICMP error because a port is closed.
            let Ok((count, client)) = self.inside.recv_from(&mut datagram) else {
                continue;
            };
            let mut outside = self.outside.lock();
            let known = outside.entry(client).or_insert_with(|| {
                self.clients.fetch_add(1, Ordering::SeqCst);
                let new = Arc::new(socket());
                let (own, socket) = (self.clone(), new.clone());
                std::thread::spawn(move || own.carry_in(&socket, client));
                new
            });
            if self.is_lost() {
                continue;
            }
            let server = *self.server.lock();
            if known.send_to(&datagram[..count], server).is_ok() {
                self.bytes.fetch_add(count as u64, Ordering::SeqCst);
            }
        }
    }

    /// Forwards to the client until the client has another socket.
    fn carry_in(&self, socket: &Arc<UdpSocket>, client: SocketAddr) {
        let mut datagram = vec![0; LONGEST_BYTES];
        // This thread and the map hold a reference each.
        while !self.over.load(Ordering::SeqCst) && Arc::strong_count(socket) > 1 {
            let Ok((count, _)) = socket.recv_from(&mut datagram) else {
                continue;
            };
            let is_lost = self.is_lost()
                || self.is_mute.load(Ordering::SeqCst)
                || Arc::strong_count(socket) == 1;
            if !is_lost && self.inside.send_to(&datagram[..count], client).is_ok() {
                self.bytes.fetch_add(count as u64, Ordering::SeqCst);
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
