//! Compact encoding of a directory's entries: fields equal to those of the previous entry are omitted.

use super::bytes::{Reader, Writer, fault_of_name};
use super::limits::{FILE_MAX_BYTES, FRAME_MAX_BYTES, LIST_ENTRIES_MAX, NAME_MAX_BYTES};
use super::limits::{TARGET_MAX_BYTES, XATTR_MAX_BYTES, XATTRS_MAX};
use crate::error::Result;
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Extra, Inode, Kind, Time, Xattr, Xattrs, order};
use std::cmp::Ordering;
use std::sync::Arc;

/// The names that the entries of a list can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryNames {
    /// Names of directory entries, any number of them.
    Elements,
    /// Only `.`, the directory itself: at most one entry.
    Itself,
}

/// The minimum encoded length of an entry: flags, shared length, length of the rest. The rest is empty for `foo` after
/// `foo-bar`.
const ENTRY_MIN_BYTES: usize = 3;

/// The typical encoded length of an entry whose name and time differ from the previous entry.
const ENTRY_LIKELY_BYTES: usize = 16;

/// The permission and type bits.
const MODE_MAX: u64 = 0o177_777;

/// The values that the next entry can share.
#[derive(Default)]
struct Before {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Time,
    len_bytes: u64,
    origin: u16,
    /// Those of the last entry that had any.
    xattrs: Option<Arc<Xattrs>>,
    /// Number of attributes of all entries so far.
    xattr_count: usize,
}

impl Before {
    fn note(&mut self, entry: &Entry) {
        (self.mode, self.uid, self.gid) = (entry.mode, entry.uid, entry.gid);
        (self.mtime, self.len_bytes, self.origin) = (entry.mtime, entry.len_bytes, entry.origin);
        if let Some(xattrs) = entry.extra.as_ref().and_then(|extra| extra.xattrs.as_ref()) {
            self.xattr_count += xattrs.len();
            self.xattrs = Some(Arc::clone(xattrs));
        }
    }
}

/// Returns the length of the common prefix of two names.
fn shared_len(one: &[u8], other: &[u8]) -> usize {
    one.iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count()
}

/// Returns what is wrong with an entry at its position, if anything.
fn fault_of_entry(
    before: Option<(&[u8], bool)>,
    name: &[u8],
    entry: &Entry,
    names: EntryNames,
) -> Option<&'static str> {
    match names {
        EntryNames::Itself if name != b"." => {
            return Some("is not . in the entry of the directory itself");
        }
        EntryNames::Itself if !entry.is_dir() => return Some("is . but not a directory"),
        EntryNames::Itself => {}
        EntryNames::Elements => {
            if let Some(fault) = fault_of_name(name) {
                return Some(fault);
            }
        }
    }
    match before.map(|before| order::compare(before, (name, entry.is_dir()))) {
        None | Some(Ordering::Less) => None,
        Some(Ordering::Equal) => Some("is duplicated"),
        Some(Ordering::Greater) => Some("is out of sort order"),
    }
}

/// Returns an upper bound of an entry's encoded length, close to the real length.
pub(super) fn likely_len(name: &[u8], entry: &Entry) -> usize {
    const NUMBERS: usize = 48;
    let extra = entry.extra.as_ref().map_or(0, |extra| {
        const MORE_NUMBERS: usize = 112;
        let len = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        let xattrs = entry
            .xattrs()
            .iter()
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum::<usize>();
        MORE_NUMBERS + len(&extra.target) + len(&extra.acl) + len(&extra.default_acl) + xattrs
    });
    NUMBERS + name.len() + extra
}

/// Returns why an entry cannot be sent, if so: some file systems permit values that are longer than the protocol's
/// limits.
///
/// The sender leaves such an entry out of its listing and reports it; encoding it would end the run.
pub fn unfit(entry: &Entry) -> Option<&'static str> {
    let extra = entry.extra.as_deref()?;
    let is_long =
        |bytes: &Option<Box<[u8]>>, max| bytes.as_ref().is_some_and(|bytes| bytes.len() > max);
    if is_long(&extra.target, TARGET_MAX_BYTES) {
        return Some("the value of the symlink is too long");
    }
    if is_long(&extra.acl, XATTR_MAX_BYTES) || is_long(&extra.default_acl, XATTR_MAX_BYTES) {
        return Some("the ACL is too long");
    }
    if entry
        .xattrs()
        .iter()
        .any(|(name, value)| name.len() > NAME_MAX_BYTES || value.len() > XATTR_MAX_BYTES)
    {
        return Some("an extended attribute is too long");
    }
    // The other half is left for the rest of the frame.
    let is_too_much =
        entry.xattrs().len() > XATTRS_MAX || likely_len(b"", entry) > FRAME_MAX_BYTES / 2;
    if is_too_much {
        return Some("the extended attributes are too many");
    }
    None
}

