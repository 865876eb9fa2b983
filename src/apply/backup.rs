//! Backups: where they belong, and how they are made of what is replaced or deleted.

use crate::apply::attributes::{self, AttributeTarget, Has};
use crate::apply::dir_finalize::LastTouch;
use crate::apply::{BackupDir, Context};
use crate::flist::abbreviated::{ABBREVIATED_LEN_BYTES, AbbreviatedValue};
use crate::flist::entry::Stat;
use crate::flist::{Entry, Kind};
use crate::fs::copy::{Copier, CopyError, CopyMethod};
use crate::fs::read::EntryAt;
use crate::fs::replace;
use crate::fs::root::Dir;
use crate::fs::sys::{self, Follow};
use crate::fs::write::Pending;
use crate::fs::{
    errno, read,
    read::Incomplete,
    root::Root,
    trusted_path::{self, NewDirMode},
};
use crate::options::LinkOwners;
use crate::path::{self, RelPath};
use crate::plan::delete::LEVELS_MAX;
use crate::plan::planned::{BackupPlace, EntryState, PlannedBackup};
use crate::plan::{Action, Changes, Policy, Subject, decide, safelink};
use crate::report::event::{ErrorRole, Event, Problem, Weight};
use crate::walk::{DirPlan, NONE, Step, unreadable_attribute};
use parking_lot::Mutex;
use std::io::{
    self,
    ErrorKind::{CrossesDevices, PermissionDenied},
};
use std::os::fd::AsFd;
use std::sync::Arc;

impl BackupDir {
    /// Creates the value for an absolute path. `dest_path`: the path of the destination. `umask`: that of the run, for
    /// directories that are created.
    pub fn new(path: Vec<u8>, dest_path: &[u8], umask: u32, owners: LinkOwners) -> BackupDir {
        // A directory that is a symlink makes the text wrong. Then another directory gets its own time once more.
        let below_dest = path::without_climbing(&path)
            .strip_prefix(dest_path)
            .and_then(|rest| rest.strip_prefix(b"/"))
            .and_then(|rest| RelPath::parse(rest).ok());
        BackupDir {
            path,
            umask,
            owners,
            root: Mutex::new(None),
            below_dest,
            above: Mutex::default(),
        }
    }

    /// Takes the last touch of a directory of the transfer, and keeps it if this directory is in that one.
    pub fn hold(&self, path: &RelPath, last: &Arc<LastTouch>) {
        let Some(below_dest) = &self.below_dest else {
            return;
        };
        let rest = below_dest.as_bytes().strip_prefix(path.as_bytes());
        if path.is_root() || matches!(rest, Some([] | [b'/', ..])) {
            self.above.lock().push(last.clone());
        }
    }

    /// Gives the directories around this one their times, at the end of the run.
    pub fn release(&self) {
        let is_used = self.root.lock().is_some();
        for last in self.above.lock().drain(..) {
            if is_used {
                last.touch();
            }
        }
    }

    /// Returns the directory if it exists.
    fn existing(&self) -> io::Result<Option<Root>> {
        if let Some(root) = &*self.root.lock() {
            return Ok(Some(root.clone()));
        }
        let opened = errno::if_there(trusted_path::open_option_dir(&self.path, self.owners))?;
        Ok(opened.map(|fd| Root::new(Dir::new(fd), self.path.clone(), Follow::Never)))
    }

    fn root(&self) -> io::Result<Root> {
        let mut root = self.root.lock();
        if root.is_none() {
            let mode = NewDirMode::ByUmask(self.umask);
            let dir = Dir::new(trusted_path::make_dirs(&self.path, mode, self.owners)?);
            *root = Some(Root::new(dir, self.path.clone(), Follow::Never));
        }
        Ok(root.clone().expect("opened above"))
    }
}

/// The result of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupTarget {
    /// The entry is backed up, or need not be.
    Settled,
    /// The run does not copy entries of this kind, and the backup would be on another file system.
    Skipped,
}

