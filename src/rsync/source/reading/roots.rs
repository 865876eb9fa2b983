//! Reads the first list, and passes on the roots: what the source arguments are.

use super::Reading;
use crate::flist::{DirList, Kind};
use crate::path::RelPath;
use crate::proto::Roots;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::file_list::FileEntry;
use crate::proto::rsync::number::Ndx;
use crate::report::event::Problem;
use crate::rsync::source::lists::{NumberedDir, SortedList};
use std::collections::{BTreeSet, HashSet};

impl Reading<'_, '_> {
    /// Reads the first list and passes on the roots. Returns whether the sender has left: a server without any entry does
    /// so at once.
    pub(super) fn first_list(&mut self) -> decode_error::Result<bool> {
        let mut list = self.list()?;
        let has_left = list.entries.is_empty() && !self.intake.is_served();
        self.intake.shared.lock().has_left = has_left;

        let mut top_index = list.first;
        let mut top = None;
        if let Some(slot) = list.entries.first_mut() {
            top_index = list.first.saturating_add_unsigned(slot.place);
            top = slot.entry.take_if(|entry| entry.path == b".");
        }
        let first = list.entries.iter().find_map(|slot| slot.entry.as_ref());
        // An entry that is there twice is not the only one.
        let is_more =
            list.entries.len() > usize::from(top.is_some()) + usize::from(first.is_some());
        let single = first.filter(|entry| !is_more && top.is_none() && !entry.is_dir());
        let single = single.map(|entry| crate::path::file_name(&entry.path).to_vec());
        let lone_dir_is_bare = if top.is_some() {
            Some(first.is_none() && !is_more)
        } else {
            self.lone_dir_is_bare(first, is_more)?
        };

        let missing = self.take_missing(&mut list)?;
        let is_any = top.is_some() || list.entries.iter().any(|slot| slot.entry.is_some());
        let mut roots = Roots {
            found: u64::from(is_any),
            single,
            lone_dir_is_bare,
            missing,
            ids: std::mem::take(&mut list.ids),
            // The receiver counts these.
            problems: std::mem::take(&mut list.problems),
            ..Roots::default()
        };
        if let Some(top) = &top {
            roots.top = self.top_list(top, top_index)?;
        }
        self.intake.inbox.set_roots(roots);

        let has_content = top.as_ref().is_some_and(|top| top.has_content);
        if !self.intake.is_incremental() {
            self.pass_on_tree(list, has_content)?;
            return Ok(has_left);
        }
        if top.is_some() {
            // It is the first of the numbered directories.
            self.dirs.push(Some(NumberedDir {
                path: RelPath::root(),
                is_walked: false,
                has_content,
            }));
        }
        self.pass_on_listing(RelPath::root(), list, has_content)?;
        Ok(has_left)
    }

    /// Returns whether the argument is a directory without content, from the `first` entry of a list without a root and
    /// whether there `is_more`. `None`: it is no directory, or not the only one.
    fn lone_dir_is_bare(
        &mut self,
        first: Option<&FileEntry>,
        is_more: bool,
    ) -> decode_error::Result<Option<bool>> {
        if !first.is_some_and(FileEntry::is_dir) {
            return Ok(None);
        }
        if !self.intake.is_incremental() {
            return Ok(Some(!is_more));
        }
        if is_more {
            return Ok(None);
        }
        // The list of its content follows at once.
        self.read_ahead().map(Some)
    }

    /// Notes the index of the root, and returns it as the receiver gets it. `None`: as a directory that is only implied, it
    /// is left out.
    fn top_list(&mut self, top: &FileEntry, index: i32) -> decode_error::Result<Option<DirList>> {
        // The own index of a directory is the one before its list.
        let is_before = self.intake.is_incremental() && self.intake.reports_items();
        self.intake.shared.lock().root = index - i32::from(is_before);
        let is_implied = top.is_top_dir && !top.has_content;
        if is_implied && self.intake.options.select.no_implied_dirs {
            self.counted.list(Kind::Dir, 0, 1);
            return Ok(None);
        }
        let mut list = DirList::default();
        list.push_entry(b".", self.entry(top)?);
        Ok(Some(list))
    }

    /// Takes the arguments that do not exist out of a list, and reports those whose directory is not in it. With
    /// incremental recursion, rsync would not notice the latter.
    fn take_missing(&self, list: &mut SortedList) -> decode_error::Result<Vec<RelPath>> {
        let select = &self.intake.options.select;
        let mut missing = list.take_missing()?;
        if missing.is_empty() {
            return Ok(missing);
        }
        let dirs = list
            .entries
            .iter()
            .filter_map(|slot| slot.entry.as_ref())
            .filter(|entry| entry.is_dir());
        let dirs: HashSet<&[u8]> = dirs.map(|entry| &entry.path[..]).collect();
        let is_absent = |dir: &RelPath| !dir.is_root() && !dirs.contains(dir.as_bytes());
        let absent: BTreeSet<_> = missing
            .iter()
            .filter_map(RelPath::parent)
            .filter(is_absent)
            .collect();
        if !select.no_inc_recursive {
            missing.retain(|path| path.parent().is_none_or(|dir| !absent.contains(&dir)));
        } else if !select.list_only {
            list.problems.extend(
                absent
                    .iter()
                    .map(|dir| Problem::absent_parent(dir.as_bytes())),
            );
        }
        if select.no_implied_dirs && !missing.is_empty() {
            list.drop_bare_leading_dirs();
        }
        Ok(missing)
    }

    /// Reads the list of the only directory before the roots are passed on. Returns whether it is empty.
    fn read_ahead(&mut self) -> decode_error::Result<bool> {
        let Ndx::List(dir) = self.indices.decode(self.input)? else {
            return Err(violation("a directory without a list"));
        };
        let list = self.list()?;
        let is_bare = list.entries.is_empty();
        self.read_ahead = Some((dir, list));
        Ok(is_bare)
    }
}
