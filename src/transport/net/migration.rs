//! Connection migration: a client that loses its network continues its QUIC connection on another.

use super::closed_port::is_closed;
use super::limits::{QUIET, ROAM_LOOK};
use super::quic::CloseCode;
use super::{congestion_adapter, quic};
use crate::work::clock::Since;
use std::net::{IpAddr, SocketAddr};

/// Moves a connection to a new socket when nothing is received any more, or when this machine has a new address. Runs
/// until the connection ends.
///
/// A live server answers every [`super::limits::KEEP_ALIVE`], so silence means that our datagrams are lost: the NAT
/// mapping is gone, or the network is down. A move also probes the server at once, however long QUIC itself would wait.
/// If nothing listens at its port any more, the connection ends: QUIC would wait in vain for a server that was killed.
pub async fn watch(endpoint: quinn::Endpoint, connection: quinn::Connection) {
    let peer = connection.remote_address();
    let received_datagrams = || connection.stats().udp_rx.datagrams;
    let mut last = received_datagrams();
    let mut since = Since::now();
    let mut own = own_address(peer);
    while tokio::time::timeout(ROAM_LOOK, connection.closed())
        .await
        .is_err()
    {
        let now = received_datagrams();
        let own_now = own_address(peer);
        if now != last {
            (last, since) = (now, Since::now());
        }
        let has_another = own_now.is_some() && own_now != own;
        if !has_another && since.elapsed() < QUIET {
            continue;
        }
        (since, own) = (Since::now(), own_now);
        if let Ok(socket) = quic::client_socket(peer) {
            congestion_adapter::allow_more(&connection);
            // Without a new socket, the old one stays.
            let _ = endpoint.rebind(socket);
        }
        let before = received_datagrams();
        if !has_another && is_closed(peer).await && received_datagrams() == before {
            return quic::close(&connection, CloseCode::Instructed, b"");
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

#[cfg(test)]
mod tests {
    use super::is_elsewhere;

    #[test]
    fn path_change_requires_a_route_from_another_address() {
        let moved =
            |own: &str, peer: &str| is_elsewhere(own.parse().unwrap(), peer.parse().unwrap());
        // Networks reserved for documentation (RFC 5737, RFC 3849): no machine has such an address.
        assert!(moved("192.0.2.7:9", "127.0.0.1:9"));
        assert!(
            !moved("127.0.0.1:9", "127.0.0.1:9"),
            "the machine has this address"
        );
        assert!(
            !moved("192.0.2.7:9", "[2001:db8::7]:9")
                || super::own_address("[2001:db8::7]:9".parse().unwrap()).is_some()
        );
    }
}
