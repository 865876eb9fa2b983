//! What is to be listed of a source: its directories, and which of their entries take part.

use crate::filter::Chain;
use crate::path::RelPath;
use crate::walk::source_dir::Base;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A directory of a source, and which of its entries take part.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The directory that its path starts from.
    pub base: Arc<Base>,
    /// The path below `base`.
    pub path: RelPath,
    /// Which entries take part.
    pub listing: Listing,
    /// The rules in force in it.
    pub chain: Chain,
    /// The file system that the walk stays on (`-x`): that of the directory where it began, once that is open.
    pub dev: Option<u64>,
}

/// Which entries of a directory take part.
#[derive(Debug, Clone)]
pub enum Listing {
    /// All entries that the rules include.
    All {
        /// Whether its subdirectories are walked, or only listed themselves (`-d`).
        below: bool,
        /// The numbers of the arguments, in order. rsync lists it for each.
        arguments: Arc<[usize]>,
    },
    /// The entries named by arguments: sorted by their names at the source, without duplicates.
    Named(Arc<Vec<NamedEntry>>),
}

/// An entry named by an argument.
#[derive(Debug, Clone)]
pub struct NamedEntry {
    /// Its name at the source, a single path element.
    pub name: Vec<u8>,
    /// The new name, if it gets one.
    pub renamed: Option<Vec<u8>>,
    /// Which part of its content takes part, if it is a directory.
    pub content: NamedContent,
    /// The rules that its content begins with, if not those of the directory it is in.
    pub rules: Option<Chain>,
    /// It is a leading element of an argument under `-R`.
    pub implied: bool,
    /// A symlink is followed, because the argument continues behind it.
    pub followed: bool,
    /// How often rsync's list counts it. Over all places where the entry is named, the sum is at least 1.
    pub times: u64,
    /// The numbers of the arguments by which its content takes part.
    pub content_arguments: Vec<usize>,
    /// The number of the first argument that names it. Of several entries with one name, the first one takes part.
    pub argument: usize,
}

impl Origin {
    /// Returns an origin in which no directory was entered yet.
    pub fn new(base: Arc<Base>, path: RelPath, listing: Listing) -> Origin {
        Origin {
            chain: base.chain.clone(),
            base,
            path,
            listing,
            dev: None,
        }
    }
}

impl NamedEntry {
    /// Returns the entry that an argument names.
    pub fn of_argument(
        argument: usize,
        name: &[u8],
        content: NamedContent,
        followed: bool,
    ) -> NamedEntry {
        let content_arguments = if content == NamedContent::None {
            Vec::new()
        } else {
            vec![argument]
        };
        NamedEntry {
            name: name.to_vec(),
            renamed: None,
            content,
            rules: None,
            implied: false,
            followed,
            times: 1,
            content_arguments,
            argument,
        }
    }
}

/// Which part of a named directory's content takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedContent {
    /// Nothing.
    None,
    /// Its entries, but not the content of its subdirectories.
    Shallow,
    /// Everything below.
    Full,
}

/// The directories below this one that arguments name.
#[derive(Debug, Default)]
pub struct Node {
    /// By name.
    pub children: BTreeMap<Vec<u8>, Arc<Node>>,
    /// The origins that begin here, with the rules of their bases.
    pub origins: Vec<Origin>,
}

/// A directory of the source to list.
#[derive(Debug)]
pub struct SourceTask {
    /// Its path in the transfer and at the destination.
    pub path: RelPath,
    /// Where its entries come from.
    pub origins: Vec<Origin>,
    /// The directories below it that arguments name.
    pub node: Option<Arc<Node>>,
}
