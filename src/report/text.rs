//! Prints rsync's lines to the given `Write`s.
//!
//! `choice` chooses the line of an entry; `format`, `list` and `progress` format it. This module brings the lines to
//! the `screen` and the `log` in the right order, with a `summary` at the end.

mod log;
mod screen;
mod summary;
#[cfg(test)]
mod tests;
mod unchanged_first;

pub use self::log::PutLine;

use self::log::Log;
use self::screen::Screen;
use self::summary::{put_statistics, put_totals};
use self::unchanged_first::UnchangedFirst;
use super::comparison::{CheckCounts, DIFFERENT, finding_of};
use super::escape::Charset;
use super::event::{
    BLOCKS_ARE_COPIED, DELETION_IS_SKIPPED, Event, Item, Problem, ReusedBy, Wants, Weight,
};
use super::explainer::Explainer;
use super::failed_paths::FailedPaths;
use super::final_error::error_line;
use super::format::{Constants, Format, Shown, put_link, put_name};
use super::gauge::Gauge;
use super::json::{self, EventCounts};
use super::line_filter::{Choice, LineKind};
use super::list::{self, ListStyle};
use super::live::Failures;
use super::metrics::RunCounts;
use super::progress::{self, ListTotal, Meter, ProgressScope};
use super::tally::{Tally, Traffic};
use super::times::LocalTimes;
use crate::exit::Exit;
use crate::flist::Kind;
use crate::options::findings::{ComparisonKind, Finding};
use crate::options::{Checksum, Output};
use crate::plan::Changes;
use crate::plan::explained::Explained;
use crate::plan::planned::PlannedAction;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// How many files are remembered that may answer a request for progress.
const REPORTED_MAX: usize = 1024;
/// How many bytes for stdout are buffered before a write, if block-buffered.
const BLOCK_BYTES: usize = 32 * 1024;

/// Says that a comparison does not look for entries that only the destination has, because the source could not be read.
const INCOMPLETE_COMPARISON: &[u8] =
    b"sparsync check: part of the source could not be read: not all that is only at the destination is found";

/// Returns the current time: seconds since 1970 and nanoseconds.
pub type Clock = Arc<dyn Fn() -> (i64, u32) + Send + Sync>;

/// Receives an action of a run that is recorded.
pub type PutAction = Arc<Mutex<dyn FnMut(&PlannedAction) + Send>>;

/// How the file list is built, as the first line states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Banner {
    /// No such line: without `-r`, `-d` and `--files-from`.
    None,
    /// `-r`, unless an option needs the whole list first.
    Incremental,
    /// The whole list first: `--no-inc-recursive`, `--delete-before`, `--delete-after`, `--delay-updates`,
    /// `-m`; `-d` and `--files-from` without `-r`.
    Whole,
}

