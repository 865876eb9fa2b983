//! Opens or creates directories of the destination, and sets the attributes that need not wait.
//!
//! The rest is left to their [`LastTouch`].

use crate::apply::abbreviated::LocalValues;
use crate::apply::attributes::{AttributeTarget, Has};
use crate::apply::dir_finalize::{LastTouch, Target};
use crate::apply::entry::SKIPPED_CONTENT;
use crate::apply::generator::Top;
use crate::apply::job::Job;
use crate::apply::{Context, DestDir, attributes, backup, delete};
use crate::flist::entry::Stat;
use crate::flist::{Entry, Kind};
use crate::fs::acl;
use crate::fs::errno;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::path::{self, RelPath};
use crate::plan::{self, Changes, TimesToSet, chmod, keeps_time};
use crate::report::event::{ErrorRole, Event, Problem, Weight};
use std::io;
use std::sync::Arc;

/// A directory to work in.
pub(super) struct Opened {
    /// `None` if a dry run would create it, or if it must not be entered.
    pub(super) dir: Option<Dir>,
    /// What is done to it at the end.
    pub(super) last: Arc<LastTouch>,
}

/// What a directory must look like.
#[derive(Clone, Copy)]
struct Model<'m> {
    context: &'m Context<'m>,
    source: &'m Entry,
    /// What the destination has, if anything.
    existing: Option<&'m Entry>,
    path: &'m RelPath,
    /// The absolute path, for messages.
    full: &'m [u8],
    /// See [`Target::is_link`].
    is_link: bool,
    /// See [`Target::has_other_names`].
    has_other_names: bool,
    /// What it inherits from its parent.
    around: chmod::Parent,
}

/// Returns the last touch of a directory that is left unchanged.
pub(super) fn untouched(context: &Context<'_>, parent: Option<&Arc<LastTouch>>) -> Arc<LastTouch> {
    LastTouch::new(parent.cloned(), None, context.late.clone())
}

/// Sets the attributes of the root, and returns those that must wait for the end.
pub(super) fn prepare_root(
    context: &Context<'_>,
    top: Option<&Top>,
    head: &mut Vec<Event>,
) -> Arc<LastTouch> {
    let (
        Some(Top {
            source, existing, ..
        }),
        Some(dest),
        false,
    ) = (top, context.dest, context.is_dry())
    else {
        return untouched(context, None);
    };
    let existing = existing.as_ref();
    let policy = context.policy;
    let changes = existing.map_or(Changes::NEW, |existing| {
        plan::attribute_changes(source, existing, policy)
    });
    let full = path::join(&dest.path, b".");
    let path = RelPath::root();
    let around = if existing.is_none() {
        // A new root has already inherited the default ACL and the setgid bit of its parent.
        let root = DestDir::new(
            RelPath::root(),
            Some(dest.dir().clone()),
            untouched(context, None),
        );
        root.passes_on()
    } else {
        chmod::Parent {
            default_acl_mode: None,
            setgid: false,
        }
    };
    let model = Model {
        context,
        source,
        existing,
        path: &path,
        full: &full,
        is_link: false,
        has_other_names: false,
        around,
    };
    let (mode, well) = if existing.is_none() {
        (model.finish_new(dest.dir(), head), true)
    } else {
        model.prepare((dest.dir(), b""), changes, head)
    };
    let window_secs = policy.check.window_secs;
    let same_time =
        |existing: &Entry| plan::quick_check::same_time(source.mtime, existing.mtime, window_secs);
    let is_wrong = changes.has(Changes::XATTR) || !existing.is_some_and(same_time);
    let last = Model {
        full: &dest.path,
        ..model
    }
    .last_touch(dest, None, is_wrong && well, mode);
    if is_wrong {
        last.touch();
    }
    last
}

/// Removes a non-directory where a directory must be. Returns whether that succeeded.
pub(super) fn clear_for(job: &Job<'_>, head: &mut Vec<Event>) -> bool {
    let path = &job.path;
    let Some(dir) = &job.dest_dir.dir else {
        return true;
    };
    job.dest_dir.last.touch();
    let keeps = !backup::is_backup(job.context, path);
    if job.context.is_dry() {
        if keeps {
            backup::report_backup(job.context, dir, path, head);
        }
        return true;
    }
    if keeps
        && let Err(problem) = backup::back_up(job.context, ErrorRole::Generator, dir, path, head)
    {
        head.push(Event::Problem(problem));
        return false;
    }
    match sys::unlink(dir.fd(), path.name()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            head.push(delete::failed("delete_file: unlink", path, &error));
            head.push(delete::no_room(Kind::Dir, path));
            head.push(Event::Problem(Problem::new(
                SKIPPED_CONTENT,
                Weight::Warning,
            )));
            false
        }
        _ => true,
    }
}

