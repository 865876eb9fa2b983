//! Opens paths that a user or an operator names without following symlinks of other users.
//!
//! A user who can write to a directory on the path could plant a symlink there, and a privileged run would follow it.
//! So a symlink is followed only if it belongs to root or to the user of this process. This is the only way to open
//! paths of options, configurations and grants; `tests/tidy.rs` enforces it, and SECURITY.md lists them all. Source
//! operands are not opened here: their targets are copied regardless of the owner of the link.
//!
//! In a user namespace without root, what root owns has the same owner as what others own. There, `/proc/self` and the
//! links of /dev to the descriptors of this process would be refused. So links that only the kernel can have created are
//! followed with any owner, and those of /dev if that is where they lead; see `WalkState::look`.
//!
//! `--confine-root` names a directory that limits where the paths of options lead; see [`confine`].
//!
//! A path without symlinks costs one call. If there is a symlink, this module walks the path element by element,
//! because the kernel does not check owners. It examines each element through the directory opened before it, so an
//! element that is replaced during the walk is checked as well.

use super::acl;
use super::errno;
use super::sandbox::{self, Sandbox};
use super::sys::{self, Call};
use super::xattr::At;
use crate::options::LinkOwners;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;
use std::sync::OnceLock;

/// The directory of `--confine-root`.
static CONFINE_ROOT: OnceLock<Vec<u8>> = OnceLock::new();

/// Confines the directories of options and the merge files of directories to `root`, an absolute path: from now on,
/// those that lead elsewhere fail with ELOOP. Operands are not confined. As in rsync, symlinks in `root` itself are not
/// resolved. Only the first call has an effect.
pub fn confine(root: &[u8]) {
    let _ = CONFINE_ROOT.set(root.to_vec());
}

/// Returns whether [`confine`] was called.
pub fn is_confined() -> bool {
    CONFINE_ROOT.get().is_some()
}

/// Fails if an open file or directory is outside of the directory of [`confine`].
pub fn check_inside(fd: BorrowedFd<'_>) -> io::Result<()> {
    match CONFINE_ROOT.get() {
        Some(root) if sandbox::below(root, &sandbox::path_of(fd)?).is_none() => {
            Err(Errno::LOOP.into())
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns a file or directory if it is inside of the directory of [`confine`].
fn inside(fd: OwnedFd) -> io::Result<OwnedFd> {
    check_inside(fd.as_fd()).map(|()| fd)
}

/// How many symlinks a path may contain, as in the kernel.
const LINKS_MAX: usize = 40;

/// The message for a symlink that was not followed; rsync's line.
pub const REFUSAL: &[u8] =
    b"refusing to follow a symlink owned by an untrusted user; use --insecure-links locally or \
    \"insecure links = yes\" in a daemon module ONLY if every path component is trusted";

/// A path was not opened because a symlink in it belongs to an untrusted user. Displayed like the kernel's ELOOP.
#[derive(Debug)]
struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Too many levels of symbolic links (40)")
    }
}

impl std::error::Error for Refused {}

/// Returns "Too many levels of symbolic links", for a symlink of an untrusted user.
pub fn refused() -> io::Error {
    io::Error::other(Refused)
}

/// Returns whether the cause is a symlink of an untrusted user, so that [`REFUSAL`] must be printed.
pub fn is_refused(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Refused>())
}

/// Returns a line about an error, preceded by [`REFUSAL`] on a line of its own if the error requires it.
pub fn with_refusal(error: &io::Error, line: Vec<u8>) -> Vec<u8> {
    if is_refused(error) {
        [REFUSAL, b"\n", &line].concat()
    } else {
        line
    }
}

/// Splits the result of [`with_refusal`] into its lines. Other newlines are part of a name.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let rest = text
        .strip_prefix(REFUSAL)
        .and_then(|rest| rest.strip_prefix(b"\n"));
    rest.map(|_| REFUSAL)
        .into_iter()
        .chain([rest.unwrap_or(text)])
}

/// Opens a directory that an operand names, like [`sys::open_dir_path`].
pub fn open_dir(path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    open_from_cwd(path, (Call::OpenDir, sys::DIR_FLAGS, Mode::empty()), owners)
}

