//! An open directory that paths below it cannot escape.
//!
//! [`Root::open_dir`] opens directories below it, and the kernel confines the path. All other operations apply to a
//! single name in an open directory and do not follow symlinks.

use super::sys::{self, Follow};
use super::{errno, trusted_path};
use crate::options::LinkOwners;
use crate::path::RelPath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// An open directory, shared by all its users.
#[derive(Debug, Clone)]
pub struct Dir(Arc<OwnedFd>);

impl Dir {
    /// Wraps an open directory.
    pub fn new(fd: OwnedFd) -> Dir {
        Dir(Arc::new(fd))
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Returns what is needed to open the directory again after it was closed. `path`: its path below its [`Root`].
    pub fn parked(&self, path: RelPath) -> io::Result<ParkedDir> {
        let id = self.id()?;
        Ok(ParkedDir { path, id })
    }

    /// Returns whether both are the same open directory, not only the same directory.
    pub fn is_same(&self, other: &Dir) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the device and inode.
    pub fn id(&self) -> io::Result<(u64, u64)> {
        sys::fstat(self.fd()).map(|stat| (stat.dev, stat.ino))
    }
}

/// A closed directory below a [`Root`]. It is opened again with [`Root::reopen_dir`].
#[derive(Debug)]
pub struct ParkedDir {
    path: RelPath,
    id: (u64, u64),
}

/// The top of a tree: an open directory and its path for messages.
#[derive(Debug, Clone)]
pub struct Root {
    dir: Dir,
    /// Absolute path for messages, without a trailing slash unless it is `/`.
    pub path: Vec<u8>,
    follow: Follow,
}

/// What an opened directory is for.
#[derive(Clone, Copy)]
enum Access {
    /// It can be listed.
    List,
    /// It only gives access to names in it.
    Search,
}

/// The maximum part of a long path that is walked in one call.
const STEP_BYTES: usize = sys::PATH_MAX - 256;

impl Root {
    /// Makes an open directory the top of a tree. `follow` defines which symlinks [`Root::open_dir`] may follow.
    pub fn new(dir: Dir, path: Vec<u8>, follow: Follow) -> Root {
        Root { dir, path, follow }
    }

    /// Returns which symlinks [`Root::open_dir`] may follow.
    pub fn follow(&self) -> Follow {
        self.follow
    }

    /// Returns the top directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Opens a directory below the top. Its path may be of any length.
    pub fn open_dir(&self, path: &RelPath) -> io::Result<Dir> {
        self.open_with(path, Access::List)
    }

