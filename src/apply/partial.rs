//! Directories for unfinished files, and the parts of interrupted transfers that are kept there (`--partial`).

use crate::apply::job::Job;
use crate::apply::{ContentPeer, Context, Loss, Outcome, backup};
use crate::flist::{Kind, Time};
use crate::fs::leftover::{Leftover, remove_stale, remove_unseen};
use crate::fs::root::Dir;
use crate::fs::sys::{self, Follow};
use crate::fs::temp_name::is_temp_name;
use crate::fs::write::{Pending, is_superseded};
use crate::fs::{
    sandbox,
    trusted_path::{self, NewDirMode},
};
use crate::report::event::{ErrorRole, Problem};
use std::io;

/// The time of a partial file under its final name: with the epoch, the next quick check sees a difference.
const NEVER_THE_SAME: Time = Time { secs: 0, nanos: 0 };

/// Why an interrupted file could not be kept.
pub(super) enum NotKept {
    /// It could not be renamed.
    Rename(io::Error),
    /// What it would replace could not be backed up.
    NoBackup(Problem),
}

/// Opens a directory for unfinished files, creating it if needed. Replaces a non-directory of that name.
pub(super) fn open_or_make(context: &Context<'_>, dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    if name.starts_with(b"/") {
        return Ok(Dir::new(trusted_path::make_dir(
            name,
            NewDirMode::Private,
            context.options.preserve.link_owners,
        )?));
    }
    must_be_seen(dir, name)?;
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

/// Opens a directory for unfinished files. One behind a symlink of an untrusted user counts as missing; rsync ends with
/// "got a block match with no basis file".
pub(super) fn open_partial(context: &Context<'_>, dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    if name.starts_with(b"/") {
        let open = trusted_path::open_option_dir(name, context.options.preserve.link_owners)?;
        return Ok(Dir::new(open));
    }

    must_be_seen(dir, name)?;
    Ok(Dir::new(sys::open_dir(dir.fd(), name, Follow::Never)?))
}

/// Fails if the rules of a daemon's module exclude a directory.
fn must_be_seen(dir: &Dir, name: &[u8]) -> io::Result<()> {
    if sandbox::hides(dir.fd(), name, true) {
        Err(io::ErrorKind::NotFound.into())
    } else {
        Ok(())
    }
}

/// Returns whether an interrupted file stays for the user (`--partial`), and not only until the run is repeated.
pub(super) fn is_kept(job: &Job<'_>) -> bool {
    let loss = job.context.peer.and_then(ContentPeer::loss);
    job.context.options.place.partial && loss != Some(Loss::Repeated)
}

/// Keeps an interrupted file if the options require it, or if the client may repeat the run by itself. Without these, a
/// lost connection leaves nothing, as in rsync: when Ctrl-C ends a remote shell, the server sees the same.
pub(super) fn keep(
    job: &Job<'_>,
    dir: &Dir,
    pending: Pending,
    out: &mut Outcome<'_>,
) -> Result<(), NotKept> {
    let renamed = |result: io::Result<()>| result.map_err(NotKept::Rename);
    let place = &job.context.options.place;
    let loss = job.context.peer.and_then(ContentPeer::loss);
    if loss == Some(Loss::Repeated) && job.context.resumes(job.source().len_bytes) {
        pending.leave(dir, job.name());
        return Ok(());
    }
    match (&place.partial_dir, loss) {
        (Some(name), Some(_)) if place.partial => keep_after_loss(job, dir, name, pending, out),
        (Some(name), None) if place.partial => match open_or_make(job.context, dir, name) {
            Ok(partial_dir) => place_in(&partial_dir, job, dir, pending, out),
            // Like rsync, which does not report it.
            Err(_) => Ok(()),
        },
        // A run that is repeated must not leave anything under a final name. With --inplace it is not repeated. If the
        // user has run the command again, the time of the directory is right already.
        (_, Some(loss)) if loss == Loss::Repeated || !place.partial && !place.inplace => {
            pending.discard();
            Ok(())
        }
        _ if !place.partial && !place.inplace => Ok(()),
        (_, loss) => {
            if place.partial {
                // Otherwise it keeps the current time, which differs from the source's as well.
                let _ = sys::utimes(pending.fd(), b"", None, Some(NEVER_THE_SAME));
            }
            if pending.is_in_place() {
                return renamed(pending.place(dir, job.name()));
            }
            if loss == Some(Loss::Final) {
                // Another run may have finished the file since.
                if !job.replaces() {
                    return renamed(pending.place_new(dir, job.name()));
                }
                if is_superseded(pending.birth(), dir, job.name()) {
                    pending.discard();
                    return Ok(());
                }
            }
            // The backup may be a link, which changes the old file as a run that finishes it would. So it comes last.
            back_up(job, dir, out)?;
            renamed(pending.place(dir, job.name()))
        }
    }
}

