//! Reads the files that options name: rules, lists, and popt aliases.

use super::rsync_daemon::policy::module_path;
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{
    self, BadRule, ChainOptions, MERGE_DEPTH_MAX, Merge, ModuleRules, Parsed, Rules, Sides,
};
use crate::flist::Kind;
use crate::fs::{sandbox, sys, trusted_path};
use crate::options::select::FilesFrom;
use crate::options::{LinkOwners, Options, RuleArg};
use crate::report::event::{Event, Problem, Weight, errno_words};
use crate::report::text::TextReporter;
use std::cell::RefCell;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

/// The most bytes of a file of rules, names or aliases. Such files are read whole.
const TEXT_MAX_BYTES: usize = 1 << 30;

/// Returns the texts of /etc/popt and ~/.popt, in which popt looks for aliases.
pub fn popt_files(env: &Env) -> Vec<u8> {
    let read = |path: &[u8]| {
        trusted_path::read_path(path, TEXT_MAX_BYTES, LinkOwners::Trusted).unwrap_or_default()
    };
    let mut text = read(b"/etc/popt");
    if let Some(home) = env.var("HOME") {
        let path = crate::path::join(&home.into_vec(), b".popt");
        text.push(b'\n');
        text.extend(read(&path));
    }
    text
}

/// The rules of a command line after the files they name were read, with the CVS settings of the environment.
#[derive(Clone, Default)]
pub struct InputFiles {
    /// The rules in order, including those in the files that they name.
    pub parsed: Arc<Vec<Parsed>>,
    /// The text of `~/.cvsignore`.
    pub cvs_home: Option<Vec<u8>>,
    /// The value of `CVSIGNORE`.
    pub cvs_env: Option<Vec<u8>>,
    /// The rules of the module that a daemon serves.
    pub module: Option<Arc<ModuleRules>>,
    /// The directory of that module, where the absolute paths of its client begin.
    pub module_dir: Option<Vec<u8>>,
    /// The files of rules that were read.
    pub files: Vec<RuleFile>,
    /// The warnings about rules that are too long. These rules are not in `parsed`.
    pub too_long: Vec<Vec<u8>>,
}

/// A file of rules that was read.
#[derive(Clone)]
pub struct RuleFile {
    /// The text that its rules are parts of.
    pub text: Arc<Vec<u8>>,
    pub name: Vec<u8>,
}

impl InputFiles {
    /// Returns the rules in force.
    pub fn rules(self, options: &Options) -> Rules {
        let InputFiles {
            parsed,
            cvs_home,
            cvs_env,
            module,
            module_dir,
            files: _,
            too_long: _,
        } = self;
        let delete_excluded = options.delete.excluded;
        let from0 = options.select.from0;
        let chain = ChainOptions {
            delete_excluded,
            from0,
            cvs_home,
            cvs_env,
            module,
            module_abs: module_dir.unwrap_or_default(),
            ..ChainOptions::default()
        };
        Rules::new(parsed, chain)
    }

    /// Reports the rules that are too long.
    pub fn report_too_long(&self, reporter: &mut TextReporter) {
        for warning in &self.too_long {
            let problem = Problem::new(warning.clone(), Weight::Warning);
            reporter.report(&Event::Problem(problem));
        }
    }

    /// Limits the global rules of `-C` to the receiver. A client that receives does so, as rsync: with
    /// `--delete-excluded`, what they exclude is not deleted.
    pub fn with_cvs_at_receiver(mut self) -> InputFiles {
        let of_cvs = filter::cvs_rules(self.cvs_home.as_deref(), self.cvs_env.as_deref()).len();
        for parsed in Arc::make_mut(&mut self.parsed)
            .iter_mut()
            .rev()
            .take(of_cvs)
        {
            if let Parsed::Rule(rule) = parsed {
                rule.sides = Sides::Receiver;
            }
        }
        self
    }
}

