//! The log file.

use super::BLOCK_BYTES;
use crate::report::escape::{self, Charset};
use crate::report::format::Format;
use crate::report::times::LocalTimes;
use crate::zone;
use std::io::Write;

/// The log file. Each line starts with the time and the process id. Written at least once a second while lines arrive.
pub(super) struct Log {
    writer: Box<dyn Write + Send>,
    /// The format of the lines for entries.
    pub(super) format: Format,
    pid: u32,
    buf: Vec<u8>,
    pub(super) times: LocalTimes,
    written_secs: i64,
}

impl Log {
    /// Creates a log that appends to `writer`. Each line contains `pid`.
    pub(super) fn new(writer: Box<dyn Write + Send>, format: Format, pid: u32) -> Log {
        Log { writer, format, pid, buf: Vec::new(), times: LocalTimes::new(zone::local()), written_secs: 0 }
    }

    /// Appends a line.
    pub(super) fn put(&mut self, line: &[u8], now_secs: i64) {
        self.times.put(&mut self.buf, now_secs, b' ');
        _ = write!(self.buf, " [{}] ", self.pid);
        escape::put(&mut self.buf, line, Charset::Log);
        self.buf.push(b'\n');
        if self.buf.len() >= BLOCK_BYTES || now_secs != self.written_secs {
            self.written_secs = now_secs;
            self.flush();
        }
    }

    /// Writes the buffered lines. As in rsync, a write error neither stops the run nor is reported.
    pub(super) fn flush(&mut self) {
        _ = self.writer.write_all(&self.buf).and_then(|()| self.writer.flush());
        self.buf.clear();
    }
}
