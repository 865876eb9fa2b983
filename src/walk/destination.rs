//! Lists the destination, joins it with the source's entries, and calls the planner for each pair.

use crate::filter::Chain;
use crate::flist::entry::Stat;
use crate::flist::join::{Join, Pair};
use crate::flist::{DirList, Entry, Kind};
use crate::fs::compare::SHORT_BYTES;
use crate::fs::read::{self, EntryAt, Wanted};
use crate::fs::root::{Dir, Root};
use crate::fs::write::{is_temp_name, name_of_temp};
use crate::fs::{errno, sys};
use crate::options::{AltKind, CheckMode, Options};
use crate::path::RelPath;
use crate::plan::delete::{self, Extras};
use crate::plan::{self, Action, Decision, Policy, Reason, Subject};
use crate::proto::SubdirFlags;
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::walk::alternate::{AltDirs, Alternate};
use crate::walk::dir_plan::{
    DestState, DirPlan, ListedDir, NONE, Step, SubDir, unreadable_or_fatal,
};
use crate::walk::dir_rules::enter_dir;
use crate::walk::scanner::TaskId;
use crate::walk::source_dir::{Compare, ComparedSource, SourceDir};
use crate::work::parallel;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The result of examining the destination's entry of a pair, if there is one. The flag says whether the contents are
/// equal, if they were compared.
type ExaminedDest = io::Result<Option<(Stat, Option<bool>)>>;

/// The index of the destination's entry of a pair, if there is one, and the same flag.
type FoundDest = Option<(usize, Option<bool>)>;

/// The least length, in bytes, from which resuming a file that a crash left unfinished saves time.
const RESUMED_BYTES: u64 = 1 << 20;

/// Returns from which length on a file resumes from the temporary file that a crash left beside it, so that its blocks
/// need not be sent again. After an orderly exit, `--partial` decides what is kept, as in rsync.
pub fn resumes_from(options: &Options, has_peer: bool) -> u64 {
    let place = &options.place;
    let is_apart =
        place.inplace || place.append.is_some() || place.delay_updates || place.temp_dir.is_some();
    if has_peer && options.delta.whole_file != Some(true) && !is_apart {
        RESUMED_BYTES
    } else {
        u64::MAX
    }
}

/// How the destination is listed and compared. Shared by all workers.
pub struct DestWalk<'a> {
    /// The policy of the planner.
    pub policy: &'a Policy,
    /// Which attributes are read of each entry.
    pub wanted: Wanted<'a>,
    /// Print which rule matched (`--debug=FILTER`).
    pub reports_rules: bool,
    /// The destination's top; `None` if it does not exist (dry run, or `--existing` and an empty directory).
    pub dest: Option<&'a Root>,
    /// Extra entries may have to be listed.
    pub delete: bool,
    /// Extra entries are deleted at the end only (`--delete-after`). Rule files are read again then and may be valid by
    /// that time.
    pub deletes_later: bool,
    /// The transfer's root is itself in the list.
    pub root_is_listed: bool,
    /// How many threads may list one large directory.
    pub threads: usize,
    /// The receiver's rules, with no directory entered.
    pub receiver_chain: &'a Chain,
    /// Make steps for unchanged entries too.
    pub unchanged: bool,
    /// Make steps for unchanged entries whose names end like this too, because backups may replace them.
    pub backup_suffix: Option<&'a [u8]>,
    /// This is a dry run.
    pub is_dry: bool,
    /// Alternate destinations.
    pub alternates: &'a [Alternate],
    /// What they are for: `--compare-dest`, `--copy-dest` or `--link-dest`.
    pub alternate_kind: Option<AltKind>,
    /// Implied directories may be symlinks to directories: `-R --no-implied-dirs`.
    pub follows_implied: bool,
    /// Compares contents under `-c`: the source's directory and name with the destination's.
    pub compare: &'a Compare<'a>,
    /// See [`resumes_from`].
    pub resumes_from: u64,
}

