//! Reads and digests the pieces of a content before they are written, on a thread of its own if the content is long.

use crate::digest::{By, CONTENT_LEN_BYTES, ContentHasher};
use crate::fs::sys;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// After this many bytes, a separate thread for reading and digesting pays off.
const LONG_BYTES: u64 = 4 << 20;
/// How many pieces may be ahead of the writer: queued, in progress or ready.
const AHEAD_MAX: usize = 3;

/// The length of a piece that one thread reads, writes and digests. It stays in that core's caches.
const PIECE_BYTES: u64 = 128 << 10;
/// The length of a piece for the other thread. Waking that thread takes as long as digesting 64 KiB.
const SHARED_PIECE_BYTES: u64 = 512 << 10;

/// The next piece of a content.
pub enum NextPiece<'a> {
    /// These bytes.
    Bytes(Vec<u8>),
    /// This many bytes of a file, from this offset on.
    Range(BorrowedFd<'a>, u64, usize),
}

/// A piece that is digested and not written yet.
pub struct Ready {
    pub bytes: Vec<u8>,
    /// Their offset in a file, if they come from one.
    pub from: Option<u64>,
}

/// Takes the pieces of a content in order, reads those from files, digests all, and returns them in the same order.
///
/// For a long content another thread does this, a few pieces ahead, while the caller writes: with a single thread, the
/// peer would have to wait for it. At most [`AHEAD_MAX`] pieces are in memory.
pub struct Digesting<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    how: DigestMode<'scope, 'env>,
    /// A thread may be started after [`LONG_BYTES`].
    may_share: bool,
    given_bytes: u64,
    spare: Vec<Vec<u8>>,
}

enum DigestMode<'scope, 'env> {
    Inline(ContentHasher, VecDeque<io::Result<Ready>>),
    Beside(Beside<'scope, 'env>),
}

struct Beside<'scope, 'env> {
    tasks: Sender<(NextPiece<'env>, Vec<u8>)>,
    ready: Receiver<io::Result<Ready>>,
    thread: ScopedJoinHandle<'scope, ContentHasher>,
    /// How many pieces were given and not taken.
    ahead: usize,
}

impl<'scope, 'env> Digesting<'scope, 'env> {
    /// Starts without a thread. `may_share`: there is a processor for a second thread.
    pub fn new(scope: &'scope Scope<'scope, 'env>, by: By, may_share: bool) -> Self {
        let how = DigestMode::Inline(ContentHasher::new(by), VecDeque::new());
        Digesting {
            scope,
            how,
            may_share,
            given_bytes: 0,
            spare: Vec::new(),
        }
    }

    /// Returns the best length for the next range when this many bytes are left.
    pub fn good_len(&self, left_bytes: u64) -> usize {
        left_bytes.min(if matches!(self.how, DigestMode::Inline(..)) {
            PIECE_BYTES
        } else {
            SHARED_PIECE_BYTES
        }) as usize
    }

    /// Adds the next piece. If [`Digesting::is_full`], take one first.
    pub fn give(&mut self, next: NextPiece<'env>) {
        self.given_bytes += match &next {
            NextPiece::Bytes(bytes) => bytes.len() as u64,
            NextPiece::Range(_, _, len) => *len as u64,
        };
        if self.may_share && self.given_bytes > LONG_BYTES {
            self.share();
        }
        let buffer = self.spare.pop().unwrap_or_default();
        match &mut self.how {
            DigestMode::Inline(hasher, ready) => ready.push_back(prepare(hasher, next, buffer)),
            DigestMode::Beside(beside) => {
                beside.ahead += 1;
                // The thread hangs up only after a panic, which `take` reports.
                let _ = beside.tasks.send((next, buffer));
            }
        }
    }

    /// Returns whether a piece must be taken before the next one is given.
    pub fn is_full(&self) -> bool {
        match &self.how {
            DigestMode::Inline(_, ready) => !ready.is_empty(),
            DigestMode::Beside(beside) => beside.ahead >= AHEAD_MAX,
        }
    }

    /// Returns the next piece to write, or `None` if all were taken. An error: its file is shorter than expected.
    pub fn take(&mut self) -> Option<io::Result<Ready>> {
        match &mut self.how {
            DigestMode::Inline(_, ready) => ready.pop_front(),
            DigestMode::Beside(beside) if beside.ahead == 0 => None,
            DigestMode::Beside(beside) => {
                beside.ahead -= 1;
                Some(
                    beside
                        .ready
                        .recv()
                        .unwrap_or_else(|_| Err(io::Error::other("a thread has crashed"))),
                )
            }
        }
    }

