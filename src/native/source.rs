//! A sparsync that has the source: its listings, and its contents, which are requested and taken as they arrive.

use crate::apply::facts::SourceFacts;
use crate::apply::{ContentPeer, ContentPiece, Incoming, Loss, Redo, RequestedBasis, Submission};
use crate::digest::By;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Entry;
use crate::flist::abbreviated::AbbreviatedValue;
use crate::fs::root::Dir;
use crate::native::connection::NativeConnection;
use crate::native::receiver_inbox::{FileSlot, ReceiverInbox};
use crate::proto::{Basis, Class, ContentDigest, DirId, DirListing, FileId, Lane, Message, Roots};
use crate::report::Tally;
use crate::report::event::{Item, Problem};
use crate::report::progress::ListTotal;
use crate::session::checksums::SessionChecksums;
use crate::session::connection::unexpected;
use crate::session::receiver::{SourcePeer, loss};
use crate::walk::DirPlan;
use crate::walk::run_context::RunContext;
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
    pub run_context: RunContext<'a>,
    /// The connection to the sender.
    pub connection: &'a Arc<NativeConnection>,
    /// The messages of the sender.
    pub inbox: &'a ReceiverInbox,
    /// What the engine must know about the sender.
    pub facts: SourceFacts,
    /// How to digest and compare contents.
    pub checksums: SessionChecksums,
    /// The sender may report something after our last message, so its final message is awaited.
    pub awaits_bye: bool,
    /// Whether to report the costs of this end.
    pub profile: bool,
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

    /// A sparsync lists as far ahead as its window permits.
    fn will_list(&self) -> bool {
        true
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

    /// A sparsync sends all values.
    fn complete(&self, _: DirId, _: &mut DirPlan) -> Result<()> {
        Ok(())
    }

    fn complete_root(&self, _: &mut Entry) -> Result<()> {
        Ok(())
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
        if self.awaits_bye {
            self.inbox.wait(|state| state.bye.clone())
        } else {
            Ok(Tally::default())
        }
    }

    /// The windows bound what comes, and content that was requested again has one of its own.
    fn set_aside_in(&self, _: &Dir) {}

    fn close(&self) {
        self.inbox.handle_end(Error::new(Exit::Stream, ""));
    }
}

/// Makes the sender keep its copy of a directory until no more of its files are requested.
struct SenderHold {
    connection: Arc<NativeConnection>,
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
        let Submission { file, content, .. } = submission;
        let Some(RequestedBasis { basis, .. }) = content else {
            return Ok(());
        };
        let len_bytes = basis.blocks().map(<[u8]>::len);
        if len_bytes.is_some_and(|len_bytes| len_bytes > LONE_WANT_BYTES) {
            self.inbox
                .wait(|state| (state.requested == 0).then_some(()))?;
        }
        self.inbox.lock().requested += 1;
        self.request(Lane::Requested, file, basis)
    }

    fn answer(&self, file: FileId) -> Result<Box<dyn Incoming + '_>> {
        let requested = |lane| {
            let state = self.inbox.lock();
            state.files.get(&(lane, file)).map(|slot| slot.has_blocks)
        };
        for lane in [Lane::Requested, Lane::Again] {
            if let Some(has_blocks) = requested(lane) {
                return Ok(self.arriving(lane, file, has_blocks));
            }
        }
        self.again(file, Basis::None)
    }

    fn redo(&self, file: FileId, basis: Basis, _: Option<Box<Item>>) -> Result<Redo<'_>> {
        self.again(file, basis).map(Redo::Now)
    }

    /// A sparsync answers each request.
    fn end_requests(&self) -> Result<()> {
        Ok(())
    }

    fn ask_digest(&self, file: FileId) -> Result<()> {
        self.inbox.lock().digests.insert(file, None);
        self.connection.send(&Message::WantDigest(file))
    }

    fn digest(&self, file: FileId) -> Result<Option<ContentDigest>> {
        self.inbox.wait(|state| {
            let answer = (*state.digests.get(&file)?)?;
            state.digests.remove(&file);
            Some(answer)
        })
    }

    fn unrequested(&self, file: FileId) -> Option<Box<dyn Incoming + '_>> {
        let mut state = self.inbox.lock();
        state.files.entry((Lane::Unrequested, file)).or_default();
        drop(state);
        Some(self.arriving(Lane::Unrequested, file, false))
    }

    fn give_up(&self, error: &Error) {
        self.inbox.handle_end(error.clone());
    }

    fn failure(&self) -> Option<Error> {
        self.inbox.lock().failed.clone()
    }

    fn loss(&self) -> Option<Loss> {
        loss(self.inbox.lock().failed.as_ref(), &self.run_context)
    }

    fn placed(&self, file: FileId) -> Result<()> {
        self.connection.send_later(&Message::Placed(file))
    }

    /// A sparsync sends all values with its listings.
    fn xattr(&self, _: &AbbreviatedValue) -> Option<Arc<[u8]>> {
        None
    }

    fn await_xattrs(&self, _: FileId) -> Result<()> {
        Ok(())
    }
}

impl NativeSource<'_> {
    fn again(&self, file: FileId, basis: Basis) -> Result<Box<dyn Incoming + '_>> {
        let has_blocks = basis.blocks().is_some();
        self.request(Lane::Again, file, basis)?;
        Ok(self.arriving(Lane::Again, file, has_blocks))
    }

    fn request(&self, lane: Lane, file: FileId, basis: Basis) -> Result<()> {
        let slot = FileSlot {
            has_blocks: basis.blocks().is_some(),
            ..FileSlot::default()
        };
        self.inbox.lock().files.insert((lane, file), slot);
        self.connection.send(&Message::Want { file, lane, basis })
    }

    fn arriving(&self, lane: Lane, file: FileId, has_blocks: bool) -> Box<dyn Incoming + '_> {
        let by = if has_blocks {
            self.checksums.blocks_by
        } else {
            self.checksums.plain_by
        };
        Box::new(NativeStream {
            source: self,
            lane,
            file,
            by,
            is_over: false,
        })
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
struct NativeStream<'a> {
    source: &'a NativeSource<'a>,
    lane: Lane,
    file: FileId,
    by: By,
    is_over: bool,
}

impl NativeStream<'_> {
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

impl Incoming for NativeStream<'_> {
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
        let (piece, cost) = self.wait(|slot| slot.pieces.pop_front())?;
        let NativeSource {
            connection, inbox, ..
        } = self.source;
        connection.consumed(Class::for_lane(self.lane), cost);
        if piece.is_last() {
            self.is_over = true;
            inbox.lock().files.remove(&(self.lane, self.file));
        }
        Ok(piece)
    }

    fn see_copy(&mut self, _: BorrowedFd<'_>, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn moved_bytes(&self) -> Option<u64> {
        None
    }
}

impl Drop for NativeStream<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.source.discard(self.lane, self.file);
        }
    }
}
