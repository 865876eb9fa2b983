//! When two entries count as the same, and which receivers' copies may be touched at all.

/// How equality of regular files is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckMode {
    /// `-I`: nothing is the same.
    IgnoreTimes,
    /// `--size-only`
    SizeOnly,
    /// `-c`: same length and same digest.
    Digest,
    /// Same length, and times no further apart than the window. `window_secs` below 0 compares
    /// nanoseconds too; 0 compares whole seconds.
    Quick {
        /// `--modify-window`
        window_secs: i64,
    },
}

impl Default for CheckMode {
    fn default() -> Self {
        CheckMode::Quick { window_secs: 0 }
    }
}

/// When two entries count as the same, and what is left alone although it differs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Check {
    /// How regular files are compared.
    pub mode: CheckMode,
    /// `--modify-window`, also for the comparison of times as attributes; see [`CheckMode::Quick`].
    pub window_secs: i64,
    /// `-u`
    pub update: bool,
    /// `--existing`
    pub existing_only: bool,
    /// `--ignore-existing`
    pub ignore_existing: bool,
}
