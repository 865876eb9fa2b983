//! Hands a run over to the installed rsync, with the original arguments.

use super::{command_end, metrics_file};
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::transport::shell::{self, RunOptions};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Replaces this process with the installed rsync. Returns only on failure.
pub fn run(env: &mut Env) -> Result<(), Error> {
    if command_end::prints_json(env) {
        let message = "sparsync: cannot hand this run over to rsync: rsync has no --json";
        return Err(Error::new(Exit::Unsupported, message));
    }
    metrics_file::refuse_handover(env)?;
    let search = RsyncSearch::of(env);
    let Some(rsync) = search.find() else {
        let message = match search.named {
            Some(named) => {
                let start = b"sparsync: cannot run the rsync that SPARSYNC_RSYNC names: ".as_slice();
                [start, named.as_bytes(), b": not an executable file, or another sparsync"].concat()
            }
            None => b"sparsync: cannot hand this run over to rsync: no rsync in PATH".to_vec(),
        };
        let hint = "install the package rsync, or set SPARSYNC_RSYNC to the path of the program";
        return Err(Error::new(Exit::Ipc, message).with_hint(hint));
    };
    let error = env.become_program(rsync.as_os_str(), &rsyncs_own(&env.args), (HANDED_OVER, "1"));
    Err(Error::new(Exit::Ipc, format!("sparsync: cannot start {}: {error}", rsync.display())))
}

/// Removes `--transport` and `--ui`, which rsync does not know. rsync reaches the peer in its own way.
fn rsyncs_own(args: &[OsString]) -> Vec<OsString> {
    let mut own = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_encoded_bytes() {
            b"--" => {
                own.push(word.clone());
                own.extend(words.cloned());
                break;
            }
            b"--transport" => drop(words.next()),
            b"--ui" => {}
            bytes if bytes.starts_with(b"--transport=") => {}
            _ => own.push(word.clone()),
        }
    }
    own
}

/// Set for the rsync that takes a run over. A sparsync that finds it was started, directly or not, by another sparsync.
const HANDED_OVER: &str = "SPARSYNC_HANDED_OVER";

/// Where to look for an installed rsync.
pub struct RsyncSearch {
    named: Option<OsString>,
    path: OsString,
    own_path: Option<PathBuf>,
    may_lead_back: bool,
    umask: u32,
}

impl RsyncSearch {
    /// Notes where to look. Nothing is looked at yet.
    pub fn of(env: &Env) -> RsyncSearch {
        RsyncSearch {
            named: env.var("SPARSYNC_RSYNC").filter(|named| !named.is_empty()),
            path: env.var("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin")),
            own_path: env.own_path(),
            // Another copy of this program, or a script that calls it, would hand the run over again, endlessly.
            may_lead_back: env.var(HANDED_OVER).is_some(),
            umask: env.umask,
        }
    }

    /// Returns whether no rsync is installed. If `SPARSYNC_RSYNC` names one, it must be there: otherwise a run that needs
    /// it fails.
    pub fn finds_none(&self) -> bool {
        self.named.is_none() && self.find().is_none()
    }

    /// Returns the rsync that `SPARSYNC_RSYNC` names, or the first one in `PATH` that is not this program under another
    /// name.
    pub fn find(&self) -> Option<PathBuf> {
        let itself = self.own_path.as_ref().and_then(|path| crate::fs::sys::identity(path.as_os_str()));
        let other = |path: &Path| {
            let identity = crate::fs::sys::identity(path.as_os_str())?;
            let is_other = Some(identity) != itself && crate::fs::sys::is_executable(path.as_os_str());
            (is_other && !(self.may_lead_back && leads_back(path, self.umask))).then(|| path.to_path_buf())
        };
        if let Some(named) = &self.named {
            return other(Path::new(named));
        }
        std::env::split_paths(&self.path)
            .filter(|dir| !dir.as_os_str().is_empty())
            .find_map(|dir| other(&dir.join(OsStr::new("rsync"))))
    }
}

/// Appears in the output of `--version` of sparsync, and of no rsync.
const OWN_NAME: &[u8] = b"sparsync";
/// The most output of `--version` that is read.
const VERSION_MAX_BYTES: usize = 64 << 10;

/// Returns whether a program is a sparsync, or a script that calls one.
fn leads_back(path: &Path, umask: u32) -> bool {
    let options = RunOptions { umask, input: None, is_quiet: true, most_bytes: VERSION_MAX_BYTES };
    let version = shell::run_to_end(&[path.as_os_str().as_bytes().to_vec(), b"--version".to_vec()], options);
    version.is_ok_and(|(_, version)| version.windows(OWN_NAME.len()).any(|word| word == OWN_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_option_is_removed_for_rsync() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, left) in [
            ("-a --transport=quic src host:dst", "-a src host:dst"),
            ("-a --transport tls src host:dst", "-a src host:dst"),
            ("-a --transport=ssh -- --transport=x host:dst", "-a -- --transport=x host:dst"),
            ("-av src host::dst", "-av src host::dst"),
        ] {
            assert_eq!(rsyncs_own(&words(given)), words(left), "{given}");
        }
    }
}