/// Moves an entry that is about to be replaced or deleted to its backup name, if backups are requested. Uses a hard
/// link if possible, so that the original name is never missing.
///
/// On an error nothing was lost. The caller must report the returned problem after `events`.
pub fn back_up(
    context: &Context<'_>,
    role: ErrorRole,
    dir: &Dir,
    path: &RelPath,
    events: &mut Vec<Event>,
) -> Result<BackupTarget, Problem> {
    if context.options.place.backup.is_none() {
        return Ok(BackupTarget::Settled);
    }
    let mut is_copied = true;
    let moved = backup_spot(context, dir, path).and_then(|(to, name)| {
        if unsafe_target(context, dir, path).is_some() {
            return Ok(());
        }
        in_place_of(context, path, (&to, &name), events, |events| {
            match second_name(dir, path.name(), &to, &name) {
                // Another file system, or another user's file in a directory where only its owner may rename it.
                Err(error) if matches!(error.kind(), CrossesDevices | PermissionDenied) => {
                    is_copied =
                        copy_across(context, role, (dir, path), (&to, &name), false, events)?;
                    Ok(())
                }
                other => other,
            }
        })
    });
    match moved {
        Ok(()) if !is_copied => {
            events.push(Event::Note(
                [b"make_bak: skipping non-regular file ", path.as_bytes()].concat(),
            ));
            return Ok(BackupTarget::Skipped);
        }
        Ok(()) => report_backup(context, dir, path, events),
        // The entry is gone. Otherwise, the place of the backup does not exist.
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_gone(dir, path) => {}
        Err(error) => return Err(no_backup(context, role, path, &error, events)),
    }
    Ok(BackupTarget::Settled)
}

/// As [`back_up`], for an entry in whose place a new one comes. `replaces`: the listing had one of its name.
pub fn back_up_replaced(
    context: &Context<'_>,
    role: ErrorRole,
    dir: &Dir,
    path: &RelPath,
    replaces: bool,
    events: &mut Vec<Event>,
) -> Result<(), Problem> {
    // A new file may have got the name of another one's backup since.
    if replaces || is_backup(context, path) {
        back_up(context, role, dir, path, events)?;
    }
    Ok(())
}

