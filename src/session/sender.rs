//! The sending side of a session: walks the source, sends the listings that differ, and sends requested content.

mod inbox;

pub use self::inbox::SenderInbox;
use self::inbox::{Order, Owed, lane_index};
use crate::apply::BlockSums;
use crate::apply::SourceFile as Leaving;
use crate::apply::file::failure::{cannot_open, cannot_read, no_longer_regular};
use crate::delta::{Op, Signature, search, search_at};
use crate::digest::{self, By, Comparison, ContentHasher};
use crate::error::Error;
use crate::exit::Exit;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::compare::digest_of_beginning;
use crate::fs::ids::Ids;
use crate::fs::sys;
use crate::options::RemoveSource;
use crate::path::{self, RelPath};
use crate::proto::limits::{DATA_MAX_BYTES, LINES_MAX, WHOLE_MAX_BYTES, content_max_bytes};
use crate::proto::rsync::search::BlockIndex;
use crate::proto::{Basis, Class, ContentDigest, DirId, FileId, IdName, Lane, Message, Roots, Seen, Told, cut};
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants, Weight};
use crate::session::compression_choice::is_left_out;
use crate::session::connection::{Connection, MessageHandler, undecodable, unexpected};
use crate::session::dir_digest::Children;
use crate::session::shortcuts::Shortcuts;
use crate::session::source_prefetch::{Aim, Audience, Found, Looking, PrefetchStart};
use crate::walk::run_context::Terms;
use crate::walk::source_args::{Gathered, is_bare};
use crate::walk::{ListedDir, SourceDir, Ticket};
use crate::work::thread::spawn;
use crate::work::throttle::Throttle;
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic;

/// Files of this length or more are searched for the receiver's blocks by several threads.
const SEARCH_BY_SEVERAL_BYTES: u64 = 64 << 20;

/// The length of the first piece of a file for a stock rsync.
const FIRST_PIECE_BYTES: usize = 16 << 10;

/// The sender of a session.
pub struct Sender<'a> {
    /// The context of the run.
    pub terms: Terms<'a>,
    /// The connection to the receiver.
    pub line: &'a Connection,
    /// The messages of the receiver.
    pub heard: &'a SenderInbox,
    /// The key of directory digests.
    pub key: [u8; 16],
    /// The receiver may change owners.
    pub receiver_is_super: bool,
    /// The directory that the receiver guessed: its digests begin with this one, whatever is sent.
    pub guess: Option<RelPath>,
    /// How to digest contents that are sent without the blocks of a basis.
    pub plain_by: By,
    /// Which sums of the blocks of a basis the receiver sends. A stock rsync reports no problems of this end.
    pub block_sums: BlockSums,
    /// How to compare contents that the receiver has as well.
    pub compared_by: Comparison,
    /// The events that the client wants.
    pub wants: Wants,
    /// Whether to report the costs of this end.
    pub profile: bool,
    /// `--bwlimit`
    pub throttle: Option<Throttle<'a>>,
    /// Reports events of this end, which the receiver does not report.
    pub tell: &'a (dyn Fn(Event) -> Result<(), Error> + Sync),
}

/// What the receiver has in place of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReceiverDir {
    /// The receiver does not send this.
    Unknown,
    /// No directory.
    Absent,
    /// See [`Seen`].
    Said(Seen),
}

/// A directory whose subdirectories are being walked.
struct SenderFrame {
    /// Its subdirectories: paths, entries, and tickets.
    subs: std::vec::IntoIter<(RelPath, Entry, Ticket)>,
    was_told: bool,
    there: ReceiverDir,
    /// The subdirectories that the receiver has.
    children: Children<u32>,
}

/// What is kept of a directory that was sent until no more of its files are requested.
struct KeptDir {
    list: DirList,
    places: Vec<Option<SourceDir>>,
    renamed_from: Option<Vec<u8>>,
}

impl<'a> Sender<'a> {
    /// Runs until the receiver has everything. `arguments` and `listed` say what to send.
    pub fn run(&self, arguments: &[Vec<u8>], listed: Option<&[Vec<u8>]>, tally: &mut Tally) -> Result<(), Error> {
        let audience = self.audience();
        let compared_by = Some(&self.compared_by);
        let aim = Aim { terms: self.terms, arguments, listed, key: self.key, compared_by, audience, early: None };
        aim.look(|looking| self.run_on(&looking, None, tally))?
    }

