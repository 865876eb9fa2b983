//! Matches files that are needed with candidates: what is preferred, and what each candidate can give.

use super::{Criterion, Digest, Key, NeededFile, OldFile, TwinCandidate, TwinCandidates, TwinFate};
use crate::path::RelPath;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// How many candidates are compared with a new file to find the nearest one.
const COMPARED_MAX: usize = 64;

/// The file whose content a new file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TwinMatch {
    /// The candidate with this index is renamed.
    Renamed(u32),
    /// The candidate with this index gets another name, if all attributes are equal. Otherwise it is copied.
    Linked(u32),
    /// The candidate with this index is copied.
    Copied(u32),
    /// The new file with this index is copied at the end of the run.
    CopiedFromNew(u32),
}

/// Candidates from which some are taken.
struct Stock<'a> {
    criterion: Criterion,
    candidates: &'a TwinCandidates,
    /// Sorted by their keys. Of those with one key, first come those that cannot be taken, sorted by their paths, then
    /// those that were taken, then those that are left, sorted by their paths. A table of the keys would take several
    /// times the memory.
    order: Vec<u32>,
    /// By the index of the candidate.
    is_left: Vec<bool>,
}

/// Candidates with one key: where they are in the order of a stock.
struct Equal {
    gone: Range<usize>,
    left: Range<usize>,
}

impl<'a> Stock<'a> {
    /// Creates a stock of the candidates that `is_in` accepts. `is_left`: it can be taken.
    fn new(
        criterion: Criterion,
        candidates: &'a TwinCandidates,
        is_in: impl Fn(&TwinCandidate<'_>) -> bool,
        is_left: impl Fn(&TwinCandidate<'_>) -> bool,
    ) -> Stock<'a> {
        let mut order = Vec::new();
        for (at, candidate) in (0..).zip(candidates.iter()) {
            if candidate.key(criterion).is_some() && is_in(&candidate) {
                order.push(at);
            }
        }
        order.sort_unstable_by(|&one, &other| {
            let one = candidates.get(one);
            let other = candidates.get(other);
            one.key(criterion)
                .cmp(&other.key(criterion))
                .then_with(|| is_left(&one).cmp(&is_left(&other)))
                .then_with(|| one.compare_paths(&other))
                .then_with(|| one.tree.cmp(&other.tree))
        });
        let is_left = candidates.iter().map(|candidate| is_left(&candidate));
        Stock {
            criterion,
            candidates,
            order,
            is_left: is_left.collect(),
        }
    }

    /// Returns the candidates with a key.
    fn equal(&self, key: Key<'_>) -> Equal {
        let key_of = |at: u32| self.candidates.get(at).key(self.criterion);
        let start = self.order.partition_point(|&at| key_of(at) < Some(key));
        let count = self.order[start..].partition_point(|&at| key_of(at) == Some(key));
        let end = start + count;
        let gone_count = self.order[start..end].partition_point(|&at| !self.is_left[at as usize]);
        let left_start = start + gone_count;
        Equal {
            gone: start..left_start,
            left: left_start..end,
        }
    }

    /// Takes a candidate that is one of the first [`COMPARED_MAX`] of those that are left.
    fn take(&mut self, candidate: u32, left: Range<usize>) {
        let left = &mut self.order[left];
        if let Some(at) = left.iter().position(|&it| it == candidate) {
            left[..=at].rotate_right(1);
            self.is_left[candidate as usize] = false;
        }
    }
}

/// Finds a candidate for each file that is needed, in the order in which they are given. Each candidate is renamed once at
/// most, and gets one new name at most, so that new files never become names of one file. With [`Criterion::Digest`], a new
/// file without a candidate is copied from the first equal one that was given, if there is one.
///
/// What can be renamed is preferred, because that copies nothing; then what can be linked; then what stays, because its
/// content is not held; then the same name, then the nearest path, then the destination, then the smallest path. The order
/// of the candidates does not matter.
pub struct Matcher<'a> {
    criterion: Criterion,
    candidates: &'a TwinCandidates,
    /// All. Those that are renamed are taken. They can be copied before.
    all: Stock<'a>,
    /// Those that can be linked, which are taken then.
    linkable: Stock<'a>,
    /// Device and inode of those that were linked.
    linked: HashSet<(u64, u64)>,
    /// The first of the new files without a candidate, by the digest. Contents of different lengths have different ones.
    first: HashMap<&'a Digest, u32>,
}

