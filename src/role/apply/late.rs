//! What waits for the end: the times and modes of directories, delayed updates.

use super::Context;
use crate::flist::Time;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::path::RelPath;
use crate::report::event::{Event, Problem, Voice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What the last touches share.
#[derive(Default)]
pub struct LateNotes {
    /// Trouble, told when all is done.
    pub problems: Mutex<Vec<Problem>>,
    /// The run ended early: a directory that is not complete keeps the time of its last change.
    pub given_up: AtomicBool,
}

/// Sets a directory's time and mode when the last piece of work in and below it is done.
///
/// Every piece of work holds its directory's `LastTouch`, and each holds its parent's, so the last to
/// let go is the last to have worked there: children before parents, without a list of directories.
pub struct LastTouch {
    parent: Option<Arc<LastTouch>>,
    target: Option<Target>,
    /// Something in the directory was changed, so its time is no longer what it was.
    pub touched: AtomicBool,
    notes: Arc<LateNotes>,
}

/// What shall be set.
struct Target {
    parent_dir: Dir,
    name: Vec<u8>,
    full: Vec<u8>,
    mtime: Option<Time>,
    /// The time is known to be wrong even if nothing is touched.
    always: bool,
    mode: Option<u32>,
}

impl LastTouch {
    /// For a directory that is left as it is (or a dry run).
    pub fn none(parent: Option<Arc<LastTouch>>, notes: Arc<LateNotes>) -> Arc<LastTouch> {
        Arc::new(LastTouch { parent, target: None, touched: AtomicBool::new(false), notes })
    }

    /// For `name` in `parent_dir` (or an open directory itself, with an empty name).
    #[allow(clippy::too_many_arguments, reason = "one caller")]
    pub fn of(
        parent: Option<Arc<LastTouch>>,
        parent_dir: Dir,
        name: Vec<u8>,
        full: Vec<u8>,
        mtime: Option<Time>,
        always: bool,
        mode: Option<u32>,
        notes: Arc<LateNotes>,
    ) -> Arc<LastTouch> {
        let target = Some(Target { parent_dir, name, full, mtime, always, mode });
        Arc::new(LastTouch { parent, target, touched: AtomicBool::new(false), notes })
    }

    /// Something in the directory changes.
    pub fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    fn finish(&mut self) {
        let Some(target) = self.target.take() else { return };
        let fd = target.parent_dir.fd();
        let failed = |what: &str, error: std::io::Error| {
            let mut line = format!("rsync: [generator] {what} \"").into_bytes();
            line.extend_from_slice(&target.full);
            line.extend_from_slice(b"\": ");
            line.extend_from_slice(&crate::report::event::errno_words(&error));
            let problem = Problem::said(line, crate::report::event::Weight::Failed);
            self.notes.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(problem);
        };
        if let Some(mode) = target.mode {
            let set = match target.name.as_slice() {
                b"" => sys::fchmod(fd, mode),
                name => sys::chmod(fd, name, mode),
            };
            if let Err(error) = set {
                failed("failed to set permissions on", error);
            }
        }
        let given_up = self.notes.given_up.load(Ordering::Relaxed);
        if let (Some(mtime), true) =
            (target.mtime.filter(|_| !given_up), target.always || self.touched.load(Ordering::Relaxed))
            && let Err(error) = sys::utimes(fd, &target.name, None, Some(mtime))
        {
            failed("failed to set times on", error);
        }
    }
}

impl Drop for LastTouch {
    fn drop(&mut self) {
        self.finish();
        // A loop and not the drop of a field in the drop of a field: trees may be deep.
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

/// A file that is complete under another name and gets its own at the end.
pub struct DelayedFile {
    /// Where it waits.
    pub staging: Dir,
    /// Where it shall be.
    pub dir: Dir,
    /// Its name, in both.
    pub name: Vec<u8>,
    /// Its path in the transfer.
    pub path: RelPath,
    /// Keeps the directory's last touch waiting.
    pub last: Arc<LastTouch>,
    /// Something has its name now.
    pub replaces: bool,
    /// The source's file, if it shall go once this one has its name.
    pub leaving: Option<super::file::Leaving>,
}

/// Gives delayed files their names.
pub fn place_delayed(context: &Context<'_>, files: Vec<DelayedFile>, staging_name: &[u8], events: &mut Vec<Event>) {
    for file in files {
        if context.stopped() {
            return;
        }
        if file.replaces
            && let Err(problem) = super::remove::back_up(context, Voice::Receiver, &file.dir, &file.path, events)
        {
            events.push(Event::Problem(problem));
            continue;
        }
        match sys::rename(file.staging.fd(), &file.name, file.dir.fd(), &file.name) {
            Ok(()) => file.leaving.iter().for_each(|leaving| leaving.go(context, (&file.dir, &file.name), events)),
            Err(error) => {
                let full = context.full(file.path.as_bytes());
                events.push(Event::Problem(Problem::failed(Voice::Receiver, "rename", &full, &error)));
            }
        }
        // Empty by now, or not yet: the last file of the directory removes it.
        let _ = sys::rmdir(file.dir.fd(), staging_name);
    }
}
