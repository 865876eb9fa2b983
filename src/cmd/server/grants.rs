//! `sparsync server grant`, `grants` and `revoke`: the keys that the server admits, and what they may do.

use super::control_socket::{self, Question, Status};
use super::process::{ensure, given_addresses};
use super::{listen, process};
use crate::cli::subcommand::{NewGrant, Rights, Start};
use crate::cmd::command_end::{print_line, to_json};
use crate::cmd::remote_side::sparsync_client;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{ids, sandbox, sys, trusted_path};
use crate::options::LinkOwners;
use crate::report::event::errno_words;
use crate::trust::Pin;
use crate::trust::enroll_reply::{Introduction, ServerState};
use crate::trust::files::List as _;
use crate::trust::grants::{Grant, Granted, Grants, NO_SUCH_GRANT};
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::timestamp::Timestamp;
use crate::work::clock;
use serde::Serialize;
use std::io::Write;

/// Printed by `server revoke --stop-unused` if the server is still in use.
pub const SERVER_STAYS: &str = "sparsync: the server keeps running";

/// The JSON form of a grant.
#[derive(Serialize)]
struct GrantJson<'a> {
    name: &'a str,
    pin: Pin,
    roots: Vec<String>,
    read_only: bool,
    expires: Option<Timestamp>,
    expired: bool,
    allow_setuid: bool,
    no_munge: bool,
    owner: Option<&'a str>,
}

/// Prints all grants.
pub fn grants(env: &mut Env, places: &Places, json: bool) -> Result<Exit> {
    let grants = Grants::load(places)?.grants;
    let now = Timestamp(clock::now_unix().0);
    if json {
        let grants_json: Vec<_> = grants
            .iter()
            .map(|grant| GrantJson {
                name: &grant.name,
                pin: grant.pin,
                roots: grant
                    .roots
                    .iter()
                    .map(|root| String::from_utf8_lossy(root).into_owned())
                    .collect(),
                read_only: grant.read_only,
                expires: grant.expires,
                expired: !grant.stands(now),
                allow_setuid: grant.allow_setuid,
                no_munge: grant.no_munge,
                owner: grant.owner.as_deref(),
            })
            .collect();
        print_line(env, &to_json(&grants_json)?)?;
        return Ok(Exit::Ok);
    }
    if grants.is_empty() {
        print_line(env, "sparsync: no grants")?;
    }
    for grant in &grants {
        print_line(
            env,
            &format!("{}  {}  {}", grant.name, grant.pin, grant.rights(now)),
        )?;
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
    let name = &grant.name;
    let root = String::from_utf8_lossy(root);
    let config = places.config.display();
    let what = if grant.read_only {
        "read the key of this server"
    } else {
        "change the key and the grants of this server"
    };
    Some(format!(
        "{name} can {what}: {config} is inside of --root={root}"
    ))
}

/// Returns warnings about roots that cannot be opened. They may be misspelled.
fn unreachable_roots(grant: &Grant) -> impl Iterator<Item = String> {
    grant.roots.iter().filter_map(|root| {
        let error = trusted_path::open_dir(root, LinkOwners::Trusted).err()?;
        let root = String::from_utf8_lossy(root);
        let why = errno_words(&error);
        Some(format!(
            "cannot open --root={root} on {}: {}",
            sys::host_name(),
            String::from_utf8_lossy(&why)
        ))
    })
}

/// Returns the warning that the same name has another key with a grant: a machine that lost its key has a new one, and
/// the finder of the old one would still be admitted.
fn another_key(other: &Grant) -> String {
    let name = &other.name;
    let pin = other.pin;
    let host = sys::host_name();
    format!(
        "{name} also has a grant for {pin}; if that key is lost, run on {host}: sparsync server revoke {pin}"
    )
}

/// The checked arguments of `server grant`. What they leave out stays unchanged.
struct GrantChange {
    pin: Pin,
    name: Option<String>,
    default_name: Option<String>,
    roots: Vec<Vec<u8>>,
    read_only: Option<bool>,
    /// `Some(None)`: the grant does not expire.
    expires: Option<Option<Timestamp>>,
    allow_setuid: Option<bool>,
    no_munge: Option<bool>,
    /// `Some(None)`: sessions run as the user of the server.
    owner: Option<Option<String>>,
}

fn grant_change(new: &NewGrant, now: Timestamp) -> Result<GrantChange> {
    let NewGrant {
        pin,
        name,
        default_name,
        rights,
        ..
    } = new;
    let pin = pin
        .parse()
        .map_err(|bad| Error::usage(format!("sparsync server: grant: {bad}")))?;
    for name in name.iter().chain(default_name) {
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(Error::usage(
                "sparsync server: --name: expected one line that is not empty",
            ));
        }
    }
    let expires = match &rights.expires {
        Some(text) => Some(Some(expiry(text, now)?)),
        None if rights.no_expiry => Some(None),
        None => None,
    };
    let name = name.clone();
    let default_name = default_name.clone();
    let Rights {
        roots,
        read_only,
        allow_setuid,
        no_munge,
        owner,
        no_owner,
        ..
    } = rights.clone();
    let owner = match owner {
        Some(owner) => Some(Some(owner)),
        None if no_owner => Some(None),
        None => None,
    };
    Ok(GrantChange {
        pin,
        name,
        default_name,
        roots,
        read_only,
        expires,
        allow_setuid,
        no_munge,
        owner,
    })
}

