//! Encodes file lists: entries compressed against their predecessors, ends of lists, and lists of user and group names.

use super::{
    CRTIME_EQ_MTIME, EXTENDED, FileEntry, GROUP_NAME_FOLLOWS, HLINK_FIRST, HLINKED, HardLink,
    IO_ERROR_ENDLIST, IdLists, LONG_NAME, ListOptions, MOD_NSEC, NO_CONTENT_DIR, Position,
    Previous, RDEV_MINOR_8, SAME_ATIME, SAME_DEV_29, SAME_GID, SAME_MODE, SAME_NAME, SAME_RDEV_27,
    SAME_RDEV_MAJOR, SAME_TIME, SAME_UID, TOP_DIR, USER_NAME_FOLLOWS, packed_rdev,
};
use crate::flist::Kind;
use crate::proto::rsync::attributes::{Acl, AttributeEncoder, IdsWithName};
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::number::WriteWire as _;
use std::sync::Arc;

/// Encodes the lists of a connection.
#[derive(Debug)]
pub struct ListEncoder {
    options: ListOptions,
    previous: Previous,
    position: Position,
    known: IdsWithName,
    attributes: AttributeEncoder,
}

impl ListEncoder {
    /// Creates the encoder of a new connection.
    pub fn new(options: ListOptions) -> ListEncoder {
        let position = Position::first(&options);
        let previous = Previous::default();
        let known = IdsWithName::default();
        ListEncoder {
            options,
            previous,
            position,
            known,
            attributes: AttributeEncoder::default(),
        }
    }

    /// Returns the index that the next entry has in the order of sending.
    pub fn next_index(&self) -> i32 {
        self.position.start.saturating_add(self.position.count)
    }

    /// Appends an entry. The path must have 1 to [`PATH_MAX_BYTES`](crate::proto::rsync::limits::PATH_MAX_BYTES)
    /// bytes, a symlink a text.
    pub fn entry(&mut self, entry: &FileEntry, out: &mut Vec<u8>) {
        let flags = self.flags(entry);
        let kind = entry.kind();
        self.put_flags(flags, kind == Kind::Dir, out);
        self.put_name(entry, flags, out);
        self.position.count = self.position.count.saturating_add(1);
        let is_abbreviated = match entry.hard_link {
            HardLink::Member(first) if flags & HLINKED != 0 => {
                out.put_varint(first);
                first >= self.position.start
            }
            HardLink::None | HardLink::First | HardLink::Member(_) | HardLink::Inode { .. } => {
                false
            }
        };
        if !is_abbreviated {
            self.put_fields(entry, kind, flags, out);
        }
        if self.options.acls && kind != Kind::Symlink {
            let none = || Arc::new(Acl::default());
            let access = entry.access_acl.clone().unwrap_or_else(none);
            self.attributes.access_acl(&access, &mut self.known, out);
            if kind == Kind::Dir {
                let default = entry.default_acl.clone().unwrap_or_else(none);
                self.attributes.default_acl(&default, &mut self.known, out);
            }
        }
        if self.options.xattrs {
            let list = entry
                .xattrs
                .as_ref()
                .map_or_else(Arc::default, |shared| shared.list.clone());
            self.attributes.xattrs(&list, out);
        }
    }

