//! The files of a run whose content can come from twins.

use super::TwinSearch;
use crate::apply::generator::twin_contents::NewSource;
use crate::flist::order;
use crate::plan::renamed::{Criterion, NeededFile, OldFile, TwinCandidates};
use crate::proto::ContentDigest;
use crate::walk::{DirPlan, NONE, Step};

/// The files of a run whose content can come from twins, in the order of the list.
pub(super) struct NewFiles<'p> {
    /// The plans of their directories.
    pub(super) plans: Vec<&'p DirPlan>,
    pub(super) files: Vec<NewPlace>,
    /// By the index of the file; empty if nothing was read.
    pub(super) digests: Vec<Option<ContentDigest>>,
    /// Names of one file are linked.
    pub(super) hard_links: bool,
    /// The options permit renaming.
    pub(super) may_be_renamed: bool,
}

/// Where such a file is.
pub(super) struct NewPlace {
    /// The index of the plan.
    pub(super) dir: u32,
    /// The index of the step.
    pub(super) step: u32,
}

impl<'p> NewFiles<'p> {
    /// Returns the plan and the step of a file.
    pub(super) fn at(&self, at: u32) -> (&'p DirPlan, &'p Step) {
        let NewPlace { dir, step } = self.files[at as usize];
        let plan = self.plans[dir as usize];
        (plan, &plan.decided().steps[step as usize])
    }

    /// Returns where the content of files is.
    pub(super) fn sources(&self, files: &[u32]) -> Vec<NewSource<'p>> {
        let sources = files.iter().map(|&at| {
            let (plan, step) = self.at(at);
            NewSource { plan, step: *step }
        });
        sources.collect()
    }

    /// Returns a file. `candidates` must be sorted.
    pub(super) fn get(&self, at: u32, candidates: &TwinCandidates) -> NeededFile<'_> {
        let (plan, step) = self.at(at);
        let source = plan.source_of(step);
        let old = if step.dest == NONE {
            OldFile::Missing
        } else {
            let path = plan.found.listing.path.join(plan.name_of(step));
            OldFile::Replaced(candidates.find(&path))
        };
        let is_new = old == OldFile::Missing;
        let has_names = self.hard_links && source.inode.is_some();
        let digest = self.digests.get(at as usize);
        NeededFile {
            dir: &plan.found.listing.path,
            name: plan.name_of(step),
            len_bytes: source.len_bytes,
            mtime: source.mtime,
            digest: digest.and_then(Option::as_ref),
            // Other names are linked to it before the end of the run.
            may_be_renamed: self.may_be_renamed && is_new && !has_names,
            may_be_late: is_new && !has_names,
            may_be_linked: is_new && !has_names,
            // Of a file with several names, one is placed and the others are linked to it.
            may_be_awaited: !has_names,
            old,
        }
    }

    pub(super) fn iter(&self, candidates: &TwinCandidates) -> impl Iterator<Item = NeededFile<'_>> {
        (0..self.files.len() as u32).map(|at| self.get(at, candidates))
    }
}

impl TwinSearch<'_> {
    /// Returns the files whose content can come from twins, in the order of the list. `plans` has those of all directories.
    pub(super) fn new_files<'p>(&self, plans: impl Iterator<Item = &'p DirPlan>) -> NewFiles<'p> {
        let preserve = &self.context.policy.preserve;
        let mut with_new: Vec<_> = plans
            .filter(|plan| self.dirs.contains(&plan.found.listing.path))
            .collect();
        with_new.sort_by(|one, other| {
            let one = &one.found.listing.path;
            let other = &other.found.listing.path;
            let root_first = other.is_root().cmp(&one.is_root());
            root_first.then_with(|| {
                order::compare_paths((one.as_bytes(), true), (other.as_bytes(), true))
            })
        });
        let mut files = Vec::new();
        for (dir, plan) in (0..).zip(&with_new) {
            let from = files.len();
            for (step, it) in (0..).zip(&plan.decided().steps) {
                if self.takes_twin(plan, it) {
                    files.push(NewPlace { dir, step });
                }
            }
            let steps = &plan.decided().steps;
            files[from..].sort_by_key(|place| plan.name_of(&steps[place.step as usize]));
            if files.len() > self.new_max {
                files.truncate(self.new_max);
                break;
            }
        }
        NewFiles {
            plans: with_new,
            files,
            digests: Vec::new(),
            hard_links: preserve.hard_links,
            may_be_renamed: preserve.times
                && !preserve.fake_super
                && self.context.options.place.backup.is_none()
                && self.criterion != Criterion::Length,
        }
    }
}
