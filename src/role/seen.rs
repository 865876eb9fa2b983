//! What a directory is, in few bytes: the digest by which two peers find out which directories they need not speak of.
//!
//! It covers what a comparison would look at, so that equal digests mean that nothing would be done. That it differs where
//! nothing would be done either costs a few bytes and nothing else.

use super::receiving::needs_whole_list;
use crate::digest::KeyedHasher;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::ids::Ids;
use crate::options::{CheckMode, Options, Recurse, RemoveSource, When};
use crate::path::RelPath;
use crate::plan::keeps_time;
use crate::proto::message::DIGEST_LEN_BYTES;
use crate::report::event::Wants;

/// Whether digests can stand for directories under these options: only if nothing is said or done about what is the same,
/// and if both sides can tell by what they see alone.
pub fn can_compare(options: &Options, wants: Wants) -> bool {
    let preserve = &options.preserve;
    options.select.recurse == Recurse::Full
        && options.check.mode != CheckMode::Digest
        && options.check.mode != CheckMode::IgnoreTimes
        && options.check.window_secs <= 0
        && !needs_whole_list(options, wants)
        && !(wants.unchanged || wants.progress)
        && options.select.remove_source == RemoveSource::No
        && options.delta.alt_dest.is_none()
        && !preserve.acls
        && !preserve.atimes
        && preserve.usermap.is_empty()
        && preserve.groupmap.is_empty()
        && !preserve.keep_dirlinks
        && !preserve.munge_links
        && options.output.debug.filter == 0
        && !matches!(options.delete.when, Some(When::Before | When::After))
}

/// Whether the data of files may be sent before the receiver asked for it, where it has no directory for them.
pub fn may_send_unasked(options: &Options, wants: Wants) -> bool {
    !options.dry_run
        && !needs_whole_list(options, wants)
        && options.delta.alt_dest.is_none()
        && options.select.max_size_bytes.is_none()
        && options.select.min_size_bytes.is_none()
        && !options.check.existing_only
        && options.place.append.is_none()
}

/// Makes digests of directories.
pub struct Digester<'a> {
    /// The session's key.
    pub key: [u8; 16],
    /// The options.
    pub options: &'a Options,
    /// The receiver may give entries away, so owners are compared.
    pub owners: bool,
    /// The names of this side.
    pub ids: &'a Ids,
}

impl Digester<'_> {
    /// The digest of those entries of a sorted list that take part; `None`: something in it is told in any case.
    pub fn digest(
        &self,
        path: &RelPath,
        list: &DirList,
        takes_part: &dyn Fn(&Entry) -> bool,
    ) -> Option<[u8; DIGEST_LEN_BYTES]> {
        let mut text = Vec::with_capacity(64 * (list.len() + 1));
        put_bytes(&mut text, path.as_bytes());
        for entry in list.entries.iter().filter(|entry| takes_part(entry)) {
            put_bytes(&mut text, list.name(entry));
            self.put(&mut text, entry)?;
        }
        let mut hasher = KeyedHasher::new(&self.key);
        hasher.update(&text);
        Some(hasher.finish())
    }

    fn put(&self, text: &mut Vec<u8>, entry: &Entry) -> Option<()> {
        let preserve = &self.options.preserve;
        let kind = entry.kind();
        let is_kept = match kind {
            Kind::File | Kind::Dir => true,
            Kind::Symlink => preserve.links,
            Kind::Device => preserve.devices,
            Kind::Special => preserve.specials,
        };
        if !is_kept || entry.is_unsettled() {
            return None;
        }
        let bits = match (kind, preserve.perms, preserve.executability) {
            (Kind::Symlink, _, _) => 0,
            (_, true, _) => 0o7777,
            (_, false, true) => 0o111,
            (_, false, false) => 0,
        };
        put_number(text, u64::from(entry.mode & (0o170000 | bits)));
        if kind == Kind::File {
            put_number(text, entry.len_bytes);
        }
        if kind == Kind::File || keeps_time(kind, preserve) {
            put_number(text, entry.mtime.secs as u64);
            // Without a window whole seconds are compared, and so they are here.
            put_number(text, if self.options.check.window_secs < 0 { u64::from(entry.mtime.nanos) } else { 0 });
        }
        if preserve.owner && self.owners {
            self.put_id(text, entry.uid, |id| self.ids.user_name(id), |name| self.ids.user_id(name));
        }
        if preserve.group {
            self.put_id(text, entry.gid, |id| self.ids.group_name(id), |name| self.ids.group_id(name));
        }
        if kind == Kind::Symlink {
            put_bytes(text, entry.target());
        }
        if kind == Kind::Device {
            put_number(text, entry.extra.as_ref().map_or(0, |extra| extra.rdev));
        }
        put_number(text, entry.xattrs().len() as u64);
        for (name, value) in entry.xattrs() {
            put_bytes(text, name);
            put_bytes(text, value);
        }
        Some(())
    }

    /// An id by its name, where that names it and no other; 0 has the same number everywhere.
    fn put_id<N: AsRef<[u8]>>(
        &self,
        text: &mut Vec<u8>,
        id: u32,
        name: impl Fn(u32) -> Option<N>,
        named: impl Fn(&[u8]) -> Option<u32>,
    ) {
        let known = || name(id).filter(|name| named(name.as_ref()) == Some(id));
        match if id == 0 || self.options.preserve.numeric_ids { None } else { known() } {
            Some(name) => {
                text.push(b'n');
                put_bytes(text, name.as_ref());
            }
            None => {
                text.push(b'#');
                put_number(text, u64::from(id));
            }
        }
    }
}

/// Each item says its length or has a fixed one, so that no two lists are spelled alike.
fn put_bytes(text: &mut Vec<u8>, bytes: &[u8]) {
    put_number(text, bytes.len() as u64);
    text.extend_from_slice(bytes);
}

fn put_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(&number.to_le_bytes());
}
