//! A copy: reads the files that options name, opens the log file, and runs a local copy. [`remote`] uses the same steps for
//! remote copies.

mod batch;
pub mod failed_list;
pub mod guard;
mod live_display;
mod progress_request;
mod reconnect;
pub mod remote;
mod remote_copy;
pub mod route;
mod via_child;
mod via_daemon;
mod via_ephemeral;
pub mod via_server;
mod via_shell;

use self::failed_list::FarSide;
use self::live_display::{LiveDisplay, LiveRoute};
use crate::cli::{self, subcommand};
use crate::cmd::command_end::{self, fail};
use crate::cmd::input_files;
use crate::env::{self, Env};
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::{charset, ids, sys, trusted_path};
use crate::local::Local;
use crate::options::output::StopAt;
use crate::options::{Batch, FilesFrom, Options, Output, PlanUse, Recurse};
use crate::report::escape::{Charset, Cursor};
use crate::report::event::{Event, Problem, Wants, Weight, errno_words};
use crate::report::format::Format;
use crate::report::{Banner, PutLine, RunFacts, Tally, TextReporter};
use crate::transport::link::Patience;
use crate::transport::{Link, stdio};
use crate::trust::paths::Places;
use crate::walk::arg_path::{listed_names, rooted};
use crate::walk::run_context::{Process, RunContext};
use crate::work::clock::{self, Since};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

/// Runs a copy or a listing between local paths.
pub fn run(env: &mut Env, wanted: cli::Copy) -> Exit {
    let since = Since::now();
    let cli::Copy {
        mut options,
        sources,
        dest,
        far: _,
        guard: _,
    } = wanted;
    live_display::settle(env, &mut options, dest.is_none());
    settle_checksum_cache(env, &mut options);
    // Until the lists are read, a signal ends the process at once: a read from standard input could block forever.
    let prepared = set_charset(&options, "sender")
        .and_then(|()| prepare(env, &options, false))
        .and_then(|prepared| {
            handle_signals(env)?;
            start_deadline(env, &options)?;
            Ok(prepared)
        });
    match prepared {
        Ok(prepared) => carry_out(env, &options, sources, dest, prepared, since),
        Err(error) => fail(env, &error),
    }
}

/// Makes signals stop the run from now on.
pub fn handle_signals(env: &Env) -> Result<(), Error> {
    let failed = |error| {
        Error::new(
            Exit::Ipc,
            format!("rsync: cannot listen to signals: {error}"),
        )
    };
    env.handle_signals().map_err(failed)
}

/// Returns the link of a server to its client, over standard input and output. Signals stop the run from now on.
pub fn stdio_link(env: &Env, patience: Patience) -> Result<Link, Error> {
    let failed = |error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot use standard input and output: {error}"),
        )
    };
    env.handle_signals()
        .and_then(|()| stdio::link(patience))
        .map_err(failed)
}

/// The files that were read and opened before a run.
pub struct Prepared {
    /// The rules of the command line.
    pub rules: input_files::InputFiles,
    /// The names that `--files-from` lists. `None` also if the remote side reads the list.
    pub listed: Option<Vec<Vec<u8>>>,
    /// The log file.
    pub log: OpenedLog,
}

/// The log file; `None` if there is none. `Err` holds the messages to print because it cannot be opened.
pub type OpenedLog = Result<Option<Box<dyn Write + Send>>, Vec<Event>>;

/// Sets the character set from and to which this end converts names. `role`: the one of this process in errors.
pub fn set_charset(options: &Options, role: &'static str) -> Result<(), Error> {
    let Some(iconv) = &options.connect.iconv else {
        return Ok(());
    };
    charset::set(&iconv.here).map_err(|line| Error::new(Exit::Unsupported, line).by(role))
}

