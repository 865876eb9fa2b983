//! Scans the source ahead of the sender, with bounded memory.
//!
//! A sending client starts the scan while it still connects. The scan sends nothing and changes nothing, so it can be
//! discarded without harm. Its results, problems included, wait for [`SourcePrefetch::end_prefetch`].

use crate::digest::Comparison;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Entry;
use crate::fs::ids::Ids;
use crate::options::CheckMode;
use crate::path::RelPath;
use crate::proto::limits::PATH_MAX_BYTES;
use crate::proto::message::DIGEST_LEN_BYTES;
use crate::proto::{DirListing, unfit};
use crate::report::event::{Problem, Weight};
use crate::report::progress::ListTotal;
use crate::walk::run_context::RunContext;
use crate::walk::source::{Contents, SourceWalk};
use crate::walk::source_args::{Gathered, Gatherer};
use crate::walk::{ListedDir, Look, Scanner, SourceTask, TaskId, close_places};
use crate::work::clock::Since;
use crate::work::thread::spawn;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a prefetched scan may be used. Older results are discarded and the source is scanned again: the user may
/// change it while ssh waits for a password.
pub const EARLY_IS_GOOD_FOR: Duration = Duration::from_secs(5);

/// The parameters of a scan of the source.
pub struct PrefetchParams<'a> {
    /// The context of the run.
    pub run_context: RunContext<'a>,
    /// The source arguments, as given.
    pub arguments: &'a [Vec<u8>],
    /// The names listed by `--files-from`.
    pub listed: Option<&'a [Vec<u8>]>,
    /// Digests the listings, for a receiver that compares them with its own; `None`: there is no such receiver.
    pub digester: Option<&'a dyn ListingDigester>,
    /// How to digest contents that the peer will compare; `None`: none are digested. While there is no peer yet, no content
    /// is read: only digests of earlier runs are used.
    pub compared_by: Option<&'a Comparison>,
    /// What the digests depend on.
    pub scan_terms: ScanTerms,
    /// Set if there is no peer yet: how long the results may be used. The audience is then a guess, and more is
    /// buffered.
    pub early: Option<Duration>,
}

/// The digest of the listing of a directory.
pub type ListingDigest = [u8; DIGEST_LEN_BYTES];

/// Digests listings of the source, for a receiver that digests its own directories in the same way. The threads that scan
/// call it.
pub trait ListingDigester: Sync {
    /// Returns the digest of a listing; `None` if it must be sent in any case. `is_super`: the receiver may change
    /// owners and make devices. `ids`: the names of this machine.
    fn digest_listing(
        &self,
        listing: &DirListing,
        is_super: bool,
        ids: &Ids,
    ) -> Option<ListingDigest>;
}

/// Properties of the peer and of the requested output that a scan of the source depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanTerms {
    /// Directory digests are compared.
    pub compares: bool,
    /// The receiver may change owners, so digests include them.
    pub is_super: bool,
    /// See [`DestFacts`](crate::session::sender::DestFacts).
    pub path_max_bytes: Option<usize>,
    /// See the same.
    pub is_one_of_many: bool,
}

