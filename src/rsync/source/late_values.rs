//! Requests the values of extended attributes that the sender has abbreviated, where they are needed.
//!
//! If the sender is the client, they are requested with the items instead; see [`crate::apply::abbreviated`].
//!
//! A value that the destination already has is taken from there. The others are requested for a whole directory at once,
//! so a directory costs at most one round trip.

use crate::apply::abbreviated::value_of;
use crate::error::Result;
use crate::flist::Entry;
use crate::flist::abbreviated::{AbbreviatedValue, RequestedValues};
use crate::plan::Action;
use crate::proto::rsync::message::RsyncMessage;
use crate::proto::{DirId, FileId};
use crate::rsync::source::rsync_source::RsyncSource;
use crate::walk::{DirPlan, NONE, Step};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Returns whether the attributes of an entry are set.
fn sets_attributes(action: Action) -> bool {
    match action {
        Action::Adjust(_)
        | Action::Create(_)
        | Action::Transfer(_)
        | Action::Copy(_)
        | Action::AskDigest => true,
        Action::Keep | Action::Link | Action::Elsewhere | Action::Refuse(_) => false,
    }
}

impl RsyncSource<'_> {
    /// Requests the values that a plan needs, and waits for them. `dir`: the number of the listing.
    pub(super) fn request_values(&self, dir: DirId, plan: &mut DirPlan) -> Result<()> {
        if self.requests_nothing()
            || !plan
                .found
                .listing
                .list
                .entries
                .iter()
                .any(Entry::has_abbreviated)
        {
            return Ok(());
        }
        let steps = plan
            .decided()
            .steps
            .iter()
            .chain(plan.decided().subdirs.iter().map(|sub| &sub.step));
        let needed = steps
            .filter(|step| sets_attributes(step.decision.action))
            .map(|Step { source, dest, .. }| (*source, *dest));
        // It may be decided again.
        let is_open = plan.found.dest.is_unseen || !plan.found.dest.hidden.is_empty();
        let all = (0..plan.found.listing.list.len() as u32).map(|source| (source, NONE));
        let mut needed: Vec<(u32, u32)> = if is_open {
            all.collect()
        } else {
            needed.collect()
        };
        needed.retain(|&(source, _)| {
            plan.found.listing.list.entries[source as usize].has_abbreviated()
        });
        let mut requested = HashSet::new();
        for &(source, dest) in &needed {
            let dest = plan.found.dest.list.entries.get(dest as usize);
            let file = FileId { dir, entry: source };
            self.request_missing(
                file,
                &plan.found.listing.list.entries[source as usize],
                dest,
                &mut requested,
            )?;
        }
        for (source, dest) in needed {
            let dest = plan.found.dest.list.entries.get(dest as usize);
            self.fill(
                &mut Arc::make_mut(&mut plan.found.listing.list).entries[source as usize],
                dest,
            )?;
        }
        Ok(())
    }

    /// Requests the values of the root of the transfer, and waits for them.
    pub(super) fn request_values_of_root(&self, root: &mut Entry) -> Result<()> {
        if self.requests_nothing() || !root.has_abbreviated() {
            return Ok(());
        }
        self.request_missing(FileId::ROOT, root, None, &mut HashSet::new())?;
        self.fill(root, None)
    }

    fn requests_nothing(&self) -> bool {
        self.run_context.options.dry_run || self.is_listing || self.shared.lock().served.is_some()
    }

    fn request_missing(
        &self,
        file: FileId,
        entry: &Entry,
        dest: Option<&Entry>,
        requested: &mut HashSet<(u32, u32)>,
    ) -> Result<()> {
        let mut list = 0;
        let mut numbers = BTreeSet::new();
        for (name, value) in entry.xattrs() {
            let Some(wanted) = AbbreviatedValue::decode(value) else {
                continue;
            };
            let key = (wanted.list, wanted.number);
            let is_known = value_of(dest, name, &wanted).is_some()
                || self.inbox.lock().xattrs.contains_key(&key);
            if !is_known && requested.insert(key) {
                list = wanted.list;
                numbers.insert(wanted.number);
            }
        }
        if numbers.is_empty() {
            return Ok(());
        }
        let values = RequestedValues {
            list,
            numbers: numbers.into_iter().collect(),
        };
        self.connection
            .send(&RsyncMessage::WantValues { file, values })
    }

    /// Replaces the abbreviated values of an entry. All were requested.
    fn fill(&self, entry: &mut Entry, dest: Option<&Entry>) -> Result<()> {
        let extra = entry.extra_mut();
        extra.has_abbreviated = false;
        let Some(xattrs) = &mut extra.xattrs else {
            return Ok(());
        };
        for (name, value) in Arc::make_mut(xattrs) {
            let Some(wanted) = AbbreviatedValue::decode(value) else {
                continue;
            };
            *value = match value_of(dest, name, &wanted) {
                Some(present) => present.into(),
                None => {
                    let key = (wanted.list, wanted.number);
                    self.inbox.wait(|state| state.xattrs.get(&key).cloned())?[..].into()
                }
            };
        }
        Ok(())
    }
}
