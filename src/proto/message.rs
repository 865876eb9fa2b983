//! Every message of the protocol, as values: no bytes, no transport, no role.
//!
//! docs/PROTOCOL.md specifies which side sends which message when. A decoded message is well formed: paths cannot
//! climb, names are one element, counts and lengths are within [`super::limits`].

use crate::digest::CONTENT_LEN_BYTES;
use crate::exit::Exit;
use crate::filter::Parsed;
use crate::flist::{DirId, DirList, FileId};
use crate::path::RelPath;
use crate::plan::planned::PlannedAction;
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants};
use crate::report::progress::SourceTotals;
use std::net::IpAddr;
use std::sync::Arc;

/// The first message of each side, right after the magic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The oldest protocol version that the sender of this greeting supports.
    pub oldest: u16,
    /// The newest one. Both sides use the smaller of the two `newest`; it must not be below either `oldest`.
    pub newest: u16,
    /// One bit for each property in which two ends of one version can differ; unknown bits are ignored.
    pub features: u64,
    /// The client's key keys all directory digests of this session. Its first [`super::greeting::PLACE_BYTES`] bytes name
    /// the place to which the run copies; the others are random.
    pub key: [u8; 16],
    /// Name and version of the program, only for messages.
    pub program: Vec<u8>,
    /// The single directory that a receiving client expects in [`Roots::whole`]. Its [`Message::Digests`] begin
    /// with that directory, and it sends them without waiting for [`Message::Roots`].
    pub guess: Option<RelPath>,
}

/// The bit of [`Greeting::features`] of a process that can change owners to any user: owners are compared and set.
pub const ACTS_AS_SUPER: u64 = 1;
/// The side accepts zstd.
pub const TAKES_ZSTD: u64 = 1 << 1;
/// The side accepts lz4.
pub const TAKES_LZ4: u64 = 1 << 2;
/// The side accepts the stream of `--compress-choice=zlibx`.
pub const TAKES_ZLIBX: u64 = 1 << 3;
/// The side accepts the stream of `--compress-choice=zlib`, which is the same stream.
pub const TAKES_ZLIB: u64 = 1 << 4;

/// The client has another way to reach this machine; the server has not granted this client full access. If both set
/// this, the server sends [`Message::Verdict`] before it does anything.
pub const ASKS_FIRST: u64 = 1 << 5;

/// The side is a receiver at the client, and shows how far the run is: the server sends [`Message::Totals`].
pub const TAKES_TOTALS: u64 = 1 << 6;

/// Moves the session to another connection, between these two keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// The SHA-256 of the sender's public key, in the form that certificates use.
    pub pin: [u8; 32],
    /// The port on which it listens; 0 from the side that connects.
    pub port: u16,
    /// Addresses on which it listens, as far as known, the best first; at most [`super::limits::ADDRESSES_MAX`].
    pub addresses: Vec<IpAddr>,
}

/// The client's request. Sent once, after its greeting.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The server sends (a pull); otherwise it receives.
    pub server_sends: bool,
    /// The options as command-line words, without operands and without options that only concern the client.
    pub words: Vec<Vec<u8>>,
    /// The words of `--remote-option`. They come after the others and apply only to the server.
    pub remote_words: Vec<Vec<u8>>,
    /// The filter rules of the command line, including the content of the files that it names. There may be millions.
    pub rules: Arc<Vec<Parsed>>,
    /// The content of the client's `~/.cvsignore`, under `-C`.
    pub cvs_home: Option<Vec<u8>>,
    /// The client's `CVSIGNORE` variable, under `-C`.
    pub cvs_env: Option<Vec<u8>>,
    /// The names listed by `--files-from`, read by the client.
    pub listed: Option<Vec<Vec<u8>>>,
    /// Operands that are not on the server's own command line.
    pub operands: Vec<Vec<u8>>,
    /// The events that the client needs.
    pub wants: Wants,
    /// The server reports what its part of the run cost.
    pub profile: bool,
    /// The client's umask, 0 to 0777, which modes like `--chmod=+w` depend on.
    pub umask: u32,
}

