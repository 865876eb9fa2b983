//! What there is at the destination: lists directories, examines entries, and says what it could not find out.

use super::contents::Unread;
use super::{DestWalk, ExaminedDest, JoinedPair, cannot_stat};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::compare::SHORT_BYTES;
use crate::fs::read::{self, EntryAt};
use crate::fs::root::{Dir, Root};
use crate::fs::sys::FileVersion;
use crate::fs::temp_name::is_temp_name;
use crate::fs::{errno, sys};
use crate::options::CheckMode;
use crate::path::RelPath;
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::walk::dir_plan::{DestListing, Findings, Found, NONE, unreadable_or_fatal};
use crate::walk::dir_rules::enter_dir;
use crate::work::parallel;
use std::collections::HashSet;
use std::io;

impl DestWalk<'_> {
    /// Examines one directory inside a destination directory. The list is empty if there is none.
    pub(super) fn list_one(&self, parent: &RelPath, name: &[u8]) -> io::Result<DirList> {
        let mut list = DirList::default();
        let Some(root) = self.dest else {
            return Ok(list);
        };
        let Some(dir) = errno::if_there(root.open_dir_to_search(parent))? else {
            return Ok(list);
        };
        let Some(stat) = self.stat_dest(&dir, name, self.policy.preserve.keep_dirlinks)? else {
            return Ok(list);
        };
        let entry = list.push(name, &stat);
        let path = || parent.join(name).as_bytes().to_vec();
        // An attribute that cannot be read counts as different.
        let at = EntryAt {
            dir: &dir,
            name,
            stat: &stat,
            full: &|| root.full(&path()),
            path: &path,
        };
        let _ = self.wanted.complete_dest(entry, &at);
        Ok(list)
    }

    /// Handles an error on opening the destination's directory. Under `-K` it may be a symlink that leads outside, and an
    /// implied directory may be anything; then nothing in it is examined or changed.
    pub(super) fn cannot_reach(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        root: &Root,
        error: &io::Error,
    ) {
        let is_no_dir = matches!(
            error.kind(),
            io::ErrorKind::NotADirectory | io::ErrorKind::NotFound
        );
        let leads_outside = (self.policy.preserve.keep_dirlinks || self.follows_implied)
            && errno::leads_outside(error);
        if !(leads_outside || self.follows_implied && is_no_dir) {
            let full = root.full(found.listing.path.as_bytes());
            findings.problems.push(Problem::failed(
                ErrorRole::Generator,
                "opendir",
                &full,
                error,
            ));
            return;
        }
        found.dest.is_outside = true;
        found.dest.blocks_subdirs = !self.is_dry;
        let list = &found.listing.list;
        for entry in list.entries.iter().filter(|entry| !entry.is_dir()) {
            let path = found.listing.path.join(list.name(entry));
            findings
                .problems
                .push(cannot_stat(&root.full(path.as_bytes()), error));
        }
    }

    /// Reads the rule files of a destination directory, if they can matter.
    pub(super) fn enter_rules(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        dir: &Dir,
        is_entered: bool,
    ) {
        let Some(chain) = &mut found.receiver_chain else {
            return;
        };
        if !(self.delete && is_entered && chain.has_per_dir()) {
            return;
        }
        let owners = self.policy.preserve.link_owners;
        match enter_dir(chain, dir, &found.listing.path, "generator", owners) {
            Ok((entered, refusals)) => {
                findings.problems.extend(refusals);
                *chain = entered;
            }
            Err(_) if self.deletes_later => {}
            Err(error) => {
                findings.fatal.get_or_insert(error);
                found.listing.may_delete = false;
            }
        }
    }

    pub(super) fn list_dest_dir(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        dir: Dir,
        root: &Root,
        is_entered: bool,
    ) {
        self.enter_rules(found, findings, &dir, is_entered);
        self.list_dest(found, findings, &dir, root);
        found.dest.dir = Some(dir);
    }

    /// Lists the destination's directory. Examines only entries that the source has too. If only a few of many names
    /// matter, keeps only those, and the temporary files of crashed runs among the first of the others.
    fn list_dest(&self, found: &mut Found, findings: &mut Findings, dir: &Dir, root: &Root) {
        let needs_all = self.delete || self.finds_twins;
        let enough = if needs_all {
            usize::MAX
        } else {
            4 * found.listing.list.len() + 256
        };
        let few = !needs_all && found.listing.list.len() <= 4;
        let mut dest = DirList::default();
        let mut untyped = Vec::new();
        let mut left_over = Vec::new();
        let listed = if few {
            Ok(false)
        } else {
            read::names(dir, enough, |entry| {
                if !self.delete && is_temp_name(entry.name) {
                    left_over.push(entry.name.to_vec());
                }
                match entry.is_dir {
                    Some(is_dir) => dest.push_name(entry.name, is_dir),
                    None => untyped.push(entry.name.to_vec()),
                }
            })
        };
        let complete = match listed {
            Ok(complete) => complete,
            Err(error) => {
                // Without deletions no list is needed.
                found.dest.is_unseen |= self.delete && errno::may_not_be_listed(&error);
                let is_gone =
                    self.policy.preserve.keep_dirlinks && error.kind() == io::ErrorKind::NotFound;
                if !errno::may_not_be_listed(&error) && !is_gone {
                    let full = root.full(found.listing.path.as_bytes());
                    findings.problems.push(Problem::failed(
                        ErrorRole::Generator,
                        "opendir",
                        &full,
                        &error,
                    ));
                }
                false
            }
        };
        if !complete {
            dest = DirList::default();
            untyped = found
                .listing
                .list
                .entries
                .iter()
                .map(|e| found.listing.list.name(e).to_vec())
                .collect();
            left_over.retain(|name| !untyped.contains(name));
            untyped.extend(left_over);
        }
        for (at, name) in untyped.iter().enumerate() {
            match sys::stat(dir.fd(), name, false) {
                Ok(stat) => dest.push_name(name, Kind::of_mode(stat.mode) == Some(Kind::Dir)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !complete => {
                    found.dest.is_unseen = true;
                    found.dest.hidden.push(at as u32);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    findings.problems.push(cannot_stat(
                        &root.full(found.listing.path.join(name).as_bytes()),
                        &error,
                    ));
                    found.dest.unknown.insert(name.clone());
                }
            }
        }
        dest.sort();
        found.dest.list = dest;
    }

    /// Examines an entry of the destination; `None` if it is gone. `follows`: a symlink to a directory counts as the
    /// directory.
    fn stat_dest(&self, dir: &Dir, name: &[u8], follows: bool) -> io::Result<Option<Stat>> {
        let stat = if self.keeps_digests {
            sys::stat_with_birth(dir.fd(), name, false)
        } else {
            sys::stat(dir.fd(), name, false)
        };
        let Some(stat) = errno::if_there(stat)? else {
            return Ok(None);
        };
        if follows && Kind::of_mode(stat.mode) == Some(Kind::Symlink) {
            let target = match sys::stat(dir.fd(), name, true) {
                Err(error) if errno::is_unreachable(&error) => None,
                followed => Some(followed?),
            };
            return Ok(target
                .filter(|target| Kind::of_mode(target.mode) == Some(Kind::Dir))
                .or(Some(stat)));
        }
        Ok(Some(stat))
    }

    /// Records that the destination's entry for a source entry could not be examined.
    pub(super) fn cannot_examine(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        source_at: u32,
        error: &io::Error,
    ) {
        let is_dir_closed = |dir: &Dir| sys::stat(dir.fd(), b".", false).is_err();
        if error.kind() == io::ErrorKind::PermissionDenied
            && found.dest.dir.as_ref().is_some_and(is_dir_closed)
        {
            // The directory can be listed but not searched.
            found.dest.is_unseen = true;
            found.dest.hidden.push(source_at);
            return;
        }
        let list = &found.listing.list;
        let name = list.name(&list.entries[source_at as usize]);
        let full = self
            .dest
            .map(|root| root.full(found.listing.path.join(name).as_bytes()))
            .unwrap_or_default();
        findings.problems.push(cannot_stat(&full, error));
        found.dest.unknown.insert(name.to_vec());
    }

    /// Fills in the attributes of an entry of the destination. Returns the problem if one cannot be read.
    pub(super) fn complete_dest(
        &self,
        found: &mut Found,
        findings: &mut Findings,
        at: usize,
        stat: &Stat,
    ) -> Option<Problem> {
        let DestListing { list, dir, .. } = &mut found.dest;
        let dir = dir.as_ref()?;
        let (name, entry) = list.entry_mut(at);
        entry.set_stat(stat);
        let path = || found.listing.path.join(name).as_bytes().to_vec();
        let full = || self.dest.map(|root| root.full(&path())).unwrap_or_default();
        let at = EntryAt {
            dir,
            name,
            stat,
            full: &full,
            path: &path,
        };
        let incomplete = self.wanted.complete_dest(entry, &at).err()?;
        match unreadable_or_fatal("generator", incomplete, Weight::Failed) {
            Ok(problem) => Some(problem),
            Err(error) => {
                findings.fatal.get_or_insert(error);
                None
            }
        }
    }

    /// Examines the destination's entries of these pairs. Also compares the contents of short files, if the decision
    /// depends on them.
    pub(super) fn stat_pairs(
        &self,
        found: &Found,
        pairs: &[JoinedPair],
        implied: &HashSet<u32>,
        unread: &Unread,
    ) -> Vec<ExaminedDest> {
        let source = &found.listing.list;
        let dest = &found.dest.list;
        let compares = self.policy.check.mode == CheckMode::Digest;
        let look = |pair: &JoinedPair| {
            let Some(dir) = &found.dest.dir else {
                return Ok(None);
            };
            if pair.dest == NONE {
                return Ok(None);
            }
            let entry = &source.entries[pair.source as usize];
            let name = dest.name(&dest.entries[pair.dest as usize]);
            let follows = entry.is_dir()
                && (self.policy.preserve.keep_dirlinks || implied.contains(&pair.source));
            let Some(stat) = self.stat_dest(dir, name, follows)? else {
                return Ok(None);
            };
            let may_be_same =
                compares && entry.len_bytes == stat.len_bytes && entry.len_bytes <= SHORT_BYTES;
            let same = if may_be_same && self.needs_digest(entry, &Entry::from_stat(&stat)) {
                let version = if self.keeps_digests {
                    Some(FileVersion::from_stat(&stat))
                } else {
                    None
                };
                Some(self.is_same(found, entry, version, unread))
            } else {
                None
            };
            Ok(Some((stat, same)))
        };
        if compares {
            let threads = parallel::threads_for_files(pairs.len(), self.threads);
            parallel::share(pairs, threads, look)
        } else {
            parallel::map(pairs, self.threads, look)
        }
    }
}
