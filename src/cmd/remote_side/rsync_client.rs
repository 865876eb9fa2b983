//! The server's end of a copy whose client is a stock rsync.

use crate::cli::{self, server_args};
use crate::cmd::command_end::fail;
use crate::cmd::{copy, input_files};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{ModuleRules, Parsed};
use crate::flist::Kind;
use crate::fs::glob::{self, WildcardRules};
use crate::fs::{charset, sandbox, sys};
use crate::options::{Checksum, FilesFrom, Options};
use crate::proto::rsync::daemon::decode_secluded_args;
use crate::proto::rsync::handshake::Capabilities;
use crate::report::escape::{self, Charset};
use crate::report::event::errno_words;
use crate::report::{Tally, TextReporter};
use crate::rsync;
use crate::rsync::error::undecodable;
use crate::rsync::server::{DaemonTerms, RsyncServer, SERVER_SUMS};
use crate::transport::Link;
use crate::transport::link::Patience;
use crate::walk::arg_path::{self, listed_names};
use crate::walk::run_context::Process;
use crate::work::clock;
use parking_lot::Mutex;
use std::ffi::OsString;
use std::io::{BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Serves a stock rsync.
pub fn run(env: &mut Env, request: cli::ServeRsync) -> Exit {
    // The character set is not among the arguments that are read here.
    let mut charset_is_set = Ok(());
    if let Ok(options) = &request.options {
        let role = role_of(&request);
        charset_is_set = copy::set_charset(options, role);
        if let Some(line) = rsync::charset_line(options, role) {
            // The client need not read it.
            let _ = env.stderr.write_all(&[&line[..], b"\n"].concat());
        }
    }
    let opened = charset_is_set.and_then(|()| open(env, request));
    match opened {
        Ok((request, options, link)) => serve(env, &request, &options, link),
        Err(error) => fail(env, &error.by("server")),
    }
}

/// Opens the link to the client, and completes the request by the arguments that come over it.
fn open(
    env: &mut Env,
    mut request: cli::ServeRsync,
) -> Result<(cli::ServeRsync, Options, ClientLink)> {
    let mut link = link(env, &request)?;
    if server_args::is_secluded(&request.serve.words) {
        request = with_secluded_args(env, &request.serve, &mut link)?;
    }
    let options = request.options.clone()?;
    Ok((request, options, link))
}

/// Returns the link to the client.
fn link(env: &mut Env, request: &cli::ServeRsync) -> Result<ClientLink> {
    let patience = Patience {
        stop: env.stop.clone(),
        ..Patience::of_a_copy(idle(request.serve.timeout_secs))
    };
    let leaves = patience.beaten.clone();
    let requested = patience.requested.clone();
    let link = copy::stdio_link(env, patience)?;
    let leave: Box<dyn Fn() + Send + Sync> =
        Box::new(move || leaves.store(true, Ordering::Relaxed));
    // Arguments are read byte by byte.
    let reader = Box::new(BufReader::new(link.reader));
    Ok(ClientLink {
        link: Link {
            reader,
            leave: Some(leave),
            ..link
        },
        requested,
    })
}

/// Reads the arguments of `--secluded-args`, and adds them to those of the command line. No shell has expanded them.
fn with_secluded_args(
    env: &Env,
    serve: &cli::Serve,
    link: &mut ClientLink,
) -> Result<cli::ServeRsync> {
    let mut words = serve.words.clone();
    server_args::take_secluded(&mut words);
    let sender = serve.sends.then(|| b"--sender".to_vec());
    let more = decode_secluded_args(&mut link.link.reader).map_err(undecodable)?;
    let more = more.into_iter().map(charset::line_from_wire);
    if let Some(charset) = charset::of_names() {
        charset.convert_lists();
    }
    let line = std::iter::once(b"--server".to_vec())
        .chain(sender)
        .chain(words)
        .chain(more);
    let line: Vec<_> = line.map(OsString::from_vec).collect();
    let (mut request, _) =
        cli::read_rsync_args(&line, env.umask, clock::now_unix().0, &|name| env.var(name));
    if let Some(idle) = idle(request.serve.timeout_secs) {
        // The arguments are read once, so it was not set before.
        let _ = link.requested.set(idle);
    }
    request.serve.operands = request
        .serve
        .operands
        .iter()
        .flat_map(|path| glob::expand(b"", path, WildcardRules::Rsync))
        .collect();
    Ok(request)
}

fn idle(timeout_secs: u32) -> Option<Duration> {
    (timeout_secs > 0).then(|| Duration::from_secs(timeout_secs.into()))
}

/// A link whose timeout may still change.
struct ClientLink {
    link: Link,
    requested: Arc<OnceLock<Duration>>,
}

fn serve(env: &mut Env, request: &cli::ServeRsync, options: &Options, link: ClientLink) -> Exit {
    sys::lift_open_files(sys::OPEN_FILES_MAX);
    let run = RsyncRun {
        request,
        options,
        daemon: None,
    };
    let mut tally = Tally::default();
    match run.serve(env, link.link, &mut tally) {
        Ok(()) => tally.exit_of_server(),
        Err(error) => fail(env, &error.or_by(role_of(request))),
    }
}

/// Returns the role of this end in messages.
pub fn role_of(request: &cli::ServeRsync) -> &'static str {
    if request.serve.sends {
        "sender"
    } else {
        "Receiver"
    }
}

