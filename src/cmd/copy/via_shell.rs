//! Starts the remote side through a remote shell and finds out whether sparsync or a stock rsync answers.

use super::remote_copy::RemoteCopy;
use super::route;
use crate::cli::subcommand;
use crate::cmd::copy;
use crate::digest::{self, By};
use crate::env::{self, Env};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::charset;
use crate::options::{ArgStyle, StderrMode};
use crate::path;
use crate::proto::rsync::daemon::secluded_args;
use crate::proto::rsync::handshake::{VERSION_MISMATCH, version_bytes};
use crate::report::early_line;
use crate::report::escape::{self, Charset};
use crate::report::event::errno_words;
use crate::rsync::newest_version;
use crate::transport::Link;
use crate::transport::link::{FAREWELL, Patience};
use crate::transport::shell::{self, SSH_FAILED, Shell, ShellAnswer, ShellCall, ShellExit, Stderr};
use crate::trust::logins::{Answers, Logins};
use crate::trust::paths::Places;
use crate::trust::peers::Peer;
use crate::trust::timestamp::Timestamp;
use crate::work::clock;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The program that was found on the remote side.
pub enum RemoteProgram {
    /// A sparsync.
    Native(Shell, Link),
    /// A stock rsync, with which this program runs the session.
    Rsync(Shell, Link),
}

/// Output that is held back until it is certain that this route is taken.
#[derive(Default)]
pub struct HeldOutput {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl HeldOutput {
    /// Prints the held output.
    pub fn print(&self, env: &mut Env) {
        for (out, text) in [
            (&mut env.stdout, &self.stdout),
            (&mut env.stderr, &self.stderr),
        ] {
            if !text.is_empty() {
                // The output of a login does not affect the copy.
                let _ = out.write_all(text).and_then(|()| out.flush());
            }
        }
    }
}

/// The name of a program that may be either.
const RSYNC: &[u8] = b"rsync";

/// Starts sparsync if a login finds it or `enroll --install` has installed it, else rsync, in one login and without an error message about the missing one. The
/// login shell may be a POSIX shell, csh or fish; a forced command may reject it.
const EITHER: &[u8] =
    b"sh -c 'p=sparsync; command -v $p >/dev/null 2>&1 || { p=$HOME/.local/bin/sparsync; [ -x \"$p\" ] || p=rsync; }; \
      exec \"$p\" \"$@\"' sh";

/// An attempt to reach the remote side through a remote shell.
pub struct ByShell<'a> {
    side: &'a RemoteCopy,
    /// The programs to try on the remote side, in this order.
    programs: Vec<Vec<u8>>,
    /// Where the answer of this host is cached, and the host's name there. `None` if the program is known or was given.
    memory: Option<(Places, String)>,
    charset: Charset,
    umask: u32,
    patience: Patience,
    /// Errors have hints. rsync has none, so a program of its name prints none.
    has_hints: bool,
    /// See [`SilentWait::notice`].
    notice: Option<Vec<u8>>,
}

/// How long the remote side is silent before the user gets a line about it.
const SILENCE: Duration = Duration::from_secs(5);

/// A wait for the first bytes of the remote side.
struct SilentWait {
    /// The line that tells the user, who has no other sign of the wait. `None`: it was printed, or must not be.
    notice: Option<Vec<u8>>,
    /// How long the wait had lasted when the terminal began to show what the user types.
    since: Option<Duration>,
}

impl SilentWait {
    /// Prints the notice if it is due. While the terminal does not show what the user types, ssh asks for a password,
    /// and the time does not count.
    fn look(&mut self, waited: Duration) {
        if self.notice.is_none() {
            return;
        }
        if !env::terminal_echoes() {
            self.since = None;
            return;
        }
        // A wait that begins anew counts from its beginning.
        let since = self.since.unwrap_or(waited).min(waited);
        self.since = Some(since);
        if waited - since >= SILENCE
            && let Some(line) = self.notice.take()
        {
            // As with other output before the session, nothing depends on it.
            let _ = io::stderr().write_all(&line);
        }
    }
}

