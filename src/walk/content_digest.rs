//! Digests the content of a file that was found before, unless it is another one now (`--detect-renamed`).

use crate::checksum_cache::{CacheInUse, WantedFile};
use crate::digest::Comparison;
use crate::flist::Time;
use crate::fs::compare::digest_of_beginning;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::proto::ContentDigest;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A regular file as it was found.
pub struct ListedFile<'a> {
    /// The directory that has it.
    pub dir: &'a Dir,
    /// Its name there.
    pub name: &'a [u8],
    /// Opens it.
    pub open: &'a dyn Fn() -> io::Result<OwnedFd>,
    /// Its length.
    pub len_bytes: u64,
    /// Its time.
    pub mtime: Time,
}

/// How the contents of a run are digested.
pub struct DigestTerms<'a> {
    /// What makes digests of both ends comparable.
    pub by: &'a Comparison,
    /// The digests of earlier runs.
    pub cache: Option<CacheInUse<'a>>,
    /// Returns whether the run is over.
    pub is_over: &'a dyn Fn() -> bool,
}

/// Returns the digest of a file that has the length and time of the found one before and after it is read. `None`: it has
/// others, or cannot be read.
///
/// A digest stands for the content of a file at a moment in which it was as it was found. So two files with the same digest
/// may be taken for each other as if one had been read instead of the other.
pub fn digest_if_unchanged(
    file: &ListedFile<'_>,
    terms: &DigestTerms<'_>,
) -> Option<ContentDigest> {
    let opened = (file.open)().ok()?;
    let before = sys::version(opened.as_fd()).ok()?;
    let is_found =
        before.is_file && (before.len_bytes, before.mtime) == (file.len_bytes, file.mtime);
    if !is_found {
        return None;
    }
    let digest = match (terms.cache, terms.by.of_plain()) {
        (Some(cache), Some(of_plain)) => {
            let wanted = WantedFile {
                dir: file.dir,
                name: file.name,
                version: None,
                open: &|| opened.try_clone(),
                listed_bytes: Some(file.len_bytes),
                is_over: terms.is_over,
            };
            of_plain(&cache.digest(&wanted).ok()?.1)
        }
        _ => digest_of_beginning(opened.as_fd(), file.len_bytes, terms.by, terms.is_over).ok()?,
    };
    let after = sys::version(opened.as_fd()).ok()?;
    if after == before { Some(digest) } else { None }
}
