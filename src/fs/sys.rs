//! System calls on files, one function each, in one place that can count them and make them fail.
//!
//! Debug builds count the calls and let tests fail them (`hooks.rs`); release builds contain none of that. Names are
//! bytes. A name of one element never leaves its directory, because symlinks are not followed unless a function says
//! so.

#[cfg(debug_assertions)]
use super::hooks;
use super::sandbox::{self, PermittedName};
use crate::exit::Exit;
use crate::flist::entry::Stat;
use crate::flist::{Kind, Time};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::Duration;

/// The calls that are counted, under their kernel names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Call {
    Open,
    OpenDir,
    Create,
    TmpFile,
    Stat,
    FStat,
    GetDents,
    ReadLink,
    Read,
    Write,
    CopyRange,
    Clone,
    Seek,
    Truncate,
    Allocate,
    FSync,
    Link,
    Rename,
    Unlink,
    RmDir,
    MkDir,
    Symlink,
    MkNod,
    Chmod,
    Chown,
    Utimes,
    Lock,
    Close,
    XattrGet,
    XattrSet,
}

/// Returns how often each call was made so far; empty in release builds.
pub fn counts() -> Vec<(String, u64)> {
    #[cfg(debug_assertions)]
    return hooks::counts();
    #[cfg(not(debug_assertions))]
    Vec::new()
}

/// Counts a call. Fails if a test requests it.
#[inline(always)]
pub(super) fn enter(call: Call) -> rustix::io::Result<()> {
    #[cfg(debug_assertions)]
    return hooks::enter(call);
    #[cfg(not(debug_assertions))]
    {
        // Only hooks of debug builds read it.
        let _ = call;
        Ok(())
    }
}

/// Counts a use of a pipe to the peer. Fails if a test requests it.
#[inline(always)]
fn enter_link() -> rustix::io::Result<()> {
    #[cfg(debug_assertions)]
    return hooks::enter_link();
    #[cfg(not(debug_assertions))]
    Ok(())
}

/// Returns how many of `len_bytes` the current call may read or write: all, unless a test requests fewer.
#[inline(always)]
fn granted(len_bytes: usize) -> usize {
    #[cfg(debug_assertions)]
    return hooks::granted(len_bytes);
    #[cfg(not(debug_assertions))]
    len_bytes
}

/// A consumer of [`has_worked`].
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub enum WorkObserver {
    /// The writer, which sends the peer a keepalive after work.
    Writer = 1,
    /// The reader, which does not time out after work.
    Reader = 2,
}

/// One bit for each observer. Any work sets all of them.
static WORKED: AtomicU8 = AtomicU8::new(0);

/// Records that this process is working and not only waiting for its peer.
#[inline]
pub fn note_work() {
    const ALL: u8 = WorkObserver::Writer as u8 | WorkObserver::Reader as u8;
    // Read first: a cache line that all threads write to slows each of them down.
    if WORKED.load(Relaxed) != ALL {
        WORKED.store(ALL, Relaxed);
    }
}

/// Returns whether this process has worked since the observer's last call.
pub fn has_worked(observer: WorkObserver) -> bool {
    WORKED.fetch_and(!(observer as u8), Relaxed) & observer as u8 != 0
}

/// Makes a call, and repeats it if a signal interrupts it. If no file descriptor is free, waits for other threads to
/// close some: the limit on open files is no property of a file.
#[inline]
fn attempt<T>(call: Call, mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    note_work();
    let mut waited = Duration::ZERO;
    loop {
        match enter(call).map_err(io::Error::from).and_then(|()| make()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if lacks_descriptors(&error) && wait_for_descriptor(&mut waited) => {}
            other => {
                if !waited.is_zero() && other.is_ok() {
                    WAITS_IN_VAIN.store(false, Relaxed);
                }
                return other;
            }
        }
    }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Waits a moment for a free file descriptor. Returns `false` once that took [`DESCRIPTOR_WAIT_MAX`] in vain: then all
/// threads probably wait for each other, and no call waits any more until one that waited has succeeded.
#[cold]
fn wait_for_descriptor(waited: &mut Duration) -> bool {
    if *waited >= DESCRIPTOR_WAIT_MAX {
        WAITS_IN_VAIN.store(true, Relaxed);
    }
    if WAITS_IN_VAIN.load(Relaxed) {
        return false;
    }
    std::thread::sleep(DESCRIPTOR_WAIT);
    *waited += DESCRIPTOR_WAIT;
    true
}

/// The pause between two attempts to get a file descriptor.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(1);
/// How long a call waits for a file descriptor.
const DESCRIPTOR_WAIT_MAX: Duration = Duration::from_secs(3);
static WAITS_IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Returns whether listings must omit types, as on some file systems. Only for tests in debug builds.
#[inline(always)]
fn hides_types() -> bool {
    #[cfg(debug_assertions)]
    return hooks::hides_types();
    #[cfg(not(debug_assertions))]
    false
}

/// Resolves a name in `dir`. If this process is confined, checks names that could lead further; see [`sandbox`].
fn spot<'a>(dir: BorrowedFd<'a>, name: &'a [u8]) -> io::Result<PermittedName<'a>> {
    match sandbox::of_process() {
        Some(reach) => reach.spot(dir, name),
        None => Ok(PermittedName::plain(dir, name)),
    }
}

/// Opens a name. Follows symlinks as far as this process has access.
pub(super) fn open_through(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    match sandbox::of_process() {
        Some(reach) => reach.open(dir, name, flags, mode),
        None => Ok(fs::openat(dir, name, flags, mode)?),
    }
}

/// Fails if this process must not change anything.
pub(super) fn may_write() -> io::Result<()> {
    sandbox::of_process().map_or(Ok(()), sandbox::Sandbox::may_write)
}

/// Which symlinks in the path of a directory may be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// None; a symlink is an error.
    Never,
    /// Those that stay below the directory where the walk starts.
    Inside,
    /// All.
    Anywhere,
}

