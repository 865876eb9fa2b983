//! File lists: entries compressed against their predecessors, ends of lists, and lists of user and group names.

use super::attributes::{Acl, AttributeDecoder, AttributeEncoder, IdsWithName, SharedXattrs};
use super::decode_error::{Result, checked, violation};
use super::handshake::CompatFlags;
use super::limits::{ENTRIES_MAX, IDS_MAX, PATH_MAX_BYTES, TARGET_MAX_BYTES};
use super::number::{ReadWire as _, WriteWire as _};
use crate::exit::Exit;
use crate::flist::Kind;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

/// How an entry is linked to others of the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HardLink {
    /// It is not, or hard links are not preserved.
    #[default]
    None,
    /// From protocol 30 on: the first entry of its group.
    First,
    /// From protocol 30 on: the index of the first entry of its group, counted in the order of sending.
    Member(i32),
    /// Before protocol 30: device and inode number on the sender. Only equality matters.
    Inode {
        /// The device.
        dev: i64,
        /// The inode number.
        inode: i64,
    },
}

/// An entry of a list. Fields that the connection does not transfer keep their defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileEntry {
    /// The path relative to the transfer.
    pub path: Vec<u8>,
    /// Type and permissions, as in `st_mode`; 0 for an argument that does not exist, which the receiver deletes.
    pub mode: u32,
    /// The length in bytes; 0 for devices and specials.
    pub size: i64,
    /// The modification time in seconds.
    pub mtime: i64,
    /// The nanoseconds of the modification time, from protocol 31 on.
    pub mtime_nanos: u32,
    /// The access time in seconds.
    pub atime: i64,
    /// The birth time in seconds.
    pub crtime: i64,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The name of the owner. Encoders send it at the first entry with this id; decoders return it only there.
    pub user: Option<Vec<u8>>,
    /// The name of the group, like the name of the owner.
    pub group: Option<Vec<u8>>,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// The text of a symlink.
    pub target: Vec<u8>,
    /// The digest of a regular file; empty without `--checksum`.
    pub digest: Vec<u8>,
    /// Other entries with the same inode.
    pub hard_link: HardLink,
    /// The access ACL, of all types but symlinks.
    pub access_acl: Option<Arc<Acl>>,
    /// The default ACL of a directory.
    pub default_acl: Option<Arc<Acl>>,
    /// The extended attributes.
    pub xattrs: Option<SharedXattrs>,
    /// Whether it is a directory that an argument names.
    pub is_top_dir: bool,
    /// Whether the content of a directory is part of the transfer. Always true before protocol 30.
    pub has_content: bool,
    /// Whether the list has the directory more than once; see [`super::sort::drop_duplicates`].
    pub is_repeated: bool,
}

impl FileEntry {
    /// Creates an entry with the other fields at their defaults.
    pub fn new(path: impl Into<Vec<u8>>, mode: u32) -> FileEntry {
        FileEntry {
            path: path.into(),
            mode,
            has_content: true,
            ..FileEntry::default()
        }
    }

    /// Returns the kind of the entry. A mode of an unknown type counts as that of a special file.
    pub fn kind(&self) -> Kind {
        Kind::of_mode(self.mode).unwrap_or(Kind::Special)
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == Kind::Dir
    }
}

/// What the lists of a connection contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// The version of the connection.
    pub protocol: u8,
    /// The flags of the connection.
    pub compat: CompatFlags,
    /// `-o`
    pub owners: bool,
    /// `-g`
    pub groups: bool,
    /// `-l`
    pub links: bool,
    /// `--devices`
    pub devices: bool,
    /// `--specials`
    pub specials: bool,
    /// `-H`
    pub hard_links: bool,
    /// `-U`
    pub atimes: bool,
    /// `-N`
    pub crtimes: bool,
    /// `-A`
    pub acls: bool,
    /// `-X`
    pub xattrs: bool,
    /// `--numeric-ids`
    pub numeric_ids: bool,
    /// `-R`: paths may be absolute.
    pub relative: bool,
    /// `-c`: the length of the digests, else 0.
    pub digest_len_bytes: usize,
    /// `--delete-missing-args`: an entry may have the mode 0.
    pub missing_args: bool,
}

