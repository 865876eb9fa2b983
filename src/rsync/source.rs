//! A stock rsync as the sender: its file lists become listings, its contents streams, and the receiver's requests items.
//!
//! The peer sends its list whole, or piecewise: then each list is the content of one directory, in the order of a walk.
//! An index numbers the entries of all lists in sorted order. In a directory, entries that are not directories come
//! first, so the index of such an entry is that of the directory's first entry plus its place in the listing.

mod encoder;
mod inbox;
mod late_values;
mod lists;
mod reading;
mod rsync_source;
mod set_aside;

pub use self::encoder::{SourceEncoder, UnchangedDest};
use self::inbox::ContentKey;
pub use self::inbox::SourceInbox;
use self::reading::Reading;

use crate::error::{Error, Result};
use crate::flist::abbreviated::RequestedValues;
use crate::options::{Checksum, Options, When};
use crate::proto::FileId;
use crate::proto::rsync::decode_error::{self, broken_stream, violation};
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::number::NdxEncoder;
use crate::proto::rsync::tokens::TokenDecoder;
use crate::report::event::{Problem, Weight};
use crate::rsync::batch::recorder::BatchRecorder;
use crate::rsync::controls::{self, PeerRole};
use crate::rsync::error::undecodable as failed;
use crate::rsync::framing::Framing;
use crate::rsync::served_items::Served;
use crate::rsync::session_terms::RsyncTerms;
use crate::session::connection::{Connection, Intake, unexpected};
use crate::session::response_validation::ResponseValidator;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::sync::Arc;

/// What the two directions share. The thread that reads adds lists and listings; the threads that send add requests,
/// under the lock of the connection.
///
/// What holds:
///
/// - A listing is here before it is in the inbox, so a thread that has an entry knows its index. The item of a directory of a
///   piecewise list waits for the list of that directory, because its own index is the one before it.
/// - A request is here before any of its bytes are sent, so each answer finds it. The answers about one index come in the
///   order of its requests.
/// - Lists are ended in order. The last one that is known is ended only when another one has come or none will: the end of
///   the last list also ends the first requests.
/// - This lock may be taken under those of the connection and of the inbox, and neither of them under it.
#[derive(Default)]
struct SourceShared {
    /// By number of the listing.
    listings: Vec<ListingIndex>,
    lists: Vec<ReceivedList>,
    has_all_lists: bool,
    /// For how many lists the sender was informed that nothing more of them is needed.
    ended: usize,
    /// How many phases after the lists were ended.
    ended_phases: usize,
    /// The index of the first entry of the next list.
    next_index: i32,
    /// The requested files that were not answered, by index. A file can be requested twice.
    requested: HashMap<i32, VecDeque<ContentKey>>,
    /// Before protocol 30: what was sent and not answered, in order.
    unanswered: VecDeque<SentRequest>,
    /// How many of these requests the sender has reported as failed.
    unread: usize,
    /// The requested values of extended attributes, by index.
    requested_xattrs: HashMap<i32, VecDeque<RequestedValues>>,
    /// The index of the root.
    root: i32,
    /// Entries are deleted after the transfer.
    deletes_after: bool,
    /// How many requested files will not come.
    unsent: u64,
    /// The sender had no entry, and leaves without reading anything more.
    has_left: bool,
    /// Set if the receiver reports its items to the sender.
    served: Option<Served>,
    /// The sender is the client.
    is_server: bool,
}

/// A list of the sender.
struct ReceivedList {
    /// The index of its first entry.
    first: i32,
    /// Nothing more of it is needed.
    is_done: bool,
}

/// What a sender answers in order. Before protocol 30, it leaves out the answer for a file that it cannot read, so a
/// later answer shows that the file will not come. Protocol 29 has items that only ask for that. An older sender always
/// reports an error here, maybe early: if there are as many as unanswered requests, none of these files will come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SentRequest {
    /// A request for a file.
    Request(i32),
    /// An item that requests nothing.
    Probe(i32),
    /// The end of a list or phase.
    End,
}

/// How the entries of a listing are numbered.
struct ListingIndex {
    /// The index of its first entry.
    first: i32,
    /// The places of its entries, counted from `first`, if duplicates between them were dropped.
    places: Option<Vec<u32>>,
    /// The list that contains it, if its end is reported as soon as its files were received.
    list: Option<usize>,
    /// Of a piecewise list at the server: the place of the first directory, and the numbers of the directories.
    dirs: (u32, Vec<u32>),
}

