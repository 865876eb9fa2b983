//! The command line: turns arguments into values. Opens no files and makes no decisions about the run.
//!
//! `flags/` is the table of options, `parse` walks the arguments, `resolve` settles what they mean together, and `doc/`
//! prints the table. The caller reads the files that options name.

pub mod args;
pub mod batch_script;
pub mod check_command;
pub mod daemon_args;
pub mod doc;
pub mod flag;
pub mod flags;
pub mod operand;
pub mod parse;
pub mod plan_command;
pub mod remote_args;
pub mod resolve;
pub mod server_args;
pub mod subcommand;
mod suggest;
pub mod value;

pub use doc::{help_text, overview, rsync_version_json, version_text};
pub use remote_args::{Far, RemoteOperand};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::permits::Permits;
use crate::options::{
    AltDest, ArgStyle, Checksum, Checksums, Compression, DeleteGuard, FilesFrom, Guard, LinkOwners,
    Options, RemoveSource,
};
use crate::proto::rsync::handshake::{Capabilities, CompatFlags};
use args::{Args, PrintRequest};
use operand::Operand;
use parse::Walked;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The command line, with everything else that its meaning depends on.
pub struct Invocation<'a> {
    /// The first word of argv. A program called `rsync` has no subcommands.
    pub program: &'a OsStr,
    /// The arguments after it.
    pub args: &'a [OsString],
    /// Options that this program gives to itself. They take effect after `args`.
    pub appended: &'a [OsString],
    /// Looks up an environment variable.
    pub vars: &'a dyn Fn(&str) -> Option<OsString>,
    /// The current time in seconds since 1970, from which `--stop-at` is measured.
    pub now_unix_secs: i64,
    /// The umask of the process, which limits `--chmod=+w`.
    pub umask: u32,
    /// The texts of /etc/popt and ~/.popt, one after the other; empty if there are none.
    pub popt: &'a [u8],
}

/// What a command line requests.
#[derive(Debug)]
pub enum Request {
    /// A copy, or a listing.
    Copy(Box<Copy>),
    /// The server's end of a copy, on standard input and output.
    Serve(Serve),
    /// The server's end of a copy for a stock rsync.
    ServeRsync(Box<ServeRsync>),
    /// A subcommand, such as `server` or `enroll`.
    Verb(subcommand::Verb),
    /// `sparsync check`
    Check(check_command::CheckRequest),
    /// `sparsync plan`
    Plan(plan_command::PlanRequest),
    /// `sparsync apply`
    Apply(plan_command::ApplyRequest),
    /// `sparsync explain`
    Explain(Result<Box<plan_command::ExplainRequest>>),
    /// [`help_text`] on standard output, exit 0.
    Help,
    /// [`version_text`] or [`rsync_version_json`] on standard output, exit 0.
    Version {
        /// As JSON: `--version` was given twice.
        json: bool,
    },
    /// This text on standard output, exit 0: `--info=help`, `--man` and the like.
    Print(String),
    /// A daemon for stock clients.
    Daemon(Result<Box<daemon_args::DaemonArgs>>),
    /// A run that is not supported, for this reason. The rsync that `SPARSYNC_RSYNC` names gets the original arguments.
    Unsupported(Error),
    /// The operands make no copy: [`overview`] on standard error, exit 1 with the closing line of a usage error.
    NoArgs {
        /// The role in the closing line. Given options but no operands, rsync names `Receiver`.
        role: &'static str,
    },
}

/// A copy or a listing.
#[derive(Debug)]
pub struct Copy {
    /// The settled options.
    pub options: Options,
    /// What is copied or listed; at least one. Paths on the other machine if that one sends (see `far`).
    pub sources: Vec<Vec<u8>>,
    /// The destination; `None` lists the sources. A path on the other machine if that one receives (see `far`).
    pub dest: Option<Vec<u8>>,
    /// The other machine; `None` if both ends are local.
    pub far: Option<Far>,
    /// What must hold before anything is changed.
    pub guard: Guard,
}

