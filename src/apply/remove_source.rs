//! `--remove-source-files`: removes entries of the source that have arrived.

use crate::apply::delayed::is_delayed;
use crate::apply::job::Job;
use crate::apply::{Context, LateRemovals, Outcome, SourceFile, SourceRemoval};
use crate::flist::entry::Stat;
use crate::flist::{Kind, Time, order};
use crate::fs::root::Dir;
use crate::fs::{errno, sys};
use crate::options::RemoveSource;
use crate::plan::Action;
use crate::report::event::{ErrorRole, Event, Problem, Weight, errno_words};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::io;

impl SourceRemoval {
    /// Closes its descriptor, because many entries may have to wait.
    pub(super) fn parked(self) -> SourceRemoval {
        match self {
            SourceRemoval::Local(entry) => SourceRemoval::Local(entry.parked()),
            remote @ SourceRemoval::Remote(..) => remote,
        }
    }

    /// Removes it, or has the peer remove it. `arrived`: the entry at the destination, whose name is stored first under
    /// `--fsync`, because the source may be the only copy.
    pub fn go(self, context: &Context<'_>, arrived: (&Dir, &[u8]), out: &mut Vec<Event>) {
        if context.options.place.fsync
            && let Err(error) = sys::fsync_dir(arrived.0.fd())
        {
            let path = sys::path_of(arrived.0.fd()).unwrap_or_else(|_| arrived.1.to_vec());
            return out.push(Event::Problem(Problem::failed(
                ErrorRole::Receiver,
                "fsync",
                &path,
                &error,
            )));
        }
        match (self, context.peer) {
            (SourceRemoval::Local(entry), _) if entry.is_shared => {
                if entry.dir_if_unchanged(Some(arrived), out).is_some()
                    && let Some(entry) = context.late_removals.add(entry)
                {
                    entry.go(context.options.output.info.remove, Some(arrived), out);
                }
            }
            (SourceRemoval::Local(entry), _) => {
                entry.go(context.options.output.info.remove, Some(arrived), out)
            }
            (SourceRemoval::Remote(file, listing), Some(peer)) => {
                // The next use of the connection reports its loss.
                let _ = peer.placed(file);
                drop(listing);
            }
            (SourceRemoval::Remote(..), None) => {
                unreachable!("only a peer has entries with a number")
            }
        }
    }
}

impl Default for LateRemovals {
    fn default() -> LateRemovals {
        LateRemovals(Mutex::new(Some(Vec::new())))
    }
}

impl LateRemovals {
    /// Adds an entry that has arrived. Returns it if everything has been read, so that it can be removed at once.
    #[must_use]
    pub fn add(&self, entry: SourceFile) -> Option<SourceFile> {
        match &mut *self.0.lock() {
            Some(entries) => {
                entries.push(entry.parked());
                None
            }
            None => Some(entry),
        }
    }

    /// Removes the entries, once everything has been read. `info_level`: the level of `--info=remove`.
    pub fn go(&self, info_level: u8, events: &mut Vec<Event>) {
        let mut entries = self.0.lock().take().unwrap_or_default();
        // They were added as they arrived; messages come in list order.
        entries.sort_by(|one, other| {
            order::compare_paths((one.path.as_bytes(), false), (other.path.as_bytes(), false))
        });
        for entry in entries {
            entry.go(info_level, None, events);
        }
    }
}

impl SourceFile {
    /// Closes its descriptor, because many entries may have to wait.
    fn parked(self) -> SourceFile {
        SourceFile {
            place: self.place.closed(),
            ..self
        }
    }

    /// Removes it if it is unchanged and is not itself the entry at the destination (`arrived`). `info_level`: the level of
    /// `--info=remove`.
    pub fn go(&self, info_level: u8, arrived: Option<(&Dir, &[u8])>, events: &mut Vec<Event>) {
        let Some(source) = self.dir_if_unchanged(arrived, events) else {
            return;
        };
        match sys::unlink(source.fd(), &self.name) {
            Ok(()) if info_level >= 1 => {
                events.push(Event::Note(
                    [b"sender removed ", self.path.as_bytes()].concat(),
                ));
            }
            Ok(()) => {}
            Err(error) => events.push(self.failed("sender failed to remove", &error)),
        }
    }

