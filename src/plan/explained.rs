//! What a run finds out about the paths of `sparsync explain`.
//!
//! Each end reports what it has found where it is decided, and the client makes sentences of it. So an explanation is never a
//! second decision.

use super::planned::EntryState;
use super::{Action, Changes, Decision, InTheWay, Policy, Reason};
use crate::filter::{FoundRule, Side};
use crate::flist::{Entry, Kind};

/// One fact about a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The path in the transfer: one of those to explain, or a directory above one of them. Empty for the root.
    pub path: Vec<u8>,
    pub fact: Fact,
}

/// What was found out about a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// A filter rule decides about it at one end.
    Rule {
        side: Side,
        is_dir: bool,
        rule: FoundRule,
    },
    /// Its directory was listed at this end, and has no such name.
    Absent(Side),
    /// The destination has it, in a directory that the source lacks.
    AtDest(Kind),
    /// `-x`: it is on another file system than the argument, so its content takes no part.
    MountPoint,
    /// The content of this directory takes no part.
    NotEntered,
    /// The receiver has compared it.
    Decided(Box<DecidedFact>),
    /// `-m`: the directory is left out because nothing in it takes part.
    Pruned,
    /// A directory is in its place and must not be deleted.
    NoRoom,
    /// It is, or becomes, a hard link of this path.
    Linked(Vec<u8>),
    /// Only the destination has it, and this happens to it. The last such fact counts.
    Extra(Fate),
}

/// What happens to an entry that only the destination has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stays, because the options request no deletions.
    NotRequested,
    /// It stays, because the source has not listed this directory as a whole.
    NotCompared,
    /// It stays, because a rule protects it.
    Protected,
    /// It is to be deleted.
    Doomed,
    /// It is deleted.
    Deleted,
    /// It stays because of `--max-delete`.
    LimitReached,
    /// It stays, because it is on another file system (`-x`).
    OtherFileSystem,
    /// It stays, because something in it stays.
    NotEmpty,
}

impl Fate {
    /// All of them, in the order of their numbers in the protocol.
    pub const ALL: [Fate; 8] = [
        Fate::NotRequested,
        Fate::NotCompared,
        Fate::Protected,
        Fate::Doomed,
        Fate::Deleted,
        Fate::LimitReached,
        Fate::OtherFileSystem,
        Fate::NotEmpty,
    ];
}

/// The decision about an entry of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedFact {
    pub outcome: DecidedOutcome,
    /// What must be removed first.
    pub in_the_way: InTheWay,
    /// The entry of the source, as far as it is preserved.
    pub source: EntryState,
    /// What the destination has.
    pub dest: Option<EntryState>,
}

/// What is done about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecidedOutcome {
    /// Nothing: it is the same.
    Keep,
    /// Its attributes are changed.
    Adjust(Changes),
    /// A directory, symlink, device or special file is created, or replaces an entry.
    Create(Changes),
    /// The content of a file is transferred.
    Transfer(Changes),
    /// It becomes a hard link of the file in an alternate tree.
    LinkAlternate,
    /// It is copied from an alternate tree.
    CopyAlternate(Changes),
    /// An alternate tree has it, so the destination gets none.
    Elsewhere,
    /// It is left alone.
    Refuse(Reason),
}

impl DecidedOutcome {
    fn of(action: Action) -> DecidedOutcome {
        match action {
            Action::Keep => DecidedOutcome::Keep,
            Action::Adjust(changes) => DecidedOutcome::Adjust(changes),
            Action::Create(changes) => DecidedOutcome::Create(changes),
            Action::Transfer(changes) => DecidedOutcome::Transfer(changes),
            Action::Link => DecidedOutcome::LinkAlternate,
            Action::Copy(changes) => DecidedOutcome::CopyAlternate(changes),
            Action::Elsewhere => DecidedOutcome::Elsewhere,
            Action::AskDigest => unreachable!("the walk compares contents before it decides"),
            Action::Refuse(reason) => DecidedOutcome::Refuse(reason),
        }
    }

    /// Returns the differences that it is about.
    pub fn changes(self) -> Changes {
        match self {
            DecidedOutcome::Adjust(changes)
            | DecidedOutcome::Create(changes)
            | DecidedOutcome::Transfer(changes)
            | DecidedOutcome::CopyAlternate(changes) => changes,
            DecidedOutcome::Keep
            | DecidedOutcome::LinkAlternate
            | DecidedOutcome::Elsewhere
            | DecidedOutcome::Refuse(_) => Changes::NONE,
        }
    }
}

impl DecidedFact {
    /// Returns the fact about a decision. `source` is as the destination must have it.
    pub fn new(
        source: &Entry,
        dest: Option<&Entry>,
        decision: Decision,
        policy: &Policy,
    ) -> DecidedFact {
        let found = EntryState::found(source);
        let wanted = EntryState::wanted(source, policy);
        DecidedFact {
            outcome: DecidedOutcome::of(decision.action),
            in_the_way: decision.in_the_way,
            // The quick check uses the time even if it is not preserved.
            source: EntryState {
                mtime: found.mtime,
                mode: found.mode,
                ..wanted
            },
            dest: dest.map(EntryState::found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_with_differences_tell_them() {
        let changes = Changes::PERMS;
        for (action, expected) in [
            (Action::Adjust(changes), changes),
            (Action::Create(changes), changes),
            (Action::Transfer(changes), changes),
            (Action::Copy(changes), changes),
            (Action::Link, Changes::NONE),
            (Action::Keep, Changes::NONE),
            (Action::Elsewhere, Changes::NONE),
        ] {
            assert_eq!(DecidedOutcome::of(action).changes(), expected, "{action:?}");
        }
    }
}
