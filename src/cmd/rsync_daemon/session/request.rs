//! The request of a client that may use a module: its arguments, the module's parameters for them, and the session.

use super::arguments::{Arguments, Quoting};
use super::hooks::request_vars;
use super::peer::DaemonPeer;
use super::{Accepted, DaemonConnection, ModulePlace, Refusal};
use crate::cli::parse::GivenOption;
use crate::cli::{self, server_args};
use crate::cmd::copy;
use crate::cmd::remote_side::rsync_client::{self, DaemonSide};
use crate::cmd::remote_side::sparsync_client::{self, ServedModule};
use crate::cmd::rsync_daemon::connections::ReportingReader;
use crate::cmd::rsync_daemon::policy::config::Module;
use crate::cmd::rsync_daemon::policy::module_path::{self, ModulePath};
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::cmd::rsync_daemon::policy::refuse::RefusedOptions;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::ModuleRules;
use crate::fs::charset::{self, NameCharset};
use crate::fs::glob::{self, WildcardRules};
use crate::fs::{sandbox, sys};
use crate::options::{
    FilesFrom, LinkOwners, Options, PeerLinks, Preserve, RemoveSource, RuleArg, StderrMode,
};
use crate::proto::greeting::BEHIND_RSYNC_OLDEST;
use crate::proto::rsync::daemon::{ClientArgs, args_end, decode_client_args};
use crate::report::format::Format;
use crate::report::{Tally, TextReporter};
use crate::rsync::server::DaemonTerms;
use crate::session::module_log::ModuleLog;
use crate::transport::link::Patience;
use crate::transport::{Link, stdio};
use crate::walk::arg_path;
use crate::work::clock;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The command line of a client, as it was read.
struct ReadRequest {
    words: Arguments,
    /// Why it is longer than what is accepted.
    excess: Option<Error>,
    request: cli::ServeRsync,
    /// The options in order.
    given: Vec<GivenOption>,
}

