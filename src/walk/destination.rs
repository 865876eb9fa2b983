//! Lists the destination, joins it with the source's entries, and calls the planner for each pair.

use crate::filter::{Chain, Side};
use crate::flist::entry::Stat;
use crate::flist::join::{Join, Pair};
use crate::flist::{DirList, Entry, Kind, Time};
use crate::fs::compare::SHORT_BYTES;
use crate::fs::read::{self, EntryAt, Wanted};
use crate::fs::root::{Dir, Root};
use crate::fs::sys::FileVersion;
use crate::fs::write::{is_temp_name, name_of_temp};
use crate::fs::{errno, sys};
use crate::options::{AltKind, CheckMode, Options};
use crate::path::RelPath;
use crate::plan::delete::{self, Extras};
use crate::plan::explained::{DecidedFact, Fact, Fate};
use crate::plan::planned::StoredPlan;
use crate::plan::{self, Action, Decision, Policy, Reason, Subject};
use crate::proto::SubdirFlags;
use crate::report::event::{ErrorRole, Problem, Weight, errno_words};
use crate::report::explainer::Explainer;
use crate::walk::alternate::{AltDirs, Alternate, Hit};
use crate::walk::dir_plan::{
    Decided, DestListing, DestState, DirPlan, Findings, Found, ListedDir, NONE, Step, SubDir,
    unreadable_or_fatal,
};
use crate::walk::dir_rules::enter_dir;
use crate::walk::replay;
use crate::walk::scanner::TaskId;
use crate::walk::source_dir::{Compare, ComparedDest, ComparedSource, SourceDir};
use crate::work::parallel;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The result of examining the destination's entry of a pair, if there is one. The flag says whether the contents are
/// equal, if they were compared.
type ExaminedDest = io::Result<Option<(Stat, Option<bool>)>>;

/// How the entries of both sides of a directory belong together, and what else the decisions depend on.
///
/// The invariants: `pairs` has each entry of the source once, in order. What a pair names at the destination is there and
/// has been examined. Each entry of the destination is in at most one of the three lists.
#[derive(Default)]
struct Joined {
    pairs: Vec<JoinedPair>,
    /// The destination's entries that the source lacks, in order.
    lone: Vec<u32>,
    /// Of the others that the source lacks, those that may be left over from an unfinished transfer of a file: its index
    /// at the source, and theirs. They are lone unless that file is transferred.
    left_over: Vec<(u32, u32)>,
}

/// An entry of the source and its counterpart.
struct JoinedPair {
    /// Its index at the source.
    source: u32,
    /// The index of its counterpart, or [`NONE`].
    dest: u32,
    /// Whether the contents are equal, if the decision depends on that.
    same: Option<bool>,
}

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
    /// Files that the source lacks matter, because new files may take their content (`--detect-renamed`).
    pub finds_twins: bool,
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
    /// What they are for: `--compare-dest`, `--copy-dest`, `--clone-dest` or `--link-dest`.
    pub alternate_kind: Option<AltKind>,
    /// Implied directories may be symlinks to directories: `-R --no-implied-dirs`.
    pub follows_implied: bool,
    /// Compares contents under `-c`: the source's directory and name with the destination's.
    pub compare: &'a Compare<'a>,
    /// The comparison uses digests of earlier runs.
    pub keeps_digests: bool,
    /// See [`resumes_from`].
    pub resumes_from: u64,
    /// The plan that is carried out, if there is one.
    pub stored: Option<&'a dyn StoredPlan>,
    /// Collects what is found out about the paths of `sparsync explain`.
    pub explainer: Option<&'a Explainer>,
}

