//! The live display of a run on a terminal (`--ui`): a thread that draws, and writers that keep lines above the display.

use crate::env::{self, Env};
use crate::options::Options;
use crate::report::escape::{Charset, Cursor};
use crate::report::live::{self, Failures, Moment, Rates};
use crate::report::{Gauge, Tally, Traffic};
use crate::transport::net::tls_upgrade::Progress;
use crate::work::clock::Since;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The time between two updates of the display.
const PERIOD: Duration = Duration::from_millis(100);
/// How often the display is drawn at most, per second.
const DRAWS_PER_SEC: u8 = 10;
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
    output.ui &= env.stdout_is_tty && env.stderr_is_tty && !output.quiet && !output.json && !lists;
    if output.ui {
        // The display shows the progress of all files.
        output.info.progress = 0;
    }
}

/// How the data of a run travels.
#[derive(Debug, Clone, Default)]
pub struct LiveRoute {
    /// The route, and the reason for it.
    pub text: String,
    /// Whether the session has moved to TLS since; `None` if it cannot.
    pub upgrade: Option<Arc<Progress>>,
}

impl LiveRoute {
    /// A copy on this machine.
    pub fn local() -> LiveRoute {
        LiveRoute {
            text: "local copy".to_owned(),
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
}

impl LiveDisplay {
    /// Starts the display and places it between this process and its streams; `None` if the run has no display.
    pub fn start(env: &mut Env, options: &Options, route: LiveRoute) -> Option<LiveDisplay> {
        if !options.output.ui {
            return None;
        }
        let bar =
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SEC));
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        let streams = [
            std::mem::replace(&mut env.stdout, Box::new(io::sink())),
            std::mem::replace(&mut env.stderr, Box::new(io::sink())),
        ];
        let state = ScreenState {
            streams,
            waiting: Vec::new(),
            waiting_bytes: 0,
            has_ended: false,
            route,
        };
        let screen = Arc::new(SharedScreen {
            state: Mutex::new(state),
            ended: Condvar::new(),
            bar,
        });
        env.stdout = Box::new(ScreenWriter {
            screen: screen.clone(),
            stream: 0,
        });
        env.stderr = Box::new(ScreenWriter {
            screen: screen.clone(),
            stream: 1,
        });
        let gauge = Arc::new(Gauge::default());
        let charset = Charset::of(super::copy::utf8_locale(env), options.output.eight_bit);
        let thread = {
            let (screen, gauge) = (screen.clone(), gauge.clone());
            Builder::new()
                .name("display".into())
                .spawn(move || screen.draw_until_end(&gauge, charset))
        };
        // Without the thread, lines wait until the end or until there are many.
        let thread = Mutex::new(thread.ok());
        Some(LiveDisplay {
            screen,
            gauge,
            thread,
            dry_run: options.dry_run,
        })
    }

    /// Shows another route from now on.
    pub fn set_route(&self, route: LiveRoute) {
        self.screen.state.lock().route = route;
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
        self.screen.bar.finish_and_clear();
        let mut state = self.screen.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        state.write(waiting);
    }

    /// Prints the summary of a completed run.
    pub fn summarize(
        &self,
        tally: &Tally,
        traffic: Option<Traffic>,
        elapsed: Duration,
        failures: Option<&Failures<'_>>,
    ) {
        let mut state = self.screen.state.lock();
        let route = state.route.shown();
        let lines = live::summary(tally, traffic, elapsed, self.dry_run, &route, failures);
        let text: String = lines.into_iter().map(|line| line + "\n").collect();
        state.write(vec![(1, text.into_bytes())]);
    }
}

/// The terminal, as the display and the writers of lines share it.
struct SharedScreen {
    state: Mutex<ScreenState>,
    ended: Condvar,
    bar: ProgressBar,
}

struct ScreenState {
    /// stdout and stderr.
    streams: [Box<dyn Write + Send>; 2],
    /// Bytes for the streams, by their index, in the order in which they came.
    waiting: Vec<(usize, Vec<u8>)>,
    waiting_bytes: usize,
    has_ended: bool,
    route: LiveRoute,
}

impl ScreenState {
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
        let (since, mut rates) = (Since::now(), Rates::default());
        loop {
            let route = self.state.lock().route.shown();
            let counts = gauge.counts(live::FILES_SHOWN);
            let elapsed = since.elapsed();
            let moment = Moment {
                counts: &counts,
                rates: rates.measure(elapsed, &counts),
                elapsed,
                route: &route,
                charset,
            };
            self.bar
                .set_message(live::lines(&moment, env::terminal_columns()).join("\n"));
            let mut state = self.state.lock();
            self.write_waiting(&mut state);
            if state.has_ended {
                return;
            }
            self.ended.wait_for(&mut state, PERIOD);
        }
    }

    /// Writes the complete lines that wait, above the display.
    fn write_waiting(&self, state: &mut ScreenState) {
        let mut waiting = std::mem::take(&mut state.waiting);
        state.waiting_bytes = 0;
        if let Some((stream, last)) = waiting.last_mut() {
            let end = last
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1);
            let rest = last.split_off(end);
            if !rest.is_empty() {
                state.waiting_bytes = rest.len();
                state.waiting.push((*stream, rest));
            }
        }
        if waiting.iter().any(|(_, bytes)| !bytes.is_empty()) {
            self.bar.suspend(|| state.write(waiting));
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
        if state.has_ended {
            state.write(vec![(self.stream, bytes.to_vec())]);
            return Ok(bytes.len());
        }
        match state.waiting.last_mut() {
            Some((stream, waiting)) if *stream == self.stream => waiting.extend_from_slice(bytes),
            _ => state.waiting.push((self.stream, bytes.to_vec())),
        }
        state.waiting_bytes += bytes.len();
        if state.waiting_bytes >= WAITING_MAX_BYTES {
            self.screen.write_waiting(&mut state);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
