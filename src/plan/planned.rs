//! The actions of a stored plan (`sparsync plan`): what they record, and what `sparsync apply` does about each of them.

mod gap;
mod shared_file;
mod twins;

pub use self::gap::{IncompletePlan, PlanGap};
pub use self::shared_file::SharedFile;
pub use self::twins::{PlannedTwin, TwinUse, is_usable};
use super::{
    Action, Changes, Compared, Decision, NO_ID, Policy, Subject, attribute_changes, decide,
};
use crate::digest::{HashAlgorithm, OWN_LEN_BYTES, StandardHasher};
use crate::flist::entry::S_IFMT;
use crate::flist::{Entry, Kind, Time};
use crate::options::{Check, CheckMode, Preserve};

/// The type of a directory in a mode.
const S_IFDIR: u32 = 0o040_000;

/// What is done to one name of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedAct {
    /// A directory, symlink, device or special file is created, or replaces an entry.
    Create,
    /// The content of a file is transferred.
    Transfer,
    /// Attributes are changed.
    Adjust,
    /// The name becomes a hard link of another one of its group (`-H`).
    HardLink,
    /// The file becomes a hard link of one in an alternate tree.
    Link,
    /// The content is copied from an alternate tree.
    Copy,
    /// The file is removed, because an alternate tree has the same one (`--compare-dest`).
    Vacate,
    /// The entry is deleted.
    Delete,
}

impl PlannedAct {
    /// All of them, in the order of a summary.
    pub const ALL: [PlannedAct; 8] = [
        PlannedAct::Create,
        PlannedAct::Transfer,
        PlannedAct::Adjust,
        PlannedAct::HardLink,
        PlannedAct::Link,
        PlannedAct::Copy,
        PlannedAct::Vacate,
        PlannedAct::Delete,
    ];

    /// Returns its name in a plan.
    pub fn name(self) -> &'static str {
        match self {
            PlannedAct::Create => "create",
            PlannedAct::Transfer => "transfer",
            PlannedAct::Adjust => "adjust",
            PlannedAct::HardLink => "hard_link",
            PlannedAct::Link => "link",
            PlannedAct::Copy => "copy",
            PlannedAct::Vacate => "vacate",
            PlannedAct::Delete => "delete",
        }
    }

    /// Returns what a decision does, with the differences; `None` if it changes nothing. `has_dest`: the destination has an
    /// entry of the name.
    fn of(action: Action, has_dest: bool) -> Option<(PlannedAct, Changes)> {
        match action {
            Action::Adjust(changes) => Some((PlannedAct::Adjust, changes)),
            Action::Create(changes) => Some((PlannedAct::Create, changes)),
            Action::Transfer(changes) => Some((PlannedAct::Transfer, changes)),
            Action::Copy(changes) => Some((PlannedAct::Copy, changes)),
            Action::Link => Some((PlannedAct::Link, Changes::NONE)),
            Action::Elsewhere if has_dest => Some((PlannedAct::Vacate, Changes::NONE)),
            Action::Keep | Action::Elsewhere | Action::AskDigest | Action::Refuse(_) => None,
        }
    }
}

/// The state of an entry, as far as it counts. A directory has no times and no length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryState {
    pub kind: Kind,
    /// Permission bits with the type.
    pub mode: u32,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// The length of a file.
    pub len_bytes: Option<u64>,
    pub mtime: Option<Time>,
    /// The target of a symlink.
    pub target: Option<Vec<u8>>,
    /// The number of a device.
    pub rdev: Option<u64>,
    /// When a file with one name was last changed in any way, if it was found at the destination.
    pub ctime: Option<Time>,
    /// The digest of the content of a file, if contents are compared (`-c`) and it was read for that.
    pub digest: Option<ContentState>,
    /// The extended attributes and ACLs, as far as they are compared, in order.
    pub attributes: Vec<AttributeState>,
}

/// The digest of a content, see [`Comparison::for_plans`](crate::digest::Comparison::for_plans).
pub type ContentState = [u8; OWN_LEN_BYTES];

/// The state of an extended attribute, or of an ACL, which has the name that the kernel gives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeState {
    pub name: Vec<u8>,
    pub digest: AttributeDigest,
}