/// Encodes a list.
pub(super) fn put(w: &mut Writer, list: &DirList, names: EntryNames) -> Result<()> {
    if list.len() > LIST_ENTRIES_MAX || names == EntryNames::Itself && list.len() > 1 {
        return Err(w.refuse(
            "entries",
            format_args!("are {}, too many for one list", list.len()),
        ));
    }
    w.varint(list.len() as u64);
    let mut before = Before::default();
    let mut last: Option<(&[u8], bool)> = None;
    for entry in &list.entries {
        let name = list.name(entry);
        if let Some(fault) = fault_of_entry(last, name, entry, names) {
            return Err(w.refuse(
                "name",
                format_args!("{:?} {fault}", String::from_utf8_lossy(name)),
            ));
        }
        put_entry(w, &before, last.map_or(b"", |last| last.0), name, entry)?;
        before.note(entry);
        if before.xattr_count > XATTRS_MAX {
            return Err(w.refuse("xattrs", "are too many for one list"));
        }
        last = Some((name, entry.is_dir()));
    }
    Ok(())
}

fn put_entry(
    w: &mut Writer,
    before: &Before,
    last_name: &[u8],
    name: &[u8],
    entry: &Entry,
) -> Result<()> {
    if Kind::of_mode(entry.mode).is_none() || u64::from(entry.mode) > MODE_MAX {
        return Err(w.refuse(
            "mode",
            format_args!("{:o} has no known file type", entry.mode),
        ));
    }
    if entry.len_bytes > FILE_MAX_BYTES {
        return Err(w.refuse("length", "is more than FILE_MAX_BYTES"));
    }
    let extra = entry
        .extra
        .as_deref()
        .filter(|extra| **extra != Extra::default());
    let inode = entry.inode.as_deref();
    let same_mode = entry.mode == before.mode;
    let same_uid = entry.uid == before.uid;
    let same_gid = entry.gid == before.gid;
    let same_mtime = entry.mtime == before.mtime;
    let same_len = entry.len_bytes == before.len_bytes;
    let same_origin = entry.origin == before.origin;
    let has_nanos = !same_mtime && entry.mtime.nanos != 0;
    let has_extra = extra.is_some() || inode.is_some();
    w.flags(&[
        same_mode,
        same_uid,
        same_gid,
        same_mtime,
        has_nanos,
        same_len,
        same_origin,
        has_extra,
    ]);
    let shared = shared_len(last_name, name);
    w.varint(shared as u64);
    w.bytes("name", &name[shared..], NAME_MAX_BYTES)?;
    if !same_mode {
        w.u32(entry.mode);
    }
    if !same_uid {
        w.u32(entry.uid);
    }
    if !same_gid {
        w.u32(entry.gid);
    }
    if !same_mtime {
        w.signed(entry.mtime.secs.wrapping_sub(before.mtime.secs));
    }
    if has_nanos {
        w.nanos("mtime", entry.mtime.nanos)?;
    }
    if !same_len {
        w.varint(entry.len_bytes);
    }
    if !same_origin {
        w.varint(u64::from(entry.origin));
    }
    if has_extra {
        put_extra(w, before, inode, extra.unwrap_or(&Extra::default()))
    } else {
        Ok(())
    }
}