/// The result of resolving the sender's arguments. Sent once, before the tree.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    /// How many arguments were found.
    pub found: u64,
    /// The name of the only entry of the list, if there is one entry and it is not a directory.
    pub single: Option<Vec<u8>>,
    /// Whether the only argument is an empty directory; `None` if there is not exactly one directory argument.
    pub lone_dir_is_bare: Option<bool>,
    /// The directory whose content is the root of the transfer: one entry, named `.`.
    pub top: Option<DirList>,
    /// Its path as shown by `%f`.
    pub top_shown: Vec<u8>,
    /// Names to delete at the destination (`--delete-missing-args`).
    pub missing: Vec<RelPath>,
    /// Directories that are walked recursively, in canonical order, none below another. The receiver sends digests of
    /// these. Empty if no digests are used.
    pub whole: Vec<RelPath>,
    /// Problems with arguments.
    pub problems: Vec<Problem>,
    /// Lines for stdout.
    pub notes: Vec<Vec<u8>>,
    /// Names of the ids in `top`.
    pub ids: Vec<IdName>,
}

/// The name of a user or group at the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdName {
    /// A group; otherwise a user.
    pub is_group: bool,
    /// The numeric id at the sender.
    pub id: u32,
    /// Never empty.
    pub name: Vec<u8>,
}

/// How often [`DestDirState::Large`] can be sent for one directory: when some of its names are known, and when all are.
pub const LARGE_TIMES_MAX: u32 = 2;

/// The state of one directory at the destination.
///
/// Sent in preorder of the receiver's own tree: one item for each of [`Roots::whole`] and for each of the `children` of
/// earlier items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DestDirState {
    /// The directory does not exist, or it is one of [`Roots::whole`] and empty.
    Absent,
    /// A directory with at least this many entries. The next item is about the same directory; that may be `Large`
    /// again, with a higher count, up to [`LARGE_TIMES_MAX`] times. A sender with fewer entries sends its listing
    /// without waiting, which saves the receiver from reading the rest.
    Large(u64),
    /// An existing directory.
    Dir {
        /// The digest of its entries; `None` if the sender must send the listing in any case.
        digest: Option<[u8; DIGEST_LEN_BYTES]>,
        /// The keyed hashes of the names of its subdirectories, in canonical order of the names.
        children: Vec<u32>,
    },
}

/// Length of a directory digest. Only pairs are compared, so 96 bits of a keyed digest are plenty.
pub const DIGEST_LEN_BYTES: usize = 12;

/// The listing of a source directory. A sender sends those that differ from the destination, or that could not be
/// compared; `id`, `itself`, `with_data`, `more`, `ids` and `shown` are about that.
#[derive(Debug, Clone, Default)]
pub struct DirListing {
    /// The number of this listing.
    pub id: DirId,
    /// Its path in the transfer.
    pub path: RelPath,
    /// The directory's own entry (named `.`) if its parent's listing was not sent; otherwise empty.
    pub itself: DirList,
    /// The entries, sorted. Long listings continue in [`Message::More`]. A sender keeps them until no more of its files
    /// are requested.
    pub list: Arc<DirList>,
    /// One value for each directory in `list`, in the same order.
    pub subs: Vec<SubdirFlags>,
    /// The directory was read completely, so extra entries can be deleted.
    pub may_delete: bool,
    /// The list has only the entries that the arguments name.
    pub is_named: bool,
    /// The data of its regular files follows without a request, in order; see [`Message::Whole`], [`Message::Begin`].
    pub with_data: bool,
    /// More entries follow in [`Message::More`].
    pub more: bool,
    /// Problems in this directory, in order.
    pub problems: Vec<Problem>,
    /// Lines for stdout.
    pub notes: Vec<Vec<u8>>,
    /// Names of ids that were not sent before.
    pub ids: Vec<IdName>,
    /// For each origin (see `Entry::origin`), the prefix that `%f` puts before a name; only if the client needs it.
    pub shown: Vec<Vec<u8>>,
    /// The name of the only entry at the source, if the destination uses another name.
    pub renamed_from: Option<Vec<u8>>,
}