/// Reads and opens the files that options name. `far_sends`: the names of a list are sent to the remote side as they
/// are.
pub fn prepare(env: &Env, options: &Options, far_sends: bool) -> Result<Prepared, Error> {
    let listed = match &options.select.files_from {
        None | Some(FilesFrom::Far(_) | FilesFrom::Sent(_)) => None,
        Some(from) => Some(listed_names(
            &input_files::files_from(env, from, options.preserve.link_owners)?,
            options.select.from0,
            !far_sends,
        )),
    };
    let rules = input_files::rules(env, options)?;
    if let Some(root) = &options.confine_root {
        trusted_path::confine(root);
    }
    Ok(Prepared {
        rules,
        listed,
        log: open_log(env, options, "client"),
    })
}

/// Opens the log file. `role`: the one of this process in messages.
fn open_log(env: &Env, options: &Options, role: &str) -> OpenedLog {
    let Some(log) = &options.output.log_file else {
        return Ok(None);
    };
    match trusted_path::open_append(&log.path, 0o666 & !env.umask, options.preserve.link_owners) {
        Ok(fd) => Ok(Some(Box::new(File::from(fd)))),
        Err(error) => {
            let words = crate::report::event::errno_words(&error);
            let start = format!("rsync: [{role}] failed to open log-file ").into_bytes();
            let line = [&start[..], &log.path, b": ", &words].concat();
            let line = trusted_path::with_refusal(&error, line);
            let mut events: Vec<_> = trusted_path::lines(&line)
                .map(|line| Event::Problem(Problem::new(line, Weight::Warning)))
                .collect();
            if !options.output.quiet {
                events.push(Event::Note(b"Ignoring \"log file\" setting.".to_vec()));
            }
            Err(events)
        }
    }
}

/// Creates the reporter and moves the standard streams of the process into it. `sent`: the source arguments, if this
/// process is the sender or plays both roles.
pub fn reporter(
    env: &mut Env,
    options: &Options,
    log: OpenedLog,
    list_only: bool,
    sent: Option<&[Vec<u8>]>,
) -> TextReporter {
    let (log, trouble) = log.map_or_else(|trouble| (None, trouble), |log| (log, Vec::new()));
    let stdout = std::mem::replace(&mut env.stdout, Box::new(io::sink()));
    let stderr = std::mem::replace(&mut env.stderr, env::stderr(Cursor::Advances, false));
    let begin_anywhere = options.select.relative && options.select.files_from.is_none();
    let rooted = match sent {
        Some(sent) if begin_anywhere => rooted(sent),
        Some(_) | None => Vec::new(),
    };
    let facts = RunFacts {
        rooted,
        ..facts(env, options, list_only, sent.is_some())
    };
    let mut reporter = TextReporter::new(
        &options.output,
        facts,
        stdout,
        stderr,
        log,
        Arc::new(clock::now_unix),
    );
    if let Some(put) = &env.record_action {
        reporter.record_plan(put.clone());
    }
    if let Some(explainer) = &env.explainer {
        reporter.collect_explained(explainer.clone());
    }
    for event in &trouble {
        reporter.report(event);
    }
    if options.checksum_cache.is_some() && !options.compares_contents() && !list_only {
        let cause = if options.output.compares.is_some() {
            "with --quick, this run compares no contents"
        } else {
            "without -c, this run compares no contents"
        };
        reporter.report(&unused_checksum_cache(cause));
    }
    if let Some(plan) = &env.incomplete_plan {
        let warning = Problem::new(plan.warning(), Weight::Warning);
        reporter.report(&Event::Problem(warning));
    }
    reporter
}

/// Returns the warning that `--checksum-cache` has no effect.
pub fn unused_checksum_cache(cause: &str) -> Event {
    let line = format!("sparsync: --checksum-cache is not used: {cause}");
    Event::Problem(Problem::new(line, Weight::Warning))
}

