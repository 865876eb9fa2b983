//! A link: a stream of bytes each way, blocking.

use crate::fs::sys::{self, WorkObserver};
use crate::work::clock::Since;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A stream of bytes to a peer and one from it.
///
/// Dropping the writer tells the peer that nothing more comes. Two threads may use the two ends at once.
pub struct Link {
    /// What the peer says. Reads block; 0 bytes mean that it has hung up. See [`Patience`] for the errors.
    pub reader: Box<dyn Read + Send>,
    /// What the peer shall hear. Writes block while it does not listen. Nothing is held back.
    pub writer: Box<dyn Write + Send>,
    /// Begun when the reader shall wait for nothing more but that the peer hangs up.
    pub parting: Parting,
    /// Ends it at once, behind what was written. For an end that has heard all it needs, and whose last words the other one
    /// can do without. `None`: it ends when the peer hangs up.
    pub leave: Option<Leave>,
    /// Whether it goes by another way than it began.
    pub moved: Moved,
}

/// When a link began to go by another way, if it did.
#[derive(Debug, Clone, Default)]
pub struct Moved(Arc<OnceLock<Since>>);

impl Moved {
    /// It goes another way now.
    pub fn now(&self) {
        let _ = self.0.set(Since::now());
    }

    /// Since when it goes another way; `None`: it goes as it began.
    pub fn since(&self) -> Option<Since> {
        self.0.get().copied()
    }
}

/// See [`Link::leave`].
pub type Leave = Box<dyn FnOnce() + Send>;

/// What a peer may take to hang up once all is said, or the run shall stop.
///
/// A far end that stops cleans up what it has half written, which takes it milliseconds, and the word must travel there
/// and back: a second is enough for that, and no more than somebody who pressed ctrl-C would wait.
pub const FAREWELL: Duration = Duration::from_secs(1);

/// The end of a conversation: whoever still reads does so until [`FAREWELL`] has passed.
#[derive(Debug, Clone, Default)]
pub struct Parting(Arc<OnceLock<Since>>);

impl Parting {
    /// Nothing more is expected of the peer. Only the first call counts.
    pub fn begin(&self) {
        let _ = self.0.set(Since::now());
    }

    /// Whether it began.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether the peer had its time.
    pub fn is_over(&self) -> bool {
        self.0.get().is_some_and(|since| since.elapsed() >= FAREWELL)
    }
}

/// How long a read may wait for a peer.
#[derive(Debug, Clone, Default)]
pub struct Patience {
    /// A peer that is silent for so long is given up: the read fails with [`io::ErrorKind::TimedOut`]. `None`: never.
    pub idle: Option<Duration>,
    /// When this is set, the run shall stop: reads fail with [`io::ErrorKind::ConnectionAborted`] at once, so that nobody
    /// waits for more, and after that as in any other parting.
    pub stop: Arc<AtomicBool>,
    /// Begun when nothing more is expected; reads then fail as soon as it is over, likewise.
    pub parting: Parting,
    /// When this is set, another way to the peer was the faster one: nobody waits for this one any more.
    pub beaten: Arc<AtomicBool>,
    /// When this process worked last. A peer that waits for this work may be silent, so it postpones the timeout. `None`: it
    /// does not.
    pub worked: Option<Arc<Mutex<Since>>>,
}

impl Patience {
    /// For a session, whose peer may wait for the work of this process.
    pub fn of_a_copy(idle: Option<Duration>) -> Patience {
        Patience { idle, worked: Some(Arc::new(Mutex::new(Since::now()))), ..Patience::default() }
    }

    /// Whether somebody who has waited so long shall wait on; the errors are those that a read then fails with.
    pub fn check(&self, waited: Duration) -> io::Result<()> {
        if self.beaten.load(Ordering::Relaxed)
            || self.parting.is_over()
            || !self.parting.has_begun() && self.stop.load(Ordering::Relaxed)
        {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let excused = self.worked.as_ref().map_or(waited, |worked| {
            let mut worked = worked.lock().unwrap_or_else(PoisonError::into_inner);
            if sys::has_worked(WorkObserver::Reader) {
                *worked = Since::now();
            }
            worked.elapsed()
        });
        match self.idle {
            Some(idle) if waited.min(excused) >= idle => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// How often a read that waits looks whether it still shall.
pub const LOOK_MS: u32 = 100;

/// A reader that does not wait longer than it shall.
pub struct PatientReader<R> {
    reader: R,
    patience: Patience,
}

impl<R: AsFd> PatientReader<R> {
    /// Reads from a pipe or socket.
    pub fn new(reader: R, patience: Patience) -> PatientReader<R> {
        PatientReader { reader, patience }
    }
}

impl<R: AsFd> Read for PatientReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let waits = Since::now();
        let mut waited = Duration::ZERO;
        loop {
            self.patience.check(waited)?;
            if sys::wait_readable(self.reader.as_fd(), LOOK_MS)? {
                match sys::receive(self.reader.as_fd(), into) {
                    // Another process may have made the shared pipe non-blocking.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    received => return received,
                }
            }
            waited = waits.elapsed();
        }
    }
}

/// A writer that blocks until there is room, also if another process has made the pipe non-blocking.
pub struct BlockingWriter<W>(pub W);

impl<W: AsFd> Write for BlockingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match sys::send(self.0.as_fd(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sys::wait_writable(self.0.as_fd())?,
                sent => return sent,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
