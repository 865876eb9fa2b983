//! `--metrics-file`: writes the metrics of a run at its end.

use super::new_file::NewFile;
use crate::env::Env;
use crate::exit::Exit;
use crate::flist::Kind;
use crate::fs::{errno, sys, trusted_path};
use crate::options::LinkOwners;
use crate::report::event::errno_words;
use crate::report::metrics;
use crate::work::clock::{self, Since};
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The file, and whose symlinks may lead to it.
pub struct MetricsFile {
    pub path: Vec<u8>,
    /// See [`trusted_path`].
    pub owners: LinkOwners,
}

impl MetricsFile {
    /// Writes the metrics. A file that cannot be written is reported and does not change the exit code, like an
    /// unwritable log file.
    pub fn write(&self, env: &mut Env, exit: Exit, since: Since) {
        let counts = env.counts.lock().take();
        let version = env!("CARGO_PKG_VERSION");
        let end = clock::now_unix().0;
        let text = metrics::of_run(version, exit, counts.as_ref(), since.elapsed(), end);
        if let Err(error) = put(&self.path, self.owners, text.as_bytes(), env.umask) {
            let start = [
                b"sparsync: cannot write the metrics to ",
                &self.path[..],
                b": ",
            ]
            .concat();
            let line = trusted_path::with_refusal(&error, [start, errno_words(&error)].concat());
            // There is no other place for this message.
            let _ = env.stderr.write_all(&[line, b"\n".to_vec()].concat());
        }
    }
}

/// Writes a file that the command line names. A regular file is replaced as a whole. Anything else stays, and is written
/// to: a device, a FIFO, or what a symlink such as /dev/stdout leads to.
pub fn put(path: &[u8], owners: LinkOwners, text: &[u8], umask: u32) -> io::Result<()> {
    let full = path;
    let mode = 0o666 & !umask;
    let path = Path::new(OsStr::from_bytes(full));
    let name = path
        .file_name()
        .ok_or(io::ErrorKind::InvalidFilename)?
        .as_bytes();
    let dir = path
        .parent()
        .map_or(&b""[..], |dir| dir.as_os_str().as_bytes());
    let dir = trusted_path::open_dir(if dir.is_empty() { b"." } else { dir }, owners)?;

    let existing = errno::if_there(sys::stat(dir.as_fd(), name, false))?;
    if existing.is_none_or(|existing| Kind::of_mode(existing.mode) == Some(Kind::File)) {
        let mut file = NewFile::create_in(dir, name, full, mode)?;
        file.write_all(text)?;
        return file.place();
    }
    let file = trusted_path::open_append_at_once(full, mode, owners)?;
    let stat = sys::fstat(file.as_fd())?;
    let is_file = Kind::of_mode(stat.mode) == Some(Kind::File);
    // What the run has printed to the same file stays.
    if is_file && sys::redirected_stdout() != Some((stat.dev, stat.ino)) {
        sys::truncate(file.as_fd(), 0)?;
    }
    sys::write_all(file.as_fd(), text)
}

/// Returns the first of these options with a file that a run has. Looks at the words, because the command line was not
/// understood.
pub fn requested<'a>(env: &Env, options: &[&'a str]) -> Option<&'a str> {
    let words = || {
        env.args
            .iter()
            .map(|word| word.as_bytes())
            .take_while(|word| *word != b"--")
    };
    let is_given = |option: &&&str| {
        words().any(|word| {
            let rest = word.strip_prefix(option.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
        })
    };
    options.iter().find(is_given).copied()
}
