//! A link: a stream of bytes each way, blocking.

use crate::fs::sys;
use crate::work::clock::Since;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A stream of bytes to a peer and one from it.
///
/// Dropping the writer tells the peer that nothing more comes. Two threads may use the two ends at once.
pub struct Link {
    /// What the peer says. Reads block; 0 bytes mean that it has hung up. See [`Patience`] for the errors.
    pub reader: Box<dyn Read + Send>,
    /// What the peer shall hear. Writes block while it does not listen. Nothing is held back.
    pub writer: Box<dyn Write + Send>,
}

/// How long a read may wait for a peer.
#[derive(Debug, Clone)]
pub struct Patience {
    /// A peer that is silent for so long is given up: the read fails with [`io::ErrorKind::TimedOut`]. `None`: never.
    pub idle: Option<Duration>,
    /// When this is set, the run shall stop: a read that still waits `farewell` later fails with
    /// [`io::ErrorKind::ConnectionAborted`].
    pub stop: Arc<AtomicBool>,
    /// What a peer may take to answer then; [`FAREWELL`] in the middle of a conversation.
    pub farewell: Duration,
}

/// How often a read that waits looks whether it still shall.
const LOOK_MS: u32 = 200;
/// What a peer may take to answer when the run shall stop.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// A reader that does not wait longer than it shall.
pub struct PatientReader<R> {
    reader: R,
    /// How long the next read may wait.
    pub patience: Patience,
}

impl<R: Read + AsFd> PatientReader<R> {
    /// Reads from a pipe or socket.
    pub fn new(reader: R, patience: Patience) -> PatientReader<R> {
        PatientReader { reader, patience }
    }
}

impl<R: Read + AsFd> Read for PatientReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let waits = Since::now();
        let mut stopped = None;
        while !sys::wait_readable(self.reader.as_fd(), LOOK_MS)? {
            if self.patience.idle.is_some_and(|idle| waits.elapsed() >= idle) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.patience.stop.load(Ordering::Relaxed)
                && stopped.get_or_insert_with(Since::now).elapsed() >= self.patience.farewell
            {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        self.reader.read(into)
    }
}
