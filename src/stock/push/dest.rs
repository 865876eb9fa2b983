//! An rsync that has the destination: gets file lists and items, and requests content by items.

use super::inbox::{Order, PushInbox};
use crate::digest::CONTENT_LEN_BYTES;
use crate::error::{Error, Result};
use crate::options::Compression;
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::message::RsyncMessage;
use crate::proto::{DirId, DirListing, FileId, Lane, Message, Roots};
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants};
use crate::session::connection::Connection;
use crate::session::sender::{DestFacts, DestPeer, Job, Sender, Sink};
use crate::session::throttle;
use crate::stock::stock_terms::StockTerms;
use crate::walk::run_context::RunContext;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// As many entries as a sending rsync keeps ahead of what the receiver has finished.
const LISTED_AHEAD: u64 = 1000;

/// An rsync that has the destination. The opener of the session makes it, and nothing changes it.
pub struct RsyncDest<'a> {
    connection: &'a Connection,
    /// What the receiver wants.
    inbox: &'a PushInbox,
    facts: DestFacts,
    /// How many entries it gets beyond those that it works on.
    listed_ahead: u64,
    /// Ranges of the basis are the history of the compression (zlib), so their content is needed.
    has_history: bool,
}

impl<'a> RsyncDest<'a> {
    /// Returns the rsync of a session.
    pub(in crate::stock) fn new(
        terms: &StockTerms,
        connection: &'a Connection,
        inbox: &'a PushInbox,
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
            facts: DestFacts::of_rsync(),
            listed_ahead,
            has_history: terms.compression == Compression::Zlib,
        }
    }

    /// Returns the sender of the session.
    pub(in crate::stock) fn sender(
        &'a self,
        terms: &StockTerms,
        run_context: RunContext<'a>,
        wants: Wants,
        report: &'a (dyn Fn(Event) -> Result<()> + Sync),
    ) -> Sender<'a> {
        Sender {
            run_context,
            peer: self,
            reports: None,
            checksums: terms.checksums(),
            receiver_is_super: true,
            wants,
            throttle: throttle(&run_context),
            profile: false,
            unsent: Default::default(),
            report,
            opened: Mutex::default(),
        }
    }
}

impl DestPeer for RsyncDest<'_> {
    fn facts(&self) -> &DestFacts {
        &self.facts
    }

    fn open(&self) -> Result<()> {
        self.connection.send_rsync(&RsyncMessage::Opening)
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
        let entries = listing.list.len() as u64;
        self.inbox
            .wait_to_list(listing.id, entries, self.listed_ahead)?;
        self.connection.send(&Message::Dir(Box::new(listing)))
    }

    fn end_listings(&self, counted: &Tally) -> Result<()> {
        self.inbox.has_sent_all();
        self.connection
            .send(&Message::DirsEnd(Box::new(counted.clone())))
    }

    /// Files are requested again in the order of the other requests.
    fn lanes(&self) -> &'static [Lane] {
        &[Lane::Requested]
    }

    fn next(&self, _: Lane) -> Result<Option<Job>> {
        loop {
            match self.inbox.next()? {
                None => return Ok(None),
                Some(Order::Send(request)) => return Ok(Some(Job::Send(request))),
                Some(Order::Remove(file)) => return Ok(Some(Job::Remove(file))),
                Some(Order::Forget(dir)) => {
                    self.connection.send_rsync(&RsyncMessage::End)?;
                    return Ok(Some(Job::Forget(dir)));
                }
                Some(Order::EndPhase) => self.connection.send_rsync(&RsyncMessage::End)?,
                Some(Order::Return(index)) => {
                    self.connection.send_rsync(&RsyncMessage::Return(index))?;
                }
            }
        }
    }

    fn next_files(&self, _: Lane, dir: DirId) -> Vec<u32> {
        self.inbox.next_files(dir)
    }

    fn content(&self, file: FileId, lane: Lane, _: bool) -> Box<dyn Sink + '_> {
        Box::new(RsyncSink {
            dest: self,
            file,
            lane,
        })
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
    lane: Lane,
}

impl Sink for RsyncSink<'_> {
    fn whole(&self, data: Vec<u8>, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()> {
        self.dest.connection.send(&Message::Whole {
            file: self.file,
            lane: self.lane,
            data,
            digest,
        })
    }

    fn begin(&self) -> Result<()> {
        self.dest.connection.send(&Message::Begin {
            file: self.file,
            lane: self.lane,
        })
    }

    fn data(&self, data: &mut Vec<u8>) -> Result<()> {
        let data = std::mem::take(data);
        let lane = self.lane;
        self.dest.connection.send(&Message::Data { lane, data })
    }

    fn copied(&self, offset_bytes: u64, len_bytes: u64, bytes: &[u8]) -> Result<()> {
        let content = if self.dest.has_history {
            bytes.to_vec()
        } else {
            Vec::new()
        };
        self.dest.connection.send_rsync(&RsyncMessage::Copy {
            offset_bytes,
            len_bytes,
            content,
        })
    }

    fn end(&self, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()> {
        let lane = self.lane;
        self.dest.connection.send(&Message::End { lane, digest })
    }

    fn refuse(&self, problem: Option<Problem>) -> Result<()> {
        self.dest.connection.send(&Message::Unsent {
            file: self.file,
            lane: self.lane,
            problem,
        })
    }
}