/// What is known of a host's earlier answer.
struct CachedAnswer<'a> {
    memory: Option<&'a (Places, String)>,
    recalled: Option<Answers>,
    now: Timestamp,
}

impl CachedAnswer<'_> {
    fn remember(&self, answers: Option<Answers>) {
        if answers != self.recalled
            && let Some((places, host)) = self.memory
        {
            // If the cache cannot be written, the next copy tries each program again.
            let _ = Logins::remember(places, host, answers, self.now);
        }
    }
}

impl<'a> ByShell<'a> {
    /// Prepares a copy to a host; `known`: its entry, if it is enrolled.
    pub fn new(side: &'a RemoteCopy, env: &Env, known: Option<&Peer>) -> ByShell<'a> {
        let charset = Charset::for_locale(copy::utf8_locale(env), side.options.output.eight_bit);
        let patience = side.patience(env);
        let programs = programs(side, env, known);
        let connect = &side.options.connect;
        let is_open = known.is_none() && connect.program.is_none();
        let memory = match Places::from_env(env) {
            Ok(places) if is_open => Some((places, login_name(side, &env.cwd))),
            Ok(_) | Err(_) => None,
        };
        ByShell {
            side,
            programs,
            memory,
            charset,
            umask: env.umask,
            patience,
            has_hints: subcommand::is_ours(env.program.as_encoded_bytes()),
            notice: silence_notice(side, env, charset),
        }
    }

    /// Tries sparsync's own name first, whatever name this program was started with. The answer is not cached.
    pub fn for_sparsync(mut self) -> ByShell<'a> {
        if self.side.options.connect.program.is_none() {
            self.programs = vec![EITHER.to_vec(), RSYNC.to_vec()];
        }
        self.memory = None;
        self
    }