impl Copy {
    /// Returns whether a local path is relative to the working directory.
    pub fn has_relative_local_path(&self) -> bool {
        let server_sends = self.far.as_ref().map(|far| far.operand.server_sends);
        let sources = if server_sends == Some(true) {
            &[]
        } else {
            &self.sources[..]
        };
        let dest = if server_sends == Some(false) {
            None
        } else {
            self.dest.as_ref()
        };
        sources
            .iter()
            .chain(dest)
            .any(|path| !path.starts_with(b"/"))
    }
}

/// The server's end of a copy, as its command line describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serve {
    /// Whether this end sends.
    pub sends: bool,
    /// The options as given. A forced command may have approved them.
    pub words: Vec<Vec<u8>>,
    /// The paths. Empty if the client sends them in the session (`--secluded-args`).
    pub operands: Vec<Vec<u8>>,
    /// The timeout for a silent client; 0: none.
    pub timeout_secs: u32,
}

/// The server's end of a copy for a stock rsync, as its command line describes it.
#[derive(Debug)]
pub struct ServeRsync {
    /// The direction, the options as given, and the paths.
    pub serve: Serve,
    /// The settled options, or the error for which the client's options are rejected.
    pub options: Result<Options>,
    /// The capabilities of the client: the text after `e` in the short options.
    pub capabilities: Vec<u8>,
    /// The error of an option that rsync's receiver reads only within the session. The client gets it there, with its
    /// exit code.
    pub refusal: Option<Error>,
    /// `--confine-root`: the directory that limits all paths but the operands.
    pub confine_root: Option<Vec<u8>>,
    /// `--checksum-seed`; 0: the server chooses one.
    pub checksum_seed: i32,
}

/// Reads a command line.
///
/// Errors use rsync's words where rsync has them, and carry its exit code. The caller adds the closing line
/// (`rsync error: …`).
pub fn read(call: &Invocation<'_>) -> Result<Request> {
    if let Some(request) = read_verb(call) {
        return request;
    }
    // popt expands no aliases in a command line that a client wrote.
    let from_client = call.args.iter().any(|word| word == "--server");
    let aliases = if from_client {
        Vec::new()
    } else {
        parse::aliases(call.popt)
    };
    let args = Args {
        umask: call.umask,
        now_unix_secs: call.now_unix_secs,
        is_posix: (call.vars)("POSIXLY_CORRECT").is_some(),
        ..Args::default()
    };
    let mut walked = parse::walk(call.args, &aliases, args);
    walked.append(call.appended);
    // Called as rsync, the program prints what rsync prints.
    if subcommand::is_ours(call.program.as_bytes()) {
        walked.suggest(&[]);
    }
    // rsync would read a sparsync:// URL as a path on a host named sparsync.
    let has_our_url = !from_client && walked.operands.iter().any(Operand::is_server);
    if walked.args.is_server_side {
        return server_side(call, walked, has_our_url);
    }
    if let Some(request) = to_be_printed(&walked) {
        return Ok(request);
    }
    if walked.args.json {
        // Changes are reported as under -i.
        walked.args.itemize = walked.args.itemize.max(1);
    }
    let is_far = if walked.args.read_batch {
        // The batch is the source. What other operands name is not reached.
        walked.operands.last().is_some_and(Operand::is_remote)
    } else {
        walked.operands.iter().any(Operand::is_remote)
    };
    if is_far && let Some(request) = not_with_far(&mut walked, has_our_url)? {
        return Ok(request);
    }
    if let Some(error) = walked.error.take() {
        return Err(error);
    }
    if parse::lone_help(call.args, &walked.args) {
        return Ok(Request::Help);
    }
    if !is_far
        && !walked.operands.is_empty()
        && let Some(error) = resolve::unsupported(&walked.args)
    {
        return Ok(Request::Unsupported(error));
    }
    copy(call, walked, is_far)
}

