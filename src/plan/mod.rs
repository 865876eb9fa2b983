//! The comparison: what to do about each pair of source and destination entry.
//!
//! [`decide`] chooses the action for an entry. It uses no file, clock or thread, and does not know whether the run is
//! dry, local, a push or a pull.

pub mod action;
pub mod alternate;
pub mod changes;
pub mod chmod;
mod compared;
pub mod delete;
pub mod explained;
pub mod fuzzy;
pub mod idmap;
pub mod planned;
pub mod quick_check;
pub mod renamed;
pub mod safelink;
#[cfg(test)]
mod tests;

pub use action::{Action, BasisName, InTheWay, Reason};
pub use changes::Changes;
pub use compared::{Compared, keeps_atime, keeps_time, unkept_time};

use crate::digest;
use crate::flist::abbreviated::AbbreviatedValue;
use crate::flist::{Entry, Kind};
use crate::options::{Check, CheckMode, Preserve};
use quick_check::{Sameness, is_spared, quick_check, same_time};

/// An owner or group that cannot or must not be set.
pub const NO_ID: u32 = u32::MAX;

/// See [`Policy::same_acls`].
pub type SameAcls = fn(wanted: (&[u8], &[u8]), have: (&[u8], &[u8])) -> bool;

/// Everything that a decision may depend on besides the two entries.
///
/// The source entry is as it should be at the destination: `--chmod` and id mapping are applied, and ids that cannot be
/// set are [`NO_ID`].
#[derive(Debug, Clone)]
pub struct Policy {
    /// When two files count as equal.
    pub check: Check,
    /// Which attributes are preserved.
    pub preserve: Preserve,
    /// `--append`: a file that is at least as long at the destination is not transferred.
    pub append: bool,
    /// `--max-size`
    pub max_size_bytes: Option<u64>,
    /// `--min-size`
    pub min_size_bytes: Option<u64>,
    /// Entries are only listed; no entry is changed.
    pub list_only: bool,
    /// Whether devices can be created (as root or with fake-super).
    pub may_make_devices: bool,
    /// Returns whether two ACLs count as equal, in the form in which `fs` reads them. The second element of each pair
    /// is the default ACL. The comparison is in `fs` because the format is the kernel's.
    pub same_acls: SameAcls,
}

/// What to do about an entry, and what to remove first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// What must be removed first.
    pub in_the_way: InTheWay,
}

impl Decision {
    /// Returns the decision that an entry stays as it is.
    pub fn keep() -> Decision {
        Decision::new(Action::Keep)
    }

    fn new(action: Action) -> Decision {
        Decision {
            action,
            in_the_way: InTheWay::Nothing,
        }
    }
}

/// What a decision is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// An entry of the transfer, which options may exclude.
    Entry,
    /// As [`Subject::Entry`]: a symlink that `safelink` rejects, under `--safe-links`.
    UnsafeLink,
    /// As [`Subject::Entry`]: the rules of a daemon's module exclude it.
    Forbidden,
    /// What no option excludes: the transfer's root, which the run creates if needed; an entry of an alternate tree, or
    /// another name of a file, in place of the destination's entry.
    Included,
}

/// Decides what to do about one entry of the source, given what the destination or another tree has.
///
/// `same_content` is the result of comparing the contents; if it is `None`, the answer may be [`Action::AskDigest`].
pub fn decide(
    source: &Entry,
    dest: Option<&Entry>,
    same_content: Option<bool>,
    subject: Subject,
    policy: &Policy,
) -> Decision {
    if policy.list_only {
        return Decision::new(Action::Keep);
    }
    if subject != Subject::Included
        && let Some(reason) = refusal(source, dest, subject, policy)
    {
        return Decision::new(Action::Refuse(reason));
    }
    fate(source, dest, same_content, policy)
}