fn put_extra(w: &mut Writer, before: &Before, inode: Option<&Inode>, extra: &Extra) -> Result<()> {
    let Extra {
        target,
        rdev,
        atime,
        xattrs,
        acl,
        default_acl,
        digest,
        is_mount_point,
        source_ids: _,
        source_target: _,
        is_unsettled: _,
        takes_content: _,
        has_abbreviated: _,
        // Only of the destination's entries.
        ctime: _,
    } = extra;
    let same_xattrs = xattrs.is_some() && *xattrs == before.xattrs;
    w.flags(&[
        target.is_some(),
        *rdev != 0,
        inode.is_some(),
        inode.is_some_and(|inode| inode.nlink != 0),
        atime.is_some(),
        xattrs.is_some(),
        acl.is_some(),
        default_acl.is_some(),
    ]);
    w.flags(&[digest.is_some(), *is_mount_point, same_xattrs]);
    if let Some(target) = target {
        w.bytes("target", target, TARGET_MAX_BYTES)?;
    }
    if *rdev != 0 {
        w.varint(*rdev);
    }
    if let Some(inode) = inode {
        w.varint(inode.dev);
        w.varint(inode.ino);
        if inode.nlink != 0 {
            w.u32(inode.nlink);
        }
    }
    if let Some(atime) = atime {
        w.time("atime", *atime)?;
    }
    if let Some(xattrs) = xattrs
        && !same_xattrs
    {
        put_xattrs(w, xattrs)?;
    }
    if let Some(acl) = acl {
        w.bytes("acl", acl, XATTR_MAX_BYTES)?;
    }
    if let Some(acl) = default_acl {
        w.bytes("default acl", acl, XATTR_MAX_BYTES)?;
    }
    if let Some(digest) = digest {
        w.content_digest(digest);
    }
    Ok(())
}

/// Returns what is wrong with the name of an attribute, if anything. `before` is the previous name.
fn fault_of_xattr(before: &[u8], name: &[u8]) -> Option<&'static str> {
    if name.is_empty() || name.contains(&0) {
        return Some("is not a valid attribute name");
    }
    if before >= name {
        return Some("is out of sort order");
    }
    None
}

fn put_xattrs(w: &mut Writer, xattrs: &[Xattr]) -> Result<()> {
    let mut before: &[u8] = b"";
    w.many("xattrs", xattrs, XATTRS_MAX, |w, (name, value)| {
        if let Some(fault) = fault_of_xattr(before, name) {
            return Err(w.refuse("xattr", fault));
        }
        before = name;
        w.bytes("xattr", name, NAME_MAX_BYTES)?;
        w.bytes("xattr", value, XATTR_MAX_BYTES)
    })
}

/// Decodes a list. Checks that it is sorted and has no duplicate names.
pub(super) fn get(r: &mut Reader, names: EntryNames) -> Result<DirList> {
    let max = if names == EntryNames::Itself {
        1
    } else {
        LIST_ENTRIES_MAX
    };
    let count = r.count("entries", max, ENTRY_MIN_BYTES)?;
    let mut list = DirList::default();
    // A count can be false: reserve only as many entries as usually fit into the bytes left.
    list.reserve(count.min(r.left() / ENTRY_LIKELY_BYTES), 0);
    let mut before = Before::default();
    let mut name = Vec::new();
    for _ in 0..count {
        let entry = get_entry(r, &before, &mut name)?;
        let last = list
            .entries
            .last()
            .map(|last| (list.name(last), last.is_dir()));
        if let Some(fault) = fault_of_entry(last, &name, &entry, names) {
            return Err(r.refuse(
                "name",
                format_args!("{:?} {fault}", String::from_utf8_lossy(&name)),
            ));
        }
        before.note(&entry);
        if before.xattr_count > XATTRS_MAX {
            return Err(r.refuse("xattrs", "are too many for one list"));
        }
        list.push_entry(&name, entry);
    }
    if let Some(twin) = list.twin() {
        return Err(r.refuse(
            "name",
            format_args!("{:?} is duplicated", String::from_utf8_lossy(twin)),
        ));
    }
    Ok(list)
}

