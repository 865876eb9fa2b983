//! The similar file that a new one begins with: `--fuzzy`.

use super::Context;
use super::content::open_basis;
use super::entry::Job;
use super::partial::open_partial;
use crate::flist::{Entry, Kind};
use crate::fs::read;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::fs::write::is_temp_name;
use crate::path::{self, RelPath};
use crate::plan::fuzzy::{Candidate, Candidates};
use crate::plan::{Action, Changes};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// So many chosen files are kept open until they are needed, so that they are what they were even if they get another
/// content or go. Further ones are opened by their names once more; a wrong one costs a second transfer.
const HELD_MAX: usize = 256;

/// What was chosen for the files under way, by their paths.
#[derive(Debug, Default)]
pub struct Chosen(Mutex<HashMap<RelPath, Similar>>);

impl Chosen {
    /// Keeps what was chosen for the file at this path.
    pub fn put(&self, path: &RelPath, mut similar: Similar) {
        let mut chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if chosen.len() >= HELD_MAX {
            similar.held = None;
        }
        chosen.insert(path.clone(), similar);
    }

    /// Takes what was chosen for the file at this path.
    pub fn take(&self, path: &RelPath) -> Option<Similar> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(path)
    }
}

/// A file that was chosen.
#[derive(Debug)]
pub struct Similar {
    dir: Dir,
    name: Box<[u8]>,
    /// How it is called in a line.
    shown: Vec<u8>,
    held: Option<(OwnedFd, u64)>,
}

impl Similar {
    /// The line that tells of it, if it is told.
    pub fn line(&self, context: &Context<'_>, job: &Job<'_>) -> Option<Vec<u8>> {
        let line = [b"fuzzy basis selected for ", job.path.as_bytes(), b": ", &self.shown].concat();
        is_told(context).then_some(line)
    }

    /// It, open, and its length; `None`: it is gone.
    pub fn open(&self) -> Option<(OwnedFd, u64)> {
        match &self.held {
            Some((fd, len_bytes)) => Some((fd.try_clone().ok()?, *len_bytes)),
            None => open_basis(&self.dir, &self.name),
        }
    }
}

/// Looks for similar files, directory by directory. A directory is listed when the first file in it is asked about, and
/// not again: what this run puts there is no basis.
#[derive(Default)]
pub struct Lookout {
    last: Option<(RelPath, Around)>,
}

/// What there is in a directory of the destination and in its namesakes in alternate trees.
struct Around {
    candidates: Candidates,
    /// The directory of each candidate.
    dirs: Vec<u32>,
    /// Open, and how names in it begin in a line.
    holders: Vec<(Dir, Vec<u8>)>,
}

impl Lookout {
    /// Chooses for a file that the destination does not have, if the options ask for it and it is used or told.
    pub fn choose(&mut self, context: &Context<'_>, job: &Job<'_>) -> Option<Similar> {
        let is_used = context.wire.is_some() && !context.is_dry() && context.finds_differences();
        let is_asked = context.options.delta.fuzzy > 0 && (is_used || is_told(context));
        let is_new = matches!(job.step.decision.action, Action::Transfer(changes) if changes.has(Changes::NEW));
        // What is there of a file that grows is its own beginning and nothing else.
        if !is_asked || !is_new || context.options.place.append.is_some() || has_partial(context, job) {
            return None;
        }
        let dir = job.spot.dir.as_ref()?;
        if self.last.as_ref().is_none_or(|(path, _)| *path != job.spot.path) {
            self.last = Some((job.spot.path.clone(), Around::of(context, &job.spot.path, dir)));
        }
        let (_, around) = self.last.as_mut()?;
        let Entry { len_bytes, mtime, .. } = *job.source();
        let window_secs = context.policy.check.window_secs;
        let at = around.candidates.choose(job.name(), len_bytes, mtime, window_secs)?;
        let name: Box<[u8]> = around.candidates.name(at).into();
        let (dir, prefix) = &around.holders[around.dirs[at] as usize];
        let held = if is_used { open_basis(dir, &name) } else { None };
        Some(Similar { dir: dir.clone(), shown: path::join(prefix, &name), name, held })
    }
}

/// Whether what is chosen is told. The user asks this end for it: rsync does not pass `--debug` on.
fn is_told(context: &Context<'_>) -> bool {
    context.options.output.debug.fuzzy > 0 && (context.wire.is_none() || context.tells_when_open)
}

/// Whether an earlier run has left a part of the very file.
fn has_partial(context: &Context<'_>, job: &Job<'_>) -> bool {
    let (Some(name), Some(dir)) = (&context.options.place.partial_dir, &job.spot.dir) else { return false };
    open_partial(context, dir, name).is_ok_and(|dir| open_basis(&dir, job.name()).is_some())
}

impl Around {
    fn of(context: &Context<'_>, path: &RelPath, dir: &Dir) -> Around {
        let mut holders = vec![(dir.clone(), path.as_bytes().to_vec())];
        if context.options.delta.fuzzy > 1 {
            holders.extend(context.alternates.iter().filter_map(|alternate| {
                let dir = alternate.open_dir(path).ok()?;
                Some((dir, alternate.root.as_ref()?.full(path.as_bytes())))
            }));
        }
        let mut files = Vec::new();
        let mut dirs = Vec::new();
        for (number, (dir, _)) in holders.iter().enumerate() {
            files.extend(files_in(dir));
            dirs.resize(files.len(), number as u32);
        }
        Around { candidates: Candidates::new(files), dirs, holders }
    }
}

/// The regular files of a directory in order; none if it cannot be listed.
fn files_in(dir: &Dir) -> Vec<Candidate> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    let listed = read::names(dir, usize::MAX, |entry| {
        // What is being written is not what it will be.
        if entry.is_dir != Some(true) && !is_temp_name(entry.name) {
            names.push(entry.name.into());
        }
    });
    if listed.is_err() {
        return Vec::new();
    }
    names.sort_unstable();
    let look = |name: Box<[u8]>| {
        let stat = sys::stat(dir.fd(), &name, false).ok()?;
        let candidate = Candidate { name, len_bytes: stat.len_bytes, mtime: stat.mtime };
        (Kind::of_mode(stat.mode) == Some(Kind::File)).then_some(candidate)
    };
    names.into_iter().filter_map(look).collect()
}
