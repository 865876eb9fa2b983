//! Deletes extra entries and leftovers at the time that the options require.

mod missing;

use crate::apply::delete::{Removed, Remover, remove_leftover};
use crate::apply::dir_finalize::LastTouch;
use crate::apply::heirs::Heir;
use crate::apply::twins::Twin;
use crate::apply::{Context, DestDir};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::Chain;
use crate::flist::{DirList, Time};
use crate::fs::read::Names;
use crate::fs::root::Dir;
use crate::fs::sys::Follow;
use crate::fs::{errno, sys};
use crate::options::{SMALL_DEST_ENTRIES, When};
use crate::path::RelPath;
use crate::plan::delete::are_extras_known;
use crate::plan::{InTheWay, Reason};
use crate::report::event::{DELETION_IS_SKIPPED, ErrorRole, Event, Problem, Weight};
use crate::report::tally::Tally;
use crate::walk::destination::DestWalk;
use crate::walk::{DirPlan, enter_dir};
use crate::work::clock;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Deletes extra entries at the time that the options require. Events go to `head`.
pub(super) struct Deletions<'a> {
    context: &'a Context<'a>,
    walk: &'a DestWalk<'a>,
    remover: Remover<'a>,
    /// The file system that deletion stays on (`-x`), for each directory that is an argument.
    stays_on: HashMap<RelPath, StaysOn>,
    /// What `--delete-missing-args` must remove. The first to be removed is last.
    missing: Vec<RelPath>,
    /// The directories that have missing arguments, with their times if these are set.
    above_missing: HashMap<RelPath, Option<Arc<LastTouch>>>,
    /// The excluded directory that was last reported because of a missing argument below it.
    refused: Option<RelPath>,
    /// Part of the source, or a directory to be deleted, could not be read. No further directory loses anything.
    source_failed: bool,
    has_reported_failure: bool,
    /// `--delete-delay`
    delayed: Vec<Delayed>,
    /// `--delete-after`
    after: Vec<After>,
    /// Nothing but directories that lead to the source's root was listed so far, and an empty source must not empty the
    /// destination.
    may_be_empty: bool,
    /// Extra entries are deleted at the end of the run, although the options require that before or during the copy,
    /// because new files take their content.
    waits: bool,
}

/// The file system that deletion stays on.
#[derive(Clone, Copy)]
enum StaysOn {
    Device(u64),
    /// Unknown because of an error that was reported. Nothing is deleted.
    Unknown,
}

/// What a directory loses at the end (`--delete-delay`).
struct Delayed {
    path: RelPath,
    /// Names, and whether they are directories, in the order of removal.
    extras: Vec<(Vec<u8>, bool)>,
    chain: Option<Chain>,
    last: Arc<LastTouch>,
}

/// A directory that is listed again at the end (`--delete-after`).
struct After {
    path: RelPath,
    /// The source's entries.
    source: DirList,
    may_delete: bool,
    last: Arc<LastTouch>,
}

/// Counts an entry and everything below it in `left`. Returns `false` if they are more. What cannot be read has no
/// entries: the deletion will report it.
fn count_down(dir: &Dir, name: &[u8], is_dir: bool, left: &mut u64) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    if !is_dir {
        return true;
    }
    let Ok(below) = sys::open_dir(dir.fd(), name, Follow::Never).map(Dir::new) else {
        return true;
    };
    let mut names = Names::default();
    // One more than permitted is enough to know.
    let wanted = *left as usize + 1;
    let _ = names.list_while(&below, |count| count < wanted);
    names
        .items
        .iter()
        .all(|&item| count_down(&below, names.name(item), item.is_dir == Some(true), left))
}

/// Returns the error of a run that would empty its destination.
fn empties_dest() -> Error {
    let line = format!(
        "sparsync: more than {SMALL_DEST_ENTRIES} entries would be deleted, but the source has none: nothing was changed (--delete-guard)"
    );
    Error::new(Exit::DelLimit, line)
        .with_hint("the source is empty; to delete them, use --no-delete-guard")
}

