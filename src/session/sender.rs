//! The sending side of a session: walks the source, sends the listings that differ, and sends requested content.

mod dest_dirs;
mod digests;
mod facts;
mod listings;
mod peer;
mod roots;
mod totals;

pub use self::dest_dirs::{DestDirs, DestDirsWalk, DirComparison};
pub use self::facts::DestFacts;
use self::listings::ListingSender;
pub use self::peer::{BasisFate, ContentRequest, ContentSink, DestPeer, SenderJob};
use self::roots::SentNames;
pub use self::roots::{SentRoots, compare_walked, is_below, sent_roots};
use self::totals::TotalsSender;
use crate::apply::block_sums::SearchedFile;
use crate::apply::file::failure::{cannot_open, cannot_read, diminished, no_longer_regular};
use crate::apply::file::verify;
use crate::apply::{LateRemovals, SourceFile as SourceRemoval};
use crate::delta::Op;
use crate::digest::{self, By, CONTENT_LEN_BYTES, ContentHasher};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::compare::digest_of_beginning;
use crate::fs::medium::Reread;
use crate::fs::source_reader::{SourceReader, SourceWatch};
use crate::fs::sys;
use crate::options::{Append, DetectRenamed, RemoveSource, Verify};
use crate::path::{self, RelPath};
use crate::proto::limits::{WHOLE_MAX_BYTES, content_max_bytes};
use crate::proto::{Basis, DirId, FileId, Lane};
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants, Weight};
use crate::report::gauge::FileMark;
use crate::session::checksums::SessionChecksums;
use crate::session::compression::is_left_out;
use crate::session::connection::unexpected;
use crate::session::source_prefetch::{PrefetchParams, PrefetchStart, ScanTerms, SourcePrefetch};
use crate::walk::cold_files::read_ahead;
use crate::walk::run_context::RunContext;
use crate::walk::{ComparedSource, SourceDir};
use crate::work::on_drop::OnDrop;
use crate::work::thread::spawn;
use crate::work::throttle::Throttle;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, mpsc};

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

/// What is kept of a directory that was sent until no more of its files are requested.
struct KeptDir {
    list: Arc<DirList>,
    places: Vec<Option<SourceDir>>,
    renamed_from: Option<Vec<u8>>,
    /// The bytes of its files that were not sent so far, for the live display.
    unsent_bytes: AtomicU64,
    /// The files among them.
    unsent_files: AtomicU64,
}

impl KeptDir {
    /// Returns the entry of a file that was requested.
    fn regular_file(&self, file: FileId) -> Result<&Entry> {
        let entry = self.list.entries.get(file.entry as usize);
        entry
            .filter(|entry| entry.kind() == Kind::File)
            .ok_or_else(|| unexpected("request for an entry that is not a regular file"))
    }

    /// Returns the name of an entry at the source.
    fn name_of(&self, entry: &Entry) -> &[u8] {
        self.renamed_from
            .as_deref()
            .unwrap_or(self.list.name(entry))
    }
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
        let options = self.run_context.options;
        prefetch.end_prefetch(self.scan_terms());
        self.peer.set_on_end(prefetch.peer_is_gone.clone());
        let start = prefetch.start()?;
        let sent_roots = sent.map_or_else(|| self.send_roots(prefetch, &start), Ok)?;
        let PrefetchStart { gathered, root, .. } = start;
        let SentRoots {
            whole,
            named,
            failed,
            more: (problems, notes),
        } = sent_roots;
        let named = SentNames {
            ids: prefetch.ids(),
            sent: named,
            is_on: !options.preserve.numeric_ids,
        };
        let kept = Mutex::new(HashMap::new());
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
                named,
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
        let mut events = Vec::new();
        let info_level = self.run_context.options.output.info.remove;
        self.late_removals.go(info_level, &mut events);
        self.report_removals(events, &removed)?;
        let removed = removed.into_inner();
        tally.merge(&removed);
        tally.merge(&self.unsent.lock());
        if let Some(warning) = self
            .run_context
            .any_checksum_cache()
            .and_then(|cache| cache.end())
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