/// Returns the reporter that writes the log of a server, if there is one, and what to print because it cannot be
/// opened. The client prints all else. `sends`: this end is the sender.
pub fn log_of_server(
    env: &Env,
    options: &Options,
    sends: bool,
) -> (Option<TextReporter>, Vec<Event>) {
    let log = match open_log(env, options, "server") {
        Ok(log) => log,
        Err(trouble) => return (None, trouble),
    };
    (
        log.map(|log| reporter_of_server(env, options, sends, Some(log))),
        Vec::new(),
    )
}

/// Returns the reporter of a daemon's session: `put` adds a line for an entry to the log of the daemon.
pub fn transfer_log(
    env: &Env,
    options: &Options,
    sends: bool,
    format: Format,
    put: PutLine,
) -> TextReporter {
    reporter_of_server(env, options, sends, None).logging_to(put, format)
}

fn reporter_of_server(
    env: &Env,
    options: &Options,
    sends: bool,
    log: Option<Box<dyn Write + Send>>,
) -> TextReporter {
    let mut output = Output {
        quiet: true,
        json: false,
        ..options.output.clone()
    };
    (output.info.stats, output.info.progress) = (0, 0);
    // The sender knows how much it has sent.
    output.debug.deltasum = if sends { output.debug.deltasum } else { 0 };
    output.itemize = if output.requests_unchanged() {
        2
    } else {
        output.itemize
    };
    let facts = RunFacts {
        at_server: true,
        ..facts(env, options, false, sends)
    };
    let sink = || Box::new(io::sink());
    TextReporter::new(
        &output,
        facts,
        sink(),
        sink(),
        log,
        Arc::new(clock::now_unix),
    )
}

/// Returns what the reporter of this run will want, before it is created. `has_log`: there is a log file.
pub fn wants(env: &Env, options: &Options, has_log: bool, list_only: bool, sends: bool) -> Wants {
    let sink = || Box::new(io::sink());
    let log = has_log.then(|| sink() as Box<dyn Write + Send>);
    let facts = facts(env, options, list_only, sends);
    TextReporter::new(
        &options.output,
        facts,
        sink(),
        sink(),
        log,
        Arc::new(clock::now_unix),
    )
    .wants()
}

fn facts(env: &Env, options: &Options, list_only: bool, sends: bool) -> RunFacts {
    RunFacts {
        dry_run: options.dry_run,
        leaves_dest: Batch::is_only_written(options.batch.as_ref()),
        list_only,
        protocol: options.connect.protocol,
        atimes: options.preserve.atimes,
        banner: banner(options),
        pid: std::process::id(),
        utf8_locale: utf8_locale(env),
        stdout_is_tty: env.stdout_is_tty,
        log_as_sender: sends,
        keeps_owner: options.preserve.owner,
        keeps_group: options.preserve.group,
        keeps_hard_links: options.preserve.hard_links,
        sum: options.check.shown_sum(),
        rooted: Vec::new(),
        at_server: false,
        is_named_ours: subcommand::is_ours(env.program.as_encoded_bytes()),
        detects_renamed: options.delta.detect_renamed.is_some(),
        verifies: options.place.verify.is_some() && !options.dry_run,
        records_plan: options.plan_use == PlanUse::Record,
    }
}

/// The maximum number of worker threads.
const THREADS_MAX: usize = 8;
/// At most one worker thread per this many files that the process may have open.
const OPEN_PARTS: usize = 16;

/// Returns the number of worker threads: one per CPU, but at least 2 and at most 8, and fewer if this process may have
/// only few files open.
pub fn threads() -> usize {
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    sys::share_of_open_files(OPEN_PARTS, cpus.clamp(2, THREADS_MAX)).max(1)
}

/// Starts the deadline of `--stop-after` or `--stop-at`.
pub fn start_deadline(env: &Env, options: &Options) -> Result<(), Error> {
    let Some(stop) = options.connect.stop else {
        return Ok(());
    };
    let at = match stop {
        StopAt::AfterMinutes(minutes) => clock::now_unix()
            .0
            .saturating_add_unsigned(minutes.saturating_mul(sys::minute_secs())),
        StopAt::AtUnixSecs(at) => at,
    };
    let failed = |error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot start a thread for the deadline: {error}"),
        )
    };
    env.stop_at(at).map_err(failed)
}

