//! A batch file as the sender of a session.
//!
//! The file is read twice: first whole, for its lists and for the places of its items, so that a damaged file changes
//! nothing. Then it is played: the lists are sent, and each item when the receiver requests it. What the file has and the
//! receiver does not request is skipped.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::options::{Compression, Options};
use crate::path;
use crate::proto::rsync::attributes::{
    XattrValue, decode_xattr_answer, decode_xattr_request, encode_xattr_answer,
};
use crate::proto::rsync::decode_error::{self, DecodeError, broken_stream, violation};
use crate::proto::rsync::file_list::{FileEntry, ListDecoder, ListItem};
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::item::{BasisType, ItemFlags, ItemHead, SumHead};
use crate::proto::rsync::limits::{FRAME_SENT_MAX_BYTES, XATTRS_MAX};
use crate::proto::rsync::mux::{self, Control, Demultiplexer, FrameTag};
use crate::proto::rsync::number::{Ndx, NdxDecoder, NdxEncoder};
use crate::proto::rsync::sort;
use crate::proto::rsync::stats::{DeletionCounts, Stats};
use crate::proto::rsync::tokens::{self, Token, TokenDecoder, TokenEncoder};
use crate::report::event::errno_words;
use crate::rsync::basis;
use crate::rsync::error::undecodable as failed;
use crate::rsync::framing::Framing;
use crate::rsync::session_terms::{RsyncTerms, phases};
use crate::transport::Link;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A batch file, or the copy of a stream that cannot be read twice.
pub struct BatchFile {
    fd: OwnedFd,
    /// The stream. It is read no further than the batch, behind which it may go on without an end.
    stream: Option<BatchStream>,
    /// Where `buffer` ends in the file.
    end: u64,
    buffer: Vec<u8>,
    /// How much of the buffer was read.
    used: usize,
}

struct BatchStream {
    from: File,
    copied_bytes: u64,
    /// The directory of the copy, for messages.
    dir: Vec<u8>,
    /// Why the stream cannot be copied.
    failure: Option<io::Error>,
}

/// The size of a read from the file.
const READ_BYTES: usize = 128 << 10;

impl BatchFile {
    /// Reads a regular file from a position on.
    pub fn new(fd: OwnedFd, at: u64) -> BatchFile {
        BatchFile {
            fd,
            stream: None,
            end: at,
            buffer: Vec::new(),
            used: 0,
        }
    }

    /// Reads a stream, and copies what is read of it into an empty file in the directory `dir`.
    pub fn of_stream(from: File, to: OwnedFd, dir: Vec<u8>) -> BatchFile {
        BatchFile {
            stream: Some(BatchStream {
                from,
                copied_bytes: 0,
                dir,
                failure: None,
            }),
            ..BatchFile::new(to, 0)
        }
    }

    /// Returns the error if a read failed because the stream cannot be copied.
    pub fn copy_failure(&self) -> Option<Error> {
        let stream = self.stream.as_ref()?;
        Some(not_copied(&stream.dir, stream.failure.as_ref()?))
    }

    /// Reads a piece into the buffer.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.resize(READ_BYTES, 0);
        let count = match &mut self.stream {
            Some(stream) if stream.copied_bytes == self.end => {
                stream.advance(self.fd.as_fd(), &mut self.buffer)?
            }
            Some(_) | None => sys::pread(self.fd.as_fd(), &mut self.buffer, self.end)?,
        };
        self.buffer.truncate(count);
        (self.end, self.used) = (self.end + count as u64, 0);
        Ok(())
    }

    fn position(&self) -> u64 {
        self.end - (self.buffer.len() - self.used) as u64
    }

    fn seek(&mut self, at: u64) {
        (self.end, self.used) = (at, 0);
        self.buffer.clear();
    }
}