/// The beginning of the BLAKE3 digest of a value.
pub type AttributeDigest = [u8; 16];

/// The names of ACLs among the attributes: the access ACL, and the default ACL of a directory.
const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl EntryState {
    /// Returns the state of an entry that exists.
    pub fn found(entry: &Entry) -> EntryState {
        let kind = entry.kind();
        EntryState {
            kind,
            mode: entry.mode,
            uid: Some(entry.uid),
            gid: Some(entry.gid),
            len_bytes: if kind == Kind::File {
                Some(entry.len_bytes)
            } else {
                None
            },
            mtime: if kind == Kind::Dir {
                None
            } else {
                Some(entry.mtime)
            },
            target: if kind == Kind::Symlink {
                Some(entry.target().to_vec())
            } else {
                None
            },
            rdev: if kind == Kind::Device {
                Some(rdev_of(entry))
            } else {
                None
            },
            ctime: entry.extra.as_ref().and_then(|extra| extra.ctime),
            digest: digest_of(entry),
            attributes: attributes_of(entry),
        }
    }

    /// Returns the state that an entry of the source, as the destination must have it, gives to the destination: only the
    /// attributes that are preserved.
    pub fn wanted(source: &Entry, policy: &Policy) -> EntryState {
        let compared = Compared::for_kind(source.kind(), &policy.preserve);
        let found = EntryState::found(source);
        // The bits that count are the only ones that are recorded.
        let mode = compared.perms.of(source.mode) | source.mode & S_IFMT;
        let id = |is_kept: bool, id: u32| {
            if is_kept && id != NO_ID {
                Some(id)
            } else {
                None
            }
        };
        EntryState {
            mode,
            uid: id(compared.owner, source.uid),
            gid: id(compared.group, source.gid),
            mtime: if compared.mtime { found.mtime } else { None },
            ctime: None,
            ..found
        }
    }

    /// Returns whether this is the recorded state. The time of the last change and the digest of the content only count if
    /// both have it.
    fn is_recorded(&self, recorded: &EntryState) -> bool {
        let is_untouched =
            self.ctime.is_none() || recorded.ctime.is_none() || self.ctime == recorded.ctime;
        let but_ctime = EntryState {
            ctime: recorded.ctime,
            digest: recorded.digest,
            ..self.clone()
        };
        is_untouched && self.has_digest_of(recorded) && but_ctime == *recorded
    }

    /// Returns whether nothing is known of a difference of the contents.
    fn has_digest_of(&self, other: &EntryState) -> bool {
        self.digest.is_none() || other.digest.is_none() || self.digest == other.digest
    }

    /// Returns the digest of an attribute; `None`: it has none of this name.
    fn attribute(&self, name: &[u8]) -> Option<AttributeDigest> {
        let found = self.attributes.iter().find(|it| it.name == name)?;
        Some(found.digest)
    }

    /// Returns whether this is an entry that was moved, or copied, to the name of its backup.
    fn is_backup_of(&self, original: &EntryState) -> bool {
        let has_its_time = self.kind != Kind::File || self.mtime == original.mtime;
        self.has_content_of(original) && has_its_time
    }

    /// Returns whether content and type are the same.
    fn has_content_of(&self, other: &EntryState) -> bool {
        self.mode & S_IFMT == other.mode & S_IFMT
            && self.len_bytes == other.len_bytes
            && self.has_digest_of(other)
            && self.target == other.target
            && self.rdev == other.rdev
    }
}

/// One action of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedAction {
    /// The path below the destination; `.` for the destination itself.
    pub path: Vec<u8>,
    pub act: PlannedAct,
    /// What differs, as `-i` shows it.
    pub changes: Changes,
    /// What the destination has before; `None`: nothing.
    pub before: Option<EntryState>,
    /// What the source has, and the destination afterwards; `None`: nothing.
    pub after: Option<EntryState>,
    /// The file that the destination has before, if that has several names.
    pub file: Option<SharedFile>,
    /// The names of the file, if it has several and they are kept (`-H`).
    pub links: Option<HardLinks>,
    /// The backup that is made of what the destination has.
    pub backup: Option<PlannedBackup>,
    /// The file whose content a new file takes (`--detect-renamed`).
    pub twin: Option<Box<PlannedTwin>>,
    /// Of the deletion of a twin that is renamed: the path of the new file.
    pub heir: Option<Vec<u8>>,
}

