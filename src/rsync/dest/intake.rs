//! What a stock rsync returns to a sender: its items become requests, and events to report.

use crate::digest::{self};
use crate::error::Result;
use crate::flist::{Entry, Kind};
use crate::fs::sys;
use crate::options::{Options, RemoveSource};
use crate::path::{self};
use crate::plan::changes::Changes;
use crate::proto::rsync::attributes::decode_xattr_request;
use crate::proto::rsync::decode_error::{self, DecodeError, violation};
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::item::{BasisType, ItemFlags, ItemHead, SumHead};
use crate::proto::rsync::number::{Ndx, NdxDecoder, ReadWire as _};
use crate::proto::rsync::stats::DeletionCounts;
use crate::proto::{Basis, DirId, FileId};
use crate::report::Tally;
use crate::report::event::{Item, Update, Wants, Weight};
use crate::rsync::controls::{self, Controls, Input, PeerRole};
use crate::rsync::dest::encoder::DestEncoder;
use crate::rsync::dest::inbox::{DestInbox, Order};
use crate::rsync::dest::reports::SenderReports;
use crate::rsync::dest::shared::{DestConnectionState, ItemParts, PendingItem, RequestedXattrs};
use crate::rsync::error::undecodable as failed;
use crate::rsync::session_terms::{RsyncTerms, phases};
use crate::session::connection::{Connection, Intake, unexpected};
use crate::session::sender::{BasisFate, ContentRequest};
use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often the block checksums of a file are held at the same time: as received, and as a table for the search.
const SUMS_COPIES: u64 = 3;

/// What an item costs in the window of requests besides its sums, in bytes.
const ITEM_COST: u64 = 64;

/// Reads what the receiver sends, as the messages of a receiver.
pub struct DestIntake<'a> {
    pub(super) terms: RsyncTerms,
    /// The peer is the client.
    pub(super) is_server: bool,
    pub(super) options: &'a Options,
    pub(super) wants: Wants,
    /// Whether the format of `--out-format` has `%i`.
    pub(super) format_itemizes: bool,
    pub(super) state: Arc<DestConnectionState>,
    /// What this end reports, and what the receiver reports to it.
    pub(super) reports: Arc<SenderReports>,
    /// What the receiver wants.
    pub(super) inbox: &'a DestInbox,
}

impl Intake<DestEncoder> for DestIntake<'_> {
    fn read_all(
        &mut self,
        connection: &Connection<DestEncoder>,
        reader: &mut dyn Read,
    ) -> Result<()> {
        let state = self.state.clone();
        // Some receivers report files although the client does not remove them.
        let removes =
            self.options.select.remove_source != RemoveSource::No && !self.options.dry_run;
        let success = |index| {
            if !removes {
                return Ok(());
            }
            let file = state.shared.lock().file(index).map_err(failed)?;
            file.map_or(Ok(()), |file| self.inbox.add(Order::Remove(file)))
        };
        let role = PeerRole::Receiver(&success);
        let has_frames = !self.is_server || self.terms.client_has_frames;
        let report = |event, cost| {
            if self.is_server {
                return Err(unexpected("message that a receiver must not send"));
            }
            self.inbox.count_event(cost)?;
            self.reports.events.push(event, cost);
            Ok(())
        };
        let read = |input: &mut Input<'_>, controls: &Controls<'_>| {
            let mut tally = self.read_items(input, controls)?;
            tally.absent.files = self.state.shared.lock().absent_files;
            self.inbox
                .end_session(tally)
                .map_err(|error| controls.fail(error))
        };
        let adopt_timeout = |secs| connection.adopt_timeout(secs);
        controls::read_all(reader, &role, has_frames, &adopt_timeout, &report, read)
    }
}

