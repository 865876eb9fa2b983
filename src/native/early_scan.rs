//! The scan of a client's tree while it still connects.

use crate::native::dest_prescan::DestPrescan;
use crate::session::source_prefetch::SourcePrefetch;

/// The tree that a client scans while it still connects.
pub enum EarlyScan<'l> {
    /// The source, if the client sends.
    Source(Box<SourcePrefetch<'l>>),
    /// The destination, if the client receives.
    Dest(DestPrescan<'l>),
}

impl<'l> EarlyScan<'l> {
    /// Returns the scan of the source, if it is one.
    pub fn source(&self) -> Option<&SourcePrefetch<'l>> {
        match self {
            EarlyScan::Source(prefetch) => Some(prefetch),
            EarlyScan::Dest(_) => None,
        }
    }

    /// Returns the scan of the source, and ends another one.
    pub fn into_source(self) -> Option<Box<SourcePrefetch<'l>>> {
        match self {
            EarlyScan::Source(prefetch) => Some(prefetch),
            EarlyScan::Dest(_) => None,
        }
    }

    /// Returns the scan of the destination, if it is one.
    pub fn dest(&self) -> Option<&DestPrescan<'l>> {
        match self {
            EarlyScan::Source(_) => None,
            EarlyScan::Dest(prescan) => Some(prescan),
        }
    }
}
