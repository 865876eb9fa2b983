//! The subcommands `server`, `enroll`, `doctor`, `bench`, `check`, `hash`, `cache`, `plan`, `apply` and `explain`:
//! recognizes them. Their parsers are in files of their own.
//!
//! A first argument is a subcommand only if the program was called by its own name, so that a script that calls it
//! `rsync` can copy a file named `server`. `./server` and `-- server` are always files. `server` is one too if no
//! action of a server follows. [`shadowed_file`] is the rule of newer subcommands.

mod bench;
mod cache;
mod command;
mod command_line;
mod doctor;
mod enroll;
mod hash;
mod pages;
mod server;
#[cfg(test)]
mod tests;

mod word_reader;

pub use command::{
    Bench, BenchTrees, Cache, CacheAction, DEFAULT_PORT, Doctor, Enroll, EnrollHost, Hash, Install,
    MEMORY_MIN_BYTES, NewGrant, RemoteHost, Rights, ServerAction, ServerCommand, Session, Shape,
    Start, Verb, is_owner,
};
pub use pages::{PAGES, page};

use super::suggest::nearest;
use crate::error::{Error, Result};
use pages::{ACTIONS, COMMANDS, USER_ACTIONS, page_of};
use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use word_reader::WordReader;

/// Precedes a subcommand if the program has another name than its own. rsync knows no such option.
const VERB_FOLLOWS: &[u8] = b"--sparsync";

/// Returns the command line that makes a program of this name run a subcommand.
pub fn addressed(program: Vec<u8>, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
    // The program may be the last of several words: `sudo sparsync`.
    let name = program.rsplit(|&b| b == b' ').next().unwrap_or_default();
    let marked = (!is_ours(name)).then(|| VERB_FOLLOWS.to_vec());
    std::iter::once(program)
        .chain(marked)
        .chain(words.iter().cloned())
        .collect()
}

/// Returns whether the program was started under our own name, and so has subcommands, not as `rsync`.
pub fn is_ours(program: &[u8]) -> bool {
    crate::path::file_name(program).starts_with(b"sparsync")
}

