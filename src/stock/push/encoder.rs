//! What a sender sends to a stock rsync: its listings become file lists, and it returns the items with their content.

use super::{OwnEntry, PendingItem, PushInbox, PushState, SenderReports, SentList, SentListing};
use crate::digest::{self, CONTENT_LEN_BYTES};
use crate::error::{Error, Result};
use crate::flist::order::compare_paths;
use crate::flist::{DirId, DirList, Entry, Kind};
use crate::fs::ids::Ids;
use crate::fs::{charset, sys};
use crate::options::{Checksum, Options, Recurse};
use crate::path::{self, RelPath};
use crate::plan::idmap::IdClass;
use crate::proto::rsync::attributes::encode_xattr_answer;
use crate::proto::rsync::decode_error::violation;
use crate::proto::rsync::file_list::{FileEntry, HardLink, IdLists, ListEncoder, ListOptions};
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::item::{ItemHead, SumHead};
use crate::proto::rsync::mux::{Control, FrameTag};
use crate::proto::rsync::number::{Ndx, NdxEncoder};
use crate::proto::rsync::stats::Stats;
use crate::proto::rsync::tokens::TokenEncoder;
use crate::proto::{DirListing, FileId, IdName, Roots};
use crate::report::event::{Event, Item, Wants};
use crate::report::{Tally, Traffic};
use crate::session::connection::{Output, undecodable as failed, unexpected};
use crate::stock::attributes::{AclOf, acl_to_wire, xattrs_to_wire};
use crate::stock::batch_recorder::BatchRecorder;
use crate::stock::framing::{Framing, TextOutput};
use crate::stock::stock_terms::{PHASE_DELETED, StockTerms};
use crate::transport::LinkBytes;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How much memory the buffer for the data of a message keeps.
const SCRATCH_MAX_BYTES: usize = 128 << 10;

/// Encodes what the sender sends. The opener of the session makes it; then only the threads that send change it, one at a
/// time, under the lock of the connection.
///
/// What holds: bytes are appended in the order of the calls, so index coding, compression and list encoding, each with a
/// history, stay in step with the receiver. A list is noted in [`PushShared`](super::PushShared) in the same call that appends it, and an
/// item is taken from there in the same call that returns it.
pub struct PushEncoder {
    terms: StockTerms,
    framing: Framing,
    state: Arc<PushState>,
    /// The errors that the receiver knows of.
    sent_io_error: i32,
    lists: ListEncoder,
    indices: NdxEncoder,
    tokens: TokenEncoder,
    digest_len_bytes: usize,
    list_options: ListOptions,
    no_implied_dirs: bool,
    /// Only directories that arguments name have content.
    is_flat: bool,
    opening: Vec<u8>,
    reports: Arc<SenderReports>,
    wants: Wants,
    /// The root, until its listing comes.
    root: Option<FileEntry>,
    /// Arguments that do not exist, until the first listing comes.
    missing: Vec<RelPath>,
    /// Several arguments were found.
    has_several: bool,
    has_first: bool,
    /// The directories that still get a list, with their numbers; the next one is last.
    dirs: Vec<(i32, OwnEntry)>,
    next_dir: i32,
    names: HashMap<(bool, u32), Vec<u8>>,
    /// The first index of each file with several names.
    links: HashMap<(u64, u64), i32>,
    /// Of a whole list: all entries in the order of sending.
    all: Vec<(Vec<u8>, bool, Option<FileId>)>,
    /// Where the stream stands.
    stream: StreamState,
    /// The parts of the list that came in a file, in order. Empty between items.
    waiting: VecDeque<ListPart>,
    /// What the lists contain, once all were sent.
    listed: Tally,
    /// How many ends of lists and phases were sent.
    ended: usize,
    progress: PushProgress,
    server: Option<ServingSender>,
    recorder: Option<PushRecorder>,
    /// An empty buffer for the data of a message.
    scratch: Vec<u8>,
}

/// Where the stream stands.
///
/// Content has no frame of its own: what follows the head of an item is read as content until its end. So a list, or the end
/// of the lists, can be appended only between items. One that becomes ready in a file waits in [`PushEncoder::waiting`].
enum StreamState {
    /// An item, a list or an end can follow.
    Between,
    /// Content of a file must follow, until its end.
    InFile(OpenFile),
}

/// A file of which the head was sent, and the end was not.
struct OpenFile {
    index: i32,
    /// The blocks to which ranges refer.
    sums: SumHead,
    /// Its item, if it is reported after the content.
    item: Option<Box<Item>>,
}

impl OpenFile {
    /// Counts the bytes that it took so far.
    fn count_moved(&mut self, len_bytes: usize) {
        if let Some(item) = &mut self.item {
            item.moved_bytes += len_bytes as u64;
        }
    }
}

/// A part of the list.
enum ListPart {
    /// The entries of one directory.
    Listing(Box<DirListing>),
    /// The end of the list, with its counts.
    End(Box<Tally>),
}

