//! Where the bytes of a transferred file come from: a file of this machine, or a peer, piece by piece.

use super::digesting::Digesting;
use super::entry::Job;
use super::similar::Similar;
use super::{Context, Incoming, Piece, Wire};
use crate::delta::{Signature, block_len};
use crate::digest;
use crate::error::Error;
use crate::exit::Exit;
use crate::flist::Kind;
use crate::fs::compare::digest_of_beginning;
use crate::fs::copy::write_where_not_zero;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::fs::write::open_left_over;
use crate::options::Append;
use crate::proto::{Basis, FileId};
use crate::report::event::Problem;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The content of a file that is about to be placed.
pub enum Content<'a> {
    /// An open file of this machine.
    File(OwnedFd),
    /// A peer's, as it comes.
    Stream {
        /// The peer.
        wire: &'a dyn Wire,
        /// Its number there.
        file: FileId,
        /// What comes.
        incoming: Box<dyn Incoming + 'a>,
    },
}

/// What was poured into a file.
#[derive(Debug, Default, Clone, Copy)]
pub struct Poured {
    /// Bytes that came from the source.
    pub literal_bytes: u64,
    /// Bytes that came from the basis.
    pub matched_bytes: u64,
}

/// Why content did not come to its end.
pub enum Spilt {
    /// The peer could not send it; told in its place.
    Unsent(Problem),
    /// `--append-verify`: what is here already is not what the source begins with.
    OtherBeginning,
    /// What was put together is not what the source has.
    Mismatch,
    /// The file cannot be written.
    Write(io::Error),
    /// The connection is lost.
    Lost(Error),
    /// The run is being stopped.
    Stopped,
}

/// Into what content is poured.
#[derive(Clone, Copy)]
pub struct Vessel<'a> {
    /// The file.
    pub to: BorrowedFd<'a>,
    /// Where it begins in it.
    pub start_bytes: u64,
    /// What blocks are taken from.
    pub basis: Option<BorrowedFd<'a>>,
    /// It is the basis itself that is written over (`--inplace`).
    pub in_place: bool,
    /// Runs of zeros become holes.
    pub sparse: bool,
    /// It is empty; else it is written over.
    pub fresh: bool,
    /// How long it may become, in bytes; a peer that goes on is refused.
    pub max_bytes: u64,
    /// How many threads may be at work.
    pub threads: usize,
}

/// Pours what comes into a file and checks it. `step` is called with the bytes of each piece; `false` stops it.
pub fn pour(
    incoming: &mut dyn Incoming,
    vessel: Vessel<'_>,
    step: &mut dyn FnMut(u64) -> bool,
) -> Result<Poured, Spilt> {
    let by = incoming.digested_by();
    std::thread::scope(|scope| pour_into(incoming, vessel, Digesting::new(scope, by, vessel.threads > 1), step))
}

fn pour_into(
    incoming: &mut dyn Incoming,
    vessel: Vessel<'_>,
    mut digesting: Digesting<'_, '_>,
    step: &mut dyn FnMut(u64) -> bool,
) -> Result<Poured, Spilt> {
    let mut at = vessel.start_bytes;
    let mut poured = Poured::default();
    let put = |at: u64, bytes: &[u8]| match vessel.sparse {
        true => write_where_not_zero(vessel.to, bytes, at, vessel.fresh).map(|_| ()),
        false => sys::pwrite_all(vessel.to, bytes, at),
    };
    let fits = |end: u64| match end <= vessel.max_bytes {
        true => Ok(()),
        false => Err(Spilt::Lost(endless(vessel.max_bytes))),
    };
    loop {
        match incoming.next().map_err(Spilt::Lost)? {
            Piece::Data(bytes) => {
                let len = bytes.len() as u64;
                fits(at.saturating_add(len))?;
                put(at, &bytes).map_err(Spilt::Write)?;
                digesting.take(bytes);
                at += len;
                poured.literal_bytes += len;
                if !step(len) {
                    return Err(Spilt::Stopped);
                }
            }
            Piece::Copy { offset_bytes, len_bytes } => {
                // A peer that names what is not there gets a file that fails its check.
                let Some(basis) = vessel.basis else { return Err(Spilt::Mismatch) };
                let stays = vessel.in_place && offset_bytes == at;
                let mut from = offset_bytes;
                let end = offset_bytes.checked_add(len_bytes).ok_or(Spilt::Mismatch)?;
                fits(at.saturating_add(len_bytes))?;
                while from < end {
                    let mut piece = digesting.buffer(end - from);
                    let got = sys::pread(basis, &mut piece, from).map_err(|_| Spilt::Mismatch)?;
                    if got == 0 {
                        return Err(Spilt::Mismatch);
                    }
                    piece.truncate(got);
                    if !stays {
                        put(at, &piece).map_err(Spilt::Write)?;
                    }
                    digesting.take(piece);
                    (from, at) = (from + got as u64, at + got as u64);
                    poured.matched_bytes += got as u64;
                    if !step(got as u64) {
                        return Err(Spilt::Stopped);
                    }
                }
            }
            Piece::Whole(bytes, digest) => {
                if digest::whole(&bytes) != digest {
                    return Err(Spilt::Mismatch);
                }
                put(at, &bytes).map_err(Spilt::Write)?;
                at += bytes.len() as u64;
                poured.literal_bytes += bytes.len() as u64;
                if vessel.sparse {
                    sys::truncate(vessel.to, at).map_err(Spilt::Write)?;
                }
                return if bytes.is_empty() || step(bytes.len() as u64) { Ok(poured) } else { Err(Spilt::Stopped) };
            }
            Piece::End(digest) => {
                if vessel.sparse {
                    sys::truncate(vessel.to, at).map_err(Spilt::Write)?;
                }
                return if digesting.finish() == digest { Ok(poured) } else { Err(Spilt::Mismatch) };
            }
            Piece::Unsent(Some(problem)) => return Err(Spilt::Unsent(problem)),
            Piece::Unsent(None) => return Err(Spilt::OtherBeginning),
        }
    }
}

