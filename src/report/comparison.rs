//! What `sparsync check` found: what the items of a dry run mean, the counts of the findings, and the exit code.

use super::event::Item;
use super::line_filter::{Choice, LineKind};
use super::number::put_count;
use crate::exit::Exit;
use crate::options::findings::{ComparisonKind, Finding};
use crate::plan::changes::Changes;

/// The trees, or the manifest and the tree, differ.
pub const DIFFERENT: Exit = Exit::Other(1);
/// A wrong command line. rsync's code for that means here that there are differences.
pub const WRONG_USAGE: Exit = Exit::Other(2);

/// Returns what an item of a dry run means. An item that `-i` would not show is equal.
pub fn finding_of(item: &Item) -> Finding {
    let itemized = Choice {
        name: 0,
        itemizes: true,
        unchanged: false,
    };
    if item.changes.has(Changes::NEW) {
        Finding::SourceOnly
    } else if itemized.line(item) == LineKind::Nothing {
        Finding::Equal
    } else {
        Finding::Differs
    }
}

/// The counts of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Entries that are the same on both sides.
    pub equal: u64,
    /// Entries of which content or attributes differ.
    pub differ: u64,
    /// Entries of the source, or the manifest, that the other side lacks.
    pub source_only: u64,
    /// Entries of the destination, or the tree, that the other side lacks.
    pub dest_only: u64,
    /// Entries that could not be read, so that nothing is known about them or about what they contain.
    pub unreadable: u64,
}

impl CheckCounts {
    /// Counts a finding.
    pub fn add(&mut self, finding: Finding) {
        match finding {
            Finding::Equal => self.equal += 1,
            Finding::Differs => self.differ += 1,
            Finding::SourceOnly => self.source_only += 1,
            Finding::DestOnly => self.dest_only += 1,
        }
    }

    /// Returns the exit code that follows from the counts.
    pub fn exit(&self) -> Exit {
        let CheckCounts {
            equal: _,
            differ,
            source_only,
            dest_only,
            unreadable,
        } = *self;
        if unreadable > 0 {
            Exit::Partial
        } else if differ + source_only + dest_only > 0 {
            DIFFERENT
        } else {
            Exit::Ok
        }
    }

    /// Returns the last line.
    pub fn summary(&self, compared: ComparisonKind) -> String {
        let [source_only, dest_only] = match compared {
            ComparisonKind::Trees => ["only at the source", "only at the destination"],
            ComparisonKind::Manifest => ["missing", "new"],
        };
        let parts = [
            (self.equal, "equal"),
            (
                self.differ,
                if self.differ == 1 {
                    "differs"
                } else {
                    "differ"
                },
            ),
            (self.source_only, source_only),
            (self.dest_only, dest_only),
            (self.unreadable, "unreadable"),
        ];
        parts
            .map(|(count, words)| {
                let mut digits = Vec::new();
                put_count(&mut digits, count, 1);
                format!("{} {words}", String::from_utf8_lossy(&digits))
            })
            .join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_and_exit_code_follow_from_the_counts() {
        let counts = CheckCounts {
            equal: 45_601,
            differ: 1,
            source_only: 2,
            dest_only: 3,
            unreadable: 0,
        };
        assert_eq!(
            counts.summary(ComparisonKind::Trees),
            "45,601 equal, 1 differs, 2 only at the source, 3 only at the destination, 0 unreadable"
        );
        assert_eq!(
            CheckCounts {
                differ: 2,
                ..counts
            }
            .summary(ComparisonKind::Manifest),
            "45,601 equal, 2 differ, 2 missing, 3 new, 0 unreadable"
        );
        assert_eq!(counts.exit(), DIFFERENT);
        assert_eq!(
            CheckCounts {
                unreadable: 1,
                ..counts
            }
            .exit(),
            Exit::Partial
        );
        let equal = CheckCounts {
            equal: 3,
            ..CheckCounts::default()
        };
        assert_eq!(equal.exit(), Exit::Ok);
    }
}
