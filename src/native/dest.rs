//! A sparsync that has the destination: gets native messages, within its windows.

use crate::digest::CONTENT_LEN_BYTES;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::connection::NativeConnection;
use crate::native::received_plan::send_plan;
use crate::native::sender_inbox::SenderInbox;
use crate::plan::planned::StoredPlan;
use crate::proto::{Class, ContentDigest, DirId, DirListing, FileId, Lane, Message, Roots, cut};
use crate::report::Tally;
use crate::report::event::Problem;
use crate::report::progress::SourceTotals;
use crate::session::connection::EndHandler;
use crate::session::sender::{ContentSink, DestFacts, DestPeer, SenderJob};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A sparsync that has the destination. The opener of the session makes it, and nothing changes it.
pub struct NativeDest<'a> {
    pub connection: &'a NativeConnection,
    /// The messages of the receiver.
    pub inbox: &'a SenderInbox,
    pub facts: DestFacts,
    /// The plan that the receiver carries out, if this end is the client and has one.
    pub plan: Option<&'a dyn StoredPlan>,
    /// To show progress, the receiver waits for many directories before it takes any.
    pub waits_for_dirs: bool,
}

impl DestPeer for NativeDest<'_> {
    fn facts(&self) -> &DestFacts {
        &self.facts
    }

    fn open(&self) -> Result<()> {
        for class in [Class::Unrequested, Class::Requested, Class::Again] {
            self.connection.spare(class);
        }
        if !self.waits_for_dirs {
            self.connection.spare(Class::Dirs);
        }
        if let Some(plan) = self.plan {
            send_plan(self.connection, plan)?;
        }
        Ok(())
    }

    fn set_on_end(&self, peer_is_gone: Arc<AtomicBool>) {
        self.inbox.set_on_end(peer_is_gone);
    }

    fn is_silent(&self) -> bool {
        self.inbox.is_silent()
    }

    fn send_roots(&self, roots: Roots) -> Result<()> {
        self.connection.send(&Message::Roots(Box::new(roots)))
    }

    fn send_listing(&self, listing: DirListing) -> Result<()> {
        let mut sent = Ok(());
        cut(listing, &mut |message| {
            if sent.is_ok() {
                sent = self.connection.send(&message);
            }
        });
        sent
    }

    fn send_totals(&self, totals: SourceTotals) -> Result<()> {
        self.connection.send(&Message::Totals(totals))
    }

    fn end_listings(&self, counted: &Tally) -> Result<()> {
        self.inbox.lock().has_sent_all = true;
        self.connection
            .send(&Message::DirsEnd(Box::new(counted.clone())))
    }

    fn lanes(&self) -> &'static [Lane] {
        &[Lane::Requested, Lane::Again]
    }

    fn next(&self, lane: Lane) -> Result<Option<SenderJob>> {
        let Some((job, cost)) = self.inbox.next_job(lane)? else {
            return Ok(None);
        };
        self.connection.consumed(Class::Wants, cost);
        Ok(Some(job))
    }

    fn next_files(&self, lane: Lane, dir: DirId) -> Vec<u32> {
        self.inbox.next_files(lane, dir)
    }

    fn content(&self, file: FileId, lane: Lane, as_it_is: bool) -> Box<dyn ContentSink + '_> {
        Box::new(NativeSink {
            connection: self.connection,
            file,
            lane,
            as_it_is,
        })
    }

    fn send_digest(&self, file: FileId, digest: Option<ContentDigest>) -> Result<()> {
        self.connection.send(&Message::FileDigest { file, digest })
    }

    fn finish(&self) -> Result<Tally> {
        self.inbox
            .finished(&|cost| self.connection.consumed(Class::Digests, cost))
    }

    fn leave(&self, removed: Tally) {
        // A receiver that has everything may have left: it waits for this message only if something may be in it.
        let _ = self.connection.send(&Message::Bye(Box::new(removed)));
    }

    fn costs(&self) -> Vec<String> {
        self.connection.cost("server")
    }

    fn fail(&self, error: Error) {
        self.inbox.handle_end(error);
    }

    fn close(&self) {
        self.fail(Error::new(Exit::Stream, ""));
    }
}

/// The content of a file, as native messages.
struct NativeSink<'a> {
    connection: &'a NativeConnection,
    file: FileId,
    lane: Lane,
    as_it_is: bool,
}

impl ContentSink for NativeSink<'_> {
    fn whole(&self, data: Vec<u8>, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()> {
        let whole = Message::Whole {
            file: self.file,
            lane: self.lane,
            data,
            digest,
        };
        self.connection.send_with(&whole, self.as_it_is)
    }

    fn begin(&self) -> Result<()> {
        self.connection.send(&Message::Begin {
            file: self.file,
            lane: self.lane,
        })
    }

    fn data(&self, data: &mut Vec<u8>) -> Result<()> {
        let piece = Message::Data {
            lane: self.lane,
            data: std::mem::take(data),
        };
        self.connection.send_with(&piece, self.as_it_is)?;
        // The message was copied, so its memory can be reused.
        if let Message::Data { data: spent, .. } = piece {
            *data = spent;
        }
        Ok(())
    }

    fn copied(&self, offset_bytes: u64, len_bytes: u64, _: &[u8]) -> Result<()> {
        self.connection.send(&Message::Copy {
            lane: self.lane,
            offset_bytes,
            len_bytes,
        })
    }

    fn end(&self, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()> {
        self.connection.send(&Message::End {
            lane: self.lane,
            digest,
        })
    }

    fn refuse(&self, problem: Option<Problem>) -> Result<()> {
        self.connection.send(&Message::Unsent {
            file: self.file,
            lane: self.lane,
            problem,
        })
    }
}
