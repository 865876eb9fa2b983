//! What the kernel and the file system of a directory support, found by trying. A probe leaves no file behind.

use super::root::Dir;
use super::unnamed_file::create_unnamed;
use super::{errno, sys};
use crate::flist::entry::Time;
use rustix::fs::{self, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// The size of the file system.
    pub total_bytes: u64,
    /// How many files this user may still create.
    pub free_inodes: u64,
    /// How many files there can be; 0 if there is no fixed number.
    pub total_inodes: u64,
    /// Whether it is mounted read-only.
    pub is_read_only: bool,
}

/// Returns the space of the file system that holds `dir`.
pub fn space(dir: BorrowedFd<'_>) -> io::Result<Space> {
    let found = fs::fstatvfs(dir)?;
    Ok(Space {
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        free_inodes: found.f_favail,
        total_inodes: found.f_files,
        is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

/// How the kernel copies between two files of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCopy {
    /// The copy shares its blocks with the source.
    Reflink,
    /// With `copy_file_range`.
    Range,
}

/// What the files of a directory support.
#[derive(Debug)]
pub struct FileSupport {
    /// Whether a file can be created without a name (`O_TMPFILE`).
    pub unnamed: bool,
    /// How the kernel copies; the error if it does not.
    pub copy: io::Result<KernelCopy>,
    /// The result of setting an extended attribute.
    pub xattr: io::Result<()>,
    /// The smallest difference of modification times, in nanoseconds.
    pub time_step_nanos: io::Result<u64>,
}

/// The name of scratch files where a file needs one.
const SCRATCH: &[u8] = b"sparsync-doctor";

/// Tries the files of a directory. Fails if no file can be created in it.
pub fn files_of(dir: &Dir) -> io::Result<FileSupport> {
    let (file, unnamed) = create_unnamed(dir, SCRATCH)?;
    let time_step_nanos = time_step_nanos(file.as_fd());
    let xattr = sys::fsetxattr(file.as_fd(), b"user.sparsync", b"1");
    let copy =
        create_unnamed(dir, SCRATCH).and_then(|(copy, _)| kernel_copy(file.as_fd(), copy.as_fd()));
    Ok(FileSupport {
        unnamed,
        copy,
        xattr,
        time_step_nanos,
    })
}

fn kernel_copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<KernelCopy> {
    const LEN_BYTES: usize = 4096;
    sys::write_all(from, &[b'x'; LEN_BYTES])?;
    sys::seek_to(from, 0)?;
    if sys::clone(to, from).is_ok() {
        return Ok(KernelCopy::Reflink);
    }
    match sys::copy_range(from, to, LEN_BYTES)? {
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(KernelCopy::Range),
    }
}

/// An odd second, and nanoseconds whose decimal digits all differ from 0.
const TIME: Time = Time {
    secs: 1_000_000_001,
    nanos: 123_456_789,
};

fn time_step_nanos(file: BorrowedFd<'_>) -> io::Result<u64> {
    const SEC_NANOS: u64 = 1_000_000_000;
    sys::utimes(file, b"", None, Some(TIME))?;
    let stored = sys::fstat(file)?.mtime;
    let steps = (0..=9)
        .map(|digits| 10u64.pow(digits))
        .chain([2 * SEC_NANOS]);
    let nanos = |time: Time| time.secs.unsigned_abs() * SEC_NANOS + u64::from(time.nanos);
    let of_stored = |step: &u64| nanos(TIME) / step * step == nanos(stored);
    steps
        .into_iter()
        .find(of_stored)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns whether a directory supports ACLs.
pub fn has_acls(dir: BorrowedFd<'_>) -> io::Result<bool> {
    match fs::fgetxattr(dir, c"system.posix_acl_access", &mut [0u8; 512]) {
        Ok(_) | Err(Errno::NODATA | Errno::RANGE) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether names that differ only in the case of letters are different names; `None` if the first names of the
/// directory do not show that. `dir` was just opened.
pub fn is_case_sensitive(dir: BorrowedFd<'_>) -> io::Result<Option<bool>> {
    let mut found = None::<Vec<u8>>;
    let is_begun = Cell::new(false);
    let visit = |entry: sys::Dirent<'_>| {
        if found.is_none() && entry.name.iter().any(u8::is_ascii_alphabetic) {
            found = Some(entry.name.to_vec());
        }
    };
    sys::list_while(dir, visit, || !is_begun.replace(true))?;
    let Some(name) = found else { return Ok(None) };
    let swap = |byte: &u8| {
        if byte.is_ascii_lowercase() {
            byte.to_ascii_uppercase()
        } else {
            byte.to_ascii_lowercase()
        }
    };
    let other: Vec<u8> = name.iter().map(swap).collect();
    let Some(other) = errno::if_there(sys::stat(dir, &other, false))? else {
        return Ok(Some(true));
    };
    let known = sys::stat(dir, &name, false)?;
    let is_same = (known.dev, known.ino) == (other.dev, other.ino);
    // Both names can be links to one file.
    let is_known = !is_same || known.nlink == 1 || known.mode & 0o170000 == 0o040000;
    Ok(if is_known { Some(!is_same) } else { None })
}

/// Returns whether a directory is on a network file system, as far as its type shows that; FUSE hides it.
pub fn is_network(dir: BorrowedFd<'_>) -> io::Result<bool> {
    // NFS, SMB in three versions, 9P, Ceph, AFS. The types are numbers of 32 bits.
    const TYPES: [u32; 7] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
    ];
    Ok(TYPES.contains(&(fs::fstatfs(dir)?.f_type as u32)))
}

/// The file of [`drop_caches`].
pub const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Drops the file caches of the machine, which only root may do, and in most containers not even root.
pub fn drop_caches() -> io::Result<()> {
    let (dir, name) = DROP_CACHES.rsplit_once('/').unwrap_or_default();
    let dir = sys::open_dir_path(dir.as_bytes())?;
    // Not even root may open it for reading.
    let file = sys::open_append_at(dir.as_fd(), name.as_bytes(), 0)?;
    // Only written data can be dropped.
    fs::sync();
    sys::write_all(file.as_fd(), b"3\n")
}

/// A limit of this process: the current value and the highest permitted one; `None`: unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessLimit {
    /// The value in force.
    pub current: Option<u64>,
    /// How far the process may raise it.
    pub maximum: Option<u64>,
}

/// Returns the limits on open files, on processes of this user, and on address space in bytes.
pub fn process_limits() -> [ProcessLimit; 3] {
    [Resource::Nofile, Resource::Nproc, Resource::As].map(|resource| {
        let limit = getrlimit(resource);
        ProcessLimit {
            current: limit.current,
            maximum: limit.maximum,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let open = || sys::open_dir_path(dir.path().as_os_str().as_encoded_bytes()).unwrap();
        let found = files_of(&Dir::new(open())).unwrap();
        assert!(found.time_step_nanos.is_ok_and(|step| step >= 1));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(
            is_case_sensitive(open().as_fd()).unwrap(),
            None,
            "an empty directory shows nothing"
        );
        std::fs::write(dir.path().join("name"), "").unwrap();
        let is_sensitive = std::fs::metadata(dir.path().join("NAME")).is_err();
        assert_eq!(
            is_case_sensitive(open().as_fd()).unwrap(),
            Some(is_sensitive)
        );
        std::fs::hard_link(dir.path().join("name"), dir.path().join("NAME")).unwrap();
        assert_eq!(
            is_case_sensitive(open().as_fd()).unwrap(),
            None,
            "two links to one file show nothing"
        );
        assert!(space(open().as_fd()).unwrap().total_bytes > 0);
        let proc = sys::open_dir_path(b"/proc").unwrap();
        assert!(!has_acls(proc.as_fd()).unwrap());
        assert!(files_of(&Dir::new(proc)).is_err());
    }
}
