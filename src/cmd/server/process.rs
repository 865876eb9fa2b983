//! The process of this user's server: starts it, in the foreground or in the background, checks it, and stops it.

use super::control_socket::{self, Question, Status};
use super::listen::{self, StartFailure};
use super::sd_notify::Supervisor;
use super::sessions::{self, READY};
use super::{log, port_owner};
use crate::cli::subcommand::{ServerAction, Start};
use crate::cmd::command_end::{print_line, write_text};
use crate::env::{self, Env};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::transport::link::{Patience, PatientReader};
use crate::transport::net::NetTransport;
use crate::transport::net::client::{Dial, race};
use crate::transport::net::server::supported;
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::tls;
use crate::work::clock::Since;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;
use std::time::Duration;

/// How long a server may take to listen, and then to answer.
pub const START_MAX: Duration = Duration::from_secs(10);
/// How long `stop --now` waits before it kills the server, `stop` before it suggests `--now`, and `start` for a server
/// that is ending.
const STOP_MAX: Duration = Duration::from_secs(15);
/// How long a server may take to exit after it has closed its control connections or was killed.
const LET_GO_MAX: Duration = Duration::from_secs(10);

/// Describes a running server.
pub fn shown_at(status: &Status) -> String {
    let by = if status.supervised {
        ", started by systemd"
    } else {
        ""
    };
    format!(
        "process {}, port {} (UDP and TCP){by}",
        status.pid, status.port
    )
}

/// Starts the server, in this process or in the background.
pub fn start(env: &mut Env, places: &Places, start: &Start) -> Result<Exit> {
    if start.detached {
        return in_this_process(env, places, start).inspect_err(|error| {
            // Standard error goes to the log. The starting process reads standard output.
            let _ = write_text(&mut env.stdout, &error.text());
        });
    }
    if start.foreground {
        if Supervisor::from_env(env).is_present()
            && let Some(status) = at_work(env, places)?
        {
            return Err(not_the_supervisors(status.pid));
        }
        return match running(env, places, start)? {
            Some(_) => {
                print_line(env, "sparsync: the server is already running").map(|()| Exit::Ok)
            }
            None => in_this_process(env, places, start),
        };
    }
    let (status, is_new) = ensure(env, places, start)?;
    let words = if is_new {
        "server started"
    } else {
        "the server is already running"
    };
    let pin = status.pin.map(|pin| pin.to_string()).unwrap_or_default();
    print_line(
        env,
        &format!("sparsync: {words}: {}, key {pin}", shown_at(&status)),
    )?;
    Ok(Exit::Ok)
}

fn in_this_process(env: &mut Env, places: &Places, start: &Start) -> Result<Exit> {
    match sessions::run(env, places, start) {
        Ok(exit) => Ok(exit),
        Err(StartFailure::Runs) => {
            print_line(env, "sparsync: the server is already running").map(|()| Exit::Ok)
        }
        Err(StartFailure::Error(error)) => Err(error),
    }
}

/// Returns the error for a start by a supervisor while another server runs. A supervisor waits for this process to
/// become ready, so success would look to it like a server that has ended.
fn not_the_supervisors(pid: u32) -> Error {
    let words = format!(
        "sparsync: cannot start the server: another one runs outside of systemd (process {pid})"
    );
    Error::new(Exit::Ipc, words).with_hint("stop it with `sparsync server stop`")
}

/// Returns the server that accepts clients where `start` requests it, if one runs. Fails if one runs with other
/// settings.
fn running(env: &mut Env, places: &Places, start: &Start) -> Result<Option<Status>> {
    let status = at_work(env, places)?;
    status
        .iter()
        .try_for_each(|status| matches_request(status, start))?;
    Ok(status)
}