impl<'a> Matcher<'a> {
    /// Creates it for these candidates.
    pub fn new(criterion: Criterion, candidates: &'a TwinCandidates) -> Matcher<'a> {
        let is_linkable = |candidate: &TwinCandidate<'_>| candidate.is_linkable;
        let is_left_over = |candidate: &TwinCandidate<'_>| candidate.fate == TwinFate::LeftOver;
        Matcher {
            criterion,
            candidates,
            all: Stock::new(criterion, candidates, |_| true, is_left_over),
            linkable: Stock::new(criterion, candidates, is_linkable, is_linkable),
            linked: HashSet::new(),
            first: HashMap::new(),
        }
    }

    /// Returns the match of the next new file, which has the index `at`.
    pub fn next(&mut self, at: u32, file: &NeededFile<'a>) -> Option<TwinMatch> {
        let key = file.key(self.criterion)?;
        let choice = self.choose(key, file);
        // Others have no digest.
        let is_new = file.old == OldFile::Missing;
        if choice.is_some() || self.criterion != Criterion::Digest || !is_new {
            return choice;
        }
        let original = *self.first.entry(file.digest?).or_insert(at);
        if original != at && file.may_be_late {
            Some(TwinMatch::CopiedFromNew(original))
        } else {
            None
        }
    }

    fn choose(&mut self, key: Key<'_>, file: &NeededFile<'_>) -> Option<TwinMatch> {
        let equal = self.all.equal(key);
        let left_over = self.nearest(file, &self.all.order[equal.left.clone()]);
        if let Some(candidate) = left_over
            && file.may_be_renamed
        {
            self.all.take(candidate, equal.left);
            return Some(TwinMatch::Renamed(candidate));
        }
        if file.may_be_linked
            && let Some(at) = self.take_linkable(key, file)
        {
            return Some(TwinMatch::Linked(at));
        }
        let other = self.nearest(file, &self.all.order[equal.gone]);
        let both: Vec<u32> = other.into_iter().chain(left_over).collect();
        Some(TwinMatch::Copied(self.nearest(file, &both)?))
    }

    /// Takes the nearest candidate that can be linked and has no new name yet.
    fn take_linkable(&mut self, key: Key<'_>, file: &NeededFile<'_>) -> Option<u32> {
        loop {
            let left = self.linkable.equal(key).left;
            let at = self.nearest(file, &self.linkable.order[left.clone()])?;
            self.linkable.take(at, left);
            // Otherwise it got one through another of its names.
            if self.linked.insert(self.candidates.get(at).inode) {
                return Some(at);
            }
        }
    }

    /// Returns whether a file may take the content of a candidate.
    fn may_take(&self, file: &NeededFile<'_>, at: u32) -> bool {
        let is_its_own = file.old == OldFile::Replaced(Some(at));
        let changes = self.candidates.get(at).fate == TwinFate::Changes;
        !is_its_own && (file.may_be_awaited || !changes)
    }

    /// Returns the nearest one of the first few of these candidates.
    fn nearest(&self, file: &NeededFile<'_>, among: &[u32]) -> Option<u32> {
        let rank = |candidate: &TwinCandidate<'_>| {
            // A basis is more likely to be the right one if it has the same time.
            let is_less_likely =
                self.criterion == Criterion::Length && candidate.mtime != file.mtime;
            let changes = candidate.fate == TwinFate::Changes;
            let has_other_name = candidate.name != file.name;
            let steps = distance(candidate.dir, file.dir);
            (
                is_less_likely,
                changes,
                has_other_name,
                steps,
                candidate.tree,
            )
        };
        let compared = among.iter().copied().take(COMPARED_MAX);
        let compared = compared.filter(|&at| self.may_take(file, at));
        compared.min_by(|&one, &other| {
            let one = self.candidates.get(one);
            let other = self.candidates.get(other);
            rank(&one)
                .cmp(&rank(&other))
                .then_with(|| one.compare_paths(&other))
        })
    }
}

/// Returns how many directories one must leave and enter to get from one to the other.
fn distance(one: &RelPath, other: &RelPath) -> usize {
    let one_elements = one.as_bytes().split(|&byte| byte == b'/');
    let other_elements = other.as_bytes().split(|&byte| byte == b'/');
    let common = one_elements
        .zip(other_elements)
        .take_while(|(a, b)| a == b && !a.is_empty())
        .count();
    one.depth() + other.depth() - 2 * common
}
