//! An rsync that has the destination: gets file lists and items, and requests content by items.

use crate::apply::LateRemovals;
use crate::digest::CONTENT_LEN_BYTES;
use crate::error::{Error, Result};
use crate::options::Compression;
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::limits::PATH_MAX_BYTES;
use crate::proto::{ContentDigest, DirId, DirListing, FileId, Lane, Roots};
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants};
use crate::report::progress::SourceTotals;
use crate::rsync::dest::encoder::DestEncoder;
use crate::rsync::dest::inbox::{DestInbox, Order};
use crate::rsync::session_terms::RsyncTerms;
use crate::session::connection::{Connection, Urgency};
use crate::session::sender::throttle;
use crate::session::sender::{ContentSink, DestFacts, DestPeer, Sender, SenderJob};
use crate::walk::run_context::RunContext;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// As many entries as a sending rsync keeps ahead of what the receiver has finished.
const LISTED_AHEAD: u64 = 1000;

/// An rsync that has the destination. The opener of the session makes it, and nothing changes it.
pub struct RsyncDest<'a> {
    connection: &'a Connection<DestEncoder>,
    /// What the receiver wants.
    inbox: &'a DestInbox,
    facts: DestFacts,
    /// How many entries it gets beyond those that it works on.
    listed_ahead: u64,
    /// Ranges of the basis are the history of the compression (zlib), so their content is needed.
    has_history: bool,
}

impl<'a> RsyncDest<'a> {
    /// Returns the rsync of a session.
    pub(in crate::rsync) fn new(
        terms: &RsyncTerms,
        connection: &'a Connection<DestEncoder>,
        inbox: &'a DestInbox,
    ) -> RsyncDest<'a> {
        // A whole list is sent before all else.
        let listed_ahead = if terms.flags.has(CompatFlags::INC_RECURSE) {
            LISTED_AHEAD
        } else {
            u64::MAX
        };
        RsyncDest {
            connection,
            inbox,
            facts: rsync_facts(),
            listed_ahead,
            has_history: terms.compression == Compression::Zlib,
        }
    }

    /// Returns the sender of the session.
    pub(in crate::rsync) fn sender(
        &'a self,
        terms: &RsyncTerms,
        run_context: RunContext<'a>,
        wants: Wants,
        report: &'a (dyn Fn(Event) -> Result<()> + Sync),
    ) -> Sender<'a> {
        Sender {
            run_context,
            peer: self,
            dest_dirs: None,
            checksums: terms.checksums(),
            receiver_is_super: true,
            wants,
            throttle: throttle(&run_context),
            profile: false,
            unsent: Default::default(),
            report,
            opened: Mutex::default(),
            late_removals: LateRemovals::default(),
        }
    }
}

impl RsyncDest<'_> {
    /// Sends what `encode` appends, once the buffer has room.
    fn send(
        &self,
        encode: impl FnOnce(&mut DestEncoder, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        self.connection.encode(Urgency::Ordinary, encode)
    }
}