    /// Takes back a buffer for reuse.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < AHEAD_MAX {
            self.spare.push(buffer);
        }
    }

    /// Returns the digest of everything that was given.
    pub fn finish(self) -> [u8; CONTENT_LEN_BYTES] {
        match self.how {
            DigestMode::Inline(hasher, _) => hasher.finish(),
            DigestMode::Beside(Beside { tasks, thread, .. }) => {
                drop(tasks);
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    .finish()
            }
        }
    }

    /// Starts a thread for the following pieces, if that is possible.
    fn share(&mut self) {
        self.may_share = false;
        let DigestMode::Inline(hasher, ready) = &self.how else {
            return;
        };
        debug_assert!(ready.is_empty(), "what is there goes first");
        let mut hasher = hasher.clone();
        let (tasks, given) = channel::<(NextPiece<'env>, Vec<u8>)>();
        let (done, ready) = channel();
        let work = move || {
            for (next, buffer) in given {
                if done.send(prepare(&mut hasher, next, buffer)).is_err() {
                    break;
                }
            }
            hasher
        };
        if let Ok(thread) = Builder::new()
            .name("digest".into())
            .spawn_scoped(self.scope, work)
        {
            self.how = DigestMode::Beside(Beside {
                tasks,
                ready,
                thread,
                ahead: 0,
            });
        }
    }
}

/// Reads a piece if it comes from a file, and digests it.
fn prepare(
    hasher: &mut ContentHasher,
    next: NextPiece<'_>,
    mut buffer: Vec<u8>,
) -> io::Result<Ready> {
    let ready = match next {
        NextPiece::Bytes(bytes) => Ready { bytes, from: None },
        NextPiece::Range(file, from, len) => {
            buffer.resize(len, 0);
            sys::pread_exact(file, &mut buffer, from)?;
            Ready {
                bytes: buffer,
                from: Some(from),
            }
        }
    };
    hasher.update(&ready.bytes);
    Ok(ready)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::content;
    use std::io::Write as _;
    use std::os::fd::AsFd;

    #[test]
    fn digest_is_the_same_with_and_without_a_thread() {
        let bytes: Vec<u8> = (0..2 * LONG_BYTES as u32 + 12_345)
            .map(|n| (n ^ (n >> 9)) as u8)
            .collect();
        let mut basis = tempfile::tempfile().unwrap();
        basis.write_all(&bytes).unwrap();
        for (len, may_share, shared) in [
            (0, true, false),
            (LONG_BYTES as usize, true, false),
            (bytes.len(), true, true),
            (bytes.len(), false, false),
        ] {
            std::thread::scope(|scope| {
                let mut digesting = Digesting::new(scope, By::Blake3, may_share);
                let mut taken = Vec::new();
                let mut take = |digesting: &mut Digesting<'_, '_>| {
                    let Some(ready) = digesting.take() else {
                        return false;
                    };
                    let Ready { bytes, from } = ready.unwrap();
                    assert!(from.is_none_or(|from| from == taken.len() as u64));
                    taken.extend_from_slice(&bytes);
                    digesting.give_back(bytes);
                    true
                };
                let mut at = 0;
                let mut nth = 0;
                while at < len {
                    let count = digesting.good_len((len - at) as u64);
                    digesting.give(match nth % 3 {
                        0 => NextPiece::Bytes(bytes[at..at + count].to_vec()),
                        _ => NextPiece::Range(basis.as_fd(), at as u64, count),
                    });
                    (at, nth) = (at + count, nth + 1);
                    while digesting.is_full() {
                        assert!(take(&mut digesting));
                    }
                }
                while take(&mut digesting) {}
                assert!(taken == bytes[..len]);
                assert_eq!(
                    matches!(digesting.how, DigestMode::Beside(_)),
                    shared,
                    "{len} bytes, {may_share}"
                );
                assert_eq!(digesting.finish(), content(&bytes[..len]));
            });
        }
    }

    #[test]
    fn range_beyond_the_basis_fails_in_order() {
        let mut basis = tempfile::tempfile().unwrap();
        basis.write_all(b"basis").unwrap();
        std::thread::scope(|scope| {
            let mut digesting = Digesting::new(scope, By::Blake3, false);
            digesting.give(NextPiece::Range(basis.as_fd(), 2, 3));
            assert_eq!(digesting.take().unwrap().unwrap().bytes, b"sis");
            digesting.give(NextPiece::Range(basis.as_fd(), 2, 4));
            assert!(digesting.take().unwrap().is_err());
            assert!(digesting.take().is_none());
        });
    }
}
