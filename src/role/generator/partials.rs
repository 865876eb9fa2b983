//! What is left of interrupted files that came whole since: `--partial-dir` keeps it no longer.

use crate::flist::Kind;
use crate::fs::{read, sys};
use crate::plan::Action;
use crate::role::apply::{Context, Spot, partial};
use crate::role::scan::DirPlan;

/// Removes the left-overs of those files of one directory that are up to date; and the directory that holds them, if it
/// lies in that one and is empty then.
pub(super) fn forget(context: &Context<'_>, plan: &DirPlan, spot: &Spot) {
    let (Some(holder), Some(dir), false) = (&context.options.place.partial_dir, &spot.dir, context.is_dry()) else {
        return;
    };
    let Ok(partials) = partial::open_partial(context, dir, holder) else { return };
    let mut stale = Vec::new();
    let _ = read::names(&partials, usize::MAX, |entry| {
        if is_up_to_date(plan, entry.name) {
            stale.push(entry.name.to_vec());
        }
    });
    let mut any = false;
    for name in stale {
        any |= sys::unlink(partials.fd(), &name).is_ok();
    }
    if any && !holder.starts_with(b"/") {
        spot.last.touch();
        let _ = sys::rmdir(dir.fd(), holder);
    }
}

/// Whether the source has a file of this name, and the destination has it as it is there.
fn is_up_to_date(plan: &DirPlan, name: &[u8]) -> bool {
    let is_file = |list: &crate::flist::DirList, at: usize| list.entries[at].kind() == Kind::File;
    let Some(at) = plan.source.find(name).filter(|&at| is_file(&plan.source, at)) else { return false };
    let is_there = plan.dest.find(name).is_some_and(|there| is_file(&plan.dest, there));
    let mut steps = plan.steps.iter().filter(|step| step.source as usize == at);
    is_there && steps.all(|step| matches!(step.decision.action, Action::Keep | Action::Adjust(_)))
}