fn is_gone(dir: &Dir, path: &RelPath) -> bool {
    sys::stat(dir.fd(), path.name(), false)
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Copies a file that is about to be overwritten in place to its backup name. Returns the directory of the copy, and its
/// name there.
pub fn copy_away(
    context: &Context<'_>,
    dir: &Dir,
    path: &RelPath,
    events: &mut Vec<Event>,
) -> Result<(Dir, Vec<u8>), Problem> {
    let role = ErrorRole::Generator;
    // The content of a device is overwritten, so the backup is a file with that content.
    let as_file = context.options.preserve.write_devices;
    let copied = backup_spot(context, dir, path).and_then(|(to, name)| {
        copy_across(context, role, (dir, path), (&to, &name), as_file, events)?;
        Ok((to, name))
    });
    match copied {
        Ok(dest_dir) => {
            report_backup(context, dir, path, events);
            Ok(dest_dir)
        }
        Err(error) => Err(backup_failed(context, role, path, &error, events)),
    }
}

/// Returns whether a file is itself a backup beside its original: then it is deleted without another backup. As in rsync, a
/// file at the top whose name is only the suffix is none, but one further down is.
pub fn is_backup(context: &Context<'_>, path: &RelPath) -> bool {
    context
        .options
        .place
        .suffix_beside()
        .is_some_and(|suffix| path.name().ends_with(suffix) && path.as_bytes() != suffix)
}

/// Returns the backup that an action makes of an entry, and what is there before; `None`: it makes none. `dir`: the directory
/// of the entry.
pub fn planned(
    context: &Context<'_>,
    dir: &Dir,
    path: &RelPath,
    before: &EntryState,
) -> Option<PlannedBackup> {
    context.options.place.backup.as_ref()?;
    let preserve = &context.options.preserve;
    let is_left_out = preserve.safe_links
        && preserve.links
        && before
            .target
            .as_ref()
            .is_some_and(|target| safelink::is_unsafe(target, path.as_bytes()));
    if before.kind == Kind::Dir || is_left_out {
        return None;
    }
    let before = match find_place(context, dir, path) {
        BackupPlace::Taken(found) => Some(found),
        BackupPlace::Itself => Some(before.clone()),
        BackupPlace::Free | BackupPlace::Blocked => None,
    };
    Some(PlannedBackup {
        path: backup_name(context, path),
        before,
    })
}

/// Returns what there is where the backup of an entry belongs. Creates nothing. `dir`: the directory of the entry.
pub fn find_place(context: &Context<'_>, dir: &Dir, path: &RelPath) -> BackupPlace {
    let suffix = context.options.place.backup.as_ref();
    let suffix = suffix.map_or(&b""[..], |backup| &backup.suffix);
    let name = [path.name(), suffix].concat();
    let to = match context.backup {
        None => Ok(Some(dir.clone())),
        Some(backup) => backup.existing().and_then(|root| match root {
            Some(root) => {
                let parent = path.parent().unwrap_or_default();
                errno::if_there(root.open_dir_to_search(&parent))
            }
            None => Ok(None),
        }),
    };
    let found = to.and_then(|to| match to {
        Some(to) => {
            let stat = errno::if_there(sys::stat(to.fd(), &name, false))?;
            Ok(stat.map(|stat| (to, stat)))
        }
        None => Ok(None),
    });
    let (to, stat) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return BackupPlace::Free,
        Err(_) => return BackupPlace::Blocked,
    };
    let is_itself = sys::stat(dir.fd(), path.name(), false)
        .is_ok_and(|itself| (itself.dev, itself.ino) == (stat.dev, stat.ino));
    if is_itself {
        return BackupPlace::Itself;
    }
    let mut state = EntryState::found(&Entry::from_stat(&stat));
    if state.kind == Kind::Symlink {
        state.target = sys::read_link(to.fd(), &name).ok();
    }
    BackupPlace::Taken(state)
}

/// Returns the earlier step of a directory that makes a backup with the name that a step is about.
pub fn original_in(context: &Context<'_>, plan: &DirPlan, step: &Step) -> Option<usize> {
    let suffix = context.options.place.suffix_beside()?;
    let at = step_of(plan, plan.name_of(step).strip_suffix(suffix)?)?;
    if !is_backed_up(plan, at) {
        return None;
    }
    Some(at)
}

/// Returns the later step of a directory whose entry keeps its content until a backup replaces it. The step `at` makes
/// the backup once content has arrived; until then, rsync has set the attributes of the entry.
pub fn replaced_in(context: &Context<'_>, plan: &DirPlan, at: usize) -> Option<usize> {
    let suffix = context.options.place.suffix_beside()?;
    if context.is_dry() || !replaces_later(context, plan, at) || !is_backed_up(plan, at) {
        return None;
    }
    let replaced = step_of(
        plan,
        &[plan.name_of(&plan.decided().steps[at]), suffix].concat(),
    )?;
    let step = &plan.decided().steps[replaced];
    if !keeps_content(step) || waits_for_values(plan, step) {
        return None;
    }
    Some(replaced)
}

/// Returns whether rsync sets the attributes of a step only after the backup, because its receiver gets the long values
/// of extended attributes behind the content requested before.
fn waits_for_values(plan: &DirPlan, step: &Step) -> bool {
    let is_long = |value: &[u8]| {
        value.len() >= ABBREVIATED_LEN_BYTES || AbbreviatedValue::decode(value).is_some()
    };
    matches!(step.decision.action, Action::Adjust(changes) if changes.has(Changes::XATTR))
        && plan
            .source_of(step)
            .xattrs()
            .iter()
            .any(|(_, value)| is_long(value))
}

