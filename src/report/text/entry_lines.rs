//! The lines about entries: changed, unchanged, deleted and missing ones, on stdout and in the log.

use super::{Banner, TextReporter};
use crate::flist::Kind;
use crate::plan::Changes;
use crate::report::event::{Item, ReusedBy};
use crate::report::format::{Format, Shown, put_link, put_name};
use crate::report::line_filter::LineKind;
use crate::report::list::{self, ListStyle};
use crate::report::times::LocalTimes;

impl TextReporter {
    pub(super) fn item(&mut self, item: &Item) {
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

    pub(super) fn deleted(&mut self, name: &[u8], kind: Kind) {
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

    pub(super) fn missing(&mut self, name: &[u8]) {
        let mut line = Vec::new();
        list::put_missing(&mut line, name, self.list_style());
        self.print_line(&line);
    }

    pub(super) fn reuse(&mut self, from: &[u8], name: &[u8], how: ReusedBy) {
        if self.output.info.rename >= 1 && !self.output.json {
            self.print_line(&[how.word().as_bytes(), b" ", from, b" => ", name].concat());
        }
    }

    pub(super) fn begin(&mut self, name: &[u8]) {
        if self.wants().begin && self.choice.name >= 1 && !self.facts.dry_run {
            self.screen
                .print(&[self.constants.slash_before(name), name].concat());
        }
    }
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
