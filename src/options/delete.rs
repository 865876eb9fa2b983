//! Which extra entries of the destination may be deleted, and when.

/// When extra entries are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// `--delete-before`: everything first.
    Before,
    /// `--delete`, `--delete-during`: each directory before its entries are updated.
    During,
    /// `--delete-delay`: found during the transfer, deleted at the end.
    Delay,
    /// `--delete-after`: found and deleted at the end.
    After,
}

/// Under our own name, a run whose source is empty deletes at most this many entries, unless an option permits more.
pub const SMALL_DEST_ENTRIES: u64 = 20;

/// Which extra entries may be deleted, and when.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delete {
    /// `None`: extra entries stay.
    pub when: Option<When>,
    /// The user did not choose the time. Before protocol 30, rsync deletes everything first then.
    pub is_default_time: bool,
    /// `--delete-excluded`
    pub excluded: bool,
    /// `--max-delete`: the maximum number of deletions; if there are more extra entries, the exit code is 25.
    pub max: Option<u64>,
    /// A source without entries does not empty a destination with more than [`SMALL_DEST_ENTRIES`]. Only a client that
    /// receives has this: where the client sends, it examines its source before the run.
    pub refuses_empty_source: bool,
    /// `--force`: a non-empty directory may be replaced by an entry of another kind.
    pub force: bool,
    /// `--ignore-errors`: I/O errors of the sender do not stop deletions.
    pub ignore_errors: bool,
}