/// Returns whether the step `original` replaces the entry of a step by a backup at once, so that the entry must be
/// examined again.
pub fn is_replaced_by(context: &Context<'_>, plan: &DirPlan, original: usize, step: &Step) -> bool {
    !context.is_dry() && !replaces_later(context, plan, original) && keeps_content(step)
}

/// Returns whether a step makes its backup only when content has arrived, as rsync's receiver does.
fn replaces_later(context: &Context<'_>, plan: &DirPlan, at: usize) -> bool {
    matches!(
        plan.decided().steps[at].decision.action,
        Action::Transfer(_)
    ) && !context.options.place.inplace
}

fn keeps_content(step: &Step) -> bool {
    matches!(step.decision.action, Action::Adjust(_) | Action::Keep)
}

/// Returns the step of a directory for a name of the source.
fn step_of(plan: &DirPlan, name: &[u8]) -> Option<usize> {
    let source = plan.found.listing.list.find(name)?;
    plan.decided()
        .steps
        .binary_search_by_key(&source, |step| step.source as usize)
        .ok()
}

/// Returns whether a step replaces an entry that is backed up. If that is itself a backup, it is backed up all the same:
/// only what is deleted or in the way is not; see [`is_backup`].
fn is_backed_up(plan: &DirPlan, at: usize) -> bool {
    let dest = plan.decided().steps[at].dest;
    let action = plan.decided().steps[at].decision.action;
    let replaces = matches!(
        action,
        Action::Transfer(_) | Action::Create(_) | Action::Copy(_) | Action::Link
    );
    replaces && dest != NONE && !plan.found.dest.list.entries[dest as usize].is_dir()
}

/// Returns whether an entry of the destination that gets another one in its place, or none because an alternate tree has the
/// same one, has the content and type of the source.
pub fn has_same_data(source: &Entry, dest: Option<&Entry>, policy: &Policy) -> bool {
    let action = decide(source, dest, None, Subject::Included, policy).action;
    matches!(action, Action::Keep | Action::Adjust(_))
}

/// Reports that an entry was or would be backed up, if backups are requested. Like rsync, also prints this line for an
/// unsafe symlink, which is not backed up, after a line that says so.
pub fn report_backup(context: &Context<'_>, dir: &Dir, path: &RelPath, events: &mut Vec<Event>) {
    let info = &context.options.output.info;
    if context.options.place.backup.is_none() {
        return;
    }
    if info.symsafe >= 1
        && let Some(target) = unsafe_target(context, dir, path)
    {
        let line = [
            b"not backing up unsafe symlink \"",
            path.as_bytes(),
            b"\" -> \"",
            &target,
            b"\"",
        ]
        .concat();
        events.push(Event::Note(line));
    }
    if info.backup >= 1 {
        let place = backup_name(context, path);
        events.push(Event::Note(
            [b"backed up ", path.as_bytes(), b" to ", &place].concat(),
        ));
    }
}

/// Returns the target of a symlink that is not backed up because `--safe-links` would not copy it either.
fn unsafe_target(context: &Context<'_>, dir: &Dir, path: &RelPath) -> Option<Vec<u8>> {
    let preserve = &context.options.preserve;
    if !preserve.safe_links || !preserve.links {
        return None;
    }
    let target = sys::read_link(dir.fd(), path.name()).ok()?;
    if !safelink::is_unsafe(&target, path.as_bytes()) {
        return None;
    }
    Some(target)
}

/// Returns the name of a backup as it is reported.
fn backup_name(context: &Context<'_>, path: &RelPath) -> Vec<u8> {
    let Some(backup) = &context.options.place.backup else {
        return Vec::new();
    };
    let place = path::join(backup.dir.as_deref().unwrap_or(b""), path.as_bytes());
    [place.as_slice(), &backup.suffix].concat()
}

