//! `--checksum-cache`: digests of file contents that earlier runs have computed, so that `-c` does not read unchanged files
//! again.
//!
//! A digest is stored with the [`FileVersion`] that its file had before it was read. It is used for exactly that version,
//! and only if nothing can have changed the content since without changing the version:
//!
//! - Each change of a file's content or attributes sets its change time (ctime) to the time of the kernel's clock, and no
//!   program can set it to another. So it is stored only if it is older by [`RACY`] than the time at which reading began:
//!   a change in the same tick of the clock could leave it as it is.
//! - A ctime without a fraction of a second is not trusted: the file system keeps whole seconds. Neither is one in the
//!   future: the clock has been set back, and could come to the same time again.
//! - Only file systems of this machine are trusted ([`sys::keeps_change_times`]). Others may report times that are old, or
//!   not their own.
//!
//! The digest is that of the content alone, so it does not depend on a session. A session compares keyed hashes of it.
//!
//! Everything else may be lost or wrong at any time: a record that cannot be read, or is not exactly what was written,
//! counts as missing, and one that cannot be written is given up. A run warns once and goes on.

mod record;
mod store;

use self::record::DigestRecord;
pub use self::store::Store;
use crate::digest::PlainDigest;
use crate::flist::Time;
use crate::fs::compare::plain_digest_of_beginning;
use crate::fs::root::Dir;
use crate::fs::sys::{self, FileVersion};
use crate::options::CacheChoice;
use crate::report::event::{Event, Problem, Weight, errno_words};
use crate::work::clock;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How much older than the time of reading a ctime must be. The clock of file times ticks at least every 10 ms.
const RACY: Time = Time {
    secs: 0,
    nanos: 50_000_000,
};

/// After this time, a file that was not changed again can have a digest.
pub const SETTLE_TIME: Duration = Duration::from_millis(55);

/// How many digests are in memory at once, of the directories that were used last. About 90 bytes each.
const LOADED_MAX: usize = 100_000;

/// The memory that a record takes besides its digests, as a number of digests.
const RECORD_COST: usize = 4;

/// A directory: its device and inode.
type DirKey = (u64, u64);

/// The cache of a process. It is opened when it is first used.
#[derive(Default)]
pub struct ChecksumCache {
    opened: OnceLock<Option<Store>>,
    loaded: Mutex<Loaded>,
    /// The memory that all records take, as a number of digests.
    held: AtomicUsize,
    /// The first thing that went wrong.
    trouble: Mutex<Option<String>>,
}

/// The cache of a process, for a run that uses it.
#[derive(Clone, Copy)]
pub struct CacheInUse<'a> {
    /// The cache.
    pub cache: &'a ChecksumCache,
    /// What the options say about it.
    pub choice: &'a CacheChoice,
}

impl CacheInUse<'_> {
    /// See [`ChecksumCache::digest`].
    pub fn digest(&self, file: &WantedFile<'_>) -> io::Result<(u64, PlainDigest)> {
        self.cache.digest(self.choice, file)
    }

    /// See [`ChecksumCache::prepare`].
    pub fn prepare(&self, file: &WantedFile<'_>) -> io::Result<DigestState> {
        self.cache.prepare(self.choice, file)
    }

    /// See [`ChecksumCache::stored`].
    pub fn stored(&self, dir: &Dir, version: &FileVersion) -> Option<PlainDigest> {
        self.cache.stored(self.choice, dir, version)
    }

    /// Stores what this run has computed. Returns a warning if the cache could not be used.
    pub fn end(&self) -> Option<Event> {
        self.cache.save();
        self.cache.take_warning()
    }
}

/// The records in memory.
#[derive(Default)]
struct Loaded {
    records: HashMap<DirKey, LoadedRecord>,
    /// Counts uses of records.
    uses: u64,
}

struct LoadedRecord {
    record: Arc<OpenRecord>,
    last_use: u64,
}

