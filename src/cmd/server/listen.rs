//! Where a server listens: the lock of its state directory, and the addresses and the port that it remembers for the next
//! start.

use super::{control_socket, port_owner};
use crate::cli::subcommand::{DEFAULT_PORT, Start};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{errno, sys, trusted_path};
use crate::options::LinkOwners;
use crate::transport::link::Patience;
use crate::transport::net::server::{EVERYWHERE, Lasting, Listener, are_free, listen, supported};
use crate::transport::net::server_limits::Limits;
use crate::trust::files::{self, List as _};
use crate::trust::grants::Grants;
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::tls;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use tracing::warn;

/// Holds the lock of the one server of a state directory, and its process id.
const PID_FILE: &str = "server.pid";
/// Holds the port of the last start with `--port`, or the one that a server chose because its port was in use.
const PORT_FILE: &str = "server.port";
/// The addresses last given with `--listen`, one in each line, below the state directory.
const LISTEN_FILE: &str = "server.listen";
/// The maximum length of that file.
const LISTEN_MAX_BYTES: usize = 4 << 10;
/// How many ports are tried, the first one included, before the system chooses one.
const NEXT_PORTS: u16 = 16;

/// Why no server was started.
pub enum StartFailure {
    /// One is running already.
    Runs,
    /// Starting it failed.
    Error(Error),
}

impl From<Error> for StartFailure {
    fn from(error: Error) -> StartFailure {
        StartFailure::Error(error)
    }
}

/// Takes the lock of the state directory, and writes the process id there.
pub fn take_lock(places: &Places) -> std::result::Result<OwnedFd, StartFailure> {
    let path = places.state.join(PID_FILE);
    let failed = |error: io::Error| files::failed("write", &path, &error);
    let dir = control_socket::state_dir(places)?;
    let file = sys::open_append_at(dir.as_fd(), PID_FILE.as_bytes(), 0o600).map_err(failed)?;
    while !sys::try_lock(file.as_fd()).map_err(failed)? {
        // A process in `pid` may hold a shared lock for a moment.
        if !sys::try_share_lock(file.as_fd()).map_err(failed)? {
            return Err(StartFailure::Runs);
        }
        std::thread::yield_now();
    }
    sys::truncate(file.as_fd(), 0)
        .and_then(|()| sys::write_all(file.as_fd(), format!("{}\n", std::process::id()).as_bytes()))
        .map_err(failed)?;
    Ok(file)
}

