//! The backups of a stored plan (`--backup`): what it records of them, and whether their places are as they were then.

use crate::apply::{Context, backup};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Entry;
use crate::fs::root::Dir;
use crate::path::RelPath;
use crate::plan::planned::{ChangedEnd, PlannedAct, PlannedAction};
use crate::plan::{Action, Reason};
use crate::report::event::Problem;
use crate::walk::{DirPlan, Found, Step, replay};
use std::io;

/// Adds the backup that an action makes. `dir`: the directory of its entry at the destination.
pub(super) fn add_backup(
    context: &Context<'_>,
    action: &mut PlannedAction,
    (source, dest): (&Entry, Option<&Entry>),
    dir: Option<&Dir>,
) {
    let (Some(before), Some(dir)) = (&action.before, dir) else {
        return;
    };
    let Ok(path) = RelPath::parse(&action.path) else {
        return;
    };
    let is_made = match action.act {
        PlannedAct::Create if source.is_dir() => !backup::is_backup(context, &path),
        PlannedAct::Create | PlannedAct::Transfer | PlannedAct::Copy | PlannedAct::HardLink => true,
        PlannedAct::Link | PlannedAct::Vacate => {
            !backup::has_same_data(source, dest, context.policy)
        }
        PlannedAct::Adjust | PlannedAct::Delete => false,
    };
    if is_made {
        action.backup = backup::planned(context, dir, &path, before);
    }
}

/// Fails if the source has an entry with the name of a backup that the run makes beside its original. Once one of the two is
/// done, no state tells what is still to be done about the other.
pub(super) fn refuse_shared_names(context: &Context<'_>, plan: &DirPlan) -> Result<()> {
    let Some(suffix) = context.options.place.suffix_beside() else {
        return Ok(());
    };
    let list = &plan.found.listing.list;
    for entry in &list.entries {
        let name = list.name(entry);
        let Some(original) = name.strip_suffix(suffix) else {
            continue;
        };
        if is_backed_up(plan, original) {
            let path = plan.found.listing.path.join(name);
            let start = b"sparsync plan: \"".as_slice();
            let end = b"\" is an entry of the source and the name of a backup: a plan cannot record what becomes of it";
            let line = [start, path.as_bytes(), end].concat();
            let hint = "use --backup-dir, or another --suffix";
            return Err(Error::new(Exit::FileSelect, line).with_hint(hint));
        }
    }
    Ok(())
}

/// Returns whether the entry of this name at the destination is replaced or deleted, and is no directory.
fn is_backed_up(plan: &DirPlan, name: &[u8]) -> bool {
    let Found { listing, dest, .. } = &plan.found;
    let Some(at) = dest.list.find(name) else {
        return false;
    };
    if dest.list.entries[at].is_dir() {
        return false;
    }
    let decided = plan.decided();
    let Some(source) = listing.list.find(name) else {
        return decided.extras.iter().any(|extra| *extra as usize == at);
    };
    let subdirs = decided.subdirs.iter().map(|sub| &sub.step);
    let mut steps = decided.steps.iter().chain(subdirs);
    let step = steps.find(|step| step.source as usize == source);
    step.is_some_and(|step| is_replaced_by(step.decision.action))
}

/// Returns whether an action replaces or removes what the destination has.
fn is_replaced_by(action: Action) -> bool {
    match action {
        Action::Create(_) | Action::Transfer(_) | Action::Copy(_) | Action::Link => true,
        Action::Elsewhere => true,
        Action::Keep | Action::Adjust(_) | Action::AskDigest | Action::Refuse(_) => false,
    }
}

/// Returns what keeps the backup of a planned action from being made, if that has changed since the plan. `dir`: the
/// destination's directory of the step.
pub(super) fn changed_end(
    context: &Context<'_>,
    planned: &PlannedAction,
    (found, step): (&Found, &Step),
    dir: &Dir,
) -> Option<ChangedEnd> {
    planned.backup.as_ref()?;
    let name = found.name_of(step);
    // See `refuse_shared_names`.
    if let Some(suffix) = context.options.place.suffix_beside()
        && found.listing.list.find(&[name, suffix].concat()).is_some()
    {
        return Some(ChangedEnd::Backup);
    }
    let path = found.listing.path.join(name);
    let place = backup::find_place(context, dir, &path);
    planned.no_backup(found.dest.entry(step.dest), &place)
}

/// Leaves alone what is to be replaced in a directory if the place of its backup is not as it was when the plan was made.
/// Returns what to report.
pub(super) fn restrict(
    context: &Context<'_>,
    plan: &mut DirPlan,
    dir: Option<&Dir>,
) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let (Some(stored), Some(dir)) = (context.process.stored, dir) else {
        return Ok(problems);
    };
    if context.options.place.backup.is_none() {
        return Ok(problems);
    }
    let mut failure = None::<io::Error>;
    plan.refuse(|found, step| {
        if !is_replaced_by(step.decision.action) {
            return None;
        }
        let path = found.listing.path.join(found.name_of(step));
        let planned = match stored.action(path.as_bytes(), false) {
            Ok(planned) => planned,
            Err(error) => {
                failure.get_or_insert(error);
                return None;
            }
        };
        let (_, planned) = planned?;
        // The names of a hard-linked file were looked at together.
        if planned.links.is_some() {
            return None;
        }
        let end = changed_end(context, &planned, (found, step), dir)?;
        problems.push(replay::left_alone(path.as_bytes(), end));
        Some(Reason::NotPlanned)
    });
    match failure {
        Some(error) => Err(replay::unreadable(&error)),
        None => Ok(problems),
    }
}
