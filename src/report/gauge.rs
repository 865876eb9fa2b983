//! What a run has done so far, counted by its threads while they work, for the live display.
//!
//! All counters are relaxed: the display may be a moment behind, and no thread waits for another one. Only files of
//! `LARGE_BYTES` or more take a lock, when they begin and end.

use super::progress::ListTotal;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The length from which on a file has its own line.
const LARGE_BYTES: u64 = 1 << 20;

/// The counters of a run.
#[derive(Debug, Default)]
pub struct Gauge {
    listed_entries: AtomicU64,
    listed_bytes: AtomicU64,
    list_is_complete: AtomicBool,
    done_entries: AtomicU64,
    done_bytes: AtomicU64,
    copied_files: AtomicU64,
    copied_bytes: AtomicU64,
    failures: AtomicU64,
    is_deleting: AtomicBool,
    silence_ms: AtomicU64,
    large: Mutex<Vec<Arc<LargeFile>>>,
}

#[derive(Debug)]
struct LargeFile {
    path: Vec<u8>,
    len_bytes: u64,
    done_bytes: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// The entries listed so far, and the bytes of the files and symlinks among them.
    pub listed: (u64, u64),
    /// Whether the list is complete.
    pub list_is_complete: bool,
    /// Entries of directories that are planned, and bytes that need no more work: unchanged or copied.
    pub done: (u64, u64),
    /// Files and bytes copied.
    pub copied: (u64, u64),
    /// Reported problems that make the exit code 23.
    pub failures: u64,
    /// Whether extra entries are deleted before or after the rest.
    pub is_deleting: bool,
    /// How long the link to the peer has carried nothing; see [`Gauge::set_silence`].
    pub silence: Duration,
    /// The large files in progress: path, bytes done, length. The largest are first.
    pub files: Vec<(Vec<u8>, u64, u64)>,
}

impl Gauge {
    /// Sets the length of the list as far as it is known.
    pub fn list(&self, total: ListTotal) {
        self.listed_entries.store(total.entries, Relaxed);
        self.listed_bytes.store(total.bytes, Relaxed);
        self.list_is_complete.store(total.complete, Relaxed);
    }

    /// Counts entries that are planned, and bytes that need no work.
    pub fn pass(&self, entries: u64, bytes: u64) {
        self.done_entries.fetch_add(entries, Relaxed);
        self.done_bytes.fetch_add(bytes, Relaxed);
    }

    /// Sets whether extra entries are being deleted.
    pub fn set_deleting(&self, is_deleting: bool) {
        self.is_deleting.store(is_deleting, Relaxed);
    }

