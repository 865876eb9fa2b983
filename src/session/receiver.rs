//! The receiving side of a session: takes the listings of the source, decides, and requests the missing content.

mod dir_reports;
mod event_source;
pub mod listing_queue;
mod plans;

pub use self::dir_reports::{DirReports, ReportScope, RunningReports};
pub use self::event_source::EventSource;

use self::plans::PeerSource;
use crate::apply::dest_arg::{Destination, Facts};
use crate::apply::facts::ItemPrinter;
use crate::apply::pipeline::{EventSink, Receiving, RunStart};
use crate::apply::{ContentPeer, Loss};
use crate::checksum_cache::WantedFile;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Entry;
use crate::fs::compare::digest_of_beginning;
use crate::fs::ids::Ids;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::plan::idmap::{IdClass, IdNames};
use crate::proto::{ContentDigest, DirId, DirListing, Roots};
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants, Weight};
use crate::report::progress::ListTotal;
use crate::session::response_validation::ResponseValidator;
use crate::walk::run_context::RunContext;
use crate::walk::{ComparedDest, ComparedSource, DirPlan};
use parking_lot::RwLock;
use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The receiver of a session. The opener of the session makes it, and nothing changes it.
pub struct Receiver<'a> {
    /// The context of the run.
    pub run_context: RunContext<'a>,
    /// The end that has the source.
    pub peer: &'a dyn SourcePeer,
    /// Reports the directories of the destination, if the sender takes that; otherwise it lists all of its own.
    pub dir_reports: Option<&'a dyn DirReports>,
    /// The destination as given; `None`: list only.
    pub dest: Option<Vec<u8>>,
    /// What the sender may send.
    pub request: Arc<ResponseValidator>,
    /// The events that the client wants.
    pub wants: Wants,
    /// Who prints the items.
    pub printer: ItemPrinter,
}

/// The end that has the source, as the receiver of a session sees it: its listings, which come in the order of its walk,
/// and the end of the session. Contents are those of [`ContentPeer`].
///
/// The reading thread fills what these calls wait for, and never waits for them, except that an rsync is slowed down while
/// too much content waits to be taken.
pub trait SourcePeer: ContentPeer {
    /// Waits for what the source arguments are. Called once.
    fn roots(&self) -> Result<Roots>;
    /// Waits for the next listing and looks at it without taking it. Returns `false` if there is none. Waits until
    /// `entries` are known to follow, if there are that many.
    fn peek(&self, entries: u64, look: &mut dyn FnMut(&DirListing)) -> Result<bool>;
    /// Takes the next listing.
    fn pop(&self) -> Result<Box<DirListing>>;
    /// Returns whether [`SourcePeer::peek`] returns without anything of the earlier listings being finished first.
    fn will_list(&self) -> bool;
    /// Returns what has been listed so far.
    fn listed(&self) -> ListTotal;
    /// Has the peer keep what it knows of a directory until the returned value is dropped.
    fn hold(&self, dir: DirId) -> Arc<dyn Any + Send + Sync>;
    /// Gets the values of extended attributes that a plan needs and that come only on request, and waits for them.
    fn complete(&self, dir: DirId, plan: &mut DirPlan) -> Result<()>;
    /// Does the same for the root of the transfer.
    fn complete_root(&self, root: &mut Entry) -> Result<()>;
    /// Waits for the end of the list. Fails if it has entries that were not taken. Returns the counts of the peer.
    fn end_of_list(&self) -> Result<Tally>;
    /// Returns what the session has cost, if the client wants to know.
    fn costs(&self) -> Vec<String>;
    /// Reports that everything is in place, with the counts of this end, and waits for the end of the session. Returns
    /// what the peer has counted since the end of the list.
    fn finish(&self, counted: &Tally) -> Result<Tally>;
    /// Permits that content which has no room in memory is stored in the file system of the destination until it is taken.
    fn set_aside_in(&self, dest: &Dir);
    /// Records that nothing more is taken. No thread waits after that.
    fn close(&self);
}

