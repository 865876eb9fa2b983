//! A copy between this machine and another one: the client's end.
//!
//! The other machine is reached through a remote shell or a sparsync server ([`route`] decides). If sparsync answers,
//! the two run a native session. If a stock rsync answers, this program runs the session in rsync's protocol.

use super::failed_list::{self, FarSide};
use super::live_display::{self, LiveDisplay, LiveRoute};
use super::reconnect::{self, Attempts, RunOutcome};
use super::remote_copy::RemoteCopy;
use super::route::{self, RoutePlan};
use super::via_daemon::{self, ReachedDaemon};
use super::via_ephemeral::{self, EphemeralServer};
use super::via_server::{self, Redial, ServerOrShell, ServerRoute};
use super::via_shell::{ByShell, HeldOutput, RemoteProgram};
use super::{batch, progress_request, via_child};
use crate::cli;
use crate::cmd::command_end::{self, fail};
use crate::cmd::copy::{self, Prepared};
use crate::cmd::input_files;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{Parsed, Rules};
use crate::fs::{charset, sys};
use crate::options::{
    ArgStyle, Batch, CheckMode, FilesFrom, PlanUse, StderrMode, TransportChoice, Verify,
};
use crate::path::RelPath;
use crate::proto::message::ASKS_FIRST;
use crate::proto::rsync::batch::BatchHeader;
use crate::proto::{ProtocolSupport, Setup};
use crate::report::event::{Event, Wants};
use crate::report::failed_paths::FailedPaths;
use crate::report::{Tally, TextReporter};
use crate::session::dest_prescan::{Guess, guessed_name};
use crate::session::shortcuts::Shortcuts;
use crate::session::source_prefetch::{EARLY_IS_GOOD_FOR, Early, PrefetchParams};
use crate::session::{Client, FirstWords, OpenSession, Refusal, compression_choice};
use crate::stock::batch_player::BatchFile;
use crate::stock::{self, StockClient, daemon};
use crate::transport::link::FAREWELL;
use crate::transport::shell::{Shell, ShellExit};
use crate::transport::{Link, pipe};
use crate::trust::files::List as _;
use crate::trust::paths::Places;
use crate::trust::peers::{Peer, Peers};
use crate::trust::timestamp::Timestamp;
use crate::walk::run_context::{Process, RunContext};
use crate::work::clock::{self, Since};
use parking_lot::Mutex;
use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs a copy between this machine and another one.
pub fn run(env: &mut Env, wanted: cli::Copy) -> Exit {
    let since = Since::now();
    let cli::Copy {
        mut options,
        sources,
        dest,
        far,
        guard: _,
    } = wanted;
    live_display::settle(env, &mut options, dest.is_none());
    copy::settle_checksum_cache(env, &mut options);
    let opened = match options.batch.clone() {
        Some(Batch::Read(name)) => {
            batch::open(env, &name, &mut options).map(|batch| (Some(batch), None))
        }
        Some(Batch::Write { path, only }) => {
            batch::create(env, &path, only, &options).map(|batch| (None, Some(batch)))
        }
        None => Ok((None, None)),
    };
    let (batch, written) = match opened {
        Ok(opened) => opened,
        Err(error) => return fail(env, &error),
    };
    let Some(far) = far else {
        return fail(
            env,
            &Error::new(
                Exit::Crashed,
                "sparsync: internal error: remote copy without a remote host",
            ),
        );
    };
    // The remote shell inherits this limit, and some programs walk through every descriptor that they could have open.
    sys::lift_open_files(OPEN_FILES_BESIDE_SHELL);
    let role = cli::RemoteOperand::role(Some(&far.operand));
    if let Err(error) = copy::set_charset(&options, role) {
        return fail(env, &error);
    }
    if let Some(charset) = charset::of_names()
        && options.connect.args == ArgStyle::Secluded
    {
        charset.convert_lists();
    }
    let mut near = RemoteCopy {
        options,
        sources,
        dest,
        far,
        key: sys::random(),
        route: Mutex::default(),
        written,
    };
    near.name_place(env);
    if let Some(batch) = batch {
        return near.copy_from_batch(env, batch, since);
    }
    if let Some(port) = near.far.operand.daemon {
        if near.far.operand.server_sends {
            // A sender prints the matches. A daemon usually forbids that.
            near.options.output.debug.deltasum = 0;
        }
        return near.copy_with_daemon(env, port, since);
    }
    let Some(rules) = near.prefetch_rules(env) else {
        return near.copy(env, None, since);
    };
    let cwd = env.cwd.clone();
    let stop = env.stop.clone();
    let stop_requested = env.stop_requested.clone();
    let checksum_cache = env.checksum_cache.clone();
    let run_context = RunContext {
        options: &near.options,
        rules: &rules,
        process: Process {
            cwd: &cwd,
            umask: env.umask,
            stop: &stop,
            threads: copy::threads(),
            checksum_cache: Some(&checksum_cache),
            stored: None,
        },
        repeats: false,
        interrupted: &stop_requested,
        gauge: None,
    };
    let key = near.key;
    let ended = match near.guess(env) {
        None if near.far.operand.server_sends => Ok(near.copy(env, None, since)),
        None => {
            let params =
                PrefetchParams::early(run_context, &near.sources, key, near.is_likely_super());
            params.look(|prefetch| near.copy(env, Some(Early::Source(Box::new(prefetch))), since))
        }
        Some((whole, dest)) => {
            let guess = Guess {
                run_context,
                dest,
                whole,
                key,
                good_for: EARLY_IS_GOOD_FOR,
            };
            guess.look(|prescan| near.copy(env, prescan.map(Early::Dest), since))
        }
    };
    ended.unwrap_or_else(|error| fail(env, &error))
}