/// The maximum length of a path for one call, including its NUL.
pub const PATH_MAX: usize = 4096;

pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
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

fn open_dir_with(at: BorrowedFd<'_>, path: &[u8], follow: Follow, flags: OFlags) -> io::Result<OwnedFd> {
    attempt(Call::OpenDir, || {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        let resolve = match follow {
            Follow::Never => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
            Follow::Inside => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            Follow::Anywhere => return open_through(at, path, flags, Mode::empty()),
        };
        loop {
            match fs::openat2(at, path, flags, Mode::empty(), resolve) {
                Ok(fd) => return Ok(fd),
                // The kernel requests a retry if a rename happened during the walk.
                Err(Errno::AGAIN | Errno::INTR) => continue,
                // rsync reports a link that leads outside as too many levels of symbolic links.
                Err(Errno::XDEV) => return Err(Errno::LOOP.into()),
                Err(Errno::NOSYS | Errno::PERM) => return stepwise(at, path, flags),
                Err(error) => return Err(error.into()),
            }
        }
    })
}

/// Does the same for kernels and sandboxes without `openat2`: one element at a time, without following symlinks.
pub(super) fn stepwise(at: BorrowedFd<'_>, path: &[u8], last: OFlags) -> io::Result<OwnedFd> {
    let mut current: Option<OwnedFd> = None;
    let mut parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty()).peekable();
    while let Some(part) = parts.next() {
        if part == b".." {
            return Err(Errno::LOOP.into());
        }
        let from = current.as_ref().map_or(at, |fd| fd.as_fd());
        // Directories on the way need only be searchable, not readable.
        let flags = if parts.peek().is_some() { SEARCH_FLAGS } else { last };
        current = Some(fs::openat(from, part, flags | OFlags::NOFOLLOW, Mode::empty())?);
    }
    current.ok_or_else(|| Errno::NOENT.into())
}

/// Opens any path as a directory, following symlinks. Paths from the command line are opened by [`super::trusted_path`].
pub fn open_dir_path(path: &[u8]) -> io::Result<OwnedFd> {
    attempt(Call::OpenDir, || open_through(fs::CWD, path, DIR_FLAGS, Mode::empty()))
}

/// Like [`open_dir_path`], for a directory that may not be listed.
pub fn open_dir_path_to_search(path: &[u8]) -> io::Result<OwnedFd> {
    attempt(Call::OpenDir, || open_through(fs::CWD, path, SEARCH_FLAGS, Mode::empty()))
}

