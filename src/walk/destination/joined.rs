//! Joins the entries of a directory at both ends, and examines those of the destination that the source has, too.

use super::{DestWalk, ExaminedDest, Joined, JoinedPair};
use crate::flist::join::{Join, Pair};
use crate::flist::{DirList, Kind};
use crate::fs::temp_name::name_of_temp;
use crate::plan::Action;
use crate::proto::SubdirFlags;
use crate::walk::dir_plan::{Findings, Found, NONE};
use crate::work::parallel;
use parking_lot::Mutex;
use std::collections::HashSet;

impl DestWalk<'_> {
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
    pub(super) fn examine(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        is_known: bool,
    ) -> Joined {
        let mut joined = self.join(found);
        let implied = if self.follows_implied {
            implied_dirs(&found.listing.list, &found.listing.subs)
        } else {
            HashSet::new()
        };
        for block in joined.pairs.chunks_mut(parallel::BLOCK) {
            let unread = Mutex::new(Vec::new());
            if !is_known {
                let results = self.stat_pairs(found, block, &implied, &unread);
                for (pair, examined) in block.iter_mut().zip(results) {
                    self.enter_examined(found, findings, pair, examined);
                }
            }
            if self.policy.preserve.write_devices {
                self.measure_devices(found, block);
            }
            self.compare_rest(found, block, &unread);
            self.keep_digests(found, block);
            self.report_unread(found, findings, unread.into_inner());
        }
        joined
    }

    /// Enters the result of examining the counterpart of a pair. The pair has none if that is gone or cannot be examined.
    fn enter_examined(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        pair: &mut JoinedPair,
        examined: ExaminedDest,
    ) {
        match examined {
            Ok(Some((stat, same))) => {
                let problem = self.complete_dest(found, findings, pair.dest as usize, &stat);
                pair.same = same;
                if let Some(problem) = problem
                    && self.compares_attributes(found, pair)
                {
                    findings.problems.push(problem);
                }
            }
            Ok(None) => pair.dest = NONE,
            Err(error) => {
                pair.dest = NONE;
                self.cannot_examine(found, findings, pair.source, &error);
            }
        }
    }

    /// Returns whether the attributes of the two entries of a pair are compared. rsync reads no others.
    fn compares_attributes(&self, found: &Found, pair: &JoinedPair) -> bool {
        let source = &found.listing.list.entries[pair.source as usize];
        let dest = &found.dest.list.entries[pair.dest as usize];
        let is_refused = matches!(
            self.decide_one(found, pair).decision.action,
            Action::Refuse(_)
        );
        !is_refused && dest.stands_for(source.kind())
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
