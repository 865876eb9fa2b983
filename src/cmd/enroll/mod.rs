//! `sparsync enroll`: exchanges keys with another machine over ssh, then tests the connection to its server.

use crate::cli::subcommand::{self, Enroll, EnrollHost, NewGrant, RemoteHost, ServerAction, Start};
use crate::cmd::command_end::to_json;
use crate::cmd::copy::via_server::{self, SshFacts};
use crate::cmd::server::grants::SERVER_STAYS;
use crate::cmd::server::process::SERVER_STOPPED;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::report::json;
use crate::transport::shell::{self, RunOptions, ShellExit};
use crate::trust::Pin;
use crate::trust::enroll_reply::{INTRODUCTION_MAX_BYTES, Introduction, ServerState};
use crate::trust::files::List as _;
use crate::trust::grants::{Granted, NO_SUCH_GRANT};
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::peers::{Peer, Peers};
use crate::trust::timestamp::Timestamp;
use crate::work::clock;
use serde::Serialize;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Sets `p` in a POSIX shell to the sparsync that a login finds, or else to the copy that `--install` makes; empty: there
/// is none.
pub const FIND_SPARSYNC: &str = "p=sparsync; command -v $p >/dev/null 2>&1 || { p=$HOME/.local/bin/sparsync; [ -x \"$p\" ] || p=; }";

/// The path of an installed copy, below the home directory on the other machine.
const INSTALLED: &str = ".local/bin/sparsync";

/// Runs the command and prints the result on standard output.
pub fn run(env: &mut Env, wanted: &Enroll) -> Result<()> {
    let places = Places::from_env(env)?;
    let text = match wanted {
        Enroll::Host(host) => enroll(env, &places, host)?,
        Enroll::List { json } => list(&Peers::load(&places)?, *json),
        Enroll::Revoke(reach) => revoke(env, &places, reach)?,
    };
    let written = env
        .stdout
        .write_all(text.as_bytes())
        .and_then(|()| env.stdout.flush());
    written.map_err(|error| failed(format!("cannot write to standard output: {error}")))
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::new(Exit::StartClient, format!("sparsync: {what}"))
}

fn enroll(env: &mut Env, places: &Places, wanted: &EnrollHost) -> Result<String> {
    let host = &wanted.reach.host;
    if let Some(until) = &wanted.rights.expires {
        // The other machine's clock decides whether the time has passed.
        let read = Timestamp::read(until, Timestamp(clock::now_unix().0));
        read.map_err(|bad| Error::usage(format!("sparsync enroll: --expires: {bad}")))?;
    }
    let known = Peers::load(places)?.find(host).cloned();
    let mut reach = with_program(&wanted.reach, known.as_ref());
    if wanted.dry_run {
        return dry_run(env, places, wanted, &reach);
    }
    let identity = Identity::load_or_make(places)?;
    let words = grant_words(env, wanted, identity.pin.to_string());
    let (introduction, installed) = introduce(env, &mut reach, wanted.install, &words)?;
    if let Some(known) = known.as_ref().filter(|known| known.pin != introduction.pin) {
        return Err(other_key(host, &known.pin, &introduction.pin));
    }
    let result = EnrollResult {
        host,
        outcome: EnrollOutcome::Enrolled,
        server_pin: introduction.pin.to_string(),
        client_pin: identity.pin.to_string(),
        transport: None,
        addresses: &introduction.addresses,
        port: introduction.port,
        grant: &introduction.rights,
        grant_before: introduction.rights_before.as_deref(),
        grant_is_limited: introduction.is_limited,
        copies_use_ssh: false,
        server_was_started: introduction.server == ServerState::Started,
        installed,
    };
    if introduction.server == ServerState::Down {
        return EnrollResult {
            outcome: EnrollOutcome::ServerDown,
            ..result
        }
        .shown(wanted.json);
    }
    if introduction.server == ServerState::Started && introduction.addresses.is_empty() {
        let words = format!(
            "sparsync: warning: the server listens on all addresses of {host}\n\
             hint: `sparsync server restart --listen=ADDRESS {host}` limits it\n"
        );
        // A lost warning does not affect the enrolment.
        let _ = env.stderr.write_all(words.as_bytes());
    }
    let facts = via_server::ssh_facts(&reach.shell, host, env.umask);
    let peer = Peer {
        name: host.clone(),
        ssh: host.clone(),
        addresses: addresses(&facts, &introduction),
        port: introduction.port,
        pin: introduction.pin,
        program: reach
            .program
            .map(|program| String::from_utf8_lossy(&program).into_owned()),
        met: Timestamp(clock::now_unix().0),
        last_transport: None,
        last_until: None,
        last_trouble: None,
        is_limited: introduction.is_limited,
    };
    let kind = via_server::try_out(env, &identity, &peer)?;
    let is_same = known.as_ref().is_some_and(|known| {
        let last = known.clone();
        let last_transport = last.last_transport;
        let last_until = last.last_until;
        let last_trouble = last.last_trouble;
        Peer {
            met: known.met,
            last_transport,
            last_until,
            last_trouble,
            ..peer.clone()
        } == *known
    });
    Peers::change(places, |peers| {
        if is_same {
            peers.answers(host)
        } else {
            peers.put(peer.clone())
        }
    })?;
    let is_unchanged = is_same && introduction.grant == Granted::Same;
    let result = EnrollResult {
        outcome: if is_unchanged {
            EnrollOutcome::Unchanged
        } else {
            EnrollOutcome::Enrolled
        },
        transport: Some(kind.to_string()),
        addresses: &peer.addresses,
        copies_use_ssh: facts.is_proxied,
        ..result
    };
    result.shown(wanted.json)
}