    /// Counts a reported problem that makes the exit code 23.
    pub fn fail(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Sets how long the link to the peer has carried nothing in either direction. A thread that watches the link does so
    /// a few times a second.
    pub fn set_silence(&self, silence: Duration) {
        let silence_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        self.silence_ms.store(silence_ms, Relaxed);
    }

    /// Starts over, for a run that is repeated.
    pub fn restart(&self) {
        let Gauge {
            listed_entries,
            listed_bytes,
            list_is_complete,
            done_entries,
            done_bytes,
            copied_files,
            copied_bytes,
            // Problems of the lost attempt count for the exit code.
            failures: _,
            is_deleting,
            silence_ms,
            large,
        } = self;
        let counters = [
            listed_entries,
            listed_bytes,
            done_entries,
            done_bytes,
            copied_files,
            copied_bytes,
            silence_ms,
        ];
        for counter in counters {
            counter.store(0, Relaxed);
        }
        for flag in [list_is_complete, is_deleting] {
            flag.store(false, Relaxed);
        }
        large.lock().clear();
    }

    /// Begins a file. `path` is called for a large file only.
    pub fn begin(self: &Arc<Gauge>, len_bytes: u64, path: impl FnOnce() -> Vec<u8>) -> FileMark {
        let large = (len_bytes >= LARGE_BYTES).then(|| {
            let large = Arc::new(LargeFile {
                path: path(),
                len_bytes,
                done_bytes: AtomicU64::new(0),
            });
            self.large.lock().push(large.clone());
            large
        });
        FileMark {
            gauge: self.clone(),
            len_bytes,
            done_bytes: AtomicU64::new(0),
            is_uncopied: AtomicBool::new(false),
            large,
        }
    }

    /// Returns the counters, with at most this many files in progress.
    pub fn counts(&self, files_max: usize) -> Counts {
        let mut files: Vec<_> = self.large.lock().clone();
        files.sort_by_key(|file| std::cmp::Reverse(file.len_bytes));
        files.truncate(files_max);
        let files = files.iter().map(|file| {
            (
                file.path.clone(),
                file.done_bytes.load(Relaxed),
                file.len_bytes,
            )
        });
        Counts {
            listed: (
                self.listed_entries.load(Relaxed),
                self.listed_bytes.load(Relaxed),
            ),
            list_is_complete: self.list_is_complete.load(Relaxed),
            done: (
                self.done_entries.load(Relaxed),
                self.done_bytes.load(Relaxed),
            ),
            copied: (
                self.copied_files.load(Relaxed),
                self.copied_bytes.load(Relaxed),
            ),
            failures: self.failures.load(Relaxed),
            is_deleting: self.is_deleting.load(Relaxed),
            silence: Duration::from_millis(self.silence_ms.load(Relaxed)),
            files: files.collect(),
        }
    }
}

/// A file in progress. When it is dropped, the file is done.
#[derive(Debug)]
pub struct FileMark {
    gauge: Arc<Gauge>,
    len_bytes: u64,
    done_bytes: AtomicU64,
    is_uncopied: AtomicBool,
    large: Option<Arc<LargeFile>>,
}

impl FileMark {
    /// Counts bytes that are copied. A file that grew counts with its listed length.
    pub fn add(&self, bytes: u64) {
        let before = self.done_bytes.load(Relaxed);
        let bytes = bytes.min(self.len_bytes - before);
        self.done_bytes.store(before + bytes, Relaxed);
        self.gauge.done_bytes.fetch_add(bytes, Relaxed);
        if !self.is_uncopied.load(Relaxed) {
            self.gauge.copied_bytes.fetch_add(bytes, Relaxed);
        }
        if let Some(large) = &self.large {
            large.done_bytes.store(before + bytes, Relaxed);
        }
    }

    /// The file needs no more work in this attempt, but it was not copied.
    pub fn give_up(&self) {
        self.is_uncopied.store(true, Relaxed);
    }
}

impl Drop for FileMark {
    fn drop(&mut self) {
        self.add(u64::MAX);
        if !self.is_uncopied.load(Relaxed) {
            self.gauge.copied_files.fetch_add(1, Relaxed);
        }
        if let Some(large) = &self.large {
            self.gauge
                .large
                .lock()
                .retain(|other| !Arc::ptr_eq(other, large));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_counts_once_with_its_length() {
        let gauge = Arc::new(Gauge::default());
        gauge.list(ListTotal {
            entries: 3,
            bytes: 20 << 20,
            complete: true,
        });
        gauge.pass(3, 5);
        let small = gauge.begin(100, || unreachable!("small files have no line"));
        let large = gauge.begin(4 << 20, || b"large".to_vec());
        let largest = gauge.begin(8 << 20, || b"largest".to_vec());
        large.add(1 << 20);
        large.add(9 << 20);
        assert_eq!(gauge.counts(1).files, [(b"largest".to_vec(), 0, 8 << 20)]);
        assert_eq!(
            gauge.counts(9).files[1],
            (b"large".to_vec(), 4 << 20, 4 << 20)
        );
        drop((small, large, largest));
        let counts = gauge.counts(9);
        assert_eq!(
            (counts.copied, counts.done),
            ((3, (12 << 20) + 100), (3, (12 << 20) + 105))
        );
        assert_eq!(counts.files, []);
        let failed = gauge.begin(100, Vec::new);
        failed.add(30);
        failed.give_up();
        drop(failed);
        gauge.fail();
        let counts = gauge.counts(9);
        assert_eq!((counts.copied.0, counts.failures), (3, 1));
        assert_eq!(
            (counts.copied.1, counts.done.1),
            ((12 << 20) + 130, (12 << 20) + 205)
        );
        gauge.restart();
        let left = Counts {
            failures: 1,
            ..Counts::default()
        };
        assert_eq!(gauge.counts(9), left);
    }
}
