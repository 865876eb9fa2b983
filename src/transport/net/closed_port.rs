//! Tells a server that is gone from one that is silent: nothing listens at its port.

use super::{Trouble, quic};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How long [`is_closed`] waits for the answer of the other machine.
const ANSWER: Duration = Duration::from_secs(1);

/// Returns whether the other machine says that nothing listens at the UDP port of a server. `false` if the network is
/// silent.
///
/// Refused TCP is no evidence here: a session has used this UDP port, and a router that forwards only UDP refuses TCP by
/// itself, also during an outage that ends.
pub async fn is_closed(peer: SocketAddr) -> bool {
    tokio::time::timeout(ANSWER, icmp_error(peer)).await == Ok(Trouble::Refused)
}

/// Waits for an ICMP error, which means that nothing listens there. Only a connected socket receives it, and QUIC has
/// none.
pub async fn icmp_error(peer: SocketAddr) -> Trouble {
    let refused: std::io::Result<Infallible> = async {
        let socket = quic::client_socket(peer)?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        socket.connect(peer).await?;
        // Too short for a QUIC datagram.
        socket.send(&[0]).await?;
        loop {
            socket.recv(&mut [0]).await?;
        }
    }
    .await;
    match refused {
        Ok(never) => match never {},
        Err(error) => Trouble::unreached(&error),
    }
}

/// Waits until TCP is refused at the port of a server, which listens there with both. Not every network delivers the ICMP
/// errors for UDP.
pub async fn tcp_refusal(peer: SocketAddr) {
    match tokio::net::TcpStream::connect(peer).await {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
        Ok(_) | Err(_) => std::future::pending().await,
    }
}

/// Returns the result of the future that is ready first.
pub async fn first_of<T>(first: impl Future<Output = T>, second: impl Future<Output = T>) -> T {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Pending => second.as_mut().poll(context),
        ready => ready,
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    #[test]
    fn port_is_closed_only_if_nothing_listens_there() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(peer).unwrap();
        assert!(!runtime.block_on(is_closed(peer)));
        drop(udp);
        drop(tcp);
        assert!(runtime.block_on(is_closed(peer)));
        // TCP is refused, but UDP is only silent.
        let udp = UdpSocket::bind(peer).unwrap();
        assert!(!runtime.block_on(is_closed(peer)));
        drop(udp);
    }
}
