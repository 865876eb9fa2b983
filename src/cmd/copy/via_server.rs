//! Connects to the server of an enrolled host, or falls back to a remote shell if the server does not answer soon.

use super::live_display::LiveRoute;
use super::remote_copy::RemoteCopy;
use super::route;
use super::via_shell::{ByShell, HeldOutput, RemoteProgram};
use crate::cmd::enroll::other_key;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::client::FirstWords;
use crate::transport::Link;
use crate::transport::link::Patience;
use crate::transport::net::client::{Dial, DialWinner as Linked, FirstBytes, SessionPermit, race};
use crate::transport::net::tls_upgrade::Progress;
use crate::transport::net::{NetTransport, Trouble};
use crate::transport::shell::{self, RunOptions};
use crate::trust::files::List as _;
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::peers::{Peer, Peers, Transport};
use crate::trust::timestamp::Timestamp;
use crate::trust::{Pin, tls};
use crate::work::clock::{self, Since};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long only the server is tried. Then a remote shell is started beside it, so a host whose port is closed costs no
/// more than this.
const ALONE: Duration = Duration::from_millis(300);
/// How long a server is tried if there is another route, or in one attempt to reconnect.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// How long a server is tried if there is no other route: a train may be in a tunnel. ssh would try for two minutes.
const LONE_DIAL_LIMIT: Duration = Duration::from_secs(30);
/// How often a wait checks whether the run must stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long a route that won is tried first.
const WINNER_SECS: i64 = 60 * 60;
/// How long only a remote shell is tried after the server did not answer.
const LOSERS_SECS: i64 = 10 * 60;
/// How long a lost server is redialled if `--timeout` is not given.
const REDIAL_LIMIT: Duration = Duration::from_secs(120);
/// How long a server is redialled whose port refuses connections: a service manager starts it again after two seconds.
const GONE_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two attempts to reconnect.
const REDIAL_PAUSE: Duration = Duration::from_millis(500);
/// How often the user is informed that there is no connection yet.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// The most output that is read from `ssh -G`.
const FACTS_MAX_BYTES: usize = 256 << 10;

/// A server and how it is tried.
pub struct ServerRoute<'a> {
    /// The host.
    pub peer: &'a Peer,
    /// The protocols to try, in this order.
    pub transports: Vec<Transport>,
    /// Whether a remote shell may be used as well.
    pub or_shell: bool,
}

/// The result of an attempt.
enum ShellArrival {
    OfServer(std::result::Result<Linked, Trouble>),
    OfShell(Result<RemoteProgram>, HeldOutput),
}

/// What answered first.
pub enum ServerOrShell {
    /// The server, and the means to connect to it again.
    Server(Box<Redial>, Link),
    /// A program that a remote shell started.
    Shell(RemoteProgram),
}

