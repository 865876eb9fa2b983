//! The directories of a source on this machine, and the files in them whose content is compared.

use crate::filter::Chain;
use crate::flist::Entry;
use crate::fs::root::{Dir, Root};
use crate::path::{self, RelPath};
use std::io;
use std::sync::Arc;

/// The directory that the names of a source argument are relative to.
#[derive(Debug, Clone)]
pub struct Base {
    /// The open directory.
    pub root: Root,
    /// The prefix of names in `%f`: the argument as given, without its last element.
    pub shown: Vec<u8>,
    /// The sender's rules for it, before any directory is entered.
    pub chain: Chain,
}

/// An open directory of a source.
#[derive(Debug, Clone)]
pub struct SourceDir {
    /// The directory.
    pub dir: Dir,
    /// The directory that the path starts from.
    pub base: Arc<Base>,
    /// Its path below `base`.
    pub path: RelPath,
}

impl SourceDir {
    /// Returns the place without its own descriptor, so that many can be stored.
    pub fn parked(&self) -> SourceDir {
        SourceDir { dir: self.base.root.dir().clone(), base: self.base.clone(), path: self.path.clone() }
    }

    /// Opens the directory of a parked place again.
    pub fn reopened(&self) -> io::Result<SourceDir> {
        Ok(SourceDir { dir: self.base.root.open_dir(&self.path)?, base: self.base.clone(), path: self.path.clone() })
    }

    /// Returns the absolute path of an entry, for messages.
    pub fn full(&self, name: &[u8]) -> Vec<u8> {
        self.base.root.full(&path::join(self.path.as_bytes(), name))
    }

    /// Returns the path of an entry as the sender sees it (`%f`).
    pub fn shown(&self, name: &[u8]) -> Vec<u8> {
        path::join(&self.base.shown, &path::join(self.path.as_bytes(), name))
    }
}

/// The source file of a content comparison.
#[derive(Clone, Copy)]
pub struct ComparedSource<'a> {
    /// Its entry, with the digest if a peer sent one.
    pub entry: &'a Entry,
    /// Its directory, if it is on this machine.
    pub place: Option<&'a SourceDir>,
    /// Its name there.
    pub name: &'a [u8],
}

/// Compares the content of a source file with that of a file in an open directory.
pub type Compare<'c> = dyn Fn(ComparedSource<'_>, (&Dir, &[u8])) -> io::Result<bool> + Sync + 'c;
