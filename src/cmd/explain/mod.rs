//! `sparsync explain`: says why a copy transfers, skips, deletes or keeps a path.
//!
//! The copy is made as a dry run. Both ends collect facts where they decide (`report/explainer.rs`); here they become
//! sentences.

mod rule_text;
mod transfer_path;
mod verdict;

use self::rule_text::RuleTexts;
use self::transfer_path::{PathReading, TransferPaths};
use self::verdict::{Explanation, PathVerdict, Views};
use super::command_end::{check_cwd, fail, write_text};
use super::copy::guard::admit_described;
use super::input_files;
use crate::cli::Copy;
use crate::cli::plan_command::{self, ExplainRequest};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::report::explainer::Explainer;
use std::sync::Arc;

/// Runs `sparsync explain`. `run_copy` runs the dry run.
pub fn run(
    env: &mut Env,
    request: Result<Box<ExplainRequest>>,
    run_copy: &dyn Fn(&mut Env, Copy) -> Exit,
) -> Exit {
    let ended = request.and_then(|request| explain(env, *request, run_copy));
    ended.unwrap_or_else(|error| fail(env, &error))
}

fn explain(
    env: &mut Env,
    request: ExplainRequest,
    run_copy: &dyn Fn(&mut Env, Copy) -> Exit,
) -> Result<Exit> {
    let ExplainRequest {
        paths,
        json,
        mut dry_run,
        guarded,
        operands,
    } = request;
    check_cwd(env, &dry_run)?;
    if let Some(name) = input_files::rules_read_once(&dry_run.options) {
        let name = name.escape_ascii();
        return Err(Error::usage(format!(
            "sparsync explain: `{name}` can be read only once, but its rules are read twice"
        ))
        .with_hint("write it to a regular file"));
    }
    let transfer = TransferPaths::new(&dry_run, &operands, &env.cwd);
    let readings: Vec<_> = paths.iter().map(|path| transfer.find(path)).collect();
    let wanted: Vec<_> = readings.iter().flat_map(PathReading::paths).collect();
    let options = dry_run.options.clone();
    let rules = input_files::rules(env, &options)?;
    let host = dry_run.far.as_ref().map(|far| far.operand.clone());

    let mut exit = Exit::Ok;
    let mut facts = Default::default();
    if let Some(explainer) = Explainer::new(&wanted) {
        let explainer = Arc::new(explainer);
        env.explainer = Some(explainer.clone());
        plan_command::ask(&mut dry_run, &wanted);
        exit = run_copy(env, dry_run);
        env.explainer = None;
        let is_complete = matches!(
            exit,
            Exit::Ok | Exit::Partial | Exit::Vanished | Exit::DelLimit
        );
        if !is_complete {
            return Ok(exit);
        }
        facts = explainer.take();
        env.reopen_stdout();
    }

    let views = Views {
        facts: &facts,
        options: &options,
        rules: RuleTexts {
            rules: &rules,
            options: &options,
        },
        host: host.as_ref(),
        has_failed: exit != Exit::Ok,
    };
    let mut out = Vec::new();
    for (given, reading) in paths.iter().zip(&readings) {
        for (shown, explanation) in explanations(&views, given, reading) {
            if json {
                explanation.put_json(&mut out, &shown);
            } else {
                explanation.put(&mut out, &shown);
            }
        }
    }
    write_text(&mut env.stdout, &out)?;
    if let Err(error) = admit_described(env, &guarded) {
        let line = "sparsync explain: the run itself would change nothing, because it would end with this error:\n";
        write_text(&mut env.stderr, line.as_bytes())?;
        fail(env, &error);
    }
    Ok(exit)
}

/// Returns the explanations of a path, each with the path to show. If it may stand for two entries and both exist, both are
/// explained; the one below an operand is shown with `./` in front, which stands for that one only.
fn explanations(
    views: &Views<'_>,
    given: &[u8],
    reading: &PathReading,
) -> Vec<(Vec<u8>, Explanation)> {
    let shown = given.to_vec();
    match reading {
        PathReading::Outside => {
            let explanation = Explanation {
                verdict: PathVerdict::Outside,
                reasons: Vec::new(),
            };
            vec![(shown, explanation)]
        }
        PathReading::One(path) => vec![(shown, views.explain(path))],
        PathReading::Either { below, listed } => {
            match (views.is_entry(below), views.is_entry(listed)) {
                (_, false) => vec![(shown, views.explain(below))],
                (false, true) => vec![(shown, views.explain(listed))],
                (true, true) => vec![
                    (shown, views.explain(listed)),
                    ([b"./", given].concat(), views.explain(below)),
                ],
            }
        }
    }
}