/// Returns what an enrollment would do.
fn dry_run(env: &Env, places: &Places, wanted: &EnrollHost, reach: &RemoteHost) -> Result<String> {
    let host = &reach.host;
    let (key, pin) = match Identity::load(places)? {
        Some(identity) => ("", identity.pin.to_string()),
        None => (
            "would create a key for this user\n",
            "SHA256:...".to_owned(),
        ),
    };
    let run = shown(reach, &grant_words(env, wanted, pin));
    let listen = if wanted.start && wanted.listen.is_empty() {
        "a server that it starts listens on the addresses given last there, at first on all; --listen=ADDRESS sets them\n"
    } else {
        ""
    };
    let install = if wanted.install {
        format!("would copy this program to ~/{INSTALLED} on {host} if sparsync is missing there\n")
    } else {
        String::new()
    };
    Ok(format!(
        "{key}would run: {run}\n{listen}{install}would test QUIC with the key in its answer, then store {host}\n"
    ))
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum EnrollOutcome {
    Enrolled,
    Unchanged,
    /// The grant was added, but there is no server to test and nothing was stored here.
    ServerDown,
}

/// The result of an enrollment, as `--json` prints it; docs/json-schema.json describes it.
#[derive(Serialize)]
struct EnrollResult<'a> {
    host: &'a str,
    #[serde(rename = "result")]
    outcome: EnrollOutcome,
    server_pin: String,
    client_pin: String,
    /// The transport that reached the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<String>,
    addresses: &'a [String],
    port: u16,
    /// The rights of this machine, as `server grants` prints them.
    grant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    grant_before: Option<&'a str>,
    grant_is_limited: bool,
    /// ssh connects through another machine or program, so that copies use it by default.
    copies_use_ssh: bool,
    server_was_started: bool,
    /// The path of the program that was copied to the host, below the home directory there.
    #[serde(skip_serializing_if = "Option::is_none")]
    installed: Option<&'static str>,
}

