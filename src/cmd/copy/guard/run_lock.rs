//! `--lock`: one run at a time for a destination.

use crate::cli::Copy;
use crate::digest;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::real_path::real_path;
use crate::fs::sys;
use crate::options::Lock;
use crate::trust::files;
use crate::trust::paths::Places;
use crate::walk::arg_path;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};

/// The exit code of a run whose destination is locked. No code of rsync: it is that of a temporary failure in sysexits.h.
const LOCKED: Exit = Exit::Other(75);
/// The directory of the locks, below the state directory.
const LOCKS_DIR: &str = "locks";
/// The maximum length of a lock file.
const HOLDER_MAX_BYTES: usize = 64;

/// A lock that this process holds. Its file stays: removing it would let a third run lock a file of the same name.
pub struct RunLock {
    _file: OwnedFd,
}

impl RunLock {
    /// Locks the destination of a run for the runs of this user on this machine.
    pub fn take(env: &mut Env, wanted: &Copy, lock: Lock) -> Result<RunLock> {
        let dest = dest(env, wanted);
        let dir = Places::from_env(env)?.state.join(LOCKS_DIR);
        let mut name = String::new();
        for byte in &digest::whole(&dest)[..16] {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        let path = dir.join(&name);
        let dir = files::private_dir(&dir)?;
        let file = sys::open_append_at(dir.as_fd(), name.as_bytes(), 0o600)
            .map_err(|error| files::failed("open", &path, &error))?;
        let is_free =
            sys::try_lock(file.as_fd()).map_err(|error| files::failed("lock", &path, &error))?;
        if !is_free {
            let holder = holder(&dir, &name);
            let shown = dest.escape_ascii();
            if lock == Lock::Refuse {
                let words =
                    format!("sparsync: {holder} copies to {shown}: nothing was changed (--lock)");
                return Err(
                    Error::new(LOCKED, words).with_hint("wait for it to end, or use --lock=wait")
                );
            }
            // A lost notice does not affect the run.
            let _ = writeln!(
                env.stderr,
                "sparsync: waiting for {holder}, which copies to {shown}"
            );
            let _ = env.stderr.flush();
            sys::lock(file.as_fd()).map_err(|error| files::failed("lock", &path, &error))?;
        }
        // Only for the message of another run.
        let _ = sys::truncate(file.as_fd(), 0)
            .and_then(|()| sys::write_all(file.as_fd(), std::process::id().to_string().as_bytes()));
        Ok(RunLock { _file: file })
    }
}

/// Returns what identifies the destination: its real path; or user, host and path of a destination at another machine,
/// of which this machine knows only the text.
fn dest(env: &Env, wanted: &Copy) -> Vec<u8> {
    let path = wanted.dest.as_deref().unwrap_or_default();
    match &wanted.far {
        Some(far) if !far.operand.server_sends && !far.is_child => {
            let operand = &far.operand;
            let mut dest = Vec::new();
            if let Some(user) = &operand.user {
                dest.extend_from_slice(user);
                dest.push(b'@');
            }
            dest.extend_from_slice(&operand.host);
            dest.extend_from_slice(if operand.daemon.is_some() {
                b"::"
            } else {
                b":"
            });
            dest.extend(tidied(path));
            dest
        }
        Some(_) | None => real_path(&arg_path::as_given(&env.cwd, path)),
    }
}

/// Returns a path without the parts that have no meaning on any machine: `.`, and slashes that are doubled or at the end.
fn tidied(path: &[u8]) -> Vec<u8> {
    let start: &[u8] = if path.starts_with(b"/") { b"/" } else { b"" };
    [start, &arg_path::clean_dots(path)].concat()
}

/// Describes the process that holds a lock.
fn holder(dir: &OwnedFd, name: &str) -> String {
    let text = sys::open_read(dir.as_fd(), name.as_bytes(), false, false)
        .and_then(|file| sys::read_to_end(file.as_fd(), HOLDER_MAX_BYTES))
        .unwrap_or_default();
    match String::from_utf8(text) {
        Ok(pid) if !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("process {pid}")
        }
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_that_mean_the_same_everywhere_are_one() {
        for (given, wanted) in [
            ("/a/b/", "/a/b"),
            ("//a/./b//.", "/a/b"),
            ("./a", "a"),
            ("mod/a/", "mod/a"),
            ("a/../b", "a/../b"),
            ("~/a/", "~/a"),
            (".", ""),
            ("/", "/"),
        ] {
            assert_eq!(tidied(given.as_bytes()), wanted.as_bytes(), "{given}");
        }
    }
}
