//! Sets attributes of files, and reads and sets extended ones.

use super::{Call, attempt, enter, has_proc, may_write, proc_fd, spot};
use crate::flist::Time;
use crate::fs::sandbox::PermittedName;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps reads from changing the access time. Only the owner may set this.
pub fn spare_atime(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fs::fcntl_setfl(fd, fs::fcntl_getfl(fd)? | OFlags::NOATIME)?)
}

/// Sets the permission bits of an open file.
pub fn fchmod(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    attempt(Call::Chmod, || {
        may_write()?;
        Ok(fs::fchmod(fd, Mode::from_raw_mode(mode & 0o7777))?)
    })
}

/// Sets the permission bits of an entry that is not a symlink. Not all kernels can do that without following one, so
/// this opens the entry with `O_PATH` and changes it through /proc. An empty name stands for `dir` itself.
pub fn chmod(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<()> {
    if name.is_empty() {
        return fchmod(dir, mode);
    }
    attempt(Call::Chmod, || {
        may_write()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = spot(dir, name)?;
        let fd = fs::openat(at.dir(), &*at.name, flags, Mode::empty())?;
        let kind = fs::FileType::from_raw_mode(fs::fstat(&fd)?.st_mode);
        if kind == fs::FileType::Symlink {
            return Err(Errno::LOOP.into());
        }
        if !has_proc() {
            return chmod_without_proc(&at, kind, mode & 0o7777);
        }
        let path = proc_fd(fd.as_fd());
        Ok(fs::chmodat(
            fs::CWD,
            path.as_slice(),
            Mode::from_raw_mode(mode & 0o7777),
            AtFlags::empty(),
        )?)
    })
}

/// Does the same with the call that Linux 6.6 and later have for it. On older kernels, opens files and directories,
/// which has no side effects.
#[allow(unsafe_code)]
fn chmod_without_proc(at: &PermittedName<'_>, kind: fs::FileType, mode: u32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // The number is the same on every architecture.
    const FCHMODAT2: libc::c_long = 452;
    let name = std::ffi::CString::new(&*at.name)?;
    let dir = at.dir().as_raw_fd();
    // SAFETY: the directory is open and the name ends in NUL. Both outlive the call, which does not write to our
    // memory.
    let done = unsafe {
        libc::syscall(
            FCHMODAT2,
            dir,
            name.as_ptr(),
            mode,
            libc::AT_SYMLINK_NOFOLLOW,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let can_open = matches!(kind, fs::FileType::RegularFile | fs::FileType::Directory);
    if error.raw_os_error() != Some(libc::ENOSYS) || !can_open {
        return Err(error);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(at.dir(), name.as_c_str(), flags, Mode::empty())?;
    Ok(fs::fchmod(&file, Mode::from_raw_mode(mode))?)
}

/// Sets owner and group of an entry without following a symlink; `None` keeps the current one. An empty name means
/// `dir` itself, which may be an open file.
pub fn chown(
    dir: BorrowedFd<'_>,
    name: &[u8],
    uid: Option<u32>,
    gid: Option<u32>,
) -> io::Result<()> {
    attempt(Call::Chown, || {
        may_write()?;
        let uid = uid.map(rustix::process::Uid::from_raw);
        let gid = gid.map(rustix::process::Gid::from_raw);
        if name.is_empty() {
            return Ok(fs::fchown(dir, uid, gid)?);
        }
        let at = spot(dir, name)?;
        Ok(fs::chownat(
            at.dir(),
            &*at.name,
            uid,
            gid,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    })
}

/// Set if the destination is on a file system of FUSE. Some of these ignore a call that sets only one of the two times, and
/// report success, because `libfuse` 2 has no way to leave one out.
static SETS_BOTH_TIMES: AtomicBool = AtomicBool::new(false);

/// Finds out whether both times of an entry must be set together at this destination. Call it before there are threads that
/// set times.
pub fn examine_times(root: BorrowedFd<'_>) {
    const FUSE_SUPER_MAGIC: u32 = 0x6573_5546;
    if fs::fstatfs(root).is_ok_and(|found| found.f_type as u32 == FUSE_SUPER_MAGIC) {
        SETS_BOTH_TIMES.store(true, Ordering::Relaxed);
    }
}

/// Replaces a time that is to be kept by the current one, if that must be set as well.
fn with_both_times(
    dir: BorrowedFd<'_>,
    name: &[u8],
    (atime, mtime): (Option<Time>, Option<Time>),
) -> io::Result<(Option<Time>, Option<Time>)> {
    let is_complete = atime.is_some() && mtime.is_some();
    if is_complete || !SETS_BOTH_TIMES.load(Ordering::Relaxed) {
        return Ok((atime, mtime));
    }
    let now = if name.is_empty() {
        super::fstat(dir)?
    } else {
        super::stat(dir, name, false)?
    };
    Ok((atime.or(Some(now.atime)), mtime.or(Some(now.mtime))))
}

/// Sets access and modification time without following a symlink; `None` keeps the current one. An empty name means
/// `dir` itself, which may be an open file.
pub fn utimes(
    dir: BorrowedFd<'_>,
    name: &[u8],
    atime: Option<Time>,
    mtime: Option<Time>,
) -> io::Result<()> {
    let (atime, mtime) = with_both_times(dir, name, (atime, mtime))?;
    attempt(Call::Utimes, || {
        may_write()?;
        let spec = |time: Option<Time>| match time {
            Some(time) => fs::Timespec {
                tv_sec: time.secs,
                tv_nsec: i64::from(time.nanos) as _,
            },
            None => fs::Timespec {
                tv_sec: 0,
                tv_nsec: fs::UTIME_OMIT,
            },
        };
        let times = fs::Timestamps {
            last_access: spec(atime),
            last_modification: spec(mtime),
        };
        if name.is_empty() {
            return match fs::futimens(dir, &times) {
                // A directory that was opened only for search.
                Err(Errno::BADF) => Ok(fs::utimensat(dir, c".", &times, AtFlags::empty())?),
                set => Ok(set?),
            };
        }
        let at = spot(dir, name)?;
        Ok(fs::utimensat(
            at.dir(),
            &*at.name,
            &times,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    })
}

/// Returns the value of an open file's attribute; `None` if it does not or cannot exist.
pub fn fgetxattr(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    grown(|buffer| {
        enter(Call::XattrGet)?;
        fs::fgetxattr(fd, name, buffer)
    })
}

/// Returns the value of a path's attribute, without following a symlink at its end.
pub fn lgetxattr(path: &[u8], name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    grown(|buffer| {
        enter(Call::XattrGet)?;
        fs::lgetxattr(path, name, buffer)
    })
}

/// Returns the names of all attributes of a path, each terminated by NUL; `None` if attributes are not supported.
pub fn llistxattr(path: &[u8]) -> io::Result<Option<Vec<u8>>> {
    grown(|buffer| {
        enter(Call::XattrGet)?;
        fs::llistxattr(path, buffer)
    })
}

/// Returns the names of all attributes of an open file, in the same form.
pub fn flistxattr(fd: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    grown(|buffer| {
        enter(Call::XattrGet)?;
        fs::flistxattr(fd, buffer)
    })
}

/// Sets an attribute of an open file.
pub fn fsetxattr(fd: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> io::Result<()> {
    attempt(Call::XattrSet, || {
        may_write()?;
        Ok(fs::fsetxattr(fd, name, value, fs::XattrFlags::empty())?)
    })
}

/// Sets an attribute of a path, without following a symlink at its end.
pub fn lsetxattr(path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()> {
    attempt(Call::XattrSet, || {
        may_write()?;
        Ok(fs::lsetxattr(path, name, value, fs::XattrFlags::empty())?)
    })
}

/// Removes an attribute of an open file.
pub fn fremovexattr(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    attempt(Call::XattrSet, || {
        may_write()?;
        Ok(fs::fremovexattr(fd, name)?)
    })
}

/// Removes an attribute of a path, without following a symlink at its end.
pub fn lremovexattr(path: &[u8], name: &[u8]) -> io::Result<()> {
    attempt(Call::XattrSet, || {
        may_write()?;
        Ok(fs::lremovexattr(path, name)?)
    })
}

/// The kernel's maximum length of an attribute's value and of the list of names.
const XATTR_MAX: usize = 64 * 1024;

/// Makes a call with a small buffer and, if that is too small, with the largest possible one.
fn grown(
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Option<Vec<u8>>> {
    let mut call = |buffer: &mut [u8]| loop {
        match call(&mut *buffer) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    };
    let mut small = [0u8; 512];
    match call(&mut small) {
        Ok(len) => return Ok(Some(small[..len].to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT) => return Ok(None),
        Err(Errno::RANGE) => {}
        Err(error) => return Err(error.into()),
    }
    let mut large = vec![0u8; XATTR_MAX];
    match call(&mut large) {
        Ok(len) => {
            large.truncate(len);
            Ok(Some(large))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
