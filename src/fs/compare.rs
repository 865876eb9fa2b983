//! Compares the content of two files, and computes digests of file contents.
//!
//! If both files are on this machine, they are compared directly. That reads as much as hashing both would, but saves
//! the hashing and stops at the first difference.

use super::sys;
use crate::digest::{
    CONTENT_LEN_BYTES, Comparison, HashAlgorithm, PlainDigest, PlainHasher, StandardHasher,
};
use rustix::fd::BorrowedFd;
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// How much of each file is read at a time. Small enough for the cache of a core.
const PIECE_BYTES: usize = 64 * 1024;

/// Returns whether the first `len_bytes` of two files are the same. A file that is shorter differs. Fails once `stop`
/// is set.
pub fn same_bytes(
    a: BorrowedFd<'_>,
    b: BorrowedFd<'_>,
    len_bytes: u64,
    stop: &AtomicBool,
) -> io::Result<bool> {
    let piece = usize::try_from(len_bytes).map_or(PIECE_BYTES, |len| len.min(PIECE_BYTES));
    let mut both = vec![0u8; 2 * piece];
    let (left, right) = both.split_at_mut(piece);
    let mut at = 0;
    while at < len_bytes {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let want = usize::try_from(len_bytes - at).map_or(piece, |rest| rest.min(piece));
        if read_until(a, &mut left[..want], at)? < want
            || read_until(b, &mut right[..want], at)? < want
            || left[..want] != right[..want]
        {
            return Ok(false);
        }
        at += want as u64;
    }
    Ok(true)
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
pub fn read_until(fd: BorrowedFd<'_>, piece: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match sys::pread(fd, &mut piece[filled..], at + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// How much is read and hashed at a time. Small enough that the data is still in the cache of a core when it is hashed.
const DIGEST_PIECE_BYTES: usize = 128 * 1024;

/// Contents up to this length are read together with their attributes, because opening the file again by name costs as
/// much.
pub const SHORT_BYTES: u64 = DIGEST_PIECE_BYTES as u64;

/// Returns the digest of the first `len_bytes` of a file. Fails once `is_over` returns true, and if the file is
/// shorter.
pub fn digest_of_beginning(
    file: BorrowedFd<'_>,
    len_bytes: u64,
    by: &Comparison,
    is_over: &dyn Fn() -> bool,
) -> io::Result<[u8; CONTENT_LEN_BYTES]> {
    if len_bytes <= DIGEST_PIECE_BYTES as u64 {
        let mut digest = [0; CONTENT_LEN_BYTES];
        read_beginning(file, len_bytes, is_over, &mut |whole| {
            digest = by.digest(whole)
        })?;
        return Ok(digest);
    }
    let mut hasher = by.hasher();
    read_beginning(file, len_bytes, is_over, &mut |piece| hasher.update(piece))?;
    Ok(hasher.finish())
}

/// Returns the plain digest of the first `len_bytes` of a file. Fails as [`digest_of_beginning`] does.
pub fn plain_digest_of_beginning(
    file: BorrowedFd<'_>,
    len_bytes: u64,
    is_over: &dyn Fn() -> bool,
) -> io::Result<PlainDigest> {
    let mut hasher = PlainHasher::default();
    read_beginning(file, len_bytes, is_over, &mut |piece| hasher.update(piece))?;
    Ok(hasher.finish())
}

/// Passes the first `len_bytes` of a file to `take` in pieces. One of up to [`SHORT_BYTES`] is one piece, also if it is
/// empty.
fn read_beginning(
    file: BorrowedFd<'_>,
    len_bytes: u64,
    is_over: &dyn Fn() -> bool,
    take: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    // Reused for all files of a thread, so that it is zeroed only once.
    thread_local!(static PIECE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    PIECE.with_borrow_mut(|piece| {
        let mut at = 0;
        loop {
            if is_over() {
                return Err(io::Error::from(io::ErrorKind::Interrupted));
            }
            let want = usize::try_from(len_bytes - at)
                .map_or(DIGEST_PIECE_BYTES, |rest| rest.min(DIGEST_PIECE_BYTES));
            piece.resize(piece.len().max(want), 0);
            if read_until(file, &mut piece[..want], at)? < want {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take(&piece[..want]);
            at += want as u64;
            if at >= len_bytes {
                return Ok(());
            }
        }
    })
}

/// Returns the standard digests of a file by each of these algorithms, which are computed in one pass. The file is read
/// to its end, wherever that is by then. `note` gets the number of bytes of each piece that was read, and fails if the run
/// is being stopped.
pub fn standard_digests(
    file: BorrowedFd<'_>,
    algorithms: &[HashAlgorithm],
    note: &dyn Fn(u64) -> io::Result<()>,
) -> io::Result<Vec<Vec<u8>>> {
    thread_local!(static PIECE: RefCell<Vec<u8>> = RefCell::new(vec![0; DIGEST_PIECE_BYTES]));
    PIECE.with_borrow_mut(|piece| {
        let mut hashers: Vec<_> = algorithms
            .iter()
            .map(|&algorithm| StandardHasher::new(algorithm))
            .collect();
        loop {
            let len_bytes = sys::read(file, piece)?;
            if len_bytes == 0 {
                break;
            }
            for hasher in &mut hashers {
                hasher.update(&piece[..len_bytes]);
            }
            note(len_bytes as u64)?;
        }
        Ok(hashers.into_iter().map(StandardHasher::finish).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn file(bytes: &[u8]) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn comparison_covers_exactly_the_given_length() {
        let mut content = vec![7u8; 3 * PIECE_BYTES + 5];
        let whole = file(&content);
        let len = content.len() as u64;
        assert!(same_bytes(whole.as_fd(), file(&content).as_fd(), len, &GO_ON).unwrap());
        assert!(same_bytes(whole.as_fd(), file(&[]).as_fd(), 0, &GO_ON).unwrap());
        assert!(!same_bytes(whole.as_fd(), file(&content[1..]).as_fd(), len, &GO_ON).unwrap());
        for at in [0, PIECE_BYTES, content.len() - 1] {
            content[at] ^= 1;
            let other = file(&content);
            assert!(
                !same_bytes(whole.as_fd(), other.as_fd(), len, &GO_ON).unwrap(),
                "{at}"
            );
            assert!(
                same_bytes(whole.as_fd(), other.as_fd(), at as u64, &GO_ON).unwrap(),
                "{at}"
            );
            content[at] ^= 1;
        }
    }
}