    /// Determines the flags, and remembers the fields for the next entry.
    fn flags(&mut self, entry: &FileEntry) -> u32 {
        let options = &self.options;
        let previous = &mut self.previous;
        let kind = entry.kind();
        let is_first = previous.path.is_empty();
        let mut flags = 0;
        let mut set = |bit: u32, is_set: bool| flags |= if is_set { bit } else { 0 };
        if kind == Kind::Dir {
            set(TOP_DIR, entry.is_top_dir);
            set(NO_CONTENT_DIR, options.protocol >= 30 && !entry.has_content);
        }
        set(SAME_MODE, replace(&mut previous.mode, entry.mode));
        if !options.owners || replace(&mut previous.uid, entry.uid) && !is_first {
            set(SAME_UID, true);
        } else if options.has_inline_names() && entry.user.is_some() {
            set(USER_NAME_FOLLOWS, self.known.is_new(true, entry.uid));
        }
        if !options.groups || replace(&mut previous.gid, entry.gid) && !is_first {
            set(SAME_GID, true);
        } else if options.has_inline_names() && entry.group.is_some() {
            set(GROUP_NAME_FOLLOWS, self.known.is_new(false, entry.gid));
        }
        set(SAME_TIME, replace(&mut previous.mtime, entry.mtime));
        set(MOD_NSEC, options.protocol >= 31 && entry.mtime_nanos != 0);
        if options.has_atime(kind) {
            let is_same = replace(&mut previous.atime, entry.atime);
            // The flags of protocol 27 have no room for it.
            set(SAME_ATIME, is_same && options.protocol > 27);
        }
        if options.crtimes {
            set(
                CRTIME_EQ_MTIME,
                options.has_varint_flags() && entry.crtime == entry.mtime,
            );
        }
        match (options.has_rdev(entry.mode), options.protocol) {
            (true, ..=27) if kind == Kind::Device => {
                set(
                    SAME_RDEV_27,
                    replace(&mut previous.rdev, packed_rdev(entry.rdev)),
                );
            }
            (true, ..=27) => set(SAME_RDEV_27, true),
            (false, ..=27) => previous.rdev = 0,
            (true, protocol) => {
                let is_same = kind == Kind::Special || replace(&mut previous.major, entry.rdev.0);
                set(SAME_RDEV_MAJOR, is_same);
                set(
                    RDEV_MINOR_8,
                    protocol < 30 && (kind == Kind::Special || entry.rdev.1 <= 0xff),
                );
            }
            (false, _) => {}
        }
        if options.hard_links {
            match entry.hard_link {
                HardLink::None => {}
                HardLink::First => set(HLINKED | HLINK_FIRST, options.protocol >= 30),
                HardLink::Member(_) => set(HLINKED, options.protocol >= 30),
                HardLink::Inode { dev, .. } if matches!(options.protocol, 28 | 29) => {
                    set(HLINKED, true);
                    set(SAME_DEV_29, replace(&mut previous.dev, dev));
                }
                HardLink::Inode { .. } => {}
            }
        }
        let shared = shared_prefix(&previous.path, &entry.path);
        set(SAME_NAME, shared > 0);
        set(LONG_NAME, entry.path.len() - shared > 255);
        flags
    }

    fn put_flags(&self, flags: u32, is_dir: bool, out: &mut Vec<u8>) {
        match self.options.protocol {
            _ if self.options.has_varint_flags() => {
                out.put_varint(if flags == 0 { EXTENDED } else { flags }.cast_signed());
            }
            28.. if flags > 0xff || flags == 0 && is_dir => {
                out.put_shortint((flags | EXTENDED) as u16)
            }
            _ if flags & 0xff == 0 => out.put(&[if is_dir { LONG_NAME } else { TOP_DIR } as u8]),
            _ => out.put(&[flags as u8]),
        }
    }

    fn put_name(&mut self, entry: &FileEntry, flags: u32, out: &mut Vec<u8>) {
        let shared = shared_prefix(&self.previous.path, &entry.path);
        let tail = &entry.path[shared..];
        if shared > 0 {
            out.put(&[shared as u8]);
        }
        // At protocol 27, a directory without flags gets this one so that its flags are not those of the end.
        let is_filler = self.options.protocol < 28 && flags & 0xff == 0 && entry.is_dir();
        if flags & LONG_NAME != 0 || is_filler {
            out.put_varint30(self.options.protocol, tail.len() as i32);
        } else {
            out.put(&[tail.len() as u8]);
        }
        out.put(tail);
        self.previous.path.clone_from(&entry.path);
    }