/// Opens the directory of a job, and creates it if it is missing. `None`: this failed and was reported. `is_bare`:
/// its attributes stay as they are.
pub(super) fn open_or_make(
    job: &Job<'_>,
    is_bare: bool,
    changes: Changes,
    head: &mut Vec<Event>,
) -> Option<Opened> {
    let context = job.context;
    let dest_dir = job.dest_dir;
    let untouched = |dir| {
        Some(Opened {
            dir,
            last: untouched(context, Some(&dest_dir.last)),
        })
    };
    if context.is_dry() {
        return untouched(opened_in_dry_run(job));
    }
    let full = context.full(job.path.as_bytes());
    let Some((parent, dest)) = dest_dir.dir.as_ref().zip(context.dest) else {
        let [problem, skipped] = cannot_make(&full, &parent_error(job));
        head.push(problem);
        if is_bare {
            // As in rsync, what is below it is tried and reported too.
            return untouched(None);
        }
        head.push(skipped);
        return None;
    };

    let existing = job.dest();
    let is_new = existing.is_none();
    let follows_links = context.policy.preserve.keep_dirlinks && !is_new;
    let link = if follows_links {
        symlink_at(parent, job.name())
    } else {
        None
    };
    let mut model = Model {
        context,
        source: job.source(),
        existing,
        path: &job.path,
        full: &full,
        is_link: link.is_some(),
        has_other_names: false,
        around: dest_dir.passes_on(),
    };
    if is_new {
        match sys::mkdir(parent.fd(), job.name(), model.mode_of_new(is_bare)) {
            Ok(()) => dest_dir.last.touch(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                head.extend(cannot_make(&full, &error));
                return None;
            }
        }
    }

    let opener = Opener {
        job,
        parent,
        dest,
        follows_links: is_bare || follows_links,
    };
    let mut opened = opener.open();
    let cannot_be_listed = opened
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    if cannot_be_listed {
        opened = opener.open_to_search();
    }
    let mut dir = match opened {
        Ok(dir) => Some(dir),
        // The plan of the directory reports the error.
        Err(_) if is_bare => None,
        Err(error) if follows_links && errno::leads_outside(&error) => None,
        Err(error) => {
            head.push(Event::Problem(Problem::failed(
                ErrorRole::Generator,
                "opendir",
                &full,
                &error,
            )));
            return None;
        }
    };
    // As in rsync, a symlink that leads outside gets the attributes nevertheless.
    if is_bare || (dir.is_none() && link.is_none()) {
        return untouched(dir);
    }
    if link.is_some()
        && let Some(dir) = &dir
        && let Ok(stat) = sys::fstat(dir.fd())
    {
        context.late.follow(&stat);
    }

    let (mode, well) = match &dir {
        Some(dir) if is_new => (model.finish_new(dir, head), true),
        Some(dir) if !cannot_be_listed && link.is_none() => {
            model.prepare((dir, b""), changes, head)
        }
        // A directory that cannot be listed can only be changed by its name.
        _ => model.prepare((parent, job.name()), changes, head),
    };
    if cannot_be_listed
        && !is_new
        && let Ok(listable) = opener.open()
    {
        dir = Some(listable);
    }

    if let Some(dir) = &dir {
        model.has_other_names = context.late.has_followed(dir);
    }
    let is_wrong = is_new || changes.any(Changes::TIME | Changes::XATTR);
    let last = model.last_touch(dest, Some(&dest_dir.last), is_wrong && well, mode);
    // After an error that was reported, rsync still tries to set the time. It also sets the time of a symlink that leads
    // to a directory whose time is right.
    let link_is_wrong = link.is_some_and(|link| link.mtime != job.source().mtime);
    if is_wrong || link_is_wrong {
        last.touch();
    }
    Some(Opened { dir, last })
}

