//! What a sender sends to a stock rsync: its listings become file lists, and it returns the items with their content.

use crate::digest::{self, CONTENT_LEN_BYTES};
use crate::error::{Error, Result};
use crate::options::{Checksum, Options};
use crate::proto::rsync::attributes::encode_xattr_answer;
use crate::proto::rsync::decode_error::violation;
use crate::proto::rsync::item::{ItemFlags, ItemHead, SumHead};
use crate::proto::rsync::mux::{Control, FrameTag};
use crate::proto::rsync::number::{Ndx, NdxEncoder};
use crate::proto::rsync::stats::Stats;
use crate::proto::rsync::tokens::TokenEncoder;
use crate::proto::{DirListing, FileId, Roots};
use crate::report::event::{Event, Item, Wants};
use crate::report::{Tally, Traffic};
use crate::rsync::batch::recorder::BatchRecorder;
use crate::rsync::dest::inbox::DestInbox;
use crate::rsync::dest::lists::FileLists;
use crate::rsync::dest::progress::DestProgress;
use crate::rsync::dest::reports::SenderReports;
use crate::rsync::dest::shared::{DestConnectionState, PendingItem};
use crate::rsync::error::undecodable as failed;
use crate::rsync::framing::{Framing, TextOutput};
use crate::rsync::session_terms::{PHASE_DELETED, RsyncTerms};
use crate::session::connection::{WireOutput, unexpected};
use crate::transport::LinkBytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How much memory the buffer for the data of a message keeps.
const SCRATCH_MAX_BYTES: usize = 128 << 10;

/// Encodes what the sender sends. The opener of the session makes it; then only the threads that send change it, one at a
/// time, under the lock of the connection.
///
/// What holds: bytes are appended in the order of the calls, so index coding, compression and list encoding, each with a
/// history, stay in step with the receiver. An item is taken from [`DestShared`](crate::rsync::dest::shared::DestShared) in the same call
/// that returns it.
pub struct DestEncoder {
    terms: RsyncTerms,
    framing: Framing,
    state: Arc<DestConnectionState>,
    lists: FileLists,
    indices: NdxEncoder,
    tokens: TokenEncoder,
    digest_len_bytes: usize,
    opening: Vec<u8>,
    reports: Arc<SenderReports>,
    wants: Wants,
    /// Where the stream stands.
    stream: StreamState,
    /// The parts of the list that came in a file, in order. Empty between items.
    waiting: VecDeque<ListPart>,
    /// What the lists contain, once all were sent.
    listed: Tally,
    /// How many ends of lists and phases were sent.
    ended: usize,
    progress: DestProgress,
    server: Option<ServingSender>,
    recorder: Option<DestRecorder>,
    /// An empty buffer for the data of a message.
    scratch: Vec<u8>,
}

/// Where the stream stands.
///
/// Content has no frame of its own: what follows the head of an item is read as content until its end. So a list, or the end
/// of the lists, can be appended only between items. One that becomes ready in a file waits in [`DestEncoder::waiting`].
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

/// Records what a client sends.
pub(in crate::rsync) struct DestRecorder {
    /// The batch file.
    pub(in crate::rsync) batch: Arc<BatchRecorder>,
    /// The bytes written and read, for the statistics.
    pub(in crate::rsync) traffic: Arc<LinkBytes>,
    /// The parts of the data being encoded that only the file gets.
    pub(in crate::rsync) unsent: Vec<Range<usize>>,
}

/// What a sender needs in addition if it is the server.
pub(in crate::rsync) struct ServingSender {
    /// The bytes written and read.
    pub(in crate::rsync) traffic: Arc<LinkBytes>,
    pub(in crate::rsync) inbox: Arc<DestInbox>,
    /// Whether the client prints how much content was sent, at a high verbosity.
    pub(in crate::rsync) reports_matches: bool,
}

