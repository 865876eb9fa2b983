//! rsync's lines on the `Write`s that are handed in.
//!
//! Which entry gets a line is `choice`'s, what stands in it `format`'s, `list`'s and `progress`'s; here
//! they are brought to stdout, stderr and the log file in the right order.

use super::choice::{Choice, Line};
use super::closing::error_line;
use super::escape::{self, Charset};
pub use super::event::Wants;
use super::event::{Event, Item, Problem, Reporter};
use super::format::{Constants, Format, Shown, put_link, put_name};
use super::list::{self, ListStyle};
use super::number::{put_count, put_fraction, put_fraction_grouped};
use super::progress::{ListTotal, Meter, Scope};
use super::tally::{Kinds, Tally};
use super::times::LocalTimes;
use crate::exit::Exit;
use crate::flist::Kind;
use crate::options::{Checksum, Outbuf, Output, StderrMode};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// So much is gathered for stdout before it is written, where no line must be seen at once.
const BLOCK_BYTES: usize = 32 * 1024;

/// Tells the time: seconds since 1970 and nanoseconds.
pub type Clock = Arc<dyn Fn() -> (i64, u32) + Send + Sync>;

/// How the list comes about, as the first line says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Banner {
    /// Without `-r`, `-d` and `--files-from` there is no such line.
    None,
    /// `-r`, unless something needs the whole list first.
    Incremental,
    /// The whole list first: `--no-inc-recursive`, `--delete-before`, `--delete-after`, `--delay-updates`,
    /// `-m`; `-d` and `--files-from` without `-r`.
    Whole,
}

/// What the reporter is told of the run besides [`Output`].
#[derive(Debug, Clone)]
pub struct RunFacts {
    /// `-n`
    pub dry_run: bool,
    /// `--list-only`: entries are listed as `ls` does.
    pub list_only: bool,
    /// `-U`: lists have a column for the access time.
    pub atimes: bool,
    /// See [`Banner`].
    pub banner: Banner,
    /// `%p`, and in the log file.
    pub pid: u32,
    /// Whether the locale's characters are UTF-8.
    pub utf8_locale: bool,
    /// Whether stdout is a terminal; then lines are written at once unless `--outbuf` says otherwise.
    pub stdout_is_tty: bool,
    /// Whether this process is the sender (also of a local copy): `%o` is `send`.
    pub log_as_sender: bool,
    /// `-o`; without it `%U` is 0.
    pub keeps_owner: bool,
    /// `-g`; without it `%G` is `DEFAULT`.
    pub keeps_group: bool,
    /// What [`Item::digest`] holds; `%C` is that wide where there is none.
    pub sum: Checksum,
}

/// Writes rsync's lines.
pub struct TextReporter {
    output: Output,
    facts: RunFacts,
    constants: Constants,
    choice: Choice,
    format: Option<Format>,
    stdout: Sink,
    /// `None`: with `--stderr=all` all lines go one way, which is `stdout` then.
    stderr: Option<Box<dyn Write + Send>>,
    log: Option<Log>,
    clock: Clock,
    times: LocalTimes,
    meter: Option<Meter>,
    charset: Charset,
    /// Whether it was said that the list is being made.
    has_begun: bool,
    /// Whether the cursor stands behind a progress line.
    in_line: bool,
    /// Whether `N files to consider` is still to come.
    owes_count: bool,
    /// Bytes that went to a peer and came from it, if there was one.
    traffic: Option<(u64, u64)>,
    /// Sent, received and total bytes, for the last line of the log if the run fails after all.
    totals: Option<[u64; 3]>,
    /// A line under construction.
    line: Vec<u8>,
    /// The same, escaped.
    shown: Vec<u8>,
}

impl TextReporter {
    /// Prepares to write. `log` is the opened log file, if any.
    pub fn new(
        output: &Output,
        facts: RunFacts,
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
        log: Option<Box<dyn Write + Send>>,
        clock: Clock,
    ) -> TextReporter {
        let format = output.out_format.as_deref().map(Format::parse);
        let choice = Choice::of(output, format.as_ref().is_some_and(Format::has_itemize));
        let constants = Constants {
            pid: facts.pid,
            sends: facts.log_as_sender,
            keeps_owner: facts.keeps_owner,
            keeps_group: facts.keeps_group,
            dry_run: facts.dry_run,
            sum: facts.sum,
        };
        let (stdout, stderr) = match output.stderr {
            StderrMode::Errors | StderrMode::Client => {
                let tty = if facts.stdout_is_tty { Outbuf::Line } else { Outbuf::Block };
                (Sink::new(stdout, output.outbuf.unwrap_or(tty)), Some(stderr))
            }
            StderrMode::All => (Sink::new(stderr, Outbuf::Line), None),
        };
        let scope = match output.info.progress {
            _ if output.quiet || facts.list_only => None,
            0 => None,
            1 => Some(Scope::File),
            2.. => Some(Scope::Run),
        };
        let log_format = output.log_file.as_ref().map(|file| Format::parse(&file.format));
        TextReporter {
            choice,
            format,
            stdout,
            stderr,
            log: log.map(|writer| Log::new(writer, log_format.unwrap_or_else(|| Format::parse(Format::DEFAULT)))),
            clock,
            times: LocalTimes::system(),
            meter: scope.map(|scope| Meter::new(scope, output.human)),
            charset: Charset::of(facts.utf8_locale, output.eight_bit),
            has_begun: false,
            in_line: false,
            owes_count: false,
            traffic: None,
            totals: None,
            line: Vec::new(),
            shown: Vec::new(),
            output: output.clone(),
            facts,
            constants,
        }
    }

    /// What is worth telling.
    pub fn wants(&self) -> Wants {
        let loud = !self.output.quiet;
        let prints = loud && (self.format.is_some() || self.choice.name >= 1);
        let log_format = self.log.as_ref().map(|log| &log.format);
        let logs_unchanged =
            self.choice.itemizes && self.choice.unchanged && log_format.is_some_and(Format::has_itemize);
        let formats = || self.format.iter().filter(|_| loud).chain(log_format);
        let after_transfer = !self.facts.list_only && formats().any(Format::needs_after_transfer);
        Wants {
            items: self.facts.list_only
                || prints
                || loud && self.output.info.del >= 1
                || self.log.is_some()
                || self.meter.is_some(),
            unchanged: self.facts.list_only || loud && self.choice.shows_unchanged() || logs_unchanged,
            after_transfer,
            progress: self.meter.is_some(),
            whole_list: self.counts_list(),
            begin: after_transfer && self.meter.as_ref().is_some_and(|meter| meter.scope() == Scope::File),
            digest: !self.facts.list_only && formats().any(Format::has_digest),
            paths: formats().any(Format::has_what_the_sender_sees),
        }
    }

