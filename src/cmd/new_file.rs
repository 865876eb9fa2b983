//! A file that a command writes: it gets its name when it is complete.

use crate::error::Error;
use crate::exit::Exit;
use crate::flist::Kind;
use crate::flist::entry::Stat;
use crate::fs::{errno, sys, temp_name, trusted_path};
use crate::options::LinkOwners;
use crate::path;
use crate::report::event::errno_words;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};

/// A file under a temporary name. It is removed unless it gets its final name.
pub struct NewFile {
    path: Vec<u8>,
    dir: OwnedFd,
    name: Vec<u8>,
    temp: Vec<u8>,
    file: File,
    is_placed: bool,
}

impl NewFile {
    /// Creates a file, which will replace a regular file of this name. Fails if the name is that of anything else.
    pub fn create(path: &[u8], mode: u32) -> io::Result<NewFile> {
        let (dir, name) = path::split_parent(path);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let dir = match dir {
            b"" if path.starts_with(b"/") => b"/",
            b"" => &b"."[..],
            dir => dir,
        };
        let dir = trusted_path::open_dir(dir, LinkOwners::Trusted)?;
        if let Some(stat) = errno::if_there(sys::stat(dir.as_fd(), name, false))?
            && Kind::of_mode(stat.mode) != Some(Kind::File)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is no regular file",
            ));
        }
        NewFile::create_in(dir, name, path, mode)
    }

    /// Creates a file, which will replace what has its name in a directory. `path`: as given.
    pub fn create_in(dir: OwnedFd, name: &[u8], path: &[u8], mode: u32) -> io::Result<NewFile> {
        let random = u64::from_le_bytes(sys::random());
        let temp = temp_name::name_before_place(name, format!(".{random:016x}").as_bytes());
        let file = sys::create(dir.as_fd(), &temp, mode)?;
        Ok(NewFile {
            path: path.to_vec(),
            name: name.to_vec(),
            dir,
            temp,
            file: File::from(file),
            is_placed: false,
        })
    }

    /// Returns the path as given.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the device and inode of the file, and of the one that it replaces.
    pub fn identities(&self) -> Vec<(u64, u64)> {
        let identity = |stat: io::Result<Stat>| stat.ok().map(|stat| (stat.dev, stat.ino));
        let written = identity(sys::fstat(self.file.as_fd()));
        let replaced = identity(sys::stat(self.dir.as_fd(), &self.name, false));
        written.into_iter().chain(replaced).collect()
    }

    /// Adds bytes.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Gives the file its name, after its data has reached the disk.
    pub fn place(&mut self) -> io::Result<()> {
        sys::fsync(self.file.as_fd())?;
        sys::rename(self.dir.as_fd(), &self.temp, self.dir.as_fd(), &self.name)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_placed {
            // The error that prevented the rename is reported.
            let _ = sys::unlink(self.dir.as_fd(), &self.temp);
        }
    }
}

/// Returns the error of a file that a command reads or writes. `what`: what cannot be done with which file, up to its
/// path, such as `cannot write the plan to `.
pub fn file_error(what: &str, path: &[u8], error: &io::Error) -> Error {
    let start = format!("sparsync: {what}");
    let line = [start.as_bytes(), path, b": ", &errno_words(error)].concat();
    Error::new(Exit::FileIo, trusted_path::with_refusal(error, line))
}
