//! The arguments of a client.

use crate::cli::{self, server_args};
use crate::cmd::rsync_daemon::policy::module_path;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// The arguments of a client.
pub(super) struct Arguments {
    /// The options, without the dot that ends them.
    pub(super) options: Vec<Vec<u8>>,
    /// The paths as the client wrote them, beginning with the module.
    pub(super) paths: Vec<Vec<u8>>,
    /// The client requests more verbosity than the module permits.
    pub(super) is_limited: bool,
}

/// How a client protects the characters of its options from a shell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Quoting {
    /// By backslashes, also in values that are words of their own.
    Backslashes,
    /// Not at all: its arguments are secluded (`-s`).
    Nothing,
}

impl Arguments {
    pub(super) fn new(
        words: Vec<Vec<u8>>,
        quoting: Quoting,
        module: &[u8],
        max_verbosity: i32,
    ) -> Arguments {
        let line: Vec<_> = words.iter().cloned().map(OsString::from_vec).collect();
        let operands = cli::operands_of(&line);
        let mut words = words;
        let paths = words.split_off(words.len() - operands.min(words.len()));
        let mut options = words;
        if quoting == Quoting::Backslashes {
            for word in &mut options {
                *word = unescaped(word);
            }
        }
        let requested = options.clone();
        server_args::limit_verbosity(&mut options, usize::try_from(max_verbosity).unwrap_or(0));
        let is_limited = options != requested;
        // The first path is a dot.
        let paths = paths
            .iter()
            .skip(1)
            .flat_map(|path| module_path::split_arg(path, module))
            .collect();
        Arguments {
            options,
            paths,
            is_limited,
        }
    }

    /// Returns the paths relative to the module. `is_relative`: with `-R`.
    pub(super) fn paths_in(&self, module: &[u8], is_relative: bool) -> Vec<Vec<u8>> {
        self.paths
            .iter()
            .map(|path| module_path::path_in_module(path, module, is_relative))
            .collect()
    }
}

/// Removes the backslashes that protect an option from a shell.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut bytes = word.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => plain.extend(bytes.next()),
            byte => plain.push(byte),
        }
    }
    plain
}
