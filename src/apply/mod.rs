//! Carries out decisions, below the destination's root and through open directories only.
//!
//! Callers know why; this code does not depend on whether a run is a mirror or a backup.

pub mod abbreviated;
pub mod attributes;
pub mod backup;
pub mod block_sums;
pub mod changed_files;
pub mod content;
pub mod delayed;
pub mod delete;
pub mod dir_finalize;
pub mod entry;
pub mod facts;
pub mod file;
pub mod fuzzy_basis;
pub mod hard_links;
pub mod heirs;
pub mod held_twins;
pub mod job;
pub mod partial;
mod read_ahead;
pub mod remove_source;
pub mod twins;

pub mod generator;

pub mod dest_arg;

pub mod pipeline;

use self::abbreviated::WantedValues;
use self::changed_files::ChangedFiles;
use self::dir_finalize::LastTouch;
use self::facts::{ItemOrder, ItemPrinter, SourceFacts};
use self::twins::Twins;
use crate::checksum_cache::CacheInUse;
use crate::digest::By;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::abbreviated::{AbbreviatedValue, RequestedValues};
use crate::flist::{Kind, Time};
use crate::fs::copy::UnsupportedCalls;
use crate::fs::read::Wanted;
use crate::fs::root::{Dir, Root};
use crate::fs::{acl, errno, sys, trusted_path};
use crate::options::{LinkOwners, Options};
use crate::path::RelPath;
use crate::plan::{BasisName, Changes, Policy, chmod};
use crate::proto::{Basis, ContentDigest, FileId};
use crate::report::event::{Event, Item, Problem, Weight};
use crate::report::format::Format;
use crate::report::gauge::{FileMark, Gauge};
use crate::report::tally::Tally;
use crate::walk::SourceDir;
use crate::walk::run_context::Process;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// What all code that writes to the destination needs. Shared by all appliers.
pub struct Context<'a> {
    /// The settled options.
    pub options: &'a Options,
    /// The policy of the decisions, with the attributes that are preserved.
    pub policy: &'a Policy,
    /// The destination's top; `None` in a listing, and in a dry run that would make it.
    pub dest: Option<&'a Root>,
    /// The destination's path, for messages.
    pub dest_path: &'a [u8],
    /// Which attributes are read of entries at the destination.
    pub wanted: Wanted<'a>,
    /// Where `--backup-dir` leads.
    pub backup: Option<&'a BackupDir>,
    /// Where `--temp-dir` leads.
    pub temp_dir: Option<&'a TempDir>,
    pub process: Process<'a>,
    /// We may do what only a super-user may.
    pub is_super: bool,
    /// What the file systems have turned out not to support.
    pub unsupported_calls: UnsupportedCalls,
    /// Which events are wanted.
    pub wants: crate::report::Wants,
    /// Waits after this many bytes, as `--bwlimit` requires.
    pub throttle: Option<&'a (dyn Fn(u64) + Sync)>,
    /// Compares contents under `-c`: the source's directory and name with the destination's.
    pub compare: &'a crate::walk::Compare<'a>,
    /// Files that were transferred a second time, by path. Reported at the end.
    pub again: Mutex<Vec<(RelPath, Event)>>,
    /// The state that all last touches share.
    pub late: Arc<dir_finalize::LateNotes>,
    /// The peer that has the source, if it is not on this machine.
    pub peer: Option<&'a dyn ContentPeer>,
    /// Who prints the items.
    pub printer: ItemPrinter,
    /// The alternate trees.
    pub alternates: &'a [crate::walk::alternate::Alternate],
    /// The similar files chosen as bases of new ones.
    pub chosen: Chosen,
    /// The values that the next items of entries request.
    pub wanted_values: WantedValues,
    /// The digests of earlier runs.
    pub checksum_cache: Option<CacheInUse<'a>>,
    /// The files whose content new files take (`--detect-renamed`).
    pub twins: Twins,
    /// Counts for the live display.
    pub gauge: Option<&'a Arc<Gauge>>,
    /// Complete files that get their names at the end (`--delay-updates`).
    pub delayed: Mutex<Vec<DelayedFile>>,
    /// What `--remove-source-files` removes at the end.
    pub late_removals: LateRemovals,
    /// The files whose digests are kept at the end (`--checksum-cache`).
    pub changed: ChangedFiles<'a>,
}

