//! Passes on lists as the listings of directories that the receiver expects.

use super::Reading;
use crate::flist::{Entry, Kind};
use crate::fs::charset;
use crate::options::Recurse;
use crate::path::RelPath;
use crate::plan;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::file_list::FileEntry;
use crate::proto::{DirId, SubdirFlags};
use crate::rsync::attributes::{AclOf, acl_from_wire, xattrs_from_wire};
use crate::rsync::source::lists::{ListSlot, NumberedDir, PendingListing, SortedList, entry_of};
use crate::rsync::source::{ListingIndex, ReceivedList};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Reading<'_, '_> {
    /// Reads the list of a numbered directory.
    pub(super) fn list_of(&mut self, dir: i32) -> decode_error::Result<()> {
        let found = usize::try_from(dir)
            .ok()
            .and_then(|at| self.dirs.get_mut(at)?.take());
        let found = found.ok_or_else(|| violation(format!("list of unknown directory {dir}")))?;
        let NumberedDir {
            path,
            is_walked,
            has_content,
        } = found;
        let list = match self.read_ahead.take() {
            Some((_, list)) => list,
            None => self.list()?,
        };
        if let Some(served) = &mut self.intake.shared.lock().served {
            served.number(dir, list.first);
        }
        // A thread may wait for that number.
        self.intake.inbox.wake();
        if !is_walked {
            if list.entries.iter().any(|slot| slot.entry.is_some()) {
                return Err(violation(format!("unrequested content of directory {dir}")));
            }
            self.dirs
                .extend(list.lost_dirs.iter().map(|_| Some(NumberedDir::left_out())));
            self.add_list(list.first, true);
            return Ok(());
        }
        self.pass_on_listing(path, list, has_content)
    }

    /// Passes on a list that is the content of one directory.
    pub(super) fn pass_on_listing(
        &mut self,
        path: RelPath,
        list: SortedList,
        has_content: bool,
    ) -> decode_error::Result<()> {
        let SortedList {
            first,
            entries,
            dropped_dirs,
            lost_dirs,
            named_dirs,
            ids,
            problems,
        } = list;
        let mut listing = PendingListing::new(path, first, has_content);
        // The directories of the list by their places; `None`: it is not walked.
        let mut dirs: Vec<_> = lost_dirs.into_iter().map(|place| (place, None)).collect();
        listing.message.ids = ids;
        for problem in &problems {
            self.counted.problem(problem.weight);
        }
        listing.message.problems = problems;
        for ListSlot { place, entry } in entries {
            let Some(entry) = entry else {
                if dropped_dirs.contains(&place) {
                    dirs.push((place, None));
                }
                continue;
            };
            let (parent, name) = crate::path::split_parent(&entry.path);
            if parent != listing.message.path.as_bytes() || entry.mode == 0 {
                return Err(violation("an entry outside of its directory"));
            }
            let subdir = self.subdir_of(&entry, name, &named_dirs)?;
            let converted = self.entry(&entry)?;
            listing.push(
                place,
                name,
                converted,
                subdir.as_ref().map(|(flags, _)| *flags),
            );
            dirs.extend(subdir.map(|(_, dir)| (place, Some(dir))));
        }
        if charset::of_names().is_some() {
            dirs.sort_by_key(|(place, _)| *place);
        }
        let mut numbers = Vec::new();
        for (_, dir) in dirs {
            numbers.extend(dir.iter().map(|_| self.dirs.len() as u32));
            self.dirs
                .push(Some(dir.unwrap_or_else(NumberedDir::left_out)));
        }
        if self.intake.reports_items() {
            let first_dir = listing.message.list.len() - numbers.len();
            listing.dirs = (first_dir as u32, numbers);
        }
        let list = self.add_list(first, false);
        if charset::of_names().is_some() {
            // The receiver expects the directories in the order of their converted names. Only a batch file comes here,
            // whose lists precede all content.
            self.held.push((listing, list));
            return Ok(());
        }
        self.deliver(listing, Some(list))
    }

    /// Counts one more list. Returns its number.
    fn add_list(&self, first: i32, is_done: bool) -> usize {
        let mut shared = self.intake.shared.lock();
        shared.lists.push(ReceivedList { first, is_done });
        shared.next_index = self.next_index;
        shared.lists.len() - 1
    }

    /// Passes on a list that contains the whole tree, as one listing for each directory.
    pub(super) fn pass_on_tree(
        &mut self,
        list: SortedList,
        has_content: bool,
    ) -> decode_error::Result<()> {
        let SortedList {
            first,
            entries,
            named_dirs,
            ..
        } = list;
        self.add_list(first, false);
        let mut listings = vec![PendingListing::new(RelPath::root(), first, has_content)];
        let mut at: HashMap<RelPath, usize> = HashMap::from([(RelPath::root(), 0)]);
        for ListSlot { place, entry } in entries {
            let Some(entry) = entry else { continue };
            let (parent, name) = crate::path::split_parent(&entry.path);
            let parent = RelPath::parse(parent)
                .ok()
                .and_then(|parent| at.get(&parent).copied());
            let parent = parent.ok_or_else(|| violation("an entry without its directory"))?;
            let subdir = self.subdir_of(&entry, name, &named_dirs)?;
            let converted = self.entry(&entry)?;
            listings[parent].push(
                place,
                name,
                converted,
                subdir.as_ref().map(|(flags, _)| *flags),
            );
            if let Some((_, dir)) = subdir.filter(|(_, dir)| dir.is_walked) {
                at.insert(dir.path.clone(), listings.len());
                listings.push(PendingListing::new(dir.path, first, dir.has_content));
            }
        }
        for listing in listings {
            self.deliver(listing, None)?;
        }
        Ok(())
    }

    /// Returns what a listing says about a subdirectory, and its place among the numbered directories.
    fn subdir_of(
        &self,
        entry: &FileEntry,
        name: &[u8],
        named_dirs: &HashSet<Vec<u8>>,
    ) -> decode_error::Result<Option<(SubdirFlags, NumberedDir)>> {
        if name.is_empty() || name == b".." || name == b"." {
            return Err(violation("invalid name of an entry"));
        }
        let path =
            RelPath::parse(&entry.path).map_err(|_| violation("invalid path of an entry"))?;
        if !entry.is_dir() {
            return Ok(None);
        }
        let is_implied = entry.is_top_dir && !entry.has_content;
        let recurses = self.intake.options.select.recurse != Recurse::No
            || self.intake.options.select.relative;
        // A directory without content may have entries in a whole list. At the server, its item needs the index of its
        // own list.
        let may_have_entries = !self.intake.is_incremental() || self.intake.reports_items();
        let is_walked = (entry.has_content || is_implied || may_have_entries) && recurses;
        let is_implied = is_implied && !named_dirs.contains(&entry.path);
        Ok(Some((
            SubdirFlags {
                is_walked,
                is_implied,
                is_named: !entry.has_content,
                is_repeated: entry.is_repeated,
            },
            NumberedDir {
                path,
                is_walked,
                has_content: entry.has_content,
            },
        )))
    }

    /// Returns an entry as the receiver expects it from a sender, which applies `--chmod`.
    pub(super) fn entry(&mut self, entry: &FileEntry) -> decode_error::Result<Entry> {
        let mut converted = entry_of(entry);
        if let Some(acl) = &entry.access_acl {
            let access = acl_from_wire(acl, AclOf::Entry(entry.mode))?;
            let default = entry
                .default_acl
                .as_ref()
                .map(|acl| acl_from_wire(acl, AclOf::NewEntries));
            let default = default.transpose()?.unwrap_or_default();
            if !(access.is_empty() && default.is_empty()) {
                let extra = converted.extra_mut();
                (extra.acl, extra.default_acl) = (Some(access), Some(default));
            }
        }
        if let Some(shared) = entry
            .xattrs
            .as_ref()
            .filter(|shared| !shared.list.is_empty())
        {
            let known = self.xattrs.entry(shared.number).or_insert_with(|| {
                let (xattrs, has_abbreviated) = xattrs_from_wire(shared);
                (Arc::new(xattrs), has_abbreviated)
            });
            let extra = converted.extra_mut();
            (extra.xattrs, extra.has_abbreviated) = (Some(known.0.clone()), known.1);
        }
        let chmod = &self.intake.options.preserve.chmod;
        if !chmod.is_empty() && entry.kind() != Kind::Symlink {
            converted.mode = plan::chmod::apply(converted.mode, converted.is_dir(), chmod);
        }
        Ok(converted)
    }

    pub(super) fn deliver(
        &self,
        mut listing: PendingListing,
        list: Option<usize>,
    ) -> decode_error::Result<()> {
        let mut shared = self.intake.shared.lock();
        listing.message.id = shared.listings.len() as DirId;
        let has_dirs = shared.served.is_some() && !self.intake.is_incremental();
        let places = if listing.has_gaps(has_dirs) {
            Some(listing.places)
        } else {
            None
        };
        shared.listings.push(ListingIndex {
            first: listing.first,
            places,
            list,
            dirs: listing.dirs,
        });
        drop(shared);
        // The reader must not wait for the generator, which may wait for content that comes later.
        let listing_fits = self.intake.inbox.add_listing(
            Box::new(listing.message),
            listing.cost,
            self.max_alloc_bytes(),
        );
        if listing_fits {
            Ok(())
        } else {
            Err(self.lists_too_long())
        }
    }
}
