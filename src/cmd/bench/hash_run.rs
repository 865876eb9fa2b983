//! Hashes a tree for `sparsync bench hash`: the same walk, threads and reads as in `sparsync hash`, without a manifest.

use crate::cmd::hash::hash_file::{FileHashing, Hashed};
use crate::cmd::hash::status_line::StatusLine;
use crate::cmd::hash::tree_files::{TreeEntry, waiting_max};
use crate::cmd::hash::{open_tree, unreadable};
use crate::digest::HashAlgorithm;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::work::ordered_pool;
use std::sync::atomic::Ordering::Relaxed;

/// Hashes all files of a tree. Returns how many files and bytes they are. A file that cannot be read is an error, because
/// the run would seem faster than one that reads it.
pub fn hash(
    env: &Env,
    source: &[u8],
    algorithm: HashAlgorithm,
    workers: usize,
) -> Result<(u64, u64)> {
    let status = StatusLine::new(env, false, None);
    let hashing = FileHashing {
        stop: &env.stop,
        status: &status,
        own: Vec::new(),
    };
    let mut files = 0;
    let mut bytes = 0;
    let mut failed = None;
    ordered_pool::run(
        workers,
        waiting_max(),
        |add| {
            for found in open_tree(source)? {
                if env.stop.load(Relaxed) {
                    break;
                }
                add(found);
            }
            Ok(())
        },
        |found| match found {
            TreeEntry::Entry(dir, path) => {
                let hashed = hashing.hash(&dir, path.name(), &[algorithm]);
                (path, hashed)
            }
            TreeEntry::Unreadable(path, error) => (path, Hashed::Unreadable(error)),
        },
        |(path, hashed)| match hashed {
            Hashed::Digests(len_bytes, _) => {
                files += 1;
                bytes += len_bytes;
            }
            Hashed::Unreadable(error) if failed.is_none() => {
                failed = Some(unreadable(&path, &error));
            }
            Hashed::Unreadable(_) | Hashed::Other | Hashed::Own | Hashed::Gone => {}
        },
    )?;
    if env.is_stopping() {
        return Err(Error::new(Exit::Signal, ""));
    }
    if let Some(words) = failed {
        return Err(Error::new(Exit::Partial, words).with_hint("measure a tree that can be read"));
    }
    Ok((files, bytes))
}
