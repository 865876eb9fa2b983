//! The digest of a content that is being written: beside the writing where the content is long.

use crate::digest::{By, CONTENT_LEN_BYTES, ContentHasher};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// After so many bytes a content is worth a thread of its own for its digest.
const LONG_BYTES: u64 = 4 << 20;
/// So many pieces may wait for that thread.
const WAITING_MAX: usize = 2;

/// A piece that one thread reads, writes and digests: it stays in the nearest caches.
const PIECE_BYTES: u64 = 128 << 10;
/// A piece that goes to another thread, which is woken for it: that takes as long as to digest 64 KiB.
const SHARED_PIECE_BYTES: u64 = 512 << 10;

/// Takes the pieces of a content in order, and digests them.
///
/// A long content is digested by another thread while this one reads and writes: one thread that did both would be what
/// the peer waits for. Memory: pieces as they were handed over, no more of them than wait, are at work, and are free
/// again.
pub struct Digesting<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    how: How<'scope>,
    /// May become a thread once there were more than [`LONG_BYTES`].
    may_share: bool,
    taken_bytes: u64,
}

enum How<'scope> {
    Here(ContentHasher, Vec<u8>),
    Beside(SyncSender<Vec<u8>>, Receiver<Vec<u8>>, ScopedJoinHandle<'scope, ContentHasher>),
}

impl<'scope, 'env> Digesting<'scope, 'env> {
    /// Begins. `may_share`: there is a processor for a second thread.
    pub fn new(scope: &'scope Scope<'scope, 'env>, by: By, may_share: bool) -> Digesting<'scope, 'env> {
        Digesting { scope, how: How::Here(ContentHasher::new(by), Vec::new()), may_share, taken_bytes: 0 }
    }

    /// A buffer to fill, as long as is good and at most `max_bytes`; what is in it is of no meaning.
    pub fn buffer(&mut self, max_bytes: u64) -> Vec<u8> {
        let (mut free, good_bytes) = match &mut self.how {
            How::Here(_, free) => (std::mem::take(free), PIECE_BYTES),
            How::Beside(_, free, _) => (free.try_recv().unwrap_or_default(), SHARED_PIECE_BYTES),
        };
        free.resize(max_bytes.min(good_bytes) as usize, 0);
        free
    }

    /// The next bytes.
    pub fn take(&mut self, piece: Vec<u8>) {
        self.taken_bytes += piece.len() as u64;
        if self.may_share && self.taken_bytes > LONG_BYTES {
            self.share();
        }
        match &mut self.how {
            How::Here(hasher, free) => {
                hasher.update(&piece);
                *free = piece;
            }
            // It hangs up only if it has panicked, which `finish` meets.
            How::Beside(pieces, ..) => drop(pieces.send(piece)),
        }
    }

    /// The digest of all that was taken.
    pub fn finish(self) -> [u8; CONTENT_LEN_BYTES] {
        match self.how {
            How::Here(hasher, _) => hasher.finish(),
            How::Beside(pieces, _, thread) => {
                drop(pieces);
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).finish()
            }
        }
    }

    /// Leaves what comes to another thread, if there can be one.
    fn share(&mut self) {
        self.may_share = false;
        let How::Here(hasher, _) = &self.how else { return };
        let mut hasher = hasher.clone();
        let (pieces, waiting) = sync_channel::<Vec<u8>>(WAITING_MAX);
        let (give_back, free) = sync_channel(WAITING_MAX);
        let work = move || {
            for piece in waiting {
                hasher.update(&piece);
                // There may be enough of them.
                let _ = give_back.try_send(piece);
            }
            hasher
        };
        if let Ok(thread) = Builder::new().name("digest".into()).spawn_scoped(self.scope, work) {
            self.how = How::Beside(pieces, free, thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::content;

    #[test]
    fn one_thread_and_two_say_the_same() {
        let bytes: Vec<u8> = (0..2 * LONG_BYTES as u32 + 12_345).map(|n| (n ^ (n >> 9)) as u8).collect();
        for (len, may_share, shared) in [
            (0, true, false),
            (LONG_BYTES as usize, true, false),
            (bytes.len(), true, true),
            (bytes.len(), false, false),
        ] {
            let (digest, is_beside) = std::thread::scope(|scope| {
                let mut digesting = Digesting::new(scope, By::Blake3, may_share);
                let mut rest = &bytes[..len];
                while !rest.is_empty() {
                    let mut buffer = digesting.buffer(rest.len() as u64);
                    let (now, later) = rest.split_at(buffer.len());
                    buffer.copy_from_slice(now);
                    rest = later;
                    digesting.take(buffer);
                }
                let is_beside = matches!(digesting.how, How::Beside(..));
                (digesting.finish(), is_beside)
            });
            assert_eq!((digest, is_beside), (content(&bytes[..len]), shared), "{len} bytes, {may_share}");
        }
    }
}
