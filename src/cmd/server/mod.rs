//! `sparsync server`: runs its actions, here or on another host, and prints the state of the server.

pub mod control_socket;
mod grant_check;
pub mod grants;
pub mod listen;
mod log;
mod memory_limit;
pub mod port_owner;
pub mod process;
mod proxy;
mod sd_notify;
pub mod sessions;
mod systemd_unit;

use self::control_socket::{Question, Status};
use self::process::{START_MAX, at_its_port, restart, shown_at, stop};
use crate::cli::subcommand::{RemoteHost, ServerAction, ServerCommand, Start};
use crate::cmd::command_end::{fail, print_line, to_json, write_text};
use crate::cmd::enroll;
use crate::cmd::remote_side::sparsync_client;
use crate::env::{self, Env};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::report::metrics::Metrics;
use crate::transport::link::Patience;
use crate::transport::net::NetTransport;
use crate::transport::net::client::{Dial, race};
use crate::transport::{shell, stdio};
use crate::trust::files::List as _;
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::peers::Peers;
use crate::trust::{Pin, tls};
use std::net::SocketAddr;
use std::time::Duration;

/// The exit code of `status` if no server runs, as with `systemctl status`.
const NOT_RUNNING: Exit = Exit::Other(3);

/// Runs a subcommand of `sparsync server`.
pub fn run(env: &mut Env, server: ServerCommand) -> Exit {
    if matches!(
        &server.action,
        ServerAction::Session(_) | ServerAction::Start(Start { detached: true, .. })
    ) {
        env::name_process();
    }
    if let Some(reach) = &server.host {
        return run_on_host(env, reach, &server.action);
    }
    let done = Places::from_env(env).and_then(|places| match server.action {
        ServerAction::Start(start) => process::start(env, &places, &start),
        ServerAction::Stop { now: true } => stop(env, &places, Some(Question::Stop)),
        ServerAction::Stop { now: false } => stop(env, &places, None),
        ServerAction::Restart { start, now } => restart(env, &places, start, now),
        ServerAction::Status { json } => status(env, &places, json),
        ServerAction::Metrics => metrics(env, &places),
        ServerAction::Install(install) => systemd_unit::install(env, &places, &install),
        ServerAction::Grants { json } => grants::grants(env, &places, json),
        ServerAction::Pin => {
            let pin = Identity::load_or_make(&places)?.pin;
            print_line(env, &pin.to_string()).map(|()| Exit::Ok)
        }
        ServerAction::Grant(new) => grants::grant(env, &places, *new),
        ServerAction::Revoke { who, stop_unused } => {
            grants::revoke(env, &places, &who, stop_unused)
        }
        ServerAction::Pipe { address, pin } => pipe(&places, &address, &pin),
        ServerAction::Session(granted) => Ok(sparsync_client::session(env, &granted)),
    });
    done.unwrap_or_else(|error| fail(env, &error))
}

/// Runs the same subcommand on a host, through a remote shell.
fn run_on_host(env: &mut Env, reach: &RemoteHost, action: &ServerAction) -> Exit {
    // If the list of hosts cannot be read, the remote shell finds the program, or reports that it cannot.
    let places = Places::from_env(env);
    let peers = places
        .as_ref()
        .ok()
        .and_then(|places| Peers::load(places).ok())
        .unwrap_or_default();
    let reach = &enroll::with_program(reach, peers.find(&reach.host));
    let argv = enroll::argv(reach, &action.words());
    let ended = shell::run_plain(&argv, env.umask, &mut env.stdout);
    match ended {
        Ok(shell::ShellExit::Code(127)) => {
            let host = &reach.host;
            let words = format!("sparsync: cannot run sparsync on {host}: not found");
            let hint = format!("`sparsync enroll --install {host}` copies this program there");
            fail(env, &Error::new(Exit::CmdNotFound, words).with_hint(hint))
        }
        Ok(shell::ShellExit::Code(0)) => {
            let is_running = matches!(
                action,
                ServerAction::Start(_) | ServerAction::Restart { .. } | ServerAction::Status { .. }
            );
            if is_running
                && let Ok(places) = &places
                && peers.find(&reach.host).is_some()
            {
                // Failing to store this only makes the next run use a remote shell.
                let _ = Peers::change(places, |peers| peers.answers(&reach.host));
            }
            if matches!(action, ServerAction::Install(install) if !install.dry_run) {
                // A lost line changes nothing.
                let _ = print_line(env, &format!("Run these commands on {}.", reach.host));
            }
            Exit::Ok
        }
        Ok(shell::ShellExit::Code(code))
            if matches!(action, ServerAction::Status { json: false })
                && code == NOT_RUNNING.code() =>
        {
            // A lost hint changes nothing.
            let _ = print_line(
                env,
                &format!(
                    "hint: from this machine: `sparsync server start {}`",
                    reach.host
                ),
            );
            NOT_RUNNING
        }
        Ok(shell::ShellExit::Code(code)) => Exit::of_code(code).unwrap_or(Exit::Other(code)),
        Ok(shell::ShellExit::Killed | shell::ShellExit::GivenUp) => Exit::ShellKilled,
        Err(error) => {
            let shown = String::from_utf8_lossy(&argv[0]).into_owned();
            fail(
                env,
                &Error::new(
                    Exit::Ipc,
                    format!("sparsync: cannot start {shown}: {error}"),
                ),
            )
        }
    }
}

