//! Chooses the route to another machine from the options and from what is known of that machine. Connects to nothing.

use crate::cli::{Far, RemoteOperand};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::{ArgStyle, Connect, Options, TransportChoice};
use crate::transport::shell;
use crate::trust::peers::{Peer, Peers, Transport};
use crate::trust::timestamp::Timestamp;

/// The default name of sparsync on the remote side.
const OURS: &[u8] = b"sparsync";

/// A route to another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutePlan {
    /// A remote shell, with the reason; `None`: the host is not enrolled, so this is the normal route.
    Shell(Option<&'static str>),
    /// A remote shell, because there was no connection to the server of this enrolled host recently.
    ShellAfterTrouble(Box<Peer>),
    /// The server of an enrolled host.
    Server {
        /// The host; its port is the one to dial.
        peer: Box<Peer>,
        /// The transports to try, in this order.
        transports: Vec<Transport>,
        /// Falls back to a remote shell if the server does not answer soon or grants less than the run requests.
        or_shell: bool,
    },
    /// A single-use server that a remote shell starts for this run.
    EphemeralServer,
}

/// A copy for which a route is chosen.
#[derive(Clone, Copy)]
pub struct RouteRequest<'a> {
    /// The other machine.
    pub operand: &'a RemoteOperand,
    /// The settled options.
    pub options: &'a Options,
    /// Because of `--old-args`, a remote shell must split or expand something that is escaped otherwise.
    pub is_split: bool,
}

impl<'a> RouteRequest<'a> {
    /// Returns the request of a copy of these paths on the other machine.
    pub fn new(far: &'a Far, options: &'a Options, paths: &[Vec<u8>]) -> RouteRequest<'a> {
        let pulls = far.operand.server_sends;
        let splits_word = |words: &[Vec<u8>]| words.iter().any(|word| shell::splits_word(word));
        let splits_path = || {
            paths.iter().any(|path| shell::splits_path(path, pulls))
                || splits_word(&far.remote_words)
        };
        let is_split = match options.connect.args {
            ArgStyle::Escaped | ArgStyle::Secluded => false,
            ArgStyle::OldPaths => splits_path(),
            ArgStyle::OldAll => splits_path() || splits_word(&far.words),
        };
        RouteRequest {
            operand: &far.operand,
            options,
            is_split,
        }
    }
}

/// Returns the reason for [`RoutePlan::ShellAfterTrouble`].
pub fn earlier_trouble(peer: &Peer) -> String {
    let why = peer
        .last_trouble
        .as_ref()
        .map(|why| format!(": {why}"))
        .unwrap_or_default();
    format!("no connection to the server within the last ten minutes{why}")
}

