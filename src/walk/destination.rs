//! Lists the destination, joins it with the source's entries, and calls the planner for each pair.

mod contents;
mod explained;
mod joined;
mod listing;
mod revise;

use crate::filter::Chain;
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::read::Wanted;
use crate::fs::root::Root;
use crate::fs::temp_name::is_temp_name;
use crate::options::{AltKind, Options};
use crate::path::RelPath;
use crate::plan::delete::Extras;
use crate::plan::explained::Fact;
use crate::plan::planned::StoredPlan;
use crate::plan::{self, Action, Decision, Policy, Reason, Subject};
use crate::proto::SubdirFlags;
use crate::report::event::{ErrorRole, Problem};
use crate::report::explainer::Explainer;
use crate::walk::alternate::{AltDirs, Alternate, Hit};
use crate::walk::dir_plan::{
    Decided, DestState, DirPlan, Findings, Found, ListedDir, NONE, Step, SubDir,
};
use crate::walk::replay;
use crate::walk::scanner::TaskId;
use crate::walk::source_dir::{Compare, ComparedSource, SourceDir};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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
    /// Keeps digests of compared contents, for a plan, until this is set: the run is being stopped.
    pub digests_until: Option<&'a AtomicBool>,
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

    /// Decides one pair.
    fn decide_one(&self, found: &Found, pair: &JoinedPair) -> Step {
        let entry = &found.listing.list.entries[pair.source as usize];
        let name = found.listing.list.name(entry);
        let existing = found.dest.entry(pair.dest);
        let path = || found.listing.path.join(name);
        let subject = if self.receiver_chain.has_module_rules()
            && self.is_forbidden(&path(), entry.is_dir())
        {
            Subject::Forbidden
        } else if self.policy.preserve.safe_links
            && entry.kind() == Kind::Symlink
            && plan::safelink::is_unsafe(entry.target(), path().as_bytes())
        {
            Subject::UnsafeLink
        } else {
            Subject::Entry
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
            plain_digest: None,
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
}

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

/// Returns the message for an entry of the destination that cannot be examined.
pub fn cannot_stat(full: &[u8], error: &io::Error) -> Problem {
    Problem::about(
        ErrorRole::Generator,
        "recv_generator: failed to stat",
        full,
        error,
    )
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
