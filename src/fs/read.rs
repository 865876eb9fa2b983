//! Lists directories, and reads the attributes that a run needs beyond stat.

use super::errno;
use super::root::Dir;
use super::sys::{self, Dirent};
use super::trusted_path;
use super::xattr::{self, At, XattrPolicy};
use super::{acl, fake_super};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Inode, Kind};
use crate::options::LinkOwners;
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The maximum length of a merge file, which is read into memory.
pub const RULES_MAX_BYTES: usize = 64 * 1024 * 1024;

/// The attributes that a run needs for each entry beyond stat.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Device, inode and link count of files with several names.
    pub hard_links: bool,
    /// Access times.
    pub atimes: bool,
    /// When files of the destination with one name were last changed in any way.
    pub ctimes: bool,
    /// Extended attributes: the policies for the source and the destination.
    pub xattrs: Option<(XattrPolicy<'a>, XattrPolicy<'a>)>,
    pub acls: bool,
    /// Treat attributes stored by `--fake-super` as the real ones, on both sides.
    pub fake_super: bool,
    /// Changes a source entry before it is sent: `--chmod`, `--munge-links`.
    pub shape: &'a (dyn Fn(&mut Entry) + Sync),
    /// Converts a received entry into what the destination should have: mapped ids. Gets how many directories of the
    /// transfer lead to the entry.
    pub map: &'a (dyn Fn(&mut Entry, usize) + Sync),
}

/// An entry in an open directory, whose attributes are read.
pub struct EntryAt<'a> {
    pub dir: &'a Dir,
    /// Its name there; `.` is the directory itself.
    pub name: &'a [u8],
    pub stat: &'a Stat,
    /// Returns its absolute path, for messages.
    pub full: &'a dyn Fn() -> Vec<u8>,
    /// Returns its path in the transfer, for messages.
    pub path: &'a dyn Fn() -> Vec<u8>,
}

/// Why the attributes of an entry could not be read.
pub enum Incomplete {
    /// rsync's message, from the call to the path, and the error.
    Failed(Vec<u8>, io::Error),
    /// The run ends with this line (exit 11): an attribute stored by `--fake-super` is corrupt.
    Fatal(Vec<u8>),
}

/// The tree that an entry belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TreeSide {
    Source,
    Dest,
}

