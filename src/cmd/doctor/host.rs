//! Checks the ways to a host: ssh, then its server.

use super::ask::{ANSWER_MAX, words_of};
use super::doctor_check::{DoctorCheck, Printer};
use super::process::now;
use super::remote_grant::own_grant;
use super::route_check::route_check;
use super::ssh_login::SshLogin;
use crate::cli::subcommand::RemoteHost;
use crate::cli::{self, Invocation, Request};
use crate::cmd::copy::route::{self, RoutePlan, RouteRequest};
use crate::cmd::copy::via_server;
use crate::cmd::{enroll, input_files};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::path::file_name;
use crate::transport::link::Patience;
use crate::transport::net::{HangUp, Trouble};
use crate::trust::files::List as _;
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::peers::{Peer, Peers, Transport};
use crate::work::clock::{self, Since};
use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// The size of datagrams that every path carries, with which the search begins.
const MTU_LEAST_BYTES: u16 = 1200;
/// How long the size of datagrams that a path carries may be searched.
const MTU_WAIT_MAX: Duration = Duration::from_secs(3);
/// How often its size is read meanwhile.
const MTU_LOOK: Duration = Duration::from_millis(50);
/// The search counts as finished after so many equal sizes.
const MTU_SETTLED_LOOKS: u32 = 10;

pub(super) fn check(printer: &mut Printer<'_>, places: &Places, reach: &RemoteHost) -> Result<()> {
    let peers = Peers::load(places).unwrap_or_default();
    let known = peers.find(&reach.host);
    let copy = match settled(printer.env, reach) {
        Ok(copy) => copy,
        Err(error) => return printer.print(vec![DoctorCheck::of_error("route", &error)]),
    };
    let shell = without_questions(&copy.options.connect.shell);
    let reach = enroll::with_program(
        &RemoteHost {
            shell,
            ..reach.clone()
        },
        known,
    );
    let login = SshLogin::probe(printer.env, &reach);
    printer.print(login.checks(&reach))?;
    let facts = || {
        via_server::ssh_facts(&copy.options.connect.shell, &reach.host, printer.env.umask)
            .is_proxied
    };
    let plan = match &copy.far {
        Some(far) => {
            // No paths, which could need a shell, are known here.
            let request = RouteRequest::new(far, &copy.options, &[]);
            route::plan(request, &peers, now(), &facts)
        }
        None => Ok(RoutePlan::Shell(None)),
    };
    let identity = Identity::load(places);
    let enrolled = known.map_or_else(
        || {
            let check = DoctorCheck::warn("enrolled", "no: copies use ssh");
            // Enrolling needs the login.
            if login.works {
                check.with_hint(format!("run `sparsync enroll {}`", reach.host))
            } else {
                check
            }
        },
        |peer| {
            DoctorCheck::ok(
                "enrolled",
                format!(
                    "since {}, {} port {}",
                    peer.met,
                    peer.addresses.join(", "),
                    peer.port
                ),
            )
        },
    );
    printer.print(vec![enrolled])?;
    let mut reached = Vec::new();
    let mut failed = Vec::new();
    if let (Some(peer), Ok(Some(identity))) = (known, &identity) {
        for transport in [Transport::Quic, Transport::Tls] {
            let (check, trouble) = dialled(printer.env, identity, peer, transport);
            match trouble {
                None => reached.push(transport),
                Some(why) => failed.push((why.rank(), via_server::without_server(peer, &why))),
            }
            printer.print(vec![check])?;
        }
    }
    let failed = failed
        .into_iter()
        .max_by_key(|(rank, _)| *rank)
        .map(|(_, why)| why);
    printer.print(vec![route_check(plan, &reached, failed, login.works)])?;
    if let (Ok(Some(identity)), true, Some(_)) = (&identity, login.ours.is_some(), known) {
        let check = own_grant(printer.env, &reach, &identity.pin);
        printer.print(vec![check])?;
    }
    Ok(())
}

