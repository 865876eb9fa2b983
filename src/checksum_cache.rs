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

use self::record::{CachedFile, DigestRecord};
use self::store::Store;
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
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// How much older than the time of reading a ctime must be. The clock of file times ticks at least every 10 ms.
const RACY: Time = Time {
    secs: 0,
    nanos: 50_000_000,
};

/// How many digests are in memory at once, of the directories that were used last. About 100 bytes each.
const LOADED_MAX: usize = 100_000;

/// A directory: its device and inode.
type DirKey = (u64, u64);

/// The cache of a process. It is opened when it is first used.
#[derive(Default)]
pub struct ChecksumCache {
    opened: OnceLock<Option<Store>>,
    loaded: Mutex<Loaded>,
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
    /// The number of digests in them.
    digests: usize,
    /// Counts uses of records.
    uses: u64,
}

/// The record of a directory, and what this run did with it.
struct LoadedRecord {
    record: DigestRecord,
    /// It has digests that are not in the store.
    has_new: bool,
    last_use: u64,
}

/// A file whose digest is wanted.
pub struct WantedFile<'a> {
    /// The directory in which it was found.
    pub dir: &'a Dir,
    /// Its name there.
    pub name: &'a [u8],
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

    /// Returns the digest of the content of a file and its length, from an earlier run or by reading it.
    pub fn digest(
        &self,
        choice: &CacheChoice,
        file: &WantedFile<'_>,
    ) -> io::Result<(u64, PlainDigest)> {
        let dir = self.trusted_dir(choice, file.dir);
        if let Some(dir) = dir
            && let Ok(version) = sys::version_at(file.dir.fd(), file.name)
            && let Some(digest) = self.find(choice, dir, file, &version)
        {
            return Ok((version.len_bytes, digest));
        }

        let opened = (file.open)()?;
        let before = clock_time();
        let version = sys::version(opened.as_fd())?;
        // The name may lead to it through a symlink.
        if let Some(dir) = dir
            && let Some(digest) = self.find(choice, dir, file, &version)
        {
            return Ok((version.len_bytes, digest));
        }
        let len_bytes = match file.listed_bytes {
            Some(listed_bytes) => listed_bytes,
            None => sys::content_len(opened.as_fd())?,
        };
        let digest = plain_digest_of_beginning(opened.as_fd(), len_bytes, file.is_over)?;
        if let Some(dir) = dir
            && len_bytes == version.len_bytes
            && is_settled(&version, before)
            && version.dev == dir.0
        {
            self.keep(choice, dir, &version, digest);
        }
        Ok((len_bytes, digest))
    }

    /// Stores what is new, and removes the oldest records of a store that has become too large.
    pub fn save(&self) {
        let Some(Some(store)) = self.opened.get() else {
            return;
        };
        let records = std::mem::take(&mut *self.loaded.lock()).records;
        let mut has_written = false;
        for (dir, loaded) in records {
            if loaded.has_new {
                self.note(store.put(dir, &loaded.record));
                has_written = true;
            }
        }
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

    /// Returns the directory as the key of a record, if the times of its files can be trusted.
    fn trusted_dir(&self, choice: &CacheChoice, dir: &Dir) -> Option<DirKey> {
        // Those of the source and of the destination in which this thread has looked for the last files.
        thread_local!(static LAST: RefCell<VecDeque<(Dir, Option<DirKey>)>> = const { RefCell::new(VecDeque::new()) });
        self.store(choice)?;
        LAST.with_borrow_mut(|last| {
            for (known, key) in &*last {
                if known.is_same(dir) {
                    return *key;
                }
            }
            let key = self.examine_dir(dir);
            last.push_front((dir.clone(), key));
            last.truncate(2);
            key
        })
    }

    fn examine_dir(&self, dir: &Dir) -> Option<DirKey> {
        let id = dir.id().ok()?;
        match sys::keeps_change_times(dir.fd()) {
            Ok(true) => Some(id),
            Ok(false) => {
                let words =
                    "a network or other file system does not keep change times that can be trusted";
                self.trouble.lock().get_or_insert_with(|| words.to_owned());
                None
            }
            Err(_) => None,
        }
    }

    /// Returns the digest of this version of a file, if the record of its directory has it.
    fn find(
        &self,
        choice: &CacheChoice,
        dir: DirKey,
        file: &WantedFile<'_>,
        version: &FileVersion,
    ) -> Option<PlainDigest> {
        let is_listed_len = file.listed_bytes.is_none_or(|len| len == version.len_bytes);
        if !version.is_file
            || !is_listed_len
            || version.dev != dir.0
            || !is_settled(version, clock_time())
        {
            return None;
        }
        let mut loaded = self.loaded.lock();
        let record = self.load(choice, &mut loaded, dir)?;
        record.find(version)
    }

    /// Keeps the digest of a version of a file.
    fn keep(&self, choice: &CacheChoice, dir: DirKey, version: &FileVersion, digest: PlainDigest) {
        let mut loaded = self.loaded.lock();
        let Some(record) = self.load(choice, &mut loaded, dir) else {
            return;
        };
        let grown = record.put(CachedFile {
            version: *version,
            digest,
        });
        if let Some(entry) = loaded.records.get_mut(&dir) {
            entry.has_new = true;
        }
        loaded.digests += usize::from(grown);
    }

    /// Returns the record of a directory, from memory or the store.
    fn load<'l>(
        &self,
        choice: &CacheChoice,
        loaded: &'l mut Loaded,
        dir: DirKey,
    ) -> Option<&'l mut DigestRecord> {
        let store = self.store(choice)?;
        if !loaded.records.contains_key(&dir) {
            self.make_room(store, loaded);
            let record = store.get(dir).unwrap_or_default();
            loaded.digests += record.len();
            loaded.records.insert(
                dir,
                LoadedRecord {
                    record,
                    has_new: false,
                    last_use: 0,
                },
            );
        }
        loaded.uses += 1;
        let entry = loaded.records.get_mut(&dir)?;
        entry.last_use = loaded.uses;
        Some(&mut entry.record)
    }

    /// If many digests are in memory, stores and forgets half of them, in the records that were not used for the longest
    /// time.
    fn make_room(&self, store: &Store, loaded: &mut Loaded) {
        if loaded.digests <= LOADED_MAX {
            return;
        }
        let mut by_use = Vec::new();
        for (dir, entry) in &loaded.records {
            by_use.push((entry.last_use, *dir));
        }
        by_use.sort_unstable();
        for (_, dir) in by_use {
            if loaded.digests <= LOADED_MAX / 2 {
                break;
            }
            let Some(entry) = loaded.records.remove(&dir) else {
                continue;
            };
            loaded.digests -= entry.record.len();
            if entry.has_new {
                self.note(store.put(dir, &entry.record));
            }
        }
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
        };
        let is_opened = Cell::new(false);
        let file = WantedFile {
            dir: &open_dir(dir),
            name: b"f",
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
