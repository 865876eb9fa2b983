//! Parses the arguments of `enroll`.

use super::command::{Enroll, EnrollHost, RemoteHost, Rights, Verb};
use super::word_reader::{Argument, RIGHTS, WordReader};
use crate::error::Result;
use std::os::unix::ffi::OsStringExt;

/// Parses the words after `enroll`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    let mut host = None::<String>;
    let mut list = false;
    let mut revoke = None::<String>;
    let mut json = false;
    let mut given = Vec::new();
    let mut wanted = EnrollHost {
        reach: RemoteHost {
            host: String::new(),
            shell: Vec::new(),
            program: None,
        },
        rights: Rights::default(),
        name: None,
        port: None,
        listen: Vec::new(),
        start: true,
        install: false,
        dry_run: false,
        json: false,
    };
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Short('h') => return Ok(Verb::Help(Some("enroll"))),
            Argument::Short('e') => "rsh".to_owned(),
            Argument::Short('n') => "dry-run".to_owned(),
            Argument::Short(letter) => {
                return Err(words.wrong(&format!("unknown option -{letter}")));
            }
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                let operand = operand
                    .into_string()
                    .map_err(|_| words.wrong("the host is not UTF-8"))?;
                if let Some(first) = &host {
                    return Err(words.wrong(&format!(
                        "unexpected argument `{operand}`: the host is `{first}` already"
                    )));
                }
                host = Some(operand);
                continue;
            }
        };
        match name.as_str() {
            "help" => return Ok(Verb::Help(Some("enroll"))),
            "list" => list = true,
            "json" => json = true,
            "revoke" => revoke = Some(words.text("--revoke")?),
            "rsh" => wanted.reach.shell = words.shell()?,
            "rsync-path" => wanted.reach.program = Some(words.value("--rsync-path")?.into_vec()),
            known if RIGHTS.contains(&known) => words.rights(known, &mut wanted.rights)?,
            "name" => wanted.name = Some(words.text("--name")?),
            "port" => wanted.port = Some(words.port(1)?),
            "listen" => wanted.listen.push(words.listen()?),
            "no-start" => wanted.start = false,
            "install" => wanted.install = true,
            "dry-run" => wanted.dry_run = true,
            other => return Err(words.unknown_option(other)),
        }
        given.push(name);
    }
    if json && wanted.dry_run {
        return Err(words.wrong("--json cannot be used with --dry-run"));
    }
    wanted.json = json;
    let allowed: &[&str] = match (list, &revoke) {
        (true, Some(_)) => return Err(words.wrong("--list cannot be used with --revoke")),
        (true, None) => &["list", "json"],
        (false, Some(_)) => &["revoke", "rsh", "rsync-path"],
        (false, None) => &[
            "rsh",
            "rsync-path",
            "name",
            "port",
            "listen",
            "no-start",
            "install",
            "dry-run",
            "json",
        ],
    };
    let is_new = !list && revoke.is_none();
    let is_allowed = |name: &str| allowed.contains(&name) || is_new && RIGHTS.contains(&name);
    if let Some(odd) = given.iter().find(|name| !is_allowed(name)) {
        let why = if list {
            "cannot be used with --list"
        } else {
            "cannot be used with --revoke"
        };
        return Err(words.wrong(&format!("--{odd} {why}")));
    }
    let enroll = match (host, revoke) {
        (Some(host), _) if list => {
            return Err(words.wrong(&format!(
                "unexpected argument `{host}`: --list lists all hosts"
            )));
        }
        (Some(host), Some(_)) => {
            return Err(words.wrong(&format!(
                "unexpected argument `{host}`: --revoke=HOST names the host already"
            )));
        }
        (None, None) if list => Enroll::List { json },
        (None, Some(host)) => Enroll::Revoke(RemoteHost {
            host: words.host(&host)?,
            ..wanted.reach
        }),
        (Some(host), None) => {
            wanted.reach.host = words.host(&host)?;
            Enroll::Host(wanted)
        }
        (None, None) => {
            return Err(words.wrong("missing HOST: expected HOST or USER@HOST, as for ssh"));
        }
    };
    Ok(Verb::Enroll(Box::new(enroll)))
}
