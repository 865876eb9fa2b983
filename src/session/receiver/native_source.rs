//! A sparsync that has the source: its listings, and its contents, which are requested and taken as they arrive.

use super::inbox::{FileSlot, ReceiverInbox};
use super::{SourcePeer, loss};
use crate::apply::facts::{BlockSums, SourceFacts};
use crate::apply::{ContentPeer, ContentPiece, Incoming, Loss, Redo, Submission};
use crate::digest::By;
use crate::error::{Error, Result};
use crate::flist::Entry;
use crate::flist::abbreviated::{AbbreviatedValue, RequestedValues};
use crate::fs::sys;
use crate::options::Compression;
use crate::proto::rsync::message::{FileRequest, RsyncMessage};
use crate::proto::rsync::tokens::TokenDecoder;
use crate::proto::{Basis, Class, DirId, DirListing, FileId, Lane, Message, Roots};
use crate::report::Tally;
use crate::report::event::{Item, Problem, Weight};
use crate::report::progress::ListTotal;
use crate::session::checksums::SessionChecksums;
use crate::session::connection::{Connection, undecodable, unexpected};
use crate::walk::DirPlan;
use crate::walk::run_context::Terms;
use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A longer request waits until all files requested before have arrived. It takes most of the window or more than all
/// of it, and the sender grants that again at once if it has nothing else to process first.
const LONE_WANT_BYTES: usize = 1 << 20;

/// A sparsync that has the source. The opener of a session makes it.
pub struct NativeSource<'a> {
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
    /// Set if the sender gets all items ([`ItemOrder::List`](crate::apply::facts::ItemOrder)).
    pub item_peer: Option<&'a dyn ItemPeer>,
    /// Nothing is written, and the sender gets no items.
    pub is_listing: bool,
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

impl SourcePeer for NativeSource<'_> {
    fn roots(&self) -> Result<Roots> {
        self.inbox.wait(|state| state.roots.take())
    }

    fn peek(&self, entries: u64, look: &mut dyn FnMut(&DirListing)) -> Result<bool> {
        self.inbox.wait(|state| match state.dirs.first() {
            Some(listing)
                if entries == 0 || state.dirs_ended.is_some() || state.dirs.are_ahead(entries) =>
            {
                look(listing);
                Some(true)
            }
            None if state.dirs_ended.is_some() => Some(false),
            _ => None,
        })
    }

    fn pop(&self) -> Result<Box<DirListing>> {
        let (listing, cost) = self.inbox.wait(|state| state.dirs.pop())?;
        self.connection.consumed(Class::Dirs, cost);
        Ok(listing)
    }

    fn will_list(&self) -> bool {
        let Some(peer) = self.item_peer else {
            return true;
        };
        let state = self.inbox.lock();
        state.dirs.first().is_some() || state.dirs_ended.is_some() || peer.owes_lists()
    }

    fn listed(&self) -> ListTotal {
        let state = self.inbox.lock();
        let (entries, bytes) = state.dirs.listed;
        ListTotal {
            entries,
            bytes,
            complete: state.dirs_ended.is_some(),
        }
    }

    fn hold(&self, dir: DirId) -> Arc<dyn Any + Send + Sync> {
        Arc::new(SenderHold {
            connection: self.connection.clone(),
            dir,
        })
    }

    fn complete(&self, dir: DirId, plan: &mut DirPlan) -> Result<()> {
        self.request_xattrs(dir, plan)
    }

    fn complete_root(&self, root: &mut Entry) -> Result<()> {
        self.request_xattrs_of_root(root)
    }

    fn end_of_list(&self) -> Result<Tally> {
        let counted = self.inbox.wait(|state| state.dirs_ended.clone())?;
        // A directory that is renamed here, which only an empty one can be, may remain in the queue. It has no entries.
        if self.inbox.lock().dirs.entries > 0 {
            return Err(unexpected("directory without a parent"));
        }
        Ok(counted)
    }

    fn costs(&self) -> Vec<String> {
        if self.profile {
            self.connection.cost("server")
        } else {
            Vec::new()
        }
    }

    fn finish(&self, counted: &Tally) -> Result<Tally> {
        self.inbox.lock().has_all = true;
        self.inbox.changed.notify_all();
        self.connection
            .send(&Message::WantsEnd(Box::new(counted.clone())))?;
        self.inbox.lock().has_reported_all = true;
        self.inbox.changed.notify_all();
        if self.awaits_bye {
            self.inbox.wait(|state| state.bye.clone())
        } else {
            Ok(Tally::default())
        }
    }
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

