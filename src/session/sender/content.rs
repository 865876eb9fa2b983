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
use crate::proto::{Basis, FileId, Lane};
use crate::report::event::{Event, Problem, Weight};
use crate::report::gauge::FileMark;
use crate::session::compression::is_left_out;
use crate::walk::SourceDir;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

impl Sender<'_> {
    /// Sends the content of a file, or the reason why it cannot be read, and counts it for the live display.
    pub(super) fn send(
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
    pub(super) fn unsent(&self, sink: &dyn ContentSink, problem: Option<Problem>) -> Result<()> {
        if let (Some(problem), false) = (problem.clone(), self.facts().takes_problems) {
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