impl<'a> DestIntake<'a> {
    fn read_items(
        &self,
        input: &mut impl Read,
        controls: &Controls<'_>,
    ) -> decode_error::Result<Tally> {
        let protocol = self.terms.protocol;
        let order = |order, cost| {
            self.inbox
                .add_request(order, cost)
                .map_err(|error| controls.fail(error))
        };
        let mut indices = NdxDecoder::new(protocol);
        let mut tally = Tally::default();
        // The files of which only the rest was requested.
        let mut appended = HashSet::new();
        // How many lists and phases the receiver has ended.
        let mut ended = 0;
        loop {
            match indices.decode(input)? {
                Ndx::Done => {
                    let mut shared = self.state.shared.lock();
                    let is_early = shared.lists.len() <= ended && !shared.has_all_lists;
                    let phases_end = shared.lists.len() + phases(protocol);
                    let is_goodbye = shared.has_all_lists && ended + 1 == phases_end;
                    let precedes_goodbye = shared.has_all_lists && ended + 2 == phases_end;
                    // No further item is about it.
                    let list = shared.lists.get_mut(ended);
                    let dir = list.and_then(|list| {
                        list.own = None;
                        list.dir
                    });
                    dir.and_then(|dir| shared.listings.remove(&dir));
                    drop(shared);
                    if is_early {
                        return Err(violation("end of a list that was not sent"));
                    }
                    ended += 1;
                    if is_goodbye {
                        break;
                    }
                    if precedes_goodbye {
                        let order = Order::RemoveLate;
                        self.inbox
                            .add(order)
                            .map_err(|error| controls.fail(error))?;
                    }
                    let end = dir.map_or(Order::EndPhase, Order::Forget);
                    self.inbox.add(end).map_err(|error| controls.fail(error))?;
                }
                Ndx::Deletions => {
                    let decoded = DeletionCounts::decode(input)?;
                    self.state.shared.lock().deletions = Some(decoded);
                    let DeletionCounts {
                        files,
                        dirs,
                        symlinks,
                        devices,
                        specials,
                    } = decoded;
                    let deleted = &mut tally.deleted;
                    (deleted.files, deleted.dirs, deleted.symlinks) =
                        (files.into(), dirs.into(), symlinks.into());
                    (deleted.devices, deleted.specials) = (devices.into(), specials.into());
                }
                Ndx::Entry(index) => self.item(index, &mut appended, input, &order, &mut tally)?,
                Ndx::List(_) | Ndx::ListsEnd => return Err(violation("unexpected index")),
            }
            sys::note_work();
        }
        if self.state.shared.lock().root.is_some() {
            // A receiver of ours counts the root.
            tally.list(Kind::Dir, 0, 1);
        }
        tally.literal_bytes = self.state.literal_bytes.load(Ordering::Relaxed);
        tally.matched_bytes = self.state.matched_bytes.load(Ordering::Relaxed);
        if controls.lock().has_failed {
            tally.at_peer(|tally| tally.problem(Weight::Failed));
        }
        controls
            .report_incomplete_lines()
            .map_err(|error| controls.fail(error))?;
        Ok(tally)
    }

    fn item(
        &self,
        index: i32,
        appended: &mut HashSet<i32>,
        input: &mut impl Read,
        order: &dyn Fn(Order, u64) -> std::result::Result<(), DecodeError>,
        tally: &mut Tally,
    ) -> decode_error::Result<()> {
        let protocol = self.terms.protocol;
        let head = ItemHead::decode(input, protocol)?;
        let found = self.state.shared.lock().file(index)?;
        let has_content = head.flags.has(ItemFlags::TRANSFER);
        let with_sums = has_content && !self.options.dry_run;
        // A file that is requested again is not appended to.
        let appends = with_sums && self.options.place.append.is_some() && appended.insert(index);
        let requests_xattrs = self.options.preserve.xattrs > 0
            && !self.options.dry_run
            && head.has_xattrs(self.terms.has_xattr_shortcut());
        let xattrs = if requests_xattrs {
            Some(self.requested_xattrs(index, found, input)?)
        } else {
            None
        };
        let mut sums = None;
        let mut request = Vec::new();
        if with_sums {
            let decoded = SumHead::decode(input, protocol)?;
            decoded.encode(&mut request);
            if !appends {
                let held_bytes = decoded.sums_len_bytes() as u64 * SUMS_COPIES;
                if self
                    .options
                    .connect
                    .max_alloc_bytes
                    .is_some_and(|max_bytes| held_bytes > max_bytes)
                {
                    return Err(violation("block checksums that exceed --max-alloc"));
                }
                request.append(&mut input.byte_vec(decoded.sums_len_bytes())?);
            }
            sums = Some(decoded);
        }
        let created_before = tally.created;
        let event = self.event(index, found, &head, request.len() as u64, tally)?;
        // A file that is requested again, because it could not be read to its end, is new only once.
        if self.state.shared.lock().unread.remove(&index) {
            tally.created = created_before;
        }
        if with_sums && found.is_none() {
            let words = format!("request for the content of entry {index}, which is no file");
            return Err(violation(words));
        }
        let file = if with_sums { found } else { None };
        let has_blocks = sums.is_some_and(|sums| sums.count > 0);
        let prefix = if appends && has_blocks { sums } else { None };
        let flags = head.flags;
        let is_overwritten = self.is_overwritten(head.basis);
        let has_more = head.basis.is_some() || head.name.is_some() || xattrs.is_some();
        let more = has_more.then(|| Box::new(ItemParts { head, xattrs }));
        self.state.shared.lock().items.push_back(PendingItem {
            content: file.zip(sums),
            index,
            flags,
            more,
            event,
        });
        let cost = request.len() as u64 + ITEM_COST;
        let basis = match prefix {
            Some(sums) => Basis::Prefix {
                len_bytes: sums.basis_len_bytes(),
                digest: None,
            },
            None if has_blocks => Basis::Blocks(request),
            None => Basis::None,
        };
        let fate = if is_overwritten {
            BasisFate::Overwritten
        } else {
            BasisFate::Kept
        };
        match file {
            Some(file) => order(Order::Send(ContentRequest { file, basis, fate }), cost),
            None => order(Order::Return(index), cost),
        }
    }

