//! Decodes file lists, and rejects entries that a sender must not send.

use super::{
    CRTIME_EQ_MTIME, EXTENDED, FileEntry, GROUP_NAME_FOLLOWS, HLINK_FIRST, HLINKED, HardLink,
    IO_ERROR_ENDLIST, IdLists, LONG_NAME, ListOptions, MOD_NSEC, MODE_MAX, NO_CONTENT_DIR,
    Position, Previous, RDEV_MINOR_8, SAME_ATIME, SAME_DEV_29, SAME_GID, SAME_MODE, SAME_NAME,
    SAME_RDEV_27, SAME_RDEV_MAJOR, SAME_TIME, SAME_UID, TOP_DIR, USER_NAME_FOLLOWS, unpacked_rdev,
};
use crate::exit::Exit;
use crate::flist::Kind;
use crate::proto::rsync::attributes::AttributeDecoder;
use crate::proto::rsync::decode_error::{Result, checked, violation};
use crate::proto::rsync::handshake::CompatFlags;
use crate::proto::rsync::limits::{ENTRIES_MAX, IDS_MAX, PATH_MAX_BYTES, TARGET_MAX_BYTES};
use crate::proto::rsync::number::ReadWire as _;
use std::collections::HashMap;
use std::io::Read;

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
        let hard_link = if !is_linked {
            HardLink::None
        } else if flags & HLINK_FIRST != 0 {
            HardLink::First
        } else {
            let first = i64::from(input.varint()?);
            HardLink::Member(checked(first, index as usize, "the index of a link")? as i32)
        };
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
        let len = if flags & LONG_NAME == 0 {
            i32::from(input.byte()?)
        } else {
            input.varint30(self.options.protocol)?
        };
        let len = checked(
            i64::from(len),
            PATH_MAX_BYTES - shared,
            "the length of a path",
        )?;
        let Some(prefix) = self.previous.path.get(..shared) else {
            return Err(violation(
                "a path that shares more than its predecessor has",
            ));
        };
        let path = [prefix, &input.byte_vec(len)?].concat();
        self.check_path(&path)?;
        Ok(path)
    }

    fn check_path(&self, path: &[u8]) -> Result<()> {
        let relative = match path {
            [b'/', rest @ ..] if self.options.relative => rest,
            path => path,
        };
        // `/.` is the root of the file system.
        let is_root = match path {
            b"." => true,
            b"/" | b"/." => self.options.relative,
            _ => false,
        };
        let is_component = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
        if is_root || relative.split(|&b| b == b'/').all(is_component) {
            return Ok(());
        }
        Err(violation(format!(
            "invalid path in a file list: {}",
            path.escape_ascii()
        )))
    }

    /// Reads the fields behind the path, in the order of the wire. Flags replace fields that the previous entry has, too.
    fn read_fields(
        &mut self,
        entry: &mut FileEntry,
        flags: u32,
        input: &mut impl Read,
    ) -> Result<()> {
        let options = self.options;
        entry.size = input.varlong30(options.protocol, 3)?;
        if entry.size < 0 {
            return Err(violation(format!("a file of {} bytes", entry.size)));
        }
        entry.mtime = self.read_mtime(flags, input)?;
        if flags & MOD_NSEC != 0 && options.protocol >= 31 {
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
        entry.mode = self.read_mode(flags, input)?;
        let kind = entry.kind();
        if options.has_atime(kind) {
            if flags & SAME_ATIME == 0 {
                self.previous.atime = input.varlong(4)?;
            }
            entry.atime = self.previous.atime;
        }
        self.read_owner_and_group(entry, flags, input)?;
        if options.has_rdev(entry.mode) {
            let rdev = self.read_rdev(flags, input)?;
            // Sockets and FIFOs have a number on the wire that means nothing.
            entry.rdev = if kind == Kind::Special { (0, 0) } else { rdev };
        } else if options.protocol < 28 {
            self.previous.rdev = 0;
        }
        if kind == Kind::Symlink && options.links {
            entry.target = self.read_target(input)?;
        }
        if options.has_inode(kind, flags) {
            entry.hard_link = self.read_inode(flags, input)?;
        }
        let digest = input.byte_vec(options.digest_len(kind))?;
        if kind == Kind::File {
            entry.digest = digest;
        }
        Ok(())
    }

    fn read_mtime(&mut self, flags: u32, input: &mut impl Read) -> Result<i64> {
        if flags & SAME_TIME == 0 {
            self.previous.mtime = match self.options.protocol {
                30.. => input.varlong(4)?,
                _ => i64::from(input.int()?.cast_unsigned()),
            };
        }
        Ok(self.previous.mtime)
    }

    fn read_mode(&mut self, flags: u32, input: &mut impl Read) -> Result<u32> {
        if flags & SAME_MODE == 0 {
            self.previous.mode = input.int()?.cast_unsigned();
        }
        let mode = self.previous.mode;
        let is_known = Kind::of_mode(mode).is_some() && mode <= MODE_MAX;
        let is_missing_arg = mode == 0 && self.options.missing_args;
        if !is_known && !is_missing_arg {
            return Err(violation(format!("an entry with the mode {mode:o}")));
        }
        Ok(mode)
    }

    fn read_owner_and_group(
        &mut self,
        entry: &mut FileEntry,
        flags: u32,
        input: &mut impl Read,
    ) -> Result<()> {
        let protocol = self.options.protocol;
        if self.options.owners {
            if flags & SAME_UID == 0 {
                self.previous.uid = input.varint30(protocol)?.cast_unsigned();
                if protocol >= 30 && flags & USER_NAME_FOLLOWS != 0 {
                    entry.user = Some(input.short_string()?);
                }
            }
            entry.uid = self.previous.uid;
        }
        if self.options.groups {
            if flags & SAME_GID == 0 {
                self.previous.gid = input.varint30(protocol)?.cast_unsigned();
                if protocol >= 30 && flags & GROUP_NAME_FOLLOWS != 0 {
                    entry.group = Some(input.short_string()?);
                }
            }
            entry.gid = self.previous.gid;
        }
        Ok(())
    }

    /// Reads the major and the minor number of a device.
    fn read_rdev(&mut self, flags: u32, input: &mut impl Read) -> Result<(u32, u32)> {
        let protocol = self.options.protocol;
        if protocol < 28 {
            if flags & SAME_RDEV_27 == 0 {
                self.previous.rdev = input.int()?.cast_unsigned();
            }
            return Ok(unpacked_rdev(self.previous.rdev));
        }
        if flags & SAME_RDEV_MAJOR == 0 {
            self.previous.major = input.varint30(protocol)?.cast_unsigned();
        }
        let minor = match protocol {
            30.. => input.varint()?.cast_unsigned(),
            _ if flags & RDEV_MINOR_8 != 0 => u32::from(input.byte()?),
            _ => input.int()?.cast_unsigned(),
        };
        Ok((self.previous.major, minor))
    }

    fn read_target(&self, input: &mut impl Read) -> Result<Vec<u8>> {
        let len = i64::from(input.varint30(self.options.protocol)?);
        let len = checked(
            len,
            TARGET_MAX_BYTES,
            "the length of the target of a symlink",
        )
        .map_err(|error| error.with_exit(Exit::Malloc))?;
        let target = input.byte_vec(len)?;
        if target.is_empty() || target.contains(&0) {
            return Err(violation("a symlink without a valid target"));
        }
        Ok(target)
    }

    /// Reads what names of one file have in common before protocol 30.
    fn read_inode(&mut self, flags: u32, input: &mut impl Read) -> Result<HardLink> {
        if self.options.protocol < 28 || flags & SAME_DEV_29 == 0 {
            self.previous.dev = input.longint()?.wrapping_sub(1);
        }
        Ok(HardLink::Inode {
            dev: self.previous.dev,
            inode: input.longint()?,
        })
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
                    protocol: 32,
                    ..ListOptions::default()
                };
                let decoder = ListDecoder::new(options);
                decoder.check_path(path.as_bytes()).is_ok()
            };
            assert_eq!(check(false), is_valid, "{path:?}");
            assert_eq!(check(true), is_valid_if_relative, "{path:?} with -R");
        }
    }
}
