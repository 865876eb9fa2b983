//! A daemon for stock clients (`--daemon`): listens, and starts a process for each connection.
//!
//! The process of a connection is a fork, which shares most of its memory with the daemon. The connection is its standard
//! input, as if inetd had started it.
//!
//! A connection takes these steps, in this order:
//!
//! 1. `serve` accepts it, and `connections.rs` counts it and remembers its process.
//! 2. `session/mod.rs` exchanges greetings and reads the name of a module, or lists the modules.
//! 3. `session/access.rs` decides whether this client may use it, by `hosts allow`, `max connections` and `auth users`.
//! 4. `session/confinement.rs` takes on the user and the root of the module; `session/hooks.rs` runs its programs.
//! 5. `session/request.rs` reads the arguments of the client, and changes and refuses options as the module demands.
//! 6. `cmd/remote_side/` runs the session: `rsync_client.rs` in rsync's protocol, or `sparsync_client.rs` if the
//!    client is sparsync. The process ends with the exit code of the session, which `post-xfer exec` learns.
//!
//! The daemon and `sparsync server` share what is the same: how networks are counted, the control socket and its status,
//! and the two ways to serve a client in `cmd/remote_side/`. They do not share the loop. This one is a single thread that
//! waits for plain sockets and forks, because a fork must not happen beside other threads; the server accepts QUIC and
//! TLS in a runtime, checks keys before it starts a process, and forwards the bytes of each session. So their tables hold
//! different things (processes here, grants and connections there), and the log here has rsync's format.
//!
//! `policy/` holds all decisions that need no system. `config_file.rs` reads the configuration for it.

mod config_file;
mod connections;
mod hooks;
mod log;
mod name_converter;
pub mod policy;
mod session;

use self::config_file::{read_config, variable};
use self::connections::{Connections, RequestReport};
use self::log::DaemonLog;
use self::policy::params::{Param, Values};
use crate::cli::daemon_args::{DaemonArgs, HELP};
use crate::cmd::command_end::{fail, write_text};
use crate::env::{self, Env};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys::{self, SocketOption};
use crate::fs::trusted_path;
use crate::options::LinkOwners;
use crate::options::connect::Family;
use crate::path;
use crate::report::event::errno_words;
use crate::transport::daemon_socket;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

/// The port if none is named.
const PORT: u16 = 873;
/// The most connections at once. More are rejected, so that clients that only connect cannot take all processes.
const CONNECTIONS_MAX: usize = 1000;
/// How often ended processes are collected while no client connects, in milliseconds.
const LOOK_MS: u32 = 500;

/// Runs a daemon, or one connection of it.
pub fn run(env: &mut Env, args: Result<Box<DaemonArgs>>) -> Exit {
    let ended = args
        .map_err(|error| error.by("client"))
        .and_then(|args| match () {
            () if args.help => write_text(&mut env.stdout, HELP.as_bytes()).map(|()| Exit::Ok),
            () if args.by_shell || sys::is_socket(io::stdin().as_fd()) => {
                Ok(session::run(env, &args, None))
            }
            () => listen(env, &args),
        });
    ended.unwrap_or_else(|error| fail(env, &error))
}

