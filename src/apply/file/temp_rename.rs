//! Writes content into a temporary or unnamed file, which then replaces the old one. Under `--inplace`, writes a new
//! file under its final name.

use crate::apply::attributes::Has;
use crate::apply::content::{
    BasisFile, Content, ContentCounts, ContentTarget, NewContent, basis_file,
};
use crate::apply::delayed::{delay, staging_dir};
use crate::apply::file::failure::{Failure, io_failed, no_backup, rename_failed};
use crate::apply::file::hold_twin;
use crate::apply::file::share_blocks;
use crate::apply::file::verify::read_back;
use crate::apply::file::write_content::fill;
use crate::apply::job::Job;
use crate::apply::partial::NotKept;
use crate::apply::{Outcome, TempDir, attributes, backup, partial, refusal};
use crate::fs::probe::space;
use crate::fs::root::Dir;
use crate::fs::write::Pending;
use crate::fs::{errno, sys, trusted_path};
use crate::plan::TimesToSet;
use crate::proto::limits::content_max_bytes;
use crate::report::event::{ErrorRole, Event, Problem, Weight};
use std::io;
use std::os::fd::AsFd;

/// How a finished file gets its name.
enum Naming<'a> {
    /// At the end of the run, from this directory.
    Delayed(&'a Dir),
    /// By a rename.
    Rename,
    /// From a temporary directory in another file system, because there is no room beside the old file.
    Move,
}

/// Writes a file and sets its name and attributes.
pub(super) fn replace<'c>(
    job: &Job<'c>,
    dir: &Dir,
    NewContent { content, similar }: NewContent<'_, 'c>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Failure> {
    let place = &job.context.options.place;
    let mode = job.wanted_mode();
    let stays = place.inplace || place.append.is_some();
    let temp_dir = if stays { None } else { temp_dir(job, out)? };
    let staging = staging_dir(job, dir)?;
    let naming = match (&staging, temp_dir) {
        (Some(staging), _) => Naming::Delayed(staging),
        (None, Some(temp_dir)) if !is_near(temp_dir, dir) && lacks_room(job, dir) => Naming::Move,
        (None, _) => Naming::Rename,
    };
    let staged = match naming {
        Naming::Delayed(staging) => Some(staging),
        Naming::Move => temp_dir,
        Naming::Rename => temp_dir.filter(|temp_dir| is_near(temp_dir, dir)),
    };
    // Opened before its successor replaces what a crash left.
    let basis = match content {
        Content::Stream { .. } => basis_file(job, dir, similar),
        Content::File(_) if job.context.shares_blocks() => basis_file(job, dir, similar),
        Content::File(_) | Content::Alternate(_) | Content::Twin(_) => None,
    };

    let pending = begin(job, dir, mode, &naming, staged)?;
    out.report_begun(job.source().len_bytes);
    job.dest_dir.last.touch();
    if place.preallocate && job.source().len_bytes > 0 {
        preallocate(job, &pending, out);
    }
    let Unwritten {
        failure,
        is_unusable,
    } = match write(job, &pending, content, basis, out) {
        Ok(content_counts) => {
            finish(job, &pending, mode, out)?;
            give_name(job, dir, pending, &naming, out)?;
            return Ok(content_counts);
        }
        Err(unwritten) => unwritten,
    };

    if is_unusable && !pending.is_in_place() {
        pending.discard();
        return Err(failure);
    }
    if partial::is_kept(job) && !pending.is_in_place() {
        // As in rsync, a part has the attributes of the file: without --perms, the next run leaves them as they are.
        set_attributes(job, &pending, mode, TimesToSet::Neither, out);
    }
    // The part that should have been kept is lost.
    match partial::keep(job, dir, pending, out) {
        Ok(()) => {}
        Err(NotKept::Rename(error)) => rename_failed(job, &error).report(out),
        Err(NotKept::NoBackup(problem)) => no_backup(problem).report(out),
    }
    Err(failure)
}

/// Creates the file that gets the content. `staged`: the directory for its temporary name, if that is another one.
fn begin(
    job: &Job<'_>,
    dir: &Dir,
    mode: u32,
    naming: &Naming<'_>,
    staged: Option<&Dir>,
) -> Result<Pending, Failure> {
    let place = &job.context.options.place;
    // Where links are refused, a file without a name would be copied after it was verified.
    let is_named =
        job.replaces() || job.context.resumes(job.source().len_bytes) || place.verify.is_some();
    let in_place =
        (place.inplace && !job.replaces()).then(|| Pending::begin_in_place(dir, job.name(), mode));
    let pending = match in_place {
        Some(Ok(pending)) => Ok(pending),
        Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Pending::begin(dir, job.name(), mode & 0o777, is_named, staged),
    };
    pending.map_err(|error| {
        let is_in_temp_dir = staged.is_some() && !matches!(naming, Naming::Delayed(_));
        let shown = match &place.temp_dir {
            Some(given) if is_in_temp_dir => temp_shown(job, given),
            Some(_) | None => job.temp_full(),
        };
        Problem::failed(ErrorRole::Receiver, "mkstemp", &shown, &error).into()
    })
}

