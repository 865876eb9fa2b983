//! The receiving side of a session: sends digests of the destination, receives the listings that differ, and requests
//! the missing content.

mod inbox;
mod late_xattrs;

pub use self::inbox::{ReceiverHandler, ReceiverInbox};

use self::inbox::FileSlot;
use crate::apply::dest_arg::{Destination, Facts};
use crate::apply::generator::{Left, Plans};
use crate::apply::pipeline::{EventSink, Receiving, RunStart, SourcePlans};
use crate::apply::{BlockSums, ContentPiece, Incoming, Loss, Retry, Wire};
use crate::digest::{By, Comparison};
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Chain;
use crate::flist::abbreviated::AbbreviatedValue;
use crate::flist::{DirList, Entry, Kind, NO_LISTING};
use crate::fs::compare::digest_of_beginning;
use crate::fs::ids::Ids;
use crate::fs::root::Dir;
use crate::fs::{errno, sys};
use crate::options::Compression;
use crate::path::RelPath;
use crate::plan::idmap::{IdClass, IdNames};
use crate::proto::rsync::tokens::TokenDecoder;
use crate::proto::{Basis, Class, DestDirState, DirId, DirListing, FileId, Lane, Message, Roots};
use crate::report::Tally;
use crate::report::event::{ErrorRole, Event, Item, Problem, Wants, Weight};
use crate::session::connection::{Connection, undecodable, unexpected};
use crate::session::dest_prescan::{DestPrescan, DigestScan, ScannedDest};
use crate::session::digest_exchange::{Half, Known, Rest, ScanResults, ScannedDir, ScannedLists, Survey, SurveyStep};
use crate::session::dir_digest::Digester;
use crate::session::response_validation::ResponseValidator;
use crate::session::sender::{compare_walked, is_below};
use crate::walk::destination::DestWalk;
use crate::walk::run_context::Terms;
use crate::walk::{ComparedSource, DestState, DirPlan, Findings, ListedDir, Scanner, SenderDir, TaskId, enter_dir};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The receiver of a session.
pub struct Receiver<'a> {
    /// The context of the run.
    pub terms: Terms<'a>,
    /// The connection to the sender.
    pub connection: &'a Arc<Connection>,
    /// The messages of the sender.
    pub inbox: &'a ReceiverInbox,
    /// The key of directory digests.
    pub key: [u8; 16],
    /// How to digest contents that are sent without the blocks of a basis.
    pub plain_by: By,
    /// How to digest contents that are sent with blocks of a basis.
    pub blocks_by: By,
    /// How to compare contents that the sender has as well.
    pub compared_by: Comparison,
    /// Which sums of the blocks of a basis the sender expects.
    pub block_sums: BlockSums,
    /// A stock rsync compresses data by `zlib`, with the ranges of the basis as history.
    pub inflates: bool,
    /// The sender supports [`DestDirState::Large`]: if it has fewer entries in a directory than that, it needs no digest.
    pub supports_large: bool,
    /// The scan of the destination, if one was started early, and what the sender already knows of it.
    pub prescan: Option<(&'a DestPrescan<'a>, Known)>,
    /// The destination as given; `None`: list only.
    pub dest: Option<Vec<u8>>,
    /// What the sender may send.
    pub request: ResponseValidator,
    /// The events that the client wants.
    pub wants: Wants,
    /// This end is the client, which reports for itself.
    pub is_client: bool,
    /// Set if the sender is a client that reports all items.
    pub listing_client: Option<&'a dyn ListingClient>,
    /// The sender may report something after our last message, so its final message is awaited.
    pub awaits_bye: bool,
    /// Whether to report the costs of this end.
    pub profile: bool,
}