/// Forwards standard input to a server and its output to standard output, until the server closes the connection.
fn pipe(places: &Places, address: &str, pin: &str) -> Result<Exit> {
    let address: SocketAddr = address.parse().map_err(|_| {
        Error::usage(format!(
            "sparsync server: pipe: invalid address `{address}`: expected IP:PORT"
        ))
    })?;
    let pin: Pin = pin
        .parse()
        .map_err(|bad| Error::usage(format!("sparsync server: pipe: {bad}")))?;
    let identity = Identity::load_or_make(places)?;
    let patience = Patience::default();
    let cannot = |error: std::io::Error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot use standard input: {error}"),
        )
    };
    let mut local = stdio::link(patience.clone()).map_err(cannot)?;
    let dial = Dial::new(tls::client_config(&identity, pin), START_MAX, patience);
    let won = race(&[address], &NetTransport::BOTH, &dial).map_err(|trouble| {
        Error::new(
            Exit::StartClient,
            format!("sparsync: cannot reach {address}: {trouble}"),
        )
    })?;
    let mut link = won.link;
    let mut writer = link.writer;
    // Not joined: it ends with the process, because the server needs no more input once it has closed the connection.
    std::thread::spawn(move || std::io::copy(&mut local.reader, &mut writer));
    std::io::copy(&mut link.reader, &mut local.writer).map_err(|error| {
        Error::new(
            Exit::SocketIo,
            format!("sparsync: connection to {address} lost: {error}"),
        )
    })?;
    Ok(Exit::Ok)
}

