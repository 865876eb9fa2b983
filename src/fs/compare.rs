//! Whether two files begin with the same bytes.
//!
//! Where both lie on this machine that is asked directly: reading both costs what hashing both would,
//! without the hashing, and the first difference ends it.

use super::sys;
use crate::digest::{By, ContentHasher};
use rustix::fd::BorrowedFd;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// How much of each file is read at a time: small enough to stay in the cache of a core.
const PIECE_BYTES: usize = 64 * 1024;

/// Whether the first `len_bytes` of two files are the same; a file that is shorter than that differs.
/// Fails once `stop` is set.
pub fn same_bytes(a: BorrowedFd<'_>, b: BorrowedFd<'_>, len_bytes: u64, stop: &AtomicBool) -> io::Result<bool> {
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

/// Reads until the piece is full or the file ends; how much that was.
pub(super) fn read_until(fd: BorrowedFd<'_>, piece: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match sys::pread(fd, &mut piece[filled..], at + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// How much is read and digested at a time.
const DIGEST_PIECE_BYTES: usize = 128 * 1024;

/// The digest of so many bytes from a file's start. Fails once `is_over` says that nobody wants it any more.
pub fn digest_of_beginning(file: BorrowedFd<'_>, len_bytes: u64, is_over: &dyn Fn() -> bool) -> io::Result<[u8; 16]> {
    let mut hasher = ContentHasher::new(By::Blake3);
    // Most files are short: clearing a whole piece for each was a sixth of a run with `-c`.
    let mut piece = vec![0; usize::try_from(len_bytes).map_or(DIGEST_PIECE_BYTES, |len| len.min(DIGEST_PIECE_BYTES))];
    let mut at = 0;
    while at < len_bytes {
        if is_over() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let room = (len_bytes - at).min(piece.len() as u64) as usize;
        match sys::pread(file, &mut piece[..room], at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => {
                hasher.update(&piece[..got]);
                at += got as u64;
            }
        }
    }
    Ok(hasher.finish())
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
    fn only_the_asked_bytes_count_and_all_of_them() {
        let mut content = vec![7u8; 3 * PIECE_BYTES + 5];
        let whole = file(&content);
        let len = content.len() as u64;
        assert!(same_bytes(whole.as_fd(), file(&content).as_fd(), len, &GO_ON).unwrap());
        assert!(same_bytes(whole.as_fd(), file(&[]).as_fd(), 0, &GO_ON).unwrap());
        assert!(!same_bytes(whole.as_fd(), file(&content[1..]).as_fd(), len, &GO_ON).unwrap());
        for at in [0, PIECE_BYTES, content.len() - 1] {
            content[at] ^= 1;
            let other = file(&content);
            assert!(!same_bytes(whole.as_fd(), other.as_fd(), len, &GO_ON).unwrap(), "{at}");
            assert!(same_bytes(whole.as_fd(), other.as_fd(), at as u64, &GO_ON).unwrap(), "{at}");
            content[at] ^= 1;
        }
    }
}