impl Receiver<'_> {
    /// Runs until everything is in place. The counts of this end are also sent to the sender.
    pub fn run(&self, listener: &mut dyn EventSink, tally: &mut Tally) -> Result<(), Error> {
        let roots = self.inbox.wait(|state| state.roots.take())?;
        self.request.check_roots(&roots)?;
        let mut counted = Tally::default();
        for problem in &roots.problems {
            counted.at_peer(|counted| counted.problem(problem.weight));
            listener.report(&Event::Problem(problem.clone()));
        }
        for note in &roots.notes {
            listener.report(&Event::Note(note.clone()));
        }
        // As in rsync, a client that receives nothing does not look for its destination.
        let is_empty = roots.found == 0 && roots.missing.is_empty() && roots.top.is_none();
        if !(is_empty && self.is_client) {
            self.receive(roots, listener, &mut counted)?;
        }
        self.inbox.wait(|state| state.dirs_ended.clone())?;
        // A directory that is renamed here, which only an empty one can be, may remain in the queue. It has no entries.
        if self.inbox.lock().dirs.has_entries() {
            return Err(unexpected("directory without a parent"));
        }
        if self.profile {
            for line in self.connection.cost("server") {
                listener.report(&Event::Problem(Problem::new(line, Weight::Warning)));
            }
        }
        self.inbox.lock().has_all = true;
        self.inbox.changed.notify_all();
        self.connection.send(&Message::WantsEnd(Box::new(counted.clone())))?;
        self.inbox.lock().has_reported_all = true;
        self.inbox.changed.notify_all();
        tally.merge(&counted);
        let sender_tally = self.inbox.wait(|state| state.dirs_ended.clone())?;
        tally.merge(&sender_tally);
        if self.awaits_bye {
            let rest = self.inbox.wait(|state| state.bye.clone())?;
            tally.merge(&rest);
        }
        Ok(())
    }

    fn receive(&self, roots: Roots, listener: &mut dyn EventSink, tally: &mut Tally) -> Result<(), Error> {
        let facts = Facts {
            is_empty: roots.found == 0 && roots.missing.is_empty(),
            single: roots.single,
            lone_dir_is_bare: roots.lone_dir_is_bare,
            has_top: roots.top.is_some(),
        };
        let to = Destination::find(&self.terms, self.dest.as_deref(), &facts)?;
        let accounts = PeerAccounts { ids: Ids::new(), source_names: RwLock::default() };
        accounts.learn(&roots.ids);
        let compare = |source: ComparedSource<'_>, dest: (&Dir, &[u8])| {
            let is_over = || self.terms.stop.load(Ordering::Relaxed) || self.inbox.is_silent();
            same_digest(source.entry, dest, self.terms.unreadable_is_same(), &self.compared_by, &is_over)
        };
        let receiving = Receiving {
            terms: self.terms,
            list_only: self.dest.is_none(),
            to: &to,
            wants: self.wants,
            names: &accounts,
            compare: &compare,
            wire: Some(self),
            reports_when_open: self.is_client,
        };
        let mut top = roots.top.and_then(|mut list| list.entries.pop());
        if let Some(top) = &mut top {
            self.request_xattrs_of_root(top)?;
        }
        let start = RunStart {
            top,
            top_shown: (!self.is_client).then_some(roots.top_shown),
            missing: roots.missing,
            has_failed: roots.problems.iter().any(|problem| problem.weight == Weight::SourceError),
            reaches_source: false,
        };
        let source =
            PeerSource { receiver: self, accounts: &accounts, whole: roots.whole, renamed: to.renamed.clone() };
        receiving.run(start, &source, listener, tally)
    }
}

/// Whether a file of the destination has the content that the sender's digest describes. Fails once `is_over` returns
/// `true`. With `unreadable_is_same`, a file that neither end may read counts as equal.
fn same_digest(
    source: &Entry,
    (dir, name): (&Dir, &[u8]),
    unreadable_is_same: bool,
    by: &Comparison,
    is_over: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let dest = sys::open_read(dir.fd(), name, false, false);
    let Some(digest) = source.extra.as_ref().and_then(|extra| extra.digest) else {
        // No digest: the sender was denied access. It reports every other error.
        let is_denied = dest.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        return Ok(is_denied && unreadable_is_same);
    };
    // The caller has already compared the lengths.
    Ok(digest_of_beginning(dest?.as_fd(), source.len_bytes, by, is_over)? == digest)
}

/// The user and group names that the sender sent, and those of this machine.
struct PeerAccounts {
    ids: Ids,
    source_names: RwLock<HashMap<(bool, u32), Vec<u8>>>,
}

impl PeerAccounts {
    fn learn(&self, names: &[crate::proto::IdName]) {
        if names.is_empty() {
            return;
        }
        let mut source_names = self.source_names.write();
        for name in names {
            source_names.entry((name.is_group, name.id)).or_insert_with(|| name.name.clone());
        }
    }
}

