//! Opens files of the destination by their path in the transfer, outside of the receiver's own threads.

use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::fs::trusted_path;
use crate::options::LinkOwners;
use crate::path::{self, RelPath};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

/// Opens a file below the destination, or the destination if that is a file. Symlinks below it are not followed.
pub fn open(dest: &[u8], path: &[u8], owners: LinkOwners) -> io::Result<OwnedFd> {
    let dest = if dest.is_empty() { b"." } else { dest };
    let (parent, name) = path::split_parent(path);
    let Ok(root) = trusted_path::open_dir(dest, owners) else {
        let (parent, name) = path::split_parent(dest);
        let parent = if parent.is_empty() && !dest.starts_with(b"/") {
            b"."
        } else {
            parent
        };
        let parent = if parent.is_empty() { b"/" } else { parent };
        return sys::open_read(
            trusted_path::open_dir_to_search(parent, owners)?.as_fd(),
            name,
            false,
            false,
        );
    };
    let root = Root::new(Dir::new(root), dest.to_vec(), Follow::Never);
    let parent =
        RelPath::parse(parent).map_err(|_| io::Error::from(io::ErrorKind::InvalidFilename))?;
    sys::open_read(root.open_dir(&parent)?.fd(), name, false, false)
}