/// The most files that a run may have open beside a remote shell. Each directory that holds an argument takes one.
const OPEN_FILES_BESIDE_SHELL: u64 = 1 << 16;
/// How long the remote shell may take to exit after the session has ended well.
const LEAVING_MAX: Duration = Duration::from_secs(30);

/// The transport of a session, with what must be done when it ends.
enum SessionTransport {
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
struct TransportEnd {
    /// The exit code of a session whose stream ended early.
    exit: Exit,
    /// The exit code in place of that of a complete session.
    instead: Option<Exit>,
    /// The remote shell did not exit in time.
    is_given_up: bool,
    /// The hint for a session whose stream ended early.
    hint: Option<String>,
}

impl SessionTransport {
    /// Ends the transport after a session. Waits for a remote shell to exit, at most for this time.
    fn end(self, limit: Duration, stop: &AtomicBool) -> TransportEnd {
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

/// How the remote side learns its own paths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paths {
    /// Inside the session, in `Setup`.
    InSetup,
    /// From its command line.
    OnCommandLine,
}

/// Returns the protocol versions and features of this program.
fn support() -> ProtocolSupport {
    ProtocolSupport::ours(compression_choice::features(None))
}

/// Limits the capacity of a link, in tests.
fn narrowed(link: Link) -> Link {
    match sys::narrow_link_bytes() {
        Some(room_bytes) => pipe::narrowed(link, room_bytes),
        None => link,
    }
}

/// The program that was reached, and how.
struct Reached {
    transport: SessionTransport,
    link: Link,
    program: ReachedProgram,
}

/// The program at the other end.
enum ReachedProgram {
    /// A sparsync, with the first words that were already sent to it.
    Native(Option<Box<FirstWords>>),
    /// A stock rsync, with which this program runs the session. A daemon has agreed on the protocol version.
    Stock(Option<u8>),
}

impl From<RemoteProgram> for Reached {
    fn from(found: RemoteProgram) -> Reached {
        let (shell, link, program) = match found {
            RemoteProgram::Native(shell, link) => (shell, link, ReachedProgram::Native(None)),
            RemoteProgram::Stock(shell, link) => (shell, link, ReachedProgram::Stock(None)),
        };
        Reached {
            transport: SessionTransport::Shell(shell),
            link,
            program,
        }
    }
}

/// A session whose handshake is done or was rejected.
struct OpenedSession {
    transport: SessionTransport,
    prepared: Prepared,
    opened: OpenedLink,
}

/// The link of a session.
enum OpenedLink {
    /// To a sparsync: the handshake is done or was rejected.
    Native(std::result::Result<Box<OpenSession>, Refusal>),
    /// To a stock rsync: no handshake was done. A daemon has agreed on the protocol version.
    Stock(Link, Option<u8>),
    /// To no program: the batch file is open.
    Batch(Box<(BatchFile, BatchHeader)>),
}

impl RemoteCopy {
    /// Returns the rules for a prefetch of the local tree, done while the client still connects; `None` if there must
    /// be none.
    ///
    /// The files that the rules name are read again for the session, so none may be standard input or a fifo. Under `-c` the
    /// prefetch would read an unbounded amount of content.
    fn prefetch_rules(&self, env: &Env) -> Option<Rules> {
        let select = &self.options.select;
        let may_look = select.files_from.is_none()
            && !input_files::name_files(&self.options)
            // Another user may see less.
            && self.options.copy_as.is_none()
            // Rules are confined only after those of the command line are read.
            && self.options.confine_root.is_none()
            // Whether the values of symlinks are converted is agreed on with the peer.
            && self.options.connect.iconv.is_none()
            && !self.far.is_child
            && self.options.check.mode != CheckMode::Digest;
        // Errors in the rules are reported when they are read again for the session.
        let read = may_look
            .then(|| input_files::rules(env, &self.options))
            .and_then(Result::ok)?;
        Some(self.own_rules(read))
    }

