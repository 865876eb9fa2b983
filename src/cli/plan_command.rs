//! The command lines of `plan`, `apply` and `explain`, and the runs that they stand for.
//!
//! Options are permitted by name: one that is not listed here could change something that a plan does not record.

use super::args::{Args, PlanArgs};
use super::flag::{Effect, Flag, Polarity};
use super::parse::{self, GivenOption, Walked};
use super::{Copy, Invocation, Request, subcommand};
use crate::error::{Error, Result};
use crate::options::{CheckMode, Options, Output, PlanUse, Recurse};
use crate::path::RelPath;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// What `plan` does.
#[derive(Debug)]
pub enum PlanRequest {
    /// `plan SRC... DST --output=FILE`
    Make(Box<NewPlan>),
    /// `plan --show FILE`
    Show { file: Vec<u8>, form: PlanForm },
}

/// A plan to be made.
#[derive(Debug)]
pub struct NewPlan {
    pub file: Vec<u8>,
    pub form: PlanForm,
    /// The dry run whose actions are recorded.
    pub dry_run: Copy,
    /// The run of which it is a plan.
    pub guarded: GuardedRun,
    /// The options that the plan records.
    pub options: Vec<Vec<u8>>,
    pub operands: Vec<Vec<u8>>,
}

/// A run that is not carried out, with what must hold before it may change anything.
#[derive(Debug)]
pub struct GuardedRun {
    pub copy: Copy,
    /// Its command line, without the name of the program.
    pub words: Vec<Vec<u8>>,
}

impl GuardedRun {
    fn new(
        call: &Invocation<'_>,
        verb: &str,
        options: &[Vec<u8>],
        guards: &[Vec<u8>],
        operands: &[Vec<u8>],
    ) -> Result<GuardedRun> {
        Ok(GuardedRun {
            copy: copy_of(call, verb, options, guards, operands)?,
            words: [options, guards, &[b"--".to_vec()], operands].concat(),
        })
    }
}

/// How a plan is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanForm {
    Summary,
    /// `-v`: each action with the columns of `-i`, and the summary.
    Actions,
    /// `--json`: the lines of the plan.
    Lines,
}

/// `apply FILE`
#[derive(Debug)]
pub struct ApplyRequest {
    pub file: Vec<u8>,
    /// The options of this run, which only affect its output.
    pub options: Vec<Vec<u8>>,
    /// Other operands than those of the plan.
    pub operands: Vec<Vec<u8>>,
    pub without_deletions: bool,
    /// `--root-changed`: the operands may lead elsewhere than when the plan was made.
    pub root_changed: bool,
}

/// The options that only `plan` has.
const PLAN_FLAGS: &[Flag] = &[
    Flag::value("output", "FILE", "").effect(Effect::Text(|args| &mut args.plan_command.output)),
    Flag::value("show", "FILE", "").effect(Effect::Text(|args| &mut args.plan_command.show)),
];

/// The options that only `apply` has.
const APPLY_FLAGS: &[Flag] = &[
    Flag::switch("without-deletions", "").effect(Effect::Switch(|args| {
        &mut args.plan_command.without_deletions
    })),
    Flag::switch("root-changed", "")
        .effect(Effect::Switch(|args| &mut args.plan_command.root_changed)),
];