/// Opens a file for reading. Never waits on a fifo that replaced it.
pub fn open_read(dir: BorrowedFd<'_>, name: &[u8], follow: bool, noatime: bool) -> io::Result<OwnedFd> {
    attempt(Call::Open, || {
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        if !follow {
            flags |= OFlags::NOFOLLOW;
        }
        if noatime {
            flags |= OFlags::NOATIME;
        }
        let open = |flags: OFlags| match follow {
            true => open_through(dir, name, flags, Mode::empty()),
            false => spot(dir, name).and_then(|at| Ok(fs::openat(at.dir(), &*at.name, flags, Mode::empty())?)),
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
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        may_write()?;
        let at = spot(dir, name)?;
        Ok(fs::openat(at.dir(), &*at.name, flags, Mode::from_raw_mode(mode))?)
    })
}

/// Creates a file without a name. The kernel removes it unless it is linked.
pub fn tmpfile(dir: BorrowedFd<'_>, mode: u32) -> io::Result<OwnedFd> {
    attempt(Call::TmpFile, || {
        may_write()?;
        Ok(fs::openat(dir, c".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, Mode::from_raw_mode(mode))?)
    })
}

/// Gives a file from [`tmpfile`] its name, which must be free.
pub fn link_tmpfile(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    attempt(Call::Link, || {
        may_write()?;
        let at = spot(dir, name)?;
        match fs::linkat(fd, c"", at.dir(), &*at.name, AtFlags::EMPTY_PATH) {
            // Kernels before 6.10 require a capability for that, but allow the detour through /proc.
            Err(Errno::NOENT | Errno::PERM) => {
                let path = proc_fd(fd);
                Ok(fs::linkat(fs::CWD, path.as_slice(), at.dir(), &*at.name, AtFlags::SYMLINK_FOLLOW)?)
            }
            other => Ok(other?),
        }
    })
}

/// Returns the path of a descriptor in /proc.
pub fn proc_fd(fd: BorrowedFd<'_>) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

/// Returns the statx fields to request.
fn wanted(links: bool) -> StatxFlags {
    let all = StatxFlags::TYPE
        | StatxFlags::MODE
        | StatxFlags::UID
        | StatxFlags::GID
        | StatxFlags::SIZE
        | StatxFlags::MTIME
        | StatxFlags::ATIME
        | StatxFlags::INO;
    if links { all | StatxFlags::NLINK } else { all }
}

/// Returns the attributes of a name in a directory.
pub fn stat(dir: BorrowedFd<'_>, name: &[u8], follow: bool) -> io::Result<Stat> {
    attempt(Call::Stat, || {
        // With a trailing slash, the kernel follows the link, too.
        let follows = follow || name.ends_with(b"/");
        if follows && sandbox::of_process().is_some_and(|reach| !reach.is_everything()) {
            return stat_in_reach(dir, name);
        }
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let at = spot(dir, name)?;
        let (dir, name) = (at.dir(), &*at.name);
        match fs::statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, wanted(true)) {
            Ok(found) => Ok(from_statx(&found)),
            Err(Errno::NOSYS) => Ok(from_stat(&fs::statat(dir, name, flags)?)),
            Err(error) => Err(error.into()),
        }
    })
}

/// Does the work of [`stat`] in a confined process, where a symlink may lead out.
fn stat_in_reach(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Stat> {
    if !name.ends_with(b"/") {
        let itself = stat(dir, name, false)?;
        if itself.mode & 0o170000 != 0o120000 {
            return Ok(itself);
        }
    }
    fstat(open_through(dir, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.as_fd())
}

/// Returns the current path of an open directory, as far as the system knows it.
pub fn path_of(dir: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    attempt(Call::ReadLink, || Ok(fs::readlinkat(fs::CWD, proc_fd(dir).as_slice(), Vec::new())?.into_bytes()))
}

/// Returns the attributes of any path, for operands.
pub fn stat_path(path: &[u8], follow: bool) -> io::Result<Stat> {
    stat(fs::CWD, path, follow)
}

/// Returns the attributes of an open file.
pub fn fstat(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    attempt(Call::FStat, || Ok(from_stat(&fs::fstat(fd)?)))
}

fn from_statx(s: &fs::Statx) -> Stat {
    let time = |t: &fs::StatxTimestamp| Time { secs: t.tv_sec, nanos: t.tv_nsec };
    Stat {
        mode: u32::from(s.stx_mode),
        uid: s.stx_uid,
        gid: s.stx_gid,
        mtime: time(&s.stx_mtime),
        atime: time(&s.stx_atime),
        len_bytes: s.stx_size,
        dev: fs::makedev(s.stx_dev_major, s.stx_dev_minor),
        ino: s.stx_ino,
        nlink: s.stx_nlink,
        rdev: fs::makedev(s.stx_rdev_major, s.stx_rdev_minor),
    }
}

#[allow(clippy::unnecessary_cast, reason = "the widths differ between architectures")]
fn from_stat(s: &fs::Stat) -> Stat {
    Stat {
        mode: s.st_mode as u32,
        uid: s.st_uid,
        gid: s.st_gid,
        mtime: Time { secs: s.st_mtime as i64, nanos: s.st_mtime_nsec as u32 },
        atime: Time { secs: s.st_atime as i64, nanos: s.st_atime_nsec as u32 },
        len_bytes: s.st_size as u64,
        dev: s.st_dev as u64,
        ino: s.st_ino as u64,
        nlink: s.st_nlink as u32,
        rdev: s.st_rdev as u64,
    }
}

/// A name in a directory, and its type if the file system reports it.
pub struct Dirent<'a> {
    /// The name; never `.` or `..`.
    pub name: &'a [u8],
    /// Whether it is a directory; `None` if the file system does not report that.
    pub is_dir: Option<bool>,
}

/// Calls `visit` for every name in an open directory.
pub fn list(dir: BorrowedFd<'_>, visit: impl FnMut(Dirent<'_>)) -> io::Result<()> {
    list_while(dir, visit, || true).map(|_| ())
}

/// Calls `visit` for names in an open directory from its current position, while `wants_more` returns true. Checks that
/// once per few hundred names. Returns whether the listing is complete; if not, another call continues it.
pub fn list_while(
    dir: BorrowedFd<'_>,
    mut visit: impl FnMut(Dirent<'_>),
    wants_more: impl Fn() -> bool,
) -> io::Result<bool> {
    let mut buffer = [const { std::mem::MaybeUninit::<u8>::uninit() }; 32 * 1024];
    let mut entries = fs::RawDir::new(dir, &mut buffer);
    loop {
        if entries.is_buffer_empty() {
            if !wants_more() {
                return Ok(false);
            }
            attempt(Call::GetDents, || Ok(()))?;
        }
        let entry = match entries.next() {
            None => return Ok(true),
            Some(Err(Errno::INTR)) => continue,
            Some(entry) => entry?,
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let is_dir = match entry.file_type() {
            _ if hides_types() => None,
            fs::FileType::Unknown => None,
            kind => Some(kind == fs::FileType::Directory),
        };
        visit(Dirent { name, is_dir });
    }
}

/// Returns a symlink's target.
pub fn read_link(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
    attempt(Call::ReadLink, || {
        let at = spot(dir, name)?;
        Ok(fs::readlinkat(at.dir(), &*at.name, Vec::with_capacity(256))?.into_bytes())
    })
}

/// Reads at the file's position; 0 means end of file.
pub fn read(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    attempt(Call::Read, || {
        let len_bytes = granted(into.len());
        Ok(rustix::io::read(fd, &mut into[..len_bytes])?)
    })
}

/// Reads at an offset.
pub fn pread(fd: BorrowedFd<'_>, into: &mut [u8], at: u64) -> io::Result<usize> {
    attempt(Call::Read, || {
        let len_bytes = granted(into.len());
        Ok(rustix::io::pread(fd, &mut into[..len_bytes], at)?)
    })
}

/// Writes all bytes at the file's position.
pub fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match attempt(Call::Write, || Ok(rustix::io::write(fd, &bytes[..granted(bytes.len())])?))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

/// Writes all bytes at an offset, or at the current position of files that cannot seek, such as a terminal.
pub fn pwrite_all(fd: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match attempt(Call::Write, || Ok(rustix::io::pwrite(fd, &bytes[..granted(bytes.len())], at)?)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => (bytes, at) = (&bytes[n..], at + n as u64),
            Err(error) if error.kind() == io::ErrorKind::NotSeekable => return write_all(fd, bytes),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Copies inside the kernel, from the position of one file to that of the other; 0 means end of file.
pub fn copy_range(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len_bytes: usize) -> io::Result<usize> {
    attempt(Call::CopyRange, || Ok(fs::copy_file_range(from, None, to, None, granted(len_bytes))?))
}

/// Makes `to` share the blocks of `from`, if the file system supports it.
pub fn clone(to: BorrowedFd<'_>, from: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::Clone, || Ok(fs::ioctl_ficlone(to, from)?))
}

/// Returns the next offset at or after `at` that holds data; `None` if there is none before the end of the file.
pub fn next_data(fd: BorrowedFd<'_>, at: u64) -> io::Result<Option<u64>> {
    attempt(Call::Seek, || match fs::seek(fd, fs::SeekFrom::Data(at)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    })
}

/// Moves the file's position.
pub fn seek_to(fd: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    attempt(Call::Seek, || {
        fs::seek(fd, fs::SeekFrom::Start(at))?;
        Ok(())
    })
}

/// Returns the length of an open file's content: a file's length, or how far a device can be sought, which is 0 for
/// most devices that are not block devices. Leaves a device at its start.
pub fn content_len(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = fstat(fd)?;
    if Kind::of_mode(stat.mode) != Some(Kind::Device) {
        return Ok(stat.len_bytes);
    }
    let len_bytes = attempt(Call::Seek, || Ok(fs::seek(fd, fs::SeekFrom::End(0)).unwrap_or(0)))?;
    if len_bytes > 0 {
        seek_to(fd, 0)?;
    }
    Ok(len_bytes)
}

/// Sets the length.
pub fn truncate(fd: BorrowedFd<'_>, len_bytes: u64) -> io::Result<()> {
    attempt(Call::Truncate, || Ok(fs::ftruncate(fd, len_bytes)?))
}

/// Reserves blocks without changing the length.
pub fn allocate(fd: BorrowedFd<'_>, len_bytes: u64) -> io::Result<()> {
    attempt(Call::Allocate, || Ok(fs::fallocate(fd, fs::FallocateFlags::KEEP_SIZE, 0, len_bytes)?))
}

/// Punches a hole.
pub fn punch(fd: BorrowedFd<'_>, at: u64, len_bytes: u64) -> io::Result<()> {
    attempt(Call::Allocate, || {
        Ok(fs::fallocate(fd, fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE, at, len_bytes)?)
    })
}

/// Waits until the file is on stable storage.
pub fn fsync(fd: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::FSync, || Ok(fs::fsync(fd)?))
}

/// Forces errors that a file system defers until a descriptor is closed, as NFS does for writes. The file stays open.
#[allow(unsafe_code)]
pub fn settle(fd: BorrowedFd<'_>) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    match enter(Call::Close) {
        // An interrupted close has closed the descriptor.
        Ok(()) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let Ok(second) = rustix::io::fcntl_dupfd_cloexec(fd, 0) else {
        // No descriptor is available for that, which does not affect the file itself.
        return Ok(());
    };
    // SAFETY: no other code has this descriptor, and `into_raw_fd` leaves closing it to us.
    let closed = unsafe { libc::close(second.into_raw_fd()) };
    match io::Error::last_os_error() {
        error if closed != 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Creates a hard link to an entry. Links a symlink itself, not its target.
pub fn link(from: BorrowedFd<'_>, old: &[u8], to: BorrowedFd<'_>, new: &[u8]) -> io::Result<()> {
    attempt(Call::Link, || {
        may_write()?;
        let (old, new) = (spot(from, old)?, spot(to, new)?);
        Ok(fs::linkat(old.dir(), &*old.name, new.dir(), &*new.name, AtFlags::empty())?)
    })
}

/// Moves an entry, replacing an existing entry of the new name.
pub fn rename(from: BorrowedFd<'_>, old: &[u8], to: BorrowedFd<'_>, new: &[u8]) -> io::Result<()> {
    attempt(Call::Rename, || {
        may_write()?;
        let (old, new) = (spot(from, old)?, spot(to, new)?);
        Ok(fs::renameat(old.dir(), &*old.name, new.dir(), &*new.name)?)
    })
}

/// Like [`rename`], but fails with [`io::ErrorKind::AlreadyExists`] if the new name exists.
pub fn rename_new(from: BorrowedFd<'_>, old: &[u8], to: BorrowedFd<'_>, new: &[u8]) -> io::Result<()> {
    attempt(Call::Rename, || {
        may_write()?;
        let (old, new) = (spot(from, old)?, spot(to, new)?);
        Ok(fs::renameat_with(old.dir(), &*old.name, new.dir(), &*new.name, fs::RenameFlags::NOREPLACE)?)
    })
}

/// Removes an entry that is not a directory.
pub fn unlink(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    attempt(Call::Unlink, || {
        may_write()?;
        let at = spot(dir, name)?;
        Ok(fs::unlinkat(at.dir(), &*at.name, AtFlags::empty())?)
    })
}

/// Removes an empty directory.
pub fn rmdir(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    attempt(Call::RmDir, || {
        may_write()?;
        let at = spot(dir, name)?;
        Ok(fs::unlinkat(at.dir(), &*at.name, AtFlags::REMOVEDIR)?)
    })
}

/// Creates a directory.
pub fn mkdir(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<()> {
    attempt(Call::MkDir, || {
        may_write()?;
        let at = spot(dir, name)?;
        // This is a root, which exists.
        if &*at.name == b"." {
            return Err(Errno::EXIST.into());
        }
        Ok(fs::mkdirat(at.dir(), &*at.name, Mode::from_raw_mode(mode))?)
    })
}

/// Creates a directory at any path, for operands.
pub fn mkdir_path(path: &[u8], mode: u32) -> io::Result<()> {
    mkdir(fs::CWD, path, mode)
}

/// Creates a symlink.
pub fn symlink(target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    attempt(Call::Symlink, || {
        may_write()?;
        let at = spot(dir, name)?;
        Ok(fs::symlinkat(target, at.dir(), &*at.name)?)
    })
}

/// Returns the number of a device, as [`Stat::rdev`] holds it.
pub fn device_number(major: u32, minor: u32) -> u64 {
    fs::makedev(major, minor)
}

/// Returns the major and the minor number of a device.
pub fn device_parts(rdev: u64) -> (u32, u32) {
    (fs::major(rdev), fs::minor(rdev))
}

/// Creates a device, fifo or socket. `mode` includes the type bits. In a confined process, devices are rejected.
pub fn mknod(dir: BorrowedFd<'_>, name: &[u8], mode: u32, rdev: u64) -> io::Result<()> {
    attempt(Call::MkNod, || {
        may_write()?;
        let is_device =
            matches!(fs::FileType::from_raw_mode(mode), fs::FileType::CharacterDevice | fs::FileType::BlockDevice);
        if is_device && sandbox::of_process().is_some_and(|reach| !reach.is_everything()) {
            // Opening it, even because it replaced a file, would give access outside of the roots.
            return Err(Errno::PERM.into());
        }
        let at = spot(dir, name)?;
        Ok(fs::mknodat(
            at.dir(),
            &*at.name,
            fs::FileType::from_raw_mode(mode),
            Mode::from_raw_mode(mode & 0o7777),
            rdev,
        )?)
    })
}

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
/// this opens the entry with `O_PATH` and changes it through /proc.
pub fn chmod(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<()> {
    attempt(Call::Chmod, || {
        may_write()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = spot(dir, name)?;
        let fd = fs::openat(at.dir(), &*at.name, flags, Mode::empty())?;
        let kind = fs::FileType::from_raw_mode(fs::fstat(&fd)?.st_mode);
        if kind == fs::FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        if !has_proc() {
            return chmod_without_proc(&at, kind, mode & 0o7777);
        }
        let path = proc_fd(fd.as_fd());
        Ok(fs::chmodat(fs::CWD, path.as_slice(), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?)
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
    let done = unsafe { libc::syscall(FCHMODAT2, dir, name.as_ptr(), mode, libc::AT_SYMLINK_NOFOLLOW) };
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
pub fn chown(dir: BorrowedFd<'_>, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    attempt(Call::Chown, || {
        may_write()?;
        let uid = uid.map(rustix::process::Uid::from_raw);
        let gid = gid.map(rustix::process::Gid::from_raw);
        if name.is_empty() {
            return Ok(fs::fchown(dir, uid, gid)?);
        }
        let at = spot(dir, name)?;
        Ok(fs::chownat(at.dir(), &*at.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    })
}

/// Sets access and modification time without following a symlink; `None` keeps the current one. An empty name means
/// `dir` itself, which may be an open file.
pub fn utimes(dir: BorrowedFd<'_>, name: &[u8], atime: Option<Time>, mtime: Option<Time>) -> io::Result<()> {
    attempt(Call::Utimes, || {
        may_write()?;
        let spec = |time: Option<Time>| match time {
            Some(time) => fs::Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) as _ },
            None => fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        };
        let times = fs::Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        if name.is_empty() {
            return match fs::futimens(dir, &times) {
                // A directory that was opened only for search.
                Err(Errno::BADF) => Ok(fs::utimensat(dir, c".", &times, AtFlags::empty())?),
                set => Ok(set?),
            };
        }
        let at = spot(dir, name)?;
        Ok(fs::utimensat(at.dir(), &*at.name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    })
}

/// Returns when an open file was created; `None` if its file system does not record that.
pub fn birth(fd: BorrowedFd<'_>) -> io::Result<Option<Time>> {
    attempt(Call::FStat, || {
        let found = fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(is_known.then_some(Time { secs: found.stx_btime.tv_sec, nanos: found.stx_btime.tv_nsec }))
    })
}

/// Returns when an entry was last changed in any way, including attributes and number of links (ctime). Does not follow
/// a symlink.
pub fn changed(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Time> {
    attempt(Call::Stat, || {
        let at = spot(dir, name)?;
        let found = fs::statx(at.dir(), &*at.name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::CTIME)?;
        Ok(Time { secs: found.stx_ctime.tv_sec, nanos: found.stx_ctime.tv_nsec })
    })
}

/// Releases the lock of [`try_lock`].
pub fn unlock(fd: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::Lock, || Ok(fs::flock(fd, fs::FlockOperation::Unlock)?))
}

/// Locks a temp file exclusively, to mark it as in use; `false` if another process holds a lock.
pub fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    attempt(Call::Lock, || match fs::flock(fd, fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    })
}

/// Locks a file shared with other processes; `false` if another process holds it exclusively.
pub fn try_share_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    attempt(Call::Lock, || match fs::flock(fd, fs::FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    })
}

/// Locks a file exclusively. Waits until other locks are released.
pub fn lock(fd: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::Lock, || retry(|| fs::flock(fd, fs::FlockOperation::LockExclusive)))
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

/// Returns whether [`proc_fd`] works. It does not in a chroot without /proc.
pub fn has_proc() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS.get_or_init(|| fs::access("/proc/self/fd", fs::Access::EXISTS).is_ok())
}

/// Makes a call in a thread with its own working directory, for calls that take only a path.
#[allow(unsafe_code)]
pub fn within<T: Send>(dir: BorrowedFd<'_>, call: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
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
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread crashed")))
    })
}

/// The kernel's maximum length of an attribute's value and of the list of names.
const XATTR_MAX: usize = 64 * 1024;

/// Makes a call with a small buffer and, if that is too small, with the largest possible one.
fn grown(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Option<Vec<u8>>> {
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

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => continue,
            other => return Ok(other?),
        }
    }
}

/// Returns cryptographically secure random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(got) => filled += got,
            Err(rustix::io::Errno::INTR) => {}
            // The kernel has getrandom since 3.17.
            Err(error) => unreachable!("getrandom: {error}"),
        }
    }
    bytes
}

/// Returns the effective user and group of this process.
pub fn ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Makes this process run as this user with this group alone, for good. Call it before any thread is started: it changes
/// the calling thread and those that the thread starts later.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[gid])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Reads the umask and sets it to 0, so that files get exactly the requested modes. Call it once, before threads start.
pub fn take_umask() -> u32 {
    rustix::process::umask(Mode::empty()).as_raw_mode()
}

/// Allocations up to this length come from an arena. Pieces of files have a quarter of it; otherwise, each would be
/// mapped and unmapped by the kernel, page by page.
#[cfg(target_env = "gnu")]
const POOLED_MAX_BYTES: libc::c_int = 1 << 20;
/// How much unused memory an arena keeps. With less, the pieces in flight would make it shrink and grow all the time.
#[cfg(target_env = "gnu")]
const POOL_KEEPS_BYTES: libc::c_int = 8 << 20;

/// Keeps memory use from growing with the number of threads. Memory is often freed by another thread than allocated it,
/// and each arena of the C library keeps its maximum. With two arenas, memory does not move back and forth to the
/// kernel either.
#[allow(unsafe_code)]
pub fn share_memory_pools() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets numbers in the allocator. It is called before any thread is started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, POOLED_MAX_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, POOL_KEEPS_BYTES);
    }
}

/// Returns unused memory to the kernel, including memory between blocks that are in use.
#[allow(unsafe_code)]
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks and does not access memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The system's allocator. Without memory it ends the process as rsync does, where Rust would abort it.
struct ExitingAllocator;

#[global_allocator]
static ALLOCATOR: ExitingAllocator = ExitingAllocator;

// SAFETY: every call goes to the system's allocator unchanged; a null result never returns.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for ExitingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        not_null(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        not_null(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len_bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        not_null(unsafe { System.realloc(at, layout, len_bytes) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[inline(always)]
fn not_null(at: *mut u8) -> *mut u8 {
    if at.is_null() { out_of_memory() } else { at }
}

/// Ends the process without allocating. Temporary files stay; the next run removes them, as after a kill.
#[cold]
#[allow(unsafe_code)]
fn out_of_memory() -> ! {
    const WORDS: &[u8] = b"sparsync: out of memory\nrsync error: error allocating core memory buffers (code 22)\n";
    let _ = rustix::io::write(rustix::stdio::stderr(), WORDS);
    // SAFETY: _exit runs no code of this process.
    unsafe { libc::_exit(Exit::Malloc.code().into()) }
}

/// Waits until data can be read or the peer has closed its end; `false` after a timeout.
pub fn wait_readable(fd: BorrowedFd<'_>, millis: u32) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: i64::from(millis / 1000), tv_nsec: i64::from(millis % 1000) * 1_000_000 };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until data can be written.
pub fn wait_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    Ok(rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None)).map(drop)?)
}