impl ListOptions {
    fn is_incremental(&self) -> bool {
        self.compat.has(CompatFlags::INC_RECURSE)
    }

    fn has_varint_flags(&self) -> bool {
        self.compat.has(CompatFlags::VARINT_FLIST_FLAGS)
    }

    /// Whether the end marker of a list can carry an error.
    fn has_safe_end(&self) -> bool {
        self.protocol >= 31 || self.protocol == 30 && self.compat.has(CompatFlags::SAFE_FLIST)
    }

    /// Whether names follow the ids in the entries.
    fn has_inline_names(&self) -> bool {
        self.protocol >= 30 && self.is_incremental() && !self.numeric_ids
    }

    /// Whether lists of user and of group names follow a list.
    fn id_lists(&self) -> (bool, bool) {
        let has_lists = !self.is_incremental() && !self.numeric_ids;
        (
            has_lists && (self.owners || self.acls),
            has_lists && (self.groups || self.acls),
        )
    }

    /// Whether an entry has a device number.
    fn has_rdev(&self, mode: u32) -> bool {
        match Kind::of_mode(mode) {
            Some(Kind::Device) => self.devices,
            Some(Kind::Special) => self.specials && self.protocol < 31,
            Some(Kind::File | Kind::Dir | Kind::Symlink) | None => false,
        }
    }

    /// Whether an entry has an access time.
    fn has_atime(&self, kind: Kind) -> bool {
        self.atimes && kind != Kind::Dir
    }

    /// Whether an entry has a device and inode number in this protocol.
    fn has_inode(&self, kind: Kind, flags: u32) -> bool {
        match self.protocol {
            30.. => false,
            28 | 29 => self.hard_links && flags & HLINKED != 0,
            _ => self.hard_links && kind == Kind::File,
        }
    }

    /// Returns the length of the digest of an entry; 0 if it has none.
    fn digest_len(&self, kind: Kind) -> usize {
        if kind == Kind::File || self.protocol < 28 {
            self.digest_len_bytes
        } else {
            0
        }
    }
}

/// A mode has bits for the type and for the permissions.
const MODE_MAX: u32 = 0o177_777;

// The flags of an entry. Some bits have two meanings, by protocol or type.
const TOP_DIR: u32 = 0x01;
const SAME_MODE: u32 = 0x02;
const SAME_RDEV_27: u32 = 0x04;
const EXTENDED: u32 = 0x04;
const SAME_UID: u32 = 0x08;
const SAME_GID: u32 = 0x10;
const SAME_NAME: u32 = 0x20;
const LONG_NAME: u32 = 0x40;
const SAME_TIME: u32 = 0x80;
const SAME_RDEV_MAJOR: u32 = 0x100;
const NO_CONTENT_DIR: u32 = 0x100;
const HLINKED: u32 = 0x200;
const SAME_DEV_29: u32 = 0x400;
const USER_NAME_FOLLOWS: u32 = 0x400;
const RDEV_MINOR_8: u32 = 0x800;
const GROUP_NAME_FOLLOWS: u32 = 0x800;
const HLINK_FIRST: u32 = 0x1000;
const IO_ERROR_ENDLIST: u32 = 0x1000;
const MOD_NSEC: u32 = 0x2000;
const SAME_ATIME: u32 = 0x4000;
const CRTIME_EQ_MTIME: u32 = 0x20000;

/// The fields of the previous entry. They last for the whole connection.
#[derive(Debug, Clone, Default)]
struct Previous {
    path: Vec<u8>,
    mode: u32,
    mtime: i64,
    atime: i64,
    uid: u32,
    gid: u32,
    major: u32,
    /// At protocol 27, the whole device number.
    rdev: u32,
    /// Before protocol 30, the device of a hard-linked entry.
    dev: i64,
}

