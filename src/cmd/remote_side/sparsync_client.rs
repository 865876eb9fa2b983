//! The server's end of a copy: talks to the client on standard input and output.

use super::ephemeral_server::AcceptedEphemeral;
use crate::cli::subcommand::Session;
use crate::cmd::command_end::fail;
use crate::cmd::{copy, input_files};
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Side;
use crate::fs::glob::{self, WildcardRules};
use crate::fs::sandbox::{self, Sandbox};
use crate::fs::{ids, landlock, sys, trusted_path};
use crate::native::compression_choice;
use crate::native::handshake;
use crate::native::handshake::Opening;
use crate::native::server::{Server, SettledSetup};
use crate::options::CacheChoice;
use crate::options::permits::Permits;
use crate::options::{
    ArgStyle, FilesFrom, LinkOwners, Options, PeerLinks, PlanUse, RemoveSource, plan_use,
};
use crate::proto::greeting::MAGIC;
use crate::proto::message::ASKS_FIRST;
use crate::proto::rsync::daemon::decode_args;
use crate::proto::rsync::handshake::announced_version;
use crate::proto::{ProtocolSupport, Setup};
use crate::report::event::errno_words;
use crate::session::module_log::ModuleLog;
use crate::session::refusal::Refusal;
use crate::transport::link::{Link, Patience};
use crate::transport::window_limit::Ceiling;
use crate::walk::arg_path::{listed_names, split_kept};
use crate::work::clock;
use crate::{cli, path};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Duration;

/// What a session may allocate beyond the server's budget, in bytes: stacks and reserves of its threads count as allocated
/// although most of their pages are never used. The budget itself is enforced on used pages, by the server.
const SESSION_RESERVE_BYTES: u64 = 512 << 20;

/// What was authorized before the client sent anything.
enum Authority<'a> {
    /// The command line of a remote shell. A forced command may have approved it.
    CommandLine(&'a cli::Serve),
    /// The command line that the daemon of a module has accepted.
    Module(&'a ServedModule<'a>),
    /// The grant of the client's key. All else comes from the client.
    Grant(&'a Session),
    /// Nothing can be served, for this reason.
    Nothing(Error),
}

/// A client of a module, whose command line was accepted.
pub struct ServedModule<'a> {
    /// The command line, with paths in the module.
    pub serve: &'a cli::Serve,
    /// Applies the parameters of the module to the options of the client.
    pub adapt: &'a dyn Fn(&mut Options),
    /// The log of the daemon.
    pub log: Arc<ModuleLog>,
}

impl Authority<'_> {
    /// Returns the command line beyond which the client must not go.
    fn command_line(&self) -> Option<&cli::Serve> {
        match self {
            Authority::CommandLine(serve) => Some(serve),
            Authority::Module(module) => Some(module.serve),
            Authority::Grant(_) | Authority::Nothing(_) => None,
        }
    }

    /// Returns how far the windows of the session may grow, which a server with several sessions limits.
    fn window_ceiling(&self) -> Ceiling {
        match self {
            Authority::Grant(granted) => granted
                .ceiling
                .and_then(|number| Ceiling::inherited(number).ok())
                .unwrap_or_default(),
            Authority::CommandLine(_) | Authority::Module(_) | Authority::Nothing(_) => {
                Ceiling::default()
            }
        }
    }

    /// Returns whether the client may do less here than it could through a remote shell.
    fn is_limited(&self) -> bool {
        match self {
            Authority::CommandLine(_) | Authority::Module(_) => false,
            Authority::Grant(granted) => {
                granted.read_only
                    || granted.owner.is_some()
                    || !sandbox::are_everything(&granted.roots)
            }
            Authority::Nothing(_) => true,
        }
    }
}

/// Serves one client that connected through a remote shell.
pub fn run(env: &mut Env, request: cli::Serve) -> Exit {
    let secs = u64::from(request.timeout_secs);
    let idle = (secs > 0).then(|| Duration::from_secs(secs));
    converse(env, idle, &Authority::CommandLine(&request))
}

/// Serves one client that a server admitted, within the grant of its key.
pub fn session(env: &mut Env, granted: &Session) -> Exit {
    // A symlink gives the server of an ordinary user access to nothing new.
    let granted = &Session {
        no_munge: granted.no_munge || sys::ids().0 != 0,
        ..granted.clone()
    };
    let authority = match begin_session(env, granted) {
        Ok(()) => Authority::Grant(granted),
        // The client must receive the reason. It would take a plain disconnect for a lost connection, and reconnect.
        Err(error) => Authority::Nothing(error),
    };
    converse(env, None, &authority)
}