/// Reads the command line of a verb of ours. `None`: it has none.
fn read_verb(call: &Invocation<'_>) -> Option<Result<Request>> {
    if let Some(words) = subcommand::check_words(call.program, call.args) {
        return Some(check_command::read(call, words));
    }
    if let Some(words) = subcommand::plan_words(call.program, call.args) {
        return Some(plan_command::read_plan(call, words));
    }
    if let Some(words) = subcommand::apply_words(call.program, call.args) {
        return Some(plan_command::read_apply(call, words));
    }
    if let Some(words) = subcommand::explain_words(call.program, call.args) {
        let request = plan_command::read_explain(call, words);
        // Its exit code for a wrong command line is another one.
        return Some(Ok(
            request.unwrap_or_else(|error| Request::Explain(Err(error)))
        ));
    }
    let verb = subcommand::read(call.program, call.args)?;
    Some(verb.map(Request::Verb))
}

fn not_for_rsync() -> Error {
    Error::usage("sparsync: a sparsync:// URL cannot be used with a daemon or its options")
}

/// Returns what a server or daemon is to do, or the error of its options without it. `has_our_url`: an operand is a
/// sparsync:// URL.
fn server_side(call: &Invocation<'_>, walked: Walked, has_our_url: bool) -> Result<Request> {
    let args = &walked.args;
    let is_server = args.server && !args.daemon;
    let is_for_us = args.rsh.as_deref().is_some_and(server_args::means_us);
    if is_server && is_for_us {
        return Ok(Request::Serve(serve(call.args, &walked)));
    }
    if has_our_url {
        return Err(not_for_rsync());
    }
    if is_server {
        return Ok(Request::ServeRsync(Box::new(serve_rsync(call, walked))));
    }
    if daemon_args::is_one(call.args) {
        let daemon = daemon_args::read(call.args);
        return Ok(Request::Daemon(daemon.map(Box::new)));
    }
    if args.sender {
        return Ok(Request::NoArgs { role: "client" });
    }
    let words = "Daemon option(s) used without --daemon.\n\
                 (Type \"rsync --daemon --help\" for assistance with daemon mode.)";
    Err(Error::usage(words))
}

/// Returns the request to print something, if that is what the options ask for.
fn to_be_printed(walked: &Walked) -> Option<Request> {
    let Args {
        print,
        version,
        json,
        ..
    } = walked.args;
    match print {
        Some(PrintRequest::Help) => Some(Request::Help),
        Some(PrintRequest::InfoHelp) => Some(Request::Print(value::words::info_help())),
        Some(PrintRequest::DebugHelp) => Some(Request::Print(value::words::debug_help())),
        Some(PrintRequest::Man(page)) => Some(Request::Print(doc::man_page(page))),
        Some(PrintRequest::Completions(shell)) => Some(Request::Print(doc::completions(shell))),
        None if version == 0 || walked.error.is_some() => None,
        None if json => Some(Request::Print(doc::version_json())),
        None => Some(Request::Version { json: version > 1 }),
    }
}

/// Returns the request or the error in place of a copy with another machine, if its options do not permit one: the rsync
/// that the user names may know options that sparsync does not. `has_our_url`: that rsync cannot do it.
fn not_with_far(walked: &mut Walked, has_our_url: bool) -> Result<Option<Request>> {
    let is_our_error = walked.args.own_option_is_invalid || has_our_url;
    if is_our_error && let Some(error) = walked.error.take() {
        return Err(error);
    }
    if has_our_url && remote_args::names_a_daemon(&walked.operands) {
        return Err(not_for_rsync());
    }
    if let Some(error) = walked.error.take() {
        return Ok(Some(Request::Unsupported(error)));
    }
    let protocol = resolve::check_protocol(&walked.args).err();
    let Some(error) = protocol.or_else(|| resolve::unsupported(&walked.args)) else {
        return Ok(None);
    };
    if has_our_url {
        Err(error)
    } else {
        Ok(Some(Request::Unsupported(error)))
    }
}