    /// As [`Sender::run`], with a scan of the source in progress. `told` is set if the receiver already has the
    /// [`Roots`].
    pub fn run_on(&self, looking: &Looking<'_>, told: Option<Outset>, tally: &mut Tally) -> Result<(), Error> {
        let options = self.terms.options;
        looking.meet(self.audience());
        self.heard.tells(looking.is_unheard());
        [Class::Early, Class::Asked, Class::Again].into_iter().for_each(|class| self.line.spare(class));
        // To show progress, the receiver waits for many directories before it takes any.
        if !self.wants.progress {
            self.line.spare(Class::Dirs);
        }
        let start = looking.start()?;
        let outset = match told {
            Some(outset) => outset,
            None => {
                let (roots, outset) = outset(&self.terms, self.shortcuts(), &start, looking.ids());
                let (roots, outset) = if self.is_stock() { outset.with_trouble_of(roots) } else { (roots, outset) };
                self.line.send(&Message::Roots(Box::new(roots)))?;
                outset
            }
        };
        let PrefetchStart { gathered, root, .. } = start;
        let Outset { whole, named, failed, more: (problems, notes) } = outset;
        let named = SentNames { ids: looking.ids(), said: named, is_on: !options.preserve.numeric_ids };
        let kept = Mutex::new(HashMap::new());
        let removed = Mutex::new(Tally::default());
        std::thread::scope(|scope| {
            // After an error, threads may wait for requests that never come. After a normal end none do.
            let _end = OnEnd(|| self.heard.handle_end(Error::new(Exit::Stream, "")));
            for lane in [Lane::Asked, Lane::Again] {
                let (kept, removed) = (&kept, &removed);
                spawn(scope, "answer", move || {
                    if let Err(error) = self.answer(lane, kept, removed) {
                        self.heard.handle_end(error);
                    }
                })?;
            }
            let mut teller = ListingSender {
                sender: self,
                looking,
                kept: &kept,
                named,
                whole: whole.into_iter().enumerate().map(|(at, path)| (path, at)).collect(),
                whole_passed: 0,
                owed: Owed::default(),
                next_id: 0,
                unasked: self.shortcuts().unasked,
                buffer: Vec::new(),
                keeps: !options.dry_run,
            };
            let mut counted = Tally::default();
            gathered.count(&mut counted);
            for problem in problems {
                counted.problem(problem.weight);
                (self.tell)(Event::Problem(problem))?;
            }
            for note in notes {
                (self.tell)(Event::Note(note))?;
            }
            if gathered.found > 0 || !gathered.missing.is_empty() {
                teller.send_tree(root, &mut counted)?;
            }
            self.heard.lock().has_told_all = true;
            self.line.send(&Message::DirsEnd(Box::new(counted.clone())))?;
            tally.merge(&counted);
            let mut received = self.heard.finished(teller.owed, &|cost| self.line.consumed(Class::Digests, cost))?;
            received.take_back(failed);
            tally.merge(&received);
            Ok::<(), Error>(())
        })?;
        let removed = removed.into_inner();
        tally.merge(&removed);
        if self.profile {
            for line in self.line.cost("server") {
                (self.tell)(Event::Problem(Problem::new(line, Weight::Warning)))?;
            }
        }
        // A receiver that has everything may have left: it waits for this message only if something may be in it.
        let _ = self.line.send(&Message::Bye(Box::new(removed)));
        Ok(())
    }

    fn audience(&self) -> Audience {
        let (compares, is_super) = (self.shortcuts().compare, self.receiver_is_super);
        Audience { compares, is_super, is_stock: self.is_stock() }
    }

    /// Returns whether the receiver is a stock rsync.
    fn is_stock(&self) -> bool {
        matches!(self.block_sums, BlockSums::Stock { .. })
    }

    /// Returns the shortcuts that the run and the receiver permit.
    fn shortcuts(&self) -> Shortcuts {
        let none = Shortcuts { compare: false, unasked: false };
        if self.is_stock() { none } else { Shortcuts::of(self.terms.options, self.wants) }
    }

