//! The file lists that an rsync gets: made of the listings of the sender.

use crate::flist::order::compare_paths;
use crate::flist::{DirId, DirList, Entry, Kind};
use crate::fs::ids::Ids;
use crate::fs::{charset, sys};
use crate::options::{Options, Recurse};
use crate::path::{self, RelPath};
use crate::plan::idmap::IdClass;
use crate::proto::rsync::file_list::{FileEntry, HardLink, IdLists, ListEncoder, ListOptions};
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::number::{Ndx, NdxEncoder};
use crate::proto::{DirListing, FileId, IdName, Roots};
use crate::report::event::{Event, Wants};
use crate::rsync::attributes::{AclOf, acl_to_wire, xattrs_to_wire};
use crate::rsync::dest::reports::SenderReports;
use crate::rsync::dest::shared::{DestConnectionState, OwnEntry, SentList, SentListing};
use crate::rsync::session_terms::RsyncTerms;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What was listed, and how.
///
/// What holds: a list is noted in [`DestShared`](crate::rsync::dest::shared::DestShared) in the same call that appends it, so each index that the
/// receiver may name is known before it can name it.
pub(super) struct FileLists {
    protocol: u8,
    /// The list is sent piecewise.
    is_incremental: bool,
    state: Arc<DestConnectionState>,
    reports: Arc<SenderReports>,
    wants: Wants,
    encoder: ListEncoder,
    options: ListOptions,
    no_implied_dirs: bool,
    /// Only directories that arguments name have content.
    is_flat: bool,
    /// The errors that the receiver knows of.
    sent_io_error: i32,
    /// The total length of the files and symlinks in the lists.
    pub(super) listed_bytes: u64,
    /// The root, until its listing comes.
    root: Option<FileEntry>,
    /// Arguments that do not exist, until the first listing comes.
    missing: Vec<RelPath>,
    /// Several arguments were found.
    has_several: bool,
    has_first: bool,
    /// The directories that still get a list, with their numbers; the next one is last.
    dirs: Vec<(i32, OwnEntry)>,
    next_dir: i32,
    names: HashMap<(bool, u32), Vec<u8>>,
    /// The first index of each file with several names.
    links: HashMap<(u64, u64), i32>,
    /// Of a whole list: all entries in the order of sending.
    all: Vec<(Vec<u8>, bool, Option<FileId>)>,
}

impl FileLists {
    /// Returns the lists of a session that begins.
    pub(super) fn new(
        terms: &RsyncTerms,
        options: &Options,
        wants: Wants,
        reports: Arc<SenderReports>,
        state: Arc<DestConnectionState>,
    ) -> FileLists {
        let list_options = terms.list_options(options);
        FileLists {
            protocol: terms.protocol,
            is_incremental: terms.flags.has(CompatFlags::INC_RECURSE),
            state,
            reports,
            wants,
            encoder: ListEncoder::new(list_options),
            options: list_options,
            no_implied_dirs: options.select.no_implied_dirs,
            is_flat: options.select.recurse != Recurse::Full,
            sent_io_error: 0,
            listed_bytes: 0,
            root: None,
            missing: Vec::new(),
            has_several: false,
            has_first: false,
            dirs: Vec::new(),
            next_dir: 0,
            names: names_of_root(options.preserve.numeric_ids),
            links: HashMap::new(),
            all: Vec::new(),
        }
    }

    /// Returns whether the lists that were sent have no entry.
    pub(super) fn is_empty(&self) -> bool {
        let shared = self.state.shared.lock();
        shared.lists.iter().all(|list| list.count == 0)
    }

    /// Returns the errors of this end, if the receiver does not know all of them. It learns of them now.
    pub(super) fn new_io_error(&mut self) -> Option<i32> {
        let io_error = self.reports.io_error.load(Ordering::Relaxed);
        if io_error & !self.sent_io_error == 0 {
            return None;
        }
        self.sent_io_error = io_error;
        Some(io_error)
    }

    /// Notes what is known of the source arguments. It is sent with the lists.
    pub(super) fn note_roots(&mut self, roots: Roots) {
        self.learn(&roots.ids);
        self.missing = roots.missing;
        self.has_several = roots.found > 1;
        let top = roots.top.as_ref();
        if let Some(entry) = top.and_then(|top| top.entries.first().cloned()) {
            self.root = Some(self.entry(b".".to_vec(), &entry));
            let shown = path::join(&roots.top_shown, b".");
            self.state.shared.lock().root = Some(OwnEntry {
                path: RelPath::root(),
                entry,
                shown,
            });
        }
    }

