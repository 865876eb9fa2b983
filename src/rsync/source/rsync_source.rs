//! An rsync that has the source: its listings, and its contents, which are requested by items and taken as they arrive.

use crate::apply::facts::SourceFacts;
use crate::apply::{ContentPeer, ContentPiece, Incoming, Loss, Redo, Submission};
use crate::digest::By;
use crate::error::{Error, Result};
use crate::flist::abbreviated::{AbbreviatedValue, RequestedValues};
use crate::flist::{Entry, FileId};
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::options::Compression;
use crate::plan::Changes;
use crate::proto::rsync::message::{Attempt, FileRequest, RsyncMessage};
use crate::proto::rsync::tokens::TokenDecoder;
use crate::proto::{Basis, ContentDigest, DirId, DirListing, Roots};
use crate::report::Tally;
use crate::report::event::{Item, Problem, Weight};
use crate::report::progress::ListTotal;
use crate::rsync::error::undecodable;
use crate::rsync::session_terms::RsyncTerms;
use crate::rsync::source::inbox::{ContentKey, SourceInbox};
use crate::rsync::source::{SourceEncoder, SourceIntake, SourceShared};
use crate::session::connection::{Connection, unexpected};
use crate::session::receiver::{SourcePeer, loss};
use crate::walk::DirPlan;
use crate::walk::run_context::RunContext;
use parking_lot::Mutex;
use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// How many entries a client lists at least, of those in lists after the first one that is not done. rsync lists 1000.
const LISTED_AHEAD: i32 = 500;

/// An rsync that has the source. The opener of the session makes it, and nothing changes it.
pub struct RsyncSource<'a> {
    pub(super) run_context: RunContext<'a>,
    pub(super) terms: RsyncTerms,
    pub(super) connection: &'a Arc<Connection<SourceEncoder>>,
    pub(super) inbox: &'a SourceInbox,
    pub(super) shared: Arc<Mutex<SourceShared>>,
    pub(super) facts: SourceFacts,
    /// Nothing is written, and the sender gets no items.
    pub(super) is_listing: bool,
}

impl<'a> SourceIntake<'a> {
    /// Returns the rsync of this session. `facts`: what the engine must know about it.
    pub(in crate::rsync) fn source(
        &self,
        run_context: RunContext<'a>,
        connection: &'a Arc<Connection<SourceEncoder>>,
        facts: SourceFacts,
        is_listing: bool,
    ) -> RsyncSource<'a> {
        RsyncSource {
            run_context,
            terms: self.terms,
            connection,
            inbox: self.inbox,
            shared: self.shared.clone(),
            facts,
            is_listing,
        }
    }
}

impl SourcePeer for RsyncSource<'_> {
    fn roots(&self) -> Result<Roots> {
        let sent = self.connection.send(&RsyncMessage::Opening);
        // If the peer is gone already, its last words are awaited and reported.
        let roots = self.inbox.wait(|state| state.roots.take());
        sent.and(roots)
    }

    fn peek(&self, _: u64, look: &mut dyn FnMut(&DirListing)) -> Result<bool> {
        self.inbox.wait(|state| match state.listings.first() {
            Some(listing) => {
                look(listing);
                Some(true)
            }
            None if state.list_ended.is_some() => Some(false),
            None => None,
        })
    }

    fn pop(&self) -> Result<Box<DirListing>> {
        let (listing, _) = self.inbox.wait(|state| state.listings.pop())?;
        Ok(listing)
    }

    fn will_list(&self) -> bool {
        let shared = self.shared.lock();
        if shared.served.is_none() {
            return true;
        }
        let second = shared.lists.get(shared.ended + 1);
        let owes_lists =
            second.is_none_or(|list| shared.next_index.saturating_sub(list.first) < LISTED_AHEAD);
        drop(shared);
        let state = self.inbox.lock();
        state.listings.first().is_some() || state.list_ended.is_some() || owes_lists
    }

    fn listed(&self) -> ListTotal {
        let state = self.inbox.lock();
        let (entries, bytes) = state.listings.listed;
        ListTotal {
            entries,
            bytes,
            complete: state.list_ended.is_some(),
        }
    }

    fn hold(&self, dir: DirId) -> Arc<dyn Any + Send + Sync> {
        Arc::new(ListHold {
            connection: self.connection.clone(),
            dir,
        })
    }

    fn complete(&self, dir: DirId, plan: &mut DirPlan) -> Result<()> {
        self.request_values(dir, plan)
    }

    fn complete_root(&self, root: &mut Entry) -> Result<()> {
        self.request_values_of_root(root)
    }

    fn end_of_list(&self) -> Result<Tally> {
        let counted = self.inbox.wait(|state| state.list_ended.clone())?;
        // A directory that is renamed here, which only an empty one can be, may remain in the queue. It has no entries.
        if self.inbox.lock().listings.entries > 0 {
            return Err(unexpected("directory without a parent"));
        }
        Ok(counted)
    }

    fn costs(&self) -> Vec<String> {
        Vec::new()
    }

    fn finish(&self, counted: &Tally) -> Result<Tally> {
        let all = RsyncMessage::AllReceived(Box::new(counted.clone()));
        self.inbox.report_all(|| self.connection.send(&all))?;
        self.inbox.wait(|state| state.ended.clone())
    }

    fn set_aside_in(&self, dest: &Dir) {
        self.inbox.set_aside_in(dest);
    }

    fn close(&self) {
        self.inbox.close();
    }
}

