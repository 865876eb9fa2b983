//! What a receiver sends to a stock rsync: its requests and reports become items, and it ends lists and phases.

use crate::error::{Error, Result};
use crate::flist::Kind;
use crate::flist::abbreviated::RequestedValues;
use crate::fs::charset;
use crate::options::{LinkOwners, Options};
use crate::plan::{BasisName, Changes};
use crate::proto::rsync::attributes::encode_xattr_request;
use crate::proto::rsync::block_sums::Sums;
use crate::proto::rsync::item::{BasisType, ItemFlags, ItemHead, SumHead};
use crate::proto::rsync::limits::PATH_MAX_BYTES;
use crate::proto::rsync::message::{Attempt, FileRequest, RsyncMessage};
use crate::proto::rsync::mux::Control;
use crate::proto::rsync::number::{Ndx, NdxEncoder};
use crate::proto::{Basis, FileId};
use crate::report::Tally;
use crate::report::event::{Event, Item};
use crate::rsync::basis;
use crate::rsync::block_sums::RsyncBlockSums;
use crate::rsync::error::undecodable as failed;
use crate::rsync::framing::{Framing, TextOutput};
use crate::rsync::served_items::{deletions_of, flags_of, head_of};
use crate::rsync::session_terms::{PHASE_DELETED, RsyncTerms, phases};
use crate::rsync::source::{SentRequest, SourceShared};
use crate::session::connection::{Connection, Urgency, WireOutput};
use parking_lot::Mutex;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

/// Encodes the messages of the receiver.
pub struct SourceEncoder {
    pub(super) protocol: u8,
    /// Items have a part about extended attributes.
    pub(super) has_xattrs: bool,
    /// Items of hard links do not have that part.
    pub(super) has_shortcut: bool,
    pub(super) dry_run: bool,
    /// Deletions are counted at the end.
    pub(super) counts_deletions: bool,
    pub(super) framing: Framing,
    pub(super) sums: Sums,
    /// The sender may refer to blocks of a basis.
    pub(super) takes_blocks: bool,
    /// The first request for a file is only about its rest.
    pub(super) appends: bool,
    pub(super) shared: Arc<Mutex<SourceShared>>,
    pub(super) indices: NdxEncoder,
    /// What is sent first.
    pub(super) opening: Vec<u8>,
    /// Set if files are requested although nothing is changed.
    pub(super) unchanged_dest: Option<UnchangedDest>,
}

/// The length of a [`SumHead`].
const SUM_HEAD_LEN_BYTES: usize = 16;

/// The destination of `--only-write-batch`, where only this encoder reads the basis of a file.
pub struct UnchangedDest {
    /// The destination as given.
    path: Vec<u8>,
    /// See [`LinkOwners`].
    link_owners: LinkOwners,
    /// Files are sent whole.
    is_whole: bool,
    /// The rest of a file is sent, so that only the length of the basis is needed.
    appends: bool,
    /// `--block-size`
    block_len_bytes: Option<u32>,
}

impl UnchangedDest {
    /// Returns the destination at a path.
    pub fn new(options: &Options, path: Vec<u8>) -> UnchangedDest {
        UnchangedDest {
            path,
            link_owners: options.preserve.link_owners,
            appends: options.place.append.is_some(),
            is_whole: options.delta.whole_file == Some(true),
            block_len_bytes: u32::try_from(options.delta.block_size_bytes)
                .ok()
                .filter(|&len| len > 0),
        }
    }
}

impl SourceEncoder {
    /// Appends the ends of the lists of which nothing more is needed, in order. The end of the last list also ends the first
    /// phase, so it must be known to be the last.
    fn end_lists(&mut self, out: &mut Vec<u8>) {
        let mut shared = self.shared.lock();
        let may_end =
            |shared: &SourceShared| shared.has_all_lists || shared.lists.len() > shared.ended + 1;
        while may_end(&shared)
            && shared
                .lists
                .get(shared.ended)
                .is_some_and(|list| list.is_done)
        {
            self.indices.encode(Ndx::Done, out);
            shared.ended += 1;
            shared.note(SentRequest::End, self.protocol);
        }
    }