    /// Answers the requests on a lane, in order, until the receiver has everything.
    fn answer(
        &self,
        lane: Lane,
        kept: &Mutex<HashMap<DirId, Arc<KeptDir>>>,
        removed: &Mutex<Tally>,
    ) -> Result<()> {
        let keep = |dir: DirId| {
            let found = kept.lock().get(&dir).cloned();
            found.ok_or_else(|| unexpected(&format!("file for unknown directory id {dir}")))
        };
        let mut open: Option<(DirId, u16, SourceDir)> = None;
        let mut files_ahead = 0_usize;
        loop {
            let Some(job) = self.peer.next(lane)? else {
                return Ok(());
            };
            match job {
                SenderJob::Forget(dir) => {
                    let forgotten = kept.lock().remove(&dir);
                    if let (Some(gauge), Some(forgotten)) = (self.run_context.gauge, forgotten) {
                        let unsent_files = forgotten.unsent_files.load(atomic::Ordering::Relaxed);
                        let unsent_bytes = forgotten.unsent_bytes.load(atomic::Ordering::Relaxed);
                        gauge.pass(unsent_files, unsent_bytes);
                        gauge.skip(unsent_files);
                    }
                }
                SenderJob::Remove(file) => self.remove(&*keep(file.dir)?, file, removed)?,
                SenderJob::SendDigest(file) => {
                    let digest = self.digest_of(&*keep(file.dir)?, file)?;
                    self.peer.send_digest(file, digest)?;
                }
                SenderJob::Send(request) => {
                    let file = request.file;
                    let kept = keep(file.dir)?;
                    let entry = kept.regular_file(file)?;
                    let is_open = open.as_ref().is_some_and(|(dir, origin, _)| {
                        (*dir, *origin) == (file.dir, entry.origin)
                    });
                    if !is_open {
                        let place = kept
                            .places
                            .get(entry.origin as usize)
                            .and_then(Option::as_ref);
                        let place = place.ok_or_else(|| {
                            unexpected("request for an entry without a source directory")
                        })?;
                        open = match place.opened() {
                            Ok(place) => Some((file.dir, entry.origin, place)),
                            Err(error) => {
                                let problem =
                                    cannot_open(&place.full(kept.list.name(entry)), &error);
                                self.unsent.lock().unsend(entry.len_bytes);
                                let sink = self.peer.content(file, lane, false);
                                self.unsent(&*sink, Some(problem))?;
                                open = None;
                                continue;
                            }
                        };
                    }
                    let (_, _, place) = open.as_ref().expect("opened above");
                    let unsent_bytes = kept.unsent_bytes.load(atomic::Ordering::Relaxed);
                    kept.unsent_bytes.store(
                        unsent_bytes.saturating_sub(entry.len_bytes),
                        atomic::Ordering::Relaxed,
                    );
                    let unsent_files = kept.unsent_files.load(atomic::Ordering::Relaxed);
                    kept.unsent_files
                        .store(unsent_files.saturating_sub(1), atomic::Ordering::Relaxed);
                    let name = kept.name_of(entry);
                    if files_ahead == 0 {
                        files_ahead = self.read_ahead(
                            self.peer.next_files(lane, file.dir),
                            &kept,
                            entry.origin,
                            place,
                        );
                    } else {
                        files_ahead -= 1;
                    }
                    self.send(&request, lane, (place, name), entry.len_bytes)?;
                }
            }
        }
    }

    /// Starts to read those files of one origin that are requested next, if they are not cached. Returns how many files
    /// were considered.
    fn read_ahead(&self, next: Vec<u32>, kept: &KeptDir, origin: u16, place: &SourceDir) -> usize {
        let entries = next
            .iter()
            .filter_map(|&at| kept.list.entries.get(at as usize));
        let files = entries.filter(|entry| entry.origin == origin).map(|entry| {
            let name = kept.name_of(entry);
            ComparedSource {
                entry,
                plain_digest: None,
                place: Some(place),
                name,
            }
        });
        read_ahead(files, &self.run_context.options.select);
        next.len()
    }