/// The record of a directory, and what this run did with it.
struct OpenRecord {
    dir: DirKey,
    state: Mutex<RecordState>,
}

#[derive(Default)]
struct RecordState {
    record: DigestRecord,
    /// It has digests that are not in the store.
    has_new: bool,
}

/// A directory that a thread has examined, and its record, if the times of its files can be trusted.
struct ExaminedDir {
    dir: Dir,
    record: Option<Arc<OpenRecord>>,
    /// When it was examined. A file that has changed since is not settled.
    at: Time,
}

/// What became of a file whose digest was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestState {
    /// The digest is kept, or cannot be.
    Done,
    /// It has changed within the last [`SETTLE_TIME`]. The value is its length.
    TooNew(u64),
}

/// A file whose digest is wanted.
pub struct WantedFile<'a> {
    /// The directory in which it was found.
    pub dir: &'a Dir,
    /// Its name there.
    pub name: &'a [u8],
    /// The version that was just found there, if it was examined with the time of its birth.
    pub version: Option<FileVersion>,
    /// Opens it.
    pub open: &'a dyn Fn() -> io::Result<OwnedFd>,
    /// Its length, if it was listed before: only so much of it is digested.
    pub listed_bytes: Option<u64>,
    /// Returns whether the run is over.
    pub is_over: &'a dyn Fn() -> bool,
}

impl ChecksumCache {
    /// Opens the directory of the records, and creates it if it is missing. Later calls do nothing. A process that confines
    /// itself calls this before.
    pub fn open(&self, choice: &CacheChoice) {
        self.store(choice);
    }