/// What was reported for the lines of `--progress`.
#[derive(Default)]
struct PushProgress {
    /// The total length of the files and symlinks in the lists.
    listed_bytes: u64,
    /// How many entries are before the last file that was begun, with it.
    checked: u64,
    /// The file under way: how much of it was sent, and its length.
    done_bytes: u64,
    len_bytes: u64,
}

/// Records what a client sends.
pub(in crate::stock) struct PushRecorder {
    /// The batch file.
    pub(in crate::stock) batch: Arc<BatchRecorder>,
    /// The bytes written and read, for the statistics.
    pub(in crate::stock) traffic: Arc<LinkBytes>,
    /// The parts of the data being encoded that only the file gets.
    pub(in crate::stock) unsent: Vec<Range<usize>>,
}

/// What a sender needs in addition if it is the server.
pub(in crate::stock) struct ServingSender {
    /// The bytes written and read.
    pub(in crate::stock) traffic: Arc<LinkBytes>,
    pub(in crate::stock) inbox: Arc<PushInbox>,
    /// Whether the client prints how much content was sent, at a high verbosity.
    pub(in crate::stock) reports_matches: bool,
}

impl PushEncoder {
    /// Returns an encoder of a client. See [`super::directions`].
    pub(super) fn new(
        terms: StockTerms,
        opening: Vec<u8>,
        options: &Options,
        wants: Wants,
        reports: Arc<SenderReports>,
        state: Arc<PushState>,
    ) -> Result<PushEncoder> {
        let list_options = terms.list_options(options);
        Ok(PushEncoder {
            terms,
            framing: Framing::of_client(&terms),
            state,
            sent_io_error: 0,
            lists: ListEncoder::new(list_options),
            indices: NdxEncoder::new(terms.protocol),
            tokens: TokenEncoder::new(
                terms.compression,
                options.delta.compress.level,
                terms.protocol,
            )
            .map_err(failed)?,
            digest_len_bytes: terms.sums.digest_len_bytes(),
            list_options,
            no_implied_dirs: options.select.no_implied_dirs,
            is_flat: options.select.recurse != Recurse::Full,
            opening,
            reports,
            wants,
            root: None,
            missing: Vec::new(),
            has_several: false,
            has_first: false,
            dirs: Vec::new(),
            next_dir: 0,
            names: names_of_root(options.preserve.numeric_ids),
            links: HashMap::new(),
            all: Vec::new(),
            stream: StreamState::Between,
            waiting: VecDeque::new(),
            listed: Tally::default(),
            ended: 0,
            progress: PushProgress::default(),
            server: None,
            recorder: None,
            scratch: Vec::new(),
        })
    }

    /// Makes this the encoder of a server.
    pub(in crate::stock) fn at_server(self, server: ServingSender) -> PushEncoder {
        PushEncoder {
            framing: Framing::of_server(&self.terms),
            server: Some(server),
            ..self
        }
    }

    /// Makes the encoder record what it encodes.
    pub(in crate::stock) fn recording(self, recorder: Option<PushRecorder>) -> PushEncoder {
        PushEncoder { recorder, ..self }
    }

    /// Notes that the data from a position on is content.
    fn note_content(&mut self, from: usize, data: &[u8]) {
        if let Some(recorder) = self
            .recorder
            .as_mut()
            .filter(|recorder| recorder.batch.is_only)
        {
            recorder.unsent.push(from..data.len());
        }
    }

    /// Records the data, and returns the part of it that the receiver gets.
    fn recorded(&mut self, data: Vec<u8>) -> Result<Vec<u8>> {
        let Some(recorder) = &mut self.recorder else {
            return Ok(data);
        };
        recorder.batch.record(&data)?;
        let mut sent = Vec::new();
        let mut at = 0;
        for part in std::mem::take(&mut recorder.unsent) {
            sent.extend_from_slice(&data[at..part.start]);
            at = part.end;
        }
        sent.extend_from_slice(&data[at..]);
        Ok(sent)
    }

    fn is_incremental(&self) -> bool {
        self.terms.flags.has(CompatFlags::INC_RECURSE)
    }

    fn learn(&mut self, ids: &[IdName]) {
        self.names
            .extend(ids.iter().map(|id| ((id.is_group, id.id), id.name.clone())));
    }

