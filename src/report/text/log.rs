//! The log file.

use super::BLOCK_BYTES;
use crate::report::escape::{self, Charset};
use crate::report::format::Format;
use crate::report::times::LocalTimes;
use crate::zone;
use std::io::Write;

/// The log file: each line with time and process, written at least once a second while lines come.
pub(super) struct Log {
    writer: Box<dyn Write + Send>,
    /// Of the lines of entries.
    pub(super) format: Format,
    pid: u32,
    buf: Vec<u8>,
    pub(super) times: LocalTimes,
    written_secs: i64,
}

impl Log {
    /// At its end. `pid` stands in each line.
    pub(super) fn new(writer: Box<dyn Write + Send>, format: Format, pid: u32) -> Log {
        Log { writer, format, pid, buf: Vec::new(), times: LocalTimes::new(zone::local()), written_secs: 0 }
    }

    /// A line.
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

    /// A log that cannot be written is no reason to stop copying; rsync does not tell either.
    pub(super) fn flush(&mut self) {
        _ = self.writer.write_all(&self.buf).and_then(|()| self.writer.flush());
        self.buf.clear();
    }
}
