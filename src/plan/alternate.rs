//! What an entry in an alternate tree changes about a decision.

use super::{Action, Changes, Decision, InTheWay, Policy, keeps_time, made_anew};
use crate::flist::{Entry, Kind};
use crate::options::AltKind;

/// How far an entry of an alternate tree is what is wanted; more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Likeness {
    /// It is of the same kind.
    Kind,
    /// It has the data, with other attributes.
    Data,
    /// It is the very thing.
    All,
}

/// An entry of an alternate tree that may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// How far it is what is wanted.
    pub likeness: Likeness,
    /// What differs.
    pub changes: Changes,
}

impl Candidate {
    /// What an entry is worth that would have this fate if it were the destination's; `None`: nothing.
    pub fn of(fate: Action) -> Option<Candidate> {
        let (likeness, changes) = match fate {
            Action::Keep => (Likeness::All, Changes::NONE),
            Action::Adjust(changes) if changes.is_none() => (Likeness::All, changes),
            Action::Adjust(changes) => (Likeness::Data, changes),
            Action::Transfer(changes) | Action::Create(changes) if !changes.has(Changes::NEW) => {
                (Likeness::Kind, changes)
            }
            Action::Transfer(_) | Action::Create(_) => return None,
            Action::AskDigest | Action::Link | Action::Copy(_) | Action::Elsewhere | Action::Refuse(_) => return None,
        };
        Some(Candidate { likeness, changes })
    }
}

/// What of an alternate tree can change a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nothing.
    Nothing,
    /// The very thing only, because the destination has something to begin with.
    VeryThing,
    /// Whatever is of the same kind.
    Any,
}

/// Asks whether alternate trees are worth a look.
///
/// A file that the destination has gives way to a link to the very thing (`--link-dest`) or to nothing at
/// all (`--compare-dest`). A symlink, device or special file is looked for only where nothing is.
pub fn may_use(source: &Entry, dest: Option<&Entry>, decision: Decision, alternates: AltKind, policy: &Policy) -> Use {
    if policy.list_only || matches!(decision.action, Action::Refuse(_)) {
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

/// Decides anew, with the best that the alternate trees have.
pub fn decide(source: &Entry, decision: Decision, found: Candidate, alternates: AltKind, policy: &Policy) -> Decision {
    let kind = source.kind();
    let changes = found.changes;
    let with_time = match (kind, policy.preserve.times) {
        // Nobody asks for its time to be kept, and yet it does not count as that of now (-O).
        (Kind::Dir, true) => changes.with(Changes::TIME, policy.preserve.omit_dir_times),
        _ => changes.with(Changes::TIME_NOW, !keeps_time(kind, &policy.preserve)),
    };
    let action = match (kind, found.likeness, alternates) {
        (Kind::Dir, Likeness::All, _) => Action::Create(Changes::NONE),
        (Kind::Dir, Likeness::Data | Likeness::Kind, _) => Action::Create(with_time),
        (_, Likeness::All, AltKind::Link) => Action::Link,
        (_, Likeness::All, AltKind::Compare) => Action::Elsewhere,
        (Kind::File, Likeness::All, AltKind::Copy) | (Kind::File, Likeness::Data, _) => Action::Copy(with_time),
        (Kind::File, Likeness::Kind, _) => Action::Transfer(changes),
        (Kind::Symlink | Kind::Device | Kind::Special, Likeness::Data, _) => {
            Action::Create(made_anew(kind, changes, policy))
        }
        (Kind::Symlink | Kind::Device | Kind::Special, _, _) => Action::Create(changes),
    };
    // Where the destination's own entry goes, it goes as one that is replaced does.
    let in_the_way = decision.in_the_way;
    debug_assert!(in_the_way == InTheWay::Nothing || decision.action.is_new());
    Decision { action, in_the_way }
}