/// Reads from a pipe or socket to a peer; 0 means end of stream.
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| enter_link().and_then(|()| rustix::io::read(fd, &mut *into)))?)
}

/// Writes to a pipe or socket to a peer, as much as its buffer takes.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| enter_link().and_then(|()| rustix::io::write(fd, bytes)))?)
}

/// Returns whether the peer has closed its end of a socket, even if received data is still unread.
pub fn has_hung_up(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut watched = [PollFd::new(&fd, PollFlags::RDHUP)];
    poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The requested capacity of a pipe to or from a peer. A process that writes should not have to wait until the other
/// one is scheduled.
const PIPE_BYTES: usize = 1 << 20;

/// Increases the capacity of a pipe above its default of 64 KiB. Has no effect on other files or if the system does not
/// permit it.
pub fn widen_pipe(fd: BorrowedFd<'_>) {
    // The kernel's minimum is a page. A pipe that stays as it is only costs time.
    let _ = rustix::pipe::fcntl_setpipe_size(fd, narrow_link_bytes().unwrap_or(PIPE_BYTES));
}

/// Returns the capacity of the link between client and server in a test of debug builds: `SPARSYNC_LINK_BYTES`.
pub fn narrow_link_bytes() -> Option<usize> {
    #[cfg(debug_assertions)]
    return hooks::link_bytes();
    #[cfg(not(debug_assertions))]
    None
}

/// Returns how many seconds a minute of `--stop-after` has: 60, unless a test of debug builds wants fewer.
pub fn minute_secs() -> u64 {
    #[cfg(debug_assertions)]
    return hooks::minute_secs().unwrap_or(60);
    #[cfg(not(debug_assertions))]
    60
}

/// Counts a client that connects to a server, so that a test of debug builds can make the network thread panic.
pub fn count_client() {
    #[cfg(debug_assertions)]
    hooks::enter_client();
}

/// Returns the longest datagram to probe in a test of debug builds, in bytes: `SPARSYNC_DATAGRAM_BYTES`. A test peer
/// may simulate a slow path, which probes would congest.
pub fn longest_datagram_bytes() -> Option<u16> {
    #[cfg(debug_assertions)]
    return hooks::datagram_bytes();
    #[cfg(not(debug_assertions))]
    None
}

/// Returns the longest packet, including its IP header, that fits the path to the peer of a connected socket, as far as
/// this machine knows; in bytes.
pub fn path_mtu(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<u32> {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    Ok(if is_ipv6 { ipv6_mtu(socket) } else { ip_mtu(socket) }?)
}

/// Binds a UDP socket to an address. At `::` it also accepts IPv4, regardless of `net.ipv6.bindv6only`.
pub fn bind_udp(address: std::net::SocketAddr) -> io::Result<std::net::UdpSocket> {
    bound(address, rustix::net::SocketType::DGRAM).map(Into::into)
}

/// Binds a TCP socket in the same way, and listens.
pub fn bind_tcp(address: std::net::SocketAddr) -> io::Result<std::net::TcpListener> {
    const WAIT_MAX: i32 = 128;
    let socket = bound(address, rustix::net::SocketType::STREAM)?;
    rustix::net::listen(&socket, WAIT_MAX)?;
    Ok(socket.into())
}

/// Creates a TCP socket for connections to addresses of a family. `local`: the address that it uses here.
pub fn tcp_socket(is_ipv6: bool, local: Option<std::net::IpAddr>) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    if let Some(local) = local {
        return bound((local, 0).into(), SocketType::STREAM);
    }
    let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Connects a socket. Calls `check` ten times a second meanwhile; an error of it ends the attempt.
pub fn connect_tcp(
    socket: BorrowedFd<'_>,
    address: std::net::SocketAddr,
    check: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    rustix::io::ioctl_fionbio(socket, true)?;
    match rustix::net::connect(socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => loop {
            check()?;
            match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break rustix::net::sockopt::socket_error(socket)??,
                Err(error) => return Err(error.into()),
            }
        },
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::io::ioctl_fionbio(socket, false)?)
}

/// The options of `--sockopts`: name, level, number, and the value if the name implies it.
const SOCKET_OPTIONS: [(&str, i32, i32, Option<i32>); 12] = [
    ("SO_KEEPALIVE", libc::SOL_SOCKET, libc::SO_KEEPALIVE, None),
    ("SO_REUSEADDR", libc::SOL_SOCKET, libc::SO_REUSEADDR, None),
    ("SO_BROADCAST", libc::SOL_SOCKET, libc::SO_BROADCAST, None),
    ("TCP_NODELAY", libc::IPPROTO_TCP, libc::TCP_NODELAY, None),
    ("IPTOS_LOWDELAY", libc::IPPROTO_IP, libc::IP_TOS, Some(0x10)),
    ("IPTOS_THROUGHPUT", libc::IPPROTO_IP, libc::IP_TOS, Some(0x08)),
    ("SO_SNDBUF", libc::SOL_SOCKET, libc::SO_SNDBUF, None),
    ("SO_RCVBUF", libc::SOL_SOCKET, libc::SO_RCVBUF, None),
    ("SO_SNDLOWAT", libc::SOL_SOCKET, libc::SO_SNDLOWAT, None),
    ("SO_RCVLOWAT", libc::SOL_SOCKET, libc::SO_RCVLOWAT, None),
    ("SO_SNDTIMEO", libc::SOL_SOCKET, libc::SO_SNDTIMEO, None),
    ("SO_RCVTIMEO", libc::SOL_SOCKET, libc::SO_RCVTIMEO, None),
];

/// An option of `--sockopts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOption {
    level: i32,
    number: i32,
    /// The value that the name implies, so that none can be given.
    pub implied: Option<i32>,
}

