//! Reads items: the contents of requested files, and requested values of extended attributes.

use crate::apply::ContentPiece;
use crate::digest;
use crate::fs::sys;
use crate::options::Compression;
use crate::proto::rsync::attributes::decode_xattr_answer;
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::item::{ItemFlags, ItemHead, SumHead};
use crate::proto::rsync::limits::XATTRS_MAX;
use crate::proto::rsync::tokens::{self, Token};
use crate::rsync::source::reading::Reading;
use crate::rsync::source::{SentRequest, take_requested, unread, unsent};
use std::collections::VecDeque;
use std::io::Read;

/// What a range of the basis costs while it waits, in bytes.
const COPY_COST: u64 = 32;

impl Reading<'_, '_> {
    /// Reads the requested values of extended attributes of an entry.
    fn requested_xattrs(&mut self, index: i32) -> decode_error::Result<()> {
        let requested = self
            .intake
            .shared
            .lock()
            .requested_xattrs
            .get(&index)
            .and_then(VecDeque::front)
            .cloned();
        let requested = requested
            .ok_or_else(|| violation(format!("attributes of {index} were not requested")))?;
        let values = decode_xattr_answer(self.input, XATTRS_MAX)?;
        let mut shared = self.intake.shared.lock();
        let came = values.iter().map(|(number, _)| number);
        match &mut shared.served {
            Some(served) => served.take_xattrs(&requested, came)?,
            None if came.eq(&requested.numbers) => {}
            None => return Err(violation("other extended attributes than those requested")),
        }
        drop(shared);
        self.xattrs_bytes += values
            .iter()
            .map(|(_, value)| value.len() as u64)
            .sum::<u64>();
        if self.xattrs_bytes > self.max_alloc_bytes() {
            return Err(self.lists_too_long());
        }
        self.intake.inbox.store_xattrs(requested.list, values);
        // Only now, because a thread may wait for that.
        self.intake.shared.lock().end_xattr_request(index);
        self.intake.inbox.wake();
        Ok(())
    }

    /// Reads an item: the content of a requested file, or requested values of extended attributes.
    pub(super) fn item(&mut self, index: i32) -> decode_error::Result<()> {
        let protocol = self.intake.terms.protocol;
        let head = ItemHead::decode(self.input, protocol)?;
        let is_served = self.intake.reports_items();
        if !is_served && head.flags == ItemFlags::REPORT_XATTR {
            return self.requested_xattrs(index);
        }
        let is_dry = self.intake.options.dry_run;
        let has_xattrs = self
            .intake
            .shared
            .lock()
            .served
            .as_ref()
            .is_some_and(|served| served.has_xattrs);
        let has_shortcut = self.intake.terms.has_xattr_shortcut();
        if has_xattrs && head.has_xattrs(has_shortcut) {
            self.requested_xattrs(index)?;
        }
        let has_content = head.flags.has(ItemFlags::TRANSFER) && (!is_dry || self.intake.is_left);
        if !has_content {
            self.answered(SentRequest::Probe(index))?;
            return match &mut self.intake.shared.lock().served {
                Some(served) if is_dry && protocol < 30 => served.take_returned_later(index),
                Some(served) => served.take_returned(index),
                None if protocol == 29 => Ok(()),
                None => Err(violation("an item without content")),
            };
        }
        let begin_bytes = self.input.read_bytes();
        let sums = SumHead::decode(self.input, protocol)?;
        if is_dry {
            // Only the batch file gets the content.
            tokens::skip(self.input, self.intake.terms.compression != Compression::No)?;
            self.input.read_exact(&mut vec![0; self.digest_len_bytes])?;
            return match &mut self.intake.shared.lock().served {
                Some(served) => served.take_returned(index),
                None => Err(violation("content that was not requested")),
            };
        }
        self.answered(SentRequest::Request(index))?;
        let key = take_requested(index, &self.intake.shared)?;
        self.controls.lock().is_in_file = true;
        self.intake.inbox.begin_file(key);
        loop {
            let piece = match self.tokens.next(self.input)? {
                Token::Literal(data) => ContentPiece::Data(data),
                Token::Block(number) => {
                    let block = sums
                        .block(number)
                        .ok_or_else(|| violation(format!("unknown block {number}")))?;
                    ContentPiece::Copy {
                        offset_bytes: block.0,
                        len_bytes: block.1 as u64,
                    }
                }
                Token::End => break,
            };
            let cost = if let ContentPiece::Data(data) = &piece {
                data.len() as u64
            } else {
                COPY_COST
            };
            let added = self.intake.inbox.add_piece(key, piece, cost);
            added.map_err(|error| self.controls.fail(error))?;
            sys::note_work();
        }
        let mut sum = vec![0; self.digest_len_bytes];
        self.input.read_exact(&mut sum)?;
        let digest = digest::padded(&sum);
        let moved_bytes = self.input.read_bytes() - begin_bytes;
        self.intake
            .inbox
            .end_file(key, Ok(digest), Some(moved_bytes))
            .map_err(|error| self.controls.fail(error))?;
        let unsent_files = self.controls.end_file();
        let report = |index| {
            unsent(index, &self.intake.shared, self.intake.inbox)
                .map_err(|error| self.controls.fail(error))
        };
        unsent_files.into_iter().try_for_each(report)?;
        unread(&self.intake.shared, self.intake.inbox).map_err(|error| self.controls.fail(error))
    }
}
