//! Runs the session with the program that was reached, to its end.

use super::open::{OpenedLink, OpenedSession, narrowed};
use super::reach::{Reached, ReachedProgram};
use super::session_transport::{LEAVING_MAX, SessionTransport, TransportEnd};
use crate::cmd::command_end::fail;
use crate::cmd::copy::failed_list::FarSide;
use crate::cmd::copy::live_display::{LiveDisplay, LiveRoute};
use crate::cmd::copy::reconnect::{Attempts, RunOutcome};
use crate::cmd::copy::remote_copy::RemoteCopy;
use crate::cmd::copy::{
    self, OpenedLog, Prepared, failed_list, progress_request, reconnect, route,
};
use crate::cmd::input_files::InputFiles;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::client::NativeClient;
use crate::native::early_scan::EarlyScan;
use crate::options::{PlanUse, StderrMode, Verify};
use crate::report::event::{Event, Wants};
use crate::report::failed_paths::FailedPaths;
use crate::report::gauge::Gauge;
use crate::report::{Tally, TextReporter};
use crate::rsync::{self, RsyncClient, daemon};
use crate::transport::link::FAREWELL;
use crate::work::clock::Since;
use std::sync::Arc;

/// What is the same for each session of a run: what was read before, and who watches it.
struct RunParts<'a> {
    rules: &'a InputFiles,
    listed: &'a Option<Vec<Vec<u8>>>,
    wants: Wants,
    gauge: Option<&'a Arc<Gauge>>,
    display: Option<&'a LiveDisplay>,
}

/// What a user can do about a daemon that speaks rsync's protocol for a module. docs/DIFFERENCES.md has the same list.
const FOR_NATIVE_MODULES: &str = "use a module of a sparsync daemon that permits this copy and each -v, and that has no \
    `exclude` or other rules, `charset`, `fake super`, `ignore nonreadable`, `incoming chmod`, `name converter`, \
    `outgoing chmod`, `refuse options` or `transfer logging`";

/// A peer that speaks rsync's protocol: what it is, and what its user can do about it.
struct OtherEnd {
    what: String,
    hint: String,
}

fn is_protocol_error(error: &Error) -> bool {
    let words = b"protocol error: ";
    error.message.windows(words.len()).any(|at| at == words)
}

/// Lets the display print what the remote shell reports, or that would end up among the lines of the display.
fn keep_above_display(transport: &SessionTransport, display: Option<&LiveDisplay>) {
    if let (Some(shell), Some(display)) = (transport.shell(), display) {
        shell.pass_stderr_to(display.stderr());
    }
}

