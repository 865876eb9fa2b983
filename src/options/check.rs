//! When two entries count as the same, and which destination entries may be updated at all.

/// How regular files are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckMode {
    /// `-I`: no two files count as the same.
    IgnoreTimes,
    /// `--size-only`
    SizeOnly,
    /// `-c`: same length and same digest.
    Digest,
    /// Same length, and times no further apart than the window. A negative `window_secs` also compares nanoseconds; 0
    /// compares whole seconds.
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

/// A checksum algorithm that rsync knows by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// `xxh128`, rsync's default.
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

/// `--checksum-choice`. Determines what `%C` shows; sparsync compares contents with its own digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checksums {
    /// The checksum of transferred data.
    pub transfer: Checksum,
    /// The checksum in the file list, which `--checksum` compares.
    pub listed: Checksum,
}

/// `--checksum-cache`: digests of contents are kept from run to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheChoice {
    /// The directory of the digests. `None` until the command that runs knows the usual one, and if there is none.
    pub dir: Option<Vec<u8>>,
    /// `--checksum-cache-force`: trust the change times of any file system.
    pub force: bool,
}

/// When two entries count as the same, and which ones are left alone even if they differ.
#[derive(Debug, Clone, Copy, Default)]
pub struct Check {
    /// How regular files are compared.
    pub mode: CheckMode,
    /// `--checksum-choice`
    pub sums: Checksums,
    /// `--modify-window`, also for times compared as attributes; see [`CheckMode::Quick`].
    pub window_secs: i64,
    /// `-u`
    pub update: bool,
    /// `--existing`
    pub existing_only: bool,
    /// `--ignore-existing`
    pub ignore_existing: bool,
    /// `--report-unread`: under `-c`, a file that cannot be read to compare it is a problem. Otherwise it differs.
    pub reports_unread: bool,
}

impl Check {
    /// Returns the checksum that `%C` shows: under `-c` the one in the file list.
    pub fn shown_sum(&self) -> Checksum {
        if self.mode == CheckMode::Digest {
            self.sums.listed
        } else {
            self.sums.transfer
        }
    }
}