impl DestEncoder {
    /// Returns an encoder of a client. See [`super::directions`].
    pub(super) fn new(
        terms: RsyncTerms,
        opening: Vec<u8>,
        options: &Options,
        wants: Wants,
        reports: Arc<SenderReports>,
        state: Arc<DestConnectionState>,
    ) -> Result<DestEncoder> {
        let lists = FileLists::new(&terms, options, wants, reports.clone(), state.clone());
        let progress = DestProgress::new(wants, reports.clone(), state.clone());
        Ok(DestEncoder {
            terms,
            framing: Framing::of_client(&terms),
            lists,
            indices: NdxEncoder::new(terms.protocol),
            tokens: TokenEncoder::new(
                terms.compression,
                options.delta.compress.level,
                terms.protocol,
            )
            .map_err(failed)?,
            digest_len_bytes: terms.sums.digest_len_bytes(),
            opening,
            reports,
            wants,
            state,
            stream: StreamState::Between,
            waiting: VecDeque::new(),
            listed: Tally::default(),
            ended: 0,
            progress,
            server: None,
            recorder: None,
            scratch: Vec::new(),
        })
    }

    /// Makes this the encoder of a server.
    pub(in crate::rsync) fn at_server(self, server: ServingSender) -> DestEncoder {
        DestEncoder {
            framing: Framing::of_server(&self.terms),
            server: Some(server),
            ..self
        }
    }

    /// Makes the encoder record what it encodes.
    pub(in crate::rsync) fn recording(self, recorder: Option<DestRecorder>) -> DestEncoder {
        DestEncoder { recorder, ..self }
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
        if is_final {
            self.progress.check_rest();
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
            total_bytes: self.lists.listed_bytes.cast_signed(),
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
        {
            self.progress.begin(pending.index, item);
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

    /// Appends a range of blocks. `content`: see [`DestEncoder::copied`].
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
        if is_whole {
            self.progress.end();
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
        self.progress.add(literal.len() as u64);
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
                self.lists
                    .listing(*listing, Some(id), &mut self.indices, out);
                Ok(())
            }
            ListPart::End(listed) => {
                self.listed = *listed;
                self.lists.end_all(&mut self.indices, out);
                match &self.server {
                    // The client of a server leaves without an answer.
                    Some(server) if self.lists.is_empty() => {
                        server.inbox.end_session(Tally::default())
                    }
                    Some(_) | None => Ok(()),
                }
            }
        }
    }
}

/// What the sender sends.
impl DestEncoder {
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
        self.lists.note_roots(roots);
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
            encoder.progress.add(len_bytes);
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
                let item = self.take_item(file)?.0;
                if item.flags.has(ItemFlags::IS_NEW) {
                    self.state.shared.lock().absent_files += 1;
                }
                self.framing.control(Control::NoSend(item.index), out);
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
        if let Some(io_error) = self.lists.new_io_error() {
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
        append: impl FnOnce(&mut DestEncoder, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut data = std::mem::take(&mut self.scratch);
        append(self, &mut data)?;
        self.put(data, out)
    }
}

impl WireOutput for DestEncoder {
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

impl TextOutput for DestEncoder {
    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        self.framing.event(event, out);
    }
}

/// Content comes where no item has requested it.
fn unrequested() -> Error {
    unexpected("content that was not requested")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::{DirId, DirList};
    use crate::options::Recurse;
    use crate::path::RelPath;
    use crate::proto::SubdirFlags;
    use crate::proto::rsync::item::ItemFlags;
    use crate::session::event_relay::EventQueue;

    const FILE: FileId = FileId { dir: 0, entry: 0 };

    fn encoder(state: Arc<DestConnectionState>) -> DestEncoder {
        let mut options = Options::default();
        options.select.recurse = Recurse::Full;
        let terms = RsyncTerms::of_tests();
        let reports = SenderReports::new(&options, EventQueue::new(false));
        let wants = Wants::default();
        DestEncoder::new(terms, Vec::new(), &options, wants, reports, state).unwrap()
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
        let state = Arc::<DestConnectionState>::default();
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
