//! Entries and directory listings. They are compact, because a run may hold a million entries.

use std::cmp::Ordering;
use std::sync::Arc;

/// The kind of an entry.
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

/// The setuid and setgid bits of a mode.
const SET_ID_BITS: u32 = 0o6000;

/// Returns whether an extended attribute can give privileges.
fn is_security(name: &[u8]) -> bool {
    name.starts_with(b"security.")
}

impl Kind {
    /// Returns the kind for a mode's type bits; `None` for bits that no Linux file has.
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

    /// Returns the letter in itemized output.
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

/// A timestamp as file systems store it. Packed, because each entry has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
#[repr(Rust, packed(4))]
pub struct Time {
    /// Seconds since 1970; negative for earlier times.
    pub secs: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

/// Extended attributes as (name, value), sorted by name, without ACLs.
pub type Xattrs = Vec<Xattr>;

/// The name and value of one extended attribute.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// Identifies the file that an entry is a name (hard link) of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// The device number of the file system.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// The number of hard links.
    pub nlink: u32,
}

/// Attributes that only few entries have or only some options need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extra {
    /// A symlink's target exactly as stored in the file system, so possibly munged.
    pub target: Option<Box<[u8]>>,
    /// A device's number, as returned by stat.
    pub rdev: u64,
    /// Access time, under `-U`.
    pub atime: Option<Time>,
    /// When the file was last changed in any way, for stored plans: of an entry of the destination with one name that is
    /// no directory.
    pub ctime: Option<Time>,
    /// Extended attributes, under `-X` if there are any.
    pub xattrs: Option<Arc<Xattrs>>,
    /// Some values in `xattrs` are [`AbbreviatedValue`](super::abbreviated::AbbreviatedValue)s.
    pub has_abbreviated: bool,
    /// The access ACL in the kernel's xattr format. Empty if there is none beyond the mode; `None` if it was not read.
    pub acl: Option<Box<[u8]>>,
    /// A directory's default ACL, in the same form.
    pub default_acl: Option<Box<[u8]>>,
    /// The digest of the content as both ends of a session compare it (`-c`). Not with digests of earlier runs: see
    /// [`DirList::plain_digest`].
    pub digest: Option<[u8; 20]>,
    /// Whether this is a directory on another file system than its parent, under `-x`.
    pub is_mount_point: bool,
    /// Whether this is a destination device that receives a file's content (`--write-devices`). Its length is the
    /// device's.
    pub takes_content: bool,
    /// Whether, under `--fake-super`, the file or its stored attributes are not as they would be written now.
    pub is_unsettled: bool,
    /// Owner and group in the source, if they are mapped to others here and an output format prints them.
    pub source_ids: Option<(u32, u32)>,
    /// A symlink's target in the source, if it was changed for the destination.
    pub source_target: Option<Box<[u8]>>,
}

/// An entry of a tree, with the attributes that the run needs. Its name is stored in its [`DirList`].
#[derive(Debug, Clone)]
pub struct Entry {
    name_at: u32,
    name_len: u16,
    /// The index of its source among several merged sources; 0 if there is only one.
    pub origin: u16,
    /// Type and permission bits, as returned by stat.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Time,
    /// Length; for a symlink, the length of its target.
    pub len_bytes: u64,
    /// The file of which this is one of several names; in the source only under `-H`. Not in [`Extra`], because most
    /// entries may have it.
    pub inode: Option<Box<Inode>>,
    /// Rare attributes; see [`Extra`].
    pub extra: Option<Box<Extra>>,
}