    /// Returns the rules in force at the client.
    fn own_rules(&self, read: input_files::InputFiles) -> Rules {
        let select = &self.options.select;
        let delete = &self.options.delete;
        let is_limited = self.far.operand.server_sends && select.cvs_exclude && delete.excluded;
        let read = if is_limited {
            read.with_cvs_at_receiver()
        } else {
            read
        };
        read.rules(&self.options)
    }

    /// Guesses what a receiving client can prefetch while it connects: the one transferred directory whose digests the
    /// sender will compare, and the destination. `None` if there is nothing to prefetch.
    fn guess(&self, env: &Env) -> Option<(RelPath, &[u8])> {
        if !self.far.operand.server_sends {
            return None;
        }
        let [argument] = self.far_paths() else {
            return None;
        };
        let dest = self.dest.as_ref()?;
        let has_log = self.options.output.log_file.is_some();
        let wants = self.wants(env, has_log);
        let compares = !self.lists_only() && Shortcuts::for_run(&self.options, wants).compare;
        if !compares {
            return None;
        }
        let whole = guessed_name(argument, &self.options)?;
        Some((whole, if dest.is_empty() { b"." } else { dest }))
    }

    /// Guesses whether the remote user is root. The handshake later brings the true answer.
    fn is_likely_super(&self) -> bool {
        self.far
            .operand
            .user
            .as_deref()
            .map_or(sys::ids().0 == 0, |user| user == b"root")
    }

    /// Runs the copy. `early`: the prefetch of the local tree, if one is running.
    fn copy(&self, env: &mut Env, early: Option<Early<'_>>, since: Since) -> Exit {
        if let Err(error) = copy::start_deadline(env, &self.options) {
            return fail(env, &error);
        }
        let mut prepared = None;
        let reached = self.reach(env, &mut prepared, early.as_ref());
        match reached.and_then(|reached| self.begin(env, reached, prepared, early.as_ref())) {
            Ok(begun) => self.converse(env, begun, early, since),
            Err(error) => fail(env, &error),
        }
    }