/// Connects to an enrolled host. `first`: the words to send to its server with the handshake.
pub fn reach(
    side: &RemoteCopy,
    env: &mut Env,
    places: &Places,
    server: &ServerRoute<'_>,
    first: &FirstWords,
) -> Result<ServerOrShell> {
    let identity = Identity::load_or_make(places)?;
    let (tx, came) = channel();
    let met = Arc::new(OnceLock::new());
    // The thread of a losing attempt ends by itself and is not joined.
    let dial = Dial {
        limit: limit(side, server),
        first_words: FirstBytes::by(first.maker()),
        ..dial(&identity, server.peer, side.patience(env), met.clone())
    };
    let server_lost = dial.patience.beaten.clone();
    let permit = dial.permit.clone();
    let so_far = dial.trouble.clone();
    let transports = server.transports.clone();
    let peer = server.peer.clone();
    let sender = tx.clone();
    std::thread::spawn(move || {
        // A send fails only if the shell has won and the receiver is gone.
        let _ = sender.send(ShellArrival::OfServer(dial_all(&peer, &transports, &dial)));
    });

    let shell_lost = Arc::new(AtomicBool::new(false));
    let by_shell = ByShell::new(side, env, Some(server.peer)).unless(shell_lost.clone());
    let stop = env.stop.clone();
    let attempt = |tx: Sender<ShellArrival>, is_quiet| {
        let mut held = HeldOutput::default();
        let found = by_shell.connect(is_quiet, &mut held);
        // A send fails only if the server has won and the receiver is gone.
        let _ = tx.send(ShellArrival::OfShell(found, held));
    };
    let mut contest = RaceState {
        side,
        server,
        permit,
        met,
        shells: Shells::default(),
        no_server: None,
        spare: None,
    };
    let won = std::thread::scope(|scope| {
        let since = Since::now();
        let won = loop {
            if stop.load(Ordering::Relaxed) {
                break Err(Error::new(Exit::Signal, "").by(side.role()));
            }
            if let Some(won) = contest.overdue() {
                break Ok(won);
            }
            if let Some(is_quiet) = contest.next_shell(since.elapsed()) {
                let tx = tx.clone();
                let attempt = &attempt;
                scope.spawn(move || attempt(tx, is_quiet));
            }
            // The channel cannot be closed, because this function holds a sender too: an error is a timeout.
            let Ok(came) = came.recv_timeout(LOOK) else {
                continue;
            };
            if let Some(won) = contest.settle(came, env).transpose() {
                break won;
            }
        };
        server_lost.store(
            !matches!(won, Ok(RaceWinner::Server(..))),
            Ordering::Relaxed,
        );
        shell_lost.store(!matches!(won, Ok(RaceWinner::Shell(..))), Ordering::Relaxed);
        won
    });
    match won? {
        RaceWinner::Server(linked) => {
            let Linked {
                link, kind, lanes, ..
            } = *linked;
            side.print_route(env, &format!("{kind}, port {}", server.peer.port));
            // A single kind was requested by name, so there was no race and no winner to remember.
            if server.transports.len() > 1 {
                remember(places, server.peer, transport_of(kind), None);
            }
            let peer = server.peer.clone();
            let transports = server.transports.clone();
            let or_shell = server.or_shell;
            let redial = Redial {
                identity,
                peer,
                transports,
                or_shell,
                kind,
                lanes,
                trouble: None,
            };
            Ok(ServerOrShell::Server(Box::new(redial), link))
        }
        RaceWinner::Shell(found, held) => {
            let no_server = contest.no_server.ok_or_else(|| {
                let trouble = so_far
                    .lock()
                    .as_ref()
                    .map(|(kind, why)| format!("; {kind}: {why}"));
                format!(
                    "ssh answered before the server{}",
                    trouble.unwrap_or_default()
                )
            });
            explain_shell(side, env, places, server.peer, no_server);
            held.print(env);
            Ok(ServerOrShell::Shell(found))
        }
    }
}

/// Prints why the route is a remote shell, and remembers it if asking the server costs time. `no_server`: why the server
/// was out of the race; `Err` if it was only slower.
fn explain_shell(
    side: &RemoteCopy,
    env: &mut Env,
    places: &Places,
    peer: &Peer,
    no_server: std::result::Result<Trouble, String>,
) {
    match no_server {
        Ok(why @ Trouble::NotAdmitted) => {
            side.print_denied(env, &format!("{why}\nhint: {}", advice(peer, &why)));
        }
        Ok(why) => {
            side.print_fallback(env, peer, &without_server(peer, &why), &advice(peer, &why));
            // A server that answers, but does not serve, costs no time: each run asks it.
            if !matches!(why, Trouble::Busy(_)) {
                remember(
                    places,
                    peer,
                    Transport::Ssh,
                    Some(format!("port {}: {why}", peer.port)),
                );
            }
        }
        Err(why) => {
            side.print_fallback(
                env,
                peer,
                &why,
                &format!("run `sparsync doctor {}`", peer.name),
            );
            remember(places, peer, Transport::Ssh, Some(why));
        }
    }
}

/// Returns how long a server is tried. rsync, too, counts `--timeout` while it waits for the first answer.
fn limit(side: &RemoteCopy, server: &ServerRoute<'_>) -> Duration {
    let connect = &side.options.connect;
    match (connect.contimeout_secs, connect.timeout_secs) {
        (0, 0) => default_limit(server),
        (0, secs) => default_limit(server).min(Duration::from_secs(u64::from(secs))),
        (secs, _) => Duration::from_secs(u64::from(secs)),
    }
}

fn default_limit(server: &ServerRoute<'_>) -> Duration {
    if server.or_shell {
        DIAL_LIMIT
    } else {
        LONE_DIAL_LIMIT
    }
}