/// Decodes an entry. `name` is the previous entry's name on entry and this one's on return.
fn get_entry(r: &mut Reader, before: &Before, name: &mut Vec<u8>) -> Result<Entry> {
    let [
        same_mode,
        same_uid,
        same_gid,
        same_mtime,
        has_nanos,
        same_len,
        same_origin,
        has_extra,
    ] = r.flags::<8>("entry flags")?;
    if same_mtime && has_nanos {
        return Err(r.refuse("entry flags", "mark the time as both unchanged and given"));
    }
    let shared = r.varint("name")?;
    match usize::try_from(shared) {
        Ok(shared) if shared <= name.len() => name.truncate(shared),
        _ => return Err(r.refuse("name", "shares more than the name before it has")),
    }
    name.extend_from_slice(r.bytes("name", NAME_MAX_BYTES)?);
    let mode = if same_mode {
        before.mode
    } else {
        r.u32("mode")?
    };
    if Kind::of_mode(mode).is_none() || u64::from(mode) > MODE_MAX {
        return Err(r.refuse("mode", format_args!("{mode:o} has no known file type")));
    }
    let uid = if same_uid { before.uid } else { r.u32("uid")? };
    let gid = if same_gid { before.gid } else { r.u32("gid")? };
    let mut mtime = before.mtime;
    if !same_mtime {
        mtime.secs = before.mtime.secs.wrapping_add(r.signed("mtime")?);
        mtime.nanos = if has_nanos { r.nanos("mtime")? } else { 0 };
    }
    let len_bytes = if same_len {
        before.len_bytes
    } else {
        r.varint_up_to("length", FILE_MAX_BYTES)?
    };
    let origin = if same_origin {
        before.origin
    } else {
        r.u16("origin")?
    };
    let (inode, extra) = if has_extra {
        get_extra(r, before)?
    } else {
        (None, Extra::default())
    };
    let stat = Stat {
        mode,
        uid,
        gid,
        mtime,
        len_bytes,
        ..Stat::default()
    };
    let mut entry = Entry::from_stat(&stat);
    entry.origin = origin;
    entry.inode = inode.map(Box::new);
    entry.extra = (extra != Extra::default()).then(|| Box::new(extra));
    Ok(entry)
}

fn get_extra(r: &mut Reader, before: &Before) -> Result<(Option<Inode>, Extra)> {
    let [
        has_target,
        has_rdev,
        has_dev_ino,
        has_nlink,
        has_atime,
        has_xattrs,
        has_acl,
        has_default_acl,
    ] = r.flags::<8>("extra flags")?;
    let [has_digest, is_mount_point, same_xattrs] = r.flags::<3>("extra flags")?;
    let mut extra = Extra {
        is_mount_point,
        ..Extra::default()
    };
    if has_target {
        extra.target = Some(r.bytes("target", TARGET_MAX_BYTES)?.into());
    }
    if has_rdev {
        extra.rdev = r.varint("rdev")?;
    }
    let mut inode = None;
    if has_dev_ino {
        let dev = r.varint("device")?;
        let ino = r.varint("inode")?;
        inode = Some(Inode {
            dev,
            ino,
            nlink: if has_nlink { r.u32("links")? } else { 0 },
        });
    } else if has_nlink {
        return Err(r.refuse("extra flags", "give a link count without an inode"));
    }
    if has_atime {
        extra.atime = Some(r.time("atime")?);
    }
    extra.xattrs = match (has_xattrs, same_xattrs, &before.xattrs) {
        (true, true, Some(xattrs)) => Some(Arc::clone(xattrs)),
        (true, true, None) => {
            return Err(r.refuse("xattrs", "repeat attributes, but there were none before"));
        }
        (true, false, _) => Some(Arc::new(get_xattrs(r)?)),
        (false, false, _) => None,
        (false, true, _) => {
            return Err(r.refuse("extra flags", "mark absent attributes as unchanged"));
        }
    };
    if has_acl {
        extra.acl = Some(r.bytes("acl", XATTR_MAX_BYTES)?.into());
    }
    if has_default_acl {
        extra.default_acl = Some(r.bytes("default acl", XATTR_MAX_BYTES)?.into());
    }
    if has_digest {
        extra.digest = Some(r.content_digest("digest")?);
    }
    if inode.is_none() && extra == Extra::default() {
        return Err(r.refuse("extra flags", "are empty"));
    }
    Ok((inode, extra))
}

