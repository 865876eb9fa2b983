//! The plans of directories that the peer lists: takes its listings in order, and decides.

use super::dir_reports::{ReportScope, RunningReports};
use super::{PeerAccounts, Receiver};
use crate::apply::generator::{OnSkipped, Plans};
use crate::apply::pipeline::SourcePlans;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Chain;
use crate::flist::{DirList, Kind};
use crate::fs::errno;
use crate::path::RelPath;
use crate::proto::{DirListing, FileId};
use crate::report::event::{ErrorRole, Problem};
use crate::report::progress::ListTotal;
use crate::session::connection::unexpected;
use crate::session::sender::{compare_walked, is_below};
use crate::walk::destination::DestWalk;
use crate::walk::{DestState, DirPlan, Findings, ListedDir, SenderDir, TaskId, enter_dir};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source at the peer.
pub(super) struct PeerSource<'a> {
    pub receiver: &'a Receiver<'a>,
    pub accounts: &'a PeerAccounts,
    /// The directories of which everything is compared.
    pub whole: Vec<RelPath>,
    /// The name that the only entry gets.
    pub renamed: Option<Vec<u8>>,
}

impl SourcePlans for PeerSource<'_> {
    fn plans<'w>(
        &'w self,
        walk: DestWalk<'w>,
        whole_list_first: bool,
    ) -> Result<Box<dyn Plans + 'w>, Error> {
        let walk = Arc::new(walk);
        let dir_reports = match self.receiver.dir_reports {
            Some(dir_reports) => {
                let scope = ReportScope {
                    options: self.receiver.run_context.options,
                    cache: self.receiver.run_context.checksum_cache(),
                    ids: &self.accounts.ids,
                    whole: &self.whole,
                };
                // Must happen before any listing is taken.
                Some(dir_reports.begin(scope, walk.clone())?)
            }
            None => None,
        };
        Ok(Box::new(PeerPlans {
            peer: self,
            dir_reports,
            walk,
            whole_list_first,
            next_ticket: AtomicU64::new(0),
            position: Mutex::default(),
        }))
    }
}

/// Plans of directories that the peer lists.
struct PeerPlans<'w> {
    peer: &'w PeerSource<'w>,
    walk: Arc<DestWalk<'w>>,
    /// Reports the directories of the destination, if the sender takes that.
    dir_reports: Option<Box<dyn RunningReports + 'w>>,
    whole_list_first: bool,
    next_ticket: AtomicU64,
    position: Mutex<WalkPosition>,
}

/// How many entries must be known before progress is shown, if there are that many. Otherwise the number of entries
/// left to check would mean nothing.
const ENTRIES_AHEAD: u64 = 1000;

/// The position in the sender's walk.
#[derive(Default)]
struct WalkPosition {
    /// The rules in force in the directories that lead to the last one, each with its path.
    chains: Vec<(RelPath, Chain)>,
    /// The last directory that was received.
    last: Option<RelPath>,
    /// A directory at the top level was met before; see [`Chain::for_further_source`].
    has_top: bool,
    root_is_named: bool,
}

impl<'w> PeerPlans<'w> {
    /// Waits for the next received directory and looks at it; `None` if there is none.
    fn peek_at<T>(&self, look: impl Fn(&DirListing) -> T) -> Result<Option<T>, Error> {
        let receiver = self.peer.receiver;
        let ahead = if receiver.wants.progress && !receiver.peer.facts().lists_in_turn {
            ENTRIES_AHEAD
        } else {
            0
        };
        let mut seen = None;
        let mut look = |listing: &DirListing| seen = Some(look(listing));
        receiver.peer.peek(ahead, &mut look)?;
        Ok(seen)
    }

    fn peek(&self) -> Result<Option<RelPath>, Error> {
        self.peek_at(|listing| listing.path.clone())
    }