    /// Answers the requests on a lane, in order, until the receiver has everything.
    fn answer(
        &self,
        lane: Lane,
        kept: &Mutex<HashMap<DirId, Arc<KeptDir>>>,
        removed: &Mutex<Tally>,
    ) -> Result<(), Error> {
        let at = lane_index(lane).expect("only lanes that are asked for are answered");
        let keep = |dir: DirId| kept.lock().get(&dir).cloned();
        let mut open: Option<(DirId, u16, SourceDir)> = None;
        let mut buffer = Vec::new();
        loop {
            let order = self.heard.wait(|state| match state.orders[at].pop_front() {
                None if state.finished.is_some() => Some(None),
                found => found.map(Some),
            })?;
            let Some((order, cost)) = order else { return Ok(()) };
            self.line.consumed(Class::Wants, cost);
            match order {
                Order::Forget(dir) => {
                    kept.lock().remove(&dir);
                    if self.is_stock() {
                        // A stock rsync waits for the same message.
                        self.line.send(&Message::Done(dir))?;
                    }
                }
                Order::Confirm(file) => self.line.send(&Message::Begin { file, lane: Lane::Early })?,
                Order::Remove(file) => {
                    let Some(kept) = keep(file.dir) else {
                        return Err(unexpected(&format!("file for unknown directory id {}", file.dir)));
                    };
                    self.remove(&kept, file, removed)?;
                }
                Order::Send(file, basis) => {
                    let Some(kept) = keep(file.dir) else {
                        return Err(unexpected(&format!("file for unknown directory id {}", file.dir)));
                    };
                    let entry = kept.list.entries.get(file.entry as usize).filter(|entry| entry.kind() == Kind::File);
                    let entry = entry.ok_or_else(|| unexpected("request for an entry that is not a regular file"))?;
                    let is_open =
                        open.as_ref().is_some_and(|(dir, origin, _)| (*dir, *origin) == (file.dir, entry.origin));
                    if !is_open {
                        let place = kept.places.get(entry.origin as usize).and_then(Option::as_ref);
                        let place =
                            place.ok_or_else(|| unexpected("request for an entry without a source directory"))?;
                        open = match place.reopened() {
                            Ok(place) => Some((file.dir, entry.origin, place)),
                            Err(error) => {
                                let problem = cannot_open(&place.full(kept.list.name(entry)), &error);
                                self.unsent(file, lane, Some(problem))?;
                                open = None;
                                continue;
                            }
                        };
                    }
                    let (_, _, place) = open.as_ref().expect("opened above");
                    let name = kept.renamed_from.as_deref().unwrap_or(kept.list.name(entry));
                    self.send(file, lane, (place, name), entry.len_bytes, &basis, &mut buffer)?;
                }
            }
        }
    }

    fn remove(&self, kept: &KeptDir, file: FileId, removed: &Mutex<Tally>) -> Result<(), Error> {
        let entry = kept.list.entries.get(file.entry as usize).filter(|entry| !entry.is_dir());
        let entry = entry.ok_or_else(|| unexpected("removal of an unknown file"))?;
        if self.terms.options.select.remove_source == RemoveSource::No {
            return Err(unexpected("removal without --remove-source-files"));
        }
        let Some(Some(place)) = kept.places.get(entry.origin as usize) else { return Ok(()) };
        let name = kept.renamed_from.as_deref().unwrap_or(kept.list.name(entry));
        let leaving = Leaving {
            place: place.clone(),
            name: name.to_vec(),
            path: RelPath::parse(&path::join(place.path.as_bytes(), name)).unwrap_or_default(),
            kind: entry.kind(),
            was: (entry.len_bytes, entry.mtime),
            followed: self.terms.options.select.copy_links,
            is_parked: true,
        };
        let mut events = Vec::new();
        leaving.go(self.terms.options.output.info.remove, None, &mut events);
        for event in events {
            removed.lock().event(&event);
            (self.tell)(event)?;
        }
        Ok(())
    }

    /// Sends the content of a file, or the reason why it cannot be read.
    fn send(
        &self,
        file: FileId,
        lane: Lane,
        (place, name): (&SourceDir, &[u8]),
        told_bytes: u64,
        basis: &Basis,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let unsent = |problem: Option<Problem>| self.unsent(file, lane, problem);
        let skip = self.terms.options.delta.compress.skip.as_deref().unwrap_or_default();
        let as_it_is = is_left_out(name, skip);
        let (from, len_bytes, max_bytes) = match self.open(place, name, told_bytes) {
            Ok(opened) => opened,
            Err(problem) => return unsent(Some(problem)),
        };
        let read_error = |error: &io::Error| cannot_read(&place.full(name), error);
        let from = from.as_fd();
        let content = OpenContent { file, lane, from, max_bytes, as_it_is };
        let mut at = 0;
        match basis {
            Basis::Prefix { len_bytes: has_bytes, digest } => {
                let is_over = || self.heard.is_silent();
                if let Some(theirs) = digest
                    && digest_of_beginning(from, *has_bytes, &self.compared_by, &is_over).ok() != Some(*theirs)
                {
                    return unsent(None);
                }
                at = *has_bytes;
            }
            Basis::Blocks(blocks) => {
                return self.send_difference(&content, len_bytes, blocks, &read_error);
            }
            Basis::None if !self.is_stock() && len_bytes.max(told_bytes) <= WHOLE_MAX_BYTES as u64 => {
                buffer.resize(WHOLE_MAX_BYTES + 1, 0);
                // A single read gets the content, and one byte of extra room shows that the file ends there.
                match sys::read(from, &mut buffer[..(len_bytes + 1).min(max_bytes) as usize]) {
                    Ok(got) if got as u64 == len_bytes => {
                        self.throttle(got as u64);
                        let data = buffer[..got].to_vec();
                        let digest = digest::whole(&data);
                        return self.line.send_with(&Message::Whole { file, lane, data, digest }, as_it_is);
                    }
                    // The file is growing, or longer than may be sent: send it in pieces.
                    Ok(_) => {}
                    Err(error) => return unsent(Some(read_error(&error))),
                }
            }
            Basis::None => {}
        }
        self.send_pieces(&content, at, &read_error)
    }

