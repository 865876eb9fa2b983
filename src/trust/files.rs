//! The small files of trust: private, whole, and changed by one process at a time.

use super::place::Places;
use super::remarks;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::entry::Time;
use crate::fs::sys;
use crate::report::event::errno_words;
use crate::work::clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The longest file of ours that is read.
const FILE_MAX_BYTES: usize = 4 << 20;
/// The lock of a directory; it stays, empty.
const LOCK: &[u8] = b".lock";

/// Who besides its owner may know what a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// Nobody: a private key.
    Secret,
    /// Whoever may read it; nobody else may change it.
    Open,
}

/// The text of a file; `None`: there is none.
///
/// A file that others could change, or read although it is secret, is refused with the command that mends it.
pub fn read(path: &Path, secrecy: Secrecy) -> Result<Option<Vec<u8>>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed("read", path, &io::ErrorKind::InvalidFilename.into()));
    };
    let opened = sys::open_dir_path(dir.as_os_str().as_bytes())
        .and_then(|dir| sys::open_read(dir.as_fd(), name.as_bytes(), true, false));
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path, &error)),
    };
    let stat = sys::fstat(file.as_fd()).map_err(|error| failed("read", path, &error))?;
    let me = sys::ids().0;
    if stat.uid != me && stat.uid != 0 {
        // It is not ours, whatever it says: as good as one that cannot be read.
        let error = refused(path, &format!("belongs to user {}", stat.uid), &format!("chown {me}"));
        return Err(Error { exit: Exit::FileIo, ..error });
    }
    match secrecy {
        Secrecy::Secret if stat.mode & 0o077 != 0 => {
            return Err(refused(path, "is a private key that others can read", "chmod 600"));
        }
        Secrecy::Open if stat.mode & 0o022 != 0 => {
            return Err(refused(path, "says who is trusted, and others can change it", "chmod go-w"));
        }
        Secrecy::Secret | Secrecy::Open => {}
    }
    sys::read_to_end(file.as_fd(), FILE_MAX_BYTES).map(Some).map_err(|error| failed("read", path, &error))
}

/// A directory of ours that no other process changes meanwhile.
pub struct Locked {
    path: PathBuf,
    dir: OwnedFd,
    _lock: OwnedFd,
}

impl Locked {
    /// Makes the directory if it is missing, for its owner alone, and waits until nobody else changes it.
    pub fn take(path: &Path) -> Result<Locked> {
        let dir = private_dir(path, "holds keys")?;
        let lock = path.join(std::ffi::OsStr::from_bytes(LOCK));
        let fd = sys::open_append_at(dir.as_fd(), LOCK, 0o600).map_err(|error| failed("open", &lock, &error))?;
        sys::lock(fd.as_fd()).map_err(|error| failed("lock", &lock, &error))?;
        Ok(Locked { path: path.to_owned(), dir, _lock: fd })
    }

    /// Puts a file in place, whole or not at all, also when the power goes. It has mode 0600 from the start.
    pub fn replace(&self, name: &str, text: &[u8]) -> Result<()> {
        put(self.dir.as_fd(), name, text, 0o600).map_err(|error| failed("write", &self.path.join(name), &error))
    }
}

/// Opens a directory of ours, and makes it for its owner alone if it is missing. A directory that other users own or may
/// change is refused; the error says what it is for (`what`).
pub fn private_dir(path: &Path, what: &str) -> Result<OwnedFd> {
    make_private(path).map_err(|error| failed("make", path, &error))?;
    let dir = sys::open_dir_path(path.as_os_str().as_bytes()).map_err(|error| failed("open", path, &error))?;
    let stat = sys::fstat(dir.as_fd()).map_err(|error| failed("open", path, &error))?;
    let me = sys::ids().0;
    if stat.uid != me && stat.uid != 0 {
        return Err(refused(path, &format!("{what}, and belongs to user {}", stat.uid), &format!("chown {me}")));
    }
    if stat.mode & 0o022 != 0 {
        return Err(refused(path, &format!("{what}, and others can change it"), "chmod go-w"));
    }
    Ok(dir)
}

/// Puts a file in place, whole or not at all, also when the power goes. It has its mode from the start. Nobody else does
/// the same meanwhile.
pub fn put(dir: BorrowedFd<'_>, name: &str, text: &[u8], mode: u32) -> io::Result<()> {
    // One name is enough; what a crash left under it goes.
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
        let _ = sys::unlink(dir, &temp);
    }
    placed.and_then(|()| sys::fsync(dir))
}

