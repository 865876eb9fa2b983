//! What a run has done so far, counted by its threads while they work, for the live display and for SIGVTALRM.
//!
//! All counters are relaxed: the display may be a moment behind, and no thread waits for another one. Only files of
//! `LARGE_BYTES` or more take a lock, when they begin and end.

use super::progress::{ListTotal, SourceTotals};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The length from which on a file has its own line.
const LARGE_BYTES: u64 = 1 << 20;

/// The counters of a run.
#[derive(Default)]
pub struct Gauge {
    /// Set when the user requests a line of progress, and cleared when a file has been copied since.
    is_requested: Arc<AtomicBool>,
    /// The path of the file that answers the request, and the counters at its end, until the line is printed.
    answer: Mutex<Option<(Vec<u8>, Counts)>>,
    has_answer: AtomicBool,
    /// Prints the line at once. Without it, the reporter prints it among its lines.
    printer: OnceLock<AnswerPrinter>,
    /// Whether a live display shows the counters.
    is_displayed: bool,
    roots: AtomicU64,
    listed_entries: AtomicU64,
    listed_bytes: AtomicU64,
    list_is_complete: AtomicBool,
    /// Set once the end with the source has sent its totals: the list that has come is shorter.
    has_totals: AtomicBool,
    unchanged_entries: AtomicU64,
    unchanged_files: AtomicU64,
    unchanged_bytes: AtomicU64,
    done_entries: AtomicU64,
    done_bytes: AtomicU64,
    copied_files: AtomicU64,
    copied_bytes: AtomicU64,
    given_up_files: AtomicU64,
    given_up_bytes: AtomicU64,
    skipped_files: AtomicU64,
    deleted: AtomicU64,
    renamed_files: AtomicU64,
    reconnections: AtomicU64,
    failures: AtomicU64,
    last_failure: Mutex<Vec<u8>>,
    is_deleting: AtomicBool,
    silence_ms: AtomicU64,
    large: Mutex<Vec<Arc<LargeFile>>>,
}

/// Prints a line of progress after the name of a file.
pub type AnswerPrinter = Box<dyn Fn(&[u8], &Counts) + Send + Sync>;

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
    /// Entries and bytes that need no more work: unchanged, copied or failed.
    pub done: (u64, u64),
    /// Files and bytes copied.
    pub copied: (u64, u64),
    /// Files that were begun and not copied, and their bytes: they failed, or the run was stopped. They are among those
    /// that need no more work.
    pub given_up: (u64, u64),
    /// Files that were left as they are: unchanged, or excluded from the copy by options such as `--existing`.
    pub skipped: u64,
    /// Entries deleted at this end. A server does not report those that it deletes while it does so.
    pub deleted: u64,
    /// New files that were renamed from others, at this end.
    pub renamed: u64,
    /// How often the connection was lost and made again.
    pub reconnections: u64,
    /// Reported problems that make the exit code 23.
    pub failures: u64,
    /// The message of the last of them; empty if there is none.
    pub last_failure: Vec<u8>,
    /// Whether extra entries are deleted before or after the rest.
    pub is_deleting: bool,
    /// How long the link to the peer has carried nothing; see [`Gauge::set_silence`].
    pub silence: Duration,
    /// The large files in progress: path, bytes done, length. The largest are first.
    pub files: Vec<(Vec<u8>, u64, u64)>,
}

impl Gauge {
    /// Creates the counters of a live display. `is_requested`: see [`Gauge::for_requests`].
    pub fn for_display(is_requested: Arc<AtomicBool>) -> Gauge {
        Gauge {
            is_displayed: true,
            ..Gauge::for_requests(is_requested)
        }
    }

    /// Creates the counters of a run without a display. A signal sets `is_requested`; the next file that has been copied
    /// answers it.
    pub fn for_requests(is_requested: Arc<AtomicBool>) -> Gauge {
        Gauge {
            is_requested,
            ..Gauge::default()
        }
    }

