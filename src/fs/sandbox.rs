//! Confines a process to some directories.
//!
//! Each session of a server is a process of its own, which is confined before it reads from its client. From then on,
//! [`super::sys`] checks here every name that could lead further than one step from an open directory: absolute paths,
//! paths relative to the working directory, and symlinks that are followed. The kernel resolves them below a root
//! (`openat2` with `RESOLVE_BENEATH`), so replacing a directory during the walk does not help an attacker.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;
use std::sync::OnceLock;

/// The confinement of this process. See the page of [`super`].
static SANDBOX: OnceLock<Sandbox> = OnceLock::new();

/// Returns the confinement of this process; `None` if it was not confined.
pub fn of_process() -> Option<&'static Sandbox> {
    SANDBOX.get()
}

/// Confines this process: nothing outside of `roots` (absolute paths) can be opened, examined or changed any more. If
/// `read_only`, nothing at all can be changed. The root `/` permits everything.
///
/// `open` opens a root. Call it once, before any thread is started. Fails if none of the roots can be opened, or if the
/// kernel has no `openat2`.
pub fn confine(roots: &[Vec<u8>], read_only: bool, open: &OpenRoot) -> io::Result<()> {
    let reach = Sandbox::new(roots, read_only, open)?;
    SANDBOX
        .set(reach)
        .map_err(|_| io::Error::other("this process is confined already"))
}

/// Opens a root of a confinement.
pub type OpenRoot = dyn Fn(&[u8]) -> io::Result<OwnedFd>;

/// Opens a root, following symlinks.
fn open_any(root: &[u8]) -> io::Result<OwnedFd> {
    Ok(fs::open(root, TO_SEARCH, Mode::empty())?)
}

/// As [`confine`], for `--confine-root`. Roots that cannot be opened permit nothing.
pub fn confine_to_root(roots: &[Vec<u8>]) -> io::Result<()> {
    let reach = Sandbox {
        kind: Confinement::Root,
        ..Sandbox::new(roots, false, &open_any)?
    };
    SANDBOX
        .set(reach)
        .map_err(|_| io::Error::other("this process is confined already"))
}

/// As [`confine`], for the module of a daemon: a path that leads out of the roots fails as one with too many symlinks,
/// which rsync reports there.
///
/// `hidden` returns whether an absolute path does not exist for the client; it also gets whether that is a directory.
/// It is asked only for paths of several elements: the caller hides names in directories that it lists.
pub fn confine_module(
    roots: &[Vec<u8>],
    read_only: bool,
    hidden: Option<HiddenPaths>,
    open: &OpenRoot,
) -> io::Result<()> {
    let reach = Sandbox {
        kind: Confinement::Module,
        hidden,
        ..Sandbox::new(roots, read_only, open)?
    };
    SANDBOX
        .set(reach)
        .map_err(|_| io::Error::other("this process is confined already"))
}

/// Decides which paths are hidden; see [`confine_module`].
pub type HiddenPaths = Box<dyn Fn(&[u8], bool) -> bool + Send + Sync>;

/// Returns whether a path is hidden from the client of this process. `path`: absolute, or from the working directory.
pub fn is_hidden(path: &[u8]) -> bool {
    SANDBOX
        .get()
        .is_some_and(|reach| reach.check_hidden(fs::CWD, path).is_err())
}

/// Returns whether an entry of an open directory is hidden from the client of this process.
pub fn hides(dir: BorrowedFd<'_>, name: &[u8], is_dir: bool) -> bool {
    let hidden = SANDBOX
        .get()
        .and_then(|reach| Some((reach, reach.hidden.as_ref()?)));
    // An entry whose path is not known may be hidden.
    hidden.is_some_and(|(reach, hidden)| {
        reach
            .absolute(dir, name)
            .map_or(true, |path| hidden(&path, is_dir))
    })
}

/// Returns whether some paths are hidden from the client of this process.
pub fn has_hidden() -> bool {
    SANDBOX.get().is_some_and(|reach| reach.hidden.is_some())
}

/// Fails if an entry of an open directory is hidden from the client of this process.
pub fn check_reached(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    SANDBOX
        .get()
        .map_or(Ok(()), |reach| reach.check_reached(dir, name))
}

/// Returns whether this process serves a module; see [`confine_module`].
pub fn is_module() -> bool {
    SANDBOX
        .get()
        .is_some_and(|reach| reach.kind == Confinement::Module)
}

/// Returns whether these roots permit everything.
pub fn are_everything(roots: &[Vec<u8>]) -> bool {
    roots.iter().any(|root| elements(root).next().is_none())
}