fn get_xattrs(r: &mut Reader) -> Result<Xattrs> {
    let mut before: &[u8] = b"";
    // Each has two length fields, and a name has at least one byte.
    r.many("xattrs", XATTRS_MAX, 3, |r| {
        let name = r.bytes("xattr", NAME_MAX_BYTES)?;
        if let Some(fault) = fault_of_xattr(before, name) {
            return Err(r.refuse("xattr", fault));
        }
        before = name;
        Ok((name.into(), r.bytes("xattr", XATTR_MAX_BYTES)?.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::entry::Stat;

    fn file() -> Entry {
        Entry::from_stat(&Stat {
            mode: 0o100_644,
            ..Stat::default()
        })
    }

    fn with_attributes(count: usize, name_len: usize, value_len: usize) -> Entry {
        let mut entry = file();
        let attribute = |at: usize| {
            let name = format!("{at:0name_len$}").into_bytes();
            (name.into(), vec![b'v'; value_len].into())
        };
        entry.extra_mut().xattrs = Some(Arc::new((0..count).map(attribute).collect()));
        entry
    }

    fn encoded(entries: impl IntoIterator<Item = Entry>) -> Result<Vec<u8>> {
        let mut list = DirList::default();
        for (at, entry) in entries.into_iter().enumerate() {
            list.push_entry(format!("{at:05}").as_bytes(), entry);
        }
        let mut out = Vec::new();
        put(
            &mut Writer::new("Test", &mut out),
            &list,
            EntryNames::Elements,
        )?;
        Ok(out)
    }

    #[test]
    fn list_has_as_many_entries_and_attributes_as_it_may() {
        assert!(encoded(vec![file(); LIST_ENTRIES_MAX]).is_ok());
        assert!(encoded(vec![file(); LIST_ENTRIES_MAX + 1]).is_err());
        let half = with_attributes(XATTRS_MAX / 2, 7, 0);
        assert!(encoded([half.clone(), half.clone()]).is_ok());
        assert!(encoded([half.clone(), half, with_attributes(1, 1, 0)]).is_err());
    }

    #[test]
    fn attributes_of_a_decoded_list_are_counted() {
        // The bytes that no encoder writes, because its list would be too long.
        let decoded = |entries: &[Entry]| {
            let mut out = Vec::new();
            let mut w = Writer::new("Test", &mut out);
            w.varint(entries.len() as u64);
            let mut before = Before::default();
            for (at, entry) in entries.iter().enumerate() {
                let name = format!("{at}").into_bytes();
                put_entry(&mut w, &before, b"", &name, entry).unwrap();
                before.note(entry);
            }
            get(&mut Reader::new("Test", &out), EntryNames::Elements)
        };
        let half = with_attributes(XATTRS_MAX / 2, 7, 0);
        assert_eq!(decoded(&[half.clone(), half.clone()]).unwrap().len(), 2);
        let one_more = with_attributes(1, 1, 0);
        assert!(decoded(&[half.clone(), half, one_more]).is_err());
    }

    #[test]
    fn entry_of_no_valid_type_or_length_is_rejected() {
        let with_mode = |mode| {
            let mut entry = file();
            entry.mode = mode;
            entry
        };
        let with_len = |len_bytes| {
            let mut entry = file();
            entry.len_bytes = len_bytes;
            entry
        };
        assert!(encoded([with_mode(0o107_777)]).is_ok());
        assert!(encoded([with_mode(0o300_644)]).is_err());
        assert!(encoded([with_mode(0o644)]).is_err());
        assert!(encoded([with_len(FILE_MAX_BYTES)]).is_ok());
        assert!(encoded([with_len(FILE_MAX_BYTES + 1)]).is_err());
    }

    #[test]
    fn estimated_length_is_above_the_length() {
        let mut entry = with_attributes(3, 10, 500);
        let extra = entry.extra_mut();
        extra.target = Some(vec![b't'; 100].into());
        extra.acl = Some(vec![b'a'; 1000].into());
        extra.default_acl = Some(vec![b'd'; 2000].into());
        let likely = likely_len(b"00000", &entry);
        let len = encoded([entry]).unwrap().len();
        assert!((len..len + 200).contains(&likely), "{len} {likely}");
    }

    #[test]
    fn entry_at_the_limits_is_fit() {
        let is_fit = |count, name_len, value_len| {
            unfit(&with_attributes(count, name_len, value_len)).is_none()
        };
        assert!(is_fit(1, NAME_MAX_BYTES, 1) && !is_fit(1, NAME_MAX_BYTES + 1, 1));
        assert!(is_fit(1, 1, XATTR_MAX_BYTES) && !is_fit(1, 1, XATTR_MAX_BYTES + 1));
        assert!(is_fit(XATTRS_MAX, 7, 0) && !is_fit(XATTRS_MAX + 1, 7, 0));
        // Eight attributes that fill half of a frame.
        let room = FRAME_MAX_BYTES / 2 - likely_len(b"", &with_attributes(8, 8, 0));
        assert!(is_fit(8, 8, room / 8) && !is_fit(8, 8, room / 8 + 1));
    }
}