/// The state of the race between a server and remote shells.
struct RaceState<'a> {
    side: &'a RemoteCopy,
    server: &'a ServerRoute<'a>,
    /// The right to send the first words to the remote side. The server's connection takes it when it sends them.
    permit: SessionPermit,
    /// The key that the server presented.
    met: Arc<OnceLock<Pin>>,
    shells: Shells,
    /// Why the server is out of the race; `None` while it is still tried.
    no_server: Option<Trouble>,
    /// A shell that connected after the first words had gone to the server, kept in case the server does not answer.
    spare: Option<(RemoteProgram, HeldOutput)>,
}

impl RaceState<'_> {
    /// Returns the spare shell if the server has received the first words but takes too long to answer.
    fn overdue(&mut self) -> Option<RaceWinner> {
        self.spare
            .take_if(|_| self.permit.take())
            .map(RaceWinner::of_shell)
    }

    /// Begins the next shell if it is due, and returns whether it must be quiet. While the server may still answer, the
    /// user is not asked for a password: the shell then fails, and starts again with questions once it is the only
    /// route.
    fn next_shell(&mut self, after: Duration) -> Option<bool> {
        let is_alone = self.no_server.is_some();
        let may_begin = self.server.or_shell && (is_alone || after >= ALONE);
        if !may_begin {
            return None;
        }
        let is_quiet = self.shells.next(is_alone)?;
        self.shells.begin(is_quiet);
        Some(is_quiet)
    }

    /// Handles the result of an attempt: returns the winner, or `None` if the race goes on. Fails if no route is left.
    fn settle(&mut self, came: ShellArrival, env: &mut Env) -> Result<Option<RaceWinner>> {
        match came {
            ShellArrival::OfServer(Ok(linked)) => Ok(Some(RaceWinner::Server(Box::new(linked)))),
            ShellArrival::OfServer(Err(Trouble::WrongKey(why))) => {
                Err(wrong_key(self.server.peer, self.met.get(), &why))
            }
            ShellArrival::OfServer(Err(why)) if !self.server.or_shell => {
                Err(unreachable(self.side, self.server.peer, &why))
            }
            ShellArrival::OfServer(Err(why)) => {
                self.no_server = Some(why);
                Ok(self.spare.take().map(RaceWinner::of_shell))
            }
            ShellArrival::OfShell(Ok(found), held)
                if self.no_server.is_some() || self.permit.take() =>
            {
                Ok(Some(RaceWinner::Shell(found, held)))
            }
            ShellArrival::OfShell(Ok(found), held) => {
                self.spare = Some((found, held));
                Ok(None)
            }
            ShellArrival::OfShell(Err(_), _) if self.shells.end() => Ok(None),
            ShellArrival::OfShell(Err(error), held) => {
                held.print(env);
                let message = match &self.no_server {
                    Some(why) if error.exit != Exit::Signal => {
                        let words = unreachable(self.side, self.server.peer, why).message;
                        [&words, &b"\n"[..], &error.message].concat()
                    }
                    Some(_) | None => error.message,
                };
                Err(Error { message, ..error })
            }
        }
    }
}

/// The remote shells of a race, one after the other.
#[derive(Default)]
struct Shells {
    was_quiet: bool,
    runs: Option<bool>,
}

impl Shells {
    /// Returns whether the shell that may start now must be quiet; `None` if none may start.
    fn next(&self, is_alone: bool) -> Option<bool> {
        let is_due = self.runs.is_none() && (is_alone || !self.was_quiet);
        if is_due { Some(!is_alone) } else { None }
    }

    fn begin(&mut self, is_quiet: bool) {
        self.was_quiet |= is_quiet;
        self.runs = Some(is_quiet);
    }

    /// Records that the running shell has failed. Returns whether another one may succeed.
    fn end(&mut self) -> bool {
        self.runs.take() == Some(true)
    }
}

/// The route that won.
enum RaceWinner {
    Server(Box<Linked>),
    Shell(RemoteProgram, HeldOutput),
}

impl RaceWinner {
    fn of_shell((found, held): (RemoteProgram, HeldOutput)) -> RaceWinner {
        RaceWinner::Shell(found, held)
    }
}

/// Reconnects to a server after a lost connection.
pub struct Redial {
    identity: Identity,
    /// The host.
    pub peer: Peer,
    transports: Vec<Transport>,
    /// A remote shell may be used as well.
    pub or_shell: bool,
    /// The protocol of the current link.
    kind: NetTransport,
    /// The lanes of the current link.
    lanes: Option<Arc<Progress>>,
    /// Why the server cannot be reached again, if it is not only silent: it is gone, or rejects this machine's key.
    pub trouble: Option<Trouble>,
}