/// Reads the rules of the command line and the files that they name.
pub fn rules(env: &Env, options: &Options) -> Result<InputFiles, Error> {
    let owners = options.preserve.link_owners;
    let module_dir = module_dir(env);
    let reader = RuleReader {
        env,
        from0: options.select.from0,
        owners,
        role: "client",
        module_dir: module_dir.as_deref(),
        files: RefCell::default(),
    };
    let mut parsed = reader.all(&options.select.rules)?;
    let files = reader.files.take();
    let mut too_long = Vec::new();
    for parsed in parsed.extract_if(.., |parsed| matches!(parsed, Parsed::TooLong(_))) {
        if let Parsed::TooLong(warning) = parsed {
            too_long.push(warning.into_vec());
        }
    }

    let home_name = env
        .var("HOME")
        .map(|home| crate::path::join(&home.into_vec(), b".cvsignore"));
    let cvs_home = home_name
        .as_ref()
        .and_then(|name| trusted_path::read_path(name, TEXT_MAX_BYTES, reader.owners).ok());
    let cvs_env = env.var("CVSIGNORE").map(OsStringExt::into_vec);
    let has_cvs_rule = parsed.iter().any(|parsed| matches!(parsed, Parsed::Cvs(_)));
    if options.select.cvs_exclude || has_cvs_rule {
        let home_name = home_name.unwrap_or_default();
        too_long.extend(filter::cvs_too_long(
            &home_name,
            cvs_home.as_deref(),
            cvs_env.as_deref(),
        ));
    }
    if options.select.cvs_exclude {
        parsed.extend(filter::cvs_rules(cvs_home.as_deref(), cvs_env.as_deref()));
    }
    Ok(InputFiles {
        parsed: Arc::new(parsed),
        cvs_home,
        cvs_env,
        module: None,
        files,
        module_dir,
        too_long,
    })
}

/// Returns the directory of the module that this process serves.
pub fn module_dir(env: &Env) -> Option<Vec<u8>> {
    if sandbox::is_module() {
        Some(env.cwd.clone())
    } else {
        None
    }
}

/// Reads the rules of a module and the files that they name.
pub fn module_rules(env: &Env, rules: &[RuleArg]) -> Result<Vec<Parsed>, Error> {
    RuleReader {
        env,
        from0: false,
        owners: LinkOwners::Trusted,
        role: "Receiver",
        module_dir: None,
        files: RefCell::default(),
    }
    .all(rules)
}

/// Returns the name of a file of rules, names or a password that cannot be read twice: `-`, a fifo, or a pipe of the shell
/// such as `/dev/fd/63`. `None`: there is none.
pub fn read_once(options: &Options) -> Option<Vec<u8>> {
    let mut names = rule_files(options);
    match &options.select.files_from {
        Some(FilesFrom::Stdin) => names.push(b"-".to_vec()),
        Some(FilesFrom::File(name) | FilesFrom::Sent(name)) => names.push(name.clone()),
        Some(FilesFrom::Far(_)) | None => {}
    }
    names.extend(options.connect.daemon.password_file.clone());
    first_read_once(names)
}

/// As [`read_once`], only for files of rules.
pub fn rules_read_once(options: &Options) -> Option<Vec<u8>> {
    first_read_once(rule_files(options))
}

/// Returns the names of the files of rules that are read once.
fn rule_files(options: &Options) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    for arg in &options.select.rules {
        let parsed = match arg {
            RuleArg::Filter(text) | RuleArg::Implied(text) => filter::parse_filter(text),
            RuleArg::Exclude(text) => filter::parse_exclude(text),
            RuleArg::Include(text) => filter::parse_include(text),
            RuleArg::ExcludeFrom(name) | RuleArg::IncludeFrom(name) => {
                names.push(name.clone());
                continue;
            }
        };
        if let Ok(Parsed::Merge(merge)) = parsed
            && !merge.per_dir
        {
            names.push(merge.name);
        }
    }
    names
}

