//! A copy from or to another machine: the near end.
//!
//! A remote shell starts the far end. If a sparsync answers there, the session is ours; a stock rsync is left to the
//! installed rsync, which starts over.

use super::{copy, fail, handover, rules};
use crate::cli::{self, Far};
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Parsed;
use crate::options::{ArgStyle, Options, StderrMode};
use crate::path;
use crate::proto::Setup;
use crate::report::Tally;
use crate::report::escape::{self, Charset};
use crate::report::event::errno_words;
use crate::role::session::Near;
use crate::transport::Link;
use crate::transport::link::{FAREWELL, Parting, Patience};
use crate::transport::shell::{self, Answer, Call, Ended, Shell};
use crate::work::clock::Since;
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
    let near = Side { options, sources, dest, far };
    match near.connect(env) {
        Ok(Peer::Native(shell, link)) => near.converse(env, shell, link, since),
        Ok(Peer::Rsync) => {
            // The installed rsync can talk to that one. Nothing was touched yet, and nothing read.
            let _ = handover::run(env);
            fail(env, &near.no_rsync())
        }
        Err(error) => fail(env, &error),
    }
}

/// What a shell may take to end behind a far end that is done.
const LEAVING_MAX: Duration = Duration::from_secs(30);

/// What a run knows of itself.
struct Side {
    options: Options,
    sources: Vec<Vec<u8>>,
    dest: Option<Vec<u8>>,
    far: Far,
}

/// Who was found at the far end.
enum Peer {
    Native(Shell, Link),
    Rsync,
}

