//! A running session: its reader and writer threads, and how it ends.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::session::connection::{Connection, EndHandler, Intake, WireOutput};
use crate::transport::link::FAREWELL;
use crate::transport::{Link, LinkBytes};
use crate::work::clock::Since;
use crate::work::thread::{self, spawn};
use std::io::{self, IoSlice, Read, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Wraps a link to count the bytes written and the bytes read.
pub fn counted(link: Link) -> (Link, Arc<LinkBytes>) {
    let traffic: Arc<LinkBytes> = Arc::default();
    let reader = Box::new(CountedStream {
        inner: link.reader,
        traffic: traffic.clone(),
    });
    let writer = Box::new(CountedStream {
        inner: link.writer,
        traffic: traffic.clone(),
    });
    (
        Link {
            reader,
            writer,
            ..link
        },
        traffic,
    )
}

struct CountedStream<T> {
    inner: T,
    traffic: Arc<LinkBytes>,
}

impl<W: Write> Write for CountedStream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.traffic
            .sent
            .fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.inner.write_vectored(pieces)?;
        self.traffic
            .sent
            .fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for CountedStream<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(into)?;
        self.traffic
            .received
            .fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// Returns whether to wait until the peer has received this error. A peer that is gone or silent cannot receive it, and
/// a user who interrupts the run should not have to wait.
fn is_worth_waiting(error: &Error) -> bool {
    !matches!(error.exit, Exit::Signal | Exit::Timeout | Exit::Stream)
}

/// How long a peer may read nothing before the last message is given up.
const LAST_WORD_MOVES: Duration = Duration::from_secs(10);
/// How long to wait at most until the last message is written.
const LAST_WORD_MAX: Duration = Duration::from_secs(60);

/// Waits until the writer has ended. Gives up when `passed`, the count of written bytes, has not changed for the time
/// `still`, or after the time `max`.
fn wait_while_moving(
    written: &mpsc::Receiver<()>,
    passed: impl Fn() -> u64,
    still: Duration,
    max: Duration,
) {
    let waits = Since::now();
    let mut before = None;
    while waits.elapsed() < max {
        let now = Some(passed());
        if now == before {
            return;
        }
        before = now;
        if written.recv_timeout(still) != Err(mpsc::RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// A session after its handshake.
pub struct SessionIo<'a, O: WireOutput> {
    pub connection: &'a Arc<Connection<O>>,
    /// Reads what the peer sends.
    pub intake: Box<dyn Intake<O> + 'a>,
    /// The connection times out after this many seconds without data; 0: never.
    pub timeout_secs: u32,
    pub link: Link,
    /// Bytes written to the link and read from it.
    pub traffic: Arc<LinkBytes>,
}

impl<O: WireOutput> SessionIo<'_, O> {
    /// Runs the session while `role` runs, then ends it: normally, or with the error as the last message.
    pub fn hold(self, handler: &dyn EndHandler, role: impl FnOnce() -> Result<()>) -> Result<()> {
        let SessionIo {
            connection,
            intake,
            timeout_secs,
            link,
            traffic,
        } = self;
        let Link {
            reader,
            writer,
            parting,
            leave,
            moved: _,
        } = link;
        // Keepalives must be sent well before the peer's timeout.
        let quiet_for =
            (timeout_secs > 0).then(|| Duration::from_secs(u64::from(timeout_secs)) / 3);
        // A peer that does not read blocks the writer forever, so that thread is never joined.
        let (is_writing, written) = mpsc::channel::<()>();
        let writing = connection.clone();
        let parts = parting.clone();
        let write = move || {
            writing.write(writer, quiet_for, &parts);
            drop(is_writing);
        };
        std::thread::Builder::new()
            .name("write".into())
            .spawn(write)
            .map_err(thread::no_thread)?;
        std::thread::scope(|scope| {
            let parting = &parting;
            spawn(scope, "read", || {
                connection.read(reader, intake, handler, parting)
            })?;
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(role));
            let ended = played
                .unwrap_or_else(|_| Err(Error::new(Exit::Crashed, "sparsync: a worker crashed")));
            // If our writes fail, the peer cannot report a cause. The write error is the cause.
            let ended = ended.map_err(|error| match connection.write_error() {
                Some(cause) if error.exit == Exit::Stream && error.message.is_empty() => cause,
                _ => error,
            });
            let is_sent = ended
                .as_ref()
                .is_err_and(|error| connection.fail(error) && is_worth_waiting(error));
            connection.end();
            if is_sent {
                // Earlier messages are sent first, which takes time on a slow connection. The reader goes on meanwhile:
                // a peer whose writes fail would report that as the cause.
                let passed = || traffic.sent.load(Ordering::Relaxed);
                wait_while_moving(&written, passed, LAST_WORD_MOVES, LAST_WORD_MAX);
            }
            parting.begin();
            // Waits for the last messages, but not for a peer that takes nothing any more.
            let _ = written.recv_timeout(FAREWELL);
            let ended = ended.and_then(|()| connection.check_written());
            if let Some(leave) = leave
                && ended.is_ok()
            {
                leave();
            }
            ended
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const SHORT: Duration = Duration::from_millis(1);
    /// The look at the count of bytes after which the writer has ended.
    const WRITER_ENDS: u64 = 50;

    /// Returns how often the count of bytes is read if the n-th look finds `count(n)`.
    fn looks(count: impl Fn(u64) -> u64, max: Duration) -> u64 {
        let (is_writing, written) = mpsc::channel();
        let is_writing = Cell::new(Some(is_writing));
        let looks = Cell::new(0);
        let passed = || {
            looks.set(looks.get() + 1);
            if looks.get() == WRITER_ENDS {
                drop(is_writing.take());
            }
            count(looks.get())
        };
        wait_while_moving(&written, passed, SHORT, max);
        looks.get()
    }

    #[test]
    fn last_message_is_awaited_as_long_as_bytes_move() {
        assert_eq!(looks(|nth| nth, Duration::MAX), WRITER_ENDS);
    }

    #[test]
    fn peer_that_reads_nothing_is_not_awaited() {
        // The third and the fourth look find the same.
        assert_eq!(looks(|nth| nth.min(3), Duration::MAX), 4);
    }

    #[test]
    fn peer_that_always_reads_a_little_is_awaited_for_a_limited_time() {
        assert!(looks(|nth| nth, 20 * SHORT) <= 20);
    }
}