/// The backup of what an action replaces or deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBackup {
    /// Where it belongs, for people: below the destination, or in the directory of `--backup-dir`.
    pub path: Vec<u8>,
    /// What is there before, which the backup replaces; `None`: nothing.
    pub before: Option<EntryState>,
}

/// What there is where a backup belongs, when a plan is carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupPlace {
    Free,
    /// The entry that is to be backed up, under a second name.
    Itself,
    Taken(EntryState),
    /// No backup can be made there without a change that no plan has: something else than a directory is on the way to it.
    Blocked,
}

/// The names of a file that has several, which all get one file at the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardLinks {
    /// The path that is placed first.
    pub first: Vec<u8>,
    pub names: NameSet,
    /// Those of them that stay taken by a directory of the destination. Nothing is done about these.
    pub taken: NameSet,
}

/// A set of paths, in the order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NameSet {
    pub count: u32,
    /// Of each path, with the digest of those before it.
    pub digest: [u8; 16],
}

impl NameSet {
    /// Adds the next path.
    pub fn add(&mut self, path: &[u8]) {
        self.count = self.count.saturating_add(1);
        self.digest = short_digest(&[&self.digest, path]);
    }
}

/// What the ends have of a name of a file with several names, when a plan is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameState {
    /// What they had when the plan was made, or an interrupted run has begun the action.
    Before,
    /// The destination has the file as the source does.
    Placed,
    /// Anything else.
    Changed(ChangedEnd),
}

/// What the ends have of an entry when a plan is carried out, and what the run would do about it.
#[derive(Debug, Clone, Copy)]
pub struct EntryNow<'e> {
    /// As the destination must have it.
    pub source: &'e Entry,
    pub dest: Option<&'e Entry>,
    pub decision: Decision,
    pub policy: &'e Policy,
    /// What other actions give to the entry, see [`PlannedAction::given`].
    pub given: &'e [EntryState],
}

/// Returns the state of a name. `planned`: the action for it; `None`: nothing was to be done.
pub fn state_of_name(planned: Option<&PlannedAction>, now: &EntryNow<'_>) -> NameState {
    if let Some(planned) = planned {
        let wanted = EntryState::wanted(now.source, now.policy);
        if planned.links.is_none() || planned.after.as_ref() != Some(&wanted) {
            return NameState::Changed(ChangedEnd::Source);
        }
        if planned.is_to_be_done(&wanted, now) {
            return NameState::Before;
        }
    }
    if now.decision.action == Action::Keep || is_done(now.source, now.dest, now.policy) {
        NameState::Placed
    } else {
        NameState::Changed(ChangedEnd::Dest)
    }
}

/// What is done about an action of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedVerdict {
    /// Both ends are as they were when the plan was made, or an interrupted run has begun this action.
    Act,
    /// It was done already.
    Done,
    /// One end has changed since. The entry is left alone.
    Left(ChangedEnd),
}

/// The end that has changed since a plan was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedEnd {
    Source,
    Dest,
    /// The destination, or the directory of `--backup-dir`, where the backup of the entry belongs.
    Backup,
    /// The file whose content the entry takes.
    Twin,
}

impl PlannedAction {
    /// Records a decision; `None` if it changes nothing. `source` is as the destination must have it.
    pub fn of_decision(
        path: Vec<u8>,
        source: &Entry,
        dest: Option<&Entry>,
        decision: Decision,
        policy: &Policy,
    ) -> Option<PlannedAction> {
        let (act, changes) = PlannedAct::of(decision.action, dest.is_some())?;
        Some(PlannedAction {
            path,
            act,
            changes,
            before: dest.map(EntryState::found),
            after: Some(EntryState::wanted(source, policy)),
            file: dest.and_then(SharedFile::of),
            links: None,
            backup: None,
            twin: None,
            heir: None,
        })
    }

