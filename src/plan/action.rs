//! The possible actions for an entry.

use super::changes::Changes;

/// What to do about an entry of the source. Complete: itemize, dry run and apply need nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Same data, same attributes.
    Keep,
    /// Same data, different attributes.
    Adjust(Changes),
    /// A directory, symlink, device or special file is created or recreated.
    Create(Changes),
    /// The content of a file is transferred.
    Transfer(Changes),
    /// An identical file is in an alternate tree: it gets another name (`--link-dest`).
    Link,
    /// A file's data is in an alternate tree and is copied from there.
    Copy(Changes),
    /// An identical file is in an alternate tree, so the destination gets none (`--compare-dest`).
    Elsewhere,
    /// Metadata cannot decide under `--checksum`: compare the contents, then decide again.
    AskDigest,
    /// The entry is left alone for this reason.
    Refuse(Reason),
}

impl Action {
    /// Returns whether the entry is created and neither the destination nor an alternate tree has a similar one.
    pub fn is_new(self) -> bool {
        match self {
            Action::Create(changes) | Action::Transfer(changes) => changes.has(Changes::NEW),
            Action::Keep | Action::Adjust(_) | Action::AskDigest | Action::Refuse(_) => false,
            Action::Link | Action::Copy(_) | Action::Elsewhere => false,
        }
    }
}

/// Why an entry is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// `--existing`, and the destination does not have the entry.
    NotExisting,
    /// `--ignore-existing`, and the destination has the entry.
    Exists,
    /// `-u`, and the destination's file is newer.
    Newer,
    /// `--max-size`
    TooLarge,
    /// `--min-size`
    TooSmall,
    /// A symlink, device or special file that the options exclude.
    NonRegular,
    /// `--safe-links`, and the symlink points outside the transfer.
    UnsafeLink,
    /// The rules of a daemon's module exclude it.
    Forbidden,
    /// `--append`, and the destination's file is at least as long.
    NothingToAppend,
    /// A directory is in its place and must not be deleted; this was already reported.
    InTheWay,
    /// The destination's entry could not be examined; this was reported.
    Unknown,
    /// A stored plan is carried out, and does not have this action or finds another state. This is reported elsewhere.
    NotPlanned,
}

/// What is in the way of an entry at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InTheWay {
    /// Nothing, or an entry of the same kind.
    Nothing,
    /// An entry of another kind that is not a directory.
    Other,
    /// A directory.
    Dir,
}

/// Which file serves as the basis of another, if it is not the one that the other replaces, or a part of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BasisName {
    /// The backup of the file, which is updated in place.
    Backup,
    /// The file of the same name in an alternate tree, by the index of the tree.
    Alternate(usize),
    /// A similar file.
    Similar {
        /// The alternate tree that has it in the same directory; `None`: the destination.
        tree: Option<usize>,
        /// Its name there.
        name: Vec<u8>,
    },
}
