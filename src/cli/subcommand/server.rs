//! Parses the arguments of `server`.

use super::command::{
    Install, NewGrant, RemoteHost, Rights, ServerAction, ServerCommand, Session, Start, Verb,
};
use super::pages::{USER_ACTIONS, page_of};
use super::word_reader::{Argument, RIGHTS, WordReader};
use crate::cli::suggest::nearest;
use crate::error::{Error, Result};
use std::os::unix::ffi::OsStringExt;

/// The actions of `server` that users need, as messages list them.
const SUBCOMMANDS: &str =
    "start, stop, restart, status, metrics, install, grants, grant, revoke or pin";

/// The options of `server`, and the actions that accept them.
pub const SERVER_OPTIONS: [(&str, &[&str]); 30] = [
    ("foreground", &["start"]),
    ("detached", &["start"]),
    ("listen", &["start", "restart", "install", "grant"]),
    ("port", &["start", "restart", "install", "grant"]),
    ("or-other-port", &["start"]),
    (
        "memory",
        &["start", "restart", "install", "grant", "session"],
    ),
    ("ceiling", &["session"]),
    ("too-large", &["session"]),
    ("now", &["stop", "restart"]),
    ("json", &["status", "grants", "grant"]),
    ("system", &["install"]),
    ("user", &["install"]),
    ("dry-run", &["install"]),
    ("name", &["grant"]),
    ("default-name", &["grant"]),
    ("root", &["grant", "session"]),
    ("read-only", &["grant", "session"]),
    ("read-write", &["grant"]),
    ("expires", &["grant"]),
    ("no-expiry", &["grant"]),
    ("allow-setuid", &["grant", "session"]),
    ("strip-setuid", &["grant"]),
    ("no-munge", &["grant", "session"]),
    ("munge", &["grant"]),
    ("owner", &["grant", "session"]),
    ("no-owner", &["grant"]),
    ("start", &["grant"]),
    ("stop-unused", &["revoke"]),
    ("rsh", &USER_ACTIONS),
    ("rsync-path", &USER_ACTIONS),
];

/// All arguments after `server`. Which of them the action accepts is checked at the end.
#[derive(Default)]
struct ServerWords {
    operands: Vec<String>,
    given: Vec<&'static str>,
    start: Start,
    now: bool,
    json: bool,
    system: Option<bool>,
    dry_run: bool,
    name: Option<String>,
    default_name: Option<String>,
    rights: Rights,
    ceiling: Option<u32>,
    too_large: bool,
    starts: bool,
    stop_unused: bool,
    shell: Vec<Vec<u8>>,
    program: Option<Vec<u8>>,
}

impl ServerWords {
    fn action(&self) -> Option<&str> {
        self.operands.first().map(String::as_str)
    }
}

/// Parses the words after `server`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    let mut got = ServerWords::default();
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Long(name) if name == "help" => {
                return Ok(Verb::Help(Some(page_of(got.action()))));
            }
            Argument::Short('h') => return Ok(Verb::Help(Some(page_of(got.action())))),
            Argument::Short('e') => "rsh".to_owned(),
            Argument::Short('n') => "dry-run".to_owned(),
            Argument::Short(letter) => {
                return Err(words.wrong(&format!("unknown option -{letter}")));
            }
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                let operand = operand
                    .into_string()
                    .map_err(|_| words.wrong("an argument is not UTF-8"))?;
                got.operands.push(operand);
                continue;
            }
        };
        let known = SERVER_OPTIONS.iter().find(|(known, _)| **known == name);
        let Some((known, _)) = known else {
            return Err(words.unknown_option(&name));
        };
        got.given.push(known);
        match *known {
            "foreground" => got.start.foreground = true,
            "detached" => got.start.detached = true,
            "listen" => got.start.listen.push(words.listen()?),
            "port" => got.start.port = Some(words.port(0)?),
            "or-other-port" => got.start.or_other_port = true,
            "memory" => got.start.memory = Some(words.memory()?),
            "ceiling" => got.ceiling = Some(words.ceiling()?),
            "too-large" => got.too_large = true,
            "now" => got.now = true,
            "json" => got.json = true,
            "system" => got.system = Some(true),
            "user" => got.system = Some(false),
            "dry-run" => got.dry_run = true,
            "name" => got.name = Some(words.text("--name")?),
            "default-name" => got.default_name = Some(words.text("--default-name")?),
            known if RIGHTS.contains(&known) => words.rights(known, &mut got.rights)?,
            "start" => got.starts = true,
            "stop-unused" => got.stop_unused = true,
            "rsh" => got.shell = words.shell()?,
            "rsync-path" => got.program = Some(words.value("--rsync-path")?.into_vec()),
            other => return Err(words.unknown_option(other)),
        }
    }
    settle(words, got)
}

