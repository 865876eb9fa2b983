//! The sending side of a session: walks the source, sends the listings that differ, and sends requested content.

mod content;
mod dest_dirs;
mod digests;
mod facts;
mod kept_dirs;
mod listings;
mod peer;
mod requests;
mod roots;
mod totals;

pub use self::dest_dirs::{DestDirs, DestDirsWalk, DirComparison};
pub use self::facts::DestFacts;
use self::kept_dirs::KeptDirs;
use self::listings::ListingSender;
pub use self::peer::{BasisFate, ContentRequest, ContentSink, DestPeer, SenderJob};
use self::roots::SentNames;
pub use self::roots::{SentRoots, compare_walked, is_below, sent_roots};
use self::totals::TotalsSender;
use crate::apply::LateRemovals;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::DetectRenamed;
use crate::proto::FileId;
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants, Weight};
use crate::session::checksums::SessionChecksums;
use crate::session::source_prefetch::{PrefetchParams, PrefetchStart, ScanTerms, SourcePrefetch};
use crate::walk::run_context::RunContext;
use crate::work::on_drop::OnDrop;
use crate::work::thread::spawn;
use crate::work::throttle::Throttle;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// The sender of a session.
pub struct Sender<'a> {
    /// The context of the run.
    pub run_context: RunContext<'a>,
    /// The end that has the destination.
    pub peer: &'a dyn DestPeer,
    /// What it already has of each directory; `None`: it does not say, or the run does not permit to rely on that.
    pub dest_dirs: Option<&'a dyn DestDirs>,
    /// How to digest and compare contents.
    pub checksums: SessionChecksums,
    /// The receiver may change owners.
    pub receiver_is_super: bool,
    /// The events that the client wants.
    pub wants: Wants,
    /// Whether to report the costs of this end.
    pub profile: bool,
    /// `--bwlimit`
    pub throttle: Option<Throttle<'a>>,
    /// Files that count as transferred although they could not be read.
    pub unsent: Mutex<Tally>,
    /// Reports events of this end, which the receiver does not report.
    pub report: &'a (dyn Fn(Event) -> Result<()> + Sync),
    /// The device and inode of each file that was sent and is to be removed.
    pub opened: Mutex<HashMap<FileId, (u64, u64)>>,
    /// What is removed once everything was sent.
    pub late_removals: LateRemovals,
}

/// Returns what limits the rate of a run with `--bwlimit`.
pub fn throttle<'a>(run_context: &RunContext<'a>) -> Option<Throttle<'a>> {
    run_context
        .options
        .connect
        .bwlimit_bytes_per_sec
        .map(|rate| Throttle::new(rate, run_context.process.stop))
}

impl<'a> Sender<'a> {
    /// Runs until the receiver has everything. `arguments` and `listed` say what to send.
    pub fn run(
        &self,
        arguments: &[Vec<u8>],
        listed: Option<&[Vec<u8>]>,
        tally: &mut Tally,
    ) -> Result<()> {
        let scan_terms = self.scan_terms();
        let compared_by = Some(&self.checksums.compared_by);
        let params = PrefetchParams {
            run_context: self.run_context,
            arguments,
            listed,
            digester: self.dest_dirs.map(|dest_dirs| dest_dirs.digester()),
            compared_by,
            scan_terms,
            early: None,
        };
        params.with_prefetch(|prefetch| self.run_on(&prefetch, None, tally))?
    }

