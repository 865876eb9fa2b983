//! What happened, as values.

use crate::flist::{Kind, Time};
use crate::plan::changes::Changes;

/// How an entry was, or would be, updated: the first column of itemized output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// `>`: its data came from the source (also on a local copy).
    Received,
    /// `<`: its data went to a peer.
    Sent,
    /// `c`: created or changed here without data: directory, symlink, device, a copy from an alternate tree.
    Local,
    /// `h`: made a hard link.
    HardLink,
    /// `.`: at most attributes changed.
    Attrs,
}

/// One entry, with all that the formats may ask for.
#[derive(Debug, Clone)]
pub struct Item {
    /// Path relative to the transfer root; `.` for the root. Without a slash at the end.
    pub name: Vec<u8>,
    /// The path as the sender sees it, for `%f`: source argument and name joined, no leading slash.
    pub sender_path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// How it was updated.
    pub update: Update,
    /// What differed.
    pub changes: Changes,
    /// A symlink's value (shown as `-> value`).
    pub target: Option<Vec<u8>>,
    /// The name it was linked to (shown as `=> name`).
    pub linked_to: Option<Vec<u8>>,
    /// Source's mode, with type bits.
    pub mode: u32,
    /// Source's owner; where the receiver tells, as it was mapped.
    pub uid: u32,
    /// Source's group, likewise.
    pub gid: u32,
    /// Source's modification time.
    pub mtime: Time,
    /// Source's access time, when `-U` asks; shown by `--list-only`.
    pub atime: Option<Time>,
    /// Source's length.
    pub len_bytes: u64,
    /// Bytes that were moved, for `%b`; known after the transfer.
    pub moved_bytes: u64,
    /// The digest for `%C`, when asked for.
    pub digest: Option<Vec<u8>>,
    /// Whether file data was (or in a dry run would be) transferred.
    pub transfer: bool,
}

/// The process that rsync would name in an error line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
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

impl Voice {
    /// As it stands in the brackets.
    pub fn word(self) -> &'static str {
        match self {
            Voice::Sender => "sender",
            Voice::Generator => "generator",
            Voice::Receiver => "receiver",
            Voice::MainReceiver => "Receiver",
            Voice::Client => "client",
        }
    }
}

/// What a problem counts as at the end of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Exit 23, and deletions stop: the source could not be read.
    SourceError,
    /// Exit 23.
    Failed,
    /// Exit 24.
    Vanished,
    /// Told only.
    Warning,
}

/// Trouble with one entry: told on stderr, counted, and the run goes on.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The whole line, without newline, as rsync writes it: `rsync: [sender] link_stat "/x" failed: …`.
    pub line: Vec<u8>,
    /// What it counts as.
    pub weight: Weight,
}

impl Problem {
    /// `rsync: [voice] what "path" failed: strerror (errno)`. Control bytes of the path are escaped by
    /// the reporter, not here.
    pub fn failed(voice: Voice, what: &str, path: &[u8], error: &std::io::Error) -> Problem {
        let mut line = format!("rsync: [{}] {what} \"", voice.word()).into_bytes();
        line.extend_from_slice(path);
        line.extend_from_slice(b"\" failed: ");
        line.extend_from_slice(&errno_words(error));
        Problem { line, weight: Weight::Failed }
    }

    /// `rsync: [voice] what "path": strerror (errno)`, for lines in which "failed" stands before the path, or not at all.
    pub fn about(voice: Voice, what: &str, path: &[u8], error: &std::io::Error) -> Problem {
        let head = format!("rsync: [{}] {what} \"", voice.word());
        Problem::said([head.as_bytes(), path, b"\": ", &errno_words(error)].concat(), Weight::Failed)
    }

    /// A line of its own words.
    pub fn said(line: impl Into<Vec<u8>>, weight: Weight) -> Problem {
        Problem { line: line.into(), weight }
    }

    /// The same with another weight.
    pub fn weighing(mut self, weight: Weight) -> Problem {
        self.weight = weight;
        self
    }
}

/// `No such file or directory (2)`
pub fn errno_words(error: &std::io::Error) -> Vec<u8> {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => {
            let words = text.rsplit_once(" (os error").map_or(text.as_str(), |(words, _)| words);
            format!("{words} ({code})").into_bytes()
        }
        None => text.into_bytes(),
    }
}

/// What happened. Events of a run are told in list order.
///
/// Of a file that is transferred, its `Item` comes first and its `Progress` after it, or under
/// [`Wants::after_transfer`] `Begin`, `Progress` and then its `Item`. The last `Progress` has all bytes done.
#[derive(Debug, Clone)]
pub enum Event {
    /// An entry was looked at; what is printed of it depends on the output policy.
    Item(Box<Item>),
    /// An extra entry was removed (or would be).
    Deleted {
        /// Path below the destination.
        name: Vec<u8>,
        /// What it was.
        kind: Kind,
        /// Its size and time, for formats.
        mode: u32,
    },
    /// A line for stdout, of a level that was already checked against `--info`.
    Note(Vec<u8>),
    /// A line for stderr.
    Problem(Problem),
    /// An argument that does not exist is listed (`--delete-missing-args`).
    Missing(Vec<u8>),
    /// The list as far as it is known; wanted for progress and under [`Wants::whole_list`].
    Listed {
        /// Entries.
        entries: u64,
        /// Lengths of the files and symlinks among them.
        bytes: u64,
        /// No more will come.
        complete: bool,
    },
    /// So many more entries are looked at: told before anything else of them; wanted for progress only.
    Checked(u64),
    /// The data of this file begins to move; see [`Wants::begin`].
    Begin(Vec<u8>),
    /// Bytes of a file under way, for `--progress`.
    Progress {
        /// So many of this file are done.
        done_bytes: u64,
        /// The file's length.
        len_bytes: u64,
    },
}

/// Told of everything that happens, in file-list order.
pub trait Reporter: Send {
    /// Takes one event. What is to be seen of it is seen when this returns, or after the next flush.
    fn tell(&mut self, event: &Event);
}

/// What a producer may leave out because nobody would see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants {
    /// [`Event::Item`] of entries that changed, and [`Event::Deleted`].
    pub items: bool,
    /// [`Event::Item`] of unchanged entries too.
    pub unchanged: bool,
    /// An item is told after its data moved: the format asks for `%b`, `%c` or `%C`.
    pub after_transfer: bool,
    /// [`Event::Progress`], [`Event::Checked`] and [`Event::Listed`].
    pub progress: bool,
    /// A complete [`Event::Listed`] before anything else.
    pub whole_list: bool,
    /// [`Event::Begin`], before the progress of a file.
    pub begin: bool,
    /// [`Item::digest`] is shown.
    pub digest: bool,
    /// [`Item::sender_path`] is shown, or the ids that the sender knows.
    pub paths: bool,
}

impl Wants {
    /// Whether an entry is told of that changes so.
    pub fn line_for(&self, changes: Changes) -> bool {
        self.unchanged || self.items && !changes.is_none()
    }
}