fn first_read_once(names: Vec<Vec<u8>>) -> Option<Vec<u8>> {
    names.into_iter().find(|name| {
        // A file that does not exist is reported by the run.
        name == b"-"
            || sys::stat_path(name, true)
                .is_ok_and(|stat| Kind::of_mode(stat.mode) != Some(Kind::File))
    })
}

/// Returns whether the rules name files, other than per-directory merge files. Such a file may be standard input or a
/// fifo, which cannot be read again.
pub fn name_files(options: &Options) -> bool {
    let is_read = |parsed: &Parsed| matches!(parsed, Parsed::Merge(merge) if !merge.per_dir);
    options.select.rules.iter().any(|arg| match arg {
        RuleArg::Filter(text) | RuleArg::Implied(text) => {
            filter::parse_filter(text).is_ok_and(|rule| is_read(&rule))
        }
        RuleArg::Exclude(text) => filter::parse_exclude(text).is_ok_and(|rule| is_read(&rule)),
        RuleArg::Include(text) => filter::parse_include(text).is_ok_and(|rule| is_read(&rule)),
        RuleArg::ExcludeFrom(_) | RuleArg::IncludeFrom(_) => true,
    })
}

/// Reads the files that the rules of a command line name.
struct RuleReader<'a> {
    env: &'a Env,
    from0: bool,
    owners: LinkOwners,
    /// The role in messages.
    role: &'static str,
    /// The directory of the module that is served, where the absolute paths of its client begin.
    module_dir: Option<&'a [u8]>,
    /// See [`InputFiles::files`].
    files: RefCell<Vec<RuleFile>>,
}