/// Returns the copy that a command line describes. `is_far`: with another machine.
fn copy(call: &Invocation<'_>, mut walked: Walked, is_far: bool) -> Result<Request> {
    let role = if walked.operands.is_empty() && !call.args.is_empty() {
        "Receiver"
    } else {
        "client"
    };
    let is_child = !is_far && needs_child(call, &mut walked);
    let operands = std::mem::take(&mut walked.operands);
    let Some(resolved) = resolve::resolve(&walked.args, operands, call.vars)? else {
        return Ok(Request::NoArgs { role });
    };
    let resolve::Resolved {
        mut options,
        sums,
        sources,
        dest,
        peer,
    } = resolved;
    options.select.files_from = options.select.files_from.map(|from| match (from, &peer) {
        (FilesFrom::Far(path), Some(peer)) if !peer.server_sends => FilesFrom::Sent(path),
        (from, _) => from,
    });

    let child = RemoteOperand {
        server_sends: walked.args.read_batch,
        ..RemoteOperand::default()
    };
    let peer = if is_child {
        Some(peer.unwrap_or(child))
    } else {
        peer
    };
    let far = peer.map(|operand| far(&walked, &options, sums, operand, is_child));

    let mut guard = walked.args.guard;
    guard.delete = match walked.args.delete_guard {
        Some(given) => given,
        None if subcommand::is_ours(call.program.as_bytes()) => DeleteGuard::EmptySource,
        None => DeleteGuard::Off,
    };
    options.delete.refuses_empty_source = guard.delete == DeleteGuard::EmptySource
        && far.as_ref().is_some_and(|far| far.operand.server_sends)
        && sources.len() == 1
        && options.select.lists_all();
    Ok(Request::Copy(Box::new(Copy {
        options,
        sources,
        dest,
        far,
        guard,
    })))
}

/// Returns whether a local copy needs a second process as the other end: for a batch file, to convert names, to speak a
/// protocol without items, or because that end has options of its own (`--remote-option`).
fn needs_child(call: &Invocation<'_>, walked: &mut Walked) -> bool {
    let args = &walked.args;
    let copies = walked.operands.len() > 1 && !args.select.list_only;
    let writes_batch = args.write_batch || args.only_write_batch;
    let has_batch = args.read_batch || writes_batch && copies;
    let converts = resolve::converts_names(args, call.vars) || resolve::lacks_items(args);
    let needs_child = has_batch || copies && converts || !args.remote_options.is_empty();
    if needs_child && !has_batch && args.append == 0 {
        // The default of a local copy.
        walked.args.whole_file.get_or_insert(true);
    }
    needs_child
}

/// Returns the other end of a copy. `is_child`: it is a second process on this machine.
fn far(
    walked: &Walked,
    options: &Options,
    sums: Option<Checksums>,
    operand: RemoteOperand,
    is_child: bool,
) -> Far {
    let args = &walked.args;
    let inherited = if is_child {
        remote_args::inherited(args)
    } else {
        Vec::new()
    };
    let sends = operand.server_sends;
    Far {
        server_words: server_args::words(args, options, !sends),
        words: remote_args::words(&walked.given, args, options, sums, sends),
        operand,
        is_child,
        remote_words: [inherited, args.remote_options.clone()].concat(),
    }
}

/// Settles the options that a client sent; see [`Far::words`].
///
/// `remote_words` (from `--remote-option`) take effect after `words`. The client prints the error. An unknown option in
/// `words` means that the client is newer than this program; one in `remote_words` is the user's.
pub fn settle(
    words: &[Vec<u8>],
    remote_words: &[Vec<u8>],
    umask: u32,
    now_unix_secs: i64,
) -> Result<Options> {
    let all: Vec<OsString> = words
        .iter()
        .chain(remote_words)
        .cloned()
        .map(OsString::from_vec)
        .collect();
    let walked = parse::walk(
        &all,
        &[],
        Args {
            umask,
            now_unix_secs,
            ..Args::default()
        },
    );
    if let Some(mut error) = walked.error {
        if parse::walk(
            &all[..words.len()],
            &[],
            Args {
                umask,
                now_unix_secs,
                ..Args::default()
            },
        )
        .error
        .is_some()
        {
            error.exit = Exit::Protocol;
            error
                .message
                .extend_from_slice(b" (the sparsync there is older: upgrade it)");
        }
        if let Some(rest) = error.message.strip_prefix(b"rsync: ") {
            error.message = [b"rsync: on remote machine: ", rest].concat();
        }
        return Err(error);
    }
    let Args {
        is_server_side,
        json,
        print,
        ..
    } = walked.args;
    if !walked.operands.is_empty() || is_server_side || json || print.is_some() {
        return Err(Error::usage(
            "rsync: on remote machine: the options make no copy",
        ));
    }
    resolve::resolve_for_server(&walked.args)
}