/// Returns the absolute path of a backup.
fn backup_full(context: &Context<'_>, path: &RelPath) -> Vec<u8> {
    let name = backup_name(context, path);
    if name.starts_with(b"/") {
        name
    } else {
        context.full(&name)
    }
}

/// Returns the problem of an entry that could not be moved to its backup name, after the problem of the call that failed.
fn no_backup(
    context: &Context<'_>,
    role: ErrorRole,
    path: &RelPath,
    error: &io::Error,
    events: &mut Vec<Event>,
) -> Problem {
    let problem = backup_failed(context, role, path, error, events);
    events.push(Event::Problem(problem));
    let paths = [
        &context.full(path.as_bytes()),
        &b"\" -> \""[..],
        &backup_name(context, path),
    ]
    .concat();
    Problem::about(role, "keep_backup failed:", &paths, error)
}

/// Returns the problem of a call that failed to make a backup.
fn backup_failed(
    context: &Context<'_>,
    role: ErrorRole,
    path: &RelPath,
    error: &io::Error,
    events: &mut Vec<Event>,
) -> Problem {
    let is_refused = trusted_path::is_refused(error);
    if is_refused {
        // rsync reports each of its attempts.
        let attempts = if role == ErrorRole::Receiver { 3 } else { 2 };
        events.extend(std::iter::repeat_with(crate::apply::refusal).take(attempts));
    }
    let is_unlink =
        is_refused || errno::leads_outside(error) || error.kind() == io::ErrorKind::InvalidFilename;
    let call = if is_unlink { "unlink" } else { "open" };
    Problem::about(role, call, &backup_full(context, path), error)
}

/// Copies a non-directory with those of its attributes that the run preserves. `as_file`: copies a device as a file
/// with its content. Returns `false` if the run does not copy entries of this kind.
fn copy_across(
    context: &Context<'_>,
    role: ErrorRole,
    (dir, path): (&Dir, &RelPath),
    (to, new_name): (&Dir, &[u8]),
    as_file: bool,
    events: &mut Vec<Event>,
) -> io::Result<bool> {
    let name = path.name();
    let mut stat = sys::stat(dir.fd(), name, false)?;
    let from_device = as_file && Kind::of_mode(stat.mode) == Some(Kind::Device);
    if from_device {
        let device = sys::open_read(dir.fd(), name, false, false)?;
        stat = stat.as_file(sys::content_len(device.as_fd())?, stat.mtime);
    }
    let preserve = &context.options.preserve;
    let mut problems = Vec::new();
    let entry = looked_at(context, (dir, name), &stat, path, |incomplete| {
        problems.push(Event::Problem(unreadable_attribute(
            role.word(),
            incomplete,
            Weight::Failed,
        )));
    });
    let is_copied = match entry.kind() {
        Kind::File | Kind::Dir => true,
        Kind::Symlink => preserve.links,
        Kind::Special => preserve.specials,
        Kind::Device => preserve.devices,
    };
    if !is_copied {
        return Ok(false);
    }
    let full = || backup_full(context, path);
    let mut finish = |fd, name: &[u8]| {
        let subject = AttributeTarget {
            fd,
            name,
            full: &full,
            path: path.as_bytes(),
            role,
        };
        attributes::finish(
            context,
            subject,
            &entry,
            Has::default(),
            entry.mode & 0o7777,
            &mut problems,
        )
    };
    if Kind::of_mode(stat.mode) == Some(Kind::File) {
        let from = sys::open_read(dir.fd(), name, false, false)?;
        let pending = Pending::begin(to, new_name, stat.mode & 0o777, true, None)?;
        let mut step = |_: u64| true;
        let len_bytes = stat.len_bytes;
        let sparse = context.options.place.sparse;
        let manner = CopyMethod {
            len_bytes,
            sparse,
            by_hand: false,
            start_bytes: 0,
            from_device,
            fresh: true,
        };
        let copied = Copier::new(Vec::new(), &context.unsupported_calls, &mut step).copy(
            from.as_fd(),
            pending.fd(),
            manner,
        );
        copied.map_err(|error| match error {
            CopyError::Read(error) | CopyError::Write(error) => error,
            CopyError::NotRegular => errno::invalid(),
            CopyError::Stopped => io::ErrorKind::Interrupted.into(),
        })?;
        finish(pending.fd(), b"");
        pending.place(to, new_name)?;
    } else {
        replace::put_over(to, new_name, |temp| {
            match Kind::of_mode(stat.mode) {
                Some(Kind::Symlink) => {
                    sys::symlink(&sys::read_link(dir.fd(), name)?, to.fd(), temp)?
                }
                // Kept if its owner cannot be set.
                _ => sys::mknod(to.fd(), temp, stat.mode & !context.process.umask, stat.rdev)?,
            }
            finish(to.fd(), temp);
            Ok(())
        })?;
    }
    events.append(&mut problems);
    Ok(true)
}

