//! Builds trees by the same steps in each twin, so that the twins cannot differ.
//!
//! The text language is a list of items separated by spaces:
//!
//! | item | makes |
//! |---|---|
//! | `a/b.c` | a file whose content is its own path and a newline; parents are made as needed |
//! | `a=text` | a file with that content (`a=` is empty) |
//! | `a*5000` | a file of 5,000 bytes |
//! | `d/` | a directory |
//! | `l->target` | a symlink |
//! | `b==a` | a hard link to the file `a` of the same tree |
//! | `p\|` | a fifo |
//! | `…%640` | with these permission bits |
//! | `…@-100` | with an mtime that many seconds from [`T0`]; before or after the mode |
//!
//! Every entry gets the mtime [`T0`] plus [`NANOS`] unless its item gives another; directories after their content.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};

/// The default mtime in seconds since the epoch: 2020-09-13 12:26:40.
pub const T0: i64 = 1_600_000_000;
/// The nanoseconds of the default mtime.
pub const NANOS: i64 = 123_456_789;

/// Builds one tree in both twins at once.
pub struct Tree {
    roots: Vec<OwnedFd>,
    /// Directories changed so far; each gets its mode and mtime when the tree is dropped.
    dirs: RefCell<BTreeMap<Vec<u8>, DirLook>>,
}

/// The mode and mtime that a directory gets when building ends.
struct DirLook {
    mode: Option<u32>,
    mtime: Timespec,
}

/// An entry just created; its methods change its attributes from the defaults.
pub struct Item<'t> {
    tree: &'t Tree,
    path: Vec<u8>,
    is_dir: bool,
}

/// An entry of a POSIX ACL: its subject and the `rwx` bits.
#[derive(Clone, Copy)]
pub enum Acl {
    /// The owner.
    Owner(u16),
    /// A user by number.
    User(u32, u16),
    /// The owning group.
    OwnGroup(u16),
    /// A group by number.
    Group(u32, u16),
    /// The upper limit for all entries but owner and other.
    Mask(u16),
    /// All other users.
    Other(u16),
}

impl Tree {
    /// Opens the tree `name` below each of `worlds`, creating it if it is missing. `.` is the world itself.
    pub fn open(worlds: &[PathBuf], name: &[u8]) -> Tree {
        let roots: Vec<OwnedFd> = worlds
            .iter()
            .map(|world| open_dir(fs::CWD, world))
            .collect();
        let world = Tree {
            roots,
            dirs: RefCell::default(),
        };
        if name == b"." {
            return world;
        }
        world.dir(name);
        let inside = |root: &OwnedFd| open_dir(root, name);
        let tree = Tree {
            roots: world.roots.iter().map(inside).collect(),
            dirs: RefCell::default(),
        };
        drop(world);
        tree.touch_dir(b".");
        tree
    }

    /// Creates the entries that the text describes; see the table above.
    pub fn text(&self, spec: &str) {
        for item in spec.split_whitespace() {
            self.one(item);
        }
    }

    fn one(&self, item: &str) {
        let octal = |item| split_number(item, '%', |n| u32::from_str_radix(n, 8).ok());
        let (item, last) = octal(item);
        let (item, offset) = split_number(item, '@', |n| n.parse::<i64>().ok());
        let (item, first) = octal(item);
        let mode = last.or(first);
        let made = if let Some((path, target)) = item.split_once("->") {
            self.symlink(path, target)
        } else if let Some((path, leader)) = item.split_once("==") {
            self.hardlink(path, leader)
        } else if let Some((path, content)) = item.split_once('=') {
            self.file(path, content)
        } else if let Some(path) = item.strip_suffix('/') {
            self.dir(path)
        } else if let Some(path) = item.strip_suffix('|') {
            self.fifo(path)
        } else if let Some((path, len)) = item
            .split_once('*')
            .and_then(|(p, n)| Some((p, n.parse().ok()?)))
        {
            self.file(path, filler(len))
        } else {
            self.file(item, format!("{item}\n"))
        };
        let made = mode.into_iter().fold(made, Item::mode);
        offset.into_iter().fold(made, Item::mtime);
    }

    /// Creates or rewrites a regular file.
    pub fn file(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Item<'_> {
        self.sparse(
            path,
            content.as_ref().len() as u64,
            &[(0, content.as_ref())],
        )
    }