/// What a listing says about a subdirectory besides its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubdirFlags {
    /// Its content is part of the transfer: its listing is sent, or both sides have the same.
    pub is_walked: bool,
    /// It is only a leading path element under `-R`.
    pub is_implied: bool,
    /// Its content was not listed as a whole; see [`DirListing::is_named`], which a sparsync peer receives instead.
    pub is_named: bool,
    /// rsync's list has it more than once, because of several arguments.
    pub is_repeated: bool,
}

/// The digest that verifies the content of a file; see [`crate::digest::By`].
pub type ContentDigest = [u8; CONTENT_LEN_BYTES];

/// The stream that carries the data of a file.
///
/// Each lane has its own window and carries files in the order of the requests. So data that the receiver waits for
/// never queues behind data that it does not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Data that follows a directory listing without a request.
    Unrequested,
    /// Requested data.
    Requested,
    /// Data that was requested a second time.
    Again,
}

/// What the receiver already has of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Basis {
    /// Nothing useful: send the whole file.
    None,
    /// A file with these blocks; [`Message::Copy`] names ranges of it.
    Blocks(Vec<u8>),
    /// `--append`: a prefix of this length is taken as correct.
    Prefix {
        /// Length of the prefix.
        len_bytes: u64,
        /// `--append-verify`: the digest of the prefix. If the sender's prefix differs, it answers only with
        /// [`Message::Unsent`] without a problem.
        digest: Option<ContentDigest>,
    },
}

impl Basis {
    /// Returns the blocks.
    pub fn blocks(&self) -> Option<&[u8]> {
        match self {
            Basis::Blocks(blocks) => Some(blocks),
            Basis::None | Basis::Prefix { .. } => None,
        }
    }
}

/// The message classes that have a flow-control window.
///
/// The consumer of a class grants bytes; the producer stops when none are left. The message that takes the window below
/// zero may still be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// [`Message::Digests`].
    Digests,
    /// [`Message::Dir`], [`Message::More`], [`Message::DirsEnd`], [`Message::Plan`].
    Dirs,
    /// [`Message::Want`], [`Message::WantDigest`], [`Message::Done`], [`Message::Placed`].
    Wants,
    /// [`Message::Event`].
    Events,
    /// Data of [`Lane::Unrequested`].
    Unrequested,
    /// Data of [`Lane::Requested`], and [`Message::FileDigest`].
    Requested,
    /// Data of [`Lane::Again`].
    Again,
}

impl Class {
    /// All classes; the index of a class is its number on the wire.
    pub const ALL: [Class; 7] = [
        Class::Digests,
        Class::Dirs,
        Class::Wants,
        Class::Events,
        Class::Unrequested,
        Class::Requested,
        Class::Again,
    ];

    /// Returns the class of a lane's data.
    pub fn for_lane(lane: Lane) -> Class {
        match lane {
            Lane::Unrequested => Class::Unrequested,
            Lane::Requested => Class::Requested,
            Lane::Again => Class::Again,
        }
    }
}

/// A part of the plan that a receiver at the server carries out (`sparsync apply`). Sent before [`Message::Roots`].
#[derive(Debug, Clone, Default)]
pub struct PlanPiece {
    /// Further actions, in the order of the plan.
    pub actions: Vec<PlannedAction>,
    /// A destination that does not exist is created. Only that of the last piece counts.
    pub creates_dest: bool,
    /// The plan is complete.
    pub is_last: bool,
}

