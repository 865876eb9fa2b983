//! The small files of this module: private, replaced atomically, and changed by one process at a time.

use super::paths::Places;
use super::toml_edit;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::entry::Time;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::report::event::errno_words;
use crate::work::clock::{self, Since};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The maximum length of a file to read.
const FILE_MAX_BYTES: usize = 4 << 20;
/// The lock file of a directory; it is empty and never removed.
const LOCK: &[u8] = b".lock";
/// How long to wait for other processes that change a file. Each holds the lock for a moment, unless it is stopped or
/// its disk hangs.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long the change of a cache may wait for other processes. Without it, the next run finds out the same.
pub const CACHE_WAIT_MAX: Duration = Duration::from_millis(500);
/// How often the lock is tried meanwhile.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Who besides its owner may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// No other user: a private key.
    Secret,
    /// Any user may read it; no other user may change it.
    Open,
}

/// Returns the content of a file; `None` if it does not exist.
///
/// Rejects a file that other users can change, or read although it is secret. The error contains the command that fixes
/// it.
pub fn read(path: &Path, secrecy: Secrecy) -> Result<Option<Vec<u8>>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed("read", path, &io::ErrorKind::InvalidFilename.into()));
    };
    let owners = LinkOwners::Trusted;
    let opened = trusted_path::open_dir(dir.as_os_str().as_bytes(), owners)
        .and_then(|dir| trusted_path::open_read(dir.as_fd(), name.as_bytes(), owners));
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path, &error)),
    };
    let stat = sys::fstat(file.as_fd()).map_err(|error| failed("read", path, &error))?;
    let me = sys::ids().0;
    if stat.uid != me && stat.uid != 0 {
        // Another user's file is rejected whatever its content: treat it like an unreadable one.
        let error = refused(
            path,
            &format!("owned by user {}", stat.uid),
            &format!("chown {me}"),
        );
        return Err(Error {
            exit: Exit::FileIo,
            ..error
        });
    }
    match secrecy {
        Secrecy::Secret if stat.mode & 0o077 != 0 => {
            return Err(refused(
                path,
                "other users can read this private key",
                "chmod 600",
            ));
        }
        Secrecy::Open if stat.mode & 0o022 != 0 => {
            return Err(refused(path, "other users can change it", "chmod go-w"));
        }
        Secrecy::Secret | Secrecy::Open => {}
    }
    sys::read_to_end(file.as_fd(), FILE_MAX_BYTES)
        .map(Some)
        .map_err(|error| failed("read", path, &error))
}

/// A directory of this program, locked against changes by other processes.
pub struct Locked {
    path: PathBuf,
    dir: OwnedFd,
    _lock: OwnedFd,
}