    /// Makes the attempt end when `beaten` is set.
    pub fn unless(mut self, beaten: Arc<AtomicBool>) -> ByShell<'a> {
        self.patience.beaten = beaten;
        self
    }

    /// Starts the remote side and reads its first bytes. `is_quiet`: ssh prints nothing and asks the user nothing.
    pub fn connect(&self, is_quiet: bool, held: &mut HeldOutput) -> Result<RemoteProgram> {
        let now = Timestamp(clock::now_unix().0);
        // A run that only rsync can do says nothing about other runs.
        let memory = if self.side.options.requires_rsync().is_none() {
            self.memory.as_ref()
        } else {
            None
        };
        let recalled = memory.and_then(|(places, host)| Logins::recall(places, host, now));
        match self.attempt(
            is_quiet,
            held,
            CachedAnswer {
                memory,
                recalled,
                now,
            },
        )? {
            Some(program) => Ok(program),
            None => {
                let program = self.attempt(
                    is_quiet,
                    held,
                    CachedAnswer {
                        memory,
                        recalled: None,
                        now,
                    },
                )?;
                program.ok_or_else(|| self.no_program(ShellExit::Code(Exit::CmdNotFound.code())))
            }
        }
    }

    /// Tries the programs that a cached answer leaves. `None`: none of them is there, so that the answer is outdated.
    fn attempt(
        &self,
        is_quiet: bool,
        held: &mut HeldOutput,
        cached: CachedAnswer<'_>,
    ) -> Result<Option<RemoteProgram>> {
        let side = self.side;
        let is_by_name = self.programs[0] == RSYNC;
        let skipped = match cached.recalled {
            Some(Answers::RsyncByName) if !is_by_name => 0,
            Some(Answers::Rsync | Answers::RsyncByName | Answers::ForcedCommand) => {
                self.programs.len() - 1
            }
            None => 0,
        };
        // An attempt that leads to another program must print nothing, also not what the stock rsync prints when its
        // connection ends.
        let is_only = self.programs.len() - skipped == 1;
        let is_held = !is_only
            || cached.recalled.is_some()
            || side.options.connect.args == ArgStyle::Secluded;
        let stderr = if is_held {
            Stderr::Held
        } else {
            Stderr::Inherited
        };
        let mut programs = self.programs.iter().skip(skipped).peekable();
        let words = side.rsync_words();
        let mut wait = SilentWait {
            notice: if is_quiet { None } else { self.notice.clone() },
            since: None,
        };
        while let Some(program) = programs.next() {
            let is_last = programs.peek().is_none();
            let call = ShellCall {
                is_quiet,
                connect: &side.options.connect,
                user: side.far.operand.user.as_deref(),
                host: &side.far.operand.host,
                program,
                server_sends: side.far.operand.server_sends,
                words: &words,
                remote_words: &side.far.remote_words,
                paths: side.far_paths(),
            };
            let argv = call.argv();
            let mut shell = self.start(&call, &argv, stderr)?;
            let mut noise = Vec::new();
            let version = version_bytes(newest_version(&side.options));
            let answer = shell.answer(version, &self.patience, &mut noise, &mut |waited| {
                wait.look(waited)
            });
            if is_last || matches!(answer, Ok(ShellAnswer::Native(_))) {
                held.stderr.extend(escape::of_others(&noise));
            }
            self.log_command(&argv, held);
            match answer {
                Ok(ShellAnswer::Native(link)) => {
                    let is_forced = program == RSYNC
                        && (!is_by_name || cached.recalled == Some(Answers::ForcedCommand));
                    cached.remember(if is_forced {
                        Some(Answers::ForcedCommand)
                    } else {
                        None
                    });
                    shell.show_stderr();
                    return Ok(Some(RemoteProgram::Native(shell, link)));
                }
                Ok(ShellAnswer::Rsync(link)) => {
                    let is_all = !is_by_name || cached.recalled == Some(Answers::Rsync);
                    cached.remember(Some(if is_all {
                        Answers::Rsync
                    } else {
                        Answers::RsyncByName
                    }));
                    shell.show_stderr();
                    return Ok(Some(RemoteProgram::Rsync(shell, link)));
                }
                Ok(ShellAnswer::Silent) => {
                    let ended = shell
                        .wait(Some(FAREWELL), &self.patience.stop)
                        .unwrap_or(ShellExit::Killed);
                    let is_refused = program == EITHER && ended != ShellExit::Code(SSH_FAILED);
                    let is_missing = ended == ShellExit::Code(Exit::CmdNotFound.code());
                    if is_last || !is_refused && !is_missing {
                        cached.remember(None);
                        // Only a cached answer skips programs.
                        if skipped > 0 && is_missing {
                            return Ok(None);
                        }
                        shell.show_stderr();
                        return Err(self.no_program(ended));
                    }
                }
                // A forced command may have printed something else.
                Ok(ShellAnswer::Mismatch) if !is_last => {}
                Ok(ShellAnswer::Mismatch) => {
                    shell.show_stderr();
                    return Err(Error::new(Exit::Protocol, VERSION_MISMATCH).by(side.role()));
                }
                Ok(ShellAnswer::GaveUp(error)) | Err(error) => {
                    shell.show_stderr();
                    return Err(self.gave_up(&error));
                }
            }
        }
        Ok(None)
    }

    /// Starts the remote shell, and sends the arguments that are not on its command line.
    fn start(&self, call: &ShellCall<'_>, argv: &[Vec<u8>], stderr: Stderr) -> Result<Shell> {
        let mut shell = Shell::start(argv, self.umask, stderr).map_err(|error| {
            let start = format!("rsync: [{}] Failed to exec ", self.side.role()).into_bytes();
            Error::new(
                Exit::Ipc,
                [&start, &argv[0][..], b": ", &errno_words(&error)].concat(),
            )
            .by(self.side.role())
        })?;
        if let Some(arguments) = call.secluded() {
            let arguments: Vec<_> = arguments
                .iter()
                .map(|arg| charset::line_to_wire(arg).into_owned())
                .collect();
            shell.write_first(&secluded_args(&arguments));
        }
        Ok(shell)
    }

    fn log_command(&self, argv: &[Vec<u8>], held: &mut HeldOutput) {
        let output = &self.side.options.output;
        if output.debug.cmd == 0 || output.quiet {
            return;
        }
        let line = shell::shown("opening connection using", argv);
        if output.stderr == StderrMode::All {
            early_line::put_text(&mut held.stderr, &line, self.charset);
        } else {
            early_line::put(&mut held.stdout, &line, output, self.charset);
        }
    }

    /// Returns the error for a shell that ended before the remote side sent anything.
    fn no_program(&self, ended: ShellExit) -> Error {
        let role = self.side.role();
        if self.patience.stop.load(Ordering::Relaxed) {
            return Error::new(Exit::Signal, "").by(role);
        }
        let words =
            format!("rsync: connection unexpectedly closed (0 bytes received so far) [{role}]");
        let error = Error::new(ended.exit(), words).by(role);
        if self.has_hints && ended == ShellExit::Code(SSH_FAILED) {
            let operand = &self.side.far.operand;
            let host = String::from_utf8_lossy(&operand.host);
            let host = match &operand.user {
                Some(user) => format!("{}@{host}", String::from_utf8_lossy(user)),
                None => host.into_owned(),
            };
            return error.with_hint(shell::login_hint(&self.side.options.connect.shell, &host));
        }
        error
    }

    /// Returns the error for a wait that ended before the remote side sent its first bytes.
    fn gave_up(&self, error: &io::Error) -> Error {
        let role = self.side.role();
        let (exit, words) = match error.kind() {
            io::ErrorKind::ConnectionAborted => (Exit::Signal, Vec::new()),
            io::ErrorKind::TimedOut => {
                let secs = self.side.options.connect.timeout_secs;
                (
                    Exit::Timeout,
                    format!("[{role}] io timeout after {secs} seconds -- exiting").into_bytes(),
                )
            }
            _ => {
                let start = format!("rsync: [{role}] the remote shell could not be read: ");
                (
                    Exit::Stream,
                    [start.as_bytes(), &errno_words(error)].concat(),
                )
            }
        };
        Error::new(exit, words).by(role)
    }
}