fn listen(env: &mut Env, args: &DaemonArgs) -> Result<Exit> {
    let args = &absolute(&env.cwd, args);
    let config = read_config(env, args)?;
    let vars = |name: &[u8]| variable(env, name);
    let log = DaemonLog::open(&config.globals, args.log_file.as_deref(), env.umask, &vars);
    for line in &config.complaints {
        log.put(line);
    }
    crate::cmd::server::sessions::can_start_processes()?;
    let backlog = config.globals.number(Param::ListenBacklog);
    let options = config
        .globals
        .text(Param::SocketOptions, &vars)
        .unwrap_or_default();
    let set_options = |socket: std::os::fd::BorrowedFd<'_>| {
        for option in options
            .split(|byte| byte.is_ascii_whitespace() || *byte == b',')
            .filter(|text| !text.is_empty())
        {
            if let Err(why) = set_option(socket, option) {
                log.put(&why);
            }
        }
    };
    let mut listeners = Vec::new();
    for address in addresses(&config.globals, args, &vars)? {
        match sys::listen_tcp(address, backlog, &set_options) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                let words = format!("rsync: [Receiver] bind({address}) failed: ").into_bytes();
                return Err(
                    Error::new(Exit::SocketIo, [words, errno_words(&error)].concat())
                        .by("Receiver"),
                );
            }
        }
    }
    if !args.stays {
        detach()?;
    }
    let pid_file = config.globals.text(Param::PidFile, &vars);
    let pid_file = pid_file
        .as_deref()
        .map(PidFile::write)
        .transpose()
        .inspect_err(|error| log.put(&error.message))?;
    let handled = env
        .note_term()
        .and_then(|is_terminated| env.handle_signals().map(|()| is_terminated));
    let is_terminated = handled.map_err(|error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot handle signals: {error}"),
        )
    })?;
    let ports: Vec<_> = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok())
        .collect();
    let port = ports.first().map_or(0, SocketAddr::port);
    let mut connections = Connections::new(ports).map_err(|error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot create a pipe: {error}"),
        )
    })?;
    if let Err(error) = connections.listen(env) {
        log.put(&error.text());
    }
    if config.globals.flag(Param::ProxyProtocol)
        && config.globals.raw(Param::ProxyProtocolHosts).is_none()
    {
        log.put(
            b"\"proxy protocol = true\" but \"proxy protocol hosts\" is unset: all connections will be rejected as \
            untrusted proxy peers.  Set \"proxy protocol hosts\" to your trusted proxy's address.",
        );
    }
    log.put(
        format!(
            "rsyncd version {} starting, listening on port {port}",
            env!("CARGO_PKG_VERSION")
        )
        .as_bytes(),
    );
    if args.stays {
        // The user may have closed standard output.
        let _ = writeln!(env.stdout, "sparsync: listening on port {port}")
            .and_then(|()| env.stdout.flush());
    }
    if let Some(stream) = serve(env, &listeners, &mut connections, &log) {
        drop(listeners);
        let report = connections.leave();
        if let Some(pid_file) = pid_file {
            pid_file.leave();
        }
        return Ok(run_connection(env, args, stream, report));
    }
    if is_terminated.load(Ordering::Relaxed) {
        // As in rsync: the usual end is not an error.
        log.put(b"sent 0 bytes  received 0 bytes  total size 0");
        return Ok(Exit::Ok);
    }
    log.put(b"rsync error: received SIGINT, SIGTERM, or SIGHUP (code 20)");
    Ok(Exit::Signal)
}

/// Makes the paths independent of the working directory, which changes in the background.
fn absolute(cwd: &[u8], args: &DaemonArgs) -> DaemonArgs {
    let absolute = |path: &Vec<u8>| {
        if path.starts_with(b"/") {
            path.clone()
        } else {
            path::join(cwd, path)
        }
    };
    let config = args.config.as_ref().map(absolute);
    let log_file = args.log_file.as_ref().map(absolute);
    DaemonArgs {
        config,
        log_file,
        ..args.clone()
    }
}

/// Sets an option of `socket options`: `NAME` or `NAME=VALUE`. The error is a line for the log.
fn set_option(
    socket: std::os::fd::BorrowedFd<'_>,
    text: &[u8],
) -> std::result::Result<(), Vec<u8>> {
    let (name, value) = match text.iter().position(|&byte| byte == b'=') {
        Some(sign) => (&text[..sign], Some(&text[sign + 1..])),
        None => (text, None),
    };
    let Some(option) = str::from_utf8(name).ok().and_then(SocketOption::named) else {
        return Err([b"Unknown socket option ", name].concat());
    };
    let number = value.map_or(Some(1), |value| str::from_utf8(value).ok()?.parse().ok());
    let failed = |why: &[u8]| [b"failed to set socket option ", name, b": ", why].concat();
    let number = number.ok_or_else(|| failed(b"invalid value"))?;
    option
        .set(socket, number)
        .map_err(|error| failed(&errno_words(&error)))
}

/// Returns the addresses to listen at.
fn addresses(
    globals: &Values,
    args: &DaemonArgs,
    vars: crate::cmd::rsync_daemon::policy::params::VarLookup<'_>,
) -> Result<Vec<SocketAddr>> {
    let port = match globals.number(Param::Port) {
        // The command line can request any free port.
        0 if args.port != Some(0) => PORT,
        port => u16::try_from(port)
            .map_err(|_| Error::usage(format!("sparsync: invalid port: {port}")))?,
    };
    let Some(name) = globals.text(Param::Address, vars) else {
        let all = match args.family {
            Some(Family::Ipv4) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Some(Family::Ipv6) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            None => {
                crate::transport::net::server::supported(crate::transport::net::server::EVERYWHERE)
            }
        };
        return Ok(vec![SocketAddr::new(all, port)]);
    };
    let shown = String::from_utf8_lossy(&name).into_owned();
    let failed = |why: &str| {
        Error::new(
            Exit::SocketIo,
            format!("rsync: getaddrinfo: {shown} {port}: {why}"),
        )
    };
    let mut found = daemon_socket::addresses(&shown, port).map_err(|why| failed(&why))?;
    found.retain(|address| {
        args.family
            .is_none_or(|family| address.is_ipv6() == (family == Family::Ipv6))
    });
    found.dedup();
    if found.is_empty() {
        Err(failed("no address of that family"))
    } else {
        Ok(found)
    }
}