/// Returns the options with which a copy to this host would run: from the command line, variables and aliases.
fn settled(env: &Env, reach: &RemoteHost) -> Result<Box<cli::Copy>> {
    let (user, name) = reach
        .host
        .rsplit_once('@')
        .map_or((None, &*reach.host), |(user, name)| (Some(user), name));
    let name = if name.contains(':') {
        format!("[{name}]")
    } else {
        name.to_owned()
    };
    let operand = user.map_or_else(|| format!("{name}:."), |user| format!("{user}@{name}:."));
    let args: [OsString; 3] = ["-r".into(), operand.into(), ".".into()];
    let call = Invocation {
        program: OsStr::new("sparsync"),
        args: &args,
        appended: &[],
        vars: &|name: &str| env.var(name),
        now_unix_secs: clock::now_unix().0,
        umask: env.umask,
        popt: &input_files::popt_files(env),
    };
    let mut copy = match cli::read(&call)? {
        Request::Copy(copy) => copy,
        _ => {
            return Err(Error::usage(
                "sparsync: cannot determine the route: the aliases in ~/.popt change this command",
            ));
        }
    };
    let connect = &mut copy.options.connect;
    if !reach.shell.is_empty() {
        (connect.shell, connect.shell_was_given) = (reach.shell.clone(), true);
    }
    if reach.program.is_some() {
        connect.program.clone_from(&reach.program);
    }
    Ok(copy)
}

/// Returns the command of a remote shell that asks the user nothing, if it is ssh.
fn without_questions(shell: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut words = if shell.is_empty() {
        vec![b"ssh".to_vec()]
    } else {
        shell.to_vec()
    };
    if file_name(&words[0]) == b"ssh" {
        words.splice(
            1..1,
            words_of(&[b"-oBatchMode=yes", b"-oConnectTimeout=10"]),
        );
    }
    words
}

/// Connects to the server of a host over one protocol. Also returns why that failed.
fn dialled(
    env: &Env,
    identity: &Identity,
    peer: &Peer,
    transport: Transport,
) -> (DoctorCheck, Option<Trouble>) {
    let name = if transport == Transport::Quic {
        "quic"
    } else {
        "tls"
    };
    let patience = Patience {
        idle: Some(ANSWER_MAX),
        stop: env.stop.clone(),
        ..Patience::default()
    };
    let dial = via_server::dial(identity, peer, patience, Default::default());
    match via_server::dial_all(peer, &[transport], &dial) {
        Ok(won) => {
            let datagrams = discovered_datagram_bytes(&won.hang_up)
                .map(|bytes| format!(", datagrams of {bytes} bytes"));
            let finding = format!(
                "reached at {}{}",
                won.address,
                datagrams.unwrap_or_default()
            );
            (DoctorCheck::ok(name, finding), None)
        }
        Err(why @ Trouble::WrongKey(_)) => {
            let hint = format!(
                "if its key was replaced: sparsync enroll --revoke {0} && sparsync enroll {0}",
                peer.name
            );
            (
                DoctorCheck::fail(name, why.to_string()).with_hint(hint),
                Some(why),
            )
        }
        Err(why) => {
            let hint = match why {
                Trouble::Broken(_) => format!(
                    "run `sparsync server status {}` to see its last errors",
                    peer.ssh
                ),
                _ => via_server::advice(peer, &why),
            };
            (
                DoctorCheck::warn(name, why.to_string()).with_hint(hint),
                Some(why),
            )
        }
    }
}

/// Returns the size of datagrams once QUIC has stopped finding larger ones; `None` for TLS.
fn discovered_datagram_bytes(connection: &HangUp) -> Option<u16> {
    let since = Since::now();
    let mut found = connection.datagram_bytes()?;
    let mut unchanged = 0;
    while (unchanged < MTU_SETTLED_LOOKS || found <= MTU_LEAST_BYTES)
        && since.elapsed() < MTU_WAIT_MAX
    {
        std::thread::sleep(MTU_LOOK);
        let now = connection.datagram_bytes()?;
        unchanged = if now == found { unchanged + 1 } else { 0 };
        found = now;
    }
    Some(found)
}