/// Chooses the route to the machine of an operand.
///
/// `proxied` returns whether ssh would connect through another machine, which QUIC and TLS cannot do. It runs ssh, so
/// it is called only if the answer matters. Fails with a usage error if the options contradict each other, and with
/// [`Exit::StartClient`] if the options require a server and the host is not enrolled.
pub fn plan(
    request: RouteRequest<'_>,
    peers: &Peers,
    now: Timestamp,
    proxied: &dyn Fn() -> bool,
) -> Result<RoutePlan> {
    let RouteRequest {
        operand: far,
        options,
        is_split,
    } = request;
    let connect = &options.connect;
    let name = named(far);
    // `user@host` is a different account, and so a different peer, than `host`. This also holds in a URL.
    let known = peers.find(&name);
    let dial = |transports: &[Transport], or_shell: bool| match known {
        _ if is_split => Err(Error::usage(
            "sparsync: --old-args is possible only over a remote shell for these arguments",
        )
        .with_hint("give each path as an operand of its own, with --no-old-args")),
        Some(peer) => {
            let mut peer = peer.clone();
            peer.port = far.server.flatten().unwrap_or(peer.port);
            Ok(RoutePlan::Server {
                peer: Box::new(peer),
                transports: transports.to_vec(),
                or_shell,
            })
        }
        None => Err(Error::new(
            Exit::StartClient,
            format!("sparsync: cannot connect to the server of {name}: the host is not enrolled"),
        )
        .with_hint(format!(
            "run `sparsync enroll {name}`, or copy over ssh: {name}:PATH"
        ))),
    };
    let is_url = far.server.is_some();
    // A server runs its own program under its own user. A different --rsync-path may ask for another of either.
    let is_other = |peer: &Peer| {
        let own = peer.program.as_deref().map_or(OURS, str::as_bytes);
        connect
            .program
            .as_deref()
            .is_some_and(|program| program != own)
    };
    let is_other_program = !is_url && known.is_some_and(is_other);
    match (connect.transport, options.requires_rsync()) {
        (TransportChoice::Auto, Some(option)) if !is_url => {
            return Ok(RoutePlan::Shell(known.map(|_| option)));
        }
        (TransportChoice::Tls | TransportChoice::Quic | TransportChoice::Auto, Some(option)) => {
            return Err(Error::usage(format!(
                "sparsync: {option} is possible only over a remote shell"
            )));
        }
        (
            TransportChoice::Tls
            | TransportChoice::Quic
            | TransportChoice::Auto
            | TransportChoice::Shell,
            _,
        ) => {}
    }
    match connect.transport {
        TransportChoice::Shell if is_url => Err(Error::usage(
            "sparsync: --transport=ssh cannot be used with a sparsync:// URL",
        )),
        TransportChoice::Shell => Ok(RoutePlan::Shell(Some("--transport=ssh"))),
        TransportChoice::Tls if is_other_program => Err(Error::usage(format!(
            "sparsync: --transport=tls cannot be used with --rsync-path: the server of {name} runs another program"
        ))),
        TransportChoice::Tls => dial(&[Transport::Tls], false),
        TransportChoice::Quic if is_other_program || known.is_none() && !is_url => {
            Ok(RoutePlan::EphemeralServer)
        }
        TransportChoice::Quic => dial(&[Transport::Quic], false),
        TransportChoice::Auto if is_url => dial(&in_turn(known, now), false),
        // With a host that is not enrolled there is no choice to report, and the output must equal rsync's.
        TransportChoice::Auto if connect.shell_was_given => {
            Ok(RoutePlan::Shell(known.map(|_| "-e or RSYNC_RSH is set")))
        }
        TransportChoice::Auto if is_other_program => Ok(RoutePlan::Shell(Some(
            "--rsync-path names another program than that of the server",
        ))),
        TransportChoice::Auto if is_split => Ok(RoutePlan::Shell(known.map(|_| "--old-args"))),
        TransportChoice::Auto => match known {
            None => Ok(RoutePlan::Shell(None)),
            Some(peer) => match peer.winner(now) {
                Some(Transport::Ssh) => Ok(RoutePlan::ShellAfterTrouble(Box::new(peer.clone()))),
                None if proxied() => Ok(RoutePlan::Shell(Some(
                    "ssh connects through another machine",
                ))),
                _ => dial(&in_turn(known, now), true),
            },
        },
    }
}

/// Returns whether only a server that has this machine's key can serve the run.
pub fn requires_key(far: &RemoteOperand, connect: &Connect) -> bool {
    far.server.is_some() || connect.transport == TransportChoice::Tls
}

/// Returns the host in the form that operands and enrollment use: `[user@]host`.
pub fn named(far: &RemoteOperand) -> String {
    let user = far
        .user
        .as_deref()
        .map(|user| [user, b"@"].concat())
        .unwrap_or_default();
    String::from_utf8_lossy(&[&user, &far.host[..]].concat()).into_owned()
}

