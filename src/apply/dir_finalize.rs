//! Attributes that must wait for the end: times and modes of directories.

use crate::flist::Time;
use crate::flist::entry::Stat;
use crate::fs::root::{Dir, Root};
use crate::fs::sys;
use crate::path::RelPath;
use crate::report::event::{ErrorRole, Problem};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state that all last touches share.
#[derive(Default)]
pub struct LateNotes {
    /// Problems, reported at the end.
    pub problems: Mutex<Vec<Problem>>,
    /// The run ended early. An incomplete directory keeps the time of its last change.
    pub given_up: AtomicBool,
    /// Directories that this run has entered through a symlink (`-K`).
    followed: Followed,
}

impl LateNotes {
    /// Records a directory that is entered through a symlink.
    pub fn follow(&self, dir: &Stat) {
        self.followed.add(dir);
    }

    /// Returns whether a directory was entered through a symlink before.
    pub fn has_followed(&self, dir: &Dir) -> bool {
        !self.followed.is_empty() && sys::fstat(dir.fd()).is_ok_and(|dir| self.followed.has(&dir))
    }
}

/// Directories that a run has entered through a symlink, by device and inode.
///
/// Such a directory may also have a name of its own in the transfer, and its time must then be that of its own source.
/// The work below the symlink and the work below its own name end in any order. So the time is recorded when the
/// directory's own name is finished, and the symlink sets it again if it is finished later.
#[derive(Default)]
struct Followed(Mutex<HashMap<(u64, u64), Option<Time>>>);

impl Followed {
    fn add(&self, dir: &Stat) {
        self.0.lock().entry((dir.dev, dir.ino)).or_default();
    }

    fn has(&self, dir: &Stat) -> bool {
        self.0.lock().contains_key(&(dir.dev, dir.ino))
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Records the time of a directory under its own name. Returns whether the directory was entered through a symlink.
    fn expect(&self, dir: &Stat, mtime: Time) -> bool {
        match self.0.lock().get_mut(&(dir.dev, dir.ino)) {
            Some(expected) => {
                *expected = Some(mtime);
                true
            }
            None => false,
        }
    }

    /// Returns the time that the directory got under its own name, if that was finished.
    fn expected(&self, dir: &Stat) -> Option<Time> {
        self.0.lock().get(&(dir.dev, dir.ino)).copied().flatten()
    }
}

/// Sets a directory's time and mode when the last piece of work in and below it is done.
///
/// Every piece of work holds its directory's `LastTouch`, and each `LastTouch` holds its parent's. So the last owner to
/// drop it is the last to have worked there: children before parents, without a list of directories.
pub struct LastTouch {
    parent: Option<Arc<LastTouch>>,
    target: Option<Target>,
    /// Something in the directory was changed, so its time has changed too.
    pub touched: AtomicBool,
    notes: Arc<LateNotes>,
}

/// What to set, and on which directory. The directory is opened only then: more of them may be waiting than a process
/// may have open.
pub struct Target {
    /// The destination's top.
    pub root: Root,
    /// The directory's path below it.
    pub path: RelPath,
    /// Its absolute path, for messages.
    pub full: Vec<u8>,
    /// The path is a symlink to the directory (`-K`). As in rsync, the symlink gets the attributes.
    pub is_link: bool,
    /// This run has entered the directory through a symlink.
    pub has_other_names: bool,
    /// The time to set.
    pub mtime: Option<Time>,
    /// The time is known to be wrong even if nothing is touched. Only then is an error on setting it reported: rsync
    /// does not report one when it restores a time, as in another user's world-writable directory.
    pub always: bool,
    /// The mode to set, if that had to wait.
    pub mode: Option<u32>,
}

impl LastTouch {
    /// Creates the value for a directory. `target`: what is set at the end; `None` if it is left unchanged.
    pub fn new(
        parent: Option<Arc<LastTouch>>,
        target: Option<Target>,
        notes: Arc<LateNotes>,
    ) -> Arc<LastTouch> {
        Arc::new(LastTouch {
            parent,
            target,
            touched: AtomicBool::new(false),
            notes,
        })
    }

