//! Walks the source and sends the listings that differ from the receiver's.

use super::content::SourceName;
use super::dest_dirs::{DestDirsWalk, DirComparison};
use super::kept_dirs::{KeptDir, KeptDirs};
use super::roots::SentNames;
use super::totals::TotalsSender;
use super::{BasisFate, ContentRequest, Sender};
use crate::apply::file::failure::cannot_open;
use crate::digest::PlainDigest;
use crate::error::Result;
use crate::flist::{DirList, Entry, Kind};
use crate::path::RelPath;
use crate::proto::{Basis, ContentDigest, DirId, DirListing, FileId, Lane};
use crate::report::Tally;
use crate::report::progress::EntryCounts;
use crate::session::source_prefetch::{ScannedSource, SourcePrefetch};
use crate::walk::cold_files::{COLD_FILES_MAX, read_ahead};
use crate::walk::{ComparedSource, ListedDir, OPEN_PLACES_MAX, SourceDir, TaskId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Gives the files of a list the digests that both ends compare. Only plain ones are kept for unchanged directories, whose
/// lists are not sent.
fn make_comparable(list: &mut Arc<DirList>, of_plain: &dyn Fn(&PlainDigest) -> ContentDigest) {
    for at in 0..list.len() {
        let plain = list.plain_digest(&list.entries[at]);
        if let Some(digest) = plain.map(of_plain) {
            Arc::make_mut(list).entries[at].extra_mut().digest = Some(digest);
        }
    }
}

/// A directory whose subdirectories are being walked.
struct SenderFrame {
    /// Its subdirectories: paths, entries, and task numbers.
    subs: std::vec::IntoIter<(RelPath, Entry, TaskId)>,
    was_sent: bool,
}

/// Sends listings.
pub(super) struct ListingSender<'t, 'a, 'l> {
    pub(super) sender: &'t Sender<'a>,
    pub(super) prefetch: &'t SourcePrefetch<'l>,
    pub(super) kept: &'t KeptDirs,
    pub(super) totals: &'t TotalsSender,
    pub(super) named: SentNames<'t>,
    /// What the destination already has; `None`: that is not known, so everything is listed.
    pub(super) dest_dirs: Option<Box<dyn DestDirsWalk + 't>>,
    /// The number of the next listing.
    pub(super) next_id: DirId,
    /// Whether directories are kept for the requests of the receiver.
    pub(super) keeps: bool,
}