/// The options of a copy that a plan records.
const OF_PLANS: [&str; 102] = [
    "8-bit-output",
    "archive",
    "recursive",
    "inc-recursive",
    "dirs",
    "relative",
    "no-implied-dirs",
    "one-file-system",
    "files-from",
    "from0",
    "exclude",
    "exclude-from",
    "include",
    "include-from",
    "filter",
    "cvs-exclude",
    "max-size",
    "min-size",
    "prune-empty-dirs",
    "ignore-missing-args",
    "delete-missing-args",
    "ignore-errors",
    "copy-links",
    "copy-unsafe-links",
    "copy-dirlinks",
    "open-noatime",
    "checksum",
    "checksum-choice",
    "checksum-seed",
    "modify-window",
    "size-only",
    "ignore-times",
    "update",
    "existing",
    "ignore-existing",
    "links",
    "hard-links",
    "safe-links",
    "insecure-links",
    "perms",
    "executability",
    "chmod",
    "owner",
    "group",
    "devices",
    "specials",
    "times",
    "omit-dir-times",
    "omit-link-times",
    "super",
    "acls",
    "xattrs",
    "atimes",
    "fake-super",
    "partial-dir",
    "temp-dir",
    "delay-updates",
    "backup",
    "backup-dir",
    "suffix",
    "compare-dest",
    "copy-dest",
    "clone-dest",
    "link-dest",
    "numeric-ids",
    "usermap",
    "groupmap",
    "chown",
    "delete",
    "delete-before",
    "delete-during",
    "delete-delay",
    "delete-after",
    "delete-excluded",
    "force",
    "max-delete",
    "whole-file",
    "fuzzy",
    "detect-renamed",
    "block-size",
    "sparse",
    "preallocate",
    "fsync",
    "compress",
    "compress-choice",
    "compress-level",
    "skip-compress",
    "rsh",
    "rsync-path",
    "old-args",
    "secluded-args",
    "trust-sender",
    "address",
    "port",
    "sockopts",
    "password-file",
    "blocking-io",
    "ipv4",
    "ipv6",
    "timeout",
    "contimeout",
    "transport",
];
/// The same for options that are only letters.
const LETTERS_OF_PLANS: [char; 2] = ['F', 'D'];
/// Options that must hold before a run. A plan does not record them, because it is not made unless they hold.
const OF_GUARDS: [&str; 3] = ["delete-guard", "require-mount", "fail-if-empty"];
/// Options without an effect on a plan, which the user may be used to.
const WITHOUT_EFFECT: [&str; 6] = [
    "verbose",
    "dry-run",
    "itemize-changes",
    "human-readable",
    "json",
    "stats",
];
/// The options of a copy that `apply` has.
const OF_APPLY: [&str; 17] = [
    "verbose",
    "quiet",
    "dry-run",
    "itemize-changes",
    "out-format",
    "human-readable",
    "progress",
    "stats",
    "info",
    "json",
    "ui",
    "8-bit-output",
    "outbuf",
    "bwlimit",
    "log-file",
    "metrics-file",
    "failed-list",
];

fn wrong(verb: &str, what: &str) -> Error {
    Error::usage(format!("sparsync {verb}: {what}"))
        .with_hint(format!("see `sparsync {verb} --help`"))
}

fn walk(call: &Invocation<'_>, words: &[OsString], own: &'static [Flag]) -> Walked {
    let args = Args {
        umask: call.umask,
        now_unix_secs: call.now_unix_secs,
        ..Args::default()
    };
    let mut walked = parse::walk_with(words, &parse::aliases(call.popt), args, own);
    walked.suggest(own);
    walked
}

/// Returns the request for help, or the error of a command line.
fn ended_early(
    words: &[OsString],
    walked: &mut Walked,
    verb: &'static str,
) -> Result<Option<Request>> {
    if walked.args.print.is_some() || parse::lone_help(words, &walked.args) {
        return Ok(Some(Request::Verb(subcommand::Verb::Help(Some(verb)))));
    }
    walked.error.take().map_or(Ok(None), Err)
}

fn not_permitted(verb: &str, given: &GivenOption, why: &str) -> Error {
    let name = match (&given.spelling, given.flag.short) {
        (Some(name), _) => format!("--{name}"),
        (None, Some(letter)) => format!("-{letter}"),
        (None, None) => format!("--{}", given.flag.long),
    };
    wrong(verb, &format!("{name} cannot be used: {why}"))
}

fn is_own(flags: &[Flag], given: &GivenOption) -> bool {
    flags.iter().any(|own| own.long == given.flag.long)
}

