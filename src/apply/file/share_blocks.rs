//! `--clone-dest`: a new file begins as a clone of the file that has its content, or that is the basis of its delta.

use crate::apply::Outcome;
use crate::apply::job::Job;
use crate::fs::sys;
use crate::report::event::{BLOCKS_ARE_COPIED, Event, Problem, Weight, errno_words};
use std::io;
use std::os::fd::BorrowedFd;

/// Makes an empty file a clone of the one that has its content. Returns its length, or `None` if it must be copied. An error:
/// the file cannot be written.
pub(super) fn clone_content(
    job: &Job<'_>,
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    out: &mut Outcome<'_>,
) -> io::Result<Option<u64>> {
    if !clone_basis(job, from, to, out)? {
        return Ok(None);
    }
    let len_bytes = sys::fstat(to)?.len_bytes;
    if let Some(mark) = &out.mark {
        mark.add(len_bytes);
    }
    Ok(Some(len_bytes))
}

/// Makes an empty file a clone of its basis. If that is not possible, the file stays empty, which is reported once in a run. An
/// error: the file cannot be written.
///
/// Each file is tried, because trees can consist of several file systems, and of files with different attributes.
pub(super) fn clone_basis(
    job: &Job<'_>,
    basis: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    out: &mut Outcome<'_>,
) -> io::Result<bool> {
    let Err(error) = sys::clone(to, basis) else {
        return Ok(true);
    };
    // A clone that fails halfway leaves a part, which may be longer than the content.
    sys::truncate(to, 0)?;
    if !job.context.unsupported_calls.was_reported_no_clone() {
        let line = [
            b"sparsync: cannot share blocks of \"".as_slice(),
            job.path.as_bytes(),
            b"\" (--clone-dest): ",
            &errno_words(&error),
            BLOCKS_ARE_COPIED,
        ]
        .concat();
        let problem = Problem::new(line, Weight::Warning);
        out.events.push(Event::Problem(problem));
    }
    Ok(false)
}