    /// Converts an entry of a listing.
    fn entry(&mut self, path: Vec<u8>, entry: &Entry) -> FileEntry {
        // A walk leaves out what cannot be converted.
        let mut converted = FileEntry::new(charset::line_to_wire(&path).into_owned(), entry.mode);
        let has_len = !matches!(entry.kind(), Kind::Device | Kind::Special);
        if matches!(entry.kind(), Kind::File | Kind::Symlink) {
            self.progress.listed_bytes += entry.len_bytes;
        }
        converted.size = if has_len {
            entry.len_bytes.cast_signed()
        } else {
            0
        };
        (converted.mtime, converted.mtime_nanos) = (entry.mtime.secs, entry.mtime.nanos);
        (converted.uid, converted.gid) = (entry.uid, entry.gid);
        converted.user = self.names.get(&(false, entry.uid)).cloned();
        converted.group = self.names.get(&(true, entry.gid)).cloned();
        if let Some(extra) = &entry.extra {
            converted.atime = extra.atime.map_or(0, |time| time.secs);
            converted.rdev = sys::device_parts(extra.rdev);
        }
        let wire =
            charset::of_names().and_then(|charset| charset.encode_target(entry.target()).ok());
        converted.target = wire.unwrap_or_else(|| entry.target().to_vec());
        if self.list_options.digest_len_bytes > 0 && entry.kind() == Kind::File {
            let digest = entry
                .extra
                .as_ref()
                .and_then(|extra| extra.digest)
                .unwrap_or_default();
            converted.digest = digest
                .into_iter()
                .take(self.list_options.digest_len_bytes)
                .collect();
        }
        if self.list_options.acls && entry.kind() != Kind::Symlink {
            let sends_names = self.is_incremental() && !self.list_options.numeric_ids;
            let name = |is_user: bool, id: u32| {
                if !sends_names {
                    return None;
                }
                self.names.get(&(!is_user, id)).cloned()
            };
            let (access, default) = entry.acls();
            converted.access_acl = Some(Arc::new(acl_to_wire(
                access,
                AclOf::Entry(entry.mode),
                &name,
            )));
            converted.default_acl = Some(Arc::new(acl_to_wire(default, AclOf::NewEntries, &name)));
        }
        if self.list_options.xattrs {
            converted.xattrs = Some(xattrs_to_wire(entry.xattrs()));
        }
        if self.terms.protocol < 30 {
            // At protocol 27, each regular file has a number, which must differ.
            converted.hard_link = match &entry.inode {
                Some(inode) => HardLink::Inode {
                    dev: inode.dev.cast_signed(),
                    inode: inode.ino.cast_signed(),
                },
                None => HardLink::Inode {
                    dev: i64::MAX - 1,
                    inode: self.lists.next_index().into(),
                },
            };
            if entry.inode.is_none() && self.terms.protocol > 27 {
                converted.hard_link = HardLink::None;
            }
        } else if let Some(inode) = &entry.inode {
            let index = self.lists.next_index();
            let first = *self.links.entry((inode.dev, inode.ino)).or_insert(index);
            converted.hard_link = if first == index {
                HardLink::First
            } else {
                HardLink::Member(first)
            };
        }
        converted
    }

    /// Appends a listing. `id`: its number; `None` if the sender has sent none, because nothing takes part but the root and
    /// arguments that do not exist.
    fn listing(&mut self, listing: DirListing, id: Option<DirId>, out: &mut Vec<u8>) -> Result<()> {
        self.learn(&listing.ids);
        let own = if self.is_incremental() {
            self.lists_before(&listing.path, out)
        } else {
            None
        };
        let first = self.lists.next_index();
        let root = self.root.take();
        let has_root = root.is_some() && listing.path.is_root();
        if let Some(mut root) = root
            && has_root
        {
            // That `./name` implies it, as the leading elements below, does not make its other content extra.
            root.is_top_dir = listing.may_delete || self.terms.protocol >= 30;
            root.has_content = listing.may_delete;
            self.lists.entry(&root, out);
            if self.is_incremental() {
                self.next_dir += 1;
            } else {
                self.all.push((b".".to_vec(), true, None));
            }
        }
        // If several arguments name one entry, the destination is a directory for the receiver, too.
        let is_twice = self.has_several
            && self.missing.is_empty()
            && listing.path.is_root()
            && !has_root
            && listing.list.len() == 1;
        let mut gaps = Vec::new();
        let mut subs = listing.subs.iter();
        let mut below = Vec::new();
        for (at, entry) in (0..).zip(&listing.list.entries) {
            let name = listing.list.name(entry);
            let path = path::join(listing.path.as_bytes(), name);
            let mut converted = self.entry(path.clone(), entry);
            let mut times = 1;
            if entry.is_dir() {
                let sub = subs.next().copied().unwrap_or_default();
                converted.has_content = sub.is_walked && !sub.is_named;
                // A leading element of an argument, also if another one names it. The receiver gives no attributes to
                // such a directory under --no-implied-dirs, but must expect its list.
                let implies = !self.no_implied_dirs || self.is_incremental();
                let is_leading = sub.is_implied || sub.is_walked && sub.is_named && implies;
                let is_marked = is_leading && self.terms.protocol >= 30;
                converted.is_top_dir =
                    converted.has_content && (listing.is_named || self.is_flat) || is_marked;
                let base = listing
                    .shown
                    .get(entry.origin as usize)
                    .map_or(listing.path.as_bytes(), Vec::as_slice);
                let own = OwnEntry {
                    path: listing.path.join(name),
                    entry: entry.clone(),
                    shown: path::join(base, name),
                };
                below.push((self.next_dir, own));
                self.next_dir += 1;
                // Under `-m`, the receiver keeps an empty directory that is in a whole list twice.
                times += usize::from(sub.is_repeated && !self.is_incremental());
            }
            if is_twice && times == 1 {
                times += 1;
                gaps.push(1);
                // The receiver keeps the first one, but also numbers the other one.
                self.next_dir += i32::from(entry.is_dir());
            }
            for _ in 0..times {
                self.lists.entry(&converted, out);
            }
            if !self.is_incremental() {
                let file = FileId {
                    dir: listing.id,
                    entry: at,
                };
                let listed = (path, entry.is_dir(), Some(file));
                self.all.extend(std::iter::repeat_n(listed, times));
            }
        }
        gaps.extend(self.missing_args(&listing.list, has_root, out));
        let count = self.lists.next_index() - first;
        let mut shared = self.state.shared.lock();
        if self.is_incremental() {
            shared.lists.push(SentList {
                first,
                count,
                dir: id,
                has_root,
                gaps,
                own: own.map(Box::new),
            });
            self.dirs.extend(below.into_iter().rev());
        }
        if let Some(id) = id {
            shared.listings.insert(
                id,
                SentListing {
                    path: listing.path,
                    list: listing.list,
                    shown: listing.shown,
                },
            );
        }
        drop(shared);
        if self.is_incremental() {
            self.end_list(out);
            self.report_listed();
        }
        Ok(())
    }

