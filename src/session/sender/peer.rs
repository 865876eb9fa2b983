//! The end that has the destination, as a sender sees it: a sparsync or an rsync.

use super::facts::DestFacts;
use crate::digest::CONTENT_LEN_BYTES;
use crate::error::{Error, Result};
use crate::proto::{Basis, ContentDigest, DirId, DirListing, FileId, Lane, Roots};
use crate::report::Tally;
use crate::report::event::Problem;
use crate::report::progress::SourceTotals;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The end that has the destination. It gets the listings of the source, and gives the sender jobs, most of them files to
/// send.
///
/// What a peer guarantees: each call that sends may wait for the peer, and fails once the connection is lost; the jobs of one
/// lane come in the order in which they must be done.
pub trait DestPeer: Sync {
    /// Returns what the engine must know about the peer.
    fn facts(&self) -> &DestFacts;

    /// Sends what comes before all else.
    fn open(&self) -> Result<()>;

    /// Registers a flag that is set once nothing more comes from the peer.
    fn set_on_end(&self, peer_is_gone: Arc<AtomicBool>);

    /// Returns whether nothing more comes from the peer.
    fn is_silent(&self) -> bool;

    /// Sends what is known of the source arguments.
    fn send_roots(&self, roots: Roots) -> Result<()>;

    /// Sends the listing of a directory, in the order of the walk.
    fn send_listing(&self, listing: DirListing) -> Result<()>;

    /// Sends how long the list is. Called only if the peer [takes](DestFacts::takes_totals) that.
    fn send_totals(&self, totals: SourceTotals) -> Result<()>;

    /// Notes that all listings were sent. `counted`: what they contain.
    fn end_listings(&self, counted: &Tally) -> Result<()>;

    /// Returns the lanes on which the peer has jobs. Each is served by a thread of its own.
    fn lanes(&self) -> &'static [Lane];

    /// Waits for the next job on a lane. `None`: the peer has everything.
    fn next(&self, lane: Lane) -> Result<Option<SenderJob>>;

    /// Returns which files of a directory are wanted next on a lane, without other jobs between them.
    fn next_files(&self, lane: Lane, dir: DirId) -> Vec<u32>;

    /// Returns where the content of a file goes. `as_it_is`: it is not worth compressing.
    fn content(&self, file: FileId, lane: Lane, as_it_is: bool) -> Box<dyn ContentSink + '_>;

    /// Sends the digest of a file, in answer to [`SenderJob::SendDigest`]. `None`: it has none.
    fn send_digest(&self, file: FileId, digest: Option<ContentDigest>) -> Result<()>;

    /// Waits until the peer has everything, and returns its counts.
    fn finish(&self) -> Result<Tally>;

    /// Ends the session. `removed`: what was removed at the source.
    fn leave(&self, removed: Tally);

    /// Returns lines about what the session cost.
    fn costs(&self) -> Vec<String>;

    /// Ends all waiting for the peer with an error.
    fn fail(&self, error: Error);

    /// Notes that the sender takes nothing more, so no thread may wait for it.
    fn close(&self);
}

/// Where the content of one file goes: as a whole, or begun, in pieces, and ended. [`ContentSink::refuse`] can take the place
/// of each of these calls, and is then the last one.
pub trait ContentSink: Sync {
    /// Sends all of the content.
    fn whole(&self, data: Vec<u8>, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()>;

    /// Notes that pieces follow.
    fn begin(&self) -> Result<()>;

    /// Sends the next piece. The vector keeps its memory, and its content is lost.
    fn data(&self, data: &mut Vec<u8>) -> Result<()>;

    /// Notes that the next piece is a range of the basis, which has these bytes. A native search does not have them.
    fn copied(&self, offset_bytes: u64, len_bytes: u64, bytes: &[u8]) -> Result<()>;

    /// Notes that all pieces were sent.
    fn end(&self, digest: [u8; CONTENT_LEN_BYTES]) -> Result<()>;

    /// Notes that the file does not come, or not to its end.
    fn refuse(&self, problem: Option<Problem>) -> Result<()>;
}

/// What a peer wants of a sender.
pub enum SenderJob {
    /// Send the content of a file.
    Send(ContentRequest),
    /// Send the digest of the content of a file.
    SendDigest(FileId),
    /// Remove a file, which has arrived.
    Remove(FileId),
    /// Remove what may have several paths in the transfer: nothing more is read. It need not come: what is left is removed
    /// at the end of the session.
    RemoveLate,
    /// Nothing more of a listing is wanted.
    Forget(DirId),
}

/// A request for the content of a file.
pub struct ContentRequest {
    pub file: FileId,
    /// What the receiver has of it.
    pub basis: Basis,
    /// What happens to the basis meanwhile.
    pub fate: BasisFate,
}

/// What happens to a basis while the receiver uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BasisFate {
    /// What the options say: under `--inplace` it is overwritten.
    ByOptions,
    /// It is overwritten, so a block can be used until something is written over it.
    Overwritten,
    /// It stays as it is.
    Kept,
}
