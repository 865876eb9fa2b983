//! Where a manifest is written: standard output, or a file that gets its name when the manifest is complete.

use crate::cmd::new_file::{NewFile, file_error};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::fs::sys;
use std::io::{self, Write};

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

impl ManifestOutput {
    /// Takes standard output from the process.
    pub fn stdout(env: &mut Env) -> ManifestOutput {
        let stdout = std::mem::replace(&mut env.stdout, Box::new(io::sink()));
        ManifestOutput::new(OutputTarget::Stdout(stdout))
    }

    /// Creates a file, which will replace a regular file of this name.
    pub fn file(path: &[u8], umask: u32) -> Result<ManifestOutput> {
        match NewFile::create(path, 0o666 & !umask) {
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
        match &self.to {
            OutputTarget::Stdout(_) => sys::redirected_stdout().into_iter().collect(),
            OutputTarget::File(new) => new.identities(),
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
                OutputTarget::File(new) => new.write_all(&text),
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
                placed.map_err(|error| failed(new.path(), &error))
            }
        }
    }
}

fn failed(path: &[u8], error: &io::Error) -> Error {
    file_error("cannot write the manifest to ", path, error)
}