/// Reads the words after `plan`.
pub fn read_plan(call: &Invocation<'_>, words: &[OsString]) -> Result<Request> {
    let words = with_output(words);
    let mut walked = walk(call, &words, PLAN_FLAGS);
    if let Some(request) = ended_early(&words, &mut walked, "plan")? {
        return Ok(request);
    }
    let PlanArgs { output, show, .. } = std::mem::take(&mut walked.args.plan_command);
    let is_given = |long: &str| {
        walked
            .given
            .iter()
            .any(|given| given.flag.long == long && given.polarity == Polarity::On)
    };
    let form = if walked.args.json {
        PlanForm::Lines
    } else if is_given("verbose") || is_given("itemize-changes") {
        PlanForm::Actions
    } else {
        PlanForm::Summary
    };
    if let Some(file) = show {
        let other = walked
            .given
            .iter()
            .find(|given| given.flag.long != "show" && !WITHOUT_EFFECT.contains(&given.flag.long));
        if let Some(other) = other {
            return Err(not_permitted("plan", other, "--show only reads a plan"));
        }
        if !walked.operands.is_empty() {
            return Err(wrong("plan", "expected no operands with --show"));
        }
        return Ok(Request::Plan(PlanRequest::Show { file, form }));
    }

    let mut options = Vec::new();
    let mut guards = Vec::new();
    for given in &walked.given {
        let Flag { long, short, .. } = *given.flag;
        let is_letter = long.is_empty() && short.is_some_and(|it| LETTERS_OF_PLANS.contains(&it));
        if is_letter || OF_PLANS.contains(&long) {
            options.push(given.word());
        } else if OF_GUARDS.contains(&long) {
            guards.push(given.word());
        } else if !WITHOUT_EFFECT.contains(&long) && !is_own(PLAN_FLAGS, given) {
            return Err(not_permitted(
                "plan",
                given,
                "a plan cannot record what it does",
            ));
        }
    }
    let Some(file) = output else {
        return Err(wrong("plan", "expected --output=FILE, or --show FILE"));
    };
    if walked.operands.len() < 2 {
        return Err(wrong("plan", "expected SRC and DST"));
    }
    let operands = operands_of(&walked);
    let guarded = GuardedRun::new(call, "plan", &options, &guards, &operands)?;
    let mut dry_run = silent_dry_run(call, "plan", &options, &operands)?;
    dry_run.options.plan_use = PlanUse::Record;
    dry_run.options.delete.refuses_empty_source = guarded.copy.options.delete.refuses_empty_source;
    if !dry_run.options.preserve.times {
        return Err(wrong(
            "plan",
            "--times (-t, or -a) is required: without it, a file that was copied looks like one that has changed",
        ));
    }
    check_combination("plan", &dry_run.options)?;
    if dry_run.options.select.recurse == Recurse::No && dry_run.options.select.list_only {
        return Err(wrong("plan", "expected a copy, not a listing"));
    }
    Ok(Request::Plan(PlanRequest::Make(Box::new(NewPlan {
        file,
        form,
        dry_run,
        guarded,
        options,
        operands,
    }))))
}

/// Fails if a plan cannot record what options do together.
fn check_combination(verb: &str, options: &Options) -> Result<()> {
    if options.place.suffix_beside().is_some() && options.delete.excluded {
        let what = "--backup cannot be used with --delete-excluded, unless --backup-dir names another directory: the backups would be deleted, too";
        return Err(wrong(verb, what));
    }
    let second = match &options.delta.alt_dest {
        Some(alternates) => alternates.kind.option(),
        // A name that an interrupted run has placed would not lead the others.
        None if options.check.ignore_existing => "--ignore-existing",
        // An entry of another kind is removed, and then counts as missing.
        None if options.check.existing_only => "--existing",
        // The state of a file with several names lacks its ctime. So one that is replaced by a file of the same size and
        // time looks as before, and would be backed up again.
        None if options.check.mode == CheckMode::IgnoreTimes && options.place.backup.is_some() => {
            "--ignore-times and --backup"
        }
        None => return Ok(()),
    };
    if !options.preserve.hard_links {
        return Ok(());
    }
    let what =
        format!("-H cannot be used with {second}: a plan cannot record what they do together");
    Err(wrong(verb, &what))
}

/// Replaces `-o`, which is `--output` here, unless other letters stand beside it.
fn with_output(words: &[OsString]) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--");
    let words = words.iter().enumerate().map(|(at, word)| {
        let is_option = end.is_none_or(|end| at < end);
        if is_option && word == "-o" {
            OsString::from("--output")
        } else {
            word.clone()
        }
    });
    words.collect()
}