/// Names of users and groups, which follow a list without incremental recursion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdLists {
    /// Users, without id 0.
    pub users: Vec<(u32, Vec<u8>)>,
    /// Groups, without id 0.
    pub groups: Vec<(u32, Vec<u8>)>,
    /// The name of user 0; empty if unknown or if the connection does not transfer it.
    pub root_user: Vec<u8>,
    /// The name of group 0, like that of user 0.
    pub root_group: Vec<u8>,
}

/// The position of a list among the lists of a connection.
#[derive(Debug, Clone, Copy)]
struct Position {
    start: i32,
    count: i32,
}

impl Position {
    fn first(options: &ListOptions) -> Position {
        Position {
            start: i32::from(options.is_incremental()),
            count: 0,
        }
    }

    fn next_list(self) -> Position {
        Position {
            start: self.start.saturating_add(self.count).saturating_add(1),
            count: 0,
        }
    }
}

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

    /// Appends an entry. The path must have 1 to [`PATH_MAX_BYTES`] bytes, a symlink a text.
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
            if let (true, Some(name)) = (has_name, name) {
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

/// Returns a device number as Linux stores it in 32 bits.
fn packed_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Splits a device number of Linux.
fn unpacked_rdev(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & !0xff)
}

/// What follows in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListItem {
    /// An entry.
    Entry(Box<FileEntry>),
    /// The end of the list. The next item is the first one of the next list.
    End {
        /// Errors of the sender, as bits.
        io_error: i32,
        /// Names of users and groups.
        ids: IdLists,
    },
}

/// Decodes the lists of a connection.
#[derive(Debug)]
pub struct ListDecoder {
    options: ListOptions,
    previous: Previous,
    position: Position,
    attributes: AttributeDecoder,
    /// The first entries of groups of hard links in this list. The others copy fields from them.
    firsts: HashMap<i32, FileEntry>,
}

impl ListDecoder {
    /// Creates the decoder of a new connection.
    pub fn new(options: ListOptions) -> ListDecoder {
        let previous = Previous::default();
        let position = Position::first(&options);
        ListDecoder {
            options,
            previous,
            position,
            attributes: AttributeDecoder::default(),
            firsts: HashMap::new(),
        }
    }

    /// Returns the index that the next entry has in the order of sending.
    pub fn next_index(&self) -> i32 {
        self.position.start.saturating_add(self.position.count)
    }

    /// Reads an entry or the end of the list.
    pub fn next(&mut self, input: &mut impl Read) -> Result<ListItem> {
        let flags = self.read_flags(input)?;
        let is_end_with_error = !self.options.has_varint_flags()
            && flags == IO_ERROR_ENDLIST | EXTENDED
            && self.options.has_safe_end();
        if flags != 0 && !is_end_with_error {
            return Ok(ListItem::Entry(Box::new(self.read_entry(flags, input)?)));
        }
        let has_error = is_end_with_error || self.options.has_varint_flags();
        let mut io_error = if has_error { input.varint()? } else { 0 };
        let (has_users, has_groups) = self.options.id_lists();
        let mut ids = IdLists::default();
        if has_users {
            (ids.users, ids.root_user) = self.read_id_list(input)?;
        }
        if has_groups {
            (ids.groups, ids.root_group) = self.read_id_list(input)?;
        }
        if self.options.protocol < 30 {
            io_error = input.int()?;
        }
        self.position = self.position.next_list();
        self.firsts.clear();
        Ok(ListItem::End { io_error, ids })
    }

    fn read_flags(&self, input: &mut impl Read) -> Result<u32> {
        if self.options.has_varint_flags() {
            return Ok(input.varint()?.cast_unsigned());
        }
        let low = u32::from(input.byte()?);
        let has_more = self.options.protocol >= 28 && low & EXTENDED != 0;
        Ok(if has_more {
            low | u32::from(input.byte()?) << 8
        } else {
            low
        })
    }

