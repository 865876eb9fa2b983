//! Opens files and directories.

use super::{Call, attempt, has_proc, may_write, open_through, proc_fd, spot};
use crate::fs::{errno, sandbox};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;

/// Which symlinks in the path of a directory may be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// None; a symlink is an error.
    Never,
    /// Those that stay below the directory where the walk starts.
    Inside,
    /// Those that lead down from the directory that they are in: their targets are relative and have no `..`.
    Downwards,
    /// Those of root and of this user, wherever they lead. [`Root`](crate::fs::root::Root) resolves them; to the functions
    /// here, each symlink is an error.
    Trusted,
    /// All.
    Anywhere,
}

/// The maximum length of a path for one call, including its NUL.
pub const PATH_MAX: usize = 4096;

pub(in crate::fs) const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

const SEARCH_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a directory below `at`, in one call if the kernel can confine the walk. `path` is relative and shorter than
/// [`PATH_MAX`]; an empty one reopens `at`.
pub fn open_dir(at: BorrowedFd<'_>, path: &[u8], follow: Follow) -> io::Result<OwnedFd> {
    open_dir_with(at, path, follow, DIR_FLAGS)
}

/// Like [`open_dir`], for a directory that may not be listed. The descriptor only gives access to names in it.
pub fn open_dir_to_search(at: BorrowedFd<'_>, path: &[u8], follow: Follow) -> io::Result<OwnedFd> {
    open_dir_with(at, path, follow, SEARCH_FLAGS)
}

fn open_dir_with(
    at: BorrowedFd<'_>,
    path: &[u8],
    follow: Follow,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    attempt(Call::OpenDir, || {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        let resolve = match follow {
            Follow::Never | Follow::Trusted => {
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
            }
            Follow::Inside => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            // The kernel has no such walk.
            Follow::Downwards => {
                let fd = stepwise(at, path, flags, follow)?;
                sandbox::check_reached(fd.as_fd(), b".")?;
                return Ok(fd);
            }
            Follow::Anywhere => return open_through(at, path, flags, Mode::empty()),
        };
        loop {
            match fs::openat2(at, path, flags, Mode::empty(), resolve) {
                Ok(fd) => {
                    if matches!(follow, Follow::Inside) {
                        sandbox::check_reached(fd.as_fd(), b".")?;
                    }
                    return Ok(fd);
                }
                // The kernel requests a retry if a rename happened during the walk.
                Err(Errno::AGAIN | Errno::INTR) => continue,
                // rsync reports a link that leads outside as too many levels of symbolic links.
                Err(Errno::XDEV) => return Err(Errno::LOOP.into()),
                Err(error) if errno::is_call_refused(&error.into()) => {
                    return stepwise(at, path, flags, follow);
                }
                Err(error) => return Err(error.into()),
            }
        }
    })
}

/// Does the same one element at a time, for kernels and sandboxes without `openat2`. Symlinks are followed only below `at`,
/// with `Follow::Inside` and `Follow::Downwards`.
pub(in crate::fs) fn stepwise(
    at: BorrowedFd<'_>,
    path: &[u8],
    last: OFlags,
    follow: Follow,
) -> io::Result<OwnedFd> {
    let elements = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|&b| b == b'/')
            .filter(|element| !element.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    // What is ahead is a stack: the next element is the last one.
    let mut ahead: Vec<Vec<u8>> = elements(path).into_iter().rev().collect();
    // The directories on the way, so that `..` leads back to the one that was entered and never above `at`.
    let mut entered: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(element) = ahead.pop() {
        let is_last = ahead.is_empty();
        if element == b".." {
            if follow != Follow::Inside || entered.pop().is_none() {
                return Err(Errno::LOOP.into());
            }
            if is_last {
                ahead.push(b".".to_vec());
            }
            continue;
        }
        let from = entered.last().map_or(at, |fd| fd.as_fd());
        // Directories on the way need only be searchable, not readable.
        let flags = if is_last { last } else { SEARCH_FLAGS } | OFlags::NOFOLLOW;
        match fs::openat(from, element.as_slice(), flags, Mode::empty()) {
            Ok(dir) => entered.push(dir),
            // It may be a symlink.
            Err(error @ (Errno::NOTDIR | Errno::LOOP))
                if matches!(follow, Follow::Inside | Follow::Downwards) =>
            {
                let Ok(target) = fs::readlinkat(from, element.as_slice(), Vec::new()) else {
                    return Err(error.into());
                };
                links += 1;
                if target.as_bytes().starts_with(b"/") || links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                ahead.extend(elements(target.as_bytes()).into_iter().rev());
            }
            Err(error) => return Err(error.into()),
        }
    }
    entered.pop().ok_or_else(|| Errno::NOENT.into())
}

/// How many symlinks the kernel follows in one path.
const LINKS_MAX: usize = 40;

