//! Answers the requests of the receiver for the files of listed directories.

use super::{Sender, SenderJob};
use crate::apply::SourceFile as SourceRemoval;
use crate::apply::file::failure::cannot_open;
use crate::error::Result;
use crate::flist::{DirList, Entry, Kind};
use crate::options::RemoveSource;
use crate::path::{self, RelPath};
use crate::proto::{DirId, FileId, Lane};
use crate::report::Tally;
use crate::report::event::Event;
use crate::session::connection::unexpected;
use crate::walk::cold_files::read_ahead;
use crate::walk::{ComparedSource, SourceDir};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};

/// What is kept of a directory that was sent until no more of its files are requested.
pub(super) struct KeptDir {
    pub(super) list: Arc<DirList>,
    pub(super) places: Vec<Option<SourceDir>>,
    pub(super) renamed_from: Option<Vec<u8>>,
    /// The bytes of its files that were not sent so far, for the live display.
    pub(super) unsent_bytes: AtomicU64,
    /// The files among them.
    pub(super) unsent_files: AtomicU64,
}

impl KeptDir {
    /// Returns the entry of a file that was requested.
    pub(super) fn regular_file(&self, file: FileId) -> Result<&Entry> {
        let entry = self.list.entries.get(file.entry as usize);
        entry
            .filter(|entry| entry.kind() == Kind::File)
            .ok_or_else(|| unexpected("request for an entry that is not a regular file"))
    }

    /// Returns the name of an entry at the source.
    pub(super) fn name_of(&self, entry: &Entry) -> &[u8] {
        self.renamed_from
            .as_deref()
            .unwrap_or(self.list.name(entry))
    }
}

impl Sender<'_> {
    /// Answers the requests on a lane, in order, until the receiver has everything.
    pub(super) fn answer(
        &self,
        lane: Lane,
        kept: &Mutex<HashMap<DirId, Arc<KeptDir>>>,
        removed: &Mutex<Tally>,
    ) -> Result<()> {
        let keep = |dir: DirId| {
            let found = kept.lock().get(&dir).cloned();
            found.ok_or_else(|| unexpected(&format!("file for unknown directory id {dir}")))
        };
        let mut open: Option<(DirId, u16, SourceDir)> = None;
        let mut files_ahead = 0_usize;
        loop {
            let Some(job) = self.peer.next(lane)? else {
                return Ok(());
            };
            match job {
                SenderJob::Forget(dir) => {
                    let forgotten = kept.lock().remove(&dir);
                    if let (Some(gauge), Some(forgotten)) = (self.run_context.gauge, forgotten) {
                        let unsent_files = forgotten.unsent_files.load(atomic::Ordering::Relaxed);
                        let unsent_bytes = forgotten.unsent_bytes.load(atomic::Ordering::Relaxed);
                        gauge.pass(unsent_files, unsent_bytes);
                        gauge.skip(unsent_files);
                    }
                }
                SenderJob::Remove(file) => self.remove(&*keep(file.dir)?, file, removed)?,
                SenderJob::SendDigest(file) => {
                    let digest = self.digest_of(&*keep(file.dir)?, file)?;
                    self.peer.send_digest(file, digest)?;
                }
                SenderJob::Send(request) => {
                    let file = request.file;
                    let kept = keep(file.dir)?;
                    let entry = kept.regular_file(file)?;
                    let is_open = open.as_ref().is_some_and(|(dir, origin, _)| {
                        (*dir, *origin) == (file.dir, entry.origin)
                    });
                    if !is_open {
                        let place = kept
                            .places
                            .get(entry.origin as usize)
                            .and_then(Option::as_ref);
                        let place = place.ok_or_else(|| {
                            unexpected("request for an entry without a source directory")
                        })?;
                        open = match place.opened() {
                            Ok(place) => Some((file.dir, entry.origin, place)),
                            Err(error) => {
                                let problem =
                                    cannot_open(&place.full(kept.list.name(entry)), &error);
                                self.unsent.lock().unsend(entry.len_bytes);
                                let sink = self.peer.content(file, lane, false);
                                self.unsent(&*sink, Some(problem))?;
                                open = None;
                                continue;
                            }
                        };
                    }
                    let (_, _, place) = open.as_ref().expect("opened above");
                    let unsent_bytes = kept.unsent_bytes.load(atomic::Ordering::Relaxed);
                    kept.unsent_bytes.store(
                        unsent_bytes.saturating_sub(entry.len_bytes),
                        atomic::Ordering::Relaxed,
                    );
                    let unsent_files = kept.unsent_files.load(atomic::Ordering::Relaxed);
                    kept.unsent_files
                        .store(unsent_files.saturating_sub(1), atomic::Ordering::Relaxed);
                    let name = kept.name_of(entry);
                    if files_ahead == 0 {
                        files_ahead = self.read_ahead(
                            self.peer.next_files(lane, file.dir),
                            &kept,
                            entry.origin,
                            place,
                        );
                    } else {
                        files_ahead -= 1;
                    }
                    self.send(&request, lane, (place, name), entry.len_bytes)?;
                }
            }
        }
    }

    /// Starts to read those files of one origin that are requested next, if they are not cached. Returns how many files
    /// were considered.
    fn read_ahead(&self, next: Vec<u32>, kept: &KeptDir, origin: u16, place: &SourceDir) -> usize {
        let entries = next
            .iter()
            .filter_map(|&at| kept.list.entries.get(at as usize));
        let files = entries.filter(|entry| entry.origin == origin).map(|entry| {
            let name = kept.name_of(entry);
            ComparedSource {
                entry,
                plain_digest: None,
                place: Some(place),
                name,
            }
        });
        read_ahead(files, &self.run_context.options.select);
        next.len()
    }

    fn remove(&self, kept: &KeptDir, file: FileId, removed: &Mutex<Tally>) -> Result<()> {
        let entry = kept
            .list
            .entries
            .get(file.entry as usize)
            .filter(|entry| !entry.is_dir());
        let entry = entry.ok_or_else(|| unexpected("removal of an unknown file"))?;
        if self.run_context.options.select.remove_source == RemoveSource::No {
            return Err(unexpected("removal without --remove-source-files"));
        }
        let Some(Some(place)) = kept.places.get(entry.origin as usize) else {
            return Ok(());
        };
        let name = kept.name_of(entry);
        let leaving = SourceRemoval {
            place: place.clone(),
            name: name.to_vec(),
            path: RelPath::parse(&path::join(place.path.as_bytes(), name)).unwrap_or_default(),
            kind: entry.kind(),
            was: (entry.len_bytes, entry.mtime),
            inode: self.opened.lock().remove(&file),
            lacks_fraction: self.run_context.options.connect.lacks_fractions(),
            followed: self.run_context.options.select.copy_links,
            is_shared: place.may_have_other_paths(&self.run_context.options.select),
        };
        if leaving.is_shared && self.facts().takes_late_reports {
            self.late_removals.add(leaving);
            return Ok(());
        }
        let mut events = Vec::new();
        let info_level = self.run_context.options.output.info.remove;
        leaving.go(info_level, None, &mut events);
        self.report_removals(events, removed)
    }

    pub(super) fn report_removals(&self, events: Vec<Event>, removed: &Mutex<Tally>) -> Result<()> {
        for event in events {
            removed.lock().event(&event);
            (self.report)(event)?;
        }
        Ok(())
    }
}