impl EnrollResult<'_> {
    fn shown(&self, json: bool) -> Result<String> {
        if json {
            Ok(to_json(self)? + "\n")
        } else {
            Ok(self.text())
        }
    }

    fn text(&self) -> String {
        let EnrollResult {
            host,
            server_pin,
            client_pin,
            port,
            grant,
            ..
        } = self;
        let mut text = match self.outcome {
            EnrollOutcome::ServerDown => {
                return format!(
                    "{}{host}: granted access to this machine's key; connection not tested: no server is running there\n\
                     hint: run `sparsync server start {host}`, then enroll again\n",
                    self.install_line()
                );
            }
            EnrollOutcome::Unchanged => format!("{host} is already enrolled; nothing changed\n"),
            EnrollOutcome::Enrolled => format!("{host} is enrolled\n"),
        };
        text += &self.install_line();
        let transport = self.transport.as_deref().unwrap_or_default();
        let before = self
            .grant_before
            .map(|before| format!(" (before: {before})"))
            .unwrap_or_default();
        text += &format!("  server    {server_pin}\n  client    {client_pin}\n");
        text += &format!(
            "  reached   over {transport} at {} port {port}\n",
            self.addresses.join(", ")
        );
        text += &format!("  grant     {grant}{before}\n");
        if self.grant_is_limited {
            text += "            the limits apply to QUIC and TLS; an ssh login keeps all rights of its user\n";
        }
        if self.copies_use_ssh {
            text += "  copies    use ssh, which connects through another machine or program; --transport=quic or tls uses \
                     the server\n";
        }
        if self.server_was_started {
            text += &format!(
                "  started   its server; `sparsync server install {host}` lets systemd start it at boot\n"
            );
        }
        text
    }
}

impl EnrollResult<'_> {
    /// Returns the line about the program that was copied to the host; empty if none was.
    fn install_line(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        self.installed
            .map(|path| format!("  installed sparsync {version} as ~/{path} there\n"))
            .unwrap_or_default()
    }
}

/// Requests a grant for this machine's key, and returns the host's answer, and what was installed there. With `install` the program is copied to the
/// host if it is missing there, and `reach` is set to its path.
fn introduce(
    env: &mut Env,
    reach: &mut RemoteHost,
    install: bool,
    words: &[Vec<u8>],
) -> Result<(Introduction, Option<&'static str>)> {
    let host = reach.host.clone();
    let mut installed = None;
    let mut ended = run_remote(env.umask, reach, words)?;
    if ended.0 == ShellExit::Code(Exit::CmdNotFound.code()) {
        if !install {
            return Err(failed(format!("cannot enroll {host}: sparsync not found there")).with_hint(format!(
                "--install copies this program to ~/{INSTALLED} there; --rsync-path=PROGRAM names another path"
            )));
        }
        install_on_host(env, reach)?;
        reach.program = Some(INSTALLED.into());
        installed = Some(INSTALLED);
        ended = run_remote(env.umask, reach, words)?;
    }
    match ended {
        (ShellExit::Code(0), output) => match Introduction::read(&output) {
            Ok(introduction) => Ok((introduction, installed)),
            Err(why) => Err(failed(format!(
                "cannot enroll {host}: unexpected answer from its sparsync: {why}"
            ))
            .with_hint("upgrade the older sparsync")),
        },
        (ShellExit::Code(shell::SSH_FAILED), _) => {
            Err(failed(format!("cannot enroll {host}: ssh failed"))
                .with_hint(shell::login_hint(&reach.shell, &host)))
        }
        (ShellExit::Code(code), _) => Err(failed(format!(
            "cannot enroll {host}: `sparsync server grant` failed there with exit code {code}"
        ))),
        (ShellExit::Killed | ShellExit::GivenUp, _) => Err(failed(format!(
            "cannot enroll {host}: the remote shell was killed"
        ))),
    }
}

/// Returns the arguments of the command that grants this machine's key access.
fn grant_words(env: &Env, wanted: &EnrollHost, pin: String) -> Vec<Vec<u8>> {
    let start = Start {
        port: wanted.port,
        listen: wanted.listen.clone(),
        ..Start::default()
    };
    let default_name = match &wanted.name {
        Some(_) => None,
        None => Some(own_name(env)),
    };
    let new = NewGrant {
        pin,
        name: wanted.name.clone(),
        default_name,
        rights: wanted.rights.clone(),
        start: if wanted.start { Some(start) } else { None },
        json: true,
    };
    ServerAction::Grant(Box::new(new)).words()
}

/// Returns the default name of this machine's grant.
fn own_name(env: &Env) -> String {
    let user = env
        .var("USER")
        .or_else(|| env.var("LOGNAME"))
        .unwrap_or_else(|| "root".into());
    format!("{}@{}", user.to_string_lossy(), sys::host_name())
}

