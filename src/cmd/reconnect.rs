//! What a run over the network does when its connection breaks: it connects again and repeats the run, if that is safe.
//!
//! The second attempt plans the run anew and copies what is missing. Whether it may be made is decided in
//! [`crate::options::repeat`]; before it begins, the server ends the session of the first one. A server that was told to stop
//! says so; then the run is repeated over ssh, where any way will do.

use super::by_server::Redial;
use super::remote::Side;
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Side as FilterSide;
use crate::options::repeat;
use crate::report::{Tally, TextReporter};
use crate::role::session::Near;
use crate::transport::net::Kind;
use crate::work::clock::Since;
use std::time::Duration;

/// How often in a row a connection may be lost soon after it was made: a server that always breaks off is no outage.
const LOSSES_MAX: u32 = 3;
/// How long a connection must have lasted not to count as one of these.
const LASTED: Duration = Duration::from_secs(10);

/// Why a run must not be repeated by itself; `None`: it may.
pub fn forbids_repeat(near: &Near<'_>) -> Option<&'static str> {
    // Options that only the far end knows.
    let remote = (!near.setup.remote_words.is_empty()).then_some("--remote-option");
    let reads_rules = near.rules.chain(FilterSide::Receiver, b"").has_per_dir();
    remote.or_else(|| repeat::forbids_repeat(near.options, reads_rules))
}

/// Whether a session over the network ended because its connection was lost, or its process by a signal that was not ours.
fn is_loss(error: &Error) -> bool {
    matches!(error.exit, Exit::Stream | Exit::Signal)
}

/// Whether a session over the network ended because the server was told to stop.
fn is_stop(error: &Error) -> bool {
    error.exit == Exit::Terminated
}

/// Whether a session over the network broke off, for whatever reason.
pub fn is_broken(error: &Error) -> bool {
    is_loss(error) || is_stop(error)
}

/// The problems reported so far, as the exit code of the run counts them: the last attempt may not meet them again.
/// `server_sends`: the failures are those of the client, which receives.
pub fn problems_so_far(reported: &Tally, server_sends: bool) -> Tally {
    let mut problems = reported.clone();
    if !server_sends {
        problems.failed_there = std::mem::take(&mut problems.failed);
    }
    problems
}

/// How the attempts of a run over the network ended.
pub enum Outcome {
    /// Whatever way the last one did.
    Ended(Result<(), Error>),
    /// The server was stopped, and the run may be repeated over ssh.
    Stopped(Error),
}

/// A run over the network that may be repeated.
pub struct Attempts<'a> {
    /// The run.
    pub side: &'a Side,
    /// The process.
    pub env: &'a Env,
    /// This end of the session.
    pub near: &'a Near<'a>,
    /// Why it must not be repeated: [`forbids_repeat`].
    pub forbids: Option<&'static str>,
}

impl Attempts<'_> {
    /// Repeats the run as long as its connection is lost and it may be repeated. `ended`: how the first attempt ended, and
    /// when it began. What the lost attempts had trouble with counts for the exit code, as it would have in one run.
    pub fn go_on(
        &self,
        redial: &mut Redial,
        (mut ended, mut made): (Result<(), Error>, Since),
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Outcome {
        let mut losses = 0;
        let name = redial.peer().name.clone();
        while let Err(error) = &mut ended {
            if !is_broken(error) || self.env.is_stopping() {
                break;
            }
            if is_stop(error) {
                let stopped = format!("sparsync: the server of {name} was stopped");
                if self.forbids.is_none() && redial.or_shell() {
                    reporter.error(format!("{stopped}; continuing over ssh").as_bytes());
                    return Outcome::Stopped(error.clone());
                }
                *error = Error::new(Exit::Terminated, stopped).by(error.role).with_hint(self.hint());
                break;
            }
            losses = if made.elapsed() >= LASTED { 1 } else { losses + 1 };
            if self.forbids.is_some() || losses > LOSSES_MAX {
                error.hint = Some(self.hint());
                break;
            }
            reporter.error(format!("sparsync: lost the connection to {name}; reconnecting").as_bytes());
            reporter.flush();
            self.env.go_on();
            let first = self.near.first_words(None);
            match redial.link(self.side, self.env, &first, &mut |waited| self.report(reporter, &name, waited)) {
                Ok(Some(link)) => {
                    let earlier = problems_so_far(reporter.problems(), self.side.far.server_sends);
                    *tally = Tally::default();
                    made = Since::now();
                    ended = self.near.run(link, (Some(first), None), reporter, tally);
                    tally.merge(&earlier);
                }
                Ok(None) => {
                    error.hint = Some(self.hint());
                    break;
                }
                Err(other_key) => ended = Err(other_key),
            }
        }
        if let Some(bytes) = redial.moved_after().filter(|_| self.side.tells_way()) {
            reporter.error(format!("sparsync: {name}: by {} after {bytes} bytes", Kind::Tls).as_bytes());
        }
        Outcome::Ended(ended)
    }

    /// What a user can do whose run is not repeated.
    fn hint(&self) -> String {
        let why = self.forbids.map(|option| format!("; {option} forbids to do so automatically"));
        format!("run the same command again{}", why.unwrap_or_default())
    }

    /// Tells a user who watches that there is no connection yet.
    fn report(&self, reporter: &mut TextReporter, name: &str, waited: Duration) {
        let output = &self.side.options.output;
        if (output.verbose > 0 || self.env.stdout_is_tty) && !output.quiet {
            let line = format!("sparsync: no connection to {name} for {} s; still trying", waited.as_secs());
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
    fn trouble_of_a_lost_attempt_decides_the_exit_code() {
        for (weight, exit) in [
            (Weight::Failed, Exit::Partial),
            (Weight::SourceError, Exit::Partial),
            (Weight::Vanished, Exit::Vanished),
            (Weight::Warning, Exit::Ok),
        ] {
            let mut reported = Tally::default();
            reported.problem(weight);
            for server_sends in [true, false] {
                assert_eq!(problems_so_far(&reported, server_sends).exit(), exit, "{weight:?}");
            }
            // What failed at the server outweighs what vanished.
            reported.problem(Weight::Vanished);
            let both = problems_so_far(&reported, false).exit();
            assert_eq!(both, if weight == Weight::Warning { Exit::Vanished } else { exit }, "{weight:?}");
        }
    }
}
