//! Resolves the destination argument: opens the directory, or creates it.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::{Entry, Kind};
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::fs::{acl, errno, trusted_path};
use crate::options::{Check, LinkOwners, Options, PlanUse};
use crate::path;
use crate::report::event::{ErrorRole, Problem};
use crate::walk::run_context::RunContext;
use crate::walk::{arg_path, enter_by};
use std::io;
use std::os::fd::AsFd as _;

/// Properties of the sources that decide how the destination argument is interpreted.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// No argument named anything. The destination is still opened or created, as if for one file.
    pub is_empty: bool,
    /// The name of the only entry in the list, if the list is one entry and that is not a directory.
    pub single: Option<Vec<u8>>,
    /// Whether the directory is empty, if the only argument is a directory.
    pub lone_dir_is_bare: Option<bool>,
    /// The content of a directory is the transfer's root.
    pub has_top: bool,
}

/// The resolved destination.
#[derive(Default)]
pub struct Destination {
    /// Its top directory; `None` if it does not exist (dry run, or `--existing` and an empty directory).
    pub root: Option<Root>,
    /// Its absolute path, for messages.
    pub path: Vec<u8>,
    /// The absolute path of the directory that the paths of options are relative to.
    pub work_dir: Vec<u8>,
    /// The new name of the single entry.
    pub renamed: Option<Vec<u8>>,
    /// Its permission bits before the owner was given access to it; `None` if they were not changed.
    pub mode_before: Option<u32>,
    /// The permission bits with which it was created, or would be in a dry run; `None` if it existed before.
    pub new_mode: Option<u32>,
    /// A symlink at `path` that leads nowhere: the run keeps it, or a dry run would replace it.
    pub link: Option<Entry>,
    /// Lines about the directories that were created for it.
    pub made: Vec<Vec<u8>>,
    /// The device and inode number of the directory that was created for it, or of the topmost one.
    pub topmost_created: Option<(u64, u64)>,
}

impl Destination {
    /// Opens or creates the destination. Without a destination argument the result has no root.
    pub fn find(
        run_context: &RunContext<'_>,
        dest: Option<&[u8]>,
        facts: &Facts,
    ) -> Result<Destination> {
        let Some(given) = dest else {
            return Ok(Destination::at(None, Vec::new()));
        };
        let full = arg_path::absolute(run_context.process.cwd, given);
        let search = Search {
            run_context,
            facts,
            arg: if given.is_empty() { b"." } else { given },
            full,
        };
        match sys::stat_path(search.arg, true) {
            Ok(stat) if Kind::of_mode(stat.mode) == Some(Kind::Dir) => {
                return search.enter(stat.mode);
            }
            Ok(_) => search.may_be_replaced()?,
            Err(error) => search.may_be_missing(&error)?,
        }
        search.make()
    }

    /// Removes the directory again if it is the new name of an empty directory. rsync would create it as an entry only.
    pub fn remove_if_named_anew(&self) {
        if self.new_mode.is_some()
            && self.root.is_some()
            && self.work_dir != self.path
            && let Ok(parent) = trusted_path::open_dir(&self.work_dir, LinkOwners::Anyone)
        {
            // Another process can have filled it meanwhile.
            let _ = sys::rmdir(parent.as_fd(), path::file_name(&self.path));
        }
    }

    /// Returns an existing destination that needs no change and no new name.
    fn at(root: Option<Root>, path: Vec<u8>) -> Destination {
        Destination {
            root,
            work_dir: path.clone(),
            path,
            ..Destination::default()
        }
    }
}

/// The inputs of the search for the destination.
struct Search<'a> {
    run_context: &'a RunContext<'a>,
    facts: &'a Facts,
    /// As given by the user, never empty.
    arg: &'a [u8],
    /// The absolute path of `arg`, without a trailing slash.
    full: Vec<u8>,
}