/// Takes on the user and the limits of a grant, before anything is read from the client.
fn begin_session(env: &mut Env, granted: &Session) -> Result<(), Error> {
    let identity = match &granted.owner {
        Some(owner) => become_owner(owner),
        None => Ok(()),
    };
    // The change of the user would cancel it.
    sys::end_with_parent();
    if let Some(budget_bytes) = granted.memory {
        sys::limit_memory(budget_bytes.saturating_add(SESSION_RESERVE_BYTES));
    }
    identity?;
    if granted.too_large
        && let Some(budget_bytes) = granted.memory
    {
        let words = format!(
            "sparsync: cannot serve this copy: it exceeds --memory of the server ({} MiB)",
            budget_bytes >> 20
        );
        let hint = "run `sparsync server restart --memory=SIZE` there, or copy in parts";
        return Err(Error::new(Exit::Malloc, words).with_hint(hint));
    }
    // Its directory is not among those that the client may use, so it is opened before the process is confined.
    env.checksum_cache.open(&CacheChoice {
        dir: copy::checksum_cache_dir(env),
        force: false,
    });
    let open_root = |root: &[u8]| trusted_path::open_dir_to_search(root, LinkOwners::Trusted);
    if let Err(error) = sandbox::confine(&granted.roots, granted.read_only, &open_root) {
        can_limit()?;
        let roots = granted.roots.join(&b' ');
        let shown = String::from_utf8_lossy(&roots);
        let error = errno_words(&error);
        let why = String::from_utf8_lossy(&error);
        let words = format!("sparsync: cannot open any granted directory ({shown}): {why}");
        return Err(Error::new(Exit::FileSelect, words));
    }
    refuse_other_changes(env, granted);
    Ok(())
}

/// Has the kernel refuse the changes that the sandbox of this process refuses. The sandbox alone must do on a kernel that
/// cannot.
fn refuse_other_changes(env: &Env, granted: &Session) {
    let Some(mut dirs) = sandbox::of_process().and_then(Sandbox::changeable_dirs) else {
        return;
    };
    if !granted.read_only {
        dirs.extend(env.checksum_cache.store_dir());
    }
    let _ = landlock::refuse_changes_outside(&dirs);
}

/// Changes the user of this process to the owner of a grant.
fn become_owner(owner: &str) -> Result<(), Error> {
    let account = account_of(owner)?;
    if sys::ids().0 != 0 {
        return Ok(());
    }
    sys::become_user(account.uid, &[account.gid]).map_err(|(_, error)| {
        cannot_run_as(
            Exit::StartClient,
            owner,
            &String::from_utf8_lossy(&errno_words(&error)),
        )
    })
}

fn cannot_run_as(exit: Exit, owner: &str, why: &str) -> Error {
    Error::new(
        exit,
        format!("sparsync: cannot run sessions as {owner}: {why}"),
    )
}

/// Returns the account of the owner of a grant. Fails if it does not exist, or if a server of this user cannot run sessions
/// as it.
pub fn account_of(owner: &str) -> Result<ids::Account, Error> {
    let account = ids::account(owner).map_err(|why| {
        let hint =
            "`sparsync server grant --owner=USER` on the machine of the server names another user";
        cannot_run_as(Exit::StartClient, owner, why).with_hint(hint)
    })?;
    match sys::ids() {
        (0, _) => Ok(account),
        own if own == (account.uid, account.gid) => Ok(account),
        _ => {
            let why = "only a server of root can run sessions as other users or groups";
            Err(cannot_run_as(Exit::Unsupported, owner, why)
                .with_hint("run the server as root, or as that user"))
        }
    }
}

/// Fails if the kernel cannot confine a session to directories.
pub fn can_limit() -> Result<(), Error> {
    sandbox::can_confine().map_err(|error| {
        let why = errno_words(&error);
        let words =
            format!("sparsync: cannot limit sessions to directories: openat2: {}", String::from_utf8_lossy(&why));
        Error::new(Exit::Unsupported, words)
            .with_hint("--root needs Linux 5.6, and a container must permit openat2; a grant without --root works")
    })
}

