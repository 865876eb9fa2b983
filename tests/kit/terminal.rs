//! Pseudo-terminals, and an emulator that draws what a program writes to one.
//!
//! [`Screen::shows`] compares the whole screen with a recording in tests/screens. `SPARSYNC_BLESS=1` records it anew.

use super::golden::is_blessing;
use super::wait::reached;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a screen may take to appear.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the program has to write the next frame, while it writes one a second at least.
const FRAMES: Duration = Duration::from_millis(2500);

/// Sets the size of a terminal.
pub fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).expect("it is a terminal");
}

/// A terminal: the end of the program, and the end that shows what the program writes.
pub struct Terminal {
    pub near: File,
    pub shown: File,
}

impl Terminal {
    /// Opens a terminal of 24 rows.
    pub fn new(columns: u16) -> Terminal {
        let shown = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("the system has pseudo-terminals");
        grantpt(&shown)
            .and_then(|()| unlockpt(&shown))
            .expect("the terminal is ours");
        let path = ptsname(&shown, Vec::new())
            .expect("the terminal has a name")
            .into_string()
            .expect("ASCII");
        let near = File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("the terminal is ours");
        set_size(&near, columns, 24);
        Terminal {
            near,
            shown: File::from(shown),
        }
    }

    /// Returns the end of the program as a stream.
    pub fn stdio(&self) -> Stdio {
        self.near.try_clone().expect("a descriptor is free").into()
    }

    /// Starts a program on the terminal.
    pub fn start(&self, command: &mut Command) -> Child {
        command
            .stdin(Stdio::null())
            .stdout(self.stdio())
            .stderr(self.stdio())
            .spawn()
            .expect("the program starts")
    }

    /// Reads until the text appears, and returns all that was read.
    #[track_caller]
    pub fn until(&mut self, text: &str) -> String {
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let shown = String::from_utf8_lossy(&all).into_owned();
            if shown.contains(text) {
                return shown;
            }
            let got = self.shown.read(&mut piece).unwrap_or(0);
            assert!(got > 0, "the terminal ended without {text:?}: {shown:?}");
            all.extend_from_slice(&piece[..got]);
        }
    }

    /// Waits for the program, and returns its exit code and what the terminal has received since.
    pub fn end(self, mut child: Child) -> (Option<i32>, String) {
        let Terminal { near, mut shown } = self;
        drop(near);
        let mut all = Vec::new();
        // The terminal ends with an error when the last program closes it.
        let _ = shown.read_to_end(&mut all);
        (
            child.wait().expect("the program was started").code(),
            String::from_utf8_lossy(&all).into_owned(),
        )
    }
}

/// A terminal with an emulator, and a typed command at its top.
pub struct Screen {
    terminal: Terminal,
    emulator: avt::Terminal,
    /// The bytes of a character that has not arrived whole.
    rest: Vec<u8>,
    /// Everything that was written.
    written: String,
    /// The directory of the test, which recordings call `TOP`.
    top: PathBuf,
    /// The name of the recording.
    recording: &'static str,
}

/// What the user has typed before the program begins.
const TYPED: &str = "$ sparsync\r\n";

impl Screen {
    /// Opens a terminal of this size. `recording`: the file of tests/screens that has its screens.
    pub fn new(recording: &'static str, top: &Path, columns: u16, rows: u16) -> Screen {
        let terminal = Terminal::new(columns);
        set_size(&terminal.near, columns, rows);
        // A terminal of unknown size has one, but does not tell.
        let known = |size: u16, usual: usize| if size == 0 { usual } else { size.into() };
        let (columns, rows) = (known(columns, 80), known(rows, 24));
        let mut emulator = avt::Terminal::new(columns, rows).expect("a size");
        emulator.feed(TYPED);
        Screen {
            terminal,
            emulator,
            rest: Vec::new(),
            written: String::new(),
            top: top.canonicalize().expect("the directory of the test"),
            recording,
        }
    }

    /// Starts a program on the terminal.
    pub fn start(&self, command: &mut Command) -> Child {
        self.terminal.start(command)
    }

