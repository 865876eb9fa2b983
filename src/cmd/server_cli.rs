//! `sparsync server`: starts, stops and inspects the server of this user, and manages its grants, here or on another
//! host.

use super::command_end::{fail, write_text};
use super::control_socket::{self, Question, Status};
use super::daemon::{self, READY, Unable};
use super::sd_notify::Supervisor;
use super::{enroll, port_owner, server_log, server_session, systemd_unit};
use crate::cli::subcommand::{NewGrant, RemoteHost, Rights, Server, ServerAction, Start};
use crate::env::{self, Env};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{ids, sandbox, sys};
use crate::report::event::errno_words;
use crate::transport::link::{Patience, PatientReader};
use crate::transport::net::NetTransport;
use crate::transport::net::client::{Dial, race};
use crate::transport::{shell, stdio};
use crate::trust::enroll_reply::{Granted, Introduction, ServerState};
use crate::trust::files::List as _;
use crate::trust::grants::{Grant, Grants, NO_SUCH_GRANT, Put};
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::peers::Peers;
use crate::trust::timestamp::Moment;
use crate::trust::{Pin, tls};
use crate::work::clock::{self, Since};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;
use std::time::Duration;

/// The exit code of `status` if no server runs, as with `systemctl status`.
const NOT_RUNNING: Exit = Exit::Other(3);

/// How long a server may take to listen, and then to answer.
const START_MAX: Duration = Duration::from_secs(10);
/// How long `stop --now` waits before it kills the server, `stop` before it suggests `--now`, and `start` for a server
/// that is ending.
const STOP_MAX: Duration = Duration::from_secs(15);
/// How long a server may take to exit after it has closed its control connections or was killed.
const LET_GO_MAX: Duration = Duration::from_secs(10);

/// Runs a subcommand of `sparsync server`.
pub fn run(env: &mut Env, server: Server) -> Exit {
    if matches!(&server.action, ServerAction::Session(_) | ServerAction::Start(Start { detached: true, .. })) {
        env::name_process();
    }
    if let Some(reach) = &server.host {
        return there(env, reach, &server.action);
    }
    let done = Places::of(env).and_then(|places| match server.action {
        ServerAction::Start(start) => self::start(env, &places, &start),
        ServerAction::Stop { now } => stop(env, &places, now.then_some(Question::Stop)),
        ServerAction::Restart { start, now } => restart(env, &places, start, now),
        ServerAction::Status { json } => status(env, &places, json),
        ServerAction::Install(install) => systemd_unit::install(env, &places, &install),
        ServerAction::Grants { json } => grants(env, &places, json),
        ServerAction::Pin => {
            let pin = Identity::load_or_make(&places)?.pin;
            print_line(env, &pin.to_string()).map(|()| Exit::Ok)
        }
        ServerAction::Grant(new) => grant(env, &places, *new),
        ServerAction::Revoke { who } => revoke(env, &places, &who),
        ServerAction::Pipe { address, pin } => pipe(&places, &address, &pin),
        ServerAction::Session(granted) => Ok(server_session::session(env, &granted)),
    });
    done.unwrap_or_else(|error| fail(env, &error))
}

fn print_line(env: &mut Env, line: &str) -> Result<()> {
    write_text(&mut env.stdout, format!("{line}\n").as_bytes())
}