/// Opens the directory of a job in a dry run, if it exists already.
fn opened_in_dry_run(job: &Job<'_>) -> Option<Dir> {
    let exists = job.dest_dir.dir.is_some() && job.dest().is_some();
    match job.context.dest {
        Some(dest) if exists => dest.open_dir_to_search(&job.path).ok(),
        _ => None,
    }
}

/// Returns the reason why the parent of a job's directory is not open.
fn parent_error(job: &Job<'_>) -> io::Error {
    let parent = job.path.parent().unwrap_or_else(RelPath::root);
    job.context
        .dest
        .and_then(|dest| dest.open_dir_to_search(&parent).err())
        .unwrap_or_else(errno::outside)
}

/// Examines a symlink. Returns `None` for anything else.
fn symlink_at(parent: &Dir, name: &[u8]) -> Option<Stat> {
    let stat = sys::stat(parent.fd(), name, false).ok()?;
    if Kind::of_mode(stat.mode) == Some(Kind::Symlink) {
        Some(stat)
    } else {
        None
    }
}

/// Opens the directory of a job.
struct Opener<'a> {
    job: &'a Job<'a>,
    parent: &'a Dir,
    dest: &'a Root,
    /// Whether symlinks to directories stand for them.
    follows_links: bool,
}

impl Opener<'_> {
    /// Opens the directory in order to list it.
    fn open(&self) -> io::Result<Dir> {
        if self.follows_links {
            return self.dest.open_dir(&self.job.path);
        }
        sys::open_dir(self.parent.fd(), self.job.name(), Follow::Never).map(Dir::new)
    }

    /// Opens the directory only in order to open what is in it.
    fn open_to_search(&self) -> io::Result<Dir> {
        if self.follows_links {
            return self.dest.open_dir_to_search(&self.job.path);
        }
        sys::open_dir_to_search(self.parent.fd(), self.job.name(), Follow::Never).map(Dir::new)
    }
}

