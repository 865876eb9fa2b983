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

/// A digest of contents that rsync knows by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// `xxh128`; what rsync chooses for itself.
    #[default]
    Xxh128,
    /// `xxh3`
    Xxh3,
    /// `xxh64`, `xxhash`
    Xxh64,
    /// `md5`
    Md5,
    /// `md4`
    Md4,
    /// `sha1`
    Sha1,
    /// `none`
    None,
}

/// `--checksum-choice`. It decides what `%C` shows; whether contents are the same is found out with a digest of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checksums {
    /// Of what is transferred.
    pub transfer: Checksum,
    /// Of what is listed: `--checksum` compares these.
    pub listed: Checksum,
}

/// When two entries count as the same, and what is left alone although it differs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Check {
    /// How regular files are compared.
    pub mode: CheckMode,
    /// `--checksum-choice`
    pub sums: Checksums,
    /// `--modify-window`, also for the comparison of times as attributes; see [`CheckMode::Quick`].
    pub window_secs: i64,
    /// `-u`
    pub update: bool,
    /// `--existing`
    pub existing_only: bool,
    /// `--ignore-existing`
    pub ignore_existing: bool,
}

impl Check {
    /// The digest that `%C` shows: under `-c` that of the list.
    pub fn shown_sum(&self) -> Checksum {
        if self.mode == CheckMode::Digest { self.sums.listed } else { self.sums.transfer }
    }
}