impl<'a> Deletions<'a> {
    /// Creates the deletions of a run.
    pub(super) fn new(context: &'a Context<'a>, walk: &'a DestWalk<'a>) -> Deletions<'a> {
        Deletions {
            context,
            walk,
            remover: Remover::new(context),
            stays_on: HashMap::new(),
            missing: Vec::new(),
            above_missing: HashMap::new(),
            refused: None,
            source_failed: false,
            has_reported_failure: false,
            delayed: Vec::new(),
            after: Vec::new(),
            may_be_empty: context.options.delete.refuses_empty_source,
            waits: false,
        }
    }

    /// Returns an error if the source has nothing but a root and the destination has more than a few entries. Called for
    /// each directory in order, before anything in it is changed.
    pub(super) fn refuse_empty_source(&mut self, plan: &DirPlan) -> Result<()> {
        if !self.may_be_empty {
            return Ok(());
        }
        let entries = plan.found.listing.list.entries.len();
        let is_compared = plan.found.listing.may_delete;
        if !is_compared && entries <= 1 {
            // The only entry may be the directory that the source argument names.
            return Ok(());
        }
        self.may_be_empty = false;
        // A source that could not be read is no empty one. That is reported, and stops deletions by itself.
        self.check_problems(&plan.findings.problems);
        let is_known = are_extras_known(&self.context.options.delete, self.source_failed);
        if entries > 0 || plan.decided().extras.is_empty() || !is_known {
            return Ok(());
        }
        let Some(dir) = &plan.found.dest.dir else {
            return Ok(());
        };
        let mut left = SMALL_DEST_ENTRIES;
        for entry in &plan.found.dest.list.entries {
            let name = plan.found.dest.list.name(entry);
            let is_within = count_down(dir, name, entry.is_dir(), &mut left);
            if !is_within {
                return Err(empties_dest());
            }
        }
        Ok(())
    }

    /// Has extra entries stay until the end of the run. Which ones are deleted is decided as before.
    pub(super) fn wait_for_end(&mut self) {
        self.waits = matches!(
            self.context.options.delete.when,
            Some(When::Before | When::During)
        );
    }

    /// Has a new file placed when the deletion of its twin comes, or after all deletions.
    pub(super) fn expect_heir(&mut self, twin: &Twin, heir: Heir) {
        self.remover.heirs.expect(twin, heir);
    }

    /// Returns the counts of the files that were placed.
    pub(super) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.remover.tally)
    }

    /// Records that part of the source could not be read, so that the set of extra entries is unknown.
    pub(super) fn source_failed(&mut self) {
        self.source_failed = true;
    }

    /// Looks for source errors among the problems of a directory.
    pub(super) fn check_problems(&mut self, problems: &[Problem]) {
        self.source_failed |= problems
            .iter()
            .any(|problem| problem.weight == Weight::SourceError);
    }

    /// Returns whether something of the source could not be read so far.
    pub(super) fn has_source_failed(&self) -> bool {
        self.source_failed
    }

    /// Returns whether deletions are still allowed. If not, this is reported once.
    fn are_allowed(&mut self, head: &mut Vec<Event>) -> bool {
        self.source_failed |= self.remover.met_a_closed_dir;
        let are_allowed = are_extras_known(&self.context.options.delete, self.source_failed);
        if !are_allowed && !std::mem::replace(&mut self.has_reported_failure, true) {
            head.push(Event::Note(DELETION_IS_SKIPPED.to_vec()));
        }
        are_allowed
    }

    /// Returns an error if the rules of a directory to be deleted could not be read: that ends the run.
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.remover.fatal.take().map_or(Ok(()), Err)
    }

    /// Removes the temporary files of crashed runs from a directory. Those and the ones of other runs are not extra.
    pub(super) fn remove_leftovers(&self, plan: &mut DirPlan) {
        plan.pass_leftovers(|dir, name| remove_leftover(self.context, dir, name));
    }

    /// Records the file systems on which the arguments begin at the destination (`-x`).
    pub(super) fn note_file_systems(&mut self, plan: &DirPlan, head: &mut Vec<Event>) {
        let options = self.context.options;
        let (true, Some(dest)) = (options.select.one_file_system > 0, self.context.dest) else {
            return;
        };
        let mut note = |path: RelPath, dev: io::Result<u64>| match errno::if_there(dev) {
            Ok(dev) => drop(dev.map(|dev| self.stays_on.insert(path, StaysOn::Device(dev)))),
            Err(error) => {
                head.push(cannot_stat(self.context, &path, &error));
                self.stays_on.insert(path, StaysOn::Unknown);
            }
        };
        if plan.found.listing.path.is_root() {
            note(
                RelPath::root(),
                sys::fstat(dest.dir().fd()).map(|stat| stat.dev),
            );
        }
        if !plan.found.listing.is_named {
            return;
        }
        let dir = dest.open_dir_to_search(&plan.found.listing.path);
        for sub in plan.decided().subdirs.iter().filter(|sub| !sub.implied) {
            let name = plan.name_of(&sub.step);
            let stat = match &dir {
                Ok(dir) => sys::stat(dir.fd(), name, options.preserve.keep_dirlinks),
                Err(error) => Err(errno::again(error)),
            };
            note(
                plan.found.listing.path.join(name),
                stat.map(|stat| stat.dev),
            );
        }
    }

    /// Returns whether a directory lies on the file system that deletion is limited to, and sets that limit in the
    /// remover. `false` if this is unknown because of an error.
    fn stays_in(&mut self, path: &RelPath, dir: &Dir, head: &mut Vec<Event>) -> bool {
        self.lies_in(path, dir, head) == Some(true)
    }

    /// As [`Self::stays_in`]; `None`: unknown because of an error that was reported.
    fn lies_in(&mut self, path: &RelPath, dir: &Dir, head: &mut Vec<Event>) -> Option<bool> {
        if self.context.options.select.one_file_system == 0 {
            return Some(true);
        }
        let above = std::iter::successors(Some(path.clone()), RelPath::parent);
        let dev = match above
            .filter_map(|path| self.stays_on.get(&path).copied())
            .next()
        {
            Some(StaysOn::Device(dev)) => dev,
            Some(StaysOn::Unknown) => return None,
            None => {
                self.remover.one_file_system = None;
                return Some(true);
            }
        };
        self.remover.one_file_system = Some(dev);
        match sys::fstat(dir.fd()) {
            Ok(stat) => Some(stat.dev == dev),
            Err(error) => {
                head.push(cannot_stat(self.context, path, &error));
                None
            }
        }
    }

    /// Opens a directory for a deletion at the end. `None`: it is gone, or an error was reported.
    fn open_again(&self, path: &RelPath, head: &mut Vec<Event>) -> Option<Dir> {
        match self.context.dest?.open_dir(path) {
            Ok(dir) => Some(dir),
            // A dry run has not replaced a file or a symlink by the directory.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) || self.context.is_dry() && errno::may_be_a_symlink(&error) =>
            {
                None
            }
            Err(error) => {
                let full = self.context.full(path.as_bytes());
                head.push(Event::Problem(Problem::failed(
                    ErrorRole::Generator,
                    "opendir",
                    &full,
                    &error,
                )));
                None
            }
        }
    }

    /// `--delete-before`: removes the extra entries of one directory. Returns the directory's new time if it changed.
    pub(super) fn before(&mut self, plan: &mut DirPlan, head: &mut Vec<Event>) -> Option<Time> {
        self.note_file_systems(plan, head);
        let is_opened = plan.found.listing.may_delete
            && !(plan.decided().extras.is_empty() && plan.decided().leftovers.is_empty());
        if is_opened {
            plan.reopen_dirs(self.walk.dest, self.walk.alternates);
        }
        let mtime = self.before_in(plan, head);
        if is_opened {
            plan.park();
        }
        if self.context.is_dry() {
            return None;
        }
        mtime
    }

    fn before_in(&mut self, plan: &mut DirPlan, head: &mut Vec<Event>) -> Option<Time> {
        if self.remover.fatal.is_some() {
            return None;
        }
        if let Err(error) = self.refuse_empty_source(plan) {
            self.remover.fatal = Some(error);
            return None;
        }
        if !plan.found.listing.may_delete || !self.are_allowed(head) {
            return None;
        }
        if plan.found.dest.is_unseen {
            // The directory may become accessible when it is entered, but then it is too late to delete.
            head.push(Event::Problem(
                plan.found.cannot_be_listed(self.context.dest_path),
            ));
            plan.found.listing.may_delete = false;
            self.source_failed();
            return None;
        }
        let dir = plan
            .found
            .dest
            .dir
            .clone()
            .filter(|dir| self.stays_in(&plan.found.listing.path, dir, head))?;
        self.remove_leftovers(plan);
        if self.waits {
            // As if it had been changed already, so that its time is reported.
            let (secs, nanos) = clock::now_unix();
            if plan.decided().extras.is_empty() {
                return None;
            }
            return Some(Time { secs, nanos });
        }
        self.remove_extras(plan, &plan.found.listing.path, &dir, head)
            .then(|| sys::fstat(dir.fd()).ok())?
            .map(|stat| stat.mtime)
    }

    /// Returns whether anything in the directory was removed.
    fn remove_extras(
        &mut self,
        plan: &DirPlan,
        path: &RelPath,
        dir: &Dir,
        head: &mut Vec<Event>,
    ) -> bool {
        let mut any = false;
        for &extra in plan.decided().extras.iter().rev() {
            let entry = &plan.found.dest.list.entries[extra as usize];
            let path = path.join(plan.found.dest.list.name(entry));
            let chain = plan.found.receiver_chain.as_ref();
            any |= self.remover.remove(dir, &path, entry.is_dir(), chain) == Removed::Gone;
        }
        head.append(&mut self.remover.events);
        any
    }

    /// `--delete-during` and `--delete-delay`: removes or records the extra entries of a directory that is entered.
    pub(super) fn during(&mut self, plan: &DirPlan, dest_dir: &DestDir, head: &mut Vec<Event>) {
        let when = self.context.options.delete.when;
        let is_due = match when {
            Some(When::During | When::Delay) => true,
            Some(When::Before) => self.waits,
            Some(When::After) | None => false,
        };
        if !is_due || !plan.found.listing.may_delete {
            return;
        }
        // A directory that was just created has no extra entries, but skipped deletions are reported for it as well.
        if dest_dir.dir.is_none() || !self.are_allowed(head) {
            return;
        }
        let Some(dir) = plan.found.dest.dir.as_ref() else {
            return;
        };
        if when == Some(When::Delay) || self.waits {
            self.delay(plan, dest_dir);
        } else if self.stays_in(&plan.found.listing.path, dir, head)
            && self.remove_extras(plan, &dest_dir.path, dir, head)
        {
            dest_dir.last.touch();
        }
    }

    /// Passes a directory in which nothing is to be done. Skipped deletions are reported for it as well.
    pub(super) fn pass_unchanged(&mut self, head: &mut Vec<Event>) {
        if matches!(
            self.context.options.delete.when,
            Some(When::During | When::Delay)
        ) {
            self.are_allowed(head);
        }
    }

    fn delay(&mut self, plan: &DirPlan, dest_dir: &DestDir) {
        let extras = plan
            .decided()
            .extras
            .iter()
            .rev()
            .map(|&at| &plan.found.dest.list.entries[at as usize]);
        let extras: Vec<_> = extras
            .map(|entry| (plan.found.dest.list.name(entry).to_vec(), entry.is_dir()))
            .collect();
        if !extras.is_empty() {
            let path = dest_dir.path.clone();
            let chain = plan.found.receiver_chain.clone();
            let last = dest_dir.last.clone();
            self.delayed.push(Delayed {
                path,
                extras,
                chain,
                last,
            });
        }
    }

    /// Records a directory that was entered, for `--delete-after`.
    pub(super) fn note_for_after(&mut self, plan: &DirPlan, dest_dir: &DestDir) {
        if self.context.options.delete.when != Some(When::After) {
            return;
        }
        let mut source = DirList::clone(&plan.found.listing.list);
        let mut at = 0..;
        source.entries.retain(|_| {
            at.next()
                .is_none_or(|at| !plan.decided().pruned.contains(&at))
        });
        let path = dest_dir.path.clone();
        let last = dest_dir.last.clone();
        self.after.push(After {
            path,
            source,
            may_delete: plan.found.listing.may_delete,
            last,
        });
    }

    /// Deletes what waited for the end. Returns how many entries the limit kept.
    pub(super) fn finish(&mut self, head: &mut Vec<Event>) -> Result<u64> {
        let mut delayed = std::mem::take(&mut self.delayed);
        // Checked once: errors from here on do not stop the remaining deletions. Those that only wait were allowed when
        // their directories were entered.
        if !self.waits && !delayed.is_empty() && !self.are_allowed(head) {
            delayed.clear();
        }
        for delayed in delayed {
            // A directory that could not be deleted stops those after it, as if they had not waited.
            if self.waits && self.remover.met_a_closed_dir && !self.are_allowed(head) {
                break;
            }
            let Some(dir) = self.open_again(&delayed.path, head) else {
                continue;
            };
            if self.stays_in(&delayed.path, &dir, head) {
                self.remove_delayed(&dir, &delayed, head);
            }
        }
        let mut chains = HashMap::new();
        for after in std::mem::take(&mut self.after) {
            self.after(after, &mut chains, head)?;
        }
        self.remover.place_rest();
        self.context.twins.leave_held();
        head.append(&mut self.remover.events);
        self.go_on()?;
        Ok(self.remover.held_back())
    }

    fn remove_delayed(&mut self, dir: &Dir, delayed: &Delayed, head: &mut Vec<Event>) {
        for (name, is_dir) in &delayed.extras {
            let path = delayed.path.join(name);
            let chain = delayed.chain.as_ref();
            if self.remover.remove(dir, &path, *is_dir, chain) == Removed::Gone {
                delayed.last.touch();
            }
        }
        // A whole tree can be removed, so there can be many events.
        if head.is_empty() {
            std::mem::swap(head, &mut self.remover.events);
        } else {
            head.append(&mut self.remover.events);
        }
    }

    /// Lists the directory again, with the rules that its own and its parents' files contain now, and deletes.
    /// `chains`: the rules in force in the directories before it.
    fn after(
        &mut self,
        after: After,
        chains: &mut HashMap<RelPath, Chain>,
        head: &mut Vec<Event>,
    ) -> Result<()> {
        let Some(dir) = self.open_again(&after.path, head) else {
            return Ok(());
        };
        let above = after.path.parent().and_then(|parent| chains.get(&parent));
        let mut chain = above.unwrap_or(self.walk.receiver_chain).clone();
        if chain.has_per_dir()
            && (after.may_delete || self.walk.root_is_listed || !after.path.is_root())
        {
            if !chains.is_empty() {
                chain = chain.for_further_source();
            }
            let owners = self.context.options.preserve.link_owners;
            let (entered, refusals) = enter_dir(&chain, &dir, &after.path, "generator", owners)?;
            head.extend(refusals.into_iter().map(Event::Problem));
            chain = entered;
            chains.insert(after.path.clone(), chain.clone());
        }
        if after.may_delete && self.are_allowed(head) && self.stays_in(&after.path, &dir, head) {
            match self
                .walk
                .extras_now(&after.path, &after.source, &dir, &chain)
            {
                Ok(mut extras) => {
                    extras.reverse();
                    let twins = &self.context.twins;
                    extras.retain(|(name, is_dir)| {
                        *is_dir
                            || !twins.is_held_as(&after.path, name)
                                && !remove_leftover(self.context, &dir, name)
                    });
                    let After { path, last, .. } = after;
                    self.remove_delayed(
                        &dir,
                        &Delayed {
                            path,
                            extras,
                            chain: Some(chain),
                            last,
                        },
                        head,
                    );
                }
                Err(error) => {
                    let full = self.context.full(after.path.as_bytes());
                    head.push(Event::Problem(Problem::failed(
                        ErrorRole::Generator,
                        "readdir",
                        &full,
                        &error,
                    )));
                }
            }
        }
        Ok(())
    }

    /// Removes directories that are in the way of other entries. The steps of those that cannot be removed become
    /// refusals.
    pub(super) fn make_room(
        &mut self,
        plan: &mut DirPlan,
        dest_dir: &DestDir,
        head: &mut Vec<Event>,
    ) {
        let Some(dir) = plan.found.dest.dir.clone() else {
            return;
        };
        plan.refuse(|found, step| {
            if step.decision.in_the_way != InTheWay::Dir {
                return None;
            }
            let entry = &found.listing.list.entries[step.source as usize];
            let path = dest_dir.path.join(found.listing.list.name(entry));
            let chain = found.receiver_chain.as_ref();
            if self.remover.make_room(&dir, &path, chain, entry.kind()) {
                dest_dir.last.touch();
                None
            } else {
                Some(Reason::InTheWay)
            }
        });
        head.append(&mut self.remover.events);
    }
}

/// Returns the message for an entry that cannot be examined before a deletion.
fn cannot_stat(context: &Context<'_>, path: &RelPath, error: &io::Error) -> Event {
    let full = context.full(path.as_bytes());
    Event::Problem(Problem::about(
        ErrorRole::Generator,
        "delete_in_dir: failed to stat",
        &full,
        error,
    ))
}