/// Reads the words after `apply`.
pub fn read_apply(call: &Invocation<'_>, words: &[OsString]) -> Result<Request> {
    let mut walked = walk(call, words, APPLY_FLAGS);
    if let Some(request) = ended_early(words, &mut walked, "apply")? {
        return Ok(request);
    }
    let PlanArgs {
        without_deletions,
        root_changed,
        ..
    } = std::mem::take(&mut walked.args.plan_command);
    let mut options = Vec::new();
    for given in &walked.given {
        if OF_APPLY.contains(&given.flag.long) {
            options.push(given.word());
        } else if !is_own(APPLY_FLAGS, given) {
            return Err(not_permitted("apply", given, "the plan has the options"));
        }
    }
    let mut operands = walked
        .operands
        .iter()
        .map(|operand| operand.as_bytes().to_vec());
    let Some(file) = operands.next().filter(|file| !file.is_empty()) else {
        return Err(wrong("apply", "expected FILE"));
    };
    let operands: Vec<_> = operands.collect();
    match operands.len() {
        0 => {}
        _ if !root_changed => {
            return Err(wrong(
                "apply",
                "other operands than those of the plan require --root-changed",
            ));
        }
        1 => return Err(wrong("apply", "expected FILE, SRC and DST")),
        _ => {}
    }
    Ok(Request::Apply(ApplyRequest {
        file,
        options,
        operands,
        without_deletions,
        root_changed,
    }))
}

/// Returns the run that carries out a plan with these options and operands. `own`: the options of this run.
pub fn replay(
    call: &Invocation<'_>,
    options: &[Vec<u8>],
    own: &[Vec<u8>],
    operands: &[Vec<u8>],
) -> Result<Copy> {
    let mut own = own.to_vec();
    own.push(b"--no-delete-guard".to_vec());
    // The options come from a file, so they are checked like those of a command line.
    let words: Vec<OsString> = options.iter().cloned().map(OsString::from_vec).collect();
    let mut walked = walk(call, &words, &[]);
    if let Some(error) = walked.error.take() {
        return Err(error);
    }
    let is_permitted = |given: &GivenOption| {
        let Flag { long, short, .. } = *given.flag;
        OF_PLANS.contains(&long)
            || long.is_empty() && short.is_some_and(|it| LETTERS_OF_PLANS.contains(&it))
    };
    if !walked.operands.is_empty() || !walked.given.iter().all(is_permitted) {
        return Err(wrong("apply", "the plan has options that no plan has"));
    }
    let mut copy = copy_of(call, "apply", options, &own, operands)?;
    check_combination("apply", &copy.options)?;
    copy.options.plan_use = PlanUse::Replay;
    if let Some(far) = &mut copy.far {
        // Both ends must permit the same shortcuts.
        far.words.push(b"--replay-plan".to_vec());
    }
    Ok(copy)
}

/// Returns the operands as given.
fn operands_of(walked: &Walked) -> Vec<Vec<u8>> {
    let operands = walked.operands.iter();
    operands
        .map(|operand| operand.as_bytes().to_vec())
        .collect()
}

/// Returns the dry run of a copy that changes and prints nothing: what it finds is printed otherwise.
fn silent_dry_run(
    call: &Invocation<'_>,
    verb: &str,
    options: &[Vec<u8>],
    operands: &[Vec<u8>],
) -> Result<Copy> {
    let own = [
        &b"--dry-run"[..],
        b"--quiet",
        b"--no-delete-guard",
        b"--no-ui",
    ];
    copy_of(call, verb, options, &own.map(<[u8]>::to_vec), operands)
}

/// Returns the copy with these options and operands. `own`: options of the command itself, which come last.
fn copy_of(
    call: &Invocation<'_>,
    verb: &str,
    options: &[Vec<u8>],
    own: &[Vec<u8>],
    operands: &[Vec<u8>],
) -> Result<Copy> {
    let words: Vec<OsString> = options
        .iter()
        .chain(own)
        .chain([&b"--".to_vec()])
        .chain(operands)
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect();
    let run = Invocation {
        program: OsStr::new("sparsync"),
        args: &words,
        appended: &[],
        vars: call.vars,
        now_unix_secs: call.now_unix_secs,
        umask: call.umask,
        popt: b"",
    };
    match super::read(&run)? {
        Request::Copy(copy) => Ok(*copy),
        Request::Unsupported(error) => Err(error),
        _ => Err(wrong(verb, "expected SRC and DST")),
    }
}

/// What `explain` does.
#[derive(Debug)]
pub struct ExplainRequest {
    /// The paths as given.
    pub paths: Vec<Vec<u8>>,
    /// Print one JSON object for each path.
    pub json: bool,
    /// The dry run that explains them.
    pub dry_run: Copy,
    /// The run that is explained.
    pub guarded: GuardedRun,
    /// The operands of the copy as given.
    pub operands: Vec<Vec<u8>>,
}

