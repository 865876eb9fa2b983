//! Lists directories and completes what stat tells of an entry by what a run asks for.

use super::errno;
use super::operator;
use super::root::Dir;
use super::sys::{self, Listed};
use super::xattr::{self, At, XattrPolicy};
use super::{acl, fake};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Inode, Kind};
use crate::options::LinkOwners;
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The most bytes that a merge file may have; it is read whole.
pub const RULES_MAX_BYTES: usize = 64 * 1024 * 1024;

/// What a run asks of each entry beyond stat.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Device, inode and links of what has several names.
    pub hard_links: bool,
    /// Access times.
    pub atimes: bool,
    /// Extended attributes: which are read at the source, and which at the destination.
    pub xattrs: Option<(XattrPolicy<'a>, XattrPolicy<'a>)>,
    /// ACLs.
    pub acls: bool,
    /// What `--fake-super` keeps in extended attributes counts as real, at both ends.
    pub fake_super: bool,
    /// Makes of a source entry what the source tells of it: `--chmod`.
    pub shape: &'a (dyn Fn(&mut Entry) + Sync),
    /// Makes of what the source told what the destination shall have: mapped ids.
    pub map: &'a (dyn Fn(&mut Entry) + Sync),
}

/// Why an entry could not be completed.
pub enum Incomplete {
    /// rsync's words for it, from the call to the path, and the error.
    Failed(Vec<u8>, io::Error),
    /// The run ends with this line (exit 11): what `--fake-super` kept is corrupt.
    Fatal(Vec<u8>),
}

/// Which tree an entry lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Source,
    Dest,
}

impl Wanted<'_> {
    /// Completes an entry of the source and shapes it. `full` makes its absolute path and `path` is its
    /// path in the transfer, for messages. After an error about attributes the entry is left out.
    pub fn complete_source(
        &self,
        entry: &mut Entry,
        stat: &Stat,
        at: (&Dir, &[u8]),
        full: &dyn Fn() -> Vec<u8>,
        path: &dyn Fn() -> Vec<u8>,
    ) -> Result<(), Incomplete> {
        self.complete(entry, stat, at, End::Source, full, path)?;
        (self.shape)(entry);
        Ok(())
    }

    /// Makes of an entry that the source told what the destination shall have.
    pub fn adopt(&self, entry: &mut Entry) {
        if let Some((_, dest)) = &self.xattrs
            && let Some(extra) = &mut entry.extra
            && let Some(told) = extra.xattrs.take()
        {
            let stored = dest.stored(&told);
            extra.xattrs = (!stored.is_empty()).then(|| Arc::new(stored));
        }
        (self.map)(entry);
    }

    /// Completes an entry of the destination.
    pub fn complete_dest(
        &self,
        entry: &mut Entry,
        stat: &Stat,
        at: (&Dir, &[u8]),
        full: &dyn Fn() -> Vec<u8>,
        path: &dyn Fn() -> Vec<u8>,
    ) -> Result<(), Incomplete> {
        self.complete(entry, stat, at, End::Dest, full, path)?;
        // What stands for a symlink under --fake-super is a file: a real one has no value then, and is made anew.
        if Kind::of_mode(stat.mode) == Some(Kind::Symlink)
            && !self.fake_super
            && let Ok(target) = sys::read_link(at.0.fd(), at.1)
        {
            entry.extra_mut().target = Some(target.into());
        }
        Ok(())
    }

    fn complete(
        &self,
        entry: &mut Entry,
        stat: &Stat,
        at: (&Dir, &[u8]),
        end: End,
        full: &dyn Fn() -> Vec<u8>,
        path: &dyn Fn() -> Vec<u8>,
    ) -> Result<(), Incomplete> {
        let name = match at.1 {
            b"." => At::Fd(at.0.fd()),
            element => At::Name { dir: at.0.fd(), name: element },
        };
        let mut seen = *stat;
        if self.fake_super {
            let is_settled;
            (seen, is_settled) = fake::stat_with_fake(name, *stat).map_err(|error| {
                let text = error.text(&full());
                match error.error() {
                    Some(error) => Incomplete::Failed(text, error),
                    None => Incomplete::Fatal(text),
                }
            })?;
            entry.set_stat(&seen);
            if end == End::Dest && !is_settled {
                entry.extra_mut().is_unsettled = true;
            }
            if seen.mode != stat.mode && entry.kind() == Kind::Symlink {
                self.read_fake_target(entry, at);
            }
        }
        let kind = entry.kind();
        if kind == Kind::Device {
            entry.extra_mut().rdev = seen.rdev;
        }
        if self.hard_links && kind != Kind::Dir && stat.nlink > 1 {
            entry.inode = Some(Box::new(Inode { dev: stat.dev, ino: stat.ino, nlink: stat.nlink }));
        }
        if self.atimes {
            entry.extra_mut().atime = Some(stat.atime);
        }
        // One list of names tells for most entries that there is nothing to read.
        let asks = self.xattrs.is_some() || (self.acls && kind != Kind::Symlink && !self.fake_super);
        let names = if asks { name.names() } else { Ok(None) };
        let has_acl = !matches!(&names, Ok(names) if !names_acl(names.as_deref()));
        if self.acls && kind != Kind::Symlink && (has_acl || self.fake_super) {
            let acls = if self.fake_super {
                fake::read_acls(name, seen.mode).map_err(|error| Incomplete::Failed(b"get_acl".to_vec(), error))?
            } else {
                acl::read(name, kind == Kind::Dir)
                    .map_err(|error| Incomplete::Failed(error.text(&path(), end == End::Source), error.error))?
            };
            if !acls.access.is_empty() || !acls.default.is_empty() {
                let extra = entry.extra_mut();
                extra.acl = Some(acls.access);
                extra.default_acl = Some(acls.default);
            }
        }
        if let Some((source, dest)) = &self.xattrs {
            let policy = if end == End::Source { source } else { dest };
            let found = names
                .map_err(|error| xattr::ReadError { attr: None, error })
                .and_then(|names| xattr::read_listed(name, &names.unwrap_or_default(), policy))
                .map_err(|error| Incomplete::Failed(error.text(&full()), error.error))?;
            let found = if end == End::Source { source.told(found) } else { found };
            if !found.is_empty() {
                entry.extra_mut().xattrs = Some(Arc::new(found));
            }
        }
        Ok(())
    }

    /// Under `--fake-super` a symlink is a file that holds its value.
    fn read_fake_target(&self, entry: &mut Entry, at: (&Dir, &[u8])) {
        if let Ok(Some(text)) = text_file(at.0, at.1) {
            entry.extra_mut().target = Some(text.into());
        }
    }
}