impl DaemonConnection<'_> {
    /// Reads the arguments, and runs the session.
    pub(super) fn serve(&mut self, accepted: Accepted<'_>) -> Result<Exit, Refusal> {
        let Accepted {
            module,
            peer,
            protocol,
            user,
            read_only,
            place,
        } = accepted;
        let ModulePlace {
            path,
            munges,
            rules,
            hooks,
            charset,
        } = place;
        let name = &module.name;
        let values = &module.values;
        let ReadRequest {
            words,
            excess,
            mut request,
            given,
        } = self.read_request(protocol, charset, module)?;
        let sends = request.serve.sends;
        let requested = words.paths.join(&b' ');
        self.log_request(&requested, sends, &user, &peer);
        let is_relative = sends
            && !path.is_whole_root()
            && request
                .options
                .as_ref()
                .is_ok_and(|options| options.select.relative);
        request.serve.operands = words.paths_in(name, is_relative);
        let refused = self.refused(values, &given, &mut request);
        let mut refusal = excess.or(refused).or_else(|| {
            request.options.as_ref().err().map(|error| Error {
                exit: Exit::Unsupported,
                ..error.clone()
            })
        });
        // Hooks see the paths that are served. The rules of the module are applied to the paths as they were requested.
        let served_paths = if sends {
            matched_paths(&request.serve.operands)
        } else {
            request.serve.operands.clone()
        };
        let hook_vars = request_vars(&words, &served_paths, &requested);
        if let Some(pre_xfer) = hooks.pre_xfer {
            refusal = refusal.or(self.run_pre_xfer(pre_xfer, &hook_vars));
        }
        let mut options = request.options.as_ref().cloned().unwrap_or_default();
        let mut dest = Vec::new();
        if !sends {
            for operand in &mut request.serve.operands {
                *operand = path.dest(operand);
            }
            if let Some(first) = request.serve.operands.first() {
                dest.clone_from(first);
            }
        }
        let announced = self.apply(values, &path, &dest, munges, &mut options);
        let refusal = refusal
            .or_else(|| access_error(values, read_only, sends, &options))
            .or_else(|| {
                self.change_modes(values, sends, &mut options.preserve)
                    .err()
            });
        let refusal = match hooks.name_converter {
            Some(converter) if refusal.is_none() && !options.preserve.numeric_ids => {
                self.begin_conversion(converter, &hook_vars).err()
            }
            Some(_) | None => refusal,
        };
        let begins = refusal.is_none();
        let refusal = refusal
            .or_else(|| {
                rules
                    .as_ref()
                    .and_then(|rules| path_error(rules, sends, &path, &request, &options))
            })
            .or_else(|| request.refusal.clone())
            .map(|error| error.by(rsync_client::role_of(&request)));
        let begins = begins
            && refusal
                .as_ref()
                .is_none_or(|error| !sends && error.exit != Exit::Unsupported);
        request.serve.operands = if sends {
            served_paths
        } else {
            matched_paths(&request.serve.operands)
        };
        let link = self.link(options.connect.timeout_secs)?;
        sys::lift_open_files(sys::OPEN_FILES_MAX);
        self.env.cwd.clone_from(&path.dir);
        let log = self.module_log(MessagePlace {
            dir: path.dir.clone(),
            bases: working_dirs(&request.serve.operands, sends, &options),
            module: name.clone(),
            is_chroot: path.chroot.is_some(),
        });
        let is_native = refusal.is_none()
            && protocol >= BEHIND_RSYNC_OLDEST
            && server_args::means_us(&request.capabilities)
            && rules.is_none()
            && !words.is_limited
            && can_be_native(values, &request, &options);
        if begins {
            (log.put)(if sends {
                b"building file list"
            } else {
                b"receiving file list"
            });
        }
        if is_native {
            let adapt = |options: &mut Options| {
                self.apply(values, &path, &dest, munges, options);
            };
            let module = ServedModule {
                serve: &request.serve,
                adapt: &adapt,
                log,
            };
            return Ok(sparsync_client::of_module(self.env, link, &module));
        }
        if sends {
            sys::use_one_memory_pool();
        }
        let terms = DaemonTerms {
            protocol,
            timeout_secs: announced,
            log: &log,
        };
        let transfer_log = self.transfer_log(values, &options, sends);
        let side = DaemonSide {
            terms,
            rules,
            refusal,
            transfer_log,
        };
        let mut tally = Tally::default();
        let ended =
            rsync_client::serve_over(self.env, &request, &options, (link, Some(side)), &mut tally);
        Ok(ended.map_or_else(|error| error.exit, |()| tally.exit_of_server()))
    }

    /// Reads and parses the command line of the client. `charset`: that of the module.
    fn read_request(
        &mut self,
        protocol: u8,
        charset: Option<NameCharset>,
        module: &Module,
    ) -> Result<ReadRequest, Refusal> {
        let (read, quoting) = self.read_arguments(protocol, charset)?;
        let excess = read
            .excess
            .map(|why| Error::new(Exit::Unsupported, format!("sparsync: {why}")));
        let max_verbosity = module.values.number(Param::MaxVerbosity);
        let words = Arguments::new(read.words, quoting, &module.name, max_verbosity);
        let line: Vec<_> = words
            .options
            .iter()
            .chain([&b".".to_vec()])
            .cloned()
            .map(OsString::from_vec)
            .collect();
        let umask = self.env.umask;
        let now = clock::now_unix().0;
        let (request, given) = cli::read_rsync_args(&line, umask, now, &|name| self.env.var(name));
        Ok(ReadRequest {
            words,
            excess,
            request,
            given,
        })
    }

    /// Logs who requests which paths. `user`: empty without authentication.
    fn log_request(&self, requested: &[u8], sends: bool, user: &[u8], peer: &DaemonPeer) {
        let direction: &[u8] = if sends { b"on" } else { b"to" };
        let by = if user.is_empty() {
            Vec::new()
        } else {
            [user, b"@"].concat()
        };
        let who = peer.shown();
        let line = [b"rsync ", direction, b" ", requested, b" from ", &by, &who].concat();
        self.log.put(&line);
    }

    /// Returns the log of a session, for which messages name files as in the module.
    fn module_log(&self, place: MessagePlace) -> Arc<ModuleLog> {
        let sink = self.log.clone();
        Arc::new(ModuleLog {
            in_module: Box::new(move |line| place.in_module(line)),
            put: Box::new(move |line| sink.put(line)),
        })
    }

    /// Reads the arguments of the client. `charset`: that of the module.
    fn read_arguments(
        &mut self,
        protocol: u8,
        charset: Option<NameCharset>,
    ) -> Result<(ClientArgs, Quoting), Refusal> {
        let mut quoting = Quoting::Backslashes;
        let mut read = decode_client_args(&mut self.input, args_end(protocol))?;
        let words = &mut read.words;
        if server_args::has_charset(words)
            && let Some(charset) = charset
        {
            charset::install(charset);
        }
        if server_args::is_secluded(words) {
            server_args::take_secluded(words);
            quoting = Quoting::Nothing;
            let more = decode_client_args(&mut self.input, 0)?;
            // The first one is the name of the program.
            let more_words = more.words.into_iter().skip(1);
            words.extend(more_words.map(charset::line_from_wire));
            read.excess = read.excess.or(more.excess);
            if let Some(charset) = charset::of_names() {
                charset.convert_lists();
            }
        }
        Ok((read, quoting))
    }

    /// Returns the error for the first option that the module refuses.
    fn refused(
        &self,
        values: &Values,
        given: &[GivenOption],
        request: &mut cli::ServeRsync,
    ) -> Option<Error> {
        let refused = RefusedOptions::parse(
            &self.text(values, Param::RefuseOptions).unwrap_or_default(),
            request.serve.sends,
            values.raw(Param::Charset).is_some(),
        );
        let before_capabilities = given
            .iter()
            .position(|option| option.flag.long == "rsh")
            .unwrap_or(given.len());
        if refused.first_of(&given[..before_capabilities]).is_some() {
            // As in rsync, the rest is not read.
            request.capabilities.clear();
        }
        let option = refused.first_of(given)?;
        Some(Error::new(
            Exit::Unsupported,
            format!("rsync: The server is configured to refuse {option}"),
        ))
    }

    /// Returns the link to the client, behind its arguments. `timeout_secs`: 0 for none.
    fn link(&mut self, timeout_secs: u32) -> Result<Link, Refusal> {
        let idle = (timeout_secs > 0).then(|| Duration::from_secs(timeout_secs.into()));
        let patience = Patience {
            stop: self.env.stop.clone(),
            ..Patience::of_a_copy(idle)
        };
        let leaves = patience.beaten.clone();
        let link = self
            .env
            .handle_signals()
            .and_then(|()| stdio::link(patience))?;
        let reader = Box::new(ReportingReader {
            inner: std::mem::take(&mut self.input.buffer).chain(link.reader),
            report: self.report.take(),
        });
        Ok(Link {
            reader,
            leave: Some(Box::new(move || leaves.store(true, Ordering::Relaxed))),
            ..link
        })
    }

    /// Returns what logs the transfers, if the module wants that.
    fn transfer_log(
        &self,
        values: &Values,
        options: &Options,
        sends: bool,
    ) -> Option<TextReporter> {
        if !values.flag(Param::TransferLogging) {
            return None;
        }
        let format = self.text(values, Param::LogFormat)?;
        let format = Format::of_module(&format, &|letter| self.log_constant(letter));
        let log = self.log.clone();
        Some(copy::transfer_log(
            self.env,
            options,
            sends,
            format,
            Box::new(move |line| log.put(line)),
        ))
    }

    /// Returns the value of an escape of `log format` that is the same for the whole session.
    fn log_constant(&self, letter: u8) -> Option<Vec<u8>> {
        let name: &[u8] = match letter {
            b'a' => b"RSYNC_HOST_ADDR",
            b'h' => b"RSYNC_HOST_NAME",
            b'm' => b"RSYNC_MODULE_NAME",
            b'P' => b"RSYNC_MODULE_PATH",
            b'u' => b"RSYNC_USER_NAME",
            _ => return None,
        };
        self.var(name)
    }

    /// Adds the changes of permissions that a module requires to those of the client.
    fn change_modes(
        &self,
        values: &Values,
        sends: bool,
        preserve: &mut Preserve,
    ) -> Result<(), Error> {
        let param = if sends {
            Param::OutgoingChmod
        } else {
            Param::IncomingChmod
        };
        let Some(text) = self.text(values, param) else {
            return Ok(());
        };
        let Some(required) = cli::value::chmod::parse(&text, self.env.umask) else {
            // The value has variables. Otherwise, it is an error at start. Without the changes, files could be accessible
            // to more users than the module permits.
            self.log.put(
                &[
                    b"Invalid \"",
                    param.name().as_bytes(),
                    b"\" directive: ",
                    &text,
                ]
                .concat(),
            );
            return Err(Error::usage(format!(
                "ERROR: module has an invalid \"{}\"",
                param.name()
            )));
        };
        preserve.chmod.extend(required.iter().copied());
        if !sends && !preserve.perms {
            preserve.required_modes = required;
        }
        Ok(())
    }

    /// Applies the parameters of a module to the options of a client, except changes of permissions. Returns the timeout to announce.
    fn apply(
        &self,
        values: &Values,
        path: &ModulePath,
        dest: &[u8],
        munges: bool,
        options: &mut Options,
    ) -> u32 {
        let most = cli::settle(&[verbosity(values.number(Param::MaxVerbosity))], &[], 0, 0)
            .unwrap_or_default()
            .output;
        options.output.info.limit(&most.info);
        options.output.debug.limit(&most.debug);
        options.output.stderr = StderrMode::Client;
        let preserve = &mut options.preserve;
        let has_names = path.chroot.is_none() || values.raw(Param::NameConverter).is_some();
        preserve.numeric_ids |= values
            .optional_flag(Param::NumericIds)
            .unwrap_or(!has_names);
        preserve.fake_super = values.flag(Param::FakeSuper);
        // Only the module decides whether links are munged.
        preserve.munge_links = false;
        preserve.peer_links = if munges {
            PeerLinks::Munged
        } else if path.is_whole_root() {
            PeerLinks::AsSent
        } else {
            PeerLinks::Sanitized
        };
        if values.flag(Param::InsecureLinks) {
            preserve.link_owners = LinkOwners::Anyone;
        }
        if let Some(noatime) = values.optional_flag(Param::OpenNoatime) {
            options.select.open_noatime = noatime;
        }
        options.select.ignore_unreadable = values.flag(Param::IgnoreNonreadable);
        options.delete.ignore_errors |= values.flag(Param::IgnoreErrors);
        if self
            .text(values, Param::DontCompress)
            .is_some_and(|list| list == b"*")
        {
            options.delta.compress.level = Some(1);
        }
        let own_rate = match u64::try_from(self.args.bwlimit) {
            Ok(kib @ 1..) => Some(kib * 1024),
            Ok(0) | Err(_) => None,
        };
        let rate = &mut options.connect.bwlimit_bytes_per_sec;
        *rate = lower(*rate, own_rate);
        if options.place.temp_dir.is_none() {
            options.place.temp_dir = self.text(values, Param::TempDir);
        }
        options.place.temp_dir_climbs = path.chroot.is_some();
        if !path.is_whole_root() {
            sanitize_options(options, &path.dir, dest);
        }
        // A client can only lower what protects this machine.
        let own = cli::own_max_alloc_bytes(&|name| self.env.var(name));
        let max_alloc = &mut options.connect.max_alloc_bytes;
        *max_alloc = lower(*max_alloc, own);
        let secs = u32::try_from(values.number(Param::Timeout)).unwrap_or(0);
        let timeout = &mut options.connect.timeout_secs;
        if secs > 0 && (*timeout == 0 || *timeout > secs) {
            *timeout = secs;
        }
        secs
    }
}