fn converse(env: &mut Env, idle: Option<Duration>, authority: &Authority<'_>) -> Exit {
    let patience = Patience {
        stop: env.stop.clone(),
        ..Patience::of_a_copy(idle)
    };
    let link = match copy::stdio_link(env, patience.clone()) {
        Ok(link) => link,
        Err(error) => return fail(env, &error),
    };
    let link = Link {
        reader: Box::new(BehindPreamble {
            inner: link.reader,
            first: None,
        }),
        ..link
    };
    sys::share_memory_pools();
    sys::lift_open_files(sys::OPEN_FILES_MAX);
    let server_stops = match authority {
        Authority::Grant(_) => env.handle_server_stop().unwrap_or_default(),
        _ => Arc::default(),
    };
    let settle = |setup: &Setup| {
        let settled = settle(setup, authority, env)?;
        if settled.options.connect.timeout_secs > 0 {
            // Settled once in a session.
            let _ = patience.requested.set(Duration::from_secs(
                settled.options.connect.timeout_secs.into(),
            ));
        }
        Ok(SettledSetup {
            server_stops: server_stops.clone(),
            ..settled
        })
    };
    let asks_first = if authority.is_limited() {
        ASKS_FIRST
    } else {
        0
    };
    let support = support(env, asks_first);
    let server = Server {
        process: copy::process(env),
        settle: &settle,
        daemon: None,
    };
    let is_by_shell = matches!(authority, Authority::CommandLine(_));
    let played = handshake::greet(link, &support).and_then(|opening| match opening {
        Opening::Session(begun) => Ok(server.play(*begun)),
        Opening::Meeting(client) if is_by_shell => {
            let (once, link) = AcceptedEphemeral::open(env, client, &patience)?;
            let exit = server.serve(link, &support);
            once.leave();
            Ok(exit)
        }
        Opening::Meeting(client) => Err(client.reject()),
    });
    played.unwrap_or_else(|error| match error.exit {
        // The standard error of a session is the log of its server, which contains lost connections anyway.
        exit if is_by_shell || exit == Exit::Stream => exit,
        _ => fail(env, &error),
    })
}

/// Serves one client of a module. The link begins behind the arguments.
pub fn of_module(env: &Env, link: Link, module: &ServedModule<'_>) -> Exit {
    let settle = |setup: &Setup| settle(setup, &Authority::Module(module), env);
    let server = Server {
        process: copy::process(env),
        settle: &settle,
        daemon: Some(module.log.clone()),
    };
    server.serve(link, &support(env, 0))
}

/// Returns the protocol versions and features of this server. `asks_first`: [`ASKS_FIRST`] or 0.
fn support(env: &Env, asks_first: u64) -> ProtocolSupport {
    let listed = env.var("RSYNC_COMPRESS_LIST").unwrap_or_default();
    let compressions = cli::supported_compressions(listed.as_bytes());
    ProtocolSupport::ours(compression_choice::features(compressions.as_deref()) | asks_first)
}

/// A stream without what a client sends through a remote shell before its greeting, because a stock rsync would not
/// answer without it: the arguments of `--secluded-args`, which the session contains again, and its version of rsync's
/// protocol.
struct BehindPreamble<R> {
    inner: R,
    /// The first bytes of the greeting that are not passed on yet; `None`: nothing was read.
    first: Option<io::Cursor<Vec<u8>>>,
}

impl<R: Read> Read for BehindPreamble<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let first = match &mut self.first {
            Some(first) => first,
            None => self
                .first
                .insert(io::Cursor::new(skip_preamble(&mut self.inner)?)),
        };
        match first.read(buffer)? {
            0 => self.inner.read(buffer),
            len => Ok(len),
        }
    }
}

/// Skips what precedes a greeting. Returns the first bytes of the greeting if they had to be read.
fn skip_preamble(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let first = read_four(stream)?;
    if is_version(&first) {
        return Ok(Vec::new());
    }
    if first.first().is_none_or(|&byte| byte == MAGIC[0]) {
        return Ok(first);
    }

    let mut stream = first.chain(stream);
    decode_args(&mut stream, 0).map_err(|error| {
        let words = format!("neither a greeting nor arguments: {error}");
        io::Error::new(io::ErrorKind::InvalidData, words)
    })?;
    let behind = read_four(&mut stream)?;
    if is_version(&behind) {
        return Ok(Vec::new());
    }
    Ok(behind)
}