    #[allow(clippy::type_complexity, reason = "the two parts of one list")]
    fn read_id_list(&self, input: &mut impl Read) -> Result<(Vec<(u32, Vec<u8>)>, Vec<u8>)> {
        let mut list = Vec::new();
        loop {
            match input.varint30(self.options.protocol)?.cast_unsigned() {
                0 if self.options.compat.has(CompatFlags::ID0_NAMES) => {
                    return Ok((list, input.short_string()?));
                }
                0 => return Ok((list, Vec::new())),
                id => list.push((id, input.short_string()?)),
            }
            checked(
                list.len() as i64,
                IDS_MAX,
                "the number of names in a list of users or groups",
            )?;
        }
    }

    fn read_entry(&mut self, flags: u32, input: &mut impl Read) -> Result<FileEntry> {
        let options = self.options;
        let path = self.read_path(flags, input)?;
        self.previous.path.clone_from(&path);
        let index = self.next_index();
        if index >= ENTRIES_MAX {
            return Err(violation("too many entries"));
        }
        self.position.count += 1;
        let is_linked = options.hard_links && options.protocol >= 30 && flags & HLINKED != 0;
        let mut hard_link = HardLink::None;
        if is_linked {
            hard_link = match flags & HLINK_FIRST {
                0 => HardLink::Member(checked(
                    i64::from(input.varint()?),
                    index as usize,
                    "the index of a link",
                )? as i32),
                _ => HardLink::First,
            };
        }
        let mut entry = match hard_link {
            HardLink::Member(first) if first >= self.position.start => {
                let Some(first) = self.firsts.get(&first) else {
                    return Err(violation(format!(
                        "a hard link to entry {first}, which is not the first of a group"
                    )));
                };
                let entry = FileEntry {
                    path,
                    user: None,
                    group: None,
                    ..first.clone()
                };
                self.remember(&entry);
                entry
            }
            HardLink::None | HardLink::First | HardLink::Member(_) | HardLink::Inode { .. } => {
                let mut entry = FileEntry::new(path, 0);
                self.read_fields(&mut entry, flags, input)?;
                entry
            }
        };
        if is_linked {
            entry.hard_link = hard_link;
        }
        let kind = entry.kind();
        if kind == Kind::Dir {
            entry.is_top_dir = flags & TOP_DIR != 0;
            entry.has_content = options.protocol < 30 || flags & NO_CONTENT_DIR == 0;
        }
        if entry.path == b"." && kind != Kind::Dir {
            return Err(violation("the entry `.` is not a directory"));
        }
        if options.acls && kind != Kind::Symlink {
            entry.access_acl = Some(self.attributes.access_acl(input)?);
            if kind == Kind::Dir {
                entry.default_acl = Some(self.attributes.default_acl(input)?);
            }
        }
        if options.xattrs {
            entry.xattrs = Some(self.attributes.xattrs(input)?);
        }
        if entry.hard_link == HardLink::First {
            self.firsts.insert(index, entry.clone());
        }
        Ok(entry)
    }

    fn read_path(&self, flags: u32, input: &mut impl Read) -> Result<Vec<u8>> {
        let shared = if flags & SAME_NAME != 0 {
            usize::from(input.byte()?)
        } else {
            0
        };
        let len = match flags & LONG_NAME {
            0 => i32::from(input.byte()?),
            _ => input.varint30(self.options.protocol)?,
        };
        let len = checked(
            i64::from(len),
            PATH_MAX_BYTES - shared,
            "the length of a path",
        )?;
        let prefix = self.previous.path.get(..shared);
        let prefix =
            prefix.ok_or_else(|| violation("a path that shares more than its predecessor has"))?;
        let path = [prefix, &input.byte_vec(len)?].concat();
        self.check_path(&path)?;
        Ok(path)
    }

