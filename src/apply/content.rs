//! The content of a transferred file: from a file of this machine, or from a peer in pieces.

use crate::apply::block_sums::SummedBasis;
use crate::apply::facts::SourceFacts;
use crate::apply::job::Job;
use crate::apply::read_ahead::{Digesting, NextPiece, Ready};
use crate::apply::{ContentPeer, ContentPiece, Context, Incoming, RequestedBasis, Similar};
use crate::digest::{self, By, CONTENT_LEN_BYTES};
use crate::error::Error;
use crate::exit::Exit;
use crate::flist::Kind;
use crate::fs::compare::digest_of_beginning;
use crate::fs::copy::SparseWriter;
use crate::fs::leftover::open_left_over;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::options::Append;
use crate::plan::BasisName;
use crate::proto::{Basis, FileId};
use crate::report::event::Problem;
use crate::walk::alternate::Hit;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The content of a file to be placed.
pub enum Content<'a> {
    /// An open source file of this machine.
    File(OwnedFd),
    /// An open file of an alternate tree that has the content, too (`--copy-dest`, or `--link-dest` if it cannot be linked).
    Alternate(OwnedFd),
    /// An open file of the destination that has the content, too (`--detect-renamed`).
    Twin(OwnedFd),
    /// A peer's file, as it arrives.
    Stream {
        /// The peer.
        peer: &'a dyn ContentPeer,
        /// Its number at the peer.
        file: FileId,
        /// The pieces.
        incoming: Box<dyn Incoming + 'a>,
    },
}

impl Content<'_> {
    /// Returns the facts about the peer that sends it. `None`: it is on this machine.
    pub fn facts(&self) -> Option<&SourceFacts> {
        match self {
            Content::File(_) | Content::Alternate(_) | Content::Twin(_) => None,
            Content::Stream { peer, .. } => Some(peer.facts()),
        }
    }
}

/// The content that a file gets, and the similar file that may be its basis.
pub struct NewContent<'a, 'c> {
    /// Where it comes from.
    pub content: &'a mut Content<'c>,
    /// The similar file.
    pub similar: Option<&'a Similar>,
}

/// How much was written to a file.
#[derive(Debug, Default, Clone, Copy)]
pub struct ContentCounts {
    /// Bytes that came from the source.
    pub literal_bytes: u64,
    /// Bytes that came from the basis.
    pub matched_bytes: u64,
    /// The offset at which the content ends in the file.
    pub end_bytes: u64,
    /// What should be in the file now, from an offset up to that one. `None` if nothing was written, or if it was not
    /// requested ([`ContentTarget::verifies`]).
    pub expected: Option<ExpectedContent>,
}

impl ContentCounts {
    /// Adds the digest of what was sent, if the content will be read back.
    fn expecting(
        self,
        target: ContentTarget<'_>,
        by: By,
        digest: [u8; CONTENT_LEN_BYTES],
    ) -> ContentCounts {
        let expected = ExpectedContent {
            start_bytes: target.start_bytes,
            by,
            digest,
        };
        ContentCounts {
            expected: if target.verifies {
                Some(expected)
            } else {
                None
            },
            ..self
        }
    }
}

/// The digest of what was sent, with which a part of a file is compared when it is read back (`--verify`).
#[derive(Debug, Clone, Copy)]
pub struct ExpectedContent {
    /// The offset from which on the digest covers the file.
    pub start_bytes: u64,
    /// The hash function.
    pub by: By,
    /// The digest.
    pub digest: [u8; CONTENT_LEN_BYTES],
}

/// Why content was not written completely.
pub enum ContentError {
    /// The peer could not send it to its end, after this many bytes that came from the source.
    Unsent(Problem, u64),
    /// `--append-verify`: the source does not begin with the existing content.
    OtherBeginning,
    /// The result differs from the source, after this many bytes that came from it.
    Mismatch(u64),
    /// The file cannot be written.
    Write(io::Error),
    /// The connection is lost.
    Lost(Error),
    /// The run is being stopped.
    Stopped,
}

