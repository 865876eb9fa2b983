//! stdout and stderr in one order, and the line that the next one overwrites.

use super::BLOCK_BYTES;
use crate::options::{Outbuf, Output, StderrMode};
use crate::report::escape::{self, Charset};
use crate::report::json;
use std::io::Write;

/// Both output streams, which may share a terminal.
pub(super) struct Screen {
    stdout: Sink,
    /// `None`: with `--stderr=all` all lines go to one stream, which is then `stdout`.
    stderr: Option<Box<dyn Write + Send>>,
    charset: Charset,
    /// Whether only errors are printed.
    quiet: bool,
    /// Whether stdout gets objects instead of text.
    json: bool,
    /// Whether the cursor is behind a progress line.
    in_line: bool,
    /// Lines for stdout that are printed later, escaped.
    held: Vec<u8>,
    /// A line for stderr, escaped.
    shown: Vec<u8>,
    /// What the lines of entries have in common under `--json`.
    parts: json::Parts,
}

impl Screen {
    /// Creates the screen, with both streams at the beginning of a line. `is_tty`: stdout is a terminal.
    pub(super) fn new(
        output: &Output,
        charset: Charset,
        is_tty: bool,
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
    ) -> Screen {
        let (stdout, stderr) = match output.stderr {
            StderrMode::Errors | StderrMode::Client => {
                let tty = if is_tty { Outbuf::Line } else { Outbuf::Block };
                (
                    Sink::new(stdout, output.outbuf.unwrap_or(tty)),
                    Some(stderr),
                )
            }
            // Objects stay on stdout.
            StderrMode::All if output.json => (Sink::new(stdout, Outbuf::Line), Some(stderr)),
            StderrMode::All => (Sink::new(stderr, Outbuf::Line), None),
        };
        Screen {
            stdout,
            stderr,
            charset,
            quiet: output.quiet,
            json: output.json,
            in_line: false,
            held: Vec::new(),
            shown: Vec::new(),
            parts: json::Parts::default(),
        }
    }

    /// Prints a line to stdout, unless the run is quiet.
    pub(super) fn print(&mut self, line: &[u8]) {
        if !self.quiet && !self.json {
            self.end_moving_line();
            self.stdout.put_line(line, self.charset);
        }
    }

    /// Returns whether lines for stdout wait until their buffer is full, so that it does not show when each was printed.
    pub(super) fn is_block_buffered(&self) -> bool {
        self.stdout.mode == Outbuf::Block
    }

    /// Prints a line to stdout behind those that are printed until [`Screen::release`].
    pub(super) fn hold(&mut self, line: &[u8]) {
        if !self.quiet && !self.json {
            escape::put(&mut self.held, line, self.charset);
            self.held.push(b'\n');
            if self.held.len() >= BLOCK_BYTES {
                self.release();
            }
        }
    }

    /// Prints the lines that were held.
    pub(super) fn release(&mut self) {
        if !self.held.is_empty() {
            self.end_moving_line();
            self.stdout.put_raw(&self.held);
            self.held.clear();
        }
    }

    /// Prints a line to stderr, after everything printed before.
    pub(super) fn error(&mut self, line: &[u8]) {
        self.end_moving_line();
        match &mut self.stderr {
            Some(stderr) => {
                self.stdout.flush();
                self.shown.clear();
                escape::put(&mut self.shown, line, self.charset);
                self.shown.push(b'\n');
                // An error of stderr cannot be reported anywhere.
                _ = stderr.write_all(&self.shown).and_then(|()| stderr.flush());
            }
            None => self.stdout.put_line(line, self.charset),
        }
    }

    /// Writes bytes to stdout unchanged, even if the run is quiet.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if !self.json {
            self.stdout.put_raw(bytes);
        }
    }

    /// Writes an object (`--json`).
    pub(super) fn put_object(&mut self, line: &json::Line<'_>) {
        self.parts.put(&mut self.stdout.buf, line);
        self.stdout.settle();
    }

    /// Writes a line that the next one overwrites, or the last such line with its newline.
    pub(super) fn put_moving(&mut self, line: &[u8]) {
        if !self.json
            && let Some(&last) = line.last()
        {
            self.in_line = last != b'\n';
            self.stdout.put_raw(line);
        }
    }

    /// Starts a new line if the cursor is behind a progress line.
    pub(super) fn end_moving_line(&mut self) {
        if std::mem::take(&mut self.in_line) {
            self.stdout.put_raw(b"\n");
        }
    }

    /// Writes what is buffered for stdout.
    pub(super) fn flush(&mut self) {
        self.stdout.flush();
    }

    /// Returns whether the run must end because stdout failed. As in rsync, a closed pipe stops only an unbuffered run, and
    /// a line-buffered one of which nothing was read.
    pub(super) fn lines_are_lost(&self) -> bool {
        let stops = match self.stdout.mode {
            Outbuf::None => true,
            Outbuf::Line => !self.stdout.has_written,
            Outbuf::Block => false,
        };
        self.stdout.failed && stops
    }
}

/// stdout with its own buffer, so that it can be flushed at the same points as in rsync.
struct Sink {
    writer: Box<dyn Write + Send>,
    buf: Vec<u8>,
    mode: Outbuf,
    failed: bool,
    has_written: bool,
}

impl Sink {
    fn new(writer: Box<dyn Write + Send>, mode: Outbuf) -> Sink {
        Sink {
            writer,
            buf: Vec::with_capacity(BLOCK_BYTES + 1024),
            mode,
            failed: false,
            has_written: false,
        }
    }

    fn put_line(&mut self, line: &[u8], charset: Charset) {
        escape::put(&mut self.buf, line, charset);
        self.buf.push(b'\n');
        self.settle();
    }

    fn put_raw(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
        self.settle();
    }

    fn settle(&mut self) {
        match self.mode {
            Outbuf::None => self.flush(),
            Outbuf::Line if self.buf.ends_with(b"\n") => self.flush(),
            Outbuf::Line | Outbuf::Block if self.buf.len() >= BLOCK_BYTES => self.flush(),
            Outbuf::Line | Outbuf::Block => {}
        }
    }

    fn flush(&mut self) {
        if !self.buf.is_empty() && !self.failed {
            self.failed = self
                .writer
                .write_all(&self.buf)
                .and_then(|()| self.writer.flush())
                .is_err();
            self.has_written |= !self.failed;
        }
        self.buf.clear();
    }
}