    fn remove(&self, kept: &KeptDir, file: FileId, removed: &Mutex<Tally>) -> Result<()> {
        let entry = kept
            .list
            .entries
            .get(file.entry as usize)
            .filter(|entry| !entry.is_dir());
        let entry = entry.ok_or_else(|| unexpected("removal of an unknown file"))?;
        if self.run_context.options.select.remove_source == RemoveSource::No {
            return Err(unexpected("removal without --remove-source-files"));
        }
        let Some(Some(place)) = kept.places.get(entry.origin as usize) else {
            return Ok(());
        };
        let name = kept.name_of(entry);
        let leaving = SourceRemoval {
            place: place.clone(),
            name: name.to_vec(),
            path: RelPath::parse(&path::join(place.path.as_bytes(), name)).unwrap_or_default(),
            kind: entry.kind(),
            was: (entry.len_bytes, entry.mtime),
            inode: self.opened.lock().remove(&file),
            lacks_fraction: self.run_context.options.connect.lacks_fractions(),
            followed: self.run_context.options.select.copy_links,
            is_shared: place.may_have_other_paths(&self.run_context.options.select),
        };
        if leaving.is_shared && self.facts().takes_late_reports {
            self.late_removals.add(leaving);
            return Ok(());
        }
        let mut events = Vec::new();
        let info_level = self.run_context.options.output.info.remove;
        leaving.go(info_level, None, &mut events);
        self.report_removals(events, removed)
    }

    fn report_removals(&self, events: Vec<Event>, removed: &Mutex<Tally>) -> Result<()> {
        for event in events {
            removed.lock().event(&event);
            (self.report)(event)?;
        }
        Ok(())
    }

    /// Sends the content of a file, or the reason why it cannot be read, and counts it for the live display.
    fn send(
        &self,
        request: &ContentRequest,
        lane: Lane,
        (place, name): (&SourceDir, &[u8]),
        listed_bytes: u64,
    ) -> Result<()> {
        let path = || path::join(place.path.as_bytes(), name);
        let mark = self
            .run_context
            .gauge
            .map(|gauge| gauge.begin(listed_bytes, path));
        let sent = self.send_marked(request, lane, (place, name), listed_bytes, mark.as_ref());
        if sent.is_err()
            && let Some(mark) = &mark
        {
            mark.give_up();
        }
        sent
    }

    /// Sends the content of a file, or the reason why it cannot be read.
    fn send_marked(
        &self,
        request: &ContentRequest,
        lane: Lane,
        (place, name): (&SourceDir, &[u8]),
        listed_bytes: u64,
        mark: Option<&FileMark>,
    ) -> Result<()> {
        let file = request.file;
        let skip = self
            .run_context
            .options
            .delta
            .compress
            .skip
            .as_deref()
            .unwrap_or_default();
        let sink = self.peer.content(file, lane, is_left_out(name, skip));
        let source = match self.open(file, (place, name), listed_bytes) {
            Ok(source) => source,
            Err(problem) => {
                if let Some(mark) = mark {
                    mark.give_up();
                }
                self.unsent.lock().unsend(listed_bytes);
                return self.unsent(&*sink, Some(problem));
            }
        };
        let len_bytes = source.len_bytes();
        let watch = if self.wants.source_changes {
            SourceWatch::begin(source.file())
        } else {
            None
        };
        let content = OpenContent {
            sender: self,
            sink,
            place,
            name,
            source,
            watch,
            mark,
        };
        let mut at = 0;
        match &request.basis {
            Basis::Prefix { .. } if len_bytes < listed_bytes => {
                return self.unsent(&*content.sink, Some(diminished(&place.full(name))));
            }
            Basis::Prefix {
                len_bytes: has_bytes,
                digest,
            } => {
                let from = content.source.file();
                let is_over = || self.peer.is_silent();
                if let Some(theirs) = digest
                    && digest_of_beginning(from, *has_bytes, &self.checksums.compared_by, &is_over)
                        .ok()
                        != Some(*theirs)
                {
                    if let Some(mark) = mark {
                        mark.give_up();
                    }
                    return self.unsent(&*content.sink, None);
                }
                at = *has_bytes;
            }
            Basis::Blocks(blocks) => {
                let in_place = match request.fate {
                    BasisFate::ByOptions => self.run_context.options.place.inplace,
                    BasisFate::Overwritten => true,
                    BasisFate::Kept => false,
                };
                return content.send_difference(blocks, in_place);
            }
            Basis::None if len_bytes.max(listed_bytes) <= WHOLE_MAX_BYTES as u64 => {
                // A single read gets the content, and one byte of extra room shows that the file ends there.
                let room = content.source.room_from(0).min(len_bytes + 1);
                let mut data = vec![0; room as usize];
                if content.source.read_at(0, &mut data).ok() == Some(len_bytes as usize) {
                    content.pace(len_bytes);
                    data.truncate(len_bytes as usize);
                    content.report_change()?;
                    let digest = digest::whole_by(self.checksums.plain_by, &data);
                    if let Err(error) =
                        content.reread(0..len_bytes, self.checksums.plain_by, digest)
                    {
                        return content.unsent(&error);
                    }
                    return content.sink.whole(data, digest);
                }
                // The file has changed since it was opened, or cannot be read: the receiver learns of that between the
                // pieces.
            }
            Basis::None => {}
        }
        content.send_pieces(at)
    }

