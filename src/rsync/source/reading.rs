//! Reads the lists and contents that a stock rsync sends, to the goodbye, which it answers.

mod items;
mod list;
mod listings;
mod roots;

use crate::error::Error;
use crate::exit::Exit;
use crate::flist::Xattrs;
use crate::flist::order::compare_paths;
use crate::fs::sys;
use crate::proto::rsync::attributes::IdsWithName;
use crate::proto::rsync::decode_error::{self, DecodeError, violation};
use crate::proto::rsync::file_list::ListDecoder;
use crate::proto::rsync::message::RsyncMessage;
use crate::proto::rsync::number::{Ndx, NdxDecoder};
use crate::proto::rsync::stats::{DeletionCounts, Stats};
use crate::proto::rsync::tokens::TokenDecoder;
use crate::report::Tally;
use crate::report::event::Weight;
use crate::rsync::controls::{
    Controls, IO_ERROR_DELETE_LIMIT, IO_ERROR_GENERAL, IO_ERROR_VANISHED, Input,
};
use crate::rsync::source::lists::{NumberedDir, PendingListing, SortedList};
use crate::rsync::source::{SentRequest, SourceEncoder, SourceIntake, unsent};
use crate::session::connection::Connection;
use std::collections::HashMap;
use std::sync::Arc;

/// The lists and contents of a sender, as they are read.
pub(super) struct Reading<'i, 'r> {
    intake: &'i SourceIntake<'i>,
    connection: &'i Connection<SourceEncoder>,
    controls: &'i Controls<'i>,
    lists: ListDecoder,
    indices: NdxDecoder,
    tokens: TokenDecoder,
    digest_len_bytes: usize,
    /// `None`: its list has come.
    dirs: Vec<Option<NumberedDir>>,
    /// The index of the first entry of the next list.
    next_index: i32,
    /// The errors that the sender has reported with its lists, as bits.
    io_error: i32,
    /// The list of a directory that was read before the roots were passed on.
    read_ahead: Option<(i32, SortedList)>,
    /// Listings that wait for those that precede them, with the numbers of their lists (`--iconv`).
    held: Vec<(PendingListing, usize)>,
    /// The root was in a list.
    has_root: bool,
    counted: Tally,
    /// The extended attributes of each list of attributes, by its number, and whether some values are abbreviated.
    xattrs: HashMap<u32, (Arc<Xattrs>, bool)>,
    /// The total length of the values that came on request.
    xattrs_bytes: u64,
    /// The ids in ACLs whose names have come.
    named: IdsWithName,
    input: &'i mut Input<'r>,
}

impl<'i, 'r> Reading<'i, 'r> {
    /// Returns a reading at its start.
    pub(super) fn new(
        intake: &'i SourceIntake<'i>,
        connection: &'i Connection<SourceEncoder>,
        controls: &'i Controls<'i>,
        tokens: TokenDecoder,
        input: &'i mut Input<'r>,
    ) -> Reading<'i, 'r> {
        Reading {
            intake,
            connection,
            controls,
            lists: ListDecoder::new(intake.terms.list_options(intake.options)),
            indices: NdxDecoder::new(intake.terms.protocol),
            tokens,
            digest_len_bytes: intake.terms.sums.digest_len_bytes(),
            dirs: Vec::new(),
            next_index: i32::from(intake.is_incremental()),
            io_error: 0,
            read_ahead: None,
            held: Vec::new(),
            has_root: false,
            counted: Tally::default(),
            xattrs: HashMap::new(),
            xattrs_bytes: 0,
            named: IdsWithName::default(),
            input,
        }
    }

    /// Reads everything, until the goodbye.
    pub(super) fn run(mut self) -> decode_error::Result<()> {
        let has_left = self.first_list()?;
        self.lists_and_contents(has_left)?;

        let mut rest = Tally::default();
        if !has_left {
            rest = self.goodbye()?;
        }
        self.add_reported_errors(&mut rest);

        let is_old_client = self.intake.is_served() && self.intake.terms.protocol < 29;
        // Such a client ends the last phase before the receiver has everything.
        if has_left || is_old_client {
            // The end of the reading closes the connection, so the receiver must have sent its last message.
            let waited = self.intake.inbox.await_report();
            waited.map_err(|error| self.controls.fail(error))?;
        } else if !self.intake.inbox.has_all() {
            return Err(violation("the end before all requested files"));
        }
        if !has_left {
            let sent = self.connection.send(&RsyncMessage::Goodbye);
            sent.map_err(|error| self.controls.fail(error))?;
        }
        let reported = self.controls.report_incomplete_lines();
        reported.map_err(|error| self.controls.fail(error))?;
        let ended = self.intake.inbox.end_session(rest);
        ended.map_err(|error| self.controls.fail(error))
    }

