//! Parses the arguments of `hash`.

use super::command::{Hash, Verb};
use super::word_reader::{Argument, WordReader};
use crate::digest::HashAlgorithm;
use crate::error::Result;
use std::os::unix::ffi::OsStringExt;

/// The most worker threads.
const WORKERS_MAX: usize = 64;

/// Parses the words after `hash`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    let mut trees: Vec<Vec<u8>> = Vec::new();
    let mut hash = Hash {
        tree: Vec::new(),
        algorithm: HashAlgorithm::Blake3,
        output: None,
        workers: None,
        progress: false,
        json: false,
    };
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Short('h') => return Ok(Verb::Help(Some("hash"))),
            Argument::Short('o') => "output".to_owned(),
            Argument::Short(letter) => {
                return Err(words.wrong(&format!("unknown option -{letter}")));
            }
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                trees.push(operand.into_vec());
                continue;
            }
        };
        match name.as_str() {
            "help" => return Ok(Verb::Help(Some("hash"))),
            "json" => hash.json = true,
            "progress" => hash.progress = true,
            "output" => hash.output = Some(words.value("--output")?.into_vec()),
            "algorithm" => hash.algorithm = algorithm(words)?,
            "workers" => hash.workers = Some(workers(words)?),
            other => return Err(words.unknown_option(other)),
        }
    }
    let count = trees.len();
    match trees.pop() {
        Some(tree) if count == 1 && !tree.is_empty() && !tree.contains(&0) => hash.tree = tree,
        _ => return Err(words.wrong("expected one TREE")),
    }
    Ok(Verb::Hash(Box::new(hash)))
}

/// Parses the algorithm of a manifest.
pub fn algorithm(words: &mut WordReader) -> Result<HashAlgorithm> {
    let text = words.text("--algorithm")?;
    let found = HashAlgorithm::OF_MANIFESTS
        .into_iter()
        .find(|algorithm| algorithm.name() == text);
    found.ok_or_else(|| {
        let names = HashAlgorithm::OF_MANIFESTS.map(HashAlgorithm::name);
        words.wrong(&format!(
            "invalid --algorithm value `{text}`: expected {}",
            names.join(", ")
        ))
    })
}

fn workers(words: &mut WordReader) -> Result<usize> {
    let text = words.text("--workers")?;
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=WORKERS_MAX).contains(count));
    count.ok_or_else(|| {
        words.wrong(&format!(
            "invalid --workers value `{text}`: expected a number from 1 to {WORKERS_MAX}"
        ))
    })
}