    fn put_fields(&self, entry: &FileEntry, kind: Kind, flags: u32, out: &mut Vec<u8>) {
        let options = &self.options;
        let protocol = self.options.protocol;
        out.put_varlong30(protocol, entry.size, 3);
        if flags & SAME_TIME == 0 {
            match protocol {
                30.. => out.put_varlong(entry.mtime, 4),
                _ => out.put(&(entry.mtime as u32).to_le_bytes()),
            }
        }
        if flags & MOD_NSEC != 0 {
            out.put_varint(entry.mtime_nanos.cast_signed());
        }
        if options.crtimes && flags & CRTIME_EQ_MTIME == 0 {
            out.put_varlong(entry.crtime, 4);
        }
        if flags & SAME_MODE == 0 {
            out.put_int(entry.mode.cast_signed());
        }
        if options.has_atime(kind) && flags & SAME_ATIME == 0 {
            out.put_varlong(entry.atime, 4);
        }
        let mut put_id = |id: u32, has_name: bool, name: &Option<Vec<u8>>| {
            out.put_varint30(protocol, id.cast_signed());
            if has_name && let Some(name) = name {
                out.put_short_string(name);
            }
        };
        if flags & SAME_UID == 0 {
            put_id(
                entry.uid,
                protocol >= 30 && flags & USER_NAME_FOLLOWS != 0,
                &entry.user,
            );
        }
        if flags & SAME_GID == 0 {
            put_id(
                entry.gid,
                protocol >= 30 && flags & GROUP_NAME_FOLLOWS != 0,
                &entry.group,
            );
        }
        if options.has_rdev(entry.mode) {
            let (major, minor) = if kind == Kind::Special {
                (0, 0)
            } else {
                entry.rdev
            };
            if protocol < 28 {
                if flags & SAME_RDEV_27 == 0 {
                    out.put(&packed_rdev(entry.rdev).to_le_bytes());
                }
            } else {
                if flags & SAME_RDEV_MAJOR == 0 {
                    out.put_varint30(protocol, major.cast_signed());
                }
                match protocol {
                    30.. => out.put_varint(minor.cast_signed()),
                    _ if flags & RDEV_MINOR_8 != 0 => out.put(&[minor as u8]),
                    _ => out.put_int(minor.cast_signed()),
                }
            }
        }
        if kind == Kind::Symlink && options.links {
            out.put_varint30(protocol, entry.target.len() as i32);
            out.put(&entry.target);
        }
        if options.has_inode(kind, flags) {
            let (dev, inode) = match entry.hard_link {
                HardLink::Inode { dev, inode } => (dev, inode),
                HardLink::None | HardLink::First | HardLink::Member(_) => (0, 0),
            };
            if protocol < 28 || flags & SAME_DEV_29 == 0 {
                out.put_longint(dev.wrapping_add(1));
            }
            out.put_longint(inode);
        }
        let len = options.digest_len(kind);
        if kind == Kind::File && entry.digest.len() == len {
            out.put(&entry.digest);
        } else {
            out.resize(out.len() + len, 0);
        }
    }

    /// Appends the end of a list, with the names of users and groups if the connection transfers them there. The next
    /// entry belongs to the next list.
    pub fn end(&mut self, io_error: i32, ids: &IdLists, out: &mut Vec<u8>) {
        let options = &self.options;
        let protocol = self.options.protocol;
        if options.has_varint_flags() {
            out.put_varint(0);
            out.put_varint(io_error);
        } else if io_error != 0 && options.has_safe_end() {
            out.put_shortint((IO_ERROR_ENDLIST | EXTENDED) as u16);
            out.put_varint(io_error);
        } else {
            out.put(&[0]);
        }
        let mut put_list = |list: &[(u32, Vec<u8>)], root: &[u8]| {
            for (id, name) in list {
                out.put_varint30(protocol, id.cast_signed());
                out.put_short_string(name);
            }
            out.put_varint30(protocol, 0);
            if options.compat.has(CompatFlags::ID0_NAMES) {
                out.put_short_string(root);
            }
        };
        let (has_users, has_groups) = options.id_lists();
        if has_users {
            put_list(&ids.users, &ids.root_user);
        }
        if has_groups {
            put_list(&ids.groups, &ids.root_group);
        }
        if protocol < 30 {
            out.put_int(io_error);
        }
        self.position = self.position.next_list();
    }
}

/// Stores a value and returns whether it was the same.
fn replace<T: PartialEq>(place: &mut T, value: T) -> bool {
    std::mem::replace(place, value) == *place
}

/// Returns the number of bytes that two paths share, at most 255.
fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter()
        .zip(b)
        .take(255)
        .take_while(|(a, b)| a == b)
        .count()
}
