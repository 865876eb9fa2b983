//! One entry, and one directory's entries, kept small: a run may hold a million of them.

use std::sync::Arc;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A character or block device.
    Device,
    /// A fifo or a socket.
    Special,
}

/// The file-type bits of a mode.
pub const S_IFMT: u32 = 0o170000;

impl Kind {
    /// The kind that a mode's type bits say; `None` for bits no Linux file has.
    pub fn of_mode(mode: u32) -> Option<Kind> {
        Some(match mode & S_IFMT {
            0o100000 => Kind::File,
            0o040000 => Kind::Dir,
            0o120000 => Kind::Symlink,
            0o020000 | 0o060000 => Kind::Device,
            0o010000 | 0o140000 => Kind::Special,
            _ => return None,
        })
    }

    /// The letter of itemized output.
    pub fn letter(self) -> u8 {
        match self {
            Kind::File => b'f',
            Kind::Dir => b'd',
            Kind::Symlink => b'L',
            Kind::Device => b'D',
            Kind::Special => b'S',
        }
    }
}

/// A point in time as file systems keep it; packed, because each entry has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
#[repr(Rust, packed(4))]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

/// Extended attributes as (name, value), sorted by name. ACLs are not among them.
pub type Xattrs = Vec<Xattr>;

/// Name and value of one.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// Which file of a file system an entry is a name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// The file system.
    pub dev: u64,
    /// The file's number on it.
    pub ino: u64,
    /// How many names it has.
    pub nlink: u32,
}

/// What only few entries have, or only some options ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extra {
    /// A symlink's value, munged or not as it lies in the file system.
    pub target: Option<Box<[u8]>>,
    /// A device's number, as stat gives it.
    pub rdev: u64,
    /// Access time, when `-U` asks.
    pub atime: Option<Time>,
    /// Extended attributes, when `-X` asks and there are any.
    pub xattrs: Option<Arc<Xattrs>>,
    /// The ACL that governs access, in the kernel's xattr form; empty: none beyond the mode. `None`: not asked.
    pub acl: Option<Box<[u8]>>,
    /// A directory's default ACL, likewise.
    pub default_acl: Option<Box<[u8]>>,
    /// The digest of the content, when `-c` asked a peer for it.
    pub digest: Option<[u8; 16]>,
    /// A directory on another file system than its parent, under `-x`.
    pub is_mount_point: bool,
    /// A device of the destination into which a file's content goes (`--write-devices`); its length is the device's.
    pub takes_content: bool,
    /// Under `--fake-super` the file itself, or what is kept beside it, is not as it would be stored now.
    pub is_unsettled: bool,
    /// Owner and group as the source has them, where the destination's are others and these are told.
    pub told_ids: Option<(u32, u32)>,
}

/// One thing in a tree, as far as the run asked about it. Its name lies in its [`DirList`].
#[derive(Debug, Clone)]
pub struct Entry {
    name_at: u32,
    name_len: u16,
    /// Which of several merged sources it came from; 0 where there is one.
    pub origin: u16,
    /// Type and permission bits as stat gives them.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Time,
    /// Length; for a symlink the length of its value.
    pub len_bytes: u64,
    /// What it is one of several names of, when `-H` asks: not in [`Extra`], because then most entries may have it.
    pub inode: Option<Box<Inode>>,
    /// See [`Extra`].
    pub extra: Option<Box<Extra>>,
}

impl Entry {
    /// What stat says, without a name: for [`DirList::push_entry`].
    pub fn of(stat: &Stat) -> Entry {
        Entry {
            name_at: 0,
            name_len: 0,
            origin: 0,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            mtime: stat.mtime,
            len_bytes: stat.len_bytes,
            inode: None,
            extra: None,
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        Kind::of_mode(self.mode).unwrap_or(Kind::Special)
    }

    /// Whether an entry of that kind is compared with it: it is of the same kind, or a device that takes a file's content.
    pub fn stands_for(&self, kind: Kind) -> bool {
        self.kind() == kind || (kind == Kind::File && self.extra.as_ref().is_some_and(|extra| extra.takes_content))
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == 0o040000
    }

    /// Takes over what stat said; the kind may turn out another one than a listing told.
    pub fn set_stat(&mut self, stat: &Stat) {
        (self.mode, self.uid, self.gid) = (stat.mode, stat.uid, stat.gid);
        (self.mtime, self.len_bytes) = (stat.mtime, stat.len_bytes);
    }

    /// The part for which little room was to be wasted.
    pub fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_with(Default::default)
    }

    /// Its ACLs, that of access and a directory's default one; empty: none.
    pub fn acls(&self) -> (&[u8], &[u8]) {
        match &self.extra {
            Some(extra) => (extra.acl.as_deref().unwrap_or(b""), extra.default_acl.as_deref().unwrap_or(b"")),
            None => (b"", b""),
        }
    }

