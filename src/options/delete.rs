//! What extra entries of the destination may go, and when.

/// When extra entries are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// `--delete-before`: everything first.
    Before,
    /// `--delete`, `--delete-during`: each directory before its entries are updated.
    During,
    /// `--delete-delay`: found during, removed at the end.
    Delay,
    /// `--delete-after`: found and removed at the end.
    After,
}

/// What extra entries may go, and when.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delete {
    /// `None`: extra entries stay.
    pub when: Option<When>,
    /// `--delete-excluded`
    pub excluded: bool,
    /// `--max-delete`: at most so many; then exit 25.
    pub max: Option<u64>,
    /// `--force`: a directory with content may make way for something else.
    pub force: bool,
    /// `--ignore-errors`: I/O errors at the sender do not stop deletion.
    pub ignore_errors: bool,
}
