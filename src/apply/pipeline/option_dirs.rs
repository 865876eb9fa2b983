//! The directories that options give relative to the destination: alternate trees, backups, temporary files.

use crate::apply::pipeline::{EventSink, Receiving};
use crate::apply::{BackupDir, TempDir};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Kind;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::fs::{errno, sandbox, trusted_path};
use crate::path;
use crate::report::event::{Event, Problem, Weight, strerror};
use crate::report::tally::Tally;
use crate::walk::alternate::Alternate;
use crate::walk::arg_path;
use std::io;
use std::os::fd::AsFd as _;

impl Receiving<'_> {
    /// Returns the absolute path of a directory that an option gives relative to the destination. If the destination is
    /// missing (dry run), leading `../` are resolved in its path instead of by the kernel.
    fn named_path(&self, dir: &[u8]) -> Vec<u8> {
        let mut top = self.to.work_dir.as_slice();
        let mut rest = dir;
        while let Some(above) = rest.strip_prefix(b"../")
            && sys::stat_path(top, true).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            (top, rest) = (path::split_parent(top).0, above);
        }
        arg_path::absolute(top, rest)
    }

    /// Opens the alternate trees. One that does not exist is reported and left out.
    pub(super) fn alternates(
        &self,
        listener: &mut dyn EventSink,
        tally: &mut Tally,
    ) -> Vec<Alternate> {
        let Some(alt) = &self.run_context.options.delta.alt_dest else {
            return Vec::new();
        };
        let owners = self.run_context.options.preserve.link_owners;
        let mut found = Vec::new();
        for dir in &alt.dirs {
            let path = self.named_path(dir);
            let opened = trusted_path::open_dir_of_known_names(&path, owners);
            let is_refused = opened.as_ref().is_err_and(trusted_path::is_refused);
            // A missing directory is still reported.
            let opened_dir = if is_refused {
                is_dir(&path).map(|()| None)
            } else {
                opened.map(Some)
            };
            let root = match opened_dir {
                // An empty directory would be compared with an entry of its new name, hardly with this directory.
                Ok(_) if self.to.work_dir != self.to.path => None,
                Ok(fd) => fd.map(|fd| Root::new(Dir::new(fd), path, Follow::Never)),
                Err(error) => {
                    let option = alt.option();
                    let what = if error.kind() == io::ErrorKind::NotADirectory {
                        "is not a dir"
                    } else {
                        "does not exist"
                    };
                    let shown = without_slash(dir);
                    let is_shown_as_given = alt.shown_as_given || dir.starts_with(b"/");
                    let given = if is_shown_as_given {
                        shown.to_vec()
                    } else {
                        path::join(&self.to.work_dir, shown)
                    };
                    // rsync reports every error as "does not exist". A directory outside of the grant may exist.
                    let (line, weight) = if sandbox::is_outside(&error) {
                        let mut line = format!("sparsync: {option} ").into_bytes();
                        line.extend_from_slice(&given);
                        line.extend(format!(": {error}").into_bytes());
                        (line, Weight::Failed)
                    } else {
                        let mut line = format!("{option} arg {what}: ").into_bytes();
                        line.extend_from_slice(&given);
                        (line, Weight::Warning)
                    };
                    tally.problem(weight);
                    listener.report(&Event::Problem(Problem::new(line, weight)));
                    None
                }
            };
            if root.is_some() || is_refused {
                found.push(Alternate {
                    given: dir.clone(),
                    root,
                    owners,
                });
            }
        }
        found
    }

    /// Returns where `--backup-dir` leads. It need not exist, but anything else than a directory is an error, there or in
    /// the place of one of its parents.
    pub(super) fn backup_dir(&self) -> Result<Option<BackupDir>> {
        let Some(dir) = self
            .run_context
            .options
            .place
            .backup
            .as_ref()
            .and_then(|backup| backup.dir.as_ref())
        else {
            return Ok(None);
        };
        let path = arg_path::absolute(&self.to.work_dir, dir);
        match sys::stat_path(&path, true) {
            Ok(stat) if Kind::of_mode(stat.mode) != Some(Kind::Dir) => {
                let line = [b"The backup-dir is not a directory: ", without_slash(dir)].concat();
                Err(Error::new(Exit::Usage, line).by("Receiver"))
            }
            Err(error) if cannot_lead_there(&error) => Err(cannot_stat(b"", dir, &error)),
            _ => Ok(Some(BackupDir::new(
                path,
                &self.to.path,
                self.run_context.process.umask,
                self.run_context.options.preserve.link_owners,
            ))),
        }
    }

    /// Returns where `--temp-dir` leads, or an error if that is not a directory.
    pub(super) fn temp_dir(&self) -> Result<Option<TempDir>> {
        let Some(dir) = self.run_context.options.place.temp_dir.as_ref() else {
            return Ok(None);
        };
        let path = arg_path::absolute(&self.to.work_dir, dir);
        if let Err(error) = sys::stat_path(&path, true)
            && cannot_lead_there(&error)
        {
            return Err(cannot_stat(b"temp-dir ", dir, &error));
        }
        let owners = self.run_context.options.preserve.link_owners;
        let opened = match trusted_path::open_dir_of_known_names(&path, owners) {
            Err(error) if trusted_path::is_refused(&error) => {
                is_dir(&path).map(|()| TempDir::Refused)
            }
            // As in rsync, a relative path is not confined.
            Ok(fd) if dir.starts_with(b"/") && trusted_path::check_inside(fd.as_fd()).is_err() => {
                Ok(TempDir::Outside)
            }
            opened => opened.map(|fd| TempDir::Open(Dir::new(fd))),
        };
        match opened {
            Ok(temp_dir) if !dir.is_empty() => Ok(Some(temp_dir)),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(Error::usage(
                [b"The temp-dir is not a directory: ", dir.as_slice()].concat(),
            )
            .by("Receiver")),
            _ => Err(
                Error::usage([b"The temp-dir does not exist: ", dir.as_slice()].concat())
                    .by("Receiver"),
            ),
        }
    }
}

/// Returns whether an error means that the path of an option leads nowhere even if directories are created: something
/// else than a directory is in the way, or it must not be looked at.
fn cannot_lead_there(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::NotFound && !sandbox::is_outside(error)
}

/// Returns the error of a run whose option names a path that cannot be examined.
fn cannot_stat(what: &[u8], dir: &[u8], error: &io::Error) -> Error {
    let line = [b"Failed to stat ", what, dir, b": ", &strerror(error)].concat();
    Error::new(Exit::FileIo, line).by("Receiver")
}

/// Returns the path of a directory as rsync prints it: without one slash at its end.
fn without_slash(dir: &[u8]) -> &[u8] {
    match dir.strip_suffix(b"/") {
        Some(shorter) if !shorter.is_empty() => shorter,
        _ => dir,
    }
}

/// Returns an error unless the path leads to a directory, through whatever symlinks.
fn is_dir(path: &[u8]) -> io::Result<()> {
    match Kind::of_mode(sys::stat_path(path, true)?.mode) {
        Some(Kind::Dir) => Ok(()),
        _ => Err(errno::not_a_directory()),
    }
}