/// Where and how content is written.
#[derive(Clone, Copy)]
pub struct ContentTarget<'a> {
    /// The file.
    pub to: BorrowedFd<'a>,
    /// The offset at which the content begins in it.
    pub start_bytes: u64,
    /// The basis of the delta.
    pub basis: Option<BorrowedFd<'a>>,
    /// How much of the beginning of `to`, which is also the basis, counts for the digest (`--append-verify`).
    pub verified_bytes: u64,
    /// `to` is the basis itself (`--inplace`).
    pub in_place: bool,
    /// `to` is a clone of the basis, in which only what differs is written (`--clone-dest`). What follows the content must
    /// be cut off.
    pub is_clone: bool,
    /// `to` becomes a clone of a local file that has the content, if that is possible (`--clone-dest`).
    pub clones_content: bool,
    /// Runs of zeros become holes.
    pub sparse: bool,
    /// `to` is new, so that it can be emptied to begin again; otherwise it is overwritten.
    pub fresh: bool,
    /// `to` is a device, which keeps its length.
    pub is_device: bool,
    /// What is written will be read back (`--verify`).
    pub verifies: bool,
    /// The maximum length of the file in bytes. A peer that sends more is rejected.
    pub max_bytes: u64,
    /// How many threads may be used.
    pub threads: usize,
}

/// Writes the incoming pieces to a file and verifies them. `step` is called with the bytes of each piece; `false`
/// stops.
pub fn write_content(
    incoming: &mut dyn Incoming,
    target: ContentTarget<'_>,
    step: &mut dyn FnMut(u64) -> bool,
) -> Result<ContentCounts, ContentError> {
    std::thread::scope(|scope| {
        let sent_by = incoming.digested_by();
        let by = if target.verifies && !sent_by.tells_apart() {
            By::Xxh3
        } else {
            sent_by
        };
        let digesting = Digesting::new(scope, by, target.threads > 1);
        let sparse = if target.sparse {
            Some(SparseWriter::new(target.to, target.fresh))
        } else {
            None
        };
        ContentWriter {
            target,
            sparse,
            digesting,
            by,
            is_checked: by == sent_by,
            at: target.start_bytes,
            content_counts: ContentCounts::default(),
            step,
        }
        .write_content(incoming)
    })
}

/// Content being written to a file.
struct ContentWriter<'scope, 'env, 'p> {
    target: ContentTarget<'env>,
    /// Writes instead of this writer itself under `--sparse`.
    sparse: Option<SparseWriter<'env>>,
    digesting: Digesting<'scope, 'env>,
    /// The hash function of `digesting`.
    by: By,
    /// The peer has the same one, so its digest is compared.
    is_checked: bool,
    /// The offset up to which it is written.
    at: u64,
    content_counts: ContentCounts,
    step: &'p mut dyn FnMut(u64) -> bool,
}

impl<'env> ContentWriter<'_, 'env, '_> {
    fn write_content(mut self, incoming: &mut dyn Incoming) -> Result<ContentCounts, ContentError> {
        let ContentTarget {
            max_bytes,
            verified_bytes,
            ..
        } = self.target;
        if verified_bytes > 0 {
            let basis = self.target.basis.ok_or_else(|| self.mismatch())?;
            self.give_range(basis, 0, verified_bytes)?;
        }
        // The offset up to which it has arrived.
        let mut end = self.at.max(verified_bytes);
        let fits = |end: u64, len: u64, max_bytes: u64| match end.saturating_add(len) {
            end if end <= max_bytes => Ok(end),
            _ => Err(ContentError::Lost(endless(max_bytes))),
        };
        loop {
            match incoming.next().map_err(ContentError::Lost)? {
                ContentPiece::Data(bytes) => {
                    end = fits(end, bytes.len() as u64, max_bytes)?;
                    self.give(NextPiece::Bytes(bytes))?;
                }
                ContentPiece::Copy {
                    offset_bytes,
                    len_bytes,
                } => {
                    // A copy without a basis makes the file fail its check.
                    let Some(basis) = self.target.basis else {
                        return Err(self.mismatch());
                    };
                    let range_end = offset_bytes
                        .checked_add(len_bytes)
                        .ok_or_else(|| self.mismatch())?;
                    // What stays is read where it stays, because the basis can have changed since it was cloned. Nothing was
                    // written there yet: the content is written in order.
                    let stays = self.target.is_clone && offset_bytes == end;
                    let file = if stays { self.target.to } else { basis };
                    end = fits(end, len_bytes, max_bytes)?;
                    let seen = incoming.see_copy(basis, offset_bytes, len_bytes);
                    seen.map_err(|_| self.mismatch())?;
                    self.give_range(file, offset_bytes, range_end)?;
                }
                ContentPiece::Whole(bytes, digest) => {
                    if digest::whole(&bytes) != digest {
                        return Err(self.mismatch());
                    }
                    if !bytes.is_empty() {
                        self.write(Ready { bytes, from: None })?;
                    }
                    let content_counts = self.ended()?;
                    return Ok(content_counts.expecting(self.target, By::Xxh3, digest));
                }
                ContentPiece::End(digest) => {
                    while self.write_next()? {}
                    let content_counts = self.ended()?;
                    let ContentWriter {
                        target,
                        digesting,
                        by,
                        is_checked,
                        ..
                    } = self;
                    let written = digesting.finish();
                    if is_checked && written != digest {
                        return Err(ContentError::Mismatch(content_counts.literal_bytes));
                    }
                    return Ok(content_counts.expecting(target, by, written));
                }
                ContentPiece::Unsent(Some(problem)) => {
                    let literal_bytes = self.content_counts.literal_bytes;
                    return Err(ContentError::Unsent(problem, literal_bytes));
                }
                ContentPiece::Unsent(None) => return Err(ContentError::OtherBeginning),
            }
        }
    }

