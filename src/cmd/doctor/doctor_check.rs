//! The result of a check, and how it is printed.

use crate::cmd::command_end::write_text;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::report::event::errno_words;
use crate::report::json;
use std::io;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ok,
    /// A restriction: copies work, but not in every way.
    Warn,
    Fail,
}

pub(super) struct DoctorCheck {
    name: &'static str,
    pub(super) state: State,
    pub(super) finding: String,
    hint: Option<String>,
}

impl DoctorCheck {
    pub(super) fn ok(name: &'static str, finding: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            name,
            state: State::Ok,
            finding: finding.into(),
            hint: None,
        }
    }

    pub(super) fn warn(name: &'static str, finding: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            state: State::Warn,
            ..DoctorCheck::ok(name, finding)
        }
    }

    pub(super) fn fail(name: &'static str, finding: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            state: State::Fail,
            ..DoctorCheck::ok(name, finding)
        }
    }

    pub(super) fn of_error(name: &'static str, error: &Error) -> DoctorCheck {
        let text = String::from_utf8_lossy(&error.message).replace('\n', ";");
        DoctorCheck {
            hint: error.hint.clone(),
            ..DoctorCheck::fail(name, text.strip_prefix("sparsync: ").unwrap_or(&text))
        }
    }

    pub(super) fn with_hint(self, hint: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            hint: Some(hint.into()),
            ..self
        }
    }

    fn line(&self) -> String {
        let state = self.state.word();
        let hint = self
            .hint
            .iter()
            .map(|hint| format!("{:24}hint: {hint}\n", ""))
            .collect::<String>();
        format!("{state:<6}{:<18}{}\n{hint}", self.name, self.finding)
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Fail => "fail",
        }
    }
}

/// Prints the checks as they are done.
pub(super) struct Printer<'a> {
    pub(super) env: &'a mut Env,
    pub(super) json: bool,
    pub(super) failed: bool,
}

impl Printer<'_> {
    pub(super) fn print(&mut self, checks: Vec<DoctorCheck>) -> Result<()> {
        let mut text = Vec::new();
        for check in checks {
            self.failed |= check.state == State::Fail;
            let DoctorCheck {
                name,
                state,
                finding,
                hint,
            } = &check;
            if self.json {
                let line = json::CheckLine {
                    name,
                    state: state.word(),
                    finding,
                    hint: hint.as_deref(),
                };
                json::put(&mut text, &json::Line::Check(line));
            } else {
                text.extend(check.line().into_bytes());
            }
        }
        write_text(&mut self.env.stdout, &text)
    }
}

pub(super) fn shown_errno(error: &io::Error) -> String {
    String::from_utf8_lossy(&errno_words(error)).into_owned()
}
