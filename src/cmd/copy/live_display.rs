//! The live display of a run on a terminal (`--ui`): a thread that draws, and writers that keep lines above the display.

use crate::cli::subcommand;
use crate::env::{self, Env};
use crate::fs::sys;
use crate::options::Options;
use crate::options::output::Ui;
use crate::report::escape::{Charset, Cursor};
use crate::report::live::{self, Failures, FileTimes, Knowledge, Moment, Rates, Renames, Stall};
use crate::report::{Gauge, Tally, Traffic};
use crate::transport::net::tls_upgrade::Progress;
use crate::work::clock::Since;
use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The time between two updates of the display.
const PERIOD: Duration = Duration::from_millis(100);
/// Columns at the right that the display leaves free: in the last one, a terminal would clear the character that it has
/// just drawn.
const FREE_COLUMNS: usize = 1;
/// Below the display is the cursor.
const CURSOR_ROWS: usize = 1;
/// The smallest width that shows anything.
const COLUMNS_MIN: usize = 8;
/// How long a run goes on before it shows a display without being asked.
const UNASKED_AFTER: Duration = Duration::from_millis(500);
/// How many lines `--ui=plain` prints in a minute.
const PLAIN_LINES: u32 = 6;
/// How many bytes of lines may wait for the next update.
const WAITING_MAX_BYTES: usize = 64 * 1024;

/// Decides whether this run has a display. `no_dest`: the source is only listed.
pub fn settle(env: &mut Env, options: &mut Options, no_dest: bool) {
    let lists = no_dest || options.select.list_only;
    let output = &mut options.output;
    let cursor = if output.info.progress > 0 {
        Cursor::Returns
    } else {
        Cursor::Advances
    };
    env.set_streams(cursor, output.eight_bit);
    let is_dumb = env.var("TERM").is_some_and(|name| name == "dumb");
    let has_terminal = env.stdout_is_tty && env.stderr_is_tty;
    if output.ui == Ui::Live && has_terminal && is_dumb {
        // Nothing can be drawn there.
        output.ui = Ui::Plain;
    }
    let is_ours = subcommand::is_ours(env.program.as_encoded_bytes());
    // Without a terminal, `--ui` shows nothing: it may come from the environment of a job that writes a log.
    let is_possible = match output.ui {
        Ui::Off => false,
        Ui::Unasked => has_terminal && !is_dumb && is_ours && !output.is_requested(),
        Ui::Live => has_terminal && !output.quiet && !output.json,
        Ui::Plain => !output.quiet && !output.json,
    };
    if !is_possible || lists {
        output.ui = Ui::Off;
    } else {
        // The display shows the progress of all files.
        output.info.progress = 0;
    }
}

/// How the data of a run travels.
#[derive(Debug, Clone, Default)]
pub struct LiveRoute {
    /// The route, and the reason for it.
    pub text: String,
    /// The name of the peer; `None`: both trees are on this machine.
    pub peer: Option<String>,
    /// Whether the session has moved to TLS since; `None` if it cannot.
    pub upgrade: Option<Arc<Progress>>,
}

impl LiveRoute {
    /// A copy on this machine.
    pub fn local() -> LiveRoute {
        LiveRoute {
            text: "local copy".to_owned(),
            peer: None,
            upgrade: None,
        }
    }

    fn shown(&self) -> String {
        let has_moved = self
            .upgrade
            .as_ref()
            .is_some_and(|upgrade| upgrade.moved_after().is_some());
        format!("{}{}", self.text, if has_moved { ", then TLS" } else { "" })
    }
}

/// The display of a run.
pub struct LiveDisplay {
    screen: Arc<SharedScreen>,
    gauge: Arc<Gauge>,
    thread: Mutex<Option<JoinHandle<()>>>,
    dry_run: bool,
    /// Whether the other end writes what this one sends.
    sends: bool,
}