    /// Prepares the bytes of a file from one offset up to another.
    fn give_range(
        &mut self,
        file: BorrowedFd<'env>,
        start: u64,
        end: u64,
    ) -> Result<(), ContentError> {
        let mut from = start;
        while from < end {
            let len = self.digesting.good_len(end - from);
            self.give(NextPiece::Range(file, from, len))?;
            from += len as u64;
        }
        Ok(())
    }

    /// Prepares the next bytes, and writes earlier ones if enough are prepared.
    fn give(&mut self, next: NextPiece<'env>) -> Result<(), ContentError> {
        self.digesting.give(next);
        while self.digesting.is_full() {
            self.write_next()?;
        }
        Ok(())
    }

    /// Writes the next prepared piece. Returns `false` if there is none.
    fn write_next(&mut self) -> Result<bool, ContentError> {
        let Some(ready) = self.digesting.take() else {
            return Ok(false);
        };
        self.write(ready.map_err(|_| self.mismatch())?)?;
        Ok(true)
    }

    fn write(&mut self, Ready { bytes, from }: Ready) -> Result<(), ContentError> {
        let ContentTarget {
            to,
            in_place,
            is_clone,
            ..
        } = self.target;
        let len = bytes.len() as u64;
        // In the basis itself or its clone, a block that does not move is already there.
        let is_there = (in_place || is_clone) && from == Some(self.at);
        let written = match &mut self.sparse {
            Some(sparse) => sparse.put(&bytes, self.at, is_there),
            None if is_there => Ok(()),
            None => sys::pwrite_all(to, &bytes, self.at),
        };
        written.map_err(ContentError::Write)?;
        self.at += len;
        match from {
            Some(_) => self.content_counts.matched_bytes += len,
            None => self.content_counts.literal_bytes += len,
        }
        self.digesting.give_back(bytes);
        if (self.step)(len) {
            Ok(())
        } else {
            Err(ContentError::Stopped)
        }
    }

    fn mismatch(&self) -> ContentError {
        ContentError::Mismatch(self.content_counts.literal_bytes)
    }

    /// Finishes the file after the last write.
    fn ended(&mut self) -> Result<ContentCounts, ContentError> {
        if let Some(sparse) = &mut self.sparse {
            sparse.finish().map_err(ContentError::Write)?;
            sys::truncate(self.target.to, self.at).map_err(ContentError::Write)?;
        }
        let matched_bytes = self.content_counts.matched_bytes - self.target.verified_bytes;
        Ok(ContentCounts {
            matched_bytes,
            end_bytes: self.at,
            ..self.content_counts
        })
    }
}

fn endless(max_bytes: u64) -> Error {
    let words = format!(
        "sparsync: cannot receive a file: more than {max_bytes} bytes, far beyond its reported length"
    );
    Error::new(Exit::Protocol, words).with_hint("a file that grows this fast cannot be copied")
}

/// The basis of a file.
pub struct BasisFile {
    /// The file.
    pub fd: OwnedFd,
    len_bytes: u64,
    /// Which file it is; `None` for the one that is replaced, or a part of that.
    name: Option<BasisName>,
}

