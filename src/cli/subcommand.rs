//! The subcommands `server`, `enroll`, `doctor` and `bench`: recognizes them. Their parsers are in files of their own.
//!
//! A first argument is a subcommand only if the program was called by its own name, so that a script that calls it
//! `rsync` can copy a file named `server`. `./server` and `-- server` are always files. `server` is one too if no
//! action of a server follows.

mod bench;
mod command;
mod command_line;
mod doctor;
mod enroll;
mod pages;
mod server;
#[cfg(test)]
mod tests;

mod word_reader;

pub use command::{
    Bench, BenchTrees, DEFAULT_PORT, Doctor, Enroll, EnrollHost, Install, MEMORY_MIN_BYTES,
    NewGrant, RemoteHost, Rights, ServerAction, ServerCommand, Session, Shape, Start, Verb,
    is_owner,
};
pub use pages::{PAGES, page};

use crate::error::{Error, Result};
use pages::{ACTIONS, page_of};
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

fn is_ours(program: &[u8]) -> bool {
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
    /// A page of help; see [`Verb::Help`].
    Help(Option<&'static str>),
    /// Probably a misspelling of this subcommand.
    Misspelled(String),
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
    let first = first.to_str()?;
    let next = rest.first().and_then(|word| word.to_str());
    let is_path = |word: &str| word.contains(['/', ':', '.']);
    let action = rest
        .iter()
        .filter_map(|word| word.to_str())
        .find(|word| !word.starts_with('-'));
    let is_action = action.is_some_and(|action| ACTIONS.contains(&action));
    match first {
        "server" => {
            let asks_help = next.is_none_or(|next| ["--help", "-h"].contains(&next));
            if is_marked || is_action || asks_help {
                return Some(Recognized::Server(rest));
            }
            let action = action.filter(|action| !is_path(action))?;
            let meant = ACTIONS.iter().find(|known| distance(action, known) <= 2)?;
            Some(Recognized::Misspelled(format!("server {meant}")))
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
                || next.is_some_and(|next| ["scan", "sync", "--help", "-h"].contains(&next)) =>
        {
            Some(Recognized::Bench(rest))
        }
        "help" => match rest {
            [] => Some(Recognized::Help(None)),
            [verb, rest @ ..] if verb == "server" => Some(Recognized::Help(Some(page_of(
                rest.first().and_then(|action| action.to_str()),
            )))),
            [word, ..] => {
                let word = word.to_str().filter(|word| !is_path(word))?;
                let others = ["enroll", "doctor", "bench"];
                if let Some(verb) = others.into_iter().find(|verb| *verb == word) {
                    return Some(Recognized::Help(Some(verb)));
                }
                let is_action = ACTIONS.contains(&word) && rest.len() == 1;
                let verb = std::iter::once("server")
                    .chain(others)
                    .find(|verb| distance(word, verb) <= 2);
                let meant = verb
                    .map(str::to_owned)
                    .or(is_action.then(|| format!("server {word}")))?;
                Some(Recognized::Misspelled(format!("help {meant}")))
            }
        },
        _ if is_path(first) || first.starts_with('-') => None,
        _ if is_action && distance(first, "server") <= 2 => Some(Recognized::Misspelled(format!(
            "server {}",
            action.unwrap_or_default()
        ))),
        _ if distance(first, "enroll") <= 1 => {
            let host = next.filter(|next| rest.len() == 1 && !next.contains('/'))?;
            Some(Recognized::Misspelled(format!("enroll {host}")))
        }
        _ => None,
    }
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

/// Returns the error for `server` with a word that is none of its actions; `None` if the command line has another form. It
/// is a copy if there is a file named `server`.
pub fn unknown_action(program: &OsStr, args: &[OsString]) -> Option<Error> {
    let [server, action, rest @ ..] = args else {
        return None;
    };
    let action = action
        .to_str()
        .filter(|action| !action.starts_with('-') && !action.contains(['/', ':', '.']))?;
    let is_path = |word: &OsString| word.as_bytes().iter().any(|b| matches!(b, b'/' | b':'));
    if server != "server"
        || !is_ours(program.as_bytes())
        || rest.iter().any(is_path)
        || is_one(program, args)
    {
        return None;
    }
    Some(server::no_such_action(
        &WordReader {
            verb: "server",
            parser: lexopt::Parser::from_args(rest),
        },
        action,
    ))
}

/// Returns the edit distance of two words, counting transpositions as one edit.
fn distance(word: &str, known: &str) -> usize {
    strsim::osa_distance(word, known)
}

/// Parses a command line that is not a copy; `None` if it is one.
pub fn read(program: &OsStr, args: &[OsString]) -> Option<Result<Verb>> {
    let words = |verb, rest: &[OsString]| WordReader {
        verb,
        parser: lexopt::Parser::from_args(rest.iter().cloned()),
    };
    Some(match recognize(program, args)? {
        Recognized::Server(rest) => server::read(&mut words("server", rest)),
        Recognized::Enroll(rest) => enroll::read(&mut words("enroll", rest)),
        Recognized::Doctor(rest) => doctor::read(&mut words("doctor", rest)),
        Recognized::Bench(rest) => bench::read(&mut words("bench", rest)),
        Recognized::Help(page) => Ok(Verb::Help(page)),
        Recognized::Misspelled(meant) => {
            let given: Vec<_> = args.iter().map(|word| word.to_string_lossy()).collect();
            let words = format!("sparsync: unknown command `{}`", given.join(" "));
            let hint = format!(
                "did you mean `sparsync {meant}`? To copy a file of that name, use ./{}",
                given.first()?
            );
            Err(Error::usage(words).with_hint(hint))
        }
    })
}