/// Runs the same subcommand on a host, through a remote shell.
fn there(env: &mut Env, reach: &RemoteHost, action: &ServerAction) -> Exit {
    // If the list of hosts cannot be read, the remote shell finds the program, or reports that it cannot.
    let places = Places::of(env);
    let peers = places.as_ref().ok().and_then(|places| Peers::load(places).ok()).unwrap_or_default();
    let reach = &enroll::with_program(reach, peers.find(&reach.host));
    let argv = enroll::argv(reach, &action.words());
    let ended = shell::run_plain(&argv, env.umask);
    match ended {
        Ok(shell::ShellExit::Code(127)) => {
            let host = &reach.host;
            let words = format!("sparsync: cannot run sparsync on {host}: not found");
            let hint = format!("`sparsync enroll --install {host}` copies this program there");
            fail(env, &Error::new(Exit::CmdNotFound, words).with_hint(hint))
        }
        Ok(shell::ShellExit::Code(0)) => {
            if let (ServerAction::Start(_) | ServerAction::Restart { .. }, Ok(places)) = (action, &places)
                && peers.find(&reach.host).is_some()
            {
                // Failing to store this only makes the next run use a remote shell.
                let _ = Peers::change(places, |peers| peers.answers(&reach.host));
            }
            Exit::Ok
        }
        Ok(shell::ShellExit::Code(code))
            if matches!(action, ServerAction::Status { json: false }) && code == NOT_RUNNING.code() =>
        {
            // A lost hint changes nothing.
            let _ = print_line(env, &format!("hint: from this machine: `sparsync server start {}`", reach.host));
            NOT_RUNNING
        }
        Ok(shell::ShellExit::Code(code)) => Exit::of_code(code).unwrap_or(Exit::Other(code)),
        Ok(shell::ShellExit::Killed | shell::ShellExit::GivenUp) => Exit::ShellKilled,
        Err(error) => {
            let shown = String::from_utf8_lossy(&argv[0]).into_owned();
            fail(env, &Error::new(Exit::Ipc, format!("sparsync: cannot start {shown}: {error}")))
        }
    }
}

fn shown_at(status: &Status) -> String {
    let by = if status.supervised { ", started by systemd" } else { "" };
    format!("process {}, port {} (UDP and TCP){by}", status.pid, status.port)
}

fn start(env: &mut Env, places: &Places, start: &Start) -> Result<Exit> {
    if start.detached {
        return in_this_process(env, places, start).inspect_err(|error| {
            // Standard error goes to the log. The starting process reads standard output.
            let _ = write_text(&mut env.stdout, &error.text());
        });
    }
    if start.foreground {
        if Supervisor::of(env).is_there()
            && let Some(status) = at_work(env, places)?
        {
            return Err(not_the_supervisors(status.pid));
        }
        return match running(env, places, start)? {
            Some(_) => print_line(env, "sparsync: the server is already running").map(|()| Exit::Ok),
            None => in_this_process(env, places, start),
        };
    }
    let (status, is_new) = ensure(env, places, start)?;
    let words = if is_new { "server started" } else { "the server is already running" };
    let pin = status.pin.map(|pin| pin.to_string()).unwrap_or_default();
    print_line(env, &format!("sparsync: {words}: {}, key {pin}", shown_at(&status)))?;
    Ok(Exit::Ok)
}

fn in_this_process(env: &mut Env, places: &Places, start: &Start) -> Result<Exit> {
    match daemon::run(env, places, start) {
        Ok(exit) => Ok(exit),
        Err(Unable::Runs) => print_line(env, "sparsync: the server is already running").map(|()| Exit::Ok),
        Err(Unable::Error(error)) => Err(error),
    }
}

/// Returns the error for a start by a supervisor while another server runs. A supervisor waits for this process to
/// become ready, so success would look to it like a server that has ended.
fn not_the_supervisors(pid: u32) -> Error {
    let words = format!("sparsync: cannot start the server: another one runs outside of systemd (process {pid})");
    Error::new(Exit::Ipc, words).with_hint("stop it with `sparsync server stop`")
}

