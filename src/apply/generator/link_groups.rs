//! Hard-link groups: which name of a file leads, and which follow it (`-H`).
//!
//! Only a few bytes per file with several names are kept to the end of a run. Everything else lasts only while the
//! names are within the lookahead, see [`super::plan_queue::PlanPool::hold_more`].

use crate::apply::Context;
use crate::apply::generator::batch::{Member, Work};
use crate::apply::hard_links::{Leader, PlacedLeader};
use crate::apply::job::Job;
use crate::flist::Kind;
use crate::path::RelPath;
use crate::plan::{Action, Reason};
use crate::walk::{DirPlan, Step};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Device and inode number of a file at the source.
pub(super) type DevIno = (u64, u64);

/// The files with several names that become hard links of one file.
pub(super) struct LinkGroups<'a> {
    context: &'a Context<'a>,
    near: ByInode<LookaheadGroup>,
    leaders: Leaders,
    /// No further plan will be examined ahead of its turn.
    have_seen_all: bool,
}

/// The names of one file that are within the lookahead.
#[derive(Default)]
struct LookaheadGroup {
    /// How many names were counted ahead and not processed yet.
    to_come: u32,
    /// How many of these the waiting names still wait for.
    awaited: u32,
    /// Names that the destination lacks, as long as no name that it has was processed.
    waiting: Vec<Member>,
}

impl<'a> LinkGroups<'a> {
    /// Creates the groups of a run.
    pub(super) fn new(context: &'a Context<'a>) -> LinkGroups<'a> {
        let near = ByInode::default();
        let leaders = Leaders::default();
        LinkGroups {
            context,
            near,
            leaders,
            have_seen_all: false,
        }
    }

    /// Counts the names in a directory ahead of time, so that the last one within the lookahead is recognized.
    pub(super) fn expect(&mut self, plan: &DirPlan) {
        for step in &plan.decided().steps {
            if let Some(inode) = self.group_of(plan, step) {
                self.near.entry(inode).to_come += 1;
            }
        }
    }

    /// Sets whether all plans were examined. If so, a group can be forgotten after its last name.
    pub(super) fn have_seen_all(&mut self, have_seen_all: bool) {
        self.have_seen_all = have_seen_all;
    }

    /// Returns the inode that a step shares with other names of its group. `None` if the step stands alone: it has one
    /// name only, or is left alone.
    pub(super) fn group_of(&self, plan: &DirPlan, step: &Step) -> Option<DevIno> {
        let stands_alone = match step.decision.action {
            // It may follow: nothing is appended to a name that becomes a link.
            Action::Refuse(reason) => reason != Reason::NothingToAppend,
            _ => false,
        };
        if !self.context.policy.preserve.hard_links || stands_alone {
            return None;
        }
        plan.source_of(step)
            .inode
            .as_ref()
            .map(|inode| (inode.dev, inode.ino))
    }

    /// Processes one more name of a group and returns the work that is possible now.
    ///
    /// The leader is the first name that the destination or an alternate tree has, otherwise the last name that was
    /// within the lookahead when the first one was processed. If the entry is not a regular file, the first name always
    /// leads. The others become links to the leader: earlier names immediately and in reverse order, later ones at
    /// their own turn.
    ///
    /// A name that is not needed because of `--compare-dest` becomes a link if there is a leader. It never leads: rsync
    /// 3.5.0 then hangs. The same holds for a file that is too long for `--append`, as in rsync.
    pub(super) fn add(&mut self, inode: DevIno, member: Member) -> Vec<Work> {
        let is_over = self.count_down(inode);
        let near = self.near.entry(inode);
        let work = match self.leaders.get(inode) {
            Some(leader) => vec![Work::Follow(member, leader)],
            None if never_leads(member.job(self.context).step.decision.action) => {
                std::iter::once(Work::Step(member))
                    .chain(self.release(inode))
                    .collect()
            }
            None if near.must_wait(&member.job(self.context)) => {
                near.waiting
                    .reserve_exact(usize::from(near.waiting.is_empty()));
                near.waiting.push(member.waiting());
                return Vec::new();
            }
            None => {
                let (work, leader) = near.place(member, self.context);
                self.leaders.put(inode, leader);
                work
            }
        };
        self.forget(inode, is_over);
        work
    }

    /// Does without a name of a group that was expected. Returns the work that is possible now.
    pub(super) fn leave_out(&mut self, inode: DevIno) -> Vec<Work> {
        let is_over = self.count_down(inode);
        let work = if self.leaders.get(inode).is_some() {
            Vec::new()
        } else {
            self.release(inode)
        };
        self.forget(inode, is_over);
        work
    }

    /// Counts a name as processed. Returns whether no other name is expected within the lookahead.
    fn count_down(&mut self, inode: DevIno) -> bool {
        self.leaders.settle();
        let near = self.near.entry(inode);
        near.to_come = near.to_come.saturating_sub(1);
        near.to_come == 0
    }

    /// Waits for one name less. If that was the last one, the last waiting name leads.
    fn release(&mut self, inode: DevIno) -> Vec<Work> {
        let near = self.near.entry(inode);
        near.awaited = near.awaited.saturating_sub(1);
        let last = if near.awaited == 0 {
            near.waiting.pop()
        } else {
            None
        };
        let Some(last) = last else { return Vec::new() };
        let (work, leader) = near.place(last, self.context);
        self.leaders.put(inode, leader);
        work
    }

    fn forget(&mut self, inode: DevIno, is_over: bool) {
        if is_over {
            self.near.remove(inode);
        }
        if is_over && self.have_seen_all {
            self.leaders.remove(inode);
        }
    }

    /// Returns the remaining work of each group with an expected name that never came.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Vec<Work>> + use<'a> {
        let context = self.context;
        let groups = std::mem::take(&mut self.near).into_values();
        groups.filter_map(move |mut near| {
            let last = near.waiting.pop()?;
            Some(near.place(last, context).0)
        })
    }
}

