//! Twins that the run changes (`--detect-renamed`): their old content is held under a temporary name until the files that
//! take it have theirs.
//!
//! Right before a file is replaced, it gets that name as another one; before it is overwritten in place, or where files get
//! no other names, it is copied. Nothing is held if a file of the run could lack the room because of that. The name is
//! removed when the last file that takes the content is complete. If one of them fails, or the run ends early, it stays, and
//! the next run removes it like any temporary file.
//!
//! It is not locked, as that would need an open descriptor for each. Another run at the same destination may remove it. Then
//! the content comes from the source.

use crate::apply::dir_finalize::LastTouch;
use crate::flist::Time;
use crate::path::RelPath;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Where the content of a twin is that the run has changed.
#[derive(Debug, Clone)]
pub enum OldContent {
    /// In another file.
    Held(HeldFile),
    /// It is not held, and is or will be overwritten.
    Lost,
}

/// A file that holds the content of a twin.
#[derive(Debug, Clone)]
pub struct HeldFile {
    pub path: RelPath,
    /// Device and inode.
    pub inode: (u64, u64),
    pub mtime: Time,
}

/// The twins that the run has changed while other files need their content, by the index of the candidate.
#[derive(Default)]
pub struct HeldTwins(Mutex<HashMap<u32, HeldTwin>>);

struct HeldTwin {
    old: OldContent,
    /// Keeps the last touch of its directory waiting until the name is removed.
    last: Arc<LastTouch>,
}

impl HeldTwins {
    /// Returns where the content of a twin is.
    pub fn get(&self, at: u32) -> Option<OldContent> {
        self.0.lock().get(&at).map(|held| held.old.clone())
    }

    /// Adds a twin. Returns `false` without that if `is_needed` does: then it would never be removed.
    pub fn add(
        &self,
        at: u32,
        old: OldContent,
        last: &Arc<LastTouch>,
        is_needed: impl Fn() -> bool,
    ) -> bool {
        let mut all = self.0.lock();
        // The last file that needs it is noted before this table is searched for what it has left.
        if !is_needed() {
            return false;
        }
        let last = last.clone();
        all.insert(at, HeldTwin { old, last });
        true
    }

    /// Returns whether a name of a directory is that of a file that holds content.
    pub fn has(&self, dir: &RelPath, name: &[u8]) -> bool {
        self.0.lock().values().any(|held| match &held.old {
            OldContent::Held(held) => {
                held.path.name() == name && held.path.parent().as_ref() == Some(dir)
            }
            OldContent::Lost => false,
        })
    }

    /// Forgets a twin. Returns the file that holds its content, which is not needed any more, and what keeps the last touch of
    /// its directory waiting until it is removed.
    pub fn take(&self, at: u32) -> Option<(OldContent, Arc<LastTouch>)> {
        let held = self.0.lock().remove(&at)?;
        Some((held.old, held.last))
    }

    /// Forgets all, and leaves what holds their content.
    pub fn leave(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }
}
