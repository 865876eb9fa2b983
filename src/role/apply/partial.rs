//! Directories for unfinished files, and what is kept there of a transfer that was cut off (`--partial`).

use super::Context;
use super::entry::Job;
use crate::flist::{Kind, Time};
use crate::fs::operator;
use crate::fs::root::Dir;
use crate::fs::sys::{self, Follow};
use crate::fs::write::Pending;
use std::io;

/// Opens a directory for unfinished files; what has its name and is no directory gives way.
pub(super) fn open_or_make(context: &Context<'_>, dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    if name.starts_with(b"/") {
        return Ok(Dir::new(operator::make_dir(name, 0o700, context.options.preserve.link_owners)?));
    }
    match sys::mkdir(dir.fd(), name, 0o700) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if Kind::of_mode(sys::stat(dir.fd(), name, false)?.mode) != Some(Kind::Dir) {
                sys::unlink(dir.fd(), name)?;
                sys::mkdir(dir.fd(), name, 0o700)?;
            }
        }
        made => made?,
    }
    open_partial(context, dir, name)
}

/// Opens a directory for unfinished files. One that a symlink of an untrusted user hides is as if it were not there;
/// rsync ends with "got a block match with no basis file".
pub(super) fn open_partial(context: &Context<'_>, dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    Ok(Dir::new(match name.starts_with(b"/") {
        true => operator::open_dir(name, context.options.preserve.link_owners)?,
        false => sys::open_dir(dir.fd(), name, Follow::Never)?,
    }))
}

/// Keeps what there is of an interrupted file, if the options ask for it. An error: it could not be given its name.
pub(super) fn keep(context: &Context<'_>, job: &Job<'_>, dir: &Dir, pending: Pending) -> io::Result<()> {
    let place = &context.options.place;
    if place.inplace && !place.partial {
        // Written where it belongs: what there is stays there.
        return pending.place(dir, job.name());
    }
    if !place.partial {
        return Ok(());
    }
    // The epoch as its time makes the next quick check see a difference.
    let epoch = Some(Time::default());
    match &place.partial_dir {
        None => {
            let _ = sys::utimes(pending.fd(), b"", None, epoch);
            pending.place(dir, job.name())
        }
        Some(name) => match open_or_make(context, dir, name) {
            Ok(partial_dir) => pending.place(&partial_dir, job.name()),
            // As rsync, which does not say so.
            Err(_) => Ok(()),
        },
    }
}

/// Removes what an earlier run had kept of a file that is complete now.
pub(super) fn forget(context: &Context<'_>, job: &Job<'_>, dir: &Dir) {
    forget_all(context, dir, |_| vec![job.name().to_vec()]);
}

/// Removes what earlier runs had kept of files of one directory: of those that `find` names, which is shown what holds
/// them. That goes, too, if it lies in the directory and is empty then. Whether the directory has changed.
pub fn forget_all(context: &Context<'_>, dir: &Dir, find: impl FnOnce(&Dir) -> Vec<Vec<u8>>) -> bool {
    let Some(holder) = &context.options.place.partial_dir else { return false };
    let Ok(partials) = open_partial(context, dir, holder) else { return false };
    let gone = find(&partials).iter().filter(|name| sys::unlink(partials.fd(), name).is_ok()).count();
    gone > 0 && !holder.starts_with(b"/") && sys::rmdir(dir.fd(), holder).is_ok()
}