/// Returns the warning for each use of an option's path that leads through a symlink of an untrusted user.
pub fn refusal() -> Event {
    Event::Problem(Problem::new(trusted_path::REFUSAL, Weight::Warning))
}

/// The directory of `--temp-dir`.
pub enum TempDir {
    /// To this directory.
    Open(Dir),
    /// A symlink of an untrusted user is in the way. Reported for each file that would be created there.
    Refused,
    /// It is outside of the directory of `--confine-root`. Reported likewise.
    Outside,
}

/// The directory of `--backup-dir`. It is created with the first backup, so that no walk finds an empty one.
pub struct BackupDir {
    path: Vec<u8>,
    umask: u32,
    owners: LinkOwners,
    root: Mutex<Option<Root>>,
    /// Its path below the destination, if it leads there.
    below_dest: Option<RelPath>,
    /// The last touches of the directories of the transfer that it is in. They wait for the end of the run, because a
    /// backup may create it, and so change the time of such a directory, at any moment.
    above: Mutex<Vec<Arc<LastTouch>>>,
}

/// A complete file in the staging directory, which gets its final name at the end.
pub struct DelayedFile {
    /// Its path in the transfer.
    pub path: RelPath,
    /// Keeps the directory's last touch waiting.
    pub last: Arc<LastTouch>,
    /// Something has its final name now.
    pub replaces: bool,
    /// The source's file, if it must be removed once this one has its final name.
    pub leaving: Option<SourceRemoval>,
}

/// An entry of the source that `--remove-source-files` removes after its arrival.
pub enum SourceRemoval {
    /// It is on this machine.
    Local(SourceFile),
    /// A peer has it and is notified. The peer's listing of its directory is held until then.
    Remote(FileId, Option<Arc<dyn Any + Send + Sync>>),
}

/// An entry of the source on this machine, as it was listed.
pub struct SourceFile {
    /// Its directory.
    pub place: SourceDir,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its path in the transfer.
    pub path: RelPath,
    pub kind: Kind,
    /// Its length and time.
    pub was: (u64, Time),
    /// The device and inode of the file that was sent, if its content was.
    pub inode: Option<(u64, u64)>,
    /// That time has no fraction, although the file may have one.
    pub lacks_fraction: bool,
    /// It is the target of a symlink of that name (`-L`).
    pub followed: bool,
    /// It may have other paths in the transfer, so it is needed until everything has been read.
    pub is_shared: bool,
}

/// The entries of the source that are removed once everything has been read, because they may have other paths in the
/// transfer. `None` from then on.
pub struct LateRemovals(Mutex<Option<Vec<SourceFile>>>);

/// The bases that `--fuzzy` chose for files in progress, by their paths.
#[derive(Debug, Default)]
pub struct Chosen(Mutex<HashMap<RelPath, Similar>>);

/// A file that `--fuzzy` chose as the basis of another.
#[derive(Debug)]
pub struct Similar {
    dir: Dir,
    name: Box<[u8]>,
    /// The alternate tree that has it; `None`: the destination.
    tree: Option<usize>,
    /// Its name in messages.
    shown: Vec<u8>,
    held: Option<(OwnedFd, u64)>,
}

