//! `--verify`: reads a file back after it was written, and a source again after it was read.
//!
//! Every content is written by [`fill`](super::write_content::fill), which also computes the digest of what was sent. So it
//! does not matter here whether a file was written as a whole, as a delta, with holes, in place, or behind its old end,
//! and whether the content came from a peer, from a file of this machine, or from a twin.

use crate::apply::Outcome;
use crate::apply::content::{ContentCounts, ExpectedContent};
use crate::apply::file::failure::{Failure, io_failed};
use crate::apply::job::Job;
use crate::digest::ContentHasher;
use crate::fs::medium::Reread;
use crate::fs::sys;
use crate::options::Verify;
use crate::report::event::{ErrorRole, Event, Problem};
use std::io;
use std::os::fd::BorrowedFd;

/// Reads a written file back from its medium, and compares it with what was sent, if that is wanted.
pub(super) fn read_back(
    job: &Job<'_>,
    to: BorrowedFd<'_>,
    written: &ContentCounts,
    out: &mut Outcome<'_>,
) -> Result<(), Failure> {
    let Some(expected) = written.expected else {
        return Ok(());
    };
    sys::fsync(to).map_err(|error| io_failed(job, "fsync", &error))?;
    let is_over = || job.context.is_over();
    let found = sys::fstat(to).and_then(|stat| {
        if stat.len_bytes == written.end_bytes {
            digest_again(to, written, expected, &is_over).of_written()
        } else {
            // Content of another length differs, whatever is in it.
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    });
    let error = match found {
        Ok(digest) if digest == expected.digest => {
            let len_bytes = written.end_bytes - expected.start_bytes;
            out.events.push(Event::Verified { len_bytes });
            return Ok(());
        }
        Err(_) if is_over() => return Err(Failure::Stopped),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => error,
        Ok(_) | Err(_) => io::Error::other("what was read back differs from what was sent"),
    };
    let what = "verification failed for";
    let problem = Problem::about(ErrorRole::Receiver, what, &job.full(), &error);
    Err(Failure::Damaged(Event::Problem(problem)))
}

/// Reads the source again, if that is wanted. Fails if its content is not what it was.
pub(super) fn reread_source(
    job: &Job<'_>,
    from: BorrowedFd<'_>,
    written: &ContentCounts,
) -> io::Result<()> {
    let (Some(expected), Some(Verify::WrittenAndSource)) =
        (written.expected, job.context.options.place.verify)
    else {
        return Ok(());
    };
    let is_over = || job.context.stopped();
    let again = digest_again(from, written, expected, &is_over).of_source()?;
    if again == expected.digest {
        Ok(())
    } else {
        Err(source_differs())
    }
}

/// Returns the error of a source that has other content when it is read again.
pub fn source_differs() -> io::Error {
    io::Error::other("the content is different when it is read again")
}

fn digest_again<'a>(
    file: BorrowedFd<'a>,
    written: &ContentCounts,
    expected: ExpectedContent,
    is_over: &'a dyn Fn() -> bool,
) -> Reread<'a> {
    Reread {
        file,
        range: expected.start_bytes..written.end_bytes,
        hasher: ContentHasher::new(expected.by),
        is_over,
    }
}