    /// Says that the list is being made. Call it first; a run that begins anew says it once.
    pub fn banner(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let sends = self.constants.sends;
        self.log_text(if sends { b"building file list" } else { b"receiving file list" });
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
        self.owes_count = self.counts_list();
        match (self.owes_count, sends) {
            (false, _) => self.print(words),
            (true, true) => {
                self.print(words);
                self.stdout.put_raw(b" 0 files...\r");
                self.stdout.flush();
            }
            // Who receives a list sees no part of it before it has all.
            (true, false) => {
                self.stdout.put_raw(words);
                self.stdout.flush();
            }
        }
    }

    /// Whether the number of entries is told before the first of them.
    fn counts_list(&self) -> bool {
        !self.output.quiet && self.facts.banner == Banner::Whole && self.output.info.flist >= 2
    }

    /// Says how long the list is: entries, and the bytes of the files and symlinks among them. While it
    /// grows `complete` is false. Needed for progress, and for `N files to consider`.
    fn set_list_total(&mut self, entries: u64, bytes: u64, complete: bool) {
        if let Some(meter) = &mut self.meter {
            meter.total = ListTotal { entries, bytes, complete };
        }
        if complete && self.owes_count {
            self.owes_count = false;
            let hundreds = if self.constants.sends { entries.saturating_sub(1) / 100 } else { 0 };
            for hundreds in 1..=hundreds {
                self.stdout.put_raw(format!(" {} files...\r", hundreds * 100).as_bytes());
            }
            let mut line = std::mem::take(&mut self.line);
            line.clear();
            let files = if entries == 1 { "file" } else { "files" };
            _ = write!(line, "{entries} {files} to consider");
            self.print(&line);
            self.log_text(&line);
            self.line = line;
        }
    }

    /// Ends a run that went through: statistics and summary, as far as they are asked for.
    pub fn summary(&mut self, tally: &Tally, elapsed: Duration) {
        let (sent, received) = self.traffic.unwrap_or((tally.sent_bytes(), tally.received_bytes()));
        self.totals = Some([sent, received, tally.total_bytes]);
        self.finish_progress();
        if self.output.debug.deltasum >= 1 {
            let line = format!("total: matches=0  hash_hits=0  false_alarms=0 data={}", tally.literal_bytes);
            self.print(line.as_bytes());
            self.log_text(line.as_bytes());
        }
        if self.output.info.stats >= 2 {
            self.print(b"");
            let mut text = Vec::new();
            put_statistics(&mut text, tally, (sent, received), self.output.human);
            self.print_and_log(&text);
        }
        if self.output.info.stats >= 1 {
            self.print(b"");
            let mut text = Vec::new();
            let human = self.output.human;
            text.extend_from_slice(b"sent ");
            put_count(&mut text, sent, human);
            text.extend_from_slice(b" bytes  received ");
            put_count(&mut text, received, human);
            text.extend_from_slice(b" bytes  ");
            let traffic = (sent + received) as f64;
            put_fraction(&mut text, traffic / (0.5 + elapsed.as_secs() as f64), human);
            text.extend_from_slice(b" bytes/sec\ntotal size is ");
            put_count(&mut text, tally.total_bytes, human);
            text.extend_from_slice(b"  speedup is ");
            let speedup = if traffic > 0.0 { tally.total_bytes as f64 / traffic } else { 0.0 };
            put_fraction_grouped(&mut text, speedup, human > 0);
            if self.facts.dry_run {
                text.extend_from_slice(b" (DRY RUN)");
            }
            text.push(b'\n');
            self.print_and_log(&text);
        } else if self.constants.sends || tally.exit() == Exit::Ok {
            self.log_totals();
        }
        self.flush();
    }

    /// Notes how many bytes went to a peer and came from it.
    pub fn traffic(&mut self, sent: u64, received: u64) {
        let (before_sent, before_received) = self.traffic.unwrap_or((0, 0));
        self.traffic = Some((before_sent + sent, before_received + received));
    }

    /// Notes what a run counted that ends before its summary: the log file names it. Call it before
    /// [`TextReporter::final_error`].
    pub fn interrupted(&mut self, tally: &Tally) {
        let (sent, received) = self.traffic.unwrap_or((tally.sent_bytes(), tally.received_bytes()));
        self.totals = Some([sent, received, tally.total_bytes]);
    }

    /// Says that and why the run failed, last of all. Nothing for success.
    pub fn final_error(&mut self, exit: Exit, role: &str) {
        let line = error_line(exit, role);
        if !line.is_empty() {
            if self.constants.sends {
                self.log_totals();
            }
            self.error(&line);
        }
        self.flush();
    }

    /// A line for stderr and the log file; its control bytes are escaped.
    pub fn error(&mut self, line: &[u8]) {
        self.put_error(line);
        self.log_text(line);
    }