    /// Makes the encoder request files although nothing is changed, if `unchanged_dest` is set.
    pub fn leaving(self, unchanged_dest: Option<UnchangedDest>) -> SourceEncoder {
        SourceEncoder {
            unchanged_dest,
            ..self
        }
    }

    /// Makes the sender a client that reports all items.
    pub fn serving(self, terms: &RsyncTerms, has_xattrs: bool) -> SourceEncoder {
        SourceEncoder {
            has_xattrs,
            framing: Framing::of_server(terms),
            ..self
        }
    }

    /// Appends an item, which the sender returns. Returns its index.
    fn item_head(
        &mut self,
        file: FileId,
        mut head: ItemHead,
        values: &RequestedValues,
        out: &mut Vec<u8>,
    ) -> Result<i32> {
        let mut shared = self.shared.lock();
        let index = shared.index(file)?;
        let sent = if head.flags.has(ItemFlags::TRANSFER) && !self.dry_run {
            SentRequest::Request
        } else {
            SentRequest::Probe
        };
        shared.note(sent(index), self.protocol);
        let requested = match &mut shared.served {
            Some(served) => served.first_requests(values.clone()),
            None => RequestedValues::default(),
        };
        if !requested.numbers.is_empty() {
            head.flags = head.flags | ItemFlags::REPORT_XATTR;
        }
        let has_xattrs = self.has_xattrs && head.has_xattrs(self.has_shortcut);
        self.indices.encode(Ndx::Entry(index), out);
        head.encode(self.protocol, out);
        if has_xattrs {
            encode_xattr_request(&requested.numbers, out);
            // The sender returns it with an answer.
            shared
                .requested_xattrs
                .entry(index)
                .or_default()
                .push_back(requested);
        }
        Ok(index)
    }

    fn request(&mut self, request: &FileRequest, out: &mut Vec<u8>) -> Result<()> {
        let FileRequest {
            file,
            attempt,
            basis,
            name,
            changes,
            values,
            item,
        } = request;
        let flags = match item {
            Some(item) => head_of(item).flags,
            // A daemon may log them. With the flag for extended attributes, a part about those would follow.
            None => ItemFlags::TRANSFER | flags_of(changes.without(Changes::XATTR), Kind::File),
        };
        let takes_blocks = self.takes_blocks && (!self.appends || *attempt == Attempt::Again);
        let is_named = takes_blocks && basis.blocks().is_some();
        let (which, name) = match name {
            Some(name) if is_named => type_of(name),
            Some(_) | None => (None, None),
        };
        let index = self.item_head(
            *file,
            ItemHead {
                flags,
                basis: which,
                name,
            },
            values,
            out,
        )?;
        self.shared
            .lock()
            .requested
            .entry(index)
            .or_default()
            .push_back((*file, *attempt));
        match basis {
            Basis::Blocks(sums) if takes_blocks => out.extend_from_slice(sums),
            // The head alone says how long the prefix is.
            Basis::Prefix { len_bytes, .. } => {
                let head = SumHead::of_basis(*len_bytes, None, &self.sums, self.protocol, false);
                head.map_err(failed)?.encode(out);
            }
            Basis::Blocks(_) | Basis::None => SumHead::default().encode(out),
        }
        if self.protocol == 29 {
            let mut shared = self.shared.lock();
            shared.note(SentRequest::Probe(index), self.protocol);
            let mut flags = ItemFlags::REPORT_TIME;
            if let Some(served) = &mut shared.served {
                served.expect_return(index);
                // The client reports changes.
                flags = ItemFlags::default();
            }
            self.indices.encode(Ndx::Entry(index), out);
            ItemHead {
                flags,
                ..ItemHead::default()
            }
            .encode(self.protocol, out);
        }
        Ok(())
    }