/// The option that requests this many levels of verbosity.
fn verbosity(levels: i32) -> Vec<u8> {
    let levels = usize::try_from(levels).unwrap_or(0).min(VERBOSITY_MAX);
    if levels == 0 {
        b"--no-verbose".to_vec()
    } else {
        [b"-".as_slice(), &b"v".repeat(levels)].concat()
    }
}

/// The most levels of verbosity.
const VERBOSITY_MAX: usize = 9;

/// Returns whether a sparsync can be served in sparsync's own protocol: nothing changes attributes at this end alone,
/// every option is permitted, and nothing is needed that only sessions in rsync's protocol have.
fn can_be_native(values: &Values, request: &cli::ServeRsync, options: &Options) -> bool {
    let flags = [
        Param::FakeSuper,
        Param::IgnoreNonreadable,
        Param::TransferLogging,
    ];
    let texts = [
        Param::IncomingChmod,
        Param::OutgoingChmod,
        Param::Charset,
        Param::RefuseOptions,
        Param::NameConverter,
    ];
    !flags.into_iter().any(|param| values.flag(param))
        && texts.into_iter().all(|param| values.raw(param).is_none())
        && options.requires_rsync().is_none()
        && options.copy_as.is_none()
        && request.confine_root.is_none()
}

/// Keeps the paths that options name in the module. `dest`: the destination, to which alternate directories are
/// relative.
fn sanitize_options(options: &mut Options, dir: &[u8], dest: &[u8]) {
    let place = &mut options.place;
    let backup = place.backup.as_mut().and_then(|backup| backup.dir.as_mut());
    let listed = match &mut options.select.files_from {
        Some(FilesFrom::File(path)) => Some(path),
        Some(FilesFrom::Far(_) | FilesFrom::Sent(_) | FilesFrom::Stdin) | None => None,
    };
    for path in [
        backup,
        place.temp_dir.as_mut(),
        place.partial_dir.as_mut(),
        listed,
    ]
    .into_iter()
    .flatten()
    {
        *path = module_path::option_path(path, dir, 0);
    }
    let depth = dest
        .split(|&byte| byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .count();
    if let Some(alt) = &mut options.delta.alt_dest {
        alt.shown_as_given = true;
        for path in &mut alt.dirs {
            *path = module_path::option_path(path, dir, depth);
        }
    }
}

/// Returns the error for a direction that the module does not permit.
fn access_error(values: &Values, read_only: bool, sends: bool, options: &Options) -> Option<Error> {
    let removes = options.select.remove_source != RemoveSource::No;
    let words = if !sends && read_only {
        "ERROR: module is read only"
    } else if sends && values.flag(Param::WriteOnly) {
        "ERROR: module is write only"
    } else if sends && read_only && removes {
        "ERROR: --remove-source-files cannot be used with a read-only module"
    } else {
        return None;
    };
    Some(Error::usage(words))
}

/// Returns the paths that the client's paths match, in the working directory of the session.
fn matched_paths(requested: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let matches = |path: &Vec<u8>| glob::expand(b"", path, WildcardRules::Rsync);
    requested.iter().flat_map(matches).collect()
}

/// Returns the error for a path that the rules of the module exclude.
fn path_error(
    rules: &ModuleRules,
    sends: bool,
    module: &ModulePath,
    request: &cli::ServeRsync,
    options: &Options,
) -> Option<Error> {
    const REJECTED: &str = "Your options have been rejected by the server.";
    let dest = if sends {
        None
    } else {
        request.serve.operands.first()
    };
    let top = arg_path::absolute(&module.dir, dest.map_or(b"", |dest| dest));
    // They are relative to the destination, but rsync checks them as if they began at the module.
    let is_excluded = |path: &Vec<u8>| {
        rules.exclude(&crate::path::join(&module.dir, path), true)
            || rules.exclude(&arg_path::absolute(&top, path), true)
    };
    let place = &options.place;
    let backup = place.backup.as_ref().and_then(|backup| backup.dir.as_ref());
    let mut of_rules = options.select.rules.iter().filter_map(|arg| match arg {
        RuleArg::ExcludeFrom(file) | RuleArg::IncludeFrom(file) => Some(file),
        RuleArg::Filter(_) | RuleArg::Implied(_) | RuleArg::Exclude(_) | RuleArg::Include(_) => {
            None
        }
    });
    let mut listed = options
        .select
        .files_from
        .iter()
        .filter_map(|from| match from {
            FilesFrom::File(file) => Some(file),
            FilesFrom::Far(_) | FilesFrom::Sent(_) | FilesFrom::Stdin => None,
        });
    let is_hidden = |file: &Vec<u8>| {
        let file = module_path::option_path(file, &module.dir, 0);
        sandbox::is_hidden(&arg_path::absolute(&module.dir, &file))
    };
    let hides_input = of_rules.any(is_hidden) || listed.any(|file| sandbox::is_hidden(file));
    if hides_input || backup.into_iter().chain(&place.temp_dir).any(is_excluded) {
        return Some(Error::new(Exit::Unsupported, format!("rsync: {REJECTED}")));
    }
    if options
        .delta
        .alt_dest
        .iter()
        .flat_map(|alt| &alt.dirs)
        .any(is_excluded)
    {
        return Some(Error::usage(REJECTED));
    }
    // rsync does not know yet what it is, and checks it as a file and as a directory.
    let excludes_top = rules.exclude(&top, false) || rules.exclude(&top, true);
    let dest = dest.filter(|dest| excludes_top || sandbox::is_hidden(dest))?;
    let words = [
        b"ERROR: daemon has excluded destination \"".as_slice(),
        dest,
        b"\"",
    ]
    .concat();
    Some(Error::new(Exit::FileSelect, words))
}

/// Returns the directories in the module in which rsync works, by the operands of the session.
fn working_dirs(operands: &[Vec<u8>], sends: bool, options: &Options) -> Vec<Vec<u8>> {
    let dirs = operands.iter().flat_map(|operand| {
        let whole = operand.strip_suffix(b"/").unwrap_or(operand);
        let parent = crate::path::split_parent(whole).0;
        match (sends, module_path::split_marker(operand)) {
            // If the source is a single file, the destination may be its new name: then rsync works in the parent.
            (false, _) => vec![whole, parent],
            (true, Some(marker)) if options.select.relative => vec![&operand[..marker]],
            (true, None) if options.select.files_from.is_some() => vec![whole],
            (true, None) if options.select.relative => Vec::new(),
            (true, None) if operand.ends_with(b"/") => vec![whole],
            (true, _) => vec![parent],
        }
    });
    dirs.filter(|dir| !dir.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// How a module's messages name its files.
struct MessagePlace {
    /// The module's directory.
    dir: Vec<u8>,
    /// The directories in the module in which rsync works.
    bases: Vec<Vec<u8>>,
    /// The module's name.
    module: Vec<u8>,
    /// Whether the session has the module's directory as its root.
    is_chroot: bool,
}

impl MessagePlace {
    /// Changes a message as a daemon prints it: paths begin at the module, whose name comes behind them. Those below a
    /// directory in which rsync works begin with a slash.
    fn in_module(&self, line: Vec<u8>) -> Vec<u8> {
        let starts = [
            &b"rsync: ["[..],
            b"file has vanished: ",
            b"symlink has no referent: ",
            b"uid ",
            b"gid ",
        ];
        let is_about_file = starts.into_iter().any(|start| line.starts_with(start));
        if !is_about_file {
            return line;
        }
        let Some(begin) = line.iter().position(|&byte| byte == b'"') else {
            return line;
        };
        let Some(end) = end_of_path(&line, begin) else {
            return line;
        };
        let shown = self.shown(&line[begin + 1..end], &line);
        // rsync names the call. In a root of its own, it has no need of an open file, and calls by path.
        let call = &line[..begin];
        let call = match call.strip_suffix(b"fsetxattr(") {
            Some(start) if self.is_chroot => [start, b"lsetxattr("].concat(),
            Some(_) | None => call.to_vec(),
        };
        [
            &call,
            &b"\""[..],
            shown,
            b"\" (in ",
            &self.module,
            b")",
            &line[end + 1..],
        ]
        .concat()
    }

    /// Returns the name that a message has for a path.
    fn shown<'p>(&self, path: &'p [u8], line: &[u8]) -> &'p [u8] {
        match path.strip_prefix(&self.dir[..]) {
            _ if self.dir == b"/" => path,
            Some(rest) if rest.starts_with(b"/") => {
                let is_below = |base: &Vec<u8>| {
                    rest[1..]
                        .strip_prefix(&base[..])
                        .is_some_and(|name| name.starts_with(b"/"))
                };
                // rsync reports as `Receiver` only before it has entered the destination.
                let is_inside = !line.starts_with(b"rsync: [Receiver] ");
                if is_inside && self.bases.iter().any(is_below) {
                    rest
                } else {
                    &rest[1..]
                }
            }
            Some(b"") => b".",
            _ => path,
        }
    }
}

/// Returns the lower one of two limits, that of the client and that of this daemon; `None` is no limit.
fn lower(of_client: Option<u64>, own: Option<u64>) -> Option<u64> {
    of_client.into_iter().chain(own).min()
}

/// Returns where the quote behind a message's path is, if the path begins behind the quote at `begin`.
fn end_of_path(line: &[u8], begin: usize) -> Option<usize> {
    let ends = [
        &b"\" -> "[..],
        b"\" (from ",
        b"\" failed: ",
        b"\") failed: ",
        b"\", continuing: ",
        b"\": ",
    ];
    let last = |end: &[u8]| line.windows(end.len()).rposition(|window| window == end);
    let is_about_attribute = line[..begin].ends_with(b"xattr(");
    // The name of an extended attribute follows the path.
    let before_attribute = if is_about_attribute {
        last(b"\",\"")
    } else {
        None
    };
    let end = before_attribute
        .or_else(|| ends.into_iter().find_map(last))
        .or_else(|| line.len().checked_sub(1))?;
    let is_quote = end > begin && line[end] == b'"';
    if is_quote { Some(end) } else { None }
}

#[cfg(test)]
mod tests {
    use super::lower;

    #[test]
    fn a_client_can_only_lower_a_limit() {
        assert_eq!(lower(None, None), None);
        assert_eq!(lower(None, Some(5)), Some(5));
        assert_eq!(lower(Some(4), None), Some(4));
        assert_eq!(lower(Some(4), Some(5)), Some(4));
        assert_eq!(lower(Some(6), Some(5)), Some(5));
    }
}
