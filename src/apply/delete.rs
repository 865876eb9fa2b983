//! Deletes entries, and makes room for others.

use crate::apply::backup::{self, BackupTarget, back_up, is_backup, report_backup};
use crate::apply::delayed::place_delayed;
use crate::apply::heirs::{Heir, Heirs, OpenHeirDir};
use crate::apply::{ApplierState, Context, Outcome};
use crate::error::Error;
use crate::filter::{Chain, Side};
use crate::flist::{Entry, Kind};
use crate::fs::leftover::{Leftover, leftover, remove_stale_unseen};
use crate::fs::read::EntryAt;
use crate::fs::root::{Dir, ParkedDir, Root};
use crate::fs::sys::{self, Follow};
use crate::fs::{errno, read};
use crate::path::RelPath;
use crate::plan::delete::{LEVELS_MAX, Limit, is_protected, may_empty};
use crate::plan::explained::{Fact, Fate};
use crate::plan::planned::{ChangedEnd, PlannedAction, PlannedVerdict};
use crate::report::event::{CANNOT_DELETE, ErrorRole, Event, Problem, Weight};
use crate::report::tally::Tally;
use crate::walk::{enter_dir, replay};
use std::io;

/// Deletes entries of the destination, one at a time and in order, up to the limit.
pub struct Remover<'a> {
    context: &'a Context<'a>,
    limit: Limit,
    /// A directory to be deleted could not be listed.
    pub met_a_closed_dir: bool,
    /// The file system that deletion stays on (`-x`).
    pub one_file_system: Option<u64>,
    /// The rules in a directory to be deleted could not be read: the run ends.
    pub fatal: Option<Error>,
    /// The events to report.
    pub events: Vec<Event>,
    /// The counts of files that were placed.
    pub tally: Tally,
    /// New files that take the content of files to be deleted (`--detect-renamed`).
    pub heirs: Heirs,
    /// The directory in which the last of them was placed. It gets its final time only when this is dropped.
    heir_dir: Option<OpenHeirDir>,
    /// How many recorded deletions leave a backup beside their originals, so that their directories stay.
    backups_beside: u64,
    /// How many directories, each in the one before, are being removed.
    depth: usize,
    /// The directory that is being removed has more than [`LEVELS_MAX`] levels.
    is_too_deep: bool,
    /// How many of the directories that are being removed may be open at once.
    levels_open: usize,
}

/// The maximum of [`Remover::levels_open`].
const LEVELS_OPEN: usize = 64;
/// At most one open level per this many files that the process may have open.
const OPEN_PARTS: usize = 16;

/// A directory that is closed while deep trees below it are removed.
enum Above {
    Open(Dir),
    Parked(ParkedDir),
}

impl Above {
    /// Returns the directory, and opens it again if it was closed.
    fn dir(&mut self, dest: Option<&Root>) -> io::Result<&Dir> {
        if let (Above::Parked(parked), Some(dest)) = (&*self, dest) {
            *self = Above::Open(dest.reopen_dir(parked)?);
        }
        match self {
            Above::Open(dir) => Ok(dir),
            Above::Parked(_) => Err(errno::outside()),
        }
    }

    /// Closes the directory that contains `path`.
    fn park_above(&mut self, path: &RelPath) {
        if let Above::Open(dir) = self
            && let Ok(parked) = dir.parked(path.parent().unwrap_or_default())
        {
            *self = Above::Parked(parked);
        }
    }
}

/// What a stored plan that is carried out says about the deletion of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlannedDeletion {
    /// No plan is carried out, or the plan has the deletion and the entry is as it was then.
    Delete,
    /// The plan has it, but the entry has changed. This was reported.
    Left,
    /// It is not in the plan.
    Unplanned,
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone.
    Gone,
    /// It, or something in it, stays.
    Stays,
}

