//! The directories of a source on this machine, and the files in them whose content is compared.

use crate::digest::PlainDigest;
use crate::filter::Chain;
use crate::flist::Entry;
use crate::fs::errno;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, FileVersion, Follow};
use crate::options::Select;
use crate::path::{self, RelPath};
use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The directory that the names of a source argument are relative to.
#[derive(Debug, Clone)]
pub struct Base {
    /// The directory.
    pub root: BaseRoot,
    /// The prefix of names in `%f`: the argument as given, without its last element.
    pub shown: Vec<u8>,
    /// The sender's rules for it, before any directory is entered.
    pub chain: Chain,
}

/// The directory of a [`Base`]. As there may be more of them than a process may have files open, it can be closed.
#[derive(Debug, Clone)]
pub enum BaseRoot {
    /// It is open.
    Open(Root),
    /// It is opened for each use, if it is still the same.
    Closed {
        /// Where it is, as given.
        at: Vec<u8>,
        /// Its device and inode.
        id: (u64, u64),
        /// Its absolute path for messages.
        path: Vec<u8>,
        /// Which symlinks below it may be followed.
        follow: Follow,
    },
}

impl BaseRoot {
    /// Returns the open directory.
    pub fn open(&self) -> io::Result<Cow<'_, Root>> {
        match self {
            BaseRoot::Open(root) => Ok(Cow::Borrowed(root)),
            BaseRoot::Closed {
                at,
                id,
                path,
                follow,
            } => {
                let dir = enter(at)?;
                if dir.id()? != *id {
                    return Err(errno::gone());
                }
                Ok(Cow::Owned(Root::new(dir, path.clone(), *follow)))
            }
        }
    }

    /// Returns which symlinks below it may be followed.
    fn follow(&self) -> Follow {
        match self {
            BaseRoot::Open(root) => root.follow(),
            BaseRoot::Closed { follow, .. } => *follow,
        }
    }

    /// See [`Root::open_dir`].
    pub fn open_dir(&self, path: &RelPath) -> io::Result<Dir> {
        self.open()?.open_dir(path)
    }

    /// See [`Root::open_dir_to_search`].
    pub fn open_dir_to_search(&self, path: &RelPath) -> io::Result<Dir> {
        self.open()?.open_dir_to_search(path)
    }

    /// Returns its absolute path, for messages.
    pub fn path(&self) -> &[u8] {
        match self {
            BaseRoot::Open(root) => &root.path,
            BaseRoot::Closed { path, .. } => path,
        }
    }

    /// Returns the absolute path of an entry below, for messages.
    pub fn full(&self, path: &[u8]) -> Vec<u8> {
        path::join(self.path(), path)
    }
}

/// A directory of a source.
#[derive(Debug, Clone)]
pub struct SourceDir {
    /// The directory, if it is open.
    open: Option<Dir>,
    /// The directory that the path starts from.
    pub base: Arc<Base>,
    /// Its path below `base`.
    pub path: RelPath,
}

impl SourceDir {
    /// Returns an open directory.
    pub fn new(dir: Dir, base: Arc<Base>, path: RelPath) -> SourceDir {
        SourceDir {
            open: Some(dir),
            base,
            path,
        }
    }

    /// Returns the directory, which is opened if it is closed.
    pub fn dir(&self) -> io::Result<Cow<'_, Dir>> {
        match &self.open {
            Some(dir) => Ok(Cow::Borrowed(dir)),
            None => Ok(Cow::Owned(self.base.root.open_dir_to_search(&self.path)?)),
        }
    }

    /// Returns the directory for the removal of an entry. As in rsync, nothing is removed behind a symlink that leads up or
    /// to an absolute path, except by names that `--files-from` lists.
    pub fn dir_to_remove_from(&self) -> io::Result<Cow<'_, Dir>> {
        match self.base.root.follow() {
            Follow::Never | Follow::Trusted => self.dir(),
            Follow::Inside | Follow::Downwards | Follow::Anywhere => {
                let root = self.base.root.open()?;
                let strict = Root::new(root.dir().clone(), root.path.clone(), Follow::Downwards);
                strict.open_dir_to_search(&self.path).map(Cow::Owned)
            }
        }
    }

    /// Returns whether an entry may be reached by several paths, because symlinks on the way are followed.
    pub fn may_have_other_paths(&self, select: &Select) -> bool {
        self.base.root.follow() != Follow::Never || select.opens_link_targets()
    }

    /// Returns the same directory, closed, so that many can be stored.
    pub fn closed(&self) -> SourceDir {
        SourceDir {
            open: None,
            base: self.base.clone(),
            path: self.path.clone(),
        }
    }

    /// Returns the same directory, open.
    pub fn opened(&self) -> io::Result<SourceDir> {
        Ok(SourceDir {
            open: Some(self.dir()?.into_owned()),
            base: self.base.clone(),
            path: self.path.clone(),
        })
    }

    /// Opens a file in it, or what a symlink leads to if the options require that.
    pub fn open_file(&self, name: &[u8], select: &Select) -> io::Result<OwnedFd> {
        sys::open_read(
            self.dir()?.fd(),
            name,
            select.opens_link_targets(),
            select.open_noatime,
        )
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

/// Opens a directory. One that cannot be listed is opened for access by name. Fails if it cannot be entered.
pub fn enter(path: &[u8]) -> io::Result<Dir> {
    enter_by(path, &sys::open_dir_path, &sys::open_dir_path_to_search)
}

/// As [`enter`], with other functions to open a directory for listing and for access by name.
pub fn enter_by(
    path: &[u8],
    open: &dyn Fn(&[u8]) -> io::Result<OwnedFd>,
    open_to_search: &dyn Fn(&[u8]) -> io::Result<OwnedFd>,
) -> io::Result<Dir> {
    let dir = match open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open_to_search(path),
        other => other,
    };
    let dir = Dir::new(dir?);
    // A directory that can be listed cannot always be entered.
    if sys::fstat(dir.fd())?.mode & 0o111 != 0o111 {
        sys::stat(dir.fd(), b".", false)?;
    }
    Ok(dir)
}

/// The source file of a content comparison.
#[derive(Clone, Copy)]
pub struct ComparedSource<'a> {
    /// Its entry, with the digest if a peer sent one.
    pub entry: &'a Entry,
    /// The digest of its content that an earlier run has stored; see [`DirList::plain_digest`](crate::flist::DirList).
    pub plain_digest: Option<&'a PlainDigest>,
    /// Its directory, if it is on this machine.
    pub place: Option<&'a SourceDir>,
    /// Its name there.
    pub name: &'a [u8],
}

/// The file of the destination, or of an alternate tree, that a source file is compared with.
#[derive(Clone, Copy)]
pub struct ComparedDest<'a> {
    /// Its directory.
    pub dir: &'a Dir,
    /// Its name there.
    pub name: &'a [u8],
    /// The version that was just found there, if it was examined with the time of its birth.
    pub version: Option<FileVersion>,
}

/// Compares the content of a source file with that of a file in an open directory.
pub type Compare<'c> = dyn Fn(ComparedSource<'_>, ComparedDest<'_>) -> io::Result<bool> + Sync + 'c;
