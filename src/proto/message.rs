//! Everything two peers ever say, as values: no bytes, no transport, no role.
//!
//! docs/PROTOCOL.md says who says what when. What a decoder made is valid: paths cannot climb, names are one
//! element, counts and lengths lie within the limits of [`super::limits`].

use crate::exit::Exit;
use crate::filter::Parsed;
use crate::flist::DirList;
use crate::path::RelPath;
use crate::report::Tally;
use crate::report::event::{Event, Problem, Wants};
use std::net::IpAddr;

/// The first thing each side says, behind the magic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The oldest version of the conversation that it speaks.
    pub oldest: u16,
    /// The newest. Both sides use the smaller of the two newest; it must be at least the larger `oldest`.
    pub newest: u16,
    /// One bit each for what it can do beyond its version; unknown bits are ignored.
    pub features: u64,
    /// Random; the client's is the key of all directory digests of this session.
    pub key: [u8; 16],
    /// Name and version of the program, for messages only.
    pub program: Vec<u8>,
    /// Of a client that receives: the one directory that [`Roots::whole`] will name, it thinks. Said with [`GUESSES`].
    pub guess: Option<RelPath>,
}

/// The bit of [`Greeting::features`] of a process that may give files to any user: owners are compared and set.
pub const ACTS_AS_SUPER: u64 = 1;
/// The bit of a side that says which compressions it takes, by the bits below; without it, that is zstd alone.
pub const NAMES_COMPRESSIONS: u64 = 1 << 1;
/// It takes zstd.
pub const TAKES_ZSTD: u64 = 1 << 2;
/// It takes lz4.
pub const TAKES_LZ4: u64 = 1 << 3;
/// It takes what `--compress-choice=zlibx` asks for.
pub const TAKES_ZLIBX: u64 = 1 << 4;
/// It takes what `--compress-choice=zlib` asks for; the stream is the same.
pub const TAKES_ZLIB: u64 = 1 << 5;

/// The bit of a server that opens another way for the session if it is asked to, and of a client that asks; see
/// [`Meeting`].
pub const MEETS: u64 = 1 << 6;

/// The bit of a side that knows [`crate::digest::By::Xxh3`] for contents of any length that come without blocks of a basis; if
/// both do, these have it.
pub const QUICK_DIGESTS: u64 = 1 << 7;

/// The bit of a side that knows [`Message::Blocked`]; if both do, it may be said.
pub const TELLS_BLOCKED: u64 = 1 << 8;

/// The bit of a side that knows [`Greeting::guess`]; if both do, and the client has one, its [`Message::Digests`] begin with
/// that directory, and it need not wait for [`Message::Roots`] to say them.
pub const GUESSES: u64 = 1 << 9;

/// The bit of a side that knows [`crate::digest::Comparison::Keyed`] for contents that both have and only compare; if both do,
/// these have it.
pub const KEYED_COMPARISON: u64 = 1 << 10;

/// The bit of a side that knows [`Seen::Large`]; if both do, it may be said.
pub const LARGE_DIRS: u64 = 1 << 11;

/// The bit of a client that has another way to this machine, and of a server that grants its client less than everything: if
/// both do, the server says [`Message::Verdict`] before anything is done.
pub const ASKS_FIRST: u64 = 1 << 12;

/// The bit of a side that reads and writes the content of devices where it is asked to (`--copy-devices`, `--write-devices`). One
/// without would pass over these words, and the receiver put files in the place of devices.
pub const CONTENT_OF_DEVICES: u64 = 1 << 13;

/// Where the session shall take place, in place of here: between these two keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// The SHA-256 of the public key of whoever says this, as certificates hold it.
    pub pin: [u8; 32],
    /// The port at which it listens; 0: it does not, and comes.
    pub port: u16,
    /// Addresses at which it listens, as far as it knows them, the best first; at most [`super::limits::ADDRESSES_MAX`].
    pub addresses: Vec<IpAddr>,
}

/// What the server is asked for; the client says it once, behind its greeting.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The server sends (a pull); else it receives.
    pub server_sends: bool,
    /// The options in the words of the command line, without operands and without what concerns the client alone.
    pub words: Vec<Vec<u8>>,
    /// The words of `--remote-option`; they count after the others, and for the server alone.
    pub remote_words: Vec<Vec<u8>>,
    /// The rules of the command line, with what files that it names hold.
    pub rules: Vec<Parsed>,
    /// The content of the client's `~/.cvsignore`, under `-C`.
    pub cvs_home: Option<Vec<u8>>,
    /// The client's `CVSIGNORE`, likewise.
    pub cvs_env: Option<Vec<u8>>,
    /// What `--files-from` lists, read by the client.
    pub listed: Option<Vec<Vec<u8>>>,
    /// Operands, where they are not on the server's own command line.
    pub operands: Vec<Vec<u8>>,
    /// What the client wants to be told.
    pub wants: Wants,
    /// The server shall tell what its part cost.
    pub profile: bool,
    /// The bits that the client's files lack, 0 to 0777: a word like `--chmod=+w` means what they allow.
    pub umask: u32,
}

