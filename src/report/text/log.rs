//! The log file.

use super::BLOCK_BYTES;
use crate::report::escape::{self, Charset};
use crate::report::format::Format;
use crate::report::times::LocalTimes;
use crate::zone;
use std::io::Write;

/// The log of a run.
pub(super) struct Log {
    target: LogTarget,
    /// The format of the lines for entries.
    pub(super) format: Format,
    pub(super) times: LocalTimes,
}

/// Adds a line to a log that formats it.
pub type PutLine = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Where the lines of a log go.
enum LogTarget {
    /// A file. Each line starts with the time and the process id. Written at least once a second while lines arrive.
    File {
        writer: Box<dyn Write + Send>,
        pid: u32,
        buf: Vec<u8>,
        written_secs: i64,
    },
    /// A log that formats and writes each line.
    Lines(PutLine),
}

impl Log {
    /// Creates a log that appends to `writer`. Each line contains `pid`.
    pub(super) fn new(writer: Box<dyn Write + Send>, format: Format, pid: u32) -> Log {
        Log::to(
            LogTarget::File {
                writer,
                pid,
                buf: Vec::new(),
                written_secs: 0,
            },
            format,
        )
    }

    /// Creates a log that passes each line on.
    pub(super) fn of_lines(put: PutLine, format: Format) -> Log {
        Log::to(LogTarget::Lines(put), format)
    }

    fn to(target: LogTarget, format: Format) -> Log {
        Log {
            target,
            format,
            times: LocalTimes::new(zone::local()),
        }
    }

    /// Appends a line.
    pub(super) fn put(&mut self, line: &[u8], now_secs: i64) {
        let (pid, buf, written_secs) = match &mut self.target {
            LogTarget::Lines(put) => return put(line),
            LogTarget::File {
                pid,
                buf,
                written_secs,
                ..
            } => (pid, buf, written_secs),
        };
        self.times.put(buf, now_secs, b' ');
        _ = write!(buf, " [{pid}] ");
        escape::put(buf, line, Charset::Log);
        buf.push(b'\n');
        if buf.len() >= BLOCK_BYTES || now_secs != *written_secs {
            *written_secs = now_secs;
            self.flush();
        }
    }

    /// Writes the buffered lines. As in rsync, a write error neither stops the run nor is reported.
    pub(super) fn flush(&mut self) {
        if let LogTarget::File { writer, buf, .. } = &mut self.target {
            _ = writer.write_all(buf).and_then(|()| writer.flush());
            buf.clear();
        }
    }
}