/// Returns the process id of the server that holds the lock; `None` if no server runs.
pub fn pid(places: &Places) -> Option<u32> {
    let dir =
        trusted_path::open_dir(places.state.as_os_str().as_bytes(), LinkOwners::Trusted).ok()?;
    let file = sys::open_write(dir.as_fd(), PID_FILE.as_bytes()).ok()?;
    if sys::try_share_lock(file.as_fd()).ok()? {
        return None;
    }
    String::from_utf8(sys::read_to_end(file.as_fd(), 64).ok()?)
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Listens on the given addresses, or on all addresses of this machine.
pub fn open(
    config: &tls::ServerTls,
    lasting: Lasting,
    start: &Start,
    port: u16,
    limits: &Limits,
) -> Result<Listener> {
    // Sessions have no read timeout; a [`HangUp`] ends them.
    let patience = Patience::default();
    let at = |port| {
        listen(
            &places_of(start, port),
            config.clone(),
            lasting,
            limits,
            &patience,
        )
    };
    // The next ports first: the system would choose one that outgoing connections use, too.
    let next = (1..NEXT_PORTS)
        .filter_map(|step| port.checked_add(step))
        .chain([0]);
    let mut listened = at(port);
    for other in next {
        let is_in_use = listened
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
        if !start.or_other_port || !is_in_use {
            break;
        }
        listened = at(other);
    }
    listened.map_err(|error| cannot_listen(port, &error))
}

/// Returns where a server with these options listens.
fn places_of(start: &Start, port: u16) -> Vec<SocketAddr> {
    if start.listen.is_empty() {
        return vec![SocketAddr::new(supported(EVERYWHERE), port)];
    }
    let given = start
        .listen
        .iter()
        .filter_map(|address| address.parse().ok());
    given
        .map(|ip: IpAddr| SocketAddr::new(supported(ip), port))
        .collect()
}

/// Returns the port of a server started with these options: `--port`, else the last port given, which clients know,
/// else [`DEFAULT_PORT`]. 0: the system chooses a free one.
pub fn port_of(places: &Places, start: &Start) -> u16 {
    let remembered = || {
        let path = places.state.join(PORT_FILE);
        let text =
            trusted_path::read_path(path.as_os_str().as_bytes(), 16, LinkOwners::Trusted).ok()?;
        String::from_utf8(text)
            .ok()?
            .trim()
            .parse()
            .ok()
            .filter(|&port| port > 0)
    };
    start.port.or_else(remembered).unwrap_or(DEFAULT_PORT)
}

/// Adds the addresses that were given last, unless others are given now.
pub fn with_addresses(places: &Places, start: &Start) -> Result<Start> {
    let path = places.state.join(LISTEN_FILE);
    if !start.listen.is_empty() {
        return Ok(start.clone());
    }
    let read = errno::if_there(trusted_path::read_path(
        path.as_os_str().as_bytes(),
        LISTEN_MAX_BYTES,
        LinkOwners::Trusted,
    ));
    let Some(text) = read.map_err(|error| files::failed("read", &path, &error))? else {
        return Ok(start.clone());
    };
    let listen = String::from_utf8_lossy(&text)
        .lines()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    // A damaged file must not open the server to all addresses.
    if !listen.is_empty() && listen.iter().all(|line| line.parse::<IpAddr>().is_ok()) {
        Ok(Start {
            listen,
            ..start.clone()
        })
    } else {
        Err(files::failed(
            "read",
            &path,
            &io::ErrorKind::InvalidData.into(),
        ))
    }
}

/// Stores the addresses of the server. Fails if that is not possible: the next start would open it to all.
pub fn remember_addresses(places: &Places, start: &Start) -> Result<()> {
    let text: String = start
        .listen
        .iter()
        .map(|address| format!("{address}\n"))
        .collect();
    if start.listen.is_empty() {
        return Ok(());
    }
    remember(places, LISTEN_FILE, &text)
        .map_err(|error| files::failed("write", &places.state.join(LISTEN_FILE), &error))
}

/// Stores the port of the server, even if the system chose it: enrolled clients know no other.
pub fn remember_port(places: &Places, start: &Start, addresses: &[SocketAddr]) {
    let Some(port) = addresses.first().map(SocketAddr::port) else {
        return;
    };
    if start.port.is_none() && port == port_of(places, start) {
        return;
    }
    if let Err(error) = remember(places, PORT_FILE, &format!("{port}\n")) {
        warn!("cannot store the port for the next start: {error}");
    }
}

fn remember(places: &Places, name: &str, text: &str) -> io::Result<()> {
    let dir = trusted_path::open_dir(places.state.as_os_str().as_bytes(), LinkOwners::Trusted)?;
    files::put(dir.as_fd(), name, text.as_bytes(), 0o600)
}

/// Returns the process that owns a port which is in use.
pub fn holder_of(port: u16) -> String {
    port_owner::of_port(port).unwrap_or_else(|| "a process of another user".into())
}

fn cannot_listen(port: u16, error: &io::Error) -> Error {
    let words = format!("sparsync: cannot listen on port {port}: {error}");
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let words = format!("{words} by {}", holder_of(port));
            Error::new(Exit::SocketIo, words).with_hint("choose another port with --port=PORT")
        }
        io::ErrorKind::PermissionDenied => Error::new(Exit::SocketIo, words)
            .with_hint("choose a port from 1024 up with --port=PORT"),
        io::ErrorKind::AddrNotAvailable => Error::new(Exit::SocketIo, words)
            .with_hint("choose other addresses with --listen=ADDRESS; --listen=:: means all"),
        _ => Error::new(Exit::SocketIo, words),
    }
}

/// Fails if a new server would not start: its key or its grants cannot be read, or an address that the running server
/// (`running`, empty: none runs) does not listen at is not free.
pub fn could_start(places: &Places, start: &Start, running: &[SocketAddr]) -> Result<()> {
    Identity::load_or_make(places)?;
    Grants::load(places)?;
    let start = &with_addresses(places, start)?;
    let port = port_of(places, start);
    let on_port = || running.iter().filter(|at| at.port() == port);
    // An IPv6 socket for all addresses also takes the IPv4 ones.
    let covers = |all: &SocketAddr, at: &SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv6() || at.is_ipv4())
    };
    let mut wanted = places_of(start, port);
    let is_everywhere = start.listen.is_empty();
    wanted.retain(|at| !on_port().any(|own| own == at || covers(own, at)));
    let is_held = if is_everywhere {
        on_port().next().is_some()
    } else {
        wanted.is_empty()
    };
    if running.is_empty() || is_held {
        return Ok(());
    }
    are_free(&wanted).map_err(|error| cannot_listen(port, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A child that a test beside this one starts inherits the lock until it runs its program.
    #[test]
    fn lookup_of_a_server_does_not_block_its_lock() {
        if !crate::cmd::is_test_alone(
            "cmd::server::listen::tests::lookup_of_a_server_does_not_block_its_lock",
        ) {
            return;
        }
        let top = tempfile::tempdir().unwrap();
        let places = Places {
            config: top.path().into(),
            state: top.path().join("state"),
        };
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    pid(&places);
                }
            });
            for _ in 0..2000 {
                let lock = take_lock(&places).ok();
                is_done.fetch_or(lock.is_none(), Ordering::Relaxed);
                assert!(lock.is_some(), "no server runs");
                assert_eq!(pid(&places), Some(std::process::id()));
                assert!(matches!(take_lock(&places), Err(StartFailure::Runs)));
            }
            is_done.store(true, Ordering::Relaxed);
        });
    }
}