impl RuleReader<'_> {
    fn all(&self, args: &[RuleArg]) -> Result<Vec<Parsed>, Error> {
        let mut parsed = Vec::new();
        for arg in args {
            match arg {
                RuleArg::Filter(text) | RuleArg::Implied(text) => {
                    self.one(filter::parse_filter(text), &mut parsed)?
                }
                RuleArg::Exclude(text) => self.one(filter::parse_exclude(text), &mut parsed)?,
                RuleArg::Include(text) => self.one(filter::parse_include(text), &mut parsed)?,
                RuleArg::ExcludeFrom(file) => self.list(file, false, &mut parsed)?,
                RuleArg::IncludeFrom(file) => self.list(file, true, &mut parsed)?,
            }
        }
        Ok(parsed)
    }

    /// Records that rules come from a file.
    fn note_file(&self, rules: &[Parsed], name: &[u8]) {
        // The last one: the first may be that of the modifier `e`, which is not in the text.
        let text = rules.iter().rev().find_map(|parsed| match parsed {
            Parsed::Rule(rule) => Some(rule.pattern.whole().clone()),
            Parsed::Clear
            | Parsed::Merge(_)
            | Parsed::Cvs(_)
            | Parsed::Nothing
            | Parsed::TooLong(_) => None,
        });
        if let Some(text) = text {
            let name = name.to_vec();
            self.files.borrow_mut().push(RuleFile { text, name });
        }
    }

    fn one(&self, parsed: Result<Parsed, BadRule>, rules: &mut Vec<Parsed>) -> Result<(), Error> {
        self.splice(vec![parsed.map_err(bad)?], 0, rules)
    }

    /// Appends parsed rules. Merge files that are read once are replaced by the rules in them.
    fn splice(
        &self,
        parsed: Vec<Parsed>,
        depth: usize,
        rules: &mut Vec<Parsed>,
    ) -> Result<(), Error> {
        if rules.is_empty()
            && !parsed
                .iter()
                .any(|parsed| matches!(parsed, Parsed::Merge(_)))
        {
            *rules = parsed;
            return Ok(());
        }
        for parsed in parsed {
            match parsed {
                Parsed::Merge(merge) if !merge.per_dir => {
                    if depth >= MERGE_DEPTH_MAX {
                        let place = merge.named_at.as_deref().unwrap_or(&merge.name);
                        return Err(Error::new(
                            Exit::FileIo,
                            filter::too_deep(self.role, MERGE_DEPTH_MAX, place),
                        ));
                    }
                    let text = self.merge_text(&merge)?;
                    let inner = filter::parse_merge(&text, &merge, self.from0).map_err(bad)?;
                    self.note_file(&inner, &merge.name);
                    self.splice(inner, depth + 1, rules)?;
                }
                other => rules.push(other),
            }
        }
        Ok(())
    }

    /// Returns the path of a file that the user of this run has named.
    fn path_of(&self, file: &[u8]) -> Vec<u8> {
        match self.module_dir {
            // The standard input of a session is its connection.
            Some(dir) if file == b"-" => crate::path::join(dir, file),
            Some(dir) => module_path::option_path(file, dir, 0),
            None => file.to_vec(),
        }
    }

    fn merge_text(&self, merge: &Merge) -> Result<Vec<u8>, Error> {
        let merge = &Merge {
            name: self.path_of(&merge.name),
            ..merge.clone()
        };
        // As in rsync, a merge file that the module hides has no rules.
        if self.module_dir.is_some() && sandbox::is_hidden(&merge.name) {
            return Ok(Vec::new());
        }
        read(self.env, &merge.name, self.owners).map_err(|error| {
            let (mut line, with_reason) = merge.open_failure();
            if with_reason {
                let start = format!("rsync: [{}] ", self.role).into_bytes();
                line = [&start[..], &line, b": ", &errno_words(&error)].concat();
            }
            Error::new(Exit::FileIo, trusted_path::with_refusal(&error, line))
        })
    }

    fn list(&self, file: &[u8], include: bool, rules: &mut Vec<Parsed>) -> Result<(), Error> {
        let file = &self.path_of(file)[..];
        let text = read(self.env, file, self.owners).map_err(|error| {
            let kind = if include { "include" } else { "exclude" };
            let start = format!("rsync: [{}] failed to open {kind} file ", self.role).into_bytes();
            let line = [start.as_slice(), file, b": ", &errno_words(&error)].concat();
            Error::new(Exit::FileIo, trusted_path::with_refusal(&error, line))
        })?;
        let parsed = filter::parse_from(file, text, include, self.from0).map_err(bad)?;
        self.note_file(&parsed, file);
        self.splice(parsed, 0, rules)
    }
}

/// Reads a file, or standard input for `-`.
fn read(env: &Env, file: &[u8], owners: LinkOwners) -> std::io::Result<Vec<u8>> {
    if file == b"-" {
        env.read_stdin()
    } else {
        trusted_path::read_path(file, TEXT_MAX_BYTES, owners)
    }
}

fn bad(rule: BadRule) -> Error {
    Error::usage(rule.message())
}

/// Reads the text that `--files-from` names.
pub fn files_from(env: &Env, from: &FilesFrom, owners: LinkOwners) -> Result<Vec<u8>, Error> {
    let (text, name): (_, &[u8]) = match from {
        FilesFrom::Stdin => (env.read_stdin(), b"-"),
        // The client never reads a remote list. For the server the list is a local `File`.
        FilesFrom::File(file) | FilesFrom::Far(file) | FilesFrom::Sent(file) => {
            (trusted_path::read_path(file, TEXT_MAX_BYTES, owners), file)
        }
    };
    text.map_err(|error| {
        // rsync omits the errno number here.
        let words = errno_words(&error);
        let words = words
            .iter()
            .rposition(|&b| b == b'(')
            .map_or(&words[..], |at| words[..at].trim_ascii_end());
        let line = [
            b"rsync: failed to open files-from file ",
            name,
            b": ",
            words,
        ]
        .concat();
        Error::usage(trusted_path::with_refusal(&error, line))
    })
}