impl IdNames for PeerAccounts {
    fn source_name(&self, class: IdClass, id: u32) -> Option<Vec<u8>> {
        let source_names = self.source_names.read();
        source_names.get(&(class == IdClass::Group, id)).cloned()
    }

    fn dest_name(&self, class: IdClass, id: u32) -> Option<Vec<u8>> {
        let name = match class {
            IdClass::User => self.ids.user_name(id),
            IdClass::Group => self.ids.group_name(id),
        };
        name.map(|name| name.to_vec())
    }

    fn dest_id(&self, class: IdClass, name: &[u8]) -> Option<u32> {
        match class {
            IdClass::User => self.ids.user_id(name),
            IdClass::Group => self.ids.group_id(name),
        }
    }
}

/// A source at the peer.
struct PeerSource<'a> {
    receiver: &'a Receiver<'a>,
    accounts: &'a PeerAccounts,
    whole: Vec<RelPath>,
    renamed: Option<Vec<u8>>,
}

impl SourcePlans for PeerSource<'_> {
    fn plans<'w>(&'w self, walk: DestWalk<'w>, whole_list_first: bool) -> Result<Box<dyn Plans + 'w>, Error> {
        let walk = Arc::new(walk);
        let digester = Digester {
            key: self.receiver.key,
            options: self.receiver.terms.options,
            is_sender: false,
            owners: walk.policy.may_make_devices,
            ids: &self.accounts.ids,
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let scanned = ScannedDest {
            root: walk.dest,
            wanted: walk.wanted,
            link_owners: walk.policy.preserve.link_owners,
            threads: walk.threads,
            is_over: is_over.clone(),
        };
        let begun = self.receiver.prescan.map(|(prescan, known)| prescan.meet(walk.dest, &self.whole, known));
        let mut rest = begun.transpose()?.unwrap_or_default();
        // Must happen before any listing is taken.
        self.receiver.inbox.begin(std::mem::take(&mut rest.survey));
        Ok(Box::new(PeerPlans {
            peer: self,
            scanner: Scanner::new(DigestScan { scanned, digester }, false),
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

/// A client that sends, and reports all items. It lists directories piecewise.
pub trait ListingClient: Sync {
    /// Returns whether an entry has its number in the protocol.
    fn has_number(&self, file: FileId) -> bool;
    /// Returns whether more lists come although none of those that came is done any more.
    fn owes_lists(&self) -> bool;
    /// Returns whether it sends abbreviated values of extended attributes with the items that it returns.
    fn sends_xattrs(&self) -> bool;
    /// Requests abbreviated values with the next item of an entry, by their numbers in their list.
    fn want_xattrs(&self, file: FileId, list: u32, numbers: Vec<u32>);
    /// Returns whether no item with values of an entry is to be returned.
    fn has_returned_xattrs(&self, file: FileId) -> bool;
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
        // A stock rsync lists no more directories until earlier ones were received.
        let ahead = if receiver.wants.progress && !receiver.is_stock() { ENTRIES_AHEAD } else { 0 };
        self.inbox().wait(|state| match state.dirs.first() {
            Some(listing) if ahead == 0 || state.dirs_ended.is_some() || state.dirs.are_ahead(ahead) => {
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
        let is_behind = position.last.as_ref().is_none_or(|last| compare_walked(last, &listing.path).is_lt());
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
        let Some(parent) = path.parent().filter(|_| base.has_per_dir()) else { return Ok(base.clone()) };
        let mut position = self.position.lock();
        while position.chains.last().is_some_and(|(dir, _)| *dir != parent && !is_below(&parent, dir)) {
            position.chains.pop();
        }
        let mut chain = position.chains.last().map_or_else(|| base.clone(), |(_, chain)| chain.clone());
        // Directories above that were not sent are entered only for their rules.
        let known = position.chains.last().map(|(dir, _)| dir.clone());
        let mut missing = Vec::new();
        let mut at = Some(parent.clone());
        while let Some(dir) = at.filter(|dir| known.as_ref() != Some(dir)) {
            at = dir.parent();
            missing.push(dir);
        }
        for dir in missing.into_iter().rev() {
            let opened = match self.walk.dest.filter(|_| self.walk.delete).map(|root| root.open_dir(&dir)) {
                // Rules in it could protect entries from deletion.
                Some(Err(error)) if !errno::is_unreachable(&error) => {
                    let full = self.walk.dest.map(|root| root.full(dir.as_bytes())).unwrap_or_default();
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
        while let Some(order) = seen.first().map(|first| compare_walked(first, path)).filter(|order| order.is_le()) {
            let list = seen.pop();
            if order.is_eq() {
                return list;
            }
        }
        None
    }

    fn plan(&self, listing: Box<DirListing>, dest_state: &DestState) -> Result<DirPlan, Error> {
        let chain = self.chain_above(&listing.path)?;
        let listing = *listing;
        let mut found = ListedDir {
            path: listing.path,
            source: Arc::unwrap_or_clone(listing.list),
            subs: listing.subs,
            places: Vec::new(),
            sender_dir: None,
            may_delete: listing.may_delete,
            is_named: listing.is_named,
            problems: listing.problems,
            fatal: None,
            notes: listing.notes,
            tally: Tally::default(),
            renamed_from: listing.renamed_from,
        };
        if let Some(new) = self.peer.renamed.as_ref().filter(|_| found.path.is_root()) {
            found.rename_only(new);
        }
        let path = found.path.clone();
        let is_named = found.is_named;
        let known = self.known(&found.path);
        let mut plan = self.walk.decide(found, dest_state, chain, known);
        self.peer.receiver.request_xattrs(listing.id, &mut plan)?;
        for sub in plan.subdirs.iter_mut().filter(|sub| sub.task_id.is_some()) {
            sub.task_id = Some(TaskId::of(self.next_ticket.fetch_add(1, Ordering::Relaxed) + 1));
        }
        let hold = SenderHold { connection: self.peer.receiver.connection.clone(), dir: listing.id };
        plan.listing.sender_dir = Some(SenderDir {
            id: listing.id,
            with_data: listing.with_data,
            shown: listing.shown,
            lists_in_turn: self.peer.receiver.is_stock(),
            hold: Some(Arc::new(hold)),
        });
        let mut position = self.position.lock();
        position.root_is_named |= path.is_root() && is_named;
        if self.walk.receiver_chain.has_per_dir() {
            let chain = plan.receiver_chain.clone().expect("decided above");
            position.chains.push((path, chain));
        }
        Ok(plan)
    }
}

impl Plans for PeerPlans<'_> {
    fn root(&self) -> TaskId {
        TaskId::of(0)
    }

    fn take(&self, _ticket: TaskId, path: &RelPath, dest_state: &DestState) -> Result<Option<DirPlan>, Error> {
        match self.peek()? {
            Some(next) if next == *path => self.plan(self.pop()?, dest_state).map(Some),
            _ => Ok(None),
        }
    }

    fn stray(&self, below: &RelPath) -> Result<Option<DirPlan>, Error> {
        let request = &self.peer.receiver.request;
        // A directory that is not below `below` may be long and is looked at again until its turn, so it is not copied.
        let next = self.peek_at(|listing| {
            let found = || (listing.path.clone(), listing.itself.entries.first().cloned(), request.check(listing));
            is_below(&listing.path, below).then(found)
        })?;
        let Some((path, itself, checked)) = next.flatten() else { return Ok(None) };
        checked?;
        let Some((itself, parent)) = itself.zip(path.parent()) else {
            return Err(unexpected("directory without attributes"));
        };
        let mut source = DirList::default();
        source.push_entry(path.name(), itself);
        let subs = vec![crate::proto::SubdirFlags { is_walked: true, ..Default::default() }];
        let found = ListedDir { path: parent, source, subs, is_named: true, ..ListedDir::default() };
        let chain = self.chain_above(&found.path)?;
        // The parent may be long, and only this entry of it matters.
        let mut plan = self.walk.decide_single(found, chain);
        for sub in plan.subdirs.iter_mut().filter(|sub| sub.task_id.is_some()) {
            sub.task_id = Some(TaskId::of(self.next_ticket.fetch_add(1, Ordering::Relaxed) + 1));
        }
        Ok(Some(plan))
    }

    fn skip(&self, _ticket: Option<TaskId>, path: &RelPath, left: &mut Left<'_>) -> Result<(), Error> {
        while self.peek()?.is_some_and(|next| next == *path || is_below(&next, path)) {
            let mut listing = self.pop()?;
            let (problems, notes) = (std::mem::take(&mut listing.problems), std::mem::take(&mut listing.notes));
            left(Findings { problems, notes, ..Findings::default() })?;
            for (at, entry) in listing.list.entries.iter().enumerate() {
                if listing.with_data && entry.kind() == Kind::File {
                    self.peer.receiver.decline(FileId { dir: listing.id, entry: at as u32 });
                }
            }
            drop(SenderHold { connection: self.peer.receiver.connection.clone(), dir: listing.id });
        }
        Ok(())
    }

    fn walk(&self) -> &DestWalk<'_> {
        &self.walk
    }

    fn listed(&self) -> (u64, u64, bool) {
        let state = self.inbox().lock();
        let (entries, bytes) = state.dirs.listed();
        (entries, bytes, state.dirs_ended.is_some())
    }

    fn will_come(&self) -> bool {
        let Some(client) = self.peer.receiver.listing_client else { return true };
        let state = self.inbox().lock();
        state.dirs.first().is_some() || state.dirs_ended.is_some() || client.owes_lists()
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

/// The maximum number of directories in one message: enough to make a message cheap, few enough that the sender does
/// not wait.
const SEEN_IN_A_MESSAGE: usize = 64;
/// The number of scanned entries after which a message is sent as well.
const ENTRIES_IN_A_MESSAGE: usize = 4096;

impl PeerPlans<'_> {
    /// Sends the digests of the destination, directory by directory, until the sender has listed everything.
    fn send_digests(&self) -> Result<(), Error> {
        let rest = std::mem::take(&mut *self.rest.lock());
        let mut batch = DigestBatch { connection: self.peer.receiver.connection, batch: Vec::new(), entries: 0 };
        rest.first.into_iter().try_for_each(|seen| batch.push(seen))?;
        if let Some(results) = rest.results {
            self.survey(results, &mut batch)?;
        }
        for path in self.peer.whole.iter().skip(rest.passed) {
            let first = self.scanner.start((path.clone(), self.walk.receiver_chain.clone()));
            self.inbox().begin(Survey::of(first, self.peer.receiver.key));
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
                    SurveyStep::Tell(seen) => break seen,
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
        while self.peer.receiver.supports_large && half.names.items.len() > reported {
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
        let is_enough = self.batch.len() >= SEEN_IN_A_MESSAGE || self.entries >= ENTRIES_IN_A_MESSAGE;
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

/// A longer request waits until all files requested before have arrived. It takes most of the window or more than all
/// of it, and the sender grants that again at once if it has nothing else to process first.
const LONE_WANT_BYTES: usize = 1 << 20;

impl Wire for Receiver<'_> {
    fn want(&self, file: FileId, basis: Basis) -> Result<(), Error> {
        // A stock rsync has no window.
        if !self.is_stock() && basis.blocks().is_some_and(|blocks| blocks.len() > LONE_WANT_BYTES) {
            self.inbox.wait(|state| (state.requested == 0).then_some(()))?;
        }
        let mut state = self.inbox.lock();
        let slot = FileSlot { has_blocks: basis.blocks().is_some(), ..FileSlot::default() };
        state.files.insert((Lane::Requested, file), slot);
        state.requested += 1;
        drop(state);
        self.connection.send(&Message::Want { file, lane: Lane::Requested, basis })
    }

    fn open(&self, file: FileId, is_unrequested: bool) -> Result<Box<dyn Incoming + '_>, Error> {
        if is_unrequested {
            self.inbox.lock().files.entry((Lane::Early, file)).or_default();
            return self.arriving(Lane::Early, file, false);
        }
        let requested = self.inbox.lock().files.get(&(Lane::Requested, file)).map(|slot| slot.has_blocks);
        if let Some(has_blocks) = requested {
            return self.arriving(Lane::Requested, file, has_blocks);
        }
        if self.inbox.lock().files.contains_key(&(Lane::Again, file)) {
            return self.arriving(Lane::Again, file, false);
        }
        if self.is_silent_about_unreadable() {
            let words = "sparsync: cannot request a file out of order before protocol 29";
            let refusal = ContentPiece::Unsent(Some(Problem::new(words, Weight::Failed)));
            let slot = FileSlot { pieces: [(refusal, 0)].into(), is_whole: true, ..FileSlot::default() };
            self.inbox.lock().files.insert((Lane::Again, file), slot);
            return self.arriving(Lane::Again, file, false);
        }
        self.again(file, Basis::None)
    }

    fn retry(&self) -> Retry {
        match (self.is_silent_about_unreadable(), self.inbox.lock().retries_have_begun) {
            (false, _) => Retry::Now,
            (true, false) => Retry::Later,
            (true, true) => Retry::Never,
        }
    }

    fn is_silent_about_unreadable(&self) -> bool {
        self.listing_client.is_some() && matches!(self.block_sums, BlockSums::Stock { protocol: ..29, .. })
    }

    fn end_requests(&self, retries: &[FileId]) -> Result<(), Error> {
        if !retries.is_empty() {
            self.inbox.lock().retries_have_begun = true;
        }
        retries.iter().try_for_each(|file| self.request_again(*file, Basis::None))?;
        self.connection.send(&Message::Done(NO_LISTING))
    }

    fn again(&self, file: FileId, basis: Basis) -> Result<Box<dyn Incoming + '_>, Error> {
        let has_blocks = basis.blocks().is_some();
        self.request_again(file, basis)?;
        self.arriving(Lane::Again, file, has_blocks)
    }

    fn decline(&self, file: FileId) {
        self.discard(Lane::Early, file);
    }

    fn give_up(&self, error: &Error) {
        self.inbox.handle_end(error.clone());
    }

    fn is_silent(&self) -> bool {
        self.inbox.is_silent()
    }

    fn loss(&self) -> Option<Loss> {
        let exit = self.inbox.lock().failed.as_ref()?.exit;
        let is_broken = matches!(exit, Exit::Stream | Exit::Timeout | Exit::Signal | Exit::Terminated);
        let is_loss = is_broken && !self.terms.interrupted.load(Ordering::Relaxed);
        is_loss.then_some(if self.terms.repeats { Loss::Repeated } else { Loss::Final })
    }

    fn compared_by(&self) -> &Comparison {
        &self.compared_by
    }

    fn block_sums(&self) -> BlockSums {
        self.block_sums
    }

    fn placed(&self, file: FileId) -> Result<(), Error> {
        self.connection.send_later(&Message::Placed(file))
    }

    fn reports_items(&self) -> bool {
        self.listing_client.is_some()
    }

    fn announce(&self, item: Box<Item>) -> Result<(), Error> {
        self.connection.send(&Message::Event(Event::Item(item)))
    }

    fn await_number(&self, file: FileId) -> Result<(), Error> {
        let Some(client) = self.listing_client else { return Ok(()) };
        self.inbox.wait(|_| client.has_number(file).then_some(()))
    }

    fn sends_xattrs(&self) -> bool {
        self.listing_client.is_some_and(ListingClient::sends_xattrs)
    }

    fn want_xattrs(&self, file: FileId, list: u32, numbers: Vec<u32>) {
        if let Some(client) = self.listing_client {
            client.want_xattrs(file, list, numbers);
        }
    }

    fn await_xattrs(&self, file: FileId) -> Result<(), Error> {
        let Some(client) = self.listing_client else { return Ok(()) };
        self.inbox.wait(|_| client.has_returned_xattrs(file).then_some(()))
    }

    fn xattr(&self, wanted: &AbbreviatedValue) -> Option<Arc<[u8]>> {
        self.inbox.lock().xattrs.get(&(wanted.list, wanted.number)).cloned()
    }
}

impl Receiver<'_> {
    /// Returns whether the sender is a stock rsync.
    fn is_stock(&self) -> bool {
        matches!(self.block_sums, BlockSums::Stock { .. })
    }

    fn request_again(&self, file: FileId, basis: Basis) -> Result<(), Error> {
        let slot = FileSlot { has_blocks: basis.blocks().is_some(), ..FileSlot::default() };
        self.inbox.lock().files.insert((Lane::Again, file), slot);
        self.connection.send(&Message::Want { file, lane: Lane::Again, basis })
    }

    fn arriving(&self, lane: Lane, file: FileId, has_blocks: bool) -> Result<Box<dyn Incoming + '_>, Error> {
        let by = if has_blocks { self.blocks_by } else { self.plain_by };
        let decoder = match self.block_sums {
            BlockSums::Stock { protocol, .. } if self.inflates => Some(TokenDecoder::new(Compression::Zlib, protocol)),
            BlockSums::Stock { .. } | BlockSums::Native => None,
        };
        let decoder = decoder.transpose().map_err(undecodable)?;
        Ok(Box::new(Arriving { receiver: self, lane, file, by, decoder, is_over: false, moved_bytes: None }))
    }

    /// Discards what has arrived of a file and what will arrive.
    fn discard(&self, lane: Lane, file: FileId) {
        let mut state = self.inbox.lock();
        let slot = state.files.entry((lane, file)).or_default();
        slot.declined = true;
        let mut is_over = false;
        for (piece, cost) in std::mem::take(&mut slot.pieces) {
            is_over |= piece.is_last();
            self.connection.consumed(Class::of(lane), cost);
        }
        if is_over {
            state.files.remove(&(lane, file));
        }
    }
}

/// A file that is being received.
struct Arriving<'a> {
    receiver: &'a Receiver<'a>,
    lane: Lane,
    file: FileId,
    by: By,
    /// Decodes the data here, because the thread that reads the connection does not have the basis.
    decoder: Option<TokenDecoder>,
    is_over: bool,
    moved_bytes: Option<u64>,
}

impl Arriving<'_> {
    fn wait<T>(&self, mut take: impl FnMut(&mut FileSlot) -> Option<T>) -> Result<T, Error> {
        let inbox = self.receiver.inbox;
        let mut state = inbox.lock();
        loop {
            let slot = state.files.get_mut(&(self.lane, self.file)).ok_or_else(|| unexpected("duplicate file"))?;
            if let Some(found) = take(slot) {
                slot.awaited = false;
                return Ok(found);
            }
            slot.awaited = true;
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            inbox.arrived.wait(&mut state);
        }
    }
}

impl Incoming for Arriving<'_> {
    fn begins_otherwise(&mut self) -> Result<bool, Error> {
        let otherwise =
            self.wait(|slot| slot.pieces.front().map(|(piece, _)| matches!(piece, ContentPiece::Unsent(None))))?;
        if otherwise {
            self.next()?;
        }
        Ok(otherwise)
    }

    fn refusal(&mut self) -> Result<Option<Problem>, Error> {
        let refusal = |piece: &ContentPiece| match piece {
            ContentPiece::Unsent(problem) => problem.clone(),
            ContentPiece::Data(_) | ContentPiece::Copy { .. } | ContentPiece::Whole(..) | ContentPiece::End(_) => None,
        };
        self.wait(|slot| slot.pieces.front().map(|(piece, _)| refusal(piece)))
    }

    fn digested_by(&self) -> By {
        self.by
    }

    fn next(&mut self) -> Result<ContentPiece, Error> {
        loop {
            let literal = self.decoder.as_mut().map_or(Ok(Vec::new()), TokenDecoder::unpacked).map_err(undecodable)?;
            if !literal.is_empty() {
                return Ok(ContentPiece::Data(literal));
            }
            let (piece, cost) = self.wait(|slot| slot.pieces.pop_front())?;
            self.receiver.connection.consumed(Class::of(self.lane), cost);
            if piece.is_last() {
                self.is_over = true;
                let slot = self.receiver.inbox.lock().files.remove(&(self.lane, self.file));
                self.moved_bytes = slot.and_then(|slot| slot.moved_bytes);
            }
            match (&mut self.decoder, piece) {
                (Some(decoder), ContentPiece::Data(packed)) => decoder.unpack(packed),
                (_, piece) => return Ok(piece),
            }
        }
    }

    fn see_copy(&mut self, basis: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        let mut buffer = Vec::new();
        for part in decoder.history(len_bytes as usize) {
            buffer.resize(part.len(), 0);
            sys::pread_exact(basis, &mut buffer, offset_bytes + part.start as u64)?;
            decoder.see(&buffer).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn moved_bytes(&self) -> Option<u64> {
        self.moved_bytes
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.receiver.discard(self.lane, self.file);
        }
    }
}