/// Parses the value of `--expires`, which must not be in the past.
fn expiry(text: &str, now: Timestamp) -> Result<Timestamp> {
    let invalid = |why: String| Error::usage(format!("sparsync server: --expires: {why}"));
    let end = Timestamp::read(text, now).map_err(invalid)?;
    if end <= now {
        return Err(invalid(format!("`{text}` is in the past")));
    }
    Ok(end)
}

impl GrantChange {
    /// Returns the changed grant. `known`: the grant that the key has now.
    fn apply_to(&self, known: Option<&Grant>) -> Result<Grant> {
        let known_name = known.map(|known| known.name.clone());
        let name = self
            .name
            .clone()
            .or(known_name)
            .or_else(|| self.default_name.clone());
        let unnamed = || Error::usage("sparsync server: grant: missing --name=NAME for a new key");
        let roots = match (self.roots.as_slice(), known) {
            ([], Some(known)) => known.roots.clone(),
            ([], None) => vec![b"/".to_vec()],
            (given, _) => given.to_vec(),
        };
        Ok(Grant {
            pin: self.pin,
            name: name.ok_or_else(unnamed)?,
            roots,
            read_only: self
                .read_only
                .unwrap_or(known.is_some_and(|known| known.read_only)),
            expires: self
                .expires
                .unwrap_or(known.and_then(|known| known.expires)),
            allow_setuid: self
                .allow_setuid
                .unwrap_or(known.is_some_and(|known| known.allow_setuid)),
            no_munge: self
                .no_munge
                .unwrap_or(known.is_some_and(|known| known.no_munge)),
            owner: self
                .owner
                .clone()
                .unwrap_or_else(|| known.and_then(|known| known.owner.clone())),
        })
    }
}

/// Prints warnings. A lost one does not affect the command.
fn warn(env: &mut Env, lines: impl IntoIterator<Item = String>) {
    let text: String = lines
        .into_iter()
        .map(|line| format!("sparsync: warning: {line}\n"))
        .collect();
    let _ = env.stderr.write_all(text.as_bytes());
}

/// Adds or changes a grant.
pub fn grant(env: &mut Env, places: &Places, new: NewGrant) -> Result<Exit> {
    let now = Timestamp(clock::now_unix().0);
    let change = grant_change(&new, now)?;
    let NewGrant { start, json, .. } = new;
    let known = Grants::load(places)?.by_pin(&change.pin).cloned();
    check_grant(&change.apply_to(known.as_ref())?, now)?;
    let identity = Identity::load_or_make(places)?;
    // Start the server first: it may run with other settings, and then nothing has changed.
    let server = server_of_grant(env, places, start.as_ref())?;
    let written = WrittenGrant::write(places, &change)?;
    warn(env, written.warnings(places));
    let line = if json {
        introduction(&server, &written, &identity, now).to_json()
    } else {
        written.result_line(now)
    };
    print_line(env, &line)?;
    Ok(Exit::Ok)
}

/// Fails if sessions of a grant could not run, or if it has expired already.
fn check_grant(grant: &Grant, now: Timestamp) -> Result<()> {
    if !sandbox::are_everything(&grant.roots) {
        sparsync_client::can_limit()?;
    }
    if let Some(owner) = &grant.owner {
        sparsync_client::account_of(owner)?;
    }
    if let Some(end) = grant.expires
        && !grant.stands(now)
    {
        let name = &grant.name;
        let words = format!("sparsync: cannot change the grant of {name}: it expired at {end}");
        return Err(Error::usage(words).with_hint("renew it with --expires=WHEN or --no-expiry"));
    }
    Ok(())
}

/// The server that admits the key of a grant.
struct ServerOfGrant {
    status: Status,
    /// Whether this process has started it.
    was_started: bool,
    /// The port that the user or the configuration names; 0: any.
    wanted_port: u16,
}

/// Starts the server if the command requests that (`start`), else only determines its status.
fn server_of_grant(env: &mut Env, places: &Places, start: Option<&Start>) -> Result<ServerOfGrant> {
    let wanted_port = listen::port_of(places, start.unwrap_or(&Start::default()));
    let Some(start) = start else {
        // A grant takes effect as soon as it is written, whatever the server answers.
        let status = control_socket::status(places).ok().flatten();
        return Ok(ServerOfGrant {
            status: status.unwrap_or_else(Status::down),
            was_started: false,
            wanted_port,
        });
    };
    // Only a port that the user names must be that one: the answer contains the port.
    let start = Start {
        or_other_port: start.port.is_none(),
        ..start.clone()
    };
    let (status, was_started) = ensure(env, places, &start)?;
    let port = status.port;
    if was_started && wanted_port != 0 && wanted_port != port {
        let holder = listen::holder_of(wanted_port);
        let line = format!("port {wanted_port} is in use by {holder}; the server uses port {port}");
        warn(env, [line]);
    }
    Ok(ServerOfGrant {
        status,
        was_started,
        wanted_port,
    })
}