impl Entry {
    /// Creates an entry from stat, without a name. [`DirList::push_entry`] adds the name.
    pub fn from_stat(stat: &Stat) -> Entry {
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

    /// Returns the kind of the entry.
    pub fn kind(&self) -> Kind {
        Kind::of_mode(self.mode).unwrap_or(Kind::Special)
    }

    /// Returns whether an entry of this kind is compared with it: it has the same kind, or is a device that receives a
    /// file's content.
    pub fn stands_for(&self, kind: Kind) -> bool {
        self.kind() == kind
            || (kind == Kind::File && self.extra.as_ref().is_some_and(|extra| extra.takes_content))
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == 0o040000
    }

    /// Returns whether [`strip_privileges`](Self::strip_privileges) would change it.
    pub fn has_privileges(&self) -> bool {
        self.has_set_id_bits() || self.xattrs().iter().any(|(name, _)| is_security(name))
    }

    /// Drops set-ID bits and `security.` attributes.
    pub fn strip_privileges(&mut self) {
        if self.has_set_id_bits() {
            self.mode &= !SET_ID_BITS;
        }
        let Some(xattrs) = self.extra.as_mut().and_then(|extra| extra.xattrs.as_mut()) else {
            return;
        };
        if xattrs.iter().any(|(name, _)| is_security(name)) {
            Arc::make_mut(xattrs).retain(|(name, _)| !is_security(name));
        }
    }

    fn has_set_id_bits(&self) -> bool {
        !self.is_dir() && self.mode & SET_ID_BITS != 0
    }

    /// Replaces the attributes with those from stat. The kind may differ from the one in the listing.
    pub fn set_stat(&mut self, stat: &Stat) {
        (self.mode, self.uid, self.gid) = (stat.mode, stat.uid, stat.gid);
        (self.mtime, self.len_bytes) = (stat.mtime, stat.len_bytes);
    }

    /// Returns the rare attributes, allocating them if needed.
    pub fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_with(Default::default)
    }

    /// Returns the access ACL and a directory's default ACL; empty if there is none.
    pub fn acls(&self) -> (&[u8], &[u8]) {
        match &self.extra {
            Some(extra) => (
                extra.acl.as_deref().unwrap_or(b""),
                extra.default_acl.as_deref().unwrap_or(b""),
            ),
            None => (b"", b""),
        }
    }

    /// Returns whether some values of its extended attributes are
    /// [`AbbreviatedValue`](super::abbreviated::AbbreviatedValue)s.
    pub fn has_abbreviated(&self) -> bool {
        self.extra
            .as_ref()
            .is_some_and(|extra| extra.has_abbreviated)
    }

    /// Returns the extended attributes that were read.
    pub fn xattrs(&self) -> &[Xattr] {
        self.extra
            .as_ref()
            .and_then(|extra| extra.xattrs.as_deref())
            .map_or(&[], Vec::as_slice)
    }

    /// Returns whether its `--fake-super` attributes must be stored again although no compared attribute differs.
    pub fn is_unsettled(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.is_unsettled)
    }

    /// Returns where the plain digest is in the names of its list, if that has digests.
    fn digest_at(&self) -> usize {
        self.name_at as usize + self.name_len as usize
    }

    /// Returns a symlink's target; empty for other kinds.
    pub fn target(&self) -> &[u8] {
        self.extra
            .as_ref()
            .and_then(|x| x.target.as_deref())
            .unwrap_or(b"")
    }
}

/// The length of a [plain digest](DirList::plain_digest).
const PLAIN_BYTES: usize = 32;

/// The entries of one directory. One buffer holds all names.
///
/// Nearly every file has a digest if the run keeps digests (`--checksum-cache`), and most are only looked at once. So they
/// are not in [`Extra`], where each would cost an allocation, but behind the names.
#[derive(Debug, Default, Clone)]
pub struct DirList {
    /// The name of each entry. If `has_digests`, the place of its plain digest follows: zeros, if it has none.
    names: Vec<u8>,
    has_digests: bool,
    /// Sorted by [`super::order`] once [`DirList::sort`] was called.
    pub entries: Vec<Entry>,
}

/// The attributes that [`DirList::push`] needs in addition to the name.
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
    /// When the content or any attribute was changed. No program can set it.
    pub ctime: Time,
    /// When the file was created, if that was requested and the file system records it.
    pub btime: Option<Time>,
    /// Length.
    pub len_bytes: u64,
    /// The device number of the file system.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// The number of hard links.
    pub nlink: u32,
    /// A device's number.
    pub rdev: u64,
}

impl Stat {
    /// Returns the same attributes for a regular file with this length and modification time.
    pub fn as_file(self, len_bytes: u64, mtime: Time) -> Stat {
        Stat {
            mode: 0o100000 | self.mode & !S_IFMT,
            len_bytes,
            mtime,
            rdev: 0,
            ..self
        }
    }
}

impl DirList {
    /// Adds an entry; the list is unsorted afterwards.
    pub fn push(&mut self, name: &[u8], stat: &Stat) -> &mut Entry {
        self.push_entry(name, Entry::from_stat(stat));
        self.entries.last_mut().expect("pushed above")
    }

