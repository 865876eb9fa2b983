//! The moving line of `--progress`, and the messages on standard error that share the terminal with it.

use crate::env::{self, Env};
use crate::error::Result;
use crate::report::escape::{Charset, Cursor, put};
use crate::report::number::{put_count, put_fraction};
use crate::work::clock::Since;
use crate::work::on_drop::OnDrop;
use crate::work::thread;
use parking_lot::{Condvar, Mutex};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The time between two updates of the line.
const PERIOD: Duration = Duration::from_millis(500);

/// Counts what was hashed, and shows it. The line and the messages use standard error, because the manifest may go to
/// standard output.
pub struct StatusLine {
    is_shown: bool,
    /// How many files there are, if that is known.
    files_total: Option<u64>,
    charset: Charset,
    files: AtomicU64,
    bytes: AtomicU64,
    screen: Mutex<StatusScreen>,
    ended: Condvar,
}

struct StatusScreen {
    stderr: Box<dyn Write + Send>,
    /// The length of the line on the terminal.
    drawn_len: usize,
    has_ended: bool,
}

impl StatusLine {
    /// Creates the line. `is_shown`: `--progress`.
    pub fn new(env: &Env, is_shown: bool, files_total: Option<u64>) -> StatusLine {
        StatusLine {
            is_shown,
            files_total,
            charset: Charset::for_locale(crate::cmd::copy::utf8_locale(env), false),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            screen: Mutex::new(StatusScreen {
                stderr: env::stderr(Cursor::Returns, false),
                drawn_len: 0,
                has_ended: false,
            }),
            ended: Condvar::new(),
        }
    }

    /// Counts bytes that were hashed.
    pub fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts a file that was hashed.
    pub fn add_file(&self) {
        self.files.fetch_add(1, Relaxed);
    }

    /// Prints a message above the line.
    pub fn print(&self, message: &[u8]) {
        let mut line = Vec::new();
        put(&mut line, message, self.charset);
        line.push(b'\n');
        let mut screen = self.screen.lock();
        screen.clear();
        screen.write(&line);
    }

    /// Runs `work`, and meanwhile shows the line. Without a thread for it, only the last line is shown.
    pub fn show_during(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.is_shown {
            return work();
        }
        let since = Since::now();
        let ended = std::thread::scope(|scope| {
            // The line is not worth an error.
            let _ = thread::spawn(scope, "progress", || self.update_until_end(since));
            let _end = OnDrop(|| {
                self.screen.lock().has_ended = true;
                self.ended.notify_all();
            });
            work()
        });
        let mut screen = self.screen.lock();
        self.draw(&mut screen, since);
        screen.write(b"\n");
        screen.drawn_len = 0;
        ended
    }

    fn update_until_end(&self, since: Since) {
        let mut screen = self.screen.lock();
        while !screen.has_ended {
            self.ended.wait_for(&mut screen, PERIOD);
            self.draw(&mut screen, since);
        }
    }

    fn draw(&self, screen: &mut StatusScreen, since: Since) {
        let bytes = self.bytes.load(Relaxed);
        let rate = bytes as f64 / since.elapsed().as_secs_f64().max(1e-3);
        let mut line = b"\r".to_vec();
        put_count(&mut line, self.files.load(Relaxed), 1);
        if let Some(total) = self.files_total {
            line.extend_from_slice(b" of ");
            put_count(&mut line, total, 1);
        }
        line.extend_from_slice(b" files, ");
        put_count(&mut line, bytes, 1);
        line.extend_from_slice(b" bytes, ");
        put_fraction(&mut line, rate, 2);
        line.extend_from_slice(b"B/s");
        let len = line.len() - 1;
        line.resize(line.len() + screen.drawn_len.saturating_sub(len), b' ');
        screen.drawn_len = len;
        screen.write(&line);
    }
}

impl StatusScreen {
    /// Removes the line from the terminal.
    fn clear(&mut self) {
        if self.drawn_len > 0 {
            let blanks = format!("\r{}\r", " ".repeat(self.drawn_len));
            self.write(blanks.as_bytes());
            self.drawn_len = 0;
        }
    }

    /// Writes to standard error. The exit code reports problems as well, so a closed one is no error.
    fn write(&mut self, bytes: &[u8]) {
        let _ = self
            .stderr
            .write_all(bytes)
            .and_then(|()| self.stderr.flush());
    }
}
