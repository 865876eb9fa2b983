//! What shall be done about an entry.

use super::changes::Changes;

/// What shall be done about an entry of the source. Complete: itemize, dry run and apply need nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Same data, same attributes.
    Keep,
    /// Same data, other attributes.
    Adjust(Changes),
    /// A directory, symlink or device is made, or made anew.
    Create(Changes),
    /// A file needs bytes.
    Transfer(Changes),
    /// The very thing is in an alternate tree: it gets one more name (`--link-dest`).
    Link,
    /// A file's data is in an alternate tree: it is copied from there.
    Copy(Changes),
    /// The very thing is in an alternate tree, and the destination shall have nothing (`--compare-dest`).
    Elsewhere,
    /// Stat cannot tell under `--checksum`: compare the contents, then ask again.
    AskDigest,
    /// Left alone, and why.
    Refuse(Reason),
}

impl Action {
    /// Whether the entry is made where neither the destination nor an alternate tree has one like it.
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
    /// `--existing`, and the destination has none.
    NotExisting,
    /// `--ignore-existing`, and the destination has one.
    Exists,
    /// `-u`, and the destination's is newer.
    Newer,
    /// `--max-size`
    TooLarge,
    /// `--min-size`
    TooSmall,
    /// A symlink, device or special file that the options leave out.
    NonRegular,
    /// `--safe-links`, and the symlink leads outside.
    UnsafeLink,
    /// `--append`, and the destination's is as long or longer.
    NothingToAppend,
    /// A directory stands in its place and may not go; it was told already.
    InTheWay,
    /// What the destination has in its place could not be examined; that was reported.
    Unknown,
}

/// What the destination has in the way of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InTheWay {
    /// Nothing, or an entry of the same kind.
    Nothing,
    /// Something that is no directory, of another kind.
    Other,
    /// A directory.
    Dir,
}