    /// Opens a file to send.
    fn open(
        &self,
        id: FileId,
        (place, name): (&SourceDir, &[u8]),
        listed_bytes: u64,
    ) -> std::result::Result<SourceReader<OwnedFd>, Problem> {
        let select = &self.run_context.options.select;
        let unreadable = |error: io::Error| cannot_read(&place.full(name), &error);
        let file = place
            .open_file(name, select)
            .map_err(|error| cannot_open(&place.full(name), &error))?;
        let stat = sys::fstat(file.as_fd()).map_err(unreadable)?;
        if select.remove_source != RemoveSource::No {
            self.opened.lock().insert(id, (stat.dev, stat.ino));
        }
        // The length is false for some files, and a device may have no end.
        let max_bytes = content_max_bytes(listed_bytes);
        match Kind::of_mode(stat.mode) {
            Some(Kind::File) => Ok(SourceReader::of_file(file, stat.len_bytes, max_bytes)),
            Some(Kind::Device) if select.copy_devices => {
                let len_bytes = sys::content_len(file.as_fd()).map_err(unreadable)?;
                Ok(SourceReader::of_device(file, len_bytes, max_bytes))
            }
            _ => Err(no_longer_regular(&place.full(name))),
        }
    }

    /// Reports that a file does not come, or not to its end.
    fn unsent(&self, sink: &dyn ContentSink, problem: Option<Problem>) -> Result<()> {
        if let (Some(problem), false) = (problem.clone(), self.facts().takes_problems) {
            let weight = match problem.weight {
                weight @ (Weight::Vanished | Weight::Warning) => weight,
                Weight::SourceError | Weight::Failed => Weight::SourceError,
            };
            (self.report)(Event::Problem(problem.weighing(weight)))?;
        }
        sink.refuse(problem)
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
        let mut events = problems
            .into_iter()
            .map(Event::Problem)
            .chain(notes.into_iter().map(Event::Note));
        events.try_for_each(self.report)
    }

    fn go_on(&self) -> Result<()> {
        if self
            .run_context
            .process
            .stop
            .load(atomic::Ordering::Relaxed)
        {
            return Err(Error::new(Exit::Signal, "").by("sender"));
        }
        Ok(())
    }
}

/// The content of a file that is sent.
struct OpenContent<'a> {
    sender: &'a Sender<'a>,
    sink: Box<dyn ContentSink + 'a>,
    /// Its directory and its name there.
    place: &'a SourceDir,
    name: &'a [u8],
    source: SourceReader<OwnedFd>,
    /// Set if the client wants to know whether the file is changed while it is read.
    watch: Option<SourceWatch>,
    /// The file in the live display.
    mark: Option<&'a FileMark>,
}

