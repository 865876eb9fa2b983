//! Reads the files of both ends that can be equal, before the twins of a run are settled (`--detect-renamed`).

use crate::apply::{Context, twins};
use crate::digest::Comparison;
use crate::error::Result;
use crate::flist::FileId;
use crate::plan::renamed::TwinCandidate;
use crate::proto::ContentDigest;
use crate::walk::content_digest::{DigestTerms, ListedFile, digest_if_unchanged};
use crate::walk::{DirPlan, Step};
use crate::work::parallel;

/// A new file.
pub(super) struct NewSource<'p> {
    /// The plan of its directory.
    pub(super) plan: &'p DirPlan,
    pub(super) step: Step,
}

/// Reads files and returns their digests.
pub(super) struct ContentReader<'a> {
    context: &'a Context<'a>,
    /// How the digests are made.
    pub(super) compared_by: Comparison,
}

impl<'a> ContentReader<'a> {
    /// Creates a reader whose digests can be compared with those of the peer, if there is one.
    pub(super) fn new(context: &'a Context<'a>) -> Self {
        let compared_by = context
            .facts()
            .map_or_else(Comparison::local, |facts| facts.compared_by.clone());
        ContentReader {
            context,
            compared_by,
        }
    }

    /// Requests the digests of new files from the peer, if there is one. It reads them while this end does other things.
    pub(super) fn request(&self, new: &[NewSource<'_>]) -> Result<()> {
        let Some(peer) = self.context.peer else {
            return Ok(());
        };
        for file in new {
            if file.listed_digest().is_none() {
                peer.ask_digest(file.id())?;
            }
        }
        Ok(())
    }

    /// Returns the digests of new files, in their order. If there is a peer, they must have been requested.
    pub(super) fn of_source(&self, new: &[NewSource<'_>]) -> Result<Vec<Option<ContentDigest>>> {
        let Some(peer) = self.context.peer else {
            let threads = self.threads_for(new.iter().map(NewSource::len_bytes));
            return Ok(parallel::share(new, threads, |file| self.of_new_file(file)));
        };
        let mut digests = Vec::with_capacity(new.len());
        for file in new {
            let digest = match file.listed_digest() {
                Some(listed) => Some(listed),
                None => peer.digest(file.id())?,
            };
            digests.push(digest);
        }
        Ok(digests)
    }

    /// Returns the digests of files of the destination or of alternate trees, in their order. A file that cannot be read or
    /// has changed has none, as for new files.
    pub(super) fn of_dest(&self, old: &[TwinCandidate<'_>]) -> Vec<Option<ContentDigest>> {
        let threads = self.threads_for(old.iter().map(|file| file.len_bytes));
        parallel::share(old, threads, |file| self.of_candidate(file))
    }

    fn threads_for(&self, lens_bytes: impl Iterator<Item = u64>) -> usize {
        parallel::threads_for(lens_bytes, self.context.process.threads)
    }

    /// Returns the digest of a file of the destination or of an alternate tree.
    fn of_candidate(&self, file: &TwinCandidate<'_>) -> Option<ContentDigest> {
        let dir = twins::open_dir(self.context, file.tree, file.dir)?;
        let name = file.name;
        self.digest(&ListedFile {
            dir: &dir,
            name,
            open: &|| self.context.open_read(&dir, name),
            len_bytes: file.len_bytes,
            mtime: file.mtime,
        })
    }

    /// Returns the digest of a new file whose source is on this machine.
    fn of_new_file(&self, file: &NewSource<'_>) -> Option<ContentDigest> {
        let entry = file.plan.source_of(&file.step);
        let place = file.plan.place_of(entry)?;
        let name = file.source_name();
        self.digest(&ListedFile {
            dir: &*place.dir().ok()?,
            name,
            open: &|| place.open_file(name, &self.context.options.select),
            len_bytes: entry.len_bytes,
            mtime: entry.mtime,
        })
    }

    fn digest(&self, file: &ListedFile<'_>) -> Option<ContentDigest> {
        let terms = DigestTerms {
            by: &self.compared_by,
            cache: self.context.checksum_cache,
            is_over: &|| self.context.is_over(),
        };
        digest_if_unchanged(file, &terms)
    }
}

impl NewSource<'_> {
    fn len_bytes(&self) -> u64 {
        self.plan.source_of(&self.step).len_bytes
    }

    /// Returns its name at the source.
    fn source_name(&self) -> &[u8] {
        self.plan.found.source_name(self.plan.source_of(&self.step))
    }

    /// Returns the digest that the peer has listed (`-c`).
    fn listed_digest(&self) -> Option<ContentDigest> {
        self.plan.source_of(&self.step).extra.as_ref()?.digest
    }

    /// Returns its number at the peer.
    fn id(&self) -> FileId {
        FileId {
            dir: self.plan.found.listing.id,
            entry: self.step.source,
        }
    }
}