    /// Opens the session with the program that was reached. If a server rejects the request and ssh is allowed, the session
    /// is opened over ssh instead.
    fn begin(
        &self,
        env: &mut Env,
        reached: Reached,
        prepared: Option<Prepared>,
        early: Option<&Early<'_>>,
    ) -> Result<OpenedSession> {
        let prepared = prepared.map_or_else(
            || copy::prepare(env, &self.options, self.far.operand.server_sends),
            Ok,
        )?;
        let (mut transport, mut opened) = self.open(env, reached, &prepared, early);
        if let (SessionTransport::Net(redial), OpenedLink::Native(Err(Refusal::NotGranted(why)))) =
            (&transport, &opened)
        {
            let reached = self.fall_back_to_shell(env, why, &redial.peer)?;
            (transport, opened) = self.open(env, reached, &prepared, early);
        }
        Ok(OpenedSession {
            transport,
            prepared,
            opened,
        })
    }

    fn open(
        &self,
        env: &Env,
        reached: Reached,
        prepared: &Prepared,
        early: Option<&Early<'_>>,
    ) -> (SessionTransport, OpenedLink) {
        let Reached {
            transport,
            link,
            program,
        } = reached;
        let opened = match program {
            ReachedProgram::Native(first_words) => {
                let near = self.client_of(env, prepared, self.paths_by(&transport));
                let opened = near.open(
                    narrowed(link),
                    first_words.map(|first_words| *first_words),
                    early,
                );
                OpenedLink::Native(opened.map(Box::new))
            }
            ReachedProgram::Stock(agreed) => OpenedLink::Stock(link, agreed),
        };
        (transport, opened)
    }

