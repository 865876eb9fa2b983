//! The digests of contents that a listing needs (`-c`): stored ones, or read from the files.

use super::{SourceWalk, now};
use crate::checksum_cache::{CacheInUse, WantedFile};
use crate::digest::{Comparison, PlainDigest};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::compare::digest_of_beginning;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::fs::sys::FileVersion;
use crate::proto::ContentDigest;
use crate::walk::dir_plan::ListedDir;
use crate::walk::source_dir::SourceDir;
use crate::work::parallel;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How file contents are digested while they are listed.
pub struct Contents<'a> {
    /// The digest.
    pub by: &'a Comparison,
    /// Set when the digests are no longer needed: the peer is gone, or the run is being stopped.
    pub is_over: &'a AtomicBool,
    /// Digests of earlier runs.
    pub cache: Option<CacheInUse<'a>>,
    /// Set when contents may be read. Until then, only digests of earlier runs are used; see [`SourceWalk::digest_rest`].
    /// `None`: from the beginning.
    pub may_read: Option<&'a AtomicBool>,
}

/// The digest of the content of a listed file.
pub(super) enum ListedDigest {
    /// That of the content alone. It is kept from run to run, so it is made comparable only when it is sent.
    Plain(PlainDigest),
    /// As both ends compare it.
    Compared(ContentDigest),
}

impl ListedDigest {
    /// Adds it to the file at an index of a list.
    pub(super) fn add_to(&self, list: &mut DirList, at: usize) {
        match self {
            ListedDigest::Plain(digest) => list.set_plain_digest(at, digest),
            ListedDigest::Compared(digest) => list.entries[at].extra_mut().digest = Some(*digest),
        }
    }
}

impl Contents<'_> {
    /// Returns the digest of a file that an earlier run has stored. `version`: that of the file, if it was just examined.
    fn stored(
        &self,
        dir: &Dir,
        name: &[u8],
        version: Option<FileVersion>,
    ) -> io::Result<ListedDigest> {
        let version = match version {
            Some(version) => version,
            None => sys::version_at(dir.fd(), name)?,
        };
        let cache = self.kept_in();
        match cache.and_then(|cache| cache.stored(dir, &version)) {
            Some(plain) => Ok(ListedDigest::Plain(plain)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(super) fn may_be_read(&self) -> bool {
        self.may_read
            .is_none_or(|may_read| may_read.load(Ordering::Relaxed))
    }

    /// Returns the digests of earlier runs, if the digests that are compared can be made from these.
    fn kept_in(&self) -> Option<CacheInUse<'_>> {
        if self.by.is_of_plain() {
            self.cache
        } else {
            None
        }
    }

    /// Returns whether digests of earlier runs are used.
    pub(super) fn are_kept(&self) -> bool {
        self.kept_in().is_some()
    }
}

impl SourceWalk<'_> {
    /// Digests the contents for which a directory has no digests because none was to be read when it was listed. Returns
    /// whether there were any.
    pub fn digest_rest(&self, found: &mut ListedDir) -> bool {
        let Some(contents) = &self.contents else {
            return false;
        };
        if !std::mem::take(&mut found.lacks_digests) {
            return false;
        }
        let list = found.listing.list.clone();
        let lacks_digest = |entry: &Entry| {
            let compared = entry.extra.as_ref().and_then(|extra| extra.digest);
            compared.is_none() && list.plain_digest(entry).is_none()
        };
        let are_complete = list
            .entries
            .iter()
            .all(|entry| entry.kind() != Kind::File || !lacks_digest(entry));
        if are_complete {
            return false;
        }
        self.digest_if(found, contents, &lacks_digest);
        true
    }

    /// Digests the content of those files in a listing.
    pub(super) fn digest_if(
        &self,
        found: &mut ListedDir,
        contents: &Contents<'_>,
        is_wanted: &dyn Fn(&Entry) -> bool,
    ) {
        let source = &found.listing.list;
        let places = &found.places;
        let renamed_from = found.listing.renamed_from.as_deref();
        let files: Vec<usize> = (0..source.len())
            .filter(|&at| {
                let entry = &source.entries[at];
                entry.kind() == Kind::File && is_wanted(entry)
            })
            .collect();
        let lens_bytes = files.iter().map(|&at| source.entries[at].len_bytes);
        let digests = parallel::share(
            &files,
            parallel::threads_for(lens_bytes, self.threads),
            |&at| {
                let entry = &source.entries[at];
                let place = places.get(entry.origin as usize)?.as_ref()?;
                let name = renamed_from.unwrap_or(source.name(entry));
                // A file that cannot be read has no digest.
                self.digest(place, name, entry.len_bytes, None, contents)
                    .ok()
            },
        );
        let list = Arc::make_mut(&mut found.listing.list);
        for (at, digest) in files.into_iter().zip(digests) {
            if let Some(digest) = digest {
                digest.add_to(list, at);
            }
        }
    }

    /// Returns the digest of a file's content. `version`: see [`WantedFile::version`].
    pub(super) fn digest(
        &self,
        place: &SourceDir,
        name: &[u8],
        len_bytes: u64,
        version: Option<FileVersion>,
        contents: &Contents<'_>,
    ) -> io::Result<ListedDigest> {
        let is_over = || contents.is_over.load(Ordering::Relaxed);
        if !contents.may_be_read() {
            return contents.stored(&*place.dir()?, name, version);
        }
        if let Some(cache) = contents.kept_in() {
            let (_, plain) = cache.digest(&WantedFile {
                dir: &*place.dir()?,
                name,
                version,
                open: &|| place.open_file(name, self.select),
                listed_bytes: Some(len_bytes),
                is_over: &is_over,
            })?;
            return Ok(ListedDigest::Plain(plain));
        }
        let file = place.open_file(name, self.select)?;
        let digest = digest_of_beginning(file.as_fd(), len_bytes, contents.by, &is_over)?;
        Ok(ListedDigest::Compared(digest))
    }

    /// Returns the attributes of the file that represents a device. When its content changed is unknown, so it is new
    /// each time.
    pub(super) fn content_of_device(
        &self,
        place: &SourceDir,
        name: &[u8],
        followed: bool,
        stat: Stat,
    ) -> Stat {
        let follow = followed || self.select.opens_link_targets();
        let opened = place
            .dir()
            .and_then(|dir| sys::open_read(dir.fd(), name, follow, self.select.open_noatime));
        // If opening fails, the error is reported when the content is requested.
        let len_bytes = opened
            .and_then(|device| sys::content_len(device.as_fd()))
            .unwrap_or(0);
        stat.as_file(len_bytes, now())
    }
}
