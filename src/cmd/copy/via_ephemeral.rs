//! A single-use server: QUIC to a host that is not enrolled. A remote shell asks the remote side to open a port for
//! this run.
//!
//! The remote shell and its command line are those of any copy, and the session settles the same arguments. The first
//! messages only agree on where the session takes place.

use super::remote_copy::RemoteCopy;
use super::via_shell::{ByShell, HeldOutput, RemoteProgram};
use super::{route, via_server};
use crate::cmd::shell_keepalive::ShellKeepalive;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::client::FirstWords;
use crate::native::compression_choice;
use crate::native::handshake;
use crate::proto::{Meeting, ProtocolSupport};
use crate::transport::Link;
use crate::transport::link::{FAREWELL, Patience};
use crate::transport::net::Trouble;
use crate::transport::net::client::{Dial, FirstBytes};
use crate::transport::shell::{Shell, ShellExit};
use crate::trust::Pin;
use crate::trust::identity::Identity;
use crate::trust::peers::{Peer, Transport};
use crate::trust::timestamp::Timestamp;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A single-use server and the remote shell that keeps it alive.
pub struct EphemeralServer {
    host: String,
    shell: Shell,
    keepalive: ShellKeepalive,
}

impl EphemeralServer {
    /// Returns the hint for a lost connection.
    pub fn hint(&self) -> String {
        format!(
            "run the same command again; the server that {} started for this run has ended",
            self.host
        )
    }

    /// Returns the remote shell that keeps the server alive.
    pub fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Releases the server and waits briefly for the remote shell to exit. The server has ended with the session. The
    /// wait is short because the shell's connection may be lost although QUIC's is not.
    pub fn leave(self, stop: &AtomicBool) {
        let EphemeralServer {
            mut shell,
            keepalive,
            ..
        } = self;
        drop(keepalive);
        // The session has ended and determines the exit code.
        let _ = shell.wait(Some(FAREWELL), stop);
    }
}

/// Starts a single-use server through the remote shell and connects to it. `first`: the words to send with the
/// handshake.
pub fn reach(
    side: &RemoteCopy,
    env: &mut Env,
    first: &FirstWords,
) -> Result<(EphemeralServer, Link)> {
    let host = route::named(&side.far.operand);
    let facts = via_server::ssh_facts(&side.options.connect.shell, &host, env.umask);
    let identity = Identity::passing()?;
    let mut held = HeldOutput::default();
    let found = ByShell::new(side, env, None)
        .for_sparsync()
        .connect(false, &mut held);
    held.print(env);
    let failed =
        |exit, words: String| Error::new(exit, format!("sparsync: {words}")).by(side.role());
    let lacking = |exit, what: &str| {
        let hint = format!(
            "`sparsync enroll --install {host}` installs it; --rsync-path=PROGRAM names another path"
        );
        failed(
            exit,
            format!("cannot start a QUIC server on {host}: {what}"),
        )
        .with_hint(hint)
    };
    let (mut shell, link) = match found {
        Ok(RemoteProgram::Native(shell, link)) => (shell, link),
        Ok(RemoteProgram::Rsync(..)) => {
            return Err(lacking(Exit::StartClient, "it has rsync but no sparsync"));
        }
        Err(error) if error.exit == Exit::CmdNotFound => {
            return Err(lacking(error.exit, "sparsync not found"));
        }
        Err(error) => return Err(error),
    };
    let own = Meeting {
        pin: identity.pin.0,
        port: 0,
        addresses: Vec::new(),
    };
    let (place, link) = match handshake::request_other_endpoint(
        link,
        &ProtocolSupport::ours(compression_choice::features(None)),
        own,
    ) {
        Ok(met) => met,
        Err(error) => return Err(broken_off(side, env, &mut shell, error)),
    };
    let keepalive = ShellKeepalive::hold(link);
    let peer = peer_of(&host, &facts.hostname, &place);
    let beaten = keepalive.cut();
    let patience = Patience {
        beaten: beaten.clone(),
        ..side.patience(env)
    };
    let dial = Dial {
        first_words: FirstBytes::by(first.maker()),
        ..via_server::dial(&identity, &peer, patience, Arc::default())
    };
    let won = via_server::dial_all(&peer, &[Transport::Quic], &dial);
    let trouble = match won {
        Ok(won) if keepalive.guard(won.hang_up.clone()) => {
            side.print_route(
                env,
                &format!(
                    "{} to {}, a server that {host} started for this run",
                    won.kind, won.address
                ),
            );
            return Ok((
                EphemeralServer {
                    host,
                    shell,
                    keepalive,
                },
                won.link,
            ));
        }
        Ok(_) => Trouble::Stopped,
        Err(trouble) => trouble,
    };
    match trouble {
        Trouble::Stopped => {
            let words = format!(
                "sparsync: cannot connect to the QUIC server on {host}: the remote shell ended too early"
            );
            Err(broken_off(
                side,
                env,
                &mut shell,
                Error::new(Exit::Stream, words),
            ))
        }
        Trouble::WrongKey(why) => Err(failed(
            Exit::StartClient,
            format!("cannot connect to the QUIC server on {host}: {why}"),
        )),
        why => {
            let blocked = if facts.is_proxied {
                "ssh reaches it through another machine, which QUIC cannot use"
            } else {
                "a firewall may block UDP"
            };
            let words = format!(
                "cannot reach the QUIC server on {host} ({} UDP port {}): {why}",
                peer.addresses.join(", "),
                peer.port
            );
            let hint = format!("{blocked}; without --transport=quic the copy uses ssh");
            Err(failed(Exit::SocketIo, words).with_hint(hint))
        }
    }
}

/// Returns the error for a remote shell, or a program it started, that exited too early. The exit code follows from the
/// exit status of the shell, as with any copy by remote shell.
fn broken_off(side: &RemoteCopy, env: &Env, shell: &mut Shell, error: Error) -> Error {
    if env.stop.load(Ordering::Relaxed) {
        return Error::new(Exit::Signal, "").by(side.role());
    }
    let exit = match error.exit {
        Exit::Stream => shell
            .wait(Some(FAREWELL), &env.stop)
            .unwrap_or(ShellExit::Killed)
            .exit(),
        exit => exit,
    };
    Error { exit, ..error }.by(side.role())
}

/// Returns the server as a peer to dial: at the host name that ssh connects to, and at the addresses that it reported.
fn peer_of(host: &str, hostname: &str, place: &Meeting) -> Peer {
    let shown = place.addresses.iter().map(IpAddr::to_string);
    let mut addresses = vec![hostname.to_owned()];
    addresses.extend(shown.filter(|shown| shown != hostname));
    Peer {
        name: host.to_owned(),
        ssh: host.to_owned(),
        addresses,
        port: place.port,
        pin: Pin(place.pin),
        program: None,
        met: Timestamp(0),
        last_transport: None,
        last_until: None,
        last_trouble: None,
        is_limited: false,
    }
}