impl Context<'_> {
    /// Returns what the modes of new entries depend on.
    pub fn mode_rule(&self) -> chmod::ModeRule<'_> {
        let preserve = &self.policy.preserve;
        chmod::ModeRule {
            perms: preserve.perms,
            executability: preserve.executability,
            umask: self.process.umask,
            required: &preserve.required_modes,
        }
    }

    /// Returns whether nothing may be changed.
    pub fn is_dry(&self) -> bool {
        self.options.dry_run || self.policy.list_only
    }

    /// Opens a file of this end, which is not the source, to read its content. Does not follow a symlink.
    pub fn open_read(&self, dir: &Dir, name: &[u8]) -> io::Result<OwnedFd> {
        sys::open_read(dir.fd(), name, false, self.options.select.open_noatime)
    }

    /// Returns the absolute path of an entry at the destination, for messages.
    pub fn full(&self, path: &[u8]) -> Vec<u8> {
        crate::path::join(self.dest_path, path)
    }

    /// Returns the name of the directory in which `--delay-updates` keeps the files of one directory until the end.
    pub fn staging_name(&self) -> &[u8] {
        // An absolute one would mix up files with the same name.
        self.options
            .place
            .partial_dir
            .as_deref()
            .filter(|dir| !dir.starts_with(b"/"))
            .unwrap_or(b".~tmp~")
    }

    /// Returns an error if the run is being stopped.
    pub fn go_on(&self) -> Result<()> {
        if self.stopped() {
            Err(Error::new(Exit::Signal, "").by("sender"))
        } else {
            Ok(())
        }
    }

    /// Returns the facts about the peer that has the source. `None`: the source is on this machine.
    pub fn facts(&self) -> Option<&SourceFacts> {
        self.peer.map(ContentPeer::facts)
    }

    /// Returns whether the peer must get all items in the order of the list, so that the generator itself does what
    /// needs no content; see [`ItemOrder::List`].
    pub fn works_in_order(&self) -> bool {
        self.facts()
            .is_some_and(|facts| facts.order == ItemOrder::List)
    }

    /// Returns whether work may wait for the content of a file that was requested; see
    /// [`SourceFacts::answers_unreadable`].
    pub fn may_await_answers(&self) -> bool {
        self.facts().is_none_or(|facts| facts.answers_unreadable)
    }

    /// Returns whether values of extended attributes come with the items of their entries; see
    /// [`SourceFacts::values_with_items`].
    pub fn has_values_with_items(&self) -> bool {
        self.facts().is_some_and(|facts| facts.values_with_items)
    }

    /// Returns whether files are updated by delta transfer.
    pub fn finds_differences(&self) -> bool {
        self.options
            .delta
            .whole_file
            .map_or(self.peer.is_some(), |whole| !whole)
    }

    /// Returns whether copies share blocks with what they are copied from (`--clone-dest`).
    pub fn shares_blocks(&self) -> bool {
        let place = &self.options.place;
        let alternates = self.options.delta.alt_dest.as_ref();
        // Zeros become holes, blocks are reserved, or they are read back from the medium: all that needs blocks of the file's
        // own.
        let needs_own = place.sparse || place.preallocate || place.verify.is_some();
        alternates.is_some_and(|alt| alt.by_clone) && !needs_own
    }

    /// Returns whether a run resumes from what a crash leaves of a file of this length.
    pub fn resumes(&self, len_bytes: u64) -> bool {
        len_bytes >= crate::walk::destination::resumes_from(self.options, self.peer.is_some())
    }

    /// Returns whether a repeated transfer is reported: as in rsync, only if names or changes are printed.
    pub fn reports_retries(&self) -> bool {
        let output = &self.options.output;
        match &output.out_format {
            Some(format) => output.verbose >= 1 || Format::parse(format).has_itemize(),
            None => output.info.name >= 1 || output.itemize > 0,
        }
    }

    /// Returns whether the run is being stopped.
    pub fn stopped(&self) -> bool {
        self.process.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns whether the run is being stopped or has lost its peer, so that long work should be abandoned.
    pub fn is_over(&self) -> bool {
        self.stopped() || self.peer.is_some_and(ContentPeer::is_silent)
    }

    /// Returns an error if the run is being stopped or has lost its peer.
    pub fn fail_if_over(&self) -> Result<()> {
        self.go_on()?;
        self.peer.and_then(ContentPeer::failure).map_or(Ok(()), Err)
    }

    /// Returns the digest that `%C` shows, of the rest of a file, or of `len_bytes` if devices take part, which may be
    /// endless. `None` if the file cannot be read or the run is over.
    fn shown_digest(&self, file: BorrowedFd<'_>, len_bytes: u64) -> Option<Vec<u8>> {
        let is_bounded = self.options.select.copy_devices || self.options.preserve.write_devices;
        let mut left_bytes = if is_bounded { len_bytes } else { u64::MAX };
        let read = |piece: &mut [u8]| {
            if self.is_over() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let want =
                usize::try_from(left_bytes).map_or(piece.len(), |left| left.min(piece.len()));
            let got = sys::read(file, &mut piece[..want])?;
            left_bytes -= got as u64;
            Ok(got)
        };
        crate::digest::shown(self.options.check.shown_sum(), read)
            .ok()
            .flatten()
    }
}