/// Continues in the background. The first process ends.
fn detach() -> Result<()> {
    let failed =
        |error: &io::Error| Error::new(Exit::Ipc, format!("sparsync: cannot detach: {error}"));
    if sys::fork().map_err(|error| failed(&error))?.is_some() {
        env::end_now(0);
    }
    env::leave_terminal();
    env::leave_streams(true);
    // A busy file system must not be kept from being unmounted.
    sys::change_dir(b"/").map_err(|error| failed(&error))
}

/// The pid file, which is locked while the daemon runs and removed at its end.
struct PidFile {
    /// `None` in the process of a connection.
    path: Option<Vec<u8>>,
    _lock: OwnedFd,
}

impl PidFile {
    fn write(path: &[u8]) -> Result<PidFile> {
        let because = |start: &[u8], why: &[u8]| {
            Error::new(
                Exit::FileIo,
                [start, b" pid file ", path, b": ", why].concat(),
            )
            .by("Receiver")
        };
        let failed = |error: &io::Error| because(b"failed to create", &errno_words(error));
        remove_symlink(path);
        let file = trusted_path::open_append(path, 0o644, LinkOwners::Trusted);
        let file = file.map_err(|error| failed(&error))?;
        if !sys::try_lock(file.as_fd()).map_err(|error| failed(&error))? {
            return Err(because(
                b"failed to lock",
                b"Resource temporarily unavailable",
            ));
        }
        sys::truncate(file.as_fd(), 0)
            .and_then(|()| {
                sys::write_all(file.as_fd(), format!("{}\n", std::process::id()).as_bytes())
            })
            .map_err(|error| failed(&error))?;
        Ok(PidFile {
            path: Some(path.to_vec()),
            _lock: file,
        })
    }

    /// Leaves the file to the daemon, in the process of a connection.
    fn leave(mut self) {
        self.path = None;
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A file that stays is overwritten by the next daemon.
        let Some(path) = &self.path else { return };
        if let Ok(dir) = trusted_path::open_dir(path::split_parent(path).0, LinkOwners::Trusted) {
            let _ = sys::unlink(dir.as_fd(), path::file_name(path));
        }
    }
}

/// Removes a symlink in place of a pid file, as rsync does.
fn remove_symlink(path: &[u8]) {
    let parent = path::split_parent(path).0;
    let name = path::file_name(path);
    if let Ok(dir) = trusted_path::open_dir(parent, LinkOwners::Trusted)
        && sys::read_link(dir.as_fd(), name).is_ok()
    {
        // One that stays is followed if it belongs to a trusted user.
        let _ = sys::unlink(dir.as_fd(), name);
    }
}

/// Accepts connections until the daemon is stopped. Returns `None` then, and the connection in the process for one.
fn serve(
    env: &Env,
    listeners: &[TcpListener],
    connections: &mut Connections,
    log: &DaemonLog,
) -> Option<TcpStream> {
    for listener in listeners {
        // A listener that blocks is only asked when a connection waits.
        let _ = listener.set_nonblocking(true);
    }
    while !env.stop.load(Ordering::Relaxed) {
        connections.update();
        let fds: Vec<_> = listeners
            .iter()
            .map(AsFd::as_fd)
            .chain(connections.fds())
            .collect();
        if !sys::wait_any_readable(&fds, LOOK_MS).unwrap_or(false) {
            continue;
        }
        connections.answer();
        for listener in listeners {
            let Ok((stream, client)) = listener.accept() else {
                continue;
            };
            let is_full = connections.count() >= CONNECTIONS_MAX;
            if is_full && !connections.make_room(client.ip(), log) {
                reject(&stream);
                continue;
            }
            match sys::fork() {
                Ok(Some(process)) => connections.add(process, client.ip(), log),
                Ok(None) => return Some(stream),
                Err(error) => log.put(
                    &[
                        b"rsync: could not create child server process: ".as_slice(),
                        &errno_words(&error),
                    ]
                    .concat(),
                ),
            }
        }
    }
    None
}

/// Runs the connection of this process, which [`serve`] has started.
fn run_connection(
    env: &mut Env,
    args: &DaemonArgs,
    stream: TcpStream,
    report: RequestReport,
) -> Exit {
    let became = stream
        .set_nonblocking(false)
        .and_then(|()| env::become_streams(stream.as_fd()));
    drop(stream);
    // Without streams, the client sees the end of the connection.
    became.map_or(Exit::SocketIo, |()| session::run(env, args, Some(report)))
}

/// Informs a client that there are too many connections.
fn reject(mut stream: &TcpStream) {
    let line = format!("@ERROR: max connections ({CONNECTIONS_MAX}) reached -- try again later\n");
    // The client learns by the end of the connection, too.
    let _ = stream
        .set_nonblocking(true)
        .and_then(|()| stream.write_all(line.as_bytes()));
}