/// Decides about an entry that no option excludes.
fn fate(
    source: &Entry,
    dest: Option<&Entry>,
    same_content: Option<bool>,
    policy: &Policy,
) -> Decision {
    let kind = source.kind();
    let same_kind = dest.filter(|dest| dest.stands_for(kind));
    let Some(dest) = same_kind else {
        let in_the_way = match dest {
            Some(dest) if dest.is_dir() => InTheWay::Dir,
            Some(_) => InTheWay::Other,
            None => InTheWay::Nothing,
        };
        let action = match kind {
            Kind::File => Action::Transfer(Changes::NEW),
            _ => Action::Create(Changes::NEW),
        };
        return Decision { action, in_the_way };
    };
    let attributes = attribute_changes(source, dest, policy);
    let is_settled = attributes.is_none()
        && !is_unsettled(dest, &policy.preserve)
        && times_to_set(source, dest, attributes, policy) == TimesToSet::Neither;
    let adjust = if is_settled {
        Action::Keep
    } else {
        Action::Adjust(attributes)
    };
    Decision::new(match kind {
        Kind::Dir => adjust,
        Kind::Symlink if source.target() == dest.target() => adjust,
        Kind::Symlink => Action::Create(changes_of_new(kind, attributes, policy)),
        // rsync accepts a block device in place of a character device with the same number; sparsync recreates it.
        Kind::Device if same_type(kind, source, dest) && rdev(source) == rdev(dest) => adjust,
        Kind::Device => Action::Create(changes_of_new(kind, attributes, policy)),
        Kind::Special if same_type(kind, source, dest) => adjust,
        Kind::Special => Action::Create(changes_of_new(kind, attributes, policy)),
        Kind::File => match (quick_check(source, dest, &policy.check), same_content) {
            (Sameness::Same, _) | (Sameness::AskDigest, Some(true)) => adjust,
            (Sameness::AskDigest, None) => Action::AskDigest,
            (Sameness::Differs, _) | (Sameness::AskDigest, Some(false))
                if policy.append && dest.len_bytes >= source.len_bytes =>
            {
                Action::Refuse(Reason::NothingToAppend)
            }
            (Sameness::Differs, _) | (Sameness::AskDigest, Some(false)) => Action::Transfer(
                (attributes | unkept_time(kind, &policy.preserve))
                    .with(Changes::CHECKSUM, policy.check.mode == CheckMode::Digest)
                    .with(Changes::SIZE, source.len_bytes != dest.len_bytes),
            ),
        },
    })
}

/// Returns whether an existing entry must be changed although no attribute that is compared differs. Nothing is printed
/// about such a change.
pub fn is_unsettled(dest: &Entry, preserve: &Preserve) -> bool {
    let required = &preserve.required_modes;
    let has_mode = dest.kind() != Kind::Symlink;
    dest.is_unsettled() || has_mode && chmod::apply(dest.mode, dest.is_dir(), required) != dest.mode
}

/// Returns why an entry is left alone. The order of the checks is rsync's.
fn refusal(
    source: &Entry,
    dest: Option<&Entry>,
    subject: Subject,
    policy: &Policy,
) -> Option<Reason> {
    let kind = source.kind();
    let check = &policy.check;
    if subject == Subject::Forbidden {
        return Some(Reason::Forbidden);
    }
    if check.existing_only && dest.is_none() {
        return Some(Reason::NotExisting);
    }
    if check.ignore_existing && dest.is_some_and(|dest| kind != Kind::Dir || !dest.is_dir()) {
        return Some(Reason::Exists);
    }
    match kind {
        Kind::Dir => None,
        Kind::Symlink if !policy.preserve.links => Some(Reason::NonRegular),
        Kind::Symlink if subject == Subject::UnsafeLink => Some(Reason::UnsafeLink),
        Kind::Symlink => None,
        Kind::Device if !policy.preserve.devices || !policy.may_make_devices => {
            Some(Reason::NonRegular)
        }
        Kind::Special if !policy.preserve.specials => Some(Reason::NonRegular),
        Kind::Device | Kind::Special if policy.preserve.drop_devices => Some(Reason::NonRegular),
        Kind::Device | Kind::Special => None,
        Kind::File
            if policy
                .max_size_bytes
                .is_some_and(|max| source.len_bytes > max) =>
        {
            Some(Reason::TooLarge)
        }
        Kind::File
            if policy
                .min_size_bytes
                .is_some_and(|min| source.len_bytes < min) =>
        {
            Some(Reason::TooSmall)
        }
        Kind::File => {
            let newer = |dest: &Entry| {
                dest.kind() == Kind::File && is_spared(dest.mtime, source.mtime, check.window_secs)
            };
            (check.update && dest.is_some_and(newer)).then_some(Reason::Newer)
        }
    }
}

/// Returns whether the file types are equal: a fifo and a socket are both special files, a character and a block device
/// are both devices, but they are not the same type.
fn same_type(kind: Kind, source: &Entry, dest: &Entry) -> bool {
    match kind {
        Kind::Device | Kind::Special => {
            (source.mode ^ dest.mode) & crate::flist::entry::S_IFMT == 0
        }
        Kind::File | Kind::Dir | Kind::Symlink => true,
    }
}

/// Which times an existing entry gets from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimesToSet {
    /// None.
    Neither,
    /// The access time.
    AccessTime,
    /// The modification time, and the access time if that is kept.
    Both,
}