    /// Takes the next received directory.
    fn pop(&self) -> Result<Box<DirListing>, Error> {
        let listing = self.peer.receiver.peer.pop()?;
        let mut position = self.position.lock();
        let is_behind = position
            .last
            .as_ref()
            .is_none_or(|last| compare_walked(last, &listing.path).is_lt());
        if !is_behind {
            return Err(unexpected("directories out of order"));
        }
        position.last = Some(listing.path.clone());
        drop(position);
        self.peer.receiver.request.check(&listing)?;
        self.peer.accounts.learn(&listing.ids);
        Ok(listing)
    }

    /// Returns the receiver's rules in force in the parent of a directory.
    fn chain_above(&self, path: &RelPath) -> Result<Chain, Error> {
        let base = self.walk.receiver_chain;
        let Some(parent) = path.parent() else {
            return Ok(base.clone());
        };
        if !base.has_per_dir() {
            return Ok(base.clone());
        }
        let mut position = self.position.lock();
        while position
            .chains
            .last()
            .is_some_and(|(dir, _)| *dir != parent && !is_below(&parent, dir))
        {
            position.chains.pop();
        }
        let mut chain = position
            .chains
            .last()
            .map_or_else(|| base.clone(), |(_, chain)| chain.clone());
        // Directories above that were not sent are entered only for their rules.
        let known = position.chains.last().map(|(dir, _)| dir.clone());
        let mut missing = Vec::new();
        let mut at = Some(parent.clone());
        while let Some(dir) = at.filter(|dir| known.as_ref() != Some(dir)) {
            at = dir.parent();
            missing.push(dir);
        }
        for dir in missing.into_iter().rev() {
            let opened = match self.walk.dest {
                Some(root) if self.walk.delete => Some(root.open_dir(&dir)),
                _ => None,
            };
            let opened = match opened {
                // Rules in it could protect entries from deletion.
                Some(Err(error)) if !errno::is_unreachable(&error) => {
                    let full = self
                        .walk
                        .dest
                        .map(|root| root.full(dir.as_bytes()))
                        .unwrap_or_default();
                    let problem = Problem::failed(ErrorRole::Generator, "opendir", &full, &error);
                    return Err(Error::new(Exit::FileIo, problem.line).by("generator"));
                }
                opened => opened.and_then(Result::ok),
            };
            if let Some(open) = opened {
                let owners = self.walk.policy.preserve.link_owners;
                match enter_dir(&chain, &open, &dir, "generator", owners) {
                    Ok((entered, _)) => chain = entered,
                    Err(_) if self.walk.deletes_later => {}
                    Err(error) => return Err(error),
                }
            }
            position.chains.push((dir, chain.clone()));
        }
        if parent.is_root() {
            let further = !position.root_is_named || position.has_top;
            position.has_top = true;
            if further {
                chain = chain.for_further_source();
            }
        }
        Ok(chain)
    }

