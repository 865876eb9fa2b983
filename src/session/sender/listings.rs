//! Walks the source and sends the listings that differ from the receiver's.

use super::dest_dirs::{DestDirsWalk, DirComparison};
use super::roots::SentNames;
use super::totals::TotalsSender;
use super::{BasisFate, ContentRequest, KeptDir, Sender};
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
use parking_lot::Mutex;
use std::collections::HashMap;
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
    pub(super) kept: &'t Mutex<HashMap<DirId, Arc<KeptDir>>>,
    pub(super) totals: &'t TotalsSender,
    pub(super) named: SentNames<'t>,
    /// What the destination already has; `None`: that is not known, so everything is listed.
    pub(super) dest_dirs: Option<Box<dyn DestDirsWalk + 't>>,
    pub(super) next_id: DirId,
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
        let entries = listed.listing.list.len() as u64;
        let at_dest = match &mut self.dest_dirs {
            Some(dest_dirs) => dest_dirs.compare(entries, digest.as_ref())?,
            None => DirComparison::Differs,
        };
        let is_same = at_dest == DirComparison::Same;
        let is_absent = at_dest == DirComparison::Absent;
        let subs: Vec<_> = task_ids
            .iter()
            .map(|&(at, task_id)| {
                let entry = &listed.listing.list.entries[at as usize];
                (
                    listed.listing.path.join(listed.listing.list.name(entry)),
                    entry.clone(),
                    task_id,
                )
            })
            .collect();
        if let Some(gauge) = self.sender.run_context.gauge {
            // Files in a directory that is kept count when they are sent, or when it is forgotten.
            let counts_later = !is_same && self.keeps;
            let tally = &listed.tally;
            if counts_later {
                gauge.pass(tally.listed.total().saturating_sub(tally.listed.files), 0);
            } else {
                gauge.pass(tally.listed.total(), tally.total_bytes);
            }
            if is_same {
                gauge.skip(tally.listed.files);
            }
        }
        if is_same {
            self.totals.pass(EntryCounts {
                entries: listed.tally.listed.total(),
                files: listed.tally.listed.files,
                bytes: listed.tally.total_bytes,
            });
        } else {
            debug_assert!(parent_was_sent || itself.is_some());
            self.send_listing(listed, itself, is_absent)?;
        }
        if let Some(dest_dirs) = &mut self.dest_dirs {
            dest_dirs.descend(!subs.is_empty())?;
        }
        Ok(SenderFrame {
            subs: subs.into_iter(),
            was_sent: !is_same,
        })
    }

    /// Sends a listing.
    fn send_listing(
        &mut self,
        listed: ListedDir,
        itself: Option<Entry>,
        is_absent: bool,
    ) -> Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        let mut ids = Vec::new();
        let mut own = DirList::default();
        if let Some(entry) = itself {
            self.named.name(&entry, &mut ids);
            own.push_entry(b".", entry);
        }
        let ListedDir {
            mut listing,
            places: open,
            ..
        } = listed;
        if let Some(of_plain) = self.sender.checksums.compared_by.of_plain() {
            make_comparable(&mut listing.list, &of_plain);
        }
        let list = &listing.list;
        for entry in &list.entries {
            self.named.name(entry, &mut ids);
        }
        let shown = if self.sender.wants.paths {
            open.iter()
                .map(|place| place.as_ref().map(|p| p.shown(b"")).unwrap_or_default())
                .collect()
        } else {
            Vec::new()
        };
        let with_data = is_absent && self.sender.facts().takes_unrequested;
        let files = with_data.then(|| list.clone());
        let is_few = open.len() <= OPEN_PLACES_MAX;
        if self.keeps {
            let places = open
                .iter()
                .map(|place| place.as_ref().map(SourceDir::closed))
                .collect();
            let renamed_from = listing.renamed_from.clone();
            // The files that follow the listing count as they are sent.
            let counts = |entry: &&Entry| match entry.kind() {
                Kind::File => !with_data,
                Kind::Symlink => true,
                Kind::Dir | Kind::Device | Kind::Special => false,
            };
            let lengths = || {
                list.entries
                    .iter()
                    .filter(counts)
                    .map(|entry| entry.len_bytes)
            };
            let unsent_bytes =
                AtomicU64::new(self.sender.run_context.gauge.map_or(0, |_| lengths().sum()));
            let is_file = |entry: &&Entry| entry.kind() == Kind::File;
            let unsent_files = match self.sender.run_context.gauge {
                Some(_) if !with_data => list.entries.iter().filter(is_file).count() as u64,
                Some(_) | None => 0,
            };
            let kept = KeptDir {
                list: list.clone(),
                places,
                renamed_from,
                unsent_bytes,
                unsent_files: AtomicU64::new(unsent_files),
            };
            self.kept.lock().insert(id, Arc::new(kept));
        }
        let listing = DirListing {
            id,
            itself: own,
            with_data,
            ids,
            shown,
            ..listing
        };
        self.sender.peer.send_listing(listing)?;
        let Some(files) = files else { return Ok(()) };
        // What cannot be opened is reported for each of its files.
        let reopened = |place: SourceDir| {
            if is_few {
                place.opened().unwrap_or(place)
            } else {
                place
            }
        };
        let open: Vec<_> = open.into_iter().map(|place| place.map(reopened)).collect();
        let mut ahead = 0;
        for (at, entry) in files
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.kind() == Kind::File)
        {
            self.sender.go_on()?;
            if at >= ahead {
                let next = files.entries[at..].iter().take(COLD_FILES_MAX);
                ahead = at + next.len();
                let next = next.map(|entry| {
                    let place = open.get(entry.origin as usize).and_then(Option::as_ref);
                    ComparedSource {
                        entry,
                        plain_digest: None,
                        place,
                        name: files.name(entry),
                    }
                });
                read_ahead(next, &self.sender.run_context.options.select);
            }
            let file = FileId {
                dir: id,
                entry: at as u32,
            };
            // The receiver waits for every file, also for those that cannot be read.
            let name = files.name(entry);
            if let Some(Some(place)) = open.get(entry.origin as usize) {
                let request = ContentRequest {
                    file,
                    basis: Basis::None,
                    fate: BasisFate::Kept,
                };
                self.sender
                    .send(&request, Lane::Unrequested, (place, name), entry.len_bytes)?;
                continue;
            }
            let unsent = cannot_open(name, &io::ErrorKind::NotFound.into());
            self.sender.unsent.lock().unsend(entry.len_bytes);
            let sink = self.sender.peer.content(file, Lane::Unrequested, false);
            sink.refuse(Some(unsent))?;
        }
        Ok(())
    }
}