impl SourceShared {
    /// Notes what is sent, if the order of answers matters.
    fn note(&mut self, sent: SentRequest, protocol: u8) {
        if protocol < 30 {
            self.unanswered.push_back(sent);
        }
    }

    fn requests(&self) -> usize {
        self.unanswered
            .iter()
            .filter(|sent| matches!(sent, SentRequest::Request(_)))
            .count()
    }

    /// Notes that the sender has reported an error. One about its lists comes before all requests.
    fn count_unread(&mut self) {
        self.unread += usize::from(self.requests() > self.unread);
    }

    /// Forgets the first request for values of an entry.
    fn end_xattr_request(&mut self, index: i32) {
        let Some(requested) = self.requested_xattrs.get_mut(&index) else {
            return;
        };
        requested.pop_front();
        if requested.is_empty() {
            self.requested_xattrs.remove(&index);
        }
    }

    fn index(&self, file: FileId) -> Result<i32> {
        if file == FileId::ROOT {
            return Ok(self.root);
        }
        let listing = usize::try_from(file.dir)
            .ok()
            .and_then(|at| self.listings.get(at));
        let index = listing.and_then(|listing| {
            if let Some(number) = listing.number_of_dir(file.entry) {
                return self.served.as_ref()?.own_index(number);
            }
            let place = match &listing.places {
                Some(places) => *places.get(file.entry as usize)?,
                None => file.entry,
            };
            listing.first.checked_add_unsigned(place)
        });
        index.ok_or_else(|| unexpected("request for an unknown file"))
    }
}

impl ListingIndex {
    /// Returns the number of the directory at a place of the listing, if directories have numbers.
    fn number_of_dir(&self, entry: u32) -> Option<u32> {
        let (first, numbers) = &self.dirs;
        numbers.get(entry.checked_sub(*first)? as usize).copied()
    }
}

/// Reads what the sender sends, and puts it into the inbox.
pub struct SourceIntake<'a> {
    terms: RsyncTerms,
    options: &'a Options,
    inbox: &'a SourceInbox,
    shared: Arc<Mutex<SourceShared>>,
    /// What the sender may send.
    request: Arc<ResponseValidator>,
    recorder: Option<Arc<BatchRecorder>>,
    /// Content is only recorded (`--only-write-batch`).
    is_left: bool,
}

/// Returns the two directions of a session with an rsync that has the source. `opening` is sent first.
pub fn directions<'a>(
    terms: RsyncTerms,
    opening: Vec<u8>,
    options: &'a Options,
    inbox: &'a SourceInbox,
    request: Arc<ResponseValidator>,
) -> (SourceEncoder, SourceIntake<'a>) {
    // Older senders do not report their errors.
    let deletes_after = options.delete.when == Some(When::After) && terms.protocol >= 30;
    let shared = Arc::new(Mutex::new(SourceShared {
        deletes_after,
        ..SourceShared::default()
    }));
    let RsyncTerms { protocol, sums, .. } = terms;
    let encoder = SourceEncoder {
        protocol,
        has_xattrs: options.preserve.xattrs > 0 && !options.dry_run,
        has_shortcut: terms.has_xattr_shortcut(),
        dry_run: options.dry_run,
        counts_deletions: options.delete.when.is_some() || options.delete.force,
        framing: Framing::of_client(&terms),
        sums,
        // A sender that appends reads no sums, and without a checksum there are none.
        takes_blocks: sums.checksum != Checksum::None,
        appends: options.place.append.is_some(),
        shared: shared.clone(),
        indices: NdxEncoder::new(protocol),
        opening,
        unchanged_dest: None,
    };
    (
        encoder,
        SourceIntake {
            terms,
            options,
            inbox,
            shared,
            request,
            recorder: None,
            is_left: false,
        },
    )
}

