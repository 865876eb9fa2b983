//! When a connection runs programs: `early exec` and the start of the others in the module's setup, `pre-xfer exec` with
//! the arguments of the client.

use super::arguments::Arguments;
use super::{DaemonConnection, Refusal, failed, refuse};
use crate::cmd::rsync_daemon::config_file::variable;
use crate::cmd::rsync_daemon::hooks::{self, HookVars, PreXfer};
use crate::cmd::rsync_daemon::name_converter::PendingConverter;
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::ids;
use crate::report::event::errno_words;
use std::sync::atomic::Ordering;

/// Processes that wait for the request of the client.
#[derive(Default)]
pub(super) struct PendingHooks {
    /// Runs `pre-xfer exec`.
    pub(super) pre_xfer: Option<PreXfer>,
    /// Starts `name converter`.
    pub(super) name_converter: Option<PendingConverter>,
}

/// Returns the variables about a request for programs. `paths`: in the module. `request`: as the client wrote them.
pub(super) fn request_vars(words: &Arguments, paths: &[Vec<u8>], request: &[u8]) -> HookVars {
    let dot = b".".to_vec();
    // The module itself is a dot, as in rsync.
    let paths = words.paths.iter().zip(paths);
    let paths = paths.map(|(given, path)| {
        if path == b"./" && !given.ends_with(b"./") {
            &dot
        } else {
            path
        }
    });
    let all = std::iter::once(&b"rsyncd"[..]).chain(
        words
            .options
            .iter()
            .chain([&dot])
            .chain(paths)
            .map(Vec::as_slice),
    );
    let args = all
        .enumerate()
        .map(|(index, word)| (format!("RSYNC_ARG{index}"), word.to_vec()));
    args.chain([("RSYNC_REQUEST".into(), request.to_vec())])
        .collect()
}

impl DaemonConnection<'_> {
    /// Runs `early exec`, and starts the processes for the other programs.
    pub(super) fn start_hooks(
        &mut self,
        values: &Values,
        early_input: &[u8],
    ) -> Result<PendingHooks, Refusal> {
        let raw = |param: Param| {
            if self.env.var("RSYNC_NO_XFER_EXEC").is_some() {
                return None;
            }
            values.raw(param)
        };
        let early = raw(Param::EarlyExec);
        let pre = raw(Param::PreXferExec);
        let post = raw(Param::PostXferExec);
        let vars = self.hook_vars.clone();
        let command = |text: &[u8], vars: &HookVars| {
            hooks::command(text, vars, &|name| variable(self.env, name))
        };
        if let Some(text) = post {
            let started = command(&text, &vars).and_then(|command| {
                hooks::before_post_xfer(self.env, &command, &vars)
                    .map_err(|error| errno_words(&error))
            });
            if let Err(why) = started {
                self.log.put(&why);
                return refuse("post-xfer exec failed");
            }
        }
        if let Some(text) = early {
            let ran = command(&text, &vars).and_then(|command| {
                let vars = [&vars[..], &[("RSYNC_REQUEST".into(), b"(NONE)".to_vec())]].concat();
                hooks::run(self.env, &command, &vars, early_input, false)
                    .map_err(|error| errno_words(&error))
            });
            let why = match ran {
                Ok((0, _)) => None,
                Ok((status, _)) => {
                    Some(format!("early exec returned failure ({status})").into_bytes())
                }
                Err(why) => Some(why),
            };
            if let Some(why) = why {
                self.log.put(&why);
                return refuse("early exec failed");
            }
        }
        let mut pending = PendingHooks::default();
        if let Some(text) = values.raw(Param::NameConverter) {
            let started = command(&text, &vars).and_then(|command| {
                PendingConverter::start(self.env, &vars, &command)
                    .map_err(|error| errno_words(&error))
            });
            match started {
                Ok(converter) => pending.name_converter = Some(converter),
                Err(why) => {
                    self.log.put(&why);
                    return refuse("name-converter exec failed");
                }
            }
        }
        if let Some(text) = pre {
            let started = command(&text, &vars).and_then(|command| {
                PreXfer::start(self.env, &vars, &command)
                    .map_err(|error| failed("pre-xfer exec", &text, &error))
            });
            match started {
                Ok(started) => pending.pre_xfer = Some(started),
                Err(why) => {
                    self.log.put(&why);
                    return refuse("pre-xfer exec failed");
                }
            }
        }
        Ok(pending)
    }

    /// Starts `name converter`. If it fails, the session is stopped.
    pub(super) fn begin_conversion(
        &self,
        pending: PendingConverter,
        vars: &HookVars,
    ) -> Result<(), Error> {
        let converter = pending.begin(vars).map_err(|error| {
            self.log.put(&errno_words(&error));
            Error::new(Exit::Unsupported, "rsync: name-converter exec failed")
        })?;
        let log = self.log.clone();
        let stop = self.env.stop.clone();
        ids::convert_names_by(Box::new(move |query| {
            converter.convert(query).unwrap_or_else(|_| {
                if !stop.swap(true, Ordering::Relaxed) {
                    log.put(b"Connection to name-converter failed.");
                }
                None
            })
        }));
        Ok(())
    }

    /// Runs `pre-xfer exec`. Returns the error if it fails.
    pub(super) fn run_pre_xfer(&self, pre_xfer: PreXfer, vars: &HookVars) -> Option<Error> {
        let words = match pre_xfer.run(vars) {
            Ok((0, _)) => return None,
            Ok((status, output)) => {
                let end = if output.is_empty() {
                    Vec::new()
                } else {
                    [b"\n", output.trim_ascii_end()].concat()
                };
                [
                    format!(
                        "pre-xfer exec returned failure ({status}){}",
                        if end.is_empty() { "" } else { ":" }
                    )
                    .as_bytes(),
                    &end,
                ]
                .concat()
            }
            Err(error) => [b"pre-xfer exec failed: ".as_slice(), &errno_words(&error)].concat(),
        };
        Some(Error::new(Exit::Unsupported, words))
    }
}