    /// Appends the arguments that do not exist, which are in the first list. Returns their places in that list.
    fn missing_args(&mut self, list: &DirList, has_root: bool, out: &mut Vec<u8>) -> Vec<i32> {
        let mut missing = std::mem::take(&mut self.missing);
        missing.sort_by(|a, b| compare_paths((a.as_bytes(), false), (b.as_bytes(), false)));
        let is_before = |entry: &Entry, path: &RelPath| {
            compare_paths((list.name(entry), entry.is_dir()), (path.as_bytes(), false)).is_le()
        };
        let mut gaps = Vec::new();
        for path in missing {
            self.lists.entry(
                &FileEntry::new(charset::line_to_wire(path.as_bytes()), 0),
                out,
            );
            let before = match charset::of_names() {
                Some(_) => list.entries.len(),
                None => list
                    .entries
                    .partition_point(|entry| is_before(entry, &path)),
            };
            let before = before + gaps.len();
            gaps.push(before as i32 + i32::from(has_root));
            if !self.is_incremental() {
                self.all.push((path.as_bytes().to_vec(), false, None));
            }
        }
        gaps
    }

    /// Reports how long the lists are.
    fn report_listed(&self) {
        if self.wants.progress || self.wants.whole_list {
            let entries = self.state.shared.lock().entries();
            // The end of the lists may follow content.
            let bytes = self.progress.listed_bytes;
            let complete = self.dirs.is_empty();
            self.reports.events.push(
                Event::Listed {
                    entries,
                    bytes,
                    complete,
                },
                0,
            );
        }
    }

    /// Reports that a file is begun.
    fn begin_progress(&mut self, index: i32, item: &Item) {
        let position = self.state.shared.lock().position(index);
        let more = position.saturating_sub(self.progress.checked);
        self.progress = PushProgress {
            checked: self.progress.checked + more,
            done_bytes: 0,
            len_bytes: item.len_bytes,
            ..self.progress
        };
        self.reports.events.push(Event::Checked(more), 0);
        if self.wants.begin {
            self.reports.events.push(Event::Begin(item.name.clone()), 0);
        }
    }

    /// Reports that more of the file under way was sent.
    fn report_progress(&mut self, more_bytes: u64) {
        let PushProgress {
            done_bytes,
            len_bytes,
            ..
        } = &mut self.progress;
        *done_bytes += more_bytes;
        // Its end is reported once all is sent.
        if self.wants.progress && *done_bytes < *len_bytes {
            self.reports.events.push(
                Event::Progress {
                    done_bytes: *done_bytes,
                    len_bytes: *len_bytes,
                },
                0,
            );
        }
    }

    fn end_list(&mut self, out: &mut Vec<u8>) {
        self.sent_io_error = self.reports.io_error.load(Ordering::Relaxed);
        self.lists.end(self.sent_io_error, &IdLists::default(), out);
    }

    /// Announces the list of a directory, after empty lists for those before it that have no listing. Returns its entry.
    fn lists_before(&mut self, path: &RelPath, out: &mut Vec<u8>) -> Option<OwnEntry> {
        if !std::mem::replace(&mut self.has_first, true) {
            return None;
        }
        // From the end, where the next directory is.
        if !self.dirs.iter().rev().any(|(_, own)| own.path == *path) {
            return None;
        }
        while let Some((number, own)) = self.dirs.pop() {
            self.indices.encode(Ndx::List(number), out);
            if own.path == *path {
                return Some(own);
            }
            self.empty_list(Some(own), out);
        }
        None
    }

    fn empty_list(&mut self, own: Option<OwnEntry>, out: &mut Vec<u8>) {
        let first = self.lists.next_index();
        let own = own.map(Box::new);
        let list = SentList {
            first,
            count: 0,
            dir: None,
            has_root: false,
            gaps: Vec::new(),
            own,
        };
        self.state.shared.lock().lists.push(list);
        self.end_list(out);
    }

