//! Directory digests: two peers compare them to find the directories that need not be listed.
//!
//! A digest covers everything that a comparison would examine, so equal digests mean that nothing would be done. If
//! digests differ although nothing would be done, that costs only a few bytes. Under `-c`, it covers the digests of the
//! files, if both ends keep these (`--checksum-cache`).

#[cfg(test)]
mod tests;

use crate::digest::{KeyedHasher, PlainDigest};
use crate::flist::entry::S_IFMT;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::ids::{Ids, Name};
use crate::options::permits::Permits;
use crate::options::{CheckMode, IdFrom, IdMap, IdTo, Options, PeerLinks, Preserve};
use crate::path::RelPath;
use crate::plan::idmap::{IdClass, first_match};
use crate::plan::quick_check::examined_time;
use crate::plan::{Compared, safelink};
use crate::proto::DirListing;
use crate::proto::message::DIGEST_LEN_BYTES;
use crate::session::source_prefetch::{ListingDigest, ListingDigester};
use std::collections::HashMap;

/// Computes directory digests.
pub struct Digester<'a> {
    /// The session's key.
    pub key: [u8; 16],
    pub options: &'a Options,
    /// These are the sender's digests.
    pub is_sender: bool,
    /// The receiver may change owners, so they are compared, and make devices.
    pub is_super: bool,
    /// The user and group names of this machine.
    pub ids: &'a Ids,
}

/// Digests the listings of a sender.
pub struct SourceDigester<'a> {
    /// The session's key.
    pub key: [u8; 16],
    pub options: &'a Options,
}

impl ListingDigester for SourceDigester<'_> {
    fn digest_listing(
        &self,
        listing: &DirListing,
        is_super: bool,
        ids: &Ids,
    ) -> Option<ListingDigest> {
        let digester = Digester {
            key: self.key,
            options: self.options,
            is_sender: true,
            is_super,
            ids,
        };
        digester.digest(&listing.path, &listing.list, &|_| true)
    }
}

/// The encoded ids of a directory.
type IdTexts = HashMap<(IdClass, u32), Vec<u8>>;

