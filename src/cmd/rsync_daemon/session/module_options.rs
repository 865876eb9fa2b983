//! Applies the parameters of a module to the options of a client.

use super::DaemonConnection;
use crate::cli;
use crate::cmd::rsync_daemon::policy::module_path::{self, ModulePath};
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::error::Error;
use crate::options::{FilesFrom, LinkOwners, Options, PeerLinks, Preserve, StderrMode};

impl DaemonConnection<'_> {
    /// Applies the parameters of a module to the options of a client, except changes of permissions. Returns the timeout to announce.
    pub(super) fn apply(
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

    /// Adds the changes of permissions that a module requires to those of the client.
    pub(super) fn change_modes(
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
