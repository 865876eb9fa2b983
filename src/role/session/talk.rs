//! A conversation that has begun: who reads and who writes while a role is played, and how it ends.

use crate::error::Error;
use crate::exit::Exit;
use crate::proto::Dialect;
use crate::role::line::{Ear, Line};
use crate::transport::Link;
use crate::transport::link::FAREWELL;
use crate::transport::squeeze::{Expander, Squeeze, Squeezer};
use crate::work::clock::Since;
use crate::work::thread::{self, spawn};
use std::io::{self, IoSlice, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Counts what goes over a link: bytes written, and bytes read.
pub(super) fn counted(link: Link) -> (Link, Arc<[AtomicU64; 2]>) {
    let traffic: Arc<[AtomicU64; 2]> = Arc::default();
    let reader = Box::new(Counted { inner: link.reader, traffic: traffic.clone() });
    let writer = Box::new(Counted { inner: link.writer, traffic: traffic.clone() });
    (Link { reader, writer, ..link }, traffic)
}

struct Counted<T> {
    inner: T,
    traffic: Arc<[AtomicU64; 2]>,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.traffic[0].fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.inner.write_vectored(pieces)?;
        self.traffic[0].fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(into)?;
        self.traffic[1].fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// How much of the chunks is read at once.
const BUFFERED_BYTES: usize = 128 << 10;

/// Puts chunks around what the sender says.
pub(super) fn dress(link: Link, sends: bool, when: Squeeze, line: &Line) -> Link {
    match sends {
        true => {
            let writer = Squeezer::new(link.writer, when, line.as_it_is());
            Link { writer: Box::new(writer), ..link }
        }
        // Heads of chunks are short, and each read is a call.
        false => {
            let reader = io::BufReader::with_capacity(BUFFERED_BYTES, link.reader);
            Link { reader: Box::new(Expander::new(reader)), ..link }
        }
    }
}

/// Whether a peer has to hear of this error: that it is gone or silent, or that somebody wants the run to end at once, is
/// nothing to wait for.
fn is_worth_waiting(error: &Error) -> bool {
    !matches!(error.exit, Exit::Signal | Exit::Timeout | Exit::Stream)
}

/// A peer that takes nothing of what was said for so long does not hear why the run ends.
const LAST_WORD_MOVES: Duration = Duration::from_secs(10);
/// Nor one that does not come to it within this.
const LAST_WORD_MAX: Duration = Duration::from_secs(60);

/// A conversation that has begun.
pub(super) struct Talk<'a> {
    pub(super) line: &'a Arc<Line>,
    /// Of what is heard.
    pub(super) dialect: Box<dyn Dialect + Send>,
    /// A peer that is silent for so long is given up; 0: never.
    pub(super) timeout_secs: u32,
    pub(super) link: Link,
    /// What went over it.
    pub(super) traffic: Arc<[AtomicU64; 2]>,
}

impl Talk<'_> {
    /// Holds the conversation while `role` is played, and ends it: in peace, or with the reason.
    pub(super) fn hold(self, ear: &dyn Ear, role: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let Talk { line, dialect, timeout_secs, link, traffic } = self;
        let Link { reader, writer, parting, leave, moved: _ } = link;
        // Well before the peer gives us up.
        let quiet_for = (timeout_secs > 0).then(|| Duration::from_secs(u64::from(timeout_secs)) / 3);
        // A peer that does not read holds the writer up for ever; nobody waits for it then.
        let (is_writing, written) = mpsc::channel::<()>();
        let (writing, parts) = (line.clone(), parting.clone());
        let write = move || {
            writing.write(writer, quiet_for, &parts);
            drop(is_writing);
        };
        std::thread::Builder::new().name("write".into()).spawn(write).map_err(thread::no_thread)?;
        std::thread::scope(|scope| {
            let parting = &parting;
            spawn(scope, "read", || line.read(reader, dialect, ear, parting))?;
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(role));
            let ended = played.unwrap_or_else(|_| Err(Error::new(Exit::Crashed, "sparsync: a worker crashed")));
            // A peer whose input is broken reports no cause.
            let ended = ended.map_err(|error| match line.write_error() {
                Some(cause) if error.exit == Exit::Stream && error.message.is_empty() => cause,
                _ => error,
            });
            let is_told = ended.as_ref().is_err_and(|error| line.fail(error) && is_worth_waiting(error));
            line.end();
            if is_told {
                // What was said before goes first, and on a slow link it takes its time. Meanwhile the peer is heard: one
                // that cannot say what it has to say would take that for the reason.
                let passed = || traffic[0].load(Ordering::Relaxed);
                let waits = Since::now();
                let mut before = None;
                while before != Some(passed()) && waits.elapsed() < LAST_WORD_MAX {
                    before = Some(passed());
                    if written.recv_timeout(LAST_WORD_MOVES) != Err(mpsc::RecvTimeoutError::Timeout) {
                        break;
                    }
                }
            }
            parting.begin();
            let _ = written.recv_timeout(FAREWELL);
            let ended = ended.and_then(|()| line.check_written());
            if let Some(leave) = leave.filter(|_| ended.is_ok()) {
                leave();
            }
            ended
        })
    }
}
