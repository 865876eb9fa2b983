//! A copy from or to another machine: the near end.
//!
//! A remote shell starts the far end. If a sparsync answers there, the session is ours; a stock rsync is left to the
//! installed rsync, which starts over.

use super::by_one_off::{self, OneOff};
use super::by_server::{self, Redial, Server};
use super::by_shell::{ByShell, Found, Said};
use super::copy::{self, Prepared};
use super::reconnect::{self, Attempts, Outcome};
use super::route::{self, Plan};
use super::{fail, handover, rules};
use crate::cli::{self, Far};
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{Parsed, Rules};
use crate::fs::sys;
use crate::options::{ArgStyle, CheckMode, FilesFrom, Options, Transport};
use crate::path::RelPath;
use crate::proto::message::ASKS_FIRST;
use crate::proto::{Setup, Speech};
use crate::report::Tally;
use crate::report::event::Wants;
use crate::role::ahead::{Aim, EARLY_IS_GOOD_FOR, Early};
use crate::role::codec;
use crate::role::seen::can_compare;
use crate::role::session::{FirstWords, Near, Opened, Refusal};
use crate::role::sight::{Guess, guessed_name};
use crate::role::terms::Terms;
use crate::transport::Link;
use crate::transport::link::{FAREWELL, Patience};
use crate::transport::pipe;
use crate::transport::shell::{Ended, Shell};
use crate::trust::files::List as _;
use crate::trust::moment::Moment;
use crate::trust::peers::{Peer, Peers};
use crate::trust::place::Places;
use crate::work::clock::{self, Since};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Whether such a copy is ours unless SPARSYNC_NATIVE_SSH=0 says that it is the installed rsync's.
const IS_NATIVE: bool = true;

/// Whether a copy by a remote shell is ours to carry out.
pub fn is_native(env: &Env) -> bool {
    match env.var("SPARSYNC_NATIVE_SSH").as_deref().map(OsStrExt::as_bytes) {
        Some(b"1") => true,
        Some(b"0") => false,
        _ => IS_NATIVE,
    }
}

/// Runs a copy of which one side is on another machine.
pub fn run(env: &mut Env, wanted: cli::Copy) -> Exit {
    let since = Since::now();
    let cli::Copy { options, sources, dest, far } = wanted;
    let Some(far) = far else {
        return fail(env, &Error::new(Exit::Crashed, "sparsync: a copy without a peer is a local one"));
    };
    // The remote shell is somebody else's program.
    sys::lift_open_files(OPEN_FILES_BESIDE_SHELL);
    let near = Side { options, sources, dest, far, key: sys::random() };
    let Some(rules) = near.rules_of_early_look(env) else { return near.copy(env, None, since) };
    let (cwd, stop, asked) = (env.cwd.clone(), env.stop.clone(), env.asked.clone());
    let terms = Terms {
        options: &near.options,
        rules: &rules,
        cwd: &cwd,
        umask: env.umask,
        stop: &stop,
        threads: copy::threads(),
        stop_at_unix_secs: None,
        repeats: false,
        interrupted: &asked,
    };
    let key = near.key;
    let ended = match near.guess(env) {
        None if near.far.server_sends => Ok(near.copy(env, None, since)),
        None => {
            let aim = Aim::early(terms, &near.sources, key, near.is_likely_super());
            aim.look(|looking| near.copy(env, Some(Early::Source(Box::new(looking))), since))
        }
        Some((whole, dest)) => {
            let guess = Guess { terms, dest, whole, key, good_for: EARLY_IS_GOOD_FOR };
            guess.look(|glance| near.copy(env, glance.map(Early::Dest), since))
        }
    };
    ended.unwrap_or_else(|error| fail(env, &error))
}

/// As many files as a run may have open beside a remote shell: each directory that an argument lies in takes one.
const OPEN_FILES_BESIDE_SHELL: u64 = 1 << 16;
/// What a shell may take to end behind a far end that is done.
const LEAVING_MAX: Duration = Duration::from_secs(30);

/// What a run knows of itself.
pub struct Side {
    /// The settled options.
    pub options: Options,
    sources: Vec<Vec<u8>>,
    dest: Option<Vec<u8>>,
    /// The other machine.
    pub far: Far,
    /// See [`Near::key`].
    key: [u8; 16],
}

/// What carries a conversation.
pub enum Carrier {
    /// A remote shell, to be seen off.
    Shell(Shell),
    /// A server that a remote shell opened for this run alone.
    OneOff(Box<OneOff>),
    /// A link over the network, which ends by itself; and how another is to be had.
    Net(Box<Redial>),
}