/// Whether an ACL is among an entry's attributes.
fn names_acl(names: Option<&[u8]>) -> bool {
    names.is_some_and(|names| names.split(|&b| b == 0).any(|name| name.starts_with(b"system.posix_acl_")))
}

/// Names of one directory in the order in which it was listed, in one buffer.
#[derive(Debug, Default)]
pub struct Names {
    bytes: Vec<u8>,
    /// Those that count.
    pub items: Vec<ListedName>,
}

/// One of [`Names`].
#[derive(Debug, Clone, Copy)]
pub struct ListedName {
    at: u32,
    len: u16,
    /// Whether it is a directory, where the file system tells with the name.
    pub is_dir: Option<bool>,
}

impl Names {
    /// Adds those of a directory that was just opened. After an error it has those that were listed.
    pub fn list(&mut self, dir: &Dir) -> io::Result<()> {
        self.list_while(dir, |_| true).map(|_| ())
    }

    /// Adds those from where the directory is read, as long as more are wanted than there are then; whether those were all.
    pub fn list_while(&mut self, dir: &Dir, wants_more: impl Fn(usize) -> bool) -> io::Result<bool> {
        let count = Cell::new(self.items.len());
        let tell = |entry: Listed<'_>| {
            let at = u32::try_from(self.bytes.len()).expect("names of one directory stay below 4 GiB");
            self.items.push(ListedName { at, len: entry.name.len() as u16, is_dir: entry.is_dir });
            self.bytes.extend_from_slice(entry.name);
            count.set(count.get() + 1);
        };
        sys::list_while(dir.fd(), tell, || wants_more(count.get()))
    }

    /// What it is called.
    pub fn name(&self, item: ListedName) -> &[u8] {
        &self.bytes[item.at as usize..][..item.len as usize]
    }

    /// How long they are together, at most.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Tells the names of a directory, at most `enough` of them; whether that was all. Where there are many more not all are read.
pub fn names(dir: &Dir, enough: usize, mut tell: impl FnMut(Listed<'_>)) -> io::Result<bool> {
    let count = Cell::new(0usize);
    // Listing moves the position of the descriptor, and it may have been listed before.
    sys::seek_to(dir.fd(), 0)?;
    let tell = |entry: Listed<'_>| {
        count.set(count.get() + 1);
        if count.get() <= enough {
            tell(entry);
        }
    };
    let is_all = sys::list_while(dir.fd(), tell, || count.get() <= enough)?;
    Ok(is_all && count.get() <= enough)
}

/// All names of a directory, sorted, and which of them are directories; where the file system does not tell that with the
/// name, it is looked up.
pub fn typed_names(dir: &Dir) -> io::Result<DirList> {
    let mut list = DirList::default();
    let mut untyped = Vec::new();
    names(dir, usize::MAX, |entry| match entry.is_dir {
        Some(is_dir) => list.push_name(entry.name, is_dir),
        None => untyped.push(entry.name.to_vec()),
    })?;
    for name in untyped {
        let Some(stat) = errno::if_there(sys::stat(dir.fd(), &name, false))? else { continue };
        list.push_name(&name, Kind::of_mode(stat.mode) == Some(Kind::Dir));
    }
    list.sort();
    Ok(list)
}

/// The whole text of a file in a directory; `None` if there is none.
fn text_file(dir: &Dir, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    text_of(sys::open_read(dir.fd(), name, true, false))
}

/// The whole text of a file of rules in a directory (`name` may lead elsewhere); `None` if there is none.
pub fn rules_file(dir: &Dir, name: &[u8], owners: LinkOwners) -> io::Result<Option<Vec<u8>>> {
    text_of(operator::open_read(dir.fd(), name, owners))
}

fn text_of(opened: io::Result<OwnedFd>) -> io::Result<Option<Vec<u8>>> {
    use rustix::fd::AsFd;
    let fd = match opened {
        Ok(fd) => fd,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
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