/// Returns an entry of the destination with the attributes that the run preserves. If some cannot be read, they are left
/// out, and `report` is called.
fn looked_at(
    context: &Context<'_>,
    (dir, name): (&Dir, &[u8]),
    stat: &Stat,
    path: &RelPath,
    report: impl FnOnce(Incomplete),
) -> Entry {
    let mut entry = Entry::from_stat(stat);
    let full = || context.full(path.as_bytes());
    let path = || path.as_bytes().to_vec();
    let at = EntryAt {
        dir,
        name,
        stat,
        full: &full,
        path: &path,
    };
    context
        .wanted
        .complete_dest(&mut entry, &at)
        .unwrap_or_else(report);
    entry
}

/// Gives a new directory for backups the preserved attributes of the destination's directory. Like rsync, leaves out its
/// extended attributes: those of the files that are backed up are kept.
fn made_like(
    context: &Context<'_>,
    live_parent: Option<&Dir>,
    live: &Stat,
    (to, name): (&Dir, &[u8]),
    path: &RelPath,
) {
    let Some(dir) = live_parent else { return };
    // Errors are ignored: the directory only has to hold the backups.
    let mut entry = looked_at(context, (dir, name), live, path, drop);
    entry.extra_mut().xattrs = None;
    let full = || backup_full(context, path);
    let subject = AttributeTarget {
        fd: to.fd(),
        name,
        full: &full,
        path: path.as_bytes(),
        role: ErrorRole::Generator,
    };
    attributes::finish(
        context,
        subject,
        &entry,
        Has::default(),
        entry.mode & 0o7777,
        &mut Vec::new(),
    );
}

/// Returns the directory in which the backup of an entry belongs, and its name there.
pub fn backup_spot(context: &Context<'_>, dir: &Dir, path: &RelPath) -> io::Result<(Dir, Vec<u8>)> {
    let suffix = context
        .options
        .place
        .backup
        .as_ref()
        .map_or(&b""[..], |backup| &backup.suffix);
    let name = [path.name(), suffix].concat();
    Ok(match context.backup {
        None => (dir.clone(), name),
        Some(backup) => (
            backup_parent(context, &backup.root()?, &path.parent().unwrap_or_default())?,
            name,
        ),
    })
}

/// Makes a backup, in `--backup-dir` also in place of a directory of older backups. Without `--backup-dir`, such a
/// directory is one of the destination's own and stays.
fn in_place_of<T>(
    context: &Context<'_>,
    path: &RelPath,
    (to, name): (&Dir, &[u8]),
    events: &mut Vec<Event>,
    mut make: impl FnMut(&mut Vec<Event>) -> io::Result<T>,
) -> io::Result<T> {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory};
    match make(events) {
        Err(error)
            if context.backup.is_some()
                && matches!(
                    error.kind(),
                    AlreadyExists | DirectoryNotEmpty | IsADirectory
                ) =>
        {
            let older = Dir::new(sys::open_dir(to.fd(), name, Follow::Never)?);
            forget_backups(&older, &backup_name(context, path), LEVELS_MAX, events)?;
            sys::rmdir(to.fd(), name)?;
            make(events)
        }
        made => made,
    }
}