/// Fails if processes cannot be confined: the kernel has no `openat2` (Linux 5.6 and later have it), or it is blocked.
pub fn can_confine() -> io::Result<()> {
    let top = fs::open(c"/", TO_SEARCH, Mode::empty())?;
    holds(top.as_fd())
}

fn holds(dir: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fs::openat2(dir, c".", TO_SEARCH, Mode::empty(), ResolveFlags::BENEATH).map(drop)?)
}

/// What confines a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confinement {
    Grant,
    Module,
    Root,
}

/// What a process may access.
pub struct Sandbox {
    /// `None` if everything is permitted.
    roots: Option<Vec<PermittedDir>>,
    read_only: bool,
    /// The working directory, to which relative paths refer.
    cwd: Vec<u8>,
    /// What confines it.
    kind: Confinement,
    /// See [`confine_module`].
    hidden: Option<HiddenPaths>,
}

/// A directory below which everything is permitted.
#[derive(Debug)]
struct PermittedDir {
    /// Its paths: as specified, and as the system reports it.
    paths: Vec<Vec<u8>>,
    fd: OwnedFd,
}

/// A name in a permitted directory.
pub struct PermittedName<'a> {
    held: Result<BorrowedFd<'a>, OwnedFd>,
    /// A single element, or `.` for the directory itself.
    pub name: std::borrow::Cow<'a, [u8]>,
}

impl<'a> PermittedName<'a> {
    /// Returns the directory and name unchanged.
    pub fn plain(dir: BorrowedFd<'a>, name: &'a [u8]) -> PermittedName<'a> {
        PermittedName {
            held: Ok(dir),
            name: name.into(),
        }
    }

    /// Returns the directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        match &self.held {
            Ok(fd) => *fd,
            Err(fd) => fd.as_fd(),
        }
    }
}

/// How many symlinks a path may contain, as in the kernel.
const LINKS_MAX: usize = 40;