    fn next_task_id(&self) -> TaskId {
        TaskId::new(self.next_ticket.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn plan(&self, mut listing: Box<DirListing>, dest_state: &DestState) -> Result<DirPlan, Error> {
        let chain = self.chain_above(&listing.path)?;
        let id = listing.id;
        let path = listing.path.clone();
        let is_named = listing.is_named;
        if let Some(new) = &self.peer.renamed
            && path.is_root()
        {
            rename_only(&mut listing, new);
        }
        let known = self
            .dir_reports
            .as_ref()
            .and_then(|dir_reports| dir_reports.known(&path));
        // Not needed any more, and a plan may be held for long.
        (listing.itself, listing.ids) = Default::default();
        let found = ListedDir {
            listing: *listing,
            ..ListedDir::default()
        };
        let mut plan = self.walk.decide(found, dest_state, chain, known);
        self.peer.receiver.peer.complete(id, &mut plan)?;
        plan.number_subdirs(|| self.next_task_id());
        let lists_in_turn = self.peer.receiver.peer.facts().lists_in_turn;
        plan.found.sender_dir = Some(SenderDir {
            lists_in_turn,
            hold: Some(self.peer.receiver.peer.hold(id)),
        });
        let mut position = self.position.lock();
        position.root_is_named |= path.is_root() && is_named;
        if self.walk.receiver_chain.has_per_dir() {
            let chain = plan.found.receiver_chain.clone().expect("decided above");
            position.chains.push((path, chain));
        }
        Ok(plan)
    }
}

impl Plans for PeerPlans<'_> {
    fn root(&self) -> TaskId {
        TaskId::new(0)
    }

    fn take(
        &self,
        _ticket: TaskId,
        path: &RelPath,
        dest_state: &DestState,
    ) -> Result<Option<DirPlan>, Error> {
        match self.peek()? {
            Some(next) if next == *path => self.plan(self.pop()?, dest_state).map(Some),
            _ => Ok(None),
        }
    }

    fn stray(&self, below: &RelPath) -> Result<Option<DirPlan>, Error> {
        let request = &self.peer.receiver.request;
        // A directory that is not below `below` may be long and is looked at again until its turn, so it is not copied.
        let next = self.peek_at(|listing| {
            let found = || {
                let checked = request.check(listing);
                if checked.is_ok() {
                    // Its own owner may have been named nowhere else.
                    self.peer.accounts.learn(&listing.ids);
                }
                (
                    listing.path.clone(),
                    listing.itself.entries.first().cloned(),
                    checked,
                )
            };
            is_below(&listing.path, below).then(found)
        })?;
        let Some((path, itself, checked)) = next.flatten() else {
            return Ok(None);
        };
        checked?;
        let Some((itself, parent)) = itself.zip(path.parent()) else {
            return Err(unexpected("directory without attributes"));
        };
        let mut source = DirList::default();
        source.push_entry(path.name(), itself);
        let subs = vec![crate::proto::SubdirFlags {
            is_walked: true,
            ..Default::default()
        }];
        let chain = self.chain_above(&parent)?;
        let listing = DirListing {
            path: parent,
            list: source.into(),
            subs,
            is_named: true,
            ..DirListing::default()
        };
        // The parent may be long, and only this entry of it matters.
        let mut plan = self.walk.decide_single(
            ListedDir {
                listing,
                ..ListedDir::default()
            },
            chain,
        );
        plan.number_subdirs(|| self.next_task_id());
        Ok(Some(plan))
    }

    fn skip(
        &self,
        _ticket: Option<TaskId>,
        path: &RelPath,
        on_skipped: &mut OnSkipped<'_>,
    ) -> Result<(), Error> {
        while self
            .peek()?
            .is_some_and(|next| next == *path || is_below(&next, path))
        {
            let mut listing = self.pop()?;
            let problems = std::mem::take(&mut listing.problems);
            let notes = std::mem::take(&mut listing.notes);
            on_skipped(Findings {
                problems,
                notes,
                ..Findings::default()
            })?;
            for (at, entry) in listing.list.entries.iter().enumerate() {
                if listing.with_data && entry.kind() == Kind::File {
                    drop(self.peer.receiver.peer.unrequested(FileId {
                        dir: listing.id,
                        entry: at as u32,
                    }));
                }
            }
            drop(self.peer.receiver.peer.hold(listing.id));
        }
        Ok(())
    }

    fn walk(&self) -> &DestWalk<'_> {
        &self.walk
    }

    fn listed(&self) -> ListTotal {
        self.peer.receiver.peer.listed()
    }

    fn will_come(&self) -> bool {
        self.peer.receiver.peer.will_list()
    }

    fn is_unbounded(&self) -> bool {
        self.whole_list_first
    }

    fn work(&self) {
        if let Some(dir_reports) = &self.dir_reports {
            dir_reports.work();
        }
    }

    fn close(&self) {
        if let Some(dir_reports) = &self.dir_reports {
            dir_reports.close();
        }
    }
}

/// Renames the single entry.
fn rename_only(listing: &mut DirListing, new: &[u8]) {
    let mut old = Arc::unwrap_or_clone(std::mem::take(&mut listing.list));
    let Some(entry) = old.entries.pop() else {
        return;
    };
    listing.renamed_from = Some(old.name(&entry).to_vec());
    Arc::make_mut(&mut listing.list).push_entry(new, entry);
}