/// Like [`open_dir`], for a directory that an option names. It can be confined.
pub fn open_option_dir(path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    open_dir_of_known_names(path, owners).and_then(inside)
}

/// Like [`open_dir`], for a directory of which only entries with known names are used. So this process need not be allowed
/// to list it.
pub fn open_dir_of_known_names(path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    match open_dir(path, owners) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_dir_to_search(path, owners)
        }
        opened => opened,
    }
}

/// Like [`open_dir`], for a directory that may not be listed.
pub fn open_dir_to_search(path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    open_from_cwd(path, (Call::OpenDir, TO_SEARCH, Mode::empty()), owners)
}

/// Like [`open_dir`], for a path relative to `dir`.
pub fn open_dir_in(dir: BorrowedFd<'_>, path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    open_trusted(
        dir,
        path,
        (Call::OpenDir, sys::DIR_FLAGS, Mode::empty()),
        owners,
    )
}

/// Like [`open_dir_in`], for a directory that may not be listed.
pub fn open_dir_in_to_search(
    dir: BorrowedFd<'_>,
    path: &[u8],
    owners: LinkOwners,
) -> io::Result<OwnedFd> {
    open_trusted(dir, path, (Call::OpenDir, TO_SEARCH, Mode::empty()), owners)
}

/// Opens a file for appending, and creates it if it does not exist.
pub fn open_append(path: &[u8], mode: u32, owners: LinkOwners) -> io::Result<OwnedFd> {
    sys::may_write()?;
    let mode = Mode::from_raw_mode(mode);
    open_from_cwd(path, (Call::Open, APPEND_FLAGS, mode), owners)
}

const APPEND_FLAGS: OFlags = OFlags::WRONLY
    .union(OFlags::APPEND)
    .union(OFlags::CREATE)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);

/// As [`open_append`], but does not wait for a program that reads a FIFO: without one, this is an error. Writing may wait.
pub fn open_append_at_once(path: &[u8], mode: u32, owners: LinkOwners) -> io::Result<OwnedFd> {
    sys::may_write()?;
    let flags = APPEND_FLAGS | OFlags::NONBLOCK;
    let mode = Mode::from_raw_mode(mode);
    let file = match open_from_cwd(path, (Call::Open, flags, mode), owners) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            return Err(io::Error::other("no program reads this FIFO"));
        }
        opened => opened?,
    };
    let flags = fs::fcntl_getfl(&file)?;
    fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Opens a file to lock it, and creates it if it does not exist. It is opened for reading as well, so that a FIFO does not
/// block.
pub fn open_lock(path: &[u8], mode: u32, owners: LinkOwners) -> io::Result<OwnedFd> {
    sys::may_write()?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
    open_from_cwd(path, (Call::Open, flags, Mode::from_raw_mode(mode)), owners)
}

/// Reads a whole file, up to `max_bytes`. In a session of a server, it must be a regular file.
pub fn read_path(path: &[u8], max_bytes: usize, owners: LinkOwners) -> io::Result<Vec<u8>> {
    sys::read_whole(open_file(path, owners)?.as_fd(), max_bytes)
}

/// Opens a file for reading. Waits for a writer of a fifo, except in a session of a server.
pub fn open_file(path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    open_from_cwd(
        path,
        (Call::Open, sys::whole_flags(), Mode::empty()),
        owners,
    )
}

/// Opens a regular file for reading. Anything else fails at once: opening a fifo would wait for a writer.
pub fn open_regular(path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = open_from_cwd(path, (Call::Open, flags, Mode::empty()), owners)?;
    if fs::FileType::from_raw_mode(fs::fstat(&file)?.st_mode) == fs::FileType::RegularFile {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        ))
    }
}

/// Opens a merge file. Its name is relative to `dir` and may lead elsewhere. It can be confined. Never waits on a fifo.
pub fn open_rules(dir: BorrowedFd<'_>, name: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    open_read(dir, name, owners).and_then(inside)
}

/// Opens a file for reading. Its name is relative to `dir` and may lead elsewhere. Never waits on a fifo.
pub fn open_read(dir: BorrowedFd<'_>, name: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    open_trusted(dir, name, (Call::Open, flags, Mode::empty()), owners)
}