impl DestWalk<'_> {
    /// Decides one directory whose source entries are known. The caller assigns the task numbers of its subdirectories.
    /// `chain`: the receiver's rules in force in its parent. `known`: the destination's entries, if they were just
    /// examined for the directory digest.
    pub fn decide(
        &self,
        found: ListedDir,
        dest_state: &DestState,
        mut chain: Chain,
        known: Option<DirList>,
    ) -> DirPlan {
        let mut plan = DirPlan::of(found);
        let depth = plan.listing.path.depth();
        for entry in &mut Arc::make_mut(&mut plan.listing.list).entries {
            self.wanted.adopt(entry, depth);
        }
        // The directory above a named argument is not part of the transfer, and neither are its rules.
        let is_entered =
            self.root_is_listed || !plan.listing.is_named || !plan.listing.path.is_root();
        let is_known = known.is_some();
        let mut is_reached = true;
        if let (DestState::Present, Some(root)) = (dest_state, self.dest) {
            match (root.open_dir_to_search(&plan.listing.path), known) {
                (Ok(dir), Some(known)) => {
                    self.enter_rules(&mut plan, &dir, &mut chain, is_entered);
                    plan.dest = known;
                    plan.dest_dir = Some(dir);
                }
                (Ok(dir), None) => self.list_dest_dir(&mut plan, dir, root, &mut chain, is_entered),
                (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => {
                    plan.dest_unseen = true
                }
                // The target of a symlink may have been deleted meanwhile. The generator notices that in order.
                (Err(error), _)
                    if self.policy.preserve.keep_dirlinks
                        && error.kind() == io::ErrorKind::NotFound => {}
                (Err(error), _) => {
                    self.cannot_reach(&mut plan, root, &error);
                    is_reached = plan.is_outside;
                }
            }
        }
        self.decide_all(&mut plan, &chain, is_known);
        if plan.is_outside {
            plan.steps.clear();
        }
        if !is_reached {
            plan.leave_all();
        }
        plan.receiver_chain = Some(chain);
        plan
    }

    /// Decides a single source directory without listing its parent at the destination.
    pub fn decide_single(&self, mut found: ListedDir, chain: Chain) -> DirPlan {
        let name = found
            .listing
            .list
            .name(&found.listing.list.entries[0])
            .to_vec();
        match self.list_one(&found.listing.path, &name) {
            Ok(known) => self.decide(found, &DestState::Present, chain, Some(known)),
            Err(error) => {
                let full = self
                    .dest
                    .map(|root| root.full(found.listing.path.join(&name).as_bytes()));
                found
                    .listing
                    .problems
                    .push(cannot_stat(&full.unwrap_or_default(), &error));
                let mut plan = self.decide(found, &DestState::Absent, chain, None);
                plan.leave_all();
                plan
            }
        }
    }

    /// Examines one directory inside a destination directory. The list is empty if there is none.
    fn list_one(&self, parent: &RelPath, name: &[u8]) -> io::Result<DirList> {
        let mut list = DirList::default();
        let Some(root) = self.dest else {
            return Ok(list);
        };
        let Some(dir) = errno::if_there(root.open_dir_to_search(parent))? else {
            return Ok(list);
        };
        let Some(stat) = self.stat_dest(&dir, name, self.policy.preserve.keep_dirlinks)? else {
            return Ok(list);
        };
        let entry = list.push(name, &stat);
        let path = || parent.join(name).as_bytes().to_vec();
        // An attribute that cannot be read counts as different.
        let at = EntryAt {
            dir: &dir,
            name,
            stat: &stat,
            full: &|| root.full(&path()),
            path: &path,
        };
        let _ = self.wanted.complete_dest(entry, &at);
        Ok(list)
    }

    /// Handles an error on opening the destination's directory. Under `-K` it may be a symlink that leads outside, and an
    /// implied directory may be anything; then nothing in it is examined or changed.
    fn cannot_reach(&self, plan: &mut DirPlan, root: &Root, error: &io::Error) {
        let is_no_dir = matches!(
            error.kind(),
            io::ErrorKind::NotADirectory | io::ErrorKind::NotFound
        );
        let leads_outside = (self.policy.preserve.keep_dirlinks || self.follows_implied)
            && errno::leads_outside(error);
        if !(leads_outside || self.follows_implied && is_no_dir) {
            let full = root.full(plan.listing.path.as_bytes());
            plan.listing.problems.push(Problem::failed(
                ErrorRole::Generator,
                "opendir",
                &full,
                error,
            ));
            return;
        }
        plan.is_outside = true;
        plan.blocks_subdirs = !self.is_dry;
        for entry in plan
            .listing
            .list
            .entries
            .iter()
            .filter(|entry| !entry.is_dir())
        {
            let full = root.full(
                plan.listing
                    .path
                    .join(plan.listing.list.name(entry))
                    .as_bytes(),
            );
            plan.listing.problems.push(cannot_stat(&full, error));
        }
    }

    /// Reads the rule files of a destination directory, if they can matter.
    fn enter_rules(&self, plan: &mut DirPlan, dir: &Dir, chain: &mut Chain, is_entered: bool) {
        if !(self.delete && is_entered && chain.has_per_dir()) {
            return;
        }
        match enter_dir(
            chain,
            dir,
            &plan.listing.path,
            "generator",
            self.policy.preserve.link_owners,
        ) {
            Ok((entered, refusals)) => {
                plan.listing.problems.extend(refusals);
                *chain = entered;
            }
            Err(_) if self.deletes_later => {}
            Err(error) => {
                plan.fatal.get_or_insert(error);
                plan.listing.may_delete = false;
            }
        }
    }

    fn list_dest_dir(
        &self,
        plan: &mut DirPlan,
        dir: Dir,
        root: &Root,
        chain: &mut Chain,
        is_entered: bool,
    ) {
        self.enter_rules(plan, &dir, chain, is_entered);
        self.list_dest(plan, &dir, root);
        plan.dest_dir = Some(dir);
    }

    /// Decides again if the destination's directory could not be examined when the plan was made. `dir`: the directory
    /// as it can be opened now. Entries that still cannot be examined are reported and left alone.
    pub fn decide_again_for_dir(&self, plan: &mut DirPlan, dir: Option<&Dir>) {
        let Some(root) = self.dest else { return };
        let task_ids: HashMap<u32, SubDir> = plan
            .subdirs
            .drain(..)
            .map(|sub| (sub.step.source, sub))
            .collect();
        plan.steps.clear();
        plan.extras.clear();
        plan.leftovers.clear();
        plan.hits.clear();
        plan.dest_unseen = false;
        plan.hidden.clear();
        plan.unknown.clear();
        let mut chain = plan
            .receiver_chain
            .clone()
            .expect("a plan that was made has its chain");
        if let Some(dir) = dir {
            self.list_dest_dir(plan, dir.clone(), root, &mut chain, true);
        }
        self.decide_all(plan, &chain, false);
        for sub in &mut plan.subdirs {
            if let Some(known) = task_ids.get(&sub.step.source) {
                (sub.task_id, sub.implied) = (known.task_id, known.implied);
            }
        }
        let denied = errno::denied();
        let full = |name: &[u8]| root.full(plan.listing.path.join(name).as_bytes());
        if plan.dest_unseen && self.delete && plan.listing.may_delete {
            plan.listing
                .problems
                .push(plan.cannot_be_listed(&root.path));
        }
        let hidden = |step: &Step| dir.is_none() || plan.hidden.contains(&step.source);
        for step in plan.steps.iter().filter(|step| hidden(step)) {
            plan.listing
                .problems
                .push(cannot_stat(&full(plan.name_of(step)), &denied));
        }
        let hidden = std::mem::take(&mut plan.hidden);
        plan.steps
            .retain(|step| dir.is_some() && !hidden.contains(&step.source));
        plan.receiver_chain = Some(chain);
    }

    /// Lists the destination's directory. Examines only entries that the source has too. If only a few of many names
    /// matter, keeps only those, and the temporary files of crashed runs among the first of the others.
    fn list_dest(&self, plan: &mut DirPlan, dir: &Dir, root: &Root) {
        let enough = if self.delete {
            usize::MAX
        } else {
            4 * plan.listing.list.len() + 256
        };
        let few = !self.delete && plan.listing.list.len() <= 4;
        let mut dest = DirList::default();
        let mut untyped = Vec::new();
        let mut left_over = Vec::new();
        let listed = if few {
            Ok(false)
        } else {
            read::names(dir, enough, |entry| {
                if !self.delete && is_temp_name(entry.name) {
                    left_over.push(entry.name.to_vec());
                }
                match entry.is_dir {
                    Some(is_dir) => dest.push_name(entry.name, is_dir),
                    None => untyped.push(entry.name.to_vec()),
                }
            })
        };
        let complete = match listed {
            Ok(complete) => complete,
            Err(error) => {
                // Without deletions no list is needed.
                plan.dest_unseen |= self.delete && errno::may_not_be_listed(&error);
                let is_gone =
                    self.policy.preserve.keep_dirlinks && error.kind() == io::ErrorKind::NotFound;
                if !errno::may_not_be_listed(&error) && !is_gone {
                    let full = root.full(plan.listing.path.as_bytes());
                    plan.listing.problems.push(Problem::failed(
                        ErrorRole::Generator,
                        "opendir",
                        &full,
                        &error,
                    ));
                }
                false
            }
        };
        if !complete {
            dest = DirList::default();
            untyped = plan
                .listing
                .list
                .entries
                .iter()
                .map(|e| plan.listing.list.name(e).to_vec())
                .collect();
            left_over.retain(|name| !untyped.contains(name));
            untyped.extend(left_over);
        }
        for (at, name) in untyped.iter().enumerate() {
            match sys::stat(dir.fd(), name, false) {
                Ok(stat) => dest.push_name(name, Kind::of_mode(stat.mode) == Some(Kind::Dir)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !complete => {
                    plan.dest_unseen = true;
                    plan.hidden.push(at as u32);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    plan.listing.problems.push(cannot_stat(
                        &root.full(plan.listing.path.join(name).as_bytes()),
                        &error,
                    ));
                    plan.unknown.insert(name.clone());
                }
            }
        }
        dest.sort();
        plan.dest = dest;
    }

    /// Joins the two lists and decides each pair. `is_known`: the destination's entries are complete.
    fn decide_all(&self, plan: &mut DirPlan, chain: &Chain, is_known: bool) {
        let source = plan.listing.list.clone();
        let mut extras = self.extras(plan, chain);
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(source.len());
        let mut join = Join::default();
        let mut left_over = Vec::new();
        while let Some(pair) = join.next(&source, &plan.dest, |at| plan.dest.entries[at].is_dir()) {
            match pair {
                Pair::Source(source_at) => pairs.push((source_at as u32, NONE)),
                Pair::Both(source_at, dest_at) => pairs.push((source_at as u32, dest_at as u32)),
                Pair::Dest(dest_at) => {
                    match self.continued(&source, plan.dest.name(&plan.dest.entries[dest_at])) {
                        Some(source_at) => left_over.push((source_at, dest_at)),
                        None => note_lone(plan, dest_at, &mut extras),
                    }
                }
            }
        }
        let mut alternates = AltDirs::default();
        let implied = if self.follows_implied {
            implied_dirs(&source, &plan.listing.subs)
        } else {
            HashSet::new()
        };
        let mut subs = std::mem::take(&mut plan.listing.subs).into_iter();
        for block in pairs.chunks(parallel::BLOCK) {
            let looks = match is_known {
                true => block.iter().map(|_| Ok(None)).collect(),
                false => self.stat_pairs(plan, block, &implied),
            };
            let mut found = Vec::with_capacity(block.len());
            for (&(source_at, dest_at), looked) in block.iter().zip(looks) {
                let known = (is_known && dest_at != NONE).then_some((dest_at as usize, None));
                let looked = looked.unwrap_or_else(|error| {
                    self.cannot_examine(
                        plan,
                        (source_at, source.name(&source.entries[source_at as usize])),
                        &error,
                    );
                    None
                });
                found.push(known.or_else(|| {
                    let (stat, same) = looked?;
                    self.complete_dest(plan, dest_at as usize, &stat);
                    Some((dest_at as usize, same))
                }));
            }
            if self.policy.preserve.write_devices {
                self.measure_devices(plan, block, &found);
            }
            self.compare_rest(plan, block, &mut found);
            for (&(source_at, _), found) in block.iter().zip(found) {
                let (dest_at, same) = found.map_or((None, None), |(at, same)| (Some(at), same));
                let source_at = source_at as usize;
                let mut step = self.decide_one(plan, source_at, dest_at, same);
                if plan
                    .unknown
                    .contains(source.name(&source.entries[source_at]))
                {
                    step.decision.action = Action::Refuse(Reason::Unknown);
                }
                self.search_alternates(plan, &mut alternates, &mut step);
                // A step for another name of the file, or a backup, may change it.
                let is_backup = |suffix| source.name(&source.entries[source_at]).ends_with(suffix);
                let may_change = dest_at.is_some_and(|at| plan.dest.entries[at].inode.is_some())
                    || self.backup_suffix.is_some_and(is_backup);
                match source.entries[source_at].is_dir() {
                    true => {
                        let flags = subs.next().unwrap_or_default();
                        if self.follows_implied && flags.is_implied && !self.is_dry {
                            // It replaces nothing. What is in it cannot be created then, and is reported.
                            step.decision.in_the_way = plan::InTheWay::Nothing;
                        }
                        let task_id = flags.is_walked.then_some(TaskId::of(0));
                        let SubdirFlags {
                            is_implied: implied,
                            is_repeated,
                            ..
                        } = flags;
                        plan.subdirs.push(SubDir {
                            step,
                            task_id,
                            implied,
                            is_repeated,
                        });
                    }
                    false
                        if step.decision.action == Action::Keep
                            && !self.unchanged
                            && !may_change => {}
                    false => plan.steps.push(step),
                }
            }
        }
        for (source_at, dest_at) in left_over {
            // Steps are in the order of the source.
            let step = plan
                .steps
                .binary_search_by_key(&source_at, |step| step.source as usize);
            if !step.is_ok_and(|at| matches!(plan.steps[at].decision.action, Action::Transfer(_))) {
                note_lone(plan, dest_at, &mut extras);
            }
        }
        plan.extras.sort_unstable();
    }

    /// Returns the source file that resumes from a temporary file of this name, if it is transferred.
    fn continued(&self, source: &DirList, temp: &[u8]) -> Option<usize> {
        let at = source.find(name_of_temp(temp)?)?;
        let entry = &source.entries[at];
        (entry.kind() == Kind::File && entry.len_bytes >= self.resumes_from).then_some(at)
    }

    /// Begins the decisions about the entries of a directory that only the destination has.
    fn extras<'c>(&self, plan: &DirPlan, chain: &'c Chain) -> Extras<'c> {
        Extras::new(
            &plan.listing.path,
            chain,
            self.delete && plan.listing.may_delete,
            self.reports_rules,
        )
    }

    /// Drops empty directories (`-m`) unless a rule of the command line protects them. What the destination has under
    /// their names becomes extra. `has_last`: the last subdirectory is the last entry of the whole list. Returns the task
    /// numbers of the dropped directories.
    pub fn prune(
        &self,
        plan: &mut DirPlan,
        has_last: bool,
        is_bare: impl Fn(TaskId) -> bool,
    ) -> Vec<TaskId> {
        let mut pruned = Vec::new();
        let chain = plan
            .receiver_chain
            .clone()
            .expect("a plan that was made has its chain");
        let mut extras = self.extras(plan, &chain);
        let subdirs = std::mem::take(&mut plan.subdirs);
        let last = subdirs
            .last()
            .map(|sub| sub.step.source)
            .filter(|_| has_last);
        for sub in subdirs {
            let path = plan.listing.path.join(plan.name_of(&sub.step));
            // In rsync, the duplicate of a directory counts as its content, unless nothing follows it.
            let is_held = sub.is_repeated && last != Some(sub.step.source);
            let is_bare = !is_held && sub.task_id.is_none_or(&is_bare);
            if !is_bare || !delete::may_prune(self.receiver_chain, &path) {
                plan.subdirs.push(sub);
                continue;
            }
            plan.pruned.push(sub.step.source);
            pruned.extend(sub.task_id);
            if sub.step.dest != NONE {
                note_lone(plan, sub.step.dest as usize, &mut extras);
            }
        }
        plan.extras.sort_unstable();
        pruned
    }

    /// Examines an entry of the destination; `None` if it is gone. `follows`: a symlink to a directory counts as the
    /// directory.
    fn stat_dest(&self, dir: &Dir, name: &[u8], follows: bool) -> io::Result<Option<Stat>> {
        let Some(stat) = errno::if_there(sys::stat(dir.fd(), name, false))? else {
            return Ok(None);
        };
        if follows && Kind::of_mode(stat.mode) == Some(Kind::Symlink) {
            let target = match sys::stat(dir.fd(), name, true) {
                Err(error) if errno::is_unreachable(&error) => None,
                followed => Some(followed?),
            };
            return Ok(target
                .filter(|target| Kind::of_mode(target.mode) == Some(Kind::Dir))
                .or(Some(stat)));
        }
        Ok(Some(stat))
    }

    /// Records that the destination's entry for a source entry, given by index and name, could not be examined.
    fn cannot_examine(
        &self,
        plan: &mut DirPlan,
        (source_at, name): (u32, &[u8]),
        error: &io::Error,
    ) {
        let is_dir_closed = |dir: &Dir| sys::stat(dir.fd(), b".", false).is_err();
        if error.kind() == io::ErrorKind::PermissionDenied
            && plan.dest_dir.as_ref().is_some_and(is_dir_closed)
        {
            // The directory can be listed but not searched.
            plan.dest_unseen = true;
            plan.hidden.push(source_at);
            return;
        }
        let full = self
            .dest
            .map(|root| root.full(plan.listing.path.join(name).as_bytes()))
            .unwrap_or_default();
        plan.listing.problems.push(cannot_stat(&full, error));
        plan.unknown.insert(name.to_vec());
    }

    /// Fills in the attributes of an entry of the destination.
    fn complete_dest(&self, plan: &mut DirPlan, at: usize, stat: &Stat) {
        let Some(dir) = &plan.dest_dir else { return };
        let (name, entry) = plan.dest.entry_mut(at);
        entry.set_stat(stat);
        let path = || plan.listing.path.join(name).as_bytes().to_vec();
        let full = || self.dest.map(|root| root.full(&path())).unwrap_or_default();
        let at = EntryAt {
            dir,
            name,
            stat,
            full: &full,
            path: &path,
        };
        let Err(incomplete) = self.wanted.complete_dest(entry, &at) else {
            return;
        };
        match unreadable_or_fatal("generator", incomplete, Weight::Failed) {
            Ok(problem) => plan.listing.problems.push(problem),
            Err(error) => _ = plan.fatal.get_or_insert(error),
        }
    }

    /// Examines the destination's entries of these pairs. Also compares the contents of short files, if the decision
    /// depends on them.
    fn stat_pairs(
        &self,
        plan: &DirPlan,
        pairs: &[(u32, u32)],
        implied: &HashSet<u32>,
    ) -> Vec<ExaminedDest> {
        let (source, dest) = (&plan.listing.list, &plan.dest);
        let compares = self.policy.check.mode == CheckMode::Digest;
        let look = |&(source_at, dest_at): &(u32, u32)| {
            let Some(dir) = plan.dest_dir.as_ref().filter(|_| dest_at != NONE) else {
                return Ok(None);
            };
            let entry = &source.entries[source_at as usize];
            let name = dest.name(&dest.entries[dest_at as usize]);
            let follows = entry.is_dir()
                && (self.policy.preserve.keep_dirlinks || implied.contains(&source_at));
            let Some(stat) = self.stat_dest(dir, name, follows)? else {
                return Ok(None);
            };
            let may_be_same =
                compares && entry.len_bytes == stat.len_bytes && entry.len_bytes <= SHORT_BYTES;
            let needs_digest = || self.needs_digest(entry, &Entry::of(&stat));
            let same = (may_be_same && needs_digest()).then(|| self.is_same(plan, entry));
            Ok(Some((stat, same)))
        };
        match compares {
            false => parallel::map(pairs, self.threads, look),
            true => parallel::share(
                pairs,
                parallel::threads_for_files(pairs.len(), self.threads),
                look,
            ),
        }
    }

    /// Sets the lengths of devices that receive the content of a source file of the same name (`--write-devices`).
    fn measure_devices(&self, plan: &mut DirPlan, pairs: &[(u32, u32)], found: &[FoundDest]) {
        let Some(dir) = &plan.dest_dir else { return };
        for (&(source_at, _), found) in pairs.iter().zip(found) {
            let &Some((dest_at, _)) = found else { continue };
            let (name, existing) = plan.dest.entry_mut(dest_at);
            let source = &plan.listing.list.entries[source_at as usize];
            if source.kind() != Kind::File || existing.kind() != Kind::Device {
                continue;
            }
            // If opening fails, the error is reported when the device is written.
            let opened = sys::open_read(dir.fd(), name, false, false);
            existing.len_bytes = opened
                .and_then(|device| sys::content_len(device.as_fd()))
                .unwrap_or(0);
            existing.extra_mut().takes_content = true;
        }
    }

    /// Compares the contents of the remaining pairs whose decision depends on them. `found`: for each pair the index of
    /// the destination's entry and the answer.
    fn compare_rest(&self, plan: &DirPlan, pairs: &[(u32, u32)], found: &mut [FoundDest]) {
        let questions = pairs
            .iter()
            .zip(found)
            .filter_map(|(&(source_at, _), found)| {
                let (dest_at, same @ None) = found.as_mut()? else {
                    return None;
                };
                let entry = &plan.listing.list.entries[source_at as usize];
                self.needs_digest(entry, &plan.dest.entries[*dest_at])
                    .then_some((entry, same))
            });
        let (entries, answers): (Vec<&Entry>, Vec<&mut Option<bool>>) = questions.unzip();
        let lens_bytes = entries.iter().map(|entry| entry.len_bytes);
        let threads = parallel::threads_for(lens_bytes, self.threads);
        let same = parallel::share(&entries, threads, |entry| self.is_same(plan, entry));
        for (answer, same) in answers.into_iter().zip(same) {
            *answer = Some(same);
        }
    }

    /// Returns whether the decision depends on the contents.
    fn needs_digest(&self, source: &Entry, dest: &Entry) -> bool {
        self.policy.check.mode == CheckMode::Digest
            && plan::decide(source, Some(dest), None, Subject::Entry, self.policy).action
                == Action::AskDigest
    }

    /// Returns whether the destination's file has the same content as the source's.
    fn is_same(&self, plan: &DirPlan, entry: &Entry) -> bool {
        let original = ComparedSource {
            entry,
            place: plan.place_of(entry),
            name: plan.listing.list.name(entry),
        };
        let compare = |dir| (self.compare)(original, (dir, original.name)).unwrap_or(false);
        plan.dest_dir.as_ref().is_some_and(compare)
    }

    /// Decides one pair. `same`: whether the contents are equal, if they were compared.
    fn decide_one(
        &self,
        plan: &DirPlan,
        source_at: usize,
        dest_at: Option<usize>,
        same: Option<bool>,
    ) -> Step {
        let entry = &plan.listing.list.entries[source_at];
        let name = plan.listing.list.name(entry);
        let existing = dest_at.map(|at| &plan.dest.entries[at]);
        let path = || plan.listing.path.join(name);
        let is_unsafe_link = || {
            self.policy.preserve.safe_links
                && entry.kind() == Kind::Symlink
                && plan::safelink::is_unsafe(entry.target(), path().as_bytes())
        };
        let subject = match () {
            () if self.receiver_chain.has_module_rules()
                && self.is_forbidden(&path(), entry.is_dir()) =>
            {
                Subject::Forbidden
            }
            () if is_unsafe_link() => Subject::UnsafeLink,
            () => Subject::Entry,
        };
        let decision = plan::decide(entry, existing, same, subject, self.policy);
        Step {
            source: source_at as u32,
            dest: dest_at.map_or(NONE, |at| at as u32),
            decision,
        }
    }

    /// Returns whether the rules of a daemon's module exclude an entry.
    pub fn is_forbidden(&self, path: &RelPath, is_dir: bool) -> bool {
        self.receiver_chain.module_excludes(path.as_bytes(), is_dir)
    }

    /// Lets the alternate trees change a decision, and records what they have.
    fn search_alternates(&self, plan: &mut DirPlan, dirs: &mut AltDirs, step: &mut Step) {
        let entry = plan.source_of(step);
        let is_dir = entry.is_dir();
        let original = ComparedSource {
            entry,
            place: plan.place_of(entry),
            name: plan.name_of(step),
        };
        let existing = (step.dest != NONE).then(|| &plan.dest.entries[step.dest as usize]);
        let there = (plan.dest_dir.as_ref(), existing);
        let (decision, hit) =
            self.decide_with_alternates(dirs, &plan.listing.path, original, there, step.decision);
        step.decision = decision;
        plan.listing.problems.append(&mut dirs.problems);
        if let Some(hit) = hit.filter(|_| !is_dir) {
            plan.hits.insert(step.source, hit);
        }
    }

    /// Decides the transfer's root itself. Also returns the errors met in the alternate trees.
    pub fn decide_root(
        &self,
        source: &Entry,
        existing: Option<&Entry>,
        place: Option<&SourceDir>,
    ) -> (Decision, Vec<Problem>) {
        // Options can exclude a root that was not created.
        let subject = if self.dest.is_some() {
            Subject::Included
        } else {
            Subject::Entry
        };
        let decision = plan::decide(source, existing, None, subject, self.policy);
        let (root, mut dirs) = (RelPath::root(), AltDirs::default());
        let original = ComparedSource {
            entry: source,
            place,
            name: b".",
        };
        let (decision, _) =
            self.decide_with_alternates(&mut dirs, &root, original, (None, existing), decision);
        (decision, dirs.problems)
    }

    /// Lists what only the destination has now, in order: names, and whether they are directories. `chain`: the
    /// receiver's rules in force here now.
    pub fn extras_now(
        &self,
        path: &RelPath,
        source: &DirList,
        dir: &Dir,
        chain: &Chain,
    ) -> io::Result<Vec<(Vec<u8>, bool)>> {
        let list = read::typed_names(dir)?;
        let mut extras = Extras::new(path, chain, self.delete, self.reports_rules);
        let mut now = Vec::new();
        let mut join = Join::default();
        while let Some(pair) = join.next(source, &list, |at| list.entries[at].is_dir()) {
            let Pair::Dest(at) = pair else { continue };
            let (name, is_dir) = (list.name(&list.entries[at]), list.entries[at].is_dir());
            if extras.contain(name, is_dir, &mut Vec::new()) {
                now.push((name.to_vec(), is_dir));
            }
        }
        Ok(now)
    }
}

/// Records an entry that only the destination has, if it is extra or has the name of a temporary file.
fn note_lone(plan: &mut DirPlan, at: usize, extras: &mut Extras<'_>) {
    let entry = &plan.dest.entries[at];
    let (name, is_dir) = (plan.dest.name(entry), entry.is_dir());
    if !is_dir && is_temp_name(name) {
        plan.leftovers.push(at as u32);
    }
    if extras.contain(name, is_dir, &mut plan.listing.notes) {
        plan.extras.push(at as u32);
    }
}

/// Returns the indices of the implied directories.
fn implied_dirs(source: &DirList, subs: &[SubdirFlags]) -> HashSet<u32> {
    let dirs = (0u32..)
        .zip(&source.entries)
        .filter(|(_, entry)| entry.is_dir());
    dirs.zip(subs)
        .filter(|(_, flags)| flags.is_implied)
        .map(|((at, _), _)| at)
        .collect()
}

/// Returns the message for an entry of the destination that cannot be examined.
pub fn cannot_stat(full: &[u8], error: &io::Error) -> Problem {
    Problem::about(
        ErrorRole::Generator,
        "recv_generator: failed to stat",
        full,
        error,
    )
}
