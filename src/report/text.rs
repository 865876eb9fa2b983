//! Prints rsync's lines to the given `Write`s.
//!
//! `choice` chooses the line of an entry; `format`, `list` and `progress` format it. This module receives the
//! events of a run. Its parts bring the lines of one subject each to the `screen` and the `log`: those about the file
//! list, entries, progress and the findings of a comparison, and the `summary` at the end.

mod entry_lines;
mod file_list_lines;
mod findings;
mod log;
mod progress_lines;
mod run_facts;
mod screen;
mod summary;
#[cfg(test)]
mod tests;
mod unchanged_first;

pub use self::log::PutLine;
pub use self::run_facts::{Banner, RunFacts};
pub use self::summary::totals_line;

use self::log::Log;
use self::screen::Screen;
use self::unchanged_first::UnchangedFirst;
use super::comparison::CheckCounts;
use super::escape::Charset;
use super::event::{BLOCKS_ARE_COPIED, Event, Problem, ReusedBy, Wants, Weight};
use super::explainer::Explainer;
use super::failed_paths::FailedPaths;
use super::format::{Constants, Format};
use super::gauge::Gauge;
use super::json::{self, EventCounts};
use super::line_filter::{Choice, LineKind};
use super::live::{Failures, Renames};
use super::metrics::RunCounts;
use super::progress::{Meter, ProgressScope};
use super::tally::{Tally, Traffic};
use super::times::LocalTimes;
use crate::options::Output;
use crate::options::output::Ui;
use crate::plan::explained::Explained;
use crate::plan::planned::PlannedAction;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

/// How many files are remembered that may answer a request for progress.
const REPORTED_MAX: usize = 1024;
/// How many bytes for stdout are buffered before a write, if block-buffered.
const BLOCK_BYTES: usize = 32 * 1024;

/// Returns the current time: seconds since 1970 and nanoseconds.
pub type Clock = Arc<dyn Fn() -> (i64, u32) + Send + Sync>;

/// Receives an action of a run that is recorded.
pub type PutAction = Arc<Mutex<dyn FnMut(&PlannedAction) + Send>>;

/// Prints rsync's lines.
pub struct TextReporter {
    output: Output,
    facts: RunFacts,
    constants: Constants,
    choice: Choice,
    format: Option<Format>,
    screen: Screen,
    /// Set if lines about unchanged entries come before those about changed ones.
    unchanged_first: Option<UnchangedFirst>,
    log: Option<Log>,
    clock: Clock,
    times: LocalTimes,
    meter: Option<Meter>,
    /// Whether the first line about the file list was printed.
    has_begun: bool,
    /// Whether `N files to consider` must still be printed.
    count_is_due: bool,
    /// Bytes sent to and received from a peer, if there was one.
    traffic: Option<Traffic>,
    /// Sent, received and total bytes, for the last line of the log if the run fails.
    totals: Option<(Traffic, u64)>,
    /// The problems reported so far.
    problems: Tally,
    /// What the tally does not have.
    counts: EventCounts,
    /// The files that this attempt of the run has renamed.
    renames: Renames,
    /// Whether it was printed that blocks cannot be shared.
    has_warned_of_copies: bool,
    /// The findings of `sparsync check`.
    comparison: Option<CheckCounts>,
    /// The message of the first problem that makes the exit code 23.
    first_failure: Option<Vec<u8>>,
    /// The paths that could not be transferred, if they are requested.
    failed_paths: Option<FailedPaths>,
    /// Receives the actions of the run, for `sparsync plan`.
    plan: Option<PutAction>,
    /// Collects what the other end finds out about the paths to explain.
    explainer: Option<Arc<Explainer>>,
    /// Where such problems are counted for the live display, and which answers requests for progress.
    gauge: Option<Arc<Gauge>>,
    /// When the run began, in milliseconds.
    begun_ms: i64,
    /// The names of the last transferred files that were reported, if there is a gauge.
    reported: VecDeque<Vec<u8>>,
    /// The name of the last item, for the progress of its file under `--json`.
    last_name: Vec<u8>,
    /// A line under construction.
    line: Vec<u8>,
}

