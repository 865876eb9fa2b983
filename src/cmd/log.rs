//! What a server tells while it runs: lines on standard error, which is a file, a journal, or somebody's terminal.

use super::control::Errors;
use crate::fs::sys;
use crate::trust::moment::Moment;
use crate::work::clock;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Tells events of ours from here on, and keeps the last errors.
///
/// `journal`: whoever reads adds the time, and takes the level from the front of a line.
pub fn begin(journal: bool, errors: Arc<Errors>) {
    // Only the first call of a process counts.
    let _ = tracing::subscriber::set_global_default(Lines { journal, errors });
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
    journal: bool,
    errors: Arc<Errors>,
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
        let line = match (self.journal, level) {
            (true, Level::ERROR) => format!("<3>{text}\n"),
            (true, Level::WARN) => format!("<4>{text}\n"),
            (true, _) => format!("<6>{text}\n"),
            (false, level) => format!("{} {level:>5} {text}\n", Moment(clock::now_unix().0)),
        };
        if level <= Level::WARN {
            self.errors.push(text);
        }
        // There is nobody to tell that nothing can be told.
        let _ = io::stderr().write_all(line.as_bytes());
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