/// Returns the server that accepts clients where `start` requests it, if one runs. Fails if one runs with other
/// settings.
fn running(env: &mut Env, places: &Places, start: &Start) -> Result<Option<Status>> {
    let status = at_work(env, places)?;
    status.iter().try_for_each(|status| matches_request(status, start))?;
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
            return Err(Error::new(Exit::Ipc, words).with_hint("`sparsync server stop --now` ends them"));
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
    if let Some(bytes) = start.memory.filter(|&bytes| bytes != status.memory_max_bytes) {
        let words = format!(
            "sparsync: cannot change --memory: the server is already running ({}) with --memory={}",
            shown_at(status),
            status.memory_max_bytes
        );
        let hint = format!("`sparsync server restart --memory={bytes}` changes it");
        return Err(Error::new(Exit::Ipc, words).with_hint(hint));
    }
    let is_port = start.port.is_none_or(|port| port == 0 || port == status.port);
    let said: BTreeSet<IpAddr> = start.listen.iter().filter_map(|address| address.parse().ok()).collect();
    let all = status.addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
    let is_place = said.is_empty() || said == all.map(|at| at.ip()).collect();
    if is_port && is_place {
        return Ok(());
    }
    let words: Vec<_> = start.listen.iter().map(|address| format!(" --listen={address}")).collect();
    let port = start.port.map(|port| format!(" --port={port}")).unwrap_or_default();
    let (by, with) = match status.supervised {
        true => ("install", ", with the commands that it prints"),
        false => ("restart", ""),
    };
    let hint = format!("`sparsync server {by}{}{port}` moves it{with}", words.concat());
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
            let log = places.state.join(server_log::FILE);
            let words = format!("sparsync: cannot start the server: no answer within {} s", START_MAX.as_secs());
            return Err(Error::new(Exit::Ipc, words).with_hint(format!("its log is {}", log.display())));
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
        Error::new(Exit::Ipc, format!("sparsync: cannot {what} the server: {error}"))
    };
    daemon::can_start_processes()?;
    let log = server_log::open(places)?;
    let words = ServerAction::Start(Start { detached: true, ..start.clone() }).words();
    let words: Vec<_> = words.into_iter().map(OsString::from_vec).collect();
    let mut command = env::itself(&words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
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
    let patience = Patience { idle: Some(START_MAX), stop: env.stop.clone(), ..Patience::default() };
    let mut told = Vec::new();
    let heard = PatientReader::new(stdout, patience).take(64 << 10).read_to_end(&mut told);
    if told == READY {
        return Ok(true);
    }
    heard.map_err(|error| failed("read from", error))?;
    let status = child.wait().map_err(|error| failed("wait for", error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    match code {
        Some(0) => Ok(false),
        Some(code) => Err(Error::of_text(Exit::of_code(code).unwrap_or(Exit::Other(code)), &told)),
        None => {
            Err(Error::new(Exit::Crashed, format!("sparsync: cannot start the server: it ended at once: {status}")))
        }
    }
}

/// Completes a handshake with the server of this user, to show that clients can connect.
pub fn probe(identity: &Identity, status: &Status) -> Result<()> {
    let cannot = |why: String| {
        Error::new(Exit::SocketIo, format!("sparsync: cannot complete a handshake with the server: {why}"))
    };
    let address = status.addresses.first().and_then(|address| address.parse::<SocketAddr>().ok());
    let address = address.ok_or_else(|| cannot("it reports no address".into()))?;
    let patience = Patience { idle: Some(START_MAX), ..Patience::default() };
    let tls = tls::client_config(identity, status.pin.unwrap_or(identity.pin));
    let won = race(&own_addresses(address), &NetTransport::BOTH, &Dial::new(tls, START_MAX, patience.clone()));
    won.map(|_| patience.parting.begin()).map_err(|trouble| cannot(trouble.to_string()))
}

/// Returns the addresses at which this machine reaches its own server. A server on all addresses accepts both families,
/// but a machine may support IPv6 and have no IPv6 address.
fn own_addresses(address: SocketAddr) -> Vec<SocketAddr> {
    let at = |ip: IpAddr| SocketAddr::new(ip, address.port());
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![at(Ipv4Addr::LOCALHOST.into())],
        IpAddr::V6(ip) if ip.is_unspecified() => vec![at(Ipv6Addr::LOCALHOST.into()), at(Ipv4Addr::LOCALHOST.into())],
        IpAddr::V4(_) | IpAddr::V6(_) => vec![address],
    }
}

/// Forwards standard input to a server and its output to standard output, until the server closes the connection.
fn pipe(places: &Places, address: &str, pin: &str) -> Result<Exit> {
    let address: SocketAddr = address
        .parse()
        .map_err(|_| Error::usage(format!("sparsync server: pipe: invalid address `{address}`: expected IP:PORT")))?;
    let pin: Pin = pin.parse().map_err(|bad| Error::usage(format!("sparsync server: pipe: {bad}")))?;
    let identity = Identity::load_or_make(places)?;
    let patience = Patience::default();
    let cannot = |error: std::io::Error| Error::new(Exit::Ipc, format!("sparsync: cannot use standard input: {error}"));
    let mut here = stdio::link(patience.clone()).map_err(cannot)?;
    let dial = Dial::new(tls::client_config(&identity, pin), START_MAX, patience);
    let won = race(&[address], &NetTransport::BOTH, &dial)
        .map_err(|trouble| Error::new(Exit::StartClient, format!("sparsync: cannot reach {address}: {trouble}")))?;
    let mut link = won.link;
    let mut writer = link.writer;
    // Not joined: it ends with the process, because the server needs no more input once it has closed the connection.
    std::thread::spawn(move || std::io::copy(&mut here.reader, &mut writer));
    std::io::copy(&mut link.reader, &mut here.writer)
        .map_err(|error| Error::new(Exit::SocketIo, format!("sparsync: connection to {address} lost: {error}")))?;
    Ok(Exit::Ok)
}

/// Stops the server: at once with the request `now`, or when its sessions have ended if that is `None`.
fn stop(env: &mut Env, places: &Places, now: Option<Question>) -> Result<Exit> {
    // Only the server with this process id is meant, not one that replaces it meanwhile.
    let Some(pid) = daemon::pid(places) else {
        print_line(env, &format!("sparsync: no server is running{}", at_its_port(places)))?;
        return Ok(Exit::Ok);
    };
    let (question, now) = (now.unwrap_or(Question::Drain), now.is_some());
    let told = if now { Ok(None) } else { control_socket::status(places) };
    let status = match told {
        Err(error) if error.exit == Exit::Ipc => return Err(error),
        // An unreadable status must not prevent the stop.
        status => status.ok().flatten(),
    };
    match control_socket::end(places, question) {
        Ok(Some(ending)) if now => drop(ending.wait(Some(STOP_MAX))),
        Ok(Some(ending)) => {
            status.iter().for_each(|status| print_waiting(env, status));
            if !ending.wait(Some(STOP_MAX)) {
                // A lost notice must not prevent the stop.
                let _ =
                    env.stderr.write_all(b"sparsync: still waiting; `sparsync server stop --now` ends the sessions\n");
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
        Some(status) if status.supervised => format!("; `{} start sparsync` starts it again", systemctl()),
        _ => String::new(),
    };
    print_line(env, &format!("sparsync: server stopped{again}"))?;
    Ok(Exit::Ok)
}

/// Returns a note about the process that owns the port of a server that does not run: without its state directory a
/// running server cannot be asked.
fn at_its_port(places: &Places) -> String {
    let port = daemon::port_of(places, &Start::default());
    let told = |holder| format!(" with its state in {}; port {port} is in use by {holder}", places.state.display());
    port_owner::of_port(port).map_or_else(String::new, told)
}

/// Returns the command that controls the systemd of this user.
fn systemctl() -> &'static str {
    if sys::ids().0 == 0 { "systemctl" } else { "systemctl --user" }
}

/// Prints the sessions that must end first, if there are any.
fn print_waiting(env: &mut Env, status: &Status) {
    let count = status.sessions.len();
    if count == 0 {
        return;
    }
    let sessions: Vec<_> =
        status.sessions.iter().map(|session| format!("{} from {}", session.name, session.address)).collect();
    let noun = if count == 1 { "session" } else { "sessions" };
    let line = format!("sparsync: waiting for {count} {noun}: {}\n", sessions.join(", "));
    // A lost notice must not prevent the stop.
    let _ = env.stderr.write_all(line.as_bytes());
}

fn kill_server(places: &Places, pid: u32, now: bool) -> Result<()> {
    if daemon::pid(places) != Some(pid) {
        return Ok(());
    }
    match env::end_process(pid, now) {
        Err(error) if daemon::pid(places) == Some(pid) => {
            Err(Error::new(Exit::Ipc, format!("sparsync: cannot stop the server (process {pid}): {error}")))
        }
        _ => Ok(()),
    }
}

/// Waits until the server with this process id has released its lock. Fails after [`LET_GO_MAX`].
fn wait_until_gone(places: &Places, pid: u32) -> Result<()> {
    let waits = Since::now();
    while daemon::pid(places) == Some(pid) {
        if waits.elapsed() > LET_GO_MAX {
            let words = format!("sparsync: cannot stop the server (process {pid}): it still runs");
            return Err(Error::new(Exit::Ipc, words).with_hint("`sparsync server stop --now` kills it"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the addresses given with `--listen`. Empty if the server listens on all addresses.
fn given_addresses(status: &Status) -> Vec<IpAddr> {
    let all = status.addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
    all.map(|at| at.ip()).filter(|ip| !ip.is_unspecified()).collect()
}

fn restart(env: &mut Env, places: &Places, mut wanted: Start, now: bool) -> Result<Exit> {
    let mut running = Vec::new();
    match control_socket::status(places) {
        Ok(Some(status)) if status.supervised => {
            let words = format!("sparsync: cannot restart the server (process {}): systemd manages it", status.pid);
            let hint = format!("run `{} restart sparsync` if `sparsync server install` wrote its unit", systemctl());
            return Err(Error::new(Exit::Unsupported, words).with_hint(hint));
        }
        Ok(Some(status)) => {
            running = status.addresses.iter().filter_map(|address| address.parse().ok()).collect();
            // Keep the settings of the running server unless new ones are given.
            wanted.port = wanted.port.or(Some(status.port));
            wanted.memory = wanted.memory.or(Some(status.memory_max_bytes).filter(|&bytes| bytes > 0));
            if wanted.listen.is_empty() {
                wanted.listen = given_addresses(&status).iter().map(ToString::to_string).collect();
            }
        }
        Ok(None) => {}
        Err(_) if wanted.port.is_some() => {}
        Err(_) => {
            let line = format!(
                "sparsync: cannot read the address of the running server; the new one uses port {}\n",
                daemon::port_of(places, &wanted)
            );
            // A lost notice must not prevent the restart.
            let _ = env.stderr.write_all(line.as_bytes());
        }
    }
    // Check first: the running server must stay if a new one could not start.
    daemon::could_start(places, &wanted, &running)?;
    stop(env, places, now.then_some(Question::GiveWay))?;
    start(env, places, &wanted)
}

fn status(env: &mut Env, places: &Places, json: bool) -> Result<Exit> {
    let status = control_socket::status(places)?.unwrap_or_else(Status::down);
    let exit = if status.running { Exit::Ok } else { NOT_RUNNING };
    if json {
        print_line(env, &to_json(&status)?)?;
        return Ok(exit);
    }
    if !status.running {
        print_line(env, &format!("sparsync: no server is running{}", at_its_port(places)))?;
        print_line(env, "hint: start one with `sparsync server start`")?;
        return Ok(exit);
    }
    let mut lines = vec![
        format!("sparsync {} is running: {}", status.sparsync, shown_at(&status)),
        format!("key        {}", status.pin.map(|pin| pin.to_string()).unwrap_or_default()),
        format!("addresses  {}", status.addresses.join(", ")),
        format!(
            "up         {}{}",
            lasted(status.uptime_secs),
            if status.draining { "; stopping after its sessions" } else { "" }
        ),
        format!("sessions   {} running, {} in total", status.sessions.len(), status.sessions_total),
        format!("memory     {} of {} MiB", status.memory_bytes >> 20, status.memory_max_bytes >> 20),
        format!("traffic    {} bytes received, {} sent", status.bytes_in, status.bytes_out),
    ];
    for session in &status.sessions {
        lines.push(format!(
            "  {} from {} over {}, {}, {} bytes received, {} sent",
            session.name,
            session.address,
            session.transport,
            lasted(session.secs),
            session.bytes_in,
            session.bytes_out
        ));
    }
    if !status.errors.is_empty() {
        lines.push("recent errors".into());
        lines.extend(status.errors.iter().map(|error| format!("  {error}")));
    }
    print_line(env, &lines.join("\n"))?;
    Ok(exit)
}

/// Formats a duration in its two largest units.
fn lasted(secs: u64) -> String {
    let (days, hours, minutes) = (secs / 86_400, secs / 3600 % 24, secs / 60 % 60);
    match (days, secs / 3600, secs / 60) {
        (0, 0, 0) => format!("{secs} s"),
        (0, 0, _) => format!("{minutes} min {} s", secs % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(Exit::Crashed, format!("sparsync: cannot encode JSON: {error}")))
}

/// The JSON form of a grant.
#[derive(Serialize)]
struct GrantJson<'a> {
    name: &'a str,
    pin: Pin,
    roots: Vec<String>,
    read_only: bool,
    expires: Option<Moment>,
    expired: bool,
    allow_setuid: bool,
    no_munge: bool,
    owner: Option<&'a str>,
}

fn roots_shown(grant: &Grant) -> Vec<String> {
    grant.roots.iter().map(|root| String::from_utf8_lossy(root).into_owned()).collect()
}

fn grants(env: &mut Env, places: &Places, json: bool) -> Result<Exit> {
    let grants = Grants::load(places)?.grants;
    let now = Moment(clock::now_unix().0);
    if json {
        let told: Vec<_> = grants
            .iter()
            .map(|grant| GrantJson {
                name: &grant.name,
                pin: grant.pin,
                roots: roots_shown(grant),
                read_only: grant.read_only,
                expires: grant.expires,
                expired: !grant.stands(now),
                allow_setuid: grant.allow_setuid,
                no_munge: grant.no_munge,
                owner: grant.owner.as_deref(),
            })
            .collect();
        print_line(env, &to_json(&told)?)?;
        return Ok(Exit::Ok);
    }
    if grants.is_empty() {
        print_line(env, "sparsync: no grants")?;
    }
    for grant in &grants {
        print_line(env, &format!("{}  {}  {}", grant.name, grant.pin, grant.rights(now)))?;
    }
    Ok(Exit::Ok)
}

/// Returns a warning if the grant reaches the server's own keys or grants, and so allows more than its limits suggest.
/// The sessions of another user cannot open these files.
fn exceeded(places: &Places, grant: &Grant) -> Option<String> {
    let is_other = |owner| ids::account(owner).is_ok_and(|account| account.uid != sys::ids().0);
    if grant.owner.as_deref().is_some_and(is_other) {
        return None;
    }
    let root = grant.roots.iter().find(|root| places.are_below(root))?;
    let (name, root, config) = (&grant.name, String::from_utf8_lossy(root), places.config.display());
    let what =
        if grant.read_only { "read the key of this server" } else { "change the key and the grants of this server" };
    Some(format!("{name} can {what}: {config} is inside of --root={root}"))
}

/// Returns warnings about roots that cannot be opened. They may be misspelled.
fn unreachable_roots(grant: &Grant) -> impl Iterator<Item = String> {
    grant.roots.iter().filter_map(|root| {
        let error = sys::open_dir_path(root).err()?;
        let (root, why) = (String::from_utf8_lossy(root), errno_words(&error));
        Some(format!("cannot open --root={root} on {}: {}", sys::host_name(), String::from_utf8_lossy(&why)))
    })
}

/// Returns the warning that the same name has another key with a grant: a machine that lost its key has a new one, and
/// the finder of the old one would still be admitted.
fn another_key(other: &Grant) -> String {
    let (name, pin, host) = (&other.name, other.pin, sys::host_name());
    format!("{name} also has a grant for {pin}; if that key is lost, run on {host}: sparsync server revoke {pin}")
}

/// The checked arguments of `server grant`. What they leave out stays unchanged.
struct GrantChange {
    pin: Pin,
    name: Option<String>,
    default_name: Option<String>,
    roots: Vec<Vec<u8>>,
    read_only: Option<bool>,
    /// `Some(None)`: the grant does not expire.
    expires: Option<Option<Moment>>,
    allow_setuid: Option<bool>,
    no_munge: Option<bool>,
    /// `Some(None)`: sessions run as the user of the server.
    owner: Option<Option<String>>,
}

fn grant_change(new: &NewGrant, now: Moment) -> Result<GrantChange> {
    let NewGrant { pin, name, default_name, rights, .. } = new;
    let pin = pin.parse().map_err(|bad| Error::usage(format!("sparsync server: grant: {bad}")))?;
    if name.iter().chain(default_name).any(|name| name.is_empty() || name.chars().any(char::is_control)) {
        return Err(Error::usage("sparsync server: --name: expected one line that is not empty"));
    }
    let wrong_end = |bad: String| Error::usage(format!("sparsync server: --expires: {bad}"));
    let ends = |said: &String| match Moment::read(said, now) {
        Ok(end) if end <= now => Err(wrong_end(format!("`{said}` is in the past"))),
        read => read.map(Some).map_err(wrong_end),
    };
    let expires = rights.expires.as_ref().map(ends).transpose()?.or(rights.no_expiry.then_some(None));
    let (name, default_name) = (name.clone(), default_name.clone());
    let Rights { roots, read_only, allow_setuid, no_munge, owner, no_owner, .. } = rights.clone();
    let owner = owner.map(Some).or(no_owner.then_some(None));
    Ok(GrantChange { pin, name, default_name, roots, read_only, expires, allow_setuid, no_munge, owner })
}

impl GrantChange {
    /// Returns the changed grant. `known`: the grant that the key has now.
    fn apply_to(&self, known: Option<&Grant>) -> Result<Grant> {
        let known_name = known.map(|known| known.name.clone());
        let name = self.name.clone().or(known_name).or_else(|| self.default_name.clone());
        let unnamed = || Error::usage("sparsync server: grant: missing --name=NAME for a new key");
        let roots = match (self.roots.as_slice(), known) {
            ([], Some(known)) => known.roots.clone(),
            ([], None) => vec![b"/".to_vec()],
            (said, _) => said.to_vec(),
        };
        Ok(Grant {
            pin: self.pin,
            name: name.ok_or_else(unnamed)?,
            roots,
            read_only: self.read_only.unwrap_or(known.is_some_and(|known| known.read_only)),
            expires: self.expires.unwrap_or(known.and_then(|known| known.expires)),
            allow_setuid: self.allow_setuid.unwrap_or(known.is_some_and(|known| known.allow_setuid)),
            no_munge: self.no_munge.unwrap_or(known.is_some_and(|known| known.no_munge)),
            owner: self.owner.clone().unwrap_or_else(|| known.and_then(|known| known.owner.clone())),
        })
    }
}

fn grant(env: &mut Env, places: &Places, new: NewGrant) -> Result<Exit> {
    let now = Moment(clock::now_unix().0);
    let change = grant_change(&new, now)?;
    let NewGrant { start, json, .. } = new;
    let known = Grants::load(places)?.of(&change.pin).cloned();
    let settled = change.apply_to(known.as_ref())?;
    if !sandbox::are_everything(&settled.roots) {
        server_session::can_limit()?;
    }
    if let Some(owner) = &settled.owner {
        server_session::account_of(owner)?;
    }
    if let Some(end) = settled.expires.filter(|_| !settled.stands(now)) {
        let words = format!("sparsync: cannot change the grant of {}: it expired at {end}", settled.name);
        return Err(Error::usage(words).with_hint("renew it with --expires=WHEN or --no-expiry"));
    }
    let identity = Identity::load_or_make(places)?;
    // Start the server first: it may run with other settings, and then nothing has changed.
    let wanted_port = daemon::port_of(places, start.as_ref().unwrap_or(&Start::default()));
    let (status, started) = match &start {
        // Only a port that the user names must be that one: the answer contains the port.
        Some(start) => ensure(env, places, &Start { or_other_port: start.port.is_none(), ..start.clone() })?,
        // A grant takes effect as soon as it is written, whatever the server answers.
        None => (control_socket::status(places).ok().flatten().unwrap_or_else(Status::down), false),
    };
    if started && ![0, status.port].contains(&wanted_port) {
        let (holder, port) = (daemon::holder_of(wanted_port), status.port);
        let words =
            format!("sparsync: warning: port {wanted_port} is in use by {holder}; the server uses port {port}\n");
        let _ = env.stderr.write_all(words.as_bytes());
    }
    // Another process may have changed the grant since it was checked above.
    let changed = Grants::change(places, |grants| {
        let before = grants.of(&change.pin).cloned();
        let new = change.apply_to(before.as_ref())?;
        Ok((grants.put(new.clone()), grants.others_named_as(&new), before, new))
    })?;
    let (put, others, before, new) = changed?;
    let (name, rights) = (new.name.clone(), new.rights(now));
    let rights_before = before.filter(|_| put == Put::Changed).map(|before| before.rights(now));
    // A key that may do all that the login may cannot exceed its grant.
    let is_limited =
        new.read_only || new.expires.is_some() || new.owner.is_some() || !sandbox::are_everything(&new.roots);
    if put != Put::Same {
        let limits = is_limited.then(|| exceeded(places, &new)).flatten();
        let others = others.iter().filter(|_| put == Put::New).map(another_key);
        let lines = limits.into_iter().chain(unreachable_roots(&new)).chain(others);
        let told: String = lines.map(|line| format!("sparsync: warning: {line}\n")).collect();
        // The grant is stored, whether or not its warnings can be printed.
        let _ = env.stderr.write_all(told.as_bytes());
    }
    if json {
        let granted = match put {
            Put::New => Granted::New,
            Put::Changed => Granted::Changed,
            Put::Same => Granted::Same,
        };
        let server = match (status.running, started) {
            (true, true) => ServerState::Started,
            (true, false) => ServerState::Runs,
            (false, _) => ServerState::Down,
        };
        // If the server is down, the port that it would have.
        let port = if status.running { status.port } else { wanted_port };
        let addresses = given_addresses(&status).iter().map(ToString::to_string).collect();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let pin = status.pin.unwrap_or(identity.pin);
        let grant = granted;
        let told = Introduction { version, pin, port, addresses, grant, rights, rights_before, server, is_limited };
        print_line(env, &told.to_json())?;
        return Ok(Exit::Ok);
    }
    match put {
        Put::New => print_line(env, &format!("sparsync: added a grant for {name}: {rights}"))?,
        Put::Changed => {
            let before = rights_before.unwrap_or_default();
            print_line(env, &format!("sparsync: changed the grant of {name}: {before} -> {rights}"))?;
        }
        Put::Same => print_line(env, &format!("sparsync: {name} already has this grant: {rights}"))?,
    }
    Ok(Exit::Ok)
}

fn revoke(env: &mut Env, places: &Places, who: &str) -> Result<Exit> {
    let gone = Grants::change(places, |grants| grants.revoke(who))?;
    if gone.is_empty() {
        let words = format!("sparsync: cannot revoke `{who}`: no grant has this name or key");
        return Err(Error::new(NO_SUCH_GRANT, words).with_hint("`sparsync server grants` lists all grants"));
    }
    for grant in gone {
        print_line(env, &format!("sparsync: revoked the grant of {} ({})", grant.name, grant.pin))?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::own_addresses;

    #[test]
    fn durations_have_their_two_largest_units() {
        let told = [0, 59, 60, 1411, 3600, 86_399, 90_000].map(super::lasted);
        assert_eq!(told, ["0 s", "59 s", "1 min 0 s", "23 min 31 s", "1 h 0 min", "23 h 59 min", "1 d 1 h"]);
    }

    #[test]
    fn wildcard_address_maps_to_loopback_addresses() {
        let told = |address: &str| {
            let own = own_addresses(address.parse().unwrap());
            own.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(told("[::]:28792"), ["[::1]:28792", "127.0.0.1:28792"]);
        assert_eq!(told("0.0.0.0:28792"), ["127.0.0.1:28792"]);
        assert_eq!(told("192.0.2.7:28792"), ["192.0.2.7:28792"]);
        assert_eq!(told("[2001:db8::7]:28792"), ["[2001:db8::7]:28792"]);
    }
}
