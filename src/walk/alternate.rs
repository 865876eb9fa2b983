//! Alternate destinations: other trees that may already hold what the destination lacks.

use crate::flist::{Entry, Kind};
use crate::fs::read::EntryAt;
use crate::fs::root::{Dir, Root};
use crate::fs::{errno, sandbox, sys, trusted_path};
use crate::options::{AltKind, LinkOwners};
use crate::path::{self, RelPath};
use crate::plan::alternate::{self, Candidate, Similarity, Use};
use crate::plan::{self, Action, Decision, Subject};
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::walk::destination::DestWalk;
use crate::walk::dir_plan::unreadable_attribute;
use crate::walk::source_dir::{ComparedDest, ComparedSource};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// One alternate tree.
#[derive(Debug, Clone)]
pub struct Alternate {
    /// The path that the option gives.
    pub given: Vec<u8>,
    /// Its top; `None` if a symlink of an untrusted user is in the way, which is reported on each use.
    pub root: Option<Root>,
    /// Whose symlinks may be followed in it.
    pub owners: LinkOwners,
}

impl Alternate {
    /// Opens a directory in it. Follows symlinks wherever they lead, except those of an untrusted user.
    pub fn open_dir(&self, path: &RelPath) -> io::Result<Dir> {
        self.open_by(path, Root::open_dir, trusted_path::open_dir_in)
    }

    /// As [`Alternate::open_dir`], for a directory of which only entries with known names are used. So this process need not
    /// be allowed to list it.
    fn open_dir_of_known_names(&self, path: &RelPath) -> io::Result<Dir> {
        match self.open_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.open_by(
                path,
                Root::open_dir_to_search,
                trusted_path::open_dir_in_to_search,
            ),
            opened => opened,
        }
    }

    fn open_by(
        &self,
        path: &RelPath,
        open: fn(&Root, &RelPath) -> io::Result<Dir>,
        open_by_links: fn(BorrowedFd<'_>, &[u8], LinkOwners) -> io::Result<OwnedFd>,
    ) -> io::Result<Dir> {
        let root = self.root.as_ref().ok_or_else(trusted_path::refused)?;
        match open(root, path) {
            Err(error) if errno::may_be_a_symlink(&error) => {
                let fd = open_by_links(root.dir().fd(), path.as_bytes(), self.owners)?;
                Ok(Dir::new(fd))
            }
            opened => opened,
        }
    }

    /// Returns the absolute path of an entry, for messages.
    fn full(&self, dir: &RelPath, name: &[u8]) -> Vec<u8> {
        self.root
            .as_ref()
            .map(|root| root.full(&path::join(dir.as_bytes(), name)))
            .unwrap_or_default()
    }
}

/// What an alternate tree has for an entry that is not a directory: something to link, to copy, or to use as the basis
/// of a file.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The directory that holds it.
    pub dir: Dir,
    /// The mode of the entry.
    pub mode: u32,
    /// The index of the tree.
    pub tree: usize,
}