    /// Reserves space for this many entries with names of this total length.
    pub fn reserve(&mut self, entries: usize, name_bytes: usize) {
        self.entries.reserve_exact(entries);
        let digest_bytes = if self.has_digests {
            entries * PLAIN_BYTES
        } else {
            0
        };
        self.names.reserve_exact(name_bytes + digest_bytes);
    }

    /// Adds an entry with all its attributes under the given name; the list is unsorted afterwards.
    pub fn push_entry(&mut self, name: &[u8], entry: Entry) {
        let name_at =
            u32::try_from(self.names.len()).expect("names of one directory stay below 4 GiB");
        let name_len =
            u16::try_from(name.len()).expect("the kernel's names have at most 255 bytes");
        self.names.extend_from_slice(name);
        if self.has_digests {
            self.names.extend_from_slice(&[0; PLAIN_BYTES]);
        }
        self.entries.push(Entry {
            name_at,
            name_len,
            ..entry
        });
    }

    /// Adds an entry of another list, with its digest; the list is unsorted afterwards. All entries are of lists that have
    /// digests, or none is.
    pub fn push_from(&mut self, other: &DirList, entry: &Entry) {
        if self.is_empty() {
            self.has_digests = other.has_digests;
        }
        self.push_entry(other.name(entry), entry.clone());
        if let Some(digest) = other.plain_digest(entry) {
            self.set_plain_digest(self.len() - 1, digest);
        }
    }

    /// Makes room for the plain digests of the entries that will be added. The list is empty.
    pub fn hold_digests(&mut self) {
        assert!(self.is_empty(), "the entries that exist have no room");
        self.has_digests = true;
    }

    /// Sets the digest of the content of the file at an index; see [`DirList::hold_digests`].
    pub fn set_plain_digest(&mut self, at: usize, digest: &[u8; PLAIN_BYTES]) {
        assert!(self.has_digests, "there is no room for it");
        let at = self.entries[at].digest_at();
        self.names[at..at + PLAIN_BYTES].copy_from_slice(digest);
    }

    /// Returns the digest of the content of an entry, if this run has it. It depends on the content alone, and never leaves
    /// this machine (`--checksum-cache`).
    pub fn plain_digest(&self, entry: &Entry) -> Option<&[u8; PLAIN_BYTES]> {
        if !self.has_digests {
            return None;
        }
        let digest = self.names[entry.digest_at()..].first_chunk()?;
        if *digest == [0; PLAIN_BYTES] {
            return None;
        }
        Some(digest)
    }

    /// The memory that the entries and their names take, in bytes; [`Extra`] is not counted.
    pub fn held_bytes(&self) -> u64 {
        (self.entries.len() * size_of::<Entry>() + self.names.len()) as u64
    }

    /// Appends the entries of another list. Neither has digests. Does not sort: the caller must know whether the result is
    /// sorted.
    pub fn append(&mut self, other: DirList) {
        assert!(
            !self.has_digests && !other.has_digests,
            "names and digests are in one buffer"
        );
        let shift =
            u32::try_from(self.names.len()).expect("names of one directory stay below 4 GiB");
        u32::try_from(self.names.len() + other.names.len())
            .expect("names of one directory stay below 4 GiB");
        self.names.extend_from_slice(&other.names);
        let shifted = other.entries.into_iter().map(|entry| Entry {
            name_at: entry.name_at + shift,
            ..entry
        });
        self.entries.extend(shifted);
    }

    /// Adds an entry of which only the name is known and whether it is a directory.
    pub fn push_name(&mut self, name: &[u8], is_dir: bool) {
        let mode = if is_dir { 0o040000 } else { 0o100000 };
        self.push(
            name,
            &Stat {
                mode,
                ..Stat::default()
            },
        );
    }

    /// Returns the name of the entry at an index, and the entry itself for completion.
    pub fn entry_mut(&mut self, at: usize) -> (&[u8], &mut Entry) {
        let entry = &mut self.entries[at];
        (
            &self.names[entry.name_at as usize..][..entry.name_len as usize],
            entry,
        )
    }

