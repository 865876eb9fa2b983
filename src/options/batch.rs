//! Batch files, which record what a receiver gets.

/// The batch file of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch {
    /// `--write-batch`, `--only-write-batch`
    Write {
        /// The file. A script that reads it gets the same name with `.sh`.
        path: Vec<u8>,
        /// The destination is not changed.
        only: bool,
    },
    /// `--read-batch`: this file is the source; `-` is standard input.
    Read(Vec<u8>),
}

impl Batch {
    /// Returns whether the destination stays as it is.
    pub fn is_only_written(batch: Option<&Batch>) -> bool {
        matches!(batch, Some(Batch::Write { only: true, .. }))
    }
}