impl DestWalk<'_> {
    /// Decides again about an entry that the trees may have, and returns what they have. `path`, `name`: its directory and
    /// name here and in the trees. At the source, it may have another name.
    pub fn decide_with_alternates(
        &self,
        dirs: &mut AltDirs,
        (path, name): (&RelPath, &[u8]),
        original: ComparedSource<'_>,
        (dest_dir, dest): (Option<&Dir>, Option<&Entry>),
        decision: Decision,
    ) -> (Decision, Option<Hit>) {
        let entry = original.entry;
        let Some(kind) = self.alternate_kind else {
            return (decision, None);
        };
        let use_of_them = alternate::may_use(entry, dest, decision, kind, self.policy);
        if use_of_them == Use::Nothing {
            return (decision, None);
        }
        let Some((found, hit)) = self.best_alternate(dirs, (path, name), original) else {
            return (decision, None);
        };
        if use_of_them == Use::VeryThing {
            let is_linked = || {
                kind == AltKind::Link
                    && dest_dir.is_some_and(|dest| is_one_file(dest, &hit.dir, name))
            };
            if found.similarity != Similarity::All || is_linked() {
                return (decision, None);
            }
        }
        let instead = alternate::decide(entry, decision, found, kind, self.policy);
        let uses_it =
            entry.kind() == Kind::File && matches!(instead.action, Action::Link | Action::Copy(_));
        if uses_it
            && !self.is_dry
            && let Err(error) = trusted_path::check_inside(hit.dir.fd())
        {
            let full = self.alternates[hit.tree].full(path, name);
            dirs.problems
                .push(Problem::about(ErrorRole::Generator, "open", &full, &error));
            return (decision, None);
        }
        (instead, Some(hit))
    }

    /// Returns the best candidate that the alternate trees have for an entry; among equals the first.
    fn best_alternate(
        &self,
        dirs: &mut AltDirs,
        (path, name): (&RelPath, &[u8]),
        original: ComparedSource<'_>,
    ) -> Option<(Candidate, Hit)> {
        let entry = original.entry;
        // Times that `-O` omits are still compared and reported here.
        let with_times = || {
            let mut policy = self.policy.clone();
            policy.preserve.omit_dir_times = false;
            policy
        };
        let policy_of_dirs =
            (entry.is_dir() && self.policy.preserve.omit_dir_times).then(with_times);
        let policy = policy_of_dirs.as_ref().unwrap_or(self.policy);
        let mut best: Option<(Candidate, Hit)> = None;
        for (tree, alternate) in self.alternates.iter().enumerate() {
            let Some(dir) = dirs.open(tree, alternate, path) else {
                continue;
            };
            let Some(stat) = dirs.found(alternate, (path, name), sys::stat(dir.fd(), name, false))
            else {
                continue;
            };
            let mut candidate = Entry::from_stat(&stat);
            if sandbox::hides(dir.fd(), name, candidate.is_dir()) {
                continue;
            }
            let full = || alternate.full(path, name);
            let in_tree = || path::join(path.as_bytes(), name);
            let at = EntryAt {
                dir: &dir,
                name,
                stat: &stat,
                full: &full,
                path: &in_tree,
            };
            if let Err(incomplete) = self.wanted.complete_dest(&mut candidate, &at) {
                // It may differ from the source.
                dirs.problems.push(unreadable_attribute(
                    "generator",
                    incomplete,
                    Weight::Failed,
                ));
                continue;
            }
            let decide = |same| {
                plan::decide(entry, Some(&candidate), same, Subject::Included, policy).action
            };
            let mut action = decide(None);
            if action == Action::AskDigest {
                let in_tree = ComparedDest {
                    dir: &dir,
                    name,
                    version: None,
                };
                let same = (self.compare)(original, in_tree).unwrap_or(false);
                action = decide(Some(same));
            }
            let Some(found) = Candidate::for_action(action) else {
                continue;
            };
            if best
                .as_ref()
                .is_none_or(|(best, _)| found.similarity > best.similarity)
            {
                best = Some((
                    found,
                    Hit {
                        dir,
                        mode: stat.mode,
                        tree,
                    },
                ));
            }
            if found.similarity == Similarity::All {
                break;
            }
        }
        best
    }
}

fn is_one_file(a: &Dir, b: &Dir, name: &[u8]) -> bool {
    let inode = |dir: &Dir| {
        sys::stat(dir.fd(), name, false)
            .ok()
            .map(|stat| (stat.dev, stat.ino))
    };
    inode(a).is_some_and(|one| inode(b) == Some(one))
}

/// The directories of one path in the alternate trees, opened on first use.
#[derive(Debug, Default)]
pub struct AltDirs {
    opened: Vec<Option<SameNameEntry>>,
    /// Errors to report. A tree with an error counts as one without the entry.
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone)]
enum SameNameEntry {
    Open(Dir),
    Missing,
    Refused,
}

impl AltDirs {
    /// Returns the directory of this path in one of the trees, or `None` if it cannot be opened.
    pub fn open(&mut self, tree: usize, alternate: &Alternate, path: &RelPath) -> Option<Dir> {
        if self.opened.len() <= tree {
            self.opened.resize(tree + 1, None);
        }
        if self.opened[tree].is_none() {
            let opened = alternate.open_dir_of_known_names(path);
            self.opened[tree] = Some(match opened {
                Err(error) if trusted_path::is_refused(&error) => SameNameEntry::Refused,
                opened => self
                    .found(alternate, (path, b""), opened)
                    .map_or(SameNameEntry::Missing, SameNameEntry::Open),
            });
        }
        match self.opened[tree].as_ref()? {
            SameNameEntry::Open(dir) => return Some(dir.clone()),
            SameNameEntry::Missing => {}
            SameNameEntry::Refused => self
                .problems
                .push(Problem::new(trusted_path::REFUSAL, Weight::Warning)),
        }
        None
    }

    /// Unwraps the result of examining a path in a tree. Records the error unless the path is unreachable.
    fn found<T>(
        &mut self,
        alternate: &Alternate,
        (dir, name): (&RelPath, &[u8]),
        found: io::Result<T>,
    ) -> Option<T> {
        match found {
            Ok(found) => return Some(found),
            Err(error) if errno::is_unreachable(&error) => {}
            Err(error) => {
                let full = alternate.full(dir, name);
                self.problems.push(Problem::about(
                    ErrorRole::Generator,
                    "failed to stat",
                    &full,
                    &error,
                ));
            }
        }
        None
    }
}