    /// Creates a file of `len_bytes` with data only at the given offsets.
    pub fn sparse(
        &self,
        path: impl AsRef<[u8]>,
        len_bytes: u64,
        data: &[(u64, &[u8])],
    ) -> Item<'_> {
        self.make(path.as_ref(), |dir, name| {
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
            let mut file = std::fs::File::from(fs::openat(dir, name, flags, Mode::from(0o644))?);
            file.set_len(len_bytes)?;
            for (offset, bytes) in data {
                file.seek(SeekFrom::Start(*offset))?;
                file.write_all(bytes)?;
            }
            Ok(())
        })
    }

    /// Creates a directory. An existing one keeps its mode and content and gets the default mtime.
    pub fn dir(&self, path: impl AsRef<[u8]>) -> Item<'_> {
        let path = path.as_ref();
        self.each(path, |dir, name| {
            match fs::mkdirat(dir, name, Mode::from(0o755)) {
                Err(rustix::io::Errno::EXIST) => Ok(()),
                made => Ok(made?),
            }
        });
        self.touch_dir(path);
        Item {
            tree: self,
            path: path.to_owned(),
            is_dir: true,
        }
    }

    /// Creates a symlink.
    pub fn symlink(&self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Item<'_> {
        self.make(path.as_ref(), |dir, name| {
            Ok(fs::symlinkat(target.as_ref(), dir, name)?)
        })
    }

    /// Creates another name of the file `leader`, a path in the same tree. The times stay the leader's.
    pub fn hardlink(&self, path: impl AsRef<[u8]>, leader: impl AsRef<[u8]>) -> Item<'_> {
        let path = path.as_ref();
        for root in &self.roots {
            let (from_dir, from) = parent_of(root, leader.as_ref());
            let (dir, name) = parent_of(root, path);
            let made = fs::linkat(from_dir, from, dir, name, AtFlags::empty());
            expect(made.map_err(Into::into), path);
        }
        self.touch_parents(path);
        Item {
            tree: self,
            path: path.to_owned(),
            is_dir: false,
        }
    }

    /// Creates a fifo.
    pub fn fifo(&self, path: impl AsRef<[u8]>) -> Item<'_> {
        self.node(path.as_ref(), FileType::Fifo, 0, 0)
    }

    /// Creates a socket without a listener.
    pub fn socket(&self, path: impl AsRef<[u8]>) -> Item<'_> {
        self.node(path.as_ref(), FileType::Socket, 0, 0)
    }

    /// Creates a character device; needs the super-user.
    pub fn char_device(&self, path: impl AsRef<[u8]>, major: u32, minor: u32) -> Item<'_> {
        self.node(path.as_ref(), FileType::CharacterDevice, major, minor)
    }

    /// Creates a block device; needs the super-user.
    pub fn block_device(&self, path: impl AsRef<[u8]>, major: u32, minor: u32) -> Item<'_> {
        self.node(path.as_ref(), FileType::BlockDevice, major, minor)
    }

    /// Gives an existing entry the mtime [`T0`] with other nanoseconds.
    pub fn nanos(&self, path: &str, nanos: i64) {
        let time = Timespec {
            tv_sec: T0,
            tv_nsec: nanos,
        };
        if let Some(look) = self.dirs.borrow_mut().get_mut(path.as_bytes()) {
            look.mtime = time;
        }
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        self.each(path.as_bytes(), |dir, name| {
            Ok(fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
        });
    }

    /// Removes a file.
    pub fn remove(&self, path: impl AsRef<[u8]>) {
        self.each(path.as_ref(), |dir, name| {
            Ok(fs::unlinkat(dir, name, AtFlags::empty())?)
        });
        self.touch_parents(path.as_ref());
    }

    fn node(&self, path: &[u8], kind: FileType, major: u32, minor: u32) -> Item<'_> {
        let device = fs::makedev(major, minor);
        self.make(path, |dir, name| {
            Ok(fs::mknodat(dir, name, kind, Mode::from(0o644), device)?)
        })
    }

    /// Creates an entry that is not a directory and gives it the default mtime.
    fn make(&self, path: &[u8], how: impl Fn(&OwnedFd, &[u8]) -> std::io::Result<()>) -> Item<'_> {
        self.each(path, how);
        self.touch_parents(path);
        let item = Item {
            tree: self,
            path: path.to_owned(),
            is_dir: false,
        };
        item.times(Some(default_time()), Some(default_time()))
    }

    /// Calls `how` in each twin with the directory that holds `path`.
    fn each(&self, path: &[u8], how: impl Fn(&OwnedFd, &[u8]) -> std::io::Result<()>) {
        for root in &self.roots {
            let (dir, name) = parent_of(root, path);
            expect(how(&dir, name), path);
        }
    }

    fn touch_parents(&self, path: &[u8]) {
        let mut rest = path;
        while let Some(slash) = rest.iter().rposition(|&b| b == b'/') {
            rest = &rest[..slash];
            if !rest.is_empty() {
                self.touch_dir(rest);
            }
        }
        self.touch_dir(b".");
    }

    fn touch_dir(&self, path: &[u8]) {
        let look = || DirLook {
            mode: None,
            mtime: default_time(),
        };
        self.dirs
            .borrow_mut()
            .entry(path.to_owned())
            .or_insert_with(look);
    }
}