    /// As [`Sender::run`], with a scan of the source in progress. `sent` is set if the receiver already has the
    /// [`Roots`](crate::proto::Roots).
    pub fn run_on(
        &self,
        prefetch: &SourcePrefetch<'_>,
        sent: Option<SentRoots>,
        tally: &mut Tally,
    ) -> Result<()> {
        prefetch.end_prefetch(self.scan_terms());
        self.peer.set_on_end(prefetch.peer_is_gone.clone());
        let start = prefetch.start()?;
        let sent_roots = match sent {
            Some(sent) => sent,
            None => self.send_roots(prefetch, &start)?,
        };
        let SentRoots {
            whole,
            named,
            failed,
            more: (problems, notes),
        } = sent_roots;
        let PrefetchStart { gathered, root, .. } = start;
        let options = self.run_context.options;
        let kept = KeptDirs::default();
        let removed = Mutex::new(Tally::default());
        let totals = TotalsSender::default();
        std::thread::scope(|scope| {
            // After an error, threads may wait for requests that never come. After a normal end none do.
            let _end = OnDrop(|| self.peer.close());
            for &lane in self.peer.lanes() {
                let kept = &kept;
                let removed = &removed;
                spawn(scope, "answer", move || {
                    if let Err(error) = self.answer(lane, kept, removed) {
                        self.peer.fail(error);
                    }
                })?;
            }
            // Dropped at the end of the scope, which ends the thread.
            let (_going, over) = mpsc::channel();
            if self.facts().takes_totals {
                let totals = &totals;
                let list = prefetch.counter();
                spawn(scope, "totals", move || totals.run(self.peer, list, over))?;
            }

            let mut listing_sender = ListingSender {
                sender: self,
                prefetch,
                kept: &kept,
                totals: &totals,
                named: SentNames {
                    ids: prefetch.ids(),
                    sent: named,
                    is_on: !options.preserve.numeric_ids,
                },
                dest_dirs: None,
                next_id: 0,
                // A dry run requests only digests.
                keeps: !options.dry_run
                    || options.delta.detect_renamed == Some(DetectRenamed::Content),
            };
            let mut counted = Tally::default();
            gathered.count(&mut counted, self.facts().lists_bare_top);
            if gathered.top.is_some()
                && let Some(gauge) = self.run_context.gauge
            {
                gauge.pass_root();
            }
            self.report_all(problems, notes, &mut counted)?;
            if gathered.found > 0 || !gathered.missing.is_empty() {
                listing_sender.dest_dirs = self.dest_dirs.map(|dest_dirs| dest_dirs.begin(whole));
                listing_sender.send_tree(root, &mut counted)?;
            }
            // Before the end of the list, because a receiver that has everything may leave.
            for explained in self.run_context.explained() {
                (self.report)(explained)?;
            }
            self.peer.end_listings(&counted)?;
            tally.merge(&counted);
            if let Some(dest_dirs) = &mut listing_sender.dest_dirs {
                dest_dirs.end();
            }

            let mut received = self.peer.finish()?;
            received.take_back(failed);
            tally.merge(&received);
            Ok::<(), Error>(())
        })?;
        self.end(removed, tally)
    }

    /// Does what remains when the receiver has everything: late removals, the counts and reports of this end, the goodbye.
    fn end(&self, removed: Mutex<Tally>, tally: &mut Tally) -> Result<()> {
        self.remove_late(&removed)?;
        let removed = removed.into_inner();
        tally.merge(&removed);
        tally.merge(&self.unsent.lock());
        if let Some(cache) = self.run_context.any_checksum_cache()
            && let Some(warning) = cache.end()
        {
            // A receiver that has everything may have left. That its warning is lost must not end the run with an error.
            let _ = (self.report)(warning);
        }
        if self.profile {
            for line in self.peer.costs() {
                (self.report)(Event::Problem(Problem::new(line, Weight::Warning)))?;
            }
        }
        self.peer.leave(removed);
        Ok(())
    }

    fn facts(&self) -> &DestFacts {
        self.peer.facts()
    }

    fn send_roots(
        &self,
        prefetch: &SourcePrefetch<'_>,
        start: &PrefetchStart,
    ) -> Result<SentRoots> {
        let (mut roots, mut sent_roots) = sent_roots(
            &self.run_context,
            self.dest_dirs.is_some(),
            self.facts().lists_bare_top,
            start,
            prefetch.ids(),
        );
        if !self.facts().takes_problems {
            sent_roots.take_trouble_of(&mut roots);
        }
        self.peer.send_roots(roots)?;
        Ok(sent_roots)
    }

    fn scan_terms(&self) -> ScanTerms {
        ScanTerms {
            compares: self.dest_dirs.is_some(),
            is_super: self.receiver_is_super,
            path_max_bytes: self.facts().path_max_bytes,
            is_one_of_many: self.facts().is_one_of_many,
        }
    }

    /// Reports and counts problems and notes of this end.
    fn report_all(
        &self,
        problems: Vec<Problem>,
        notes: Vec<Vec<u8>>,
        counted: &mut Tally,
    ) -> Result<()> {
        for problem in &problems {
            counted.problem(problem.weight);
        }
        for problem in problems {
            (self.report)(Event::Problem(problem))?;
        }
        for note in notes {
            (self.report)(Event::Note(note))?;
        }
        Ok(())
    }

    /// Fails if the run must stop.
    fn go_on(&self) -> Result<()> {
        if self.run_context.process.stop.load(Ordering::Relaxed) {
            return Err(Error::new(Exit::Signal, "").by("sender"));
        }
        Ok(())
    }
}
