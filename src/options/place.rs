//! How file data is written to the destination.

/// The two variants of `--append`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Append {
    /// `--append`: the existing data is trusted.
    Trust,
    /// `--append-verify`: the existing data is verified.
    Verify,
}

/// `--backup`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// `--backup-dir`, relative to the destination or absolute; `None`: beside the file.
    pub dir: Option<Vec<u8>>,
    /// `--suffix`; `~` if there is no directory.
    pub suffix: Vec<u8>,
}

/// `--verify`: what is read again from the medium before a file counts as transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// What was written.
    Written,
    /// What was written, and the source.
    WrittenAndSource,
}

/// How file data is written to the destination.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// `--inplace` (also implied by `--append`).
    pub inplace: bool,
    /// `--append`, `--append-verify`
    pub append: Option<Append>,
    /// `--partial`: an interrupted file is kept (implied by `partial_dir`).
    pub partial: bool,
    /// `--partial-dir`; also `.~tmp~` under `--delay-updates`.
    pub partial_dir: Option<Vec<u8>>,
    /// `--temp-dir`
    pub temp_dir: Option<Vec<u8>>,
    /// Whether a relative `temp_dir` may contain `..`, because the destination's module is the root of the process.
    pub temp_dir_climbs: bool,
    /// `--delay-updates`
    pub delay_updates: bool,
    /// `--backup`
    pub backup: Option<Backup>,
    /// `-S`
    pub sparse: bool,
    /// `--preallocate`
    pub preallocate: bool,
    /// `--fsync`
    pub fsync: bool,
    /// `--verify`
    pub verify: Option<Verify>,
    /// `--mkpath`
    pub mkpath: bool,
}

impl Place {
    /// Returns the suffix of backups, if they are beside their originals.
    pub fn suffix_beside(&self) -> Option<&[u8]> {
        let backup = self.backup.as_ref()?;
        if backup.dir.is_none() && !backup.suffix.is_empty() {
            Some(&backup.suffix)
        } else {
            None
        }
    }

    /// Returns the rule that keeps partial directories out of the transfer. An absolute one needs none.
    pub fn partials_rule(partial_dir: Option<&[u8]>) -> Option<Vec<u8>> {
        let dir = partial_dir.filter(|dir| !dir.starts_with(b"/"))?;
        Some([b"-p ", dir.strip_suffix(b"/").unwrap_or(dir), b"/"].concat())
    }
}