impl OpenContent<'_> {
    /// Sends a file without a basis, from the offset `at`.
    fn send_pieces(&self, mut at: u64) -> Result<()> {
        let OpenContent { sender, sink, .. } = self;
        sink.begin()?;
        let mut hasher = ContentHasher::new(sender.checksums.plain_by);
        let mut data = Vec::new();
        let piece_max_bytes = sender.facts().piece_max_bytes as u64;
        if sender.facts().digests_prefix
            && sender.run_context.options.place.append == Some(Append::Verify)
        {
            // The digest is that of the whole file, and the receiver compares it.
            let mut hashed = 0;
            while hashed < at {
                data.resize((at - hashed).min(piece_max_bytes) as usize, 0);
                match self.source.read_at(hashed, &mut data) {
                    Ok(0) => break,
                    Ok(got) => {
                        hasher.update(&data[..got]);
                        hashed += got as u64;
                    }
                    Err(error) => return self.unsent(&error),
                }
                sender.go_on()?;
            }
        }
        let start = at;
        loop {
            data.resize(self.source.room_from(at).min(piece_max_bytes) as usize, 0);
            match self.source.read_at(at, &mut data) {
                Ok(0) => break,
                Ok(got) => {
                    data.truncate(got);
                    hasher.update(&data);
                    at += got as u64;
                    self.pace(got as u64);
                    sink.data(&mut data)?;
                }
                Err(error) => return self.unsent(&error),
            }
            sender.go_on()?;
        }
        self.report_change()?;
        let digest = hasher.finish();
        if let Err(error) = self.reread(start..at, sender.checksums.plain_by, digest) {
            return self.unsent(&error);
        }
        sink.end(digest)
    }

    /// Sends a file as ranges of the receiver's blocks and data that is not among them. `in_place`: the receiver writes
    /// over its blocks.
    fn send_difference(&self, blocks: &[u8], in_place: bool) -> Result<()> {
        let OpenContent { sender, sink, .. } = self;
        let len_bytes = self.source.len_bytes();
        sink.begin()?;
        // The error that stopped the search, other than a failure to read the file.
        let mut stopped = None;
        let mut end = 0;
        let mut emit = |op: Op<'_>, bytes: &[u8]| {
            let sent = match op {
                Op::Data(data) => {
                    end += data.len() as u64;
                    self.pace(data.len() as u64);
                    sink.data(&mut data.to_vec())
                }
                Op::Copy {
                    offset_bytes,
                    len_bytes,
                } => {
                    end += len_bytes;
                    self.count(len_bytes);
                    sink.copied(offset_bytes, len_bytes, bytes)
                }
            };
            sent.and_then(|()| sender.go_on()).map_err(|error| {
                stopped = Some(error);
                io::Error::other("stopped")
            })
        };
        let read_at = |offset: u64, into: &mut [u8]| self.source.read_at(offset, into);
        let file = SearchedFile {
            len_bytes,
            in_place,
            threads: sender.run_context.process.threads,
            read_at: &read_at,
        };
        let digest = sender.checksums.block_sums.find(blocks, &file, &mut emit)?;
        match (digest, stopped) {
            (_, Some(error)) => Err(error),
            (Ok(digest), None) => {
                self.report_change()?;
                if let Err(error) = self.reread(0..end, sender.checksums.blocks_by, digest) {
                    return self.unsent(&error);
                }
                sink.end(digest)
            }
            (Err(error), None) => self.unsent(&error),
        }
    }

    /// Reads a range of the content again, if that is wanted (`--verify=source`). Fails if it has not this digest.
    fn reread(&self, range: Range<u64>, by: By, digest: [u8; CONTENT_LEN_BYTES]) -> io::Result<()> {
        let sender = self.sender;
        if sender.run_context.options.place.verify != Some(Verify::WrittenAndSource) {
            return Ok(());
        }
        let is_over = || sender.peer.is_silent() || sender.go_on().is_err();
        let again = Reread {
            file: self.source.file(),
            range,
            hasher: ContentHasher::new(by),
            is_over: &is_over,
        };
        if again.of_source()? == digest {
            Ok(())
        } else {
            Err(verify::source_differs())
        }
    }

    /// Reports that the file was changed while it was read, if it was.
    fn report_change(&self) -> Result<()> {
        if let Some(watch) = &self.watch
            && watch.has_changed(self.source.file())
        {
            let name = path::join(self.place.path.as_bytes(), self.name);
            (self.sender.report)(Event::SourceChanged(name))?;
        }
        Ok(())
    }

    /// Reports that the file cannot be read to its end.
    fn unsent(&self, error: &io::Error) -> Result<()> {
        if let Some(mark) = &self.mark {
            mark.give_up();
        }
        if self.sender.facts().counts_parts {
            self.sender.unsent.lock().unsend(self.source.len_bytes());
        }
        let problem = cannot_read(&self.place.full(self.name), error);
        self.sender.unsent(&*self.sink, Some(problem))
    }

    /// Counts bytes of the file that are sent, and waits as `--bwlimit` requires.
    fn pace(&self, bytes: u64) {
        self.count(bytes);
        if let Some(throttle) = &self.sender.throttle {
            throttle.wait(bytes);
        }
    }

    /// Counts bytes of the file that the receiver has or gets.
    fn count(&self, bytes: u64) {
        if let Some(mark) = &self.mark {
            mark.add(bytes);
        }
    }
}