    fn put_error(&mut self, line: &[u8]) {
        self.end_progress_line();
        match &mut self.stderr {
            Some(stderr) => {
                self.stdout.flush();
                self.shown.clear();
                escape::put(&mut self.shown, line, self.charset);
                self.shown.push(b'\n');
                // There is nowhere left to tell that stderr is gone.
                _ = stderr.write_all(&self.shown).and_then(|()| stderr.flush());
            }
            None => self.stdout.put_line(line, self.charset),
        }
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) {
        self.stdout.flush();
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Whether stdout could not be written to and each line was meant to be seen at once. A pipe that
    /// nobody reads any more is no reason to stop copying as long as its lines come in blocks; so rsync.
    pub fn lines_are_lost(&self) -> bool {
        self.stdout.failed && self.stdout.mode != Outbuf::Block
    }

    fn item(&mut self, item: &Item) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        if self.facts.list_only {
            let style = ListStyle { human: self.output.human, atimes: self.facts.atimes };
            list::put_entry(&mut line, item, style, &mut self.times);
            self.print(&line);
            if !self.output.quiet {
                self.log_text(&line);
            }
            self.line = line;
            return;
        }
        if let Some(meter) = &mut self.meter
            && self.facts.dry_run
            && item.transfer
        {
            meter.count(item.len_bytes);
        }
        let choice = self.choice.line(item);
        if !self.output.quiet {
            let told = match (choice, &self.format) {
                (Line::Nothing, _) => false,
                (Line::Full, Some(format)) => {
                    let now_secs = (self.clock)().0;
                    format.put(&mut line, &Shown::item(item, &self.constants, now_secs), &mut self.times);
                    true
                }
                (Line::Full, None) if self.choice.name >= 1 => {
                    put_name(&mut line, &item.name, item.kind);
                    put_link(&mut line, item);
                    true
                }
                (Line::Full, None) => false,
                (Line::Name, _) => {
                    line.extend_from_slice(&item.name);
                    true
                }
                (Line::UpToDate, _) => {
                    put_name(&mut line, &item.name, item.kind);
                    line.extend_from_slice(b" is uptodate");
                    true
                }
            };
            if told {
                self.print(&line);
                if matches!(choice, Line::Name | Line::UpToDate) {
                    self.log_text(&line);
                }
            }
        }
        if let Some(log) = &mut self.log
            && !log.format.is_empty()
            && self.choice.logs(item, self.facts.dry_run, log.itemizes)
        {
            let now_secs = (self.clock)().0;
            line.clear();
            log.format.put(&mut line, &Shown::item(item, &self.constants, now_secs), &mut self.times);
            log.put(&line, now_secs, self.facts.pid);
        }
        self.line = line;
    }

    fn deleted(&mut self, name: &[u8], kind: Kind) {
        let now_secs = (self.clock)().0;
        let shown = Shown::deleted(name, kind, &self.constants, now_secs);
        let mut line = std::mem::take(&mut self.line);
        let info = &self.output.info;
        if !self.output.quiet && (self.format.is_some() || info.del >= 1 || info.name >= 1) {
            line.clear();
            put_deletion(&mut line, self.format.as_ref(), &shown, (name, kind), &mut self.times);
            self.print(&line);
        }
        if let Some(log) = &mut self.log
            && !self.facts.dry_run
        {
            let shown = Shown::deleted(name, kind, &self.constants, now_secs);
            line.clear();
            put_deletion(&mut line, Some(&log.format), &shown, (name, kind), &mut self.times);
            log.put(&line, now_secs, self.facts.pid);
        }
        self.line = line;
    }

    fn missing(&mut self, name: &[u8]) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let style = ListStyle { human: self.output.human, atimes: self.facts.atimes };
        list::put_missing(&mut line, name, style);
        self.print(&line);
        if !self.output.quiet {
            self.log_text(&line);
        }
        self.line = line;
    }

    fn begin(&mut self, name: &[u8]) {
        if self.wants().begin && self.choice.name >= 1 && !self.facts.dry_run {
            self.print(name);
        }
    }

    fn progress(&mut self, done_bytes: u64, len_bytes: u64) {
        if self.facts.dry_run {
            return;
        }
        let now_ms = self.now_ms();
        let Some(meter) = &mut self.meter else { return };
        self.shown.clear();
        meter.update(&mut self.shown, done_bytes, len_bytes, now_ms);
        if let Some(&last) = self.shown.last() {
            self.in_line = last != b'\n';
            self.stdout.put_raw(&self.shown);
            self.stdout.flush();
        }
    }

    /// The last line of `--info=progress2`.
    fn finish_progress(&mut self) {
        let now_ms = self.now_ms();
        if let Some(meter) = self.meter.take()
            && meter.scope() == Scope::Run
        {
            self.shown.clear();
            meter.finish(&mut self.shown, now_ms);
            self.stdout.put_raw(&self.shown);
            self.in_line = true;
        }
        self.end_progress_line();
    }

    fn end_progress_line(&mut self) {
        if std::mem::take(&mut self.in_line) {
            self.stdout.put_raw(b"\n");
        }
    }

    fn now_ms(&self) -> i64 {
        let (secs, nanos) = (self.clock)();
        secs.saturating_mul(1000).saturating_add(i64::from(nanos / 1_000_000))
    }

    /// A line for stdout, not for the log file.
    fn print(&mut self, line: &[u8]) {
        if !self.output.quiet {
            self.end_progress_line();
            self.stdout.put_line(line, self.charset);
        }
    }

    /// Lines of our own words, each ended by a newline.
    fn print_and_log(&mut self, lines: &[u8]) {
        for line in lines.split_inclusive(|&b| b == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            self.print(line);
            self.log_text(line);
        }
    }

    fn log_text(&mut self, line: &[u8]) {
        if let Some(log) = &mut self.log {
            log.put(line, (self.clock)().0, self.facts.pid);
        }
    }

    /// The log's short last line; once.
    fn log_totals(&mut self) {
        if let Some([sent, received, total]) = self.totals.take() {
            self.log_text(format!("sent {sent} bytes  received {received} bytes  total size {total}").as_bytes());
        }
    }
}

impl Reporter for TextReporter {
    fn tell(&mut self, event: &Event) {
        match event {
            Event::Item(item) => self.item(item),
            Event::Deleted { name, kind, .. } => self.deleted(name, *kind),
            Event::Note(line) => {
                self.print(line);
                if !self.output.quiet {
                    self.log_text(line);
                }
            }
            // What a sender elsewhere meets goes into no log here.
            Event::Problem(Problem { line, .. }) if !self.constants.sends && line.starts_with(b"rsync: [sender] ") => {
                self.put_error(line);
            }
            Event::Problem(Problem { line, .. }) => self.error(line),
            Event::Missing(name) => self.missing(name),
            Event::Listed { entries, bytes, complete } => self.set_list_total(*entries, *bytes, *complete),
            Event::Checked(entries) => {
                if let Some(meter) = &mut self.meter {
                    meter.checked += entries;
                }
            }
            Event::Begin(name) => self.begin(name),
            Event::Progress { done_bytes, len_bytes } => self.progress(*done_bytes, *len_bytes),
        }
    }
}