    /// Appends the item of an entry of which no content is requested.
    fn report(
        &mut self,
        file: FileId,
        item: &Item,
        values: &RequestedValues,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let head = head_of(item);
        let is_transfer = head.flags.has(ItemFlags::TRANSFER);
        if self.protocol < 29 && !is_transfer {
            // There are no items but requests.
            return Ok(());
        }
        if is_transfer && !self.dry_run {
            return Ok(());
        }
        let index = self.item_head(file, head, values, out)?;
        if let Some(served) = &mut self.shared.lock().served {
            served.expect_return(index);
        }
        if let Some(dest) = &self.unchanged_dest
            && is_transfer
        {
            let block_sums = RsyncBlockSums {
                sums: self.sums,
                protocol: self.protocol,
            };
            let sums = |fd: OwnedFd| block_sums.of_file(fd.as_fd(), dest.block_len_bytes);
            let basis = basis::open(&dest.path, &item.name, dest.link_owners).and_then(sums);
            match basis {
                _ if dest.is_whole => SumHead::default().encode(out),
                Ok(sums) if dest.appends => out.extend(sums.into_iter().take(SUM_HEAD_LEN_BYTES)),
                Ok(sums) => out.extend_from_slice(&sums),
                Err(_) => SumHead::default().encode(out),
            }
        }
        Ok(())
    }

    /// Appends the ends of retries, of delayed updates, and of deletions.
    fn end_phases(&mut self, counted: &Tally, out: &mut Vec<u8>) {
        let ended = self.shared.lock().ended_phases;
        for phase in ended + 1..phases(self.protocol) {
            if phase == PHASE_DELETED
                && self.counts_deletions
                && self.shared.lock().served.is_some()
            {
                self.indices.encode(Ndx::Deletions, out);
                deletions_of(counted).encode(out);
            }
            self.end_phase(out);
        }
    }

    fn end_phase(&mut self, out: &mut Vec<u8>) {
        self.indices.encode(Ndx::Done, out);
        let mut shared = self.shared.lock();
        shared.ended_phases += 1;
        shared.note(SentRequest::End, self.protocol);
    }

    /// Appends the ends of all lists, unless they are sent.
    fn end_all_lists(&mut self, out: &mut Vec<u8>) {
        let mut shared = self.shared.lock();
        for list in &mut shared.lists {
            list.is_done = true;
        }
        // The thread that reads passes a list on before it notes that it is the last one.
        shared.has_all_lists = true;
        drop(shared);
        self.end_lists(out);
    }

    /// Appends data in its frame, unless the sender has left.
    fn put(&self, mut data: Vec<u8>, out: &mut Vec<u8>) {
        if self.shared.lock().has_left {
            data.clear();
        }
        self.framing.data(&data, out);
    }

    /// Requests values of extended attributes.
    fn request_xattrs(
        &mut self,
        file: FileId,
        values: &RequestedValues,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let mut shared = self.shared.lock();
        let index = shared.index(file)?;
        shared
            .requested_xattrs
            .entry(index)
            .or_default()
            .push_back(values.clone());
        drop(shared);
        self.indices.encode(Ndx::Entry(index), out);
        ItemHead {
            flags: ItemFlags::REPORT_XATTR,
            ..ItemHead::default()
        }
        .encode(self.protocol, out);
        encode_xattr_request(&values.numbers, out);
        Ok(())
    }
}

impl WireOutput for SourceEncoder {
    // Pieces of files are short, and each wakeup of the writer costs a context switch.
    const GATHERED_BYTES: usize = 128 << 10;
    const BUFFER_MAX_BYTES: usize = 1 << 20;

    fn keepalive(&mut self, out: &mut Vec<u8>) {
        // As in rsync, none is sent before the first list has come.
        if !self.shared.lock().lists.is_empty() {
            self.framing.control(Control::KeepAlive, out);
        }
    }

    fn failure(&mut self, error: &Error, out: &mut Vec<u8>) {
        self.framing.exit(error.exit, out);
    }
}

impl TextOutput for SourceEncoder {
    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        self.framing.event(event, out);
    }
}