    /// Records that something in the directory changes.
    pub fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Returns whether only root will be able to reach the directory's entries: the final mode of it or of a parent
    /// lacks the owner's search bit.
    pub fn shuts(&self) -> bool {
        let above = std::iter::successors(Some(self), |last| last.parent.as_deref());
        above
            .filter_map(|last| last.target.as_ref()?.mode)
            .any(|mode| mode & 0o100 == 0)
    }

    /// Returns whether the entries of the directory may have other names in this run: it was entered through a symlink, or
    /// a directory above it was.
    pub fn has_other_names(&self) -> bool {
        let above = std::iter::successors(Some(self), |last| last.parent.as_deref());
        above
            .filter_map(|last| last.target.as_ref())
            .any(|target| target.has_other_names)
    }

    fn finish(&mut self) {
        let Some(target) = self.target.take() else {
            return;
        };
        let given_up = self.notes.given_up.load(Ordering::Relaxed);
        let mtime = if given_up { None } else { target.mtime };
        let touched = target.always || self.touched.load(Ordering::Relaxed);
        let may_be_shared = !target.is_link && !self.notes.followed.is_empty();
        let may_need_time = mtime.is_some() && (touched || may_be_shared);
        if !may_need_time && target.mode.is_none() {
            return;
        }
        let failed = |what: &str, error: io::Error| {
            let problem = Problem::about(ErrorRole::Generator, what, &target.full, &error);
            self.notes.problems.lock().push(problem);
        };
        let (dir, name) = match target.reach() {
            Ok(reached) => reached,
            // It was deleted since, through another name of it (`-K`).
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return failed("failed to set times on", error),
        };
        if let Some(Err(error)) = target.mode.map(|mode| sys::chmod(dir.fd(), name, mode)) {
            failed("failed to set permissions on", error);
        }
        let Some(mtime) = mtime else {
            return;
        };
        let is_changed_elsewhere = may_be_shared && {
            let stat = || match name {
                b"" => sys::fstat(dir.fd()),
                _ => sys::stat(dir.fd(), name, false),
            };
            // The time is read after it was recorded: what changes it from now on is done by a thread that finds the record.
            stat().is_ok_and(|stat| self.notes.followed.expect(&stat, mtime))
                && stat().is_ok_and(|stat| stat.mtime != mtime)
        };
        if !touched && !is_changed_elsewhere {
            return;
        }
        if let Err(error) = sys::utimes(dir.fd(), name, None, Some(mtime))
            && target.always
        {
            failed("failed to set times on", error);
        }
        if target.is_link {
            self.restore_time_behind(&target);
        }
    }

    /// Sets the time of the directory that a symlink leads to, if it has been finished under its own name before. Then
    /// the work below the symlink may have changed its time since.
    fn restore_time_behind(&self, link: &Target) {
        let Ok(dir) = link.root.open_dir(&link.path) else {
            return;
        };
        if let Ok(stat) = sys::fstat(dir.fd())
            && let Some(mtime) = self.notes.followed.expected(&stat)
            && stat.mtime != mtime
        {
            // An error would have been reported when the directory was finished.
            let _ = sys::utimes(dir.fd(), b"", None, Some(mtime));
        }
    }
}

impl Target {
    /// Returns the directory with an empty name, or, if it cannot be opened or is a symlink, its parent and its name.
    fn reach(&self) -> io::Result<(Dir, &[u8])> {
        let opened = self.root.open_dir(&self.path);
        match (opened, self.path.parent()) {
            (Ok(dir), _) if !self.is_link => Ok((dir, b"")),
            (Err(error), None) => Err(error),
            (_, parent) => {
                let parent = parent.unwrap_or_default();
                let dir = self
                    .root
                    .open_dir(&parent)
                    .or_else(|_| self.root.open_dir_to_search(&parent))?;
                Ok((dir, self.path.name()))
            }
        }
    }
}

impl Drop for LastTouch {
    fn drop(&mut self) {
        self.finish();
        // A loop instead of nested drops, because trees may be deep.
        let mut next = self.parent.take();
        while let Some(parent) = next {
            match Arc::try_unwrap(parent) {
                Ok(mut last) => {
                    last.finish();
                    next = last.parent.take();
                }
                Err(_) => break,
            }
        }
    }
}
