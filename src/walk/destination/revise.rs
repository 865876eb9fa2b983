//! Revises plans of directories: what has changed since they were made, and what is dropped because it is empty.

use super::{DestWalk, cannot_stat, note_lone};
use crate::filter::Chain;
use crate::flist::join::{Join, Pair};
use crate::flist::{DirList, Entry, Time};
use crate::fs::root::Dir;
use crate::fs::{errno, read};
use crate::path::RelPath;
use crate::plan::delete::{self, Extras};
use crate::plan::explained::Fact;
use crate::plan::{self, Subject};
use crate::walk::dir_plan::{DestListing, DirPlan, NONE, Step};
use crate::walk::replay;
use crate::walk::scanner::TaskId;
use std::collections::HashMap;
use std::io;

impl DestWalk<'_> {
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
