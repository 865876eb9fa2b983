//! Reads, writes and locks open files.

use super::{Call, WriteBack, attempt, change, enter, fstat, granted, open_through, retry};
use crate::flist::Kind;
use crate::fs::sandbox::{self};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{self, Advice, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::borrow::Cow;
use std::io::{self, IoSliceMut};

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

/// Returns whether the beginning of a file can be read without waiting for a disk. `true` if that is not known.
pub fn is_cached(fd: BorrowedFd<'_>) -> bool {
    let mut byte = [0];
    let look = attempt(Call::Read, || {
        Ok(rustix::io::preadv2(
            fd,
            &mut [IoSliceMut::new(&mut byte)],
            0,
            ReadWriteFlags::NOWAIT,
        )?)
    });
    !look.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Has the kernel read a file into its cache, without waiting for it.
pub fn will_read(fd: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::Advise, || {
        Ok(fs::fadvise(fd, 0, None, Advice::WillNeed)?)
    })
}

/// Has the kernel drop the cached pages of a file that are stored, so that the next read comes from the medium. File
/// systems without a medium keep them.
pub fn drop_pages(fd: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::Advise, || {
        Ok(fs::fadvise(fd, 0, None, Advice::DontNeed)?)
    })
}

/// Fills a buffer from an offset on.
pub fn pread_exact(fd: BorrowedFd<'_>, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
    while !into.is_empty() {
        match pread(fd, into, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (into, at) = (&mut into[n..], at + n as u64),
        }
    }
    Ok(())
}

/// Returns the bytes that a write stores: the same, unless a test has the medium spoil them.
fn as_written(bytes: &[u8]) -> Cow<'_, [u8]> {
    #[cfg(debug_assertions)]
    if let Some(spoiled) = super::hooks::spoiled_write(bytes) {
        return Cow::Owned(spoiled);
    }
    Cow::Borrowed(bytes)
}