/// What the arguments of the sender came to: said once, before the tree.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    /// How many arguments were found.
    pub found: u64,
    /// The name of the one entry that the list consists of, if it is one and no directory.
    pub single: Option<Vec<u8>>,
    /// The one argument is a directory, and nothing is in it.
    pub lone_dir_is_bare: Option<bool>,
    /// The directory whose content is the transfer's root: one entry, named `.`.
    pub top: Option<DirList>,
    /// Where it lies, for `%f`.
    pub top_shown: Vec<u8>,
    /// Names that the destination shall lose (`--delete-missing-args`).
    pub missing: Vec<RelPath>,
    /// Directories of the transfer that are walked to the bottom, in canonical order and none below another: of these
    /// the receiver tells digests. Empty if none are wanted.
    pub whole: Vec<RelPath>,
    /// Trouble with arguments.
    pub problems: Vec<Problem>,
    /// Lines for stdout.
    pub notes: Vec<Vec<u8>>,
    /// Names of the ids in `top`.
    pub ids: Vec<IdName>,
}

/// The sender's name of a user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdName {
    /// A group; else a user.
    pub is_group: bool,
    /// Its number at the sender.
    pub id: u32,
    /// Never empty.
    pub name: Vec<u8>,
}

/// How often [`Seen::Large`] may be said of one directory: when some of its names are known, and when all are.
pub const LARGE_TIMES_MAX: u32 = 2;

/// What the receiver has where a directory of the transfer is or would be. In the preorder of its own tree, one for
/// each of [`Roots::whole`] and for each of the `children` of those before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// No directory, or one of [`Roots::whole`] with nothing in it.
    Absent,
    /// A directory with so many entries or more, of which more is said: the next is of the same directory, and this at most
    /// [`LARGE_TIMES_MAX`] times, each time with more. Who has fewer need not wait for it, and whoever says it need not look at
    /// all of them then.
    Large(u64),
    /// A directory.
    Dir {
        /// The digest of its entries; `None`: the sender shall tell them in any case.
        digest: Option<[u8; DIGEST_LEN_BYTES]>,
        /// The keyed hash of each of its directories' names, in canonical order of the names.
        children: Vec<u32>,
    },
}

/// Length of a directory's digest: pairs are compared, never looked up, so 96 bits of a keyed digest are plenty.
pub const DIGEST_LEN_BYTES: usize = 12;

/// The number of a directory that was told, from 0 in the order of telling.
pub type DirId = u64;

/// A directory of the source that the receiver must know: it differs, or nobody could say.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// Its number.
    pub id: DirId,
    /// Its path in the transfer.
    pub path: RelPath,
    /// Its own entry (named `.`), where its parent was not told; empty otherwise.
    pub itself: DirList,
    /// Its entries, sorted. Longer ones come in pieces: see [`Message::More`].
    pub list: DirList,
    /// For each directory of this message's list, in order, what is said of it besides its entry.
    pub subs: Vec<ToldSub>,
    /// The content was listed completely, so that extra entries may go.
    pub may_delete: bool,
    /// Only what arguments named is in the list.
    pub is_named: bool,
    /// The data of its regular files follows unasked, in order; see [`Message::Whole`], [`Message::Begin`].
    pub with_data: bool,
    /// More entries follow in [`Message::More`].
    pub more: bool,
    /// Trouble met in it, in order.
    pub problems: Vec<Problem>,
    /// Lines for stdout.
    pub notes: Vec<Vec<u8>>,
    /// Names of ids that were not named before.
    pub ids: Vec<IdName>,
    /// For each origin (see `Entry::origin`) what `%f` puts before a name; only where the client asked for it.
    pub shown: Vec<Vec<u8>>,
    /// The name at the source of the one entry, if the destination calls it otherwise.
    pub renamed_from: Option<Vec<u8>>,
}

/// What is said of a directory in a told one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ToldSub {
    /// Its content takes part: it is told, or is the same on both sides.
    pub is_walked: bool,
    /// It was only a leading element under `-R`.
    pub is_implied: bool,
}

/// A file of a told directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Its directory.
    pub dir: DirId,
    /// Its index in the sorted list.
    pub entry: u32,
}

/// The content of a file is checked with this much of its BLAKE3.
pub type ContentDigest = [u8; 16];

/// The stream on which the data of a file travels. Each has its own window, and files on one come in the order in which
/// they were asked for, so that nobody waits for data behind data that nobody takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Data that follows a told directory unasked.
    Early,
    /// Data that was asked for.
    Asked,
    /// Data that was asked for a second time.
    Again,
}

/// What the receiver has of a file already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Basis {
    /// Nothing of use: the whole file.
    None,
    /// A file with these blocks; [`Message::Copy`] names ranges of it.
    Blocks(Vec<u8>),
    /// `--append`: so many bytes, which count as right.
    Prefix {
        /// How many.
        len_bytes: u64,
        /// `--append-verify`: their digest; the sender says nothing but [`Message::Unsent`] without problem if its own differ.
        digest: Option<ContentDigest>,
    },
}