/// Returns which times an existing entry with these changes gets.
///
/// A modification time that counts as equal is left alone as a rule. But rsync sets the exact time if extended
/// attributes change, and of each file that `--checksum` has found to be equal. This is never shown as a change, and
/// neither is the access time of a symlink.
pub fn times_to_set(source: &Entry, dest: &Entry, changes: Changes, policy: &Policy) -> TimesToSet {
    let is_compared_by_content =
        source.kind() == Kind::File && policy.check.mode == CheckMode::Digest;
    let gets_exact_time = is_compared_by_content && keeps_time(Kind::File, &policy.preserve);
    let has_other_atime = source.kind() == Kind::Symlink
        && keeps_atime(Kind::Symlink, &policy.preserve)
        && accessed_secs(source) != accessed_secs(dest);
    if changes.any(Changes::TIME | Changes::XATTR) || gets_exact_time && source.mtime != dest.mtime
    {
        TimesToSet::Both
    } else if changes.has(Changes::ATIME) || has_other_atime {
        TimesToSet::AccessTime
    } else {
        TimesToSet::Neither
    }
}

/// Returns the access time in whole seconds, in which rsync keeps it; `None` if it is not preserved.
fn accessed_secs(entry: &Entry) -> Option<i64> {
    let time = entry.extra.as_ref()?.atime?;
    Some(time.secs)
}

fn rdev(entry: &Entry) -> u64 {
    entry.extra.as_ref().map_or(0, |extra| extra.rdev)
}

fn changes_of_new(kind: Kind, attributes: Changes, policy: &Policy) -> Changes {
    attributes | Changes::CHECKSUM | unkept_time(kind, &policy.preserve)
}

/// Returns whether an owner or group differs and can be set. The super-user can set all ids, so there [`NO_ID`] was
/// requested by this number; no file has it, so it always differs.
fn id_differs(wanted: u32, has: u32, policy: &Policy) -> bool {
    let is_wanted = wanted != NO_ID || (policy.may_make_devices && !policy.preserve.fake_super);
    is_wanted && wanted != has
}

/// Returns whether two entries have the same extended attributes. Abbreviated values of the source are compared by
/// their digests.
fn same_xattrs(source: &Entry, dest: &Entry) -> bool {
    if !source.has_abbreviated() {
        return source.xattrs() == dest.xattrs();
    }
    let source = source.xattrs();
    let dest = dest.xattrs();
    source.len() == dest.len()
        && source
            .iter()
            .zip(dest)
            .all(|((name, value), (other, present))| {
                name == other
                    && AbbreviatedValue::decode(value)
                        .map_or(value == present, |wanted| is_abbreviation(&wanted, present))
            })
}

/// Returns whether a value is the abbreviated one.
pub fn is_abbreviation(wanted: &AbbreviatedValue, value: &[u8]) -> bool {
    value.len() == wanted.len_bytes as usize && digest::of_attribute(value) == wanted.digest
}

/// Returns what differs where a hard link takes the place of an entry of another kind. As in rsync, it is compared with
/// that entry, where a new file would count as new.
pub fn changes_by_link(source: &Entry, replaced: &Entry, policy: &Policy) -> Changes {
    let has_other_size = source.kind() == Kind::File && source.len_bytes != replaced.len_bytes;
    // A symlink has all permissions; here they count.
    let perms = Compared::for_kind(Kind::File, &policy.preserve).perms;
    attribute_changes(source, replaced, policy)
        .with(Changes::SIZE, has_other_size)
        .with(
            Changes::PERMS,
            perms.of(source.mode) != perms.of(replaced.mode),
        )
}

/// Returns which of the preserved attributes differ between two entries of the same kind.
pub fn attribute_changes(source: &Entry, dest: &Entry, policy: &Policy) -> Changes {
    let Compared {
        perms,
        mtime,
        owner,
        group,
        atime,
        acls,
        xattrs,
    } = Compared::for_kind(source.kind(), &policy.preserve);
    Changes::NONE
        .with(
            Changes::TIME,
            mtime && !same_time(source.mtime, dest.mtime, policy.check.window_secs),
        )
        .with(Changes::PERMS, perms.of(source.mode) != perms.of(dest.mode))
        .with(
            Changes::OWNER,
            owner && id_differs(source.uid, dest.uid, policy),
        )
        .with(
            Changes::GROUP,
            group && id_differs(source.gid, dest.gid, policy),
        )
        .with(
            Changes::ATIME,
            atime && accessed_secs(source) != accessed_secs(dest),
        )
        .with(
            Changes::ACL,
            acls && !(policy.same_acls)(source.acls(), dest.acls()),
        )
        .with(Changes::XATTR, xattrs && !same_xattrs(source, dest))
}