impl RemoteCopy {
    /// Returns the first option of which an rsync at the other end would have to do a part.
    fn needs_sparsync(&self) -> Option<&'static str> {
        let pulls = self.far.operand.server_sends;
        if self.options.delta.detect_renamed.is_some() && !pulls {
            return Some("--detect-renamed");
        }
        let alternates = self.options.delta.alt_dest.as_ref();
        if !pulls && alternates.is_some_and(|alt| alt.by_clone) {
            return Some("--clone-dest");
        }
        match self.options.place.verify {
            Some(Verify::Written) if !pulls => Some("--verify"),
            Some(Verify::WrittenAndSource) => Some("--verify=source"),
            Some(Verify::Written) | None => None,
        }
    }

    /// Runs the session, repeats it after a lost connection if that is safe, and waits for the remote side to exit.
    pub(super) fn converse(
        &self,
        env: &mut Env,
        begun: OpenedSession,
        early: Option<EarlyScan<'_>>,
        since: Since,
    ) -> Exit {
        if !self.far.is_child
            && let Err(error) = copy::copy_as(&self.options, self.role())
        {
            return fail(env, &error);
        }
        let OpenedSession {
            mut transport,
            prepared: Prepared { rules, listed, log },
            opened,
        } = begun;
        if let Some(written) = &self.written
            && let Err(error) = written.put_script(env, &self.options, self.dest.as_deref(), &rules)
        {
            return fail(env, &error);
        }
        let is_rsync = matches!(opened, OpenedLink::Rsync(..));
        let has_digests = !is_rsync && !matches!(opened, OpenedLink::Batch(_));
        if let Err(error) = self.check_abilities_of_peer(is_rsync) {
            return fail(env, &error);
        }

        let route = self.live_route(&transport, is_rsync);
        let sends = !self.far.operand.server_sends;
        let display = LiveDisplay::start(env, &self.options, route, sends);
        keep_above_display(&transport, display.as_ref());
        let has_log = log.as_ref().is_ok_and(Option::is_some);
        let wants = self.wants(env, has_log);
        let gauge = progress_request::gauge(env, &self.options, display.as_ref(), wants);
        let gauge = gauge.as_ref();
        let mut reporter = self.reporter(env, log, &transport, &opened);
        rules.report_too_long(&mut reporter);
        reporter.set_gauge(gauge);
        let keeps_digests = self.options.checksum_cache.is_some();
        if keeps_digests && self.options.compares_contents() && !has_digests {
            let cause = self.rsync_at_other_end().what;
            reporter.report(&copy::unused_checksum_cache(&cause));
        }
        let wants = reporter.wants();
        let parts = RunParts {
            rules: &rules,
            listed: &listed,
            wants,
            gauge,
            display: display.as_ref(),
        };

        let mut tally = Tally::default();
        let made = Since::now();
        let mut near = self.near(env, &rules, &listed, wants, self.paths_by(&transport));
        let forbids = reconnect::forbids_repeat(&near.client);
        let is_net = matches!(transport, SessionTransport::Net(_));
        near.client.repeats = is_net && forbids.is_none();
        near.client.is_net = is_net;
        near.client.gauge = gauge;
        let first = self.play(&near, opened, early, &mut reporter, &mut tally);
        let outcome = if let SessionTransport::Net(redial) = &mut transport {
            let attempts = Attempts {
                side: self,
                env,
                near: &near,
                forbids,
                display: display.as_ref(),
            };
            attempts.go_on(redial, (first, made), &mut reporter, &mut tally)
        } else {
            RunOutcome::Ended(first)
        };
        drop(near);
        let ended = match outcome {
            RunOutcome::Ended(ended) => ended,
            RunOutcome::NoServer(error) => {
                match self.go_on_by_shell(env, &transport, &parts, &mut reporter, &mut tally) {
                    Some((shell, ended)) => {
                        transport = shell;
                        ended
                    }
                    None => Err(error),
                }
            }
        };
        if matches!(transport, SessionTransport::Daemon) {
            // There is no exit code of the other end, which could outweigh failures at this one.
            tally.failed_at_peer += std::mem::take(&mut tally.failed);
        }

        let ended = ended.map_err(|error| self.with_hint_about_plans(error));
        let ended = self.end(env, transport, is_rsync, ended);
        copy::close(
            env,
            reporter,
            display.as_ref(),
            &tally,
            since,
            ended,
            self.role(),
        )
    }

    /// Returns the reporter of the run, which has said what comes before a session.
    fn reporter(
        &self,
        env: &mut Env,
        log: OpenedLog,
        transport: &SessionTransport,
        opened: &OpenedLink,
    ) -> TextReporter {
        let sent = if self.far.operand.server_sends {
            None
        } else {
            Some(&self.sources[..])
        };
        let mut reporter = copy::reporter(env, &self.options, log, self.lists_only(), sent);
        if self.options.output.failed_list.is_some() {
            let mut paths = self.failed_paths(env);
            // Such an rsync writes them to its standard error, which the shell passes on.
            paths.lacks_peer = matches!(opened, OpenedLink::Rsync(..))
                && matches!(transport, SessionTransport::Shell(_))
                && self.far.operand.daemon.is_none()
                && self.options.output.stderr != StderrMode::Client;
            reporter.collect_failed_paths(paths);
        }
        if !matches!(opened, OpenedLink::Rsync(_, Some(_)))
            && let Some(line) = rsync::charset_line(&self.options, self.role())
        {
            reporter.report(&Event::Note(line));
        }
        reporter
    }

    /// Goes on over ssh after the server was stopped or is gone. Returns the new transport, and how the session on it
    /// ended; `None` if no sparsync is reached. An rsync would start the run over and print everything a second time.
    fn go_on_by_shell(
        &self,
        env: &mut Env,
        lost: &SessionTransport,
        parts: &RunParts<'_>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Option<(SessionTransport, Result<()>)> {
        let SessionTransport::Net(redial) = lost else {
            return None;
        };
        // ssh may ask for a password.
        if let Some(display) = parts.display {
            display.pause();
        }
        let reached = self.connect_by_shell(env, Some(&redial.peer));
        if let Some(display) = parts.display {
            display.resume();
        }
        let Reached {
            transport: shell,
            link,
            program: ReachedProgram::Native(_),
        } = reached.ok()?
        else {
            return None;
        };
        let why = "a remote shell: its server was stopped or is gone";
        *self.route.lock() = Some(why.to_owned());
        if let Some(display) = parts.display {
            display.set_route(self.live_route(&shell, false));
        }
        keep_above_display(&shell, parts.display);

        let earlier =
            reconnect::problems_so_far(reporter.problems(), self.far.operand.server_sends);
        let paths = self.paths_by(&shell);
        let mut near = self.near(env, parts.rules, parts.listed, parts.wants, paths);
        near.client.gauge = parts.gauge;
        *tally = Tally::default();
        reporter.begin_again();
        let ended = near.run(link, None, None, reporter, tally);
        tally.merge(&earlier);
        Some((shell, ended))
    }

    /// Fails if this run needs more of its peer than it can do. Nothing was changed yet.
    fn check_abilities_of_peer(&self, is_rsync: bool) -> Result<()> {
        if is_rsync && let Some(option) = self.needs_sparsync() {
            let OtherEnd { what, hint } = self.rsync_at_other_end();
            let words = format!("sparsync: {option} is not possible: {what}");
            let hint = format!("copy without the option, or {hint}");
            return Err(Error::new(Exit::Unsupported, words).with_hint(hint));
        }
        match self.plan_error(is_rsync) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Returns the command of this run, if it is `plan`, `apply` or `explain`.
    fn plan_verb(&self) -> Option<&'static str> {
        match self.options.plan_use {
            PlanUse::Free if !self.options.explained.is_empty() => Some("explain"),
            PlanUse::Free => None,
            PlanUse::Record => Some("plan"),
            PlanUse::Replay => Some("apply"),
        }
    }

    /// Adds advice to an error of a run of `plan`, `apply` or `explain`. Versions before these commands reject their requests
    /// as errors of the protocol.
    fn with_hint_about_plans(&self, error: Error) -> Error {
        match self.plan_verb() {
            Some(verb) if error.hint.is_none() && is_protocol_error(&error) => {
                let hint = format!(
                    "if the sparsync at the other end is older and has no `{verb}`, update it"
                );
                error.with_hint(hint)
            }
            Some(_) | None => error,
        }
    }

    /// Returns the error of a run of `plan`, `apply` or `explain`, if its peer cannot take part in that.
    fn plan_error(&self, is_rsync: bool) -> Option<Error> {
        let verb = self.plan_verb()?;
        if is_rsync {
            let OtherEnd { what, hint } = self.rsync_at_other_end();
            let words = format!("sparsync {verb}: {what}: nothing was changed");
            return Some(Error::new(Exit::Unsupported, words).with_hint(hint));
        }
        None
    }

    /// Describes a peer that speaks rsync's protocol, by the reason for it.
    fn rsync_at_other_end(&self) -> OtherEnd {
        // With such an option, a sparsync does so as well.
        if let Some(option) = self.options.requires_rsync() {
            return OtherEnd {
                what: format!("{option} requires rsync's protocol"),
                hint: format!("copy without {option}"),
            };
        }
        // A sparsync that is a daemon speaks rsync's protocol, too, if it refuses the copy.
        if self.far.operand.daemon.is_some() {
            OtherEnd {
                what: "the daemon speaks rsync's protocol for this module".to_owned(),
                hint: FOR_NATIVE_MODULES.to_owned(),
            }
        } else {
            OtherEnd {
                what: "the other end is an rsync".to_owned(),
                hint: "install sparsync there".to_owned(),
            }
        }
    }

    /// Returns an empty list of the paths that this run could not transfer.
    fn failed_paths(&self, env: &Env) -> FailedPaths {
        let server_sends = self.far.operand.server_sends;
        let far_side = if self.far.is_child {
            FarSide::Neither
        } else if server_sends {
            FarSide::Source
        } else {
            FarSide::Dest
        };
        let is_module = self.far.operand.daemon.is_some();
        // Messages of a daemon name paths in the module.
        let in_module = |path: &[u8]| {
            let module = daemon::split_path(path).0;
            [b"/", &daemon::path_in_module(path, module)[..]].concat()
        };
        let mut sources = self.sources.clone();
        let mut dest = self.dest.clone();
        if is_module && server_sends {
            sources = sources.iter().map(|path| in_module(path)).collect();
        } else if is_module {
            dest = dest.map(|path| in_module(&path));
        }
        failed_list::paths(env, &self.options, far_side, &sources, dest.as_deref())
    }

    /// Runs the session for the first time.
    fn play(
        &self,
        near: &NativeClient<'_>,
        opened: OpenedLink,
        early: Option<EarlyScan<'_>>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<()> {
        let recorder = self
            .written
            .as_ref()
            .map(|written| written.recorder.clone());
        let rsync = RsyncClient {
            client: &near.client,
            recorder,
        };
        match opened {
            OpenedLink::Native(Ok(opened)) => near.play(*opened, early, reporter, tally),
            OpenedLink::Native(Err(refusal)) => Err(refusal.print_details(reporter)),
            OpenedLink::Rsync(link, agreed) => rsync.run(
                narrowed(link),
                agreed,
                &self.far.server_words,
                // The protocol has no digests for which a destination is scanned.
                early.and_then(EarlyScan::into_source),
                reporter,
                tally,
            ),
            OpenedLink::Batch(batch) => {
                let (file, header) = *batch;
                rsync.read_batch(file, &header, reporter, tally)
            }
        }
    }

    /// Ends the transport after a session. Returns the error of the run, or the exit code in place of that of a complete
    /// session.
    fn end(
        &self,
        env: &Env,
        transport: SessionTransport,
        is_rsync: bool,
        mut ended: Result<()>,
    ) -> Result<Option<Exit>> {
        let is_net = matches!(transport, SessionTransport::Net(_));
        // After a complete session the remote side has nothing left to do. After a broken one it may not have noticed
        // yet.
        let limit = if ended.is_ok() { LEAVING_MAX } else { FAREWELL };
        let TransportEnd {
            exit,
            mut instead,
            is_given_up,
            hint,
        } = transport.end(limit, &env.stop);
        // The exit code of a stock rsync is its only report about files that it could not write.
        if is_rsync && !self.far.operand.server_sends && is_given_up {
            instead = Some(Exit::Partial);
        }
        if let Err(error) = &mut ended
            && (error.exit == Exit::Stream || is_net && reconnect::is_broken(error))
        {
            // A signal from the terminal reaches the remote shell too, and that may exit first.
            *error = if env.is_stopping() {
                Error::new(Exit::Signal, "").by(error.role)
            } else {
                Error {
                    exit,
                    hint: hint.or(error.hint.take()),
                    ..error.clone()
                }
            };
        }
        ended.map(|()| instead)
    }

    /// Returns the route for the live display, with the reason for it.
    fn live_route(&self, transport: &SessionTransport, is_rsync: bool) -> LiveRoute {
        let chosen = self.route.lock().clone();
        let reached = match transport {
            SessionTransport::Daemon if is_rsync => "an rsync daemon".to_owned(),
            SessionTransport::Daemon => "a daemon".to_owned(),
            SessionTransport::Batch => return LiveRoute::local(),
            SessionTransport::Shell(_) if self.far.is_child => return LiveRoute::local(),
            SessionTransport::Shell(_) if self.far.operand.daemon.is_some() => {
                "a daemon started by a remote shell".to_owned()
            }
            SessionTransport::Shell(_) => {
                chosen.unwrap_or_else(|| "a remote shell: the host is not enrolled".to_owned())
            }
            SessionTransport::Net(redial) => return redial.live_route(self),
            SessionTransport::EphemeralServer(_) => chosen.unwrap_or_default(),
        };
        let host = route::named(&self.far.operand);
        let stock = if is_rsync { ", stock rsync" } else { "" };
        LiveRoute {
            text: format!("{host}{stock}, by {reached}"),
            peer: Some(host.clone()),
            upgrade: None,
        }
    }
}
