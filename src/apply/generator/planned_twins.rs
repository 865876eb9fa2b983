//! The twins of a stored plan (`--detect-renamed`): what it records of them, and which of them are as they were then. A plan
//! that is carried out takes the place of the search.

use super::plan_queue::PlanPool;
use super::twin_search::{FoundTwins, is_new_file};
use crate::apply::Context;
use crate::apply::twins::{
    NewTwin, Original, Reuse, SettledTwins, Twin, TwinIdentity, is_hidden, open_dir,
};
use crate::digest::{Comparison, padded};
use crate::error::Result;
use crate::flist::Entry;
use crate::flist::entry::Stat;
use crate::fs::read::EntryAt;
use crate::fs::sys;
use crate::path::RelPath;
use crate::plan::Reason;
use crate::plan::planned::{
    ChangedEnd, EntryState, PlannedAct, PlannedAction, PlannedTwin, StoredPlan, TwinUse, is_usable,
};
use crate::plan::renamed::{TwinCandidate, TwinCandidates, TwinFate};
use crate::report::event::Problem;
use crate::walk::destination::DestWalk;
use crate::walk::{DirPlan, Found, Step, replay};
use std::collections::{HashMap, HashSet};
use std::io;

/// Adds the file whose content an action takes, if the action creates a file and the search has found one. The names of a
/// file that has several belong together: their content comes from the source.
pub(super) fn add_twin(
    context: &Context<'_>,
    action: &mut PlannedAction,
    plan: &DirPlan,
    step: &Step,
) {
    let is_new = action.act == PlannedAct::Transfer && is_new_file(&plan.found, step);
    if is_new && action.links.is_none() {
        let twin = context.twins.of(plan, step);
        action.twin = twin.and_then(|twin| recorded(context, &twin)).map(Box::new);
    }
}

/// Returns what a plan records of a twin; `None`: it is not the file any more that was found, or only the basis of the
/// content.
fn recorded(context: &Context<'_>, twin: &Twin) -> Option<PlannedTwin> {
    let twin_use = match twin.reuse {
        Reuse::Renamed => TwinUse::Renamed,
        Reuse::Linked => TwinUse::Linked,
        Reuse::Copied | Reuse::CopiedAtEnd => TwinUse::Copied,
        Reuse::Basis => return None,
    };
    let path = twin.path.as_bytes().to_vec();
    if let TwinIdentity::New(digest) = &twin.identity {
        let digest = *digest.first_chunk()?;
        return Some(PlannedTwin::New { path, digest });
    }
    let (stat, entry) = examined(context, twin.tree, &twin.path)?;
    if !twin.is(&stat) {
        return None;
    }
    Some(PlannedTwin::Found {
        twin_use,
        tree: twin.tree.and_then(|tree| u32::try_from(tree).ok()),
        path,
        before: Box::new(EntryState::found(&entry)),
    })
}

/// Examines a file of the destination or of an alternate tree; `None`: that is not possible.
fn examined(context: &Context<'_>, tree: Option<usize>, path: &RelPath) -> Option<(Stat, Entry)> {
    let dir = open_dir(context, tree, &path.parent().unwrap_or_default())?;
    let name = path.name();
    let stat = sys::stat(dir.fd(), name, false).ok()?;
    let mut entry = Entry::from_stat(&stat);
    let at = EntryAt {
        dir: &dir,
        name,
        stat: &stat,
        full: &|| context.full(path.as_bytes()),
        path: &|| path.as_bytes().to_vec(),
    };
    context.wanted.complete_dest(&mut entry, &at).ok()?;
    Some((stat, entry))
}

/// A new file whose twin is as it was when the plan was made.
struct PlannedHeir {
    dir: RelPath,
    /// The index of its entry.
    entry: u32,
    len_bytes: u64,
    twin: PlannedTwin,
}

/// Takes the twins of new files from a plan that is carried out. New files whose twins have changed are left alone. Returns
/// the twins, and what to report.
pub(super) fn settle(
    pool: &mut PlanPool<'_>,
    stored: &dyn StoredPlan,
    context: &Context<'_>,
    walk: &DestWalk<'_>,
) -> Result<(FoundTwins, Vec<Problem>)> {
    let mut settled = Settling {
        stored,
        context,
        walk,
        heirs: Vec::new(),
        found: TwinCandidates::default(),
        known: HashSet::new(),
        problems: Vec::new(),
    };
    let mut failure = None::<io::Error>;
    pool.each_held(&mut |plan, is_entered| {
        if !is_entered {
            return;
        }
        plan.refuse(|found, step| match settled.look_at(found, step) {
            Ok(true) => None,
            Ok(false) => Some(Reason::NotPlanned),
            Err(error) => {
                failure.get_or_insert(error);
                None
            }
        });
    });
    let settled = match failure {
        Some(error) => Err(error),
        None => settled.into_twins(),
    };
    context.twins.compare_by(Comparison::for_plans());
    settled.map_err(|error| replay::unreadable(&error))
}

/// The twins of a plan that is carried out, as far as they were looked at.
struct Settling<'a> {
    stored: &'a dyn StoredPlan,
    context: &'a Context<'a>,
    walk: &'a DestWalk<'a>,
    heirs: Vec<PlannedHeir>,
    found: TwinCandidates,
    /// Those in `found`.
    known: HashSet<(Option<usize>, RelPath)>,
    problems: Vec<Problem>,
}