impl ContentPeer for NativeSource<'_> {
    fn facts(&self) -> &SourceFacts {
        &self.facts
    }

    fn submit(&self, submission: Submission) -> Result<()> {
        let Submission {
            file,
            content,
            values,
            item,
        } = submission;
        let Some(basis) = content else {
            return match item {
                Some(item) => self.send_item(file, values, item),
                None => Ok(()),
            };
        };
        let request = FileRequest {
            file,
            lane: Lane::Requested,
            basis: basis.basis,
            name: basis.name,
            values,
            item,
        };
        let basis = &request.basis;
        if self.connection.has_windows()
            && basis
                .blocks()
                .is_some_and(|blocks| blocks.len() > LONE_WANT_BYTES)
        {
            self.inbox
                .wait(|state| (state.requested == 0).then_some(()))?;
        }
        let mut state = self.inbox.lock();
        let slot = FileSlot {
            has_blocks: basis.blocks().is_some(),
            ..FileSlot::default()
        };
        state.files.insert((Lane::Requested, file), slot);
        state.requested += 1;
        drop(state);
        self.send_want(request)
    }

    fn answer(&self, file: FileId) -> Result<Box<dyn Incoming + '_>> {
        let requested = self
            .inbox
            .lock()
            .files
            .get(&(Lane::Requested, file))
            .map(|slot| slot.has_blocks);
        if let Some(has_blocks) = requested {
            return self.arriving(Lane::Requested, file, has_blocks);
        }
        if self.inbox.lock().files.contains_key(&(Lane::Again, file)) {
            return self.arriving(Lane::Again, file, false);
        }
        if !self.facts.answers_unreadable {
            let words = "sparsync: cannot request a file out of order before protocol 29";
            let refusal = ContentPiece::Unsent(Some(Problem::new(words, Weight::Failed)));
            let slot = FileSlot {
                pieces: [(refusal, 0)].into(),
                is_whole: true,
                ..FileSlot::default()
            };
            self.inbox.lock().files.insert((Lane::Again, file), slot);
            return self.arriving(Lane::Again, file, false);
        }
        self.again(file, Basis::None, None)
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
        self.connection.send_rsync(&RsyncMessage::EndRequests)
    }

    fn early(&self, file: FileId) -> Option<Box<dyn Incoming + '_>> {
        let mut state = self.inbox.lock();
        state.files.entry((Lane::Early, file)).or_default();
        drop(state);
        Some(Box::new(Arriving {
            source: self,
            lane: Lane::Early,
            file,
            by: self.checksums.plain_by,
            decoder: None,
            is_over: false,
            moved_bytes: None,
        }))
    }

    fn give_up(&self, error: &Error) {
        self.inbox.handle_end(error.clone());
    }

    fn is_silent(&self) -> bool {
        self.inbox.is_silent()
    }

    fn loss(&self) -> Option<Loss> {
        loss(self.inbox.lock().failed.as_ref(), &self.terms)
    }

    fn placed(&self, file: FileId) -> Result<()> {
        self.connection.send_later(&Message::Placed(file))
    }

    fn xattr(&self, wanted: &AbbreviatedValue) -> Option<Arc<[u8]>> {
        self.inbox
            .lock()
            .xattrs
            .get(&(wanted.list, wanted.number))
            .cloned()
    }

    fn await_xattrs(&self, file: FileId) -> Result<()> {
        let Some(peer) = self.item_peer else {
            return Ok(());
        };
        self.inbox
            .wait(|_| peer.has_returned_xattrs(file).then_some(()))
    }
}