impl SocketOption {
    /// Finds an option by its name.
    pub fn named(name: &str) -> Option<SocketOption> {
        let found = SOCKET_OPTIONS.iter().find(|(known, ..)| *known == name);
        found.map(|&(_, level, number, implied)| SocketOption { level, number, implied })
    }

    /// Sets the option. As in rsync, every value is an int, which the system rejects for some options.
    #[allow(unsafe_code)]
    pub fn set(self, socket: BorrowedFd<'_>, value: i32) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let value = self.implied.unwrap_or(value);
        let (pointer, len) = ((&raw const value).cast::<libc::c_void>(), std::mem::size_of::<i32>());
        // SAFETY: the pointer is valid for the length, and the system copies the value.
        let result =
            unsafe { libc::setsockopt(socket.as_raw_fd(), self.level, self.number, pointer, len as libc::socklen_t) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

fn bound(address: std::net::SocketAddr, kind: rustix::net::SocketType) -> io::Result<OwnedFd> {
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    if kind == SocketType::STREAM {
        // Ended connections that are still in TIME_WAIT must not block the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    Ok(socket)
}

/// Requests send and receive buffers of this size; the system may grant less.
pub fn request_socket_buffers(socket: BorrowedFd<'_>, bytes: usize) {
    use rustix::net::sockopt as options;
    // Only a privileged process may exceed the system's limit. Without more room, the connection is only slower.
    if options::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = options::set_socket_recv_buffer_size(socket, bytes);
    }
    if options::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = options::set_socket_send_buffer_size(socket, bytes);
    }
}

/// Makes the system probe the peer of a TCP connection every `probe`, and close the connection after `idle` without an
/// answer.
pub fn watch_connection(socket: BorrowedFd<'_>, probe: std::time::Duration, idle: std::time::Duration) {
    use rustix::net::sockopt as options;
    let probes = idle.as_secs() / probe.as_secs().max(1);
    // These options exist on every Linux. Without them, a dead peer is only noticed later.
    let _ = options::set_socket_keepalive(socket, true);
    let _ = options::set_tcp_keepidle(socket, probe);
    let _ = options::set_tcp_keepintvl(socket, probe);
    let _ = options::set_tcp_keepcnt(socket, u32::try_from(probes).unwrap_or(u32::MAX).max(1));
    let _ = options::set_tcp_user_timeout(socket, u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
}

/// The state of a TCP connection according to the system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpStanding {
    /// How long the peer has sent nothing, not even an acknowledgement.
    pub silent: std::time::Duration,
    /// How many retransmissions or probes in a row had no answer.
    pub repeats: u8,
    /// Whether sent data is not yet acknowledged.
    pub has_unacknowledged: bool,
    /// The retransmission timeout.
    pub repeats_after: std::time::Duration,
    /// The round trip time.
    pub rtt: std::time::Duration,
}

/// Returns the state of a TCP connection.
#[allow(unsafe_code)]
pub fn tcp_standing(socket: BorrowedFd<'_>) -> io::Result<TcpStanding> {
    use std::os::fd::AsRawFd;
    use std::time::Duration;
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = std::mem::size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes at most `len` bytes, the size of the structure.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut info).cast(),
            &raw mut len,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpStanding {
        silent: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        repeats: info.tcpi_retransmits.max(info.tcpi_probes),
        has_unacknowledged: info.tcpi_unacked > 0,
        repeats_after: Duration::from_micros(info.tcpi_rto.into()),
        rtt: Duration::from_micros(info.tcpi_rtt.into()),
    })
}