/// Adds the program that is known to be on the host, unless the user named another one.
pub fn with_program(reach: &RemoteHost, known: Option<&Peer>) -> RemoteHost {
    let known = || {
        known
            .and_then(|known| known.program.clone())
            .map(String::into_bytes)
    };
    RemoteHost {
        program: reach.program.clone().or_else(known),
        ..reach.clone()
    }
}

/// Returns the command line of a remote shell that runs sparsync with these arguments.
pub fn argv(reach: &RemoteHost, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let line = match &reach.program {
        Some(program) => subcommand::addressed(program.clone(), words),
        None => {
            let script = format!("{FIND_SPARSYNC}; [ -n \"$p\" ] || exit 127; exec \"$p\" \"$@\"");
            let shell = [
                b"sh".to_vec(),
                b"-c".to_vec(),
                script.into(),
                b"sh".to_vec(),
            ];
            shell.into_iter().chain(words.iter().cloned()).collect()
        }
    };
    shell::argv_of(&reach.shell, &reach.host, &line)
}

/// Returns the same command line in the form in which messages show it.
fn shown(reach: &RemoteHost, words: &[Vec<u8>]) -> String {
    let program = reach.program.clone();
    let reach = RemoteHost {
        program: program.or_else(|| Some(b"sparsync".to_vec())),
        ..reach.clone()
    };
    String::from_utf8_lossy(&argv(&reach, words).join(&b' ')).into_owned()
}

fn run_options(umask: u32, input: Option<std::fs::File>) -> RunOptions {
    RunOptions {
        umask,
        input,
        is_quiet: false,
        most_bytes: INTRODUCTION_MAX_BYTES,
    }
}

fn run_remote(umask: u32, reach: &RemoteHost, words: &[Vec<u8>]) -> Result<(ShellExit, Vec<u8>)> {
    let argv = argv(reach, words);
    shell::run_to_end(&argv, run_options(umask, None)).map_err(|error| {
        failed(format!(
            "cannot start {}: {error}",
            String::from_utf8_lossy(&argv[0])
        ))
    })
}

/// Copies this program to the host, if it can run there.
fn install_on_host(env: &mut Env, reach: &RemoteHost) -> Result<()> {
    let host = &reach.host;
    let umask = env.umask;
    let run = |script: &str, input| {
        let words = vec![b"sh".to_vec(), b"-c".to_vec(), script.into()];
        shell::run_to_end(
            &shell::argv_of(&reach.shell, host, &words),
            run_options(umask, input),
        )
        .map_err(|error| {
            failed(format!(
                "cannot install sparsync on {host}: cannot start the remote shell: {error}"
            ))
        })
    };
    let (ended, output) = run("echo; uname -s -m", None)?;
    if ended != ShellExit::Code(0) {
        return Err(failed(format!(
            "cannot install sparsync on {host}: the remote shell cannot run `uname` there"
        )));
    }
    let remote = String::from_utf8_lossy(&output)
        .lines()
        .last()
        .unwrap_or_default()
        .trim()
        .to_owned();
    let local = sys::system_and_machine();
    if remote != local {
        let words = format!("cannot install sparsync on {host}: `{remote}` there, `{local}` here");
        return Err(failed(words).with_hint(format!("build sparsync on {host}")));
    }
    let own = env.own_path().ok_or_else(|| {
        failed(format!(
            "cannot install sparsync on {host}: the path of this program is unknown"
        ))
    })?;
    let own = trusted_path::open_file(own.as_os_str().as_bytes(), LinkOwners::Trusted).map_err(
        |error| {
            failed(format!(
                "cannot install sparsync on {host}: cannot read {}: {error}",
                own.display()
            ))
        },
    )?;
    // The rename makes the program appear whole or not at all, and only after it has run once.
    let script = format!(
        "set -e; cd; mkdir -p .local/bin; new={INSTALLED}.$$; trap 'rm -f \"$new\"' EXIT; umask 022; cat >\"$new\"; \
         chmod 755 \"$new\"; \"$new\" --version >/dev/null; mv \"$new\" {INSTALLED}"
    );
    match run(&script, Some(own.into()))? {
        (ShellExit::Code(0), _) => Ok(()),
        _ => Err(failed(format!(
            "cannot install sparsync on {host}: copying to ~/{INSTALLED} failed, or the copy does not run"
        ))),
    }
}