    /// Returns all that the program has written so far.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Changes the size of the window. A terminal of today wraps the lines anew.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        while self.read(Duration::ZERO) {}
        self.emulator.resize(columns.into(), rows.into());
        set_size(&self.terminal.near, columns, rows);
    }

    /// Lets another program write to the terminal.
    pub fn put(&mut self, text: &str) {
        while self.read(Duration::ZERO) {}
        self.emulator.feed(text);
    }

    /// Reads what the program has written, or writes within this time. Returns whether there was anything.
    fn read(&mut self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).expect("short");
        let mut fds = [PollFd::new(&self.terminal.shown, PollFlags::IN)];
        if !poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut piece = [0; 4096];
        let got = self.terminal.shown.read(&mut piece).unwrap_or(0);
        self.feed(&piece[..got]);
        got > 0
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(_) => self.rest.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(error) => panic!("{error}: {:?}", self.rest),
        };
        let left = self.rest.split_off(whole);
        let text = std::mem::replace(&mut self.rest, left);
        let text = String::from_utf8(text).expect("checked above");
        self.emulator.feed(&text);
        self.written += &text;
    }

    /// Returns the lines of the screen as recordings have them.
    pub fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_owned).collect()
    }

    /// Waits until the screen contains a text.
    #[track_caller]
    pub fn until(&mut self, text: &str) {
        let has_come = reached(LIMIT, || {
            self.read(Duration::from_millis(100));
            self.text().contains(text)
        });
        assert!(has_come, "{text:?} does not appear:\n{}", self.text());
    }

    /// Waits until the whole screen is as it was recorded under this name.
    #[track_caller]
    pub fn shows(&mut self, name: &str) {
        if is_blessing() {
            reached(FRAMES, || {
                self.read(Duration::from_millis(100));
                false
            });
            return record(self.recording, name, &self.text());
        }
        let recorded = recorded(self.recording, name);
        let has_come = reached(LIMIT, || {
            self.read(Duration::from_millis(100));
            self.text() == recorded
        });
        assert!(
            has_come,
            "{}, {name}: SPARSYNC_BLESS=1 records it anew; recorded:\n{recorded}now:\n{}{:?}",
            self.recording,
            self.text(),
            self.written
        );
    }

    /// Waits for the program, whose last screen must be as it was recorded under this name. The terminal must be left as
    /// a shell needs it. Returns the exit code.
    #[track_caller]
    pub fn ends(&mut self, child: Child, name: &str) -> Option<i32> {
        let (code, text) = self.leaves(child);
        if is_blessing() {
            record(self.recording, name, &text);
        }
        let recorded = recorded(self.recording, name);
        assert!(
            text == recorded,
            "{}, {name}: SPARSYNC_BLESS=1 records it anew; recorded:\n{recorded}now:\n{text}{:?}",
            self.recording,
            self.written
        );
        code
    }

    /// Waits for the program, which must leave the terminal as a shell needs it. Returns the exit code and the screen.
    #[track_caller]
    pub fn leaves(&mut self, mut child: Child) -> (Option<i32>, String) {
        let has_ended = reached(LIMIT, || {
            self.read(Duration::from_millis(10));
            child.try_wait().expect("the program was started").is_some()
        });
        assert!(has_ended, "the program does not end:\n{}", self.text());
        while self.read(Duration::ZERO) {}
        let text = self.text();
        let cursor = self.emulator.cursor();
        assert!(cursor.visible && cursor.col == 0, "{cursor:?}: {text}");
        let count = |sequence: &str| self.written.matches(sequence).count();
        assert_eq!(
            count("\x1b[?7l"),
            count("\x1b[?7h"),
            "lines are wrapped again: {:?}",
            self.written
        );
        let ended = child.wait().expect("it has ended");
        (ended.code(), text)
    }

    /// Returns the lines of the screen, with what varies from run to run masked, and where the cursor is.
    fn text(&self) -> String {
        let lines = self.emulator.screen().visible_lines();
        let mut lines: Vec<String> = lines
            .map(|line| format!("|{}", masked(&line.text(), &self.top)))
            .collect();
        while lines.last().is_some_and(|line| line == "|") {
            lines.pop();
        }
        let cursor = self.emulator.cursor();
        let (column, row) = (cursor.col, cursor.row);
        format!("{}\ncursor at {column}, {row}\n", lines.join("\n"))
    }
}

/// Replaces times, rates and the directory of the test.
fn masked(line: &str, top: &Path) -> String {
    let line = line.replace(top.to_str().expect("a plain name"), "TOP");
    let line = line.trim_end();
    // How much there is room for depends on the directory.
    if let Some((error, _)) = line.split_once("TOP")
        && error.starts_with("  last error")
    {
        return format!("{error}TOP");
    }
    // Rates appear after half a second.
    let line = match line.split_once(" entries") {
        Some((done, rates)) if line.starts_with("  ") && !rates.contains("stalled") => {
            format!("{done} entries")
        }
        _ => line.to_owned(),
    };
    // The columns of a line of progress are padded.
    let is_padded = |word: &&str| !line.contains("(xfr#") || !word.is_empty();
    let words = line.split(' ').filter(is_padded).map(masked_word);
    let line = words.collect::<Vec<_>>().join(" ");
    // The summary ends with the time, the rate and the route.
    match line.split_once(" s, ") {
        Some((secs, rest)) if secs.parse::<f64>().is_ok() => format!("T s, {rest}"),
        _ => line,
    }
}

fn masked_word(word: &str) -> String {
    let (number, comma) = match word.strip_suffix(',') {
        Some(number) => (number, ","),
        None => (word, ""),
    };
    if number.ends_with("B/s") {
        return format!("R{comma}");
    }
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if number.contains(':') && number.split(':').all(is_number) {
        return format!("M:SS{comma}");
    }
    word.to_owned()
}

fn recording_path(recording: &str) -> PathBuf {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/screens");
    Path::new(dir).join(recording).with_extension("txt")
}

/// Returns the parts of a recording: the name of each screen and its text.
fn parts_of(recording: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(recording_path(recording)).unwrap_or_default();
    let parts = text.split("== ").skip(1);
    let part = |part: &str| {
        let (name, screen) = part.split_once('\n').expect("a name is a line");
        (name.to_owned(), screen.to_owned())
    };
    parts.map(part).collect()
}

#[track_caller]
fn recorded(recording: &str, name: &str) -> String {
    let parts = parts_of(recording);
    let part = parts.into_iter().find(|(other, _)| other == name);
    part.unwrap_or_else(|| panic!("no screen {name:?} in {recording}: SPARSYNC_BLESS=1"))
        .1
}

fn record(recording: &str, name: &str, screen: &str) {
    let mut parts = parts_of(recording);
    match parts.iter_mut().find(|(other, _)| other == name) {
        Some(part) => part.1 = screen.to_owned(),
        None => parts.push((name.to_owned(), screen.to_owned())),
    }
    let text: String = parts
        .iter()
        .map(|(name, screen)| format!("== {name}\n{screen}"))
        .collect();
    std::fs::write(recording_path(recording), text).expect("a recording can be written");
}