fn status(env: &mut Env, places: &Places, json: bool) -> Result<Exit> {
    let mut status = control_socket::status(places)?.unwrap_or_else(Status::down);
    status.daemons = control_socket::daemons(places);
    let exit = if status.running {
        Exit::Ok
    } else {
        NOT_RUNNING
    };
    if json {
        print_line(env, &to_json(&status)?)?;
        return Ok(exit);
    }
    if !status.running {
        print_line(
            env,
            &format!("sparsync: no server is running{}", at_its_port(places)),
        )?;
        print_line(env, "hint: start one with `sparsync server start`")?;
        status
            .daemons
            .iter()
            .try_for_each(|daemon| print_line(env, &daemon_lines(daemon)))?;
        return Ok(exit);
    }
    let mut lines = vec![
        format!(
            "sparsync {} is running: {}",
            status.sparsync,
            shown_at(&status)
        ),
        format!(
            "key        {}",
            status.pin.map(|pin| pin.to_string()).unwrap_or_default()
        ),
        format!("addresses  {}", status.addresses.join(", ")),
        format!(
            "up         {}{}",
            lasted(status.uptime_secs),
            if status.draining {
                "; stopping after its sessions"
            } else {
                ""
            }
        ),
        format!(
            "sessions   {} running, {} in total",
            status.sessions.len(),
            status.sessions_total
        ),
        format!(
            "memory     {} of {} MiB",
            status.memory_bytes >> 20,
            status.memory_max_bytes >> 20
        ),
        format!(
            "traffic    {} bytes received, {} sent",
            status.bytes_in, status.bytes_out
        ),
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
    lines.extend(status.daemons.iter().map(daemon_lines));
    print_line(env, &lines.join("\n"))?;
    Ok(exit)
}

/// Returns the lines about a daemon for stock clients.
fn daemon_lines(daemon: &Status) -> String {
    let pid = daemon.pid;
    let addresses = daemon.addresses.join(", ");
    let up = lasted(daemon.uptime_secs);
    let running = daemon.sessions.len();
    let total = daemon.sessions_total;
    let first = format!(
        "daemon for rsync clients: process {pid}, {addresses}, up {up}, {running} connected, {total} in total"
    );
    let sessions = daemon
        .sessions
        .iter()
        .map(|session| format!("  {}, {}", session.address, lasted(session.secs)));
    std::iter::once(first)
        .chain(sessions)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Prints metrics of the server, and exits like [`status`].
fn metrics(env: &mut Env, places: &Places) -> Result<Exit> {
    let status = control_socket::status(places)?;
    let exit = if status.is_some() {
        Exit::Ok
    } else {
        NOT_RUNNING
    };
    write_text(&mut env.stdout, metrics_of(status.as_ref()).as_bytes())?;
    Ok(exit)
}

fn metrics_of(status: Option<&Status>) -> String {
    let mut metrics = Metrics::default();
    metrics.gauge(
        "server_up",
        "Whether the server is running",
        u8::from(status.is_some()),
    );
    let Some(status) = status else {
        return metrics.text();
    };
    metrics.version("server_build_info", &status.sparsync);
    for (name, help, value) in [
        (
            "uptime_seconds",
            "How long the server has been running",
            status.uptime_secs,
        ),
        (
            "draining",
            "Whether the server rejects new clients because it will stop",
            u64::from(status.draining),
        ),
        (
            "sessions_running",
            "Running sessions",
            status.sessions.len() as u64,
        ),
        (
            "memory_bytes",
            "Memory of the server and its sessions",
            status.memory_bytes,
        ),
        (
            "memory_limit_bytes",
            "The most memory that they may hold; 0 means unlimited",
            status.memory_max_bytes,
        ),
    ] {
        metrics.gauge(&format!("server_{name}"), help, value);
    }
    for (name, help, value) in [
        (
            "sessions",
            "Sessions that have begun",
            Some(status.sessions_total),
        ),
        (
            "received_bytes",
            "Bytes received from clients",
            Some(status.bytes_in),
        ),
        (
            "sent_bytes",
            "Bytes sent to clients",
            Some(status.bytes_out),
        ),
        (
            "errors",
            "Errors and warnings in the log",
            status.errors_total,
        ),
        (
            "rejected_clients",
            "Rejected clients in the log",
            status.rejected_total,
        ),
    ] {
        if let Some(value) = value {
            metrics.counter(&format!("server_{name}"), help, value);
        }
    }
    if let Some(ended_ms) = status.ended_sessions_ms {
        let running: u64 = status.sessions.iter().map(|session| session.secs).sum();
        let secs = Duration::from_millis(ended_ms) + Duration::from_secs(running);
        metrics.counter(
            "server_session_seconds",
            "How long clients were connected, together",
            secs.as_secs_f64(),
        );
    }
    metrics.text()
}

/// Formats a duration in its two largest units.
fn lasted(secs: u64) -> String {
    let days = secs / 86_400;
    let hours = secs / 3600 % 24;
    let minutes = secs / 60 % 60;
    match (days, secs / 3600, secs / 60) {
        (0, 0, 0) => format!("{secs} s"),
        (0, 0, _) => format!("{minutes} min {} s", secs % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn durations_have_their_two_largest_units() {
        let lasted_texts = [0, 59, 60, 1411, 3600, 86_399, 90_000].map(super::lasted);
        assert_eq!(
            lasted_texts,
            [
                "0 s",
                "59 s",
                "1 min 0 s",
                "23 min 31 s",
                "1 h 0 min",
                "23 h 59 min",
                "1 d 1 h"
            ]
        );
    }
}
