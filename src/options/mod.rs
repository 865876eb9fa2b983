//! The settled options: plain data with rsync's defaults, one policy per part of the program.
//!
//! `cli::resolve` creates them; no other module reads the command line. Each part gets only its own policy.

pub mod algorithm;
pub mod batch;
pub mod check;
pub mod connect;
pub mod delete;
pub mod delta;
pub mod findings;
pub mod guard;
pub mod output;
pub mod permits;
pub mod place;
pub mod plan_use;
pub mod preserve;
pub mod select;
#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use check::{CacheChoice, Check, CheckMode, Checksum, Checksums};
pub use connect::{ArgStyle, Connect, DaemonOptions, Family, Iconv, TransportChoice};
pub use delete::{Delete, SMALL_DEST_ENTRIES, When};
pub use delta::{AltDest, AltKind, Compress, Compression, Delta, DetectRenamed};
pub use guard::{DeleteGuard, Guard, Lock};
pub use output::{CreatedDir, Debug, Info, LogFile, Outbuf, Output, StderrMode};
pub use place::{Append, Backup, Place, Verify};
pub use plan_use::PlanUse;
pub use preserve::{IdFrom, IdMap, IdTo, LinkOwners, ModeChange, PeerLinks, Preserve};
pub use select::{FilesFrom, Recurse, RemoveSource, RuleArg, Select};

use crate::path::RelPath;

/// Everything that a run was asked to do, except its operands.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which entries take part.
    pub select: Select,
    /// When two entries count as the same, and which may be updated at all.
    pub check: Check,
    /// Which attributes are kept, mapped or changed in the transfer.
    pub preserve: Preserve,
    /// Which extra entries may be deleted, and when.
    pub delete: Delete,
    /// How file data is written to the destination.
    pub place: Place,
    /// Whole files or deltas, alternate bases, compression.
    pub delta: Delta,
    /// What is printed, and in which form.
    pub output: Output,
    /// How to reach a peer, and limits of rate and time.
    pub connect: Connect,
    /// `-n`: decide and report, change nothing.
    pub dry_run: bool,
    /// Whether the actions of the run are recorded as a plan, or are those of one.
    pub plan_use: PlanUse,
    /// The paths of the transfer that `sparsync explain` is about; empty: the run is another one.
    pub explained: Vec<RelPath>,
    /// The batch file, if one is written or read.
    pub batch: Option<Batch>,
    /// `--copy-as`: this end copies as another user, `USER[:GROUP]`.
    pub copy_as: Option<Vec<u8>>,
    /// `--confine-root`: the directory that limits where paths of options lead. Absolute.
    pub confine_root: Option<Vec<u8>>,
    /// `--checksum-cache`
    pub checksum_cache: Option<CacheChoice>,
}

impl Options {
    /// Returns whether the contents of files are compared by digests, which `--checksum-cache` can keep.
    pub fn compares_contents(&self) -> bool {
        self.check.mode == CheckMode::Digest
            || self.delta.detect_renamed == Some(DetectRenamed::Content)
    }

    /// Returns the option because of which the peer must speak rsync's own protocol.
    pub fn requires_rsync(&self) -> Option<&'static str> {
        match &self.batch {
            Some(Batch::Write { only: false, .. }) => Some("--write-batch"),
            Some(Batch::Write { only: true, .. }) => Some("--only-write-batch"),
            Some(Batch::Read(_)) | None
                if matches!(self.select.files_from, Some(FilesFrom::Sent(_))) =>
            {
                Some("--files-from with a remote list")
            }
            Some(Batch::Read(_)) | None if self.connect.lacks_fractions() => {
                Some("--protocol below 31")
            }
            Some(Batch::Read(_)) | None if self.connect.server_log => {
                Some("--remote-option=--log-file")
            }
            Some(Batch::Read(_)) | None if self.connect.iconv.is_some() => Some("--iconv"),
            Some(Batch::Read(_)) | None => None,
        }
    }
}