    /// Returns an entry's name, a single path element.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        &self.names[entry.name_at as usize..][..entry.name_len as usize]
    }

    /// Sorts the entries into canonical order. Keeps one of those that an origin lists twice: network and FUSE file systems
    /// may list a name again while the directory changes.
    pub fn sort(&mut self) {
        let names = &self.names;
        let name = |e: &Entry| &names[e.name_at as usize..][..e.name_len as usize];
        let compare = |a: &Entry, b: &Entry| {
            super::order::compare((name(a), a.is_dir()), (name(b), b.is_dir()))
                .then(a.origin.cmp(&b.origin))
        };
        self.entries.sort_unstable_by(compare);
        self.entries
            .dedup_by(|later, earlier| compare(later, earlier) == Ordering::Equal);
    }

    /// Returns a directory of the sorted list whose name another entry has, too, if there is one.
    pub fn twin(&self) -> Option<&[u8]> {
        let (others, dirs) = self
            .entries
            .split_at(self.entries.partition_point(|entry| !entry.is_dir()));
        dirs.iter().map(|dir| self.name(dir)).find(|name| {
            others
                .binary_search_by(|entry| self.name(entry).cmp(name))
                .is_ok()
        })
    }

    /// Finds an entry of a sorted list by name, regardless of its kind.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        [false, true].into_iter().find_map(|is_dir| {
            self.entries
                .binary_search_by(|e| {
                    super::order::compare((self.name(e), e.is_dir()), (name, is_dir))
                })
                .ok()
        })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of entries, and the total length of the files and symlinks among them. Modulo 2^64, because a
    /// peer may lie.
    pub fn totals(&self) -> (u64, u64) {
        let counted = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.kind(), Kind::File | Kind::Symlink));
        (
            self.len() as u64,
            counted.fold(0, |sum: u64, entry| sum.wrapping_add(entry.len_bytes)),
        )
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The number of a sent directory listing, counted from 0 in the order of sending.
pub type DirId = u64;

/// An entry of a sent directory listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// The directory listing.
    pub dir: DirId,
    /// The index in the sorted list.
    pub entry: u32,
}

impl FileId {
    /// The root of the transfer, which is in no listing.
    pub const ROOT: FileId = FileId {
        dir: DirId::MAX,
        entry: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_is_listed_twice_is_kept_once() {
        let mut list = DirList::default();
        for (name, is_dir, origin) in [
            ("b", false, 0),
            ("d", true, 0),
            ("b", false, 0),
            ("d", false, 0),
            ("d", true, 0),
            ("b", false, 1),
        ] {
            list.push_name(name.as_bytes(), is_dir);
            list.entries.last_mut().unwrap().origin = origin;
        }
        list.sort();
        let kept: Vec<_> = list
            .entries
            .iter()
            .map(|entry| (list.name(entry), entry.is_dir(), entry.origin))
            .collect();
        let expected: [(&[u8], _, _); 4] = [
            (b"b", false, 0),
            (b"b", false, 1),
            (b"d", false, 0),
            (b"d", true, 0),
        ];
        assert_eq!(kept, expected);
        // The file and the directory have one name.
        assert_eq!(list.twin(), Some(&b"d"[..]));
    }

    #[test]
    fn plain_digests_stay_with_their_entries() {
        let mut list = DirList::default();
        list.hold_digests();
        for (name, digest) in [("b", Some([2; 32])), ("c", None), ("a", Some([1; 32]))] {
            list.push_name(name.as_bytes(), false);
            if let Some(digest) = digest {
                list.set_plain_digest(list.len() - 1, &digest);
            }
        }
        list.sort();
        let mut some = DirList::default();
        for entry in &list.entries[1..] {
            some.push_from(&list, entry);
        }
        let found = |list: &DirList| {
            let mut found = Vec::new();
            for entry in &list.entries {
                let name = String::from_utf8(list.name(entry).to_vec()).unwrap();
                found.push((name, list.plain_digest(entry).copied()));
            }
            found
        };
        let a = ("a".to_owned(), Some([1; 32]));
        let b = ("b".to_owned(), Some([2; 32]));
        let c = ("c".to_owned(), None);
        assert_eq!(found(&list), [a, b.clone(), c.clone()]);
        assert_eq!(found(&some), [b, c]);

        let mut bare = DirList::default();
        bare.push_name(b"b", false);
        assert_eq!(bare.plain_digest(&bare.entries[0]), None);
    }

    /// A run holds an `Entry` for each entry and, under `-H`, an `Inode` for each name of a file with several.
    #[test]
    fn entry_takes_56_bytes_and_inode_24() {
        assert_eq!((size_of::<Entry>(), size_of::<Inode>()), (56, 24));
    }
}
