//! Sends the content of a file: whole, in pieces, or as its difference from a basis.

use super::{BasisFate, ContentRequest, ContentSink, Sender};
use crate::apply::block_sums::SearchedFile;
use crate::apply::file::failure::{cannot_open, cannot_read, diminished, no_longer_regular};
use crate::apply::file::verify;
use crate::delta::Op;
use crate::digest::{self, By, CONTENT_LEN_BYTES, ContentHasher};
use crate::error::Result;
use crate::flist::Kind;
use crate::fs::compare::digest_of_beginning;
use crate::fs::medium::Reread;
use crate::fs::source_reader::{SourceReader, SourceWatch};
use crate::fs::sys;
use crate::options::{Append, RemoveSource, Verify};
use crate::path;
use crate::proto::limits::{WHOLE_MAX_BYTES, content_max_bytes};
use crate::proto::{Basis, ContentDigest, FileId, Lane};
use crate::report::event::{Event, Problem, Weight};
use crate::report::gauge::FileMark;
use crate::session::compression::is_left_out;
use crate::walk::SourceDir;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

/// A file of the source: the directory that it is in, and its name there.
#[derive(Clone, Copy)]
pub(super) struct SourceName<'a> {
    pub(super) place: &'a SourceDir,
    pub(super) name: &'a [u8],
}

impl SourceName<'_> {
    /// Returns the path in the transfer.
    fn path(self) -> Vec<u8> {
        path::join(self.place.path.as_bytes(), self.name)
    }

    /// Returns the absolute path, for messages.
    fn full(self) -> Vec<u8> {
        self.place.full(self.name)
    }
}

impl Sender<'_> {
    /// Sends the content of a file, or the reason why it cannot be read, and counts it for the live display.
    pub(super) fn send(
        &self,
        request: &ContentRequest,
        lane: Lane,
        source: SourceName<'_>,
        listed_bytes: u64,
    ) -> Result<()> {
        let gauge = self.run_context.gauge;
        let mark = gauge.map(|gauge| gauge.begin(listed_bytes, || source.path()));
        let sent = self.send_marked(request, lane, source, listed_bytes, mark.as_ref());
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
        source: SourceName<'_>,
        listed_bytes: u64,
        mark: Option<&FileMark>,
    ) -> Result<()> {
        let options = self.run_context.options;
        let skip = options.delta.compress.skip.as_deref().unwrap_or_default();
        let is_incompressible = is_left_out(source.name, skip);
        let sink = self.peer.content(request.file, lane, is_incompressible);
        let reader = match self.open(request.file, source, listed_bytes) {
            Ok(reader) => reader,
            Err(problem) => {
                if let Some(mark) = mark {
                    mark.give_up();
                }
                self.unsent.lock().unsend(listed_bytes);
                return self.unsent(&*sink, Some(problem));
            }
        };
        let len_bytes = reader.len_bytes();
        let watch = if self.wants.source_changes {
            SourceWatch::begin(reader.file())
        } else {
            None
        };
        let content = OpenContent {
            sender: self,
            sink,
            source,
            reader,
            watch,
            mark,
        };
        match &request.basis {
            Basis::Prefix {
                len_bytes: has_bytes,
                digest,
            } => {
                if len_bytes < listed_bytes {
                    return self.unsent(&*content.sink, Some(diminished(&source.full())));
                }
                if let Some(theirs) = digest
                    && !content.begins_with(*has_bytes, theirs)
                {
                    if let Some(mark) = mark {
                        mark.give_up();
                    }
                    return self.unsent(&*content.sink, None);
                }
                content.send_pieces(*has_bytes)
            }
            Basis::Blocks(blocks) => {
                let in_place = match request.fate {
                    BasisFate::ByOptions => options.place.inplace,
                    BasisFate::Overwritten => true,
                    BasisFate::Kept => false,
                };
                content.send_difference(blocks, in_place)
            }
            Basis::None if len_bytes.max(listed_bytes) <= WHOLE_MAX_BYTES as u64 => {
                content.send_whole()
            }
            Basis::None => content.send_pieces(0),
        }
    }

    /// Opens a file to send.
    fn open(
        &self,
        id: FileId,
        source: SourceName<'_>,
        listed_bytes: u64,
    ) -> std::result::Result<SourceReader<OwnedFd>, Problem> {
        let select = &self.run_context.options.select;
        let unreadable = |error: io::Error| cannot_read(&source.full(), &error);
        let file = source
            .place
            .open_file(source.name, select)
            .map_err(|error| cannot_open(&source.full(), &error))?;
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
            _ => Err(no_longer_regular(&source.full())),
        }
    }

    /// Reports that a file does not come, or not to its end.
    pub(super) fn unsent(&self, sink: &dyn ContentSink, problem: Option<Problem>) -> Result<()> {
        if let Some(problem) = problem.clone()
            && !self.facts().takes_problems
        {
            let weight = match problem.weight {
                weight @ (Weight::Vanished | Weight::Warning) => weight,
                Weight::SourceError | Weight::Failed => Weight::SourceError,
            };
            (self.report)(Event::Problem(problem.weighing(weight)))?;
        }
        sink.refuse(problem)
    }
}