    /// Opens a file to send. Returns its length and how much of it may be sent: a file may grow, and a device may have
    /// no end.
    fn open(&self, place: &SourceDir, name: &[u8], told_bytes: u64) -> Result<(OwnedFd, u64, u64), Problem> {
        let select = &self.terms.options.select;
        let follow = select.copy_links || select.copy_unsafe_links;
        let from = sys::open_read(place.dir.fd(), name, follow, select.open_noatime)
            .map_err(|error| cannot_open(&place.full(name), &error))?;
        let stat = sys::fstat(from.as_fd()).map_err(|error| cannot_read(&place.full(name), &error))?;
        match Kind::of_mode(stat.mode) {
            Some(Kind::File) => Ok((from, stat.len_bytes, content_max_bytes(told_bytes))),
            Some(Kind::Device) if select.copy_devices => {
                let len_bytes =
                    sys::content_len(from.as_fd()).map_err(|error| cannot_read(&place.full(name), &error))?;
                Ok((from, len_bytes, len_bytes.min(content_max_bytes(told_bytes))))
            }
            _ => Err(no_longer_regular(&place.full(name))),
        }
    }

    /// Sends a file without a basis, from the offset `at`.
    fn send_pieces(
        &self,
        content: &OpenContent<'_>,
        mut at: u64,
        read_error: &dyn Fn(&io::Error) -> Problem,
    ) -> Result<(), Error> {
        let OpenContent { file, lane, from, max_bytes, as_it_is } = *content;
        self.line.send(&Message::Begin { file, lane })?;
        let mut hasher = ContentHasher::new(self.plain_by);
        let mut data = Vec::new();
        // A short file that a stock rsync gets comes here, too, and most files are short.
        let mut most_bytes = if self.is_stock() { FIRST_PIECE_BYTES } else { DATA_MAX_BYTES };
        loop {
            let room = max_bytes.saturating_sub(at);
            data.resize(room.min(most_bytes as u64) as usize, 0);
            most_bytes = DATA_MAX_BYTES;
            match sys::pread(from, &mut data, at) {
                Ok(0) => break,
                Ok(got) => {
                    data.truncate(got);
                    hasher.update(&data);
                    at += got as u64;
                    self.throttle(got as u64);
                    let piece = Message::Data { lane, data };
                    self.line.send_with(&piece, as_it_is)?;
                    // The message was copied, so its memory can be reused.
                    let Message::Data { data: spent, .. } = piece else { unreachable!("it is what was said") };
                    data = spent;
                }
                Err(error) => return self.unsent(file, lane, Some(read_error(&error))),
            }
            self.go_on()?;
        }
        self.line.send(&Message::End { lane, digest: hasher.finish() })
    }