impl Redial {
    /// Returns the current route for the live display.
    pub fn live_route(&self, side: &RemoteCopy) -> LiveRoute {
        let why = if self.transports.len() > 1 {
            "the host is enrolled"
        } else {
            "as requested"
        };
        let text = format!(
            "{}, by {}, port {}: {why}",
            route::named(&side.far.operand),
            self.kind,
            self.peer.port
        );
        LiveRoute {
            text,
            peer: Some(route::named(&side.far.operand)),
            upgrade: self.lanes.clone(),
        }
    }

    /// Returns how many bytes had passed when the session moved from QUIC to TLS; `None` if it did not move.
    pub fn moved_after(&self) -> Option<u64> {
        self.lanes.as_ref().and_then(|lanes| lanes.moved_after())
    }

    /// Connects again and sends the first words. `None`: no connection within `--timeout` or [`REDIAL_LIMIT`], nothing
    /// listens at the server's port for [`GONE_LIMIT`], or the run must stop. Fails if the host presents another key. `report` is called every [`REPORT_EVERY`] with the time
    /// that has passed.
    pub fn link(
        &mut self,
        side: &RemoteCopy,
        env: &Env,
        first: &FirstWords,
        report: &mut dyn FnMut(Duration),
    ) -> Result<Option<Link>> {
        let secs = u64::from(side.options.connect.timeout_secs);
        let limit = if secs > 0 {
            Duration::from_secs(secs)
        } else {
            REDIAL_LIMIT
        };
        let since = Since::now();
        let mut reported = Since::now();
        let mut refused: Option<Since> = None;
        while since.elapsed() < limit && !env.is_stopping() {
            if reported.elapsed() >= REPORT_EVERY {
                report(since.elapsed());
                reported = Since::now();
            }
            let met = Arc::new(OnceLock::new());
            let dial = Dial {
                limit: limit.saturating_sub(since.elapsed()).min(DIAL_LIMIT),
                first_words: FirstBytes::by(first.maker()),
                ..dial(&self.identity, &self.peer, side.patience(env), met.clone())
            };
            match dial_all(&self.peer, &self.transports, &dial) {
                Ok(linked) => {
                    (self.kind, self.lanes) = (linked.kind, linked.lanes);
                    return Ok(Some(linked.link));
                }
                Err(Trouble::Refused) => {
                    if refused.get_or_insert_with(Since::now).elapsed() >= GONE_LIMIT {
                        self.trouble = Some(Trouble::Refused);
                        return Ok(None);
                    }
                }
                Err(
                    Trouble::Unreachable(_)
                    | Trouble::Silent(_)
                    | Trouble::Busy(_)
                    | Trouble::Broken(_),
                ) => refused = None,
                Err(Trouble::WrongKey(why)) => return Err(wrong_key(&self.peer, met.get(), &why)),
                Err(Trouble::NotAdmitted) => {
                    self.trouble = Some(Trouble::NotAdmitted);
                    return Ok(None);
                }
                Err(Trouble::Stopped) => return Ok(None),
            }
            let waits = Since::now();
            while waits.elapsed() < REDIAL_PAUSE && !env.is_stopping() {
                std::thread::sleep(LOOK);
            }
        }
        Ok(None)
    }
}

/// Connects to the server of a host that is about to be enrolled, and returns the protocol that worked.
pub fn try_out(env: &Env, identity: &Identity, peer: &Peer) -> Result<NetTransport> {
    let met = Arc::new(OnceLock::new());
    let patience = Patience {
        idle: Some(DIAL_LIMIT),
        stop: env.stop.clone(),
        ..Patience::default()
    };
    let dial = dial(identity, peer, patience, met.clone());
    match dial_all(peer, &[Transport::Quic, Transport::Tls], &dial) {
        Ok(linked) => Ok(linked.kind),
        Err(Trouble::WrongKey(why)) => Err(wrong_key(peer, met.get(), &why)),
        Err(why) => Err(not_enrolled(peer, &why)),
    }
}