impl Connection<SourceEncoder> {
    /// Sends a message once the buffer has room.
    pub fn send(&self, message: &RsyncMessage) -> Result<()> {
        // The thread that repeats a request may be the one for which the reading thread waits. The end of a list is sent
        // by whatever thread drops the listing.
        let urgency = match message {
            RsyncMessage::Want(request) if request.attempt == Attempt::Again => Urgency::Urgent,
            RsyncMessage::Done(_) | RsyncMessage::Placed(_) => Urgency::Urgent,
            RsyncMessage::Item { .. } => Urgency::Report,
            RsyncMessage::Opening
            | RsyncMessage::Want(_)
            | RsyncMessage::WantValues { .. }
            | RsyncMessage::EndRequests
            | RsyncMessage::AllReceived(_)
            | RsyncMessage::Goodbye => Urgency::Ordinary,
        };
        self.encode(urgency, |encoder, out| encoder.encode(message, out))
    }
}

impl SourceEncoder {
    /// Appends the report of a deletion.
    pub(in crate::rsync) fn deleted(&self, name: &[u8], kind: Kind, out: &mut Vec<u8>) {
        let mut path = charset::line_to_wire(name).into_owned();
        // A client accepts no longer one, and the destination may have it.
        path.truncate(PATH_MAX_BYTES - 1);
        let is_dir = kind == Kind::Dir;
        self.framing.control(Control::Deleted { path, is_dir }, out);
    }

    /// Appends a message.
    pub(super) fn encode(&mut self, message: &RsyncMessage, out: &mut Vec<u8>) -> Result<()> {
        let mut data = Vec::new();
        match message {
            // It can be long, and is not copied.
            RsyncMessage::Opening if out.is_empty() => std::mem::swap(out, &mut self.opening),
            RsyncMessage::Opening => out.append(&mut self.opening),
            RsyncMessage::Done(dir) => {
                let mut shared = self.shared.lock();
                let listing = usize::try_from(*dir)
                    .ok()
                    .and_then(|at| shared.listings.get(at));
                if let Some(list) = listing.and_then(|listing| listing.list) {
                    shared.lists[list].is_done = true;
                }
                drop(shared);
                self.end_lists(&mut data);
            }
            RsyncMessage::Placed(file) => {
                let index = self.shared.lock().index(*file)?;
                self.framing.control(Control::Success(index), out);
            }
            RsyncMessage::AllReceived(counted) => {
                self.end_all_lists(&mut data);
                self.end_phases(counted, &mut data);
            }
            RsyncMessage::Goodbye => self.indices.encode(Ndx::Done, &mut data),
            RsyncMessage::Want(request) => self.request(request, &mut data)?,
            RsyncMessage::Item { file, values, item } => {
                self.report(*file, item, values, &mut data)?;
            }
            RsyncMessage::WantValues { file, values } => {
                self.request_xattrs(*file, values, &mut data)?;
            }
            RsyncMessage::EndRequests => {
                let is_first = self.shared.lock().ended == 0;
                if is_first {
                    self.end_all_lists(&mut data);
                } else {
                    self.end_phase(&mut data);
                }
            }
        }
        self.put(data, out);
        Ok(())
    }
}

/// Returns the type of a basis and its name, as an item has them.
fn type_of(name: &BasisName) -> (Option<BasisType>, Option<Vec<u8>>) {
    match name {
        BasisName::Backup => (Some(BasisType::BACKUP), None),
        BasisName::Alternate(tree) => (u8::try_from(*tree).ok().map(BasisType), None),
        BasisName::Similar { tree: None, name } => (Some(BasisType::FUZZY), Some(name.clone())),
        BasisName::Similar {
            tree: Some(tree),
            name,
        } => {
            let number = u8::try_from(*tree).ok();
            let number = number.and_then(|tree| (BasisType::FUZZY.0 + 1).checked_add(tree));
            (number.map(BasisType), Some(name.clone()))
        }
    }
}