/// Opens the basis of a file to be requested, if it has a usable one: the file that it replaces, or a substitute.
pub fn basis_file(job: &Job<'_>, dir: &Dir, similar: Option<&Similar>) -> Option<BasisFile> {
    if !job.context.finds_differences() {
        return None;
    }
    let place = &job.context.options.place;
    let of = |name: Option<BasisName>| {
        move |(fd, len_bytes)| BasisFile {
            fd,
            len_bytes,
            name,
        }
    };
    if place.inplace
        && let Some(existing) = job.dest()
    {
        let backup = place.backup.as_ref().map(|_| BasisName::Backup);
        return match existing.kind() {
            Kind::Device => open_device(dir, job).map(of(None)),
            _ => open_basis(job.context, dir, job.name()).map(of(backup)),
        };
    }
    let kept = place.partial_dir.as_deref().and_then(|name| {
        let dir = crate::apply::partial::open_partial(job.context, dir, name).ok()?;
        open_basis(job.context, &dir, job.name())
    });
    let left_over = left_over(job, dir);
    let source_bytes = job.source().len_bytes;
    // A small part of the new file is worth less than a complete old one.
    let is_most = |(_, len_bytes): &(OwnedFd, u64)| *len_bytes >= source_bytes - source_bytes / 4;
    if kept.is_none() && left_over.as_ref().is_some_and(is_most) {
        return left_over.map(of(None));
    }
    let of_hit = |hit: &Hit| {
        let name = Some(BasisName::Alternate(hit.tree));
        open_basis(job.context, &hit.dir, job.name()).map(of(name))
    };
    let of_similar = |similar: &Similar| {
        similar
            .open(job.context)
            .map(of(Some(similar.basis_name())))
    };
    let of_existing = || {
        job.dest()
            .and_then(|_| open_basis(job.context, dir, job.name()))
    };
    kept.or_else(of_existing)
        .map(of(None))
        .or_else(|| job.hit().and_then(of_hit))
        .or_else(|| similar.and_then(of_similar))
        .or_else(|| left_over.map(of(None)))
}

/// Opens what a crash left of the file, if the run resumes from it.
fn left_over(job: &Job<'_>, dir: &Dir) -> Option<(OwnedFd, u64)> {
    if !job.context.resumes(job.source().len_bytes) {
        return None;
    }
    usable(open_left_over(dir, job.name())?)
}

/// Opens a file as a basis. `None`: it does not exist or is empty.
pub fn open_basis(context: &Context<'_>, dir: &Dir, name: &[u8]) -> Option<(OwnedFd, u64)> {
    usable(context.open_read(dir, name).ok()?)
}

/// Opens a device to be written as a basis, at most for the length of the source.
fn open_device(dir: &Dir, job: &Job<'_>) -> Option<(OwnedFd, u64)> {
    let fd = job.context.open_read(dir, job.name()).ok()?;
    let len_bytes = sys::content_len(fd.as_fd())
        .ok()?
        .min(job.source().len_bytes);
    (len_bytes > 0).then_some((fd, len_bytes))
}

fn usable(fd: OwnedFd) -> Option<(OwnedFd, u64)> {
    let stat = sys::fstat(fd.as_fd()).ok()?;
    (Kind::of_mode(stat.mode) == Some(Kind::File) && stat.len_bytes > 0)
        .then_some((fd, stat.len_bytes))
}

/// Returns the basis that is sent to the peer.
pub fn basis(job: &Job<'_>, similar: Option<&Similar>, facts: &SourceFacts) -> RequestedBasis {
    let Some(dir) = &job.dest_dir.dir else {
        return Basis::None.into();
    };
    if let (Some(append), Some(existing)) = (job.context.options.place.append, job.dest()) {
        let len_bytes = existing.len_bytes;
        let digest = || {
            let fd = job.context.open_read(dir, job.name()).ok()?;
            digest_of_beginning(fd.as_fd(), len_bytes, &facts.compared_by, &|| {
                job.context.is_over()
            })
            .ok()
        };
        let prefix = match append {
            Append::Verify if facts.digests_prefix => Basis::Prefix {
                len_bytes,
                digest: None,
            },
            Append::Trust => Basis::Prefix {
                len_bytes,
                digest: None,
            },
            Append::Verify => digest().map_or(Basis::None, |digest| Basis::Prefix {
                len_bytes,
                digest: Some(digest),
            }),
        };
        return prefix.into();
    }
    let Some(found) = basis_file(job, dir, similar) else {
        return Basis::None.into();
    };
    let BasisFile {
        fd,
        len_bytes,
        name,
    } = found;
    match blocks_of(job.context, fd.as_fd(), len_bytes, facts, false) {
        Ok(blocks) => RequestedBasis {
            basis: Basis::Blocks(blocks),
            name,
        },
        // If the basis cannot be read or has become shorter, the whole file is requested.
        Err(_) => Basis::None.into(),
    }
}

/// Returns the basis for the second request of a file that is updated in place: what it is now, or its backup.
pub fn basis_of_retry(context: &Context<'_>, old: BorrowedFd<'_>, facts: &SourceFacts) -> Basis {
    let len_bytes = sys::fstat(old).map_or(0, |stat| stat.len_bytes);
    if len_bytes == 0 || !context.finds_differences() {
        return Basis::None;
    }
    blocks_of(context, old, len_bytes, facts, true).map_or(Basis::None, Basis::Blocks)
}