/// Where a far end finds the paths that are its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paths {
    /// In what it is told.
    Told,
    /// On its command line.
    OnCommandLine,
}

/// What this program speaks.
fn speech() -> Speech {
    Speech::ours(codec::features(None))
}

/// Who was reached.
pub enum Reached {
    /// A sparsync, and what it was told already.
    Native(Carrier, Link, Option<Box<FirstWords>>),
    /// A stock rsync, to which the installed one can talk.
    Rsync,
}

/// A session that begins.
struct Begun {
    carrier: Carrier,
    prepared: Prepared,
    opened: Result<Opened, Refusal>,
}

impl Side {
    /// Our part, as rsync's client names itself before it has split.
    pub fn role(&self) -> &'static str {
        if self.far.server_sends { "Receiver" } else { "sender" }
    }

    /// The operands that are at the far end.
    pub fn far_paths(&self) -> &[Vec<u8>] {
        if self.far.server_sends { &self.sources } else { self.dest.as_slice() }
    }

    /// How long its links wait.
    pub fn patience(&self, env: &Env) -> Patience {
        let secs = u64::from(self.options.connect.timeout_secs);
        let idle = (secs > 0).then(|| Duration::from_secs(secs));
        Patience { stop: env.stop.clone(), ..Patience::of_a_copy(idle) }
    }

    /// The rules for a look at this end's tree while the far end is not known yet; `None`: there shall be no such look.
    ///
    /// If a stock rsync answers, the run is the installed rsync's from the beginning, so nothing may be taken that it will
    /// want: standard input, or what a fifo brings. With `-c` contents would be read, of which there is no end.
    fn rules_of_early_look(&self, env: &Env) -> Option<Rules> {
        let select = &self.options.select;
        let may_look = select.files_from.is_none()
            && !rules::name_files(&self.options)
            && self.options.check.mode != CheckMode::Digest;
        // What is wrong with them is told when they are read for the session.
        let read = may_look.then(|| rules::rules(env, &self.options)).and_then(Result::ok)?;
        Some(read.rules(&self.options))
    }

    /// What a client that receives may look at while the far end is not known yet: the directory of the transfer whose digests
    /// will be asked for, if they are, and the destination.
    fn guess(&self, env: &Env) -> Option<(RelPath, &[u8])> {
        let ([argument], Some(dest), true) = (self.far_paths(), &self.dest, self.far.server_sends) else { return None };
        let has_log = self.options.output.log_file.is_some();
        let wants = copy::wants(env, &self.options, has_log, self.lists_only(), false);
        let compares = !self.lists_only() && can_compare(&self.options, wants);
        let whole = guessed_name(argument, &self.options).filter(|_| compares)?;
        Some((whole, if dest.is_empty() { b"." } else { dest }))
    }

    /// Whether the far end is likely to be the super-user's: nobody knows before it says so.
    fn is_likely_super(&self) -> bool {
        self.far.user.as_deref().map_or(sys::ids().0 == 0, |user| user == b"root")
    }

    /// Copies. `early`: this end's tree, if it is looked at already.
    fn copy(&self, env: &mut Env, early: Option<Early<'_>>, since: Since) -> Exit {
        let mut prepared = None;
        let reached = self.reach(env, &mut prepared, early.as_ref());
        match reached.and_then(|reached| self.begin(env, reached, prepared, early.as_ref())) {
            Ok(Some(begun)) => self.converse(env, begun, early, since),
            Ok(None) => {
                // The installed rsync can talk to that one. Nothing was touched yet, and nothing taken that it may want.
                let _ = handover::run(env);
                fail(env, &self.no_rsync())
            }
            Err(error) => fail(env, &error),
        }
    }

    /// Opens the session with who was reached; `None`: that is a stock rsync. Where a server grants less than is asked for, and
    /// ssh would do, the session is opened by that.
    fn begin(
        &self,
        env: &mut Env,
        reached: Reached,
        prepared: Option<Prepared>,
        early: Option<&Early<'_>>,
    ) -> Result<Option<Begun>, Error> {
        let Reached::Native(carrier, link, said) = reached else { return Ok(None) };
        let may_have_taken = prepared.is_none();
        let prepared = prepared.map_or_else(|| copy::prepare(env, &self.options, self.far.server_sends), Ok)?;
        let (why, peer) = match (self.open(env, (&carrier, link, said), &prepared, early), &carrier) {
            (Err(Refusal::NotGranted(why)), Carrier::Net(redial)) => (why, redial.peer()),
            (opened, _) => return Ok(Some(Begun { carrier, prepared, opened })),
        };
        match self.reach_instead(env, &why, peer)? {
            Reached::Native(carrier, link, said) => {
                let opened = self.open(env, (&carrier, link, said), &prepared, early);
                Ok(Some(Begun { carrier, prepared, opened }))
            }
            // What the installed rsync would read from standard input is gone.
            Reached::Rsync if may_have_taken => {
                let words = b"\nsparsync: a stock rsync answers ssh there, and what options name was read already: say --transport=ssh";
                Err(Error { message: [&why.message[..], words].concat(), ..why }.by(self.role()))
            }
            Reached::Rsync => Ok(None),
        }
    }

    fn open(
        &self,
        env: &Env,
        (carrier, link, said): (&Carrier, Link, Option<Box<FirstWords>>),
        prepared: &Prepared,
        early: Option<&Early<'_>>,
    ) -> Result<Opened, Refusal> {
        let link = match sys::narrow_link_bytes() {
            Some(room_bytes) => pipe::narrowed(link, room_bytes),
            None => link,
        };
        let Prepared { rules, listed, log } = prepared;
        let has_log = log.as_ref().is_ok_and(Option::is_some);
        let wants = copy::wants(env, &self.options, has_log, self.lists_only(), !self.far.server_sends);
        self.near(env, (rules, listed), wants, self.paths_by(carrier)).open(link, said.map(|said| *said), early)
    }

    /// Finds the way to the far end, and who is there. What is read for that is left in `prepared`.
    fn reach(
        &self,
        env: &mut Env,
        prepared: &mut Option<Prepared>,
        early: Option<&Early<'_>>,
    ) -> Result<Reached, Error> {
        let cannot_hear = |error: io::Error| {
            Error::new(Exit::Ipc, format!("rsync: cannot listen to signals: {error}")).by(self.role())
        };
        env.hear_signals().map_err(cannot_hear)?;
        let places = Places::of(env);
        let connect = &self.options.connect;
        let peers = match places.as_ref().map_err(Error::clone).and_then(Peers::load) {
            Ok(peers) => peers,
            // Without a home of his own, as under sudo, somebody has enrolled no host.
            Err(error) if error.exit == Exit::FileIo && !route::wants_key(&self.far, connect) => {
                if connect.transport != Transport::Quic {
                    self.tell_way(env, &format!("a remote shell: {}", String::from_utf8_lossy(&error.message)));
                }
                Peers::default()
            }
            Err(error) => return Err(error),
        };
        let now = Moment(clock::now_unix().0);
        let host = route::named(&self.far);
        let umask = env.umask;
        let proxied = || by_server::ssh_facts(&self.options.connect.shell, &host, umask).is_proxied;
        match route::plan(&self.far, connect, &peers, now, &proxied)? {
            Plan::Shell(why) => {
                if let Some(why) = why {
                    self.tell_way(env, &format!("a remote shell: {why}"));
                }
                self.reach_by_shell(env, peers.find(&host))
            }
            Plan::Server { peer, kinds, or_shell } => {
                let asks_first = if or_shell { ASKS_FIRST } else { 0 };
                let first = self.first_words(env, (prepared, early), (Paths::Told, asks_first));
                by_server::reach(self, env, &places?, &Server { peer: &peer, kinds, or_shell }, first)
            }
            Plan::OneOff => {
                let first = self.first_words(env, (prepared, early), (self.paths_by_shell(), 0));
                by_one_off::reach(self, env, first)
            }
        }
    }

    fn reach_by_shell(&self, env: &mut Env, known: Option<&Peer>) -> Result<Reached, Error> {
        let mut said = Said::default();
        let found = ByShell::new(self, env, known).connect(false, &mut said);
        said.tell(env);
        Ok(match found? {
            Found::Native(shell, link) => Reached::Native(Carrier::Shell(shell), link, None),
            Found::Rsync => Reached::Rsync,
        })
    }

    /// Goes on by a remote shell, which has an authority of its own, where the server of a host grants less than is asked for.
    fn reach_instead(&self, env: &mut Env, why: &Error, peer: &Peer) -> Result<Reached, Error> {
        let words = why.message.strip_prefix(b"sparsync: ").unwrap_or(&why.message);
        // Over ssh, the copy may do more than its grant permits. That is always reported.
        if !self.options.output.quiet {
            let host = route::named(&self.far);
            let words = String::from_utf8_lossy(words);
            let _ = writeln!(env.stderr, "sparsync: {host}: by a remote shell: its server refuses: {words}");
        }
        self.reach_by_shell(env, Some(peer)).map_err(|error| match error.exit {
            Exit::Signal => error,
            _ => Error { message: [&why.message, &b"\n"[..], &error.message].concat(), ..error },
        })
    }

    /// What a server is told before it says anything.
    fn first_words(
        &self,
        env: &Env,
        (prepared, early): (&mut Option<Prepared>, Option<&Early<'_>>),
        (paths, features): (Paths, u64),
    ) -> FirstWords {
        let select = &self.options.select;
        // A remote shell may be faster, and lead to a stock rsync: then the run is the installed rsync's from the beginning,
        // so nothing is taken that it will want, as standard input, or what a fifo brings.
        let may_read = matches!(select.files_from, None | Some(FilesFrom::Far(_))) && !rules::name_files(&self.options);
        // What is wrong with it is told when it is read for the session.
        *prepared = may_read.then(|| copy::prepare(env, &self.options, self.far.server_sends)).and_then(Result::ok);
        let speech = Speech { features: speech().features | features, ..speech() };
        let Some(Prepared { rules, listed, log }) = prepared else {
            // Where nothing is read, nothing is looked at.
            return FirstWords::greeting(&speech, &self.options, self.key, early);
        };
        let has_log = log.as_ref().is_ok_and(Option::is_some);
        let wants = copy::wants(env, &self.options, has_log, self.lists_only(), !self.far.server_sends);
        Near { speech, ..self.near(env, (rules, listed), wants, paths) }.first_words(early)
    }

    /// Where the paths of the far end are told that a remote shell starts.
    fn paths_by_shell(&self) -> Paths {
        if self.options.connect.args == ArgStyle::Secluded { Paths::Told } else { Paths::OnCommandLine }
    }

    fn paths_by(&self, carrier: &Carrier) -> Paths {
        if matches!(carrier, Carrier::Net(_)) { Paths::Told } else { self.paths_by_shell() }
    }

    fn lists_only(&self) -> bool {
        self.dest.is_none() || self.options.select.list_only
    }

    /// Our end of the session.
    fn near<'s>(
        &'s self,
        env: &'s Env,
        (rules, listed): (&rules::Read, &Option<Vec<Vec<u8>>>),
        wants: Wants,
        paths: Paths,
    ) -> Near<'s> {
        let sends = !self.far.server_sends;
        let profile = env.var("SPARSYNC_PROFILE").is_some_and(|on| on == "1");
        Near {
            key: self.key,
            options: &self.options,
            speech: speech(),
            setup: self.setup(rules, listed, wants, profile, paths == Paths::Told, env.umask),
            rules: rules.clone().rules(&self.options),
            listed: listed.clone().filter(|_| sends),
            sources: self.sources.clone(),
            dest: self.dest.clone().filter(|_| !sends && !self.options.select.list_only),
            cwd: &env.cwd,
            umask: env.umask,
            stop: &env.stop,
            threads: copy::threads(),
            stop_at_unix_secs: copy::stop_at_unix_secs(&self.options),
            repeats: false,
            interrupted: &env.asked,
            is_net: false,
        }
    }

    /// Tells which way is taken, and why (`-vv`).
    pub fn tell_way(&self, env: &mut Env, way: &str) {
        if self.tells_way() {
            let _ = writeln!(env.stderr, "sparsync: {}: by {way}", route::named(&self.far));
        }
    }

    /// Whether it is reported which way is taken.
    pub fn tells_way(&self) -> bool {
        let output = &self.options.output;
        output.verbose >= 2 && !output.quiet
    }

    fn no_rsync(&self) -> Error {
        let host = String::from_utf8_lossy(&self.far.host).into_owned();
        let words = format!(
            "sparsync: {host} has rsync but no sparsync, and to talk to it this machine needs an installed rsync: \
             install rsync here or sparsync there"
        );
        Error::new(Exit::StartClient, words).by(self.role())
    }

    /// Runs the session, again where its connection is lost and that is safe, and waits for the far end to leave.
    fn converse(&self, env: &mut Env, begun: Begun, early: Option<Early<'_>>, since: Since) -> Exit {
        let Begun { mut carrier, prepared: Prepared { rules, listed, log }, opened } = begun;
        let sent = (!self.far.server_sends).then_some(&self.sources[..]);
        let mut reporter = copy::reporter(env, &self.options, log, self.lists_only(), sent);
        let mut tally = Tally::default();
        let wants = reporter.wants();
        let made = Since::now();
        let near = self.near(env, (&rules, &listed), wants, self.paths_by(&carrier));
        let forbids = reconnect::forbids_repeat(&near);
        let is_net = matches!(carrier, Carrier::Net(_));
        let near = Near { repeats: is_net && forbids.is_none(), is_net, ..near };
        let first = match opened {
            Ok(opened) => near.play(opened, early, &mut reporter, &mut tally),
            Err(refusal) => Err(refusal.told(&mut reporter)),
        };
        let outcome = match &mut carrier {
            Carrier::Net(redial) => {
                let attempts = Attempts { side: self, env, near: &near, forbids };
                attempts.go_on(redial, (first, made), &mut reporter, &mut tally)
            }
            Carrier::Shell(_) | Carrier::OneOff(_) => Outcome::Ended(first),
        };
        drop(near);
        let mut ended = match (outcome, &carrier) {
            (Outcome::Stopped(error), Carrier::Net(redial)) => {
                let peer = redial.peer().clone();
                let earlier = reconnect::problems_so_far(reporter.problems(), self.far.server_sends);
                match self.reach_by_shell(env, Some(&peer)) {
                    Ok(Reached::Native(shell, link, _)) => {
                        let near = self.near(env, (&rules, &listed), wants, self.paths_by(&shell));
                        carrier = shell;
                        tally = Tally::default();
                        let ended = near.run(link, (None, None), &mut reporter, &mut tally);
                        tally.merge(&earlier);
                        ended
                    }
                    // The installed rsync would begin anew, and print everything once more.
                    Ok(Reached::Rsync) => Err(error),
                    Err(error) => Err(error),
                }
            }
            (Outcome::Ended(ended), _) => ended,
            (Outcome::Stopped(error), _) => Err(error),
        };
        let is_net = matches!(carrier, Carrier::Net(_));
        // A far end that was heard out has nothing left to do; one whose conversation broke off may not even know.
        let limit = if ended.is_ok() { LEAVING_MAX } else { FAREWELL };
        let mut instead = None;
        let left = match carrier {
            Carrier::Shell(mut shell) => {
                let shell = shell.wait(Some(limit), &env.stop).unwrap_or(Ended::GivenUp);
                instead = shell.instead();
                shell.exit()
            }
            Carrier::OneOff(one_off) => {
                if let Err(error) = &mut ended
                    && error.exit == Exit::Stream
                {
                    error.message.extend_from_slice(one_off.is_gone().as_bytes());
                }
                one_off.leave(&env.stop);
                Exit::Stream
            }
            Carrier::Net(_) => Exit::Stream,
        };
        if let Err(error) = &mut ended
            && (error.exit == Exit::Stream || is_net && reconnect::is_broken(error))
        {
            // A signal of a terminal reaches the shell too, and the shell may be the first to go.
            *error = match env.is_stopping() {
                true => Error::new(Exit::Signal, "").by(error.role),
                false => Error { exit: left, ..error.clone() },
            };
        }
        copy::close(env, reporter, &tally, since, ended.map(|()| instead), self.role())
    }

    fn setup(
        &self,
        rules: &rules::Read,
        listed: &Option<Vec<Vec<u8>>>,
        wants: Wants,
        profile: bool,
        paths_are_told: bool,
        umask: u32,
    ) -> Setup {
        let reads_cvs = self.options.select.cvs_exclude
            || rules.parsed.iter().any(|parsed| matches!(parsed, Parsed::Cvs(_) | Parsed::Merge(_)));
        // A receiver that tells for itself does not know how the sender sees a path.
        let wants = Wants { paths: wants.paths && !self.far.server_sends, ..wants };
        Setup {
            server_sends: self.far.server_sends,
            words: self.far.words.clone(),
            remote_words: self.far.remote_words.clone(),
            rules: rules.parsed.clone(),
            cvs_home: rules.cvs_home.clone().filter(|_| reads_cvs),
            cvs_env: rules.cvs_env.clone().filter(|_| reads_cvs),
            listed: listed.clone().filter(|_| self.far.server_sends),
            operands: if paths_are_told { self.far_paths().to_vec() } else { Vec::new() },
            wants,
            profile,
            umask,
        }
    }
}