impl<'a> PrefetchParams<'a> {
    /// Returns the parameters of a scan that starts before the peer is known. `digester` and `is_super` are guesses; if the
    /// second is wrong, the digests made so far are computed again.
    pub fn early(
        run_context: RunContext<'a>,
        arguments: &'a [Vec<u8>],
        digester: Option<&'a dyn ListingDigester>,
        is_super: bool,
    ) -> PrefetchParams<'a> {
        let scan_terms = ScanTerms {
            compares: digester.is_some(),
            is_super,
            path_max_bytes: None,
            is_one_of_many: false,
        };
        PrefetchParams {
            run_context,
            arguments,
            listed: None,
            digester,
            compared_by: None,
            scan_terms,
            early: Some(EARLY_IS_GOOD_FOR),
        }
    }

    /// Scans the source on separate threads while `body` runs. Fails if no thread can be started.
    pub fn with_prefetch<R>(&self, body: impl FnOnce(SourcePrefetch<'_>) -> R) -> Result<R> {
        let options = self.run_context.options;
        let ids = Ids::new();
        let is_over = AtomicBool::new(false);
        let peer_is_gone = Arc::new(AtomicBool::new(false));
        let may_read = AtomicBool::new(self.early.is_none());
        let compared_by = if options.check.mode == CheckMode::Digest {
            self.compared_by
        } else {
            None
        };
        self.run_context
            .with_wanted(&options.preserve, &|_, _| {}, |wanted| {
                let walk = SourceWalk {
                    contents: compared_by.map(|by| Contents {
                        by,
                        is_over: &peer_is_gone,
                        may_read: Some(&may_read),
                        cache: self.run_context.checksum_cache(),
                    }),
                    is_over: Some(&is_over),
                    ..self.run_context.source_walk(wanted)
                };
                let look = SourceLook {
                    walk,
                    digester: self.digester,
                    ids: &ids,
                    preserves_owner: options.preserve.owner,
                    scan_terms: Mutex::new(self.scan_terms),
                };
                look.set_scan_terms(self.scan_terms);
                let scanner = if self.early.is_some() {
                    Scanner::early(look)
                } else {
                    Scanner::new(look, false)
                };
                let scanner = &scanner;
                std::thread::scope(|scope| {
                    let (tx, gathered) = mpsc::channel();
                    let begun = Since::now();
                    let good_for = self.early;
                    let prefetch = SourcePrefetch {
                        scanner,
                        gathered,
                        start: RefCell::default(),
                        is_over: &is_over,
                        peer_is_gone: peer_is_gone.clone(),
                        may_read: &may_read,
                        begun,
                        good_for,
                    };
                    let mut gather = Some(move || {
                        let found =
                            Gatherer::new(&self.run_context).all(self.arguments, self.listed);
                        let start = found.and_then(|mut gathered| {
                            let mut problems = std::mem::take(&mut gathered.problems);
                            let top =
                                gathered.top_entry(scanner.walk().walk.wanted, &mut problems)?;
                            gathered.problems = problems;
                            Ok(PrefetchStart {
                                top,
                                root: scanner.start(gathered.task(None)),
                                gathered,
                            })
                        });
                        // If nothing receives the result, the scan is over.
                        let _ = tx.send(start);
                    });
                    // The thread that sends the list scans directories that no worker has begun.
                    let workers = if self.scan_terms.is_one_of_many {
                        1
                    } else {
                        self.run_context.process.threads
                    };
                    for _ in 0..workers {
                        let gather = gather.take();
                        spawn(scope, "scan", move || {
                            if let Some(gather) = gather {
                                gather();
                            }
                            scanner.work();
                        })?;
                    }
                    Ok(body(prefetch))
                })
            })
    }
}

/// The result of gathering the source arguments.
pub struct PrefetchStart {
    /// The gathered arguments.
    pub gathered: Gathered,
    /// The entry of the directory whose content is the transfer's root.
    pub top: Option<Entry>,
    /// The task number of the first directory.
    pub root: TaskId,
}

/// A scan of the source in progress. Dropping it ends the scan.
pub struct SourcePrefetch<'l> {
    scanner: &'l Scanner<SourceLook<'l>>,
    gathered: mpsc::Receiver<Result<PrefetchStart>>,
    /// The result if it has arrived but was not taken.
    start: RefCell<Option<Result<PrefetchStart>>>,
    is_over: &'l AtomicBool,
    /// Stops the digesting of contents. Listings stay complete: a partial listing that is sent as complete would cause
    /// deletions.
    pub peer_is_gone: Arc<AtomicBool>,
    /// Whether contents may be read for their digests.
    may_read: &'l AtomicBool,
    begun: Since,
    good_for: Option<Duration>,
}

impl<'l> SourcePrefetch<'l> {
    /// Returns the user and group names of this machine.
    pub fn ids(&self) -> &Ids {
        self.scanner.walk().ids
    }

    /// Returns the length of the list so far.
    pub fn count_so_far(&self) -> ListTotal {
        self.scanner.listed()
    }