/// Returns the server that accepts clients, if one runs. Waits up to [`STOP_MAX`] for one that is ending.
fn at_work(env: &mut Env, places: &Places) -> Result<Option<Status>> {
    let mut waits = None;
    while let Some(status) = control_socket::status(places)? {
        if !status.draining {
            return Ok(Some(status));
        }
        let (since, _) = *waits.get_or_insert_with(|| {
            print_waiting(env, &status);
            (Since::now(), status.pid)
        });
        if since.elapsed() > STOP_MAX {
            let words = format!(
                "sparsync: cannot start the server: the old one (process {}) still waits for its sessions",
                status.pid
            );
            return Err(
                Error::new(Exit::Ipc, words).with_hint("`sparsync server stop --now` ends them")
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if let Some((_, pid)) = waits {
        wait_until_gone(places, pid)?;
    }
    Ok(None)
}

/// Fails if a running server listens elsewhere than `start` requests, or has another memory limit.
fn matches_request(status: &Status, start: &Start) -> Result<()> {
    if let Some(bytes) = start
        .memory
        .filter(|&bytes| bytes != status.memory_max_bytes)
    {
        let words = format!(
            "sparsync: cannot change --memory: the server is already running ({}) with --memory={}",
            shown_at(status),
            status.memory_max_bytes
        );
        let hint = format!("`sparsync server restart --memory={bytes}` changes it");
        return Err(Error::new(Exit::Ipc, words).with_hint(hint));
    }
    let is_port = start
        .port
        .is_none_or(|port| port == 0 || port == status.port);
    let given: BTreeSet<IpAddr> = start
        .listen
        .iter()
        .filter_map(|at| at.parse().ok())
        .map(supported)
        .collect();
    let all = status
        .addresses
        .iter()
        .filter_map(|address| address.parse::<SocketAddr>().ok());
    let is_place = given.is_empty() || given == all.map(|at| at.ip()).collect();
    if is_port && is_place {
        return Ok(());
    }
    let words: Vec<_> = start
        .listen
        .iter()
        .map(|address| format!(" --listen={address}"))
        .collect();
    let port = start
        .port
        .map(|port| format!(" --port={port}"))
        .unwrap_or_default();
    let (by, with) = if status.supervised {
        ("install", ", with the commands that it prints")
    } else {
        ("restart", "")
    };
    let hint = format!(
        "`sparsync server {by}{}{port}` moves it{with}",
        words.concat()
    );
    let words = format!(
        "sparsync: cannot change the address: the server is already running ({}) on {}",
        shown_at(status),
        status.addresses.join(", ")
    );
    Err(Error::new(Exit::SocketIo, words).with_hint(hint))
}

/// Makes sure that a server runs with these settings and that a handshake with it succeeds. Returns its status, and
/// whether it was started now.
pub fn ensure(env: &mut Env, places: &Places, start: &Start) -> Result<(Status, bool)> {
    if let Some(status) = running(env, places, start)? {
        return Ok((status, false));
    }
    let identity = Identity::load_or_make(places)?;
    let mut is_new = in_background(env, places, start)?;
    let waits = Since::now();
    loop {
        // A server that another process starts at the same time may need a little longer.
        if let Some(status) = control_socket::status(places)?.filter(|status| !status.draining) {
            matches_request(&status, start)?;
            probe(&identity, &status)?;
            return Ok((status, is_new));
        }
        if waits.elapsed() > START_MAX {
            let log = places.state.join(log::FILE);
            let words = format!(
                "sparsync: cannot start the server: no answer within {} s",
                START_MAX.as_secs()
            );
            return Err(
                Error::new(Exit::Ipc, words).with_hint(format!("its log is {}", log.display()))
            );
        }
        std::thread::sleep(Duration::from_millis(if is_new { 10 } else { 50 }));
        if !is_new {
            // The server that was there first may have been about to end.
            is_new = in_background(env, places, start)?;
        }
    }
}

/// Starts the server in the background. Returns `false` if another one runs already.
fn in_background(env: &Env, places: &Places, start: &Start) -> Result<bool> {
    let failed = |what: &str, error: std::io::Error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot {what} the server: {error}"),
        )
    };
    sessions::can_start_processes()?;
    let log = log::open(places)?;
    let words = ServerAction::Start(Start {
        detached: true,
        ..start.clone()
    })
    .words();
    let words: Vec<_> = words.into_iter().map(OsString::from_vec).collect();
    let mut command = env::itself(&words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    sys::set_umask(env.umask);
    command.current_dir("/");
    // The child runs in `/`, so a relative path must become absolute.
    if env.var("SPARSYNC_CONFIG_DIR").is_some() {
        command.env("SPARSYNC_CONFIG_DIR", &places.config);
    }
    let child = sys::keep_inherited_files().and_then(|()| command.spawn());
    sys::take_umask();
    let mut child = child.map_err(|error| failed("start", error))?;
    let Some(stdout) = child.stdout.take() else {
        return Err(failed("read from", std::io::ErrorKind::BrokenPipe.into()));
    };
    let patience = Patience {
        idle: Some(START_MAX),
        stop: env.stop.clone(),
        ..Patience::default()
    };
    let mut output = Vec::new();
    let read = PatientReader::new(stdout, patience)
        .take(64 << 10)
        .read_to_end(&mut output);
    if output == READY {
        return Ok(true);
    }
    read.map_err(|error| failed("read from", error))?;
    let status = child.wait().map_err(|error| failed("wait for", error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    match code {
        Some(0) => Ok(false),
        Some(code) => Err(Error::of_text(
            Exit::of_code(code).unwrap_or(Exit::Other(code)),
            &output,
        )),
        None => Err(Error::new(
            Exit::Crashed,
            format!("sparsync: cannot start the server: it ended at once: {status}"),
        )),
    }
}

/// Completes a handshake with the server of this user, to show that clients can connect.
pub fn probe(identity: &Identity, status: &Status) -> Result<()> {
    let cannot = |why: String| {
        Error::new(
            Exit::SocketIo,
            format!("sparsync: cannot complete a handshake with the server: {why}"),
        )
    };
    let address = status
        .addresses
        .first()
        .and_then(|address| address.parse::<SocketAddr>().ok());
    let address = address.ok_or_else(|| cannot("it reports no address".into()))?;
    let patience = Patience {
        idle: Some(START_MAX),
        ..Patience::default()
    };
    let tls = tls::client_config(identity, status.pin.unwrap_or(identity.pin));
    let won = race(
        &own_addresses(address),
        &NetTransport::BOTH,
        &Dial::new(tls, START_MAX, patience.clone()),
    );
    won.map(|_| patience.parting.begin())
        .map_err(|trouble| cannot(trouble.to_string()))
}

/// Returns the addresses at which this machine reaches its own server. A server on all addresses accepts both families,
/// but a machine may support IPv6 and have no IPv6 address.
fn own_addresses(address: SocketAddr) -> Vec<SocketAddr> {
    let at = |ip: IpAddr| SocketAddr::new(ip, address.port());
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![at(Ipv4Addr::LOCALHOST.into())],
        IpAddr::V6(ip) if ip.is_unspecified() => vec![
            at(Ipv6Addr::LOCALHOST.into()),
            at(Ipv4Addr::LOCALHOST.into()),
        ],
        IpAddr::V4(_) | IpAddr::V6(_) => vec![address],
    }
}

/// The line that `server stop` ends with.
pub const SERVER_STOPPED: &str = "sparsync: server stopped";

/// Stops the server: at once with the request `now`, or when its sessions have ended if that is `None`.
pub fn stop(env: &mut Env, places: &Places, now: Option<Question>) -> Result<Exit> {
    // Only the server with this process id is meant, not one that replaces it meanwhile.
    let Some(pid) = listen::pid(places) else {
        print_line(
            env,
            &format!("sparsync: no server is running{}", at_its_port(places)),
        )?;
        return Ok(Exit::Ok);
    };
    let question = now.unwrap_or(Question::Drain);
    let now = now.is_some();
    let answer = if now {
        Ok(None)
    } else {
        control_socket::status(places)
    };
    let status = match answer {
        Err(error) if error.exit == Exit::Ipc => return Err(error),
        // An unreadable status must not prevent the stop.
        status => status.ok().flatten(),
    };
    match control_socket::end(places, question) {
        Ok(Some(ending)) if now => drop(ending.wait(Some(STOP_MAX))),
        Ok(Some(ending)) => {
            if let Some(status) = &status {
                print_waiting(env, status);
            }
            if !ending.wait(Some(STOP_MAX)) {
                // A lost notice must not prevent the stop.
                let _ = env.stderr.write_all(
                    b"sparsync: still waiting; `sparsync server stop --now` ends the sessions\n",
                );
                ending.wait(None);
            }
        }
        // A server that no longer answers still holds its lock.
        Ok(None) => kill_server(places, pid, now)?,
        Err(error) if !now => return Err(error),
        Err(_) => kill_server(places, pid, true)?,
    }
    match wait_until_gone(places, pid) {
        Err(_) if now => {
            kill_server(places, pid, true)?;
            wait_until_gone(places, pid)?;
        }
        waited => waited?,
    }
    let again = match status {
        Some(status) if status.supervised => {
            format!("; `{} start sparsync` starts it again", systemctl())
        }
        _ => String::new(),
    };
    print_line(env, &format!("{SERVER_STOPPED}{again}"))?;
    Ok(Exit::Ok)
}

/// Returns a note about the process that owns the port of a server that does not run: without its state directory a
/// running server cannot be asked.
pub fn at_its_port(places: &Places) -> String {
    let port = listen::port_of(places, &Start::default());
    let hint = |holder| {
        format!(
            " with its state in {}; port {port} is in use by {holder}",
            places.state.display()
        )
    };
    port_owner::of_port(port).map_or_else(String::new, hint)
}

/// Returns the command that controls the systemd of this user.
fn systemctl() -> &'static str {
    if sys::ids().0 == 0 {
        "systemctl"
    } else {
        "systemctl --user"
    }
}

/// Prints the sessions that must end first, if there are any.
fn print_waiting(env: &mut Env, status: &Status) {
    let count = status.sessions.len();
    if count == 0 {
        return;
    }
    let sessions: Vec<_> = status
        .sessions
        .iter()
        .map(|session| format!("{} from {}", session.name, session.address))
        .collect();
    let noun = if count == 1 { "session" } else { "sessions" };
    let line = format!(
        "sparsync: waiting for {count} {noun}: {}\n",
        sessions.join(", ")
    );
    // A lost notice must not prevent the stop.
    let _ = env.stderr.write_all(line.as_bytes());
}

fn kill_server(places: &Places, pid: u32, now: bool) -> Result<()> {
    if listen::pid(places) != Some(pid) {
        return Ok(());
    }
    match env::end_process(pid, now) {
        Err(error) if listen::pid(places) == Some(pid) => Err(Error::new(
            Exit::Ipc,
            format!("sparsync: cannot stop the server (process {pid}): {error}"),
        )),
        _ => Ok(()),
    }
}

/// Waits until the server with this process id has released its lock. Fails after [`LET_GO_MAX`].
fn wait_until_gone(places: &Places, pid: u32) -> Result<()> {
    let waits = Since::now();
    while listen::pid(places) == Some(pid) {
        if waits.elapsed() > LET_GO_MAX {
            let words = format!("sparsync: cannot stop the server (process {pid}): it still runs");
            return Err(
                Error::new(Exit::Ipc, words).with_hint("`sparsync server stop --now` kills it")
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the addresses given with `--listen`. Empty if the server listens on all addresses.
pub fn given_addresses(status: &Status) -> Vec<IpAddr> {
    let all = status
        .addresses
        .iter()
        .filter_map(|address| address.parse::<SocketAddr>().ok());
    all.map(|at| at.ip())
        .filter(|ip| !ip.is_unspecified())
        .collect()
}

/// Stops the server and starts it again, with its settings unless new ones are given.
pub fn restart(env: &mut Env, places: &Places, mut wanted: Start, now: bool) -> Result<Exit> {
    let mut running = Vec::new();
    match control_socket::status(places) {
        Ok(Some(status)) if status.supervised => {
            let words = format!(
                "sparsync: cannot restart the server (process {}): systemd manages it",
                status.pid
            );
            let hint = format!(
                "run `{} restart sparsync` if `sparsync server install` wrote its unit",
                systemctl()
            );
            return Err(Error::new(Exit::Unsupported, words).with_hint(hint));
        }
        Ok(Some(status)) => {
            running = status
                .addresses
                .iter()
                .filter_map(|address| address.parse().ok())
                .collect();
            // Keep the settings of the running server unless new ones are given.
            wanted.port = wanted.port.or(Some(status.port));
            wanted.memory = wanted
                .memory
                .or(Some(status.memory_max_bytes).filter(|&bytes| bytes > 0));
            if wanted.listen.is_empty() {
                wanted.listen = given_addresses(&status)
                    .iter()
                    .map(ToString::to_string)
                    .collect();
            }
        }
        Ok(None) => {}
        Err(_) if wanted.port.is_some() => {}
        Err(_) => {
            let line = format!(
                "sparsync: cannot read the address of the running server; the new one uses port {}\n",
                listen::port_of(places, &wanted)
            );
            // A lost notice must not prevent the restart.
            let _ = env.stderr.write_all(line.as_bytes());
        }
    }
    // Check first: the running server must stay if a new one could not start.
    listen::could_start(places, &wanted, &running)?;
    let question = if now { Some(Question::GiveWay) } else { None };
    stop(env, places, question)?;
    start(env, places, &wanted)
}

#[cfg(test)]
mod tests {
    use super::own_addresses;

    #[test]
    fn wildcard_address_maps_to_loopback_addresses() {
        let addresses = |address: &str| {
            let own = own_addresses(address.parse().unwrap());
            own.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses("[::]:28792"), ["[::1]:28792", "127.0.0.1:28792"]);
        assert_eq!(addresses("0.0.0.0:28792"), ["127.0.0.1:28792"]);
        assert_eq!(addresses("192.0.2.7:28792"), ["192.0.2.7:28792"]);
        assert_eq!(addresses("[2001:db8::7]:28792"), ["[2001:db8::7]:28792"]);
    }
}
