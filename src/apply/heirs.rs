//! New files that wait for the end of the run (`--detect-renamed`): until the deletions come to their twins, which are then
//! renamed, or until their twins are complete, which are new files, too.

use crate::apply::attributes::{self, Has};
use crate::apply::dir_finalize::LastTouch;
use crate::apply::job::Job;
use crate::apply::twins::{Reuse, Twin};
use crate::apply::{Context, DestDir, Outcome, entry, file, partial, remove_source};
use crate::fs::leftover::remove_stale_unseen;
use crate::fs::root::Dir;
use crate::fs::temp_name::temp_name;
use crate::fs::{sys, xattr};
use crate::path::RelPath;
use crate::plan::{Action, Changes, Decision, InTheWay, TimesToSet};
use crate::report::event::{ErrorRole, Event, Problem, ReusedBy};
use crate::walk::{DirPlan, NONE, Step};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// A directory with new files that wait for the end of the run.
pub struct HeirDir {
    /// Its plan, without descriptors.
    plan: DirPlan,
    path: RelPath,
    /// Keeps its last touch waiting.
    last: Arc<LastTouch>,
}

impl HeirDir {
    /// Creates it for the directory of a plan.
    pub fn new(plan: &DirPlan, dest_dir: &DestDir) -> HeirDir {
        HeirDir {
            plan: plan.without_descriptors(),
            path: dest_dir.path.clone(),
            last: dest_dir.last.clone(),
        }
    }
}

/// The directory of the heir that was placed last, open: that of the next one is often the same.
pub struct OpenHeirDir {
    of: Arc<HeirDir>,
    dest_dir: DestDir,
}

/// A new file that waits for the end of the run. There can be many.
pub struct Heir {
    dir: Arc<HeirDir>,
    /// Its index in the listing of the source.
    source: u32,
    changes: Changes,
}

impl Heir {
    /// Creates the heir for a file that the destination lacks. `source`: its index in the listing of the source.
    pub fn new(dir: Arc<HeirDir>, source: u32, changes: Changes) -> Heir {
        Heir {
            dir,
            source,
            changes,
        }
    }

    /// Returns the path of its file.
    pub fn path(&self) -> RelPath {
        self.dir.path.join(self.dir.plan.name_of(&self.step()))
    }

    fn step(&self) -> Step {
        Step {
            source: self.source,
            dest: NONE,
            decision: Decision {
                action: Action::Transfer(self.changes),
                in_the_way: InTheWay::Nothing,
            },
        }
    }

    /// Opens its directory, or takes that of the last heir.
    fn open_dir(
        &self,
        context: &Context<'_>,
        last: Option<OpenHeirDir>,
    ) -> io::Result<OpenHeirDir> {
        if let Some(last) = last
            && Arc::ptr_eq(&last.of, &self.dir)
        {
            return Ok(last);
        }
        let HeirDir { path, last, .. } = &*self.dir;
        let opened = context.dest.map(|dest| dest.open_dir_to_search(path));
        let dir = match opened.transpose() {
            // A dry run has not created it.
            Err(_) if context.is_dry() => None,
            opened => opened?,
        };
        Ok(OpenHeirDir {
            of: self.dir.clone(),
            dest_dir: DestDir::new(path.clone(), dir, last.clone()),
        })
    }

    /// Places the file: renames its twin if that is still there and `from` is its directory and name, or else does what is
    /// done for any other file. `open_dir` is the directory of the last heir before and of this one after. Returns whether
    /// the twin was renamed.
    pub fn place(
        self,
        context: &Context<'_>,
        from: Option<(&Dir, &[u8])>,
        open_dir: &mut Option<OpenHeirDir>,
        out: &mut Outcome<'_>,
    ) -> bool {
        let HeirDir { plan, path, .. } = &*self.dir;
        let opened = match self.open_dir(context, open_dir.take()) {
            Ok(opened) => open_dir.insert(opened),
            Err(error) => {
                let full = context.full(path.as_bytes());
                let problem = Problem::failed(ErrorRole::Generator, "opendir", &full, &error);
                out.events.push(Event::Problem(problem));
                return false;
            }
        };
        let dest_dir = &opened.dest_dir;
        let job = Job::new(context, plan, self.step(), dest_dir);
        if let (Some(twin), Some(from)) = (job.twin(), from) {
            if context.is_dry() {
                entry::perform(&job, out);
                return true;
            }
            if let Ok(true) = rename(&job, &twin, from) {
                entry::checked(context, out);
                file::report_reused(&job, &twin, ReusedBy::Rename, out);
                remove_source::remove_sent_source(&job, out);
                return true;
            }
        }
        entry::perform(&job, out);
        false
    }
}

