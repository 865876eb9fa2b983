//! Reaches the program at the other end, by the planned route.

use super::client_end::Paths;
use super::session_transport::SessionTransport;
use crate::cmd::copy::remote_copy::RemoteCopy;
use crate::cmd::copy::route::{RoutePlan, RouteRequest};
use crate::cmd::copy::via_server::{ServerOrShell, ServerRoute};
use crate::cmd::copy::via_shell::{ByShell, HeldOutput, RemoteProgram};
use crate::cmd::copy::{Prepared, route, via_child, via_ephemeral, via_server};
use crate::cmd::{copy, input_files};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::client::{FirstWords, NativeClient};
use crate::native::early_scan::EarlyScan;
use crate::options::{FilesFrom, TransportChoice};
use crate::proto::message::ASKS_FIRST;
use crate::transport::Link;
use crate::trust::files::List as _;
use crate::trust::paths::Places;
use crate::trust::peers::{Peer, Peers};
use crate::trust::timestamp::Timestamp;
use crate::work::clock;
use std::io::Write as _;

/// The program that was reached, and how.
pub(super) struct Reached {
    pub(super) transport: SessionTransport,
    pub(super) link: Link,
    pub(super) program: ReachedProgram,
}

/// The program at the other end.
pub(super) enum ReachedProgram {
    /// A sparsync, with the first words that were already sent to it.
    Native(Option<Box<FirstWords>>),
    /// A stock rsync, with which this program runs the session. A daemon has agreed on the protocol version.
    Rsync(Option<u8>),
}

impl From<RemoteProgram> for Reached {
    fn from(found: RemoteProgram) -> Reached {
        let (shell, link, program) = match found {
            RemoteProgram::Native(shell, link) => (shell, link, ReachedProgram::Native(None)),
            RemoteProgram::Rsync(shell, link) => (shell, link, ReachedProgram::Rsync(None)),
        };
        Reached {
            transport: SessionTransport::Shell(shell),
            link,
            program,
        }
    }
}

impl RemoteCopy {
    /// Connects to the other machine by the planned route. Files that are read on the way are left in `prepared`.
    pub(super) fn reach(
        &self,
        env: &mut Env,
        prepared: &mut Option<Prepared>,
        early: Option<&EarlyScan<'_>>,
    ) -> Result<Reached> {
        copy::handle_signals(env).map_err(|error| error.by(self.role()))?;
        if self.far.is_child {
            *prepared = Some(copy::prepare(
                env,
                &self.options,
                self.far.operand.server_sends,
            )?);
            return via_child::start(self, env).map(Reached::from);
        }
        let places = Places::from_env(env);
        let host = route::named(&self.far.operand);
        let connect = &self.options.connect;
        let peers = match places.as_ref().map_err(Error::clone).and_then(Peers::load) {
            Ok(peers) => peers,
            // A user without a home directory (under sudo, for example) has no enrolled hosts.
            Err(error)
                if error.exit == Exit::FileIo
                    && !route::requires_key(&self.far.operand, connect) =>
            {
                let why = String::from_utf8_lossy(&error.message).into_owned();
                let why = why.strip_prefix("sparsync: ").unwrap_or(&why);
                if connect.transport != TransportChoice::Quic {
                    self.print_route(env, &format!("a remote shell: {why}"));
                } else if !self.options.output.quiet {
                    // A lost notice does not affect the copy.
                    let _ = writeln!(env.stderr, "sparsync: {host} counts as not enrolled: {why}");
                }
                Peers::default()
            }
            Err(error) => return Err(error),
        };
        let now = Timestamp(clock::now_unix().0);
        let umask = env.umask;
        let proxied =
            || via_server::ssh_facts(&self.options.connect.shell, &host, umask).is_proxied;
        let request = RouteRequest::new(&self.far, &self.options, self.far_paths());
        match route::plan(request, &peers, now, &proxied)? {
            RoutePlan::Shell(why) => {
                if let Some(why) = why {
                    self.print_route(env, &format!("a remote shell: {why}"));
                }
                self.connect_by_shell(env, peers.find(&host))
            }
            RoutePlan::ShellAfterTrouble(peer) => {
                let hint = format!(
                    "if `sparsync server status {}` finds it running, the next run tries it again",
                    peer.ssh
                );
                self.print_fallback(env, &peer, &route::earlier_trouble(&peer), &hint);
                self.connect_by_shell(env, Some(&peer))
            }
            RoutePlan::Server {
                peer,
                transports,
                or_shell,
            } => {
                let asks_first = if or_shell { ASKS_FIRST } else { 0 };
                let first = self.first_words(env, prepared, early, Paths::InSetup, asks_first);
                let server = ServerRoute {
                    peer: &peer,
                    transports,
                    or_shell,
                };
                Ok(
                    match via_server::reach(self, env, &places?, &server, &first)? {
                        ServerOrShell::Server(redial, link) => {
                            let program = ReachedProgram::Native(Some(Box::new(first)));
                            Reached {
                                transport: SessionTransport::Net(redial),
                                link,
                                program,
                            }
                        }
                        ServerOrShell::Shell(found) => found.into(),
                    },
                )
            }
            RoutePlan::EphemeralServer => {
                let first = self.first_words(env, prepared, early, self.paths_by_shell(), 0);
                let (ephemeral, link) = via_ephemeral::reach(self, env, &first)?;
                let transport = SessionTransport::EphemeralServer(Box::new(ephemeral));
                Ok(Reached {
                    transport,
                    link,
                    program: ReachedProgram::Native(Some(Box::new(first))),
                })
            }
        }
    }

    pub(super) fn connect_by_shell(&self, env: &mut Env, known: Option<&Peer>) -> Result<Reached> {
        let mut held = HeldOutput::default();
        let found = ByShell::new(self, env, known).connect(false, &mut held);
        held.print(env);
        found.map(Reached::from)
    }

    /// Reaches the host through a remote shell because its server grants less than this run requests. ssh has its own
    /// authorization.
    pub(super) fn fall_back_to_shell(
        &self,
        env: &mut Env,
        why: &Error,
        peer: &Peer,
    ) -> Result<Reached> {
        let words = why
            .message
            .strip_prefix(b"sparsync: ")
            .unwrap_or(&why.message);
        self.print_denied(env, &String::from_utf8_lossy(words));
        self.connect_by_shell(env, Some(peer))
            .map_err(|error| match error.exit {
                Exit::Signal => error,
                _ => Error {
                    message: [&why.message, &b"\n"[..], &error.message].concat(),
                    ..error
                },
            })
    }

    /// Builds the words that the client sends before the server has answered.
    pub(super) fn first_words(
        &self,
        env: &Env,
        prepared: &mut Option<Prepared>,
        early: Option<&EarlyScan<'_>>,
        paths: Paths,
        features: u64,
    ) -> FirstWords {
        let select = &self.options.select;
        // Input that can be read only once (standard input, a fifo) stays unread, as it is read again after an error.
        let may_read = matches!(select.files_from, None | Some(FilesFrom::Far(_)))
            && !input_files::name_files(&self.options);
        // Errors are reported when the files are read again for the session.
        *prepared = may_read
            .then(|| copy::prepare(env, &self.options, self.far.operand.server_sends))
            .and_then(Result::ok);
        let mut support = self.support();
        support.features |= features;
        let Some(prepared) = prepared else {
            // Without the rules there can be no prefetch, so only the greeting goes out early.
            return FirstWords::greeting(&support, &self.options, self.key, early);
        };
        NativeClient {
            support,
            ..self.client_of(env, prepared, paths)
        }
        .first_words(early)
    }
}