    fn learn(&mut self, ids: &[IdName]) {
        self.names
            .extend(ids.iter().map(|id| ((id.is_group, id.id), id.name.clone())));
    }

    /// Converts an entry of a listing.
    fn entry(&mut self, path: Vec<u8>, entry: &Entry) -> FileEntry {
        // A walk leaves out what cannot be converted.
        let mut converted = FileEntry::new(charset::line_to_wire(&path).into_owned(), entry.mode);
        let has_len = !matches!(entry.kind(), Kind::Device | Kind::Special);
        if matches!(entry.kind(), Kind::File | Kind::Symlink) {
            self.listed_bytes += entry.len_bytes;
        }
        converted.size = if has_len {
            entry.len_bytes.cast_signed()
        } else {
            0
        };
        (converted.mtime, converted.mtime_nanos) = (entry.mtime.secs, entry.mtime.nanos);
        (converted.uid, converted.gid) = (entry.uid, entry.gid);
        converted.user = self.names.get(&(false, entry.uid)).cloned();
        converted.group = self.names.get(&(true, entry.gid)).cloned();
        if let Some(extra) = &entry.extra {
            converted.atime = extra.atime.map_or(0, |time| time.secs);
            converted.rdev = sys::device_parts(extra.rdev);
        }
        let wire =
            charset::of_names().and_then(|charset| charset.encode_target(entry.target()).ok());
        converted.target = wire.unwrap_or_else(|| entry.target().to_vec());
        if self.options.digest_len_bytes > 0 && entry.kind() == Kind::File {
            let digest = entry
                .extra
                .as_ref()
                .and_then(|extra| extra.digest)
                .unwrap_or_default();
            converted.digest = digest
                .into_iter()
                .take(self.options.digest_len_bytes)
                .collect();
        }
        if self.options.acls && entry.kind() != Kind::Symlink {
            let sends_names = self.is_incremental && !self.options.numeric_ids;
            let name = |is_user: bool, id: u32| {
                if !sends_names {
                    return None;
                }
                self.names.get(&(!is_user, id)).cloned()
            };
            let (access, default) = entry.acls();
            converted.access_acl = Some(Arc::new(acl_to_wire(
                access,
                AclOf::Entry(entry.mode),
                &name,
            )));
            converted.default_acl = Some(Arc::new(acl_to_wire(default, AclOf::NewEntries, &name)));
        }
        if self.options.xattrs {
            converted.xattrs = Some(xattrs_to_wire(entry.xattrs()));
        }
        if self.protocol < 30 {
            // At protocol 27, each regular file has a number, which must differ.
            converted.hard_link = match &entry.inode {
                Some(inode) => HardLink::Inode {
                    dev: inode.dev.cast_signed(),
                    inode: inode.ino.cast_signed(),
                },
                None => HardLink::Inode {
                    dev: i64::MAX - 1,
                    inode: self.encoder.next_index().into(),
                },
            };
            if entry.inode.is_none() && self.protocol > 27 {
                converted.hard_link = HardLink::None;
            }
        } else if let Some(inode) = &entry.inode {
            let index = self.encoder.next_index();
            let first = *self.links.entry((inode.dev, inode.ino)).or_insert(index);
            converted.hard_link = if first == index {
                HardLink::First
            } else {
                HardLink::Member(first)
            };
        }
        converted
    }

