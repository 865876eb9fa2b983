//! Examines files and lists directories.

use super::{Call, attempt, hides_types, lists_twice, open_through, spot};
use crate::flist::entry::Stat;
use crate::flist::{Kind, Time};
use crate::fs::sandbox::{self};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{self, Access, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::io;

/// Returns the statx fields to request.
fn wanted(links: bool) -> StatxFlags {
    let all = StatxFlags::TYPE
        | StatxFlags::MODE
        | StatxFlags::UID
        | StatxFlags::GID
        | StatxFlags::SIZE
        | StatxFlags::MTIME
        | StatxFlags::ATIME
        | StatxFlags::CTIME
        | StatxFlags::INO;
    if links { all | StatxFlags::NLINK } else { all }
}

/// Returns whether this process may read a file, or list a directory. Follows a symlink.
pub fn may_read(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    spot(dir, name).is_ok_and(|at| {
        fs::accessat(at.dir(), &*at.name, Access::READ_OK, AtFlags::EACCESS).is_ok()
    })
}

/// Returns the attributes of a name in a directory.
pub fn stat(dir: BorrowedFd<'_>, name: &[u8], follow: bool) -> io::Result<Stat> {
    stat_by(dir, name, follow, wanted(true))
}

/// Returns the attributes of a name in a directory with the time of its creation. A file system in user space may be asked
/// for that time each time, although it has just reported all others.
pub fn stat_with_birth(dir: BorrowedFd<'_>, name: &[u8], follow: bool) -> io::Result<Stat> {
    stat_by(dir, name, follow, wanted(true) | StatxFlags::BTIME)
}

fn stat_by(dir: BorrowedFd<'_>, name: &[u8], follow: bool, wanted: StatxFlags) -> io::Result<Stat> {
    attempt(Call::Stat, || {
        // With a trailing slash, the kernel follows the link, too.
        let follows = follow || name.ends_with(b"/");
        if follows && sandbox::of_process().is_some_and(|reach| reach.checks_links()) {
            return stat_in_reach(dir, name);
        }
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        let at = spot(dir, name)?;
        let dir = at.dir();
        let name = &*at.name;
        match fs::statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, wanted) {
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
    attempt(Call::ReadLink, || super::proc_dir::kernel_path_of(dir))
}

/// Returns the attributes of any path, for operands.
pub fn stat_path(path: &[u8], follow: bool) -> io::Result<Stat> {
    stat(fs::CWD, path, follow)
}

/// Returns the attributes of an open file.
pub fn fstat(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    attempt(Call::FStat, || Ok(from_stat(&fs::fstat(fd)?)))
}

/// Returns the length of an open file. On a network file system, asks its server: the kernel may remember an old length
/// for seconds.
pub fn len_now(fd: BorrowedFd<'_>) -> io::Result<u64> {
    attempt(Call::FStat, || {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        match fs::statx(fd, c"", flags, StatxFlags::SIZE) {
            Ok(found) => Ok(found.stx_size),
            Err(Errno::NOSYS) => Ok(from_stat(&fs::fstat(fd)?).len_bytes),
            Err(error) => Err(error.into()),
        }
    })
}

/// What a change of a file's content or attributes changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastChange {
    /// Whether it is a regular file.
    pub is_of_regular_file: bool,
    len_bytes: u64,
    mtime: Time,
    ctime: Time,
}

/// Returns when an open file was last changed, and its length. Asks the server of a network file system, as [`len_now`]
/// does.
pub fn last_change(fd: BorrowedFd<'_>) -> io::Result<LastChange> {
    attempt(Call::FStat, || {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
        let stat = match fs::statx(fd, c"", flags, wanted) {
            Ok(found) => from_statx(&found),
            Err(Errno::NOSYS) => from_stat(&fs::fstat(fd)?),
            Err(error) => return Err(error.into()),
        };
        Ok(LastChange {
            is_of_regular_file: fs::FileType::from_raw_mode(stat.mode).is_file(),
            len_bytes: stat.len_bytes,
            mtime: stat.mtime,
            ctime: stat.ctime,
        })
    })
}

/// Which file an entry is, and all that a change of its content changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion {
    /// Whether it is a regular file.
    pub is_file: bool,
    /// The device number of its file system.
    pub dev: u64,
    /// Its inode number.
    pub ino: u64,
    /// Its length.
    pub len_bytes: u64,
    /// When its content was changed, or what a program has set.
    pub mtime: Time,
    /// When its content or its attributes were changed. No program can set it.
    pub ctime: Time,
    /// When it was created, if the file system records that.
    pub btime: Option<Time>,
}

impl FileVersion {
    /// Returns the version of the file that has these attributes, with the time of its creation if that was requested.
    pub fn from_stat(stat: &Stat) -> FileVersion {
        FileVersion {
            is_file: Kind::of_mode(stat.mode) == Some(Kind::File),
            dev: stat.dev,
            ino: stat.ino,
            len_bytes: stat.len_bytes,
            mtime: stat.mtime,
            ctime: stat.ctime,
            btime: stat.btime,
        }
    }
}

/// Returns the version of a file in a directory. Does not follow a symlink.
pub fn version_at(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<FileVersion> {
    stat_with_birth(dir, name, false).map(|stat| FileVersion::from_stat(&stat))
}

/// Returns the version of an open file.
pub fn version(fd: BorrowedFd<'_>) -> io::Result<FileVersion> {
    attempt(Call::FStat, || {
        let flags = wanted(true) | StatxFlags::BTIME;
        let stat = match fs::statx(fd, c"", AtFlags::EMPTY_PATH, flags) {
            Ok(found) => from_statx(&found),
            Err(Errno::NOSYS) => from_stat(&fs::fstat(fd)?),
            Err(error) => return Err(error.into()),
        };
        Ok(FileVersion::from_stat(&stat))
    })
}

/// Returns whether the file system of a directory is one of this machine that gives each change of a file the time of this
/// machine's clock. A network file system shows old attributes for seconds, or the times of another clock, and a file system
/// in user space any.
pub fn keeps_change_times(dir: BorrowedFd<'_>) -> io::Result<bool> {
    // ext2 to ext4, XFS, Btrfs, F2FS, tmpfs, overlayfs, ZFS, bcachefs. The types are numbers of 32 bits.
    const TYPES: [u32; 8] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0xf2f5_2010,
        0x0102_1994,
        0x794c_7630,
        0x2fc1_2fc1,
        0xca45_1a4e,
    ];
    attempt(Call::FStat, || {
        Ok(TYPES.contains(&(fs::fstatfs(dir)?.f_type as u32)))
    })
}

/// Returns a time as the kernel reports it. A damaged inode can have more nanoseconds than a second has, which no call
/// accepts.
fn time_of(secs: i64, nanos: u32) -> Time {
    const NANOS_MAX: u32 = 999_999_999;
    Time {
        secs,
        nanos: nanos.min(NANOS_MAX),
    }
}

fn from_statx(s: &fs::Statx) -> Stat {
    let time = |t: &fs::StatxTimestamp| time_of(t.tv_sec, t.tv_nsec);
    let has_btime = s.stx_mask & StatxFlags::BTIME.bits() != 0;
    Stat {
        mode: u32::from(s.stx_mode),
        uid: s.stx_uid,
        gid: s.stx_gid,
        mtime: time(&s.stx_mtime),
        atime: time(&s.stx_atime),
        ctime: time(&s.stx_ctime),
        btime: if has_btime {
            Some(time(&s.stx_btime))
        } else {
            None
        },
        len_bytes: s.stx_size,
        dev: fs::makedev(s.stx_dev_major, s.stx_dev_minor),
        ino: s.stx_ino,
        nlink: s.stx_nlink,
        rdev: fs::makedev(s.stx_rdev_major, s.stx_rdev_minor),
    }
}

#[allow(
    clippy::unnecessary_cast,
    reason = "the widths differ between architectures"
)]
fn from_stat(s: &fs::Stat) -> Stat {
    Stat {
        mode: s.st_mode as u32,
        uid: s.st_uid,
        gid: s.st_gid,
        mtime: time_of(s.st_mtime as i64, s.st_mtime_nsec as u32),
        atime: time_of(s.st_atime as i64, s.st_atime_nsec as u32),
        ctime: time_of(s.st_ctime as i64, s.st_ctime_nsec as u32),
        btime: None,
        len_bytes: s.st_size as u64,
        dev: s.st_dev as u64,
        ino: s.st_ino as u64,
        nlink: s.st_nlink as u32,
        rdev: s.st_rdev as u64,
    }
}