    /// Returns whether a live display shows the counters.
    pub fn is_displayed(&self) -> bool {
        self.is_displayed
    }

    /// Answers requests through this function, on the thread that has copied the file.
    pub fn print_answers(&self, printer: AnswerPrinter) {
        // A run calls this once.
        let _ = self.printer.set(printer);
    }

    /// Returns whether an answer waits. Costs next to nothing.
    pub fn has_answer(&self) -> bool {
        self.has_answer.load(Relaxed)
    }

    /// Takes the path of the file that answers a request, if `is_due` agrees to it, and the counters at its end.
    pub fn take_answer(&self, is_due: impl FnOnce(&[u8]) -> bool) -> Option<(Vec<u8>, Counts)> {
        let mut answer = self.answer.lock();
        if !answer.as_ref().is_some_and(|(path, _)| is_due(path)) {
            return None;
        }
        self.has_answer.store(false, Relaxed);
        answer.take()
    }

    fn answer(&self, path: &[u8]) {
        let counts = self.counts(0);
        if let Some(printer) = self.printer.get() {
            printer(path, &counts);
            return;
        }
        *self.answer.lock() = Some((path.to_vec(), counts));
        self.has_answer.store(true, Relaxed);
    }

    /// Sets the length of the list as far as it is known at this end.
    pub fn list(&self, total: ListTotal) {
        if !self.has_totals.load(Relaxed) {
            self.set_list(total);
        }
    }

    /// Sets what the end with the source knows. Directories that it does not list count as done.
    pub fn list_of_source(&self, totals: &SourceTotals) {
        let SourceTotals { list, unchanged } = totals;
        self.has_totals.store(true, Relaxed);
        self.set_list(*list);
        self.unchanged_entries.store(unchanged.entries, Relaxed);
        self.unchanged_files.store(unchanged.files, Relaxed);
        self.unchanged_bytes.store(unchanged.bytes, Relaxed);
    }

    fn set_list(&self, total: ListTotal) {
        self.listed_entries.store(total.entries, Relaxed);
        self.listed_bytes.store(total.bytes, Relaxed);
        self.list_is_complete.store(total.complete, Relaxed);
    }

    /// Counts entries and bytes that need no work. Files that are copied are counted by their [`FileMark`].
    pub fn pass(&self, entries: u64, bytes: u64) {
        self.done_entries.fetch_add(entries, Relaxed);
        self.done_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts the root of the trees, which is in no list and needs no work.
    pub fn pass_root(&self) {
        self.roots.store(1, Relaxed);
    }

    /// Counts files that are left as they are. They are among those that need no work.
    pub fn skip(&self, files: u64) {
        self.skipped_files.fetch_add(files, Relaxed);
    }

    /// Sets whether extra entries are being deleted.
    pub fn set_deleting(&self, is_deleting: bool) {
        self.is_deleting.store(is_deleting, Relaxed);
    }

    /// Counts a deleted entry.
    pub fn delete(&self) {
        self.deleted.fetch_add(1, Relaxed);
    }

    /// Counts a new file that was renamed from another.
    pub fn rename(&self) {
        self.renamed_files.fetch_add(1, Relaxed);
    }

    /// Counts a connection that was made after one was lost.
    pub fn reconnect(&self) {
        self.reconnections.fetch_add(1, Relaxed);
    }

    /// Counts a reported problem that makes the exit code 23, and keeps its line.
    pub fn fail(&self, line: &[u8]) {
        self.failures.fetch_add(1, Relaxed);
        if !line.is_empty() {
            line.clone_into(&mut self.last_failure.lock());
        }
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
            is_requested: _,
            answer: _,
            has_answer: _,
            printer: _,
            is_displayed: _,
            roots,
            listed_entries,
            listed_bytes,
            list_is_complete,
            has_totals,
            unchanged_entries,
            unchanged_files,
            unchanged_bytes,
            done_entries,
            done_bytes,
            copied_files,
            copied_bytes,
            given_up_files,
            given_up_bytes,
            skipped_files,
            // They happened, whatever became of the attempt.
            deleted: _,
            renamed_files: _,
            reconnections: _,
            // Problems of the lost attempt count for the exit code.
            failures: _,
            last_failure: _,
            is_deleting,
            silence_ms,
            large,
        } = self;
        let counters = [
            roots,
            listed_entries,
            listed_bytes,
            unchanged_entries,
            unchanged_files,
            unchanged_bytes,
            done_entries,
            done_bytes,
            copied_files,
            copied_bytes,
            given_up_files,
            given_up_bytes,
            skipped_files,
            silence_ms,
        ];
        for counter in counters {
            counter.store(0, Relaxed);
        }
        for flag in [list_is_complete, has_totals, is_deleting] {
            flag.store(false, Relaxed);
        }
        large.lock().clear();
    }

