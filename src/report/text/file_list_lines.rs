//! The lines about the file list: that it is built, and under `--info=flist2` how many entries it has.

use super::{Banner, TextReporter};
use crate::report::progress::ListTotal;
use std::io::Write as _;

impl TextReporter {
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
    pub(super) fn counts_list(&self) -> bool {
        !self.output.quiet && self.facts.banner == Banner::Whole && self.output.info.flist >= 2
    }

    /// Sets the length of the list: entries, and the bytes of the files and symlinks among them. `complete` is false
    /// while it grows. Needed for progress, and for `N files to consider`.
    pub(super) fn set_list_total(&mut self, entries: u64, bytes: u64, complete: bool) {
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
}
