//! The request of a client that may use a module: its arguments, the module's parameters for them, and the session.

use super::arguments::{Arguments, Quoting};
use super::hooks::request_vars;
use super::message_paths::{MessagePlace, working_dirs};
use super::module_options::ModuleRun;
use super::peer::DaemonPeer;
use super::{Accepted, DaemonConnection, ModulePlace, Refusal, timeout_secs};
use crate::cli::parse::GivenOption;
use crate::cli::{self, server_args};
use crate::cmd::copy;
use crate::cmd::remote_side::rsync_client::{self, DaemonSide, RsyncRun};
use crate::cmd::remote_side::sparsync_client::{self, ServedModule};
use crate::cmd::rsync_daemon::connections::ReportingReader;
use crate::cmd::rsync_daemon::policy::config::Module;
use crate::cmd::rsync_daemon::policy::module_path;
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::cmd::rsync_daemon::policy::refuse::RefusedOptions;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::ModuleRules;
use crate::fs::charset::{self, NameCharset};
use crate::fs::glob::{self, WildcardRules};
use crate::fs::{sandbox, sys};
use crate::options::{FilesFrom, Options, RemoveSource, RuleArg};
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
    /// The error if it is longer than what is accepted.
    excess: Option<Error>,
    request: cli::ServeRsync,
    /// The options in the order of the command line.
    given: Vec<GivenOption>,
}

impl DaemonConnection<'_> {
    /// Reads the arguments, applies the parameters of the module to them, and runs the session.
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
        let refused = self.refused(values, &given, &mut request);

        let is_relative = match &request.options {
            Ok(options) => sends && options.select.relative && !path.is_whole_root(),
            Err(_) => false,
        };
        request.serve.operands = words.paths_in(&module.name, is_relative);
        // Hooks see the paths that are served. The rules of the module are applied to the paths as they were requested.
        let served_paths = if sends {
            matched_paths(&request.serve.operands)
        } else {
            request.serve.operands.clone()
        };
        let hook_vars = request_vars(&words, &served_paths, &requested);
        let mut dest = None;
        if !sends {
            for operand in &mut request.serve.operands {
                *operand = path.dest(operand);
            }
            dest = request.serve.operands.first().cloned();
        }

        let run = ModuleRun {
            values,
            path: &path,
            munges,
            sends,
            dest,
        };
        let mut options = request.options.clone().unwrap_or_default();
        self.apply_params(&run, &mut options);

        let mut refusal = excess.or(refused);
        if refusal.is_none()
            && let Err(error) = &request.options
        {
            refusal = Some(Error {
                exit: Exit::Unsupported,
                ..error.clone()
            });
        }
        if let Some(pre_xfer) = hooks.pre_xfer {
            // It has been started, and learns of every request, also of one that is refused.
            let failure = self.run_pre_xfer(pre_xfer, &hook_vars);
            refusal = refusal.or(failure);
        }
        if refusal.is_none() {
            refusal = access_error(&run, read_only, &options);
        }
        if refusal.is_none() {
            refusal = self.change_modes(&run, &mut options.preserve).err();
        }
        if refusal.is_none()
            && !options.preserve.numeric_ids
            && let Some(converter) = hooks.name_converter
        {
            refusal = self.begin_conversion(converter, &hook_vars).err();
        }

        // What follows is checked in the session. Like rsync, a receiver has logged its beginning by then, except if the
        // paths of its options are excluded.
        let late_refusal = match &rules {
            Some(rules) => path_error(&run, rules, &options),
            None => None,
        };
        let late_refusal = late_refusal.or_else(|| request.refusal.clone());
        let begins = match (&refusal, &late_refusal) {
            (Some(_), _) => false,
            (None, None) => true,
            (None, Some(error)) => !sends && error.exit != Exit::Unsupported,
        };
        let refusal = refusal
            .or(late_refusal)
            .map(|error| error.by(rsync_client::role_of(&request)));

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
            module: module.name.clone(),
            is_chroot: path.chroot.is_some(),
        });
        if begins {
            (log.put)(if sends {
                b"building file list"
            } else {
                b"receiving file list"
            });
        }

        let is_native = refusal.is_none()
            && protocol >= BEHIND_RSYNC_OLDEST
            && server_args::means_us(&request.capabilities)
            && rules.is_none()
            && !words.is_limited
            && can_be_native(values, &request, &options);
        if is_native {
            let adapt = |options: &mut Options| self.apply_params(&run, options);
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
        let side = DaemonSide {
            terms: DaemonTerms {
                protocol,
                timeout_secs: timeout_secs(values),
                log: &log,
            },
            rules,
            refusal,
            transfer_log: self.transfer_log(values, &options, sends),
        };
        let run = RsyncRun {
            request: &request,
            options: &options,
            daemon: Some(side),
        };
        let mut tally = Tally::default();
        Ok(match run.serve(self.env, link, &mut tally) {
            Ok(()) => tally.exit_of_server(),
            Err(error) => error.exit,
        })
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
}

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

