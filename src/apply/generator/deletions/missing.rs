//! Deletes the names of missing arguments (`--delete-missing-args`), in the order of the list.

use super::{Deletions, cannot_stat};
use crate::apply::DestDir;
use crate::apply::delete::Removed;
use crate::apply::dir_finalize::LastTouch;
use crate::apply::entry::refused_by_module;
use crate::error::Result;
use crate::filter::Chain;
use crate::flist::{Kind, order};
use crate::fs::root::Root;
use crate::fs::{errno, sys};
use crate::path::RelPath;
use crate::plan::delete::Extras;
use crate::report::event::Event;
use crate::walk::enter_dir;
use std::sync::Arc;

impl Deletions<'_> {
    /// Sets the arguments that the source does not have. `--delete-missing-args` removes them.
    pub(in crate::apply::generator) fn expect_missing(&mut self, missing: &[RelPath]) {
        self.missing = missing.to_vec();
        self.missing.sort_by(|a, b| compare(b, a));
        self.missing.dedup();
        self.above_missing = self
            .missing
            .iter()
            .filter_map(RelPath::parent)
            .map(|dir| (dir, None))
            .collect();
    }

    /// Keeps the time of a directory from being set before the missing arguments in it are removed.
    pub(in crate::apply::generator) fn hold(&mut self, dir: &RelPath, last: &Arc<LastTouch>) {
        if let Some(held) = self.above_missing.get_mut(dir) {
            *held = Some(last.clone());
        }
    }

    /// Returns whether `--list-only` prints a missing argument before this entry, which is not a directory.
    pub(in crate::apply::generator) fn lists_missing_before(
        &self,
        dest_dir: &DestDir,
        name: &[u8],
    ) -> bool {
        let is_before = |missing: &RelPath| compare(missing, &dest_dir.path.join(name)).is_lt();
        self.context.policy.list_only && self.missing.last().is_some_and(is_before)
    }

    /// Removes the missing arguments that come before such an entry.
    pub(in crate::apply::generator) fn missing_before(
        &mut self,
        dest_dir: &DestDir,
        name: &[u8],
        head: &mut Vec<Event>,
    ) {
        let path = dest_dir.path.join(name);
        self.remove_missing(head, |missing| compare(missing, &path).is_lt());
    }

    /// Removes the missing arguments that come before the subdirectories of a directory: rsync lists them as files.
    pub(in crate::apply::generator) fn missing_before_dirs(
        &mut self,
        dest_dir: &DestDir,
        head: &mut Vec<Event>,
    ) {
        let dir = &dest_dir.path;
        self.remove_missing(head, |missing| {
            let is_in = missing.parent().unwrap_or_default() == *dir;
            let is_before = || {
                order::compare_paths((missing.as_bytes(), false), (dir.as_bytes(), true)).is_lt()
            };
            is_in || !dir.is_root() && is_before()
        });
    }

    /// Removes the remaining missing arguments.
    pub(in crate::apply::generator) fn missing_at_the_end(&mut self, head: &mut Vec<Event>) {
        self.remove_missing(head, |_| true);
        self.above_missing.clear();
    }

    fn remove_missing(&mut self, head: &mut Vec<Event>, is_due: impl Fn(&RelPath) -> bool) {
        while let Some(path) = self.missing.pop_if(|path| is_due(path)) {
            let parent = path.parent().unwrap_or_default();
            if self.context.policy.list_only {
                head.push(Event::Missing(path.as_bytes().to_vec()));
            }
            let Some(dest) = self.context.dest else {
                continue;
            };
            // As in rsync, a module refuses a name even if there is no such file.
            if self.walk.is_forbidden(&path, false) {
                self.refuse_missing(&path, head);
                continue;
            }
            let found = dest
                .open_dir_to_search(&parent)
                .and_then(|dir| sys::stat(dir.fd(), path.name(), false).map(|stat| (dir, stat)));
            let (dir, stat) = match found {
                Ok(found) => found,
                Err(error) if errno::is_unreachable(&error) => continue,
                Err(error) => {
                    head.push(cannot_stat(self.context, &path, &error));
                    continue;
                }
            };
            if self.lies_in(&parent, &dir, head).is_none() {
                continue;
            }
            let is_dir = Kind::of_mode(stat.mode) == Some(Kind::Dir);
            if is_dir && self.walk.is_forbidden(&path, true) {
                head.extend(refused_by_module(path.as_bytes(), true));
                continue;
            }
            let chain = match self.chain_in(dest, &parent) {
                Ok(chain) => chain,
                Err(error) => {
                    self.remover.fatal.get_or_insert(error);
                    continue;
                }
            };
            if !Extras::new(&parent, &chain, true, false).contain(
                path.name(),
                is_dir,
                &mut Vec::new(),
            ) {
                continue;
            }
            let removed = self.remover.remove_missing(&dir, &path, is_dir, &chain);
            head.append(&mut self.remover.events);
            if removed == Removed::Gone
                && let Some(Some(last)) = self.above_missing.get(&parent)
            {
                last.touch();
            }
        }
    }

    /// Reports a missing argument that the module excludes, or the directory above it that the module excludes.
    fn refuse_missing(&mut self, path: &RelPath, head: &mut Vec<Event>) {
        let above = std::iter::successors(path.parent(), RelPath::parent);
        match above.filter(|dir| self.walk.is_forbidden(dir, true)).last() {
            None => head.extend(refused_by_module(path.as_bytes(), false)),
            // Otherwise the directory is an entry, and was refused.
            Some(dir)
                if self.context.options.select.no_implied_dirs
                    && self.refused.as_ref() != Some(&dir) =>
            {
                head.extend(refused_by_module(dir.as_bytes(), true));
                self.refused = Some(dir);
            }
            Some(_) => {}
        }
    }

    /// Returns the receiver's rules in force in a directory, or in the lowest directory above it that can be opened.
    fn chain_in(&self, dest: &Root, dir: &RelPath) -> Result<Chain> {
        let above = match dir.parent() {
            Some(parent) => self.chain_in(dest, &parent)?,
            None => self.walk.receiver_chain.clone(),
        };
        if !above.has_per_dir() {
            return Ok(above);
        }
        let Ok(open) = dest.open_dir_to_search(dir) else {
            return Ok(above);
        };
        // Files that are refused are reported when the directory is decided.
        let owners = self.context.options.preserve.link_owners;
        enter_dir(&above, &open, dir, "generator", owners).map(|(chain, _)| chain)
    }
}

/// Compares two paths in list order, as if neither were a directory.
fn compare(one: &RelPath, other: &RelPath) -> std::cmp::Ordering {
    order::compare_paths((one.as_bytes(), false), (other.as_bytes(), false))
}