/// Returns the blocks of a file as the peer expects them.
fn blocks_of(
    context: &Context<'_>,
    fd: BorrowedFd<'_>,
    len_bytes: u64,
    facts: &SourceFacts,
    is_retry: bool,
) -> io::Result<Vec<u8>> {
    let wished = u32::try_from(context.options.delta.block_size_bytes)
        .ok()
        .filter(|&len| len > 0);
    let read_at = |offset: u64, into: &mut [u8]| {
        if context.is_over() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        sys::pread(fd, into, offset)
    };
    facts.block_sums.of_basis(&SummedBasis {
        len_bytes,
        block_len_bytes: wished,
        threads: context.process.threads,
        is_retry,
        read_at: &read_at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that sends the pieces that a function makes.
    struct SendsPieces<F>(F);

    impl<F: FnMut() -> ContentPiece> Incoming for SendsPieces<F> {
        fn begins_otherwise(&mut self) -> Result<bool, Error> {
            Ok(false)
        }

        fn refusal(&mut self) -> Result<Option<Problem>, Error> {
            Ok(None)
        }

        fn digested_by(&self) -> By {
            By::default()
        }

        fn next(&mut self) -> Result<ContentPiece, Error> {
            Ok((self.0)())
        }

        fn see_copy(&mut self, _: BorrowedFd<'_>, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn moved_bytes(&self) -> Option<u64> {
            None
        }
    }

    #[test]
    fn what_stays_in_a_clone_is_digested_as_it_is_there() {
        use std::io::Write as _;
        let file_with = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        let copy = |offset_bytes, len_bytes| ContentPiece::Copy {
            offset_bytes,
            len_bytes,
        };
        // The first piece stays, the second comes from the source, the third moves.
        let wanted = b"aaaa????aa";
        let digest = digest::content(wanted);
        let write = |basis: &std::fs::File, clone: &std::fs::File| {
            let pieces = vec![
                copy(0, 4),
                ContentPiece::Data(b"????".to_vec()),
                copy(0, 2),
                ContentPiece::End(digest),
            ];
            let target = ContentTarget {
                basis: Some(basis.as_fd()),
                is_clone: true,
                ..plain_target(clone)
            };
            let mut pieces = pieces.into_iter();
            let mut peer = SendsPieces(|| pieces.next().expect("the content has an end"));
            write_content(&mut peer, target, &mut |_| true)
        };

        // A basis that changes after it was cloned does not change what stays.
        let clone = file_with(b"aaaabbbbcccc");
        let counts = write(&file_with(b"aaxx"), &clone)
            .ok()
            .expect("it is right");
        assert_eq!((counts.matched_bytes, counts.literal_bytes), (6, 4));
        let mut got = vec![0; counts.end_bytes as usize];
        sys::pread_exact(clone.as_fd(), &mut got, 0).unwrap();
        assert_eq!(got, wanted);
        // A clone of a basis that had changed is noticed, although the basis is right again.
        let ended = write(&file_with(b"aaaabbbbcccc"), &file_with(b"aaxxbbbbcccc"));
        assert!(matches!(ended, Err(ContentError::Mismatch(4))));
    }

    fn plain_target(to: &std::fs::File) -> ContentTarget<'_> {
        ContentTarget {
            to: to.as_fd(),
            start_bytes: 0,
            verified_bytes: 0,
            basis: None,
            in_place: false,
            is_clone: false,
            clones_content: false,
            sparse: false,
            fresh: true,
            is_device: false,
            verifies: false,
            max_bytes: 10_500,
            threads: 1,
        }
    }

    #[test]
    fn content_beyond_the_length_limit_is_rejected() {
        let file = tempfile::tempfile().unwrap();
        let target = ContentTarget {
            start_bytes: 500,
            ..plain_target(&file)
        };
        let mut poured_bytes = 0;
        let mut endless = SendsPieces(|| ContentPiece::Data(vec![1; 1000]));
        let content_counts = write_content(&mut endless, target, &mut |bytes| {
            poured_bytes += bytes;
            true
        });
        let Err(ContentError::Lost(error)) = content_counts else {
            panic!("it must be refused")
        };
        assert_eq!(
            (error.exit, poured_bytes, file.metadata().unwrap().len()),
            (Exit::Protocol, 10_000, 10_500)
        );
    }
}