impl<'a> Remover<'a> {
    /// Creates a remover with the limit of the options.
    pub fn new(context: &'a Context<'a>) -> Remover<'a> {
        Remover {
            context,
            limit: Limit::new(&context.options.delete),
            met_a_closed_dir: false,
            one_file_system: None,
            fatal: None,
            events: Vec::new(),
            tally: Tally::default(),
            heirs: Heirs::default(),
            heir_dir: None,
            backups_beside: 0,
            depth: 0,
            is_too_deep: false,
            levels_open: sys::share_of_open_files(OPEN_PARTS, LEVELS_OPEN),
        }
    }

    /// Removes one entry and everything in it that no rule protects.
    pub fn remove(
        &mut self,
        dir: &Dir,
        path: &RelPath,
        is_dir: bool,
        chain: Option<&Chain>,
    ) -> Removed {
        if is_dir {
            self.remove_dir(&mut Above::Open(dir.clone()), path, chain, false)
        } else {
            self.remove_other(dir, path)
        }
    }

    /// Returns how many entries `--max-delete` kept.
    pub fn held_back(&self) -> u64 {
        self.limit.held_back()
    }

    fn may_delete_more(&mut self, path: &RelPath) -> bool {
        if self.context.stopped() {
            return false;
        }
        let permits = self.limit.permits();
        if !permits {
            self.explain(path, Fate::LimitReached);
        }
        permits
    }

    /// Collects what happens to an entry, if it is to be explained.
    fn explain(&self, path: &RelPath, fate: Fate) {
        if let Some(explainer) = self.context.process.explainer {
            explainer.add(path, Fact::Extra(fate));
        }
    }

    fn went(&mut self, path: &RelPath, kind: Kind) -> Removed {
        self.explain(path, Fate::Deleted);
        self.limit.count();
        if let Some(gauge) = self.context.gauge
            && !self.context.is_dry()
        {
            gauge.delete();
        }
        self.events.push(Event::Deleted {
            name: path.as_bytes().to_vec(),
            kind,
            mode: 0,
        });
        Removed::Gone
    }

    fn remove_other(&mut self, dir: &Dir, path: &RelPath) -> Removed {
        if self.planned(dir, path) != PlannedDeletion::Delete || !self.may_delete_more(path) {
            return Removed::Stays;
        }
        if let Some(candidate) = self.context.twins.candidate_at(path)
            && let Some(heir) = self.heirs.take(candidate)
        {
            let heir_path = heir.path();
            if self.pass_on(heir, Some((dir, path.name()))) {
                self.record(dir, path, Some(&heir_path));
                return self.went(path, Kind::File);
            }
        }
        if self.context.twins.is_needed(path) {
            let end = b"\": the new file that takes its content was not placed";
            let line = [CANNOT_DELETE, path.as_bytes(), end].concat();
            self.events
                .push(Event::Problem(Problem::new(line, Weight::Failed)));
            return Removed::Stays;
        }
        let mut kind = Kind::File;
        // Only the counts of --stats distinguish the kinds.
        if self.context.options.output.info.stats > 0
            && let Ok(stat) = sys::stat(dir.fd(), path.name(), false)
        {
            kind = Kind::of_mode(stat.mode).unwrap_or(Kind::File);
        }
        let keeps = self.context.options.place.backup.is_some() && !is_backup(self.context, path);
        if self.context.is_dry() {
            if keeps {
                report_backup(self.context, dir, path, &mut self.events);
            }
            self.record(dir, path, None);
            return self.went(path, kind);
        }
        let gone = if keeps {
            match back_up(
                self.context,
                ErrorRole::Generator,
                dir,
                path,
                &mut self.events,
            ) {
                Ok(BackupTarget::Settled) => {}
                Ok(BackupTarget::Skipped) => return Removed::Stays,
                Err(problem) => {
                    let words = words_of(&problem.line).to_vec();
                    self.events.push(Event::Problem(problem));
                    self.events
                        .push(failure_event("delete_file: make_backup", path, &words));
                    return Removed::Stays;
                }
            }
            // If the backup is a hard link, the original name remains to be removed.
            match sys::unlink(dir.fd(), path.name()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        } else {
            sys::unlink(dir.fd(), path.name())
        };
        match gone {
            Ok(()) => self.went(path, kind),
            // Already gone: another process removed it, or it was removed through another name of its directory (`-K`).
            Err(error) if error.kind() == io::ErrorKind::NotFound => Removed::Gone,
            Err(error) => {
                self.events
                    .push(failed("delete_file: unlink", path, &error));
                Removed::Stays
            }
        }
    }

    /// Places a new file. `from`: the directory and name of its twin, which is about to be deleted. Returns whether the twin
    /// was renamed.
    fn pass_on(&mut self, heir: Heir, from: Option<(&Dir, &[u8])>) -> bool {
        let mut applier = ApplierState::default();
        let mut out = Outcome::new(&mut applier, None);
        let is_renamed = heir.place(self.context, from, &mut self.heir_dir, &mut out);
        let Outcome {
            mut events,
            tally,
            fatal,
            ..
        } = out;
        self.events.append(&mut events);
        self.tally.merge(&tally);
        if !is_renamed && !self.context.is_dry() {
            // It is one of those only now, when the others have their names.
            place_delayed(self.context, &mut self.events);
        }
        if let Some(error) = fatal {
            self.fatal.get_or_insert(error);
        }
        is_renamed
    }

    /// Places the new files whose twins were not deleted. No heir is placed after that.
    pub fn place_rest(&mut self) {
        for heir in self.heirs.take_rest() {
            if self.fatal.is_none() && !self.context.stopped() {
                self.pass_on(heir, None);
            }
        }
        self.heir_dir = None;
    }

    /// Removes a directory. If `inside` another one that is removed, it is attempted even if an entry in it stayed, as
    /// in rsync: it counts against the limit, is reported a second time, and in a dry run is reported as deleted.
    fn remove_dir(
        &mut self,
        above: &mut Above,
        path: &RelPath,
        chain: Option<&Chain>,
        inside: bool,
    ) -> Removed {
        if self.depth == 0 {
            self.is_too_deep = false;
        }
        if self.depth >= LEVELS_MAX {
            self.is_too_deep = true;
            let error = errno::too_long();
            self.events.push(failed("delete_file: rmdir", path, &error));
            return Removed::Stays;
        }
        let Some((planned, opened)) = self.open_as_planned(above, path) else {
            return Removed::Stays;
        };
        let backups_before = self.backups_beside;
        // A directory that cannot be listed may still be empty.
        let mut emptied = Removed::Gone;
        if let Some(dir) = opened {
            if !self.is_on_same_file_system(&dir, path) {
                return Removed::Stays;
            }
            if self.depth >= self.levels_open {
                above.park_above(path);
            }
            self.depth += 1;
            emptied = self.empty_dir(dir, path, chain);
            self.depth -= 1;
        }
        if planned != PlannedDeletion::Delete {
            return Removed::Stays;
        }
        if emptied == Removed::Stays && !self.is_attempted_nevertheless(path, inside) {
            return Removed::Stays;
        }
        if !self.may_delete_more(path) {
            return Removed::Stays;
        }

        let dest = self.context.dest;
        if self.context.is_dry() {
            if emptied == Removed::Gone
                && self.backups_beside == backups_before
                && let Ok(parent) = above.dir(dest)
            {
                self.record(parent, path, None);
            }
        } else {
            let parent = above.dir(dest);
            let removed = parent.and_then(|parent| sys::rmdir(parent.fd(), path.name()));
            match removed {
                Ok(()) => {}
                // Already gone: another process removed it, or this run has placed the last file of a partial directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Removed::Gone,
                Err(error) => {
                    self.events.push(self.rmdir_failed(path, &error));
                    return Removed::Stays;
                }
            }
        }
        self.went(path, Kind::Dir);
        if emptied == Removed::Stays {
            self.explain(path, Fate::NotEmpty);
        }
        emptied
    }

    /// Opens a directory that is to be emptied, if it can be listed, and returns what a stored plan says about its
    /// deletion. `None`: it stays as it is.
    fn open_as_planned(
        &mut self,
        above: &mut Above,
        path: &RelPath,
    ) -> Option<(PlannedDeletion, Option<Dir>)> {
        let parent = match above.dir(self.context.dest) {
            Ok(parent) => parent,
            Err(error) => {
                self.events.push(failed("delete_file: rmdir", path, &error));
                return None;
            }
        };
        let planned = self.planned(parent, path);
        let opened = match planned {
            PlannedDeletion::Delete => self.open_for_removal(parent, path),
            // What is in it may be planned.
            PlannedDeletion::Left | PlannedDeletion::Unplanned => {
                let fd = sys::open_dir(parent.fd(), path.name(), Follow::Never).ok()?;
                Some(Dir::new(fd))
            }
        };
        Some((planned, opened))
    }

    /// Returns whether a directory is on the file system that deletion stays on. If not, this is reported.
    fn is_on_same_file_system(&mut self, dir: &Dir, path: &RelPath) -> bool {
        let Some(dev) = self.one_file_system else {
            return true;
        };
        match sys::fstat(dir.fd()) {
            Ok(stat) if stat.dev == dev => true,
            Ok(_) => {
                self.explain(path, Fate::OtherFileSystem);
                if self.context.options.output.info.mount >= 1 {
                    let note = [b"cannot delete mount point: ", path.as_bytes()].concat();
                    self.events.push(Event::Note(note));
                }
                false
            }
            Err(error) => {
                self.events.push(failed("delete_file: fstat", path, &error));
                false
            }
        }
    }

    /// Reports a directory that is not empty, because an entry in it stayed. Returns whether its removal is attempted
    /// nevertheless. `inside`: see [`Remover::remove_dir`].
    fn is_attempted_nevertheless(&mut self, path: &RelPath, inside: bool) -> bool {
        if self.is_too_deep {
            // A line for each level would be as long as all paths together.
            if !inside {
                self.events.push(not_empty(path));
            }
            return false;
        }
        self.explain(path, Fate::NotEmpty);
        self.events.push(not_empty(path));
        if self.context.process.stored.is_some() {
            let problem = replay::left_alone(path.as_bytes(), ChangedEnd::Dest);
            self.events.push(Event::Problem(problem));
            return false;
        }
        inside
    }

    /// Examines an entry that may be deleted; `None`: it is gone or cannot be examined.
    fn examined(&self, dir: &Dir, path: &RelPath) -> Option<Entry> {
        let stat = sys::stat(dir.fd(), path.name(), false).ok()?;
        let mut entry = Entry::from_stat(&stat);
        let at = EntryAt {
            dir,
            name: path.name(),
            stat: &stat,
            full: &|| self.context.full(path.as_bytes()),
            path: &|| path.as_bytes().to_vec(),
        };
        self.context.wanted.complete_dest(&mut entry, &at).ok()?;
        Some(entry)
    }

    /// Returns what a stored plan says about the deletion of an entry, and reports one that has changed.
    fn planned(&mut self, dir: &Dir, path: &RelPath) -> PlannedDeletion {
        let Some(stored) = self.context.process.stored else {
            return PlannedDeletion::Delete;
        };
        if stored.leaves_deletions() {
            return PlannedDeletion::Unplanned;
        }
        let (number, action) = match stored.action(path.as_bytes(), true) {
            Ok(Some(found)) => found,
            Ok(None) => return PlannedDeletion::Unplanned,
            Err(error) => {
                self.fatal.get_or_insert(replay::unreadable(&error));
                return PlannedDeletion::Unplanned;
            }
        };
        stored.settle(number);
        let given = match action.given(stored) {
            Ok(given) => given,
            Err(error) => {
                self.fatal.get_or_insert(replay::unreadable(&error));
                return PlannedDeletion::Unplanned;
            }
        };
        let policy = self.context.policy;
        let verdict = match self.examined(dir, path) {
            Some(entry) => match action.verdict_of_deletion(&entry, &given, policy) {
                PlannedVerdict::Act if action.backup.is_some() => {
                    let place = backup::find_place(self.context, dir, path);
                    let end = action.no_backup(Some(&entry), &place);
                    end.map_or(PlannedVerdict::Act, PlannedVerdict::Left)
                }
                verdict => verdict,
            },
            None => PlannedVerdict::Left(ChangedEnd::Dest),
        };
        match verdict {
            PlannedVerdict::Act | PlannedVerdict::Done => PlannedDeletion::Delete,
            PlannedVerdict::Left(end) => {
                self.events
                    .push(Event::Problem(replay::left_alone(path.as_bytes(), end)));
                PlannedDeletion::Left
            }
        }
    }

    /// Records the deletion of an entry, if a plan is stored. `heir`: the new file that the entry is renamed to.
    fn record(&mut self, dir: &Dir, path: &RelPath, heir: Option<&RelPath>) {
        if self.context.wants.planned
            && let Some(entry) = self.examined(dir, path)
        {
            let mut action = PlannedAction::of_deletion(path.as_bytes().to_vec(), &entry);
            action.heir = heir.map(|heir| heir.as_bytes().to_vec());
            if let Some(before) = &action.before
                && !is_backup(self.context, path)
            {
                action.backup = backup::planned(self.context, dir, path, before);
            }
            if action.backup.is_some() && self.context.options.place.suffix_beside().is_some() {
                self.backups_beside += 1;
            }
            self.events.push(Event::Planned(Box::new(action)));
        }
    }

    fn rmdir_failed(&self, path: &RelPath, error: &io::Error) -> Event {
        match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => not_empty(path),
            _ => failed("delete_file: rmdir", path, error),
        }
    }

    /// Opens a directory for removal, and first makes it writable if its owner may not write to it. `None`: it is gone, or
    /// this failed and was reported.
    fn open_for_removal(&mut self, parent: &Dir, path: &RelPath) -> Option<Dir> {
        if !self.context.is_dry()
            && !self.context.is_super
            && let Ok(stat) = sys::stat(parent.fd(), path.name(), false)
            && stat.mode & 0o200 == 0
        {
            // If this fails, the deletion reports why.
            let _ = sys::chmod(parent.fd(), path.name(), stat.mode & 0o7777 | 0o200);
        }
        self.open(parent, path)
    }

    /// Opens a directory for removal, but leaves its mode unchanged.
    fn open(&mut self, parent: &Dir, path: &RelPath) -> Option<Dir> {
        match sys::open_dir(parent.fd(), path.name(), Follow::Never) {
            Ok(fd) => Some(Dir::new(fd)),
            // There is nothing left to remove.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.met_a_closed_dir = true;
                let full = self.context.full(path.as_bytes());
                self.events.push(Event::Problem(Problem::failed(
                    ErrorRole::Generator,
                    "opendir",
                    &full,
                    &error,
                )));
                None
            }
        }
    }

    /// Removes the entries of a directory in reverse list order, as rsync does.
    fn empty_dir(&mut self, dir: Dir, path: &RelPath, chain: Option<&Chain>) -> Removed {
        let list = match read::typed_names(&dir) {
            Ok(list) => list,
            Err(error) => {
                let full = self.context.full(path.as_bytes());
                self.events.push(Event::Problem(Problem::failed(
                    ErrorRole::Generator,
                    "readdir",
                    &full,
                    &error,
                )));
                return Removed::Stays;
            }
        };
        let entered = match chain.filter(|chain| chain.has_per_dir()) {
            None => None,
            Some(chain) => match enter_dir(
                chain,
                &dir,
                path,
                "generator",
                self.context.options.preserve.link_owners,
            ) {
                Ok((entered, refusals)) => {
                    self.events.extend(refusals.into_iter().map(Event::Problem));
                    Some(entered)
                }
                Err(error) => {
                    self.fatal.get_or_insert(error);
                    return Removed::Stays;
                }
            },
        };
        let chain = entered.as_ref().or(chain);
        let mut outcome = Removed::Gone;
        let mut parent = Above::Open(dir);
        for entry in list.entries.iter().rev() {
            let below = path.join(list.name(entry));
            let stays = is_protected(chain, &below, entry.is_dir()) || self.fatal.is_some();
            if stays && let (Some(explainer), Some(chain)) = (self.context.process.explainer, chain)
            {
                explainer.add_rule(chain, Side::Receiver, &below, entry.is_dir(), true);
                self.explain(&below, Fate::Protected);
            }
            let gone = if stays {
                Removed::Stays
            } else if entry.is_dir() {
                self.remove_dir(&mut parent, &below, chain, true)
            } else {
                match parent.dir(self.context.dest) {
                    Ok(dir) if leftover(dir, list.name(entry)) == Leftover::InUse => Removed::Stays,
                    Ok(dir) => self.remove_other(dir, &below),
                    Err(error) => {
                        self.events
                            .push(failed("delete_file: unlink", &below, &error));
                        Removed::Stays
                    }
                }
            };
            if gone == Removed::Stays {
                outcome = Removed::Stays;
            }
        }
        outcome
    }

    /// Removes a directory that is in the way of another entry. `false`: it stays, and this was reported.
    ///
    /// The directory itself is neither reported nor counted: its name stays in use.
    pub fn make_room(
        &mut self,
        dir: &Dir,
        path: &RelPath,
        chain: Option<&Chain>,
        kind: Kind,
    ) -> bool {
        let events_before = self.events.len();
        // Its subdirectories may be made writable. rsync makes the directory itself writable only for a regular file.
        let opened = if kind == Kind::File {
            self.open_for_removal(dir, path)
        } else {
            self.open(dir, path)
        };
        let emptied = match opened {
            Some(inside) if may_empty(&self.context.options.delete) => {
                self.empty_dir(inside, path, chain)
            }
            Some(inside) if has_entries(&inside) => Removed::Stays,
            _ => Removed::Gone,
        };
        if emptied == Removed::Gone {
            let gone = if self.context.is_dry() {
                Ok(None)
            } else {
                errno::if_there(sys::rmdir(dir.fd(), path.name()))
            };
            match gone {
                Ok(_) => return true,
                Err(error) => self.events.push(self.rmdir_failed(path, &error)),
            }
        } else {
            self.events.push(not_empty(path));
        }
        if let Some(explainer) = self.context.process.explainer {
            explainer.add(path, Fact::NoRoom);
        }
        self.events.push(no_room(kind, path));
        // The entry is not in the plan, so neither are these deletions.
        let mut events = self.events.split_off(events_before);
        events.retain(|event| !matches!(event, Event::Planned(_)));
        self.events.append(&mut events);
        false
    }

    /// Removes what has the name of a missing argument (`--delete-missing-args`). A directory loses its content only if
    /// the options permit that.
    pub fn remove_missing(
        &mut self,
        dir: &Dir,
        path: &RelPath,
        is_dir: bool,
        chain: &Chain,
    ) -> Removed {
        if is_dir
            && !may_empty(&self.context.options.delete)
            && let Some(inside) = self.open_for_removal(dir, path)
            && has_entries(&inside)
        {
            self.events.push(not_empty(path));
            return Removed::Stays;
        }
        self.remove(dir, path, is_dir, Some(chain))
    }
}

