//! `sparsync check --manifest`: compares a tree with a manifest.
//!
//! The walk and the manifest have the same order, so both are gone through once, side by side.

use super::expected_files::{self, ExpectedFile};
use crate::cli::check_command::ManifestCheck;
use crate::cmd::hash::hash_file::{FileHashing, Hashed};
use crate::cmd::hash::status_line::StatusLine;
use crate::cmd::hash::tree_files::{TreeEntry, TreeFiles, waiting_max};
use crate::cmd::hash::{open_tree, unreadable};
use crate::cmd::{command_end, copy};
use crate::digest::HashAlgorithm;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::root::Dir;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::options::findings::{ComparisonKind, Finding};
use crate::path::RelPath;
use crate::report::comparison::CheckCounts;
use crate::report::escape::{self, Charset};
use crate::report::event::{Weight, errno_words};
use crate::report::json;
use crate::work::ordered_pool;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

/// How much output is gathered before it is written.
const BUFFER_BYTES: usize = 32 * 1024;

/// What is to be done about a path that the manifest or the tree has.
enum CheckTask<'a> {
    /// Compare the file with the manifest.
    Compare(Dir, &'a ExpectedFile),
    /// The manifest does not list this entry.
    Extra(Dir, RelPath),
    /// The tree does not have this file.
    Missing(&'a ExpectedFile),
    /// Nothing is known about this file, because a directory above it cannot be read.
    Hidden(&'a ExpectedFile),
    Unreadable(RelPath, io::Error),
}

/// What is known about a path.
enum PathOutcome {
    Finding(Finding),
    Unreadable(io::Error),
    /// It is counted as unreadable, but a directory above it was reported.
    Hidden,
    /// It takes no part: it is no regular file, or the manifest itself.
    None,
}

/// Compares the tree with the manifest, and prints what differs.
pub fn run(env: &mut Env, wanted: &ManifestCheck) -> Result<Exit> {
    let (expected, own) = read_manifest(wanted)?;
    copy::handle_signals(env)?;
    let files = open_tree(&wanted.tree)?;
    let status = StatusLine::new(env, wanted.progress, Some(expected.len() as u64));
    let checking = Checking {
        hashing: FileHashing {
            stop: &env.stop,
            status: &status,
            own: own.into_iter().collect(),
        },
        only: wanted.algorithm,
        last_match: Mutex::new(None),
    };
    let mut findings = FindingsOutput {
        wanted,
        status: &status,
        charset: Charset::for_locale(copy::utf8_locale(env), false),
        stdout: std::mem::replace(&mut env.stdout, Box::new(io::sink())),
        buffer: Vec::new(),
        failure: None,
        counts: CheckCounts::default(),
    };
    status.show_during(|| {
        ordered_pool::run(
            copy::threads(),
            waiting_max(),
            |add| {
                let is_stopping = || env.stop.load(Relaxed);
                pair_up(files, &expected, wanted.one_way, &is_stopping, add);
                Ok(())
            },
            |task| checking.check(task),
            |(path, outcome)| {
                if !env.stop.load(Relaxed) && !findings.add(&path, outcome) {
                    // The reader of the output has closed it.
                    env.stop.store(true, Relaxed);
                }
            },
        )
    })?;
    if env.is_stopping() {
        return Err(Error::new(Exit::Signal, ""));
    }
    findings.finish()
}

/// The device and inode of the manifest, if it is a file. It may be in the tree.
type ManifestId = Option<(u64, u64)>;

/// Reads the manifest.
fn read_manifest(wanted: &ManifestCheck) -> Result<(Vec<ExpectedFile>, ManifestId)> {
    let path = &wanted.manifest;
    if path == b"-" {
        let stdin = io::stdin().lock();
        let expected = expected_files::read(stdin, b"of standard input", wanted.algorithm)?;
        return Ok((expected, None));
    }
    let opened = trusted_path::open_file(path, LinkOwners::Trusted)
        .and_then(|file| Ok((sys::fstat(file.as_fd())?, file)));
    let (stat, file) = opened.map_err(|error| {
        let start = b"sparsync: cannot open the manifest ".as_slice();
        let line = [start, path, b": ", &errno_words(&error)].concat();
        Error::new(Exit::FileSelect, trusted_path::with_refusal(&error, line))
    })?;
    let expected = expected_files::read(File::from(file), path, wanted.algorithm)?;
    Ok((expected, Some((stat.dev, stat.ino))))
}

/// Goes through the tree and the manifest side by side. Both are in the order of the bytes of their paths.
fn pair_up<'a>(
    files: TreeFiles,
    expected: &'a [ExpectedFile],
    is_one_way: bool,
    is_stopping: &dyn Fn() -> bool,
    add: &mut dyn FnMut(CheckTask<'a>),
) {
    let mut rest = expected.iter().peekable();
    for found in files {
        if is_stopping() {
            return;
        }
        let place = match &found {
            TreeEntry::Entry(_, path) => path.as_bytes().to_vec(),
            TreeEntry::Unreadable(dir, _) => start_of_content(dir),
        };
        while let Some(missing) = rest.next_if(|expected| expected.path.as_bytes() < &place[..]) {
            add(CheckTask::Missing(missing));
        }
        match found {
            TreeEntry::Entry(dir, path) => match rest.next_if(|expected| expected.path == path) {
                Some(expected) => add(CheckTask::Compare(dir, expected)),
                None if is_one_way => {}
                None => add(CheckTask::Extra(dir, path)),
            },
            TreeEntry::Unreadable(path, error) => {
                add(CheckTask::Unreadable(path.clone(), error));
                while let Some(hidden) =
                    rest.next_if(|expected| expected.path.as_bytes().starts_with(&place))
                {
                    add(CheckTask::Hidden(hidden));
                }
            }
        }
    }
    for missing in rest {
        add(CheckTask::Missing(missing));
    }
}

/// Returns how the paths of everything in a directory begin. They have their place in the order there, which is behind
/// that of the directory's own path: `a`, `a-b`, `a/b`.
fn start_of_content(dir: &RelPath) -> Vec<u8> {
    if dir.is_root() {
        return Vec::new();
    }
    [dir.as_bytes(), b"/"].concat()
}

/// Examines single paths, on any thread.
struct Checking<'a> {
    hashing: FileHashing<'a>,
    /// The algorithm that the user named.
    only: Option<HashAlgorithm>,
    /// The algorithm of the last digest that was the file's. A manifest without names of algorithms, whose digests are as
    /// long as those of several of them, has usually one for all lines, so this one is tried first.
    last_match: Mutex<Option<HashAlgorithm>>,
}

impl Checking<'_> {
    fn check(&self, task: CheckTask<'_>) -> (RelPath, PathOutcome) {
        match task {
            CheckTask::Compare(dir, expected) => {
                let outcome = self.compare(&dir, expected);
                self.hashing.status.add_file();
                (expected.path.clone(), outcome)
            }
            CheckTask::Extra(dir, path) => {
                let outcome = match self.hashing.takes_part(&dir, path.name()) {
                    Ok(true) => PathOutcome::Finding(Finding::DestOnly),
                    Ok(false) => PathOutcome::None,
                    Err(error) => PathOutcome::Unreadable(error),
                };
                (path, outcome)
            }
            CheckTask::Missing(expected) => (
                expected.path.clone(),
                PathOutcome::Finding(Finding::SourceOnly),
            ),
            CheckTask::Hidden(expected) => (expected.path.clone(), PathOutcome::Hidden),
            CheckTask::Unreadable(path, error) => (path, PathOutcome::Unreadable(error)),
        }
    }

    /// Compares the content of a file with the digest. The result does not depend on which algorithm is tried first.
    fn compare(&self, dir: &Dir, expected: &ExpectedFile) -> PathOutcome {
        let all = expected.algorithms(self.only);
        let last_match = *self.last_match.lock();
        let (first, others): (Vec<_>, Vec<_>) = match last_match {
            Some(likely) if all.contains(&likely) => {
                all.iter().partition(|&&algorithm| algorithm == likely)
            }
            _ => (all, Vec::new()),
        };

        for algorithms in [first, others] {
            if algorithms.is_empty() {
                break;
            }
            let digests = match self.hashing.hash(dir, expected.path.name(), &algorithms) {
                Hashed::Digests(_, digests) => digests,
                Hashed::Unreadable(error) => return PathOutcome::Unreadable(error),
                Hashed::Gone => return PathOutcome::Finding(Finding::SourceOnly),
                // Something else has the name of the file, or the manifest lists itself.
                Hashed::Other | Hashed::Own => return PathOutcome::Finding(Finding::Differs),
            };
            let same = digests
                .iter()
                .position(|digest| digest == expected.digest());
            if let Some(at) = same {
                *self.last_match.lock() = Some(algorithms[at]);
                return PathOutcome::Finding(Finding::Equal);
            }
        }
        PathOutcome::Finding(Finding::Differs)
    }
}

