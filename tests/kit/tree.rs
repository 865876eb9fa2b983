//! Takes a snapshot of a tree, with every property that a copy could get wrong.
//!
//! A snapshot has one line of text per entry, so that comparing trees is comparing lines, and differences are readable.
//! The walk uses directory descriptors, because paths may exceed `PATH_MAX`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};

use super::build::{decode_acl, through};

/// What a snapshot includes beyond the default, and which times it masks.
#[derive(Clone, Copy)]
pub struct Lens {
    /// Include the blocks that files occupy.
    pub blocks: bool,
    /// Include atimes.
    pub atimes: bool,
    /// Show names of one file as such only within one directory of the top.
    pub links_within: bool,
    /// Times from this one on, in seconds since the epoch, are shown as "now".
    pub now_secs: i64,
}

/// The lines of a tree, by path.
pub type Snapshot = BTreeMap<Vec<u8>, String>;

/// Takes a snapshot of everything below `root`, without `root` itself.
pub fn snapshot(root: &Path, lens: Lens) -> Snapshot {
    let mut walk = Walk {
        lens,
        entries: BTreeMap::new(),
        groups: BTreeMap::new(),
    };
    let dir = open(
        fs::CWD,
        root.as_os_str().as_encoded_bytes(),
        OFlags::DIRECTORY,
    );
    walk.dir(
        &dir.unwrap_or_else(|e| panic!("no tree at {}: {e}", root.display())),
        b"",
    );
    walk.finish()
}

/// Returns whether a file is a log, whose lines are compared after masking.
pub fn is_log(path: &[u8]) -> bool {
    path.ends_with(b".log") && !path.contains(&b'/')
}

/// Returns the content of each entry below `top` but directories. A symlink counts by its target, a fifo by its mode.
pub fn files(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(top.join(&dir)) else {
            continue;
        };
        for entry in entries {
            let entry = entry.expect("scratch can be read");
            let (path, kind) = (
                dir.join(entry.file_name()),
                entry.file_type().expect("it has a type"),
            );
            let content = if kind.is_dir() {
                dirs.push(path);
                continue;
            } else if kind.is_file() {
                std::fs::read(entry.path()).expect("scratch can be read")
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path()).expect("scratch can be read");
                [b"-> ", target.as_os_str().as_encoded_bytes()].concat()
            } else {
                entry
                    .metadata()
                    .expect("the file exists")
                    .mode()
                    .to_string()
                    .into_bytes()
            };
            found.insert(path, content);
        }
    }
    found
}

/// Returns whether a name is that of a temporary file: `.name.XXXXXX`.
pub fn is_temp(name: &str) -> bool {
    let end = name.rsplit('.').next().unwrap_or_default();
    name.starts_with('.') && end.len() == 6 && end.bytes().all(|b| b.is_ascii_alphanumeric())
}

struct Walk {
    lens: Lens,
    /// The line of each path, and its inode if it has several names.
    entries: BTreeMap<Vec<u8>, (String, Option<Inode>)>,
    groups: BTreeMap<Inode, Vec<Vec<u8>>>,
}

/// Device and inode, and the part of the snapshot in which its names are counted.
type Inode = (u64, u64, Vec<u8>);