/// A peer that has the source: contents are requested from it and arrive as streams.
pub trait ContentPeer: Sync {
    /// Returns the facts about the peer.
    fn facts(&self) -> &SourceFacts;
    /// Sends what one entry needs of the peer, and its item, once the peer can get items of that entry. Contents must be
    /// taken in the order of the requests, see [`crate::proto::Lane`].
    fn submit(&self, submission: Submission) -> Result<()>;
    /// Takes the content of a file that was requested, or that this call requests.
    fn answer(&self, file: FileId) -> Result<Box<dyn Incoming + '_>>;
    /// Takes the content of a file that comes without a request. Dropping the stream declines the content. `None`: it
    /// comes only on request.
    fn unrequested(&self, file: FileId) -> Option<Box<dyn Incoming + '_>>;
    /// Requests the content of a file a second time, because the first content was wrong: now, or once all first requests
    /// were answered.
    fn redo(&self, file: FileId, basis: Basis, item: Option<Box<Item>>) -> Result<Redo<'_>>;
    /// Ends the requests of a peer that does not answer for unreadable files. Its answer shows which of them will not
    /// come. Called once for the first requests, and, after their answers, once more if [`ContentPeer::redo`] has left
    /// any content for later, which this call requests first.
    fn end_requests(&self) -> Result<()>;
    /// Requests the digest of a file, by [`SourceFacts::compared_by`]. Only if [`SourceFacts::digests`] is set.
    fn ask_digest(&self, file: FileId) -> Result<()>;
    /// Waits for a digest that was requested. `None`: the file cannot be read, or has changed since it was listed.
    fn digest(&self, file: FileId) -> Result<Option<ContentDigest>>;
    /// Ends the run with an error, and wakes all threads that wait for content.
    fn give_up(&self, error: &Error);
    /// Returns why no more content will come. `None`: it can come.
    fn failure(&self) -> Option<Error>;
    /// Returns whether no more content will come.
    fn is_silent(&self) -> bool {
        self.failure().is_some()
    }
    /// Returns how the connection was lost. `None`: it was not, or the user stopped the run.
    fn loss(&self) -> Option<Loss>;
    /// Reports to the peer that a file has its name (`--remove-source-files`).
    fn placed(&self, file: FileId) -> Result<()>;
    /// Returns an abbreviated value, if it has come.
    fn xattr(&self, wanted: &AbbreviatedValue) -> Option<Arc<[u8]>>;
    /// Waits for the values that were submitted with the items of an entry.
    fn await_xattrs(&self, file: FileId) -> Result<()>;
}

/// What one entry needs of the peer that has the source, and its item. rsync's protocol has all of it in one message.
///
/// The generator makes one for each file of which it requests content; if the peer gets items
/// ([`ItemOrder::List`]), for each other item as well, in list order.
pub struct Submission {
    pub file: FileId,
    /// Its content is requested: what this end has of it.
    pub content: Option<RequestedBasis>,
    /// What differs in a file of which content is requested, for the log of a peer that gets no items.
    pub changes: Changes,
    /// The abbreviated values that are requested with the item.
    pub values: RequestedValues,
    /// How the peer prints it; `None` if the peer gets no items.
    pub item: Option<Box<Item>>,
}

/// What this end has of a file that it requests.
pub struct RequestedBasis {
    pub basis: Basis,
    /// Which file that is; `None`: the one that is replaced, or a part of that.
    pub name: Option<BasisName>,
}

impl From<Basis> for RequestedBasis {
    fn from(basis: Basis) -> RequestedBasis {
        RequestedBasis { basis, name: None }
    }
}

