//! Answers the requests of the receiver for the files of listed directories.

use super::content::SourceName;
use super::kept_dirs::{KeptDir, KeptDirs};
use super::{ContentRequest, Sender, SenderJob};
use crate::apply::SourceFile as SourceRemoval;
use crate::apply::file::failure::cannot_open;
use crate::error::Result;
use crate::options::RemoveSource;
use crate::path::{self, RelPath};
use crate::proto::{DirId, FileId, Lane};
use crate::report::Tally;
use crate::report::event::Event;
use crate::session::connection::unexpected;
use crate::walk::cold_files::read_ahead;
use crate::walk::{ComparedSource, SourceDir};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

/// What the thread of a lane keeps from one request to the next.
#[derive(Default)]
struct LaneState {
    /// The directory of the last file, with its number and its origin. The next file is probably in it, too.
    open: Option<((DirId, u16), SourceDir)>,
    /// How many of the next files are being read ahead already.
    files_ahead: usize,
}

impl Sender<'_> {
    /// Answers the requests on a lane, in order, until the receiver has everything.
    pub(super) fn answer(&self, lane: Lane, kept: &KeptDirs, removed: &Mutex<Tally>) -> Result<()> {
        let mut state = LaneState::default();
        while let Some(job) = self.peer.next(lane)? {
            match job {
                SenderJob::Forget(dir) => {
                    if let (Some(gauge), Some(forgotten)) =
                        (self.run_context.gauge, kept.forget(dir))
                    {
                        let unsent_files = forgotten.unsent_files.load(Ordering::Relaxed);
                        let unsent_bytes = forgotten.unsent_bytes.load(Ordering::Relaxed);
                        gauge.pass(unsent_files, unsent_bytes);
                        gauge.skip(unsent_files);
                    }
                }
                SenderJob::Remove(file) => {
                    self.remove(&*kept.requested(file.dir)?, file, removed)?;
                }
                SenderJob::RemoveLate => self.remove_late(removed)?,
                SenderJob::SendDigest(file) => {
                    let digest = self.digest_of(&*kept.requested(file.dir)?, file)?;
                    self.peer.send_digest(file, digest)?;
                }
                SenderJob::Send(request) => {
                    let dir = kept.requested(request.file.dir)?;
                    self.send_requested(&request, lane, &dir, &mut state)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a file of a directory that is kept, or the reason why its directory cannot be opened.
    fn send_requested(
        &self,
        request: &ContentRequest,
        lane: Lane,
        kept: &KeptDir,
        state: &mut LaneState,
    ) -> Result<()> {
        let file = request.file;
        let entry = kept.regular_file(file)?;
        let dir_and_origin = (file.dir, entry.origin);
        let place = match state.open.take() {
            Some((opened, place)) if opened == dir_and_origin => place,
            Some(_) | None => {
                let Some(place) = kept.place_of(entry) else {
                    return Err(unexpected(
                        "request for an entry without a source directory",
                    ));
                };
                match place.opened() {
                    Ok(place) => place,
                    Err(error) => {
                        let full = place.full(kept.list.name(entry));
                        self.unsent.lock().unsend(entry.len_bytes);
                        let sink = self.peer.content(file, lane, false);
                        return self.unsent(&*sink, Some(cannot_open(&full, &error)));
                    }
                }
            }
        };
        kept.count_sent(entry);
        if state.files_ahead == 0 {
            let next = self.peer.next_files(lane, file.dir);
            state.files_ahead = self.read_ahead(next, kept, entry.origin, &place);
        } else {
            state.files_ahead -= 1;
        }
        let source = SourceName {
            place: &place,
            name: kept.name_of(entry),
        };
        self.send(request, lane, source, entry.len_bytes)?;
        state.open = Some((dir_and_origin, place));
        Ok(())
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

    /// Removes a file that the receiver has (`--remove-source-files`), now or at the end of the run.
    fn remove(&self, kept: &KeptDir, file: FileId, removed: &Mutex<Tally>) -> Result<()> {
        let entry = match kept.list.entries.get(file.entry as usize) {
            Some(entry) if !entry.is_dir() => entry,
            Some(_) | None => return Err(unexpected("removal of an unknown file")),
        };
        if self.run_context.options.select.remove_source == RemoveSource::No {
            return Err(unexpected("removal without --remove-source-files"));
        }
        let Some(place) = kept.place_of(entry) else {
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
        let leaving = if leaving.is_shared {
            self.late_removals.add(leaving)
        } else {
            Some(leaving)
        };
        let Some(leaving) = leaving else {
            return Ok(());
        };
        let mut events = Vec::new();
        let info_level = self.run_context.options.output.info.remove;
        leaving.go(info_level, None, &mut events);
        self.report_removals(events, removed)
    }

    /// Removes the files that may have several paths in the transfer, now that everything has been read.
    pub(super) fn remove_late(&self, removed: &Mutex<Tally>) -> Result<()> {
        let mut events = Vec::new();
        let info_level = self.run_context.options.output.info.remove;
        self.late_removals.go(info_level, &mut events);
        self.report_removals(events, removed)
    }

    /// Reports the removal of files, and counts them in `removed`.
    fn report_removals(&self, events: Vec<Event>, removed: &Mutex<Tally>) -> Result<()> {
        for event in events {
            removed.lock().event(&event);
            (self.report)(event)?;
        }
        Ok(())
    }
}
