//! Removes partial files from `--partial-dir` once their final files are complete.

use crate::apply::{Context, DestDir, partial};
use crate::flist::{DirList, Kind};
use crate::fs::temp_name::is_temp_name;
use crate::fs::{read, sys};
use crate::plan::Action;
use crate::walk::DirPlan;

/// Removes the partial files of those files in a directory that are up to date.
pub(super) fn discard(context: &Context<'_>, plan: &DirPlan, dest_dir: &DestDir) {
    let Some(dir) = &dest_dir.dir else {
        return;
    };
    if context.is_dry() {
        return;
    }
    let place = &context.options.place;
    // An interrupted run with --delay-updates may have left complete files in the staging directory.
    let staging = place.delay_updates.then(|| context.staging_name());
    let keeps_links = staging.is_some() && context.policy.preserve.hard_links;
    let Some(holder) = place.partial_dir.as_deref().or(staging) else {
        return;
    };
    let has_changed = partial::forget_all(context, dir, holder, |partials| {
        let mut stale = Vec::new();
        // If listing fails, they stay.
        let _ = read::names(partials, usize::MAX, |entry| {
            // A hard link saves no transfer: its content exists under another name.
            let is_linked =
                || sys::stat(partials.fd(), entry.name, false).is_ok_and(|stat| stat.nlink > 1);
            if is_temp_name(entry.name)
                || is_up_to_date(plan, entry.name)
                || keeps_links && is_linked()
            {
                stale.push(entry.name.to_vec());
            }
        });
        stale
    });
    if has_changed {
        dest_dir.last.touch();
    }
}

/// Returns whether the source has a file of this name and the destination's copy is up to date.
fn is_up_to_date(plan: &DirPlan, name: &[u8]) -> bool {
    let is_file = |list: &DirList, at: usize| list.entries[at].kind() == Kind::File;
    let Some(at) = plan
        .found
        .listing
        .list
        .find(name)
        .filter(|&at| is_file(&plan.found.listing.list, at))
    else {
        return false;
    };
    let exists = plan
        .found
        .dest
        .list
        .find(name)
        .is_some_and(|found| is_file(&plan.found.dest.list, found));
    // Steps are in the order of the source.
    let step = plan.decided().steps.get(
        plan.decided()
            .steps
            .partition_point(|step| (step.source as usize) < at),
    );
    let step = step.filter(|step| step.source as usize == at);
    exists
        && step.is_none_or(|step| matches!(step.decision.action, Action::Keep | Action::Adjust(_)))
}