impl ServerOfGrant {
    fn state(&self) -> ServerState {
        match (self.status.running, self.was_started) {
            (true, true) => ServerState::Started,
            (true, false) => ServerState::Runs,
            (false, _) => ServerState::Down,
        }
    }

    /// Returns the port of the server. If it is down, the port that it would have.
    fn port(&self) -> u16 {
        if self.status.running {
            self.status.port
        } else {
            self.wanted_port
        }
    }
}

/// A grant as it is in the file now.
struct WrittenGrant {
    grant: Grant,
    /// What was done to the file.
    granted: Granted,
    /// The grant that the key had before.
    before: Option<Grant>,
    /// The grants of other keys under the same name.
    others: Vec<Grant>,
}

impl WrittenGrant {
    /// Applies a change to the grant that the key has now. Another process may have changed it since it was checked.
    fn write(places: &Places, change: &GrantChange) -> Result<WrittenGrant> {
        Grants::change(places, |grants| {
            let before = grants.by_pin(&change.pin).cloned();
            let grant = change.apply_to(before.as_ref())?;
            Ok(WrittenGrant {
                granted: grants.put(grant.clone()),
                others: grants.others_named_as(&grant),
                before,
                grant,
            })
        })?
    }

    /// Returns whether the key has fewer rights than the login.
    fn is_limited(&self) -> bool {
        let grant = &self.grant;
        grant.read_only
            || grant.expires.is_some()
            || grant.owner.is_some()
            || !sandbox::are_everything(&grant.roots)
    }

    /// Returns a description of the rights that the key had, if they have changed.
    fn rights_before(&self, now: Timestamp) -> Option<String> {
        match &self.before {
            Some(before) if self.granted == Granted::Changed => Some(before.rights(now)),
            Some(_) | None => None,
        }
    }

    fn warnings(&self, places: &Places) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.granted == Granted::Same {
            return warnings;
        }
        // A key that may do all that the login may cannot exceed its grant.
        if self.is_limited() {
            warnings.extend(exceeded(places, &self.grant));
        }
        warnings.extend(unreachable_roots(&self.grant));
        if self.granted == Granted::New {
            warnings.extend(self.others.iter().map(another_key));
        }
        warnings
    }

    /// Returns the line that the command prints.
    fn result_line(&self, now: Timestamp) -> String {
        let name = &self.grant.name;
        let rights = self.grant.rights(now);
        match self.granted {
            Granted::New => format!("sparsync: added a grant for {name}: {rights}"),
            Granted::Changed => {
                let before = self.rights_before(now).unwrap_or_default();
                format!("sparsync: changed the grant of {name}: {before} -> {rights}")
            }
            Granted::Same => format!("sparsync: {name} already has this grant: {rights}"),
        }
    }
}

/// Returns what the client learns about the server and its grant (`--json`).
fn introduction(
    server: &ServerOfGrant,
    written: &WrittenGrant,
    identity: &Identity,
    now: Timestamp,
) -> Introduction {
    let addresses = given_addresses(&server.status);
    Introduction {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pin: server.status.pin.unwrap_or(identity.pin),
        port: server.port(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        grant: written.granted,
        rights: written.grant.rights(now),
        rights_before: written.rights_before(now),
        server: server.state(),
        is_limited: written.is_limited(),
    }
}

/// Removes grants.
pub fn revoke(env: &mut Env, places: &Places, who: &str, stop_unused: bool) -> Result<Exit> {
    let gone = Grants::change(places, |grants| grants.revoke(who))?;
    if gone.is_empty() {
        let words = format!("sparsync: cannot revoke `{who}`: no grant has this name or key");
        return Err(
            Error::new(NO_SUCH_GRANT, words).with_hint("`sparsync server grants` lists all grants")
        );
    }
    for grant in gone {
        print_line(
            env,
            &format!(
                "sparsync: revoked the grant of {} ({})",
                grant.name, grant.pin
            ),
        )?;
    }
    if !stop_unused {
        return Ok(Exit::Ok);
    }
    match control_socket::status(places)? {
        None => Ok(Exit::Ok),
        Some(status) if !status.supervised && Grants::load(places)?.grants.is_empty() => {
            process::stop(env, places, Some(Question::Stop))
        }
        Some(_) => {
            print_line(env, SERVER_STAYS)?;
            Ok(Exit::Ok)
        }
    }
}