impl TextReporter {
    /// Creates a reporter. `log` is the opened log file, if any.
    pub fn new(
        output: &Output,
        facts: RunFacts,
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
        log: Option<Box<dyn Write + Send>>,
        clock: Clock,
    ) -> TextReporter {
        let format = output.out_format.as_deref().map(Format::parse);
        let choice = Choice::from_output(output, format.as_ref().is_some_and(Format::has_itemize));
        let constants = Constants {
            pid: facts.pid,
            sends: facts.log_as_sender,
            keeps_owner: facts.keeps_owner,
            keeps_group: facts.keeps_group,
            dry_run: facts.dry_run,
            shows_sums: facts.protocol.is_none_or(|protocol| protocol >= 30),
            sum: facts.sum,
            dest_dir: Vec::new(),
            rooted: facts.rooted.clone(),
        };
        let charset = Charset::for_locale(facts.utf8_locale, output.eight_bit);
        let scope = match output.info.progress {
            _ if output.quiet || facts.list_only => None,
            0 => None,
            1 => Some(ProgressScope::File),
            2.. => Some(ProgressScope::Run),
        };
        let log_format = output
            .log_file
            .as_ref()
            .map_or(Format::DEFAULT, |file| &file.format);
        let log = log.map(|writer| Log::new(writer, Format::parse(log_format), facts.pid));
        let screen = Screen::new(output, charset, facts.stdout_is_tty, stdout, stderr);
        // Progress is printed behind the line of its file. Those who see each line at once see it in its place.
        let is_reordered = choice.prints_notes() && scope.is_none() && screen.is_block_buffered();
        let reporter = TextReporter {
            choice,
            format,
            screen,
            unchanged_first: is_reordered.then(UnchangedFirst::default),
            log: None,
            clock,
            times: LocalTimes::local(),
            meter: scope.map(|scope| Meter::new(scope, output.human)),
            has_begun: false,
            count_is_due: false,
            traffic: None,
            totals: None,
            problems: Tally::default(),
            counts: EventCounts::default(),
            renames: Renames::default(),
            has_warned_of_copies: false,
            comparison: output.compares.is_some().then(CheckCounts::default),
            first_failure: None,
            failed_paths: None,
            plan: None,
            explainer: None,
            gauge: None,
            begun_ms: 0,
            reported: VecDeque::new(),
            last_name: Vec::new(),
            line: Vec::new(),
            output: output.clone(),
            facts,
            constants,
        };
        match log {
            Some(log) => reporter.with_log(log),
            None => reporter,
        }
    }

    /// Logs the entries of a daemon's session: `put` adds a line to the log of the daemon.
    pub fn logging_to(self, put: PutLine, format: Format) -> TextReporter {
        self.with_log(Log::of_lines(put, format))
    }

    /// Sets the directory of a module in which a daemon receives.
    pub fn receive_in(&mut self, dir: Vec<u8>) {
        self.constants.dest_dir = dir;
    }

    fn with_log(mut self, log: Log) -> TextReporter {
        // The options of a client do not change what its server logs.
        self.choice.itemizes |= self.facts.at_server && log.format.has_itemize();
        TextReporter {
            log: Some(log),
            ..self
        }
    }

    /// Returns whether the log itemizes entries.
    pub fn log_itemizes(&self) -> bool {
        self.log
            .as_ref()
            .is_some_and(|log| log.format.has_itemize())
    }

    /// Leaves out what rsync does not print at this version of its protocol.
    pub fn limit_to(&mut self, protocol: u8) {
        self.facts.protocol = Some(protocol);
        self.constants.shows_sums &= protocol >= 30;
        if protocol < 30 && self.facts.banner == Banner::Incremental {
            self.facts.banner = Banner::Whole;
        }
    }

    /// Returns the events that this reporter needs.
    pub fn wants(&self) -> Wants {
        let loud = !self.output.quiet;
        let prints = loud && (self.format.is_some() || self.choice.name >= 1);
        let log_format = self.log.as_ref().map(|log| &log.format);
        let logs_unchanged = self.choice.itemizes
            && self.choice.unchanged
            && log_format.is_some_and(Format::has_itemize);
        let shown_format = if loud { self.format.as_ref() } else { None };
        let formats = || shown_format.into_iter().chain(log_format);
        // A file that did not get its content was not changed, so it gets no object.
        let shows_outcome = loud && self.output.json && !self.facts.dry_run;
        let after_transfer =
            !self.facts.list_only && (shows_outcome || formats().any(Format::needs_after_transfer));
        Wants {
            items: self.facts.list_only
                || prints
                || loud && self.output.info.del >= 1
                || self.log.is_some()
                || self.meter.is_some(),
            unchanged: self.facts.list_only
                || loud && self.choice.shows_unchanged()
                || logs_unchanged,
            after_transfer,
            progress: self.meter.is_some(),
            whole_list: self.counts_list(),
            begin: after_transfer
                && self
                    .meter
                    .as_ref()
                    .is_some_and(|meter| meter.scope() == ProgressScope::File),
            digest: !self.facts.list_only && formats().any(Format::has_digest),
            paths: formats().any(Format::has_sender_fields),
            source_changes: !self.facts.at_server
                && !self.facts.dry_run
                && (self.output.json
                    || self.names_changed_sources()
                    || self.counts_changed_sources()),
            reused: self.facts.detects_renamed
                && !self.facts.at_server
                && (self.output.json
                    || self.output.info.rename >= 1
                    || self.output.ui != Ui::Off
                    || self.output.info.stats >= 2),
            planned: self.facts.records_plan && !self.facts.at_server,
        }
    }