fn not_enrolled(peer: &Peer, why: &Trouble) -> Error {
    let Peer { ssh, port, .. } = peer;
    let error = Error::new(Exit::StartClient, cannot_reach(peer, why));
    match why {
        Trouble::Stopped => Error::new(Exit::Signal, ""),
        Trouble::Busy(_) => error.with_hint(format!(
            "run `sparsync server status {ssh}` to see its sessions, then enroll again"
        )),
        Trouble::NotAdmitted | Trouble::WrongKey(_) | Trouble::Broken(_) => error.with_hint(
            format!("run `sparsync server status {ssh}` to see its last errors, then enroll again"),
        ),
        // The server runs, so something between the machines prevents the connection.
        Trouble::Refused | Trouble::Unreachable(_) | Trouble::Silent(_) => {
            error.with_hint(format!(
                "open UDP and TCP port {port} there, then enroll again; until then copies use ssh"
            ))
        }
    }
}

fn cannot_reach(peer: &Peer, why: &Trouble) -> String {
    format!(
        "sparsync: cannot reach {} ({} port {}): {why}",
        peer.name,
        peer.addresses.join(", "),
        peer.port
    )
}

/// Returns how to dial the server of a peer. `met` is set to the pin that the server presents.
pub fn dial(identity: &Identity, peer: &Peer, patience: Patience, met: Arc<OnceLock<Pin>>) -> Dial {
    Dial::new(
        tls::client_config_that_notes(identity, peer.pin, met),
        DIAL_LIMIT,
        patience,
    )
}

/// Dials all addresses of a peer with each of these protocols. The first connection that succeeds wins.
pub fn dial_all(
    peer: &Peer,
    transports: &[Transport],
    dial: &Dial,
) -> std::result::Result<Linked, Trouble> {
    let transports: Vec<NetTransport> = transports
        .iter()
        .filter_map(|transport| match transport {
            Transport::Quic => Some(NetTransport::Quic),
            Transport::Tls => Some(NetTransport::Tls),
            Transport::Ssh => None,
        })
        .collect();
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let mut unknown = String::new();
    for address in &peer.addresses {
        match (address.as_str(), peer.port).to_socket_addrs() {
            Ok(found) => addresses.extend(found),
            Err(error) => unknown = format!("{address}: {error}"),
        }
    }
    let mut seen = std::collections::HashSet::new();
    addresses.retain(|address| seen.insert(*address));
    if addresses.is_empty() {
        return Err(Trouble::Unreachable(unknown));
    }
    race(&addresses, &transports, dial)
}

fn transport_of(net: NetTransport) -> Transport {
    match net {
        NetTransport::Quic => Transport::Quic,
        NetTransport::Tls => Transport::Tls,
    }
}

fn wrong_key(peer: &Peer, shown: Option<&Pin>, why: &str) -> Error {
    match shown {
        Some(shown) => other_key(&peer.name, &peer.pin, shown),
        None => Error::new(
            Exit::StartClient,
            format!("sparsync: cannot verify the key of {}: {why}", peer.name),
        ),
    }
}

fn unreachable(side: &RemoteCopy, peer: &Peer, why: &Trouble) -> Error {
    let timeout_secs = u64::from(side.options.connect.timeout_secs);
    let exit = match why {
        Trouble::Stopped => return Error::new(Exit::Signal, "").by(side.role()),
        Trouble::Silent(_) if side.options.connect.contimeout_secs > 0 => Exit::ConTimeout,
        Trouble::Silent(limit)
            if *limit == Duration::from_secs(timeout_secs) && timeout_secs > 0 =>
        {
            Exit::Timeout
        }
        _ => Exit::SocketIo,
    };
    let hint = format!(
        "{}, or copy over ssh: --transport=ssh {}:PATH",
        advice(peer, why),
        peer.ssh
    );
    Error::new(exit, cannot_reach(peer, why))
        .by(side.role())
        .with_hint(hint)
}

/// Returns why the server of a host does not serve, as the reason for another route.
pub fn without_server(peer: &Peer, why: &Trouble) -> String {
    match why {
        Trouble::NotAdmitted => format!("its server denies access: {why}"),
        _ => format!("no connection to the server at port {}: {why}", peer.port),
    }
}