    /// Sends a file as ranges of the receiver's blocks and data that is not among them.
    fn send_difference(
        &self,
        content: &OpenContent<'_>,
        len_bytes: u64,
        blocks: &[u8],
        read_error: &dyn Fn(&io::Error) -> Problem,
    ) -> Result<(), Error> {
        let OpenContent { file, lane, from, max_bytes, as_it_is } = *content;
        let place = &self.terms.options.place;
        // A stock rsync may update a partial file in place.
        let has_partial = self.is_stock() && (place.partial_dir.is_some() || place.delay_updates);
        let in_place = place.inplace || has_partial;
        self.line.send(&Message::Begin { file, lane })?;
        // The error that stopped the search, other than a failure to read the file.
        let mut stopped = None;
        let mut emit = |op: Op<'_>| {
            let said = match op {
                Op::Data(data) => {
                    self.throttle(data.len() as u64);
                    self.line.send_with(&Message::Data { lane, data: data.to_vec() }, as_it_is)
                }
                Op::Copy { offset_bytes, len_bytes } => {
                    self.line.send(&Message::Copy { lane, offset_bytes, len_bytes })
                }
            };
            said.and_then(|()| self.go_on()).map_err(|error| {
                stopped = Some(error);
                io::Error::other("stopped")
            })
        };
        let read_at = |offset: u64, into: &mut [u8]| sys::pread(from, into, offset);
        let signature = match self.block_sums {
            BlockSums::Native => Signature::decode(blocks).map_err(|bad| unexpected(&bad.to_string()))?,
            BlockSums::Stock { sums, protocol } => {
                let index = BlockIndex::decode(blocks, sums, protocol).map_err(undecodable)?;
                let found = index.search(max_bytes, in_place, &read_at, &mut emit);
                return self.end_difference(file, lane, found, stopped, read_error);
            }
        };
        let found = if len_bytes >= SEARCH_BY_SEVERAL_BYTES {
            search_at(&signature, len_bytes.min(max_bytes), in_place, self.terms.threads, &read_at, &mut emit)
        } else {
            let mut at = 0;
            let mut read = |into: &mut [u8]| {
                let room = (max_bytes - at).min(into.len() as u64) as usize;
                let got = sys::pread(from, &mut into[..room], at)?;
                at += got as u64;
                Ok(got)
            };
            search(&signature, len_bytes, in_place, &mut read, &mut emit)
        };
        self.end_difference(file, lane, found.map(|found| found.digest), stopped, read_error)
    }

    /// Ends a file that was searched for blocks of the receiver. `stopped`: the error that ended the search, other than
    /// a failure to read the file.
    fn end_difference(
        &self,
        file: FileId,
        lane: Lane,
        found: io::Result<ContentDigest>,
        stopped: Option<Error>,
        read_error: &dyn Fn(&io::Error) -> Problem,
    ) -> Result<(), Error> {
        match (found, stopped) {
            (_, Some(error)) => Err(error),
            (Ok(digest), None) => self.line.send(&Message::End { lane, digest }),
            (Err(error), None) => self.unsent(file, lane, Some(read_error(&error))),
        }
    }

    /// Reports that a file does not come, or not to its end. A stock rsync does not learn why.
    fn unsent(&self, file: FileId, lane: Lane, problem: Option<Problem>) -> Result<(), Error> {
        if let Some(problem) = problem.clone().filter(|_| self.is_stock()) {
            let weight = if problem.weight == Weight::Vanished { Weight::Vanished } else { Weight::SourceError };
            (self.tell)(Event::Problem(problem.weighing(weight)))?;
        }
        self.line.send(&Message::Unsent { file, lane, problem })
    }

    fn throttle(&self, bytes: u64) {
        if let Some(throttle) = &self.throttle {
            throttle.wait(bytes);
        }
    }

    fn go_on(&self) -> Result<(), Error> {
        if self.terms.stop.load(atomic::Ordering::Relaxed) {
            return Err(Error::new(Exit::Signal, "").by("sender"));
        }
        Ok(())
    }
}

/// The content of a file that is sent.
struct OpenContent<'a> {
    file: FileId,
    lane: Lane,
    from: BorrowedFd<'a>,
    /// How much of it may be sent.
    max_bytes: u64,
    /// It is not worth compressing.
    as_it_is: bool,
}

/// How much of [`Roots`], which cannot be split, problems and notes may take each.
const TROUBLE_MAX_BYTES: usize = 8 << 20;

/// Returns how many lines fit into [`Roots`].
fn fit_into_roots<T>(lines: &[T], len_bytes: impl Fn(&T) -> usize) -> usize {
    let mut left_bytes = TROUBLE_MAX_BYTES;
    let fits = |line: &&T| {
        left_bytes = left_bytes.saturating_sub(len_bytes(line));
        left_bytes > 0
    };
    lines.iter().take(LINES_MAX).take_while(fits).count()
}

/// Problems with arguments, and lines for stdout.
type Trouble = (Vec<Problem>, Vec<Vec<u8>>);

/// Returns the problems and notes that go into [`Roots`], and those that do not fit.
fn trouble(gathered: &Gathered) -> (Trouble, Trouble) {
    let (mut problems, mut notes) = (gathered.problems.clone(), gathered.notes.clone());
    let fit = |problems: &[Problem]| fit_into_roots(problems, |problem| problem.line.len());
    if fit(&problems) < problems.len() {
        // The receiver must know a problem that stops deletions before it begins.
        problems.sort_by_key(|problem| problem.weight != Weight::SourceError);
    }
    let more_problems = problems.split_off(fit(&problems));
    let more_notes = notes.split_off(fit_into_roots(&notes, Vec::len));
    ((problems, notes), (more_problems, more_notes))
}

/// What the sender keeps of the [`Roots`] that it sent.
pub struct Outset {
    /// The directories whose digests the receiver sends.
    whole: Vec<RelPath>,
    /// The ids whose names were sent.
    named: HashSet<(bool, u32)>,
    /// How many of the problems sent are failures. The receiver includes them in its counts.
    failed: u64,
    /// The problems and notes that did not fit.
    more: Trouble,
}

