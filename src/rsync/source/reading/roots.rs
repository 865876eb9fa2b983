//! Reads the first list, and passes on the roots: what the source arguments are.

use super::Reading;
use crate::flist::{DirList, Kind};
use crate::path::RelPath;
use crate::proto::Roots;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::number::Ndx;
use crate::report::event::Problem;
use crate::rsync::source::lists::{NumberedDir, SortedList};
use std::collections::{BTreeSet, HashSet};

impl Reading<'_, '_> {
    /// Reads the first list and passes on the roots. Returns whether there is no entry at all.
    pub(super) fn first_list(&mut self) -> decode_error::Result<bool> {
        let mut list = self.list()?;
        let is_incremental = self.intake.is_incremental();
        let is_empty = list.entries.is_empty();
        self.intake.shared.lock().has_left = is_empty && !self.intake.is_served();
        let root = list
            .entries
            .first()
            .map_or(0, |slot| slot.place.cast_signed());
        let top = list
            .entries
            .first_mut()
            .and_then(|slot| slot.entry.take_if(|entry| entry.path == b"."));
        let first = list.entries.iter().find_map(|slot| slot.entry.as_ref());
        // An entry that is there twice is not the only one.
        let is_more =
            list.entries.len() > usize::from(top.is_some()) + usize::from(first.is_some());
        let single = first.filter(|entry| !is_more && top.is_none() && !entry.is_dir());
        let single = single.map(|entry| crate::path::file_name(&entry.path).to_vec());
        let lone_dir_is_bare = match (&top, first) {
            (Some(_), None) => Some(!is_more),
            (Some(_), Some(_)) => Some(false),
            (None, Some(first)) if first.is_dir() && !is_incremental => Some(!is_more),
            // The list of its content follows at once.
            (None, Some(first)) if first.is_dir() && !is_more => Some(self.read_ahead()?),
            (None, _) => None,
        };
        let missing = self.take_missing(&mut list)?;
        let found =
            u64::from(top.is_some() || list.entries.iter().any(|slot| slot.entry.is_some()));
        let mut roots = Roots {
            found,
            single,
            lone_dir_is_bare,
            missing,
            ..Roots::default()
        };
        roots.ids = std::mem::take(&mut list.ids);
        // The receiver counts these.
        roots.problems = std::mem::take(&mut list.problems);
        if let Some(entry) = &top {
            // The own index of a directory is the one before its list.
            let is_before = is_incremental && self.intake.reports_items();
            self.intake.shared.lock().root = list.first.saturating_add(root) - i32::from(is_before);
            let is_implied = entry.is_top_dir && !entry.has_content;
            if is_implied && self.intake.options.select.no_implied_dirs {
                self.counted.list(Kind::Dir, 0, 1);
            } else {
                let mut top = DirList::default();
                top.push_entry(b".", self.entry(entry)?);
                roots.top = Some(top);
            }
        }
        let has_content = top.as_ref().is_some_and(|top| top.has_content);
        if is_incremental {
            // The top is the first of the numbered directories.
            self.dirs.extend(top.map(|_| {
                Some(NumberedDir {
                    path: RelPath::root(),
                    is_walked: false,
                    has_content,
                })
            }));
            self.intake.inbox.set_roots(roots);
            self.pass_on_listing(RelPath::root(), list, has_content)?;
        } else {
            self.intake.inbox.set_roots(roots);
            self.pass_on_tree(list, has_content)?;
        }
        Ok(is_empty)
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
