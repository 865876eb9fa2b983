//! What must hold before a run may change anything. Only the client checks this, so a server never learns of it.

/// How many entries a run may delete; see `--delete-guard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeleteGuard {
    /// `--no-delete-guard`, and every run under the name `rsync`: no bound.
    #[default]
    Off,
    /// The default under our own name: an empty source does not empty a destination with more than a few entries.
    EmptySource,
    /// `--delete-guard=N`: at most this many entries.
    Entries(u64),
    /// `--delete-guard=N%`: at most this part of the entries in the compared directories of the destination; 0 to 100.
    Percent(u8),
}

/// What a run does if another one holds its lock; see `--lock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// It ends at once.
    Refuse,
    /// It waits for the other one to end.
    Wait,
}

/// What must hold before a run may change anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    /// How many entries the run may delete.
    pub delete: DeleteGuard,
    /// `--require-mount`: local directories on which a file system must be mounted.
    pub mounts: Vec<Vec<u8>>,
    /// `--fail-if-empty`: the source must have entries.
    pub fail_if_empty: bool,
    /// `--lock`: only one run at a time copies to this destination.
    pub lock: Option<Lock>,
}
