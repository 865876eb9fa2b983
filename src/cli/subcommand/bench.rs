//! Parses the arguments of `bench`.

use super::command::{Bench, BenchTrees, Shape, Verb};
use super::word_reader::{Argument, WordReader};
use crate::digest::HashAlgorithm;
use crate::error::Result;
use std::os::unix::ffi::OsStringExt;

/// The default number of runs.
const REPEATS: usize = 5;
/// The most runs.
const REPEATS_MAX: usize = 1000;
/// The most workers.
const WORKERS_MAX: usize = 64;
/// What `bench hash` measures by default.
const ALGORITHMS: [HashAlgorithm; 6] = [
    HashAlgorithm::Blake3,
    HashAlgorithm::Xxh3,
    HashAlgorithm::Xxh64,
    HashAlgorithm::Md5,
    HashAlgorithm::Sha1,
    HashAlgorithm::Sha256,
];

/// Parses the words after `bench`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    let mut operands = Vec::new();
    let mut shapes = Vec::new();
    let mut algorithms = None;
    let mut workers = None;
    let mut repeats = REPEATS;
    let mut cold = false;
    let mut json = false;
    let mut svg = None;
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Short('h') => return Ok(Verb::Help(Some("bench"))),
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
            "help" => return Ok(Verb::Help(Some("bench"))),
            "json" => json = true,
            "cold" => cold = true,
            "svg" => svg = Some(words.value("--svg")?.into_vec()),
            "shape" => shapes = self::shapes(words)?,
            "algorithm" => algorithms = Some(self::algorithms(words)?),
            "workers" => workers = Some(self::workers(words)?),
            "repeat" => {
                let text = words.text("--repeat")?;
                let count = text
                    .parse()
                    .ok()
                    .filter(|count| (1..=REPEATS_MAX).contains(count));
                let wrong = || {
                    format!(
                        "invalid --repeat value `{text}`: expected a number from 1 to {REPEATS_MAX}"
                    )
                };
                repeats = count.ok_or_else(|| words.wrong(&wrong()))?;
            }
            other => return Err(words.unknown_option(other)),
        }
    }
    let is_path = |path: &[u8]| !path.is_empty() && !path.contains(&0);
    let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
    let trees = match (&operands[..], shapes.is_empty()) {
        ([b"scan" | b"hash", source], true) if is_path(source) => BenchTrees::Given {
            source: source.to_vec(),
            dest: None,
        },
        ([b"sync", from, to], true) if is_path(from) && is_path(to) => BenchTrees::Given {
            source: from.to_vec(),
            dest: Some(to.to_vec()),
        },
        (_, true) => {
            return Err(words.wrong("expected `scan PATH`, `sync SRC DST` or `hash PATH`"));
        }
        ([action @ (b"scan" | b"sync" | b"hash"), dir @ ..], false)
            if dir.len() <= 1 && dir.iter().all(|dir| is_path(dir)) =>
        {
            BenchTrees::Created {
                shapes,
                dir: dir.first().map(|dir| dir.to_vec()),
                are_copied: *action == b"sync",
            }
        }
        (_, false) => {
            return Err(words.wrong(
                "expected `--shape=LIST` with `scan`, `sync` or `hash`, and at most one directory",
            ));
        }
    };
    let algorithms = match (operands[0], algorithms) {
        (b"hash", given) => given.unwrap_or_else(|| ALGORITHMS.to_vec()),
        (_, None) => Vec::new(),
        (_, Some(_)) => return Err(words.wrong("--algorithm is only for `bench hash`")),
    };
    Ok(Verb::Bench(Box::new(Bench {
        trees,
        algorithms,
        workers,
        repeats,
        cold,
        json,
        svg,
    })))
}

fn shapes(words: &mut WordReader) -> Result<Vec<Shape>> {
    let text = words.text("--shape")?;
    let known = |name| Shape::ALL.into_iter().find(|shape| shape.name() == name);
    let shapes: Option<Vec<_>> = text.split(',').map(known).collect();
    shapes.ok_or_else(|| {
        let names = Shape::ALL.map(Shape::name).join(", ");
        words.wrong(&format!(
            "invalid --shape value `{text}`: expected a list of {names}"
        ))
    })
}

fn algorithms(words: &mut WordReader) -> Result<Vec<HashAlgorithm>> {
    let text = words.text("--algorithm")?;
    let known = |name| {
        let mut all = HashAlgorithm::ALL.into_iter();
        all.find(|algorithm| algorithm.name() == name)
    };
    let algorithms: Option<Vec<_>> = text.split(',').map(known).collect();
    algorithms.ok_or_else(|| {
        let names = HashAlgorithm::ALL.map(HashAlgorithm::name).join(", ");
        words.wrong(&format!(
            "invalid --algorithm value `{text}`: expected a list of {names}"
        ))
    })
}

fn workers(words: &mut WordReader) -> Result<Vec<usize>> {
    let text = words.text("--workers")?;
    let counts: Option<Vec<usize>> = text.split(',').map(|count| count.parse().ok()).collect();
    counts.filter(|counts| counts.iter().all(|count| (1..=WORKERS_MAX).contains(count))).ok_or_else(|| {
        words.wrong(&format!("invalid --workers value `{text}`: expected a list of numbers from 1 to {WORKERS_MAX}"))
    })
}
