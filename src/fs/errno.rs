//! The system's error numbers by what they mean to us; nobody outside `fs` names one.

use std::io;

/// The file system has no such thing (ACLs, attributes).
pub fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
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