impl ListingSender<'_, '_, '_> {
    /// Walks the whole tree.
    pub(super) fn send_tree(&mut self, root: TaskId, counted: &mut Tally) -> Result<()> {
        let mut stack = vec![self.visit(root, &RelPath::root(), None, true, counted)?];
        while let Some(frame) = stack.last_mut() {
            self.sender.go_on()?;
            let Some((path, entry, task_id)) = frame.subs.next() else {
                if let Some(dest_dirs) = &mut self.dest_dirs {
                    dest_dirs.leave();
                }
                stack.pop();
                continue;
            };
            let was_sent = frame.was_sent;
            let unsent = if was_sent { None } else { Some(entry) };
            let frame = self.visit(task_id, &path, unsent, was_sent, counted)?;
            stack.push(frame);
        }
        Ok(())
    }

    /// Sends the listing of a directory if it differs. `itself` is its own entry if its parent was not sent.
    fn visit(
        &mut self,
        task_id: TaskId,
        path: &RelPath,
        itself: Option<Entry>,
        parent_was_sent: bool,
        counted: &mut Tally,
    ) -> Result<SenderFrame> {
        if let Some(dest_dirs) = &mut self.dest_dirs {
            dest_dirs.enter(path)?;
        }
        let ScannedSource {
            mut listed,
            digest,
            task_ids,
            ..
        } = self.prefetch.take(task_id);
        counted.merge(&listed.tally);
        if let Some(gauge) = self.sender.run_context.gauge {
            gauge.list(self.prefetch.count_so_far());
        }
        if let Some(error) = listed.fatal.take() {
            return Err(error);
        }
        if !self.sender.facts().takes_problems {
            let DirListing {
                problems, notes, ..
            } = &mut listed.listing;
            self.sender
                .report_all(std::mem::take(problems), std::mem::take(notes), counted)?;
        }
        let list = &listed.listing.list;
        let at_dest = match &mut self.dest_dirs {
            Some(dest_dirs) => dest_dirs.compare(list.len() as u64, digest.as_ref())?,
            None => DirComparison::Differs,
        };
        let is_same = at_dest == DirComparison::Same;
        let mut subs = Vec::new();
        for &(at, task_id) in &task_ids {
            let entry = &list.entries[at as usize];
            let sub_path = listed.listing.path.join(list.name(entry));
            subs.push((sub_path, entry.clone(), task_id));
        }
        self.show_listed(&listed.tally, is_same);
        if is_same {
            self.totals.pass(EntryCounts {
                entries: listed.tally.listed.total(),
                files: listed.tally.listed.files,
                bytes: listed.tally.total_bytes,
            });
        } else {
            debug_assert!(parent_was_sent || itself.is_some());
            self.send_listing(listed, itself, at_dest == DirComparison::Absent)?;
        }
        if let Some(dest_dirs) = &mut self.dest_dirs {
            dest_dirs.descend(!subs.is_empty())?;
        }
        Ok(SenderFrame {
            subs: subs.into_iter(),
            was_sent: !is_same,
        })
    }

    /// Counts the entries of a directory for the live display. `is_same`: the destination has them already.
    fn show_listed(&self, tally: &Tally, is_same: bool) {
        let Some(gauge) = self.sender.run_context.gauge else {
            return;
        };
        // Files in a directory that is kept count when they are sent, or when it is forgotten.
        let counts_later = !is_same && self.keeps;
        let entries = tally.listed.total();
        if counts_later {
            gauge.pass(entries.saturating_sub(tally.listed.files), 0);
        } else {
            gauge.pass(entries, tally.total_bytes);
        }
        if is_same {
            gauge.skip(tally.listed.files);
        }
    }

    /// Sends a listing. Behind it, a receiver that does not have the directory gets the contents of the files.
    fn send_listing(
        &mut self,
        listed: ListedDir,
        itself: Option<Entry>,
        is_absent: bool,
    ) -> Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        let ListedDir {
            mut listing,
            places,
            ..
        } = listed;
        if let Some(of_plain) = self.sender.checksums.compared_by.of_plain() {
            make_comparable(&mut listing.list, &of_plain);
        }
        let mut ids = Vec::new();
        let mut own = DirList::default();
        if let Some(entry) = itself {
            self.named.name(&entry, &mut ids);
            own.push_entry(b".", entry);
        }
        for entry in &listing.list.entries {
            self.named.name(entry, &mut ids);
        }
        let mut shown = Vec::new();
        if self.sender.wants.paths {
            for place in &places {
                shown.push(place.as_ref().map(|p| p.shown(b"")).unwrap_or_default());
            }
        }
        let with_data = is_absent && self.sender.facts().takes_unrequested;
        if self.keeps {
            let kept = self.kept_dir(&listing, &places, with_data);
            self.kept.insert(id, kept);
        }

        let list = listing.list.clone();
        let listing = DirListing {
            id,
            itself: own,
            with_data,
            ids,
            shown,
            ..listing
        };
        self.sender.peer.send_listing(listing)?;
        if with_data {
            self.send_contents(id, &list, places)?;
        }
        Ok(())
    }

    /// Returns what the sender keeps of a directory for the requests of the receiver. `with_data`: the contents of its
    /// files follow the listing.
    fn kept_dir(
        &self,
        listing: &DirListing,
        places: &[Option<SourceDir>],
        with_data: bool,
    ) -> KeptDir {
        let mut unsent_bytes = 0;
        let mut unsent_files = 0;
        if self.sender.run_context.gauge.is_some() {
            for entry in &listing.list.entries {
                match entry.kind() {
                    // Files that follow the listing count as they are sent.
                    Kind::File if with_data => {}
                    Kind::File => {
                        unsent_bytes += entry.len_bytes;
                        unsent_files += 1;
                    }
                    Kind::Symlink => unsent_bytes += entry.len_bytes,
                    Kind::Dir | Kind::Device | Kind::Special => {}
                }
            }
        }
        KeptDir {
            list: listing.list.clone(),
            places: places
                .iter()
                .map(|place| place.as_ref().map(SourceDir::closed))
                .collect(),
            renamed_from: listing.renamed_from.clone(),
            unsent_bytes: AtomicU64::new(unsent_bytes),
            unsent_files: AtomicU64::new(unsent_files),
        }
    }

    /// Sends the contents of the files of a directory without a request.
    fn send_contents(
        &self,
        dir: DirId,
        list: &DirList,
        mut places: Vec<Option<SourceDir>>,
    ) -> Result<()> {
        if places.len() <= OPEN_PLACES_MAX {
            for place in places.iter_mut().flatten() {
                // A directory that cannot be opened is reported for each of its files.
                if let Ok(opened) = place.opened() {
                    *place = opened;
                }
            }
        }
        let place_of = |entry: &Entry| places.get(entry.origin as usize).and_then(Option::as_ref);
        let mut read_ahead_end = 0;
        for (at, entry) in list.entries.iter().enumerate() {
            if entry.kind() != Kind::File {
                continue;
            }
            self.sender.go_on()?;
            if at >= read_ahead_end {
                let next = list.entries[at..].iter().take(COLD_FILES_MAX);
                read_ahead_end = at + next.len();
                let next = next.map(|entry| ComparedSource {
                    entry,
                    plain_digest: None,
                    place: place_of(entry),
                    name: list.name(entry),
                });
                read_ahead(next, &self.sender.run_context.options.select);
            }
            let file = FileId {
                dir,
                entry: at as u32,
            };
            let name = list.name(entry);
            let Some(place) = place_of(entry) else {
                // The receiver waits for every file, also for those that cannot be read.
                let unsent = cannot_open(name, &io::ErrorKind::NotFound.into());
                self.sender.unsent.lock().unsend(entry.len_bytes);
                let sink = self.sender.peer.content(file, Lane::Unrequested, false);
                sink.refuse(Some(unsent))?;
                continue;
            };
            let source = SourceName { place, name };
            let request = ContentRequest {
                file,
                basis: Basis::None,
                fate: BasisFate::Kept,
            };
            self.sender
                .send(&request, Lane::Unrequested, source, entry.len_bytes)?;
        }
        Ok(())
    }
}
