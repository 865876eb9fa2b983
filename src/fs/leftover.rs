//! Files under temp names that a crash left: how they are recognized, continued and removed.
//!
//! A file is locked while it is written. So the next run can distinguish what a crash left ([`leftover`]) from another
//! program's files. It removes leftovers when it writes the same name, because the first temp name of a name is always the
//! same, or when the generator enters the directory.

use super::root::Dir;
use super::sys;
use super::temp_name::{LETTERS, is_temp_name, nth_temp_name, temp_name};
use crate::flist::Kind;
use rustix::fd::{AsFd, OwnedFd};
use std::io;

/// What an entry is, judged by its name and lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// A crash left it.
    Stale,
    /// Another run is writing it, or has just replaced or removed it.
    InUse,
    /// It belongs to another program, or could not be examined or removed.
    Unknown,
}

/// Judges an entry without removing it.
pub fn leftover(dir: &Dir, name: &[u8]) -> Leftover {
    if_stale(dir, name, || Ok(()))
}

/// Removes an entry if a crash left it.
pub fn remove_stale(dir: &Dir, name: &[u8]) -> Leftover {
    if_stale(dir, name, || sys::unlink(dir.fd(), name))
}

/// Like [`remove_stale`], but restores the modification time of the directory.
pub fn remove_stale_unseen(dir: &Dir, name: &[u8]) -> Leftover {
    if_stale(dir, name, || {
        let mut removed = Ok(());
        remove_unseen(dir, || removed = sys::unlink(dir.fd(), name));
        removed
    })
}

/// Calls `act` if an entry is a leftover with a temp name. A file is one if it is not locked. It stays locked during
/// `act`, so that no other run removes it and reuses its name meanwhile. Other entries have a temp name only for the
/// duration of one call, and their creator creates them again.
fn if_stale(dir: &Dir, name: &[u8], act: impl FnOnce() -> io::Result<()>) -> Leftover {
    let acted = |acted: io::Result<()>| acted.map_or(Leftover::Unknown, |()| Leftover::Stale);
    if !is_temp_name(name) {
        return Leftover::Unknown;
    }
    match sys::stat(dir.fd(), name, false).map(|stat| Kind::of_mode(stat.mode)) {
        Ok(Some(Kind::File)) => {}
        Ok(Some(Kind::Dir)) | Err(_) => return Leftover::Unknown,
        Ok(_) => return acted(act()),
    }
    let Ok(fd) = sys::open_read(dir.fd(), name, false, false) else {
        return Leftover::Unknown;
    };
    match sys::try_lock(fd.as_fd()) {
        Ok(true) => {}
        Ok(false) => return Leftover::InUse,
        Err(_) => return Leftover::Unknown,
    }
    let locked = sys::fstat(fd.as_fd());
    let named = sys::stat(dir.fd(), name, false);
    let Ok(locked) = locked else {
        return Leftover::Unknown;
    };
    if named.is_ok_and(|named| (named.dev, named.ino) == (locked.dev, locked.ino)) {
        acted(act())
    } else {
        Leftover::InUse
    }
}

/// Opens the leftover of a file that was to become `name`; `None` if there is none or it is being written.
pub fn open_left_over(dir: &Dir, name: &[u8]) -> Option<OwnedFd> {
    let temp = temp_name(name);
    (leftover(dir, &temp) == Leftover::Stale)
        .then(|| sys::open_read(dir.fd(), &temp, false, false).ok())?
}

/// Removes something and restores the modification time of the directory.
pub fn remove_unseen(dir: &Dir, remove: impl FnOnce()) {
    let before = sys::fstat(dir.fd()).ok();
    remove();
    // The entry is gone either way; only the time of its directory changes.
    let _ = before.map(|stat| sys::utimes(dir.fd(), b"", None, Some(stat.mtime)));
}

/// Removes the temp names of `name` that precede the used one. They were locked when it was chosen, but their run may
/// have ended since.
pub(super) fn remove_stale_before(dir: &Dir, name: &[u8], used: &[u8]) {
    let earlier = (0..LETTERS.len())
        .map(|attempt| nth_temp_name(name, attempt))
        .take_while(|temp| temp != used);
    for temp in earlier {
        remove_stale(dir, &temp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::write::Pending;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn leftover_stays_locked_while_it_is_removed() {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::new(sys::open_dir_path(top.path().as_os_str().as_bytes()).unwrap());
        let temp = temp_name(b"f");
        std::fs::write(top.path().join(std::ffi::OsStr::from_bytes(&temp)), "half").unwrap();
        let mut other = None;
        let found = if_stale(&dir, &temp, || {
            // Another run that wants the same name at this moment must use the next one.
            other = Some(Pending::begin(&dir, b"f", 0o600, true, None)?);
            sys::unlink(dir.fd(), &temp)
        });
        assert_eq!(found, Leftover::Stale);
        other.unwrap().place(&dir, b"f").unwrap();
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 1);
    }
}