impl Search<'_> {
    /// Opens an existing directory.
    fn enter(&self, mode: u32) -> Result<Destination> {
        let opens_up = self.facts.has_top && !self.run_context.options.dry_run;
        let (dir, mode_before) = enter(
            self.arg,
            mode,
            opens_up,
            self.run_context.options.preserve.link_owners,
        )
        .map_err(|error| cannot_enter("change_dir#1", &self.shown(), &error))?;
        Ok(Destination {
            mode_before,
            ..Destination::at(Some(self.root(dir, self.full.clone())), self.full.clone())
        })
    }

    /// Fails unless the existing non-directory may be replaced, which only a single file can do.
    fn may_be_replaced(&self) -> Result<()> {
        let line = if self.lone_dir_is_bare() {
            "ERROR: cannot overwrite non-directory with a directory"
        } else if self.facts.single.is_none() && !self.facts.is_empty {
            "ERROR: destination must be a directory when copying more than 1 file"
        } else {
            return Ok(());
        };
        Err(Error::new(Exit::FileSelect, line).by("Receiver"))
    }

    /// Fails unless the error means that the destination does not exist and may be created.
    fn may_be_missing(&self, error: &io::Error) -> Result<()> {
        match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            io::ErrorKind::NotADirectory if self.run_context.options.place.mkpath => {
                Err(cannot_make(&self.shown(), &self.cannot_make_below()))
            }
            _ => {
                let what = "ERROR: cannot stat destination";
                let problem = Problem::about(ErrorRole::MainReceiver, what, &self.shown(), error);
                Err(Error::new(Exit::FileSelect, problem.line).by("Receiver"))
            }
        }
    }

    /// Creates what is missing: the directory, and under `--mkpath` those above it. If the single entry takes the
    /// destination's name, only the directories above are created.
    fn make(&self) -> Result<Destination> {
        let run_context = self.run_context;
        let is_one = self.is_one();
        let dry_run = run_context.options.dry_run;
        let mkpath = run_context.options.place.mkpath;
        let arg = without_slashes(self.arg);
        let parent = parent_of(arg);
        let mut made = Vec::new();
        let mut work_dir = self.full.clone();
        let mut link = None;
        let mut topmost = arg;
        if mkpath {
            let wanted = if is_one { parent } else { arg };
            let count =
                make_path(run_context, wanted).map_err(|error| cannot_make(&self.full, &error))?;
            if count > 0 {
                topmost = (1..count).fold(wanted, |below, _| path::split_parent(below).0);
                let what = if count == 1 {
                    "directory"
                } else {
                    "directories"
                };
                made.push([format!("created {count} {what} for ").as_bytes(), wanted].concat());
            }
        }
        let is_root = !is_one || self.facts.has_top;
        if is_root
            && run_context
                .process
                .stored
                .is_some_and(|plan| !plan.creates_dest())
        {
            return Err(self.is_gone());
        }
        if is_one {
            let parent_full = arg_path::absolute(run_context.process.cwd, parent);
            let root = match sys::stat_path(parent, true) {
                Ok(_) => Some(self.open(parent, parent_full.clone(), "change_dir#3")?),
                Err(_) if dry_run && mkpath => None,
                Err(error) => return Err(cannot_enter("change_dir#3", &parent_full, &error)),
            };
            if !self.facts.has_top {
                if self.lone_dir_is_bare() && run_context.options.plan_use == PlanUse::Record {
                    return Err(self.cannot_be_recorded());
                }
                let renamed = Some(path::file_name(arg).to_vec());
                return Ok(Destination {
                    renamed,
                    made,
                    ..Destination::at(root, parent_full)
                });
            }
            // As in rsync, an empty directory is a single entry, also if only its content is named.
            work_dir = parent_full;
            let existing = sys::stat_path(arg, false)
                .ok()
                .map(|stat| Entry::from_stat(&stat));
            link = existing.filter(|entry| entry.kind() == Kind::Symlink);
            let Check {
                existing_only,
                ignore_existing,
                ..
            } = run_context.options.check;
            let is_left_alone = if link.is_some() {
                ignore_existing
            } else {
                existing_only
            };
            if is_left_alone {
                return Ok(Destination {
                    made,
                    work_dir,
                    link,
                    ..Destination::at(None, self.full.clone())
                });
            }
            if link.is_some() && run_context.options.place.backup.is_some() {
                return Err(cannot_make(&self.full, &errno::exists()));
            }
            if let Some(parent) = root
                && link.is_some()
                && !dry_run
            {
                sys::unlink(parent.dir().fd(), path::file_name(arg))
                    .map_err(|error| cannot_make(&self.full, &error))?;
                link = None;
            }
        }
        let exists = mkpath && !is_one && !dry_run;
        let mode = new_dir_mode(arg, run_context.process.umask);
        if !dry_run && !exists {
            sys::mkdir_path(arg, mode).map_err(|error| cannot_make(&self.full, &error))?;
        }
        if !exists && !is_one {
            made.push([b"created directory ", arg].concat());
        }
        let (root, topmost_created) = if dry_run {
            (None, None)
        } else {
            let created = sys::stat_path(topmost, true).ok();
            let root = self.open(arg, self.full.clone(), "change_dir#2")?;
            (Some(root), created.map(|stat| (stat.dev, stat.ino)))
        };
        Ok(Destination {
            new_mode: if exists { None } else { Some(mode) },
            made,
            topmost_created,
            work_dir,
            link,
            ..Destination::at(root, self.full.clone())
        })
    }

    /// Returns the error of a destination that is missing, and that the stored plan does not create.
    fn is_gone(&self) -> Error {
        let what = b"sparsync apply: the destination is gone: ".as_slice();
        Error::new(
            Exit::FileSelect,
            [what, self.arg, b": nothing was changed"].concat(),
        )
        .with_hint("mount it, or use --root-changed to create it")
        .by("Receiver")
    }

    /// Returns the error that rsync reports if the destination cannot be created below a non-directory. Which errno it is
    /// depends on how many elements are missing, and for more than one on whether the path is absolute.
    fn cannot_make_below(&self) -> io::Error {
        let shown = self.shown();
        let mut existing = &shown[..];
        let mut missing = 0usize;
        while sys::stat_path(existing, true).is_err() && !existing.is_empty() {
            let trimmed = existing.strip_suffix(b"/");
            existing = trimmed.unwrap_or_else(|| path::split_parent(existing).0);
            missing += usize::from(trimmed.is_none());
        }
        match missing - usize::from(self.is_one() && missing > 0) {
            _ if self.run_context.options.dry_run => errno::not_a_directory(),
            0 => errno::exists(),
            2.. if !self.arg.starts_with(b"/") => errno::outside(),
            1.. => errno::not_a_directory(),
        }
    }

    /// Once the empty directory has its new name, the destination is a directory, so that the same operands stand for an
    /// entry below it.
    fn cannot_be_recorded(&self) -> Error {
        let line = [
            b"sparsync plan: \"".as_slice(),
            &self.shown(),
            b"\" is the new name of an empty directory: a plan cannot record that",
        ];
        Error::new(Exit::FileSelect, line.concat())
            .with_hint("end the source with a slash: the result is the same")
    }

    fn lone_dir_is_bare(&self) -> bool {
        self.facts.lone_dir_is_bare == Some(true)
    }

    /// Whether the single entry takes the destination as its name. A trailing slash makes the destination a directory.
    fn is_one(&self) -> bool {
        !self.arg.ends_with(b"/")
            && (self.facts.single.is_some() || self.lone_dir_is_bare() || self.facts.is_empty)
    }

    /// Returns the absolute path, with a trailing slash if one was given.
    fn shown(&self) -> Vec<u8> {
        if self.arg.ends_with(b"/") {
            [&self.full, &b"/"[..]].concat()
        } else {
            self.full.clone()
        }
    }

    fn open(&self, path: &[u8], full: Vec<u8>, place: &str) -> Result<Root> {
        let opened = trusted_path::open_dir(path, self.run_context.options.preserve.link_owners);
        let fd = opened.map_err(|error| cannot_enter(place, &full, &error))?;
        Ok(self.root(Dir::new(fd), full))
    }

    fn root(&self, dir: Dir, full: Vec<u8>) -> Root {
        sys::examine_times(dir.fd());
        let Options {
            preserve, select, ..
        } = self.run_context.options;
        // As in rsync, an implied directory may then be a symlink to a directory.
        let follows_implied = select.relative && select.no_implied_dirs;
        let follow = if preserve.keep_dirlinks || follows_implied {
            Follow::Inside
        } else {
            Follow::Never
        };
        Root::new(dir, full, follow)
    }
}