/// Returns QUIC and TLS, beginning with the one that was last used.
fn in_turn(known: Option<&Peer>, now: Timestamp) -> Vec<Transport> {
    match known.and_then(|peer| peer.winner(now)) {
        Some(Transport::Tls) => vec![Transport::Tls, Transport::Quic],
        _ => vec![Transport::Quic, Transport::Tls],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::Pin;

    const NOW: Timestamp = Timestamp(1000);

    fn far(host: &str, server: Option<Option<u16>>) -> RemoteOperand {
        let (user, host) = host
            .split_once('@')
            .map_or((None, host), |(user, host)| (Some(user), host));
        let (user, host) = (
            user.map(|user| user.as_bytes().to_vec()),
            host.as_bytes().to_vec(),
        );
        RemoteOperand {
            user,
            host,
            server,
            ..RemoteOperand::default()
        }
    }

    fn peer(last: Option<(Transport, i64)>) -> Peer {
        Peer {
            name: "box".into(),
            ssh: "box".into(),
            addresses: vec!["192.0.2.1".into()],
            port: 28792,
            pin: Pin([7; 32]),
            program: None,
            met: Timestamp(1),
            last_transport: last.map(|(route, _)| route),
            last_until: last.map(|(_, until)| Timestamp(until)),
            last_trouble: None,
            is_limited: false,
        }
    }

    fn planned(
        host: &str,
        server: Option<Option<u16>>,
        connect: &Connect,
        last: Option<(Transport, i64)>,
    ) -> Result<RoutePlan> {
        let peers = Peers {
            hosts: vec![peer(last)],
        };
        let options = Options {
            connect: connect.clone(),
            ..Options::default()
        };
        let request = RouteRequest {
            operand: &far(host, server),
            options: &options,
            is_split: false,
        };
        plan(request, &peers, NOW, &|| false)
    }

    fn by(transport: TransportChoice) -> Connect {
        Connect {
            transport,
            ..Connect::default()
        }
    }

    fn transports(plan: Result<RoutePlan>) -> (Vec<Transport>, bool, u16) {
        match plan.unwrap() {
            RoutePlan::Server {
                peer,
                transports,
                or_shell,
            } => (transports, or_shell, peer.port),
            other => panic!("{other:?}"),
        }
    }

    const BOTH: [Transport; 2] = [Transport::Quic, Transport::Tls];

    #[test]
    fn server_route_requires_an_enrolled_host() {
        assert_eq!(
            transports(planned("box", None, &by(TransportChoice::Auto), None)),
            (BOTH.to_vec(), true, 28792)
        );
        for host in ["other", "me@box", "BOX"] {
            assert!(
                matches!(
                    planned(host, None, &by(TransportChoice::Auto), None),
                    Ok(RoutePlan::Shell(_))
                ),
                "{host}"
            );
        }
    }

    #[test]
    fn recently_successful_route_is_tried_first() {
        let auto = by(TransportChoice::Auto);
        assert_eq!(
            transports(planned("box", None, &auto, Some((Transport::Tls, 1001)))).0,
            [Transport::Tls, Transport::Quic]
        );
        assert_eq!(
            transports(planned("box", None, &auto, Some((Transport::Tls, 1000)))).0,
            BOTH,
            "an outdated result is ignored"
        );
        assert!(matches!(
            planned("box", None, &auto, Some((Transport::Ssh, 1001))),
            Ok(RoutePlan::ShellAfterTrouble(_))
        ));
        assert_eq!(
            transports(planned("box", None, &auto, Some((Transport::Ssh, 999)))).0,
            BOTH
        );
    }

    #[test]
    fn explicit_shell_selects_the_shell_route() {
        let with_shell = Connect {
            shell_was_given: true,
            ..Connect::default()
        };
        assert!(matches!(
            planned("box", None, &with_shell, None),
            Ok(RoutePlan::Shell(Some(_)))
        ));
        assert!(matches!(
            planned("other", None, &with_shell, None),
            Ok(RoutePlan::Shell(None))
        ));
        let quic = Connect {
            transport: TransportChoice::Quic,
            ..with_shell
        };
        assert_eq!(
            transports(planned("box", None, &quic, None)),
            (vec![Transport::Quic], false, 28792)
        );
    }

    #[test]
    fn custom_rsync_path_selects_the_shell_route() {
        let with = |program: &[u8], transport| Connect {
            program: Some(program.to_vec()),
            transport,
            ..Connect::default()
        };
        let planned =
            |program: &[u8], transport, url| planned("box", url, &with(program, transport), None);
        for program in [
            &b"sudo sparsync"[..],
            b"mkdir -p x && rsync",
            b"rsync",
            b"/opt/bin/sparsync",
        ] {
            assert!(
                matches!(
                    planned(program, TransportChoice::Auto, None),
                    Ok(RoutePlan::Shell(Some(_)))
                ),
                "{}",
                program.escape_ascii()
            );
            assert_eq!(
                planned(program, TransportChoice::Quic, None).unwrap(),
                RoutePlan::EphemeralServer
            );
            assert_eq!(
                planned(program, TransportChoice::Tls, None)
                    .unwrap_err()
                    .exit,
                Exit::Usage
            );
            assert_eq!(
                transports(planned(program, TransportChoice::Auto, Some(None))).0,
                BOTH,
                "a URL names a server"
            );
        }
        assert_eq!(
            transports(planned(b"sparsync", TransportChoice::Auto, None)).0,
            BOTH,
            "`sparsync` is the program of the server"
        );
    }

    #[test]
    fn explicit_transport_is_tried_alone() {
        assert!(matches!(
            planned("box", None, &by(TransportChoice::Shell), None),
            Ok(RoutePlan::Shell(_))
        ));
        assert_eq!(
            transports(planned("box", None, &by(TransportChoice::Tls), None)).0,
            [Transport::Tls]
        );
        assert_eq!(
            planned("other", None, &by(TransportChoice::Quic), None).unwrap(),
            RoutePlan::EphemeralServer
        );
        assert_eq!(
            planned("other", None, &by(TransportChoice::Tls), None)
                .unwrap_err()
                .exit,
            Exit::StartClient
        );
    }

    #[test]
    fn url_never_selects_the_shell_route() {
        let auto = by(TransportChoice::Auto);
        assert_eq!(
            transports(planned("box", Some(Some(9)), &auto, None)),
            (BOTH.to_vec(), false, 9)
        );
        assert_eq!(
            transports(planned(
                "box",
                Some(None),
                &auto,
                Some((Transport::Ssh, 1001))
            ))
            .0,
            BOTH
        );
        for transport in [TransportChoice::Auto, TransportChoice::Quic] {
            for host in ["other", "me@box"] {
                let error = planned(host, Some(None), &by(transport), None).unwrap_err();
                assert!(
                    String::from_utf8_lossy(&error.text())
                        .contains(&format!("sparsync enroll {host}"))
                );
            }
        }
        assert_eq!(
            planned("box", Some(None), &by(TransportChoice::Shell), None)
                .unwrap_err()
                .exit,
            Exit::Usage
        );
    }

    #[test]
    fn arguments_that_a_shell_splits_select_the_shell_route() {
        let peers = Peers {
            hosts: vec![peer(None)],
        };
        for (style, path, is_split) in [
            (ArgStyle::OldPaths, "a b", true),
            (ArgStyle::OldPaths, "~me", true),
            (ArgStyle::OldPaths, "/a/*.[ch]", false),
            (ArgStyle::OldAll, "{a,b}", true),
            (ArgStyle::OldAll, "a", true),
            (ArgStyle::Escaped, "a b", false),
            (ArgStyle::Secluded, "a b", false),
        ] {
            let planned = |transport, url, host| {
                let options = Options {
                    connect: Connect {
                        args: style,
                        ..by(transport)
                    },
                    ..Options::default()
                };
                let far = Far {
                    operand: RemoteOperand {
                        server_sends: true,
                        ..far(host, url)
                    },
                    is_child: false,
                    words: vec![b"--exclude=*.o".to_vec()],
                    remote_words: Vec::new(),
                    server_words: Vec::new(),
                };
                let paths = [path.as_bytes().to_vec()];
                let request = RouteRequest::new(&far, &options, &paths);
                assert_eq!(request.is_split, is_split, "{style:?} {path}");
                plan(request, &peers, NOW, &|| false)
            };
            if !is_split {
                let quic = planned(TransportChoice::Quic, None, "box");
                assert_eq!(transports(quic).0, [Transport::Quic], "{style:?} {path}");
                continue;
            }
            let auto = planned(TransportChoice::Auto, None, "box").unwrap();
            assert_eq!(auto, RoutePlan::Shell(Some("--old-args")));
            for (transport, url) in [
                (TransportChoice::Quic, None),
                (TransportChoice::Tls, None),
                (TransportChoice::Auto, Some(None)),
            ] {
                let error = planned(transport, url, "box").unwrap_err();
                assert_eq!(error.exit, Exit::Usage, "{transport:?} {path}");
            }
            let single_use = planned(TransportChoice::Quic, None, "other").unwrap();
            assert_eq!(single_use, RoutePlan::EphemeralServer);
        }
    }

    #[test]
    fn proxied_host_uses_ssh_unless_quic_worked_recently() {
        let peers = |last| Peers {
            hosts: vec![peer(last)],
        };
        let auto = Options {
            connect: by(TransportChoice::Auto),
            ..Options::default()
        };
        let request = RouteRequest {
            operand: &far("box", None),
            options: &auto,
            is_split: false,
        };
        assert!(matches!(
            plan(request, &peers(None), NOW, &|| true),
            Ok(RoutePlan::Shell(_))
        ));
        // QUIC worked a short while ago, so the proxy is not checked.
        let won = peers(Some((Transport::Quic, 1001)));
        assert!(matches!(
            plan(request, &won, NOW, &|| true),
            Ok(RoutePlan::Server { .. })
        ));
    }
}
