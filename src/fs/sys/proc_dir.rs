//! Paths of open descriptors in `/proc`, also for a process that changes its root.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, Mode, OFlags};

/// Returns the path of a descriptor in /proc.
pub fn proc_fd(fd: BorrowedFd<'_>) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

/// `/proc`, kept open by a process that changes its root.
static KEPT_PROC: std::sync::OnceLock<OwnedFd> = std::sync::OnceLock::new();

/// Keeps `/proc` open. Call it before the root of this process changes: a `/proc` below the new root can be anything.
pub(super) fn keep_proc() {
    if KEPT_PROC.get().is_none()
        && let Ok(proc) = fs::open(
            c"/proc",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    {
        // Only one thread exists.
        let _ = KEPT_PROC.set(proc);
    }
}

/// Returns the path of a descriptor in /proc, and the directory that it is relative to.
pub fn in_proc(fd: BorrowedFd<'_>) -> (BorrowedFd<'static>, Vec<u8>) {
    match KEPT_PROC.get() {
        Some(proc) => (proc.as_fd(), proc_fd(fd)[b"/proc/".len()..].to_vec()),
        None => (fs::CWD, proc_fd(fd)),
    }
}

/// Returns whether [`proc_fd`] works. It does not in a chroot.
pub fn has_proc() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    KEPT_PROC.get().is_none()
        && *HAS.get_or_init(|| fs::access("/proc/self/fd", fs::Access::EXISTS).is_ok())
}
