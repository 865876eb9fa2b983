//! Links with a small buffer: a pair inside one process, and, for tests, a wrapper around another link.

use super::Link;
use super::link::{Moved, Parting};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// Returns the two ends of a session inside this process. Each direction buffers up to `room_bytes`.
pub fn pair(room_bytes: usize) -> (Link, Link) {
    let (to_one, from_other) = one_way(room_bytes);
    let (to_other, from_one) = one_way(room_bytes);
    let link = |shared: Arc<PipeShared>, writer: PipeWriter| {
        let parting = Parting::default();
        let reader = PipeReader {
            shared,
            parting: parting.clone(),
        };
        Link {
            reader: Box::new(reader),
            writer: Box::new(writer),
            parting,
            leave: None,
            moved: Moved::default(),
        }
    };
    (link(from_other, to_other), link(from_one, to_one))
}

/// Wraps `link` so that each direction buffers at most `room_bytes`. For tests of whole programs.
pub fn narrowed(link: Link, room_bytes: usize) -> Link {
    let Link {
        reader,
        writer,
        parting,
        ..
    } = link;
    let (to_far, from_near) = one_way(room_bytes);
    let (to_near, from_far) = one_way(room_bytes);
    let broken: Arc<Mutex<Option<io::Error>>> = Arc::default();
    let reader_of_near = Failing {
        inner: PipeReader {
            shared: from_far,
            parting: parting.clone(),
        },
        broken: broken.clone(),
    };
    let reader_of_far = PipeReader {
        shared: from_near,
        parting: Parting::default(),
    };
    let pump = move |mut from: Box<dyn Read + Send>,
                     mut to: Box<dyn Write + Send>,
                     broken: Arc<Mutex<_>>| {
        let mut piece = vec![0; room_bytes.clamp(1, 64 << 10)];
        let passed = loop {
            match from.read(&mut piece) {
                Ok(0) => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => match read.and_then(|count| to.write_all(&piece[..count])) {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
            }
        };
        *broken.lock() = passed.err();
    };
    std::thread::spawn(move || pump(reader, Box::new(to_near), broken));
    std::thread::spawn(move || pump(Box::new(reader_of_far), writer, Arc::default()));
    // `leave` is `None`, because bytes between the two halves must still arrive.
    Link {
        reader: Box::new(reader_of_near),
        writer: Box::new(to_far),
        parting,
        leave: None,
        moved: Moved::default(),
    }
}

/// A reader that reports the error which ended its stream.
struct Failing {
    inner: PipeReader,
    broken: Arc<Mutex<Option<io::Error>>>,
}

impl Read for Failing {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(into)?;
        let reason = if got == 0 {
            self.broken.lock().take()
        } else {
            None
        };
        reason.map_or(Ok(got), Err)
    }
}

struct PipeShared {
    state: Mutex<PipeState>,
    moved: Condvar,
    room_bytes: usize,
}

#[derive(Default)]
struct PipeState {
    bytes: VecDeque<u8>,
    reader_gone: bool,
    writer_gone: bool,
}

struct PipeReader {
    shared: Arc<PipeShared>,
    parting: Parting,
}
struct PipeWriter(Arc<PipeShared>);

/// How often a waiting read checks its [`Parting`].
const LOOK: Duration = Duration::from_millis(20);

fn one_way(room_bytes: usize) -> (PipeWriter, Arc<PipeShared>) {
    let shared = Arc::new(PipeShared {
        state: Mutex::default(),
        moved: Condvar::new(),
        room_bytes: room_bytes.max(1),
    });
    (PipeWriter(shared.clone()), shared)
}

impl Read for PipeReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let mut state = self.shared.state.lock();
        while state.bytes.is_empty() && !state.writer_gone {
            if self.parting.is_over() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.shared.moved.wait_for(&mut state, LOOK);
        }
        let count = state.bytes.read(into)?;
        self.shared.moved.notify_all();
        Ok(count)
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let room_bytes = self.0.room_bytes;
        let mut state = self.0.state.lock();
        self.0.moved.wait_while(&mut state, |state| {
            state.bytes.len() >= room_bytes && !state.reader_gone
        });
        if state.reader_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(room_bytes - state.bytes.len());
        state.bytes.extend(&bytes[..count]);
        self.0.moved.notify_all();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.shared.state.lock().reader_gone = true;
        self.shared.moved.notify_all();
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.0.state.lock().writer_gone = true;
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_over_a_pipe_of_any_capacity() {
        let sent: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        for room_bytes in [1, 7, 64 << 10] {
            let (mut one, mut other) = pair(room_bytes);
            let expected = &sent;
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    one.writer.write_all(expected).unwrap();
                    drop(one.writer);
                    let mut back = Vec::new();
                    one.reader.read_to_end(&mut back).unwrap();
                    assert_eq!(back, b"thanks");
                });
                let mut got = Vec::new();
                other.reader.read_to_end(&mut got).unwrap();
                other.writer.write_all(b"thanks").unwrap();
                drop(other);
                assert!(got == *expected);
            });
        }
    }

    #[test]
    fn narrowed_link_forwards_all_bytes_and_the_error() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::TimedOut.into())
            }
        }
        let (one, mut other) = pair(64);
        let reader = Box::new(io::Cursor::new(vec![5; 3000]).chain(Broken));
        let mut narrow = narrowed(Link { reader, ..one }, 1);
        let mut got = Vec::new();
        assert_eq!(
            narrow.reader.read_to_end(&mut got).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        assert_eq!(got, [5; 3000]);
        narrow.writer.write_all(b"to the end").unwrap();
        drop(narrow);
        got.clear();
        other.reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"to the end");
    }

    #[test]
    fn closed_end_is_detected() {
        let (one, mut other) = pair(4);
        drop(one);
        assert_eq!(
            other.writer.write(b"x").unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        assert_eq!(other.reader.read(&mut [0; 4]).unwrap(), 0);
    }
}