/// One message. S: sender, R: receiver; C: client, V: server.
#[derive(Debug, Clone)]
pub enum Message {
    /// C to V: the request.
    Setup(Box<Setup>),
    /// S to R: the resolved arguments.
    Roots(Box<Roots>),
    /// R to S: the state of destination directories.
    Digests(Vec<DestDirState>),
    /// S to R: a directory listing.
    Dir(Box<DirListing>),
    /// S to R: further entries of the last listing.
    More {
        /// Sorted, and after all earlier entries.
        list: DirList,
        /// One value for each directory in `list`.
        subs: Vec<SubdirFlags>,
        /// Further problems in this directory.
        problems: Vec<Problem>,
        /// Further lines for stdout.
        notes: Vec<Vec<u8>>,
        /// The listing is complete.
        last: bool,
    },
    /// S at V to R at C that has [`TAKES_TOTALS`]: how long the list is, which the scanners know long before it is sent.
    Totals(SourceTotals),
    /// S to R: all listings were sent. With the sender's counts from its walk.
    DirsEnd(Box<Tally>),
    /// R to S: requests the content of a file.
    Want {
        /// The requested file.
        file: FileId,
        /// The lane for the answer: [`Lane::Requested`] or [`Lane::Again`].
        lane: Lane,
        /// What the receiver already has of it.
        basis: Basis,
    },
    /// R to S: no more requests for files of this directory.
    Done(DirId),
    /// R to S: a file has its final name (under `--remove-source-files`).
    Placed(FileId),
    /// R to S: requests the digest of a file's content (`--detect-renamed`), to be answered by [`Message::FileDigest`].
    WantDigest(FileId),
    /// R to S: no more requests at all. With the receiver's counts.
    WantsEnd(Box<Tally>),
    /// S to R: a short file in one message.
    Whole {
        file: FileId,
        lane: Lane,
        /// Its content.
        data: Vec<u8>,
        digest: ContentDigest,
    },
    /// S to R: the content of a file begins.
    Begin {
        file: FileId,
        /// The lane that carries everything up to the matching [`Message::End`].
        lane: Lane,
    },
    /// S to R: the next bytes of the current file of the lane.
    Data {
        lane: Lane,
        /// At least one byte.
        data: Vec<u8>,
    },
    /// S to R: the next bytes are a range of the basis.
    Copy {
        lane: Lane,
        /// Where the range begins in the basis.
        offset_bytes: u64,
        /// Its length; not 0.
        len_bytes: u64,
    },
    /// S to R: the file is complete.
    End {
        lane: Lane,
        /// The digest of the whole content, including ranges of the basis; after a prefix, only of what follows it.
        digest: ContentDigest,
    },
    /// S to R: the content of a file will not be sent (further). Without a problem: see [`Basis::Prefix`].
    Unsent {
        file: FileId,
        /// The lane that would have carried it.
        lane: Lane,
        /// The problem to report instead.
        problem: Option<Problem>,
    },
    /// S to R: answers [`Message::WantDigest`].
    FileDigest {
        file: FileId,
        /// The digest by which both ends compare contents. `None`: the file cannot be read, or is not what was listed.
        digest: Option<ContentDigest>,
    },
    /// V to C: an event at the server.
    Event(Event),
    /// Either side: the peer may send this many more bytes of a class.
    Grant {
        class: Class,
        /// The number of additional bytes.
        bytes: u64,
    },
    /// Either side: keepalive of a side that sent nothing for a while.
    Ping,
    /// Either side: ends the run with an error.
    Fail {
        /// The exit code of the run.
        exit: Exit,
        /// Lines for stderr; empty if everything was already printed.
        message: Vec<u8>,
        /// The role named in the closing line; one of [`super::limits::ROLES`].
        role: &'static str,
    },
    /// S to R: the last message of a completed run. With what was counted since [`Message::DirsEnd`].
    Bye(Box<Tally>),
    /// C to V instead of [`Message::Setup`]: move the session to another connection; V to C: where to connect.
    Meet(Meeting),
    /// Either side: the window of this class is used up, and the transport has accepted everything.
    Blocked(Class),
    /// V to C after [`Message::Setup`], if both set [`ASKS_FIRST`]: whether the server permits the request.
    Verdict {
        /// The reason for a refusal, a line for stderr; the server has done nothing and sends nothing more. `None`:
        /// granted.
        refused: Option<Vec<u8>>,
    },
    /// S to R, if R is the server and the words of the setup have `--replay-plan`: a piece of the plan.
    Plan(PlanPiece),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_basis_of_blocks_has_blocks() {
        let blocks = Basis::Blocks(b"blocks"[..].into());
        assert_eq!(blocks.blocks(), Some(&b"blocks"[..]));
        assert_eq!(Basis::None.blocks(), None);
    }
}