    /// Connects to the other machine by the planned route. Files that are read on the way are left in `prepared`.
    fn reach(
        &self,
        env: &mut Env,
        prepared: &mut Option<Prepared>,
        early: Option<&Early<'_>>,
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
        match route::plan(&self.far.operand, &self.options, &peers, now, &proxied)? {
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

    fn connect_by_shell(&self, env: &mut Env, known: Option<&Peer>) -> Result<Reached> {
        let mut held = HeldOutput::default();
        let found = ByShell::new(self, env, known).connect(false, &mut held);
        held.print(env);
        found.map(Reached::from)
    }

    /// Reaches the host through a remote shell because its server grants less than this run requests. ssh has its own
    /// authorization.
    fn fall_back_to_shell(&self, env: &mut Env, why: &Error, peer: &Peer) -> Result<Reached> {
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
    fn first_words(
        &self,
        env: &Env,
        prepared: &mut Option<Prepared>,
        early: Option<&Early<'_>>,
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
        let support = ProtocolSupport {
            features: support().features | features,
            ..support()
        };
        let Some(prepared) = prepared else {
            // Without the rules there can be no prefetch, so only the greeting goes out early.
            return FirstWords::greeting(&support, &self.options, self.key, early);
        };
        Client {
            support,
            ..self.client_of(env, prepared, paths)
        }
        .first_words(early)
    }

    /// Returns how a remote side that a remote shell starts learns its paths.
    fn paths_by_shell(&self) -> Paths {
        // A daemon has its arguments before the session.
        let is_in_setup =
            self.options.connect.args == ArgStyle::Secluded && self.far.operand.daemon.is_none();
        if is_in_setup {
            Paths::InSetup
        } else {
            Paths::OnCommandLine
        }
    }

    fn paths_by(&self, transport: &SessionTransport) -> Paths {
        if matches!(transport, SessionTransport::Net(_)) {
            Paths::InSetup
        } else {
            self.paths_by_shell()
        }
    }

    /// Returns what the reporter of this run will need.
    fn wants(&self, env: &Env, has_log: bool) -> Wants {
        let sends = !self.far.operand.server_sends;
        copy::wants(env, &self.options, has_log, self.lists_only(), sends)
    }

    /// Returns the client's end of the session before there is a reporter.
    fn client_of<'s>(&'s self, env: &'s Env, prepared: &Prepared, paths: Paths) -> Client<'s> {
        let Prepared { rules, listed, log } = prepared;
        let has_log = log.as_ref().is_ok_and(Option::is_some);
        let wants = self.wants(env, has_log);
        self.near(env, rules, listed, wants, paths)
    }

    /// Returns the client's end of the session.
    fn near<'s>(
        &'s self,
        env: &'s Env,
        rules: &input_files::InputFiles,
        listed: &Option<Vec<Vec<u8>>>,
        wants: Wants,
        paths: Paths,
    ) -> Client<'s> {
        let sends = !self.far.operand.server_sends;
        let profile = env.var("SPARSYNC_PROFILE").is_some_and(|on| on == "1");
        Client {
            key: self.key,
            options: &self.options,
            support: support(),
            setup: self.setup(
                rules,
                listed,
                wants,
                profile,
                paths == Paths::InSetup,
                env.umask,
            ),
            rules: self.own_rules(rules.clone()),
            listed: if sends { listed.clone() } else { None },
            sources: self.sources_at_sender(),
            dest: if sends || self.options.select.list_only {
                None
            } else {
                self.dest.clone()
            },
            process: copy::process(env),
            repeats: false,
            interrupted: &env.stop_requested,
            is_net: false,
            is_local: self.far.is_child,
            gauge: None,
        }
    }

    /// Copies with a daemon, or prints the list of its modules. `port`: see [`RemoteOperand::daemon`](cli::RemoteOperand::daemon).
    fn copy_with_daemon(&self, env: &mut Env, port: i32, since: Since) -> Exit {
        let prepared = copy::start_deadline(env, &self.options)
            .and_then(|()| copy::prepare(env, &self.options, self.far.operand.server_sends));
        let reached =
            prepared.and_then(|prepared| Ok((prepared, via_daemon::reach(self, env, port)?)));
        match reached {
            Ok((
                prepared,
                Some(ReachedDaemon {
                    shell,
                    link,
                    stock_protocol,
                }),
            )) => {
                let transport = shell.map_or(SessionTransport::Daemon, SessionTransport::Shell);
                let stock = stock_protocol.map(|protocol| ReachedProgram::Stock(Some(protocol)));
                let reached = Reached {
                    transport,
                    link,
                    program: stock.unwrap_or(ReachedProgram::Native(None)),
                };
                let (transport, opened) = self.open(env, reached, &prepared, None);
                self.converse(
                    env,
                    OpenedSession {
                        transport,
                        prepared,
                        opened,
                    },
                    None,
                    since,
                )
            }
            Ok((_, None)) => {
                command_end::put_end(env, b"", Exit::Ok, self.role());
                Exit::Ok
            }
            Err(error) => fail(env, &error),
        }
    }

    /// Copies from a batch file.
    fn copy_from_batch(
        &self,
        env: &mut Env,
        batch: (BatchFile, BatchHeader),
        since: Since,
    ) -> Exit {
        let prepared = copy::start_deadline(env, &self.options).and_then(|()| {
            copy::handle_signals(env)?;
            let prepared = copy::prepare(env, &self.options, false)?;
            copy::copy_as(&self.options, self.role())?;
            Ok(prepared)
        });
        match prepared {
            Ok(prepared) => {
                let opened = OpenedLink::Batch(Box::new(batch));
                self.converse(
                    env,
                    OpenedSession {
                        transport: SessionTransport::Batch,
                        prepared,
                        opened,
                    },
                    None,
                    since,
                )
            }
            Err(error) => fail(env, &error.by(self.role())),
        }
    }

    /// Returns the first option of which an rsync at the other end would have to do a part.
    fn needs_sparsync(&self) -> Option<&'static str> {
        let pulls = self.far.operand.server_sends;
        if self.options.delta.detect_renamed.is_some() && !pulls {
            return Some("--detect-renamed");
        }
        match self.options.place.verify {
            Some(Verify::Written) if !pulls => Some("--verify"),
            Some(Verify::WrittenAndSource) => Some("--verify=source"),
            Some(Verify::Written) | None => None,
        }
    }