    /// Opens a directory below the top. If it cannot be listed, opens it only to access names in it.
    pub fn open_dir_to_search(&self, path: &RelPath) -> io::Result<Dir> {
        match self.open_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.open_with(path, Access::Search)
            }
            other => other,
        }
    }

    /// Opens a closed directory again. Fails if its path leads to another directory now.
    pub fn reopen_dir(&self, parked: &ParkedDir) -> io::Result<Dir> {
        let dir = self.open_dir_to_search(&parked.path)?;
        if dir.id()? == parked.id {
            Ok(dir)
        } else {
            Err(errno::gone())
        }
    }

    fn open_with(&self, path: &RelPath, access: Access) -> io::Result<Dir> {
        if path.is_root() {
            return Ok(self.dir.clone());
        }
        let mut rest = path.as_bytes();
        let mut current: Option<OwnedFd> = None;
        while rest.len() > STEP_BYTES {
            let cut = rest[..STEP_BYTES]
                .iter()
                .rposition(|&b| b == b'/')
                .ok_or(io::ErrorKind::InvalidFilename)?;
            let from = current.as_ref().map_or(self.dir.fd(), |fd| fd.as_fd());
            current = Some(self.open_below(from, &rest[..cut], Access::Search)?);
            rest = &rest[cut + 1..];
        }
        let from = current.as_ref().map_or(self.dir.fd(), |fd| fd.as_fd());
        Ok(Dir::new(self.open_below(from, rest, access)?))
    }

    /// Opens a directory below another one. The kernel resolves the path unless it contains symlinks whose owners count.
    fn open_below(&self, at: BorrowedFd<'_>, path: &[u8], access: Access) -> io::Result<OwnedFd> {
        let opened = match access {
            Access::List => sys::open_dir(at, path, self.follow),
            Access::Search => sys::open_dir_to_search(at, path, self.follow),
        };
        match opened {
            Err(error) if self.follow == Follow::Trusted && errno::may_be_link(&error) => {
                let owners = LinkOwners::Trusted;
                match access {
                    Access::List => trusted_path::open_dir_in(at, path, owners),
                    Access::Search => trusted_path::open_dir_in_to_search(at, path, owners),
                }
            }
            opened => opened,
        }
    }

    /// Returns the absolute path of an entry below, for messages.
    pub fn full(&self, path: &[u8]) -> Vec<u8> {
        crate::path::join(&self.path, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root_of(path: &std::path::Path, follow: Follow) -> Root {
        use std::os::unix::ffi::OsStrExt;
        let bytes = path.as_os_str().as_bytes();
        Root::new(
            Dir::new(sys::open_dir_path(bytes).unwrap()),
            bytes.to_vec(),
            follow,
        )
    }

    #[test]
    fn symlink_does_not_lead_out_of_the_root() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("in/deep")).unwrap();
        std::fs::create_dir(top.path().join("out")).unwrap();
        symlink("../out", top.path().join("in/up")).unwrap();
        symlink("deep", top.path().join("in/down")).unwrap();
        let at = |name: &str| RelPath::parse(name.as_bytes()).unwrap();

        let strict = root_of(&top.path().join("in"), Follow::Never);
        assert!(strict.open_dir(&at("deep")).is_ok());
        assert_eq!(
            strict.open_dir(&at("up")).unwrap_err().raw_os_error(),
            Some(40)
        );
        assert_eq!(
            strict.open_dir(&at("down")).unwrap_err().raw_os_error(),
            Some(40)
        );

        let inside = root_of(&top.path().join("in"), Follow::Inside);
        assert!(inside.open_dir(&at("down")).is_ok());
        assert_eq!(
            inside.open_dir(&at("up")).unwrap_err().raw_os_error(),
            Some(40)
        );

        let fd =
            sys::stepwise(strict.dir().fd(), b"up", sys::DIR_FLAGS, Follow::Never).unwrap_err();
        assert!(matches!(fd.raw_os_error(), Some(20 | 40)), "{fd}");
    }

    #[test]
    fn stepwise_opening_follows_symlinks_as_the_kernel_does() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("in/a/b")).unwrap();
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, top.path().join("in").join(name)).unwrap();
        };
        link("a/b", "down");
        link("../down", "a/over");
        link("../..", "a/b/top");
        link("..", "out");
        link("a/../../in/a", "round");
        link("/tmp", "absolute");
        link("loop", "loop");
        std::fs::write(top.path().join("in/file"), "").unwrap();
        link("file", "to-file");
        let root = root_of(&top.path().join("in"), Follow::Inside);
        let id = |fd: io::Result<OwnedFd>| {
            let stat = fd.and_then(|fd| sys::fstat(fd.as_fd()));
            stat.map(|stat| stat.ino).map_err(|error| error.to_string())
        };
        let paths =
            "down a/over a/b/top down/top/a out round absolute loop to-file file gone . a/..";
        for path in paths.split(' ') {
            let at = root.dir().fd();
            let kernel = sys::open_dir(at, path.as_bytes(), Follow::Inside);
            let steps = sys::stepwise(at, path.as_bytes(), sys::DIR_FLAGS, Follow::Inside);
            assert_eq!(id(steps), id(kernel), "{path}");
        }
    }

    #[test]
    fn stepwise_opening_needs_no_right_to_list_what_is_on_the_way() {
        use std::os::unix::fs::PermissionsExt;
        let top = tempfile::tempdir().unwrap();
        let mode = |path: &str, mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(top.path().join(path), permissions).unwrap();
        };
        std::fs::create_dir_all(top.path().join("way/dir")).unwrap();
        mode(".", 0o711);
        mode("way", 0o111);
        let root = root_of(top.path(), Follow::Never);
        let opened = std::thread::spawn(move || {
            if rustix::process::geteuid().is_root() {
                // Only of this thread.
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
            }
            [&b"way/dir"[..], b"way"].map(|path| {
                sys::stepwise(root.dir().fd(), path, sys::DIR_FLAGS, Follow::Never).is_ok()
            })
        });
        assert_eq!(opened.join().unwrap(), [true, false]);
        mode("way", 0o755);
    }

    #[test]
    fn a_closed_directory_is_opened_again_only_if_it_is_the_same() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("in/a/b")).unwrap();
        std::fs::create_dir_all(top.path().join("out/b")).unwrap();
        let root = root_of(&top.path().join("in"), Follow::Never);
        let path = RelPath::parse(b"a/b").unwrap();
        let parked = root.open_dir(&path).unwrap().parked(path).unwrap();
        assert!(root.reopen_dir(&parked).is_ok());

        let [at, aside, out] = ["in/a", "in/aside", "out"].map(|path| top.path().join(path));
        std::fs::rename(&at, &aside).unwrap();
        assert_eq!(
            root.reopen_dir(&parked).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        std::fs::create_dir_all(at.join("b")).unwrap();
        assert_eq!(
            root.reopen_dir(&parked).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        std::fs::remove_dir_all(&at).unwrap();
        for target in ["aside".as_ref(), out.as_path()] {
            symlink(target, &at).unwrap();
            assert_eq!(
                root.reopen_dir(&parked).unwrap_err().raw_os_error(),
                Some(40)
            );
            std::fs::remove_file(&at).unwrap();
        }
        std::fs::rename(&aside, &at).unwrap();
        assert!(root.reopen_dir(&parked).is_ok());
    }

    #[test]
    fn path_longer_than_path_max_is_opened_in_steps() {
        let top = tempfile::tempdir().unwrap();
        let root = root_of(top.path(), Follow::Never);
        let mut path = RelPath::root();
        let mut current = root.dir().clone();
        let name = [b'x'; 200];
        for _ in 0..30 {
            sys::mkdir(current.fd(), &name, 0o755).unwrap();
            current = Dir::new(sys::open_dir(current.fd(), &name, Follow::Never).unwrap());
            path = path.join(&name);
        }
        assert!(path.as_bytes().len() > sys::PATH_MAX);
        assert!(root.open_dir(&path).is_ok());
    }
}