    /// Begins a file. `path` is called for a large file, and if the file may answer a request.
    pub fn begin(self: &Arc<Gauge>, len_bytes: u64, path: impl FnOnce() -> Vec<u8>) -> FileMark {
        let mut path = Some(path);
        let large = (len_bytes >= LARGE_BYTES).then(|| {
            let large = Arc::new(LargeFile {
                path: path.take().map(|path| path()).unwrap_or_default(),
                len_bytes,
                done_bytes: AtomicU64::new(0),
            });
            self.large.lock().push(large.clone());
            large
        });
        let mut small_path = None;
        // A large file in progress is what the user asks about, even if small ones overtake it.
        if self.is_requested.load(Relaxed) && self.large.lock().is_empty() {
            small_path = path.take().map(|path| path());
        }
        FileMark {
            gauge: self.clone(),
            len_bytes,
            done_bytes: AtomicU64::new(0),
            is_uncopied: AtomicBool::new(false),
            large,
            small_path,
        }
    }

    /// Returns the counters, with at most this many files in progress.
    pub fn counts(&self, files_max: usize) -> Counts {
        let mut files: Vec<_> = self.large.lock().clone();
        files.sort_by_key(|file| std::cmp::Reverse(file.len_bytes));
        files.truncate(files_max);
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        // A peer can send any number.
        let sum = |one: &AtomicU64, other: &AtomicU64| load(one).saturating_add(load(other));
        let files = files.iter().map(|file| {
            (
                file.path.clone(),
                file.done_bytes.load(Relaxed),
                file.len_bytes,
            )
        });
        Counts {
            listed: (
                sum(&self.listed_entries, &self.roots),
                self.listed_bytes.load(Relaxed),
            ),
            list_is_complete: self.list_is_complete.load(Relaxed),
            done: (
                sum(&self.done_entries, &self.unchanged_entries).saturating_add(load(&self.roots)),
                sum(&self.done_bytes, &self.unchanged_bytes),
            ),
            copied: (
                self.copied_files.load(Relaxed),
                self.copied_bytes.load(Relaxed),
            ),
            given_up: (
                self.given_up_files.load(Relaxed),
                self.given_up_bytes.load(Relaxed),
            ),
            skipped: sum(&self.skipped_files, &self.unchanged_files),
            deleted: self.deleted.load(Relaxed),
            renamed: self.renamed_files.load(Relaxed),
            reconnections: self.reconnections.load(Relaxed),
            failures: self.failures.load(Relaxed),
            last_failure: self.last_failure.lock().clone(),
            is_deleting: self.is_deleting.load(Relaxed),
            silence: Duration::from_millis(self.silence_ms.load(Relaxed)),
            files: files.collect(),
        }
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts(0).fmt(f)
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
    /// The path of a small file that may answer a request for a line of progress.
    small_path: Option<Vec<u8>>,
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
        self.gauge.done_entries.fetch_add(1, Relaxed);
        let is_copied = !self.is_uncopied.load(Relaxed);
        if is_copied {
            self.gauge.copied_files.fetch_add(1, Relaxed);
        } else {
            let gauge = &self.gauge;
            gauge.given_up_files.fetch_add(1, Relaxed);
            gauge.given_up_bytes.fetch_add(self.len_bytes, Relaxed);
        }
        if let Some(large) = &self.large {
            self.gauge
                .large
                .lock()
                .retain(|other| !Arc::ptr_eq(other, large));
        }
        let large_path = self.large.as_deref().map(|large| &large.path);
        if is_copied
            && let Some(path) = large_path.or(self.small_path.as_ref())
            && self.gauge.is_requested.swap(false, Relaxed)
        {
            self.gauge.answer(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::progress::EntryCounts;

    #[test]
    fn file_counts_once_with_its_length() {
        let gauge = Arc::new(Gauge::for_display(Arc::default()));
        gauge.list(ListTotal {
            entries: 3,
            bytes: 20 << 20,
            complete: true,
        });
        gauge.pass(0, 5);
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
        gauge.fail(b"denied");
        let counts = gauge.counts(9);
        assert_eq!((counts.copied.0, counts.failures), (3, 1));
        assert_eq!(
            (counts.copied.1, counts.done.1),
            ((12 << 20) + 130, (12 << 20) + 205)
        );
        assert_eq!((counts.done.0, counts.given_up), (4, (1, 100)));
        gauge.skip(2);
        assert_eq!(gauge.counts(0).skipped, 2);
        let list = ListTotal {
            entries: 50,
            bytes: 1 << 30,
            complete: true,
        };
        let unchanged = EntryCounts {
            entries: 7,
            files: 6,
            bytes: 1000,
        };
        gauge.list_of_source(&SourceTotals { list, unchanged });
        // What has come is shorter.
        gauge.list(ListTotal::default());
        let counts = gauge.counts(9);
        assert_eq!(
            (counts.listed, counts.list_is_complete),
            ((50, 1 << 30), true)
        );
        assert_eq!((counts.done, counts.skipped), ((11, (12 << 20) + 1205), 8));
        // The root is in no list.
        gauge.pass_root();
        let counts = gauge.counts(0);
        assert_eq!((counts.listed.0, counts.done.0), (51, 12));
        // A peer can send any number.
        let endless = EntryCounts {
            entries: u64::MAX,
            files: u64::MAX,
            bytes: u64::MAX,
        };
        gauge.list_of_source(&SourceTotals {
            list,
            unchanged: endless,
        });
        assert_eq!(gauge.counts(9).done, (u64::MAX, u64::MAX));
        gauge.delete();
        gauge.rename();
        gauge.reconnect();
        gauge.restart();
        let left = Counts {
            deleted: 1,
            renamed: 1,
            reconnections: 1,
            failures: 1,
            last_failure: b"denied".to_vec(),
            ..Counts::default()
        };
        assert_eq!(gauge.counts(9), left);
    }

    #[test]
    fn next_copied_file_answers_a_request() {
        let requested = Arc::new(AtomicBool::new(false));
        let gauge = Arc::new(Gauge::for_requests(requested.clone()));
        let early = gauge.begin(1, || unreachable!("nothing is requested"));
        let large = gauge.begin(4 << 20, || b"large".to_vec());
        requested.store(true, Relaxed);
        let failed = gauge.begin(1, || b"failed".to_vec());
        failed.give_up();
        drop(failed);
        drop(early);
        assert!(!gauge.has_answer());
        drop(gauge.begin(1, || unreachable!("a large file is in progress")));
        drop(large);
        assert!(gauge.has_answer());
        assert_eq!(gauge.take_answer(|path| path == b"small"), None);
        let (path, counts) = gauge.take_answer(|_| true).expect("it waits");
        assert_eq!((path, counts.copied.0), (b"large".to_vec(), 3));
        assert!(!gauge.has_answer(), "one request has one answer");

        requested.store(true, Relaxed);
        drop(gauge.begin(1, || b"small".to_vec()));
        let (path, counts) = gauge.take_answer(|_| true).expect("it waits");
        assert_eq!((path, counts.copied.0), (b"small".to_vec(), 4));
    }
}