    /// Appends a listing. `id`: its number; `None` if the sender has sent none, because nothing takes part but the root and
    /// arguments that do not exist.
    pub(super) fn listing(
        &mut self,
        listing: DirListing,
        id: Option<DirId>,
        indices: &mut NdxEncoder,
        out: &mut Vec<u8>,
    ) {
        self.learn(&listing.ids);
        let own = if self.is_incremental {
            self.lists_before(&listing.path, indices, out)
        } else {
            None
        };
        let first = self.encoder.next_index();
        let root = self.root.take();
        let has_root = root.is_some() && listing.path.is_root();
        if let Some(mut root) = root
            && has_root
        {
            // That `./name` implies it, as the leading elements below, does not make its other content extra.
            root.is_top_dir = listing.may_delete || self.protocol >= 30;
            root.has_content = listing.may_delete;
            self.encoder.entry(&root, out);
            if self.is_incremental {
                self.next_dir += 1;
            } else {
                self.all.push((b".".to_vec(), true, None));
            }
        }
        // If several arguments name one entry, the destination is a directory for the receiver, too.
        let is_twice = self.has_several
            && self.missing.is_empty()
            && listing.path.is_root()
            && !has_root
            && listing.list.len() == 1;
        let mut gaps = Vec::new();
        let mut subs = listing.subs.iter();
        let mut below = Vec::new();
        for (at, entry) in (0..).zip(&listing.list.entries) {
            let name = listing.list.name(entry);
            let path = path::join(listing.path.as_bytes(), name);
            let mut converted = self.entry(path.clone(), entry);
            let mut times = 1;
            if entry.is_dir() {
                let sub = subs.next().copied().unwrap_or_default();
                converted.has_content = sub.is_walked && !sub.is_named;
                // A leading element of an argument, also if another one names it. The receiver gives no attributes to
                // such a directory under --no-implied-dirs, but must expect its list.
                let implies = !self.no_implied_dirs || self.is_incremental;
                let is_leading = sub.is_implied || sub.is_walked && sub.is_named && implies;
                let is_marked = is_leading && self.protocol >= 30;
                converted.is_top_dir =
                    converted.has_content && (listing.is_named || self.is_flat) || is_marked;
                let base = listing
                    .shown
                    .get(entry.origin as usize)
                    .map_or(listing.path.as_bytes(), Vec::as_slice);
                let own = OwnEntry {
                    path: listing.path.join(name),
                    entry: entry.clone(),
                    shown: path::join(base, name),
                };
                below.push((self.next_dir, own));
                self.next_dir += 1;
                // Under `-m`, the receiver keeps an empty directory that is in a whole list twice.
                times += usize::from(sub.is_repeated && !self.is_incremental);
            }
            if is_twice && times == 1 {
                times += 1;
                gaps.push(1);
                // The receiver keeps the first one, but also numbers the other one.
                self.next_dir += i32::from(entry.is_dir());
            }
            for _ in 0..times {
                self.encoder.entry(&converted, out);
            }
            if !self.is_incremental {
                let file = FileId {
                    dir: listing.id,
                    entry: at,
                };
                let listed = (path, entry.is_dir(), Some(file));
                self.all.extend(std::iter::repeat_n(listed, times));
            }
        }
        gaps.extend(self.missing_args(&listing.list, has_root, out));
        let count = self.encoder.next_index() - first;
        let mut shared = self.state.shared.lock();
        if self.is_incremental {
            shared.lists.push(SentList {
                first,
                count,
                dir: id,
                has_root,
                gaps,
                own: own.map(Box::new),
            });
            self.dirs.extend(below.into_iter().rev());
        }
        if let Some(id) = id {
            shared.listings.insert(
                id,
                SentListing {
                    path: listing.path,
                    list: listing.list,
                    shown: listing.shown,
                },
            );
        }
        drop(shared);
        if self.is_incremental {
            self.end_list(out);
            self.report_listed();
        }
    }

    /// Appends the arguments that do not exist, which are in the first list. Returns their places in that list.
    fn missing_args(&mut self, list: &DirList, has_root: bool, out: &mut Vec<u8>) -> Vec<i32> {
        let mut missing = std::mem::take(&mut self.missing);
        missing.sort_by(|a, b| compare_paths((a.as_bytes(), false), (b.as_bytes(), false)));
        let is_before = |entry: &Entry, path: &RelPath| {
            compare_paths((list.name(entry), entry.is_dir()), (path.as_bytes(), false)).is_le()
        };
        let mut gaps = Vec::new();
        for path in missing {
            self.encoder.entry(
                &FileEntry::new(charset::line_to_wire(path.as_bytes()), 0),
                out,
            );
            let before = match charset::of_names() {
                Some(_) => list.entries.len(),
                None => list
                    .entries
                    .partition_point(|entry| is_before(entry, &path)),
            };
            let before = before + gaps.len();
            gaps.push(before as i32 + i32::from(has_root));
            if !self.is_incremental {
                self.all.push((path.as_bytes().to_vec(), false, None));
            }
        }
        gaps
    }