/// The mode of a directory that is created.
#[derive(Debug, Clone, Copy)]
pub enum NewDirMode {
    /// Only this process's user may use it: `0700`.
    Private,
    /// That of mkdir(1) under this umask, or under a default ACL.
    ByUmask(u32),
}

/// Opens a directory that an option names, and creates it and its missing parents. It can be confined.
pub fn make_dirs(path: &[u8], mode: NewDirMode, owners: LinkOwners) -> io::Result<OwnedFd> {
    match open_option_dir(path, owners) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    make_dirs(parent_and_name(path)?.0, mode, owners)?;
    make_dir(path, mode, owners)
}

/// Opens a directory that an option names, and creates it if it does not exist. It can be confined.
pub fn make_dir(path: &[u8], mode: NewDirMode, owners: LinkOwners) -> io::Result<OwnedFd> {
    let (parent, name) = parent_and_name(path)?;
    let parent = open_dir_to_search(parent, owners)?;
    if check_inside(parent.as_fd()).is_err() {
        return open_option_dir(path, owners);
    }
    let bits = match mode {
        NewDirMode::Private => 0o700,
        NewDirMode::ByUmask(umask) => {
            let default = At::Fd(parent.as_fd()).get(acl::DEFAULT).unwrap_or(None);
            let default_mode = default.as_deref().and_then(acl::default_mode);
            acl::mode_of_new_dir(default_mode, umask)
        }
    };
    match sys::mkdir(parent.as_fd(), name, bits) {
        // It was created in the meantime, or it is a symlink.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => open_option_dir(path, owners),
    }
}

/// Returns the parent of a directory and its name there; "No such file or directory" if it cannot be created.
fn parent_and_name(path: &[u8]) -> io::Result<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    match crate::path::split_parent(&path[..end]) {
        (_, b"" | b"." | b"..") => Err(Errno::NOENT.into()),
        (b"", name) => Ok((if path.starts_with(b"/") { b"/" } else { b"." }, name)),
        found => Ok(found),
    }
}

const TO_SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The call to count, and the flags and mode for opening the last element of a path.
type OpenMode = (Call, OFlags, Mode);

fn open_from_cwd(path: &[u8], how: OpenMode, owners: LinkOwners) -> io::Result<OwnedFd> {
    open_trusted(fs::CWD, path, how, owners)
}

fn open_trusted(
    dir: BorrowedFd<'_>,
    path: &[u8],
    how: OpenMode,
    owners: LinkOwners,
) -> io::Result<OwnedFd> {
    let (call, flags, mode) = how;
    let user = sys::ids().0;
    match sandbox::of_process().filter(|reach| !reach.is_everything()) {
        _ if owners == LinkOwners::Anyone => {
            sys::enter(call)?;
            sys::open_through(dir, path, flags, mode)
        }
        None => open_below(
            WalkStart {
                dir,
                is_floor: false,
            },
            path,
            how,
            user,
        ),
        Some(reach) => open_in_reach(reach, dir, path, how, user),
    }
}

fn open_in_reach(
    reach: &Sandbox,
    dir: BorrowedFd<'_>,
    path: &[u8],
    how: OpenMode,
    user: u32,
) -> io::Result<OwnedFd> {
    reach.open_with(dir, path, &|root, rest| {
        open_below(
            WalkStart {
                dir: root,
                is_floor: true,
            },
            rest,
            how,
            user,
        )
    })
}

/// Returns whether symlinks of this owner are followed for a user.
fn is_trusted(owner: u32, user: u32) -> bool {
    owner == 0 || owner == user
}

/// The start of a walk.
#[derive(Clone, Copy)]
struct WalkStart<'a> {
    dir: BorrowedFd<'a>,
    /// Whether paths must not lead above it. If they do, the error is EXDEV.
    is_floor: bool,
}