    /// Returns a function that other threads may call as [`SourcePrefetch::count_so_far`].
    pub fn counter(&self) -> impl Fn() -> ListTotal + Send + use<'l> {
        let scanner = self.scanner;
        move || scanner.listed()
    }

    /// Whether the results so far are recent enough to be used.
    pub fn is_fresh(&self) -> bool {
        self.good_for
            .is_none_or(|good_for| self.begun.elapsed() <= good_for)
    }

    /// Ends the prefetch phase: from now on the results are taken in order, for this audience.
    pub fn end_prefetch(&self, scan_terms: ScanTerms) {
        self.may_read.store(true, Ordering::Relaxed);
        self.scanner.walk().set_scan_terms(scan_terms);
        self.scanner.end_early();
    }

    /// Waits for the gathered arguments. They can be taken only once.
    pub fn start(&self) -> Result<PrefetchStart> {
        let start = self.start.take().map_or_else(|| self.gathered.recv(), Ok);
        start.unwrap_or_else(|_| Err(Error::new(Exit::Crashed, "sparsync: a worker crashed")))
    }

    /// Calls `look` with the gathered arguments without taking them. Returns `None` if they could not be gathered;
    /// [`SourcePrefetch::start`] returns the error.
    pub fn peek<R>(&self, look: impl FnOnce(&PrefetchStart) -> R) -> Option<R> {
        let mut start = self.start.borrow_mut();
        if start.is_none() {
            *start = self.gathered.recv().ok();
        }
        start.as_ref()?.as_ref().ok().map(look)
    }

    /// Takes the listing of a directory, with the digest for the current audience.
    pub fn take(&self, task_id: TaskId) -> ScannedSource {
        let look = self.scanner.walk();
        let mut found = self.scanner.take(task_id);
        if let Some(max_bytes) = look.scan_terms().path_max_bytes {
            let why = |dir: &RelPath, name: &[u8], _: &Entry| too_long(dir, name, max_bytes);
            let ScannedSource {
                listed, task_ids, ..
            } = &mut found;
            self.scanner
                .forget(leave_out(&mut listed.listing, task_ids, why));
        }
        let is_completed = look.walk.digest_rest(&mut found.listed);
        if is_completed || found.scan_terms != look.scan_terms() {
            look.put_digest(&mut found);
        }
        found
    }
}

impl Drop for SourcePrefetch<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.peer_is_gone.store(true, Ordering::Relaxed);
        self.scanner.close();
    }
}

/// A scanned directory of the source.
pub struct ScannedSource {
    /// Its entries.
    pub listed: ListedDir,
    /// Its digest; `None` if digests are not compared or the directory must be sent in any case.
    pub digest: Option<ListingDigest>,
    /// The entry index and task number of each subdirectory that is walked, in order.
    pub task_ids: Vec<(u32, TaskId)>,
    /// The audience that the digest was made for.
    scan_terms: ScanTerms,
}

/// Scans directories of the source.
struct SourceLook<'a> {
    walk: SourceWalk<'a>,
    /// See [`PrefetchParams::digester`].
    digester: Option<&'a dyn ListingDigester>,
    /// The user and group names of this machine.
    ids: &'a Ids,
    /// `--owner`
    preserves_owner: bool,
    scan_terms: Mutex<ScanTerms>,
}

impl SourceLook<'_> {
    fn scan_terms(&self) -> ScanTerms {
        *self.scan_terms.lock()
    }

    fn set_scan_terms(&self, scan_terms: ScanTerms) {
        // Owners are compared only if they are preserved.
        let is_super = scan_terms.is_super && self.preserves_owner;
        *self.scan_terms.lock() = ScanTerms {
            is_super,
            ..scan_terms
        };
    }

    fn put_digest(&self, found: &mut ScannedSource) {
        found.scan_terms = self.scan_terms();
        let ScanTerms {
            compares, is_super, ..
        } = found.scan_terms;
        let ListedDir { listing, fatal, .. } = &found.listed;
        // Problems and notes must be sent, so no digest may hide the directory.
        let is_silent = listing.problems.is_empty()
            && listing.notes.is_empty()
            && fatal.is_none()
            && !listing.is_named;
        found.digest = match self.digester {
            Some(digester) if compares && is_silent => {
                digester.digest_listing(listing, is_super, self.ids)
            }
            Some(_) | None => None,
        };
    }
}