/// Returns the compressions that a server with this `RSYNC_COMPRESS_LIST` supports; `None`: all of them.
pub fn supported_compressions(listed: &[u8]) -> Option<Vec<Compression>> {
    value::names::compress_list(listed, value::names::End::Server)
}

/// Returns the checksums that a server with this `RSYNC_CHECKSUM_LIST` supports; `None`: all of them.
pub fn supported_checksums(listed: &[u8]) -> Option<Vec<Checksum>> {
    value::names::server_checksums(listed)
}

/// Settles the options of a session that was started with a command line. The session must not request anything that
/// the command line does not; what only the command line requests is added. The error names the first excess option.
pub fn settle_session(
    serve: &Serve,
    words: &[Vec<u8>],
    remote_words: &[Vec<u8>],
    umask: u32,
    now_unix_secs: i64,
) -> Result<Options> {
    let line: Vec<OsString> = words.iter().cloned().map(OsString::from_vec).collect();
    let mut walked = parse::walk(
        &line,
        &[],
        Args {
            umask,
            now_unix_secs,
            ..Args::default()
        },
    );
    // The client must not choose which users this side trusts. Its user can, with --remote-option or --rsync-path.
    if walked.args.insecure_links {
        return Err(Error::new(
            Exit::Protocol,
            "sparsync: request rejected: --insecure-links must be set on the server",
        ));
    }
    // Without the words of --remote-option, which could hide the error and go unchecked.
    let resolved = resolve::resolve_for_server(&walked.args);
    let resolved = if walked.error.is_none() {
        resolved.ok()
    } else {
        None
    };
    let Some(mut options) = resolved else {
        let invalid = || {
            Error::new(
                Exit::Protocol,
                "sparsync: request rejected: its options contradict each other",
            )
        };
        return Err(settle(words, &[], umask, now_unix_secs)
            .err()
            .unwrap_or_else(invalid));
    };
    if server_args::is_secluded(&serve.words) {
        options.connect.args = ArgStyle::Secluded;
    }
    // A list on this machine is a remote one for the client.
    if let Some(FilesFrom::File(path)) = options.select.files_from {
        options.select.files_from = Some(FilesFrom::Far(path));
    }
    // The client found these out itself or took them from its environment, so its command line may lack them. They
    // change nothing here.
    let is_given = |start: &[u8]| serve.words.iter().any(|word| word.starts_with(start));
    walked.args.select.list_only &= is_given(b"--list-only");
    if !is_given(b"--checksum-choice=") {
        walked.args.checksum_choice = None;
    }
    let names_method = [
        &b"--compress-choice="[..],
        b"--old-compress",
        b"--new-compress",
    ]
    .into_iter()
    .any(is_given);
    if walked.args.compress_choice.is_some() && !names_method {
        options.delta.compress.choice = Some(Compression::Auto);
    }
    let spelled = server_args::words(&walked.args, &options, !serve.sends);
    let more = server_args::agreed(&serve.words, &spelled, remote_words).map_err(|word| {
        let start = b"sparsync: request rejected: ".as_slice();
        let end = b" is not on the command line of this server";
        Error::new(Exit::Protocol, [start, &word, end].concat())
    })?;
    let settle_with = |more: &[Vec<u8>]| {
        let remote_words = [remote_words, more].concat();
        settle(words, &remote_words, umask, now_unix_secs)
    };
    let mut options = settle_with(&more)?;
    if !serve.sends
        && let Some(option) = unknown_to_sender(&more, &settle_with)?
    {
        let start = b"sparsync: request rejected: ".as_slice();
        let end = b" is on the command line of this server, and the client does not know it";
        let hint = format!("add {} to the options of the copy", option.escape_ascii());
        return Err(Error::new(Exit::Protocol, [start, &option, end].concat()).with_hint(hint));
    }
    let line: Vec<OsString> = serve
        .words
        .iter()
        .cloned()
        .map(OsString::from_vec)
        .collect();
    let line = parse::walk(
        &line,
        &[],
        Args {
            umask,
            now_unix_secs,
            ..Args::default()
        },
    );
    // Both ends must agree about what moves between them.
    if (options.dry_run || line.args.dry_run) && !walked.args.dry_run {
        let words = "sparsync: request rejected: --dry-run is on the command line of this server";
        return Err(Error::new(Exit::Protocol, words)
            .with_hint("the server carries out only dry runs: add --dry-run"));
    }
    if !serve.sends && walked.args.remove_source_files.is_none() {
        // The sender has the sources, and does not remove them.
        options.select.remove_source = RemoveSource::No;
    }
    // A forced command adds it.
    options.confine_root = line.args.confine_root.clone().or(options.confine_root);
    // With --secluded-args the command line has no other words.
    if !server_args::is_secluded(&serve.words) {
        let line = resolve::resolve_for_server(&line.args)?;
        // A word on the command line can be the value of another one.
        if let Some(option) = excess(&options, &line, serve.sends) {
            let words = format!(
                "sparsync: request rejected: {option} is not on the command line of this server"
            );
            return Err(Error::new(Exit::Protocol, words));
        }
        take_paths(&mut options, line);
    }
    Ok(options)
}

