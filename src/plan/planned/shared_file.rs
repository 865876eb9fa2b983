//! Files of the destination with several names: an action for one of them changes the attributes that all of them have.

use super::{EntryState, PlannedAct, PlannedAction, S_IFMT};
use crate::flist::Entry;
use crate::plan::compared::Perms;
use crate::plan::{Compared, Policy};

/// A file of the destination that has several names, by its device and inode numbers. They only tell which names of one plan
/// are the same file, and may be other ones when it is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedFile {
    pub dev: u64,
    pub ino: u64,
}

impl SharedFile {
    /// Returns the file of an entry; `None`: it has one name.
    pub fn of(entry: &Entry) -> Option<SharedFile> {
        let inode = entry.inode.as_ref()?;
        Some(SharedFile {
            dev: inode.dev,
            ino: inode.ino,
        })
    }
}

impl PlannedAction {
    /// Returns the file with several names that it gives a state to, with that state. All other actions give its name to
    /// another file.
    pub fn given_state(&self) -> Option<(SharedFile, &EntryState)> {
        if self.act == PlannedAct::Adjust {
            Some((self.file?, self.after.as_ref()?))
        } else {
            None
        }
    }
}

impl EntryState {
    /// Returns whether this is a state between one before and those that actions give to the entry: each attribute is one of
    /// theirs, and some have been set. If none has, something else has changed the entry.
    pub(super) fn is_on_the_way(
        &self,
        before: &EntryState,
        given: &[EntryState],
        policy: &Policy,
    ) -> bool {
        let but_ctime = EntryState {
            ctime: before.ctime,
            digest: before.digest,
            ..self.clone()
        };
        let is_given =
            |has_it: &dyn Fn(&EntryState) -> bool| has_it(before) || given.iter().any(has_it);
        but_ctime != *before
            && self.has_content_of(before)
            && is_given(&|it| it.mtime == self.mtime)
            && is_given(&|it| it.uid == self.uid)
            && is_given(&|it| it.gid == self.gid)
            && is_given(&|it| self.has_mode_of(it, before, policy))
            && self.names_of_attributes(before, given).all(|name| {
                let value = self.attribute(name);
                is_given(&|it| it.attribute(name) == value)
            })
    }

    /// Returns whether the mode is that of another state, of which only those bits are known that are compared. The set-ID
    /// bits go when the owner is set, and come back with the mode.
    fn has_mode_of(&self, other: &EntryState, before: &EntryState, policy: &Policy) -> bool {
        let perms = Compared::for_kind(self.kind, &policy.preserve).perms;
        let counted = perms.of(self.mode) | self.mode & S_IFMT;
        let owner_is_set = (self.uid, self.gid) != (before.uid, before.gid);
        self.mode == other.mode
            || counted == other.mode && perms == Perms::Executability
            || owner_is_set && self.mode == other.mode & !0o6000
    }

    /// Returns the names of all attributes that one of the states has.
    fn names_of_attributes<'s>(
        &'s self,
        before: &'s EntryState,
        given: &'s [EntryState],
    ) -> impl Iterator<Item = &'s [u8]> {
        let states = [self, before].into_iter().chain(given);
        states.flat_map(|state| state.attributes.iter().map(|it| &it.name[..]))
    }
}