    /// Records that a name becomes a link of the first one of its group. `decision`: what would be done without that.
    pub fn of_link(
        path: Vec<u8>,
        source: &Entry,
        dest: Option<&Entry>,
        decision: Decision,
        policy: &Policy,
    ) -> PlannedAction {
        let changes = PlannedAct::of(decision.action, dest.is_some()).map(|(_, changes)| changes);
        PlannedAction {
            path,
            act: PlannedAct::HardLink,
            changes: changes.unwrap_or(Changes::NONE),
            before: dest.map(EntryState::found),
            after: Some(EntryState::wanted(source, policy)),
            file: dest.and_then(SharedFile::of),
            links: None,
            backup: None,
            twin: None,
            heir: None,
        }
    }

    /// Records a deletion.
    pub fn of_deletion(path: Vec<u8>, entry: &Entry) -> PlannedAction {
        PlannedAction {
            path,
            act: PlannedAct::Delete,
            changes: Changes::NONE,
            before: Some(EntryState::found(entry)),
            after: None,
            file: SharedFile::of(entry),
            links: None,
            backup: None,
            twin: None,
            heir: None,
        }
    }

    /// Records the creation of the destination, if that is not an entry of the transfer.
    pub fn of_new_root(mode: u32) -> PlannedAction {
        let after = EntryState {
            kind: Kind::Dir,
            mode: S_IFDIR | mode,
            uid: None,
            gid: None,
            len_bytes: None,
            mtime: None,
            target: None,
            rdev: None,
            ctime: None,
            digest: None,
            attributes: Vec::new(),
        };
        PlannedAction {
            path: b".".to_vec(),
            act: PlannedAct::Create,
            changes: Changes::NEW,
            before: None,
            after: Some(after),
            file: None,
            links: None,
            backup: None,
            twin: None,
            heir: None,
        }
    }

    /// Returns the kind of entry that it is about.
    pub fn kind(&self) -> Kind {
        let state = self.after.as_ref().or(self.before.as_ref());
        state.map_or(Kind::File, |state| state.kind)
    }

    /// Returns what to do about it, given what the ends have now and what the run would do. The source's file has one name.
    pub fn verdict(&self, now: &EntryNow<'_>) -> PlannedVerdict {
        let wanted = EntryState::wanted(now.source, now.policy);
        if self.after.as_ref() != Some(&wanted) || self.links.is_some() {
            return PlannedVerdict::Left(ChangedEnd::Source);
        }
        let action = now.decision.action;
        if action == Action::Keep {
            return PlannedVerdict::Done;
        }
        if self.act == PlannedAct::Vacate && action == Action::Elsewhere && now.dest.is_none() {
            return PlannedVerdict::Done;
        }
        if self.is_to_be_done(&wanted, now) {
            return PlannedVerdict::Act;
        }
        if is_done(now.source, now.dest, now.policy) {
            return PlannedVerdict::Done;
        }
        PlannedVerdict::Left(ChangedEnd::Dest)
    }

    /// Returns whether the destination is as it was when the plan was made, or as an interrupted run leaves it. What is as the
    /// run leaves it is done, even if the options would have it done again (`--ignore-times`).
    fn is_to_be_done(&self, wanted: &EntryState, now: &EntryNow<'_>) -> bool {
        let is_untouched = match (&self.before, now.dest) {
            (Some(before), Some(dest)) => EntryState::found(dest).is_recorded(before),
            (_, _) => true,
        };
        // A directory that is done may still lack its time.
        let is_finished =
            !is_untouched && !now.source.is_dir() && is_done(now.source, now.dest, now.policy);
        self.may_be_done(wanted, now) && !is_finished
    }

    /// As [`PlannedAction::is_to_be_done`], but it may have been done already.
    fn may_be_done(&self, wanted: &EntryState, now: &EntryNow<'_>) -> bool {
        if self.act == PlannedAct::HardLink {
            // Only what other actions give counts: the link itself changes no attributes of what it replaces.
            return self.begins_at(wanted, now, now.given);
        }
        let act = PlannedAct::of(now.decision.action, now.dest.is_some()).map(|(act, _)| act);
        if act == Some(PlannedAct::Adjust) && self.is_begun(wanted, now.dest) {
            return true;
        }
        let mut given = now.given.to_vec();
        if let Some(before) = &self.before {
            // A file that is transferred gets its time in a new file.
            let mtime = if self.act == PlannedAct::Adjust {
                wanted.mtime
            } else {
                before.mtime
            };
            given.push(EntryState {
                mtime,
                ..wanted.clone()
            });
        }
        act == Some(self.act) && self.begins_at(wanted, now, &given)
    }