    /// Runs the session, repeats it after a lost connection if that is safe, and waits for the remote side to exit.
    fn converse(
        &self,
        env: &mut Env,
        begun: OpenedSession,
        early: Option<Early<'_>>,
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
        let sent = if self.far.operand.server_sends {
            None
        } else {
            Some(&self.sources[..])
        };
        let is_stock = matches!(opened, OpenedLink::Stock(..));
        if is_stock && let Some(option) = self.needs_sparsync() {
            let words = format!("sparsync: {option} is not possible: the other end is an rsync");
            let error = Error::new(Exit::Unsupported, words)
                .with_hint("install sparsync there, or copy without the option");
            return fail(env, &error);
        }
        if let Some(error) = self.plan_error(is_stock) {
            return fail(env, &error);
        }
        let display = LiveDisplay::start(env, &self.options, self.live_route(&transport, is_stock));
        let has_log = log.as_ref().is_ok_and(Option::is_some);
        let wants = self.wants(env, has_log);
        let gauge = progress_request::gauge(env, &self.options, display.as_ref(), wants);
        let gauge = gauge.as_ref();
        let mut reporter = copy::reporter(env, &self.options, log, self.lists_only(), sent);
        reporter.set_gauge(gauge);
        if self.options.output.failed_list.is_some() {
            let mut paths = self.failed_paths(env);
            // Such an rsync writes them to its standard error, which the shell passes on.
            paths.lacks_peer = is_stock
                && matches!(transport, SessionTransport::Shell(_))
                && self.far.operand.daemon.is_none()
                && self.options.output.stderr != StderrMode::Client;
            reporter.collect_failed_paths(paths);
        }
        if !matches!(opened, OpenedLink::Stock(_, Some(_)))
            && let Some(line) = stock::charset_line(&self.options, self.role())
        {
            reporter.report(&Event::Note(line));
        }
        let mut tally = Tally::default();
        let wants = reporter.wants();
        let made = Since::now();
        let near = self.near(env, &rules, &listed, wants, self.paths_by(&transport));
        let forbids = reconnect::forbids_repeat(&near);
        let is_net = matches!(transport, SessionTransport::Net(_));
        let near = Client {
            repeats: is_net && forbids.is_none(),
            is_net,
            gauge,
            ..near
        };
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
        let ended = match (outcome, &transport) {
            (RunOutcome::NoServer(error), SessionTransport::Net(redial)) => {
                let peer = redial.peer.clone();
                let earlier =
                    reconnect::problems_so_far(reporter.problems(), self.far.operand.server_sends);
                match self.connect_by_shell(env, Some(&peer)) {
                    Ok(Reached {
                        transport: shell,
                        link,
                        program: ReachedProgram::Native(_),
                    }) => {
                        let near = self.near(env, &rules, &listed, wants, self.paths_by(&shell));
                        let near = Client { gauge, ..near };
                        transport = shell;
                        *self.route.lock() =
                            Some("a remote shell: its server was stopped or is gone".to_owned());
                        if let Some(display) = &display {
                            display.set_route(self.live_route(&transport, false));
                        }
                        tally = Tally::default();
                        let ended = near.run(link, None, None, &mut reporter, &mut tally);
                        tally.merge(&earlier);
                        ended
                    }
                    // It would start the run over and print everything a second time.
                    Ok(Reached {
                        program: ReachedProgram::Stock(_),
                        ..
                    }) => Err(error),
                    Err(error) => Err(error),
                }
            }
            (RunOutcome::Ended(ended), _) => ended,
            (RunOutcome::NoServer(error), _) => Err(error),
        };
        if matches!(transport, SessionTransport::Daemon) {
            // There is no exit code of the other end, which could outweigh failures at this one.
            tally.failed_at_peer += std::mem::take(&mut tally.failed);
        }
        let ended = self.end(env, transport, is_stock, ended);
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

    /// Returns the error of a run that has to do with a stored plan, if its peer cannot take part in that.
    fn plan_error(&self, is_stock: bool) -> Option<Error> {
        let verb = match self.options.plan_use {
            PlanUse::Free => return None,
            PlanUse::Record => "plan",
            PlanUse::Replay => "apply",
        };
        if is_stock {
            let words = format!("sparsync {verb}: the other end is an rsync: nothing was changed");
            let error = Error::new(Exit::Unsupported, words);
            return Some(error.with_hint("install sparsync there"));
        }
        if self.options.plan_use == PlanUse::Replay && !self.far.operand.server_sends {
            let words = "sparsync apply: a plan cannot be applied to another machine from here yet: nothing was changed";
            let error = Error::new(Exit::Unsupported, words);
            return Some(error.with_hint("run `sparsync apply` there, on a plan of a pull"));
        }
        None
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
        near: &Client<'_>,
        opened: OpenedLink,
        early: Option<Early<'_>>,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<()> {
        let recorder = self
            .written
            .as_ref()
            .map(|written| written.recorder.clone());
        let stock = StockClient {
            client: near,
            recorder,
        };
        match opened {
            OpenedLink::Native(Ok(opened)) => near.play(*opened, early, reporter, tally),
            OpenedLink::Native(Err(refusal)) => Err(refusal.print_details(reporter)),
            OpenedLink::Stock(link, agreed) => stock.run(
                narrowed(link),
                agreed,
                &self.far.server_words,
                early,
                reporter,
                tally,
            ),
            OpenedLink::Batch(batch) => {
                let (file, header) = *batch;
                stock.read_batch(file, &header, reporter, tally)
            }
        }
    }

    /// Ends the transport after a session. Returns the error of the run, or the exit code in place of that of a complete
    /// session.
    fn end(
        &self,
        env: &Env,
        transport: SessionTransport,
        is_stock: bool,
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
        if is_stock && !self.far.operand.server_sends && is_given_up {
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
    fn live_route(&self, transport: &SessionTransport, is_stock: bool) -> LiveRoute {
        let chosen = self.route.lock().clone();
        let reached = match transport {
            SessionTransport::Daemon if is_stock => "an rsync daemon".to_owned(),
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
        let stock = if is_stock { ", stock rsync" } else { "" };
        LiveRoute {
            text: format!("{host}{stock}, by {reached}"),
            peer: Some(host.clone()),
            upgrade: None,
        }
    }

    fn setup(
        &self,
        rules: &input_files::InputFiles,
        listed: &Option<Vec<Vec<u8>>>,
        wants: Wants,
        profile: bool,
        paths_in_setup: bool,
        umask: u32,
    ) -> Setup {
        let reads_cvs = self.options.select.cvs_exclude
            || rules
                .parsed
                .iter()
                .any(|parsed| matches!(parsed, Parsed::Cvs(_) | Parsed::Merge(_)));
        // A receiver that reports its own events does not know the sender's paths.
        let wants = Wants {
            paths: wants.paths && !self.far.operand.server_sends,
            ..wants
        };
        Setup {
            server_sends: self.far.operand.server_sends,
            words: self.far.words.clone(),
            remote_words: self.far.remote_words.clone(),
            rules: if self.far.operand.server_sends {
                Parsed::for_sender(&rules.parsed)
            } else {
                rules.parsed.clone()
            },
            cvs_home: if reads_cvs {
                rules.cvs_home.clone()
            } else {
                None
            },
            cvs_env: if reads_cvs {
                rules.cvs_env.clone()
            } else {
                None
            },
            listed: if self.far.operand.server_sends {
                listed.clone()
            } else {
                None
            },
            operands: if paths_in_setup {
                self.far_paths().to_vec()
            } else {
                Vec::new()
            },
            wants,
            profile,
            umask,
        }
    }
}