impl NativeSource<'_> {
    /// Sends the item of an entry of which no content is requested, once the entry has its number. A listing has no
    /// items: its lines are sent as text.
    fn send_item(&self, file: FileId, values: RequestedValues, item: Box<Item>) -> Result<()> {
        let Some(peer) = self.item_peer else {
            return Ok(());
        };
        self.inbox.wait(|_| peer.has_number(file).then_some(()))?;
        if self.is_listing {
            return Ok(());
        }
        self.connection
            .send_rsync(&RsyncMessage::Item { file, values, item })
    }

    fn again(
        &self,
        file: FileId,
        basis: Basis,
        item: Option<Box<Item>>,
    ) -> Result<Box<dyn Incoming + '_>> {
        let has_blocks = basis.blocks().is_some();
        self.request_again(file, basis, item)?;
        self.arriving(Lane::Again, file, has_blocks)
    }

    fn request_again(&self, file: FileId, basis: Basis, item: Option<Box<Item>>) -> Result<()> {
        let slot = FileSlot {
            has_blocks: basis.blocks().is_some(),
            ..FileSlot::default()
        };
        self.inbox.lock().files.insert((Lane::Again, file), slot);
        self.send_want(FileRequest {
            file,
            lane: Lane::Again,
            basis,
            name: None,
            values: RequestedValues::default(),
            item,
        })
    }

    fn send_want(&self, request: FileRequest) -> Result<()> {
        match self.facts.sums {
            BlockSums::Native => {
                let FileRequest {
                    file, lane, basis, ..
                } = request;
                self.connection.send(&Message::Want { file, lane, basis })
            }
            BlockSums::Rsync { .. } => self.connection.send_rsync(&RsyncMessage::Want(request)),
        }
    }

    fn arriving(
        &self,
        lane: Lane,
        file: FileId,
        has_blocks: bool,
    ) -> Result<Box<dyn Incoming + '_>> {
        let by = if has_blocks {
            self.checksums.blocks_by
        } else {
            self.checksums.plain_by
        };
        let decoder = match self.checksums.block_sums {
            BlockSums::Rsync { protocol, .. } if self.checksums.has_zlib_history => {
                Some(TokenDecoder::new(Compression::Zlib, protocol))
            }
            BlockSums::Rsync { .. } | BlockSums::Native => None,
        };
        let decoder = decoder.transpose().map_err(undecodable)?;
        Ok(Box::new(Arriving {
            source: self,
            lane,
            file,
            by,
            decoder,
            is_over: false,
            moved_bytes: None,
        }))
    }

    /// Discards what has arrived of a file and what will arrive.
    fn discard(&self, lane: Lane, file: FileId) {
        let mut state = self.inbox.lock();
        let slot = state.files.entry((lane, file)).or_default();
        slot.declined = true;
        let mut is_over = false;
        for (piece, cost) in std::mem::take(&mut slot.pieces) {
            is_over |= piece.is_last();
            self.connection.consumed(Class::for_lane(lane), cost);
        }
        if is_over {
            state.files.remove(&(lane, file));
        }
    }
}

/// A file that is being received.
struct Arriving<'a> {
    source: &'a NativeSource<'a>,
    lane: Lane,
    file: FileId,
    by: By,
    /// Decodes the data here, because the thread that reads the connection does not have the basis.
    decoder: Option<TokenDecoder>,
    is_over: bool,
    moved_bytes: Option<u64>,
}

impl Arriving<'_> {
    fn wait<T>(&self, mut take: impl FnMut(&mut FileSlot) -> Option<T>) -> Result<T> {
        let inbox = self.source.inbox;
        let mut state = inbox.lock();
        loop {
            let slot = state
                .files
                .get_mut(&(self.lane, self.file))
                .ok_or_else(|| unexpected("duplicate file"))?;
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
    fn begins_otherwise(&mut self) -> Result<bool> {
        let otherwise = self.wait(|slot| {
            slot.pieces
                .front()
                .map(|(piece, _)| matches!(piece, ContentPiece::Unsent(None)))
        })?;
        if otherwise {
            self.next()?;
        }
        Ok(otherwise)
    }

    fn refusal(&mut self) -> Result<Option<Problem>> {
        let refusal = |piece: &ContentPiece| match piece {
            ContentPiece::Unsent(problem) => problem.clone(),
            ContentPiece::Data(_)
            | ContentPiece::Copy { .. }
            | ContentPiece::Whole(..)
            | ContentPiece::End(_) => None,
        };
        self.wait(|slot| {
            let (piece, _) = slot.pieces.front()?;
            Some(if slot.has_begun { None } else { refusal(piece) })
        })
    }

    fn digested_by(&self) -> By {
        self.by
    }

    fn next(&mut self) -> Result<ContentPiece> {
        loop {
            let literal = self
                .decoder
                .as_mut()
                .map_or(Ok(Vec::new()), TokenDecoder::unpacked)
                .map_err(undecodable)?;
            if !literal.is_empty() {
                return Ok(ContentPiece::Data(literal));
            }
            let (piece, cost) = self.wait(|slot| slot.pieces.pop_front())?;
            self.source
                .connection
                .consumed(Class::for_lane(self.lane), cost);
            if piece.is_last() {
                self.is_over = true;
                let slot = self
                    .source
                    .inbox
                    .lock()
                    .files
                    .remove(&(self.lane, self.file));
                self.moved_bytes = slot.and_then(|slot| slot.moved_bytes);
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

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.source.discard(self.lane, self.file);
        }
    }
}
