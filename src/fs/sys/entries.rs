//! Creates, renames and removes entries of directories.

use super::{Call, attempt, may_write, spot};
use crate::fs::sandbox::{self};
use rustix::fd::BorrowedFd;
use rustix::fs::{self, AtFlags, Mode};
use rustix::io::Errno;
use std::io;

/// Creates a hard link to an entry. Links a symlink itself, not its target.
pub fn link(from: BorrowedFd<'_>, old: &[u8], to: BorrowedFd<'_>, new: &[u8]) -> io::Result<()> {
    super::note_names([(to, new)]);
    attempt(Call::Link, || {
        may_write()?;
        let old = spot(from, old)?;
        let new = spot(to, new)?;
        Ok(fs::linkat(
            old.dir(),
            &*old.name,
            new.dir(),
            &*new.name,
            AtFlags::empty(),
        )?)
    })
}

/// Moves an entry, replacing an existing entry of the new name.
pub fn rename(from: BorrowedFd<'_>, old: &[u8], to: BorrowedFd<'_>, new: &[u8]) -> io::Result<()> {
    super::note_names([(from, old), (to, new)]);
    attempt(Call::Rename, || {
        may_write()?;
        let old = spot(from, old)?;
        let new = spot(to, new)?;
        Ok(fs::renameat(old.dir(), &*old.name, new.dir(), &*new.name)?)
    })
}

/// Like [`rename`], but fails with [`io::ErrorKind::AlreadyExists`] if the new name exists.
pub fn rename_new(
    from: BorrowedFd<'_>,
    old: &[u8],
    to: BorrowedFd<'_>,
    new: &[u8],
) -> io::Result<()> {
    super::note_names([(from, old), (to, new)]);
    attempt(Call::Rename, || {
        may_write()?;
        let old = spot(from, old)?;
        let new = spot(to, new)?;
        Ok(fs::renameat_with(
            old.dir(),
            &*old.name,
            new.dir(),
            &*new.name,
            fs::RenameFlags::NOREPLACE,
        )?)
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

/// Returns the number of a device, as `Stat::rdev` holds it.
pub fn device_number(major: u32, minor: u32) -> u64 {
    fs::makedev(major, minor)
}

/// Returns the major and the minor number of a device.
pub fn device_parts(rdev: u64) -> (u32, u32) {
    (fs::major(rdev), fs::minor(rdev))
}

/// Creates a device, fifo or socket. `mode` includes the type bits. Some confined processes may not create devices.
pub fn mknod(dir: BorrowedFd<'_>, name: &[u8], mode: u32, rdev: u64) -> io::Result<()> {
    attempt(Call::MkNod, || {
        may_write()?;
        let is_device = matches!(
            fs::FileType::from_raw_mode(mode),
            fs::FileType::CharacterDevice | fs::FileType::BlockDevice
        );
        if is_device && sandbox::of_process().is_some_and(|reach| !reach.may_make_devices()) {
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