impl Wanted<'_> {
    /// Reads the remaining attributes of a source entry and applies `shape`. If this fails, the caller omits the entry.
    ///
    /// What `--fake-super` has stored with an entry that cannot be read is ignored, as in rsync: the entry keeps its
    /// real attributes. The result is then the message, from the call to the path, and the error.
    pub fn complete_source(
        &self,
        entry: &mut Entry,
        at: &EntryAt<'_>,
    ) -> Result<Option<(Vec<u8>, io::Error)>, Incomplete> {
        let unread = self.complete(entry, at, TreeSide::Source)?;
        (self.shape)(entry);
        Ok(unread)
    }

    /// Converts an entry received from the source into what the destination should have. `depth`: how many directories
    /// of the transfer lead to it.
    pub fn normalize(&self, entry: &mut Entry, depth: usize) {
        if let Some((_, dest)) = &self.xattrs
            && let Some(extra) = &mut entry.extra
            && let Some(sent) = extra.xattrs.take()
        {
            let stored = dest.stored(&sent);
            extra.xattrs = (!stored.is_empty()).then(|| Arc::new(stored));
        }
        (self.map)(entry, depth);
    }

    /// Reads the remaining attributes of a destination entry.
    pub fn complete_dest(&self, entry: &mut Entry, at: &EntryAt<'_>) -> Result<(), Incomplete> {
        if let Some((text, error)) = self.complete(entry, at, TreeSide::Dest)? {
            return Err(Incomplete::Failed(text, error));
        }
        if self.ctimes && at.stat.nlink == 1 && !entry.is_dir() {
            entry.extra_mut().ctime = Some(at.stat.ctime);
        }
        // With --fake-super, a regular file represents a symlink. A real symlink gets no target then, so it is
        // replaced.
        if Kind::of_mode(at.stat.mode) == Some(Kind::Symlink)
            && !self.fake_super
            && let Ok(target) = sys::read_link(at.dir.fd(), at.name)
        {
            entry.extra_mut().target = Some(target.into());
        }
        Ok(())
    }

    fn complete(
        &self,
        entry: &mut Entry,
        at: &EntryAt<'_>,
        end: TreeSide,
    ) -> Result<Option<(Vec<u8>, io::Error)>, Incomplete> {
        let &EntryAt {
            dir,
            name,
            stat,
            full,
            path,
        } = at;
        let name = match name {
            b"." => At::Fd(dir.fd()),
            element => At::Name {
                dir: dir.fd(),
                name: element,
            },
        };
        let mut seen = *stat;
        let mut unread = None;
        if self.fake_super {
            let mut is_settled = true;
            match fake_super::stat_with_fake(name, *stat) {
                Ok(found) => (seen, is_settled) = found,
                Err(error) => {
                    let text = error.text(&full());
                    match error.error() {
                        Some(error) => unread = Some((text, error)),
                        None => return Err(Incomplete::Fatal(text)),
                    }
                }
            }
            entry.set_stat(&seen);
            if end == TreeSide::Dest && !is_settled {
                entry.extra_mut().is_unsettled = true;
            }
            // A regular file represents the symlink.
            if seen.mode != stat.mode
                && entry.kind() == Kind::Symlink
                && let Ok(Some(text)) = text_file(dir, at.name)
            {
                entry.extra_mut().target = Some(text.into());
            }
        }
        let kind = entry.kind();
        if kind == Kind::Device {
            entry.extra_mut().rdev = seen.rdev;
        }
        if (self.hard_links || end == TreeSide::Dest) && kind != Kind::Dir && stat.nlink > 1 {
            entry.inode = Some(Box::new(Inode {
                dev: stat.dev,
                ino: stat.ino,
                nlink: stat.nlink,
            }));
        }
        if self.atimes {
            entry.extra_mut().atime = Some(stat.atime);
        }
        // For most entries, one listing of names shows that there is nothing to read.
        let needs_names =
            self.xattrs.is_some() || (self.acls && kind != Kind::Symlink && !self.fake_super);
        let names = if needs_names { name.names() } else { Ok(None) };
        let has_acl = !matches!(&names, Ok(names) if !names_acl(names.as_deref()));
        if self.acls && kind != Kind::Symlink && (has_acl || self.fake_super) {
            let acls = if self.fake_super {
                let stored = match end {
                    TreeSide::Source => fake_super::read_acls(name, seen.mode),
                    TreeSide::Dest => fake_super::read_acls_to_replace(name, seen.mode),
                };
                stored.map_err(|error| Incomplete::Failed(b"get_acl".to_vec(), error))?
            } else {
                acl::read(name, kind == Kind::Dir).map_err(|error| {
                    Incomplete::Failed(error.text(&path(), end == TreeSide::Source), error.error)
                })?
            };
            if !acls.access.is_empty() || !acls.default.is_empty() {
                let extra = entry.extra_mut();
                extra.acl = Some(acls.access);
                extra.default_acl = Some(acls.default);
            }
        }
        if let Some((source, dest)) = &self.xattrs {
            let policy = if end == TreeSide::Source {
                source
            } else {
                dest
            };
            let found = names
                .map_err(|error| xattr::ReadError { attr: None, error })
                .and_then(|names| xattr::read_listed(name, &names.unwrap_or_default(), policy))
                .map_err(|error| Incomplete::Failed(error.text(&full()), error.error))?;
            let found = if end == TreeSide::Source {
                source.in_sent_form(found)
            } else {
                found
            };
            if !found.is_empty() {
                entry.extra_mut().xattrs = Some(Arc::new(found));
            }
        }
        Ok(unread)
    }
}

/// Returns whether an entry's attributes include an ACL.
fn names_acl(names: Option<&[u8]>) -> bool {
    names.is_some_and(|names| {
        names
            .split(|&b| b == 0)
            .any(|name| name.starts_with(b"system.posix_acl_"))
    })
}

/// The names in one directory, in listing order, in one buffer.
#[derive(Debug, Default)]
pub struct Names {
    bytes: Vec<u8>,
    /// The names that are in use.
    pub items: Vec<ListedName>,
}