/// The most files that a process may have open if it starts no program of the user.
pub const OPEN_FILES_MAX: u64 = 1 << 20;

/// Raises the limit on open files to the system's maximum, but at most to `most`. Child processes inherit it, and some
/// iterate over all possible descriptors.
pub fn lift_open_files(most: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let Some(now) = limit.current else { return };
    let lifted = limit.maximum.map_or(most, |maximum| maximum.min(most)).max(now);
    // Raising the current limit to at most the maximum is always permitted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(lifted), ..limit });
}

/// Marks inherited descriptors other than the standard streams as close-on-exec. Otherwise, child processes of a
/// long-lived server would keep other programs' locks and pipes open.
#[allow(unsafe_code)]
pub fn keep_inherited_files() -> io::Result<()> {
    let dir = open_dir_path(b"/proc/self/fd")?;
    let mut inherited = Vec::new();
    list(dir.as_fd(), |file| {
        let number = std::str::from_utf8(file.name).ok().and_then(|name| name.parse::<i32>().ok());
        inherited.extend(number.filter(|&number| number > 2));
    })?;
    for number in inherited {
        // SAFETY: the descriptor was open a moment ago and is only marked. If another thread closed it, this fails or
        // marks a file that must be marked anyway.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // Fails only if the descriptor is closed by now.
        let _ = rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC);
    }
    Ok(())
}