impl Side {
    /// Our part, as rsync's client names itself before it has split.
    fn role(&self) -> &'static str {
        if self.far.server_sends { "Receiver" } else { "sender" }
    }

    /// The operands that are at the far end.
    fn far_paths(&self) -> &[Vec<u8>] {
        if self.far.server_sends { &self.sources } else { self.dest.as_slice() }
    }

    /// The programs to try at the far end, the first first.
    fn programs(&self, env: &Env) -> Vec<Vec<u8>> {
        const RSYNC: &[u8] = b"rsync";
        match &self.options.connect.program {
            Some(program) => vec![program.clone()],
            None if path::file_name(env.program.as_bytes()) == RSYNC => vec![RSYNC.to_vec()],
            None => vec![b"sparsync".to_vec(), RSYNC.to_vec()],
        }
    }

    fn patience(&self, env: &Env) -> Patience {
        let secs = u64::from(self.options.connect.timeout_secs);
        let idle = (secs > 0).then(|| Duration::from_secs(secs));
        Patience { idle, stop: env.stop.clone(), parting: Parting::default() }
    }

    /// Starts the far end and hears who it is.
    fn connect(&self, env: &mut Env) -> Result<Peer, Error> {
        let cannot_hear = |error: io::Error| {
            Error::new(Exit::Ipc, format!("rsync: cannot listen to signals: {error}")).by(self.role())
        };
        env.hear_signals().map_err(cannot_hear)?;
        let mut programs = self.programs(env).into_iter().peekable();
        while let Some(program) = programs.next() {
            let argv = Call {
                connect: &self.options.connect,
                user: self.far.user.as_deref(),
                host: &self.far.host,
                program: &program,
                server_sends: self.far.server_sends,
                words: &self.far.server_words,
                remote_words: &self.far.remote_words,
                paths: self.far_paths(),
            }
            .argv();
            let mut shell = Shell::start(&argv, env.umask).map_err(|error| {
                let start = format!("rsync: [{}] Failed to exec ", self.role()).into_bytes();
                Error::new(Exit::Ipc, [&start, &argv[0][..], b": ", &errno_words(&error)].concat()).by(self.role())
            })?;
            let answer = shell.answer(&self.patience(env), &mut env.stderr);
            if !matches!(answer, Ok(Answer::Rsync)) {
                self.tell_command(env, &argv);
            }
            match answer {
                Ok(Answer::Native(link)) => return Ok(Peer::Native(shell, link)),
                // The installed rsync tells of its own command.
                Ok(Answer::Rsync) => return Ok(Peer::Rsync),
                Ok(Answer::Nobody) => {
                    let ended = shell.wait(Some(FAREWELL), &env.stop).unwrap_or(Ended::Killed);
                    if ended != Ended::Code(Exit::CmdNotFound.code()) || programs.peek().is_none() {
                        return Err(self.nobody(env, ended));
                    }
                }
                Ok(Answer::TooNoisy) => {
                    let words =
                        "protocol version mismatch -- is your shell clean?\n(see the rsync manpage for an explanation)";
                    return Err(Error::new(Exit::Protocol, words).by(self.role()));
                }
                Ok(Answer::GaveUp(error)) | Err(error) => return Err(self.gave_up(&error)),
            }
        }
        Err(self.nobody(env, Ended::Code(Exit::CmdNotFound.code())))
    }

    fn tell_command(&self, env: &mut Env, argv: &[Vec<u8>]) {
        let output = &self.options.output;
        if output.debug.cmd == 0 || output.quiet {
            return;
        }
        let charset = Charset::of(copy::utf8_locale(env), output.eight_bit);
        let mut line = Vec::new();
        escape::put(&mut line, &shell::shown(argv), charset);
        line.push(b'\n');
        let to = if output.stderr == StderrMode::All { &mut env.stderr } else { &mut env.stdout };
        let _ = to.write_all(&line).and_then(|()| to.flush());
    }

    /// The shell ended without a word from the far end.
    fn nobody(&self, env: &Env, ended: Ended) -> Error {
        if env.is_stopping() {
            return Error::new(Exit::Signal, "").by(self.role());
        }
        let words = format!("rsync: connection unexpectedly closed (0 bytes received so far) [{}]", self.role());
        Error::new(ended.exit(), words).by(self.role())
    }

    /// The wait for the far end's first word was given up.
    fn gave_up(&self, error: &io::Error) -> Error {
        let (exit, words) = match error.kind() {
            io::ErrorKind::ConnectionAborted => (Exit::Signal, Vec::new()),
            io::ErrorKind::TimedOut => {
                let secs = self.options.connect.timeout_secs;
                (Exit::Timeout, format!("[{}] io timeout after {secs} seconds -- exiting", self.role()).into_bytes())
            }
            _ => {
                let start = format!("rsync: [{}] the remote shell could not be read: ", self.role());
                (Exit::Stream, [start.as_bytes(), &errno_words(error)].concat())
            }
        };
        Error::new(exit, words).by(self.role())
    }

    fn no_rsync(&self) -> Error {
        let host = String::from_utf8_lossy(&self.far.host).into_owned();
        let words = format!(
            "sparsync: {host} has rsync but no sparsync, and to talk to it this machine needs an installed rsync: \
             install rsync here or sparsync there"
        );
        Error::new(Exit::StartClient, words).by(self.role())
    }

    /// Runs the session, and sees the far end off.
    fn converse(self, env: &mut Env, mut shell: Shell, link: Link, since: Since) -> Exit {
        let prepared = match copy::prepare(env, &self.options, self.far.server_sends) {
            Ok(prepared) => prepared,
            Err(error) => return fail(env, &error),
        };
        let copy::Prepared { rules, listed, log } = prepared;
        let list_only = self.dest.is_none() || self.options.select.list_only;
        let sends = !self.far.server_sends;
        let mut reporter = copy::reporter(env, &self.options, log, list_only, sends);
        let profile = env.var("SPARSYNC_PROFILE").is_some_and(|on| on == "1");
        let setup = self.setup(&rules, &listed, reporter.wants(), profile);
        let near = Near {
            options: &self.options,
            setup,
            rules: rules.rules(&self.options),
            listed: listed.filter(|_| sends),
            sources: self.sources.clone(),
            dest: self.dest.clone().filter(|_| !sends && !self.options.select.list_only),
            cwd: &env.cwd,
            umask: env.umask,
            stop: &env.stop,
            threads: copy::threads(),
            stop_at_unix_secs: copy::stop_at_unix_secs(&self.options),
        };
        let mut tally = Tally::default();
        let mut ended = near.run(link, &mut reporter, &mut tally);
        // A far end that was heard out has nothing left to do; one whose conversation broke off may not even know.
        let limit = if ended.is_ok() { LEAVING_MAX } else { FAREWELL };
        let left = shell.wait(Some(limit), &env.stop).unwrap_or(Ended::Killed);
        if let Err(error) = &mut ended
            && error.exit == Exit::Stream
        {
            // A signal of a terminal reaches the shell too, and the shell may be the first to go.
            *error = match env.is_stopping() {
                true => Error::new(Exit::Signal, "").by(error.role),
                false => Error { exit: left.exit(), ..error.clone() },
            };
        }
        copy::close(env, reporter, &tally, since, ended, self.role())
    }

    fn setup(
        &self,
        rules: &rules::Read,
        listed: &Option<Vec<Vec<u8>>>,
        wants: crate::report::event::Wants,
        profile: bool,
    ) -> Setup {
        let reads_cvs = self.options.select.cvs_exclude
            || rules.parsed.iter().any(|parsed| matches!(parsed, Parsed::Cvs(_) | Parsed::Merge(_)));
        let is_secluded = self.options.connect.args == ArgStyle::Secluded;
        // A receiver that tells for itself does not know how the sender sees a path.
        let wants = crate::report::event::Wants { paths: wants.paths && !self.far.server_sends, ..wants };
        Setup {
            server_sends: self.far.server_sends,
            words: self.far.words.clone(),
            remote_words: self.far.remote_words.clone(),
            rules: rules.parsed.clone(),
            cvs_home: rules.cvs_home.clone().filter(|_| reads_cvs),
            cvs_env: rules.cvs_env.clone().filter(|_| reads_cvs),
            listed: listed.clone().filter(|_| self.far.server_sends),
            operands: if is_secluded { self.far_paths().to_vec() } else { Vec::new() },
            wants,
            profile,
        }
    }
}
