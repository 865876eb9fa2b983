//! `sparsync plan` and `sparsync apply`: record what a run would do, and do exactly that later.

mod plan_file;
mod plan_summary;
mod plan_writer;

use self::plan_file::PlanFile;
use self::plan_summary::PlanSummary;
use self::plan_writer::PlanWriter;
use super::command_end::{check_cwd, fail};
use super::copy::guard::admit_described;
use super::{input_files, run_copy};
use crate::cli::plan_command::{self, ApplyRequest, NewPlan, PlanForm, PlanRequest};
use crate::cli::{Copy, Invocation};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::plan::planned::{IncompletePlan, PlanGap, PlannedAction, StoredPlan as _};
use crate::report::plan_line::PlanHeader;
use crate::work::clock;
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::io::Write as _;
use std::sync::Arc;

/// Runs `sparsync plan`.
pub fn run(env: &mut Env, request: PlanRequest) -> Exit {
    let ended = match request {
        PlanRequest::Show { file, form } => show(env, &file, form).map(|()| Exit::Ok),
        PlanRequest::Make(plan) => make(env, *plan),
    };
    ended.unwrap_or_else(|error| fail(env, &error))
}

/// Makes a plan, and prints it.
fn make(env: &mut Env, plan: NewPlan) -> Result<Exit> {
    let NewPlan {
        file,
        form,
        dry_run,
        guarded,
        options,
        operands,
    } = plan;
    check_cwd(env, &dry_run)?;
    if let Some(name) = input_files::read_once(&dry_run.options) {
        return Err(Error::usage(format!(
            "sparsync plan: `{}` can be read only once, but `sparsync apply` reads it again",
            name.escape_ascii()
        ))
        .with_hint("write it to a regular file"));
    }
    admit_described(env, &guarded)?;
    let header = PlanHeader {
        program: concat!("sparsync ", env!("CARGO_PKG_VERSION")).to_owned(),
        made_unix_secs: clock::now_unix().0,
        options,
        operands,
        cwd: env.cwd.clone(),
    };
    let writer = Arc::new(Mutex::new(PlanWriter::create(&file, header)?));
    let recorded = writer.clone();
    env.record_action = Some(Arc::new(Mutex::new(move |action: &PlannedAction| {
        recorded.lock().action(action);
    })));

    let may_be_refused = dry_run.options.delete.refuses_empty_source;
    let has_max = dry_run.options.delete.max.is_some();
    let exit = run_copy(env, dry_run);
    env.record_action = None;
    if exit == Exit::DelLimit && may_be_refused && !has_max {
        // The source is empty, which is known only now. With --max-delete, the exit code may also mean that.
        return Ok(exit);
    }
    let gap = match PlanGap::of_exit(exit) {
        Ok(gap) => gap,
        Err(exit) => return Ok(exit),
    };
    if let Some(writer) = Arc::into_inner(writer) {
        writer.into_inner().finish(gap)?;
    }
    env.reopen_stdout();
    show(env, &file, form)?;
    Ok(exit)
}

/// Prints a plan.
fn show(env: &mut Env, file: &[u8], form: PlanForm) -> Result<()> {
    let mut summary = PlanSummary::default();
    let plan = PlanFile::open(file, |action| summary.add(action))?;
    let printed = match form {
        PlanForm::Lines => plan.each_line(|line| env.stdout.write_all(line)),
        PlanForm::Actions => plan
            .each_action(|action| env.stdout.write_all(&plan_summary::action_line(&action)))
            .and_then(|()| env.stdout.write_all(&summary.text(&plan.header, plan.gap))),
        PlanForm::Summary => env.stdout.write_all(&summary.text(&plan.header, plan.gap)),
    };
    let printed = printed.and_then(|()| env.stdout.flush());
    printed.map_err(|error| plan_file::unreadable(file, &error))
}

/// Runs `sparsync apply`.
pub fn apply(env: &mut Env, request: &ApplyRequest) -> Exit {
    match prepared(env, request) {
        Ok((copy, plan)) => {
            env.incomplete_plan = incomplete(request, &plan);
            env.stored_plan = Some(Arc::new(plan));
            run_copy(env, copy)
        }
        Err(error) => fail(env, &error),
    }
}

/// Returns what the plan lacks, as far as the run was to do it.
fn incomplete(request: &ApplyRequest, plan: &PlanFile) -> Option<IncompletePlan> {
    let gap = plan.gap?;
    // The run leaves them out as well.
    if gap == PlanGap::DeletionsStopped && request.without_deletions {
        return None;
    }
    let file = request.file.clone();
    Some(IncompletePlan { file, gap })
}

/// Checks the plan and everything that it requires. Returns the run that carries it out.
fn prepared(env: &Env, request: &ApplyRequest) -> Result<(Copy, PlanFile)> {
    let mut plan = PlanFile::open_to_apply(&request.file)?;
    plan.leaves_deletions = request.without_deletions;
    let header = &plan.header;
    let operands = if request.operands.is_empty() {
        &header.operands
    } else {
        &request.operands
    };
    let vars = |name: &str| env.var(name);
    let call = Invocation {
        program: OsStr::new("sparsync"),
        args: &[],
        appended: &[],
        vars: &vars,
        now_unix_secs: clock::now_unix().0,
        umask: env.umask,
        popt: b"",
    };
    let copy = plan_command::replay(&call, &header.options, &request.options, operands)?;
    check_cwd(env, &copy)?;
    if !request.root_changed {
        check_roots(env, &copy, header)?;
    }
    let root = plan.action(b".", false);
    let root = root.map_err(|error| plan_file::unreadable(&request.file, &error))?;
    let is_created = root.is_some_and(|(_, action)| action.before.is_none());
    plan.creates_dest = request.root_changed || is_created;
    Ok((copy, plan))
}

/// Fails if the operands lead elsewhere than when the plan was made.
fn check_roots(env: &Env, copy: &Copy, header: &PlanHeader) -> Result<()> {
    let refused = |what: &[u8]| {
        let start = b"sparsync apply: ".as_slice();
        Error::new(
            Exit::FileSelect,
            [start, what, b": nothing was changed"].concat(),
        )
    };
    if env.cwd != header.cwd && copy.has_relative_local_path() {
        let what = [
            b"the plan has relative paths, and was made in ".as_slice(),
            &header.cwd,
        ];
        return Err(refused(&what.concat())
            .with_hint("run it there, or use --root-changed to apply it to the paths from here"));
    }
    Ok(())
}
