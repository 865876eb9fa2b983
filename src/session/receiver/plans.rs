//! The plans of directories that the peer lists: takes its listings in order, decides, and sends digests of the
//! destination meanwhile.

use super::{PeerAccounts, Receiver, ReceiverInbox};
use crate::apply::ContentPeer as _;
use crate::apply::generator::{Left, Plans};
use crate::apply::pipeline::SourcePlans;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Chain;
use crate::flist::{DirList, Kind};
use crate::fs::errno;
use crate::path::RelPath;
use crate::proto::{Class, DestDirState, DirId, DirListing, FileId, Message};
use crate::report::event::{ErrorRole, Problem};
use crate::report::progress::ListTotal;
use crate::session::connection::{Connection, unexpected};
use crate::session::dest_prescan::DigestScan;
use crate::session::digest_exchange::{
    Half, Rest, ScanResults, ScannedDir, ScannedLists, Survey, SurveyStep,
};
use crate::session::dir_digest::Digester;
use crate::session::sender::{compare_walked, is_below};
use crate::walk::destination::DestWalk;
use crate::walk::{DestState, DirPlan, Findings, ListedDir, Scanner, SenderDir, TaskId, enter_dir};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A source at the peer.
pub(super) struct PeerSource<'a> {
    pub receiver: &'a Receiver<'a>,
    pub accounts: &'a PeerAccounts,
    /// The directories whose digests the sender compares.
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
        let digester = Digester {
            key: self.receiver.checksums.key,
            options: self.receiver.terms.options,
            is_sender: false,
            owners: walk.policy.may_make_devices,
            ids: &self.accounts.ids,
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let root = walk.dest;
        let wanted = walk.wanted;
        let threads = walk.threads;
        let scan = DigestScan {
            root,
            wanted,
            threads,
            is_over: is_over.clone(),
            digester,
        };
        let begun = self
            .receiver
            .prescan
            .map(|(prescan, known)| prescan.end_prescan(walk.dest, &self.whole, known));
        let mut rest = begun.transpose()?.unwrap_or_default();
        // Must happen before any listing is taken.
        self.receiver.inbox.begin(std::mem::take(&mut rest.survey));
        Ok(Box::new(PeerPlans {
            peer: self,
            scanner: Scanner::new(scan, false),
            is_over,
            seen: Mutex::new(std::mem::take(&mut rest.kept)),
            rest: Mutex::new(rest),
            has_started: AtomicBool::new(self.whole.is_empty()),
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
    /// Scans the destination for the digests that the sender compares.
    scanner: Scanner<DigestScan<'w>>,
    /// The digests are not needed any more.
    is_over: Arc<AtomicBool>,
    /// The part of an early scan that is still to be sent.
    rest: Mutex<Rest<'w>>,
    /// Set once a worker has started to send the digests.
    has_started: AtomicBool,
    whole_list_first: bool,
    next_ticket: AtomicU64,
    position: Mutex<WalkPosition>,
    seen: Mutex<ScannedLists>,
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

/// Makes the sender keep its copy of a directory until no more of its files are requested.
struct SenderHold {
    connection: Arc<Connection>,
    dir: DirId,
}

impl Drop for SenderHold {
    fn drop(&mut self) {
        // A lost connection is reported by the next use of the connection.
        let _ = self.connection.send_later(&Message::Done(self.dir));
    }
}

impl<'w> PeerPlans<'w> {
    fn inbox(&self) -> &'w ReceiverInbox {
        self.peer.receiver.inbox
    }

    /// Waits for the next received directory and looks at it; `None` if there is none.
    fn peek_at<T>(&self, look: impl Fn(&DirListing) -> T) -> Result<Option<T>, Error> {
        let receiver = self.peer.receiver;
        let ahead = if receiver.wants.progress && !receiver.facts.lists_in_turn {
            ENTRIES_AHEAD
        } else {
            0
        };
        self.inbox().wait(|state| match state.dirs.first() {
            Some(listing)
                if ahead == 0 || state.dirs_ended.is_some() || state.dirs.are_ahead(ahead) =>
            {
                Some(Some(look(listing)))
            }
            None if state.dirs_ended.is_some() => Some(None),
            _ => None,
        })
    }

    fn peek(&self) -> Result<Option<RelPath>, Error> {
        self.peek_at(|listing| listing.path.clone())
    }

    /// Takes the next received directory.
    fn pop(&self) -> Result<Box<DirListing>, Error> {
        let (listing, cost) = self.inbox().wait(|state| state.dirs.pop())?;
        self.peer.receiver.connection.consumed(Class::Dirs, cost);
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

    /// Returns the entries of a destination directory that were kept when it was digested, if any. Drops those of
    /// earlier directories.
    fn known(&self, path: &RelPath) -> Option<DirList> {
        let mut seen = self.seen.lock();
        while let Some(order) = seen
            .first()
            .map(|first| compare_walked(first, path))
            .filter(|order| order.is_le())
        {
            let list = seen.pop();
            if order.is_eq() {
                return list;
            }
        }
        None
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
        let known = self.known(&path);
        // Not needed any more, and a plan may be held for long.
        (listing.itself, listing.ids) = Default::default();
        let found = ListedDir {
            listing: *listing,
            ..ListedDir::default()
        };
        let mut plan = self.walk.decide(found, dest_state, chain, known);
        self.peer.receiver.request_xattrs(id, &mut plan)?;
        plan.number_subdirs(|| self.next_task_id());
        let hold = SenderHold {
            connection: self.peer.receiver.connection.clone(),
            dir: id,
        };
        let lists_in_turn = self.peer.receiver.facts.lists_in_turn;
        plan.found.sender_dir = Some(SenderDir {
            lists_in_turn,
            hold: Some(Arc::new(hold)),
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
        left: &mut Left<'_>,
    ) -> Result<(), Error> {
        while self
            .peek()?
            .is_some_and(|next| next == *path || is_below(&next, path))
        {
            let mut listing = self.pop()?;
            let problems = std::mem::take(&mut listing.problems);
            let notes = std::mem::take(&mut listing.notes);
            left(Findings {
                problems,
                notes,
                ..Findings::default()
            })?;
            for (at, entry) in listing.list.entries.iter().enumerate() {
                if listing.with_data && entry.kind() == Kind::File {
                    drop(self.peer.receiver.early(FileId {
                        dir: listing.id,
                        entry: at as u32,
                    }));
                }
            }
            drop(SenderHold {
                connection: self.peer.receiver.connection.clone(),
                dir: listing.id,
            });
        }
        Ok(())
    }

    fn walk(&self) -> &DestWalk<'_> {
        &self.walk
    }

    fn listed(&self) -> ListTotal {
        let state = self.inbox().lock();
        let (entries, bytes) = state.dirs.listed;
        ListTotal {
            entries,
            bytes,
            complete: state.dirs_ended.is_some(),
        }
    }

    fn will_come(&self) -> bool {
        let Some(peer) = self.peer.receiver.item_peer else {
            return true;
        };
        let state = self.inbox().lock();
        state.dirs.first().is_some() || state.dirs_ended.is_some() || peer.owes_lists()
    }

    fn is_unbounded(&self) -> bool {
        self.whole_list_first
    }

    fn work(&self) {
        if !self.has_started.swap(true, Ordering::Relaxed) {
            // A lost connection is reported to the threads that wait for data.
            let _ = self.send_digests();
            return;
        }
        self.scanner.work();
    }

    fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.scanner.close();
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

/// The maximum number of directories in one message: enough to make a message cheap, few enough that the sender does
/// not wait.
const SEEN_IN_A_MESSAGE: usize = 64;
/// The number of scanned entries after which a message is sent as well.
const ENTRIES_IN_A_MESSAGE: usize = 4096;

impl PeerPlans<'_> {
    /// Sends the digests of the destination, directory by directory, until the sender has listed everything.
    fn send_digests(&self) -> Result<(), Error> {
        let rest = std::mem::take(&mut *self.rest.lock());
        let mut batch = DigestBatch {
            connection: self.peer.receiver.connection,
            batch: Vec::new(),
            entries: 0,
        };
        rest.first
            .into_iter()
            .try_for_each(|seen| batch.push(seen))?;
        if let Some(results) = rest.results {
            self.survey(results, &mut batch)?;
        }
        for path in self.peer.whole.iter().skip(rest.passed) {
            let first = self
                .scanner
                .start((path.clone(), self.walk.receiver_chain.clone()));
            self.inbox()
                .begin(Survey::new(first, self.peer.receiver.checksums.key));
            self.survey(&self.scanner, &mut batch)?;
        }
        batch.send()
    }

    /// Sends the rest of the current survey.
    fn survey(&self, results: &dyn ScanResults, batch: &mut DigestBatch<'_>) -> Result<(), Error> {
        while let Some((mut next, needless)) = self.inbox().next() {
            if !needless.is_empty() {
                results.forget(needless);
            }
            let seen = loop {
                let found = match next {
                    SurveyStep::Send(seen) => break seen,
                    SurveyStep::Take(task_id) => results.take(task_id),
                    SurveyStep::GoOn(half) => self.scan_large(results, half, batch)?,
                };
                next = self.inbox().lock().survey.took(found, &mut |path, list| {
                    batch.entries += list.len();
                    self.seen.lock().keep(path, list);
                });
            };
            batch.push(seen)?;
        }
        Ok(())
    }

    /// Scans a large directory. First sends how many entries it has, those listed ahead and then all: if the sender has
    /// fewer, the scan ends early.
    fn scan_large(
        &self,
        results: &dyn ScanResults,
        mut half: Box<Half>,
        batch: &mut DigestBatch<'_>,
    ) -> Result<ScannedDir, Error> {
        let is_settled = self.inbox().lock().survey.is_settled();
        let mut reported = 0;
        while half.names.items.len() > reported {
            reported = half.names.items.len();
            batch.push(DestDirState::Large(reported as u64))?;
            batch.send()?;
            results.list(&mut half, &|| is_settled.load(Ordering::Relaxed));
        }
        let found = results.go_on(half, &|| is_settled.load(Ordering::Relaxed));
        Ok(found.unwrap_or_else(|half| results.cut(half, self.inbox().lock().survey.has_none())))
    }
}

/// Batches digests into messages.
struct DigestBatch<'a> {
    connection: &'a Connection,
    batch: Vec<DestDirState>,
    /// The approximate number of entries in the directories of the batch.
    entries: usize,
}

impl DigestBatch<'_> {
    fn push(&mut self, seen: DestDirState) -> Result<(), Error> {
        self.batch.push(seen);
        let is_enough =
            self.batch.len() >= SEEN_IN_A_MESSAGE || self.entries >= ENTRIES_IN_A_MESSAGE;
        if is_enough { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), Error> {
        self.entries = 0;
        match std::mem::take(&mut self.batch) {
            nothing if nothing.is_empty() => Ok(()),
            batch => self.connection.send(&Message::Digests(batch)),
        }
    }
}