/// Makes a directory and what is missing above it, each for its owner alone.
pub fn make_private(path: &Path) -> io::Result<()> {
    match sys::mkdir_path(path.as_os_str().as_bytes(), 0o700) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(parent) => {
                make_private(parent)?;
                match sys::mkdir_path(path.as_os_str().as_bytes(), 0o700) {
                    // Somebody else made it between the two calls.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    other => other,
                }
            }
            None => Err(error),
        },
        other => other,
    }
}

/// A file that could not be read or written.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let words = errno_words(error);
    Error::new(
        Exit::FileIo,
        [format!("sparsync: cannot {what} ").as_bytes(), path.as_os_str().as_bytes(), b": ", &words].concat(),
    )
}

/// A file that is not trusted, and what to run.
fn refused(path: &Path, why: &str, mend: &str) -> Error {
    let shown = path.display();
    Error::new(Exit::StartClient, format!("sparsync: {shown} {why}: run `{mend} {shown}` and try again"))
}

/// A text that a person wrote and that says something else than it may. `line` counts from 1.
pub fn mistaken(path: &Path, line: Option<usize>, what: &str) -> Error {
    let at = line.map(|line| format!(", line {line}")).unwrap_or_default();
    Error::usage(format!("sparsync: {}{at}: {what}", path.display()))
}

/// A list in the config directory that persons read and mend, as TOML. Unknown keys are errors of the types in it.
pub trait List: Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// Its file.
    const FILE: &str;
    /// What a person who opens a new file reads first: a comment.
    const HEAD: &str;
    /// The key by which its tables are told apart.
    const ID: &str;

    /// What its types do not say of it; errors are made by [`mistaken`].
    fn check(&self, path: &Path) -> Result<()>;

    /// Reads the file; none is as good as an empty one. Errs in words that name file, line and key.
    fn load(places: &Places) -> Result<Self> {
        Self::load_with_text(places).map(|(list, _)| list)
    }

    /// The same, and the text that says so.
    fn load_with_text(places: &Places) -> Result<(Self, String)> {
        let path = places.config.join(Self::FILE);
        let text = read(&path, Secrecy::Open)?.unwrap_or_else(|| Self::HEAD.into());
        let text = String::from_utf8(text).map_err(|_| mistaken(&path, None, "the text is not UTF-8"))?;
        let list: Self = toml::from_str(&text).map_err(|error| {
            let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            mistaken(&path, line, error.message())
        })?;
        list.check(&path)?;
        Ok((list, text))
    }

    /// Changes the file, with nobody else doing so meanwhile; it is written only if something changed.
    fn change<T>(places: &Places, change: impl FnOnce(&mut Self) -> T) -> Result<T> {
        let locked = Locked::take(&places.config)?;
        let (before, text) = Self::load_with_text(places)?;
        let mut list = before.clone();
        let result = change(&mut list);
        if list != before {
            list.check(&places.config.join(Self::FILE))?;
            let plain = toml::to_string(&list)
                .map_err(|error| Error::new(Exit::FileIo, format!("sparsync: cannot write {}: {error}", Self::FILE)))?;
            // The head is nobody's remark on the first table.
            let (head, rest) = text.strip_prefix(Self::HEAD).map_or(("", &text[..]), |rest| (Self::HEAD, rest));
            locked.replace(Self::FILE, [head, &remarks::kept(rest, &plain, Self::ID)].concat().as_bytes())?;
        }
        Ok(result)
    }
}

/// A list that is read again only where its file is another one than it was.
pub struct Kept<L> {
    places: Places,
    last: Mutex<Option<(Mark, Result<Arc<L>>)>>,
}

/// By what a file is known from another one, or from itself before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    place: (u64, u64),
    mtime: Time,
    len_bytes: u64,
    owner: u32,
    mode: u32,
}

/// A file that was changed less than so long ago may be changed again without another time.
const SETTLED_SECS: i64 = 2;

impl<L: List> Kept<L> {
    /// That of these places.
    pub fn new(places: &Places) -> Kept<L> {
        Kept { places: places.clone(), last: Mutex::default() }
    }

    /// The list as it is now, see [`List::load`].
    pub fn get(&self) -> Result<Arc<L>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Before it is read: what is changed meanwhile is read again.
        let mark = self.mark();
        if let Some((known, list)) = &*last
            && mark == Some(*known)
        {
            return list.clone();
        }
        let list = L::load(&self.places).map(Arc::new);
        let is_settled = |mark: &Mark| clock::now_unix().0 - mark.mtime.secs >= SETTLED_SECS;
        *last = mark.filter(is_settled).map(|mark| (mark, list.clone()));
        list
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
