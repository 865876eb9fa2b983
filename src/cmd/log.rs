//! What a server tells while it runs: lines on standard error, which is a file, a journal, or somebody's terminal.

use super::control::{self, Errors};
use crate::env;
use crate::error::Result;
use crate::fs::sys;
use crate::trust::files;
use crate::trust::moment::Moment;
use crate::trust::place::Places;
use crate::work::clock;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The log in the state directory of a server in the background.
pub const FILE: &str = "server.log";
/// Beyond this length it becomes `server.log.old`, and a new one begins.
const MAX_BYTES: u64 = 4 << 20;
/// The target of what is told of clients that are not let in: anybody can bring that about.
pub const STRANGERS: &str = "sparsync::strangers";

/// Opens the log of a server in the background to go on with it; one that is too long is put aside.
pub fn open(places: &Places) -> Result<OwnedFd> {
    let path = places.state.join(FILE);
    let failed = |error: io::Error| files::failed("open", &path, &error);
    let dir = control::state_dir(places)?;
    if sys::stat(dir.as_fd(), FILE.as_bytes(), false).is_ok_and(|stat| stat.len_bytes > MAX_BYTES) {
        sys::rename(dir.as_fd(), FILE.as_bytes(), dir.as_fd(), format!("{FILE}.old").as_bytes()).map_err(failed)?;
    }
    sys::open_append_at(dir.as_fd(), FILE.as_bytes(), 0o600).map_err(failed)
}

/// Who reads what is told.
pub enum Readers {
    /// The journal: it adds the time, and takes the level from the front of a line.
    Journal,
    /// Whoever has standard error.
    Terminal,
    /// Those who open the log of this place.
    Log(Places),
}

/// Tells events of ours on standard error from here on, and keeps the last errors.
pub fn begin(readers: Readers, errors: Arc<Errors>) {
    // Only the first call of a process counts.
    let _ = tracing::subscriber::set_global_default(Lines { readers, errors, turning: Mutex::new(()) });
}

/// Whether standard error is the journal that JOURNAL_STREAM names: another one may have been there when it was set.
pub fn is_journal(named: Option<&OsStr>) -> bool {
    let stderr = || sys::fstat(io::stderr().as_fd()).ok();
    named
        .and_then(OsStr::to_str)
        .zip(stderr())
        .is_some_and(|(named, stat)| named == format!("{}:{}", stat.dev, stat.ino))
}

struct Lines {
    readers: Readers,
    errors: Arc<Errors>,
    turning: Mutex<()>,
}

impl Lines {
    /// Goes on in a new log where this one is long enough.
    fn turn_over(&self) {
        let Readers::Log(places) = &self.readers else {
            return;
        };
        let _turning = self.turning.lock().unwrap_or_else(PoisonError::into_inner);
        if sys::fstat(io::stderr().as_fd()).is_ok_and(|stat| stat.len_bytes > MAX_BYTES) {
            // Where there is no new one the old one grows on.
            let _ = open(places).map(|new| env::become_stderr(new.as_fd()));
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The libraries below tell more than anybody reads.
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("sparsync")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let text = [words.message, words.fields].concat();
        let level = *event.metadata().level();
        let line = match (&self.readers, level) {
            (Readers::Journal, Level::ERROR) => format!("<3>{text}\n"),
            (Readers::Journal, Level::WARN) => format!("<4>{text}\n"),
            (Readers::Journal, _) => format!("<6>{text}\n"),
            (_, level) => format!("{} {level:>5} {text}\n", Moment(clock::now_unix().0)),
        };
        let dated = format!("{} {text}", Moment(clock::now_unix().0));
        if event.metadata().target() == STRANGERS {
            self.errors.turned_away(dated);
        } else if level <= Level::WARN {
            self.errors.push(dated);
        }
        // There is nobody to tell that nothing can be told.
        let _ = io::stderr().write_all(line.as_bytes());
        self.turn_over();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Names and addresses come from others: a line stays one line.
        let value = format!("{value:?}").replace(|c: char| c.is_control(), "?");
        match field.name() {
            "message" => self.message = value,
            name => drop(write!(self.fields, " {name}={value}")),
        }
    }
}