impl LiveDisplay {
    /// Starts the display and places it between this process and its streams; `None` if the run has no display. `sends`:
    /// another process writes what this one sends.
    pub fn start(
        env: &mut Env,
        options: &Options,
        route: LiveRoute,
        sends: bool,
    ) -> Option<LiveDisplay> {
        let kind = options.output.ui;
        if kind == Ui::Off {
            return None;
        }
        let streams = [
            std::mem::replace(&mut env.stdout, Box::new(io::sink())),
            std::mem::replace(&mut env.stderr, Box::new(io::sink())),
        ];
        let state = ScreenState {
            streams,
            waiting: Vec::new(),
            waiting_bytes: 0,
            drawn: Vec::new(),
            drawn_columns: 0,
            kind,
            has_appeared: false,
            has_ended: false,
            is_paused: false,
            is_continued: env.note_continued(),
            route,
        };
        let screen = Arc::new(SharedScreen {
            state: Mutex::new(state),
            ended: Condvar::new(),
        });
        env.stdout = Box::new(ScreenWriter {
            screen: screen.clone(),
            stream: 0,
        });
        env.stderr = Box::new(ScreenWriter {
            screen: screen.clone(),
            stream: 1,
        });
        let gauge = Arc::new(Gauge::for_display(env.progress_requested.clone()));
        let charset = Charset::for_locale(super::utf8_locale(env), options.output.eight_bit);
        let thread = {
            let screen = screen.clone();
            let gauge = gauge.clone();
            Builder::new()
                .name("display".into())
                .spawn(move || match kind {
                    Ui::Plain => screen.print_until_end(&gauge, charset),
                    Ui::Off | Ui::Unasked | Ui::Live => screen.draw_until_end(&gauge, charset),
                })
        };
        // Without the thread, lines wait until the end or until there are many.
        let thread = Mutex::new(thread.ok());
        Some(LiveDisplay {
            screen,
            gauge,
            thread,
            dry_run: options.dry_run,
            sends,
        })
    }

    /// Shows another route from now on.
    pub fn set_route(&self, route: LiveRoute) {
        self.screen.state.lock().route = route;
    }

    /// Returns a writer of lines to standard error that the display keeps above itself.
    pub fn stderr(&self) -> Box<dyn Write + Send> {
        Box::new(ScreenWriter {
            screen: self.screen.clone(),
            stream: 1,
        })
    }

    /// Removes the display for a while, because another program uses the terminal.
    pub fn pause(&self) {
        let mut state = self.screen.state.lock();
        state.is_paused = true;
        state.clear();
    }

    /// Shows the display again.
    pub fn resume(&self) {
        self.screen.state.lock().is_paused = false;
    }

    /// Returns the counters that the display shows.
    pub fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    /// Removes the display from the terminal. From now on, lines are written at once.
    pub fn end(&self) {
        self.screen.state.lock().has_ended = true;
        self.screen.ended.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of this thread ends the process.
            let _ = thread.join();
        }
        self.screen.state.lock().clear();
    }

    /// Prints how far a run came that was stopped.
    pub fn summarize_stopped(&self) {
        if !self.screen.state.lock().is_shown() {
            return;
        }
        let knowledge = match (self.dry_run, self.sends) {
            (true, _) => Knowledge::Compared,
            (false, true) => Knowledge::Sent,
            (false, false) => Knowledge::InPlace,
        };
        let line = live::stopped(&self.gauge.counts(0), knowledge) + "\n";
        self.screen.state.lock().write(vec![(1, line.into_bytes())]);
    }

    /// Prints the summary of a completed run.
    pub fn summarize(
        &self,
        tally: &Tally,
        renames: Renames,
        traffic: Option<Traffic>,
        elapsed: Duration,
        failures: Option<&Failures<'_>>,
    ) {
        let mut state = self.screen.state.lock();
        // A short run without problems is as quiet as one of rsync.
        if !state.is_shown() && failures.is_none() {
            return;
        }
        let route = state.route.shown();
        let lines = live::summary(
            tally,
            renames,
            traffic,
            elapsed,
            self.dry_run,
            &route,
            failures,
        );
        let text: String = lines.into_iter().map(|line| line + "\n").collect();
        state.write(vec![(1, text.into_bytes())]);
    }
}