/// The classes of messages that have a window: the consumer of a class grants bytes, the producer stops when it has
/// none left. The one message that goes below zero may still be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// [`Message::Digests`].
    Digests,
    /// [`Message::Dir`], [`Message::More`], [`Message::DirsEnd`].
    Dirs,
    /// [`Message::Want`], [`Message::Done`], [`Message::Placed`].
    Wants,
    /// [`Message::Event`].
    Events,
    /// Data of [`Lane::Early`].
    Early,
    /// Data of [`Lane::Asked`].
    Asked,
    /// Data of [`Lane::Again`].
    Again,
}

impl Class {
    /// All of them; their place is their number on the wire.
    pub const ALL: [Class; 7] =
        [Class::Digests, Class::Dirs, Class::Wants, Class::Events, Class::Early, Class::Asked, Class::Again];

    /// The class of a lane's data.
    pub fn of(lane: Lane) -> Class {
        match lane {
            Lane::Early => Class::Early,
            Lane::Asked => Class::Asked,
            Lane::Again => Class::Again,
        }
    }
}

/// One thing said. S: sender, R: receiver; C: client, V: server.
#[derive(Debug, Clone)]
pub enum Message {
    /// C to V: what is asked for.
    Setup(Box<Setup>),
    /// S to R: what the arguments came to.
    Roots(Box<Roots>),
    /// R to S: what the destination has.
    Digests(Vec<Seen>),
    /// S to R: a directory.
    Dir(Box<Told>),
    /// S to R: further entries of the last directory; `last`: these are all.
    More {
        /// Sorted, and behind those before.
        list: DirList,
        /// What is said of the directories among them.
        subs: Vec<ToldSub>,
        /// Further trouble met in it.
        problems: Vec<Problem>,
        /// Further lines for stdout.
        notes: Vec<Vec<u8>>,
        /// Nothing more comes.
        last: bool,
    },
    /// S to R: all directories were told. With what the sender counted while it walked.
    DirsEnd(Box<Tally>),
    /// R to S: the content of a file is wanted.
    Want {
        /// Which.
        file: FileId,
        /// On which lane: [`Lane::Asked`] or [`Lane::Again`].
        lane: Lane,
        /// What there is of it.
        basis: Basis,
    },
    /// R to S: nothing more will be asked for in a directory.
    Done(DirId),
    /// R to S: a file has its name (under `--remove-source-files`).
    Placed(FileId),
    /// R to S: nothing more will be asked for at all. With what the receiver counted.
    WantsEnd(Box<Tally>),
    /// S to R: a whole file, for short ones.
    Whole {
        /// Which.
        file: FileId,
        /// On which lane.
        lane: Lane,
        /// Its content.
        data: Vec<u8>,
        /// Of the content.
        digest: ContentDigest,
    },
    /// S to R: the content of a file begins.
    Begin {
        /// Which.
        file: FileId,
        /// On which lane all until its [`Message::End`] travels.
        lane: Lane,
    },
    /// S to R: the next bytes of the file that is under way on the lane.
    Data {
        /// Which.
        lane: Lane,
        /// At least one byte.
        data: Vec<u8>,
    },
    /// S to R: the next bytes are these of the basis.
    Copy {
        /// Which lane.
        lane: Lane,
        /// Where they begin in the basis.
        offset_bytes: u64,
        /// How many; not 0.
        len_bytes: u64,
    },
    /// S to R: the file is complete.
    End {
        /// Which lane.
        lane: Lane,
        /// Of its whole content, also of what came from the basis.
        digest: ContentDigest,
    },
    /// S to R: the content of a file does not come (any more), and why; without a problem: see [`Basis::Prefix`].
    Unsent {
        /// Which file.
        file: FileId,
        /// On which lane it would have come.
        lane: Lane,
        /// Told in its place.
        problem: Option<Problem>,
    },
    /// V to C: it happened at the server.
    Event(Event),
    /// Either: so many more bytes of a class may come.
    Grant {
        /// Which.
        class: Class,
        /// How many more.
        bytes: u64,
    },
    /// Either, when it said nothing for a while: it is still there.
    Ping,
    /// Either: the run ends here.
    Fail {
        /// The code that it earned.
        exit: Exit,
        /// Lines for stderr; empty when all was said already.
        message: Vec<u8>,
        /// The role in the closing line; one of [`super::limits::ROLES`].
        role: &'static str,
    },
    /// S to R, the last word of a run that went to its end. With what was counted since [`Message::DirsEnd`].
    Bye(Box<Tally>),
    /// C to V in place of [`Message::Setup`]: the session shall take place elsewhere; V to C: there.
    Meet(Meeting),
    /// Either, where both set [`TELLS_BLOCKED`]: it has more to say of this class than it may, and nothing else under way here.
    Blocked(Class),
    /// V to C behind [`Message::Setup`], where both set [`ASKS_FIRST`]: whether what that asks for was granted.
    Verdict {
        /// It was not, and why: a line for stderr. Then nothing follows, and nothing was done.
        refused: Option<Vec<u8>>,
    },
}