/// Returns the first of the options that only the command line of a receiver has and that its sender must know: it would
/// send content that the receiver does not take without a request.
fn unknown_to_sender(
    more: &[Vec<u8>],
    settle_with: &dyn Fn(&[Vec<u8>]) -> Result<Options>,
) -> Result<Option<Vec<u8>>> {
    let takes_unrequested = |options: &Options| Permits::new(options, false).unrequested;
    if more.is_empty() || !takes_unrequested(&settle_with(&[])?) {
        return Ok(None);
    }
    for len in 1..=more.len() {
        // Without its value, an option is invalid.
        if settle_with(&more[..len]).is_ok_and(|options| !takes_unrequested(&options)) {
            let name = more[..len].iter().rfind(|word| word.starts_with(b"-"));
            return Ok(name.cloned());
        }
    }
    Ok(None)
}

/// Returns the first of the options that a forced command or a daemon may refuse, and that only the session has. `sends`:
/// the server sends.
fn excess(session: &Options, line: &Options, sends: bool) -> Option<&'static str> {
    let limited = |options: &Options| {
        let alternates = options.delta.alt_dest.as_ref();
        let place = &options.place;
        let backup_dir = place.backup.as_ref().and_then(|backup| backup.dir.as_ref());
        // The names that a client lists itself concern only a sender.
        let is_listed = match options.select.files_from {
            None => false,
            Some(FilesFrom::Stdin) => sends,
            Some(FilesFrom::File(_) | FilesFrom::Far(_) | FilesFrom::Sent(_)) => true,
        };
        [
            (
                "--insecure-links",
                options.preserve.link_owners == LinkOwners::Anyone,
            ),
            (
                "--remove-source-files",
                sends && options.select.remove_source != RemoveSource::No,
            ),
            ("--delete", !sends && options.delete.when.is_some()),
            ("--copy-devices", sends && options.select.copy_devices),
            ("--write-devices", !sends && options.preserve.write_devices),
            ("--copy-as", options.copy_as.is_some()),
            // Their paths are those of the command line, which has to have one; see `take_paths`.
            ("--files-from", is_listed),
            (
                alternates.map_or("--link-dest", AltDest::option),
                !sends && alternates.is_some(),
            ),
            ("--backup-dir", !sends && backup_dir.is_some()),
            ("--partial-dir", !sends && place.partial_dir.is_some()),
            ("--temp-dir", !sends && place.temp_dir.is_some()),
        ]
    };
    let mut pairs = limited(session).into_iter().zip(limited(line));
    pairs
        .find(|((_, has), (_, is_on_line))| *has && !is_on_line)
        .map(|((option, _), _)| option)
}

