//! What a sparsync reports of the directories of the destination: digests, which are compared with those of the source.

use crate::digest;
use crate::error::Result;
use crate::native::connection::NativeConnection;
use crate::native::dest_children::Children;
use crate::native::dir_digest::SourceDigester;
use crate::native::sender_inbox::{ReportsToSkip, SenderInbox};
use crate::path::RelPath;
use crate::proto::{Class, DestDirState};
use crate::session::sender::{DestDirs, DestDirsWalk, DirComparison};
use crate::session::source_prefetch::{ListingDigest, ListingDigester};
use std::collections::HashMap;

/// The digests that a sparsync sends of its directories. The opener of a session makes it.
pub struct ReportedDirs<'a> {
    pub connection: &'a NativeConnection,
    pub inbox: &'a SenderInbox,
    pub digester: SourceDigester<'a>,
    /// The directory that the receiver guessed: its digests begin with this one, whatever is sent.
    pub guess: Option<RelPath>,
}

impl ReportedDirs<'_> {
    /// Waits for the next report.
    fn next(&self) -> Result<DestDirState> {
        let (seen, cost) = self.inbox.wait(|state| state.seen.pop_front())?;
        if cost > 0 {
            self.connection.consumed(Class::Digests, cost);
        }
        Ok(seen)
    }
}

impl DestDirs for ReportedDirs<'_> {
    fn digester(&self) -> &dyn ListingDigester {
        &self.digester
    }

    fn begin(&self, whole: Vec<RelPath>) -> Box<dyn DestDirsWalk + '_> {
        let mut to_skip = ReportsToSkip::default();
        let is_other = |guess: &RelPath| !(whole.len() == 1 && whole[0] == *guess);
        if !whole.is_empty() && self.guess.as_ref().is_some_and(is_other) {
            to_skip.0 += 1;
        }
        Box::new(ReportedWalk {
            reports: self,
            whole: whole
                .into_iter()
                .enumerate()
                .map(|(at, path)| (path, at))
                .collect(),
            whole_passed: 0,
            to_skip,
            at_receiver: None,
            has_more: false,
            levels: Vec::new(),
        })
    }
}

/// The position of a sender in the reports of its receiver. The receiver describes directories in the order of its own walk,
/// also such as the sender lacks; these are skipped when the next one that the sender has is reached.
struct ReportedWalk<'a> {
    reports: &'a ReportedDirs<'a>,
    /// The directories whose digests the receiver sends, with their position.
    whole: HashMap<RelPath, usize>,
    /// How many of them were already reached.
    whole_passed: usize,
    /// How many directories that the sender lacks the receiver describes before the next relevant one.
    to_skip: ReportsToSkip,
    /// What the receiver has in place of the current directory; `None`: the receiver does not send this.
    at_receiver: Option<DestDirState>,
    /// The receiver has more entries in it than the sender.
    has_more: bool,
    /// The directories whose subdirectories are being walked, outermost first.
    levels: Vec<ReportedLevel>,
}

/// A directory whose subdirectories are being walked.
struct ReportedLevel {
    /// What the receiver has in its place; `None`: the receiver does not send this.
    at_receiver: Option<DestDirState>,
    /// The subdirectories that the receiver has.
    children: Children<u32>,
}

impl ReportedWalk<'_> {
    /// Returns what the receiver has in place of a directory that is named by an argument.
    fn receiver_dir_at(&mut self, path: &RelPath) -> Result<Option<DestDirState>> {
        let Some(&turn) = self.whole.get(path) else {
            return Ok(None);
        };
        // The receiver first describes the directories in between, which no longer exist here.
        self.to_skip.0 += turn - self.whole_passed;
        self.whole_passed = turn + 1;
        self.next_that_matters().map(Some)
    }

    /// Skips what the receiver sends about directories that the sender lacks and all below them, and returns the next
    /// item.
    fn next_that_matters(&mut self) -> Result<DestDirState> {
        while !self.to_skip.is_zero() {
            let seen = self.reports.next()?;
            self.to_skip.count_report(&seen);
        }
        self.reports.next()
    }

    /// Reads further items about a large directory until its digest arrives, or until it is known to have more entries
    /// than `len`. Returns `true` in that case: its digest is not needed then, and the following items only matter for
    /// its subdirectories.
    fn receive_large_reports(&mut self, len: u64) -> Result<bool> {
        while let Some(DestDirState::Large(count)) = self.at_receiver {
            if count > len {
                return Ok(true);
            }
            self.at_receiver = Some(self.reports.next()?);
        }
        Ok(false)
    }
}

impl DestDirsWalk for ReportedWalk<'_> {
    fn enter(&mut self, path: &RelPath) -> Result<()> {
        let level = self.levels.last_mut();
        self.at_receiver = match level.map(|level| (&level.at_receiver, &mut level.children)) {
            None | Some((None, _)) => self.receiver_dir_at(path)?,
            Some((Some(DestDirState::Absent), _)) => Some(DestDirState::Absent),
            Some((Some(DestDirState::Dir { .. } | DestDirState::Large(_)), children)) => {
                let name = digest::keyed_name(&self.reports.digester.key, path.name());
                match children.pass_to(name) {
                    Some(ahead) => {
                        self.to_skip.0 += ahead;
                        Some(self.next_that_matters()?)
                    }
                    None => Some(DestDirState::Absent),
                }
            }
        };
        Ok(())
    }

    fn compare(&mut self, entries: u64, digest: Option<&ListingDigest>) -> Result<DirComparison> {
        self.has_more = self.receive_large_reports(entries)?;
        Ok(match &self.at_receiver {
            Some(DestDirState::Dir {
                digest: Some(theirs),
                ..
            }) if digest == Some(theirs) => DirComparison::Same,
            Some(DestDirState::Absent) => DirComparison::Absent,
            Some(DestDirState::Dir { .. } | DestDirState::Large(_)) | None => {
                DirComparison::Differs
            }
        })
    }

    fn descend(&mut self, has_subdirs: bool) -> Result<()> {
        if self.has_more && !has_subdirs {
            self.to_skip.0 += 1;
        } else {
            self.receive_large_reports(u64::MAX)?;
        }
        let mut at_receiver = self.at_receiver.take();
        let children = match &mut at_receiver {
            Some(DestDirState::Dir { children, .. }) => std::mem::take(children),
            Some(DestDirState::Absent | DestDirState::Large(_)) | None => Vec::new(),
        };
        self.levels.push(ReportedLevel {
            at_receiver,
            children: Children::new(children),
        });
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(level) = self.levels.pop() {
            self.to_skip.0 += level.children.left();
        }
    }

    fn end(&mut self) {
        self.to_skip.0 += self.whole.len() - self.whole_passed;
        self.reports.inbox.lock().to_skip = self.to_skip;
    }
}