/// Makes the sender keep the list of a directory until no more of its entries get items.
struct ListHold {
    connection: Arc<Connection<SourceEncoder>>,
    dir: DirId,
}

impl Drop for ListHold {
    fn drop(&mut self) {
        // A lost connection is reported by the next use of the connection.
        let _ = self.connection.send(&RsyncMessage::Done(self.dir));
    }
}

impl ContentPeer for RsyncSource<'_> {
    fn facts(&self) -> &SourceFacts {
        &self.facts
    }

    fn submit(&self, submission: Submission) -> Result<()> {
        let Submission {
            file,
            content,
            changes,
            values,
            item,
        } = submission;
        let Some(basis) = content else {
            return match item {
                Some(item) => self.send_item(file, values, item),
                None => Ok(()),
            };
        };
        self.inbox.expect_file((file, Attempt::First));
        self.connection.send(&RsyncMessage::Want(FileRequest {
            file,
            attempt: Attempt::First,
            basis: basis.basis,
            name: basis.name,
            changes,
            values,
            item,
        }))
    }

    fn answer(&self, file: FileId) -> Result<Box<dyn Incoming + '_>> {
        for attempt in [Attempt::First, Attempt::Again] {
            if self.inbox.is_expected((file, attempt)) {
                return self.arriving((file, attempt));
            }
        }
        if self.facts.answers_unreadable {
            return self.again(file, Basis::None, None);
        }
        let words = "sparsync: cannot request a file out of order before protocol 29";
        let refused = (file, Attempt::Again);
        self.inbox
            .refuse_file(refused, Problem::new(words, Weight::Failed));
        self.arriving(refused)
    }

    /// rsync's protocol has no content without a request.
    /// An rsync has no message for that.
    fn ask_digest(&self, _: FileId) -> Result<()> {
        Ok(())
    }

    fn digest(&self, _: FileId) -> Result<Option<ContentDigest>> {
        Ok(None)
    }

    fn unrequested(&self, _: FileId) -> Option<Box<dyn Incoming + '_>> {
        None
    }

    fn redo(&self, file: FileId, basis: Basis, item: Option<Box<Item>>) -> Result<Redo<'_>> {
        if !self.facts.answers_unreadable {
            self.inbox.lock().to_repeat.push(file);
            return Ok(Redo::Later);
        }
        self.again(file, basis, item).map(Redo::Now)
    }

    fn end_requests(&self) -> Result<()> {
        let to_repeat = std::mem::take(&mut self.inbox.lock().to_repeat);
        for file in to_repeat {
            self.request_again(file, Basis::None, None)?;
        }
        self.connection.send(&RsyncMessage::EndRequests)
    }

    fn give_up(&self, error: &Error) {
        self.inbox.fail(error.clone());
    }

    fn failure(&self) -> Option<Error> {
        self.inbox.lock().failed.clone()
    }

    fn loss(&self) -> Option<Loss> {
        loss(self.inbox.lock().failed.as_ref(), &self.run_context)
    }

    fn placed(&self, file: FileId) -> Result<()> {
        self.connection.send(&RsyncMessage::Placed(file))
    }

    fn xattr(&self, wanted: &AbbreviatedValue) -> Option<Arc<[u8]>> {
        self.inbox
            .lock()
            .xattrs
            .get(&(wanted.list, wanted.number))
            .cloned()
    }

    fn await_xattrs(&self, file: FileId) -> Result<()> {
        let has_come = || {
            let shared = self.shared.lock();
            shared
                .index(file)
                .is_ok_and(|index| !shared.requested_xattrs.contains_key(&index))
        };
        self.inbox.wait_until(|_| has_come())
    }
}

