//! The events of a run, as values.

use crate::flist::{FileId, Kind, Time};
use crate::plan::changes::Changes;
use crate::plan::explained::Explained;
use crate::plan::planned::PlannedAction;

/// How an entry was, or would be, updated: the first column of itemized output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// `>`: its data came from the source (also in a local copy).
    Received,
    /// `<`: its data went to a peer.
    Sent,
    /// `c`: created or changed without transferred data: directory, symlink, device, a copy from an alternate tree.
    Local,
    /// `h`: became a hard link.
    HardLink,
    /// `.`: at most attributes changed.
    Attrs,
}

/// One entry, with everything that the formats may use.
#[derive(Debug, Clone)]
pub struct Item {
    /// The path relative to the transfer root; `.` for the root. Without a trailing slash.
    pub name: Vec<u8>,
    /// The path on the sender, for `%f`: source argument and name joined, no leading slash. Only under [`Wants::paths`].
    pub sender_path: Vec<u8>,
    /// The kind of the entry.
    pub kind: Kind,
    /// How it was updated.
    pub update: Update,
    /// What differed.
    pub changes: Changes,
    /// A symlink's target (shown as `-> target`).
    pub target: Option<Vec<u8>>,
    /// The target in the source, if the destination has another one. A sender prints this one, so it is sent instead.
    pub source_target: Option<Vec<u8>>,
    /// The name it was linked to (shown as `=> name`).
    pub linked_to: Option<Vec<u8>>,
    /// The source's mode, with type bits.
    pub mode: u32,
    /// The source's owner; mapped, if the receiver reports the event.
    pub uid: u32,
    /// The source's group, mapped in the same case.
    pub gid: u32,
    /// The source's modification time.
    pub mtime: Time,
    /// The source's access time under `-U`; shown by `--list-only`.
    pub atime: Option<Time>,
    /// The source's length.
    pub len_bytes: u64,
    /// The number of bytes transferred, for `%b`; known after the transfer.
    pub moved_bytes: u64,
    /// The number of bytes of the block checksums that were received for the file, for `%c`; 0 if that is not known.
    pub sums_bytes: u64,
    /// The checksum for `%C`, if requested.
    pub digest: Option<Vec<u8>>,
    /// Whether file data was (or in a dry run would be) transferred.
    pub transfer: bool,
    /// The entry at the peer that has the source. It is not sent between two sparsyncs.
    pub file: Option<FileId>,
}

/// The process that rsync would name in an error line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorRole {
    /// Walks and reads the source.
    Sender,
    /// Decides and deletes.
    Generator,
    /// Writes files.
    Receiver,
    /// The receiving side before it splits into generator and receiver: `Receiver`.
    MainReceiver,
    /// The command line itself.
    Client,
}

impl ErrorRole {
    /// Returns the word in the brackets.
    pub fn word(self) -> &'static str {
        match self {
            ErrorRole::Sender => "sender",
            ErrorRole::Generator => "generator",
            ErrorRole::Receiver => "receiver",
            ErrorRole::MainReceiver => "Receiver",
            ErrorRole::Client => "client",
        }
    }
}

/// How a problem affects the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Exit 23, and deletions stop: the source could not be read.
    SourceError,
    /// Exit 23.
    Failed,
    /// Exit 24.
    Vanished,
    /// Only reported.
    Warning,
}

/// A problem with one entry: reported on stderr and counted; the run continues.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The whole line, without newline, in rsync's words: `rsync: [sender] link_stat "/x" failed: …`. Empty if a peer
    /// has printed it.
    pub line: Vec<u8>,
    /// How it affects the exit code.
    pub weight: Weight,
    /// It was received in the native protocol.
    pub is_of_peer: bool,
}

/// The end of the warning that blocks cannot be shared (`--clone-dest`), which is printed once.
pub const BLOCKS_ARE_COPIED: &[u8] = b"; files are copied where blocks cannot be shared";

/// The start of the line about a file that is not deleted because other files need its content. Its path follows.
pub const CANNOT_DELETE: &[u8] = b"sparsync: cannot delete \"";

/// A line that is printed instead of deletions after the source could not be read.
pub const DELETION_IS_SKIPPED: &[u8] = b"IO error encountered -- skipping file deletion";

const ABSENT_PARENT: &[u8] = b"WARNING: parent dir is absent in the file list: ";

impl Problem {
    /// Formats `rsync: [role] what "path" failed: strerror (errno)`. The reporter escapes control bytes of the path.
    pub fn failed(role: ErrorRole, what: &str, path: &[u8], error: &std::io::Error) -> Problem {
        let head = format!("rsync: [{}] {what} \"", role.word());
        Problem::new(
            [head.as_bytes(), path, b"\" failed: ", &errno_words(error)].concat(),
            Weight::Failed,
        )
    }

    /// Formats `rsync: [role] what "path": strerror (errno)`, for lines with "failed" before the path, or without it.
    pub fn about(role: ErrorRole, what: &str, path: &[u8], error: &std::io::Error) -> Problem {
        let head = format!("rsync: [{}] {what} \"", role.word());
        Problem::new(
            [head.as_bytes(), path, b"\": ", &errno_words(error)].concat(),
            Weight::Failed,
        )
    }

    /// Creates a problem of this end with this line.
    pub fn new(line: impl Into<Vec<u8>>, weight: Weight) -> Problem {
        Problem {
            line: line.into(),
            weight,
            is_of_peer: false,
        }
    }

