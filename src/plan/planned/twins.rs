//! The files whose content new files take (`--detect-renamed`), as a stored plan has them.

use super::{ContentState, EntryState};
use crate::flist::Entry;
use crate::plan::Policy;

/// What is done with a file whose content a new file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TwinUse {
    /// It is renamed in place of its deletion, which is another action.
    Renamed,
    /// The new file becomes another name of it, or a copy if the attributes differ.
    Linked,
    /// It is copied.
    Copied,
}

impl TwinUse {
    /// All of them.
    pub const ALL: [TwinUse; 3] = [TwinUse::Renamed, TwinUse::Linked, TwinUse::Copied];

    /// Returns its name in a plan.
    pub fn name(self) -> &'static str {
        match self {
            TwinUse::Renamed => "renamed",
            TwinUse::Linked => "linked",
            TwinUse::Copied => "copied",
        }
    }
}

/// A file whose content a new file takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedTwin {
    /// It was there when the plan was made.
    Found {
        twin_use: TwinUse,
        /// The index of the alternate tree; `None`: it is at the destination.
        tree: Option<u32>,
        /// Its path there.
        path: Vec<u8>,
        /// Its state then.
        before: Box<EntryState>,
    },
    /// It is a new file of the plan, too, and is copied at the end of the run. If it does not have this digest then, the
    /// content comes from the source, as for any other file.
    New {
        /// Its path at the destination.
        path: Vec<u8>,
        digest: ContentState,
    },
}

impl PlannedTwin {
    /// Returns its path.
    pub fn path(&self) -> &[u8] {
        match self {
            PlannedTwin::Found { path, .. } | PlannedTwin::New { path, .. } => path,
        }
    }
}

/// Returns whether a file that is deleted, or whose content is taken, is as it was when the plan was made, or as an
/// interrupted run leaves it: with some of the attributes that the run gives to it. A file that is renamed gets those of the
/// new file before it gets the name.
pub fn is_usable(
    found: &Entry,
    before: &EntryState,
    given: &[EntryState],
    policy: &Policy,
) -> bool {
    let mut found = EntryState::found(found);
    if found.is_recorded(before) {
        return true;
    }
    if given.is_empty() {
        return false;
    }
    if found.is_on_the_way(before, given, policy) {
        return true;
    }
    // An access time that was set shows only in the time of the last change.
    if policy.preserve.atimes {
        found.ctime = None;
    }
    found.is_recorded(before)
}