fn is_dir(path: &[u8]) -> bool {
    sys::stat_path(path, true).is_ok_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::Dir))
}

/// Returns the beginning of a path that names a descriptor, which a forced command such as rrsync has opened.
fn held_dir(path: &[u8]) -> Option<&[u8]> {
    const HELD: &[u8] = b"/proc/self/fd/";
    let digits = path
        .strip_prefix(HELD)?
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    (digits > 0).then(|| &path[..HELD.len() + digits])
}

/// The request of a stock rsync, ready to be served.
pub struct RsyncRun<'a> {
    pub request: &'a cli::ServeRsync,
    /// The options of the request. A daemon has applied the parameters of its module to them.
    pub options: &'a Options,
    /// Set if a daemon serves the client.
    pub daemon: Option<DaemonSide<'a>>,
}

/// What this end has read before a session with a stock rsync.
struct ReadInputs {
    /// The names in the file of `--files-from`, if it is on this machine.
    listed: Option<Vec<Vec<u8>>>,
    /// The rules of this end.
    own_rules: input_files::InputFiles,
    /// The error that the client gets instead of a session.
    refusal: Option<Error>,
}

impl RsyncRun<'_> {
    /// Serves the client.
    pub fn serve(mut self, env: &mut Env, link: Link, tally: &mut Tally) -> Result<()> {
        let ReadInputs {
            listed,
            own_rules,
            refusal,
        } = self.confine_and_read(env)?;
        let request = self.request;
        let options = self.options;
        let complete_rules = |mut rules: Vec<Parsed>, protocol: u8| {
            // A client that sends has completed them, except that rules cannot name merge files before protocol 29.
            let lacks = |rule: &Parsed| {
                request.serve.sends || protocol < 29 && matches!(rule, Parsed::Merge(_))
            };
            rules.extend(own_rules.parsed.iter().filter(|rule| lacks(rule)).cloned());
            let complete = input_files::InputFiles {
                parsed: rules.into(),
                ..own_rules.clone()
            };
            complete.rules(options)
        };
        let sums = supported_sums(env);
        // As in rsync, converted names are not those of the locale.
        let is_utf8 = copy::utf8_locale(env) && options.connect.iconv.is_none();
        let charset = Charset::for_locale(is_utf8, options.output.eight_bit);
        let cwd = env.cwd.clone();
        let stop = env.stop.clone();
        let umask = env.umask;
        let is_daemon = self.daemon.is_some();
        // A daemon has a log of its own.
        let (mut log, log_trouble) = match &mut self.daemon {
            Some(daemon) => (daemon.transfer_log.take(), Vec::new()),
            None => copy::log_of_server(env, options, request.serve.sends),
        };
        let log = log.as_mut().map(Mutex::new);
        let stderr = Mutex::new(&mut env.stderr);
        let print_error = |line: &[u8]| {
            if is_daemon {
                // The log and the client have it.
                return;
            }
            let mut text = Vec::new();
            escape::put(&mut text, line, charset);
            text.push(b'\n');
            // The exit code reports the error as well.
            let _ = stderr.lock().write_all(&text);
        };
        let server = RsyncServer {
            options,
            words: &request.serve.words,
            operands: &request.serve.operands,
            listed,
            sums,
            capabilities: Capabilities::parse(&request.capabilities),
            seed: match request.checksum_seed {
                0 => new_seed(),
                seed => seed,
            },
            complete_rules: &complete_rules,
            print_error: &print_error,
            process: Process {
                cwd: &cwd,
                umask,
                stop: &stop,
                threads: copy::threads(),
                checksum_cache: None,
                stored: None,
                explainer: None,
            },
            daemon: self.daemon.as_ref().map(|daemon| daemon.terms),
            log: log.as_ref(),
        };
        for (_, line) in log_trouble.iter().filter_map(rsync::text_of) {
            print_error(line);
        }

        // All files that the operator named are open by now; what follows is done as the other user.
        let refusal = refusal.or_else(|| copy::copy_as(options, role_of(request)).err());
        if let Some(refusal) = refusal {
            server.refuse(link, &refusal)?;
            return Err(Error::new(refusal.exit, "").by(""));
        }
        if request.serve.sends {
            server.send(link, tally)
        } else {
            server.receive(link, tally)
        }
    }

    /// Confines this process, and reads the files that the options name. The client of a daemon gets an error as the
    /// refusal of its session; without a daemon, it ends this process.
    fn confine_and_read(&self, env: &Env) -> Result<ReadInputs> {
        let mut refusal = match &self.daemon {
            Some(daemon) => daemon.refusal.clone(),
            None => self.request.refusal.clone(),
        };
        // The list can be a descriptor that the forced command has opened. It can no longer be read once the process is
        // confined, so it is read first.
        let list_is_open = match &self.options.select.files_from {
            Some(FilesFrom::File(path)) => held_dir(path).is_some(),
            Some(FilesFrom::Far(_) | FilesFrom::Sent(_) | FilesFrom::Stdin) | None => false,
        };
        if !list_is_open {
            self.confine(&env.cwd)?;
        }
        let mut listed = None;
        if refusal.is_none() {
            match read_listed(env, self.request, self.options) {
                Ok(names) => listed = names,
                Err(error) if self.daemon.is_some() => {
                    refusal = Some(error.by(role_of(self.request)));
                }
                Err(error) => return Err(error),
            }
        }
        if list_is_open {
            self.confine(&env.cwd)?;
        }

        // The rules come from the client. This reads those of `-C`.
        let mut own_rules = match input_files::rules(env, self.options) {
            Ok(read) => read,
            Err(error) if self.daemon.is_some() => {
                refusal.get_or_insert(error.by(role_of(self.request)));
                input_files::InputFiles::default()
            }
            Err(error) => return Err(error),
        };
        own_rules.module = match &self.daemon {
            Some(daemon) => daemon.rules.clone(),
            None => None,
        };
        Ok(ReadInputs {
            listed,
            own_rules,
            refusal,
        })
    }

    /// Confines this process to the directory of `--confine-root`, and to the operands, which the user of the option
    /// chooses. A daemon has confined it already.
    fn confine(&self, cwd: &[u8]) -> Result<()> {
        let Some(dir) = &self.request.confine_root else {
            return Ok(());
        };
        if self.daemon.is_some() {
            return Ok(());
        }
        let operands = &self.request.serve.operands;
        let options = self.options;
        let place = &options.place;
        let mut roots = vec![dir.clone()];
        for path in operands {
            if is_dir(path) {
                roots.push(arg_path::absolute(cwd, path));
            }
        }
        let backup_dir = place.backup.as_ref().and_then(|backup| backup.dir.as_ref());
        let alternates = options.delta.alt_dest.iter().flat_map(|alt| &alt.dirs);
        let log = options.output.log_file.iter().map(|log| &log.path);
        let named = backup_dir
            .into_iter()
            .chain(&place.temp_dir)
            .chain(&place.partial_dir)
            .chain(alternates)
            .chain(operands)
            .chain(log);
        for path in named {
            if let Some(held) = held_dir(path) {
                roots.push(held.to_vec());
            }
        }
        sandbox::confine_to_root(&roots).map_err(|error| {
            let words = [
                b"sparsync: cannot confine this process to ",
                &dir[..],
                b": ",
                &errno_words(&error),
            ]
            .concat();
            Error::new(Exit::Unsupported, words)
        })
    }
}

