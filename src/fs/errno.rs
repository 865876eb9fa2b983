//! The meanings of system error numbers. Only `fs` uses the numbers themselves.

use std::io;

/// Returns rsync's error for a file that has become shorter while it was read.
pub fn no_data() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODATA)
}

/// Returns whether the file system does not support the operation (ACLs, attributes).
pub fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

/// Returns whether a call, or this use of it, is not available here: the kernel or the file system does not have it, or
/// a security profile refuses it.
pub fn is_call_refused(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL)
    )
}

/// Turns "not found" into `None`. Every other error stays an error.
pub fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Returns whether a path leads to nothing that this user can see: it is missing, access is denied, it loops, it leads
/// through a file, or it leaves the granted directories.
pub fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::EACCES | libc::ELOOP | libc::ENOTDIR)
    ) || super::sandbox::is_outside(error)
}

/// Returns whether a directory may not have been opened because a symlink in its path is not followed.
pub fn may_be_link(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR))
}

/// Returns whether the type of a file has no text, for example because it is a directory.
pub fn is_no_text(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EISDIR | libc::EINVAL | libc::ENXIO | libc::EPERM)
    )
}

/// Returns whether a hard link is not possible: other file system, too many links, or not permitted for this user.
pub fn cannot_link(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EXDEV | libc::EMLINK | libc::EPERM)
    )
}

/// Returns whether a directory cannot be listed, because it was opened only for search or its mode forbids it.
pub fn may_not_be_listed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EBADF))
}

/// Returns whether a symlink in the path leads out of the tree, or there are too many symlinks.
pub fn leads_outside(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

/// Returns whether opening a directory without following symlinks failed because of a symlink in the path, or because
/// it is not a directory.
pub fn may_be_a_symlink(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR))
}

/// Returns whether `::` could not be bound to a free port because this machine does not support IPv6, or does not
/// permit it.
pub fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EPERM | libc::EACCES)
    )
}

/// Returns "File name too long", for a path with too many elements.
pub fn too_long() -> io::Error {
    io::Error::from_raw_os_error(libc::ENAMETOOLONG)
}

/// Returns "Too many levels of symbolic links", for a path below a link that leads outside.
pub fn outside() -> io::Error {
    io::Error::from_raw_os_error(libc::ELOOP)
}

/// Copies an error by its number.
pub fn again(error: &io::Error) -> io::Error {
    error
        .raw_os_error()
        .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Returns "Permission denied", for something that was not accessible before.
pub fn denied() -> io::Error {
    io::Error::from_raw_os_error(libc::EACCES)
}

/// Returns "No such file or directory", for something that was there before.
pub fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

/// Returns "Not a directory", for something that was examined.
pub fn not_a_directory() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTDIR)
}

/// Returns "File exists", for something that was examined.
pub fn exists() -> io::Error {
    io::Error::from_raw_os_error(libc::EEXIST)
}

/// Returns "Invalid argument", for a path that must not contain `..`.
pub fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}