/// Returns the name of this host in the cache of answers. With `-e` a short digest of the command and the directory is part
/// of it: another key may have another forced command, the words may name files in that directory, and one of them may be
/// a password.
fn login_name(side: &RemoteCopy, cwd: &[u8]) -> String {
    let host = route::named(&side.far.operand);
    let shell = &side.options.connect.shell;
    if shell.is_empty() {
        return host;
    }
    let [a, b, c, d, ..] = digest::whole_by(By::Blake3, &[&shell.join(&0), cwd].join(&0));
    format!("{host} by {:08x}", u32::from_be_bytes([a, b, c, d]))
}

/// Returns the line about a remote side that is silent. rsync prints none, so neither does this program under its name.
fn silence_notice(side: &RemoteCopy, env: &Env, charset: Charset) -> Option<Vec<u8>> {
    let is_rsync = path::file_name(env.program.as_encoded_bytes()) == RSYNC;
    if is_rsync || !env.stderr_is_tty || side.options.output.quiet {
        return None;
    }
    let host = route::named(&side.far.operand);
    let secs = SILENCE.as_secs();
    let words = format!(
        "sparsync: {host} has sent nothing for {secs} s; still waiting (--timeout=SECONDS limits the wait)"
    );
    let mut line = Vec::new();
    escape::put(&mut line, words.as_bytes(), charset);
    line.push(b'\n');
    Some(line)
}

/// Returns the programs to try on the remote side: the one that `--rsync-path` names, else the one of the enrolled
/// host, else the name that this program was started with. If rsync's protocol is required, an rsync is preferred to a
/// sparsync that serves as one.
fn programs(side: &RemoteCopy, env: &Env, known: Option<&Peer>) -> Vec<Vec<u8>> {
    if let Some(program) = &side.options.connect.program {
        return vec![program.clone()];
    }
    let ours = match known {
        Some(peer) => Some(peer.program.as_deref().map_or(EITHER, str::as_bytes)),
        None if path::file_name(env.program.as_encoded_bytes()) == RSYNC => None,
        None => Some(EITHER),
    };
    let mut programs: Vec<_> = ours
        .into_iter()
        .chain([RSYNC])
        .map(<[u8]>::to_vec)
        .collect();
    if side.options.requires_rsync().is_some() {
        programs.reverse();
    }
    programs
}
