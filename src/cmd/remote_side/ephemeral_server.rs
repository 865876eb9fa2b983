//! A server for one session: the remote side of a remote shell opens it for its client, and ends with it.
//!
//! It runs as the user that the remote shell logged in, with the rights of that user: there is no grant. It admits only
//! the key that the client named through the shell.

use super::forced_command;
use crate::cmd::shell_keepalive::ShellKeepalive;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::native::handshake::EndpointRequest;
use crate::proto::Meeting;
use crate::transport::Link;
use crate::transport::link::{Moved, Patience};
use crate::transport::net::server::{
    AcceptedClient, EVERYWHERE, Lasting, Listener, listen, supported,
};
use crate::transport::net::server_limits::Limits;
use crate::trust::identity::Identity;
use crate::trust::{Pin, tls};
use crate::work::clock::Since;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a wait checks whether the client can still come.
const TICK: Duration = Duration::from_millis(100);

/// Returns how long the server waits for its client, which is longer than a client tries to connect: half a minute.
fn comes_within() -> Duration {
    Duration::from_secs(sys::minute_secs()) / 2
}

/// The server, once its client has connected.
pub struct AcceptedEphemeral {
    listener: Listener,
    _keepalive: ShellKeepalive,
}

impl AcceptedEphemeral {
    /// Opens a port, sends the address to the client, and waits for it. If this fails, the client has received the
    /// error or is gone.
    pub fn open(
        env: &Env,
        mut request: EndpointRequest,
        patience: &Patience,
    ) -> Result<(AcceptedEphemeral, Link)> {
        let opened = EphemeralAddress::open(env, &request.client, patience);
        request.answer(opened.as_ref().map(|(door, _)| door.place.clone()))?;
        let (door, listener) = opened?;
        let keepalive = ShellKeepalive::hold(request.link);
        let client = door.wait(&listener, &keepalive, &env.stop)?;
        if !keepalive.guard(client.hang_up.clone()) {
            return Err(no_client(Exit::Stream));
        }
        let link = Link {
            reader: Box::new(client.reader),
            writer: client.writer,
            parting: client.parting,
            leave: None,
            moved: Moved::default(),
        };
        Ok((
            AcceptedEphemeral {
                listener,
                _keepalive: keepalive,
            },
            link,
        ))
    }

    /// Closes the server after the client has received everything.
    pub fn leave(self) {
        self.listener.leave();
    }
}

/// The address of the server, and whether the client has connected.
struct EphemeralAddress {
    place: Meeting,
    has_come: Arc<AtomicBool>,
}

impl EphemeralAddress {
    fn open(
        env: &Env,
        client: &Meeting,
        patience: &Patience,
    ) -> Result<(EphemeralAddress, Listener)> {
        if let Some(why) = forced_command::evidence(env) {
            // A forced command approves what it contains, and it contains no port.
            let words = format!("sparsync: cannot start a QUIC server: {why}");
            let hint = "omit --transport=quic to copy over ssh, or enroll the host";
            return Err(Error::new(Exit::StartClient, words).with_hint(hint));
        }
        let identity = Identity::passing()?;
        let awaited = Pin(client.pin);
        let has_come = Arc::new(AtomicBool::new(false));
        let came = has_come.clone();
        let admit = move |shown: &Pin| *shown == awaited && !came.load(Ordering::Relaxed);
        let config = tls::server_config(&identity, Arc::new(admit));
        let limits = Limits {
            sessions: 1,
            ..Limits::default()
        };
        let lasting = Lasting(sys::random());
        let reached_at = env
            .var("SSH_CONNECTION")
            .and_then(|connection| own_address(&connection.to_string_lossy()));
        // Listen only on the address at which sshd was reached, if it is known.
        let at = |ip| {
            listen(
                &[SocketAddr::new(ip, 0)],
                config.clone(),
                lasting,
                &limits,
                patience,
            )
        };
        let listening = reached_at.map(at);
        let (listener, addresses) = match (listening, reached_at) {
            (Some(Ok(listener)), Some(own)) => (listener, vec![own]),
            _ => (
                at(supported(EVERYWHERE)).map_err(cannot_listen)?,
                Vec::new(),
            ),
        };
        let port = listener
            .addresses()
            .first()
            .map_or(0, |address| address.port());
        let place = Meeting {
            pin: identity.pin.0,
            port,
            addresses,
        };
        Ok((EphemeralAddress { place, has_come }, listener))
    }

    /// Waits for the client, and rejects all others after it.
    fn wait(
        &self,
        listener: &Listener,
        keepalive: &ShellKeepalive,
        stop: &AtomicBool,
    ) -> Result<AcceptedClient> {
        let since = Since::now();
        let cut = keepalive.cut();
        loop {
            match listener.accept(TICK) {
                Ok(Some(client)) => {
                    self.has_come.store(true, Ordering::Relaxed);
                    listener.drain();
                    return Ok(client);
                }
                Ok(None) if stop.load(Ordering::Relaxed) => return Err(no_client(Exit::Signal)),
                Ok(None) if cut.load(Ordering::Relaxed) || since.elapsed() >= comes_within() => {
                    return Err(no_client(Exit::Stream));
                }
                Ok(None) => {}
                Err(_) => return Err(no_client(Exit::SocketIo)),
            }
        }
    }
}

/// Returns an error without a message: no peer is left that could receive one.
fn no_client(exit: Exit) -> Error {
    Error::new(exit, "")
}

fn cannot_listen(error: io::Error) -> Error {
    Error::new(
        Exit::SocketIo,
        format!("sparsync: cannot start a QUIC server: {error}"),
    )
}

/// Returns the address at which sshd was reached, from `SSH_CONNECTION`: client address, client port, own address, own
/// port.
fn own_address(connection: &str) -> Option<IpAddr> {
    let address: IpAddr = connection.split(' ').nth(2)?.parse().ok()?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_address_is_parsed_from_ssh_connection() {
        let own = |connection| own_address(connection).map(|address| address.to_string());
        assert_eq!(
            own("192.0.2.1 50000 192.0.2.2 22"),
            Some("192.0.2.2".into())
        );
        assert_eq!(
            own("2001:db8::1 50000 ::ffff:192.0.2.2 22"),
            Some("192.0.2.2".into())
        );
        for none in [
            "",
            "UNKNOWN 65535 UNKNOWN 65535",
            "fe80::1 1 fe80::2%eth0 22",
            "192.0.2.1",
        ] {
            assert_eq!(own(none), None, "{none}");
        }
    }
}