    /// Returns whether the destination has the state before, or one between it and those that are given to the entry: some of
    /// the attributes have been set, or an entry of another kind has been removed.
    fn begins_at(&self, wanted: &EntryState, now: &EntryNow<'_>, given: &[EntryState]) -> bool {
        match (&self.before, now.dest) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(before), None) => self.may_have_made_way(before, wanted),
            (Some(before), Some(dest)) => {
                let found = EntryState::found(dest);
                found.is_recorded(before) || found.is_on_the_way(before, given, now.policy)
            }
        }
    }

    /// Returns whether an interrupted run may have left nothing of the entry: what is in the way of another kind is removed
    /// first, and where a file cannot have a second name, it is renamed to that of its backup, which is examined later.
    fn may_have_made_way(&self, before: &EntryState, wanted: &EntryState) -> bool {
        before.kind != wanted.kind || self.backup.is_some()
    }

    /// Returns the end that keeps the backup of this action from being made, if that is a change since the plan. `dest`: what
    /// the destination has, which an interrupted run may have moved to the place of the backup.
    pub fn no_backup(&self, dest: Option<&Entry>, place: &BackupPlace) -> Option<ChangedEnd> {
        let (Some(backup), Some(before)) = (&self.backup, &self.before) else {
            return None;
        };
        let is_made = match place {
            BackupPlace::Itself => true,
            BackupPlace::Taken(found) => found.is_backup_of(before),
            BackupPlace::Free | BackupPlace::Blocked => false,
        };
        if is_made {
            return None;
        }
        if dest.is_none() {
            return Some(ChangedEnd::Dest);
        }
        let is_as_recorded = match (place, &backup.before) {
            // An older backup that is gone is not replaced.
            (BackupPlace::Free, _) => true,
            // What is in a directory is not in the plan.
            (BackupPlace::Taken(found), Some(recorded)) => {
                found.kind != Kind::Dir && found.is_recorded(recorded)
            }
            (BackupPlace::Taken(_), None) | (BackupPlace::Itself | BackupPlace::Blocked, _) => {
                false
            }
        };
        if is_as_recorded {
            None
        } else {
            Some(ChangedEnd::Backup)
        }
    }

    /// Returns whether an interrupted run has created the entry, so that only attributes are missing. Files get their names
    /// complete.
    fn is_begun(&self, wanted: &EntryState, dest: Option<&Entry>) -> bool {
        self.act == PlannedAct::Create
            && dest.is_some_and(|dest| EntryState::found(dest).has_content_of(wanted))
    }

    /// Returns what other actions of the plan give to the entry before this one is carried out: the actions for other names of
    /// its file, and of a deleted file the new one that it is renamed to. Fails if the plan cannot be read any more.
    pub fn given(&self, stored: &dyn StoredPlan) -> std::io::Result<Vec<EntryState>> {
        let mut given = match self.file {
            Some(file) => stored.given_to(file)?,
            None => Vec::new(),
        };
        if let Some(heir) = &self.heir
            && let Some((_, heir)) = stored.action(heir, false)?
        {
            given.extend(heir.after);
        }
        Ok(given)
    }

    /// Returns what to do about a deletion of an entry that is to be deleted now. `given`: see [`PlannedAction::given`].
    pub fn verdict_of_deletion(
        &self,
        dest: &Entry,
        given: &[EntryState],
        policy: &Policy,
    ) -> PlannedVerdict {
        let Some(before) = &self.before else {
            return PlannedVerdict::Left(ChangedEnd::Dest);
        };
        let found = EntryState::found(dest);
        // A directory is made writable before it is emptied.
        let is_made_writable = before.kind == Kind::Dir
            && found
                == EntryState {
                    mode: before.mode | 0o200,
                    ..before.clone()
                };
        if is_made_writable || is_usable(dest, before, given, policy) {
            PlannedVerdict::Act
        } else {
            PlannedVerdict::Left(ChangedEnd::Dest)
        }
    }
}

