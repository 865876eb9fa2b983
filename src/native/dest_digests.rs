//! Sends digests of the destination to a sender that compares them, while it lists.

use crate::error::Error;
use crate::flist::DirList;
use crate::native::connection::NativeConnection;
use crate::native::dest_prescan::{DestPrescan, DigestScan};
use crate::native::digest_exchange::{
    Half, Known, Rest, ScanResults, ScannedDir, ScannedLists, Survey, SurveyStep,
};
use crate::native::dir_digest::Digester;
use crate::native::receiver_inbox::ReceiverInbox;
use crate::path::RelPath;
use crate::proto::{DestDirState, Message};
use crate::session::receiver::{DirReports, ReportScope, RunningReports};
use crate::session::sender::compare_walked;
use crate::walk::Scanner;
use crate::walk::destination::DestWalk;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the digests of the destination go. The opener of a session makes it.
pub struct DestDigests<'a> {
    pub connection: &'a NativeConnection,
    /// Has the survey, which the sender's listings shorten.
    pub inbox: &'a ReceiverInbox,
    /// The key of the digests.
    pub key: [u8; 16],
    /// The scan of the destination, if one was started early, and what the sender already knows of it.
    pub prescan: Option<(&'a DestPrescan<'a>, Known)>,
}

impl DirReports for DestDigests<'_> {
    /// Ends the early scan, if there is one, and prepares to send the rest.
    fn begin<'w>(
        &'w self,
        scope: ReportScope<'w>,
        walk: Arc<DestWalk<'w>>,
    ) -> Result<Box<dyn RunningReports + 'w>, Error> {
        let digester = Digester {
            key: self.key,
            options: scope.options,
            is_sender: false,
            is_super: walk.policy.may_make_devices,
            ids: scope.ids,
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let scan = DigestScan {
            root: walk.dest,
            wanted: walk.wanted,
            cache: scope.cache,
            threads: walk.threads,
            is_over: is_over.clone(),
            digester,
        };
        let begun = self
            .prescan
            .map(|(prescan, known)| prescan.end_prescan(walk.dest, scope.whole, known));
        let mut rest = begun.transpose()?.unwrap_or_default();
        self.inbox.begin(std::mem::take(&mut rest.survey));
        Ok(Box::new(DigestSender {
            digests: self,
            whole: scope.whole,
            walk,
            scanner: Scanner::new(scan, false),
            is_over,
            seen: Mutex::new(std::mem::take(&mut rest.kept)),
            rest: Mutex::new(rest),
            has_started: AtomicBool::new(scope.whole.is_empty()),
        }))
    }
}

/// Sends the digests. Workers scan the destination for it, and the first one sends.
struct DigestSender<'w> {
    digests: &'w DestDigests<'w>,
    whole: &'w [RelPath],
    walk: Arc<DestWalk<'w>>,
    scanner: Scanner<DigestScan<'w>>,
    /// The digests are not needed any more.
    is_over: Arc<AtomicBool>,
    /// The part of an early scan that is still to be sent.
    rest: Mutex<Rest<'w>>,
    /// Set once a worker has started to send the digests.
    has_started: AtomicBool,
    /// Entries of directories that were scanned, which need not be listed again.
    seen: Mutex<ScannedLists>,
}

/// The maximum number of directories in one message: enough to make a message cheap, few enough that the sender does
/// not wait.
const SEEN_IN_A_MESSAGE: usize = 64;
/// The number of scanned entries after which a message is sent as well.
const ENTRIES_IN_A_MESSAGE: usize = 4096;

impl DigestSender<'_> {
    /// Sends the digests of the destination, directory by directory, until the sender has listed everything.
    fn send_digests(&self) -> Result<(), Error> {
        let rest = std::mem::take(&mut *self.rest.lock());
        let mut batch = DigestBatch {
            connection: self.digests.connection,
            batch: Vec::new(),
            entries: 0,
        };
        rest.first
            .into_iter()
            .try_for_each(|seen| batch.push(seen))?;
        if let Some(results) = rest.results {
            self.survey(results, &mut batch)?;
        }
        for path in self.whole.iter().skip(rest.passed) {
            let first = self
                .scanner
                .start((path.clone(), self.walk.receiver_chain.clone()));
            self.digests
                .inbox
                .begin(Survey::new(first, self.digests.key));
            self.survey(&self.scanner, &mut batch)?;
        }
        batch.send()
    }

    /// Sends the rest of the current survey.
    fn survey(&self, results: &dyn ScanResults, batch: &mut DigestBatch<'_>) -> Result<(), Error> {
        while let Some((mut next, needless)) = self.digests.inbox.next() {
            if !needless.is_empty() {
                results.forget(needless);
            }
            let seen = loop {
                let found = match next {
                    SurveyStep::Send(seen) => break seen,
                    SurveyStep::Take(task_id) => results.take(task_id),
                    SurveyStep::GoOn(half) => self.scan_large(results, half, batch)?,
                };
                next = self
                    .digests
                    .inbox
                    .lock()
                    .survey
                    .took(found, &mut |path, list| {
                        batch.entries += list.len();
                        self.seen.lock().keep(path, list);
                    });
            };
            batch.push(seen)?;
        }
        Ok(())
    }

    /// Scans a large directory. First sends how many entries it has, those listed ahead and then all: if the sender has
    /// fewer, the scan ends early.
    fn scan_large(
        &self,
        results: &dyn ScanResults,
        mut half: Box<Half>,
        batch: &mut DigestBatch<'_>,
    ) -> Result<ScannedDir, Error> {
        let is_settled = self.digests.inbox.lock().survey.is_settled();
        let mut reported = 0;
        while half.names.items.len() > reported {
            reported = half.names.items.len();
            batch.push(DestDirState::Large(reported as u64))?;
            batch.send()?;
            results.list(&mut half, &|| is_settled.load(Ordering::Relaxed));
        }
        let found = results.go_on(half, &|| is_settled.load(Ordering::Relaxed));
        Ok(found
            .unwrap_or_else(|half| results.cut(half, self.digests.inbox.lock().survey.has_none())))
    }
}

impl RunningReports for DigestSender<'_> {
    /// Returns the entries that were kept when the directory was digested, if any. Drops those of earlier directories.
    fn known(&self, path: &RelPath) -> Option<DirList> {
        let mut seen = self.seen.lock();
        while let Some(order) = seen
            .first()
            .map(|first| compare_walked(first, path))
            .filter(|order| order.is_le())
        {
            let list = seen.pop();
            if order.is_eq() {
                return list;
            }
        }
        None
    }

    /// Runs a worker: the first one sends the digests, the others scan.
    fn work(&self) {
        if !self.has_started.swap(true, Ordering::Relaxed) {
            // A lost connection is reported to the threads that wait for data.
            let _ = self.send_digests();
            return;
        }
        self.scanner.work();
    }

    fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.scanner.close();
    }
}

/// Batches digests into messages.
struct DigestBatch<'a> {
    connection: &'a NativeConnection,
    batch: Vec<DestDirState>,
    /// The approximate number of entries in the directories of the batch.
    entries: usize,
}

impl DigestBatch<'_> {
    fn push(&mut self, seen: DestDirState) -> Result<(), Error> {
        self.batch.push(seen);
        let is_enough =
            self.batch.len() >= SEEN_IN_A_MESSAGE || self.entries >= ENTRIES_IN_A_MESSAGE;
        if is_enough { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), Error> {
        self.entries = 0;
        match std::mem::take(&mut self.batch) {
            nothing if nothing.is_empty() => Ok(()),
            batch => self.connection.send(&Message::Digests(batch)),
        }
    }
}