/// Reserves the space of a file (`--preallocate`). If that fails, it is reported, and the file is written as it is.
fn preallocate(job: &Job<'_>, pending: &Pending, out: &mut Outcome<'_>) {
    let place = &job.context.options.place;
    let len_bytes = job.source().len_bytes;
    match sys::allocate(pending.fd(), len_bytes) {
        // This has checked for free space. With --sparse, runs of zeros must not use any. Blocks behind the end of a file
        // cannot be punched on all file systems, but those that a truncation cuts off are freed.
        Ok(()) if place.sparse => {
            drop(
                sys::truncate(pending.fd(), len_bytes)
                    .and_then(|()| sys::truncate(pending.fd(), 0)),
            );
        }
        Ok(()) => {}
        Err(error) => {
            let full = job.full();
            let problem = Problem::about(ErrorRole::Receiver, "do_fallocate", &full, &error);
            out.events
                .push(Event::Problem(problem.weighing(Weight::Warning)));
        }
    }
}

/// Why a file could not be written.
struct Unwritten {
    failure: Failure,
    /// Nothing of it may be kept: it reads back differently, or has a rest of the basis.
    is_unusable: bool,
}

/// Writes the content of a file, and reads it back if the options require that.
fn write<'c>(
    job: &Job<'c>,
    pending: &Pending,
    content: &mut Content<'c>,
    basis: Option<BasisFile>,
    out: &mut Outcome<'_>,
) -> Result<ContentCounts, Unwritten> {
    let place = &job.context.options.place;
    let shares_blocks = job.context.shares_blocks();
    let basis_fd = basis.as_ref().map(|basis| basis.fd.as_fd());
    // Under its final name, a clone would look complete. Content that comes again comes without a basis.
    let may_clone = shares_blocks && !pending.is_in_place() && !out.is_repeated;
    let is_clone = match basis_fd {
        Some(basis) if may_clone => share_blocks::clone_basis(job, basis, pending.fd(), out)
            .map_err(|error| Unwritten {
                failure: io_failed(job, "ftruncate", &error),
                is_unusable: true,
            })?,
        Some(_) | None => false,
    };
    let basis_fd = match content {
        Content::Stream { .. } => basis_fd,
        // A file of this machine is compared with the clone.
        Content::File(_) | Content::Alternate(_) | Content::Twin(_) => {
            is_clone.then(|| pending.fd())
        }
    };
    let target = ContentTarget {
        verified_bytes: 0,
        to: pending.fd(),
        start_bytes: 0,
        basis: basis_fd,
        in_place: false,
        is_clone,
        clones_content: shares_blocks
            && matches!(content, Content::Alternate(_) | Content::Twin(_)),
        sparse: place.sparse,
        fresh: true,
        is_device: false,
        verifies: place.verify.is_some(),
        max_bytes: content_max_bytes(job.source().len_bytes),
        threads: job.context.process.threads,
    };
    out.filled_bytes = 0;
    let mut filled = fill(job, content, target, out);
    if let Ok(content_counts) = &filled
        && let Err(failure) = read_back(job, pending.fd(), content_counts, out)
    {
        filled = Err(failure);
    }
    // An open file would take its space until it is closed.
    drop(basis);
    if is_clone {
        // What follows is from the basis. It must not become a part of the file, nor make a part of it look complete.
        let end = filled
            .as_ref()
            .map_or(out.filled_bytes, |counts| counts.end_bytes);
        if let Err(error) = sys::truncate(pending.fd(), end) {
            let truncation = || io_failed(job, "ftruncate", &error);
            return Err(Unwritten {
                failure: filled.err().unwrap_or_else(truncation),
                is_unusable: true,
            });
        }
    }
    filled.map_err(|failure| Unwritten {
        is_unusable: matches!(failure, Failure::Damaged(_)),
        failure,
    })
}

/// Returns the path of a temporary file in the directory of `--temp-dir`, for messages.
fn temp_shown(job: &Job<'_>, given: &[u8]) -> Vec<u8> {
    let temp = crate::path::join(given, &[job.name(), b".XXXXXX"].concat());
    if temp.starts_with(b"/") {
        temp
    } else {
        job.context.full(&temp)
    }
}