fn endless(max_bytes: u64) -> Error {
    let words = format!(
        "sparsync: the peer sends more than {max_bytes} bytes of a file, which is far beyond the length that it told: if \
         the file grows so fast, copy it when it does not"
    );
    Error::new(Exit::Protocol, words)
}

/// The basis of a file that will be asked for, if there is one and it may be used: the file that it replaces, or what was
/// chosen in its stead.
pub fn basis_file(
    context: &Context<'_>,
    job: &Job<'_>,
    dir: &Dir,
    similar: Option<&Similar>,
) -> Option<(OwnedFd, u64)> {
    if !context.finds_differences() {
        return None;
    }
    if context.options.place.inplace && job.dest().is_some() {
        return open_basis(dir, job.name());
    }
    let partial = context.options.place.partial_dir.as_deref();
    let kept = partial.and_then(|name| {
        let dir = super::file::open_partial(context, dir, name).ok()?;
        open_basis(&dir, job.name())
    });
    let left_over = left_over(context, job, dir);
    let source_bytes = job.source().len_bytes;
    // Little of the new file itself is worth less than all of an old one.
    let is_most = |(_, len_bytes): &(OwnedFd, u64)| *len_bytes >= source_bytes - source_bytes / 4;
    if kept.is_none() && left_over.as_ref().is_some_and(is_most) {
        return left_over;
    }
    kept.or_else(|| job.dest().and_then(|_| open_basis(dir, job.name())))
        .or_else(|| job.hit().and_then(|hit| open_basis(&hit.dir, job.name())))
        .or_else(|| similar?.open())
        .or(left_over)
}

/// What a crash left of the file, if the run goes on with it.
fn left_over(context: &Context<'_>, job: &Job<'_>, dir: &Dir) -> Option<(OwnedFd, u64)> {
    if !context.resumes(job.source().len_bytes) {
        return None;
    }
    usable(open_left_over(dir, job.name())?)
}

/// Opens a file that may be a basis; `None`: there is none, or nothing is in it.
pub fn open_basis(dir: &Dir, name: &[u8]) -> Option<(OwnedFd, u64)> {
    usable(sys::open_read(dir.fd(), name, false, false).ok()?)
}

fn usable(fd: OwnedFd) -> Option<(OwnedFd, u64)> {
    let stat = sys::fstat(fd.as_fd()).ok()?;
    (Kind::of_mode(stat.mode) == Some(Kind::File) && stat.len_bytes > 0).then_some((fd, stat.len_bytes))
}

/// What the peer is told of what there is of a file.
pub fn basis(context: &Context<'_>, job: &Job<'_>, similar: Option<&Similar>) -> Basis {
    let Some(dir) = &job.spot.dir else { return Basis::None };
    if let (Some(append), Some(there)) = (context.options.place.append, job.dest()) {
        let len_bytes = there.len_bytes;
        let digest = || {
            let fd = sys::open_read(dir.fd(), job.name(), false, false).ok()?;
            digest_of_beginning(fd.as_fd(), len_bytes).ok()
        };
        return match append {
            Append::Trust => Basis::Prefix { len_bytes, digest: None },
            Append::Verify => digest().map_or(Basis::None, |digest| Basis::Prefix { len_bytes, digest: Some(digest) }),
        };
    }
    let Some((fd, len_bytes)) = basis_file(context, job, dir, similar) else { return Basis::None };
    let wished = u32::try_from(context.options.delta.block_size_bytes).ok().filter(|&len| len > 0);
    let read_at = |offset: u64, into: &mut [u8]| sys::pread(fd.as_fd(), into, offset);
    match Signature::of(len_bytes, block_len(len_bytes, wished), context.threads, &read_at) {
        Ok(signature) => Basis::Blocks(signature.encode()),
        // It cannot be read, or has become shorter: then the whole file is asked for.
        Err(_) => Basis::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::By;

    /// A peer that never comes to an end.
    struct Endless;

    impl Incoming for Endless {
        fn begins_otherwise(&mut self) -> Result<bool, Error> {
            Ok(false)
        }

        fn refusal(&mut self) -> Result<Option<Problem>, Error> {
            Ok(None)
        }

        fn digested_by(&self) -> By {
            By::default()
        }

        fn next(&mut self) -> Result<Piece, Error> {
            Ok(Piece::Data(vec![1; 1000]))
        }
    }

    #[test]
    fn a_file_does_not_become_longer_than_it_may() {
        let file = tempfile::tempfile().unwrap();
        let vessel = Vessel {
            to: file.as_fd(),
            start_bytes: 500,
            basis: None,
            in_place: false,
            sparse: false,
            fresh: true,
            max_bytes: 10_500,
            threads: 1,
        };
        let mut poured_bytes = 0;
        let poured = pour(&mut Endless, vessel, &mut |bytes| {
            poured_bytes += bytes;
            true
        });
        let Err(Spilt::Lost(error)) = poured else { panic!("it must be refused") };
        assert_eq!((error.exit, poured_bytes, file.metadata().unwrap().len()), (Exit::Protocol, 10_000, 10_500));
    }
}
