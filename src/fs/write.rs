//! Writes files so that they appear under their final name either complete or not at all.
//!
//! A new file is written without a name and linked when it is complete, so a killed process leaves nothing behind. If a
//! file of that name exists, if unnamed files or links are not supported or refused, or if the next run should continue with
//! the partial file ([`open_left_over`](super::leftover::open_left_over)), the file is written as `.name.XXXXXX` and renamed.
//! It is locked meanwhile, so that other runs do not take it for a leftover.

#[cfg(test)]
mod tests;

use super::copy::{Copier, CopyError, CopyMethod, UnsupportedCalls};
use super::leftover::{remove_stale_before, remove_stale_unseen, remove_unseen};
use super::probe::space;
use super::replace::{put_over, with_temp_name};
use super::root::Dir;
use super::unnamed_file::{gets_no_name, lacks_tmpfile};
use super::{errno, sys};
use crate::flist::Time;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set if the destination does not support unnamed files, or if they get no name there.
static NO_TMPFILE: AtomicBool = AtomicBool::new(false);

/// A file that is being written and does not have its final name yet. Dropping it unfinished removes it.
pub struct Pending {
    fd: OwnedFd,
    dir: Dir,
    /// `None` while it has no name.
    temp_name: Option<Vec<u8>>,
    /// Whether that name is the final one (`--inplace`).
    in_place: bool,
    finished: bool,
}

