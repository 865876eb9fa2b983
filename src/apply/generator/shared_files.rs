//! Names of one file at the destination (without `-H`): a step for one of them changes what the others have.
//!
//! The plan does not know that. So after a step has changed the attributes of a file, its other names are examined and
//! decided again at their turn, as in rsync. So are entries that a backup has replaced. If content is written into the
//! file (`--inplace`), one name is done after the other.

use crate::apply::{Context, DestDir, backup};
use crate::flist::Entry;
use crate::fs::read::EntryAt;
use crate::fs::{errno, sys};
use crate::plan::{self, Action, Decision, Subject};
use crate::report::event::{Problem, Weight};
use crate::walk::{DirPlan, NONE, Step, cannot_stat, unreadable_attribute};
use std::collections::BTreeSet;

/// The files with several names that this run changes, by their device and inode numbers.
#[derive(Default)]
pub(super) struct SharedFiles {
    /// Those whose attributes change.
    changed: BTreeSet<(u64, u64)>,
    /// Those into which content is written.
    written: BTreeSet<(u64, u64)>,
}

/// What earlier steps for other names do to the file of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangedBefore {
    /// Nothing that matters to the step.
    Nothing,
    /// They change its attributes.
    Attributes,
    /// They write content into it, and the step does so too.
    Content,
    /// They write content into it, and the step changes attributes. rsync has changed these before the content arrives,
    /// with which the file gets the attributes of the other name.
    ContentLater,
}

/// What the destination has at the turn of a step, and what to do.
pub(super) struct Renewed {
    /// The destination's entry.
    pub(super) existing: Entry,
    pub(super) decision: Decision,
}

impl SharedFiles {
    /// Returns what earlier steps do to the file that a step is about, and notes what this step does.
    pub(super) fn changed_before(
        &mut self,
        context: &Context<'_>,
        plan: &DirPlan,
        step: &Step,
    ) -> ChangedBefore {
        if step.dest == NONE || context.is_dry() || plan.decided().hits.contains_key(&step.source) {
            return ChangedBefore::Nothing;
        }
        let existing = &plan.found.dest.list.entries[step.dest as usize];
        let Some(inode) = existing.inode.as_ref().map(|inode| (inode.dev, inode.ino)) else {
            return ChangedBefore::Nothing;
        };
        match step.decision.action {
            Action::Adjust(_) if self.written.contains(&inode) => ChangedBefore::ContentLater,
            Action::Adjust(_) if self.changed.insert(inode) => ChangedBefore::Nothing,
            Action::Adjust(_) => ChangedBefore::Attributes,
            Action::Transfer(_) if context.options.place.inplace && !self.written.insert(inode) => {
                ChangedBefore::Content
            }
            Action::Keep if self.written.contains(&inode) => ChangedBefore::Nothing,
            Action::Keep | Action::Transfer(_) if self.changed.contains(&inode) => {
                ChangedBefore::Attributes
            }
            Action::Keep | Action::Transfer(_) => ChangedBefore::Nothing,
            Action::Create(_)
            | Action::Refuse(_)
            | Action::Link
            | Action::Copy(_)
            | Action::Elsewhere
            | Action::AskDigest => ChangedBefore::Nothing,
        }
    }
}

/// Examines the file of a step again and decides. Content that was equal still is, unless a backup has replaced it. If
/// another name's content was written into the file, the decision stays. `None`: nothing is renewed, because the file is
/// gone or is another one now.
pub(super) fn decided_again(
    context: &Context<'_>,
    plan: &DirPlan,
    step: &Step,
    dest_dir: &DestDir,
    before: ChangedBefore,
) -> Result<Option<Renewed>, Problem> {
    let is_written = before == ChangedBefore::Content;
    let name = plan.name_of(step);
    let (Some(dir), before) = (
        &dest_dir.dir,
        &plan.found.dest.list.entries[step.dest as usize],
    ) else {
        return Ok(None);
    };
    let path = dest_dir.path.join(name);
    let full = || context.full(path.as_bytes());
    let stat = match errno::if_there(sys::stat(dir.fd(), name, false)) {
        Ok(Some(stat)) => stat,
        Ok(None) => return Ok(None),
        Err(error) => return Err(cannot_stat(&full(), &error)),
    };
    // The numbers are known only for files with several names.
    let is_same = match &before.inode {
        Some(before) => (stat.dev, stat.ino) == (before.dev, before.ino),
        None => {
            (stat.mode, stat.len_bytes, stat.mtime) == (before.mode, before.len_bytes, before.mtime)
        }
    };
    if !is_same && !backup::is_backup(context, &path) {
        return Ok(None);
    }
    let mut existing = Entry::from_stat(&stat);
    let at = EntryAt {
        dir,
        name,
        stat: &stat,
        full: &full,
        path: &|| path.as_bytes().to_vec(),
    };
    let completed = context.wanted.complete_dest(&mut existing, &at);
    completed
        .map_err(|incomplete| unreadable_attribute("generator", incomplete, Weight::Failed))?;
    if is_written && is_same {
        let decision = step.decision;
        return Ok(Some(Renewed { existing, decision }));
    }
    let source = plan.source_of(step);
    let is_transferred = |action| matches!(action, Action::Transfer(_));
    let same_content = Some(is_same && !is_transferred(step.decision.action));
    let subject = if is_same {
        Subject::Included
    } else {
        Subject::Entry
    };
    let decision = plan::decide(
        source,
        Some(&existing),
        same_content,
        subject,
        context.policy,
    );
    let is_as_before = is_transferred(decision.action) == is_transferred(step.decision.action);
    if is_same && !is_as_before {
        return Ok(None);
    }
    Ok(Some(Renewed { existing, decision }))
}