impl Digester<'_> {
    /// Returns the digest of the entries of a sorted list that take part. `None` if the directory must be listed in any
    /// case.
    pub fn digest(
        &self,
        path: &RelPath,
        list: &DirList,
        takes_part: &dyn Fn(&Entry) -> bool,
    ) -> Option<[u8; DIGEST_LEN_BYTES]> {
        // The ends may have different options (`--remote-option`).
        if !Permits::new(self.options, false).compare {
            return None;
        }
        let mut text = Vec::with_capacity(64 * (list.len() + 1));
        put_bytes(&mut text, path.as_bytes());
        put_number(&mut text, self.compared());
        self.put_maps(&mut text, IdClass::User);
        self.put_maps(&mut text, IdClass::Group);
        let mut ids = IdTexts::new();
        for entry in list.entries.iter().filter(|entry| takes_part(entry)) {
            put_bytes(&mut text, list.name(entry));
            let content = list.plain_digest(entry);
            self.put(&mut text, &mut ids, (entry, content), path.depth())?;
        }
        let mut hasher = KeyedHasher::new(&self.key);
        hasher.update(&text);
        Some(hasher.finish())
    }

    /// Adds an entry and the digest of its content. `ids`: the ids in this directory so far. `depth`: see
    /// [`safelink::sanitize`].
    fn put(
        &self,
        text: &mut Vec<u8>,
        ids: &mut IdTexts,
        (entry, content): (&Entry, Option<&PlainDigest>),
        depth: usize,
    ) -> Option<()> {
        let preserve = &self.options.preserve;
        let kind = entry.kind();
        let is_kept = match kind {
            Kind::File | Kind::Dir => true,
            Kind::Symlink => preserve.links,
            // An ordinary user's receiver reports each device that it leaves alone.
            Kind::Device => preserve.devices && self.is_super && !preserve.drop_devices,
            Kind::Special => preserve.specials && !preserve.drop_devices,
        };
        // Other names of the file may be in directories that are listed.
        let is_in_group = self.is_sender && preserve.hard_links && entry.inode.is_some();
        // A receiver compares entries after it has changed those of the source.
        let is_changed = !self.is_sender
            && (kind == Kind::Symlink && self.changes_target(entry.target(), depth)
                || preserve.strips_privileges && entry.has_privileges());
        if !is_kept || entry.is_unsettled() || is_in_group || is_changed {
            return None;
        }
        let Compared {
            perms,
            mtime,
            owner,
            group,
            atime,
            acls,
            xattrs,
        } = Compared::for_kind(kind, preserve);
        // An ACL may contain ids that each side maps itself. Access times are sent with the listing.
        if atime || acls && entry.acls() != (b"", b"") {
            return None;
        }
        put_number(text, u64::from(entry.mode & S_IFMT | perms.of(entry.mode)));
        if kind == Kind::File {
            put_number(text, entry.len_bytes);
        }
        let is_compared_by_content =
            kind == Kind::File && self.options.check.mode == CheckMode::Digest;
        if is_compared_by_content {
            // The sender could not read it, or the receiver has no digest that it keeps: it must be compared.
            text.extend_from_slice(content?);
        }
        if kind == Kind::File || mtime {
            // A file of equal content gets the exact time.
            let time = if is_compared_by_content {
                entry.mtime
            } else {
                examined_time(entry.mtime, self.options.check.window_secs)
            };
            put_number(text, time.secs as u64);
            put_number(text, u64::from(time.nanos));
        }
        let mut put_id = |class, id| {
            text.extend(
                &*ids
                    .entry((class, id))
                    .or_insert_with(|| self.id_text(class, id)),
            )
        };
        if owner && self.is_super {
            put_id(IdClass::User, entry.uid);
        }
        if group {
            put_id(IdClass::Group, entry.gid);
        }
        if kind == Kind::Symlink {
            put_bytes(text, entry.target());
        }
        if kind == Kind::Device {
            put_number(text, entry.extra.as_ref().map_or(0, |extra| extra.rdev));
        }
        let xattrs = if xattrs { entry.xattrs() } else { &[] };
        put_number(text, xattrs.len() as u64);
        for (name, value) in xattrs {
            put_bytes(text, name);
            put_bytes(text, value);
        }
        Some(())
    }

    /// Returns whether a symlink with this target would not arrive as it is.
    fn changes_target(&self, target: &[u8], depth: usize) -> bool {
        match self.options.preserve.peer_links {
            PeerLinks::AsSent => false,
            PeerLinks::Munged => true,
            PeerLinks::Sanitized => safelink::sanitize(target, depth) != target,
        }
    }

    /// Encodes an id as the right side of its map, else as its name, else as its number. The texts of both ends are the
    /// same only if the receiver maps the sender's id to its own, provided that [`put_maps`](Self::put_maps) added the
    /// same.
    fn id_text(&self, class: IdClass, id: u32) -> Vec<u8> {
        let name = self.name(class, id);
        let number = IdTo::Id(id);
        let name_to = match &name {
            // Unless a pair matches, id 0 is the same user everywhere.
            Some(name) if id != 0 => Some(IdTo::Name(name.to_vec())),
            _ => None,
        };
        let to = if self.is_sender {
            let mapped = first_match(self.maps(class), |map| &map.from, id, name.as_deref());
            mapped.map(|map| &map.to).or(name_to.as_ref())
        } else {
            let is_id = |to: &&IdTo| match to {
                IdTo::Id(number) => *number == id,
                IdTo::Name(name) => self.ids.id(class, name) == Some(id),
            };
            self.maps(class)
                .iter()
                .map(|map| &map.to)
                .chain(&name_to)
                .find(is_id)
        };
        let mut text = Vec::new();
        put_target(&mut text, to.unwrap_or(&number));
        text
    }

    /// Returns which attributes of entries are compared, one per bit.
    fn compared(&self) -> u64 {
        let Preserve {
            perms,
            executability,
            times,
            omit_dir_times,
            omit_link_times,
            owner,
            group,
            acls,
            xattrs,
            ..
        } = self.options.preserve;
        let owner = owner && self.is_super;
        let nanos = self.options.check.window_secs < 0;
        let contents = self.options.check.mode == CheckMode::Digest;
        let xattrs = xattrs > 0;
        [
            perms,
            executability,
            times,
            omit_dir_times,
            omit_link_times,
            owner,
            group,
            acls,
            xattrs,
            nanos,
            contents,
        ]
        .iter()
        .rfold(0, |bits, &is_on| bits << 1 | u64::from(is_on))
    }

    /// Adds what both ends must have in common to map ids in the same way.
    fn put_maps(&self, text: &mut Vec<u8>, class: IdClass) {
        let maps = self.maps(class);
        put_number(text, maps.len() as u64);
        if maps.is_empty() {
            return;
        }
        text.push(u8::from(self.options.preserve.numeric_ids));
        for IdMap { from, to } in maps {
            match from {
                IdFrom::Name(pattern) => put_target(text, &IdTo::Name(pattern.clone())),
                IdFrom::Range(low, high) => {
                    put_target(text, &IdTo::Id(*low));
                    put_number(text, u64::from(*high));
                }
            }
            put_target(text, to);
        }
    }

    fn maps(&self, class: IdClass) -> &[IdMap] {
        match class {
            IdClass::User => &self.options.preserve.usermap,
            IdClass::Group => &self.options.preserve.groupmap,
        }
    }

    /// Returns the name of an id, if names count.
    fn name(&self, class: IdClass, id: u32) -> Option<Name> {
        if self.options.preserve.numeric_ids {
            None
        } else {
            self.ids.name(class, id)
        }
    }
}

fn put_target(text: &mut Vec<u8>, to: &IdTo) {
    match to {
        IdTo::Name(name) => {
            text.push(b'n');
            put_bytes(text, name);
        }
        IdTo::Id(id) => {
            text.push(b'#');
            put_number(text, u64::from(*id));
        }
    }
}

/// Each item has a fixed length or is preceded by its length, so no two lists have the same encoding.
fn put_bytes(text: &mut Vec<u8>, bytes: &[u8]) {
    put_number(text, bytes.len() as u64);
    text.extend_from_slice(bytes);
}

fn put_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(&number.to_le_bytes());
}