    /// Appends the end of all lists.
    fn end_lists(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.root.is_some() || !self.missing.is_empty() {
            // Nothing else takes part.
            self.listing(DirListing::default(), None, out)?;
        }
        if self.is_incremental() {
            if !std::mem::replace(&mut self.has_first, true) {
                self.empty_list(None, out);
            }
            while let Some((number, own)) = self.dirs.pop() {
                self.indices.encode(Ndx::List(number), out);
                self.empty_list(Some(own), out);
            }
            self.indices.encode(Ndx::ListsEnd, out);
        } else {
            let mut ids = IdLists::default();
            for ((is_group, id), name) in self.names.drain() {
                match (is_group, id) {
                    (false, 0) => ids.root_user = name,
                    (true, 0) => ids.root_group = name,
                    (false, _) => ids.users.push((id, name)),
                    (true, _) => ids.groups.push((id, name)),
                }
            }
            self.sent_io_error = self.reports.io_error.load(Ordering::Relaxed);
            self.lists.end(self.sent_io_error, &ids, out);
            let mut all = std::mem::take(&mut self.all);
            let is_root = |path: &[u8]| path == b".";
            match self.terms.protocol {
                // Entries are numbered in the order of sending.
                _ if charset::of_names().is_some() => {}
                ..29 => all.sort_by(|a, b| a.0.cmp(&b.0)),
                29.. => all.sort_by(|a, b| {
                    is_root(&b.0)
                        .cmp(&is_root(&a.0))
                        .then_with(|| compare_paths((&a.0, a.1), (&b.0, b.1)))
                }),
            }
            let mut shared = self.state.shared.lock();
            let count = all.len() as i32;
            let list = SentList {
                first: 0,
                count,
                dir: None,
                has_root: false,
                gaps: Vec::new(),
                own: None,
            };
            shared.lists.push(list);
            shared.sorted = all.into_iter().map(|(_, _, file)| file).collect();
        }
        let mut shared = self.state.shared.lock();
        shared.has_all_lists = true;
        let is_empty = shared.lists.iter().all(|list| list.count == 0);
        drop(shared);
        self.report_listed();
        if let Some(server) = &self.server
            && is_empty
        {
            // The client of a server leaves without an answer.
            server.inbox.end_session(Tally::default())?;
        }
        Ok(())
    }

    /// Appends the end of a list or phase, with what a server adds to it. Returns a message to send before it.
    fn phase(&mut self, out: &mut Vec<u8>) -> Option<Control> {
        self.ended += 1;
        let shared = self.state.shared.lock();
        let phase = if shared.has_all_lists {
            self.ended.checked_sub(shared.lists.len())
        } else {
            None
        };
        let deletions = if phase == Some(PHASE_DELETED) {
            shared.deletions
        } else {
            None
        };
        drop(shared);
        let is_final = phase == Some(if self.terms.protocol < 29 { 1 } else { 2 });
        if is_final && self.wants.progress {
            let rest = self
                .state
                .shared
                .lock()
                .entries()
                .saturating_sub(self.progress.checked);
            self.reports.events.push(Event::Checked(rest), 0);
        }
        let Some(server) = &self.server else {
            self.indices.encode(Ndx::Done, out);
            if let Some(recorder) = &self.recorder
                && is_final
            {
                // A file has the statistics that a server would send.
                let stats = self.stats(&recorder.traffic);
                let from = out.len();
                stats.encode(self.terms.protocol, out);
                if let Some(recorder) = &mut self.recorder {
                    recorder.unsent.push(from..out.len());
                }
            }
            return None;
        };
        if let Some(deletions) = deletions {
            self.indices.encode(Ndx::Deletions, out);
            deletions.encode(out);
        }
        self.indices.encode(Ndx::Done, out);
        let mut report = None;
        // The phase in which the receiver has everything in place.
        if is_final {
            let literal_bytes = self.state.literal_bytes.load(Ordering::Relaxed);
            let line =
                format!("total: matches=0  hash_hits=0  false_alarms=0 data={literal_bytes}\n");
            report = server
                .reports_matches
                .then(|| Control::Text(FrameTag::Info, line.into_bytes()));
            self.stats(&server.traffic).encode(self.terms.protocol, out);
        }
        report
    }

    fn stats(&self, traffic: &LinkBytes) -> Stats {
        let Traffic {
            sent_bytes,
            received_bytes,
        } = traffic.counts();
        Stats {
            read_bytes: received_bytes.cast_signed(),
            written_bytes: sent_bytes.cast_signed(),
            // Without what several arguments name.
            total_bytes: self.progress.listed_bytes.cast_signed(),
            list_build_ms: self.listed.list_generation_ms.cast_signed(),
            list_send_ms: self.listed.list_transfer_ms.cast_signed(),
        }
    }

    /// Appends an item of the receiver that requests no content.
    fn item(&mut self, index: i32, out: &mut Vec<u8>) -> Result<()> {
        let is_it = |item: &PendingItem| item.content.is_none() && item.index == index;
        let mut pending = self.take_item_if(is_it)?;
        self.begin_item(&pending);
        if let Some(item) = pending.event.take() {
            self.reports.events.push(Event::Item(item), 0);
        }
        self.item_head(&pending, out);
        Ok(())
    }