    /// Reports how long the lists are.
    fn report_listed(&self) {
        if self.wants.progress || self.wants.whole_list {
            let entries = self.state.shared.lock().entries();
            // The end of the lists may follow content.
            let bytes = self.listed_bytes;
            let complete = self.dirs.is_empty();
            self.reports.events.push(
                Event::Listed {
                    entries,
                    bytes,
                    complete,
                },
                0,
            );
        }
    }

    fn end_list(&mut self, out: &mut Vec<u8>) {
        self.sent_io_error = self.reports.io_error.load(Ordering::Relaxed);
        self.encoder
            .end(self.sent_io_error, &IdLists::default(), out);
    }

    /// Announces the list of a directory, after empty lists for those before it that have no listing. Returns its entry.
    fn lists_before(
        &mut self,
        path: &RelPath,
        indices: &mut NdxEncoder,
        out: &mut Vec<u8>,
    ) -> Option<OwnEntry> {
        if !std::mem::replace(&mut self.has_first, true) {
            return None;
        }
        // From the end, where the next directory is.
        if !self.dirs.iter().rev().any(|(_, own)| own.path == *path) {
            return None;
        }
        while let Some((number, own)) = self.dirs.pop() {
            indices.encode(Ndx::List(number), out);
            if own.path == *path {
                return Some(own);
            }
            self.empty_list(Some(own), out);
        }
        None
    }

    fn empty_list(&mut self, own: Option<OwnEntry>, out: &mut Vec<u8>) {
        let first = self.encoder.next_index();
        let own = own.map(Box::new);
        let list = SentList {
            first,
            count: 0,
            dir: None,
            has_root: false,
            gaps: Vec::new(),
            own,
        };
        self.state.shared.lock().lists.push(list);
        self.end_list(out);
    }

    /// Appends the end of all lists.
    pub(super) fn end_all(&mut self, indices: &mut NdxEncoder, out: &mut Vec<u8>) {
        if self.root.is_some() || !self.missing.is_empty() {
            // Nothing else takes part.
            self.listing(DirListing::default(), None, indices, out);
        }
        if self.is_incremental {
            if !std::mem::replace(&mut self.has_first, true) {
                self.empty_list(None, out);
            }
            while let Some((number, own)) = self.dirs.pop() {
                indices.encode(Ndx::List(number), out);
                self.empty_list(Some(own), out);
            }
            indices.encode(Ndx::ListsEnd, out);
        } else {
            let mut ids = IdLists::default();
            for ((is_group, id), name) in self.names.drain() {
                match (is_group, id) {
                    (false, 0) => ids.root_user = name,
                    (true, 0) => ids.root_group = name,
                    (false, _) => ids.users.push((id, name)),
                    (true, _) => ids.groups.push((id, name)),
                }
            }
            self.sent_io_error = self.reports.io_error.load(Ordering::Relaxed);
            self.encoder.end(self.sent_io_error, &ids, out);
            let mut all = std::mem::take(&mut self.all);
            let is_root = |path: &[u8]| path == b".";
            match self.protocol {
                // Entries are numbered in the order of sending.
                _ if charset::of_names().is_some() => {}
                ..29 => all.sort_by(|a, b| a.0.cmp(&b.0)),
                29.. => all.sort_by(|a, b| {
                    is_root(&b.0)
                        .cmp(&is_root(&a.0))
                        .then_with(|| compare_paths((&a.0, a.1), (&b.0, b.1)))
                }),
            }
            let mut shared = self.state.shared.lock();
            let count = all.len() as i32;
            let list = SentList {
                first: 0,
                count,
                dir: None,
                has_root: false,
                gaps: Vec::new(),
                own: None,
            };
            shared.lists.push(list);
            shared.sorted = all.into_iter().map(|(_, _, file)| file).collect();
        }
        self.state.shared.lock().has_all_lists = true;
        self.report_listed();
    }
}

/// Returns the names of user and group 0, which listings leave out.
fn names_of_root(numeric_ids: bool) -> HashMap<(bool, u32), Vec<u8>> {
    let ids = Ids::new();
    let names = [
        (false, ids.name(IdClass::User, 0)),
        (true, ids.name(IdClass::Group, 0)),
    ];
    let names = names
        .into_iter()
        .filter_map(|(is_group, name)| Some(((is_group, 0), name?.to_vec())));
    if numeric_ids {
        HashMap::new()
    } else {
        names.collect()
    }
}