impl Walk {
    fn dir(&mut self, dir: &OwnedFd, prefix: &[u8]) {
        // The descriptor itself, not "." below it: a directory may be readable but not searchable.
        let handle = dir.try_clone().expect("file descriptors are available");
        let names = Dir::new(handle).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_bytes().to_owned()))
                .collect::<Result<Vec<_>, _>>()
        });
        for name in names.expect("an open directory can be read") {
            if name != b"." && name != b".." {
                self.entry(dir, &name, &[prefix, &name].concat());
            }
        }
    }

    fn entry(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8]) {
        let stat = match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => {
                let line = format!("? \"{}\" ({error})", path.escape_ascii());
                self.entries.insert(path.to_owned(), (line, None));
                return;
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut line = format!(
            "{} {:04o} {}:{}",
            letter(kind),
            stat.st_mode & 0o7777,
            stat.st_uid,
            stat.st_gid
        );
        line += &format!(" {}", self.time(stat.st_mtime, stat.st_mtime_nsec as i64));
        if self.lens.atimes {
            line += &format!(
                " atime {}",
                self.time(stat.st_atime, stat.st_atime_nsec as i64)
            );
        }
        line += &format!(" \"{}\"", path.escape_ascii());
        line += &match kind {
            FileType::RegularFile if is_log(path) => " (a log)".to_owned(),
            FileType::RegularFile => content(dir, name, stat.st_size as u64),
            FileType::Symlink => {
                let target = fs::readlinkat(dir, name, Vec::new()).expect("a symlink can be read");
                format!(" -> \"{}\"", target.to_bytes().escape_ascii())
            }
            FileType::CharacterDevice | FileType::BlockDevice => {
                format!(" {},{}", fs::major(stat.st_rdev), fs::minor(stat.st_rdev))
            }
            _ => String::new(),
        };
        if self.lens.blocks && kind == FileType::RegularFile {
            line += &format!(" blocks={}", stat.st_blocks);
        }
        for (key, value) in xattrs(dir, name) {
            line += &match key.strip_prefix(b"system.posix_acl_") {
                Some(which) => format!(" acl_{}={}", which.escape_ascii(), decode_acl(&value)),
                None => format!(" {}=\"{}\"", key.escape_ascii(), value.escape_ascii()),
            };
        }
        let is_shared = kind != FileType::Directory && stat.st_nlink > 1;
        let shared = is_shared.then(|| (stat.st_dev, stat.st_ino, self.share_of(path)));
        if let Some(inode) = &shared {
            if !self.lens.links_within {
                line += &format!(" nlink={}", stat.st_nlink);
            }
            self.groups
                .entry(inode.clone())
                .or_default()
                .push(path.to_owned());
        }
        if kind == FileType::Directory {
            match open(dir, name, OFlags::DIRECTORY) {
                Ok(below) => self.dir(&below, &[path, b"/"].concat()),
                // Ordinary users cannot open every directory.
                Err(error) => line += &format!(" (closed: {error})"),
            }
        }
        self.entries.insert(path.to_owned(), (line, shared));
    }

    /// Returns the part of the snapshot in which the names of a file are counted.
    fn share_of(&self, path: &[u8]) -> Vec<u8> {
        if self.lens.links_within {
            path.split(|&b| b == b'/')
                .next()
                .unwrap_or_default()
                .to_vec()
        } else {
            Vec::new()
        }
    }

    fn time(&self, secs: i64, nanos: i64) -> String {
        if secs >= self.lens.now_secs {
            "now".to_owned()
        } else {
            format!("{secs}.{nanos:09}")
        }
    }

    /// Names each hard-link group by its first path, which does not depend on inode numbers.
    fn finish(self) -> Snapshot {
        let Walk {
            lens,
            entries,
            mut groups,
        } = self;
        groups.values_mut().for_each(|paths| paths.sort());
        let lines = entries.into_iter().map(|(path, (mut line, inode))| {
            if let Some(inode) = inode
                && !(lens.links_within && groups[&inode].len() == 1)
            {
                line += &format!(" group=\"{}\"", groups[&inode][0].escape_ascii());
            }
            (path, line)
        });
        lines.collect()
    }
}

/// Opens a file without changing the atime if the kernel allows that.
fn open(at: impl std::os::fd::AsFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let quietly = fs::openat(&at, name, flags | OFlags::NOATIME, Mode::empty());
    quietly.or_else(|_| fs::openat(&at, name, flags, Mode::empty()))
}

/// Formats the length, the first bytes, and a hash of the whole content; a hole reads as zeros.
fn content(dir: &OwnedFd, name: &[u8], len: u64) -> String {
    const SHOWN: usize = 48;
    let Ok(file) = open(dir, name, OFlags::empty()) else {
        return format!(" {len}B (unreadable)");
    };
    let mut file = std::fs::File::from(file);
    let (mut hasher, mut shown, mut chunk) = (DefaultHasher::new(), Vec::new(), vec![0; 1 << 16]);
    loop {
        let got = file.read(&mut chunk).expect("an open file can be read");
        if got == 0 {
            break;
        }
        let bytes = &chunk[..got];
        hasher.write(bytes);
        shown.extend(bytes.iter().take(SHOWN.saturating_sub(shown.len())));
    }
    len.hash(&mut hasher);
    format!(
        " {len}B \"{}\" #{:08x}",
        shown.escape_ascii(),
        hasher.finish() as u32
    )
}

fn xattrs(dir: &OwnedFd, name: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let path = through(dir, name);
    let mut names = vec![0; 1 << 16];
    let Ok(used) = fs::llistxattr(&path, &mut names[..]) else {
        return BTreeMap::new();
    };
    names.truncate(used);
    let keys = names.split(|&b| b == 0).filter(|key| !key.is_empty());
    let pairs = keys.map(|key| {
        let mut value = vec![0; 1 << 16];
        let len =
            fs::lgetxattr(&path, key, &mut value[..]).expect("a listed attribute can be read");
        value.truncate(len);
        (key.to_owned(), value)
    });
    pairs.collect()
}

/// Returns the letter of a file type, as `find` prints it.
pub fn letter(kind: FileType) -> char {
    match kind {
        FileType::RegularFile => 'f',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Unknown => '?',
    }
}
