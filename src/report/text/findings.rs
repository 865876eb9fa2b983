//! The findings of `sparsync check`: which lines are printed, and the exit code.

use super::TextReporter;
use crate::exit::Exit;
use crate::options::findings::{ComparisonKind, Finding};
use crate::report::comparison::finding_of;
use crate::report::event::{DELETION_IS_SKIPPED, Event, Weight};
use crate::report::json;

/// Says that a comparison does not look for entries that only the destination has, because the source could not be read.
const INCOMPLETE_COMPARISON: &[u8] =
    b"sparsync check: part of the source could not be read: not all that is only at the destination is found";

impl TextReporter {
    /// Counts an event of a comparison, and prints it if its finding is to be printed. Returns whether it is a finding.
    pub(super) fn compare(&mut self, event: &Event) -> bool {
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
}
