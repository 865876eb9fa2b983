//! SIGVTALRM: the user requests a line of progress, as from rsync.
//!
//! The next file that has been copied answers: its name, then the progress of the run in the form of `--info=progress2`.

use super::live_display::LiveDisplay;
use crate::env::Env;
use crate::options::Options;
use crate::report::escape::{self, Charset};
use crate::report::event::Wants;
use crate::report::gauge::{Counts, Gauge};
use crate::report::progress;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::io::{self, Write};
use std::sync::Arc;

/// Returns the counters of a run, if it has a display or answers requests. A run that prints progress anyway, or nothing,
/// does not answer.
pub fn gauge(
    env: &mut Env,
    options: &Options,
    display: Option<&LiveDisplay>,
    wants: Wants,
) -> Option<Arc<Gauge>> {
    let answers = !options.output.quiet && !options.dry_run && options.output.info.progress == 0;
    let gauge = match display {
        Some(display) => display.gauge().clone(),
        None if answers => Arc::new(Gauge::for_requests(env.progress_requested.clone())),
        None => return None,
    };
    if answers && !wants.items {
        answer_at_once(env, options, &gauge);
    }
    Some(gauge)
}

/// Lets the thread that has copied a file print the answer. The reporter of such a run gets no events about files, so it
/// could not do so in time, and no line of it names the file.
fn answer_at_once(env: &mut Env, options: &Options, gauge: &Gauge) {
    let stdout = std::mem::replace(&mut env.stdout, Box::new(io::sink()));
    let stdout = Arc::new(Mutex::new(stdout));
    env.stdout = Box::new(SharedStdout(stdout.clone()));
    let charset = Charset::for_locale(super::utf8_locale(env), options.output.eight_bit);
    let human = options.output.human;
    let is_tty = env.stdout_is_tty;
    let since = Since::now();
    gauge.print_answers(Box::new(move |path: &[u8], counts: &Counts| {
        let mut text = Vec::new();
        escape::put(&mut text, path, charset);
        text.push(b'\n');
        progress::put_answer(&mut text, counts, human, since.elapsed(), is_tty);
        let mut stdout = stdout.lock();
        // The answer is lost if stdout is closed, which must not affect the copy.
        let _ = stdout.write_all(&text).and_then(|()| stdout.flush());
    }));
}

/// Standard output, which the reporter and the threads that copy share.
struct SharedStdout(Arc<Mutex<Box<dyn Write + Send>>>);

impl Write for SharedStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush()
    }
}
