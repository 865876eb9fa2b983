//! Compares the contents of two files that differ in nothing else, where the options require that.

use super::{DestWalk, JoinedPair};
use crate::digest::Comparison;
use crate::flist::{Entry, Kind};
use crate::fs::compare::digest_of_beginning;
use crate::fs::sys;
use crate::fs::sys::FileVersion;
use crate::options::CheckMode;
use crate::plan::{self, Action, Subject};
use crate::report::event::{Problem, Weight, errno_words};
use crate::walk::dir_plan::{DestListing, Findings, Found, NONE};
use crate::walk::source_dir::ComparedDest;
use crate::work::parallel;
use parking_lot::Mutex;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

impl DestWalk<'_> {
    /// Sets the lengths of devices that receive the content of a source file of the same name (`--write-devices`).
    pub(super) fn measure_devices(&self, found: &mut Found, pairs: &[JoinedPair]) {
        let DestListing { list, dir, .. } = &mut found.dest;
        let Some(dir) = dir else { return };
        for pair in pairs.iter().filter(|pair| pair.dest != NONE) {
            let (name, existing) = list.entry_mut(pair.dest as usize);
            let source = &found.listing.list.entries[pair.source as usize];
            if source.kind() != Kind::File || existing.kind() != Kind::Device {
                continue;
            }
            // If opening fails, the error is reported when the device is written.
            let opened = sys::open_read(dir.fd(), name, false, false);
            existing.len_bytes = opened
                .and_then(|device| sys::content_len(device.as_fd()))
                .unwrap_or(0);
            existing.extra_mut().takes_content = true;
        }
    }

    /// Compares the contents of the remaining pairs whose decision depends on them.
    pub(super) fn compare_rest(&self, found: &Found, pairs: &mut [JoinedPair], unread: &Unread) {
        let mut entries = Vec::new();
        let mut answers = Vec::new();
        for pair in pairs {
            if pair.dest == NONE || pair.same.is_some() {
                continue;
            }
            let entry = &found.listing.list.entries[pair.source as usize];
            if self.needs_digest(entry, &found.dest.list.entries[pair.dest as usize]) {
                entries.push(entry);
                answers.push(&mut pair.same);
            }
        }
        let lens_bytes = entries.iter().map(|entry| entry.len_bytes);
        let threads = parallel::threads_for(lens_bytes, self.threads);
        let same = parallel::share(&entries, threads, |entry| {
            self.is_same(found, entry, None, unread)
        });
        for (answer, same) in answers.into_iter().zip(same) {
            *answer = Some(same);
        }
    }

    /// Keeps the digests of the destination's files whose contents were compared, if a plan is made or carried out.
    pub(super) fn keep_digests(&self, found: &mut Found, pairs: &[JoinedPair]) {
        let (Some(is_over), Some(dir)) = (self.digests_until, &found.dest.dir) else {
            return;
        };
        let is_over = || is_over.load(Ordering::Relaxed);
        for pair in pairs {
            let Some(is_same) = pair.same else { continue };
            let source = &found.listing.list.entries[pair.source as usize];
            let (name, existing) = found.dest.list.entry_mut(pair.dest as usize);
            let digest = if is_same {
                source.extra.as_ref().and_then(|extra| extra.digest)
            } else {
                let by = Comparison::for_plans();
                let file = sys::open_read(dir.fd(), name, false, false);
                file.and_then(|file| {
                    digest_of_beginning(file.as_fd(), existing.len_bytes, &by, &is_over)
                })
                .ok()
            };
            existing.extra_mut().digest = digest;
        }
    }

    /// Returns whether the decision depends on the contents.
    pub(super) fn needs_digest(&self, source: &Entry, dest: &Entry) -> bool {
        self.policy.check.mode == CheckMode::Digest
            && plan::decide(source, Some(dest), None, Subject::Entry, self.policy).action
                == Action::AskDigest
    }

    /// Returns whether the destination's file has the same content as the source's. One that cannot be read counts as
    /// different, and is noted. `version`: see [`ComparedDest`].
    pub(super) fn is_same(
        &self,
        found: &Found,
        entry: &Entry,
        version: Option<FileVersion>,
        unread: &Unread,
    ) -> bool {
        let Some(dir) = &found.dest.dir else {
            return false;
        };
        let dest = ComparedDest {
            dir,
            name: found.listing.list.name(entry),
            version,
        };
        (self.compare)(found.original(entry), dest).unwrap_or_else(|error| {
            unread.lock().push((dest.name.to_vec(), error));
            false
        })
    }

    /// Under `--report-unread`, reports the files of a directory that could not be read, which are then left alone.
    pub(super) fn report_unread(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        mut unread: Vec<(Vec<u8>, io::Error)>,
    ) {
        if !self.policy.check.reports_unread {
            return;
        }
        // Several threads have compared them.
        unread.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, error) in unread {
            let start = b"sparsync: cannot compare \"".as_slice();
            let path = found.listing.path.join(&name);
            let line = [start, path.as_bytes(), b"\": ", &errno_words(&error)].concat();
            findings.problems.push(Problem::new(line, Weight::Failed));
            found.dest.unknown.insert(name);
        }
    }
}

/// The files of a directory that could not be read to compare them.
pub(super) type Unread = Mutex<Vec<(Vec<u8>, io::Error)>>;