    /// Appends the item of a file, with the head of its sums. Its content follows.
    fn begin_file(&mut self, file: FileId, out: &mut Vec<u8>) -> Result<()> {
        let (mut pending, sums) = self.take_item(file)?;
        let from = out.len();
        self.begin_item(&pending);
        let mut open = OpenFile {
            index: pending.index,
            sums,
            item: None,
        };
        if self.wants.after_transfer {
            open.item = pending.event.take();
        } else if let Some(item) = pending.event.take() {
            self.reports.events.push(Event::Item(item), 0);
        }
        self.item_head(&pending, out);
        let sums_from = out.len();
        sums.encode(out);
        self.note_content(sums_from, out);
        open.count_moved(out.len() - from);
        self.stream = StreamState::InFile(open);
        Ok(())
    }

    /// Reports the beginning of a file, for `--progress`.
    fn begin_item(&mut self, pending: &PendingItem) {
        if let Some(item) = &pending.event
            && item.transfer
            && self.wants.progress
        {
            self.begin_progress(pending.index, item);
        }
    }

    /// Appends the head of an item, with the values that it has requested.
    fn item_head(&mut self, pending: &PendingItem, out: &mut Vec<u8>) {
        self.indices.encode(Ndx::Entry(pending.index), out);
        let of_flags = ItemHead {
            flags: pending.flags,
            ..ItemHead::default()
        };
        let head = pending.more.as_ref().map_or(&of_flags, |more| &more.head);
        head.encode(self.terms.protocol, out);
        if let Some((xattrs, numbers)) = pending.more.as_ref().and_then(|more| more.xattrs.as_ref())
        {
            let value =
                |&number: &u32| Some((number, &*xattrs.as_ref()?.get(number as usize - 1)?.1));
            encode_xattr_answer(numbers.iter().filter_map(value), out);
        }
    }

    /// Returns the file under way.
    fn open_file(&mut self) -> Result<&mut OpenFile> {
        match &mut self.stream {
            StreamState::InFile(open) => Ok(open),
            StreamState::Between => Err(unrequested()),
        }
    }

    /// Leaves the file under way, of which the end follows.
    fn leave_file(&mut self) -> Option<OpenFile> {
        match std::mem::replace(&mut self.stream, StreamState::Between) {
            StreamState::InFile(open) => Some(open),
            StreamState::Between => None,
        }
    }

    /// Takes the next item, which must request the content of a file. Also returns the head of its sums.
    fn take_item(&mut self, file: FileId) -> Result<(PendingItem, SumHead)> {
        let item = self.take_item_if(|item| {
            let content = item.content.as_ref();
            content.is_some_and(|(requested, _)| *requested == file)
        })?;
        match item.content {
            Some((_, sums)) => Ok((item, sums)),
            None => Err(unrequested()),
        }
    }

    fn take_item_if(&mut self, is_it: impl Fn(&PendingItem) -> bool) -> Result<PendingItem> {
        let next = self.state.shared.lock().items.pop_front().filter(is_it);
        next.ok_or_else(unrequested)
    }

    /// Appends a range of blocks. `content`: see [`PushEncoder::copied`].
    fn blocks(
        &mut self,
        (offset_bytes, len_bytes): (u64, u64),
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let from = out.len();
        let block_len = self.open_file()?.sums.block_len_bytes.unsigned_abs().max(1);
        let mut contents = content.chunks(block_len as usize);
        let mut at = offset_bytes;
        let end = offset_bytes + len_bytes;
        while at < end {
            let number = u32::try_from(at / u64::from(block_len))
                .map_err(|_| failed(violation("block number")))?;
            self.tokens
                .block(number, contents.next().unwrap_or_default(), out)
                .map_err(failed)?;
            at += u64::from(block_len);
        }
        self.open_file()?.count_moved(out.len() - from);
        self.note_content(from, out);
        Ok(())
    }

    /// Appends the end of the file under way.
    fn end_open_file(&mut self, digest: &[u8], out: &mut Vec<u8>) -> Result<()> {
        match self.leave_file() {
            Some(open) => self.end_file(open, digest, out),
            None => Err(unrequested()),
        }
    }

    /// Appends the end of a file that was left, with its digest or with zeros if it could not be read to its end. Then the
    /// parts of the list follow that have waited for that.
    fn end_file(&mut self, mut open: OpenFile, digest: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let from = out.len();
        self.tokens.end(out).map_err(failed)?;
        let is_whole = !digest.is_empty();
        let digest: Vec<u8> = digest
            .iter()
            .copied()
            .chain([0; CONTENT_LEN_BYTES])
            .take(self.digest_len_bytes)
            .collect();
        out.extend_from_slice(&digest);
        open.count_moved(out.len() - from);
        self.note_content(from, out);
        if self.wants.progress && is_whole {
            let len_bytes = self.progress.len_bytes;
            self.reports.events.push(
                Event::Progress {
                    done_bytes: len_bytes,
                    len_bytes,
                },
                0,
            );
        }
        if let Some(mut item) = open.item {
            let checksum = self.terms.sums.checksum;
            let shown = || digest::in_shown_order(checksum, digest);
            // Under `-c`, the item has the digest of the list. Without content or a method, there is nothing to show.
            let is_shown = self.wants.digest && is_whole && checksum != Checksum::None;
            item.digest = item.digest.or_else(|| is_shown.then(shown));
            self.reports.events.push(Event::Item(item), 0);
        }
        while let Some(part) = self.waiting.pop_front() {
            self.list_part(part, out)?;
        }
        Ok(())
    }

