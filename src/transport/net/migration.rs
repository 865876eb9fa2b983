//! Connection migration: a client that loses its network continues its QUIC connection on another.

use super::limits::{QUIET, ROAM_LOOK};
use super::{congestion_adapter, quic};
use crate::work::clock::Since;
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Moves a connection to a new socket when nothing is received any more, or when this machine has a new address. Runs
/// until the connection ends.
///
/// A live server answers every [`super::limits::KEEP_ALIVE`], so silence means that our datagrams are lost: the NAT
/// mapping is gone, or the network is down. A move also probes the server at once, however long QUIC itself would wait.
pub async fn watch(endpoint: quinn::Endpoint, connection: quinn::Connection, nudge: Nudge) {
    let peer = connection.remote_address();
    let heard = || connection.stats().udp_rx.datagrams;
    let (mut last, mut since, mut own) = (heard(), Since::now(), own_address(peer));
    while tokio::time::timeout(ROAM_LOOK, connection.closed()).await.is_err() {
        let (now, own_now) = (heard(), own_address(peer));
        if now != last {
            (last, since) = (now, Since::now());
        }
        let has_another = own_now.is_some() && own_now != own;
        if !has_another && since.elapsed() < QUIET {
            continue;
        }
        (since, own) = (Since::now(), own_now);
        if let Ok(socket) = quic::client_socket(peer) {
            nudge.allow_more();
            // Without a new socket, the old one stays.
            let _ = endpoint.rebind(socket);
        }
    }
}

/// Returns whether packets to the peer would now leave from an address other than `own`. Returns `false` if there is no
/// route at all, because the old address may come back.
pub fn is_elsewhere(own: SocketAddr, peer: SocketAddr) -> bool {
    own_address(peer).is_some_and(|now| now != own.ip())
}

/// Returns the address from which this machine would send to a peer; `None` without a route.
fn own_address(peer: SocketAddr) -> Option<IpAddr> {
    let socket = quic::client_socket(peer).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Lets a few datagrams pass when the window is full of lost ones.
///
/// Losses are only detected once something else is acknowledged. Without this, a full window would stay silent until
/// QUIC retransmits, which it does ever more rarely.
#[derive(Clone, Default)]
pub struct Nudge(Arc<MigrationShared>);

#[derive(Default)]
struct MigrationShared {
    /// This many bytes may be in flight regardless of the window; 0 once something was acknowledged after the last
    /// nudge.
    floor_bytes: AtomicU64,
    /// Bytes in flight.
    out_bytes: AtomicU64,
    mtu_bytes: AtomicU64,
}

/// How many datagrams each nudge lets pass: enough for a partly filled one and at least one full one.
const DATAGRAMS: u64 = 3;

impl Nudge {
    fn allow_more(&self) {
        let more = DATAGRAMS * self.0.mtu_bytes.load(Ordering::Relaxed);
        self.0.floor_bytes.store(self.0.out_bytes.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

impl ControllerFactory for Nudge {
    fn build(self: Arc<Nudge>, now: Instant, mtu_bytes: u16) -> Box<dyn Controller> {
        self.0.mtu_bytes.store(mtu_bytes.into(), Ordering::Relaxed);
        let inner = Arc::new(congestion_adapter::ByRate).build(now, mtu_bytes);
        Box::new(Nudged { inner, shared: self.0.clone() })
    }
}

/// Our congestion control, with the extra allowance of a nudge.
struct Nudged {
    inner: Box<dyn Controller>,
    shared: Arc<MigrationShared>,
}

impl Controller for Nudged {
    fn on_sent(&mut self, now: Instant, bytes: u64, last: u64) {
        self.shared.out_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.inner.on_sent(now, bytes, last);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool, rtt: &quinn_proto::RttEstimator) {
        self.shared.floor_bytes.store(0, Ordering::Relaxed);
        self.inner.on_ack(now, sent, bytes, limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, largest: Option<u64>) {
        self.shared.out_bytes.store(in_flight, Ordering::Relaxed);
        self.inner.on_end_acks(now, in_flight, limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persists: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, persists, lost_bytes);
    }

    fn on_mtu_update(&mut self, mtu_bytes: u16) {
        self.shared.mtu_bytes.store(mtu_bytes.into(), Ordering::Relaxed);
        self.inner.on_mtu_update(mtu_bytes);
    }

    fn window(&self) -> u64 {
        self.inner.window().max(self.shared.floor_bytes.load(Ordering::Relaxed))
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Nudged { inner: self.inner.clone_box(), shared: self.shared.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Nudged>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}

#[cfg(test)]
mod tests {
    use super::is_elsewhere;

    #[test]
    fn path_change_requires_a_route_from_another_address() {
        let moved = |own: &str, peer: &str| is_elsewhere(own.parse().unwrap(), peer.parse().unwrap());
        // Networks reserved for documentation (RFC 5737, RFC 3849): no machine has such an address.
        assert!(moved("192.0.2.7:9", "127.0.0.1:9"));
        assert!(!moved("127.0.0.1:9", "127.0.0.1:9"), "the machine has this address");
        assert!(
            !moved("192.0.2.7:9", "[2001:db8::7]:9")
                || super::own_address("[2001:db8::7]:9".parse().unwrap()).is_some()
        );
    }
}