/// Reports the end of a run and returns its exit code. `Ok(None)`: the exit code follows from `tally`; `Ok(Some(exit))`
/// overrides it. The display ends first. `role`: the role that rsync's closing line names if the run reached its end.
pub fn close(
    env: &Env,
    mut reporter: TextReporter,
    display: Option<&LiveDisplay>,
    tally: &Tally,
    since: Since,
    ended: Result<Option<Exit>, Error>,
    role: &'static str,
) -> Exit {
    if let Some(display) = display {
        display.end();
    }
    let is_complete = ended.is_ok();
    let own_exit = || match &env.incomplete_plan {
        Some(plan) => tally.exit_with_gap(plan.gap),
        None => tally.exit(),
    };
    let exit = match ended {
        Ok(instead) => {
            reporter.summary(tally, since.elapsed());
            let exit = reporter.settled_exit(instead.unwrap_or_else(own_exit));
            reporter.final_error(exit, role);
            exit
        }
        Err(error) => {
            let error = match command_end::by_deadline(env) {
                Some(by_deadline) if error.exit == Exit::Signal => by_deadline,
                Some(_) | None => error,
            };
            reporter.interrupted(tally);
            if !error.message.is_empty() {
                for line in trusted_path::lines(&error.message) {
                    reporter.error(line);
                }
            }
            if let Some(line) = error.hint_line() {
                reporter.error(line.as_bytes());
            }
            reporter.final_error(error.exit, error.role);
            error.exit
        }
    };
    reporter.flush();
    *env.counts.lock() = Some(reporter.counts(tally));
    *env.failed_paths.lock() = reporter.take_failed_paths();
    if let Some(display) = display {
        if reporter.is_comparison() {
            // Its last line is the summary.
        } else if is_complete {
            let charset = Charset::for_locale(utf8_locale(env), false);
            let failures = reporter.failures(exit.code(), charset);
            display.summarize(
                tally,
                reporter.renames(),
                reporter.measured_traffic(),
                since.elapsed(),
                failures.as_ref(),
            );
        } else if exit == Exit::Signal {
            display.summarize_stopped();
        }
    }
    if env.var("SPARSYNC_PROFILE").is_some_and(|on| on == "1") {
        for (call, count) in sys::counts() {
            reporter.error(format!("profile: {call} {count}").as_bytes());
        }
        reporter.flush();
    }
    exit
}

fn carry_out(
    env: &mut Env,
    options: &Options,
    sources: Vec<Vec<u8>>,
    dest: Option<Vec<u8>>,
    prepared: Prepared,
    since: Since,
) -> Exit {
    let Prepared { rules, listed, log } = prepared;
    let list_only = dest.is_none() || options.select.list_only;
    let display = LiveDisplay::start(env, options, LiveRoute::local(), false);
    let has_log = log.as_ref().is_ok_and(Option::is_some);
    let wants = wants(env, options, has_log, list_only, true);
    let gauge = progress_request::gauge(env, options, display.as_ref(), wants);
    let mut reporter = reporter(env, options, log, list_only, Some(&sources));
    rules.report_too_long(&mut reporter);
    reporter.set_gauge(gauge.as_ref());
    if options.output.failed_list.is_some() {
        let here = FarSide::Neither;
        let paths = failed_list::paths(env, options, here, &sources, dest.as_deref());
        reporter.collect_failed_paths(paths);
    }
    let rules = rules.rules(options);
    let run_context = RunContext {
        options,
        rules: &rules,
        process: process(env),
        repeats: false,
        interrupted: &env.stop_requested,
        gauge: gauge.as_ref(),
    };
    let dest = if options.select.list_only { None } else { dest };
    let local = Local {
        run_context,
        sources,
        dest,
        listed,
    };
    sys::share_memory_pools();
    sys::lift_open_files(sys::OPEN_FILES_MAX);
    let mut tally = Tally::default();
    let ended = copy_as(options, "sender").and_then(|()| local.run(&mut reporter, &mut tally));
    close(
        env,
        reporter,
        display.as_ref(),
        &tally,
        since,
        ended.map(|()| None),
        "sender",
    )
}