/// A command line that is not a copy.
enum Recognized<'a> {
    /// `server`, with the arguments after it.
    Server(&'a [OsString]),
    /// `enroll`, with the arguments after it.
    Enroll(&'a [OsString]),
    /// `doctor`, with the arguments after it.
    Doctor(&'a [OsString]),
    /// `bench`, with the arguments after it.
    Bench(&'a [OsString]),
    /// `check`, with the arguments after it.
    Check(&'a [OsString]),
    /// `hash`, with the arguments after it.
    Hash(&'a [OsString]),
    /// `cache`, with the arguments after it.
    Cache(&'a [OsString]),
    /// `plan`, with the arguments after it.
    Plan(&'a [OsString]),
    /// `apply`, with the arguments after it.
    Apply(&'a [OsString]),
    /// `explain`, with the arguments after it.
    Explain(&'a [OsString]),
    /// A page of help; see [`Verb::Help`].
    Help(Option<&'static str>),
}

/// Returns whether a command line is not a copy.
pub fn is_one(program: &OsStr, args: &[OsString]) -> bool {
    recognize(program, args).is_some()
}

/// Recognizes a command line that is not a copy; `None` if it is one.
fn recognize<'a>(program: &OsStr, args: &'a [OsString]) -> Option<Recognized<'a>> {
    let (is_marked, args) = match args.split_first() {
        Some((first, rest)) if first.as_bytes() == VERB_FOLLOWS => (true, rest),
        _ if is_ours(program.as_bytes()) => (false, args),
        _ => return None,
    };
    let (first, rest) = args.split_first()?;
    let next = rest.first().and_then(|word| word.to_str());
    match first.to_str()? {
        "server" => {
            let is_action = action_of(rest).is_some_and(|action| ACTIONS.contains(&action));
            let asks_help = next.is_none_or(|next| ["--help", "-h"].contains(&next));
            if is_marked || is_action || asks_help {
                Some(Recognized::Server(rest))
            } else {
                None
            }
        }
        "enroll"
            if is_marked
                || !next.is_some_and(|next| !next.starts_with('-') && next.contains('/')) =>
        {
            Some(Recognized::Enroll(rest))
        }
        "doctor" if is_marked || !has_operand_of_copy(rest) => Some(Recognized::Doctor(rest)),
        "bench"
            if is_marked
                || next.is_some_and(|next| {
                    ["scan", "sync", "hash", "--help", "-h"].contains(&next)
                }) =>
        {
            Some(Recognized::Bench(rest))
        }
        "check" => Some(Recognized::Check(rest)),
        "hash" => Some(Recognized::Hash(rest)),
        "cache" => Some(Recognized::Cache(rest)),
        "plan" => Some(Recognized::Plan(rest)),
        "apply" => Some(Recognized::Apply(rest)),
        "explain" => Some(Recognized::Explain(rest)),
        "help" => match rest {
            [] => Some(Recognized::Help(None)),
            [verb, rest @ ..] if verb == "server" => Some(Recognized::Help(Some(page_of(
                rest.first().and_then(|action| action.to_str()),
            )))),
            [word, ..] => {
                let others = [
                    "enroll", "doctor", "bench", "check", "hash", "cache", "plan", "apply",
                    "explain",
                ];
                let verb = others.into_iter().find(|verb| word == verb)?;
                Some(Recognized::Help(Some(verb)))
            }
        },
        _ => None,
    }
}

/// The subcommands that are refused if a file has their name: a script that copies such a file must not run something
/// else.
const YIELDING: [&str; 6] = ["check", "hash", "cache", "plan", "apply", "explain"];

/// Returns the name of a subcommand that must not run if a file of this name exists, and the error for that case.
pub fn shadowed_file(program: &OsStr, args: &[OsString]) -> Option<(&'static str, Error)> {
    let first = args.first()?;
    let verb = YIELDING.into_iter().find(|verb| first == verb)?;
    if !is_ours(program.as_bytes()) {
        return None;
    }
    let error = Error::usage(format!(
        "sparsync: `{verb}` is both a command and a file of this directory"
    ));
    Some((
        verb,
        error.with_hint(format!(
            "to copy the file: `sparsync ./{verb} ...` or `sparsync -- {verb} ...`; to run the command: \
             `sparsync {} {verb} ...`",
            VERB_FOLLOWS.escape_ascii()
        )),
    ))
}

/// Returns the first word that is not an option.
fn action_of(words: &[OsString]) -> Option<&str> {
    words
        .iter()
        .filter_map(|word| word.to_str())
        .find(|word| !word.starts_with('-'))
}

/// Returns whether a word looks like a path or like a file's name with an extension, not like the name of a command.
fn is_path(word: &str) -> bool {
    word.contains(['/', ':', '.'])
}

/// Returns whether a word after `doctor` can only be an operand of a copy: a path, or a path on a host.
fn has_operand_of_copy(words: &[OsString]) -> bool {
    const WITH_VALUE: [&str; 4] = ["-e", "--rsh", "--path", "--rsync-path"];
    let mut is_value = false;
    words.iter().any(|word| {
        let bytes = word.as_bytes();
        let is_address = || {
            word.to_str()
                .is_some_and(|word| word.starts_with('[') || word.parse::<Ipv6Addr>().is_ok())
        };
        let is_path = bytes.contains(&b'/') || bytes.contains(&b':') && !is_address();
        let is_operand = !is_value && !bytes.starts_with(b"-");
        is_value = !is_value && WITH_VALUE.iter().any(|option| word == option);
        is_operand && is_path
    })
}

/// Returns the error for a command line that reads as a copy of a file, but was probably meant to be a subcommand; `None`
/// if it was not. It is a copy nevertheless if there is a file with the name of the first argument.
pub fn mistaken(program: &OsStr, args: &[OsString]) -> Option<Error> {
    if !is_ours(program.as_bytes()) || is_one(program, args) {
        return None;
    }
    let (first, rest) = args.split_first()?;
    let first = first
        .to_str()
        .filter(|word| !word.starts_with('-') && !is_path(word))?;
    let has_path = rest
        .iter()
        .any(|word| word.as_bytes().iter().any(|b| matches!(b, b'/' | b':')));
    match first {
        "server" if !has_path && !rest.first()?.as_bytes().starts_with(b"-") => {
            let action = action_of(rest).filter(|action| !is_path(action))?;
            Some(server::no_such_action(action))
        }
        // `doctor HOST:PATH`. Their parsers report what is wrong with the host.
        "enroll" | "doctor" if rest.iter().any(|word| word.as_bytes().contains(&b':')) => {
            let mut words = word_reader(
                if first == "enroll" {
                    "enroll"
                } else {
                    "doctor"
                },
                rest,
            );
            match first {
                "enroll" => enroll::read(&mut words).err(),
                _ => doctor::read(&mut words).err(),
            }
        }
        "bench" if rest.len() <= 1 => bench::read(&mut word_reader("bench", rest)).err(),
        "help" => {
            let word = action_of(rest).filter(|word| !is_path(word))?;
            let meant = match nearest(word, COMMANDS) {
                Some(command) => Some(command.to_owned()),
                None => nearest(word, USER_ACTIONS).map(|action| format!("server {action}")),
            };
            Some(unknown(
                &format!("help {word}"),
                meant.map(|meant| format!("help {meant}")),
            ))
        }
        _ if has_path => None,
        _ => {
            let after: String = rest
                .iter()
                .map(|word| format!(" {}", word.to_string_lossy()))
                .collect();
            let meant = match nearest(first, COMMANDS) {
                // What follows `server` and `bench` must be one of their actions.
                Some("server") if !rest.is_empty() && !is_server_action(rest) => return None,
                Some("bench") if !rest.is_empty() && !begins_with_bench_action(rest) => {
                    return None;
                }
                Some(command) if rest.len() <= 1 || ["server", "bench"].contains(&command) => {
                    command.to_owned()
                }
                Some(_) => return None,
                None if rest.len() <= 1 => {
                    let action = USER_ACTIONS.into_iter().find(|action| *action == first)?;
                    format!("server {action}")
                }
                None => return None,
            };
            Some(unknown(&format!("{first}{after}"), Some(meant + &after)))
        }
    }
}

fn is_server_action(words: &[OsString]) -> bool {
    action_of(words).is_some_and(|action| ACTIONS.contains(&action))
}

fn begins_with_bench_action(words: &[OsString]) -> bool {
    words
        .first()
        .is_some_and(|word| word == "scan" || word == "sync" || word == "hash")
}

/// Returns the error for words that are no command.
fn unknown(given: &str, meant: Option<String>) -> Error {
    let error = Error::usage(format!("sparsync: unknown command `{given}`"));
    match meant {
        Some(meant) => error.with_hint(format!("did you mean `sparsync {meant}`?")),
        None => error.with_hint(format!("the commands are {}", COMMANDS.join(", "))),
    }
}

fn word_reader(verb: &'static str, rest: &[OsString]) -> WordReader {
    WordReader {
        verb,
        parser: lexopt::Parser::from_args(rest.iter().cloned()),
    }
}

/// Returns the words after `check`, if that is the subcommand. Most of them are options of a copy, so
/// [`super::check_command`] parses them.
pub fn check_words<'a>(program: &OsStr, args: &'a [OsString]) -> Option<&'a [OsString]> {
    match recognize(program, args)? {
        Recognized::Check(rest) => Some(rest),
        _ => None,
    }
}

/// Returns the words after `plan`, which [`super::plan_command`] parses.
pub fn plan_words<'a>(program: &OsStr, args: &'a [OsString]) -> Option<&'a [OsString]> {
    match recognize(program, args)? {
        Recognized::Plan(rest) => Some(rest),
        _ => None,
    }
}

/// Returns the words after `apply`, which [`super::plan_command`] parses.
pub fn apply_words<'a>(program: &OsStr, args: &'a [OsString]) -> Option<&'a [OsString]> {
    match recognize(program, args)? {
        Recognized::Apply(rest) => Some(rest),
        _ => None,
    }
}

/// Returns the words after `explain`, which [`super::plan_command`] parses.
pub fn explain_words<'a>(program: &OsStr, args: &'a [OsString]) -> Option<&'a [OsString]> {
    match recognize(program, args)? {
        Recognized::Explain(rest) => Some(rest),
        _ => None,
    }
}

/// Parses a command line that is neither a copy nor `check`, `plan`, `apply` or `explain`; `None` if it is one of them.
pub fn read(program: &OsStr, args: &[OsString]) -> Option<Result<Verb>> {
    Some(match recognize(program, args)? {
        Recognized::Server(rest) => server::read(&mut word_reader("server", rest)),
        Recognized::Enroll(rest) => enroll::read(&mut word_reader("enroll", rest)),
        Recognized::Doctor(rest) => doctor::read(&mut word_reader("doctor", rest)),
        Recognized::Bench(rest) => bench::read(&mut word_reader("bench", rest)),
        Recognized::Check(_)
        | Recognized::Plan(_)
        | Recognized::Apply(_)
        | Recognized::Explain(_) => return None,
        Recognized::Hash(rest) => hash::read(&mut word_reader("hash", rest)),
        Recognized::Cache(rest) => cache::read(&mut word_reader("cache", rest)),
        Recognized::Help(page) => Ok(Verb::Help(page)),
    })
}
