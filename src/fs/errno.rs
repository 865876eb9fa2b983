//! The system's error numbers by what they mean to us; nobody outside `fs` names one.

use std::io;

/// The file system has no such thing (ACLs, attributes).
pub fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

/// Turns "not found" into `None`. Every other error stays an error.
pub fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Whether a path leads to nothing that this user can see: it is missing, access is denied, it loops, it leads through a file,
/// or it leaves the granted directories.
pub fn is_unreachable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EACCES | libc::ELOOP | libc::ENOTDIR))
        || super::reach::is_outside(error)
}

/// Whether a file has no text because of its type, for example a directory.
pub fn is_no_text(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EINVAL | libc::ENXIO | libc::EPERM))
}

/// There can be no second name: another file system, too many names, or not allowed to this user.
pub fn cannot_link(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EXDEV | libc::EMLINK | libc::EPERM))
}

/// A directory cannot be listed because it was opened to be searched only, or its owner forbids it.
pub fn may_not_be_listed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EBADF))
}

/// A symlink on the way leads out of the tree, or there are too many of them.
pub fn leads_outside(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

/// What was opened as a directory, through no symlink, is one or lies behind one; or it is no directory.
pub fn may_be_a_symlink(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR))
}

/// "Too many levels of symbolic links", said by us of something below a link that leads outside.
pub fn outside() -> io::Error {
    io::Error::from_raw_os_error(libc::ELOOP)
}

/// Copies an error by its number.
pub fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// "Permission denied", said by us of something that was found closed before.
pub fn denied() -> io::Error {
    io::Error::from_raw_os_error(libc::EACCES)
}

/// "Not a directory", said by us of something that was looked at.
pub fn not_a_directory() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTDIR)
}

/// "File exists", said by us of something that was looked at.
pub fn exists() -> io::Error {
    io::Error::from_raw_os_error(libc::EEXIST)
}

/// "Invalid argument", said by us of a path that may not climb.
pub fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}