/// Makes this process copy as the user that `--copy-as` names. All files that options name are open. `role`: the one
/// of this process in errors.
pub fn copy_as(options: &Options, role: &'static str) -> Result<(), Error> {
    let Some(spec) = &options.copy_as else {
        return Ok(());
    };
    let (uid, groups) = ids::copy_as(spec).map_err(|line| Error::usage(line).by(role))?;
    sys::become_user(uid, &groups).map_err(|(call, error)| {
        let start = format!("rsync: [{role}] {call} failed: ").into_bytes();
        Error::usage([start, errno_words(&error)].concat()).by(role)
    })
}

/// Returns this process as the roles of a run need it.
pub fn process(env: &Env) -> Process<'_> {
    Process {
        cwd: &env.cwd,
        umask: env.umask,
        stop: &env.stop,
        threads: threads(),
        checksum_cache: Some(&env.checksum_cache),
        stored: env.stored_plan.as_deref(),
        explainer: env.explainer.as_deref(),
    }
}

/// Settles where the digests of earlier runs are, if the user has not named a directory.
pub fn settle_checksum_cache(env: &Env, options: &mut Options) {
    if let Some(choice) = &mut options.checksum_cache
        && choice.dir.is_none()
    {
        choice.dir = checksum_cache_dir(env);
    }
}

/// Returns the usual directory of the digests of earlier runs; `None` if the user has no state directory.
pub fn checksum_cache_dir(env: &Env) -> Option<Vec<u8>> {
    let places = Places::from_env(env).ok()?;
    Some(places.state.join("checksums").into_os_string().into_vec())
}

/// Runs a copy or a listing between local paths with this many threads, and prints only errors. Returns its counts.
pub fn run_silently(env: &Env, wanted: cli::Copy, threads: usize) -> Result<Tally, Error> {
    let cli::Copy {
        options,
        sources,
        dest,
        far: _,
        guard: _,
    } = wanted;
    let rules = input_files::rules(env, &options)?.rules(&options);
    let list_only = dest.is_none() || options.select.list_only;
    let facts = facts(env, &options, list_only, true);
    let stdout = Box::new(io::sink());
    let stderr = env::stderr(Cursor::Advances, false);
    let mut reporter = TextReporter::new(
        &options.output,
        facts,
        stdout,
        stderr,
        None,
        Arc::new(clock::now_unix),
    );
    let run_context = RunContext {
        options: &options,
        rules: &rules,
        process: Process {
            threads,
            ..process(env)
        },
        repeats: false,
        interrupted: &env.stop_requested,
        gauge: None,
    };
    let local = Local {
        run_context,
        sources,
        dest: if list_only { None } else { dest },
        listed: None,
    };
    sys::lift_open_files(sys::OPEN_FILES_MAX);
    let mut tally = Tally::default();
    local.run(&mut reporter, &mut tally)?;
    reporter.flush();
    Ok(tally)
}

fn banner(options: &Options) -> Banner {
    match options.select.recurse {
        Recurse::No if options.select.files_from.is_none() => Banner::None,
        _ if options.select.no_inc_recursive => Banner::Whole,
        _ => Banner::Incremental,
    }
}

/// Returns whether the locale uses UTF-8. Reads the same variables as the C library, in the same order.
pub fn utf8_locale(env: &Env) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(|name| env.var(name))
        .find(|value| !value.is_empty());
    locale.is_some_and(|value| {
        let value = value.as_bytes().to_ascii_lowercase();
        value.ends_with(b"utf-8") || value.ends_with(b"utf8")
    })
}