impl BatchStream {
    /// Reads a piece and appends it to the copy. Returns its length.
    fn advance(&mut self, to: BorrowedFd<'_>, piece: &mut [u8]) -> io::Result<usize> {
        let count = loop {
            match self.from.read(piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        if let Err(error) = sys::pwrite_all(to, &piece[..count], self.copied_bytes) {
            let kind = error.kind();
            self.failure = Some(error);
            return Err(kind.into());
        }
        self.copied_bytes += count as u64;
        Ok(count)
    }
}

/// Returns the error for a stream that cannot be copied to a directory.
pub fn not_copied(dir: &[u8], error: &io::Error) -> Error {
    let start = b"sparsync: cannot copy the batch to a temporary file in ".as_slice();
    let line = [start, dir, b": ", &errno_words(error)].concat();
    Error::new(Exit::FileIo, line)
        .by("Receiver")
        .with_hint("set TMPDIR to a directory with more room")
}

impl Read for BatchFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.used == self.buffer.len() {
            self.fill()?;
        }
        let count = (&self.buffer[self.used..]).read(into)?;
        self.used += count;
        Ok(count)
    }
}

/// An item of the file that has the content of an entry.
struct RecordedItem {
    /// How many such items precede it.
    place: usize,
    basis: Option<BasisType>,
    /// The name of a similar basis.
    name: Option<Vec<u8>>,
    sums: SumHead,
    /// The content refers to blocks of the basis.
    has_blocks: bool,
    /// Where the content is in the file, with the digest at its end.
    content: Range<u64>,
}

/// A list of the file.
struct RecordedList {
    /// The number of the directory; `None` for the first list.
    dir: Option<i32>,
    /// Where the list is in the file.
    bytes: Range<u64>,
    /// The index of its first entry.
    first: i32,
    /// The paths of its entries, in the order of their indices.
    paths: Vec<Vec<u8>>,
}

/// What a batch file contains.
#[derive(Default)]
struct BatchContents {
    lists: Vec<RecordedList>,
    /// By index. A file that was sent again has several.
    items: HashMap<i32, VecDeque<RecordedItem>>,
    /// The indices of the items in the order of the file, without those that were sent again.
    order: Vec<i32>,
    /// The numbers of the lists of extended attributes with abbreviated values, and how many attributes they have, by
    /// index.
    xattrs: HashMap<i32, (u32, usize)>,
    /// The values that the file has, by number of the list, and in it.
    values: HashMap<(u32, u32), Vec<u8>>,
    stats: Stats,
    /// The memory that all of this takes, in bytes.
    held_bytes: u64,
}

/// Plays a batch file.
pub struct BatchPlayer<'a> {
    /// Those of the file.
    terms: RsyncTerms,
    options: &'a Options,
    dest: Option<&'a [u8]>,
    file: BatchFile,
    contents: BatchContents,
    /// How many items in the order of the file were requested or skipped.
    passed: usize,
    /// The indices that were requested.
    requested: HashSet<i32>,
}

