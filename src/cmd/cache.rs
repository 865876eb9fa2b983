//! `sparsync cache`: shows, verifies and removes the digests that `--checksum-cache` has stored.

use super::command_end::write_text;
use super::copy;
use super::hash::hash_file::{FileHashing, Hashed};
use super::hash::status_line::StatusLine;
use super::hash::tree_files::{TreeEntry, waiting_max};
use super::hash::{open_tree, unreadable};
use crate::checksum_cache::{ChecksumCache, Store};
use crate::cli::subcommand::{Cache, CacheAction};
use crate::digest::HashAlgorithm;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::options::CacheChoice;
use crate::path::RelPath;
use crate::report::comparison::DIFFERENT;
use crate::report::escape::{Charset, put};
use crate::report::event::{Event, Weight, errno_words};
use crate::report::json::{self, VerifiedCounts};
use crate::report::number::put_count;
use crate::work::ordered_pool;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

/// Carries out an action.
pub fn run(env: &mut Env, wanted: &Cache) -> Result<Exit> {
    let usual = || copy::checksum_cache_dir(env);
    let Some(dir) = wanted.dir.clone().or_else(usual) else {
        let error = Error::new(Exit::FileIo, "sparsync: there is no state directory");
        return Err(error.with_hint("name the directory of the digests: --checksum-cache=DIR"));
    };
    match &wanted.action {
        CacheAction::Stat => show(env, &dir),
        CacheAction::Clear => clear(env, &dir),
        CacheAction::Verify {
            tree,
            progress,
            force,
            json,
        } => {
            let choice = CacheChoice {
                dir: Some(dir),
                force: *force,
            };
            verify(env, &choice, tree, *progress, *json)
        }
    }
}

/// Opens the store, if there is one.
fn open_store(dir: &[u8]) -> Result<Option<Store>> {
    Store::open_existing(dir).map_err(|error| failed("cannot open", dir, &error))
}

fn failed(what: &str, dir: &[u8], error: &std::io::Error) -> Error {
    let start = format!("sparsync: {what} ");
    let line = [start.as_bytes(), dir, b": ", &errno_words(error)].concat();
    Error::new(Exit::FileIo, line)
}

/// Prints what is stored.
fn show(env: &mut Env, dir: &[u8]) -> Result<Exit> {
    let stored = match open_store(dir)? {
        Some(store) => store
            .stored()
            .map_err(|error| failed("cannot list", dir, &error))?,
        None => Default::default(),
    };
    let counts = format!(
        ": {} digests of {} directories, {} bytes\n",
        grouped(stored.digests),
        grouped(stored.records),
        grouped(stored.bytes)
    );
    write_text(&mut env.stdout, &[dir, counts.as_bytes()].concat())?;
    Ok(Exit::Ok)
}

/// Removes what is stored.
fn clear(env: &mut Env, dir: &[u8]) -> Result<Exit> {
    let removed = match open_store(dir)? {
        Some(store) => store
            .clear()
            .map_err(|error| failed("cannot clear", dir, &error))?,
        None => 0,
    };
    let line = format!("removed the digests of {} directories\n", grouped(removed));
    write_text(&mut env.stdout, line.as_bytes())?;
    Ok(Exit::Ok)
}

/// What became of a file that was to be verified.
enum Verified {
    /// It has the content of which the digest was stored.
    Intact,
    /// It has another content, although it seems to be the same version.
    Damaged,
    /// No digest of this version is stored.
    Unknown,
    /// It is no file of the tree.
    Left,
    /// It cannot be read, for this reason.
    Unreadable(std::io::Error),
}