/// How many open files a run needs if it does one thing after the other.
const OPEN_FILES_NEEDED: usize = 32;

/// Returns the limit on open files, without those that every run needs, divided by `parts`, and at most `most`.
pub fn share_of_open_files(parts: usize, most: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let now = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |now| usize::try_from(now).unwrap_or(usize::MAX));
    (now.saturating_sub(OPEN_FILES_NEEDED) / parts).min(most)
}

/// Creates an unnamed file in memory. Child processes inherit it under the same descriptor number.
pub fn shared_file(called: &std::ffi::CStr) -> io::Result<OwnedFd> {
    attempt(Call::Open, || Ok(rustix::fs::memfd_create(called, rustix::fs::MemfdFlags::empty())?))
}

/// Returns the processor time of this process: in the program, and in the kernel.
#[allow(unsafe_code)]
pub fn processor_time() -> [Duration; 2] {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes a whole `rusage`, of which all bits are valid, into memory of that size.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime].map(|time| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    })
}

/// Returns the memory of this machine in bytes.
pub fn machine_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Returns the size of a memory page in bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Makes the kernel kill this process when the thread that started it ends. A session whose server was killed must not
/// continue to change files next to a session of the next server. A change of the user cancels it.
pub fn end_with_parent() {
    // Fails only for an invalid signal.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// Limits the memory of this process, at most to the system's limit.
pub fn limit_memory(bytes: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Data).maximum;
    let bytes = maximum.map_or(bytes, |maximum| maximum.min(bytes));
    // Lowering a limit is always permitted.
    let _ = setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) });
}