/// Removes the content of a directory in the backup directory. `shown`: its path in reports. `levels`: how many levels of
/// directories may be in it, which bounds the stack.
fn forget_backups(
    dir: &Dir,
    shown: &[u8],
    levels: usize,
    events: &mut Vec<Event>,
) -> io::Result<()> {
    let levels_below = levels.checked_sub(1).ok_or_else(errno::too_long)?;
    let list = read::typed_names(dir)?;
    for entry in list.entries.iter().rev() {
        let name = list.name(entry);
        let shown = path::join(shown, list.name(entry));
        let kind = if entry.is_dir() {
            Kind::Dir
        } else {
            Kind::File
        };
        match kind {
            Kind::Dir => {
                let below = Dir::new(sys::open_dir(dir.fd(), name, Follow::Never)?);
                forget_backups(&below, &shown, levels_below, events)?;
                sys::rmdir(dir.fd(), name)?;
            }
            _ => sys::unlink(dir.fd(), name)?,
        }
        events.push(Event::Deleted {
            name: shown,
            kind,
            mode: 0,
        });
    }
    Ok(())
}

/// Links an entry to its backup name, or renames it if it cannot be linked.
fn second_name(dir: &Dir, name: &[u8], to: &Dir, backup_name: &[u8]) -> io::Result<()> {
    match sys::link(dir.fd(), name, to.fd(), backup_name) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // The new backup replaces an older one atomically.
            if sys::stat(to.fd(), backup_name, false)
                .is_ok_and(|s| Kind::of_mode(s.mode) == Some(Kind::Dir))
            {
                sys::rmdir(to.fd(), backup_name)?;
                return sys::link(dir.fd(), name, to.fd(), backup_name);
            }
            replace::link_over(dir, name, to, backup_name)
        }
        Err(_) => sys::rename(dir.fd(), name, to.fd(), backup_name),
    }
}

/// Opens the directory for backups of this path. Creates it and its parents with the attributes of their originals.
fn backup_parent(context: &Context<'_>, root: &Root, path: &RelPath) -> io::Result<Dir> {
    if let Ok(dir) = root.open_dir(path) {
        return Ok(dir);
    }
    let mut current = root.dir().clone();
    let mut walked = RelPath::root();
    for part in path.as_bytes().split(|&b| b == b'/') {
        let live_parent = context
            .dest
            .map(|dest| errno::if_there(dest.open_dir_to_search(&walked)));
        let live_parent = live_parent.transpose()?.flatten();
        walked = walked.join(part);
        let live = live_parent
            .as_ref()
            .map(|live| errno::if_there(sys::stat(live.fd(), part, false)));
        let live = live.transpose()?.flatten();
        // With its mode from the start: if this run dies here, the next one leaves the existing directory unchanged.
        let make = || {
            sys::mkdir(
                current.fd(),
                part,
                live.map_or(0o700, |live| live.mode & 0o777),
            )
        };
        let mut made = make();
        if made.is_err()
            && sys::stat(current.fd(), part, false)
                .is_ok_and(|s| Kind::of_mode(s.mode) != Some(Kind::Dir))
        {
            // An older backup of what is a directory now. Another thread may be removing it as well.
            let _ = sys::unlink(current.fd(), part);
            made = make();
        }
        if let Err(error) = &made
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(made.unwrap_err());
        }
        if let (Ok(()), Some(live)) = (&made, live) {
            made_like(
                context,
                live_parent.as_ref(),
                &live,
                (&current, part),
                &walked,
            );
        }
        current = Dir::new(sys::open_dir(current.fd(), part, Follow::Never)?);
    }
    Ok(current)
}