/// A name in [`Names`].
#[derive(Debug, Clone, Copy)]
pub struct ListedName {
    at: u32,
    len: u16,
    /// Whether it is a directory, if the file system reports that with the name.
    pub is_dir: Option<bool>,
}

impl Names {
    /// Adds the names in a directory that was just opened. After an error, contains the names listed so far.
    pub fn list(&mut self, dir: &Dir) -> io::Result<()> {
        self.list_while(dir, |_| true).map(|_| ())
    }

    /// Adds names from the current position of the directory while `wants_more` returns true for their total number.
    /// Returns whether the listing is complete.
    pub fn list_while(
        &mut self,
        dir: &Dir,
        wants_more: impl Fn(usize) -> bool,
    ) -> io::Result<bool> {
        let count = Cell::new(self.items.len());
        let visit = |entry: Dirent<'_>| {
            let at =
                u32::try_from(self.bytes.len()).expect("names of one directory stay below 4 GiB");
            self.items.push(ListedName {
                at,
                len: entry.name.len() as u16,
                is_dir: entry.is_dir,
            });
            self.bytes.extend_from_slice(entry.name);
            count.set(count.get() + 1);
        };
        sys::list_while(dir.fd(), visit, || wants_more(count.get()))
    }

    /// Returns the name of an item.
    pub fn name(&self, item: ListedName) -> &[u8] {
        &self.bytes[item.at as usize..][..item.len as usize]
    }

    /// Returns the total length of all names, including those no longer in use.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Calls `visit` for the names in a directory, at most `enough` of them. Returns whether those were all. If there are
/// many more, does not read the whole directory.
pub fn names(dir: &Dir, enough: usize, mut visit: impl FnMut(Dirent<'_>)) -> io::Result<bool> {
    let count = Cell::new(0usize);
    // Listing moves the position of the descriptor, which may have been listed before.
    sys::seek_to(dir.fd(), 0)?;
    let visit = |entry: Dirent<'_>| {
        count.set(count.get() + 1);
        if count.get() <= enough {
            visit(entry);
        }
    };
    let is_all = sys::list_while(dir.fd(), visit, || count.get() <= enough)?;
    Ok(is_all && count.get() <= enough)
}

/// Returns all names of a directory, sorted, and whether they are directories. Calls stat for that if the file system
/// does not report it with the name.
pub fn typed_names(dir: &Dir) -> io::Result<DirList> {
    let mut list = DirList::default();
    let mut untyped = Vec::new();
    names(dir, usize::MAX, |entry| match entry.is_dir {
        Some(is_dir) => list.push_name(entry.name, is_dir),
        None => untyped.push(entry.name.to_vec()),
    })?;
    for name in untyped {
        let Some(stat) = errno::if_there(sys::stat(dir.fd(), &name, false))? else {
            continue;
        };
        list.push_name(&name, Kind::of_mode(stat.mode) == Some(Kind::Dir));
    }
    list.sort();
    Ok(list)
}

/// Returns the text of a file in a directory; `None` if it does not exist.
fn text_file(dir: &Dir, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    text_of(sys::open_read(dir.fd(), name, true, false))
}

/// Returns the text of a rules file in a directory; `None` if it does not exist. `name` may lead to another directory.
pub fn rules_file(dir: &Dir, name: &[u8], owners: LinkOwners) -> io::Result<Option<Vec<u8>>> {
    text_of(trusted_path::open_rules(dir.fd(), name, owners))
}

fn text_of(opened: io::Result<OwnedFd>) -> io::Result<Option<Vec<u8>>> {
    use rustix::fd::AsFd;
    let fd = match opened {
        Ok(fd) => fd,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    // A name of 256 bytes or more.
                    | io::ErrorKind::InvalidFilename
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    let mut piece = [0u8; 16 * 1024];
    loop {
        match sys::read(fd.as_fd(), &mut piece)? {
            0 => return Ok(Some(text)),
            _ if text.len() > RULES_MAX_BYTES => return Err(io::ErrorKind::FileTooLarge.into()),
            n => text.extend_from_slice(&piece[..n]),
        }
    }
}