impl Intake<SourceEncoder> for SourceIntake<'_> {
    fn read_all(
        &mut self,
        connection: &Connection<SourceEncoder>,
        reader: &mut dyn Read,
    ) -> Result<()> {
        let report_unsent = |index| {
            if self.options.dry_run {
                // Nothing was requested: the client reports the file itself, and does not return its item.
                return self.shared.lock().take_left_out(index).map_err(failed);
            }
            unsent(index, &self.shared, self.inbox)
        };
        let RsyncTerms {
            protocol,
            compression,
            ..
        } = self.terms;
        let tokens = TokenDecoder::new(compression, protocol)
            .map_err(failed)?
            .deferring();
        let unread = |is_in_file| {
            self.shared.lock().count_unread();
            if is_in_file {
                Ok(())
            } else {
                unread(&self.shared, self.inbox)
            }
        };
        let role = PeerRole::Sender {
            unsent: &report_unsent,
            unread: &unread,
        };
        let has_frames = !self.is_served() || self.terms.client_has_frames;
        let report = |event, cost| self.inbox.add_event(event, cost);
        controls::read_all(
            reader,
            &role,
            has_frames,
            &|secs| connection.adopt_timeout(secs),
            &report,
            |input, controls| {
                if let Some(recorder) = self.recorder.clone() {
                    // The session ends with the error of the recorder.
                    let failed =
                        |error: Error| broken_stream(String::from_utf8_lossy(&error.message));
                    input.record_with(Box::new(move |data| recorder.record(data).map_err(failed)));
                }
                Reading::new(self, connection, controls, tokens, input).run()
            },
        )
    }
}

impl SourceIntake<'_> {
    fn is_incremental(&self) -> bool {
        self.terms.flags.has(CompatFlags::INC_RECURSE)
    }

    fn reports_items(&self) -> bool {
        self.shared.lock().served.is_some()
    }

    /// Returns whether the sender is the client.
    fn is_served(&self) -> bool {
        self.shared.lock().is_server
    }

    /// Makes the intake record what it reads.
    pub(super) fn recording(self, recorder: Option<Arc<BatchRecorder>>) -> Self {
        let is_left = recorder.as_ref().is_some_and(|recorder| recorder.is_only);
        SourceIntake {
            recorder,
            is_left,
            ..self
        }
    }

    /// Makes the sender a client that reports all items. `has_xattrs`: items have a part about extended attributes.
    pub(super) fn serve(&self, has_xattrs: bool) {
        let mut shared = self.shared.lock();
        shared.is_server = true;
        shared.served = Some(Served::new(has_xattrs));
    }

    /// Makes the receiver report its items to the sender, which is a server and returns them for a batch file.
    pub(super) fn report_items(&self) {
        self.shared.lock().served = Some(Served::new(false));
    }
}

impl SourceShared {
    /// Notes that the client leaves out an item that it was sent.
    fn take_left_out(&mut self, index: i32) -> decode_error::Result<()> {
        match &mut self.served {
            Some(served) => served.take_returned(index),
            None => Err(violation(format!("file {index} was not requested"))),
        }
    }
}

/// If the sender has reported all unanswered requests as failed, they will not be answered.
fn unread(shared: &Mutex<SourceShared>, inbox: &SourceInbox) -> Result<()> {
    let mut locked = shared.lock();
    if locked.unread == 0 || locked.requests() > locked.unread {
        return Ok(());
    }
    locked.unread = 0;
    let mut failed = Vec::new();
    locked.unanswered.retain(|sent| match sent {
        SentRequest::Request(index) => {
            failed.push(*index);
            false
        }
        SentRequest::Probe(_) | SentRequest::End => true,
    });
    drop(locked);
    failed
        .into_iter()
        .try_for_each(|index| unsent(index, shared, inbox))
}

/// Reports that a requested file will not come. The peer has printed the reason.
///
/// Whether it vanished or could not be read is known only at the end. So deletions after the transfer do not take place.
fn unsent(index: i32, shared: &Mutex<SourceShared>, inbox: &SourceInbox) -> Result<()> {
    let key = take_requested(index, shared).map_err(failed)?;
    shared.lock().unsent += 1;
    shared.lock().end_xattr_request(index);
    let weight = if shared.lock().deletes_after {
        Weight::SourceError
    } else {
        Weight::Warning
    };
    inbox.end_file(key, Err(Problem::new("", weight)), None)
}