/// Backs up what a part replaces under the final name.
fn back_up(job: &Job<'_>, dir: &Dir, out: &mut Outcome<'_>) -> Result<(), NotKept> {
    let backed_up = backup::back_up_replaced(
        job.context,
        ErrorRole::Receiver,
        dir,
        &job.path,
        job.replaces(),
        &mut out.events,
    );
    backed_up.map_err(NotKept::NoBackup)
}

/// Keeps a part in `--partial-dir`. That may be the directory of the file itself.
fn place_in(
    partial_dir: &Dir,
    job: &Job<'_>,
    dir: &Dir,
    pending: Pending,
    out: &mut Outcome<'_>,
) -> Result<(), NotKept> {
    if is_same_dir(partial_dir, dir) {
        back_up(job, dir, out)?;
    }
    let placed = pending.place(partial_dir, job.name());
    placed.map_err(NotKept::Rename)
}

/// Keeps a part in `--partial-dir`, unless another run has finished the file since the connection was lost.
fn keep_after_loss(
    job: &Job<'_>,
    dir: &Dir,
    name: &[u8],
    pending: Pending,
    out: &mut Outcome<'_>,
) -> Result<(), NotKept> {
    let born = pending.birth();
    if is_superseded(born, dir, job.name()) {
        pending.discard();
    } else if let Ok(partial_dir) = open_or_make(job.context, dir, name) {
        place_in(&partial_dir, job, dir, pending, out)?;
    }
    // A run that finishes the file looks here only afterwards, so one of the two runs removes the part.
    if is_superseded(born, dir, job.name()) {
        remove_unseen(dir, || {
            forget(job, dir);
            if !name.starts_with(b"/") {
                // Left over if nothing was kept in it.
                let _ = sys::rmdir(dir.fd(), name);
            }
        });
    }
    Ok(())
}

/// Removes the part that an earlier run kept of a file that is complete now.
pub(super) fn forget(job: &Job<'_>, dir: &Dir) {
    if let Some(holder) = &job.context.options.place.partial_dir {
        forget_all(job.context, dir, holder, |_| vec![job.name().to_vec()]);
    }
}

/// Removes the partial files in `holder` that `find` names, except temporary files that another run is writing and what is
/// no regular file, and `holder` itself if it is then empty and a subdirectory of `dir`. Returns whether `dir` has changed.
pub fn forget_all(
    context: &Context<'_>,
    dir: &Dir,
    holder: &[u8],
    find: impl FnOnce(&Dir) -> Vec<Vec<u8>>,
) -> bool {
    let Ok(partials) = open_partial(context, dir, holder) else {
        return false;
    };
    if is_same_dir(&partials, dir) {
        // The names in it are those of finished files.
        return false;
    }
    let remove = |name: &Vec<u8>| {
        if is_temp_name(name) {
            remove_stale(&partials, name) == Leftover::Stale
        } else {
            // A symlink or a fifo was not left by a run.
            let is_file = sys::stat(partials.fd(), name, false)
                .is_ok_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::File));
            is_file && sys::unlink(partials.fd(), name).is_ok()
        }
    };
    let gone = find(&partials).iter().filter(|&name| remove(name)).count();
    let may_be_left = gone > 0 || context.options.place.delay_updates;
    may_be_left && !holder.starts_with(b"/") && sys::rmdir(dir.fd(), holder).is_ok()
}

/// Returns whether two open directories are one, or may be.
fn is_same_dir(one: &Dir, other: &Dir) -> bool {
    match (one.id(), other.id()) {
        (Ok(one), Ok(other)) => one == other,
        (Err(_), _) | (_, Err(_)) => true,
    }
}