/// A format that does not tell deletions by itself gives way to `deleting name`.
fn put_deletion(
    out: &mut Vec<u8>,
    format: Option<&Format>,
    shown: &Shown<'_>,
    (name, kind): (&[u8], Kind),
    times: &mut LocalTimes,
) {
    match format.filter(|format| format.tells_deletion()) {
        Some(format) => format.put(out, shown, times),
        None => {
            out.extend_from_slice(b"deleting ");
            put_name(out, name, kind);
        }
    }
}

/// The block of `--stats`, without the blank line before it.
fn put_statistics(out: &mut Vec<u8>, tally: &Tally, (sent, received): (u64, u64), human: u8) {
    let kinds = |out: &mut Vec<u8>, words: &str, kinds: &Kinds| {
        out.extend_from_slice(words.as_bytes());
        // Counts take commas but never units.
        put_count(out, kinds.total(), human.min(1));
        let mut between: &[u8] = b" (";
        for (word, count) in kinds.named().into_iter().filter(|(_, count)| *count > 0) {
            out.extend_from_slice(between);
            _ = write!(out, "{word}: ");
            put_count(out, count, human.min(1));
            between = b", ";
        }
        if kinds.total() > 0 {
            out.push(b')');
        }
        out.push(b'\n');
    };
    let count = |out: &mut Vec<u8>, words: &str, count: u64, human: u8, unit: &str| {
        out.extend_from_slice(words.as_bytes());
        put_count(out, count, human);
        out.extend_from_slice(unit.as_bytes());
        out.push(b'\n');
    };
    kinds(out, "Number of files: ", &tally.listed);
    kinds(out, "Number of created files: ", &tally.created);
    kinds(out, "Number of deleted files: ", &tally.deleted);
    count(out, "Number of regular files transferred: ", tally.transferred, human.min(1), "");
    count(out, "Total file size: ", tally.total_bytes, human, " bytes");
    count(out, "Total transferred file size: ", tally.transferred_bytes, human, " bytes");
    count(out, "Literal data: ", tally.literal_bytes, human, " bytes");
    count(out, "Matched data: ", tally.matched_bytes, human, " bytes");
    out.extend_from_slice(b"File list size: 0\n");
    if tally.list_generation_ms > 0 {
        let seconds = |ms: u64| format!("{}.{:03} seconds", ms / 1000, ms % 1000);
        _ = writeln!(out, "File list generation time: {}", seconds(tally.list_generation_ms));
        _ = writeln!(out, "File list transfer time: {}", seconds(tally.list_transfer_ms));
    }
    count(out, "Total bytes sent: ", sent, human, "");
    count(out, "Total bytes received: ", received, human, "");
}

/// Stdout with our own buffer, so that it can be flushed at the moments that rsync chooses.
struct Sink {
    writer: Box<dyn Write + Send>,
    buf: Vec<u8>,
    mode: Outbuf,
    failed: bool,
}

impl Sink {
    fn new(writer: Box<dyn Write + Send>, mode: Outbuf) -> Sink {
        Sink { writer, buf: Vec::with_capacity(BLOCK_BYTES + 1024), mode, failed: false }
    }

    fn put_line(&mut self, line: &[u8], charset: Charset) {
        escape::put(&mut self.buf, line, charset);
        self.buf.push(b'\n');
        self.settle();
    }

    fn put_raw(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
        self.settle();
    }

    fn settle(&mut self) {
        match self.mode {
            Outbuf::None => self.flush(),
            Outbuf::Line if self.buf.ends_with(b"\n") => self.flush(),
            Outbuf::Line | Outbuf::Block if self.buf.len() >= BLOCK_BYTES => self.flush(),
            Outbuf::Line | Outbuf::Block => {}
        }
    }

    fn flush(&mut self) {
        if !self.buf.is_empty() && !self.failed {
            self.failed = self.writer.write_all(&self.buf).and_then(|()| self.writer.flush()).is_err();
        }
        self.buf.clear();
    }
}

/// The log file: each line with time and process, written at least once a second while lines come.
struct Log {
    writer: Box<dyn Write + Send>,
    format: Format,
    itemizes: bool,
    buf: Vec<u8>,
    times: LocalTimes,
    written_secs: i64,
}

impl Log {
    fn new(writer: Box<dyn Write + Send>, format: Format) -> Log {
        let itemizes = format.has_itemize();
        Log { writer, format, itemizes, buf: Vec::new(), times: LocalTimes::system(), written_secs: 0 }
    }

    fn put(&mut self, line: &[u8], now_secs: i64, pid: u32) {
        self.times.put(&mut self.buf, now_secs, b' ');
        _ = write!(self.buf, " [{pid}] ");
        escape::put(&mut self.buf, line, Charset::Log);
        self.buf.push(b'\n');
        if self.buf.len() >= BLOCK_BYTES || now_secs != self.written_secs {
            self.written_secs = now_secs;
            self.flush();
        }
    }