    fn literal(&mut self, literal: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let from = out.len();
        self.state
            .literal_bytes
            .fetch_add(literal.len() as u64, Ordering::Relaxed);
        self.tokens.literal(literal, out).map_err(failed)?;
        self.report_progress(literal.len() as u64);
        self.open_file()?.count_moved(out.len() - from);
        self.note_content(from, out);
        Ok(())
    }

    /// Appends data in its frame, and records it.
    fn put(&mut self, data: Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let mut data = self.recorded(data)?;
        self.framing.data(&data, out);
        data.clear();
        data.shrink_to(SCRATCH_MAX_BYTES);
        self.scratch = data;
        Ok(())
    }

    /// Appends a part of the list, or has it wait for the end of the file under way.
    fn list_part(&mut self, part: ListPart, out: &mut Vec<u8>) -> Result<()> {
        if let StreamState::InFile(_) = self.stream {
            self.waiting.push_back(part);
            return Ok(());
        }
        match part {
            ListPart::Listing(listing) => {
                let id = listing.id;
                self.listing(*listing, Some(id), out)
            }
            ListPart::End(listed) => {
                self.listed = *listed;
                self.end_lists(out)
            }
        }
    }
}

/// What the sender sends.
impl PushEncoder {
    /// Appends what comes before all else: the filter rules.
    pub(super) fn open(&mut self, out: &mut Vec<u8>) {
        // It can be long, and is not copied.
        if out.is_empty() {
            std::mem::swap(out, &mut self.opening);
        } else {
            out.append(&mut self.opening);
        }
    }

    /// Notes what is known of the source arguments. It is sent with the lists.
    pub(super) fn note_roots(&mut self, roots: Roots) {
        self.learn(&roots.ids);
        self.missing = roots.missing;
        self.has_several = roots.found > 1;
        let top = roots.top.as_ref();
        if let Some(entry) = top.and_then(|top| top.entries.first().cloned()) {
            self.root = Some(self.entry(b".".to_vec(), &entry));
            let shown = path::join(&roots.top_shown, b".");
            self.state.shared.lock().root = Some(OwnEntry {
                path: RelPath::root(),
                entry,
                shown,
            });
        }
    }

    /// Appends the listing of a directory.
    pub(super) fn send_listing(&mut self, listing: DirListing, out: &mut Vec<u8>) -> Result<()> {
        let part = ListPart::Listing(Box::new(listing));
        self.framed(out, |encoder, data| encoder.list_part(part, data))
    }

    /// Appends the end of all lists.
    pub(super) fn end_listings(&mut self, counted: Tally, out: &mut Vec<u8>) -> Result<()> {
        let part = ListPart::End(Box::new(counted));
        self.framed(out, |encoder, data| encoder.list_part(part, data))
    }

    /// Appends the item of a file. Its content follows.
    pub(super) fn begin(&mut self, file: FileId, out: &mut Vec<u8>) -> Result<()> {
        self.framed(out, |encoder, data| encoder.begin_file(file, data))
    }

    /// Appends the item of a file with all of its content.
    pub(super) fn whole(
        &mut self,
        file: FileId,
        literal: &[u8],
        digest: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.framed(out, |encoder, data| {
            encoder.begin_file(file, data)?;
            encoder.literal(literal, data)?;
            encoder.end_open_file(digest, data)
        })
    }

    /// Appends content of the file under way.
    pub(super) fn data(&mut self, literal: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.framed(out, |encoder, data| encoder.literal(literal, data))
    }

    /// Appends a range of blocks of the basis. `content`: the bytes, if they are the history of the compression, else empty.
    /// They are never sent.
    pub(super) fn copied(
        &mut self,
        (offset_bytes, len_bytes): (u64, u64),
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.state
            .matched_bytes
            .fetch_add(len_bytes, Ordering::Relaxed);
        self.framed(out, |encoder, data| {
            encoder.blocks((offset_bytes, len_bytes), content, data)?;
            encoder.report_progress(len_bytes);
            Ok(())
        })
    }

    /// Appends the end of the file under way.
    pub(super) fn end(&mut self, digest: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.framed(out, |encoder, data| encoder.end_open_file(digest, data))
    }

    /// Appends that a file does not come, or not to its end.
    pub(super) fn refuse(&mut self, file: FileId, out: &mut Vec<u8>) -> Result<()> {
        match self.leave_file() {
            // Its head was sent, so the receiver learns of it by a wrong digest, and requests it again.
            Some(open) => {
                self.state.shared.lock().unread.insert(open.index);
                self.framed(out, |encoder, data| encoder.end_file(open, &[], data))
            }
            None => {
                let index = self.take_item(file)?.0.index;
                self.framing.control(Control::NoSend(index), out);
                Ok(())
            }
        }
    }