/// Returns the addresses of the host's server: the one that ssh uses, and those that the server reports.
fn addresses(facts: &SshFacts, introduction: &Introduction) -> Vec<String> {
    let mut addresses = vec![facts.hostname.clone()];
    for address in &introduction.addresses {
        if !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
    addresses
}

/// Returns the error for a server whose key differs from the known one. Only the user can decide what that means.
pub fn other_key(host: &str, known: &Pin, shown: &Pin) -> Error {
    let words = format!(
        "sparsync: cannot trust {host}: its key has changed: another machine may impersonate it\n  known  {known}\n  \
         now    {shown}"
    );
    let hint = format!(
        "if its key was replaced: sparsync enroll --revoke {host} && sparsync enroll {host}"
    );
    Error::new(Exit::StartClient, words).with_hint(hint)
}

fn list(peers: &Peers, json: bool) -> String {
    if json {
        return json::text_of(&peers.hosts).unwrap_or_default() + "\n";
    }
    if peers.hosts.is_empty() {
        return "no enrolled hosts; `sparsync enroll HOST` adds one\n".into();
    }
    let line = |peer: &Peer| {
        format!(
            "{}  {}  {} port {}  since {}\n",
            peer.name,
            peer.pin,
            peer.addresses.join(","),
            peer.port,
            peer.met
        )
    };
    peers.hosts.iter().map(line).collect()
}

/// Removes a host on both sides. Without the host, only the local entry is removed, and the error names the command to
/// run there.
fn revoke(env: &mut Env, places: &Places, reach: &RemoteHost) -> Result<String> {
    let host = &reach.host;
    let known = Peers::change(places, |peers| peers.remove(host))?;
    let same: Vec<_> = match &known {
        Some(known) => Peers::load(places)?
            .hosts
            .into_iter()
            .filter(|other| other.pin == known.pin)
            .collect(),
        None => Vec::new(),
    };
    if !same.is_empty() {
        let names: Vec<_> = same.into_iter().map(|other| other.name).collect();
        return Ok(format!(
            "{host} is removed here\nthis machine keeps its grant there: the same server is enrolled as {}\n",
            names.join(", ")
        ));
    }
    let Some(identity) = Identity::load(places)? else {
        return Err(failed(format!(
            "cannot revoke {host}: not enrolled, and this user has no key"
        )));
    };
    let words = ServerAction::Revoke {
        who: identity.pin.to_string(),
        stop_unused: true,
    }
    .words();
    let result = run_remote(env.umask, &with_program(reach, known.as_ref()), &words);
    let mut text = match known {
        Some(_) => format!("{host} is removed here\n"),
        None => format!("{host} was not enrolled here\n"),
    };
    match result {
        Ok((ShellExit::Code(0), output)) => {
            let output = String::from_utf8_lossy(&output);
            text += &format!("{host} revoked the grant of this machine's key\n");
            if output.contains(SERVER_STOPPED) {
                text += &format!("{host} has no other grants, so its server was stopped\n");
            } else if output.contains(SERVER_STAYS) {
                text += &format!(
                    "{host} keeps its server running, because systemd started it or other keys have grants\n"
                );
            }
        }
        Ok((ShellExit::Code(code), _)) if code == NO_SUCH_GRANT.code() => {
            text += &format!("{host} had no grant for this machine's key\n");
        }
        _ => {
            // The failed command is the error to report.
            let _ = env
                .stdout
                .write_all(text.as_bytes())
                .and_then(|()| env.stdout.flush());
            return Err(failed(format!(
                "cannot revoke the grant of this machine's key on {host}: the command failed there"
            ))
            .with_hint(format!(
                "run on {host}: sparsync server revoke {}",
                identity.pin
            )));
        }
    }
    Ok(text)
}