impl Model<'_> {
    fn last_touch(
        self,
        dest: &Root,
        parent: Option<&Arc<LastTouch>>,
        always: bool,
        mode: Option<u32>,
    ) -> Arc<LastTouch> {
        let mtime = if keeps_time(Kind::Dir, &self.context.policy.preserve) {
            Some(self.source.mtime)
        } else {
            None
        };
        let root = dest.clone();
        let path = self.path.clone();
        let full = self.full.to_vec();
        let is_link = self.is_link;
        let target = Target {
            root,
            path,
            full,
            is_link,
            has_other_names: self.has_other_names,
            mtime,
            always,
            mode,
        };
        LastTouch::new(parent.cloned(), Some(target), self.context.late.clone())
    }

    /// Returns the mode with which the directory is created. `is_bare`: it keeps that mode.
    fn mode_of_new(self, is_bare: bool) -> u32 {
        if is_bare {
            let default_acl_mode = self.around.default_acl_mode;
            return acl::mode_of_new_dir(default_acl_mode, self.context.process.umask);
        }
        self.wanted_mode() & 0o777 | 0o700
    }

    fn wanted_mode(self) -> u32 {
        let existing = self.existing.map(|existing| existing.mode);
        let mode = chmod::dest_mode(
            self.source.mode,
            existing,
            &self.context.mode_rule(),
            self.around,
        );
        // A mode that is stored in an attribute (`--fake-super`) is stored as it is.
        if self.context.is_super || self.context.policy.preserve.fake_super {
            mode
        } else {
            chmod::dir_mode_left_by_user(mode)
        }
    }

    /// Returns the mode in which the directory can be worked in, which requires the owner's bits unless we are root,
    /// and the final mode if that is a different one.
    fn modes(self) -> (u32, Option<u32>) {
        let wanted = self.wanted_mode();
        // A mode that is stored in an attribute (`--fake-super`) restricts nothing.
        let is_open = self.context.is_super || self.context.policy.preserve.fake_super;
        let working = if is_open { wanted } else { wanted | 0o700 };
        let late = if working == wanted {
            None
        } else {
            Some(wanted)
        };
        (working, late)
    }

    /// Returns whether rsync would fail to set the wrong time of an existing directory because another user owns it.
    /// The time is then set at once, so that the same error is reported.
    fn cannot_have_time(self, changes: Changes) -> bool {
        let is_kept = keeps_time(Kind::Dir, &self.context.policy.preserve);
        let is_anothers = |existing: &Entry| !self.context.is_super && existing.uid != sys::ids().0;
        is_kept && changes.has(Changes::TIME) && self.existing.is_some_and(is_anothers)
    }

    /// Sets those attributes of an existing directory that change, except a time that can wait, and makes it
    /// accessible. Returns the mode that must wait for the end, and whether everything succeeded.
    fn prepare(
        self,
        at: (&Dir, &[u8]),
        changes: Changes,
        head: &mut Vec<Event>,
    ) -> (Option<u32>, bool) {
        let (working, late) = self.modes();
        let Some(existing) = self.existing else {
            return (late, true);
        };
        let (times, changes) = if self.cannot_have_time(changes) {
            (TimesToSet::Both, changes)
        } else {
            (TimesToSet::Neither, changes.without(Changes::TIME))
        };
        let preserve = &self.context.policy.preserve;
        if changes != Changes::NONE || plan::is_unsettled(existing, preserve) {
            let has = Has::from_entry(existing, times);
            let well = self.set_attrs(at, has, working, head);
            let late = if well { late } else { None };
            return (late, well);
        }
        if working & !existing.mode & 0o700 == 0 {
            return (late, true);
        }
        match sys::chmod(at.0.fd(), at.1, working) {
            Ok(()) => (late, true),
            Err(error) => {
                let what = "failed to modify permissions on";
                head.push(Event::Problem(Problem::about(
                    ErrorRole::Generator,
                    what,
                    self.full,
                    &error,
                )));
                (None, true)
            }
        }
    }

    /// Sets the attributes of a directory that was just created. Returns the mode that must wait for the end.
    fn finish_new(self, dir: &Dir, head: &mut Vec<Event>) -> Option<u32> {
        let stat = match sys::fstat(dir.fd()) {
            Ok(stat) => stat,
            Err(error) => {
                head.push(Event::Problem(Problem::about(
                    ErrorRole::Generator,
                    "failed to stat",
                    self.full,
                    &error,
                )));
                return None;
            }
        };
        let (working, late) = self.modes();
        let inherits = self.context.policy.preserve.acls && self.around.default_acl_mode.is_some();
        let acls = if inherits {
            None
        } else {
            Some((&b""[..], &b""[..]))
        };
        let has = Has {
            ids: Some((stat.uid, stat.gid)),
            mode: Some(stat.mode),
            times: TimesToSet::Neither,
            acls,
            ..Has::default()
        };
        self.set_attrs((dir, b""), has, working, head);
        late
    }

    /// Sets all attributes, and the time if `has` says that it is wrong. Returns whether everything succeeded.
    fn set_attrs(
        self,
        (dir, name): (&Dir, &[u8]),
        has: Has<'_>,
        mode: u32,
        head: &mut Vec<Event>,
    ) -> bool {
        let before = head.len();
        let has = Has {
            local: LocalValues {
                dest: self.existing,
                alternate: None,
            },
            ..has
        };
        let full = || self.full.to_vec();
        let subject = AttributeTarget {
            fd: dir.fd(),
            name,
            full: &full,
            path: self.path.as_bytes(),
            role: ErrorRole::Generator,
        };
        let is_owned = attributes::finish(self.context, subject, self.source, has, mode, head);
        if !is_owned && self.existing.is_none() {
            // Its owner could not be set, so it keeps the mode with which rsync would have created it. That is a private
            // one while the list is still being received.
            let by_umask =
                acl::mode_of_new_dir(self.around.default_acl_mode, self.context.process.umask);
            let kept = if self.context.options.select.no_inc_recursive {
                by_umask | 0o1000
            } else {
                0o700
            };
            let inherited = if self.around.setgid { 0o2000 } else { 0 };
            // The problem with its owner is reported already.
            let _ = sys::fchmod(dir.fd(), mode & kept | inherited);
        }
        head.len() == before
    }
}

/// Returns the messages for a directory that could not be created.
pub(super) fn cannot_make(full: &[u8], error: &io::Error) -> [Event; 2] {
    [
        Event::Problem(Problem::failed(
            ErrorRole::Generator,
            "recv_generator: mkdir",
            full,
            error,
        )),
        Event::Problem(Problem::new(SKIPPED_CONTENT, Weight::Warning)),
    ]
}
