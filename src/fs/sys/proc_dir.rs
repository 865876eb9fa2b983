//! Paths of open descriptors: in `/proc`, or without it in a process that has changed its root.

use rustix::fd::BorrowedFd;
use rustix::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the path of a descriptor in /proc.
pub fn proc_fd(fd: BorrowedFd<'_>) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

/// Whether this process has changed its root. A `/proc` below the new one can be anything, and a descriptor of the real
/// one would lead out of the new root.
static HAS_NEW_ROOT: AtomicBool = AtomicBool::new(false);

/// Gives up `/proc`, before the root of this process changes.
pub(super) fn leave_proc() {
    HAS_NEW_ROOT.store(true, Ordering::Relaxed);
}

/// Returns whether [`proc_fd`] works. It does not in a chroot.
pub fn has_proc() -> bool {
    static HAS_PROC: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    !HAS_NEW_ROOT.load(Ordering::Relaxed)
        && *HAS_PROC.get_or_init(|| fs::access("/proc/self/fd", fs::Access::EXISTS).is_ok())
}

/// Returns the path of an open directory below the root of this process, as the kernel knows it. Outside of a chroot, it
/// can also be a file.
pub(in crate::fs) fn kernel_path_of(dir: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    if !HAS_NEW_ROOT.load(Ordering::Relaxed) {
        return Ok(fs::readlinkat(fs::CWD, proc_fd(dir), Vec::new())?.into_bytes());
    }
    let path = within(
        dir,
        || Ok(rustix::process::getcwd(Vec::new())?.into_bytes()),
    )?;
    // The path of a directory that cannot be reached from the root begins with a remark.
    if path.starts_with(b"/") {
        Ok(path)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Makes a call in a thread with its own working directory, for calls that take only a path.
#[allow(unsafe_code)]
pub fn within<T: Send>(
    dir: BorrowedFd<'_>,
    call: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    let apart = || {
        // SAFETY: this unshares only the working directory, the root directory and the umask of the thread, no memory
        // or files.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        rustix::process::fchdir(dir)?;
        call()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, apart)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread crashed")))
    })
}