/// Returns the error for a direction that the module does not permit.
fn access_error(run: &ModuleRun<'_>, read_only: bool, options: &Options) -> Option<Error> {
    let sends = run.sends;
    let removes = options.select.remove_source != RemoveSource::No;
    let words = if !sends && read_only {
        "ERROR: module is read only"
    } else if sends && run.values.flag(Param::WriteOnly) {
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
fn path_error(run: &ModuleRun<'_>, rules: &ModuleRules, options: &Options) -> Option<Error> {
    const REJECTED: &str = "Your options have been rejected by the server.";
    let module_dir = &run.path.dir;
    let rule_files = options.select.rules.iter().filter_map(|arg| match arg {
        RuleArg::ExcludeFrom(file) | RuleArg::IncludeFrom(file) => Some(file),
        RuleArg::Filter(_) | RuleArg::Implied(_) | RuleArg::Exclude(_) | RuleArg::Include(_) => {
            None
        }
    });
    for file in rule_files {
        let file = module_path::option_path(file, module_dir, 0);
        if sandbox::is_hidden(&arg_path::absolute(module_dir, &file)) {
            return Some(Error::new(Exit::Unsupported, format!("rsync: {REJECTED}")));
        }
    }
    if let Some(FilesFrom::File(list)) = &options.select.files_from
        && sandbox::is_hidden(list)
    {
        return Some(Error::new(Exit::Unsupported, format!("rsync: {REJECTED}")));
    }

    let dest = run.dest.as_deref();
    let top = arg_path::absolute(module_dir, dest.unwrap_or_default());
    // They are relative to the destination, but rsync checks them as if they began at the module.
    let is_excluded = |path: &Vec<u8>| {
        rules.exclude(&crate::path::join(module_dir, path), true)
            || rules.exclude(&arg_path::absolute(&top, path), true)
    };
    let place = &options.place;
    let backup_dir = place.backup.as_ref().and_then(|backup| backup.dir.as_ref());
    if backup_dir
        .into_iter()
        .chain(&place.temp_dir)
        .any(is_excluded)
    {
        return Some(Error::new(Exit::Unsupported, format!("rsync: {REJECTED}")));
    }
    let mut alternates = options.delta.alt_dest.iter().flat_map(|alt| &alt.dirs);
    if alternates.any(is_excluded) {
        return Some(Error::usage(REJECTED));
    }

    // rsync does not know yet what the destination is, and checks it as a file and as a directory.
    let dest = dest?;
    let excludes_top = rules.exclude(&top, false) || rules.exclude(&top, true);
    if !excludes_top && !sandbox::is_hidden(dest) {
        return None;
    }
    let words = [
        b"ERROR: daemon has excluded destination \"".as_slice(),
        dest,
        b"\"",
    ]
    .concat();
    Some(Error::new(Exit::FileSelect, words))
}
