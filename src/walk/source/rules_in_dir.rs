//! Which names of a directory the rules include. A rule can depend on the kind of an entry, which the name alone may not
//! show.

use crate::filter::{Chain, Side};
use crate::flist::Entry;
use crate::fs::read::{ListedName, Names};
use crate::options::Select;
use crate::path::RelPath;
use crate::proto::DirListing;
use std::sync::Arc;

/// The rules for the names in one directory.
pub(super) struct RulesInDir<'r> {
    chain: &'r Chain,
    /// Print which rule matched.
    reports: bool,
    /// A symlink may stand for a directory, so its own type is not conclusive.
    follows_links: bool,
    /// The path of the directory, with a slash at the end, and the name that was looked at last.
    path: Vec<u8>,
    dir_len: usize,
}

impl<'r> RulesInDir<'r> {
    /// Returns the rules for the names in `dir`. `reports`: print which rule matched.
    pub(super) fn new(
        chain: &'r Chain,
        select: &Select,
        reports: bool,
        dir: &RelPath,
    ) -> RulesInDir<'r> {
        let mut path = dir.as_bytes().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        RulesInDir {
            chain,
            reports,
            follows_links: select.opens_link_targets() || select.copy_dirlinks,
            dir_len: path.len(),
            path,
        }
    }

    /// Returns whether a name is that of a directory; `None`: it has to be examined.
    fn is_dir(&self, listed: ListedName) -> Option<bool> {
        match listed.is_dir {
            Some(false) if self.follows_links => None,
            known => known,
        }
    }

    fn include(&mut self, name: &[u8], is_dir: bool, notes: &mut Vec<Vec<u8>>) -> bool {
        self.path.truncate(self.dir_len);
        self.path.extend_from_slice(name);
        let path = &self.path;
        self.chain
            .includes(self.reports, Side::Sender, path, is_dir, notes)
    }

    /// Drops the names that are excluded whatever an examination would show.
    pub(super) fn drop_excluded(&mut self, names: &mut Names, notes: &mut Vec<Vec<u8>>) {
        if self.chain.is_empty() {
            return;
        }
        let mut items = std::mem::take(&mut names.items);
        items.retain(|&listed| match self.is_dir(listed) {
            Some(is_dir) => self.include(names.name(listed), is_dir, notes),
            None => true,
        });
        names.items = items;
    }

    /// Returns whether a name that could not be examined is excluded. It is unknown whether a dangling symlink would be a
    /// directory: a rule against either kind excludes it.
    pub(super) fn may_exclude(
        &mut self,
        listed: ListedName,
        name: &[u8],
        notes: &mut Vec<Vec<u8>>,
    ) -> bool {
        if self.chain.is_empty() || self.is_dir(listed).is_some() {
            return false;
        }
        let is_included = self.include(name, false, notes) && self.include(name, true, notes);
        !is_included
    }

    /// Drops the entry that was added last if the rules exclude it, now that its kind is known.
    pub(super) fn drop_added(&mut self, listed: ListedName, name: &[u8], listing: &mut DirListing) {
        if self.chain.is_empty() || self.is_dir(listed).is_some() {
            return;
        }
        let is_dir = listing.list.entries.last().is_some_and(Entry::is_dir);
        if !self.include(name, is_dir, &mut listing.notes) {
            Arc::make_mut(&mut listing.list).entries.pop();
        }
    }
}
