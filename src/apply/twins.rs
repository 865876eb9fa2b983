//! `--detect-renamed`: new and changed files that take the content of equal files of the destination or of an alternate
//! tree, their twins.
//!
//! The twins of a run are settled before anything is done. A twin is copied at the turn of the file that takes its content,
//! or it is renamed in place of its deletion, which waits for the end of the run. One in a tree of `--link-dest` gets another
//! name. Each is examined again right before that. If it has changed, the content comes from the source, as without the
//! option. No twin is deleted before each file that takes its content has its name, and the old content of one that is
//! replaced is held until then ([`held_twins`](crate::apply::held_twins)).

use crate::apply::Context;
use crate::apply::dir_finalize::LastTouch;
use crate::apply::held_twins::{HeldTwins, OldContent};
use crate::digest::Comparison;
use crate::flist::entry::Stat;
use crate::flist::{Kind, Time};
use crate::fs::probe::space;
use crate::fs::root::Dir;
use crate::fs::{errno, sandbox, sys, trusted_path};
use crate::path::{self, RelPath};
use crate::plan::renamed::{TwinCandidates, TwinFate};
use crate::proto::ContentDigest;
use crate::report::event::{ErrorRole, Problem};
use crate::walk::{DirPlan, Step};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A file of the destination or of an alternate tree whose content another file takes.
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
    /// It is not deleted before the new file has its name, nor its old content. Of a file with several names, one is
    /// copied, and it is not known which.
    pub is_awaited: bool,
    /// Where its content is, if the run has changed it.
    pub held: Option<OldContent>,
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

/// Returns whether a file of the destination, or of an alternate tree, or a directory above it is hidden from the client of
/// this process.
pub fn is_hidden(context: &Context<'_>, tree: Option<usize>, path: &RelPath) -> bool {
    let root = match tree {
        None => context.dest,
        Some(tree) => context.alternates[tree].root.as_ref(),
    };
    let Some(root) = root else { return true };
    let top = root.dir().fd();
    let mut above = std::iter::successors(path.parent(), RelPath::parent);
    above.any(|dir| !dir.is_root() && sandbox::hides(top, dir.as_bytes(), true))
        || sandbox::hides(top, path.as_bytes(), false)
}

/// Returns the problem if a file that has held content could not be removed. The next run removes it.
pub fn cannot_remove(
    context: &Context<'_>,
    held: &RelPath,
    unlinked: io::Result<()>,
) -> Option<Problem> {
    let error = errno::if_there(unlinked).err()?;
    let full = context.full(held.as_bytes());
    Some(Problem::failed(
        ErrorRole::Receiver,
        "unlink",
        &full,
        &error,
    ))
}

impl Twin {
    /// Opens its directory.
    pub fn open_dir(&self, context: &Context<'_>) -> Option<Dir> {
        open_dir(context, self.tree, &self.path.parent().unwrap_or_default())
    }

    /// Returns the path of another name in its directory.
    pub fn sibling(&self, name: &[u8]) -> RelPath {
        self.path.parent().unwrap_or_default().join(name)
    }

    /// Returns the path under which it is reported.
    pub fn shown(&self, context: &Context<'_>) -> Vec<u8> {
        match self.tree {
            None => self.path.as_bytes().to_vec(),
            Some(tree) => path::join(&context.alternates[tree].given, self.path.as_bytes()),
        }
    }

    /// Returns whether a file with these attributes can be it, or holds its content.
    pub fn is(&self, stat: &Stat) -> bool {
        let found = ((stat.dev, stat.ino), stat.mtime);
        let is_found = match (&self.held, &self.identity) {
            (Some(OldContent::Lost), _) => false,
            (Some(OldContent::Held(held)), _) => found == (held.inode, held.mtime),
            (None, TwinIdentity::Found { inode, mtime }) => found == (*inode, *mtime),
            (None, TwinIdentity::New(_)) => true,
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
                held: None,
            });
        }
        Some(self.candidate(at, reuse, is_awaited))
    }

    /// Returns a candidate as a twin.
    fn candidate(&self, at: u32, reuse: Reuse, is_awaited: bool) -> Twin {
        let file = self.candidates.get(at);
        Twin {
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
            held: None,
        }
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
    /// Those that the run has changed while others need their content.
    held: HeldTwins,
    /// How many bytes the run writes at most.
    unwritten_bytes: AtomicU64,
}