/// Returns whether a name may only follow another one, or stands alone.
fn never_leads(action: Action) -> bool {
    matches!(action, Action::Elsewhere | Action::Refuse(_))
}

impl LookaheadGroup {
    /// Returns whether a name of a group without a leader must wait for others.
    fn must_wait(&mut self, job: &Job<'_>) -> bool {
        // Names counted only after the first one began to wait are not waited for; otherwise ever more names would
        // wait.
        self.awaited = if self.waiting.is_empty() {
            self.to_come
        } else {
            self.awaited.saturating_sub(1)
        };
        self.awaited > 0 && job.step.decision.action.is_new() && job.source().kind() == Kind::File
    }

    /// Makes a name the leader and the waiting names its followers.
    fn place(&mut self, member: Member, context: &Context<'_>) -> (Vec<Work>, Arc<Leader>) {
        let (first, leader) = member.lead(context);
        let waiting = std::mem::take(&mut self.waiting).into_iter().rev();
        let followers = waiting.map(|member| Work::Follow(member, leader.clone()));
        (std::iter::once(first).chain(followers).collect(), leader)
    }
}

/// The leading names of groups that may still get more names.
#[derive(Default)]
struct Leaders {
    /// Leaders that may not be placed yet, or that need more than a path.
    whole: ByInode<Arc<Leader>>,
    /// Those of `whole` that may not be placed yet, in order.
    under_way: VecDeque<DevIno>,
    /// Placed leaders.
    placed: ByInode<Placed>,
    /// The directories of the placed leaders.
    homes: Vec<Home>,
}

/// A directory that contains leaders.
struct Home {
    path: RelPath,
    /// Their names, concatenated.
    names: Vec<u8>,
}

