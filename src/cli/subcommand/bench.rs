//! Parses the arguments of `bench`.

use super::command::{Bench, Verb};
use super::pages::Page;
use super::word_reader::{Argument, WordReader};
use crate::error::Result;
use std::os::unix::ffi::OsStringExt;

/// The default number of runs.
const REPEATS: usize = 5;
/// The most runs.
const REPEATS_MAX: usize = 1000;

/// Parses the words after `bench`.
pub fn read(words: &mut WordReader) -> Result<Verb> {
    let (mut operands, mut repeats, mut cold, mut json, mut svg) = (Vec::new(), REPEATS, false, false, None);
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Short('h') => return Ok(Verb::Help(Page::Bench)),
            Argument::Short(letter) => return Err(words.wrong(&format!("unknown option -{letter}"))),
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                operands.push(operand.into_vec());
                continue;
            }
        };
        match name.as_str() {
            "help" => return Ok(Verb::Help(Page::Bench)),
            "json" => json = true,
            "cold" => cold = true,
            "svg" => svg = Some(words.value("--svg")?.into_vec()),
            "repeat" => {
                let text = words.text("--repeat")?;
                let count = text.parse().ok().filter(|count| (1..=REPEATS_MAX).contains(count));
                let wrong = || format!("invalid --repeat value `{text}`: expected a number from 1 to {REPEATS_MAX}");
                repeats = count.ok_or_else(|| words.wrong(&wrong()))?;
            }
            other => return Err(words.wrong(&format!("unknown option --{other}"))),
        }
    }
    let is_path = |path: &[u8]| !path.is_empty() && !path.contains(&0);
    let (source, dest) = match &operands[..] {
        [action, path] if action == b"scan" && is_path(path) => (path.clone(), None),
        [action, from, to] if action == b"sync" && is_path(from) && is_path(to) => (from.clone(), Some(to.clone())),
        _ => return Err(words.wrong("expected `scan PATH` or `sync SRC DST`")),
    };
    Ok(Verb::Bench(Box::new(Bench { source, dest, repeats, cold, json, svg })))
}
