//! Answers requests for the digests of single files (`--detect-renamed`).

use super::Sender;
use super::kept_dirs::KeptDir;
use crate::error::Result;
use crate::proto::{ContentDigest, FileId};
use crate::walk::content_digest::{DigestTerms, ListedFile, digest_if_unchanged};

impl Sender<'_> {
    /// Returns the digest of a file that was listed. `None`: it cannot be read, or is not the listed one any more. Fails if it
    /// was not read because the run is over: to the receiver, the file would need no content that another one loses.
    pub(super) fn digest_of(&self, kept: &KeptDir, file: FileId) -> Result<Option<ContentDigest>> {
        let entry = kept.regular_file(file)?;
        let Some(Some(place)) = kept.places.get(entry.origin as usize) else {
            return Ok(None);
        };
        let Ok(dir) = place.dir() else {
            return Ok(None);
        };
        let name = kept.name_of(entry);
        let select = &self.run_context.options.select;
        let is_over = || self.peer.is_silent() || self.go_on().is_err();
        let terms = DigestTerms {
            by: &self.checksums.compared_by,
            cache: self.run_context.any_checksum_cache(),
            is_over: &is_over,
        };
        let found = ListedFile {
            dir: &dir,
            name,
            open: &|| place.open_file(name, select),
            len_bytes: entry.len_bytes,
            mtime: entry.mtime,
        };
        let digest = digest_if_unchanged(&found, &terms);
        // A receiver that is gone gets no answer anyway.
        if digest.is_none() {
            self.go_on()?;
        }
        Ok(digest)
    }
}