/// Returns the advice for a server that does not serve.
pub fn advice(peer: &Peer, why: &Trouble) -> String {
    let Peer {
        name, ssh, port, ..
    } = peer;
    match why {
        Trouble::NotAdmitted => format!("request access with `sparsync enroll {name}`"),
        Trouble::Refused => format!("start the server with `sparsync server start {ssh}`"),
        Trouble::Busy(_) => format!("run `sparsync server status {ssh}` to see its sessions"),
        Trouble::WrongKey(_) | Trouble::Broken(_) => format!("run `sparsync doctor {name}`"),
        Trouble::Unreachable(_) | Trouble::Silent(_) | Trouble::Stopped => {
            format!("open UDP and TCP port {port} there, run `sparsync server status {ssh}`")
        }
    }
}

/// Stores the winner for the next run; `trouble`: why it is not the server. Failures are ignored.
fn remember(places: &Places, peer: &Peer, transport: Transport, trouble: Option<String>) {
    let now = clock::now_unix().0;
    let secs = if transport == Transport::Ssh {
        LOSERS_SECS
    } else {
        WINNER_SECS
    };
    // An entry that has half of its time left is not renewed, so most runs write nothing.
    let is_fresh = peer.winner(Timestamp(now + secs / 2)) == Some(transport);
    if is_fresh {
        return;
    }
    // The next run only loses time.
    let _ = Peers::change(places, |peers| {
        if let Some(peer) = peers.hosts.iter_mut().find(|known| known.name == peer.name) {
            peer.last_transport = Some(transport);
            peer.last_until = Some(Timestamp(now + secs));
            peer.last_trouble = trouble;
        }
    });
}

/// How ssh would reach a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshFacts {
    /// The name or address that ssh would connect to.
    pub hostname: String,
    /// Whether ssh would connect through another machine or program.
    pub is_proxied: bool,
}

/// Asks ssh, without connecting. For another shell only the host name is known.
pub fn ssh_facts(shell: &[Vec<u8>], host: &str, umask: u32) -> SshFacts {
    let bare = host
        .rsplit_once('@')
        .map_or(host, |(_, bare)| bare)
        .to_owned();
    let mut facts = SshFacts {
        hostname: bare,
        is_proxied: false,
    };
    let is_ssh = shell
        .first()
        .is_none_or(|word| crate::path::file_name(word) == b"ssh");
    if !is_ssh {
        return facts;
    }
    let mut argv = shell.to_vec();
    if argv.is_empty() {
        argv.push(b"ssh".to_vec());
    }
    argv.extend([b"-G".to_vec(), host.into()]);
    if let Ok((_, output)) = shell::run_to_end(
        &argv,
        RunOptions {
            umask,
            input: None,
            is_quiet: true,
            most_bytes: FACTS_MAX_BYTES,
        },
    ) {
        facts.read(&String::from_utf8_lossy(&output));
    }
    facts
}

impl SshFacts {
    fn read(&mut self, output: &str) {
        for (key, value) in output.lines().filter_map(|line| line.split_once(' ')) {
            match key {
                "hostname" => self.hostname = value.to_owned(),
                "proxyjump" | "proxycommand" => self.is_proxied |= value != "none",
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_prompts_only_if_no_other_route_is_left() {
        let mut shells = Shells::default();
        assert_eq!(shells.next(false), Some(true));
        shells.begin(true);
        assert_eq!(
            (shells.next(false), shells.next(true)),
            (None, None),
            "one at a time"
        );
        assert!(shells.end());
        assert_eq!((shells.next(false), shells.next(true)), (None, Some(false)));
        shells.begin(false);
        assert!(!shells.end(), "no other route is left");
        assert_eq!(Shells::default().next(true), Some(false));
    }

    #[test]
    fn output_of_ssh_config_is_parsed() {
        let mut facts = SshFacts {
            hostname: "box".into(),
            is_proxied: false,
        };
        facts.read("user me\nhostname 192.0.2.5\nproxycommand none\nport 22\n");
        assert_eq!(
            facts,
            SshFacts {
                hostname: "192.0.2.5".into(),
                is_proxied: false
            }
        );
        facts.read("proxyjump gate\n");
        assert!(facts.is_proxied);
    }

    #[test]
    fn other_shells_provide_only_the_host_name() {
        let facts = ssh_facts(&[b"/opt/my-shell".to_vec()], "me@box", 0o022);
        assert_eq!(
            facts,
            SshFacts {
                hostname: "box".into(),
                is_proxied: false
            }
        );
    }
}