    fn check_path(&self, path: &[u8]) -> Result<()> {
        let relative = match path {
            [b'/', rest @ ..] if self.options.relative => rest,
            path => path,
        };
        let is_component = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
        // `/.` is the root of the file system.
        if matches!(
            (path, self.options.relative),
            (b".", _) | (b"/" | b"/.", true)
        ) || relative.split(|&b| b == b'/').all(is_component)
        {
            return Ok(());
        }
        Err(violation(format!(
            "invalid path in a file list: {}",
            path.escape_ascii()
        )))
    }

    fn read_fields(
        &mut self,
        entry: &mut FileEntry,
        flags: u32,
        input: &mut impl Read,
    ) -> Result<()> {
        let options = &self.options;
        let previous = &mut self.previous;
        let protocol = options.protocol;
        entry.size = input.varlong30(protocol, 3)?;
        if entry.size < 0 {
            return Err(violation(format!("a file of {} bytes", entry.size)));
        }
        if flags & SAME_TIME == 0 {
            previous.mtime = match protocol {
                30.. => input.varlong(4)?,
                _ => i64::from(input.int()?.cast_unsigned()),
            };
        }
        entry.mtime = previous.mtime;
        if flags & MOD_NSEC != 0 && protocol >= 31 {
            entry.mtime_nanos = input.varint_in(999_999_999, "the number of nanoseconds")? as u32;
        }
        if options.crtimes {
            let is_mtime = options.has_varint_flags() && flags & CRTIME_EQ_MTIME != 0;
            entry.crtime = if is_mtime {
                entry.mtime
            } else {
                input.varlong(4)?
            };
        }
        if flags & SAME_MODE == 0 {
            previous.mode = input.int()?.cast_unsigned();
        }
        entry.mode = previous.mode;
        let is_known = Kind::of_mode(entry.mode).is_some() && entry.mode <= MODE_MAX;
        if !(is_known || entry.mode == 0 && options.missing_args) {
            return Err(violation(format!(
                "an entry with the mode {:o}",
                entry.mode
            )));
        }
        let kind = entry.kind();
        if options.has_atime(kind) {
            if flags & SAME_ATIME == 0 {
                previous.atime = input.varlong(4)?;
            }
            entry.atime = previous.atime;
        }
        if options.owners {
            if flags & SAME_UID == 0 {
                previous.uid = input.varint30(protocol)?.cast_unsigned();
                let has_name = protocol >= 30 && flags & USER_NAME_FOLLOWS != 0;
                entry.user = if has_name {
                    Some(input.short_string()?)
                } else {
                    None
                };
            }
            entry.uid = previous.uid;
        }
        if options.groups {
            if flags & SAME_GID == 0 {
                previous.gid = input.varint30(protocol)?.cast_unsigned();
                let has_name = protocol >= 30 && flags & GROUP_NAME_FOLLOWS != 0;
                entry.group = if has_name {
                    Some(input.short_string()?)
                } else {
                    None
                };
            }
            entry.gid = previous.gid;
        }
        if options.has_rdev(entry.mode) {
            if protocol < 28 {
                if flags & SAME_RDEV_27 == 0 {
                    previous.rdev = input.int()?.cast_unsigned();
                }
                entry.rdev = unpacked_rdev(previous.rdev);
            } else {
                if flags & SAME_RDEV_MAJOR == 0 {
                    previous.major = input.varint30(protocol)?.cast_unsigned();
                }
                let minor = match protocol {
                    30.. => input.varint()?.cast_unsigned(),
                    _ if flags & RDEV_MINOR_8 != 0 => u32::from(input.byte()?),
                    _ => input.int()?.cast_unsigned(),
                };
                entry.rdev = (previous.major, minor);
            }
            if kind == Kind::Special {
                entry.rdev = (0, 0);
            }
        } else if protocol < 28 {
            previous.rdev = 0;
        }
        if kind == Kind::Symlink && options.links {
            let len = input.varint30(protocol)?;
            let len = checked(
                i64::from(len),
                TARGET_MAX_BYTES,
                "the length of the target of a symlink",
            );
            let len = len.map_err(|error| error.with_exit(Exit::Malloc))?;
            entry.target = input.byte_vec(len)?;
            if len == 0 || entry.target.contains(&0) {
                return Err(violation("a symlink without a valid target"));
            }
        }
        if options.has_inode(kind, flags) {
            if protocol < 28 || flags & SAME_DEV_29 == 0 {
                previous.dev = input.longint()?.wrapping_sub(1);
            }
            entry.hard_link = HardLink::Inode {
                dev: previous.dev,
                inode: input.longint()?,
            };
        }
        let digest = input.byte_vec(options.digest_len(kind))?;
        if kind == Kind::File {
            entry.digest = digest;
        }
        Ok(())
    }

