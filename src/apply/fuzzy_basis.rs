//! The similar file that serves as the basis of a new one: `--fuzzy`.

use crate::apply::content::open_basis;
use crate::apply::job::Job;
use crate::apply::partial::open_partial;
use crate::apply::{Chosen, Context, Similar};
use crate::flist::{Entry, Kind};
use crate::fs::root::Dir;
use crate::fs::temp_name::is_temp_name;
use crate::fs::{read, sandbox, sys};
use crate::path::{self, RelPath};
use crate::plan::fuzzy::{Candidates, FuzzyCandidate};
use crate::plan::{Action, BasisName, Changes};
use std::os::fd::{AsFd, OwnedFd};

/// How many chosen files are kept open until they are needed, so that they keep their content if replaced or removed.
/// Further ones are opened again by name; a wrong one costs a second transfer.
const HELD_MAX: usize = 256;

impl Chosen {
    /// Stores the choice for the file at this path.
    pub fn put(&self, path: &RelPath, mut similar: Similar) {
        let mut chosen = self.0.lock();
        if chosen.len() >= HELD_MAX {
            similar.held = None;
        }
        chosen.insert(path.clone(), similar);
    }

    /// Takes the choice for the file at this path.
    pub fn take(&self, path: &RelPath) -> Option<Similar> {
        self.0.lock().remove(path)
    }
}

impl Similar {
    /// Returns the twin of a new file, if it is the basis of the file's content and is still the one that was found.
    pub fn from_twin(job: &Job<'_>) -> Option<Similar> {
        let twin = job.twin_as_basis()?;
        let context = job.context;
        if !is_basis_used(context) || context.options.place.append.is_some() || has_partial(job) {
            return None;
        }
        let dir = twin.open_dir(context)?;
        let (file, len_bytes) = open_basis(context, &dir, twin.path.name())?;
        let stat = sys::fstat(file.as_fd()).ok()?;
        if !twin.is(&stat) {
            return None;
        }
        Some(Similar {
            dir,
            name: twin.path.name().into(),
            tree: twin.tree,
            shown: twin.shown(context),
            held: Some((file, len_bytes)),
        })
    }

    /// Returns the line that prints the choice, if it is printed.
    pub fn line(&self, job: &Job<'_>) -> Option<Vec<u8>> {
        let line = [
            b"fuzzy basis selected for ",
            job.path.as_bytes(),
            b": ",
            &self.shown,
        ]
        .concat();
        if !is_printed(job.context) {
            return None;
        }
        Some(line)
    }

    /// Returns which file it is, for a peer that must know.
    pub fn basis_name(&self) -> BasisName {
        BasisName::Similar {
            tree: self.tree,
            name: self.name.to_vec(),
        }
    }

    /// Returns it, open, and its length, or `None` if it is gone.
    pub fn open(&self, context: &Context<'_>) -> Option<(OwnedFd, u64)> {
        match &self.held {
            Some((fd, len_bytes)) => Some((fd.try_clone().ok()?, *len_bytes)),
            None => open_basis(context, &self.dir, &self.name),
        }
    }
}

/// Chooses similar files, directory by directory. A directory is listed once, for the first file in it: files that this
/// run creates there do not count.
#[derive(Default)]
pub struct FuzzySearch {
    last: Option<(RelPath, Around)>,
}

/// The files in a directory of the destination and in the same directory of alternate trees.
struct Around {
    candidates: Candidates,
    /// The directory of each candidate.
    dirs: Vec<u32>,
    /// The open directories, the prefixes of their names in messages, and the indices of their alternate trees.
    holders: Vec<(Dir, Vec<u8>, Option<usize>)>,
}

impl FuzzySearch {
    /// Chooses a basis for a file that the destination lacks, if the options require one and it is used or printed.
    pub fn choose(&mut self, job: &Job<'_>) -> Option<Similar> {
        let is_used = is_basis_used(job.context);
        let is_requested =
            job.context.options.delta.fuzzy > 0 && (is_used || is_printed(job.context));
        let is_new = matches!(job.step.decision.action, Action::Transfer(changes) if changes.has(Changes::NEW));
        // The basis of a file that grows is always its own beginning.
        if !is_requested
            || !is_new
            || job.context.options.place.append.is_some()
            || has_partial(job)
        {
            return None;
        }
        let dir = job.dest_dir.dir.as_ref()?;
        if self
            .last
            .as_ref()
            .is_none_or(|(path, _)| *path != job.dest_dir.path)
        {
            self.last = Some((
                job.dest_dir.path.clone(),
                Around::new(job.context, &job.dest_dir.path, dir),
            ));
        }
        let (_, around) = self.last.as_mut()?;
        let Entry {
            len_bytes, mtime, ..
        } = *job.source();
        let window_secs = job.context.policy.check.window_secs;
        let at = around
            .candidates
            .choose(job.name(), len_bytes, mtime, window_secs)?;
        let name: Box<[u8]> = around.candidates.name(at).into();
        let (dir, prefix, tree) = &around.holders[around.dirs[at] as usize];
        let held = if is_used {
            open_basis(job.context, dir, &name)
        } else {
            None
        };
        Some(Similar {
            dir: dir.clone(),
            shown: path::join(prefix, &name),
            name,
            tree: *tree,
            held,
        })
    }
}

/// Returns whether the basis of a new file is used.
fn is_basis_used(context: &Context<'_>) -> bool {
    context.peer.is_some() && !context.is_dry() && context.finds_differences()
}

/// Returns whether the choice is printed: only by the client, because rsync does not pass `--debug` on.
fn is_printed(context: &Context<'_>) -> bool {
    context.options.output.debug.fuzzy > 0
        && (context.peer.is_none() || context.printer.is_receiver())
}

/// Returns whether an earlier run has left a part of this file.
fn has_partial(job: &Job<'_>) -> bool {
    let (Some(name), Some(dir)) = (&job.context.options.place.partial_dir, &job.dest_dir.dir)
    else {
        return false;
    };
    open_partial(job.context, dir, name)
        .is_ok_and(|dir| open_basis(job.context, &dir, job.name()).is_some())
}

impl Around {
    fn new(context: &Context<'_>, path: &RelPath, dir: &Dir) -> Around {
        let mut holders = vec![(dir.clone(), path.as_bytes().to_vec(), None)];
        if context.options.delta.fuzzy > 1 {
            for (tree, alternate) in context.alternates.iter().enumerate() {
                if let (Ok(dir), Some(root)) = (alternate.open_dir(path), &alternate.root) {
                    holders.push((dir, root.full(path.as_bytes()), Some(tree)));
                }
            }
        }
        let mut files = Vec::new();
        let mut dirs = Vec::new();
        for (number, (dir, ..)) in holders.iter().enumerate() {
            files.extend(files_in(dir));
            dirs.resize(files.len(), number as u32);
        }
        Around {
            candidates: Candidates::new(files),
            dirs,
            holders,
        }
    }
}

/// Returns the regular files of a directory in order, or none if it cannot be listed.
fn files_in(dir: &Dir) -> Vec<FuzzyCandidate> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    let listed = read::names(dir, usize::MAX, |entry| {
        // The content of a file that is being written will change.
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
        let candidate = FuzzyCandidate {
            name,
            len_bytes: stat.len_bytes,
            mtime: stat.mtime,
        };
        let is_usable = Kind::of_mode(stat.mode) == Some(Kind::File)
            && !sandbox::hides(dir.fd(), &candidate.name, false);
        if !is_usable {
            return None;
        }
        Some(candidate)
    };
    names.into_iter().filter_map(look).collect()
}
