//! What carries a session with another machine, and how it ends.

use crate::cmd::copy::via_ephemeral::EphemeralServer;
use crate::cmd::copy::via_server::Redial;
use crate::exit::Exit;
use crate::transport::shell::{Shell, ShellExit};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The transport of a session, with what must be done when it ends.
pub(super) enum SessionTransport {
    /// A remote shell. The caller waits for it to exit.
    Shell(Shell),
    /// A single-use server that a remote shell started for this run.
    EphemeralServer(Box<EphemeralServer>),
    /// A network link, which ends by itself, and the means to connect again.
    Net(Box<Redial>),
    /// A connection to a daemon, which ends by itself.
    Daemon,
    /// Nothing: a batch file is the source.
    Batch,
}

/// What is left of a transport after a session.
pub(super) struct TransportEnd {
    /// The exit code of a session whose stream ended early.
    pub(super) exit: Exit,
    /// The exit code in place of that of a complete session.
    pub(super) instead: Option<Exit>,
    /// The remote shell did not exit in time.
    pub(super) is_given_up: bool,
    /// The hint for a session whose stream ended early.
    pub(super) hint: Option<String>,
}

impl SessionTransport {
    /// Returns the remote shell that runs during the session, if there is one.
    pub(super) fn shell(&self) -> Option<&Shell> {
        match self {
            SessionTransport::Shell(shell) => Some(shell),
            SessionTransport::EphemeralServer(ephemeral) => Some(ephemeral.shell()),
            SessionTransport::Net(_) | SessionTransport::Daemon | SessionTransport::Batch => None,
        }
    }

    /// Ends the transport after a session. Waits for a remote shell to exit, at most for this time.
    pub(super) fn end(self, limit: Duration, stop: &AtomicBool) -> TransportEnd {
        let end = TransportEnd {
            exit: Exit::Stream,
            instead: None,
            is_given_up: false,
            hint: None,
        };
        match self {
            SessionTransport::Shell(mut shell) => {
                let left = shell.wait(Some(limit), stop).unwrap_or(ShellExit::GivenUp);
                let is_given_up = left == ShellExit::GivenUp;
                TransportEnd {
                    exit: left.exit(),
                    instead: left.instead(),
                    is_given_up,
                    ..end
                }
            }
            SessionTransport::EphemeralServer(ephemeral) => {
                let hint = ephemeral.hint();
                ephemeral.leave(stop);
                TransportEnd {
                    hint: Some(hint),
                    ..end
                }
            }
            SessionTransport::Net(_) | SessionTransport::Daemon | SessionTransport::Batch => end,
        }
    }
}

/// How long the remote shell may take to exit after the session has ended well.
pub(super) const LEAVING_MAX: Duration = Duration::from_secs(30);
