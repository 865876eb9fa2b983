//! Parses the arguments of `bench`.

use super::command::{Bench, BenchTrees, Shape, Verb};
use super::word_reader::{Argument, WordReader};
use crate::error::Result;
use std::os::unix::ffi::OsStringExt;

/// The default number of runs.
const REPEATS: usize = 5;
/// The most runs.
const REPEATS_MAX: usize = 1000;
/// The most workers.
const WORKERS_MAX: usize = 64;

/// Parses the words after `bench`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    let mut operands = Vec::new();
    let mut shapes = Vec::new();
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
        ([b"scan", source], true) if is_path(source) => BenchTrees::Given {
            source: source.to_vec(),
            dest: None,
        },
        ([b"sync", from, to], true) if is_path(from) && is_path(to) => BenchTrees::Given {
            source: from.to_vec(),
            dest: Some(to.to_vec()),
        },
        (_, true) => return Err(words.wrong("expected `scan PATH` or `sync SRC DST`")),
        ([action @ (b"scan" | b"sync"), dir @ ..], false)
            if dir.len() <= 1 && dir.iter().all(|dir| is_path(dir)) =>
        {
            BenchTrees::Created {
                shapes,
                dir: dir.first().map(|dir| dir.to_vec()),
                are_copied: *action == b"sync",
            }
        }
        (_, false) => {
            return Err(
                words.wrong("expected `scan --shape=LIST [DIR]` or `sync --shape=LIST [DIR]`")
            );
        }
    };
    Ok(Verb::Bench(Box::new(Bench {
        trees,
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

fn workers(words: &mut WordReader) -> Result<Vec<usize>> {
    let text = words.text("--workers")?;
    let counts: Option<Vec<usize>> = text.split(',').map(|count| count.parse().ok()).collect();
    counts.filter(|counts| counts.iter().all(|count| (1..=WORKERS_MAX).contains(count))).ok_or_else(|| {
        words.wrong(&format!("invalid --workers value `{text}`: expected a list of numbers from 1 to {WORKERS_MAX}"))
    })
}
