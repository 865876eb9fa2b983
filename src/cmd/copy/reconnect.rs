//! Connects again after a lost network connection and repeats the run, if that is safe.
//!
//! The second attempt plans the run anew and copies what is missing. [`crate::options::permits`] decides whether a run
//! may be repeated. Before the second attempt begins, the server ends the session of the first one. A server that is
//! being stopped reports it, and the port of one that is gone refuses connections; the run is then repeated over ssh if
//! the route allows ssh. Only a silent network is awaited for long.

use super::live_display::LiveDisplay;
use super::remote_copy::RemoteCopy;
use super::via_server::Redial;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::Side as FilterSide;
use crate::native::client::NativeClient;
use crate::native::connection::Headway;
use crate::options::permits::Permits;
use crate::report::{Tally, TextReporter};
use crate::session::client::Client;
use crate::session::refusal::Refusal;
use crate::transport::net::{NetTransport, Trouble};
use crate::trust::grants::ENDED;
use crate::trust::peers::Peer;
use crate::work::clock::Since;
use std::time::Duration;

/// How many short connections in a row may be lost: a server that always disconnects is not an outage.
const LOSSES_MAX: u32 = 3;
/// A connection that lasted this long is not a short one.
const LASTED: Duration = Duration::from_secs(10);
/// How many connections in a row may be lost that lasted, but without bringing the run forward. On some paths a session
/// begins and then only short packets arrive.
const IDLE_MAX: u32 = 10;

/// Returns the option that forbids repeating the run; `None` if it may be repeated.
pub fn forbids_repeat(near: &Client<'_>) -> Option<&'static str> {
    // Only the remote side understands these options.
    if !near.setup.remote_words.is_empty() {
        return Some("--remote-option");
    }
    let reads_rules = near.rules.chain(FilterSide::Receiver, b"").has_per_dir();
    Permits::new(near.options, reads_rules).forbids_repeat
}

/// Returns whether a network session ended because its connection was lost, or because a signal that this process did
/// not send ended its server process.
fn is_loss(error: &Error) -> bool {
    matches!(error.exit, Exit::Stream | Exit::Signal)
}

/// Returns whether a network session ended because the server was stopped.
fn is_stop(error: &Error) -> bool {
    error.exit == Exit::Terminated
}

/// Returns whether a network session was cut short, for either reason.
pub fn is_broken(error: &Error) -> bool {
    is_loss(error) || is_stop(error)
}

/// Returns the problems reported so far, which still count for the exit code: the last attempt may not meet them again.
/// `server_sends`: the failures are those of the client, which receives.
pub fn problems_so_far(reported: &Tally, server_sends: bool) -> Tally {
    let mut problems = reported.clone();
    if !server_sends {
        problems.failed_at_peer = std::mem::take(&mut problems.failed);
    }
    problems
}

/// The outcome of all attempts of a network run.
pub enum RunOutcome {
    /// The last attempt ended, with this result.
    Ended(Result<()>),
    /// The server was stopped or is gone, and the run may be repeated over ssh. The error, should that fail.
    NoServer(Error),
}

/// The connections that were lost in a row.
#[derive(Debug, Default)]
struct Losses {
    /// How many short ones there were since the last one that lasted.
    short: u32,
    /// How many there were since the last one that brought the run forward.
    idle: u32,
    /// How far the last one came; `None` before the first one.
    last: Option<Headway>,
}

/// Why a client that may repeat its run does not.
#[derive(Debug, PartialEq, Eq)]
enum GivingUp {
    /// The connections are short.
    Short,
    /// They last, but the run gets no further.
    Idle,
}

impl Losses {
    /// Notes that a connection was lost after this time, which came this far. Returns why the run ends, if it does.
    fn note(&mut self, lasted: Duration, headway: Headway) -> Option<GivingUp> {
        self.short = if lasted >= LASTED { 1 } else { self.short + 1 };
        // What the peer requests changes as soon as something of the run is done.
        let is_further = headway.content_bytes > 0
            || self
                .last
                .is_some_and(|last| last.request_bytes != headway.request_bytes);
        self.idle = if is_further { 0 } else { self.idle + 1 };
        self.last = Some(headway);
        if self.short > LOSSES_MAX {
            Some(GivingUp::Short)
        } else if self.idle >= IDLE_MAX {
            Some(GivingUp::Idle)
        } else {
            None
        }
    }
}

/// A network run that may be repeated. Made by the client when its first attempt has ended, and not changed.
pub struct Attempts<'a> {
    /// The run.
    pub side: &'a RemoteCopy,
    /// The environment of the process.
    pub env: &'a Env,
    /// The client's end of the session.
    pub near: &'a NativeClient<'a>,
    /// The option that forbids repeating the run, from [`forbids_repeat`].
    pub forbids: Option<&'static str>,
    /// The live display, which shows the route.
    pub display: Option<&'a LiveDisplay>,
}