impl Locked {
    /// Locks the directory, and waits for other processes that have locked it, but at most `wait_max`. Creates it with
    /// mode 0700 if it is missing.
    pub fn take(path: &Path, wait_max: Duration) -> Result<Locked> {
        let dir = private_dir(path)?;
        let lock = path.join(std::ffi::OsStr::from_bytes(LOCK));
        let fd = sys::open_append_at(dir.as_fd(), LOCK, 0o600)
            .map_err(|error| failed("open", &lock, &error))?;
        let since = Since::now();
        while !sys::try_lock(fd.as_fd()).map_err(|error| failed("lock", &lock, &error))? {
            if since.elapsed() >= wait_max {
                let shown = lock.display();
                let words =
                    format!("sparsync: cannot lock {shown}: another process holds the lock");
                return Err(Error::new(Exit::FileIo, words));
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
        Ok(Locked {
            path: path.to_owned(),
            dir,
            _lock: fd,
        })
    }

    /// Replaces a file atomically, even across a power failure. It has mode 0600 from the start.
    pub fn replace(&self, name: &str, text: &[u8]) -> Result<()> {
        put(self.dir.as_fd(), name, text, 0o600)
            .map_err(|error| failed("write", &self.path.join(name), &error))
    }
}

/// Opens a private directory, and creates it with mode 0700 if it is missing. Rejects one that other users own or can
/// change.
pub fn private_dir(path: &Path) -> Result<OwnedFd> {
    make_private(path).map_err(|error| failed("create", path, &error))?;
    let dir = trusted_path::open_dir(path.as_os_str().as_bytes(), LinkOwners::Trusted)
        .map_err(|error| failed("open", path, &error))?;
    let stat = sys::fstat(dir.as_fd()).map_err(|error| failed("open", path, &error))?;
    let me = sys::ids().0;
    if stat.uid != me && stat.uid != 0 {
        return Err(refused(
            path,
            &format!("owned by user {}", stat.uid),
            &format!("chown {me}"),
        ));
    }
    if stat.mode & 0o022 != 0 {
        return Err(refused(path, "other users can change it", "chmod go-w"));
    }
    Ok(dir)
}

/// Replaces a file atomically, even across a power failure. It has its mode from the start. The caller must ensure that
/// no other process does the same at the same time.
pub fn put(dir: BorrowedFd<'_>, name: &str, text: &[u8], mode: u32) -> io::Result<()> {
    // A fixed temporary name is enough; this removes what a crash left.
    let temp = format!(".{name}.new").into_bytes();
    match sys::unlink(dir, &temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = sys::create(dir, &temp, mode)?;
    let placed = sys::write_all(file.as_fd(), text)
        .and_then(|()| sys::fsync(file.as_fd()))
        .and_then(|()| sys::rename(dir, &temp, dir, name.as_bytes()));
    if placed.is_err() {
        // The first error is reported. The next change removes the file.
        let _ = sys::unlink(dir, &temp);
    }
    placed.and_then(|()| sys::fsync(dir))
}

/// Creates a directory and its missing parents, each with mode 0700.
pub fn make_private(path: &Path) -> io::Result<()> {
    match sys::mkdir_path(path.as_os_str().as_bytes(), 0o700) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(parent) => {
                make_private(parent)?;
                match sys::mkdir_path(path.as_os_str().as_bytes(), 0o700) {
                    // Another process created it between the two calls.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    other => other,
                }
            }
            None => Err(error),
        },
        other => other,
    }
}

/// Returns the error for a file that cannot be read or written.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let words = errno_words(error);
    let line = [
        format!("sparsync: cannot {what} ").as_bytes(),
        path.as_os_str().as_bytes(),
        b": ",
        &words,
    ]
    .concat();
    Error::new(Exit::FileIo, trusted_path::with_refusal(error, line))
}

/// Returns the error for a file that is not trusted, with the command that fixes it.
fn refused(path: &Path, why: &str, mend: &str) -> Error {
    let shown = path.display();
    Error::new(
        Exit::StartClient,
        format!("sparsync: cannot use {shown}: {why}"),
    )
    .with_hint(format!("run `{mend} {shown}`"))
}

/// Returns the error for a mistake in a file that a user edited. `line` counts from 1.
pub fn mistaken(path: &Path, line: Option<usize>, what: &str) -> Error {
    let at = line
        .map(|line| format!(", line {line}"))
        .unwrap_or_default();
    Error::usage(format!(
        "sparsync: cannot read {}{at}: {what}",
        path.display()
    ))
}

/// Removes the entries of a cache that are not kept, adds one as the latest, and removes the oldest beyond a number.
pub fn renew<T>(
    entries: &mut Vec<T>,
    entries_max: usize,
    is_kept: impl Fn(&T) -> bool,
    latest: Option<T>,
) {
    entries.retain(is_kept);
    entries.extend(latest);
    let surplus = entries.len().saturating_sub(entries_max);
    entries.drain(..surplus);
}