/// Options without an effect on what a copy does: they print, or write a file beside it.
const IGNORED_BY_EXPLAIN: [&str; 23] = [
    "verbose",
    "quiet",
    "dry-run",
    "itemize-changes",
    "out-format",
    "human-readable",
    "8-bit-output",
    "json",
    "stats",
    "progress",
    "info",
    "debug",
    "msgs2stderr",
    "stderr",
    "outbuf",
    "ui",
    "log-file",
    "log-file-format",
    "metrics-file",
    "failed-list",
    "lock",
    "motd",
    "verify",
];
/// The option that is only a letter, and of which this holds but for `--partial`.
const PARTIAL_PROGRESS: char = 'P';
/// Options of other runs than copies.
const OF_OTHER_RUNS: [&str; 5] = [
    "write-batch",
    "only-write-batch",
    "read-batch",
    "list-only",
    "daemon",
];

/// Reads the words after `explain`.
pub fn read_explain(call: &Invocation<'_>, words: &[OsString]) -> Result<Request> {
    let help = || Request::Verb(subcommand::Verb::Help(Some("explain")));
    let end = words.iter().position(|word| word == "--");
    let own = &words[..end.unwrap_or(words.len())];
    let mut json = false;
    let mut paths = Vec::new();
    for word in own {
        match word.as_bytes() {
            b"--help" | b"-h" => return Ok(help()),
            b"--json" => json = true,
            [b'-', _, ..] => {
                let word = word.as_bytes().escape_ascii();
                return Err(wrong(
                    "explain",
                    &format!("unknown option `{word}`: those of the copy come after `--`"),
                ));
            }
            path => paths.push(path.to_vec()),
        }
    }
    let Some(end) = end else {
        return Err(wrong(
            "explain",
            "expected PATH... -- and the command line of a copy",
        ));
    };
    if paths.is_empty() || paths.contains(&Vec::new()) {
        return Err(wrong("explain", "expected a PATH before `--`"));
    }

    let copied = &words[end + 1..];
    let args = Args {
        umask: call.umask,
        now_unix_secs: call.now_unix_secs,
        ..Args::default()
    };
    let mut walked = parse::walk(copied, &parse::aliases(call.popt), args);
    walked.suggest(&[]);
    if walked.args.print.is_some() || parse::lone_help(copied, &walked.args) {
        return Ok(help());
    }
    if let Some(error) = walked.error.take() {
        return Err(error);
    }
    let mut options = Vec::new();
    let mut guards = Vec::new();
    for given in &walked.given {
        let long = given.flag.long;
        if OF_OTHER_RUNS.contains(&long) || walked.args.is_server_side {
            return Err(not_of_copies(given));
        }
        if long.is_empty() && given.flag.short == Some(PARTIAL_PROGRESS) {
            options.push(b"--partial".to_vec());
        } else if OF_GUARDS.contains(&long) {
            guards.push(given.word());
        } else if !IGNORED_BY_EXPLAIN.contains(&long) {
            options.push(given.word());
        }
    }
    if walked.operands.len() < 2 {
        return Err(wrong("explain", "expected SRC and DST after `--`"));
    }
    let operands = operands_of(&walked);
    let guarded = GuardedRun::new(call, "explain", &options, &guards, &operands)?;
    let mut dry_run = silent_dry_run(call, "explain", &options, &operands)?;
    if dry_run.dest.is_none() || dry_run.options.select.list_only {
        return Err(wrong("explain", "expected a copy, not a listing"));
    }
    dry_run.options.output.info = Output::default().info;
    Ok(Request::Explain(Ok(Box::new(ExplainRequest {
        paths,
        json,
        dry_run,
        guarded,
        operands,
    }))))
}

fn not_of_copies(given: &GivenOption) -> Error {
    let word = given.word();
    wrong(
        "explain",
        &format!("`{}` cannot be explained", word.escape_ascii()),
    )
}

/// Makes a dry run explain these paths, at both ends.
pub fn ask(copy: &mut Copy, paths: &[RelPath]) {
    copy.options.explained = paths.to_vec();
    if let Some(far) = &mut copy.far {
        // In the session, so that an older sparsync refuses it as an unknown option.
        far.words.extend(
            paths
                .iter()
                .map(|path| [b"--explained=", path.as_bytes()].concat()),
        );
    }
}