impl Receiver<'_> {
    /// Runs until everything is in place. The counts of this end are also sent to the sender.
    pub fn run(&self, listener: &mut dyn EventSink, tally: &mut Tally) -> Result<()> {
        let roots = self.peer.roots()?;
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
        if !(is_empty && self.printer.is_receiver()) {
            self.receive(roots, listener, &mut counted)?;
        }
        for explained in self.run_context.explained() {
            listener.report(&explained);
        }
        let of_list = self.peer.end_of_list()?;
        for line in self.peer.costs() {
            listener.report(&Event::Problem(Problem::new(line, Weight::Warning)));
        }
        // The message has one count of created entries: that of rsync if the user has asked for statistics, and else how many
        // there are.
        let mut shared = counted.clone();
        if !self.run_context.options.output.counts_like_rsync {
            shared.created = counted.present();
        }
        let rest = self.peer.finish(&shared)?;
        tally.merge(&counted);
        tally.merge(&of_list);
        tally.merge(&rest);
        Ok(())
    }

    fn receive(&self, roots: Roots, listener: &mut dyn EventSink, tally: &mut Tally) -> Result<()> {
        let facts = Facts {
            is_empty: roots.found == 0 && roots.missing.is_empty(),
            single: roots.single,
            lone_dir_is_bare: roots.lone_dir_is_bare,
            has_top: roots.top.is_some(),
        };
        let to = Destination::find(&self.run_context, self.dest.as_deref(), &facts)?;
        if let Some(root) = &to.root {
            self.peer.set_aside_in(root.dir());
        }
        let accounts = PeerAccounts {
            ids: Ids::new(),
            source_names: RwLock::default(),
            names_zero: self.peer.facts().names_zero,
        };
        accounts.learn(&roots.ids);
        let compare = |source: ComparedSource<'_>, dest: ComparedDest<'_>| {
            let is_over =
                || self.run_context.process.stop.load(Ordering::Relaxed) || self.peer.is_silent();
            let ComparedDest { dir, name, version } = dest;
            let spares_atime = self.run_context.options.select.open_noatime;
            let open = || sys::open_read(dir.fd(), name, false, spares_atime);
            let by = &self.peer.facts().compared_by;
            let digest = |len_bytes: u64| {
                if let (Some(cache), Some(of_plain)) =
                    (self.run_context.checksum_cache(), by.of_plain())
                {
                    let (_, plain) = cache.digest(&WantedFile {
                        dir,
                        name,
                        version,
                        open: &open,
                        listed_bytes: Some(len_bytes),
                        is_over: &is_over,
                    })?;
                    return Ok(of_plain(&plain));
                }
                digest_of_beginning(open()?.as_fd(), len_bytes, by, &is_over)
            };
            same_digest(
                source.entry,
                &open,
                self.run_context.unreadable_is_same(),
                &digest,
            )
        };
        let peer: &dyn ContentPeer = self.peer;
        let receiving = Receiving {
            run_context: self.run_context,
            list_only: self.dest.is_none(),
            to: &to,
            wants: self.wants,
            names: &accounts,
            compare: &compare,
            peer: Some(peer),
            printer: self.printer,
        };
        let mut top = roots.top.and_then(|mut list| list.entries.pop());
        if let Some(top) = &mut top {
            self.peer.complete_root(top)?;
        }
        let start = RunStart {
            top,
            top_shown: if self.printer.is_receiver() {
                None
            } else {
                Some(roots.top_shown)
            },
            missing: roots.missing,
            has_failed: roots
                .problems
                .iter()
                .any(|problem| problem.weight == Weight::SourceError),
            reaches_source: false,
        };
        let source = PeerSource {
            receiver: self,
            accounts: &accounts,
            whole: roots.whole,
            renamed: to.renamed.clone(),
        };
        receiving.run(start, &source, listener, tally)
    }
}

/// Returns what a lost connection means for unfinished files. `failed`: the error of the connection.
pub fn loss(failed: Option<&Error>, run_context: &RunContext<'_>) -> Option<Loss> {
    let is_broken = matches!(
        failed?.exit,
        Exit::Stream | Exit::Timeout | Exit::Signal | Exit::Terminated
    );
    if !is_broken || run_context.interrupted.load(Ordering::Relaxed) {
        return None;
    }
    Some(if run_context.repeats {
        Loss::Repeated
    } else {
        Loss::Final
    })
}

/// Whether a file of the destination has the content that the sender's digest describes. With `unreadable_is_same`, a file that neither end may read counts as equal.
fn same_digest(
    source: &Entry,
    open_dest: &dyn Fn() -> io::Result<OwnedFd>,
    unreadable_is_same: bool,
    digest_of_dest: &dyn Fn(u64) -> io::Result<ContentDigest>,
) -> io::Result<bool> {
    let Some(digest) = source.extra.as_ref().and_then(|extra| extra.digest) else {
        // No digest: the sender was denied access. It reports every other error.
        let is_denied =
            open_dest().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        if is_denied && unreadable_is_same {
            return Ok(true);
        }
        return Err(io::Error::other("the sender cannot read it"));
    };
    // The caller has already compared the lengths.
    Ok(digest_of_dest(source.len_bytes)? == digest)
}

/// The user and group names that the sender sent, and those of this machine.
struct PeerAccounts {
    ids: Ids,
    source_names: RwLock<HashMap<(bool, u32), Vec<u8>>>,
    /// See [`SourceFacts`](crate::apply::facts::SourceFacts).
    names_zero: bool,
}

impl PeerAccounts {
    fn learn(&self, names: &[crate::proto::IdName]) {
        if names.is_empty() {
            return;
        }
        let mut source_names = self.source_names.write();
        for name in names {
            source_names
                .entry((name.is_group, name.id))
                .or_insert_with(|| name.name.clone());
        }
    }
}

impl IdNames for PeerAccounts {
    fn source_name(&self, class: IdClass, id: u32) -> Option<Vec<u8>> {
        let source_names = self.source_names.read();
        source_names.get(&(class == IdClass::Group, id)).cloned()
    }

    fn name_of_zero(&self, class: IdClass) -> Option<Vec<u8>> {
        if self.names_zero {
            self.source_name(class, 0)
        } else {
            self.ids.name(class, 0).map(|name| name.to_vec())
        }
    }

    fn dest_id(&self, class: IdClass, name: &[u8]) -> Option<u32> {
        self.ids.id(class, name)
    }
}