/// A list in the config directory, as a TOML file that users may read and edit. Its types must reject unknown keys.
pub trait List: Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// The file name.
    const FILE: &str;
    /// The comment at the beginning of a new file.
    const HEAD: &str;
    /// The key that identifies a table.
    const ID: &str;
    /// How long a change may wait for other processes.
    const WAIT_MAX: Duration = LOCK_WAIT_MAX;

    /// Checks what the types cannot express; errors are created by [`mistaken`].
    fn check(&self, path: &Path) -> Result<()>;

    /// Reads the file; a missing one counts as empty. Errors contain the file, line and key.
    fn load(places: &Places) -> Result<Self> {
        Self::load_with_text(places).map(|(list, _)| list)
    }

    /// Like `load`, and also returns the text of the file.
    fn load_with_text(places: &Places) -> Result<(Self, String)> {
        let path = places.config.join(Self::FILE);
        let text = read(&path, Secrecy::Open)?.unwrap_or_else(|| Self::HEAD.into());
        let text =
            String::from_utf8(text).map_err(|_| mistaken(&path, None, "the text is not UTF-8"))?;
        let list: Self = toml::from_str(&text).map_err(|error| {
            let line = error
                .span()
                .map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            mistaken(&path, line, error.message())
        })?;
        list.check(&path)?;
        Ok((list, text))
    }

    /// Changes the file under the directory's lock; writes it only if the list has changed.
    fn change<T>(places: &Places, change: impl FnOnce(&mut Self) -> T) -> Result<T> {
        let locked = Locked::take(&places.config, Self::WAIT_MAX)?;
        let (before, text) = Self::load_with_text(places)?;
        let mut list = before.clone();
        let result = change(&mut list);
        if list != before {
            list.check(&places.config.join(Self::FILE))?;
            let plain = toml::to_string(&list).map_err(|error| {
                Error::new(
                    Exit::FileIo,
                    format!("sparsync: cannot write {}: {error}", Self::FILE),
                )
            })?;
            // The head is not a comment on the first table.
            let (head, rest) = text
                .strip_prefix(Self::HEAD)
                .map_or(("", &text[..]), |rest| (Self::HEAD, rest));
            locked.replace(
                Self::FILE,
                [head, &toml_edit::kept(rest, &plain, Self::ID)]
                    .concat()
                    .as_bytes(),
            )?;
        }
        Ok(result)
    }
}

/// A cached list that is read again only if its file has changed.
pub struct CachedList<L> {
    places: Places,
    last: Mutex<Option<(Mark, Arc<L>)>>,
}

/// The attributes that identify one version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    place: (u64, u64),
    mtime: Time,
    len_bytes: u64,
    owner: u32,
    mode: u32,
}

/// A file changed less than this ago may change again without a new timestamp, so its content is not cached.
const SETTLED_SECS: i64 = 2;

impl<L: List> CachedList<L> {
    /// Creates a cache for the file in these directories.
    pub fn new(places: &Places) -> CachedList<L> {
        CachedList {
            places: places.clone(),
            last: Mutex::default(),
        }
    }

    /// Returns the current list, see [`List::load`].
    pub fn get(&self) -> Result<Arc<L>> {
        let mut last = self.last.lock();
        // Taken before reading: a change during the read is detected by the next call.
        let mark = self.mark();
        if let Some((known, list)) = &*last
            && mark == Some(*known)
        {
            return Ok(list.clone());
        }
        // An error is not cached: it may be temporary, such as a lack of descriptors.
        let list = Arc::new(L::load(&self.places)?);
        let is_settled = |mark: &Mark| clock::now_unix().0 - mark.mtime.secs >= SETTLED_SECS;
        *last = mark.filter(is_settled).map(|mark| (mark, list.clone()));
        Ok(list)
    }

    fn mark(&self) -> Option<Mark> {
        let path = self.places.config.join(L::FILE);
        let stat = sys::stat_path(path.as_os_str().as_bytes(), true).ok()?;
        Some(Mark {
            place: (stat.dev, stat.ino),
            mtime: stat.mtime,
            len_bytes: stat.len_bytes,
            owner: stat.uid,
            mode: stat.mode,
        })
    }
}
