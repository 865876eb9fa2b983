//! Where a manifest is written: standard output, or a file that gets its name when the manifest is complete.

use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Kind;
use crate::flist::entry::Stat;
use crate::fs::{errno, sys, trusted_path};
use crate::options::LinkOwners;
use crate::path;
use crate::report::event::errno_words;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

/// How much is gathered before it is written.
const BUFFER_BYTES: usize = 64 * 1024;

/// An open manifest.
pub struct ManifestOutput {
    to: OutputTarget,
    buffer: Vec<u8>,
    /// The first error. Nothing is written after it.
    failure: Option<io::Error>,
}

enum OutputTarget {
    Stdout(Box<dyn Write + Send>),
    File(NewFile),
}

/// A file under a temporary name. It is removed unless it gets its final name.
struct NewFile {
    shown: Vec<u8>,
    dir: OwnedFd,
    name: Vec<u8>,
    temp: Vec<u8>,
    file: File,
    is_placed: bool,
}

impl ManifestOutput {
    /// Takes standard output from the process.
    pub fn stdout(env: &mut Env) -> ManifestOutput {
        let stdout = std::mem::replace(&mut env.stdout, Box::new(io::sink()));
        ManifestOutput::new(OutputTarget::Stdout(stdout))
    }

    /// Creates a file, which will replace a regular file of this name.
    pub fn file(path: &[u8], umask: u32) -> Result<ManifestOutput> {
        let create = || {
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
            let random = u64::from_le_bytes(sys::random());
            let temp = [b".", name, format!(".{random:016x}").as_bytes()].concat();
            let file = sys::create(dir.as_fd(), &temp, 0o666 & !umask)?;
            Ok(NewFile {
                shown: path.to_vec(),
                name: name.to_vec(),
                dir,
                temp,
                file: File::from(file),
                is_placed: false,
            })
        };
        match create() {
            Ok(file) => Ok(ManifestOutput::new(OutputTarget::File(file))),
            Err(error) => Err(failed(path, &error)),
        }
    }

    fn new(to: OutputTarget) -> ManifestOutput {
        ManifestOutput {
            to,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            failure: None,
        }
    }

    /// Returns the device and inode of the files that are not part of the tree: the one that is written and the one that
    /// it replaces, or the one to which standard output is redirected.
    pub fn own_files(&self) -> Vec<(u64, u64)> {
        let identity = |stat: io::Result<Stat>| stat.ok().map(|stat| (stat.dev, stat.ino));
        match &self.to {
            OutputTarget::Stdout(_) => sys::redirected_stdout().into_iter().collect(),
            OutputTarget::File(new) => {
                let written = identity(sys::fstat(new.file.as_fd()));
                let replaced = identity(sys::stat(new.dir.as_fd(), &new.name, false));
                written.into_iter().chain(replaced).collect()
            }
        }
    }

    /// Adds a text. Returns whether the manifest can still be written.
    pub fn write(&mut self, text: &[u8]) -> bool {
        self.buffer.extend_from_slice(text);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
        self.failure.is_none()
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.buffer);
        if self.failure.is_none() {
            let written = match &mut self.to {
                OutputTarget::Stdout(stdout) => stdout.write_all(&text),
                OutputTarget::File(new) => new.file.write_all(&text),
            };
            self.failure = written.err();
        }
        self.buffer = text;
        self.buffer.clear();
    }

    /// Completes the manifest. A file gets its name after its data has reached the disk.
    pub fn finish(mut self) -> Result<()> {
        self.flush();
        let failure = self.failure.take();
        match &mut self.to {
            OutputTarget::Stdout(stdout) => {
                let ended = failure.map_or_else(|| stdout.flush(), Err);
                ended.map_err(|error| failed(b"standard output", &error))
            }
            OutputTarget::File(new) => {
                let placed = failure.map_or(Ok(()), Err).and_then(|()| new.place());
                placed.map_err(|error| failed(&new.shown, &error))
            }
        }
    }
}

impl NewFile {
    fn place(&mut self) -> io::Result<()> {
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

fn failed(path: &[u8], error: &io::Error) -> Error {
    let line = [
        b"sparsync: cannot write the manifest to ".as_slice(),
        path,
        b": ",
        &errno_words(error),
    ];
    Error::new(
        Exit::FileIo,
        trusted_path::with_refusal(error, line.concat()),
    )
}