    fn names_changed_sources(&self) -> bool {
        self.facts.is_named_ours && !self.output.quiet && self.output.verbose >= 1
    }

    fn counts_changed_sources(&self) -> bool {
        self.facts.is_named_ours && self.output.info.stats >= 2
    }

    /// Adds bytes sent to and received from a peer.
    pub fn traffic(&mut self, more: Traffic) {
        let traffic = self.traffic.get_or_insert_default();
        traffic.sent_bytes += more.sent_bytes;
        traffic.received_bytes += more.received_bytes;
    }

    /// Returns the counts of the run so far, with the bytes sent and received.
    pub fn counts(&self, tally: &Tally) -> RunCounts {
        RunCounts {
            tally: tally.clone(),
            traffic: self.traffic.unwrap_or(tally.traffic()),
        }
    }

    /// Returns the files that this attempt of the run has renamed, if [`Wants::reused`] is set.
    pub fn renames(&self) -> Renames {
        self.renames
    }

    /// Prepares for another attempt of the run, whose counts begin at 0 like those of its tally.
    pub fn begin_again(&mut self) {
        self.renames = Renames::default();
    }

    /// Returns the bytes sent to and received from a peer; `None` if there was none.
    pub fn measured_traffic(&self) -> Option<Traffic> {
        self.traffic
    }

    /// Handles one event. Its output is visible when this returns, or after the next flush.
    pub fn report(&mut self, event: &Event) {
        self.answer_request(false);
        self.report_one(event);
        if self.gauge.is_some()
            && let Event::Item(item) = event
            && item.transfer
        {
            if self.reported.len() == REPORTED_MAX {
                self.reported.pop_front();
            }
            self.reported.push_back(item.name.clone());
            self.answer_request(false);
        }
    }

    fn report_one(&mut self, event: &Event) {
        if let Event::Problem(problem) = event {
            self.problems.problem(problem.weight);
            self.note_failure(problem);
        }
        if self.comparison.is_some() && self.compare(event) {
            return;
        }
        if self.output.json {
            self.put_object(event);
        }
        match event {
            Event::Item(item) => self.item(item),
            Event::Deleted { name, kind, .. } => self.deleted(name, *kind),
            Event::Reused {
                from,
                name,
                len_bytes,
                how,
            } => {
                self.counts.reused.0 += 1;
                self.counts.reused.1 += len_bytes;
                if *how == ReusedBy::Rename {
                    self.renames.files += 1;
                    self.renames.bytes += len_bytes;
                }
                self.reuse(from, name, *how);
            }
            Event::Note(line) => self.print_line(line),
            Event::Problem(Problem { line, .. }) if line.is_empty() => {}
            Event::Problem(Problem { line, .. })
                if line.ends_with(BLOCKS_ARE_COPIED)
                    && std::mem::replace(&mut self.has_warned_of_copies, true) =>
            {
                // A server that was dialed again begins anew.
            }
            // Problems of a remote sender are not written to the local log.
            Event::Problem(Problem { line, .. })
                if !self.constants.sends && line.starts_with(b"rsync: [sender] ") =>
            {
                self.screen.error(line);
            }
            Event::Problem(Problem { line, .. }) => self.put_error(line),
            Event::Missing(name) => self.missing(name),
            Event::Listed {
                entries,
                bytes,
                complete,
            } => self.set_list_total(*entries, *bytes, *complete),
            Event::Checked(entries) => {
                if let Some(meter) = &mut self.meter {
                    meter.checked += entries;
                }
            }
            Event::Begin(name) => self.begin(name),
            Event::SourceChanged(name) => self.source_changed(name),
            Event::Verified { len_bytes } => {
                self.counts.verified.0 += 1;
                self.counts.verified.1 += len_bytes;
            }
            Event::Planned(action) => self.planned(action),
            Event::Explained(explained) => self.explained(explained),
            Event::Progress {
                done_bytes,
                len_bytes,
            } => self.progress(*done_bytes, *len_bytes),
        }
    }

