//! Walks the source and sends the listings that differ from the receiver's.

use super::inbox::ReportsToSkip;
use super::roots::SentNames;
use super::{BasisFate, ContentRequest, KeptDir, Sender};
use crate::apply::file::failure::cannot_open;
use crate::digest;
use crate::error::Result;
use crate::flist::{DirList, Entry, Kind};
use crate::path::RelPath;
use crate::proto::{Basis, DestDirState, DirId, DirListing, FileId, Lane};
use crate::report::Tally;
use crate::session::connection::unexpected;
use crate::session::dir_digest::Children;
use crate::session::source_prefetch::{ScannedSource, SourcePrefetch};
use crate::walk::cold_files::{COLD_FILES_MAX, read_ahead};
use crate::walk::{ComparedSource, ListedDir, OPEN_PLACES_MAX, SourceDir, TaskId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A directory whose subdirectories are being walked.
struct SenderFrame {
    /// Its subdirectories: paths, entries, and task numbers.
    subs: std::vec::IntoIter<(RelPath, Entry, TaskId)>,
    was_sent: bool,
    /// What the receiver has in its place; `None`: the receiver does not send this.
    at_receiver: Option<DestDirState>,
    /// The subdirectories that the receiver has.
    children: Children<u32>,
}

/// Sends listings.
pub(super) struct ListingSender<'t, 'a, 'l> {
    pub(super) sender: &'t Sender<'a>,
    pub(super) prefetch: &'t SourcePrefetch<'l>,
    pub(super) kept: &'t Mutex<HashMap<DirId, Arc<KeptDir>>>,
    pub(super) named: SentNames<'t>,
    /// The directories whose digests the receiver sends, with their position.
    pub(super) whole: HashMap<RelPath, usize>,
    /// How many of them were already reached.
    pub(super) whole_passed: usize,
    /// How many directories that the sender lacks the receiver describes before the next relevant one.
    pub(super) to_skip: ReportsToSkip,
    pub(super) next_id: DirId,
    pub(super) unrequested: bool,
    pub(super) keeps: bool,
}

impl ListingSender<'_, '_, '_> {
    /// Walks the whole tree.
    pub(super) fn send_tree(&mut self, root: TaskId, counted: &mut Tally) -> Result<()> {
        let is_other = |guess: &RelPath| !(self.whole.len() == 1 && self.whole.contains_key(guess));
        let reports = self.sender.reports.as_ref();
        let guess = reports.and_then(|reports| reports.guess.as_ref());
        if !self.whole.is_empty() && guess.is_some_and(is_other) {
            self.to_skip.0 += 1;
        }
        let at_receiver = self.receiver_dir_at(&RelPath::root())?;
        let mut stack = vec![self.visit(root, at_receiver, None, true, counted)?];
        while let Some(frame) = stack.last_mut() {
            self.sender.go_on()?;
            let Some((path, entry, task_id)) = frame.subs.next() else {
                self.to_skip.0 += frame.children.left();
                stack.pop();
                continue;
            };
            let at_receiver = match &frame.at_receiver {
                None => self.receiver_dir_at(&path)?,
                Some(DestDirState::Absent) => Some(DestDirState::Absent),
                Some(DestDirState::Dir { .. } | DestDirState::Large(_)) => {
                    let name = digest::keyed_name(&self.sender.checksums.key, path.name());
                    match frame.children.pass_to(name) {
                        Some(ahead) => {
                            self.to_skip.0 += ahead;
                            Some(self.next_that_matters()?)
                        }
                        None => Some(DestDirState::Absent),
                    }
                }
            };
            let was_sent = frame.was_sent;
            let unsent = if was_sent { None } else { Some(entry) };
            let frame = self.visit(task_id, at_receiver, unsent, was_sent, counted)?;
            stack.push(frame);
        }
        self.to_skip.0 += self.whole.len() - self.whole_passed;
        Ok(())
    }

    /// Returns what the receiver has in place of a directory that is named by an argument.
    fn receiver_dir_at(&mut self, path: &RelPath) -> Result<Option<DestDirState>> {
        let Some(&turn) = self.whole.get(path) else {
            return Ok(None);
        };
        // The receiver first describes the directories in between, which no longer exist here.
        self.to_skip.0 += turn - self.whole_passed;
        self.whole_passed = turn + 1;
        self.next_that_matters().map(Some)
    }

    fn next_digest(&self) -> Result<DestDirState> {
        match &self.sender.reports {
            Some(reports) => reports.next(),
            None => Err(unexpected("digests of a peer that sends none")),
        }
    }

    /// Skips what the receiver sends about directories that the sender lacks and all below them, and returns the next
    /// item.
    fn next_that_matters(&mut self) -> Result<DestDirState> {
        while !self.to_skip.is_zero() {
            let seen = self.next_digest()?;
            self.to_skip.count_report(&seen);
        }
        self.next_digest()
    }

    /// Reads further items about a large directory until its digest arrives, or until it is known to have more entries
    /// than `len`. Returns `true` in that case: its digest is not needed then, and the following items only matter for
    /// its subdirectories.
    fn receive_large_reports(
        &self,
        at_receiver: &mut Option<DestDirState>,
        len: u64,
    ) -> Result<bool> {
        while let Some(DestDirState::Large(count)) = *at_receiver {
            if count > len {
                return Ok(true);
            }
            *at_receiver = Some(self.next_digest()?);
        }
        Ok(false)
    }

    /// Sends the listing of a directory if it differs. `itself` is its own entry if its parent was not sent.
    fn visit(
        &mut self,
        task_id: TaskId,
        mut at_receiver: Option<DestDirState>,
        itself: Option<Entry>,
        parent_was_sent: bool,
        counted: &mut Tally,
    ) -> Result<SenderFrame> {
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
        let has_more =
            self.receive_large_reports(&mut at_receiver, listed.listing.list.len() as u64)?;
        let is_same = match &at_receiver {
            Some(DestDirState::Dir {
                digest: Some(theirs),
                ..
            }) => digest.as_ref() == Some(theirs),
            _ => false,
        };
        let is_absent = at_receiver == Some(DestDirState::Absent);
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
        }
        if !is_same {
            debug_assert!(parent_was_sent || itself.is_some());
            self.send_listing(listed, itself, is_absent)?;
        }
        if has_more && subs.is_empty() {
            self.to_skip.0 += 1;
        } else {
            self.receive_large_reports(&mut at_receiver, u64::MAX)?;
        }
        let children = match &mut at_receiver {
            Some(DestDirState::Dir { children, .. }) => std::mem::take(children),
            Some(DestDirState::Absent | DestDirState::Large(_)) | None => Vec::new(),
        };
        Ok(SenderFrame {
            subs: subs.into_iter(),
            was_sent: !is_same,
            at_receiver,
            children: Children::new(children),
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
            listing,
            places: open,
            ..
        } = listed;
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
        let with_data = is_absent && self.unrequested;
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
                    .send(&request, Lane::Early, (place, name), entry.len_bytes)?;
                continue;
            }
            let unsent = cannot_open(name, &io::ErrorKind::NotFound.into());
            self.sender.unsent.lock().unsend(entry.len_bytes);
            let sink = self.sender.peer.content(file, Lane::Early, false);
            sink.refuse(Some(unsent))?;
        }
        Ok(())
    }
}