impl Outset {
    /// Moves the problems and notes of `roots` here, so that this end reports them.
    fn with_trouble_of(mut self, mut roots: Roots) -> (Roots, Outset) {
        let (problems, notes) = &mut self.more;
        problems.splice(0..0, std::mem::take(&mut roots.problems));
        notes.splice(0..0, std::mem::take(&mut roots.notes));
        self.failed = 0;
        (roots, self)
    }
}

/// Returns the message about the source arguments, and what to keep of it.
pub fn outset(terms: &Terms<'_>, shortcuts: Shortcuts, start: &PrefetchStart, ids: &Ids) -> (Roots, Outset) {
    let PrefetchStart { gathered, top, .. } = start;
    let mut named = SentNames { ids, said: HashSet::new(), is_on: !terms.options.preserve.numeric_ids };
    let whole = if shortcuts.compare { fully_walked_paths(gathered) } else { Vec::new() };
    let mut ids = Vec::new();
    let top = top.clone().map(|entry| {
        named.name(&entry, &mut ids);
        let mut list = DirList::default();
        list.push_entry(b".", entry);
        list
    });
    let ((problems, notes), more) = trouble(gathered);
    let failed = problems.iter().filter(|problem| problem.weight == Weight::Failed).count() as u64;
    let roots = Roots {
        found: gathered.found as u64,
        single: gathered.single.clone(),
        lone_dir_is_bare: gathered.lone_dir.as_deref().map(|dir| is_bare(terms, dir)),
        top,
        top_shown: gathered.top.as_ref().map(|(_, base)| base.shown.clone()).unwrap_or_default(),
        missing: gathered.missing.clone(),
        whole: whole.clone(),
        problems,
        notes,
        ids,
    };
    (roots, Outset { whole, named: named.said, failed, more })
}

/// The ids whose names were sent to the receiver.
struct SentNames<'a> {
    ids: &'a Ids,
    said: HashSet<(bool, u32)>,
    is_on: bool,
}

impl SentNames<'_> {
    /// Adds the names of an entry's ids, once each.
    fn name(&mut self, entry: &Entry, names: &mut Vec<IdName>) {
        for (is_group, id) in [(false, entry.uid), (true, entry.gid)] {
            if !self.is_on || id == 0 || !self.said.insert((is_group, id)) {
                continue;
            }
            let name = if is_group { self.ids.group_name(id) } else { self.ids.user_name(id) };
            if let Some(name) = name {
                names.push(IdName { is_group, id, name: name.to_vec() });
            }
        }
    }
}

/// Sends listings.
struct ListingSender<'t, 'a, 'l> {
    sender: &'t Sender<'a>,
    looking: &'t Looking<'l>,
    kept: &'t Mutex<HashMap<DirId, Arc<KeptDir>>>,
    named: SentNames<'t>,
    /// The directories whose digests the receiver sends, with their position.
    whole: HashMap<RelPath, usize>,
    /// How many of them were already reached.
    whole_passed: usize,
    /// How many directories that the sender lacks the receiver describes before the next relevant one.
    owed: Owed,
    next_id: DirId,
    unasked: bool,
    buffer: Vec<u8>,
    keeps: bool,
}