impl Settling<'_> {
    /// Looks at the twin of a new file. Returns `false` if that has changed.
    fn look_at(&mut self, found: &Found, step: &Step) -> io::Result<bool> {
        if !is_new_file(found, step) {
            return Ok(true);
        }
        let path = found.listing.path.join(found.name_of(step));
        let planned = self.stored.action(path.as_bytes(), false)?;
        let Some(twin) = planned.and_then(|(_, action)| action.twin) else {
            return Ok(true);
        };
        if !self.may_be_used(&twin)? {
            let problem = replay::left_alone(path.as_bytes(), ChangedEnd::Twin);
            self.problems.push(problem);
            return Ok(false);
        }
        self.heirs.push(PlannedHeir {
            dir: found.listing.path.clone(),
            entry: step.source,
            len_bytes: found.source_of(step).len_bytes,
            twin: *twin,
        });
        Ok(true)
    }

    /// Returns whether a twin is as it was when the plan was made, and adds it to those that were found.
    fn may_be_used(&mut self, twin: &PlannedTwin) -> io::Result<bool> {
        let PlannedTwin::Found {
            tree, path, before, ..
        } = twin
        else {
            // Its content is compared when it is copied.
            return Ok(true);
        };
        let tree = tree.map(|tree| tree as usize);
        let has_tree = tree.is_none_or(|tree| tree < self.context.alternates.len());
        let Ok(path) = RelPath::parse(path) else {
            return Ok(false);
        };
        if !has_tree || is_hidden(self.context, tree, &path) || self.is_forbidden(&path) {
            return Ok(false);
        }
        let Some((stat, entry)) = examined(self.context, tree, &path) else {
            return Ok(false);
        };
        let given = match tree {
            None => self.given_to(&path)?,
            Some(_) => Vec::new(),
        };
        if !is_usable(&entry, before, &given, self.context.policy) {
            return Ok(false);
        }
        if self.known.insert((tree, path.clone())) {
            self.found.push(&TwinCandidate {
                tree,
                dir: &path.parent().unwrap_or_default(),
                name: path.name(),
                inode: (stat.dev, stat.ino),
                len_bytes: stat.len_bytes,
                mtime: stat.mtime,
                digest: None,
                fate: if tree.is_none() && self.is_deleted(&path)? {
                    TwinFate::Extra
                } else {
                    TwinFate::Stays
                },
                is_linkable: false,
            });
        }
        Ok(true)
    }

    /// Returns whether the rules of a daemon's module exclude a path or a directory above it.
    fn is_forbidden(&self, path: &RelPath) -> bool {
        let mut above = std::iter::successors(path.parent(), RelPath::parent);
        above.any(|dir| !dir.is_root() && self.walk.is_forbidden(&dir, true))
            || self.walk.is_forbidden(path, false)
    }

    fn is_deleted(&self, path: &RelPath) -> io::Result<bool> {
        let deletion = self.stored.action(path.as_bytes(), true)?;
        Ok(deletion.is_some() && !self.stored.leaves_deletions())
    }

    /// Returns the states that the run gives to a file of the destination, or to the new file that it is renamed to.
    fn given_to(&self, path: &RelPath) -> io::Result<Vec<EntryState>> {
        if let Some((_, own)) = self.stored.action(path.as_bytes(), false)? {
            let mut given = own.given(self.stored)?;
            given.extend(own.after);
            return Ok(given);
        }
        match self.stored.action(path.as_bytes(), true)? {
            Some((_, deletion)) => deletion.given(self.stored),
            None => Ok(Vec::new()),
        }
    }

    /// Returns all twins.
    fn into_twins(self) -> io::Result<(FoundTwins, Vec<Problem>)> {
        let Settling {
            heirs,
            found: mut candidates,
            problems,
            ..
        } = self;
        candidates.sort();
        let mut originals = Vec::new();
        let mut by_dir = HashMap::<RelPath, Vec<NewTwin>>::new();
        let mut has_extras = false;
        let mut renamed = HashSet::new();
        for heir in heirs {
            let PlannedHeir {
                dir,
                entry,
                len_bytes,
                twin,
            } = heir;
            // It was parsed before.
            let path = RelPath::parse(twin.path()).unwrap_or_default();
            let twin = match twin {
                PlannedTwin::New { digest, .. } => {
                    originals.push(Original {
                        path,
                        len_bytes,
                        digest: padded(&digest),
                    });
                    NewTwin {
                        entry,
                        at: originals.len() as u32 - 1,
                        reuse: Reuse::CopiedAtEnd,
                        is_awaited: false,
                    }
                }
                PlannedTwin::Found { twin_use, tree, .. } => {
                    let tree = tree.map(|tree| tree as usize);
                    let Some(at) = candidates.find_in(tree, &path) else {
                        // There were too many.
                        continue;
                    };
                    let is_extra = candidates.get(at).fate.is_extra();
                    has_extras |= is_extra;
                    NewTwin {
                        entry,
                        at,
                        reuse: match twin_use {
                            // Only one new file takes the place of a deletion.
                            TwinUse::Renamed if is_extra && renamed.insert(at) => Reuse::Renamed,
                            TwinUse::Linked if tree.is_some() => Reuse::Linked,
                            TwinUse::Renamed | TwinUse::Linked | TwinUse::Copied => Reuse::Copied,
                        },
                        is_awaited: is_extra,
                    }
                }
            };
            by_dir.entry(dir).or_default().push(twin);
        }
        let by_dir = by_dir.into_iter().map(|(dir, mut twins)| {
            twins.sort_by_key(|twin| twin.entry);
            (dir, twins.into_boxed_slice())
        });
        let twins = SettledTwins {
            candidates,
            originals,
            by_dir: by_dir.collect(),
        };
        let found = FoundTwins {
            twins,
            has_extras,
            is_cut: false,
        };
        Ok((found, problems))
    }
}