impl Drop for Tree {
    /// Sets the modes and times of the directories, deepest first.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (path, look) in self.dirs.borrow().iter().rev() {
            let times = Timestamps {
                last_access: default_time(),
                last_modification: look.mtime,
            };
            self.each(path, |dir, name| {
                // The mode comes last: it may make the directory inaccessible to this process.
                fs::utimensat(dir, name, &times, AtFlags::empty())?;
                if let Some(mode) = look.mode {
                    fs::chmodat(dir, name, Mode::from(mode), AtFlags::empty())?;
                }
                Ok(())
            });
        }
    }
}

impl Item<'_> {
    /// Sets all permission bits, including setuid, setgid and sticky.
    pub fn mode(self, mode: u32) -> Self {
        if self.is_dir {
            self.look(|look| look.mode = Some(mode));
        } else {
            self.each(|dir, name| Ok(fs::chmodat(dir, name, Mode::from(mode), AtFlags::empty())?));
        }
        self
    }

    /// Sets the mtime to `offset_secs` seconds after [`T0`].
    pub fn mtime(self, offset_secs: i64) -> Self {
        self.mtime_ns(offset_secs, NANOS)
    }

    /// Sets the mtime to `offset_secs` seconds and `nanos` nanoseconds after [`T0`].
    pub fn mtime_ns(self, offset_secs: i64, nanos: i64) -> Self {
        let mtime = Timespec {
            tv_sec: T0 + offset_secs,
            tv_nsec: nanos,
        };
        if self.is_dir {
            self.look(|look| look.mtime = mtime);
            return self;
        }
        self.times(None, Some(mtime))
    }

    /// Sets the atime to `offset_secs` seconds after [`T0`]; not for directories.
    pub fn atime(self, offset_secs: i64) -> Self {
        self.times(
            Some(Timespec {
                tv_sec: T0 + offset_secs,
                tv_nsec: NANOS,
            }),
            None,
        )
    }

    /// Changes owner and group; skips the case unless the user is the super-user.
    pub fn owner(self, uid: u32, gid: u32) -> Self {
        if !rustix::process::geteuid().is_root() {
            super::skip("only the super-user can give files away");
        }
        self.each(|dir, name| {
            let before = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(before.st_mode) != FileType::Symlink {
                // chown clears the set-ID bits.
                fs::chmodat(
                    dir,
                    name,
                    Mode::from_raw_mode(before.st_mode),
                    AtFlags::empty(),
                )?;
            }
            Ok(())
        });
        self
    }

    /// Sets an extended attribute.
    pub fn xattr(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.each(|dir, name| {
            let path = through(dir, name);
            Ok(fs::lsetxattr(
                path,
                key,
                value.as_ref(),
                fs::XattrFlags::empty(),
            )?)
        });
        self
    }

    /// Sets the access ACL; entries in the kernel's order: owner, users, group, groups, mask, other.
    pub fn acl(self, entries: &[Acl]) -> Self {
        self.xattr("system.posix_acl_access", encode_acl(entries))
    }

    /// Sets the default ACL of a directory; order as in [`Item::acl`].
    pub fn default_acl(self, entries: &[Acl]) -> Self {
        self.xattr("system.posix_acl_default", encode_acl(entries))
    }

    fn times(self, atime: Option<Timespec>, mtime: Option<Timespec>) -> Self {
        let unchanged = Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        };
        let times = Timestamps {
            last_access: atime.unwrap_or(unchanged),
            last_modification: mtime.unwrap_or(unchanged),
        };
        self.each(|dir, name| Ok(fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?));
        self
    }

    fn look(&self, change: impl FnOnce(&mut DirLook)) {
        self.tree
            .dirs
            .borrow_mut()
            .get_mut(&self.path)
            .map(change)
            .expect("a directory created just now is recorded");
    }

    fn each(&self, how: impl Fn(&OwnedFd, &[u8]) -> std::io::Result<()>) {
        self.tree.each(&self.path, how);
    }
}

