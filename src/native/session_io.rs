//! A session of two sparsyncs between its handshake and its roles: how its link is compressed and checked.

use crate::native::connection::{NativeConnection, NativeOutput};
use crate::native::intake::{MessageHandler, NativeIntake};
use crate::proto::Dialect;
use crate::session::io_threads::SessionIo;
use crate::session::minimum_rate::RatedReader;
use crate::transport::compression::{CompressingWriter, CompressionPolicy, Expander};
use crate::transport::{Link, LinkBytes};
use std::io;
use std::sync::Arc;

/// The size of a read while the stream is compressed.
const BUFFERED_BYTES: usize = 128 << 10;

/// Wraps the link so that the sender's stream is compressed in chunks, and a peer that makes no progress is noticed.
pub fn wrap_link(
    link: Link,
    sends: bool,
    compression: CompressionPolicy,
    connection: &NativeConnection,
) -> Link {
    let link = Link {
        reader: Box::new(RatedReader {
            inner: link.reader,
            rate: connection.rate.clone(),
        }),
        ..link
    };
    if sends {
        let writer = CompressingWriter::new(link.writer, compression, connection.as_it_is.clone());
        return Link {
            writer: Box::new(writer),
            ..link
        };
    }

    // The headers of chunks are short, and each read is a system call.
    let reader = io::BufReader::with_capacity(BUFFERED_BYTES, link.reader);
    Link {
        reader: Box::new(Expander::new(reader)),
        ..link
    }
}

/// A session of two sparsyncs after its handshake, until there is a handler for its messages.
pub struct NativeIo<'a> {
    pub connection: &'a Arc<NativeConnection>,
    /// Decodes the messages of the peer.
    pub dialect: Box<dyn Dialect + Send>,
    /// See [`SessionIo::timeout_secs`].
    pub timeout_secs: u32,
    pub link: Link,
    /// Bytes written to the link and read from it.
    pub traffic: Arc<LinkBytes>,
}

impl<'a> NativeIo<'a> {
    /// Returns the session, of which this handles the messages.
    pub fn handled_by(self, handler: &'a dyn MessageHandler) -> SessionIo<'a, NativeOutput> {
        let NativeIo {
            connection,
            dialect,
            timeout_secs,
            link,
            traffic,
        } = self;
        SessionIo {
            connection,
            intake: Box::new(NativeIntake { dialect, handler }),
            timeout_secs,
            link,
            traffic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Result};
    use crate::exit::Exit;
    use crate::proto::Message;
    use crate::proto::native::Native;
    use crate::session::connection::EndHandler;
    use crate::session::io_threads::counted;
    use crate::transport::link::{Moved, Parting};
    use crate::work::clock::Since;
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    const SHORT: Duration = Duration::from_millis(1);

    /// A stream to a peer that reads slowly. The first write lasts until the session parts, or for a while.
    struct SlowStream {
        parting: Parting,
        parts_early: Arc<AtomicBool>,
        /// The peer closes the connection when this is dropped.
        _is_open: mpsc::Sender<()>,
        never: mpsc::Receiver<()>,
        has_written: bool,
    }

    impl Write for SlowStream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let begun = Since::now();
            while !self.has_written && begun.elapsed() < 300 * SHORT {
                if self.parting.has_begun() {
                    self.parts_early.store(true, Ordering::Relaxed);
                    break;
                }
                let _ = self.never.recv_timeout(SHORT);
            }
            self.has_written = true;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A stream that ends when the peer closes it.
    struct SilentStream(mpsc::Receiver<()>);

    impl Read for SilentStream {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(0)
        }
    }

    struct NoMessages;

    impl MessageHandler for NoMessages {
        fn handle(&self, _: Message, _: u64) -> Result<()> {
            Ok(())
        }
    }

    impl EndHandler for NoMessages {
        fn handle_end(&self, _: Error) {}
    }

    #[test]
    fn session_parts_once_its_last_message_is_written() {
        let (is_open, closed) = mpsc::channel();
        let (_still, never) = mpsc::channel();
        let (parting, parts_early): (Parting, Arc<AtomicBool>) = Default::default();
        let writer = SlowStream {
            parting: parting.clone(),
            parts_early: parts_early.clone(),
            _is_open: is_open,
            never,
            has_written: false,
        };
        let (link, traffic) = counted(Link {
            reader: Box::new(SilentStream(closed)),
            writer: Box::new(writer),
            parting,
            leave: None,
            moved: Moved::default(),
        });
        let dialect: Box<dyn Dialect + Send> = Box::new(Native::new(1));
        let connection = Arc::new(NativeConnection::new(Box::new(Native::new(1))));
        let session = NativeIo {
            connection: &connection,
            dialect,
            timeout_secs: 0,
            link,
            traffic: traffic.clone(),
        };
        let failed = || Err(Error::new(Exit::FileIo, "the disk is full"));
        let ended = session.handled_by(&NoMessages).hold(&NoMessages, failed);
        assert_eq!(ended.map_err(|error| error.exit), Err(Exit::FileIo));
        assert!(traffic.counts().sent_bytes > 0);
        assert!(!parts_early.load(Ordering::Relaxed));
    }
}
