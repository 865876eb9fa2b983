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
use crate::options::{FilesFrom, Options};
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
    // It is not among the arguments that are read here.
    let charset_is_set = match &request.options {
        Ok(options) => copy::set_charset(options, role_of(&request)),
        Err(_) => Ok(()),
    };
    if let Some(line) = request
        .options
        .as_ref()
        .ok()
        .and_then(|options| rsync::charset_line(options, role_of(&request)))
    {
        // The client need not read it.
        let _ = env.stderr.write_all(&[&line[..], b"\n"].concat());
    }
    let served = charset_is_set
        .and_then(|()| link(env, &request))
        .and_then(|link| {
            // Arguments that are read here cannot be read again.
            if server_args::is_secluded(&request.serve.words) {
                with_secluded_args(env, &request.serve, link)
            } else {
                Ok((request, link))
            }
        });
    let served = served.and_then(|(request, link)| {
        let options = request.options.clone()?;
        Ok((request, options, link))
    });
    match served {
        Ok((request, options, link)) => serve(env, &request, &options, link),
        Err(error) => fail(env, &error.by("server")),
    }
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
    mut link: ClientLink,
) -> Result<(cli::ServeRsync, ClientLink)> {
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
    Ok((request, link))
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
    let mut tally = Tally::default();
    let ended = serve_over(env, request, options, (link.link, None), &mut tally);
    match ended {
        Ok(()) => tally.exit_of_server(),
        Err(error) => fail(env, &error.or_by(role_of(request))),
    }
}

/// The role of this end in messages.
pub fn role_of(request: &cli::ServeRsync) -> &'static str {
    if request.serve.sends {
        "sender"
    } else {
        "Receiver"
    }
}

/// Confines this process to the directory of `--confine-root`, and to the operands, which the user of the option chooses.
fn confine(dir: &[u8], (cwd, request): (&[u8], &cli::ServeRsync), options: &Options) -> Result<()> {
    let mut roots = vec![dir.to_vec()];
    let operands = &request.serve.operands;
    roots.extend(
        operands
            .iter()
            .filter(|path| is_dir(path))
            .map(|path| arg_path::absolute(cwd, path)),
    );
    let place = &options.place;
    let backup = place.backup.as_ref().and_then(|backup| backup.dir.as_ref());
    let named = backup
        .into_iter()
        .chain(&place.temp_dir)
        .chain(&place.partial_dir);
    let log = options.output.log_file.iter().map(|log| &log.path);
    let named = named
        .chain(options.delta.alt_dest.iter().flat_map(|alt| &alt.dirs))
        .chain(operands)
        .chain(log);
    roots.extend(named.filter_map(|path| held_dir(path)).map(<[u8]>::to_vec));
    sandbox::confine_to_root(&roots).map_err(|error| {
        let words = [
            b"sparsync: cannot confine this process to ",
            dir,
            b": ",
            &errno_words(&error),
        ]
        .concat();
        Error::new(Exit::Unsupported, words)
    })
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

/// Serves the client. `daemon`: what a daemon adds.
pub fn serve_over(
    env: &mut Env,
    request: &cli::ServeRsync,
    options: &Options,
    (link, mut daemon): (Link, Option<DaemonSide<'_>>),
    tally: &mut Tally,
) -> Result<()> {
    // The list can be a descriptor that the forced command has opened. It can no longer be read once the process is
    // confined, so it is read first.
    let is_opened = matches!(&options.select.files_from, Some(FilesFrom::File(path)) if held_dir(path).is_some());
    // A daemon has confined the session already.
    let confinement = if daemon.is_none() {
        request.confine_root.as_ref()
    } else {
        None
    };
    if let Some(dir) = confinement
        && !is_opened
    {
        confine(dir, (&env.cwd, request), options)?;
    }

    let mut refusal = match &daemon {
        Some(daemon) => daemon.refusal.clone(),
        None => request.refusal.clone(),
    };
    let listed = match refusal
        .is_none()
        .then(|| read_listed(env, request, options))
        .transpose()
    {
        Err(error) if daemon.is_some() => {
            refusal = Some(error.by(role_of(request)));
            None
        }
        listed => listed?.flatten(),
    };
    if let Some(dir) = confinement
        && is_opened
    {
        confine(dir, (&env.cwd, request), options)?;
    }
    // The rules come from the client. This reads those of `-C`.
    let module = daemon.as_ref().and_then(|daemon| daemon.rules.clone());
    let read = match input_files::rules(env, options) {
        Err(error) if daemon.is_some() => {
            refusal.get_or_insert(error.by(role_of(request)));
            input_files::InputFiles::default()
        }
        read => read?,
    };
    let own = input_files::InputFiles { module, ..read };
    let complete_rules = |parsed: Vec<_>, protocol: u8| {
        let own = own.clone();
        let of_this_end = own.parsed.iter().filter(|parsed| {
            // A client that sends has completed them, except that rules cannot name merge files before protocol 29.
            request.serve.sends || protocol < 29 && matches!(parsed, Parsed::Merge(_))
        });
        let parsed: Vec<_> = parsed.into_iter().chain(of_this_end.cloned()).collect();
        input_files::InputFiles {
            parsed: parsed.into(),
            ..own
        }
        .rules(options)
    };
    let sums = match cli::supported_checksums(
        env.var("RSYNC_CHECKSUM_LIST")
            .unwrap_or_default()
            .as_bytes(),
    ) {
        Some(listed) => SERVER_SUMS
            .iter()
            .copied()
            .filter(|sum| listed.contains(sum))
            .collect(),
        None => SERVER_SUMS.to_vec(),
    };
    // As in rsync, converted names are not those of the locale.
    let is_utf8 = copy::utf8_locale(env) && options.connect.iconv.is_none();
    let charset = Charset::for_locale(is_utf8, options.output.eight_bit);
    let cwd = env.cwd.clone();
    let umask = env.umask;
    let stop = env.stop.clone();
    let is_daemon = daemon.is_some();
    // A daemon has a log of its own.
    let (mut log, log_trouble) = match &mut daemon {
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
        seed: if request.checksum_seed == 0 {
            new_seed()
        } else {
            request.checksum_seed
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
        daemon: daemon.as_ref().map(|daemon| daemon.terms),
        log: log.as_ref(),
    };
    for (_, line) in log_trouble.iter().filter_map(rsync::text_of) {
        print_error(line);
    }
    // All files that the operator named are open by now; what follows is done as the other user.
    let refusal = refusal.or_else(|| copy::copy_as(options, role_of(request)).err());
    match refusal {
        Some(refusal) => server
            .refuse(link, &refusal)
            .and(Err(Error::new(refusal.exit, "").by(""))),
        None if request.serve.sends => server.send(link, tally),
        None => server.receive(link, tally),
    }
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
    /// Why the arguments of the client are not accepted.
    pub refusal: Option<Error>,
    /// Logs the entries of the session.
    pub transfer_log: Option<TextReporter>,
}

/// Returns a seed that differs from run to run, as rsync's does.
fn new_seed() -> i32 {
    let (secs, nanos) = clock::now_unix();
    (secs as i32) ^ nanos.rotate_left(10).cast_signed()
}