    /// Returns its directory, see [`crate::walk::SourceDir::dir_to_remove_from`], or reports why the entry is not removed.
    fn dir_if_unchanged(
        &self,
        arrived: Option<(&Dir, &[u8])>,
        events: &mut Vec<Event>,
    ) -> Option<Cow<'_, Dir>> {
        let skipped = |why: &str, path: &[u8]| {
            let line = [b"ERROR: Skipping sender remove ", why.as_bytes(), path].concat();
            Event::Problem(Problem::new(line, Weight::Failed))
        };
        let source = match self.place.dir_to_remove_from() {
            Ok(source) => source,
            Err(error) if errno::may_be_link(&error) => {
                events.push(self.failed("sender failed to secure-open-parent", &error));
                return None;
            }
            Err(error) => {
                events.push(self.failed("sender failed to re-lstat", &error));
                return None;
            }
        };
        let now = match sys::stat(source.fd(), &self.name, self.followed) {
            Ok(now) => now,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                events.push(Event::Note(
                    [b"sender file already removed: ", self.path.as_bytes()].concat(),
                ));
                return None;
            }
            Err(error) => {
                events.push(self.failed("sender failed to re-lstat", &error));
                return None;
            }
        };
        if self.kind == Kind::File && self.differs(&now) {
            events.push(skipped("for changed file: ", self.path.as_bytes()));
            return None;
        }
        match arrived.map(|(dir, name)| sys::stat(dir.fd(), name, false)) {
            Some(Ok(existing)) if (existing.dev, existing.ino) == (now.dev, now.ino) => {
                events.push(skipped("of destination file: ", self.path.as_bytes()));
                None
            }
            // The source may be the only copy.
            Some(Err(error)) => {
                events.push(self.failed("sender failed to re-lstat the destination of", &error));
                None
            }
            Some(Ok(_)) | None => Some(source),
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> Event {
        let head = format!("rsync: [{}] {what} ", ErrorRole::Sender.word()).into_bytes();
        Event::Problem(Problem::new(
            [&head, self.path.as_bytes(), b": ", &errno_words(error)].concat(),
            Weight::Failed,
        ))
    }
}

impl SourceFile {
    /// Returns whether a file has changed or was replaced since it was sent. Its time of change does not count, because
    /// the removal of another of its names changes that.
    fn differs(&self, now: &Stat) -> bool {
        let Time { secs, nanos } = now.mtime;
        let nanos = if self.lacks_fraction { 0 } else { nanos };
        // Under --copy-unsafe-links, what was sent is the target of this symlink.
        let is_link = Kind::of_mode(now.mode) == Some(Kind::Symlink);
        let is_replaced = !is_link && self.inode.is_some_and(|sent| sent != (now.dev, now.ino));
        is_replaced || (now.len_bytes, Time { secs, nanos }) != self.was
    }
}

/// Returns what `--remove-source-files` removes for an entry.
pub(super) fn leaving(job: &Job<'_>) -> Option<SourceRemoval> {
    let source = job.source();
    let is_requested = match (
        job.context.options.select.remove_source,
        job.step.decision.action,
    ) {
        (RemoveSource::No, _) => false,
        (RemoveSource::All, _) => true,
        (RemoveSource::Sent, Action::Transfer(_)) => true,
        (RemoveSource::Sent, Action::Create(_)) => source.kind() == Kind::Symlink,
        (
            RemoveSource::Sent,
            Action::Keep | Action::Adjust(_) | Action::AskDigest | Action::Refuse(_),
        ) => false,
        (RemoveSource::Sent, Action::Link | Action::Copy(_) | Action::Elsewhere) => false,
    };
    if !is_requested || job.context.is_dry() {
        return None;
    }
    if let Some(file) = job.file_id() {
        let hold = job
            .plan
            .found
            .sender_dir
            .as_ref()
            .and_then(|sender_dir| sender_dir.hold.clone());
        return Some(SourceRemoval::Remote(file, hold));
    }
    let place = job.place()?;
    Some(SourceRemoval::Local(SourceFile {
        place: place.clone(),
        name: job.source_name().to_vec(),
        path: job.path.clone(),
        kind: source.kind(),
        was: (source.len_bytes, source.mtime),
        inode: job.opened.get(),
        lacks_fraction: job.context.options.connect.lacks_fractions(),
        followed: job.context.options.select.copy_links,
        is_shared: place.may_have_other_paths(&job.context.options.select),
    }))
}

/// Removes the source of an entry that arrived, if the options require it and the entry has its final name.
pub fn remove_sent_source(job: &Job<'_>, out: &mut Outcome<'_>) {
    let may_wait = matches!(
        job.step.decision.action,
        Action::Transfer(_) | Action::Copy(_) | Action::Link
    );
    let waits =
        job.context.options.place.delay_updates && may_wait && is_delayed(job.context, &job.path);
    // Where the remaining copy is.
    let dir = match job.step.decision.action {
        Action::Elsewhere => job.hit().map(|hit| &hit.dir),
        _ => job.dest_dir.dir.as_ref(),
    };
    if !waits && let (Some(leaving), Some(dir)) = (leaving(job), dir) {
        leaving.go(job.context, (dir, job.name()), &mut out.events);
    }
}