/// Splits `item` at the last `mark` if a number follows it.
fn split_number<T>(item: &str, mark: char, parse: impl Fn(&str) -> Option<T>) -> (&str, Option<T>) {
    let split = item
        .rsplit_once(mark)
        .and_then(|(head, tail)| Some((head, parse(tail)?)));
    split.map_or((item, None), |(head, number)| (head, Some(number)))
}

/// Returns incompressible bytes, in which a delta finds no matches with those of another seed.
pub fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Returns bytes that do not repeat soon and hold no long run of zeros.
fn filler(len: usize) -> Vec<u8> {
    const PERIOD: usize = 1 << 16;
    let start: Vec<u8> = (0..len.min(PERIOD))
        .map(|i| (i * 31 + (i >> 8) * 7 + 1) as u8)
        .collect();
    let mut bytes = start.repeat(len.div_ceil(PERIOD));
    bytes.truncate(len);
    bytes
}

fn default_time() -> Timespec {
    Timespec {
        tv_sec: T0,
        tv_nsec: NANOS,
    }
}

/// Opens the directory that holds `path`, creating missing components one at a time, so paths may exceed `PATH_MAX`.
fn parent_of<'p>(root: &OwnedFd, path: &'p [u8]) -> (OwnedFd, &'p [u8]) {
    let mut components = path
        .split(|&b| b == b'/')
        .filter(|c| !c.is_empty())
        .collect::<Vec<_>>();
    let name = components.pop().unwrap_or(b".");
    let mut dir = root.try_clone().expect("file descriptors are available");
    for component in components {
        if fs::statat(&dir, component, AtFlags::empty()).is_err() {
            let made = fs::mkdirat(&dir, component, Mode::from(0o755));
            expect(made.map_err(Into::into), path);
        }
        dir = open_dir(&dir, component);
    }
    (dir, name)
}

fn open_dir(at: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::openat(at, path, flags, Mode::empty())
        .unwrap_or_else(|e| panic!("a directory cannot be opened: {e}"))
}

/// Returns a path to `name` in `dir`, for system calls that take no directory descriptor.
pub fn through(dir: &OwnedFd, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(std::ffi::OsStr::from_bytes(name))
}

fn expect(result: std::io::Result<()>, path: &[u8]) {
    if let Err(error) = result {
        panic!("the kit cannot build \"{}\": {error}", path.escape_ascii());
    }
}

/// Encodes the value of `system.posix_acl_*`: version 2, then tag, permissions and ID of each entry.
fn encode_acl(entries: &[Acl]) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut value = 2u32.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, bits, id) = match *entry {
            Acl::Owner(bits) => (0x01u16, bits, NOBODY),
            Acl::User(id, bits) => (0x02, bits, id),
            Acl::OwnGroup(bits) => (0x04, bits, NOBODY),
            Acl::Group(id, bits) => (0x08, bits, id),
            Acl::Mask(bits) => (0x10, bits, NOBODY),
            Acl::Other(bits) => (0x20, bits, NOBODY),
        };
        value.extend(tag.to_le_bytes());
        value.extend(bits.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Formats the value of `system.posix_acl_*` on one line, in the style of getfacl.
pub fn decode_acl(value: &[u8]) -> String {
    let entries = value
        .get(4..)
        .unwrap_or_default()
        .chunks_exact(8)
        .map(|entry| {
            let [tag, bits] = [0, 2].map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]));
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let who = match tag {
                0x01 => "u:".to_owned(),
                0x02 => format!("u:{id}"),
                0x04 => "g:".to_owned(),
                0x08 => format!("g:{id}"),
                0x10 => "m:".to_owned(),
                0x20 => "o:".to_owned(),
                other => format!("?{other}"),
            };
            format!("{who}:{bits}")
        });
    entries.collect::<Vec<_>>().join(",")
}
