//! Hard-link groups: which name of a file leads, and which follow it (`-H`).

use super::batch::{Member, Work};
use crate::flist::Kind;
use crate::plan::Action;
use crate::role::apply::links::Leader;
use crate::role::scan::{DirPlan, Step};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Device and inode number of a file at the source.
pub(super) type Inode = (u64, u64);

/// The groups of which some names were met and others are to come.
pub(super) struct LinkGroups {
    /// Names of one file are to become names of one file (`-H`).
    are_kept: bool,
    open: BTreeMap<Inode, Group>,
    /// How many names each group has.
    expected: HashMap<Inode, u32>,
}

/// The names of one file of the source, as far as they were met.
#[derive(Default)]
struct Group {
    /// Names that the destination lacks, while none that it has was met.
    waiting: Vec<Member>,
    leader: Option<Arc<Leader>>,
    met: u32,
}

impl LinkGroups {
    /// No group yet.
    pub(super) fn new(are_kept: bool) -> LinkGroups {
        LinkGroups { are_kept, open: BTreeMap::new(), expected: HashMap::new() }
    }

    /// Counts the names in a directory ahead of time, so that the last one is known when it is met.
    pub(super) fn expect(&mut self, plan: &DirPlan) {
        for step in &plan.steps {
            if let Some(inode) = self.group_of(plan, step) {
                *self.expected.entry(inode).or_default() += 1;
            }
        }
    }

    /// The inode that a step shares with other names of its group; `None` if the step stands alone: it has
    /// one name only, is left as it is, or need not be there because of `--compare-dest`.
    pub(super) fn group_of(&self, plan: &DirPlan, step: &Step) -> Option<Inode> {
        if !self.are_kept || matches!(step.decision.action, Action::Refuse(_) | Action::Elsewhere) {
            return None;
        }
        plan.source.entries[step.source as usize].inode.as_ref().map(|inode| (inode.dev, inode.ino))
    }

    /// One more name of a group; what can be done now. The first name that the destination (or an alternate one) has
    /// leads, else the last; of what is no regular file always the first. The others become links to it: those that
    /// came before it at once and in reverse, those after it in their places.
    pub(super) fn meet(&mut self, inode: Inode, member: Member) -> Vec<Work> {
        let mut group = self.open.remove(&inode).unwrap_or_default();
        group.met += 1;
        let is_last = self.expected.get(&inode).is_none_or(|&expected| group.met >= expected);
        let work = group.place(member, is_last);
        if !is_last {
            self.open.insert(inode, group);
        }
        work
    }

    /// For each group of which a name that was expected did not come, what is left to do.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Vec<Work>> + use<> {
        let groups = std::mem::take(&mut self.open).into_values();
        groups.filter_map(|mut group| {
            let last = group.waiting.pop()?;
            Some(group.place(last, true))
        })
    }
}

impl Group {
    fn place(&mut self, member: Member, is_last: bool) -> Vec<Work> {
        if let Some(leader) = &self.leader {
            return vec![Work::Follow(member, leader.clone())];
        }
        let job = member.job();
        let is_there = !job.step.decision.action.is_new();
        if !is_last && !is_there && job.source().kind() == Kind::File {
            self.waiting.push(member);
            return Vec::new();
        }
        let (first, leader) = member.lead();
        let followers = self.waiting.drain(..).rev().map(|member| Work::Follow(member, leader.clone()));
        let work = std::iter::once(first).chain(followers).collect();
        self.leader = Some(leader);
        work
    }
}