impl ListingSender<'_, '_, '_> {
    /// Walks the whole tree.
    fn send_tree(&mut self, root: Ticket, counted: &mut Tally) -> Result<(), Error> {
        let is_other = |guess: &RelPath| !(self.whole.len() == 1 && self.whole.contains_key(guess));
        if !self.whole.is_empty() && self.sender.guess.as_ref().is_some_and(is_other) {
            self.owed.0 += 1;
        }
        let there = self.there_at(&RelPath::root(), ReceiverDir::Unknown)?;
        let mut stack = vec![self.visit(root, there, None, true, counted)?];
        while let Some(frame) = stack.last_mut() {
            self.sender.go_on()?;
            let Some((path, entry, ticket)) = frame.subs.next() else {
                self.owed.0 += frame.children.left();
                stack.pop();
                continue;
            };
            let there = match &frame.there {
                ReceiverDir::Unknown => self.there_at(&path, ReceiverDir::Unknown)?,
                ReceiverDir::Absent | ReceiverDir::Said(Seen::Absent) => ReceiverDir::Absent,
                ReceiverDir::Said(Seen::Dir { .. } | Seen::Large(_)) => {
                    let name = digest::keyed_name(&self.sender.key, path.name());
                    match frame.children.pass_to(name) {
                        Some(ahead) => {
                            self.owed.0 += ahead;
                            ReceiverDir::Said(self.next_that_matters()?)
                        }
                        None => ReceiverDir::Absent,
                    }
                }
            };
            let was_told = frame.was_told;
            let frame = self.visit(ticket, there, (!was_told).then_some(entry), was_told, counted)?;
            stack.push(frame);
        }
        self.owed.0 += self.whole.len() - self.whole_passed;
        Ok(())
    }

    /// Returns what the receiver has in place of a directory that is named by an argument.
    fn there_at(&mut self, path: &RelPath, otherwise: ReceiverDir) -> Result<ReceiverDir, Error> {
        let Some(&turn) = self.whole.get(path) else { return Ok(otherwise) };
        // The receiver first describes the directories in between, which no longer exist here.
        self.owed.0 += turn - self.whole_passed;
        self.whole_passed = turn + 1;
        Ok(ReceiverDir::Said(self.next_that_matters()?))
    }

    fn next_digest(&self) -> Result<Seen, Error> {
        let (seen, cost) = self.sender.heard.wait(|state| state.seen.pop_front())?;
        if cost > 0 {
            self.sender.line.consumed(Class::Digests, cost);
        }
        Ok(seen)
    }

    /// Skips what the receiver sends about directories that the sender lacks and all below them, and returns the next
    /// item.
    fn next_that_matters(&mut self) -> Result<Seen, Error> {
        while !self.owed.is_paid() {
            let seen = self.next_digest()?;
            self.owed.pay(&seen);
        }
        self.next_digest()
    }

    /// Reads further items about a large directory until its digest arrives, or until it is known to have more entries
    /// than `len`. Returns `true` in that case: its digest is not needed then, and the following items only matter for
    /// its subdirectories.
    fn receive_large_reports(&self, there: &mut ReceiverDir, len: u64) -> Result<bool, Error> {
        while let ReceiverDir::Said(Seen::Large(count)) = *there {
            if count > len {
                return Ok(true);
            }
            *there = ReceiverDir::Said(self.next_digest()?);
        }
        Ok(false)
    }

    /// Sends the listing of a directory if it differs. `itself` is its own entry if its parent was not sent.
    fn visit(
        &mut self,
        ticket: Ticket,
        mut there: ReceiverDir,
        itself: Option<Entry>,
        parent_told: bool,
        counted: &mut Tally,
    ) -> Result<SenderFrame, Error> {
        let Found { mut listed, digest, tickets, is_parked, .. } = self.looking.take(ticket);
        counted.merge(&listed.tally);
        if let Some(error) = listed.fatal.take() {
            return Err(error);
        }
        if self.sender.is_stock() {
            for problem in std::mem::take(&mut listed.problems) {
                counted.problem(problem.weight);
                (self.sender.tell)(Event::Problem(problem))?;
            }
            for note in std::mem::take(&mut listed.notes) {
                (self.sender.tell)(Event::Note(note))?;
            }
        }
        let has_more = self.receive_large_reports(&mut there, listed.source.len() as u64)?;
        let is_same = match &there {
            ReceiverDir::Said(Seen::Dir { digest: Some(theirs), .. }) => digest.as_ref() == Some(theirs),
            _ => false,
        };
        let is_absent = matches!(there, ReceiverDir::Absent | ReceiverDir::Said(Seen::Absent));
        let subs: Vec<_> = tickets
            .iter()
            .map(|&(at, ticket)| {
                let entry = &listed.source.entries[at as usize];
                (listed.path.join(listed.source.name(entry)), entry.clone(), ticket)
            })
            .collect();
        if !is_same {
            debug_assert!(parent_told || itself.is_some());
            self.send_listing((listed, is_parked), itself, is_absent)?;
        }
        if has_more && subs.is_empty() {
            self.owed.0 += 1;
        } else {
            self.receive_large_reports(&mut there, u64::MAX)?;
        }
        let children = match &mut there {
            ReceiverDir::Said(Seen::Dir { children, .. }) => std::mem::take(children),
            ReceiverDir::Unknown | ReceiverDir::Absent | ReceiverDir::Said(_) => Vec::new(),
        };
        Ok(SenderFrame { subs: subs.into_iter(), was_told: !is_same, there, children: Children::new(children) })
    }

    /// Sends a listing. `is_parked`: its directories are closed.
    fn send_listing(
        &mut self,
        (listed, is_parked): (ListedDir, bool),
        itself: Option<Entry>,
        is_absent: bool,
    ) -> Result<(), Error> {
        let id = self.next_id;
        self.next_id += 1;
        if self.sender.is_stock() {
            self.sender.heard.wait_to_list(id, listed.source.len() as u64)?;
        }
        let mut ids = Vec::new();
        let mut own = DirList::default();
        if let Some(entry) = itself {
            self.named.name(&entry, &mut ids);
            own.push_entry(b".", entry);
        }
        for entry in &listed.source.entries {
            self.named.name(entry, &mut ids);
        }
        let shown = match self.sender.wants.paths {
            true => {
                listed.places.iter().map(|place| place.as_ref().map(|p| p.shown(b"")).unwrap_or_default()).collect()
            }
            false => Vec::new(),
        };
        let with_data = is_absent && self.unasked;
        let files = with_data.then(|| listed.source.clone());
        let open = listed.places;
        if self.keeps {
            let places = open.iter().map(|place| place.as_ref().map(SourceDir::parked)).collect();
            let renamed_from = listed.renamed_from.clone();
            let kept = KeptDir { list: listed.source.clone(), places, renamed_from };
            self.kept.lock().insert(id, Arc::new(kept));
        }
        let told = Told {
            id,
            path: listed.path,
            itself: own,
            list: listed.source,
            subs: listed.subs,
            may_delete: listed.may_delete,
            is_named: listed.is_named,
            with_data,
            more: false,
            problems: listed.problems,
            notes: listed.notes,
            ids,
            shown,
            renamed_from: listed.renamed_from,
        };
        let mut said = Ok(());
        cut(told, &mut |message| {
            if said.is_ok() {
                said = self.sender.line.send(&message);
            }
        });
        said?;
        let Some(files) = files else { return Ok(()) };
        let reopened = |place: &SourceDir| if is_parked { place.reopened() } else { Ok(place.clone()) };
        let open: Vec<_> = open.iter().map(|place| place.as_ref().map(|place| (place, reopened(place)))).collect();
        for (at, entry) in files.entries.iter().enumerate().filter(|(_, entry)| entry.kind() == Kind::File) {
            self.sender.go_on()?;
            let file = FileId { dir: id, entry: at as u32 };
            // The receiver waits for every file, also for those that cannot be read.
            let name = files.name(entry);
            let unsent = match open.get(entry.origin as usize) {
                Some(Some((_, Ok(place)))) => {
                    let from = (place, name);
                    self.sender.send(file, Lane::Early, from, entry.len_bytes, &Basis::None, &mut self.buffer)?;
                    continue;
                }
                Some(Some((place, Err(error)))) => cannot_open(&place.full(name), error),
                _ => cannot_open(name, &io::ErrorKind::NotFound.into()),
            };
            self.sender.line.send(&Message::Unsent { file, lane: Lane::Early, problem: Some(unsent) })?;
        }
        Ok(())
    }
}

