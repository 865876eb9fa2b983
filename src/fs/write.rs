//! How a file comes under its final name, whole or not at all.
//!
//! A file that is new there is written without a name and linked when it is finished: whatever kills
//! the process, nothing is left. Where there is a file already, or no such unnamed files, it is written
//! as `.name.XXXXXX` and renamed. Those names carry a mark and are locked while in use, so that the
//! next run can tell what a crash left behind ([`is_stale`]) from another program's work.

use super::root::Dir;
use super::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest name a directory holds.
const NAME_MAX: usize = 255;
/// Letters behind the last dot of a temp name.
const SUFFIX_LEN: usize = 6;
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Set when the destination turned out to have no unnamed files.
static NO_TMPFILE: AtomicBool = AtomicBool::new(false);

/// A file being written, not yet under its final name. Dropped unfinished, it leaves nothing.
pub struct Pending {
    fd: OwnedFd,
    dir: Dir,
    /// `None` while it has no name at all.
    temp_name: Option<Vec<u8>>,
    finished: bool,
}

impl Pending {
    /// Begins a file that will be `name` in `dir`. `replaces`: something has that name now.
    /// `staging`: the directory for the temp name, if not `dir` (`--temp-dir`).
    pub fn begin(dir: &Dir, name: &[u8], mode: u32, replaces: bool, staging: Option<&Dir>) -> io::Result<Pending> {
        if !replaces && staging.is_none() && !NO_TMPFILE.load(Ordering::Relaxed) {
            match sys::tmpfile(dir.fd(), mode) {
                Ok(fd) => return Ok(Pending { fd, dir: dir.clone(), temp_name: None, finished: false }),
                Err(error) if lacks_tmpfile(&error) => NO_TMPFILE.store(true, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        let dir = staging.unwrap_or(dir);
        loop {
            let temp_name = temp_name(name);
            match sys::create(dir.fd(), &temp_name, mode & 0o700) {
                Ok(fd) => {
                    // Held until the descriptor closes; a file system without locks is no reason to fail.
                    let _ = sys::try_lock(fd.as_fd());
                    return Ok(Pending { fd, dir: dir.clone(), temp_name: Some(temp_name), finished: false });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
        }
    }

    /// The open file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether its mode is already the one given to [`Pending::begin`], with all its bits.
    pub fn has_its_mode(&self) -> bool {
        self.temp_name.is_none()
    }

    /// The name that messages give it.
    pub fn temp_name<'a>(&'a self, final_name: &'a [u8]) -> &'a [u8] {
        self.temp_name.as_deref().unwrap_or(final_name)
    }

    /// Puts it under its final name, in one step for whoever looks.
    pub fn place(mut self, dir: &Dir, name: &[u8]) -> io::Result<()> {
        if self.temp_name.is_none() {
            match sys::link_tmpfile(self.fd(), dir.fd(), name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.take_a_name(name)?,
                other => {
                    self.finished = other.is_ok();
                    return other;
                }
            }
        }
        let temp_name = self.temp_name.as_deref().expect("named above");
        sys::rename(self.dir.fd(), temp_name, dir.fd(), name)?;
        self.finished = true;
        Ok(())
    }

    /// Gives an unnamed file a temp name, for what needs one: a backup that must move away first, or a
    /// name that was taken meanwhile.
    fn take_a_name(&mut self, name: &[u8]) -> io::Result<()> {
        loop {
            let temp_name = temp_name(name);
            match sys::link_tmpfile(self.fd(), self.dir.fd(), &temp_name) {
                Ok(()) => {
                    self.temp_name = Some(temp_name);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let (false, Some(name)) = (self.finished, &self.temp_name) {
            let _ = sys::unlink(self.dir.fd(), name);
        }
    }
}

fn lacks_tmpfile(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOSYS | libc::ENOENT))
}

/// A new temp name for `name`: `.name.XXXXXX`, the name cut where it would grow too long. The last two
/// letters are a check on the others, so that only our own are ever taken for ours.
pub fn temp_name(name: &[u8]) -> Vec<u8> {
    let keep = name.len().min(NAME_MAX - SUFFIX_LEN - 2);
    let mut out = Vec::with_capacity(keep + SUFFIX_LEN + 2);
    out.push(b'.');
    out.extend_from_slice(&name[..keep]);
    out.push(b'.');
    for _ in 0..SUFFIX_LEN - 2 {
        out.push(LETTERS[fastrand::usize(..LETTERS.len())]);
    }
    let check = check_letters(&out);
    out.extend_from_slice(&check);
    out
}

/// What `.name.XXXX` must end in.
fn check_letters(start: &[u8]) -> [u8; 2] {
    // FNV-1a: any stable mixing will do.
    let hash =
        start.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let pick = |n: u64| LETTERS[(n % LETTERS.len() as u64) as usize];
    [pick(hash >> 40), pick(hash >> 20)]
}

/// Whether a name is one that [`temp_name`] makes; no file is looked at.
pub fn is_temp_name(name: &[u8]) -> bool {
    if name.len() < SUFFIX_LEN + 3 || name[0] != b'.' || name[name.len() - SUFFIX_LEN - 1] != b'.' {
        return false;
    }
    name[name.len() - 2..] == check_letters(&name[..name.len() - 2])
}

/// Whether a file with such a name was left behind: nobody holds its lock.
pub fn is_stale(dir: &Dir, name: &[u8]) -> bool {
    is_temp_name(name)
        && sys::open_read(dir.fd(), name, false, false).and_then(|fd| sys::try_lock(fd.as_fd())).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn open(path: &std::path::Path) -> Dir {
        Dir::new(sys::open_dir_path(path.as_os_str().as_bytes()).unwrap())
    }

    #[test]
    fn only_our_temp_names_are_ours() {
        for name in [&b"a"[..], b".hidden", &[b'n'; 255], "ü.txt".as_bytes()] {
            let temp = temp_name(name);
            assert!(temp.len() <= NAME_MAX && is_temp_name(&temp));
            let mut other = temp.clone();
            *other.last_mut().unwrap() ^= 1;
            assert!(!is_temp_name(&other));
        }
        assert!(!is_temp_name(b".bashrc.backup") && !is_temp_name(b".a.XXXXXX") && !is_temp_name(b"."));
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        for replaces in [false, true] {
            drop(Pending::begin(&dir, b"f", 0o644, replaces, None).unwrap());
            assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_file_is_placed_over_an_old_one_or_a_sudden_one() {
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

    #[test]
    fn a_temp_file_in_use_is_not_stale() {
        let top = tempfile::tempdir().unwrap();
        let dir = open(top.path());
        let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
        let name = pending.temp_name(b"f").to_vec();
        assert!(!is_stale(&dir, &name));
        std::mem::forget(sys::create(dir.fd(), b"other", 0o600));
        drop(pending);
        std::fs::write(top.path().join(std::ffi::OsStr::from_bytes(&name)), "").unwrap();
        assert!(is_stale(&dir, &name));
    }
}
