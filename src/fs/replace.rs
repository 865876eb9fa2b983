//! Creates entries under a temp name, and renames them to their final name, where they replace what has it.

use super::leftover::{Leftover, remove_stale};
use super::root::Dir;
use super::sys;
use super::temp_name::{LETTERS, nth_temp_name};
use std::io;

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

/// Calls `make` with the temp names of `name` in turn until one is free. Removes leftovers.
pub(super) fn with_temp_name<T>(
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