/// Reads all files of a tree and compares their contents with the digests. `prints_json`: its output is JSON Lines.
fn verify(
    env: &mut Env,
    choice: &CacheChoice,
    tree: &[u8],
    progress: bool,
    prints_json: bool,
) -> Result<Exit> {
    copy::handle_signals(env)?;
    let files = open_tree(tree)?;
    let cache = ChecksumCache::default();
    let status = StatusLine::new(env, progress, None);
    let hashing = FileHashing {
        stop: &env.stop,
        status: &status,
        own: Vec::new(),
    };
    let charset = Charset::for_locale(copy::utf8_locale(env), false);
    let mut counts = VerifiedCounts::default();
    let mut lines = Vec::new();
    status.show_during(|| {
        ordered_pool::run(
            copy::threads(),
            waiting_max(),
            |add| {
                for found in files {
                    if env.stop.load(Relaxed) {
                        break;
                    }
                    add(found);
                }
                Ok(())
            },
            |found| match found {
                TreeEntry::Entry(dir, path) => {
                    let verified = verify_file(&cache, choice, &hashing, &dir, path.name());
                    status.add_file();
                    (path, verified)
                }
                TreeEntry::Unreadable(path, error) => (path, Verified::Unreadable(error)),
            },
            |(path, verified): (RelPath, Verified)| match verified {
                Verified::Intact => counts.intact += 1,
                Verified::Unknown => counts.unknown += 1,
                Verified::Left => {}
                Verified::Damaged if prints_json => {
                    counts.damaged += 1;
                    json::put(&mut lines, &json::damaged(path.as_bytes()));
                }
                Verified::Damaged => {
                    counts.damaged += 1;
                    lines.extend_from_slice(b"damaged ");
                    put(&mut lines, path.as_bytes(), charset);
                    lines.push(b'\n');
                }
                Verified::Unreadable(error) => {
                    counts.unreadable += 1;
                    let line = unreadable(&path, &error);
                    status.print(&line);
                    if prints_json {
                        json::put(&mut lines, &json::problem(&line, Weight::Failed));
                    }
                }
            },
        )
    })?;
    if let Some(Event::Problem(problem)) = cache.take_warning() {
        status.print(&problem.line);
        if prints_json {
            json::put(&mut lines, &json::problem(&problem.line, Weight::Warning));
        }
    }
    if env.is_stopping() {
        return Err(Error::new(Exit::Signal, ""));
    }
    let exit = exit_of(&counts);
    if prints_json {
        json::put(&mut lines, &json::verification(counts));
        json::put(&mut lines, &json::end(exit, b""));
    } else {
        lines.extend_from_slice(summary(&counts).as_bytes());
    }
    write_text(&mut env.stdout, &lines)?;
    Ok(exit)
}

/// Reads a file from its medium, and compares it with the digest of its version.
fn verify_file(
    cache: &ChecksumCache,
    choice: &CacheChoice,
    hashing: &FileHashing<'_>,
    dir: &Dir,
    name: &[u8],
) -> Verified {
    let known = cache.known(choice, dir, name);
    if known.is_some()
        && let Ok(file) = sys::open_read(dir.fd(), name, false, false)
    {
        // What the kernel has in memory does not show what the medium has. A file system may keep it nevertheless.
        let _ = sys::drop_pages(file.as_fd());
    }
    let digest = match hashing.hash(dir, name, &[HashAlgorithm::Blake3]) {
        Hashed::Digests(_, digests) => digests.concat(),
        Hashed::Other | Hashed::Own | Hashed::Gone => return Verified::Left,
        Hashed::Unreadable(error) => return Verified::Unreadable(error),
    };
    let Some((version, expected)) = known else {
        return Verified::Unknown;
    };
    match sys::version_at(dir.fd(), name) {
        Ok(now) if now != version => Verified::Unknown,
        Ok(_) if digest == expected => Verified::Intact,
        Ok(_) => Verified::Damaged,
        Err(_) => Verified::Left,
    }
}

fn summary(counts: &VerifiedCounts) -> String {
    format!(
        "{} intact, {} damaged, {} without a digest, {} unreadable\n",
        grouped(counts.intact),
        grouped(counts.damaged),
        grouped(counts.unknown),
        grouped(counts.unreadable)
    )
}

fn exit_of(counts: &VerifiedCounts) -> Exit {
    if counts.unreadable > 0 {
        Exit::Partial
    } else if counts.damaged > 0 {
        DIFFERENT
    } else {
        Exit::Ok
    }
}

/// Returns a number in groups of three digits.
fn grouped(count: u64) -> String {
    let mut digits = Vec::new();
    put_count(&mut digits, count, 1);
    String::from_utf8_lossy(&digits).into_owned()
}