/// Lines that are too long for the terminal, for example while its size changes, must not take another row.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
/// A terminal shows what is between these at once, if it knows them.
const BEGIN_UPDATE: &str = "\x1b[?2026h";
const END_UPDATE: &str = "\x1b[?2026l";

/// Writes to the terminal: not through a stream of this run, which escapes control characters. The terminal may be gone,
/// which must not affect the copy.
fn put_raw(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// The terminal, as the display and the writers of lines share it.
struct SharedScreen {
    state: Mutex<ScreenState>,
    ended: Condvar,
}

struct ScreenState {
    /// stdout and stderr.
    streams: [Box<dyn Write + Send>; 2],
    /// Bytes for the streams, by their index, in the order in which they came.
    waiting: Vec<(usize, Vec<u8>)>,
    waiting_bytes: usize,
    /// The lines of the display that are on the terminal. The cursor is at the start of the line below: whatever ends the
    /// process, and whatever else writes to the terminal, begins on a line of its own.
    drawn: Vec<String>,
    /// The width of the terminal at that time.
    drawn_columns: usize,
    kind: Ui,
    /// Whether the display was drawn.
    has_appeared: bool,
    has_ended: bool,
    /// Another program uses the terminal.
    is_paused: bool,
    /// Set when the process goes on after a stop. Others have written to the terminal meanwhile.
    is_continued: Arc<AtomicBool>,
    route: LiveRoute,
}

impl ScreenState {
    /// Returns whether the user knows of the display: asked for it, or has seen it.
    fn is_shown(&self) -> bool {
        self.kind != Ui::Unasked || self.has_appeared
    }

    /// Replaces the display by these lines, in one write, so that nothing flickers.
    fn draw(&mut self, lines: &[String]) {
        if self.is_continued.swap(false, Relaxed) || !env::is_in_foreground() {
            // The lines that were drawn are where the cursor was then.
            self.drawn.clear();
        }
        let (columns, _) = env::terminal_size();
        let is_same = self.drawn == lines && self.drawn_columns == columns;
        if is_same || (self.drawn.is_empty() && lines.is_empty()) {
            return;
        }
        // A terminal that has become narrower has wrapped the lines that were drawn before.
        let drawn = self.drawn.iter();
        let rows: usize = drawn.map(|line| live::rows(line, columns)).sum();
        let mut out = String::new();
        if rows > 0 {
            out += &format!("\x1b[{rows}A\r");
        }
        if rows > self.drawn.len() {
            // Otherwise the terminal would join the rows of a wrapped line again when it becomes wider.
            out += "\x1b[J";
        }
        out += NO_WRAP;
        for line in lines {
            // Each line clears what was behind it.
            out += line;
            out += "\x1b[K\r\n";
        }
        out += WRAP;
        if lines.len() < rows {
            out += "\x1b[J";
        }
        self.drawn = lines.to_vec();
        self.drawn_columns = columns;
        put_raw(&out);
    }

    /// Removes the display, and writes all that waits.
    fn clear(&mut self) {
        self.draw(&[]);
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        self.write(waiting);
    }

    /// Writes the complete lines that wait, above the display.
    fn write_waiting(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if let Some((stream, last)) = waiting.last_mut() {
            let end = last
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1);
            let rest = last.split_off(end);
            if !rest.is_empty() {
                self.waiting_bytes = rest.len();
                self.waiting.push((*stream, rest));
            }
        }
        if self.drawn.is_empty() {
            self.write(waiting);
        } else if waiting.iter().any(|(_, bytes)| !bytes.is_empty()) {
            let lines = self.drawn.clone();
            // The streams are written one by one.
            put_raw(BEGIN_UPDATE);
            self.draw(&[]);
            self.write(waiting);
            self.draw(&lines);
            put_raw(END_UPDATE);
        }
    }

    /// Writes bytes to their streams. The terminal may be gone, which must not affect the copy.
    fn write(&mut self, parts: Vec<(usize, Vec<u8>)>) {
        for (stream, bytes) in parts {
            let stream = &mut self.streams[stream];
            let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
        }
    }
}