/// Reads four bytes, or less at the end of the stream.
fn read_four(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(4).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_version(bytes: &[u8]) -> bool {
    <[u8; 4]>::try_from(bytes).is_ok_and(|bytes| announced_version(bytes).is_some())
}

/// Parses and checks a client's request. Rejects it if it exceeds what was authorized.
fn settle(setup: &Setup, authority: &Authority<'_>, env: &Env) -> Result<SettledSetup, Refusal> {
    let mut options = requested_options(setup, authority)?;
    check_plan(setup, authority, &options)?;
    if setup.listed.is_some() && options.select.files_from != Some(FilesFrom::Stdin) {
        // Listed names can lead through symlinks, out of the directory that a forced command has approved.
        return Err(rejected_request("names are listed without --files-from=-").into());
    }
    if let Some(choice) = &mut options.checksum_cache {
        // The client's directory is one of its own machine. A module has no user whose state directory could be used.
        choice.dir = match authority {
            Authority::Module(_) => None,
            _ => copy::checksum_cache_dir(env),
        };
    }
    if let Some(root) = &options.confine_root {
        trusted_path::confine(root);
    }
    if let Authority::Grant(granted) = authority {
        within(setup, &options, granted).map_err(Refusal::NotGranted)?;
        let has_roots = !sandbox::are_everything(&granted.roots);
        options.preserve.strips_privileges = has_roots && !granted.allow_setuid;
        if has_roots && !granted.no_munge {
            options.preserve.peer_links = PeerLinks::Munged;
        }
    }
    check_remote_words(setup)?;

    let inputs = input_files::InputFiles {
        module: None,
        parsed: setup.rules.clone(),
        cvs_home: setup.cvs_home.clone(),
        cvs_env: setup.cvs_env.clone(),
        files: Vec::new(),
        too_long: Vec::new(),
        module_dir: input_files::module_dir(env),
    };
    let rules = inputs.rules(&options);
    let operands = requested_paths(setup, authority, &options, env);
    if operands.is_empty() && (setup.server_sends || !options.select.list_only) {
        return Err(rejected_request("no path given").into());
    }
    let beyond = if authority.is_limited() {
        beyond(setup, &options, &operands)
    } else {
        None
    };
    let listed = match listed_names_of(setup, &options, env) {
        Ok(listed) => listed,
        // The file of the list may be one of the paths that the grant does not cover.
        Err(error) if beyond.is_some() => return Err(Refusal::NotGranted(error)),
        Err(error) => return Err(Refusal::Failed(error)),
    };
    let reads_rules = rules.chain(Side::Receiver, b"").has_per_dir();
    let repeats = matches!(authority, Authority::Grant(_))
        && Permits::new(&options, reads_rules).forbids_repeat.is_none();
    if matches!(authority, Authority::CommandLine(_)) {
        let role = if setup.server_sends {
            "sender"
        } else {
            "Receiver"
        };
        copy::copy_as(&options, role)?;
    }
    Ok(SettledSetup {
        options,
        rules,
        operands,
        listed,
        repeats,
        server_stops: Arc::default(),
        ceiling: authority.window_ceiling(),
        beyond,
    })
}

/// Returns the options that a client requests, with those of an approved command line, beyond which they must not go.
fn requested_options(setup: &Setup, authority: &Authority<'_>) -> Result<Options, Refusal> {
    if let Some(serve) = authority.command_line() {
        same_as_approved(setup, serve)?;
    }
    if matches!(authority, Authority::Module(_)) && !setup.operands.is_empty() {
        return Err(rejected_request("the paths come twice").into());
    }
    let words = &setup.words[..];
    let remote_words = &setup.remote_words[..];
    let umask = setup.umask;
    let now = clock::now_unix().0;
    match authority {
        Authority::CommandLine(serve) => {
            Ok(cli::settle_session(serve, words, remote_words, umask, now)?)
        }
        Authority::Module(module) => {
            let mut options = cli::settle_session(module.serve, words, remote_words, umask, now)?;
            (module.adapt)(&mut options);
            Ok(options)
        }
        Authority::Grant(_) => Ok(cli::settle(words, remote_words, umask, now)?),
        Authority::Nothing(why) => Err(Refusal::NotGranted(why.clone())),
    }
}

/// Rejects a run with a plan if it has options whose effect a plan cannot record, or that only this server knows.
fn check_plan(setup: &Setup, authority: &Authority<'_>, options: &Options) -> Result<(), Error> {
    if !setup.wants.planned && options.plan_use == PlanUse::Free {
        return Ok(());
    }
    let unrequested = match authority {
        Authority::CommandLine(_) => {
            let now = clock::now_unix().0;
            let requested = cli::settle(&setup.words, &setup.remote_words, setup.umask, now)?;
            plan_use::unrequested(options, &requested)
        }
        Authority::Module(_) | Authority::Grant(_) | Authority::Nothing(_) => None,
    };
    let Some(option) = unrequested.or_else(|| plan_use::unrecorded(options)) else {
        return Ok(());
    };
    let words = format!(
        "{option} is on the command line of this server, and a plan cannot record what it does"
    );
    Err(rejected_request(&words).with_hint("copy without a plan"))
}

/// Returns the paths of a request on this machine: those of the command line, or those of the session with their wildcards
/// expanded.
fn requested_paths(
    setup: &Setup,
    authority: &Authority<'_>,
    options: &Options,
    env: &Env,
) -> Vec<Vec<u8>> {
    // Only the command line of a listing has a destination.
    if options.select.list_only && !setup.server_sends {
        return Vec::new();
    }
    if setup.operands.is_empty() {
        return match authority.command_line() {
            Some(serve) => serve.operands.clone(),
            None => Vec::new(),
        };
    }
    // No shell has expanded these. With --secluded-args, one would not have over ssh either.
    let is_secluded = options.connect.args == ArgStyle::Secluded;
    let mut paths = Vec::new();
    for path in &setup.operands {
        paths.extend(if is_secluded {
            glob::expand(b"", path, WildcardRules::Rsync)
        } else {
            expand_as_login_shell(env, path, setup.server_sends)
        });
    }
    paths
}

/// Returns the names of `--files-from`, which the client has sent or which are in a file on this machine.
fn listed_names_of(
    setup: &Setup,
    options: &Options,
    env: &Env,
) -> Result<Option<Vec<Vec<u8>>>, Error> {
    if let Some(listed) = &setup.listed {
        return Ok(Some(listed.clone()));
    }
    let Some(from @ FilesFrom::File(_)) = &options.select.files_from else {
        return Ok(None);
    };
    let list = input_files::files_from(env, from, options.preserve.link_owners)?;
    Ok(Some(listed_names(&list, options.select.from0, true)))
}

/// Rejects options that the user has sent to this end alone, and that mean nothing there.
fn check_remote_words(setup: &Setup) -> Result<(), Error> {
    for word in &setup.remote_words {
        let option = word.split(|&byte| byte == b'=').next().unwrap_or_default();
        // A sender applies `--chmod`, and a receiver finds the modes as they should be. What `--append` leaves out is
        // known to the sender only from the options that both have.
        let is_of_both = matches!(option, b"--chmod" | b"--append" | b"--append-verify");
        let whose = if is_of_both && !setup.server_sends {
            "a server that receives"
        } else if option == b"--only-write-batch" {
            "a server"
        } else {
            continue;
        };
        let option = String::from_utf8_lossy(option);
        let words = format!("sparsync: --remote-option={option} is not supported by {whose}");
        return Err(
            Error::new(Exit::Unsupported, words).with_hint(format!("use {option} without -M"))
        );
    }
    Ok(())
}

fn rejected_request(words: &str) -> Error {
    Error::new(
        Exit::Protocol,
        format!("sparsync: request rejected: {words}"),
    )
}

/// Checks that the session requests nothing beyond the command line, which a forced command may have approved.
fn same_as_approved(setup: &Setup, serve: &cli::Serve) -> Result<(), Error> {
    if setup.server_sends != serve.sends {
        return Err(rejected_request(
            "the direction differs from the command line of this server",
        ));
    }
    if !setup.operands.is_empty() && !serve.operands.is_empty() {
        return Err(rejected_request(
            "the paths differ from the command line of this server",
        ));
    }
    Ok(())
}

/// Checks a request against the grant. A read-only grant is rejected here for any request that writes (and `fs::reach`
/// would stop the writes). A grant with roots covers no devices. No grant covers following symlinks of untrusted users.
fn within(setup: &Setup, options: &Options, granted: &Session) -> Result<(), Error> {
    if options.preserve.link_owners == LinkOwners::Anyone {
        let words = "sparsync: --insecure-links is not supported by a server: it follows no symlinks of untrusted users";
        return Err(Error::new(Exit::Unsupported, words));
    }
    if options.copy_as.is_some() {
        let words = "sparsync: --remote-option=--copy-as is not supported by a server: its grant selects the user";
        return Err(Error::new(Exit::Unsupported, words).with_hint("use --transport=ssh"));
    }
    let device = if setup.server_sends && options.select.copy_devices {
        Some("--copy-devices")
    } else if !setup.server_sends && options.preserve.write_devices {
        Some("--write-devices")
    } else {
        None
    };
    if let Some(option) = device
        && !sandbox::are_everything(&granted.roots)
    {
        let words = format!(
            "sparsync: {option} is not permitted by a grant with --root: devices are outside of it"
        );
        let hint = "copy over ssh, or grant more with `sparsync enroll --root=/ HOST`";
        return Err(Error::new(Exit::Unsupported, words).with_hint(hint));
    }
    let writes = if !setup.server_sends {
        "cannot write: the grant of this machine's key is read-only"
    } else if options.select.remove_source != RemoveSource::No {
        "cannot remove source files: the grant of this machine's key is read-only"
    } else {
        return Ok(());
    };
    let hint = "copy over ssh, or grant more with `sparsync enroll --read-write HOST`";
    if granted.read_only {
        return Err(Error::new(Exit::FileSelect, format!("sparsync: {writes}")).with_hint(hint));
    }
    Ok(())
}

/// Returns the error if a path that the client names lies outside the roots of its grant.
///
/// Paths that are only reached through symlinks do not count as named.
fn beyond(setup: &Setup, options: &Options, operands: &[Vec<u8>]) -> Option<Error> {
    let select = &options.select;
    let follow = !setup.server_sends || select.opens_link_targets() || select.copy_dirlinks;
    let list = match &select.files_from {
        Some(FilesFrom::File(list)) if setup.listed.is_none() => Some(list),
        _ => None,
    };
    let mut paths: Vec<Vec<u8>> = operands.iter().chain(list).cloned().collect();
    if setup.server_sends && select.relative && select.files_from.is_none() {
        paths.extend(operands.iter().map(|path| split_kept(path).0.to_vec()));
    }
    if !setup.server_sends
        && let Some(dest) = operands.first()
    {
        let place = &options.place;
        let backup = place.backup.as_ref().and_then(|backup| backup.dir.as_ref());
        let alternates = options.delta.alt_dest.iter().flat_map(|alt| &alt.dirs);
        let named = [backup, place.temp_dir.as_ref(), place.partial_dir.as_ref()]
            .into_iter()
            .flatten()
            .chain(alternates);
        paths.extend(named.map(|dir| {
            if dir.starts_with(b"/") {
                dir.clone()
            } else {
                path::join(dest, dir)
            }
        }));
    }
    paths.into_iter().find_map(|path| {
        let error = sys::stat_path(if path.is_empty() { b"." } else { &path }, follow).err()?;
        let words = || [b"sparsync: \"", &path[..], b"\": ", &errno_words(&error)].concat();
        sandbox::is_outside(&error).then(|| Error::new(Exit::FileSelect, words()))
    })
}

/// Expands wildcards, and `~` and `~name` at the beginning of a path, as the login shell would in a copy over ssh. There
/// the client escapes the `~` of a source that has no slash, which may be the name of a file.
fn expand_as_login_shell(env: &Env, path: &[u8], is_source: bool) -> Vec<Vec<u8>> {
    let is_name = is_source && !path.contains(&b'/');
    let (home, below) = if is_name {
        (Vec::new(), path)
    } else {
        split_home(env, path)
    };
    glob::expand(&home, below, WildcardRules::Shell)
}

/// Splits a path that begins with `~` or `~name` into that home directory and the rest. The home directory of another
/// path is empty.
fn split_home<'a>(env: &Env, path: &'a [u8]) -> (Vec<u8>, &'a [u8]) {
    let Some(rest) = path.strip_prefix(b"~") else {
        return (Vec::new(), path);
    };
    let name_len = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
    let (name, below) = rest.split_at(name_len);
    let home = if name.is_empty() {
        env.var("HOME").map(OsStringExt::into_vec)
    } else {
        ids::home_of(name)
    };
    match home {
        Some(home) => (home, below),
        None => (Vec::new(), path),
    }
}
