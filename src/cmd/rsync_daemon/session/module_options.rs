//! Applies the parameters of a module to the options of a client.

use super::{DaemonConnection, timeout_secs};
use crate::cli;
use crate::cmd::rsync_daemon::policy::module_path::{self, ModulePath};
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::error::Error;
use crate::options::{FilesFrom, LinkOwners, Options, PeerLinks, Preserve, StderrMode};

/// The run of a client in a module, as far as the parameters of the module depend on it.
pub(super) struct ModuleRun<'a> {
    /// The parameters of the module.
    pub(super) values: &'a Values,
    pub(super) path: &'a ModulePath,
    /// Whether the values of symlinks are munged.
    pub(super) munges: bool,
    /// Whether this end sends.
    pub(super) sends: bool,
    /// The destination in the module, if this end receives.
    pub(super) dest: Option<Vec<u8>>,
}

impl DaemonConnection<'_> {
    /// Applies the parameters of a module to the options of a client, except changes of permissions.
    pub(super) fn apply_params(&self, run: &ModuleRun<'_>, options: &mut Options) {
        let ModuleRun { values, path, .. } = run;
        let most_verbose = verbosity(values.number(Param::MaxVerbosity));
        let most = cli::settle(&[most_verbose], &[], 0, 0).unwrap_or_default();
        options.output.info.limit(&most.output.info);
        options.output.debug.limit(&most.output.debug);
        options.output.stderr = StderrMode::Client;

        let preserve = &mut options.preserve;
        let has_names = path.chroot.is_none() || values.raw(Param::NameConverter).is_some();
        preserve.numeric_ids |= values
            .optional_flag(Param::NumericIds)
            .unwrap_or(!has_names);
        preserve.fake_super = values.flag(Param::FakeSuper);
        // Only the module decides whether links are munged.
        preserve.munge_links = false;
        preserve.peer_links = if run.munges {
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
        if self.text(values, Param::DontCompress).as_deref() == Some(b"*") {
            options.delta.compress.level = Some(1);
        }

        if options.place.temp_dir.is_none() {
            options.place.temp_dir = self.text(values, Param::TempDir);
        }
        options.place.temp_dir_climbs = path.chroot.is_some();
        if !path.is_whole_root() {
            let dest = run.dest.as_deref().unwrap_or_default();
            sanitize_options(options, &path.dir, dest);
        }

        // A client can only lower what protects this machine.
        let connect = &mut options.connect;
        let own_rate = match u64::try_from(self.args.bwlimit) {
            Ok(kib @ 1..) => Some(kib * 1024),
            Ok(0) | Err(_) => None,
        };
        connect.bwlimit_bytes_per_sec = lower(connect.bwlimit_bytes_per_sec, own_rate);
        let own_max_alloc = cli::own_max_alloc_bytes(&|name| self.env.var(name));
        connect.max_alloc_bytes = lower(connect.max_alloc_bytes, own_max_alloc);
        let own_timeout_secs = timeout_secs(values);
        let is_longer = connect.timeout_secs == 0 || connect.timeout_secs > own_timeout_secs;
        if own_timeout_secs > 0 && is_longer {
            connect.timeout_secs = own_timeout_secs;
        }
    }

    /// Adds the changes of permissions that a module requires to those of the client.
    pub(super) fn change_modes(
        &self,
        run: &ModuleRun<'_>,
        preserve: &mut Preserve,
    ) -> Result<(), Error> {
        let param = if run.sends {
            Param::OutgoingChmod
        } else {
            Param::IncomingChmod
        };
        let Some(text) = self.text(run.values, param) else {
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
        if !run.sends && !preserve.perms {
            preserve.required_modes = required;
        }
        Ok(())
    }
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
    let dirs = [backup, place.temp_dir.as_mut(), place.partial_dir.as_mut()];
    for path in dirs.into_iter().flatten().chain(listed) {
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

/// Returns the option that requests this many levels of verbosity.
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

/// Returns the lower one of two limits, that of the client and that of this daemon; `None` is no limit.
fn lower(of_client: Option<u64>, own: Option<u64>) -> Option<u64> {
    of_client.into_iter().chain(own).min()
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