fn take_requested(index: i32, shared: &Mutex<SourceShared>) -> decode_error::Result<ContentKey> {
    let mut shared = shared.lock();
    let found = shared
        .requested
        .get_mut(&index)
        .and_then(VecDeque::pop_front);
    if found.is_some() && shared.requested.get(&index).is_some_and(VecDeque::is_empty) {
        shared.requested.remove(&index);
    }
    found.ok_or_else(|| violation(format!("file {index} was not requested")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use crate::options::Recurse;
    use crate::proto::DirId;
    use crate::proto::rsync::file_list::{FileEntry, IdLists, ListEncoder, ListOptions};
    use crate::proto::rsync::message::RsyncMessage;
    use crate::proto::rsync::mux;
    use crate::proto::rsync::number::Ndx;

    fn anything() -> Arc<ResponseValidator> {
        Arc::new(ResponseValidator::anything(&Options::default()))
    }

    /// The receiver can be done with the only list before the reading thread knows that it is the last one.
    #[test]
    fn first_requests_are_ended_as_soon_as_all_are_sent() {
        let options = Options::default();
        let inbox = SourceInbox::new(true);
        let (mut encoder, intake) = directions(
            RsyncTerms::of_tests(),
            Vec::new(),
            &options,
            &inbox,
            anything(),
        );
        intake.shared.lock().lists.push(ReceivedList {
            first: 0,
            is_done: false,
        });
        let mut out = Vec::new();
        encoder
            .encode(&RsyncMessage::EndRequests, &mut out)
            .unwrap();
        assert_eq!(out.iter().skip(4).count(), 1);
    }

    /// A sender that has listed no more would answer with the end of all lists.
    #[test]
    fn end_of_the_last_known_list_waits_for_the_next() {
        let options = Options::default();
        let inbox = SourceInbox::new(true);
        let (mut encoder, intake) = directions(
            RsyncTerms::of_tests(),
            Vec::new(),
            &options,
            &inbox,
            anything(),
        );
        let mut sent = |is_last: bool| {
            let mut shared = intake.shared.lock();
            shared.has_all_lists = is_last;
            let first = shared.lists.len() as i32;
            let dir = shared.listings.len();
            shared.lists.push(ReceivedList {
                first,
                is_done: false,
            });
            shared.listings.push(ListingIndex {
                first,
                places: None,
                list: Some(dir),
                dirs: (0, Vec::new()),
            });
            drop(shared);
            let mut out = Vec::new();
            encoder
                .encode(&RsyncMessage::Done(dir as DirId), &mut out)
                .unwrap();
            out.iter().skip(4).filter(|byte| **byte == 0).count()
        };
        assert_eq!([false, false, true].map(&mut sent), [0, 1, 2]);
    }

    #[test]
    fn lists_ahead_of_the_receiver_are_bounded() {
        let terms = RsyncTerms::of_tests();
        let flags = terms.flags;
        let mut options = Options::default();
        options.select.recurse = Recurse::Full;
        options.connect.max_alloc_bytes = Some(1 << 18);
        // A hundred directories, each with a hundred files.
        let mut lists = ListEncoder::new(ListOptions {
            protocol: terms.protocol,
            compat: flags,
            numeric_ids: true,
            ..ListOptions::default()
        });
        let mut indices = NdxEncoder::new(terms.protocol);
        let mut data = Vec::new();
        let mut wire = Vec::new();
        lists.entry(
            &FileEntry {
                is_top_dir: true,
                ..FileEntry::new(".", 0o040_755)
            },
            &mut data,
        );
        (0..100).for_each(|dir| {
            lists.entry(&FileEntry::new(format!("{dir:02}"), 0o040_755), &mut data)
        });
        lists.end(0, &IdLists::default(), &mut data);
        for dir in 0..100 {
            indices.encode(Ndx::List(dir + 1), &mut data);
            let file = |at: u8| FileEntry::new(format!("{dir:02}/{at:02}"), 0o100_644);
            (0..100).for_each(|at| lists.entry(&file(at), &mut data));
            lists.end(0, &IdLists::default(), &mut data);
        }
        mux::encode_data(&data, &mut wire);
        // None is taken.
        let inbox = SourceInbox::new(true);
        let (encoder, mut intake) = directions(terms, Vec::new(), &options, &inbox, anything());
        let connection = Connection::of(encoder);
        let error = intake.read_all(&connection, &mut &wire[..]).unwrap_err();
        assert_eq!(
            error.exit,
            Exit::Malloc,
            "{}",
            String::from_utf8_lossy(&error.message)
        );
    }
}