const TO_SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Sandbox {
    fn new(roots: &[Vec<u8>], read_only: bool, open: &OpenRoot) -> io::Result<Sandbox> {
        let cwd = fs::open(c".", TO_SEARCH, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|fd| path_of(fd.as_fd()));
        let mut reach = Sandbox {
            roots: None,
            read_only,
            cwd: cwd.unwrap_or_else(|_| b"/".to_vec()),
            kind: Confinement::Grant,
            hidden: None,
        };
        if are_everything(roots) {
            return Ok(reach);
        }
        let mut found = Vec::new();
        let mut trouble = Errno::NOENT.into();
        for root in roots {
            match open(root) {
                Ok(fd) => found.push(PermittedDir {
                    paths: vec![root.clone(), path_of(fd.as_fd())?],
                    fd,
                }),
                Err(error) => trouble = error,
            }
        }
        let Some(first) = found.first() else {
            return Err(trouble);
        };
        holds(first.fd.as_fd())?;
        reach.roots = Some(found);
        Ok(reach)
    }

    /// Fails if nothing may be changed.
    pub fn may_write(&self) -> io::Result<()> {
        if self.read_only {
            Err(denied(match self.kind {
                Confinement::Module => "the module is read-only",
                Confinement::Grant | Confinement::Root => "the grant is read-only",
            }))
        } else {
            Ok(())
        }
    }

    /// Returns the directories below which this process may change something; `None`: everywhere.
    pub fn changeable_dirs(&self) -> Option<Vec<BorrowedFd<'_>>> {
        if self.read_only {
            return Some(Vec::new());
        }
        let roots = self.roots.as_ref()?;
        Some(roots.iter().map(|root| root.fd.as_fd()).collect())
    }

    /// Returns whether devices may be created. In a module and with `--confine-root`, that depends only on the user of
    /// this process, as in rsync.
    pub fn may_make_devices(&self) -> bool {
        match self.kind {
            Confinement::Grant => self.is_everything(),
            Confinement::Module | Confinement::Root => true,
        }
    }

    /// Returns whether a symlink must be examined before it is followed.
    pub fn checks_links(&self) -> bool {
        !self.is_everything() || self.hidden.is_some()
    }

    /// Returns whether everything is permitted, so that paths need no check, except for hidden ones.
    pub fn is_everything(&self) -> bool {
        self.roots.is_none()
    }

    /// Resolves a name that may have several elements, be absolute, or be relative to the working directory. Does not
    /// follow the last element.
    pub fn spot<'a>(&self, dir: BorrowedFd<'a>, name: &'a [u8]) -> io::Result<PermittedName<'a>> {
        let needs_no_path = self.is_everything() && self.hidden.is_none();
        if needs_no_path || is_one_step(dir, name) {
            return Ok(PermittedName::plain(dir, name));
        }
        self.check_hidden(dir, name)?;
        let mut path = self.absolute(dir, name)?;
        while path.len() > 1 && path.last() == Some(&b'/') {
            path.pop();
        }
        let cut = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let last = &path[cut..];
        // The parent of a root is not permitted, and only the kernel can resolve `..`.
        let is_whole = matches!(last, b"" | b"." | b"..") || self.is_root(&path);
        if is_whole {
            let held = self.open_path(&path, TO_SEARCH, Mode::empty())?;
            self.check_reached(held.as_fd(), b".")?;
            return Ok(PermittedName {
                held: Err(held),
                name: b"."[..].into(),
            });
        }
        let held = self.open_path(&path[..cut], TO_SEARCH, Mode::empty())?;
        self.check_reached(held.as_fd(), last)?;
        Ok(PermittedName {
            held: Err(held),
            name: last.to_vec().into(),
        })
    }

    /// Opens a name. Follows symlinks if they do not leave the permitted directories.
    pub fn open(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<OwnedFd> {
        if self.hidden.is_some() {
            return self.open_visible(dir, name, flags, mode);
        }
        if self.is_everything() {
            return Ok(fs::openat(dir, name, flags, mode)?);
        }
        self.open_path(&self.absolute(dir, name)?, flags, mode)
    }

    /// Does the work of [`Sandbox::open`] if paths are hidden: no symlink leads to one of them. The last element is
    /// opened in the directory that was checked, and never follows a symlink that another process has put there since.
    fn open_visible(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<OwnedFd> {
        let mut path = name.to_vec();
        let flags = if name.ends_with(b"/") {
            flags | OFlags::DIRECTORY
        } else {
            flags
        };
        for _ in 0..LINKS_MAX {
            let at = self.spot(dir, &path)?;
            let target = if flags.contains(OFlags::NOFOLLOW) {
                None
            } else {
                fs::readlinkat(at.dir(), &*at.name, Vec::new()).ok()
            };
            let Some(target) = target else {
                let flags = flags | OFlags::NOFOLLOW;
                return Ok(fs::openat(at.dir(), &*at.name, flags, mode)?);
            };
            let target = target.into_bytes();
            path = match target.first() {
                Some(b'/') if self.is_everything() => target,
                // It leads out of the roots.
                Some(b'/') => break,
                _ => [&path_of(at.dir())?[..], b"/", &target].concat(),
            };
        }
        Err(Errno::LOOP.into())
    }

    /// Opens a name by calling `how` with a root and the path below it. `how` must fail with EXDEV if the path leads
    /// out of that root.
    pub fn open_with(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        how: &dyn Fn(BorrowedFd<'_>, &[u8]) -> io::Result<OwnedFd>,
    ) -> io::Result<OwnedFd> {
        self.check_hidden(dir, name)?;
        self.below_a_root(&self.absolute(dir, name)?, how)
    }

    fn open_path(&self, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        if self.is_everything() {
            return Ok(fs::openat(fs::CWD, path, flags, mode)?);
        }
        self.below_a_root(path, &|root, rest| Ok(beneath(root, rest, flags, mode)?))
    }

    fn below_a_root(
        &self,
        path: &[u8],
        how: &dyn Fn(BorrowedFd<'_>, &[u8]) -> io::Result<OwnedFd>,
    ) -> io::Result<OwnedFd> {
        let outside = |words| io::Error::new(io::ErrorKind::PermissionDenied, Outside(words));
        let mut trouble = match self.kind {
            Confinement::Module => Errno::LOOP.into(),
            Confinement::Root => outside("outside of the directory of --confine-root"),
            Confinement::Grant => outside(
                "outside of the granted directories (copy over ssh, or grant more: `sparsync enroll --root=DIR HOST`)",
            ),
        };
        for root in self.roots.iter().flatten() {
            let Some(rest) = root.paths.iter().find_map(|root| below(root, path)) else {
                continue;
            };
            let rest = if rest.is_empty() { b".".to_vec() } else { rest };
            match how(root.fd.as_fd(), &rest) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::XDEV) => {}
                Err(error) => trouble = error,
                Ok(fd) => return Ok(fd),
            }
        }
        Err(trouble)
    }

    /// Fails if a path is hidden, as if it did not exist.
    fn check_hidden(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let Some(hidden) = &self.hidden else {
            return Ok(());
        };
        if is_one_step(dir, name) {
            return Ok(());
        }
        let path = self.absolute(dir, name)?;
        let is_dir = name.ends_with(b"/") || self.is_dir(&path);
        if hidden(&path, is_dir) {
            Err(Errno::NOENT.into())
        } else {
            Ok(())
        }
    }

    /// Fails if an entry of an open directory is hidden, whatever path has led there: a symlink or `..` may have been in
    /// it.
    fn check_reached(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let Some(hidden) = &self.hidden else {
            return Ok(());
        };
        let path = self.absolute(dir, name)?;
        let found = fs::statat(dir, name, fs::AtFlags::SYMLINK_NOFOLLOW);
        let is_dir = found.is_ok_and(|stat| fs::FileType::from_raw_mode(stat.st_mode).is_dir());
        if hidden(&path, is_dir) {
            Err(Errno::NOENT.into())
        } else {
            Ok(())
        }
    }

    /// Returns whether a path is a directory. The user of this process need not be able to search those above a root.
    fn is_dir(&self, path: &[u8]) -> bool {
        const TO_EXAMINE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        let found = self
            .open_path(path, TO_EXAMINE, Mode::empty())
            .and_then(|file| Ok(fs::fstat(file)?));
        found.is_ok_and(|stat| fs::FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    fn is_root(&self, path: &[u8]) -> bool {
        let is_it = |root: &PermittedDir| {
            root.paths
                .iter()
                .any(|root| below(root, path).is_some_and(|rest| rest.is_empty()))
        };
        self.roots.iter().flatten().any(is_it)
    }

    fn absolute(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
        if name.first() == Some(&b'/') {
            return Ok(name.to_vec());
        }
        let mut path = if is_cwd(dir) {
            self.cwd.clone()
        } else {
            path_of(dir)?
        };
        path.push(b'/');
        path.extend_from_slice(name);
        Ok(path)
    }
}

/// Returns whether a name cannot lead further than one step from an open directory.
fn is_one_step(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    !is_cwd(dir) && name != b".." && !name.contains(&b'/')
}

fn is_cwd(dir: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    dir.as_raw_fd() == fs::CWD.as_raw_fd()
}

/// Returns the path of an open file or directory, as the system reports it.
pub fn path_of(dir: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    super::sys::kernel_path_of(dir)
}

fn beneath(
    root: BorrowedFd<'_>,
    rest: &[u8],
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    loop {
        match fs::openat2(
            root,
            rest,
            flags,
            mode,
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        ) {
            // The kernel requests a retry if a rename happened during the walk.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Returns the elements of a path without `.`.
fn elements(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&b| b == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
}

/// Returns the rest of `path` after `root`, including any `..`; `None` if it does not start with `root`.
pub fn below(root: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let mut rest = elements(path);
    for element in elements(root) {
        if rest.next() != Some(element) {
            return None;
        }
    }
    let mut left = rest.collect::<Vec<_>>().join(&b'/');
    // A trailing slash requires a directory.
    if !left.is_empty() && path.last() == Some(&b'/') {
        left.push(b'/');
    }
    Some(left)
}

fn denied(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// A path leads out of the permitted directories.
#[derive(Debug)]
struct Outside(&'static str);

impl std::fmt::Display for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Outside {}

/// Returns whether an error means that a path leads out of the permitted directories. Any other error may also occur
/// without confinement.
pub fn is_outside(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Outside>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn bytes(path: &Path) -> Vec<u8> {
        path.as_os_str().as_bytes().to_vec()
    }

    /// Grants `in/` and `also/`, but not `out/`.
    fn scene() -> (tempfile::TempDir, Sandbox) {
        let top = tempfile::tempdir().unwrap();
        for dir in ["in/deep", "also", "out", "inner"] {
            std::fs::create_dir_all(top.path().join(dir)).unwrap();
        }
        for file in ["in/a", "in/deep/b", "also/c", "out/secret", "inner/x"] {
            std::fs::write(top.path().join(file), file).unwrap();
        }
        let roots = [
            bytes(&top.path().join("in")),
            bytes(&top.path().join("also")),
        ];
        let reach = Sandbox::new(&roots, false, &open_any).unwrap();
        (top, reach)
    }

    fn read(reach: &Sandbox, path: &[u8]) -> io::Result<OwnedFd> {
        reach.open(fs::CWD, path, OFlags::RDONLY, Mode::empty())
    }

    #[test]
    fn sandbox_permits_only_paths_within_its_roots() {
        let (top, reach) = scene();
        let at = |name: &str| bytes(&top.path().join(name));
        for name in [
            "in",
            "in/",
            "in/a",
            "in/deep/b",
            "in/deep/../a",
            "in/./a",
            "in//a",
            "also/c",
        ] {
            assert!(read(&reach, &at(name)).is_ok(), "{name}");
        }
        for name in [
            "",
            "out",
            "out/secret",
            "in/../out/secret",
            "in/..",
            "inner/x",
            "in/deep/../../out/secret",
            "nothing",
        ] {
            let error = read(&reach, &at(name)).unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::PermissionDenied,
                "{name}: {error}"
            );
        }
        assert_eq!(
            read(&reach, b"/etc/passwd").unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
        assert_eq!(
            read(&reach, b"/proc/self/root/etc/passwd")
                .unwrap_err()
                .kind(),
            io::ErrorKind::PermissionDenied
        );
        assert_eq!(
            read(&reach, &at("in/none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn sandbox_rejects_symlinks_out_of_its_roots() {
        let (top, reach) = scene();
        symlink("../out", top.path().join("in/up")).unwrap();
        symlink(top.path().join("out"), top.path().join("in/abs")).unwrap();
        symlink("deep", top.path().join("in/down")).unwrap();
        symlink("../out/secret", top.path().join("in/file")).unwrap();
        let at = |name: &str| bytes(&top.path().join(name));
        assert!(read(&reach, &at("in/down/b")).is_ok());
        for name in ["in/up/secret", "in/abs/secret", "in/up", "in/file"] {
            assert_eq!(
                read(&reach, &at(name)).unwrap_err().kind(),
                io::ErrorKind::PermissionDenied,
                "{name}"
            );
        }
        // The link itself can be examined, but not its target.
        let path = at("in/file");
        let spot = reach.spot(fs::CWD, &path).unwrap();
        assert_eq!(
            fs::readlinkat(spot.dir(), &*spot.name, Vec::new())
                .unwrap()
                .to_bytes(),
            b"../out/secret"
        );
        // The same applies relative to an open directory.
        let dir = read(&reach, &at("in")).unwrap();
        assert!(
            reach
                .open(dir.as_fd(), b"file", OFlags::RDONLY, Mode::empty())
                .is_err()
        );
        assert!(
            reach
                .open(dir.as_fd(), b"down/b", OFlags::RDONLY, Mode::empty())
                .is_ok()
        );
        for name in [&b"../out/secret"[..], b"..", b"up/secret", b"/etc/passwd"] {
            let reached = reach.spot(dir.as_fd(), name).and_then(|spot| {
                Ok(fs::openat(
                    spot.dir(),
                    &*spot.name,
                    OFlags::RDONLY | OFlags::NOFOLLOW,
                    Mode::empty(),
                )?)
            });
            assert!(reached.is_err(), "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn root_behind_a_symlink_permits_both_names() {
        let (top, _) = scene();
        symlink("in", top.path().join("alias")).unwrap();
        let reach = Sandbox::new(&[bytes(&top.path().join("alias"))], false, &open_any).unwrap();
        for name in ["alias/a", "in/a"] {
            assert!(
                read(&reach, &bytes(&top.path().join(name))).is_ok(),
                "{name}"
            );
        }
    }

    #[test]
    fn symlink_swapped_in_concurrently_is_rejected() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (top, reach) = scene();
        std::fs::write(top.path().join("in/deep/secret"), "harmless").unwrap();
        symlink("../out", top.path().join("in/evil")).unwrap();
        let done = AtomicBool::new(false);
        let path = bytes(&top.path().join("in/deep/secret"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (dir, evil, held) = (
                    top.path().join("in/deep"),
                    top.path().join("in/evil"),
                    top.path().join("in/held"),
                );
                while !done.load(Ordering::Relaxed) {
                    std::fs::rename(&dir, &held).unwrap();
                    std::fs::rename(&evil, &dir).unwrap();
                    std::fs::rename(&dir, &evil).unwrap();
                    std::fs::rename(&held, &dir).unwrap();
                }
            });
            let (mut reached, mut refused) = (0, 0);
            while reached < 200 || refused < 200 {
                match read(&reach, &path) {
                    Ok(fd) => {
                        reached += 1;
                        let text = super::super::sys::read_to_end(fd.as_fd(), 100).unwrap();
                        assert_eq!(text, b"harmless");
                    }
                    Err(_) => refused += 1,
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn sandbox_without_an_existing_root_is_an_error() {
        let (top, _) = scene();
        assert!(Sandbox::new(&[bytes(&top.path().join("none"))], false, &open_any).is_err());
        let both = [
            bytes(&top.path().join("none")),
            bytes(&top.path().join("in")),
        ];
        assert!(Sandbox::new(&both, false, &open_any).is_ok());
        let all = Sandbox::new(&[b"//".to_vec()], true, &open_any).unwrap();
        assert!(all.is_everything() && all.may_write().is_err());
        assert!(read(&all, b"/etc/passwd").is_ok());
    }
}
