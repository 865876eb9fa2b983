//! The directories that a sender has listed, until no more of their files are requested.

use crate::error::Result;
use crate::flist::{DirList, Entry, Kind};
use crate::proto::{DirId, FileId};
use crate::session::connection::unexpected;
use crate::walk::SourceDir;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directories that were sent, until no more of their files are requested.
#[derive(Default)]
pub(super) struct KeptDirs(Mutex<HashMap<DirId, Arc<KeptDir>>>);

impl KeptDirs {
    pub(super) fn insert(&self, id: DirId, dir: KeptDir) {
        self.0.lock().insert(id, Arc::new(dir));
    }

    /// Returns the directory of a request.
    pub(super) fn requested(&self, id: DirId) -> Result<Arc<KeptDir>> {
        let found = self.0.lock().get(&id).cloned();
        found.ok_or_else(|| unexpected(&format!("file for unknown directory id {id}")))
    }

    pub(super) fn forget(&self, id: DirId) -> Option<Arc<KeptDir>> {
        self.0.lock().remove(&id)
    }
}

/// What is kept of a directory that was sent.
pub(super) struct KeptDir {
    pub(super) list: Arc<DirList>,
    /// The directories of the source that its entries come from.
    pub(super) places: Vec<Option<SourceDir>>,
    /// The name at the source of a single entry that is renamed.
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

    /// Returns the directory of the source that an entry comes from.
    pub(super) fn place_of(&self, entry: &Entry) -> Option<&SourceDir> {
        self.places.get(entry.origin as usize)?.as_ref()
    }

    /// Counts a file that is sent.
    pub(super) fn count_sent(&self, entry: &Entry) {
        let unsent_bytes = self.unsent_bytes.load(Ordering::Relaxed);
        let unsent_files = self.unsent_files.load(Ordering::Relaxed);
        let bytes_left = unsent_bytes.saturating_sub(entry.len_bytes);
        self.unsent_bytes.store(bytes_left, Ordering::Relaxed);
        self.unsent_files
            .store(unsent_files.saturating_sub(1), Ordering::Relaxed);
    }
}
