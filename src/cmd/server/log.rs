//! The log of a server: lines on standard error, which is a file, the journal, or a terminal.

use super::control_socket::{self, Errors};
use crate::env;
use crate::error::Result;
use crate::fs::sys;
use crate::trust::files;
use crate::trust::paths::Places;
use crate::trust::timestamp::Timestamp;
use crate::work::clock;
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The log of a server in the background, in the state directory.
pub const FILE: &str = "server.log";
/// A longer log is renamed to `server.log.old`, and a new one begins.
const MAX_BYTES: u64 = 4 << 20;
/// The target of messages about rejected clients. Anyone can cause them.
pub const REJECTED_CLIENTS: &str = "sparsync::rejected";

/// Opens the log of a server in the background for appending. A log that is too long is renamed first.
pub fn open(places: &Places) -> Result<OwnedFd> {
    let path = places.state.join(FILE);
    let failed = |error: io::Error| files::failed("open", &path, &error);
    let dir = control_socket::state_dir(places)?;
    if sys::stat(dir.as_fd(), FILE.as_bytes(), false).is_ok_and(|stat| stat.len_bytes > MAX_BYTES) {
        sys::rename(
            dir.as_fd(),
            FILE.as_bytes(),
            dir.as_fd(),
            format!("{FILE}.old").as_bytes(),
        )
        .map_err(failed)?;
    }
    sys::open_append_at(dir.as_fd(), FILE.as_bytes(), 0o600).map_err(failed)
}

/// Where standard error leads.
pub enum Readers {
    /// To the journal, which adds the time and takes the level from the beginning of a line.
    Journal,
    /// To a terminal, or to whatever the caller has set.
    Terminal,
    /// To the log in this state directory.
    Log(Places),
}

/// Installs the logger: events of this crate go to standard error, and the last errors are kept in `errors`.
pub fn begin(readers: Readers, errors: Arc<Errors>) {
    // The first call of a process wins.
    let _ = tracing::subscriber::set_global_default(Lines {
        readers,
        errors,
        turning: Mutex::new(()),
    });
}

/// Returns whether standard error is the journal that `JOURNAL_STREAM` names. It may have been redirected since that
/// was set.
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
    /// Starts a new log if the current one is too long.
    fn turn_over(&self) {
        let Readers::Log(places) = &self.readers else {
            return;
        };
        let _turning = self.turning.lock();
        if sys::fstat(io::stderr().as_fd()).is_ok_and(|stat| stat.len_bytes > MAX_BYTES) {
            // If no new log can be opened, the old one keeps growing.
            let _ = open(places).map(|new| env::become_stderr(new.as_fd()));
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The libraries log too much.
        metadata.is_event()
            && *metadata.level() <= Level::INFO
            && metadata.target().starts_with("sparsync")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = MessageText::default();
        event.record(&mut words);
        let text = [words.message, words.fields].concat();
        let level = *event.metadata().level();
        let line = match (&self.readers, level) {
            (Readers::Journal, Level::ERROR) => format!("<3>{text}\n"),
            (Readers::Journal, Level::WARN) => format!("<4>{text}\n"),
            (Readers::Journal, _) => format!("<6>{text}\n"),
            (_, level) => format!("{} {level:>5} {text}\n", Timestamp(clock::now_unix().0)),
        };
        let dated = format!("{} {text}", Timestamp(clock::now_unix().0));
        if event.metadata().target() == REJECTED_CLIENTS {
            self.errors.record_rejected(dated);
        } else if level <= Level::WARN {
            self.errors.push(dated);
        }
        // A failure to log cannot be reported anywhere.
        let _ = io::stderr().write_all(line.as_bytes());
        self.turn_over();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct MessageText {
    message: String,
    fields: String,
}

impl Visit for MessageText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Names and addresses come from clients. Control characters are replaced, so that one event stays one line.
        let value = format!("{value:?}").replace(|c: char| c.is_control(), "?");
        match field.name() {
            "message" => self.message = value,
            name => drop(write!(self.fields, " {name}={value}")),
        }
    }
}
