//! The receiving side of a session: sends digests of the destination, receives the listings that differ, and requests
//! the missing content.

mod contents;
mod inbox;
mod late_xattrs;
mod plans;

pub use self::inbox::{ReceiverHandler, ReceiverInbox};

use self::plans::PeerSource;
use crate::apply::dest_arg::{Destination, Facts};
use crate::apply::facts::{ItemPrinter, SourceFacts};
use crate::apply::pipeline::{EventSink, Receiving, RunStart};
use crate::digest::Comparison;
use crate::error::Result;
use crate::flist::Entry;
use crate::fs::compare::digest_of_beginning;
use crate::fs::ids::Ids;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::plan::idmap::{IdClass, IdNames};
use crate::proto::{FileId, Message, Roots};
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants, Weight};
use crate::session::checksums::SessionChecksums;
use crate::session::connection::{Connection, unexpected};
use crate::session::dest_prescan::DestPrescan;
use crate::session::digest_exchange::Known;
use crate::session::response_validation::ResponseValidator;
use crate::walk::ComparedSource;
use crate::walk::run_context::Terms;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The receiver of a session.
pub struct Receiver<'a> {
    /// The context of the run.
    pub terms: Terms<'a>,
    /// The connection to the sender.
    pub connection: &'a Arc<Connection>,
    /// The messages of the sender.
    pub inbox: &'a ReceiverInbox,
    /// What the engine must know about the sender.
    pub facts: SourceFacts,
    /// How to digest and compare contents.
    pub checksums: SessionChecksums,
    /// The scan of the destination, if one was started early, and what the sender already knows of it.
    pub prescan: Option<(&'a DestPrescan<'a>, Known)>,
    /// The destination as given; `None`: list only.
    pub dest: Option<Vec<u8>>,
    /// What the sender may send.
    pub request: Arc<ResponseValidator>,
    /// The events that the client wants.
    pub wants: Wants,
    /// Who prints the items.
    pub printer: ItemPrinter,
    /// Set if the sender gets all items ([`ItemOrder::List`](crate::apply::facts::ItemOrder)).
    pub item_peer: Option<&'a dyn ItemPeer>,
    /// The sender may report something after our last message, so its final message is awaited.
    pub awaits_bye: bool,
    /// Whether to report the costs of this end.
    pub profile: bool,
}

/// A sender that gets all items and lists directories piecewise: where it stands.
pub trait ItemPeer: Sync {
    /// Returns whether an entry has its number in the protocol.
    fn has_number(&self, file: FileId) -> bool;
    /// Returns whether more lists come although none of those that came is done any more.
    fn owes_lists(&self) -> bool;
    /// Returns whether no item with values of an entry is to be returned.
    fn has_returned_xattrs(&self, file: FileId) -> bool;
}

impl Receiver<'_> {
    /// Runs until everything is in place. The counts of this end are also sent to the sender.
    pub fn run(&self, listener: &mut dyn EventSink, tally: &mut Tally) -> Result<()> {
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
        if !(is_empty && self.printer.is_receiver()) {
            self.receive(roots, listener, &mut counted)?;
        }
        self.inbox.wait(|state| state.dirs_ended.clone())?;
        // A directory that is renamed here, which only an empty one can be, may remain in the queue. It has no entries.
        if self.inbox.lock().dirs.entries > 0 {
            return Err(unexpected("directory without a parent"));
        }
        if self.profile {
            for line in self.connection.cost("server") {
                listener.report(&Event::Problem(Problem::new(line, Weight::Warning)));
            }
        }
        self.inbox.lock().has_all = true;
        self.inbox.changed.notify_all();
        self.connection
            .send(&Message::WantsEnd(Box::new(counted.clone())))?;
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

    fn receive(&self, roots: Roots, listener: &mut dyn EventSink, tally: &mut Tally) -> Result<()> {
        let facts = Facts {
            is_empty: roots.found == 0 && roots.missing.is_empty(),
            single: roots.single,
            lone_dir_is_bare: roots.lone_dir_is_bare,
            has_top: roots.top.is_some(),
        };
        let to = Destination::find(&self.terms, self.dest.as_deref(), &facts)?;
        let accounts = PeerAccounts {
            ids: Ids::new(),
            source_names: RwLock::default(),
        };
        accounts.learn(&roots.ids);
        let compare = |source: ComparedSource<'_>, dest: (&Dir, &[u8])| {
            let is_over =
                || self.terms.process.stop.load(Ordering::Relaxed) || self.inbox.is_silent();
            let (dir, name) = dest;
            let spares_atime = self.terms.options.select.open_noatime;
            same_digest(
                source.entry,
                sys::open_read(dir.fd(), name, false, spares_atime),
                self.terms.unreadable_is_same(),
                &self.checksums.compared_by,
                &is_over,
            )
        };
        let receiving = Receiving {
            terms: self.terms,
            list_only: self.dest.is_none(),
            to: &to,
            wants: self.wants,
            names: &accounts,
            compare: &compare,
            peer: Some(self),
            printer: self.printer,
        };
        let mut top = roots.top.and_then(|mut list| list.entries.pop());
        if let Some(top) = &mut top {
            self.request_xattrs_of_root(top)?;
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

/// Whether a file of the destination has the content that the sender's digest describes. Fails once `is_over` returns
/// `true`. With `unreadable_is_same`, a file that neither end may read counts as equal.
fn same_digest(
    source: &Entry,
    dest: io::Result<OwnedFd>,
    unreadable_is_same: bool,
    by: &Comparison,
    is_over: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let Some(digest) = source.extra.as_ref().and_then(|extra| extra.digest) else {
        // No digest: the sender was denied access. It reports every other error.
        let is_denied = dest.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        if is_denied && unreadable_is_same {
            return Ok(true);
        }
        return Err(io::Error::other("the sender cannot read it"));
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

    fn dest_name(&self, class: IdClass, id: u32) -> Option<Vec<u8>> {
        self.ids.name(class, id).map(|name| name.to_vec())
    }

    fn dest_id(&self, class: IdClass, name: &[u8]) -> Option<u32> {
        self.ids.id(class, name)
    }
}