/// A name in a directory, and its type if the file system reports it.
#[derive(Clone, Copy)]
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
        let entry = Dirent { name, is_dir };
        if lists_twice() {
            visit(entry);
        }
        visit(entry);
    }
}

/// Returns a symlink's target.
pub fn read_link(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
    attempt(Call::ReadLink, || {
        let at = spot(dir, name)?;
        Ok(fs::readlinkat(at.dir(), &*at.name, Vec::with_capacity(256))?.into_bytes())
    })
}

/// Returns whether a path leads to a directory without entries. Its access time stays if this process may leave it.
pub fn is_empty_dir(path: &[u8]) -> io::Result<bool> {
    let dir = super::open_dir_path_quietly(path)?;
    let has_entry = std::cell::Cell::new(false);
    list_while(dir.as_fd(), |_| has_entry.set(true), || !has_entry.get())?;
    Ok(!has_entry.get())
}

/// Returns whether a path leads to a directory on which a file system is mounted, also one that is mounted elsewhere too.
pub fn is_mount_point(path: &[u8]) -> io::Result<bool> {
    let dir = super::open_dir_path(path)?;
    attempt(Call::FStat, || {
        let found = fs::statx(&dir, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        if found
            .stx_attributes_mask
            .contains(fs::StatxAttributes::MOUNT_ROOT)
        {
            return Ok(found
                .stx_attributes
                .contains(fs::StatxAttributes::MOUNT_ROOT));
        }
        // Linux before 5.8 does not report it. The root directory is its own parent.
        let parent = fs::statx(&dir, c"..", AtFlags::empty(), StatxFlags::BASIC_STATS)?;
        let device = |of: &fs::Statx| (of.stx_dev_major, of.stx_dev_minor);
        Ok(device(&found) != device(&parent) || found.stx_ino == parent.stx_ino)
    })
}

/// Returns when an open file was created; `None` if its file system does not record that.
pub fn birth(fd: BorrowedFd<'_>) -> io::Result<Option<Time>> {
    attempt(Call::FStat, || {
        let found = fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        if found.stx_mask & StatxFlags::BTIME.bits() == 0 {
            return Ok(None);
        }
        Ok(Some(Time {
            secs: found.stx_btime.tv_sec,
            nanos: found.stx_btime.tv_nsec,
        }))
    })
}

/// Returns when an entry was last changed in any way, including attributes and number of links (ctime). Does not follow
/// a symlink.
pub fn changed(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Time> {
    attempt(Call::Stat, || {
        let at = spot(dir, name)?;
        let found = fs::statx(
            at.dir(),
            &*at.name,
            AtFlags::SYMLINK_NOFOLLOW,
            StatxFlags::CTIME,
        )?;
        Ok(Time {
            secs: found.stx_ctime.tv_sec,
            nanos: found.stx_ctime.tv_nsec,
        })
    })
}

/// Returns the device and inode of the regular file that standard output is redirected to; `None` if it is no such file.
pub fn redirected_stdout() -> Option<(u64, u64)> {
    let stat = fstat(rustix::stdio::stdout()).ok()?;
    let is_file = Kind::of_mode(stat.mode) == Some(Kind::File);
    if is_file {
        Some((stat.dev, stat.ino))
    } else {
        None
    }
}

/// Returns the device and inode of the file that a path leads to.
pub fn identity(path: &std::ffi::OsStr) -> Option<(u64, u64)> {
    use std::os::unix::ffi::OsStrExt;
    stat_path(path.as_bytes(), true)
        .ok()
        .map(|stat| (stat.dev, stat.ino))
}