    /// Its extended attributes, as far as they were asked for.
    pub fn xattrs(&self) -> &[Xattr] {
        self.extra.as_ref().and_then(|extra| extra.xattrs.as_deref()).map_or(&[], Vec::as_slice)
    }

    /// Whether what stands for it under `--fake-super` must be stored anew, though nothing that counts differs.
    pub fn is_unsettled(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.is_unsettled)
    }

    /// A symlink's value; empty for others.
    pub fn target(&self) -> &[u8] {
        self.extra.as_ref().and_then(|x| x.target.as_deref()).unwrap_or(b"")
    }
}

/// One directory's entries; the names lie in one buffer.
#[derive(Debug, Default, Clone)]
pub struct DirList {
    names: Vec<u8>,
    /// Sorted by [`super::order`] once [`DirList::sort`] was called.
    pub entries: Vec<Entry>,
}

/// What [`DirList::push`] needs besides the name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stat {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Time,
    /// Access time.
    pub atime: Time,
    /// Length.
    pub len_bytes: u64,
    /// Device number of the file system.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Links.
    pub nlink: u32,
    /// A device's number.
    pub rdev: u64,
}

impl Stat {
    /// The same as a file of so many bytes that was changed then.
    pub fn as_file(self, len_bytes: u64, mtime: Time) -> Stat {
        Stat { mode: 0o100000 | self.mode & !S_IFMT, len_bytes, mtime, rdev: 0, ..self }
    }
}

impl DirList {
    /// Adds an entry; the list is unsorted afterwards.
    pub fn push(&mut self, name: &[u8], stat: &Stat) -> &mut Entry {
        self.push_entry(name, Entry::of(stat));
        self.entries.last_mut().expect("pushed above")
    }

    /// Makes room for so many entries with names of so many bytes together.
    pub fn reserve(&mut self, entries: usize, name_bytes: usize) {
        self.entries.reserve_exact(entries);
        self.names.reserve_exact(name_bytes);
    }

    /// Adds an entry with all that is known of it, under a name of this list; the list is unsorted afterwards.
    pub fn push_entry(&mut self, name: &[u8], entry: Entry) {
        let name_at = u32::try_from(self.names.len()).expect("names of one directory stay below 4 GiB");
        let name_len = u16::try_from(name.len()).expect("the kernel's names have at most 255 bytes");
        self.names.extend_from_slice(name);
        self.entries.push(Entry { name_at, name_len, ..entry });
    }

    /// The memory that the entries and their names take, in bytes; [`Extra`] is not counted.
    pub fn held_bytes(&self) -> u64 {
        (self.entries.len() * size_of::<Entry>() + self.names.len()) as u64
    }

    /// Adds the entries of another list behind these; the list is sorted if the caller knows that it is.
    pub fn append(&mut self, other: DirList) {
        let shift = u32::try_from(self.names.len()).expect("names of one directory stay below 4 GiB");
        u32::try_from(self.names.len() + other.names.len()).expect("names of one directory stay below 4 GiB");
        self.names.extend_from_slice(&other.names);
        let shifted = other.entries.into_iter().map(|entry| Entry { name_at: entry.name_at + shift, ..entry });
        self.entries.extend(shifted);
    }

    /// Adds an entry of which only the name is known, and whether it is a directory.
    pub fn push_name(&mut self, name: &[u8], is_dir: bool) {
        let mode = if is_dir { 0o040000 } else { 0o100000 };
        self.push(name, &Stat { mode, ..Stat::default() });
    }

    /// A name, and its entry to be completed.
    pub fn entry_mut(&mut self, at: usize) -> (&[u8], &mut Entry) {
        let entry = &mut self.entries[at];
        (&self.names[entry.name_at as usize..][..entry.name_len as usize], entry)
    }

    /// An entry's name: one path element.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        &self.names[entry.name_at as usize..][..entry.name_len as usize]
    }

    /// Brings the entries into canonical order.
    pub fn sort(&mut self) {
        let names = &self.names;
        let name = |e: &Entry| &names[e.name_at as usize..][..e.name_len as usize];
        self.entries.sort_unstable_by(|a, b| {
            super::order::compare((name(a), a.is_dir()), (name(b), b.is_dir())).then(a.origin.cmp(&b.origin))
        });
    }

    /// Finds an entry of a sorted list by name, whatever its kind.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        [false, true].into_iter().find_map(|is_dir| {
            self.entries.binary_search_by(|e| super::order::compare((self.name(e), e.is_dir()), (name, is_dir))).ok()
        })
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each entry of a run that is held, and of each name of a file with several under `-H`.
    #[test]
    fn entries_are_small() {
        assert_eq!((size_of::<Entry>(), size_of::<Inode>()), (56, 24));
    }
}