/// What the reporter needs to know about the run besides [`Output`].
#[derive(Debug, Clone)]
pub struct RunFacts {
    /// `-n`
    pub dry_run: bool,
    /// `--only-write-batch`
    pub leaves_dest: bool,
    /// `--list-only`: entries are listed as by `ls`.
    pub list_only: bool,
    /// The version of rsync's protocol, if it limits what is known.
    pub protocol: Option<u8>,
    /// `-U`: lists have a column for the access time.
    pub atimes: bool,
    /// See [`Banner`].
    pub banner: Banner,
    /// The process id for `%p` and the log file.
    pub pid: u32,
    /// Whether the locale's characters are UTF-8.
    pub utf8_locale: bool,
    /// Whether stdout is a terminal; then it is line-buffered unless `--outbuf` is given.
    pub stdout_is_tty: bool,
    /// Whether this process is the sender (also in a local copy): `%o` is `send`.
    pub log_as_sender: bool,
    /// `-o`; without it `%U` is 0.
    pub keeps_owner: bool,
    /// `-g`; without it `%G` is `DEFAULT`.
    pub keeps_group: bool,
    /// `-H`
    pub keeps_hard_links: bool,
    /// The algorithm of [`Item::digest`], which also determines the width of an empty `%C`.
    pub sum: Checksum,
    /// Absolute operands under `-R`, without the first slash, if this process is the sender. Lines about their entries
    /// show that slash.
    pub rooted: Vec<Vec<u8>>,
    /// Only the log of a server is written. It has no entries of a dry run, and those without content only if its format
    /// has `%i`.
    pub at_server: bool,
    /// Whether the program has its own name: called as rsync, it prints only what rsync prints.
    pub is_named_ours: bool,
    /// `--detect-renamed`
    pub detects_renamed: bool,
    /// `--verify`, unless nothing is written
    pub verifies: bool,
    /// `sparsync plan`: the actions of the run are recorded.
    pub records_plan: bool,
}

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
        let after_transfer = !self.facts.list_only && formats().any(Format::needs_after_transfer);
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

    /// Prints that the file list is being built. Must be called first; a repeated run prints it only once.
    pub fn banner(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let sends = self.constants.sends;
        self.log_text(if sends {
            b"building file list"
        } else {
            b"receiving file list"
        });
        if self.output.quiet || self.output.info.flist == 0 {
            return;
        }
        let words: &[u8] = match (self.facts.banner, sends) {
            (Banner::None, _) => return,
            (Banner::Incremental, true) => b"sending incremental file list",
            (Banner::Incremental, false) => b"receiving incremental file list",
            (Banner::Whole, true) if self.output.info.flist >= 2 => b"building file list ... ",
            (Banner::Whole, true) => b"building file list ... done",
            (Banner::Whole, false) if self.output.info.flist >= 2 => b"receiving file list ... ",
            (Banner::Whole, false) => b"receiving file list ... done",
        };
        self.count_is_due = self.counts_list();
        match (self.count_is_due, sends) {
            (false, _) => self.screen.print(words),
            (true, true) => {
                self.screen.print(words);
                self.screen.put(b" 0 files...\r");
                self.screen.flush();
            }
            // The receiver of a list prints nothing more before the list is complete.
            (true, false) => {
                self.screen.put(words);
                self.screen.flush();
            }
        }
    }

    /// Returns whether the number of entries is printed before the first of them.
    fn counts_list(&self) -> bool {
        !self.output.quiet && self.facts.banner == Banner::Whole && self.output.info.flist >= 2
    }

    /// Sets the length of the list: entries, and the bytes of the files and symlinks among them. `complete` is false
    /// while it grows. Needed for progress, and for `N files to consider`.
    fn set_list_total(&mut self, entries: u64, bytes: u64, complete: bool) {
        if let Some(meter) = &mut self.meter {
            meter.total = ListTotal {
                entries,
                bytes,
                complete,
            };
        }
        if complete && self.count_is_due {
            self.count_is_due = false;
            let hundreds = if self.constants.sends {
                entries.saturating_sub(1) / 100
            } else {
                0
            };
            for hundreds in 1..=hundreds {
                self.screen
                    .put(format!(" {} files...\r", hundreds * 100).as_bytes());
            }
            let mut line = std::mem::take(&mut self.line);
            line.clear();
            let files = if entries == 1 { "file" } else { "files" };
            _ = write!(line, "{entries} {files} to consider");
            self.screen.print(&line);
            self.log_text(&line);
            self.line = line;
        }
    }

    /// Prints the statistics and the summary of a completed run, as the options request.
    pub fn summary(&mut self, tally: &Tally, elapsed: Duration) {
        let traffic = self.traffic.unwrap_or(tally.traffic());
        self.totals = Some((traffic, tally.total_bytes));
        self.screen.release();
        self.answer_request(true);
        self.finish_progress();
        if let Some(counts) = self.comparison {
            if self.output.json {
                self.screen.put_object(&json::comparison(&counts));
            } else {
                self.screen
                    .print(counts.summary(ComparisonKind::Trees).as_bytes());
            }
            return self.flush();
        }
        if self.output.json {
            self.screen.put_object(&json::summary(
                tally,
                traffic,
                elapsed,
                self.facts.dry_run,
                self.counts,
            ));
        }
        if self.output.debug.deltasum >= 1 {
            let line = format!(
                "total: matches=0  hash_hits=0  false_alarms=0 data={}",
                tally.literal_bytes
            );
            self.screen.print(line.as_bytes());
            self.log_text(line.as_bytes());
        }
        if self.output.info.stats >= 2 {
            self.screen.print(b"");
            let mut text = Vec::new();
            put_statistics(
                &mut text,
                tally,
                traffic,
                self.output.human,
                self.facts.protocol,
            );
            if self.counts_changed_sources() && self.counts.changed_sources > 0 {
                _ = writeln!(
                    text,
                    "Number of files changed while they were read: {}",
                    self.counts.changed_sources
                );
            }
            if self.counts.reused.0 > 0 {
                _ = writeln!(
                    text,
                    "Number of files taken from other files: {} ({} bytes)",
                    self.counts.reused.0, self.counts.reused.1
                );
            }
            if self.facts.verifies {
                _ = writeln!(
                    text,
                    "Number of files verified: {} ({} bytes read back)",
                    self.counts.verified.0, self.counts.verified.1
                );
            }
            self.print_and_log(&text);
        }
        if self.output.info.stats >= 1 {
            self.screen.print(b"");
            let mut text = Vec::new();
            let remark: &[u8] = match (self.facts.dry_run, self.facts.leaves_dest) {
                (true, _) => b" (DRY RUN)",
                (false, true) => b" (BATCH ONLY)",
                (false, false) => b"",
            };
            put_totals(
                &mut text,
                tally,
                traffic,
                elapsed,
                self.output.human,
                remark,
            );
            self.print_and_log(&text);
        } else if self.constants.sends || tally.exit() == Exit::Ok {
            self.log_totals();
        }
        self.flush();
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

    /// Returns the bytes sent to and received from a peer; `None` if there was none.
    pub fn measured_traffic(&self) -> Option<Traffic> {
        self.traffic
    }

    /// Records the totals of a run that ends before its summary, for the log file. Must be called before
    /// [`TextReporter::final_error`].
    pub fn interrupted(&mut self, tally: &Tally) {
        self.totals = Some((self.traffic.unwrap_or(tally.traffic()), tally.total_bytes));
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

    /// Counts an event of a comparison, and prints it if its finding is to be printed. Returns whether it is a finding.
    fn compare(&mut self, event: &Event) -> bool {
        let Some(counts) = &mut self.comparison else {
            return false;
        };
        let finding = match event {
            Event::Item(item) => finding_of(item),
            Event::Deleted { .. } => Finding::DestOnly,
            Event::Problem(problem) => {
                match problem.weight {
                    // The peer has printed it, and its line has been counted.
                    _ if problem.line.is_empty() => {}
                    Weight::SourceError | Weight::Failed => counts.unreadable += 1,
                    Weight::Vanished | Weight::Warning => {}
                }
                return false;
            }
            // Nothing is created.
            Event::Note(note) if note.starts_with(b"created directory ") => return true,
            // Nothing is deleted.
            Event::Note(note) if note == DELETION_IS_SKIPPED => {
                self.error(INCOMPLETE_COMPARISON);
                return true;
            }
            _ => return false,
        };
        counts.add(finding);
        let printed = &self.output.compares;
        if !printed.as_ref().is_some_and(|it| it.contain(finding)) {
            return true;
        }
        if self.output.json {
            let name = finding.name(ComparisonKind::Trees);
            if let Some(line) = json::compared_entry(event, name) {
                self.screen.put_object(&line);
            }
            return true;
        }
        match event {
            Event::Item(item) => self.item(item),
            Event::Deleted { name, kind, .. } => self.deleted(name, *kind),
            _ => {}
        }
        true
    }

    /// Returns the exit code of a run that ended with this one: that of a comparison follows from its findings.
    pub fn settled_exit(&self, exit: Exit) -> Exit {
        match &self.comparison {
            Some(counts) if exit == Exit::Ok => counts.exit(),
            _ => exit,
        }
    }

    /// Returns whether this is a comparison, which has its own last line.
    pub fn is_comparison(&self) -> bool {
        self.comparison.is_some()
    }

    /// Prints the last line: why the run failed. Prints nothing on success.
    pub fn final_error(&mut self, exit: Exit, role: &str) {
        self.screen.release();
        let line = match exit {
            // The counts say the same.
            DIFFERENT | Exit::Partial if self.is_comparison() => Vec::new(),
            _ => error_line(exit, role),
        };
        if !line.is_empty() {
            if self.constants.sends {
                self.log_totals();
            }
            self.put_error(&line);
        }
        if self.output.json {
            self.screen.put_object(&json::end(exit, &line));
        }
        self.flush();
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

    /// Counts problems for the live display, and prints the answers to requests for progress, from now on.
    pub fn set_gauge(&mut self, gauge: Option<&Arc<Gauge>>) {
        self.gauge = gauge.cloned();
        self.begun_ms = self.now_ms();
    }

    /// Prints the answer to a request for progress (SIGVTALRM) if it is due: after the line of its file. `is_end`: no
    /// line follows.
    fn answer_request(&mut self, is_end: bool) {
        let Some(gauge) = &self.gauge else { return };
        if !gauge.has_answer() {
            return;
        }
        // The line of a file comes before or after its content, as the other end decides.
        let reported = &self.reported;
        let is_due = |path: &[u8]| is_end || reported.iter().any(|name| name == path);
        let Some((path, counts)) = gauge.take_answer(is_due) else {
            return;
        };
        if self.output.json {
            let bytes = (counts.copied.1, counts.listed.1);
            let total = ListTotal {
                entries: counts.listed.0,
                bytes: counts.listed.1,
                complete: counts.list_is_complete,
            };
            let line = json::progress(Some(&path), bytes, counts.done.0, total);
            self.screen.put_object(&line);
            return self.flush();
        }
        let is_named = self.choice.name > 0 || self.format.is_some();
        if !is_named || self.reported.back() != Some(&path) {
            self.screen.print(&path);
        }
        let took = Duration::from_millis(u64::try_from(self.now_ms() - self.begun_ms).unwrap_or(0));
        let mut line = Vec::new();
        let is_tty = self.facts.stdout_is_tty;
        progress::put_answer(&mut line, &counts, self.output.human, took, is_tty);
        self.screen.put_moving(&line);
        self.flush();
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
            other => json::event(other),
        };
        let is_quiet = self.output.quiet && !matches!(event, Event::Problem(_));
        if !is_quiet && let Some(line) = line {
            self.screen.put_object(&line);
        }
    }

    fn item(&mut self, item: &Item) {
        let unknown;
        let item = match self.facts.protocol {
            Some(..29) if item.transfer => {
                unknown = Item {
                    changes: Changes::UNKNOWN,
                    ..item.clone()
                };
                &unknown
            }
            _ => item,
        };
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        if self.facts.list_only {
            list::put_entry(&mut line, item, self.list_style(), &mut self.times);
            self.print_line(&line);
        } else {
            self.count(item);
            self.show(item, &mut line);
            self.log_item(item, &mut line);
        }
        self.line = line;
    }

    /// Counts a file of a dry run, which has no progress events.
    fn count(&mut self, item: &Item) {
        if let Some(meter) = &mut self.meter
            && self.facts.dry_run
            && item.transfer
        {
            meter.count(item.len_bytes);
        }
    }

    /// Prints the line for an entry. `line` is scratch space and must be empty.
    fn show(&mut self, item: &Item, line: &mut Vec<u8>) {
        let choice = self.choice.line(item);
        match (choice, &self.format) {
            _ if self.output.quiet => return,
            (LineKind::Nothing, _) => return,
            // Its object was printed.
            (LineKind::Full, _) if self.output.json => return,
            (LineKind::Full, Some(format)) => {
                let now_secs = (self.clock)().0;
                format.put(
                    line,
                    &Shown::item(item, &self.constants, now_secs),
                    &mut self.times,
                );
            }
            (LineKind::Full, None) if self.choice.name >= 1 => {
                line.extend_from_slice(self.constants.slash_before(&item.name));
                put_name(line, &item.name, item.kind);
                put_link(line, item);
            }
            (LineKind::Full, None) => return,
            (LineKind::Name, _) => line.extend_from_slice(&item.name),
            (LineKind::UpToDate, _) => {
                put_name(line, &item.name, item.kind);
                line.extend_from_slice(b" is uptodate");
            }
        }
        self.put_entry_line(item, choice, line);
        if matches!(choice, LineKind::Name | LineKind::UpToDate) {
            self.log_text(line);
        }
    }

    fn put_entry_line(&mut self, item: &Item, choice: LineKind, line: &[u8]) {
        let Some(order) = &mut self.unchanged_first else {
            return self.screen.print(line);
        };
        let root_is_group =
            self.facts.banner == Banner::Incremental && !self.facts.keeps_hard_links;
        if order.begins_group(item, root_is_group) {
            self.screen.release();
        }
        if choice == LineKind::Full && item.name != b"." {
            self.screen.hold(line);
        } else {
            self.screen.print(line);
        }
    }

    /// Logs an entry in the log's own format. `line` is scratch space.
    fn log_item(&mut self, item: &Item, line: &mut Vec<u8>) {
        if let Some(log) = &mut self.log
            && !log.format.is_empty()
            && self
                .choice
                .logs(item, self.facts.dry_run, log.format.has_itemize())
            && (!self.facts.at_server
                || item.transfer
                || log.format.has_itemize() && !self.facts.dry_run)
        {
            let now_secs = (self.clock)().0;
            line.clear();
            log.format.put(
                line,
                &Shown::item(item, &self.constants, now_secs),
                &mut self.times,
            );
            log.put(line, now_secs);
        }
    }

    fn list_style(&self) -> ListStyle {
        ListStyle {
            human: self.output.human,
            atimes: self.facts.atimes,
        }
    }

    fn deleted(&mut self, name: &[u8], kind: Kind) {
        let now_secs = (self.clock)().0;
        let shown = Shown::deleted(name, kind, &self.constants, now_secs);
        let mut line = std::mem::take(&mut self.line);
        let info = &self.output.info;
        if !self.output.quiet && (self.format.is_some() || info.del >= 1 || info.name >= 1) {
            line.clear();
            put_deletion(
                &mut line,
                self.format.as_ref(),
                &shown,
                name,
                kind,
                &mut self.times,
            );
            self.screen.print(&line);
        }
        if let Some(log) = &mut self.log
            && !self.facts.dry_run
        {
            let shown = Shown::deleted(name, kind, &self.constants, now_secs);
            line.clear();
            put_deletion(
                &mut line,
                Some(&log.format),
                &shown,
                name,
                kind,
                &mut self.times,
            );
            log.put(&line, now_secs);
        }
        self.line = line;
    }

    fn missing(&mut self, name: &[u8]) {
        let mut line = Vec::new();
        list::put_missing(&mut line, name, self.list_style());
        self.print_line(&line);
    }

    fn reuse(&mut self, from: &[u8], name: &[u8], how: ReusedBy) {
        if self.output.info.rename >= 1 && !self.output.json {
            self.print_line(&[how.word().as_bytes(), b" ", from, b" => ", name].concat());
        }
    }

    fn source_changed(&mut self, name: &[u8]) {
        self.counts.changed_sources += 1;
        if self.names_changed_sources() {
            let line = [b"sparsync: changed while it was read: \"", name, b"\""].concat();
            self.put_error(&line);
        }
    }

    fn begin(&mut self, name: &[u8]) {
        if self.wants().begin && self.choice.name >= 1 && !self.facts.dry_run {
            self.screen
                .print(&[self.constants.slash_before(name), name].concat());
        }
    }

    fn progress(&mut self, done_bytes: u64, len_bytes: u64) {
        if self.facts.dry_run {
            return;
        }
        let now_ms = self.now_ms();
        let Some(meter) = &mut self.meter else { return };
        self.line.clear();
        let position = meter.position(done_bytes, len_bytes);
        meter.update(&mut self.line, done_bytes, len_bytes, now_ms);
        if !self.line.is_empty() {
            if self.output.json {
                let name = match meter.scope() {
                    ProgressScope::File => Some(&*self.last_name),
                    ProgressScope::Run => None,
                };
                self.screen
                    .put_object(&json::progress(name, position, meter.checked, meter.total));
            }
            self.screen.put_moving(&self.line);
            self.screen.flush();
        }
    }

    /// Prints the last line of `--info=progress2`.
    fn finish_progress(&mut self) {
        let now_ms = self.now_ms();
        if let Some(meter) = self.meter.take()
            && meter.scope() == ProgressScope::Run
        {
            self.line.clear();
            meter.finish(&mut self.line, now_ms);
            self.screen.put_moving(&self.line);
        }
        self.screen.end_moving_line();
    }

    fn now_ms(&self) -> i64 {
        let (secs, nanos) = (self.clock)();
        secs.saturating_mul(1000)
            .saturating_add(i64::from(nanos / 1_000_000))
    }

    /// Prints a line to stdout and the log file, unless the run is quiet.
    fn print_line(&mut self, line: &[u8]) {
        if !self.output.quiet {
            self.screen.print(line);
            self.log_text(line);
        }
    }

    /// Prints lines that each end with a newline.
    fn print_and_log(&mut self, lines: &[u8]) {
        for line in lines.split_inclusive(|&b| b == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            self.screen.print(line);
            self.log_text(line);
        }
    }

    fn log_text(&mut self, line: &[u8]) {
        if let Some(log) = &mut self.log {
            log.put(line, (self.clock)().0);
        }
    }

    /// Logs the short last line, once.
    fn log_totals(&mut self) {
        if let Some((traffic, total_bytes)) = self.totals.take() {
            self.log_text(totals_line(traffic, total_bytes).as_bytes());
        }
    }
}

/// Returns the last line of a log.
pub fn totals_line(
    Traffic {
        sent_bytes,
        received_bytes,
    }: Traffic,
    total_bytes: u64,
) -> String {
    format!("sent {sent_bytes} bytes  received {received_bytes} bytes  total size {total_bytes}")
}

/// Formats a deletion. A format without its own mark for deletions is replaced by `deleting name`.
fn put_deletion(
    out: &mut Vec<u8>,
    format: Option<&Format>,
    shown: &Shown<'_>,
    name: &[u8],
    kind: Kind,
    times: &mut LocalTimes,
) {
    match format.filter(|format| format.has_deletion()) {
        Some(format) => format.put(out, shown, times),
        None => {
            out.extend_from_slice(b"deleting ");
            put_name(out, name, kind);
        }
    }
}