/// When content that was wrong comes again.
pub enum Redo<'a> {
    /// It was requested, and comes as this stream.
    Now(Box<dyn Incoming + 'a>),
    /// The peer answers only requests in list order until these are ended: [`ContentPeer::end_requests`] requests it.
    Later,
}

/// What happens after a lost connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The run ends.
    Final,
    /// The client repeats the run, so unfinished files must not have their final names.
    Repeated,
}

/// The content of one file as it arrives. Dropping it discards what has not been taken.
pub trait Incoming {
    /// Waits for the first piece. Returns whether the sender's file begins with other content than the receiver's
    /// prefix ([`ContentPiece::Unsent`] without a problem).
    fn begins_otherwise(&mut self) -> Result<bool>;
    /// Waits for the first piece. Returns why the file does not come, if the sender could not open it.
    fn refusal(&mut self) -> Result<Option<Problem>>;
    /// Returns the digest of the content, unless it comes whole in one piece.
    fn digested_by(&self) -> By;
    /// Returns the next piece, or an error if the connection is lost.
    fn next(&mut self) -> Result<ContentPiece>;
    /// Reads the range of the basis of the last [`ContentPiece::Copy`] if later data refers to it.
    fn see_copy(
        &mut self,
        basis: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> io::Result<()>;
    /// Returns how many bytes of rsync's protocol the content took, if it came by that and is complete.
    fn moved_bytes(&self) -> Option<u64>;
}

/// A piece of a file's content.
#[derive(Debug)]
pub enum ContentPiece {
    /// The next bytes.
    Data(Vec<u8>),
    /// The next bytes are a range of the basis.
    Copy {
        /// The offset in the basis.
        offset_bytes: u64,
        /// The length.
        len_bytes: u64,
    },
    /// The complete content and its [`crate::digest::whole`]. The only piece.
    Whole(Vec<u8>, ContentDigest),
    /// The end of the content; the digest of all of it.
    End(ContentDigest),
    /// The content does not come, or not to its end, for this reason. `None`: it does not begin with the receiver's
    /// prefix.
    Unsent(Option<Problem>),
}

impl ContentPiece {
    /// Returns whether this is the last piece of the file.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            ContentPiece::Whole(..) | ContentPiece::End(_) | ContentPiece::Unsent(_)
        )
    }
}

/// What a new file has before its attributes are set.
#[derive(Debug, Clone, Copy)]
pub struct NewFileAttributes {
    pub dev: u64,
    pub uid: u32,
    /// `None`: it is not known.
    pub gid: Option<u32>,
}

/// A directory of the destination in which work is done. The generator makes it when it enters the directory, and all work
/// there shares it. Only what its first use finds out is added later.
pub struct DestDir {
    pub path: RelPath,
    /// The open directory; `None` in a dry run if it does not exist.
    pub dir: Option<Dir>,
    /// Its last touch, which runs when all work in and below it is done.
    pub last: Arc<LastTouch>,
    new_ids: OnceLock<Option<(u32, u32)>>,
    inherited: OnceLock<NewFileAttributes>,
    default_acl: OnceLock<Option<Vec<u8>>>,
}

impl DestDir {
    /// Creates it for a directory that is open, or does not exist.
    pub fn new(path: RelPath, dir: Option<Dir>, last: Arc<LastTouch>) -> DestDir {
        DestDir {
            path,
            dir,
            last,
            new_ids: OnceLock::new(),
            inherited: OnceLock::new(),
            default_acl: OnceLock::new(),
        }
    }

    /// Returns the owner and group that new files get here. Taken from the first one, because directories and mounts
    /// may pass their group on.
    pub fn new_ids(&self, first: BorrowedFd<'_>) -> Option<(u32, u32)> {
        *self
            .new_ids
            .get_or_init(|| sys::fstat(first).ok().map(|stat| (stat.uid, stat.gid)))
    }