fn settle(words: &WordReader, got: ServerWords) -> Result<Verb> {
    let ServerWords {
        operands,
        given,
        start,
        now,
        json,
        system,
        dry_run,
        shell,
        program,
        ..
    } = got;
    let mut operands = operands.into_iter();
    let Some(action) = operands.next() else {
        return Err(words.wrong(&format!("missing subcommand: {SUBCOMMANDS}")));
    };
    if action == "grant" && !got.starts && start != Start::default() {
        return Err(words.wrong("--listen, --port and --memory require --start"));
    }
    let for_whom = |operands: &mut dyn Iterator<Item = String>, what: &str| {
        operands
            .next()
            .ok_or_else(|| words.wrong(&format!("{action}: missing {what}")))
    };
    let settled = match action.as_str() {
        "start" => ServerAction::Start(start),
        "stop" => ServerAction::Stop { now },
        "restart" => ServerAction::Restart { start, now },
        "status" => ServerAction::Status { json },
        "metrics" => ServerAction::Metrics,
        "install" => ServerAction::Install(Install {
            system,
            dry_run,
            start,
        }),
        "grants" => ServerAction::Grants { json },
        "pin" => ServerAction::Pin,
        "grant" => ServerAction::Grant(Box::new(NewGrant {
            pin: for_whom(&mut operands, "the fingerprint of a key, SHA256:...")?,
            name: got.name,
            default_name: got.default_name,
            rights: got.rights,
            start: if got.starts { Some(start) } else { None },
            json,
        })),
        "revoke" => ServerAction::Revoke {
            who: for_whom(
                &mut operands,
                "a name or a fingerprint, as listed by `sparsync server grants`",
            )?,
            stop_unused: got.stop_unused,
        },
        "pipe" => ServerAction::Pipe {
            address: for_whom(
                &mut operands,
                "the address of a server, such as 192.0.2.1:28792",
            )?,
            pin: for_whom(
                &mut operands,
                "the fingerprint of the server's key, SHA256:...",
            )?,
        },
        "session" if got.rights.roots.is_empty() => {
            return Err(words.wrong("session: missing --root"));
        }
        "session" => {
            let ServerWords {
                rights,
                ceiling,
                too_large,
                ..
            } = got;
            let [read_only, allow_setuid, no_munge] =
                [rights.read_only, rights.allow_setuid, rights.no_munge]
                    .map(|flag| flag == Some(true));
            let roots = rights.roots;
            let owner = rights.owner;
            let memory = start.memory;
            ServerAction::Session(Session {
                roots,
                read_only,
                allow_setuid,
                no_munge,
                owner,
                ceiling,
                memory,
                too_large,
            })
        }
        other => return Err(no_such_action(other)),
    };
    for (name, takers) in SERVER_OPTIONS {
        if given.contains(&name) && !takers.contains(&action.as_str()) {
            return Err(words.wrong(&format!(
                "--{name} cannot be used with {action}, only with {}",
                takers.join(", ")
            )));
        }
    }
    if matches!(settled, ServerAction::Session(_))
        && let Some(host) = operands.as_slice().first()
    {
        return Err(words.wrong(&format!(
            "unexpected argument `{host}`: session takes no host"
        )));
    }
    let host = match operands.next() {
        Some(host) => Some(RemoteHost {
            host: words.host(&host)?,
            shell,
            program,
        }),
        None if !shell.is_empty() || program.is_some() => {
            return Err(words.wrong("-e and --rsync-path require a HOST"));
        }
        None => None,
    };
    if let Some(extra) = operands.next() {
        return Err(words.wrong(&format!("unexpected argument `{extra}`")));
    }
    Ok(Verb::Server(Box::new(ServerCommand {
        action: settled,
        host,
    })))
}

/// Returns the error for a word that is none of the actions.
pub fn no_such_action(action: &str) -> Error {
    let hint = match nearest(action, USER_ACTIONS) {
        // It is similar to `install`, which does the opposite.
        _ if action == "uninstall" => {
            "to undo `server install`: `systemctl disable --now sparsync`, then delete \
             /etc/systemd/system/sparsync.service; for another user than root `systemctl --user` and \
             ~/.config/systemd/user/sparsync.service"
                .to_owned()
        }
        Some(meant) => format!("did you mean `sparsync server {meant}`? See `sparsync server --help`"),
        None => "see `sparsync server --help`".to_owned(),
    };
    Error::usage(format!(
        "sparsync server: no such subcommand `{action}`: expected {SUBCOMMANDS}"
    ))
    .with_hint(hint)
}