    /// Returns the directory of the records, if it is open.
    pub fn store_dir(&self) -> Option<BorrowedFd<'_>> {
        let store = self.opened.get()?.as_ref()?;
        Some(store.dir_fd())
    }

    /// Returns the digest of the content of a file and its length, from an earlier run or by reading it.
    pub fn digest(
        &self,
        choice: &CacheChoice,
        file: &WantedFile<'_>,
    ) -> io::Result<(u64, PlainDigest)> {
        let found = |version: &FileVersion| {
            let is_listed_len = file.listed_bytes.is_none_or(|len| len == version.len_bytes);
            if !is_listed_len {
                return None;
            }
            self.stored(choice, file.dir, version)
        };
        let version = match file.version {
            Some(version) => Ok(version),
            None => sys::version_at(file.dir.fd(), file.name),
        };
        if let Ok(version) = version
            && let Some(digest) = found(&version)
        {
            return Ok((version.len_bytes, digest));
        }

        let opened = (file.open)()?;
        let before = clock_time();
        let version = sys::version(opened.as_fd())?;
        // The name may lead to it through a symlink.
        if let Some(digest) = found(&version) {
            return Ok((version.len_bytes, digest));
        }
        let len_bytes = match file.listed_bytes {
            Some(listed_bytes) => listed_bytes,
            None => sys::content_len(opened.as_fd())?,
        };
        let digest = plain_digest_of_beginning(opened.as_fd(), len_bytes, file.is_over)?;
        if len_bytes == version.len_bytes && is_settled(&version, before) {
            let keep = |record: &OpenRecord, _| record.keep(&version, &digest, &self.held);
            self.in_record(choice, file.dir, keep);
        }
        Ok((len_bytes, digest))
    }

    /// Returns the version that a file has now, and the digest of that version's content if an earlier run has stored it.
    pub fn known(
        &self,
        choice: &CacheChoice,
        dir: &Dir,
        name: &[u8],
    ) -> Option<(FileVersion, PlainDigest)> {
        let version = sys::version_at(dir.fd(), name).ok()?;
        let digest = self.stored(choice, dir, &version)?;
        Some((version, digest))
    }

    /// Returns the digest of this version of a file, if an earlier run has stored it.
    pub fn stored(
        &self,
        choice: &CacheChoice,
        dir: &Dir,
        version: &FileVersion,
    ) -> Option<PlainDigest> {
        self.in_record(choice, dir, |record, at| record.find(version, at))?
    }

    /// Reads a file and keeps its digest for later runs, if that can be kept and is not known.
    pub fn prepare(&self, choice: &CacheChoice, file: &WantedFile<'_>) -> io::Result<DigestState> {
        let version = sys::version_at(file.dir.fd(), file.name)?;
        let may_be_kept = self.in_record(choice, file.dir, |record, _| {
            version.is_file && version.dev == record.dir.0
        });
        if may_be_kept != Some(true) {
            return Ok(DigestState::Done);
        }
        if !is_settled(&version, clock_time()) {
            return Ok(DigestState::TooNew(version.len_bytes));
        }
        let examined = WantedFile {
            version: Some(version),
            ..*file
        };
        self.digest(choice, &examined)?;
        Ok(DigestState::Done)
    }

    /// Stores what is new, and removes the oldest records of a store that has become too large.
    pub fn save(&self) {
        let Some(Some(store)) = self.opened.get() else {
            return;
        };
        let records = std::mem::take(&mut *self.loaded.lock()).records;
        let mut has_written = false;
        for loaded in records.into_values() {
            has_written |= self.store_new(store, &loaded.record);
        }
        self.held.store(0, Ordering::Relaxed);
        if has_written {
            self.note(store.shrink());
        }
    }

    /// Returns the warning about the cache, once.
    pub fn take_warning(&self) -> Option<Event> {
        let trouble = self.trouble.lock().take()?;
        let line = format!("sparsync: --checksum-cache is not used: {trouble}");
        Some(Event::Problem(Problem::new(line, Weight::Warning)))
    }

    /// Calls `body` with the record of a directory and the time at which the directory was examined. `None`: the times of its
    /// files cannot be trusted.
    fn in_record<R>(
        &self,
        choice: &CacheChoice,
        dir: &Dir,
        body: impl FnOnce(&OpenRecord, Time) -> R,
    ) -> Option<R> {
        // Those of the source and of the destination in which this thread has looked for the last files.
        thread_local!(static LAST: RefCell<VecDeque<ExaminedDir>> = const { RefCell::new(VecDeque::new()) });
        LAST.with_borrow_mut(|last| {
            let is_known = last.iter().any(|examined| examined.dir.is_same(dir));
            if !is_known {
                last.push_front(ExaminedDir {
                    dir: dir.clone(),
                    record: self.examine_dir(choice, dir),
                    at: clock_time(),
                });
                last.truncate(2);
            }
            let examined = last.iter().find(|examined| examined.dir.is_same(dir))?;
            let record = examined.record.as_ref()?;
            Some(body(record, examined.at))
        })
    }

    /// Returns the record of a directory, if the times of its files can be trusted.
    fn examine_dir(&self, choice: &CacheChoice, dir: &Dir) -> Option<Arc<OpenRecord>> {
        let store = self.store(choice)?;
        let id = dir.id().ok()?;
        let is_trusted = choice.force || sys::keeps_change_times(dir.fd()).ok()?;
        if is_trusted {
            return Some(self.load(store, id));
        }
        let words = "a network file system or one in user space may keep change times that cannot be trusted \
                     (--checksum-cache-force trusts them)";
        self.trouble.lock().get_or_insert_with(|| words.to_owned());
        None
    }

    /// Returns the record of a directory, from memory or the store.
    fn load(&self, store: &Store, dir: DirKey) -> Arc<OpenRecord> {
        if let Some(known) = self.loaded.lock().use_of(dir) {
            return known;
        }
        // Other threads go on meanwhile.
        let record = store.get(dir).unwrap_or_default();

        self.make_room(store);
        let mut loaded = self.loaded.lock();
        if let Some(known) = loaded.use_of(dir) {
            return known;
        }
        self.held
            .fetch_add(record.len() + RECORD_COST, Ordering::Relaxed);
        let state = Mutex::new(RecordState {
            record,
            has_new: false,
        });
        let record = Arc::new(OpenRecord { dir, state });
        let last_use = loaded.uses;
        let entry = LoadedRecord {
            record: record.clone(),
            last_use,
        };
        loaded.records.insert(dir, entry);
        record
    }

    /// If many digests are in memory, stores and forgets half of them, in the records that were not used for the longest
    /// time. What a thread adds to such a record afterwards is found out again by the next run.
    fn make_room(&self, store: &Store) {
        if self.held.load(Ordering::Relaxed) <= LOADED_MAX {
            return;
        }
        let mut loaded = self.loaded.lock();
        let mut by_use = Vec::new();
        for (dir, entry) in &loaded.records {
            by_use.push((entry.last_use, *dir));
        }
        by_use.sort_unstable();
        for (_, dir) in by_use {
            if self.held.load(Ordering::Relaxed) <= LOADED_MAX / 2 {
                break;
            }
            let Some(entry) = loaded.records.remove(&dir) else {
                continue;
            };
            let len = entry.record.state.lock().record.len();
            self.held.fetch_sub(len + RECORD_COST, Ordering::Relaxed);
            self.store_new(store, &entry.record);
        }
    }

    /// Stores a record if it has new digests. Returns whether it has.
    fn store_new(&self, store: &Store, record: &OpenRecord) -> bool {
        let mut state = record.state.lock();
        let has_new = std::mem::take(&mut state.has_new);
        if has_new {
            self.note(store.put(record.dir, &state.record));
        }
        has_new
    }

    fn store(&self, choice: &CacheChoice) -> Option<&Store> {
        let open = || {
            let dir = choice.dir.as_deref()?;
            match Store::open(dir) {
                Ok(store) => Some(store),
                Err(error) => {
                    let why = String::from_utf8_lossy(&errno_words(&error)).into_owned();
                    let dir = String::from_utf8_lossy(dir);
                    *self.trouble.lock() = Some(format!("cannot open {dir}: {why}"));
                    None
                }
            }
        };
        self.opened.get_or_init(open).as_ref()
    }

    /// Notes an error of the store.
    fn note(&self, done: io::Result<()>) {
        if let Err(error) = done {
            let why = String::from_utf8_lossy(&errno_words(&error)).into_owned();
            let words = || format!("cannot store digests: {why}");
            self.trouble.lock().get_or_insert_with(words);
        }
    }
}