/// Returns the checksums that this server offers, of which `RSYNC_CHECKSUM_LIST` can leave some out.
fn supported_sums(env: &Env) -> Vec<Checksum> {
    let listed = env.var("RSYNC_CHECKSUM_LIST").unwrap_or_default();
    let mut sums = SERVER_SUMS.to_vec();
    if let Some(listed) = cli::supported_checksums(listed.as_bytes()) {
        sums.retain(|sum| listed.contains(sum));
    }
    sums
}

/// Reads the names of a `--files-from` list on this machine, if there is one.
fn read_listed(
    env: &Env,
    request: &cli::ServeRsync,
    options: &Options,
) -> Result<Option<Vec<Vec<u8>>>> {
    let Some(from @ FilesFrom::File(_)) = &options.select.files_from else {
        return Ok(None);
    };
    let list = input_files::files_from(env, from, options.preserve.link_owners)?;
    Ok(Some(listed_names(
        &list,
        options.select.from0,
        request.serve.sends,
    )))
}

/// What a daemon adds to a session.
pub struct DaemonSide<'a> {
    /// The terms of the module.
    pub terms: DaemonTerms<'a>,
    pub rules: Option<Arc<ModuleRules>>,
    /// The error if the arguments of the client are not accepted.
    pub refusal: Option<Error>,
    /// Logs the entries of the session.
    pub transfer_log: Option<TextReporter>,
}

/// Returns a seed that differs from run to run, as rsync's does.
fn new_seed() -> i32 {
    let (secs, nanos) = clock::now_unix();
    (secs as i32) ^ nanos.rotate_left(10).cast_signed()
}
