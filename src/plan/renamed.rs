//! The files of the destination, and of alternate trees, whose content new files take (`--detect-renamed`): what is
//! known of them, and when two files count as equal.

mod matcher;
#[cfg(test)]
mod tests;
mod worth_reading;

pub use self::matcher::{Matcher, TwinMatch};
pub use self::worth_reading::worth_reading;

use crate::digest::CONTENT_LEN_BYTES;
use crate::flist::Time;
use crate::path::{RelPath, split_parent};
use std::cmp::Ordering;

/// When a file counts as equal to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Criterion {
    /// It has the same length and digest.
    Digest,
    /// It has the same length. It is only the basis of the new one.
    Length,
    /// It has the same length, time and name.
    Moved,
    /// It has the same length and time.
    Quick,
}

/// The digest of the content of a file.
pub type Digest = [u8; CONTENT_LEN_BYTES];

/// A regular file that the destination lacks, or has with another content.
#[derive(Debug, Clone, Copy)]
pub struct NeededFile<'a> {
    pub dir: &'a RelPath,
    pub name: &'a [u8],
    pub len_bytes: u64,
    pub mtime: Time,
    /// The digest of its content, if it is known.
    pub digest: Option<&'a Digest>,
    /// It may get its content by renaming another file, and need not have it before the end of the run.
    pub may_be_renamed: bool,
    /// It may be copied from another new file at the end of the run.
    pub may_be_late: bool,
    /// It may be another name of a file of an alternate tree.
    pub may_be_linked: bool,
    /// It may take the content of a file that the run changes, if that waits until it has its name.
    pub may_be_awaited: bool,
    /// What it replaces.
    pub old: OldFile,
}

/// What the destination has under the name of a file that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldFile {
    /// Nothing.
    Missing,
    /// A file with another content; its index, if it is a candidate.
    Replaced(Option<u32>),
}

/// What the run does with a file of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TwinFate {
    /// It keeps its content.
    Stays,
    /// It gets another content.
    Changes,
    /// It is probably deleted, and has other names.
    Extra,
    /// It is probably deleted, and has no other name, so it can be renamed.
    LeftOver,
}

impl TwinFate {
    /// Returns whether the run will probably delete the file.
    pub fn is_extra(self) -> bool {
        match self {
            TwinFate::Extra | TwinFate::LeftOver => true,
            TwinFate::Stays | TwinFate::Changes => false,
        }
    }
}

/// A regular file of the destination or of an alternate tree.
#[derive(Debug, Clone, Copy)]
pub struct TwinCandidate<'a> {
    /// The index of the alternate tree; `None`: it is at the destination.
    pub tree: Option<usize>,
    /// Its directory there.
    pub dir: &'a RelPath,
    pub name: &'a [u8],
    /// Device and inode.
    pub inode: (u64, u64),
    pub len_bytes: u64,
    pub mtime: Time,
    /// The digest of its content, if it is known.
    pub digest: Option<&'a Digest>,
    pub fate: TwinFate,
    /// It is in a tree of `--link-dest`, and the destination has no name of it.
    pub is_linkable: bool,
}

/// The candidates of a run. There can be many, so each takes little memory: those of one directory share its path.
#[derive(Debug, Default)]
pub struct TwinCandidates {
    dirs: Vec<CandidateDir>,
    /// The names, one after the other.
    names: Vec<u8>,
    files: Vec<CandidateFile>,
    /// By the index of the file; empty if no digest is known.
    digests: Vec<Option<Digest>>,
}

/// A directory with candidates.
#[derive(Debug)]
struct CandidateDir {
    tree: Option<usize>,
    path: RelPath,
    /// The device of its files.
    dev: u64,
}

/// What is stored of a candidate. The order and the types of the fields leave no gaps.
#[derive(Debug)]
struct CandidateFile {
    ino: u64,
    len_bytes: u64,
    mtime_secs: i64,
    mtime_nanos: u32,
    /// Where its name begins.
    name_at: u32,
    /// The index of its directory.
    dir: u32,
    name_len_bytes: u8,
    fate: TwinFate,
    is_linkable: bool,
}

impl CandidateFile {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        let start = self.name_at as usize;
        &names[start..start + usize::from(self.name_len_bytes)]
    }

    fn mtime(&self) -> Time {
        Time {
            secs: self.mtime_secs,
            nanos: self.mtime_nanos,
        }
    }
}

impl TwinCandidates {
    /// Adds a candidate. One whose name is longer than names are, or of which there are too many, is left out.
    pub fn push(&mut self, file: &TwinCandidate<'_>) {
        let Ok(name_len_bytes) = u8::try_from(file.name.len()) else {
            return;
        };
        let Ok(name_at) = u32::try_from(self.names.len()) else {
            return;
        };
        if u32::try_from(self.files.len()).is_err() {
            return;
        }
        let (dev, ino) = file.inode;
        let is_in_last = self
            .dirs
            .last()
            .is_some_and(|last| (last.tree, last.dev, &last.path) == (file.tree, dev, file.dir));
        if !is_in_last {
            self.dirs.push(CandidateDir {
                tree: file.tree,
                path: file.dir.clone(),
                dev,
            });
        }
        self.names.extend_from_slice(file.name);
        self.files.push(CandidateFile {
            ino,
            len_bytes: file.len_bytes,
            mtime_secs: file.mtime.secs,
            mtime_nanos: file.mtime.nanos,
            name_at,
            // There are not more directories than files.
            dir: (self.dirs.len() - 1) as u32,
            name_len_bytes,
            fate: file.fate,
            is_linkable: file.is_linkable,
        });
    }