    /// Stores the fields that the entry would have had if they had been sent.
    fn remember(&mut self, entry: &FileEntry) {
        let previous = &mut self.previous;
        let kind = entry.kind();
        (previous.mode, previous.mtime) = (entry.mode, entry.mtime);
        if self.options.owners {
            previous.uid = entry.uid;
        }
        if self.options.groups {
            previous.gid = entry.gid;
        }
        if self.options.has_atime(kind) {
            previous.atime = entry.atime;
        }
        if kind == Kind::Device && self.options.devices {
            previous.major = entry.rdev.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: u32 = 0o040_755;
    const FILE: u32 = 0o100_644;
    const FIFO: u32 = 0o010_644;
    const DEVICE: u32 = 0o020_600;

    fn of_protocol(protocol: u8) -> ListOptions {
        ListOptions {
            protocol,
            ..ListOptions::default()
        }
    }

    fn encoded(options: ListOptions, entries: &[FileEntry]) -> Vec<u8> {
        let mut encoder = ListEncoder::new(options);
        let mut out = Vec::new();
        for entry in entries {
            encoder.entry(entry, &mut out);
        }
        out
    }

    fn decoded(options: ListOptions, entries: &[FileEntry]) -> Vec<FileEntry> {
        let bytes = encoded(options, entries);
        let mut input = &bytes[..];
        let mut decoder = ListDecoder::new(options);
        let mut decoded = Vec::new();
        while !input.is_empty() {
            match decoder.next(&mut input).unwrap() {
                ListItem::Entry(entry) => decoded.push(*entry),
                end => panic!("{end:?}"),
            }
        }
        decoded
    }

    #[test]
    fn paths_that_leave_the_transfer_are_rejected() {
        for (path, is_valid, is_valid_if_relative) in [
            ("a/b", true, true),
            (".", true, true),
            ("/a", false, true),
            ("/", false, true),
            ("/.", false, true),
            ("/./a", false, false),
            ("//a", false, false),
            ("/a/..", false, false),
            ("", false, false),
            ("a/", false, false),
            ("a//b", false, false),
            ("a/./b", false, false),
            ("a/../b", false, false),
            ("..", false, false),
            ("a\0", false, false),
        ] {
            let check = |relative| {
                let options = ListOptions {
                    relative,
                    ..of_protocol(32)
                };
                let decoder = ListDecoder::new(options);
                decoder.check_path(path.as_bytes()).is_ok()
            };
            assert_eq!(check(false), is_valid, "{path:?}");
            assert_eq!(check(true), is_valid_if_relative, "{path:?} with -R");
        }
    }

    #[test]
    fn names_are_in_the_entries_of_incremental_lists() {
        for (protocol, compat, numeric_ids, is_inline) in [
            (29, CompatFlags::INC_RECURSE, false, false),
            (30, CompatFlags::INC_RECURSE, false, true),
            (30, CompatFlags::INC_RECURSE, true, false),
            (30, CompatFlags::default(), false, false),
        ] {
            let options = ListOptions {
                compat,
                numeric_ids,
                ..of_protocol(protocol)
            };
            assert_eq!(options.has_inline_names(), is_inline, "{options:?}");
        }
    }

    #[test]
    fn every_entry_has_a_digest_before_protocol_28() {
        for (protocol, kind, expected) in [
            (27, Kind::Dir, 16),
            (28, Kind::Dir, 0),
            (28, Kind::File, 16),
        ] {
            let options = ListOptions {
                digest_len_bytes: 16,
                ..of_protocol(protocol)
            };
            assert_eq!(options.digest_len(kind), expected, "{protocol} {kind:?}");
        }
    }

    #[test]
    fn links_are_not_sent_where_they_are_not_kept() {
        let with_link = |hard_link| FileEntry {
            hard_link,
            ..FileEntry::new("a", FILE)
        };
        let inode = HardLink::Inode { dev: 1, inode: 2 };
        for (hard_links, protocol, link) in [
            (false, 32, HardLink::First),
            (false, 32, HardLink::Member(0)),
            (true, 29, HardLink::Member(0)),
            (true, 32, inode),
        ] {
            let options = ListOptions {
                hard_links,
                ..of_protocol(protocol)
            };
            let plain = encoded(options, &[with_link(HardLink::None)]);
            assert_eq!(encoded(options, &[with_link(link)]), plain, "{link:?}");
        }
    }

    #[test]
    fn name_of_an_owner_comes_with_the_first_link_only() {
        let options = ListOptions {
            compat: CompatFlags::INC_RECURSE,
            owners: true,
            groups: true,
            hard_links: true,
            ..of_protocol(32)
        };
        let entry = |path, hard_link| FileEntry {
            uid: 7,
            gid: 8,
            user: Some(b"user".to_vec()),
            group: Some(b"group".to_vec()),
            hard_link,
            ..FileEntry::new(path, FILE)
        };
        let entries = [entry("a", HardLink::First), entry("b", HardLink::Member(1))];
        let found = decoded(options, &entries);
        assert_eq!(found[0], entries[0]);
        let unnamed = FileEntry {
            user: None,
            group: None,
            ..entries[1].clone()
        };
        assert_eq!(found[1], unnamed);
    }

    #[test]
    fn access_time_is_always_sent_at_protocol_27() {
        for protocol in [27, 28] {
            let options = ListOptions {
                atimes: true,
                ..of_protocol(protocol)
            };
            let entry = |path| FileEntry {
                atime: 9,
                ..FileEntry::new(path, FILE)
            };
            let entries = [entry("a"), entry("b")];
            assert_eq!(decoded(options, &entries), entries, "{protocol}");
        }
    }

    #[test]
    fn specials_have_no_number_at_protocol_27() {
        let with = |specials| {
            let options = ListOptions {
                specials,
                ..of_protocol(27)
            };
            let fifo = FileEntry {
                rdev: (3, 4),
                ..FileEntry::new("a", FIFO)
            };
            encoded(options, &[fifo]).len()
        };
        assert_eq!(with(true), with(false));
    }

    #[test]
    fn file_without_a_digest_has_zeros() {
        let options = ListOptions {
            digest_len_bytes: 16,
            ..of_protocol(32)
        };
        let file = FileEntry::new("a", FILE);
        let bytes = encoded(options, std::slice::from_ref(&file));
        assert!(bytes.ends_with(&[0; 16]));
        assert_eq!(decoded(options, &[file])[0].digest, [0; 16]);
    }

    /// The shared part counts too.
    #[test]
    fn path_is_as_long_as_allowed() {
        let path = |len| [b"x".repeat(255), b"/y".repeat((len - 255) / 2)].concat();
        for (len, is_valid) in [(PATH_MAX_BYTES, true), (PATH_MAX_BYTES + 2, false)] {
            let options = of_protocol(32);
            let entries = [path(255), path(len)].map(|path| FileEntry::new(path, FILE));
            let bytes = encoded(options, &entries);
            let mut input = &bytes[..];
            let mut decoder = ListDecoder::new(options);
            decoder.next(&mut input).unwrap();
            assert_eq!(decoder.next(&mut input).is_ok(), is_valid, "{len}");
        }
    }

    #[test]
    fn major_number_is_sent_if_it_changes() {
        let options = ListOptions {
            devices: true,
            ..of_protocol(32)
        };
        let device = |major| FileEntry {
            rdev: (major, 7),
            ..FileEntry::new("a", DEVICE)
        };
        let len = |majors: [u32; 2]| encoded(options, &majors.map(device)).len();
        // A number of three bytes, or a flag in one.
        assert_eq!(len([70_001, 70_000]) - len([70_000, 70_000]), 2);
    }

    #[test]
    fn small_minor_numbers_take_one_byte_before_protocol_30() {
        let options = ListOptions {
            devices: true,
            ..of_protocol(29)
        };
        let device = |minor| FileEntry {
            rdev: (1, minor),
            ..FileEntry::new("a", DEVICE)
        };
        let len = |minor| encoded(options, &[device(minor)]).len();
        // The flag of the short form takes another one.
        assert_eq!(len(256) - len(255), 2);
        assert_eq!(decoded(options, &[device(255)]), [device(255)]);
        assert_eq!(decoded(options, &[device(256)]), [device(256)]);
    }

    #[test]
    fn device_numbers_are_compared_with_those_that_were_sent() {
        let device = |path, rdev| FileEntry {
            rdev,
            ..FileEntry::new(path, DEVICE)
        };
        let entries = [
            device("a", (1, 5)),
            FileEntry::new("b", FILE),
            device("c", (0, 0)),
        ];
        let options = ListOptions {
            devices: true,
            ..of_protocol(27)
        };
        assert_eq!(decoded(options, &entries), entries);

        // The fields of a further link count, too, although they are not sent.
        let link = |entry: FileEntry, hard_link| FileEntry { hard_link, ..entry };
        let entries = [
            link(device("a", (3, 1)), HardLink::First),
            device("b", (4, 1)),
            link(device("c", (3, 1)), HardLink::Member(0)),
            device("d", (3, 2)),
            link(FileEntry::new("e", FILE), HardLink::First),
            link(FileEntry::new("f", FILE), HardLink::Member(4)),
            device("g", (3, 3)),
        ];
        let options = ListOptions {
            hard_links: true,
            ..options
        };
        let options = ListOptions {
            protocol: 32,
            ..options
        };
        assert_eq!(decoded(options, &entries), entries);
    }

    #[test]
    fn symlinks_have_a_target_without_nul() {
        let options = ListOptions {
            links: true,
            ..of_protocol(32)
        };
        for (target, is_valid) in [("a", true), ("", false), ("a\0", false)] {
            let link = FileEntry {
                target: target.into(),
                ..FileEntry::new("a", 0o120_777)
            };
            let bytes = encoded(options, &[link]);
            let found = ListDecoder::new(options).next(&mut &bytes[..]);
            assert_eq!(found.is_ok(), is_valid, "{target:?}");
        }
    }

    #[test]
    fn long_names_have_a_longer_length() {
        let len = |name_len: usize| {
            let entry = FileEntry::new(vec![b'a'; name_len], FILE);
            encoded(of_protocol(32), &[entry]).len()
        };
        assert_eq!(len(255) - len(254), 1);
        assert_eq!(len(256) - len(255), 2);
    }

    #[test]
    fn directory_without_flags_is_not_the_end() {
        for protocol in [27, 28, 30] {
            let options = ListOptions {
                owners: true,
                groups: true,
                ..of_protocol(protocol)
            };
            let dir = FileEntry {
                uid: 5,
                gid: 6,
                mtime: 7,
                ..FileEntry::new("d", DIR)
            };
            let entries = std::slice::from_ref(&dir);
            assert_eq!(decoded(options, entries), entries, "{protocol}");
        }
    }
}