/// Returns the directory of `--temp-dir`. If it must not be used, the file fails.
fn temp_dir<'c>(job: &Job<'c>, out: &mut Outcome<'_>) -> Result<Option<&'c Dir>, Failure> {
    let Some(given) = job.context.options.place.temp_dir.as_deref() else {
        return Ok(None);
    };
    let error = match job.context.temp_dir {
        _ if crate::path::climbs(given) && !job.context.options.place.temp_dir_climbs => {
            errno::invalid()
        }
        None => return Ok(None),
        Some(TempDir::Open(temp_dir)) => return Ok(Some(temp_dir)),
        Some(TempDir::Refused) => {
            out.events.push(refusal());
            trusted_path::refused()
        }
        Some(TempDir::Outside) => errno::outside(),
    };
    let shown = temp_shown(job, given);
    if matches!(job.context.temp_dir, Some(TempDir::Outside)) {
        // rsync writes the file there, and cannot move it.
        out.events.push(Event::Problem(Problem::failed(
            ErrorRole::Receiver,
            "stat",
            &shown,
            &error,
        )));
        let names = [&shown[..], b"\" -> \"", job.path.as_bytes()].concat();
        return Err(Problem::about(ErrorRole::Receiver, "rename", &names, &error).into());
    }
    Err(Problem::failed(ErrorRole::Receiver, "mkstemp", &shown, &error).into())
}

/// Sets the attributes of a complete file before it gets its final name.
fn finish(
    job: &Job<'_>,
    pending: &Pending,
    mode: u32,
    out: &mut Outcome<'_>,
) -> Result<(), Failure> {
    if pending.has_name() {
        // A file system without unnamed files may write late. Nothing may be replaced by a file whose data is not
        // written.
        sys::settle(pending.fd()).map_err(|error| io_failed(job, "close", &error))?;
    }
    set_attributes(job, pending, mode, TimesToSet::Both, out);
    if job.context.options.place.fsync {
        sys::fsync(pending.fd()).map_err(|error| io_failed(job, "fsync", &error))?;
    }
    Ok(())
}

/// Sets the attributes of a file before it gets its final name. `times`: which times are set.
fn set_attributes(
    job: &Job<'_>,
    pending: &Pending,
    mode: u32,
    times: TimesToSet,
    out: &mut Outcome<'_>,
) {
    let inherits_nothing = job.dest_dir.default_acl().is_none();
    let sure_of_mode = pending.has_its_mode() && inherits_nothing && mode & 0o7000 == 0;
    let has = Has {
        ids: if job.context.temp_dir.is_none() {
            job.dest_dir.new_ids(pending.fd())
        } else {
            None
        },
        mode: sure_of_mode.then_some(mode),
        times,
        acls: inherits_nothing.then_some((b"", b"")),
        local: job.local_values(),
        ..Has::default()
    };
    let full = || job.temp_full();
    let target = job.target((pending.fd(), b""), &full, ErrorRole::Receiver);
    if !attributes::finish(
        job.context,
        target,
        job.source(),
        has,
        mode,
        &mut out.events,
    ) {
        // Its owner could not be set, so it stays as private as the file that rsync writes. It was created as private.
        let private = if pending.is_in_place() {
            0o600
        } else {
            (mode | 0o200) & 0o700
        };
        let _ = sys::fchmod(pending.fd(), private);
    }
}

/// Gives a finished file its name, either the final one or the one in its staging directory.
fn give_name(
    job: &Job<'_>,
    dir: &Dir,
    pending: Pending,
    naming: &Naming<'_>,
    out: &mut Outcome<'_>,
) -> Result<(), Failure> {
    let renamed = |result: io::Result<()>| result.map_err(|error| rename_failed(job, &error));
    if let Naming::Delayed(staging) = naming {
        renamed(pending.place(staging, job.name()))?;
        delay(job);
        if job.context.options.place.partial_dir.as_deref() != Some(job.context.staging_name()) {
            partial::forget(job, dir);
        }
        return Ok(());
    }
    // A file that is moved because there is no room has none for the old content. A backup can take the old name.
    let replaces = matches!(naming, Naming::Rename) && job.replaces();
    if replaces && !hold_twin::before_replacing(job, dir, out) {
        return Err(Failure::Stopped);
    }
    // A new file that is written in place has its name already.
    let may_be_taken = job.replaces() || !pending.is_in_place();
    if may_be_taken {
        backup::back_up_replaced(
            job.context,
            ErrorRole::Receiver,
            dir,
            &job.path,
            job.replaces(),
            &mut out.events,
        )
        .map_err(no_backup)?;
    }
    renamed(match naming {
        Naming::Move => pending.place_without_room(dir, job.name()),
        Naming::Delayed(_) | Naming::Rename => pending.place(dir, job.name()),
    })?;
    partial::forget(job, dir);
    Ok(())
}

/// Returns whether the file system of the destination cannot hold the new file beside the old one. For this case, users
/// name a temporary directory in another file system.
fn lacks_room(job: &Job<'_>, dir: &Dir) -> bool {
    job.replaces() && space(dir.fd()).is_ok_and(|space| space.free_bytes < job.source().len_bytes)
}

/// Returns whether a file can be renamed from one directory into the other. Moving it from another file system would
/// copy it again and expose it half-written, so its temporary file is then created beside its final name.
fn is_near(temp_dir: &Dir, dir: &Dir) -> bool {
    matches!((sys::fstat(temp_dir.fd()), sys::fstat(dir.fd())), (Ok(temp), Ok(dest)) if temp.dev == dest.dev)
}