/// Returns the error for a directory that cannot be entered. `place` is rsync's number for the call.
fn cannot_enter(place: &str, full: &[u8], error: &io::Error) -> Error {
    let problem = Problem::failed(ErrorRole::MainReceiver, place, full, error);
    Error::new(
        Exit::FileSelect,
        trusted_path::with_refusal(error, problem.line),
    )
    .by("Receiver")
}

/// Returns the error for a directory that cannot be created.
fn cannot_make(full: &[u8], error: &io::Error) -> Error {
    let problem = Problem::failed(ErrorRole::MainReceiver, "mkdir", full, error);
    Error::new(Exit::FileIo, problem.line).by("Receiver")
}

/// Opens the destination directory. With `opens_up`, a directory that its owner cannot list gets mode `u+rwx`, and its
/// previous mode is returned. Otherwise such a directory is opened only for access by name.
fn enter(
    path: &[u8],
    mode: u32,
    opens_up: bool,
    owners: LinkOwners,
) -> io::Result<(Dir, Option<u32>)> {
    let mode = mode & 0o7777;
    let open = |path: &[u8]| trusted_path::open_dir(path, owners);
    let dir = enter_by(path, &open, &|path| {
        trusted_path::open_dir_to_search(path, owners)
    })?;
    if opens_up
        && mode & 0o400 == 0
        && open(path).is_err()
        && sys::chmod(dir.fd(), b".", mode | 0o700).is_ok()
        && let Ok(fd) = open(path)
    {
        return Ok((Dir::new(fd), Some(mode)));
    }
    Ok((dir, None))
}

