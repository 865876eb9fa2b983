//! [`Link`]: a blocking byte stream in each direction.

use crate::fs::sys::{self, WorkObserver};
use crate::report::Traffic;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A byte stream to a peer and one from it.
///
/// Dropping the writer signals the end of the stream to the peer. Two threads may use the two halves at once.
pub struct Link {
    /// The stream from the peer. Reads block; 0 bytes mean that the peer has closed it. See [`Patience`] for the
    /// errors.
    pub reader: Box<dyn Read + Send>,
    /// The stream to the peer. Writes block while the peer does not read. Nothing is buffered.
    pub writer: Box<dyn Write + Send>,
    /// Begun when the reader should only wait for the peer to close the connection.
    pub parting: Parting,
    /// Closes the link at once, after everything that was written. For a side that has received all it needs and whose
    /// last bytes the peer does not depend on. `None`: the link ends when the peer closes it.
    pub leave: Option<Leave>,
    /// Whether the session has moved to another transport.
    pub moved: Moved,
}

/// The bytes written and read so far, by a link or in messages.
#[derive(Debug, Default)]
pub struct LinkBytes {
    pub sent: AtomicU64,
    pub received: AtomicU64,
}

impl LinkBytes {
    /// Returns the bytes sent, and those received.
    pub fn counts(&self) -> Traffic {
        let [sent_bytes, received_bytes] =
            [&self.sent, &self.received].map(|bytes| bytes.load(Ordering::Relaxed));
        Traffic {
            sent_bytes,
            received_bytes,
        }
    }
}

/// When a link moved to another transport, if it did.
#[derive(Debug, Clone, Default)]
pub struct Moved(Arc<OnceLock<Since>>);

impl Moved {
    /// Records that the link moves now.
    pub fn now(&self) {
        // Only the first call counts.
        let _ = self.0.set(Since::now());
    }

    /// Returns when the link moved; `None` if it still uses its first transport.
    pub fn since(&self) -> Option<Since> {
        self.0.get().copied()
    }
}

/// See [`Link::leave`].
pub type Leave = Box<dyn FnOnce() + Send>;

/// The time a peer has to close the connection after the session is complete or must stop.
///
/// A server that stops first cleans up partly written files, which takes milliseconds, and the message must travel
/// there and back. One second is enough for that, and a user who pressed Ctrl-C would not wait longer.
pub const FAREWELL: Duration = Duration::from_secs(1);

/// The end of a session: readers continue until [`FAREWELL`] has passed.
#[derive(Debug, Clone, Default)]
pub struct Parting(Arc<OnceLock<Since>>);

impl Parting {
    /// Starts the time of [`FAREWELL`]: nothing more is expected of the peer. Only the first call counts.
    pub fn begin(&self) {
        let _ = self.0.set(Since::now());
    }

    /// Returns whether [`Parting::begin`] was called.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns whether [`FAREWELL`] has passed since then.
    pub fn is_over(&self) -> bool {
        self.0
            .get()
            .is_some_and(|since| since.elapsed() >= FAREWELL)
    }
}

/// How long a read waits for the peer.
#[derive(Debug, Clone, Default)]
pub struct Patience {
    /// The timeout for a silent peer: the read fails with [`io::ErrorKind::TimedOut`]. `None`: no timeout.
    pub idle: Option<Duration>,
    /// The same for a server that learns it from the client's request: `--timeout`.
    pub requested: Arc<OnceLock<Duration>>,
    /// Set to stop the run: reads fail at once with [`io::ErrorKind::ConnectionAborted`], unless `parting` has begun;
    /// then they continue until it is over.
    pub stop: Arc<AtomicBool>,
    /// Begun when nothing more is expected; once it is over, reads fail in the same way.
    pub parting: Parting,
    /// Set when another connection attempt was faster and this one is no longer needed.
    pub beaten: Arc<AtomicBool>,
    /// When this process last worked. A peer that waits for this work may be silent, so work postpones the timeout.
    /// `None`: it does not.
    pub worked: Option<Arc<Mutex<Since>>>,
}

impl Patience {
    /// For a session, in which the peer can wait for the work of this process.
    pub fn of_a_copy(idle: Option<Duration>) -> Patience {
        Patience {
            idle,
            worked: Some(Arc::new(Mutex::new(Since::now()))),
            ..Patience::default()
        }
    }

    /// Fails, with the error that the read should return, if a read that has waited this long must end.
    pub fn check(&self, waited: Duration) -> io::Result<()> {
        if self.beaten.load(Ordering::Relaxed)
            || self.parting.is_over()
            || !self.parting.has_begun() && self.stop.load(Ordering::Relaxed)
        {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let excused = self.worked.as_ref().map_or(waited, |worked| {
            let mut worked = worked.lock();
            if sys::has_worked(WorkObserver::Reader) {
                *worked = Since::now();
            }
            worked.elapsed()
        });
        match self.idle.or(self.requested.get().copied()) {
            Some(idle) if waited.min(excused) >= idle => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// How often a waiting read checks [`Patience`].
pub const LOOK_MS: u32 = 100;

/// A reader that obeys a [`Patience`].
pub struct PatientReader<R> {
    reader: R,
    patience: Patience,
    /// It is a TCP connection, whose peer may wait for acknowledgements.
    is_tcp: bool,
}

impl<R: AsFd> PatientReader<R> {
    /// Reads from a pipe or socket.
    pub fn new(reader: R, patience: Patience) -> PatientReader<R> {
        let is_tcp = sys::acknowledge_at_once(reader.as_fd()).is_ok();
        PatientReader {
            reader,
            patience,
            is_tcp,
        }
    }

    /// Reads, and reports several times a second how long it has waited.
    pub fn read_reporting(
        &mut self,
        into: &mut [u8],
        waits: &mut dyn FnMut(Duration),
    ) -> io::Result<usize> {
        let since = Since::now();
        let mut waited = Duration::ZERO;
        loop {
            self.patience.check(waited)?;
            waits(waited);
            if sys::wait_readable(self.reader.as_fd(), LOOK_MS)? {
                match sys::receive(self.reader.as_fd(), into) {
                    // Another process may have made the shared pipe non-blocking.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    received => {
                        if self.is_tcp {
                            // Without it, the peer only waits longer.
                            let _ = sys::acknowledge_at_once(self.reader.as_fd());
                        }
                        return received;
                    }
                }
            }
            waited = since.elapsed();
        }
    }
}

impl<R: AsFd> Read for PatientReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_reporting(into, &mut |_| {})
    }
}

/// A writer that blocks until there is room, even if another process has made the pipe non-blocking.
pub struct BlockingWriter<W>(pub W);

impl<W: AsFd> Write for BlockingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match sys::send(self.0.as_fd(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sys::wait_writable(self.0.as_fd())?
                }
                sent => return sent,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn tcp_peer_is_acknowledged_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut ours, _) = listener.accept().unwrap();
        let mut reader = PatientReader::new(ours.try_clone().unwrap(), Patience::of_a_copy(None));
        // After some answers, the system delays an acknowledgement, to send it with the next answer.
        for _ in 0..8 {
            peer.write_all(b"?").unwrap();
            reader.read_exact(&mut [0]).unwrap();
            ours.write_all(b"!").unwrap();
            peer.read_exact(&mut [0]).unwrap();
        }
        assert!(!rustix::net::sockopt::tcp_quickack(&ours).unwrap());
        peer.write_all(b"?").unwrap();
        reader.read_exact(&mut [0]).unwrap();
        assert!(rustix::net::sockopt::tcp_quickack(&ours).unwrap());
    }
}
