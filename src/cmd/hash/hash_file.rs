//! Hashes one file of a tree.

use super::status_line::StatusLine;
use crate::digest::HashAlgorithm;
use crate::flist::Kind;
use crate::fs::compare::standard_digests;
use crate::fs::root::Dir;
use crate::fs::{errno, sys};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What became of an entry that was to be hashed.
pub enum Hashed {
    /// Its length, and its digest by each of the algorithms.
    Digests(u64, Vec<Vec<u8>>),
    /// It is no regular file.
    Other,
    /// It is the file that this run writes or reads.
    Own,
    /// It was removed since its directory was listed.
    Gone,
    Unreadable(io::Error),
}

/// What all files of a run have in common.
pub struct FileHashing<'a> {
    /// The run is being stopped.
    pub stop: &'a AtomicBool,
    pub status: &'a StatusLine,
    /// The device and inode of files that do not belong to the tree, although they may be in it: the manifest.
    pub own: Vec<(u64, u64)>,
}

impl FileHashing<'_> {
    /// Hashes an entry of a directory by each of the algorithms.
    pub fn hash(&self, dir: &Dir, name: &[u8], algorithms: &[HashAlgorithm]) -> Hashed {
        match self.try_hash(dir, name, algorithms) {
            Ok(hashed) => hashed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Hashed::Gone,
            Err(error) => Hashed::Unreadable(error),
        }
    }

    /// Returns whether an entry of a directory is a regular file that belongs to the tree.
    pub fn takes_part(&self, dir: &Dir, name: &[u8]) -> io::Result<bool> {
        let stat = match errno::if_there(sys::stat(dir.fd(), name, false))? {
            Some(stat) => stat,
            None => return Ok(false),
        };
        Ok(is_regular(stat.mode) && !self.own.contains(&(stat.dev, stat.ino)))
    }

    fn try_hash(&self, dir: &Dir, name: &[u8], algorithms: &[HashAlgorithm]) -> io::Result<Hashed> {
        // Opening a device can have an effect, so the type is examined first.
        if !is_regular(sys::stat(dir.fd(), name, false)?.mode) {
            return Ok(Hashed::Other);
        }
        let file = sys::open_read(dir.fd(), name, false, false)?;
        let stat = sys::fstat(file.as_fd())?;
        if !is_regular(stat.mode) {
            return Ok(Hashed::Other);
        }
        if self.own.contains(&(stat.dev, stat.ino)) {
            return Ok(Hashed::Own);
        }

        let len_bytes = std::cell::Cell::new(0);
        let note = |more: u64| {
            len_bytes.set(len_bytes.get() + more);
            self.status.add_bytes(more);
            if self.stop.load(Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        };
        let digests = standard_digests(file.as_fd(), algorithms, &note)?;
        Ok(Hashed::Digests(len_bytes.get(), digests))
    }
}

fn is_regular(mode: u32) -> bool {
    Kind::of_mode(mode) == Some(Kind::File)
}