impl Twins {
    /// Sets the twins, and how many bytes the run writes at most.
    pub fn settle(&self, twins: SettledTwins, unwritten_bytes: u64) {
        self.unwritten_bytes
            .store(unwritten_bytes, Ordering::Relaxed);
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
        let twin = self.settled.get()?.of(dir, step.source)?;
        let held = twin.candidate.and_then(|at| self.held.get(at));
        Some(Twin { held, ..twin })
    }

    /// Returns a file of the destination that the run is about to change, if others still need its content and it is not
    /// held yet.
    pub fn to_hold(&self, path: &RelPath) -> Option<Twin> {
        let settled = self.settled.get()?;
        let at = self.candidate_at(path)?;
        let changes = settled.candidates.get(at).fate == TwinFate::Changes;
        if !changes || !self.is_needed_at(at) || self.held.get(at).is_some() {
            return None;
        }
        Some(settled.candidate(at, Reuse::Copied, true))
    }

    /// Returns whether there will be room for everything that the run writes, if these bytes are not free. Otherwise a file
    /// would fail that has room if no content is held.
    pub fn has_room_beside(&self, bytes: u64, dir: &Dir) -> bool {
        let needed = self.unwritten_bytes.load(Ordering::Relaxed);
        space(dir.fd()).is_ok_and(|space| space.free_bytes >= needed.saturating_add(bytes))
    }

    /// Records where the old content of a twin is, before the run changes the twin. Returns `false` if it is not needed
    /// any more.
    pub fn hold(&self, twin: &Twin, old: OldContent, last: &Arc<LastTouch>) -> bool {
        let Some(at) = twin.candidate else {
            return false;
        };
        self.held.add(at, old, last, || self.is_needed_at(at))
    }

    /// Returns whether a name of a directory is that of a file that holds the content of a twin.
    pub fn is_held_as(&self, dir: &RelPath, name: &[u8]) -> bool {
        self.held.has(dir, name)
    }

    /// Forgets the files that hold content. Those that are still needed stay, and the next run removes them.
    pub fn leave_held(&self) {
        self.held.leave();
    }

    /// Returns the index of a file of the destination, if it is a candidate.
    pub fn candidate_at(&self, path: &RelPath) -> Option<u32> {
        self.settled.get()?.candidates.find(path)
    }

    /// Records that a file with this twin is complete. What held the content for it is removed if no other file needs that.
    pub fn placed(&self, context: &Context<'_>, twin: &Twin) -> Option<Problem> {
        let at = twin.candidate?;
        if !twin.is_awaited {
            return None;
        }
        let is_last = {
            let count = &mut self.needed.lock()[at as usize];
            *count = count.saturating_sub(1);
            *count == 0
        };
        if is_last {
            self.remove_held(context, at)
        } else {
            None
        }
    }

    /// Removes what holds the content of a twin. Returns the error.
    fn remove_held(&self, context: &Context<'_>, at: u32) -> Option<Problem> {
        let (old, _last) = self.held.take(at)?;
        let OldContent::Held(held) = old else {
            return None;
        };
        let parent = held.path.parent().unwrap_or_default();
        let dir = context.dest?.open_dir_to_search(&parent);
        let unlinked = dir.and_then(|dir| sys::unlink(dir.fd(), held.path.name()));
        cannot_remove(context, &held.path, unlinked)
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
            .is_some_and(|at| self.is_needed_at(at))
    }

    fn is_needed_at(&self, at: u32) -> bool {
        self.needed.lock()[at as usize] > 0
    }
}
