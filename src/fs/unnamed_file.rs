//! Files without a name: how they are created, and which errors show that there are none.

use super::leftover::remove_unseen;
use super::replace::with_temp_name;
use super::root::Dir;
use super::{errno, sys};
use rustix::fd::OwnedFd;
use std::io;

/// Creates a file that disappears with its descriptor, and returns whether it never had a name. Where it needs one, that
/// is a temp name of `name`.
pub fn create_unnamed(dir: &Dir, name: &[u8]) -> io::Result<(OwnedFd, bool)> {
    match sys::tmpfile(dir.fd(), 0o600) {
        Err(error) if lacks_tmpfile(&error) => Ok((create_and_unlink(dir, name)?, false)),
        created => Ok((created?, true)),
    }
}

/// Creates a file under a temp name of `name` that is removed at once. If the process is killed in between, the next call
/// removes it, and so does a copy into the directory.
fn create_and_unlink(dir: &Dir, name: &[u8]) -> io::Result<OwnedFd> {
    let mut created = Err(io::ErrorKind::NotFound.into());
    remove_unseen(dir, || {
        created = with_temp_name(dir, name, |temp| sys::create(dir.fd(), temp, 0o600)).and_then(
            |(file, temp)| {
                // Another process may have taken it for a leftover.
                errno::if_there(sys::unlink(dir.fd(), &temp))?;
                Ok(file)
            },
        );
    });
    created
}

/// Returns whether creating a file without a name failed because the file system cannot do that, or a security profile
/// refuses it.
pub(super) fn lacks_tmpfile(error: &io::Error) -> bool {
    errno::is_call_refused(error)
        || matches!(error.raw_os_error(), Some(libc::EISDIR | libc::ENOENT))
}

/// Returns whether a file without a name cannot get one here: links are refused, or there is no `/proc`, through which
/// older kernels make them. AppArmor refuses links with EACCES, Landlock with EXDEV.
pub(super) fn gets_no_name(error: &io::Error) -> bool {
    errno::is_call_refused(error)
        || matches!(
            error.raw_os_error(),
            Some(libc::EACCES | libc::EXDEV | libc::EMLINK | libc::ENOENT)
        )
}