    /// A log that cannot be written is no reason to stop copying; rsync does not tell either.
    fn flush(&mut self) {
        _ = self.writer.write_all(&self.buf).and_then(|()| self.writer.flush());
        self.buf.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::Time;
    use crate::options::{Debug, Info, LogFile};
    use crate::plan::changes::Changes;
    use crate::report::event::{Update, Weight};
    use crate::report::format::tests::{item, link};
    use jiff::tz::TimeZone;
    use proptest::prelude::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(std::mem::take(&mut self.0.lock().expect("not poisoned"))).expect("UTF-8")
        }
    }

    /// 2026/11/21 00:46:53
    const NOW: i64 = 1_795_222_013;

    const FACTS: RunFacts = RunFacts {
        dry_run: false,
        list_only: false,
        atimes: false,
        banner: Banner::Incremental,
        pid: 23811,
        utf8_locale: false,
        stdout_is_tty: false,
        log_as_sender: true,
        keeps_owner: true,
        keeps_group: true,
        sum: Checksum::Xxh128,
    };

    struct Run {
        reporter: TextReporter,
        out: Shared,
        err: Shared,
        log: Shared,
        now_ms: Arc<AtomicI64>,
    }

    impl Run {
        fn new(output: &Output, facts: RunFacts) -> Run {
            let (out, err, log) = (Shared::default(), Shared::default(), Shared::default());
            let now_ms = Arc::new(AtomicI64::new(NOW * 1000));
            let clock_ms = Arc::clone(&now_ms);
            let clock = move || {
                let ms = clock_ms.load(Ordering::Relaxed);
                (ms.div_euclid(1000), ms.rem_euclid(1000) as u32 * 1_000_000)
            };
            let log_writer = output.log_file.is_some().then(|| Box::new(log.clone()) as Box<dyn Write + Send>);
            let mut reporter = TextReporter::new(
                output,
                facts,
                Box::new(out.clone()),
                Box::new(err.clone()),
                log_writer,
                Arc::new(clock),
            );
            reporter.times = LocalTimes::new(TimeZone::UTC);
            if let Some(log) = &mut reporter.log {
                log.times = LocalTimes::new(TimeZone::UTC);
            }
            Run { reporter, out, err, log, now_ms }
        }

        fn tell(&mut self, event: Event) {
            self.reporter.tell(&event);
        }

        fn items(&mut self, items: &[Item]) {
            for item in items {
                self.tell(Event::Item(Box::new(item.clone())));
            }
            self.reporter.flush();
        }

        /// The log without its times.
        fn log_lines(&self) -> String {
            let text = self.log.text();
            text.lines().map(|line| line.split_once("] ").map_or(line, |(_, rest)| rest).to_owned() + "\n").collect()
        }
    }

    fn entry(name: &str, kind: Kind, update: Update, changes: Changes) -> Item {
        let transfer = update == Update::Received;
        Item { kind, update, changes, transfer, ..item(name) }
    }

    /// Some of each sort, as in the trees that the oracle was asked about.
    fn tree() -> Vec<Item> {
        use Update::*;
        let new = Changes::NEW;
        vec![
            entry(".", Kind::Dir, Attrs, Changes::TIME),
            entry("c_attr", Kind::Device, Attrs, Changes::PERMS),
            entry("c_data", Kind::Device, Local, Changes::CHECKSUM | Changes::TIME),
            entry("c_same", Kind::Device, Attrs, Changes::NONE),
            entry("f_attr", Kind::File, Attrs, Changes::PERMS),
            entry("f_data", Kind::File, Received, Changes::SIZE),
            entry("f_same", Kind::File, Attrs, Changes::NONE),
            entry("h2_attr", Kind::File, HardLink, Changes::NONE),
            Item { changes: Changes::TIME, update: Attrs, ..link("l_attr") },
            link("l_new"),
            entry("d_attr", Kind::Dir, Attrs, Changes::PERMS),
            entry("d_new", Kind::Dir, Local, new),
            entry("d_same", Kind::Dir, Attrs, Changes::NONE),
            Item { linked_to: Some(b"h2_new".into()), ..entry("h1_new", Kind::File, HardLink, new) },
        ]
    }

    fn output(verbose: u8, itemize: u8, format: Option<&str>) -> Output {
        Output {
            verbose,
            itemize,
            human: 1,
            out_format: format.map(|f| f.into()),
            info: Info { name: verbose, flist: verbose.min(1), del: verbose, stats: verbose.min(1), ..Info::default() },
            ..Output::default()
        }
    }

    fn shown(output: &Output) -> String {
        let mut run = Run::new(output, FACTS);
        run.items(&tree());
        run.out.text()
    }

    #[test]
    fn names_under_v() {
        let want = "./\nc_data\nf_data\nl_new -> tgt\nd_attr/\nd_new/\nh1_new => h2_new\n";
        assert_eq!(shown(&output(1, 0, None)), want);
        assert_eq!(shown(&output(1, 0, Some("%n%L"))), want);
        assert_eq!(shown(&output(0, 0, Some("%n%L"))), want);
        assert_eq!(shown(&output(0, 2, Some("%n%L"))), want);
        assert_eq!(shown(&output(0, 0, Some(""))), "\n".repeat(7));
        assert_eq!(shown(&output(0, 0, None)), "");
        assert_eq!(shown(&Output { quiet: true, ..output(2, 2, Some("%i %n")) }), "");
    }

    #[test]
    fn names_under_vv() {
        let want = "./\nc_attr\nc_data\nc_same is uptodate\nf_attr\nf_data\nf_same is uptodate\n\
                    h2_attr is uptodate\nl_attr\nl_new -> tgt\nd_attr/\nd_new/\nh1_new => h2_new\n";
        assert_eq!(shown(&output(2, 0, None)), want);
        assert_eq!(shown(&output(2, 0, Some("%n%L"))), want);
    }

    #[test]
    fn itemized_lines() {
        let want = "\
.d..t...... ./
.D...p..... c_attr
cDc.t...... c_data
.D          c_same
.f...p..... f_attr
>f.s....... f_data
.f          f_same
hf          h2_attr
.L..t...... l_attr -> tgt
cL+++++++++ l_new -> tgt
.d...p..... d_attr/
cd+++++++++ d_new/
.d          d_same/
hf+++++++++ h1_new => h2_new
";
        assert_eq!(shown(&output(0, 2, Some("%i %n%L"))), want);
        assert_eq!(shown(&output(2, 1, Some("%i %n%L"))), want);
        let changed: String =
            want.lines().filter(|line| !line.contains("         ")).map(|l| l.to_owned() + "\n").collect();
        assert_eq!(shown(&output(0, 1, Some("%i %n%L"))), changed);
        assert_eq!(shown(&output(1, 1, Some("%i %n%L"))), changed);
    }

    fn deletions(output: &Output) -> String {
        let mut run = Run::new(output, FACTS);
        for (name, kind) in [(&b"xd/in"[..], Kind::File), (b"xd", Kind::Dir)] {
            run.tell(Event::Deleted { name: name.into(), kind, mode: 0 });
        }
        run.reporter.flush();
        run.out.text()
    }

    #[test]
    fn deletions_are_told_in_three_ways() {
        let plain = "deleting xd/in\ndeleting xd/\n";
        assert_eq!(deletions(&output(1, 0, None)), plain);
        assert_eq!(deletions(&output(0, 0, Some("%n %b"))), plain);
        assert_eq!(deletions(&output(0, 0, Some(""))), plain);
        assert_eq!(deletions(&output(0, 1, Some("%i %n%L"))), "*deleting   xd/in\n*deleting   xd/\n");
        assert_eq!(deletions(&output(0, 0, Some("%o %b %n"))), "del. 0 xd/in\ndel. 0 xd/\n");
        assert_eq!(deletions(&output(0, 0, None)), "");
        let only_del = Output { info: Info { del: 1, ..Info::default() }, ..Output::default() };
        assert_eq!(deletions(&only_del), plain);
        let only_name = Output { info: Info { name: 1, ..Info::default() }, ..Output::default() };
        assert_eq!(deletions(&only_name), plain);
        assert_eq!(deletions(&Output { quiet: true, ..only_del }), "");
    }

    fn with_log(output: Output, format: &str) -> Output {
        Output { log_file: Some(LogFile { path: b"LOG".into(), format: format.into() }), ..output }
    }

    fn logged(output: &Output, facts: RunFacts) -> String {
        let mut run = Run::new(output, facts);
        run.reporter.banner();
        run.tell(Event::Deleted { name: b"old".into(), kind: Kind::Dir, mode: 0 });
        run.items(&tree());
        run.log_lines()
    }

    #[test]
    fn the_log_follows_what_stdout_asks_for() {
        let significant = "\
building file list
*deleting   old/
.d..t...... ./
cDc.t...... c_data
>f.s....... f_data
cL+++++++++ l_new -> tgt
.d...p..... d_attr/
cd+++++++++ d_new/
hf+++++++++ h1_new => h2_new
";
        let format = "%i %n%L";
        assert_eq!(logged(&with_log(output(0, 0, None), format), FACTS), significant);
        assert_eq!(logged(&with_log(output(1, 0, None), format), FACTS), significant);
        assert_eq!(logged(&with_log(Output { quiet: true, ..output(2, 0, None) }, format), FACTS), significant);
        let dry = significant.replace("*deleting   old/\n", "").replace(">f.s....... f_data\n", "");
        assert_eq!(logged(&with_log(output(0, 0, None), format), RunFacts { dry_run: true, ..FACTS }), dry);

        let all = logged(&with_log(output(0, 2, Some(format)), format), FACTS);
        assert!(all.contains(".f...p..... f_attr\n") && all.contains(".f          f_same\n"), "{all}");
        let names = logged(&with_log(output(0, 2, Some(format)), "%n"), FACTS);
        assert!(names.contains("\nf_attr\n") && !names.contains("f_same") && !names.contains("h2_attr"), "{names}");
        assert!(names.contains("\ndeleting old/\n"), "{names}");
        let text = logged(&with_log(output(2, 0, None), format), FACTS);
        assert!(text.contains("\nf_attr\n") && text.contains("\nf_same is uptodate\n"), "{text}");
        let empty = logged(&with_log(output(0, 0, None), ""), FACTS);
        assert_eq!(empty, "building file list\ndeleting old/\n");
    }

    #[test]
    fn log_lines_have_time_and_process() {
        let mut run = Run::new(&with_log(output(0, 0, None), "%n"), FACTS);
        run.tell(Event::Item(Box::new(item("nl\n"))));
        run.reporter.flush();
        assert_eq!(run.log.text(), "2026/11/21 00:46:53 [23811] nl\\#012\n");
    }

    fn tally() -> Tally {
        let mut tally = Tally { list_generation_ms: 1, name_bytes: 10, ..Tally::default() };
        for (kind, len) in [(Kind::File, 123_456_789), (Kind::File, 1), (Kind::Symlink, 6), (Kind::Dir, 4096)] {
            tally.list(kind, len, 0);
            tally.created.add(kind);
        }
        tally.transfer(123_456_789, 123_456_789);
        tally.transfer(1, 1);
        tally
    }

    fn summarized(output: Output, tally: &Tally, facts: RunFacts) -> String {
        let mut run = Run::new(&output, facts);
        run.reporter.summary(tally, Duration::from_millis(3999));
        run.out.text()
    }

    #[test]
    fn statistics_are_laid_out_as_the_oracles() {
        let stats = |human| Output { human, info: Info { stats: 2, ..Info::default() }, ..Output::default() };
        let plain = "
Number of files: 4 (reg: 2, dir: 1, link: 1)
Number of created files: 4 (reg: 2, dir: 1, link: 1)
Number of deleted files: 0
Number of regular files transferred: 2
Total file size: 123456796 bytes
Total transferred file size: 123456790 bytes
Literal data: 123456790 bytes
Matched data: 0 bytes
File list size: 0
File list generation time: 0.001 seconds
File list transfer time: 0.000 seconds
Total bytes sent: 123456939
Total bytes received: 70

sent 123456939 bytes  received 70 bytes  35273431.14 bytes/sec
total size is 123456796  speedup is 1.00
";
        assert_eq!(summarized(stats(0), &tally(), FACTS), plain);
        let grouped = summarized(stats(1), &tally(), FACTS);
        assert!(grouped.contains("\nTotal file size: 123,456,796 bytes\n"));
        assert!(grouped.ends_with("\n\nsent 123,456,939 bytes  received 70 bytes  35,273,431.14 bytes/sec\ntotal size is 123,456,796  speedup is 1.00\n"));
        let units = summarized(stats(2), &tally(), FACTS);
        assert!(
            units.contains("\nTotal file size: 123.46M bytes\n") && units.contains("\nTotal bytes sent: 123.46M\n")
        );
        assert!(units.contains("sent 123.46M bytes  received 70 bytes  35.27M bytes/sec\ntotal size is 123.46M  "));
        let short = summarized(Output { info: Info { stats: 1, ..Info::default() }, ..stats(1) }, &tally(), FACTS);
        assert!(short.starts_with("\nsent 123,456,939 bytes  "));
        assert_eq!(summarized(Output { info: Info::default(), ..stats(1) }, &tally(), FACTS), "");
        assert_eq!(summarized(Output { quiet: true, ..stats(1) }, &tally(), FACTS), "");

        let mut many = Tally::default();
        for _ in 0..1001 {
            many.list(Kind::File, 0, 0);
        }
        let text = summarized(stats(2), &many, RunFacts { dry_run: true, ..FACTS });
        assert!(text.starts_with("\nNumber of files: 1,001 (reg: 1,001)\nNumber of created files: 0\n"), "{text}");
        assert!(!text.contains("File list generation") && text.ends_with("speedup is 0.00 (DRY RUN)\n"), "{text}");
    }

    #[test]
    fn speedup_has_no_units() {
        let mut one = Tally::default();
        one.list(Kind::File, 12_345_678, 100);
        let speedup = |human| {
            let output = Output { human, info: Info { stats: 1, ..Info::default() }, ..Output::default() };
            let text = summarized(output, &one, FACTS);
            text.rsplit_once(' ').map(|(_, last)| last.trim().to_owned()).expect("a line")
        };
        assert_eq!(
            (speedup(0).as_str(), speedup(1).as_str(), speedup(2).as_str()),
            ("81759.46", "81,759.46", "81,759.46")
        );
    }

    #[test]
    fn the_logs_last_lines() {
        let quiet = with_log(output(0, 0, None), "%n");
        let mut run = Run::new(&quiet, FACTS);
        run.reporter.summary(&Tally::default(), Duration::ZERO);
        run.reporter.final_error(Exit::Partial, "sender");
        let error = "rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1394) [sender=3.5.0]\n";
        let totals = "sent 19 bytes  received 12 bytes  total size 0\n";
        assert_eq!(run.log_lines(), format!("{totals}{error}"));
        assert_eq!(run.err.text(), error);

        // With a summary on stdout the log has that one, and after trouble the short one too.
        let mut run = Run::new(&with_log(output(1, 0, None), "%n"), FACTS);
        run.reporter.summary(&Tally::default(), Duration::ZERO);
        assert_eq!(
            run.out.text(),
            "\nsent 19 bytes  received 12 bytes  62.00 bytes/sec\ntotal size is 0  speedup is 0.00\n"
        );
        run.reporter.final_error(Exit::Partial, "sender");
        let summary = "sent 19 bytes  received 12 bytes  62.00 bytes/sec\ntotal size is 0  speedup is 0.00\n";
        assert_eq!(run.log_lines(), format!("{summary}{totals}{error}"));

        // A usage error comes before anything was counted.
        let mut run = Run::new(&quiet, FACTS);
        run.reporter.error(b"rsync: --bogus: unknown option");
        run.reporter.final_error(Exit::Usage, "client");
        assert_eq!(
            run.log_lines(),
            "rsync: --bogus: unknown option\nrsync error: syntax or usage error (code 1) at main.c(1886) [client=3.5.0]\n"
        );
    }

    #[test]
    fn banners() {
        let said = |output: &Output, banner| {
            let mut run = Run::new(output, RunFacts { banner, ..FACTS });
            run.reporter.banner();
            run.reporter.set_list_total(1, 0, false);
            run.reporter.set_list_total(253, 0, true);
            run.reporter.flush();
            run.out.text()
        };
        let v = output(1, 0, None);
        assert_eq!(said(&v, Banner::Incremental), "sending incremental file list\n");
        assert_eq!(said(&v, Banner::Whole), "building file list ... done\n");
        assert_eq!(said(&v, Banner::None), "");
        assert_eq!(said(&output(0, 1, Some("%i")), Banner::Incremental), "");
        assert_eq!(said(&Output { quiet: true, ..v.clone() }, Banner::Whole), "");
        let flist2 = Output { info: Info { flist: 2, ..v.info }, ..v };
        assert_eq!(said(&flist2, Banner::Incremental), "sending incremental file list\n");
        assert_eq!(
            said(&flist2, Banner::Whole),
            "building file list ... \n 0 files...\r 100 files...\r 200 files...\r253 files to consider\n"
        );
    }

    #[test]
    fn vv_ends_with_the_matches() {
        let output = Output { debug: Debug { deltasum: 1, ..Debug::default() }, ..Output::default() };
        let text = summarized(output, &tally(), FACTS);
        assert_eq!(text, "total: matches=0  hash_hits=0  false_alarms=0 data=123456790\n");
    }

    #[test]
    fn trouble_goes_to_stderr_after_what_was_said() {
        let mut run = Run::new(&with_log(output(1, 0, None), "%n"), FACTS);
        run.tell(Event::Item(Box::new(item("a"))));
        assert_eq!(run.out.text(), "");
        let line = "rsync: [sender] link_stat \"/s/nonex\u{1}\\\" failed: No such file or directory (2)";
        run.tell(Event::Problem(Problem::said(line, Weight::Failed)));
        assert_eq!(run.out.text(), "a\n");
        let want = "rsync: [sender] link_stat \"/s/nonex\\#001\\\" failed: No such file or directory (2)\n";
        assert_eq!(run.err.text(), want);
        run.tell(Event::Note(b"created directory d".into()));
        run.reporter.flush();
        assert_eq!(run.out.text(), "created directory d\n");
        assert_eq!(run.log_lines(), format!("a\n{want}created directory d\n"));
    }

    #[test]
    fn stderr_all_leaves_stdout_alone() {
        let mut run = Run::new(&Output { stderr: StderrMode::All, ..output(1, 0, None) }, FACTS);
        run.reporter.banner();
        run.items(&[item("a")]);
        run.tell(Event::Problem(Problem::said("file has vanished: \"b\"", Weight::Vanished)));
        assert_eq!(run.out.text(), "");
        assert_eq!(run.err.text(), "sending incremental file list\na\nfile has vanished: \"b\"\n");
    }

    #[test]
    fn lines_are_buffered_as_outbuf_says() {
        let told = |outbuf, stdout_is_tty| {
            let output = Output { outbuf, ..output(1, 0, None) };
            let mut run = Run::new(&output, RunFacts { stdout_is_tty, ..FACTS });
            run.tell(Event::Item(Box::new(item("a"))));
            run.out.text()
        };
        assert_eq!(told(None, false), "");
        assert_eq!(told(None, true), "a\n");
        assert_eq!(told(Some(Outbuf::Line), false), "a\n");
        assert_eq!(told(Some(Outbuf::None), false), "a\n");
        assert_eq!(told(Some(Outbuf::Block), true), "");
    }

    #[test]
    fn progress_of_files() {
        let output = Output { info: Info { name: 1, progress: 1, ..Info::default() }, ..output(0, 0, None) };
        let mut run = Run::new(&output, FACTS);
        run.reporter.set_list_total(9, 123, true);
        run.tell(Event::Checked(5));
        run.items(&[item("f_data")]);
        run.tell(Event::Progress { done_bytes: 6, len_bytes: 6 });
        run.tell(Event::Checked(1));
        run.items(&[link("l")]);
        run.tell(Event::Progress { done_bytes: 32768, len_bytes: 3_000_000 });
        run.now_ms.fetch_add(1023, Ordering::Relaxed);
        run.tell(Event::Progress { done_bytes: 1_081_344, len_bytes: 3_000_000 });
        run.tell(Event::Problem(Problem::said("x", Weight::Failed)));
        assert_eq!(
            run.out.text().replace('\r', "~"),
            "f_data\n\
             ~              6 100%    0.00kB/s    0:00:00  ~              6 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=4/9)\n\
             l -> tgt\n\
             ~         32,768   1%    0.00kB/s    0:00:00  ~      1,081,344  36%    1.01MB/s    0:00:01  \n"
        );
    }

    #[test]
    fn progress_before_a_line_that_comes_after() {
        let progress = Info { name: 1, progress: 1, ..Info::default() };
        let output = Output { info: progress, ..output(0, 0, Some("%n %b")) };
        let mut run = Run::new(&output, FACTS);
        let wants = run.reporter.wants();
        assert!(wants.begin && wants.after_transfer && wants.progress);
        run.reporter.set_list_total(2, 2, true);
        run.tell(Event::Checked(1));
        run.tell(Event::Begin(b"z1".into()));
        run.tell(Event::Progress { done_bytes: 0, len_bytes: 0 });
        run.items(&[Item { moved_bytes: 45, ..item("z1") }]);
        assert_eq!(run.out.text(), "z1\n\r              0 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=1/2)\nz1 45\n");
    }

    #[test]
    fn progress_of_the_run() {
        let info = |name| Info { name, progress: 2, stats: 1, ..Info::default() };
        let quietly = Output { info: info(0), ..output(0, 0, None) };
        let mut run = Run::new(&quietly, FACTS);
        run.reporter.set_list_total(2, 1, true);
        run.tell(Event::Checked(2));
        run.items(&[entry(".", Kind::Dir, Update::Local, Changes::NEW), item("b")]);
        run.tell(Event::Progress { done_bytes: 1, len_bytes: 1 });
        run.reporter.summary(&Tally::default(), Duration::ZERO);
        let last = "\r              1 100%    0.00kB/s    0:00:00 (xfr#1, to-chk=0/2)";
        assert_eq!(
            run.out.text(),
            format!(
                "\r              1 100%    0.00kB/s    0:00:00  {last}{last}\n\nsent 19 bytes  received 12 bytes  62.00 bytes/sec\ntotal size is 0  speedup is 0.00\n"
            )
        );

        let mut run = Run::new(&Output { info: info(1), ..quietly }, FACTS);
        run.items(&[item("a")]);
        run.tell(Event::Progress { done_bytes: 0, len_bytes: 0 });
        run.items(&[item("b")]);
        assert!(run.out.text().ends_with("(xfr#1, ir-chk=0/0)\nb\n"));
    }

    #[test]
    fn lists_ignore_formats() {
        let facts = RunFacts { list_only: true, ..FACTS };
        let output = Output { human: 1, ..with_log(output(0, 1, Some("%i %n")), "%n") };
        let mut run = Run::new(&output, facts.clone());
        assert!(run.reporter.wants().unchanged);
        let mtime = Time { secs: NOW, nanos: 0 };
        run.items(&[Item { mtime, ..item("b\u{1}") }]);
        let want = "-rw-r--r--      1,234,567 2026/11/21 00:46:53 b\\#001\n";
        assert_eq!((run.out.text().as_str(), run.log_lines().as_str()), (want, want));
        let mut run = Run::new(&Output { quiet: true, ..output }, facts);
        run.items(&[item("b")]);
        assert_eq!((run.out.text().as_str(), run.log.text().as_str()), ("", ""));
    }

    #[test]
    fn nobody_asks_for_what_nobody_sees() {
        let wants = |output: &Output| Run::new(output, FACTS).reporter.wants();
        assert_eq!(wants(&output(0, 0, None)), Wants::default());
        assert_eq!(wants(&Output { quiet: true, ..output(2, 2, Some("%i %C")) }), Wants::default());
        let v = wants(&output(1, 0, None));
        assert!(v.items && !v.unchanged && !v.progress);
        assert!(wants(&output(2, 0, None)).unchanged && wants(&output(0, 2, Some("%i"))).unchanged);
        assert!(!wants(&output(0, 2, Some("%n"))).unchanged);
        let format = wants(&output(0, 0, Some("%n %C")));
        assert!(format.after_transfer && format.digest && !format.begin);
        let log = wants(&with_log(output(0, 0, None), "%b"));
        assert!(log.items && log.after_transfer && !log.unchanged);
    }

    #[test]
    fn a_broken_pipe_is_noted_and_nothing_more() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut run = Run::new(&output(1, 0, None), FACTS);
        run.reporter.stdout = Sink::new(Box::new(Broken), Outbuf::Line);
        run.items(&[item("a"), item("b")]);
        assert!(run.reporter.lines_are_lost());
    }

    proptest! {
        #[test]
        fn no_name_breaks_a_line(names: Vec<Vec<u8>>, utf8_locale: bool, eight_bit: bool) {
            let output = Output { eight_bit, ..output(1, 0, None) };
            let mut run = Run::new(&output, RunFacts { utf8_locale, ..FACTS });
            let items: Vec<Item> = names.iter().map(|name| Item { name: name.clone(), ..item("") }).collect();
            run.items(&items);
            let bytes = run.out.0.lock().expect("not poisoned").clone();
            prop_assert_eq!(bytes.iter().filter(|&&b| b == b'\n').count(), names.len());
        }
    }
}