/// Opens any path as a directory, following symlinks: a source operand, or a directory of the kernel. Other paths that a
/// user or an operator names are opened by [`crate::fs::trusted_path`].
pub fn open_dir_path(path: &[u8]) -> io::Result<OwnedFd> {
    attempt(Call::OpenDir, || {
        open_through(fs::CWD, path, DIR_FLAGS, Mode::empty())
    })
}

/// Like [`open_dir_path`]. Listing the directory leaves its access time, if this process may do that.
pub fn open_dir_path_quietly(path: &[u8]) -> io::Result<OwnedFd> {
    attempt(Call::OpenDir, || {
        match open_through(fs::CWD, path, DIR_FLAGS | OFlags::NOATIME, Mode::empty()) {
            // Only the owner may use O_NOATIME.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                open_through(fs::CWD, path, DIR_FLAGS, Mode::empty())
            }
            opened => opened,
        }
    })
}

/// Like [`open_dir_path`], for a directory that may not be listed.
pub fn open_dir_path_to_search(path: &[u8]) -> io::Result<OwnedFd> {
    attempt(Call::OpenDir, || {
        open_through(fs::CWD, path, SEARCH_FLAGS, Mode::empty())
    })
}

/// Opens a file for reading. Never waits on a fifo that replaced it.
pub fn open_read(
    dir: BorrowedFd<'_>,
    name: &[u8],
    follow: bool,
    noatime: bool,
) -> io::Result<OwnedFd> {
    attempt(Call::Open, || {
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        if !follow {
            flags |= OFlags::NOFOLLOW;
        }
        if noatime {
            flags |= OFlags::NOATIME;
        }
        let open = |flags: OFlags| {
            if follow {
                open_through(dir, name, flags, Mode::empty())
            } else {
                spot(dir, name)
                    .and_then(|at| Ok(fs::openat(at.dir(), &*at.name, flags, Mode::empty())?))
            }
        };
        match open(flags) {
            // Only the owner may use O_NOATIME.
            Err(error) if noatime && error.raw_os_error() == Some(libc::EPERM) => {
                open(flags.difference(OFlags::NOATIME))
            }
            other => other,
        }
    })
}

/// Opens an existing file for reading and writing in place.
pub fn open_write(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    attempt(Call::Open, || {
        may_write()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let at = spot(dir, name)?;
        Ok(fs::openat(at.dir(), &*at.name, flags, Mode::empty())?)
    })
}

/// Creates a file that must not exist.
pub fn create(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    attempt(Call::Create, || {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        may_write()?;
        let at = spot(dir, name)?;
        Ok(fs::openat(
            at.dir(),
            &*at.name,
            flags,
            Mode::from_raw_mode(mode),
        )?)
    })
}

/// Returns whether [`link_tmpfile`] can succeed in a chroot, where it has no /proc: the kernel is Linux 6.10 or later, or
/// this process has the capability. Only then, the kernel looks whether the new name is free.
fn can_link_in_chroot() -> bool {
    static CAN_LINK_IN_CHROOT: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CAN_LINK_IN_CHROOT.get_or_init(|| {
        let own = fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        own.is_ok_and(|own| {
            let linked = fs::linkat(&own, c"", &own, c".", AtFlags::EMPTY_PATH);
            !matches!(linked, Err(Errno::NOENT | Errno::PERM))
        })
    })
}

/// Creates a file without a name. The kernel removes it unless it is linked.
pub fn tmpfile(dir: BorrowedFd<'_>, mode: u32) -> io::Result<OwnedFd> {
    attempt(Call::TmpFile, || {
        may_write()?;
        if !has_proc() && !can_link_in_chroot() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(fs::openat(
            dir,
            c".",
            OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC,
            Mode::from_raw_mode(mode),
        )?)
    })
}

/// Gives a file from [`tmpfile`] its name, which must be free.
pub fn link_tmpfile(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    super::note_names([(dir, name)]);
    attempt(Call::Link, || {
        may_write()?;
        let at = spot(dir, name)?;
        match fs::linkat(fd, c"", at.dir(), &*at.name, AtFlags::EMPTY_PATH) {
            // Kernels before 6.10 require a capability for that, but allow the detour through /proc.
            Err(Errno::NOENT | Errno::PERM) if has_proc() => Ok(fs::linkat(
                fs::CWD,
                proc_fd(fd),
                at.dir(),
                &*at.name,
                AtFlags::SYMLINK_FOLLOW,
            )?),
            other => Ok(other?),
        }
    })
}

/// Creates an unnamed file in memory. Child processes inherit it under the same descriptor number.
pub fn shared_file(called: &std::ffi::CStr) -> io::Result<OwnedFd> {
    attempt(Call::Open, || {
        Ok(rustix::fs::memfd_create(
            called,
            rustix::fs::MemfdFlags::empty(),
        )?)
    })
}

/// Opens a file in a directory of ours for appending, and creates it if it does not exist. A symlink is an error.
pub fn open_append_at(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    attempt(Call::Open, || {
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::CLOEXEC
            | OFlags::NOCTTY
            | OFlags::NOFOLLOW;
        may_write()?;
        open_through(dir, name, flags, Mode::from_raw_mode(mode))
    })
}
