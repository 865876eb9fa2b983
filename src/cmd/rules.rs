//! Reads the files that options name: rules, lists, aliases.

use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{self, BadRule, ChainOptions, Merge, Parsed, Rules};
use crate::fs::sys;
use crate::options::select::FilesFrom;
use crate::options::{Options, RuleArg};
use crate::report::event::errno_words;
use std::os::unix::ffi::OsStringExt;

/// The most bytes that a file of rules, names or aliases may have; it is read whole.
const TEXT_MAX_BYTES: usize = 1 << 30;
/// How deep merge files may name merge files.
const MERGE_DEPTH_MAX: usize = 64;

/// The texts of /etc/popt and ~/.popt, where popt looks for aliases.
pub fn popt_files(env: &Env) -> Vec<u8> {
    let mut text = sys::read_path(b"/etc/popt", TEXT_MAX_BYTES).unwrap_or_default();
    if let Some(home) = env.var("HOME") {
        let path = crate::path::join(&home.into_vec(), b".popt");
        text.push(b'\n');
        text.extend(sys::read_path(&path, TEXT_MAX_BYTES).unwrap_or_default());
    }
    text
}

/// The rules of a command line, read, and what of the process they depend on.
pub struct Read {
    /// In order, with what the files that they name hold.
    pub parsed: Vec<Parsed>,
    /// The text of `~/.cvsignore`.
    pub cvs_home: Option<Vec<u8>>,
    /// The value of `CVSIGNORE`.
    pub cvs_env: Option<Vec<u8>>,
}

impl Read {
    /// The rules in force.
    pub fn rules(self, options: &Options) -> Rules {
        let Read { parsed, cvs_home, cvs_env } = self;
        let (delete_excluded, from0) = (options.delete.excluded, options.select.from0);
        Rules::new(parsed, ChainOptions { delete_excluded, from0, cvs_home, cvs_env, ..ChainOptions::default() })
    }
}

/// The rules of the command line with the files they name.
pub fn rules(env: &Env, options: &Options) -> Result<Read, Error> {
    let from0 = options.select.from0;
    let mut parsed = Vec::new();
    for arg in &options.select.rules {
        match arg {
            RuleArg::Filter(text) | RuleArg::Implied(text) => one(env, filter::parse_filter(text), from0, &mut parsed)?,
            RuleArg::Exclude(text) => one(env, filter::parse_exclude(text), from0, &mut parsed)?,
            RuleArg::Include(text) => one(env, filter::parse_include(text), from0, &mut parsed)?,
            RuleArg::ExcludeFrom(file) => list(env, file, false, from0, &mut parsed)?,
            RuleArg::IncludeFrom(file) => list(env, file, true, from0, &mut parsed)?,
        }
    }
    let cvs_home = env.var("HOME").and_then(|home| {
        let path = crate::path::join(&home.into_vec(), b".cvsignore");
        sys::read_path(&path, TEXT_MAX_BYTES).ok()
    });
    let cvs_env = env.var("CVSIGNORE").map(OsStringExt::into_vec);
    if options.select.cvs_exclude {
        parsed.extend(filter::cvs_rules(cvs_home.as_deref(), cvs_env.as_deref()));
    }
    Ok(Read { parsed, cvs_home, cvs_env })
}

fn one(env: &Env, parsed: Result<Parsed, BadRule>, from0: bool, rules: &mut Vec<Parsed>) -> Result<(), Error> {
    splice(env, vec![parsed.map_err(bad)?], from0, 0, rules)
}

/// Takes parsed rules over, merge files that are read once replaced by what is in them.
fn splice(env: &Env, parsed: Vec<Parsed>, from0: bool, depth: usize, rules: &mut Vec<Parsed>) -> Result<(), Error> {
    for parsed in parsed {
        match parsed {
            Parsed::Merge(merge) if !merge.per_dir => {
                if depth >= MERGE_DEPTH_MAX {
                    return Err(Error::usage(
                        "sparsync: merge files name merge files too deep: is one its own merge file?",
                    ));
                }
                let text = merge_text(env, &merge)?;
                let inner = filter::parse_merge(&text, &merge, from0).map_err(bad)?;
                splice(env, inner, from0, depth + 1, rules)?;
            }
            other => rules.push(other),
        }
    }
    Ok(())
}

fn merge_text(env: &Env, merge: &Merge) -> Result<Vec<u8>, Error> {
    read(env, &merge.name).map_err(|error| {
        let (words, with_reason) = merge.open_failure();
        if !with_reason {
            return Error::new(Exit::FileIo, words);
        }
        Error::new(Exit::FileIo, [b"rsync: [client] ", words.as_slice(), b": ", &errno_words(&error)].concat())
    })
}

fn list(env: &Env, file: &[u8], include: bool, from0: bool, rules: &mut Vec<Parsed>) -> Result<(), Error> {
    let text = read(env, file).map_err(|error| {
        let kind = if include { "include" } else { "exclude" };
        let start = format!("rsync: [client] failed to open {kind} file ").into_bytes();
        Error::new(Exit::FileIo, [start.as_slice(), file, b": ", &errno_words(&error)].concat())
    })?;
    let parsed = filter::parse_from(&text, include, from0).map_err(|rule| bad(rule.in_file(file)))?;
    splice(env, parsed, from0, 0, rules)
}

/// A file, or standard input for `-`.
fn read(env: &Env, file: &[u8]) -> std::io::Result<Vec<u8>> {
    if file == b"-" { env.read_stdin() } else { sys::read_path(file, TEXT_MAX_BYTES) }
}

fn bad(rule: BadRule) -> Error {
    Error::usage(rule.message())
}

/// The text that `--files-from` names.
pub fn files_from(env: &Env, from: &FilesFrom) -> Result<Vec<u8>, Error> {
    let (text, name): (_, &[u8]) = match from {
        FilesFrom::Stdin => (env.read_stdin(), b"-"),
        // What is far is read by a far end, which is told it as a file of its own.
        FilesFrom::File(file) | FilesFrom::Far(file) => (sys::read_path(file, TEXT_MAX_BYTES), file),
    };
    text.map_err(|error| {
        // Without the number that other lines end in.
        let words = errno_words(&error);
        let words = words.iter().rposition(|&b| b == b'(').map_or(&words[..], |at| words[..at].trim_ascii_end());
        Error::usage([b"rsync: failed to open files-from file ", name, b": ", words].concat())
    })
}