/// Sets the umask, for a program that replaces this one.
pub fn set_umask(umask: u32) {
    rustix::process::umask(Mode::from_raw_mode(umask));
}

/// Returns the device and inode of the file that a path leads to.
pub fn identity(path: &std::ffi::OsStr) -> Option<(u64, u64)> {
    use std::os::unix::ffi::OsStrExt;
    stat_path(path.as_bytes(), true).ok().map(|stat| (stat.dev, stat.ino))
}

/// Returns the name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the system and the machine type, as printed by `uname -s -m`.
pub fn system_and_machine() -> String {
    let names = rustix::system::uname();
    format!("{} {}", names.sysname().to_string_lossy(), names.machine().to_string_lossy())
}

/// Opens a file at any path for reading.
pub fn open_path(path: &[u8]) -> io::Result<OwnedFd> {
    attempt(Call::Open, || {
        open_through(fs::CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    })
}

/// Returns whether this process may execute a file.
pub fn is_executable(path: &std::ffi::OsStr) -> bool {
    fs::access(path, fs::Access::EXEC_OK).is_ok() && stat_is_file(path)
}

fn stat_is_file(path: &std::ffi::OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    stat_path(path.as_bytes(), true).is_ok_and(|stat| stat.mode & 0o170000 == 0o100000)
}

/// Opens a file in a directory of ours for appending, and creates it if it does not exist. A symlink is an error.
pub fn open_append_at(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    attempt(Call::Open, || {
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
        may_write()?;
        open_through(dir, name, flags, Mode::from_raw_mode(mode))
    })
}

/// Reads a whole file at any path, up to `max_bytes`. In a session of a server, it must be a regular file.
pub fn read_path(path: &[u8], max_bytes: usize) -> io::Result<Vec<u8>> {
    attempt(Call::Open, || read_whole(open_through(fs::CWD, path, whole_flags(), Mode::empty())?.as_fd(), max_bytes))
}

/// Returns the flags for opening a file for [`read_whole`]. In a session of a server, opening a fifo must not wait for
/// a writer.
pub(super) fn whole_flags() -> OFlags {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    flags.set(OFlags::NONBLOCK, sandbox::of_process().is_some());
    flags
}

/// Reads a file that was just opened, up to `max_bytes`. In a session of a server, it must be a regular file.
pub(super) fn read_whole(fd: BorrowedFd<'_>, max_bytes: usize) -> io::Result<Vec<u8>> {
    let is_session = sandbox::of_process().is_some();
    if is_session && fs::FileType::from_raw_mode(fs::fstat(fd)?.st_mode) != fs::FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    read_to_end(fd, max_bytes)
}

/// Reads the rest of an open file, up to `max_bytes`.
pub fn read_to_end(fd: BorrowedFd<'_>, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut piece = vec![0u8; 64 * 1024];
    loop {
        match read(fd, &mut piece)? {
            0 => return Ok(text),
            n if text.len() + n > max_bytes => return Err(io::ErrorKind::FileTooLarge.into()),
            n => text.extend_from_slice(&piece[..n]),
        }
    }
}