impl DestPeer for RsyncDest<'_> {
    fn facts(&self) -> &DestFacts {
        &self.facts
    }

    fn open(&self) -> Result<()> {
        self.send(|encoder, out| {
            encoder.open(out);
            Ok(())
        })
    }

    fn set_on_end(&self, peer_is_gone: Arc<AtomicBool>) {
        self.inbox.set_on_end(peer_is_gone);
    }

    fn is_silent(&self) -> bool {
        self.inbox.is_silent()
    }

    fn send_roots(&self, roots: Roots) -> Result<()> {
        self.send(|encoder, _| {
            encoder.note_roots(roots);
            Ok(())
        })
    }

    fn send_listing(&self, listing: DirListing) -> Result<()> {
        let entries = listing.list.len() as u64;
        self.inbox
            .wait_to_list(listing.id, entries, self.listed_ahead)?;
        self.send(|encoder, out| encoder.send_listing(listing, out))
    }

    /// Its facts say that it does not take them.
    fn send_totals(&self, _: SourceTotals) -> Result<()> {
        Ok(())
    }

    fn end_listings(&self, counted: &Tally) -> Result<()> {
        self.inbox.has_sent_all();
        self.send(|encoder, out| encoder.end_listings(counted.clone(), out))
    }

    /// Files are requested again in the order of the other requests.
    fn lanes(&self) -> &'static [Lane] {
        &[Lane::Requested]
    }

    fn next(&self, _: Lane) -> Result<Option<SenderJob>> {
        loop {
            match self.inbox.next()? {
                None => return Ok(None),
                Some(Order::Send(request)) => return Ok(Some(SenderJob::Send(request))),
                Some(Order::Remove(file)) => return Ok(Some(SenderJob::Remove(file))),
                Some(Order::RemoveLate) => return Ok(Some(SenderJob::RemoveLate)),
                Some(Order::Forget(dir)) => {
                    self.send(DestEncoder::end_phase)?;
                    return Ok(Some(SenderJob::Forget(dir)));
                }
                Some(Order::EndPhase) => self.send(DestEncoder::end_phase)?,
                Some(Order::Return(index)) => {
                    self.send(|encoder, out| encoder.return_item(index, out))?;
                }
            }
        }
    }

    fn next_files(&self, _: Lane, dir: DirId) -> Vec<u32> {
        self.inbox.next_files(dir)
    }

    fn content(&self, file: FileId, _: Lane, _: bool) -> Box<dyn ContentSink + '_> {
        Box::new(RsyncSink { dest: self, file })
    }

    /// An rsync does not request any.
    fn send_digest(&self, _: FileId, _: Option<ContentDigest>) -> Result<()> {
        Ok(())
    }

    fn finish(&self) -> Result<Tally> {
        self.inbox.finished()
    }

    /// The receiver has said goodbye, and does not learn what was removed.
    fn leave(&self, _: Tally) {}

    fn costs(&self) -> Vec<String> {
        Vec::new()
    }

    fn fail(&self, error: Error) {
        self.inbox.fail(error);
    }

    fn close(&self) {
        self.inbox.close();
    }
}

/// The content of a file that an item has requested.
struct RsyncSink<'a> {
    dest: &'a RsyncDest<'a>,
    file: FileId,
}

impl ContentSink for RsyncSink<'_> {
    fn whole(&self, data: Vec<u8>, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()> {
        self.dest
            .send(|encoder, out| encoder.whole(self.file, &data, &digest, out))
    }

    fn begin(&self) -> Result<()> {
        self.dest.send(|encoder, out| encoder.begin(self.file, out))
    }

    fn data(&self, data: &mut Vec<u8>) -> Result<()> {
        self.dest.send(|encoder, out| encoder.data(data, out))
    }

    fn copied(&self, offset_bytes: u64, len_bytes: u64, bytes: &[u8]) -> Result<()> {
        let history = if self.dest.has_history { bytes } else { &[] };
        let range = (offset_bytes, len_bytes);
        self.dest
            .send(|encoder, out| encoder.copied(range, history, out))
    }

    fn end(&self, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()> {
        self.dest.send(|encoder, out| encoder.end(&digest, out))
    }

    /// The sender has reported the problem.
    fn refuse(&self, _: Option<Problem>) -> Result<()> {
        self.dest
            .send(|encoder, out| encoder.refuse(self.file, out))
    }
}

/// The most content in one message for an rsync. Such a session may be one of a hundred of a daemon, and several buffers hold
/// a piece.
const RSYNC_PIECE_MAX_BYTES: usize = 32 << 10;

/// Returns the facts about an rsync that has the destination.
fn rsync_facts() -> DestFacts {
    DestFacts {
        takes_unrequested: false,
        takes_problems: false,
        takes_totals: false,
        lists_bare_top: true,
        path_max_bytes: Some(PATH_MAX_BYTES),
        digests_prefix: true,
        counts_parts: true,
        piece_max_bytes: RSYNC_PIECE_MAX_BYTES,
        is_one_of_many: true,
    }
}