/// Prints and counts what was found.
struct FindingsOutput<'a> {
    wanted: &'a ManifestCheck,
    status: &'a StatusLine,
    charset: Charset,
    stdout: Box<dyn Write + Send>,
    buffer: Vec<u8>,
    failure: Option<Error>,
    counts: CheckCounts,
}

impl FindingsOutput<'_> {
    /// Adds what is known about a path. Returns whether the output can still be written.
    fn add(&mut self, path: &RelPath, outcome: PathOutcome) -> bool {
        match outcome {
            PathOutcome::Finding(finding) => {
                self.counts.add(finding);
                if self.wanted.printed.contain(finding) {
                    self.print(path, finding);
                }
            }
            PathOutcome::Unreadable(error) => {
                self.counts.unreadable += 1;
                let line = unreadable(path, &error);
                self.status.print(&line);
                if self.wanted.json {
                    json::put(&mut self.buffer, &json::problem(&line, Weight::Failed));
                }
            }
            PathOutcome::Hidden => self.counts.unreadable += 1,
            PathOutcome::None => {}
        }
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
        self.failure.is_none()
    }

    fn print(&mut self, path: &RelPath, finding: Finding) {
        let name = finding.name(ComparisonKind::Manifest);
        if self.wanted.json {
            let line = json::compared(path.as_bytes(), name);
            return json::put(&mut self.buffer, &line);
        }
        self.buffer
            .extend_from_slice(format!("{name:<8} ").as_bytes());
        escape::put(&mut self.buffer, path.as_bytes(), self.charset);
        self.buffer.push(b'\n');
    }

    fn flush(&mut self) {
        if self.failure.is_none() {
            self.failure = command_end::write_text(&mut self.stdout, &self.buffer).err();
        }
        self.buffer.clear();
    }

    /// Prints the counts, and returns the exit code.
    fn finish(mut self) -> Result<Exit> {
        let exit = self.counts.exit();
        if self.wanted.json {
            json::put(&mut self.buffer, &json::comparison(&self.counts));
            json::put(&mut self.buffer, &json::end(exit, b""));
        } else {
            let summary = self.counts.summary(ComparisonKind::Manifest);
            self.buffer.extend_from_slice(summary.as_bytes());
            self.buffer.push(b'\n');
        }
        self.flush();
        self.failure.map_or(Ok(exit), Err)
    }
}
