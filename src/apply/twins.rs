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
use crate::plan::renamed::TwinCandidates;
use crate::proto::ContentDigest;
use crate::walk::{DirPlan, Step};
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
    /// Its index among the candidates; `None`: it is a new file, too.
    pub candidate: Option<u32>,
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

/// The twin of a new file, as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct NewTwin {
    /// The index of the new file in the listing of its directory.
    pub entry: u32,
    /// The index of the candidate, or of the original if it is copied at the end.
    pub at: u32,
    pub reuse: Reuse,
    /// See [`Twin::is_awaited`].
    pub is_awaited: bool,
}

/// A new file that is copied to others.
#[derive(Debug)]
pub struct Original {
    pub path: RelPath,
    pub len_bytes: u64,
    pub digest: ContentDigest,
}

/// The twins that were found. There can be many, and they are kept during the run, so they refer to the candidates.
#[derive(Debug, Default)]
pub struct SettledTwins {
    /// Sorted.
    pub candidates: TwinCandidates,
    pub originals: Vec<Original>,
    /// By the path of the directory of the new files, sorted by their entries.
    pub by_dir: HashMap<RelPath, Box<[NewTwin]>>,
}

impl SettledTwins {
    /// Returns the twin of a new file.
    fn of(&self, dir: &RelPath, entry: u32) -> Option<Twin> {
        let of_dir = self.by_dir.get(dir)?;
        let found = of_dir.binary_search_by_key(&entry, |it| it.entry).ok()?;
        let NewTwin {
            at,
            reuse,
            is_awaited,
            ..
        } = of_dir[found];
        if reuse == Reuse::CopiedAtEnd {
            let original = &self.originals[at as usize];
            return Some(Twin {
                tree: None,
                path: original.path.clone(),
                candidate: None,
                len_bytes: original.len_bytes,
                identity: TwinIdentity::New(original.digest),
                reuse,
                is_awaited,
            });
        }
        let file = self.candidates.get(at);
        Some(Twin {
            tree: file.tree,
            path: file.path(),
            candidate: Some(at),
            len_bytes: file.len_bytes,
            identity: TwinIdentity::Found {
                inode: file.inode,
                mtime: file.mtime,
            },
            reuse,
            is_awaited,
        })
    }
}

/// The twins of a run. The generator settles them once, before anything is done.
#[derive(Default)]
pub struct Twins {
    settled: OnceLock<SettledTwins>,
    /// How their digests were made, if they have any.
    compared_by: OnceLock<Comparison>,
    /// How many files need the content of a twin and do not have their names yet, by the index of the candidate.
    needed: Mutex<Vec<u32>>,
}

impl Twins {
    /// Sets the twins of the new files.
    pub fn settle(&self, twins: SettledTwins) {
        let mut needed = vec![0; twins.candidates.count() as usize];
        for twin in twins.by_dir.values().flatten() {
            if twin.is_awaited {
                needed[twin.at as usize] += 1;
            }
        }
        *self.needed.lock() = needed;
        // The generator calls it once.
        let _ = self.settled.set(twins);
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

    /// Returns the twin of the new file that a step is about.
    pub fn of(&self, plan: &DirPlan, step: &Step) -> Option<Twin> {
        let dir = &plan.found.listing.path;
        self.settled.get()?.of(dir, step.source)
    }

    /// Returns the index of a file of the destination, if it is a candidate.
    pub fn candidate_at(&self, path: &RelPath) -> Option<u32> {
        self.settled.get()?.candidates.find(path)
    }

    /// Records that a new file with this twin is complete.
    pub fn placed(&self, twin: &Twin) {
        if let Some(at) = twin.candidate
            && twin.is_awaited
        {
            let count = &mut self.needed.lock()[at as usize];
            *count = count.saturating_sub(1);
        }
    }

    /// Records that a new file with this twin could not be placed.
    pub fn failed(&self, twin: &Twin) {
        if let Some(at) = twin.candidate
            && !twin.is_awaited
        {
            self.needed.lock()[at as usize] += 1;
        }
    }

    /// Returns whether a file must not be deleted, because another one needs its content.
    pub fn is_needed(&self, path: &RelPath) -> bool {
        self.candidate_at(path)
            .is_some_and(|at| self.needed.lock()[at as usize] > 0)
    }
}