impl DestWalk<'_> {
    /// Makes the plan of one directory whose source entries are known. The caller assigns the task numbers of its
    /// subdirectories. `chain`: the receiver's rules in force in its parent. `known`: the destination's entries, if they
    /// were just examined for the directory digest.
    pub fn decide(
        &self,
        listed: ListedDir,
        dest_state: &DestState,
        chain: Chain,
        known: Option<DirList>,
    ) -> DirPlan {
        let (mut findings, mut found) = self.found_at_source(listed, chain);
        let is_known = known.is_some();
        let is_reached = self.find_dest(&mut found, &mut findings, dest_state, known);
        let joined = self.examine(&mut found, &mut findings, is_known);
        let mut decided = self.decide_all(&found, &joined, &mut findings);
        if found.dest.is_outside {
            decided.steps.clear();
        }
        let mut plan = DirPlan::new(findings, found, decided);
        if !is_reached {
            plan.leave_all();
        }
        plan
    }

    /// Returns what the source has in a directory, as the destination must have it. `chain`: the receiver's rules in force
    /// in its parent.
    fn found_at_source(&self, listed: ListedDir, chain: Chain) -> (Findings, Found) {
        let ListedDir {
            mut listing,
            places,
            tally,
            fatal,
            lacks_digests: _,
        } = listed;
        let depth = listing.path.depth();
        for entry in &mut Arc::make_mut(&mut listing.list).entries {
            self.wanted.normalize(entry, depth);
        }
        let findings = Findings {
            problems: std::mem::take(&mut listing.problems),
            notes: std::mem::take(&mut listing.notes),
            tally,
            fatal,
        };
        let found = Found {
            listing,
            places,
            receiver_chain: Some(chain),
            ..Found::default()
        };
        (findings, found)
    }

    /// Opens and lists the destination's directory, and enters its rules. Returns `false` if it cannot be reached, so that
    /// every entry must be left alone.
    fn find_dest(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        dest_state: &DestState,
        known: Option<DirList>,
    ) -> bool {
        let (DestState::Present, Some(root)) = (dest_state, self.dest) else {
            return true;
        };
        // The directory above a named argument is not part of the transfer, and neither are its rules.
        let is_entered =
            self.root_is_listed || !found.listing.is_named || !found.listing.path.is_root();
        match (root.open_dir_to_search(&found.listing.path), known) {
            (Ok(dir), Some(known)) => {
                self.enter_rules(found, findings, &dir, is_entered);
                found.dest.list = known;
                found.dest.dir = Some(dir);
            }
            (Ok(dir), None) => self.list_dest_dir(found, findings, dir, root, is_entered),
            (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => {
                found.dest.is_unseen = true;
            }
            // The target of a symlink may have been deleted meanwhile. The generator notices that in order.
            (Err(error), _)
                if self.policy.preserve.keep_dirlinks
                    && error.kind() == io::ErrorKind::NotFound => {}
            (Err(error), _) => {
                self.cannot_reach(found, findings, root, &error);
                return found.dest.is_outside;
            }
        }
        true
    }

    /// Decides a single source directory without listing its parent at the destination.
    pub fn decide_single(&self, mut listed: ListedDir, chain: Chain) -> DirPlan {
        let name = listed
            .listing
            .list
            .name(&listed.listing.list.entries[0])
            .to_vec();
        match self.list_one(&listed.listing.path, &name) {
            Ok(known) => self.decide(listed, &DestState::Present, chain, Some(known)),
            Err(error) => {
                let full = self
                    .dest
                    .map(|root| root.full(listed.listing.path.join(&name).as_bytes()));
                listed
                    .listing
                    .problems
                    .push(cannot_stat(&full.unwrap_or_default(), &error));
                let mut plan = self.decide(listed, &DestState::Absent, chain, None);
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
    fn cannot_reach(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        root: &Root,
        error: &io::Error,
    ) {
        let is_no_dir = matches!(
            error.kind(),
            io::ErrorKind::NotADirectory | io::ErrorKind::NotFound
        );
        let leads_outside = (self.policy.preserve.keep_dirlinks || self.follows_implied)
            && errno::leads_outside(error);
        if !(leads_outside || self.follows_implied && is_no_dir) {
            let full = root.full(found.listing.path.as_bytes());
            findings.problems.push(Problem::failed(
                ErrorRole::Generator,
                "opendir",
                &full,
                error,
            ));
            return;
        }
        found.dest.is_outside = true;
        found.dest.blocks_subdirs = !self.is_dry;
        let list = &found.listing.list;
        for entry in list.entries.iter().filter(|entry| !entry.is_dir()) {
            let path = found.listing.path.join(list.name(entry));
            findings
                .problems
                .push(cannot_stat(&root.full(path.as_bytes()), error));
        }
    }

    /// Reads the rule files of a destination directory, if they can matter.
    fn enter_rules(&self, found: &mut Found, findings: &mut Findings, dir: &Dir, is_entered: bool) {
        let Some(chain) = &mut found.receiver_chain else {
            return;
        };
        if !(self.delete && is_entered && chain.has_per_dir()) {
            return;
        }
        let owners = self.policy.preserve.link_owners;
        match enter_dir(chain, dir, &found.listing.path, "generator", owners) {
            Ok((entered, refusals)) => {
                findings.problems.extend(refusals);
                *chain = entered;
            }
            Err(_) if self.deletes_later => {}
            Err(error) => {
                findings.fatal.get_or_insert(error);
                found.listing.may_delete = false;
            }
        }
    }

    fn list_dest_dir(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        dir: Dir,
        root: &Root,
        is_entered: bool,
    ) {
        self.enter_rules(found, findings, &dir, is_entered);
        self.list_dest(found, findings, &dir, root);
        found.dest.dir = Some(dir);
    }

    /// Decides again if the destination's directory could not be examined when the plan was made. `dir`: the directory
    /// as it can be opened now. Entries that still cannot be examined are reported and left alone.
    pub fn decide_again_for_dir(&self, plan: &mut DirPlan, dir: Option<&Dir>) {
        let Some(root) = self.dest else { return };
        let DirPlan {
            findings,
            found,
            decided: before,
            ..
        } = plan;
        // Without a directory, what is known stays.
        let DestListing {
            list,
            dir: known_dir,
            is_outside,
            blocks_subdirs,
            ..
        } = std::mem::take(&mut found.dest);
        found.dest = DestListing {
            list,
            dir: known_dir,
            is_outside,
            blocks_subdirs,
            ..DestListing::default()
        };
        if let Some(dir) = dir {
            self.list_dest_dir(found, findings, dir.clone(), root, true);
        }
        let joined = self.examine(found, findings, false);
        let mut decided = self.decide_all(found, &joined, findings);
        for sub in &mut decided.subdirs {
            let known = before
                .subdirs
                .binary_search_by_key(&sub.step.source, |known| known.step.source);
            sub.task_id = known.ok().and_then(|at| before.subdirs[at].task_id);
        }
        if found.dest.is_unseen && self.delete && found.listing.may_delete {
            findings.problems.push(found.cannot_be_listed(&root.path));
        }
        let hidden = std::mem::take(&mut found.dest.hidden);
        let is_hidden = |step: &Step| dir.is_none() || hidden.contains(&step.source);
        let denied = errno::denied();
        for step in decided.steps.iter().filter(|step| is_hidden(step)) {
            let path = found.listing.path.join(found.name_of(step));
            findings
                .problems
                .push(cannot_stat(&root.full(path.as_bytes()), &denied));
        }
        decided.steps.retain(|step| !is_hidden(step));
        plan.decided = decided;
    }

    /// Decides again about the subdirectories of a plan whose times have changed since.
    pub fn decide_dirs_again(&self, plan: &mut DirPlan, changed: &HashMap<TaskId, Time>) {
        let DirPlan {
            findings,
            found,
            decided,
            ..
        } = plan;
        for sub in &mut decided.subdirs {
            let mtime = sub.task_id.and_then(|task_id| changed.get(&task_id));
            let (Some(mtime), false) = (mtime, sub.step.dest == NONE) else {
                continue;
            };
            let existing = &mut found.dest.list.entries[sub.step.dest as usize];
            existing.mtime = *mtime;
            let source = &found.listing.list.entries[sub.step.source as usize];
            let subject = Subject::Entry;
            sub.step.decision = plan::decide(source, Some(existing), None, subject, self.policy);
            if let Some(stored) = self.stored {
                let path = found.listing.path.join(found.listing.list.name(source));
                let action = sub.step.decision.action;
                match replay::restricted_again(stored, path.as_bytes(), action) {
                    Ok(action) => sub.step.decision.action = action,
                    Err(error) => _ = findings.fatal.get_or_insert(error),
                }
            }
        }
    }

    /// Lists the destination's directory. Examines only entries that the source has too. If only a few of many names
    /// matter, keeps only those, and the temporary files of crashed runs among the first of the others.
    fn list_dest(&self, found: &mut Found, findings: &mut Findings, dir: &Dir, root: &Root) {
        let needs_all = self.delete || self.finds_twins;
        let enough = if needs_all {
            usize::MAX
        } else {
            4 * found.listing.list.len() + 256
        };
        let few = !needs_all && found.listing.list.len() <= 4;
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
                found.dest.is_unseen |= self.delete && errno::may_not_be_listed(&error);
                let is_gone =
                    self.policy.preserve.keep_dirlinks && error.kind() == io::ErrorKind::NotFound;
                if !errno::may_not_be_listed(&error) && !is_gone {
                    let full = root.full(found.listing.path.as_bytes());
                    findings.problems.push(Problem::failed(
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
            untyped = found
                .listing
                .list
                .entries
                .iter()
                .map(|e| found.listing.list.name(e).to_vec())
                .collect();
            left_over.retain(|name| !untyped.contains(name));
            untyped.extend(left_over);
        }
        for (at, name) in untyped.iter().enumerate() {
            match sys::stat(dir.fd(), name, false) {
                Ok(stat) => dest.push_name(name, Kind::of_mode(stat.mode) == Some(Kind::Dir)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !complete => {
                    found.dest.is_unseen = true;
                    found.dest.hidden.push(at as u32);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    findings.problems.push(cannot_stat(
                        &root.full(found.listing.path.join(name).as_bytes()),
                        &error,
                    ));
                    found.dest.unknown.insert(name.clone());
                }
            }
        }
        dest.sort();
        found.dest.list = dest;
    }

    /// Joins the two lists.
    fn join(&self, found: &Found) -> Joined {
        let source = &found.listing.list;
        let dest = &found.dest.list;
        let mut joined = Joined {
            pairs: Vec::with_capacity(source.len()),
            ..Joined::default()
        };
        let pair = |source: usize, dest: u32| JoinedPair {
            source: source as u32,
            dest,
            same: None,
        };
        let mut join = Join::default();
        while let Some(next) = join.next(source, dest, |at| dest.entries[at].is_dir()) {
            match next {
                Pair::Source(source_at) => joined.pairs.push(pair(source_at, NONE)),
                Pair::Both(source_at, dest_at) => {
                    joined.pairs.push(pair(source_at, dest_at as u32))
                }
                Pair::Dest(dest_at) => {
                    match self.continued(source, dest.name(&dest.entries[dest_at])) {
                        Some(source_at) => {
                            joined.left_over.push((source_at as u32, dest_at as u32));
                        }
                        None => joined.lone.push(dest_at as u32),
                    }
                }
            }
        }
        joined
    }

    /// Joins the two lists, and examines the destination's entries that the source has, too. `is_known`: they are complete.
    ///
    /// Afterwards nothing more of either side is read for the decisions, except in alternate trees.
    fn examine(&self, found: &mut Found, findings: &mut Findings, is_known: bool) -> Joined {
        let mut joined = self.join(found);
        let implied = if self.follows_implied {
            implied_dirs(&found.listing.list, &found.listing.subs)
        } else {
            HashSet::new()
        };
        for block in joined.pairs.chunks_mut(parallel::BLOCK) {
            let unread = Mutex::new(Vec::new());
            if !is_known {
                let looks = self.stat_pairs(found, block, &implied, &unread);
                for (pair, looked) in block.iter_mut().zip(looks) {
                    self.take_look(found, findings, pair, looked);
                }
            }
            if self.policy.preserve.write_devices {
                self.measure_devices(found, block);
            }
            self.compare_rest(found, block, &unread);
            self.report_unread(found, findings, unread.into_inner());
        }
        joined
    }

    /// Enters the result of examining the counterpart of a pair. The pair has none if that is gone or cannot be examined.
    fn take_look(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        pair: &mut JoinedPair,
        looked: ExaminedDest,
    ) {
        match looked {
            Ok(Some((stat, same))) => {
                self.complete_dest(found, findings, pair.dest as usize, &stat);
                pair.same = same;
            }
            Ok(None) => pair.dest = NONE,
            Err(error) => {
                pair.dest = NONE;
                self.cannot_examine(found, findings, pair.source, &error);
            }
        }
    }

    /// Decides each pair, and which entries of the destination are extra.
    fn decide_all(&self, found: &Found, joined: &Joined, findings: &mut Findings) -> Decided {
        let mut decided = Decided::default();
        let mut extras = self.extras(found);
        for &dest_at in &joined.lone {
            note_lone(found, dest_at, &mut extras, &mut decided, findings);
        }

        let source = &found.listing.list;
        let mut alternates = AltDirs::default();
        let mut subs = found.listing.subs.iter();
        for pair in &joined.pairs {
            let entry = &source.entries[pair.source as usize];
            let name = source.name(entry);
            let mut step = self.decide_one(found, pair);
            if found.dest.unknown.contains(name) {
                step.decision.action = Action::Refuse(Reason::Unknown);
            }
            let hit = self.search_alternates(found, findings, &mut alternates, &mut step);
            if let Some(hit) = hit {
                decided.hits.insert(pair.source, hit);
            }
            if let Some(explainer) = self.explainer {
                self.explain(explainer, found, &step);
            }
            if entry.is_dir() {
                let flags = subs.next().copied().unwrap_or_default();
                if let Some(explainer) = self.explainer
                    && !flags.is_walked
                {
                    explainer.add(&found.listing.path.join(name), Fact::NotEntered);
                }
                decided.subdirs.push(self.sub_dir(step, flags));
                continue;
            }
            // A step for another name of the file, or a backup, may change it.
            let has_other_names =
                pair.dest != NONE && found.dest.list.entries[pair.dest as usize].inode.is_some();
            let is_backup = self
                .backup_suffix
                .is_some_and(|suffix| name.ends_with(suffix));
            let is_unchanged = step.decision.action == Action::Keep;
            if !is_unchanged || self.unchanged || has_other_names || is_backup {
                decided.steps.push(step);
            }
        }

        for &(source_at, dest_at) in &joined.left_over {
            // Steps are in the order of the source.
            let step = decided
                .steps
                .binary_search_by_key(&source_at, |step| step.source);
            let is_transferred = step
                .is_ok_and(|at| matches!(decided.steps[at].decision.action, Action::Transfer(_)));
            if !is_transferred {
                note_lone(found, dest_at, &mut extras, &mut decided, findings);
            }
        }
        decided.extras.sort_unstable();
        if let Some(explainer) = self.explainer {
            self.explain_lone(explainer, found);
        }
        if let Some(stored) = self.stored
            && let Err(error) = restrict(stored, self.policy, found, &mut decided)
        {
            findings.fatal.get_or_insert(error);
        }
        decided
    }

    /// Collects the decision about an entry, if it is to be explained.
    fn explain(&self, explainer: &Explainer, found: &Found, step: &Step) {
        let renamed_from = found.listing.renamed_from.as_deref();
        let path = found
            .listing
            .path
            .join(renamed_from.unwrap_or(found.name_of(step)));
        let decided = || {
            let dest = found.dest.entry(step.dest);
            let source = found.source_of(step);
            DecidedFact::new(source, dest, step.decision, self.policy)
        };
        if explainer.asks_about(&path) {
            explainer.add(&path, Fact::Decided(Box::new(decided())));
        }
    }

    /// Collects what the destination has under the names to explain that the source lacks.
    fn explain_lone(&self, explainer: &Explainer, found: &Found) {
        let dir = &found.listing.path;
        let listed = &found.listing.list;
        let is_renamed = |name: &[u8]| found.listing.renamed_from.as_deref() == Some(name);
        for name in explainer.names_in(dir) {
            if listed.find(name).is_none() && !is_renamed(name) {
                let kind = found.dest.dir.as_ref().and_then(|dir| kind_at(dir, name));
                self.explain_extra(explainer, found, &dir.join(name), kind);
            }
        }
    }

    /// Collects what the destination has under a name that the source lacks, and below it. `kind`: that of its entry.
    fn explain_extra(
        &self,
        explainer: &Explainer,
        found: &Found,
        path: &RelPath,
        kind: Option<Kind>,
    ) {
        let is_dir = kind == Some(Kind::Dir);
        let (Some(kind), false) = (kind, self.is_forbidden(path, is_dir)) else {
            explainer.add(path, Fact::Absent(Side::Receiver));
            return;
        };
        explainer.add(path, Fact::AtDest(kind));
        for below in explainer.below(path) {
            let parent = below.parent().unwrap_or_default();
            let dir = self
                .dest
                .and_then(|root| root.open_dir_to_search(&parent).ok());
            let kind = dir.and_then(|dir| kind_at(&dir, below.name()));
            let is_forbidden = self.is_forbidden(below, kind == Some(Kind::Dir));
            explainer.add(
                below,
                match kind {
                    Some(kind) if !is_forbidden => Fact::AtDest(kind),
                    Some(_) | None => Fact::Absent(Side::Receiver),
                },
            );
        }
        let fate = if !self.delete {
            Fate::NotRequested
        } else if !found.listing.may_delete {
            Fate::NotCompared
        } else {
            let chain = found
                .receiver_chain
                .as_ref()
                .expect("set with what was found");
            explainer.add_rule(chain, Side::Receiver, path, is_dir, false);
            let mut extras = self.extras(found);
            if extras.contain(path.name(), is_dir, &mut Vec::new()) {
                Fate::Doomed
            } else {
                Fate::Protected
            }
        };
        explainer.add(path, Fact::Extra(fate));
    }

    /// Returns the subdirectory of a step. `flags`: what the source's listing says about it.
    fn sub_dir(&self, mut step: Step, flags: SubdirFlags) -> SubDir {
        if self.follows_implied && flags.is_implied && !self.is_dry {
            // It replaces nothing. What is in it cannot be created then, and is reported.
            step.decision.in_the_way = plan::InTheWay::Nothing;
        }
        SubDir {
            step,
            task_id: if flags.is_walked {
                // The caller numbers it.
                Some(TaskId::new(0))
            } else {
                None
            },
            implied: flags.is_implied,
            is_repeated: flags.is_repeated,
        }
    }

    /// Returns the source file that resumes from a temporary file of this name, if it is transferred.
    fn continued(&self, source: &DirList, temp: &[u8]) -> Option<usize> {
        let at = source.find(name_of_temp(temp)?)?;
        let entry = &source.entries[at];
        if entry.kind() != Kind::File || entry.len_bytes < self.resumes_from {
            return None;
        }
        Some(at)
    }

    /// Begins the decisions about the entries of a directory that only the destination has.
    fn extras<'c>(&self, found: &'c Found) -> Extras<'c> {
        let chain = found
            .receiver_chain
            .as_ref()
            .expect("set with what was found");
        Extras::new(
            &found.listing.path,
            chain,
            self.delete && found.listing.may_delete,
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
        let DirPlan {
            findings,
            found,
            decided,
            ..
        } = plan;
        let mut pruned = Vec::new();
        let mut extras = self.extras(found);
        let subdirs = std::mem::take(&mut decided.subdirs);
        let last = match subdirs.last() {
            Some(sub) if has_last => Some(sub.step.source),
            _ => None,
        };
        for sub in subdirs {
            let path = found.listing.path.join(found.name_of(&sub.step));
            // In rsync, the duplicate of a directory counts as its content, unless nothing follows it.
            let is_held = sub.is_repeated && last != Some(sub.step.source);
            let is_bare = !is_held && sub.task_id.is_none_or(&is_bare);
            if !is_bare || !delete::may_prune(self.receiver_chain, &path) {
                decided.subdirs.push(sub);
                continue;
            }
            if let Some(explainer) = self.explainer {
                explainer.add(&path, Fact::Pruned);
                let kind = found.dest.entry(sub.step.dest).map(Entry::kind);
                self.explain_extra(explainer, found, &path, kind);
            }
            decided.pruned.push(sub.step.source);
            pruned.extend(sub.task_id);
            if sub.step.dest != NONE {
                note_lone(found, sub.step.dest, &mut extras, decided, findings);
            }
        }
        decided.extras.sort_unstable();
        pruned
    }

    /// Examines an entry of the destination; `None` if it is gone. `follows`: a symlink to a directory counts as the
    /// directory.
    fn stat_dest(&self, dir: &Dir, name: &[u8], follows: bool) -> io::Result<Option<Stat>> {
        let stat = if self.keeps_digests {
            sys::stat_with_birth(dir.fd(), name, false)
        } else {
            sys::stat(dir.fd(), name, false)
        };
        let Some(stat) = errno::if_there(stat)? else {
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

    /// Records that the destination's entry for a source entry could not be examined.
    fn cannot_examine(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        source_at: u32,
        error: &io::Error,
    ) {
        let is_dir_closed = |dir: &Dir| sys::stat(dir.fd(), b".", false).is_err();
        if error.kind() == io::ErrorKind::PermissionDenied
            && found.dest.dir.as_ref().is_some_and(is_dir_closed)
        {
            // The directory can be listed but not searched.
            found.dest.is_unseen = true;
            found.dest.hidden.push(source_at);
            return;
        }
        let list = &found.listing.list;
        let name = list.name(&list.entries[source_at as usize]);
        let full = self
            .dest
            .map(|root| root.full(found.listing.path.join(name).as_bytes()))
            .unwrap_or_default();
        findings.problems.push(cannot_stat(&full, error));
        found.dest.unknown.insert(name.to_vec());
    }

    /// Fills in the attributes of an entry of the destination.
    fn complete_dest(&self, found: &mut Found, findings: &mut Findings, at: usize, stat: &Stat) {
        let DestListing { list, dir, .. } = &mut found.dest;
        let Some(dir) = dir else { return };
        let (name, entry) = list.entry_mut(at);
        entry.set_stat(stat);
        let path = || found.listing.path.join(name).as_bytes().to_vec();
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
            Ok(problem) => findings.problems.push(problem),
            Err(error) => _ = findings.fatal.get_or_insert(error),
        }
    }

    /// Examines the destination's entries of these pairs. Also compares the contents of short files, if the decision
    /// depends on them.
    fn stat_pairs(
        &self,
        found: &Found,
        pairs: &[JoinedPair],
        implied: &HashSet<u32>,
        unread: &Unread,
    ) -> Vec<ExaminedDest> {
        let source = &found.listing.list;
        let dest = &found.dest.list;
        let compares = self.policy.check.mode == CheckMode::Digest;
        let look = |pair: &JoinedPair| {
            let Some(dir) = &found.dest.dir else {
                return Ok(None);
            };
            if pair.dest == NONE {
                return Ok(None);
            }
            let entry = &source.entries[pair.source as usize];
            let name = dest.name(&dest.entries[pair.dest as usize]);
            let follows = entry.is_dir()
                && (self.policy.preserve.keep_dirlinks || implied.contains(&pair.source));
            let Some(stat) = self.stat_dest(dir, name, follows)? else {
                return Ok(None);
            };
            let may_be_same =
                compares && entry.len_bytes == stat.len_bytes && entry.len_bytes <= SHORT_BYTES;
            let same = if may_be_same && self.needs_digest(entry, &Entry::from_stat(&stat)) {
                let version = if self.keeps_digests {
                    Some(FileVersion::from_stat(&stat))
                } else {
                    None
                };
                Some(self.is_same(found, entry, version, unread))
            } else {
                None
            };
            Ok(Some((stat, same)))
        };
        if compares {
            let threads = parallel::threads_for_files(pairs.len(), self.threads);
            parallel::share(pairs, threads, look)
        } else {
            parallel::map(pairs, self.threads, look)
        }
    }

    /// Sets the lengths of devices that receive the content of a source file of the same name (`--write-devices`).
    fn measure_devices(&self, found: &mut Found, pairs: &[JoinedPair]) {
        let DestListing { list, dir, .. } = &mut found.dest;
        let Some(dir) = dir else { return };
        for pair in pairs.iter().filter(|pair| pair.dest != NONE) {
            let (name, existing) = list.entry_mut(pair.dest as usize);
            let source = &found.listing.list.entries[pair.source as usize];
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

    /// Compares the contents of the remaining pairs whose decision depends on them.
    fn compare_rest(&self, found: &Found, pairs: &mut [JoinedPair], unread: &Unread) {
        let mut entries = Vec::new();
        let mut answers = Vec::new();
        for pair in pairs {
            if pair.dest == NONE || pair.same.is_some() {
                continue;
            }
            let entry = &found.listing.list.entries[pair.source as usize];
            if self.needs_digest(entry, &found.dest.list.entries[pair.dest as usize]) {
                entries.push(entry);
                answers.push(&mut pair.same);
            }
        }
        let lens_bytes = entries.iter().map(|entry| entry.len_bytes);
        let threads = parallel::threads_for(lens_bytes, self.threads);
        let same = parallel::share(&entries, threads, |entry| {
            self.is_same(found, entry, None, unread)
        });
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

    /// Returns whether the destination's file has the same content as the source's. One that cannot be read counts as
    /// different, and is noted. `version`: see [`ComparedDest`].
    fn is_same(
        &self,
        found: &Found,
        entry: &Entry,
        version: Option<FileVersion>,
        unread: &Unread,
    ) -> bool {
        let Some(dir) = &found.dest.dir else {
            return false;
        };
        let dest = ComparedDest {
            dir,
            name: found.listing.list.name(entry),
            version,
        };
        (self.compare)(found.original(entry), dest).unwrap_or_else(|error| {
            unread.lock().push((dest.name.to_vec(), error));
            false
        })
    }

    /// Under `--report-unread`, reports the files of a directory that could not be read, which are then left alone.
    fn report_unread(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        mut unread: Vec<(Vec<u8>, io::Error)>,
    ) {
        if !self.policy.check.reports_unread {
            return;
        }
        // Several threads have compared them.
        unread.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, error) in unread {
            let start = b"sparsync: cannot compare \"".as_slice();
            let path = found.listing.path.join(&name);
            let line = [start, path.as_bytes(), b"\": ", &errno_words(&error)].concat();
            findings.problems.push(Problem::new(line, Weight::Failed));
            found.dest.unknown.insert(name);
        }
    }

    /// Decides one pair.
    fn decide_one(&self, found: &Found, pair: &JoinedPair) -> Step {
        let entry = &found.listing.list.entries[pair.source as usize];
        let name = found.listing.list.name(entry);
        let existing = found.dest.entry(pair.dest);
        let path = || found.listing.path.join(name);
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
        let decision = plan::decide(entry, existing, pair.same, subject, self.policy);
        Step {
            source: pair.source,
            dest: pair.dest,
            decision,
        }
    }

    /// Returns whether the rules of a daemon's module exclude an entry.
    pub fn is_forbidden(&self, path: &RelPath, is_dir: bool) -> bool {
        self.receiver_chain.module_excludes(path.as_bytes(), is_dir)
    }

    /// Lets the alternate trees change a decision. Returns what they have for an entry that is not a directory.
    fn search_alternates(
        &self,
        found: &Found,
        findings: &mut Findings,
        dirs: &mut AltDirs,
        step: &mut Step,
    ) -> Option<Hit> {
        let entry = found.source_of(step);
        let at = (&found.listing.path, found.name_of(step));
        let there = (found.dest.dir.as_ref(), found.dest.entry(step.dest));
        let (decision, hit) =
            self.decide_with_alternates(dirs, at, found.original(entry), there, step.decision);
        step.decision = decision;
        findings.problems.append(&mut dirs.problems);
        if entry.is_dir() { None } else { hit }
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
        let root = RelPath::root();
        let mut dirs = AltDirs::default();
        let original = ComparedSource {
            entry: source,
            place,
            name: b".",
        };
        let (decision, _) = self.decide_with_alternates(
            &mut dirs,
            (&root, b"."),
            original,
            (None, existing),
            decision,
        );
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
            let name = list.name(&list.entries[at]);
            let is_dir = list.entries[at].is_dir();
            if extras.contain(name, is_dir, &mut Vec::new()) {
                now.push((name.to_vec(), is_dir));
            }
        }
        Ok(now)
    }
}

/// The files of a directory that could not be read to compare them.
type Unread = Mutex<Vec<(Vec<u8>, io::Error)>>;

/// Restricts the decisions of a directory to the actions of a plan.
fn restrict(
    stored: &dyn StoredPlan,
    policy: &Policy,
    found: &Found,
    decided: &mut Decided,
) -> crate::error::Result<()> {
    let mut replayed = replay::Replayed::default();
    let list = &found.listing.list;
    let mut steps = std::mem::take(&mut decided.steps).into_iter().peekable();
    let mut subdirs = decided.subdirs.iter_mut().peekable();
    for (at, source) in (0u32..).zip(&list.entries) {
        let path = found.listing.path.join(list.name(source));
        let propose = |dest, decision| replay::Proposed {
            path: path.as_bytes(),
            source,
            dest: found.dest.entry(dest),
            decision,
        };
        if let Some(sub) = subdirs.next_if(|sub| sub.step.source == at) {
            let proposed = propose(sub.step.dest, sub.step.decision);
            sub.step.decision.action =
                replay::restricted(stored, policy, &proposed, &mut replayed)?;
            continue;
        }
        let step = steps.next_if(|step| step.source == at);
        if policy.preserve.hard_links && source.inode.is_some() {
            // The names of a file are looked at together, once all are known.
            decided.steps.extend(step);
            continue;
        }
        let unchanged = Step {
            source: at,
            dest: NONE,
            decision: Decision::keep(),
        };
        let proposed = propose(
            step.unwrap_or(unchanged).dest,
            step.unwrap_or(unchanged).decision,
        );
        let action = replay::restricted(stored, policy, &proposed, &mut replayed)?;
        if let Some(mut step) = step
            && action != Action::Refuse(Reason::NotPlanned)
        {
            step.decision.action = action;
            decided.steps.push(step);
        }
    }
    decided.replayed = replayed;
    Ok(())
}

/// Records an entry that only the destination has, if it is extra or has the name of a temporary file.
fn note_lone(
    found: &Found,
    at: u32,
    extras: &mut Extras<'_>,
    decided: &mut Decided,
    findings: &mut Findings,
) {
    let list = &found.dest.list;
    let entry = &list.entries[at as usize];
    let name = list.name(entry);
    let is_dir = entry.is_dir();
    if !is_dir && is_temp_name(name) {
        decided.leftovers.push(at);
    }
    if extras.contain(name, is_dir, &mut findings.notes) {
        decided.extras.push(at);
    }
}

/// Returns the kind of an entry of the destination; `None`: there is none, or it cannot be examined.
fn kind_at(dir: &Dir, name: &[u8]) -> Option<Kind> {
    let stat = sys::stat(dir.fd(), name, false).ok()?;
    Kind::of_mode(stat.mode)
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