fn open_below(start: WalkStart<'_>, path: &[u8], how: OpenMode, user: u32) -> io::Result<OwnedFd> {
    let (call, flags, mode) = how;
    let mut resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if start.is_floor {
        resolve |= ResolveFlags::BENEATH;
    }
    if sandbox::has_hidden() {
        // Symlinks and `..` may lead into a directory that the rules of a module exclude.
        return walk(start, path, how, user);
    }
    sys::enter(call)?;
    loop {
        match fs::openat2(start.dir, path, flags, mode, resolve) {
            Ok(fd) => return Ok(fd),
            // The kernel requests a retry if a rename happened during the walk.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // There is a symlink, or this kernel does not have the call.
            Err(error) if error == Errno::LOOP || errno::is_call_refused(&error.into()) => {
                return walk(start, path, how, user);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Walks a path element by element, without `openat2`.
fn walk(
    start: WalkStart<'_>,
    path: &[u8],
    (call, flags, mode): OpenMode,
    user: u32,
) -> io::Result<OwnedFd> {
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    let mut place = WalkState {
        start,
        entered: Vec::new(),
    };
    let mut ahead = path.to_vec();
    let mut links = 0;
    if ahead.first() == Some(&b'/') {
        place.change_to_root()?;
    }
    loop {
        let (name, rest) = split_first(&ahead);
        let is_last = rest.iter().all(|&b| b == b'/');
        // A trailing slash requires a directory.
        let flags = if rest.is_empty() {
            flags
        } else {
            flags | OFlags::DIRECTORY
        };
        sys::enter(call)?;
        match name {
            b"" | b"." => {}
            b".." => place.climb()?,
            name => match place.look(name, is_last && flags.contains(OFlags::CREATE), user)? {
                Element::Link(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    if target.first() == Some(&b'/') {
                        place.change_to_root()?;
                    }
                    ahead = [&target, rest].concat();
                    continue;
                }
                Element::Magic if is_last => {
                    return Ok(fs::openat(place.dir(), name, flags, mode)?);
                }
                Element::Magic => place.enter(name, OFlags::empty())?,
                Element::Other if is_last => {
                    sandbox::check_reached(place.dir(), name)?;
                    return Ok(fs::openat(
                        place.dir(),
                        name,
                        flags | OFlags::NOFOLLOW,
                        mode,
                    )?);
                }
                Element::Other => place.enter(name, OFlags::NOFOLLOW)?,
            },
        }
        if is_last {
            sandbox::check_reached(place.dir(), b".")?;
            return Ok(fs::openat(place.dir(), c".", flags, mode)?);
        }
        ahead = rest.to_vec();
    }
}

/// The kind of a path element.
enum Element {
    /// A symlink that may be followed, and its target.
    Link(Vec<u8>),
    /// A symlink in /proc that may be followed. Its target may have no path, so only the kernel can resolve it.
    Magic,
    /// Not a symlink, or missing.
    Other,
}

const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Splits a path into its first element and the rest, which includes the slashes.
fn split_first(path: &[u8]) -> (&[u8], &[u8]) {
    let begin = path.iter().position(|&b| b != b'/').unwrap_or(path.len());
    let path = &path[begin..];
    path.split_at(path.iter().position(|&b| b == b'/').unwrap_or(path.len()))
}

/// The number of the root of every proc file system.
const PROC_ROOT_INO: u64 = 1;

/// Returns whether a directory is the root of a proc file system. No user can create a symlink there.
fn is_root_of_proc(dir: BorrowedFd<'_>) -> bool {
    is_in_proc(dir) && fs::fstat(dir).is_ok_and(|stat| stat.st_ino == PROC_ROOT_INO)
}

/// Returns whether a directory is /dev.
fn is_dev(dir: BorrowedFd<'_>) -> bool {
    let same = |dir: fs::Stat, dev: fs::Stat| (dir.st_dev, dir.st_ino) == (dev.st_dev, dev.st_ino);
    let dev = fs::open(c"/dev", LOOK, Mode::empty()).and_then(fs::fstat);
    fs::fstat(dir).is_ok_and(|dir| dev.is_ok_and(|dev| same(dir, dev)))
}

/// Returns whether an open symlink leads to descriptors of this process, as `/dev/fd` and `/dev/stdin` do.
fn leads_to_own_descriptors(link: &OwnedFd) -> bool {
    let target = fs::readlinkat(link, c"", Vec::new());
    target.is_ok_and(|target| {
        let rest = target.to_bytes().strip_prefix(b"/proc/self/fd");
        rest.is_some_and(|rest| rest.iter().all(|&b| b == b'/' || b.is_ascii_digit()))
    })
}

/// Returns whether an open symlink is in /proc.
fn is_magic(link: &OwnedFd) -> bool {
    is_in_proc(link.as_fd())
}

fn is_in_proc(fd: BorrowedFd<'_>) -> bool {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the widths differ between architectures"
    )]
    fs::fstatfs(fd).is_ok_and(|found| found.f_type as u64 == libc::PROC_SUPER_MAGIC as u64)
}

/// The progress of a walk.
struct WalkState<'a> {
    start: WalkStart<'a>,
    /// The directories entered since the start. Without a floor, only the last one is kept.
    entered: Vec<OwnedFd>,
}

impl WalkState<'_> {
    fn dir(&self) -> BorrowedFd<'_> {
        self.entered.last().map_or(self.start.dir, |fd| fd.as_fd())
    }

    /// Examines an element; fails if it is a symlink of an untrusted user.
    fn look(&self, name: &[u8], may_be_missing: bool, user: u32) -> io::Result<Element> {
        let fd = match fs::openat(self.dir(), name, LOOK, Mode::empty()) {
            Err(Errno::NOENT) if may_be_missing => return Ok(Element::Other),
            other => other?,
        };
        let stat = fs::fstat(&fd)?;
        if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::Symlink {
            return Ok(Element::Other);
        }
        let is_trusted = is_trusted(stat.st_uid, user)
            || is_root_of_proc(self.dir())
            || is_dev(self.dir()) && leads_to_own_descriptors(&fd);
        if !is_trusted {
            return Err(refused());
        }
        if !self.start.is_floor && is_magic(&fd) {
            return Ok(Element::Magic);
        }
        Ok(Element::Link(
            fs::readlinkat(&fd, c"", Vec::new())?.into_bytes(),
        ))
    }

    fn change_to_root(&mut self) -> io::Result<()> {
        if self.start.is_floor {
            return Err(Errno::XDEV.into());
        }
        self.entered = vec![fs::open(c"/", TO_SEARCH, Mode::empty())?];
        Ok(())
    }

    fn climb(&mut self) -> io::Result<()> {
        if self.start.is_floor {
            // Return the way the walk came, not to a parent to which the directory may have been moved since.
            return self
                .entered
                .pop()
                .map(drop)
                .ok_or_else(|| Errno::XDEV.into());
        }
        self.enter(b"..", OFlags::empty())
    }

    fn enter(&mut self, name: &[u8], more: OFlags) -> io::Result<()> {
        let next = fs::openat(self.dir(), name, TO_SEARCH | more, Mode::empty())?;
        if !self.start.is_floor {
            self.entered.clear();
        }
        self.entered.push(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    const READ: OpenMode = (Call::Open, OFlags::RDONLY, Mode::empty());
    /// A user who owns no links.
    const STRANGER: u32 = 4242;

    fn me() -> u32 {
        sys::ids().0
    }

    fn scene() -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        std::fs::create_dir_all(at("a/deep")).unwrap();
        std::fs::write(at("a/f"), "f").unwrap();
        std::fs::write(at("a/deep/g"), "g").unwrap();
        symlink("a", at("to_a")).unwrap();
        symlink("to_a", at("to_to_a")).unwrap();
        symlink("../a/deep/", at("a/slashed")).unwrap();
        symlink(at("a"), at("absolute")).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("a/new", at("dangling")).unwrap();
        symlink("f", at("a/to_f")).unwrap();
        top
    }

    /// Changes the owner of the links if the test runs as root.
    fn chown_links(top: &Path) {
        if me() == 0 {
            for link in [
                "to_a",
                "to_to_a",
                "a/slashed",
                "absolute",
                "loop",
                "dangling",
                "a/to_f",
            ] {
                std::os::unix::fs::lchown(top.join(link), Some(12345), None).unwrap();
            }
        }
    }

    fn text(fd: io::Result<OwnedFd>) -> Result<String, String> {
        let fd = fd.map_err(|error| error.to_string())?;
        let read = sys::read_to_end(fd.as_fd(), 100).map_err(|error| error.kind().to_string())?;
        Ok(String::from_utf8(read).unwrap())
    }

    fn open_as(user: u32, top: &Path, path: &str, is_floor: bool) -> io::Result<OwnedFd> {
        let dir = sys::open_dir_path(top.as_os_str().as_bytes()).unwrap();
        open_below(
            WalkStart {
                dir: dir.as_fd(),
                is_floor,
            },
            path.as_bytes(),
            READ,
            user,
        )
    }

    #[test]
    fn root_and_the_own_user_are_trusted() {
        assert!(is_trusted(0, 0) && is_trusted(0, 7) && is_trusted(7, 7));
        assert!(!is_trusted(7, 0) && !is_trusted(7, 8));
    }

    #[test]
    fn trusted_links_resolve_as_in_the_kernel() {
        let top = scene();
        for path in [
            "a/f",
            "to_a/f",
            "to_to_a/f",
            "to_a//./f",
            "absolute/f",
            "to_a/to_f",
            "to_a/slashed/g",
            "to_a/slashed/../f",
            "a/deep/../to_f",
            "to_a/nothing",
            "nothing/f",
            "loop",
            "loop/f",
            "to_a/f/",
            "to_a/to_f/",
            "a/f/..",
            "to_a/f/..",
            "to_a/",
            "to_a/.",
            "to_a/deep/..",
            "dangling",
            "",
        ] {
            let kernel = std::fs::File::open(top.path().join(path)).map(OwnedFd::from);
            let kernel = if path.is_empty() {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            } else {
                kernel
            };
            assert_eq!(
                text(open_as(me(), top.path(), path, false)),
                text(kernel),
                "{path}"
            );
        }
    }

    #[test]
    fn links_of_other_users_are_rejected() {
        let top = scene();
        chown_links(top.path());
        for path in [
            "to_a",
            "to_a/",
            "to_a/f",
            "a/to_f",
            "absolute/f",
            "dangling",
            "loop",
            "a/../to_a/nothing",
        ] {
            let error = open_as(STRANGER, top.path(), path, false).unwrap_err();
            assert!(is_refused(&error), "{path}: {error}");
            let text = with_refusal(&error, b"x\ny".to_vec());
            assert_eq!(lines(&text).collect::<Vec<_>>(), [REFUSAL, b"x\ny"]);
        }
        assert!(open_as(STRANGER, top.path(), "a/deep/../f", false).is_ok());
        let error = open_as(STRANGER, top.path(), "nothing", false).unwrap_err();
        assert!(!is_refused(&error));
        assert_eq!(
            lines(&with_refusal(&error, b"x\ny".to_vec())).collect::<Vec<_>>(),
            [b"x\ny"]
        );
    }

    #[test]
    fn beneath_mode_rejects_links_that_lead_out() {
        let top = scene();
        let floor = top.path().join("a");
        symlink("../a/f", floor.join("up")).unwrap();
        symlink("deep/../f", floor.join("round")).unwrap();
        symlink(floor.join("f"), floor.join("abs")).unwrap();
        symlink("/proc/self/root/etc", floor.join("proc")).unwrap();
        assert_eq!(text(open_as(me(), &floor, "round", true)).unwrap(), "f");
        assert_eq!(text(open_as(me(), &floor, "round", false)).unwrap(), "f");
        for path in [
            "up",
            "abs",
            "proc",
            "proc/passwd",
            "../a/f",
            "deep/../../a/f",
            "slashed/g",
        ] {
            let error = open_as(me(), &floor, path, true).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{path}: {error}");
        }
    }

    #[test]
    fn missing_targets_of_trusted_links_are_created() {
        let top = scene();
        let at = |name: &str| top.path().join(name).into_os_string().into_encoded_bytes();
        drop(open_append(&at("dangling"), 0o600, LinkOwners::Trusted).unwrap());
        assert!(top.path().join("a/new").is_file());
        drop(make_dirs(&at("to_a/x/y/"), NewDirMode::Private, LinkOwners::Trusted).unwrap());
        assert!(top.path().join("a/x/y").is_dir());
        let missing =
            make_dir(&at("to_a/p/q"), NewDirMode::Private, LinkOwners::Trusted).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(make_dirs(&at("a/f/x"), NewDirMode::Private, LinkOwners::Trusted).is_err());
    }

    #[test]
    fn proc_fd_links_are_followed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"piped").unwrap();
        drop(writer);
        let path = [
            &b"/proc/self"[..],
            &sys::proc_fd(reader.as_fd())[b"/proc/self".len()..],
        ]
        .concat();
        let text = read_path(&path, 100, LinkOwners::Trusted).unwrap();
        assert_eq!(text, b"piped");
    }
}
