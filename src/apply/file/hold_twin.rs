//! Holds the content of twins that the run changes (`--detect-renamed`), right before that.

use crate::apply::held_twins::{HeldFile, OldContent};
use crate::apply::job::Job;
use crate::apply::twins::Twin;
use crate::apply::{Context, Outcome, twins};
use crate::fs::copy::{Copier, CopyError, CopyMethod};
use crate::fs::leftover::remove_stale;
use crate::fs::root::Dir;
use crate::fs::temp_name::last_temp_name;
use crate::fs::{errno, sys};
use crate::path::RelPath;
use crate::report::event::Event;
use std::io;
use std::os::fd::AsFd;

/// Holds the content of a file that is about to be replaced, if other files need it. Returns `false` if that is not
/// possible because the run was stopped: then the file must stay.
pub fn before_replacing(job: &Job<'_>, dir: &Dir, out: &mut Outcome<'_>) -> bool {
    let Some(twin) = job.context.twins.to_hold(&job.path) else {
        return true;
    };
    if !job.context.twins.has_room_beside(0, dir) {
        return true;
    }
    let name = last_temp_name(job.name());
    // Not all file systems have hard links, and not all users may make them.
    let held = link(job.context, &twin, dir, &name, out)
        .or_else(|_| copy(job.context, &twin, dir, &name, out));
    // If both fail, the content comes from the source.
    match held {
        Ok(held) => keep(job, &twin, dir, held, out),
        Err(_) if job.context.stopped() => return false,
        Err(_) => {}
    }
    true
}

/// Holds the content of a file that is about to be overwritten, if other files need it. A file that is copied from it
/// at the same time finds afterwards that the content has another place now. Returns `false` as [`before_replacing`] does.
pub fn before_overwriting(job: &Job<'_>, dir: &Dir, out: &mut Outcome<'_>) -> bool {
    let Some(twin) = job.context.twins.to_hold(&job.path) else {
        return true;
    };
    let name = last_temp_name(job.name());
    match copy(job.context, &twin, dir, &name, out) {
        Ok(held) => keep(job, &twin, dir, held, out),
        Err(_) if job.context.stopped() => return false,
        Err(_) => {
            let last = &job.dest_dir.last;
            job.context.twins.hold(&twin, OldContent::Lost, last);
        }
    }
    true
}

/// Records a file that holds the content of a twin, or removes it if that is not needed any more.
fn keep(job: &Job<'_>, twin: &Twin, dir: &Dir, held: HeldFile, out: &mut Outcome<'_>) {
    let path = held.path.clone();
    let last = &job.dest_dir.last;
    last.touch();
    if job.context.twins.hold(twin, OldContent::Held(held), last) {
        return;
    }
    remove(job.context, &path, dir, out);
}

/// Removes a temporary name of a content that is not held. If that fails, it is reported: the run would leave the name
/// behind and end with 0.
fn remove(context: &Context<'_>, path: &RelPath, dir: &Dir, out: &mut Outcome<'_>) {
    let unlinked = sys::unlink(dir.fd(), path.name());
    let problem = twins::cannot_remove(context, path, unlinked);
    out.events.extend(problem.map(Event::Problem));
}

/// Gives a twin another name. Fails if it is not the file that was found.
fn link(
    context: &Context<'_>,
    twin: &Twin,
    dir: &Dir,
    name: &[u8],
    out: &mut Outcome<'_>,
) -> io::Result<HeldFile> {
    with_free_name(dir, name, || {
        sys::link(dir.fd(), twin.path.name(), dir.fd(), name)
    })?;
    let stat = sys::stat(dir.fd(), name, false);
    match stat {
        Ok(stat) if twin.is(&stat) => Ok(HeldFile {
            path: twin.sibling(name),
            inode: (stat.dev, stat.ino),
            mtime: stat.mtime,
        }),
        other => {
            remove(context, &twin.sibling(name), dir, out);
            Err(other.err().unwrap_or_else(errno::invalid))
        }
    }
}

/// Copies a twin. Fails if it is not the file that was found, or if there is no room.
fn copy(
    context: &Context<'_>,
    twin: &Twin,
    dir: &Dir,
    name: &[u8],
    out: &mut Outcome<'_>,
) -> io::Result<HeldFile> {
    if !context.twins.has_room_beside(twin.len_bytes, dir) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let from = context.open_read(dir, twin.path.name())?;
    let to = with_free_name(dir, name, || sys::create(dir.fd(), name, 0o600))?;
    let copied = || -> io::Result<HeldFile> {
        let mut go_on = |_: u64| !context.stopped();
        let method = CopyMethod {
            len_bytes: twin.len_bytes,
            sparse: context.options.place.sparse,
            by_hand: false,
            start_bytes: 0,
            from_device: false,
            fresh: true,
        };
        let mut copier = Copier::new(Vec::new(), &context.unsupported_calls, &mut go_on);
        copier
            .copy(from.as_fd(), to.as_fd(), method)
            .map_err(|error| match error {
                CopyError::Read(error) | CopyError::Write(error) => error,
                CopyError::NotRegular => errno::invalid(),
                CopyError::Stopped => io::ErrorKind::Interrupted.into(),
            })?;
        // The file may have been written late.
        sys::settle(to.as_fd())?;
        let stat = sys::fstat(to.as_fd())?;
        if !twin.is(&sys::fstat(from.as_fd())?) || stat.len_bytes != twin.len_bytes {
            return Err(errno::invalid());
        }
        Ok(HeldFile {
            path: twin.sibling(name),
            inode: (stat.dev, stat.ino),
            mtime: stat.mtime,
        })
    };
    let held = copied();
    if held.is_err() {
        remove(context, &twin.sibling(name), dir, out);
    }
    held
}

/// Makes something under a temporary name. Removes what a crash left there.
fn with_free_name<T>(dir: &Dir, name: &[u8], make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove_stale(dir, name);
            make()
        }
        made => made,
    }
}
