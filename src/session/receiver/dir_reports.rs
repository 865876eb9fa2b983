//! The port by which the end that has the source learns what the destination has of each directory, before it lists them.

use crate::checksum_cache::CacheInUse;
use crate::error::Result;
use crate::flist::DirList;
use crate::fs::ids::Ids;
use crate::options::Options;
use crate::path::RelPath;
use crate::walk::destination::DestWalk;
use std::sync::Arc;

/// Reports the directories of the destination to the end that has the source, which then lists only those that differ. The
/// opener of a session makes it, if that end takes such reports.
pub trait DirReports: Sync {
    /// Begins to report. Called once, before any listing is taken.
    fn begin<'w>(
        &'w self,
        scope: ReportScope<'w>,
        walk: Arc<DestWalk<'w>>,
    ) -> Result<Box<dyn RunningReports + 'w>>;
}

/// What the reports are about.
pub struct ReportScope<'a> {
    pub options: &'a Options,
    /// The digests of contents that earlier runs have stored.
    pub cache: Option<CacheInUse<'a>>,
    pub ids: &'a Ids,
    /// The directories of which everything is compared. The reports are about these and all below them.
    pub whole: &'a [RelPath],
}

/// Reports in progress. Several threads lend themselves to them until they are closed.
pub trait RunningReports: Send + Sync {
    /// Returns the entries of a directory of the destination if they are known from the report about it, so that it need not
    /// be listed again. Called in the order of the walk.
    fn known(&self, path: &RelPath) -> Option<DirList>;
    /// Scans and reports on this thread until nothing is left to do.
    fn work(&self);
    /// Notes that the reports are not needed any more.
    fn close(&self);
}
