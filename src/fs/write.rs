//! Writes files so that they appear under their final name either complete or not at all.
//!
//! A new file is written without a name and linked when it is complete, so a killed process leaves nothing behind. If a
//! file of that name exists, if unnamed files or links are not supported or refused, or if the next run should continue with
//! the partial file ([`open_left_over`]), the file is written as `.name.XXXXXX` and renamed.
//!
//! Five of those letters are a checksum of the rest of the name, and the file is locked while it is written. So the
//! next run can distinguish what a crash left ([`leftover`]) from another program's files. It removes leftovers when it
//! writes the same name, because the first temp name of a name is always the same, or when the generator enters the directory.

use super::copy::{Copier, CopyError, CopyMethod, UnsupportedCalls};
use super::probe::space;
use super::root::Dir;
use super::{errno, sys};
use crate::flist::{Kind, Time};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest file name.
const NAME_MAX: usize = 255;
/// Number of letters after the last dot of a temp name: one for the attempt, the others for the checksum.
const SUFFIX_LEN: usize = 6;
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

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

    /// Like [`Pending::place`], but discards the file if it [`is_superseded`]. `is_new`: the name did not exist when
    /// this file was begun.
    pub fn place_unless_superseded(
        mut self,
        dir: &Dir,
        name: &[u8],
        is_new: bool,
    ) -> io::Result<()> {
        let placed = match &self.temp_name {
            _ if self.in_place => return self.place(dir, name),
            _ if !is_new && !is_superseded(self.birth(), dir, name) => {
                return self.place(dir, name);
            }
            _ if !is_new => Err(io::ErrorKind::AlreadyExists.into()),
            Some(temp_name) => rename_new(&self.dir, temp_name, dir, name),
            None => sys::link_tmpfile(self.fd(), dir.fd(), name),
        };
        match placed {
            Ok(()) => self.finished = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.discard(),
            Err(error) if !self.has_name() && gets_no_name(&error) => {
                return self
                    .named_copy(dir, name)?
                    .place_unless_superseded(dir, name, is_new);
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
            // What stays is removed by a later run, as after a crash.
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

/// Removes something and restores the modification time of the directory.
pub fn remove_unseen(dir: &Dir, remove: impl FnOnce()) {
    let before = sys::fstat(dir.fd()).ok();
    remove();
    // The entry is gone either way; only the time of its directory changes.
    let _ = before.map(|stat| sys::utimes(dir.fd(), b"", None, Some(stat.mtime)));
}

/// Removes the temp names of `name` that precede the used one. They were locked when it was chosen, but their run may
/// have ended since.
fn remove_stale_before(dir: &Dir, name: &[u8], used: &[u8]) {
    let earlier = (0..LETTERS.len())
        .map(|attempt| nth_temp_name(name, attempt))
        .take_while(|temp| temp != used);
    for temp in earlier {
        remove_stale(dir, &temp);
    }
}

/// Locks a new temp file until its descriptor is closed. Returns `false` if another run takes it for a leftover: that
/// run has locked it, and may be about to remove it, or it has removed it already.
fn is_own(fd: &OwnedFd) -> io::Result<bool> {
    // If the file system has no locks, no run recognizes leftovers.
    let is_locked = sys::try_lock(fd.as_fd()).unwrap_or(true);
    Ok(is_locked && sys::fstat(fd.as_fd())?.nlink > 0)
}

/// Returns whether creating a file without a name failed because the file system cannot do that, or a security profile
/// refuses it.
fn lacks_tmpfile(error: &io::Error) -> bool {
    errno::is_call_refused(error)
        || matches!(error.raw_os_error(), Some(libc::EISDIR | libc::ENOENT))
}

/// Returns whether a file without a name cannot get one here: links are refused, or there is no `/proc`, through which
/// older kernels make them. AppArmor refuses links with EACCES, Landlock with EXDEV.
fn gets_no_name(error: &io::Error) -> bool {
    errno::is_call_refused(error)
        || matches!(
            error.raw_os_error(),
            Some(libc::EACCES | libc::EXDEV | libc::EMLINK | libc::ENOENT)
        )
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

/// Creates an entry under a temp name in `dir` with `make`, and renames it to `name` atomically, replacing an existing
/// entry. May call `make` several times.
pub fn put_over(
    dir: &Dir,
    name: &[u8],
    make: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    put_over_by(dir, name, make).map(|_| ())
}

/// Creates a hard link to an entry, and replaces whatever has the new name.
pub fn link(from: &Dir, old: &[u8], to: &Dir, new: &[u8], replaces: bool) -> io::Result<()> {
    if !replaces {
        match sys::link(from.fd(), old, to.fd(), new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
    link_over(from, old, to, new)
}

/// Creates a hard link to an entry, replacing an existing entry of the new name.
pub fn link_over(from: &Dir, old: &[u8], to: &Dir, new: &[u8]) -> io::Result<()> {
    let temp = put_over_by(to, new, |temp| sys::link(from.fd(), old, to.fd(), temp))?;
    // If both were names of the same file, the kernel has renamed nothing and the temp name still exists.
    match sys::unlink(to.fd(), &temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How often an entry is created again because another run in the same directory removed it as a leftover between
/// creation and rename, which directly follow each other.
const MADE_ANEW_MAX: usize = 16;

/// See [`put_over`]. Returns the temp name.
fn put_over_by(
    dir: &Dir,
    name: &[u8],
    mut make: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let mut made = 0;
    loop {
        let ((), temp) = with_temp_name(dir, name, &mut make)?;
        made += 1;
        match sys::rename(dir.fd(), &temp, dir.fd(), name) {
            Ok(()) => return Ok(temp),
            Err(error) if error.kind() == io::ErrorKind::NotFound && made < MADE_ANEW_MAX => {}
            Err(error) => {
                // The error of the rename is reported.
                let _ = sys::unlink(dir.fd(), &temp);
                return Err(error);
            }
        }
    }
}

/// Creates a file that disappears with its descriptor, and returns whether it never had a name. Where it needs one, that
/// is a temp name of `name`.
pub fn create_unnamed(dir: &Dir, name: &[u8]) -> io::Result<(OwnedFd, bool)> {
    match sys::tmpfile(dir.fd(), 0o600) {
        Err(error) if lacks_tmpfile(&error) => Ok((create_and_unlink(dir, name)?, false)),
        created => Ok((created?, true)),
    }
}

/// Creates a file under a temp name of `name` that is removed at once. If the process is killed in between, the next call
/// removes it, and so does a copy into the directory.
fn create_and_unlink(dir: &Dir, name: &[u8]) -> io::Result<OwnedFd> {
    let mut created = Err(io::ErrorKind::NotFound.into());
    remove_unseen(dir, || {
        created = with_temp_name(dir, name, |temp| sys::create(dir.fd(), temp, 0o600)).and_then(
            |(file, temp)| {
                // Another process may have taken it for a leftover.
                errno::if_there(sys::unlink(dir.fd(), &temp))?;
                Ok(file)
            },
        );
    });
    created
}

/// Calls `make` with the temp names of `name` in turn until one is free. Removes leftovers.
fn with_temp_name<T>(
    dir: &Dir,
    name: &[u8],
    mut make: impl FnMut(&[u8]) -> io::Result<T>,
) -> io::Result<(T, Vec<u8>)> {
    let mut attempt = 0;
    loop {
        let temp = nth_temp_name(name, attempt);
        match make(&temp) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && attempt + 1 < LETTERS.len() =>
            {
                attempt += usize::from(remove_stale(dir, &temp) != Leftover::Stale);
            }
            other => return other.map(|made| (made, temp)),
        }
    }
}

/// Returns the first temp name for `name`, for messages.
pub fn temp_name(name: &[u8]) -> Vec<u8> {
    nth_temp_name(name, 0)
}

/// Returns the temp name for `name` that is used last: no file that is being written has it, and none that is placed removes
/// it.
pub fn last_temp_name(name: &[u8]) -> Vec<u8> {
    nth_temp_name(name, LETTERS.len() - 1)
}

/// Returns a temp name for `name`, `.name.XXXXXX`. Truncates the name if it would become too long.
fn nth_temp_name(name: &[u8], attempt: usize) -> Vec<u8> {
    let keep = name.len().min(NAME_MAX - SUFFIX_LEN - 2);
    let mut out = Vec::with_capacity(keep + SUFFIX_LEN + 2);
    out.push(b'.');
    out.extend_from_slice(&name[..keep]);
    out.push(b'.');
    out.push(LETTERS[attempt]);
    let check = check_letters(&out);
    out.extend_from_slice(&check);
    out
}

/// Returns the required end of `.name.X`. Names of other programs match once in 900 million.
fn check_letters(start: &[u8]) -> [u8; SUFFIX_LEN - 1] {
    // FNV-1a. Any stable hash is sufficient, but it must not change, or leftovers are no longer recognized.
    let mut hash = start.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^= hash >> 32;
    std::array::from_fn(|_| {
        let letter = LETTERS[(hash % LETTERS.len() as u64) as usize];
        hash /= LETTERS.len() as u64;
        letter
    })
}

/// Returns whether a name is one of our temp names. Does not access the file.
pub fn is_temp_name(name: &[u8]) -> bool {
    if name.len() < SUFFIX_LEN + 3 || name[0] != b'.' || name[name.len() - SUFFIX_LEN - 1] != b'.' {
        return false;
    }
    let (start, check) = name.split_at(name.len() - (SUFFIX_LEN - 1));
    check == check_letters(start)
}

/// Returns the name, possibly truncated, whose first temp name this is; `None` for other names.
pub fn name_of_temp(temp: &[u8]) -> Option<&[u8]> {
    let name = temp.get(1..temp.len().checked_sub(SUFFIX_LEN + 1)?)?;
    if temp_name(name) == temp {
        Some(name)
    } else {
        None
    }
}

/// Opens the leftover of a file that was to become `name`; `None` if there is none or it is being written.
pub fn open_left_over(dir: &Dir, name: &[u8]) -> Option<OwnedFd> {
    let temp = temp_name(name);
    (leftover(dir, &temp) == Leftover::Stale)
        .then(|| sys::open_read(dir.fd(), &temp, false, false).ok())?
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    fn open(path: &std::path::Path) -> Dir {
        Dir::new(sys::open_dir_path(path.as_os_str().as_bytes()).unwrap())
    }

    #[test]
    fn chowned_unnamed_file_is_placed_without_link_permission() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        use std::os::unix::fs::MetadataExt;
        // Affects only this thread.
        let mut held = capabilities(None).unwrap();
        if sys::ids().0 != 0 || !held.effective.contains(CapabilitySet::CHOWN) {
            return;
        }
        held.effective = CapabilitySet::CHOWN;
        let scratch = tempfile::tempdir().unwrap();
        let dir = open(scratch.path());
        let pending = Pending::begin(&dir, b"f", 0o600, false, None).unwrap();
        if pending.has_name() {
            return;
        }
        set_capabilities(None, held).unwrap();
        sys::chown(pending.fd(), b"", Some(7), Some(8)).unwrap();
        pending.place(&dir, b"f").unwrap();
        let names: Vec<_> = std::fs::read_dir(scratch.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        let meta = std::fs::metadata(scratch.path().join("f")).unwrap();
        assert_eq!((names, meta.uid(), meta.gid()), (vec!["f".into()], 7, 8));
    }

    #[test]
    fn temp_names_are_recognized_by_their_checksum() {
        for name in [&b"a"[..], b".hidden", &[b'n'; 255], "ü.txt".as_bytes()] {
            let temp = temp_name(name);
            assert!(temp.len() <= NAME_MAX && is_temp_name(&temp));
            let mut other = temp.clone();
            *other.last_mut().unwrap() ^= 1;
            assert!(!is_temp_name(&other));
        }
        assert_eq!(
            name_of_temp(&temp_name(b"some.name")),
            Some(&b"some.name"[..])
        );
        assert_eq!(
            name_of_temp(&temp_name(&[b'n'; 255])),
            Some(&[b'n'; NAME_MAX - SUFFIX_LEN - 2][..])
        );
        assert_eq!(name_of_temp(b".a.XXXXXX"), None);
        assert_eq!(
            (name_of_temp(b""), name_of_temp(&nth_temp_name(b"a", 1))),
            (None, None)
        );
        assert_eq!(
            temp_name(b"a"),
            b".a.Auwq2e",
            "names written by earlier versions must be recognized"
        );
        assert!(
            !is_temp_name(b".bashrc.backup") && !is_temp_name(b".a.XXXXXX") && !is_temp_name(b".")
        );
    }

    #[test]
    fn stale_temp_file_is_replaced() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        let temp = std::ffi::OsString::from_vec(temp_name(b"f"));
        let names_in_dir = || {
            std::fs::read_dir(top.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
        };
        std::fs::write(top.path().join(&temp), "half").unwrap();
        let pending = Pending::begin(&dir, b"f", 0o644, true, None).unwrap();
        assert_eq!(
            names_in_dir().collect::<Vec<_>>(),
            std::slice::from_ref(&temp)
        );
        let other = Pending::begin(&dir, b"f", 0o644, true, None).unwrap();
        assert_eq!(names_in_dir().count(), 2, "a locked temporary file is kept");
        drop((pending, other));

        std::os::unix::fs::symlink("nowhere", top.path().join(&temp)).unwrap();
        put_over(&dir, b"f", |temp| sys::symlink(b"x", dir.fd(), temp)).unwrap();
        link_over(&dir, b"f", &dir, b"g").unwrap();
        link_over(&dir, b"f", &dir, b"g").unwrap();
        let mut names: Vec<_> = names_in_dir().collect();
        names.sort();
        assert_eq!(names, ["f", "g"]);
    }

    #[test]
    fn dropped_pending_file_leaves_nothing() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        for replaces in [false, true] {
            drop(Pending::begin(&dir, b"f", 0o644, replaces, None).unwrap());
            assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn place_replaces_an_existing_file() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        for replaces in [false, true] {
            let pending = Pending::begin(&dir, b"f", 0o644, replaces, None).unwrap();
            sys::write_all(pending.fd(), b"new").unwrap();
            std::fs::write(top.path().join("f"), "old").unwrap();
            pending.place(&dir, b"f").unwrap();
            assert_eq!(std::fs::read(top.path().join("f")).unwrap(), b"new");
            assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 1);
        }
    }

    /// Returns the time of the directory, which removing an entry must not change.
    fn mtime(dir: &Dir) -> Time {
        sys::fstat(dir.fd()).unwrap().mtime
    }

    #[test]
    fn leave_keeps_the_partial_file_unless_superseded() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        let names = || {
            std::fs::read_dir(top.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect::<Vec<_>>()
        };
        let left_over = std::ffi::OsString::from_vec(temp_name(b"f"));
        // The file is not complete: the next run continues with this part.
        let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
        pending.leave(&dir, b"f");
        assert_eq!(names(), std::slice::from_ref(&left_over));
        let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
        std::fs::write(top.path().join("f"), "finished").unwrap();
        let before = Time { secs: 7, nanos: 0 };
        sys::utimes(dir.fd(), b"", None, Some(before)).unwrap();
        pending.leave(&dir, b"f");
        assert_eq!((names(), mtime(&dir)), (vec!["f".into()], before));
    }

    #[test]
    fn partial_file_never_replaces_a_newer_file() {
        for (is_new, is_named) in [(true, true), (true, false), (false, true)] {
            for is_finished in [false, true] {
                let top = tempfile::tempdir().unwrap();
                let dir = open(top.path());
                if !is_new {
                    std::fs::write(top.path().join("f"), "old").unwrap();
                    // The clock of file times advances in steps.
                    while sys::birth(Pending::begin(&dir, b"x", 0o600, true, None).unwrap().fd())
                        .unwrap()
                        <= sys::changed(dir.fd(), b"f").ok()
                    {
                        std::thread::yield_now();
                    }
                }
                let pending = Pending::begin(&dir, b"f", 0o600, is_named, None).unwrap();
                sys::write_all(pending.fd(), b"part").unwrap();
                if is_finished {
                    std::fs::write(top.path().join("f"), "finished").unwrap();
                }
                pending.place_unless_superseded(&dir, b"f", is_new).unwrap();
                let wanted = if is_finished { "finished" } else { "part" };
                let got = std::fs::read_to_string(top.path().join("f")).unwrap();
                assert_eq!(
                    (got.as_str(), std::fs::read_dir(top.path()).unwrap().count()),
                    (wanted, 1)
                );
            }
        }
    }

    #[test]
    fn place_removes_stale_temp_files_of_other_runs() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        let first = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
        let second = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
        // The first run was killed, which releases its lock.
        sys::unlock(first.fd()).unwrap();
        second.place(&dir, b"f").unwrap();
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftover_stays_locked_while_it_is_removed() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
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

    #[test]
    fn temp_file_is_own_only_if_no_other_run_takes_it_for_a_leftover() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        let create = || sys::create(dir.fd(), b"t", 0o600).unwrap();
        let new = create();
        let other = sys::open_read(dir.fd(), b"t", false, false).unwrap();
        assert!(sys::try_lock(other.as_fd()).unwrap() && !is_own(&new).unwrap());
        drop(other);
        assert!(is_own(&new).unwrap());
        sys::unlink(dir.fd(), b"t").unwrap();
        assert!(!is_own(&new).unwrap());
    }

    #[test]
    fn locked_temp_file_is_not_stale() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
        let name = pending.temp_name.clone().unwrap();
        assert_eq!(leftover(&dir, &name), Leftover::InUse);
        drop(pending);
        std::fs::write(top.path().join(std::ffi::OsStr::from_bytes(&name)), "").unwrap();
        assert_eq!(leftover(&dir, &name), Leftover::Stale);
    }
}