    /// Reads the lists after the first one, and the answers to requests, until the sender has ended its last phase.
    fn lists_and_contents(&mut self, has_left: bool) -> decode_error::Result<()> {
        let mut has_all_lists = !self.intake.is_incremental();
        if has_all_lists {
            self.end_lists()?;
        }
        // Before protocol 29, there is no phase for delayed updates.
        let phases_after_lists = if self.intake.terms.protocol < 29 {
            1
        } else {
            2
        };
        // How many lists and phases the sender has ended.
        let mut ended = 0;
        while !has_all_lists || !has_left && ended < self.list_count() + phases_after_lists {
            let ndx = match &self.read_ahead {
                Some((dir, _)) => Ndx::List(*dir),
                None => self.indices.decode(self.input)?,
            };
            match ndx {
                Ndx::List(dir) if !has_all_lists => self.list_of(dir)?,
                Ndx::ListsEnd if !has_all_lists => {
                    has_all_lists = true;
                    self.end_lists()?;
                }
                Ndx::Entry(index) => self.item(index)?,
                Ndx::Done if has_all_lists || ended + 1 < self.list_count() => {
                    self.answered(SentRequest::End)?;
                    ended += 1;
                }
                Ndx::List(_) | Ndx::ListsEnd | Ndx::Done | Ndx::Deletions => {
                    return Err(violation("unexpected end of a list"));
                }
            }
            sys::note_work();
        }
        Ok(())
    }

    /// Passes on the listings that waited for the last list, and that it has come.
    fn end_lists(&mut self) -> decode_error::Result<()> {
        self.intake.shared.lock().has_all_lists = true;
        let mut held = std::mem::take(&mut self.held);
        held.sort_by(|(a, _), (b, _)| {
            let path_of_a = a.message.path.as_bytes();
            let path_of_b = b.message.path.as_bytes();
            compare_paths((path_of_a, true), (path_of_b, true))
        });
        for (listing, list) in held {
            self.deliver(listing, Some(list))?;
        }
        self.intake.inbox.end_list(self.counted.clone());
        Ok(())
    }

    /// Adds the errors of the sender that no list has reported.
    fn add_reported_errors(&self, rest: &mut Tally) {
        let (reported, has_failed) = {
            let controls = self.controls.lock();
            (controls.io_error, controls.has_failed)
        };
        let all = reported | self.io_error;
        if has_failed {
            // The text of a daemon comes with the messages, so one failure may be reported twice. It counts once.
            if all & IO_ERROR_GENERAL == 0 {
                rest.at_peer(|rest| rest.problem(Weight::Failed));
            }
        } else if all == 0 && self.intake.shared.lock().unsent > 0 {
            // Requested files did not come, and the sender gave no reason.
            rest.problem(Weight::Failed);
        }
        let new = reported & !self.io_error;
        if new & IO_ERROR_GENERAL != 0 {
            rest.problem(Weight::SourceError);
        }
        if new & IO_ERROR_VANISHED != 0 {
            rest.problem(Weight::Vanished);
        }
        rest.delete_limit_reached |= reported & IO_ERROR_DELETE_LIMIT != 0;
    }

    fn list_count(&self) -> usize {
        self.intake.shared.lock().lists.len()
    }

    /// Reads what follows the last item: the statistics, and the answer to the end of deletions.
    fn goodbye(&mut self) -> decode_error::Result<Tally> {
        // A client sends no statistics.
        let protocol = self.intake.terms.protocol;
        let stats = if self.intake.is_served() {
            Stats::default()
        } else {
            Stats::decode(self.input, protocol)?
        };
        if protocol >= 31 {
            let mut ndx = self.indices.decode(self.input)?;
            if ndx == Ndx::Deletions {
                DeletionCounts::decode(self.input)?;
                ndx = self.indices.decode(self.input)?;
            }
            if ndx != Ndx::Done {
                return Err(violation("unexpected index after the statistics"));
            }
        }
        Ok(Tally {
            list_generation_ms: stats.list_build_ms.unsigned_abs(),
            list_transfer_ms: stats.list_send_ms.unsigned_abs(),
            ..Tally::default()
        })
    }

    fn max_alloc_bytes(&self) -> u64 {
        self.intake
            .options
            .connect
            .max_alloc_bytes
            .unwrap_or(u64::MAX)
    }

    fn lists_too_long(&self) -> DecodeError {
        let error = Error::new(Exit::Malloc, "sparsync: the file list exceeds --max-alloc");
        self.controls.fail(
            error.with_hint(
                "use a larger --max-alloc (a daemon: RSYNC_MAX_ALLOC), or copy in parts",
            ),
        )
    }

    /// Handles what the sender has left out before an answer: files that it cannot read.
    fn answered(&self, answer: SentRequest) -> decode_error::Result<()> {
        if self.intake.terms.protocol >= 30 {
            return Ok(());
        }
        loop {
            let mut shared = self.intake.shared.lock();
            let sent = shared.unanswered.pop_front();
            match sent {
                Some(sent) if sent == answer => return Ok(()),
                Some(SentRequest::Request(index)) => {
                    shared.unread = shared.unread.saturating_sub(1);
                    drop(shared);
                    unsent(index, &self.intake.shared, self.intake.inbox)
                        .map_err(|error| self.controls.fail(error))?;
                }
                Some(SentRequest::Probe(_) | SentRequest::End) => {}
                None => return Err(violation("answer without a request")),
            }
        }
    }
}