/// A placed leader in a few bytes.
struct Placed {
    /// Index in [`Leaders::homes`].
    home: u32,
    /// The offset of its name there.
    name_at: u32,
    name_len: u16,
    left: PlacedLeader,
}

impl Leaders {
    fn get(&self, inode: DevIno) -> Option<Arc<Leader>> {
        if let Some(leader) = self.whole.get(inode) {
            return Some(leader.clone());
        }
        let placed = self.placed.get(inode)?;
        let home = &self.homes[placed.home as usize];
        let name = &home.names[placed.name_at as usize..][..placed.name_len as usize];
        Some(Arc::new(Leader::left(home.path.join(name), placed.left)))
    }

    fn put(&mut self, inode: DevIno, leader: Arc<Leader>) {
        self.whole.insert(inode, leader);
        self.under_way.push_back(inode);
    }

    fn remove(&mut self, inode: DevIno) {
        if self.whole.remove(inode).is_none() {
            self.placed.remove(inode);
        }
    }

    /// Reduces placed leaders to what is still needed. They are placed nearly in order.
    fn settle(&mut self) {
        while let Some(&inode) = self.under_way.front() {
            // The applier that places the leader or a follower of it still holds a reference.
            let left = match self.whole.get_mut(inode).map(Arc::get_mut) {
                Some(None) => return,
                Some(Some(leader)) => leader.rest(),
                None => None,
            };
            self.under_way.pop_front();
            if let Some(left) = left
                && let Some(leader) = self.whole.remove(inode)
            {
                let placed = self.placed_at(&leader.path, left);
                self.placed.insert(inode, placed);
            }
        }
    }

    fn placed_at(&mut self, path: &RelPath, left: PlacedLeader) -> Placed {
        let parent = path.parent().unwrap_or_default();
        if self.homes.last().is_none_or(|home| home.path != parent) {
            if let Some(home) = self.homes.last_mut() {
                home.names.shrink_to_fit();
            }
            self.homes.push(Home {
                path: parent,
                names: Vec::new(),
            });
        }
        let at = self.homes.len() - 1;
        let names = &mut self.homes[at].names;
        let name_at = u32::try_from(names.len()).expect("names of one directory stay below 4 GiB");
        names.extend_from_slice(path.name());
        let name_len =
            u16::try_from(path.name().len()).expect("the kernel's names have at most 255 bytes");
        let home = u32::try_from(at).expect("there are less than 2^32 directories");
        Placed {
            home,
            name_at,
            name_len,
            left,
        }
    }
}

/// Values by device and inode. The nested maps save memory because there are few devices.
struct ByInode<T>(BTreeMap<u64, BTreeMap<u64, T>>);

impl<T> Default for ByInode<T> {
    fn default() -> ByInode<T> {
        ByInode(BTreeMap::new())
    }
}

impl<T> ByInode<T> {
    fn get(&self, (dev, ino): DevIno) -> Option<&T> {
        self.0.get(&dev)?.get(&ino)
    }

    fn get_mut(&mut self, (dev, ino): DevIno) -> Option<&mut T> {
        self.0.get_mut(&dev)?.get_mut(&ino)
    }

    fn entry(&mut self, (dev, ino): DevIno) -> &mut T
    where
        T: Default,
    {
        self.0.entry(dev).or_default().entry(ino).or_default()
    }

    fn insert(&mut self, (dev, ino): DevIno, value: T) {
        self.0.entry(dev).or_default().insert(ino, value);
    }

    fn remove(&mut self, (dev, ino): DevIno) -> Option<T> {
        self.0.get_mut(&dev)?.remove(&ino)
    }

    /// Iterates over the values in the order of inodes.
    fn into_values(self) -> impl Iterator<Item = T> {
        self.0.into_values().flat_map(BTreeMap::into_values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placed_hard_link_takes_12_bytes() {
        // Plus 8 bytes for the inode.
        assert_eq!(size_of::<Placed>(), 12);
    }
}
