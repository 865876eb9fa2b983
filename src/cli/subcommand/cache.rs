//! Parses the arguments of `cache`.

use super::command::{Cache, CacheAction, Verb};
use super::word_reader::{Argument, WordReader};
use crate::error::{Error, Result};
use crate::report::comparison::WRONG_USAGE;
use std::os::unix::ffi::OsStringExt;

/// Parses the words after `cache`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    // rsync's code for a wrong command line means here that files are damaged.
    read_words(words).map_err(|error| Error {
        exit: WRONG_USAGE,
        ..error
    })
}

fn read_words(words: &mut WordReader) -> Result<Verb> {
    let mut operands: Vec<Vec<u8>> = Vec::new();
    let mut dir = None;
    let mut force = false;
    let mut progress = false;
    let mut json = false;
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Short('h') => return Ok(Verb::Help(Some("cache"))),
            Argument::Short(letter) => {
                return Err(words.wrong(&format!("unknown option -{letter}")));
            }
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                operands.push(operand.into_vec());
                continue;
            }
        };
        match name.as_str() {
            "help" => return Ok(Verb::Help(Some("cache"))),
            "checksum-cache" => dir = Some(words.value("--checksum-cache")?.into_vec()),
            "checksum-cache-force" => force = true,
            "progress" => progress = true,
            "json" => json = true,
            other => return Err(words.unknown_option(other)),
        }
    }

    let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
    let action = match operands[..] {
        [b"stat"] => CacheAction::Stat,
        [b"clear"] => CacheAction::Clear,
        [b"verify", tree] if !tree.is_empty() && !tree.contains(&0) => CacheAction::Verify {
            tree: tree.to_vec(),
            progress,
            force,
            json,
        },
        [b"verify", ..] => return Err(words.wrong("expected one TREE")),
        [b"stat" | b"clear", ..] => return Err(words.wrong("unexpected operand")),
        _ => return Err(words.wrong("expected stat, verify or clear")),
    };
    if (progress || force || json) && !matches!(action, CacheAction::Verify { .. }) {
        return Err(words.wrong("--progress, --json and --checksum-cache-force belong to verify"));
    }
    Ok(Verb::Cache(Box::new(Cache { action, dir })))
}