/// Removes trailing slashes from a path, except from `/`.
fn without_slashes(path: &[u8]) -> &[u8] {
    path.iter()
        .rposition(|&b| b != b'/')
        .map_or(path, |at| &path[..=at])
}

/// Returns the parent directory of a path without trailing slashes.
fn parent_of(path: &[u8]) -> &[u8] {
    match path::split_parent(path).0 {
        b"" if path.starts_with(b"/") => b"/",
        b"" => b".",
        parent => parent,
    }
}

/// Returns the mode that mkdir(1) would give a new directory of this path.
fn new_dir_mode(path: &[u8], umask: u32) -> u32 {
    let parent = [parent_of(without_slashes(path)), b"/."].concat();
    let default = sys::lgetxattr(&parent, acl::DEFAULT).unwrap_or(None);
    let default_mode = default.as_deref().and_then(acl::default_mode);
    acl::mode_of_new_dir(default_mode, umask)
}

/// Creates a directory and those above it (`--mkpath`), or in a dry run only counts them. Returns how many were
/// missing.
fn make_path(run_context: &RunContext<'_>, path: &[u8]) -> io::Result<usize> {
    match sys::stat_path(path, true) {
        Ok(_) => return Ok(0),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    let parent = path::split_parent(path).0;
    let above = if parent.is_empty() {
        0
    } else {
        make_path(run_context, parent)?
    };
    if !run_context.options.dry_run {
        sys::mkdir_path(path, new_dir_mode(path, run_context.process.umask))?;
    }
    Ok(above + 1)
}