/// Writes all bytes at the file's position.
pub fn write_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let bytes = as_written(bytes);
    let mut bytes = &bytes[..];
    while !bytes.is_empty() {
        match change(Call::Write, fd, || {
            Ok(rustix::io::write(fd, &bytes[..granted(bytes.len())])?)
        })? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

/// Writes all bytes at an offset, or at the current position of files that cannot seek, such as a terminal.
pub fn pwrite_all(fd: BorrowedFd<'_>, bytes: &[u8], mut at: u64) -> io::Result<()> {
    let bytes = as_written(bytes);
    let mut bytes = &bytes[..];
    while !bytes.is_empty() {
        match change(Call::Write, fd, || {
            Ok(rustix::io::pwrite(fd, &bytes[..granted(bytes.len())], at)?)
        }) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => (bytes, at) = (&bytes[n..], at + n as u64),
            Err(error) if error.kind() == io::ErrorKind::NotSeekable => {
                return write_all(fd, bytes);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Copies inside the kernel, from the position of one file to that of the other; 0 means end of file.
pub fn copy_range(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len_bytes: usize) -> io::Result<usize> {
    change(Call::CopyRange, to, || {
        Ok(fs::copy_file_range(
            from,
            None,
            to,
            None,
            granted(len_bytes),
        )?)
    })
}

/// Makes `to` share the blocks of `from`, if the file system supports it.
pub fn clone(to: BorrowedFd<'_>, from: BorrowedFd<'_>) -> io::Result<()> {
    change(Call::Clone, to, || Ok(fs::ioctl_ficlone(to, from)?))
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
    let len_bytes = attempt(Call::Seek, || {
        Ok(fs::seek(fd, fs::SeekFrom::End(0)).unwrap_or(0))
    })?;
    if len_bytes > 0 {
        seek_to(fd, 0)?;
    }
    Ok(len_bytes)
}

/// Sets the length.
pub fn truncate(fd: BorrowedFd<'_>, len_bytes: u64) -> io::Result<()> {
    change(Call::Truncate, fd, || Ok(fs::ftruncate(fd, len_bytes)?))
}

/// Reserves blocks without changing the length.
pub fn allocate(fd: BorrowedFd<'_>, len_bytes: u64) -> io::Result<()> {
    change(Call::Allocate, fd, || {
        Ok(fs::fallocate(
            fd,
            fs::FallocateFlags::KEEP_SIZE,
            0,
            len_bytes,
        )?)
    })
}

/// Punches a hole.
pub fn punch(fd: BorrowedFd<'_>, at: u64, len_bytes: u64) -> io::Result<()> {
    change(Call::Allocate, fd, || {
        Ok(fs::fallocate(
            fd,
            fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE,
            at,
            len_bytes,
        )?)
    })
}

/// Waits until the file is on stable storage.
pub fn fsync(fd: BorrowedFd<'_>) -> io::Result<()> {
    let _work = WriteBack::begin();
    attempt(Call::FSync, || Ok(fs::fsync(fd)?))?;
    #[cfg(debug_assertions)]
    super::hooks::note_data(fd, true);
    Ok(())
}

/// Waits until the names in a directory are on stable storage. It may be open for searches only.
pub fn fsync_dir(dir: BorrowedFd<'_>) -> io::Result<()> {
    fsync(super::open_dir(dir, b"", super::Follow::Never)?.as_fd())
}

/// Forces errors that a file system defers until a descriptor is closed, as NFS does for writes. The file stays open.
#[allow(unsafe_code)]
pub fn settle(fd: BorrowedFd<'_>) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    let _work = WriteBack::begin();
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

/// Releases the lock of [`try_lock`].
pub fn unlock(fd: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::Lock, || {
        Ok(fs::flock(fd, fs::FlockOperation::Unlock)?)
    })
}

/// Locks a temp file exclusively, to mark it as in use; `false` if another process holds a lock.
pub fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    attempt(Call::Lock, || {
        match fs::flock(fd, fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
}

/// Locks a range of a file exclusively; `false` if another process holds a lock there. The lock ends with this process.
#[allow(unsafe_code)]
pub fn try_lock_range(fd: BorrowedFd<'_>, start: i64, len: i64) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    attempt(Call::Lock, || {
        // SAFETY: the structure consists of integers, for which zero is valid.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        (range.l_type, range.l_whence) = (
            libc::F_WRLCK as libc::c_short,
            libc::SEEK_SET as libc::c_short,
        );
        (range.l_start, range.l_len) = (start, len);
        // SAFETY: the descriptor is open, and the call only reads the structure.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLK, &raw const range) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EAGAIN) => Ok(false),
            _ => Err(error),
        }
    })
}

/// Locks a file shared with other processes; `false` if another process holds it exclusively.
pub fn try_share_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    attempt(Call::Lock, || {
        match fs::flock(fd, fs::FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
}

/// Locks a file exclusively. Waits until other locks are released.
pub fn lock(fd: BorrowedFd<'_>) -> io::Result<()> {
    attempt(Call::Lock, || {
        retry(|| fs::flock(fd, fs::FlockOperation::LockExclusive))
    })
}

/// Reads a whole file of the kernel, up to `max_bytes`. Other files are read by [`crate::fs::trusted_path`].
pub fn read_kernel_file(path: &[u8], max_bytes: usize) -> io::Result<Vec<u8>> {
    assert!(
        path.starts_with(b"/proc/") || path.starts_with(b"/sys/"),
        "only files of the kernel are read without regard to symlinks"
    );
    attempt(Call::Open, || {
        read_whole(
            open_through(fs::CWD, path, whole_flags(), Mode::empty())?.as_fd(),
            max_bytes,
        )
    })
}

/// Returns the flags for opening a file for [`read_whole`]. In a session of a server, opening a fifo must not wait for
/// a writer.
pub(in crate::fs) fn whole_flags() -> OFlags {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    flags.set(OFlags::NONBLOCK, sandbox::of_process().is_some());
    flags
}

/// Reads a file that was just opened, up to `max_bytes`. In a session of a server, it must be a regular file.
pub(in crate::fs) fn read_whole(fd: BorrowedFd<'_>, max_bytes: usize) -> io::Result<Vec<u8>> {
    let is_session = sandbox::of_process().is_some();
    if is_session
        && fs::FileType::from_raw_mode(fs::fstat(fd)?.st_mode) != fs::FileType::RegularFile
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        ));
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
