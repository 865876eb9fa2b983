//! Reads the configuration of a daemon for stock clients, and checks what cannot be checked without the system.

use super::log::{DaemonLog, facility_of};
use super::policy::config::{
    BadConfig, CONFIG_MAX_BYTES, Config, ConfigFiles, ConfigReader, check_value,
};
use super::policy::params::{Param, ParamValue, Values};
use crate::cli::daemon_args::DaemonArgs;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::path;
use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt as _;

/// The configuration if none is named.
const CONFIG: &[u8] = b"/etc/rsyncd.conf";
/// The configuration of a daemon behind a remote shell, in the working directory.
const SHELL_CONFIG: &[u8] = b"rsyncd.conf";

/// Reads files of the configuration.
#[derive(Default)]
struct SystemFiles {
    /// Whether a symlink of an untrusted user was not followed.
    has_refused: Cell<bool>,
}

impl SystemFiles {
    fn noted<T>(&self, opened: io::Result<T>) -> io::Result<T> {
        if opened.as_ref().is_err_and(trusted_path::is_refused) {
            self.has_refused.set(true);
        }
        opened
    }
}

impl ConfigFiles for SystemFiles {
    fn read(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.noted(trusted_path::read_path(
            path,
            CONFIG_MAX_BYTES,
            LinkOwners::Trusted,
        ))
    }

    fn names(&self, path: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
        match self.noted(trusted_path::open_dir(path, LinkOwners::Trusted)) {
            Ok(dir) => {
                let mut names = Vec::new();
                sys::list(dir.as_fd(), |entry| names.push(entry.name.to_vec()))?;
                Ok(Some(names))
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads the configuration. What is wrong with it is logged, and returned for standard error.
pub fn read_config(env: &Env, args: &DaemonArgs) -> Result<Config> {
    let overrides = overrides(args)?;
    let files = SystemFiles::default();
    read_unlogged(env, args, &files, &overrides).map_err(|BadConfig { line, globals }| {
        let log = DaemonLog::open(&globals, args.log_file.as_deref(), env.umask, &|name| {
            variable(env, name)
        });
        if files.has_refused.get() {
            log.put(trusted_path::REFUSAL);
        }
        let error = Error::new(Exit::Usage, line).by("");
        log.put(&error.message);
        log.put(b"rsync error: syntax or usage error (code 1)");
        error
    })
}

/// Returns the parameters of the command line.
fn overrides(args: &DaemonArgs) -> Result<Vec<(Param, ParamValue)>> {
    let mut overrides = Vec::new();
    for text in &args.overrides {
        let sign = text
            .iter()
            .position(|&byte| byte == b'=')
            .unwrap_or(text.len());
        let name = &text[..sign];
        let value = text[sign..].strip_prefix(b"=").unwrap_or_default();
        let unknown = || Error::usage([b"Unknown parameter \"".as_slice(), name, b"\""].concat());
        let param = Param::named(name).ok_or_else(unknown)?;
        let value = value.trim_ascii();
        check_value(param, value).map_err(Error::usage)?;
        overrides.push((param, param.parse(value).map_err(Error::usage)?));
    }
    let given = [
        (Param::Address, &args.address),
        (Param::SocketOptions, &args.sockopts),
        (Param::TempDir, &args.temp_dir),
    ];
    for (param, value) in given {
        overrides.extend(value.clone().map(|value| (param, ParamValue::Text(value))));
    }
    overrides.extend(
        args.port
            .map(|port| (Param::Port, ParamValue::Number(port.into()))),
    );
    Ok(overrides)
}

fn read_unlogged(
    env: &Env,
    args: &DaemonArgs,
    files: &SystemFiles,
    overrides: &[(Param, ParamValue)],
) -> std::result::Result<Config, BadConfig> {
    let default = if args.by_shell && sys::ids().0 != 0 {
        SHELL_CONFIG
    } else {
        CONFIG
    };
    let name = args.config.as_deref().unwrap_or(default);
    let path = if name.starts_with(b"/") {
        name.to_vec()
    } else {
        path::join(&env.cwd, name)
    };
    let vars = |name: &[u8]| variable(env, name);
    let mut config = ConfigReader::read(&path, files, &vars, overrides)?;
    if let Some(format) = &args.log_format {
        for values in config.modules.iter_mut().map(|module| &mut module.values) {
            values.set(Param::LogFormat, ParamValue::Text(format.clone()));
            values.set(Param::TransferLogging, ParamValue::Flag(true));
        }
    }
    for values in config
        .modules
        .iter()
        .map(|module| &module.values)
        .chain([&config.globals])
    {
        check_values(values).map_err(|line| BadConfig {
            line,
            globals: config.globals.clone(),
        })?;
    }
    Ok(config)
}

/// Returns a variable of the environment.
pub fn variable(env: &Env, name: &[u8]) -> Option<Vec<u8>> {
    str::from_utf8(name)
        .ok()
        .and_then(|name| env.var(name))
        .map(OsString::into_vec)
}

/// Fails for values that cannot be used, so that none is ignored silently.
fn check_values(values: &Values) -> std::result::Result<(), Vec<u8>> {
    if facility_of(values, &|_| None).is_none() && values.raw(Param::LogFile).is_none() {
        return Err(
            b"sparsync: cannot use the parameter \"syslog facility\": no such facility".to_vec(),
        );
    }
    Ok(())
}
