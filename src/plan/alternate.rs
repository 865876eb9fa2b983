//! How an entry in an alternate tree changes a decision.

use super::{Action, Changes, Decision, InTheWay, Policy, Reason, changes_of_new, unkept_time};
use crate::flist::{Entry, Kind};
use crate::options::AltKind;

/// How closely an entry of an alternate tree matches the source entry. Greater is closer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Similarity {
    /// The same kind.
    Kind,
    /// The same kind and data, but different attributes.
    Data,
    /// Identical.
    All,
}

/// A usable entry of an alternate tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// How closely it matches.
    pub similarity: Similarity,
    /// Which attributes differ.
    pub changes: Changes,
}

impl Candidate {
    /// Rates an alternate entry by the action that would follow if it were at the destination. Returns `None` if it is
    /// of no use.
    pub fn for_action(action: Action) -> Option<Candidate> {
        let (similarity, changes) = match action {
            Action::Keep => (Similarity::All, Changes::NONE),
            Action::Adjust(changes) if changes.is_none() => (Similarity::All, changes),
            Action::Adjust(changes) => (Similarity::Data, changes),
            Action::Transfer(changes) | Action::Create(changes) if !changes.has(Changes::NEW) => {
                (Similarity::Kind, changes)
            }
            Action::Transfer(_) | Action::Create(_) => return None,
            Action::AskDigest
            | Action::Link
            | Action::Copy(_)
            | Action::Elsewhere
            | Action::Refuse(_) => return None,
        };
        Some(Candidate {
            similarity,
            changes,
        })
    }
}

/// Which entries of an alternate tree can change a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// No entry.
    Nothing,
    /// Only an identical one, because the destination already has a basis.
    VeryThing,
    /// Any of the same kind.
    Any,
}

/// Returns which entries to look for in the alternate trees.
///
/// A file that the destination has is replaced by a link to an identical one (`--link-dest`) or removed
/// (`--compare-dest`). A symlink, device or special file is looked up only if the destination has no entry.
pub fn may_use(
    source: &Entry,
    dest: Option<&Entry>,
    decision: Decision,
    alternates: AltKind,
    policy: &Policy,
) -> Use {
    let is_refused =
        matches!(decision.action, Action::Refuse(reason) if reason != Reason::NothingToAppend);
    if policy.list_only || is_refused {
        return Use::Nothing;
    }
    match source.kind() {
        Kind::File if decision.action.is_new() => Use::Any,
        Kind::File if alternates != AltKind::Copy => Use::VeryThing,
        Kind::File => Use::Nothing,
        Kind::Dir if decision.action.is_new() => Use::Any,
        Kind::Symlink | Kind::Device | Kind::Special if dest.is_none() => Use::Any,
        Kind::Dir | Kind::Symlink | Kind::Device | Kind::Special => Use::Nothing,
    }
}

/// Decides again, given the best entry of the alternate trees.
pub fn decide(
    source: &Entry,
    decision: Decision,
    found: Candidate,
    alternates: AltKind,
    policy: &Policy,
) -> Decision {
    let kind = source.kind();
    let changes = found.changes;
    let with_time = changes | unkept_time(kind, &policy.preserve);
    let action = match (kind, found.similarity, alternates) {
        (Kind::Dir, Similarity::All, _) => Action::Create(Changes::NONE),
        (Kind::Dir, Similarity::Data | Similarity::Kind, _) => Action::Create(with_time),
        (_, Similarity::All, AltKind::Link) => Action::Link,
        (_, Similarity::All, AltKind::Compare) => Action::Elsewhere,
        (Kind::File, Similarity::All, AltKind::Copy) | (Kind::File, Similarity::Data, _) => {
            Action::Copy(with_time)
        }
        (Kind::File, Similarity::Kind, _) => Action::Transfer(changes),
        (Kind::Symlink | Kind::Device | Kind::Special, Similarity::Data, _) => {
            Action::Create(changes_of_new(kind, changes, policy))
        }
        (Kind::Symlink | Kind::Device | Kind::Special, _, _) => Action::Create(changes),
    };
    // An existing destination entry is removed as if it were replaced.
    let in_the_way = decision.in_the_way;
    debug_assert!(in_the_way == InTheWay::Nothing || decision.action.is_new());
    Decision { action, in_the_way }
}