/// The content of a file that is sent.
struct OpenContent<'a> {
    sender: &'a Sender<'a>,
    sink: Box<dyn ContentSink + 'a>,
    source: SourceName<'a>,
    reader: SourceReader<OwnedFd>,
    /// Set if the client wants to know whether the file is changed while it is read.
    watch: Option<SourceWatch>,
    /// The file in the live display.
    mark: Option<&'a FileMark>,
}

impl OpenContent<'_> {
    /// Returns whether the beginning of the file, of this length, has this digest.
    fn begins_with(&self, len_bytes: u64, digest: &ContentDigest) -> bool {
        let sender = self.sender;
        let is_over = || sender.peer.is_silent();
        let compared_by = &sender.checksums.compared_by;
        let ours = digest_of_beginning(self.reader.file(), len_bytes, compared_by, &is_over);
        ours.ok() == Some(*digest)
    }

    /// Sends a short file as one message.
    fn send_whole(&self) -> Result<()> {
        let len_bytes = self.reader.len_bytes();
        // A single read gets the content, and one byte of extra room shows that the file ends there.
        let room = self.reader.room_from(0).min(len_bytes + 1);
        let mut data = vec![0; room as usize];
        if self.reader.read_at(0, &mut data).ok() != Some(len_bytes as usize) {
            // The file has changed since it was opened, or cannot be read: the receiver learns of that between the
            // pieces.
            return self.send_pieces(0);
        }
        self.pace(len_bytes);
        data.truncate(len_bytes as usize);
        self.report_change()?;
        let plain_by = self.sender.checksums.plain_by;
        let digest = digest::whole_by(plain_by, &data);
        if let Err(error) = self.reread(0..len_bytes, plain_by, digest) {
            return self.unsent(&error);
        }
        self.sink.whole(data, digest)
    }

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
                match self.reader.read_at(hashed, &mut data) {
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
            data.resize(self.reader.room_from(at).min(piece_max_bytes) as usize, 0);
            match self.reader.read_at(at, &mut data) {
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
        let len_bytes = self.reader.len_bytes();
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
        let read_at = |offset: u64, into: &mut [u8]| self.reader.read_at(offset, into);
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
            file: self.reader.file(),
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
            && watch.has_changed(self.reader.file())
        {
            (self.sender.report)(Event::SourceChanged(self.source.path()))?;
        }
        Ok(())
    }

    /// Reports that the file cannot be read to its end.
    fn unsent(&self, error: &io::Error) -> Result<()> {
        if let Some(mark) = &self.mark {
            mark.give_up();
        }
        if self.sender.facts().counts_parts {
            self.sender.unsent.lock().unsend(self.reader.len_bytes());
        }
        let problem = cannot_read(&self.source.full(), error);
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
