//! The port by which a sender learns what the destination already has of each directory, so that it need not list it.

use crate::error::Result;
use crate::path::RelPath;
use crate::session::source_prefetch::{ListingDigest, ListingDigester};

/// Knows what the destination already has of each directory of the source, because the other end reports it. The opener of a
/// session makes it, if that end sends reports and the run permits to rely on them.
pub trait DestDirs: Sync {
    /// Returns what makes the digests of listings that are compared with the reports.
    fn digester(&self) -> &dyn ListingDigester;
    /// Begins the walk of the source. `whole`: the directories of which everything is compared, in the order of the walk. The
    /// reports are about these and all below them.
    fn begin(&self, whole: Vec<RelPath>) -> Box<dyn DestDirsWalk + '_>;
}

/// Follows the walk of a sender through the reports. Each directory has these calls, parents before children and in the order
/// of the walk: [`DestDirsWalk::enter`], [`DestDirsWalk::compare`], [`DestDirsWalk::descend`], then those of its
/// subdirectories, then [`DestDirsWalk::leave`]. The last call is [`DestDirsWalk::end`]. Calls that return an error end the run.
pub trait DestDirsWalk {
    /// Turns to a directory of the source, and waits until something is known of it.
    fn enter(&mut self, path: &RelPath) -> Result<()>;
    /// Compares the directory. `entries`: how many it has; `digest`: that of its listing, if there is one.
    fn compare(&mut self, entries: u64, digest: Option<&ListingDigest>) -> Result<DirComparison>;
    /// Turns to the subdirectories, once the listing was sent or left out. `has_subdirs`: the source has any.
    fn descend(&mut self, has_subdirs: bool) -> Result<()>;
    /// Notes that all subdirectories have been walked.
    fn leave(&mut self);
    /// Notes that everything was sent. What is still reported is not needed.
    fn end(&mut self);
}

/// What the destination has in place of a directory of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirComparison {
    /// The same entries. Nothing would be done for any of them, so they need not be listed.
    Same,
    /// Nothing.
    Absent,
    /// Other entries, or it is not known.
    Differs,
}