/// Returns whether a directory that is in the way of an entry of this kind would stay. Only for dry runs, which change
/// nothing, and nothing is reported.
pub fn stays_taken(
    context: &Context<'_>,
    dir: &Dir,
    path: &RelPath,
    chain: Option<&Chain>,
    kind: Kind,
) -> bool {
    debug_assert!(context.is_dry(), "the directory would be emptied");
    !Remover::new(context).make_room(dir, path, chain, kind)
}

/// Removes the temporary file of a crashed run, unseen and without a report. Returns whether the entry is not extra: it
/// was such a file, or another run is writing it.
pub fn remove_leftover(context: &Context<'_>, dir: &Dir, name: &[u8]) -> bool {
    let found = if context.is_dry() {
        leftover(dir, name)
    } else {
        remove_stale_unseen(dir, name)
    };
    found != Leftover::Unknown
}

/// Returns the message for a call that failed on an entry of the destination.
pub(super) fn failed(call: &str, path: &RelPath, error: &io::Error) -> Event {
    failure_event(call, path, &crate::report::event::errno_words(error))
}

fn failure_event(call: &str, path: &RelPath, words: &[u8]) -> Event {
    let line = [
        format!("rsync: [generator] {call}(").as_bytes(),
        path.as_bytes(),
        b") failed: ",
        words,
    ]
    .concat();
    Event::Problem(Problem::new(line, Weight::Failed))
}

/// Returns the message for an entry of this kind that cannot be created because its name is taken.
pub(super) fn no_room(kind: Kind, path: &RelPath) -> Event {
    let what = match kind {
        Kind::File => "regular file",
        Kind::Symlink => "symlink",
        Kind::Device => "device file",
        Kind::Special => "special file",
        Kind::Dir => "directory",
    };
    let line = [
        format!("could not make way for new {what}: ").as_bytes(),
        path.as_bytes(),
    ]
    .concat();
    Event::Problem(Problem::new(line, Weight::Failed))
}

fn not_empty(path: &RelPath) -> Event {
    Event::Note([b"cannot delete non-empty directory: ", path.as_bytes()].concat())
}

fn has_entries(dir: &Dir) -> bool {
    let mut any = false;
    // If it cannot be listed, its removal fails and reports why.
    let _ = read::names(dir, 1, |_| any = true);
    any
}

/// Returns the last words of a line: the system's error message.
fn words_of(line: &[u8]) -> &[u8] {
    let at = line
        .windows(2)
        .rposition(|pair| pair == b": ")
        .map_or(0, |at| at + 2);
    &line[at..]
}