    /// Returns whether the receiver writes over a basis. Before protocol 29 it does not say what its basis is: with
    /// `--backup` that is the backup.
    fn is_overwritten(&self, basis: Option<BasisType>) -> bool {
        let place = &self.options.place;
        match basis.unwrap_or(BasisType::DESTINATION) {
            BasisType::DESTINATION => {
                place.inplace && (self.terms.protocol >= 29 || place.backup.is_none())
            }
            BasisType::PARTIAL => self.terms.flags.has(CompatFlags::INPLACE_PARTIAL_DIR),
            _ => false,
        }
    }

    /// Makes this the intake of a server.
    pub(in crate::rsync) fn at_server(self) -> DestIntake<'a> {
        DestIntake {
            is_server: true,
            ..self
        }
    }

    /// Reads which values of extended attributes of an entry are requested. Returns them with all its attributes.
    fn requested_xattrs(
        &self,
        index: i32,
        file: Option<FileId>,
        input: &mut impl Read,
    ) -> decode_error::Result<RequestedXattrs> {
        let xattrs = {
            let shared = self.state.shared.lock();
            let entry = match file {
                Some(FileId { dir, entry }) => shared
                    .listings
                    .get(&dir)
                    .and_then(|listing| listing.list.entries.get(entry as usize)),
                None => shared
                    .dir_before(index)
                    .or(shared.root.as_ref())
                    .map(|own| &own.entry),
            };
            entry.and_then(|entry| entry.extra.as_ref()?.xattrs.clone())
        };
        let numbers =
            decode_xattr_request(input, xattrs.as_ref().map_or(0, |xattrs| xattrs.len()))?;
        Ok((xattrs, numbers))
    }

    /// Counts an item, and returns its event if that is wanted. `sums_bytes`: the length of its sums.
    fn event(
        &self,
        index: i32,
        file: Option<FileId>,
        head: &ItemHead,
        sums_bytes: u64,
        tally: &mut Tally,
    ) -> decode_error::Result<Option<Box<Item>>> {
        let shared = self.state.shared.lock();
        let unknown = || violation(format!("unknown index {index}"));
        let listing = |dir: DirId| shared.listings.get(&dir).ok_or_else(unknown);
        let (name, entry, sender_path) =
            match (file, shared.dir_before(index).or(shared.root.as_ref())) {
                (Some(FileId { dir, entry }), _) => {
                    let listing = listing(dir)?;
                    let entry = listing
                        .list
                        .entries
                        .get(entry as usize)
                        .ok_or_else(unknown)?;
                    let name = path::join(listing.path.as_bytes(), listing.list.name(entry));
                    (name, Some(entry), listing.shown(entry))
                }
                (None, Some(own)) if own.path.is_root() => {
                    (b".".to_vec(), Some(&own.entry), own.shown.clone())
                }
                (None, Some(own)) => (
                    own.path.as_bytes().to_vec(),
                    Some(&own.entry),
                    own.shown.clone(),
                ),
                (None, None) => (b".".to_vec(), None, b".".to_vec()),
            };
        let flags = head.flags;
        let kind = entry.map_or(Kind::Dir, Entry::kind);
        let changes = self.changes(flags, kind);
        let len_bytes = entry.map_or(0, |entry| entry.len_bytes);
        if flags.has(ItemFlags::IS_NEW) {
            tally.created.add(kind);
        }
        if flags.has(ItemFlags::TRANSFER) {
            tally.transfer(len_bytes, 0);
        }
        let linked_to = if flags.has(ItemFlags::LOCAL_CHANGE | ItemFlags::XNAME_FOLLOWS) {
            head.name.clone()
        } else {
            None
        };
        // Unless the format itemizes, the receiver reports what is up to date. A name that is linked already has an item
        // without the other name.
        let output = &self.options.output;
        let itemizes = output.itemize > 0 || self.format_itemizes;
        let is_linked_now = linked_to.as_ref().is_some_and(|first| !first.is_empty());
        let is_update = !changes.is_none() || flags.has(ItemFlags::TRANSFER) || is_linked_now;
        let is_shown_unchanged = self.wants.unchanged && (self.is_server || itemizes);
        if !(self.wants.items && is_update || is_shown_unchanged) {
            return Ok(None);
        }
        // Under `-c`, the list has them.
        let listed_digest = entry.and_then(|entry| entry.extra.as_ref()?.digest);
        let listed_digest =
            listed_digest.map(|digest| digest::shown_of(self.terms.listed, &digest));
        let update = match () {
            () if flags.has(ItemFlags::TRANSFER) => Update::Received,
            () if linked_to.is_some() => Update::HardLink,
            () if flags.has(ItemFlags::LOCAL_CHANGE) => Update::Local,
            () => Update::Attrs,
        };
        Ok(Some(Box::new(Item {
            sender_path,
            name,
            kind,
            update,
            changes,
            target: entry
                .map(|entry| entry.target().to_vec())
                .filter(|target| !target.is_empty()),
            source_target: None,
            linked_to: linked_to.filter(|name| !name.is_empty()),
            mode: entry.map_or(0o040_755, |entry| entry.mode),
            uid: entry.map_or(0, |entry| entry.uid),
            gid: entry.map_or(0, |entry| entry.gid),
            mtime: entry.map_or_else(Default::default, |entry| entry.mtime),
            atime: None,
            len_bytes,
            moved_bytes: 0,
            sums_bytes,
            digest: if self.wants.digest {
                listed_digest
            } else {
                None
            },
            transfer: flags.has(ItemFlags::TRANSFER),
            file: None,
        })))
    }

    fn changes(&self, flags: ItemFlags, kind: Kind) -> Changes {
        let is_link = kind == Kind::Symlink;
        let keeps_time =
            self.options.preserve.times && !(is_link && flags.has(ItemFlags::REPORT_SIZE));
        [
            (ItemFlags::REPORT_CHANGE, Changes::CHECKSUM),
            (
                ItemFlags::REPORT_TIME,
                if keeps_time {
                    Changes::TIME
                } else {
                    Changes::TIME_NOW
                },
            ),
            (ItemFlags::REPORT_PERMS, Changes::PERMS),
            (ItemFlags::REPORT_OWNER, Changes::OWNER),
            (ItemFlags::REPORT_GROUP, Changes::GROUP),
            (ItemFlags::REPORT_ATIME, Changes::ATIME),
            (ItemFlags::REPORT_ACL, Changes::ACL),
            (ItemFlags::REPORT_XATTR, Changes::XATTR),
            (ItemFlags::IS_NEW, Changes::NEW),
        ]
        .into_iter()
        .fold(Changes::NONE, |changes, (flag, change)| {
            changes.with(change, flags.has(flag))
        })
        .with(Changes::SIZE, !is_link && flags.has(ItemFlags::REPORT_SIZE))
    }
}