impl SharedScreen {
    fn draw_until_end(&self, gauge: &Gauge, charset: Charset) {
        let since = Since::now();
        let mut rates = Rates::default();
        let mut file_times = FileTimes::default();
        let mut stall = Stall::default();
        loop {
            let (route, peer) = {
                let state = self.state.lock();
                (state.route.shown(), state.route.peer.clone())
            };
            let counts = gauge.counts(live::FILES_SHOWN);
            let elapsed = since.elapsed();
            let stalled = stall.measure(elapsed, &counts);
            let files_left = file_times.measure(elapsed, &counts);
            let moment = Moment {
                counts: &counts,
                rates: rates.measure(elapsed, &counts),
                files_left: &files_left,
                stalled: stalled.zip(peer.as_deref()),
                elapsed,
                route: &route,
                charset,
            };
            let (columns, rows) = env::terminal_size();
            let mut lines = live::lines(&moment, columns.saturating_sub(FREE_COLUMNS));
            lines.truncate(rows.saturating_sub(CURSOR_ROWS));

            let mut state = self.state.lock();
            state.write_waiting();
            let is_due = state.kind == Ui::Live || elapsed >= UNASKED_AFTER;
            // In a smaller terminal the display waits: what was drawn comes back when the terminal is large again.
            let has_room = columns >= COLUMNS_MIN && rows > CURSOR_ROWS;
            if is_due && has_room && !state.is_paused && env::is_in_foreground() {
                state.has_appeared = true;
                state.draw(&lines);
            }
            if state.has_ended {
                return;
            }
            self.ended.wait_for(&mut state, PERIOD);
        }
    }

    /// Prints a line from time to time.
    fn print_until_end(&self, gauge: &Gauge, charset: Charset) {
        let since = Since::now();
        let mut rates = Rates::default();
        let mut stall = Stall::default();
        let period = Duration::from_secs(sys::minute_secs()) / PLAIN_LINES;
        let mut due = period;
        let mut state = self.state.lock();
        while !state.has_ended {
            self.ended.wait_for(&mut state, PERIOD);
            let counts = gauge.counts(0);
            let elapsed = since.elapsed();
            let rates = rates.measure(elapsed, &counts);
            let stalled = stall.measure(elapsed, &counts);
            if state.has_ended || state.is_paused || elapsed < due {
                continue;
            }
            due = elapsed + period;
            let peer = state.route.peer.clone();
            let line = live::plain_line(&Moment {
                counts: &counts,
                rates,
                files_left: &[],
                stalled: stalled.zip(peer.as_deref()),
                elapsed,
                route: "",
                charset,
            });
            state.write(vec![(1, (line + "\n").into_bytes())]);
        }
    }
}

/// Writes to one of the streams.
struct ScreenWriter {
    screen: Arc<SharedScreen>,
    stream: usize,
}

impl Write for ScreenWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.screen.state.lock();
        if state.has_ended || state.is_paused || state.kind == Ui::Plain {
            state.write(vec![(self.stream, bytes.to_vec())]);
            return Ok(bytes.len());
        }
        match state.waiting.last_mut() {
            Some((stream, waiting)) if *stream == self.stream => waiting.extend_from_slice(bytes),
            _ => state.waiting.push((self.stream, bytes.to_vec())),
        }
        state.waiting_bytes += bytes.len();
        if state.waiting_bytes >= WAITING_MAX_BYTES {
            state.write_waiting();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