impl Pending {
    /// Begins a file that will become `name` in `dir`. `is_named`: use a temp name, because the name exists or a
    /// leftover of a crash should be found. `staging`: the directory for the temp name, if not `dir` (`--temp-dir`).
    pub fn begin(
        dir: &Dir,
        name: &[u8],
        mode: u32,
        is_named: bool,
        staging: Option<&Dir>,
    ) -> io::Result<Pending> {
        if !is_named && staging.is_none() && !NO_TMPFILE.load(Ordering::Relaxed) {
            match sys::tmpfile(dir.fd(), mode) {
                Ok(fd) => {
                    return Ok(Pending {
                        fd,
                        dir: dir.clone(),
                        temp_name: None,
                        in_place: false,
                        finished: false,
                    });
                }
                Err(error) if lacks_tmpfile(&error) => NO_TMPFILE.store(true, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        let dir = staging.unwrap_or(dir);
        loop {
            let (fd, temp_name) =
                with_temp_name(dir, name, |temp| sys::create(dir.fd(), temp, mode & 0o700))?;
            if is_own(&fd)? {
                let temp_name = Some(temp_name);
                return Ok(Pending {
                    fd,
                    dir: dir.clone(),
                    temp_name,
                    in_place: false,
                    finished: false,
                });
            }
        }
    }

    /// Begins a file under its final name, which must be free. Other processes see the file grow.
    pub fn begin_in_place(dir: &Dir, name: &[u8], mode: u32) -> io::Result<Pending> {
        let fd = sys::create(dir.fd(), name, mode & 0o700)?;
        Ok(Pending {
            fd,
            dir: dir.clone(),
            temp_name: Some(name.to_vec()),
            in_place: true,
            finished: false,
        })
    }

    /// Returns the open file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns whether it has a name, be it a temp name or its own.
    pub fn has_name(&self) -> bool {
        self.temp_name.is_some()
    }

    /// Returns whether it was begun under its final name.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Returns whether it already has the complete mode that was passed to [`Pending::begin`].
    pub fn has_its_mode(&self) -> bool {
        self.temp_name.is_none()
    }

    /// Returns when it was created, if the file system records that; see [`is_superseded`].
    pub fn birth(&self) -> Option<Time> {
        sys::birth(self.fd()).ok().flatten()
    }

    /// Leaves the partial content of `name` under its temp name, so that the next run finds it as if this process had
    /// been killed. Removes it instead if it [`is_superseded`].
    ///
    /// Unlocks the file before checking that. A run that completes the file checks afterwards for other unlocked temp
    /// names of it. So one of the two removes this file, in whichever order they run.
    pub fn leave(mut self, dir: &Dir, name: &[u8]) {
        let Some(temp_name) = self.temp_name.clone() else {
            return;
        };
        self.finished = true;
        // If this fails, the file is unlocked when it is closed, below.
        let _ = sys::unlock(self.fd());
        if is_superseded(self.birth(), dir, name) {
            remove_stale_unseen(&self.dir, &temp_name);
        }
    }

    /// Removes it and restores the time of its directory, which the next run may have set already.
    pub fn discard(mut self) {
        if !self.in_place
            && let Some(temp_name) = &self.temp_name
        {
            remove_unseen(&self.dir, || drop(sys::unlink(self.dir.fd(), temp_name)));
            self.finished = true;
        }
    }

    /// Like [`Pending::place`], for a name that did not exist when this file was begun. If another run has created it since,
    /// discards this one.
    pub fn place_new(mut self, dir: &Dir, name: &[u8]) -> io::Result<()> {
        let placed = match &self.temp_name {
            Some(temp_name) => rename_new(&self.dir, temp_name, dir, name),
            None => sys::link_tmpfile(self.fd(), dir.fd(), name),
        };
        match placed {
            Ok(()) => self.finished = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.discard(),
            Err(error) if !self.has_name() && gets_no_name(&error) => {
                return self.named_copy(dir, name)?.place_new(dir, name);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives it its final name atomically, unless it was begun under that name.
    pub fn place(mut self, dir: &Dir, name: &[u8]) -> io::Result<()> {
        match &self.temp_name {
            Some(_) if self.in_place => {}
            Some(temp_name) => match sys::rename(self.dir.fd(), temp_name, dir.fd(), name) {
                // The directory of partial files can be in another file system.
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    return self.copy_to(dir, name)?.rename(dir, name);
                }
                renamed => {
                    renamed?;
                    remove_stale_before(&self.dir, name, temp_name);
                }
            },
            None => match self.place_unnamed(dir, name) {
                Err(error) if gets_no_name(&error) => {
                    return self.named_copy(dir, name)?.place(dir, name);
                }
                other => other?,
            },
        }
        self.finished = true;
        Ok(())
    }

    /// Gives a file of another file system its final name where there may be no room for the old and the new content.
    ///
    /// If a copy does not fit beside the old file, that is removed first: as in rsync, the name is missing until the
    /// copy is complete. The old file stays if the copy would not fit without it either. If it does not fit although it
    /// should, the complete file stays under its temp name, because it is the only one then.
    pub fn place_without_room(mut self, dir: &Dir, name: &[u8]) -> io::Result<()> {
        let full = match self.copy_to(dir, name) {
            Ok(copy) => return copy.rename(dir, name),
            Err(error) if is_full(&error) => error,
            Err(error) => return Err(error),
        };
        let Ok(old) = sys::stat(dir.fd(), name, false) else {
            // It has become a backup, which keeps its space.
            return Err(full);
        };
        let freed_bytes = if old.nlink == 1 { old.len_bytes } else { 0 };
        let free_bytes = space(dir.fd())?.free_bytes;
        if free_bytes.saturating_add(freed_bytes) < sys::fstat(self.fd())?.len_bytes {
            return Err(full);
        }
        sys::unlink(dir.fd(), name)?;
        let moved = self
            .copy_to(dir, name)
            .and_then(|copy| copy.rename(dir, name));
        self.finished = moved.is_err();
        moved
    }

    /// Copies a complete file to a temp name in the directory of its final name.
    fn copy_to(&self, dir: &Dir, name: &[u8]) -> io::Result<Pending> {
        let copy = Pending::begin(dir, name, 0o600, true, None)?;
        copy_file(self.fd(), copy.fd())?;
        Ok(copy)
    }

    /// Renames a file that has a temp name in the same directory.
    fn rename(mut self, dir: &Dir, name: &[u8]) -> io::Result<()> {
        if let Some(temp_name) = &self.temp_name {
            sys::rename(self.dir.fd(), temp_name, dir.fd(), name)?;
        }
        self.finished = true;
        Ok(())
    }

    fn place_unnamed(&self, dir: &Dir, name: &[u8]) -> io::Result<()> {
        match sys::link_tmpfile(self.fd(), dir.fd(), name) {
            // Another process has created the name in the meantime.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                put_over(dir, name, |temp| {
                    sys::link_tmpfile(self.fd(), dir.fd(), temp)
                })
            }
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                self.place_chowned(dir, name, error)
            }
            other => other,
        }
    }

    /// Copies a complete file without a name to one with a temp name, because links are refused here. It happens to
    /// the files that are being written when the first of them is refused: later ones have names from the start.
    fn named_copy(&self, dir: &Dir, name: &[u8]) -> io::Result<Pending> {
        NO_TMPFILE.store(true, Ordering::Relaxed);
        self.copy_to(dir, name)
    }

    /// Places a file whose owner was changed to another user. For a process without further privileges than changing
    /// owners, the kernel links only its own files (fs.protected_hardlinks). `refused` is the error of the first
    /// attempt.
    fn place_chowned(&self, dir: &Dir, name: &[u8], refused: io::Error) -> io::Result<()> {
        let (own, _) = sys::ids();
        let owner = sys::fstat(self.fd())?.uid;
        if owner == own {
            return Err(refused);
        }
        put_over(dir, name, |temp| {
            sys::chown(self.fd(), b"", Some(own), None)?;
            let linked = sys::link_tmpfile(self.fd(), dir.fd(), temp);
            let returned = sys::chown(self.fd(), b"", Some(owner), None);
            if linked.is_ok() && returned.is_err() {
                // The error of `chown` is reported.
                let _ = sys::unlink(dir.fd(), temp);
            }
            linked.and(returned)
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.finished
            && let Some(name) = &self.temp_name
        {
            // What stays is removed by a later run, as after a crash, and by this one if it writes the file again. It has
            // no other name that could be wrong.
            let _ = sys::unlink(self.dir.fd(), name);
        }
    }
}

/// Returns whether `name` was created or replaced after a file for it was begun. Then another run was faster, and the
/// partial file is of no use. If the time of birth is unknown, an existing name counts as replaced.
pub fn is_superseded(born: Option<Time>, dir: &Dir, name: &[u8]) -> bool {
    match sys::changed(dir.fd(), name) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(changed) => born.is_none_or(|born| changed >= born),
    }
}

/// Locks a new temp file until its descriptor is closed. Returns `false` if another run takes it for a leftover: that
/// run has locked it, and may be about to remove it, or it has removed it already.
fn is_own(fd: &OwnedFd) -> io::Result<bool> {
    // If the file system has no locks, no run recognizes leftovers.
    let is_locked = sys::try_lock(fd.as_fd()).unwrap_or(true);
    Ok(is_locked && sys::fstat(fd.as_fd())?.nlink > 0)
}

/// Returns whether a file system, or the quota of the user, has no room left.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Renames a file to a name that must be free. Where the kernel cannot check that in the same step, another run could
/// take the name just after the check.
fn rename_new(from: &Dir, old: &[u8], to: &Dir, new: &[u8]) -> io::Result<()> {
    match sys::rename_new(from.fd(), old, to.fd(), new) {
        Err(error) if errno::is_call_refused(&error) => {
            if errno::if_there(sys::stat(to.fd(), new, false))?.is_some() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            sys::rename(from.fd(), old, to.fd(), new)
        }
        renamed => renamed,
    }
}

/// Copies content and attributes of a file to a new one of the same user.
fn copy_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let stat = sys::fstat(from)?;
    let how = CopyMethod {
        len_bytes: stat.len_bytes,
        sparse: true,
        by_hand: false,
        start_bytes: 0,
        from_device: false,
        fresh: true,
    };
    let unsupported_calls = UnsupportedCalls::default();
    let mut step = |_| true;
    Copier::new(Vec::new(), &unsupported_calls, &mut step)
        .copy(from, to, how)
        .map_err(CopyError::into_io)?;
    let made = sys::fstat(to)?;
    if (made.uid, made.gid) != (stat.uid, stat.gid) {
        sys::chown(to, b"", Some(stat.uid), Some(stat.gid))?;
    }
    let names = sys::flistxattr(from)?.unwrap_or_default();
    for name in names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let value = sys::fgetxattr(from, name)?;
        // The system gives new files some attributes itself, which not every user may set.
        if value != sys::fgetxattr(to, name)? {
            sys::fsetxattr(to, name, &value.unwrap_or_default())?;
        }
    }
    sys::fchmod(to, stat.mode)?;
    sys::utimes(to, b"", Some(stat.atime), Some(stat.mtime))
}
