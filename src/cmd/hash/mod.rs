//! `sparsync hash`: writes a manifest of the files of a tree.
//!
//! The walk of the tree is one thread, ahead of those that hash. The lines are written in the order of the walk, which is
//! that of the paths' bytes.

pub mod hash_file;
pub mod manifest;
pub mod manifest_output;
pub mod status_line;
pub mod tree_files;

use self::hash_file::{FileHashing, Hashed};
use self::manifest::{put_line, unrepresentable};
use self::manifest_output::ManifestOutput;
use self::status_line::StatusLine;
use self::tree_files::{TreeEntry, TreeFiles, waiting_max};
use super::copy;
use crate::cli::operand::Operand;
use crate::cli::subcommand::Hash;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::path::RelPath;
use crate::report::event::{Weight, errno_words};
use crate::report::json;
use crate::work::ordered_pool;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// An entry, or why there is none.
enum HashTask {
    Hash(Dir, RelPath),
    Report(RelPath, io::Error),
}

/// Writes the manifest.
pub fn run(env: &mut Env, wanted: &Hash) -> Result<Exit> {
    copy::handle_signals(env)?;
    let files = open_tree(&wanted.tree)?;
    let output = match &wanted.output {
        Some(path) => ManifestOutput::file(path, env.umask)?,
        None => ManifestOutput::stdout(env),
    };
    let status = StatusLine::new(env, wanted.progress, None);
    let hashing = FileHashing {
        stop: &env.stop,
        status: &status,
        own: output.own_files(),
    };
    let threads = wanted.workers.unwrap_or_else(copy::threads);

    let mut manifest = Manifest {
        wanted,
        status: &status,
        output,
        problems: 0,
        line: Vec::new(),
    };
    status.show_during(|| {
        ordered_pool::run(
            threads,
            waiting_max(),
            |add| {
                for found in files {
                    if env.stop.load(Relaxed) {
                        break;
                    }
                    add(match found {
                        TreeEntry::Entry(dir, path) => HashTask::Hash(dir, path),
                        TreeEntry::Unreadable(path, error) => HashTask::Report(path, error),
                    });
                }
                Ok(())
            },
            |task| match task {
                HashTask::Hash(dir, path) => {
                    let hashed = hashing.hash(&dir, path.name(), &[wanted.algorithm]);
                    status.add_file();
                    (path, hashed)
                }
                HashTask::Report(path, error) => (path, Hashed::Unreadable(error)),
            },
            |(path, hashed)| {
                if env.stop.load(Relaxed) {
                    return;
                }
                if !manifest.add(&path, hashed) {
                    // The reader of the output has closed it.
                    env.stop.store(true, Relaxed);
                }
            },
        )
    })?;
    if env.is_stopping() {
        return Err(Error::new(Exit::Signal, ""));
    }
    manifest.finish()
}

/// Opens the tree that the command line names. Lifts the limit of open files.
pub fn open_tree(path: &[u8]) -> Result<TreeFiles> {
    sys::lift_open_files(sys::OPEN_FILES_MAX);
    TreeFiles::open(path).map_err(|error| {
        let line = [
            b"sparsync: cannot open ".as_slice(),
            path,
            b": ",
            &errno_words(&error),
        ];
        let failed = Error::new(Exit::FileSelect, line.concat());
        if Operand::parse(path).is_remote() {
            failed.with_hint(
                "the tree must be on this machine; run sparsync on the other one: `ssh HOST sparsync ...`",
            )
        } else {
            failed
        }
    })
}

/// The manifest as it is written.
struct Manifest<'a> {
    wanted: &'a Hash,
    status: &'a StatusLine,
    output: ManifestOutput,
    /// The entries that it lacks.
    problems: u64,
    line: Vec<u8>,
}

impl Manifest<'_> {
    /// Adds an entry. Returns whether the manifest can still be written.
    fn add(&mut self, path: &RelPath, hashed: Hashed) -> bool {
        let (len_bytes, digest) = match hashed {
            Hashed::Digests(len_bytes, digests) => (len_bytes, digests.concat()),
            Hashed::Other | Hashed::Own | Hashed::Gone => return true,
            Hashed::Unreadable(error) => return self.report(&unreadable(path, &error)),
        };
        self.line.clear();
        let algorithm = self.wanted.algorithm;
        if self.wanted.json {
            let line = json::digest(path.as_bytes(), len_bytes, algorithm.name(), &digest);
            json::put(&mut self.line, &line);
        } else {
            if let Some(reason) = unrepresentable(algorithm, path.as_bytes()) {
                let start = b"sparsync: cannot represent \"".as_slice();
                let line = [start, path.as_bytes(), b"\": ", reason.as_bytes()].concat();
                return self.report(&line);
            }
            put_line(&mut self.line, algorithm, &digest, path.as_bytes());
        }
        self.output.write(&self.line)
    }

    fn report(&mut self, line: &[u8]) -> bool {
        self.problems += 1;
        self.status.print(line);
        if !self.wanted.json {
            return true;
        }
        self.line.clear();
        json::put(&mut self.line, &json::problem(line, Weight::Failed));
        self.output.write(&self.line)
    }

    /// Completes the manifest, and returns the exit code.
    fn finish(mut self) -> Result<Exit> {
        let exit = if self.problems == 0 {
            Exit::Ok
        } else {
            Exit::Partial
        };
        if self.wanted.json {
            self.line.clear();
            json::put(&mut self.line, &json::end(exit, b""));
            self.output.write(&self.line);
        }
        self.output.finish()?;
        Ok(exit)
    }
}

/// Returns the message about an entry that cannot be read.
pub fn unreadable(path: &RelPath, error: &io::Error) -> Vec<u8> {
    let shown: &[u8] = if path.is_root() {
        b"."
    } else {
        path.as_bytes()
    };
    [
        b"sparsync: cannot read \"".as_slice(),
        shown,
        b"\": ",
        &errno_words(error),
    ]
    .concat()
}
