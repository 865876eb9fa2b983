//! `--detect-renamed`: new files that take the content of equal files of the destination or of an alternate tree, their
//! twins.
//!
//! The twins of a run are settled before anything is done. A twin is copied at the turn of the new file, or it is renamed
//! in place of its deletion, which waits for the end of the run. One in a tree of `--link-dest` gets another name. Each is
//! examined again right before that. If it has changed, the content comes from the source, as without the option. No twin
//! is deleted before each file that takes its content has its name.

use crate::apply::Context;
use crate::digest::Comparison;
use crate::flist::entry::Stat;
use crate::flist::{Kind, Time};
use crate::fs::root::Dir;
use crate::fs::trusted_path;
use crate::path::{self, RelPath};
use crate::proto::ContentDigest;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::OnceLock;

/// A file of the destination or of an alternate tree whose content a new file takes.
#[derive(Debug)]
pub struct Twin {
    /// The index of the alternate tree; `None`: it is at the destination.
    pub tree: Option<usize>,
    /// Its path there.
    pub path: RelPath,
    pub len_bytes: u64,
    pub identity: TwinIdentity,
    pub reuse: Reuse,
    /// It is not deleted before the new file has its name. Of a file with several names, one is copied, and it is not
    /// known which.
    pub is_awaited: bool,
}

/// By what a twin is recognized when it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TwinIdentity {
    /// It was there before, and is the file that was found.
    Found {
        /// Device and inode.
        inode: (u64, u64),
        mtime: Time,
    },
    /// This run makes it. Its source can have changed since the digest was made, so its content must have that.
    New(ContentDigest),
}

/// What happens to a twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// It is renamed when its deletion comes.
    Renamed,
    /// The new file becomes another name of it, or a copy if the attributes differ.
    Linked,
    /// It is copied at the turn of the new file.
    Copied,
    /// It is copied at the end of the run, when it is complete itself.
    CopiedAtEnd,
    /// It is the basis of a delta.
    Basis,
}

impl Reuse {
    /// Returns whether the new file waits for the end of the run.
    pub fn is_late(self) -> bool {
        match self {
            Reuse::Renamed | Reuse::CopiedAtEnd => true,
            Reuse::Linked | Reuse::Copied | Reuse::Basis => false,
        }
    }
}

/// Opens a directory of the destination, or of an alternate tree, that can have twins.
pub fn open_dir(context: &Context<'_>, tree: Option<usize>, path: &RelPath) -> Option<Dir> {
    let Some(tree) = tree else {
        return context.dest?.open_dir_to_search(path).ok();
    };
    let root = context.alternates[tree].root.as_ref()?;
    let dir = root.open_dir_to_search(path).ok()?;
    trusted_path::check_inside(dir.fd()).ok()?;
    Some(dir)
}

impl Twin {
    /// Opens its directory.
    pub fn open_dir(&self, context: &Context<'_>) -> Option<Dir> {
        open_dir(context, self.tree, &self.path.parent().unwrap_or_default())
    }

    /// Returns the path under which it is reported.
    pub fn shown(&self, context: &Context<'_>) -> Vec<u8> {
        match self.tree {
            None => self.path.as_bytes().to_vec(),
            Some(tree) => path::join(&context.alternates[tree].given, self.path.as_bytes()),
        }
    }

    /// Returns whether a file with these attributes can be it.
    pub fn is(&self, stat: &Stat) -> bool {
        let is_found = match self.identity {
            TwinIdentity::Found { inode, mtime } => {
                ((stat.dev, stat.ino), stat.mtime) == (inode, mtime)
            }
            TwinIdentity::New(_) => true,
        };
        is_found && Kind::of_mode(stat.mode) == Some(Kind::File) && stat.len_bytes == self.len_bytes
    }
}

/// The twins of a run. The generator settles them once, before anything is done.
#[derive(Default)]
pub struct Twins {
    /// By the path of the new file.
    by_new: OnceLock<HashMap<RelPath, Twin>>,
    /// How their digests were made, if they have any.
    compared_by: OnceLock<Comparison>,
    /// How many files need the content of a twin and do not have their names yet, by its path.
    needed: Mutex<HashMap<RelPath, usize>>,
}

impl Twins {
    /// Sets the twins of the new files.
    pub fn settle(&self, by_new: HashMap<RelPath, Twin>) {
        let mut needed = self.needed.lock();
        for twin in by_new.values().filter(|twin| twin.is_awaited) {
            *needed.entry(twin.path.clone()).or_default() += 1;
        }
        // The generator calls it once.
        let _ = self.by_new.set(by_new);
    }

    /// Sets how digests are made.
    pub fn compare_by(&self, compared_by: Comparison) {
        // The generator calls it once.
        let _ = self.compared_by.set(compared_by);
    }

    /// Returns how digests are made.
    pub fn compared_by(&self) -> Option<&Comparison> {
        self.compared_by.get()
    }

    /// Returns the twin of a new file.
    pub fn of(&self, new: &RelPath) -> Option<&Twin> {
        self.by_new.get()?.get(new)
    }

    /// Records that a new file with this twin is complete.
    pub fn placed(&self, twin: &Twin) {
        if !twin.is_awaited {
            return;
        }
        let mut needed = self.needed.lock();
        if let Some(count) = needed.get_mut(&twin.path) {
            *count -= 1;
            if *count == 0 {
                needed.remove(&twin.path);
            }
        }
    }

    /// Records that a new file with this twin could not be placed.
    pub fn failed(&self, twin: &Twin) {
        if twin.tree.is_none() && !twin.is_awaited {
            *self.needed.lock().entry(twin.path.clone()).or_default() += 1;
        }
    }

    /// Returns whether a file must not be deleted, because another one needs its content.
    pub fn is_needed(&self, path: &RelPath) -> bool {
        self.needed.lock().contains_key(path)
    }
}