impl<'a> BatchPlayer<'a> {
    /// Reads the file, whose header has been read. `dest`: where the basis of a file is, in case that it is needed here.
    pub fn new(
        file: BatchFile,
        terms: RsyncTerms,
        options: &'a Options,
        dest: Option<&'a [u8]>,
    ) -> Result<BatchPlayer<'a>> {
        let mut player = BatchPlayer {
            terms,
            options,
            dest,
            file,
            contents: BatchContents::default(),
            passed: 0,
            requested: HashSet::new(),
        };
        let read = player.read_all();
        if let Some(error) = player.file.copy_failure() {
            return Err(error);
        }
        read.map_err(failed)?;
        Ok(player)
    }

    /// Returns the recorded statistics.
    pub fn stats(&self) -> Stats {
        self.contents.stats
    }

    fn is_incremental(&self) -> bool {
        self.terms.flags.has(CompatFlags::INC_RECURSE)
    }

    /// After how many phases besides the lists the sender is done.
    fn answered_phases(&self) -> usize {
        if self.terms.protocol < 29 { 1 } else { 2 }
    }

    fn hold(&mut self, bytes: usize) -> decode_error::Result<()> {
        self.contents.held_bytes += bytes as u64;
        if self
            .options
            .connect
            .max_alloc_bytes
            .is_some_and(|most| self.contents.held_bytes > most)
        {
            return Err(
                violation("the content of the batch file exceeds --max-alloc")
                    .with_exit(Exit::Malloc),
            );
        }
        Ok(())
    }

    fn read_all(&mut self) -> decode_error::Result<()> {
        let protocol = self.terms.protocol;
        let mut lists = ListDecoder::new(self.terms.list_options(self.options));
        let mut indices = NdxDecoder::new(protocol);
        // By number of the directory: its list of extended attributes.
        let mut dirs = Vec::new();
        self.read_list(None, &mut lists, &mut dirs)?;
        let mut has_all_lists = !self.is_incremental();
        let mut ended = 0;
        while !has_all_lists || ended < self.contents.lists.len() + self.answered_phases() {
            match indices.decode(&mut self.file) {
                Ok(Ndx::List(dir)) if !has_all_lists => {
                    self.read_list(Some(dir), &mut lists, &mut dirs)?
                }
                Ok(Ndx::ListsEnd) if !has_all_lists => has_all_lists = true,
                Ok(Ndx::Entry(index)) => self.read_item(index)?,
                Ok(Ndx::Done) => ended += 1,
                Ok(Ndx::List(_) | Ndx::ListsEnd | Ndx::Deletions) => {
                    return Err(violation("unexpected index in the batch file"));
                }
                // A server without any entry has ended the session here.
                Err(DecodeError::Io(error))
                    if error.kind() == io::ErrorKind::UnexpectedEof && self.is_empty() =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            sys::note_work();
        }
        self.contents.stats = Stats::decode(&mut self.file, protocol)?;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.contents.lists.iter().all(|list| list.paths.is_empty())
    }

    fn read_list(
        &mut self,
        dir: Option<i32>,
        lists: &mut ListDecoder,
        dirs: &mut Vec<Option<(u32, usize)>>,
    ) -> decode_error::Result<()> {
        let begin = self.file.position();
        let first = lists.next_index();
        let mut entries = Vec::new();
        while let ListItem::Entry(entry) = lists.next(&mut self.file)? {
            // Until the list is complete, its entries are held.
            self.hold(size_of::<FileEntry>() + entry.path.len() + entry.target.len())?;
            entries.push(*entry);
        }
        let abbreviated = |entry: &FileEntry| {
            let shared = entry.xattrs.as_ref()?;
            let is_abbreviated = shared
                .list
                .iter()
                .any(|xattr| matches!(xattr.value, XattrValue::Abbreviated { .. }));
            is_abbreviated.then(|| (shared.number, shared.list.len()))
        };
        // The own index of a directory is the one before its list.
        let own = dir.map_or(Some(0), |dir| usize::try_from(dir).ok());
        let sorted = sort::numbered(
            &entries,
            self.terms.protocol,
            self.options.connect.iconv.is_some(),
        );
        let sorted_entries = || sorted.iter().map(|&at| &entries[at as usize]);
        dirs.extend(
            sorted_entries()
                .filter(|entry| entry.is_dir())
                .map(abbreviated),
        );
        if let Some(found) = own.and_then(|own| dirs.get(own).copied().flatten())
            && self.is_incremental()
        {
            self.contents.xattrs.insert(first - 1, found);
        }
        let with_xattrs = (first..).zip(sorted_entries().map(abbreviated));
        self.contents
            .xattrs
            .extend(with_xattrs.filter_map(|(index, found)| Some((index, found?))));
        let freed_bytes = (entries.len() * size_of::<FileEntry>()) as u64;
        let mut paths: Vec<Option<Vec<u8>>> =
            entries.into_iter().map(|entry| Some(entry.path)).collect();
        let paths = sorted
            .iter()
            .map(|&at| paths[at as usize].take().unwrap_or_default())
            .collect();
        self.contents.held_bytes -= freed_bytes;
        let bytes = begin..self.file.position();
        self.contents.lists.push(RecordedList {
            dir,
            bytes,
            first,
            paths,
        });
        Ok(())
    }

    fn read_item(&mut self, index: i32) -> decode_error::Result<()> {
        let protocol = self.terms.protocol;
        if self.path(index).is_none() {
            return Err(violation(format!(
                "unknown index {index} in the batch file"
            )));
        }
        let head = ItemHead::decode(&mut self.file, protocol)?;
        let has_shortcut = self.terms.has_xattr_shortcut();
        if self.options.preserve.xattrs > 0 && head.has_xattrs(has_shortcut) {
            let values = decode_xattr_answer(&mut self.file, XATTRS_MAX)?;
            let list = self.contents.xattrs.get(&index).map(|(list, _)| *list);
            for (number, value) in values {
                let list = list
                    .ok_or_else(|| violation(format!("attributes of {index}, which has none")))?;
                self.hold(value.len())?;
                self.contents.values.insert((list, number), value);
            }
        }
        if !head.flags.has(ItemFlags::TRANSFER) {
            return Ok(());
        }
        let sums = SumHead::decode(&mut self.file, protocol)?;
        let begin = self.file.position();
        let has_blocks = tokens::skip(&mut self.file, self.terms.compression != Compression::No)?;
        let mut digest = vec![0; self.terms.sums.digest_len_bytes()];
        self.file.read_exact(&mut digest)?;
        let content = begin..self.file.position();
        self.hold(size_of::<RecordedItem>())?;
        let known = self.contents.items.entry(index).or_default();
        let place = self.contents.order.len();
        if known.is_empty() {
            self.contents.order.push(index);
        }
        known.push_back(RecordedItem {
            place,
            basis: head.basis,
            name: head.name,
            sums,
            has_blocks,
            content,
        });
        Ok(())
    }

    /// Returns the path of an entry.
    fn path(&self, index: i32) -> Option<&[u8]> {
        let at = self
            .contents
            .lists
            .partition_point(|list| list.first <= index)
            .checked_sub(1);
        let list = match at {
            Some(at) => &self.contents.lists[at],
            // The own index of the root.
            None if index == 0 => return Some(b"."),
            None => return None,
        };
        let place = usize::try_from(index - list.first).ok()?;
        // Behind the last entry is the own index of a directory.
        if place == list.paths.len() && self.is_incremental() {
            return Some(b"");
        }
        Some(list.paths.get(place)?)
    }

    /// Plays the file to a receiver until that leaves.
    pub fn play(mut self, link: Link) -> Result<()> {
        let framing = Framing::of_server(&self.terms);
        let mut out = FrameWriter {
            writer: link.writer,
            framing,
            frames: Vec::new(),
        };
        let mut gave_up = false;
        let played = self.play_over(link.reader, &mut out, &mut gave_up);
        match played.and_then(|()| Ok(out.flush()?)) {
            // The receiver has reported why.
            Err(_) if gave_up => Ok(()),
            // So has one that is gone.
            Err(DecodeError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            ended => ended.map_err(failed),
        }
    }

    fn play_over(
        &mut self,
        reader: Box<dyn Read + Send>,
        out: &mut FrameWriter,
        gave_up: &mut bool,
    ) -> decode_error::Result<()> {
        let protocol = self.terms.protocol;
        let mut indices = (NdxEncoder::new(protocol), NdxDecoder::new(protocol));
        self.send_lists(&mut indices.0, out)?;
        if self.is_empty() {
            return Ok(());
        }
        let mut handle = |control: Control| match control {
            Control::ErrorExit(_) => {
                *gave_up = true;
                Err(broken_stream("the receiver gave up"))
            }
            _ => Ok(()),
        };
        let mut input = Demultiplexer::new(io::BufReader::new(reader), &mut handle);
        input.set_frames(true);
        let mut ended = 0;
        let mut appended = HashSet::new();
        loop {
            out.flush()?;
            match indices.1.decode(&mut input)? {
                Ndx::Done => {
                    ended += 1;
                    let phase = usize::checked_sub(ended, self.contents.lists.len());
                    if phase == Some(phases(protocol)) {
                        return Ok(());
                    }
                    if phase == Some(0) {
                        self.skip_to(self.contents.order.len(), out)?;
                    }
                    let mut data = Vec::new();
                    indices.0.encode(Ndx::Done, &mut data);
                    if phase == Some(self.answered_phases()) {
                        self.contents.stats.encode(protocol, &mut data);
                    }
                    out.data(&data)?;
                }
                Ndx::Deletions => drop(DeletionCounts::decode(&mut input)?),
                Ndx::Entry(index) => {
                    let head = ItemHead::decode(&mut input, protocol)?;
                    if head.flags == ItemFlags::REPORT_XATTR {
                        self.send_values(index, &mut input, &mut indices.0, out)?;
                        continue;
                    }
                    if !head.flags.has(ItemFlags::TRANSFER) {
                        let mut data = Vec::new();
                        indices.0.encode(Ndx::Entry(index), &mut data);
                        head.encode(protocol, &mut data);
                        out.data(&data)?;
                        continue;
                    }
                    let sums = SumHead::decode(&mut input, protocol)?;
                    let appends = self.options.place.append.is_some() && appended.insert(index);
                    let sums_len_bytes = if appends {
                        0
                    } else {
                        sums.sums_len_bytes() as u64
                    };
                    io::copy(&mut (&mut input).take(sums_len_bytes), &mut io::sink())?;
                    self.send_item(index, &sums, &mut indices.0, out)?;
                }
                Ndx::List(_) | Ndx::ListsEnd => return Err(violation("unexpected index")),
            }
        }
    }

    fn send_lists(
        &mut self,
        indices: &mut NdxEncoder,
        out: &mut FrameWriter,
    ) -> decode_error::Result<()> {
        for at in 0..self.contents.lists.len() {
            let RecordedList { dir, bytes, .. } = &self.contents.lists[at];
            let dir = *dir;
            let bytes = bytes.clone();
            let mut data = Vec::new();
            if let Some(dir) = dir {
                indices.encode(Ndx::List(dir), &mut data);
            }
            out.data(&data)?;
            self.copy(bytes, out)?;
        }
        if self.is_incremental() {
            let mut data = Vec::new();
            indices.encode(Ndx::ListsEnd, &mut data);
            out.data(&data)?;
        }
        Ok(())
    }

    /// Sends a part of the file.
    fn copy(&mut self, bytes: Range<u64>, out: &mut FrameWriter) -> decode_error::Result<()> {
        self.file.seek(bytes.start);
        let mut rest = bytes.end - bytes.start;
        let mut piece = vec![0; FRAME_SENT_MAX_BYTES];
        while rest > 0 {
            let len = rest.min(piece.len() as u64) as usize;
            self.file.read_exact(&mut piece[..len])?;
            out.data(&piece[..len])?;
            rest -= len as u64;
        }
        Ok(())
    }

    /// Reports the items that precede a place in the file and were not requested.
    fn skip_to(&mut self, place: usize, out: &mut FrameWriter) -> decode_error::Result<()> {
        let output = &self.options.output;
        while self.passed < place {
            let index = self.contents.order[self.passed];
            self.passed += 1;
            let is_skipped = !self.requested.contains(&index);
            if is_skipped && output.info.name > 0 && !self.options.dry_run {
                let line = [
                    &b"(Skipping batched update for \""[..],
                    self.path(index).unwrap_or_default(),
                    b"\")\n",
                ];
                out.control(Control::Text(FrameTag::Info, line.concat()))?;
            }
        }
        Ok(())
    }

    /// Answers the request for values of extended attributes.
    fn send_values(
        &mut self,
        index: i32,
        input: &mut impl Read,
        indices: &mut NdxEncoder,
        out: &mut FrameWriter,
    ) -> decode_error::Result<()> {
        let (list, count) = self
            .contents
            .xattrs
            .get(&index)
            .copied()
            .unwrap_or_default();
        let numbers = decode_xattr_request(input, count)?;
        let values = numbers
            .iter()
            .map(|&number| Some((number, &self.contents.values.get(&(list, number))?[..])));
        let Some(values) = values.collect::<Option<Vec<_>>>() else {
            let path = String::from_utf8_lossy(self.path(index).unwrap_or_default()).into_owned();
            let cause = format!("the batch file lacks extended attributes of {path}");
            return Err(violation(cause).with_exit(Exit::Partial));
        };
        let mut data = Vec::new();
        indices.encode(Ndx::Entry(index), &mut data);
        ItemHead {
            flags: ItemFlags::REPORT_XATTR,
            ..ItemHead::default()
        }
        .encode(self.terms.protocol, &mut data);
        encode_xattr_answer(values, &mut data);
        out.data(&data)
    }

    /// Answers the request for the content of an entry. `requested`: the blocks of the basis that the receiver has.
    fn send_item(
        &mut self,
        index: i32,
        requested: &SumHead,
        indices: &mut NdxEncoder,
        out: &mut FrameWriter,
    ) -> decode_error::Result<()> {
        let item = self
            .contents
            .items
            .get_mut(&index)
            .and_then(VecDeque::pop_front);
        let path = self.path(index).unwrap_or_default().to_vec();
        let Some(item) = item else {
            let line = [&b"(No batched update for \""[..], &path, b"\")\n"].concat();
            out.control(Control::Text(FrameTag::ErrorXfer, line))?;
            return out.control(Control::NoSend(index));
        };
        self.requested.insert(index);
        // Before protocol 29, files are in another order than a receiver requests them.
        if self.terms.protocol >= 29 {
            self.skip_to(item.place, out)?;
        }
        let is_as_long = item.sums.basis_len_bytes() == requested.basis_len_bytes();
        let is_requested = match item.basis {
            None | Some(BasisType::DESTINATION) => true,
            // It is opened here, because the receiver may have chosen another one.
            Some(BasisType::FUZZY) => false,
            // The backup of the destination file, or a file in an alternate tree.
            Some(_) => is_as_long && requested.count > 0,
        };
        if item.has_blocks && is_requested && requested.count == 0 {
            let cause = format!(
                "a block match without a basis file for {}",
                String::from_utf8_lossy(&path)
            );
            return Err(violation(cause));
        }
        let mut data = Vec::new();
        indices.encode(Ndx::Entry(index), &mut data);
        ItemHead {
            flags: ItemFlags::TRANSFER,
            ..ItemHead::default()
        }
        .encode(self.terms.protocol, &mut data);
        let depends = item.has_blocks || self.options.place.append.is_some();
        if depends && is_requested && !is_as_long {
            // Another basis than the one of the file. The receiver finds that the content is wrong.
            SumHead::default().encode(&mut data);
            self.end_content(&mut data)?;
            return out.data(&data);
        }
        item.sums.encode(&mut data);
        out.data(&data)?;
        let is_packed = self.terms.compression != Compression::No;
        if is_packed || item.has_blocks && !is_requested {
            self.convert(&item, &path, is_requested, out)
        } else {
            self.copy(item.content, out)
        }
    }

    /// Appends the end of a content that cannot be right.
    fn end_content(&self, data: &mut Vec<u8>) -> decode_error::Result<()> {
        TokenEncoder::new(Compression::No, None, self.terms.protocol)?.end(data)?;
        data.resize(data.len() + self.terms.sums.digest_len_bytes(), 0);
        Ok(())
    }

    /// Sends compressed content as plain tokens: decoding it may need the blocks of the basis. Blocks of another basis
    /// than the one of the request become data.
    fn convert(
        &mut self,
        item: &RecordedItem,
        path: &[u8],
        is_requested: bool,
        out: &mut FrameWriter,
    ) -> decode_error::Result<()> {
        let protocol = self.terms.protocol;
        let mut decoder = TokenDecoder::new(self.terms.compression, protocol)?;
        let mut encoder = TokenEncoder::new(Compression::No, None, protocol)?;
        let mut basis = None;
        self.file.seek(item.content.start);
        loop {
            let mut data = Vec::new();
            match decoder.next(&mut self.file) {
                Ok(Token::Literal(literal)) => encoder.literal(&literal, &mut data)?,
                Ok(Token::Block(number)) => {
                    let block = self.block(&mut basis, item, number, path);
                    let Some(block) = block.filter(|block| decoder.see_block(block).is_ok()) else {
                        break;
                    };
                    if is_requested {
                        encoder.block(number, &[], &mut data)?;
                    } else {
                        encoder.literal(&block, &mut data)?;
                    }
                }
                Ok(Token::End) => {
                    encoder.end(&mut data)?;
                    out.data(&data)?;
                    let digest_len_bytes = self.terms.sums.digest_len_bytes() as u64;
                    return self.copy(item.content.end - digest_len_bytes..item.content.end, out);
                }
                // Wrong blocks of the basis make the rest unreadable.
                Err(_) if basis.is_some() => break,
                Err(error) => return Err(error),
            }
            out.data(&data)?;
        }
        let mut data = Vec::new();
        self.end_content(&mut data)?;
        out.data(&data)
    }

    /// Reads a block of the basis, which is opened if that has not happened yet. `None` if that fails.
    fn block(
        &self,
        basis: &mut Option<OwnedFd>,
        item: &RecordedItem,
        number: u32,
        path: &[u8],
    ) -> Option<Vec<u8>> {
        if basis.is_none() {
            *basis = Some(self.open_basis(item, path).ok()?);
        }
        let (offset, len) = item.sums.block(number)?;
        let mut block = vec![0; len];
        sys::pread_exact(basis.as_ref()?.as_fd(), &mut block, offset).ok()?;
        Some(block)
    }

    fn open_basis(&self, item: &RecordedItem, path: &[u8]) -> io::Result<OwnedFd> {
        let mut dest = self.dest.unwrap_or_default().to_vec();
        let owners = self.options.preserve.link_owners;
        let (parent, mut name) = path::split_parent(path);
        match (item.basis, &item.name) {
            (None | Some(BasisType::DESTINATION | BasisType::BACKUP), _) => {}
            (Some(BasisType::FUZZY), Some(similar)) => name = similar,
            (Some(BasisType(tree)), _) => {
                let trees = self
                    .options
                    .delta
                    .alt_dest
                    .as_ref()
                    .map_or(&[][..], |alt| &alt.dirs);
                let tree = trees
                    .get(usize::from(tree))
                    .ok_or(io::ErrorKind::Unsupported)?;
                dest = if tree.starts_with(b"/") {
                    tree.clone()
                } else {
                    path::join(&dest, tree)
                };
            }
        }
        basis::open(&dest, &path::join(parent, name), owners)
    }
}

/// Writes frames, which are collected.
struct FrameWriter {
    writer: Box<dyn Write + Send>,
    framing: Framing,
    frames: Vec<u8>,
}

impl FrameWriter {
    fn data(&mut self, data: &[u8]) -> decode_error::Result<()> {
        mux::encode_data(data, &mut self.frames);
        if self.frames.len() >= FRAME_SENT_MAX_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn control(&mut self, control: Control) -> decode_error::Result<()> {
        self.framing.control(control, &mut self.frames);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.write_all(&self.frames)?;
        self.frames.clear();
        self.writer.flush()
    }
}