/// Renames a twin. Returns `false`, or an error, if that is not possible, or if the file would not be as one that is
/// created. It has all its attributes before it has its name.
fn rename(job: &Job<'_>, twin: &Twin, (from, name): (&Dir, &[u8])) -> io::Result<bool> {
    let context = job.context;
    let Some(dir) = &job.dest_dir.dir else {
        return Ok(false);
    };
    // Its name is used, because what is renamed then is what has that name. There may be many, so each call counts.
    let stat = sys::stat(from.fd(), name, false)?;
    let from_fd = from.fd();
    let has_xattrs = xattr::At::Name { dir: from_fd, name }
        .names()
        .is_ok_and(|names| names.is_some_and(|names| !names.is_empty()));
    let is_single = twin.is(&stat) && stat.nlink == 1;
    if !is_single || has_xattrs || !job.gets_ids_of_new_file(dir, &stat)? {
        return Ok(false);
    }
    // If all may read it, it need not be tried.
    let is_readable = context.is_super || stat.mode & 0o444 == 0o444;
    if !is_readable {
        context.open_read(from, name)?;
    }
    let source = job.source();
    let has_bare_source = source.xattrs().is_empty() && source.acls().0.is_empty();
    if !has_bare_source || job.dest_dir.default_acl().is_some() {
        return Ok(false);
    }

    let has_atime = source
        .extra
        .as_ref()
        .is_some_and(|extra| extra.atime.is_some());
    // A twin that was found by its content may have another time.
    let times = if stat.mtime != source.mtime {
        TimesToSet::Both
    } else if has_atime {
        TimesToSet::AccessTime
    } else {
        TimesToSet::Neither
    };
    let has = Has {
        ids: Some((stat.uid, stat.gid)),
        mode: Some(stat.mode),
        times,
        acls: Some((b"", b"")),
        ..Has::default()
    };
    let full = || job.full();
    let target = job.target((from_fd, name), &full, ErrorRole::Receiver);
    let mut events = Vec::new();
    let mode = job.wanted_mode();
    let has_owner = attributes::finish(context, target, source, has, mode, &mut events);
    // What failed is tried again, and reported, for a copy.
    if !has_owner || !events.is_empty() {
        return Ok(false);
    }
    if context.options.place.fsync {
        sys::fsync(context.open_read(from, name)?.as_fd())?;
    }
    job.dest_dir.last.touch();
    sys::rename_new(from.fd(), name, dir.fd(), job.name())?;
    if context.resumes(twin.len_bytes) {
        remove_stale_unseen(dir, &temp_name(job.name()));
    }
    partial::forget(job, dir);
    Ok(true)
}

/// The heirs of a run.
#[derive(Default)]
pub struct Heirs {
    /// Those whose twins are renamed, by the index of the candidate.
    by_twin: Vec<Option<Heir>>,
    /// Those whose twins are copied.
    copied: Vec<Heir>,
}

impl Heirs {
    /// Adds the heir of a twin.
    pub fn expect(&mut self, twin: &Twin, heir: Heir) {
        if let Some(at) = twin.candidate
            && twin.reuse == Reuse::Renamed
        {
            let at = at as usize;
            if at >= self.by_twin.len() {
                self.by_twin.resize_with(at + 1, || None);
            }
            self.by_twin[at] = Some(heir);
        } else {
            self.copied.push(heir);
        }
    }

    /// Takes the heir of the candidate that is about to be deleted.
    pub fn take(&mut self, candidate: u32) -> Option<Heir> {
        self.by_twin.get_mut(candidate as usize)?.take()
    }

    /// Takes those whose twins are copied or were not deleted, in a fixed order.
    pub fn take_rest(&mut self) -> Vec<Heir> {
        let mut rest = std::mem::take(&mut self.copied);
        rest.extend(std::mem::take(&mut self.by_twin).into_iter().flatten());
        rest.sort_by_cached_key(|heir| heir.path().as_bytes().to_vec());
        rest
    }
}