    /// Prints a line to stderr and the log file, with control bytes escaped.
    pub fn error(&mut self, line: &[u8]) {
        self.screen.release();
        if self.output.json {
            self.screen.put_object(&json::problem(line, Weight::Failed));
        }
        self.put_error(line);
    }

    fn put_error(&mut self, line: &[u8]) {
        self.screen.error(line);
        self.log_text(line);
    }

    /// Writes all buffered output.
    pub fn flush(&mut self) {
        self.screen.release();
        self.screen.flush();
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Passes the actions of the run on from now on.
    pub fn record_plan(&mut self, put: PutAction) {
        self.plan = Some(put);
    }

    /// Passes on what the other end finds out about the paths to explain.
    pub fn collect_explained(&mut self, explainer: Arc<Explainer>) {
        self.explainer = Some(explainer);
    }

    fn explained(&mut self, explained: &Explained) {
        if let Some(explainer) = &self.explainer {
            explainer.put(explained.clone());
        }
    }

    fn planned(&mut self, action: &PlannedAction) {
        if let Some(put) = &self.plan {
            (put.lock())(action);
        }
    }

    /// Collects the paths that could not be transferred from now on.
    pub fn collect_failed_paths(&mut self, paths: FailedPaths) {
        self.failed_paths = Some(paths);
    }

    /// Returns the collected paths, if they were requested.
    pub fn take_failed_paths(&mut self) -> Option<FailedPaths> {
        self.failed_paths.take()
    }

    fn note_failure(&mut self, problem: &Problem) {
        match problem.weight {
            Weight::SourceError | Weight::Failed => {}
            Weight::Vanished | Weight::Warning => return,
        }
        if let Some(gauge) = &self.gauge {
            gauge.fail(&problem.line);
        }
        if let Some(paths) = &mut self.failed_paths
            && !problem.line.is_empty()
        {
            paths.note(&problem.line);
        }
        if self.first_failure.is_none() && !problem.line.is_empty() {
            self.first_failure = Some(problem.line.clone());
        }
    }

    /// Returns the problems that made the exit code 23; `None` if there were none.
    pub fn failures(&self, exit: u8, charset: Charset) -> Option<Failures<'_>> {
        let count = self.problems.errors();
        if count == 0 {
            return None;
        }
        let first = self.first_failure.as_deref().unwrap_or_default();
        Some(Failures {
            count,
            exit,
            first,
            charset,
        })
    }

    /// Returns the problems reported so far, by weight, of both sides.
    pub fn problems(&self) -> &Tally {
        &self.problems
    }

    /// Returns whether lines are lost because stdout is closed.
    pub fn lines_are_lost(&self) -> bool {
        self.screen.lines_are_lost()
    }

    /// Prints the object of an event (`--json`). Objects of the transfer's progress and of the end are printed elsewhere.
    fn put_object(&mut self, event: &Event) {
        let line = match event {
            Event::Item(item) => {
                if self.meter.is_some() {
                    item.name.clone_into(&mut self.last_name);
                }
                match self.choice.line(item) {
                    _ if self.facts.list_only => Some(json::Line::Entry(item)),
                    LineKind::Nothing => None,
                    LineKind::Full | LineKind::Name | LineKind::UpToDate => {
                        Some(json::Line::Change(item))
                    }
                }
            }
            Event::Begin(name) => {
                name.clone_into(&mut self.last_name);
                None
            }
            other => json::event(other),
        };
        let is_quiet = self.output.quiet && !matches!(event, Event::Problem(_));
        if !is_quiet && let Some(line) = line {
            self.screen.put_object(&line);
        }
    }

    fn source_changed(&mut self, name: &[u8]) {
        self.counts.changed_sources += 1;
        if self.names_changed_sources() {
            let line = [b"sparsync: changed while it was read: \"", name, b"\""].concat();
            self.put_error(&line);
        }
    }

    /// Prints a line to stdout and the log file, unless the run is quiet.
    fn print_line(&mut self, line: &[u8]) {
        if !self.output.quiet {
            self.screen.print(line);
            self.log_text(line);
        }
    }

    fn log_text(&mut self, line: &[u8]) {
        if let Some(log) = &mut self.log {
            log.put(line, (self.clock)().0);
        }
    }
}
