//! File lists: the entries, the options that determine their fields, and the state that an encoder and a decoder share.

mod decoder;
mod encoder;
#[cfg(test)]
mod tests;

pub use self::decoder::{ListDecoder, ListItem};
pub use self::encoder::ListEncoder;

use super::attributes::{Acl, SharedXattrs};
use super::handshake::CompatFlags;
use crate::flist::Kind;
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

/// Returns a device number as Linux stores it in 32 bits.
fn packed_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Splits a device number of Linux.
fn unpacked_rdev(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & !0xff)
}