    /// Formats the warning of rsync's receiver about a name in the list without its parent directory.
    pub fn absent_parent(dir: &[u8]) -> Problem {
        Problem::new([ABSENT_PARENT, dir].concat(), Weight::Warning)
    }

    /// Returns whether it is a warning of [`Problem::absent_parent`].
    pub fn is_absent_parent(&self) -> bool {
        self.line.starts_with(ABSENT_PARENT)
    }

    /// Returns the same problem with another weight.
    pub fn weighing(mut self, weight: Weight) -> Problem {
        self.weight = weight;
        self
    }
}

/// Formats an error as `No such file or directory (2)`.
pub fn errno_words(error: &std::io::Error) -> Vec<u8> {
    let words = strerror(error);
    match error.raw_os_error() {
        Some(code) => [&words, format!(" ({code})").as_bytes()].concat(),
        None => words,
    }
}

/// Formats an error without its number.
pub fn strerror(error: &std::io::Error) -> Vec<u8> {
    let text = error.to_string();
    text.rsplit_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words)
        .as_bytes()
        .to_vec()
}

/// How a file has taken the content of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReusedBy {
    /// The other file was renamed.
    Rename,
    /// It is another name of the other file.
    Link,
    /// The other file was copied.
    Copy,
}

impl ReusedBy {
    /// Returns the word that reports it.
    pub fn word(self) -> &'static str {
        match self {
            ReusedBy::Rename => "renamed",
            ReusedBy::Link => "linked",
            ReusedBy::Copy => "copied",
        }
    }
}

/// An event of a run. Events are reported in list order.
///
/// For a transferred file, its `Item` comes first and its `Progress` after it; under [`Wants::after_transfer`] the
/// order is `Begin`, `Progress`, `Item`. The last `Progress` has all bytes done.
#[derive(Debug, Clone)]
pub enum Event {
    /// An entry was examined. The output policy decides what is printed.
    Item(Box<Item>),
    /// An extra entry was removed, or would be in a dry run.
    Deleted {
        /// The path below the destination.
        name: Vec<u8>,
        /// The kind of the entry.
        kind: Kind,
        /// Its mode, for formats.
        mode: u32,
    },
    /// A file has taken the content of another file of the destination or of an alternate tree, or would in a dry run
    /// (`--detect-renamed`).
    Reused {
        /// The path of the other file below the destination, or below the alternate tree as the option gives that.
        from: Vec<u8>,
        /// The path of the file.
        name: Vec<u8>,
        /// Its length, which was not sent.
        len_bytes: u64,
        /// How it has taken it.
        how: ReusedBy,
    },
    /// A line for stdout. Its `--info` level has been checked already.
    Note(Vec<u8>),
    /// A line for stderr.
    Problem(Problem),
    /// An argument that does not exist is listed (`--delete-missing-args`).
    Missing(Vec<u8>),
    /// The size of the list as far as it is known; requested for progress and under [`Wants::whole_list`].
    Listed {
        /// The number of entries.
        entries: u64,
        /// The total length of the files and symlinks among them.
        bytes: u64,
        /// Whether the list is complete.
        complete: bool,
    },
    /// This many more entries are being examined; precedes all other events about them. Requested for progress only.
    Checked(u64),
    /// The transfer of this file's data begins; see [`Wants::begin`].
    Begin(Vec<u8>),
    /// This file of the source was changed while its content was read, but could be read to its end. Requested by
    /// [`Wants::source_changes`]; comes at any time after the content was read.
    SourceChanged(Vec<u8>),
    /// The content of a file was read back and is what was sent (`--verify`).
    Verified {
        /// How many bytes were read back.
        len_bytes: u64,
    },
    /// An action of the run, for a stored plan; requested by [`Wants::planned`].
    Planned(Box<PlannedAction>),
    /// What this end has found out about a path (`sparsync explain`).
    Explained(Box<Explained>),
    /// The progress of a file's transfer, for `--progress`.
    Progress {
        /// The number of bytes done.
        done_bytes: u64,
        /// The file's length.
        len_bytes: u64,
    },
}

/// Which events are needed. A producer may omit the others because they are not printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants {
    /// [`Event::Item`] of entries that changed, and [`Event::Deleted`].
    pub items: bool,
    /// [`Event::Item`] of unchanged entries too.
    pub unchanged: bool,
    /// An item is reported after its data was transferred: the format uses `%b`, `%c` or `%C`.
    pub after_transfer: bool,
    /// [`Event::Progress`], [`Event::Checked`] and [`Event::Listed`].
    pub progress: bool,
    /// A complete [`Event::Listed`] before anything else.
    pub whole_list: bool,
    /// [`Event::Begin`], before the progress of a file.
    pub begin: bool,
    /// [`Item::digest`] is shown.
    pub digest: bool,
    /// [`Item::sender_path`] is shown, or the sender's ids.
    pub paths: bool,
    /// [`Event::SourceChanged`]. It costs a call before and after each file is read.
    pub source_changes: bool,
    /// [`Event::Reused`].
    pub reused: bool,
    /// [`Event::Planned`].
    pub planned: bool,
}

impl Wants {
    /// Returns whether an entry with these changes gets a line.
    pub fn line_for(&self, changes: Changes) -> bool {
        self.unchanged || self.items && !changes.is_none()
    }
}