    /// Appends an item of the receiver that requests no content.
    pub(super) fn return_item(&mut self, index: i32, out: &mut Vec<u8>) -> Result<()> {
        self.framed(out, |encoder, data| encoder.item(index, data))
    }

    /// Appends the end of a list or a phase that the receiver has ended.
    pub(super) fn end_phase(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let io_error = self.reports.io_error.load(Ordering::Relaxed);
        if io_error & !self.sent_io_error != 0 {
            self.sent_io_error = io_error;
            self.framing.control(Control::IoError(io_error), out);
        }
        let mut data = std::mem::take(&mut self.scratch);
        if let Some(report) = self.phase(&mut data) {
            self.framing.control(report, out);
        }
        self.put(data, out)
    }

    /// Appends what `append` appends, in its frame.
    fn framed(
        &mut self,
        out: &mut Vec<u8>,
        append: impl FnOnce(&mut PushEncoder, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut data = std::mem::take(&mut self.scratch);
        append(self, &mut data)?;
        self.put(data, out)
    }
}

impl Output for PushEncoder {
    // Pieces of files are short, and each wakeup of the writer costs a context switch.
    const GATHERED_BYTES: usize = 128 << 10;
    // A daemon has many such sessions, and clients are slow.
    const BUFFER_MAX_BYTES: usize = 128 << 10;

    fn keepalive(&mut self, out: &mut Vec<u8>) {
        self.framing.control(Control::KeepAlive, out);
    }

    fn failure(&mut self, error: &Error, out: &mut Vec<u8>) {
        self.framing.exit(error.exit, out);
    }
}

impl TextOutput for PushEncoder {
    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        self.framing.event(event, out);
    }
}

/// Content comes where no item has requested it.
fn unrequested() -> Error {
    unexpected("content that was not requested")
}

/// Returns the names of user and group 0, which listings leave out.
fn names_of_root(numeric_ids: bool) -> HashMap<(bool, u32), Vec<u8>> {
    let ids = Ids::new();
    let names = [
        (false, ids.name(IdClass::User, 0)),
        (true, ids.name(IdClass::Group, 0)),
    ];
    let names = names
        .into_iter()
        .filter_map(|(is_group, name)| Some(((is_group, 0), name?.to_vec())));
    if numeric_ids {
        HashMap::new()
    } else {
        names.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::SubdirFlags;
    use crate::proto::rsync::item::ItemFlags;
    use crate::session::event_relay::EventQueue;

    const FILE: FileId = FileId { dir: 0, entry: 0 };

    fn encoder(state: Arc<PushState>) -> PushEncoder {
        let mut options = Options::default();
        options.select.recurse = Recurse::Full;
        let terms = StockTerms::of_tests();
        let reports = SenderReports::new(&options, EventQueue::new(false));
        let wants = Wants::default();
        PushEncoder::new(terms, Vec::new(), &options, wants, reports, state).unwrap()
    }

    fn listing(id: DirId, path: &[u8], subdir: bool) -> DirListing {
        let mut list = DirList::default();
        list.push_name(b"a", false);
        let mut subs = Vec::new();
        if subdir {
            list.push_name(b"d", true);
            subs.push(SubdirFlags {
                is_walked: true,
                ..SubdirFlags::default()
            });
        }
        DirListing {
            id,
            path: RelPath::parse(path).unwrap(),
            list: list.into(),
            subs,
            ..DirListing::default()
        }
    }

    #[test]
    fn list_that_is_ready_in_a_file_waits_for_its_end() {
        let state = Arc::<PushState>::default();
        let mut encoder = encoder(state.clone());
        let lists = || state.shared.lock().lists.len();
        let mut out = Vec::new();
        encoder
            .send_listing(listing(0, b"", true), &mut out)
            .unwrap();
        assert_eq!((out.is_empty(), lists()), (false, 1));
        state.shared.lock().items.push_back(PendingItem {
            content: Some((FILE, SumHead::default())),
            index: 1,
            flags: ItemFlags::TRANSFER,
            more: None,
            event: None,
        });
        out.clear();
        encoder.begin(FILE, &mut out).unwrap();
        assert_eq!((out.is_empty(), lists()), (false, 1));
        out.clear();
        encoder
            .send_listing(listing(1, b"d", false), &mut out)
            .unwrap();
        encoder.end_listings(Tally::default(), &mut out).unwrap();
        assert_eq!((out.is_empty(), lists()), (true, 1));
        encoder.end(&[7; 16], &mut out).unwrap();
        assert_eq!((out.is_empty(), lists()), (false, 2));
        assert!(state.shared.lock().has_all_lists);
    }

    #[test]
    fn content_between_items_is_an_error() {
        let mut encoder = encoder(Arc::default());
        let mut out = Vec::new();
        assert!(encoder.data(&[1], &mut out).is_err());
        assert!(encoder.end(&[7; 16], &mut out).is_err());
        assert!(out.is_empty());
    }
}