impl Look for SourceLook<'_> {
    type Task = SourceTask;
    type Found = ScannedSource;

    fn look(&self, task: SourceTask) -> (ScannedSource, Vec<SourceTask>) {
        let (mut listed, mut tasks) = self.walk.list(task);
        leave_out(&mut listed.listing, &mut tasks, unencodable);
        let (at, tasks): (Vec<u32>, Vec<SourceTask>) = tasks.into_iter().unzip();
        let task_ids = at.into_iter().map(|at| (at, TaskId::NONE)).collect();
        let mut found = ScannedSource {
            listed,
            digest: None,
            task_ids,
            scan_terms: self.scan_terms(),
        };
        self.put_digest(&mut found);
        (found, tasks)
    }

    fn task_ids<'f>(&self, found: &'f mut ScannedSource) -> impl Iterator<Item = &'f mut TaskId> {
        found.task_ids.iter_mut().map(|(_, task_id)| task_id)
    }

    fn park(&self, found: &mut ScannedSource) {
        close_places(&mut found.listed.places);
    }

    fn size(&self, found: &ScannedSource) -> (usize, (u64, u64)) {
        let tally = &found.listed.tally;
        (
            found.listed.listing.list.len(),
            (tally.listed.total(), tally.total_bytes),
        )
    }
}

/// Returns the line for the user about an entry that cannot be encoded for a sparsync.
fn unencodable(dir: &RelPath, name: &[u8], entry: &Entry) -> Option<Vec<u8>> {
    let path_bytes = dir.as_bytes().len() + 1 + name.len();
    let why = if path_bytes > PATH_MAX_BYTES {
        "its path is too long"
    } else {
        unfit(entry)?
    };
    Some(
        [
            b"sparsync: skipping \"",
            dir.join(name).as_bytes(),
            b"\": ",
            why.as_bytes(),
        ]
        .concat(),
    )
}

/// Returns the line for the user about an entry whose path is longer than the peer accepts.
fn too_long(dir: &RelPath, name: &[u8], max_bytes: usize) -> Option<Vec<u8>> {
    let separator = usize::from(!dir.is_root());
    let len_bytes = dir.as_bytes().len() + separator + name.len();
    let beyond_bytes = len_bytes
        .checked_sub(max_bytes)
        .filter(|&beyond_bytes| beyond_bytes > 0)?;
    let words = format!("filename overflows max-path len by {beyond_bytes}: ");
    Some([words.as_bytes(), dir.join(name).as_bytes()].concat())
}

/// Removes the entries for which `why` returns a line, and reports them. `below` has a value for each subdirectory that
/// is walked, with its entry index. Returns the values of those that were removed.
fn leave_out<T>(
    listing: &mut DirListing,
    below: &mut Vec<(u32, T)>,
    why: impl Fn(&RelPath, &[u8], &Entry) -> Option<Vec<u8>>,
) -> Vec<T> {
    let is_fit = |entry: &Entry| why(&listing.path, listing.list.name(entry), entry).is_none();
    if listing.list.entries.iter().all(is_fit) {
        return Vec::new();
    }
    let whole = std::mem::take(&mut listing.list);
    let mut subs = std::mem::take(&mut listing.subs).into_iter();
    let mut old_below = std::mem::take(below).into_iter().peekable();
    let mut removed = Vec::new();
    for (at, entry) in (0..).zip(&whole.entries) {
        let name = whole.name(entry);
        let sub = if entry.is_dir() { subs.next() } else { None };
        let value = old_below
            .next_if(|(of, _)| *of == at)
            .map(|(_, value)| value);
        if let Some(line) = why(&listing.path, name, entry) {
            // Same weight as an unreadable entry, so that nothing is deleted at the destination.
            listing
                .problems
                .push(Problem::new(line, Weight::SourceError));
            removed.extend(value);
            continue;
        }
        below.extend(value.map(|value| (listing.list.len() as u32, value)));
        listing.subs.extend(sub);
        Arc::make_mut(&mut listing.list).push_from(&whole, entry);
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::DirList;

    #[test]
    fn entries_that_stay_keep_their_digests() {
        let mut list = DirList::default();
        list.hold_digests();
        for name in ["left out", "stays"] {
            list.push_name(name.as_bytes(), false);
            list.set_plain_digest(list.len() - 1, &[7; 32]);
        }
        let mut listing = DirListing {
            list: Arc::new(list),
            ..DirListing::default()
        };

        let why = |_: &RelPath, name: &[u8], _: &Entry| {
            if name == b"left out" {
                Some(b"a reason".to_vec())
            } else {
                None
            }
        };
        leave_out::<()>(&mut listing, &mut Vec::new(), why);

        let list = &listing.list;
        assert_eq!(list.len(), 1);
        assert_eq!(list.name(&list.entries[0]), b"stays");
        assert_eq!(list.plain_digest(&list.entries[0]), Some(&[7; 32]));
        assert_eq!(listing.problems.len(), 1);
    }
}