/// Returns the states of the extended attributes and ACLs that were read.
fn attributes_of(entry: &Entry) -> Vec<AttributeState> {
    let mut states = Vec::new();
    for (name, value) in entry.xattrs() {
        states.push(attribute_of(name, value));
    }
    let (access, default) = entry.acls();
    for (name, value) in ACL_NAMES.into_iter().zip([access, default]) {
        if !value.is_empty() {
            states.push(attribute_of(name, value));
        }
    }
    states.sort();
    states
}

fn attribute_of(name: &[u8], value: &[u8]) -> AttributeState {
    AttributeState {
        name: name.to_vec(),
        digest: short_digest(&[value]),
    }
}

/// Returns the beginning of the BLAKE3 digest of these bytes.
fn short_digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = StandardHasher::new(HashAlgorithm::Blake3);
    for part in parts {
        hasher.update(part);
    }
    let digest = hasher.finish();
    std::array::from_fn(|at| digest.get(at).copied().unwrap_or(0))
}

/// Returns whether the destination is as the run leaves it, by size and time of files. The options may say otherwise
/// (`--ignore-times`).
fn is_done(source: &Entry, dest: Option<&Entry>, policy: &Policy) -> bool {
    let Some(dest) = dest.filter(|dest| dest.stands_for(source.kind())) else {
        return false;
    };
    if policy.check.mode == CheckMode::Digest && source.kind() == Kind::File {
        // The decision has compared the contents.
        return false;
    }
    if source.is_dir() {
        let but_times = attribute_changes(source, dest, policy).without(Changes::TIME);
        return but_times.is_none();
    }
    // Reading a file moves its access time.
    let preserve = Preserve {
        atimes: false,
        ..policy.preserve.clone()
    };
    let by_time = Policy {
        check: Check {
            mode: CheckMode::Quick {
                window_secs: policy.check.window_secs,
            },
            ..policy.check
        },
        preserve,
        ..policy.clone()
    };
    decide(source, Some(dest), None, Subject::Included, &by_time).action == Action::Keep
}

/// Returns the digest of the content of a file, if it has one.
fn digest_of(entry: &Entry) -> Option<ContentState> {
    let digest = entry.extra.as_ref()?.digest?;
    digest.first_chunk().copied()
}

fn rdev_of(entry: &Entry) -> u64 {
    entry.extra.as_ref().map_or(0, |extra| extra.rdev)
}

/// The actions of a stored plan, for the run that carries them out.
pub trait StoredPlan: Sync + Send + std::fmt::Debug {
    /// Returns the action for a path, with its number; `None`: nothing may be done there. Fails if the plan cannot be read
    /// any more.
    fn action(
        &self,
        path: &[u8],
        is_deletion: bool,
    ) -> std::io::Result<Option<(u32, PlannedAction)>>;

    /// Returns the states that actions give to a file with several names, each of them once. Such an action, for one name,
    /// changes what all of them have. Fails if the plan cannot be read any more.
    fn given_to(&self, file: SharedFile) -> std::io::Result<Vec<EntryState>>;

    /// Records that an action has got its verdict.
    fn settle(&self, number: u32);

    /// Calls a function with each action that has got no verdict, until it fails.
    fn unsettled(
        &self,
        each: &mut dyn FnMut(PlannedAction) -> std::io::Result<()>,
    ) -> std::io::Result<()>;

    /// Calls a function with each action in the order of the plan, until it fails.
    fn each(
        &self,
        each: &mut dyn FnMut(PlannedAction) -> std::io::Result<()>,
    ) -> std::io::Result<()>;

    /// Whether deletions are left out.
    fn leaves_deletions(&self) -> bool;

    /// Whether a destination that does not exist is created: it did not when the plan was made, or may be another one.
    fn creates_dest(&self) -> bool;
}

#[cfg(test)]
mod tests;