impl Loaded {
    /// Returns a record that is in memory, and marks it as used.
    fn use_of(&mut self, dir: DirKey) -> Option<Arc<OpenRecord>> {
        self.uses += 1;
        let entry = self.records.get_mut(&dir)?;
        entry.last_use = self.uses;
        Some(entry.record.clone())
    }
}

impl OpenRecord {
    /// Returns the digest of this version of a file. `now`: when it had this version, or earlier.
    fn find(&self, version: &FileVersion, now: Time) -> Option<PlainDigest> {
        if version.dev != self.dir.0 || !is_settled(version, now) {
            return None;
        }
        self.state.lock().record.find(version)
    }

    /// Keeps the digest of a version of a file. `held` counts those in memory.
    fn keep(&self, version: &FileVersion, digest: &PlainDigest, held: &AtomicUsize) {
        if version.dev != self.dir.0 {
            return;
        }
        let mut state = self.state.lock();
        if state.record.put(version, digest) {
            held.fetch_add(1, Ordering::Relaxed);
        }
        state.has_new = true;
    }
}

fn clock_time() -> Time {
    let (secs, nanos) = clock::now_unix();
    Time { secs, nanos }
}

/// Returns whether a version that a file has at this time stands for one content; see the page of this module.
fn is_settled(version: &FileVersion, now: Time) -> bool {
    let ctime = version.ctime;
    if !version.is_file || ctime.nanos == 0 {
        return false;
    }
    let mut settled = Time {
        secs: ctime.secs.saturating_add(RACY.secs),
        nanos: ctime.nanos + RACY.nanos,
    };
    if settled.nanos >= 1_000_000_000 {
        settled.secs = settled.secs.saturating_add(1);
        settled.nanos -= 1_000_000_000;
    }
    (settled.secs, settled.nanos) < (now.secs, now.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::File;
    use std::io::Write as _;
    use std::path::Path;

    const NOW: Time = Time {
        secs: 1_000,
        nanos: 30_000_000,
    };

    fn version(ctime: Time) -> FileVersion {
        FileVersion {
            is_file: true,
            dev: 1,
            ino: 2,
            len_bytes: 3,
            mtime: NOW,
            ctime,
            btime: None,
        }
    }

    #[test]
    fn only_old_and_exact_change_times_are_settled() {
        let at = |secs, nanos| is_settled(&version(Time { secs, nanos }), NOW);
        assert!(at(999, 979_999_999));
        assert!(at(5, 1));
        // A change in the same tick would not show.
        assert!(!at(999, 980_000_000));
        assert!(!at(1_000, 29_999_999));
        // Whole seconds, and a clock that was set back.
        assert!(!at(900, 0));
        assert!(!at(1_000, 30_000_001));
        assert!(!at(i64::MAX, 999_999_999));
        let fifo = FileVersion {
            is_file: false,
            ..version(Time { secs: 5, nanos: 1 })
        };
        assert!(!is_settled(&fifo, NOW));
    }

    fn open_dir(path: &Path) -> Dir {
        Dir::new(OwnedFd::from(File::open(path).unwrap()))
    }

    /// Returns the digest of the file `f` and whether it was opened for that.
    fn digest(cache: &ChecksumCache, store: &Path, dir: &Path) -> (PlainDigest, bool) {
        let choice = CacheChoice {
            dir: Some(store.as_os_str().as_encoded_bytes().to_vec()),
            force: false,
        };
        let is_opened = Cell::new(false);
        let file = WantedFile {
            dir: &open_dir(dir),
            name: b"f",
            version: None,
            open: &|| {
                is_opened.set(true);
                File::open(dir.join("f")).map(OwnedFd::from)
            },
            listed_bytes: None,
            is_over: &|| false,
        };
        let (_, digest) = cache.digest(&choice, &file).unwrap();
        (digest, is_opened.get())
    }

    fn until_settled(path: &Path) {
        let file = File::open(path).unwrap();
        while !is_settled(&sys::version(file.as_fd()).unwrap(), clock_time()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn digest_is_used_until_the_file_changes() {
        let top = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = top.path().join("store");
        let dir = top.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        let mut written = File::create(dir.join("f")).unwrap();
        written.write_all(b"one").unwrap();
        let one = crate::digest::plain(b"one");

        // A young file is read each time.
        let cache = ChecksumCache::default();
        assert_eq!(digest(&cache, &store, &dir), (one, true));
        until_settled(&dir.join("f"));
        assert_eq!(digest(&cache, &store, &dir), (one, true));
        assert_eq!(digest(&cache, &store, &dir), (one, false));
        cache.save();

        // Another run finds it, unless the file is another one.
        let cache = ChecksumCache::default();
        assert_eq!(digest(&cache, &store, &dir), (one, false));
        let mtime = written.metadata().unwrap().modified().unwrap();
        std::fs::write(dir.join("f"), "two").unwrap();
        written.set_modified(mtime).unwrap();
        let two = crate::digest::plain(b"two");
        assert_eq!(digest(&cache, &store, &dir), (two, true));
        until_settled(&dir.join("f"));
        assert_eq!(digest(&cache, &store, &dir), (two, true));
        assert_eq!(digest(&cache, &store, &dir), (two, false));
        assert!(cache.take_warning().is_none());
    }
}