impl RsyncSource<'_> {
    /// Sends the item of an entry of which no content is requested, once the entry has its number. A listing has no
    /// items: its lines are sent as text.
    fn send_item(&self, file: FileId, values: RequestedValues, item: Box<Item>) -> Result<()> {
        let has_number = || self.shared.lock().index(file).is_ok();
        self.inbox.wait_until(|_| has_number())?;
        if self.is_listing {
            return Ok(());
        }
        self.connection
            .send(&RsyncMessage::Item { file, values, item })
    }

    fn again(
        &self,
        file: FileId,
        basis: Basis,
        item: Option<Box<Item>>,
    ) -> Result<Box<dyn Incoming + '_>> {
        self.request_again(file, basis, item)?;
        self.arriving((file, Attempt::Again))
    }

    fn request_again(&self, file: FileId, basis: Basis, item: Option<Box<Item>>) -> Result<()> {
        self.inbox.expect_file((file, Attempt::Again));
        self.connection.send(&RsyncMessage::Want(FileRequest {
            file,
            attempt: Attempt::Again,
            basis,
            name: None,
            changes: Changes::default(),
            values: RequestedValues::default(),
            item,
        }))
    }

    fn arriving(&self, key: ContentKey) -> Result<Box<dyn Incoming + '_>> {
        let decoder = if self.terms.compression == Compression::Zlib {
            Some(TokenDecoder::new(Compression::Zlib, self.terms.protocol).map_err(undecodable)?)
        } else {
            None
        };
        Ok(Box::new(RsyncStream {
            inbox: self.inbox,
            key,
            by: self.terms.sums.digested_by(),
            decoder,
            is_over: false,
            moved_bytes: None,
        }))
    }
}

/// A file that is being received.
struct RsyncStream<'a> {
    inbox: &'a SourceInbox,
    key: ContentKey,
    by: By,
    /// Decodes the data here, because the thread that reads the connection does not have the basis.
    decoder: Option<TokenDecoder>,
    is_over: bool,
    moved_bytes: Option<u64>,
}

impl Incoming for RsyncStream<'_> {
    /// An rsync gets no digest of the beginning with the request.
    fn begins_otherwise(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn refusal(&mut self) -> Result<Option<Problem>> {
        self.inbox.refusal(self.key)
    }

    fn digested_by(&self) -> By {
        self.by
    }

    fn next(&mut self) -> Result<ContentPiece> {
        loop {
            if let Some(decoder) = &mut self.decoder {
                let literal = decoder.unpacked().map_err(undecodable)?;
                if !literal.is_empty() {
                    return Ok(ContentPiece::Data(literal));
                }
            }
            let (piece, moved_bytes) = self.inbox.take_piece(self.key)?;
            if piece.is_last() {
                self.is_over = true;
                self.moved_bytes = moved_bytes;
            }
            match (&mut self.decoder, piece) {
                (Some(decoder), ContentPiece::Data(packed)) => decoder.unpack(packed),
                (_, piece) => return Ok(piece),
            }
        }
    }

    fn see_copy(
        &mut self,
        basis: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> io::Result<()> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(());
        };
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

impl Drop for RsyncStream<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.inbox.discard(self.key);
        }
    }
}
