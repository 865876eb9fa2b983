//! The files that a run with `--checksum-cache` has written, linked or changed. Their digests are computed at its end, so that
//! the next run need not read them.

use crate::checksum_cache::{CacheInUse, DigestState, SETTLE_TIME, WantedFile};
use crate::flist::Kind;
use crate::fs::root::Root;
use crate::fs::sys;
use crate::path::RelPath;
use crate::plan::Action;
use crate::work::parallel;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many files may wait. If there are more, these are digested at once, while they are written: about 60 bytes each.
const WAITING_MAX: usize = 50_000;

/// The cost of opening a file, in bytes that are read in the same time.
const FILE_COST: u64 = 16 << 10;

/// Files of this cost take about as long to read as the time after which they can have digests.
const WORTH_WAITING: u64 = 32 << 20;

/// How many files of a directory one thread digests before it takes others.
const SHARE: usize = 64;

/// The files that wait for their digests.
pub struct ChangedFiles<'a> {
    /// `None`: the run keeps no digests.
    cache: Option<CacheInUse<'a>>,
    /// The destination's top.
    root: Option<&'a Root>,
    stop: &'a AtomicBool,
    spares_atime: bool,
    threads: usize,
    waiting: Mutex<WaitingFiles>,
}

/// The names of files, by their directories.
#[derive(Default)]
struct WaitingFiles {
    names: BTreeMap<RelPath, Vec<Box<[u8]>>>,
    count: usize,
}

impl<'a> ChangedFiles<'a> {
    /// Creates the list, which stays empty if there is no cache. `root`: the destination's top, unless nothing is written.
    pub fn new(
        cache: Option<CacheInUse<'a>>,
        root: Option<&'a Root>,
        stop: &'a AtomicBool,
        spares_atime: bool,
        threads: usize,
    ) -> ChangedFiles<'a> {
        ChangedFiles {
            cache,
            root,
            stop,
            spares_atime,
            threads,
            waiting: Mutex::default(),
        }
    }

    /// Notes an entry for which an action was carried out. `dir`: its directory in the transfer.
    pub fn note(&self, kind: Kind, action: Action, dir: &RelPath, name: &[u8]) {
        if self.cache.is_none() || self.root.is_none() || kind != Kind::File {
            return;
        }
        match action {
            Action::Adjust(_)
            | Action::Transfer(_)
            | Action::Copy(_)
            | Action::Link
            | Action::Create(_) => self.note_at(dir, name),
            Action::Keep | Action::Elsewhere | Action::AskDigest | Action::Refuse(_) => {}
        }
    }

    /// Notes a file that got another name.
    pub fn note_path(&self, path: &RelPath) {
        if self.cache.is_some() && self.root.is_some() {
            self.note_at(&path.parent().unwrap_or_default(), path.name());
        }
    }

    fn note_at(&self, dir: &RelPath, name: &[u8]) {
        let mut waiting = self.waiting.lock();
        match waiting.names.get_mut(dir) {
            Some(names) => names.push(name.into()),
            None => _ = waiting.names.insert(dir.clone(), vec![name.into()]),
        }
        waiting.count += 1;
        if waiting.count < WAITING_MAX {
            return;
        }
        let full = std::mem::take(&mut *waiting);
        drop(waiting);
        self.digest(&full, 1);
    }

    /// Digests the files that wait. Those that have changed so recently that a further change might not show are left to
    /// the next run, unless it would take longer to read them then than to wait now.
    pub fn finish(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let (too_new, cost) = self.digest(&waiting, self.threads);
        if cost < WORTH_WAITING || self.stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(SETTLE_TIME);
        self.digest(&too_new, self.threads);
    }

    /// Digests files. Returns those that have changed too recently, and the cost of reading them.
    fn digest(&self, waiting: &WaitingFiles, threads: usize) -> (WaitingFiles, u64) {
        let mut too_new = WaitingFiles::default();
        let mut cost = 0;
        let (Some(cache), Some(root)) = (self.cache, self.root) else {
            return (too_new, cost);
        };
        let mut shares = Vec::new();
        for (dir, names) in &waiting.names {
            for share in names.chunks(SHARE) {
                shares.push((dir, share));
            }
        }
        let results = parallel::share(&shares, threads, |(dir, names)| {
            self.digest_share(cache, root, dir, names)
        });
        for ((dir, _), (names, share_cost)) in shares.iter().zip(results) {
            if !names.is_empty() {
                too_new.count += names.len();
                let known = too_new.names.entry((*dir).clone()).or_default();
                known.extend(names);
            }
            cost += share_cost;
        }
        (too_new, cost)
    }

    /// Digests some files of a directory. Returns the names of those that have changed too recently, and the cost of
    /// reading them. A directory that cannot be reached any more, and a file that cannot be read, have no digests.
    fn digest_share(
        &self,
        cache: CacheInUse<'_>,
        root: &Root,
        path: &RelPath,
        names: &[Box<[u8]>],
    ) -> (Vec<Box<[u8]>>, u64) {
        let mut too_new = Vec::new();
        let mut cost = 0;
        let Ok(dir) = root.open_dir_to_search(path) else {
            return (too_new, cost);
        };
        for name in names {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let prepared = cache.prepare(&WantedFile {
                dir: &dir,
                name,
                version: None,
                open: &|| sys::open_read(dir.fd(), name, false, self.spares_atime),
                listed_bytes: None,
                is_over: &|| self.stop.load(Ordering::Relaxed),
            });
            if let Ok(DigestState::TooNew(len_bytes)) = prepared {
                too_new.push(name.clone());
                cost += len_bytes.saturating_add(FILE_COST);
            }
        }
        (too_new, cost)
    }
}