/// Replaces the paths that the session names with those of the server's command line.
fn take_paths(options: &mut Options, line: Options) {
    if let Some(alternates) = &mut options.delta.alt_dest
        && let Some(given) = line.delta.alt_dest
    {
        alternates.dirs = given.dirs;
    }
    if let Some(backup) = &mut options.place.backup
        && let Some(given) = line.place.backup
    {
        backup.dir = given.dir;
    }
    let paths = [
        (&mut options.place.partial_dir, line.place.partial_dir),
        (&mut options.place.temp_dir, line.place.temp_dir),
    ];
    for (path, given) in paths {
        *path = given.or(path.take());
    }
    if let (Some(FilesFrom::File(path)), Some(FilesFrom::File(given))) =
        (&mut options.select.files_from, line.select.files_from)
    {
        *path = given;
    }
}

/// Returns the server's end of a copy. `words`: the whole command line.
///
/// Options that this version does not know come again in the session with a sparsync, which reports them.
fn serve(words: &[OsString], walked: &parse::Walked) -> Serve {
    let parse::Walked { args, operands, .. } = walked;
    let options = &words[..words.len() - operands.len().min(words.len())];
    let options = options
        .iter()
        .filter(|word| *word != "--server" && *word != "--sender");
    let words = options.map(|word| word.as_bytes().to_vec()).collect();
    // The first operand is always a dot.
    let operands = operands
        .iter()
        .skip(1)
        .map(|operand| operand.as_bytes().to_vec())
        .collect();
    let timeout_secs = resolve::seconds(args.timeout);
    Serve {
        sends: args.sender,
        words,
        operands,
        timeout_secs,
    }
}

/// Returns how many words at the end of a command line are no options.
pub fn operands_of(words: &[OsString]) -> usize {
    parse::walk(words, &[], Args::default()).operands.len()
}

/// As [`resolve::own_max_alloc_bytes`].
pub fn own_max_alloc_bytes(vars: resolve::Vars<'_>) -> Option<u64> {
    resolve::own_max_alloc_bytes(vars)
}

/// Reads the arguments that a client sends to a daemon. Also returns the options in order. `words`: without the program.
pub fn read_rsync_args(
    words: &[OsString],
    umask: u32,
    now_unix_secs: i64,
    vars: &dyn Fn(&str) -> Option<OsString>,
) -> (ServeRsync, Vec<parse::GivenOption>) {
    let mut walked = parse::walk(
        words,
        &[],
        Args {
            umask,
            now_unix_secs,
            ..Args::default()
        },
    );
    let given = std::mem::take(&mut walked.given);
    let call = Invocation {
        program: OsStr::new("rsync"),
        args: words,
        appended: &[],
        vars,
        now_unix_secs,
        umask,
        popt: &[],
    };
    (serve_rsync(&call, walked), given)
}

/// Returns the server's end of a copy for a stock rsync.
fn serve_rsync(call: &Invocation<'_>, mut walked: parse::Walked) -> ServeRsync {
    let serve = serve(call.args, &walked);
    let error = walked
        .error
        .take()
        .map(|error| match error.message.strip_prefix(b"rsync: ") {
            Some(rest) => Error {
                message: [b"rsync: on remote machine: ", rest].concat(),
                ..error
            },
            None => error,
        });
    let capabilities = walked.args.rsh.clone().unwrap_or_default();
    let is_incremental = Capabilities::parse(&capabilities)
        .flags
        .has(CompatFlags::INC_RECURSE);
    let bad_map = resolve::check_id_maps(&walked.args).err();
    if bad_map.is_some() {
        (walked.args.usermap, walked.args.groupmap) = (None, None);
    }
    // A sender needs no maps.
    let refusal = if serve.sends { None } else { bad_map };
    let options = error
        .map_or_else(|| resolve::resolve_for_server(&walked.args), Err)
        .map(|mut options| {
            options.select.no_inc_recursive |= !is_incremental;
            let methods = (call.vars)("RSYNC_COMPRESS_LIST").unwrap_or_default();
            options.delta.compress.list = supported_compressions(methods.as_bytes());
            options
        });
    // A forced command adds it.
    let confine_root = walked.args.confine_root.take();
    ServeRsync {
        serve,
        options,
        refusal,
        confine_root,
        capabilities,
        checksum_seed: walked.args.checksum_seed.unwrap_or(0),
    }
}