/// Returns the directories that are walked completely, in the order of the walk. None is below another.
fn fully_walked_paths(gathered: &Gathered) -> Vec<RelPath> {
    let mut paths: Vec<RelPath> = gathered.whole.iter().map(|(_, path)| path.clone()).collect();
    paths.sort_by(compare_walked);
    paths.dedup_by(|later, earlier| later == earlier || is_below(later, earlier));
    paths
}

/// Whether a path lies below another.
pub fn is_below(path: &RelPath, above: &RelPath) -> bool {
    let rest = path.as_bytes().strip_prefix(above.as_bytes());
    rest.is_some_and(|rest| !rest.is_empty() && (above.is_root() || rest[0] == b'/'))
}

/// Compares directories by the order of the walk: parents before children, siblings as in a list.
pub fn compare_walked(a: &RelPath, b: &RelPath) -> Ordering {
    let parts = |path: &'_ RelPath| -> Vec<Vec<u8>> {
        path.as_bytes().split(|&b| b == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let (a, b) = (parts(a), parts(b));
    for (one, other) in a.iter().zip(&b) {
        match crate::flist::order::compare((one, true), (other, true)) {
            Ordering::Equal => {}
            order => return order,
        }
    }
    a.len().cmp(&b.len())
}

/// Calls a function when it is dropped.
struct OnEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Encoder, Native};

    #[test]
    fn roots_fit_one_message_despite_many_problems() {
        for (count, len_bytes) in [(3, 10), (LINES_MAX + 1, 10), (LINES_MAX, 1024), (100, 256 << 10)] {
            let notes = vec![vec![b'x'; len_bytes]; count];
            let problems: Vec<Problem> = notes.iter().map(|line| Problem::new(line.clone(), Weight::Failed)).collect();
            let mut roots = Roots { problems, notes, ..Roots::default() };
            let whole = Native::new(1).encode(&Message::Roots(Box::new(roots.clone())), &mut Vec::new());
            assert_eq!(whole.is_ok(), count <= LINES_MAX, "{count} of {len_bytes}");
            roots.problems.truncate(fit_into_roots(&roots.problems, |problem| problem.line.len()));
            roots.notes.truncate(fit_into_roots(&roots.notes, Vec::len));
            assert!(roots.notes.len() >= count.min(2000) / 4);
            Native::new(1).encode(&Message::Roots(Box::new(roots)), &mut Vec::new()).unwrap();
        }
    }
}
