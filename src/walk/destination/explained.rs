//! Collects what `sparsync explain` says of the entries of a destination.

use super::DestWalk;
use crate::filter::Side;
use crate::flist::Kind;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::path::RelPath;
use crate::plan::explained::{DecidedFact, Fact, Fate};
use crate::report::explainer::Explainer;
use crate::walk::dir_plan::{Found, Step};

impl DestWalk<'_> {
    /// Collects the decision about an entry, if it is to be explained.
    pub(super) fn explain(&self, explainer: &Explainer, found: &Found, step: &Step) {
        let renamed_from = found.listing.renamed_from.as_deref();
        let path = found
            .listing
            .path
            .join(renamed_from.unwrap_or(found.name_of(step)));
        let decided = || {
            let dest = found.dest.entry(step.dest);
            let source = found.source_of(step);
            DecidedFact::new(source, dest, step.decision, self.policy)
        };
        if explainer.asks_about(&path) {
            explainer.add(&path, Fact::Decided(Box::new(decided())));
        }
    }

    /// Collects what the destination has under the names to explain that the source lacks.
    pub(super) fn explain_lone(&self, explainer: &Explainer, found: &Found) {
        let dir = &found.listing.path;
        let listed = &found.listing.list;
        let is_renamed = |name: &[u8]| found.listing.renamed_from.as_deref() == Some(name);
        for name in explainer.names_in(dir) {
            if listed.find(name).is_none() && !is_renamed(name) {
                let kind = found.dest.dir.as_ref().and_then(|dir| kind_at(dir, name));
                self.explain_extra(explainer, found, &dir.join(name), kind);
            }
        }
    }

    /// Collects what the destination has under a name that the source lacks, and below it. `kind`: that of its entry.
    pub(super) fn explain_extra(
        &self,
        explainer: &Explainer,
        found: &Found,
        path: &RelPath,
        kind: Option<Kind>,
    ) {
        let is_dir = kind == Some(Kind::Dir);
        let (Some(kind), false) = (kind, self.is_forbidden(path, is_dir)) else {
            explainer.add(path, Fact::Absent(Side::Receiver));
            return;
        };
        explainer.add(path, Fact::AtDest(kind));
        for below in explainer.below(path) {
            let parent = below.parent().unwrap_or_default();
            let dir = self
                .dest
                .and_then(|root| root.open_dir_to_search(&parent).ok());
            let kind = dir.and_then(|dir| kind_at(&dir, below.name()));
            let is_forbidden = self.is_forbidden(below, kind == Some(Kind::Dir));
            explainer.add(
                below,
                match kind {
                    Some(kind) if !is_forbidden => Fact::AtDest(kind),
                    Some(_) | None => Fact::Absent(Side::Receiver),
                },
            );
        }
        let fate = if !self.delete {
            Fate::NotRequested
        } else if !found.listing.may_delete {
            Fate::NotCompared
        } else {
            let chain = found
                .receiver_chain
                .as_ref()
                .expect("set with what was found");
            explainer.add_rule(chain, Side::Receiver, path, is_dir, false);
            let mut extras = self.extras(found);
            if extras.contain(path.name(), is_dir, &mut Vec::new()) {
                Fate::Doomed
            } else {
                Fate::Protected
            }
        };
        explainer.add(path, Fact::Extra(fate));
    }
}

/// Returns the kind of an entry of the destination; `None`: there is none, or it cannot be examined.
fn kind_at(dir: &Dir, name: &[u8]) -> Option<Kind> {
    let stat = sys::stat(dir.fd(), name, false).ok()?;
    Kind::of_mode(stat.mode)
}