    /// Returns how many there are.
    pub fn count(&self) -> u32 {
        self.files.len() as u32
    }

    /// Returns the candidate with this index.
    pub fn get(&self, at: u32) -> TwinCandidate<'_> {
        let file = &self.files[at as usize];
        let dir = &self.dirs[file.dir as usize];
        let digest = self.digests.get(at as usize);
        TwinCandidate {
            tree: dir.tree,
            dir: &dir.path,
            name: file.name(&self.names),
            inode: (dir.dev, file.ino),
            len_bytes: file.len_bytes,
            mtime: file.mtime(),
            digest: digest.and_then(Option::as_ref),
            fate: file.fate,
            is_linkable: file.is_linkable,
        }
    }

    /// Returns all, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = TwinCandidate<'_>> {
        (0..self.count()).map(|at| self.get(at))
    }

    /// Sorts them, so that [`TwinCandidates::find`] finds each. Their indices change, and digests must not be known yet.
    pub fn sort(&mut self) {
        let TwinCandidates {
            dirs, names, files, ..
        } = self;
        let place = |file: &CandidateFile| {
            let dir = &dirs[file.dir as usize];
            (dir.tree, dir.path.as_bytes())
        };
        files.sort_unstable_by(|one, other| {
            let by_dir = if one.dir == other.dir {
                Ordering::Equal
            } else {
                place(one).cmp(&place(other))
            };
            by_dir.then_with(|| one.name(names).cmp(other.name(names)))
        });
        files.shrink_to_fit();
        names.shrink_to_fit();
    }

    /// Returns the index of a file of the destination, if it is a candidate. They must be sorted.
    pub fn find(&self, path: &RelPath) -> Option<u32> {
        self.find_in(None, path)
    }

    /// Returns the index of a file of an alternate tree, or of the destination, if it is a candidate. They must be sorted.
    pub fn find_in(&self, tree: Option<usize>, path: &RelPath) -> Option<u32> {
        let (dir, name) = split_parent(path.as_bytes());
        let found = self.files.binary_search_by(|file| {
            let its_dir = &self.dirs[file.dir as usize];
            (
                its_dir.tree,
                its_dir.path.as_bytes(),
                file.name(&self.names),
            )
                .cmp(&(tree, dir, name))
        });
        Some(found.ok()? as u32)
    }

    /// Sets the digest of a candidate.
    pub fn set_digest(&mut self, at: u32, digest: Option<Digest>) {
        self.digests.resize(self.files.len(), None);
        self.digests[at as usize] = digest;
    }

    /// Forgets the digests.
    pub fn forget_digests(&mut self) {
        self.digests = Vec::new();
    }

    /// Notes which files of alternate trees can be linked, by their devices and inodes.
    pub fn permit_links(&mut self, may_be_linked: impl Fn((u64, u64)) -> bool) {
        for file in &mut self.files {
            let dir = &self.dirs[file.dir as usize];
            file.is_linkable = dir.tree.is_some() && may_be_linked((dir.dev, file.ino));
        }
    }
}

/// What two files that count as equal have in common, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a> {
    len_bytes: u64,
    mtime: Option<Time>,
    name: Option<&'a [u8]>,
    digest: Option<&'a Digest>,
}

impl<'a> Key<'a> {
    /// Returns what is known of a file before its content is read. Files that count as equal have the same.
    pub fn before_reading(
        criterion: Criterion,
        name: &'a [u8],
        len_bytes: u64,
        mtime: Time,
    ) -> Key<'a> {
        let (mtime, name) = match criterion {
            Criterion::Digest | Criterion::Length => (None, None),
            Criterion::Moved => (Some(mtime), Some(name)),
            Criterion::Quick => (Some(mtime), None),
        };
        Key {
            len_bytes,
            mtime,
            name,
            digest: None,
        }
    }

    /// Returns the key of a file, or `None` if it needs a digest that is not known.
    fn new(
        criterion: Criterion,
        name: &'a [u8],
        (len_bytes, mtime): (u64, Time),
        digest: Option<&'a Digest>,
    ) -> Option<Key<'a>> {
        let key = Key::before_reading(criterion, name, len_bytes, mtime);
        match criterion {
            Criterion::Digest => Some(Key {
                digest: Some(digest?),
                ..key
            }),
            Criterion::Length | Criterion::Moved | Criterion::Quick => Some(key),
        }
    }
}

impl<'a> NeededFile<'a> {
    fn key(&self, criterion: Criterion) -> Option<Key<'a>> {
        let attributes = (self.len_bytes, self.mtime);
        Key::new(criterion, self.name, attributes, self.digest)
    }
}

impl<'a> TwinCandidate<'a> {
    /// Returns its path.
    pub fn path(&self) -> RelPath {
        self.dir.join(self.name)
    }

    fn key(&self, criterion: Criterion) -> Option<Key<'a>> {
        let attributes = (self.len_bytes, self.mtime);
        Key::new(criterion, self.name, attributes, self.digest)
    }

    /// Compares by the bytes of the paths.
    fn compare_paths(&self, other: &TwinCandidate<'_>) -> Ordering {
        if self.dir == other.dir {
            return self.name.cmp(other.name);
        }
        self.path().cmp(&other.path())
    }
}