impl Attempts<'_> {
    /// Repeats the run while its connection is lost and it may be repeated. `ended` and `made`: the result of the first
    /// attempt and when it began. Problems of lost attempts count for the exit code, as they would in an uninterrupted
    /// run.
    ///
    /// At the beginning of each turn, an attempt has ended, and `ended` and `tally` are those of that attempt alone.
    /// `tally` starts anew with each attempt, because the next one transfers and counts what is left; only the problems
    /// are carried over. `reporter` goes on through all attempts.
    ///
    /// The order of the questions decides:
    ///
    /// 1. A run that the user has stopped ends, whatever the error says.
    /// 2. A server that was stopped has said so, and does not come back soon. So this is no loss of a connection, and the
    ///    run goes over ssh at once or ends.
    /// 3. Short connections count as losses in a row; one that lasted begins a new row. So do those that did not bring the
    ///    run forward. Otherwise a server that always disconnects, or a path that loses all long packets, would be dialed
    ///    for ever.
    /// 4. Only then the client dials. [`Env::go_on`] comes first: the threads of the lost session have requested the
    ///    process to stop, and the new session would end at once.
    pub fn go_on(
        &self,
        redial: &mut Redial,
        (mut ended, mut made): (Result<()>, Since),
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> RunOutcome {
        let mut losses = Losses::default();
        let mut has_other_key = false;
        let name = redial.peer.name.clone();
        while let Err(error) = &mut ended {
            if !is_broken(error) || self.env.is_stopping() {
                break;
            }
            if is_stop(error) {
                let stopped = format!("sparsync: the server of {name} was stopped");
                if self.forbids.is_none() && redial.or_shell {
                    reporter.error(format!("{stopped}; continuing over ssh").as_bytes());
                    return RunOutcome::NoServer(error.clone());
                }
                *error = Error::new(Exit::Terminated, stopped)
                    .by(error.role)
                    .with_hint(self.hint(redial, error));
                break;
            }
            let headway = *self.near.headway.lock();
            let giving_up = losses.note(made.elapsed(), headway);
            if self.forbids.is_none() && giving_up == Some(GivingUp::Idle) {
                let words = format!(
                    "sparsync: lost {IDLE_MAX} connections to {name} in a row, and nothing was copied over them"
                );
                *error = Error::new(error.exit, words).by(error.role).with_hint(
                    "the path may lose long packets; use another --transport or a smaller MTU",
                );
                break;
            }
            if self.forbids.is_some() || giving_up.is_some() {
                error.hint = Some(self.hint(redial, error));
                break;
            }
            reporter
                .error(format!("sparsync: lost the connection to {name}; reconnecting").as_bytes());
            reporter.flush();
            self.env.go_on();
            let first = self.near.first_words(None);
            match redial.link(self.side, self.env, &first, &mut |waited| {
                self.report(reporter, &name, waited)
            }) {
                Ok(Some(link)) => {
                    if let Some(gauge) = self.near.client.gauge {
                        gauge.reconnect();
                    }
                    if let Some(display) = &self.display {
                        display.set_route(redial.live_route(self.side));
                    }
                    let earlier =
                        problems_so_far(reporter.problems(), self.side.far.operand.server_sends);
                    *tally = Tally::default();
                    reporter.begin_again();
                    made = Since::now();
                    ended = self.near.run(link, Some(first), None, reporter, tally);
                    tally.merge(&earlier);
                }
                Ok(None) if redial.trouble == Some(Trouble::NotAdmitted) => {
                    let words = format!(
                        "sparsync: the server of {name} ended the session: {}",
                        Trouble::NotAdmitted
                    );
                    *error = Error::new(Exit::SocketIo, words)
                        .by(error.role)
                        .with_hint(format!(
                            "run `sparsync enroll {name}`, then the same command again"
                        ));
                    break;
                }
                Ok(None) => {
                    error.hint = Some(self.hint(redial, error));
                    if redial.trouble == Some(Trouble::Refused) {
                        let port = redial.peer.port;
                        let gone = format!(
                            "sparsync: the server of {name} is gone: port {port} refuses connections"
                        );
                        error.message = gone.clone().into_bytes();
                        if redial.or_shell {
                            reporter.error(format!("{gone}; continuing over ssh").as_bytes());
                            return RunOutcome::NoServer(error.clone());
                        }
                    }
                    break;
                }
                Err(other_key) => {
                    has_other_key = true;
                    ended = Err(other_key);
                }
            }
        }
        if let Some(bytes) = redial.moved_after()
            && self.side.prints_route()
        {
            reporter.error(
                format!(
                    "sparsync: {name}: using {} after {bytes} bytes",
                    NetTransport::Tls
                )
                .as_bytes(),
            );
        }
        if has_other_key {
            // Its message has several lines.
            ended = ended.map_err(|error| Refusal::Failed(error).print_details(reporter));
        }
        RunOutcome::Ended(ended)
    }

    /// Returns the advice for a user whose run is not repeated after this error.
    fn hint(&self, redial: &Redial, error: &Error) -> String {
        let Peer { name, ssh, .. } = &redial.peer;
        if redial.trouble == Some(Trouble::Refused) {
            return format!(
                "start the server with `sparsync server start {ssh}`, then run the same command again"
            );
        }
        let why = self
            .forbids
            .map(|option| format!("; {option} prevents an automatic retry"))
            .unwrap_or_default();
        // The server may have closed the connection because of the grant, and no attempt to reconnect has shown how it is.
        let ended = error
            .message
            .windows(ENDED.len())
            .any(|words| words == ENDED.as_bytes());
        let first = if ended {
            format!("; if the grant was revoked, run `sparsync enroll {name}` first")
        } else {
            String::new()
        };
        format!("run the same command again{why}{first}")
    }

    /// Reports that there is no connection yet, on a terminal or under `-v`.
    fn report(&self, reporter: &mut TextReporter, name: &str, waited: Duration) {
        let output = &self.side.options.output;
        if (output.verbose > 0 || self.env.stdout_is_tty) && !output.quiet {
            let line = format!(
                "sparsync: no connection to {name} for {} s; still trying",
                waited.as_secs()
            );
            reporter.error(line.as_bytes());
            reporter.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::event::Weight;

    #[test]
    fn connections_that_bring_nothing_end_the_run() {
        let long = LASTED;
        let headway = |content_bytes, request_bytes| Headway {
            content_bytes,
            request_bytes,
        };

        // Short ones, whether they bring something or not.
        let mut losses = Losses::default();
        for _ in 0..LOSSES_MAX {
            assert_eq!(losses.note(Duration::ZERO, headway(1, 0)), None);
        }
        let giving_up = losses.note(Duration::ZERO, headway(1, 0));
        assert_eq!(giving_up, Some(GivingUp::Short));

        // Long ones that bring something: content, or fewer requests than before.
        let mut losses = Losses::default();
        for at in 0..1000 {
            assert_eq!(losses.note(long, headway(1, 9)), None);
            assert_eq!(losses.note(long, headway(0, 5000 - at)), None);
        }

        // Long ones that bring nothing. One that does begins a new row.
        let mut losses = Losses::default();
        for idle in [IDLE_MAX - 1, IDLE_MAX] {
            assert_eq!(losses.note(long, headway(1, 9)), None);
            for _ in 1..idle {
                assert_eq!(losses.note(long, headway(0, 9)), None);
            }
        }
        assert_eq!(losses.note(long, headway(0, 9)), Some(GivingUp::Idle));
    }

    #[test]
    fn problems_of_a_lost_attempt_determine_the_exit_code() {
        for (weight, exit) in [
            (Weight::Failed, Exit::Partial),
            (Weight::SourceError, Exit::Partial),
            (Weight::Vanished, Exit::Vanished),
            (Weight::Warning, Exit::Ok),
        ] {
            let mut reported = Tally::default();
            reported.problem(weight);
            for server_sends in [true, false] {
                assert_eq!(
                    problems_so_far(&reported, server_sends).exit(),
                    exit,
                    "{weight:?}"
                );
            }
            // Failures at the server outweigh vanished files.
            reported.problem(Weight::Vanished);
            let both = problems_so_far(&reported, false).exit();
            assert_eq!(
                both,
                if weight == Weight::Warning {
                    Exit::Vanished
                } else {
                    exit
                },
                "{weight:?}"
            );
        }
    }
}