    /// Returns what a new file in it has before its attributes are set. `dir`: this directory.
    pub fn inherited(&self, dir: &Dir) -> io::Result<NewFileAttributes> {
        if let Some(known) = self.inherited.get() {
            return Ok(*known);
        }
        let stat = sys::fstat(dir.fd())?;
        let (uid, gid) = sys::ids();
        // The group of a new file is that of the process or that of the directory, depending on the file system.
        let is_known = stat.mode & 0o2000 != 0 || stat.gid == gid;
        let found = NewFileAttributes {
            dev: stat.dev,
            uid,
            gid: if is_known { Some(stat.gid) } else { None },
        };
        Ok(*self.inherited.get_or_init(|| found))
    }

    /// Returns the default ACL, which new files inherit. Empty if it cannot be read.
    pub fn default_acl(&self) -> Option<&[u8]> {
        let read = || match sys::fgetxattr(self.dir.as_ref()?.fd(), acl::DEFAULT) {
            Ok(acl) => acl,
            Err(error) => (!errno::is_unsupported(&error)).then(Vec::new),
        };
        self.default_acl.get_or_init(read).as_deref()
    }

    /// Returns what new subdirectories inherit.
    pub fn passes_on(&self) -> chmod::Parent {
        let setgid = self
            .dir
            .as_ref()
            .and_then(|dir| sys::fstat(dir.fd()).ok())
            .is_some_and(|s| s.mode & 0o2000 != 0);
        chmod::Parent {
            default_acl_mode: self.default_acl_mode(),
            setgid,
        }
    }

    /// Returns the permission bits that the default ACL allows for files.
    pub fn default_acl_mode(&self) -> Option<u32> {
        self.default_acl().and_then(acl::default_mode)
    }
}

/// The state of one applier thread.
#[derive(Default)]
pub struct ApplierState {
    buffer: Vec<u8>,
    /// The directory of the last hard-link leader, and its path.
    leaders: Option<(RelPath, Dir)>,
}

impl ApplierState {
    /// Returns the directory of a hard-link leader. It is often that of the previous one.
    pub fn dir_of_leader(&mut self, root: &Root, path: RelPath) -> io::Result<Dir> {
        if let Some((_, dir)) = self.leaders.as_ref().filter(|(last, _)| *last == path) {
            return Ok(dir.clone());
        }
        let dir = root.open_dir_to_search(&path)?;
        self.leaders = Some((path, dir.clone()));
        Ok(dir)
    }
}

/// Reports events immediately if it is their turn, and then empties the list. Returns `false` if it is not.
pub type Live<'a> = &'a dyn Fn(&mut Vec<Event>) -> bool;

/// A piece of work in progress, and its result. Events are reported in list order; counts are added in any order.
pub struct Outcome<'a> {
    /// The state of the thread that does it.
    pub applier: &'a mut ApplierState,
    /// The events, in order.
    pub events: Vec<Event>,
    /// The counts.
    pub tally: Tally,
    /// Why the run cannot go on.
    pub fatal: Option<crate::error::Error>,
    /// Reports events while the work is in progress.
    pub live: Option<Live<'a>>,
    /// Reported once the current file is open for writing, or never.
    pub begun: Vec<Event>,
    /// The current file in the live display.
    pub mark: Option<FileMark>,
    /// How much of the content of the current file was written, or is there without that.
    pub filled_bytes: u64,
    /// The work must be repeated after all first requests.
    pub is_to_repeat: bool,
    /// The work is done a second time, because the content of the first one was wrong.
    pub is_repeated: bool,
}

/// Files from this length on are reported before their data moves, if it is their turn.
const LIVE_BYTES: u64 = 1 << 20;

impl<'a> Outcome<'a> {
    /// Creates the outcome of work that has not begun.
    pub fn new(applier: &'a mut ApplierState, live: Option<Live<'a>>) -> Outcome<'a> {
        let (events, tally, begun) = Default::default();
        let is_to_repeat = false;
        let is_repeated = false;
        Outcome {
            applier,
            events,
            tally,
            fatal: None,
            live,
            begun,
            mark: None,
            filled_bytes: 0,
            is_to_repeat,
            is_repeated,
        }
    }

    /// Reports that a file of this length is in progress.
    fn report_begun(&mut self, len_bytes: u64) {
        self.events.append(&mut self.begun);
        if let Some(live) = self.live
            && len_bytes >= LIVE_BYTES
        {
            live(&mut self.events);
        }
    }
}
